"""Text tables of results: one run or several, schemes over seeds, extensions of one model."""

import itertools
import math
from collections.abc import Container, Iterator
from typing import Any

import numpy as np

from runs.compare import (
    NEAR,
    Contrast,
    Seeds,
    contrasts,
    losses_at,
    missing_results,
    rows_by_seed,
    schemes_of,
)
from runs.labels import gaps, missing_lengths, result_labels, run_name
from runs.results import (
    Difference,
    Result,
    Row,
    Rows,
    cropped_row,
    far,
    gain,
    gains,
    question,
    reason_at,
    row_notes,
    rows_on,
    select_rows,
)

HEADS = ["", *"N fixed_targets gain far windowed nonoverlapping bits/byte".split()]
LEGEND = """\
±     standard error over windows; that of gain is of the paired difference
~     near zero: within 2 standard errors or 0.005 nats
gain  loss(L) - loss(N): negative where the scheme breaks
far   windowed - fixed_targets: positive where keys beyond L help
For nope and absolute schemes, windowed and far are only a diagnosis.
nonoverlapping falls with N for every scheme: it is no evidence of extrapolation."""

RATES_LEGEND = f"""\
learning rates, tried with half the steps and a seed that is not compared: nats at L on validation
windows that share no target with the test; the usual rate is kept if none is {NEAR} nats better"""
DIFFERENCES_LEGEND = """\
[ ]  95 % t-interval over seeds, not corrected for the number of schemes
±    standard error over the windows of one seed, which shows nothing about other seeds
p    by Student's t, with Holm's correction for all schemes at one N; above 0.05 they are not
     distinguishable. Choose that N before you look: L, or the longest that both define."""
EXTENSIONS_LEGEND = """\
loss of the cropped model - loss with N tokens of context (fixed_targets): above zero, \
the longer text helps; ± standard deviation over seeds"""


# ---- runs


def runs_table(results: list[Result], dataset: str = "") -> str:
    """A text table of one or more results, a line for each length, with notes on how to read it.

    The label of a result stands above its lines. UserError if they do not compare: `select_rows`.
    """
    dataset, all_rows = select_rows(results, dataset)
    others = sorted({protocol for rows in all_rows for protocol, _ in rows} - {*HEADS})
    lines, notes = [[*HEADS, *others]], []
    for label, result, rows in zip(result_labels(results), results, all_rows, strict=True):
        own = run_lines(rows, result["train_length"], others)
        lines += [[label], *(["", *line] for line in own)]
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
            yield [str(n), reason if reason.startswith("diverged") else f"undefined: {reason}"]
            continue
        fixed, pieces = rows.get(("fixed_targets", n)), rows.get(("nonoverlapping", n))
        yield [
            str(n),
            number(fixed, "nats") + error(fixed and fixed["nats"] and fixed["stderr"]),
            gained(rows, train_length, n),
            signed(far(rows, n)) if n > train_length else "",
            number(rows.get(("windowed", n)), "nats"),
            number(pieces, "nats"),
            number(pieces, "bits_per_byte"),
            *(number(rows.get((name, n)), "nats") for name in others),
        ]


def number(row: Row | None, field: str) -> str:
    """A field of a row with four digits; empty if it was not measured."""
    if row is None or row.get(field) is None:
        return "diverged" if row and row.get("diverged") and field == "nats" else ""
    return f"{row[field]:.4f}"


def error(stderr: float | None) -> str:
    """A standard error as it stands behind its number; empty if there is none."""
    return "" if stderr is None else f" ± {stderr:.4f}"


def gained(rows: Rows, train_length: int, length: int) -> str:
    """The gain at a length, its error and mark; (L) at L itself."""
    difference = gain(rows, train_length, length)
    if difference is None:
        return ""
    return "(L) " if length == train_length else signed(difference, error(difference.stderr))


def signed(difference: Difference | None, error: str = "") -> str:
    """A difference with its sign, its error and a mark if it is near zero; empty for None."""
    if difference is None:
        return ""
    return f"{difference.nats:+.4f}{error}{'~' if difference.near_zero else ' '}"


