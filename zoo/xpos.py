"""xPos: rotary positions with exponential decay (Sun et al. 2022, arXiv 2212.10554)."""

import math

import torch
from torch import Tensor

from configurable import require
from posenc import Rope, Shape, Turn, turn


class Xpos(Rope):
    """RoPE whose pair m of a score is multiplied by z_m^((i - j) / B), z_m = (2m/d + gamma) / (1 + gamma). Sun et al. 2022.

    Queries are multiplied by z^((p - c) / B), keys by its inverse. B = `scale_base` defaults to half the training length:
    theirs is 512 for 1024. The centre c changes no score; theirs moves with the length read so far, here it is half the
    total length, so that turned keys can be cached. Exponents are float64, factors float32; where products with keys ahead
    would overflow, past 32 L, a text is refused. Nothing is learned. `layout` half is theirs with permuted columns.
    Verdict: decays like ALiBi but only in fast pairs; the authors pair it with a block-wise causal mask, which gains more.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        gamma: float = 0.4,
        scale_base: float | None = None,
        base: float = 10000.0,
        layout: str = "half",
    ) -> None:
        super().__init__(shape, base=base, layout=layout)
        require(gamma > 0, f"xpos: gamma must be positive, not {gamma}")
        self.gamma, self.scale_base = gamma, shape.length / 2 if scale_base is None else scale_base
        require(self.scale_base > 0, f"xpos: scale_base must be positive, not {scale_base}")
        self.limit = int(
            82 * self.scale_base / math.log1p(1 / gamma)
        )  # e^82 leaves room for q.k below float32's e^88

    def turn(self, ids: Tensor, total: int) -> tuple[Turn, Turn]:
        """Queries grow where keys shrink."""
        exact = "cpu" if ids.device.type == "mps" else ids.device  # mps has no float64
        pairs = torch.arange(0, self.columns, 2, dtype=torch.float64, device=exact) / self.columns
        power = (ids.to(exact, torch.float64) - total / 2)[
            ..., None
        ] / self.scale_base  # (..., T, 1)
        log_scale = power * torch.log((pairs + self.gamma) / (1 + self.gamma))
        grow, shrink = (log_scale.mul(sign).exp().to(ids.device, torch.float32) for sign in (1, -1))
        cos, sin = self.cos_sin(ids, total)
        tables = [
            tuple(t[:, None] if ids.dim() == 2 else t for t in (cos * s, sin * s))
            for s in (grow, shrink)
        ]
        return (lambda q: turn(q, *tables[0], self.layout)), (
            lambda k: turn(k, *tables[1], self.layout)
        )
