"""Abacus: the place of a digit in its number (McLeish et al. 2024, arXiv 2405.17399)."""

import torch
from torch import Tensor, nn

from configurable import require
from posenc import Piece, Shape, Text, start_deviation


class Abacus(Piece):
    """Add table[place + k] to each digit, where place counts the digits of its number before it.

    McLeish et al. 2024 (arXiv 2405.17399). In training, k is drawn from 0 ... `max_shift`, one k
    for each step; at test k = 0. `zero` is the token of the digit 0, and the other nine digits
    follow it: 48 for bytes. All other tokens get 0; in the authors' code they get one learned
    vector. Parameter: table (rows, C), normal with the deviation of the tokens; theirs has
    deviation 1. max_shift = 99 and at least 1024 rows are theirs. A number that ends past the
    table is refused; in compiled code the look-up itself fails, as theirs does. Position ids are
    not read: combine it with a scheme that reads them, as in `abacus + rope`.
    Verdict: McLeish et al. 2024 train on 20 digits and add 100 digits, written from the last to the
    first, with up to 99 % accuracy. It does nothing for text without numbers.
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
        table = torch.empty(rows, shape.width).normal_(std=start_deviation(shape.width))
        self.table = nn.Parameter(table)

    def embed(self, ids: Tensor, text: Text) -> Tensor:
        """(B, T, C): rows of the table for digits, zeros for other tokens.

        All tokens so far are read, so that a number that began earlier goes on.
        """
        digit = (text.tokens >= self.zero) & (text.tokens < self.zero + 10)
        index = torch.arange(digit.shape[1], device=digit.device).expand_as(digit)
        last_other = index.masked_fill(digit, -1).cummax(1).values
        row = index - last_other - 1
        if self.training:
            row = row + torch.randint(self.max_shift + 1, (), device=row.device)
        longest = digit.shape[1] + (self.max_shift if self.training else 0)
        if longest > len(self.table) and not torch.compiler.is_compiling() and row.numel():
            require(
                int(row.max()) < len(self.table),
                f"abacus has {len(self.table)} places for digits, a number here needs "
                f"{int(row.max()) + 1}: say abacus(rows=...)",
            )
        new = slice(digit.shape[1] - ids.shape[-1], None)
        vectors = nn.functional.embedding(row.where(digit, 0)[:, new], self.table)
        return vectors * digit[:, new, None]
