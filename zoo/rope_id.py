"""RoPE-ID: only angles seen in training (Wertheimer et al. 2026, arXiv 2603.18017)."""

import math

from common.errors import UserError
from posenc import Length, Rope, Shape


class RopeId(Rope):
    """rope on half of the columns, from one turn in `shortest` tokens to two turns in L.

    Wertheimer et al. 2026 (arXiv 2603.18017), implemented here from its reviews and a summary. Half
    of each head's columns are never rotated and compare content at any distance; the others pass
    through all angles within L. `shortest` defaults to theirs, 32, or L / 4 if that is less. Not
    confirmed: the pairs in between, spaced as in rope, theta_m = (2 pi / shortest) b^(-m / F) for F
    pairs. Left out: their temperature, which grows with the text length; its formula is not
    confirmed.
    """

    def __init__(self, shape: Shape, *, shortest: Length | None = None) -> None:
        shortest = shortest or max(1, min(32, shape.first_length // 4))
        ratio = shape.first_length / (2 * shortest)  # of the fastest frequency to the slowest
        if ratio <= 1:
            raise UserError(
                f"rope_id: shortest is {shortest}, but the slowest pair turns twice in L = "
                f"{shape.first_length}: set it below L / 2"
            )
        pairs = shape.turned_width // 4
        super().__init__(shape, base=ratio ** (pairs / max(1, pairs - 1)), fraction=0.5)
        self.inv_freq *= 2 * math.pi / shortest
