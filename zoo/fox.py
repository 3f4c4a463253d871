"""FoX and CABLE: scores that decay with learned gates (arXiv 2503.02130, arXiv 2503.08067)."""

from typing import Literal

import torch
from torch import Tensor, nn

from posenc import Piece, Shape

COLUMNS = 8  # added to q and k: kernels want widths divisible by 8
PARTS = 3  # bfloat16 numbers hold one float32
LARGE = 64.0  # a power of two, exact in every dtype, to keep sums within float16


class Fox(Piece):
    """score += c_i - c_j, with c_i = ln f_0 + ... + ln f_i and f_t = sigmoid(w_h.x_t + b_h).

    Lin et al. 2025, the forgetting transformer (arXiv 2503.02130). x_t is the layer's normalised
    input. kind=cable (Veisi et al. 2025, arXiv 2503.08067) writes ln f_t = -softplus(w_h.x_t +
    b_h): the same functions with the signs of w and b flipped. Parameters, one set per layer:
    gate.weight (H, C), normal with standard deviation 0.02, and gate.bias (H,). `start` is the
    initial logit of f: 0 in the code of both papers, so that f = 1/2; 5 in x-transformers, so that
    f is near 1. Sums are float32 or wider. FoX's "Pro" parts (output gate, norms of q, k and v,
    token shift) do not concern positions and are left out. CABLE's code omits the division by
    sqrt(d).
    Verdict: its loss stayed within 0.001 nats up to 32 L; it found names and their order up to L,
    hardly farther (results/board). Lin et al. 2025 report that it beats RoPE within L and past it.
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

    def along(self, q, k, features, scale):
        """q and k with 8 more columns, whose product adds c_i - c_j to the scores."""
        return add_decay(q, k, features, scale)


def add_decay(q: Tensor, k: Tensor, steps: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """q (B, H, T, D) and k (B, H, S, D) with 8 more columns, so that c_i - c_j is added to the
    scores q.k x scale; c are the sums of steps (B, S, H) up to each token.
    """
    sums = steps.mT.cumsum(-1)[..., None] / (scale * LARGE)  # (B, H, S, 1)
    one = k.new_full((*k.shape[:-1], PARTS), LARGE)
    new = slice(k.shape[-2] - q.shape[-2], None)
    padding = (0, COLUMNS - 2 * PARTS)
    q = torch.cat((q, split(sums[..., new, :]), one[..., new, :]), -1)
    k = torch.cat((k, one, split(-sums)), -1)
    return nn.functional.pad(q, padding), nn.functional.pad(k, padding)


def split(x: Tensor) -> Tensor:
    """(..., PARTS) columns of 8 bits each whose sum is x (..., 1), so that bfloat16 rounds nothing.

    The gradient reaches x through the last column alone: all three meet the same column of k. Bits
    are cut off as integers: compilers remove a cast to bfloat16 and back, and on a GPU they fuse
    the product and the difference of Veltkamp's splitting, which then splits nothing.
    """
    parts = []
    for _ in range(PARTS - 1):
        bits = x.detach().float().view(torch.int32)
        high = (bits & -(2**16)).view(torch.float32).to(x.dtype)
        parts.append(high)
        x = x - high
    return torch.cat((*parts, x), -1)
