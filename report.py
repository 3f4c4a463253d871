"""Tables and figures of tests at length: one run, several runs, several seeds. matplotlib is imported only to draw.

A result is what stands in a run's extrapolation.json. Results are compared only where they were measured on the same
targets of the same text. Windows are never pooled with seeds: errors inside a run are paired over windows, errors
between schemes are paired over seeds.
"""

import contextlib
import itertools
import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import checkpoint
from configurable import PROTOCOLS, UserError
from evaluate import PLACE, Difference, Row, Rows, far, gain, merge, paired, rows_on
from evaluate import notes as notes_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Result = dict[str, Any]  # an extrapolation.json
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
FIELDS = {
    "pos",
    "train_length",
    "tokens_trained",
    "seed",
    "unit",
    "rows",
    "notes",
    "per_position",
}  # of every result
T95 = (  # two-sided 95 % points of Student's t, 1 to 30 degrees of freedom
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
    2.145,
    2.131,
    2.120,
    2.110,
    2.101,
    2.093,
    2.086,
    2.080,
    2.074,
    2.069,
    2.064,
    2.060,
    2.056,
    2.052,
    2.048,
    2.045,
    2.042,
)
LEGEND = """\
±     standard error of the paired difference to L     ~    near zero: within 2 standard errors or 0.005 nats
gain  loss(L) - loss(N): negative where it breaks      far  windowed - fixed_targets: positive where keys beyond L help
windowed and far only diagnose nope and absolute schemes; nonoverlapping falls with N for free and is no evidence"""


# ---- run folders


def load(folder: str | Path) -> Result:
    """The extrapolation.json of a run folder; UserError where there is none or it is damaged."""
    path = Path(folder) / "extrapolation.json"
    if not path.exists():
        raise UserError(
            f"{folder} has no {path.name}: python evaluate.py {folder} tests a trained run"
        )
    with contextlib.suppress(UserError):
        result = checkpoint.read_json(path)
        rows = result.get("rows")
        if FIELDS <= result.keys() and isinstance(rows, list) and rows and all(map(proper, rows)):
            return result
    raise UserError(f"{path} is damaged: delete it, and python evaluate.py {folder} makes it anew")


def proper(row: Any) -> bool:
    """Whether this has what a row must have."""
    return isinstance(row, dict) and {*PLACE, "nats"} <= row.keys()


def update(folder: str | Path, new: Result) -> Result:
    """Merge a result into a run folder's extrapolation.json and draw its .png; returns what stands there now."""
    path = Path(folder) / "extrapolation.json"
    result = merge(load(folder), new) if path.exists() else new
    checkpoint.write_json(path, result)
    draw_run(folder, result)
    return result


def draw_run(folder: str | Path, result: Result) -> None:
    """Draw extrapolation.png of a run folder, unless the first dataset tested gave nothing to draw."""
    rows = rows_on(result["rows"], result["rows"][0]["dataset"], result.get("extend"))
    if any(p == "fixed_targets" and row["nats"] is not None for (p, _), row in rows.items()):
        figure([result], Path(folder) / "extrapolation.png")


# ---- what may be compared


def chosen(results: list[Result], dataset: str) -> tuple[str, list[Rows]]:
    """The dataset (by default the first one tested) and each result's rows on it that compare with its own at L.

    UserError where the dataset was not tested, or where two results were measured on different targets.
    """
    dataset = dataset or next((row["dataset"] for result in results for row in result["rows"]), "")
    found = [
        comparable(rows_on(r["rows"], dataset, r.get("extend")), r["train_length"]) for r in results
    ]
    for result, rows in zip(results, found, strict=True):
        if not rows:
            raise UserError(
                f"{result['pos']} was not tested on {dataset or 'any dataset'}: run evaluate.py on it first"
            )
    for protocol in PROTOCOLS:
        names = {
            same(row): name
            for name, rows in zip(labels(results), found, strict=True)
            for (p, _), row in rows.items()
            if p == protocol and row["nats"] is not None
        }
        if len(names) > 1:
            raise UserError(
                f"{' and '.join(list(names.values())[:2])} were tested on different targets of {dataset} "
                f"({protocol}): evaluate them with the same --eval_lengths and the same corpus files"
            )
    return dataset, found


