"""The settings of all commands: defaults, then config files, then --name=value. The later wins.

The dataclasses below are the only source for --help, for the checks and for the table in the docs.
A config file is `name = value` lines in Python syntax. It is parsed and never executed. This module
imports no torch, so that --help is fast.
"""

import ast
import difflib
import hashlib
import json
import os
import re
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import Field, dataclass, field, fields, replace
from operator import add, contains, floordiv, ge, gt, le, lt, mod, mul, sub, truediv
from pathlib import Path
from typing import Any, NoReturn, Self, get_args, get_origin

# The kinds of settings, with their headings in --help.
KINDS = dict(result="What changes the result", test="What is tested", execution="How it runs")
PROTOCOLS = ("fixed_targets", "windowed", "nonoverlapping")
SCHEDULES = ("cosine", "wsd", "constant")
WINDOWS = tuple(2**k for k in range(6, 17))  # how many windows a test may have
DTYPES = ("auto", "bfloat16", "float16", "float32")
BACKENDS = ("auto", "nccl", "gloo")
PATHS = ("auto", "matmul", "fused", "dense", "blocked", "flex", "scored")  # see attention.py
MEASURED = ("train", "test", "decode")
NORMS = ("layernorm", "rmsnorm")
MLPS = ("gelu", "gelu_exact", "swiglu")
FORMATS = ("text", "md", "tex", "csv", "json")
TABLE = "of the table; csv and json: the measured rows, of a comparison its numbers over seeds"
TABLE_ALONE = "--format prints tables only: leave out --out and --html, and draw by itself"
TABLE_TOO = "a second file of the table; csv and json: its numbers over seeds"
# The rules for values: when a limit and a value go together, and how a rule is called.
RULES = dict(low=le, above=lt, high=ge, below=gt, choices=contains)
CALLED = dict(low="at least", above="above", high="at most", below="below", choices="one of")
# The habits of other programs.
HABITS = dict(lr="learning_rate", steps="max_iters", d_model="n_embd", context_length="block_size")
# a job's number in its array, the first and the last one, and the step: of SLURM, and of SGE
ARRAYS = [[f"SLURM_ARRAY_TASK_{word}" for word in ("ID", "MIN", "MAX", "STEP")]]
ARRAYS += [[f"SGE_TASK_{word}" for word in ("ID", "FIRST", "LAST", "STEPSIZE")]]
CHECK = "check the name, or restore a good copy"  # the usual advice for a file
Lengths = tuple[int, ...]


# ---- mistakes, and what is read from files


class UserError(ValueError):
    """A mistake that the user can correct. Its text says what is wrong, where, and what to do."""


def require(condition: Any, sentence: str) -> None:
    """Raise UserError with this sentence unless the condition holds."""
    if not condition:
        raise UserError(sentence)


@contextmanager
def explain_errors(what: str, advice: str) -> Iterator[None]:
    """Turn an error of the system into the UserError "WHAT (reason); ADVICE"."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{what} ({error.strerror}); {advice}") from error


def check_shape(value: Any, shape: Any, where: str, advice: str, path: str = "") -> None:
    """Check what was read from a file: UserError "WHERE lacks a proper PATH: ADVICE" if it is bad.

    A shape is a type, a tuple of types, a dict of the keys that must be there with the shape of
    each, or a list of one shape, for lists of any length. An int passes for a float, a bool does
    not pass for an int, and a key whose types include NoneType may be absent. `path` is the place
    of `value` in the file, as in "rows[3].nats".
    """
    nested = isinstance(shape, dict | list)
    kinds = shape if isinstance(shape, tuple) else (type(shape) if nested else shape,)
    proper = isinstance(value, kinds) or (float in kinds and type(value) is int)
    odd = isinstance(value, bool) and bool not in kinds
    require(proper and not odd, f"{where} lacks a proper {path or 'content'}: {advice}")
    if isinstance(shape, dict):
        for key, part in shape.items():
            check_shape(value.get(key), part, where, advice, f"{path}.{key}".lstrip("."))
    if isinstance(shape, list):
        for number, item in enumerate(value):
            check_shape(item, shape[0], where, advice, f"{path}[{number}]")


def read_json(path: Path, shape: Any = dict, advice: str = CHECK) -> dict[str, Any]:
    """The JSON object in a file; UserError, with advice, if it is not there or lacks its shape."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        raise UserError(f"{path} is missing or not readable JSON: {advice}") from None
    check_shape(content, shape, str(path), advice)
    return content


def sha256(*paths: Path) -> str:
    """The SHA-256 of a file, or of several as if they were one, 64 hexadecimal digits."""
    whole = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: whole)
    return whole.hexdigest()


