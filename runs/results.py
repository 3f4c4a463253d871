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
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

import numpy as np

from configurable import PROTOCOLS, TrainSettings, UserError, check_shape, require
from runs.files import read_json, write_json
from runs.folder import differ_from, read_config, scheme_label
from runs.labels import result_labels, run_name

Row = dict[str, Any]
Rows = dict[tuple[str, int], Row]  # by protocol and length
Result = dict[str, Any]  # the content of an extrapolation.json

MODEL = ("pos", "train_length", "seed", "parameters")  # identify a run
KEY = ("protocol", "stride", "length", "extend", "files_sha256", "split_sha256", "targets")
KEY += ("step", "checkpoint", "dtype", "attention")  # with the dataset, what a row answers
FIXED = ("fixed_targets", "windowed")  # have the same windows
ROW_SHAPE = {
    **dict.fromkeys(("protocol", "dataset", "split_sha256", "checkpoint"), str),
    **dict.fromkeys(("length", "step", "windows"), int),
    "extend": (str, NoneType),
    "stride": (int, NoneType),
}
MEASURED = {"nats": float, "stderr": float, "targets": str, "block_nats": [float], "dtype": str}
MEASURED |= {"stderr_vs_L": (float, NoneType)}
CHECK = ROW_SHAPE | {"dtype": str, "nats": float, "nats_float32": float, "difference": float}
SHAPE = {
    **dict.fromkeys(("pos", "unit", "checkpoint"), str),
    **dict.fromkeys(("train_length", "tokens_trained", "step", "seed"), int),
    "settings": dict,
    "rows": [ROW_SHAPE],
    "notes": [str],
    "per_position": [ROW_SHAPE],
    "float32_check": [CHECK],
}


# ---- files


def load_result(folder: str | Path) -> Result:
    """The extrapolation.json of a run folder; UserError if there is none or it is damaged."""
    path = Path(folder) / "extrapolation.json"
    test = f"python evaluate.py {folder}"
    require(path.exists(), f"{folder} has no {path.name}: {test} tests a trained run")
    advice = f"delete it, and {test} makes it again"
    try:
        result = read_json(path)
    except UserError as error:
        raise UserError(f"{path} is no readable JSON object: {advice}") from error
    check_shape(result, SHAPE, str(path), advice)
    require(result["rows"], f"{path} lacks rows: {advice}")
    for number, row in enumerate(result["rows"]):
        undefined = row.get("nats") is None and "reason" in row
        shape = {"nats": NoneType, "reason": str} if undefined else MEASURED
        check_shape(row, shape, str(path), advice, f"rows[{number}]")
        row.setdefault("nats", None)
    return result


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
    return {
        "pos": scheme_label(settings),
        "extend": model.extension_at(settings.block_size)["extend"],
        "train_length": settings.block_size,
        "original_length": model.config.block_size,
        "seed": settings.seed,
        "settings": settings_that_differ(settings),
        "step": step,
        "checkpoint": checkpoint[:16],
        "tokens_trained": tokens,
        "parameters": model.parameter_count,
    }


def settings_that_differ(settings: TrainSettings) -> dict[str, Any]:
    """The settings that change the result, if they are not the defaults.

    Those that a result names by itself are left out: pos, extend, block_size and seed.
    """
    own, usual = (asdict(s.warmed_up(settings.max_iters)) for s in (settings, TrainSettings()))
    kinds = {f.name: f.metadata["kind"] for f in fields(TrainSettings)}
    named = ("pos", "extend", "block_size", "seed")
    names = [name for name in own if kinds[name] == "result" and name not in named]
    return {name: own[name] for name in names if own[name] != usual[name]}


# ---- is everything measured?


