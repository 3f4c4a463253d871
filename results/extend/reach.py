"""Extensions on two axes: what each does to the loss of long books, and to reach (recall).

    python results/extend/reach.py collect RECALL... -- TUNED... -- BOOKS...    # run folders
    python results/extend/reach.py table

`collect` writes reach.json from extrapolation.json of run folders: RoPE models trained on recall,
the same after a fine-tune, and RoPE models trained on books. `table` writes reach.md and reach.png.
README.md has the rules and the commands before these.
"""

import json
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))
sys.path.insert(0, str(HERE.parent / "board"))
from board import with_counting  # noqa: E402

from runs import answers, compare, results  # noqa: E402
from runs.figures import COLORS, new_figure, save_figure  # noqa: E402

L = 128
SEEDS = 3  # an extension with fewer seeds of recall is left out
AT = (4 * L, 32 * L)  # where the change of the loss is told
KEEP = ("protocol", "dataset", "length", "extend", "factor", "dtype", "checkpoint", "reason")
KEEP += ("trained", "chance", "nats", "texts", "exact", "accuracy", "by_distance", "block_nats")
KEEP += ("windows", "split_sha256", "targets", "step", "stride", "files_sha256", "attention")


def rows_of(folder: str, protocols: tuple[str, ...]) -> list[dict]:
    """The rows of a run folder by these protocols, shortened."""
    result = json.loads((Path(folder) / "extrapolation.json").read_text(encoding="utf-8"))
    config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    about = {"run": Path(folder).name, "seed": result["seed"], "git_commit": config["git_commit"]}
    kept = [row for row in result["rows"] if row["protocol"] in protocols]
    short = [{name: row[name] for name in KEEP if name in row} for row in kept]
    if "fixed_targets" in protocols:  # both loss tables are made of these means alone
        short = [{k: v for k, v in row.items() if k != "block_nats"} for row in short]
    return [about | {"rows": [row for row in short if row["dataset"] in ("recall", "books")]}]


