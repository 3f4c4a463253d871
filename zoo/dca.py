"""DCA: dual chunk attention (An et al. 2024, arXiv 2402.17463)."""

from torch import Tensor

from configurable import require
from posenc import Extension, Region, Shape


class Dca(Extension):
    """Positions within chunks of c tokens, so that no distance exceeds `size`.

    An et al. 2024 (arXiv 2402.17463). A key lies at j mod c. A query lies at i mod c for keys of
    its own chunk, at min(i mod c + c, size) for keys of the chunk before, and at `size` for keys
    of all older chunks. c = size - local. `size` defaults to 3 L / 4 and `local` to L / 8, L the
    training length.
    Verdict: a trained rope lost 0.02 nats at L and 0.05 at 16 L with it (results/extend). Every key
    stays visible, but distances in far chunks overlap.
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
        """The older chunks, the chunk before, and the query's own chunk."""
        size, c = self.size, self.chunk

        def keys(j: Tensor) -> Tensor:
            return j % c

        return [
            Region(lambda i: i * 0 + size, keys, lambda i, j: i // c - j // c > 1),
            Region(lambda i: (i % c + c).clamp(max=size), keys, lambda i, j: i // c - j // c == 1),
            Region(lambda i: i % c, keys, lambda i, j: i // c == j // c),
        ]
