"""Gated attention (Qiu et al. 2025, arXiv 2505.06708)."""

from typing import Literal

import torch
from torch import nn

from posenc import Piece, Shape, init_std


class Gate(Piece):
    """y_h x sigmoid(W_h x): gate the output of each head with the layer's normalised input x.

    Qiu et al. 2025 (arXiv 2505.06708), after attention (G1), before the heads are concatenated.
    kind=elementwise has one gate per column of a head, as in Qwen3-Next; kind=head has one per
    head. by=softplus has y_h x ln(1 + exp(W_h x)), as in Laguna (Poolside 2026), per head there.
    Parameter: gate.weight (H D or H, C), one per layer. Gates start near 1/2, or ln 2.
    """

    per_layer = True
    conflicts = ("latent attention",)  # there, head outputs and keys differ in width

    def __init__(
        self,
        shape: Shape,
        *,
        kind: Literal["elementwise", "head"] = "elementwise",
        by: Literal["sigmoid", "softplus"] = "sigmoid",
    ):
        super().__init__()
        self.by = by
        per_head = shape.turned_width if kind == "elementwise" else 1
        self.n_head = shape.n_head
        self.gate = nn.Linear(shape.width, shape.n_head * per_head, bias=False)
        nn.init.normal_(self.gate.weight, std=init_std(shape.width))

    def output(self, y, v, x):
        """The gated outputs, (B, H, T, D)."""
        gates = self.gate(x).unflatten(-1, (self.n_head, -1)).transpose(1, 2)
        if self.by == "sigmoid":
            return y * torch.sigmoid(gates)
        # the softplus of the gates, in a form whose backward pass all backends can compile
        return -y * nn.functional.logsigmoid(-gates)
