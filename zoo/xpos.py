"""xPos: rotary positions with exponential decay (Sun et al. 2022, arXiv 2212.10554)."""

import math

import torch

from posenc import Base, Layout, PositiveFloat, Rope, Shape, angles_of, apply_rotary, as_reals


class Xpos(Rope):
    """RoPE where pair m contributes to a score times z_m^((i - j) / B).

    Sun et al. 2022 (arXiv 2212.10554). z_m = (2m/d + gamma) / (1 + gamma). Queries are multiplied
    by z_m^((p - c) / B), keys by its inverse. B = `scale_base` defaults to half the training length
    L; theirs is 512 for L = 1024. The centre c does not affect scores: theirs moves with the length
    read so far; here it is half the total length, so that rotated keys can be cached. Exponents are
    float64, factors float32. A text past 32 L is refused: there, products with keys ahead of the
    query would overflow; in float16 from 11 L on. Nothing is learned. `base` and `layout` are those
    of `rope`; layout=half is theirs with permuted columns.
    """

    conflicts = ("latent attention",)

    def __init__(
        self,
        shape: Shape,
        *,
        gamma: PositiveFloat = 0.4,
        scale_base: PositiveFloat | None = None,
        base: Base = 10000.0,
        layout: Layout = "half",
    ) -> None:
        super().__init__(shape, base=base, layout=layout)
        self.gamma = gamma
        self.scale_base = scale_base or shape.first_length / 2
        # e^82 leaves room for q.k below e^88, the largest float32
        self.limit = int(82 * self.scale_base / math.log1p(1 / gamma))

    def tables(self, ids, total, maps=()):
        """Cosines and sines (T, F) times the growth for queries, then times the decay for keys."""
        cos, sin = super().tables(ids, total, maps)
        pairs = torch.arange(len(self.inv_freq), dtype=torch.float64, device=self.inv_freq.device)
        zeta = (pairs / len(pairs) + self.gamma) / (1 + self.gamma)
        power = (as_reals(ids) - total / 2) / self.scale_base
        log_scale = angles_of(power, torch.log(zeta))  # (T, F)
        growth = log_scale.exp().to(cos)
        decay = (-log_scale).exp().to(cos)
        return cos * growth, sin * growth, cos * decay, sin * decay

    def turn(self, x, tables, is_key):
        """Rotate queries or keys; queries grow where keys shrink."""
        cos, sin = tables[2:] if is_key else tables[:2]
        return apply_rotary(x, cos, sin, self.layout)
