"""FoPE: Fourier position embedding (Hua et al. 2024, arXiv 2412.17739)."""

import math

import torch
from torch import Tensor, nn

from configurable import require
from posenc import Rope, Shape, Turn, turn


class Fope(Rope):
    """RoPE without the pairs whose wavelength exceeds L, and with every kept one mixed from all that are kept.

    Hua et al. 2024: cos and sin of pair m in head h become sum_n cos(p theta_n) C[h, n, m] and sum_n sin(p theta_n)
    S[h, n, m]. Matrices cosines, sines (H, F, F), F pairs kept, one of each per layer, started at the identity plus
    Xavier noise times `gain`: 0.3 for their 60M model, up to 0.6 for 1.2B. Scores are no longer functions of i - j alone.
    As in their code the matrices stay as drawn and the other pairs are left at cos = sin = 1, which doubles their scores;
    the paper trains them (learned=True) and leaves the others unturned (rest=0). Their code also turns no more than d/4
    pairs (not offered: at L = 512 no more are kept).
    Verdict: RoPE without its unfinished turns, so steadier past L; most of that is had from rope(p=0.5) for less.
    """

    per_layer = True
    floor = 0.0  # no frequency is too low until the training length is known

    def __init__(
        self,
        shape: Shape,
        *,
        base: float = 10000.0,
        gain: float = 0.3,
        learned: bool = False,
        rest: float = 1.0,
        layout: str = "half",
    ) -> None:
        super().__init__(shape, base=base, layout=layout)
        self.floor, self.rest = 2 * math.pi / shape.length, rest
        kept = int((self.frequencies(shape.length)[0] > 0).sum())
        require(
            kept > 0, f"fope: a training length of {shape.length} is shorter than every wavelength"
        )
        noise = [
            nn.init.xavier_normal_(torch.empty(shape.n_head, kept, kept), gain) for _ in range(2)
        ]
        self.cosines, self.sines = (
            nn.Parameter(torch.eye(kept) + n, requires_grad=learned) for n in noise
        )

    def frequencies(self, total: int) -> tuple[Tensor, float]:
        """RoPE's, 0 where the wavelength exceeds the training length."""
        inv_freq, factor = super().frequencies(total)
        return inv_freq.where(inv_freq >= self.floor, 0.0), factor

    def turn(self, ids: Tensor, total: int) -> tuple[Turn, Turn]:
        """Queries and keys alike, each head by its own mixture."""
        tables, kept = self.cos_sin(ids, total), self.sines.shape[-1]
        wide = torch.promote_types(self.sines.dtype, torch.float32)
        with torch.autocast(ids.device.type, enabled=False):  # (..., T, F) -> (..., H, T, F)
            cos, sin = (
                t[..., None, :, :kept].to(wide) @ mix.to(wide)
                for t, mix in zip(tables, (self.cosines, self.sines), strict=True)
            )
        rest = (
            tables[0][..., None, :, kept:].to(wide).expand(*cos.shape[:-1], -1)
        )  # of the pairs that are not turned
        cos, sin = torch.cat((cos, rest), -1), torch.cat((sin, self.rest * rest), -1)
        return (lambda x: turn(x, cos, sin, self.layout),) * 2
