"""RoPE with learned frequencies (RoPE-Mixed in one dimension: Heo et al. 2024, arXiv 2403.13298)."""

import torch
from torch import Tensor, nn

from posenc import Rope, Shape, Turn, stretched, turn


class LearnedRope(Rope):
    """RoPE with a learned frequency for each pair of each head: theta_hm = base^(-2m/d) exp(shift_hm).

    Parameter shift (H, d/2), one per layer, started at 0, which is RoPE; it is the logarithm of the frequency less that of
    RoPE's, so that frequencies stay positive and a rounded state dict moves them little. Heo et al. 2024 learn frequencies
    themselves, per head and layer, of two-dimensional positions. Angles are formed in float64. Extensions change RoPE's
    frequencies, before the shift.
    Verdict: an ablation; frequencies learned at L say nothing about longer texts, and slow pairs hardly move.
    """

    per_layer = True

    def __init__(self, shape: Shape, *, base: float = 10000.0, layout: str = "half") -> None:
        super().__init__(shape, base=base, layout=layout)
        self.shift = nn.Parameter(torch.zeros(shape.n_head, shape.head_dim // 2))

    def turn(self, ids: Tensor, total: int) -> tuple[Turn, Turn]:
        """Queries and keys alike, each head by its own frequencies."""
        exact = "cpu" if ids.device.type == "mps" else ids.device  # mps has no float64
        inv_freq, factor = stretched(self.frequencies(total), self.stretches, self.base, total)
        early = (ids < self.first).to(exact)[..., None]
        inv_freq = torch.where(
            early, self.frequencies(total)[0].to(exact), inv_freq.to(exact)
        )  # (..., T, F)
        angles = ids.to(exact, torch.float64)[..., None] * inv_freq
        angles = (
            angles[..., None, :, :] * self.shift.to(exact, torch.float64).exp()[:, None]
        )  # (..., H, T, F)
        wide = torch.promote_types(self.shift.dtype, torch.float32)
        cos, sin = (factor * f(angles).to(ids.device, wide) for f in (torch.cos, torch.sin))
        return (lambda x: turn(x, cos, sin, self.layout),) * 2
