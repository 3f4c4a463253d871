"""Resonance RoPE: whole wavelengths (Wang et al. 2024, arXiv 2403.00071)."""

import math

from posenc import Rope


class Resonance(Rope):
    """RoPE with each wavelength rounded to whole tokens: theta'_m = 2 pi / round(2 pi / theta_m).

    Wang et al. 2024 (arXiv 2403.00071). After its first period, a pair sees only angles that it saw
    in training. The options are those of `rope`; frequencies of 0 stay 0. Nothing is learned. In
    `extend` it rounds the frequencies of any rotary scheme, alone or after another frequency map.
    """

    can_extend = True

    def map_frequencies(self, inv_freq, base, total, ids):
        """Frequencies with rounded wavelengths; the attention factor is 1."""
        return 2 * math.pi / (2 * math.pi / inv_freq).round(), 1.0
