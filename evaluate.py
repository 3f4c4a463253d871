"""Test trained runs on texts longer than those they were trained on.

    python evaluate.py out/RUN [out/RUN ...] [--name=value ...]

    python evaluate.py out/rope-stdlib-L128-s1337 --extend='yarn(factor=8)'
    python evaluate.py out/A out/B --dataset=NAME --out=compared.pdf
    python evaluate.py out/A out/B --eval_windows=1024      # for published numbers
    python evaluate.py out/RUN --diagnose                   # what it reads: runs/diagnose.py
    python evaluate.py out/rope-*-s? 'yarn(beta=8)' ntk     # extensions: mean and spread over seeds
    python evaluate.py out/RUN --extend=all                 # every extension that fits
    python evaluate.py HuggingFaceTB/SmolLM-135M --dataset=mine   # a Hugging Face folder or name

The losses are written to each run's extrapolation.json and extrapolation.png (those of a Hugging
Face model to out/tests/), and a table is printed. Several runs are also drawn in one figure, --out
or out/extrapolation.png. Extensions are compared on fixed_targets alone, and only what is missing
is measured; the runs must be seeds of one model, and table and figure are written to extend.txt and
extend.png in the first, or to --out.

L is the training length and N a test length. Which targets are scored depends only on the
validation split, not on L or on the lengths asked for. So every scheme is tested on the same
targets, and every comparison is paired, block by block. The protocols, with what is scored by each,
are those of runs/protocols.py.

Nats per token are the mean over all scored targets. Bits per byte are the nats of those that stand
for text over the UTF-8 bytes of that text. End tokens and others without text are left out of both:
a record says how many, `without_bytes`. A space that a tokenizer puts before a document is no byte.
"""

import copy
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

import data
from configurable import (
    RESULT,
    EvaluateSettings,
    MeasureSettings,
    UserError,
    configure,
    run_program,
    setting_values,
)
from data.rows import BYTE, targets_of, tested_chunks, tested_sizes, unread
from runs import answers, device, diagnose, protocols, results
from runs.checkpoint import (
    Run,
    lock_folder,
    named_folders,
    open_model,
    run_corpus,
    scheme_digests,
)
from runs.figures import plot_rows, plot_run
from runs.huggingface import is_huggingface
from runs.log import log_comparison
from runs.protocols import (
    MAX_WINDOWS,
    Places,
    Protocol,
    find_places,
    fixed_targets,
    of_text,
    targets_in,
)
from runs.records import Record, Result
from runs.results import tested_lengths
from runs.tester import Tester
from scheme import Catalogue, Scheme

MAX_PLACES = 65536  # from which those for tuning are taken
MIN_CHOSEN = 100  # fewer chosen targets than this are not measured
BYTES = 256  # in a corpus with questions, tokens below this are text
CHECK_WINDOWS = 8  # windows that are also tested in float32


# ---- a test


def check_lengths(corpus: data.Corpus, windows: int, lengths: Sequence[int]) -> None:
    """Raise UserError, before training, if a text is too short for a test at these lengths."""
    if corpus.is_text:
        places = find_places(corpus, windows)
        for length in lengths:
            fixed_targets(places, length)


def describe_run(run: Run) -> Result:
    """What a Result says of a run, with the extension that is active now."""
    s = run.settings
    config = run.model.config
    files = run.config.get("files_sha256", {})  # a Hugging Face model has none
    is_dropped = s.drop_pos > 0 and config.pos == "nope"
    return Result(
        pos=f"{s.pos} (dropped)" if is_dropped else s.pos,
        seed=s.seed,
        block_size=s.block_size,
        max_iters=s.max_iters,
        settings=setting_values(s, *RESULT),
        extend=run.model.pos.extend_text,
        first_length=config.first_length,
        scheme_files=" ".join(f"{name}:{files[name][:6]}" for name in sorted(files)),
        step=run.step,
        checkpoint=run.digest[:16],
        tokens_trained=run.tokens,
        parameters=run.model.parameter_count,
    )


