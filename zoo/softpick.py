"""Softpick: a softmax whose weights can be 0 (Zuhri et al. 2025, arXiv 2504.20966)."""

import math

import torch

from posenc import Piece

LEAST = 1e-8  # from the authors' code: rows whose scores are all 0 get weights 0
LN_2 = math.log(2)


class Softpick(Piece):
    """Weights relu(e^z - 1) / sum |e^z - 1| of a query's scores z, in place of the softmax.

    Zuhri et al. 2025 (arXiv 2504.20966). Scores below 0 get no weight but count in the sum, so that
    weights sum to less than 1. Numerator and denominator are divided by e^m, m the largest score of
    the query or 0; the authors' m is the largest score, which overflows if all are below -88.
    Masked keys count in neither, as in the authors' code. 1e-8 is added to the denominator after
    the division, as there. It has no positions: combine it, `rope + softpick`.
    """

    def weights(self, scores):
        """(B, H, R, C) from scores (B, H, R, C)."""
        most = scores.amax(-1, keepdim=True).detach().clamp(min=0.0)
        # 2^(z / ln 2) is e^z: on a CPU `exp` takes many times as long where it underflows
        z = torch.exp2((scores - most) / LN_2) - torch.exp2(-most / LN_2)
        size = torch.where(scores == -math.inf, 0.0, z.abs())
        return torch.relu(z) / (size.sum(-1, keepdim=True) + LEAST)
