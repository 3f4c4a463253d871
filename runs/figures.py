"""Figures of results. matplotlib is imported only when one is drawn."""

import math
import os
import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from configurable import require
from runs.answers import Tested, curve, has_depths, interval, is_recall, verdict
from runs.compare import mean_curve, protocol_of, rows_by_seed, t_point, values_by_length
from runs.files import replace_file
from runs.labels import gaps, loss, result_labels, run_name
from runs.results import ANSWERED, Result, gains, rows_on, standard_error
from runs.tables import tables_of

# colours of Okabe and Ito, which the colour-blind can tell apart
COLORS = "#0072B2 #D55E00 #009E73 #CC79A7 #E69F00 #56B4E9 #000000".split()
MARKERS = "osD^vP*"
GREY = {"color": "0.35", "linewidth": 1}
# of each protocol whose losses are drawn: its title, dotted lines, and the caption of one seed
PAIRED = "bars: standard error of the paired difference to L"
LOSSES = {"image": ("drawings in more and more patches", "loss at N = L", "one seed")}
LOSSES["fixed_targets"] = ("targets with more and more context", "cropped: loss at N = L", PAIRED)


# ---- runs


def show_runs(folders: list[str], results: list[Result], dataset: str, out: str) -> None:
    """Print the table of the results of run folders, and draw several of them in one figure.

    The results of one folder are drawn too if a dataset or a file `out` is named. By default the
    figure of several is put into the folder that holds them all, that of one into its own.
    """
    results = [result | {"folder": at} for at, result in zip(folders, results, strict=True)]
    print(*tables_of(results, dataset), sep="\n\n")
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
    """Draw a curve for each result: see `plot_seeds`."""
    named = zip(result_labels(results), results, strict=True)
    return plot_seeds({label: [result] for label, result in named}, path, dataset)


def plot_seeds(cells: dict[str, list[Result]], path: str | Path, dataset: str = "") -> bool:
    """Draw the loss of fixed_targets or of images by test length, a curve for each scheme.

    It is the mean over seeds, with a thin line for each, and a bar is Student's 95 % interval of
    that mean. If every scheme has one seed only, a bar is the paired error to L. For `cells`, and
    what is refused, see `rows_by_seed`. False, and no figure, if nothing was measured. UserError if
    there are no figures of that kind.
    """
    dataset, schemes = rows_by_seed(cells, dataset)
    protocol = protocol_of(schemes)
    if protocol in ANSWERED:
        tested = {label: list(seeds.values()) for label, seeds in schemes.items()}
        return plot_answers(tested, dataset, path)
    done = [result for of in cells.values() for result in of if "rows" in result]
    single = all(len(of) == 1 for of in cells.values())
    bars = "thin lines: each seed; bars: 95 % interval of the mean over seeds"
    caption = LOSSES[protocol][2] if single else bars
    axes = loss_axes(dataset, done, protocol, caption)
    draw_seeds(axes, cells, dataset)
    return save_losses(axes, path)


def draw_seeds(axes: Any, cells: dict[str, list[Result]], dataset: str = "") -> None:
    """Draw the curves of `plot_seeds` on axes of your own. Of run folders, the cells are
    compare.schemes_of([load_result(folder), ...]).
    """
    _, schemes = rows_by_seed(cells, dataset)
    single = all(len(of) == 1 for of in cells.values())
    for k, (label, seeds) in enumerate(schemes.items()):
        losses, errors = mean_curve(seeds), []
        for nats in values_by_length(seeds, asked=False).values():
            sure = len(nats) > 1 and np.isfinite(nats).all()
            errors.append(t_point(len(nats) - 1) * standard_error(nats) if sure else 0.0)
        for fixed in seeds.values():
            thin = {"color": color(k), "linewidth": 0.7, "alpha": 0.5}
            axes.plot(fixed.keys(), [loss(row) for row in fixed.values()], **thin)
            if single:
                errors = [row.get("stderr_vs_L") or 0.0 for row in fixed.values()]
        named = label if single else f"{label} ({len(seeds)} seeds)"
        plot_losses(axes, k, named, losses, errors)
        trained = {result["train_length"] for result in cells[label] if "rows" in result}
        for length in trained & {n for n, nats in losses.items() if math.isfinite(nats)}:
            axes.axhline(losses[length], color=color(k), linestyle=":", linewidth=1)


# ---- answers


