"""The position schemes of the textbooks, and how a name becomes one.

A scheme is an expression: `alibi`, `rope(base=500000)`, `rope + alibi`, `rope | rope | rope | nope`. `+` lets pieces act
together, `|` is a pattern over layers. Each name is a `Piece`, a small module that overrides the questions it answers;
names not defined here are looked up in zoo/, one file each, loaded exactly as a user's own `--pos_file`.
A second expression, `extend`, names what is applied to a model that is trained already: `yarn(factor=8) + logn`.
`python posenc.py 'rope + logn'` explains an expression. Of the project this file imports only the grammar.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from configurable import UserError, require

ZOO = Path(__file__).parent / "zoo"
Bias = Callable[
    [Tensor, Tensor, Tensor], Tensor
]  # f(head, query id, key id): what is added to the score
Mask = Callable[
    [Tensor, Tensor], Tensor
]  # g(query index, key index): True where the query may see the key
Turn = Callable[[Tensor], Tensor]  # (B, H, T, D) -> (B, H, T, D')


# ------------------------------------------------------------------------------------------------ pure functions


@torch.library.custom_op("longshot::cos_sin", mutates_args=())
def cos_sin(positions: Tensor, inv_freq: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of position x frequency: angles in float64, results in float32, shape positions.shape + (F,).

    An operator of its own, so that torch.compile neither fuses the float64 away nor recompiles for a new length.
    """
    exact = "cpu" if positions.device.type == "mps" else positions.device  # mps has no float64
    angles = positions.to(exact, torch.float64)[..., None] * inv_freq.to(exact, torch.float64)
    return tuple(f(angles).to(positions.device, torch.float32) for f in (torch.cos, torch.sin))


@cos_sin.register_fake
def _(positions: Tensor, inv_freq: Tensor) -> tuple[Tensor, Tensor]:
    shape = (*positions.shape, inv_freq.shape[0])
    return positions.new_empty(shape, dtype=torch.float32), positions.new_empty(
        shape, dtype=torch.float32
    )


def _keep(
    ctx: torch.autograd.function.FunctionCtx,
    inputs: tuple[Tensor, Tensor],
    output: tuple[Tensor, Tensor],
) -> None:
    ctx.save_for_backward(*inputs, *output)


def _gradient(
    ctx: torch.autograd.function.FunctionCtx, of_cos: Tensor, of_sin: Tensor
) -> tuple[Tensor, Tensor]:
    positions, inv_freq, cos, sin = ctx.saved_tensors  # positions may be learned: zoo/smooth.py
    of_angles = (of_sin * cos - of_cos * sin).to(inv_freq.dtype)
    return (of_angles * inv_freq).sum(-1).to(positions.dtype), (
        of_angles * positions[..., None]
    ).flatten(0, -2).sum(0)


cos_sin.register_autograd(_gradient, setup_context=_keep)


def rope_frequencies(head_dim: int, base: float = 10000.0) -> tuple[Tensor, float]:
    """RoPE's (inv_freq, attention_factor): theta_m = base^(-2m/d), float64 (head_dim / 2,), and 1.0.

    Su et al. 2021 (arXiv 2104.09864). Raises UserError for an odd head_dim.
    """
    require(
        head_dim > 0 and head_dim % 2 == 0,
        f"rope turns pairs of columns: it needs an even dimension, not {head_dim}",
    )
    return base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim), 1.0


def stretched(
    table: tuple[Tensor, float], maps: Iterable[Piece], base: float, total: int
) -> tuple[Tensor, float]:
    """(inv_freq, attention factor) after each map of frequencies in turn, for a text of `total` tokens."""
    inv_freq, factor = table
    for piece in maps:
        inv_freq, more = piece.stretch(inv_freq, base, total)
        factor *= more
    return inv_freq, factor


def rotate(x: Tensor, positions: Tensor, inv_freq: Tensor, layout: str = "half") -> Tensor:
    """Turn x (..., T, D) by the angles positions x inv_freq; positions (T,) or (B, T), inv_freq (F,), F <= D / 2.

    `half` pairs columns (m, m + F) as GPT-NeoX and Llama in transformers; `interleaved` (2m, 2m + 1) as RoFormer and
    GPT-J. Columns past 2F are unchanged.
    """
    cos, sin = cos_sin(positions, inv_freq)
    if positions.dim() == 2:  # (B, T, F) -> (B, 1, ..., T, F)
        cos, sin = (t.reshape(t.shape[0], *[1] * (x.dim() - 3), *t.shape[1:]) for t in (cos, sin))
    return turn(x, cos, sin, layout)


