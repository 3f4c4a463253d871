"""KERPLE: kernelized relative position (Chi et al. 2022, arXiv 2205.09921)."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from posenc import Piece, Shape


def bounded(x: Tensor, least: float, most: float = math.inf) -> Tensor:
    """Clamp x, but keep the gradient of x, so that training can move it back into the bounds.

    The authors' code clamps the parameter itself, with the same effect.
    """
    return x.clamp(least, most).detach() + (x - x.detach())


class Kerple(Piece):
    """score += -r1 ln(1 + r2 (i - j)) (kind=log) or -r1 (i - j)^r2 (kind=power).

    Chi et al. 2022 (arXiv 2205.09921). Parameters, learned per head and shared by layers: r1 (H,),
    initialised uniformly in (0, 2), and r2 (H,), in (0, 1). Both are clamped: to at least 0.01, and
    r2 to at most 2 for kind=power. A parameter outside its bounds still gets a gradient, so that it
    can return. The bias is added unscaled, as in the authors' code; the paper divides by sqrt(d).
    """

    by_distance = True

    def __init__(self, shape: Shape, *, kind: Literal["log", "power"] = "log") -> None:
        super().__init__()
        self.kind = kind
        self.r1 = nn.Parameter(2 * torch.rand(shape.n_head))
        self.r2 = nn.Parameter(torch.rand(shape.n_head))

    def bias(self, h, i, j):
        """The negative kernel of the distance."""
        r1 = bounded(self.r1, 0.01)[h]
        if self.kind == "log":
            return -r1 * torch.log1p(bounded(self.r2, 0.01)[h] * (i - j))
        return -r1 * (i - j) ** bounded(self.r2, 0.01, 2.0)[h]
