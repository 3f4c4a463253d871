"""SSMax: scalable softmax (Nakanishi 2025, arXiv 2501.19399)."""

import math

import torch
from torch import Tensor, nn

from configurable import require
from posenc import Piece, Shape


class Ssmax(Piece):
    """scores x s_h ln(n), n = i + 1 the number of keys up to the query.

    Nakanishi 2025 (arXiv 2501.19399). Parameter: s (H,), one for each layer. `start` is the first
    value of s. It defaults to 1 over the mean of ln(n) for n = 1 ... L, so that the factor is 1 on
    average over the training length L. For the paper's L = 1024 that is 0.168, its own first
    value. n counts all keys up to the query, also where a window hides some of them.
    Verdict: Nakanishi 2025 reports lower loss on long texts and better retrieval from them. Combine
    it: `rope + ssmax`.
    """

    per_layer = True

    def __init__(self, shape: Shape, *, start: float | None = None) -> None:
        super().__init__()
        require(
            shape.length > 1 or start is not None,
            "ssmax divides by ln(L): it needs a training length above 1, or start",
        )
        if start is None:
            start = shape.length / math.lgamma(shape.length + 1)  # = L / (ln 1 + ... + ln L)
        self.s = nn.Parameter(torch.full((shape.n_head,), start))

    def temperature(self, index: Tensor, like: Tensor) -> Tensor:
        """s ln(i + 1), (H, T)."""
        return self.s.to(like.dtype)[:, None] * torch.log(index.to(like.dtype) + 1)