def same(row: Row) -> tuple[str, str]:
    """What two rows must share to be compared."""
    return row["split_sha256"], row.get("targets")


def comparable(rows: Rows, train_length: int) -> Rows:
    """The rows on the targets of their protocol's row at L, and those that are undefined."""
    at_train_length = {
        p: row for (p, n), row in rows.items() if n == train_length and row["nats"] is not None
    }
    return {
        (p, n): row
        for (p, n), row in rows.items()
        if row["nats"] is None or (p in at_train_length and same(row) == same(at_train_length[p]))
    }


def labels(results: list[Result]) -> list[str]:
    """A short, different name for each result: its scheme, with what tells it from others of the same scheme."""
    names = [
        result["pos"] + (f", {result['extend']}" if result.get("extend") else "")
        for result in results
    ]
    names = [name if len(name) <= 32 else name[:31] + "…" for name in names]
    full = [
        f"{name} L={r['train_length']} s={r['seed']}" if names.count(name) > 1 else name
        for name, r in zip(names, results, strict=True)
    ]
    return [f"{name} #{k + 1}" if full.count(name) > 1 else name for k, name in enumerate(full)]


def reason_at(rows: Rows, length: int) -> str:
    """Why nothing is defined at a length; empty where something is."""
    here = [row for (_, n), row in rows.items() if n == length]
    return "" if any(row["nats"] is not None for row in here) else here[0]["reason"]


def fixed_targets(rows: Rows) -> dict[int, Row]:
    """The rows of fixed_targets by ascending length."""
    return {
        n: row
        for (p, n), row in sorted(rows.items(), key=lambda item: item[0])
        if p == "fixed_targets"
    }


# ---- text


def table(results: list[Result], dataset: str = "") -> str:
    """A text table of one or more results, a line for each length, with what must be known to read it."""
    dataset, found = chosen(results, dataset)
    lines = [
        [
            "scheme",
            "N",
            "fixed_targets",
            "gain",
            "far",
            "windowed",
            "nonoverlapping",
            "bits/byte",
            "sliding",
        ]
    ]
    notes = []
    for label, result, rows in zip(labels(results), results, found, strict=True):
        lines += [[label, *line] for line in run_lines(rows, result["train_length"])]
        own = [
            row
            for row in result["rows"]
            if (row["dataset"], row["extend"]) == (dataset, result.get("extend"))
        ]
        here = result["notes"] if own == result["rows"] else notes_of(own, result["train_length"])
        notes += [
            f"{label}: {note}"
            for note in [*here, *checked(result, dataset), *left_out(result, rows, dataset)]
        ]
    lengths = ", ".join(dict.fromkeys(str(result["train_length"]) for result in results))
    title = f"{dataset}, trained at L = {lengths}; nats per {results[0]['unit']}"
    return "\n".join([title, "", *aligned(without_empty_columns(lines)), "", LEGEND, *notes])


def run_lines(rows: Rows, train_length: int) -> Iterable[list[str]]:
    """The cells of one result, without its name: a line for each length, or the reason why there is nothing."""
    for n in sorted({n for _, n in rows}):
        if reason := reason_at(rows, n):
            yield [str(n), f"undefined: {reason}"]
            continue
        fixed, windowed, cut, sliding = (
            rows.get((protocol, n)) for protocol in (*PROTOCOLS, "sliding")
        )
        error = "" if not fixed or fixed["nats"] is None else paired_error(fixed, train_length)
        yield [
            str(n),
            number(fixed, "nats") + error,
            signed(gain(rows, train_length, n)) if n != train_length else "",
            signed(far(rows, n)) if n > train_length else "",
            number(windowed, "nats"),
            number(cut, "nats"),
            number(cut, "bits_per_byte"),
            number(sliding, "nats"),
        ]


