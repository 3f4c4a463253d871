"""Text tables of results: one run, several runs, several seeds, several extensions."""
from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

import numpy as np

from configurable import PROTOCOLS, UserError
from runs.results import (
    Difference,
    Result,
    Row,
    Rows,
    far,
    fixed_target_rows,
    gain,
    paired,
    reason_at,
    result_labels,
    row_notes,
    rows_on,
    select_rows,
)

T95 = (  # two-sided 95 % points of Student's t, 1 to 30 degrees of freedom
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
    2.145,
    2.131,
    2.120,
    2.110,
    2.101,
    2.093,
    2.086,
    2.080,
    2.074,
    2.069,
    2.064,
    2.060,
    2.056,
    2.052,
    2.048,
    2.045,
    2.042,
)

LEGEND = """\
±     standard error of the paired difference to L     ~    near zero: within 2 standard errors or 0.005 nats
gain  loss(L) - loss(N): negative where it breaks      far  windowed - fixed_targets: positive where keys beyond L help
windowed and far only diagnose nope and absolute schemes; nonoverlapping falls with N for free and is no evidence"""

def runs_table(results: list[Result], dataset: str = "") -> str:
    """A text table of one or more results, a line for each length, with what must be known to read it."""
    dataset, found = select_rows(results, dataset)
    lines = [
        [
            "scheme",
            "N",
            "fixed_targets",
            "gain",
            "far",
            "windowed",
            "nonoverlapping",
            "bits/byte",
            "sliding",
        ]
    ]
    notes = []
    for label, result, rows in zip(result_labels(results), results, found, strict=True):
        lines += [[label, *line] for line in run_lines(rows, result["train_length"])]
        own = [
            row
            for row in result["rows"]
            if (row["dataset"], row["extend"]) == (dataset, result.get("extend"))
        ]
        here = result["notes"] if own == result["rows"] else row_notes(own, result["train_length"])
        notes += [
            f"{label}: {note}"
            for note in [*here, *checked(result, dataset), *left_out(result, rows, dataset)]
        ]
    lengths = ", ".join(dict.fromkeys(str(result["train_length"]) for result in results))
    title = f"{dataset}, trained at L = {lengths}; nats per {results[0]['unit']}"
    return "\n".join([title, "", *aligned(without_empty_columns(lines)), "", LEGEND, *notes])

def run_lines(rows: Rows, train_length: int) -> Iterable[list[str]]:
    """The cells of one result, without its name: a line for each length, or the reason why there is nothing."""
    for n in sorted({n for _, n in rows}):
        if reason := reason_at(rows, n):
            yield [str(n), f"undefined: {reason}"]
            continue
        fixed, windowed, cut, sliding = (
            rows.get((protocol, n)) for protocol in (*PROTOCOLS, "sliding")
        )
        error = "" if not fixed or fixed["nats"] is None else paired_error(fixed, train_length)
        yield [
            str(n),
            number(fixed, "nats") + error,
            signed(gain(rows, train_length, n)) if n != train_length else "",
            signed(far(rows, n)) if n > train_length else "",
            number(windowed, "nats"),
            number(cut, "nats"),
            number(cut, "bits_per_byte"),
            number(sliding, "nats"),
        ]

def paired_error(row: Row, train_length: int) -> str:
    """The error of a row's paired difference to L, or the mark of the row at L itself."""
    return "    (L)  " if row["length"] == train_length else f" ± {row['stderr_vs_L']:.4f}"

def signed(difference: Difference | None) -> str:
    """A difference with its sign, marked where it is near zero."""
    return f"{difference.nats:+.4f}{'~' if difference.near_zero else ' '}" if difference else ""

def number(row: Row | None, field: str) -> str:
    """A field of a row with four digits; empty where it was not measured."""
    return "" if row is None or row.get(field) is None else f"{row[field]:.4f}"

def checked(result: Result, dataset: str) -> list[str]:
    """The sentence about the float32 check, if there was one on that dataset."""
    check = result.get("float32_check")
    of, extend = result["per_position"], result.get("extend")
    if not check or (of.get("dataset", dataset), of.get("extend", extend)) != (dataset, extend):
        return []
    return [
        f"at {check['length']}, {check['windows']} windows: {check['nats']:.4f} in {check['dtype']}, "
        f"{check['nats_float32']:.4f} in float32, difference {check['difference']:+.5f}"
    ]

def left_out(result: Result, rows: Rows, dataset: str) -> list[str]:
    """The sentence about rows that do not compare with those at L, if there are such."""
    tested = rows_on(result["rows"], dataset, result.get("extend"))
    lengths = ", ".join(str(n) for n in sorted({n for p, n in tested if (p, n) not in rows}))
    return (
        [f"rows at {lengths} are left out: they were measured on other targets than those at L"]
        if lengths
        else []
    )

