"""The results of testing long: their file, what may be compared, and what the numbers show.

A result is the content of a run's extrapolation.json. It has a row for each question that was asked
(see KEY). Rows are only ever added: one is replaced if the same question is asked again. They are
compared only if they were measured on the same targets of the same text. Windows and seeds are
never pooled: the error of a difference between two rows of one run comes from its windows, the
error of a difference between two schemes from their seeds.
"""

import itertools
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from configurable import PROTOCOLS, TrainSettings, check_shape, read_json, require
from runs.files import write_json
from runs.folder import differ_from, read_config, scheme_label
from runs.labels import run_name, settings_that_differ

Row = dict[str, Any]
Rows = dict[tuple[str, int], Row]  # by protocol and length
Result = dict[str, Any]  # the content of an extrapolation.json
Gains = dict[str, dict[int, list[float]]]  # nats by seed, by label and length

MODEL = ("pos", "train_length", "seed", "parameters")  # identify a run
KEY = ("protocol", "stride", "length", "extend", "files_sha256", "split_sha256", "targets")
KEY += ("step", "checkpoint", "dtype", "attention")  # with the dataset, what a row answers
FIXED = ("fixed_targets", "windowed")  # have the same windows
ANSWERED = ("recall", "needles", "exact_match")  # of rows with answers: all sizes at once
ASKED = dict.fromkeys(("protocol", "dataset", "split_sha256", "checkpoint"), str)
ASKED |= dict.fromkeys(("length", "step", "windows"), int)
ASKED |= {"extend": (str, type(None)), "stride": (int, type(None))}
MEASURED = {"nats": float, "stderr": float, "targets": str, "block_nats": [float], "dtype": str}
MEASURED |= {"stderr_vs_L": (float, type(None))}
CHECK = {"dtype": str, "nats": float, "nats_float32": float, "difference": float}
SHAPE = dict.fromkeys(("pos", "unit", "checkpoint"), str) | {"settings": dict, "notes": [str]}
SHAPE |= dict.fromkeys(("train_length", "tokens_trained", "step", "seed"), int)
SHAPE |= {"rows": [ASKED], "per_position": [ASKED], "float32_check": [ASKED | CHECK]}


# ---- files


def load_result(folder: str | Path) -> Result:
    """The extrapolation.json of a run folder; UserError if there is none or it is damaged."""
    path = Path(folder) / "extrapolation.json"
    test = f"python evaluate.py {folder}"
    require(path.exists(), f"{folder} has no {path.name}: {test} tests a trained run")
    advice = f"delete it, and {test} makes it again"
    result = read_json(path, SHAPE, advice)
    require(result["rows"], f"{path} lacks rows: {advice}")
    for number, row in enumerate(result["rows"]):
        shape = {"reason": str} if row.setdefault("nats", None) is None else MEASURED
        check_shape(row, shape, str(path), advice, f"rows[{number}]")
    return result


def load_comparison(folder: str | Path) -> dict[str, Any]:
    """The results.json that ablate.py wrote into a folder; UserError if it is damaged.

    Its "cells" are a scheme's results by seed, a missing one {"seed": ..., "reason": ...}.
    """
    path, advice = Path(folder) / "results.json", "the command of its ablate.py makes it again"
    content = read_json(path, {"cells": dict, "rates": (dict, type(None))}, advice)
    for label, results in content["cells"].items():
        check_shape(results, [dict], str(path), advice, label)
        done = [result for result in results if "reason" not in result]
        check_shape(done, [SHAPE], str(path), advice, label)
    return content


def results_in(folder: str | Path) -> list[Result]:
    """The result of a run folder, or all those of a comparison's."""
    if not (Path(folder) / "results.json").exists():
        return [load_result(folder)]
    cells = load_comparison(folder)["cells"]
    return [r for of in cells.values() for r in of if "rows" in r]


def update_result(folder: str | Path, new: Result) -> Result:
    """Merge a new result into the extrapolation.json of a run folder; what is in the file now."""
    path = Path(folder) / "extrapolation.json"
    result = merge(load_result(folder), new) if path.exists() else new
    write_json(path, result)
    return result


