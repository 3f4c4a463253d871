"""DCA: dual chunk attention (An et al. 2024, arXiv 2402.17463)."""

from torch import Tensor

from configurable import require
from posenc import Extension, Region, Shape


class Dca(Extension):
    """Chunks of c tokens. Keys lie at j mod c; a query at i mod c towards its own chunk, at min(i mod c + c, size) towards
    the one before, at `size` towards all older ones. c = size - local; size defaults to 3 L / 4, local to L / 8.

    Verdict: exact near by, every key visible; far chunks lie over each other.
    """

    def __init__(self, shape: Shape, *, size: int | None = None, local: int | None = None) -> None:
        super().__init__()
        self.size = 3 * shape.length // 4 if size is None else size
        self.chunk = self.size - (shape.length // 8 if local is None else local)
        require(
            0 < self.chunk <= self.size,
            f"dca: local must lie between 0 and size - 1 = {self.size - 1}, not {local}",
        )

    def regions(self, total: int) -> list[Region]:
        """Older chunks, then the one before, then the same one."""
        size, c = self.size, self.chunk

        def keys(j: Tensor) -> Tensor:
            return j % c

        return [
            Region(lambda i: i * 0 + size, keys, lambda i, j: i // c - j // c > 1),
            Region(lambda i: (i % c + c).clamp(max=size), keys, lambda i, j: i // c - j // c == 1),
            Region(lambda i: i % c, keys, lambda i, j: i // c == j // c),
        ]
