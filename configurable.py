"""Settings: defaults < config files < --key=value.

The dataclasses below are the one source for --help, for what is refused and for the README's table. A config file is
`name = value` lines in Python syntax; it is parsed and never executed. This module imports no torch: --help is quick.
"""

import ast
import difflib
import io
import operator
import os
import re
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from types import NoneType
from typing import Any, NoReturn, get_args, get_origin

KINDS = {
    "result": "What changes the result",
    "test": "What changes the test",
    "manner": "Only the manner",
}
PROTOCOLS = ("fixed_targets", "windowed", "nonoverlapping")
LARGEST = 2**53  # up to here a float holds every integer, and no setting needs more
ARITHMETIC = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


class UserError(ValueError):
    """A mistake that a user can mend; its text is one sentence: what was wrong, where, and what to do."""


def setting(
    default: Any,
    help: str,
    *,
    unit: str = "",
    kind: str = "result",
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    below: float | None = None,
    choices: tuple[str, ...] | None = None,
) -> Any:
    """A dataclass field with its help; low <= value <= high, above < value < below, in a tuple for each item."""
    rules = [
        ("at least", operator.ge, low),
        ("above", operator.gt, above),
        ("at most", operator.le, high),
        ("below", operator.lt, below),
        ("one of", lambda value, among: value in among, choices),
    ]
    rules = [rule for rule in rules if rule[2] is not None]
    return field(
        default=default, metadata={"help": help, "unit": unit, "kind": kind, "rules": rules}
    )


@dataclass(frozen=True)
class GPTConfig:
    """The shape of one model. `block_size` is the length first trained at, in tokens, and limits nothing; `pos` is the
    scheme, `extend` what is applied to it once it is trained."""

    block_size: int = 128
    vocab_size: int = 256
    n_layer: int = 4
    n_head: int = 4
    n_embd: int = 256
    dropout: float = 0.0
    bias: bool = False
    pos: str = "rope"
    extend: str = ""

    def __post_init__(self) -> None:
        """Refuse a shape that no model can have (UserError)."""
        for name in ("block_size", "vocab_size", "n_layer", "n_head", "n_embd"):
            _require(
                getattr(self, name) >= 1, f"{name} must be at least 1, not {getattr(self, name)}"
            )
        _require(
            self.n_embd % self.n_head == 0,
            f"n_embd = {self.n_embd} cannot be divided by n_head = {self.n_head}; change one of them",
        )


@dataclass
class Settings:
    """What every command can be told."""

    device: str = setting("auto", "where to compute: auto, cpu, cuda, cuda:1, mps", kind="manner")
    dtype: str = setting(
        "auto",
        "number format of matrix products",
        kind="manner",
        choices=("auto", "bfloat16", "float16", "float32"),
    )

    def check(self) -> None:
        """Refuse (UserError) a value of the wrong type or out of its range; lists become tuples, 1 becomes 1.0."""
        for f in fields(self):
            setattr(self, f.name, _checked(f, getattr(self, f.name)))


