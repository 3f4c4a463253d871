"""Clipped frequencies at test time: slow pairs tapered off (Li et al. 2026, arXiv 2602.05258)."""

import math

import torch
from torch import Tensor

from configurable import require
from posenc import Extension, Shape, taper


class Clip(Extension):
    """The slowest `pairs` frequencies times (1 + cos x) / 2, x from 0 to pi: rope(clip=...) for a model trained without.

    `pairs` defaults to those that do not finish a turn within L.
    Verdict: a gentler p_rope.
    """

    def __init__(self, shape: Shape, *, pairs: int | None = None) -> None:
        super().__init__()
        require(pairs is None or pairs >= 0, f"clip: pairs must not be negative, not {pairs}")
        self.pairs, self.length = pairs, shape.length

    def stretch(self, inv_freq: Tensor, base: float, total: int) -> tuple[Tensor, float]:
        """The last one to 0."""
        slow = (
            int((inv_freq * self.length < 2 * math.pi).sum())
            if self.pairs is None
            else min(self.pairs, len(inv_freq))
        )
        return inv_freq * torch.cat((inv_freq.new_ones(len(inv_freq) - slow), taper(slow))), 1.0
