"""RoPE with learned frequencies (Heo et al. 2024, arXiv 2403.13298)."""

import torch
from torch import nn

from posenc import Base, Layout, Rope, Shape, angles_of, apply_rotary


class LearnedRope(Rope):
    """RoPE with a learned frequency for each pair of each head: base^(-2m/d) exp(shift_hm).

    Heo et al. 2024 (arXiv 2403.13298), RoPE-Mixed in one dimension. They learn the frequencies
    themselves, per head and layer, for two-dimensional positions. Parameter: shift (H, d/2), one
    per layer, initialised to 0, which is RoPE. It is the log of the frequency relative to RoPE's,
    so frequencies stay positive and rounding the parameter changes them little. Angles are computed
    in float64. Extensions change RoPE's frequencies, before the shift. `shared` has one shift
    (d/2,) for all heads; with per_layer=False that is one for the model, as in Mistral Large 4
    (Mistral AI 2026; `alpha` in transformers). `base` and `layout` are those of `rope`.
    """

    per_layer = True

    def __init__(
        self,
        shape: Shape,
        *,
        base: Base = 10000.0,
        layout: Layout = "half",
        shared: bool = False,
    ) -> None:
        super().__init__(shape, base=base, layout=layout)
        size = (shape.turned_width // 2,) if shared else (shape.n_head, shape.turned_width // 2)
        self.shift = nn.Parameter(torch.zeros(size))

    def tables(self, ids, total, maps=()):
        """Cosines and sines (H, T, F) with the frequencies of each head; (T, F) if shared."""
        inv_freq, factor = self.frequencies(total, maps, ids)
        angles = angles_of(ids, inv_freq)
        angles = angles * self.shift.to(angles).exp()[..., None, :]  # (H, 1, F) or (1, F)
        return factor * angles.cos().to(self.shift), factor * angles.sin().to(self.shift)

    def turn(self, x, tables, is_key):
        """Rotate queries or keys (B, H, T, d)."""
        return apply_rotary(x, *tables, self.layout)