def run_notes(result: Result, rows: Rows, dataset: str) -> list[str]:
    """What a reader of a result's lines must know: its notes, its float32 check, what is hidden."""
    extend = result.get("extend")
    tested = rows_on(result["rows"], dataset, extend)
    notes = row_notes(list(tested.values()), result["train_length"])
    shown = set(map(question, rows.values()))
    for check in [check for check in result["float32_check"] if question(check) in shown]:
        losses = f"{check['nats']:.4f} in {check['dtype']}, {check['nats_float32']:.4f} in float32"
        where = f"at {check['length']}, {check['windows']} windows"
        notes.append(f"{where}: {losses}, difference {check['difference']:+.5f}")
    hidden = left_out(result["rows"], rows, dataset, extend)
    return [*divergences(rows), *unmeasured(rows), *notes, *hidden]


def divergences(rows: Rows) -> list[str]:
    """Where the protocols diverged: ["fixed_targets, windowed diverged from N = 512 on"]."""
    protocols: dict[str, list[str]] = {}
    for protocol in dict.fromkeys(name for name, _ in rows):
        by_length = {n: row for (name, n), row in rows.items() if name == protocol}
        missing = {"diverged": missing_lengths(by_length)["diverged"]}
        defined = {n for n, row in by_length.items() if row["nats"] is not None}
        protocols.setdefault(gaps(defined, missing), []).append(protocol)
    return [f"{', '.join(names)} {words}" for words, names in protocols.items() if words]


def unmeasured(rows: Rows) -> list[str]:
    """Why a protocol has no number at lengths at which another one has."""
    found = [r for (_, n), r in rows.items() if r["nats"] is None and not reason_at(rows, n)]
    return list(dict.fromkeys(r["reason"] for r in found if not r.get("diverged")))


def left_out(rows: list[Row], shown: Rows, dataset: str, extend: str | None) -> list[str]:
    """Which rows of a dataset and extension the table does not show, by how they differ."""
    others = [r for r in rows if (r["dataset"], r["extend"]) == (dataset, extend)]
    told = []
    for name in ("step", "checkpoint", "windows", "dtype", "attention", "split_sha256"):
        values = {r.get(name) for r in others} - {r.get(name) for r in shown.values()} - {None}
        told += [f"{name} {str(value)[:16]}" for value in sorted(values)]
    return [f"rows that are not shown: {', '.join(told)}"] if told else []


# ---- layout


def without_empty_columns(lines: list[list[str]]) -> list[list[str]]:
    """The lines without the columns, from the third on, that have a head and nothing else."""
    full = [line for line in lines if len(line) == len(lines[0])]
    kept = [k < 2 or any(column[1:]) for k, column in enumerate(zip(*full, strict=True))]
    return [list(itertools.compress(line, kept)) if line in full else line for line in lines]


def aligned(lines: list[list[str]]) -> list[str]:
    """The lines with their cells in columns, the first to the left, the others to the right.

    A line that is shorter than the first ends in free text, or is nothing else.
    """
    columns = [line if len(line) == len(lines[0]) else line[:-1] for line in lines]
    by_column = itertools.zip_longest(*columns, fillvalue="")
    widths = [max(map(len, column)) for column in by_column]
    text = []
    for line, cells in zip(lines, columns, strict=True):
        left, right = map(str.ljust, cells[:1], widths), map(str.rjust, cells[1:], widths[1:])
        text.append("  ".join([*left, *right, *line[len(cells) :]]).rstrip())
    return text


# ---- schemes over seeds


def seeds_table(cells: dict[str, list[Result]]) -> str:
    """A text table of schemes over seeds by length; for `cells` see `rows_by_seed`.

    Mean and sample standard deviation over seeds, and the difference to the first scheme. What is
    missing or undefined is listed with its reason.
    """
    dataset, by_scheme = rows_by_seed(cells)
    found, first = contrasts(by_scheme), next(iter(cells))
    lines, undefined = (
        [["scheme", "N", "seeds", "mean", "sd", f"difference to {first}", "p (Holm)", ""]],
        [],
    )
    for label, seeds in by_scheme.items():
        for n in sorted({n for fixed in seeds.values() for n in fixed}):
            lines.append([label, str(n), *seeds_line(seeds, found[label].get(n), n)])
        undefined += undefined_seeds(label, seeds)
    title = f"{dataset}, fixed_targets, nats: mean and spread over seeds"
    legend = ["", DIFFERENCES_LEGEND] if any(found.values()) else []
    table = aligned(without_empty_columns(lines))
    return "\n".join([title, "", *table, *legend, *missing_results(cells), *undefined])


