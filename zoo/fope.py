"""FoPE: Fourier position embedding (Hua et al. 2024, arXiv 2412.17739)."""

import math

import torch
from torch import nn

from common.errors import UserError
from posenc import Base, Layout, Rope, Shape


class Fope(Rope):
    """RoPE with each pair of columns rotated by a mixture of all kept frequencies.

    Hua et al. 2024 (arXiv 2412.17739). A pair is kept if its wavelength is at most the training
    length L. cos and sin of a kept pair m in head h become sum_n cos(p theta_n) C[h, n, m] and
    sum_n sin(p theta_n) S[h, n, m]. Parameters cosines C and sines S (H, F, F), F the number of
    kept pairs, one set per layer, initialised to the identity plus Xavier noise times `gain`: 0.3
    for the authors' 60M model, up to 0.6 for 1.2B. Scores are no longer functions of i - j alone.
    As in their code, the matrices are not trained, and the other pairs have cos = sin = 1, which
    doubles their scores. The paper trains the matrices (learned=True) and does not rotate the other
    pairs (rest=0). Their code also rotates at most d/4 pairs; that is not implemented: at L = 512
    no more are kept. `base` and `layout` are those of `rope`.
    """

    per_layer = True

    def __init__(
        self,
        shape: Shape,
        *,
        base: Base = 10000.0,
        gain: float = 0.3,
        learned: bool = False,
        rest: float = 1.0,
        layout: Layout = "half",
    ) -> None:
        super().__init__(shape, base=base, layout=layout)
        self.rest = rest
        is_kept = self.inv_freq >= 2 * math.pi / shape.first_length
        self.inv_freq = self.inv_freq.where(is_kept, 0.0)
        kept = int(is_kept.sum())
        if kept == 0:
            raise UserError(
                f"fope: every wavelength exceeds the training length {shape.first_length}"
            )
        size = (shape.n_head, kept, kept)
        cosines = torch.eye(kept) + nn.init.xavier_normal_(torch.empty(size), gain)
        sines = torch.eye(kept) + nn.init.xavier_normal_(torch.empty(size), gain)
        self.cosines = nn.Parameter(cosines, requires_grad=learned)
        self.sines = nn.Parameter(sines, requires_grad=learned)

    def tables(self, ids, total, maps=()):
        """Cosines and sines (H, T, F), mixed per head."""
        cos, sin = super().tables(ids, total, maps)  # (T, F)
        kept = self.sines.shape[-1]
        mixed_cos = cos[:, :kept].to(self.cosines) @ self.cosines  # (H, T, kept)
        mixed_sin = sin[:, :kept].to(self.sines) @ self.sines
        others = cos[:, kept:].expand(len(mixed_cos), -1, -1)  # of the other pairs, all 1
        return torch.cat((mixed_cos, others), -1), torch.cat((mixed_sin, self.rest * others), -1)
