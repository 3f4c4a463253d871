"""Positions past L that advance more slowly: a map that is widely taught, and not YaRN, as which it is taught."""

from torch import Tensor

from configurable import require
from posenc import Extension, Shape


class Compress(Extension):
    """p' = p up to L, L + alpha (p - L) past it. L is the training length.

    Tutorials call this YaRN. It is not: YaRN slows frequencies and treats all positions alike, whereas here the same two
    words are further apart early in a text than late in it, so that scores no longer depend on distance alone.
    Verdict: to hold a belief against a measurement.
    """

    continuous = True

    def __init__(self, shape: Shape, *, alpha: float = 0.25) -> None:
        super().__init__()
        require(alpha >= 0, f"compress: alpha must not be negative, not {alpha}")
        self.length, self.alpha = shape.length, alpha

    def ids(self, index: Tensor, total: int) -> Tensor:
        """Linear on both sides of L."""
        return index.clamp(max=self.length) + self.alpha * (index - self.length).clamp(min=0)
