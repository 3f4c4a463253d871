"""FoX: the forgetting transformer (Lin et al. 2025, arXiv 2503.02130), and CABLE (Veisi et al. 2025, arXiv 2503.08067)."""

import torch
from torch import Tensor, nn

from configurable import require
from posenc import Block, Piece, Shape


class Fox(Piece):
    """score += c_i - c_j, c = the running sum of ln f_t; f_t = sigmoid(w_h.x_t + b_h) of the layer's normalised input x_t.

    kind=cable writes ln f_t = -softplus(w_h.x_t + b_h): the same functions with the sign of w and b changed. Parameters
    gate.weight (H, C), normal with deviation 0.02, and gate.bias (H,), one each for each layer. `start` is the logit of f
    at first: 0 in both papers' code, so that f = 1/2; 5 in x-transformers, f near 1. Sums are float32 or wider. FoX's "Pro"
    parts (output gate, norms of q, k and v, token shift) are no positions and left out; CABLE's code forgets 1 / sqrt(d).
    Verdict: the flattest at any length and good in length: it learns where to stop reading. Needs no other scheme.
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
        """ln f (B, T, H)."""
        gate = self.sign * self.gate(x)
        return nn.functional.logsigmoid(gate.to(torch.promote_types(gate.dtype, torch.float32)))

    def score(self, block: Block) -> Tensor:
        """The decay between key and query."""
        c = block.features_k.mT.cumsum(-1)  # (B, H, C)
        return block.scores + block.added + (c[..., block.rows[:, 0], None] - c[..., None, :])
