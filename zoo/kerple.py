"""KERPLE: kernelized relative position (Chi et al. 2022, arXiv 2205.09921)."""

import math

import torch
from torch import Tensor, nn

from configurable import require
from posenc import Bias, Piece, Shape


def bounded(x: Tensor, least: float, most: float) -> Tensor:
    """x clamped, with the gradient of x: what has left the bounds can come back, as where the authors' code moves x itself."""
    return x.clamp(least, most).detach() + (x - x.detach())


class Kerple(Piece):
    """kind=log: score += -r1 ln(1 + r2 (i - j)); kind=power: -r1 (i - j)^r2, r2 <= 2; r1, r2 >= 0.01 learned per head.

    Parameters r1, r2 (H,), started uniformly in (0, 2) and (0, 1), shared by layers; added unscaled, as in the authors'
    code (their paper divides by sqrt(d)). Beyond a bound the gradient still counts, so that a head can come back.
    Verdict: the log form is ALiBi with a softer far end, and usually better.
    """

    def __init__(self, shape: Shape, *, kind: str = "log") -> None:
        super().__init__()
        require(kind in ("log", "power"), f"kerple: kind is log or power, not {kind}")
        self.kind = kind
        self.r1, self.r2 = (
            nn.Parameter(2 * torch.rand(shape.n_head)),
            nn.Parameter(torch.rand(shape.n_head)),
        )

    def bias(self, like: Tensor) -> Bias:
        """The kernel of the distance."""
        top = math.inf if self.kind == "log" else 2.0
        r1, r2 = (
            bounded(r.to(like.dtype), 0.01, most)
            for r, most in ((self.r1, math.inf), (self.r2, top))
        )
        if self.kind == "log":
            return lambda h, i, j: -r1[h] * torch.log1p(r2[h] * (i - j))
        return lambda h, i, j: -r1[h] * (i - j) ** r2[h]
