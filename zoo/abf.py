"""ABF: adjusted base frequency (Xiong et al. 2023, arXiv 2309.16039)."""

import torch

from posenc import Base, Extension, Shape


class Abf(Extension):
    """theta_m (base / base')^(2m/d): change the base of a trained rotary model to base'.

    Xiong et al. 2023 (arXiv 2309.16039). The option `base` is base'; the paper raises it from
    10,000 to 500,000, the default.
    """

    def __init__(self, shape: Shape, *, base: Base = 500000.0) -> None:
        super().__init__()
        self.base = base

    def map_frequencies(self, inv_freq, base, total, ids):
        """The frequencies under the new base; the attention factor is 1."""
        pairs = torch.arange(len(inv_freq), device=inv_freq.device)
        exponents = pairs.to(inv_freq) / len(inv_freq)
        return inv_freq * (base / self.base) ** exponents, 1.0
