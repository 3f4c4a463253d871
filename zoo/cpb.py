"""CPB: continuous position bias, an MLP of the distance (Liu et al. 2021, arXiv 2111.09883)."""

import math
from typing import Literal

import torch
from torch import nn

from posenc import Count, Piece, Shape


class Cpb(Piece):
    """score += MLP_h(x), x = ln(1 + i - j) / ln(1 + L) (input=log) or (i - j) / L (input=linear).

    Liu et al. 2021, Swin Transformer V2 (arXiv 2111.09883). L is the training length. The MLP is 1
    -> `hidden` -> H with ReLU, shared by layers. Parameters: inner.weight (hidden, 1), inner.bias
    (hidden,), outer.weight (H, hidden); an output bias would not change the softmax. Swin V2 has
    512 hidden units, two signed coordinates, and bounds the result by 16 sigmoid; that bound is
    left out here, as in x-transformers, which does not divide distances by L and has a deeper MLP
    with SiLU. Past L, a ReLU network is linear in x.
    """

    by_distance = True

    def __init__(
        self, shape: Shape, *, input: Literal["log", "linear"] = "log", hidden: Count = 32
    ) -> None:
        super().__init__()
        self.log = input == "log"
        self.scale = math.log1p(shape.first_length) if self.log else shape.first_length
        self.inner = nn.Linear(1, hidden)
        self.outer = nn.Linear(hidden, shape.n_head, bias=False)

    def bias(self, h, i, j):
        """The MLP as a sum over hidden units, so that no tensor is larger than (H, T, T)."""
        x = torch.log1p(i - j) if self.log else i - j
        w = self.inner.weight[:, 0] / self.scale
        b = self.inner.bias
        out = self.outer.weight
        return sum(out[h, m] * torch.relu(w[m] * x + b[m]) for m in range(len(w)))
