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
from contextlib import ExitStack, contextmanager, nullcontext
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
from posenc import Piece, overrides
from positions.catalogue import read
from runs.device import is_out_of_memory

METHODS = [name for name, f in vars(Piece).items() if callable(f) and name[0] != "_"]
TILES = ("bias", "mask", "score")  # these give numbers for pairs of query and key
ROWS = (*TILES, "embed", "turn", "features")  # tokens are the last axis but one of what these give
WIDE, WHOLE = (torch.float32, torch.float64), (torch.int64, torch.int32)
DTYPES = {"mask": (torch.bool,), "ids": WHOLE, "draw": WHOLE, "bias": WIDE + WHOLE}  # else WIDE
SHORT, BYTES = 64, 256  # tokens of most texts; tokens of the small model's vocabulary
LONG, SOME = 2**19, 2**17  # tokens x width: tried as it is up to here; all tokens up to here
# how far parameters are moved from their start, where a zero may hide one; how far numbers may
# differ that were computed in one way, and in two
MOVE, SAME, NEAR = 0.02, 1e-6, 1e-4
Run = Callable[[], Tensor]  # a pass that gives logits (B, T, V)
SEED = 0x10A65407  # one that no scheme sets

AGAIN = "must give the same each time: it is random, or keeps something from an earlier call"


# ---- sentences


def file_of(piece: Piece) -> Path:
    """The file that defines a piece."""
    return Path(sys.modules[type(piece).__module__].__file__)


def failure(piece: Piece, method: str, sentence: str) -> UserError:
    """What is wrong with a method of a piece."""
    return UserError(f"{file_of(piece).name}: {type(piece).__name__}.{method} {sentence}")


def reason_of(error: BaseException) -> str:
    """Type and message of an error in one line, of a compiler's error what it explains; advice."""
    explained = re.search(r"Explanation: (.+)", str(error))
    lines = [explained[1]] if explained else [*filter(None, str(error).split("\n")), "no message"]
    compiled = explained or "torch._dynamo" in type(error).__module__
    advice = "--compile=False runs it as it is; " * bool(compiled)
    advice += "what ends says so: `limit`; " * isinstance(error, IndexError | AssertionError)
    return f"{type(error).__name__}: {lines[0]:.200}; {advice}--debug shows more"


def placed(error: BaseException, pos_file: str | Path | None) -> str:
    """A sentence with the method and the line of a user's file that an error came from; empty for
    an error that came from another file.
    """
    frames = traceback.walk_tb(error.__traceback__)
    places = [(f.f_code.co_filename, line, f.f_code.co_qualname) for f, line in frames]
    if "torch._dynamo" in type(error).__module__:  # the compiler's words name the place
        words = "".join(traceback.format_exception(error))
        places = re.findall(r'File "([^"\n]+)", line (\d+), in (\S+)', words)
    for path, line, name in reversed(places):
        if Path(path).resolve() == Path(pos_file).resolve():
            method = f"{Path(path).name}: {name.partition('.<locals>')[0]}"
            return f"{method} failed in line {line} with {reason_of(error)}"
    return ""


@contextmanager
def told(pos_file: str | Path | None, otherwise: str = "") -> Iterator[None]:
    """Turn an error of any kind out of a user's file, compiled or not, into one sentence
    (UserError) with file, method and line; an error from elsewhere too, if told what to say of it.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        other = f"{Path(pos_file or '').name}: {otherwise}: {reason_of(error)}" if otherwise else ""
        sentence = pos_file and (placed(error, pos_file) or other)
        if isinstance(error, UserError | OSError) or is_out_of_memory(error) or not sentence:
            raise
        raise UserError(sentence) from error


# ---- names


def check_names(piece: Piece) -> None:
    """UserError for a name in a user's file that is close to one of Piece and that nobody reads."""
    text = file_of(piece).read_text(encoding="utf-8")
    used = re.findall(r"\b(?:self|cls|[A-Z]\w*)\.(\w+)\b(\s*(?::[^=\n]+)?=[^=])?", text)
    stored, read = ({name for name, put in used if bool(put) == way} for way in (True, False))
    classes = [c for c in type(piece).__mro__ if c.__module__ == type(piece).__module__]
    helpers = set(re.findall(r"\b[a-z]\w*\.(\w+)\b(?!.*=)", text))  # read what is stored, too
    own = (stored.intersection(vars(piece)) - helpers).union(*map(vars, classes))
    acts = any(overrides(piece, method) for method in METHODS)
    for name in sorted(own - read - ({*dir(Piece), *vars(Piece())} - {"forward"})):
        near = [n for n in METHODS if n in name.split("_")]
        near += difflib.get_close_matches(name, [*vars(Piece)], 1, 0.8)
        hint = f"did you mean {near[0]}?" if near else f"that is {', '.join(METHODS)}"
        if name[0] != "_" and (near or (callable(getattr(piece, name)) and not acts)):
            raise failure(piece, name, f"is not what Piece has: {hint}")


