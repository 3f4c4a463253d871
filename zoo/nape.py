"""NAPE: half of the heads without positions, half with ALiBi (Vasylenko et al. 2025)."""

import torch

from posenc import Piece, Shape


class Nape(Piece):
    """score += -(i - j) / h in head h of the first H // 2; the others have no positions.

    Vasylenko et al. 2025 (arXiv 2506.16640), as in their code: h counts from 1, and the slopes 1,
    1/2, 1/3 ... are not ALiBi's powers of two. Their entmax and its temperature are left out.
    """

    by_distance = True
    in_kernel = True

    def __init__(self, shape: Shape):
        super().__init__()
        slopes = 1 / torch.arange(1.0, shape.n_head + 1)
        slopes[shape.n_head // 2 :] = 0.0
        self.register_buffer("slopes", slopes, persistent=False)

    def bias(self, h, i, j):
        """-(i - j) / h, or 0."""
        return self.slopes[h] * (j - i)
