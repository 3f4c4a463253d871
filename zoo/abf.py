"""ABF: adjusted base frequency (Xiong et al. 2023, arXiv 2309.16039)."""

from torch import Tensor

from configurable import require
from posenc import Extension, Shape


class Abf(Extension):
    """theta_m (base / base')^(2m/d): a trained rotary model is given another base, 500,000 in the paper for 10,000.

    Verdict: their start of a long fine-tune; untrained it is ntk at a factor that nobody chose for this length.
    """

    def __init__(self, shape: Shape, *, base: float = 500000.0) -> None:
        super().__init__()
        require(base >= 1, f"abf: base must be at least 1, not {base}")
        self.base = base

    def stretch(self, inv_freq: Tensor, base: float, total: int) -> tuple[Tensor, float]:
        """The exponents stay."""
        exponents = inv_freq.new_tensor(range(len(inv_freq))) / len(inv_freq)
        return inv_freq * (base / self.base) ** exponents, 1.0
