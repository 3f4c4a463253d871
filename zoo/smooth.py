"""Positions under a sublinear curve: a family that is widely taught as LongRoPE, and is not."""

import torch
from torch import Tensor, nn

from configurable import require
from posenc import Extension, Shape

CURVES = {"log": torch.log1p, "sqrt": lambda x: 2 * ((1 + x).sqrt() - 1), "arctan": torch.arctan}


class Smooth(Extension):
    """p' = c f(p / c), f of slope 1 at 0: log ln(1 + x), sqrt 2 (sqrt(1 + x) - 1), arctan. c = `knee` defaults to L.

    `learned` lets a fine-tune train c: parameter stretch_of_knee (1,), the logarithm of c / knee, 0 at first; with
    per_layer=True each layer has a c of its own.

    Tutorials call this LongRoPE. It is not: LongRoPE divides each frequency by a factor found by search. Here the same two
    words are nearer late in a text than early in it, so that scores no longer depend on distance alone.
    Verdict: to hold a belief against a measurement.
    """

    continuous = True

    def __init__(
        self, shape: Shape, *, kind: str = "log", knee: float | None = None, learned: bool = False
    ) -> None:
        super().__init__()
        require(kind in CURVES, f"smooth: kind is {', '.join(CURVES)}, not {kind}")
        self.knee, self.curve = float(shape.length if knee is None else knee), CURVES[kind]
        require(self.knee >= 1, f"smooth: knee is a number of tokens, at least 1, not {knee}")
        if learned:
            self.stretch_of_knee = nn.Parameter(torch.zeros(1))

    def ids(self, index: Tensor, total: int) -> Tensor:
        """Below the line for p > 0, of slope 1 at 0."""
        knee = (
            self.knee * self.stretch_of_knee.to(index.dtype).exp()
            if hasattr(self, "stretch_of_knee")
            else self.knee
        )
        return knee * self.curve(index / knee)
