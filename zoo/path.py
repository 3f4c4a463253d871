"""PaTH: positions by accumulated Householder-like products (Yang et al. 2025, arXiv 2505.16381)."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from common.errors import UserError
from posenc import Count, Piece, Shape

CHUNK = 32  # tokens whose matrices are multiplied at once


class Path(Piece):
    """score = q_i^T M_i M_(i-1) ... M_(j+1) k_j / sqrt(d), with M_t = 1 - b_t w_t w_t^T.

    Yang et al. 2025 (arXiv 2505.16381). M_t is computed from the layer's normalised input x_t: w_t
    = silu(a causal convolution over 3 tokens of V U x_t), normalised per head, and b_t = 2
    sigmoid(beta x_t), one per head. Parameters, one set per layer: down.weight U (rank, C),
    up.weight V (C, rank), beta.weight (H, C), all normal with standard deviation 0.02, beta.bias
    (H,), initialised to 0, and conv.weight (C, 1, 3), with torch's default initialisation. The
    cache keeps V U x_t because the convolution of a new token needs it. The product of the matrices
    of a chunk of tokens is computed once, via (1 + the strictly lower part of b W W^T)^-1, and
    takes keys past the chunk. A bias can be added. `fox` cannot be combined with it: both compute
    the whole score.
    """

    per_layer = True
    reads_scores = False
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
        """(B, H, R, C), in chunks of tokens. The first and the last may be filled up with zeros:
        where w = 0, the matrix is 1.
        """
        n_queries, width = tile.q.shape[2:]
        n_keys = tile.k.shape[2]
        front = (n_queries - n_keys) % CHUNK  # zeros, so that a chunk starts at the first query
        w, b = self.vectors(tile.features_k)
        w, b, k = (in_chunks(x, front) for x in (w, b, tile.k))  # (B, H, chunks, CHUNK, D or 1)
        q = in_chunks(tile.q / math.sqrt(width), 0)
        first = k.shape[2] - q.shape[2]  # the first chunk with queries

        # In a chunk, M_C ... M_1 x = x - W^T y with y_t = b_t w_t^T M_(t-1) ... M_1 x, so that
        # (1 + the strictly lower part of b W W^T) y = b W x
        unit = torch.eye(CHUNK, dtype=w.dtype, device=w.device).expand(*b.shape[:-1], CHUNK)
        solved = torch.linalg.solve_triangular(
            b * (w @ w.mT), unit, upper=False, unitriangular=True
        )
        solved = solved * b.mT  # y = solved W x
        wk = (w @ k.mT).tril(-1)  # a key meets the matrices of later tokens alone
        unit = torch.eye(width, dtype=w.dtype, device=w.device)
        matrices = unit - w.mT @ (solved @ w)  # M_C ... M_1 of each chunk, (B, H, chunks, D, D)

        # a query is multiplied by the matrices of its chunk up to its own, a key by those after it
        y = (q @ w[:, :, first:].mT).tril() @ solved[:, :, first:]
        inside = q @ k[:, :, first:].mT - y @ wk[:, :, first:]  # scores in a chunk
        q = (q - y @ w[:, :, first:]).flatten(2, 3)
        k = k - (solved @ wk).mT @ w

        # keys of the chunks with queries, from the last one, with the queries after them
        scores = []
        for n in reversed(range(inside.shape[2])):
            start = n * CHUNK
            stop = start + CHUNK
            later = q[:, :, stop:]
            column = torch.cat((inside[:, :, n], later @ k[:, :, first + n].mT), 2)
            scores.append(F.pad(column, (0, 0, start, 0)))
            q = torch.cat((q[:, :, :stop], later @ matrices[:, :, first + n]), 2)
        # all earlier keys, multiplied by the matrices of the chunks after theirs
        if first > 0:
            products = [unit.expand_as(matrices[:, :, 0])]
            for n in reversed(range(1, first)):
                products.append(products[-1] @ matrices[:, :, n])
            k = k[:, :, :first] @ torch.stack(products[::-1], 2).mT
            scores.append(q @ k.flatten(2, 3).mT)
        scores = torch.cat(scores[::-1], -1)
        return scores[:, :, :n_queries, front : front + n_keys].add_(tile.added)

    def vectors(self, features):
        """w (B, H, C, D) and b (B, H, C, 1) of the tokens, from their features (B, C, H D + H)."""
        rows, beta = F.pad(features, (0, 0, 2, 0)).tensor_split([-self.n_head], -1)
        # (3, H D), the last one of the token itself
        taps = self.conv.weight[:, 0].T.to(features.dtype)
        w = F.silu(rows[:, :-2] * taps[0] + rows[:, 1:-1] * taps[1] + rows[:, 2:] * taps[2])
        w = F.normalize(w.unflatten(-1, (self.n_head, -1)), dim=-1).transpose(1, 2)
        return w, 2 * torch.sigmoid(beta[:, 2:]).mT[..., None]


def in_chunks(x, front):
    """x (B, H, T, D) as (B, H, chunks, CHUNK, D), with `front` zeros before it."""
    back = -(front + x.shape[2]) % CHUNK
    # contiguous, else each product would copy what is not padded
    return F.pad(x, (0, 0, front, back)).contiguous().unflatten(2, (-1, CHUNK))
