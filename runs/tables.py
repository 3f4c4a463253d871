"""Text tables of results: one run or several, schemes over seeds, extensions of one model."""

import inspect
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from configurable import PROTOCOLS
from runs import answers, compare, results
from runs.compare import NEAR, Contrast, Seeds
from runs.labels import gaps, loss, result_labels, run_name
from runs.results import Difference, Result, Row, Rows

HEADS = ["", *"N fixed_targets gain text far windowed nonoverlapping bits/byte".split()]
RATES_LEGEND = f"learning rates: nats at L on another seed and text; the usual one if within {NEAR}"


class Page(str):
    """A table as text: its title, its `lines` of cells, `aligned`, and what stands below it.

    The first line has the heads. For other formats than text see runs/formats.py.
    """

    title: str
    lines: list[list[str]]
    below: tuple[str, ...]


# ---- runs


def tables_of(tested: list[Result], dataset: str = "") -> list[Page]:
    """The tables of results: `runs_table` and, of several schemes, `scheme_tables`."""
    schemes = compare.schemes_of(tested)
    several = scheme_tables(schemes, dataset) if len(schemes) > 1 else []
    return [runs_table(tested, dataset), *several]


def runs_table(tested: list[Result], dataset: str = "") -> Page:
    """A text table of one or more results, a line for each length, with notes on how to read it.

    The label of a result stands above its lines. UserError if they do not compare: `select_rows`.
    """
    dataset, all_rows = compare.select_rows(tested, dataset)
    others = sorted({protocol for rows in all_rows for protocol, _ in rows} - {*HEADS})
    lines, notes = [], []
    for label, result, rows in zip(result_labels(tested), tested, all_rows, strict=True):
        of_answers = answers.answered(rows)
        of_kind = answers.distance_lines if answers.is_recall(of_answers) else answers.size_lines
        own = of_kind(of_answers) if of_answers else run_lines(result, rows, others)
        lines = [*(lines or own[:1]), [label], *own[1:]]
        notes += [f"{label}: {note}" for note in run_notes(result, rows)]
    row = next(iter(all_rows[0].values()))
    if "chance" in row:
        title = f"{dataset}, trained at {row['trained']}; a guess is right in {row['chance']:.1%}"
        cheap = row.get("majority")  # older results have none
        title += f", by majority of what was written in {cheap:.1%}" if cheap else ""
        return page(title, lines, "", legend(of_kind), "", *notes)
    lengths = ", ".join(dict.fromkeys(str(result["train_length"]) for result in tested))
    title = f"{dataset}, trained at L = {lengths}; nats per {tested[0]['unit']}"
    below = [] if others == ["image"] else [legend(run_lines)]
    return page(title, without_empty_columns(lines), "", *below, *notes)


def run_lines(result: Result, rows: Rows, others: list[str]) -> list[list[str]]:
    """The cells of one result, below a line with their heads: a line for each length. The losses of
    the protocols `others` come last. Where nothing is defined the line says why.

    ±     standard error over windows; those of gain and text are of paired differences
    ~     near zero: within 2 standard errors or 0.005 nats
    gain  loss(L) - loss(N): negative where the scheme breaks
    text  the gain of a predictor by counts and longest match: what this text offers beyond L
    far   windowed - fixed_targets: positive where keys beyond L help
    For nope and absolute schemes, windowed and far are only a diagnosis.
    nonoverlapping falls with N for every scheme: it is no evidence of extrapolation.
    """
    lines, train_length = [[*HEADS, *others]], result["train_length"]
    for n in sorted({n for _, n in rows}):
        reason = reason_at(rows, n)
        if reason:
            said = reason if reason.startswith("diverged") else f"undefined: {reason}"
            lines.append(["", str(n), said])
            continue
        fixed, windowed, pieces, *more = (rows.get((p, n), {}) for p in (*PROTOCOLS, *others))
        at_length = "(L) " if fixed and n == train_length else ""
        gain, far = results.gain(rows, train_length, n), results.far(rows, n)
        text = offered(rows, train_length, n)
        cells = [number(fixed, "nats", "stderr"), at_length or signed(gain, error=True), text]
        cells += [signed(far) if n > train_length else "", number(windowed), number(pieces)]
        cells += [number(pieces, "bits_per_byte"), *map(number, more)]
        lines.append(["", str(n), *cells])
    return lines