def extrapolation(
    tester: Tester,
    about: Result,
    lengths: Sequence[int],
    windows: int,
    names: Sequence[str] = (),
) -> Result:
    """Test a model by every protocol at every length, and print a line for each record.

    `about` is from `describe_run`, `lengths` and `windows` are as in the settings, `names` are
    those of protocols of text, by default all. The model is put into eval mode.
    """
    corpus = tester.corpus
    started = time.perf_counter()
    tester.model.eval()
    if "rows" in corpus.meta:
        measured = answer_records(tester, about, lengths)
    elif "questions" in corpus.meta:
        measured = question_records(tester, about, lengths, windows)
    else:
        measured = text_records(tester, about, lengths, windows, of_text(names))
    records = []
    for record in measured:
        text = record.reason or f"{record.nats:.4f} nats per {corpus.unit}"
        print(f"{record.protocol} at {record.length}: {text}")
        records.append(record)
    at_L = {record.protocol: record for record in records if record.length == about.block_size}
    for record in records:
        if record.protocol in at_L:
            difference = results.paired(record, at_L[record.protocol])
            if difference:
                record.stderr_vs_L = difference[1]
    seconds = round(time.perf_counter() - started, 1)
    return replace(about, unit=corpus.unit, records=records, seconds=seconds)


def new_record(tester: Tester, about: Result, protocol: str, length: int, windows: int) -> Record:
    """A record that says what is asked; `about` is from `describe_run`."""
    scheme = tester.model.pos
    return Record(
        protocol,
        length,
        dataset=tester.corpus.name,
        split_sha256=tester.corpus.split_sha256("val"),
        extend=scheme.extend_text,
        # a changed extension is another question
        files_sha256=scheme_digests(scheme) if scheme.extend_text else None,
        step=about.step,
        checkpoint=about.checkpoint,
        dtype=tester.compute.dtype_name,
        factor=scheme.factor(length),
        tokens_trained=about.tokens_trained,
        windows=windows,
        first_token=tester.first_token,
    )


def text_records(
    tester: Tester, about: Result, lengths: Sequence[int], windows: int, asked: list[Protocol]
) -> Iterator[Record]:
    """The records of a corpus of text: of each protocol at each length, then those of protocols
    that choose among the targets of fixed_targets.
    """
    places = find_places(tester.corpus, windows)
    measured = {}  # by each protocol: its records, each with the nats of its targets, or None
    for protocol in asked:
        of_protocol = measured[protocol.name] = []
        for length in tested_lengths(about.block_size, lengths):
            record, nats = text_record(tester, about, places, protocol, length)
            of_protocol.append((record, nats))
            yield record
    fixed = measured.get("fixed_targets", [])
    finite = [record for record, _ in fixed if record.nats is not None]
    if not finite:
        return
    if tester.compute.dtype is not None:
        # the first windows of the longest test again, in float32
        record = finite[-1]
        few = replace(places, ends=places.ends[:CHECK_WINDOWS])
        in_float32 = replace(tester, compute=replace(tester.compute, dtype=None))
        nats = in_float32.nats_by_place(few, record.length).mean()
        difference = np.mean(record.block_nats[:CHECK_WINDOWS]) - nats
        check = (
            f"fixed_targets at {record.length}, {CHECK_WINDOWS} windows: {record.dtype} minus "
            f"float32 is {difference:+.5f} nats"
        )
        record.note = "; ".join(filter(None, [record.note, check]))
    for protocol in protocols.PROTOCOLS:
        if protocol.chosen:
            yield from chosen_records(tester.corpus, places, protocol, fixed)


