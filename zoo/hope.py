"""High-frequency RoPE: HoPE (Chen et al. 2024, arXiv 2410.21216)."""

import math

from posenc import Base, Rope, Shape


class Hope(Rope):
    """rope without the pairs that do not complete a turn within L: theta_m < 2 pi / L becomes 0.

    Chen et al. 2024 (arXiv 2410.21216), implemented here after public code. Pairs that are not
    rotated compare content only. It is rope(p=...) with p determined by L.
    """

    def __init__(self, shape: Shape, *, base: Base = 10000.0) -> None:
        super().__init__(shape, base=base)
        self.inv_freq[self.inv_freq < 2 * math.pi / shape.first_length] = 0.0