@dataclass
class TrainSettings(Settings):
    """One training run and the test that follows it."""

    pos: str = setting("rope", "position scheme, as in 'rope(base=500000)' or 'rope + alibi'")
    pos_file: str = setting("", "a Python file of your own with more position schemes")
    extend: str = setting(
        "", "context extension to train with, as in 'yarn(factor=4)'; for fine-tuning (init_from)"
    )
    mixed_lengths: tuple[int, ...] = setting(
        (),
        "lengths to train at in turn, with as many tokens a step as at block_size",
        unit="tokens",
        low=2,
    )
    staged: bool = setting(
        False, "mixed_lengths one after the other, in equal parts, instead of in turn"
    )
    drop_pos: float = setting(
        0.0,
        "share of the steps, the last ones, without the position scheme (DroPE)",
        low=0,
        below=1,
    )
    dataset: str = setting("stdlib", "corpus, the name of a folder in data/")
    init_from: str = setting("auto", "auto (resume or begin), scratch, gpt2... or a run folder")
    block_size: int = setting(128, "training length", unit="tokens", low=2, high=2**24)
    batch_size: int = setting(16, "size of a micro-batch", unit="sequences", low=1, high=2**24)
    gradient_accumulation_steps: int = setting(1, "micro-batches per step", low=1, high=2**24)
    n_layer: int = setting(4, "number of layers", low=1, high=2**24)
    n_head: int = setting(4, "attention heads per layer, a divisor of n_embd", low=1, high=2**24)
    n_embd: int = setting(256, "width of the model", unit="features", low=1, high=2**24)
    dropout: float = setting(0.0, "probability of dropping an activation", low=0, below=1)
    bias: bool = setting(False, "biases in linear layers and norms")
    learning_rate: float = setting(3e-3, "highest learning rate", above=0)
    max_iters: int = setting(1200, "length of the training", unit="steps", low=1)
    weight_decay: float = setting(0.1, "weight decay of matrices", low=0)
    beta1: float = setting(0.9, "AdamW's decay rate of the mean", low=0, below=1)
    beta2: float = setting(0.99, "AdamW's decay rate of the variance", low=0, below=1)
    grad_clip: float = setting(1.0, "largest norm of the gradient, 0 for any", low=0)
    decay_lr: bool = setting(True, "warm up, then lower the learning rate along a cosine")
    warmup_iters: int = setting(
        100, "length of the warm-up, at most max_iters", unit="steps", low=0
    )
    lr_decay_iters: int | None = setting(
        None, "when min_lr is reached, none for max_iters", unit="steps", low=1
    )
    min_lr: float | None = setting(None, "lowest learning rate, none for learning_rate / 20", low=0)
    seed: int = setting(1337, "seed of weights, data order and draws", low=0, high=2**32 - 1)
    eval_lengths: tuple[int, ...] = setting(
        (), "lengths to test, else L/2 ... 32L", unit="tokens", kind="test", low=2
    )
    out_dir: str = setting("", "run folder, by default named after the settings", kind="manner")
    overwrite: bool = setting(False, "start afresh in a used run folder", kind="manner")
    eval_interval: int = setting(
        200, "interval between validations", unit="steps", kind="manner", low=1
    )
    eval_iters: int = setting(16, "size of a validation", unit="batches", kind="manner", low=1)
    log_interval: int = setting(
        20, "interval between lines of the log", unit="steps", kind="manner", low=1
    )
    compile: bool = setting(True, "torch.compile, where there is a compiler", kind="manner")
    deterministic: bool = setting(
        False, "repeat to the bit on a GPU too, where torch can; a CPU always does", kind="manner"
    )
    backend: str = setting(
        "auto",
        "how processes of one run talk, auto for nccl on GPUs, else gloo",
        kind="manner",
        choices=("auto", "nccl", "gloo"),
    )
    wandb_log: bool = setting(False, "log to Weights & Biases too", kind="manner")
    wandb_project: str = setting("longshot", "project in Weights & Biases", kind="manner")
    wandb_run_name: str = setting(
        "", "name in Weights & Biases, by default the run folder's", kind="manner"
    )

    def gpt(self, vocab_size: int) -> GPTConfig:
        """The model's shape, for a vocabulary of `vocab_size` tokens; UserError where no model has that shape."""
        names = [f.name for f in fields(GPTConfig) if f.name != "vocab_size"]
        return GPTConfig(vocab_size=vocab_size, **{name: getattr(self, name) for name in names})

    def check(self) -> None:
        """Also refuse settings that do not go together."""
        super().check()
        self.gpt(vocab_size=1)  # the shape checks itself; the vocabulary is the corpus's
        _require(
            self.eval_lengths == tuple(sorted(self.eval_lengths)),
            f"eval_lengths {self.eval_lengths} must ascend",
        )
        for length in self.mixed_lengths:
            _require(
                self.batch_size * self.block_size % length == 0,
                f"mixed_lengths: the batch_size x block_size = "
                f"{self.batch_size * self.block_size} tokens of a batch are no whole number of sequences of {length}",
            )
        _require(self.init_from, "init_from is empty; name a run folder, or leave it out")
        _require(
            self.mixed_lengths or not self.staged,
            "staged=True needs mixed_lengths, the lengths of its stages",
        )
        for name, limit in (
            ("warmup_iters", "max_iters"),
            ("warmup_iters", "lr_decay_iters"),
            ("min_lr", "learning_rate"),
        ):
            low, high = getattr(self, name), getattr(self, limit)
            ordered = low is None or high is None or low <= high
            _require(
                ordered, f"{name} = {low} is above {limit} = {high}; lower {name} or raise {limit}"
            )


