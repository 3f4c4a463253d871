"""Figures of measured rows (see runs/results.py). matplotlib is imported only when one is drawn."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from configurable import UserError, replace_file
from runs import answers
from runs.results import extension_gains, measured, over_seeds, rows_of, select, wide

# colours of Okabe and Ito and two of Tol, which the colour-blind can tell apart
COLORS = "#0072B2 #D55E00 #009E73 #CC79A7 #E69F00 #56B4E9 #000000 #882255 #999933".split()
STYLES = ("-", "--", ":", "-.")  # of the first nine curves, the next nine ...
MARKERS = "osD^vP*"


def new_figure(size: tuple[float, float], dpi: int = 150) -> Any:
    """An empty figure of matplotlib, of that size in inches."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams["pdf.fonttype"] = 42  # text stays text
    return Figure(figsize=size, dpi=dpi, layout="constrained")


def save_figure(figure: Any, path: str | Path) -> None:
    """Write a figure, whole or not at all; UserError for a kind of figure that is unknown."""
    kind = Path(path).suffix.removeprefix(".")
    if kind not in ("png", "pdf", "svg"):
        raise UserError(f"{path}: name a figure .png, .pdf or .svg")
    replace_file(Path(path), lambda file: figure.savefig(file, format=kind))


def plot_run(folder: str | Path, result: dict[str, Any]) -> None:
    """Draw extrapolation.png of a run folder: what the run was tested on as it was trained."""
    rows = rows_of({str(folder): result})
    rows = rows[rows.extend == rows.trained_extend]
    if len(rows):
        plot_rows(select(rows), Path(folder) / "extrapolation.png")


def plot_rows(rows: pd.DataFrame, path: str | Path) -> bool:
    """Draw selected rows: the loss of fixed_targets by test length, or the share of right answers.

    A curve for each label. False, and no figure, if there is no number to draw.
    """
    rows = measured(rows)
    axes = new_figure((9, 5.4)).add_subplot()
    draw = draw_answers if answers.answered(rows) else draw_losses
    curves = draw(axes, rows)
    if not curves:
        return False
    axes.set_xscale("log", base=2)
    places = sorted({x for curve in curves for x in curve.get_xdata()})
    axes.set_xticks(places, [f"{x:,.0f}" for x in places])
    axes.minorticks_off()
    axes.grid(color="0.92", linewidth=0.7)
    for length in set(rows.train_length):
        axes.axvline(length, color="0.35", linestyle="--", linewidth=1, zorder=0)
        axes.text(
            length, 0.01, f" L = {length}", color="0.35", transform=axes.get_xaxis_transform()
        )
    name_curves(axes, curves)
    save_figure(axes.figure, path)
    return True


