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
import shutil
import signal
import sys
import time
import uuid
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

import evaluate
from configurable import (
    GPTConfig,
    TrainSettings,
    UserError,
    configure,
    mixed_seed,
    run_program,
    sha256,
    write_json,
)
from data import rows
from model import GPT
from runs import device
from runs.checkpoint import (
    FRESH,
    ROOT,
    SHAPE,
    Run,
    checkpoint_paths,
    corpus_digests,
    differences,
    finished_result,
    load_checkpoint,
    lock_folder,
    new_model,
    open_model,
    provenance,
    read_config,
    run_folder,
    save_checkpoint,
    scheme_files,
    train_lengths,
    training_corpus,
)
from runs.examine import errors_named, examine
from runs.figures import plot_run
from runs.huggingface import is_huggingface, load_model
from runs.log import Log
from runs.processes import ALONE, Processes, together
from runs.results import describe_model, run_table, update_result
from scheme import parse

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)  # schedulers send the last one

# ---- from the settings to a run


def final_settings(typed: TrainSettings) -> TrainSettings:
    """The settings of a run, with its out_dir: texts are canonical; a fine-tune has the size of the
    run that it starts with, and its corpus and length unless they are set; a run that goes on keeps
    its warm-up and its number format.
    """
    s = replace(typed, pos=parse(typed.pos).text)
    if s.init_from not in FRESH:
        if is_huggingface(s.init_from):
            source = asdict(load_model(s.init_from).config)
        else:
            source = read_config(s.init_from)["settings"]
        for name in (*SHAPE, "dataset", "block_size", "extend"):
            if name in SHAPE and name in typed.named and getattr(s, name) != source[name]:
                raise UserError(f"init_from={s.init_from} has {name}={source[name]}: leave it out")
            if name in source and name not in typed.named:
                s = replace(s, **{name: source[name]})
    if s.length_factor:
        s = replace(s, block_size=s.length_factor * s.block_size, length_factor=None)
    if s.extend:
        s = replace(s, extend=parse(s.extend).text.replace("none", ""))
    folder = run_folder(s)
    if (folder / "config.json").exists() and not s.overwrite:
        begun = read_config(folder)
        if s.warmup_iters is None:
            s = replace(s, warmup_iters=begun["settings"]["warmup_iters"])
        if s.dtype == "auto":
            s = replace(s, dtype=begun["dtype"])
    return replace(s, out_dir=str(folder), warmup_iters=s.warmup)


def step_share(s: TrainSettings, processes: Processes, length: int) -> tuple[int, int]:
    """How many sequences of a length a process reads in a step, and how many of them at once.

    A step has as many tokens at any length. UserError if they cannot be shared evenly.
    """
    batch = s.batch_size * s.block_size // length
    return processes.share(batch * s.gradient_accumulation_steps, batch)


