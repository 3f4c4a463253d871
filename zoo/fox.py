"""FoX and CABLE: scores that decay by learned gates (arXiv 2503.02130, arXiv 2503.08067)."""

import math

import torch
from torch import Tensor, nn

from configurable import require
from posenc import Piece, Shape

COLUMNS = 8  # more of q and k: kernels want widths that 8 divides
PARTS = 3  # numbers of bfloat16 hold a float32
LARGE = 64.0  # a power of two, exact in every dtype, which keeps sums within float16


class Fox(Piece):
    """score += c_i - c_j, with c_i = ln f_0 + ... + ln f_i and f_t = sigmoid(w_h.x_t + b_h).

    Lin et al. 2025, the forgetting transformer (arXiv 2503.02130). x_t is the layer's normalised
    input. kind=cable (Veisi et al. 2025, arXiv 2503.08067) writes ln f_t = -softplus(w_h.x_t +
    b_h): the same functions with the sign of w and b changed. Parameters, one of each per layer:
    gate.weight (H, C), normal with deviation 0.02, and gate.bias (H,). `start` is the logit of f
    at first: 0 in the code of both papers, so that f = 1/2; 5 in x-transformers, so that f is near
    1. Sums are float32 or wider. The "Pro" parts of FoX (output gate, norms of q, k and v, token
    shift) are not about positions and left out. CABLE's code forgets to divide by sqrt(d).
    Verdict: its loss stayed within 0.001 nats up to 32 L, and it read no farther than L
    (results/board). Lin et al. 2025 report that it beats RoPE within L and past it.
    """

    per_layer, reads_ids = True, False

    def __init__(self, shape: Shape, *, kind: str = "fox", start: float = 0.0) -> None:
        super().__init__()
        require(kind in ("fox", "cable"), f"fox: kind is fox or cable, not {kind}")
        self.sign = 1.0 if kind == "fox" else -1.0
        self.gate = nn.Linear(shape.width, shape.n_head)
        nn.init.normal_(self.gate.weight, std=0.02)
        nn.init.constant_(self.gate.bias, self.sign * start)

    def features(self, x: Tensor) -> Tensor:
        """ln f (B, T, H) of the input x (B, T, C)."""
        gate = self.sign * self.gate(x)
        return nn.functional.logsigmoid(gate.to(torch.promote_types(gate.dtype, torch.float32)))

    def along(self, q: Tensor, k: Tensor, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q and k with 8 more columns, whose product adds c_i - c_j to the scores."""
        width = q.shape[-1] + COLUMNS
        sums = (features.mT.cumsum(-1) * (math.sqrt(width) / LARGE))[..., None]  # (B, H, S, 1)
        keys, one = split(-sums, k.dtype), k.new_full((*k.shape[:-1], PARTS), LARGE)
        queries = split(sums[..., -q.shape[-2] :, :], k.dtype)
        grown = (q * math.sqrt(width / q.shape[-1])).to(k.dtype)  # scores are divided by the root
        q = torch.cat((grown, queries, one[..., -q.shape[-2] :, :]), -1)
        k = torch.cat((k, one, keys), -1)
        filled = (0, COLUMNS - 2 * PARTS)
        return nn.functional.pad(q, filled), nn.functional.pad(k, filled), features


def split(x: Tensor, dtype: torch.dtype) -> Tensor:
    """PARTS columns of a dtype (..., PARTS) whose sum is x (..., 1), float32."""
    parts = []
    for _ in range(PARTS):
        parts.append(x.to(dtype))
        x = x - parts[-1]
    return torch.cat(parts, -1)
