"""Sandwich: the inner product of sinusoids as a bias (Chi et al. 2022, arXiv 2212.10356)."""

import torch
from torch import Tensor

from configurable import require
from posenc import Bias, Piece, Shape


class Sandwich(Piece):
    """score += (sum over m = 1 ... d/2 of cos((i - j) 10000^(-2m/d)) - d/2) / (8h/H) in head h = 1 ... H. Nothing is learned.

    That is p_i.p_j of sinusoids of `dimension` d (by default that of a head, as in NeMo, whose formula this is), moved to
    0 at distance 0; it falls roughly as a logarithm, with ripples. Head H is the farthest sighted, the reverse of ALiBi's.
    Verdict: a parameter-free alibi with a softer far end; kerple learns the same shape.
    """

    def __init__(self, shape: Shape, *, dimension: int | None = None) -> None:
        super().__init__()
        self.n_head, d = shape.n_head, shape.head_dim if dimension is None else dimension
        require(
            d > 0 and d % 2 == 0,
            f"sandwich sums pairs of sinusoids: dimension must be even and positive, not {d}",
        )
        self.inv_freq = [10000 ** (-2 * m / d) for m in range(1, d // 2 + 1)]

    def bias(self, like: Tensor) -> Bias:
        """A sum of cosines, the same for all heads but for its scale."""
        scale = like.new_tensor([self.n_head / (8 * h) for h in range(1, self.n_head + 1)])

        def bias(h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            distance = (i - j).to(like.dtype)
            return scale[h] * sum(torch.cos(w * distance) - 1 for w in self.inv_freq)

        return bias
