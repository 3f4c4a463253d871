"""The smear of nanochat and modded-nanogpt: a little of the token before (2026)."""

import torch
from torch import nn

from configurable import Count
from posenc import Piece, Shape


class Smear(Piece):
    """x_t + s sigmoid(g.x_t[:columns]) x_(t-1), once, of what enters the first layer.

    Not from a paper: modded-nanogpt (2025, with 12 columns) and nanochat (2026, with 24), which
    both mix normalised embeddings (embedding_norm=True here). Parameters: s () and g (columns,).
    Both start at 0, so that training starts without it.
    """

    mixes = {"embedding": 2}

    def __init__(self, shape: Shape, *, columns: Count = 24):
        super().__init__()
        self.s = nn.Parameter(torch.zeros(()))
        self.g = nn.Parameter(torch.zeros(min(columns, shape.width)))

    def mix(self, rows, place):
        """Each vector, and a gated share of the one before, (B, T, C)."""
        x, before = rows
        gates = torch.sigmoid(x[..., : len(self.g)] @ self.g)  # (B, T)
        return x + self.s * gates[..., None] * before
