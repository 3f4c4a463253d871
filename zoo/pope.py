"""PoPE: polar coordinates (Gopalakrishnan et al. 2025, arXiv 2509.10534)."""

import math

import torch
from torch import Tensor, nn

from configurable import require
from posenc import Rotary, Shape, Turn, rope_frequencies


class Pope(Rotary):
    """Score = sum_c softplus(q_c) softplus(k_c) cos((j - i) theta_c + delta_c) / sqrt(d), theta_c = base^(-c/d), c < d.

    Gopalakrishnan et al. 2025: what a token is sets magnitudes only, where it is phases only. Parameter delta (H, d),
    shared by layers, used clamped to [-2 pi, 0], started at 0, or with `start=uniform` anywhere in it: the paper's two
    choices, the first for longer tests. Queries and keys become 2d wide, cos and sin, which doubles their cost in the cache.
    Verdict: the authors find it ahead of RoPE at and past the training length; it costs twice the products.
    """

    def __init__(self, shape: Shape, *, base: float = 10000.0, start: str = "zero") -> None:
        super().__init__()
        require(base >= 1, f"pope: base must be at least 1, not {base}")
        require(start in ("zero", "uniform"), f"pope: start is zero or uniform, not {start}")
        self.columns, self.base = shape.head_dim, base
        delta = (
            torch.rand(shape.n_head, shape.head_dim)
            if start == "uniform"
            else torch.zeros(shape.n_head, shape.head_dim)
        )
        self.delta = nn.Parameter(-2 * math.pi * delta)

    def frequencies(self, total: int) -> tuple[Tensor, float]:
        """One for each column: those of RoPE at twice the width."""
        return rope_frequencies(2 * self.columns, self.base)

    def turn(self, ids: Tensor, total: int) -> tuple[Turn, Turn]:
        """(B, H, T, d) -> (B, H, T, 2d); the keys' phases have delta added, by the rule for sums of angles."""
        cos, sin = (t[..., None, :, :] for t in self.cos_sin(ids, total))  # (..., 1, T, d)
        delta = self.delta.to(torch.promote_types(self.delta.dtype, torch.float32)).clamp(
            -2 * math.pi, 0
        )[:, None]
        moved = (
            cos * delta.cos() - sin * delta.sin(),
            sin * delta.cos() + cos * delta.sin(),
        )  # (..., H, T, d)

        def polar(x: Tensor, cos: Tensor, sin: Tensor, factor: float) -> Tensor:
            wide = torch.promote_types(x.dtype, cos.dtype)
            size = factor * torch.logaddexp(
                x.to(wide), x.new_zeros((), dtype=wide)
            )  # softplus, whose compiled backward fails
            return torch.cat((size * cos, size * sin), -1).to(x.dtype)

        root = math.sqrt(2)  # scores are divided by the root of the turned width, 2d
        return (lambda q: polar(q, cos, sin, root)), (lambda k: polar(k, *moved, 1.0))
