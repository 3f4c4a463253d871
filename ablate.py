"""Compare position schemes: train each with every seed, then make one table and one figure.

    python ablate.py SCHEME [SCHEME ...] [--seeds=1,2,3] [config/FILE.py ...] [--name=value ...]

    python ablate.py nope rope alibi                           3 schemes x 3 seeds
    python ablate.py rope 'rope + alibi' config/size/tiny.py   any settings but pos and seed
    python ablate.py rope 'rope --qk_norm=True'                settings of one scheme alone
    python ablate.py rope alibi --learning_rates=1e-3,3e-3,6e-3    the best of them for each scheme
    python ablate.py rope alibi --jobs=4                           four cells at once
    python ablate.py rope alibi --only=1/3                         the first third of the cells

Each cell of the comparison is a run of train.py in its own run folder; what it prints is in
train.log there. All schemes of a seed are trained on the same tokens in the same order. The same
command goes on after an interruption, and trains only what is not yet trained.

A learning rate is picked on a seed that is not compared, with half the steps, by the loss at L on
validation windows that share no target with the test, or on training rows that it has not read.
"""

if __name__ == "__main__":  # --help answers before torch is imported
    from configurable import AblateSettings, answer_help

    answer_help(AblateSettings, __doc__)

import hashlib
import math
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

import evaluate
from configurable import (
    AblateSettings,
    TrainSettings,
    UserError,
    configure,
    replace_file,
    run_program,
    values,
    words,
    write_json,
)
from posenc import Shape
from runs import device, results
from runs.checkpoint import (
    differences,
    finished_result,
    load_run,
    provenance,
    read_config,
    run_folder,
    training_corpus,
)
from runs.examine import examine
from runs.figures import plot_rows
from runs.log import diverged, log_comparison
from scheme import Scheme

TRAIN = Path(__file__).resolve().with_name("train.py")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)  # schedulers send the last one
NEAR = 0.01  # nats by which another learning rate must be better than the usual one


@dataclass(frozen=True)
class Cell:
    """One run of the comparison, and what tables call its scheme."""

    label: str
    settings: TrainSettings
    is_picked: bool = True  # False: its learning rate is still to be picked

    @property
    def name(self) -> str:
        """Scheme and seed."""
        return f"{self.label}, seed {self.settings.seed}"

    @property
    def folder(self) -> Path:
        """The run folder that train.py gives it."""
        return run_folder(self.settings)

    def is_finished(self) -> bool:
        """Whether it is trained and tested to its end."""
        return self.is_picked and finished_result(self.folder, self.settings) is not None


# ---- what is to be trained


def plan(schemes: list[str], settings: AblateSettings) -> list[Cell]:
    """All cells, those of the first seed first.

    UserError, before anything is trained, for a scheme that cannot be built, a length that the
    corpus does not have, a scheme that is named twice, or a folder with another run in it.
    """
    if not schemes:
        raise UserError("name the position schemes, as in: python ablate.py nope rope alibi")
    shared = TrainSettings(**{f.name: getattr(settings, f.name) for f in fields(TrainSettings)})
    fixed = {"dataset", "eval_lengths", "pos", "seed", "init_from"}  # the same in all cells
    if settings.learning_rates:
        fixed.add("learning_rate")
    models: dict[str, TrainSettings] = {}
    for text in schemes:
        # 'rope --qk_norm=True' is a scheme with a setting of its own
        pos, *own = re.split(r"\s+(?=--)", text.strip())
        one, _ = configure(TrainSettings, [*words(shared), *own], "")
        changed = {word[2:].partition("=")[0] for word in own}
        for name in changed & fixed | changed - values(shared, "result").keys():
            raise UserError(f"{text}: a scheme of a comparison has no {name} of its own")
        gpt = one.gpt(vocab_size=1)
        shape = Shape(gpt.n_head, gpt.scheme_width, gpt.n_embd, gpt.block_size)
        pos_file = Path(one.pos_file) if one.pos_file else None
        one = replace(one, pos=Scheme(pos, shape, gpt.n_layer, pos_file).text)
        label = " ".join([one.pos, *own])
        if label in models or run_folder(one) in map(run_folder, models.values()):
            raise UserError(f"{label} would be trained twice: name each scheme once")
        check_lengths(one)
        models[label] = one
    return [
        Cell(label, replace(one, seed=seed))
        for seed in settings.seeds
        for label, one in models.items()
    ]


