"""Figures of results. matplotlib is imported only when one is drawn."""

import math
import os
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from configurable import require
from runs.answers import Tested, answered, curve, interval, verdict
from runs.compare import contrasts, has_answers, mean_curve, rows_by_seed, schemes_of, select_rows
from runs.files import replace_file
from runs.labels import gaps, loss, result_labels, run_name
from runs.results import Result, by_length, gains, rows_on
from runs.tables import runs_table, seeds_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
    schemes = schemes_of(results)
    if len(schemes) > 1:
        print(f"\n{seeds_table(schemes, dataset)}\n")
    if len(folders) == 1 and not dataset and not out:
        return
    place = Path(os.path.commonpath([Path(folder).resolve() for folder in folders]))
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
    if answered(all_rows[0]):
        tested = [answered(rows) for rows in all_rows]
        return plot_answers(result_labels(results), tested, dataset, path)
    axes = loss_axes(dataset, results, "bars: standard error of the paired difference to L")
    labels = result_labels(results)
    for k, (label, result, rows) in enumerate(zip(labels, results, all_rows, strict=True)):
        fixed = by_length(rows)
        curve = {n: loss(row) for n, row in fixed.items()}
        errors = [row.get("stderr_vs_L") or 0.0 for row in fixed.values()]
        plot_curve(axes, k, label, curve, errors, result["train_length"])
    return save_losses(axes, path)


def plot_seeds(cells: dict[str, list[Result]], path: str | Path) -> None:
    """Draw the mean over seeds of each scheme as a curve, and each seed as a thin line.

    A bar is as long as the 95 % interval of the difference to the first scheme, uncorrected. For
    `cells`, and what is refused, see `rows_by_seed`.
    """
    dataset, schemes = rows_by_seed(cells)
    if has_answers(schemes):
        named = [(label, rows) for label, seeds in schemes.items() for rows in seeds.values()]
        plot_answers(*map(list, zip(*named, strict=True)), dataset, path)
        return
    results = [r for results in cells.values() for r in results if "rows" in r]
    bars = f"bars: 95 % interval of the difference to {next(iter(cells))}, not corrected"
    axes = loss_axes(dataset, results, f"thin lines: each seed; {bars}")
    found = contrasts(schemes)
    for k, (label, seeds) in enumerate(schemes.items()):
        for fixed in seeds.values():
            losses = [loss(row) for row in fixed.values()]
            axes.plot(fixed.keys(), losses, color=color(k), linewidth=0.7, alpha=0.5)
        curve = mean_curve(seeds)
        errors = [found[label][n].half if n in found[label] else 0.0 for n in curve]
        named = f"{label} ({len(seeds)} seeds)"
        plot_curve(axes, k, named, curve, errors, results[0]["train_length"])
    save_losses(axes, path)


# ---- answers


def plot_answers(
    labels: list[str], all_tested: list[Tested], dataset: str, path: str | Path
) -> bool:
    """Draw the share of right answers by distance or size, each result with its own points.

    Results with one label share a colour. False, and no figure, if nothing was measured.
    """
    axes, some = new_figure((9, 5.4)).add_subplot(), next(iter(all_tested[0].values()))
    kinds, drawn = list(dict.fromkeys(labels)), set()
    for label, tested in zip(labels, all_tested, strict=True):
        points = curve(tested)
        shares = [right / count for right, count in points.values()]
        bounds = np.array([interval(*point) for point in points.values()]).reshape(-1, 2)
        bars = np.abs(bounds - np.reshape(shares, (-1, 1))).T
        k = kinds.index(label)
        style = {"color": color(k), "marker": MARKERS[k % len(MARKERS)], "capsize": 2}
        name = None if label in drawn else f"{label}: {verdict(tested)}"
        axes.errorbar([*points], shares, yerr=bars, label=name, linewidth=1.4, alpha=0.8, **style)
        drawn.add(label)
    by_distance = some["protocol"] == "recall"
    x = "distance to the answer, tokens (the least of each bin)" if by_distance else "size"
    axes.axvline(some["trained"], color="0.35", linestyle="--", linewidth=1, label="trained up to")
    axes.axhline(some["chance"], color="0.35", linestyle=":", linewidth=1, label="a guess")
    what = "right answers by distance, in the longest texts" if by_distance else "exact match"
    axes.set_title(f"{dataset}: {what} (bars: 95 %)", fontsize=11)
    axes.set_xlabel(x)
    axes.set_ylabel("share of right answers" if by_distance else "share of texts without mistake")
    if by_distance:
        axes.set_xscale("log", base=2)
        ticks = sorted({x for tested in all_tested for x in curve(tested)})
        axes.set_xticks(ticks, [f"{x:,}" for x in ticks])
    axes.set_ylim(-0.02, 1.03)
    axes.grid(color="0.92", linewidth=0.7)
    axes.legend(fontsize=8)
    save_figure(axes.figure, path)
    return any(map(curve, all_tested))


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
    from matplotlib.figure import Figure

    return Figure(figsize=size, dpi=dpi, layout="constrained")


