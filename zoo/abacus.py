"""Abacus: the place of a digit in its number (McLeish et al. 2024, arXiv 2405.17399)."""

import torch
from torch import Tensor, nn

from configurable import require
from posenc import Piece, Shape, Text


class Abacus(Piece):
    """Add table[place + k] to each digit: its place in its number, from the first digit; k ~ U{0 ... max_shift} in training.

    McLeish et al. 2024. `zero` is the token of the digit 0, the other nine follow it: 48 for bytes. Other tokens get 0 (the
    authors' code: one learned vector for all of them). Parameter: table (rows, C), started at N(0, 0.02^2) like the tokens,
    where theirs start at N(0, 1); max_shift and at least 1024 rows are theirs. A number that ends past the table is
    refused, in compiled code by the look-up itself; theirs fails in the look-up too. Positions play no part: combine it,
    `abacus + rope`. Verdict: for arithmetic with numbers written from the last digit to the first, and for nothing else.
    """

    reads_ids = False

    def __init__(
        self, shape: Shape, *, zero: int = 48, max_shift: int = 99, rows: int | None = None
    ) -> None:
        super().__init__()
        rows = max(1024, shape.length + max_shift) if rows is None else rows
        require(zero >= 0, f"abacus: zero is the token of the digit 0, not {zero}")
        require(
            0 <= max_shift < rows <= 2**24,
            f"abacus: max_shift must lie between 0 and {rows - 1}, not {max_shift}",
        )
        self.zero, self.max_shift = zero, max_shift
        self.table = nn.Parameter(torch.empty(rows, shape.width).normal_(std=0.02))

    def embed(self, ids: Tensor, text: Text) -> Tensor:
        """(B, T, C): rows for digits, zeros for the rest; numbers that began in earlier tokens go on."""
        digit = (text.tokens >= self.zero) & (text.tokens < self.zero + 10)
        index = torch.arange(digit.shape[1], device=digit.device).expand_as(digit)
        row = (
            index - index.masked_fill(digit, -1).cummax(1).values - 1
        )  # of digits: tokens since the last that is none
        if self.training:
            row = row + torch.randint(self.max_shift + 1, (), device=row.device)
        if not torch.compiler.is_compiling() and row.numel():
            require(
                int(row.max()) < len(self.table),
                f"abacus has {len(self.table)} places for digits, a number here needs "
                f"{int(row.max()) + 1}: say abacus(rows=...)",
            )
        new = slice(digit.shape[1] - ids.shape[-1], None)
        return (
            nn.functional.embedding(row.where(digit, 0)[:, new], self.table) * digit[:, new, None]
        )
