"""StreamingLLM: a window and the first tokens (Xiao et al. 2023, arXiv 2309.17453)."""

from common.errors import UserError
from posenc import Extension, Length, Region, Shape, Whole


class Streaming(Extension):
    """A query sees the last `size` keys and the first `sinks`, at their positions in the cache.

    Xiao et al. 2023 (arXiv 2309.17453). The cache holds no other keys, and positions are counted
    within it: for a sink outside the window, the query has position min(i, sinks + size - 1), the
    sink its own j. `size` defaults to L - sinks, L the training length.
    """

    def __init__(self, shape: Shape, *, size: Length | None = None, sinks: Whole = 4) -> None:
        super().__init__()
        self.size = size or shape.first_length - sinks
        self.sinks = sinks
        if self.size <= 0:
            raise UserError(f"streaming: set size, or fewer sinks than L = {shape.first_length}")
        self.visible = (self.size, sinks)

    def mask(self, i, j):
        """The last `size` keys and the sinks."""
        return (i - j < self.size) | (j < self.sinks)

    def regions(self, total):
        """The sinks outside the window."""
        size = self.size
        sinks = self.sinks
        return [
            Region(
                query=lambda i: i.clamp(max=sinks + size - 1),
                key=lambda j: j,
                where=lambda i, j: (i - j >= size) & (j < sinks),
            )
        ]
