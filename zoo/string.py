"""STRING: long distances replaced by well-trained ones (An et al. 2024, arXiv 2410.18745)."""

from common.errors import UserError
from posenc import Extension, Length, Region, Shape, Whole


class String(Extension):
    """Distance i - j below S, and i - j - S + W from S on.

    An et al. 2024 (arXiv 2410.18745). S = `shift` defaults to L / 3, L the training length, and
    W = `local` to 32, at most L / 4.
    """

    def __init__(
        self, shape: Shape, *, shift: Length | None = None, local: Whole | None = None
    ) -> None:
        super().__init__()
        self.shift = shift or max(1, shape.first_length // 3)
        self.local = min(32, shape.first_length // 4) if local is None else local
        if self.local > self.shift:
            raise UserError(f"string: local = {self.local} must not exceed shift = {self.shift}")

    def regions(self, total):
        """From S on, query positions are S - W lower."""
        s = self.shift
        moved = self.shift - self.local
        return [Region(query=lambda i: i - moved, key=lambda j: j, where=lambda i, j: i - j >= s)]
