"""Test trained runs on texts longer than those they were trained on.

    python evaluate.py out/RUN [out/RUN ...] [--name=value ...]

    python evaluate.py out/rope-stdlib-L128-s1337 --extend='yarn(factor=8)'
    python evaluate.py out/A out/B --dataset=NAME --out=compared.pdf
    python evaluate.py out/A out/B --eval_windows=1024      # for published numbers
    python evaluate.py out/RUN --diagnose                   # what it reads: runs/diagnose.py
    python evaluate.py HuggingFaceTB/SmolLM-135M --dataset=mine   # a Hugging Face folder or name

The losses are written to each run's extrapolation.json and extrapolation.png (those of a Hugging
Face model to out/tests/), and a table is printed. Several runs are also drawn in one figure, --out
or out/extrapolation.png.

L is the training length and N a test length. Which targets are scored depends only on the
validation split, not on L or on the lengths asked for. So every scheme is tested on the same
targets, and every comparison is paired, block by block. The protocols, with what is scored by each,
are those of runs/protocols.py.

Nats per token are the mean over all scored targets. Bits per byte are the nats of those that stand
for text over the UTF-8 bytes of that text. End tokens and others without text are left out of both:
a row says how many, `without_bytes`. A space that a tokenizer puts before a document is no byte.
"""

if __name__ == "__main__":  # --help answers before torch is imported
    from configurable import EvaluateSettings, answer_help

    answer_help(EvaluateSettings, __doc__)

import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

import data
from configurable import EvaluateSettings, MeasureSettings, UserError, configure, run_program
from data.rows import TEXT, targets_of, tested_chunks, tested_sizes, unread
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
from runs.protocols import (
    MAX_WINDOWS,
    Places,
    Protocol,
    find_places,
    fixed_targets,
    of_text,
    targets_in,
)
from runs.results import describe_run, tested_lengths
from runs.tester import Tester

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


def extrapolation(
    tester: Tester,
    run_info: dict,
    lengths: Sequence[int],
    windows: int,
    names: Sequence[str] = (),
) -> dict:
    """Test a model by every protocol at every length; returns the content of extrapolation.json.

    `run_info` is from `describe_run`, `lengths` and `windows` are as in the settings, `names` are
    those of protocols of text, by default all. A line is printed for each row. The model is put
    into eval mode.
    """
    corpus = tester.corpus
    started = time.perf_counter()
    tester.model.eval()
    if "rows" in corpus.meta:
        measured = answer_rows(tester, run_info, lengths)
    elif "questions" in corpus.meta:
        measured = question_rows(tester, run_info, lengths, windows)
    else:
        measured = text_rows(tester, run_info, lengths, windows, of_text(names))
    rows = []
    for row in measured:
        text = row.get("reason") or f"{row['nats']:.4f} nats per {corpus.unit}"
        print(f"{row['protocol']} at {row['length']}: {text}")
        rows.append(row)
    # rows of text: the standard error of the paired difference from the same protocol's row at L
    at_L = {row["protocol"]: row for row in rows if row["length"] == run_info["train_length"]}
    for row in rows:
        if "stderr_vs_L" in row:
            difference = results.paired(row, at_L[row["protocol"]])
            if difference:
                row["stderr_vs_L"] = difference[1]
    seconds = round(time.perf_counter() - started, 1)
    return run_info | {"unit": corpus.unit, "rows": rows, "seconds": seconds}


def begin_row(tester: Tester, run_info: dict, protocol: str, length: int, windows: int) -> dict:
    """The fields of a row that say what was asked; `run_info` is from `describe_run`."""
    scheme = tester.model.pos
    row = {
        "protocol": protocol,
        "length": length,
        "extend": scheme.extend_text,
        "factor": scheme.factor(length),
        # a changed extension is another question
        "files_sha256": scheme_digests(scheme) if scheme.extend_text else None,
        "dataset": tester.corpus.name,
        "split_sha256": tester.corpus.split_sha256("val"),
        "step": run_info["step"],
        "tokens_trained": run_info["tokens_trained"],
        "checkpoint": run_info["checkpoint"],
        "dtype": tester.compute.dtype_name,
        "windows": windows,
    }
    if tester.first_token is not None:
        row["first_token"] = tester.first_token
    return row


