"""The position schemes of the textbooks, and the grammar that names and combines them.

A scheme is an expression: `alibi`, `rope(base=500000)`, `rope + alibi`, `rope | rope | rope | nope`. `+` lets pieces act
together, `|` is a pattern over layers. Each name is a `Piece`, a small module that overrides the questions it answers;
names not defined here are looked up in zoo/, one file each, loaded exactly as a user's own `--pos_file`.
`python posenc.py 'rope + logn'` explains an expression. This file imports nothing else of the project.
"""
from __future__ import annotations

import ast
import difflib
import hashlib
import importlib.machinery
import importlib.util
import inspect
import math
import re
import sys
import traceback
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

ZOO = Path(__file__).parent / "zoo"
Bias = Callable[[Tensor, Tensor, Tensor], Tensor]   # f(head, query id, key id): what is added to the score
Mask = Callable[[Tensor, Tensor], Tensor]           # g(query index, key index): True where the query may see the key
Turn = Callable[[Tensor], Tensor]                   # (B, H, T, D) -> (B, H, T, D')


class PosError(ValueError):
    """A position expression, option or length that cannot be; the text is one sentence for the user."""


def require(condition: bool, sentence: str) -> None:
    """Raise PosError(sentence) unless the condition holds."""
    if not condition:
        raise PosError(sentence)


# ------------------------------------------------------------------------------------------------ pure functions

