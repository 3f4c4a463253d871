"""Figures of results. matplotlib is imported only to draw."""
from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from configurable import UserError
from runs.files import replace_file
from runs.results import Result, fixed_target_rows, result_labels, rows_on, select_rows
from runs.tables import by_seed, defined, gains

if TYPE_CHECKING:
    from matplotlib.axes import Axes


COLORS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
)  # Okabe and Ito's

MARKERS = "osD^vP*"

def plot_run(folder: str | Path, result: Result) -> None:
    """Draw extrapolation.png of a run folder, unless the first dataset tested gave nothing to draw."""
    rows = rows_on(result["rows"], result["rows"][0]["dataset"], result.get("extend"))
    if any(p == "fixed_targets" and row["nats"] is not None for (p, _), row in rows.items()):
        plot_runs([result], Path(folder) / "extrapolation.png")

def plot_extensions(
    results: list[Result], others: list[Result], path: str | Path, dataset: str = ""
) -> None:
    """Draw `extensions_table` as a coloured table: blue where more context helps, red where the model breaks."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import SymLogNorm
    from matplotlib.figure import Figure

    dataset, found = gains(results, others, dataset)
    lengths = sorted({n for of in found.values() for n, values in of.items() if values})
    cells = np.array(
        [[np.mean(of[n]) if of.get(n) else math.nan for n in lengths] for of in found.values()]
    )
    names, widest = (
        0.075 * max(map(len, found)),
        max(0.62, 3.4 / len(lengths)),
    )  # inches of the labels, and of a cell
    drawing = Figure(
        figsize=(0.5 + names + widest * len(lengths), 1.2 + 0.24 * len(found)),
        dpi=150,
        layout="constrained",
    )
    FigureCanvasAgg(drawing)
    axes = drawing.add_subplot()
    norm = SymLogNorm(0.03, vmin=-3, vmax=3)
    axes.imshow(cells, cmap="RdBu", norm=norm, aspect="auto")
    for (k, column), value in np.ndenumerate(cells):
        if math.isfinite(value):
            dark = abs(norm(value) - 0.5) > 0.28
            axes.text(
                column,
                k,
                f"{value:+.3f}",
                ha="center",
                va="center",
                fontsize=7,
                color="w" if dark else "k",
            )
    axes.set_xticks(range(len(lengths)), [f"{n:,}" for n in lengths], fontsize=8)
    axes.set_yticks(range(len(found)), found, fontsize=8)
    axes.set_xlabel(f"test length, {results[0]['unit']}s", fontsize=9)
    seeds, first = f", mean over {len(results)} seeds" if len(results) > 1 else "", results[0]
    extend = f" + {first['extend']}" if first.get("extend") else ""
    drawing.suptitle(
        f"{dataset}, {first['pos']}{extend}, L = {first['train_length']}{seeds}\n"
        "loss of cropped text - loss, nats",
        fontsize=9,
    )
    kind = Path(path).suffix.lstrip(".")
    replace_file(Path(path), lambda file: drawing.savefig(file, format=kind))

def plot_runs(results: list[Result], path: str | Path, dataset: str = "") -> None:
    """Draw the loss of fixed_targets against length, a line for each result, its bars the paired errors to L.

    UserError where the results do not compare or hold nothing to draw.
    """
    dataset, found = select_rows(results, dataset)
    axes = chart(dataset, results, "bars: standard error of the paired difference to L")
    for k, (label, result, rows) in enumerate(zip(result_labels(results), results, found, strict=True)):
        fixed = fixed_target_rows(rows)
        points = {n: row["nats"] for n, row in fixed.items() if row["nats"] is not None}
        plot_curve(
            axes,
            k,
            label,
            points,
            fixed.keys() - points,
            result["train_length"],
            [fixed[n]["stderr_vs_L"] for n in points],
        )
    finish(axes, path)

def plot_seeds(cells: dict[str, list[Result]], path: str | Path) -> None:
    """Draw `cells` (see `seeds_table`): the mean over seeds of each scheme as a line, each seed as a thin one."""
    dataset, found = by_seed(cells)
    results = [result for results in cells.values() for result in results if "rows" in result]
    axes = chart(dataset, results, "lines: mean over seeds; thin: each seed")
    for k, (pos, seeds) in enumerate(found.items()):
        lengths = sorted({n for fixed in seeds.values() for n in fixed})
        points = {
            n: float(np.mean(list(values.values())))
            for n in lengths
            if (values := defined(seeds, n))
        }
        for fixed in seeds.values():
            curve = {n: row["nats"] for n, row in fixed.items() if row["nats"] is not None}
            axes.plot(
                curve.keys(),
                curve.values(),
                color=COLORS[k % len(COLORS)],
                linewidth=0.7,
                alpha=0.5,
            )
        plot_curve(
            axes,
            k,
            f"{pos} ({len(seeds)} seeds)",
            points,
            set(lengths) - points.keys(),
            results[0]["train_length"],
        )
    finish(axes, path)

def chart(dataset: str, results: list[Result], caption: str) -> "Axes":
    """Empty axes with the training lengths marked."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(9, 5.4), dpi=150, layout="constrained")
    FigureCanvasAgg(drawing)
    axes = drawing.add_subplot()
    trained = sorted({result["train_length"] for result in results})
    for k, length in enumerate(trained):
        axes.axvline(
            length,
            color="0.35",
            linestyle="--",
            linewidth=1,
            label="" if k else "L, the training length",
        )
    axes.plot([], [], color="0.35", linestyle=":", label="cropped: loss at N = L")
    axes.set_title(
        f"{dataset}, trained at L = {', '.join(map(str, trained))}: the same targets with ever more context "
        "(fixed_targets)",
        fontsize=11,
    )
    axes.set_xlabel(f"test length, {results[0]['unit']}s ({caption})")
    axes.set_ylabel(f"loss, nats per {results[0]['unit']}")
    return axes