def text_rows(
    tester: Tester, run_info: dict, lengths: Sequence[int], windows: int, asked: list[Protocol]
) -> Iterator[dict]:
    """The rows of a corpus of text: of each protocol at each length, then those of protocols that
    choose among the targets of fixed_targets.
    """
    places = find_places(tester.corpus, windows)
    measured = {}  # by each protocol: its rows, each with the nats of its targets, or None
    for protocol in asked:
        of_protocol = measured[protocol.name] = []
        for length in tested_lengths(run_info["train_length"], lengths):
            row, nats = text_row(tester, run_info, places, protocol, length)
            of_protocol.append((row, nats))
            yield row
    fixed = measured.get("fixed_targets", [])
    finite = [row for row, _ in fixed if row["nats"] is not None]
    if not finite:
        return
    if tester.compute.dtype is not None:
        # the first windows of the longest test again, in float32
        row = finite[-1]
        few = replace(places, ends=places.ends[:CHECK_WINDOWS])
        in_float32 = replace(tester, compute=replace(tester.compute, dtype=None))
        nats = in_float32.nats_by_place(few, row["length"]).mean()
        difference = np.mean(row["block_nats"][:CHECK_WINDOWS]) - nats
        check = (
            f"fixed_targets at {row['length']}, {CHECK_WINDOWS} windows: {row['dtype']} minus "
            f"float32 is {difference:+.5f} nats"
        )
        row["note"] = "; ".join(filter(None, [row["note"], check]))
    for protocol in protocols.PROTOCOLS:
        if protocol.chosen:
            yield from chosen_rows(tester, places, protocol, fixed)


def text_row(
    tester: Tester, run_info: dict, places: Places, protocol: Protocol, length: int
) -> tuple[dict, np.ndarray | None]:
    """A row of a corpus of text, and the nats of its targets, (blocks, targets).

    If it cannot be measured, the nats are None and the row has a reason.
    """
    corpus = tester.corpus
    scheme = tester.model.pos
    row = begin_row(tester, run_info, protocol.name, length, len(places.ends))
    try:
        windows = protocol.windows(places, length)
        offsets = targets_in(windows)
        row["windows"] = len(offsets)
        row["targets"] = answers.digest(np.sort(offsets, axis=None))
        scheme.check_length(length)
    except UserError as error:
        return row | {"nats": None, "reason": str(error)}, None

    window_size = None
    if protocol.limits_keys and length > run_info["train_length"]:
        window_size = run_info["train_length"]
    started = time.perf_counter()
    nats = tester.nats(windows, window_size)
    inputs = len(nats) * sum(window.length for window in windows)
    row["tokens_per_s"] = round(inputs / (time.perf_counter() - started), 1)
    row["attention"] = tester.model.attention_path

    notes = []
    if places.across_documents and protocol.in_places:
        notes.append("windows run across documents, too few of which are long")
    if len(np.unique(offsets)) < offsets.size:
        notes.append("neighbouring blocks share targets, so standard errors are too small")
    if any(piece.found_on == row["split_sha256"] for piece in scheme.extensions.values()):
        notes.append(f"the file of {scheme.extend_text} was found on this text")
    if tester.first_token is not None:
        notes.append(f"every window begins with the tokenizer's first token, {tester.first_token}")
    row["note"] = "; ".join(notes)

    return row | target_fields(corpus, offsets, nats, np.ones(nats.shape, dtype=bool)), nats


