"""Compare position schemes: train each with every seed, then make one table and one figure.

    python ablate.py SCHEME [SCHEME ...] [--seeds=1,2,3] [config/FILE.py ...] [--name=value ...]

    python ablate.py nope rope alibi                           3 schemes x 3 seeds
    python ablate.py rope 'rope + alibi' config/size/tiny.py   any settings but pos and seed
    python ablate.py rope 'rope --qk_norm=True'                settings for one scheme alone
    python ablate.py rope 'rope --max_iters=4000'              two numbers of steps
    python ablate.py rope config/recipes/gemma3.py             a scheme from a file that sets pos
    python ablate.py rope alibi --learning_rates=1e-3,3e-3,6e-3    the best of them for each scheme
    python ablate.py rope alibi --jobs=4                           four cells at once
    python ablate.py rope alibi --only=1/3                         share 1 of 3: every third cell
    python ablate.py rope alibi --plan=True                        what is left to do

A cell of the comparison is one scheme with one seed: a run of train.py in its own run folder, with
its output in train.log there. For a given seed, all schemes are trained on the same tokens in the
same order. After an interruption, the same command resumes, and trains only what is missing.
Started twice, it divides the cells, and the last to end makes the table. A cell whose settings,
files and corpus have not changed is never started over; --overwrite=True replaces the others.

The last lines of the table say whose loss rises from L to the longest test, which scheme is lower
there than the first one, which higher, and what is not decided.

Each of learning_rates is tried for each scheme, with an extra seed and half the steps. The best
has the lowest loss at L on validation windows that share no target with the test, or on training
rows that it has not read.
"""

import hashlib
import math
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from pathlib import Path

import pandas as pd
import torch
from filelock import FileLock, Timeout
from tqdm import tqdm

from common import device
from common.errors import UserError, run_program
from common.files import write_json
from common.processes import signals_to
from configurable import (
    RESULT,
    AblateSettings,
    TrainSettings,
    read_arguments,
    read_config_file,
    read_word,
    to_argv,
)
from measure import questions
from measure.examine import examine
from measure.tester import Tester
from measure.text import tuning_loss
from run.folder import RunFolder, provenance, run_folder
from run.load import load_run, training_corpus
from run.log import diverged, log_comparison
from scheme import Catalogue, canonical_extend, parse
from tables import records, statistics, tables
from tables.figures import plot_rows

TRAIN = Path(__file__).resolve().with_name("train.py")


@dataclass
class Cell:
    """One run of the comparison, and the label of its scheme in tables."""

    label: str
    settings: TrainSettings

    @property
    def name(self) -> str:
        """The scheme and the seed, for messages."""
        return f"{self.label}, seed {self.settings.seed}"

    @property
    def folder(self) -> Path:
        """The path of its run folder, as train.py chooses it."""
        return run_folder(self.settings)

    @property
    def failure(self) -> Path:
        """A file that says why its training failed, if it did; other shares read it too."""
        return self.folder / "failed.txt"

    def open(self) -> RunFolder:
        """Its run folder as it is now."""
        return RunFolder.open(replace(self.settings, overwrite=False))

    def changes(self) -> list[str]:
        """How the run in its folder, if there is one, differs from this cell; or its damage."""
        s = self.settings
        folder = self.open()
        if folder.is_new:
            return []
        try:
            folder.check()
            changes = [*folder.differences]
            if s.overwrite:  # else train.py says whether it is damaged
                folder.checkpoint()
                changes += [f"{name} has changed since" for name in folder.changed_code()]
        except UserError as error:
            return [str(error)]
        # train.py goes on if max_iters is raised, but with a schedule that no other cell has
        planned = folder.config.get("max_iters_before", folder.config["settings"]["max_iters"])
        if planned > s.max_iters or (s.follows_max_iters and planned < s.max_iters):
            changes.append(f"max_iters: {planned} in the folder, {s.max_iters} asked for")
        return changes

    def can_resume(self) -> bool:
        """Whether train.py would resume the run in its folder, without --overwrite."""
        return not (self.open().is_new or self.changes())

    def is_finished(self) -> bool:
        """Whether it is fully trained and tested, with these settings, files and corpus."""
        return self.can_resume() and self.open().finished_result() is not None

    def step(self) -> int:
        """The step from which train.py resumes."""
        return self.open().step if self.can_resume() else 0


