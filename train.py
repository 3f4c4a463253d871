"""Train one model on short sequences, then test it on long ones.

    python train.py config/alibi.py                                 # minutes on two cores
    python train.py config/size/gpt2.py config/rope.py --seed=3     # the last file wins
    python train.py config/size/small.py --pos='rope + logn' --dataset=recall --batch_size=64
    python train.py config/                                         # lists the config files

The same command resumes an unfinished run and prints the table of a finished one.
"""

if __name__ == "__main__":  # --help answers before torch is imported
    from configurable import TrainSettings, answer_help

    answer_help(TrainSettings, __doc__)

import math
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

import evaluate
from configurable import TrainSettings, configure, mixed_seed, require, run_program
from data import rows
from model import GPT
from runs import device
from runs.checkpoint import checkpoint_paths, load_weights, save_checkpoint
from runs.examine import told
from runs.figures import plot_run
from runs.log import Log, append_metrics
from runs.processes import Processes, together
from runs.results import Result, describe_model, update_result
from runs.start import (
    Start,
    checkpoint_state,
    dtype_of_run,
    first_token,
    start_run,
    step_share,
)
from runs.tables import runs_table

# ---- the learning rate and the optimizer


def learning_rate(step: int, settings: TrainSettings) -> float:
    """The learning rate of a step, counted from 0.

    It rises linearly over warmup_iters. Then it falls along a cosine to min_lr at lr_decay_iters,
    and stays there; or it is constant (wsd: until decay_begin at the earliest, from where it falls
    linearly to min_lr at max_iters).
    """
    highest, warmup = settings.learning_rate, settings.warmup_iters
    if not settings.decay_lr:
        return highest
    if step < warmup:
        return highest * (step + 1) / (warmup + 1)
    lowest = highest / 20 if settings.min_lr is None else settings.min_lr
    end = settings.lr_decay_iters or settings.max_iters
    begins = {"cosine": warmup, "wsd": max(warmup, settings.decay_begin), "constant": math.inf}
    begin = begins[settings.lr_schedule]
    if step < begin:
        return highest
    done = min(1.0, (step - begin) / max(1, end - begin))
    left = 1 - done if settings.lr_schedule == "wsd" else 0.5 * (1 + math.cos(math.pi * done))
    return lowest + left * (highest - lowest)


