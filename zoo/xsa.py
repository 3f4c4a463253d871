"""XSA: exclusive self attention (Zhai 2026, arXiv 2603.09078)."""

import torch
from torch import nn

from posenc import Piece, Shape


class Xsa(Piece):
    """y - (y.u) u with u = v / |v|: remove the direction of the token's own value v from the
    output.

    Zhai 2026 (arXiv 2603.09078), implemented here after public code. The block already knows the
    token itself; what remains is the contribution of other tokens.
    With `learned`, tanh(alpha_h) times that is removed, as in modded-nanogpt (2026, pull request
    264). Parameter: alpha (H,), shared by layers; theirs has one per layer, as per_layer=True. As
    theirs it starts at 0, where nothing is removed, not at the paper's 1.
    """

    def __init__(self, shape: Shape, *, learned: bool = False):
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(shape.n_head)) if learned else None

    def output(self, y, v, x):
        """The outputs without that direction, (B, H, T, D)."""
        u = nn.functional.normalize(v, dim=-1)
        removed = (y * u).sum(-1, keepdim=True) * u
        if self.alpha is not None:
            removed = removed * torch.tanh(self.alpha)[:, None, None]
        return y - removed
