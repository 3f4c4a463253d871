"""The results of testing long: one table of measured rows, and what may be concluded from it.

A run's extrapolation.json says what was trained, and has a row for each question that the model
was asked. `load_rows` puts the rows of any number of runs into one pandas DataFrame; every table,
figure and statistic is a function of that frame. Rows are compared only if they were measured on
the same targets of the same text (`select`). Windows and seeds are never pooled: the error of a
difference within a run comes from its windows, that between two schemes from their seeds.
"""

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from configurable import (
    PROTOCOLS,
    TrainSettings,
    UserError,
    read_json,
    replace_file,
    values,
    write_json,
)
from runs import answers

# what a row asks: an evaluation replaces only the row that asked the same
QUESTION = ("dataset", "protocol", "length", "extend", "files_sha256", "split_sha256", "targets")
QUESTION += ("step", "checkpoint", "dtype", "attention")
SAME_RUN = ("pos", "train_length", "seed", "parameters")
# the fields of a result that stand in each of its rows
ABOUT = ("pos", "seed", "train_length", "original_length", "max_iters", "parameters")
ABOUT += ("tokens_trained", "unit")
# what a row has in a frame if the file does not say it
EMPTY = dict.fromkeys((*QUESTION, "nats", "stderr", "stderr_vs_L", "block_nats", "text_nats"))
EMPTY |= {"bits_per_byte": None, "note": "", "reason": "", "diverged": False}
# the columns of a run's table
ORDER = ("fixed_targets", "stderr", "gain", "gain_stderr", "text", "far", "far_stderr", "windowed")
ORDER += ("nonoverlapping", "its bits/byte")


# ---- files


def load_result(folder: str | Path) -> dict[str, Any]:
    """The extrapolation.json of a run folder; UserError if there is none or it is damaged."""
    path = Path(folder) / "extrapolation.json"
    again = f"python evaluate.py {folder}"
    if not path.exists():
        raise UserError(f"{folder} has no {path.name}: {again} tests a trained run")
    result = read_json(path)
    try:
        rows_of({str(folder): result})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path} is damaged ({error!r:.80}): delete it, {again} makes it") from None
    return result


def update_result(folder: str | Path, new: dict[str, Any]) -> dict[str, Any]:
    """Add a result to the extrapolation.json of a run folder; what is in the file afterwards.

    A row is replaced only if its question (QUESTION) was asked again. The file of another run is
    replaced as a whole.
    """
    path = Path(folder) / "extrapolation.json"
    old = load_result(folder) if path.exists() else {}
    if all(old.get(name) == new[name] for name in SAME_RUN):
        asked = [[row.get(name) for name in QUESTION] for row in new["rows"]]
        kept = [row for row in old["rows"] if [row.get(name) for name in QUESTION] not in asked]
        new = old | new | {"rows": kept + new["rows"]}
    write_json(path, new)
    return new


def describe_model(
    model: Any, settings: TrainSettings, *, step: int, tokens: int, checkpoint: str
) -> dict[str, Any]:
    """What a result says of a model that was trained for so many steps on so many tokens.

    `checkpoint` is the SHA-256 of its file. Called before another extension is put on the model.
    """
    usual = values(TrainSettings(), "result")
    changed = {n: x for n, x in values(settings, "result").items() if x != usual[n]}
    for name in ("pos", "extend", "block_size", "seed", "max_iters"):
        changed.pop(name, None)  # these are fields of their own
    return {
        "pos": f"{settings.pos} (dropped)" if settings.drop_pos else settings.pos,
        "extend": model.pos.extension or None,
        "train_length": settings.block_size,
        "original_length": model.config.block_size,
        "seed": settings.seed,
        "max_iters": settings.max_iters,
        "settings": changed,
        "step": step,
        "checkpoint": checkpoint[:16],
        "tokens_trained": tokens,
        "parameters": model.parameter_count,
    }


