"""Train one model on short sequences, then test it on long ones.

    python train.py config/alibi.py                                   # the defaults: minutes on two cores
    python train.py config/size/gpt2.py config/rope.py --seed=3       # files compose left to right, then --key=value

The same command resumes an unfinished run and prints the table of a finished one.
"""

from __future__ import annotations

import ast
import hashlib
import math
import os
import shutil
import signal
import sys
import time
import uuid
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

import data
import evaluate
import posenc
from configurable import TrainSettings, UserError, configure, run
from model import GPT
from positions.scheme import Scheme
from runs import device
from runs.checkpoint import (
    load_run,
    load_state,
    load_weights,
    refuse_other_checkpoint,
    refuse_other_files,
    save_checkpoint,
)
from runs.figures import plot_run
from runs.files import sha256, write_json
from runs.folder import (
    CURRENT,
    provenance,
    read_config,
    run_folder,
    scheme_label,
    started_from,
    take_folder,
)
from runs.log import append_metrics, trim_metrics
from runs.processes import ALONE, Processes, together
from runs.results import load_result, rows_on, update_result
from runs.tables import runs_table

USAGE = """python train.py [config/FILE.py ...] [--key=value ...]

Train a GPT on short sequences, then test it on long ones. Start with: python train.py config/alibi.py"""


# ---- the pieces of a run


def optimizer_groups(model: GPT, weight_decay: float) -> list[dict[str, Any]]:
    """Weight decay for matrices and the token embedding; none for norms, biases and everything of a position scheme."""
    named = dict(model.named_parameters())
    decayed = [n for n, p in named.items() if p.dim() >= 2 and not n.startswith("pos.")]
    return [
        {"params": [named[n] for n in decayed], "weight_decay": weight_decay},
        {"params": [p for n, p in named.items() if n not in decayed], "weight_decay": 0.0},
    ]


def learning_rate(step: int, settings: TrainSettings) -> float:
    """The rate of step 0, 1, ...: linear warm-up, then a cosine down to min_lr at lr_decay_iters, and min_lr after it."""
    top, warm = settings.learning_rate, settings.warmup_iters
    if not settings.decay_lr:
        return top
    low = top / 20 if settings.min_lr is None else settings.min_lr
    if step < warm:
        return top * (step + 1) / (warm + 1)
    end = settings.lr_decay_iters or settings.max_iters
    done = min(1.0, (step - warm) / max(1, end - warm))
    return low + 0.5 * (1 + math.cos(math.pi * done)) * (top - low)


def flops_per_token(model: GPT, length: int) -> int:
    """Floating-point operations of one training token, forward and backward, as nanoGPT counts them (PaLM's appendix B)."""
    tables = sum(p.numel() for n, p in model.named_parameters() if n.startswith("pos."))
    return (
        6 * (model.parameter_count - tables)
        + 12 * model.config.n_layer * model.config.n_embd * length
    )


def seed_of(seed: int, step: int, rank: int) -> int:
    """The seed of what a process draws in a step (dropout); 32 bits, all that torch's generator on a CPU reads."""
    return int.from_bytes(hashlib.sha256(f"{seed} {step} {rank}".encode()).digest()[:4], "little")


