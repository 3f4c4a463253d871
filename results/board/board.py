"""The board's table and figure, of rows.csv.xz alone.

    python results/board/board.py [--rows=FILE] [--base=LABEL] [--figure=FILE]
    python results/board/board.py --runs        each seed, and the tests on the way

It computes with numpy, pandas and scipy and imports nothing of the project, so that it checks the
project's own numbers (runs/answers.py) as well.

Text is the loss of bytes at 32 L minus that at L. Content and order are areas of accuracy above
chance over log2 of the distance, from 16 to 32 L. A difference to the base is that of the same
seeds.
An error has two parts, that of the seeds and that of the text or the questions, which all seeds
share. An interval is Student's, with the degrees of freedom of Welch and Satterthwaite, but never
narrower than that of the seeds alone: with three seeds that approximation finds too much.
Holm's correction is over all differences of the table.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

NEAREST = 16  # tokens back, from where on an area counts
# accuracy above chance in texts of L, below which a kind is not learned
LEARNED = {"content": 0.9, "order": 0.5}
NUMBERS = ("text", "content", "order")
IN_A_ROW = 6  # schemes in one row of the figure


def read(path: Path) -> pd.DataFrame:
    """The rows of the last step, without those on the way."""
    rows = pd.read_csv(path).rename(columns={"train_length": "block_size"})  # the older name
    return rows[rows.step == rows.max_iters]


def runs_table(rows: pd.DataFrame) -> str:
    """The numbers of each run at each step that was tested, with the reach of both kinds."""
    tables = []
    for step, tested in rows.groupby("step"):
        tables.append(measure(tested).drop(columns="books").assign(step=step))
    table = pd.concat(tables).sort_values(["label", "seed", "step"])
    return (
        table.drop(columns=["content variance", "order variance"]).round(3).to_string(index=False)
    )


def reach(bins: pd.DataFrame, inside: float) -> tuple[int, int]:
    """The end of the farthest bin whose accuracy is surely (95 %) above half of that inside L, and
    how many nearer bins are not.
    """
    count = bins["count"]
    z = stats.norm.ppf(0.975)
    right = bins.right
    middle = (right + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * np.sqrt(right * (1 - right) / count + z**2 / (4 * count**2))
    low = 1 - (1 - (middle - half)) / (1 - bins.chance)  # Wilson's lower bound, above chance
    holds = (low > inside / 2) & (inside > 0.1)  # half of less is within the noise of a guess
    farthest = int(bins.end.where(holds, 0).max())
    return farthest, int((~holds & (bins.end < farthest)).sum())


def losses_of_books(row: pd.Series) -> np.ndarray:
    """The loss in each of the validation books, (books,)."""
    return np.array(row.block_nats.split(), dtype=float)


def above_chance(row: pd.Series, kind: str) -> pd.DataFrame:
    """A line for each bin of distances: its edges, accuracy above chance and its variance."""
    bins = json.loads(row.by_distance)[kind]
    counts = np.array(bins["counts"])
    right = np.array(bins["right"]) / counts
    guess = 1 - bins["chance"]
    return pd.DataFrame(
        {
            "first": bins["edges"][:-1],
            "end": bins["edges"][1:],
            "count": counts,
            "right": right,
            "chance": bins["chance"],
            "above": 1 - (1 - right) / guess,
            "variance": right * (1 - right) / counts / guess**2,
        }
    )


def area(bins: pd.DataFrame) -> tuple[float, float]:
    """The area in octaves from NEAREST on, and its variance."""
    octaves = np.log2(bins.end.clip(lower=NEAREST)) - np.log2(bins["first"].clip(lower=NEAREST))
    return (bins.above * octaves).sum(), (bins.variance * octaves**2).sum()


def measure(rows: pd.DataFrame) -> pd.DataFrame:
    """A line for each scheme and seed: its three numbers, and what it has inside L.

    A scheme that cannot read the longest texts has nan for what is measured there.
    """
    trained = rows.length.min()  # L: no shorter text is tested
    longest = rows.length.max()
    lines = []
    for (label, seed), run in rows.groupby(["label", "seed"], sort=False):
        text = run[run.protocol == "fixed_targets"].set_index("length")
        asked = run[run.protocol == "recall"].set_index("length")
        line = {"label": label, "seed": seed, "L": text.nats[trained]}
        reads_longest = longest in text.index and np.isfinite(text.nats[longest])
        if reads_longest:
            line["text"] = text.nats[longest] - text.nats[trained]
            line["books"] = losses_of_books(text.loc[longest]) - losses_of_books(text.loc[trained])
        for kind in ("content", "order"):
            inside = above_chance(asked.loc[trained], kind)
            line[f"inside_{kind}"] = np.average(inside.above, weights=inside["count"])
            if reads_longest:
                bins = above_chance(asked.loc[longest], kind)
                line[kind], line[f"{kind} variance"] = area(bins)
                farthest, gaps = reach(bins, line[f"inside_{kind}"])
                line[f"{kind}_reach"] = farthest
                line[f"{kind}_gaps"] = gaps
        lines.append(line)
    return pd.DataFrame(lines)


def error_of_test(numbers: pd.DataFrame, name: str) -> tuple[float, float]:
    """The variance of a mean over seeds that comes from the text or the questions, which all seeds
    share, and its degrees of freedom.
    """
    if name == "text":
        books = np.mean(np.stack(numbers.books), axis=0)  # over seeds
        return books.var(ddof=1) / len(books), len(books) - 1
    return numbers[f"{name} variance"].mean(), np.inf  # thousands of answers


def interval(values: pd.Series, of_test: float, of_test_df: float) -> tuple[float, float]:
    """Half of the 95 % interval of a mean over seeds, and p of its being 0."""
    n = len(values)
    of_seeds = values.var(ddof=1) / n
    error = of_seeds + of_test
    df = error**2 / (of_seeds**2 / (n - 1) + of_test**2 / of_test_df)
    halves = []
    ps = []
    for variance, freedom in ((error, df), (of_seeds, n - 1)):
        halves.append(stats.t.ppf(0.975, freedom) * np.sqrt(variance))
        ps.append(2 * stats.t.sf(abs(values.mean()) / np.sqrt(variance), freedom))
    return max(halves), max(ps)


def difference(numbers: pd.DataFrame, base: pd.DataFrame, name: str) -> dict:
    """The mean difference to the base over the seeds of both, its interval and its p."""
    both = numbers.merge(base, on="seed", suffixes=("", " of base"))
    values = both[name] - both[f"{name} of base"]
    if name == "text":
        of_test, df = error_of_test(both.assign(books=both.books - both["books of base"]), name)
    else:
        of_test = error_of_test(numbers, name)[0] + error_of_test(base, name)[0]
        df = np.inf
    half, p = interval(values, of_test, df)
    return {"name": name, "seeds": len(values), "mean": values.mean(), "half": half, "p": p}


def holm(p: pd.Series) -> pd.Series:
    """Holm's corrected p."""
    order = p.dropna().sort_values()
    steps = order * np.arange(len(order), 0, -1)
    return steps.cummax().clip(upper=1)


