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
targets, and every comparison is paired, block by block. A block is a place of fixed_targets or
windowed, or a chunk of the text in nonoverlapping. key_targets are those of fixed_targets that a
predictor by counts and longest match finds with a long context but not with a short one
(see data/context.py).

Nats per token are the mean over all scored targets. Bits per byte are the nats of those that stand
for text over the UTF-8 bytes of that text. End tokens and others without text are left out of both:
a row says how many, `without_bytes`. A space that a tokenizer puts before a document is no byte.
"""

import copy
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import data
from configurable import (
    PROTOCOLS,
    RESULT,
    EvaluateSettings,
    UserError,
    configure,
    run_program,
    setting_values,
)
from data import context
from data.rows import BYTE, targets_of, tested_chunks, tested_sizes, unread
from runs import answers, device, diagnose, results
from runs.answers import BATCH_TOKENS
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
from runs.processes import ALONE, Processes
from runs.results import describe_run, tested_lengths
from scheme import Catalogue, Scheme

MAX_WINDOWS = 64  # places of fixed_targets by default, and the most windows of one forward pass
NUM_CHUNKS = 16  # of the text in nonoverlapping
CHUNK_SIZE = 4096  # inputs of a chunk, at most
MAX_SCORED = 32  # targets at a place of fixed_targets
MAX_LENGTH = 65536  # inputs, a power of two
MAX_PLACES = 65536  # from which those for tuning are taken
LONG_DOCUMENTS = 4096  # inputs; if documents allow only shorter windows, these run across documents
MIN_KEY_TARGETS = 100  # fewer key targets than this are not measured
BYTES = 256  # in a corpus with questions, tokens below this are text
CHECK_WINDOWS = 8  # windows that are also tested in float32


# ---- where a text is tested


@dataclass(frozen=True)
class Places:
    """Where a validation split is tested: the same for every scheme and every length.

    `candidates` are the targets that have `max_length` inputs before them in their document, or in
    the whole split if the places are `across_documents`.
    """

    corpus: str  # its name
    max_length: int  # the longest test length of fixed_targets, in inputs
    candidates: int
    ends: np.ndarray  # (windows,) offset of each place's last target, in van der Corput's order
    scored: int  # targets at a place
    tokens: int  # in the split
    across_documents: bool  # whether the windows run across the starts of documents


def find_places(corpus: data.Corpus, windows: int = MAX_WINDOWS) -> Places:
    """The first `windows` places of a corpus, in van der Corput's order.

    They depend on its validation split alone. They are chosen among the targets that have
    `max_length` inputs before them, so that the first 2, 4, 8 ... are spread evenly.
    """
    n_tokens = len(corpus.val)
    starts = corpus.val_starts
    inputs = np.arange(n_tokens)  # how many stand before each token, (n_tokens,)
    in_document = inputs - np.repeat(starts, np.diff(starts, append=n_tokens))
    across = longest_length(in_document) < LONG_DOCUMENTS and len(starts) > 1
    if not across:
        inputs = in_document
    max_length = longest_length(inputs)
    candidates = np.flatnonzero(inputs >= max_length)  # offsets
    # van der Corput: 0, 1/2, 1/4, 3/4, 1/8 ... of all candidates
    shares = np.zeros(1)
    while len(shares) < windows:
        shares = np.append(shares, shares + 0.5 / len(shares))
    ends = candidates[(shares * len(candidates)).astype(np.int64)]
    # so few that the first of several short windows has its inputs, too
    scored = max(1, min(MAX_SCORED, max_length // 4))
    return Places(corpus.name, max_length, len(candidates), ends, scored, n_tokens, across)


def floor_power_of_two(number: int) -> int:
    """The largest power of two that is not above a number, 0 for 0."""
    return (1 << number.bit_length()) >> 1


def longest_length(inputs: np.ndarray) -> int:
    """The largest power of two such that at least half of the tokens have that many inputs before
    them; `inputs` says how many each token has.
    """
    median = np.quantile(inputs, 0.5, method="higher")  # at least half have as many
    return floor_power_of_two(min(MAX_LENGTH, int(median)))


# ---- protocols


@dataclass(frozen=True)
class Window:
    """What a test reads in each of its blocks: `length` inputs, the last `scored` targets scored.

    A block may have several windows, whose scored targets follow one another.
    """

    ends: np.ndarray  # (blocks,) offset of the last target in each block
    length: int
    scored: int


def fixed_targets(places: Places, length: int) -> list[Window]:
    """The windows of `length` inputs that score the targets of the places, one block for each.

    A place has several windows if they are short: each scores its last length / 2 targets.
    UserError if the text is too short. (In a corpus with questions, `question_rows` scores the text
    around them.)
    """
    if length > places.max_length:
        raise UserError(
            f"the validation text of {places.corpus} allows tests of at most {places.max_length} "
            f"tokens, not {length}: lower eval_lengths, or add longer documents"
        )
    if places.candidates < len(places.ends):
        raise UserError(
            f"the validation text of {places.corpus} has only {places.candidates} places for "
            f"{len(places.ends)} windows: lower eval_windows, or add text"
        )
    per_window = min(places.scored, max(1, length // 2))  # targets of a window
    windows = []
    # `after` targets of the place come after this window; the first window may score fewer
    for after in reversed(range(0, places.scored, per_window)):
        scored = min(per_window, places.scored - after)
        windows.append(Window(places.ends - after, length, scored))
    return windows


def nonoverlapping(places: Places, length: int) -> list[Window]:
    """The chunks, cut every `length` inputs; the last window may be shorter. All are scored.

    A chunk is longer than CHUNK_SIZE if `length` is. UserError if the text is too short.
    """
    size = min(CHUNK_SIZE, floor_power_of_two((places.tokens - 1) // NUM_CHUNKS))
    size = max(size, length)
    starts = data.evenly(places.tokens - size, NUM_CHUNKS)  # of the chunks
    if len(starts) < NUM_CHUNKS:
        raise UserError(
            f"the {places.tokens} validation tokens of {places.corpus} are too few for "
            f"{NUM_CHUNKS} chunks of {length}"
        )
    windows = []
    for first in range(0, size, length):
        end = min(first + length, size)
        windows.append(Window(starts + end, end - first, end - first))
    return windows


# Each protocol: a function that gives its windows at a length. To add one, write it here and into
# configurable.Protocol. A column in the table of a run is named in results.COLUMNS, and
# results.select may have to know whether its targets are the same at every length.
PROTOCOL_WINDOWS = {
    "fixed_targets": fixed_targets,
    "windowed": fixed_targets,  # with the keys limited to i - j < L
    "nonoverlapping": nonoverlapping,
}


def targets_in(windows: list[Window]) -> np.ndarray:
    """The offsets of all scored targets in the split, (blocks, targets)."""
    parts = [window.ends[:, None] + np.arange(1 - window.scored, 1) for window in windows]
    return np.concatenate(parts, axis=1)


def check_lengths(corpus: data.Corpus, windows: int, lengths: Sequence[int]) -> None:
    """Raise UserError, before training, if a text is too short for a test at these lengths."""
    if corpus.is_text:
        places = find_places(corpus, windows)
        for length in lengths:
            fixed_targets(places, length)


# ---- losses


@dataclass(frozen=True)
class Tester:
    """A model, on the device of `compute`, and the corpus on whose validation split it is tested.

    Several processes share the work, and each gets the whole result.
    """

    model: Any
    corpus: data.Corpus
    compute: device.Compute = device.CPU
    processes: Processes = ALONE
    protocols: tuple[str, ...] = PROTOCOLS
    first_token: int | None = None  # in the place of the first input of every window: BOS

    def tokens_at(self, offsets: np.ndarray) -> torch.Tensor:
        """The tokens of windows at these offsets, (windows, T), on the model's device."""
        return self.begin(self.corpus.val[offsets])

    def begin(self, tokens: np.ndarray) -> torch.Tensor:
        """Windows of tokens, (windows, T), as the model reads them, int64 on its device."""
        tokens = tokens.astype(np.int64)
        if self.first_token is not None:
            tokens[:, 0] = self.first_token
        return torch.from_numpy(tokens).to(self.compute.device)

    @torch.no_grad()
    def losses(
        self, windows: list[Window], window_size: int | None = None, in_place: int | None = None
    ) -> np.ndarray:
        """The nats of all scored targets, (blocks, targets), float64. The model is in eval mode.

        With a `window_size`, a query sees only keys with i - j < window_size. With `in_place`, at
        least that many tokens before each target stay in place, and earlier inputs are shuffled. A
        batch has at most 16k inputs, and each of n processes takes every n-th batch. The first 64
        blocks are batched the same way however many follow.
        """
        processes = self.processes
        parts = []  # the nats of each window, (blocks, scored)
        for window in windows:
            nats = np.zeros((len(window.ends), window.scored))
            size = min(MAX_WINDOWS, floor_power_of_two(max(1, BATCH_TOKENS // window.length)))
            for first in range(size * processes.rank, len(nats), size * processes.size):
                batch = slice(first, first + size)  # of B blocks; offsets (B, length + 1)
                offsets = window.ends[batch, None] + np.arange(-window.length, 1)
                if in_place is not None:
                    far = offsets[:, : max(0, window.length + 1 - window.scored - in_place)]
                    np.random.default_rng(diagnose.SEED).permuted(far, axis=1, out=far)
                tokens = self.tokens_at(offsets)
                targets = tokens[:, -window.scored :]
                with device.autocast(self.compute):
                    losses = self.model.losses(tokens[:, :-1], targets, window=window_size)
                nats[batch] = losses.cpu().double().numpy()
            parts.append(nats)
        nats = np.concatenate(parts, axis=1)
        processes.sum(torch.from_numpy(nats))  # zero where another process has measured
        return nats


def losses_at(
    tester: Tester, places: Places, length: int, in_place: int | None = None
) -> np.ndarray:
    """Mean nats of fixed_targets at each place, (places,).

    With `in_place`, at least that many tokens before each target stay there; the rest are shuffled.
    """
    return tester.losses(fixed_targets(places, length), in_place=in_place).mean(axis=1)


# ---- a test


def extrapolation(tester: Tester, run_info: dict, settings: Any) -> dict:
    """Test a model by every protocol at every length; returns the content of extrapolation.json.

    A line is printed for each row. `run_info` is from `describe_run`. Of `settings`, eval_lengths
    and eval_windows are used. The model is put into eval mode.
    """
    corpus = tester.corpus
    started = time.perf_counter()
    tester.model.eval()
    measure = text_rows
    if "rows" in corpus.meta:
        measure = answer_rows
    elif "questions" in corpus.meta:
        measure = question_rows
    rows = []
    for row in measure(tester, run_info, settings):
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


def text_rows(tester: Tester, run_info: dict, settings: Any) -> Iterator[dict]:
    """The rows of a corpus of text: of each protocol at each length, then those of key targets."""
    places = find_places(tester.corpus, settings.eval_windows)
    fixed = []  # of fixed_targets: each row and the nats of its targets, or None
    for protocol in tester.protocols:
        for length in tested_lengths(run_info["train_length"], settings.eval_lengths):
            row, nats = text_row(tester, run_info, places, protocol, length)
            if protocol == "fixed_targets":
                fixed.append((row, nats))
            yield row
    finite = [row for row, _ in fixed if row["nats"] is not None]
    if not finite:
        return
    if tester.compute.dtype is not None:
        # the first windows of the longest test again, in float32
        row = finite[-1]
        few = replace(places, ends=places.ends[:CHECK_WINDOWS])
        in_float32 = replace(tester, compute=replace(tester.compute, dtype=None))
        nats = losses_at(in_float32, few, row["length"]).mean()
        difference = np.mean(row["block_nats"][:CHECK_WINDOWS]) - nats
        check = (
            f"fixed_targets at {row['length']}, {CHECK_WINDOWS} windows: {row['dtype']} minus "
            f"float32 is {difference:+.5f} nats"
        )
        row["note"] = "; ".join(filter(None, [row["note"], check]))
    yield from key_rows(tester, places, fixed)


def text_row(
    tester: Tester, run_info: dict, places: Places, protocol: str, length: int
) -> tuple[dict, np.ndarray | None]:
    """A row of a corpus of text, and the nats of its targets, (blocks, targets).

    If it cannot be measured, the nats are None and the row has a reason.
    """
    corpus = tester.corpus
    scheme = tester.model.pos
    row = begin_row(tester, run_info, protocol, length, len(places.ends))
    try:
        windows = PROTOCOL_WINDOWS[protocol](places, length)
        offsets = targets_in(windows)
        row["windows"] = len(offsets)
        row["targets"] = answers.digest(np.sort(offsets, axis=None))
        scheme.check_length(length)
    except UserError as error:
        return row | {"nats": None, "reason": str(error)}, None

    window_size = None
    if protocol == "windowed" and length > run_info["train_length"]:
        window_size = run_info["train_length"]
    started = time.perf_counter()
    nats = tester.losses(windows, window_size)
    inputs = len(nats) * sum(window.length for window in windows)
    row["tokens_per_s"] = round(inputs / (time.perf_counter() - started), 1)
    row["attention"] = tester.model.path_of(length, window_size)

    notes = []
    if places.across_documents and protocol != "nonoverlapping":
        notes.append("windows run across documents, too few of which are long")
    if len(np.unique(offsets)) < offsets.size:
        notes.append("neighbouring blocks share targets, so standard errors are too small")
    if any(piece.found_on == row["split_sha256"] for piece in scheme.extensions.values()):
        notes.append(f"the file of {scheme.extend_text} was found on this text")
    if tester.first_token is not None:
        notes.append(f"every window begins with the tokenizer's first token, {tester.first_token}")
    row["note"] = "; ".join(notes)

    return row | target_fields(corpus, offsets, nats, np.ones(nats.shape, dtype=bool)), nats


def key_rows(tester: Tester, places: Places, fixed: list[tuple]) -> Iterator[dict]:
    """Rows of key_targets, one for each row of `fixed`, unless the targets are too few. `fixed` has
    the rows of fixed_targets, each with the nats of its targets, (places, scored), or None.
    """
    corpus = tester.corpus
    # the predictor's nats, (places, scored), with near and with far context; its weights are
    # fitted on as many other places
    others = find_places(corpus, 2 * len(places.ends)).ends[len(places.ends) :]
    lengths = [context.NEAR, places.max_length]
    near, far = context.known_losses(
        corpus, measured=places.ends, fitted=others, scored=places.scored, lengths=lengths
    )
    is_key = context.key_targets(near, far)  # (places, scored)
    if is_key.sum() < MIN_KEY_TARGETS:
        print(f"key_targets: not measured, {is_key.sum()} qualify, {MIN_KEY_TARGETS} are needed")
        return
    offsets = targets_in(fixed_targets(places, places.max_length))  # the same at every length
    digest = answers.digest(np.sort(offsets[is_key]))
    for row, nats in fixed:
        key = row | {"protocol": "key_targets", "targets": digest}
        if row["nats"] is not None:
            key |= target_fields(corpus, offsets, nats, is_key)
        yield key


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


def question_rows(tester: Tester, run_info: dict, settings: Any) -> Iterator[dict]:
    """The rows of a corpus with questions: recall, and fixed_targets of the text around them.

    One pass at each length measures both. A block of the text is a document.
    """
    corpus = tester.corpus
    train_length = run_info["train_length"]
    windows = settings.eval_windows
    for length in tested_lengths(train_length, settings.eval_lengths):
        row = begin_row(tester, run_info, "recall", length, windows) | {"trained": train_length}
        try:
            tester.model.pos.check_length(length)
            # (chunks, length + 1) each, and (chunks,)
            tokens, kind, distance, documents = tested_chunks(corpus, length, windows)
        except UserError as error:
            yield row | {"nats": None, "reason": str(error)}
            continue
        nats, right = answers.read(tester, tokens, targets_of(corpus, tokens, kind))
        row["attention"] = tester.model.path_of(length)
        yield row | answers.measure_questions(corpus, kind, distance, nats, right)
        is_text = kind == BYTE
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


def answer_rows(tester: Tester, run_info: dict, settings: Any) -> Iterator[dict]:
    """The rows of a corpus with answers: of every size, or of the trained and the asked ones."""
    meta = tester.corpus.meta["rows"]
    for size, count, width in tested_sizes(tester.corpus, settings.eval_lengths):
        row = begin_row(tester, run_info, meta["protocol"], size, count)
        row["trained"] = meta["trained"]
        try:
            tester.model.pos.check_length(width - 1)
            row |= answers.measure(tester, size)
            row["attention"] = tester.model.path_of(width - 1)
        except UserError as error:
            row |= {"nats": None, "reason": str(error)}
        yield row


# ---- a loss for tuning


def tuning_loss(tester: Tester, length: int, windows: int) -> float:
    """Mean nats at a length on the `tuning_places`; the model is in eval mode."""
    places = tuning_places(tester.corpus, length, windows)
    return float(losses_at(tester, places, length).mean())


def unread_loss(tester: Tester, length: int, seed: int, rows_read: int) -> float:
    """The mean loss of the answers in training rows that a run has not read, plus that of the text
    around them, if there is any. For the rows see `data.rows.unread`.
    """
    inputs, targets = unread(tester.corpus, seed, rows_read, length)  # (rows, T) each
    tokens = np.pad(inputs, ((0, 0), (0, 1)))  # `read` does not read the last one
    nats, _ = answers.read(tester, tokens, targets)
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
    for protocol in PROTOCOL_WINDOWS.values():
        is_tested[targets_in(protocol(places, length))] = True
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
    settings: Any,
    protocols: tuple[str, ...],
    only_missing: bool = False,
) -> dict:
    """Test a run under each of the extensions, None for its own, and keep the rows in its folder.

    With `only_missing`, an extension is skipped if everything asked for is already measured.
    Returns the last result, its new rows only.
    """
    corpus = run_corpus(run, settings.dataset)
    run_info = describe_run(run)
    tester = Tester(
        run.model, corpus, run.compute, protocols=protocols, first_token=run.first_token
    )
    lengths = settings.eval_lengths or run.settings.eval_lengths
    settings = replace(settings, eval_lengths=lengths)
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
                asked = begin_row(tester, run_info, protocols[0], n, settings.eval_windows)
                if not any(asked.items() <= row.items() for row in measured):
                    is_measured = False
            if is_measured:
                continue
        result = extrapolation(tester, run_info, settings)
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
        diagnose.far_shuffled(partial(losses_at, tester, places), lengths),
    ]
    if lengths[-1] >= 2 * length:  # at least a window to write
        findings.append(diagnose.continuations(model, texts, length))
    diagnose.report(findings, run.folder, run_info)


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
