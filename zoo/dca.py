"""DCA: dual chunk attention (An et al. 2024, arXiv 2402.17463)."""

from common.errors import UserError
from posenc import Extension, Length, Region, Shape, Whole


class Dca(Extension):
    """Positions within chunks of c tokens, so that no distance exceeds `size`.

    An et al. 2024 (arXiv 2402.17463). A key has position j mod c. A query has i mod c for keys of
    its own chunk, min(i mod c + c, size) for keys of the previous chunk, and `size` for keys of
    older chunks. c = size - local. `size` defaults to 3 L / 4 and `local` to L / 8, L the training
    length.
    """

    def __init__(
        self, shape: Shape, *, size: Length | None = None, local: Whole | None = None
    ) -> None:
        super().__init__()
        self.size = size or 3 * shape.first_length // 4
        local = shape.first_length // 8 if local is None else local
        if local >= self.size:
            raise UserError(f"dca: local = {local} must be below size = {self.size}")
        self.chunk = self.size - local

    def regions(self, total):
        """Older chunks, the previous chunk, and the query's own."""
        size = self.size
        c = self.chunk
        older = Region(
            query=lambda i: i * 0 + size,
            key=lambda j: j % c,
            where=lambda i, j: i // c - j // c > 1,
        )
        before = Region(
            query=lambda i: (i % c + c).clamp(max=size),
            key=lambda j: j % c,
            where=lambda i, j: i // c - j // c == 1,
        )
        own = Region(
            query=lambda i: i % c,
            key=lambda j: j % c,
            where=lambda i, j: i // c == j // c,
        )
        return [older, before, own]
