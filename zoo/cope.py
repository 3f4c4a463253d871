"""CoPE: contextual position encoding (Golovneva et al. 2024, arXiv 2405.18719)."""

import math
from typing import Literal

import torch
from torch import nn

from posenc import Count, Piece, Shape

CACHED_PAIRS = 2**16  # of a query and a key, whose numbers a processor's cache holds


class Cope(Piece):
    """score += q_i.e(p_ij), with p_ij = g_ij + g_i(j+1) + ... + g_ii, at most max - 1.

    Golovneva et al. 2024 (arXiv 2405.18719). The sum runs over the keys visible to the query.
    gate=scaled: g = sigmoid(q.k / sqrt(d)), as in the authors' code; gate=raw: g = sigmoid(q.k), as
    in their formula. e(p) interpolates linearly between rows floor(p) and ceil(p) of the parameter
    table (max, d), which starts at 0, one per layer, shared by its heads. q.e is not divided by
    sqrt(d). With a rotation, e is multiplied with rotated queries. `max` defaults to half the
    training length.
    """

    per_layer = True
    # q.e needs queries of a head's width, and a size of q that does not depend on the position
    conflicts = ("pope", "xpos", "latent attention")

    def __init__(
        self,
        shape: Shape,
        *,
        max: Count | None = None,
        gate: Literal["scaled", "raw"] = "scaled",
    ) -> None:
        super().__init__()
        rows = max or (shape.first_length + 1) // 2
        self.factor = math.sqrt(shape.turned_width) if gate == "raw" else 1.0
        self.table = nn.Parameter(torch.zeros(rows, shape.turned_width))

    def score(self, tile):
        """(B, H, R, C), of few rows at a time where nothing is kept for gradients."""
        of_rows = tile.q @ self.table.to(tile.q.dtype).T  # (B, H, R, max)
        rows = tile.rows_at_once(CACHED_PAIRS)
        parts = zip(
            tile.scores.split(rows, 2),
            tile.added.split(rows, -2),
            of_rows.split(rows, 2),
            strict=True,
        )
        return torch.cat([self.with_positions(*part) for part in parts], 2)

    def with_positions(self, scores, added, of_rows):
        """The sum of scores (B, H, R, C), what is added, and q.e(p), given q.e of all rows
        (B, H, R, max). Gates are 0 at masked keys and ignore the biases of other pieces.
        """
        z = scores if self.factor == 1 else self.factor * scores
        gates = torch.where(added > -math.inf, torch.sigmoid(z), 0.0)
        p = gates.flip(-1).cumsum(-1).flip(-1).clamp_(max=len(self.table) - 1)  # (B, H, R, C)
        row = p.long()
        steps = of_rows.diff(append=of_rows[..., -1:])  # to the next row
        of_p = torch.addcmul(of_rows.gather(-1, row), p.frac(), steps.gather(-1, row))
        return of_p.add_(scores).add_(added)
