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
    ends between key and query: both parts are at most 1, so that no decay overflows, and no sum is
    longer than a block. It takes log2(T) times the products of plain attention.
    """

    per_layer = True
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
        """(B, H, R, C), in blocks of 1, 2, 4 ... tokens: if the places of two tokens differ in the
        bit of `size` and in no higher one, they are in neighbouring blocks. `since` are the decays
        from the start of the query's block to the query, `until` those after the key to the end of
        its block.
        """
        n_queries, n_keys = tile.scores.shape[2:]
        width = tile.k.shape[-1]  # d
        logs = tile.features_k.unflatten(-1, (self.n_head, -1)).transpose(1, 2)  # (B, H, C, .)
        q = tile.q / math.sqrt(width)
        differ = tile.rows ^ tile.columns  # (R, C)
        scores = tile.scores  # those of a query and its own key
        size = 1
        while size < n_keys:
            blocks = pad(logs, (0, 0, 0, -n_keys % size)).unflatten(2, (-1, size))
            # from the start of its block to each token, and after each token to the end
            since = blocks.cumsum(3).flatten(2, 3)[:, :, n_keys - n_queries : n_keys]
            after = pad(blocks, (0, 0, 0, 1))[..., 1:, :].flip(3).cumsum(3).flip(3)
            until = after.flatten(2, 3)[:, :, :n_keys]
            k = tile.k * until[..., :width].exp()
            decayed = (q * since[..., :width].exp()) @ k.mT
            if self.scalar:
                decayed = decayed + since[..., width:] + until[..., width:].mT
            scores = torch.where(differ < size, scores, decayed)
            size *= 2
        return scores + tile.added
