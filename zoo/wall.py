"""Wall attention: a decay for each channel (Tilde Research 2026)."""

import math

import torch
from torch import nn
from torch.nn.functional import logsigmoid, pad

from posenc import Piece, Shape


class Wall(Piece):
    """score = (sum over n of q_in k_jn f_(j+1)n ... f_in) / sqrt(d), with f_t = sigmoid(W x_t + b).

    Not from a paper: Tilde Research 2026, and its code in flash-linear-attention (ops/wall_attn).
    Each channel n of each head has its own decay, computed from the layer's normalised input x_t.
    Parameters, one set per layer: gate.weight W (H d, C), normal with standard deviation 0.02, and
    gate.bias b (H d,), initialised to `start`, so that hardly anything decays at first. scalar=True
    adds the logarithms of one more decay per head to the score, as `fox` does; W and b then have
    d + 1 rows for each head. Theirs has no rotation; here it can be combined with one.
    A product of decays is the exponential of a sum of logarithms, split where a block of tokens
    ends between key and query: both parts are at most 1, so that no decay overflows, and nothing
    is subtracted. Keys before a block of queries are one block.
    """

    per_layer = True
    reads_scores = False
    conflicts = ("pope", "latent attention")  # there is a decay for each column of a head

    def __init__(self, shape: Shape, *, start: float = 8.0, scalar: bool = False):
        super().__init__()
        self.n_head = shape.n_head
        self.scalar = scalar
        self.gate = nn.Linear(shape.width, shape.n_head * (shape.turned_width + scalar))
        nn.init.normal_(self.gate.weight, std=0.02)
        nn.init.constant_(self.gate.bias, start)

    def features(self, x):
        """ln f, (B, T, H d or H (d + 1)), from the input x (B, T, C)."""
        return logsigmoid(self.gate(x))

    def score(self, tile):
        """(B, H, R, C). `since` are the decays from the start of the query's block to the query,
        `until` those after the key to the end of its block.
        """
        n_queries = tile.q.shape[2]
        first = tile.k.shape[2] - n_queries  # the first query
        width = tile.k.shape[-1]  # d
        logs = tile.features_k.unflatten(-1, (self.n_head, -1)).transpose(1, 2)  # (B, H, C, .)
        q = tile.q / math.sqrt(width)

        def decayed(q, since, k, until):
            scores = (q * since[..., :width].exp()) @ (k * until[..., :width].exp()).mT
            if self.scalar:
                scores = scores + since[..., width:] + until[..., width:].mT
            return scores

        # the queries and the keys of the same tokens, filled up to a power of two: blocks of one
        # token, of which two neighbours become one until there is one
        n_more = (1 << (n_queries - 1).bit_length()) - n_queries
        own_q, own_k, since = (
            pad(x, (0, 0, 0, n_more)) for x in (q, tile.k[:, :, first:], logs[:, :, first:])
        )
        until = torch.zeros_like(since)
        scores = (own_q * own_k).sum(-1)[..., None, None]  # (B, H, blocks, size, size)
        while scores.shape[2] > 1:
            halves = (-1, 2, scores.shape[-1])
            q_1 = own_q.unflatten(2, halves)[:, :, :, 1]  # (B, H, blocks / 2, size, d)
            k_0 = own_k.unflatten(2, halves)[:, :, :, 0]
            since_0, since_1 = since.unflatten(2, halves).unbind(3)
            until_0, until_1 = until.unflatten(2, halves).unbind(3)
            scores_0, scores_1 = scores.unflatten(2, (-1, 2)).unbind(3)
            crossed = decayed(q_1, since_1, k_0, until_0)
            left = torch.cat((scores_0, crossed), -2)
            right = pad(scores_1, (0, 0, scores.shape[-1], 0))  # a query does not see later keys
            scores = torch.cat((left, right), -1)
            until = torch.cat((until_0 + since_1[..., -1:, :], until_1), -2).flatten(2, 3)
            since = torch.cat((since_0, since_1 + since_0[..., -1:, :]), -2).flatten(2, 3)
        scores = scores[:, :, 0, :n_queries, :n_queries]
        if first > 0:
            until = pad(logs[:, :, 1:first].flip(2).cumsum(2).flip(2), (0, 0, 0, 1))
            earlier = decayed(q, since[:, :, :n_queries], tile.k[:, :, :first], until)
            scores = torch.cat((earlier, scores), -1)
        return scores + tile.added
