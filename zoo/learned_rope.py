"""RoPE with learned frequencies (Heo et al. 2024, arXiv 2403.13298)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from posenc import Piece, Rope, Shape, Turn, exact_device, turn


class LearnedRope(Rope):
    """RoPE with a learned frequency for each pair of each head: base^(-2m/d) exp(shift_hm).

    Heo et al. 2024 (arXiv 2403.13298), RoPE-Mixed in one dimension. They learn the frequencies
    themselves, per head and layer, of two-dimensional positions. Parameter: shift (H, d/2), one
    per layer, started at 0, which is RoPE. It is the logarithm of the frequency relative to
    RoPE's: frequencies stay positive, and rounding the parameter moves them little. Angles are
    formed in float64. Extensions change RoPE's frequencies, before the shift. `base` and `layout`
    are those of `rope`.
    Verdict: Heo et al. 2024 made it for images, and report gains at higher resolutions. Use it to
    see whether RoPE's frequencies matter.
    """

    per_layer = True
    by_head = True

    def __init__(self, shape: Shape, *, base: float = 10000.0, layout: str = "half") -> None:
        super().__init__(shape, base=base, layout=layout)
        self.shift = nn.Parameter(torch.zeros(shape.n_head, shape.head_dim // 2))

    def turn(self, ids: Tensor, total: int, maps: Sequence[Piece] = ()) -> tuple[Turn, Turn]:
        """Queries and keys are turned alike, each head by its own frequencies."""
        exact, (inv_freq, factor) = exact_device(ids), self.table(ids, total, maps)
        angles = ids.to(exact, torch.float64)[..., None] * inv_freq
        scales = self.shift.to(exact, torch.float64).exp()[:, None]  # (H, 1, F)
        angles = angles[..., None, :, :] * scales  # (..., H, T, F)
        wide = torch.promote_types(self.shift.dtype, torch.float32)
        cos, sin = (factor * f(angles).to(ids.device, wide) for f in (torch.cos, torch.sin))

        def turned(x: Tensor) -> Tensor:
            return turn(x, cos, sin, self.layout)

        return turned, turned
