"""Abacus: the place of each digit in its number (McLeish et al. 2024, arXiv 2405.17399)."""

import torch
from torch import nn

from common.errors import UserError
from posenc import Count, Piece, Shape, Whole, init_std


class Abacus(Piece):
    """Add table[place + k] to each digit, where place is the number of digits before it in its
    number.

    McLeish et al. 2024 (arXiv 2405.17399). In training, one k per step is drawn from 0 ...
    `max_shift`; at test k = 0. `zero` is the token id of the digit 0, followed by the other nine
    digits: 48 for bytes. Other tokens get 0; in the authors' code they get one learned vector.
    Parameter: table (rows, C), normal with the standard deviation of the token embedding; theirs
    has 1. max_shift = 99 and at least 1024 rows are theirs. A number longer than the table is
    refused. Position ids are not used: combine it with a scheme that uses them, as in `abacus +
    rope`.
    """

    def __init__(
        self, shape: Shape, *, zero: Whole = 48, max_shift: Whole = 99, rows: Count | None = None
    ) -> None:
        super().__init__()
        rows = rows or max(1024, shape.first_length + max_shift)
        if max_shift >= rows:
            raise UserError(f"abacus: max_shift = {max_shift} must be below rows = {rows}")
        self.zero = zero
        self.max_shift = max_shift
        self.table = nn.Parameter(torch.randn(rows, shape.width) * init_std(shape.width))

    def embed(self, ids, tokens, total):
        """(B, T, C): rows of the table for digits, zeros for other tokens. It reads all tokens so
        far, (B, S), so that a number can continue from the cache.
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
