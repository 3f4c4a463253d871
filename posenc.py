"""The contract of a position scheme, the pure functions, and the schemes and extensions of the
textbooks.

A scheme is an expression: `alibi`, `rope(base=500000)`, `rope + alibi`, `rope | rope | rope |
nope`. `+` lets pieces act together. `|` is a pattern over layers. Each name is a `Piece`, a small
module that overrides the methods it needs. Every other scheme is one file in zoo/, loaded exactly
as a user's own `--pos_file`. A second expression, `extend`, changes a model that is trained
already: `yarn(factor=8) + logn`. `python explain.py 'rope + logn'` explains an expression.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from configurable import check_shape, read_json, require

Bias = Callable[[Tensor, Tensor, Tensor], Tensor]  # f(head, query id, key id): added to the score
Mask = Callable[[Tensor, Tensor], Tensor]  # g(query index, key index): True where the key is seen
Turn = Callable[[Tensor], Tensor]  # (B, H, T, D) -> (B, H, T, D')
Table = tuple[Tensor, float]  # frequencies (F,) in float64, and what multiplies cosines and sines


# ---- numbers that are made once

OLD = torch.__version__ < "2.13"  # its compiler takes no module among the arguments of a constant


def once(make: Callable[..., Table], device: torch.device | str, *about: object) -> Table:
    """make(*about) on the device, made once and kept there; a constant in compiled code.

    It depends on nothing but `about`. What gradients flow into is made anew in every call.
    """
    found = None if OLD and torch.compiler.is_compiling() else _constant(make, device, *about)
    numbers, factor = found or make(*about)
    return numbers.to(device), factor


def _constant(make: Callable[..., Table], device: torch.device | str, *about: object) -> object:
    return _kept(make, device, *about)


# torch.compiler.assume_constant_result does this, and loads the compiler for seconds
_constant._dynamo_marked_constant = True


@lru_cache(maxsize=256)
def _kept(make: Callable[..., Table], device: torch.device | str, *about: object) -> Table | None:
    with torch.inference_mode(False), torch.enable_grad():
        numbers, factor = make(*about)
        return None if numbers.requires_grad else (numbers.to(device), factor)


def constant(numbers: Sequence[float], like: Tensor) -> Tensor:
    """like.new_tensor(numbers), but made once, so that no GPU is waited for. Do not change it."""
    return once(_listed, like.device, like.dtype, *numbers)[0]


def _listed(dtype: torch.dtype, *numbers: float) -> Table:
    return torch.tensor(numbers, dtype=dtype), 1.0


# ---- pure functions


def start_deviation(width: int) -> float:
    """The deviation of weights at the start: 0.02 at GPT-2's width, as 1 / sqrt(width) at others.

    With 0.02 at a width of 128, products of queries and keys start so small that models stay for
    hundreds of steps where nothing is recalled (results/log.md).
    """
    return 0.02 * math.sqrt(768 / width)


@torch.library.custom_op("longshot::cos_sin", mutates_args=())
def cos_sin(positions: Tensor, inv_freq: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of position x frequency, float32, shape positions.shape + (F,).

    Angles are formed in float64. inv_freq is (F,), or (..., T, F) with another one for each
    position. This is an operator of its own so that torch.compile keeps the float64.
    """
    exact = exact_device(positions)
    angles = positions.to(exact, torch.float64)[..., None] * inv_freq.to(exact, torch.float64)
    return tuple(f(angles).to(positions.device, torch.float32) for f in (torch.cos, torch.sin))


@cos_sin.register_fake
def _(positions: Tensor, inv_freq: Tensor) -> tuple[Tensor, Tensor]:
    shape = (*positions.shape, inv_freq.shape[-1])
    return tuple(positions.new_empty(shape, dtype=torch.float32) for _ in range(2))


def _save_for_gradient(ctx, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, *output)


def _gradient(ctx, of_cos: Tensor, of_sin: Tensor) -> tuple[Tensor, Tensor]:
    positions, inv_freq, cos, sin = ctx.saved_tensors  # positions may be learned: zoo/smooth.py
    of_angles = (of_sin * cos - of_cos * sin).to(inv_freq)  # its device and dtype
    of_positions = (of_angles * inv_freq).sum(-1).to(positions)
    of_inv_freq = of_angles * positions.to(inv_freq.device)[..., None]
    return of_positions, of_inv_freq.sum_to_size(inv_freq.shape)


cos_sin.register_autograd(_gradient, setup_context=_save_for_gradient)


def exact_device(like: Tensor) -> torch.device | str:
    """Where float64 can be computed for a tensor: its own device, but the CPU for mps."""
    return "cpu" if like.device.type == "mps" else like.device


