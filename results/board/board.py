"""The board: one table and one figure of the two comparisons in this folder, by its rules.

    python results/board/board.py            # reads books/ and recall/, writes board.md, board.png
    python results/board/board.py counted    # reads data/recall, writes counted.json, first
    python results/board/board.py rows       # writes what counting answers into the recall rows
    python results/board/board.py larger     # prints what the larger point is judged by

`books/results.json` and `recall/results.json` are those of ablate.py; `seeds/books` has seeds 4
and 5 of some, `screening/` the same of the schemes with one seed, `speed/` is of bench.py.
README.md has the rules.
"""

import importlib.util
import itertools
import json
import math
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))
import data  # noqa: E402
from configurable import TrainSettings  # noqa: E402
from data.rows import rows_of  # noqa: E402
from runs import answers, compare, paper  # noqa: E402
from runs.figures import COLORS, new_figure, plot_seeds, save_figure  # noqa: E402
from runs.files import write_json, write_text  # noqa: E402
from runs.results import by_length, paired, rows_on, standard_error  # noqa: E402

L, FAR = 128, 4096
STABLE = 0.05  # nats: the upper end of the interval of a stable scheme
GUESS = 0.25  # of recall's four values
ORDERED = f"order within {L}"  # in counted.json: counting by who knows the order so near


def read(folder: str) -> dict[str, list[dict]]:
    """{scheme: its results of one corpus, by seed}; those that are missing are left out."""
    path = HERE / folder / "results.json"
    if not path.is_file():
        return {}
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"].values()
    done = [[result for result in results if "rows" in result] for results in cells]
    return {results[0]["pos"]: results for results in done if results}


def speed(pos: str) -> str:
    """How fast a scheme trains at L, as a multiple of nope in turn, and tokens/s of one thread."""
    path = HERE / "speed/bench.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else {}
    row = rows.get(f"{pos}, train at L = {L}")
    return f"{row['ratio'][0]:.2f} ({row['tokens_per_s']:,.0f})" if row else "not measured"


def changes(results: list[dict]) -> dict[int, float]:
    """{seed: loss at FAR minus loss at L}, inf where it diverged, of one scheme on books."""
    found = {}
    for result in results:
        rows = by_length(rows_on(result["rows"], "books"))
        if rows[FAR].get("diverged"):
            found[result["seed"]] = math.inf
        elif rows[FAR]["nats"] is not None:
            found[result["seed"]] = paired(rows[FAR], rows[L]).nats
    return found


def at_length(results: list[dict], length: int) -> list[float]:
    """The losses on books at a length, by seed."""
    rows = [by_length(rows_on(result["rows"], "books"))[length] for result in results]
    return [row["nats"] for row in rows if row["nats"] is not None]


def interval(values: list[float]) -> tuple[float, float]:
    """Mean and half of Student's 95 % interval over seeds; nan for half of one seed."""
    finite = len(values) > 1 and np.isfinite(values).all()
    half = compare.t_point(len(values) - 1) * standard_error(values) if finite else math.nan
    return float(np.mean(values)), half


def tested(result: dict) -> answers.Tested:
    """The rows of recall of one result."""
    return with_counting(answers.answered(rows_on(result["rows"], "recall")))


def with_counting(rows: answers.Tested) -> answers.Tested:
    """The same with what counting answers, which results before it was known do not hold."""
    counted = json.loads((HERE / "counted.json").read_text(encoding="utf-8"))
    return {n: row | {"counted": counted.get(str(n), {})} for n, row in rows.items()}


def reach_at(rows: answers.Tested, length: int) -> int | None:
    """How far back is read in texts of one length; None if it was not tested there."""
    row = rows.get(length, {"nats": None})
    return None if row["nats"] is None else answers.reach_in(row, answers.learned(rows) or math.inf)


def accuracy(results: list[dict], distance: int) -> str:
    """The mean accuracy over seeds in the bin of distances that begins at `distance`."""
    curves = [answers.curve(tested(result)) for result in results]
    shares = [curve[distance][0] / curve[distance][1] for curve in curves if distance in curve]
    return f"{np.mean(shares):.2f}" if shares else ""


