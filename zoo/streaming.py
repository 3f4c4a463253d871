"""StreamingLLM: a window and the first tokens (Xiao et al. 2023, arXiv 2309.17453)."""

from configurable import require
from posenc import Extension, Region, Shape, Window


class Streaming(Extension):
    """A query sees the last `size` keys and the first `sinks`, at their places in the cache.

    Xiao et al. 2023 (arXiv 2309.17453). The cache holds no other keys, so places are counted in it:
    towards a sink that has left the window, a query lies at min(i, sinks + size - 1), the sink at
    its own j. `size` defaults to L - sinks, L the training length.
    Verdict: a trained rope lost 0.002 nats at 16 L with it (results/extend). Only a window and the
    first tokens are read.
    """

    def __init__(self, shape: Shape, *, size: int | None = None, sinks: int = 4) -> None:
        super().__init__()
        size = shape.length - sinks if size is None else size
        require(
            size > 0 and sinks >= 0,
            f"streaming: size must be positive and sinks not negative, not {size} and {sinks}",
        )
        self.span = (size, sinks)

    mask = Window.mask  # i - j < size, or j < sinks

    def regions(self, total: int) -> list[Region]:
        """The sinks that have left the window."""
        size, sinks = self.span
        return [
            Region(
                lambda i: i.clamp(max=sinks + size - 1),
                lambda j: j,
                lambda i, j: (i - j >= size) & (j < sinks),
            )
        ]