def draw_losses(axes: Any, rows: pd.DataFrame) -> list[Any]:
    """Draw the mean loss over seeds by length, and the cropped model as a dotted line; the curves.

    Of several seeds each is a thin line, and a bar is the 95 % t-interval of the mean (none of two
    seeds). Of one seed a bar is the standard error of the paired difference to L.
    """
    from matplotlib.ticker import MaxNLocator

    table, curves = over_seeds(rows), []
    table = (
        table[table["mean"].notna()].groupby("label").filter(lambda x: (x["mean"] < math.inf).any())
    )
    for k, (label, means) in enumerate(table.groupby("label", sort=False)):
        color = COLORS[k % len(COLORS)]
        own = rows[(rows.label == label) & rows.protocol.isin(["fixed_targets", "image"])]
        if own.seed.nunique() > 1:
            caption = "bars: 95 % interval of the mean over seeds; thin lines: seeds"
            bars = means.half.fillna(0)
            for _, seed in own.groupby("seed"):
                axes.plot(seed.length, seed.nats, color=color, linewidth=0.7, alpha=0.5)
        else:
            caption = "bars: standard error of the paired difference to L"
            bars = own.set_index("length").stderr_vs_L.astype(float).reindex(means.length).fillna(0)
        finite = means["mean"].where(means["mean"] < math.inf)
        curve = axes.errorbar(
            means.length,
            finite,
            yerr=bars.to_numpy(),
            color=color,
            linestyle=STYLES[k // len(COLORS) % len(STYLES)],
            marker=MARKERS[k % len(MARKERS)],
            markersize=5,
            capsize=3,
        )
        curve.lines[0].set_label(label)
        curves.append(curve.lines[0])
        lost = means.length[means["mean"] == math.inf]
        edge = axes.get_xaxis_transform()
        axes.plot(lost, np.full(len(lost), 0.97), "X", color=color, markersize=9, transform=edge)
        cropped = finite[means.length == own.train_length.iloc[0]]
        for nats in cropped.dropna():
            axes.axhline(nats, color=color, linestyle=":", linewidth=1)
    if curves:
        unit, first = rows.unit.iloc[0], rows.iloc[0]
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(MaxNLocator(9, steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_formatter("{x:g}")
        low, high = axes.get_ylim()
        room = max(1.0, math.sqrt(1.25 * low / high))  # a flat curve should look flat
        axes.set_ylim(low / room, high * room)
        axes.set_xlabel(f"test length, {unit}s ({caption}; X: diverged)")
        axes.set_ylabel(f"loss, nats per {unit} (dotted: cropped to L)")
        axes.set_title(f"{first.dataset}: the same targets with more and more context", fontsize=11)
    return curves


def draw_answers(axes: Any, rows: pd.DataFrame) -> list[Any]:
    """Draw the share of right answers by distance in the longest texts (of exact match: by size),
    a curve for each seed of each label; the curves.
    """
    curves, labels = [], list(rows.label.unique())
    for (label, _), run in rows.groupby(["label", "seed"], sort=False):
        k = labels.index(label)
        table = answers.table(answers.answered(run)).drop(columns="reach", errors="ignore")
        shares = table["right"] if "right" in table else table.iloc[-1]
        shares = shares.dropna()
        if len(shares):
            style = {"color": COLORS[k % len(COLORS)], "marker": MARKERS[k % len(MARKERS)]}
            curves += axes.plot(list(shares.index), shares, label=label, **style)
    axes.axhline(rows.get("chance", pd.Series([math.nan])).iloc[0], color="0.35", linestyle=":")
    axes.set_ylim(-0.02, 1.03)
    axes.set_xlabel("distance in the longest texts, tokens (the least of each bin), or size")
    axes.set_ylabel("share of right answers (dotted: a guess)")
    axes.set_title(f"{rows.dataset.iloc[0]}, trained at {rows.train_length.iloc[0]}", fontsize=11)
    return curves


def name_curves(axes: Any, curves: list[Any]) -> None:
    """Write the name of each curve beside its last point, in its colour, none over another."""
    longest = max(max(curve.get_xdata()) for curve in curves)
    to_axes = axes.transData + axes.transAxes.inverted()
    ends = {}
    for curve in curves:  # seeds of one label are named once
        x, y = np.asarray(curve.get_data(), dtype=float)
        last = x[np.isfinite(y)][-1]
        height = to_axes.transform((last, y[x == last][0]))[1]
        ends[curve.get_label()] = (height, last, curve.get_color())
    lowest = 0.0
    for k, (label, (height, last, color)) in enumerate(
        sorted(ends.items(), key=lambda end: end[1])
    ):
        height = max(lowest, min(height, 1 - 0.045 * (len(ends) - 1 - k)))  # room for the others
        lowest = height + 0.045
        name = label if last == longest else f"{label} (to {last:,.0f})"
        style = {"color": color, "transform": axes.transAxes, "va": "center", "fontsize": 9}
        axes.text(1.01, height, name, **style)


def plot_extensions(rows: pd.DataFrame, path: str | Path) -> None:
    """Draw `extension_gains` in colours: blue where more context helps, red where it hurts."""
    from matplotlib.colors import SymLogNorm

    gains, first = wide(extension_gains(rows)), rows.iloc[0]
    axes = new_figure((5 + 0.7 * gains.shape[1], 1.4 + 0.25 * len(gains))).add_subplot()
    norm = SymLogNorm(0.03, vmin=-3, vmax=3)
    axes.imshow(gains.clip(-3, 3), cmap="RdBu", norm=norm, aspect="auto", alpha=0.6)
    for (line, column), gain in np.ndenumerate(gains.to_numpy()):
        if not math.isnan(gain):
            text = f"{gain:+.3f}" if math.isfinite(gain) else "diverged"
            axes.text(column, line, text, ha="center", va="center", fontsize=7)
    axes.set_xticks(range(gains.shape[1]), [f"{n:,}" for n in gains.columns], fontsize=8)
    axes.set_yticks(range(len(gains)), list(gains.index), fontsize=8)
    axes.set_xlabel(f"test length, {first.unit}s", fontsize=9)
    title = f"{first.dataset}: loss of the cropped model - loss, nats, mean over seeds"
    axes.set_title(title, fontsize=9)
    save_figure(axes.figure, path)