def shares(sequences: int, batch_size: int, processes: int) -> tuple[int, int]:
    """How many of a step's sequences each process takes, and in micro-batches of how many, at most `batch_size`."""
    if sequences % processes:
        raise UserError(
            f"{processes} processes cannot share the {sequences} sequences of a step (batch_size x "
            f"gradient_accumulation_steps) evenly; start a number of processes that divides it"
        )
    share = sequences // processes
    parts = next(n for n in range(-(-share // batch_size), share + 1) if share % n == 0)
    return share, share // parts


class Stop:
    """The first SIGINT or SIGTERM lets the step in hand be finished and saved; a second one ends at once, whatever goes on."""

    def __init__(self) -> None:
        self.signal = 0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal:
            os._exit(
                128 + number
            )  # no clean-up can hold it up, and none is needed: a checkpoint appears whole or not at all
        self.signal = number


@dataclass
class Training:
    """Everything that a running training is made of."""

    settings: TrainSettings
    folder: Path
    corpus: data.Corpus
    compute: device.Compute
    model: GPT
    original_length: int
    train_lengths: list[int]
    processes: Processes = ALONE
    step: int = 0  # optimizer steps taken
    lock: Any = None  # held as long as this lives
    stop: Stop = field(default_factory=Stop)

    def __post_init__(self) -> None:
        s = self.settings
        fused = self.compute.kind in ("cpu", "cuda")
        self.optimizer = torch.optim.AdamW(
            optimizer_groups(self.model, s.weight_decay),
            lr=s.learning_rate,
            betas=(s.beta1, s.beta2),
            fused=fused,
        )
        self.scaler = torch.amp.GradScaler(
            self.compute.kind, enabled=self.compute.dtype == torch.float16
        )
        self.share, self.micro_batch = shares(
            self.sequences_per_step, s.batch_size, self.processes.size
        )
        wrong = [n for n in s.mixed_lengths if self.micro_batch * s.block_size % n]
        if wrong:
            raise UserError(
                f"mixed_lengths: the {self.micro_batch} x {s.block_size} tokens that a process reads at once are no "
                f"whole number of sequences of {wrong[0]}; raise batch_size or start fewer processes"
            )
        for length in s.mixed_lengths or (s.block_size,):
            self.model.draw_ids(
                s.seed, 0, length
            )  # what cannot be drawn is refused now, not in mid-training
        self.loss_of = self.mean_loss  # its compiled twin, once `compile` is called

    @property
    def sequences_per_step(self) -> int:
        """The global batch."""
        return self.settings.batch_size * self.settings.gradient_accumulation_steps

    @property
    def tokens(self) -> int:
        """Tokens trained on so far."""
        return self.step * self.sequences_per_step * self.settings.block_size

    def mean_loss(self, idx: Tensor, targets: Tensor, ids: Tensor | None) -> Tensor:
        """Mean nats of a micro-batch (B, T)."""
        with device.autocast(self.compute):
            return self.model(idx, targets, ids=ids)[1]

    def compile(self) -> None:
        """Compile model and loss as one graph, or say why not."""
        why_not = "compile=False" if not self.settings.compile else device.missing_compiler()
        why_not = why_not or ("mps runs eager" if self.compute.kind == "mps" else "")
        print(
            f"not compiled: {why_not}"
            if why_not
            else "compiling model and loss (the first step takes a while)"
        )
        if not why_not:
            lengths = len(
                self.settings.mixed_lengths
            )  # a graph for each, and another once positions are dropped
            torch._dynamo.config.recompile_limit = max(8, 2 * lengths)
            self.loss_of = torch.compile(self.mean_loss, fullgraph=True, dynamic=False)

    def length_of(self, step: int) -> int:
        """The length of a step's sequences: block_size, or one of mixed_lengths."""
        lengths = self.settings.mixed_lengths or (self.settings.block_size,)
        turn = step * len(lengths) // self.settings.max_iters if self.settings.staged else step
        return lengths[turn % len(lengths)]

    def batch(self, first: int, count: int, length: int) -> tuple[Tensor, Tensor]:
        """Training sequences first ... first + count - 1 of that length: inputs and targets (count, T)."""
        tokens = torch.from_numpy(
            data.sequences(self.corpus.train, length, self.settings.seed, first, count)
        )
        if self.compute.kind == "cuda":
            tokens = tokens.pin_memory().to(self.compute.device, non_blocking=True)
        tokens = tokens.to(self.compute.device)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def take_step(self) -> tuple[Tensor, Tensor]:
        """One optimizer step on the global batch; returns its mean loss (here: over this process's share of the batch) and
        the gradient's norm, still on the device."""
        s, total = self.settings, torch.zeros((), device=self.compute.device)
        if s.drop_pos and self.step == s.max_iters - round(s.drop_pos * s.max_iters):
            self.model.tell_positions_by("nope")
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.step, s)
        torch.manual_seed(
            seed_of(s.seed, self.step, self.processes.rank)
        )  # so that resuming needs no random state
        length = self.length_of(self.step)
        micro, share = (
            n * s.block_size // length for n in (self.micro_batch, self.share)
        )  # as many tokens at any length
        ids = self.model.draw_ids(s.seed, self.step, length)
        if ids is not None:
            self.model.pos.check_ids(ids)  # compiled code cannot
            ids = ids.to(self.compute.device)
        first = (self.step * self.processes.size + self.processes.rank) * share
        for start in range(first, first + share, micro):
            inputs, targets = self.batch(start, micro, length)
            loss = self.loss_of(inputs, targets, ids) * (micro / share)
            self.scaler.scale(loss).backward()
            total += loss.detach()
        self.mean_gradients()
        self.scaler.unscale_(self.optimizer)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), s.grad_clip or math.inf)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return total, norm

    def mean_gradients(self) -> None:
        """Replace the gradients by their mean over all processes, in one exchange."""
        if self.processes.size > 1:
            gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
            everything = torch.nn.utils.parameters_to_vector(gradients)
            torch.nn.utils.vector_to_parameters(
                self.processes.sum(everything) / self.processes.size, gradients
            )

    @torch.no_grad()
    def validation_loss(self) -> float:
        """Mean nats over eval_iters batches of pieces of the validation split, the same evenly spaced ones every time."""
        s, val = self.settings, self.corpus.val
        starts = torch.as_tensor(data.evenly(len(val) - s.block_size, s.eval_iters * s.batch_size))
        losses = torch.zeros(len(starts), dtype=torch.float64)
        self.model.eval()
        for part in torch.arange(len(starts)).split(s.batch_size)[
            self.processes.rank :: self.processes.size
        ]:
            tokens = torch.stack(
                [
                    torch.from_numpy(val[a : a + s.block_size + 1].astype("int64"))
                    for a in starts[part].tolist()
                ]
            )
            tokens = tokens.to(self.compute.device)
            with device.autocast(self.compute):
                losses[part] = (
                    self.model.losses(tokens[:, :-1], tokens[:, 1:]).double().mean(1).cpu()
                )
        self.model.train()
        return float(self.processes.sum(losses).mean())

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds; only tensors, numbers, texts, lists and dicts.

        Data order and everything random follow from the seed and the step.
        """
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "step": self.step,
            "tokens": self.tokens,
            "gpt": asdict(self.model.config),
            "settings": asdict(self.settings),
            "original_length": self.original_length,
            "train_lengths": self.train_lengths,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint of this run; UserError where it is of another."""
        refuse_other_checkpoint(self.folder, state, asdict(self.settings))
        if state["gpt"]["pos"] != self.model.config.pos:  # dropped by then
            self.model.tell_positions_by(state["gpt"]["pos"])  # which ends an extension too
        load_weights(self.model, state["model"], self.folder)
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        self.step = state["step"]


