"""Text tables of results: one run or several, schemes over seeds, extensions of one model."""

import itertools
import math
from collections.abc import Container, Iterator

import numpy as np

from runs.results import (
    Difference,
    Result,
    Row,
    Rows,
    Seeds,
    cropped_row,
    far,
    gain,
    gains,
    losses_at,
    missing_results,
    reason_at,
    result_labels,
    row_notes,
    rows_by_seed,
    rows_on,
    run_name,
    select_rows,
)

# two-sided 95 % points of Student's t, for 1 to 30 degrees of freedom
T95_TEXT = """
12.706 4.303 3.182 2.776 2.571 2.447 2.365 2.306 2.262 2.228 2.201 2.179 2.160 2.145 2.131
2.120 2.110 2.101 2.093 2.086 2.080 2.074 2.069 2.064 2.060 2.056 2.052 2.048 2.045 2.042"""
T95 = tuple(float(point) for point in T95_TEXT.split())
HEADS = "scheme N fixed_targets gain far windowed nonoverlapping bits/byte sliding".split()
LEGEND = """\
±     standard error of the paired difference to L
~     near zero: within 2 standard errors or 0.005 nats
gain  loss(L) - loss(N): negative where the scheme breaks
far   windowed - fixed_targets: positive where keys beyond L help
For nope and absolute schemes, windowed and far are only a diagnosis.
nonoverlapping falls with N for every scheme: it is no evidence of extrapolation."""

EXTENSIONS_LEGEND = """\
loss of the cropped model - loss with N tokens of context (fixed_targets): above zero, \
the longer text helps; ± standard deviation over seeds"""


# ---- runs


def runs_table(results: list[Result], dataset: str = "") -> str:
    """A text table of one or more results, a line for each length, with notes on how to read it.

    UserError if they do not compare, see `select_rows`.
    """
    dataset, all_rows = select_rows(results, dataset)
    others = sorted({protocol for rows in all_rows for protocol, _ in rows} - {*HEADS})
    lines, notes = [[*HEADS, *others]], []
    for label, result, rows in zip(result_labels(results), results, all_rows, strict=True):
        lines += [[label, *line] for line in run_lines(rows, result["train_length"], others)]
        notes += [f"{label}: {note}" for note in run_notes(result, rows, dataset)]
    lengths = ", ".join(dict.fromkeys(str(result["train_length"]) for result in results))
    title = f"{dataset}, trained at L = {lengths}; nats per {results[0]['unit']}"
    return "\n".join([title, "", *aligned(without_empty_columns(lines)), "", LEGEND, *notes])


def run_lines(rows: Rows, train_length: int, others: list[str]) -> Iterator[list[str]]:
    """The cells of one result without its label: a line for each length, or why it has none.

    The losses of the protocols `others` come last.
    """
    for n in sorted({n for _, n in rows}):
        reason = reason_at(rows, n)
        if reason:
            yield [str(n), f"undefined: {reason}"]
            continue
        fixed, pieces = rows.get(("fixed_targets", n)), rows.get(("nonoverlapping", n))
        yield [
            str(n),
            number(fixed, "nats") + paired_error(fixed, train_length),
            signed(gain(rows, train_length, n)) if n != train_length else "",
            signed(far(rows, n)) if n > train_length else "",
            number(rows.get(("windowed", n)), "nats"),
            number(pieces, "nats"),
            number(pieces, "bits_per_byte"),
            *(number(rows.get((name, n)), "nats") for name in ["sliding", *others]),
        ]


def number(row: Row | None, field: str) -> str:
    """A field of a row with four digits; empty if it was not measured."""
    return "" if row is None or row.get(field) is None else f"{row[field]:.4f}"


def paired_error(row: Row | None, train_length: int) -> str:
    """The error of a row's paired difference to L, or the mark of the row at L itself."""
    if row is None or row["nats"] is None:
        return ""
    if row["length"] == train_length:
        return "    (L)  "
    return f" ± {row['stderr_vs_L']:.4f}" if row["stderr_vs_L"] is not None else ""


def signed(difference: Difference | None) -> str:
    """A difference with its sign and a mark if it is near zero; empty for None."""
    if difference is None:
        return ""
    return f"{difference.nats:+.4f}{'~' if difference.near_zero else ' '}"


def run_notes(result: Result, rows: Rows, dataset: str) -> list[str]:
    """What a reader of a result's lines must know: its notes, its float32 check, omitted rows."""
    extend = result.get("extend")
    tested = rows_on(result["rows"], dataset, extend)
    notes = row_notes(list(tested.values()), result["train_length"])
    check, curve = result.get("float32_check"), result["per_position"]
    measured = (curve.get("dataset", dataset), curve.get("extend", extend))
    if check and measured == (dataset, extend):
        losses = f"{check['nats']:.4f} in {check['dtype']}, {check['nats_float32']:.4f} in float32"
        where = f"at {check['length']}, {check['windows']} windows"
        notes.append(f"{where}: {losses}, difference {check['difference']:+.5f}")
    omitted = sorted({n for protocol, n in tested if (protocol, n) not in rows})
    if omitted:
        lengths = ", ".join(map(str, omitted))
        notes.append(f"rows at {lengths} are left out: they have other targets than those at L")
    return notes


# ---- layout


def without_empty_columns(lines: list[list[str]]) -> list[list[str]]:
    """The lines without the columns, from the third on, that have a head and nothing else."""
    full = [line for line in lines if len(line) == len(lines[0])]
    kept = [k < 2 or any(column[1:]) for k, column in enumerate(zip(*full, strict=True))]
    return [list(itertools.compress(line, kept)) if line in full else line for line in lines]