def tested_lengths(train_length: int, lengths: tuple[int, ...] = ()) -> list[int]:
    """The ascending lengths to test: those given, else L/2, L, 2L ... 32L. L is always one."""
    default = (train_length // 2, *(train_length << k for k in range(6)))
    return sorted({*(lengths or default), train_length} - {0})


def covers(rows: list[Row], asked: Iterable[Row]) -> bool:
    """Whether each question, some fields of a row with their values, has a row that has them."""
    return all(any(fields.items() <= row.items() for row in rows) for fields in asked)


def only(result: Result, windows: int, dtype: str | None = None) -> Result:
    """A result without the rows of FIXED that have other windows or, if given, another dtype.

    A row that could not be measured has the windows that were asked for, and no dtype.
    """
    rows = [r for r in result["rows"] if dtype is None or r.get("dtype") in (None, dtype)]
    return result | {"rows": [r for r in rows if has_windows(r, windows)]}


def has_windows(row: Row, windows: int) -> bool:
    """Whether a row has so many windows, or is of a protocol that has no windows to choose."""
    return row["windows"] == windows or row["protocol"] not in FIXED


def finished_result(folder: str | Path, settings: TrainSettings) -> Result | None:
    """The result of a run that is trained and tested to its end with these settings, else None.

    That is: config.json has the same settings that change the result and the same pos_file, and the
    model was tested after its last step, on its own corpus, by every protocol at every length. Rows
    with other windows are left out. UserError if a file of the folder is damaged.
    """
    folder = Path(folder)
    if not ((folder / "config.json").exists() and (folder / "extrapolation.json").exists()):
        return None
    config, result = read_config(folder), only(load_result(folder), settings.eval_windows)
    if differ_from(settings, config) or config["settings"]["max_iters"] != settings.max_iters:
        return None
    place = {"dataset": settings.dataset, "extend": result.get("extend")}
    lengths = tested_lengths(settings.block_size, settings.eval_lengths)
    asked = [
        place | {"protocol": protocol, "length": length, "step": settings.max_iters}
        for protocol, length in itertools.product(PROTOCOLS, lengths)
    ]
    return result if covers(result["rows"], asked) else None


# ---- rows and their differences


def rows_on(
    rows: list[Row], dataset: str, extend: str | None = None, windows: int | None = None
) -> Rows:
    """The newest rows on one dataset under one extension (None: without any), by protocol, length.

    All are of one checkpoint, split and number format, and those of FIXED have as many `windows`,
    by default the most that fixed_targets was tested with. "sliding/STRIDE" stands for sliding.
    """
    newest, found = newest_rows(rows, dataset, extend), {}
    windows = windows or max(tested_windows(newest), default=0)
    for row in newest:
        if has_windows(row, windows):
            stride = f"/{row['stride']}" if row["stride"] else ""
            found[row["protocol"] + stride, row["length"]] = row
    return found


def newest_rows(rows: list[Row], dataset: str, extend: str | None) -> list[Row]:
    """The rows of the newest checkpoint and split of a dataset, and of the newest extension files.

    They have the number format that most of them have, or else the one that was first.
    """
    here = [r for r in rows if r["dataset"] == dataset]
    here = like_newest(here, "step", "checkpoint", "split_sha256")
    here = like_newest([r for r in here if r["extend"] == extend], "files_sha256")
    formats = Counter(r["dtype"] for r in here if r.get("dtype"))
    dtype = next(iter(formats.most_common(1)), (None,))[0]
    return [r for r in here if r.get("dtype") in (None, dtype)]


def like_newest(rows: list[Row], *names: str) -> list[Row]:
    """The rows that have the same fields of these names as the last one of the largest step."""
    newest = max(reversed(rows), key=lambda r: r["step"], default={})
    return [r for r in rows if all(r.get(name) == newest.get(name) for name in names)]


def tested_windows(rows: list[Row]) -> set[int]:
    """The numbers of windows of fixed_targets, or else of windowed, that were found in the text.

    Those that were asked for, if none was.
    """
    rows = [r for r in rows if r["protocol"] in FIXED]
    rows = [r for r in rows if r.get("targets")] or rows
    return {r["windows"] for r in [r for r in rows if r["protocol"] == FIXED[0]] or rows}


def shared_windows(several: list[list[Row]]) -> int | None:
    """The largest number of windows that all rows of several results have; None if there is none.

    A result without rows of FIXED does not count.
    """
    tested = [found for found in map(tested_windows, several) if found]
    return max(set.intersection(*tested), default=None) if tested else None


def fixed_target_rows(rows: Rows) -> dict[int, Row]:
    """The rows of fixed_targets by ascending length."""
    return {n: rows[p, n] for p, n in sorted(rows) if p == "fixed_targets"}


def standard_error(values: np.ndarray) -> float:
    """The standard error of the mean of the values."""
    return float(np.std(values, ddof=1) / math.sqrt(len(values)))


class Difference(NamedTuple):
    """A paired difference of two rows in nats, and the standard error of its mean over blocks."""

    nats: float
    stderr: float

    @property
    def near_zero(self) -> bool:
        """Within 2 paired standard errors or 0.005 nats."""
        return abs(self.nats) <= max(2 * self.stderr, 0.005)


def same_targets(a: Row, b: Row) -> bool:
    """Whether two rows were measured on the same targets of the same text, in as many blocks."""
    asked = [(r["split_sha256"], r["targets"], len(r["block_nats"])) for r in (a, b)]
    return asked[0] == asked[1]


def paired(a: Row | None, b: Row | None) -> Difference | None:
    """a - b, block by block; None if one is missing, undefined or measured on other targets."""
    if not (a and b) or None in (a["nats"], b["nats"]) or not same_targets(a, b):
        return None
    blocks = np.subtract(a["block_nats"], b["block_nats"])
    return Difference(a["nats"] - b["nats"], standard_error(blocks))


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
        difference = paired(row, at_train_length.get(row["protocol"]))
        if difference:
            row["stderr_vs_L"] = difference.stderr


# ---- what rows show


def doubts(rows: Rows, train_length: int) -> list[str]:
    """Why these rows cannot show the use of context beyond L; empty if they can.

    Empty too if fixed_targets was not measured.
    """
    if ("fixed_targets", train_length) not in rows:
        return []
    reasons, half = [], train_length // 2
    cost = paired(rows.get(("fixed_targets", half)), rows["fixed_targets", train_length])
    if not cost:
        reasons.append(f"loss({half}) - loss({train_length}) has no number")
    elif cost.nats < max(2 * cost.stderr, 0.01):
        difference = f"{cost.nats:+.4f} ± {cost.stderr:.4f} nats"
        reasons.append(f"loss({half}) - loss({train_length}) is only {difference}")
    beyond = [far(rows, n) for n in fixed_target_rows(rows) if n > train_length]
    if not any(beyond):
        reasons.append(f"far has no number beyond {train_length}")
    elif not any(d and d.nats > 0 and not d.near_zero for d in beyond):
        reasons.append("far is nowhere clearly above zero")
    return reasons


def row_notes(rows: list[Row], train_length: int) -> list[str]:
    """What a reader of the newest of these rows must know, in sentences."""
    notes, verdicts = [], []
    for dataset, extend in dict.fromkeys((row["dataset"], row["extend"]) for row in rows):
        newest = rows_on(rows, dataset, extend)
        notes += [row["note"] for row in newest.values() if row.get("note")]
        reasons = doubts(newest, train_length)
        where = f"on {dataset} under {extend}" if extend else f"on {dataset}"
        doubt = f"{where} this run cannot show the use of context beyond {train_length}"
        if reasons:
            verdicts.append(f"{doubt}: {', and '.join(reasons)}")
    return [*dict.fromkeys(notes), *verdicts]


def reason_at(rows: Rows, length: int) -> str:
    """Why no protocol is defined at a length; empty if one is."""
    here = [row for (_, n), row in rows.items() if n == length]
    return "" if any(row["nats"] is not None for row in here) else here[0]["reason"]


# ---- several results


def select_rows(results: list[Result], dataset: str) -> tuple[str, list[Rows]]:
    """The dataset (by default the first tested) and each result's newest rows on it that compare.

    All have as many windows, the most that all results have. UserError if the dataset was not
    tested, or if two results were measured on different targets.
    """
    dataset = dataset or next((row["dataset"] for r in results for row in r["rows"]), "")
    newest = [newest_rows(r["rows"], dataset, r.get("extend")) for r in results]
    for result, rows in zip(results, newest, strict=True):
        where = f"{dataset or 'any dataset'} under {result.get('extend') or 'no extension'}"
        require(rows, f"{result['pos']} was not tested on {where}: run evaluate.py on it first")
    most = shared_windows(newest)
    shown = [rows_on(r["rows"], dataset, r.get("extend"), most) for r in results]
    selected = [comparable_rows(rows) for rows in shown]
    refuse_other_targets(dataset, result_labels(results), selected)
    return dataset, selected


def refuse_other_targets(dataset: str, labels: list[str], all_rows: list[Rows]) -> None:
    """UserError, with the labels of two results, if they have different targets."""
    first: dict[str, tuple[str, Row]] = {}  # by protocol: the first label and row
    for label, rows in zip(labels, all_rows, strict=True):
        for (protocol, _), row in rows.items():
            if protocol in PROTOCOLS and row["nats"] is not None:
                other, other_row = first.setdefault(protocol, (label, row))
                pair = f"{other} and {label} were tested on different targets of {dataset}"
                advice = "evaluate them with the same --eval_windows and the same corpus files"
                require(same_targets(other_row, row), f"{pair} ({protocol}): {advice}")


def comparable_rows(rows: Rows) -> Rows:
    """The rows without those on other targets than the protocol's own; see evaluate.py."""
    return {place: row for place, row in rows.items() if not row.get("other_targets")}


# ---- several extensions


def cropped_row(result: Result, dataset: str) -> Row | None:
    """The row of fixed_targets of a model as it was trained, at its training length."""
    rows = rows_on(result["rows"], dataset, result.get("extend"))
    return rows.get(("fixed_targets", result["train_length"]))


def gains(
    results: list[Result], others: list[Result], dataset: str = ""
) -> tuple[str, dict[str, dict[int, list[float]]]]:
    """What each extension gains over cropping: the dataset, and {label: {length: nats by seed}}.

    A gain is the loss of the cropped model minus the loss of the row, so -inf where that diverged.
    The cropped model is the one of the same seed as it was trained, at its training length.
    `results` are one model, a result for each seed, with rows under several extensions. `others`
    are shown as they were trained. The label with the highest mean at the longest length comes
    first.
    """
    dataset = dataset or results[0]["rows"][0]["dataset"]
    cropped = {result["seed"]: cropped_row(result, dataset) for result in results}
    labelled = []
    for r in results:
        for extend in dict.fromkeys(row["extend"] for row in r["rows"]):
            labelled.append((extend or "none", r["seed"], rows_on(r["rows"], dataset, extend)))
    for r in others:
        labelled.append((run_name(r), r["seed"], rows_on(r["rows"], dataset, r.get("extend"))))
    by_label: dict[str, dict[int, list[float]]] = {}
    for label, seed, rows in labelled:
        for n, row in fixed_target_rows(rows).items():
            difference = paired(cropped.get(seed), row)
            if difference or (cropped.get(seed) and row.get("diverged")):
                gained = difference.nats if difference else -math.inf
                by_label.setdefault(label, {}).setdefault(n, []).append(gained)
    nothing = f"nothing on {dataset} was measured on the targets of its row at the training length"
    reasons = [f": {row['reason']}" for row in filter(None, cropped.values()) if "reason" in row]
    require(by_label, nothing + "".join(reasons[:1]))
    longest = max(n for by_length in by_label.values() for n in by_length)
    means = {label: np.mean(of.get(longest, -math.inf)) for label, of in by_label.items()}
    best = sorted(by_label, key=lambda label: (-means[label], label))
    return dataset, {label: dict(sorted(by_label[label].items())) for label in best}
