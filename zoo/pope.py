"""PoPE: polar coordinates (Gopalakrishnan et al. 2025, arXiv 2509.10534)."""

import math
from typing import Literal

import torch
from torch import nn

from posenc import Base, Rotary, Shape, rope_frequencies


class Pope(Rotary):
    """score = sum_c softplus(q_c) softplus(k_c) cos((j - i) theta_c + delta_c) / sqrt(d).

    Gopalakrishnan et al. 2025 (arXiv 2509.10534). theta_c = base^(-c/d), c = 0 ... d - 1. The
    content of a token sets only magnitudes, its position only phases. Parameter: delta (H, d),
    shared by layers, clamped to [-2 pi, 0]. It starts at 0, or uniform in that range with
    `start=uniform`. The paper uses both, and the first for length extrapolation. Queries and keys
    become 2d wide, for cosines and sines, which doubles the cost of caching keys.
    """

    conflicts = ("latent attention",)

    def __init__(
        self, shape: Shape, *, base: Base = 10000.0, start: Literal["zero", "uniform"] = "zero"
    ) -> None:
        # one frequency per column: RoPE's at twice the width
        super().__init__(rope_frequencies(2 * shape.turned_width, base)[0], base)
        share = torch.zeros(shape.n_head, shape.turned_width)
        if start == "uniform":
            share = torch.rand(shape.n_head, shape.turned_width)
        self.delta = nn.Parameter(-2 * math.pi * share)

    def tables(self, ids, total, maps=()):
        """Cosines and sines for queries (T, d) and, shifted by delta, for keys (H, T, d)."""
        cos, sin = super().tables(ids, total, maps)
        delta = self.delta.clamp(-2 * math.pi, 0)[:, None]
        moved_cos = cos * delta.cos() - sin * delta.sin()
        moved_sin = sin * delta.cos() + cos * delta.sin()
        return cos, sin, moved_cos, moved_sin

    def turn(self, x, tables, is_key):
        """(B, H, T, d) -> (B, H, T, 2d)."""
        cos, sin = tables[2:] if is_key else tables[:2]
        # this is softplus, whose own backward fails when compiled
        size = torch.logaddexp(x, x.new_zeros(()))
        return torch.cat((size * cos, size * sin), -1)