# ---- what is to be trained


def is_recipe(word: str) -> bool:
    """Whether an argument is a config file that sets pos, and so counts as a scheme."""
    is_file = word.endswith(".py") and Path(word).is_file()
    return is_file and bool(re.search(rb"^pos\s*=", Path(word).read_bytes(), re.M))


def make_cells(schemes: list[str], typed: dict) -> list[Cell]:
    """All cells, those of the first seed first, of the settings that the user typed.

    UserError if a scheme is named twice, or has a setting of its own that must be the same in all
    cells.
    """
    if not schemes:
        raise UserError("name the position schemes, as in: python ablate.py nope rope alibi")
    settings = AblateSettings(**typed)
    shared = {f.name: getattr(settings, f.name) for f in fields(TrainSettings)}
    shared = TrainSettings(**shared | {"out_dir": ""})  # that of the comparison
    # the same for all schemes
    fixed = ["dataset", "seed", "init_from", "out_dir", "pos_file", "dtype", "eval_windows"]
    if settings.learning_rates:
        fixed.append("learning_rate")
        if settings.learning_rate:
            print(f"note: learning_rates are tried, not learning_rate={settings.learning_rate}")
    pieces = {*Catalogue(settings.pos_file).pieces}
    settings_of = {}  # by the label of a scheme
    for text in schemes:
        # 'rope --qk_norm=True' is a scheme with a setting of its own; a file may have several
        scheme, *words = re.split(r"\s+(?=--)", text.strip())
        chosen = {"pos": scheme}
        if scheme.endswith(".py"):
            chosen |= read_config_file(TrainSettings, Path(scheme))
            for name in typed.keys() & chosen.keys():
                if chosen[name] != getattr(shared, name):
                    print(f"note: {scheme} keeps its own {name}={chosen[name]}")
        for word in words:
            if word.startswith("--pos="):
                raise UserError(f"{text}: name that scheme instead of --pos")
            chosen |= read_word(TrainSettings, word)
        s = replace(shared, **chosen)
        # in canonical form, from which the folder is named
        s = replace(s, pos=parse(s.pos).text, extend=canonical_extend(s.extend))
        for name in fixed:
            if getattr(s, name) != getattr(shared, name):
                raise UserError(f"{text}: a scheme of a comparison has no {name} of its own")
        label = s.pos
        if scheme.endswith(".py"):
            label = Path(scheme).stem
            mentions = parse(s.pos).mentions + parse(s.extend or "none").mentions
            others = pieces - {mention.name for mention in mentions}
            if label in others:  # the name of another scheme
                label = f"{label}.py: {s.pos}"
        label = " ".join([label, *words])
        if s.max_iters != shared.max_iters:
            s = in_own_folder(s, "steps")
        if run_folder(s) in map(run_folder, settings_of.values()):
            raise UserError(f"{label} would be trained twice: name each scheme once")
        if label in settings_of:
            raise UserError(f"two different ones are called {label}: rename a file")
        settings_of[label] = s
    cells = []
    for seed in dict.fromkeys(settings.seeds):  # each once
        for label, s in settings_of.items():
            s = replace(s, seed=seed)
            cells.append(Cell(label, in_own_folder(s, "steps") if s.out_dir else s))
    return cells


def in_own_folder(s: TrainSettings, name: str) -> TrainSettings:
    """These settings in a folder that ends with `name` and their number of steps, which a run's
    folder does not tell, because a run can go on.
    """
    folder = run_folder(replace(s, out_dir=""))
    return replace(s, out_dir=f"{folder}-{name}{s.max_iters}")


def share_of(cells: list[Cell], only: str) -> list[Cell]:
    """The I-th of N shares of the cells, where `only` is "I/N". UserError if I > N."""
    part, parts = map(int, only.split("/"))
    if part > parts:
        raise UserError(f"only={only}: there are only {parts} shares")
    return cells[part - 1 :: parts]


