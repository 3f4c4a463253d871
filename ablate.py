"""Compare position schemes: train each with every seed, then make one table and one figure.

    python ablate.py SCHEME [SCHEME ...] [--seeds=1,2,3] [config/FILE.py ...] [--name=value ...]

    python ablate.py nope rope alibi                           3 schemes x 3 seeds
    python ablate.py rope 'rope + alibi' config/size/tiny.py   any settings but pos and seed

Each cell of the comparison is a run of train.py in its own run folder. All schemes of a seed are
trained on the same tokens in the same order. The same command goes on after an interruption, and
trains only what is not yet trained.
"""

if __name__ == "__main__":  # --help answers before torch is imported
    import sys

    from configurable import AblateSettings, answer_help

    answer_help(AblateSettings, sys.argv[1:], __doc__)

import hashlib
import signal
import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from types import FrameType
from typing import Any

from configurable import AblateSettings, TrainSettings, UserError, configure, require, run_program
from posenc import Shape
from positions.catalogue import read
from positions.scheme import Scheme
from runs import device
from runs.figures import plot_seeds
from runs.files import write_json, write_text
from runs.folder import command_line, read_config, run_folder
from runs.processes import world_size
from runs.results import Result, finished_result
from runs.start import training_corpus
from runs.tables import seeds_table

TRAIN = Path(__file__).resolve().with_name("train.py")
# what should be the same for all cells, and what else is kept of where a cell comes from
SHARED = ("dtype", "threads", "versions", "corpus_sha256", "sources_sha256")
PROVENANCE = ("command", "git_commit", "device", *SHARED)


# ---- cells


@dataclass(frozen=True)
class Cell:
    """One run of the comparison: the settings of a scheme with a seed."""

    settings: TrainSettings

    @property
    def name(self) -> str:
        """Scheme and seed."""
        return f"{self.settings.pos}, seed {self.settings.seed}"

    @property
    def folder(self) -> Path:
        """The run folder that train.py gives it."""
        return run_folder(self.settings)

    def result(self) -> Result | None:
        """Its result, with where it comes from as "run"; None if it is not finished or damaged."""
        try:
            result = finished_result(self.folder, self.settings)
            config = read_config(self.folder) if result else {}
        except UserError:
            return None
        return result and result | {"run": {name: config[name] for name in PROVENANCE}}


def plan(settings: AblateSettings, schemes: list[str]) -> list[Cell]:
    """All cells, those of the first seed first.

    UserError, before anything runs, for what cannot be trained or compared.
    """
    require(schemes, "name the position schemes, as in: python ablate.py nope rope alibi")
    start = settings.init_from
    other_model = f"init_from={start} would give every cell that model's scheme; leave it at auto"
    require(start in ("auto", "scratch"), other_model)
    shared = {f.name: getattr(settings, f.name) for f in fields(TrainSettings)}
    extend = read(settings.extend).text if settings.extend else ""
    shared["extend"] = "" if extend == "none" else extend
    texts = [canonical(text, settings) for text in schemes]
    cells, by_folder = [], {}
    for seed in settings.seeds:
        for pos in texts:
            cell = Cell(TrainSettings(**shared | {"pos": pos, "seed": seed}))
            other = by_folder.setdefault(cell.folder, cell)
            same = f"{other.name} and {cell.name} are one run, {cell.folder}"
            require(other is cell, f"{same}; name each scheme once")
            cells.append(cell)
    device.pick(settings.device, settings.dtype)  # refused now and not in every cell
    training_corpus(settings)
    return cells


