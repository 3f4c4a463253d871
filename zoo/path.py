"""PaTH: positions by accumulated Householder-like products (Yang et al. 2025, arXiv 2505.16381)."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from common.errors import UserError
from posenc import Count, Piece, Shape

CHUNK = 64  # keys whose matrices are multiplied at once: the cost is T^2 (d + CHUNK)


class Path(Piece):
    """score = q_i^T M_i M_(i-1) ... M_(j+1) k_j / sqrt(d), with M_t = 1 - b_t w_t w_t^T.

    Yang et al. 2025 (arXiv 2505.16381). M_t is computed from the layer's normalised input x_t: w_t
    = silu(a causal convolution over 3 tokens of V U x_t), normalised per head, and b_t = 2
    sigmoid(beta x_t), one per head. Parameters, one set per layer: down.weight U (rank, C),
    up.weight V (C, rank), beta.weight (H, C), all normal with standard deviation 0.02, beta.bias
    (H,), initialised to 0, and conv.weight (C, 1, 3), with torch's default initialisation. The
    cache keeps V U x_t because the convolution of a new token needs it. Products are computed in
    chunks of keys from the query backwards, each via (1 + the strictly lower part of b W W^T)^-1. A
    bias can be added. `fox` cannot be combined with it: both compute the whole score.
    """

    per_layer = True
    # the matrices mix columns, which pope doubles and xpos scales differently
    conflicts = ("pope", "xpos", "latent attention")

    def __init__(self, shape: Shape, *, rank: Count = 32) -> None:
        super().__init__()
        width = shape.n_head * shape.turned_width
        self.n_head = shape.n_head
        if width == 0:
            raise UserError("path needs columns of heads: with kv_lora_rank, set qk_rope_head_dim")
        self.down = nn.Linear(shape.width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=False)
        self.conv = nn.Conv1d(width, width, 3, groups=width, bias=False)
        self.beta = nn.Linear(shape.width, shape.n_head)
        for linear in (self.down, self.up, self.beta):
            nn.init.normal_(linear.weight, std=0.02)
        nn.init.zeros_(self.beta.bias)

    def features(self, x):
        """V U x and beta x, (B, T, C + H), from the input x (B, T, C)."""
        return torch.cat((self.up(self.down(x)), self.beta(x)), -1)

    def score(self, tile):
        """(B, H, R, C), in chunks of keys, from the last chunk to the first.

        When a chunk is reached, q has been multiplied by the matrices of all later tokens.
        """
        features = tile.features_k.mT  # (B, C + H, S)
        w = features[:, : -self.n_head]
        beta = features[:, -self.n_head :]
        w = F.silu(F.conv1d(F.pad(w, (2, 0)), self.conv.weight.to(w.dtype), groups=w.shape[1]))
        w = F.normalize(w.unflatten(1, (self.n_head, -1)), dim=2).mT  # (B, H, S, D)
        b = 2 * torch.sigmoid(beta)[..., None]  # (B, H, S, 1)
        q = tile.q
        chunks = []
        for start in reversed(range(0, w.shape[2], CHUNK)):
            part = slice(start, start + CHUNK)
            w_ = w[:, :, part]
            b_ = b[:, :, part]
            k_ = tile.k[:, :, part]
            ahead = tile.columns[..., part] > tile.rows
            y = (q @ w_.mT).masked_fill(ahead, 0.0)  # (B, H, R, chunk)
            matrix = b_ * (w_ @ w_.mT)
            y = torch.linalg.solve_triangular(
                matrix, y, upper=False, left=False, unitriangular=True
            )
            y = y * b_.mT
            chunks.append(q @ k_.mT - y @ (w_ @ k_.mT).tril(-1))
            q = q - y @ w_
        return torch.cat(chunks[::-1], -1) / math.sqrt(q.shape[-1]) + tile.added
