"""2D-ALiBi: a penalty on the distance in an image (Fuller et al. 2023, arXiv 2311.00566)."""

from posenc import Shape, alibi_slopes
from zoo._grid import Grid


class Alibi2d(Grid):
    """score += -m_h sqrt((r_i - r_j)^2 + (c_i - c_j)^2): the distance between patches, in patches.

    Fuller et al. 2023, CROMA (arXiv 2311.00566). r and c are rows and columns, m_h the slopes of
    `alibi`. Their attention is bidirectional; here it is causal. Nothing is learned.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.register_buffer("slopes", alibi_slopes(shape.n_head), persistent=False)

    def bias(self, h, i, j):
        """-m_h times the Euclidean distance."""
        row_i, column_i = self.places(i)
        row_j, column_j = self.places(j)
        return -self.slopes[h] * ((row_i - row_j) ** 2 + (column_i - column_j) ** 2).sqrt()
