"""Examine a position scheme before it trains: a second's work on a small model of the run's shape.

The model has the run's heads and width, but few layers and no MLP. One check does most of the work
(`Exam.same`): two passes must give the same logits at some places. Only if they do not are the
methods of all pieces watched, to name the first one that differs.
"""

import difflib
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, nn

import attention
from configurable import GPTConfig, UserError, require
from model import GPT
from posenc import Piece, Text, overrides
from positions.grammar import parse
from runs.device import is_out_of_memory

METHODS = [name for name, f in vars(Piece).items() if callable(f) and name[0] != "_"]
TILES = ("bias", "mask", "score")  # these give numbers for pairs of query and key
ROWS = (*TILES, "embed", "turn", "features", "")  # tokens: the last axis but one of what these give
WIDE, WHOLE = (torch.float32, torch.float64), (torch.int64, torch.int32)
DTYPES = {"mask": (torch.bool,), "ids": WHOLE, "draw": WHOLE, "bias": WIDE + WHOLE}  # else WIDE
SHORT, BYTES = 64, 256  # tokens of most texts; tokens of the small model's vocabulary
LONG, SOME = 2**19, 2**17  # tokens x width: tried as it is up to here; all tokens up to here
# how far parameters are moved from their start, where a zero may hide one; how far numbers may
# differ that were computed in one way, and in two
MOVE, SAME, NEAR = 0.02, 1e-6, 1e-4
Run = Callable[[], Tensor]  # a pass that gives logits (B, T, V)
Methods = Sequence[tuple[Piece, str]]  # methods of pieces
SEED = 0x10A65407  # one that no scheme sets

AGAIN = "must give the same each time, not random numbers or some of an earlier call"


# ---- sentences


def file_of(piece: Piece) -> Path:
    """The file that defines a piece."""
    return Path(sys.modules[type(piece).__module__].__file__)


def failure(methods: Methods, sentence: str) -> str:
    """What is wrong with one of these methods."""
    names = dict.fromkeys(f"{type(piece).__name__}.{name}" for piece, name in methods)
    return f"{file_of(methods[0][0]).name}: {' or '.join(names)} {sentence}"


def reason_of(error: BaseException) -> str:
    """Type and message of an error in one line, of a compiler's error what it explains; advice."""
    text = str(error)
    lines = [*re.findall("Explanation: (.+)", text), *re.findall(".+", text), "no message"]
    advice = "--compile=False runs it as it is; " * ("torch._dynamo" in type(error).__module__)
    advice += "what ends says so: `limit`; " * isinstance(error, IndexError | AssertionError)
    return f"{type(error).__name__}: {lines[0]:.200}; {advice}--debug shows more"


def placed(error: BaseException, pos_file: str | Path | None) -> str:
    """A sentence with the method and the line of a user's file that an error came from; empty for
    an error that came from another file.
    """
    words = "".join(traceback.format_exception(error))  # which name the place in compiled code
    places = re.findall(r'File "([^"\n]+)", line (\d+), in (\S+)', words)
    frames = traceback.walk_tb(error.__traceback__)
    places += [(f.f_code.co_filename, line, f.f_code.co_qualname) for f, line in frames]
    for path, line, name in reversed(places):
        if pos_file and Path(path).resolve() == Path(pos_file).resolve():
            method = f"{Path(path).name}: {name.partition('.<locals>')[0]}"
            return f"{method} failed in line {line} with {reason_of(error)}"
    return ""


