"""CAPE: continuous augmented positions (Likhomanenko et al. 2021, arXiv 2106.03143)."""

import torch
from torch import Tensor

from configurable import require
from posenc import Shape, Sinusoidal


class Cape(Sinusoidal):
    """Sinusoids of p' = (p + D + e_p) l: D and l shared, e_p per token, in training; of p itself at test.

    D ~ U(-global_shift, global_shift), e_p ~ U(-local_shift, local_shift), ln l ~ U(-ln global_scale, ln global_scale),
    Likhomanenko et al. 2021; defaults are the text recipe of github.com/gcambara/cape, written after the authors' code.
    Nothing is learned. Theirs draws for each sequence, this for each step; centred positions and the frequency scale,
    which they use for audio, are left out. `scale` is Sinusoidal's: tokens here have deviation 0.02, not 1.
    Verdict: sinusoids that know distances better; with shifts this small it gains little far past the training length.
    """

    continuous = True

    def __init__(
        self,
        shape: Shape,
        *,
        global_shift: float = 5.0,
        local_shift: float = 0.5,
        global_scale: float = 1.03,
        base: float = 10000.0,
        scale: float = 0.02,
    ) -> None:
        super().__init__(shape, base=base, scale=scale)
        require(global_shift >= 0, f"cape: global_shift must not be negative, not {global_shift}")
        require(
            0 <= local_shift <= 0.5,
            f"cape: local_shift must lie in [0, 0.5], which keeps the order, not {local_shift}",
        )
        require(global_scale >= 1, f"cape: global_scale must be at least 1, not {global_scale}")
        self.global_shift, self.local_shift, self.global_scale = (
            global_shift,
            local_shift,
            global_scale,
        )

    def ids(self, index: Tensor, total: int) -> Tensor:
        """The index, as it is."""
        return index

    def draw(self, length: int, generator: torch.Generator) -> Tensor:
        """Augmented positions, float32."""
        u = 2 * torch.rand(length + 2, generator=generator) - 1
        return (
            torch.arange(length) + self.global_shift * u[0] + self.local_shift * u[2:]
        ) * self.global_scale ** u[1]
