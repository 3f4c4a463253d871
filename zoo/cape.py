"""CAPE: continuous augmented positions (Likhomanenko et al. 2021, arXiv 2106.03143)."""

from typing import Annotated

import torch
from pydantic import Field

from posenc import Base, NonNegativeFloat, Shape, Sinusoidal


class Cape(Sinusoidal):
    """Sinusoids of p' = (p + D + e_p) l in training, and of p at test.

    Likhomanenko et al. 2021 (arXiv 2106.03143). All tokens share D ~ U(-global_shift, global_shift)
    and l, with ln l ~ U(-ln global_scale, ln global_scale); each token has its own e_p ~
    U(-local_shift, local_shift); up to 0.5, the order is kept. Nothing is learned. The defaults are
    those for text in the authors' code (github.com/gcambara/cape). They draw once per sequence;
    here it is once per step. Their options for audio (centred positions, frequency scale) are left
    out. `base` and `scale` are those of `sinusoidal`.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        global_shift: NonNegativeFloat = 5.0,
        local_shift: Annotated[float, Field(ge=0, le=0.5)] = 0.5,
        global_scale: Annotated[float, Field(ge=1)] = 1.03,
        base: Base = 10000.0,
        scale: float = 0.1,
    ) -> None:
        super().__init__(shape, base=base, scale=scale)
        self.global_shift = global_shift
        self.local_shift = local_shift
        self.global_scale = global_scale

    def ids(self, ids, total):
        """Unchanged at test."""
        return ids

    def draw(self, length, generator):
        """Augmented positions (length,), float32."""
        u = 2 * torch.rand(length + 2, generator=generator) - 1
        moved = torch.arange(length) + self.global_shift * u[0] + self.local_shift * u[2:]
        return moved * self.global_scale ** u[1]
