"""RFS: random float sampling of positions (Shimizu et al. 2026, arXiv 2602.14050)."""

from typing import Annotated, Literal

import torch
from pydantic import Field

from posenc import Piece, Shape


class Rfs(Piece):
    """Train with L sorted reals from U(0, max), test with (k + 1/2) max / max(N, L).

    Shimizu et al. 2026 (arXiv 2602.14050). N is the length of the text, L the training length.
    Positions are drawn once per training step. Their interval is (0, 1): max=1. Here `max` defaults
    to L, so that neighbours are 1 apart on average, as rotary and bias schemes expect. The text may
    be longer than `max`. `test=draw` also draws at test. Nothing is learned.
    """

    conflicts = ("learned",)  # it has no vectors between integer positions

    def __init__(
        self,
        shape: Shape,
        *,
        max: Annotated[float, Field(gt=0, le=2**24)] | None = None,
        test: Literal["spread", "draw"] = "spread",
    ) -> None:
        super().__init__()
        self.length = shape.first_length
        self.max = max or float(shape.first_length)
        self.test = test
        # the draw of the last test; no buffer, since processes may test different lengths
        self.drawn = torch.empty(0)

    def ids(self, ids, total):
        """(index + 1/2) max / max(total, L), or a draw that depends only on total."""
        if self.test == "spread":
            return (ids + 0.5) * (self.max / max(total, self.length))
        if len(self.drawn) != total or self.drawn.device != ids.device:
            self.drawn = self.draw(total, torch.Generator().manual_seed(total)).to(ids.device)
        return self.drawn[ids]

    def draw(self, length, generator):
        """Sorted positions (length,), float32."""
        return self.max * torch.rand(length, generator=generator).sort().values