def check_lengths(settings: TrainSettings) -> None:
    """Raise UserError if the corpus is too short to train at or to test at one of the lengths."""
    corpus = training_corpus(settings)
    if "rows" in corpus.meta:
        return
    places = evaluate.find_places(corpus, settings.eval_windows)
    for length in (settings.block_size, *settings.eval_lengths):
        reason = evaluate.why_nowhere(corpus, places, "fixed_targets", length)
        if reason:
            raise UserError(f"the length {length}: {reason}")


def examine_cells(cells: list[Cell]) -> None:
    """Examine the scheme of every cell; print warnings. UserError if one is wrong, or if a folder
    holds another run.
    """
    examined = set()
    for cell in cells:
        s = cell.settings
        if (cell.folder / "config.json").exists() and not s.overwrite:
            for difference in differences(cell.folder, read_config(cell.folder), s):
                raise UserError(
                    f"{cell.folder} holds another run than {cell.name} ({difference}): "
                    "--overwrite=True trains it anew"
                )
        if s.examine and cell.label not in examined:
            examined.add(cell.label)
            vocab_size = training_corpus(s).vocab_size
            length = max((s.block_size, *s.mixed_lengths))
            pos_file = Path(s.pos_file) if s.pos_file else None
            for warning in examine(s.gpt(vocab_size), pos_file, length, cell.folder):
                print(f"warning: {cell.label}: {warning}")


# ---- training


