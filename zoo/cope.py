"""CoPE: contextual position encoding (Golovneva et al. 2024, arXiv 2405.18719)."""

import math

import torch
from torch import Tensor, nn

from configurable import require
from posenc import Block, Piece, Shape


class Cope(Piece):
    """score += q_i.e(p_ij), p_ij = the sum of gates g_it over the seen keys t = j ... i, at most max - 1.

    e(p) lies on the line between rows floor(p) and ceil(p) of the parameter table (max, d), zeros at first, shared by heads
    and one for each layer; q.e is not divided by sqrt(d). gate=scaled: g = sigmoid(q.k / sqrt(d)), the authors' listing;
    gate=raw: sigmoid(q.k), their formula. With a rotation beside it e meets turned queries. `max`
    defaults to half the training length.
    Verdict: counts what the context defines (words, sentences); the whole score by hand, hence slow; not for length.
    """

    per_layer, reads_ids = True, False
    apart = (
        "pope",
        "xpos",
    )  # q.e needs queries of a head's width whose size says nothing of their place

    def __init__(self, shape: Shape, *, max: int | None = None, gate: str = "scaled") -> None:
        super().__init__()
        rows = -(-shape.length // 2) if max is None else max
        require(0 < rows <= 2**24, f"cope: max must lie between 1 and 2**24, not {max}")
        require(gate in ("scaled", "raw"), f"cope: gate is scaled or raw, not {gate}")
        self.factor = math.sqrt(shape.head_dim) if gate == "raw" else 1.0
        self.table = nn.Parameter(torch.zeros(rows, shape.head_dim))

    def score(self, block: Block) -> Tensor:
        """Gates are 0 at keys that the query may not see; the biases beside it do not enter them."""
        gates = torch.sigmoid(self.factor * block.scores).masked_fill(~block.seen, 0.0)
        p = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=len(self.table) - 1)  # (B, H, R, C)
        of_rows = block.q @ self.table.to(block.q.dtype).T  # (B, H, R, max)
        below, above = (of_rows.gather(-1, whole.long()) for whole in (p.floor(), p.ceil()))
        return block.scores + block.added + below + (p - p.floor()) * (above - below)
