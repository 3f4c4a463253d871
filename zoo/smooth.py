"""Positions under a curve that flattens. Not from a paper."""

import torch
from torch import Tensor, nn

from configurable import require
from posenc import Extension, Shape

CURVES = {"log": torch.log1p, "sqrt": lambda x: 2 * ((1 + x).sqrt() - 1), "arctan": torch.arctan}


class Smooth(Extension):
    """p' = c f(p / c), with f(x) = ln(1 + x) (kind=log), 2 (sqrt(1 + x) - 1) (sqrt) or arctan(x).

    All three curves have slope 1 at 0. c = `knee`, in tokens, defaults to the training length.
    learned=True lets a fine-tune train c. Parameter: log_factor (1,), the logarithm of c / knee,
    0 at first; with per_layer=True each layer has its own.

    Some tutorials teach this map under the name LongRoPE. LongRoPE is another method: it divides
    each frequency by a factor found by search. Under this map the same two words are nearer to
    each other late in a text than early in it, so scores no longer depend on the distance alone.
    Verdict: not from a paper. A trained rope lost 1.03 nats with it at L already (results/extend).
    """

    continuous = True

    def __init__(
        self, shape: Shape, *, kind: str = "log", knee: float | None = None, learned: bool = False
    ) -> None:
        super().__init__()
        require(kind in CURVES, f"smooth: kind is {', '.join(CURVES)}, not {kind}")
        self.knee, self.curve = float(shape.length if knee is None else knee), CURVES[kind]
        require(self.knee >= 1, f"smooth: knee is a number of tokens, at least 1, not {knee}")
        self.log_factor = nn.Parameter(torch.zeros(1)) if learned else None

    def ids(self, index: Tensor, total: int) -> Tensor:
        """The mapped positions."""
        knee = self.knee
        if self.log_factor is not None:
            knee = knee * self.log_factor.to(index.dtype).exp()
        return knee * self.curve(index / knee)
