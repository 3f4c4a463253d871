"""Partial key offset: half of each key is that of the token before (modded-nanogpt 2025)."""

import torch

from posenc import Piece, Shape, Share


class KeyOffset(Piece):
    """k_t = [k_t[:n], k_(t-1)[n:]] in each head, n = fraction x D: one layer can then continue a
    pattern, because a key tells of the token before its value.

    Not from a paper: modded-nanogpt (2025, pull request 169), beside rotations that leave the
    shifted columns unturned: `rope(fraction=0.5) + key_offset`. Theirs shifts keys after their
    norm, this before it; the shifted half of the first key is 0, theirs its own.
    """

    mixes = {"k": 2}

    def __init__(self, shape: Shape, *, fraction: Share = 0.5):
        super().__init__()
        self.head_width = shape.turned_width
        self.kept = int(fraction * shape.turned_width)

    def mix(self, rows, place):
        """Keys of all heads (B, T, heads D), each with columns of the one before."""
        now, before = (x.unflatten(-1, (-1, self.head_width)) for x in rows)
        shifted = torch.cat((now[..., : self.kept], before[..., self.kept :]), -1)
        return shifted.flatten(-2)
