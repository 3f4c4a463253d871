"""LM-Infinite: a window and the first tokens (Han et al. 2023, arXiv 2308.16137)."""

from posenc import Extension, Length, Region, Shape, Whole


class LmInfinite(Extension):
    """A query sees the last L keys and the first `sinks` keys, none at a distance above L.

    Han et al. 2023 (arXiv 2308.16137). A sink farther away than L is treated as at distance L.
    Biases are bounded in the same way: ALiBi's at -m L. `size` is L and defaults to the training
    length.
    """

    def __init__(self, shape: Shape, *, size: Length | None = None, sinks: Whole = 10) -> None:
        super().__init__()
        self.size = size or shape.first_length
        self.sinks = sinks
        self.visible = (self.size, sinks)

    def mask(self, i, j):
        """The last `size` keys and the sinks."""
        return (i - j < self.size) | (j < self.sinks)

    def regions(self, total):
        """Past the window, keys have position 0 and the query `size`."""
        size = self.size
        return [
            Region(
                query=lambda i: i * 0 + size,
                key=lambda j: j * 0,
                where=lambda i, j: i - j >= size,
            )
        ]
