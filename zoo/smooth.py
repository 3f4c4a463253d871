"""Positions under a curve that flattens. Not from a paper."""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import nn

from posenc import Extension, Shape


class Smooth(Extension):
    """p' = c f(p / c), with f(x) = ln(1 + x) (kind=log), 2 (sqrt(1 + x) - 1) (sqrt) or arctan(x).

    All three curves have slope 1 at 0. c = `knee`, in tokens, defaults to the training length.
    learned=True lets a fine-tune train c. Parameter: log_factor (1,), the logarithm of c / knee,
    initialised to 0; with per_layer=True each layer has its own.

    Some tutorials teach this map under the name LongRoPE. LongRoPE is a different method: it
    divides each frequency by a factor found by search. With this map the same two words are closer
    together late in a text than early in it, so scores no longer depend on distance alone.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        kind: Literal["log", "sqrt", "arctan"] = "log",
        knee: Annotated[float, Field(ge=1)] | None = None,
        learned: bool = False,
    ) -> None:
        super().__init__()
        self.kind = kind
        self.knee = knee or float(shape.first_length)
        self.log_factor = nn.Parameter(torch.zeros(1)) if learned else None

    def ids(self, ids, total):
        """The mapped positions."""
        knee = self.knee
        if self.log_factor is not None:
            knee = knee * self.log_factor.to(ids.dtype).exp()
        x = ids / knee
        if self.kind == "log":
            return knee * torch.log1p(x)
        if self.kind == "sqrt":
            return knee * 2 * ((1 + x).sqrt() - 1)
        return knee * torch.arctan(x)
