"""Compare position schemes: train each with each seed, then draw one table and one figure.

    python ablate.py nope rope alibi --seeds=1,2,3                    # the defaults, 3 schemes x 3 seeds
    python ablate.py rope 'rope + alibi' config/size/tiny.py          # any config files and settings but pos and seed

Each cell is a run of train.py in its own run folder: the same tokens, steps and data order for every scheme of a seed.
The same command goes on after an interruption and trains only what is not yet trained.
"""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import FrameType
from typing import Any

import evaluate
import posenc
from configurable import AblateSettings, TrainSettings, UserError, configure, differences, run
from positions.scheme import Scheme
from runs import device
from runs.figures import plot_seeds
from runs.files import sha256, write_json, write_text
from runs.folder import read_config, run_folder
from runs.processes import world_size
from runs.results import load_result, rows_on
from runs.tables import seeds_table
from train import corpus_of

USAGE = """python ablate.py SCHEME [SCHEME ...] [--seeds=1,2,3] [config/FILE.py ...] [--key=value ...]

Train every position scheme with every seed, and compare. Start with: python ablate.py nope rope alibi"""
TRAIN = Path(__file__).resolve().with_name("train.py")
PROVENANCE = (
    "command",
    "git_commit",
    "device",
    "dtype",
    "threads",
    "versions",
    "corpus_sha256",
    "sources_sha256",
)
SHARED = PROVENANCE[3:]  # what should be the same for all cells


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

    @property
    def tokens(self) -> int:
        """How many tokens it is trained on."""
        s = self.settings
        return s.max_iters * s.batch_size * s.gradient_accumulation_steps * s.block_size

    def result(self) -> dict[str, Any] | None:
        """Its extrapolation.json with where it came from as "run"; None unless it is trained and tested to the end."""
        s = self.settings
        try:
            config, result = read_config(self.folder), load_result(self.folder)
            known, pos_file = {name: config[name] for name in PROVENANCE}, config["pos_file_sha256"]
        except UserError:
            return None
        tested = {
            length
            for _, length in rows_on(result["rows"], s.dataset, result.get("extend"))
        }
        complete = (
            result["tokens_trained"] == self.tokens
            and not differences(asdict(s), config["settings"])
            and pos_file == (sha256(Path(s.pos_file)) if s.pos_file else None)
            and tested >= set(evaluate.tested_lengths(s.block_size, s.eval_lengths))
        )
        return result | {"run": known} if complete else None


def plan(settings: AblateSettings, schemes: list[str]) -> list[Cell]:
    """All cells, the first seed's first. UserError, before anything runs, for what cannot be trained or compared."""
    if not schemes:
        raise UserError(
            "name the position schemes to compare, as in: python ablate.py nope rope alibi"
        )
    if settings.init_from not in ("auto", "scratch"):
        raise UserError(
            f"init_from={settings.init_from} would give every cell that model's scheme; leave it at auto"
        )
    schemes = [canonical(text, settings) for text in schemes]
    shared = {f.name: getattr(settings, f.name) for f in fields(TrainSettings)}
    cells = [
        Cell(TrainSettings(**shared | {"pos": pos, "seed": seed}))
        for seed in settings.seeds
        for pos in schemes
    ]
    by_folder: dict[Path, Cell] = {}
    for cell in cells:
        if (other := by_folder.setdefault(cell.folder, cell)) is not cell:
            raise UserError(
                f"{other.name} and {cell.name} are one run, {cell.folder}; name each scheme once"
            )
    device.pick(settings.device, settings.dtype)  # missed now, not in every cell
    corpus_of(settings)
    return cells


def canonical(text: str, settings: TrainSettings) -> str:
    """A position expression as train.py writes it; UserError where it does not fit the model."""
    shape = posenc.Shape(
        settings.n_head, settings.n_embd // settings.n_head, settings.n_embd, settings.block_size
    )
    pos_file = Path(settings.pos_file).resolve() if settings.pos_file else None
    return Scheme(text, shape, settings.n_layer, pos_file).text


def typed(
    settings: TrainSettings, kinds: tuple[str, ...] = ("result", "test", "execution")
) -> list[str]:
    """The settings that are not the defaults, as train.py's command line has them."""
    values = {
        f.name: getattr(settings, f.name)
        for f in fields(TrainSettings)
        if f.metadata["kind"] in kinds and getattr(settings, f.name) != f.default
    }
    return [
        f"--{name}={','.join(map(str, v)) if isinstance(v, tuple) else v}"
        for name, v in values.items()
    ]


