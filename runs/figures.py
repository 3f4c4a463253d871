"""Figures of results. matplotlib is imported only when one is drawn."""

import math
import os
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from configurable import require
from runs.compare import contrasts, losses_at, rows_by_seed
from runs.files import replace_file
from runs.labels import gaps, missing_lengths, result_labels, run_name
from runs.results import Result, fixed_target_rows, gains, rows_on, select_rows
from runs.tables import differences_table, runs_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

# colours of Okabe and Ito, which the colour-blind can tell apart
COLORS = "#0072B2 #D55E00 #009E73 #CC79A7 #E69F00 #56B4E9 #000000".split()
MARKERS = "osD^vP*"


# ---- runs


def show_runs(folders: list[str], results: list[Result], dataset: str, out: str) -> None:
    """Print the table of the results of run folders, and draw several of them in one figure.

    The results of one folder are drawn too if a dataset or a file `out` is named. By default the
    figure of several is put into the folder that holds them all, that of one into its own.
    """
    results = [result | {"folder": at} for at, result in zip(folders, results, strict=True)]
    print(runs_table(results, dataset))
    differences = differences_table(results, dataset)
    if differences:
        print(f"\n{differences}\n")
    if len(folders) == 1 and not dataset and not out:
        return
    place = Path(folders[0])
    if len(folders) > 1:
        parents = [str(Path(folder).resolve().parent) for folder in folders]
        place = Path(os.path.commonpath(parents))
    name = f"extrapolation-{dataset}.png" if dataset else "extrapolation.png"
    path = Path(out) if out else place / name
    drawn = plot_runs(results, path, dataset)
    print(f"drawn in {path}" if drawn else "no loss of fixed_targets to draw")


def plot_run(folder: str | Path, result: Result) -> None:
    """Draw extrapolation.png of a run folder, of its first dataset, if it was tested on that."""
    if rows_on(result["rows"], result["rows"][0]["dataset"], result.get("extend")):
        plot_runs([result], Path(folder) / "extrapolation.png")


def plot_runs(results: list[Result], path: str | Path, dataset: str = "") -> bool:
    """Draw the loss of fixed_targets against the test length, a curve for each result.

    The bars are the paired errors to L. False, and no figure, if nothing was measured. UserError if
    the results do not compare, or if there are no figures of that kind.
    """
    dataset, all_rows = select_rows(results, dataset)
    axes = loss_axes(dataset, results, "bars: standard error of the paired difference to L")
    labels = result_labels(results)
    for k, (label, result, rows) in enumerate(zip(labels, results, all_rows, strict=True)):
        fixed = fixed_target_rows(rows)
        points = {n: row["nats"] for n, row in fixed.items() if row["nats"] is not None}
        errors = [fixed[n]["stderr_vs_L"] or 0.0 for n in points]
        missing = missing_lengths(fixed)
        plot_curve(axes, k, label, points, missing, result["train_length"], errors)
    return save_losses(axes, path)


def plot_seeds(cells: dict[str, list[Result]], path: str | Path) -> None:
    """Draw the mean over seeds of each scheme as a curve, and each seed as a thin line.

    A bar is as long as the 95 % interval of the difference to the first scheme, uncorrected. For
    `cells`, and what is refused, see `rows_by_seed`.
    """
    dataset, schemes = rows_by_seed(cells)
    results = [r for results in cells.values() for r in results if "rows" in r]
    bars = f"bars: 95 % interval of the difference to {next(iter(cells))}, not corrected"
    axes = loss_axes(dataset, results, f"thin lines: each seed; {bars}")
    found = contrasts(schemes)
    for k, (pos, seeds) in enumerate(schemes.items()):
        lengths = sorted({n for fixed in seeds.values() for n in fixed})
        losses = {n: list(losses_at(seeds, n).values()) for n in lengths}
        points = {n: float(np.mean(values)) for n, values in losses.items() if values}
        color = COLORS[k % len(COLORS)]
        for fixed in seeds.values():
            curve = {n: row["nats"] for n, row in fixed.items() if row["nats"] is not None}
            axes.plot(curve.keys(), curve.values(), color=color, linewidth=0.7, alpha=0.5)
        label = f"{pos} ({len(seeds)} seeds)"
        missing = {"diverged": set(), "undefined": set()}
        for fixed in seeds.values():
            for kind, at in missing_lengths(fixed).items():
                missing[kind] |= at - points.keys()
        errors = [found[pos][n].half if n in found[pos] else 0.0 for n in points]
        plot_curve(axes, k, label, points, missing, results[0]["train_length"], errors)
    save_losses(axes, path)


