"""Tables of records, as text, Markdown, LaTeX or CSV."""

import csv
from collections.abc import Iterable, Sequence

import pandas as pd

from common.errors import UserError
from measure import protocols
from tables import reach
from tables.records import Result, rows_of, select, to_csv
from tables.statistics import (
    INTERVAL,
    doubts,
    extension_gains,
    length_table,
    over_seeds,
    rises,
    verdict,
)

# the columns of `over_seeds` that are tables of their own, after the mean, with their titles
SPREAD = {
    "sd": "standard deviation over seeds",
    "difference": "difference from the first, mean over the seeds that both have",
    "error": INTERVAL,
}


# ---- tables


def show(
    title: str,
    frame: pd.DataFrame,
    notes: Iterable[str] = (),
    format: str = "text",
    digits: int = 4,
) -> str:
    """A frame as "text", "md" or "tex" (booktabs) with its title and notes, or as "csv".

    An index without a name is left out; a missing number is an empty cell.
    """
    if any(frame.index.names):
        frame = frame.reset_index()
    if format == "csv":
        return to_csv(frame)
    numbers = {"na_rep": "", "float_format": f"{{:.{digits}f}}".format}
    if format == "text":
        table = frame.to_string(index=False, **numbers)
        return "\n".join([title, "", table, "", *notes]).rstrip()
    if format == "md":
        plain = frame.to_csv(sep="\t", index=False, quoting=csv.QUOTE_NONE, **numbers)
        lines = plain.replace("|", "\\|").splitlines()
        lines.insert(1, "\t".join(["---"] * frame.shape[1]))
        table = "\n".join("| " + line.replace("\t", " | ") + " |" for line in lines)
        return "\n\n".join([title, table, *notes])
    columns = "l" + "r" * (frame.shape[1] - 1)
    table = frame.to_latex(index=False, escape=True, column_format=columns, **numbers)
    table = table.replace("|", "$|$").replace("& -", "& $-$").replace("±", r"$\pm$")
    # three lengths fit a column of 3.25 inches
    table = table.replace(r"\begin", r"\footnotesize\setlength{\tabcolsep}{3pt}\begin")
    comments = "\n".join([title, *notes]).replace("\n", "\n% ")
    return f"% {comments}\n{table}"


def tables(
    rows: pd.DataFrame,
    format: str = "text",
    lengths: Iterable[int] = (),
    names: Sequence[str] = (),
) -> str:
    """The tables of selected rows: for one run by length, for several by scheme, over seeds.

    `lengths` are those to show, by default all tested lengths, and `names` the protocols. In "tex"
    the losses are one table, as papers print it. "csv" gives the rows. UserError for a
    length or a protocol that was not tested.
    """
    if not set(rows.protocol).issuperset(names):
        raise UserError(f"protocols: only {', '.join(rows.protocol.unique())} were tested")
    every_test = rows
    rows = rows[rows.protocol.isin(names or rows.protocol)]
    measured = set(rows.length)
    if not measured.issuperset(lengths):
        raise UserError(f"eval_lengths: only {sorted(measured)} were tested")
    lengths = lengths or measured
    if format == "csv":
        return show("", rows[rows.length.isin(lengths)], format=format)
    trained = " and ".join(map(str, rows.block_size.unique()))
    where = f"{rows.dataset.iloc[0]}, trained at L = {trained}"
    shown = []

    # answers, by run
    is_answer = reach.has_answers(rows)
    parts = {}
    notes = [reach.LEGEND]
    for (label, seed), run in rows[is_answer].groupby(["label", "seed"], sort=False):
        tested = reach.answered(run)
        parts[f"{label} s={seed}"] = reach.table(tested).query("N in @lengths")
        notes.append(f"{label} s={seed}: {reach.verdict(tested)}")
    if parts:
        notes += notes_of(rows[is_answer])
        table = pd.concat(parts, names=["scheme"])
        shown.append(show(f"{where}; answers", table, notes, format, digits=2))

    # losses
    rows = rows[~is_answer]
    if rows.empty:
        return shown[0]
    title = f"{where}; nats per {rows.unit.iloc[0]}"
    notes = [*notes_of(rows), *sizes_of(rows)]
    runs = rows.groupby(["label", "seed"], sort=False)
    schemes = over_seeds(rows[rows.length.isin(lengths)], names)
    one_seed = len(runs) == rows.label.nunique()
    if one_seed:
        for (label, _), run in every_test.groupby(["label", "seed"], sort=False):
            doubt = doubts(run)
            if doubt:
                notes.append(f"{label}: {doubt}")
    if len(runs) == 1:
        table = length_table(rows).drop(columns=["far", "far_stderr"]).query("N in @lengths")
        table = table.dropna(axis="columns", how="all")
        notes = [*legend(rows, table), *notes]
        table = table.rename(columns={"stderr": "± stderr", "gain_stderr": "± paired"})
        title = f"{rows.label.iloc[0]} on {title}"
        shown.append(show(title, table, notes, format))
    else:
        for protocol, of_protocol in schemes.groupby("protocol", sort=False):
            heading = f"{title}; {protocol} by test length N"
            if not one_seed:
                heading += ", mean over seeds, where all were tested; inf: a test diverged"
            shows = [*rises(rows[rows.length.isin(lengths)], protocol), *verdict(of_protocol)]
            if format == "tex":
                shown.append(paper_table(of_protocol, heading, [*shows, *notes]))
            else:
                shown.append(seed_tables(of_protocol, heading, notes, format))
                shown.append("\n".join(shows))
    return "\n\n".join(shown).rstrip()