@contextmanager
def told(pos_file: str | Path | None, elsewhere: Callable = lambda error: "") -> Iterator[None]:
    """Turn an error of any kind out of a user's file, compiled or not, into one sentence
    (UserError) with file, method and line; one from elsewhere into what `elsewhere` says of it.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        raw = isinstance(error, UserError) or is_out_of_memory(error)
        sentence = "" if raw else placed(error, pos_file) or elsewhere(error)
        if not sentence:
            raise
        raise UserError(sentence) from error


# ---- names


def check_names(piece: Piece) -> None:
    """UserError for a name in a user's file that is close to one of Piece and that nobody reads."""
    text = file_of(piece).read_text(encoding="utf-8")
    stored = r"(?:\s*:[^=\n]+)?\s*=[^=]"  # what stands behind a name that is stored
    classes = [c for c in type(piece).__mro__ if c.__module__ == type(piece).__module__]
    kept = {*re.findall(rf"\bself\.([a-z]\w*){stored}", text)}.intersection(vars(piece))
    idle = not any(overrides(piece, method) for method in METHODS)
    for name in sorted(kept.union(*map(vars, classes)) - ({*dir(Piece)} - {"forward"})):
        near = [n for n in METHODS if n in name.split("_")]
        near += difflib.get_close_matches(name, [*vars(Piece)], 1, 0.8)
        hint = f"did you mean {near[0]}?" if near else f"that is {', '.join(METHODS)}"
        reader = r"\w+" if name in kept else r"\b(self|cls|[A-Z]\w*)"
        read = name[0] == "_" or re.search(rf"{reader}\.{name}\b(?!{stored})", text)
        harmless = not near and not (idle and callable(getattr(piece, name)))
        require(read or harmless, failure([(piece, name)], f"is not what Piece has: {hint}"))


def unfilled(*size: Any, empty: Callable[..., Tensor] = torch.empty, **options: Any) -> Tensor:
    """torch.empty, with NaN in it."""
    made = empty(*size, **options)
    return made.fill_(torch.nan) if made.is_floating_point() else made


# ---- what is watched


class Call(NamedTuple):
    """A call of a method of a piece, or of a function that it gave; or, as the last one, a pass.

    `result` has the texts of the batch first: (B, T), (B, T, C), (B, H, T) or (B, H, R, C). A pass
    has no `method`: of all these `methods` one is wrong if its logits are.
    """

    methods: Methods
    method: str
    result: Tensor

    def worst(self) -> Tensor:
        """The numbers that must be finite: of a tile the largest that each query sees."""
        if self.method not in TILES:
            return self.result
        found = self.result.double().log() if self.method == "mask" else self.result.double()
        ahead = torch.ones(found.shape[-2:]).triu(1 + found.shape[-1] - found.shape[-2]) > 0
        return found.masked_fill(ahead, -torch.inf).amax(-1)

    def until(self, row: int, stop: int) -> Tensor:
        """The numbers of a text for the first `stop` tokens, in a pass over all."""
        found = self.result[row].movedim(-1 - (self.method in ROWS), 0)[:stop]
        return found[..., :stop] if self.method in TILES else found


# ---- the examination


def differ(a: Tensor, b: Tensor, tolerance: float) -> Tensor:
    """Where two tensors of one shape differ; NaN equals NaN."""
    return ~torch.isclose(a.double(), b.double(), tolerance, tolerance, equal_nan=True)


