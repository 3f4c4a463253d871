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

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

import evaluate
from configurable import TrainSettings, UserError, configure, mixed_seed, run_program
from data import rows
from model import GPT
from runs import device
from runs.checkpoint import (
    Run,
    final_settings,
    finished_result,
    save_checkpoint,
    start_run,
    step_share,
    train_lengths,
)
from runs.figures import plot_run
from runs.log import Log
from runs.processes import Processes, together
from runs.results import describe_model, run_table, update_result


def get_lr(step: int, s: TrainSettings) -> float:
    """The learning rate of a step, counted from 0.

    It rises linearly over warmup_iters. Then it falls along a cosine to min_lr at lr_decay_iters,
    and stays there; or it is constant; or (wsd) it is constant and falls linearly to min_lr over
    the last decay_share of max_iters.
    """
    min_lr = s.learning_rate / 20 if s.min_lr is None else s.min_lr
    # 1) constant from the first step on
    if not s.decay_lr:
        return s.learning_rate
    # 2) linear warm-up
    if step < s.warmup:
        return s.learning_rate * (step + 1) / (s.warmup + 1)
    # 3) the decay
    if s.lr_schedule == "cosine":
        end = s.lr_decay_iters or s.max_iters
        ratio = min(1.0, (step - s.warmup) / max(1, end - s.warmup))
        return min_lr + 0.5 * (1 + math.cos(math.pi * ratio)) * (s.learning_rate - min_lr)
    begin = s.max_iters - round(s.decay_share * s.max_iters)
    if s.lr_schedule == "wsd" and step >= begin:
        ratio = (step - begin) / max(1, s.max_iters - begin)
        return s.learning_rate + ratio * (min_lr - s.learning_rate)
    return s.learning_rate