def kind(tested_books: bool, stability: list[float], reaches: list[int]) -> str:
    """What the rules of README.md claim of a scheme; of one seed of books they claim nothing."""
    if not stability:
        held = "ends at L" if tested_books else "not trained on books yet"
    elif len(stability) == 1:
        held = "one seed of books"
    else:
        mean, half = interval(stability)
        held = "stable" if mean + half <= STABLE else "breaks"
    if not reaches or np.median(reaches) == 0:
        return f"{held}; recall not learned"
    return f"{held}; reads {'beyond L' if np.median(reaches) >= 2 * L else 'at most L'}"


def rate(result: dict) -> float:
    """The learning rate of a result, whose settings leave out a default."""
    return result["settings"].get("learning_rate", TrainSettings.learning_rate)


def line(
    pos: str, books: list[dict], recall: list[dict], screening: bool, timed: bool
) -> list[str]:
    """The cells of one scheme, with its speed if it was `timed`."""
    stability = list(changes(books).values())
    reaches = [answers.reach(tested(result)) for result in recall]
    mean, half = interval(stability) if stability else (math.nan, math.nan)
    at_l, spread = interval(at_length(books, L)) if books else (math.nan, math.nan)
    rates = " / ".join(f"{rate(r[0]):g}" for r in (books, recall) if r)
    change = f"{mean:+.3f}" + ("" if math.isnan(half) else f" ± {half:.3f}")
    claim = "screening" if screening else kind(bool(books), stability, reaches)
    return [
        "`{}`".format(pos.replace("|", r"\|")),
        f"{(books or recall)[0]['parameters']:,}",
        *[speed(pos)] * timed,
        rates,
        (f"{at_l:.3f}" if books else "") + ("" if math.isnan(spread) else f" ± {spread:.3f}"),
        change if stability else "undefined" if books else "",
        ", ".join(str(reach or "not learned") for reach in reaches),
        ", ".join(str(n) for r in recall if (n := reach_at(tested(r), FAR)) is not None),
        *(accuracy(recall, distance) for distance in (64, 128, 256, 512, 1024, 2048)),
        claim,
    ]


def farther(schemes: list[tuple[str, list[dict], list[dict]]]) -> dict[str, list[str]]:
    """{scheme: those that read less far in all seeds than it in any of its}."""
    found = {pos: [answers.reach(tested(r)) for r in recall] for pos, _, recall in schemes}
    known = {pos: reaches for pos, reaches in found.items() if len(reaches) > 1}
    return {a: [b for b in known if min(known[a]) > max(known[b])] for a in known}


def steadier(schemes: list[tuple[str, list[dict], list[dict]]]) -> dict[str, list[str]]:
    """{scheme: those whose loss changes more}, by a paired t-test over seeds, corrected by Holm."""
    known = {pos: changes(books) for pos, books, _ in schemes}
    tests, sure = {}, {pos: [] for pos in known}
    for a, b in itertools.permutations(known, 2):
        pairs = [(known[a][seed], known[b][seed]) for seed in known[a] if seed in known[b]]
        less = np.array([y - x for x, y in pairs if math.isfinite(x) and math.isfinite(y)])
        if len(less) > 1 and less.mean() > 0:
            t = less.mean() / standard_error(less)
            tests[a, b] = compare.p_value(t, len(less) - 1)
    for (a, b), p in compare.holm(tests).items():
        sure[a] += [b] if p < compare.LEVEL else []
    return sure


def listed(sure: dict[str, list[str]]) -> list[str]:
    """A Markdown list of the schemes that are surely ahead of others."""
    named = {a: ", ".join(f"`{b}`" for b in others) for a, others in sure.items() if others}
    return [f"- `{a}`: {others}" for a, others in named.items()] or ["- no pair"]


def order(item: tuple[str, list[dict], list[dict]]) -> tuple[float, float]:
    """Farthest reach first, then the smallest change of the loss."""
    _, books, recall = item
    reaches = [answers.reach(tested(result)) for result in recall] or [0]
    stability = list(changes(books).values()) or [math.inf]
    return -float(np.median(reaches)), float(np.mean(stability))


HEADS = ["scheme", "parameters", "rates", "loss at L", "loss at 32 L − at L", "reach of each seed"]
HEADS += [f"reach in texts of {FAR:,}", "64–127", "128–255", "256–511", "512–1023", "1024–2047"]
HEADS += ["2048–4095", ""]


