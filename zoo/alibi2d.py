"""2D-ALiBi: a penalty on the distance in an image (Fuller et al. 2023, arXiv 2311.00566)."""

from torch import Tensor

from posenc import Bias, Grid, Shape, alibi_slopes, constant


class Alibi2d(Grid):
    """score += -m_h sqrt((r_i - r_j)^2 + (c_i - c_j)^2): the distance of two patches in patches.

    Fuller et al. 2023, CROMA (arXiv 2311.00566). r and c are rows and columns, m_h the slopes of
    `alibi`. Theirs looks in all directions, and here no patch sees those after it. Nothing is
    learned.
    Verdict: Fuller et al. 2023 report that with it models work on images up to 17.6 times as large
    as those of training. The penalty goes by patches, however small a part of the image they are.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.slopes = alibi_slopes(shape.n_head).tolist()

    def bias(self, like: Tensor) -> Bias:
        """-m_h times the Euclidean distance."""
        slopes = constant(self.slopes, like)

        def bias(h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            (row, column), (other_row, other_column) = self.places(i), self.places(j)
            squared = (row - other_row) ** 2 + (column - other_column) ** 2
            return -slopes[h] * squared.to(like.dtype).sqrt()

        return bias