def chosen_rows(
    tester: Tester, places: Places, protocol: Protocol, fixed: list[tuple]
) -> Iterator[dict]:
    """Rows of the targets that a protocol chooses, one for each row of `fixed`, unless they are too
    few. `fixed` has the rows of fixed_targets, each with the nats of its targets, (places, scored),
    or None.
    """
    corpus = tester.corpus
    counted = protocol.chosen(corpus, places)  # (places, scored)
    n = counted.sum()
    if n < MIN_CHOSEN:
        print(f"{protocol.name}: not measured, {n} qualify, {MIN_CHOSEN} are needed")
        return
    offsets = targets_in(fixed_targets(places, places.max_length))  # the same at every length
    digest = answers.digest(np.sort(offsets[counted]))
    for row, nats in fixed:
        chosen = row | {"protocol": protocol.name, "targets": digest}
        if row["nats"] is not None:
            chosen |= target_fields(corpus, offsets, nats, counted)
        yield chosen


def target_fields(
    corpus: data.Corpus, offsets: np.ndarray, nats: np.ndarray, counted: np.ndarray
) -> dict:
    """`mean_fields` of the targets where `counted` is True; all arrays are (blocks, targets)."""
    sizes = corpus.text_bytes(offsets)
    in_text = counted & (sizes > 0)
    fields = mean_fields(
        nats.sum(axis=1, where=counted),
        counted.sum(axis=1),
        nats.sum(where=in_text),
        sizes.sum(where=in_text),
    )
    return fields | {"without_bytes": int(np.sum(counted & (sizes == 0)))}


def mean_fields(sums: np.ndarray, counts: np.ndarray, text_nats: float, n_bytes: int) -> dict:
    """The mean loss and its errors: see `answers.loss_fields`.

    Bits per byte are those of the targets that stand for text: `text_nats` in `n_bytes`. End tokens
    are left out of both.

    If the loss is not finite, it is None and there is a reason.
    """
    lost = np.sum(~np.isfinite(sums))
    if lost:  # what the test found, and no error
        reason = f"diverged: the loss is not finite in {lost} of {len(sums)} blocks"
        return {"nats": None, "diverged": True, "reason": reason}
    fields = answers.loss_fields(sums, counts)
    mean = fields["nats"]
    return fields | {
        "stderr_vs_L": None,
        "perplexity": math.exp(mean) if mean < 700 else None,
        "bits_per_byte": float(text_nats / math.log(2) / n_bytes) if n_bytes else None,
    }


def question_rows(
    tester: Tester, run_info: dict, lengths: Sequence[int], windows: int
) -> Iterator[dict]:
    """The rows of a corpus with questions: recall, and fixed_targets of the text around them.

    One pass at each length measures both. A block of the text is a document.
    """
    corpus = tester.corpus
    train_length = run_info["train_length"]
    for length in tested_lengths(train_length, lengths):
        row = begin_row(tester, run_info, "recall", length, windows) | {"trained": train_length}
        try:
            tester.model.pos.check_length(length)
            # (chunks, length + 1) each, and (chunks,); for `scored` see data.rows.chunks
            tokens, scored, documents = tested_chunks(corpus, length, windows)
        except UserError as error:
            yield row | {"nats": None, "reason": str(error)}
            continue
        nats, right = tester.answers(tokens, targets_of(corpus, tokens, scored))
        row["attention"] = tester.model.attention_path
        yield row | answers.measure_questions(corpus, scored, nats, right)
        is_text = scored == TEXT
        if is_text.any():
            text_row = begin_row(tester, run_info, "fixed_targets", length, windows)
            text_row["attention"] = row["attention"]
            text_row["targets"] = answers.digest(tokens[is_text])  # equal at every length
            losses = nats[is_text]
            loss_documents = np.repeat(documents, is_text.sum(axis=1))  # the document of each loss
            _, blocks = np.unique(loss_documents, return_inverse=True)
            sums = np.bincount(blocks, losses)
            counts = np.bincount(blocks)
            text_row["documents"] = len(counts)
            # a target of this text is one byte
            yield text_row | mean_fields(sums, counts, losses.sum(), len(losses))


