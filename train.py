"""Train one model on short sequences, then test it on long ones.

    python train.py config/alibi.py                                 # minutes on two cores
    python train.py config/size/gpt2.py config/rope.py --seed=3     # the last file wins
    python train.py config/size/small.py --pos='rope + logn' --dataset=recall --batch_size=64

The same command resumes an unfinished run and prints the table of a finished one.
"""

import math
import os
import signal
import sys
import time
from dataclasses import asdict, replace

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from common import device
from common.errors import UserError, run_program
from common.files import mixed_seed
from common.processes import Processes, init_processes, signals_to
from configurable import GPTConfig, TrainSettings, read_arguments
from data import batches
from data.corpus import Corpus, crossing
from measure.examine import errors_named, examine
from measure.extrapolation import run_tests
from measure.tester import Tester
from model import GPT
from optimizer import configure_optimizers, forget_parameters, get_lr
from run import load
from run.folder import RunFolder, lock_folder, new_config, run_folder
from run.load import Run
from run.log import Log
from scheme import Scheme, canonical_extend, parse
from tables.figures import plot_run
from tables.records import Result, load_result
from tables.tables import run_table

# seconds in which further signals repeat the first: Slurm sends SIGTERM to the job and to its step,
# torchrun passes on a Ctrl-C that the terminal has sent to all
REPEATS_S = 5
CTRL_C_REPEATS_S = 0.2


# ---- from settings to a run


def open_source(s: TrainSettings) -> Run | None:
    """The run, or Hugging Face model, that a fine-tune starts from; None for new weights."""
    if s.init_from in ("auto", "scratch"):  # the second is nanoGPT's word for it
        return None
    return load.open_model(os.path.normpath(s.init_from), s)


def final_settings(typed: dict, source: Run | None) -> TrainSettings:
    """The settings that a run uses, given those that the user typed: expressions in canonical form,
    and its out_dir.

    A fine-tune takes the shape of the model that it starts from, and its corpus, documents, length
    and extension unless they are typed.
    """
    s = TrainSettings(**typed)
    init_from = os.path.normpath(s.init_from) if source else "auto"  # out/RUN for out/RUN/
    s = replace(s, pos=parse(s.pos).text, init_from=init_from)
    if source:
        # the shape of the model cannot change
        inherited = asdict(source.model.config)
        # what is not part of the shape
        for name in ("vocab_size", "dropout", "block_size", "first_length", "extend"):
            del inherited[name]
        for name in typed.keys() & inherited.keys():
            if getattr(s, name) != inherited[name]:
                raise UserError(f"init_from={init_from} has {name}={inherited[name]}: leave it out")
        # these are inherited unless they are typed
        for name in {"dataset", "documents", "block_size", "extend"} - typed.keys():
            inherited[name] = getattr(source.settings, name)
        s = replace(s, **inherited)
    s = replace(s, extend=canonical_extend(s.extend))
    return replace(s, out_dir=str(run_folder(s)))


def set_determinism(kind: str, deterministic: bool) -> None:
    """Refuse what is not repeatable to the bit on a CPU; on a GPU, where asked, warn of it."""
    if kind == "cpu":
        torch.set_deterministic_debug_mode("error")
    elif deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        os.environ.setdefault("TORCHINDUCTOR_DETERMINISTIC", "1")
        torch.use_deterministic_algorithms(True, warn_only=True)
    # deterministic mode would fill all new memory with NaN, which takes time
    torch.utils.deterministic.fill_uninitialized_memory = False


def check_training(s: TrainSettings, pos: Scheme, corpus: Corpus, processes: int) -> None:
    """Raise UserError for what cannot be trained."""
    if s.sequences_per_step % processes:
        raise UserError(
            f"{processes} processes cannot share the {s.sequences_per_step} sequences of a "
            "step evenly; change batch_size or their number"
        )
    count = s.eval_iters * s.batch_size
    _, targets = batches.validation(corpus, s.block_size, count, s.documents)
    if (targets < 0).all():
        raise UserError("no validation sequence has a target: raise block_size or eval_iters")
    pos.check_length(s.block_size)
    pos.draw(s.seed, 0, s.block_size)  # UserError if it cannot draw so many