# ---- starting


def build_model(settings: TrainSettings, vocab_size: int) -> tuple[GPT, int, list[int]]:
    """A model for the settings, the length it was first trained at and all its training lengths.

    With init_from=gpt2... or a run folder its weights are the start, and the settings take that model's size and scheme.
    """
    start, length = settings.init_from, settings.block_size
    torch.manual_seed(settings.seed)
    resumed = not settings.overwrite and started_from(settings) == start
    trained = [*settings.mixed_lengths] or [length]
    if start in ("auto", "scratch"):
        model = GPT(replace(settings.gpt(vocab_size), extend=""), own_file(settings))
        extend(model, settings)
        if settings.extend and not resumed:
            print(
                f"note: {settings.extend} is trained with from the start; --init_from=out/RUN names a run to extend"
            )
        return model, length, trained
    if resumed:  # the folder holds everything: where it began may be gone by now
        own = load_run(settings.out_dir, pos_file=settings.pos_file)
        model, original = own.model.train(), own.state["original_length"]
        lengths = own.state["train_lengths"][: -len(trained)]
        if model.config.pos != own.settings["pos"]:  # dropped by now: `restore` drops it again
            model.tell_positions_by(own.settings["pos"], own_file(settings))
            settings.extend = settings.extend or own.settings["extend"]
    elif start.startswith("gpt2"):
        try:
            model = GPT.from_huggingface(start)
        except (ImportError, OSError) as error:
            raise UserError(
                f"init_from={start}: the weights could not be loaded ({str(error).splitlines()[0]}); this needs "
                "`pip install transformers` and a network the first time"
            ) from error
        original, lengths = model.config.block_size, [model.config.block_size]
    else:
        source = load_run(start, pos_file=settings.pos_file)
        model, original, lengths = (
            source.model.train(),
            source.state["original_length"],
            source.state["train_lengths"],
        )
    if model.config.vocab_size != vocab_size:
        raise UserError(
            f"init_from={start} has a vocabulary of {model.config.vocab_size}, not {settings.dataset}'s {vocab_size}"
        )
    defaults = TrainSettings()
    for name in ("n_layer", "n_head", "n_embd", "bias", "pos"):
        typed, theirs = getattr(settings, name), getattr(model.config, name)
        if typed not in (getattr(defaults, name), theirs):
            raise UserError(
                f"{name}={typed} does not go with init_from={start}, whose model has {name}={theirs}: leave it out"
            )
        setattr(settings, name, getattr(model.config, name))
    extend(model, settings)
    model.config = replace(model.config, dropout=settings.dropout)
    for module in model.modules():
        if hasattr(module, "dropout"):
            module.dropout = settings.dropout
    return model, original, [*lengths, *trained]


