"""Examine a position scheme before it trains: a second's work on a small model of the run's shape.

The model has the run's heads and width, but few layers and no MLP. One check does most of the work
(`Exam.same`): two passes must give the same logits at some places. Only if they do not are the
methods of all pieces watched, to name the first one that differs.
"""

import difflib
import inspect
import math
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

import attention
from configurable import GPTConfig, UserError, require
from model import GPT
from posenc import Piece, Text, overrides
from positions.catalogue import read
from runs.device import is_out_of_memory

METHODS = [name for name, value in vars(Piece).items() if inspect.isfunction(value)]
TILES = ("bias", "mask", "score")  # these give numbers for pairs of query and key
ROWS = {*TILES, "embed", "turn", "features"}  # tokens are the last axis but one of what these give
LINES = {"ids", "draw", "temperature"}  # tokens are the last axis
SHORT = 64  # tokens of the texts that most is tried on
WHOLE = 2**19  # tokens x width: a text as long as in training is tried up to here
LONG = 2**17  # tokens x width: of a longer text only some tokens are computed
BYTES = 256  # tokens of the small model's vocabulary
MOVE = 0.02  # how far parameters are moved from their start, where a zero may hide one
SAME, NEAR = 1e-6, 1e-4  # how far numbers differ that were computed in one way, and in two
BLOCKS = {"BLOCK_ROWS": 7, "DENSE_BYTES": 0}  # lets attention go by small blocks
COMPILED = {"_is_compiling_flag": True}  # what torch.compiler.is_compiling() tells
EMPTY = torch.empty
Run = Callable[[], Tensor]  # a pass that gives logits (B, T, V)
ADVICE = "--debug shows more"
SEED = 0x10A65407  # one that no scheme sets
RESEEDS = "sets the seed of all random numbers: use a torch.Generator of its own"


# ---- sentences


def file_of(piece: Piece) -> Path:
    """The file that defines a piece."""
    return Path(sys.modules[type(piece).__module__].__file__)


def failure(piece: Piece, method: str, sentence: str) -> UserError:
    """What is wrong with a method of a piece."""
    return UserError(f"{file_of(piece).name}: {type(piece).__name__}.{method} {sentence}")


@contextmanager
def told(pos_file: str | Path | None, advice: str = ADVICE, built: bool = True) -> Iterator[None]:
    """Turn an error of any kind out of a user's file, compiled or not, into one sentence
    (UserError) with file, method, line and what is advised; before a model is `built`, an error
    that names no line of the file too.
    """
    try:
        yield
    except (UserError, OSError):
        raise
    except Exception as error:
        file = Path(pos_file).resolve() if pos_file else None
        text = "".join(traceback.format_exception(error))
        frames = traceback.walk_tb(error.__traceback__)
        places = [(str(n), f.f_code.co_qualname, f.f_code.co_filename) for f, n in frames]
        if "torch._dynamo" in type(error).__module__:  # the compiler's words name the place
            found = re.findall(r'File "([^"\n]+)", line (\d+), in (\S+)', text)
            places = [(line, name, path) for path, line, name in found]
            advice = f"--compile=False runs it as it is; {advice}"
        places = [place for place in places if Path(place[2]).resolve() == file]
        if is_out_of_memory(error) or not (places or (file and not built)):
            raise
        where = f"{file.name}: no model can be built with it"
        for line, name, _ in places[-1:]:
            where = f"{file.name}: {name.partition('.<locals>')[0]} failed in line {line}"
        raise UserError(f"{where} with {reason_of(error)}; {advice}") from error


def reason_of(error: Exception) -> str:
    """Type and message of an error in one line; of a compiler's error what it explains."""
    explained = re.search(r"Explanation: (.+)", str(error))
    lines = [explained[1]] if explained else [*filter(None, str(error).split("\n")), "no message"]
    return f"{type(error).__name__}: {lines[0]:.200}"


# ---- names


