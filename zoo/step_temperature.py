"""The temperature of Llama 4 and Ministral 3, which grows in steps (2025)."""

from typing import Literal

import torch

from posenc import Length, NonNegativeFloat, Piece, Shape


class StepTemperature(Piece):
    """scores x (1 + scale ln(1 + floor((i + first) / floor))), i = 0, 1 ...

    Not from a paper: Llama 4 (Meta 2025; `attn_scale` and `floor_scale` in transformers) multiplies
    the queries of its layers without positions, and counts them from `first` = 1. Ministral 3
    (Mistral AI 2025; `llama_4_scaling_beta`) multiplies those of all layers, and counts from 0.
    `floor` defaults to L, the original training length; theirs are 8,192 and 16,384. So nothing
    changes for the first L - first queries.
    """

    can_extend = True

    def __init__(
        self,
        shape: Shape,
        *,
        scale: NonNegativeFloat = 0.1,
        floor: Length | None = None,
        first: Literal[0, 1] = 1,
    ) -> None:
        super().__init__()
        self.scale = scale
        self.floor = floor or shape.first_length
        self.first = first

    def temperature(self, index):
        """The factors, (T,)."""
        # in integers: a GPU multiplies by a rounded 1 / floor, so 41 / 41 could be below 1
        steps = (index.long() + self.first) // self.floor
        return 1 + self.scale * torch.log1p(steps.to(index.dtype))
