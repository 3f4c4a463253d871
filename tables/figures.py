"""Figures of records (see tables/records.py). matplotlib is imported only when one is drawn."""

import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from common.errors import UserError
from common.files import replace_file
from tables import reach
from tables.records import Result, rows_of, select
from tables.statistics import over_seeds

# colours of Okabe and Ito and two of Tol, which the colour-blind can tell apart
COLORS = "#0072B2 #D55E00 #009E73 #CC79A7 #E69F00 #56B4E9 #000000 #882255 #999933".split()
MARKERS = "osD^vP*"


def new_figure(size: Sequence[float]) -> Any:
    """An empty matplotlib figure, with its size in inches; with small text if it is for a paper."""
    import matplotlib
    from matplotlib.figure import Figure

    # keep text as text
    matplotlib.rcParams |= {
        "pdf.fonttype": 42,
        "text.parse_math": False,
        "svg.fonttype": "none",
        "font.size": 8 if size[0] < 8 else 10,
        "lines.linewidth": 1,
        "lines.markersize": 4,
    }
    return Figure(figsize=size, dpi=150, layout="constrained")


def save_figure(figure: Any, path: str | Path) -> None:
    """Write a figure atomically, in the format of its name: .png, .pdf or .svg."""
    path = Path(path)
    kind = path.suffix[1:]
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, lambda file: figure.savefig(file, format=kind))


def plot_run(folder: str | Path, result: Result) -> None:
    """Draw extrapolation.png of a run folder: the tests with the extension it was trained with."""
    with suppress(UserError):  # it was tested on another corpus, or with another extension
        plot_rows(select(rows_of({str(folder): result})), Path(folder) / "extrapolation.png")


def plot_rows(rows: pd.DataFrame, path: str | Path, size: Sequence[float] = ()) -> bool:
    """Draw selected records: the loss by test length, or the share of right answers.

    Of several protocols that are compared over seeds, the first is drawn.

    Each label has a curve. With `size`, in inches, the figure is for a paper: 8-point text, no
    title, no explanation of bars and lines. Returns False, without a figure, if there is nothing to
    draw.
    """
    axes = new_figure(size or (9, 5.4)).add_subplot()
    has_answers = not reach.answered(rows).empty
    curves = draw_answers(axes, rows) if has_answers else draw_losses(axes, rows)
    if not curves:
        return False
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    for length in rows.block_size.unique():
        axes.axvline(length, color="0.35", linestyle="--")
        axes.text(length, 1.02, f"L = {length}", transform=axes.get_xaxis_transform())
    if size:
        axes.set_xlabel(axes.get_xlabel().partition("\n")[0])
    else:
        axes.set_title(f"{rows.dataset.iloc[0]}; dashed: the trained length", pad=20)
    finish(axes, curves, path)
    return True


def plot_training(losses: pd.DataFrame, path: str | Path, size: Sequence[float]) -> None:
    """Draw `val_loss`, and `loss` in a lighter colour, against training tokens for each label."""
    axes = new_figure(size or (9, 5.4)).add_subplot()
    curves = []
    for label in losses.index.unique("label"):
        lines = losses.loc[label]
        line_style = style(len(curves))
        axes.plot(lines.loss, color=line_style["color"], alpha=0.4)
        curves += axes.plot(lines.val_loss.dropna(), label=label, **line_style)
    axes.ticklabel_format(axis="x", scilimits=(0, 0))
    axes.set_xlabel("training tokens")
    axes.set_ylabel("loss, nats (pale: training)")
    finish(axes, curves, path)


