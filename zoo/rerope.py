"""ReRoPE: no distance above a window (Su 2023, kexue.fm/archives/9708)."""

from posenc import Extension, Length, Region, Shape


class Rerope(Extension):
    """Distance min(i - j, w), for both rotations and biases.

    Su 2023 (kexue.fm/archives/9708). w = `window` defaults to half the training length.
    """

    def __init__(self, shape: Shape, *, window: Length | None = None) -> None:
        super().__init__()
        self.window = window or max(1, shape.first_length // 2)

    def regions(self, total):
        """Beyond w, the query has position w and the key 0."""
        w = self.window
        return [
            Region(
                query=lambda i: i * 0 + w,
                key=lambda j: j * 0,
                where=lambda i, j: i - j >= w,
            )
        ]