def optimizer_groups(model: GPT, weight_decay: float) -> list[dict[str, Any]]:
    """The parameters for AdamW: matrices and the token embedding, with weight decay, then the rest.

    The rest are norms, biases and everything of a position scheme.
    """
    decays, rest = [], []
    for name, p in model.named_parameters():
        (decays if p.dim() >= 2 and not name.startswith("pos.") else rest).append(p)
    return [{"params": decays, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]


# ---- a training


class MeanLoss(nn.Sequential):
    """The model in it, asked for the mean loss alone: what is compiled and shared by processes."""

    def forward(self, idx: Tensor, targets: Tensor, ids: Tensor | None) -> Tensor:
        """The mean loss in nats of sequences and their targets, both (B, T); ids (T,) if drawn."""
        return self[0](idx, targets, ids=ids, loss_only=True)[1]


class Training:
    """A model that is being trained: its optimizer, its data, and the number of steps taken."""

    def __init__(self, start: Start) -> None:
        s = self.settings = start.settings
        self.folder, self.corpus, self.model = start.folder, start.corpus, start.model
        self.compute, self.processes, self.start = start.compute, start.processes, start
        self.step, self.checkpoint = 0, ""  # steps taken, SHA-256 of the newest checkpoint
        self.first_token = first_token(s, start.config)
        groups, betas = optimizer_groups(self.model, s.weight_decay), (s.beta1, s.beta2)
        self.optimizer = torch.optim.AdamW(groups, s.learning_rate, betas, fused=True)
        half = self.compute.dtype == torch.float16
        self.scaler = torch.amp.GradScaler(self.compute.kind, enabled=half)
        self.mean_loss = MeanLoss(self.model)
        if start.state:
            self.restore(start.state)
            start.state = None  # which frees its memory
        for p in self.model.parameters() if s.cuda_graphs else ():
            p.grad = torch.zeros_like(p)  # else it is memory of the graph, which runs again
        self.compiled_loss = self.processes.shared(self.mean_loss)

    @property
    def tokens(self) -> int:
        """Tokens trained on so far."""
        s = self.settings
        return self.step * s.gradient_accumulation_steps * s.batch_size * s.block_size

    def compile(self) -> None:
        """Compile model and loss as one graph, or print why not."""
        reason = device.missing_compiler() if self.settings.compile else "compile=False"
        reason = reason or ("mps runs eager" if self.compute.kind == "mps" else "")
        if reason:
            print(f"not compiled: {reason}")
            return
        print("compiling model and loss (the first step takes a while)")
        torch._inductor.config.cpp.use_decompose_tanh = True  # GELU by exp: 14 % of a step on a CPU
        # a graph for each length, and another one once positions are dropped
        torch._dynamo.config.recompile_limit = max(8, 2 * len(self.settings.mixed_lengths))
        mode = "reduce-overhead" if self.settings.cuda_graphs else None
        self.mean_loss.compile(fullgraph=True, dynamic=False, mode=mode)

    def length_of(self, step: int) -> int:
        """The length of a step's sequences: block_size, or one of mixed_lengths."""
        lengths = self.settings.mixed_lengths or (self.settings.block_size,)
        turn = step * len(lengths) // self.settings.max_iters if self.settings.staged else step
        return lengths[turn % len(lengths)]

    def batch(self, first: int, count: int, length: int) -> tuple[Tensor, Tensor]:
        """`count` training sequences from number `first` on: inputs and targets (count, length)."""
        made = rows.batch(self.corpus, length, self.settings.seed, first, count)
        return tuple(self.moved(torch.from_numpy(np.ascontiguousarray(x))) for x in made)

    def moved(self, x: Tensor) -> Tensor:
        """A tensor of the CPU on the device of the run; a GPU is not waited for."""
        x = x.pin_memory() if self.compute.kind == "cuda" else x
        return x.to(self.compute.device, non_blocking=True)

    def take_step(self) -> tuple[Tensor, Tensor]:
        """One optimizer step on the global batch.

        Returns the mean loss of this process's share of it and the norm of the gradient, both still
        on the device.
        """
        s, total = self.settings, torch.zeros((), device=self.compute.device)
        if s.drop_pos and self.step == s.max_iters - round(s.drop_pos * s.max_iters):
            self.model.set_scheme("nope")
            self.compiled_loss = self.processes.shared(self.mean_loss)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.step, s)
        # seeded again in every step: a resumed run needs no random state
        torch.manual_seed(mixed_seed(s.seed, self.step, self.processes.rank))
        length = self.length_of(self.step)
        share, at_once = step_share(s, self.processes, length)
        ids = self.model.draw_ids(s.seed, self.step, length)
        if ids is not None:
            self.model.pos.check_ids(ids)  # compiled code cannot
            ids = self.moved(ids)
        first = (self.step * self.processes.size + self.processes.rank) * share
        first += self.first_token // length
        for number in range(first, first + share, at_once):
            inputs, targets = self.batch(number, at_once, length)
            with self.processes.exchange(self.compiled_loss, number + at_once == first + share):
                with device.autocast(self.compute):
                    loss = self.compiled_loss(inputs, targets, ids) * (at_once / share)
                self.scaler.scale(loss).backward()
            total += loss.detach()
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), s.grad_clip or math.inf)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=not s.cuda_graphs)
        self.step += 1
        return total, norm

    @torch.no_grad()
    def validation_loss(self) -> float:
        """The mean loss in nats of eval_iters batches of validation text, evenly spaced.

        It is the same text every time. Each process reads a part of the batches.
        """
        s, count = self.settings, self.settings.eval_iters * self.settings.batch_size
        inputs, targets = map(torch.from_numpy, rows.validation(self.corpus, s.block_size, count))
        total = torch.zeros((), dtype=torch.float64)
        batches = zip(inputs.split(s.batch_size), targets.split(s.batch_size), strict=True)
        self.model.eval()
        for pair in [*batches][self.processes.rank :: self.processes.size]:
            with device.autocast(self.compute):
                total += self.model.losses(*map(self.moved, pair)).double().sum().cpu()
        self.model.train()
        return float(self.processes.sum(total) / (targets >= 0).sum())

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        how = {"optimizer": self.optimizer.state_dict(), "scaler": self.scaler.state_dict()}
        return checkpoint_state(self.start, self.step, self.tokens, **how)

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint of this run."""
        if state["gpt"]["pos"] != self.model.config.pos:  # drop_pos has dropped it
            self.model.set_scheme(state["gpt"]["pos"])
        load_weights(self.model, state["model"], self.folder)
        if state["optimizer"]:  # not of a run that has not been trained
            self.optimizer.load_state_dict(state["optimizer"])
            self.scaler.load_state_dict(state["scaler"])
        self.step, self.checkpoint = state["step"], state["sha256"]


# ---- what Ctrl-C does


class Stop:
    """Takes SIGINT (Ctrl-C), SIGTERM and SIGUSR1 in a training; `signal` is the first that came.

    After the first one the training finishes its current step, saves, and exits. A second one
    ends the process at once. That needs no clean-up: a checkpoint appears whole or not at all.
    """

    def __init__(self) -> None:
        self.signal = 0

    def take(self, number: int, frame: object) -> None:
        """Handle a signal."""
        if self.signal:
            os._exit(128 + number)
        self.signal = number


def on_signals(handler: Callable[[int, object], None]) -> None:
    """Let SIGINT, SIGTERM and SIGUSR1, which schedulers send, call `handler`."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, handler)


# ---- the loop


