"""The contract of a position scheme (`Piece`), pure functions, and the best known schemes and
extensions.

A scheme is an expression: `alibi`, `rope(base=500000)`, `rope + alibi`, `rope | rope | rope |
nope`. `+` lets pieces act together, `|` is a pattern over layers. Each name is a `Piece`, a small
module that defines the methods it needs. All other schemes are files in zoo/, written exactly as a
user's own `--pos_file`. A second expression, `extend`, changes a model that is already trained:
`yarn(factor=8) + logn`.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal

import torch
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    ValidationError,
    create_model,
)
from torch import Tensor, nn

from common.compiler import materialize
from common.errors import UserError
from common.files import read_json
from configurable import Count

# ---- types of options: the annotations of an __init__ are checked when an expression is read


def in_tokens(value, info):
    """Convert a length to tokens. A whole number counts them; a real number is a share of L, the
    length first trained at: size=128, size=0.25.

    The type decides, because a share may exceed 1: with L = 128, size=2 is two tokens, size=2.0
    is 2 L, 256 tokens, and size=1.0 is L.
    """
    if isinstance(value, int) and 0 < value <= 2**24:
        return value
    if isinstance(value, float) and 0 < value <= 32:
        return max(1, round(value * info.context["first_length"]))
    raise ValueError(
        "a whole number counts tokens, 1 to 2**24; a real number is a share of the training "
        "length, over 0 and at most 32"
    )


Whole = Annotated[int, Field(ge=0, le=2**24)]
Share = Annotated[float, Field(ge=0, le=1)]
Base = Annotated[float, Field(gt=1)]
Length = Annotated[int | float, AfterValidator(in_tokens)]
Factor = Literal["auto"] | Annotated[float, Field(ge=1)]
Layout = Literal["half", "interleaved"]
Numbers = list[Annotated[float, Field(ge=1e-6, le=1e6)]]


# ---- pure functions


def init_std(width: int) -> float:
    """The standard deviation of initial weights: 0.02 at GPT-2's width, scaled as 1 / sqrt(width).

    With 0.02 at a width of 128, products of queries and keys start so small that for hundreds of
    steps a model recalls nothing.
    """
    return 0.02 * math.sqrt(768 / width)


def rope_frequencies(head_dim: int, base: float = 10000.0) -> tuple[Tensor, float]:
    """RoPE's (inv_freq, attention_factor): base^(-2m/d) for each pair m, (head_dim / 2,) float64,
    and 1.0. The factor multiplies cosines and sines; some extensions change it.

    Su et al. 2021 (arXiv 2104.09864). UserError for an odd head_dim.
    """
    if head_dim <= 0 or head_dim % 2:
        raise UserError(
            f"rotations and sinusoids need an even number of columns, not {head_dim}: change "
            "head_dim or fraction (sinusoidal: n_embd; with kv_lora_rank: qk_rope_head_dim)"
        )
    return base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim), 1.0


def cos_sin(positions: Tensor, inv_freq: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of position x frequency, each (..., T, F) in float32, for positions (..., T).

    inv_freq is (F,), or (T, F) if frequencies differ between positions. Angles are computed in
    float64.
    """
    angles = angles_of(positions, inv_freq)
    cos = angles.cos().to(positions.device, torch.float32)
    sin = angles.sin().to(positions.device, torch.float32)
    return materialize(cos), materialize(sin)


