"""Inkling's short convolutions (Thinking Machines 2026)."""

from typing import Annotated

from pydantic import Field

from posenc import Shape
from zoo._taps import Taps


class ShortConv(Taps):
    """x_t + sum_(n < taps) w_n x_(t-n), column by column, of keys, values and both branches.

    Not from a paper: Inkling (Thinking Machines 2026; `InklingShortConvolution` in transformers).
    Keys and values are mixed before their norms, the outputs of attention and of the MLP before
    they join the residual stream. Parameters: w, for each place (taps, W), one set per layer.
    """

    def __init__(self, shape: Shape, *, taps: Annotated[int, Field(ge=2, le=64)] = 4):
        super().__init__(shape, ["k", "v", "branch", "mlp_branch"], taps)