def paired_error(row: Row, train_length: int) -> str:
    """The error of a row's paired difference to L, or the mark of the row at L itself."""
    return "    (L)  " if row["length"] == train_length else f" ± {row['stderr_vs_L']:.4f}"


def signed(difference: Difference | None) -> str:
    """A difference with its sign, marked where it is near zero."""
    return f"{difference.nats:+.4f}{'~' if difference.near_zero else ' '}" if difference else ""


def number(row: Row | None, field: str) -> str:
    """A field of a row with four digits; empty where it was not measured."""
    return "" if row is None or row.get(field) is None else f"{row[field]:.4f}"


def checked(result: Result, dataset: str) -> list[str]:
    """The sentence about the float32 check, if there was one on that dataset."""
    check = result.get("float32_check")
    of, extend = result["per_position"], result.get("extend")
    if not check or (of.get("dataset", dataset), of.get("extend", extend)) != (dataset, extend):
        return []
    return [
        f"at {check['length']}, {check['windows']} windows: {check['nats']:.4f} in {check['dtype']}, "
        f"{check['nats_float32']:.4f} in float32, difference {check['difference']:+.5f}"
    ]


def left_out(result: Result, rows: Rows, dataset: str) -> list[str]:
    """The sentence about rows that do not compare with those at L, if there are such."""
    tested = rows_on(result["rows"], dataset, result.get("extend"))
    lengths = ", ".join(str(n) for n in sorted({n for p, n in tested if (p, n) not in rows}))
    return (
        [f"rows at {lengths} are left out: they were measured on other targets than those at L"]
        if lengths
        else []
    )


def without_empty_columns(lines: list[list[str]]) -> list[list[str]]:
    """The lines without the columns, from the third, that have a head and nothing else."""
    full = [line for line in lines if len(line) == len(lines[0])]
    kept = [k < 2 or any(column[1:]) for k, column in enumerate(zip(*full, strict=True))]
    return [
        [cell for cell, keep in zip(line, kept, strict=True) if keep] if line in full else line
        for line in lines
    ]


def aligned(lines: list[list[str]]) -> list[str]:
    """The lines with their cells in columns, the first to the left; a line shorter than the first ends in free text."""
    columns = [line if len(line) == len(lines[0]) else line[:-1] for line in lines]
    widths = [
        max(len(cell) for cell in column)
        for column in itertools.zip_longest(*columns, fillvalue="")
    ]
    text = []
    for line, cells in zip(lines, columns, strict=True):
        padded = [
            cells[0].ljust(widths[0]),
            *map(str.rjust, cells[1:], widths[1:]),
            *line[len(cells) :],
        ]
        text.append("  ".join(padded).rstrip())
    return text


# ---- seeds


def seeds_table(cells: dict[str, list[Result]]) -> str:
    """A text table of schemes over seeds, by length; `cells` is {scheme: a result for each seed}.

    Mean and sample standard deviation over seeds, and the difference to the first scheme, paired by seed, with its 95 %
    t-interval. A cell without a result is {"seed": ..., "reason": ...} and is listed with its reason.
    """
    dataset, found = by_seed(cells)
    first = next(iter(cells))
    lines = [["scheme", "N", "seeds", "mean", "sd", f"difference to {first} [95 % over seeds]"]]
    for pos, seeds in found.items():
        for n in sorted({n for fixed in seeds.values() for n in fixed}):
            lines.append([pos, str(n), *seeds_line(seeds, found[first] if pos != first else {}, n)])
    title = f"{dataset}, fixed_targets, nats: mean and spread over seeds; differences are paired by seed, with t-intervals"
    return "\n".join([title, "", *aligned(lines), *gaps(cells, found)])


