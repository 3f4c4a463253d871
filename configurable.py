"""The settings of all programs: defaults, overridden by config files, then by --name=value.

The dataclasses below are the only source of --help, of the checks (by pydantic) and of
docs/settings.md. This module imports no torch.
"""

import ast
import difflib
import functools
import math
import os
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    TypeAdapter,
    ValidationError,
)

from common.errors import UserError

# ---- types of settings: what pydantic checks


WindowCount = Literal[64, 128, 256, 512, 1024, 2048, 4096, 8192]
Count = Annotated[int, Field(ge=1, le=2**24)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Tokens = Annotated[Count, Field(ge=2)]
Lengths = tuple[Tokens, ...]
Fraction = Annotated[float, Field(ge=0, lt=1)]
FigureFile = Annotated[str, Field(pattern=r"^$|\.(png|pdf|svg)$")]
# names of settings that have no effect if another one has this value
WITHOUT_EFFECT = (
    ("warmup_iters lr_decay_iters min_lr", "decay_lr", False),
    ("top_k", "temperature", 0),
    ("size", "out", ""),
    ("protocols out format wandb_log", "diagnose", True),
)


# ---- the settings of every program

# Settings of these kinds change the result of a training; those of kind "test" change what is
# measured on it; "machine" and "output" neither.
RESULT = ("positions", "model", "data", "optimizer")
KINDS = (*RESULT, "test", "machine", "output")


def setting(default: Any, help: str, kind: str) -> Any:
    """A field of a settings class: its default, one line of help with the unit, and its kind.

    The annotation of the field is the type that values are checked against.
    """
    return field(default=default, metadata={"help": help, "kind": kind})


@dataclass(frozen=True)
class Settings:
    """The base class of all settings. Every value is checked: UserError for a bad one."""

    # settings that a program does not take, each with what the user should do instead
    refused = {}

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            object.__setattr__(self, name, checked(type(self), name, value))
        self.check_together()

    def check_together(self) -> None:
        """Raise UserError for values that are valid by themselves but not together."""


@dataclass(frozen=True)
class ModelSettings(Settings):
    """The architecture of a model."""

    pos: str = setting("rope", "position scheme: 'rope(base=500000)', 'rope + alibi'", "positions")
    extend: str = setting("", "context extension: 'yarn(factor=4)'", "positions")
    block_size: Tokens = setting(128, "training length in tokens", "data")
    n_layer: Count = setting(4, "layers", "model")
    n_head: Count = setting(4, "attention heads per layer", "model")
    n_embd: Count = setting(128, "model width", "model")
    dropout: Fraction = setting(0.0, "probability of dropping an activation", "model")
    bias: bool = setting(False, "biases in linear layers and norms", "model")
    norm: Literal["layernorm", "rmsnorm"] = setting("layernorm", "layernorm or rmsnorm", "model")
    norm_eps: PositiveFloat = setting(1e-5, "added to the variance in a norm", "model")
    norm_place: Literal["before", "after"] = setting(
        "before", "norms before or after attention and MLP", "model"
    )
    mlp: Literal["gelu", "gelu_exact", "swiglu"] = setting(
        "gelu", "gelu (its tanh form), gelu_exact or swiglu", "model"
    )
    n_inner: Count | None = setting(None, "MLP width (None: 4 n_embd; swiglu: two thirds)", "model")
    n_kv_head: Count | None = setting(None, "key-value heads (None: n_head)", "model")
    head_dim: Count | None = setting(None, "head width (None: n_embd / n_head)", "model")
    qk_norm: bool | Literal["all"] = setting(
        False, "normalise queries and keys before rotation (all: all heads at once)", "model"
    )
    kv_lora_rank: Count | None = setting(
        None, "latent attention: width of the key-value latent", "model"
    )
    qk_rope_head_dim: NonNegativeInt = setting(
        0, "with kv_lora_rank: rotated columns of a head", "model"
    )
    embedding_norm: bool = setting(False, "normalise embeddings", "model")
    parallel_blocks: bool = setting(False, "attention and MLP read the same input", "model")
    tie_embeddings: bool = setting(True, "output layer and token embedding share weights", "model")

    def gpt(self, vocab_size: int) -> "GPTConfig":
        """The config of a new model for a vocabulary; UserError if there can be no such model."""
        shape = {f.name: getattr(self, f.name) for f in fields(ModelSettings)}
        return GPTConfig(vocab_size=vocab_size, **shape)


@dataclass(frozen=True)
class GPTConfig(ModelSettings):
    """The architecture of a model, with the size of its vocabulary and its training lengths.

    `block_size` is the length of its latest training, `first_length` that of its first, by default
    the same. Formulas read `first_length` alone, so that longer training moves no position.
    """

    vocab_size: Count = setting(256, "number of different tokens", "model")
    first_length: Tokens | None = setting(
        None, "length first trained at (None: block_size)", "model"
    )

    def check_together(self) -> None:
        if self.first_length is None:
            object.__setattr__(self, "first_length", self.block_size)
        if self.head_dim is None and self.n_embd % self.n_head:
            raise UserError(
                "n_embd cannot be divided by n_head; change one of them or set head_dim"
            )
        if self.n_head % self.kv_heads:
            raise UserError("n_head cannot be divided by n_kv_head; change one of them")
        if self.kv_lora_rank and (self.n_kv_head or self.qk_norm):
            raise UserError("kv_lora_rank cannot be combined with n_kv_head or qk_norm")

    @property
    def head_width(self) -> int:
        """The width of a head."""
        return self.head_dim or self.n_embd // self.n_head

    @property
    def turned_width(self) -> int:
        """How many columns of a head positions may turn."""
        if self.kv_lora_rank:
            return self.qk_rope_head_dim
        return self.head_width

    @property
    def kv_heads(self) -> int:
        """The number of key and value heads; n_head / kv_heads query heads share one."""
        return self.n_kv_head or self.n_head

    @property
    def mlp_width(self) -> int:
        """The hidden width of the MLP: 4 n_embd, or two thirds of that for SwiGLU."""
        if self.n_inner:
            return self.n_inner
        if self.mlp == "swiglu":
            return 32 * math.ceil(self.n_embd / 12)  # rounded up to a multiple of 32
        return 4 * self.n_embd


@dataclass(frozen=True)
class ComputeSettings(Settings):
    """The settings of every program that runs a model."""

    device: str = setting("auto", "auto, cpu, cuda, cuda:1 or mps", "machine")
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = setting(
        "auto", "bfloat16, float16, float32; auto: what is faster here", "machine"
    )


@dataclass(frozen=True)
class LogSettings(Settings):
    """What is logged to Weights & Biases, and where."""

    wandb_log: bool = setting(False, "log to Weights & Biases", "output")
    wandb_project: str = setting("longshot", "Weights & Biases project", "output")
    wandb_run_name: str = setting("", "run name there, by default the folder's", "output")


@dataclass(frozen=True)
class TestSettings(Settings):
    """At which lengths a trained model is tested, and on how many windows."""

    eval_lengths: Lengths = setting((), "test lengths in tokens (default: L/2 to 32 L)", "test")
    eval_windows: WindowCount = setting(64, "windows per test: 64, 128, 256 ... 8192", "test")


@dataclass(frozen=True)
class TrainSettings(LogSettings, ComputeSettings, TestSettings, ModelSettings):
    """A training run and the test that follows it."""

    pos_file: str = setting("", "your Python file of position schemes", "positions")
    drop_pos: Fraction = setting(0.0, "share of steps at the end without pos (DroPE)", "positions")
    dataset: str = setting("stdlib", "corpus: a folder in data/", "data")
    documents: Literal["cross", "pad", "mask"] = setting(
        "cross",
        "where a document ends, rows go on (cross), end (pad) or are masked (mask); not in tests",
        "data",
    )
    init_from: str = setting(
        "auto", "auto or scratch (new weights), a run, a Hugging Face model", "model"
    )
    batch_size: Count = setting(16, "sequences per micro-batch", "optimizer")
    gradient_accumulation_steps: Count = setting(1, "micro-batches per step", "optimizer")
    optimizer: Literal["normuon", "muon", "adamw"] = setting(
        "normuon", "normuon, muon (both with AdamW for all but the blocks) or adamw", "optimizer"
    )
    learning_rate: PositiveFloat | None = setting(
        None, "highest lr after warm-up (None: 1e-2, with adamw 3e-3)", "optimizer"
    )
    max_iters: NonNegativeInt = setting(1350, "training steps", "optimizer")
    weight_decay: NonNegativeFloat = setting(0.1, "weight decay of matrices", "optimizer")
    beta1: Fraction = setting(0.9, "AdamW's decay rate of the mean", "optimizer")
    beta2: Fraction = setting(0.99, "AdamW's decay rate of the variance", "optimizer")
    grad_clip: NonNegativeFloat = setting(1.0, "limit of the gradient norm (0: none)", "optimizer")
    decay_lr: bool = setting(True, "warm-up and cosine decay; False: a constant rate", "optimizer")
    warmup_iters: NonNegativeInt | None = setting(
        None, "warm-up steps (None: min(100, max_iters / 4))", "optimizer"
    )
    lr_decay_iters: Count | None = setting(
        None, "last step of decay (None: max_iters)", "optimizer"
    )
    min_lr: NonNegativeFloat | None = setting(
        None, "lowest rate (None: a 20th of the highest)", "optimizer"
    )
    seed: Seed = setting(1337, "seed of weights, data order and draws", "optimizer")
    out_dir: str = setting("", "run folder, by default named after the settings", "output")
    overwrite: bool = setting(False, "start over in a used run folder", "output")
    examine: bool = setting(True, "examine the scheme before training", "output")
    eval_interval: Count = setting(200, "steps between validations", "output")
    eval_iters: Count = setting(16, "batches per validation", "output")
    test_at: tuple[Count, ...] = setting(
        (), "steps after which to run the final test too", "output"
    )
    log_interval: Count = setting(20, "steps between log lines", "output")
    wait: NonNegativeInt = setting(
        60, "seconds to wait for a program that still uses the run folder", "machine"
    )
    compile: bool = setting(True, "torch.compile, where there is a compiler", "machine")
    deterministic: bool = setting(
        False, "GPU runs repeatable to the bit, where possible", "machine"
    )
    backend: Literal["auto", "nccl", "gloo"] = setting(
        "auto", "for several processes: nccl or gloo; auto: nccl on GPUs", "machine"
    )

    refused = {
        "length_factor": "set --block_size, in tokens",
        "seq_len": "set --block_size, in tokens",
        "context_length": "set --block_size, in tokens",
        "epochs": "set --max_iters, in steps",
        "eval_only": "python evaluate.py out/RUN tests a run",
        "rope_theta": "write it into the scheme, as in --pos='rope(base=500000)'",
    }

    @property
    def sequences_per_step(self) -> int:
        """The number of sequences in a step, of all processes together."""
        return self.gradient_accumulation_steps * self.batch_size

    @property
    def tokens_per_step(self) -> int:
        """The number of tokens in a step."""
        return self.sequences_per_step * self.block_size

    @property
    def highest_lr(self) -> float:
        """The learning rate after warm-up. The defaults were found by results/optimizer."""
        if self.learning_rate is None:
            return 3e-3 if self.optimizer == "adamw" else 1e-2
        return self.learning_rate

    @property
    def warmup(self) -> int:
        """The number of steps in which the learning rate rises."""
        if self.warmup_iters is None:
            return min(100, self.max_iters // 4)
        return self.warmup_iters

    @property
    def lowest_lr(self) -> float:
        """The learning rate at the end of the schedule."""
        return self.highest_lr / 20 if self.min_lr is None else self.min_lr

    @property
    def decay_end(self) -> int:
        """The step at which the learning rate is lowest."""
        return self.lr_decay_iters or self.max_iters

    @property
    def follows_max_iters(self) -> bool:
        """Whether the learning rate of a step depends on max_iters."""
        return self.decay_lr and None in (self.lr_decay_iters, self.warmup_iters)

    def check_together(self) -> None:
        self.gpt(vocab_size=1)  # checks the shape; the vocabulary comes from the corpus
        n_dropped = round(self.drop_pos * self.max_iters)
        can_drop = 0 < n_dropped < self.max_iters
        # a warm-up may take all steps, but the schedule must not have ended within it
        end = self.lr_decay_iters or self.max_iters + 1
        warms_up_too_long = self.decay_lr and self.max_iters and self.warmup >= end
        min_lr_too_high = self.decay_lr and self.min_lr and self.min_lr > self.highest_lr
        mistakes = [
            (
                self.drop_pos and self.extend not in ("", "none"),
                "drop_pos removes the positions that extend acts on: set --extend=none",
            ),
            (
                self.drop_pos and self.max_iters and not can_drop,
                "drop_pos rounds to none of the steps, or to all: change it, or raise max_iters",
            ),
            (
                warms_up_too_long,
                f"the schedule ends before its warm-up of {self.warmup} steps: lower it, as by "
                "--warmup_iters=0, or raise max_iters and lr_decay_iters",
            ),
            (
                min_lr_too_high,
                f"min_lr={self.min_lr} is above learning_rate, {self.highest_lr}: lower it",
            ),
            (
                max(self.test_at, default=0) > self.max_iters,
                "test_at is after the last step: raise max_iters",
            ),
            (
                self.qk_rope_head_dim and not self.kv_lora_rank,
                "qk_rope_head_dim belongs to latent attention: set kv_lora_rank too",
            ),
        ]
        for is_made, sentence in mistakes:
            if is_made:
                raise UserError(sentence)


@dataclass(frozen=True)
class MeasureSettings(TestSettings, ComputeSettings):
    """The settings of every program that tests trained models."""

    dataset: str = setting("", "corpus to test on, by default the run's own", "test")
    pos_file: str = setting("", "your file of schemes: naming it again lets its code run", "test")
    first_token: bool = setting(True, "begin windows with a pretrained model's BOS token", "test")


@dataclass(frozen=True)
class TableSettings(Settings):
    """How tables and figures of runs are written."""

    out: FigureFile = setting("", "figure of several runs: .png, .pdf or .svg", "output")
    format: Literal["text", "md", "tex", "csv"] = setting(
        "text", "of the table: text, md, tex; csv gives the rows", "output"
    )
    protocols: tuple[str, ...] = setting(
        (), "what is tested (by default all), or shown, as in fixed_targets,windowed", "test"
    )


@dataclass(frozen=True)
class ReportSettings(TableSettings):
    """Tables and figures of finished tests. The other arguments are run folders."""

    dataset: str = setting("", "corpus whose rows are shown, by default the first", "output")
    show: Literal["tests", "training", "settings"] = setting(
        "tests", "tests, training (loss by tokens) or settings (for an appendix)", "output"
    )
    eval_lengths: Lengths = setting(
        (), "test lengths of table and figure (by default all)", "output"
    )
    labels: str = setting("", "LABEL=NAME;... for table and figure, or a file of them", "output")
    size: Annotated[str, Field(pattern=r"^$|^[1-9][0-9]?([.][0-9]+)?x[1-9][0-9]?([.][0-9]+)?$")] = (
        setting("", "WIDTHxHEIGHT of the figure, each 1 to 99 inches, as 3.25x2.2", "output")
    )

    refused = {"out_dir": "name the folders of runs, as in python report.py out/A out/B"}


@dataclass(frozen=True)
class EvaluateSettings(TableSettings, LogSettings, MeasureSettings):
    """A test of finished runs. The other arguments are run folders, and extensions to compare."""

    diagnose: bool = setting(False, "instead, find what the model reads and why it fails", "test")
    extend: str | None = setting(
        None,
        "as in 'yarn(factor=4)', all: each, none: without (default: as trained)",
        "test",
    )

    refused = {
        "block_size": "name the test lengths, as in --eval_lengths=256,1024",
        "out_dir": "name the run's folder, as in python evaluate.py out/RUN",
        "init_from": "name the run's folder, as in python evaluate.py out/RUN",
    }


@dataclass(frozen=True)
class SampleSettings(ComputeSettings):
    """Text from a run. The other argument is its folder."""

    start: str = setting("\n", "prompt (FILE:path: from a file)", "output")
    num_samples: Count = setting(1, "samples", "output")
    max_new_tokens: Count = setting(500, "tokens per sample", "output")
    temperature: NonNegativeFloat = setting(
        0.8, "divides the logits, 0: always the likeliest token", "output"
    )
    top_k: Count | None = setting(None, "draw from the k likeliest tokens (None: all)", "output")
    seed: Seed = setting(1337, "seed of the draws", "output")
    extend: str | None = setting(
        None, "as in 'yarn(factor=4)', none: without (by default as trained)", "output"
    )
    pos_file: str = setting("", "your file of schemes: naming it again lets its code run", "output")

    refused = {
        "out_dir": "name the run's folder, as in python sample.py out/RUN",
        "init_from": "name the run's folder, as in python sample.py out/RUN",
    }


@dataclass(frozen=True)
class AblateSettings(TrainSettings):
    """Position schemes x seeds, all trained with the same settings, except those of one scheme.

    The schemes are the other arguments, after those that a config file names.
    """

    schemes: tuple[str, ...] = setting((), "for config files: schemes that come first", "positions")
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)] = setting(
        (1, 2, 3), "seeds of every scheme", "optimizer"
    )
    learning_rates: tuple[PositiveFloat, ...] = setting(
        (), "try these for each scheme and use the best", "optimizer"
    )
    only: Annotated[str, Field(pattern="^[1-9][0-9]{0,5}/[1-9][0-9]{0,5}$")] = setting(
        "1/1", "I/N: only the I-th of N shares of the cells", "machine"
    )
    jobs: Count = setting(1, "cells to train at once", "machine")
    plan: bool = setting(False, "only list the cells, finished or at which step", "output")
    out_dir: str = setting("", "folder of table and figure (by default in out/)", "output")

    refused = TrainSettings.refused | {
        "pos": "name the schemes, as in: python ablate.py rope alibi",
        "seed": "use --seeds",
        "ablate_dir": "it is --out_dir",
        "init_from": "a comparison trains every model from scratch",
    }