def legend(rows: pd.DataFrame, table: pd.DataFrame) -> list[str]:
    """The lines that explain the columns of a `length_table` of these rows."""
    lines = []
    for protocol in protocols.PROTOCOLS:
        n = rows.tokens[rows.protocol == protocol.name].max()
        lines += [
            line.format(n=n)
            for column, line in protocol.columns.items()
            if line and column in table
        ]
    return lines


def seed_tables(schemes: pd.DataFrame, title: str, notes: Iterable[str], format: str) -> str:
    """The columns of `over_seeds` or `extension_gains` as tables, with a column for each length."""
    means = wide(schemes, "mean")
    if schemes.seeds.max() > 1:
        means.insert(0, "seeds", schemes.groupby("label").seeds.max())
    shown = [show(title, means, notes, format)]
    for column, heading in SPREAD.items():
        if column in schemes and schemes[column].notna().any():
            shown.append(show(heading, wide(schemes, column).dropna(how="all"), format=format))
    return "\n\n".join(shown)


def paper_table(schemes: pd.DataFrame, title: str, notes: Iterable[str]) -> str:
    """`over_seeds` in LaTeX as papers print it: a line for each label, a column for each length."""
    means = schemes["mean"].map("{:.3f}".format).replace({"nan": "", "inf": "diverged"})
    halves = schemes.half.map(" ± {:.3f}".format).where(schemes.half.notna(), "")
    cells = "± in a cell: half of the 95 % t-interval over seeds, which all read the same text"
    notes = [cells, *notes, INTERVAL]
    return show(title, wide(schemes.assign(cells=means + halves), "cells"), notes, "tex")


def notes_of(rows: pd.DataFrame) -> list[str]:
    """The lines below a table: the notes of its rows, and why a run has no loss."""
    reasons = rows[rows.reason != ""].drop_duplicates("run")  # longer texts have no loss either
    notes = rows.assign(note=rows.note.str.split("; ")).explode("note")
    notes = notes[notes.note != ""].drop_duplicates(["run", "note"])
    if rows.run.nunique() > 1:  # of each run another: it is printed below the run's own table
        notes = notes[~notes.note.str.contains("minus float32 is")]
    notes = pd.concat([reasons.assign(note=reasons.reason), notes])
    lines = []
    for note, labels in notes.groupby("note", sort=False).label.unique().items():
        lines.append(f"{', '.join(labels)}: {note}")
    if rows.dtype[rows.dtype != ""].nunique() > 1:
        lines.append("rows of different number formats are compared")
    return lines


def sizes_of(rows: pd.DataFrame) -> list[str]:
    """A line each for parameters and tokens trained on, where the largest label has over a tenth
    more than the smallest; schemes' own parameters make smaller differences.
    """
    lines = []
    named = {"parameters": "parameters", "tokens_trained": "tokens trained on"}
    for column, words in named.items():
        sizes = rows.groupby("label")[column].first().dropna().sort_values()
        if len(sizes) and sizes.iloc[-1] > 1.1 * sizes.iloc[0]:
            least, most = (f"{size:,.0f} ({label})" for label, size in sizes.iloc[[0, -1]].items())
            lines.append(f"{words} differ: from {least} to {most}")
    return lines


def wide(table: pd.DataFrame, column: str) -> pd.DataFrame:
    """One column of a long table as lines of labels, in the same order, and columns of lengths."""
    cells = table.pivot(index="label", columns="length", values=column)
    return cells.reindex(table.label.unique()).rename_axis(index="scheme", columns=None)


def run_table(result: Result) -> str:
    """The table of one run."""
    return tables(select(rows_of({"": result})))


def extension_table(rows: pd.DataFrame, format: str = "text") -> str:
    """`extension_gains` as tables, a column for each length; in "csv" the rows."""
    if format == "csv":
        return to_csv(rows)
    title = f"{rows.pos.iloc[0]} on {rows.dataset.iloc[0]}: gain over cropping to L, nats"
    gains = extension_gains(rows)
    better = gains[(gains["mean"] > gains.error) & (gains.length > rows.block_size.iloc[0])]
    point = ", ".join(better.label + " at " + better.length.map(str))
    note = f"better than cutting the text to L, by more than ±: {point or 'nothing'}"
    return seed_tables(gains, title, [note, *notes_of(rows)], format)
