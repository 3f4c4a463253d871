"""A learned vector for each patch of an image (Dosovitskiy et al. 2020, arXiv 2010.11929)."""

from typing import Literal

import torch
from torch import nn

from posenc import Shape, init_std
from zoo._grid import Grid


class Learned2d(Grid):
    """table[row, column] is added to the token embedding, for images of side S in training.

    Dosovitskiy et al. 2020, ViT (arXiv 2010.11929). Parameter: table (S, S, C), S = isqrt(L). For
    other image sizes the table is resized, as in the paper: `resize` = bicubic, as in transformers'
    ViT, or bilinear. Patches below the square use the vectors of its last row.
    """

    def __init__(self, shape: Shape, *, resize: Literal["bicubic", "bilinear"] = "bicubic") -> None:
        super().__init__()
        self.resize = resize
        side = self.side(shape.first_length)
        table = torch.randn(side, side, shape.width) * init_std(shape.width)
        self.table = nn.Parameter(table)

    def embed(self, ids, tokens, total):
        """The vectors of the patches, from the table resized to the image."""
        side = self.side(total)
        table = self.table
        if side != len(table):
            image = table.permute(2, 0, 1)[None]  # (S, S, C) -> (1, C, S, S) -> (side, side, C)
            image = nn.functional.interpolate(image, size=(side, side), mode=self.resize)
            table = image[0].permute(1, 2, 0)
        rows, columns = self.places(ids)
        index = rows.clamp(max=side - 1) * side + columns
        return nn.functional.embedding(index, table.flatten(0, 1))
