"""What tests write down: a Record for each measurement, a Result for each run.

A field is one line here. extrapolation.json, tables in CSV and the DataFrame have all of them.
"""

import hashlib
import json
import lzma
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

import pandas as pd
from pydantic import TypeAdapter

from common.errors import UserError
from common.files import read_json, replace_file, write_json
from configurable import RESULT, TrainSettings, setting_values
from measure import protocols

LONGEST_LABEL = 60  # letters, with the settings that differ; a folder replaces more of them
Number = float | None  # None: there is none
Count = int | None
# the names of fields in older files, which are still read
OLD_NAMES = {
    "train_length": "block_size",
    "original_length": "first_length",
    "trained": "trained_size",
    "rows": "records",
    "documents": "blocks",
}


@dataclass
class Question:
    """What is asked in a measurement."""

    protocol: str
    length: int  # of a test, in inputs; of corpora with sizes, the size
    dataset: str = ""  # the corpus
    split_sha256: str = ""  # of its validation split
    extend: str = ""  # the extension, "" for none
    files_sha256: dict | None = None  # {file: SHA-256} of what defines the extension
    step: Count = None  # steps that the weights were trained
    checkpoint: str = ""  # the first digits of the SHA-256 of the weights
    dtype: str = ""  # the number format
    targets: str = ""  # the SHA-256 of the offsets that are scored
    attention: str = ""  # the path of attention, of layers that compute all queries


@dataclass(eq=False)
class Record(Question):
    """One measurement. Two are equal if their questions are: then the newer one counts."""

    factor: Number = None  # of the extension at this length
    tokens_trained: Count = None
    windows: Count = None  # blocks: places, chunks of a text, or texts with answers
    first_token: Count = None  # at the start of every window, in place of the text's
    trained_size: Count = None  # of texts with answers: the largest in training
    tokens_per_s: Number = None  # inputs a second
    note: str = ""  # what to know about the numbers
    reason: str = ""  # why there is no loss
    diverged: bool = False  # the loss is not finite
    # the loss
    nats: Number = None  # per target, the mean; None: see reason
    stderr: Number = None  # its standard error, nats
    stderr_vs_L: Number = None  # that of the paired difference to length L, nats
    block_nats: list | None = None  # the mean of each block; see measure.tester.fill_loss
    tokens: Count = None  # the number of targets
    perplexity: Number = None
    bits_per_byte: Number = None  # of the targets that stand for text
    without_bytes: Count = None  # the number of targets that do not
    blocks: Count = None  # of the text around questions: documents
    # answers
    texts: Count = None
    exact: Count = None  # texts without a mistake
    accuracy: Number = None  # the share of answers that are right
    by_distance: dict | None = None  # {kind of question: bins}; see measure.questions.count_answers


@dataclass
class Result:
    """A tested run: the content of its extrapolation.json."""

    pos: str
    seed: int
    block_size: int  # tokens, the length of this training
    max_iters: int  # planned steps
    settings: dict  # those that change the result
    extend: str = ""  # the extension that it was trained with, "" for none
    first_length: Count = None  # tokens, the length that it was first trained at
    scheme_files: str = ""  # what defined its scheme when training began: file:first digits of SHA
    step: Count = None  # steps taken
    checkpoint: str = ""  # the first digits of the SHA-256 of the weights
    tokens_trained: Count = None  # without padding
    parameters: Count = None
    planned_before: Count = None  # steps, before max_iters was raised, which changed the schedule
    train_sha256: str = ""  # the first digits of that of the training tokens
    source_model: str = ""  # of a fine-tune, what it started from: see run.load.model_digest
    unit: str = ""  # of a token of the corpus: byte, char or token
    seconds: Number = None  # that the last test took
    records: list[Record] = field(default_factory=list)  # the oldest first


def read_result(content: dict) -> Result:
    """The Result in a JSON object, without what older versions wrote besides. ValueError, TypeError
    or KeyError if there is none.
    """
    content = with_current_names(content)
    content["records"] = [with_current_names(record) for record in content["records"]]
    return TypeAdapter(Result).validate_python(content)


def with_current_names(content: dict) -> dict:
    """A JSON object with the names that fields have today, and without nulls: the defaults."""
    return {OLD_NAMES.get(k, k): value for k, value in content.items() if value is not None}


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
    labels = {}  # of their models
    for path in map(Path, folders):
        table = path / "rows.csv.xz" if path.is_dir() else path
        if table.exists():
            frame = read_rows(table)
            frame = frame[~frame.run.isin(compared)]
            frames.append(frame.assign(source=str(path)))
            compared.update(frame.run)
            if "settings_sha256" in frame:  # older tables lack it
                labels = labels_of(frame) | labels
        else:
            if not path.is_dir():
                raise UserError(f"there is no table or run folder {path}")
            inside = sorted(file.parent for file in path.rglob("extrapolation.json"))
            runs += inside or [path]  # load_result says what is missing in it
    results = {str(run): load_result(run) for run in runs if str(run) not in compared}
    if results:
        frames.append(rows_of(results, labels))
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
        # a newer table has the setting `documents`, too
        rows = rows.rename(columns={old: x for old, x in OLD_NAMES.items() if x not in rows})
        rows = rows[rows.seed.notna()].astype({"seed": int, "block_size": int})
    except (ValueError, AttributeError, KeyError, EOFError, lzma.LZMAError) as error:
        raise UserError(f"{path} is damaged, no table of rows: {error!r:.80}") from None
    if rows.empty:
        raise UserError(f"{path} has no rows")
    return rows


