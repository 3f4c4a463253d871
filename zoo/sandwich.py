"""Sandwich: the inner product of sinusoids as a bias (Chi et al. 2022, arXiv 2212.10356)."""

import torch

from common.errors import UserError
from posenc import Count, Piece, Shape


class Sandwich(Piece):
    """score += (sum_m cos((i - j) 10000^(-2m/d)) - d/2) H / (8h), m = 1 ... d/2, h = 1 ... H.

    Chi et al. 2022 (arXiv 2212.10356). The sum is p_i.p_j of sinusoids of `dimension` d, shifted to
    0 at distance 0; h is the head's number. d defaults to the head dimension, as in NeMo, whose
    formula this is. The bias falls roughly logarithmically, with ripples. The last head sees
    farthest. Nothing is learned.
    """

    by_distance = True

    def __init__(self, shape: Shape, *, dimension: Count | None = None) -> None:
        super().__init__()
        d = dimension or shape.turned_width
        if d == 0 or d % 2 != 0:
            raise UserError(f"sandwich sums pairs of sinusoids: dimension must be even, not {d}")
        self.inv_freq = [10000 ** (-2 * m / d) for m in range(1, d // 2 + 1)]
        scale = shape.n_head / (8 * torch.arange(1, shape.n_head + 1))
        self.register_buffer("scale", scale, persistent=False)

    def bias(self, h, i, j):
        """A sum of cosines, scaled per head."""
        return self.scale[h] * sum(torch.cos(w * (i - j)) - 1 for w in self.inv_freq)