@dataclass
class EvaluateSettings(Settings):
    """A test of finished runs; the run folders are positional."""

    dataset: str = setting("", "corpus to test on, by default the run's own", kind="test")
    eval_lengths: tuple[int, ...] = setting(
        (), "lengths to test, else L/2 ... 32L", unit="tokens", kind="test", low=2
    )
    protocols: tuple[str, ...] = setting(
        PROTOCOLS, "what to measure", kind="test", choices=PROTOCOLS
    )
    stride: int = setting(
        0, "measure `sliding` too, moved by this, 0 for not", unit="tokens", kind="test", low=0
    )
    extend: str = setting(
        "",
        "context extension to test with, as in 'yarn(factor=4)', none for none, else as trained",
        kind="test",
    )
    pos_file: str = setting(
        "", "your file of position schemes, named again to let it run", kind="test"
    )
    draw_only: bool = setting(
        False, "measure nothing, draw what is measured already", kind="manner"
    )
    out: str = setting("", "where the figure of several runs goes", kind="manner")

    def check(self) -> None:
        """Also refuse settings that do not go together."""
        super().check()
        _require(
            self.eval_lengths == tuple(sorted(self.eval_lengths)),
            f"eval_lengths {self.eval_lengths} must ascend",
        )
        _require(
            self.protocols or self.stride,
            "protocols is empty and stride 0: nothing to measure; set one of them",
        )


@dataclass
class SampleSettings(Settings):
    """Text from a run; the run folder is positional."""

    start: str = setting("\n", "text to go on from, FILE:path reads a file, - reads standard input")
    num_samples: int = setting(1, "number of samples", low=1)
    max_new_tokens: int = setting(500, "length of a sample", unit="tokens", low=1)
    temperature: float = setting(0.8, "divides the logits, 0 for always the likeliest token", low=0)
    top_k: int | None = setting(None, "draw from the k likeliest tokens only", low=1)
    top_p: float | None = setting(
        None, "draw from the likeliest tokens of this total probability", above=0, high=1
    )
    stop: str = setting("", "text that ends a sample")
    seed: int = setting(1337, "seed of the draws", low=0, high=2**32 - 1)
    extend: str = setting(
        "", "context extension, as in 'yarn(factor=4)', none for none, else as trained"
    )
    pos_file: str = setting("", "your file of position schemes, named again to let it run")


@dataclass
class ExtendSettings(Settings):
    """One trained model x extensions x lengths; run folders (of several seeds) and `extend` expressions are positional."""

    dataset: str = setting("", "corpus to test on, by default the run's own", kind="test")
    eval_lengths: tuple[int, ...] = setting(
        (), "lengths to test, else L/2 ... 32L", unit="tokens", kind="test", low=2
    )
    beside: tuple[str, ...] = setting(
        (), "folders of other runs, shown beside as they are", kind="test"
    )
    search: int = setting(
        0,
        "search longrope's factors for texts this many times as long, 0 for not",
        kind="test",
        low=0,
    )
    rounds: int = setting(40, "length of the search", unit="rounds", kind="test", low=1)
    fit: str = setting(
        "",
        "an extension to fit a temperature for each head to, none for none, for texts of the longest of "
        "eval_lengths, else 4 L",
        kind="test",
    )
    seed: int = setting(1337, "seed of the search", kind="test", low=0, high=2**32 - 1)
    pos_file: str = setting(
        "", "your file of position schemes, named again to let it run", kind="test"
    )
    out: str = setting(
        "",
        "where table (.txt) and figure (.png) go, by default extend in the first run folder",
        kind="manner",
    )

    def check(self) -> None:
        """Also refuse a search that has nothing to find."""
        super().check()
        _require(
            self.search != 1,
            "search=1 is a text as long as the training length, where nothing is changed; give 2 or more",
        )