def extend(model: GPT, settings: TrainSettings) -> None:
    """Put the extension that was typed into force, if one was; the run folder's own copies of files come first."""
    if settings.extend:
        settings.extend = ast.unparse(
            posenc.parse(settings.extend)
        )  # the folder may be named after it
        model.extend(
            settings.extend, None if settings.overwrite else run_folder(settings)
        )
    settings.extend = model.config.extend


def begin(settings: TrainSettings, processes: Processes = ALONE) -> Training:
    """Make a training ready to run: device, corpus, model, and the run folder, resumed if it holds this run."""
    if settings.pos_file:
        print(f"running the position schemes of {settings.pos_file}")
    settings.pos = Scheme(
        settings.pos,
        posenc.Shape(
            settings.n_head,
            settings.n_embd // settings.n_head,
            settings.n_embd,
            settings.block_size,
        ),
        settings.n_layer,
        own_file(settings),
    ).text
    compute = device.pick(settings.device, settings.dtype)
    if compute.kind == "cpu" or settings.deterministic:
        device.repeat_to_the_bit(compute)
    with processes.first_before_others():
        corpus = corpus_of(settings)
    model, original_length, lengths = build_model(settings, corpus.vocab_size)
    training = Training(
        settings,
        run_folder(settings),
        corpus,
        compute,
        model.to(compute.device),
        original_length,
        lengths,
        processes,
    )
    with processes.first_before_others():
        settle(training)
    if processes.highest(training.step) != training.step:
        raise UserError(
            f"the processes see different checkpoints in {training.folder}: it must be on a disk that all share"
        )
    return training


def corpus_of(settings: TrainSettings) -> data.Corpus:
    """The corpus of a run; UserError, before anything is computed, where it cannot be trained or tested on."""
    corpus = data.load(settings.dataset)
    longest = max(settings.block_size, *settings.mixed_lengths, 0)
    data.sequences(
        corpus.train, longest, settings.seed, 0, 1
    )  # refuses a corpus that is too short,
    corpus.token_bytes()  # and a tokenizer that the test would miss
    corpus.verify()
    if len(corpus.val) <= settings.block_size:
        raise UserError(
            f"the validation split of {settings.dataset} has only {len(corpus.val)} tokens; "
            f"lower block_size = {settings.block_size} or add text"
        )
    return corpus


