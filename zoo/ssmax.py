"""SSMax: scalable softmax (Nakanishi 2025, arXiv 2501.19399)."""

import math

import torch
from torch import Tensor, nn

from configurable import require
from posenc import Piece, Shape


class Ssmax(Piece):
    """scores x s_h ln(n), n = i + 1 the number of keys up to the query; parameter s (H,), one for each layer.

    `start` is where s begins; by default 1 over the mean of ln(n) for n = 1 ... L, so that the factor is 1 on average: 0.168
    for the paper's L = 1024, the value it begins with. n counts all keys up to the query even where a window hides some.
    Verdict: logn whose strength each head learns; combine it: `rope + ssmax`.
    """

    per_layer = True

    def __init__(self, shape: Shape, *, start: float | None = None) -> None:
        super().__init__()
        require(
            shape.length > 1 or start is not None,
            "ssmax divides by ln(L): it needs a training length above 1, or start",
        )
        s = (
            shape.length / math.lgamma(shape.length + 1) if start is None else start
        )  # lgamma(L + 1) = ln 1 + ... + ln L
        self.s = nn.Parameter(torch.full((shape.n_head,), s))

    def temperature(self, index: Tensor, like: Tensor) -> Tensor:
        """s ln(i + 1), (H, T)."""
        return self.s.to(like.dtype)[:, None] * torch.log(index.to(like.dtype) + 1)
