"""What tables show in other formats: LaTeX and Markdown as printed, CSV and JSON as numbers."""

import csv
import io
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from configurable import TrainSettings, require
from runs.results import results_in
from runs.tables import Page

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
    for folder, result in ((at, result) for at in named for result in results_in(at)):
        about = {"run": str(folder)} | {name: result.get(name) for name in ABOUT}
        about |= {"trained_on": result["settings"].get("dataset", TrainSettings.dataset)}
        for row in (row for row in result["rows"] if dataset in ("", row["dataset"])):
            plain = {k: v for k, v in row.items() if not isinstance(v, list | dict)}
            found.append(about | result["settings"] | plain)
    return found


def numbers(kind: str, folders: Iterable[str | Path], dataset: str = "") -> str:
    """The `rows` of run folders as "csv" or "json"; UserError if there are none."""
    found = rows(folders, dataset)
    place = f" on {dataset}" if dataset else ""
    require(found, f"nothing was measured{place}: test the runs with evaluate.py first")
    if kind == "json":
        return json.dumps(found, indent=1)
    text, heads = io.StringIO(), dict.fromkeys(name for row in found for name in row)
    writer = csv.DictWriter(text, [*heads], lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    return text.getvalue().rstrip("\n")


def written(kind: str, pages: list[Page], folders: Iterable[str | Path], dataset: str = "") -> str:
    """Tables, or the rows of these run folders, as one of configurable.FORMATS."""
    if kind in ("csv", "json"):
        return numbers(kind, folders, dataset)
    return "\n\n".join(as_printed(kind, page) for page in pages)


def as_printed(kind: str, page: Page) -> str:
    """A table as "md" or "tex", else as text."""
    return {"md": markdown, "tex": latex}.get(kind, str)(page)
