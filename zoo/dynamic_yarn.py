"""Dynamic YaRN: the factor follows the length of the text (Peng et al. 2023, arXiv 2309.00071)."""

from posenc import Yarn


class DynamicYarn(Yarn):
    """Another name for `yarn`: with factor=auto, the default of both, s is max(1, N / L).

    Peng et al. 2023 (arXiv 2309.00071), section 3.3.
    """