def start_run(s: TrainSettings, compute: device.Compute, processes: Processes = ALONE) -> Run:
    """Make the run of these `final_settings` ready to be trained: a new one, or one that goes on.

    UserError, and no folder, for what cannot be trained.
    """
    folder = Path(s.out_dir)
    with processes.first_before_others():
        corpus = training_corpus(s)
        if processes.first and folder.exists():
            lock_folder(folder)

    # what the folder holds
    begun, state = None, None
    if not s.overwrite and ((folder / "config.json").exists() or checkpoint_paths(folder)):
        begun = read_config(folder)
        state = load_checkpoint(folder, begun["run_id"])
        differ = differences(folder, begun, s)
        if begun["corpus_sha256"] != corpus_digests(corpus):
            differ.append(f"the corpus {s.dataset} has changed since")
        if state and state["step"] > s.max_iters:
            differ.append(f"it has taken {state['step']} steps, not max_iters = {s.max_iters}")
        if differ:
            raise UserError(
                f"{folder} holds another run ({'; '.join(differ)}): "
                "choose another --out_dir, or --overwrite=True"
            )

    # the model
    if compute.kind == "cpu" or s.deterministic:
        device.repeat_to_the_bit(compute)
    torch.manual_seed(s.seed)
    lengths = list(train_lengths(s))
    if state:
        gpt = GPTConfig(**state["gpt"])
        model = new_model(gpt, s.pos_file, folder, state["model"])
    elif s.init_from in FRESH:
        model = new_model(s.gpt(corpus.vocab_size), s.pos_file, folder)
    else:
        source = open_model(s.init_from, s)
        gpt = replace(source.model.config, dropout=s.dropout, extend=s.extend)
        model = new_model(gpt, s.pos_file, source.folder, source.model.cpu().state_dict())
        lengths = [*source.config["train_lengths"], *lengths]
        print(f"init_from={s.init_from}: its weights, a new optimizer, an order of data of its own")
    if not corpus.fits(model.config.vocab_size):
        raise UserError(f"the model has another vocabulary than {s.dataset}: name its --dataset")
    for length in train_lengths(s):
        step_share(s, processes, length)  # refuses what cannot be shared evenly
        model.draw_ids(s.seed, 0, length)  # refuses what cannot be drawn
    pos_file = Path(s.pos_file).resolve() if s.pos_file else None
    if s.examine and processes.first and not begun:
        for warning in examine(model.config, pos_file, max(train_lengths(s)), folder):
            print(f"warning: {warning}")

    # config.json
    files = scheme_files(model, s.pos_file)
    now = provenance()
    now["device"] = compute.name
    now["dtype"] = compute.dtype_name
    now["processes"] = processes.size
    config = begun or {
        "settings": asdict(s),
        "dtype_asked": s.dtype,
        "files_sha256": {name: sha256(path) for name, path in files.items()},
        "corpus_sha256": corpus_digests(corpus),
        "parameters": model.parameter_count,
        "original_length": model.config.block_size,
        "train_lengths": lengths,
        "run_id": uuid.uuid4().hex,
        **now,
    }
    for name in ("sources_sha256", "threads", "versions", "device", "dtype", "processes"):
        if config[name] != now[name]:
            print(f"note: {name} was {config[name]} when this run began, and is {now[name]} now")
    planned = config["settings"]["max_iters"]
    if planned != s.max_iters:
        if s.drop_pos or s.staged:
            raise UserError(f"{folder}: with drop_pos or staged max_iters stays {planned}")
        print(f"note: {planned} steps were planned; from here on the schedule of {s.max_iters}")
        config["settings"]["max_iters"] = s.max_iters

    # the folder
    print(f"{folder}: {model.parameter_count:,} parameters; {model.pos.describe()}")
    print(f"on {compute.reason}; processes: {processes.size}")
    if processes.first:
        lock_folder(folder)
        if not begun:  # with overwrite=True there may be another run
            for pattern in ("ckpt-*.pt", "metrics.jsonl", "extrapolation.*", "diagnose.*"):
                for path in folder.glob(pattern):
                    path.unlink()
            for name, path in files.items():
                if not (ROOT / name).exists() and path != (folder / name).resolve():
                    shutil.copyfile(path, folder / name)
        write_json(folder / "config.json", config)
    run = Run(folder, s, config, model.to(compute.device), compute)
    if state:
        run.step = state["step"]
        run.checkpoint = state["sha256"]
        run.saved = state
        print(f"resuming at step {run.step}")
    if processes.highest(run.step) != run.step:
        raise UserError(f"{folder} differs between the processes: put it on a disk that all share")
    return run


# ---- training


def get_lr(step: int, s: TrainSettings) -> float:
    """The learning rate of a step, counted from 0.

    It rises linearly over warmup_iters. Then it falls along a cosine to min_lr at lr_decay_iters,
    and stays there; or it is constant; or (wsd) it is constant and falls linearly to min_lr over
    the last fifth of the steps.
    """
    if not s.decay_lr:
        return s.learning_rate
    if step < s.warmup:
        return s.learning_rate * (step + 1) / (s.warmup + 1)
    begin = s.warmup
    if s.lr_schedule == "wsd":
        begin = max(s.warmup, s.decay_begin)
    if s.lr_schedule == "constant" or step < begin:
        return s.learning_rate
    ratio = min(1.0, (step - begin) / max(1, s.decay_end - begin))  # from 0 to 1
    left = 1 - ratio
    if s.lr_schedule == "cosine":
        left = 0.5 * (1 + math.cos(math.pi * ratio))
    return s.lowest_lr + left * (s.learning_rate - s.lowest_lr)


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
        return self.model(idx, targets, loss_only=True)[1]


def compile_loss(loss_fn: MeanLoss, s: TrainSettings, kind: str) -> None:
    """Compile model and loss as one graph, or print why not."""
    reason = device.missing_compiler()
    if kind == "mps" or not s.compile:
        reason = f"device={kind}, compile={s.compile}"
    if reason:
        print(f"not compiled: {reason}")
        return
    print("compiling model and loss (the first step takes a while)")
    torch._inductor.config.cpp.use_decompose_tanh = True  # GELU by exp: 14 % of a step on a CPU
    # a graph for each length, and another one once positions are dropped
    torch._dynamo.config.recompile_limit = max(8, 2 * len(s.mixed_lengths))
    loss_fn.compile(fullgraph=True, dynamic=False)


