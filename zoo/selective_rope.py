"""Selective RoPE: angles accumulated from the input (Movahedi et al. 2025, arXiv 2511.17388)."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, linear, normalize, pad

from common.errors import UserError
from posenc import Base, Count, Piece, Shape, apply_rotary, rope_frequencies


class SelectiveRope(Piece):
    """Rotate pair m of q and k at token t by base^(-2m/d) (step_0 + ... + step_t), learned steps.

    Movahedi et al. 2025 (arXiv 2511.17388), as in their code for language models. step = a causal
    convolution over `taps` tokens of up down x^, where x^ is the layer's normalised input with each
    head's slice scaled to unit length. Parameters, one set per layer: down (rank, C), up (H d/2,
    rank), taps (H d/2, 1, taps), initialised like PyTorch's linear layers and convolutions. Their
    gate and bias, off by default, are left out. Position ids are not used.
    """

    per_layer = True
    # it rotates pairs of a head's columns, which pope doubles and xpos scales differently
    conflicts = ("pope", "xpos", "latent attention")

    def __init__(
        self, shape: Shape, *, base: Base = 500000.0, rank: Count = 32, taps: Count = 4
    ) -> None:
        super().__init__()
        if shape.width % shape.n_head != 0:
            raise UserError(
                f"selective_rope: n_head = {shape.n_head} does not divide n_embd = {shape.width}"
            )
        self.n_head = shape.n_head
        inv_freq, _ = rope_frequencies(shape.turned_width, base)
        self.register_buffer("inv_freq", inv_freq, persistent=False)
        pairs = shape.n_head * shape.turned_width // 2
        self.down = nn.Parameter(uniform(rank, shape.width))
        self.up = nn.Parameter(uniform(pairs, rank))
        self.taps = nn.Parameter(uniform(pairs, 1, taps))

    def features(self, x):
        """up down x^ (B, T, H d/2) from the input x (B, T, C)."""
        x = normalize(x.unflatten(-1, (self.n_head, -1)), dim=-1).flatten(-2)
        return linear(linear(x, self.down), self.up)

    def along(self, q, k, features, scale):
        """q and k, rotated by the angles summed up to each token."""
        taps = self.taps.to(features.dtype)
        steps = pad(features.mT, (taps.shape[-1] - 1, 0))  # (B, H F, S + taps - 1)
        steps = conv1d(steps, taps, groups=len(taps))
        sums = steps.cumsum(-1).unflatten(1, (self.n_head, -1)).mT  # (B, H, S, F)
        angles = sums * self.inv_freq.to(sums.dtype)
        cos = angles.cos()
        sin = angles.sin()
        new = slice(k.shape[-2] - q.shape[-2], None)
        return apply_rotary(q, cos[..., new, :], sin[..., new, :]), apply_rotary(k, cos, sin)


def uniform(*size: int) -> Tensor:
    """PyTorch's initialisation of linear layers and convolutions."""
    return torch.empty(size).uniform_(-1, 1) / math.sqrt(size[-1])