def answer_rows(tester: Tester, run_info: dict, lengths: Sequence[int]) -> Iterator[dict]:
    """The rows of a corpus with answers: of every size, or of the trained and the asked ones."""
    meta = tester.corpus.meta["rows"]
    for size, count, width in tested_sizes(tester.corpus, lengths):
        row = begin_row(tester, run_info, meta["protocol"], size, count)
        row["trained"] = meta["trained"]
        try:
            tester.model.pos.check_length(width - 1)
            row |= answers.measure(tester, size)
            row["attention"] = tester.model.attention_path
        except UserError as error:
            row |= {"nats": None, "reason": str(error)}
        yield row


# ---- a loss for tuning


def tuning_loss(tester: Tester, length: int, windows: int) -> float:
    """Mean nats at a length on the `tuning_places`; the model is in eval mode."""
    places = tuning_places(tester.corpus, length, windows)
    return float(tester.nats_by_place(places, length).mean())


def unread_loss(tester: Tester, length: int, seed: int, rows_read: int) -> float:
    """The mean loss of the answers in training rows that a run has not read, plus that of the text
    around them, if there is any. For the rows see `data.rows.unread`.
    """
    inputs, targets = unread(tester.corpus, seed, rows_read, length)  # (rows, T) each
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
) -> dict:
    """Test a run under each of the extensions, None for its own, and keep the rows in its folder.

    With `only_missing`, an extension is skipped if everything asked for is already measured.
    `names` are those of protocols of text, by default all. Returns the last result, its new rows
    only.
    """
    corpus = run_corpus(run, settings.dataset)
    run_info = describe_run(run)
    tester = Tester(run.model, corpus, run.compute, first_token=run.first_token)
    lengths = settings.eval_lengths or run.settings.eval_lengths
    lock_folder(run.folder)
    measured = []
    if (run.folder / "extrapolation.json").exists():  # refused before the test if damaged
        measured = results.load_result(run.folder)["rows"]
    result = run_info
    for extension in extensions:
        if extension is None:
            run.model.pos.extend(run.model.config.extend, run.folder)  # with the run's own files
        else:
            run.model.pos.extend(extension)  # with files as typed
        print(f"{run.folder}: {run.model.pos.describe()}, on {run.compute.reason}")
        if only_missing:
            is_measured = True
            for n in tested_lengths(run_info["train_length"], lengths):
                asked = begin_row(tester, run_info, names[0], n, settings.eval_windows)
                if not any(asked.items() <= row.items() for row in measured):
                    is_measured = False
            if is_measured:
                continue
        result = extrapolation(tester, run_info, lengths, settings.eval_windows, names)
        in_file = results.update_result(run.folder, result)
        measured = in_file["rows"]
        plot_run(run.folder, in_file)
    return result


@torch.no_grad()
def diagnose_run(run: Run, settings: EvaluateSettings) -> None:
    """Write a diagnosis of a run's loss into its folder: see runs/diagnose.py."""
    model = run.model
    corpus = run_corpus(run, settings.dataset)
    if not corpus.is_text:
        raise UserError(f"{corpus.name} has rows with answers, and only text can be diagnosed")
    length = run.settings.block_size
    if settings.extend is not None:
        model.pos.extend(settings.extend)
    run_info = describe_run(run) | {"dataset": corpus.name}
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
    diagnose.report(findings, run.folder, run_info)


def main() -> None:
    """Test runs and print their table; draw a figure of several, or if --out names one."""
    settings, words = configure(EvaluateSettings, sys.argv[1:])
    of_text(settings.protocols)  # UserError for a name that is none
    device.set_up_cpu()
    tested = {}
    # lines on the progress go elsewhere where the table is to be read by a program
    progress = sys.stdout if settings.format == "text" else sys.stderr
    advice = "lower eval_lengths, or leave the longest out"
    with redirect_stdout(progress), device.memory_advice(advice):
        for folder in named_folders(words):
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
