"""The results of testing long: one table of records, and what can be concluded from it.

A run's extrapolation.json is a Result (see runs/records.py): what was trained, and a Record for
each measurement. `load_rows` puts the records of any number of runs into one pandas DataFrame;
every table, figure and statistic is a function of that frame. Records are compared only if they
were measured on the same targets of the same text (`select`). Windows and seeds are never pooled:
the error of a difference within a run comes from its windows, that of a difference between schemes
from their seeds.
"""

import json
import lzma
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path

import numpy as np
import pandas as pd

from configurable import (
    TrainSettings,
    UserError,
    read_json,
    replace_file,
    write_json,
)
from data import Corpus
from data.rows import tested_sizes
from runs import answers, protocols
from runs.records import OLD_NAMES, Number, Record, Result, read_result

# the columns of `over_seeds` that are tables of their own, after the mean, with their titles
SPREAD = {
    "sd": "standard deviation over seeds",
    "difference": "difference from the first, mean over the seeds that both have",
    "error": "half of the 95 % t-interval of the difference",
}


# ---- files


def load_result(folder: str | Path) -> Result:
    """Read extrapolation.json of a run folder; UserError if it is missing or damaged."""
    path = Path(folder) / "extrapolation.json"
    if not path.exists():
        raise UserError(
            f"{folder} has no {path.name}: python evaluate.py {folder} makes it; an unfinished "
            "comparison resumes with its ablate.py command"
        )
    try:
        return read_result(read_json(path))
    except (KeyError, TypeError, ValueError, AttributeError) as error:  # UserError is a ValueError
        reason = " ".join(str(error).split())
        raise UserError(
            f"{path} is damaged ({reason:.120}): delete it, python evaluate.py {folder} makes it"
        ) from None


def update_result(folder: str | Path, new: Result) -> Result:
    """Add a result to the extrapolation.json of a run folder; returns the file's new content.

    A record is replaced only if the same question was asked again.
    """
    path = Path(folder, "extrapolation.json")
    if path.exists():
        others = [record for record in load_result(folder).records if record not in new.records]
        new = replace(new, records=others + new.records)
    content = asdict(new)
    content["rows"] = content.pop("records")  # as the file has always called them
    write_json(path, content)
    return new


