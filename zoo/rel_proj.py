"""A bias predicted from the query: Inkling (Thinking Machines 2026)."""

import torch
from torch import nn

from posenc import Count, Length, Piece, Shape, init_std


class RelProj(Piece):
    """score += r_i.P[:, i - j], with r_i = W_h x_i; nothing is added from i - j = `extent` on.

    Not from a paper: Inkling (Thinking Machines 2026; transformers' inkling) has it in place of
    rotations. x_i is the layer's normalised input, i - j counts tokens. Parameters, one set per
    layer: query.weight W (H rank, C), whose r have `rank` numbers per head, and table P (rank,
    extent), shared by heads; both normal, with the deviation of the model's other weights
    (theirs: 0.02). `extent` defaults to L / 2, so that every column is trained; theirs is 1,024,
    and the window in layers that have one. `floor`, if it is given, multiplies scores and this
    bias by 1 + 0.1 ln(max(1, (i + 1) / floor)), as in their layers without a window. They divide
    q.k by d, here by sqrt(d): with qk_norm the same functions, where q_norm is theirs / sqrt(d).
    """

    per_layer = True

    def __init__(
        self,
        shape: Shape,
        *,
        rank: Count = 16,
        extent: Length | None = None,
        floor: Length | None = None,
    ):
        super().__init__()
        self.n_head = shape.n_head
        self.floor = floor
        extent = extent or max(1, shape.first_length // 2)
        self.query = nn.Linear(shape.width, shape.n_head * rank, bias=False)
        self.table = nn.Parameter(torch.empty(rank, extent))
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=init_std(shape.width))

    def features(self, x):
        """r (B, T, H rank) from the input x (B, T, C)."""
        return self.query(x)

    def score(self, tile):
        """(B, H, R, C). Biases of other pieces are not multiplied."""
        r = tile.features_k[:, -len(tile.rows) :]  # the queries are the last of the tokens
        r = r.unflatten(-1, (self.n_head, -1)).transpose(1, 2)  # (B, H, R, rank)
        table = nn.functional.pad(self.table, (0, 1))  # 0 from the extent on
        distance = (tile.rows - tile.columns).clamp(0, self.table.shape[1])  # (R, C)
        bias = (r @ table).gather(-1, distance.expand(tile.scores.shape))
        scores = tile.scores + bias
        if self.floor:
            count = (tile.rows + 1).to(scores.dtype)
            scores = scores * (1 + 0.1 * (count / self.floor).clamp(min=1).log())
        return scores + tile.added
