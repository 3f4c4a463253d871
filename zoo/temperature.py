"""A temperature for a trained model (Wang et al. 2024, arXiv 2404.12224)."""

import torch
from torch import Tensor

from configurable import require
from posenc import Extension, Shape, constant, named_file, read_numbers


class Temperature(Extension):
    """scores x `scale`, or the scores of head h x s_h from a JSON file {"scales": [s_1, ... s_H]}.

    Wang et al. 2024 (arXiv 2404.12224). They give a NoPE model 1.2, 1.5 and 1.8 for 2, 4 and 8
    times its length. `file` names the JSON file. All layers have the same numbers.
    Verdict: in Wang et al. 2024 a scale of 1.2 lowers the perplexity of a NoPE model at 2 L from
    327 to 16.
    """

    def __init__(self, shape: Shape, *, scale: float = 1.0, file: str = "") -> None:
        super().__init__()
        require(scale > 0, f"temperature: scale must be positive, not {scale}")
        self.scales, self.file = [scale] * shape.n_head, None
        if file:
            self.file = named_file(file, shape.folder)
            content = read_numbers("temperature", self.file, "scales")
            self.scales, self.found_on = content["scales"], content.get("split_sha256")
            one_each = len(self.scales) == shape.n_head
            require(
                one_each, f"temperature: {file} needs a number for each of {shape.n_head} heads"
            )

    def temperature(self, index: Tensor, like: Tensor) -> Tensor:
        """The scales, (H, T)."""
        return constant(self.scales, like)[:, None] * torch.ones_like(index, dtype=like.dtype)
