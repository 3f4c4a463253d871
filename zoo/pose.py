"""PoSE: train on long positions with short texts (Zhu et al. 2023, arXiv 2309.10400)."""

import torch

from common.errors import UserError
from posenc import Extension, Length, Shape


class Pose(Extension):
    """Fine-tune with L tokens on positions below `target`: two chunks with a random gap in between.

    Zhu et al. 2023 (arXiv 2309.10400). At each step the text is cut at a random place, and the
    second chunk is shifted by a random gap of at most target - L. It is for training only: at test,
    positions do not change. Combine it with a frequency map that has an explicit factor, as in
    `yarn(factor=8) + pose(target=8.0)`, for 8 times the original training length.
    """

    def __init__(self, shape: Shape, *, target: Length) -> None:
        super().__init__()
        if target < shape.first_length:
            raise UserError(
                f"pose: target must be at least the training length {shape.first_length}"
            )
        self.target = target

    def draw(self, length, generator):
        """Positions (length,): the first chunk from 0, the second after the gap."""
        if length > self.target:
            raise UserError(f"pose: {length} tokens have no room below target = {self.target}")
        cut = int(torch.randint(1, max(2, length), (), generator=generator))
        gap = int(torch.randint(0, self.target - length + 1, (), generator=generator))
        index = torch.arange(length)
        return index + gap * (index >= cut)
