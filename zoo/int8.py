"""A cache of 8-bit integers (after Dettmers et al. 2022, arXiv 2208.07339)."""

import torch

from posenc import Extension


class Int8(Extension):
    """Keep keys and values as integers of 8 bits, with one scale for each head and token.

    The scale is the largest number of a head's key or value over 127, as in Dettmers et al. 2022
    (arXiv 2208.07339). Tests of whole texts round in the same way. What a scorer keeps beside them
    stays as it is, and a latent has one scale with its turned columns.
    Verdict: 0.53 of the memory of bfloat16 with heads of 32 columns. Of three models trained at 128
    it cost rope and alibi nothing up to 4,096, and nope at most 0.0022 ± 0.0010 nats
    (results/models).
    """

    def pack(self, x):
        """Integers (B, heads, T, D) and scales (B, heads, T, 1)."""
        largest = x.abs().amax(-1, keepdim=True)
        scale = largest.clamp(min=torch.finfo(x.dtype).smallest_normal * 128) / 127
        wide = torch.promote_types(x.dtype, torch.float32)
        return (x.to(wide) / scale.to(wide)).round().clamp(-127, 127).to(torch.int8), scale

    def unpack(self, numbers, scale):
        """The numbers times their scale."""
        return numbers.to(scale.dtype) * scale
