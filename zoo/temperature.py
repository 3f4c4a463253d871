"""A temperature for a trained model (Wang et al. 2024, arXiv 2404.12224)."""

import torch

from common.errors import UserError
from posenc import Extension, Numbers, PositiveFloat, Shape


class Temperature(Extension):
    """scores x `scale`, or the scores of head h x s_h from a JSON file {"scales": [s_1, ... s_H]}.

    Wang et al. 2024 (arXiv 2404.12224). They use 1.2, 1.5 and 1.8 for a NoPE model at 2, 4 and 8
    times its length. `file` is the path of the JSON file. All layers share the same numbers.
    """

    def __init__(self, shape: Shape, *, scale: PositiveFloat = 1.0, file: str = "") -> None:
        super().__init__()
        scales = [scale] * shape.n_head
        if file:
            scales = self.read_numbers(file, shape.folder, scales=(Numbers, ...)).scales
            if len(scales) != shape.n_head:
                raise UserError(
                    f"temperature: {file} needs a number for each of {shape.n_head} heads"
                )
        self.register_buffer("scales", torch.tensor(scales), persistent=False)

    def temperature(self, index):
        """The scales, (H, T)."""
        return self.scales[:, None].expand(-1, len(index))
