"""Stick-breaking attention (Tan et al. 2024, arXiv 2410.17980)."""

import math
from typing import Literal

import torch
from torch.nn import functional as F

from common.compiler import materialize
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
        # the share of the stick before each key; exp is slow where it underflows, exp2 is not
        left = sums_after(spent, -1 / math.log(2)).exp2()
        weights = z.sigmoid() * left
        if self.current == "rest":
            rest = left[..., :1] * (-z[..., :1]).sigmoid()
            weights = torch.addcmul(weights, rest, is_own.to(rest.dtype))  # its own weight was 0
        return weights


def sums_after(x, factor):
    """The factor times the sum of the numbers after each of x (..., C), by products with triangles:
    in training faster than a cumulative sum, and nothing is subtracted.
    """
    n_keys = x.shape[-1]
    if n_keys % 32:  # to pad by nothing would copy
        x = F.pad(x, (0, -n_keys % 32))
    blocks = x.unflatten(-1, (-1, 32))
    # compiled for a CPU, torch 2.13 leaves numbers unwritten where it sums or cuts padded blocks
    sums = (blocks @ x.new_ones(32, 1))[..., 0]
    within = blocks @ triangle(32, factor, x)  # of the same block
    later = sums @ triangle(sums.shape[-1], factor, x)  # of later blocks
    total = (within + later[..., None]).flatten(-2)
    return materialize(total)[..., :n_keys] if n_keys % 32 else total


def triangle(size, factor, x):
    """The factor below the diagonal, else 0: (size, size), of the dtype of x."""
    return torch.full((size, size), factor, dtype=x.dtype, device=x.device).tril(-1)