def start_run(
    s: TrainSettings,
    folder: RunFolder,
    source: Run | None,
    compute: device.Compute,
    processes: Processes,
) -> Run:
    """Prepare the run of these `final_settings` for training; it may be new or resumed.

    UserError for what cannot be trained; then no folder is made.
    """
    with processes.master_first():  # the first may have to make the corpus
        corpus = load.training_corpus(s)
    state = folder.resume()  # a checkpoint; None where training starts from the first step

    # the model: as it was saved, with the weights of another run, or with new ones
    set_determinism(compute.kind, s.deterministic)
    torch.manual_seed(s.seed)
    files_folder = None if folder.is_new else folder.path  # has copies of files that options name
    train_lengths = [s.block_size]  # all lengths that the weights see in training
    weights = None
    if state:
        gpt = GPTConfig(**state["gpt"])
        weights = state["model"]
    elif source:
        gpt = replace(
            source.model.config, block_size=s.block_size, dropout=s.dropout, extend=s.extend
        )
        weights = source.model.state_dict()
        train_lengths = [*source.config["train_lengths"], s.block_size]
        if s.extend == source.settings.extend:  # else the files are those that the user names
            files_folder = source.files
        load.check_tokens(source, corpus)
    else:
        gpt = s.gpt(corpus.vocab_size)
    model = GPT(gpt, s.pos_file, files_folder)
    if weights:
        # an extension of a fine-tune may have parameters that the other run lacks
        model.load_state_dict(weights, strict=bool(state))

    check_training(s, model.pos, corpus, processes.size)
    if s.examine and processes.is_master and folder.is_new:  # once, when the run begins
        is_masked = s.documents == "mask"
        for warning in examine(gpt, model.pos.catalogue.pos_file, files_folder, is_masked):
            print(f"warning: {warning}")
    print(f"{folder.path}: {model.parameter_count:,} parameters; {model.pos.describe()}")
    print(f"on {compute.reason}")
    device.warn_if_busy(compute)

    if folder.is_new:
        folder.config = new_config(s, model, compute, corpus, train_lengths, processes.size)
        if source:
            folder.config["source_sha256"] = source.digest
            folder.config["source_model"] = load.model_digest(source)
    share = crossing(batches.document_edges(corpus, "train"), s.block_size)
    if corpus.is_text and share:
        padding = folder.config.get("padding", 0)  # older runs have none
        what_happens = {
            "cross": "rows run on into the next one; --documents=pad or mask keeps them apart",
            "pad": f"rows end there too; {padding:.1%} of inputs are padding",
            "mask": "attention stops and positions restart",
        }
        print(
            f"documents end in {share:.1%} of windows of L = {s.block_size}: "
            + what_happens[s.documents]
        )
    run = Run(folder.path, s, compute.place(model), compute, folder.config)
    if state:
        run.step = state["step"]
        run.digest = state["digest"]
        run.saved = state
        print(f"resuming at step {run.step}")
    if processes.is_master:
        folder.write(model.pos)
    return run


class SummedLoss(nn.Module):
    """The loss of a batch, as a module that can be compiled and wrapped by DDP."""

    def __init__(self, model: GPT, documents: bool = False) -> None:
        super().__init__()
        self.model = model
        self.documents = documents  # see `GPT.losses`

    def forward(self, idx: Tensor, targets: Tensor) -> Tensor:
        """idx and targets, both (B, T) -> the sum of the losses of all targets, in nats."""
        return self.model.losses(idx, targets, documents=self.documents).sum()


