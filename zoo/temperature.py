"""A temperature for a trained model: sharper or flatter attention at test (Wang et al. 2024, arXiv 2404.12224)."""

import json

import torch
from torch import Tensor

from configurable import UserError, require
from posenc import Extension, Shape, named_file, positive


class Temperature(Extension):
    """All scores times `scale`, or those of each head times its own number from a JSON file {"scales": [H numbers]}.

    Wang et al. 2024 give a NoPE model 1.2, 1.5, 1.8 for 2, 4, 8 times its length; `extend.py --fit` finds a number for
    each head, the same in all layers, in seconds.
    Verdict: undoes some of the thinning of attention over long texts; cheap enough to try on everything.
    """

    def __init__(self, shape: Shape, *, scale: float = 1.0, file: str = "") -> None:
        super().__init__()
        require(scale > 0, f"temperature: scale must be positive, not {scale}")
        self.scales, self.file = (
            [scale] * shape.n_head,
            named_file(file, shape.folder) if file else None,
        )
        if self.file:
            try:
                content = json.loads(self.file.read_text(encoding="utf-8"))
                self.scales, self.found_on = (
                    positive(content["scales"]),
                    content.get("split_sha256"),
                )
            except (
                OSError,
                ValueError,
                KeyError,
                TypeError,
                OverflowError,
                RecursionError,
            ) as error:
                raise UserError(
                    f"temperature: {file} is no JSON file with a list scales ({error})"
                ) from None
            require(
                len(self.scales) == shape.n_head,
                f"temperature: {file} needs a number for each of {shape.n_head} heads",
            )

    def temperature(self, index: Tensor, like: Tensor) -> Tensor:
        """(H, T)."""
        return like.new_tensor(self.scales)[:, None] * torch.ones_like(index, dtype=like.dtype)
