"""The tables of the board and its figure, from rows alone.

    python -m tools.board [--rows=FILE] [--base=LABEL] [--figure=FILE]
    python -m tools.board --runs        each seed, and the tests on the way

Text is the loss of bytes at 32 L minus that at L. Content and order are areas of accuracy above
chance over log2 of the distance, from 16 to 32 L. A difference to the base is that of the same
seeds.
An error has two parts, that of the seeds and that of the text or the questions, which all seeds
share. An interval is Student's, with the degrees of freedom of Welch and Satterthwaite, but never
narrower than that of the seeds alone: with three seeds that approximation finds too much.
Holm's correction is over all differences of the table.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from common.errors import UserError, run_program
from tables import reach, tables
from tables.figures import new_figure, save_figure
from tables.records import load_rows

ROWS = Path(__file__).resolve().parents[1] / "results/board/rows.csv.xz"
NUMBERS = ("text", "content", "order")
# what a reader asks: the number, and whether less of it is better
QUESTIONS = {
    "a flat loss: rise to 32 L, nats": ("text", True),
    "far names: area of content": ("content", False),
    "their order: area of order": ("order", False),
    "texts up to L: nats at L": ("L", True),
    "cheap: thousand tokens/s, tests of 32 L": ("speed", False),
}
IN_A_ROW = 6  # schemes in one row of the figure


def trained_length(rows: pd.DataFrame) -> int:
    """L, the length that all runs were first trained at; UserError if they have several."""
    lengths = rows.first_length.fillna(rows.block_size).unique()  # older rows have one of them
    if len(lengths) > 1:
        raise UserError("these runs have different training lengths: a board has one L")
    return int(lengths[0])


def measure(rows: pd.DataFrame) -> pd.DataFrame:
    """A line for each scheme, seed and tested step: its three numbers, the loss of the text at L
    and at 32 L, and what it has inside L. What "books" belongs to has it for each book too.

    A scheme that cannot read the longest texts has nan for what is measured there. UserError for
    rows that are not of the board.
    """
    if not {"recall", "fixed_targets"} <= set(rows.protocol):
        raise UserError("rows of finished runs on books_recall are needed, as in results/board")
    trained = trained_length(rows)
    longest = rows.length.max()
    lines = []
    for (label, seed, step), run in rows.groupby(["label", "seed", "step"], sort=False):
        # the newest answer to a question
        run = run.drop_duplicates(["protocol", "length"], keep="last")
        text = run[run.protocol == "fixed_targets"].set_index("length")
        if trained not in text.index:
            raise UserError(f"every run must be tested at L = {trained}")
        line = {"label": label, "seed": seed, "step": step}
        line["L"] = text.nats[trained]
        line["L books"] = np.asarray(text.block_nats[trained])  # (books,)
        reads_longest = longest in text.index and np.isfinite(text.nats[longest])
        if reads_longest:
            line["32 L"] = text.nats[longest]
            line["32 L books"] = np.asarray(text.block_nats[longest])
            line["text"] = line["32 L"] - line["L"]
            line["text books"] = line["32 L books"] - line["L books"]
            line["speed"] = text.tokens_per_s[longest] / 1000
        tested = reach.answered(run.assign(trained_size=trained))
        for kind, reading in reach.accuracies(tested).iterrows():
            line[f"inside_{kind}"] = reading.inside
            if reads_longest:
                line[kind] = reading.area
                line[f"{kind}_reach"] = reading.reach
                line[f"{kind}_gaps"] = reading.gaps
                line[f"{kind} variance"] = reading.area_variance
        lines.append(line)
    return pd.DataFrame(lines)


# ---- statistics


def error_of_books(books: pd.Series) -> tuple[float, float]:
    """The variance of a mean loss over seeds, each with its loss in every book, and its degrees of
    freedom: all seeds share the books.
    """
    mean = np.mean(np.stack(books), axis=0)  # over seeds, (books,)
    return mean.var(ddof=1) / len(mean), len(mean) - 1


def error_of_test(numbers: pd.DataFrame, name: str) -> tuple[float, float]:
    """The variance of a mean over seeds that comes from the text or the questions, which all seeds
    share, and its degrees of freedom.
    """
    if name in reach.LEARNED:
        return numbers[f"{name} variance"].mean(), np.inf  # thousands of answers
    return error_of_books(numbers[f"{name} books"])


def differences(a: pd.DataFrame, b: pd.DataFrame, name: str) -> tuple[pd.Series, float, float]:
    """a minus b for each seed that both have read; the variance of their mean that comes from the
    text or the questions, and its degrees of freedom.
    """
    both = a.merge(b, on="seed", suffixes=(" of a", " of b"))
    values = (both[f"{name} of a"] - both[f"{name} of b"]).dropna()
    both = both.loc[values.index]
    if values.empty:
        return values, np.nan, np.nan
    if name in reach.LEARNED:
        variances = both[f"{name} variance of a"] + both[f"{name} variance of b"]
        return values, variances.mean(), np.inf
    books = both[f"{name} books of a"] - both[f"{name} books of b"]
    return values, *error_of_books(books)


def interval(
    values: pd.Series, of_test: float, of_test_df: float, spread: pd.Series | None = None
) -> tuple[float, float]:
    """Half of the 95 % interval of a mean over seeds, and p of its being 0.

    `spread` are values to take the spread over seeds from, where there is one seed alone.
    """
    if spread is None:
        spread = values
    of_seeds = spread.var(ddof=1) / len(values)
    freedom = len(spread) - 1
    error = of_seeds + of_test
    if error == 0:  # the same in every seed and book
        return 0.0, 1.0
    df = error**2 / (of_seeds**2 / freedom + of_test**2 / of_test_df)
    errors = np.sqrt([error, of_seeds])
    freedoms = [df, freedom]
    halves = stats.t.ppf(0.975, freedoms) * errors
    ps = 2 * stats.t.sf(abs(values.mean()) / errors, freedoms)
    return halves.max(), ps.max()


def difference(numbers: pd.DataFrame, base: pd.DataFrame, name: str) -> dict:
    """The mean difference to the base over the seeds of both, its interval and its p."""
    values, of_test, df = differences(numbers, base, name)
    half, p = interval(values, of_test, df)
    return {"name": name, "seeds": len(values), "mean": values.mean(), "half": half, "p": p}


def holm(p: pd.Series) -> pd.Series:
    """Holm's corrected p."""
    order = p.sort_values()
    steps = order * np.arange(len(order), 0, -1)
    return steps.cummax().clip(upper=1)


