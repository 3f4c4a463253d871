"""ALiBi with other slopes at test time (Al-Khateeb et al. 2023, arXiv 2310.13017)."""

from typing import Annotated

from pydantic import Field

from posenc import Extension, Shape


class Slopes(Extension):
    """m'_h = m_h `scale`: below 1, heads see farther; above 1, less far.

    Al-Khateeb et al. 2023 (arXiv 2310.13017). It is implemented as p' = p scale, which scales a
    bias that is linear in the distance: interpolate(factor=s) is scale = 1 / s. It extends only
    ALiBi, without other schemes that use positions.
    """

    extends = ("alibi",)

    def __init__(
        self, shape: Shape, *, scale: Annotated[float, Field(ge=1e-6, le=1e6)] = 0.5
    ) -> None:
        super().__init__()
        self.scale = scale

    def factor(self, total):
        """As interpolate(factor=1 / scale)."""
        return 1 / self.scale

    def ids(self, ids, total):
        """Multiplied by the scale."""
        return ids * self.scale
