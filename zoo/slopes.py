"""ALiBi with other slopes at test time (Al-Khateeb et al. 2023, arXiv 2310.13017)."""

from torch import Tensor

from configurable import require
from posenc import Alibi, Extension, Piece, Shape, answers


class Slopes(Extension):
    """Every slope times `scale`: below 1 heads see further, above 1 less far. interpolate(factor=s) is scale = 1 / s.

    Verdict: shows how much of ALiBi is its window; scale < 1 trades flatness for reach.
    """

    continuous = True

    def __init__(self, shape: Shape, *, scale: float = 0.5) -> None:
        super().__init__()
        require(
            1e-6 <= scale <= 1e6, f"slopes: scale must be positive, from 1e-6 to 1e6, not {scale}"
        )
        self.scale = scale

    @classmethod
    def only_for(cls, pieces: list[Piece]) -> str:
        """ALiBi, with nothing beside it that reads positions."""
        reading = [
            p for p in pieces if any(answers(p, q) for q in ("embed", "turn", "bias", "score"))
        ]
        alone = reading and all(isinstance(p, Alibi) for p in reading)
        return "" if alone else "it changes ALiBi's slopes, and ALiBi is not alone here"

    def factor(self, total: int) -> float:
        """As interpolate(factor=1 / scale)."""
        return 1 / self.scale

    def ids(self, index: Tensor, total: int) -> Tensor:
        """A bias that is linear in the distance grows as positions do."""
        return index * self.scale