@dataclass
class AblateSettings(TrainSettings):
    """Position schemes (positional) x seeds, each trained with the same settings."""

    seeds: tuple[int, ...] = setting(
        (1, 2, 3), "seeds to train every scheme with", low=0, high=2**32 - 1
    )
    only: str = setting("", "I/N: only the I-th of N shares of the work", kind="manner")
    ablate_dir: str = setting(
        "", "where table and figure go, by default named after the settings", kind="manner"
    )

    def check(self) -> None:
        """Also refuse what a comparison sets by itself."""
        super().check()
        for name, instead in (
            ("pos", "name the schemes"),
            ("seed", "use --seeds"),
            ("out_dir", "use --ablate_dir"),
        ):
            _require(
                getattr(self, name) == getattr(AblateSettings, name),
                f"ablate sets {name} itself; {instead}",
            )
        _require(self.seeds, "seeds is empty; give some, as in --seeds=1,2,3")
        share = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", self.only or "1/1")
        _require(
            share and 1 <= int(share[1]) <= int(share[2]),
            f"only must be I/N with 1 <= I <= N, as in --only=1/4, not {self.only!r:.60}",
        )


def configure(cls: type[Settings], argv: list[str], usage: str) -> tuple[Any, list[str]]:
    """Checked settings and the positional words of a command line (without the program's name).

    Words that end in .py are config files, read left to right; --debug is left to `run`; --help prints `usage` and
    every setting, and exits 0. UserError names the file and line, or the command line, of a mistake.
    """
    if {"--help", "-h"} & set(argv):
        print(_help(cls, usage))
        raise SystemExit(0)
    with _place("command line"):
        typed, files, words = _read_command_line(cls, [word for word in argv if word != "--debug"])
    values: dict[str, Any] = {}
    for path in files:
        values |= _read_file(cls, path)
    settings = cls(**(values | typed))
    settings.check()
    return settings, words


def differences(a: dict[str, Any], b: dict[str, Any], kind: str = "result") -> list[str]:
    """Where two runs' settings of one kind differ: "n_embd: 256 here, 128 there". What is absent has its default."""
    sentences = []
    for f in _of_kind(TrainSettings, kind):
        here, there = (
            tuple(v) if isinstance(v := run.get(f.name, f.default), list) else v for run in (a, b)
        )
        sentences += [f"{f.name}: {here!r:.60} here, {there!r:.60} there"] if here != there else []
    return sentences


