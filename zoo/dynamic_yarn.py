"""Dynamic YaRN: the factor follows the length of each text (Peng et al. 2023, arXiv 2309.00071, section 3.3)."""

from posenc import Shape, Yarn


class DynamicYarn(Yarn):
    """yarn with s = max(1, N / L), N the length of the text: yarn(factor=auto), which is the default here, under its name.

    Verdict: costs nothing below L; decode with the final length fixed up front, as `generate` does, or cached keys are stale.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        alpha: float = 1.0,
        beta: float = 32.0,
        ramp: str = "code",
        truncate: bool = True,
        mscale: float = 1.0,
    ) -> None:
        super().__init__(
            shape,
            factor="auto",
            alpha=alpha,
            beta=beta,
            ramp=ramp,
            truncate=truncate,
            mscale=mscale,
        )
