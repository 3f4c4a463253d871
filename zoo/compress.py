"""Positions that advance more slowly past the training length. Not from a paper."""

from posenc import Extension, NonNegativeFloat, Shape


class Compress(Extension):
    """p' = p up to L, and L + alpha (p - L) past it. L is the training length.

    Some tutorials teach this map under the name YaRN. YaRN is a different method: it lowers
    frequencies, the same at all positions. With this map the same two words are farther apart early
    in a text than late in it, so scores no longer depend on distance alone.
    """

    def __init__(self, shape: Shape, *, alpha: NonNegativeFloat = 0.25) -> None:
        super().__init__()
        self.length = shape.first_length
        self.alpha = alpha

    def ids(self, ids, total):
        """Linear with slope 1 up to L, alpha past it."""
        return ids.clamp(max=self.length) + self.alpha * (ids - self.length).clamp(min=0)
