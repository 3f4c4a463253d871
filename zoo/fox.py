"""FoX and CABLE: scores that decay with learned gates (arXiv 2503.02130, arXiv 2503.08067)."""

from typing import Literal

from torch import nn

from posenc import Shape
from zoo._decay import Decay


class Fox(Decay):
    """score += c_i - c_j, with c_i = ln f_0 + ... + ln f_i and f_t = sigmoid(w_h.x_t + b_h).

    Lin et al. 2025, the forgetting transformer (arXiv 2503.02130). x_t is the layer's normalised
    input. kind=cable (Veisi et al. 2025, arXiv 2503.08067) writes ln f_t = -softplus(w_h.x_t +
    b_h): the same functions with the signs of w and b flipped. Parameters, one set per layer:
    gate.weight (H, C), normal with standard deviation 0.02, and gate.bias (H,). `start` is the
    initial logit of f: 0 in the code of both papers, so that f = 1/2; 5 in x-transformers, so that
    f is near 1. Sums are float32 or wider. FoX's "Pro" parts (output gate, norms of q, k and v,
    token shift) do not concern positions and are left out. CABLE's code omits the division by
    sqrt(d).
    """

    per_layer = True

    def __init__(
        self, shape: Shape, *, kind: Literal["fox", "cable"] = "fox", start: float = 0.0
    ) -> None:
        super().__init__()
        self.sign = 1.0 if kind == "fox" else -1.0
        self.gate = nn.Linear(shape.width, shape.n_head)
        nn.init.normal_(self.gate.weight, std=0.02)
        nn.init.constant_(self.gate.bias, self.sign * start)

    def features(self, x):
        """ln f (B, T, H) from the input x (B, T, C)."""
        return nn.functional.logsigmoid(self.sign * self.gate(x))
