"""SHAPE: shifted absolute positions (Kiyono et al. 2021, arXiv 2109.05644)."""

import torch

import posenc
from posenc import Piece, Whole


class Shape(Piece):
    """Train with all positions moved by one k ~ U{0 ... max_shift}; test with p + `test_shift`.

    Kiyono et al. 2021 (arXiv 2109.05644). It gives positions and does not use them itself: write
    `shape + sinusoidal` or `shape + learned(rows=512)`. `max_shift` defaults to the training
    length. Nothing is learned. k is drawn for each step; theirs is drawn for each sequence. Their
    paper tests with k = 0, the default here. Their code draws below max_shift and tests with
    test_shift=max_shift.
    Verdict: Kiyono et al. 2021 find it as good as relative positions, and simpler. It changes
    nothing for schemes that read only distances.
    """

    def __init__(
        self, shape: posenc.Shape, *, max_shift: Whole | None = None, test_shift: Whole = 0
    ) -> None:
        super().__init__()
        self.max_shift = shape.length if max_shift is None else max_shift
        self.test_shift = test_shift

    def ids(self, ids, total):
        """Moved by test_shift."""
        return ids + self.test_shift

    def draw(self, length, generator):
        """Positions (length,): 0 ... length - 1, all moved by one k."""
        return torch.arange(length) + torch.randint(self.max_shift + 1, (1,), generator=generator)