# ---- programs


def mixed_seed(*numbers: int) -> int:
    """A seed that follows from these numbers, of 32 bits: torch reads no more of it on a CPU."""
    digest = hashlib.sha256(" ".join(map(str, numbers)).encode()).digest()
    return int.from_bytes(digest[:4], "little")


def run_program(main: Callable[[], int | None]) -> NoReturn:
    """Run a program and exit with the code that `main()` returns, 0 for None.

    A UserError, or an error of the system such as a full disk, prints one sentence to stderr and
    exits 1. With --debug on the command line the traceback comes first. Of several processes, all
    but the first name their number. Ctrl-C says what is kept and exits 130. If the reader of the
    output has closed it, as in `... | head`, the program ends without a word and exits 141, as a
    shell expects.
    """
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character shows "?"
    try:
        code = main() or 0
        sys.stdout.flush()  # a closed pipe is noticed here, and not after the program
    except KeyboardInterrupt:
        kept = "what was written before is kept, and an unfinished test leaves no rows"
        print(f"interrupted: {kept}", file=sys.stderr)
        code = 130
    except (UserError, OSError) as error:
        code = _tell(error)
    sys.exit(code)


def _tell(error: UserError | OSError) -> int:
    """Print the sentence of an error on stderr, with --debug after its traceback; the exit code."""
    if isinstance(error, BrokenPipeError):  # of the output, or of a compiler that has died
        try:
            print(flush=True)
        except BrokenPipeError:  # all further output is discarded
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141  # 128 + SIGPIPE: the work was not done
    if "--debug" in sys.argv:
        traceback.print_exception(error)
    reason = getattr(error, "strerror", None)
    sentence = f"{error.filename or 'the system'}: {reason}" if reason else str(error)
    rank = os.environ.get("RANK", "0")
    process = "" if rank == "0" else f"process {rank}: "
    print(f"{process}error: {sentence}", file=sys.stderr)
    return 1


# ---- the settings of every command


def setting(default: Any, help: str, kind: str = "result", unit: str = "", **rules: Any) -> Any:
    """A field of a settings class: its default, one line of help, its kind (see KINDS), its unit.

    `rules` limit the value, or each item of a tuple: low <= value <= high, above < value < below,
    value in choices.
    """
    return field(default=default, metadata=dict(help=help, kind=kind, unit=unit, rules=rules))


@dataclass(frozen=True)
class Settings:
    """The base of the settings of every command. They never change; `checked` makes a copy.

    `named` are those that a user has set, see `configure`. It is no field, and copies lack it.
    """

    named = frozenset()
    protocols, stride, diagnose = PROTOCOLS, 0, False  # what is tested unless a setting says so

    def checked(self) -> Self:
        """A copy in which every value has its proper type, as 1 -> 1.0, and a list is a tuple.

        UserError for a wrong type or range, and for settings that do not go together.
        """
        values = {f.name: _checked(f, getattr(self, f.name)) for f in fields(self)}
        settings = replace(self, **values)
        settings.check_together()
        return settings

    def check_together(self) -> None:
        """Raise UserError for settings that do not go together. Each is good by itself."""

    @classmethod
    def defaults(cls, kind: str = "result") -> dict[str, Any]:
        """The defaults of the settings of one kind, by name."""
        return {f.name: f.default for f in fields(cls) if f.metadata["kind"] == kind}

    def has_default(self, name: str) -> bool:
        """Whether a setting has its default value."""
        return getattr(self, name) == getattr(type(self), name)


@dataclass(frozen=True)
class ModelSettings(Settings):
    """What a model is. `block_size` is the length that it is first trained at, in tokens. It may
    read longer texts.
    """

    pos: str = setting("rope", "position scheme, as in 'rope(base=500000)' or 'rope + alibi'")
    extend: str = setting("", "context extension, as in 'yarn(factor=4)'")
    block_size: int = setting(128, "training length", unit="tokens", low=2, high=2**24)
    n_layer: int = setting(4, "number of layers", low=1, high=2**24)
    n_head: int = setting(4, "attention heads per layer", low=1, high=2**24)
    n_embd: int = setting(256, "width of the model", unit="features", low=1, high=2**24)
    dropout: float = setting(0.0, "probability of dropping an activation", low=0, below=1)
    bias: bool = setting(False, "biases in linear layers and norms")
    norm: str = setting("layernorm", "normalisation", choices=NORMS)
    norm_eps: float = setting(1e-5, "added to the variance in a norm", above=0)
    mlp: str = setting("gelu", "MLP: GELU in its tanh form, exact GELU, SwiGLU", choices=MLPS)
    n_inner: int | None = setting(None, "width of the MLP, none: as 4 n_embd", low=1, high=2**24)
    n_kv_head: int | None = setting(None, "heads of keys and values, none: n_head", low=1)
    head_dim: int | None = setting(None, "width of a head, none: n_embd / n_head", low=1)
    qk_norm: bool = setting(False, "normalise queries and keys, before they are turned")
    kv_lora_rank: int | None = setting(None, "keys and values of a latent this wide", low=1)
    qk_rope_head_dim: int = setting(0, "with kv_lora_rank: columns that positions turn", low=0)
    embedding_norm: bool = setting(False, "normalise embeddings")
    parallel_blocks: bool = setting(False, "MLP and attention read the same, side by side")
    tie_embeddings: bool = setting(True, "the output layer is the token embedding")


