"""Position interpolation of any scheme (Chen et al. 2023, arXiv 2306.15595; for ALiBi: Al-Khateeb et al. 2023)."""

from torch import Tensor

from posenc import Scaled


class Interpolate(Scaled):
    """Every position p becomes p / s. For rotary schemes it is `pi`; for ALiBi it is slopes / s; for sinusoids it is new.

    Al-Khateeb et al. 2023 (arXiv 2310.13017) find it to help ALiBi read longer texts. A learned table has no vectors
    between whole positions: train learned(resize=linear).
    Verdict: nothing leaves the range of training, everything is nearer than it was in training.
    """

    continuous = True

    def ids(self, index: Tensor, total: int) -> Tensor:
        """p / s."""
        return index / self.factor(total)
