"""The results of testing long: one table of measured rows, and what can be concluded from it.

A run's extrapolation.json says what was trained, and has a row for each measurement. `load_rows`
puts the rows of any number of runs into one pandas DataFrame; every table, figure and statistic is
a function of that frame. Rows are compared only if they were measured on the same targets of the
same text (`select`). Windows and seeds are never pooled: the error of a difference within a run
comes from its windows, that of a difference between schemes from their seeds.
"""

import json
import lzma
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from configurable import UserError, read_json, replace_file, setting_values, write_json
from runs import answers

# a new row replaces an old one of the same run only if all these fields are equal
QUESTION = (
    "dataset",
    "protocol",
    "length",
    "extend",
    "files_sha256",
    "split_sha256",
    "targets",
    "step",
    "checkpoint",
    "dtype",
    "attention",
)
# the columns of a run's table
COLUMNS = (
    "fixed_targets stderr gain gain_stderr key_targets windowed nonoverlapping bits/byte".split()
)
# what is printed below a table that has these columns
LEGEND = {
    "gain": "gain: loss(L) - loss(N), below zero where longer texts do harm; ±: standard errors",
    "windowed": "windowed: fixed_targets where each token sees no more than the last L",
    "nonoverlapping": "nonoverlapping: what papers print; no evidence of extrapolation",
}
# the protocols whose losses are compared over seeds
OVER_SEEDS = ("fixed_targets", "image")
# the columns of `over_seeds` that are tables of their own, after the mean, with their titles
SPREAD = {
    "sd": "standard deviation over seeds",
    "difference": "difference from the first, mean over the seeds that both have",
    "error": "half of the 95 % t-interval of the difference",
}


# ---- files


def load_result(folder: str | Path) -> dict[str, Any]:
    """Read extrapolation.json of a run folder; UserError if it is missing or damaged."""
    path = Path(folder) / "extrapolation.json"
    if not path.exists():
        raise UserError(
            f"{folder} has no {path.name}: python evaluate.py {folder} makes it; an unfinished "
            "comparison resumes with its ablate.py command"
        )
    try:
        result = read_json(path)
        rows_of({"": result})
    except (UserError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"{path} is damaged ({error!r:.80}): delete it, python evaluate.py {folder} makes it"
        ) from None
    return result


def update_result(folder: str | Path, new: dict[str, Any]) -> dict[str, Any]:
    """Add a result to the extrapolation.json of a run folder; returns the file's new content.

    `scheme_files` of a result are the files that defined the run's scheme when its training began,
    each with the first digits of its SHA-256. A row is replaced only if the same QUESTION was asked
    again.
    """
    path = Path(folder, "extrapolation.json")
    config = Path(folder, "config.json")
    files = {}
    if config.exists():  # a Hugging Face model has none
        files = read_json(config)["files_sha256"]
    digests = [f"{name}:{digest[:6]}" for name, digest in sorted(files.items())]
    content = new | {"scheme_files": " ".join(digests)}

    def question(row: dict) -> list:
        return [row.get(name) for name in QUESTION]

    if path.exists():
        asked = [question(row) for row in new["rows"]]
        others = [row for row in load_result(folder)["rows"] if question(row) not in asked]
        content["rows"] = others + new["rows"]
    write_json(path, content)
    return content


def describe_run(run: Any) -> dict[str, Any]:
    """The fields of a result that describe the run, with the extension that is active now."""
    settings = run.settings
    is_dropped = settings.drop_pos > 0 and run.model.config.pos == "nope"
    return {
        "pos": f"{settings.pos} (dropped)" if is_dropped else settings.pos,
        "extend": run.model.pos.extend_text or None,
        "train_length": settings.block_size,
        "original_length": run.model.config.block_size,
        "seed": settings.seed,
        "max_iters": settings.max_iters,
        "settings": setting_values(settings, "result"),
        "step": run.step,
        "checkpoint": run.digest[:16],
        "tokens_trained": run.tokens,
        "parameters": run.model.parameter_count,
    }


