"""One scale of positions within L and another past it: a map that is taught as YaRN, and is not."""

import torch
from torch import Tensor

from configurable import require
from posenc import Extension, Shape


class TwoScale(Extension):
    """p' = alpha p up to L, beta p past it. L is the training length.

    Tutorials call this YaRN, with alpha = 1 and beta > 1, which turns faster past L, the wrong way; beta < 1 brings late
    positions back among early ones. It jumps at L unless alpha = beta, which is interpolation (`pi`).
    Verdict: to hold a belief against a measurement.
    """

    continuous = True

    def __init__(self, shape: Shape, *, alpha: float = 1.0, beta: float = 1.5) -> None:
        super().__init__()
        require(
            alpha >= 0 and beta >= 0,
            f"two_scale: alpha and beta must not be negative, not {alpha} and {beta}",
        )
        self.length, self.alpha, self.beta = shape.length, alpha, beta

    def ids(self, index: Tensor, total: int) -> Tensor:
        """By the side of L."""
        return torch.where(index < self.length, self.alpha * index, self.beta * index)
