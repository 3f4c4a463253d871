"""Axial RoPE for images (Heo et al. 2024, arXiv 2403.13298)."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from configurable import require
from posenc import (
    Grid,
    Piece,
    Shape,
    Turn,
    cos_sin,
    exact_device,
    once,
    rope_frequencies,
    turn,
    widened,
)


class Rope2d(Grid):
    """Turn the first half of the pairs by row x base^(-4m/d), the second by column x base^(-4m/d).

    Heo et al. 2024, RoPE-Axial (arXiv 2403.13298); m = 0 ... d/4 - 1. Pairs are (n, n + d/2).
    coordinates=patch counts rows and columns. coordinates=unit is DINOv3's (Siméoni et al. 2025,
    arXiv 2508.10104): 2 pi times the centre of the patch, where the image reaches from -1 to 1, so
    that an image of any side has the same range of angles. Nothing is learned.
    Verdict: Heo et al. 2024 report that it keeps its precision at higher resolutions, and more so
    with frequencies that are learned for both axes together.
    """

    def __init__(self, shape: Shape, *, base: float = 100.0, coordinates: str = "patch") -> None:
        super().__init__()
        fits = shape.head_dim > 0 and shape.head_dim % 4 == 0
        require(fits, f"rope2d needs a head dimension that 4 divides, not {shape.head_dim}")
        require(base >= 1, f"rope2d: base must be at least 1, not {base}")
        known = coordinates in ("patch", "unit")
        require(known, f"rope2d: coordinates is patch or unit, not {coordinates}")
        self.half, self.base, self.unit = shape.head_dim // 2, base, coordinates == "unit"

    def turn(self, ids: Tensor, total: int, maps: Sequence[Piece] = ()) -> tuple[Turn, Turn]:
        """Queries and keys alike; the tables are made here, once per forward."""
        inv_freq, _ = once(rope_frequencies, exact_device(ids), self.half, self.base)
        places, side = self.places(ids), self.side(total)
        if self.unit:
            places = [2 * math.pi * ((2 * widened(p) + 1) / side - 1) for p in places]
        tables = [cos_sin(place, inv_freq) for place in places]
        cos, sin = (torch.cat(table, -1) for table in zip(*tables, strict=True))
        if ids.dim() == 2:  # (B, T, F) -> (B, 1, T, F)
            cos, sin = cos[:, None], sin[:, None]

        def turned(x: Tensor) -> Tensor:
            return turn(x, cos, sin, "half")

        return turned, turned