def run(main: Callable[[], int | None], *errors: type[Exception]) -> NoReturn:
    """Exit with what `main()` returns; a UserError, or one of `errors`, prints its sentence to stderr and exits 1.

    So does what the system refuses (a full disk, a folder that is not ours). Of several processes each says its number.
    Ctrl-C exits 130.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character shows "?"
    try:
        code = main()
    except KeyboardInterrupt:
        code = 130
    except (UserError, OSError, *errors) as error:
        if "--debug" in sys.argv:
            traceback.print_exc()
        said = (
            f"{error.filename or 'the system'}: {error.strerror}"
            if isinstance(error, OSError) and error.strerror
            else error
        )
        rank = os.environ.get("RANK", "0")
        print(
            f"error: {said}" if rank == "0" else f"process {rank}: error: {said}", file=sys.stderr
        )
        code = 1
    sys.exit(code)


def settings_table(cls: type[Settings]) -> str:
    """A Markdown table of all settings of a command, for the README."""
    rows = [("name", "default", "unit", "what", "kind"), ("---",) * 5]
    for f in (f for kind in KINDS for f in _of_kind(cls, kind)):
        default = f"`{_typed(f.default)}`" if _typed(f.default) else ""
        what = f"{f.metadata['help']} ({_expected(f)})".replace("|", "\\|")
        rows.append((f"`{f.name}`", default, f.metadata["unit"], what, f.metadata["kind"]))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _help(cls: type[Settings], usage: str) -> str:
    lines = [f"usage: {usage.strip()}"]
    for kind, title in KINDS.items():
        lines += ["", f"{title}:"] if _of_kind(cls, kind) else []
        for f in _of_kind(cls, kind):
            unit = f"{f.metadata['unit']}, " if f.metadata["unit"] else ""
            lines.append(
                f"  {f'--{f.name}={_typed(f.default)}':<33} {f.metadata['help']} ({unit}{_expected(f)})"
            )
    return "\n".join([*lines, "", "--debug shows where in the code an error arose."])


def _of_kind(cls: type[Settings], kind: str) -> list[Field]:
    return [f for f in fields(cls) if f.metadata["kind"] == kind]


def _anatomy(f: Field) -> tuple[type, bool, bool]:
    """(int, float, bool or str; may it be None; is it a tuple of them) of a field's annotation."""
    parts = get_args(f.type)
    return parts[0] if parts else f.type, NoneType in parts, get_origin(f.type) is tuple


def _expected(f: Field) -> str:
    """The type and range of a setting in words: "int or none, at least 1"."""
    base, optional, many = _anatomy(f)
    kind = f"{'list of distinct ' if many else ''}{base.__name__}{' or none' if optional else ''}"
    return ", ".join(
        [kind, *(f"{words} {_typed(limit)}" for words, _, limit in f.metadata["rules"])]
    )


def _typed(value: Any) -> str:
    """A value as it is typed on the command line."""
    if isinstance(value, tuple):
        return ",".join(map(_typed, value))
    return (
        "none"
        if value is None
        else value
        if isinstance(value, str) and value.isprintable()
        else repr(value)
    )


def _require(good: Any, sentence: str) -> None:
    if not good:
        raise UserError(sentence)


@contextmanager
def _place(place: str) -> Iterator[None]:
    """Make one sentence, begun with the place, of whatever reading raises."""
    try:
        yield
    except SyntaxError as error:
        raise UserError(
            f"{place}:{error.lineno or 1}: {error.msg}; a config file is `name = value` lines"
        ) from None
    except OSError as error:
        raise UserError(f"{place}: cannot be read ({error.strerror}); check the name") from None
    except UnicodeError:
        raise UserError(f"{place}: not UTF-8 text; save it as UTF-8") from None
    except (RecursionError, MemoryError):
        raise UserError(f"{place}: nested too deeply; write the value itself") from None
    except ArithmeticError:
        raise UserError(
            f"{place}: this arithmetic has no finite result; write the value itself"
        ) from None
    except ValueError as error:
        raise UserError(f"{place}: {error}") from None


def _find(cls: type[Settings], name: str) -> Field:
    known = {f.name: f for f in fields(cls)}
    near = difflib.get_close_matches(name[:80], known, n=1, cutoff=0.4)
    advice = f"did you mean {near[0]}?" if near else "--help lists all settings"
    _require(name in known, f"unknown setting {name!r:.60}; {advice}")
    return known[name]


def _checked(f: Field, value: Any) -> Any:
    """`value` in the field's own type; UserError where the type or the range is wrong."""
    base, optional, many = _anatomy(f)
    if value is None and optional:
        return None
    items = value if many else (value,)
    if isinstance(items, tuple | list) and all(_is_a(base, item) for item in items):
        items = tuple(base(item) for item in items)
        ruled = all(holds(item, limit) for item in items for _, holds, limit in f.metadata["rules"])
        if ruled and len(set(items)) == len(items):
            return items if many else items[0]
    raise UserError(f"{f.name} is {value!r:.60}, and must be {_expected(f)}")


