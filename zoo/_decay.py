"""The base class of fox and bipe. Files that start with _ are not schemes."""

import torch
from torch import nn

from posenc import Piece

COLUMNS = 8  # added to q and k: kernels want widths divisible by 8
PARTS = 3  # bfloat16 numbers hold one float32
LARGE = 64.0  # a power of two, exact in every dtype, to keep sums within float16


class Decay(Piece):
    """score += c_i - c_j, where c are the sums of the features (B, S, H) up to each token."""

    def along(self, q, k, features, scale):
        """q (B, H, T, D) and k (B, H, S, D) with 8 more columns, whose product adds c_i - c_j to
        the scores q.k x scale.
        """
        sums = features.mT.cumsum(-1)[..., None] / (scale * LARGE)  # (B, H, S, 1)
        one = k.new_full((*k.shape[:-1], PARTS), LARGE)
        new = slice(k.shape[-2] - q.shape[-2], None)
        padding = (0, COLUMNS - 2 * PARTS)
        q = torch.cat((q, split(sums[..., new, :]), one[..., new, :]), -1)
        k = torch.cat((k, one, split(-sums)), -1)
        return nn.functional.pad(q, padding), nn.functional.pad(k, padding)


def split(x):
    """(..., PARTS) columns of 8 bits each whose sum is x (..., 1), so that bfloat16 rounds nothing.

    The gradient reaches x through the last column alone: all three meet the same column of k. Bits
    are cut off as integers: compilers remove a cast to bfloat16 and back, and on a GPU they fuse
    the product and the difference of Veltkamp's splitting, which then splits nothing.
    """
    parts = []
    for _ in range(PARTS - 1):
        bits = x.detach().float().view(torch.int32)
        high = (bits & -(2**16)).view(torch.float32).to(x.dtype)
        parts.append(high)
        x = x - high
    return torch.cat((*parts, x), -1)
