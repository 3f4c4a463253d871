"""DAPE: data-adaptive positional encoding (Zheng et al. 2024, arXiv 2405.14722, 2410.04798)."""

from typing import Literal

import torch
from torch import nn
from torch.nn import functional as F

from posenc import Count, Piece, Shape

CACHED_PAIRS = 2**15  # of a query and a key, whose hidden units a processor's cache can hold


class Dape(Piece):
    """score = S + B + MLP([S; B]): an MLP mixes the 2H numbers of each query-key pair.

    Zheng et al. 2024 (arXiv 2405.14722). S are the scores of all heads, B the sum of the biases of
    the other pieces. Without another bias, B = 0 and only the scores are mixed. S and B are set to
    0 at masked keys. The MLP is 2H -> `hidden` -> H with LeakyReLU 0.01, one per layer. kernel=3 is
    DAPE V2 (arXiv 2410.04798), as in their code: both layers are convolutions along the keys. They
    are padded with zeros before the first key, and by masked keys after the query's own, also at
    the end of a text, where theirs has zeros. Parameters: inner.weight (hidden, 2H kernel),
    inner.bias (hidden,), outer.weight (H, hidden kernel), outer.bias (H,). B is shared by layers.
    In training, 32 hidden units take 32 / H times the memory of the scores.
    """

    per_layer = True

    def __init__(
        self, shape: Shape, *, hidden: Count = 32, kernel: Literal[1, 3, 5, 7] = 1
    ) -> None:
        super().__init__()
        self.kernel = kernel
        self.inner = nn.Linear(2 * shape.n_head * kernel, hidden)
        self.outer = nn.Linear(hidden * kernel, shape.n_head)

    def score(self, tile):
        """(B, H, R, C), of few rows at a time where hidden units are not kept for gradients."""
        rows = tile.rows_at_once(CACHED_PAIRS)
        parts = zip(tile.scores.split(rows, 2), tile.added.split(rows, -2), strict=True)
        return torch.cat([self.mixed(scores, added) for scores, added in parts], 2)

    def mixed(self, scores, added):
        """S + B + MLP([S; B]), (B, H, R, C), from scores S of that shape and B, `added`."""
        seen = added > -torch.inf
        known = torch.where(seen, scores, 0.0)
        bias = torch.where(seen, added, 0.0).expand_as(scores)
        x = torch.cat((known, bias), 1)  # (B, 2H, R, C)
        if self.kernel > 1:
            x = F.pad(x, (0, self.kernel // 2))  # masked keys at the end of a text
        hidden = F.leaky_relu(self.over_keys(x, self.inner), inplace=True)
        return scores + added + self.over_keys(hidden, self.outer)[..., : scores.shape[-1]]

    def over_keys(self, x, layer):
        """The layer as a convolution along the keys: (B, M', R, C) from x (B, M, R, C)."""
        weight = layer.weight.view(len(layer.weight), -1, 1, self.kernel)
        return F.conv2d(x, weight, layer.bias, padding=(0, self.kernel // 2))
