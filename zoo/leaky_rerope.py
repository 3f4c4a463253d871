"""Leaky ReRoPE: distances that grow more slowly past a window (Su 2023, kexue.fm/archives/9708)."""

from typing import Annotated, Literal

from pydantic import Field

from common.errors import UserError
from posenc import Extension, Length, Region, Shape, as_reals


class LeakyRerope(Extension):
    """Distance i - j within the window w, and w + (i - j - w) / k beyond it.

    Su 2023 (kexue.fm/archives/9708). w = `window` defaults to a quarter of the training length L. k
    = `slowing` defaults to auto, which maps the longest distance in a text of N tokens to L: k = (N
    - w) / (L - w), at least 1.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        window: Length | None = None,
        slowing: Annotated[float, Field(ge=1)] | Literal["auto"] = "auto",
    ) -> None:
        super().__init__()
        self.length = shape.first_length
        self.slowing = slowing
        self.factor_grows = slowing == "auto"
        self.window = window or max(1, shape.first_length // 4)
        if self.window >= self.length:
            raise UserError(f"leaky_rerope: window must be below the length {self.length}")

    def factor(self, total):
        """k for a text of `total` tokens."""
        if self.slowing == "auto":
            return max(1.0, (total - self.window) / (self.length - self.window))
        return self.slowing

    def regions(self, total):
        """Beyond w, positions are divided by k; queries are shifted to match distances at w."""
        w = self.window
        k = self.factor(total)
        return [
            Region(
                query=lambda i: as_reals(i) / k + (w - w / k),
                key=lambda j: as_reals(j) / k,
                where=lambda i, j: i - j >= w,
            )
        ]