def offered(rows: Rows, train_length: int, length: int) -> str:
    """What a simple predictor gains from the context beyond L, and the paired error; or nothing."""
    pair = [rows.get(("fixed_targets", n), {}).get("text_nats") for n in (train_length, length)]
    if length <= train_length or None in pair:
        return ""
    if not all(isinstance(nats, list) for nats in pair):  # older results have the mean alone
        return f"{np.mean(pair[0]) - np.mean(pair[1]):+.4f} "
    gains = np.subtract(*pair)  # by block
    return signed(Difference(float(gains.mean()), results.standard_error(gains)), error=True)


def reason_at(rows: Rows, length: int) -> str:
    """Why no protocol is defined at a length; empty if one is."""
    here = [row for (_, n), row in rows.items() if n == length]
    return "" if any(row["nats"] is not None for row in here) else here[0]["reason"]


def number(row: Row, field: str = "nats", stderr: str = "") -> str:
    """A field of a row with four digits, and its `stderr` if named; empty if not measured."""
    if row.get(field) is None:
        return "diverged" if row.get("diverged") and field == "nats" else ""
    return f"{row[field]:.4f}" + (f" ± {row[stderr]:.4f}" if stderr else "")


def signed(difference: Difference | None, error: bool = False) -> str:
    """A difference with its sign, its error if asked, and a mark if it is near zero; or nothing."""
    if difference is None:
        return ""
    spread = f" ± {difference.stderr:.4f}" if error else ""
    return f"{difference.nats:+.4f}{spread}{'~' if difference.near_zero else ' '}"


def run_notes(result: Result, rows: Rows) -> list[str]:
    """What a reader of a result's lines must know: its notes and its float32 check."""
    tested, shown = answers.answered(rows), set(map(results.question, rows.values()))
    notes = [answers.verdict(tested)] if tested else []
    notes += divergences(rows)
    undefined = [(n, row) for (_, n), row in rows.items() if math.isnan(loss(row))]
    notes += [row["reason"] for n, row in undefined if not reason_at(rows, n)]
    notes += results.row_notes(list(rows.values()), result["train_length"])
    for check in result["float32_check"]:
        where = f"{check['protocol']} at {check['length']}, in {check['windows']} of its windows"
        sentence = f"{where}: {check['dtype']} less float32 is {check['difference']:+.5f} nats"
        notes += [sentence] if results.question(check) in shown else []
    return list(dict.fromkeys(notes))


def divergences(rows: Rows) -> list[str]:
    """Where the protocols diverged: ["fixed_targets, windowed diverged from N = 512 on"]."""
    protocols: dict[str, list[str]] = {}
    for protocol in dict.fromkeys(name for name, _ in rows):
        curve = {n: loss(row) for n, row in results.by_length(rows, protocol).items()}
        words = gaps({n: nats for n, nats in curve.items() if not math.isnan(nats)})
        protocols.setdefault(words, []).append(protocol)
    return [f"{', '.join(names)} {words}" for words, names in protocols.items() if words]


# ---- layout


def page(title: str, lines: list[list[str]], *below: str) -> Page:
    """A table under its title, with what stands below it."""
    made = Page("\n".join([title, "", *aligned(lines), *below]))
    made.title, made.lines, made.below = title, lines, below
    return made


def legend(function: Callable) -> str:
    """How to read a table: the docstring of the function that makes its cells, from the second
    paragraph on.
    """
    return inspect.getdoc(function).partition("\n\n")[2]


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
    widths = [max(map(len, column)) for column in itertools.zip_longest(*columns, fillvalue="")]
    text = []
    for line, cells in zip(lines, columns, strict=True):
        left, right = map(str.ljust, cells[:1], widths), map(str.rjust, cells[1:], widths[1:])
        text.append("  ".join([*left, *right, *line[len(cells) :]]).rstrip())
    return text


# ---- schemes over seeds


def scheme_tables(cells: dict[str, list[Result]], dataset: str = "") -> list[Page]:
    """`seeds_table`, and of losses `means_table` before it. For `cells` see `rows_by_seed`."""
    dataset, by_scheme = compare.rows_by_seed(cells, dataset)
    of_losses = compare.protocol_of(by_scheme) not in results.ANSWERED
    unit = next((r["unit"] for of in cells.values() for r in of if "rows" in r), "")
    wide = [means_table(by_scheme, dataset, unit)] if of_losses else []
    return [*wide, seeds_table(cells, dataset)]


