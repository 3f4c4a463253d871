"""Muon, for the matrices of the blocks: it reaches AdamW's loss in about half the steps."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor


class Muon(torch.optim.Muon):
    """torch.optim.Muon with adjust_lr_fn="match_rms_adamw", batched over matrices of one shape.

    Jordan et al. 2024. The scale of Liu et al. 2025 (arXiv 2502.16982) makes updates as large as
    AdamW's. torch orthogonalises one matrix after another, in bfloat16; here all matrices of a
    shape are orthogonalised together, in `dtype`: on some processors float32 is faster.
    """

    def __init__(
        self, params: Iterable[Tensor], lr: float, weight_decay: float, dtype: torch.dtype
    ) -> None:
        super().__init__(params, lr, weight_decay, adjust_lr_fn="match_rms_adamw")
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Take a step: momentum, then for each shape (R, C) one batch of Newton-Schulz steps."""
        for group in self.param_groups:
            lr = group["lr"]
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    by_shape.setdefault(p.shape, []).append(p)
            for shape, params in by_shape.items():
                updates = []
                for p in params:
                    if p not in self.state:
                        self.state[p]["momentum_buffer"] = torch.zeros_like(p)
                    buffer = self.state[p]["momentum_buffer"]
                    buffer.lerp_(p.grad, 1 - group["momentum"])
                    updates.append(p.grad.lerp(buffer, group["momentum"]))  # Nesterov's
                update = orthogonalise(torch.stack(updates).to(self.dtype), group["ns_steps"])
                rms = 0.2 * math.sqrt(max(shape))
                for p, matrix in zip(params, update, strict=True):
                    p.mul_(1 - lr * group["weight_decay"])
                    p.add_(matrix, alpha=-lr * rms)


def orthogonalise(x: Tensor, steps: int) -> Tensor:
    """Matrices x (n, R, C) with their singular values replaced by ones near 1 (Jordan et al. 2024).

    The coefficients of the quintic are theirs: small singular values grow fast, and all end between
    about 0.7 and 1.2.
    """
    if x.shape[1] > x.shape[2]:
        return orthogonalise(x.mT, steps).mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=-4.7750, alpha=2.0315)
        x = torch.baddbmm(x, polynomial, x, beta=3.4445)
    return x
