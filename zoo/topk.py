"""Attention to the keys with the largest scores alone (Zhao et al. 2019, arXiv 1912.11637)."""

import math

import numpy as np
import torch
from torch import Tensor

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


@torch.library.custom_op("longshot::largest", mutates_args=())
def largest(scores: Tensor, count: int) -> Tensor:
    """True where the `count` largest of each row of scores (..., C) are; of equal ones the first.

    It is not compiled, so that it may look at the numbers.
    """
    on_cpu = scores.device.type == "cpu"
    if on_cpu:  # numpy takes a third of the time of torch's topk
        least = torch.from_numpy(np.partition(scores.numpy(), -count, -1))[..., -count, None]
    else:
        least = scores.topk(count, -1, sorted=False).values.amin(-1, keepdim=True)
    kept = scores >= least
    if on_cpu and kept.sum() == least.numel() * count:  # none are equal
        return kept
    above = scores > least
    room = count - above.sum(-1, keepdim=True, dtype=torch.int32)  # for the equal ones
    return above | (kept & ((kept & ~above).cumsum(-1, dtype=torch.int32) <= room))


largest.register_fake(lambda scores, count: torch.empty_like(scores, dtype=torch.bool))