def without_empty_columns(lines: list[list[str]]) -> list[list[str]]:
    """The lines without the columns, from the third, that have a head and nothing else."""
    full = [line for line in lines if len(line) == len(lines[0])]
    kept = [k < 2 or any(column[1:]) for k, column in enumerate(zip(*full, strict=True))]
    return [
        [cell for cell, keep in zip(line, kept, strict=True) if keep] if line in full else line
        for line in lines
    ]

def aligned(lines: list[list[str]]) -> list[str]:
    """The lines with their cells in columns, the first to the left; a line shorter than the first ends in free text."""
    columns = [line if len(line) == len(lines[0]) else line[:-1] for line in lines]
    widths = [
        max(len(cell) for cell in column)
        for column in itertools.zip_longest(*columns, fillvalue="")
    ]
    text = []
    for line, cells in zip(lines, columns, strict=True):
        padded = [
            cells[0].ljust(widths[0]),
            *map(str.rjust, cells[1:], widths[1:]),
            *line[len(cells) :],
        ]
        text.append("  ".join(padded).rstrip())
    return text

def seeds_table(cells: dict[str, list[Result]]) -> str:
    """A text table of schemes over seeds, by length; `cells` is {scheme: a result for each seed}.

    Mean and sample standard deviation over seeds, and the difference to the first scheme, paired by seed, with its 95 %
    t-interval. A cell without a result is {"seed": ..., "reason": ...} and is listed with its reason.
    """
    dataset, found = by_seed(cells)
    first = next(iter(cells))
    lines = [["scheme", "N", "seeds", "mean", "sd", f"difference to {first} [95 % over seeds]"]]
    for pos, seeds in found.items():
        for n in sorted({n for fixed in seeds.values() for n in fixed}):
            lines.append([pos, str(n), *seeds_line(seeds, found[first] if pos != first else {}, n)])
    title = f"{dataset}, fixed_targets, nats: mean and spread over seeds; differences are paired by seed, with t-intervals"
    return "\n".join([title, "", *aligned(lines), *gaps(cells, found)])

def by_seed(cells: dict[str, list[Result]]) -> tuple[str, dict[str, dict[int, dict[int, Row]]]]:
    """The dataset, and the rows of fixed_targets by scheme, seed and length; UserError where there is no result."""
    done = [
        (pos, result) for pos, results in cells.items() for result in results if "rows" in result
    ]
    if not done:
        raise UserError("; ".join(["there is no result to compare", *gaps(cells, {})]))
    dataset, rows = select_rows([result for _, result in done], "")
    found: dict[str, dict[int, dict[int, Row]]] = {pos: {} for pos in cells}
    for (pos, result), of_result in zip(done, rows, strict=True):
        found[pos][result["seed"]] = fixed_target_rows(of_result)
    return dataset, found

def gaps(cells: dict[str, list[Result]], found: dict[str, dict[int, dict[int, Row]]]) -> list[str]:
    """A line for each cell without a result, and for each length that only some seeds of a scheme define."""
    lines = [
        f"{pos}, seed {result['seed']}: no result: {result['reason']}"
        for pos, results in cells.items()
        for result in results
        if "rows" not in result
    ]
    return lines + [
        f"{pos}, seed {seed}, N = {n}: undefined: {row['reason']}"
        for pos, seeds in found.items()
        for seed, fixed in seeds.items()
        for n, row in fixed.items()
        if row["nats"] is None and defined(seeds, n)
    ]

def defined(seeds: dict[int, dict[int, Row]], length: int) -> dict[int, float]:
    """Nats at a length by seed, for the seeds that have them."""
    return {
        seed: fixed[length]["nats"]
        for seed, fixed in seeds.items()
        if length in fixed and fixed[length]["nats"] is not None
    }

def seeds_line(
    seeds: dict[int, dict[int, Row]], first: dict[int, dict[int, Row]], length: int
) -> list[str]:
    """The cells of one scheme at one length: how many seeds, mean, spread and difference, or the reason."""
    values, base = defined(seeds, length), defined(first, length)
    if not values:
        return [
            f"undefined: {next(fixed[length]['reason'] for fixed in seeds.values() if length in fixed)}"
        ]
    spread = f"{np.std(list(values.values()), ddof=1):.4f}" if len(values) > 1 else ""
    return [
        str(len(values)),
        f"{np.mean(list(values.values())):.4f}",
        spread,
        interval([value - base[seed] for seed, value in values.items() if seed in base]),
    ]

