"""A short causal convolution of each column, with a residual, at some places of a layer."""

import math
from collections.abc import Sequence

import torch
from torch import nn

from posenc import Piece, Shape


class Taps(Piece):
    """x_t + w_0 x_t + w_1 x_(t-1) + ... at each of `places`, column by column.

    Parameters: w, for each place (taps, W), one set per layer; they start as those of PyTorch's
    convolutions do, uniform up to 1 / sqrt(taps).
    """

    per_layer = True

    def __init__(self, shape: Shape, places: Sequence[str], taps: int):
        super().__init__()
        self.mixes = dict.fromkeys(places, taps)
        self.w = nn.ParameterDict()
        for place in places:
            w = torch.empty(taps, shape.width_at(place))
            self.w[place] = nn.Parameter(w.uniform_(-1, 1) / math.sqrt(taps))

    def mix(self, rows, place):
        """The vectors with the weighted sum of theirs and of those before, (B, T, W)."""
        return rows[0] + sum(w * x for w, x in zip(self.w[place], rows, strict=True))