def configure_optimizer(model: GPT, s: TrainSettings) -> torch.optim.Optimizer:
    """AdamW, with weight decay of matrices and the token embedding.

    Norms, biases and everything of a position scheme are not decayed.
    """
    decay, no_decay = [], []
    for name, p in model.named_parameters():
        if p.dim() >= 2 and not name.startswith("pos."):
            decay.append(p)
        else:
            no_decay.append(p)
    groups = [
        {"params": decay, "weight_decay": s.weight_decay},
        {"params": no_decay, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, s.learning_rate, (s.beta1, s.beta2), fused=True)


class MeanLoss(nn.Module):
    """The loss of a batch as one module: what is compiled, and shared by several processes."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model = model

    def forward(self, idx: Tensor, targets: Tensor) -> Tensor:
        """Mean nats of sequences and their targets, both (B, T)."""
        return self.model(idx, targets)[1]


def compile_loss(loss_fn: MeanLoss, run: Run) -> None:
    """Compile model and loss as one graph, or print why not."""
    missing = device.missing_compiler()
    if not run.settings.compile:
        print("not compiled: compile=False")
    elif missing or run.compute.kind == "mps":
        print(f"not compiled: {missing or 'mps runs eager'}")
    else:
        print("compiling model and loss (the first step takes a while)")
        torch._inductor.config.cpp.use_decompose_tanh = True  # GELU by exp: 14 % of a step on a CPU
        # a graph for each length, and another one once positions are dropped
        torch._dynamo.config.recompile_limit = max(8, 2 * len(run.settings.mixed_lengths))
        loss_fn.compile(fullgraph=True, dynamic=False)


def to_device(arrays: tuple[np.ndarray, ...], compute: device.Compute) -> list[Tensor]:
    """Arrays as tensors on the device of the run; a GPU is not waited for."""
    tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
    if compute.kind == "cuda":
        tensors = [x.pin_memory() for x in tensors]
    return [x.to(compute.device, non_blocking=True) for x in tensors]


@torch.no_grad()
def estimate_loss(run: Run, processes: Processes) -> float:
    """Mean nats of eval_iters batches of validation text, evenly spaced: always the same text.

    Each process reads a part of the batches.
    """
    s = run.settings
    x, y = rows.validation(run.corpus, s.block_size, s.eval_iters * s.batch_size)
    total = torch.zeros((), dtype=torch.float64)
    run.model.eval()
    for first in range(0, len(x), s.batch_size)[processes.rank :: processes.size]:
        batch = slice(first, first + s.batch_size)
        with device.autocast(run.compute):
            losses = run.model.losses(*to_device((x[batch], y[batch]), run.compute))
        total += losses.double().sum().cpu()
    run.model.train()
    return float(processes.sum(total)) / int((y >= 0).sum())


def train(run: Run, processes: Processes, log: Log) -> None:
    """Train to the last step; log, validate and save on the way.

    The first SIGINT (Ctrl-C), SIGTERM or SIGUSR1 saves after the current step and ends the program;
    the same command goes on from there. A second one ends it at once, which harms nothing: a
    checkpoint appears whole or not at all.
    """
    s, model, compute = run.settings, run.model, run.compute
    stop = 0  # the number of the signal that came

    def on_signal(number: int, frame: object) -> None:
        nonlocal stop
        if stop:
            os._exit(128 + number)
        stop = number

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, on_signal)

    optimizer = configure_optimizer(model, s)
    scaler = torch.amp.GradScaler(compute.kind, enabled=compute.dtype == torch.float16)
    if run.saved:
        optimizer.load_state_dict(run.saved["optimizer"])
        scaler.load_state_dict(run.saved["scaler"])
        run.saved = None  # frees its memory
    loss_fn = MeanLoss(model)
    if not run.finished:
        compile_loss(loss_fn, run)
    shared_loss = processes.shared(loss_fn)
    lengths = train_lengths(s)
    drop_step = s.max_iters - round(s.drop_pos * s.max_iters) if s.drop_pos else None

    model.train()
    hidden = not (processes.first and sys.stderr.isatty())
    bar = tqdm(total=s.max_iters, initial=run.step, unit="step", disable=hidden)
    clock = time.perf_counter()
    since = run.step
    while not run.finished:
        step = run.step
        if step == drop_step:  # DroPE: the last steps without positions
            model.set_scheme("nope")
            shared_loss = processes.shared(loss_fn)
        lr = get_lr(step, s)
        for group in optimizer.param_groups:
            group["lr"] = lr

        # everything random follows from the seed and the step: a resumed run needs no other state
        torch.manual_seed(mixed_seed(s.seed, step, processes.rank))
        turn = step * len(lengths) // s.max_iters if s.staged else step
        length = lengths[turn % len(lengths)]
        model.draw_ids(s.seed, step, length)  # of the schemes that draw positions

        # forward and backward, in micro-batches of `at_once` of this process's sequences
        share, at_once = step_share(s, processes, length)
        begin = (step * processes.size + processes.rank) * share
        loss = torch.zeros((), device=compute.device)
        for first in range(begin, begin + share, at_once):
            batch = rows.batch(run.corpus, length, run.config["data_seed"], first, at_once)
            x, y = to_device(batch, compute)
            with processes.exchange(shared_loss, first + at_once == begin + share):
                with device.autocast(compute):
                    part = shared_loss(x, y) * (at_once / share)
                scaler.scale(part).backward()
            loss += part.detach()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), s.grad_clip or math.inf)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        run.step = step = step + 1
        bar.update()

        # log, validate, save
        signalled = processes.highest(stop)  # read once: a later signal ends the next step
        due = step == s.max_iters or step % s.eval_interval == 0
        logged = due or step == 1 or step % s.log_interval == 0
        if not logged and not signalled:
            continue
        line = {"step": step, "tokens": run.tokens, "lr": lr, "grad_norm": float(norm)}
        line["loss"] = float(processes.sum(loss)) / processes.size
        if due or signalled:  # the loss is that before the step: only this sees a ruined model
            line["val_loss"] = estimate_loss(run, processes)
        refuse_not_finite(line, scaler, log, processes)
        if processes.first:
            if logged:
                log.add_step(line, (step - since) / (time.perf_counter() - clock))
            if due or signalled:
                save_checkpoint(run, optimizer.state_dict(), scaler.state_dict())
        if signalled:
            tqdm.write(f"stopped at step {step}, saved in {run.folder}: not finished")
            tqdm.write("the same command goes on from there")
            raise SystemExit(128 + signalled)
        clock = time.perf_counter()
        since = step
    bar.close()
    if not run.checkpoint and processes.first:  # max_iters=0
        save_checkpoint(run, optimizer.state_dict(), scaler.state_dict())


def refuse_not_finite(line: dict, scaler: torch.amp.GradScaler, log: Log, processes: Processes):
    """UserError, before anything is saved, if a number of a step is not finite."""
    for name in ("loss", "grad_norm", "val_loss"):
        skipped = name == "grad_norm" and scaler.is_enabled()  # float16 leaves out such a step
        if not math.isfinite(line.get(name, 0.0)) and not skipped:
            if processes.first:
                log.add_diverged(line["step"], f"{name} {line[name]}")
            raise UserError(
                f"step {line['step']}: {name} is {line[name]}; the checkpoints before it are kept. "
                "Lower learning_rate, lengthen warmup_iters, or try --dtype=float32"
            )


def test_long(run: Run, processes: Processes) -> dict:
    """Test the model on long texts; write extrapolation.json and its figure, and return it."""

    def on_signal(number: int, frame: object) -> None:
        print(f"stopped in the test: the model is saved in {run.folder}, and no row of this test")
        sys.exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, on_signal)
    trained = {"step": run.step, "tokens": run.tokens, "checkpoint": run.checkpoint}
    about = describe_model(run.model, run.settings, **trained)
    tester = evaluate.Tester(run.model, run.corpus, run.compute, processes)
    result = evaluate.extrapolation(tester, about, run.settings)
    if processes.first:
        result = update_result(run.folder, result)
        plot_run(run.folder, result)
    return result


def main() -> None:
    """Train, test, and print the table."""
    settings, words = configure(TrainSettings, sys.argv[1:], __doc__)
    if words:
        raise UserError(
            f"{' '.join(words)!r:.60} is neither a config file (.py) nor --name=value; "
            "quote what has spaces, as in '--pos=rope + alibi'"
        )
    s = final_settings(settings)
    device.set_up_cpu()
    compute = device.pick(s.device, s.dtype, s.batch_size * s.block_size, s.n_embd)
    with together(s.backend, compute) as processes:
        result = None if s.overwrite else finished_result(s.out_dir, s)
        if result is None:
            with device.memory_advice("lower batch_size (and raise gradient_accumulation_steps)"):
                run = start_run(s, compute, processes)
                log = Log(run, processes)
                train(run, processes, log)
            with device.memory_advice("the model is saved; lower eval_lengths and start again"):
                result = test_long(run, processes)
            log.add_test(result)
        print(f"{run_table(result)}\nin {s.out_dir}")


if __name__ == "__main__":
    run_program(main)
