"""What tables show in other formats: LaTeX and Markdown as printed, CSV and JSON as numbers."""

import csv
import io
import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from configurable import TrainSettings, require
from runs import answers, compare, results
from runs.labels import run_name
from runs.results import Result
from runs.tables import Page

NO_DIFFERENCE = dict.fromkeys(f"difference{end}" for end in ("", "_low", "_high", "_stderr"))
NO_DIFFERENCE |= {"paired_seeds": None, "p": None}
ABOUT = ("pos", "train_length", "original_length", "seed", "parameters", "tokens_trained", "unit")
TEX = {c: f"\\{c}" for c in "&%$#_{}"} | {"~": "$^\\sim$", "±": "$\\pm$", "^": "\\^{}"}
TEX |= {"\\": "\\textbackslash{}", "<": "$<$", ">": "$>$", "|": "$|$", "–": "--"}


# ---- as printed


def markdown(page: Page) -> str:
    """The table in Markdown, with what stands below it."""
    head, *lines = [[cell.strip().replace("|", "\\|") for cell in line] for line in page.lines]
    rows = ["| " + " | ".join([*line, *[""] * (len(head) - len(line))]) + " |" for line in lines]
    rule = "|" + " --- |" * len(head)
    notes = ["", "```text", *filter(None, page.below), "```"] * any(page.below)
    return "\n".join([page.title, "", f"| {' | '.join(head)} |", rule, *rows, *notes])


def latex(page: Page) -> str:
    """The table as a tabular of booktabs; title and notes are comments."""
    head, *lines = page.lines
    rows = []
    for line in lines:
        *cells, last = map(in_tex, line)
        wide = len(head) - len(cells)  # a shorter line ends in free text
        cells += [f"\\multicolumn{{{wide}}}{{l}}{{{last}}}" if wide > 1 else last]
        rows += ["\\midrule"] * (len(line) == 1 and bool(rows)) + [" & ".join(cells) + " \\\\"]
    top = [f"% {page.title}", f"\\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}", "\\toprule"]
    top += [" & ".join(map(in_tex, head)) + " \\\\", "\\midrule"]
    notes = [f"% {line}" for text in page.below for line in text.splitlines()]
    return "\n".join([*top, *rows, "\\bottomrule", "\\end{tabular}", *notes])


def in_tex(cell: str) -> str:
    """A cell in LaTeX, with a true minus before numbers."""
    text = "".join(TEX.get(c, c) for c in cell.strip())
    text = text.replace("--", "-{}-") if "--" in cell else text  # else a dash
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", text)


# ---- as numbers


def rows(folders: Iterable[str | Path], dataset: str = "") -> list[dict[str, Any]]:
    """A dict for each measured row of run folders and of comparisons' folders, by default on every
    dataset, ready for pandas.

    It has its folder as "run", the model, the settings that are not the defaults, and every number
    and text of the row.
    """
    found, named = [], [folders] if isinstance(folders, str | Path) else folders
    for folder, result in ((at, result) for at in named for result in results.results_in(at)):
        about = {"run": str(folder)} | {name: result.get(name) for name in ABOUT}
        about |= {"trained_on": result["settings"].get("dataset", TrainSettings.dataset)}
        for row in (row for row in result["rows"] if dataset in ("", row["dataset"])):
            plain = {k: v for k, v in row.items() if not isinstance(v, list | dict)}
            found.append(about | result["settings"] | plain)
    return found


def over_seeds(cells: dict[str, list[Result]], dataset: str = "") -> list[dict[str, Any]]:
    """The numbers of `tables.scheme_tables`: a dict for each scheme and length, or size, N.

    Of answers at a "distance" it has the share that is right, and the reach of each seed. Of
    losses it has the difference to the first scheme over "paired_seeds"; the ends of the 95 %
    interval if these are several, else the standard error over windows. Where nothing was measured
    it has the "reason". For `cells` see `compare.rows_by_seed`.
    """
    dataset, by_scheme = compare.rows_by_seed(cells, dataset)
    protocol, lines = compare.protocol_of(by_scheme), []
    unit = next(r["unit"] for of in cells.values() for r in of if "rows" in r)
    asked = protocol in results.ANSWERED
    place = "distance" if protocol in ("recall", "needles") else "N"
    differences = {} if asked else compare.contrasts(by_scheme)
    for label, seeds in by_scheme.items():
        about = {"scheme": label, "dataset": dataset, "protocol": protocol, "unit": unit}
        lost = "; ".join(compare.missing_results({label: cells[label]}))
        of_seeds = seeds.items() if asked else ()
        reaches = {f"reach_seed_{seed}": answers.reach(rows) for seed, rows in of_seeds}
        more = (reaches or NO_DIFFERENCE) | {"reason": lost}
        for n, values in (compare.values_by_length(seeds, asked) or {None: []}).items():
            line = about | {place: n} | summary(values) | more
            if n and not values:
                line["reason"] = next(rows[n]["reason"] for rows in seeds.values() if n in rows)
            if one := differences.get(label, {}).get(n):
                line |= {"difference": one.nats, "paired_seeds": one.seeds, "p": one.p}
                low, high = one.nats - one.half, one.nats + one.half
                ends = {"difference_low": low, "difference_high": high}
                line |= ends if one.seeds > 1 else {"difference_stderr": one.stderr}
            lines.append(line)
    return lines


def over_models(
    tested: list[Result], others: list[Result], dataset: str = ""
) -> list[dict[str, Any]]:
    """The numbers of `tables.extensions_table`, gains: a dict for each extension and length N, with
    the gain of each model (None: it diverged).
    """
    dataset, gained = results.gains(tested, others, dataset)
    pairs = [(label, n) for label, by_length in gained.items() for n in sorted(by_length)]
    about = {"table": "extensions", "model": run_name(tested[0]), "dataset": dataset}
    about, lines = about | {"unit": tested[0]["unit"]}, []
    for label, n in pairs:
        each = [gain if math.isfinite(gain) else None for gain in gained[label][n]]
        lines.append(about | {"extension": label, "N": n, "each": each} | summary(gained[label][n]))
    return lines


def summary(values: list[float]) -> dict[str, Any]:
    """How many values there are, how many diverged and, if none did, their mean and deviation."""
    lost = sum(map(math.isinf, values))
    good = bool(values) and not lost
    sd = float(np.std(values, ddof=1)) if good and len(values) > 1 else None
    mean = float(np.mean(values)) if good else None
    return {"seeds": len(values), "diverged": lost, "mean": mean, "sd": sd}


# ---- all of them


def written(kind: str, pages: list[Page], numbers: list[dict[str, Any]]) -> str:
    """Tables as "text", "md" or "tex", or the numbers of their lines as "csv" or "json".

    UserError if there are no numbers.
    """
    if kind not in ("csv", "json"):
        return "\n\n".join(as_printed(kind, page) for page in pages)
    require(numbers, "nothing was measured there: test the runs with evaluate.py first")
    endless = (math.inf, -math.inf)  # no JSON
    numbers = [{k: None if x in endless else x for k, x in line.items()} for line in numbers]
    if kind == "json":
        return json.dumps(numbers, indent=1, allow_nan=False)
    text, heads = io.StringIO(), dict.fromkeys(name for line in numbers for name in line)
    writer = csv.DictWriter(text, [*heads], lineterminator="\n")
    writer.writeheader()
    writer.writerows(numbers)
    return text.getvalue().rstrip("\n")


def as_printed(kind: str, page: Page) -> str:
    """A table as "md" or "tex", else as text."""
    return {"md": markdown, "tex": latex}.get(kind, str)(page)
