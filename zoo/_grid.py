"""What the schemes of images share. A file whose name begins with _ is no scheme."""

import math

from posenc import Piece

COLUMNS = 2**12  # of an image at most


class Grid(Piece):
    """A text is a square image, row by row, and a position id holds a row and a column.

    A text of N tokens has the side isqrt(N). Index k stands for the patch that is predicted from
    token k, where token 0 is no patch: it starts the image. An id is row x COLUMNS + column, so ids
    ascend. After the last row of the square follow further ones.
    """

    conflicts = ("positions",)  # no scheme of texts can read its ids

    def side(self, total: int) -> int:
        """How many patches a row of a text of `total` tokens has, at least 1."""
        return max(1, math.isqrt(total))

    def ids(self, ids, total):
        """row x COLUMNS + column."""
        side = self.side(total)
        return ids // side * COLUMNS + ids % side

    def places(self, ids):
        """The rows and the columns of ids."""
        return ids // COLUMNS, ids % COLUMNS
