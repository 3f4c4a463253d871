"""KERPLE: kernelized relative position (Chi et al. 2022, arXiv 2205.09921)."""

import math

import torch
from torch import Tensor, nn

from configurable import require
from posenc import Bias, Piece, Shape


def bounded(x: Tensor, least: float, most: float) -> Tensor:
    """x clamped, but with the gradient of x, so that training can bring it back into the bounds.

    The authors' code moves the parameter itself into the bounds, with the same effect.
    """
    return x.clamp(least, most).detach() + (x - x.detach())


class Kerple(Piece):
    """score += -r1 ln(1 + r2 (i - j)) (kind=log) or -r1 (i - j)^r2 (kind=power).

    Chi et al. 2022 (arXiv 2205.09921). Parameters, learned per head and shared by layers: r1 (H,),
    started uniformly in (0, 2), and r2 (H,), started in (0, 1). Both are used clamped: at least
    0.01, and r2 at most 2 for kind=power. A parameter beyond a bound still has its gradient, so
    that it can come back. The bias is added unscaled, as in the authors' code; the paper divides
    by sqrt(d).
    Verdict: its loss stayed within 0.02 nats up to 32 L, and it read no farther than L
    (results/board). Chi et al. 2022 report better losses than ALiBi's from 2 L on, Zheng et al.
    2024 worse.
    """

    def __init__(self, shape: Shape, *, kind: str = "log") -> None:
        super().__init__()
        require(kind in ("log", "power"), f"kerple: kind is log or power, not {kind}")
        self.kind = kind
        self.r1 = nn.Parameter(2 * torch.rand(shape.n_head))
        self.r2 = nn.Parameter(torch.rand(shape.n_head))

    def bias(self, like: Tensor) -> Bias:
        """The kernel of the distance."""
        most = math.inf if self.kind == "log" else 2.0
        r1 = bounded(self.r1.to(like.dtype), 0.01, math.inf)
        r2 = bounded(self.r2.to(like.dtype), 0.01, most)
        if self.kind == "log":
            return lambda h, i, j: -r1[h] * torch.log1p(r2[h] * (i - j))
        return lambda h, i, j: -r1[h] * (i - j) ** r2[h]
