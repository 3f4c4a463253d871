"""1.5-entmax: weights of which many are 0 (Peters et al. 2019, arXiv 1905.05702)."""

import torch

from posenc import Piece


class Entmax15(Piece):
    """Weights (max(z - tau, 0) / 2)^2 of a query's scores z, in place of the softmax; tau makes
    their sum 1.

    Peters et al. 2019 (arXiv 1905.05702). A key whose score is 2 or more below the largest has
    weight 0, so that a longer text need not dilute the weights. They find tau by sorting; here
    Newton's method finds the same tau. ASEntmax (Vasylenko et al. 2025, arXiv 2506.16640) also
    multiplies the scores by a learned factor that grows with the length and depends on the token:
    left out, but `rope + ssmax + entmax15` has one that grows. It has no positions: combine it,
    `rope + entmax15`.
    """

    def weights(self, scores):
        """(B, H, R, C) from scores (B, H, R, C)."""
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return weights_of(scores)
        # a text at a time, so that a processor's cache holds it through the steps
        return torch.cat([weights_of(text) for text in scores.split(1)])


def weights_of(scores):
    """The weights (B, H, R, C) of `Entmax15`."""
    # a query that sees no key has only scores of -inf, and stays there
    most = scores.amax(-1, keepdim=True).detach().clamp(min=torch.finfo(scores.dtype).min)
    z = scores - most  # the largest is 0
    fixed = z.detach()
    tau = torch.full_like(most, -2.0)  # the largest key alone would have all the weight
    # the most that float64 needs: 6 steps for 512 keys, 7 for 4,096, 8 for 65,536
    for _ in range(5 + fixed.shape[-1].bit_length() // 5):
        tau = newton_step(fixed, tau)
    tau = newton_step(z, tau)  # the last step gives tau its gradient
    return ((z - tau).relu_() / 2).square()


def newton_step(z, tau):
    """A step towards the tau (B, H, R, 1) for which max(z - tau, 0) has length 2.

    The length is convex in tau, so that steps from below never go too far.
    """
    excess = (z - tau).relu_()
    length = torch.linalg.vector_norm(excess, dim=-1, keepdim=True)
    total = excess.sum(-1, keepdim=True).clamp(min=1e-30)  # 0 if no key is seen
    return tau + (length - 2) * length / total
