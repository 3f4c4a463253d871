"""Resonance RoPE: whole wavelengths (Wang et al. 2024, arXiv 2403.00071)."""

import math

from posenc import Rope


class Resonance(Rope):
    """RoPE with each wavelength rounded to whole tokens: theta'_m = 2 pi / round(2 pi / theta_m).

    Wang et al. 2024 (arXiv 2403.00071). After its first period a pair meets only angles that it
    met in training. The options are those of `rope`; pairs with frequency 0 keep it. Nothing is
    learned. In `extend` it rounds the frequencies of any rotary scheme, alone or after another
    frequency map.
    Verdict: changed little: a trained rope lost 0.59 nats at 2 L with it, 0.64 without
    (results/extend). It helps only pairs that finish a turn within L.
    """

    can_extend = True

    def map_frequencies(self, inv_freq, base, total, ids):
        """Any frequencies, rounded in wavelength; the attention factor is 1."""
        return 2 * math.pi / (2 * math.pi / inv_freq).round(), 1.0
