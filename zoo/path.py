"""PaTH: positions by accumulated Householder-like products (Yang et al. 2025, arXiv 2505.16381)."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from configurable import require
from posenc import Block, Piece, Shape

CHUNK = 64  # keys whose matrices are multiplied at once: the work is T^2 (d + CHUNK)


class Path(Piece):
    """score = q_i^T M_i M_(i-1) ... M_(j+1) k_j / sqrt(d), M_t = 1 - b_t w_t w_t^T, made from the layer's normalised input.

    w_t = silu(a causal convolution over 3 tokens of V U x_t), of length 1 in each head; b_t = 2 sigmoid(beta x_t), one for
    each head. Parameters, one set for each layer: down.weight U (rank, C), up.weight V (C, rank), conv.weight (C, 1, 3),
    beta.weight (H, C), beta.bias (H,): normal with deviation 0.02, 0, and torch's own start of a convolution. The cache
    keeps V U x_t, so that a new token finds what the convolution needs. Products are formed by chunks of keys from the query
    backwards, each through (1 + the strictly lower part of b W W^T)^-1. A bias can be added; `fox` cannot, as both claim
    the whole score.
    Verdict: tracks state that rope cannot (permutations, flip-flops); a plain form without its kernel, hence slow.
    """

    per_layer, reads_ids = True, False
    apart = ("pope", "xpos")  # the matrices mix columns that these scale apart, or double

    def __init__(self, shape: Shape, *, rank: int = 32) -> None:
        super().__init__()
        require(rank > 0, f"path: rank must be positive, not {rank}")
        c, self.n_head = shape.width, shape.n_head
        self.down, self.up = nn.Linear(c, rank, bias=False), nn.Linear(rank, c, bias=False)
        self.conv, self.beta = nn.Conv1d(c, c, 3, groups=c, bias=False), nn.Linear(c, shape.n_head)
        for linear in (self.down, self.up, self.beta):
            nn.init.normal_(linear.weight, std=0.02)
        nn.init.zeros_(self.beta.bias)

    def features(self, x: Tensor) -> Tensor:
        """V U x and beta x, (B, T, C + H)."""
        return torch.cat((self.up(self.down(x)), self.beta(x)), -1)

    def reflections(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """w (B, H, S, D) and b (B, H, S, 1) of features (B, S, C + H)."""
        w, beta = features.mT.split((features.shape[-1] - self.n_head, self.n_head), 1)
        w = F.silu(F.conv1d(F.pad(w, (2, 0)), self.conv.weight.to(w.dtype), groups=w.shape[1]))
        return F.normalize(w.unflatten(1, (self.n_head, -1)), dim=2).mT, 2 * torch.sigmoid(beta)[
            ..., None
        ]

    def score(self, block: Block) -> Tensor:
        """Chunks of keys from the last to the first; q has passed the matrices of all tokens behind the chunk."""
        (w, b), q, found = self.reflections(block.features_k), block.q, []
        for a in reversed(range(0, w.shape[2], CHUNK)):
            part = slice(a, a + CHUNK)
            w_, b_, k_ = (t[:, :, part] for t in (w, b, block.k))
            y = (q @ w_.mT).masked_fill(
                block.columns[..., part] > block.rows, 0.0
            )  # (B, H, R, chunk)
            y = (
                torch.linalg.solve_triangular(
                    b_ * (w_ @ w_.mT), y, upper=False, left=False, unitriangular=True
                )
                * b_.mT
            )
            found.append(q @ k_.mT - y @ (w_ @ k_.mT).tril(-1))
            q = q - y @ w_
        return torch.cat(found[::-1], -1) / math.sqrt(q.shape[-1]) + block.added
