"""DAPE: data-adaptive positional encoding (Zheng et al. 2024, arXiv 2405.14722)."""

import torch
from torch import Tensor, nn

from configurable import require
from posenc import Block, Piece, Shape


class Dape(Piece):
    """score = S + B + MLP([S; B]): B is the sum of the other pieces' biases, and the MLP mixes the 2H numbers of each pair.

    2H -> `hidden` -> H with LeakyReLU 0.01; parameters inner.weight (hidden, 2H), inner.bias (hidden,), outer.weight
    (H, hidden), outer.bias (H,), one set for each layer (B stays shared). Without a bias beside it B = 0, and only the heads'
    scores are mixed. B counts as 0 where the head may not see the key. A block takes 32 / H times the memory of its scores.
    Verdict: mends the far end of the bias beside it, at several times the cost: `kerple + dape`.
    """

    per_layer, reads_ids = True, False

    def __init__(self, shape: Shape, *, hidden: int = 32) -> None:
        super().__init__()
        require(hidden > 0, f"dape: hidden must be positive, not {hidden}")
        self.inner, self.outer = (
            nn.Linear(2 * shape.n_head, hidden),
            nn.Linear(hidden, shape.n_head),
        )

    def score(self, block: Block) -> Tensor:
        """The MLP over heads at every pair."""
        bias = block.added.masked_fill(~block.seen, 0.0).expand_as(
            block.scores
        )  # -inf would spoil the MLP
        x = torch.cat((block.scores, bias), 1).movedim(1, -1)  # (B, R, C, 2H)
        inner, outer = (
            (m.weight.to(x.dtype), m.bias.to(x.dtype)) for m in (self.inner, self.outer)
        )
        x = nn.functional.linear(nn.functional.leaky_relu(nn.functional.linear(x, *inner)), *outer)
        return block.scores + block.added + x.movedim(-1, 1)
