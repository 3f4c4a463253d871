"""Sinusoids of the row and of the column (Chen et al. 2021, arXiv 2104.02057)."""

import torch

from common.errors import UserError
from posenc import Base, Shape, cos_sin, rope_frequencies
from zoo._grid import Grid


class Sinusoidal2d(Grid):
    """scale x [sin(r w_m), cos(r w_m), sin(c w_m), cos(c w_m)], w_m = base^(-4m/C), is added.

    Chen et al. 2021, MoCo v3 (arXiv 2104.02057), in the order of transformers' MAE. r is the row of
    a patch, c its column. They are added to the token embedding; for `scale` see `sinusoidal`.
    Nothing is learned.
    """

    def __init__(self, shape: Shape, *, base: Base = 10000.0, scale: float = 0.1) -> None:
        super().__init__()
        if shape.width % 4 != 0:
            raise UserError(f"sinusoidal2d: 4 must divide n_embd = {shape.width}")
        inv_freq, _ = rope_frequencies(shape.width // 2, base)
        self.register_buffer("inv_freq", inv_freq, persistent=False)
        self.scale = scale

    def embed(self, ids, tokens, total):
        """Scaled sinusoids of rows, then of columns."""
        parts = []
        for place in self.places(ids):
            cos, sin = cos_sin(place, self.inv_freq)
            parts += [sin, cos]
        return self.scale * torch.cat(parts, -1)