def seeds_line(seeds: Seeds, difference: Contrast | None, length: int) -> list[str]:
    """The cells of one scheme at one length: seeds, mean, spread and difference, or the reason."""
    nats = list(losses_at(seeds, length).values())
    if not nats:
        rows = {seed: fixed[length] for seed, fixed in seeds.items() if length in fixed}
        diverged = [str(seed) for seed, row in rows.items() if row.get("diverged")]
        of = f"diverged: {len(diverged)} of {len(rows)} seeds ({', '.join(diverged)})"
        return [of if diverged else f"undefined: {next(iter(rows.values()))['reason']}"]
    spread = f"{np.std(nats, ddof=1):.4f}" if len(nats) > 1 else ""
    return [str(len(nats)), f"{np.mean(nats):.4f}", spread, *difference_cells(difference)]


def undefined_seeds(pos: str, seeds: Seeds) -> list[str]:
    """A sentence for each length that some seeds of a scheme define and others do not."""
    return [
        f"{pos}, seed {seed}, N = {n}: undefined: {row['reason']}"
        for seed, fixed in seeds.items()
        for n, row in fixed.items()
        if row["nats"] is None and losses_at(seeds, n)
    ]


# ---- learning rates


def rates_table(rates: dict[str, Any]) -> str:
    """A text table of the learning rates that were tried for each scheme, and which was picked.

    `rates` are those of a comparison's results.json.
    """
    lines = [["scheme", "seed", "steps", "rate", "nats", ""]]
    for label, scheme in rates.items():
        tried = scheme["tried"]
        for one in tried:
            mark = "picked, at the edge" if one in (tried[0], tried[-1]) else "picked"
            numbers = [str(one[name]) for name in ("seed", "steps", "learning_rate")]
            nats = one["reason"] or f"{one['nats']:.4f}"
            picked = one["learning_rate"] == scheme["picked"]
            lines.append([label, *numbers, nats, mark if picked else ""])
    return "\n".join([RATES_LEGEND, "", *aligned(lines)])


# ---- differences between schemes


def differences_table(results: list[Result], dataset: str = "") -> str:
    """A text table of the differences to the first scheme by length; empty for a single scheme.

    Results that differ only in their seed are one scheme.
    """
    cells = schemes_of(results)
    if len(cells) < 2:
        return ""
    found, first = contrasts(rows_by_seed(cells, dataset)[1]), next(iter(cells))
    lines = [["", "N", f"difference to {first}", "p (Holm)", ""]]
    for label, by_length in list(found.items())[1:]:
        apart = [["", f"no seed in common with {first}: train both with the same seed"]]
        own = [["", str(n), *difference_cells(one)] for n, one in by_length.items()]
        lines += [[label], *(own or apart)]
    return "\n".join([*aligned(lines), "", DIFFERENCES_LEGEND])


def difference_cells(one: Contrast | None) -> list[str]:
    """A difference with its interval or, of one seed, its error; p; and whether it is none."""
    if one is None:
        return ["", "", ""]
    low, high = one.nats - one.half, one.nats + one.half
    spread = f"[{low:+.4f}, {high:+.4f}] n = {one.seeds}"
    if one.seeds == 1:
        spread = f"± {one.stderr:.4f} (one seed)"
    p = "<0.0001" if one.p < 1e-4 else f"{one.p:.4f}"
    return [f"{one.nats:+.4f} {spread}", p, "" if one.distinguishable else "not distinguishable"]


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
    """Mean, standard deviation of several, and the number of values if it is not all seeds.

    How many seeds diverged, whose values are -inf, if any did.
    """
    if not values:
        return ""
    lost = values.count(-math.inf)
    if lost:
        return "diverged" if lost == seeds else f"diverged ({lost} of {len(values)})"
    text = f"{np.mean(values):+.3f}"
    if len(values) > 1:
        text += f" ± {np.std(values, ddof=1):.3f}"
    return text if len(values) == seeds else f"{text} (n = {len(values)})"


def extension_notes(
    results: list[Result], others: list[Result], dataset: str, shown: Container[str]
) -> list[str]:
    """Which other runs are missing in the table, the notes of rows, and why some have no number."""
    missing = [run_name(r) for r in others if run_name(r) not in shown]
    notes = [f"{name}: of another seed, or measured on other targets" for name in missing]
    for row in itertools.chain.from_iterable(result["rows"] for result in results):
        if row["dataset"] == dataset and not row.get("diverged"):
            notes.append(row.get("note") or row.get("reason"))
    return list(dict.fromkeys(filter(None, notes)))