def labels_of(rows: pd.DataFrame) -> dict[tuple, str]:
    """The labels of finished runs in a table, tested as they were trained: by pos, extension and
    settings_sha256.
    """
    rows = rows.fillna({"extend": "", "trained_extend": ""})
    is_plain = rows.planned_before.isna() & ~(rows.step < rows.max_iters)
    rows = rows[is_plain & (rows.extend == rows.trained_extend)].drop_duplicates("label")
    keys = zip(rows.pos, rows.extend, rows.settings_sha256, strict=True)
    return dict(zip(keys, rows.label, strict=True))


def rows_of(
    results: Mapping[str, Result], labels: Mapping[tuple, str] | None = None
) -> pd.DataFrame:
    """The records of results, {run folder: result}, as one frame: a row for each. `labels` are
    those of models that have one: see `labels_of`.

    Columns: `run` (the folder), `label`, the fields of Result, a column for each setting that
    differs among the runs, `settings_sha256` of all but the seed, and the fields of Record.
    `extend` is the extension of the record and `trained_extend` that of the run, "" for none;
    `trained_on` is the corpus of the run. The label is the scheme with the settings that differ,
    never the seed; where these are many, with the folder of its first seed (report.py
    --show=settings lists them).
    """
    # a column for each run; a setting that is newer than the run had its default
    defaults = setting_values(TrainSettings(), *RESULT)
    settings = {}
    for run, result in results.items():
        settings[run] = defaults | result.settings
        if result.source_model:  # the same for all seeds, whose folders have other names
            settings[run]["init_from"] = result.source_model
    settings = pd.DataFrame(settings, dtype=object)
    # these have columns of their own; the digests in scheme_files tell two pos_files apart
    settings = settings.drop(["pos", "extend", "seed", "pos_file"], errors="ignore")
    settings_that_differ = settings[settings.map(str).nunique(axis="columns") > 1]
    rows = []
    first_runs = {}  # by the scheme and settings
    sources = {}  # the folder that the first fine-tune of a model names
    for run, result in results.items():
        changed = settings_that_differ[run].to_dict()
        if "init_from" in changed:
            name = result.settings.get("init_from", "auto")
            changed["init_from"] = sources.setdefault(changed["init_from"], name)
        about = {"run": run, "trained_on": result.settings["dataset"]} | changed | vars(result)
        about["trained_extend"] = about.pop("extend")
        del about["settings"], about["records"]
        text = settings[run].sort_index().to_json()
        about["settings_sha256"] = hashlib.sha256(text.encode()).hexdigest()[:16]
        scheme = " ".join([result.pos, *(f"{name}={x}" for name, x in changed.items())])
        if changed and len(scheme) > LONGEST_LABEL:
            scheme = f"{result.pos} ({first_runs.setdefault(scheme, run)})"  # for all seeds
        known = (labels or {}).get((result.pos, result.extend, about["settings_sha256"]))
        for record in result.records:
            extend = record.extend
            if extend and extend == result.extend and not has_own_files(record, result):
                extend += " of other files"  # not as it was trained
            is_known = known and extend == result.extend
            label = known if is_known else label_of(scheme, extend, result)
            label += state_of(record, result)
            row = about | vars(record) | {"label": label, "extend": extend}
            if tested_before_drop(record, result):
                for name in ("label", "pos"):
                    row[name] = row[name].replace(" (dropped)", "", 1)
            rows.append(row)
    return complete(pd.DataFrame(rows))


def label_of(scheme: str, extend: str, result: Result) -> str:
    """The label of a scheme, with the extension of a record of this result."""
    if extend:
        return f"{scheme}, {extend}"
    return f"{scheme}, none" if result.extend else scheme


def tested_before_drop(record: Record, result: Result) -> bool:
    """Whether this test on the way came before the run dropped its positions (drop_pos)."""
    share = result.settings.get("drop_pos", 0.0)
    last = result.max_iters - round(share * result.max_iters)  # the step up to which it had them
    return record.step is not None and record.step <= last


def state_of(record: Record, result: Result) -> str:
    """What a label says of a model that is not trained as it was planned; "" for the others."""
    text = ""
    if result.planned_before:
        text = f" (planned for {result.planned_before} steps)"
    if record.step is not None and record.step < result.max_iters:
        text += f" (unfinished: step {record.step} of {result.max_iters})"
    return text


def has_own_files(record: Record, result: Result) -> bool:
    """Whether a record was measured with the files that the run was trained with, such as the
    factors of longrope; older ones do not say.
    """
    own = result.scheme_files
    digests = {name: x for name, x in (record.files_sha256 or {}).items() if f"{name}:" in own}
    return all(f"{name}:{digest[:6]}" in own for name, digest in digests.items())


def complete(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with a column for every field, which older tables may lack, and labels of one model."""
    types = {f.name: f.type for f in (*fields(Result), *fields(Record))}
    del types["settings"], types["records"]
    types |= {"trained_extend": str, "source": str, "settings_sha256": str}
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
    place = rows.source.where(rows.source != "", rows.run)
    for column in ("settings_sha256", "train_sha256"):
        known = rows[column].replace("", None)  # what an older table lacks is no difference
        first = known.groupby(rows.label).transform("first")
        is_later = known.notna() & (known != first)
        first_place = place.groupby([rows.label, rows[column]]).transform("first")
        rows.loc[is_later, "label"] += " (" + first_place + ")"
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
    same = [protocol.name for protocol in protocols.PROTOCOLS if protocol.same_targets]
    targets = shown.split_sha256 + shown.targets
    at_L = targets.where(shown.length == shown.block_size)
    newest = at_L.groupby([shown.run, shown.protocol]).transform("last")
    shown = shown[~shown.protocol.isin(same) | (shown.targets == "") | (targets == newest)]

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
