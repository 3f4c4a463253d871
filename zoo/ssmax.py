"""SSMax: scalable softmax (Nakanishi 2025, arXiv 2501.19399)."""

import math

import torch
from torch import nn

from common.errors import UserError
from posenc import Piece, Shape


class Ssmax(Piece):
    """scores x s_h ln(n), n = i + 1 the number of keys up to the query.

    Nakanishi 2025 (arXiv 2501.19399). Parameter: s (H,), one per layer. `start` is its initial
    value. It defaults to 1 over the mean of ln(n) for n = 1 ... L, so that the factor is 1 on
    average over the training length L. For the paper's L = 1024 that is 0.168, the paper's initial
    value. n counts all keys up to the query, even if a window masks some of them.
    """

    per_layer = True

    def __init__(self, shape: Shape, *, start: float | None = None) -> None:
        super().__init__()
        if start is None:
            if shape.first_length == 1:
                raise UserError("ssmax divides by ln(L): set block_size above 1, or start")
            length = shape.first_length
            start = length / math.lgamma(length + 1)  # = L / (ln 1 + ... + ln L)
        self.s = nn.Parameter(torch.full((shape.n_head,), start))

    def temperature(self, index):
        """s ln(i + 1), (H, T)."""
        return self.s[:, None] * torch.log(index + 1)