def angles_of(positions: Tensor, inv_freq: Tensor) -> Tensor:
    """position x frequency in float64, (..., T, F) for positions (..., T) and inv_freq (F,) or (T,
    F); on the CPU for mps, which has no float64.
    """
    device = "cpu" if positions.device.type == "mps" else positions.device
    positions = positions.to(device, torch.float64)
    return positions[..., None] * inv_freq.to(device, torch.float64)


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor, layout: str = "half") -> Tensor:
    """Rotate the column pairs of x (..., T, D) by tables (..., T, F), F <= D / 2.

    Layout `half` pairs columns (m, m + F) as GPT-NeoX and Llama do in transformers; `interleaved`
    pairs (2m, 2m + 1) as RoFormer and GPT-J do. Columns past 2F are unchanged.
    """
    n = 2 * cos.shape[-1]
    if layout == "half":
        a = x[..., : n // 2]
        b = x[..., n // 2 : n]
        pairs = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    else:
        a = x[..., 0:n:2]
        b = x[..., 1:n:2]
        pairs = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
    return pairs if n == x.shape[-1] else torch.cat((pairs, x[..., n:].to(pairs.dtype)), -1)


def rotate(x: Tensor, positions: Tensor, inv_freq: Tensor, layout: str = "half") -> Tensor:
    """Turn x (..., T, D) by the angles positions x inv_freq; the result has the dtype of x.

    positions are (T,) or (B, T), inv_freq is (F,) with F <= D / 2. For the layout see
    `apply_rotary`.
    """
    if positions.dim() == 2:  # (B, T) -> (B, 1, ..., T)
        positions = positions.reshape(len(positions), *[1] * (x.dim() - 3), -1)
    return apply_rotary(x, *cos_sin(positions, inv_freq), layout).to(x.dtype)


def sinusoids(positions: Tensor, width: int, base: float = 10000.0) -> Tensor:
    """Sinusoidal vectors (T, width), float32: all sines, then all cosines, of p base^(-2m/width).

    Vaswani et al. 2017 (arXiv 1706.03762) interleave them: the same columns in another order.
    """
    cos, sin = cos_sin(positions, rope_frequencies(width, base)[0])
    return torch.cat((sin, cos), -1)


def alibi_slopes(n_head: int) -> Tensor:
    """ALiBi's slopes, (n_head,) float32: 2^(-8h/H) where H is a power of two.

    For another H they are those of the power of two below, then every other slope of the power of
    two above. Press et al. 2021 (arXiv 2108.12409) and their code.
    """
    power = 2 ** int(math.log2(n_head))
    slopes = [2 ** (-8 * h / power) for h in range(1, power + 1)]
    # every other slope of twice as many heads
    slopes += [2 ** (-4 * h / power) for h in range(1, 2 * power, 2)]
    return torch.tensor(slopes[:n_head])  # none of the others, if n_head is a power of two


def t5_buckets(distance: Tensor, num_buckets: int = 32, max_distance: int = 128) -> Tensor:
    """T5's causal buckets (long) of distance = query - key >= 0.

    Each distance below num_buckets / 2 has its own bucket. The others grow logarithmically, and the
    last one holds all distances from max_distance on. Raffel et al. 2019 (arXiv 1910.10683), with
    the operations in the order of their code.
    """
    exact = num_buckets // 2
    distance = distance.long()  # positions may be real numbers
    far = torch.log(distance.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    far = (exact + (far * (num_buckets - exact)).long()).clamp(max=num_buckets - 1)
    return torch.where(distance < exact, distance, far)


def as_reals(ids: Tensor) -> Tensor:
    """Positions as real numbers, in float64 if the device has it, so that neighbours stay apart."""
    return ids.to(torch.float32 if ids.device.type == "mps" else torch.float64)


def upcast(x: Tensor) -> Tensor:
    """x in float32 or wider, as pieces get all their inputs."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


# ---- the contract


@dataclass(frozen=True)
class Shape:
    """What a piece may know about its model. `first_length` is the length first trained at, in
    tokens.

    `extends`: the piece extends a model that is already trained. `folder`: where files that options
    name are looked up first. `latent`: the model has latent attention, so that only some columns of
    a head turn, and those are shared by all heads; then `widths` has no q, k and v.
    """

    n_head: int
    turned_width: int  # columns of a head that the scheme may turn
    width: int  # n_embd
    first_length: int
    extends: bool = False
    folder: Path | None = None
    latent: bool = False
    widths: dict[str, int] = field(default_factory=dict)  # {place: W}, of what `mix` gets

    def width_at(self, place: str) -> int:
        """The width W of the vectors at a place of `mix`; UserError if the model has none there."""
        if place not in self.widths:
            has = ", ".join(self.widths)
            raise UserError(
                f"nothing is mixed at {place!r}: this model has vectors at {has} (with latent "
                "attention, not at q, k and v)"
            )
        return self.widths[place]


@dataclass(frozen=True)
class Tile:
    """R queries and the first C keys of one layer; all tensors are in float32 or wider.

    q (B, H, R, D) and k (B, H, C, D) are turned, and q is multiplied by the temperature.
    scores (B, H, R, C) are q k^T x scale; None if the piece does not read them. added broadcasts to
    scores: the biases, and -inf where the query may not see the key. i (R, 1) and j (R, C) are
    position ids; rows (R, 1) and columns (C,) are places in the text. features_k (B, C, M) are the
    `features` of the keys. If texts are cut into documents, i is (B, 1, R, 1) and j (B, 1, R, C).
    """

    q: Tensor
    k: Tensor
    scores: Tensor | None
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

    def rows_at_once(self, pairs: int) -> int:
        """How many rows of scores to compute at once: in eager code on a CPU that keeps nothing for
        gradients, those of so many pairs of a query and a key, which its cache holds; else all.
        """
        batch, _, rows, columns = self.scores.shape
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or self.scores.is_cuda:
            return rows
        return max(1, pairs // max(1, batch * columns))


@dataclass(frozen=True)
class Region:
    """A rewriting of distances: a query with id i and a key with id j for which where(i, j) is True
    are treated as if their ids were query(i) and key(j).
    """

    query: Callable[[Tensor], Tensor]
    key: Callable[[Tensor], Tensor]
    where: Callable[[Tensor, Tensor], Tensor]


class Piece(nn.Module):
    """One position scheme. It defines the methods that it needs; those it lacks are None: a piece
    has a bias if piece.bias is not None. What is checked of each is in METHODS, below.

    ids(ids, total)                  new position ids (T,) for ids (T,) in a text of `total`
                                     tokens; ids are integers, for an extension real numbers
    draw(length, generator)          random position ids (length,) for one training step
    embed(ids, tokens, total)        (T, C) or (B, T, C), added to the embedding of the last T of
                                     the tokens (B, S)
    tables(ids, total, maps)         what `turn` needs, made once per forward pass: a tuple of
                                     tensors (T, .), or (H, T, .) if heads differ; maps are the
                                     active frequency maps. Where texts are cut into documents,
                                     `turn` gets them as (B, 1 or H, T, .)
    turn(x, tables, is_key)          queries or keys x (B, H, T, D), turned: (B, H, T, D')
    bias(h, i, j)                    what is added to the score of head h, query id i and key id
                                     j <= i: tensors that broadcast, so only pointwise operations
                                     and indexing
    temperature(index)               (T,) or (H, T): what multiplies the scores q.k / sqrt(d) of
                                     the query at `index` (T,), reals, which sees index + 1 keys
    mask(i, j)                       True where query index i may see key index j <= i
    mix(rows, place)                 (B, T, W) instead of the vectors rows[0] (B, T, W) at a place
                                     of each layer; rows[n] are those n tokens before, 0 before the
                                     start of the text: see `mixes`
    features(x)                      (B, T, M), computed from a layer's normalised input x
                                     (B, T, C), and cached with the keys
    along(q, k, features, scale)     (q, k) with more columns, such as sums along the text; q
                                     (B, H, T, D) are of the last T tokens of k (B, H, S, D) and
                                     features (B, S, M); scores are q.k x scale
    score(tile)                      the whole score (B, H, R, C), where a bias will not do;
                                     unseen keys are masked afterwards
    weights(scores)                  attention weights (B, H, R, C) instead of the softmax; scores
                                     are -inf where a key is not seen
    turn_back(y, tables)             outputs y (B, H, T, D) of the heads, turned by the inverse of
                                     what turns queries: values are then turned as keys, so that
                                     each output is a sum of values turned by j - i; x is
                                     turn_back(turn(x, tables, True), tables)
    output(y, v, x)                  a new output of the heads, for y (B, H, T, D); v are the
                                     values of the same tokens, never turned, x (B, T, C) the
                                     layer's input

    Extensions of a trained model may also have:

    map_frequencies(inv_freq, base, total, ids)   new (inv_freq, attention factor) for a text of
                                     `total` tokens: frequencies (F,) in float64, or (T, F) if those
                                     of the tokens at ids (T,) differ; ids may be None
    factor(total)                    the factor by which it extends the training length
    regions(total)                   rewritten distances: a list of `Region`, of which the last
                                     that holds counts
    pack(x), unpack(*parts)          what the cache stores of keys or values x (B, heads, T, D), a
                                     tuple of tensors (B, heads, T, M); and x from that, in the
                                     dtype that the model computes in

    The class name in snake_case is the name of the scheme. The arguments of __init__ after `shape`
    are its options, checked against their annotations. The input of a layer is normalised, unless
    norm_place=after. Floating-point inputs are in float32 or
    wider. Constants are non-persistent buffers: `.to(bfloat16)` rounds neither the buffers nor the
    parameters of a piece.
    """

    limit: int | None = None  # how many positions it defines; with ids(): the longest text
    visible: tuple[int, int] | None = None  # of a mask: how many last and first keys it shows
    per_layer: bool = False  # whether each layer has a piece of its own, by default
    by_distance: bool = False  # whether its bias and its mask depend on i - j alone
    reads_scores: bool = True  # whether its `score` reads tile.scores, else None
    in_kernel: bool = False  # whether flex computes its bias for each pair, without a table
    # {place: the number of rows that `mix` gets}. Places: "embedding" (once, before the first
    # layer), "input" and "branch" of attention, "q", "k", "v" (of all heads, before they are
    # normalised and turned), "mlp", "hidden" (before the activation), "mlp_branch"
    mixes: Mapping[str, int] = MappingProxyType({})  # read-only: pieces must not share theirs
    can_extend: bool = False  # whether it may stand in `extend`
    factor_grows: bool = False  # whether its factor depends on the length of the text
    extends: tuple[str, ...] = ()  # the only schemes that it can extend, by name
    # what it cannot go with: schemes in the same layer, by name; "positions": any piece there that
    # reads or changes them; "latent attention": a model that has it
    conflicts: tuple[str, ...] = ()
    file: Path | None = None  # the file that an option names
    found_on: str | None = None  # SHA-256 of the text that the numbers in `file` were fitted on

    def __init__(self, shape: Shape | None = None):
        super().__init__()

    def _apply(self, fn, recurse=True):
        """What is behind .to(), .cuda() and .half(); here tensors stay float32 or wider."""

        def moved(t):
            new = fn(t)
            if not t.is_floating_point():
                return new
            # a float64 buffer is meant to be float64; a parameter may go back to float32
            least = torch.float32 if isinstance(t, nn.Parameter) else t.dtype
            dtype = torch.promote_types(new.dtype, least)
            if dtype == torch.float64 and new.device.type == "mps":
                return t  # there is no float64 on mps: such buffers stay on the CPU
            return new if new.dtype == dtype else t.to(new.device, dtype)

        return super()._apply(moved, recurse)


@dataclass(frozen=True)
class Method:
    """What checks and pages know of a method of `Piece`; its docstring says what each gives."""

    name: str
    arguments: str  # after self
    acts_on: str = ""  # in docs/schemes.md; "" if it does nothing without another method
    of: Literal["schemes", "extensions", "both"] = "schemes"  # who may have it
    claims: str = ""  # in a layer, only one piece may claim this
    reads: tuple[str, ...] = ()  # of positions and distances, what it depends on
    changes: str = ""  # of these or frequencies, what it changes: without a reader it does nothing
    once: bool = False  # a scheme with it acts once, before the first layer
    by_layer: bool = False  # an extension with it may act in some layers only


METHODS = (  # in the order of docs/schemes.md
    Method(
        "map_frequencies",
        "inv_freq, base, total, ids",
        "frequencies",
        of="extensions",
        claims="frequencies",
        changes="frequencies",
        by_layer=True,
    ),
    Method(
        "ids",
        "ids, total",
        "positions",
        of="both",
        claims="position ids",
        changes="positions",
        once=True,
    ),
    Method(
        "embed",
        "ids, tokens, total",
        "token embedding",
        claims="token embedding",
        reads=("positions",),
        once=True,
    ),
    Method("tables", "ids, total, maps", claims="rotation", reads=("positions", "distances")),
    Method("turn", "x, tables, is_key", "queries and keys"),
    Method(
        "regions",
        "total",
        "distances",
        of="extensions",
        claims="whole score",
        changes="distances",
    ),
    Method("bias", "h, i, j", "score", reads=("positions", "distances")),
    Method("temperature", "index", "temperature", of="both", by_layer=True),
    Method("mask", "i, j", "mask", of="both"),
    Method("mix", "rows, place", "vectors, with those of the tokens before"),
    Method("features", "x", claims="whole score"),
    Method("along", "q, k, features, scale", "queries and keys, by content"),
    Method("score", "tile", "whole score", claims="whole score", reads=("positions",)),
    Method("weights", "scores", "attention weights", of="both", claims="attention weights"),
    Method("turn_back", "y, tables", "values and head outputs"),
    Method("output", "y, v, x", "head outputs", of="both", claims="output of the heads"),
    Method("pack", "x", "cache", of="extensions", claims="cache"),
    Method("unpack", "*parts", of="extensions"),
    Method("factor", "total", of="extensions"),
    Method(
        "draw",
        "length, generator",
        "training positions",
        of="both",
        claims="positions of training",
        changes="positions",
        once=True,
    ),
)
for method in METHODS:  # None for those that a piece does not define
    setattr(Piece, method.name, None)


def methods_of(piece: Piece | type[Piece]) -> list[Method]:
    """The methods of the contract that a piece, or its class, defines."""
    return [method for method in METHODS if getattr(piece, method.name) is not None]


def scheme_name(piece: Piece | type[Piece]) -> str:
    """The name of a piece in expressions: its class name, from CamelCase to snake_case."""
    cls = piece if isinstance(piece, type) else type(piece)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", cls.__name__).lower()


# ---- schemes


class Nope(Piece):
    """No positions: the order of tokens shows through the causal mask alone.

    Haviv et al. 2022, Kazemnejad et al. 2023 (arXiv 2305.19466).
    """


class Learned(Piece):
    """A trained vector for each position, added to the token embedding.

    Radford et al. 2019 (GPT-2). Parameter: table (rows, C); `rows` defaults to the training length.
    A position past the table is refused.
    """

    def __init__(self, shape: Shape, *, rows: Count | None = None):
        super().__init__()
        self.limit = rows or shape.first_length
        table = torch.empty(self.limit, shape.width).normal_(std=init_std(shape.width))
        self.table = nn.Parameter(table)

    def embed(self, ids, tokens, total):
        """The rows of the table at `ids`."""
        return nn.functional.embedding(ids, self.table)


class Sinusoidal(Piece):
    """scale x [sin(p w_m), cos(p w_m)], w_m = base^(-2m/C), added to the token embedding.

    Vaswani et al. 2017, where token embeddings are as large as the sinusoids (scale 1). Here they
    start smaller (`init_std`) and grow in training, so that a smaller scale suits them.
    """

    def __init__(self, shape: Shape, *, base: Base = 10000.0, scale: float = 0.1):
        super().__init__()
        self.scale = scale
        self.register_buffer("inv_freq", rope_frequencies(shape.width, base)[0], persistent=False)

    def embed(self, ids, tokens, total):
        """Scaled `sinusoids` of ids, (T, C)."""
        cos, sin = cos_sin(ids, self.inv_freq)
        return self.scale * torch.cat((sin, cos), -1)


class Rotary(Piece):
    """The base class of rotary schemes: frequencies inv_freq (F,), from `base`, and tables of
    cosines and sines under the active frequency maps.
    """

    def __init__(self, inv_freq: Tensor, base: float):
        super().__init__()
        self.base = base
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def frequencies(
        self, total: int, maps: Sequence[Piece] = (), ids: Tensor | None = None
    ) -> tuple[Tensor, float]:
        """(inv_freq (F,), attention factor) for a text of `total` tokens, after its own frequency
        map, if it has one, and then each of `maps`.

        If `ids` (T,) are given, the frequencies may become (T, F).
        """
        inv_freq = self.inv_freq
        factor = 1.0
        if self.map_frequencies:
            maps = [self, *maps]
        for piece in maps:
            inv_freq, more = piece.map_frequencies(inv_freq, self.base, total, ids)
            factor *= more
        return inv_freq, factor

    def tables(self, ids, total, maps=()):
        """Cosines and sines (T, F) of ids (T,), times the attention factor."""
        inv_freq, factor = self.frequencies(total, maps, ids)
        cos, sin = cos_sin(ids, inv_freq)
        return (cos, sin) if factor == 1.0 else (cos * factor, sin * factor)


class Rope(Rotary):
    """Turn pair m of q and k at position i by i base^(-2m/d), so that scores depend on i - j.

    Su et al. 2021 (arXiv 2104.09864). `fraction` of each head's columns is turned, with the
    exponents of that fraction (GPT-J, GPT-NeoX). `p` keeps the fastest int(p F) of F pairs and
    leaves the rest unturned (p-RoPE, Barbero et al. 2024). `layout` is half or interleaved: the
    same function of permuted columns.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        base: Base = 10000.0,
        fraction: Share = 1.0,
        p: Share = 1.0,
        layout: Layout = "half",
    ):
        inv_freq, _ = rope_frequencies(int(fraction * shape.turned_width), base)
        inv_freq[int(p * len(inv_freq)) :] = 0.0
        super().__init__(inv_freq, base)
        self.layout = layout

    def turn(self, x, tables, is_key):
        """Turn the pairs of queries or keys by the tables' angles."""
        return apply_rotary(x, *tables, self.layout)


class Alibi(Piece):
    """score += -m_h (i - j), m_h fixed per head (`alibi_slopes`). Press et al. 2021 (arXiv
    2108.12409).

    `learned` trains the slopes: softplus of a parameter raw (H,), started at the published ones.
    The paper found no gain.
    """

    by_distance = True
    in_kernel = True

    def __init__(self, shape: Shape, *, learned: bool = False):
        super().__init__()
        slopes = alibi_slopes(shape.n_head)
        self.register_buffer("slopes", slopes, persistent=False)
        # at the start softplus(raw) are the published slopes
        self.raw = nn.Parameter(slopes.expm1().log()) if learned else None

    def bias(self, h, i, j):
        """-m_h (i - j)."""
        slopes = self.slopes if self.raw is None else nn.functional.softplus(self.raw)
        return slopes[h] * (j - i)


class T5(Piece):
    """score += table[bucket(i - j), h], with `t5_buckets`. Raffel et al. 2019 (arXiv 1910.10683).

    Parameter: table (buckets, H), shared by all layers as in T5. `max_distance` defaults to half
    the training length, so that every entry is trained. Unlike T5, scores keep their 1 / sqrt(d).
    """

    by_distance = True

    def __init__(
        self,
        shape: Shape,
        *,
        buckets: Annotated[int, Field(ge=2, le=2**16, multiple_of=2)] = 32,
        max_distance: Length | None = None,
    ):
        super().__init__()
        exact = buckets // 2
        self.buckets = buckets
        self.max_distance = max_distance or max(exact + 1, shape.first_length // 2)
        if self.max_distance <= exact:
            raise UserError(f"t5: max_distance = {max_distance} must exceed buckets / 2 = {exact}")
        self.table = nn.Parameter(torch.zeros(buckets, shape.n_head))

    def bias(self, h, i, j):
        """The entry of the distance's bucket."""
        return self.table[t5_buckets(i - j, self.buckets, self.max_distance), h]


class Window(Piece):
    """A query sees the last `size` keys, itself included, and the first `sinks` keys.

    Beltagy et al. 2020 (arXiv 2004.05150), sinks after Xiao et al. 2023 (arXiv 2309.17453). It is a
    mask: positions stay as they are. Beside a piece that mixes, such as canon, a key tells of a few
    tokens before it too.
    """

    can_extend = True

    def __init__(self, shape: Shape, *, size: Length, sinks: Whole = 0):
        super().__init__()
        self.visible = (size, sinks)
        self.by_distance = sinks == 0

    def mask(self, i, j):
        """i - j < size, or j < sinks."""
        size, sinks = self.visible
        return (i - j < size) | (j < sinks)


class Randomized(Piece):
    """Train with L sorted positions drawn from 0 ... max - 1, anew in each step; test with
    floor(k max / N).

    Ruoss et al. 2023 (arXiv 2305.16843). `test=draw` draws at test too, as they do. A text longer
    than `max` is refused.
    """

    def __init__(self, shape: Shape, *, max: Length, test: Literal["spread", "draw"] = "spread"):
        super().__init__()
        self.limit = max
        self.test = test
        # the draw of the last test; no buffer, since processes may test different lengths
        self.drawn = torch.empty(0)

    def ids(self, ids, total):
        """floor(k max / N), or a fixed draw for that total length."""
        if self.test == "spread":
            return ids * self.limit // total
        if len(self.drawn) != total or self.drawn.device != ids.device:
            self.drawn = self.draw(total, torch.Generator().manual_seed(total)).to(ids.device)
        return self.drawn[ids]

    def draw(self, length, generator):
        """`length` different positions, sorted."""
        if length > self.limit:
            raise UserError(
                f"randomized(max={self.limit}) has fewer than {length} positions: raise max"
            )
        return torch.randperm(self.limit, generator=generator)[:length].sort().values


class Logn(Piece):
    """scores x (ln(n) / ln(L))^power: n is the number of keys up to the query, L the training
    length.

    Su 2021, Chiang & Cholak 2022. Which power concentrates attention depends on the scores (Hayase
    & Karakida 2026, arXiv 2605.12697). On a trained model (`extend`) the factor is at least 1, so
    that nothing changes within L.
    """

    can_extend = True

    def __init__(self, shape: Shape, *, power: PositiveFloat = 1.0):
        super().__init__()
        self.length = shape.first_length
        self.extends_model = shape.extends
        self.power = power

    def temperature(self, index):
        """(ln(i + 1) / ln(L))^power, (T,)."""
        factors = torch.log(index + 1) / math.log(self.length)
        if self.extends_model:
            factors = factors.clamp(min=1.0)
        return factors**self.power


# ---- extensions of trained models


class Extension(Piece):
    """A piece that changes a trained model but not its weights: for `extend`, never for `pos`."""

    can_extend = True

    def read_numbers(self, name: str, folder: Path | None, **fields: tuple) -> BaseModel:
        """Read the JSON file that an option names: its copy in the run's `folder`, or one of that
        name in a folder of Hugging Face, else `name` itself.

        Each of `fields` is (type, default), as in pydantic; split_sha256 is always allowed.
        UserError if the file does not fit.
        """
        self.file = Path(name)
        if folder:
            for place in (folder, folder / "files"):  # a run's copy, if there is one, is read
                if (place / self.file.name).is_file():
                    self.file = place / self.file.name
        schema = create_model(
            "File",
            __config__=ConfigDict(strict=True),
            split_sha256=(str | None, None),
            **fields,
        )
        try:
            content = read_json(self.file)
            # a config.json of Hugging Face has them one level down
            content = content.get("rope_scaling") or content.get("rope_parameters") or content
            content = schema(**content)
        except ValidationError as error:
            wrong = error.errors()[0]
            raise UserError(f"{self.file}: {wrong['loc'][0]}: {wrong['msg']}") from None
        self.found_on = content.split_sha256
        return content


class Scaled(Extension):
    """An extension by a factor s. factor=auto is max(1, N / L), where N is the length of the text
    and L the length first trained at.
    """

    def __init__(self, shape: Shape, *, factor: Factor = "auto"):
        super().__init__()
        self.length = shape.first_length
        self.factor_option = factor  # a number or "auto"
        self.factor_grows = factor == "auto"

    def factor(self, total):
        """The factor in a text of `total` tokens."""
        if self.factor_option == "auto":
            return max(1.0, total / self.length)
        return self.factor_option


class Pi(Scaled):
    """theta_m / s: position interpolation, which brings all positions into 0 ... L - 1.

    Chen et al. 2023 (arXiv 2306.15595).
    """

    def map_frequencies(self, inv_freq, base, total, ids):
        """Divide the frequencies of all pairs by s."""
        return inv_freq / self.factor(total), 1.0


class Ntk(Scaled):
    """theta_m s^(-2m / (d - 2)), a larger base: the fastest pair stays, the slowest is divided by
    s.

    bloc97 2023.
    """

    def map_frequencies(self, inv_freq, base, total, ids):
        """The frequencies of the base b s^(d / (d - 2)), where b is the scheme's base."""
        pairs = len(inv_freq)
        # 2m / (d - 2) = m / (F - 1), from 0 to 1
        exponents = torch.arange(pairs, device=inv_freq.device).double() / max(1, pairs - 1)
        return inv_freq * self.factor(total) ** -exponents, 1.0


class DynamicNtk(Ntk):
    """ntk with s = f N / L - (f - 1) past L, and 1 before it; f is `factor`.

    emozilla 2023, as in transformers.
    """

    def __init__(self, shape: Shape, *, factor: Annotated[float, Field(ge=1)] = 1.0):
        super().__init__(shape, factor=factor)
        self.factor_grows = True

    def factor(self, total):
        """The factor s that ntk uses."""
        return self.factor_option * max(1.0, total / self.length) - (self.factor_option - 1)


class Yarn(Scaled):
    """Slow pairs / s, fast pairs kept, a ramp between; scores x (0.1 ln s + 1)^2.

    Peng et al. 2023 (arXiv 2309.00071). Pairs with over `beta` turns within L are kept, those with
    under `alpha` are divided. ramp=code is linear in the pair's number between those two pairs,
    rounded outwards (`truncate`), as their code; where the two cross their code runs backwards, and
    here all pairs are kept or divided. ramp=turns is linear in the number of turns, as the paper
    says.
    The root of the temperature, which multiplies cosines and sines, is `attention_factor` if that
    is given. Else `mscale` weighs its logarithm (0 turns it off) and `mscale_all_dim` divides it,
    as in DeepSeek. transformers ignores each of the two without the other, mlx-lm does not: its
    reading of `mscale` alone is that of this expression. With latent attention mscale_all_dim also
    multiplies all scores by (0.1 mscale_all_dim ln s + 1)^2, as in DeepSeek's code.
    With factor=auto (dynamic YaRN) fix the final length before decoding, as `generate` does: a
    cache holds keys that were turned for one length.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        factor: Factor = "auto",
        alpha: PositiveFloat = 1.0,
        beta: PositiveFloat = 32.0,
        ramp: Literal["code", "turns"] = "code",
        truncate: bool = True,
        mscale: NonNegativeFloat = 1.0,
        mscale_all_dim: NonNegativeFloat = 0.0,
        attention_factor: PositiveFloat | None = None,
    ):
        super().__init__(shape, factor=factor)
        if alpha > beta:
            raise UserError(f"{scheme_name(self)}: {alpha} turns must not exceed {beta} turns")
        if attention_factor and (mscale != 1.0 or mscale_all_dim and not shape.latent):
            raise UserError("yarn: attention_factor replaces what mscale gives: set only one")
        if not (shape.latent and mscale_all_dim):
            self.temperature = None
        elif factor == "auto":
            raise UserError("yarn: mscale_all_dim with latent attention needs a fixed factor")
        self.alpha = alpha
        self.beta = beta
        self.ramp = ramp
        self.truncate = truncate
        self.mscale = mscale
        self.mscale_all_dim = mscale_all_dim
        self.attention_factor = attention_factor

    def temperature(self, index):
        """DeepSeek's factor of all scores of latent attention, (T,)."""
        root = 1 + 0.1 * self.mscale_all_dim * math.log(self.factor_option)
        return torch.full_like(index, root**2)

    def map_frequencies(self, inv_freq, base, total, ids):
        """Blend kept and divided frequencies by the ramp; the attention factor is YaRN's."""
        # share: how much of each frequency (F,) is kept, 1 for fast pairs, 0 for slow ones
        if self.ramp == "turns":
            turns = self.length * inv_freq / (2 * math.pi)
            share = ((turns - self.alpha) / max(self.beta - self.alpha, 1e-9)).clamp(0, 1)
        else:
            width = 2 * len(inv_freq)  # d

            def pair(turns):
                """The number of the pair, a real number, that makes so many turns within L."""
                return width * math.log(self.length / (2 * math.pi * turns)) / (2 * math.log(base))

            low = pair(self.beta)
            high = pair(self.alpha)
            if self.truncate:
                low = math.floor(low)
                high = math.ceil(high)
            low = max(low, 0)
            high = min(high, width - 1)
            pairs = torch.arange(len(inv_freq), device=inv_freq.device).double()
            share = 1 - ((pairs - low) / max(high - low, 0.001)).clamp(0, 1)
        factor = self.factor(total)
        attention_factor = self.attention_factor
        if attention_factor is None:
            attention_factor = 1 + 0.1 * self.mscale * math.log(factor)
            attention_factor /= 1 + 0.1 * self.mscale_all_dim * math.log(factor)
        return inv_freq / factor * (1 - share) + inv_freq * share, attention_factor


class Llama3(Yarn):
    """theta_m kept over `high` turns within L, / s under `low` turns, a blend between them.

    Llama 3.1, 2024.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        factor: Factor = "auto",
        low: NonNegativeFloat = 1.0,
        high: PositiveFloat = 4.0,
    ):
        super().__init__(shape, factor=factor, alpha=low, beta=high, ramp="turns", mscale=0.0)


class Longrope(Scaled):
    """theta_m / lambda_m from a file, past L; scores x (1 + ln s / ln L).

    Ding et al. 2024 (arXiv 2402.13753). The JSON file holds `long_factor`, a number for each pair.
    It may hold `short_factor` for texts within L, and `first`, how many first positions keep the
    original frequencies. `python -m tools.longrope` makes one; the config.json of a Hugging Face
    model is read too. `attention_factor` multiplies cosines and sines in place of the root of
    1 + ln s / ln L.
    In transformers s is a number, so short texts are tempered too: write it as `factor`. With
    factor=auto s is max(1, N / L), and a text within L has no temperature.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        file: str,
        factor: Factor = "auto",
        attention_factor: PositiveFloat | None = None,
    ):
        super().__init__(shape, factor=factor)
        self.attention_factor = attention_factor
        content = self.read_numbers(
            file,
            shape.folder,
            long_factor=(Numbers, ...),
            short_factor=(Numbers | None, None),
            first=(Whole, 0),
            train_length=(int, shape.first_length),
        )
        if content.train_length != shape.first_length:
            raise UserError(
                f"longrope: {self.file} was searched for a model trained at "
                f"L = {content.train_length}, this one was at {shape.first_length}: search again "
                "with python -m tools.longrope"
            )
        self.first = content.first
        long = torch.tensor(content.long_factor, dtype=torch.float64)
        short = torch.tensor(content.short_factor or [1.0], dtype=torch.float64).expand_as(long)
        self.register_buffer("long", long, persistent=False)
        self.register_buffer("short", short, persistent=False)

    def map_frequencies(self, inv_freq, base, total, ids):
        """Divide each frequency by its factor; the `first` positions keep the original ones."""
        divisors = self.long if total > self.length else self.short
        if len(divisors) != len(inv_freq):
            raise UserError(
                f"longrope: {self.file} has factors for {len(divisors)} pairs, not {len(inv_freq)}"
            )
        attention_factor = self.attention_factor
        if attention_factor is None:  # the root, because both q and k are multiplied
            attention_factor = math.sqrt(1 + math.log(self.factor(total)) / math.log(self.length))
        mapped = inv_freq / divisors
        if ids is not None and self.first > 0:
            mapped = torch.where((ids < self.first).to(mapped.device)[:, None], inv_freq, mapped)
        return mapped, attention_factor
