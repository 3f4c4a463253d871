"""SHAPE: shifted absolute positions (Kiyono et al. 2021, arXiv 2109.05644)."""

import torch

import posenc
from posenc import Piece, Whole


class Shape(Piece):
    """Train with all positions shifted by one k ~ U{0 ... max_shift}; test with p + `test_shift`.

    Kiyono et al. 2021 (arXiv 2109.05644). It only changes positions; combine it with a scheme that
    uses them: `shape + sinusoidal` or `shape + learned(rows=512)`. `max_shift` defaults to the
    training length. Nothing is learned. k is drawn once per step; theirs once per sequence. Their
    paper tests with k = 0, the default here. Their code draws below max_shift and tests with
    test_shift=max_shift.
    """

    def __init__(
        self, shape: posenc.Shape, *, max_shift: Whole | None = None, test_shift: Whole = 0
    ) -> None:
        super().__init__()
        self.max_shift = shape.first_length if max_shift is None else max_shift
        self.test_shift = test_shift

    def ids(self, ids, total):
        """Shifted by test_shift."""
        return ids + self.test_shift

    def draw(self, length, generator):
        """Positions (length,): 0 ... length - 1, all shifted by one k."""
        return torch.arange(length) + torch.randint(self.max_shift + 1, (1,), generator=generator)
