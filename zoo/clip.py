"""RoPE with clipped frequencies (Li et al. 2026, arXiv 2602.05258)."""

import math

import torch

from posenc import Base, Rope, Shape, Whole


class Clip(Rope):
    """RoPE whose slowest `pairs` frequencies are multiplied by (1 + cos x) / 2, x from 0 to pi.

    Li et al. 2026 (arXiv 2602.05258). `pairs` defaults to the number of pairs that do not complete
    a turn within the training length. In `extend` it clips the frequencies of any rotary scheme.
    """

    can_extend = True

    def __init__(self, shape: Shape, *, pairs: Whole | None = None, base: Base = 10000.0) -> None:
        super().__init__(shape, base=base)
        self.pairs = pairs
        self.length = shape.first_length

    def map_frequencies(self, inv_freq, base, total, ids):
        """The clipped frequencies, the last one 0; the attention factor is 1."""
        pairs = len(inv_freq)
        slow = (inv_freq * self.length < 2 * math.pi).sum()
        if self.pairs is not None:
            slow = torch.full_like(slow, min(self.pairs, pairs))
        place = torch.arange(pairs, device=inv_freq.device).to(inv_freq)
        place = place - (pairs - slow)  # 0: the first slow pair
        angle = math.pi * place / (slow - 1)
        angle = torch.where(slow == 1, math.pi, angle)  # a single one becomes 0
        return inv_freq * torch.where(place < 0, 1.0, (1 + angle.cos()) / 2), 1.0
