"""Chunks: attention within fixed chunks of the text (Llama 4, 2025)."""

from posenc import Length, Piece, Shape


class Chunks(Piece):
    """A query sees the keys of its own chunk: floor(i / size) = floor(j / size).

    Not from a paper: the chunked layers of Llama 4 (Meta 2025; `create_chunked_causal_mask` in
    transformers), where every fourth layer sees all keys. It is only a mask, by index: positions do
    not change.
    """

    can_extend = True

    def __init__(self, shape: Shape, *, size: Length) -> None:
        super().__init__()
        self.size = size
        self.visible = (size, 0)

    def mask(self, i, j):
        """True where i and j are in the same chunk."""
        return i // self.size == j // self.size
