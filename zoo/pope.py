"""PoPE: polar coordinates (Gopalakrishnan et al. 2025, arXiv 2509.10534)."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from configurable import require
from posenc import Piece, Rotary, Shape, Table, Turn, rope_frequencies


class Pope(Rotary):
    """score = sum_c softplus(q_c) softplus(k_c) cos((j - i) theta_c + delta_c) / sqrt(d).

    Gopalakrishnan et al. 2025 (arXiv 2509.10534). theta_c = base^(-c/d), c = 0 ... d - 1. The
    content of a token sets only magnitudes, its position only phases. Parameter: delta (H, d),
    shared by layers, used clamped to [-2 pi, 0]. It starts at 0, or anywhere in that range with
    `start=uniform`. The paper offers both, and the first for longer tests. Queries and keys become
    2d wide, cosines and sines, which doubles their cost in the cache.
    Verdict: Gopalakrishnan et al. 2025 report a lower loss than RoPE's within L, and that it holds
    up to 10 L. Here it lost 0.47 nats at 8 L (results/board, one seed).
    """

    by_head = True

    def __init__(self, shape: Shape, *, base: float = 10000.0, start: str = "zero") -> None:
        super().__init__()
        require(base >= 1, f"pope: base must be at least 1, not {base}")
        require(start in ("zero", "uniform"), f"pope: start is zero or uniform, not {start}")
        self.columns, self.base = shape.head_dim, base
        fill = torch.rand if start == "uniform" else torch.zeros
        self.delta = nn.Parameter(-2 * math.pi * fill(shape.n_head, shape.head_dim))

    def frequencies(self, total: int) -> Table:
        """One for each column: those of RoPE at twice the width."""
        return rope_frequencies(2 * self.columns, self.base)

    def turn(self, ids: Tensor, total: int, maps: Sequence[Piece] = ()) -> tuple[Turn, Turn]:
        """(B, H, T, d) -> (B, H, T, 2d). The phases of the keys are moved by delta."""
        cos, sin = (t[..., None, :, :] for t in self.cos_sin(ids, total, maps))  # (..., 1, T, d)
        delta = self.delta.to(torch.promote_types(self.delta.dtype, torch.float32))
        delta = delta.clamp(-2 * math.pi, 0)[:, None]
        moved_cos = cos * delta.cos() - sin * delta.sin()  # (..., H, T, d)
        moved_sin = sin * delta.cos() + cos * delta.sin()

        def polar(x: Tensor, cos: Tensor, sin: Tensor, factor: float) -> Tensor:
            wide = torch.promote_types(x.dtype, cos.dtype)
            # this is softplus, whose own backward fails when compiled
            size = factor * torch.logaddexp(x.to(wide), x.new_zeros((), dtype=wide))
            return torch.cat((size * cos, size * sin), -1).to(x.dtype)

        root = math.sqrt(2)  # scores are divided by the root of the turned width, 2d
        return (lambda q: polar(q, cos, sin, root)), (lambda k: polar(k, moved_cos, moved_sin, 1.0))