def by_seed(cells: dict[str, list[Result]]) -> tuple[str, dict[str, dict[int, dict[int, Row]]]]:
    """The dataset, and the rows of fixed_targets by scheme, seed and length; UserError where there is no result."""
    done = [
        (pos, result) for pos, results in cells.items() for result in results if "rows" in result
    ]
    if not done:
        raise UserError("; ".join(["there is no result to compare", *gaps(cells, {})]))
    dataset, rows = chosen([result for _, result in done], "")
    found: dict[str, dict[int, dict[int, Row]]] = {pos: {} for pos in cells}
    for (pos, result), of_result in zip(done, rows, strict=True):
        found[pos][result["seed"]] = fixed_targets(of_result)
    return dataset, found


def gaps(cells: dict[str, list[Result]], found: dict[str, dict[int, dict[int, Row]]]) -> list[str]:
    """A line for each cell without a result, and for each length that only some seeds of a scheme define."""
    lines = [
        f"{pos}, seed {result['seed']}: no result: {result['reason']}"
        for pos, results in cells.items()
        for result in results
        if "rows" not in result
    ]
    return lines + [
        f"{pos}, seed {seed}, N = {n}: undefined: {row['reason']}"
        for pos, seeds in found.items()
        for seed, fixed in seeds.items()
        for n, row in fixed.items()
        if row["nats"] is None and defined(seeds, n)
    ]


def defined(seeds: dict[int, dict[int, Row]], length: int) -> dict[int, float]:
    """Nats at a length by seed, for the seeds that have them."""
    return {
        seed: fixed[length]["nats"]
        for seed, fixed in seeds.items()
        if length in fixed and fixed[length]["nats"] is not None
    }


def seeds_line(
    seeds: dict[int, dict[int, Row]], first: dict[int, dict[int, Row]], length: int
) -> list[str]:
    """The cells of one scheme at one length: how many seeds, mean, spread and difference, or the reason."""
    values, base = defined(seeds, length), defined(first, length)
    if not values:
        return [
            f"undefined: {next(fixed[length]['reason'] for fixed in seeds.values() if length in fixed)}"
        ]
    spread = f"{np.std(list(values.values()), ddof=1):.4f}" if len(values) > 1 else ""
    return [
        str(len(values)),
        f"{np.mean(list(values.values())):.4f}",
        spread,
        interval([value - base[seed] for seed, value in values.items() if seed in base]),
    ]


def interval(differences: list[float]) -> str:
    """Mean and 95 % t-interval of paired differences, one for each seed; empty without any."""
    n = len(differences)
    if n < 2:
        return f"{differences[0]:+.4f} (one seed: no interval)" if differences else ""
    half = T95[min(n - 1, len(T95)) - 1] * float(np.std(differences, ddof=1)) / math.sqrt(n)
    mean = float(np.mean(differences))
    return f"{mean:+.4f} [{mean - half:+.4f}, {mean + half:+.4f}] n = {n}"


# ---- extensions


def gains(
    results: list[Result], others: list[Result], dataset: str = ""
) -> tuple[str, dict[str, dict[int, list[float]]]]:
    """The dataset, and {label: {length: for each seed, loss of the cropped model - loss here}}, the best at the end first.

    `results` are one model, a result for each seed, whose rows are under several extensions; `others` are shown as they
    were trained, against the model of the same seed. Cropped is that model as it was trained, at its training length.
    """
    dataset = dataset or results[0]["rows"][0]["dataset"]
    cropped = {r["seed"]: cropped_row(r, dataset) for r in results}
    found: dict[str, dict[int, list[float]]] = {}
    names = [None] * len(results) + [name_beside(r) for r in others]
    for r, name in zip([*results, *others], names, strict=True):
        for row in r["rows"]:
            if (row["protocol"], row["dataset"]) != ("fixed_targets", dataset) or (
                name and row["extend"] != r.get("extend")
            ):
                continue
            difference = paired(cropped.get(r["seed"]), row)
            values = found.setdefault(name or row["extend"] or "none", {}).setdefault(
                row["length"], []
            )
            values += [difference.nats] if difference else []
    if not any(any(of.values()) for of in found.values()):
        raise UserError(
            f"nothing on {dataset} was measured on the targets of its row at the training length"
        )
    found = {
        label: of for label, of in found.items() if any(of.values())
    }  # on the same targets, at some length
    longest = max(n for of in found.values() for n, values in of.items() if values)
    best = sorted(found, key=lambda label: -np.mean(found[label].get(longest) or [-math.inf]))
    return dataset, {label: dict(sorted(found[label].items())) for label in best}


