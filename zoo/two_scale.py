"""One position scale within the training length, another past it. Not from a paper."""

import torch

from posenc import Extension, NonNegativeFloat, Shape


class TwoScale(Extension):
    """p' = alpha p up to L, and beta p past it. L is the training length.

    Some tutorials teach this map under the name YaRN, with alpha = 1 and beta > 1. YaRN is a
    different method, and beta > 1 rotates faster past L, which is the wrong direction. beta < 1
    maps late positions onto early ones; for a bias, a key that ends up ahead of the query is at
    distance 0. The map jumps at L unless alpha = beta, which is interpolation (`pi`).
    """

    def __init__(
        self, shape: Shape, *, alpha: NonNegativeFloat = 1.0, beta: NonNegativeFloat = 1.5
    ) -> None:
        super().__init__()
        self.length = shape.first_length
        self.alpha = alpha
        self.beta = beta

    def ids(self, ids, total):
        """Multiplied by alpha or by beta."""
        return torch.where(ids < self.length, self.alpha * ids, self.beta * ids)
