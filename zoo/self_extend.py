"""Self-Extend: grouped positions beyond a window (Jin et al. 2024, arXiv 2401.01325)."""

import math
from typing import Literal

from common.errors import UserError
from posenc import Count, Extension, Length, Region, Shape


class SelfExtend(Extension):
    """Distance i - j within the window W, and i // G - j // G + W - W // G beyond it.

    Jin et al. 2024 (arXiv 2401.01325). W = `window` defaults to a quarter of the training length L.
    G = `group` is the number of positions in a group. It defaults to auto: the smallest G that
    keeps W + (N - W) / G within 2 L / 3, the authors' rule for texts of N > L tokens.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        window: Length | None = None,
        group: Count | Literal["auto"] = "auto",
    ) -> None:
        super().__init__()
        self.length = shape.first_length
        self.group = group
        self.factor_grows = group == "auto"
        self.window = window or max(1, shape.first_length // 4)
        if self.window >= 2 * shape.first_length / 3:
            raise UserError(
                f"self_extend: window must be below 2/3 of the length {shape.first_length}"
            )

    def factor(self, total):
        """G for a text of `total` tokens."""
        if self.group != "auto":
            return float(self.group)
        if total <= self.length:
            return 1.0
        room = 2 * self.length / 3 - self.window
        return float(math.ceil((total - self.window) / room))

    def regions(self, total):
        """Beyond W, use group positions, with queries shifted so that distances match at W."""
        w = self.window
        g = int(self.factor(total))
        return [
            Region(
                query=lambda i: i // g + (w - w // g),
                key=lambda j: j // g,
                where=lambda i, j: i - j >= w,
            )
        ]