def means_table(by_scheme: dict[str, Seeds], title: str, unit: str) -> Page:
    """A text table as papers print it, a line for each scheme and a column for each N.

    ±  standard deviation over seeds; n where there are fewer than of another scheme. The schemes
       of a seed read the same text in the same order: to tell two of them apart, look at their
       paired difference.
    """
    lengths = sorted({n for seeds in by_scheme.values() for rows in seeds.values() for n in rows})
    lines, most = [["scheme", *map(str, lengths)]], max(map(len, by_scheme.values()))
    for label, seeds in by_scheme.items():
        values = [[*compare.losses_at(seeds, n).values()] for n in lengths]
        tested = {n for rows in seeds.values() for n in rows}
        none = ["undefined" if n in tested else "not tested" for n in lengths]
        none = none if seeds else ["no result"] * len(lengths)
        cells = [spread(v, most, ".3f") or x for v, x in zip(values, none, strict=True)]
        lines.append([label, *cells])
    protocol = compare.protocol_of(by_scheme)
    title = f"{title}, {protocol}, nats per {unit}: mean over seeds"
    return page(title, lines, "", legend(means_table))


def seeds_table(cells: dict[str, list[Result]], dataset: str = "") -> Page:
    """A text table of schemes over seeds by length; for `cells` see `rows_by_seed`.

    Mean and sample standard deviation over seeds, and the difference to the first scheme. What is
    missing or undefined is listed with its reason.
    """
    dataset, by_scheme = compare.rows_by_seed(cells, dataset)
    protocol = compare.protocol_of(by_scheme)
    if protocol in results.ANSWERED:
        return answers_by_seed(by_scheme, dataset, compare.missing_results(cells))
    found, first = compare.contrasts(by_scheme), next(iter(cells))
    heads = ["scheme", "N", "seeds", "mean", "sd", f"difference to {first}", "p (Holm)", ""]
    lines, notes = [heads], compare.missing_results(cells)
    for label, seeds in by_scheme.items():
        for n in compare.mean_curve(seeds):
            lines.append([label, str(n), *seeds_line(seeds, found[label].get(n), n)])
        if seeds and not seeds.keys() & by_scheme[first].keys():
            notes.append(f"{label}: no seed in common with {first}: train both with the same seed")
    unit = next(result["unit"] for of in cells.values() for result in of if "rows" in result)
    title = f"{dataset}, {protocol}, nats per {unit}: mean and spread over seeds"
    below = ["", legend(difference_cells)] if any(found.values()) else []
    return page(title, without_empty_columns(lines), *below, *notes, *cell_notes(by_scheme))


def answers_by_seed(by_scheme: dict[str, Seeds], title: str, notes: list[str]) -> Page:
    """A text table of schemes on rows with answers: the mean over seeds, and the reach of each."""
    every = {label: compare.values_by_length(of, asked=True) for label, of in by_scheme.items()}
    heads = sorted({x for shares in every.values() for x in shares})
    lines = [["scheme", *map(str, heads), "reach of each seed"]]
    for label, seeds in by_scheme.items():
        cells = [f"{np.mean(every[label][x]):.2f}" if x in every[label] else "" for x in heads]
        reaches = ", ".join(str(answers.reach(rows)) for rows in seeds.values())
        lines.append([label, *cells, reaches])
    return page(f"{title}, mean over seeds; a reach of 0: not learned", lines, *notes)


def seeds_line(seeds: Seeds, difference: Contrast | None, length: int) -> list[str]:
    """The cells of one scheme at one length: seeds, mean, spread and difference, or the reason."""
    losses = compare.losses_at(seeds, length)
    lost = [str(seed) for seed, nats in losses.items() if math.isinf(nats)]
    if lost:
        return [f"diverged: {len(lost)} of {len(losses)} seeds ({', '.join(lost)})"]
    if not losses:
        rows = [fixed[length] for fixed in seeds.values() if length in fixed]
        return [f"undefined: {rows[0]['reason']}"]
    nats = list(losses.values())
    spread = f"{np.std(nats, ddof=1):.4f}" if len(nats) > 1 else ""
    cells = difference_cells(difference) if difference else [""] * 3
    return [str(len(nats)), f"{np.mean(nats):.4f}", spread, *cells]


