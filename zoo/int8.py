"""An 8-bit integer KV cache (after Dettmers et al. 2022, arXiv 2208.07339)."""

import torch

from posenc import Extension


class Int8(Extension):
    """Store keys and values as 8-bit integers, with one scale per head and token.

    The scale is the largest magnitude in a head's key or value over 127, as in Dettmers et al. 2022
    (arXiv 2208.07339). Tests of whole texts round in the same way. Anything else a scheme caches is
    not rounded, and a latent shares one scale with its rotated columns.
    """

    def pack(self, x):
        """Integers (B, heads, T, D) and scales (B, heads, T, 1)."""
        largest = x.abs().amax(-1, keepdim=True)
        scale = largest.clamp(min=torch.finfo(x.dtype).smallest_normal * 128) / 127
        wide = torch.promote_types(x.dtype, torch.float32)
        return (x.to(wide) / scale.to(wide)).round().clamp(-127, 127).to(torch.int8), scale

    def unpack(self, numbers, scale):
        """The integers times their scale."""
        return numbers.to(scale.dtype) * scale
