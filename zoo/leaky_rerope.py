"""Leaky ReRoPE: distances that grow more slowly beyond a window (Su 2023, kexue.fm/archives/9708)."""

from configurable import require
from posenc import Extension, Region, Shape, widened


class LeakyRerope(Extension):
    """Distance i - j within w, w + (i - j - w) / k beyond; w = `window` defaults to a quarter of the training length.

    k = `slowing` defaults to what brings the longest distance of the text to L: (N - w) / (L - w), at least 1.
    Verdict: rerope that keeps the order of far keys; with k fixed for the text, decoding agrees with one pass.
    """

    def __init__(
        self, shape: Shape, *, window: int | None = None, slowing: float | str = "auto"
    ) -> None:
        super().__init__()
        self.length, self.slowing, self.by_length = shape.length, slowing, slowing == "auto"
        self.window = max(1, shape.length // 4) if window is None else window
        require(
            0 < self.window < shape.length,
            f"leaky_rerope: window must lie between 1 and {shape.length - 1}, not {window}",
        )
        require(
            slowing == "auto" or (isinstance(slowing, (int, float)) and slowing >= 1),
            f"leaky_rerope: slowing is auto or a number of at least 1, not {slowing}",
        )

    def factor(self, total: int) -> float:
        """k."""
        fitting = max(1.0, (total - self.window) / (self.length - self.window))
        return fitting if self.slowing == "auto" else float(self.slowing)

    def regions(self, total: int) -> list[Region]:
        """Beyond w positions are divided by k, and queries moved so that distances join at w."""
        w, k = self.window, self.factor(total)
        return [
            Region(
                lambda i: widened(i) / k + (w - w / k),
                lambda j: widened(j) / k,
                lambda i, j: i - j >= w,
            )
        ]