def interval(differences: list[float]) -> str:
    """Mean and 95 % t-interval of paired differences, one for each seed; empty without any."""
    n = len(differences)
    if n < 2:
        return f"{differences[0]:+.4f} (one seed: no interval)" if differences else ""
    half = T95[min(n - 1, len(T95)) - 1] * float(np.std(differences, ddof=1)) / math.sqrt(n)
    mean = float(np.mean(differences))
    return f"{mean:+.4f} [{mean - half:+.4f}, {mean + half:+.4f}] n = {n}"

def gains(
    results: list[Result], others: list[Result], dataset: str = ""
) -> tuple[str, dict[str, dict[int, list[float]]]]:
    """The dataset, and {label: {length: for each seed, loss of the cropped model - loss here}}, the best at the end first.

    `results` are one model, a result for each seed, whose rows are under several extensions; `others` are shown as they
    were trained, against the model of the same seed. Cropped is that model as it was trained, at its training length.
    """
    dataset = dataset or results[0]["rows"][0]["dataset"]
    cropped = {r["seed"]: cropped_row(r, dataset) for r in results}
    found: dict[str, dict[int, list[float]]] = {}
    names = [None] * len(results) + [name_beside(r) for r in others]
    for r, name in zip([*results, *others], names, strict=True):
        for row in r["rows"]:
            if (row["protocol"], row["dataset"]) != ("fixed_targets", dataset) or (
                name and row["extend"] != r.get("extend")
            ):
                continue
            difference = paired(cropped.get(r["seed"]), row)
            values = found.setdefault(name or row["extend"] or "none", {}).setdefault(
                row["length"], []
            )
            values += [difference.nats] if difference else []
    if not any(any(of.values()) for of in found.values()):
        raise UserError(
            f"nothing on {dataset} was measured on the targets of its row at the training length"
        )
    found = {
        label: of for label, of in found.items() if any(of.values())
    }  # on the same targets, at some length
    longest = max(n for of in found.values() for n, values in of.items() if values)
    best = sorted(found, key=lambda label: -np.mean(found[label].get(longest) or [-math.inf]))
    return dataset, {label: dict(sorted(found[label].items())) for label in best}

def cropped_row(result: Result, dataset: str) -> Row | None:
    """The row of fixed_targets of a model as it was trained, at its training length."""
    return rows_on(result["rows"], dataset, result.get("extend")).get(
        ("fixed_targets", result["train_length"])
    )

def name_beside(result: Result) -> str:
    """What tells a run beside from others: scheme, extension, and what it was trained at, first and last."""
    first, last = result.get("original_length", result["train_length"]), result["train_length"]
    extend = f" + {result['extend']}" if result.get("extend") else ""
    return f"{result['pos']}{extend} trained at {first}{f', then {last}' if first != last else ''}"

def extensions_table(results: list[Result], others: list[Result], dataset: str = "") -> str:
    """A text table of one model under extensions, by length: what each gains over cropping, mean and spread over seeds."""
    dataset, found = gains(results, others, dataset)
    lengths = sorted({n for of in found.values() for n, values in of.items() if values})
    lines = [["extension", *map(str, lengths)]]
    for label, of in found.items():
        lines.append([label, *(spread(of.get(n, []), len(results)) for n in lengths)])
    first, cropped = (
        results[0],
        [row for r in results if (row := cropped_row(r, dataset)) and row["nats"] is not None],
    )
    extend, seeds = (
        f" + {first['extend']}" if first.get("extend") else "",
        ", ".join(str(r["seed"]) for r in results),
    )
    title = (
        f"{dataset}, {first['pos']}{extend} trained at L = {first['train_length']}, seeds {seeds}; "
        f"cropped: {np.mean([row['nats'] for row in cropped]):.4f} nats per {first['unit']}"
    )
    missing = [name for r in others if (name := name_beside(r)) not in found]
    notes = [
        row["note"]
        for r in results
        for row in r["rows"]
        if row["dataset"] == dataset and row["extend"] in found and row.get("note")
    ]
    return "\n".join(
        [
            title,
            "",
            *aligned(lines),
            "",
            "loss of the cropped model - loss with N tokens of context "
            "(fixed_targets): above zero, the longer text helps; ± standard deviation over seeds",
            *(
                f"{name}: of another seed, or measured on other targets"
                for name in dict.fromkeys(missing)
            ),
            *dict.fromkeys(notes),
        ]
    )

def spread(values: list[float], seeds: int) -> str:
    """Mean, and the standard deviation where there are several; empty for none; of how many, where it is not all seeds."""
    if not values:
        return ""
    text = f"{np.mean(values):+.3f}" + (
        f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
    )
    return text if len(values) == seeds else f"{text} (n = {len(values)})"
