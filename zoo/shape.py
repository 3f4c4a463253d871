"""SHAPE: shifted absolute positions (Kiyono et al. 2021, arXiv 2109.05644)."""

import torch
from torch import Tensor

import posenc
from configurable import require
from posenc import Piece


class Shape(Piece):
    """Train with all positions moved by one k drawn from 0 ... max_shift, test with `test_shift`. Kiyono et al. 2021.

    It says which positions there are, not how they are used: `shape + sinusoidal`, `shape + learned(rows=512)`. max_shift
    defaults to the training length. Nothing is learned. k is drawn for each step, theirs for each sequence. Their paper
    tests with k = 0, the default; their code draws below max_shift and tests with test_shift=max_shift.
    Verdict: absolute positions that reach as far as L + max_shift; pointless with schemes that read distances only.
    """

    def __init__(
        self, shape: posenc.Shape, *, max_shift: int | None = None, test_shift: int = 0
    ) -> None:
        super().__init__()
        self.max_shift, self.test_shift = (
            shape.length if max_shift is None else max_shift,
            test_shift,
        )
        for name, value in (("max_shift", self.max_shift), ("test_shift", test_shift)):
            require(0 <= value <= 2**24, f"shape: {name} must lie between 0 and 2**24, not {value}")

    def ids(self, index: Tensor, total: int) -> Tensor:
        """index + test_shift."""
        return index + self.test_shift

    def draw(self, length: int, generator: torch.Generator) -> Tensor:
        """0 ... length - 1, moved together."""
        return torch.arange(length) + torch.randint(self.max_shift + 1, (1,), generator=generator)
