"""Sandwich: the inner product of sinusoids as a bias (Chi et al. 2022, arXiv 2212.10356)."""

import torch
from torch import Tensor

from configurable import require
from posenc import Bias, Piece, Shape, constant


class Sandwich(Piece):
    """score += (sum_m cos((i - j) 10000^(-2m/d)) - d/2) H / (8h), m = 1 ... d/2, h = 1 ... H.

    Chi et al. 2022 (arXiv 2212.10356). The sum is p_i.p_j of sinusoids of `dimension` d, moved to
    0 at distance 0; h is the number of the head. d defaults to the dimension of a head, as in
    NeMo, whose formula this is. The bias falls roughly as a logarithm, with ripples. The last head
    sees farthest. Nothing is learned.
    Verdict: Chi et al. 2022 designed it to decay with distance as the biases learned by kerple and
    t5 do. It has nothing to learn.
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
        scale = constant([self.n_head / (8 * h) for h in range(1, self.n_head + 1)], like)

        def bias(h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            distance = (i - j).to(like.dtype)
            return scale[h] * sum(torch.cos(w * distance) - 1 for w in self.inv_freq)

        return bias
