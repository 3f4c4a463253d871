"""Axial RoPE for images (Heo et al. 2024, arXiv 2403.13298)."""

import math
from typing import Literal

import torch

from common.errors import UserError
from posenc import Base, Shape, apply_rotary, as_reals, cos_sin, rope_frequencies
from zoo._grid import Grid


class Rope2d(Grid):
    """Rotate the first half of the pairs by row x base^(-4m/d), the second by column x
    base^(-4m/d).

    Heo et al. 2024, RoPE-Axial (arXiv 2403.13298); m = 0 ... d/4 - 1. Pairs are (n, n + d/2).
    coordinates=patch counts rows and columns. coordinates=unit is DINOv3's (Siméoni et al. 2025,
    arXiv 2508.10104): 2 pi times the centre of the patch, in an image from -1 to 1, so that the
    range of angles is the same for all image sizes. Nothing is learned.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        base: Base = 100.0,
        coordinates: Literal["patch", "unit"] = "patch",
    ) -> None:
        super().__init__()
        if shape.turned_width == 0 or shape.turned_width % 4 != 0:
            raise UserError(f"rope2d: 4 must divide the head dimension {shape.turned_width}")
        self.unit = coordinates == "unit"
        inv_freq, _ = rope_frequencies(shape.turned_width // 2, base)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def tables(self, ids, total, maps=()):
        """Cosines and sines for the row, then for the column, (T, d/2) each."""
        rows, columns = self.places(ids)
        if self.unit:
            side = self.side(total)
            rows = 2 * math.pi * ((2 * as_reals(rows) + 1) / side - 1)
            columns = 2 * math.pi * ((2 * as_reals(columns) + 1) / side - 1)
        cos_row, sin_row = cos_sin(rows, self.inv_freq)
        cos_column, sin_column = cos_sin(columns, self.inv_freq)
        return torch.cat((cos_row, cos_column), -1), torch.cat((sin_row, sin_column), -1)

    def turn(self, x, tables, is_key):
        """Rotate queries or keys (B, H, T, d)."""
        return apply_rotary(x, *tables)