def text_record(
    tester: Tester, about: Result, places: Places, protocol: Protocol, length: int
) -> tuple[Record, np.ndarray | None]:
    """A record of a corpus of text, and the nats of its targets, (blocks, targets).

    If it cannot be measured, the nats are None and the record has a reason.
    """
    scheme = tester.model.pos
    record = new_record(tester, about, protocol.name, length, len(places.ends))
    try:
        windows = protocol.windows(places, length)
        offsets = targets_in(windows)
        record.windows = len(offsets)
        record.targets = answers.digest(np.sort(offsets, axis=None))
        scheme.check_length(length)
    except UserError as error:
        record.reason = str(error)
        return record, None

    window_size = None
    if protocol.limits_keys and length > about.block_size:
        window_size = about.block_size
    started = time.perf_counter()
    nats = tester.nats(windows, window_size)
    inputs = len(nats) * sum(window.length for window in windows)
    record.tokens_per_s = round(inputs / (time.perf_counter() - started), 1)
    record.attention = tester.model.path_of(length, window_size)

    notes = []
    if places.across_documents and protocol.in_places:
        notes.append("windows run across documents, too few of which are long")
    if len(np.unique(offsets)) < offsets.size:
        notes.append("neighbouring blocks share targets, so standard errors are too small")
    if any(piece.found_on == record.split_sha256 for piece in scheme.extensions.values()):
        notes.append(f"the file of {scheme.extend_text} was found on this text")
    if tester.first_token is not None:
        notes.append(f"every window begins with the tokenizer's first token, {tester.first_token}")
    record.note = "; ".join(notes)

    fill_targets(record, tester.corpus, offsets, nats, np.ones(nats.shape, dtype=bool))
    return record, nats


def chosen_records(
    corpus: data.Corpus, places: Places, protocol: Protocol, fixed: list[tuple]
) -> Iterator[Record]:
    """Records of the targets that a protocol chooses, one for each record of `fixed`, unless they
    are too few. `fixed` has the records of fixed_targets, each with the nats of its targets,
    (places, scored), or None.
    """
    counted = protocol.chosen(corpus, places)  # (places, scored)
    n = counted.sum()
    if n < MIN_CHOSEN:
        print(f"{protocol.name}: not measured, {n} qualify, {MIN_CHOSEN} are needed")
        return
    offsets = targets_in(fixed_targets(places, places.max_length))  # the same at every length
    digest = answers.digest(np.sort(offsets[counted]))
    for record, nats in fixed:
        chosen = replace(record, protocol=protocol.name, targets=digest)
        if record.nats is not None:
            fill_targets(chosen, corpus, offsets, nats, counted)
        yield chosen


def fill_targets(
    record: Record, corpus: data.Corpus, offsets: np.ndarray, nats: np.ndarray, counted: np.ndarray
) -> None:
    """Fill in the loss of the targets where `counted` is True; arrays are (blocks, targets)."""
    sizes = corpus.text_bytes(offsets)
    in_text = counted & (sizes > 0)
    record.without_bytes = int(np.sum(counted & (sizes == 0)))
    answers.fill_loss(record, nats.sum(axis=1, where=counted), counted.sum(axis=1))
    fill_bytes(record, nats.sum(where=in_text), sizes.sum(where=in_text))


def fill_bytes(record: Record, text_nats: float, n_bytes: int) -> None:
    """Fill in the perplexity, and the bits per byte of the targets that stand for text: `text_nats`
    in `n_bytes`. End tokens are left out of both. Nothing, if there is no loss.
    """
    if record.nats is None:
        return
    record.perplexity = math.exp(record.nats) if record.nats < 700 else None
    record.bits_per_byte = float(text_nats / math.log(2) / n_bytes) if n_bytes else None


