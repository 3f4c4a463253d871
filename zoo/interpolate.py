"""Position interpolation of any scheme (Chen et al. 2023, arXiv 2306.15595)."""

from posenc import Scaled


class Interpolate(Scaled):
    """p' = p / s: every position is divided by the factor s.

    Chen et al. 2023 (arXiv 2306.15595). For rotary schemes this equals `pi`. For ALiBi it divides
    the slopes by s, which helps on longer texts according to Al-Khateeb et al. 2023 (arXiv
    2310.13017). For sinusoids it is new. It does not fit a learned table, which has no vectors
    between integer positions.
    """

    def ids(self, ids, total):
        """Divided by the factor."""
        return ids / self.factor(total)