def turn(x: Tensor, cos: Tensor, sin: Tensor, layout: str) -> Tensor:
    """Rotate the column pairs of x (..., T, D) by tables (..., T, F); computed in float32 or wider, returned as x.dtype."""
    n = 2 * cos.shape[-1]
    if layout == "half":
        a, b = x[..., : n // 2], x[..., n // 2 : n]
        pairs = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    else:
        a, b = x[..., 0:n:2], x[..., 1:n:2]
        pairs = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
    return torch.cat((pairs.to(x.dtype), x[..., n:]), -1)


def sinusoids(positions: Tensor, width: int, base: float = 10000.0) -> Tensor:
    """Sinusoidal position vectors (T, width), float32: all sines, then all cosines, of p * base^(-2m/width).

    Vaswani et al. 2017 (arXiv 1706.03762), which interleaves them: the same columns in another order.
    """
    cos, sin = cos_sin(positions, rope_frequencies(width, base)[0])
    return torch.cat((sin, cos), -1)


def alibi_slopes(n_head: int) -> Tensor:
    """ALiBi's published slopes, (n_head,) float32: 2^(-8h/H) for H a power of two; otherwise those of the power of two
    below, then every other slope of the power of two above. Press et al. 2021 (arXiv 2108.12409) and its code."""
    floor = 2 ** int(math.log2(n_head))
    slopes = [2 ** (-8 * h / floor) for h in range(1, floor + 1)]
    slopes += [2 ** (-4 * h / floor) for h in range(1, 2 * floor, 2)]
    return torch.tensor(slopes[:n_head])


def widened(ids: Tensor) -> Tensor:
    """Positions as real numbers, float64 where the device has it, so that neighbours are told apart far out."""
    return ids.to(torch.float32 if ids.device.type == "mps" else torch.float64)


def taper(pairs: int) -> Tensor:
    """What clipping leaves of so many frequencies, (pairs,) float64: a raised cosine from 1 to 0; of a single one 0."""
    return (
        1 + torch.linspace(0 if pairs > 1 else math.pi, math.pi, pairs, dtype=torch.float64).cos()
    ) / 2


def t5_buckets(distance: Tensor, num_buckets: int = 32, max_distance: int = 128) -> Tensor:
    """T5's causal buckets (long) of distance = query - key >= 0: one each below num_buckets / 2, then logarithmic, the
    last one from max_distance on. Raffel et al. 2019 (arXiv 1910.10683), in the order of operations of its code."""
    exact, distance = num_buckets // 2, distance.long()  # positions may be real numbers
    far = (
        torch.log(distance.clamp(min=1).float() / exact)
        / math.log(max_distance / exact)
        * (num_buckets - exact)
    )
    return torch.where(distance < exact, distance, (exact + far.long()).clamp(max=num_buckets - 1))


# ------------------------------------------------------------------------------------------------ pieces


@dataclass(frozen=True)
class Shape:
    """What a piece may know of the model it serves; `length` is the length first trained at, in tokens.

    `extends`: the piece is applied to a trained model. `folder`: where files that options name are looked for first.
    """

    n_head: int
    head_dim: int
    width: int
    length: int
    extends: bool = False
    folder: Path | None = None


@dataclass(frozen=True)
class Text:
    """What an input piece may read besides ids: the tokens so far (B, S), the new ones last, and the total length to come."""

    tokens: Tensor
    total: int


@dataclass(frozen=True)
class Block:
    """A block of one layer's attention: R queries against the first C keys, everything float32 or wider.

    q (B, H, R, D) and k (B, H, C, D) are turned, q is multiplied by the temperature; scores = q k^T / sqrt(D) (B, H, R, C);
    added, broadcastable to scores, are the biases, -inf where the query may not see the key. i (..., R, 1) and j (..., 1, C)
    are position ids, rows (R, 1) and columns (1, C) places in the text. features_q (B, R, M) and features_k (B, C, M) are
    what `features` made of the tokens.
    """

    q: Tensor
    k: Tensor
    scores: Tensor
    added: Tensor
    i: Tensor
    j: Tensor
    rows: Tensor
    columns: Tensor
    features_q: Tensor | None = None
    features_k: Tensor | None = None

    @property
    def seen(self) -> Tensor:
        """True where the query may see the key."""
        return self.added > -math.inf


@dataclass(frozen=True)
class Region:
    """Where distances are rewritten: a query id i and a key id j with where(i, j) meet as if at query(i) and key(j)."""

    query: Callable[[Tensor], Tensor]
    key: Callable[[Tensor], Tensor]
    where: Mask


class Piece(nn.Module):
    """One position scheme. Override the questions it answers; every default is "nothing".

    The class name in snake_case is the scheme's name; keyword-only arguments of __init__ are its options, checked
    against their annotations. Scores are q.k / sqrt(d) x temperature + bias; i and j are position ids, j <= i.
    Tensors made inside a hook are float32 or wider: `like.new_tensor(...)` has the right dtype and device.
    """

    limit: int | None = (
        None  # the number of position ids it defines (None: any); with ids(): the longest total length
    )
    span: tuple[int, int] | None = (
        None  # of a mask: keys farther than span[0], past the first span[1], are never seen
    )
    per_layer: bool = (
        False  # whether each layer has one of its own, where the expression does not say
    )
    continuous: bool = False  # whether the position ids it gives are real numbers
    index_only: bool = (
        False  # whether positions must be 0 ... N - 1: no other piece may change them
    )
    extends: bool = False  # whether `extend` may name it: it acts on a trained model
    reads_ids: bool = True  # whether what it answers depends on position ids
    apart: tuple[str, ...] = ()  # schemes that cannot stand beside it in a layer

    def ids(self, index: Tensor, total: int) -> Tensor:
        """Position ids of the tokens at `index` (T,) or (B, T) of a text of `total` tokens: which position each carries."""
        return index

    def draw(self, length: int, generator: torch.Generator) -> Tensor:
        """Position ids (length,) of one training step, where they are random."""
        return torch.arange(length)

    def embed(self, ids: Tensor, text: Text) -> Tensor:
        """(T, C) or (B, T, C), added to the embedding of the tokens that have these ids, the last of `text`."""
        raise NotImplementedError

    def frequencies(self, total: int) -> tuple[Tensor, float]:
        """A rotary scheme: (inv_freq float64 (F,), attention factor) for a text of `total` tokens."""
        raise NotImplementedError

    def turn(self, ids: Tensor, total: int) -> tuple[Turn, Turn]:
        """How queries and how keys at `ids` are turned."""
        raise NotImplementedError

    def bias(self, like: Tensor) -> Bias:
        """f(h, i, j) of integer tensors that broadcast: pointwise operations and indexing of prepared tensors only."""
        raise NotImplementedError

    def temperature(self, index: Tensor, like: Tensor) -> Tensor:
        """(T,) or (H, T): what multiplies the scores of the query at `index` (it sees index + 1 keys)."""
        raise NotImplementedError

    def mask(self) -> Mask:
        """g(i, j) of indexes, True where query i may see key j; causality is added by the model."""
        raise NotImplementedError

    def features(self, x: Tensor) -> Tensor:
        """(B, T, M) numbers made from a layer's normalised input x (B, T, C), kept with the keys for `score`."""
        raise NotImplementedError

    def score(self, block: Block) -> Tensor:
        """The whole score (B, H, R, C), where a term f(h, i, j) will not do; unseen keys are masked after it."""
        raise NotImplementedError

    def stretch(self, inv_freq: Tensor, base: float, total: int) -> tuple[Tensor, float]:
        """An extension: a rotary scheme's frequencies (F,), float64, as they become in a text of `total` tokens, and what
        multiplies its cosines and sines (and so the scores twice)."""
        raise NotImplementedError

    def regions(self, total: int) -> list[Region]:
        """An extension: other distances. Where several regions hold the last one counts, where none does nothing changes."""
        raise NotImplementedError


def answers(piece: Piece | type[Piece], question: str) -> bool:
    """Whether the piece overrides that question (a method name of Piece)."""
    return getattr(piece if isinstance(piece, type) else type(piece), question) is not getattr(
        Piece, question
    )


class Nope(Piece):
    """Nothing: order is known from the causal mask alone. Haviv et al. 2022, Kazemnejad et al. 2023 (arXiv 2305.19466).

    Verdict: weaker on text, breaks past the training length; good on some algorithmic tasks.
    """


class Learned(Piece):
    """A trained vector for each position, added to the token embedding (GPT-2). Parameter: table (rows, C).

    `rows` defaults to the training length; a position past the table is refused, never clamped or wrapped, unless
    `resize` = linear or bicubic stretches the table over a longer text, as vision transformers do (Touvron et al. 2020).
    Verdict: the baseline that cannot extrapolate at all.
    """

    def __init__(self, shape: Shape, *, rows: int | None = None, resize: str = "none") -> None:
        super().__init__()
        rows = shape.length if rows is None else rows
        require(0 < rows <= 2**24, f"learned: rows must lie between 1 and 2**24, not {rows}")
        require(
            resize in ("none", "linear", "bicubic"),
            f"learned: resize is none, linear or bicubic, not {resize}",
        )
        self.resize, self.index_only = resize, resize != "none"
        self.limit = rows if resize == "none" else None
        self.table = nn.Parameter(torch.empty(rows, shape.width).normal_(std=0.02))

    def embed(self, ids: Tensor, text: Text) -> Tensor:
        """The rows of the table, or of the stretched table, at `ids`."""
        table = self.table
        if self.resize != "none" and text.total > len(
            table
        ):  # (rows, C) -> (1, C, rows, 1) -> (total, C)
            mode = {"linear": "bilinear"}.get(self.resize, self.resize)
            table = nn.functional.interpolate(
                table.T[None, ..., None], size=(text.total, 1), mode=mode
            )[0, ..., 0].T
        return nn.functional.embedding(ids, table)


class Sinusoidal(Piece):
    """scale x [sin(p w_m), cos(p w_m)], w_m = base^(-2m/C), added to the token embedding. Vaswani et al. 2017.

    The paper multiplies token embeddings of deviation C^-1/2 by C^1/2 first, to 1. Here they stay at GPT-2's 0.02, so
    the default scale is 0.02: the same ratio; without it the positions drown the tokens.
    Verdict: fine within the training length, useless past it.
    """

    def __init__(self, shape: Shape, *, base: float = 10000.0, scale: float = 0.02) -> None:
        super().__init__()
        require(shape.width % 2 == 0, f"sinusoidal needs an even n_embd, not {shape.width}")
        require(base >= 1, f"sinusoidal: base must be at least 1, not {base}")
        self.width, self.base, self.scale = shape.width, base, scale

    def embed(self, ids: Tensor, text: Text) -> Tensor:
        """Scaled sinusoids of `ids`."""
        return self.scale * sinusoids(ids, self.width, self.base)


class Rotary(Piece):
    """What rotary schemes share: `base`, and frequencies that extensions may stretch. `turn` reads them by `cos_sin`."""

    base: float
    stretches: tuple[Piece, ...] = ()  # maps of frequencies in force

    @property
    def first(self) -> int:
        """How many first positions keep their own frequencies."""
        return max([0, *(piece.first for piece in self.stretches)])

    def cos_sin(self, ids: Tensor, total: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines of `ids` (..., T, F) in a text of `total` tokens, times the attention factor."""
        own = self.frequencies(total)
        inv_freq, factor = stretched(own, self.stretches, self.base, total)
        tables = cos_sin(ids, inv_freq)
        if self.first:
            early = (ids < self.first)[..., None]
            tables = (
                torch.where(early, *pair) for pair in zip(cos_sin(ids, own[0]), tables, strict=True)
            )
        return tuple(t * factor for t in tables) if factor != 1.0 else tuple(tables)


class Rope(Rotary):
    """Turn pair m of q and k at position p by p base^(-2m/d), so that scores depend on i - j. Su et al. 2021.

    `fraction` of each head's columns is turned, with the exponents of that fraction (GPT-J, GPT-NeoX); `p` keeps the
    fastest int(p F) of F pairs and stills the rest (p-RoPE, Barbero et al. 2024); `clip` slows the slowest `clip` pairs by
    a cosine taper, the last one to 0 (Li et al. 2026, arXiv 2602.05258); `layout` is half or interleaved: the same
    function of permuted columns. Verdict: the default of today's models; does not extrapolate.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        base: float = 10000.0,
        fraction: float = 1.0,
        p: float = 1.0,
        clip: int = 0,
        layout: str = "half",
    ) -> None:
        super().__init__()
        require(base >= 1, f"rope: base must be at least 1, not {base}")
        require(0 < fraction <= 1, f"rope: fraction must lie in (0, 1], not {fraction}")
        require(0 <= p <= 1, f"rope: p must lie in [0, 1], not {p}")
        require(
            layout in ("half", "interleaved"), f"rope: layout is half or interleaved, not {layout}"
        )
        self.columns, self.base, self.layout = int(fraction * shape.head_dim), base, layout
        self.p, self.clip = p, clip
        pairs = len(
            self.frequencies(shape.length)[0]
        )  # an odd number of columns is refused here, not in the first step
        require(
            0 <= clip <= pairs,
            f"rope: clip must lie between 0 and {pairs}, the number of pairs, not {clip}",
        )

    def frequencies(self, total: int) -> tuple[Tensor, float]:
        """The same for every length."""
        inv_freq, factor = rope_frequencies(self.columns, self.base)
        inv_freq[int(self.p * len(inv_freq)) :] = 0.0
        if self.clip > 0:
            inv_freq[-self.clip :] *= taper(self.clip)
        return inv_freq, factor

    def turn(self, ids: Tensor, total: int) -> tuple[Turn, Turn]:
        """Queries and keys alike; tables are made here, once per forward."""
        cos, sin = (
            t[:, None] if ids.dim() == 2 else t for t in self.cos_sin(ids, total)
        )  # (B, 1, T, F) or (T, F)
        return (lambda x: turn(x, cos, sin, self.layout),) * 2


class Alibi(Piece):
    """score += -m_h (i - j), m_h fixed per head (`alibi_slopes`). Press et al. 2021 (arXiv 2108.12409).

    `learned` trains the slopes (softplus of a parameter (H,), started at the published ones); the paper found no gain.
    Verdict: flat loss at any length, because it reads a window; poor at finding one far token.
    """

    def __init__(self, shape: Shape, *, learned: bool = False) -> None:
        super().__init__()
        slopes = alibi_slopes(shape.n_head)
        self.slopes = slopes.tolist()  # Python numbers: nothing for .to(bfloat16) to round
        if learned:
            self.raw = nn.Parameter(slopes.expm1().log())  # the inverse of softplus

    def bias(self, like: Tensor) -> Bias:
        """-m_h (i - j)."""
        slopes = (
            nn.functional.softplus(self.raw.to(like.dtype))
            if hasattr(self, "raw")
            else like.new_tensor(self.slopes)
        )
        return lambda h, i, j: slopes[h] * (j - i)


class T5(Piece):
    """score += table[bucket(i - j), h], `t5_buckets`; parameter: table (buckets, H), shared by layers as in T5.

    `max_distance` defaults to half the training length, so that every entry is trained. Raffel et al. 2019; unlike T5,
    scores keep their 1 / sqrt(d). Verdict: good to 2-3 times the length; within it the best of its day.
    """

    def __init__(self, shape: Shape, *, buckets: int = 32, max_distance: int | None = None) -> None:
        super().__init__()
        require(
            2 <= buckets <= 2**16 and buckets % 2 == 0,
            f"t5: buckets must be even, from 2 to 2**16, not {buckets}",
        )
        self.buckets = buckets
        self.max_distance = (
            max(buckets // 2 + 1, shape.length // 2) if max_distance is None else max_distance
        )
        require(
            self.max_distance > buckets // 2,
            f"t5: max_distance must exceed buckets / 2 = {buckets // 2}, not {max_distance}",
        )
        self.table = nn.Parameter(torch.zeros(buckets, shape.n_head))

    def bias(self, like: Tensor) -> Bias:
        """A look-up by bucket of the distance."""
        table = self.table.to(like.dtype)
        return lambda h, i, j: table[t5_buckets(i - j, self.buckets, self.max_distance), h]


class Window(Piece):
    """A query sees the last `size` keys (itself included) and the first `sinks`. A mask: positions stay as they are.

    Verdict: bounds what is read, hence flat; every layer of it still hands on `size` tokens of context.
    """

    extends = True

    def __init__(self, shape: Shape, *, size: int, sinks: int = 0) -> None:
        super().__init__()
        require(size > 0, f"window: size must be positive, not {size}")
        require(sinks >= 0, f"window: sinks must not be negative, not {sinks}")
        self.span = (size, sinks)

    def mask(self) -> Mask:
        """i - j < size, or j < sinks."""
        size, sinks = self.span
        return lambda i, j: (i - j < size) | (j < sinks)


class Randomized(Piece):
    """Train with L sorted positions drawn from 0 ... max - 1, one draw a step; test with floor(k max / N).

    Ruoss et al. 2023 (arXiv 2305.16843); `test=draw` draws at test too, as they do. A text longer than `max` is refused.
    Verdict: teaches any scheme larger positions at some cost in length; combine it: `randomized(max=4096) + rope`.
    """

    def __init__(self, shape: Shape, *, max: int, test: str = "spread") -> None:
        super().__init__()
        require(
            shape.length <= max <= 2**24,
            f"randomized: max must be at least the training length "
            f"{shape.length} and at most 2**24, not {max}",
        )
        require(test in ("spread", "draw"), f"randomized: test is spread or draw, not {test}")
        self.limit, self.test = max, test

    def ids(self, index: Tensor, total: int) -> Tensor:
        """floor(index max / total), or a fixed draw for that total length."""
        if not torch.compiler.is_compiling() and index.numel():
            require(
                int(index.max()) < total,
                f"randomized: place {int(index.max())} lies beyond the text of {total} tokens",
            )
        if self.test == "spread":
            return index * self.limit // total
        return self.draw(total, torch.Generator().manual_seed(total)).to(index.device)[index]

    def draw(self, length: int, generator: torch.Generator) -> Tensor:
        """Sorted, without repeats."""
        require(
            length <= self.limit,
            f"randomized(max={self.limit}) has no {length} different positions",
        )
        return torch.randperm(self.limit, generator=generator)[:length].sort().values


class Logn(Piece):
    """scores x ln(n) / ln(L), n the number of keys up to the query, L the training length. Su 2021, Chiang & Cholak 2022.

    Applied to a trained model (`extend`) it is at least 1, so that nothing changes within L.
    Verdict: keeps attention from thinning out over long texts; combine it: `rope + logn`. Not enough at small L alone.
    """

    extends = True

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        require(shape.length > 1, "logn divides by ln(L): it needs a training length above 1")
        self.length, self.least = shape.length, 1.0 if shape.extends else -math.inf

    def temperature(self, index: Tensor, like: Tensor) -> Tensor:
        """ln(i + 1) / ln(L)."""
        return (torch.log(index.to(like.dtype) + 1) / math.log(self.length)).clamp(min=self.least)


# ------------------------------------------------------------------------------------------------ extensions of trained models


class Extension(Piece):
    """What changes a trained model without touching its weights: a piece of `extend`, never of `pos`."""

    extends = True
    by_length: bool = False  # whether what it does depends on the length of the text
    over_others: bool = False  # of a map of frequencies: may follow another one
    first: int = 0  # of a map of frequencies: how many first positions keep their own

    def factor(self, total: int) -> float | None:
        """By how much the text is thought to be longer than training's; None where the extension knows no such number."""
        return None

    @classmethod
    def only_for(cls, pieces: list[Piece]) -> str:
        """Why it does not extend a scheme of these pieces, where more is asked than the hooks imply; empty where it does."""
        return ""


class Scaled(Extension):
    """An extension by a factor s: auto is max(1, N / L), N the length of the text, L the length first trained at."""

    def __init__(self, shape: Shape, *, factor: float | str = "auto") -> None:
        super().__init__()
        require(
            factor == "auto" or (isinstance(factor, (int, float)) and factor >= 1),
            f"{scheme_name(type(self))}: factor is auto or a number of at least 1, not {factor}",
        )
        self.length, self.given, self.by_length = shape.length, factor, factor == "auto"

    def factor(self, total: int) -> float:
        """The factor in force in a text of `total` tokens."""
        return max(1.0, total / self.length) if self.given == "auto" else float(self.given)


class Pi(Scaled):
    """theta_m / s: position interpolation, all positions brought into 0 ... L - 1. Chen et al. 2023 (arXiv 2306.15595).

    Verdict: blurs neighbours, poor untrained; the classic start of a fine-tune.
    """

    def stretch(self, inv_freq: Tensor, base: float, total: int) -> tuple[Tensor, float]:
        """Every pair alike."""
        return inv_freq / self.factor(total), 1.0


class Ntk(Scaled):
    """theta_m s^(-2m / (d - 2)), a larger base: the fastest pair stays, the slowest is divided by s. bloc97 2023.

    Verdict: no training needed, but a larger factor than N / L; at short L yarn does better (results/extend).
    """

    def stretch(self, inv_freq: Tensor, base: float, total: int) -> tuple[Tensor, float]:
        """base s^(d / (d - 2)); d = 2 would leave no pair between the first and the last."""
        require(len(inv_freq) > 1, "ntk needs at least two pairs of turned columns")
        return inv_freq * self.factor(total) ** (
            -torch.arange(len(inv_freq)).double() / (len(inv_freq) - 1)
        ), 1.0


class DynamicNtk(Ntk):
    """ntk with s = f N / L - (f - 1) past L, and 1 before it, f = `factor`. emozilla 2023, as in transformers.

    Verdict: ntk that costs nothing below L; with factor=1 it is ntk(factor=auto).
    """

    def __init__(self, shape: Shape, *, factor: float = 1.0) -> None:
        super().__init__(shape, factor=factor)
        self.by_length = True

    def factor(self, total: int) -> float:
        """The factor that ntk is given."""
        return self.given * max(1.0, total / self.length) - (self.given - 1)


class Yarn(Scaled):
    """Slow pairs / s, fast pairs kept, a ramp between; scores x (0.1 ln s + 1)^2. Peng et al. 2023 (arXiv 2309.00071).

    Kept: over `beta` turns within L; divided: under `alpha`. ramp=code is linear in the pair's number between those two
    pairs, rounded outwards (`truncate`), as their code (which runs backwards where the two cross; all pairs are then kept
    or divided here); ramp=turns is linear in the number of turns, as the paper says. `mscale` weighs the logarithm, 0 turns
    the temperature off; `mscale_all_dim` divides it as in DeepSeek.
    Verdict: the usual choice; beta=32 supposes thousands of tokens: at L of 128 and 512 about 4 is best (results/extend).
    """

    def __init__(
        self,
        shape: Shape,
        *,
        factor: float | str = "auto",
        alpha: float = 1.0,
        beta: float = 32.0,
        ramp: str = "code",
        truncate: bool = True,
        mscale: float = 1.0,
        mscale_all_dim: float = 0.0,
    ) -> None:
        super().__init__(shape, factor=factor)
        require(
            0 < alpha < beta,
            f"yarn: alpha and beta are numbers of turns, 0 < alpha < beta, not {alpha} and {beta}",
        )
        require(
            mscale >= 0 and mscale_all_dim >= 0,
            f"yarn: mscale must not be negative, not {min(mscale, mscale_all_dim)}",
        )
        require(ramp in ("code", "turns"), f"yarn: ramp is code or turns, not {ramp}")
        self.alpha, self.beta, self.ramp, self.truncate = alpha, beta, ramp, truncate
        self.mscale, self.mscale_all_dim = mscale, mscale_all_dim

    def kept(self, inv_freq: Tensor, base: float) -> Tensor:
        """How much of each frequency (F,) is kept: 1 for fast pairs, 0 for slow ones."""
        if self.ramp == "turns":
            return (
                (self.length * inv_freq / (2 * math.pi) - self.alpha) / (self.beta - self.alpha)
            ).clamp(0, 1)
        require(
            base > 1,
            "yarn: with base = 1 all pairs turn alike, and there is no band between fast and slow ones",
        )
        width = 2 * len(inv_freq)
        low, high = (
            width * math.log(self.length / (2 * math.pi * turns)) / (2 * math.log(base))
            for turns in (self.beta, self.alpha)
        )  # the pairs, not whole, that turn so often within L
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, width - 1)
        return 1 - ((torch.arange(len(inv_freq)).double() - low) / max(high - low, 0.001)).clamp(
            0, 1
        )

    def stretch(self, inv_freq: Tensor, base: float, total: int) -> tuple[Tensor, float]:
        """Frequencies by the ramp; the temperature is the quotient of two factors, of which the second is 1 by default."""
        factor, kept = self.factor(total), self.kept(inv_freq, base)
        over, under = (
            1 + 0.1 * weight * math.log(factor) for weight in (self.mscale, self.mscale_all_dim)
        )
        return inv_freq / factor * (1 - kept) + inv_freq * kept, over / under


class Llama3(Scaled):
    """theta_m kept over `high` turns within L, / s under `low`, blended by turns between them. Llama 3.1, 2024.

    Verdict: yarn's idea without a temperature; its high=4 suits short training better than yarn's beta=32.
    """

    def __init__(
        self, shape: Shape, *, factor: float | str = "auto", low: float = 1.0, high: float = 4.0
    ) -> None:
        super().__init__(shape, factor=factor)
        require(
            0 <= low < high,
            f"llama3: low and high are numbers of turns, 0 <= low < high, not {low} and {high}",
        )
        self.low, self.high = low, high

    def stretch(self, inv_freq: Tensor, base: float, total: int) -> tuple[Tensor, float]:
        """A blend of theta / s and theta."""
        kept = ((self.length * inv_freq / (2 * math.pi) - self.low) / (self.high - self.low)).clamp(
            0, 1
        )
        return (1 - kept) * inv_freq / self.factor(total) + kept * inv_freq, 1.0


class Longrope(Scaled):
    """theta_m / lambda_m from a file, past L; scores x (1 + ln s / ln L); Ding et al. 2024 (arXiv 2402.13753).

    The JSON file holds `long_factor`, a number for each pair, and may hold `short_factor` for texts within L and `first`,
    how many first positions keep the original frequencies. `extend.py --search` makes one.
    Verdict: what a search finds; at 4 L a little better than yarn, the best of what it starts from (results/extend).
    """

    def __init__(self, shape: Shape, *, file: str, factor: float | str = "auto") -> None:
        super().__init__(shape, factor=factor)
        self.file = named_file(file, shape.folder)
        try:
            content = json.loads(self.file.read_text(encoding="utf-8"))
            self.long, self.first = positive(content["long_factor"]), content.get("first", 0)
            self.short = positive(content.get("short_factor", [1.0] * len(self.long)))
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            OverflowError,
            RecursionError,
        ) as error:
            raise UserError(
                f"longrope: {file} is no JSON file with a list long_factor "
                f"({type(error).__name__}: {error})"
            ) from None
        require(
            len(self.long) == len(self.short)
            and type(self.first) is int
            and 0 <= self.first <= 2**53,
            f"longrope: {file} needs lists of one length, and first a whole number from 0 to 2**53",
        )
        self.found_on, found_at = (
            content.get("split_sha256"),
            content.get("train_length", self.length),
        )
        require(
            found_at == self.length,
            f"longrope: {file} was searched for a model trained at L = {found_at!s:.20}, this one "
            f"was at {self.length}: search anew with extend.py --search",
        )

    def stretch(self, inv_freq: Tensor, base: float, total: int) -> tuple[Tensor, float]:
        """Divided pair by pair."""
        factors = self.long if total > self.length else self.short
        require(
            len(factors) == len(inv_freq),
            f"longrope: {self.file} has factors for {len(factors)} pairs, not {len(inv_freq)}",
        )
        attention = math.sqrt(1 + math.log(self.factor(total)) / math.log(max(2, self.length)))
        return inv_freq / inv_freq.new_tensor(factors), attention


def positive(values: object) -> list[float]:
    """Numbers from 1e-6 to 1e6 out of JSON; ValueError for anything else."""
    if not (
        isinstance(values, list)
        and all(type(x) in (int, float) and 1e-6 <= x <= 1e6 for x in values)
    ):
        raise ValueError("a list of numbers from 1e-6 to 1e6 is needed")
    return [float(x) for x in values]


def named_file(name: str, folder: Path | None) -> Path:
    """The file that an option names: the run folder's own copy of it, if there is one, else as named."""
    copy = folder / Path(name).name if folder else Path(name)
    return copy if copy.is_file() else Path(name)


# ------------------------------------------------------------------------------------------------ names


def scheme_name(cls: type) -> str:
    """CamelCase -> snake_case: the name of a piece in expressions."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", cls.__name__).lower()