def merge(old: Result, new: Result) -> Result:
    """The old result with what is new: only what answers the same question is replaced.

    The new result alone if the old one is of another run. The datasets keep their order, and in a
    dataset what was measured last comes last.
    """
    if any(old.get(name) != new[name] for name in MODEL):
        return new
    merged = old | new
    for name in ("rows", "per_position", "float32_check"):
        again = set(map(question, new[name]))
        rows = [*(row for row in old[name] if question(row) not in again), *new[name]]
        order = [row["dataset"] for row in [*old[name], *new[name]]]
        merged[name] = sorted(rows, key=lambda row: order.index(row["dataset"]))
    return merged | {"notes": row_notes(merged["rows"], new["train_length"])}


def question(row: Row) -> str:
    """What a row answers: its dataset and the fields of KEY."""
    return json.dumps([row.get(name) for name in ("dataset", *KEY)], sort_keys=True)


def describe_model(
    model: Any, settings: TrainSettings, *, step: int, tokens: int, checkpoint: str
) -> Result:
    """What a result says of a model that was trained with these settings.

    It was trained for so many steps on so many tokens, and `checkpoint` is the SHA-256 of its file.
    This is called before another extension is put on the model.
    """
    length = settings.block_size
    about = {"pos": scheme_label(settings), "extend": model.extension_at(length)["extend"]}
    about |= {"train_length": length, "original_length": model.config.block_size}
    about |= {"seed": settings.seed, "settings": settings_that_differ(settings)}
    about |= {"step": step, "checkpoint": checkpoint[:16], "tokens_trained": tokens}
    return about | {"parameters": model.parameter_count}


# ---- is everything measured?


