"""Print and draw what was measured, without testing anything.

    python report.py [FOLDER ...] [--dataset=NAME] [--out=FILE]

    python report.py                    list the runs in out/
    python report.py out/A out/B        one table of these runs, and their figures
    python report.py out/A out/B --out=compared.pdf       the figure as .png, .pdf or .svg
    python report.py out/A out/B --format=tex >table.tex   only the table, as LaTeX (or md)
    python report.py out --format=csv >rows.csv            every measured row (or json)
    python report.py out/ablate-NAME --format=tex          the tables of a comparison
    python report.py out --html=report.html                a page of all, in one file

Of run folders the table is printed. Each run's extrapolation.png is drawn again, and several runs
are drawn in one figure too. Of a folder that holds run folders these are listed, down to the third
level: what differs between them, how far they are, and what their tests say.
"""

if __name__ == "__main__":  # --help answers before torch is imported
    from configurable import ReportSettings, answer_help

    answer_help(ReportSettings, __doc__)

import itertools
import re
import sys
from pathlib import Path

from configurable import ReportSettings, TrainSettings, UserError, configure, require, run_program
from runs import answers, compare, figures, formats, paper, results, webpage
from runs.files import write_text
from runs.folder import diverged, last_logged_step, named_folders, read_config, scheme_label
from runs.formats import rows as rows  # for callers in Python
from runs.labels import result_labels, settings_that_differ
from runs.tables import Page, legend, number, page, signed, tables_of

RUN_FILES = ("config.json", "extrapolation.json", "metrics.jsonl", ".lock")
HEADS = ["", "steps", "tokens", "loss(L)", "gain(4 L)", "gain(32 L)", "reach", "state"]
HEADS += ["folder", ""]


