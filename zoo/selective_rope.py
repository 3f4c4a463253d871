"""Selective RoPE: angles accumulated from the input (Movahedi et al. 2025, arXiv 2511.17388)."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, linear, normalize, pad

from configurable import require
from posenc import Piece, Shape, constant, rope_frequencies, turn


class SelectiveRope(Piece):
    """Turn pair m of q and k at token t by base^(-2m/d) (step_0 + ... + step_t), learned steps.

    Movahedi et al. 2025 (arXiv 2511.17388), as their code trains language models. step = a causal
    convolution over `taps` tokens of up down x^, where x^ is the layer's normalised input with
    each head's slice scaled to length 1. Parameters, one set per layer: down (rank, C), up
    (H d/2, rank), taps (H d/2, 1, taps), started as PyTorch starts linear layers and convolutions.
    Their gate and bias, off by default, are left out. Position ids are not read.
    Verdict: arXiv 2606.24975 finds that such summed angles work farther past L than RoPE, and then
    get worse too.
    """

    per_layer, reads_ids, by_head = True, False, True
    # it turns pairs of a head's own columns, which pope doubles and xpos scales differently
    conflicts = ("pope", "xpos")

    def __init__(
        self, shape: Shape, *, base: float = 500000.0, rank: int = 32, taps: int = 4
    ) -> None:
        super().__init__()
        require(
            base >= 1 and rank > 0 and taps > 0,
            f"selective_rope: base, rank and taps must be at least 1, not {base}, {rank}, {taps}",
        )
        slices = f"n_embd = {shape.width} cannot be divided by n_head = {shape.n_head}"
        require(shape.width % shape.n_head == 0, f"selective_rope: {slices}; change one of them")
        self.heads = shape.n_head
        self.frequencies_of_pairs = rope_frequencies(shape.head_dim, base)[0].tolist()
        steps = shape.n_head * shape.head_dim // 2
        self.down, self.up, self.taps = (
            nn.Parameter(torch.empty(size).uniform_(-1, 1) / math.sqrt(size[-1]))
            for size in ((rank, shape.width), (steps, rank), (steps, 1, taps))
        )

    def features(self, x: Tensor) -> Tensor:
        """up down x^ (B, T, H d/2), float32 or wider, of the input x (B, T, C)."""
        wide = torch.promote_types(self.up.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            x = normalize(x.to(wide).unflatten(-1, (self.heads, -1)), dim=-1).flatten(-2)
            return linear(linear(x, self.down.to(wide)), self.up.to(wide))

    def along(self, q: Tensor, k: Tensor, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q and k turned by the angles summed up to each token."""
        steps, taps = features.mT, self.taps.to(features.dtype)  # (B, H F, S)
        steps = conv1d(pad(steps, (taps.shape[-1] - 1, 0)), taps, groups=len(taps))
        sums = steps.cumsum(-1).unflatten(1, (self.heads, -1)).mT  # (B, H, S, F)
        angles = sums * constant(self.frequencies_of_pairs, steps)
        cos, sin = angles.cos(), angles.sin()
        last = slice(k.shape[-2] - q.shape[-2], None)
        q = turn(q, cos[..., last, :], sin[..., last, :], "half")
        return q, turn(k, cos, sin, "half"), features