def color(k: int) -> str:
    """The colour of curve number k."""
    return COLORS[k % len(COLORS)]


def plot_curve(
    axes: "Axes", k: int, label: str, curve: dict[int, float], errors: list[float], cropped: int
) -> None:
    """Draw curve number k of `loss` by length, and a dotted line at the level it has at `cropped`.

    Crosses at the upper edge mark the lengths at which it diverged.
    """
    words = gaps(curve)
    last = max((n for n, nats in curve.items() if not math.isnan(nats)), default=0)
    lengths = [n for n in curve if n <= last]
    losses = [curve[n] if math.isfinite(curve[n]) else math.nan for n in lengths]
    style = {"color": color(k), "linestyle": "-" if k < len(COLORS) else "-.", "linewidth": 1.8}
    style |= {"marker": MARKERS[k % len(MARKERS)], "markersize": 5, "elinewidth": 1, "capsize": 3}
    label = f"{label}: {words}" if words else label
    axes.errorbar(lengths, losses, yerr=errors[: len(lengths)], label=label, **style)
    if math.isfinite(curve.get(cropped, math.nan)):
        axes.axhline(curve[cropped], color=color(k), linestyle=":", linewidth=1)
    diverged = [n for n, nats in curve.items() if math.isinf(nats)]
    edge = {"transform": axes.get_xaxis_transform(), "markersize": 9, "zorder": 5}
    axes.plot(diverged, [0.97] * len(diverged), "X", color=color(k), **edge)


def save_losses(axes: "Axes", path: str | Path) -> bool:
    """Scale and label the axes and write the file; False, and no file, if nothing was drawn."""
    from matplotlib.ticker import MaxNLocator

    lengths = sorted({n for curve in axes.containers for n in curve.lines[0].get_xdata()})
    if not lengths:
        return False
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [f"{n:,}" for n in lengths])
    axes.yaxis.set_major_locator(MaxNLocator(9, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    low, high = axes.get_ylim()
    low, high = (low, high) if low > 0 else (1, 10)  # if every loss diverged
    room = max(1.0, math.sqrt(1.25 * low / high))  # a flat curve should look flat
    axes.set_ylim(low / room, high * room)
    axes.grid(color="0.92", linewidth=0.7)
    handles, names = axes.get_legend_handles_labels()
    handles, names = handles[2:] + handles[:2], names[2:] + names[:2]  # the curves first
    names = [textwrap.fill(name, 124) for name in names]
    columns = max(1, 132 // (8 + max(map(len, names))))
    axes.figure.set_figheight(5.2 + 0.19 * math.ceil(len(names) / columns))
    style = {"loc": "outside lower center", "frameon": False, "fontsize": 9, "ncols": columns}
    axes.figure.legend(handles, names, **style)
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
    lengths = sorted({n for nats in gained.values() for n in nats})
    nothing = [math.nan]
    means = [[np.mean(of.get(n, nothing)) for n in lengths] for of in gained.values()]
    width = 0.5 + 0.075 * max(map(len, gained)) + max(0.62 * len(lengths), 3.4)  # inches
    axes = new_figure((width, 1.2 + 0.24 * len(gained))).add_subplot()
    norm = SymLogNorm(0.03, vmin=-3, vmax=3)
    bounded = np.clip(means, norm.vmin, norm.vmax)  # a gain is -inf where a seed diverged
    axes.imshow(bounded, cmap="RdBu", norm=norm, aspect="auto")
    for (k, column), value in np.ndenumerate(means):
        text = f"{value:+.3f}" if math.isfinite(value) else "diverged"
        if not math.isnan(value):
            dark = abs(norm(bounded[k, column]) - 0.5) > 0.28
            style = {"ha": "center", "va": "center", "fontsize": 7, "color": "w" if dark else "k"}
            axes.text(column, k, text, **style)
    axes.set_xticks(range(len(lengths)), [f"{n:,}" for n in lengths], fontsize=8)
    axes.set_yticks(range(len(gained)), gained, fontsize=8)
    axes.set_xlabel(f"test length, {results[0]['unit']}s", fontsize=9)
    seeds = f", mean over {len(results)} seeds" if len(results) > 1 else ""
    title = f"{dataset}, {run_name(results[0])}{seeds}\nloss of the cropped model - loss, nats"
    axes.figure.suptitle(title, fontsize=9)
    save_figure(axes.figure, path)
