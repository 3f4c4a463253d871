"""Compare position schemes: train each with every seed, then make one table and one figure.

    python ablate.py SCHEME [SCHEME ...] [--seeds=1,2,3] [config/FILE.py ...] [--name=value ...]

    python ablate.py nope rope alibi                           3 schemes x 3 seeds
    python ablate.py rope 'rope + alibi' config/size/tiny.py   any settings but pos and seed
    python ablate.py rope 'rope --qk_norm=True'                settings of one scheme alone
    python ablate.py config/paper/alibi/scaled.py              a published comparison, beside ours
    python ablate.py rope alibi --learning_rates=1e-3,3e-3,6e-3    the best of them for each scheme
    python ablate.py rope alibi --jobs=4                           four cells at once
    python ablate.py rope alibi --only=array                       its share of a SLURM or SGE array

Each cell of the comparison is a run of train.py in its own run folder. All schemes of a seed are
trained on the same tokens in the same order. The same command goes on after an interruption, and
trains only what is not yet trained.

A learning rate is picked on a seed that is not compared, with half the steps, by the loss at L on
validation windows that share no target with the test, or on training rows that it has not read.
"""

if __name__ == "__main__":  # --help answers before torch is imported
    from configurable import AblateSettings, answer_help

    answer_help(AblateSettings, __doc__)

import hashlib
import itertools
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

import configurable
import evaluate
from configurable import AblateSettings, TrainSettings, UserError, configure, require, run_program
from data import rows
from posenc import Shape
from positions.grammar import parse
from positions.scheme import Scheme
from runs import device, files, formats, paper
from runs.compare import pick_rate, rates_beyond
from runs.figures import plot_seeds
from runs.folder import command_line, diverged, read_config, run_folder, trained_seconds
from runs.log import log_comparison
from runs.processes import world_size
from runs.results import Result, finished_result
from runs.start import open_run, run_corpus, training_corpus

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)  # schedulers send the last one
TRAIN = Path(__file__).resolve().with_name("train.py")
# what should be the same for all cells, and what else is kept of where a cell comes from
SHARED = ("dtype", "threads", "versions", "corpus_sha256", "sources_sha256", "history")
PROVENANCE = ("command", "git_commit", "device", *SHARED)


# ---- cells


@dataclass(frozen=True)
class Cell:
    """One run: its settings, what its scheme is called, and why it cannot be trained, if so."""

    settings: TrainSettings
    label: str
    problem: str = ""

    @property
    def name(self) -> str:
        """Scheme and seed."""
        return f"{self.label}, seed {self.settings.seed}"

    @property
    def folder(self) -> Path:
        """The run folder that train.py gives it."""
        return run_folder(self.settings)

    def result(self) -> Result | None:
        """Its result, with where it comes from as "run"; None if it is not finished or damaged."""
        with suppress(UserError):
            result = None if self.problem else finished_result(self.folder, self.settings)
            if result:
                config = read_config(self.folder)
                config["history"] = [[p["from_step"], p["max_iters"]] for p in config["history"]]
                about = {name: config[name] for name in PROVENANCE}
                about["train_seconds"] = trained_seconds(self.folder)
                return result | {"run": about}
        return None


def plan(settings: AblateSettings, schemes: list[str]) -> list[Cell]:
    """All cells, those of the first seed first.

    UserError, before anything runs, for what cannot be trained or compared.
    """
    require(schemes, "name the position schemes, as in: python ablate.py nope rope alibi")
    start = settings.init_from
    other_model = f"init_from={start} would give every cell that model's scheme; leave it at auto"
    require(start in ("auto", "scratch"), other_model)
    # one number format for all cells, measured once; a wrong device is refused before any cell
    tokens = settings.batch_size * settings.block_size
    compute = device.pick(settings.device, settings.dtype, tokens, settings.n_embd)
    settings = replace(settings, dtype=compute.dtype_name)
    shared = {f.name: getattr(settings, f.name) for f in fields(TrainSettings)}
    extend = parse(settings.extend or "none").text
    shared |= {"extend": "" if extend == "none" else extend}
    shared |= {"eval_lengths": tuple(sorted(set(settings.eval_lengths)))}
    models = [variant(text, TrainSettings(**shared), settings) for text in schemes]
    pairs = itertools.product(settings.seeds, models)
    cells = [Cell(replace(model.settings, seed=seed), model.label) for seed, model in pairs]
    folders = [model.folder for model in models]
    again = [m.label for m in models if folders.count(m.folder) > 1]
    twice = f"{' and '.join(dict.fromkeys(again))} would be trained twice, or in one folder"
    require(not again, f"{twice}; name each scheme once, with settings that differ")
    if settings.paper:
        paper.read_paper(settings.paper)
    for length in {model.settings.block_size for model in models}:
        corpus = training_corpus(replace(settings, block_size=length))
    for rate in rates_of(settings):
        tried = trial(cells[0], rate, settings).settings.checked()
        if "rows" in corpus.meta:
            rows.unread(corpus, tried.seed, sequences_of(tried))
        else:
            evaluate.tuning_places(corpus, settings.block_size, settings.eval_windows)
    return cells


