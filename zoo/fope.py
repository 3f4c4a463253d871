"""FoPE: Fourier position embedding (Hua et al. 2024, arXiv 2412.17739)."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from configurable import require
from posenc import Piece, Rope, Shape, Table, Turn, turn


class Fope(Rope):
    """RoPE where each pair of columns is turned by a mixture of all kept frequencies.

    Hua et al. 2024 (arXiv 2412.17739). A pair is kept if its wavelength is at most the training
    length L. cos and sin of kept pair m in head h become sum_n cos(p theta_n) C[h, n, m] and
    sum_n sin(p theta_n) S[h, n, m]. Parameters cosines C and sines S (H, F, F), F the number of
    kept pairs, one of each per layer, started at the identity plus Xavier noise times `gain`: 0.3
    for the authors' 60M model, up to 0.6 for 1.2B. Scores are no longer functions of i - j alone.
    As in their code the matrices are not trained, and the other pairs have cos = sin = 1, which
    doubles their scores. The paper trains the matrices (learned=True) and leaves the other pairs
    unturned (rest=0). Their code also turns at most d/4 pairs; that is not offered here: at
    L = 512 no more are kept. `base` and `layout` are those of `rope`.
    Verdict: Hua et al. 2024 report a steadier perplexity past L than with RoPE and ALiBi. It costs
    more than rope(p=0.5), which drops slow pairs too.
    """

    per_layer = True
    by_head = True
    floor = 0.0  # the lowest frequency kept; 0 until the training length is known

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
        sentence = f"fope: a training length of {shape.length} is shorter than every wavelength"
        require(kept > 0, sentence)
        size = (shape.n_head, kept, kept)
        noise = [nn.init.xavier_normal_(torch.empty(size), gain) for _ in range(2)]
        self.cosines = nn.Parameter(torch.eye(kept) + noise[0], requires_grad=learned)
        self.sines = nn.Parameter(torch.eye(kept) + noise[1], requires_grad=learned)

    def frequencies(self, total: int) -> Table:
        """RoPE's frequencies, 0 where the wavelength exceeds the training length."""
        inv_freq, factor = super().frequencies(total)
        return inv_freq.where(inv_freq >= self.floor, 0.0), factor

    def turn(self, ids: Tensor, total: int, maps: Sequence[Piece] = ()) -> tuple[Turn, Turn]:
        """Queries and keys are turned alike, each head by its own mixture."""
        tables, kept = self.cos_sin(ids, total, maps), self.sines.shape[-1]
        wide = torch.promote_types(self.sines.dtype, torch.float32)
        cos, sin = (table[..., None, :, :].to(wide) for table in tables)  # (..., 1, T, F)
        others = cos[..., kept:]  # cosines of the pairs that are not kept, all 1
        with torch.autocast(ids.device.type, enabled=False):  # -> (..., H, T, F)
            cos = cos[..., :kept] @ self.cosines.to(wide)
            sin = sin[..., :kept] @ self.sines.to(wide)
        others = others.expand(*cos.shape[:-1], -1)
        cos, sin = torch.cat((cos, others), -1), torch.cat((sin, self.rest * others), -1)

        def turned(x: Tensor) -> Tensor:
            return turn(x, cos, sin, self.layout)

        return turned, turned
