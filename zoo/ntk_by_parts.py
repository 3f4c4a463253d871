"""NTK-by-parts: YaRN before its temperature (bloc97 2023, in arXiv 2309.00071)."""

from posenc import Factor, NonNegativeFloat, PositiveFloat, Shape, Yarn


class NtkByParts(Yarn):
    """theta_m (k + (1 - k) / s): k rises linearly from 0 to 1 with the number of turns of a pair
    within L.

    bloc97 2023, section 3.2 of Peng et al. 2023 (arXiv 2309.00071). This is yarn(ramp=turns,
    mscale=0): the options are those of `yarn`, with other defaults.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        factor: Factor = "auto",
        alpha: PositiveFloat = 1.0,
        beta: PositiveFloat = 32.0,
        mscale: NonNegativeFloat = 0.0,
    ) -> None:
        super().__init__(shape, factor=factor, alpha=alpha, beta=beta, mscale=mscale, ramp="turns")
