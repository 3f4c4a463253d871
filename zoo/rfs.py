"""RFS: random float sampling of positions (Shimizu et al. 2026, arXiv 2602.14050)."""

import torch
from torch import Tensor

from configurable import require
from posenc import Piece, Shape


class Rfs(Piece):
    """Train with L sorted reals from U(0, max), test with (k + 1/2) max / max(N, L).

    Shimizu et al. 2026 (arXiv 2602.14050). N is the length of the text, L the training length.
    Each training step draws once. Their interval is (0, 1): max=1. Here `max` defaults to L, so
    that neighbours are 1 apart on average, as rotary and bias schemes expect. The text may be
    longer than `max`. `test=draw` draws at test too. Nothing is learned.
    Verdict: Shimizu et al. 2026 report gains on longer texts, with sinusoids, RoPE and ALiBi. Here
    `rfs + rope` read up to 2 L, and lost 1.07 nats at 32 L (results/board, one seed).
    """

    continuous = True

    def __init__(self, shape: Shape, *, max: float | None = None, test: str = "spread") -> None:
        super().__init__()
        self.max = float(shape.length if max is None else max)
        self.length, self.test = shape.length, test
        require(0 < self.max <= 2**24, f"rfs: max must be positive and at most 2**24, not {max}")
        require(test in ("spread", "draw"), f"rfs: test is spread or draw, not {test}")

    def ids(self, index: Tensor, total: int) -> Tensor:
        """(index + 1/2) max / max(total, L), or a draw that is fixed for that total length."""
        if self.test == "spread":
            return (index + 0.5) * (self.max / max(total, self.length))
        if not torch.compiler.is_compiling() and index.numel():
            require(
                int(index.max()) < total,
                f"rfs: place {int(index.max())} lies beyond the text of {total} tokens",
            )
        return self.draw(total, torch.Generator().manual_seed(total)).to(index.device)[index]

    def draw(self, length: int, generator: torch.Generator) -> Tensor:
        """Sorted positions (length,), float32."""
        return self.max * torch.rand(length, generator=generator).sort().values
