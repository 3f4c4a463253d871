"""The results of testing long: their file, what may be compared, and what the numbers show.

A result is the content of a run's extrapolation.json. It has a row for each protocol, length,
dataset and extension. Rows are compared only if they were measured on the same targets of the same
text. Windows and seeds are never pooled: the error of a difference between two rows of one run
comes from its windows, the error of a difference between two schemes from their seeds.
"""

import math
from dataclasses import asdict
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

import numpy as np

from configurable import PROTOCOLS, TrainSettings, UserError, check_shape, differences, require
from runs.files import read_json, sha256, write_json
from runs.folder import read_config, scheme_label

Row = dict[str, Any]
Rows = dict[tuple[str, int], Row]  # by protocol and length
Result = dict[str, Any]  # the content of an extrapolation.json
Seeds = dict[int, dict[int, Row]]  # of one scheme: rows of fixed_targets by seed and length

MODEL = ("pos", "train_length", "tokens_trained", "seed", "parameters")  # identify a trained model
PLACE = ("protocol", "length", "extend", "dataset")  # identify a row of a result
ROW_SHAPE = {"protocol": str, "length": int, "dataset": str, "extend": (str, NoneType)}
MEASURED = {"nats": float, "targets": str, "split_sha256": str, "block_nats": [float]}
MEASURED |= {"stderr_vs_L": (float, NoneType)}
CHECK = {"dtype": str, "length": int, "windows": int, "difference": float}
CHECK |= {"nats": float, "nats_float32": float}
SHAPE = {
    **dict.fromkeys(("pos", "unit"), str),
    **dict.fromkeys(("train_length", "tokens_trained", "seed"), int),
    "rows": [ROW_SHAPE],
    "notes": [str],
    "per_position": dict,
    "float32_check": dict,
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
    if result["float32_check"]:
        check_shape(result["float32_check"], CHECK, str(path), advice, "float32_check")
    for number, row in enumerate(result["rows"]):
        undefined = row.get("nats") is None and "reason" in row
        shape = {"nats": NoneType, "reason": str} if undefined else MEASURED
        check_shape(row, shape, str(path), advice, f"rows[{number}]")
        row.setdefault("extend", None)
        row.setdefault("nats", None)
    return result


def update_result(folder: str | Path, new: Result) -> Result:
    """Merge a new result into the extrapolation.json of a run folder; what is in the file now."""
    path = Path(folder) / "extrapolation.json"
    result = merge(load_result(folder), new) if path.exists() else new
    write_json(path, result)
    return result


def merge(old: Result, new: Result) -> Result:
    """Replace the rows that were measured again and keep the others.

    The new result alone if the old one is of another model. What is known by position remains that
    of the first dataset and extension.
    """
    if not same_model(old, new):
        return new
    by_place = {tuple(row[name] for name in PLACE): row for row in [*old["rows"], *new["rows"]]}
    rows = list(by_place.values())
    merged = old | new | {"rows": rows, "notes": row_notes(rows, new["train_length"])}
    before, now = old["per_position"], new["per_position"]
    same = all(before.get(name) == now.get(name) for name in ("dataset", "extend"))
    if before and not same:
        merged |= {name: old[name] for name in ("per_position", "float32_check")}
    return merged


def describe_model(model: Any, settings: TrainSettings, tokens: int) -> Result:
    """What a result says of a model that was trained on so many tokens with these settings.

    It is called before another extension is put on the model.
    """
    return {
        "pos": scheme_label(settings),
        "extend": model.extension_at(settings.block_size)["extend"],
        "train_length": settings.block_size,
        "original_length": model.config.block_size,
        "seed": settings.seed,
        "tokens_trained": tokens,
        "parameters": model.parameter_count,
    }


def same_model(a: Result, b: Result) -> bool:
    """Whether two results are of one trained model."""
    return all(a.get(name) == b[name] for name in MODEL)


# ---- is everything measured?


def tested_lengths(train_length: int, lengths: tuple[int, ...] = ()) -> list[int]:
    """The ascending lengths to test: those given, else L/2, L, 2L ... 32L. L is always one."""
    default = (train_length // 2, *(train_length << k for k in range(6)))
    return sorted({*(lengths or default), train_length} - {0})


def covers(rows: Rows, protocol: str, expected: dict[int, dict[str, Any]]) -> bool:
    """Whether a protocol has a row at every length of `expected`, with the fields given there.

    `expected` is {length: {field: value}}, and a field that a row lacks counts as None. Any
    targets are right for a row that is undefined, because it has none.
    """
    for length, fields in expected.items():
        row = rows.get((protocol, length))
        if row is None:
            return False
        for name, value in fields.items():
            without_targets = name == "targets" and row["nats"] is None
            if row.get(name) != value and not without_targets:
                return False
    return True


def finished_result(folder: str | Path, settings: TrainSettings) -> Result | None:
    """The result of a run that is trained and tested to its end with these settings, else None.

    That is: config.json has the same settings that change the result and the same pos_file, and the
    model was tested after its last step, on its own corpus, by every protocol at every length.
    UserError if a file of the folder is damaged.
    """
    folder = Path(folder)
    if not ((folder / "config.json").exists() and (folder / "extrapolation.json").exists()):
        return None
    config, result = read_config(folder), load_result(folder)
    pos_file = sha256(Path(settings.pos_file)) if settings.pos_file else None
    if differences(asdict(settings), config["settings"]) or config["pos_file_sha256"] != pos_file:
        return None
    sequences = settings.max_iters * settings.batch_size * settings.gradient_accumulation_steps
    if result["tokens_trained"] != sequences * settings.block_size:
        return None  # a test of an earlier checkpoint
    rows = rows_on(result["rows"], settings.dataset, result.get("extend"))
    expected = {n: {} for n in tested_lengths(settings.block_size, settings.eval_lengths)}
    return result if all(covers(rows, p, expected) for p in PROTOCOLS) else None


# ---- rows and their differences


def rows_on(rows: list[Row], dataset: str, extend: str | None = None) -> Rows:
    """The rows on one dataset under one extension (None: without any), by protocol and length."""
    chosen = [r for r in rows if (r["dataset"], r["extend"]) == (dataset, extend)]
    return {(r["protocol"], r["length"]): r for r in chosen}


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
        reasons.append(f"loss({half}) was not measured")
    elif cost.nats < max(2 * cost.stderr, 0.01):
        difference = f"{cost.nats:+.4f} ± {cost.stderr:.4f} nats"
        reasons.append(f"loss({half}) - loss({train_length}) is only {difference}")
    beyond = [far(rows, n) for n in fixed_target_rows(rows) if n > train_length]
    if not any(beyond):
        reasons.append(f"far was not measured beyond {train_length}")
    elif not any(d and d.nats > 0 and not d.near_zero for d in beyond):
        reasons.append("far is nowhere clearly above zero")
    return reasons


def row_notes(rows: list[Row], train_length: int) -> list[str]:
    """What a reader of these rows must know, in sentences."""
    notes = list(dict.fromkeys(row["note"] for row in rows if row.get("note")))
    for dataset, extend in dict.fromkeys((row["dataset"], row["extend"]) for row in rows):
        reasons = doubts(rows_on(rows, dataset, extend), train_length)
        where = f"on {dataset} under {extend}" if extend else f"on {dataset}"
        doubt = f"{where} this run cannot show the use of context beyond {train_length}"
        if reasons:
            notes.append(f"{doubt}: {', and '.join(reasons)}")
    return notes


def reason_at(rows: Rows, length: int) -> str:
    """Why no protocol is defined at a length; empty if one is."""
    here = [row for (_, n), row in rows.items() if n == length]
    return "" if any(row["nats"] is not None for row in here) else here[0]["reason"]


# ---- several results


def select_rows(results: list[Result], dataset: str) -> tuple[str, list[Rows]]:
    """The dataset (by default the first tested) and each result's rows on it that compare with L.

    UserError if the dataset was not tested, or if two results were measured on different targets.
    """
    dataset = dataset or next((row["dataset"] for r in results for row in r["rows"]), "")
    comparable = []
    for result in results:
        rows = rows_on(result["rows"], dataset, result.get("extend"))
        comparable.append(comparable_rows(rows, result["train_length"]))
        where = dataset or "any dataset"
        require(rows, f"{result['pos']} was not tested on {where}: run evaluate.py on it first")
    refuse_other_targets(dataset, result_labels(results), comparable)
    return dataset, comparable


def refuse_other_targets(dataset: str, labels: list[str], all_rows: list[Rows]) -> None:
    """UserError, with the labels of two results, if they have different targets."""
    first: dict[str, tuple[str, Row]] = {}  # by protocol: the first label and row
    for label, rows in zip(labels, all_rows, strict=True):
        for (protocol, _), row in rows.items():
            if protocol not in PROTOCOLS or row["nats"] is None:
                continue
            other, other_row = first.setdefault(protocol, (label, row))
            pair = f"{other} and {label} were tested on different targets of {dataset}"
            advice = "evaluate them with the same --eval_lengths and the same corpus files"
            require(same_targets(other_row, row), f"{pair} ({protocol}): {advice}")


def comparable_rows(rows: Rows, train_length: int) -> Rows:
    """The rows on the targets of their protocol's row at L, and those that are undefined."""
    kept = {}
    for (protocol, n), row in rows.items():
        at_train_length = rows.get((protocol, train_length), {"nats": None})
        both = None not in (row["nats"], at_train_length["nats"])
        if row["nats"] is None or (both and same_targets(row, at_train_length)):
            kept[protocol, n] = row
    return kept


def result_labels(results: list[Result]) -> list[str]:
    """A short, different name for each result: its scheme, and what differs within one scheme."""
    names = []
    for result in results:
        name = f"{result['pos']}, {result['extend']}" if result.get("extend") else result["pos"]
        names.append(name if len(name) <= 32 else f"{name[:31]}…")
    labels = []
    for name, result in zip(names, results, strict=True):
        details = f" L={result['train_length']} s={result['seed']}"
        labels.append(name + details if names.count(name) > 1 else name)
    numbered = [f"{label} #{number}" for number, label in enumerate(labels, start=1)]
    return [n if labels.count(one) > 1 else one for one, n in zip(labels, numbered, strict=True)]


# ---- several seeds, several extensions


def missing_results(cells: dict[str, list[Result]]) -> list[str]:
    """A sentence for each cell without a result; see `rows_by_seed`."""
    sentences = []
    for pos, results in cells.items():
        missing = [r for r in results if "rows" not in r]
        sentences += [f"{pos}, seed {r['seed']}: no result: {r['reason']}" for r in missing]
    return sentences


def rows_by_seed(cells: dict[str, list[Result]]) -> tuple[str, dict[str, Seeds]]:
    """The dataset, and the rows of fixed_targets of each scheme by seed and length.

    `cells` is {scheme: a result for each seed}; a missing one is {"seed": ..., "reason": ...}.
    UserError if all are missing, or if two were measured on different targets.
    """
    done = [(pos, r) for pos, results in cells.items() for r in results if "rows" in r]
    nothing = ["there is no result to compare", *missing_results(cells)]
    require(done, "; ".join(nothing))
    dataset, all_rows = select_rows([result for _, result in done], "")
    by_seed: dict[str, Seeds] = {pos: {} for pos in cells}
    for (pos, result), rows in zip(done, all_rows, strict=True):
        by_seed[pos][result["seed"]] = fixed_target_rows(rows)
    return dataset, by_seed


def losses_at(seeds: Seeds, length: int) -> dict[int, float]:
    """The nats at a length by seed, for the seeds at which they are defined."""
    rows = {seed: fixed[length] for seed, fixed in seeds.items() if length in fixed}
    return {seed: row["nats"] for seed, row in rows.items() if row["nats"] is not None}


def cropped_row(result: Result, dataset: str) -> Row | None:
    """The row of fixed_targets of a model as it was trained, at its training length."""
    rows = rows_on(result["rows"], dataset, result.get("extend"))
    return rows.get(("fixed_targets", result["train_length"]))


def run_name(result: Result) -> str:
    """The name of a run that is compared: scheme, extension, first and last training length."""
    extend = f" + {result['extend']}" if result.get("extend") else ""
    last = result["train_length"]
    first = result.get("original_length", last)
    lengths = f"{first}, then {last}" if first != last else f"{last}"
    return f"{result['pos']}{extend} trained at {lengths}"


def gains(
    results: list[Result], others: list[Result], dataset: str = ""
) -> tuple[str, dict[str, dict[int, list[float]]]]:
    """What each extension gains over cropping: the dataset, and {label: {length: nats by seed}}.

    A gain is the loss of the cropped model minus the loss of the row. The cropped model is the one
    of the same seed as it was trained, at its training length. `results` are one model, a result
    for each seed, with rows under several extensions. `others` are shown as they were trained.
    The label with the highest mean at the longest length comes first.
    """
    dataset = dataset or results[0]["rows"][0]["dataset"]
    cropped = {result["seed"]: cropped_row(result, dataset) for result in results}
    labelled = [(row["extend"] or "none", r["seed"], row) for r in results for row in r["rows"]]
    for r in others:
        as_trained = [row for row in r["rows"] if row["extend"] == r.get("extend")]
        labelled += [(run_name(r), r["seed"], row) for row in as_trained]
    by_label: dict[str, dict[int, list[float]]] = {}
    for label, seed, row in labelled:
        if (row["protocol"], row["dataset"]) == ("fixed_targets", dataset):
            difference = paired(cropped.get(seed), row)
            if difference:
                by_length = by_label.setdefault(label, {})
                by_length.setdefault(row["length"], []).append(difference.nats)
    nothing = f"nothing on {dataset} was measured on the targets of its row at the training length"
    require(by_label, nothing)
    longest = max(n for by_length in by_label.values() for n in by_length)
    best = sorted(by_label, key=lambda label: -np.mean(by_label[label].get(longest, -math.inf)))
    return dataset, {label: dict(sorted(by_label[label].items())) for label in best}
