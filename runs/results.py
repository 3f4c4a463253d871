"""extrapolation.json: its rows, what may be compared, and what they show."""
from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from configurable import PROTOCOLS, UserError
from runs.files import read_json, write_json

MODEL = (
    "pos",
    "train_length",
    "tokens_trained",
    "seed",
    "parameters",
)  # what tells one trained model from another

Row = dict[str, Any]

Rows = dict[tuple[str, int], Row]  # by protocol and length

PLACE = (
    "protocol",
    "length",
    "extend",
    "dataset",
)  # what a row measures; measured again, it is replaced

def standard_error(blocks: np.ndarray) -> float:
    """The standard error of the mean of the blocks."""
    return float(np.std(blocks, ddof=1) / math.sqrt(len(blocks)))

class Difference(NamedTuple):
    """A paired difference of two rows: nats, and the standard error of its mean over blocks."""

    nats: float
    stderr: float

    @property
    def near_zero(self) -> bool:
        """Within 2 paired standard errors or 0.005 nats."""
        return abs(self.nats) <= max(2 * self.stderr, 0.005)

def rows_on(rows: list[Row], dataset: str, extend: str | None = None) -> Rows:
    """The rows on one dataset under one extension (None: under none), by (protocol, length)."""
    return {
        (r["protocol"], r["length"]): r
        for r in rows
        if (r["dataset"], r["extend"]) == (dataset, extend)
    }

def paired(a: Row | None, b: Row | None) -> Difference | None:
    """a - b, block by block; None where one is missing, undefined or measured on other targets."""
    if not (a and b) or None in (a["nats"], b["nats"]):
        return None
    if (a["split_sha256"], a["targets"]) != (b["split_sha256"], b["targets"]):
        return None
    return Difference(
        a["nats"] - b["nats"], standard_error(np.subtract(a["block_nats"], b["block_nats"]))
    )

def gain(rows: Rows, train_length: int, length: int) -> Difference | None:
    """loss(L) - loss(N) of fixed_targets: negative, the scheme breaks; positive, more context helped."""
    return paired(rows.get(("fixed_targets", train_length)), rows.get(("fixed_targets", length)))

def far(rows: Rows, length: int) -> Difference | None:
    """loss(windowed, N) - loss(fixed_targets, N): positive, the model uses keys beyond L."""
    return paired(rows.get(("windowed", length)), rows.get(("fixed_targets", length)))

def compare_to_train_length(rows: list[Row], train_length: int) -> None:
    """Fill in stderr_vs_L of rows measured together: the standard error of the paired difference to the row at L."""
    at_train_length = {row["protocol"]: row for row in rows if row["length"] == train_length}
    for row in rows:
        if difference := paired(row, at_train_length.get(row["protocol"])):
            row["stderr_vs_L"] = difference.stderr

def doubts(rows: Rows, train_length: int) -> list[str]:
    """Why these rows cannot show the use of context beyond L; empty where they can or fixed_targets is missing."""
    if ("fixed_targets", train_length) not in rows:
        return []
    found, half = [], train_length // 2
    cost = paired(rows.get(("fixed_targets", half)), rows["fixed_targets", train_length])
    if not cost:
        found.append(f"loss({half}) was not measured")
    elif cost.nats < max(2 * cost.stderr, 0.01):
        found.append(
            f"loss({half}) - loss({train_length}) is only {cost.nats:+.4f} ± {cost.stderr:.4f} nats"
        )
    beyond = [
        far(rows, n) for protocol, n in rows if protocol == "fixed_targets" and n > train_length
    ]
    if not any(d and d.nats > 0 and not d.near_zero for d in beyond):
        found.append(
            "far is nowhere clearly above zero"
            if any(beyond)
            else f"far was not measured beyond {train_length}"
        )
    return found

def row_notes(rows: list[Row], train_length: int) -> list[str]:
    """What a reader of these rows must know."""
    found = list(dict.fromkeys(row["note"] for row in rows if row.get("note")))
    for dataset, extend in dict.fromkeys((row["dataset"], row["extend"]) for row in rows):
        if reasons := doubts(rows_on(rows, dataset, extend), train_length):
            under = f" under {extend}" if extend else ""
            found.append(
                f"on {dataset}{under} this run cannot show the use of context beyond {train_length}: "
                + ", and ".join(reasons)
            )
    return found

