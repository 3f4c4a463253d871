"""Heads of different ranges: multi-scale window attention (Xu et al. 2025, arXiv 2501.01039)."""

import torch

from common.errors import UserError
from posenc import Length, Piece, Shape


class Multiscale(Piece):
    """Head h sees keys with i - j < r_h, r_h = round(smallest (largest / smallest)^(h / (H - 1))).

    Xu et al. 2025 (arXiv 2501.01039), here in one layer; h = 0 ... H - 1. It is a bias of 0 or
    -inf; nothing is learned. `largest` defaults to the training length and is the range of a single
    head. `smallest` defaults to a sixteenth of the training length. The paper has four groups of
    heads with 1/4, 1/2, 1 and 2 times a window, and also varies the window by layer; for that,
    write `multiscale(largest=32) | multiscale`. All keys are computed and cached: this saves
    neither time nor memory.
    """

    by_distance = True

    def __init__(
        self, shape: Shape, *, smallest: Length | None = None, largest: Length | None = None
    ) -> None:
        super().__init__()
        largest = largest or shape.first_length
        smallest = smallest or min(max(1, shape.first_length // 16), largest)
        if smallest > largest:
            raise UserError(f"multiscale: smallest = {smallest} is above largest = {largest}")
        steps = max(1, shape.n_head - 1)
        heads = reversed(range(shape.n_head))
        ranges = [round(largest * (smallest / largest) ** (h / steps)) for h in heads]
        self.register_buffer("ranges", torch.tensor(ranges), persistent=False)

    def bias(self, h, i, j):
        """0 within the head's range, -inf outside."""
        return torch.where(i - j < self.ranges[h], 0.0, -torch.inf)
