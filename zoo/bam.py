"""BAM: a generalized Gaussian prior over distances (Bianchessi et al. 2025, arXiv 2505.22842)."""

import math

import torch
from torch import nn

from posenc import Piece, Shape

LEAST = 1e-5  # from the authors' code: added to distances, whose exponents may be negative
LARGEST = 15 * math.log(2)  # e^-(2^15) is 0 in every format, and float16 holds 2^15


class Bam(Piece):
    """score += -|(i - j - mu_h) / a_h|^beta_h: the logarithm of a generalized Gaussian.

    Bianchessi et al. 2025, Bayesian attention mechanism (arXiv 2505.22842). As in their code, it is
    computed as -e^alpha (|i - j - mu| + 1e-5)^beta, so that a = e^(-alpha / beta). Parameters:
    alpha (H,) and beta (H,), one set per layer; both start at 0, a uniform prior. If beta becomes
    negative, near keys are suppressed, the query's own most. mu is 0 as in their runs;
    location=True trains it as 2 sinh(mu), from 0. beta = 1 is `alibi(learned=True)`. Biases are
    clamped at -2^15. Their scalable softmax also multiplies the prior by s ln(n); here `ssmax` does
    not.
    """

    per_layer = True
    by_distance = True

    def __init__(
        self, shape: Shape, *, alpha: float = 0.0, beta: float = 0.0, location: bool = False
    ) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.full((shape.n_head,), alpha))
        self.beta = nn.Parameter(torch.full((shape.n_head,), beta))
        self.mu = nn.Parameter(torch.zeros(shape.n_head)) if location else None

    def bias(self, h, i, j):
        """The power of the distance, computed via logarithms to keep gradients finite."""
        distance = i - j
        if self.mu is not None:
            distance = distance - 2 * torch.sinh(self.mu)[h]
        log = self.alpha[h] + self.beta[h] * torch.log(distance.abs() + LEAST)
        return -log.clamp(max=LARGEST).exp()
