"""LM-Infinite: a window and the first tokens (Han et al. 2023, arXiv 2308.16137)."""

from configurable import require
from posenc import Extension, Region, Shape, Window


class LmInfinite(Extension):
    """A query sees the last L keys and the first `sinks` keys, no key at a distance above L.

    Han et al. 2023 (arXiv 2308.16137). A sink that is farther away than L counts as at distance L.
    Biases are bounded in the same way: ALiBi's at -m L. `size` stands for L and defaults to the
    training length.
    Verdict: a trained rope lost 0.004 nats at 16 L with it (results/extend). Only a window and the
    first tokens are read.
    """

    def __init__(self, shape: Shape, *, size: int | None = None, sinks: int = 10) -> None:
        super().__init__()
        size = shape.length if size is None else size
        require(
            size > 0 and sinks >= 0,
            f"lm_infinite: size must be positive and sinks not negative, not {size} and {sinks}",
        )
        self.span = (size, sinks)

    mask = Window.mask  # i - j < size, or j < sinks

    def regions(self, total: int) -> list[Region]:
        """Past the window a key lies at 0 and the query at `size`."""
        size = self.span[0]
        return [Region(lambda i: i * 0 + size, lambda j: j * 0, lambda i, j: i - j >= size)]
