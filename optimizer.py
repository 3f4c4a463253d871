"""The optimizers, AdamW, Muon and NorMuon, and the learning rate of a step."""

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

    With beta2 it is NorMuon (Li et al. 2025, arXiv 2510.05491): see `even_rows`.
    """

    def __init__(
        self,
        matrices: dict[Tensor, tuple[int, list[int]]],
        lr: float,
        weight_decay: float,
        dtype: torch.dtype,
        momentum: float = 0.95,
        beta2: float | None = None,
    ) -> None:
        super().__init__(list(matrices), lr, weight_decay, momentum, adjust_lr_fn="match_rms_adamw")
        self.matrices = matrices
        self.dtype = dtype
        self.beta2 = beta2

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Take a step: momentum, then for each shape (R, C) one batch of Newton-Schulz steps."""
        for group in self.param_groups:
            lr = group["lr"]
            # for each shape (weight, mean squares of its rows, update)
            by_shape: dict[torch.Size, list[tuple[Tensor, Tensor, Tensor]]] = {}
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(p)
                    if self.beta2:
                        state["mean_squares"] = torch.zeros_like(p[:, :1])
                buffer = state["momentum_buffer"]
                buffer.lerp_(p.grad, 1 - group["momentum"])
                update = p.grad.lerp_(buffer, group["momentum"])  # Nesterov's
                p.mul_(1 - lr * group["weight_decay"])
                n_groups, widths = self.matrices[p]
                # (groups, rows of a group, C or 1) of each matrix, views
                parts = [
                    x.unflatten(0, (n_groups, -1)).split(widths, 1)
                    for x in (p, state.get("mean_squares", p), update)  # Muon ignores the second
                ]
                for weight, mean_squares, part in zip(*parts, strict=True):
                    matrix = part.flatten(0, 1)
                    by_shape.setdefault(matrix.shape, []).append((weight, mean_squares, matrix))
            for shape, group_of_shape in by_shape.items():
                weights, mean_squares, updates = zip(*group_of_shape, strict=True)
                stacked = torch.stack(updates).to(self.dtype)  # (n, R, C)
                directions = orthogonalise(stacked, group["ns_steps"])
                rms = 0.2 * math.sqrt(max(shape))
                for weight, means, direction in zip(weights, mean_squares, directions, strict=True):
                    if self.beta2:
                        direction = even_rows(direction.to(weight.dtype), means, self.beta2)
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


def even_rows(x: Tensor, mean_squares: Tensor, beta2: float) -> Tensor:
    """A direction x (R, C), each row divided by the root of its mean square over the steps so far,
    then the whole scaled to the size of an orthogonal matrix.

    So no neuron moves more than the others for long (Li et al. 2025). mean_squares, with R numbers,
    is updated; that it starts at 0 makes no difference, because of the scaling.
    """
    mean_squares.lerp_(x.square().mean(1).view_as(mean_squares), 1 - beta2)
    x = x / mean_squares.reshape(-1, 1).sqrt().clamp(min=1e-10)
    return x * (math.sqrt(min(x.shape)) / x.norm().clamp(min=1e-10))


# ---- training


def get_lr(step: int, s: TrainSettings) -> float:
    """The learning rate of a step (counted from 0).

    Linear warm-up over warmup_iters steps, cosine decay to min_lr at lr_decay_iters, then constant.
    """
    if not s.decay_lr:
        return s.highest_lr
    if step < s.warmup:
        return s.highest_lr * (step + 1) / (s.warmup + 1)
    decay_ratio = min(1.0, (step - s.warmup) / max(1, s.decay_end - s.warmup))  # from 0 to 1
    coeff = 0.5 * (1 + math.cos(math.pi * decay_ratio))  # from 1 to 0
    return s.lowest_lr + coeff * (s.highest_lr - s.lowest_lr)


def configure_optimizers(
    model: GPT, s: TrainSettings, dtype: torch.dtype | None
) -> list[torch.optim.Optimizer]:
    """AdamW, and NorMuon or Muon for the matrices of the blocks unless optimizer=adamw.

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
        elif name.startswith("h.") and s.optimizer != "adamw":
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
    how = {"momentum": 0.9, "beta2": 0.95} if s.optimizer == "normuon" else {}
    return [adamw, Muon(matrices, s.highest_lr, s.weight_decay, dtype or torch.float32, **how)]


def forget_parameters(optimizer: torch.optim.Optimizer, forgotten: set[nn.Parameter]) -> None:
    """Take parameters out of an optimizer, with what it has summed up for them."""
    for group in optimizer.param_groups:
        group["params"] = [p for p in group["params"] if p not in forgotten]
    for p in forgotten:
        optimizer.state.pop(p, None)