def tested_lengths(train_length: int, lengths: Iterable[int] = ()) -> list[int]:
    """The ascending lengths to test: those given, else L/2, L, 2L ... 32L. L is always one."""
    usual = (train_length // 2, *(train_length << k for k in range(6)))
    return sorted({*(lengths or usual), train_length} - {0})


# ---- the frame


def load_rows(
    folders: Iterable[str | Path], labels: Mapping[str, str] | None = None
) -> pd.DataFrame:
    """The measured rows of run folders, a line for each: see `rows_of` for the columns.

    A folder may also be that of a comparison, which has a rows.json; or the path of such a file,
    which may be packed (rows.json.xz).
    """
    results, frames = {}, []
    for folder in folders:
        path = Path(folder, "rows.json") if Path(folder, "rows.json").exists() else Path(folder)
        if not path.is_file():
            results[str(folder)] = load_result(folder)
            continue
        try:
            frames.append(pd.read_json(path, dtype=False, precise_float=True))
        except ValueError:
            raise UserError(f"{path} is damaged: it is no JSON table of rows") from None
    if results:
        frames.append(rows_of(results, labels))
    return pd.concat(frames, ignore_index=True)


def save_rows(rows: pd.DataFrame, path: str | Path) -> None:
    """Write a frame as JSON, which `load_rows` reads."""
    text = rows.to_json(orient="records", double_precision=15)
    replace_file(Path(path), lambda file: file.write(text.encode()))


def rows_of(
    results: Mapping[str, dict[str, Any]], labels: Mapping[str, str] | None = None
) -> pd.DataFrame:
    """The rows of results, {run folder: content of extrapolation.json}, as one frame.

    Columns: `run` (the folder), `label`, what is known of the model, a column for each setting that
    some run changed, and the fields of the row. `extend` is the extension of the row and
    `trained_extend` that of the run, "" for none. The label is the scheme with the settings that
    differ among the runs, never the seed, or what `labels` calls the run.
    """
    usual = values(TrainSettings(), "result")
    changed = dict.fromkeys(name for result in results.values() for name in result["settings"])
    changed.pop("dataset", None)  # the corpus trained on: a row has that of its test
    runs = {}
    for run, result in results.items():
        settings = {name: result["settings"].get(name, usual.get(name)) for name in changed}
        about = {name: result.get(name) for name in ABOUT}
        runs[run] = {"run": run, **settings, **about}
        runs[run]["trained_on"] = result["settings"].get("dataset", usual["dataset"])
        runs[run]["trained_extend"] = result["extend"] or ""
    names = ["train_length", "trained_on", *changed, "max_iters"]
    differ = [name for name in names if len({str(about[name]) for about in runs.values()}) > 1]
    records, before = [], set()
    for run, about in runs.items():
        label = " ".join([about["pos"], *(f"{name}={about[name]}" for name in differ)])
        if (label, about["seed"]) in before:
            label += f" ({run})"  # equal in all settings: the folder tells them apart
        before.add((label, about["seed"]))
        label = (labels or {}).get(run, label)
        for row in results[run]["rows"]:
            name = f"{label}, {row['extend']}" if row["extend"] else label
            if row["step"] < (about["max_iters"] or 0):
                name += f" (unfinished: step {row['step']} of {about['max_iters']})"
            records.append(EMPTY | about | row | {"label": name, "extend": row["extend"] or ""})
    return pd.DataFrame(records).astype({"nats": float})


def measured(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of tests, without cells of a comparison that have no result, beside which pandas
    turns integers into floats.
    """
    types = {"length": int, "train_length": int, "step": int, "diverged": bool}
    return rows[rows.protocol.notna()].astype(types)


# ---- which rows are compared


def select(rows: pd.DataFrame, dataset: str = "", extend: str | None = None) -> pd.DataFrame:
    """The rows that are shown together: at most one for each run, extension, protocol and length.

    They are the newest ones of one corpus, by default the one that the first run was trained on.
    `extend` is None for what each run was trained with, "all", or an extension, "none" for none.
    All rows of a protocol have the targets that it has at L; a row on others has a reason in place
    of its loss. UserError if a run has no rows, or two runs have different targets. Rows without a
    protocol, which are cells of a comparison without a result, stay, at the end.
    """
    lost, rows = rows[rows.protocol.isna()], measured(rows)
    if rows.empty:
        raise UserError("there is no result to compare: no run was tested")
    if not dataset:
        first = rows[rows.run == rows.run.iloc[0]]
        own = first[first.dataset == first.trained_on]
        dataset = (first if own.empty else own).dataset.iloc[0]
    shown = rows[rows.dataset == dataset]
    if extend is None:
        shown = shown[shown.extend == shown.trained_extend]
    elif extend != "all":
        shown = shown[shown.extend == ("" if extend == "none" else extend)]
    untested = rows.label[~rows.run.isin(shown.run)]
    if len(untested):
        where = f"{dataset} under {extend or 'its own extension'}: run evaluate.py on it first"
        raise UserError(f"{untested.iloc[0]} was not tested on {where}")
    # rows of an older checkpoint, or asked again since, are history
    newest = shown.sort_values("step", kind="stable").groupby("run").checkpoint.last()
    shown = shown[shown.checkpoint == shown.run.map(newest)]
    shown = shown.drop_duplicates(["run", "extend", "protocol", "length"], keep="last")
    rank = {label: k for k, label in enumerate(shown.label.unique())}
    shown = shown.assign(rank=shown.label.map(rank)).sort_values(["rank", "length"], kind="stable")
    shown = shown.drop(columns="rank").reset_index(drop=True)

    # targets: one set for each protocol, that at L; answers have their own at each length
    one_set = shown.protocol.isin(PROTOCOLS)
    place = shown.protocol.where(one_set, shown.protocol + " at " + shown.length.astype(str))
    targets = shown.split_sha256 + shown.targets
    reference = targets[(shown.length == shown.train_length) | ~one_set].dropna()
    for protocol, part in reference.groupby(place):
        if part.nunique() > 1:
            a, b = shown.label[part.drop_duplicates().index[:2]]
            advice = "evaluate them with the same --eval_windows and the same corpus files"
            raise UserError(f"{a} and {b}: different targets of {dataset} ({protocol}); {advice}")
        elsewhere = (place == protocol) & targets.notna() & (targets != part.iloc[0])
        shown.loc[elsewhere, "nats"] = math.nan
        shown.loc[elsewhere, "reason"] = "measured on other targets than at L"
    return pd.concat([shown, lost], ignore_index=True)


# ---- one run


def standard_error(values: Any) -> float:
    """The standard error of the mean of the values."""
    return float(np.std(values, ddof=1) / math.sqrt(len(values)))


def paired(a: Any, b: Any) -> tuple[float, float] | None:
    """a - b in nats and its standard error, window by window; a and b are rows.

    None if one is missing, has no loss, or was measured on other targets.
    """
    if a is None or b is None or pd.isna(a["nats"]) or pd.isna(b["nats"]):
        return None
    if a["split_sha256"] != b["split_sha256"] or a["targets"] != b["targets"]:
        return None
    return a["nats"] - b["nats"], standard_error(np.subtract(a["block_nats"], b["block_nats"]))


def length_table(rows: pd.DataFrame) -> pd.DataFrame:
    """The numbers of one run by test length N: the loss by each protocol (inf: it diverged), and

    gain = loss(L) - loss(N) of fixed_targets, far = windowed - fixed_targets, with the standard
    errors of the paired differences; text: the gain of a predictor by counts and longest match.
    """
    length, lines = rows.train_length.iloc[0], {}
    place = {(row["protocol"], row["length"]): row for row in rows.to_dict("records")}
    base = place.get(("fixed_targets", length))
    for n in sorted(set(rows.length)):
        fixed, windowed = place.get(("fixed_targets", n)), place.get(("windowed", n))
        line = {}
        if fixed:
            line |= {"fixed_targets": loss(fixed), "stderr": fixed["stderr"]}
        if n != length and (gain := paired(base, fixed)):
            line["gain"], line["gain_stderr"] = gain
            if n > length and isinstance(fixed["text_nats"], list):
                line["text"] = np.mean(base["text_nats"]) - np.mean(fixed["text_nats"])
        if n > length and (far := paired(windowed, fixed)):
            line["far"], line["far_stderr"] = far
        line |= {name: loss(row) for (name, m), row in place.items() if m == n}
        if ("nonoverlapping", n) in place:
            line["its bits/byte"] = place["nonoverlapping", n]["bits_per_byte"]
        lines[n] = line
    table = pd.DataFrame.from_dict(lines, orient="index").astype(float).rename_axis("N")
    order = sorted(table, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))
    return table[order].dropna(axis="columns", how="all")


def loss(row: Any) -> float:
    """The nats of a row: inf where it diverged, NaN where it is undefined."""
    return math.inf if row["diverged"] else row["nats"]


def doubts(rows: pd.DataFrame) -> str:
    """Why the rows of one run do not show that it uses context beyond L; empty if they do."""
    table, length = length_table(rows), rows.train_length.iloc[0]
    table = table.reindex(
        columns=["fixed_targets", "windowed", "gain", "gain_stderr", "far", "far_stderr"]
    )
    if length not in table.index or math.isnan(table.fixed_targets[length]):
        return ""
    half, beyond, reasons = length // 2, table[table.index > length], []
    asked = f"fixed_targets at {half} and windowed beyond {length}"
    if half not in table.index or beyond.windowed.isna().all():
        return f"use of context beyond {length} was not asked: test {asked}"
    cost, stderr = -table.gain[half], table.gain_stderr[half]
    if not cost >= max(2 * stderr, 0.01):
        reasons.append(f"loss({half}) - loss({length}) is only {cost:+.4f} ± {stderr:.4f} nats")
    if not (beyond.far > np.maximum(2 * beyond.far_stderr, 0.005)).any():
        reasons.append("far is nowhere clearly above zero")
    if not reasons:
        return ""
    return f"cannot show the use of context beyond {length}: {', and '.join(reasons)}"


def summary(rows: pd.DataFrame) -> dict[str, float]:
    """What the selected rows of one run come to: loss_L, gain_4L, gain_32L, or the reach."""
    if tested := answers.answered(rows):
        return {"reach": answers.reach(tested)}
    table, length = length_table(rows), rows.train_length.iloc[0]
    found = {"loss_L": table.get("fixed_targets", {}).get(length, math.nan)}
    for k in (4, 32):
        found[f"gain_{k}L"] = table.get("gain", {}).get(k * length, math.nan)
    return {name: float(x) for name, x in found.items() if not math.isnan(x)}


# ---- schemes over seeds


def t_half(values: pd.Series) -> float:
    """Half of Student's 95 % interval of the mean; NaN of one or two values, which show nothing."""
    from scipy.stats import t

    values = values[np.isfinite(values)]
    if len(values) < 3:
        return math.nan
    return float(t.ppf(0.975, len(values) - 1)) * standard_error(values)


def over_seeds(rows: pd.DataFrame) -> pd.DataFrame:
    """Selected rows of fixed_targets (or of images) over seeds: a line for each label and length.

    `mean` (inf if a seed diverged), `sd` and `half`, half of the 95 % t-interval of the mean, are
    over the `seeds`. `difference` is the mean, over the seeds that both have, of the difference to
    the first label, which is paired because all seeds have the same targets. `low` and `high` are
    the ends of its t-interval, NaN with fewer than three seeds: the seeds, and never the windows,
    are the sample.
    """
    protocol = "fixed_targets" if "fixed_targets" in set(rows.protocol) else "image"
    rows = measured(rows[rows.protocol == protocol])
    rows["loss"] = rows.nats.where(~rows.diverged, math.inf)
    first = rows[rows.label.isin(rows.label.head(1))].set_index(["seed", "length"]).loss
    same = pd.MultiIndex.from_frame(rows[["seed", "length"]])
    rows["difference"] = (rows.loss - first.reindex(same).to_numpy()).where(rows.loss < math.inf)
    groups = rows.groupby(["label", "length"], sort=False)
    with np.errstate(invalid="ignore"):  # inf - inf
        table = groups.agg(
            seeds=("loss", "size"),
            mean=("loss", "mean"),
            sd=("loss", "std"),
            half=("loss", t_half),
            difference=("difference", "mean"),
            half_difference=("difference", t_half),
        )
    table["low"] = table.difference - table.half_difference
    table["high"] = table.difference + table.half_difference
    return table.drop(columns="half_difference").reset_index()


def extension_gains(rows: pd.DataFrame) -> pd.DataFrame:
    """What each extension gains over cropping: a line for each label and length.

    `rows` are selected with extend="all". The gain is the loss of the model of the same seed as it
    was trained, at its training length, minus the loss of the row (-inf: it diverged): `mean` and
    `sd` over `seeds`. The best at the longest length comes first.
    """
    rows = measured(rows[rows.protocol == "fixed_targets"])
    own = (rows.extend == rows.trained_extend) & (rows.length == rows.train_length)
    cropped = rows[own].groupby("seed").nats.first()
    if cropped.isna().all():
        raise UserError("the model as it was trained has no loss at L: evaluate it there first")
    gains = rows.seed.map(cropped) - rows.nats.where(~rows.diverged, math.inf)
    table = gains.groupby([rows.label, rows.length], sort=False).agg(["count", "mean", "std"])
    table = table.reset_index().set_axis(["label", "length", "seeds", "mean", "sd"], axis=1)
    last = table[table.length == table.length.max()].set_index("label")["mean"]
    return table.sort_values("label", key=lambda label: -label.map(last), kind="stable")


# ---- tables


def show(
    title: str,
    frame: pd.DataFrame,
    notes: Iterable[str] = (),
    format: str = "text",
    digits: int = 4,
) -> str:
    """A frame as "text", "md", "tex" (booktabs), "csv" or "json", with its title and notes.

    An index without a name is left out; a missing number is an empty cell.
    """
    if format == "json":
        return frame.to_json(orient="records", indent=1, double_precision=15)
    if format == "csv":
        lists = [c for c in frame if frame[c].map(lambda x: isinstance(x, list | dict)).any()]
        return frame.drop(columns=lists).to_csv(index=False)
    numbers = {"na_rep": "", "float_format": f"{{:.{digits}f}}".format}
    named = any(frame.index.names)
    if format == "text":
        return "\n".join([title, "", frame.to_string(index=named, **numbers), "", *notes]).rstrip()
    flat = frame.reset_index() if named else frame
    if format == "md":
        lines = flat.to_csv(sep="\t", index=False, **numbers).replace("|", "\\|").splitlines()
        lines.insert(1, "\t".join(["---"] * flat.shape[1]))
        table = "\n".join("| " + line.replace("\t", " | ") + " |" for line in lines)
        return "\n\n".join([title, table, *notes])
    body = flat.to_latex(index=False, escape=True, **numbers).replace("|", "$|$")
    body = re.sub(r"(?<![\w{])-(?=[\d-])", "{-}", re.sub(r"& -(?=\d)", "& $-$", body))
    comments = [f"% {line}" for text in (title, *notes) for line in text.splitlines()]
    return "\n".join([*comments, body])


LEGEND = {
    "stderr": "stderr over windows; gain_stderr and far_stderr: of the paired difference",
    "gain": "gain: loss(L) - loss(N), negative where the scheme breaks",
    "text": "text: the gain of a predictor by counts and longest match: what the text offers",
    "far": "far: windowed - fixed_targets, positive where keys beyond L help; a diagnosis only, for"
    " nope and absolute schemes",
    "nonoverlapping": "nonoverlapping: what papers print; more context for each token lowers it,"
    " so it is no evidence of extrapolation",
}


def tables(rows: pd.DataFrame, format: str = "text") -> str:
    """The tables of selected rows: by length for each run and, of several, by scheme over seeds.

    "csv" and "json" are the rows themselves.
    """
    if format in ("csv", "json"):
        return show("", rows.dropna(axis="columns", how="all"), format=format)
    lost, rows = rows[rows.protocol.isna()], measured(rows)
    notes = [f"{x.label}, seed {x.seed}: no result: {x.reason}" for x in lost.itertuples()]
    notes += [*rows.reason, *rows.note]
    formats = rows.dtype.dropna().unique()
    if len(formats) > 1:
        notes.append(f"rows of different number formats are compared: {', '.join(formats)}")
    runs = rows.groupby(["label", "seed"], sort=False)
    one_seed = runs.ngroups == rows.label.nunique()
    parts = {}
    for (label, seed), run in runs:
        name = label if one_seed else f"{label} s={seed}"
        tested = answers.answered(run)
        parts[name] = answers.table(tested) if tested else length_table(run)
        conclusion = answers.verdict(tested) if tested else doubts(run)
        if conclusion and (one_seed or tested):
            notes.append(f"{name}: {conclusion}")
    notes = [note for note in dict.fromkeys(notes) if note]
    lengths = ", ".join(map(str, sorted(set(rows.train_length))))
    title = f"{rows.dataset.iloc[0]}, trained at L = {lengths}; "
    table = pd.concat(parts, names=["scheme"])
    if tested:
        return show(f"{title}share of right answers", table, [answers.LEGEND, *notes], format, 2)
    title += f"nats per {rows.unit.iloc[0]}"
    pages = []
    if one_seed:
        legend = [text for name, text in LEGEND.items() if name in table]
        pages.append(show(title, table, [*legend, *notes], format))
        notes = []
    if runs.ngroups > 1 and len(seeds := over_seeds(rows)):
        notes.insert(0, "mean over seeds; inf: a seed diverged")
        pages.append(show(title, wide(seeds), notes, format))
        if not one_seed:
            explained = [
                f"difference: to {rows.label.iloc[0]}, paired by seed",
                "low, high: its 95 % t-interval over seeds; with one or two seeds there is none",
            ]
            long = seeds.set_index(["label", "length"]).rename_axis(["scheme", "N"])
            long = long.drop(columns="half").dropna(axis="columns", how="all")
            pages.append(show(f"{title}, over seeds", long, explained, format))
    return "\n\n".join(pages)


def wide(table: pd.DataFrame, values: str = "mean") -> pd.DataFrame:
    """A column for each length and a line for each label, in the order of a long table."""
    found = table.pivot(index="label", columns="length", values=values)
    return found.reindex(table.label.unique()).rename_axis("scheme").rename_axis(None, axis=1)


def run_table(result: dict[str, Any]) -> str:
    """The table of one run, of the content of its extrapolation.json."""
    return tables(select(rows_of({"": result})))


def extension_table(rows: pd.DataFrame) -> str:
    """`extension_gains` as tables, a column for each length."""
    table, first = extension_gains(rows), rows.iloc[0]
    title = (
        f"{first.dataset}, {first.pos} trained at {first.train_length}: gain over cropping, nats"
    )
    notes = [
        "loss of the cropped model - loss with N tokens: above zero, the longer text helps",
        *sorted({*rows.note, *rows.reason} - {""}),
    ]
    pages = [show(title, wide(table), notes)]
    if table.seeds.max() > 1:
        pages.append(show("standard deviation over seeds", wide(table, "sd")))
    return "\n\n".join(pages)
