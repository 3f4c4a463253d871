"""Block-wise causal attention, the mask that xPos is tested with (Sun et al. 2022, arXiv 2212.10554)."""

from configurable import require
from posenc import Mask, Piece, Shape


class BlockCausal(Piece):
    """floor(i / size) - floor(j / size) < 2: blocks of queries see their own block and the one before. A mask.

    `size` defaults to half the training length, as published, so that it hides nothing in training; past that a query sees
    size to 2 size - 1 tokens before it. Nothing is learned.
    Verdict: a window made of blocks; in xPos's own tables it brings most of the gain. Combine it: `rope + block_causal`.
    """

    extends = True

    def __init__(self, shape: Shape, *, size: int | None = None) -> None:
        super().__init__()
        self.size = max(1, shape.length // 2) if size is None else size
        require(self.size > 0, f"block_causal: size must be positive, not {size}")
        self.span = (
            2 * self.size,
            0,
        )  # the farthest pair: the last of a block and the first of the block before

    def mask(self) -> Mask:
        """Blocks that differ by less than two."""
        return lambda i, j: i // self.size - j // self.size < 2