def merge(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Replace the rows that were measured again and keep the rest; what another model left is dropped."""
    if any(old.get(key) != new[key] for key in MODEL):
        return new
    by_place = {tuple(row[name] for name in PLACE): row for row in [*old["rows"], *new["rows"]]}
    rows = list(by_place.values())
    merged = old | new | {"rows": rows, "notes": row_notes(rows, new["train_length"])}
    was, now = (
        [part["per_position"].get(name) for name in ("dataset", "extend")] for part in (old, new)
    )
    if old["per_position"] and was != now:
        merged |= {name: old[name] for name in ("per_position", "float32_check")}
    return merged


Result = dict[str, Any]  # an extrapolation.json

FIELDS = {
    "pos",
    "train_length",
    "tokens_trained",
    "seed",
    "unit",
    "rows",
    "notes",
    "per_position",
}  # of every result

def load_result(folder: str | Path) -> Result:
    """The extrapolation.json of a run folder; UserError where there is none or it is damaged."""
    path = Path(folder) / "extrapolation.json"
    if not path.exists():
        raise UserError(
            f"{folder} has no {path.name}: python evaluate.py {folder} tests a trained run"
        )
    with contextlib.suppress(UserError):
        result = read_json(path)
        rows = result.get("rows")
        if FIELDS <= result.keys() and isinstance(rows, list) and rows and all(map(proper, rows)):
            return result
    raise UserError(f"{path} is damaged: delete it, and python evaluate.py {folder} makes it anew")

def proper(row: Any) -> bool:
    """Whether this has what a row must have."""
    return isinstance(row, dict) and {*PLACE, "nats"} <= row.keys()

def update_result(folder: str | Path, new: Result) -> Result:
    """Merge a result into a run folder's extrapolation.json and draw its .png; returns what stands there now."""
    path = Path(folder) / "extrapolation.json"
    result = merge(load_result(folder), new) if path.exists() else new
    write_json(path, result)
    return result

def select_rows(results: list[Result], dataset: str) -> tuple[str, list[Rows]]:
    """The dataset (by default the first one tested) and each result's rows on it that compare with its own at L.

    UserError where the dataset was not tested, or where two results were measured on different targets.
    """
    dataset = dataset or next((row["dataset"] for result in results for row in result["rows"]), "")
    found = [
        comparable(rows_on(r["rows"], dataset, r.get("extend")), r["train_length"]) for r in results
    ]
    for result, rows in zip(results, found, strict=True):
        if not rows:
            raise UserError(
                f"{result['pos']} was not tested on {dataset or 'any dataset'}: run evaluate.py on it first"
            )
    for protocol in PROTOCOLS:
        names = {
            same_targets(row): name
            for name, rows in zip(result_labels(results), found, strict=True)
            for (p, _), row in rows.items()
            if p == protocol and row["nats"] is not None
        }
        if len(names) > 1:
            raise UserError(
                f"{' and '.join(list(names.values())[:2])} were tested on different targets of {dataset} "
                f"({protocol}): evaluate them with the same --eval_lengths and the same corpus files"
            )
    return dataset, found

def same_targets(row: Row) -> tuple[str, str]:
    """What two rows must share to be compared."""
    return row["split_sha256"], row.get("targets")

def comparable(rows: Rows, train_length: int) -> Rows:
    """The rows on the targets of their protocol's row at L, and those that are undefined."""
    at_train_length = {
        p: row for (p, n), row in rows.items() if n == train_length and row["nats"] is not None
    }
    return {
        (p, n): row
        for (p, n), row in rows.items()
        if row["nats"] is None or (p in at_train_length and same_targets(row) == same_targets(at_train_length[p]))
    }

def result_labels(results: list[Result]) -> list[str]:
    """A short, different name for each result: its scheme, with what tells it from others of the same scheme."""
    names = [
        result["pos"] + (f", {result['extend']}" if result.get("extend") else "")
        for result in results
    ]
    names = [name if len(name) <= 32 else name[:31] + "…" for name in names]
    full = [
        f"{name} L={r['train_length']} s={r['seed']}" if names.count(name) > 1 else name
        for name, r in zip(names, results, strict=True)
    ]
    return [f"{name} #{k + 1}" if full.count(name) > 1 else name for k, name in enumerate(full)]

def reason_at(rows: Rows, length: int) -> str:
    """Why nothing is defined at a length; empty where something is."""
    here = [row for (_, n), row in rows.items() if n == length]
    return "" if any(row["nats"] is not None for row in here) else here[0]["reason"]

def fixed_target_rows(rows: Rows) -> dict[int, Row]:
    """The rows of fixed_targets by ascending length."""
    return {
        n: row
        for (p, n), row in sorted(rows.items(), key=lambda item: item[0])
        if p == "fixed_targets"
    }
