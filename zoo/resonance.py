"""Resonance RoPE: whole wavelengths (Wang et al. 2024, arXiv 2403.00071)."""

import math

from torch import Tensor

from posenc import Rope


class Resonance(Rope):
    """RoPE with each wavelength rounded to a whole number of tokens: theta'_m = 2 pi / round(2 pi / theta_m).

    Wang et al. 2024: past its first period a pair meets only angles that it met in training. Options are rope's; pairs
    that rope stills stay still. Nothing is learned.
    Verdict: costs nothing and helps the fast pairs only; the slow ones that break RoPE past L have no full period in it.
    """

    extends, over_others, first = True, True, 0

    def stretch(self, inv_freq: Tensor, base: float, total: int) -> tuple[Tensor, float]:
        """The same of any frequencies, after another extension if there is one."""
        return 2 * math.pi / (2 * math.pi / inv_freq).round(), 1.0

    def frequencies(self, total: int) -> tuple[Tensor, float]:
        """RoPE's, rounded in wavelength."""
        inv_freq, factor = super().frequencies(total)
        return 2 * math.pi / (2 * math.pi / inv_freq).round(), factor