def canonical(text: str, settings: TrainSettings) -> str:
    """The canonical text of a position scheme; UserError if it does not fit the model."""
    width, n_head = settings.n_embd, settings.n_head
    shape = Shape(n_head, width // n_head, width, settings.block_size)
    pos_file = Path(settings.pos_file).resolve() if settings.pos_file else None
    return Scheme(text, shape, settings.n_layer, pos_file).text


def words_for_train(
    settings: TrainSettings, kinds: tuple[str, ...] = ("result", "test", "execution")
) -> list[str]:
    """The settings of these kinds that are not the defaults, as typed for train.py."""
    words = []
    for f in fields(TrainSettings):
        value = getattr(settings, f.name)
        if f.metadata["kind"] in kinds and value != f.default:
            text = ",".join(map(str, value)) if isinstance(value, tuple) else value
            words.append(f"--{f.name}={text}")
    return words


def comparison_folder(settings: AblateSettings, cells: list[Cell]) -> Path:
    """ablate_dir; by default a name with a digest of schemes, seeds and settings."""
    if settings.ablate_dir:
        return Path(settings.ablate_dir)
    lines = [" ".join(words_for_train(cell.settings, ("result", "test"))) for cell in cells]
    digest = hashlib.sha256("\n".join(lines).encode("utf-8")).hexdigest()[:6]
    return Path("out") / f"ablate-{settings.dataset}-L{settings.block_size}-{digest}"


# ---- training


class Relay:
    """Passes SIGINT and SIGTERM to the running cell, which then saves and ends.

    It does so inside a `with` block. `signal` is the first signal that came, 0 if none did.
    """

    def __init__(self) -> None:
        self.signal, self.child = 0, None

    def __enter__(self) -> "Relay":
        numbers = (signal.SIGINT, signal.SIGTERM)
        self.before = {number: signal.signal(number, self._hand_on) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _hand_on(self, number: int, frame: FrameType | None) -> None:
        self.signal = self.signal or number
        if self.child:
            self.child.send_signal(number)

    def start(self, command: list[str]) -> subprocess.Popen[str]:
        """Start a child in a process group of its own, so that Ctrl-C reaches it only from here.

        All its output comes through one pipe. If this process is killed, the next line that the
        child prints ends the child.
        """
        self.child = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            process_group=0,
        )
        if self.signal:  # it came while the child was being started
            self.child.send_signal(self.signal)
        return self.child


def train(cell: Cell, relay: Relay) -> str:
    """Run train.py for a cell and print its output; returns why it failed, or an empty text."""
    debug = ["--debug"] if "--debug" in sys.argv else []
    words = words_for_train(cell.settings)
    child = relay.start([sys.executable, "-u", str(TRAIN), *words, *debug])
    last = ""
    for line in child.stdout:
        print(line, end="", flush=True)
        last = line.strip() or last
    code = child.wait()
    if code < 0:
        return f"ended by signal {-code}"
    if code > 0:
        return last or f"exit code {code}"
    absent = f"train.py ended well, but {cell.folder} does not hold the result of these settings"
    return "" if cell.result() else absent


def train_all(cells: list[Cell], relay: Relay, again: bool) -> dict[str, str]:
    """Train the cells that are not finished (all, if `again`) until a signal comes.

    Returns {name: why it failed}.
    """
    failed = {}
    for number, cell in enumerate(cells, start=1):
        if relay.signal:
            break
        if again or cell.result() is None:
            print(f"cell {number}/{len(cells)}: {cell.name}", flush=True)
            failed[cell.name] = train(cell, relay)
    return {name: reason for name, reason in failed.items() if reason}


# ---- comparing


def compare(cells: list[Cell], failed: dict[str, str], folder: Path) -> str:
    """Write results.json, table.txt and figure.png into a folder; returns the table."""
    by_scheme: dict[str, list[Result]] = {}
    for cell in cells:
        missing = {"seed": cell.settings.seed, "reason": failed.get(cell.name, "not trained")}
        by_scheme.setdefault(cell.settings.pos, []).append(cell.result() or missing)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        advice = "choose another --ablate_dir"
        raise UserError(f"{folder} cannot be made ({error.strerror}); {advice}") from error
    write_json(folder / "results.json", {"command": command_line(), "cells": by_scheme})
    table = "\n".join([seeds_table(by_scheme), *provenance_notes(by_scheme)])
    write_text(folder / "table.txt", table + "\n")
    plot_seeds(by_scheme, folder / "figure.png")
    return table


def provenance_notes(by_scheme: dict[str, list[Result]]) -> list[str]:
    """A note for each thing that should be the same for all cells and is not."""
    runs: dict[str, dict[str, Any]] = {}
    for pos, results in by_scheme.items():
        runs |= {f"{pos}, seed {r['seed']}": r["run"] for r in results if "run" in r}
    first = next(iter(runs))
    notes = []
    for key in SHARED:
        others = "; ".join(name for name, config in runs.items() if config[key] != runs[first][key])
        if others:
            notes.append(f"note: {key} of {others} is not that of {first}: see results.json")
    return notes


def announce(cells: list[Cell], share: list[Cell], folder: Path) -> None:
    """Print what is going to be done."""
    done = [cell.name for cell in cells if cell.result()]
    print(f"{len(cells)} cells, {len(done)} of them finished; the comparison goes to {folder}")
    for name in done:
        print(f"finished: {name}")
    if len(share) < len(cells):
        print(f"this share: {'; '.join(cell.name for cell in share) or 'nothing'}")


def main() -> int:
    """Train what is not yet trained, and compare."""
    settings, schemes = configure(AblateSettings, sys.argv[1:], __doc__)
    advice = "torchrun is for train.py; share the work out with --only=I/N"
    require(world_size() == 1, f"start ablate.py by itself: {advice}")
    cells = plan(settings, schemes)
    part, parts = map(int, (settings.only or "1/1").split("/"))
    share, folder = cells[part - 1 :: parts], comparison_folder(settings, cells)
    announce(cells, share, folder)
    with Relay() as relay:
        failed = train_all(share, relay, settings.overwrite)
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
        print(f"\n{compare(cells, failed, folder)}\n\nin {folder}")
    return 1 if failed else 0


if __name__ == "__main__":
    run_program(main)
