"""The optimizers: AdamW, and Muon for the matrices of the blocks; their learning rate."""

import math

import torch
from torch import Tensor, nn

from configurable import TrainSettings
from model import GPT, Fused


class Muon(torch.optim.Muon):
    """torch.optim.Muon with adjust_lr_fn="match_rms_adamw", batched over matrices of one shape.

    Jordan et al. 2024. The scale of Liu et al. 2025 (arXiv 2502.16982) makes updates as large as
    AdamW's. torch orthogonalises one matrix after another, in bfloat16; here all matrices of a
    shape are orthogonalised together, in `dtype`: on some processors float32 is faster.

    `matrices` gives for each parameter the matrices in it, (groups, widths) as in `model.Fused`:
    each of them is orthogonalised by itself.
    """

    def __init__(
        self,
        matrices: dict[Tensor, tuple[int, list[int]]],
        lr: float,
        weight_decay: float,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(list(matrices), lr, weight_decay, adjust_lr_fn="match_rms_adamw")
        self.matrices = matrices
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Take a step: momentum, then for each shape (R, C) one batch of Newton-Schulz steps."""
        for group in self.param_groups:
            lr = group["lr"]
            by_shape: dict[torch.Size, list[tuple[Tensor, Tensor]]] = {}
            for p in group["params"]:
                if p.grad is None:
                    continue
                if p not in self.state:
                    self.state[p]["momentum_buffer"] = torch.zeros_like(p)
                buffer = self.state[p]["momentum_buffer"]
                buffer.lerp_(p.grad, 1 - group["momentum"])
                update = p.grad.lerp_(buffer, group["momentum"])  # Nesterov's
                p.mul_(1 - lr * group["weight_decay"])
                n_groups, widths = self.matrices[p]
                # (groups, rows of a group, C) of each matrix, views
                weights = p.unflatten(0, (n_groups, -1)).split(widths, 1)
                updates = update.unflatten(0, (n_groups, -1)).split(widths, 1)
                for weight, part in zip(weights, updates, strict=True):
                    matrix = part.flatten(0, 1)
                    by_shape.setdefault(matrix.shape, []).append((weight, matrix))
            for shape, pairs in by_shape.items():
                stacked = torch.stack([matrix for _, matrix in pairs]).to(self.dtype)  # (n, R, C)
                directions = orthogonalise(stacked, group["ns_steps"])
                rms = 0.2 * math.sqrt(max(shape))
                for (weight, _), direction in zip(pairs, directions, strict=True):
                    weight.add_(direction.view_as(weight), alpha=-lr * rms)


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


# ---- training


def get_lr(step: int, s: TrainSettings) -> float:
    """The learning rate of a step (counted from 0).

    Linear warm-up over warmup_iters steps, cosine decay to min_lr at lr_decay_iters, then constant.
    """
    if not s.decay_lr:
        return s.highest_lr
    if step < s.warmup:
        return s.highest_lr * (step + 1) / (s.warmup + 1)
    lr_decay_iters = s.lr_decay_iters or s.max_iters
    decay_ratio = min(1.0, (step - s.warmup) / max(1, lr_decay_iters - s.warmup))  # from 0 to 1
    coeff = 0.5 * (1 + math.cos(math.pi * decay_ratio))  # from 1 to 0
    min_lr = s.highest_lr / 20 if s.min_lr is None else s.min_lr
    return min_lr + coeff * (s.highest_lr - min_lr)


def configure_optimizers(
    model: GPT, s: TrainSettings, dtype: torch.dtype | None
) -> list[torch.optim.Optimizer]:
    """AdamW, and Muon for the matrices of the blocks unless optimizer=adamw.

    Weight decay acts on matrices and the token embedding, not on norms, biases or the parameters of
    the position scheme. dtype is that of Muon's matrix products, None for float32.
    """
    fused = {layer.weight: layer.parts for layer in model.modules() if isinstance(layer, Fused)}
    matrices = {}
    decay = []
    no_decay = []
    scheme_params = []
    for name, p in model.named_parameters():
        if name.startswith("pos."):
            scheme_params.append(p)
        elif p.dim() < 2:
            no_decay.append(p)
        elif name.startswith("h.") and s.optimizer == "muon":
            matrices[p] = fused.get(p, (1, [len(p)]))
        else:
            decay.append(p)
    groups = [
        {"params": decay, "weight_decay": s.weight_decay},
        {"params": no_decay, "weight_decay": 0.0},
        {"params": scheme_params, "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, s.highest_lr, (s.beta1, s.beta2), fused=True)
    if s.optimizer == "adamw":
        return [adamw]
    return [adamw, Muon(matrices, s.highest_lr, s.weight_decay, dtype or torch.float32)]


def forget_parameters(optimizer: torch.optim.Optimizer, forgotten: set[nn.Parameter]) -> None:
    """Take parameters out of an optimizer, with what it has summed up for them."""
    for group in optimizer.param_groups:
        group["params"] = [p for p in group["params"] if p not in forgotten]
    for p in forgotten:
        optimizer.state.pop(p, None)