@torch.library.custom_op("longshot::cos_sin", mutates_args=())
def cos_sin(positions: Tensor, inv_freq: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of position x frequency: angles in float64, results in float32, shape positions.shape + (F,).

    An operator of its own, so that torch.compile neither fuses the float64 away nor recompiles for a new length.
    """
    exact = "cpu" if positions.device.type == "mps" else positions.device   # mps has no float64
    angles = positions.to(exact, torch.float64)[..., None] * inv_freq.to(exact, torch.float64)
    return tuple(f(angles).to(positions.device, torch.float32) for f in (torch.cos, torch.sin))


@cos_sin.register_fake
def _(positions: Tensor, inv_freq: Tensor) -> tuple[Tensor, Tensor]:
    shape = (*positions.shape, inv_freq.shape[0])
    return positions.new_empty(shape, dtype=torch.float32), positions.new_empty(shape, dtype=torch.float32)


def rope_frequencies(head_dim: int, base: float = 10000.0) -> tuple[Tensor, float]:
    """RoPE's (inv_freq, attention_factor): theta_m = base^(-2m/d), float64 of shape (head_dim / 2,), and 1.0.

    Su et al. 2021 (arXiv 2104.09864). Raises PosError for an odd head_dim.
    """
    require(head_dim > 0 and head_dim % 2 == 0, f"rope turns pairs of columns: it needs an even dimension, not {head_dim}")
    return base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim), 1.0


def rotate(x: Tensor, positions: Tensor, inv_freq: Tensor, layout: str = "half") -> Tensor:
    """Turn x (..., T, D) by the angles positions x inv_freq; positions (T,) or (B, T), inv_freq (F,), F <= D / 2.

    `half` pairs columns (m, m + F) as GPT-NeoX and Llama in transformers; `interleaved` (2m, 2m + 1) as RoFormer and
    GPT-J. Columns past 2F are unchanged.
    """
    cos, sin = cos_sin(positions, inv_freq)
    if positions.dim() == 2:   # (B, T, F) -> (B, 1, ..., T, F)
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


def t5_buckets(distance: Tensor, num_buckets: int = 32, max_distance: int = 128) -> Tensor:
    """T5's causal buckets (long) of distance = query - key >= 0: one each below num_buckets / 2, then logarithmic, the
    last one from max_distance on. Raffel et al. 2019 (arXiv 1910.10683), in the order of operations of its code."""
    exact, distance = num_buckets // 2, distance.long()   # positions may be real numbers
    far = torch.log(distance.clamp(min=1).float() / exact) / math.log(max_distance / exact) * (num_buckets - exact)
    return torch.where(distance < exact, distance, (exact + far.long()).clamp(max=num_buckets - 1))


# ------------------------------------------------------------------------------------------------ pieces

@dataclass(frozen=True)
class Shape:
    """What a piece may know of the model it serves; `length` is the length first trained at, in tokens."""

    n_head: int
    head_dim: int
    width: int
    length: int


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


class Piece(nn.Module):
    """One position scheme. Override the questions it answers; every default is "nothing".

    The class name in snake_case is the scheme's name; keyword-only arguments of __init__ are its options, checked
    against their annotations. Scores are q.k / sqrt(d) x temperature + bias; i and j are position ids, j <= i.
    Tensors made inside a hook are float32 or wider: `like.new_tensor(...)` has the right dtype and device.
    """

    limit: int | None = None   # the number of position ids it defines (None: any); with ids(): the longest total length
    span: tuple[int, int] | None = None   # of a mask: keys farther than span[0], past the first span[1], are never seen
    per_layer: bool = False    # whether each layer has one of its own, where the expression does not say
    continuous: bool = False   # whether the position ids it gives are real numbers
    index_only: bool = False   # whether positions must be 0 ... N - 1: no other piece may change them

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


def answers(piece: Piece | type[Piece], question: str) -> bool:
    """Whether the piece overrides that question (a method name of Piece)."""
    return getattr(piece if isinstance(piece, type) else type(piece), question) is not getattr(Piece, question)


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
        require(resize in ("none", "linear", "bicubic"), f"learned: resize is none, linear or bicubic, not {resize}")
        self.resize, self.index_only = resize, resize != "none"
        self.limit = rows if resize == "none" else None
        self.table = nn.Parameter(torch.empty(rows, shape.width).normal_(std=0.02))

    def embed(self, ids: Tensor, text: Text) -> Tensor:
        """The rows of the table, or of the stretched table, at `ids`."""
        table = self.table
        if self.resize != "none" and text.total > len(table):   # (rows, C) -> (1, C, rows, 1) -> (total, C)
            mode = {"linear": "bilinear"}.get(self.resize, self.resize)
            table = nn.functional.interpolate(table.T[None, ..., None], size=(text.total, 1), mode=mode)[0, ..., 0].T
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


class Rope(Piece):
    """Turn pair m of q and k at position p by p base^(-2m/d), so that scores depend on i - j. Su et al. 2021.

    `fraction` of each head's columns is turned, with the exponents of that fraction (GPT-J, GPT-NeoX); `p` keeps the
    fastest int(p F) of F pairs and stills the rest (p-RoPE, Barbero et al. 2024); `clip` slows the slowest `clip` pairs by
    a cosine taper, the last one to 0 (Li et al. 2026, arXiv 2602.05258); `layout` is half or interleaved: the same
    function of permuted columns. Verdict: the default of today's models; does not extrapolate.
    """

    def __init__(self, shape: Shape, *, base: float = 10000.0, fraction: float = 1.0, p: float = 1.0, clip: int = 0,
                 layout: str = "half") -> None:
        super().__init__()
        require(base >= 1, f"rope: base must be at least 1, not {base}")
        require(0 < fraction <= 1, f"rope: fraction must lie in (0, 1], not {fraction}")
        require(0 <= p <= 1, f"rope: p must lie in [0, 1], not {p}")
        require(layout in ("half", "interleaved"), f"rope: layout is half or interleaved, not {layout}")
        self.columns, self.base, self.layout = int(fraction * shape.head_dim), base, layout
        self.p, self.clip = p, clip
        pairs = len(self.frequencies(shape.length)[0])   # an odd number of columns is refused here, not in the first step
        require(0 <= clip <= pairs, f"rope: clip must lie between 0 and {pairs}, the number of pairs, not {clip}")

    def frequencies(self, total: int) -> tuple[Tensor, float]:
        """The same for every length."""
        inv_freq, factor = rope_frequencies(self.columns, self.base)
        inv_freq[int(self.p * len(inv_freq)) :] = 0.0
        if self.clip > 0:
            inv_freq[-self.clip :] *= (1 + torch.cos(torch.linspace(0, math.pi, self.clip, dtype=torch.float64))) / 2
        return inv_freq, factor

    def turn(self, ids: Tensor, total: int) -> tuple[Turn, Turn]:
        """Queries and keys alike; tables are made here, once per forward."""
        inv_freq, factor = self.frequencies(total)
        cos, sin = (t[:, None] if ids.dim() == 2 else t for t in cos_sin(ids, inv_freq))   # (B, 1, T, F) or (T, F)
        if factor != 1.0:
            cos, sin = cos * factor, sin * factor
        return (lambda x: turn(x, cos, sin, self.layout),) * 2


class Alibi(Piece):
    """score += -m_h (i - j), m_h fixed per head (`alibi_slopes`). Press et al. 2021 (arXiv 2108.12409).

    `learned` trains the slopes (softplus of a parameter (H,), started at the published ones); the paper found no gain.
    Verdict: flat loss at any length, because it reads a window; poor at finding one far token.
    """

    def __init__(self, shape: Shape, *, learned: bool = False) -> None:
        super().__init__()
        slopes = alibi_slopes(shape.n_head)
        self.slopes = slopes.tolist()   # Python numbers: nothing for .to(bfloat16) to round
        if learned:
            self.raw = nn.Parameter(slopes.expm1().log())   # the inverse of softplus

    def bias(self, like: Tensor) -> Bias:
        """-m_h (i - j)."""
        slopes = nn.functional.softplus(self.raw.to(like.dtype)) if hasattr(self, "raw") else like.new_tensor(self.slopes)
        return lambda h, i, j: slopes[h] * (j - i)


class T5(Piece):
    """score += table[bucket(i - j), h], `t5_buckets`; parameter: table (buckets, H), shared by layers as in T5.

    `max_distance` defaults to half the training length, so that every entry is trained. Raffel et al. 2019; unlike T5,
    scores keep their 1 / sqrt(d). Verdict: good to 2-3 times the length; within it the best of its day.
    """

    def __init__(self, shape: Shape, *, buckets: int = 32, max_distance: int | None = None) -> None:
        super().__init__()
        require(2 <= buckets <= 2**16 and buckets % 2 == 0, f"t5: buckets must be even, from 2 to 2**16, not {buckets}")
        self.buckets = buckets
        self.max_distance = max(buckets // 2 + 1, shape.length // 2) if max_distance is None else max_distance
        require(self.max_distance > buckets // 2,
                f"t5: max_distance must exceed buckets / 2 = {buckets // 2}, not {max_distance}")
        self.table = nn.Parameter(torch.zeros(buckets, shape.n_head))

    def bias(self, like: Tensor) -> Bias:
        """A look-up by bucket of the distance."""
        table = self.table.to(like.dtype)
        return lambda h, i, j: table[t5_buckets(i - j, self.buckets, self.max_distance), h]


class Window(Piece):
    """A query sees the last `size` keys (itself included) and the first `sinks`. A mask: positions stay as they are.

    Verdict: bounds what is read, hence flat; every layer of it still hands on `size` tokens of context.
    """

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
        require(shape.length <= max <= 2**24, f"randomized: max must be at least the training length "
                f"{shape.length} and at most 2**24, not {max}")
        require(test in ("spread", "draw"), f"randomized: test is spread or draw, not {test}")
        self.limit, self.test = max, test

    def ids(self, index: Tensor, total: int) -> Tensor:
        """floor(index max / total), or a fixed draw for that total length."""
        if not torch.compiler.is_compiling() and index.numel():
            require(int(index.max()) < total, f"randomized: place {int(index.max())} lies beyond the text of {total} tokens")
        if self.test == "spread":
            return index * self.limit // total
        return self.draw(total, torch.Generator().manual_seed(total)).to(index.device)[index]

    def draw(self, length: int, generator: torch.Generator) -> Tensor:
        """Sorted, without repeats."""
        require(length <= self.limit, f"randomized(max={self.limit}) has no {length} different positions")
        return torch.randperm(self.limit, generator=generator)[:length].sort().values


class Logn(Piece):
    """scores x ln(n) / ln(L), n the number of keys up to the query, L the training length. Su 2021, Chiang & Cholak 2022.

    Verdict: keeps attention from thinning out over long texts; combine it: `rope + logn`. Not enough at small L alone.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        require(shape.length > 1, "logn divides by ln(L): it needs a training length above 1")
        self.length = shape.length

    def temperature(self, index: Tensor, like: Tensor) -> Tensor:
        """ln(i + 1) / ln(L)."""
        return torch.log(index.to(like.dtype) + 1) / math.log(self.length)


# ------------------------------------------------------------------------------------------------ names

def scheme_name(cls: type) -> str:
    """CamelCase -> snake_case: the name of a piece in expressions."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()


def _pieces_of(namespace: dict[str, object], module: str) -> dict[str, type[Piece]]:
    classes = [c for c in namespace.values() if isinstance(c, type) and issubclass(c, Piece) and c is not Piece]
    return {scheme_name(c): c for c in classes if c.__module__ == module}


@lru_cache
def load_file(path: Path) -> dict[str, type[Piece]]:
    """The pieces that a Python file defines, by name; the file is run. Raises PosError if there are none."""
    require(path.is_file(), f"there is no file {path} to take position schemes from")
    name = f"pos_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path, loader=importlib.machinery.SourceFileLoader(name, str(path)))
    module = sys.modules[name] = importlib.util.module_from_spec(spec)   # torch.compile looks a function's module up by name
    sys.modules.setdefault("posenc", sys.modules[__name__])   # so that `from posenc import Piece` is this Piece in a script
    try:
        spec.loader.exec_module(module)
    except Exception as error:   # a user's own file: whatever it does
        raise PosError(f"{path} cannot be run: {type(error).__name__}: {error}; mend it, or see --debug") from error
    pieces = _pieces_of(vars(module), module.__name__)
    require(bool(pieces), f"{path} defines no subclass of posenc.Piece")
    return pieces


def names(pos_file: Path | None = None) -> list[str]:
    """Every scheme that an expression may name."""
    own = load_file(Path(pos_file)) if pos_file else {}
    return sorted({*_pieces_of(globals(), __name__), *(p.stem for p in ZOO.glob("[a-z]*.py")), *own})


def find(name: str, pos_file: Path | None = None) -> type[Piece]:
    """The class of that name: a user's own, then this file's, then zoo/. A wrong name answers with the nearest right one."""
    own, built_in = load_file(Path(pos_file)) if pos_file else {}, _pieces_of(globals(), __name__)
    taken = sorted(n for n in own if n in built_in or (ZOO / f"{n}.py").exists())
    require(not taken, f"{pos_file} defines {', '.join(taken)}, a name that the project already has: rename the class")
    if name in own or name in built_in:
        return own.get(name) or built_in[name]
    if name in names(pos_file):
        return load_file(ZOO / f"{name}.py")[name]
    near = difflib.get_close_matches(name, names(pos_file), 1, 0.4)
    hint = f"did you mean {near[0]}?" if near else "a scheme of your own needs --pos_file=FILE.py."
    raise PosError(f"there is no position scheme {name:.60}; {hint} Known: {', '.join(names(pos_file))}")


# ------------------------------------------------------------------------------------------------ the grammar

def parse(text: str) -> ast.expr:
    """The syntax tree of a position expression, checked but not yet looked up; `ast.unparse` of it is the canonical text."""
    require(len(text) <= 500 and text.isascii(), "a position expression has at most 500 ASCII characters")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        for node in _mentions(tree):
            _options(node)
    except PosError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise PosError(f"the position expression {text!r:.80} cannot be read ({getattr(error, 'msg', error)}); "
                       "write e.g. alibi, rope(base=500000), '--pos=rope + alibi' (quoted in a shell)") from None
    return tree


def _mentions(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.BitOr)):
        yield from _mentions(node.left)
        yield from _mentions(node.right)
    elif isinstance(node, ast.Name) or (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        yield node
    else:
        raise PosError(f"{ast.unparse(node)!r:.80} is not a position scheme: an expression joins names such as rope or "
                       "t5(buckets=16) with + (together) and | (a pattern over layers)")


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.func.id


def _options(node: ast.expr) -> dict[str, object]:
    """The options of one mention, {name: value}; values are finite literals or bare words."""
    if isinstance(node, ast.Name):
        return {}
    require(not node.args and all(k.arg for k in node.keywords),
            f"options have names: write {_name(node):.60}(option=value), not {ast.unparse(node):.80}")
    given = [k.arg for k in node.keywords]
    require(len(set(given)) == len(given), f"an option is given twice in {ast.unparse(node):.80}")
    return {k.arg: _value(k.value, ast.unparse(node)) for k in node.keywords}


def _value(node: ast.expr, where: str) -> object:
    if isinstance(node, ast.Name):
        return node.id
    minus = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    value = getattr(node.operand if minus else node, "value", None)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    finite = number and abs(value) <= 2**53   # up to there a float holds every integer
    require(finite or (not minus and (isinstance(value, bool) or (isinstance(value, str) and value.isprintable()))),
            f"in {where:.80}: a value is a number of at most 2**53, True, False or a word, not {ast.unparse(node):.60}")
    return -value if minus else value


def _layer(node: ast.expr, n: int) -> list[ast.expr]:
    """The mentions that act in layer n: `|` takes branch n mod k, however deep the chain of `|` is nested."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _layer(node.left, n) + _layer(node.right, n)
    branches = _branches(node)
    return _layer(branches[n % len(branches)], n) if len(branches) > 1 else [node]


def _branches(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _branches(node.left) + _branches(node.right)
    return [node]


def _everywhere(node: ast.expr) -> list[ast.expr]:
    """The mentions that stand in no branch: only these may act before the first layer."""
    if isinstance(node, ast.BinOp):
        return _everywhere(node.left) + _everywhere(node.right) if isinstance(node.op, ast.Add) else []
    return [node]


def build(node: ast.expr, shape: Shape, pos_file: Path | None = None) -> Piece:
    """The piece of one mention. Wrong, missing or mistyped options are refused with the list of those it has."""
    name, options = _name(node), _options(node)
    cls = find(name, pos_file)
    known = options_of(cls)
    listed = ", ".join(str(p) for p in known.values()) or "none"
    for key, value in options.items():
        require(key in known, f"{name} has no option {key:.60}; its options: {listed}")
        require(_fits(value, known[key].annotation), f"{name}: {key}={value!s:.60} does not fit; its options: {listed}")
    missing = [n for n, p in known.items() if p.default is p.empty and n not in options]
    require(not missing, f"{name} needs {', '.join(f'{m}=...' for m in missing)}; its options: {listed}")
    options = {k: float(v) if type(v) is int and int not in _kinds(known[k].annotation) else v for k, v in options.items()}
    return cls(shape, **options) if cls.__init__ is not Piece.__init__ else cls()


def options_of(cls: type[Piece]) -> dict[str, inspect.Parameter]:
    """The options of a scheme with annotations and defaults: the keyword-only arguments of its __init__, if it has one."""
    own = inspect.signature(cls.__init__, eval_str=True).parameters if cls.__init__ is not Piece.__init__ else {}
    return {name: p for name, p in own.items() if p.kind is p.KEYWORD_ONLY}


def _kinds(annotation: object) -> tuple[object, ...]:
    """The types that an annotation admits; without one, int and float and all others."""
    if annotation is inspect.Parameter.empty:
        return int, float, str, bool
    union = isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union
    return typing.get_args(annotation) if union else (annotation,)


def _fits(value: object, annotation: object) -> bool:
    return type(value) in _kinds(annotation) or (type(value) is int and float in _kinds(annotation))


# ------------------------------------------------------------------------------------------------ a scheme for a model

@dataclass(frozen=True)
class Plan:
    """What positions do to attention in one forward, for the layers that share these pieces.

    query_ids (T,) or (B, T) and key_ids (S,) or (B, S) are position ids; the queries are the last T of the S tokens.
    """

    query_ids: Tensor
    key_ids: Tensor
    turns: tuple[Turn, Turn] | None = None
    temperature: Tensor | None = None   # (T, 1) or (H, T, 1)
    biases: tuple[Bias, ...] = ()
    masks: tuple[Mask, ...] = ()
    span: tuple[int, int] | None = None   # keys outside the last span[0] and the first span[1] are never seen
    scorer: Piece | None = None           # the piece that claims the whole score


class Scheme(nn.Module):
    """A position expression built for a model of n_layer layers: which piece acts where, checked once, here."""

    def __init__(self, text: str, shape: Shape, n_layer: int, pos_file: Path | None = None) -> None:
        super().__init__()
        tree = parse(text)
        self.text = ast.unparse(tree)
        mentions = list(_mentions(tree))
        built: dict[tuple[int, int], str] = {}   # (mention, layer if it is per_layer else 0) -> key in self.pieces
        self.pieces, own_of_layer = nn.ModuleDict(), set()
        self.layers: list[tuple[str, ...]] = []
        for n in range(n_layer):
            keys = []
            for node in _layer(tree, n):
                bare, per_layer = _without_per_layer(node, find(_name(node), pos_file).per_layer)
                place = (mentions.index(node), n if per_layer else 0)
                if place not in built:
                    built[place] = f"{place[0]}_{_name(node)}" + (f"_layer{n}" if per_layer else "")
                    self.pieces[built[place]] = build(bare, shape, pos_file)
                    own_of_layer |= {built[place]} if per_layer else set()
                keys.append(built[place])
            self.layers.append(tuple(keys))
        self.sets = list(dict.fromkeys(self.layers))                # the distinct sets of pieces
        self.set_of_layer = [self.sets.index(keys) for keys in self.layers]
        self.unused = []
        for m, node in enumerate(mentions):
            if not any(m == k[0] for k in built):
                build(_without_per_layer(node, False)[0], shape, pos_file)   # a mistake in it is a mistake all the same
                self.unused.append(ast.unparse(node))
        self._check([key for (m, _), key in built.items() if mentions[m] in _everywhere(tree) and key not in own_of_layer])
        changes = self.ids_piece
        limits = [p.limit for p in self.pieces.values() if p.limit and p is not changes]
        self.id_limit = min(limits, default=None)   # how many position ids the pieces define; None: any
        self.limit = changes.limit if changes else self.id_limit   # the longest total length defined; None: any

    def _check(self, top: list[str]) -> None:
        """Refuse what clashes: two claims on one place, the same piece twice, an input piece inside a pattern."""
        for n, keys in enumerate(self.layers):
            kinds = [type(self.pieces[k]) for k in keys]
            twice = next((scheme_name(k) for k in kinds if kinds.count(k) > 1), None)
            require(twice is None, f"{twice} stands twice in layer {n} of '{self.text:.80}': name it once")
            for question, place in (("ids", "position ids"), ("embed", "token embedding"), ("turn", "rotation"),
                                    ("score", "whole score")):
                claims = [k.split("_", 1)[1] for k in keys if answers(self.pieces[k], question)]
                require(len(claims) < 2, f"{' and '.join(claims)} both claim the {place} in '{self.text:.80}': keep one")
        for key, piece in self.pieces.items():
            early = answers(piece, "ids") or answers(piece, "embed")
            name = key.split("_", 1)[1]
            require(not early or key in top, f"{name} acts once, before the first layer, so it cannot stand inside a pattern "
                    f"of layers or be per_layer: write 'SCHEME + (... | ...)' instead of '{self.text:.80}'")
        mover = self.ids_piece
        for piece in self.pieces.values() if mover else ():
            name, other = scheme_name(type(piece)), piece is not mover
            require(not (piece.limit and mover.limit and piece.limit < mover.limit), f"'{self.text:.80}' gives positions up to "
                    f"{mover.limit}, more than the {piece.limit} that {name} has: say e.g. learned(rows=...)")
            require(not (other and piece.index_only), f"'{self.text:.80}': {name} needs the positions 0 ... N - 1 as they are")
            require(not (other and mover.continuous and piece.limit),
                    f"'{self.text:.80}': {name} has a vector for each whole position, not for those in between")

    def _first(self, question: str) -> Piece | None:
        return next((p for p in self.pieces.values() if answers(p, question)), None)

    @property
    def ids_piece(self) -> Piece | None:
        """The piece that changes position ids, if there is one."""
        return self._first("ids")

    @property
    def continuous(self) -> bool:
        """Whether position ids are real numbers."""
        return self.ids_piece is not None and self.ids_piece.continuous

    def check_length(self, total: int) -> None:
        """Raise PosError if a text of `total` tokens has positions that the scheme does not define."""
        require(self.limit is None or total <= self.limit,
                f"{self.text} defines {self.limit} positions, a text of {total} tokens needs more")

    def ids(self, index: Tensor, total: int) -> Tensor:
        """Position ids of the tokens at `index` in a text of `total` tokens."""
        return self.ids_piece.ids(index, total) if self.ids_piece else index

    def check_ids(self, ids: Tensor) -> None:
        """Raise PosError for ids that are no positions of this scheme (waits for the device; not in compiled code)."""
        require((self.continuous or not ids.is_floating_point()) and ids.dtype != torch.bool,
                f"position ids are integers, not {ids.dtype}")
        reach = int(ids.max()) + 1 if self.id_limit and ids.numel() else 0
        require(not reach or reach <= self.id_limit, f"{self.text} defines {self.id_limit} positions, not one at {reach - 1}")

    def draw(self, seed: int, step: int, length: int) -> Tensor | None:
        """The random position ids (length,) of a training step, the same for every process; None if they are not random."""
        if self.ids_piece is None or not answers(self.ids_piece, "draw"):
            return None
        mixed = hashlib.sha256(f"{seed} {step}".encode()).digest()[:4]   # torch's generator reads 32 bits of its seed
        return self.ids_piece.draw(length, torch.Generator().manual_seed(int.from_bytes(mixed, "little")))

    def embed(self, ids: Tensor, text: Text) -> Tensor | None:
        """What is added to the token embedding, or None."""
        piece = self._first("embed")
        return piece.embed(ids, text) if piece else None

    def plans(self, index: Tensor, query_ids: Tensor, key_ids: Tensor, total: int, like: Tensor) -> list[Plan]:
        """One Plan for each distinct set of pieces (`self.sets`); `index` (T,) are the queries' places in the text."""
        return [self._plan(keys, index, query_ids, key_ids, total, like) for keys in self.sets]

    def _plan(self, keys: tuple[str, ...], index: Tensor, query_ids: Tensor, key_ids: Tensor, total: int, like: Tensor) -> Plan:
        pieces = [self.pieces[k] for k in keys]
        turning = [p.turn(query_ids, total) for p in pieces if answers(p, "turn")]
        temperatures = [p.temperature(index, like)[..., None] for p in pieces if answers(p, "temperature")]
        spans = sorted(p.span for p in pieces if p.span)
        scorers = [p for p in pieces if answers(p, "score")]
        return Plan(query_ids, key_ids, turning[0] if turning else None,
                    math.prod(temperatures[1:], start=temperatures[0]) if temperatures else None,
                    tuple(p.bias(like) for p in pieces if answers(p, "bias")),
                    tuple(p.mask() for p in pieces if answers(p, "mask")),
                    spans[0] if spans else None, scorers[0] if scorers else None)

    def describe(self) -> str:
        """The map of layers in a line or two, to be printed once."""
        def label(keys: tuple[str, ...]) -> str:
            return " + ".join(k.split("_", 1)[1] for k in keys)
        runs = [f"{n}: {label(keys)}" for n, keys in enumerate(self.layers)]
        text = f"all {len(runs)} layers: {label(self.layers[0])}" if len(set(self.layers)) == 1 else "layers " + ", ".join(runs)
        return text + "".join(f"; {name} is in no layer (the pattern is cut at {len(runs)})" for name in self.unused)


def _without_per_layer(node: ast.expr, default: bool) -> tuple[ast.expr, bool]:
    """Take the grammar's own option off a mention: (the mention without it, its value)."""
    value = _options(node).get("per_layer", default)
    require(isinstance(value, bool), f"per_layer is True or False, not {value!s:.60}")
    if isinstance(node, ast.Name):
        return node, value
    return ast.Call(node.func, [], [k for k in node.keywords if k.arg != "per_layer"]), value


QUESTIONS = {"ids": "position ids", "embed": "token embedding", "turn": "queries and keys", "bias": "score",
             "temperature": "temperature", "mask": "mask", "score": "whole score"}


def catalogue() -> str:
    """A Markdown table of every scheme: options with defaults, where it acts, verdict. For the README."""
    lines = ["| scheme | acts on | verdict |", "| --- | --- | --- |"]
    for name in names():
        cls = find(name)
        options = ", ".join(k if p.default is p.empty else f"{k}={p.default}" for k, p in options_of(cls).items())
        places = ", ".join(place for question, place in QUESTIONS.items() if answers(cls, question))
        verdict = " ".join(inspect.getdoc(cls).partition("Verdict: ")[2].split())
        lines.append(f"| `{name}{f'({options})' if options else ''}` | {places or 'nothing'} | {verdict} |")
    return "\n".join(lines)


def main() -> None:
    """`python posenc.py 'rope + logn' [FILE.py]`: say what each piece of an expression is and which options it has."""
    words = [word for word in sys.argv[1:] if word != "--debug"]
    if not words or words[0] in ("-h", "--help"):
        print(f"usage: python posenc.py 'EXPRESSION' [FILE.py with schemes of your own]\n\n{catalogue()}")
        return
    pos_file = Path(words[1]) if len(words) > 1 else None
    try:
        scheme = Scheme(words[0], Shape(4, 64, 256, 128), 4, pos_file)
    except PosError as error:
        if "--debug" in sys.argv:
            traceback.print_exc()
        raise SystemExit(f"error: {error}") from None
    print(f"{scheme.text}  (in 4 layers of 4 heads of 64, trained at 128)\n{scheme.describe()}")
    for key, piece in scheme.pieces.items():
        name, cls = key.split("_", 1)[1], type(piece)
        options = [str(p) for p in options_of(cls).values()]
        print(f"\n{name}: {inspect.getdoc(cls)}\noptions: {', '.join(options) or 'none'}")
        print("parameters: " + (", ".join(f"{n} {tuple(p.shape)}" for n, p in piece.named_parameters()) or "none"))


if __name__ == "__main__":
    main()