def plot_curve(
    axes: "Axes",
    k: int,
    label: str,
    points: dict[int, float],
    missing: set[int],
    train_length: int,
    errors: list[float] | None = None,
) -> None:
    """Draw curve number k, the dotted line of its loss at L, and a cross where it ends because it is undefined."""
    style = {"color": COLORS[k % len(COLORS)], "linestyle": "-" if k < len(COLORS) else "-."}
    before = [n for n in points if missing and n < min(missing)]
    if missing:
        ends = before and max(before) == max(points)
        label += (
            f": undefined past {before[-1]}"
            if ends
            else f": undefined at {', '.join(map(str, sorted(missing)))}"
        )
    axes.errorbar(
        points.keys(),
        points.values(),
        yerr=errors,
        label=label,
        marker=MARKERS[k % len(MARKERS)],
        markersize=5,
        linewidth=1.8,
        elinewidth=1,
        capsize=3,
        **style,
    )
    if train_length in points:
        axes.axhline(points[train_length], color=style["color"], linestyle=":", linewidth=1)
    if before:
        axes.plot(
            before[-1],
            points[before[-1]],
            "x",
            color=style["color"],
            markersize=13,
            markeredgewidth=2.5,
            zorder=5,
        )

def finish(axes: "Axes", path: str | Path) -> None:
    """Scale and label the axes and write the file, whole or not at all; UserError where nothing was drawn."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

    lengths = sorted({n for line in axes.containers for n in line.lines[0].get_xdata()})
    if not lengths:
        raise UserError(
            f"{path}: no loss of fixed_targets to draw: run evaluate.py with that protocol first"
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [f"{n:,}" for n in lengths])
    axes.yaxis.set_major_locator(MaxNLocator(9, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda nats, _: f"{nats:g}"))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    low, high = axes.get_ylim()
    room = max(1.0, math.sqrt(1.25 * low / high))  # a flat curve should look flat
    axes.set_ylim(low / room, high * room)
    axes.grid(color="0.92", linewidth=0.7)
    handles, names = axes.get_legend_handles_labels()  # the curves come last
    axes.figure.legend(
        handles[2:] + handles[:2],
        names[2:] + names[:2],
        loc="outside lower center",
        frameon=False,
        ncols=max(1, 132 // (8 + max(map(len, names)))),
        fontsize=9,
    )
    kind = Path(path).suffix.removeprefix(".") or "png"
    if kind not in axes.figure.canvas.get_supported_filetypes():
        raise UserError(f"{path}: there are no {kind} figures; name it .png, .pdf or .svg")
    replace_file(Path(path), lambda file: axes.figure.savefig(file, format=kind))
