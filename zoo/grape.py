"""GRAPE: ALiBi with slopes set by the keys (Zhang et al. 2025, arXiv 2512.07805)."""

import math
from typing import Literal

import torch
from torch import nn
from torch.nn import functional as F

from posenc import Piece, Shape, alibi_slopes


class Grape(Piece):
    """score += -(i - j) w_h m_h softplus(u_h.k_j / sqrt(d)), m_h the slopes of ALiBi.

    Zhang et al. 2025 (arXiv 2512.07805), additive GRAPE. gate=key is their code. gate=both has
    softplus(v_h.q_i / sqrt(d)) + softplus(u_h.k_j / sqrt(d)), equation 4.6, and gate=none has 1:
    the functions of `alibi(learned=True)`, which is faster. Parameters, one set per layer: omega
    (H,), whose softplus w starts at 1; u and v (H, d), normal, used at unit length as in their
    code. Keys are those of the dot product: normalised with qk_norm, as in their models, and
    rotated if the scheme rotates, where their appendix E uses unrotated ones; v is multiplied with
    queries times the temperature. Left out: the multiplicative forms, and the path integral
    GRAPE-AP.
    """

    per_layer = True
    # u needs keys as wide as a head, whose norm does not depend on position
    conflicts = ("pope", "xpos", "latent attention")

    def __init__(self, shape: Shape, *, gate: Literal["key", "both", "none"] = "key") -> None:
        super().__init__()
        self.register_buffer("slopes", alibi_slopes(shape.n_head), persistent=False)
        self.omega = nn.Parameter(torch.full((shape.n_head,), math.log(math.e - 1)))
        self.gate = gate
        self.u = None
        self.v = None
        size = shape.n_head, shape.turned_width
        if gate != "none":
            self.u = nn.Parameter(torch.randn(size) / math.sqrt(shape.turned_width))
        if gate == "both":
            self.v = nn.Parameter(torch.randn(size) / math.sqrt(shape.turned_width))

    def score(self, tile):
        """(B, H, R, C), from ids, so that large distances are exact."""
        slopes = (F.softplus(self.omega) * self.slopes)[:, None, None]
        if self.gate == "key":
            slopes = slopes * gates(self.u, tile.k).mT  # (B, H, 1, C)
        elif self.gate == "both":
            slopes = slopes * (gates(self.v, tile.q) + gates(self.u, tile.k).mT)  # (B, H, R, C)
        distance = (tile.i - tile.j).to(tile.scores.dtype)
        return tile.scores + tile.added - distance * slopes


def gates(direction, x):
    """softplus(u.x / sqrt(d)), (B, H, T, 1), from directions u (H, d) and x (B, H, T, d)."""
    unit = F.normalize(direction, dim=-1).to(x.dtype)
    return F.softplus(x @ unit[..., None] / math.sqrt(x.shape[-1]))
