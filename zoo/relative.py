"""A learned number for each distance: Shaw et al. 2018 (arXiv 1803.02155) as a bias."""

import torch
from torch import nn

from posenc import Piece, Shape, Whole


class Relative(Piece):
    """score += table[min(i - j, max_distance), h].

    After Shaw et al. 2018 (arXiv 1803.02155). They also clip distances, but learn a vector a_n and
    add q.a_n / sqrt(d). A scalar instead of a vector is T5's idea, here without its buckets.
    Parameter: table (max_distance + 1, H), initialised to 0, shared by layers. `max_distance`
    defaults to half the training length, so that every entry is trained.
    """

    by_distance = True

    def __init__(self, shape: Shape, *, max_distance: Whole | None = None) -> None:
        super().__init__()
        self.max_distance = shape.first_length // 2 if max_distance is None else max_distance
        self.table = nn.Parameter(torch.zeros(self.max_distance + 1, shape.n_head))

    def bias(self, h, i, j):
        """Look up the clipped distance."""
        return self.table[(i - j).clamp(max=self.max_distance).long(), h]