def aligned(lines: list[list[str]]) -> list[str]:
    """The lines with their cells in columns, the first to the left, the others to the right.

    A line that is shorter than the first ends in free text.
    """
    columns = [line if len(line) == len(lines[0]) else line[:-1] for line in lines]
    by_column = itertools.zip_longest(*columns, fillvalue="")
    widths = [max(map(len, column)) for column in by_column]
    text = []
    for line, cells in zip(lines, columns, strict=True):
        right = map(str.rjust, cells[1:], widths[1:])
        text.append("  ".join([cells[0].ljust(widths[0]), *right, *line[len(cells) :]]).rstrip())
    return text


# ---- schemes over seeds


def seeds_table(cells: dict[str, list[Result]]) -> str:
    """A text table of schemes over seeds by length; for `cells` see `rows_by_seed`.

    Mean and sample standard deviation over seeds, and the difference to the first scheme, paired by
    seed, with its 95 % t-interval. What is missing or undefined is listed with its reason.
    """
    dataset, by_scheme = rows_by_seed(cells)
    first = next(iter(cells))
    lines = [["scheme", "N", "seeds", "mean", "sd", f"difference to {first} [95 % over seeds]"]]
    undefined = []
    for pos, seeds in by_scheme.items():
        base = by_scheme[first] if pos != first else {}
        for n in sorted({n for fixed in seeds.values() for n in fixed}):
            lines.append([pos, str(n), *seeds_line(seeds, base, n)])
        undefined += undefined_seeds(pos, seeds)
    how = "mean and spread over seeds; differences are paired by seed, with t-intervals"
    title = f"{dataset}, fixed_targets, nats: {how}"
    return "\n".join([title, "", *aligned(lines), *missing_results(cells), *undefined])


def seeds_line(seeds: Seeds, first: Seeds, length: int) -> list[str]:
    """The cells of one scheme at one length: seeds, mean, spread and difference, or the reason."""
    values, base = losses_at(seeds, length), losses_at(first, length)
    if not values:
        reason = next(fixed[length]["reason"] for fixed in seeds.values() if length in fixed)
        return [f"undefined: {reason}"]
    nats = list(values.values())
    spread = f"{np.std(nats, ddof=1):.4f}" if len(nats) > 1 else ""
    differences = [value - base[seed] for seed, value in values.items() if seed in base]
    return [str(len(nats)), f"{np.mean(nats):.4f}", spread, interval(differences)]


def interval(differences: list[float]) -> str:
    """Mean and 95 % t-interval of paired differences, one for each seed; empty for none."""
    n = len(differences)
    if n < 2:
        return f"{differences[0]:+.4f} (one seed: no interval)" if differences else ""
    point = T95[min(n - 1, len(T95)) - 1]
    half = point * float(np.std(differences, ddof=1)) / math.sqrt(n)
    mean = float(np.mean(differences))
    return f"{mean:+.4f} [{mean - half:+.4f}, {mean + half:+.4f}] n = {n}"


def undefined_seeds(pos: str, seeds: Seeds) -> list[str]:
    """A sentence for each length that some seeds of a scheme define and others do not."""
    return [
        f"{pos}, seed {seed}, N = {n}: undefined: {row['reason']}"
        for seed, fixed in seeds.items()
        for n, row in fixed.items()
        if row["nats"] is None and losses_at(seeds, n)
    ]


# ---- extensions of one model


def extensions_table(results: list[Result], others: list[Result], dataset: str = "") -> str:
    """A text table of one model under extensions by length: what each gains over cropping.

    Mean and standard deviation over seeds; for `results` and `others` see `gains`.
    """
    dataset, gained = gains(results, others, dataset)
    lengths = sorted({n for by_length in gained.values() for n in by_length})
    lines = [["extension", *map(str, lengths)]]
    for label, by_length in gained.items():
        lines.append([label, *(spread(by_length.get(n, []), len(results)) for n in lengths)])
    cropped = [cropped_row(result, dataset) for result in results]
    nats = [row["nats"] for row in cropped if row and row["nats"] is not None]
    seeds = ", ".join(str(result["seed"]) for result in results)
    loss = f"{np.mean(nats):.4f} nats per {results[0]['unit']}"
    title = f"{dataset}, {run_name(results[0])}, seeds {seeds}; cropped: {loss}"
    notes = extension_notes(results, others, dataset, gained)
    return "\n".join([title, "", *aligned(lines), "", EXTENSIONS_LEGEND, *notes])


def spread(values: list[float], seeds: int) -> str:
    """Mean, standard deviation of several, and the number of values if it is not all seeds."""
    if not values:
        return ""
    text = f"{np.mean(values):+.3f}"
    if len(values) > 1:
        text += f" ± {np.std(values, ddof=1):.3f}"
    return text if len(values) == seeds else f"{text} (n = {len(values)})"


def extension_notes(
    results: list[Result], others: list[Result], dataset: str, shown: Container[str]
) -> list[str]:
    """Which other runs are missing in the table, and the notes of the rows that are shown."""
    missing = [run_name(r) for r in others if run_name(r) not in shown]
    notes = [f"{name}: of another seed, or measured on other targets" for name in missing]
    for row in itertools.chain.from_iterable(result["rows"] for result in results):
        if row["dataset"] == dataset and row["extend"] in shown and row.get("note"):
            notes.append(row["note"])
    return list(dict.fromkeys(notes))