def train(training: Training, log: Log, stop: Stop) -> None:
    """Train to the last step; log, validate and save on the way. SystemExit after a signal."""
    s, processes, folder = training.settings, training.processes, training.folder
    if training.step < s.max_iters:
        training.compile()
    training.model.train()
    hidden = not (processes.first and sys.stderr.isatty())
    bar = tqdm(total=s.max_iters, initial=training.step, unit="step", disable=hidden)
    clock, since = time.perf_counter(), training.step
    while training.step < s.max_iters:
        loss, norm = training.take_step()
        bar.update()
        number = processes.highest(stop.signal)  # read once: a later signal ends the next step
        step, stable = training.step, s.lr_schedule == "wsd" and training.step == s.decay_begin
        due = step == s.max_iters or step % s.eval_interval == 0 or stable
        logged = due or step == 1 or step % s.log_interval == 0
        if not logged and not number:
            continue
        loss = float(processes.sum(loss) / processes.size)
        speed = (step - since) / (time.perf_counter() - clock)
        line = {"step": step, "tokens": training.tokens, "loss": loss}
        line |= {"lr": learning_rate(step - 1, s), "grad_norm": float(norm)}
        # the loss of a step is that before it: validation is the first to see a ruined model
        val = {"val_loss": training.validation_loss()} if due or number else {}
        require_finite(training, line | val)
        if logged and processes.first:
            log.add_step(line | val if due else line, speed)
        if (due or number) and processes.first:
            kind = "stable" if stable else "ckpt"
            training.checkpoint = save_checkpoint(folder, training.state(), kind)
        if number:
            saved = f"stopped at step {step}, saved in {folder}"
            tqdm.write(f"{saved}; the same command goes on from there")
            raise SystemExit(128 + number)
        clock, since = time.perf_counter(), step
    if not s.max_iters and not training.checkpoint and processes.first:
        training.checkpoint = save_checkpoint(folder, training.state())


def require_finite(training: Training, line: dict[str, float]) -> None:
    """UserError, before anything is saved, if a number in a line of the log is not finite.

    metrics.jsonl gets a line that says so.
    """
    wrong = [f"{name} {value}" for name, value in line.items() if not math.isfinite(value)]
    if training.scaler.is_enabled():  # which leaves out a step whose gradient is not finite
        wrong = [text for text in wrong if not text.startswith("grad_norm")]
    if wrong and training.processes.first:
        append_metrics(training.folder, {"step": training.step, "diverged": ", ".join(wrong)})
    good = "the last good" if checkpoint_paths(training.folder) else "no"
    saved = f"{good} checkpoint is in {training.folder}"
    advice = "Lower learning_rate, lengthen warmup_iters, or try --dtype=float32"
    require(not wrong, f"step {training.step}: {', '.join(wrong)}; {saved}. {advice}")


# ---- from the settings to the table


def test_long(training: Training) -> Result:
    """Test the model on long texts; write extrapolation.json and its figure."""
    s, processes = training.settings, training.processes
    trained = {"tokens": training.tokens, "checkpoint": training.checkpoint}
    about = describe_model(training.model, s, step=training.step, **trained)
    tester = evaluate.Tester(training.model, training.corpus, training.compute, processes)
    result = evaluate.extrapolation(tester, about, s)
    if processes.first:
        result = update_result(training.folder, result)
        plot_run(training.folder, result)
    return result


def train_and_test(training: Training) -> Result:
    """Train a run to its end and test it; its result."""
    log, stop = Log(training.start), Stop()
    on_signals(stop.take)
    train(training, log, stop)

    def leave(number: int, frame: object) -> None:
        saved = f"stopped in the test: the model is saved in {training.folder}"
        print(f"{saved}, and no row of this test")
        sys.exit(128 + number)

    on_signals(leave)
    with device.memory_advice("the model is saved; lower eval_lengths and start again to test it"):
        result = test_long(training)
    log.add_test(result)
    return result


def complete_run(settings: TrainSettings, compute: device.Compute, processes: Processes) -> None:
    """Begin or resume a run, do what is left to do, and print its table."""
    with device.memory_advice("lower batch_size (and raise gradient_accumulation_steps) or n_embd"):
        start = start_run(settings, compute, processes)
        result = start.result or train_and_test(Training(start))
    if start.result and processes.first and not (start.folder / "extrapolation.png").exists():
        plot_run(start.folder, result)  # the program was killed while it was drawn
    print(f"{runs_table([result])}\nin {start.folder}")


def main() -> int:
    """Train, test, and print the table."""
    settings, words = configure(TrainSettings, sys.argv[1:], __doc__)
    problem = f"{' '.join(words)!r:.60} is neither a config file (.py) nor --name=value"
    require(not words, f"{problem}; quote what has spaces, as in '--pos=rope + alibi'")
    device.set_up_cpu()
    dtype = dtype_of_run(settings) or settings.dtype
    tokens = settings.batch_size * settings.block_size
    compute = device.pick(settings.device, dtype, tokens, settings.n_embd)
    with together(settings.backend, compute) as processes, told(settings.pos_file):
        complete_run(settings, compute, processes)
    return 0


if __name__ == "__main__":
    run_program(main)