def plot_answers(schemes: dict[str, list[Tested]], dataset: str, path: str | Path) -> bool:
    """Draw the share of right answers by distance or size, a curve for each seed of each scheme.

    A single result with needles is drawn by `plot_depths`. False, and no figure, if nothing was
    measured.
    """
    every = [tested for several in schemes.values() for tested in several]
    if len(every) == 1 and has_depths(every[0]):
        return plot_depths(next(iter(schemes)), every[0], dataset, path)
    some = next(iter(every[0].values()))
    title = f"{dataset}, trained up to {some['trained']}: the share that is right (bars: 95 %)"
    x, y = "size", "texts without a mistake"
    if is_recall(every[0]):
        x, y = "distance, tokens (the least of each bin)", "right answers in the longest texts"
    axes = new_axes(title, x, y, [some["trained"]], ("trained up to", "a guess"))
    axes.axhline(some["chance"], linestyle=":", **GREY)
    for k, (label, several) in enumerate(schemes.items()):
        name = f"{label}: {'; '.join(dict.fromkeys(map(verdict, several)))}"
        for tested in several:
            points = curve(tested)
            shares = {x: right / count for x, (right, count) in points.items()}
            bounds = np.array([interval(*point) for point in points.values()]).reshape(-1, 2)
            plot_curve(axes, k, name, shares, np.abs(bounds.T - list(shares.values())))
            name = ""  # the others share its colour
    axes.set_ylim(-0.02, 1.03)
    if is_recall(every[0]):
        axes.set_xscale("log", base=2)
    return save_curves(axes, path)


def plot_depths(label: str, tested: Tested, dataset: str, path: str | Path) -> bool:
    """Draw a map of the share of right values: a line for each length, a cell for each depth.

    True: something was measured, see `has_depths`.
    """
    rows = {n: row["by_depth"] for n, row in tested.items() if row["nats"] is not None}
    edges = next(iter(rows.values()))["edges"]
    counts, right = (np.array([row[name] for row in rows.values()]) for name in ("counts", "right"))
    shares = np.where(counts > 0, right / np.maximum(counts, 1), math.nan)
    axes = new_figure((9, 1.6 + 0.5 * len(rows))).add_subplot()
    image = axes.imshow(shares, cmap="RdYlBu", vmin=0, vmax=1, aspect="auto", alpha=0.6)
    axes.figure.colorbar(image, label="share of right values")
    for (k, column), share in np.ndenumerate(shares):
        text = f"{share:.3f}\nof {counts[k, column]:,}" if counts[k, column] else "none"
        axes.text(column, k, text, fontsize=7, ha="center", va="center")
    axes.set_xticks(np.arange(len(edges)) - 0.5, [f"{edge:g}" for edge in edges])
    axes.set_yticks(range(len(rows)), [f"{n:,}" for n in rows])
    axes.set(xlabel="depth: the distance in parts of the length", ylabel="length, tokens")
    axes.set_title(f"{dataset}, {label}\n{verdict(tested)}", fontsize=10)
    save_figure(axes.figure, path)
    return True


# ---- curves