def variant(text: str, shared: TrainSettings, settings: AblateSettings) -> Cell:
    """A scheme with its own settings, if any, and all others `shared`; the label tells them.

    UserError for what a scheme cannot set by itself.
    """
    text, *own = re.split(r"\s+(?=--)", text.strip())
    names = [word[2:].partition("=")[0] for word in own]
    fixed = {"pos", "seed", "dataset", "init_from"}
    fixed |= {"learning_rate"} if settings.learning_rates else set()
    known = {f.name for f in fields(TrainSettings)}  # an unknown one is refused with advice
    for name in names:
        good = name not in known or name in TrainSettings.defaults().keys() - fixed
        require(good, f"{text} --{name}: a scheme of a comparison has no {name} of its own")
    one, _ = configure(TrainSettings, [*words_for_train(shared), *own], "")
    pos = canonical(text, one)
    return Cell(replace(one, pos=pos), " ".join([pos, *own]))


def canonical(text: str, settings: TrainSettings) -> str:
    """The canonical text of a position scheme; UserError if it does not fit the model."""
    gpt = settings.gpt(vocab_size=1)
    shape = Shape(gpt.n_head, gpt.scheme_width, gpt.n_embd, gpt.block_size)
    pos_file = Path(settings.pos_file).resolve() if settings.pos_file else None
    return Scheme(text, shape, settings.n_layer, pos_file).text


def words_for_train(settings: TrainSettings, kinds: Iterable = configurable.KINDS) -> list[str]:
    """The settings of these kinds that are not the defaults, as typed for train.py."""
    words = []
    for f in fields(TrainSettings):
        value = getattr(settings, f.name)
        if f.metadata["kind"] in kinds and value != f.default:
            text = value if isinstance(value, str) else configurable.typed(value)
            words.append(f"--{f.name}={text}")
    return words


def comparison_folder(settings: AblateSettings, cells: list[Cell]) -> Path:
    """ablate_dir; by default a name with a digest of schemes, seeds and settings."""
    if settings.ablate_dir:
        return Path(settings.ablate_dir)
    lines = [" ".join(words_for_train(cell.settings, ("result", "test"))) for cell in cells]
    lines += map(str, settings.learning_rates)
    digest = hashlib.sha256("\n".join(lines).encode("utf-8")).hexdigest()[:6]
    return Path("out") / f"ablate-{settings.dataset}-L{settings.block_size}-{digest}"


# ---- training


