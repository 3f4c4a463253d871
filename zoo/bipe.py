"""BiPE: the place in the sentence, and the number of the sentence (arXiv 2401.16421)."""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import nn

from posenc import (
    Base,
    Count,
    Shape,
    Whole,
    alibi_slopes,
    apply_rotary,
    cos_sin,
    init_std,
    rope_frequencies,
)
from zoo._decay import Decay


class Bipe(Decay):
    """Add table[place in the sentence] to the embedding; rotate q and k by the sentence's number.

    He et al. 2024 (arXiv 2401.16421), as in their code. A sentence ends with one of the tokens
    `ends`: by default the line feed and the full stop of bytes; GPT-2's are [13, 198]. Places past
    the table have its last row; rows is the training length unless set. kind=alibi replaces the
    rotation by a bias, ALiBi's slopes x 96 x the sentences between query and key. Parameter: table
    (rows, C), normal with the standard deviation of the token embedding. Position ids are not used.
    """

    conflicts = ("pope", "xpos", "latent attention")  # they turn heads of another width or size

    def __init__(
        self,
        shape: Shape,
        *,
        kind: Literal["rope", "alibi"] = "rope",
        ends: Annotated[list[Whole], Field(min_length=1)] | None = None,
        rows: Count | None = None,
        base: Base = 10000.0,
    ) -> None:
        super().__init__()
        self.kind = kind
        self.table = nn.Parameter(torch.randn(rows or shape.first_length, shape.width))
        self.table.data *= init_std(shape.width)
        self.register_buffer("ends", torch.tensor(ends or [10, 46]), persistent=False)
        self.register_buffer("slopes", 96 * alibi_slopes(shape.n_head), persistent=False)
        if kind == "rope":
            inv_freq, _ = rope_frequencies(shape.turned_width, base)
            self.register_buffer("inv_freq", inv_freq, persistent=False)
        self.starts = None  # of the tokens in this forward pass, (B, T, 1): from embed to features

    def embed(self, ids, tokens, total):
        """(B, T, C): rows of the table. It reads all tokens so far, (B, S), so that a sentence can
        continue from the cache.
        """
        is_end = (tokens[..., None] == self.ends).any(-1)
        is_start = nn.functional.pad(is_end[:, :-1], (1, 0))  # the token after the end of another
        index = torch.arange(tokens.shape[1], device=tokens.device)
        place = index - index.where(is_start, 0).cummax(1).values
        new = slice(tokens.shape[1] - ids.shape[-1], None)
        self.starts = is_start[:, new, None]
        return nn.functional.embedding(place[:, new].clamp(max=len(self.table) - 1), self.table)

    def features(self, x):
        """1.0 where a sentence starts, else 0.0, (B, T, 1)."""
        return self.starts.to(x.dtype)

    def along(self, q, k, features, scale):
        """q and k rotated by the numbers of their sentences, or with columns that add the bias."""
        if self.kind == "alibi":
            return super().along(q, k, -self.slopes * features, scale)
        sentences = features[..., 0].cumsum(-1)  # (B, S), from 0
        tables = cos_sin(sentences, self.inv_freq)
        cos, sin = (table[:, None].to(q.dtype) for table in tables)  # (B, 1, S, F)
        new = slice(k.shape[-2] - q.shape[-2], None)
        return apply_rotary(q, cos[..., new, :], sin[..., new, :]), apply_rotary(k, cos, sin)