def _is_a(base: type, value: Any) -> bool:
    """1e4 is a good int and 1 a good float; True, NaN and infinity are neither; NUL and half characters are no text."""
    if base in (int, float):
        return type(value) in (int, float) and abs(value) <= LARGEST and base(value) == value
    return type(value) is base and not re.search("[\0\ud800-\udfff]", str(value))


def _read_command_line(
    cls: type[Settings], argv: list[str]
) -> tuple[dict[str, Any], list[str], list[str]]:
    """The values typed, the config files, and the other words, in their order."""
    typed, files, words, rest = {}, [], [], deque(argv)
    while rest:
        word = rest.popleft()
        if not word.startswith("-"):
            _require(
                not re.search("[\ud800-\udfff]", word),
                f"{word!r:.60} is not UTF-8 text; rename what it names",
            )
            (files if word.endswith(".py") else words).append(word)
            continue
        _require(
            word.startswith("--"),
            f"{word!r:.60} is no setting; type --name=value, and --help lists the names",
        )
        name, equals, text = word[2:].partition("=")
        f = _find(cls, name)
        if not equals:
            text = rest.popleft() if rest else "--"
            known = (
                text.lower() in ("true", "false") if f.type is bool else not text.startswith("--")
            )
            _require(
                known,
                f"--{name} needs a value, as in --{name}={'True' if f.type is bool else 'VALUE'}",
            )
        typed[name] = _checked(f, _from_text(f, text))
    return typed, files, words


def _from_text(f: Field, text: str) -> Any:
    """What a text of the command line stands for, still unchecked: read as in a file where no text is expected."""
    base, _, many = _anatomy(f)
    if base is str or not text:
        return tuple(text.split(",") if text else ()) if many else text
    try:
        value = _literal(
            ast.parse(text.strip().capitalize(), mode="eval").body
        )  # true, none -> True, None
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return text
    return (value,) if many and not isinstance(value, tuple) else value


def _read_file(cls: type[Settings], path: str) -> dict[str, Any]:
    """The checked values of one config file; nothing in it is executed. UserError names file and line."""
    with _place(path):
        statements = ast.parse(Path(path).read_text(encoding="utf-8-sig"), filename=path).body
    values, lines = {}, {}
    for statement in statements:
        with _place(f"{path}:{statement.lineno}"):
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=node):
                    value = _checked(_find(cls, name), _literal(node))
                case _:
                    raise UserError(
                        f"only `name = value` lines may stand here, not {type(statement).__name__}"
                    )
            _require(
                name != "pos_file" or not value,
                "pos_file names code that is run: it must be typed, --pos_file=FILE.py",
            )
            _require(
                name not in lines,
                f"{name} is already set in line {lines.get(name)}; delete one of the two",
            )
            values[name], lines[name] = value, statement.lineno
    return values


def _literal(node: ast.expr) -> Any:
    """The number, text, bool, None or tuple that an expression spells; UserError for all else: nothing is executed."""
    match node:
        case ast.Constant(value=bool() | str() | None as value):
            return value
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return tuple(_literal(item) for item in items)
        case ast.Constant(value=int() | float() as value):
            pass
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = _literal(ast.BinOp(ast.Constant(0), ast.Sub(), operand))
        case ast.BinOp(op=op) if type(op) in ARITHMETIC:
            left, right = _literal(node.left), _literal(node.right)
            _require(
                {type(left), type(right)} <= {int, float}, "arithmetic is for real numbers only"
            )
            if (
                type(op) is ast.Pow
            ):  # tried in floats: they overflow where integers would fill the memory
                _require(
                    abs(float(left) ** right) <= LARGEST,
                    "a power must be at most 2**53; write a smaller one",
                )
            value = ARITHMETIC[type(op)](left, right)
        case ast.Name(id=name):
            raise UserError(f"{name!r:.60} is a name, not a value; put a text in quotes")
        case _:
            raise UserError(
                f"a value is a literal or arithmetic on numbers, not {type(node).__name__}; write it out"
            )
    _require(
        abs(value) <= LARGEST, "a number must be finite and at most 2**53; write a smaller one"
    )
    return value