def finish(axes: Any, curves: list[Any], path: str | Path) -> None:
    """Label the curves, next to them if there is room, and write the figure."""
    axes.grid(color="0.92")
    font_size = axes.xaxis.label.get_size() / 72  # inches
    width, figure_height = axes.figure.get_size_inches() / font_size
    labelled = {curve.get_label(): curve for curve in curves}
    longest = max(map(len, labelled))
    if longest < 0.7 * width:  # a letter is about half as wide as high
        # next to the last point of each curve, in its colour, at least a line apart
        ends = {}
        for label, curve in labelled.items():
            heights = curve.get_xydata()[:, 1]
            finite = heights[np.isfinite(heights)]
            if len(finite):
                ends[label] = finite[-1]
        lowest, highest = axes.get_ylim()
        line = (highest - lowest) * 1.8 / figure_height
        for label in sorted(ends, key=ends.get):
            height = max(lowest, ends[label])
            lowest = height + line
            color = labelled[label].get_color()
            place = axes.get_yaxis_transform()
            axes.text(1.01, height, label, va="center", color=color, transform=place)
    else:
        axes.figure.legend(
            labelled.values(),
            labelled,
            loc="outside upper center",
            ncols=1 if longest > width else 2,
            fontsize="small",
            frameon=False,
        )
    save_figure(axes.figure, path)


def style(number: int) -> dict[str, Any]:
    """The colour and the marker of the curves of a label."""
    return {"color": COLORS[number % len(COLORS)], "marker": MARKERS[number % len(MARKERS)]}


def draw_losses(axes: Any, rows: pd.DataFrame) -> list[Any]:
    """Draw the mean loss over seeds by length, and the loss at L as a dotted line; returns the
    curves.

    Bars are 95 % t-intervals over seeds (none for two seeds), or for one seed standard errors of
    the paired difference to L. The error of the text, which all schemes share, is in neither.
    """
    curves = []
    unit = rows.unit.iloc[0]
    of_bars = "95 % interval over seeds on this text (one seed: standard error of the rise from L)"
    axes.set_xlabel(
        f"test length, {unit}s\nbars: {of_bars}\ndotted: loss with the text cut to L; X: diverged"
    )
    table = over_seeds(rows)
    protocol = table.protocol.iloc[0]
    axes.set_ylabel(f"{protocol}, nats per {unit}")
    table = table[table.protocol == protocol]
    for label, means in table.groupby("label", sort=False):
        means = means.set_index("length").sort_index()
        nats = means["mean"].replace(math.inf, math.nan)
        if nats.isna().all():
            continue
        bars = means.half
        if means.seeds.max() == 1:
            bars = means.stderr_vs_L
        line_style = style(len(curves))
        curve = axes.errorbar(nats.index, nats, bars.fillna(0), **line_style).lines[0]
        curve.set_label(label)
        curves.append(curve)
        color = line_style["color"]
        for length in means.index[means["mean"] == math.inf]:
            axes.plot(length, 0.97, "X", color=color, transform=axes.get_xaxis_transform())
        cropped = nats.get(rows.block_size[rows.label == label].iloc[0], math.nan)
        axes.axhline(cropped, color=color, linestyle=":")
    low, high = axes.get_ylim()
    if high < 1.25 * low:  # a flat curve should look flat
        axes.set_ylim(low * 0.9, high * 1.1)
    return curves


def draw_answers(axes: Any, rows: pd.DataFrame) -> list[Any]:
    """Draw the accuracy above chance by distance in the longest texts (for exact match: the share
    of texts without a mistake by size); returns the curves: one for each label, seed and kind of
    question.
    """
    curves = []
    labels = list(rows.label.unique())
    octaves = "in the longest texts, the least distance of each octave; 0: a guess"
    axes.set_xlabel(f"distance, tokens, or size\n{octaves}; dashed: questions of order")
    axes.set_ylabel("accuracy above chance, or share right")
    for (label, _), run in rows.groupby(["label", "seed"], sort=False):
        table = reach.table(reach.answered(run))
        if "right" in table:  # exact match, by size
            table = table.T
        line_style = style(labels.index(label))
        for kind, lines in table.groupby(level=0, sort=False):
            shares = lines.iloc[-1].dropna()  # of the longest texts
            dashes = "--" if kind == "order" else "-"
            curves += axes.plot(shares.index, shares, label=label, linestyle=dashes, **line_style)
    axes.axhline(0, color="0.35", linestyle=":")
    axes.set_ylim(-0.1, 1.03)
    return curves
