"""Learned attention sinks (gpt-oss, OpenAI 2025)."""

import torch
from torch import nn

from posenc import Piece, Shape


class Sink(Piece):
    """The softmax over [scores, s_h] without its last weight: a head may attend to nothing.

    gpt-oss (OpenAI 2025, arXiv 2508.10925; `sinks` in transformers). Parameter: s (H,), one per
    layer, initialised to 0, where the sink counts as a key with score 0. In transformers it is
    initialised like other weights, normal with standard deviation 0.02.
    """

    per_layer = True

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.s = nn.Parameter(torch.zeros(shape.n_head))

    def weights(self, scores):
        """(B, H, R, C); each row sums to less than 1."""
        sink = self.s[:, None, None].to(scores.dtype).expand(*scores.shape[:-1], 1)
        return torch.cat((scores, sink), -1).softmax(-1)[..., :-1]