def unfilled(*size: Any, empty: Callable[..., Tensor] = torch.empty, **options: Any) -> Tensor:
    """torch.empty, with NaN in it."""
    made = empty(*size, **options)
    return made.fill_(torch.nan) if made.is_floating_point() else made


# ---- what is watched


class Call(NamedTuple):
    """A call of a method of a piece, or of a function that it gave.

    `result` has the texts of the batch first: (B, T), (B, T, C), (B, H, T) or (B, H, R, C).
    """

    piece: Piece
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


def tensors(given: Sequence[Any]) -> list[Tensor]:
    """The tensors among the arguments of a method, and in its Text or Tile."""
    parts = [[x] if isinstance(x, Tensor) else getattr(x, "__dict__", {}).values() for x in given]
    return [x for part in parts for x in part if isinstance(x, Tensor)]


# ---- the examination


def differ(a: Tensor, b: Tensor, tolerance: float) -> Tensor:
    """Where two tensors of one shape differ; NaN equals NaN."""
    return ~torch.isclose(a.double(), b.double(), tolerance, tolerance, equal_nan=True)


def has_gradient(p: Tensor) -> bool:
    """Whether a parameter has a gradient, or wants none."""
    return not p.requires_grad or (p.grad is not None and bool(p.grad.any()))