def to_device(array: np.ndarray, compute: device.Compute) -> Tensor:
    """An array as a tensor on the device of the run; a GPU is not waited for."""
    x = torch.from_numpy(np.ascontiguousarray(array))
    if compute.kind == "cuda":
        x = x.pin_memory()
    return x.to(compute.device, non_blocking=True)


@torch.no_grad()
def estimate_loss(run: Run) -> float:
    """Mean nats of eval_iters batches of validation text, evenly spaced: always the same text."""
    s = run.settings
    x, y = rows.validation(run.corpus, s.block_size, s.eval_iters * s.batch_size)
    nats = 0.0
    run.model.eval()
    for first in range(0, len(x), s.batch_size):
        idx = to_device(x[first : first + s.batch_size], run.compute)
        targets = to_device(y[first : first + s.batch_size], run.compute)
        with device.autocast(run.compute):
            nats += float(run.model.losses(idx, targets).double().sum())
    run.model.train()
    return nats / int((y >= 0).sum())


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

    for number in SIGNALS:
        signal.signal(number, on_signal)

    optimizer = configure_optimizer(model, s)
    scaler = torch.amp.GradScaler(compute.kind, enabled=compute.dtype == torch.float16)
    if run.saved:
        optimizer.load_state_dict(run.saved["optimizer"])
        scaler.load_state_dict(run.saved["scaler"])
        run.saved = None  # frees its memory
    loss_fn = MeanLoss(model)
    if not run.finished:
        compile_loss(loss_fn, s, compute.kind)
    shared_loss = processes.shared(loss_fn)
    lengths = train_lengths(s)
    data_seed = s.seed
    earlier = len(run.config["train_lengths"]) - len(lengths)
    if earlier:  # a fine-tune: an order of data of its own
        data_seed = mixed_seed(s.seed, earlier)
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
            moments = optimizer.state
            optimizer = configure_optimizer(model, s)  # without the parameters of positions
            for p in model.parameters():
                optimizer.state[p] = moments[p]
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
            x, y = rows.batch(run.corpus, length, data_seed, first, at_once)
            idx = to_device(x, compute)
            targets = to_device(y, compute)
            with processes.exchange(shared_loss, first + at_once == begin + share):
                with device.autocast(compute):
                    part = shared_loss(idx, targets) * (at_once / share)
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
        speed = (step - since) / (time.perf_counter() - clock)  # steps per second
        line["loss"] = float(processes.sum(loss)) / processes.size
        val_loss = 0.0
        if due or signalled:  # the loss is that before the step: only this sees a ruined model
            val_loss = estimate_loss(run)
        if due:
            line["val_loss"] = val_loss
        if not math.isfinite(line["loss"] + val_loss):
            wrong = f"loss {line['loss']}, val_loss {val_loss}"
            if processes.first:
                log.write({"step": step, "diverged": wrong})
            raise UserError(
                f"step {step}: {wrong}; the checkpoints before it are kept. "
                "Lower learning_rate, lengthen warmup_iters, or try --dtype=float32"
            )
        if processes.first:
            if logged:
                log.add_step(line, speed)
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
    for number in SIGNALS:  # the test that follows may be cut off: the model is saved
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


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
    pos_file = Path(s.pos_file).resolve() if s.pos_file else None
    with together(s.backend, compute) as processes, errors_named(pos_file):
        result = None if s.overwrite else finished_result(s.out_dir, s)
        if result is None:
            with device.memory_advice("lower batch_size (and raise gradient_accumulation_steps)"):
                run = start_run(s, compute, processes)
                log = Log(run, processes)
                train(run, processes, log)
            with device.memory_advice("the model is saved; lower eval_lengths and start again"):
                trained = {"step": run.step, "tokens": run.tokens, "checkpoint": run.checkpoint}
                about = describe_model(run.model, s, **trained)
                tester = evaluate.Tester(run.model, run.corpus, compute, processes)
                result = evaluate.extrapolation(tester, about, s)
            if processes.first:
                result = update_result(run.folder, result)
                plot_run(run.folder, result)
            log.add_test(result)
        print(f"{run_table(result)}\nin {s.out_dir}")


if __name__ == "__main__":
    run_program(main)
