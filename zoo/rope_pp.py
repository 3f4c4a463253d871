"""RoPE++: the imaginary part of rope's product, in separate heads (arXiv 2512.07525)."""

from typing import Literal

import torch

from common.errors import UserError
from posenc import Base, Rope, Shape


class RopePp(Rope):
    """rope in the even heads; in the odd ones queries are also rotated back by a quarter turn.

    "Beyond Real: Imaginary Extension of Rotary Position Embeddings" 2025 (arXiv 2512.07525), as in
    its code. With the complex numbers z = q k* of a pair, an even head scores Re(z e^(i (t - s)
    theta)) and an odd one its imaginary part. Heads 2h and 2h + 1 share the query of the first;
    with queries=own each has its own (`imagx` in their code). Theirs share keys and values too: set
    n_kv_head to n_head / 2.
    """

    conflicts = ("latent attention",)  # there, most query columns are neither rotated nor shared

    def __init__(
        self, shape: Shape, *, base: Base = 10000.0, queries: Literal["shared", "own"] = "shared"
    ) -> None:
        super().__init__(shape, base=base)
        if shape.n_head % 2:
            raise UserError(f"rope_pp pairs heads: n_head = {shape.n_head} must be even")
        self.shared = queries == "shared"

    def turn(self, x, tables, is_key):
        """Keys are rotated as in rope, queries of odd heads a quarter turn less."""
        if is_key:
            return super().turn(x, tables, is_key)
        if self.shared:
            x = x[:, ::2].repeat_interleave(2, 1)
        turned = super().turn(x, tables, is_key)
        a, b = turned.chunk(2, -1)  # the two columns of each pair
        quarter = torch.cat((b, -a), -1)
        is_odd = torch.arange(x.shape[1], device=x.device)[:, None, None] % 2 == 1
        return torch.where(is_odd, quarter, turned)
