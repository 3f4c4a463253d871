"""XSA: exclusive self attention (Zhai 2026, arXiv 2603.09078)."""

from torch import nn

from posenc import Piece


class Xsa(Piece):
    """y - (y.u) u with u = v / |v|: remove the direction of the token's own value v from the
    output.

    Zhai 2026 (arXiv 2603.09078), implemented here after public code. The block already knows the
    token itself; what remains is the contribution of other tokens.
    """

    def output(self, y, v, x):
        """The outputs without that direction, (B, H, T, D)."""
        u = nn.functional.normalize(v, dim=-1)
        return y - (y * u).sum(-1, keepdim=True) * u
