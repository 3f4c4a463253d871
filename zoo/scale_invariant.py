"""Scale-invariant attention (Anson et al. 2025, arXiv 2505.17083)."""

import math

import torch

from common.errors import UserError
from posenc import Piece, PositiveFloat, Shape

ROOT_E = math.exp(0.5)


class ScaleInvariant(Piece):
    """score = a_t S + m_t, a_t^2 = 2 (ln(t / tau + 1) - ln alpha + beta / alpha), t = i - j.

    Anson et al. 2025 (arXiv 2505.17083). m_t = beta / alpha - a_t^2. If S had mean 0 and variance
    1, keys between n and 10 n tokens back would weigh the same for every large n. With alpha = beta
    = e^0.5, as published, a_0 = 1 and m_0 = 0. Nothing is learned. The paper normalises q and k,
    which gives S that mean and variance, and combines the scheme with p-RoPE. Here S = q.k /
    sqrt(d) is not normalised. Biases of other pieces are added afterwards.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        tau: PositiveFloat = 10.0,
        alpha: PositiveFloat = ROOT_E,
        beta: float = ROOT_E,
    ) -> None:
        super().__init__()
        if beta < alpha * math.log(alpha):
            raise UserError(f"scale_invariant: beta must be at least alpha ln(alpha), not {beta}")
        self.tau = tau
        self.alpha = alpha
        self.beta = beta

    def score(self, tile):
        """(B, H, R, C)."""
        distance = torch.log1p((tile.i - tile.j) / self.tau)
        squared = 2 * (distance - math.log(self.alpha) + self.beta / self.alpha)
        return squared.sqrt() * tile.scores + self.beta / self.alpha - squared + tile.added
