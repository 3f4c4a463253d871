"""Sinusoids whose scale is learned: tried where the puzzle of the loss at L is looked into."""

import torch
from torch import Tensor, nn

from posenc import Piece, Shape, Text, sinusoids


class LearnedScale(Piece):
    """scale x sinusoids, as `sinusoidal`, but the scale is a parameter that starts at `scale`."""

    def __init__(self, shape: Shape, *, scale: float = 0.02) -> None:
        super().__init__()
        self.width = shape.width
        self.scale = nn.Parameter(torch.tensor(scale))

    def embed(self, ids: Tensor, text: Text) -> Tensor:
        """Scaled sinusoids of `ids`."""
        return self.scale * sinusoids(ids, self.width, 10000.0)
