"""Print and draw what was measured, without testing anything.

    python report.py [FOLDER ...] [--dataset=NAME] [--out=FILE] [--format=text|md|tex|csv|json]

    python report.py                                       list the runs in out/
    python report.py out/A out/B                           the tables of these runs
    python report.py out/A out/B --out=compared.pdf        and their figure (.png, .pdf, .svg)
    python report.py out/A out/B --format=tex >table.tex   the tables as LaTeX
    python report.py out --format=csv >rows.csv            every measured row of all runs
    python report.py out/ablate-NAME --format=md           the tables of a comparison
    python report.py results/stdlib-six                    those of a published one

The list says how far each run is, and what its test says. gain(N) = loss(L) - loss(N) of
fixed_targets: negative where the scheme breaks.
"""

if __name__ == "__main__":  # --help answers before torch is imported
    from configurable import ReportSettings, answer_help

    answer_help(ReportSettings, __doc__)

import sys
from pathlib import Path

import pandas as pd

from configurable import ReportSettings, UserError, configure, run_program
from runs import results
from runs.checkpoint import read_config
from runs.figures import plot_rows
from runs.log import logged


def list_runs(folders: list[Path], dataset: str, format: str) -> str:
    """A table of runs with what their tests come to; what cannot be read is named below it."""
    lines = []
    broken = []
    for folder in folders:
        try:
            s = read_config(folder)["settings"]
            line = {"corpus": s["dataset"], "L": s["block_size"], "pos": s["pos"]}
            last = (logged(folder) or [{"step": 0}])[-1]
            line |= {"seed": s["seed"], "steps": last["step"], "state": "finished"}
            if last["step"] < s["max_iters"]:
                line["state"] = "diverged" if "diverged" in last else "unfinished"
            if (folder / "extrapolation.json").exists():
                line |= results.summary(results.select(results.load_rows([folder]), dataset))
            lines.append(line | {"folder": str(folder)})
        except UserError as error:
            broken.append(str(error))
    names = ["corpus", "L", "pos", "seed", "steps", "state"]
    names += ["loss_L", "gain_4L", "gain_32L", "reach", "folder"]
    table = pd.DataFrame(lines, columns=names).sort_values(names[:4]).dropna(axis=1, how="all")
    return results.show(f"runs: {len(lines)}", table, broken, format)


def main() -> None:
    """Print the tables of the runs and draw them, or list them."""
    settings, words = configure(ReportSettings, sys.argv[1:], __doc__)
    folders = [Path(word) for word in words or ["out"]]
    runs = [folder for folder in folders if (folder / "extrapolation.json").exists()]
    comparisons = [at for at in folders if at.is_file() or (at / "rows.csv.xz").exists()]
    if len(runs) + len(comparisons) < len(folders):
        runs = sorted({path.parent for at in folders for path in at.glob("**/config.json")})
        if not runs:
            raise UserError(f"{' '.join(words)}: no run in it; name a run folder, as out/RUN")
        if settings.format not in ("csv", "json"):
            print(list_runs(runs, settings.dataset, settings.format))
            return
        folders = [folder for folder in runs if (folder / "extrapolation.json").exists()]
    rows = results.load_rows(folders)
    if settings.format in ("csv", "json"):
        print(results.tables(rows, settings.format))
        return
    if not runs:  # a comparison may be of several corpora
        rows = rows[rows.dataset == (settings.dataset or rows.dataset.iloc[0])]
    rows = results.select(rows, settings.dataset, extend=None if runs else "all")
    print(results.tables(rows, settings.format))
    if settings.out and plot_rows(rows, settings.out):
        print(f"drawn in {settings.out}")


if __name__ == "__main__":
    run_program(main)
