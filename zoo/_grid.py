"""The base class of the image schemes. Files that start with _ are not schemes."""

import math

from posenc import Piece

COLUMNS = 2**12  # at most, of an image


class Grid(Piece):
    """A text is a square image, read row by row; a position id encodes a row and a column.

    A text of N tokens is an image of side isqrt(N). Index k is the patch predicted from token k;
    token 0 is not a patch but starts the image. An id is row x COLUMNS + column, so ids ascend.
    Tokens past the square continue in further rows.
    """

    conflicts = ("positions",)  # text schemes cannot read its ids

    def side(self, total: int) -> int:
        """The number of patches per row for a text of `total` tokens, at least 1."""
        return max(1, math.isqrt(total))

    def ids(self, ids, total):
        """row x COLUMNS + column."""
        side = self.side(total)
        return ids // side * COLUMNS + ids % side

    def places(self, ids):
        """The rows and columns of ids."""
        return ids // COLUMNS, ids % COLUMNS
