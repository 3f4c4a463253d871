"""Self-Extend: grouped positions beyond a window (Jin et al. 2024, arXiv 2401.01325)."""

import math

from configurable import require
from posenc import Extension, Region, Shape


class SelfExtend(Extension):
    """Distance i - j within W; beyond it i // G - j // G + W - W // G. W = `window` defaults to a quarter of L.

    G = `group` defaults to the smallest that keeps W + (N - W) / G within 2 L / 3, their rule for a text of N > L tokens.
    Verdict: every key visible, far ones in groups; loses little untrained (results/extend).
    """

    def __init__(
        self, shape: Shape, *, window: int | None = None, group: int | str = "auto"
    ) -> None:
        super().__init__()
        self.length, self.group, self.by_length = shape.length, group, group == "auto"
        self.window = max(1, shape.length // 4) if window is None else window
        require(
            0 < self.window < 2 * shape.length / 3,
            f"self_extend: window must be positive and below 2/3 of the training length {shape.length}, not {window}",
        )
        require(
            group == "auto" or (isinstance(group, int) and group >= 1),
            f"self_extend: group is auto or a whole number of at least 1, not {group}",
        )

    def factor(self, total: int) -> float:
        """G."""
        fitting = (
            math.ceil((total - self.window) / (2 * self.length / 3 - self.window))
            if total > self.length
            else 1
        )
        return float(fitting if self.group == "auto" else self.group)

    def regions(self, total: int) -> list[Region]:
        """Beyond W, positions are those of groups, and queries are moved so that distances join."""
        w, g = self.window, int(self.factor(total))
        return [Region(lambda i: i // g + (w - w // g), lambda j: j // g, lambda i, j: i - j >= w)]