def compile_loss(loss_fn: SummedLoss, s: TrainSettings, kind: str) -> bool:
    """Compile model and loss as one graph, or print why not; returns whether it is compiled."""
    reason = device.missing_compiler()
    if kind == "mps":
        reason = "device=mps"
    if not s.compile:
        reason = "compile=False"
    if reason:
        print(f"not compiled: {reason}")
        return False
    print("compiling model and loss (the first step takes a while)")
    # computing GELU's tanh with exp makes a step on a CPU 14 % faster
    torch._inductor.config.cpp.use_decompose_tanh = True
    loss_fn.compile(fullgraph=True, dynamic=False)
    return True


def to_device(x: np.ndarray, compute: device.Compute) -> Tensor:
    """Copy an array to the device of the run, without waiting for a GPU."""
    tensor = torch.from_numpy(x)
    if compute.kind == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(compute.device, non_blocking=True)


@torch.no_grad()
def estimate_loss(run: Run) -> float:
    """The mean loss over eval_iters batches of validation text: evenly spaced, always the same."""
    s = run.settings
    count = s.eval_iters * s.batch_size
    inputs, targets = batches.validation(run.corpus, s.block_size, count, s.documents)
    x = to_device(inputs, run.compute)  # (sequences, block_size)
    y = to_device(targets, run.compute)  # the same
    sums = []  # of nats, one for each batch
    run.model.eval()
    for idx, wanted in zip(x.split(s.batch_size), y.split(s.batch_size), strict=True):
        with device.autocast(run.compute):
            losses = run.model.losses(idx, wanted, documents=s.documents == "mask")
            sums.append(losses.sum())
    run.model.train()
    # read once: a GPU finishes its work before each reading
    nats = float(torch.stack(sums).cpu().double().sum())
    return nats / np.count_nonzero(targets >= 0)


class StopSignal:
    """The signal, such as Ctrl-C, that asks a training to stop: `number`, 0 before it comes.

    A second Ctrl-C, or another signal seconds later, ends the program at once, which is safe: a
    checkpoint appears whole or not at all.
    """

    def __init__(self, is_master: bool) -> None:
        self.is_master = is_master
        self.number = 0
        self.time = 0.0

    def __call__(self, number: int, frame: object) -> None:
        """Handle a signal."""
        if self.number:
            repeats_s = CTRL_C_REPEATS_S if number == signal.SIGINT else REPEATS_S
            if time.monotonic() - self.time > repeats_s:
                os._exit(128 + number)
            return
        self.number = number
        self.time = time.monotonic()
        if self.is_master:  # print is not safe here
            os.write(2, b"\nstopping after this step; a second Ctrl-C stops at once\n")


def take_step(
    run: Run,
    ddp_loss: nn.Module,
    optimizers: list[torch.optim.Optimizer],
    scaler: torch.amp.GradScaler,
    processes: Processes,
) -> tuple[Tensor, Tensor, int]:
    """Take the step after run.step. Returns its loss, as a number whose mean over the processes is
    that of the step; the norm of its gradient before clipping; and the number of its targets.
    """
    s = run.settings
    # all randomness depends on the seed and the step alone: resuming needs no other state
    torch.manual_seed(mixed_seed(s.seed, run.step, processes.rank))
    run.model.pos.draw(s.seed, run.step, s.block_size)  # for schemes with random positions

    # forward and backward: sequences are numbered in the shuffled order of the corpus; each process
    # takes its share of those of the step, a micro-batch at a time
    share = s.sequences_per_step // processes.size
    first = (run.step * processes.size + processes.rank) * share
    x, y = batches.batch(run.corpus, s.block_size, run.data_seed, first, share, s.documents)
    # the loss is the mean over all targets of the step, and rows differ in how many they have
    n_targets = s.tokens_per_step
    if not run.corpus.is_text or s.documents != "cross":
        n_targets = int(processes.sum(torch.tensor(np.count_nonzero(y >= 0))))
    inputs = to_device(x, run.compute).split(s.batch_size)  # (batch_size, block_size) each
    wanted = to_device(y, run.compute).split(s.batch_size)  # the same
    loss = torch.zeros((), device=run.compute.device)
    for number, (idx, targets) in enumerate(zip(inputs, wanted, strict=True), 1):
        if processes.size > 1:  # average the gradients after the last micro-batch only
            ddp_loss.require_backward_grad_sync = number == len(inputs)
        with device.autocast(run.compute):
            # DDP divides by the number of processes; without any target the gradient is 0
            part = ddp_loss(idx, targets) * (processes.size / max(1, n_targets))
        scaler.scale(part).backward()
        loss += part.detach()

    # clip the gradients and step
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(run.model.parameters(), s.grad_clip or math.inf)
    # where float16 overflowed, no optimizer steps, and update() lowers the scale of the loss
    if not scaler.is_enabled() or norm.isfinite():
        for optimizer in optimizers:
            optimizer.step()
    scaler.update()
    run.model.zero_grad(set_to_none=True)
    return loss, norm, n_targets