def check_names(piece: Piece) -> None:
    """UserError for a name close to one of Piece that nobody reads, and for numbers that nobody
    filled.
    """
    classes = [c for c in type(piece).__mro__ if c.__module__ == type(piece).__module__]
    text = file_of(piece).read_text(encoding="utf-8")
    stored = set(re.findall(r"\bself\.(\w+)\s*(?::[^=\n]+)?=[^=]", text)) & {*vars(piece)}
    reads = re.findall(r"\b(?:self|cls|[A-Z]\w*)\.(\w+)\b(?!\s*(?::[^=\n]+)?=[^=])", text)
    own = {name for name in {*stored}.union(*map(vars, classes)) if name[0] != "_"}
    for name in sorted(own.difference(reads) - ({*dir(Piece), *vars(Piece())} - {"forward"})):
        near = [n for n in METHODS if n in name.split("_")]
        near += difflib.get_close_matches(name, [*vars(Piece)], 1, 0.8)
        hint = f"did you mean {near[0]}?" if near else f"that is {', '.join(METHODS)}"
        acts = any(overrides(piece, method) for method in METHODS)
        if near or (callable(getattr(piece, name)) and not acts):
            raise failure(piece, name, f"is not what Piece has: {hint}")
    for name, tensor in piece.state_dict().items():
        if tensor.isnan().any():
            raise failure(piece, name, "holds NaN from the start, or was made and never filled")


def unfilled(*size: Any, **options: Any) -> Tensor:
    """torch.empty, with NaN in it."""
    made = EMPTY(*size, **options)
    return made.fill_(math.nan) if made.is_floating_point() else made


# ---- watching


@dataclass(frozen=True)
class Call:
    """A call of a method of a piece, or of a function that it gave.

    `result` has the texts of the batch first: (B, T), (B, T, C), (B, H, T) or (B, H, R, C). It is
    about the tokens from `start` on, in a pass up to the token `end`.
    """

    piece: Piece
    method: str
    given: tuple[Any, ...]
    result: Tensor
    end: int

    @property
    def start(self) -> int:
        """The place of the first token that the result is about."""
        rows = self.result.shape[-1 - (self.method in ROWS)]
        return (self.result.shape[-1] if self.method in TILES else self.end) - rows

    def part(self, row: int, first: int, stop: int) -> Tensor:
        """The result for a text and the tokens first ... stop - 1, tokens first; of a tile the keys
        before `stop`.
        """
        found = self.result[row].movedim(-1 - (self.method in ROWS), 0)
        found = found[max(0, first - self.start) : max(0, stop - self.start)]
        return found[..., :stop] if self.method in TILES else found

    def wrong(self) -> Tensor:
        """Where numbers that count are not finite; of a tile also the rows that see no key."""
        found = self.result if self.result.stride(0) else self.result[:1]
        if self.method not in TILES:
            return ~torch.isfinite(found)
        if found.dtype == torch.bool:
            found = torch.where(found, 0.0, -math.inf)
        ahead = torch.ones(found.shape[-2:], dtype=torch.bool).triu(self.start + 1)
        found = found.double().masked_fill(ahead, -math.inf)
        blind = (found == -math.inf).all(-1, keepdim=True) & ~ahead
        return found.isnan() | (found == math.inf) | blind


def tensors(given: Sequence[Any]) -> list[Tensor]:
    """The tensors among the arguments of a method, and in its Text or Tile."""
    parts = [[x] if isinstance(x, Tensor) else getattr(x, "__dict__", {}).values() for x in given]
    return [x for part in parts for x in part if isinstance(x, Tensor)]


