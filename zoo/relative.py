"""A learned scalar for each distance, the last one for all beyond: Shaw et al. 2018 (arXiv 1803.02155), as a bias."""

import torch
from torch import Tensor, nn

from configurable import require
from posenc import Bias, Piece, Shape


class Relative(Piece):
    """score += table[min(i - j, max_distance), h]; parameter: table (max_distance + 1, H), zeros at first, shared by layers.

    Shaw et al. clip distances likewise but learn a vector a_n, and add q.a_n / sqrt(d); a scalar instead is T5's idea
    without its buckets. `max_distance` defaults to half the training length, so that every entry is trained.
    Verdict: t5 without the logarithm: one number for each distance; beyond max_distance it is blind.
    """

    def __init__(self, shape: Shape, *, max_distance: int | None = None) -> None:
        super().__init__()
        self.max_distance = shape.length // 2 if max_distance is None else max_distance
        require(
            0 <= self.max_distance < 2**24,
            f"relative: max_distance must lie in [0, 2**24), not {max_distance}",
        )
        self.table = nn.Parameter(torch.zeros(self.max_distance + 1, shape.n_head))

    def bias(self, like: Tensor) -> Bias:
        """A look-up by the clamped distance."""
        table = self.table.to(like.dtype)
        return lambda h, i, j: table[(i - j).clamp(max=self.max_distance).long(), h]