def question_records(
    tester: Tester, about: Result, lengths: Sequence[int], windows: int
) -> Iterator[Record]:
    """The records of a corpus with questions: recall, and fixed_targets of the text around them.

    One pass at each length measures both. A block of the text is a document.
    """
    corpus = tester.corpus
    for length in tested_lengths(about.block_size, lengths):
        record = new_record(tester, about, "recall", length, windows)
        record.trained_size = about.block_size
        try:
            tester.model.pos.check_length(length)
            # (chunks, length + 1) each, and (chunks,)
            tokens, kind, distance, documents = tested_chunks(corpus, length, windows)
        except UserError as error:
            record.reason = str(error)
            yield record
            continue
        nats, right = tester.answers(tokens, targets_of(corpus, tokens, kind))
        record.attention = tester.model.path_of(length)
        answers.measure_questions(record, corpus, kind, distance, nats, right)
        yield record
        is_text = kind == BYTE
        if is_text.any():
            of_text = new_record(tester, about, "fixed_targets", length, windows)
            of_text.attention = record.attention
            of_text.targets = answers.digest(tokens[is_text])  # equal at every length
            text_nats = nats[is_text]
            text_documents = np.repeat(documents, is_text.sum(axis=1))  # of each target
            _, blocks = np.unique(text_documents, return_inverse=True)
            counts = np.bincount(blocks)
            of_text.documents = len(counts)
            answers.fill_loss(of_text, np.bincount(blocks, text_nats), counts)
            fill_bytes(of_text, text_nats.sum(), len(text_nats))  # a target of this text is a byte
            yield of_text


def answer_records(tester: Tester, about: Result, lengths: Sequence[int]) -> Iterator[Record]:
    """The records of a corpus with answers: of every size, or of the trained and the asked ones."""
    meta = tester.corpus.meta["rows"]
    for size, count, width in tested_sizes(tester.corpus, lengths):
        record = new_record(tester, about, meta["protocol"], size, count)
        record.trained_size = meta["trained"]
        try:
            tester.model.pos.check_length(width - 1)
            answers.measure(tester, record)
            record.attention = tester.model.path_of(width - 1)
        except UserError as error:
            record.reason = str(error)
        yield record


# ---- a loss for tuning


def tuning_loss(tester: Tester, length: int, windows: int) -> float:
    """Mean nats at a length on the `tuning_places`; the model is in eval mode."""
    places = tuning_places(tester.corpus, length, windows)
    return float(tester.nats_by_place(places, length).mean())


def unread_loss(tester: Tester, length: int, seed: int, rows_read: int) -> float:
    """The mean loss of the answers in training texts that a run has not read, plus that of the text
    around them, if there is any. For the texts see `data.rows.unread`.
    """
    inputs, targets = unread(tester.corpus, seed, rows_read, length)  # (texts, T) each
    tokens = np.pad(inputs, ((0, 0), (0, 1)))  # the last one is not read
    nats, _ = tester.answers(tokens, targets)
    nats = nats[:, 1:]
    if "questions" not in tester.corpus.meta:
        return float(nats[targets >= 0].mean())
    text = nats[(targets >= 0) & (targets < BYTES)]  # there is none around questions in noise
    return float(text.sum() / max(1, text.size) + nats[targets >= BYTES].mean())


def tuning_places(corpus: data.Corpus, length: int, windows: int) -> Places:
    """Up to 64 places for tuning; UserError if there are fewer than 8.

    They are the first places after those of a test, with `windows` windows of this length, that
    share no target with it, nor with nonoverlapping at up to 4,096.
    """
    places = find_places(corpus, windows)
    is_tested = np.zeros(places.tokens, dtype=bool)
    for protocol in of_text():
        is_tested[targets_in(protocol.windows(places, length))] = True
    ends = find_places(corpus, MAX_PLACES).ends[windows:]
    targets = ends[:, None] + np.arange(1 - places.scored, 1)  # (places, scored)
    ends = ends[~is_tested[targets].any(axis=1)][:MAX_WINDOWS]
    if len(np.unique(ends)) < 8:
        raise UserError(f"{corpus.name} has too little validation text to choose by: add text")
    return replace(places, ends=ends)


# ---- runs