def collect(words: list[str]) -> None:
    """Write reach.json."""
    parts: list[list[str]] = [[]]
    for word in words:
        parts.append([]) if word == "--" else parts[-1].append(word)
    recall, tuned, books = (
        [one for f in part for one in rows_of(f, p)]
        for part, p in zip(parts, (("recall",), ("recall",), ("fixed_targets",)), strict=True)
    )
    content = {"recall": recall, "tuned": tuned, "books": books}
    (HERE / "reach.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def tested(run: dict, extend: str | None) -> answers.Tested:
    """The rows of recall of a run under an extension."""
    return with_counting(answers.answered(results.rows_on(run["rows"], "recall", extend)))


def runs_under(runs: list[dict]) -> dict[str | None, list[dict]]:
    """The runs that were tested under each extension, None (no extension) first."""
    found: dict[str | None, list[dict]] = {}
    for run in runs:
        for extend in dict.fromkeys(row["extend"] for row in run["rows"]):
            found.setdefault(extend, []).append(run)
    return dict(sorted(found.items(), key=lambda pair: (pair[0] is not None, pair[0] or "")))


def changes(runs: list[dict], extend: str | None, length: int) -> list[float]:
    """Loss at a length under an extension minus the loss at L without one, of each run."""
    found = []
    for run in runs:
        rows = {(row["extend"], row["length"]): row["nats"] for row in run["rows"]}
        far, near = rows.get((extend, length)), rows.get((None, L))
        found += [far - near] if far is not None and near is not None else []
    return found


def table(content: dict) -> list[dict]:
    """For each extension: reach of each seed, accuracy far away, and changes of the loss."""
    lines = []
    named: dict[str, list] = {}
    for part, after in (("recall", ""), ("tuned", f", fine-tuned at {4 * L}")):
        for extend, runs in runs_under(content[part]).items():
            if len(runs) >= SEEDS:
                named[f"{extend or 'none'}{after}"] = [(run, extend) for run in runs]
    for name, cases in named.items():
        curves = [tested(run, extend) for run, extend in cases]
        far = [answers.curve(one) for one in curves]
        shares = {}
        for d in (128, 256, 512, 1024, 2048):
            known = [c[d][0] / c[d][1] for c in far if d in c]
            shares[d] = float(np.mean(known)) if known else np.nan
        losses = {}
        if "fine-tuned" not in name:
            extend = None if name == "none" else name
            losses = {n: changes(content["books"], extend, n) for n in AT}
        reaches = [answers.reach(one) for one in curves]
        beyond = [np.mean([c[d][0] / c[d][1] for d in c if L <= d < 16 * L]) for c in far]
        far = [answers.reach_in(one[AT[1]], answers.learned(one) or np.inf) for one in curves]
        about = {"name": name, "reach": reaches, "far": far, "shares": shares, "beyond": beyond}
        about["loss"] = losses
        lines.append(about)
    return sorted(lines, key=lambda line: (-np.median(line["reach"]), line["name"]))


def kind(line: dict, none: dict) -> str:
    """What the rules of README.md claim of an extension."""
    if line is none:
        return ""
    if min(line["reach"]) >= 2 * max(none["reach"]):
        return "reads farther"
    if np.median(line["reach"]) >= np.median(none["reach"]):
        return "keeps reach"
    return "loses reach"


def cell(values: list[float]) -> str:
    """Mean and standard deviation of changes."""
    if not values:
        return ""
    if len(values) < 2:
        return f"{values[0]:+.3f} (one seed)"
    return f"{np.mean(values):+.3f} ± {np.std(values, ddof=1):.3f} (n = {len(values)})"


def write(lines: list[dict]) -> None:
    """Write reach.md."""
    none = next(line for line in lines if line["name"] == "none")
    heads = [
        "extension",
        "reach of each seed",
        f"reach in texts of {AT[1]:,}",
        "128–255",
        "256–511",
    ]
    heads += ["512–1023"]
    heads += ["1024–2047", "2048–4095"]
    heads += [f"loss at {n} − at {L}" for n in AT] + [""]
    text = ["# Extensions on two axes", "", f"| {' | '.join(heads)} |", "|" + " --- |" * len(heads)]
    for line in lines:
        cells = [f"`{line['name']}`", *(", ".join(map(str, line[k])) for k in ("reach", "far"))]
        cells += ["" if np.isnan(x) else f"{x:.2f}" for x in line["shares"].values()]
        cells += [cell(line["loss"].get(n, [])) for n in AT] + [kind(line, none)]
        text.append(f"| {' | '.join(cells)} |")
    (HERE / "reach.md").write_text("\n".join(text) + "\n", encoding="utf-8")
    print("\n".join(text))


def plot(lines: list[dict]) -> None:
    """Draw reach.png: the loss at 32 L against answers to questions 128 to 2,047 tokens back."""
    axes = new_figure((8.5, 5.0)).subplots()
    shown = [line for line in lines if line["loss"].get(AT[1])]
    for k, line in enumerate(sorted(shown, key=lambda line: np.mean(line["loss"][AT[1]]))):
        x, losses = line["beyond"], line["loss"][AT[1]]
        wide, half = (
            compare.t_point(len(of) - 1) * results.standard_error(of) for of in (x, losses)
        )
        style = {"color": COLORS[k % 7], "marker": "os^Dv"[k // 7 % 5], "capsize": 3}
        axes.errorbar(
            np.mean(x), np.mean(losses), half, wide, label=line["name"], linestyle="none", **style
        )
    shares = json.loads((HERE.parent / "board" / "counted.json").read_text(encoding="utf-8"))
    count = np.mean([share for d, share in shares[str(AT[1])].items() if L <= int(d) < 2048])
    for x, style in ((0.25, ":"), (count, "--")):  # a guess; by count, without order
        axes.axvline(x, color="grey", linewidth=0.8, linestyle=style)
    axes.axhline(0, color="grey", linewidth=0.8, linestyle=":")
    axes.set_xlim(0.2, 1.0)
    axes.set_title("RoPE trained at 128, extended without training", fontsize=11)
    axes.set_xlabel(
        "reads: right answers to questions 128 to 2047 tokens back (dashed: by count)\n"
        "bars: 95 % interval of the mean over seeds"
    )
    axes.set_ylabel(f"breaks: loss at {AT[1]} minus loss at {L} (nats, books)")
    axes.set_ylim(-0.15, 2.7)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    save_figure(axes.figure, HERE / "reach.png")


def main() -> None:
    """Do what the first word says."""
    if sys.argv[1] == "collect":
        collect(sys.argv[2:])
    content = json.loads((HERE / "reach.json").read_text(encoding="utf-8"))
    lines = table(content)
    write(lines)
    plot(lines)


if __name__ == "__main__":
    main()
