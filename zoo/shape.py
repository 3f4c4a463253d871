"""SHAPE: shifted absolute positions (Kiyono et al. 2021, arXiv 2109.05644)."""

import torch
from torch import Tensor

import posenc
from configurable import require
from posenc import Piece


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
        self, shape: posenc.Shape, *, max_shift: int | None = None, test_shift: int = 0
    ) -> None:
        super().__init__()
        self.max_shift = shape.length if max_shift is None else max_shift
        self.test_shift = test_shift
        for name, value in (("max_shift", self.max_shift), ("test_shift", test_shift)):
            require(0 <= value <= 2**24, f"shape: {name} must lie between 0 and 2**24, not {value}")

    def ids(self, index: Tensor, total: int) -> Tensor:
        """index + test_shift."""
        return index + self.test_shift

    def draw(self, length: int, generator: torch.Generator) -> Tensor:
        """Positions (length,): 0 ... length - 1, all moved by one k."""
        return torch.arange(length) + torch.randint(self.max_shift + 1, (1,), generator=generator)