def settle(training: Training) -> None:
    """Take the run folder, go on from its checkpoint if it has one, and bring its files to that step."""
    settings, folder, first = training.settings, training.folder, training.processes.first
    if first:
        training.lock = take_folder(folder, settings)
    print(
        f"{folder}: {training.model.parameter_count:,} parameters; {training.model.pos.describe()}\n"
        f"on {training.compute.reason}{f', {training.processes.size} processes' if training.processes.size > 1 else ''}"
    )
    state = load_state(folder)
    config = read_config(folder) if state or (folder / "config.json").exists() else {}
    if state:
        refuse_other_files(folder, config)
        training.restore(state)
        if (
            finished(training) is None
        ):  # trained to its end, it is still to be tested on its own text
            refuse_other_text(training, config)
        if training.step < settings.max_iters:
            print(f"resuming at step {training.step}")
    if first:
        trim_metrics(folder, training.step)
        write_config(training, config)


def refuse_other_text(training: Training, config: dict[str, Any]) -> None:
    """UserError where the corpus is not the one that a run began with."""
    now = {split: training.corpus.split_sha256(split) for split in ("train", "val")}
    if config["corpus_sha256"] != now:
        raise UserError(
            f"the corpus {training.settings.dataset} has changed since {training.folder} was begun: bring it back, "
            "choose another --out_dir, or --overwrite=True"
        )


def own_file(settings: TrainSettings) -> Path | None:
    """The user's file of position schemes, if one is named."""
    return Path(settings.pos_file).resolve() if settings.pos_file else None


def write_config(training: Training, old: dict[str, Any]) -> None:
    """config.json; where it stands already, a line for each thing that is not as the run began with."""
    settings, path, compute = training.settings, training.folder / "config.json", training.compute
    now = provenance() | {
        "device": compute.reason,
        "dtype": compute.dtype_name,
        "processes": training.processes.size,
    }
    if old:
        note_changes(old, now)
        return
    if settings.pos_file and own_file(settings) != (training.folder / "pos_file.py").resolve():
        shutil.copyfile(settings.pos_file, training.folder / "pos_file.py")
    files = [piece.file for piece in training.model.pos.extensions if getattr(piece, "file", None)]
    for file in files:
        if file.resolve() != (training.folder / file.name).resolve():
            shutil.copyfile(file, training.folder / file.name)
    model, length = training.model, settings.block_size
    write_json(
        path,
        {
            "settings": asdict(settings),
            "vocab_size": model.config.vocab_size,
            "unit": training.corpus.unit,
            "parameters": model.parameter_count,
            "layers": model.pos.describe(),
            "original_length": training.original_length,
            "train_lengths": training.train_lengths,
            "attention": {"train": training_path(training), "test": model.attention_path(length)},
            "extension_files_sha256": {file.name: sha256(file) for file in files},
            "pos_file_sha256": sha256(own_file(settings)) if settings.pos_file else None,
            "corpus_sha256": {
                split: training.corpus.split_sha256(split) for split in ("train", "val")
            },
            "wandb_id": uuid.uuid4().hex,
            **now,
        },
    )


def note_changes(old: dict[str, Any], now: dict[str, Any]) -> None:
    """A line for each thing of config.json that is not as it was when the run began, and that may change its numbers."""
    for name in ("sources_sha256", "threads", "versions", "device", "dtype", "processes"):
        was, new = old.get(name, now[name]), now[name]
        if name == "device":
            was, new = (str(text).partition(" ")[0] for text in (was, new))  # without the reason
        if was != new:
            print(
                f"note: {name} changed since this run began ({changed(was, new)}): it may not end as it would have"
            )