def train_cells(cells: list[Cell], jobs: int, overwrite: bool, what: str = "") -> dict[str, str]:
    """Train and test the cells that are not finished (all, if `overwrite`), `jobs` at once; print a
    line for each. Returns {name of a cell: why it failed}.

    SIGINT (Ctrl-C), SIGTERM and SIGUSR1 go to the cells that run; they save and end, and this
    raises SystemExit.
    """
    waiting = [cell for cell in cells if overwrite or not cell.is_finished()]
    failures: dict[str, str] = {}
    children: list[subprocess.Popen] = []
    caught: list[int] = []

    def pass_on(number: int, frame: object) -> None:
        caught.append(number)
        for child in children:
            child.send_signal(number)  # nothing, if it has ended

    environment = dict(os.environ)
    if jobs > 1:  # each has its share of the processors
        threads = max(1, torch.get_num_threads() // jobs)
        environment.setdefault("OMP_NUM_THREADS", str(threads))

    def train(cell: Cell) -> None:
        if caught:
            return
        started, last = time.monotonic(), ""
        cell.folder.mkdir(parents=True, exist_ok=True)
        # A process group of its own: Ctrl-C reaches it only from here. The output comes through a
        # pipe: if this process is killed, the next line that it prints ends the child.
        child = subprocess.Popen(
            [sys.executable, "-u", str(TRAIN), *words(cell.settings)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            process_group=0,
            env=environment,
        )
        children.append(child)
        if caught:  # it came while the child was being started
            child.send_signal(caught[0])
        with (cell.folder / "train.log").open("a", encoding="utf-8") as log:
            for line in child.stdout:
                print(line, end="", file=log, flush=True)
                last = line.strip() or last
                bar.set_postfix_str(last[:60])
        code = child.wait()
        bar.update()
        if caught:
            return
        if code or not cell.is_finished():
            failures[cell.name] = f"{last or f'exit code {code}'} (see {cell.folder}/train.log)"
            line = f"failed: {failures[cell.name]}"
        else:
            measured = results.summary(results.select(results.load_rows([cell.folder])))
            line = ", ".join(f"{name} {value:.4f}" for name, value in measured.items())
        seconds = time.monotonic() - started
        place = f"[{cells.index(cell) + 1}/{len(cells)}]"
        tqdm.write(f"{what}{place} {cell.name}: {line} ({seconds:.0f} s)")

    handlers = {number: signal.signal(number, pass_on) for number in SIGNALS}
    # the bar is shown on a terminal only
    bar = tqdm(total=len(cells), initial=len(cells) - len(waiting), unit="cell", disable=None)
    try:
        with bar, ThreadPoolExecutor(jobs) as pool:
            list(pool.map(train, waiting))
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if caught:
        again = " without --overwrite" if overwrite else ""
        print(f"stopped; the same command{again} goes on from there")
        raise SystemExit(128 + caught[0])
    return failures


# ---- learning rates


def pick_rate(
    cell: Cell, settings: AblateSettings, train: bool
) -> tuple[float | None, list[dict[str, Any]]]:
    """The learning rate for the scheme of a cell, None if a trial is not finished, and what was
    tried. Trials are trained only if `train` is set.

    It is that of the lowest loss, or the usual one if that is within NEAR. If the best is at an
    edge of those tried, the next one, as far off as its neighbour (as a ratio), is tried too.
    """
    usual = settings.learning_rate
    rates = sorted({usual, *settings.learning_rates})
    losses: dict[float, float] = {}
    for beyond in (False, True):
        trials = {rate: trial(cell, rate, settings) for rate in rates}
        if train:
            left = [r for r in trials.values() if settings.overwrite or not diverged(r.folder)]
            train_cells(left, settings.jobs, settings.overwrite, "trial ")
        for rate, run in trials.items():
            loss = tuning_loss(run)
            if loss is None:
                return None, []
            losses[rate] = loss
        tried = sorted(losses)
        best = min(tried, key=losses.get)
        if losses[usual] - losses[best] <= NEAR:
            best = usual
        if beyond or len(tried) == 1 or best not in (tried[0], tried[-1]):
            break
        neighbour = tried[1] if best == tried[0] else tried[-2]
        rates = [float(f"{best**2 / neighbour:.3g}")]
        if rates[0] < (settings.min_lr or 0):
            break
    lines = [
        {"learning_rate": rate, "nats": losses[rate] if math.isfinite(losses[rate]) else None}
        for rate in tried
    ]
    return best, lines


def with_rate(cell: Cell, rate: float | None) -> Cell:
    """The cell with the rate that was picked for its scheme."""
    if rate is None:
        return replace(cell, is_picked=False)
    return Cell(f"{cell.label} lr={rate}", replace(cell.settings, learning_rate=rate))


def trial(cell: Cell, rate: float, settings: AblateSettings) -> Cell:
    """The run that tries a rate for a scheme: half the steps, and a seed that is not compared."""
    s = cell.settings
    half = replace(
        s,
        max_iters=max(1, s.max_iters // 2),
        warmup_iters=s.warmup // 2,
        lr_decay_iters=s.lr_decay_iters and max(1, s.lr_decay_iters // 2),
        seed=next(seed for seed in range(10**6) if seed not in settings.seeds),
        eval_lengths=(s.block_size,),
    )
    folder = Path("out/rates", f"{run_folder(half).name}-lr={rate}-steps={half.max_iters}")
    run = replace(half, learning_rate=rate, out_dir=str(folder))
    return Cell(f"{cell.label} lr={rate}", run)


def tuning_loss(run: Cell) -> float | None:
    """The loss that a rate is picked by: inf if the run diverged, None if it is not finished."""
    if diverged(run.folder):
        return math.inf
    if not run.is_finished():
        return None
    s = run.settings
    trained = load_run(run.folder, s.device, s.dtype, s.pos_file)
    tester = evaluate.Tester(trained.model, trained.corpus, trained.compute)
    if "rows" in trained.corpus.meta:
        read = s.max_iters * s.batch_size * s.gradient_accumulation_steps
        return evaluate.unread_loss(tester, s.seed, read)
    return evaluate.tuning_loss(tester, s.block_size, s.eval_windows)


# ---- the comparison


def main() -> int:
    """Train what is not yet trained, and compare."""
    settings, typed = configure(AblateSettings, sys.argv[1:], __doc__)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("torchrun is for train.py: share the cells out with --only=I/N")
    device.set_up_cpu()
    cells = plan([*settings.schemes, *typed], settings)
    examine_cells(cells)
    n_schemes = len(cells) // len(settings.seeds)

    folder = Path(settings.ablate_dir)
    if not settings.ablate_dir:
        lines = [" ".join(words(cell.settings, ("result", "test"))) for cell in cells]
        lines += map(str, settings.learning_rates)
        digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:6]
        folder = Path("out", f"ablate-{settings.dataset}-L{settings.block_size}-{digest}")

    # one number format for all cells: that of those that have begun, or the faster one here
    dtype = settings.dtype
    begun = [cell.folder for cell in cells if (cell.folder / "config.json").exists()]
    if dtype == "auto" and begun and not settings.overwrite:
        dtype = read_config(begun[0])["dtype"]
    tokens = settings.batch_size * settings.block_size
    compute = device.pick(settings.device, dtype, tokens, settings.n_embd)
    print(f"on {compute.reason}")
    group = settings.wandb_group or folder.name
    cells = [
        Cell(
            c.label, replace(c.settings, dtype=compute.dtype_name, wandb_group=group, examine=False)
        )
        for c in cells
    ]

    # all cells of a scheme are in one share if its learning rate is to be picked
    part, parts = settings.share
    cycle = n_schemes if settings.learning_rates else len(cells)
    mine = [k % cycle % parts == part - 1 for k in range(len(cells))]
    rates = {}
    if settings.learning_rates:
        for cell, is_mine in zip(cells[:n_schemes], mine, strict=False):
            rate, tried = pick_rate(cell, settings, train=is_mine)
            rates[cell.label] = {"picked": rate, "tried": tried}
            print(f"{cell.label}: learning rate {rate or 'not picked yet'}")
        cells = [with_rate(cell, rates[cell.label]["picked"]) for cell in cells]

    share = [c for c, is_mine in zip(cells, mine, strict=True) if is_mine and c.is_picked]
    finished = sum(cell.is_finished() for cell in share)
    print(f"{len(share)} cells, {finished} of them finished; the comparison goes to {folder}")
    failures = train_cells(share, settings.jobs, settings.overwrite)
    missing = [cell for cell in cells if not cell.is_finished()]
    if settings.only and missing:
        print("not compared yet, not finished:", "; ".join(cell.name for cell in missing))
    elif len(missing) < len(cells):
        compare(cells, failures, rates, folder, settings)
    return 1 if failures else 0


def compare(
    cells: list[Cell], failures: dict[str, str], rates: dict, folder: Path, settings: AblateSettings
) -> None:
    """Print the table; write it, the figure, all measured rows and where they come from."""
    folder.mkdir(parents=True, exist_ok=True)
    finished = [cell for cell in cells if cell.is_finished()]
    labels = {str(cell.folder): cell.label for cell in finished}
    frame = results.load_rows(list(labels), labels)
    results.save_rows(frame, folder / "rows.csv.xz")
    write_json(folder / "about.json", provenance() | {"rates": rates, "runs": labels})
    selected = results.select(frame)
    table = results.tables(selected)
    for cell in cells:
        if cell not in finished:
            table += f"\n{cell.label}, seed {cell.settings.seed}: no result: "
            table += failures.get(cell.name, "not trained")
    replace_file(folder / "table.txt", lambda file: file.write(f"{table}\n".encode()))
    plot_rows(selected, folder / "figure.png")
    print(f"\n{table}\n\nin {folder}: table.txt, figure.png, rows.csv.xz, about.json")
    log_comparison(settings, selected, folder / "figure.png", "comparison")


if __name__ == "__main__":
    run_program(main)