def folder_of(settings: AblateSettings, cells: list[Cell]) -> Path:
    """ablate_dir, or by default a name with a digest of schemes, seeds and settings."""
    if settings.ablate_dir:
        return Path(settings.ablate_dir)
    what = "\n".join(" ".join(typed(cell.settings, ("result", "test"))) for cell in cells)
    digest = hashlib.sha256(what.encode("utf-8")).hexdigest()[:6]
    return Path("out") / f"ablate-{settings.dataset}-L{settings.block_size}-{digest}"


# ---- training


class Relay:
    """While it is entered, SIGINT and SIGTERM go to the running cell, which saves and ends; `signal` is the first."""

    def __init__(self) -> None:
        self.signal, self.child = 0, None

    def __enter__(self) -> Relay:
        self.before = {
            number: signal.signal(number, self._hand_on)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _hand_on(self, number: int, frame: FrameType | None) -> None:
        self.signal = self.signal or number
        if self.child:
            self.child.send_signal(number)

    def start(self, command: list[str]) -> subprocess.Popen[str]:
        """Start a child in a process group of its own, so that it gets the terminal's Ctrl-C once: from here.

        All it says comes through one pipe: should this process be killed, the child's next line ends it.
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
    """Run train.py for one cell, its output passed on as it comes; returns why it failed, or an empty text."""
    debug = ["--debug"] if "--debug" in sys.argv else []
    child = relay.start([sys.executable, "-u", str(TRAIN), *typed(cell.settings), *debug])
    last = ""
    for line in child.stdout:
        print(line, end="", flush=True)
        last = line.strip() or last
    if code := child.wait():
        return f"ended by signal {-code}" if code < 0 else last or f"exit code {code}"
    return (
        ""
        if cell.result()
        else f"train.py ended well, but {cell.folder} does not hold the result of these settings"
    )


def train_all(cells: list[Cell], relay: Relay, again: bool) -> dict[str, str]:
    """Train the cells that are not finished (all, if `again`), up to a signal: {name: why it failed}."""
    failed = {}
    for n, cell in enumerate(cells, 1):
        if relay.signal:
            break
        if again or cell.result() is None:
            print(f"cell {n}/{len(cells)}: {cell.name}", flush=True)
            failed[cell.name] = train(cell, relay)
    return {name: reason for name, reason in failed.items() if reason}


# ---- comparing


def compare(cells: list[Cell], failed: dict[str, str], folder: Path) -> str:
    """Write results.json, table.txt and figure.png; returns the table."""
    found: dict[str, list[dict[str, Any]]] = {}
    for cell in cells:
        missing = {"seed": cell.settings.seed, "reason": failed.get(cell.name, "not trained")}
        found.setdefault(cell.settings.pos, []).append(cell.result() or missing)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{folder} cannot be made ({error.strerror}); choose another --ablate_dir"
        ) from error
    command = [Path(sys.argv[0]).name, *sys.argv[1:]]
    write_json(folder / "results.json", {"command": command, "cells": found})
    table = "\n".join([seeds_table(found), *unequal(found)])
    write_text(folder / "table.txt", table + "\n")
    plot_seeds(found, folder / "figure.png")
    return table


def unequal(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    """A line for each thing that should be the same for all cells and is not."""
    runs = {
        f"{pos}, seed {r['seed']}": r["run"]
        for pos, results in found.items()
        for r in results
        if "run" in r
    }
    lines = []
    for key in SHARED:
        (first, value), *others = [(name, of[key]) for name, of in runs.items()]
        differ = [name for name, other in others if other != value]
        lines += (
            [f"note: {key} of {'; '.join(differ)} is not that of {first}: see results.json"]
            if differ
            else []
        )
    return lines


def announce(cells: list[Cell], share: list[Cell], folder: Path) -> None:
    """Say what is going to be done."""
    done = [cell.name for cell in cells if cell.result()]
    print(f"{len(cells)} cells, {len(done)} of them finished; the comparison goes to {folder}")
    print("".join(f"finished: {name}\n" for name in done), end="")
    if len(share) < len(cells):
        print(f"this share: {'; '.join(cell.name for cell in share) or 'nothing'}")


def main() -> int:
    """Train what is not yet trained, and compare."""
    settings, schemes = configure(AblateSettings, sys.argv[1:], USAGE)
    if world_size() > 1:
        raise UserError(
            "start ablate.py by itself: torchrun is for train.py; share the work out with --only=I/N"
        )
    cells = plan(settings, schemes)
    part, parts = map(int, (settings.only or "1/1").split("/"))
    share, folder = cells[part - 1 :: parts], folder_of(settings, cells)
    announce(cells, share, folder)
    with Relay() as relay:
        failed = train_all(share, relay, settings.overwrite)
    if relay.signal:
        print(
            f"stopped; the same command{' without --overwrite' if settings.overwrite else ''} goes on from there"
        )
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
    run(main)
