"""Block-wise causal attention: the mask used to test xPos (Sun et al. 2022)."""

from posenc import Length, Piece, Shape


class BlockCausal(Piece):
    """A query sees its own block and the previous one: floor(i / size) - floor(j / size) < 2.

    Sun et al. 2022 (arXiv 2212.10554), who test xPos with it. It is only a mask: positions do not
    change, and nothing is learned. `size` is the block length. It defaults to half the training
    length, as published, so that nothing is masked in training. In longer texts a query sees
    between size and 2 size - 1 previous tokens.
    """

    can_extend = True

    def __init__(self, shape: Shape, *, size: Length | None = None) -> None:
        super().__init__()
        self.size = size or max(1, shape.first_length // 2)
        # farthest pair: the last query of a block, the first key of the previous block
        self.visible = (2 * self.size, 0)

    def mask(self, i, j):
        """True where the blocks of i and j differ by less than two."""
        return i // self.size - j // self.size < 2
