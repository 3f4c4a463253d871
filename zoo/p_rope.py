"""p-RoPE at test time: the slow pairs of a trained model are stilled (Barbero et al. 2024, arXiv 2410.06205)."""

from torch import Tensor

from configurable import require
from posenc import Extension, Shape


class PRope(Extension):
    """theta_m kept for the int(p F) fastest of F pairs, 0 for the rest: rope(p=...) for a model that was trained without.

    Verdict: removes the angles that training never met, and what the slow pairs told; a measurement, not a remedy.
    """

    def __init__(self, shape: Shape, *, p: float = 0.5) -> None:
        super().__init__()
        require(0 <= p <= 1, f"p_rope: p must lie in [0, 1], not {p}")
        self.p = p

    def stretch(self, inv_freq: Tensor, base: float, total: int) -> tuple[Tensor, float]:
        """Stilled from pair int(p F) on."""
        keep = inv_freq.new_tensor([n < int(self.p * len(inv_freq)) for n in range(len(inv_freq))])
        return inv_freq * keep, 1.0
