"""NTK-by-parts: YaRN's frequencies without its temperature (bloc97 2023; Peng et al. 2023, arXiv 2309.00071)."""

from posenc import Shape, Yarn


class NtkByParts(Yarn):
    """Slow pairs / s, fast pairs kept, a ramp by number of turns between: theta (kept + (1 - kept) / s), kept =
    clamp((L theta / 2 pi - alpha) / (beta - alpha), 0, 1). yarn(ramp=turns, mscale=0) under its own name.

    Verdict: what yarn is without its temperature; the same caution about beta at short L.
    """

    def __init__(
        self, shape: Shape, *, factor: float | str = "auto", alpha: float = 1.0, beta: float = 32.0
    ) -> None:
        super().__init__(shape, factor=factor, alpha=alpha, beta=beta, ramp="turns", mscale=0.0)
