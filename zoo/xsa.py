"""XSA: exclusive self attention (Zhai 2026, arXiv 2603.09078)."""

from torch import nn

from posenc import Piece


class Xsa(Piece):
    """y - (y.u) u with u = v / |v|: the output without the direction of the token's own value v.

    Zhai 2026 (arXiv 2603.09078), known here from its public implementations. The token itself is
    known to the block already; what is left is what other tokens say.
    Verdict: `rope + xsa` breaks as rope does (results/recipes, one seed). Zhai 2026 reports gains
    at up to 2.7B parameters, larger ones in longer texts of training. Whether it helps past the
    training length is open. Combine it: `rope + xsa`.
    """

    def output(self, y, v, x):
        """(B, H, T, D)."""
        u = nn.functional.normalize(v, dim=-1)
        return y - (y * u).sum(-1, keepdim=True) * u