def table(
    schemes: list[tuple[str, list[dict], list[dict]]], screening: bool, timed: bool = False
) -> str:
    """A Markdown table of schemes in the order of the board, with their speeds if `timed`."""
    heads = [*HEADS[:2], *["training, × nope (tokens/s)"] * timed, *HEADS[2:]]
    lines = [heads, ["---"] * len(heads)]
    lines += [line(*item, screening, timed) for item in sorted(schemes, key=order)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def both(folder: str = "") -> list[tuple[str, list[dict], list[dict]]]:
    """Each scheme with its results on books and on recall."""
    books, recall = read(f"{folder}books"), read(f"{folder}recall")
    for pos, results in {} if folder else read("seeds/books").items():
        books[pos] += results
    return [(pos, books.get(pos, []), recall.get(pos, [])) for pos in {**recall, **books}]


def far_bins(result: dict) -> list[tuple[int, int]]:
    """Right answers and answers to questions from L to 16 L back, in the four bins."""
    curve = answers.curve(tested(result))
    return [of for n, of in curve.items() if L <= n < FAR // 2]


def beyond(result: dict) -> float:
    """The mean share of right answers of `far_bins`; nan where no text is longer than L."""
    bins = far_bins(result)
    return float(np.mean([right / count for right, count in bins])) if bins else math.nan


def error_of_texts(recall: list[dict]) -> float:
    """Half of the 95 % interval of `beyond` by the number of answers, which all seeds share."""
    pairs = [(a / n, n) for result in recall for a, n in far_bins(result)]
    each = np.array([share * (1 - share) / n for share, n in pairs]).reshape(len(recall), -1)
    return 1.96 * math.sqrt(each.mean(axis=0).sum()) / each.shape[1]


def error_of_windows(books: list[dict]) -> float:
    """Half of the 95 % interval of the change of the loss by its windows, which all seeds share."""
    rows = [by_length(rows_on(result["rows"], "books")) for result in books]
    pairs = [paired(row[FAR], row[L]) for row in rows]
    return 1.96 * float(np.mean([pair.stderr for pair in pairs if pair]))


def counted() -> dict[int | str, dict]:
    """What counting without order answers, by the length of texts and the least of each bin; under
    ORDERED the same of who also knows the order of what stands less than L apart.
    """
    spec = importlib.util.spec_from_file_location(
        "recall", HERE.parents[1] / "data/recall/prepare.py"
    )
    recall = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recall)
    corpus = data.load("recall")
    pairs = {size: rows_of(corpus, size) for size, _, _ in corpus.meta["rows"]["sizes"]}
    found = {size: recall.counted_by_distance(*pair) for size, pair in pairs.items()}
    ordered = {size: recall.counted_by_distance(*pair, L) for size, pair in pairs.items()}
    return found | {ORDERED: ordered}


def complete_rows() -> None:
    """Write what counting answers into rows that lack it, and their tables and figures again."""
    for folder in ("recall", "screening/recall", "more/recall"):
        path = HERE / folder / "results.json"
        content = json.loads(path.read_text(encoding="utf-8"))
        for result in (r for results in content["cells"].values() for r in results if "rows" in r):
            rows = {row["length"]: row for row in result["rows"]}
            result["rows"] = list(with_counting(rows).values())
        write_json(path, content)
        old = path.with_name("table.txt").read_text(encoding="utf-8").splitlines()
        notes = [line for line in old if line.startswith("note: ")]
        pages = "\n\n".join(paper.comparison_tables(content))
        write_text(path.with_name("table.txt"), "\n".join([pages, *notes]) + "\n")
        if path.with_name("figure.png").exists():
            plot_seeds(content["cells"], path.with_name("figure.png"))


def plot(schemes: list[tuple[str, list[dict], list[dict]]]) -> None:
    """Stability against what is read from beyond L: all seeds as points, means with intervals that
    have the error over seeds and that of the texts, as the root of the sum of squares.
    """
    axes = new_figure((8.5, 5.2)).subplots()
    for k, (pos, books, recall) in enumerate(sorted(schemes, key=order)):
        stability = [value for value in changes(books).values() if math.isfinite(value)]
        shares = [share for share in map(beyond, recall) if math.isfinite(share)]
        if not stability or not shares:
            continue
        (y, half), (x, spread) = interval(stability), interval(shares)
        bars = [0 if math.isnan(e) else e for e in (half, spread)]
        errors = zip(bars, (error_of_windows(books), error_of_texts(recall)), strict=True)
        color, bars = COLORS[k % 7], [math.hypot(*pair) for pair in errors]
        axes.scatter(shares, [y] * len(shares), s=8, color=color)
        style = {"color": color, "marker": "osD"[k // 7], "label": pos, "capsize": 2}
        axes.errorbar(x, y, bars[0], bars[1], **style)
    axes.axvline(GUESS, color="grey", linewidth=0.8, linestyle=":")
    known, lines = json.loads((HERE / "counted.json").read_text(encoding="utf-8")), [GUESS]
    for shares in (known[str(FAR)], known[ORDERED][str(FAR)]):
        lines.append(np.mean([share for n, share in shares.items() if L <= int(n) < FAR // 2]))
        axes.axvline(lines[-1], color="grey", linewidth=0.8, linestyle="--")
    kinds = ("a guess", "by count, without order", f"by count, order within {L} tokens")
    for x, words in zip(lines, kinds, strict=True):
        axes.text(x + 0.005, 3.2, words, rotation=90, va="top", fontsize=7, color="0.35")
    axes.axhline(STABLE, color="grey", linewidth=0.8, linestyle=":")
    axes.set_yscale("symlog", linthresh=0.1)
    axes.set_xlim(0.2, 1.0)
    axes.set_ylim(-0.03, 3.6)
    axes.set_title(f"Stable is not the same as reading far (trained at L = {L})", fontsize=11)
    reads = f"reads: right answers to questions {L} to {FAR // 2 - 1} tokens back (recall)"
    axes.set_xlabel(f"{reads}\npoints: seeds; bars: 95 %, of seeds and of test texts")
    axes.text(0.99, 0.95 * STABLE, "stable", va="top", ha="right", fontsize=7, color="0.35")
    seeds = " or ".join(sorted({str(len(books)) for _, books, _ in schemes}))
    breaks = f"breaks: loss at {FAR} minus loss at {L}, nats"
    axes.set_ylabel(f"{breaks}\n(linear up to 0.1, then logarithmic; seeds of books: {seeds})")
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    save_figure(axes.figure, HERE / "board.png")


def larger() -> None:
    """Print the change of the loss from L to 32 L of each larger model, and RoPE's above others."""
    results = read("larger") | read("larger/fox")
    rows = {pos: by_length(rows_on(of[0]["rows"], "books")) for pos, of in results.items()}
    changed = {}
    for pos, of in rows.items():
        change = paired(of[8192], of[256])
        changed[pos] = np.subtract(of[8192]["block_nats"], of[256]["block_nats"])
        print(f"{pos}: {of[256]['nats']:.3f} at L, {change.nats:+.5f} ± {change.stderr:.5f}")
    for pos in list(changed)[1:]:
        above = changed["rope"] - changed[pos]
        error = standard_error(above)
        print(
            f"rope above {pos}: {above.mean():.3f} ± {error:.3f}, {above.mean() / error:.0f} errors"
        )


def main() -> None:
    """Write board.md and board.png; or counted.json, or what it says into the rows of recall."""
    if sys.argv[1:] == ["counted"]:
        (HERE / "counted.json").write_text(json.dumps(counted()) + "\n", encoding="utf-8")
    if sys.argv[1:] == ["rows"]:
        complete_rows()
    if sys.argv[1:] == ["larger"]:
        return larger()
    ranked, screened, more = both(), both("screening/"), both("more/")
    parts = ["# The board", "", table(ranked, screening=False, timed=True)]
    parts += ["", "Reads farther in every seed than", "", *listed(farther(ranked))]
    parts += ["", "Its loss surely changes less than that of", "", *listed(steadier(ranked))]
    if screened:
        parts += ["", "One screening seed each, at the default rates, without a rank:", ""]
        parts.append(table(screened, screening=True))
    if more:
        parts += [
            "",
            "More seeds of one of them, chosen by its screening, at the default rates:",
            "",
        ]
        parts.append(table(more, screening=False, timed=True))
    (HERE / "board.md").write_text("\n".join(parts) + "\n", encoding="utf-8")
    plot(ranked)
    print("\n".join(parts))


if __name__ == "__main__":
    main()
