"""STRING: long distances replaced by well-trained ones (An et al. 2024, arXiv 2410.18745)."""

from configurable import require
from posenc import Extension, Region, Shape


class String(Extension):
    """Distance i - j below S, and i - j - S + W from S on.

    An et al. 2024 (arXiv 2410.18745). S = `shift` defaults to L / 3, L the training length, and
    W = `local` to 32, at most L / 4.
    Verdict: An et al. 2024 made it for long distances within L, which are rare in training. On
    longer texts it changed little (results/extend).
    """

    def __init__(self, shape: Shape, *, shift: int | None = None, local: int | None = None) -> None:
        super().__init__()
        self.shift = max(1, shape.length // 3) if shift is None else shift
        self.local = min(32, shape.length // 4) if local is None else local
        require(
            0 <= self.local <= self.shift and self.shift > 0,
            f"string: local must lie between 0 and shift = {self.shift}, not {self.local}",
        )

    def regions(self, total: int) -> list[Region]:
        """From S on queries lie S - W earlier."""
        s, moved = self.shift, self.shift - self.local
        return [Region(lambda i: i - moved, lambda j: j, lambda i, j: i - j >= s)]