def rope_frequencies(head_dim: int, base: float = 10000.0) -> Table:
    """RoPE's (inv_freq, attention_factor): theta_m = base^(-2m/d), (head_dim / 2,), and 1.0.

    Su et al. 2021 (arXiv 2104.09864). UserError for an odd head_dim.
    """
    even = head_dim > 0 and head_dim % 2 == 0
    require(even, f"rope turns pairs of columns: it needs an even dimension, not {head_dim}")
    return base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim), 1.0


def apply_maps(table: Table, maps: Sequence["Piece"], base: float, total: int) -> Table:
    """The table after each frequency map in turn, for a text of `total` tokens."""
    inv_freq, factor = table
    for piece in maps:
        inv_freq, more = piece.map_frequencies(inv_freq, base, total)
        factor *= more
    return inv_freq, factor


def rotate(x: Tensor, positions: Tensor, inv_freq: Tensor, layout: str = "half") -> Tensor:
    """Turn x (..., T, D) by the angles positions x inv_freq.

    positions are (T,) or (B, T), inv_freq is (F,) with F <= D / 2. Layout `half` pairs columns (m,
    m + F) as GPT-NeoX and Llama do in transformers; `interleaved` pairs (2m, 2m + 1) as RoFormer
    and GPT-J do. Columns past 2F are unchanged.
    """
    if positions.dim() == 2:  # (B, T) -> (B, 1, ..., T)
        positions = positions.reshape(len(positions), *[1] * (x.dim() - 3), -1)
    cos, sin = cos_sin(positions, inv_freq)
    return turn(x, cos, sin, layout)


