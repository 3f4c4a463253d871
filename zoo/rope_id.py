"""RoPE-ID: only angles seen in training (Wertheimer et al. 2026, arXiv 2603.18017)."""

import math

from configurable import UserError
from posenc import Length, Rope, Shape


class RopeId(Rope):
    """rope on half of the columns, from one turn in `shortest` tokens to two turns in L.

    Wertheimer et al. 2026 (arXiv 2603.18017), implemented here from its reviews and a summary. Half
    of each head's columns are never rotated and compare content at any distance; the others pass
    through all angles within L. `shortest` defaults to theirs, 32, or L / 4 if that is less. Not
    confirmed: the pairs in between, spaced as in rope, theta_m = (2 pi / shortest) b^(-m / F) for F
    pairs. Left out: their temperature, which grows with the text length; its formula is not
    confirmed.
    Verdict: not confirmed in all parts; as built here, at L = 128, it breaks later than rope: 1.19
    nats at L, 1.37 at 2 L and 3.41 at 32 L; with shortest=4 1.18, 1.33 and 2.43 (results/recipes,
    one seed).
    Wertheimer et al. 2026 report 0.31 on RULER at 4 L (1B parameters, L = 4096), against 0.30 for
    YaRN, which needs to know the length, and 0 for RoPE.
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