class Exam:
    """A small model with a scheme, and what is tried on it."""

    def __init__(self, config: GPTConfig, pos_file: Path | None, length: int, folder: Any) -> None:
        layers, self.length, self.pos_file = range(config.n_layer), length, pos_file
        first = [next(filter(m.acts_in, layers), 0) for m in read(config.pos).mentions]
        few = min(config.n_layer, max(1, *first) + 1)
        size, self.vocab_size = max(2, min(config.vocab_size, BYTES)), max(2, config.vocab_size)
        small = replace(config, n_layer=few, vocab_size=size, dropout=0.0, extend="")
        with patch("torch.empty", unfilled):
            self.model = GPT(small, pos_file)
            self.model.extend(config.extend, folder)
        self.model.wte.register_forward_pre_hook(lambda _, given: (given[0] % size,))
        for block in self.model.h:
            block.mlp = nn.Identity()
            for layer in (block.attn.c_attn, block.attn.c_proj):
                nn.init.normal_(layer.weight, std=config.n_embd**-0.5)  # scores near 1
        self.pieces = [*self.model.pos.pieces.values(), *self.model.pos.extensions]
        self.methods = [(p, name) for p in self.pieces for name in METHODS if overrides(p, name)]
        own = [p for p in self.pieces if pos_file and file_of(p).samefile(pos_file)]
        self.own, self.last, scheme = own or self.pieces, None, self.model.pos
        self.known = [p for p in self.model.parameters() if p.requires_grad]
        self.noise = [(p, MOVE * torch.randn_like(p) * (1 + p.abs())) for p in scheme.parameters()]
        self.tokens = self.texts(min(SHORT, length))

    def texts(self, length: int) -> Tensor:
        """Texts (B, length): two, or more of short ones."""
        return torch.randint(self.vocab_size, (max(2, min(64, 256 // length)), length))

    # -- passes

    def logits(self, tokens: Tensor, **how: Any) -> Tensor:
        """The logits of `computed`; UserError, which names a method, for an error of any kind."""
        try:
            return self.computed(tokens, **how)
        except (Exception, SystemExit) as error:
            if isinstance(error, UserError) or is_out_of_memory(error):
                raise
            if not self.last:  # once more, to know which method
                self.calls_of(partial(self.logits, tokens, **how))
            found = self.pos_file and placed(error, self.pos_file)
            found = found or str(self.fail(self.last, f"leads to {reason_of(error)}"))
            raise UserError(found) from error

    def computed(self, tokens: Tensor, train: bool = False, **how: Any) -> Tensor:
        """Logits (B, T, V) in one pass, as in training or in a test, in `tiles` of attention; or
        through a cache, in parts that end at `cuts`, or of tokens at `places` of a longer text.
        """
        model, places, cuts = self.model.train(train), how.get("places"), how.get("cuts", ())
        self.count, length = tokens.shape
        ids = model.draw_ids(0, 0, length) if train and places is None else None
        total, parts = length if places is None else int(places[-1]) + 1, []
        cache = model.new_cache(len(tokens), total) if cuts or places is not None else None
        if places is not None:  # room for a long text is not needed
            cache.append = lambda _, *new: new
        if train:
            torch.manual_seed(SEED)
        with torch.set_grad_enabled(train), patch.dict(vars(attention), how.get("tiles", {})):
            for a, b in zip((0, *cuts), (*cuts, length), strict=True):
                new, after = tokens[:, a:b], tokens[:, a:b].roll(-1, 1) % model.config.vocab_size
                parts.append(model(new, after, positions=places, ids=ids, cache=cache)[0])
        reseeds = "sets the seed of all random numbers, or __init__ does: use a torch.Generator"
        require(torch.initial_seed() == SEED, str(self.fail(None, reseeds)))
        return torch.cat(parts, 1)

    def drawn(self) -> Tensor:
        """The positions (1, L, 1) of a training step; empty where they are not random."""
        ids = self.model.draw_ids(0, 0, self.length)
        return torch.empty(1, 0, 1) if ids is None else ids[None, :, None]

    # -- what is watched

    def calls_of(self, run: Callable) -> list[Call]:
        """The calls in a pass. Then the pieces are as they were: some may look who calls them."""
        self.calls: list[Call] = []
        with ExitStack() as stack:
            for piece, name in self.methods:
                seen = partial(self.run, piece, name, True, getattr(piece, name))
                stack.enter_context(patch.object(piece, name, seen))
            run()
        self.last = None
        return self.calls

    def run(self, piece: Piece, name: str, outer: bool, f: Callable, *given: Any) -> Any:
        """f(*given), kept; functions that a method gives are watched too. UserError if it changes
        what it is given, or random numbers that all share.
        """
        before, random = [x._version for x in tensors(given)], torch.get_rng_state()
        self.last = piece, name
        result = f(*given)
        self.last = piece, name  # others were called in between
        if before != [x._version for x in tensors(given)]:
            raise failure(piece, name, "changes a tensor that it was given: let it work on a copy")
        still = name == "draw" or not piece.training
        if still and not torch.equal(random, torch.get_rng_state()):
            raise failure(piece, name, "takes random numbers that all share: only training may")
        if outer and name == "turn":
            return tuple(partial(self.run, piece, name, False, g) for g in result)
        if outer and name in ("bias", "mask"):
            return partial(self.run, piece, name, False, result)
        if name in (*ROWS, "ids", "draw", "temperature"):
            self.keep(piece, name, given, result)
        return result

    def keep(self, piece: Piece, name: str, given: Sequence[Any], result: Tensor) -> None:
        """Check shape, dtype and order of a result, and keep it."""
        shape, shown = self.shape(name, given, result), tuple(result.shape)
        pairs = zip(shown[::-1], shape[::-1], strict=False)
        if len(shown) > len(shape) or any(a not in (1, b) for a, b in pairs):
            raise failure(piece, name, f"must give the shape {shape}, not {shown}")
        real = piece.continuous or (name == "ids" and given[0].is_floating_point())
        dtypes = (given[0].dtype,) if name == "turn" else DTYPES.get(name, WIDE)
        dtypes += WIDE * real + (torch.bfloat16,) * torch.is_autocast_enabled("cpu")
        if result.dtype not in dtypes:
            raise failure(piece, name, f"must give {dtypes}, not {result.dtype}")
        if name in ("ids", "draw") and not result.is_meta:
            below = not result.is_floating_point() and (result < 0).any()
            if below or (result.diff(dim=-1) < 0).any():
                raise failure(piece, name, "gives positions that decrease or are negative")
        self.calls.append(Call(piece, name, result.expand(shape)))

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

    def fail(self, call: Sequence[Any] | None, sentence: str) -> UserError:
        """What is wrong with the method of a call, or with the methods of a scheme together."""
        if call:
            return failure(*call[:2], sentence)
        own = [f"{type(p).__name__}.{name}" for p, name in self.methods if p in self.own]
        return UserError(
            f"{file_of(self.own[0]).name}: {' or '.join(dict.fromkeys(own))} {sentence}"
        )

    def same(self, rule: str, a: Run, b: Run, where: Any = True, near: float = SAME) -> None:
        """UserError if the logits of two passes differ `where` (B, T) they must not."""
        wrong = differ(a(), b(), near).any(-1) & where
        for row, place in wrong.nonzero()[:1].tolist():
            stop, rule = int((where | wrong)[row].sum()), f"{rule} (the logits at place {place} do)"
            pairs = zip(self.calls_of(a), self.calls_of(b), strict=False)
            for one, other in pairs if near == SAME else ():
                if differ(one.until(row, stop), other.until(row, stop), SAME / 10).any():
                    raise self.fail(other, rule)
            raise self.fail(None, rule)

    def not_finite(self, run: Callable, how: str) -> str:
        """What is wrong if numbers of a pass are not finite, or a query sees no key."""
        logits, rule = [], f"must give finite numbers {how}, from tensors that are filled, and"
        for call in self.calls_of(lambda: logits.append(run())):
            worst = call.worst()
            for place in (~worst.isfinite()).nonzero()[:1].tolist():
                came = f"gives {worst[tuple(place)].item()}"
                came += f" for query {place[-1]}" * (call.method in TILES)
                return str(self.fail(call, f"{rule} {came}"))
        return "" if logits[0].isfinite().all() else str(self.fail(None, f"{rule} gives others"))

    # -- what is tried

    def causal(self, run: Callable[[Tensor], Tensor], tokens: Tensor) -> None:
        """Other tokens after some place change nothing up to it."""
        count, length = tokens.shape
        ends = torch.linspace(length // 3, max(0, length - 2), count).long()
        where = torch.arange(length) <= ends[:, None]
        other = torch.where(where, tokens, torch.randint_like(tokens, self.vocab_size))
        rule = "must not depend on later tokens, and changes with them"
        self.same(rule, partial(run, tokens), partial(run, other), where)

    def tried(self, train: bool) -> None:
        """One pass, in a test or in training: finite, the same again, its own, causal."""
        run, tokens, size = partial(self.logits, train=train), self.tokens, self.vocab_size
        whole = partial(run, tokens)
        said = self.not_finite(whole, "in training" if train else "in a test")
        require(not said, said)
        if not train:
            self.same(AGAIN, whole, whole)
            kept = torch.arange(len(tokens))[:, None] % 3 == 2
            others = torch.where(kept, tokens, torch.randint_like(tokens, size))
            rule = "must give each text its own numbers, and changes with other texts of the batch"
            self.same(rule, whole, partial(run, others), kept)
        some = torch.arange(size) if size <= BYTES else torch.randperm(size)[:BYTES]
        each = (some[train::2, None] + torch.tensor([3, 0, 1])) % size  # all as the last that stays
        long = SHORT < self.length <= LONG // self.model.config.n_embd
        for texts in (tokens, each, *[self.texts(self.length)] * long):
            self.causal(run, texts)

    def paths(self) -> None:
        """All ways of computing give the same: one pass, blocks, a cache."""
        tokens, length = self.tokens[:2], self.tokens.shape[1]
        cuts = {1, 2, 5, 6, length // 2, length - 2, length - 1}.intersection(range(1, length))
        whole = partial(self.logits, tokens)
        rule = "must give a query and a key the same in every tile, within its span, and differs"
        self.same(rule, whole, partial(whole, tiles={"BLOCK_ROWS": 7, "DENSE_BYTES": 0}), near=NEAR)
        rule = "must give the same in one pass and token by token with a cache, and differs"
        self.same(rule, whole, partial(whole, cuts=sorted(cuts)), near=NEAR)

    def strays(self) -> None:
        """Only parameters of the model get gradients."""
        for p in self.known:
            p.requires_grad_(False)
        calls = self.calls_of(partial(self.logits, self.tokens, train=True))
        for p in self.known:
            p.requires_grad_(True)
        for call in calls:
            rule = "uses a tensor that never trains: make it an nn.Parameter, once"
            require(not call.result.requires_grad, str(self.fail(call, rule)))

    def gradients(self, tokens: Tensor, **how: Any) -> None:
        """Gradients are finite; they are kept."""
        logits = self.logits(tokens, train=True, **how)
        (-logits.log_softmax(-1)[..., 0].mean()).backward()
        finite = all(p.grad.isfinite().all() for p in self.known if p.grad is not None)
        require(finite, str(self.fail(None, "must have a finite gradient (sqrt or log at 0?)")))

    def trained(self) -> None:
        """Every parameter of the scheme got a gradient; some may wait for one token of all."""
        length, size = self.tokens.shape[1], self.vocab_size
        every = (torch.arange(-(-size // length) * length) % size).view(-1, length).split(32)
        for tokens in (every[-1], *every) if any(n == "embed" for _, n in self.methods) else ():
            if not all(map(has_gradient, self.model.pos.parameters())):
                self.gradients(tokens)
        for piece in self.pieces:
            for name, p in piece.named_parameters():
                lost = "gets no gradient: it is not used, or cut off by .data, .detach() or .item()"
                require(has_gradient(p), str(failure(piece, name, lost)))

    def reaches(self, length: int, train: bool) -> str:
        """Try texts of `length` tokens in all: every one, or some from all over it."""
        places = torch.arange(length)
        if length > max(SHORT, SOME // self.model.config.n_embd):
            places = torch.cat((places[:16], places[16 : -16 : length // 16], places[-16:]))
        run = partial(self.logits, train=train, places=places)
        tokens = self.texts(len(places))
        beyond = ", beyond the training length" * (length > self.length)
        said = self.not_finite(partial(run, tokens), f"in a text of {length} tokens{beyond}")
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
        hidden = patch("torch.autocast", lambda *_, **options: nullcontext())  # meta lacks it
        try:
            with hidden, compiled:
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
    with torch.random.fork_rng(devices=[]), told(pos_file, "no model can be built with it"):
        torch.manual_seed(SEED)
        exam = Exam(config, pos_file, length or config.block_size, folder)
        exam.model.check_length(exam.length)
        for piece in exam.own:
            check_names(piece)
        scheme, longer, again = exam.model.pos, 4 * exam.length, partial(exam.logits, exam.tokens)
        for p, noise in exam.noise:
            p.data.add_(noise)
        exam.tried(False)
        before = again()
        exam.tried(True)
        exam.same("must draw by its generator alone, and two draws differ", exam.drawn, exam.drawn)
        exam.paths()
        exam.strays()
        exam.gradients(exam.tokens)
        exam.same(AGAIN, lambda: before, again)
        for p, noise in exam.noise:  # to the other side of their start
            p.data.sub_(2 * noise)
        said = exam.reaches(exam.length, True)
        require(not said, said)
        exam.trained()
        longer = min(longer, scheme.limit or longer)
        if scheme.id_limit and scheme.ids(torch.arange(longer), longer).max() >= scheme.id_limit:
            longer = exam.length  # a table of another piece ends there
        said = exam.reaches(longer, False) if longer > exam.length else ""
        return [*filter(None, (said, exam.elsewhere()))]