def turn(x: Tensor, cos: Tensor, sin: Tensor, layout: str) -> Tensor:
    """Rotate the column pairs of x (..., T, D) by tables (..., T, F); in float32, then x.dtype."""
    n = 2 * cos.shape[-1]
    if layout == "half":
        a, b = x[..., : n // 2], x[..., n // 2 : n]
        pairs = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    else:
        a, b = x[..., 0:n:2], x[..., 1:n:2]
        pairs = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
    return torch.cat((pairs.to(x.dtype), x[..., n:]), -1)


def sinusoids(positions: Tensor, width: int, base: float = 10000.0) -> Tensor:
    """Sinusoidal vectors (T, width), float32: all sines, then all cosines, of p base^(-2m/width).

    Vaswani et al. 2017 (arXiv 1706.03762) interleave them: the same columns in another order.
    """
    inv_freq, _ = once(rope_frequencies, exact_device(positions), width, base)
    return torch.cat(cos_sin(positions, inv_freq)[::-1], -1)


def alibi_slopes(n_head: int) -> Tensor:
    """ALiBi's slopes, (n_head,) float32: 2^(-8h/H) where H is a power of two.

    For another H they are those of the power of two below, then every other slope of the power of
    two above. Press et al. 2021 (arXiv 2108.12409) and their code.
    """
    floor = 2 ** int(math.log2(n_head))
    slopes = [2 ** (-8 * h / floor) for h in range(1, floor + 1)]
    slopes += [2 ** (-4 * h / floor) for h in range(1, 2 * floor, 2)]
    return torch.tensor(slopes[:n_head])


def widened(ids: Tensor) -> Tensor:
    """Positions as real numbers, in float64 where the device has it, so that neighbours differ."""
    return ids.to(torch.float32 if ids.device.type == "mps" else torch.float64)


def taper(pairs: int) -> Tensor:
    """A raised cosine from 1 to 0 over so many pairs, (pairs,) float64; 0 for a single one."""
    start = 0 if pairs > 1 else math.pi
    return (1 + torch.linspace(start, math.pi, pairs, dtype=torch.float64).cos()) / 2


def t5_buckets(distance: Tensor, num_buckets: int = 32, max_distance: int = 128) -> Tensor:
    """T5's causal buckets (long) of distance = query - key >= 0.

    Each distance below num_buckets / 2 has its own bucket. Then they grow logarithmically; the last
    one holds all from max_distance on. Raffel et al. 2019 (arXiv 1910.10683), in the order of
    operations of their code.
    """
    exact, distance = num_buckets // 2, distance.long()  # positions may be real numbers
    far = torch.log(distance.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    far = (exact + (far * (num_buckets - exact)).long()).clamp(max=num_buckets - 1)
    return torch.where(distance < exact, distance, far)


# ---- the contract


@dataclass(frozen=True)
class Shape:
    """What a piece may know of the model it serves; `length` is the length first trained at, in
    tokens.

    `trained`: the piece is put on a model that is trained already. `folder`: where files that
    options name are looked for first.
    """

    n_head: int
    head_dim: int
    width: int
    length: int
    trained: bool = False
    folder: Path | None = None


@dataclass(frozen=True)
class Text:
    """What `embed` may read besides ids: the tokens so far (B, S), the new ones last, and the total
    length that the text will reach."""

    tokens: Tensor
    total: int


@dataclass(frozen=True)
class Tile:
    """R queries against the first C keys in one layer, everything in float32 or wider.

    q (B, H, R, D) and k (B, H, C, D) are turned, and q is multiplied by the temperature. scores (B,
    H, R, C) are q k^T / sqrt(D). added broadcasts to scores: the biases, and -inf where the query
    may not see the key. i (..., R, 1) and j (..., 1, C) are position ids; rows (R, 1) and columns
    (C,) are places in the text. features_k (B, C, M) come from `features` and `along`.
    """

    q: Tensor
    k: Tensor
    scores: Tensor
    added: Tensor
    i: Tensor
    j: Tensor
    rows: Tensor
    columns: Tensor
    features_k: Tensor | None = None

    @property
    def seen(self) -> Tensor:
        """True where the query may see the key."""
        return self.added > -math.inf


@dataclass(frozen=True)
class Region:
    """Where distances are rewritten: a query id i and a key id j for which where(i, j) holds meet
    as if they stood at query(i) and key(j).
    """

    query: Callable[[Tensor], Tensor]
    key: Callable[[Tensor], Tensor]
    where: Mask


class Piece(nn.Module):
    """One position scheme. Override the methods it needs; each of them does nothing by default.

    The class name in snake_case is the name of the scheme. Keyword-only arguments of __init__ are
    its options, checked against their annotations. A score is q.k / sqrt(d) x temperature + bias. i
    and j are position ids, j <= i. Make tensors inside a method with `constant(numbers, like)`: it
    has the right device and a dtype of float32 or wider.
    """

    limit: int | None = None  # how many positions it defines; a piece with ids(): how long a text
    span: tuple[int, int] | None = None  # of a mask: no key is seen but the last and the first few
    per_layer: bool = False  # whether each layer has its own, where the expression does not say
    continuous: bool = False  # whether the position ids it gives are real numbers
    can_extend: bool = False  # whether `extend` may name it: it acts on a trained model
    reads_ids: bool = True  # whether what it computes depends on position ids
    by_head: bool = False  # whether it turns the keys of each head in another way
    conflicts: tuple[str, ...] = ()  # names of schemes that cannot act in the same layer
    file: Path | None = None  # the file that an option names
    found_on: str | None = None  # SHA-256 of the text that its numbers were found on
    first: int = 0  # of a frequency map: how many first positions keep their own frequencies
    goes_last: bool = False  # of a frequency map: it may act after another one

    def ids(self, index: Tensor, total: int) -> Tensor:
        """Position ids of the tokens at `index` (T,) or (B, T) in a text of `total` tokens."""
        return index

    def draw(self, length: int, generator: torch.Generator) -> Tensor:
        """Random position ids (length,) of one training step."""
        return torch.arange(length)

    def embed(self, ids: Tensor, text: Text) -> Tensor:
        """(T, C) or (B, T, C), added to the embedding of the tokens with these ids, the last of
        `text`.
        """

    def frequencies(self, total: int) -> Table:
        """Of a rotary scheme: (inv_freq float64 (F,), attention factor) in a text of `total`
        tokens. It is asked once for each length, unless gradients flow into the frequencies.
        """

    def turn(self, ids: Tensor, total: int, maps: Sequence["Piece"] = ()) -> tuple[Turn, Turn]:
        """How queries and how keys at `ids` are turned; `maps` are the active frequency maps."""

    def bias(self, like: Tensor) -> Bias:
        """f(h, i, j), what attention.added_scores adds to the scores.

        h are heads, i and j <= i ids of queries and keys: integers, or real numbers where a scheme
        gives such positions. They broadcast; only pointwise operations and indexing may be used.
        """

    def temperature(self, index: Tensor, like: Tensor) -> Tensor:
        """(T,) or (H, T): what multiplies the scores of the query at `index`, which sees index + 1
        keys.
        """

    def mask(self) -> Mask:
        """g(i, j) of indexes: True where query i may see key j. The model adds causality."""

    def features(self, x: Tensor) -> Tensor:
        """(B, T, M) numbers from a layer's normalised input x (B, T, C), kept with the keys for
        `along` and `score`.
        """

    def along(self, q: Tensor, k: Tensor, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q (B, H, T, D), k (B, H, S, D) and features (B, S, M) as scores take them: once for each
        layer, where sums run along the text. The queries are the last T of the S tokens.
        """
        return q, k, features

    def score(self, tile: Tile) -> Tensor:
        """The whole score (B, H, R, C), where a bias will not do. Unseen keys are masked after."""

    def map_frequencies(self, inv_freq: Tensor, base: float, total: int) -> Table:
        """Of an extension: frequencies (F,), float64, as they become in a text of `total` tokens,
        and what multiplies cosines and sines (and so the scores twice).
        """

    def pack(self, x: Tensor) -> tuple[Tensor, ...]:
        """Of an extension: what the cache keeps of keys or values x (B, heads, T, D), in parts (B,
        heads, T, M).
        """

    def unpack(self, *parts: Tensor) -> Tensor:
        """Keys or values (B, heads, T, D) again, from the parts that `pack` made."""

    def regions(self, total: int) -> list[Region]:
        """Of an extension: other distances. The last region that holds counts; elsewhere nothing
        changes.
        """


def overrides(piece: Piece | type[Piece], method: str) -> bool:
    """Whether a piece, or a class of pieces, overrides that method of Piece."""
    cls = piece if isinstance(piece, type) else type(piece)
    return getattr(cls, method) is not getattr(Piece, method)


def scheme_name(piece: Piece | type[Piece]) -> str:
    """The name of a piece in expressions: its class name, from CamelCase to snake_case."""
    cls = piece if isinstance(piece, type) else type(piece)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", cls.__name__).lower()


# ---- schemes


class Nope(Piece):
    """Nothing: order is known from the causal mask alone.

    Haviv et al. 2022, Kazemnejad et al. 2023 (arXiv 2305.19466).
    Verdict: its loss was the highest of six schemes at L, and it grows past L (results/stdlib-six).
    Kazemnejad et al. 2023 find it the best of five on algorithmic tasks.
    """


class Learned(Piece):
    """A trained vector for each position, added to the token embedding (GPT-2).

    Parameter: table (rows, C); `rows` defaults to the training length. A position past the table is
    refused. `resize` = linear or bicubic stretches the table over a longer text instead, as vision
    transformers do (Touvron et al. 2020).
    Verdict: a text longer than the table is refused, unless `resize` is given. Within L its loss
    was 0.05 nats above rope's (results/stdlib-six).
    """

    def __init__(self, shape: Shape, *, rows: int | None = None, resize: str = "none") -> None:
        super().__init__()
        rows = shape.length if rows is None else rows
        require(0 < rows <= 2**24, f"learned: rows must lie between 1 and 2**24, not {rows}")
        known = resize in ("none", "linear", "bicubic")
        require(known, f"learned: resize is none, linear or bicubic, not {resize}")
        self.resize = resize
        self.limit = rows if resize == "none" else None
        table = torch.empty(rows, shape.width).normal_(std=start_deviation(shape.width))
        self.table = nn.Parameter(table)

    def embed(self, ids: Tensor, text: Text) -> Tensor:
        """The rows of the table, or of the stretched table, at `ids`."""
        table = self.table
        if self.resize != "none" and text.total > len(table):
            mode = "bilinear" if self.resize == "linear" else self.resize
            image = table.T[None, ..., None]  # (rows, C) -> (1, C, rows, 1) -> (total, C)
            image = nn.functional.interpolate(image, size=(text.total, 1), mode=mode)
            table = image[0, ..., 0].T
        return nn.functional.embedding(ids, table)


class Sinusoidal(Piece):
    """scale x [sin(p w_m), cos(p w_m)], w_m = base^(-2m/C), added to the token embedding.

    Vaswani et al. 2017, where token embeddings are as large as the sinusoids (scale 1). Here they
    start smaller (`start_deviation`) and grow in training. With scale=0.02 positions drown, with 1
    the tokens do: trained from a start of 0.02 at n_embd = 128, the scales 0.02, 0.05, 0.1, 0.2 and
    1 left 0.48, 0.19, 0.13, 0.25 and 1.0 nats to rope at L (results/in-length).
    Verdict: its loss was 0.07 nats above rope's at L, and rose from 1.43 there to 3.84 at 2 L
    (results/stdlib-six).
    """

    def __init__(self, shape: Shape, *, base: float = 10000.0, scale: float = 0.1) -> None:
        super().__init__()
        require(shape.width % 2 == 0, f"sinusoidal needs an even n_embd, not {shape.width}")
        require(base >= 1, f"sinusoidal: base must be at least 1, not {base}")
        self.width, self.base, self.scale = shape.width, base, scale

    def embed(self, ids: Tensor, text: Text) -> Tensor:
        """Scaled sinusoids of `ids`."""
        return self.scale * sinusoids(ids, self.width, self.base)


class Rotary(Piece):
    """What rotary schemes share: a `base`, and tables of cosines and sines under frequency maps."""

    base: float

    def cos_sin(self, ids: Tensor, total: int, maps: Sequence[Piece] = ()) -> tuple[Tensor, Tensor]:
        """Cosines and sines of `ids`, (..., T, F), in a text of `total` tokens, under the maps,
        times the attention factor.
        """
        inv_freq, factor = self.table(ids, total, maps)
        cos, sin = cos_sin(ids, inv_freq)
        return (cos, sin) if factor == 1.0 else (cos * factor, sin * factor)

    def table(self, ids: Tensor, total: int, maps: Sequence[Piece] = ()) -> Table:
        """The frequencies at `ids` under the maps, (F,) or (..., T, F), and the attention factor.

        They are where angles are formed, made once for a length.
        """
        device, length = exact_device(ids), range(total).stop  # a constant in compiled code too
        inv_freq, factor = once(_mapped, device, length, self, *maps)
        if first := max([0, *(piece.first for piece in maps)]):
            own, _ = once(_mapped, device, length, self)
            inv_freq = torch.where((ids < first).to(device)[..., None], own, inv_freq)
        return inv_freq, factor


def _mapped(total: int, rotary: Rotary, *maps: Piece) -> Table:
    return apply_maps(rotary.frequencies(total), maps, rotary.base, total)


class Rope(Rotary):
    """Turn pair m of q and k at position p by p base^(-2m/d), so that scores depend on i - j.

    Su et al. 2021 (arXiv 2104.09864). `fraction` of each head's columns is turned, with the
    exponents of that fraction (GPT-J, GPT-NeoX). `p` keeps the fastest int(p F) of F pairs and
    leaves the rest unturned (p-RoPE, Barbero et al. 2024). `clip` slows the slowest `clip` pairs by
    a cosine taper, the last one to 0 (Li et al. 2026, arXiv 2602.05258). `layout` is half or
    interleaved: the same function of permuted columns.
    Verdict: its loss was 0.05 nats above alibi's at L, and rose from 1.36 there to 2.91 at 2 L
    (results/stdlib-six).
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
        known = layout in ("half", "interleaved")
        require(known, f"rope: layout is half or interleaved, not {layout}")
        self.columns, self.base, self.layout = int(fraction * shape.head_dim), base, layout
        self.p, self.clip = p, clip
        pairs = len(self.frequencies(shape.length)[0])  # an odd number of columns is refused here
        require(0 <= clip <= pairs, f"rope: clip must lie between 0 and {pairs} pairs, not {clip}")

    def frequencies(self, total: int) -> Table:
        """The same for every length."""
        inv_freq, factor = rope_frequencies(self.columns, self.base)
        inv_freq[int(self.p * len(inv_freq)) :] = 0.0
        if self.clip > 0:
            inv_freq[-self.clip :] *= taper(self.clip)
        return inv_freq, factor

    def turn(self, ids: Tensor, total: int, maps: Sequence[Piece] = ()) -> tuple[Turn, Turn]:
        """Queries and keys alike; the tables are made here, once per forward."""
        cos, sin = self.cos_sin(ids, total, maps)
        if ids.dim() == 2:  # (B, T, F) -> (B, 1, T, F)
            cos, sin = cos[:, None], sin[:, None]

        def turned(x: Tensor) -> Tensor:
            return turn(x, cos, sin, self.layout)

        return turned, turned


COLUMNS = 2**12  # of an image at most


class Grid(Piece):
    """What schemes of images share: a text is a square image, row by row, and an id is its place.

    A text of N tokens has the side isqrt(N). Index k stands for the patch that is predicted from
    token k, where token 0 is no patch: it starts the image. An id is row x COLUMNS + column, so ids
    ascend. After the last row of the square follow further ones.
    """

    def side(self, total: int) -> int:
        """How many patches a row of a text of `total` tokens has, at least 1."""
        return max(1, math.isqrt(range(total).stop))  # a constant in compiled code too

    def ids(self, index: Tensor, total: int) -> Tensor:
        """row x COLUMNS + column."""
        side = self.side(total)
        return index // side * COLUMNS + index % side

    def places(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The rows and the columns of ids."""
        return ids // COLUMNS, ids % COLUMNS


class Alibi(Piece):
    """score += -m_h (i - j), m_h fixed per head (`alibi_slopes`). Press et al. 2021 (arXiv
    2108.12409).

    `learned` trains the slopes: softplus of a parameter raw (H,), started at the published ones.
    The paper found no gain.
    Verdict: its loss stayed within 0.01 nats up to 32 L, also where only the last L keys were seen
    (results/main-job, one seed). In Anson et al. 2025 it found 2 % of the facts hidden in 4 L.
    """

    def __init__(self, shape: Shape, *, learned: bool = False) -> None:
        super().__init__()
        slopes = alibi_slopes(shape.n_head)
        self.slopes = slopes.tolist()  # Python numbers: .to(bfloat16) cannot round them
        self.raw = nn.Parameter(slopes.expm1().log()) if learned else None  # softplus undone

    def bias(self, like: Tensor) -> Bias:
        """-m_h (i - j)."""
        slopes = constant(self.slopes, like)
        if self.raw is not None:
            slopes = nn.functional.softplus(self.raw.to(like.dtype))
        return lambda h, i, j: slopes[h] * (j - i)


class T5(Piece):
    """score += table[bucket(i - j), h], with `t5_buckets`. Raffel et al. 2019 (arXiv 1910.10683).

    Parameter: table (buckets, H), shared by all layers as in T5. `max_distance` defaults to half
    the training length, so that every entry is trained. Unlike T5, scores keep their 1 / sqrt(d).
    Verdict: breaks more slowly than rope: its loss rose by 0.10 nats at 2 L and by 0.40 at 4 L
    (results/stdlib-six).
    """

    def __init__(self, shape: Shape, *, buckets: int = 32, max_distance: int | None = None) -> None:
        super().__init__()
        even = 2 <= buckets <= 2**16 and buckets % 2 == 0
        require(even, f"t5: buckets must be even, from 2 to 2**16, not {buckets}")
        self.buckets, exact = buckets, buckets // 2
        if max_distance is None:
            max_distance = max(exact + 1, shape.length // 2)
        above = f"t5: max_distance must exceed buckets / 2 = {exact}, not {max_distance}"
        require(max_distance > exact, above)
        self.max_distance = max_distance
        self.table = nn.Parameter(torch.zeros(buckets, shape.n_head))

    def bias(self, like: Tensor) -> Bias:
        """The entry of the distance's bucket."""
        table = self.table.to(like.dtype)
        return lambda h, i, j: table[t5_buckets(i - j, self.buckets, self.max_distance), h]


class Window(Piece):
    """A query sees the last `size` keys, itself included, and the first `sinks` keys.

    Beltagy et al. 2020 (arXiv 2004.05150), sinks after Xiao et al. 2023 (arXiv 2309.17453). It is a
    mask: positions stay as they are.
    Verdict: reads only a window, so the loss stays flat: a trained rope lost 0.002 nats at 16 L
    (results/extend). Each layer passes on size - 1 more tokens of context.
    """

    can_extend = True

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
    """Train with L sorted positions drawn from 0 ... max - 1, one draw a step; test with floor(k
    max / N).

    Ruoss et al. 2023 (arXiv 2305.16843). `test=draw` draws at test too, as they do. A text longer
    than `max` is refused.
    Verdict: `randomized(max=4096) + rope` reads beyond L, 0.64 of the questions 8 to 16 L back, and
    its loss rises by 1.1 nats at 32 L (results/board). Ruoss et al. 2023 recommend it for tasks.
    """

    def __init__(self, shape: Shape, *, max: int, test: str = "spread") -> None:
        super().__init__()
        sentence = f"randomized: max must lie between the training length {shape.length} and 2**24"
        require(shape.length <= max <= 2**24, f"{sentence}, not {max}")
        require(test in ("spread", "draw"), f"randomized: test is spread or draw, not {test}")
        self.limit, self.test = max, test

    def ids(self, index: Tensor, total: int) -> Tensor:
        """floor(index max / total), or a fixed draw for that total length."""
        if not torch.compiler.is_compiling() and index.numel():
            last = int(index.max())
            require(last < total, f"randomized: place {last} is not in a text of {total} tokens")
        if self.test == "spread":
            return index * self.limit // total
        return self.draw(total, torch.Generator().manual_seed(total)).to(index.device)[index]

    def draw(self, length: int, generator: torch.Generator) -> Tensor:
        """Sorted, without repeats."""
        enough = length <= self.limit
        require(enough, f"randomized(max={self.limit}) has no {length} different positions")
        return torch.randperm(self.limit, generator=generator)[:length].sort().values


class Logn(Piece):
    """scores x ln(n) / ln(L): n is the number of keys up to the query, L the training length.

    Su 2021, Chiang & Cholak 2022. On a trained model (`extend`) it is at least 1, so that nothing
    changes within L.
    Verdict: in Anson et al. 2025 (L = 4096) `rope + logn` lost 0.12 nats at 16 L, rope alone 2.0.
    On models trained at L = 128, with or without it, no gain was sure (results/contested, extend).
    """

    can_extend = True

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        require(shape.length > 1, "logn divides by ln(L): it needs a training length above 1")
        self.length, self.least = shape.length, 1.0 if shape.trained else -math.inf

    def temperature(self, index: Tensor, like: Tensor) -> Tensor:
        """ln(i + 1) / ln(L)."""
        numbers = torch.log(index.to(like.dtype) + 1) / math.log(self.length)
        return numbers.clamp(min=self.least)


# ---- extensions of trained models


class Extension(Piece):
    """What changes a trained model and leaves its weights alone: a piece of `extend`, never of
    `pos`.
    """

    can_extend = True

    def factor(self, total: int) -> float | None:
        """How many times longer than training it takes the text to be; None where it has no such
        number.
        """
        return None


class Scaled(Extension):
    """An extension by a factor s. auto is max(1, N / L): N is the text's length, L the one first
    trained at.
    """

    def __init__(self, shape: Shape, *, factor: float | str = "auto") -> None:
        super().__init__()
        good = factor == "auto" or (isinstance(factor, (int, float)) and factor >= 1)
        name = scheme_name(self)
        require(good, f"{name}: factor is auto or a number of at least 1, not {factor}")
        self.length, self.given = shape.length, factor

    def factor(self, total: int) -> float:
        """The factor in a text of `total` tokens."""
        return max(1.0, total / self.length) if self.given == "auto" else float(self.given)


class Pi(Scaled):
    """theta_m / s: position interpolation, which brings all positions into 0 ... L - 1.

    Chen et al. 2023 (arXiv 2306.15595).
    Verdict: Chen et al. 2023 fine-tune with it to 16 L in 1,000 steps. Without a fine-tune its
    loss is above that of no extension at 4 L, but it answers most questions (results/extend).
    """

    def map_frequencies(self, inv_freq: Tensor, base: float, total: int) -> Table:
        """Every pair alike."""
        return inv_freq / self.factor(total), 1.0


class Ntk(Scaled):
    """theta_m s^(-2m / (d - 2)), a larger base: the fastest pair stays, the slowest is divided by
    s.

    bloc97 2023.
    Verdict: a trained rope lost 0.33 nats at 2 L with it, 0.06 with yarn, and 0.64 with neither
    (results/extend).
    """

    def map_frequencies(self, inv_freq: Tensor, base: float, total: int) -> Table:
        """base s^(d / (d - 2)); d = 2 would leave no pair between the first and the last."""
        pairs = len(inv_freq)
        require(pairs > 1, "ntk needs at least two pairs of turned columns")
        return inv_freq * self.factor(total) ** (-torch.arange(pairs).double() / (pairs - 1)), 1.0


class DynamicNtk(Ntk):
    """ntk with s = f N / L - (f - 1) past L, and 1 before it; f is `factor`.

    emozilla 2023, as in transformers.
    Verdict: changes nothing in texts up to L (results/extend). With factor=1 it is
    ntk(factor=auto).
    """

    def __init__(self, shape: Shape, *, factor: float = 1.0) -> None:
        super().__init__(shape, factor=factor)

    def factor(self, total: int) -> float:
        """The factor that ntk is given."""
        return self.given * max(1.0, total / self.length) - (self.given - 1)


class Yarn(Scaled):
    """Slow pairs / s, fast pairs kept, a ramp between; scores x (0.1 ln s + 1)^2.

    Peng et al. 2023 (arXiv 2309.00071). Pairs with over `beta` turns within L are kept, those with
    under `alpha` are divided. ramp=code is linear in the pair's number between those two pairs,
    rounded outwards (`truncate`), as their code; where the two cross their code runs backwards, and
    here all pairs are kept or divided. ramp=turns is linear in the number of turns, as the paper
    says. `mscale` weighs the logarithm, 0 turns the temperature off; `mscale_all_dim` divides it as
    in DeepSeek.
    With factor=auto (dynamic YaRN) fix the final length before decoding, as `generate` does: a
    cache holds keys that were turned for one length.
    Verdict: a trained rope lost 0.06 nats at 2 L with it, 0.64 without (results/extend). beta=32
    assumes thousands of tokens: at L of 128 and 512, with ramp=turns, about 3.5 was best.
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
        turns = f"0 < alpha < beta, not {alpha} and {beta}"
        require(0 < alpha < beta, f"yarn: alpha and beta are numbers of turns, {turns}")
        least = min(mscale, mscale_all_dim)
        require(least >= 0, f"yarn: mscale must not be negative, not {least}")
        require(ramp in ("code", "turns"), f"yarn: ramp is code or turns, not {ramp}")
        self.alpha, self.beta, self.ramp, self.truncate = alpha, beta, ramp, truncate
        self.mscale, self.mscale_all_dim = mscale, mscale_all_dim

    def kept(self, inv_freq: Tensor, base: float) -> Tensor:
        """How much of each frequency (F,) is kept: 1 for fast pairs, 0 for slow ones."""
        if self.ramp == "turns":
            turns = self.length * inv_freq / (2 * math.pi)
            return ((turns - self.alpha) / (self.beta - self.alpha)).clamp(0, 1)
        require(base > 1, "yarn: with base = 1 all pairs turn alike: none is fast and none is slow")
        width = 2 * len(inv_freq)
        low, high = (  # the pairs, not whole numbers, that turn so often within L
            width * math.log(self.length / (2 * math.pi * turns)) / (2 * math.log(base))
            for turns in (self.beta, self.alpha)
        )
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, width - 1)
        ramp = (torch.arange(len(inv_freq)).double() - low) / max(high - low, 0.001)
        return 1 - ramp.clamp(0, 1)

    def map_frequencies(self, inv_freq: Tensor, base: float, total: int) -> Table:
        """Frequencies by the ramp; the second of the two temperatures is 1 by default."""
        factor, kept = self.factor(total), self.kept(inv_freq, base)
        over, under = (1 + 0.1 * m * math.log(factor) for m in (self.mscale, self.mscale_all_dim))
        return inv_freq / factor * (1 - kept) + inv_freq * kept, over / under


class Llama3(Scaled):
    """theta_m kept over `high` turns within L, / s under `low` turns, a blend between them.

    Llama 3.1, 2024.
    Verdict: the frequencies of yarn(ramp=turns, beta=4), without its temperature. A trained rope
    lost 0.05 nats at 2 L with it, 0.64 without (results/extend).
    """

    def __init__(
        self, shape: Shape, *, factor: float | str = "auto", low: float = 1.0, high: float = 4.0
    ) -> None:
        super().__init__(shape, factor=factor)
        turns = f"llama3: low and high are numbers of turns, 0 <= low < high, not {low} and {high}"
        require(0 <= low < high, turns)
        self.low, self.high = low, high

    def map_frequencies(self, inv_freq: Tensor, base: float, total: int) -> Table:
        """A blend of theta / s and theta."""
        turns = self.length * inv_freq / (2 * math.pi)
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return (1 - kept) * inv_freq / self.factor(total) + kept * inv_freq, 1.0


class Longrope(Scaled):
    """theta_m / lambda_m from a file, past L; scores x (1 + ln s / ln L).

    Ding et al. 2024 (arXiv 2402.13753). The JSON file holds `long_factor`, a number for each pair.
    It may hold `short_factor` for texts within L, and `first`, how many first positions keep the
    original frequencies. `extend.py --search` makes one.
    Verdict: its factors, searched at 4 L, gave a loss 0.02 to 0.06 nats below yarn's on text that
    was not searched on (results/extend).
    """

    def __init__(self, shape: Shape, *, file: str, factor: float | str = "auto") -> None:
        super().__init__(shape, factor=factor)
        self.file = named_file(file, shape.folder)
        content = read_numbers("longrope", self.file, "long_factor", "short_factor")
        self.long, self.first = content["long_factor"], content.get("first", 0)
        self.short = content.get("short_factor", [1.0] * len(self.long))
        whole = type(self.first) is int and 0 <= self.first <= 2**53
        require(whole, f"longrope: {file}: first must be a whole number from 0 to 2**53")
        same = len(self.long) == len(self.short)
        require(same, f"longrope: {file} needs long_factor and short_factor of one length")
        self.found_on, found_at = content.get("split_sha256"), content.get("train_length")
        sentence = f"longrope: {self.file} was searched for a model trained at L = {found_at!s:.20}"
        advice = f"this one was at {self.length}: search again with extend.py --search"
        require(found_at in (None, self.length), f"{sentence}, {advice}")

    def map_frequencies(self, inv_freq: Tensor, base: float, total: int) -> Table:
        """Divided pair by pair."""
        factors = self.long if total > self.length else self.short
        there, here = len(factors), len(inv_freq)
        require(there == here, f"longrope: {self.file} has factors for {there} pairs, not {here}")
        attention = 1 + math.log(self.factor(total)) / math.log(max(2, self.length))
        return inv_freq / inv_freq.new_tensor(factors), math.sqrt(attention)


def read_numbers(name: str, path: Path, *lists: str) -> dict:
    """The JSON object that an option of the piece `name` names. The first of `lists` must be in it,
    the others may; each is a list of numbers from 1e-6 to 1e6. UserError says what is wrong.
    """
    advice = f"{name} needs a list of numbers there"
    content = read_json(path, {lists[0]: [(int, float)]}, advice)
    for key in lists:
        check_shape(content.get(key, []), [(int, float)], f"{path}: {key}", advice)
        good = all(1e-6 <= x <= 1e6 for x in content.get(key, []))
        require(good, f"{name}: {path}: {key} must hold numbers from 1e-6 to 1e6")
    return content


def named_file(name: str, folder: Path | None) -> Path:
    """The file that an option names: the run folder's own copy of it, if there is one, else as
    named.
    """
    copy = folder / Path(name).name if folder else Path(name)
    return copy if copy.is_file() else Path(name)