class Exam:
    """A small model with a scheme, and what is tried on it."""

    def __init__(self, config: GPTConfig, pos_file: Path | None, length: int, folder: Any) -> None:
        layers, self.length, self.pos_file = range(config.n_layer), length, pos_file
        first = [next(filter(m.acts_in, layers), 0) for m in parse(config.pos).mentions]
        few = min(config.n_layer, max(1, *first) + 1)
        size, self.vocab_size = max(2, min(config.vocab_size, BYTES)), max(2, config.vocab_size)
        small = replace(config, n_layer=few, vocab_size=size, dropout=0.0, extend="")
        with patch("torch.empty", unfilled):
            self.model = GPT(small, pos_file)
            self.model.extend(config.extend, folder)
        self.model.wte.register_forward_pre_hook(lambda _, given: (given[0] % size,))
        for block in self.model.h:
            block.mlp = nn.Identity()
            for layer in block.attn.modules():
                if isinstance(layer, nn.Linear):
                    nn.init.normal_(layer.weight, std=layer.in_features**-0.5)  # scores near 1
        self.pieces = [*self.model.pos.pieces.values(), *self.model.pos.extensions]
        self.methods = [(p, name) for p in self.pieces for name in METHODS if overrides(p, name)]
        own = [(p, name) for p, name in self.methods if pos_file and file_of(p).samefile(pos_file)]
        self.own = self.last = own or self.methods or [(p, "__init__") for p in self.pieces]
        self.known = nn.ParameterList([p for p in self.model.parameters() if p.requires_grad])
        for p in self.known.requires_grad_(False):  # but while gradients are computed
            p.grad = torch.zeros_like(p)
        self.some = torch.randperm(self.vocab_size)[:BYTES]
        self.tokens = self.texts(min(SHORT, length))

    def texts(self, length: int) -> Tensor:
        """Texts (B, length): two, or more of short ones."""
        return torch.randint(self.vocab_size, (max(2, min(64, 256 // length)), length))

    def demand(self, good: Any, sentence: str) -> None:
        """UserError, about the method that is watched or else about all, unless it is good."""
        require(good, failure(self.last, sentence))

    # -- passes

    def logits(self, tokens: Tensor, **how: Any) -> Tensor:
        """The logits of `computed`; UserError, which names a method, for an error of any kind."""
        with told(self.pos_file, lambda error: failure(self.last, f"leads to {reason_of(error)}")):
            return self.computed(tokens, **how)

    def computed(self, tokens: Tensor, train: bool = False, **how: Any) -> Tensor:
        """Logits (B, T, V) in one pass, as in training or in a test, in `tiles` of attention; or
        through a cache, in parts that end at `cuts`, or of tokens at `places` of a longer text.
        """
        model, places, cuts = self.model.train(train), how.get("places"), how.get("cuts", ())
        self.demand(torch.initial_seed() == SEED, "or __init__ sets the seed that all share")
        torch.manual_seed(SEED)
        self.count, length = tokens.shape
        ids = model.draw_ids(0, 0, length) if train and places is None else None
        total, parts = length if places is None else int(places[-1]) + 1, []
        cache = model.new_cache(self.count, total) if cuts or places is not None else None
        if places is not None:  # room for a long text is not needed
            cache.append = lambda _, *new: new
        with torch.set_grad_enabled(train), patch.dict(vars(attention), how.get("tiles", {})):
            for part in tokens.tensor_split(cuts, 1):
                after = part.roll(-1, 1) % model.config.vocab_size
                parts.append(model(part, after, positions=places, ids=ids, cache=cache)[0])
        return torch.cat(parts, 1)

    # -- what is watched

    def calls_of(self, run: Run) -> list[Call]:
        """The calls in a pass, and the pass itself. Then the pieces are as they were: some may look
        who calls them.
        """
        self.calls: list[Call] = []
        for piece, name in self.methods:
            vars(piece)[name] = partial(self.run, piece, name, True, getattr(piece, name))
        self.calls.append(Call(self.own, "", run()))
        for piece, name in self.methods:
            del vars(piece)[name]
        self.last = self.own
        return self.calls

    def run(self, piece: Piece, name: str, outer: bool, f: Callable, *given: Any) -> Any:
        """f(*given), kept; functions that a method gives are watched too. UserError if it changes
        what it is given, or random numbers that all share.
        """
        taken = [*given, *(x.tokens for x in given if isinstance(x, Text))]
        versions = [x._version for x in taken if isinstance(x, Tensor)]
        random = torch.get_rng_state()
        self.last = [(piece, name)]
        result = f(*given)
        self.last = [(piece, name)]  # others were called in between
        kept = versions == [x._version for x in taken if isinstance(x, Tensor)]
        self.demand(kept, "changes a tensor that it was given: let it work on a copy")
        still = torch.equal(random, torch.get_rng_state()) or (piece.training and name != "draw")
        self.demand(still, "takes random numbers that all share: only training may")
        if outer and name == "turn":
            return tuple(partial(self.run, piece, name, False, g) for g in result)
        if outer and name in ("bias", "mask"):
            return partial(self.run, piece, name, False, result)
        if name in (*ROWS, "ids", "draw", "temperature"):
            self.keep(name, given, result)
        return result

    def keep(self, name: str, given: Sequence[Any], result: Tensor) -> None:
        """Check shape, dtype and order of the result of the last method called, and keep it."""
        shape = self.shape(name, given, result)
        shown = f"must give the shape {shape}, not {tuple(result.shape)}"
        with told(None, lambda _: failure(self.last, shown)):
            result = result.expand(shape)
        real = self.last[0][0].continuous or (name == "ids" and given[0].is_floating_point())
        dtypes = (given[0].dtype,) if name == "turn" else DTYPES.get(name, WIDE)
        dtypes += WIDE * real + (torch.bfloat16,) * torch.is_autocast_enabled("cpu")
        self.demand(result.dtype in dtypes, f"must give {dtypes}, not {result.dtype}")
        if name in ("ids", "draw") and not result.is_meta:
            good = (result.diff() >= 0).all() and (result.is_floating_point() or result.min() >= 0)
            self.demand(good, "gives positions that decrease or are negative")
        self.demand(not result.requires_grad, "has a tensor that never trains: make it a Parameter")
        self.calls.append(Call(self.last, name, result))

    def shape(self, name: str, given: Sequence[Any], result: Tensor) -> tuple[int, ...]:
        """The shape, texts of the batch first, that a result must broadcast to."""
        first, heads = given[0], self.model.config.n_head
        if name in TILES:
            like = first.scores if name == "score" else torch.broadcast_tensors(*given)[0]
            return (self.count, heads, *like.shape[-2:])
        if name in ("turn", "features"):
            return (*first.shape[:-1], *result.shape[-1:])
        tokens = first if name == "draw" else first.shape[-1]
        more = {"embed": (tokens, self.model.config.n_embd), "temperature": (heads, tokens)}
        return (self.count, *more.get(name, (tokens,)))

    # -- what is told

    def same(self, rule: str, a: Run, b: Run, where: Any = True, near: float = SAME) -> None:
        """UserError if the logits of two passes differ `where` (B, T) they must not."""
        wrong = differ(a(), b(), near).any(-1) & where
        for row, place in wrong.nonzero()[:1].tolist():
            rule += f", but the logits at place {place} differ"
            stop = int((where | wrong)[row].sum())
            pairs = zip(self.calls_of(a), self.calls_of(b), strict=False)
            for one, other in pairs if near == SAME else ():
                if differ(one.until(row, stop), other.until(row, stop), SAME / 10).any():
                    raise UserError(failure(other.methods, rule))
            raise UserError(failure(self.own, rule))

    def not_finite(self, run: Run, how: str) -> str:
        """What is wrong if numbers of a pass are not finite, or a query sees no key."""
        for call in self.calls_of(run):
            worst = call.worst()
            for place in (~worst.isfinite()).nonzero()[:1].tolist():
                found = f"from tensors that are filled, and gives {worst[tuple(place)].item()}"
                found += f" for query {place[-1]}" * (call.method in TILES)
                return failure(call.methods, f"must give finite numbers {how}, {found}")
        return ""

    # -- what is tried

    def causal(self, run: Callable[[Tensor], Tensor], tokens: Tensor) -> None:
        """Other tokens after some place, those of another text, change nothing up to it."""
        count, length = tokens.shape
        ends = torch.linspace(length // 3, max(0, length - 2), count).long()
        where = torch.arange(length) <= ends[:, None]
        other = torch.where(where, tokens, tokens.roll(1, 0))
        self.same("must not read later tokens", partial(run, tokens), partial(run, other), where)

    def tried(self, train: bool) -> None:
        """A pass, in a test or in training: finite, the same again, each text its own, causal."""
        run, tokens = partial(self.logits, train=train), self.tokens
        whole = partial(run, tokens)
        said = self.not_finite(whole, "in training" if train else "in a test")
        require(not said, said)
        self.same(AGAIN, whole, whole)
        kept = torch.arange(len(tokens))[:, None] % 3 == 2
        others = torch.where(kept, tokens, tokens.roll(1, 0))
        self.same("must not read other texts", whole, partial(run, others), kept)
        each = (self.some[train::2, None] + torch.tensor([3, 0, 1])) % self.vocab_size
        long = SHORT < self.length <= LONG // self.model.config.n_embd
        for texts in (tokens, each, *[self.texts(self.length)] * long):
            self.causal(run, texts)

    def paths(self) -> None:
        """All ways of computing give the same: one pass, blocks, a cache."""
        tokens, length = self.tokens[:2], self.tokens.shape[1]
        cuts = {1, 2, 5, 6, length // 2, length - 2, length - 1}.intersection(range(1, length))
        whole = partial(self.logits, tokens)
        tiles = partial(whole, tiles={"BLOCK_ROWS": 7, "DENSE_BYTES": 0})
        parts = partial(whole, cuts=sorted(cuts))
        for where, run in (("every tile, within its span", tiles), ("parts, with a cache", parts)):
            self.same(f"must give the same in {where}", whole, run, near=NEAR)

    def gradients(self, tokens: Tensor, **how: Any) -> None:
        """Gradients are finite; they are kept."""
        self.known.requires_grad_(True)
        logits = self.logits(tokens, train=True, **how)
        (-logits.log_softmax(-1)[..., 0].mean()).backward()
        self.known.requires_grad_(False)
        finite = all(p.grad.isfinite().all() for p in self.known)
        self.demand(finite, "must have a finite gradient (sqrt or log at 0?)")

    def trained(self) -> None:
        """Every parameter of the scheme got a gradient; some may wait for one token of all."""
        length, size = self.tokens.shape[1], self.vocab_size
        every = torch.arange(-(-size // length) * length).view(-1, length) % size
        lost = "gets no gradient: it is not used, or cut off by .data, .detach() or .item()"
        for piece in self.pieces:
            for name, p in piece.named_parameters():
                for tokens in reversed(every.split(32)):
                    if p.grad is not None and not p.grad.any():
                        self.gradients(tokens)
                require(p.grad is None or p.grad.any(), failure([(piece, name)], lost))

    def reaches(self, length: int, train: bool) -> str:
        """Try texts of `length` tokens in all: every one, or some from all over it."""
        places = torch.arange(length)
        if length > max(SHORT, SOME // self.model.config.n_embd):
            places = torch.cat((places[:16], places[16 : -16 : length // 16], places[-16:]))
        run, tokens = partial(self.logits, train=train, places=places), self.texts(len(places))
        said = self.not_finite(partial(run, tokens), f"in a text of {length} tokens")
        self.causal(run, tokens)
        if train and not said:
            self.gradients(tokens, places=places)
        return said

    def elsewhere(self) -> str:
        """What fails on another device, or where code may not look at numbers, as when compiled."""
        tokens = self.texts(min(16, self.length))
        compiled = patch("torch.compiler._is_compiling_flag", True)
        with compiled, torch.autocast("cpu", torch.bfloat16):
            self.calls_of(partial(self.logits, tokens))
            for train in (False, True):
                self.causal(partial(self.logits, train=train), tokens)
        self.model.to("meta")
        try:
            with compiled, patch("torch.autocast"):  # meta lacks it
                self.calls_of(partial(self.logits, tokens[:2].to("meta")))
        except UserError as error:
            return f"{error}; so it would be on a GPU, or compiled"
        return ""


def examine(
    config: GPTConfig, pos_file: Path | None = None, *, length: int = 0, folder: Path | None = None
) -> list[str]:
    """Examine the scheme `config.pos`, extended by `config.extend`, for training at `length` (by
    default config.block_size): warnings, about longer texts and other machines.

    UserError, one sentence, for what is wrong: a scheme must be causal, give each text its own
    numbers, the same ones by every way of computing, finite ones, and train all its parameters.
    """
    unbuilt = f"{Path(pos_file or config.pos).name}: no model can be built with it: "
    with torch.random.fork_rng(devices=[]), told(pos_file, lambda e: unbuilt + reason_of(e)):
        torch.manual_seed(SEED)
        exam = Exam(config, pos_file, length or config.block_size, folder)
        for piece in exam.pieces:
            check_names(piece)
        scheme, longer, again = exam.model.pos, 4 * exam.length, partial(exam.logits, exam.tokens)
        moves = [(p, MOVE * torch.randn_like(p) * (1 + p.abs())) for p in scheme.parameters()]
        for p, move in moves:
            p.data.add_(move)
        exam.tried(False)
        before = again()
        exam.tried(True)
        draws = [exam.model.draw_ids(0, 0, exam.length) for _ in range(2)]
        exam.demand(draws[0] is None or torch.equal(*draws), "must draw by its generator alone")
        exam.paths()
        exam.gradients(exam.tokens)
        exam.demand(not differ(before, again(), SAME).any(), AGAIN)
        for p, move in moves:  # to the other side of their start
            p.data.sub_(2 * move)
        said = exam.reaches(exam.length, True)
        require(not said, said)
        exam.trained()
        ends = [n for n in (scheme.limit, scheme.id_limit) if n]  # of the scheme, or of a table
        said = exam.reaches(longer, False) if min(ends, default=longer) >= longer else ""
        return [*filter(None, (said and f"{said}, beyond the training length", exam.elsewhere()))]