# ---- checking values, and settings as text


@functools.cache
def type_adapter(annotation: Any) -> TypeAdapter:
    """What checks values against the type of a setting, and converts them to it."""
    return TypeAdapter(annotation, config=ConfigDict(allow_inf_nan=False))


def checked(cls: type[Settings], name: str, value: Any) -> Any:
    """A value of a setting, converted to its type: 1e4 to an integer, 1 to a float, a list to a
    tuple. UserError for a wrong one.
    """
    f = cls.__dataclass_fields__[name]
    if isinstance(value, bool) and not isinstance(f.default, bool):  # pydantic takes it for 1 or 0
        raise UserError(f"{name} cannot be {value} ({f.metadata['help']})")
    try:
        return type_adapter(f.type).validate_python(value)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise UserError(f"{name} = {value!r:.60}: {reason} ({f.metadata['help']})") from None


def setting_values(settings: Settings, *kinds: str) -> dict:
    """{name: value} of the settings of these kinds."""
    return {
        f.name: getattr(settings, f.name) for f in fields(settings) if f.metadata["kind"] in kinds
    }


def as_argument(value: Any) -> str:
    """A value as it is typed on the command line."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value)


def to_argv(settings: Settings, *kinds: str) -> list[str]:
    """The settings of these kinds, by default of all, that differ from the defaults, as words of a
    command line: --name=value.
    """
    return [
        f"--{name}={as_argument(value)}"
        for name, value in setting_values(settings, *(kinds or KINDS)).items()
        if value != getattr(type(settings), name)
    ]


# ---- the command line and config files


def help_text(cls: type[Settings]) -> str:
    """Every setting of a program, by kind."""
    lines = []
    for kind in KINDS:
        settings = [
            f for f in fields(cls) if f.metadata["kind"] == kind and f.name not in cls.refused
        ]
        lines += ["", kind] if settings else []
        for f in settings:
            word = f"--{f.name}={as_argument(f.default).strip()}"
            lines.append(f"  {word:<33}  {f.metadata['help']}")
    return "\n".join([*lines, "", "--debug shows where an error arose."])


def configure(cls: type[Settings], argv: list[str], usage: str = "") -> tuple[Any, list[str]]:
    """The settings and the other arguments of a command line; see `read_arguments`."""
    typed, others = read_arguments(cls, argv, usage)
    return cls(**typed), others


def read_arguments(cls: type[Settings], argv: list[str], usage: str = "") -> tuple[dict, list[str]]:
    """The settings that a command line names, {name: checked value}, and its other arguments
    (argv without the program's name).

    --help or -h prints `usage` and all settings, and exits.

    Arguments that end in .py are config files: a later one wins, and --name=value wins over all.
    UserError for a mistake; one in a file is named with its line.
    """
    if "--help" in argv or "-h" in argv:
        print(usage, help_text(cls), sep="\n")
        sys.exit(0)
    from_files = {}
    typed = {}
    others = []
    for word in argv:
        if word.startswith("-"):
            typed |= read_word(cls, word)
        elif word.endswith(".py"):
            from_files |= read_config_file(cls, Path(word))
        else:
            others.append(word)
    chosen = {name: checked(cls, name, value) for name, value in (from_files | typed).items()}
    for names, other, value in WITHOUT_EFFECT:
        if chosen.get(other, getattr(cls, other, None)) == value:
            for name in chosen.keys() & names.split():
                print(f"note: {name} has no effect with {other}={value}", file=sys.stderr)
    return chosen, others


def read_word(cls: type[Settings], word: str) -> dict:
    """{name: value} of an argument --name=value, not yet checked."""
    name, equals, text = word.removeprefix("--").partition("=")
    check_name(cls, name)
    default = getattr(cls, name)
    is_text = isinstance(default, str) or name == "extend"  # `none` is an expression there
    if isinstance(default, bool) and not equals:
        text = "True"  # --diagnose alone means True
    elif not (text or equals and (is_text or isinstance(default, tuple))):  # these may be empty
        raise UserError(f"--{name} needs a value: --{name}=VALUE")
    if is_text:
        value = text
    elif isinstance(default, tuple):
        value = [read_literal(item) for item in text.split(",") if item.strip()]
    else:
        value = read_literal(text)
    return {name: value}


def read_literal(text: str) -> Any:
    """Text as a number, True, False or None (in upper or lower case), or else unchanged."""
    try:
        return ast.literal_eval(text.strip().capitalize())  # true, none
    except (SyntaxError, ValueError, TypeError):
        return text.strip()


def read_config_file(cls: type[Settings], path: Path) -> dict:
    """{name: checked value} of a config file, which is parsed, never executed."""
    if not path.is_file():
        folder = os.path.relpath(Path(__file__).with_name("config"))
        files = {file.name: file for file in Path(folder).rglob("*.py")}
        near = difflib.get_close_matches(path.name, files, n=1)
        advice = f"did you mean {files[near[0]]}?" if near else f"config files are in {folder}"
        if path.name[0] != "_" and Path(__file__).with_name("zoo").joinpath(path.name).is_file():
            advice = f"for a scheme alone write --pos={path.stem}, in ablate.py {path.stem}"
        raise UserError(f"there is no file {path}; {advice}")
    chosen = {}
    try:
        for statement in ast.parse(path.read_bytes()).body:
            line = statement.lineno
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    check_name(cls, name)
                    if name == "pos_file":
                        raise UserError(
                            "pos_file is code: give it on the command line, --pos_file=FILE.py"
                        )
                    chosen[name] = checked(cls, name, ast.literal_eval(value))
                case _:
                    raise UserError(
                        "a config file has only lines `name = value`; for your own schemes write "
                        "--pos_file=FILE.py"
                    )
    except UserError as error:
        raise UserError(f"{path}:{line}: {error}") from None
    except SyntaxError as error:  # there is no line in binary files
        raise UserError(f"{path}:{error.lineno or 1}: {error.msg}") from None
    except (ValueError, TypeError):
        raise UserError(
            f"{path}:{line}: the value after `name =` must be a number, a text in quotes, True, "
            "False, None, or a tuple of these"
        ) from None
    return chosen


def check_name(cls: type[Settings], name: str) -> None:
    """Raise UserError, which suggests the nearest name, unless a program has this setting."""
    settings = cls.__dataclass_fields__
    if name in settings and name not in cls.refused:
        return
    near = difflib.get_close_matches(name, settings, n=1)
    near += [f.name for f in fields(cls) if name in f.metadata["help"].split()]  # such as lr
    advice = "--help lists all settings"
    if name in cls.refused:
        advice = cls.refused[name]
    elif near:
        advice = cls.refused.get(near[0], f"did you mean {near[0]}?")
    raise UserError(f"unknown setting {name!r:.60}; {advice}")
