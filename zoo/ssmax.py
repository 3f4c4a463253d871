"""SSMax: scalable softmax (Nakanishi 2025, arXiv 2501.19399)."""

import math

import torch
from torch import nn

from common.errors import UserError
from posenc import Piece, Shape


class Ssmax(Piece):
    """scores x s_h ln(n), or with `bias` (s_h ln(n) + b_h), n = i + 1 the number of keys up to the
    query.

    Nakanishi 2025 (arXiv 2501.19399). Parameter: s (H,), one per layer. `start` is its initial
    value. It defaults to 1 over the mean of ln(n) for n = 1 ... L, so that the factor is 1 on
    average over the training length L. For the paper's L = 1024 that is 0.168, the paper's initial
    value. n counts all keys up to the query, even if a window masks some of them. `bias` adds a
    parameter b (H,), as in Mistral Large 4 (Mistral AI 2026, in transformers); here it starts at 0.
    """

    per_layer = True

    def __init__(self, shape: Shape, *, start: float | None = None, bias: bool = False) -> None:
        super().__init__()
        if start is None:
            if shape.first_length == 1:
                raise UserError("ssmax divides by ln(L): set block_size above 1, or start")
            length = shape.first_length
            start = length / math.lgamma(length + 1)  # = L / (ln 1 + ... + ln L)
        self.s = nn.Parameter(torch.full((shape.n_head,), start))
        self.b = nn.Parameter(torch.zeros(shape.n_head)) if bias else None

    def temperature(self, index):
        """s ln(i + 1) + b, (H, T)."""
        factors = self.s[:, None] * torch.log(index + 1)
        return factors if self.b is None else factors + self.b[:, None]
