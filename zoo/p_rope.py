"""p-RoPE at test time (Barbero et al. 2024, arXiv 2410.06205)."""

import torch

from posenc import Extension, Shape, Share


class PRope(Extension):
    """Keep theta_m for the int(p F) fastest of F pairs, and set it to 0 for the others.

    Barbero et al. 2024 (arXiv 2410.06205). This is rope(p=...) for a model trained without it.
    """

    def __init__(self, shape: Shape, *, p: Share = 0.5) -> None:
        super().__init__()
        self.p = p

    def map_frequencies(self, inv_freq, base, total, ids):
        """The frequencies, 0 from pair int(p F) on; the attention factor is 1."""
        pair = torch.arange(len(inv_freq), device=inv_freq.device)
        return inv_freq * (pair < int(self.p * len(inv_freq))), 1.0