def difference_cells(one: Contrast) -> list[str]:
    """A difference with its interval or, of one seed, its error; p; and whether it is none.

    [ ]  95 % t-interval over seeds, not corrected for the number of schemes
    ±    standard error over the windows of one seed, which shows nothing about other seeds
    p    by Student's t, with Holm's correction for all schemes at one N; above 0.05 they are not
         distinguishable. Choose that N before you look: L, or the longest that both define.
    """
    spread = f"± {one.stderr:.4f} (one seed)"
    if one.seeds > 1:
        spread = f"[{one.nats - one.half:+.4f}, {one.nats + one.half:+.4f}] n = {one.seeds}"
    p = "<0.0001" if one.p < 1e-4 else f"{one.p:.4f}"
    return [f"{one.nats:+.4f} {spread}", p, "" if one.distinguishable else "not distinguishable"]


def cell_notes(by_scheme: dict[str, Seeds]) -> list[str]:
    """Where some seeds of a scheme are undefined, and the notes of rows, each with its cells."""
    cells: dict[str, dict[str, None]] = {}
    for label, seeds in by_scheme.items():
        for seed, fixed in seeds.items():
            for n, row in fixed.items():
                note = row.get("note", "")
                if math.isnan(loss(row)) and compare.losses_at(seeds, n):
                    note = f"undefined at N = {n}: {row['reason']}"
                cells.setdefault(note, {})[f"{label}, seed {seed}"] = None
    return [f"{note} ({'; '.join(names)})" for note, names in cells.items() if note]


# ---- learning rates


def rates_table(rates: dict[str, Any]) -> Page:
    """A text table of the learning rates that were tried for each scheme, and which was picked.

    `rates` are those of a comparison's results.json.
    """
    lines = [["scheme", "seed", "steps", "rate", "nats", ""]]
    for label, scheme in rates.items():
        tried = scheme["tried"]
        for one in tried:
            edge = ", at the edge" if one in (tried[0], tried[-1]) else ""
            mark = f"picked{edge}" if one["learning_rate"] == scheme["picked"] else ""
            numbers = [str(one[name]) for name in ("seed", "steps", "learning_rate")]
            lines.append([label, *numbers, one["reason"] or f"{one['nats']:.4f}", mark])
    return page(RATES_LEGEND, lines)


# ---- extensions of one model


def extensions_table(tested: list[Result], others: list[Result], dataset: str = "") -> Page:
    """A text table of one model under extensions by length: what each gains over cropping. For
    `tested` and `others` see `gains`.

    loss of the cropped model - loss with N tokens of context (fixed_targets): above zero, the
    longer text helps; ± standard deviation over seeds
    """
    dataset, gained = results.gains(tested, others, dataset)
    lengths = sorted({n for by_length in gained.values() for n in by_length})
    lines = [["extension", *map(str, lengths)]]
    for label, by_length in gained.items():
        lines.append([label, *(spread(by_length.get(n, []), len(tested)) for n in lengths)])
    cropped = [results.cropped_row(result, dataset) for result in tested]
    nats = [row["nats"] for row in cropped if row and row["nats"] is not None]
    seeds = ", ".join(str(result["seed"]) for result in tested)
    level = f"{np.mean(nats):.4f} nats per {tested[0]['unit']}"
    title = f"{dataset}, {run_name(tested[0])}, seeds {seeds}; cropped: {level}"
    missing = "of another seed, or measured on other targets"
    notes = [f"{name}: {missing}" for name in map(run_name, others) if name not in gained]
    rows = [row for result in tested for row in result["rows"] if row["dataset"] == dataset]
    notes += [row.get("note") or row.get("reason", "") for row in rows if not row.get("diverged")]
    return page(title, lines, "", legend(extensions_table), *filter(None, dict.fromkeys(notes)))


def spread(values: list[float], seeds: int, form: str = "+.3f") -> str:
    """Mean, standard deviation of several, and the number of values if it is not all seeds.

    How many seeds diverged, whose values are infinite, if any did.
    """
    if not values:
        return ""
    lost = sum(map(math.isinf, values))
    if lost:
        return "diverged" if lost == seeds else f"diverged ({lost} of {len(values)})"
    text = f"{np.mean(values):{form}}"
    if len(values) > 1:
        text += f" ± {np.std(values, ddof=1):.3f}"
    return text if len(values) == seeds else f"{text} (n = {len(values)})"
