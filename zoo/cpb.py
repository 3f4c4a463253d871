"""CPB: continuous position bias, a network of the distance (Liu et al. 2021, arXiv 2111.09883)."""

import math

import torch
from torch import Tensor, nn

from configurable import require
from posenc import Bias, Piece, Shape


class Cpb(Piece):
    """score += MLP_h(x), x = ln(1 + i - j) / ln(1 + L) (input=log) or (i - j) / L (input=linear).

    Liu et al. 2021, Swin Transformer V2 (arXiv 2111.09883). L is the training length. The MLP is
    1 -> `hidden` -> H with ReLU and is shared by layers. Parameters: inner.weight (hidden, 1),
    inner.bias (hidden,), outer.weight (H, hidden); a bias at the end would not change the softmax.
    Swin V2 has 512 hidden units, two signed coordinates, and bounds the result by 16 sigmoid,
    which is left out here as in x-transformers. There distances are not divided by L, and the MLP
    is deeper and uses SiLU. Past L, a ReLU network goes on as a straight line in x.
    Verdict: beat alibi and rope at L and at 16 L, linear more than log, in a study of 15 seeds
    (bob80333/investigating_extrapolation on GitHub). Here flat up to 32 L, with 0.58 of the answers
    2 to 4 L back, where alibi has 0.40 (results/board, one seed).
    """

    def __init__(self, shape: Shape, *, input: str = "log", hidden: int = 32) -> None:
        super().__init__()
        require(input in ("linear", "log"), f"cpb: input is linear or log, not {input}")
        require(hidden > 0, f"cpb: hidden must be positive, not {hidden}")
        self.log = input == "log"
        self.scale = math.log1p(shape.length) if self.log else shape.length
        self.inner, self.outer = nn.Linear(1, hidden), nn.Linear(hidden, shape.n_head, bias=False)

    def bias(self, like: Tensor) -> Bias:
        """The MLP as a sum over hidden units, so that nothing is larger than (H, R, C)."""
        w = self.inner.weight[:, 0].to(like.dtype) / self.scale
        b, out = self.inner.bias.to(like.dtype), self.outer.weight.to(like.dtype)

        def bias(h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            x = (i - j).to(like.dtype)
            x = torch.log1p(x) if self.log else x
            return sum(out[h, m] * torch.relu(w[m] * x + b[m]) for m in range(len(w)))

        return bias