def train(run: Run, processes: Processes, log: Log, stop: StopSignal) -> None:
    """Train to the last step; log, validate and save on the way.

    A stop signal saves after the current step and ends the program; the same command resumes from
    there. A test on the way is finished first.
    """
    s = run.settings
    model = run.model
    compute = run.compute

    optimizers = configure_optimizers(model, s, compute.dtype)
    scaler = torch.amp.GradScaler(compute.kind, enabled=compute.dtype == torch.float16)
    if run.saved:
        for optimizer, state in zip(optimizers, run.saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        scaler.load_state_dict(run.saved["scaler"])
        run.saved = None  # frees its memory
    loss_fn = SummedLoss(model, s.documents == "mask")
    compile_loss(loss_fn, s, compute.kind)
    ddp_loss = processes.wrap_ddp(loss_fn)  # in DDP if there are several processes

    # DroPE: from this step on the model has no positions; by default max_iters, so never
    drop_step = s.max_iters - round(s.drop_pos * s.max_iters)

    step = run.step
    model.train()
    disable = None if processes.is_master else True  # None: show the bar only on a terminal
    bar = tqdm(total=s.max_iters, initial=step, disable=disable)
    logged_time = time.perf_counter()  # when the last line was logged, and after which step
    logged_step = step
    while step < s.max_iters:
        if step in s.test_at:  # at the start of the next step: its checkpoint has been saved
            test(run, processes)
            log.add_test()
            model.train()
            logged_time = time.perf_counter()  # the test does not count as training
        if step == drop_step:
            scheme_params = set(model.pos.parameters())
            model.drop_positions()
            # optimizers forget the scheme's parameters, and DDP is made anew without them
            for optimizer in optimizers:
                forget_parameters(optimizer, scheme_params)
            ddp_loss = processes.wrap_ddp(loss_fn)
        lr = get_lr(step, s)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr

        loss, norm, n_targets = take_step(run, ddp_loss, optimizers, scaler, processes)
        step += 1  # from here on: the number of steps taken
        run.step = step
        bar.update()

        # log, validate, save

        # the highest signal that any process received; one that comes later counts in the next step
        stop_signal = processes.highest(stop.number)
        validate = step == s.max_iters or step in s.test_at or step % s.eval_interval == 0
        if not (validate or stop_signal or step == 1 or step % s.log_interval == 0):
            continue
        speed = (step - logged_step) / (time.perf_counter() - logged_time)  # steps per second
        mean_loss = float(processes.sum(loss)) / processes.size
        metrics = {
            "step": step,
            "tokens": run.tokens,
            "lr": lr,
            "grad_norm": float(norm),
            "loss": mean_loss if n_targets else math.nan,
        }
        if not math.isfinite(metrics["loss"] + metrics["grad_norm"]):
            reason = "gradient not finite"
            if scaler.is_enabled():
                reason += ": float16 skips the step"
            metrics["reason"] = reason if n_targets else "no targets in the step"
        if validate:
            # loss belongs to the weights before this step, val_loss to those after it: a step that
            # ruins the model shows up in val_loss first
            metrics["val_loss"] = estimate_loss(run)
        if not math.isfinite(mean_loss + metrics.get("val_loss", 0.0)):
            if processes.is_master:
                log.write({"step": step, "diverged": True})
            raise UserError(
                f"step {step}: loss {mean_loss}, val_loss {metrics.get('val_loss')}; what "
                "was saved before is kept. Lower learning_rate, lengthen warmup_iters, or try "
                "--dtype=float32"
            )
        if processes.is_master:
            line = log.add_step(metrics, speed)
            if validate or stop_signal:
                run.save(optimizers, scaler)
            tqdm.write(line)  # the last, because Ctrl-C also ends the reader in `... | tee FILE`
        if stop_signal:
            resume = "without --overwrite the" if s.overwrite else "the"
            tqdm.write(f"stopped at step {step}, not finished: {resume} same command resumes")
            raise SystemExit(128 + stop_signal)
        logged_time = time.perf_counter()
        logged_step = step
    bar.close()
    if processes.is_master and not run.digest:  # max_iters=0
        run.save(optimizers, scaler)


def test(run: Run, processes: Processes) -> Result:
    """Test the model as it is now, by what was not tested before; returns the content of the run's
    extrapolation.json, in other processes than the first the new records.
    """
    tester = Tester(run.model, run.corpus, run.compute, processes)
    s = run.settings
    about = load.describe_run(run)
    new = run_tests(tester, about, run.folder, s.eval_lengths, s.eval_windows, only_missing=True)
    return load_result(run.folder) if processes.is_master else new


def main() -> None:
    """Train, test, and print the table."""
    if not sys.argv[1:]:
        raise UserError(
            "say what to train: python train.py config/alibi.py takes minutes on two cores, with "
            "config/size/tiny.py after it under one; --help has all settings"
        )
    typed, others = read_arguments(TrainSettings, sys.argv[1:], __doc__)
    if others:
        raise UserError(
            f"{others[0]!r:.60} is neither a config file, such as config/alibi.py, nor "
            "--name=value, such as '--pos=rope + alibi', in quotes if it has spaces"
        )
    device.set_up_cpu()
    source = open_source(TrainSettings(**typed))
    s = final_settings(typed, source)
    folder = RunFolder.open(s, source)
    dtype = folder.kept_dtype(s.dtype)
    compute = device.pick(s.device, dtype, s.batch_size * s.block_size, s.n_embd)
    with init_processes(s.backend, compute) as processes, errors_named(s.pos_file):
        result = folder.finished_result()
        changed = [] if folder.is_new else folder.changed_code()
        if changed:
            names = ", ".join(changed)
            print(f"note: {names} changed since this run began; --overwrite=True trains it anew")
        # the program that a scheduler stopped before this one may still be saving
        waited = False
        if processes.is_master and result is None and folder.path.exists():
            waited = lock_folder(folder.path, s.wait)
        if processes.highest(int(waited)):
            folder = RunFolder.open(s, source)
            result = folder.finished_result()
            dtype = folder.kept_dtype(s.dtype)
            compute = device.pick(s.device, dtype, s.batch_size * s.block_size, s.n_embd)
        if result is None:
            with device.memory_advice(
                "halve batch_size and double gradient_accumulation_steps, which is another run of "
                "the same steps; or lower eval_lengths if training is done"
            ):
                run = start_run(s, folder, source, compute, processes)
                source = None  # frees its memory
                log = Log(run, processes)
                stop = StopSignal(processes.is_master)
                with signals_to(stop):
                    train(run, processes, log, stop)
                # the model is saved: from here on a signal just ends the program
                result = test(run, processes)
            if processes.is_master:
                plot_run(run.folder, result)
            log.add_test()
        print(f"{run_table(result)}\nin {s.out_dir}")


if __name__ == "__main__":
    run_program(main)