def changed(old: Any, new: Any) -> str:
    """What differs between two values of config.json, in words."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return f"{old} then, {new} now"
    return ", ".join(key for key in {*old, *new} if old.get(key) != new.get(key))


def training_path(training: Training) -> str:
    """The attention path of the compiled training step."""
    compiled = training.settings.compile and not device.missing_compiler()
    return training.model.attention_path(training.settings.block_size, compiled=compiled)


class Quiet:
    """Stands in for a wandb run where nothing is logged there."""

    def log(self, values: dict[str, Any], step: int | None = None) -> None:
        """Nothing."""

    def finish(self) -> None:
        """Nothing."""


def open_log(training: Training) -> Any:
    """A wandb run, which goes on where an earlier one stopped, or its quiet stand-in; UserError where wandb refuses."""
    s = training.settings
    if not (s.wandb_log and training.processes.first):
        return Quiet()
    import wandb

    config = read_config(training.folder)
    try:
        return wandb.init(
            project=s.wandb_project,
            name=s.wandb_run_name or training.folder.name,
            config=config,
            dir=training.folder,
            id=config["wandb_id"],
            resume="allow",
        )
    except wandb.Error as error:
        raise UserError(
            f"wandb_log=True, but Weights & Biases refused ({str(error).splitlines()[0]:.200}): `wandb login`, "
            "or leave wandb_log out"
        ) from error


# ---- running


def fit(training: Training, log: Any) -> None:
    """Train to the last step, logging, validating and saving on the way; raises SystemExit after a signal."""
    s = training.settings
    training.compile()
    training.model.train()
    bar = tqdm(
        total=s.max_iters,
        initial=training.step,
        unit="step",
        disable=not (sys.stderr.isatty() and training.processes.first),
    )
    clock, since = time.perf_counter(), training.step
    while training.step < s.max_iters:
        loss, norm = training.take_step()
        bar.update()
        stopping = training.processes.highest(
            training.stop.signal
        )  # read once: what comes later ends the next step
        validate = training.step == s.max_iters or training.step % s.eval_interval == 0
        note = validate or training.step % s.log_interval == 0 or training.step == 1
        if note or stopping:
            loss = training.processes.sum(loss) / training.processes.size
            line = describe_step(
                training,
                float(loss),
                float(norm),
                training.step - since,
                time.perf_counter() - clock,
            )
            val = (
                training.validation_loss() if validate or stopping else 0.0
            )  # the first to see what this step made
            require_finite(training, val_loss=val)  # of the weights
            if note:
                record(training, log, line | ({"val_loss": val} if validate else {}))
            if (validate or stopping) and training.processes.first:
                save_checkpoint(training.folder, training.state())
            clock, since = time.perf_counter(), training.step
        if stopping:
            bar.close()
            print(
                f"stopped at step {training.step}, saved in {training.folder}; the same command goes on from there"
            )
            raise SystemExit(128 + stopping)
    bar.close()


def record(training: Training, log: Any, line: dict[str, Any]) -> None:
    """Put one line into metrics.jsonl, on the screen and, if asked for, into wandb."""
    if training.processes.first:
        append_metrics(training.folder, line)
        log.log(line, step=training.step)
        show(line, training.settings.max_iters)


def describe_step(
    training: Training, loss: float, norm: float, steps: int, seconds: float
) -> dict[str, Any]:
    """One line of metrics.jsonl; UserError where the loss or gradient is no longer a number."""
    s, kind = training.settings, training.compute.kind
    require_finite(
        training, loss=loss, **({} if training.scaler.is_enabled() else {"gradient norm": norm})
    )
    rate = steps * training.sequences_per_step * s.block_size / seconds
    peak = training.processes.size * (device.peak_flops(training.compute) or 0)
    memory = (
        torch.cuda.max_memory_allocated(training.compute.device)
        if kind == "cuda"
        else peak_memory()
    )
    return {
        "step": training.step,
        "tokens": training.tokens,
        "loss": loss,
        "lr": learning_rate(training.step - 1, s),
        "grad_norm": norm,
        "tokens_per_s": round(rate, 1),
        "memory": memory,
        "mfu": round(rate * flops_per_token(training.model, s.block_size) / peak, 4)
        if peak
        else None,
    }


def require_finite(training: Training, **values: float) -> None:
    """UserError, before anything is saved, where a loss or norm is no longer a number."""
    if not all(map(math.isfinite, values.values())):
        what = ", ".join(f"{name} {value}" for name, value in values.items())
        saved = (training.folder / CURRENT).exists()
        kept = (
            f"the last good checkpoint is in {training.folder}"
            if saved
            else f"nothing was saved yet in {training.folder}"
        )
        raise UserError(
            f"step {training.step}: {what}; {kept}. Lower learning_rate, lengthen warmup_iters, "
            "or try --dtype=float32"
        )


def peak_memory() -> int | None:
    """The most memory this process has held, in bytes; None where the system does not say (Windows)."""
    try:
        import resource
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )


def show(line: dict[str, Any], steps: int) -> None:
    """The step in words, above the progress bar."""
    left = (steps - line["step"]) * line["tokens"] / line["step"] / line["tokens_per_s"]
    val = f", val {line['val_loss']:.4f}" if "val_loss" in line else ""
    mfu = f"{line['mfu']:.1%}" if line["mfu"] is not None else "n/a"
    tqdm.write(
        f"step {line['step']}/{steps}: loss {line['loss']:.4f}{val}, lr {line['lr']:.2e}, norm {line['grad_norm']:.2f}, "
        f"{line['tokens_per_s']:,.0f} tokens/s, MFU {mfu}, {left:.0f} s left"
    )


def test_of(training: Training) -> dict[str, Any]:
    """Test long, write extrapolation.json and .png: the result."""
    s, compute = training.settings, training.compute
    found = evaluate.extrapolation(
        training.model,
        training.corpus,
        pos=scheme_label(asdict(s)),
        train_length=s.block_size,
        original_length=training.original_length,
        tokens_trained=training.tokens,
        seed=s.seed,
        lengths=s.eval_lengths,
        compute=compute,
        processes=training.processes,
    )
    if not training.processes.first:
        return found
    result = update_result(training.folder, found)
    plot_run(training.folder, result)
    return result


def log_test(log: Any, result: dict[str, Any], folder: Path) -> None:
    """The extrapolation table and figure, to wandb."""
    if isinstance(log, Quiet):
        return
    import wandb

    columns = ["protocol", "length", "nats", "stderr_vs_L", "bits_per_byte", "reason"]
    table = wandb.Table(
        columns=columns, data=[[row.get(c) for c in columns] for row in result["rows"]]
    )
    log.log({"extrapolation": table})
    if (folder / "extrapolation.png").exists():  # not drawn where nothing could be measured
        log.log({"extrapolation_figure": wandb.Image(str(folder / "extrapolation.png"))})


def finished(training: Training) -> dict[str, Any] | None:
    """The result of a run that has been trained and tested to its end."""
    path = training.folder / "extrapolation.json"
    if training.step < training.settings.max_iters or not path.exists():
        return None
    result = load_result(training.folder)
    tested = {
        length
        for _, length in rows_on(
            result["rows"], training.settings.dataset, result.get("extend")
        )
    }
    if result["tokens_trained"] != training.tokens:  # a test of an earlier checkpoint
        return None
    wanted = evaluate.tested_lengths(training.settings.block_size, training.settings.eval_lengths)
    return result if tested >= set(wanted) else None


def main() -> int:
    """Train, test, and show the table."""
    settings, words = configure(TrainSettings, sys.argv[1:], USAGE)
    if words:
        raise UserError(
            f"{words[0]!r} is neither a config file (.py) nor --key=value; quote what has spaces, as in "
            "'--pos=rope + alibi'"
        )
    device.keep_freed_memory()
    with together(
        settings.backend, device.pick(settings.device, settings.dtype)
    ) as processes:
        train_and_test(settings, processes)
    return 0


def train_and_test(settings: TrainSettings, processes: Processes) -> None:
    """Begin or resume a run, train it to its end, test it, print its table."""
    with device.memory_advice(
        "lower batch_size (raise gradient_accumulation_steps as much and the result stays the same), "
        "block_size, n_layer or n_embd"
    ):
        training = begin(settings, processes)
        result = finished(training)
        log = open_log(training) if result is None else Quiet()
        if training.step < settings.max_iters:
            fit(training, log)
    if result is None:
        for number in (signal.SIGINT, signal.SIGTERM):  # nothing can be lost any more
            signal.signal(number, lambda n, _: sys.exit(128 + n))
        with device.memory_advice(
            "the model is trained and saved; lower eval_lengths and start again to test it"
        ):
            result = test_of(training)
        log_test(log, result, training.folder)
        log.finish()
    elif (
        processes.first and not (training.folder / "extrapolation.png").exists()
    ):  # killed while it was drawn
        plot_run(training.folder, result)
    print(runs_table([result]))
    print(f"in {training.folder}")


if __name__ == "__main__":
    run(main)