def compare(numbers: pd.DataFrame, base: str) -> pd.DataFrame:
    """A line for each scheme of three seeds or more and each number that it and the base have
    learned.
    """
    lines = []
    learned = has_learned(numbers)
    for label, of_scheme in numbers.groupby("label", sort=False):
        for name in NUMBERS:
            compared = label != base and len(of_scheme) >= 3 and of_scheme[name].notna().all()
            if compared and learned.loc[label, name] and learned.loc[base, name]:
                line = difference(of_scheme, numbers[numbers.label == base], name)
                if line["seeds"] >= 3:  # that both have
                    lines.append({"label": label} | line)
    table = pd.DataFrame(lines, columns=["label", "name", "seeds", "mean", "half", "p"])
    table["holm"] = holm(table.p)
    return table


def has_learned(numbers: pd.DataFrame) -> pd.DataFrame:
    """Whether the mean over seeds of a scheme reaches LEARNED in texts of L; of text always."""
    means = numbers.drop(columns="books").groupby("label", sort=False).mean()
    learned = pd.DataFrame({"text": True}, index=means.index)
    for kind, least in LEARNED.items():
        learned[kind] = means[f"inside_{kind}"] >= least
    return learned


def cell(runs: pd.DataFrame, name: str, digits: int) -> str:
    """A mean over seeds, with its interval if they are three or more."""
    text = f"{runs[name].mean():.{digits}f}"
    if len(runs) < 3:
        return text
    half, _ = interval(runs[name], *error_of_test(runs, name))
    return f"{text} ± {half:.{digits}f}"


