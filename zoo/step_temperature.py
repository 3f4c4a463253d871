"""Llama 4's temperature, which grows in steps (Meta 2025)."""

import torch

from posenc import Length, NonNegativeFloat, Piece, Shape


class StepTemperature(Piece):
    """scores x (1 + scale ln(1 + floor((i + 1) / floor))).

    Not from a paper: Llama 4 (Meta 2025; `attn_scale` and `floor_scale` in transformers) multiplies
    the queries of its layers without positions. i counts from 0, and `floor` defaults to L, the
    original training length; theirs is 8,192. So nothing changes for the first L - 1 queries.
    """

    can_extend = True

    def __init__(
        self, shape: Shape, *, scale: NonNegativeFloat = 0.1, floor: Length | None = None
    ) -> None:
        super().__init__()
        self.scale = scale
        self.floor = floor or shape.first_length

    def temperature(self, index):
        """The factors, (T,)."""
        # in integers: a GPU multiplies by a rounded 1 / floor, so 41 / 41 could be below 1
        steps = (index.long() + 1) // self.floor
        return 1 + self.scale * torch.log1p(steps.to(index.dtype))