# ---- curves of losses


def loss_axes(dataset: str, results: list[Result], caption: str) -> "Axes":
    """Empty axes, with a title, and the training lengths as upright lines."""
    axes = new_figure((9, 5.4)).add_subplot()
    lengths = sorted({result["train_length"] for result in results})
    for k, length in enumerate(lengths):
        label = "" if k else "L, the training length"
        axes.axvline(length, color="0.35", linestyle="--", linewidth=1, label=label)
    axes.plot([], [], color="0.35", linestyle=":", label="cropped: loss at N = L")
    trained = f"{dataset}, trained at L = {', '.join(map(str, lengths))}"
    what = "the same targets with more and more context (fixed_targets)"
    unit = results[0]["unit"]
    axes.set_title(f"{trained}: {what}", fontsize=11)
    axes.set_xlabel(f"test length, {unit}s ({caption})")
    axes.set_ylabel(f"loss, nats per {unit}")
    return axes


def new_figure(size: tuple[float, float], dpi: int = 150) -> "Figure":
    """An empty figure of that size in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=dpi, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def plot_curve(
    axes: "Axes",
    k: int,
    label: str,
    points: dict[int, float],
    missing: dict[str, set[int]],
    train_length: int,
    errors: list[float],
) -> None:
    """Draw curve number k, and the dotted line of its loss at L; for `missing`: `missing_lengths`.

    A thin cross marks the last of its `points` before it is undefined, thick ones at the upper edge
    the lengths at which it diverged.
    """
    undefined, diverged = missing["undefined"], missing["diverged"]
    color = COLORS[k % len(COLORS)]
    words = gaps(points, missing)
    label = f"{label}: {words}" if words else label
    style: dict[str, Any] = {"color": color, "linestyle": "-" if k < len(COLORS) else "-."}
    style |= {"marker": MARKERS[k % len(MARKERS)], "markersize": 5, "linewidth": 1.8}
    style |= {"elinewidth": 1, "capsize": 3}
    lengths = sorted({*points, *undefined, *diverged})
    shown = [n for n in lengths if n <= max([*points, *diverged], default=0)]
    bars = dict(zip(points, errors, strict=True))
    losses, bars = ([of.get(n, math.nan) for n in shown] for of in (points, bars))
    axes.errorbar(shown, losses, yerr=bars, label=label, **style)
    if train_length in points:
        axes.axhline(points[train_length], color=color, linestyle=":", linewidth=1)
    before = [n for n in points if undefined and n < min(undefined)]
    if before:
        end, cross = before[-1], {"color": color, "markersize": 13, "markeredgewidth": 2.5}
        axes.plot(end, points[end], "x", zorder=5, **cross)
    if diverged:  # below the crosses of other curves
        heights = [0.97 - 0.04 * len(crosses(axes))] * len(diverged)
        edge = {"transform": axes.get_xaxis_transform(), "zorder": 5}
        axes.plot(sorted(diverged), heights, "X", color=color, markersize=9, **edge)


def crosses(axes: "Axes") -> list["Line2D"]:
    """The crosses at the upper edge, a line of them for each curve that diverged."""
    return [line for line in axes.lines if line.get_marker() == "X"]


def save_losses(axes: "Axes", path: str | Path) -> bool:
    """Scale and label the axes and write the file; False, and no file, if nothing was drawn."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

    curves = [curve.lines[0] for curve in axes.containers]
    lengths = sorted({n for curve in curves for n in curve.get_xdata()})
    if not lengths:
        return False
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [f"{n:,}" for n in lengths])
    axes.yaxis.set_major_locator(MaxNLocator(9, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda nats, _: f"{nats:g}"))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    low, high = axes.get_ylim()
    low, high = (low, high) if low > 0 else (1, 10)  # if every loss diverged
    room = max(1.0, math.sqrt(1.25 * low / high))  # a flat curve should look flat
    low, high = low / room, high * room
    below = max(0.5, 1 - 0.06 * len(crosses(axes)))  # the share of the axis below the crosses
    axes.set_ylim(low, low * (high / low) ** (1 / below))
    axes.grid(color="0.92", linewidth=0.7)
    handles, names = axes.get_legend_handles_labels()
    handles, names = handles[2:] + handles[:2], names[2:] + names[:2]  # the curves first
    names = [textwrap.fill(name, 124) for name in names]
    columns = max(1, 132 // (8 + max(map(len, names))))
    axes.figure.set_figheight(5.2 + 0.19 * math.ceil(len(names) / columns))
    style = {"loc": "outside lower center", "frameon": False, "fontsize": 9}
    axes.figure.legend(handles, names, ncols=columns, **style)
    save_figure(axes.figure, path)
    return True


def save_figure(figure: "Figure", path: str | Path) -> None:
    """Write a figure, whole or not at all; UserError for a kind of figure that is unknown."""
    kind = Path(path).suffix.removeprefix(".") or "png"
    known = figure.canvas.get_supported_filetypes()
    require(kind in known, f"{path}: there are no {kind} figures; name it .png, .pdf or .svg")
    replace_file(Path(path), lambda file: figure.savefig(file, format=kind))


# ---- extensions of one model


def plot_extensions(
    results: list[Result], others: list[Result], path: str | Path, dataset: str = ""
) -> None:
    """Draw `extensions_table` in colours: blue where more context helps, red where it hurts."""
    from matplotlib.colors import SymLogNorm

    dataset, gained = gains(results, others, dataset)
    lengths = sorted({n for by_length in gained.values() for n in by_length})
    nothing = [math.nan]
    means = [[np.mean(of.get(n, nothing)) for n in lengths] for of in gained.values()]
    label_width = 0.075 * max(map(len, gained))  # inches
    cell_width = max(0.62, 3.4 / len(lengths))
    width, height = 0.5 + label_width + cell_width * len(lengths), 1.2 + 0.24 * len(gained)
    axes = new_figure((width, height)).add_subplot()
    norm = SymLogNorm(0.03, vmin=-3, vmax=3)
    bounded = np.clip(means, norm.vmin, norm.vmax)  # a gain is -inf where a seed diverged
    axes.imshow(bounded, cmap="RdBu", norm=norm, aspect="auto")
    for (k, column), value in np.ndenumerate(means):
        if not math.isnan(value):
            dark = abs(norm(bounded[k, column]) - 0.5) > 0.28
            style = {"ha": "center", "va": "center", "fontsize": 7, "color": "w" if dark else "k"}
            text = f"{value:+.3f}" if math.isfinite(value) else "diverged"
            axes.text(column, k, text, **style)
    axes.set_xticks(range(len(lengths)), [f"{n:,}" for n in lengths], fontsize=8)
    axes.set_yticks(range(len(gained)), gained, fontsize=8)
    axes.set_xlabel(f"test length, {results[0]['unit']}s", fontsize=9)
    seeds = f", mean over {len(results)} seeds" if len(results) > 1 else ""
    title = f"{dataset}, {run_name(results[0])}{seeds}\nloss of the cropped model - loss, nats"
    axes.figure.suptitle(title, fontsize=9)
    save_figure(axes.figure, path)