# ---- the runs in a folder


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run, be it half made or damaged."""
    return any((folder / name).exists() for name in RUN_FILES)


def find_runs(folder: Path, levels: int = 3) -> list[Path]:
    """The run folders in a folder, so many levels deep; the folder itself if it is one."""
    if is_run(folder):
        return [folder]
    inside = [path for path in folder.iterdir() if path.is_dir()] if levels else []
    inside.sort(key=lambda path: re.sub(r"\d+", lambda found: found[0].zfill(9), path.name))
    return [run for path in inside for run in find_runs(path, levels - 1)]


def look_at(folder: Path) -> results.Result:
    """What is known of a run: what labels need, its corpus as "dataset", and its "cells" in a list.

    UserError if it is half made or damaged.
    """
    require((folder / "config.json").exists(), f"{folder} is half made: it has no config.json")
    settings = TrainSettings(**read_config(folder)["settings"])
    tested = (folder / "extrapolation.json").exists()
    result = results.load_result(folder) if tested else {"rows": [], "step": 0}
    steps, length = last_logged_step(folder) or result["step"], settings.block_size
    tokens = steps * settings.batch_size * settings.gradient_accumulation_steps * length
    state = "unfinished" if steps < settings.max_iters else "finished"
    state = "diverged" if diverged(folder) else state
    if 0 < result["step"] != steps:
        state += f", tested at {result['step']}"
    others = settings_that_differ(settings)
    others.pop("max_iters", None)  # a column tells the steps
    about = {"pos": scheme_label(settings), "extend": result.get("extend", settings.extend) or None}
    about |= {"train_length": length, "seed": settings.seed, "settings": others}
    about |= {"dataset": settings.dataset, "rows": result["rows"]}
    cells = [f"{steps}/{settings.max_iters}", f"{tokens / 1e6:.3g}M", state, str(folder)]
    return about | {"cells": cells}


def is_tested(folder: Path) -> bool:
    """Whether a run has a result that can be read; a damaged one is told on stderr."""
    if not (folder / "extrapolation.json").exists():
        return False
    try:
        return bool(results.load_result(folder))
    except UserError as error:
        print(f"left out: {error}", file=sys.stderr)
        return False


def losses(rows: results.Rows, length: int) -> list[str]:
    """The cells of the loss at the training length, of gains at 4 and 32 times that, of the reach.

    fixed_targets; gain(N) = loss(L) - loss(N): negative where the scheme breaks
    ~ near zero: within 2 standard errors or 0.005 nats; empty: undefined, or not tested
    reach  how far back it reads, or the largest size that it solves; 0: not learned
    """
    cells = [number(rows.get(("fixed_targets", length), {}), "nats")]
    for n in (4 * length, 32 * length):
        lost = rows.get(("fixed_targets", n), {}).get("diverged")
        cells.append("diverged" if lost else signed(results.gain(rows, length, n)))
    answered = answers.answered(rows)
    return [*cells, str(answers.reach(answered)) if answered else ""]


def place(run: results.Result) -> tuple[str, int]:
    """The corpus and the L of a run: runs that share both compare."""
    return run["dataset"], run["train_length"]


def list_runs(folders: list[Path], dataset: str) -> Page:
    """A text table of runs, those of one corpus and one L together.

    What cannot be read is named below it, with the reason.
    """
    known, broken = [], []
    for folder in folders:
        try:
            known.append(look_at(folder))
        except (UserError, OSError) as error:
            broken.append(str(error))
    lines = [HEADS]
    known.sort(key=lambda run: (*place(run), run["pos"], str(run["settings"]), run["seed"]))
    for (corpus, length), group in itertools.groupby(known, place):
        runs = list(group)
        tested = f", tested on {dataset}" if dataset else ""
        lines.append([f"{corpus}, trained at L = {length}{tested}"])
        labels, rows = result_labels(runs), results.rows_of(runs, dataset or corpus)
        for label, run, of_run in zip(labels, runs, rows, strict=True):
            steps, tokens, *rest = run["cells"]
            lines.append([f"  {label}", steps, tokens, *losses(of_run, length), *rest])
        try:
            compare.refuse_other_targets(dataset or corpus, labels, rows)
        except UserError as error:
            broken.append(str(error))
    several = "s" * (len(folders) != 1)
    return page(f"{len(folders)} run{several}", lines, "", legend(losses), *broken)


def show_comparison(folder: Path, settings: ReportSettings) -> None:
    """Print the tables of what ablate.py has compared; draw its figure if --out names one."""
    content = results.load_comparison(folder)
    cells, pages = content["cells"], paper.comparison_tables(content, settings.dataset)
    numbers = paper.comparison_numbers(content, settings.dataset)
    print(formats.written(settings.format, pages, numbers))
    if settings.out and figures.plot_seeds(cells, settings.out, settings.dataset):
        print(f"drawn in {settings.out}")


def main() -> None:
    """Print the table of the runs, and draw each and all; or list them."""
    settings, words = configure(ReportSettings, sys.argv[1:], __doc__)
    words = words or [folder for folder in ("out",) if Path(folder).is_dir()]
    folders = named_folders(words, "report.py")
    kind, places = settings.format, [Path(folder) for folder in folders]
    if compared := [at for at in places if (at / "results.json").is_file()]:
        alone = f"{compared[0]} is a comparison: name it alone, without --html; a page is of runs"
        require(len(places) == 1 and not settings.html, alone)
        return show_comparison(places[0], settings)
    numbers = kind in ("csv", "json")
    if settings.html or numbers or any(at.is_dir() and not is_run(at) for at in places):
        runs = [run for at in places for run in find_runs(at)]
        require(runs, f"{' '.join(folders)}: no run in it; name a run folder, as in out/RUN")
        require(not settings.out, "a list of runs has no figure; leave --out out, or name the runs")
        listed, tested = list_runs(runs, settings.dataset), list(filter(is_tested, runs))
        if settings.html:
            write_text(settings.html, webpage.write_page(listed, tested))
            print(f"{listed.title} in {settings.html}")
        else:
            print(formats.written(kind, [listed], rows(tested, settings.dataset)))
        return
    loaded = [results.load_result(folder) for folder in folders]
    if kind != "text":
        pages = tables_of(loaded, settings.dataset)
        print(formats.written(kind, pages, rows(folders, settings.dataset)))
        return
    for folder, result in zip(folders, loaded, strict=True):
        figures.plot_run(folder, result)
    figures.show_runs(folders, loaded, settings.dataset, settings.out)


if __name__ == "__main__":
    run_program(main)