def compare(numbers: pd.DataFrame, base: str) -> pd.DataFrame:
    """A line for each scheme of three seeds or more and each number that it and the base have
    learned.
    """
    lines = []
    learned = has_learned(numbers)
    of_base = numbers[numbers.label == base]
    for label, of_scheme in numbers.groupby("label", sort=False):
        shared = of_scheme.seed.isin(of_base.seed).sum()
        for name in NUMBERS:
            is_known = learned.loc[[label, base], name].all() and of_scheme[name].notna().all()
            if label != base and shared >= 3 and is_known:
                lines.append({"label": label} | difference(of_scheme, of_base, name))
    table = pd.DataFrame(lines, columns=["label", "name", "seeds", "mean", "half", "p"])
    table["holm"] = holm(table.p)
    return table


def has_learned(numbers: pd.DataFrame) -> pd.DataFrame:
    """Whether the mean over seeds of a scheme reaches LEARNED in texts of L; of text always."""
    kinds = [f"inside_{kind}" for kind in reach.LEARNED]
    inside = numbers.groupby("label", sort=False)[kinds].mean()
    learned = pd.DataFrame({"text": True}, index=inside.index)
    for kind, least in reach.LEARNED.items():
        learned[kind] = inside[f"inside_{kind}"] >= least
    return learned


# ---- tables


def cell(runs: pd.DataFrame, name: str, digits: int) -> str:
    """A mean over seeds, with its interval if they are three or more."""
    if runs[name].isna().any():
        if name != "text":
            return ""
        seeds = runs[name].isna().sum()
        return "cannot read it" if seeds == len(runs) else f"diverged in {seeds} of {len(runs)}"
    text = f"{runs[name].mean():z.{digits}f}"
    if len(runs) < 3:
        return text
    half, _ = interval(runs[name], *error_of_test(runs, name))
    return f"{text} ± {half:.{digits}f}"


def first_five(numbers: pd.DataFrame) -> str:
    """In Markdown: the best means over seeds for each question, of what is learned."""
    learned = has_learned(numbers)
    best = {}
    for question, (name, ascending) in QUESTIONS.items():
        # none for a scheme of which a seed diverged
        means = numbers.groupby("label", sort=False)[name].agg(lambda x: x.mean(skipna=False))
        if name in learned:
            means = means[learned[name]]
        means = means.dropna().sort_values(ascending=ascending).head(5)
        best[question] = pd.Series([f"{label} {mean:z.3f}" for label, mean in means.items()])
    return tables.show("", pd.DataFrame(best), format="md").strip()