@dataclass(frozen=True)
class GPTConfig(ModelSettings):
    """The shape of a model, with the size of its vocabulary."""

    vocab_size: int = setting(256, "number of different tokens", low=1)

    def __post_init__(self) -> None:
        """Raise UserError for a shape that no model can have."""
        for name in ("block_size", "vocab_size", "n_layer", "n_head", "n_embd"):
            require(getattr(self, name) >= 1, f"{name} is {getattr(self, name)}, not at least 1")
        sizes = f"n_embd = {self.n_embd} cannot be divided by n_head = {self.n_head}"
        whole = self.head_dim or self.n_embd % self.n_head == 0
        require(whole, f"{sizes}; change one of them or set head_dim")
        groups = f"n_head = {self.n_head} cannot be divided by n_kv_head = {self.n_kv_head}"
        require(self.n_head % self.kv_heads == 0, f"{groups}; change one of them")
        plain = self.n_kv_head is None and not self.qk_norm
        alone = "kv_lora_rank goes neither with n_kv_head nor with qk_norm: leave them out"
        require(plain or self.kv_lora_rank is None, alone)

    @property
    def head_width(self) -> int:
        """Columns of a head."""
        return self.head_dim or self.n_embd // self.n_head

    @property
    def scheme_width(self) -> int:
        """Columns of a head that positions may turn."""
        return self.head_width if self.kv_lora_rank is None else self.qk_rope_head_dim

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values; each serves n_head / kv_heads heads of queries."""
        return self.n_kv_head or self.n_head

    @property
    def mlp_width(self) -> int:
        """Units of the MLP. That of SwiGLU, which has three matrices, is two thirds of 4 n_embd."""
        usual = 32 * -(-self.n_embd // 12) if self.mlp == "swiglu" else 4 * self.n_embd
        return self.n_inner or usual


@dataclass(frozen=True)
class ComputeSettings(Settings):
    """The settings of every command that computes."""

    device: str = setting("auto", "where to compute: auto, cpu, cuda, cuda:1, mps", "execution")
    dtype: str = setting("auto", "number format of matrix products", "execution", choices=DTYPES)


@dataclass(frozen=True)
class LogSettings(Settings):
    """What is logged to Weights & Biases, and where."""

    wandb_log: bool = setting(False, "log to Weights & Biases too", "execution")
    wandb_project: str = setting("longshot", "project in Weights & Biases", "execution")
    wandb_run_name: str = setting("", "name in Weights & Biases, else the folder's", "execution")
    wandb_group: str = setting("", "group there, else that of the comparison", "execution")
    wandb_tags: tuple[str, ...] = setting((), "tags besides scheme and corpus", "execution")


@dataclass(frozen=True)
class TrainSettings(LogSettings, ComputeSettings, ModelSettings):
    """One training run and the test after it."""

    pos_file: str = setting("", "a Python file of your own with more position schemes")
    mixed_lengths: Lengths = setting((), "lengths to train at in turn", unit="tokens", low=2)
    staged: bool = setting(False, "mixed_lengths one after the other, in equal parts, not in turn")
    drop_pos: float = setting(0.0, "share of steps at the end without pos (DroPE)", low=0, below=1)
    dataset: str = setting("stdlib", "corpus, the name of a folder in data/")
    init_from: str = setting("auto", "auto (resume or begin), scratch, a run, a Hugging Face model")
    read_again: bool = setting(False, "with init_from=RUN: read again what that run has read")
    batch_size: int = setting(16, "size of a micro-batch", unit="sequences", low=1, high=2**24)
    gradient_accumulation_steps: int = setting(1, "micro-batches per step", low=1, high=2**24)
    learning_rate: float = setting(3e-3, "highest learning rate", above=0)
    max_iters: int = setting(1200, "length of the training", unit="steps", low=0)
    weight_decay: float = setting(0.1, "weight decay of matrices", low=0)
    beta1: float = setting(0.9, "AdamW's decay rate of the mean", low=0, below=1)
    beta2: float = setting(0.99, "AdamW's decay rate of the variance", low=0, below=1)
    grad_clip: float = setting(1.0, "largest norm of the gradient, 0 for any", low=0)
    decay_lr: bool = setting(True, "False: constant from the first step, without warm-up")
    lr_schedule: str = setting("cosine", "of the learning rate after warm-up", choices=SCHEDULES)
    decay_share: float = setting(0.2, "wsd: share of max_iters that decays", above=0, below=1)
    warmup_iters: int | None = setting(None, "none: min(100, max_iters / 4)", unit="steps", low=0)
    lr_decay_iters: int | None = setting(None, "end of decay, none: max_iters", unit="steps", low=1)
    min_lr: float | None = setting(None, "lowest learning rate, none for learning_rate / 20", low=0)
    seed: int = setting(1337, "seed of weights, data order and draws", low=0, high=2**32 - 1)
    eval_lengths: Lengths = setting((), "test lengths, else L/2 ... 32L", "test", "tokens", low=2)
    eval_windows: int = setting(64, "windows of the test", "test", choices=WINDOWS)
    out_dir: str = setting("", "run folder, by default named after the settings", "execution")
    overwrite: bool = setting(False, "start again in a used run folder", "execution")
    examine: bool = setting(True, "examine the scheme before training", "execution")
    eval_interval: int = setting(200, "interval between validations", "execution", "steps", low=1)
    eval_iters: int = setting(16, "size of a validation", "execution", "batches", low=1)
    log_interval: int = setting(20, "interval between log lines", "execution", "steps", low=1)
    attention: str = setting("auto", "path, see attention.py", "execution", choices=PATHS)
    compile: bool = setting(True, "torch.compile, where there is a compiler", "execution")
    cuda_graphs: bool = setting(False, "launch a step at once: small models, a GPU", "execution")
    deterministic: bool = setting(False, "repeat to the bit on a GPU too, if possible", "execution")
    backend: str = setting("auto", "auto: nccl on GPUs, else gloo", "execution", choices=BACKENDS)

    def gpt(self, vocab_size: int) -> GPTConfig:
        """The shape of the model for `vocab_size` tokens; UserError if no model has that shape."""
        shape = {f.name: getattr(self, f.name) for f in fields(ModelSettings)}
        return GPTConfig(vocab_size=vocab_size, **shape)

    @property
    def decay_begin(self) -> int:
        """The number of steps before wsd's decay."""
        return self.max_iters - round(self.decay_share * self.max_iters)

    def warmed_up(self, first: int) -> Self:
        """With the warm-up of a run that was begun with max_iters = `first`, unless one is set."""
        given = self.warmup_iters is not None
        return replace(self, warmup_iters=self.warmup_iters if given else min(100, first // 4))

    def check_together(self) -> None:
        """Raise UserError for a shape that no model can have, and for limits that cross."""
        self.gpt(vocab_size=1)  # checks the shape; the vocabulary comes from the corpus
        tokens = self.batch_size * self.block_size
        odd = [length for length in self.mixed_lengths if tokens % length]
        require(not odd, f"mixed_lengths: {odd} do not divide batch_size x block_size = {tokens}")
        low, high = self.min_lr or 0, self.learning_rate
        require(low <= high, f"min_lr = {low} is above learning_rate = {high}; lower min_lr")
        warmup, end = self.warmed_up(self.max_iters).warmup_iters, self.lr_decay_iters
        crossed = f"warmup_iters = {warmup} is above lr_decay_iters = {end}; lower it"
        require(warmup <= (end or warmup), crossed)
        cosine = self.lr_schedule == "cosine"
        self.check_need("staged", self.mixed_lengths, "mixed_lengths")
        self.check_need("qk_rope_head_dim", self.kv_lora_rank, "kv_lora_rank")
        self.check_need("read_again", self.init_from not in ("auto", "scratch"), "init_from=RUN")
        self.check_need("decay_share", self.lr_schedule == "wsd", "lr_schedule=wsd")
        self.check_need("decay_lr", cosine, "lr_schedule=cosine")
        self.check_need("cuda_graphs", self.compile, "compile=True")
        self.check_need("lr_decay_iters", cosine and self.decay_lr, "lr_schedule=cosine")

    def check_need(self, name: str, met: Any, need: str) -> None:
        """Raise UserError if a setting that does nothing without `need` is set and that is not."""
        require(met or self.has_default(name), f"{name} needs {need}; set it, or leave it out")


@dataclass(frozen=True)
class MeasureSettings(ComputeSettings):
    """What every test of trained models asks for."""

    dataset: str = setting("", "corpus to test on, by default the run's own", "test")
    eval_lengths: Lengths = setting((), "test lengths, else L/2 ... 32L", "test", "tokens", low=2)
    eval_windows: int = setting(64, "windows of the test", "test", choices=WINDOWS)
    pos_file: str = setting("", "your file of position schemes, named again to let it run", "test")


@dataclass(frozen=True)
class EvaluateSettings(MeasureSettings):
    """A test of finished runs, whose folders are the other words of the command line."""

    protocols: tuple[str, ...] = setting(PROTOCOLS, "what to test", "test", choices=PROTOCOLS)
    stride: int = setting(0, "test `sliding` too, moved by this, or 0", "test", "tokens", low=0)
    diagnose: bool = setting(False, "instead, find what the model reads and why it fails", "test")
    extend: str = setting("", "extension: 'yarn(factor=4)', or none, else as trained", "test")
    attention: str = setting("auto", "path, see attention.py", "execution", choices=PATHS)
    out: str = setting("", "figure of several runs: .png, .pdf or .svg", "execution")
    format: str = setting("text", TABLE, "execution", choices=FORMATS)

    def check_together(self) -> None:
        """Raise UserError for a figure with a format, or numbers that diagnose.json has anyway."""
        require(self.format == "text" or not self.out, TABLE_ALONE)
        known = "--diagnose writes its numbers to diagnose.json"
        good = not self.diagnose or self.format in FORMATS[:3]
        require(good, f"{known}: leave --format out, or choose md, tex")


@dataclass(frozen=True)
class ReportSettings(Settings):
    """Tables and figures of finished tests; run folders are the other words of the command line."""

    dataset: str = setting("", "corpus whose rows are shown, by default the first", "execution")
    out: str = setting("", "figure of several runs: .png, .pdf or .svg", "execution")
    html: str = setting("", "a page of all, in one file, as report.html", "execution")
    format: str = setting("text", TABLE, "execution", choices=FORMATS)

    def check_together(self) -> None:
        """Raise UserError for a figure or a page with a format."""
        require(self.format == "text" or not (self.out or self.html), TABLE_ALONE)


@dataclass(frozen=True)
class SampleSettings(ComputeSettings):
    """Text from a run, whose folder is the other word of the command line."""

    start: str = setting("\n", "text to go on from, FILE:path reads a file, - reads standard input")
    dataset: str = setting("", "with a Hugging Face folder or name: a corpus of its tokens")
    num_samples: int = setting(1, "number of samples", low=1)
    max_new_tokens: int = setting(500, "length of a sample", unit="tokens", low=1)
    temperature: float = setting(0.8, "divides the logits, 0 for always the likeliest token", low=0)
    top_k: int | None = setting(None, "draw from the k likeliest tokens only", low=1)
    top_p: float | None = setting(None, "draw from the top of this probability", above=0, high=1)
    min_p: float | None = setting(None, "least probability, in parts of the highest", low=0, high=1)
    repetition_penalty: float = setting(1.0, "divides logits of tokens seen", above=0)
    json: bool = setting(False, "a line for each sample: tokens, texts, log-probabilities")
    stop: str = setting("", "text that ends a sample")
    seed: int = setting(1337, "seed of the draws", low=0, high=2**32 - 1)
    extend: str = setting("", "extension: 'yarn(factor=4)', or none, else as trained")
    pos_file: str = setting("", "your file of position schemes, named again to let it run")
    compile: bool = setting(False, "torch.compile: for many tokens, on a GPU", "execution")


@dataclass(frozen=True)
class ExportSettings(Settings):
    """A run as a folder that transformers loads; both are the other words of the command line."""

    pos_file: str = setting("", "your file of position schemes, named again to let it run")


@dataclass(frozen=True)
class ExtendSettings(LogSettings, MeasureSettings):
    """A trained model x extensions x lengths.

    The other words of the command line are run folders (of several seeds) and extensions.
    """

    protocols = ("fixed_targets",)
    compare: tuple[str, ...] = setting((), "folders of other runs, shown too, as they are", "test")
    paper: str = setting("", "a .toml file of published numbers to stand beside", "execution")
    search: int | None = setting(None, "search longrope's factors for so many L", "test", low=2)
    rounds: int = setting(40, "length of the search", "test", "rounds", low=1)
    seed: int = setting(1337, "seed of the search", "test", low=0, high=2**32 - 1)
    out: str = setting("", "table (.txt) and figure (.png), else in the first run", "execution")
    format: str = setting("text", TABLE_TOO, "execution", choices=FORMATS)


@dataclass(frozen=True)
class AblateSettings(TrainSettings):
    """Position schemes x seeds, all trained with the same settings, but those of one scheme.

    The schemes are the other words of the command line, after those that a config file names.
    """

    schemes: tuple[str, ...] = setting((), "for config files: schemes that come first")
    paper: str = setting("", "a .toml file of published numbers to stand beside", "execution")
    seeds: tuple[int, ...] = setting((1, 2, 3), "seeds of every scheme", low=0, high=2**32 - 1)
    learning_rates: tuple[float, ...] = setting((), "pick one per scheme, on another seed", above=0)
    only: str = setting("", "I/N: the I-th of N shares; array: that of a job array", "execution")
    jobs: int = setting(1, "cells at once on this machine", "execution", low=1, high=256)
    ablate_dir: str = setting("", "folder of table and figure, else named by settings", "execution")
    format: str = setting("text", TABLE_TOO, "execution", choices=FORMATS)

    def check_together(self) -> None:
        """Raise UserError also for what a comparison sets itself."""
        super().check_together()
        own = {"pos": "name the schemes", "seed": "use --seeds", "out_dir": "use --ablate_dir"}
        for name, advice in own.items():
            require(self.has_default(name), f"ablate sets {name} itself; {advice}")
        part, parts = self.share
        good = 1 <= part <= parts
        require(good, f"only is {self.only!r:.60}, and must be I/N with 1 <= I <= N, as 1/4")

    @property
    def share(self) -> tuple[int, int]:
        """The number of a share of the work, from 1 on, and of all; (0, 0) if `only` names none.

        UserError for `array` outside of a job array.
        """
        if self.only == "array":
            known = [[os.environ.get(name, "") for name in names] for names in ARRAYS]
            told = [values for values in known if all(map(str.isdecimal, values))]
            names = " and ".join(ARRAYS[0])
            require(told, f"only=array, but {names} are not set to numbers: start a job array")
            own, first, last, step = map(int, told[0])
            step = max(1, step)  # an array of one job may have none
            place = f"job {own} is not in the array {first}-{last}:{step}"
            require(own in range(first, last + 1, step), place)
            return (own - first) // step + 1, (last - first) // step + 1
        told = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", self.only or "1/1")
        return (int(told[1]), int(told[2])) if told else (0, 0)


@dataclass(frozen=True)
class BenchSettings(TrainSettings):
    """Speed and memory of position schemes, which are the other words of the command line.

    The model is that of a training with these settings; out_dir has table, figure and JSON.
    """

    quick: bool = setting(False, "a small model and few turns, where nothing else is set", "test")
    only: tuple[str, ...] = setting(MEASURED, "what is measured", "test", choices=MEASURED)
    lengths: Lengths = setting((), "training lengths L, else block_size", "test", "tokens", low=2)
    max_new_tokens: int = setting(128, "decoded after a text of L", "test", "tokens", low=1)
    rounds: int = setting(5, "times that scheme, nope and product take turns", "test", low=1)
    format: str = setting("text", "a second file of the table", "execution", choices=FORMATS[:3])


@dataclass(frozen=True)
class ExplainSettings(Settings):
    """What is explained, and for which model."""

    pos: str = setting("", "position scheme, rope where an extension is explained")
    extend: str = setting("", "context extension of it")
    pos_file: str = setting("", "a Python file of your own with more position schemes")
    train_length: int = setting(128, "training length L", unit="tokens", low=2, high=2**20)
    length: int | None = setting(None, "test length", unit="tokens", low=2, high=2**24)
    n_head: int = setting(4, "attention heads per layer", low=1, high=1024)
    head_dim: int = setting(64, "width of a head", unit="columns", low=1, high=4096)
    out: str = setting("", "where a figure of the pairs goes, .png, .pdf or .svg", "execution")
    format: str = setting("text", "the table of the pairs alone", "execution", choices=FORMATS)

    def check_together(self) -> None:
        """Raise UserError for a figure with a format."""
        require(self.format == "text" or not self.out, TABLE_ALONE)


# ---- what a program asks of them


def answer_help(cls: type[Settings], usage: str, argv: list[str] | None = None) -> None:
    """If --help or -h is typed, or in `argv`, print `usage` and every setting, and exit 0."""
    if not {"--help", "-h"} & set(sys.argv if argv is None else argv):
        return
    lines = [usage.strip()]
    for kind, heading in KINDS.items():
        rows = [_help_line(f) for f in fields(cls) if f.metadata["kind"] == kind]
        lines += ["", f"{heading}:", *rows] if rows else []
    lines += ["", "--debug shows where in the code an error arose."]
    run_program(lambda: print("\n".join(lines)))


def _help_line(f: Field) -> str:
    """A line of --help: name, default, what it is, unit, type and range."""
    unit = f"{f.metadata['unit']}, " if f.metadata["unit"] else ""
    name = f"--{f.name}={typed(f.default)}"
    return f"  {name:<33} {f.metadata['help']} ({unit}{_expected(f)})"


def configure(cls: type[Settings], argv: list[str], usage: str) -> tuple[Any, list[str]]:
    """The checked settings and the other words of a command line (without the program's name).

    Words that end in .py are config files, read from left to right. The names of the settings that
    files and command line set are the settings' `named`. --help is answered by `answer_help`,
    --debug by `run_program`. UserError names the file and the line of a mistake, or says that it
    stands on the command line. A folder of config files is listed, and the program ends.
    """
    answer_help(cls, usage, argv)
    with at_place("command line"):
        given, words = _read_command_line(cls, [word for word in argv if word != "--debug"])
    values: dict[str, Any] = {}
    for path in words:
        if issubclass(cls, TrainSettings) and os.path.isdir(path):
            _list_configs(Path(path))
        if path.endswith(".py"):
            values |= _read_file(cls, path)
    values |= given
    settings = cls(**values).checked()
    object.__setattr__(settings, "named", frozenset(values))
    return settings, [word for word in words if not word.endswith(".py")]


def _list_configs(folder: Path) -> None:
    """If config files are in a folder, print them with what their comments say, and exit 0."""
    lines, depths = [], ("", "*/", "*/*/")
    for path in sorted(path for depth in depths for path in folder.glob(f"{depth}*.py")):
        said = re.match("(#.*\n)*", path.read_text(encoding="utf-8"))[0].replace("#", "")
        lines.append(f"{path!s:<28} {textwrap.shorten(said, 120)}")
    if lines:
        run_program(lambda: print("\n".join(lines)))


def differences(a: dict[str, Any], b: dict[str, Any], kind: str = "result") -> list[str]:
    """How the checked settings of two runs differ in one kind: ["n_embd: 256 here, 128 there"].

    A setting that is absent has its default.
    """
    names = TrainSettings.defaults(kind)
    pairs = [(name, a.get(name, old), b.get(name, old)) for name, old in names.items()]
    return [f"{name}: {x!r:.60} here, {y!r:.60} there" for name, x, y in pairs if x != y]


# ---- the values of settings


def _type_of(f: Field) -> tuple[type, bool, bool]:
    """The type of a setting: int, float, bool or str; may it be None; is it a tuple of them."""
    parts = get_args(f.type)
    return parts[0] if parts else f.type, type(None) in parts, get_origin(f.type) is tuple


def _expected(f: Field) -> str:
    """The type and the range of a setting in words: "int or none, at least 1"."""
    base, optional, many = _type_of(f)
    several = f"{'non-empty ' if f.default else ''}list of distinct " if many else ""
    kind = f"{several}{base.__name__}{' or none' if optional else ''}"
    rules = [(CALLED[rule], limit) for rule, limit in f.metadata["rules"].items()]
    return ", ".join([kind, *(f"{called} {in_words(limit)}" for called, limit in rules)])


def in_words(limit: Any) -> str:
    """A limit of a setting as it is typed, but a large one as a power of two."""
    large = isinstance(limit, int) and limit >= 2**16
    return f"2**{limit.bit_length() - 1}" + " - 1" * (limit & 1) if large else typed(limit)


def typed(value: Any) -> str:
    """A value as it is typed on the command line."""
    if isinstance(value, tuple | list):
        return ",".join(map(typed, value))
    text = "none" if value is None else str(value)
    return text if text.isprintable() else repr(value)


def _checked(f: Field, value: Any) -> Any:
    """`value` in the type of the setting; UserError if its type or range is wrong."""
    base, optional, many = _type_of(f)
    if value is None and optional:
        return None
    items, rules = value if many else (value,), f.metadata["rules"].items()
    good = isinstance(items, tuple | list) and all(_has_type(item, base) for item in items)
    good = good and all(RULES[rule](limit, item) for item in items for rule, limit in rules)
    good = good and len(set(items)) == len(items) and (items or not f.default)
    require(good, f"{f.name} is {value!r:.60}, and must be {_expected(f)}")
    return tuple(map(base, items)) if many else base(value)


def _has_type(value: Any, base: type) -> bool:
    """Whether 1e4 is an int, or 1 a float: yes. True, NaN, infinity are neither. NUL is no text.

    Floats hold all integers up to 2**53, and no setting needs a larger one.
    """
    if base in (int, float):
        return type(value) in (int, float) and abs(value) < 2**53 and base(value) == value
    return type(value) is base and not re.search("[\0\ud800-\udfff]", str(value))


# ---- reading


@contextmanager
def at_place(place: str) -> Iterator[None]:
    """Turn what reading raises into a UserError whose sentence begins with the place."""
    try:
        yield
    except SyntaxError as error:
        sentence = f"{error.msg}; a config file is `name = value` lines"
        raise UserError(f"{place}:{error.lineno or 1}: {sentence}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{place}: not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except (ArithmeticError, RecursionError, MemoryError):
        raise UserError(f"{place}: this cannot be calculated; write the value itself") from None
    except ValueError as error:
        raise UserError(f"{place}: {error}") from None


def _field(cls: type[Settings], name: str) -> Field:
    """The setting of that name; UserError suggests the nearest one."""
    known = {f.name: f for f in fields(cls)}
    near = difflib.get_close_matches(HABITS.get(name, name)[:80], known, n=1, cutoff=0.4)
    advice = f"did you mean {near[0]}?" if near else "--help lists all settings"
    for other in cls.__subclasses__():
        if name in {f.name for f in fields(other)}:
            advice = f"it is one of {other.__name__.removesuffix('Settings').lower()}.py"
    require(name in known, f"unknown setting {name!r:.60}; {advice}")
    return known[name]


def _read_command_line(cls: type[Settings], argv: list[str]) -> tuple[dict[str, Any], list[str]]:
    """The checked values of --name=value, and the other words in their order."""
    values, words = {}, []
    for word in argv:
        if not word.startswith("-"):
            require(_has_type(word, str), f"{word!r:.60} is not UTF-8 text; rename what it names")
            words.append(word)
            continue
        require(word.startswith("--"), f"{word!r:.60} is no setting; type --name=value or --help")
        name, equals, text = word[2:].partition("=")
        f = _field(cls, name)
        needs = f"--{name} needs a value, as in --{name}={typed(f.default) or 'VALUE'}"
        require(equals or f.default is False, needs)  # --diagnose alone says True
        values[name] = _checked(f, _from_text(f, text if equals else "True"))
    return values, words


def _from_text(f: Field, text: str) -> Any:
    """The value that a typed text stands for, not checked yet. Numbers are read as in a file."""
    base, _, many = _type_of(f)
    if base is str:
        return tuple(filter(None, text.split(","))) if many else text
    literal = f"[{text}]" if many else text.strip().capitalize()  # true -> True, none -> None
    with suppress(SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return _literal(ast.parse(literal, mode="eval").body)
    return text


def _read_file(cls: type[Settings], path: str) -> dict[str, Any]:
    """The checked values of a config file, which is not executed; UserError names file and line."""
    with at_place(path), explain_errors("cannot be read", "check the name"):
        statements = ast.parse(Path(path).read_text(encoding="utf-8-sig"), filename=path).body
    values: dict[str, Any] = {}
    for statement in statements:
        with at_place(f"{path}:{statement.lineno}"):
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=node):
                    require(name not in values, f"{name} is set twice; delete one of the two")
                    values[name] = _checked(_field(cls, name), _literal(node))
                case _:
                    raise UserError("only `name = value` lines may stand here")
            code = "pos_file names code that is run; type it, as --pos_file=FILE.py"
            require(not values.get("pos_file"), code)
    return values


# What a config file may calculate.
ARITHMETIC = dict(Add=add, Sub=sub, Mult=mul, Div=truediv, FloorDiv=floordiv, Mod=mod)
# in floats, which overflow where integers would fill the memory
ARITHMETIC["Pow"] = lambda base, exponent: float(base) ** exponent


def _literal(node: ast.expr) -> Any:
    """The number, text, bool, None or tuple that an expression spells; UserError for all else."""
    match node:
        case ast.Constant(value=int() | float() | str() | None as value):
            return value
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return tuple(_literal(item) for item in items)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _literal(ast.BinOp(ast.Constant(0), ast.Sub(), operand))
        case ast.BinOp(op=op) if type(op).__name__ in ARITHMETIC:
            sides = _literal(node.left), _literal(node.right)
            require({*map(type, sides)} <= {int, float}, "arithmetic is for real numbers only")
            return ARITHMETIC[type(op).__name__](*sides)
        case ast.Name(id=name):
            raise UserError(f"{name!r:.60} is a name, not a value; put a text in quotes")
    raise UserError(f"{type(node).__name__} is no value; write a literal or arithmetic")