def evaluate_run(
    run: Run,
    extensions: list[str | None],
    settings: MeasureSettings,
    names: Sequence[str] = (),
    only_missing: bool = False,
) -> Result:
    """Test a run under each of the extensions, None for its own, and keep the records.

    With `only_missing`, an extension is skipped if everything asked for is already measured.
    `names` are those of protocols of text, by default all. Returns the last result, with its new
    records only.
    """
    corpus = run_corpus(run, settings.dataset)
    about = describe_run(run)
    tester = Tester(run.model, corpus, run.compute, first_token=run.first_token)
    lengths = settings.eval_lengths or run.settings.eval_lengths
    lock_folder(run.folder)
    measured = []
    if (run.folder / "extrapolation.json").exists():  # refused before the test if damaged
        measured = results.load_result(run.folder).records
    result = about
    for extension in extensions:
        if extension is None:
            run.model.pos.extend(run.model.config.extend, run.folder)  # with the run's own files
        else:
            run.model.pos.extend(extension)  # with files as typed
        print(f"{run.folder}: {run.model.pos.describe()}, on {run.compute.reason}")
        if only_missing:
            windows = settings.eval_windows
            before = [
                replace(x, targets="", attention="") for x in measured if x.windows == windows
            ]
            tested = tested_lengths(about.block_size, lengths)
            if all(new_record(tester, about, names[0], n, windows) in before for n in tested):
                continue
        result = extrapolation(tester, about, lengths, settings.eval_windows, names)
        in_file = results.update_result(run.folder, result)
        measured = in_file.records
        plot_run(run.folder, in_file)
    return result


@torch.no_grad()
def diagnose_run(run: Run, settings: EvaluateSettings) -> None:
    """Write a diagnosis of a run's loss into its folder: see runs/diagnose.py."""
    model = run.model
    corpus = run_corpus(run, settings.dataset)
    if not corpus.is_text:
        raise UserError(f"{corpus.name} has answers, and only text can be diagnosed")
    length = run.settings.block_size
    if settings.extend is not None:
        model.pos.extend(settings.extend)
    places = find_places(corpus, settings.eval_windows)
    fixed_targets(places, length)  # UserError if the text is too short
    # the longest that corpus and scheme allow
    longest = min(places.max_length, model.pos.limit or places.max_length)
    asked = settings.eval_lengths or (2 * length, 4 * length, 8 * length)
    lengths = [n for n in tested_lengths(length, asked) if length <= n <= longest]
    offsets = places.ends[: diagnose.TEXTS, None] + np.arange(-lengths[-1], 0)
    tester = Tester(model, corpus, run.compute, first_token=run.first_token)
    texts = tester.tokens_at(offsets)

    findings = [
        diagnose.attention_of(model, texts, length),
        diagnose.far_shuffled(partial(tester.nats_by_place, places), lengths),
    ]
    if lengths[-1] >= 2 * length:  # at least a window to write
        findings.append(diagnose.continuations(model, texts, length))
    diagnose.report(findings, run.folder, describe_run(run), corpus.name)


# ---- extensions


def fitting_extensions(scheme: Scheme) -> list[str]:
    """All extensions that fit a scheme, with their defaults."""
    fitting = []
    for text in [f"window(size={scheme.shape.first_length})", *scheme.catalogue.extensions]:
        if text in ("temperature", "dynamic_yarn"):  # the first is 1 by default, the second is yarn
            continue
        with suppress(UserError):  # it does not fit, or needs an option
            scheme.extend(text)
            fitting.append(scheme.extend_text)
    return fitting


def check_seeds(runs: list[Run]) -> None:
    """Raise UserError unless the runs differ in their seeds and in nothing else."""
    first = setting_values(runs[0].settings, *RESULT)
    for run in runs:
        for name, value in setting_values(run.settings, *RESULT).items():
            if name not in ("seed", "init_from") and value != first[name]:
                raise UserError(
                    f"{run.folder} is not a seed of {runs[0].folder}: its {name} is {value!r}; "
                    "extensions are compared on the seeds of one model"
                )


