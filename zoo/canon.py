"""Canon layers (Allen-Zhu 2025, arXiv 2512.17351)."""

from typing import Annotated

from pydantic import Field

from posenc import Shape
from zoo._taps import Taps

PLACES = {"A": ["input"], "B": ["q", "k", "v"], "C": ["mlp"], "D": ["hidden"]}


class Canon(Taps):
    """x_t + sum_(n < taps) w_n x_(t-n), column by column, at each place that `at` names.

    Allen-Zhu 2025 (arXiv 2512.17351), and their code. A: the normalised input of attention, B:
    queries, keys and values, before their norms, C: the normalised input of the MLP, D: its hidden
    vectors, before the activation. Parameters: w, for each place (taps, W), one set per layer.
    Weights start uniform up to 1 / sqrt(taps), as theirs. Latent attention has no B.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        at: Annotated[str, Field(pattern="^A?B?C?D?$", min_length=1)] = "ABCD",
        taps: Annotated[int, Field(ge=2, le=64)] = 4,
    ):
        super().__init__(shape, [place for letter in at for place in PLACES[letter]], taps)
