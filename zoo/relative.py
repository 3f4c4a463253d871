"""A learned number for each distance: Shaw et al. 2018 (arXiv 1803.02155) as a bias."""

import torch
from torch import Tensor, nn

from configurable import require
from posenc import Bias, Piece, Shape


class Relative(Piece):
    """score += table[min(i - j, max_distance), h].

    After Shaw et al. 2018 (arXiv 1803.02155). They clip distances in the same way, but learn a
    vector a_n and add q.a_n / sqrt(d). A number instead of a vector is the idea of T5, here
    without its buckets. Parameter: table (max_distance + 1, H), 0 at first, shared by layers.
    `max_distance` defaults to half the training length, so that every entry is trained.
    Verdict: t5 with one number for each distance, without buckets. From max_distance on all
    distances look the same.
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
        """A look-up by the clipped distance."""
        table = self.table.to(like.dtype)
        return lambda h, i, j: table[(i - j).clamp(max=self.max_distance).long(), h]