def evaluate_extensions(runs: list[Run], texts: list[str], settings: EvaluateSettings) -> None:
    """Test the runs, seeds of one model, with each extension; print and write table and figure.

    Without any texts, the extensions are all that fit.
    """
    first = runs[0]
    check_seeds(runs)
    corpus = run_corpus(first, settings.dataset)
    if not corpus.is_text:
        raise UserError(
            f"{corpus.name} has answers, and only text is tested here: "
            f"python evaluate.py {first.folder} --extend=NAME tests one extension"
        )
    lengths = settings.eval_lengths or first.settings.eval_lengths
    lengths = tested_lengths(first.settings.block_size, lengths)
    settings = replace(settings, dataset=corpus.name, eval_lengths=tuple(lengths))
    scheme = copy.deepcopy(first.model.pos)
    for text in texts:  # refused before the first test
        scheme.extend(text)
    # first as it was trained, then without; a gain compares the same targets
    extensions = [None, "", *(texts or fitting_extensions(scheme))]
    for run in runs:
        evaluate_run(run, extensions, settings, ("fixed_targets",), only_missing=True)

    frame = results.load_rows([run.folder for run in runs])
    # of this test alone: there may be others on more windows
    asked = "protocol == 'fixed_targets' and windows == @settings.eval_windows"
    frame = frame.query(f"{asked} and length in @lengths")
    frame = results.select(frame, corpus.name, extend="all")
    table = results.extension_table(frame)
    # draw the model as it is, and the seven with the lowest loss at the longest N
    best = frame[frame.length == max(lengths)].groupby("label").nats.mean().nsmallest(7)
    drawn = frame.label.isin(best.index) | (frame.extend == frame.trained_extend)
    figure = Path(settings.out or first.folder / "extend.png")
    plot_rows(frame[drawn], figure)
    table_file = figure.with_suffix(".txt")
    table_file.write_text(f"{table}\n", encoding="utf-8")
    print(f"{table}\nin {table_file} and {figure}")
    log_comparison(settings, frame, figure.parent)


# ---- the program


def is_model(word: str) -> bool:
    """Whether an argument is a run folder or a Hugging Face model, rather than an extension."""
    is_path = os.path.exists(word) or (os.sep in word and "(" not in word)
    return word not in Catalogue().extensions and (is_path or is_huggingface(word))


def main() -> None:
    """Test runs and print their table; draw a figure of several, or if --out names one."""
    settings, words = configure(EvaluateSettings, sys.argv[1:], __doc__)
    of_text(settings.protocols)  # UserError for a name that is none
    device.set_up_cpu()
    tested = {}
    extensions = [word for word in words if not is_model(word)]
    names = named_folders([word for word in words if is_model(word)])
    # lines on the progress go elsewhere where the table is to be read by a program
    progress = sys.stdout if settings.format == "text" else sys.stderr
    advice = "lower eval_lengths, or leave the longest out"
    with redirect_stdout(progress), device.memory_advice(advice):
        if extensions or settings.extend == "all":
            runs = [open_model(name, settings, settings.first_token) for name in names]
            return evaluate_extensions(runs, extensions, settings)
        for folder in names:
            run = open_model(folder, settings, settings.first_token)
            if settings.diagnose:
                diagnose_run(run, settings)
            else:
                tested[str(run.folder)] = evaluate_run(
                    run, [settings.extend], settings, settings.protocols
                )
    if settings.diagnose:
        return
    rows = results.rows_of(tested)
    if rows.dataset.nunique() > 1:
        raise UserError(
            "the runs were tested on different corpora; the results are saved. To compare them, "
            "test all on one: --dataset=NAME"
        )
    rows = results.select(rows, rows.dataset.iloc[0], extend="all")
    print(results.tables(rows, settings.format))
    if len(tested) > 1 or settings.out:
        path = Path(settings.out or "out/extrapolation.png")
        if plot_rows(rows, path) and settings.format == "text":
            print(f"drawn in {path}")


if __name__ == "__main__":
    run_program(main)