def tested_lengths(block_size: int, lengths: Iterable[int] = ()) -> list[int]:
    """The lengths to test, in ascending order: L, and those given, else L/2, 2L, 4L ... 32L."""
    lengths = lengths or [block_size * 2**k // 2 for k in range(7)]
    return sorted({block_size, *lengths})


def has_every_test(result: Result, corpus: Corpus, s: TrainSettings) -> bool:
    """Whether a result has what the settings of its run ask for: a test after the last step, by
    every protocol of its corpus at every length, on as many windows.
    """
    windows = {}  # of the newest record of each protocol and length, which tables show
    for record in result.records:
        if (record.step, record.dataset, record.extend) == (s.max_iters, s.dataset, s.extend):
            windows[record.protocol, record.length] = record.windows
    if "rows" in corpus.meta:
        sizes = {size for size, _, _ in tested_sizes(corpus, s.eval_lengths)}
        return sizes <= {length for _, length in windows}
    asked = protocols.of_text()
    if "questions" in corpus.meta:
        asked = [protocols.find_protocol("recall")]
    for protocol in asked:
        for length in tested_lengths(s.block_size, s.eval_lengths):
            found = windows.get((protocol.name, length))
            if found is None or (protocol.in_places and found != s.eval_windows):
                return False
    return True


# ---- the frame


def load_rows(folders: str | Path | Iterable[str | Path]) -> pd.DataFrame:
    """The records of run folders as a frame, a row for each; see `rows_of` for the columns.

    A folder may also be that of a comparison, which has a rows.csv.xz, the path of such a file, or
    a folder that contains runs. A run that is named twice, directly or through comparisons, counts
    once, as in the first comparison. UserError if there is nothing to read.
    """
    if isinstance(folders, str | Path):
        folders = [folders]
    frames = []
    runs = []
    compared = set()  # the runs of comparisons
    for path in map(Path, folders):
        table = path / "rows.csv.xz" if path.is_dir() else path
        if table.exists():
            frame = read_rows(table)
            frame = frame[~frame.run.isin(compared)]
            frames.append(frame.assign(source=str(path)))
            compared.update(frame.run)
        else:
            inside = sorted(file.parent for file in path.rglob("extrapolation.json"))
            runs += inside or [path]  # load_result says what is missing in it
    results = {str(run): load_result(run) for run in runs if str(run) not in compared}
    if results:
        frames.append(rows_of(results))
    return complete(pd.concat(frames, ignore_index=True))


def to_csv(rows: pd.DataFrame) -> str:
    """Rows as CSV: lists of numbers are separated by spaces, objects are JSON."""

    def text(value: object) -> object:
        if isinstance(value, list):
            return " ".join(map(str, value))
        return json.dumps(value, allow_nan=False) if isinstance(value, dict) else value

    return rows.map(text).to_csv(index=False)


def save_rows(rows: pd.DataFrame, path: str | Path) -> None:
    """Write rows as compressed CSV, which `load_rows` and pandas.read_csv read."""
    packed = lzma.compress(to_csv(rows).encode())
    replace_file(Path(path), lambda file: file.write(packed))


def read_rows(path: Path) -> pd.DataFrame:
    """Read what `save_rows` wrote, without the rows of n-gram predictors, which have no seed."""
    converters = {
        "block_nats": lambda text: [float(x) for x in text.split()] or None,
        "by_distance": lambda text: json.loads(text or "null"),
    }
    try:
        rows = pd.read_csv(path, float_precision="round_trip", converters=converters)
        rows = rows.rename(columns=OLD_NAMES)
        return rows[rows.seed.notna()].astype({"seed": int, "block_size": int})
    except (ValueError, AttributeError, KeyError, EOFError, lzma.LZMAError) as error:
        raise UserError(f"{path} is damaged, no table of rows: {error!r:.80}") from None


def rows_of(results: Mapping[str, Result]) -> pd.DataFrame:
    """The records of results, {run folder: result}, as one frame: a row for each.

    Columns: `run` (the folder), `label`, the fields of Result, a column for each setting that
    differs among the runs, and the fields of Record. `extend` is the extension of the record and
    `trained_extend` that of the run, "" for none; `trained_on` is the corpus of the run. The label
    is the scheme with the settings that differ, never the seed.
    """
    # a column for each run
    settings = pd.DataFrame({run: r.settings for run, r in results.items()}, dtype=object)
    # these have columns of their own; the digests in scheme_files tell two pos_files apart
    settings = settings.drop(["pos", "extend", "seed", "pos_file"], errors="ignore")
    settings_that_differ = settings[settings.map(str).nunique(axis="columns") > 1]
    rows = []
    for run, result in results.items():
        changed = settings_that_differ[run].to_dict()
        about = {"run": run, "trained_on": result.settings["dataset"]} | changed | vars(result)
        about["trained_extend"] = about.pop("extend")
        del about["settings"], about["records"]
        scheme = " ".join([result.pos, *(f"{name}={x}" for name, x in changed.items())])
        for record in result.records:
            label = scheme
            if record.extend:
                label += f", {record.extend}"
            if record.step < result.max_iters:
                label += f" (unfinished: step {record.step} of {result.max_iters})"
            rows.append(about | vars(record) | {"label": label})
    return complete(pd.DataFrame(rows))


def complete(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with a column for every field, which older tables may lack, and labels of one model."""
    types = {f.name: f.type for f in (*fields(Result), *fields(Record))}
    del types["settings"], types["records"]
    types |= {"trained_extend": str, "source": str}
    texts = [name for name in types if types[name] is str]
    numbers = [name for name in types if types[name] is Number]
    rows = rows.reindex(columns=rows.columns.union(list(types), sort=False))
    rows[texts] = rows[texts].astype(object).fillna("")
    rows[numbers] = rows[numbers].astype(float)  # also where there are none
    rows["diverged"] = rows.diverged.eq(True)
    return tell_apart(rows).drop(columns="source")


def tell_apart(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows whose labels have a suffix where different models share one: the later ones get their
    source, the files of their scheme, or their folder.
    """
    for column, keys in {
        "source": ["label", "seed"],
        "scheme_files": ["label"],
        "run": ["label", "seed"],
    }.items():
        first = rows.groupby(keys)[column].transform("first")
        is_later = (rows[column] != first) & (rows[column] != "")  # a run folder has no source
        # all seeds of a later model, not only those that the first has, too
        is_later = is_later.groupby([rows.label, rows[column]]).transform("any")
        rows.loc[is_later, "label"] += " (" + rows[column] + ")"
    return rows


# ---- which rows are compared


def select(rows: pd.DataFrame, dataset: str = "", extend: str | None = None) -> pd.DataFrame:
    """The records that are shown together: at most one of each run, extension, protocol and length.

    They are the newest on one corpus, by default the one that the first run was trained on.
    `extend` is None for the extension that each run was trained with, or "all". UserError if a run
    has no such records (with "all": if no run has), or if two runs have different targets.
    """
    # those on this corpus, with this extension
    dataset = dataset or rows.trained_on.iloc[0]
    shown = rows[rows.dataset == dataset]
    if extend is None:
        shown = shown[shown.extend == shown.trained_extend]
    untested = rows.label[~rows.run.isin(shown.run)]
    if shown.empty or (extend is None and len(untested)):
        raise UserError(f"{untested.iloc[0]} was not tested on {dataset}: run evaluate.py on it")

    # those of the last step, and of the checkpoint tested last: a run may be trained again
    step = shown.step.fillna(0)  # old tables have none
    shown = shown[step == step.groupby(shown.run).transform("max")]
    shown = shown[shown.checkpoint == shown.groupby("run").checkpoint.transform("last")]

    # those with the targets of the newest test at L, of protocols that have these at every length
    words = {protocol.name: protocol.targets for protocol in protocols.PROTOCOLS}
    word = shown.protocol.map(words).fillna("")  # protocols with one word share their targets
    targets = shown.split_sha256 + shown.targets
    at_L = targets.where(shown.length == shown.block_size)
    newest = at_L.groupby([shown.run, word]).transform("last")
    shown = shown[(word == "") | (shown.targets == "") | (targets == newest)]

    # the newest answer to a question
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
    sizes = shown.groupby("label")[["block_size", "parameters", "tokens_trained"]].nunique()
    mixed = sizes.index[(sizes > 1).any(axis=1)]
    if len(mixed):
        raise UserError(
            f"{mixed[0]} names models that differ in size, training length or tokens trained: show "
            "each comparison alone"
        )
    return shown.reset_index(drop=True)


def rename(rows: pd.DataFrame, labels: str) -> pd.DataFrame:
    """Rename labels: "alibi=ALiBi;rope=RoPE (ours)", or the path of a file with such a pair in each
    line. UserError for a label that no row has.
    """
    if labels and "=" not in labels:
        labels = Path(labels).read_text(encoding="utf-8")
    names = {}
    existing = rows.label.unique()
    for pair in map(str.strip, re.split("[;\n]", labels)):
        # a label may contain =, too
        label = next((x for x in existing if pair.startswith(f"{x}=")), None)
        if label and not any(f",{x}=" in pair for x in existing):  # a comma in place of ;
            names[label] = pair.removeprefix(f"{label}=")
        elif pair:
            raise UserError(
                f"{pair!r} renames no label: write --labels='LABEL=NAME;LABEL=NAME', where "
                f"the labels are {'; '.join(existing)}"
            )
    renamed = rows.assign(label=rows.label.replace(names))
    if renamed.label.nunique() < rows.label.nunique():
        raise UserError("labels: two labels would have the same name")
    return renamed


def finite_or_inf(rows: pd.DataFrame) -> pd.Series:
    """The nats of rows: inf where a model diverged, NaN where its loss is undefined."""
    return rows.nats.where(~rows.diverged, math.inf)


# ---- one run


def paired(a: Record | pd.Series, b: Record | pd.Series) -> tuple[float, float] | None:
    """The difference a - b of two records in nats, and its standard error, paired window by window.

    None if one has no loss, or if they were measured on different targets.
    """
    if pd.isna(a.nats) or pd.isna(b.nats):
        return None
    if a.split_sha256 != b.split_sha256 or a.targets != b.targets:
        return None
    differences = np.subtract(a.block_nats, b.block_nats)
    return a.nats - b.nats, answers.standard_error(differences)


def length_table(rows: pd.DataFrame) -> pd.DataFrame:
    """One run by test length N: the loss by each protocol (inf: it diverged), and further columns.

    gain = loss(L) - loss(N) of fixed_targets, and far = windowed - fixed_targets where N > L, both
    with the standard errors of the paired differences; bits/byte of nonoverlapping.
    """
    length = rows.block_size.iloc[0]
    fixed = rows[rows.protocol == "fixed_targets"].set_index("length")
    # what was not tested has no loss
    at_L = fixed.reindex([length]).iloc[0]
    windowed = rows[rows.protocol == "windowed"].set_index("length").reindex(fixed.index)
    table = rows.assign(loss=finite_or_inf(rows)).pivot(
        index="length", columns="protocol", values="loss"
    )
    columns = [column for protocol in protocols.PROTOCOLS for column in protocol.columns]
    table = table.reindex(columns=[*columns, "far", "far_stderr"]).astype(float)
    table["stderr"] = fixed.stderr
    table["bits/byte"] = rows[rows.protocol == "nonoverlapping"].set_index("length").bits_per_byte
    for n, row in fixed.iterrows():
        if n != length:
            table.loc[n, ["gain", "gain_stderr"]] = paired(at_L, row) or math.nan
        if n > length:
            table.loc[n, ["far", "far_stderr"]] = paired(windowed.loc[n], row) or math.nan
    return table.rename_axis(index="N", columns=None)


def doubts(rows: pd.DataFrame) -> str:
    """Why the rows of one run do not show that it uses context beyond L; empty if they do."""
    if "fixed_targets" not in set(rows.protocol) or rows.documents.notna().any():
        return ""  # a corpus with questions shows it by their answers
    length = rows.block_size.iloc[0]
    table = length_table(rows)
    doubt = f"does not show that it uses more than {length}"
    half = table.reindex([length // 2]).iloc[0]  # the line of N = L/2, NaN if it was not tested
    beyond = table[table.index > length]
    if math.isnan(half.gain):
        return f"{doubt}: L/2 was not tested"
    if beyond.far.isna().all():
        return f"{doubt}: no N > L was tested by fixed_targets and windowed"
    if -half.gain < max(2 * half.gain_stderr, 0.01):
        return f"{doubt}: loss(L) is not clearly below loss(L/2)"
    if (beyond.far > np.maximum(2 * beyond.far_stderr, 0.005)).any():
        return ""
    return f"{doubt}: fixed_targets is nowhere clearly below windowed"


def summary(rows: pd.DataFrame) -> dict[str, float]:
    """The selected rows of one run in a few numbers: loss_L, gain_4L, gain_32L, the reach."""
    length = rows.block_size.iloc[0]
    table = length_table(rows)
    numbers = {
        "loss_L": table[compared_protocols()].bfill(axis="columns").iloc[:, 0].get(length),
        "gain_4L": table.gain.get(4 * length),
        "gain_32L": table.gain.get(32 * length),
    }
    reaches = answers.reaches(answers.answered(rows))
    return pd.Series(numbers, dtype=float).dropna().to_dict() | reaches


# ---- schemes over seeds


def half_interval(numbers: pd.Series) -> float:
    """Half of the 95 % t-interval of the mean; NaN for one or two numbers, which are too few."""
    from scipy.stats import t

    numbers = numbers.dropna()  # with an infinite number the interval is NaN
    if len(numbers) < 3:
        return math.nan
    return t.ppf(0.975, len(numbers) - 1) * numbers.sem()


def compared_protocols() -> list[str]:
    """The names of the protocols whose losses are compared over seeds."""
    return [protocol.name for protocol in protocols.PROTOCOLS if protocol.over_seeds]


def over_seeds(rows: pd.DataFrame) -> pd.DataFrame:
    """Selected rows over seeds: a line for each protocol that is compared, label and length.

    `mean` (inf if a seed diverged), `sd`, and `half`, half of the 95 % t-interval of the mean, are
    over the `seeds`; `stderr_vs_L` is that of the first. `difference` is the mean difference to the
    first label (NaN for that itself), paired over the seeds that both have, and `error` is half of
    its interval. With fewer than three seeds, intervals are NaN: the seeds are the sample, never
    the windows.
    """
    rows = rows[rows.protocol.isin(compared_protocols())]
    rows = rows.assign(loss=finite_or_inf(rows))
    is_first = rows.label.isin(rows.label.head(1))  # none, if there are no rows
    same = ["protocol", "seed", "length"]
    rows = rows.join(rows[is_first].set_index(same).loss.rename("first"), on=same)
    with np.errstate(invalid="ignore"):  # inf - inf
        rows["difference"] = (rows.loss - rows["first"]).where(~is_first)
        groups = rows.groupby(["protocol", "label", "length"], sort=False)
        table = groups.loss.agg(seeds="size", mean="mean", sd="std", half=half_interval)
        table["difference"] = groups.difference.mean().where(np.isfinite)
        table["error"] = groups.difference.agg(half_interval)
    table["stderr_vs_L"] = groups.stderr_vs_L.first()
    return table.reset_index()


def extension_gains(rows: pd.DataFrame) -> pd.DataFrame:
    """What each extension gains over cropping the text to L: a line for each label and length.

    `rows` are selected with extend="all". The gain is the loss at L of the same seed's model,
    without the extension, minus the loss of the row (-inf: it diverged): `mean` and `sd` are over
    the seeds.
    """
    rows = rows[rows.protocol == "fixed_targets"]
    cropped = rows.query("extend == trained_extend and length == block_size")
    gains = rows.run.map(cropped.set_index("run").nats) - finite_or_inf(rows)
    table = over_seeds(rows.assign(nats=gains, diverged=False))
    return table[["label", "length", "seeds", "mean", "sd"]]


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
    where = f"{rows.dataset.iloc[0]}, trained at L = {rows.block_size.iloc[0]}"
    shown = []

    # answers, by run
    is_answer = answers.has_answers(rows)
    parts = {}
    notes = [answers.LEGEND]
    for (label, seed), run in rows[is_answer].groupby(["label", "seed"], sort=False):
        tested = answers.answered(run)
        parts[f"{label} s={seed}"] = answers.table(tested)
        notes.append(f"{label} s={seed}: {answers.verdict(tested)}")
    if parts:
        notes += notes_of(rows[is_answer])
        table = pd.concat(parts, names=["scheme"])
        shown.append(show(f"{where}; answers", table, notes, format, digits=2))

    # losses
    rows = rows[~is_answer]
    if rows.empty:
        return shown[0]
    title = f"{where}; nats per {rows.unit.iloc[0]}"
    notes = notes_of(rows)
    runs = rows.groupby(["label", "seed"], sort=False)
    schemes = over_seeds(rows[rows.length.isin(lengths)])
    one_seed = len(runs) == rows.label.nunique()
    if one_seed:
        for (label, _), run in runs:
            doubt = doubts(run)
            if doubt:
                notes.append(f"{label}: {doubt}")
    if len(runs) == 1:
        table = length_table(rows).drop(columns=["far", "far_stderr"]).query("N in @lengths")
        table = table.dropna(axis="columns", how="all")
        notes = [*legend(rows, table), *notes]
        table = table.rename(columns={"stderr": "± stderr", "gain_stderr": "± paired"})
        title = f"{rows.label.iloc[0]} on {title}"
        shown.append(show(title, table, notes, format))
    elif schemes.empty:  # only protocols that are not compared over seeds
        shown += [tables(run, format, lengths) for _, run in runs]
    else:
        for protocol, of_protocol in schemes.groupby("protocol", sort=False):
            heading = f"{title}; {protocol} by test length N"
            if not one_seed:
                heading += ", mean over seeds; inf: a test diverged"
            if format == "tex":
                shown.append(paper_table(of_protocol, heading, notes))
            else:
                shown.append(seed_tables(of_protocol, heading, notes, format))
    return "\n\n".join(shown)


def legend(rows: pd.DataFrame, table: pd.DataFrame) -> list[str]:
    """The lines that explain the columns of a `length_table` of these rows."""
    lines = []
    for protocol in protocols.PROTOCOLS:
        lines += [line for column, line in protocol.columns.items() if line and column in table]
    for protocol in protocols.PROTOCOLS:
        measured = rows[(rows.protocol == protocol.name) & rows.nats.notna()]
        if protocol.counted and len(measured):
            lines.append(protocol.counted.format(n=int(measured.tokens.iloc[0])))
    return lines


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
    means = schemes["mean"].map("{:.3f}".format).replace({"nan": "n/a", "inf": "diverged"})
    halves = schemes.half.map(" ± {:.3f}".format).where(schemes.half.notna(), "")
    seeds = schemes.groupby("label", sort=False).seeds.max()
    lines = ["±: half of the 95 % t-interval of the mean, from three seeds on"]
    lines.append("seeds: " + ", ".join(f"{label} {n}" for label, n in seeds.items()))
    longest = schemes[schemes.length == schemes.length.max()]
    for row in longest[longest.error.notna()].itertuples():
        lines.append(
            f"{row.label} minus {schemes.label[0]} at {row.length}, paired over seeds: "
            f"{row.difference:+.4f} ± {row.error:.4f}"
        )
    return show(title, wide(schemes.assign(cells=means + halves), "cells"), [*lines, *notes], "tex")


def notes_of(rows: pd.DataFrame) -> list[str]:
    """The lines below a table: the notes of its rows, and why a run has no loss."""
    reasons = rows[rows.reason != ""].drop_duplicates("run")  # longer texts have no loss either
    notes = rows.assign(note=rows.note.str.split("; ")).explode("note")
    notes = notes[notes.note != ""].drop_duplicates(["run", "note"])
    if rows.run.nunique() > 1:  # a note on one run alone is printed below its own table
        notes = notes[notes.duplicated("note", keep=False)]
    notes = pd.concat([reasons.assign(note=reasons.reason), notes])
    lines = []
    for note, labels in notes.groupby("note", sort=False).label.unique().items():
        lines.append(f"{', '.join(labels)}: {note}")
    if rows.dtype[rows.dtype != ""].nunique() > 1:
        lines.append("rows of different number formats are compared")
    return lines


def wide(table: pd.DataFrame, column: str) -> pd.DataFrame:
    """One column of a long table as lines of labels, in the same order, and columns of lengths."""
    cells = table.pivot(index="label", columns="length", values=column)
    return cells.reindex(table.label.unique()).rename_axis(index="scheme", columns=None)


def run_table(result: Result) -> str:
    """The table of one run."""
    return tables(select(rows_of({"": result})))


def extension_table(rows: pd.DataFrame) -> str:
    """`extension_gains` as tables, a column for each length."""
    title = f"{rows.pos.iloc[0]} on {rows.dataset.iloc[0]}: gain over cropping to L, nats"
    return seed_tables(extension_gains(rows), title, notes_of(rows), "text")
