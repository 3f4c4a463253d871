"""Attention to the keys with the largest scores alone (Zhao et al. 2019, arXiv 1912.11637)."""

import math

import torch

from common.compiler import largest
from posenc import Length, Piece, Shape


class Topk(Piece):
    """The softmax over the `keys` largest scores of a query; other keys get no weight.

    Zhao et al. 2019 (arXiv 1912.11637). Of equal scores the older keys are kept. Theirs keeps all
    of them, but rounding breaks ties differently in decoding and in one pass. `keys` stays the same
    number in longer texts. Which keys are kept has no gradient. DeepSeek-V3.2 (2025) keeps 2,048
    keys by the cheaper scores of an indexer, which is left out: here all scores are computed. It
    has no positions: combine it, `rope + topk(keys=0.25)`.
    """

    def __init__(self, shape: Shape, *, keys: Length):
        super().__init__()
        self.keys = keys

    def weights(self, scores):
        """(B, H, R, C) from scores (B, H, R, C)."""
        kept = largest(scores.detach(), min(self.keys, scores.shape[-1]))
        return torch.where(kept, scores, -math.inf).softmax(-1)