def cropped_row(result: Result, dataset: str) -> Row | None:
    """The row of fixed_targets of a model as it was trained, at its training length."""
    return rows_on(result["rows"], dataset, result.get("extend")).get(
        ("fixed_targets", result["train_length"])
    )


def name_beside(result: Result) -> str:
    """What tells a run beside from others: scheme, extension, and what it was trained at, first and last."""
    first, last = result.get("original_length", result["train_length"]), result["train_length"]
    extend = f" + {result['extend']}" if result.get("extend") else ""
    return f"{result['pos']}{extend} trained at {first}{f', then {last}' if first != last else ''}"


def extensions_table(results: list[Result], others: list[Result], dataset: str = "") -> str:
    """A text table of one model under extensions, by length: what each gains over cropping, mean and spread over seeds."""
    dataset, found = gains(results, others, dataset)
    lengths = sorted({n for of in found.values() for n, values in of.items() if values})
    lines = [["extension", *map(str, lengths)]]
    for label, of in found.items():
        lines.append([label, *(spread(of.get(n, []), len(results)) for n in lengths)])
    first, cropped = (
        results[0],
        [row for r in results if (row := cropped_row(r, dataset)) and row["nats"] is not None],
    )
    extend, seeds = (
        f" + {first['extend']}" if first.get("extend") else "",
        ", ".join(str(r["seed"]) for r in results),
    )
    title = (
        f"{dataset}, {first['pos']}{extend} trained at L = {first['train_length']}, seeds {seeds}; "
        f"cropped: {np.mean([row['nats'] for row in cropped]):.4f} nats per {first['unit']}"
    )
    missing = [name for r in others if (name := name_beside(r)) not in found]
    notes = [
        row["note"]
        for r in results
        for row in r["rows"]
        if row["dataset"] == dataset and row["extend"] in found and row.get("note")
    ]
    return "\n".join(
        [
            title,
            "",
            *aligned(lines),
            "",
            "loss of the cropped model - loss with N tokens of context "
            "(fixed_targets): above zero, the longer text helps; ± standard deviation over seeds",
            *(
                f"{name}: of another seed, or measured on other targets"
                for name in dict.fromkeys(missing)
            ),
            *dict.fromkeys(notes),
        ]
    )


def spread(values: list[float], seeds: int) -> str:
    """Mean, and the standard deviation where there are several; empty for none; of how many, where it is not all seeds."""
    if not values:
        return ""
    text = f"{np.mean(values):+.3f}" + (
        f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
    )
    return text if len(values) == seeds else f"{text} (n = {len(values)})"


def extensions_figure(
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
    checkpoint.replace_file(Path(path), lambda file: drawing.savefig(file, format=kind))


# ---- figures


def figure(results: list[Result], path: str | Path, dataset: str = "") -> None:
    """Draw the loss of fixed_targets against length, a line for each result, its bars the paired errors to L.

    UserError where the results do not compare or hold nothing to draw.
    """
    dataset, found = chosen(results, dataset)
    axes = chart(dataset, results, "bars: standard error of the paired difference to L")
    for k, (label, result, rows) in enumerate(zip(labels(results), results, found, strict=True)):
        fixed = fixed_targets(rows)
        points = {n: row["nats"] for n, row in fixed.items() if row["nats"] is not None}
        draw(
            axes,
            k,
            label,
            points,
            fixed.keys() - points,
            result["train_length"],
            [fixed[n]["stderr_vs_L"] for n in points],
        )
    finish(axes, path)


def seeds_figure(cells: dict[str, list[Result]], path: str | Path) -> None:
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
        draw(
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


def draw(
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
    checkpoint.replace_file(Path(path), lambda file: axes.figure.savefig(file, format=kind))
