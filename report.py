"""Print and draw what was measured, without testing anything.

    python report.py [FOLDER ...] [--dataset=NAME] [--out=FILE] [--format=text|md|tex|csv]

    python report.py                                       list the runs in out/
    python report.py out/A out/B                           the tables of these runs
    python report.py out/A out/B --out=compared.pdf        and their figure (.png, .pdf, .svg)
    python report.py out/A out/B --out=paper.pdf --size=3.25x2.2    a figure that fits a column
    python report.py out/A out/B --labels='alibi=ALiBi;mine=Mine (ours)'    your own names
    python report.py out/A out/B --show=settings           settings and sizes, for an appendix
    python report.py out/A out/B --show=training --out=t.pdf    loss against tokens
    python report.py out/A out/B --format=tex --eval_lengths=128,4096       one table in LaTeX
    python report.py out/A out/B --protocols=nonoverlapping     what papers print
    python report.py out --format=csv >rows.csv            every record of all runs
    python report.py out/ablate-NAME --format=md           the tables of a comparison
    python report.py results/stdlib-six                    the tables of a published one

The list shows how far each run is, and its test in short. gain(N) = loss(L) - loss(N) of
fixed_targets: negative where the scheme breaks.
"""

import sys
from pathlib import Path

import pandas as pd

from common.errors import UserError, run_program
from common.files import read_json
from configurable import RESULT, ReportSettings, configure, setting_values
from run.folder import SavedSettings, read_config
from run.huggingface import is_huggingface
from run.log import logged
from tables import records, statistics, tables
from tables.figures import plot_rows, plot_training


def is_tested(folder: Path) -> bool:
    """Whether a run folder holds the result of a test."""
    return (folder / "extrapolation.json").exists()


def list_runs(folders: list[Path], settings: ReportSettings) -> str:
    """A table of runs: what is trained, how far it is, and its test in short. Those that cannot be
    read are listed below it.
    """
    lines = []
    broken = []
    for folder in folders:
        line = {"folder": str(folder)}
        try:
            if (folder / "config.json").exists() and not is_huggingface(str(folder)):
                s = read_config(folder)["settings"]
                line |= {"corpus": s["dataset"], "L": s["block_size"], "pos": s["pos"]}
                steps = logged(folder) or [{"step": 0}]
                line["step"] = f"{steps[-1]['step']}/{s['max_iters']}"
                if "diverged" in steps[-1]:
                    line["step"] += " diverged"
        except UserError as error:  # such as another version, whose records are still read
            broken.append(str(error))
        try:
            if is_tested(folder):
                rows = records.select(records.load_rows(folder), settings.dataset)
                row = rows.iloc[-1]
                line |= {"corpus": row.dataset, "L": row.block_size, "pos": row.pos}
                line |= {"tested": f"at {row.step}"} | statistics.summary(rows)
        except UserError as error:
            broken.append(str(error))
        if len(line) > 1:
            lines.append(line)
    if not lines:
        return "\n".join(["runs: 0", *broken])
    names = (
        "corpus L pos step tested loss_L gain_4L gain_32L reach reach_content reach_order folder"
    )
    table = pd.DataFrame(lines, columns=names.split()).sort_values(["corpus", "L", "pos", "folder"])
    table = table.dropna(axis="columns", how="all")
    return tables.show(f"runs: {len(lines)}", table, broken, settings.format)


def used_settings(rows: pd.DataFrame) -> pd.DataFrame:
    """The settings that change the result, as used, and sizes: a column for each label, from its
    first seed. Columns after the first show only what differs from it. UserError if a run folder is
    missing.
    """
    columns = {}
    for run in rows.drop_duplicates("label").itertuples():
        if not Path(run.run).is_dir():
            raise UserError(f"there is no run folder {run.run}: --show=settings needs run folders")
        s = SavedSettings(**read_config(run.run)["settings"])
        used = setting_values(s, *RESULT)
        used["learning_rate"] = s.highest_lr
        if s.decay_lr:
            used["min_lr"] = float(f"{s.lowest_lr:.6g}")
            used["warmup_iters"] = s.warmup
            used["lr_decay_iters"] = s.decay_end
        used["parameters"] = f"{run.parameters:,}"
        used["tokens trained"] = f"{run.tokens_trained:,}"
        columns[run.label] = used
    table = pd.DataFrame(columns, dtype=object).dropna(how="all").drop(["pos_file", "seed"])
    table = table.astype(str).rename_axis("setting")
    others = table.iloc[:, 1:]
    table.iloc[:, 1:] = others.mask(others.eq(table.iloc[:, 0], axis=0), "")
    return table