def new_figure(size: tuple[float, float], dpi: int = 150) -> Any:
    """An empty figure of matplotlib, of that size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=size, dpi=dpi, layout="constrained")


def new_axes(title: str, x: str, y: str, lengths: list[int], names: tuple[str, str]) -> Any:
    """Empty axes with a title, what stands along them, and the training lengths as upright lines.

    `names` are those of upright and of dotted lines in the legend.
    """
    axes = new_figure((9, 5.4)).add_subplot()
    axes.set_title(title, fontsize=11)
    axes.set(xlabel=x, ylabel=y)
    axes.grid(color="0.92", linewidth=0.7)
    for k, length in enumerate(lengths):
        axes.axvline(length, linestyle="--", label="" if k else names[0], **GREY)
    axes.plot([], [], linestyle=":", label=names[1], **GREY)
    return axes


def color(k: int) -> str:
    """The colour of curve number k."""
    return COLORS[k % len(COLORS)]


def plot_curve(axes: Any, k: int, label: str, curve: dict[int, float], errors: Any) -> None:
    """Draw curve number k with its errors: one for each point or, in two rows, below and above."""
    style = {"color": color(k), "linestyle": "-" if k < len(COLORS) else "-.", "linewidth": 1.8}
    style |= {"marker": MARKERS[k % len(MARKERS)], "markersize": 5, "elinewidth": 1, "capsize": 3}
    heights = [y if math.isfinite(y) else math.nan for y in curve.values()]
    axes.errorbar([*curve], heights, yerr=errors, label=label, **style)


def save_curves(axes: Any, path: str | Path) -> bool:
    """Put ticks at the points of the curves and a legend below, and write the file.

    False, and no file, if nothing was drawn.
    """
    places = sorted({x for curve in axes.containers for x in curve.lines[0].get_xdata()})
    if not places:
        return False
    axes.set_xticks(places, [f"{x:,}" for x in places])
    axes.minorticks_off()
    handles, names = axes.get_legend_handles_labels()
    names = [textwrap.fill(name, 124) for name in names[2:] + names[:2]]  # the curves first
    columns = max(1, 132 // (8 + max(map(len, names))))
    axes.figure.set_figheight(5.2 + 0.19 * math.ceil(len(names) / columns))
    style = {"loc": "outside lower center", "frameon": False, "fontsize": 9, "ncols": columns}
    axes.figure.legend(handles[2:] + handles[:2], names, **style)
    save_figure(axes.figure, path)
    return True


def save_figure(figure: Any, path: str | Path) -> None:
    """Write a figure, whole or not at all; UserError for a kind of figure that is unknown."""
    kind = Path(path).suffix.removeprefix(".") or "png"
    known = kind in ("png", "pdf", "svg")
    require(known, f"{path}: there are no {kind} figures; name it .png, .pdf or .svg")
    replace_file(Path(path), lambda file: figure.savefig(file, format=kind))


# ---- curves of losses


def loss_axes(dataset: str, results: list[Result], protocol: str, caption: str) -> Any:
    """Empty axes for losses by length, with a title; for `protocol` see LOSSES."""
    lengths, unit = sorted({result["train_length"] for result in results}), results[0]["unit"]
    trained = f"{dataset}, trained at L = {', '.join(map(str, lengths))}"
    title = f"{trained}: the same {LOSSES[protocol][0]} ({protocol})"
    names = ("L, the training length", LOSSES[protocol][1])
    x = f"test length, {unit}s ({caption})"
    return new_axes(title, x, f"loss, nats per {unit}", lengths, names)


def plot_losses(axes: Any, k: int, label: str, losses: dict[int, float], errors: Any) -> None:
    """Draw curve number k of `loss` by length, with its errors, one for each length.

    Crosses at the upper edge mark the lengths at which it diverged.
    """
    words = gaps(losses)
    last = max((n for n, nats in losses.items() if not math.isnan(nats)), default=0)
    shown = {n: nats for n, nats in losses.items() if n <= last}
    plot_curve(axes, k, f"{label}: {words}" if words else label, shown, errors[: len(shown)])
    diverged = [n for n, nats in losses.items() if math.isinf(nats)]
    edge = {"transform": axes.get_xaxis_transform(), "markersize": 9, "zorder": 5}
    axes.plot(diverged, [0.97] * len(diverged), "X", color=color(k), **edge)


def save_losses(axes: Any, path: str | Path) -> bool:
    """Scale the axes and `save_curves`."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(MaxNLocator(9, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter("{x:g}")
    low, high = axes.get_ylim()
    low, high = (low, high) if low > 0 else (1, 10)  # if every loss diverged
    room = max(1.0, math.sqrt(1.25 * low / high))  # a flat curve should look flat
    axes.set_ylim(low / room, high * room)
    return save_curves(axes, path)


# ---- extensions of one model


def plot_extensions(results: list[Result], others: list[Result], path: str, dataset: str) -> None:
    """Draw `extensions_table` in colours: blue where more context helps, red where it hurts."""
    from matplotlib.colors import SymLogNorm

    dataset, gained = gains(results, others, dataset)
    lengths = sorted({n for nats in gained.values() for n in nats})
    means = [[np.mean(of.get(n, [math.nan])) for n in lengths] for of in gained.values()]
    width = 0.5 + 0.075 * max(map(len, gained)) + max(0.62 * len(lengths), 3.4)  # inches
    axes = new_figure((width, 1.2 + 0.24 * len(gained))).add_subplot()
    bounded = np.clip(means, -3, 3)  # a gain is -inf where a seed diverged
    norm = SymLogNorm(0.03, vmin=-3, vmax=3)
    axes.imshow(bounded, cmap="RdBu", norm=norm, aspect="auto", alpha=0.6)
    for (k, column), value in np.ndenumerate(means):
        text = f"{value:+.3f}" if math.isfinite(value) else "diverged"
        if not math.isnan(value):
            axes.text(column, k, text, ha="center", va="center", fontsize=7)
    axes.set_xticks(range(len(lengths)), [f"{n:,}" for n in lengths], fontsize=8)
    axes.set_yticks(range(len(gained)), gained, fontsize=8)
    axes.set_xlabel(f"test length, {results[0]['unit']}s", fontsize=9)
    seeds = f", mean over {len(results)} seeds" if len(results) > 1 else ""
    title = f"{dataset}, {run_name(results[0])}{seeds}\nloss of the cropped model - loss, nats"
    axes.figure.suptitle(title, fontsize=9)
    save_figure(axes.figure, path)