class Relay:
    """Passes SIGINT, SIGTERM and SIGUSR1 to the running cells, which then save and end.

    It does so inside a `with` block. `signal` is the first signal that came, 0 if none did; `jobs`
    is how many cells may run at once.
    """

    def __init__(self, jobs: int = 1) -> None:
        self.signal, self.jobs, self.children = 0, jobs, []

    def __enter__(self) -> "Relay":
        self.before = {number: signal.signal(number, self._hand_on) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _hand_on(self, number: int, frame: object) -> None:
        self.signal = self.signal or number
        for child in self.children:
            child.send_signal(number)  # nothing, if it has ended

    def start(self, command: list[str]) -> subprocess.Popen[str]:
        """Start a child in a process group of its own, so that Ctrl-C reaches it only from here.

        All its output comes through one pipe. If this process is killed, the next line that the
        child prints ends the child. Of several at once each has its share of the processors.
        """
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "errors": "replace"}
        threads = str(max(1, torch.get_num_threads() // self.jobs))
        env = ({"OMP_NUM_THREADS": threads} if self.jobs > 1 else {}) | os.environ
        child = subprocess.Popen(command, encoding="utf-8", process_group=0, env=env, **pipe)
        self.children.append(child)
        if self.signal:  # it came while the child was being started
            child.send_signal(self.signal)
        return child


def train(cell: Cell, relay: Relay) -> str:
    """Run train.py for a cell and print its output; returns why it failed, or an empty text."""
    words = [*words_for_train(cell.settings), *(word for word in sys.argv if word == "--debug")]
    child = relay.start([sys.executable, "-u", str(TRAIN), *words])
    last, whose = "", f"[{cell.name}] " if relay.jobs > 1 else ""
    for line in child.stdout:
        print(f"{whose}{line}", end="", flush=True)
        last = line.strip() or last
    code = child.wait()
    if code:
        return f"ended by signal {-code}" if code < 0 else last or f"exit code {code}"
    absent = f"train.py ended well, but {cell.folder} does not hold the result of these settings"
    return "" if cell.result() else absent


def train_all(cells: list[Cell], relay: Relay, again: bool, what: str = "cell") -> dict[str, str]:
    """Train the cells that are not finished (all, if `again`) until a signal comes. Lines of output
    say `what` they are. Returns {name: why it failed}.
    """
    left = [c for c in cells if not c.problem and (again or c.result() is None)]
    failed, began = {}, time.monotonic()

    def train_one(cell: Cell) -> None:
        if relay.signal:
            return
        seconds, done = time.monotonic() - began, len(failed)
        soon = f", about {seconds / done * (len(left) - done) / 60:.0f} min left" if done else ""
        place = f"{what} {cells.index(cell) + 1}/{len(cells)}: {cell.name}"
        print(f"{place} ({len(left) - done} to do{soon})", flush=True)
        failed[cell.name] = train(cell, relay)

    with ThreadPoolExecutor(relay.jobs) as pool:
        list(pool.map(train_one, left))
    return {name: reason for name, reason in failed.items() if reason}


# ---- learning rates


def rates_of(settings: AblateSettings) -> list[float]:
    """The learning rates to try, with the usual one among them; none if none is to be tried."""
    rates = {settings.learning_rate, *settings.learning_rates}
    return sorted(rates) if settings.learning_rates else []


def trial(cell: Cell, rate: float, settings: AblateSettings) -> Cell:
    """The run that tries a rate for the scheme of a cell: half the steps, and a seed of its own."""
    usual, names = cell.settings, ("max_iters", "warmup_iters", "lr_decay_iters")
    changes = {n: max(1, getattr(usual, n) // 2) for n in names if getattr(usual, n)}
    changes["seed"] = next(seed for seed in itertools.count() if seed not in settings.seeds)
    run = run_folder(replace(usual, learning_rate=TrainSettings.learning_rate, **changes)).name
    folder = f"out/rates/{run}-lr={rate}-steps={changes['max_iters']}"
    changes |= {"out_dir": folder, "eval_lengths": (usual.block_size,), "learning_rate": rate}
    return Cell(replace(usual, **changes), f"{cell.label} lr={rate}")


def tuned(run: Cell) -> float | None:
    """The loss that a rate is picked by: inf if the run diverged, None if it is not finished."""
    if diverged(run.folder):
        return math.inf
    if run.result() is None:
        return None
    s, trained = run.settings, open_run(run.folder, run.settings)
    tester = evaluate.Tester(trained.model, run_corpus(trained), trained.compute)
    if "rows" in tester.corpus.meta:
        return evaluate.unread_loss(tester, s.seed, sequences_of(s))
    return evaluate.tuning_loss(tester, s.block_size, s.eval_windows)


def sequences_of(settings: TrainSettings) -> int:
    """How many sequences a training reads."""
    return settings.max_iters * settings.batch_size * settings.gradient_accumulation_steps


def try_rates(cell: Cell, settings: AblateSettings, relay: Relay | None) -> dict[str, Any]:
    """The learning rate "picked" for the scheme of a cell, what was "tried", and what "failed".

    A rate at an edge that is best is followed by one more. Without a relay nothing is trained.
    Nothing is picked as long as a run is not finished.
    """
    losses: dict[float, float | None] = {}
    failed, rates = {}, rates_of(settings)
    while rates:
        runs = [trial(cell, rate, settings) for rate in rates]
        left = [run for run in runs if settings.overwrite or not diverged(run.folder)]
        what = "before the cells, trial"
        failed |= train_all(left, relay, settings.overwrite, what) if relay else {}
        losses |= {run.settings.learning_rate: tuned(run) for run in runs}
        torch.cuda.empty_cache()  # what the tested models took is for the next run
        known = None not in losses.values()
        picked = pick_rate(losses, settings.learning_rate) if known else None
        again = known and rates == rates_of(settings)
        rates = rates_beyond(losses, picked, settings.min_lr or 0.0) if again else []
    tried = [describe_trial(trial(cell, rate, settings), losses[rate]) for rate in sorted(losses)]
    return {"picked": picked, "tried": tried, "failed": {} if known else failed}


def pick_rates(settings: AblateSettings, cells: list[Cell], relay: Relay) -> dict[str, Any]:
    """{scheme: what `try_rates` says}; empty if no rates are to be tried.

    Only those of this share are trained.
    """
    rates, share = {}, share_of(cells, settings)
    for cell in cells[: len(cells) // len(settings.seeds)] if settings.learning_rates else []:
        rates[cell.label] = try_rates(cell, settings, relay if cell in share else None)
    return rates


def describe_trial(run: Cell, loss: float | None) -> dict[str, Any]:
    """What results.json says of a learning rate that was tried."""
    settings, result = run.settings, run.result() or {"run": None}
    reason = {None: "not finished", math.inf: "diverged"}.get(loss, "")
    about = {"learning_rate": settings.learning_rate, "seed": settings.seed}
    about |= {"steps": settings.max_iters, "nats": None if reason else loss, "reason": reason}
    return about | {"folder": str(run.folder), "run": result["run"]}


def with_rate(cell: Cell, rates: dict[str, Any]) -> Cell:
    """The cell with the learning rate that was picked for its scheme, if one was to be picked."""
    if not rates:
        return cell
    rate = rates[cell.label]["picked"]
    if rate is None:
        return replace(cell, problem="its learning rate is not picked")
    return Cell(replace(cell.settings, learning_rate=rate), f"{cell.label} lr={rate}")


# ---- comparing


def compare(
    cells: list[Cell], rates: dict, failed: dict[str, str], folder: Path, settings: AblateSettings
) -> str:
    """Write results.json, table.txt and figure.png into a folder; returns the table.

    The table is written in another `format` too, if that is set. For `rates` see `pick_rates`.
    """
    by_scheme: dict[str, list[Result]] = {}
    for cell in cells:
        reason = cell.problem or failed.get(cell.name, "not trained")
        missing = {"seed": cell.settings.seed, "reason": reason}
        by_scheme.setdefault(cell.label, []).append(cell.result() or missing)
    folder.mkdir(parents=True, exist_ok=True)
    content = {"command": command_line(), "rates": rates, "paper": settings.paper}
    content["cells"] = by_scheme
    files.write_json(folder / "results.json", content)
    pages = paper.comparison_tables(content)
    table = "\n".join(["\n\n".join(pages), *provenance_notes(by_scheme)])
    files.write_text(folder / "table.txt", table + "\n")
    if settings.format != "text":
        text = formats.written(settings.format, pages, paper.comparison_numbers(content))
        files.write_text(folder / f"table.{settings.format}", text + "\n")
    plot_seeds(by_scheme, folder / "figure.png")
    return table


def provenance_notes(by_scheme: dict[str, list[Result]]) -> list[str]:
    """A note for each thing that should be the same in all cells, and is not."""
    runs = [r["run"] for results in by_scheme.values() for r in results if "run" in r]
    differ = [name for name in SHARED if any(run[name] != runs[0][name] for run in runs)]
    return [f"note: {name} is not the same in all cells: see results.json" for name in differ]


def share_of(cells: list[Cell], settings: AblateSettings) -> list[Cell]:
    """The cells of the I-th of N shares; all of a scheme if its learning rate is to be picked."""
    part, parts = settings.share
    schemes = len(cells) // len(settings.seeds) if settings.learning_rates else len(cells)
    return [cell for k, cell in enumerate(cells) if k % schemes % parts == part - 1]


def main() -> int:
    """Train what is not yet trained, and compare."""
    settings, typed = configure(AblateSettings, sys.argv[1:], __doc__)
    schemes = [*settings.schemes, *typed]
    advice = "torchrun is for train.py; share the work out with --only=I/N"
    require(world_size() == 1, f"start ablate.py by itself: {advice}")
    cells = plan(settings, schemes)
    folder = comparison_folder(settings, cells)
    if settings.wandb_log and not settings.wandb_group:
        cells = [replace(c, settings=replace(c.settings, wandb_group=folder.name)) for c in cells]
    with Relay(settings.jobs) as relay:
        rates = pick_rates(settings, cells, relay)
        failed = {name: why for tried in rates.values() for name, why in tried["failed"].items()}
        cells = [with_rate(cell, rates) for cell in cells]
        done = sum(cell.result() is not None for cell in cells)
        print(f"{len(cells)} cells, {done} of them finished; the comparison goes to {folder}")
        failed |= train_all(share_of(cells, settings), relay, settings.overwrite)
    if relay.signal:
        same = "the same command without --overwrite" if settings.overwrite else "the same command"
        print(f"stopped; {same} goes on from there")
        return 128 + relay.signal
    for name, reason in failed.items():
        print(f"failed: {name}: {reason}", file=sys.stderr)
    missing = [cell.name for cell in cells if cell.result() is None]
    if settings.only and missing:
        print(f"not compared yet, not finished: {'; '.join(missing)}")
    elif len(missing) < len(cells):
        text, kind = compare(cells, rates, failed, folder, settings), settings.format
        print(f"\n{text}\n\nin {folder}{f', also as table.{kind}' * (kind != 'text')}")
        done = [cell.folder for cell in cells if cell.result()]
        log_comparison(settings, done, folder / "figure.png", "comparison")
    return 1 if failed else 0


if __name__ == "__main__":
    run_program(main)