def training_losses(rows: pd.DataFrame) -> pd.DataFrame:
    """Loss and val_loss by label and training tokens, averaged over seeds, where all have logged
    them. UserError if a run folder is missing, or its training has not been validated yet.
    """
    frames = []
    for run in rows.drop_duplicates("run").itertuples():
        frame = pd.DataFrame(logged(run.run), columns=["tokens", "loss", "val_loss"])
        if frame.val_loss.isna().all():
            raise UserError(
                f"{run.run}/metrics.jsonl is missing or has no val_loss: --show=training needs "
                "run folders of trained runs"
            )
        frames.append(frame.assign(label=run.label, run=run.run))
    logs = pd.concat(frames)
    seeds = logs.groupby("label").run.nunique()
    losses = logs.groupby(["label", "tokens"], sort=False)[["loss", "val_loss"]]
    in_all = losses.count().eq(seeds, axis="index", level="label")
    return losses.mean().where(in_all)


def main() -> None:
    """Print the tables of the runs and draw them, or list them."""
    settings, words = configure(ReportSettings, sys.argv[1:], __doc__)
    folders = [Path(word) for word in words or ["out"]]
    comparisons = [path for path in folders if path.is_file() or (path / "rows.csv.xz").exists()]
    untested = [path for path in folders if path not in comparisons and not is_tested(path)]
    is_csv = settings.format == "csv"  # of all rows, or of those of a corpus
    if untested:
        # folders of several runs, or untested runs: make a list
        runs = set(folders) - set(untested)
        for folder in untested:
            files = [*folder.rglob("config.json"), *folder.rglob("extrapolation.json")]
            if not files:
                raise UserError(
                    f"there is no run in {folder}: name a run folder, as out/RUN; an unfinished "
                    "comparison resumes with its ablate.py command"
                )
            runs.update(path.parent for path in files)
        if comparisons or settings.out or settings.show != "tests":
            raise UserError(
                "comparisons, --out and --show are for tested runs: "
                f"python evaluate.py {untested[0]} tests one"
            )
        if not is_csv:
            print(list_runs(sorted(runs), settings))
            return
    rows = records.load_rows(folders)
    if settings.dataset or not is_csv:
        # comparisons may be of several corpora
        extend = "all" if is_csv or comparisons == folders else None
        rows = records.select(rows, settings.dataset, extend)
        for path in comparisons:
            if not records.load_rows(path).run.isin(rows.run).any():
                raise UserError(
                    f"{path} was not tested on {rows.dataset.iloc[0]}: show it by itself"
                )
    for path in comparisons:  # cells that failed
        if (path / "about.json").exists():
            for name, reason in read_json(path / "about.json").get("without", {}).items():
                print(f"without {name}: {reason}", file=sys.stderr)
    rows = records.rename(rows, settings.labels)
    size = [float(inches) for inches in settings.size.split("x") if inches]
    if settings.show == "settings":
        title = "settings that change the result; an empty cell: as in the first column"
        print(tables.show(title, used_settings(rows), format=settings.format))
        return
    if settings.show == "training":
        losses = training_losses(rows)
        print(tables.show("loss, mean over seeds", losses.dropna(), format=settings.format))
        if settings.out:
            plot_training(losses, settings.out, size)
        return
    print(tables.tables(rows, settings.format, settings.eval_lengths, settings.protocols))
    if settings.out and is_csv:  # all rows are printed, those of one corpus are drawn
        rows = records.select(rows, settings.dataset)
    is_shown = rows.length.isin(settings.eval_lengths or rows.length)
    rows = rows[is_shown & rows.protocol.isin(settings.protocols or rows.protocol)]
    if settings.out and plot_rows(rows, settings.out, size):
        print(f"drawn in {settings.out}", file=sys.stderr)  # the table may go to a file


if __name__ == "__main__":
    run_program(main)