def tested_lengths(train_length: int, lengths: Iterable[int] = ()) -> list[int]:
    """The lengths to test, in ascending order: L, and those given, else L/2, 2L, 4L ... 32L."""
    if not lengths:
        lengths = [train_length // 2, *(train_length * 2**k for k in range(6))]
    return sorted({train_length, *lengths} - {0})


# ---- the frame


def load_rows(folders: str | Path | Iterable[str | Path]) -> pd.DataFrame:
    """The measured rows of run folders as a frame; see `rows_of` for the columns.

    A folder may also be that of a comparison, which has a rows.csv.xz, the path of such a file, or
    a folder that contains runs. A run that is named twice, directly or through comparisons, counts
    once, as in the first comparison. UserError if there is nothing to read.
    """
    if isinstance(folders, str | Path):
        folders = [folders]
    frames = []
    runs = []
    compared = set()  # the runs of comparisons
    of_seeds = set()  # their labels, each with a seed
    for path in map(Path, folders):
        table = path / "rows.csv.xz" if path.is_dir() else path
        if table.exists():
            frame = read_rows(table)
            frame = frame[~frame.run.isin(compared)].copy()
            # a label that an earlier comparison has for another run of a seed is another model's
            pairs = set(zip(frame.label, frame.seed, strict=True))
            taken = {label for label, _ in pairs & of_seeds}
            frame.loc[frame.label.isin(taken), "label"] += f" ({path})"
            frames.append(frame)
            compared.update(frame.run)
            of_seeds |= pairs
            continue
        inside = sorted(file.parent for file in path.rglob("extrapolation.json"))
        runs += inside or [path]  # load_result says what is missing in it
    results = {str(run): load_result(run) for run in runs if str(run) not in compared}
    if results:
        frames.append(rows_of(results))
    if not frames:
        raise UserError("there is no result to show: no run was tested")
    return complete(pd.concat(frames, ignore_index=True))


def to_csv(rows: pd.DataFrame) -> str:
    """Rows as CSV: lists of numbers are separated by spaces, objects are JSON."""

    def text(value: Any) -> Any:
        if isinstance(value, list):
            return " ".join(map(str, value))
        return json.dumps(value) if isinstance(value, dict) else value

    return rows.map(text).to_csv(index=False)


def save_rows(rows: pd.DataFrame, path: str | Path) -> None:
    """Write rows as compressed CSV, which `load_rows` and pandas.read_csv read."""
    packed = lzma.compress(to_csv(rows).encode())
    replace_file(Path(path), lambda file: file.write(packed))


def read_rows(path: Path) -> pd.DataFrame:
    """Read what `save_rows` wrote, without the rows of n-gram predictors, which have no seed."""
    try:
        rows = pd.read_csv(path, float_precision="round_trip")
        rows = rows[rows.seed.notna()].astype({"seed": int, "train_length": int})
        rows["block_nats"] = rows.block_nats.map(
            lambda text: [float(x) for x in text.split()], na_action="ignore"
        )
        if "by_distance" in rows:
            rows["by_distance"] = rows.by_distance.map(json.loads, na_action="ignore")
        return complete(rows)
    except (ValueError, AttributeError, EOFError, lzma.LZMAError) as error:
        raise UserError(f"{path} is damaged, no table of rows: {error!r:.80}") from None


def rows_of(results: Mapping[str, dict[str, Any]]) -> pd.DataFrame:
    """The rows of results, {run folder: content of extrapolation.json}, as one frame.

    Columns: `run` (the folder), `label`, the fields of the result, a column for each setting that
    differs among the runs, and the fields of the row. `extend` is the extension of the row and
    `trained_extend` that of the run, "" for none; `trained_on` is the corpus of the run. The label
    is the scheme with the settings that differ, never the seed.
    """
    settings = pd.DataFrame([result["settings"] for result in results.values()], dtype=object)
    # these have columns of their own; the digests in scheme_files tell two pos_files apart
    settings = settings.drop(columns=["pos", "extend", "seed", "pos_file"], errors="ignore")
    differing = settings.columns[settings.map(str).nunique() > 1]
    records = []
    for k, (run, result) in enumerate(results.items()):
        changed = settings.loc[k, differing].to_dict()
        of_run = {"run": run, "trained_on": settings.dataset[k]} | changed | result
        of_run["trained_extend"] = result["extend"]
        del of_run["rows"], of_run["settings"]
        scheme = " ".join([result["pos"], *(f"{name}={x}" for name, x in changed.items())])
        for row in result["rows"]:
            label = scheme
            if row["extend"]:
                label += f", {row['extend']}"
            if row["step"] < result["max_iters"]:
                label += f" (unfinished: step {row['step']} of {result['max_iters']})"
            records.append(of_run | row | {"label": label})
    return complete(pd.DataFrame(records))


def complete(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with every column that a table reads: "" for a missing text, NaN for a number. Labels
    that would mean different schemes or runs are told apart.
    """
    numbers = ["nats", "stderr", "stderr_vs_L", "bits_per_byte", "chance"]
    texts = ["extend", "trained_extend", "note", "reason", "scheme_files"]
    texts += ["checkpoint", "split_sha256", "targets", "dtype"]
    others = ["block_nats", "diverged", "parameters", "tokens_trained"]
    names = rows.columns.union([*numbers, *texts, *others], sort=False)
    rows = rows.reindex(columns=names)
    rows[numbers] = rows[numbers].astype(float)
    rows[texts] = rows[texts].astype(object).fillna("")
    rows["diverged"] = rows.diverged.eq(True)
    # one label for schemes that are defined in different files: name the files
    several_files = rows.groupby("label").scheme_files.transform("nunique") > 1
    rows.loc[several_files, "label"] += " [" + rows.scheme_files + "]"
    # one label and seed for different runs: name the folders of those after the first
    is_later = rows.run != rows.groupby(["label", "seed"]).run.transform("first")
    rows.loc[is_later, "label"] += " (" + rows.run + ")"
    return rows


# ---- which rows are compared


def select(rows: pd.DataFrame, dataset: str = "", extend: str | None = None) -> pd.DataFrame:
    """The rows that are shown together: at most one for each run, extension, protocol and length.

    They are the newest on one corpus, by default the one that the first run was trained on.
    `extend` is None for the extension that each run was trained with, or "all". Rows with other
    targets than at L are left out. UserError if a run has no rows (with "all": if no run has), or
    if two runs have different targets.
    """
    dataset = dataset or rows.trained_on.iloc[0]
    shown = rows[rows.dataset == dataset]
    if extend is None:
        shown = shown[shown.extend == shown.trained_extend]
    untested = rows.label[~rows.run.isin(shown.run)]
    if shown.empty or (extend is None and len(untested)):
        raise UserError(f"{untested.iloc[0]} was not tested on {dataset}: run evaluate.py on it")
    # leave out rows of older checkpoints, and those that were measured again since
    shown = shown[shown.checkpoint == shown.groupby("run").checkpoint.transform("last")]

    # fixed_targets and windowed must have one set of targets at every length, and key_targets
    # another: those of the newest test at L
    is_key = shown.protocol == "key_targets"
    of_places = is_key | shown.protocol.isin(["fixed_targets", "windowed"])
    targets = shown.split_sha256 + shown.targets
    at_L = targets.where(of_places & (shown.length == shown.train_length))
    newest = at_L.groupby([shown.run, is_key]).transform("last")
    shown = shown[~of_places | (shown.targets == "") | (targets == newest)]
    shown = shown.drop_duplicates(["run", "extend", "protocol", "length"], keep="last")

    # all runs must have the same targets in a protocol at a length
    subject = ["protocol", "length"]
    distinct = shown[shown.targets != ""].drop_duplicates([*subject, "split_sha256", "targets"])
    others = distinct[distinct.duplicated(subject)]
    if len(others):
        raise UserError(
            f"{others.label.iloc[0]}: different targets of {dataset} than in the runs before it; "
            "evaluate them with the same --eval_windows and the same corpus files"
        )
    # the seeds of a label are pooled: they must be of one model
    sizes = shown.groupby("label")[["train_length", "parameters", "tokens_trained"]].nunique()
    mixed = sizes.index[(sizes > 1).any(axis=1)]
    if len(mixed):
        raise UserError(f"{mixed[0]} names models of several sizes: show each comparison alone")
    return shown.reset_index(drop=True)


def rename(rows: pd.DataFrame, labels: str) -> pd.DataFrame:
    """Rename labels: "alibi=ALiBi,rope=RoPE (ours)", or the path of a file with such a pair in each
    line. UserError for a label that no row has.
    """
    # the longest first: a label may begin with another, as in alibi and alibi n_layer=2
    labels_pattern = "|".join(map(re.escape, sorted(set(rows.label), key=len, reverse=True)))
    if labels and "=" not in labels:
        pairs = Path(labels).read_text(encoding="utf-8").splitlines()
    else:  # split at a comma before one of the labels; a label may have a comma itself
        pairs = re.split(rf",\s*(?=(?:{labels_pattern})\s*=)", labels)
    names = {}
    for pair in filter(None, pairs):
        match = re.fullmatch(rf"({labels_pattern})\s*=\s*(.*)", pair)
        if not match:
            raise UserError(
                f"{pair!r} renames no label: write --labels='LABEL=NAME,LABEL=NAME', where "
                f"the labels are {'; '.join(rows.label.unique())}"
            )
        names[match[1]] = match[2]
    renamed = rows.assign(label=rows.label.replace(names))
    if renamed.label.nunique() < rows.label.nunique():
        raise UserError("labels: two labels would have the same name")
    return renamed


def losses(rows: pd.DataFrame) -> pd.Series:
    """The nats of rows: inf where a model diverged, NaN where its loss is undefined."""
    return rows.nats.where(~rows.diverged, math.inf)


# ---- one run


def paired(a: Any, b: Any) -> tuple[float, float] | None:
    """The difference a - b of two rows in nats, and its standard error, paired window by window.

    None if one has no loss, or if they were measured on different targets.
    """
    if pd.isna(a["nats"]) or pd.isna(b["nats"]):
        return None
    if a["split_sha256"] != b["split_sha256"] or a["targets"] != b["targets"]:
        return None
    differences = np.subtract(a["block_nats"], b["block_nats"])
    return a["nats"] - b["nats"], answers.standard_error(differences)


def length_table(rows: pd.DataFrame) -> pd.DataFrame:
    """One run by test length N: the loss by each protocol (inf: it diverged), and further columns.

    gain = loss(L) - loss(N) of fixed_targets, and far = windowed - fixed_targets where N > L, both
    with the standard errors of the paired differences; bits/byte of nonoverlapping.
    """
    length = rows.train_length.iloc[0]
    fixed = rows[rows.protocol == "fixed_targets"].set_index("length")
    windowed = rows[rows.protocol == "windowed"].set_index("length")
    table = rows.assign(loss=losses(rows)).pivot(index="length", columns="protocol", values="loss")
    table = table.reindex(columns=[*COLUMNS, "far", "far_stderr"]).astype(float)
    table["stderr"] = fixed.stderr
    table["bits/byte"] = rows[rows.protocol == "nonoverlapping"].set_index("length").bits_per_byte
    for n, row in fixed.iterrows():
        if n != length and length in fixed.index:
            table.loc[n, ["gain", "gain_stderr"]] = paired(fixed.loc[length], row) or math.nan
        if n > length and n in windowed.index:
            table.loc[n, ["far", "far_stderr"]] = paired(windowed.loc[n], row) or math.nan
    return table.rename_axis(index="N", columns=None)


def doubts(rows: pd.DataFrame) -> str:
    """Why the rows of one run do not show that it uses context beyond L; empty if they do."""
    if "fixed_targets" not in set(rows.protocol) or "documents" in rows.columns:
        return ""  # a corpus with questions shows it by their answers
    length = rows.train_length.iloc[0]
    table = length_table(rows)
    doubt = f"does not show that it uses more than {length}"
    half = table.reindex([length // 2]).iloc[0]  # the line of N = L/2, NaN if it was not tested
    beyond = table[table.index > length]
    if math.isnan(half.gain) or beyond.far.isna().all():
        return f"{doubt}: windowed or L/2 was not tested"
    if -half.gain < max(2 * half.gain_stderr, 0.01):
        return f"{doubt}: loss(L) is not clearly below loss(L/2)"
    if (beyond.far > np.maximum(2 * beyond.far_stderr, 0.005)).any():
        return ""
    return f"{doubt}: fixed_targets is nowhere clearly below windowed"


def summary(rows: pd.DataFrame) -> dict[str, float]:
    """The selected rows of one run in a few numbers: loss_L, gain_4L, gain_32L, the reach."""
    tested = answers.answered(rows)
    reaches = answers.reaches(tested) if len(tested) else {}
    if "fixed_targets" not in set(rows.protocol):
        return reaches
    length = rows.train_length.iloc[0]
    table = length_table(rows)
    numbers = {
        "loss_L": table.fixed_targets.get(length),
        "gain_4L": table.gain.get(4 * length),
        "gain_32L": table.gain.get(32 * length),
    }
    return pd.Series(numbers, dtype=float).dropna().to_dict() | reaches


# ---- schemes over seeds


def half_interval(numbers: pd.Series) -> float:
    """Half of the 95 % t-interval of the mean; NaN for one or two numbers, which are too few."""
    from scipy.stats import t

    numbers = numbers.dropna()  # with an infinite number the interval is NaN
    if len(numbers) < 3:
        return math.nan
    return t.ppf(0.975, len(numbers) - 1) * numbers.sem()


def over_seeds(rows: pd.DataFrame) -> pd.DataFrame:
    """Selected rows of fixed_targets (or of images) over seeds: a line for each label and length.

    `mean` (inf if a seed diverged), `sd`, and `half`, half of the 95 % t-interval of the mean, are
    over the `seeds`. `difference` is the mean difference to the first label, paired over the seeds
    that both have, and `error` is half of its interval. With fewer than three seeds, intervals are
    NaN: the sample are the seeds, never the windows.
    """
    rows = rows[rows.protocol.isin(OVER_SEEDS)]
    rows = rows.assign(loss=losses(rows))
    is_first = rows.label.isin(rows.label.head(1))  # none, if there are no rows
    first = rows[is_first].set_index(["seed", "length"]).loss
    rows = rows.join(first.rename("first"), on=["seed", "length"])
    with np.errstate(invalid="ignore"):  # inf - inf
        rows["difference"] = rows.loss - rows["first"]
        groups = rows.groupby(["label", "length"], sort=False)
        table = groups.loss.agg(seeds="size", mean="mean", sd="std", half=half_interval)
        table["difference"] = groups.difference.mean().where(np.isfinite)
        table["error"] = groups.difference.agg(half_interval)
    return table.reset_index()


def extension_gains(rows: pd.DataFrame) -> pd.DataFrame:
    """What each extension gains over cropping the text to L: a line for each label and length.

    `rows` are selected with extend="all". The gain is the loss at L of the same seed's model,
    without the extension, minus the loss of the row (-inf: it diverged): `mean` and `sd` are over
    the seeds.
    """
    rows = rows[rows.protocol == "fixed_targets"]
    own = (rows.extend == rows.trained_extend) & (rows.length == rows.train_length)
    cropped = rows[own].groupby("run").nats.first()
    gains = rows.run.map(cropped) - losses(rows)
    groups = gains.groupby([rows.label, rows.length], sort=False)
    return groups.agg(seeds="size", mean="mean", sd="std").reset_index()


# ---- tables


def show(
    title: str,
    frame: pd.DataFrame,
    notes: Iterable[str] = (),
    format: str = "text",
    digits: int = 4,
) -> str:
    """A frame as "text", "md" or "tex" (booktabs) with its title and notes, or as "csv" or "json".

    An index without a name is left out; a missing number is an empty cell.
    """
    if any(frame.index.names):
        frame = frame.reset_index()
    if format == "csv":
        return to_csv(frame)
    if format == "json":
        return frame.to_json(orient="records", indent=1)
    numbers = {"na_rep": "", "float_format": f"{{:.{digits}f}}".format}
    if format == "text":
        table = frame.to_string(index=False, **numbers)
        return "\n".join([title, "", table, "", *notes]).rstrip()
    if format == "md":
        lines = frame.to_csv(sep="\t", index=False, **numbers).replace("|", "\\|").splitlines()
        lines.insert(1, "\t".join(["---"] * frame.shape[1]))
        table = "\n".join("| " + line.replace("\t", " | ") + " |" for line in lines)
        return "\n\n".join([title, table, *notes])
    columns = "l" + "r" * (frame.shape[1] - 1)
    table = frame.to_latex(index=False, escape=True, column_format=columns, **numbers)
    table = table.replace("|", "$|$").replace("& -", "& $-$").replace("±", r"$\pm$")
    # three lengths fit a column of 3.25 inches
    table = table.replace(r"\begin", r"\footnotesize\setlength{\tabcolsep}{3pt}\begin")
    comments = "\n".join([title, *notes]).replace("\n", "\n% ")
    return f"% {comments}\n{table}"


def tables(rows: pd.DataFrame, format: str = "text", lengths: Iterable[int] = ()) -> str:
    """The tables of selected rows: for one run by length, for several by scheme, over seeds.

    `lengths` are those to show, by default all tested lengths. In "tex" the losses are one table,
    as papers print it. "csv" and "json" give the rows. UserError for a length that was not tested.
    """
    measured = set(rows.length)
    if not measured.issuperset(lengths):
        raise UserError(f"eval_lengths: only {sorted(measured)} were tested")
    lengths = lengths or measured
    if format in ("csv", "json"):
        return show("", rows[rows.length.isin(lengths)], format=format)
    is_answer = rows.protocol.isin(answers.ANSWERED)
    shown = []
    if is_answer.any():
        shown.append(answer_table(rows[is_answer], format))
    if not is_answer.all():
        shown.append(loss_tables(rows[~is_answer], format, lengths))
    return "\n\n".join(shown)


def runs_by_name(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The rows of each run, by its label, and by its seed too if a label has several."""
    several = rows.groupby("label").seed.nunique().max() > 1
    runs = {}
    for (label, seed), run in rows.groupby(["label", "seed"], sort=False):
        runs[f"{label} s={seed}" if several else label] = run
    return runs


def title_of(rows: pd.DataFrame) -> str:
    """The corpus of the rows and the training length."""
    return f"{rows.dataset.iloc[0]}, trained at L = {rows.train_length.iloc[0]}"


def answer_table(rows: pd.DataFrame, format: str) -> str:
    """The table of rows with answers."""
    parts = {}
    verdicts = []
    for name, run in runs_by_name(rows).items():
        tested = answers.answered(run)
        parts[name] = answers.table(tested)
        verdicts.append(f"{name}: {answers.verdict(tested)}")
    table = pd.concat(parts, names=["scheme"])
    notes = [answers.LEGEND, *verdicts, *notes_of(rows)]
    return show(f"{title_of(rows)}; answers", table, notes, format, digits=2)


def loss_tables(rows: pd.DataFrame, format: str, lengths: Iterable[int]) -> str:
    """The tables of losses at these lengths: of one run, or of several by scheme."""
    runs = runs_by_name(rows)
    one_seed = len(runs) == rows.label.nunique()
    title = f"{title_of(rows)}; nats per {rows.unit.iloc[0]}"
    notes = notes_of(rows)
    if one_seed:
        for name, run in runs.items():
            doubt = doubts(run)
            if doubt:
                notes.append(f"{name}: {doubt}")

    schemes = over_seeds(rows[rows.length.isin(lengths)])
    if len(runs) == 1 or schemes.empty:
        parts = {}
        for name, run in runs.items():
            parts[name] = length_table(run)[COLUMNS].query("N in @lengths")
        table = pd.concat(parts, names=["scheme"]).dropna(axis="columns", how="all")
        if len(runs) == 1:
            title = f"{rows.label.iloc[0]} on {title}"
            table = table.droplevel("scheme")
        legend = [text for name, text in LEGEND.items() if name in table]
        table = table.rename(columns={"stderr": "± stderr", "gain_stderr": "± paired"})
        keys = rows[(rows.protocol == "key_targets") & rows.nats.notna()]
        if len(keys):
            n = int(keys.tokens.iloc[0])
            legend += [f"key_targets: the {n} of fixed_targets that far context makes predictable"]
        return show(title, table, [*legend, *notes], format)

    title += "; fixed_targets by test length N"
    if format == "tex":
        return paper_table(schemes, title, notes)
    if not one_seed:
        title += "; mean over seeds, inf: a test diverged"
    return seed_tables(schemes, title, notes, format)


def seed_tables(schemes: pd.DataFrame, title: str, notes: Iterable[str], format: str) -> str:
    """The columns of `over_seeds` or `extension_gains` as tables, with a column for each length."""
    means = wide(schemes, "mean")
    if schemes.seeds.max() > 1:
        means.insert(0, "seeds", schemes.groupby("label").seeds.max())
    shown = [show(title, means, notes, format)]
    for column, heading in SPREAD.items():
        if column in schemes and schemes[column].notna().any():
            shown.append(show(heading, wide(schemes, column).dropna(how="all"), format=format))
    return "\n\n".join(shown)


def paper_table(schemes: pd.DataFrame, title: str, notes: Iterable[str]) -> str:
    """`over_seeds` in LaTeX as papers print it: a line for each label, a column for each length."""
    means = schemes["mean"]
    cells = means.map("{:.3f}".format).replace({"nan": "n/a", "inf": "diverged"})
    lowest = means == schemes.groupby("length")["mean"].transform("min")
    cells = cells.mask(lowest, "\x02" + cells + "\x03")  # bold; to_latex would escape braces
    cells += schemes.half.map(" ± {:.3f}".format).where(schemes.half.notna(), "")
    legend = "mean over seeds ± half of its 95 % t-interval (from three seeds on), by test length; "
    seeds = schemes.groupby("label", sort=False).seeds.max()
    legend += f"seeds: {', '.join(f'{label} {n}' for label, n in seeds.items())}"
    lines = [legend, "bold: the lowest mean of a column, without a test"]
    longest = schemes[schemes.length == schemes.length.max()]
    for row in longest[longest.error.notna()].iloc[1:].itertuples():
        lines.append(
            f"{row.label} minus {schemes.label[0]} at {row.length}, paired over seeds: "
            f"{row.difference:+.4f} ± {row.error:.4f}"
        )
    lines += notes
    table = show(title, wide(schemes.assign(cells=cells), "cells"), lines, "tex")
    return table.replace("\x02", r"\textbf{").replace("\x03", "}")


def notes_of(rows: pd.DataFrame) -> list[str]:
    """The lines below a table: the notes of its rows, and why a run has no loss."""
    rows = rows.set_index("label")
    reasons = rows[rows.reason != ""].drop_duplicates("run")  # longer texts have no loss either
    notes = rows.assign(note=rows.note.str.split("; ")).explode("note")
    notes = notes.drop_duplicates(["run", "note"]).note
    if rows.run.nunique() > 1:  # a note on one run alone is printed below its own table
        notes = notes[notes.duplicated(keep=False)]
    notes = pd.concat([reasons.reason, notes])
    lines = []
    for note in notes[notes != ""].unique():
        labels = notes.index[notes == note].unique()
        lines.append(f"{', '.join(labels)}: {note}")
    if rows.dtype[rows.dtype != ""].nunique() > 1:
        lines.append("rows of different number formats are compared")
    return lines


def wide(table: pd.DataFrame, column: str) -> pd.DataFrame:
    """One column of a long table as lines of labels, in the same order, and columns of lengths."""
    wide = table.pivot(index="label", columns="length", values=column)
    return wide.reindex(table.label.unique()).rename_axis(index="scheme", columns=None)


def run_table(result: dict[str, Any]) -> str:
    """The table of one run, from the content of its extrapolation.json."""
    return tables(select(rows_of({"": result})))


def extension_table(rows: pd.DataFrame) -> str:
    """`extension_gains` as tables, a column for each length."""
    title = f"{rows.pos.iloc[0]} on {rows.dataset.iloc[0]}: gain over cropping to L, nats"
    return seed_tables(extension_gains(rows), title, notes_of(rows), "text")
