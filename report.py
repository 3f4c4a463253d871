"""Print and draw what was measured, without testing anything.

    python report.py [FOLDER ...] [--dataset=NAME] [--out=FILE] [--format=text|md|tex|csv|json]

    python report.py                                       list the runs in out/
    python report.py out/A out/B                           the tables of these runs
    python report.py out/A out/B --out=compared.pdf        and their figure (.png, .pdf, .svg)
    python report.py out/A out/B --format=tex >table.tex   the tables as LaTeX
    python report.py out --format=csv >rows.csv            every measured row of all runs
    python report.py out/ablate-NAME --format=md           the tables of a comparison

A folder of run folders is listed, down to the third level: how far its runs are, and what their
tests say. gain(N) = loss(L) - loss(N) of fixed_targets: negative where the scheme breaks.
"""

if __name__ == "__main__":  # --help answers before torch is imported
    from configurable import ReportSettings, answer_help

    answer_help(ReportSettings, __doc__)

import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from configurable import ReportSettings, UserError, configure, run_program
from runs import results
from runs.checkpoint import named_folders, read_config
from runs.figures import plot_rows
from runs.log import logged


def find_runs(folder: Path, levels: int = 3) -> Iterator[Path]:
    """The run folders in a folder, so many levels deep; the folder itself if it is one."""
    if (folder / "config.json").exists() or (folder / "extrapolation.json").exists():
        yield folder
    elif levels:
        for path in sorted(folder.iterdir()):
            if path.is_dir():
                yield from find_runs(path, levels - 1)


def list_runs(folders: list[Path], dataset: str, format: str) -> str:
    """A table of runs with what their tests come to; what cannot be read is named below it."""
    lines, broken, tested = [], [], {}
    for folder in folders:
        try:
            s = read_config(folder)["settings"]
            last = (logged(folder) or [{"step": 0}])[-1]
            line = {"corpus": s["dataset"], "L": s["block_size"], "pos": s["pos"]}
            line |= {"seed": s["seed"], "steps": last["step"], "state": "finished"}
            if last["step"] < s["max_iters"]:
                line["state"] = "diverged" if "diverged" in last else "unfinished"
            if (folder / "extrapolation.json").exists():
                result = results.load_result(folder)
                rows = results.rows_of({str(folder): result})
                line |= results.summary(results.select(rows, dataset))
                tested[str(folder)] = result
            lines.append(line | {"folder": str(folder)})
        except UserError as error:
            broken.append(str(error))
    if format in ("csv", "json"):
        if not tested:
            raise UserError("none of these runs was tested: run evaluate.py on them first")
        rows = results.rows_of(tested)
        return results.tables(rows[rows.dataset == dataset] if dataset else rows, format)
    names = [
        "corpus",
        "L",
        "pos",
        "seed",
        "steps",
        "state",
        "loss_L",
        "gain_4L",
        "gain_32L",
        "reach",
    ]
    table = pd.DataFrame(lines, columns=[*names, "folder"]).sort_values(names[:4])
    return results.show(f"{len(lines)} runs", table.dropna(axis=1, how="all"), broken, format)


def main() -> None:
    """Print the tables of the runs and draw them, or list them."""
    settings, words = configure(ReportSettings, sys.argv[1:], __doc__)
    if not words and Path("out").is_dir():
        words = ["out"]
    published = [word for word in words if Path(word).is_file()]  # rows.json, rows.json.xz
    places = [Path(word) for word in published or named_folders(words, "report.py")]
    measured = [at for at in places if at.is_file() or (at / "rows.json").exists()]
    runs = [at for at in places if (at / "extrapolation.json").exists()]
    if len(measured + runs) < len(places):
        found = [run for place in places for run in find_runs(place)]
        if not found:
            raise UserError(f"{' '.join(words)}: no run in it; name a run folder, as out/RUN")
        print(list_runs(found, settings.dataset, settings.format))
        return
    rows = results.load_rows(places)
    if settings.format in ("csv", "json"):
        rows = rows[rows.dataset == settings.dataset] if settings.dataset else rows
        print(results.tables(rows, settings.format))
        return
    rows = results.select(rows, settings.dataset)
    print(results.tables(rows, settings.format))
    if settings.out and plot_rows(rows, settings.out):
        print(f"drawn in {settings.out}")


if __name__ == "__main__":
    run_program(main)