class Watch:
    """While it is entered it stands between a model and its pieces: it checks what they give, and
    keeps it in `calls`.
    """

    def __init__(self, model: GPT) -> None:
        self.calls: list[Call] = []
        self.on, self.last = False, None  # the piece and the method called last
        self.texts, self.end, self.config = 1, 0, model.config
        pieces = self.pieces = [*model.pos.pieces.values(), *model.pos.extensions]
        self.watched = [(p, name) for p in pieces for name in METHODS if overrides(p, name)]

    def __enter__(self) -> None:
        """Begin; the calls kept so far are forgotten."""
        self.calls, self.on = [], True
        for piece, name in self.watched:
            setattr(piece, name, partial(self.run, piece, name, getattr(piece, name)))

    def __exit__(self, *error: object) -> None:
        """Leave the pieces as they were: some may look at who calls them."""
        for piece, name in self.watched:
            vars(piece).pop(name, None)
        self.on = False

    def run(self, piece: Piece, name: str, f: Callable[..., Any], *given: Any) -> Any:
        """What a method gives; functions that it gives are watched too."""
        result, count = self.untouched(piece, name, f, given), 1 + (name == "turn")
        if name not in ("bias", "mask", "turn"):
            return self.keep(piece, name, given, result) if name in ROWS | LINES else result
        found = result if isinstance(result, tuple) else (result,)
        if len(found) != count or not all(map(callable, found)):
            wanted = "a function" if count == 1 else "two functions, for queries and for keys"
            raise failure(piece, name, f"must give {wanted}, not {type(result).__name__}")
        inner = [partial(self.numbers, piece, name, g) for g in found]
        return tuple(inner) if count == 2 else inner[0]

    def numbers(self, piece: Piece, name: str, f: Callable[..., Tensor], *given: Any) -> Tensor:
        """What a function gives that a method gave."""
        return self.keep(piece, name, given, self.untouched(piece, name, f, given))

    def untouched(
        self, piece: Piece, name: str, f: Callable[..., Any], given: tuple[Any, ...]
    ) -> Any:
        """f(*given); UserError if that changes what is given, or random numbers of a test."""
        before, random = [x._version for x in tensors(given)], torch.get_rng_state()
        self.last, seed = (piece, name), torch.initial_seed()
        result = f(*given)
        if before != [x._version for x in tensors(given)]:
            raise failure(piece, name, "changes a tensor that it was given: let it work on a copy")
        if not piece.training and name != "draw" and (random != torch.get_rng_state()).any():
            raise failure(piece, name, "is random in a test, or sets the seed")
        require(seed == torch.initial_seed(), str(failure(piece, name, RESEEDS)))
        return result

    def keep(self, piece: Piece, name: str, given: tuple[Any, ...], result: Any) -> Tensor:
        """Check shape, dtype and device of a result, and keep it."""
        if not isinstance(result, Tensor):
            raise failure(piece, name, f"must give a tensor, not {type(result).__name__}")
        shape, shown = self.shape(name, given, result), tuple(result.shape)
        exact = {"embed": 0, "bias": 0, "mask": 0}.get(name, min(len(shape) - 1, len(shown), 2))
        try:
            fits = torch.broadcast_shapes(shown, shape) == shape
        except RuntimeError:
            fits = False
        if not fits or (exact and (shown[-exact:] != shape[-exact:] or not shown)):
            raise failure(piece, name, f"must give the shape {shape}, not {shown}")
        wanted = self.wanted(piece, name, given, result.dtype)
        if wanted:
            raise failure(piece, name, f"must give {wanted}, not {result.dtype}")
        if name != "draw" and result.is_meta != any(x.is_meta for x in tensors(given)):
            raise failure(piece, name, "gives a tensor on another device than what it is given")
        if name in ("ids", "draw") and not result.is_meta:
            falls, whole = (result.diff(dim=-1) < 0).any(), not result.is_floating_point()
            if falls or (whole and (result < 0).any()):
                what = "decrease" if falls else "be negative"
                raise failure(piece, name, f"gives positions that {what}: they must not")
        self.calls.append(Call(piece, name, given, result.expand(shape), self.end))
        return result

    def shape(self, name: str, given: tuple[Any, ...], result: Tensor) -> tuple[int, ...]:
        """The shape, texts of the batch first, that a result must broadcast to."""
        first, heads = given[0], self.config.n_head
        if name in ("bias", "mask"):
            pair = torch.broadcast_shapes(given[-2].shape, given[-1].shape)[-2:]
            return (self.texts, heads, *pair)
        if name == "score":
            return tuple(first.scores.shape)
        if name in ("turn", "features"):
            return (*first.shape[:-1], *result.shape[-1:])
        tokens = first if name == "draw" else first.shape[-1]
        more = {"embed": (tokens, self.config.n_embd), "temperature": (heads, tokens)}
        return (self.texts, *more.get(name, (tokens,)))

    @staticmethod
    def wanted(piece: Piece, name: str, given: tuple[Any, ...], dtype: torch.dtype) -> str:
        """What a result should be that has a wrong dtype; empty for a right one."""
        real, whole = dtype.is_floating_point, not dtype.is_floating_point and dtype != torch.bool
        if name == "mask":
            return "" if dtype == torch.bool else "bool, True where a key is seen,"
        if name in ("ids", "draw"):
            moved = piece.continuous or getattr(given[0], "dtype", dtype).is_floating_point
            moved = moved and (piece.continuous or name == "ids") and dtype.itemsize >= 4
            return "" if whole or (real and moved) else "integers, or float32 where `continuous`"
        if name == "turn":
            return "" if dtype == given[0].dtype else f"{given[0].dtype}, as it is given"
        wide = real and (dtype.itemsize >= 4 or torch.is_autocast_enabled("cpu"))
        return "" if wide or (whole and name == "bias") else "numbers of float32 or wider"


