"""Abacus: the place of a digit in its number (McLeish et al. 2024, arXiv 2405.17399)."""

import torch
from torch import nn

from configurable import UserError
from posenc import Count, Piece, Shape, Whole, init_std


class Abacus(Piece):
    """Add table[place + k] to each digit, where place counts the digits of its number before it.

    McLeish et al. 2024 (arXiv 2405.17399). In training, k is drawn from 0 ... `max_shift`, one k
    for each step; at test k = 0. `zero` is the token of the digit 0, and the other nine digits
    follow it: 48 for bytes. All other tokens get 0; in the authors' code they get one learned
    vector. Parameter: table (rows, C), normal with the deviation of the tokens; theirs has
    deviation 1. max_shift = 99 and at least 1024 rows are theirs. A number that ends past the
    table is refused. Position ids are not read: combine it with a scheme that reads them, as in
    `abacus + rope`.
    Verdict: McLeish et al. 2024 train on 20 digits and add 100 digits, written from the last to the
    first, with up to 99 % accuracy. It does nothing for text without numbers.
    """

    def __init__(
        self, shape: Shape, *, zero: Whole = 48, max_shift: Whole = 99, rows: Count | None = None
    ) -> None:
        super().__init__()
        rows = rows or max(1024, shape.length + max_shift)
        if max_shift >= rows:
            raise UserError(f"abacus: max_shift = {max_shift} must be below rows = {rows}")
        self.zero = zero
        self.max_shift = max_shift
        self.table = nn.Parameter(torch.randn(rows, shape.width) * init_std(shape.width))

    def embed(self, ids, tokens, total):
        """(B, T, C): rows of the table for digits, zeros for other tokens. All tokens so far
        (B, S) are read, so that a number that began earlier goes on.
        """
        digit = (tokens >= self.zero) & (tokens < self.zero + 10)
        index = torch.arange(digit.shape[1], device=tokens.device).expand_as(digit)
        last_other = index.masked_fill(digit, -1).cummax(1).values
        row = index - last_other - 1
        if self.training:
            row = row + torch.randint(self.max_shift + 1, (), device=row.device)
        rows = len(self.table)
        can_check = not row.is_meta and not torch.compiler.is_compiling()
        if can_check and digit.shape[1] + self.max_shift > rows and row.max() >= rows:
            raise UserError(
                f"abacus: a number here is longer than {rows} rows: set abacus(rows=...)"
            )
        new = slice(digit.shape[1] - ids.shape[-1], None)
        vectors = nn.functional.embedding(row.where(digit, 0)[:, new], self.table)
        return vectors * digit[:, new, None]