def check_folders(cells: list[Cell]) -> None:
    """Raise UserError for a folder that holds another run, before any cell is trained."""
    changed = [cell for cell in cells if cell.changes() and not cell.settings.overwrite]
    if changed:
        cell = changed[0]
        cell.open().check()  # UserError if a file is damaged
        change = cell.changes()[0]
        names = "; ".join(cell.name for cell in changed)
        advice = f"move it away, or --overwrite=True, which trains anew: {names}"
        if "which defines its scheme" in change:
            advice += "; or give the new class a name of its own, to compare both formulas"
        if change.startswith("max_iters"):
            advice += "; or keep both: one named as in 'rope --max_iters=N', where N is not the "
            advice += "number of the others, has a folder of its own"
        raise UserError(f"{cell.folder} holds another run than {cell.name} ({change}): {advice}")


def note_changed_code(cells: list[Cell]) -> None:
    """Say which cells were trained with other code than that of today."""
    of_cells = [cell.open().changed_code() for cell in cells if cell.can_resume()]
    n_changed = sum(map(bool, of_cells))
    if n_changed:
        files = sorted(set().union(*of_cells))
        print(
            f"note: {', '.join(files)} changed since {n_changed} of {len(cells)} cells began; if "
            "that changes numbers, --overwrite=True trains those anew"
        )


def examine_cells(cells: list[Cell]) -> None:
    """Examine the scheme of every cell and print warnings.

    UserError, before anything is trained, for a wrong scheme or a length that the corpus cannot
    test.
    """
    # one cell of each scheme
    for cell in {cell.label: cell for cell in cells}.values():
        s = cell.settings
        corpus = training_corpus(s)
        if s.examine:
            gpt = s.gpt(corpus.vocab_size)
            folder = cell.folder if cell.can_resume() else None  # has copies of named files
            for warning in examine(gpt, s.pos_file, folder, s.documents == "mask"):
                print(f"warning: {cell.label}: {warning}")


# ---- training