def show(numbers: pd.DataFrame, base: str) -> str:
    """In Markdown: a line for each scheme, the flattest loss first, and one for each difference to
    the base.
    """
    learned = has_learned(numbers)
    order = numbers.groupby("label").text.mean().sort_values().index
    numbers = numbers.set_index("label").loc[order].reset_index()
    lines = []
    for label, runs in numbers.groupby("label", sort=False):
        line = {"scheme": label, "seeds": len(runs), "text at L, nats": f"{runs.L.mean():.3f}"}
        line["rise to 32 L"] = cell(runs, "text", 3)
        for kind in reach.LEARNED:
            line[f"{kind}: at L"] = f"{runs[f'inside_{kind}'].mean():z.2f}"
            is_learned = learned.loc[label, kind]
            line[f"{kind}: area"] = cell(runs, kind, 2) if is_learned else "not learned"
        lines.append(line)
    text = tables.show("", pd.DataFrame(lines), format="md").strip()
    differences = compare(numbers, base)
    if differences.empty:  # of fewer than three seeds
        return text
    differences["p"] = differences.p.map("{:.2g}".format)
    differences.columns = [f"minus {base}", "number", "seeds", "mean", "± 95 %", "p", "Holm's p"]
    return text + tables.show("", differences, format="md")


# ---- the figure


def draw(rows: pd.DataFrame, path: str) -> None:
    """Three panels for each six schemes, a line for each seed: the loss of text by length, and both
    accuracies by distance.
    """
    labels = list(rows.label.unique())
    groups = [labels[k : k + IN_A_ROW] for k in range(0, len(labels), IN_A_ROW)]
    figure = new_figure((12, 3.4 * len(groups)))
    panels = figure.subplots(len(groups), 3, squeeze=False, sharey="col")
    for group, axes in zip(groups, panels, strict=True):
        draw_group(rows[rows.label.isin(group)], *axes)
    panels[0, 0].set_title("text: loss of the same bytes")
    panels[0, 1].set_title("content: is the name found?")
    panels[0, 2].set_title("order: which was the latest?")
    panels[-1, 0].set_xlabel("test length")
    for axes in panels[-1, 1:]:
        axes.set_xlabel(f"tokens back, in sequences of {rows.length.max():,}")
    save_figure(figure, path)


def draw_group(rows: pd.DataFrame, text, content, order) -> None:
    """The lines of these schemes in the three panels."""
    trained = trained_length(rows)
    by_kind = {"content": content, "order": order}
    for k, (label, of_scheme) in enumerate(rows.groupby("label", sort=False)):
        style = {"color": f"C{k}", "linewidth": 1, "alpha": 0.8}
        for _, run in of_scheme.groupby("seed"):
            fixed = run[run.protocol == "fixed_targets"].sort_values("length")
            text.plot(fixed.length, fixed.nats, marker=".", **style)  # learned has one point
            bins = reach.bin_table(reach.answered(run))
            for kind, of_kind in bins[bins.N == rows.length.max()].groupby("kind"):
                middle = np.sqrt(of_kind["first"] * (of_kind.end - 1))
                by_kind[kind].plot(middle, of_kind.above, **style)
        order.plot([], [], label=label, **style)
    for axes in (text, content, order):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:.0f}")
        axes.axvline(trained, color="0.8")
    text.set_ylabel("nats a byte")
    content.set_ylabel("accuracy above chance")
    for axes in (content, order):
        axes.set_ylim(-0.4, 1.03)
        axes.axhline(0, color="0.8")
    order.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def main() -> None:
    """Print the tables; draw the figure if it is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default=ROWS, help="a table of rows, by default the board's")
    parser.add_argument("--base", default="rope", help="what the others are compared with")
    parser.add_argument("--figure", help="a file to draw")
    parser.add_argument("--schemes", help="those of the figure, as in rope,alibi: all by default")
    parser.add_argument("--runs", action="store_true", help="a line for each run and tested step")
    options = parser.parse_args()
    if options.figure and not options.figure.endswith((".png", ".pdf", ".svg")):
        raise UserError(f"--figure={options.figure} must end with .png, .pdf or .svg")
    rows = load_rows(options.rows)
    if options.runs:
        table = measure(rows)
        hidden = [name for name in table if name.endswith((" books", " variance"))]
        table = table.drop(columns=[*hidden, "32 L"])
        table = table.sort_values(["label", "seed", "step"]).round(3)
        print(table.to_string(index=False))
        return
    rows = rows[rows.step == rows.max_iters]
    if options.base not in set(rows.label):
        raise UserError(f"--base is one of: {'; '.join(rows.label.unique())}")
    drawn = options.schemes.split(",") if options.schemes else list(rows.label)
    unknown = {*drawn} - {*rows.label}
    if unknown:
        raise UserError(f"--schemes: {min(unknown)} is none of {'; '.join(rows.label.unique())}")
    numbers = measure(rows)
    print(first_five(numbers), show(numbers, options.base), sep="\n\n")
    if options.figure:
        draw(rows[rows.label.isin(drawn)], options.figure)


if __name__ == "__main__":
    run_program(main)