def tested_lengths(train_length: int, lengths: tuple[int, ...] = ()) -> list[int]:
    """The ascending lengths to test: those given, else L/2, L, 2L ... 32L. L is always one."""
    default = (train_length // 2, *(train_length << k for k in range(6)))
    return sorted({*(lengths or default), train_length} - {0})


def covers(rows: list[Row], asked: list[Row]) -> bool:
    """Whether each question, some fields of a row with their values, has a row that has them."""
    return all(any(fields.items() <= row.items() for row in rows) for fields in asked)


def only(result: Result, windows: int, dtype: str) -> Result:
    """A result without the rows of FIXED that have other windows, and of another number format.

    A row that could not be measured has the windows that were asked for, and no format. If none has
    the format, all formats are kept.
    """
    rows = [r for r in result["rows"] if has_windows(r, windows)]
    if any(r.get("dtype") == dtype for r in rows):
        rows = [r for r in rows if r.get("dtype") in (None, dtype)]
    return result | {"rows": rows}


def has_windows(row: Row, windows: int) -> bool:
    """Whether a row has so many windows, 0 for any, or none to choose, as where it has no place."""
    chosen = row["protocol"] in FIXED and row.get("targets")
    return windows in (0, row["windows"]) or not chosen


def finished_result(folder: Path, settings: TrainSettings) -> Result | None:
    """The result of a run that is trained and tested to its end with these settings, else None.

    That is: config.json has the same settings that change the result and the same pos_file, and the
    model was tested after its last step, on its own corpus, by every protocol at every length. Only
    these rows are kept. UserError if a file of the folder is damaged.
    """
    if not (folder / "extrapolation.json").exists():
        return None
    config, result, steps = read_config(folder), load_result(folder), settings.max_iters
    if differ_from(settings, config) or config["settings"]["max_iters"] != steps:
        return None
    place = {"dataset": settings.dataset, "extend": result.get("extend"), "step": steps}
    here = [row for row in result["rows"] if place.items() <= row.items()]
    lengths = tested_lengths(settings.block_size, settings.eval_lengths)
    asked = set(itertools.product(PROTOCOLS, lengths))
    asked = {cell(row) for row in here if "trained" in row} or asked  # of a corpus of rows
    rows = [row for row in here if cell(row) in asked]
    result = only(result | {"rows": rows}, settings.eval_windows, config["dtype"])
    return result if asked == set(map(cell, result["rows"])) else None


# ---- which rows are shown


def rows_on(rows: list[Row], dataset: str, extend: str | None = None, windows: int = 0) -> Rows:
    """The newest rows on one dataset under one extension (None: without any), by protocol, length.

    Those of FIXED have as many `windows`, by default (0) those of `shared_windows`. A row on other
    targets than the protocol's own has a reason in place of its loss.
    """
    newest, found = newest_rows(rows, dataset, extend), {}
    windows = windows or shared_windows([newest])
    for row in sorted(newest, key=lambda row: bool(row.get("targets"))):  # a reason is no match
        if has_windows(row, windows):
            other = {"nats": None, "reason": row.get("note")} if row.get("other_targets") else {}
            found[cell(row)] = row | other
    return found


def cell(row: Row) -> tuple[str, int]:
    """Where a row stands in a table: its protocol, with its stride if it has one, and length."""
    stride = f"/{row['stride']}" if row["stride"] else ""
    return row["protocol"] + stride, row["length"]


def newest_rows(rows: list[Row], dataset: str, extend: str | None) -> list[Row]:
    """The rows of the newest checkpoint and split of a dataset, and of the newest extension files.

    They have the number format that most of them have, or else the one that was first.
    """
    here = [r for r in rows if r["dataset"] == dataset]
    here = like_newest(here, "step", "checkpoint", "split_sha256")
    here = like_newest([r for r in here if r["extend"] == extend], "files_sha256")
    formats = Counter(r["dtype"] for r in here if r.get("dtype")).most_common(1)
    return [r for r in here if r.get("dtype") in (None, *dict(formats))]


def like_newest(rows: list[Row], *names: str) -> list[Row]:
    """The rows that have the same fields of these names as the last one of the largest step."""
    newest = max(reversed(rows), key=lambda r: r["step"], default={})
    return [r for r in rows if all(r.get(name) == newest.get(name) for name in names)]


def shared_windows(several: list[list[Row]]) -> int:
    """The number of windows, of those that all results have, with which most lengths were tested.

    Only fixed_targets counts. Of equals it is the largest; 0 if there is none.
    """
    fixed = [[r for r in rows if r["protocol"] == "fixed_targets"] for rows in several]
    tested = [[r["windows"] for r in rows if r.get("targets")] for rows in fixed]
    every = sum(tested, [])
    shared = [n for n in every if all(n in windows for windows in tested if windows)]
    return max(shared, key=lambda n: (every.count(n), n), default=0)


def by_length(rows: Rows, protocol: str = "fixed_targets") -> dict[int, Row]:
    """The rows of one protocol by ascending length."""
    return {n: rows[name, n] for name, n in sorted(rows) if name == protocol}


def rows_of(results: list[Result], dataset: str) -> list[Rows]:
    """Each result's newest rows on a dataset, under its own extension and with windows that all
    results have; none if it was not tested there.
    """
    windows = shared_windows([newest_rows(r["rows"], dataset, r.get("extend")) for r in results])
    return [rows_on(r["rows"], dataset, r.get("extend"), windows) for r in results]


# ---- losses and their differences


def position_bins(length: int) -> list[int]:
    """The edges of bins of positions that double: 0, 1, 2, 4 ... up to `length`."""
    return [0, *(1 << k for k in range((length - 1).bit_length())), length]


def standard_error(values: np.ndarray) -> float:
    """The standard error of the mean of the values."""
    return float(np.std(values, ddof=1) / math.sqrt(len(values)))


class Difference(NamedTuple):
    """A paired difference of two rows in nats, and the standard error of its mean over blocks."""

    nats: float
    stderr: float
    blocks: int = 0

    @property
    def near_zero(self) -> bool:
        """Within 2 paired standard errors or 0.005 nats."""
        return abs(self.nats) <= max(2 * self.stderr, 0.005)


def targets(row: Row) -> tuple[str, str, int]:
    """The targets that a row was measured on, and the number of its blocks."""
    return row["split_sha256"], row["targets"], len(row["block_nats"])


def paired(a: Row | None, b: Row | None) -> Difference | None:
    """a - b, block by block; None if one is missing, undefined or measured on other targets."""
    if not (a and b) or None in (a["nats"], b["nats"]) or targets(a) != targets(b):
        return None
    blocks = np.subtract(a["block_nats"], b["block_nats"])
    return Difference(a["nats"] - b["nats"], standard_error(blocks), len(blocks))


def gain(rows: Rows, train_length: int, length: int) -> Difference | None:
    """loss(L) - loss(N) of fixed_targets: negative if the scheme breaks, else context helps."""
    return paired(rows.get(("fixed_targets", train_length)), rows.get(("fixed_targets", length)))


def far(rows: Rows, length: int) -> Difference | None:
    """loss(windowed, N) - loss(fixed_targets, N): positive, the model uses keys beyond L."""
    return paired(rows.get(("windowed", length)), rows.get(("fixed_targets", length)))


def compare_to_train_length(rows: list[Row], train_length: int) -> None:
    """Set stderr_vs_L of rows measured together: the standard error of their difference to L."""
    at_train_length = {row["protocol"]: row for row in rows if row["length"] == train_length}
    for row in rows:
        if difference := paired(row, at_train_length.get(row["protocol"])):
            row["stderr_vs_L"] = difference.stderr


# ---- what rows show


def doubts(rows: Rows, train_length: int) -> list[str]:
    """Why these rows cannot show the use of context beyond L; empty if they can.

    Empty too if fixed_targets was not measured.
    """
    fixed, half = by_length(rows), train_length // 2
    if train_length not in fixed:
        return []
    reasons, cost = [], paired(fixed.get(half), fixed[train_length])
    if not cost or cost.nats < max(2 * cost.stderr, 0.01):
        found = f"is only {cost.nats:+.4f} ± {cost.stderr:.4f} nats" if cost else "has no number"
        reasons.append(f"loss({half}) - loss({train_length}) {found}")
    beyond = [d for n in fixed if n > train_length and (d := far(rows, n))]
    nowhere = "is nowhere clearly above zero" if beyond else f"has no number beyond {train_length}"
    clear = any(d.nats > 0 and not d.near_zero for d in beyond)
    return reasons if clear else [*reasons, f"far {nowhere}"]


def row_notes(rows: list[Row], train_length: int) -> list[str]:
    """What a reader of the newest of these rows must know, in sentences."""
    notes = []
    for dataset, extend in dict.fromkeys((row["dataset"], row["extend"]) for row in rows):
        newest = rows_on(rows, dataset, extend)
        notes += [row["note"] for row in newest.values() if row.get("note")]
        reasons = ", and ".join(doubts(newest, train_length))
        where = f"on {dataset} under {extend}" if extend else f"on {dataset}"
        doubt = f"{where} this run cannot show the use of context beyond {train_length}"
        notes += [f"{doubt}: {reasons}"] if reasons else []
    return list(dict.fromkeys(notes))


# ---- several extensions


def cropped_row(result: Result, dataset: str) -> Row | None:
    """The row of fixed_targets of a model as it was trained, at its training length."""
    rows = rows_on(result["rows"], dataset, result.get("extend"))
    return rows.get(("fixed_targets", result["train_length"]))


def gains(results: list[Result], others: list[Result], dataset: str = "") -> tuple[str, Gains]:
    """What each extension gains over cropping: the dataset, and {label: {length: nats by seed}}.

    A gain is the loss of the cropped model minus the loss of the row, so -inf where that diverged.
    The cropped model is the one of the same seed as it was trained, at its training length.
    `results` are one model, a result for each seed, with rows under several extensions. `others`
    are shown as they were trained. The label with the highest mean at the longest length comes
    first.
    """
    dataset = dataset or results[0]["rows"][0]["dataset"]
    cropped = {r["seed"]: row for r in results if (row := cropped_row(r, dataset))}
    shown = [(run_name(r), r["seed"], rows_on(r["rows"], dataset, r.get("extend"))) for r in others]
    for r in results:
        for extend in {row["extend"] for row in r["rows"]}:
            shown.append((extend or "none", r["seed"], rows_on(r["rows"], dataset, extend)))
    found: Gains = {}
    for label, seed, rows in shown:
        base = cropped.get(seed)
        for n, row in by_length(rows).items():
            difference = paired(base, row)
            if difference or (base and row.get("diverged")):
                gained = difference.nats if difference else -math.inf
                found.setdefault(label, {}).setdefault(n, []).append(gained)
    why = next((row["reason"] for row in cropped.values() if "reason" in row), "test it at L too")
    require(found, f"nothing on {dataset} was measured on the targets of its row at L: {why}")
    longest = max(n for lengths in found.values() for n in lengths)
    best = sorted(found, key=lambda label: (-np.mean(found[label].get(longest, -math.inf)), label))
    return dataset, {label: found[label] for label in best}