# ---- the examination


def differ(a: Tensor, b: Tensor, tolerance: float) -> Tensor:
    """Where two tensors of one shape differ; NaN equals NaN."""
    return ~torch.isclose(a.double(), b.double(), tolerance, tolerance, equal_nan=True)


def leaves(result: Tensor) -> set[Tensor]:
    """The tensors without a history that a result gives gradients to."""
    todo, seen = [result.grad_fn], set()
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            todo += [parent for parent, _ in node.next_functions]
    return {node.variable for node in seen if hasattr(node, "variable")}


class Exam:
    """A small model with a scheme, and what is tried on it.

    `tokens` are (B, T). The text in row r is that of row 0 up to the place ends[r], and differs
    from it at every later place.
    """

    def __init__(
        self, config: GPTConfig, pos_file: Path | None, length: int, folder: Path | None
    ) -> None:
        layers = range(config.n_layer)
        first = [next(filter(m.acts_in, layers), 0) for m in read(config.pos).mentions]
        few, size = min(config.n_layer, max(1, *first) + 1), max(2, min(config.vocab_size, BYTES))
        self.size, self.vocab_size = size, max(2, config.vocab_size)  # of the model, of the scheme
        small = replace(config, n_layer=few, vocab_size=size, dropout=0.0, extend="")
        with patch("torch.empty", unfilled):
            self.model, self.length = GPT(small, pos_file), length
            self.model.extend(config.extend, folder)
        self.model.wte.register_forward_pre_hook(lambda _, given: (given[0] % size,))
        own_seed = torch.initial_seed() == SEED
        require(own_seed, f"{Path(pos_file or '').name}: the scheme's __init__ {RESEEDS}")
        for block in self.model.h:
            block.mlp = nn.Identity()
            nn.init.normal_(block.attn.c_attn.weight, std=config.n_embd**-0.5)  # scores near 1
            nn.init.normal_(block.attn.c_proj.weight, std=0.1 * config.n_embd**-0.5)
        start = [p.data.clone() for p in self.model.pos.parameters()]
        self.start = [(p, MOVE * torch.randn_like(p) * (1 + p.abs())) for p in start]
        self.watch, self.advice = Watch(self.model), ADVICE
        self.known = set(self.model.parameters())
        self.tokens, self.ends = self.texts(min(SHORT, length), 4)

    def texts(self, length: int, count: int) -> tuple[Tensor, Tensor]:
        """Tokens and ends: `count` texts of that length, or more of short ones."""
        count, size = max(count, min(64, 256 // length)), self.vocab_size
        ends = torch.linspace(length // 2, max(0, length - 2), count).long()
        ends[2::2] = ends[2::2] * 2 - length + 2 if length > 2 else 0
        text = torch.randint(size, (length,))
        other = (text + torch.randint(1, size, (count, length))) % size
        later = torch.arange(length) > ends.clamp(min=0)[:, None]
        later[0] = False
        return torch.where(later, other, text), ends.clamp(min=0)

    def move(self, times: float) -> None:
        """Put the scheme's parameters at their start and so many times some noise."""
        for p, (start, noise) in zip(self.model.pos.parameters(), self.start, strict=True):
            p.data.copy_(start + times * noise)

    def logits(self, tokens: Tensor, **how: Any) -> Tensor:
        """The logits of `computed`; UserError, which names a method, for an error of any kind."""
        try:
            return self.computed(tokens, **how)
        except UserError:
            raise
        except Exception as error:
            if not self.watch.on:  # once more, to know which method
                with self.watch:
                    return self.logits(tokens, **how)
            if is_out_of_memory(error):
                raise
            last = self.watch.last
            with told(file_of(last[0]) if last else None, self.advice):
                shown = "".join(traceback.format_exception(error, chain=False))
                if last and str(file_of(last[0])) in shown:
                    raise
            raise self.fail(last, f"leads to {reason_of(error)}; {self.advice}") from error

    def computed(
        self,
        tokens: Tensor,
        train: bool = False,
        total: int = 0,
        cuts: Sequence[int] = (),
        places: Tensor | None = None,
        blocks: bool = False,
        seed: bool = True,
    ) -> Tensor:
        """Logits (B, T, V) in one pass, as in training or in a test; with a `total` length through
        a cache, cut in parts, of tokens at `places`.
        """
        self.watch.texts, self.watch.end = tokens.shape
        self.model.train(train)
        if seed:
            torch.manual_seed(SEED)
        how = BLOCKS if blocks else {"BLOCK_ROWS": attention.BLOCK_ROWS}
        with torch.set_grad_enabled(train), patch.multiple(attention, **how):
            if not total:
                ids = self.model.draw_ids(0, 0, tokens.shape[1]) if train else None
                return self.model(tokens, tokens.roll(-1, 1) % self.size, ids=ids)[0]
            cache, parts = self.model.new_cache(len(tokens), total), []
            if not cuts:  # one part: room for a long text is not needed
                cache.append = lambda _, *new: new
            for a, self.watch.end in pairwise((0, *cuts, tokens.shape[1])):
                new = slice(a, self.watch.end)
                where = None if places is None else places[new]
                parts.append(self.model(tokens[:, new], positions=where, cache=cache)[0])
            return torch.cat(parts, 1)

    def watched(self, run: Callable[[], Any]) -> list[Call]:
        """The calls of a pass."""
        with self.watch:
            run()
        return self.watch.calls

    # -- what is told

    def fail(self, call: Call | tuple[Piece, str] | None, sentence: str) -> UserError:
        """What is wrong with the method of a call, or with the methods of a scheme together."""
        if call:
            piece, method = (call.piece, call.method) if isinstance(call, Call) else call
            return failure(piece, method, sentence)
        own = self.model.pos.pos_file
        pieces = [p for p in self.watch.pieces if own and file_of(p).samefile(own)]
        piece = (pieces or self.watch.pieces)[0]
        methods = [name for p, name in self.watch.watched if p is piece]
        return failure(piece, " or ".join(methods), sentence)

    def blame(self, whole: list[Call], other: list[Call], row: int, stop: int) -> Call | None:
        """The first call of a pass that differs, for some text before a place, from its like in a
        pass in one piece.
        """
        latest: dict[Any, tuple[int, int]] = {}  # start, and how many layers came before
        for call in other:
            key = call.piece, call.method, call.end
            start, layer = latest.get(key, (call.start, -1))
            latest[key] = call.start, layer + (call.start <= start)
            likes = [c for c in whole if (c.piece, c.method) == key[:2]]
            if not likes:
                return call
            one = likes[min(latest[key][1], len(likes) - 1)].part(row, call.start, stop)
            part = call.part(row, call.start, stop)
            one = one[tuple(map(slice, part.shape))]  # without keys that the part has not
            if one.shape != part.shape or differ(one, part, NEAR / 10).any():
                return call
        return None

    def same(
        self,
        rule: str,
        first: Run,
        second: Run,
        where: Tensor | bool = True,
        tolerance: float = SAME,
    ) -> None:
        """UserError if the logits of two passes differ `where` (B, T) they must not."""
        wrong = differ(first(), second(), tolerance).any(-1) & where
        if wrong.any():
            row, place = wrong.nonzero()[0].tolist()
            stop = int((wrong[row] * 0 + where * 1)[row].sum()) if where is not True else place + 1
            call = self.blame(self.watched(first), self.watched(second), row, stop)
            raise self.fail(call, f"{rule} (the logits at place {place} do)")

    def not_finite(self, run: Run, how: str) -> UserError | None:
        """What is wrong if numbers of a pass are not finite, or a query sees no key."""
        logits = []
        for call in self.watched(lambda: logits.append(run())):
            wrong = call.wrong()
            if wrong.any():
                place = wrong.nonzero()[0].tolist()
                came = f"gives {call.result[tuple(place)].item()}"
                came += f" for query {place[-2]} and key {place[-1]}" * (call.method in TILES)
                return self.fail(call, f"must give finite numbers {how}, and {came}")
        came = f"must give finite numbers {how}, and the logits are not"
        return None if logits[0].isfinite().all() else self.fail(None, came)

    # -- what is tried

    def causal(self, run: Callable[[Tensor], Tensor], tokens: Tensor, ends: Tensor) -> None:
        """Later tokens change nothing."""
        base, where = tokens[:1].expand_as(tokens[1:]), torch.arange(tokens.shape[1])
        rule = "must not depend on later tokens, and changes with them"
        self.same(rule, partial(run, base), partial(run, tokens[1:]), where <= ends[1:, None])

    def each(self, run: Callable[[Tensor], Tensor], chosen: slice) -> None:
        """The same, with every token (of many some) as the last one that stays, and as next."""
        size = self.vocab_size
        some = torch.arange(size) if size <= BYTES else torch.randperm(size)[:BYTES]
        few = some[chosen, None] + torch.tensor([[3, 0, 1]])
        other, where = few.clone(), torch.tensor([[True, True, False]]).expand_as(few)
        other[:, 2] += 1 + size // 3
        rule = "must not depend on later tokens, and changes with the next one"
        self.same(rule, partial(run, few % size), partial(run, other % size), where)

    def own(self) -> None:
        """A text has its own numbers, whatever other texts hold."""
        tokens = self.tokens[:, :32]
        for row in (len(tokens) - 1, 0):
            others = torch.randint_like(tokens, self.vocab_size)
            others[row] = tokens[row]
            kept = (torch.arange(len(tokens)) == row)[:, None].expand_as(tokens)
            rule = "must give each text its own numbers, and changes with other texts of the batch"
            self.same(rule, partial(self.logits, tokens), partial(self.logits, others), kept)

    def paths(self) -> None:
        """All ways of computing give the same: one pass, blocks, a cache."""
        tokens, length = self.tokens, self.tokens.shape[1]
        cuts = {1, 2, 5, 6, length // 2, length - 2, length - 1}.intersection(range(1, length))
        whole = partial(self.logits, tokens[:2])
        blocks = partial(self.logits, tokens[:2], blocks=True)
        cached = partial(self.logits, tokens[:2], total=length, cuts=sorted(cuts))
        rule = "must give a query and a key the same in every tile, within its span, and differs"
        self.same(rule, whole, blocks, tolerance=NEAR)
        rule = "must give the same in one pass and token by token with a cache, and differs"
        self.same(rule, whole, cached, tolerance=NEAR)

    def draws(self) -> None:
        """A draw follows from its generator alone."""
        drawn = [self.model.draw_ids(0, 0, self.length)]
        if drawn[0] is None:
            return
        with self.watch:
            for tokens in (self.tokens, self.tokens.flip(1)):
                self.logits(tokens, train=True)
                drawn += [self.model.draw_ids(0, 0, self.length) for _ in range(2)]
        if any(differ(drawn[0], other, 0.0).any() for other in drawn):
            sentence = "must draw by its generator alone: two draws of one step differ"
            raise self.fail(self.watch.calls[-1], sentence)

    def gradients(self, run: Run) -> None:
        """Gradients are finite; they are kept."""
        loss = -run().log_softmax(-1)[..., 0].mean()
        if leaves(loss) - self.known:
            calls = self.watched(run)
            call = next((c for c in calls if leaves(c.result) - self.known), None)
            raise self.fail(call, "uses a tensor that never trains: make it an nn.Parameter, once")
        loss.backward()
        if all(p.grad.isfinite().all() for p in self.model.parameters() if p.grad is not None):
            return
        for call in self.watched(run):
            inputs = [*tensors(call.given), *call.piece.parameters()]
            inputs = [x for x in inputs if x.requires_grad]
            if call.result.requires_grad and inputs:
                total = call.result.masked_fill(~call.result.isfinite(), 0.0).sum()
                found = torch.autograd.grad(total, inputs, retain_graph=True, allow_unused=True)
                if any(g is not None and not g.isfinite().all() for g in found):
                    raise self.fail(call, "must have a finite gradient (think of sqrt or log at 0)")
        raise self.fail(None, "must have finite gradients, and one is not")

    def trained(self) -> None:
        """Every parameter of the scheme got a gradient."""
        for piece in self.watch.pieces:
            for name, p in piece.named_parameters():
                if p.requires_grad and (p.grad is None or not p.grad.any()):
                    if overrides(piece, "embed") and self.some_token_reaches(piece, p):
                        continue
                    ways = "it is not used, or loses it by .data, .detach() or .item()"
                    raise failure(piece, name, f"gets no gradient, so it never trains: {ways}")

    def some_token_reaches(self, piece: Piece, p: Tensor) -> bool:
        """Whether `embed` reads a parameter for some token, perhaps one in none of the texts."""
        for tokens in torch.arange(self.vocab_size).repeat_interleave(2).split(len(self.tokens[0])):
            ids = self.model.pos.ids(torch.arange(len(tokens)), len(tokens))
            vectors = piece.embed(ids, Text(tokens[None], len(tokens)))
            found = vectors.requires_grad and torch.autograd.grad(
                (vectors**2).sum() + vectors.sum(), p, allow_unused=True
            )
            if found and found[0] is not None and found[0].any():
                return True
        return False

    def reaches(self, length: int, train: bool) -> UserError | None:
        """Try texts of `length` tokens in all: every one, or some from all over it."""
        places = torch.arange(length)
        if length > max(64, LONG // self.model.config.n_embd):
            places = torch.cat((places[:16], places[16 : -16 : length // 16], places[-16:]))
        tokens, ends = self.texts(len(places), 2)
        run = partial(self.logits, train=train, total=length, places=places)
        error = self.not_finite(partial(run, tokens), f"in a text of {length} tokens")
        self.causal(run, tokens, ends)
        if train and not error:
            self.gradients(partial(run, tokens))
        return error

    def elsewhere(self) -> str:
        """What fails on another device, or where code may not look at numbers, as when compiled."""
        tokens, ends = self.texts(min(16, self.length), 8)
        compiled = patch.multiple(torch.compiler, **COMPILED)
        with compiled, torch.autocast("cpu", torch.bfloat16):
            self.watched(partial(self.logits, tokens))
            for train in (False, True):
                self.causal(partial(self.logits, train=train), tokens, ends)
        self.model.to("meta")
        hidden = patch("torch.autocast", lambda *_, **options: nullcontext())  # meta lacks it
        try:
            with hidden, compiled:
                self.watched(partial(self.logits, tokens[:2].to("meta")))
        except UserError as error:
            return f"{error}; so it would be on a GPU, or compiled"
        return ""


def examine(
    config: GPTConfig,
    pos_file: Path | None = None,
    *,
    length: int | None = None,
    folder: Path | None = None,
) -> list[str]:
    """Examine the scheme `config.pos`, extended by `config.extend`, for training at `length` (by
    default config.block_size): warnings, about longer texts and other machines.

    UserError, one sentence, for what is wrong: a scheme must be causal, give each text its own
    numbers, the same ones by every way of computing, finite ones, and train all its parameters.
    """
    length = length or config.block_size
    with torch.random.fork_rng(devices=[]), told(pos_file):
        torch.manual_seed(SEED)
        with told(pos_file, built=False):
            exam = Exam(config, pos_file, length, folder)
        exam.model.check_length(length)
        return examined(exam, length)


def examined(exam: Exam, length: int) -> list[str]:
    """The warnings of `examine`."""
    train, tokens = partial(exam.logits, train=True), exam.tokens
    for piece in exam.watch.pieces:
        check_names(piece)
    exam.move(1)
    for run, how in ((exam.logits, "in a test"), (train, "in training")):
        error = exam.not_finite(partial(run, tokens), how)
        require(not error, str(error))
    rule = "must give the same each time: it is random, or keeps something from an earlier call"
    unseeded = partial(exam.logits, tokens, seed=False)
    exam.same(rule, unseeded, unseeded)
    before = unseeded()
    exam.own()
    for first, run in enumerate((exam.logits, train)):
        exam.causal(run, tokens, exam.ends)
        exam.each(run, slice(first, None, 2))
        if SHORT < length <= WHOLE // exam.model.config.n_embd:
            exam.causal(run, *exam.texts(length, 2))
    exam.paths()
    exam.draws()
    exam.gradients(partial(train, tokens))
    exam.move(-1)
    error = exam.reaches(length, True)
    require(not error, str(error))
    exam.trained()
    longer, pos = min(4 * length, exam.model.limit or 4 * length), exam.model.pos
    if pos.id_limit and pos.ids(torch.arange(longer), longer).max() >= pos.id_limit:
        longer = length  # a table of another piece ends there
    exam.advice = f"a scheme that ends before {longer} tokens says so: `limit`"
    error = exam.reaches(longer, False) if longer > length else None
    exam.advice = ADVICE
    exam.move(1)
    exam.same(rule, lambda: before, unseeded)
    warnings = [f"{error}; it breaks beyond the training length"] if error else []
    return [*warnings, *filter(None, [exam.elsewhere()])]