def start_training(cell: Cell, dtype: str, threads: int) -> subprocess.Popen:
    """Start train.py for a cell; a run that has begun keeps its dtype."""
    s = replace(cell.settings, examine=False)  # examine_cells has done it
    if cell.can_resume():
        s = replace(s, overwrite=False)
    else:
        s = replace(s, dtype=dtype)
    # A process group of its own: Ctrl-C reaches it only from here. The output comes through a
    # pipe: if this process is killed, the next line that it prints ends the child.
    return subprocess.Popen(
        [sys.executable, "-u", str(TRAIN), *to_argv(s)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        process_group=0,
        env={"OMP_NUM_THREADS": str(threads), **os.environ},
    )


def keep_output(child: subprocess.Popen, path: Path) -> str:
    """Append what a child prints to a file, line by line, until it ends; returns the last line."""
    last = ""
    with path.open("a", 1, encoding="utf-8") as log:  # 1: by lines
        for line in child.stdout:
            log.write(line)
            last = line.strip() or last
    child.wait()
    return last


def train_cells(cells: list[Cell], jobs: int, dtype: str = "auto") -> dict[str, str]:
    """Train and test the cells that are not finished, `jobs` at a time; print a line for each.
    Returns {name of a cell: why it failed}.

    A cell that another ablate.py trains at this moment is left to that. Ctrl-C, and what
    schedulers send, is passed on to the running cells, which save and end; then SystemExit is
    raised.
    """
    waiting = [cell for cell in cells if not cell.is_finished()]
    for cell in waiting:
        cell.failure.unlink(missing_ok=True)
    failures = {}
    children = []
    caught = []  # signals
    bar = tqdm(total=len(waiting), unit="cell", disable=None)  # None: hidden without a terminal
    # each job has its share of the processors
    threads = max(1, torch.get_num_threads() // jobs)

    def pass_on(number: int, frame: object) -> None:
        caught.append(number)
        for child in children:
            child.send_signal(number)  # does nothing if it has ended

    def outcome(cell: Cell) -> str:
        if cell.is_finished():
            return "finished by another program"
        if cell.failure.exists():
            failures[cell.name] = cell.failure.read_text(encoding="utf-8")
            return f"failed in another program: {failures[cell.name]}"
        child = start_training(cell, dtype, threads)
        children.append(child)
        if caught:  # a signal came while the child was being started
            child.send_signal(caught[0])
        last = keep_output(child, cell.folder / "train.log")
        if caught:
            return "stopped"
        if cell.is_finished():
            summary = statistics.summary(records.select(records.load_rows([cell.folder])))
            return ", ".join(f"{name} {x:.4f}" for name, x in summary.items())
        failures[cell.name] = f"{last or child.returncode} (see {cell.folder}/train.log)"
        cell.failure.write_text(failures[cell.name], encoding="utf-8")
        return f"failed: {failures[cell.name]}"

    def train(cell: Cell) -> None:
        if caught:
            return
        started = time.monotonic()
        cell.folder.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(cell.folder / ".cell.lock", timeout=0):
                came = outcome(cell)
        except Timeout:
            came = "left to the program that trains it"
        if caught:
            return
        number = f"[{cells.index(cell) + 1}/{len(cells)}]"
        tqdm.write(f"{number} {cell.name}: {came} ({time.monotonic() - started:.0f} s)")
        sys.stdout.flush()
        bar.update()

    with signals_to(pass_on), ThreadPoolExecutor(jobs) as pool:
        list(pool.map(train, waiting))
    bar.close()
    if caught:
        print("stopped: the same command resumes")
        raise SystemExit(128 + caught[0])
    return failures


# ---- a plan


def state_of(cell: Cell) -> str:
    """What is in the folder of a cell, for a plan."""
    if cell.is_finished():
        return "finished"
    if cell.changes():
        return f"another run in its folder ({cell.changes()[0]})"
    return f"at step {cell.step()} of {cell.settings.max_iters}"


def print_plan(cells: list[Cell]) -> None:
    """Print a line for each cell."""
    for cell in cells:
        print(f"{cell.name}: {state_of(cell)}; {cell.folder}")


# ---- learning rates


def make_trials(cells: list[Cell], settings: AblateSettings) -> dict[tuple[str, float], Cell]:
    """A cell for each scheme and rate, the same whatever the seed of its cells: with an extra seed
    and half the steps, also those of a schedule that is set.
    """
    trials = {}
    for cell in cells:
        s = cell.settings
        warmup_iters = lr_decay_iters = None
        if s.warmup_iters is not None or s.lr_decay_iters:
            warmup_iters = s.warmup // 2
        if s.lr_decay_iters:
            lr_decay_iters = (s.lr_decay_iters + 1) // 2  # still after the warm-up
        for rate in settings.learning_rates:
            trial = replace(
                s,
                learning_rate=rate,
                seed=max(settings.seeds) + 1,
                max_iters=max(1, s.max_iters // 2),
                warmup_iters=warmup_iters,
                lr_decay_iters=lr_decay_iters,
                test_at=(),
                eval_lengths=(s.block_size,),
            )
            trial = in_own_folder(trial, "trial")  # never a cell of a comparison
            trials[cell.label, rate] = Cell(f"trial of {cell.label} lr={rate}", trial)
    return trials


def pick_rates(cells: list[Cell], settings: AblateSettings, dtype: str) -> dict[str, float]:
    """The learning rate with the lowest loss, for each scheme.

    UserError as long as other shares of the cells have not tried theirs.
    """
    trials = make_trials(cells, settings)
    note_changed_code(list(trials.values()))
    to_do = share_of(list(trials.values()), settings.only)
    train_cells([trial for trial in to_do if not has_diverged(trial)], settings.jobs, dtype)
    # a line for each scheme, a column for each rate
    losses = pd.Series({key: trial_loss(trial) for key, trial in trials.items()}).unstack()
    print(tables.show("loss by learning rate", losses.rename_axis("scheme")))
    if losses.isna().any(axis=None):
        raise UserError(
            "a rate was not tried: see what failed, or start again when the programs that train "
            "the others have ended"
        )
    hopeless = losses.index[losses.eq(math.inf).all(axis=1)]
    if len(hopeless):
        raise UserError(f"{hopeless[0]} diverged with every rate: add a lower one")
    return losses.idxmin(axis=1).to_dict()


def has_diverged(trial: Cell) -> bool:
    """Whether it was tried, with the same settings, and its loss was not finite."""
    return diverged(trial.folder) and not trial.changes()


def trial_loss(trial: Cell) -> float:
    """The loss that rates are compared by: inf where it is not finite, NaN if the run is not
    finished.
    """
    if has_diverged(trial):
        return math.inf
    if not trial.is_finished():
        return math.nan
    s = trial.settings
    run = load_run(trial.folder, s.device, s.dtype, s.pos_file)
    tester = Tester(run.model, run.corpus, run.compute)
    if not run.corpus.is_text:
        rows_read = s.max_iters * s.sequences_per_step
        loss = questions.unread_loss(tester, s.block_size, s.seed, rows_read)
    else:
        loss = tuning_loss(tester, s.block_size, s.eval_windows)
    return loss if math.isfinite(loss) else math.inf


# ---- the comparison


def main() -> int:
    """Train what is not yet trained, and compare."""
    recipes = [word for word in sys.argv[1:] if is_recipe(word)]
    others = [word for word in sys.argv[1:] if word not in recipes]
    typed, named = read_arguments(AblateSettings, others, __doc__)
    settings = AblateSettings(**typed)
    device.set_up_cpu()
    # recipes and other schemes in the order in which they were typed
    schemes = [*settings.schemes, *sorted([*named, *recipes], key=sys.argv.index)]
    cells = make_cells(schemes, typed)
    examine_cells(cells)

    compared = " ".join([*schemes, *to_argv(settings, *RESULT, "test")])
    digest = hashlib.sha256(compared.encode()).hexdigest()[:6]
    name = f"out/ablate-{settings.dataset}-L{settings.block_size}-{digest}"
    folder = Path(settings.out_dir or name)
    os.environ.setdefault("WANDB_RUN_GROUP", folder.name)  # wandb reads it, in each cell too

    # one dtype for all cells: that of cells that have begun, or else the faster one here
    dtype = settings.dtype
    for cell in cells:
        if cell.can_resume():
            dtype = cell.open().kept_dtype(dtype)
    tokens = settings.batch_size * settings.block_size
    compute = device.pick(settings.device, dtype, tokens, settings.n_embd)
    print(f"on {compute.reason}")
    device.warn_if_busy(compute)
    dtype = compute.dtype_name
    to_do = share_of(cells, settings.only)
    trials = list(make_trials(cells, settings).values())
    if settings.plan and not all(trial.is_finished() or has_diverged(trial) for trial in trials):
        print("first the trials of learning rates; the cells follow from their losses")
        print_plan(share_of(trials, settings.only))
        return 0
    if settings.learning_rates:
        rates = pick_rates(cells, settings, dtype)
        for cell in cells:
            rate = rates[cell.label]
            s = replace(cell.settings, learning_rate=rate)
            cell.settings = in_own_folder(s, "steps") if s.out_dir else s
            cell.label += f" lr={rate}"
    if settings.plan:
        print_plan(to_do)
        return 0
    check_folders(cells)
    note_changed_code(cells)

    folder.mkdir(parents=True, exist_ok=True)
    n_finished = sum(cell.is_finished() for cell in to_do)
    print(f"cells: {len(to_do)}, finished: {n_finished}; the comparison goes to {folder}")
    failures = train_cells(to_do, settings.jobs, dtype)
    code = int(bool(failures))
    finished = {str(cell.folder): cell.label for cell in cells if cell.is_finished()}
    for cell in cells:  # those that failed in other shares
        if str(cell.folder) not in finished and cell.failure.exists():
            failures[cell.name] = cell.failure.read_text(encoding="utf-8")
    if not finished or len(finished) + len(failures) < len(cells):  # other shares have the rest
        print(
            f"no table yet: {len(finished)} of {len(cells)} cells finished, {len(failures)} failed"
            "; the same command makes it when the others have ended"
        )
        for name, reason in failures.items():
            print(f"{name}: {reason}")
        return code

    rows = records.select(records.load_rows(finished))
    rows["label"] = rows.run.map(finished)
    table = tables.tables(rows)
    for name, reason in failures.items():
        table += f"\nwithout {name}: {reason}"
    records.save_rows(rows, folder / "rows.csv.xz")
    write_json(folder / "about.json", provenance() | {"runs": finished, "without": failures})
    (folder / "table.txt").write_text(f"{table}\n", encoding="utf-8")
    plot_rows(rows, folder / "figure.png")
    print(f"\n{table}\n\nin {folder}: table.txt, figure.png, rows.csv.xz, about.json")
    log_comparison(settings, rows, folder)
    return int(bool(failures))


if __name__ == "__main__":
    run_program(main)
