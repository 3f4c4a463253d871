"""Sinusoids of the row and of the column (Chen et al. 2021, arXiv 2104.02057)."""

import torch
from torch import Tensor

from configurable import require
from posenc import Grid, Shape, Text, sinusoids


class Sinusoidal2d(Grid):
    """scale x [sin(r w_m), cos(r w_m), sin(c w_m), cos(c w_m)], w_m = base^(-4m/C), is added.

    Chen et al. 2021, MoCo v3 (arXiv 2104.02057), in the order of transformers' MAE. r is the row of
    a patch, c its column. They are added to the token embedding; for `scale` see `sinusoidal`.
    Nothing is learned.
    Verdict: rows and columns past those of training were never met, as positions past L of
    sinusoidal, whose loss on text rose from 1.43 at L to 3.84 at 2 L (results/stdlib-six).
    """

    def __init__(self, shape: Shape, *, base: float = 10000.0, scale: float = 0.1) -> None:
        super().__init__()
        require(
            shape.width % 4 == 0, f"sinusoidal2d needs an n_embd that 4 divides, not {shape.width}"
        )
        require(base >= 1, f"sinusoidal2d: base must be at least 1, not {base}")
        self.half, self.base, self.scale = shape.width // 2, base, scale

    def embed(self, ids: Tensor, text: Text) -> Tensor:
        """Scaled sinusoids of rows, then of columns."""
        parts = [sinusoids(place, self.half, self.base) for place in self.places(ids)]
        return self.scale * torch.cat(parts, -1)
