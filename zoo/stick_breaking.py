"""Stick-breaking attention (Tan et al. 2024, arXiv 2410.17980)."""

import math
from typing import Literal

import torch
from torch.nn import functional as F

from posenc import Piece, Shape


class StickBreaking(Piece):
    """Weight of key j for query i: s(z_ij) x the product of 1 - s(z_ik) over the keys between them,
    j < k < i, in place of the softmax; s is the sigmoid, z_ij the score.

    Tan et al. 2024 (arXiv 2410.17980). From the newest key to the oldest, each takes its share of
    what is left of a stick. Sums of logarithms are float32 or wider. Masked keys take nothing. A
    query does not see its own token, and the first query sees none: its weights are 0. This follows
    the paper's formula and the authors' kernels, where the rest of the stick is discarded. Variants
    in their code: current=share lets the query's own key take its share first (their
    attend_current); current=rest gives the rest of the stick to the query's own value, so that
    weights sum to 1. Left out: a learned vector per head that gets the rest, and a norm per head
    after it, as in their later models.
    """

    def __init__(self, shape: Shape, *, current: Literal["skip", "share", "rest"] = "skip") -> None:
        super().__init__()
        self.current = current

    def weights(self, scores):
        """(B, H, R, C) from scores (B, H, R, C), where the last query is at the last key."""
        columns = torch.arange(scores.shape[-1], device=scores.device)
        is_own = columns == columns[-scores.shape[-2] :, None]  # (R, C)
        z = scores
        if self.current != "share":  # faster than masked_fill
            z = z + torch.zeros_like(z[0, 0]).masked_fill(is_own, -math.inf)
        spent = F.softplus(z, threshold=80)  # -ln of the share that each key leaves
        before = sums_after(spent)  # -ln of the stick before each key
        weights = z.sigmoid() * (before / -math.log(2)).exp2()  # of small numbers, exp is slow
        if self.current == "rest":
            rest = (-before[..., :1] - spent[..., :1]).exp()
            weights = torch.where(is_own, rest, weights)
        return weights


def sums_after(x):
    """The sum of the numbers after each of x (..., C), by products with triangles of ones: in
    training faster than a cumulative sum, and nothing is subtracted.
    """
    blocks = F.pad(x, (0, -x.shape[-1] % 32)).unflatten(-1, (-1, 32))
    sums = blocks.sum(-1)
    ones = torch.ones(32, 32, dtype=x.dtype, device=x.device)
    within = blocks @ ones.tril(-1)  # of the same block
    ones = torch.ones(2 * sums.shape[-1:], dtype=x.dtype, device=x.device)
    later = sums @ ones.tril(-1)  # of later blocks
    return (within + later[..., None]).flatten(-2)[..., : x.shape[-1]]