def show(numbers: pd.DataFrame, base: str) -> str:
    """In Markdown: a line for each scheme, and one for each difference to the base."""
    learned = has_learned(numbers)
    lines = [
        "| scheme | seeds | text at L, nats | rise to 32 L | content: at L | area "
        "| order: at L | area |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for label, runs in numbers.groupby("label", sort=False):
        cells = [label.replace("|", "\\|"), str(len(runs)), f"{runs.L.mean():.3f}"]
        reads_longest = runs.text.notna().all()
        cells.append(cell(runs, "text", 3) if reads_longest else "cannot read it")
        for kind in ("content", "order"):
            cells.append(f"{runs[f'inside_{kind}'].mean():.2f}")
            if not learned.loc[label, kind]:
                cells.append("not learned")
            else:
                cells.append(cell(runs, kind, 2) if reads_longest else "")
        lines.append("| " + " | ".join(cells) + " |")
    differences = compare(numbers, base)
    if differences.empty:  # of fewer than three seeds
        return "\n".join(lines)
    lines += ["", f"| minus {base} | number | seeds | mean ± 95 % | p | Holm's p |"]
    lines.append("|---|---|---|---|---|---|")
    for row in differences.itertuples():
        p, corrected = (f"{x:.4f}" if x >= 0.0001 else "< 0.0001" for x in (row.p, row.holm))
        lines.append(
            f"| {row.label} | {row.name} | {row.seeds} | {row.mean:+.3f} ± {row.half:.3f} "
            f"| {p} | {corrected} |"
        )
    return "\n".join(lines)


def draw(rows: pd.DataFrame, path: str) -> None:
    """Three panels for each six schemes, a line for each seed: the loss of text by length, and both
    accuracies by distance.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    labels = list(rows.label.unique())
    groups = [labels[k : k + IN_A_ROW] for k in range(0, len(labels), IN_A_ROW)]
    size = (12, 3.4 * len(groups))
    figure, panels = plt.subplots(len(groups), 3, figsize=size, squeeze=False, sharey="col")
    colors = {label: f"C{k}" for k, label in enumerate(labels)}
    for group, axes in zip(groups, panels, strict=True):
        of_group = rows[rows.label.isin(group)]
        draw_group(of_group, {label: colors[label] for label in group}, *axes)
    panels[0, 0].set_title("text: loss of the same bytes")
    panels[0, 1].set_title("content: is the name found?")
    panels[0, 2].set_title("order: which was the latest?")
    panels[-1, 0].set_xlabel("test length")
    for axes in panels[-1, 1:]:
        axes.set_xlabel(f"tokens back, in sequences of {rows.length.max():,}")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def draw_group(rows: pd.DataFrame, colors: dict[str, str], text, content, order) -> None:
    """The lines of these schemes in the three panels."""
    longest = rows.length.max()
    trained = rows.block_size.iloc[0]
    for label, color in colors.items():
        text.plot([], [], color=color, label=label)
    for (label, _), run in rows.groupby(["label", "seed"], sort=False):
        style = {"color": colors[label], "linewidth": 1, "alpha": 0.8}
        fixed = run[run.protocol == "fixed_targets"].sort_values("length")
        text.plot(fixed.length, fixed.nats, marker=".", **style)  # learned has one point
        asked = run[(run.protocol == "recall") & (run.length == longest) & run.nats.notna()]
        for _, row in asked.iterrows():
            for axes, kind in ((content, "content"), (order, "order")):
                bins = above_chance(row, kind)
                axes.plot(np.sqrt(bins["first"] * (bins.end - 1)), bins.above, **style)
    for axes in (text, content, order):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:.0f}")
        axes.axvline(trained, color="0.8", zorder=0)
        axes.spines[["top", "right"]].set_visible(False)
    text.set_xticks(sorted(rows.length.unique()))
    text.set_ylabel("nats a byte")
    content.set_ylabel("accuracy above chance")
    for axes in (content, order):
        axes.set_ylim(-0.4, 1.03)
        axes.set_xticks([1, 8, 32, trained, 512, 2048])
        axes.axhline(0, color="0.8", zorder=0)
    handles, names = text.get_legend_handles_labels()
    order.legend(
        handles,
        names,
        fontsize=8,
        handlelength=1,
        loc="upper left",
        bbox_to_anchor=(1, 1),
        frameon=False,
    )


def main() -> None:
    """Print the tables; draw the figure if it is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=Path, default=Path(__file__).with_name("rows.csv.xz"))
    parser.add_argument("--base", default="rope", help="what the others are compared with")
    parser.add_argument("--figure", help="a file to draw")
    parser.add_argument("--schemes", help="those of the figure, as in rope,alibi: all by default")
    parser.add_argument("--runs", action="store_true", help="a line for each run and tested step")
    options = parser.parse_args()
    if options.runs:
        print(runs_table(pd.read_csv(options.rows)))
        return
    rows = read(options.rows)
    if options.base not in set(rows.label):
        parser.error(f"--base is one of: {'; '.join(rows.label.unique())}")
    numbers = measure(rows)
    print(show(numbers, options.base))
    if options.figure:
        schemes = options.schemes.split(",") if options.schemes else list(rows.label.unique())
        draw(rows[rows.label.isin(schemes)], options.figure)


if __name__ == "__main__":
    main()
