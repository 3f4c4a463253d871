"""Test trained runs on texts longer than those they were trained on.

    python evaluate.py out/RUN [out/RUN ...] [--name=value ...]

    python evaluate.py out/rope-stdlib-L128-s1337 --extend='yarn(factor=8)'
    python evaluate.py out/A out/B --dataset=NAME --out=compared.pdf
    python evaluate.py out/A out/B --eval_windows=1024      # for published numbers
    python evaluate.py out/RUN --diagnose                   # what it reads: runs/diagnose.py
    python evaluate.py SmolLM-135M --dataset=mine           # a Hugging Face folder or name

The losses go into each run's extrapolation.json and extrapolation.png (those of a Hugging Face
model into out/tests/). A table is printed, and several runs are drawn in one figure too.

L is the training length and N a test length. Where a text is tested depends on its validation split
alone: not on L, not on the lengths asked for. So every scheme is tested on the same targets, and
every comparison is paired, block by block. A block is a place of fixed_targets and windowed, and a
piece of the text in nonoverlapping.
"""

if __name__ == "__main__":  # --help answers before torch is imported
    from configurable import EvaluateSettings, answer_help

    answer_help(EvaluateSettings, __doc__)

import hashlib
import math
import os
import sys
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

import data
from configurable import PROTOCOLS, EvaluateSettings, UserError, configure, run_program, sha256
from data import context
from data.rows import rows_of, sizes, unread
from runs import answers, device, diagnose, results
from runs.checkpoint import (
    Run,
    lock_folder,
    named_folders,
    open_model,
    provenance,
    run_corpus,
)
from runs.figures import plot_rows, plot_run
from runs.processes import ALONE, Processes, together
from runs.results import describe_model, standard_error, tested_lengths

WINDOWS = 64
PIECES = 16
PIECE = 4096  # inputs of a piece
MAX_SCORED = 32  # targets at a place of fixed_targets
LARGEST_REACH = 65536  # a power of two, and as many places can be told apart
LONG_DOCUMENTS = 4096  # a smaller reach within documents is no test of long texts
BATCH_TOKENS = 16384  # inputs of one forward pass
CHECK_WINDOWS = 8  # windows that are tested in float32 too


# ---- where a text is tested


@dataclass(frozen=True)
class Places:
    """Where a validation split is tested: the same for every scheme and every length.

    `candidates` are the targets that have `reach` inputs before them in their own document, or in
    the whole split if the places are `across_documents`.
    """

    reach: int  # the longest test length of fixed_targets, in inputs
    candidates: int
    ends: np.ndarray  # (windows,) offset of each place's last target, in van der Corput's order
    scored: int  # targets at a place
    tokens: int  # in the split
    piece: int  # inputs of a piece, unless the test length is longer
    across_documents: bool  # whether the windows run across the starts of documents


@dataclass(frozen=True)
class Windows:
    """Windows of one length in blocks: the inputs tokens[start : start + length] of each start.

    Window w of every block is scored on its last scored[w] targets.
    """

    length: int
    starts: np.ndarray  # (blocks, windows)
    scored: np.ndarray  # (windows,)

    def offsets(self) -> np.ndarray:
        """The offsets of all scored targets in the split, (blocks, targets)."""
        ends = zip(self.starts.T + self.length, self.scored, strict=True)
        return np.hstack([end[:, None] + np.arange(1 - k, 1) for end, k in ends])


def find_places(corpus: data.Corpus, windows: int = WINDOWS) -> Places:
    """The first `windows` places of a corpus, in van der Corput's order.

    They depend on its validation split alone. They are picked from the targets that have `reach`
    inputs before them: the first 2, 4, 8 ... are spread evenly.
    """
    n_tokens = len(corpus.val)
    starts = corpus.val_starts
    reach = longest_reach(np.diff(starts, append=n_tokens))
    across = reach < LONG_DOCUMENTS and len(starts) > 1
    if across:
        starts = np.array([0])
        reach = longest_reach(np.array([n_tokens]))
    counts = np.maximum(np.append(starts[1:], n_tokens) - starts - reach, 0)  # of each document
    last = np.cumsum(counts)
    # van der Corput: the bits of 0, 1, 2 ... mirrored are 0, 1/2, 1/4, 3/4 ... of all candidates
    bits = LARGEST_REACH.bit_length() - 1
    numbers = np.arange(windows)
    mirrored = sum((numbers >> k & 1) << bits - 1 - k for k in range(bits))
    chosen = mirrored * last[-1] >> bits
    document = np.searchsorted(last, chosen, side="right").clip(max=len(starts) - 1)
    ends = (starts + reach + counts - last)[document] + chosen
    scored = max(1, min(MAX_SCORED, reach // 4))  # so that a shorter test looks no further back
    piece = min(PIECE, power_of_two((n_tokens - 1) // PIECES))
    return Places(reach, int(last[-1]), ends, scored, n_tokens, piece, across)


def power_of_two(highest: int) -> int:
    """The largest power of two up to `highest`, 0 if there is none."""
    return 1 << highest.bit_length() - 1 if highest > 0 else 0


def longest_reach(documents: np.ndarray) -> int:
    """The longest reach of a split with documents of these lengths.

    It is the largest power of two such that at least half of the tokens have so many inputs before
    them in their document.
    """
    reach = LARGEST_REACH
    while reach > 1 and 2 * np.maximum(documents - reach, 0).sum() < documents.sum():
        reach //= 2
    return reach


# ---- protocols: the windows of each


def fixed_targets(places: Places, length: int) -> list[Windows]:
    """The windows of `length` inputs that score the targets of the places, one block for each.

    A place has several windows if they are short: each scores its last length / 2 targets.
    """
    each = min(places.scored, max(1, length // 2))
    behind = np.arange(0, places.scored, each)[::-1]  # the targets after those of each window
    scored = np.minimum(each, places.scored - behind)
    return [Windows(length, places.ends[:, None] - behind - length, scored)]


def nonoverlapping(places: Places, length: int) -> list[Windows]:
    """The pieces cut every `length` inputs, the rest shorter; every target is scored."""
    size = max(places.piece, length)
    starts = piece_starts(places, size)[:, None]
    rest = size % length
    plan = [
        Windows(length, starts + np.arange(0, size - rest, length), np.full(size // length, length))
    ]
    if rest:
        plan.append(Windows(rest, starts + size - rest, np.array([rest])))
    return plan


def piece_starts(places: Places, size: int) -> np.ndarray:
    """The offset of the first input of each piece of `size` inputs, (16,)."""
    return data.evenly(places.tokens - size, PIECES)


# Each protocol and its windows. To add one, write it here and into configurable.Protocol.
PLANS = {
    "fixed_targets": fixed_targets,
    "windowed": fixed_targets,  # with the keys limited to i - j < L
    "nonoverlapping": nonoverlapping,
}


def targets_digest(plan: list[Windows]) -> str:
    """SHA-256 of the offsets of all scored targets, ascending, as little-endian int64."""
    offsets = np.sort(np.hstack([windows.offsets() for windows in plan]), axis=None)
    return hashlib.sha256(offsets.astype("<i8").tobytes()).hexdigest()


# ---- losses


@dataclass(frozen=True)
class Tester:
    """A model, on the device of `compute`, and the corpus on whose validation split it is tested.

    Several processes share the work, and each has all the sums.
    """

    model: Any
    corpus: data.Corpus
    compute: device.Compute = device.CPU
    processes: Processes = ALONE
    protocols: tuple[str, ...] = PROTOCOLS
    kept: int = 2**62  # all inputs but so many last ones are shuffled

    def score(self, plan: list[Windows], limit: int | None = None) -> np.ndarray:
        """The scored nats summed in each block, (blocks,), float64.

        A `limit` limits the keys to i - j < limit. At most 16k inputs are read at once, and of n
        processes each takes every n-th batch. The batches of the first 64 windows are the same,
        however many follow.
        """
        sums = np.zeros(len(plan[0].starts))
        processes = self.processes
        for windows in plan:
            length = windows.length
            in_block = len(windows.scored)  # windows in a block
            size = min(WINDOWS, power_of_two(max(1, BATCH_TOKENS // length)))
            numbers = np.arange(windows.starts.size)
            for batch in np.split(numbers, numbers[size::size])[processes.rank :: processes.size]:
                offsets = windows.starts.ravel()[batch, None] + np.arange(length + 1)
                if self.kept < length:
                    far = offsets[:, : length - self.kept]  # a view: shuffled in place
                    far[:] = np.random.default_rng(diagnose.SEED).permuted(far, axis=1)
                tokens = torch.from_numpy(self.corpus.val[offsets].astype(np.int64))
                tokens = tokens.to(self.compute.device)
                with device.autocast(self.compute):
                    nats = self.model.losses(tokens[:, :-1], tokens[:, 1:], window=limit)
                first = length - windows.scored[batch % in_block, None]
                counted = np.where(np.arange(length) >= first, nats.cpu().double().numpy(), 0.0)
                np.add.at(sums, batch // in_block, counted.sum(axis=1))
        self.processes.sum(torch.from_numpy(sums))  # zero where another process has measured
        return sums


@torch.no_grad()
def losses_at(tester: Tester, places: Places, length: int) -> np.ndarray:
    """Mean nats of fixed_targets at each place, (places,). The model is in eval mode."""
    return tester.score(fixed_targets(places, length)) / places.scored


def check_in_float32(tester: Tester, places: Places, row: dict[str, Any]) -> None:
    """Measure the first windows of a row of fixed_targets in float32 too; its note says the
    difference. If float32 is not finite the row has diverged: its number came from a format that
    cuts large numbers off.
    """
    few = replace(places, ends=places.ends[:CHECK_WINDOWS])
    exact = replace(tester, compute=replace(tester.compute, dtype=None))
    nats = float(losses_at(exact, few, row["length"]).mean())
    if math.isfinite(nats):
        less = float(np.mean(row["block_nats"][:CHECK_WINDOWS])) - nats
        where = f"fixed_targets at {row['length']}, {CHECK_WINDOWS} windows"
        row["note"].append(f"{where}: {row['dtype']} minus float32 is {less:+.5f} nats")
    else:
        reason = f"diverged: not finite in float32, {row['nats']:.4f} in {row['dtype']}"
        row |= {"nats": None, "diverged": True, "reason": reason}


# ---- rows


def measured_fields(
    tester: Tester, places: Places, row: dict[str, Any], plan: list[Windows], sums: np.ndarray
) -> dict[str, Any]:
    """What was measured for a row: the mean of the nats that were summed in each block, and what a
    reader must know of its places. A loss that is not finite is a finding, and gives a reason.
    """
    corpus = tester.corpus
    length = row["length"]
    notes = []
    starts = np.sort(places.ends)
    extent = places.scored
    if PLANS[row["protocol"]] is nonoverlapping:
        extent = max(places.piece, length)
        starts = piece_starts(places, extent)
        if extent > places.piece:
            pieces = f"its {PIECES} pieces of {places.piece}"
            notes.append(f"nonoverlapping at {length} has other targets than {pieces}")
    elif places.across_documents:
        notes.append("windows run across documents, too few of which are long")
    if np.diff(starts).min() < extent:
        notes.append("neighbouring blocks share targets, so standard errors are too small")
    if any(piece.found_on == row["split_sha256"] for piece in tester.model.pos.extensions):
        notes.append(f"the file of {row['extend']} was found on this text")
    wrong = int((~np.isfinite(sums)).sum())
    if wrong:
        reason = f"diverged: the loss is not finite in {wrong} of {len(sums)} windows"
        return {"note": notes, "nats": None, "diverged": True, "reason": reason}
    offsets = np.hstack([windows.offsets() for windows in plan])
    nats = float(sums.sum() / offsets.size)
    means = sums * len(sums) / offsets.size  # every block has as many targets
    blocks = [float(f"{mean:.7g}") for mean in means]
    n_bytes = corpus.tokenizer.token_bytes()[corpus.val[offsets]].sum()
    return {
        "note": notes,
        "tokens": offsets.size,
        "nats": nats,
        "stderr": standard_error(blocks),
        "stderr_vs_L": None,
        "block_nats": blocks,
        "perplexity": math.exp(nats) if nats < 700 else None,
        "bits_per_byte": float(sums.sum() / math.log(2) / n_bytes) if n_bytes else None,
    }


def begin_row(tester: Tester, about: dict[str, Any], protocol: str, length: int) -> dict[str, Any]:
    """What a row says of its question, besides its windows; for `about` see `describe_model`."""
    scheme = tester.model.pos
    files = {piece.file.name: sha256(piece.file) for piece in scheme.extensions if piece.file}
    return {
        "protocol": protocol,
        "length": length,
        "extend": scheme.extension or None,
        "factor": scheme.factor(length),
        "files_sha256": files or None,
        "dataset": tester.corpus.name,
        "split_sha256": tester.corpus.split_sha256("val"),
        "step": about["step"],
        "checkpoint": about["checkpoint"],
    }


def why_nowhere(corpus: data.Corpus, places: Places, protocol: str, length: int) -> str:
    """Why a corpus has no place for a test; empty if it has."""
    few = f"the {places.tokens} validation tokens of {corpus.name} are too few for"
    if PLANS[protocol] is nonoverlapping:
        room = places.tokens - max(places.piece, length)
        return f"{few} {PIECES} pieces of {length}" if room < PIECES else ""
    if places.candidates < len(places.ends):
        return f"{few} {len(places.ends)} windows"
    if length <= places.reach:
        return ""
    return (
        f"the test of {corpus.name} has windows of at most {places.reach} tokens: longer ones, up "
        f"to {LARGEST_REACH}, need a longer validation text or longer documents"
    )


def why_undefined(model: Any, length: int) -> str:
    """Why a scheme does not define a text of `length` tokens; empty if it does."""
    try:
        model.check_length(length)
    except UserError as error:
        return str(error)
    return ""


def ask_all(
    tester: Tester, about: dict[str, Any], places: Places, settings: Any
) -> list[tuple[dict[str, Any], list[Windows]]]:
    """All rows that these settings ask for, before they are measured, each with its windows.

    A row that cannot be measured has no windows, nats None and a reason.
    """
    asked = []
    for protocol in tester.protocols:
        for length in tested_lengths(about["train_length"], settings.eval_lengths):
            row = begin_row(tester, about, protocol, length)
            row |= {"windows": len(places.ends), "targets": None}
            reason = why_nowhere(tester.corpus, places, protocol, length)
            plan = []
            if not reason:
                plan = PLANS[protocol](places, length)
                row["windows"] = len(plan[0].starts)
                row["targets"] = targets_digest(plan)
                reason = why_undefined(tester.model, length)
            if reason:
                row |= {"nats": None, "reason": reason}
                plan = []
            else:
                row["dtype"] = tester.compute.dtype_name
            asked.append((row, plan))
    return asked


# ---- a test


@torch.no_grad()
def extrapolation(tester: Tester, about: dict[str, Any], settings: Any) -> dict[str, Any]:
    """Test a model by every protocol at every length: the content of extrapolation.json.

    `about` is what describe_model says of it. Of `settings` eval_lengths and eval_windows are read.
    The model is put into eval mode and back.
    """
    model = tester.model
    corpus = tester.corpus
    started = time.perf_counter()
    was_training = model.training
    model.eval()
    if "rows" in corpus.meta:
        rows = answer_rows(tester, about, settings.eval_lengths)
    else:
        rows = loss_rows(tester, about, settings)
    with device.autocast(tester.compute):
        cache_bytes = model.cache_bytes()  # of each token
    model.train(was_training)
    for row in rows:
        row["cache_bytes"] = cache_bytes
    seconds = round(time.perf_counter() - started, 1)
    return about | {"unit": corpus.unit, "rows": rows, "seconds": seconds}


def loss_rows(tester: Tester, about: dict[str, Any], settings: Any) -> list[dict[str, Any]]:
    """The measured rows of text. A line is printed for each, and on a terminal a bar."""
    corpus = tester.corpus
    length = about["train_length"]
    places = find_places(corpus, settings.eval_windows)
    asked = ask_all(tester, about, places, settings)
    hidden = None if tester.processes.first else True
    for row, plan in tqdm(asked, "testing long", unit="row", leave=False, disable=hidden):
        n = row["length"]
        if plan:
            limit = length if row["protocol"] == "windowed" and n > length else None
            started = time.perf_counter()
            sums = tester.score(plan, limit)
            seconds = time.perf_counter() - started
            inputs = sum(windows.length * windows.starts.size for windows in plan)
            row |= measured_fields(tester, places, row, plan, sums)
            row["tokens_per_s"] = round(inputs / seconds, 1)
            row["attention"] = tester.model.attention_path(n, limit)
        tqdm.write(in_words(row, corpus))

    fixed = [row for row, plan in asked if plan and row["protocol"] == "fixed_targets"]
    # in float32 too: the longest, or while float32 alone diverges the next shorter one
    for row in reversed(fixed if tester.compute.dtype is not None else []):
        if row["nats"] is not None:
            check_in_float32(tester, places, row)
            if row["nats"] is not None:
                break
    rows = [row for row, _ in asked]
    for row in rows:
        if "note" in row:
            row["note"] = "; ".join(row["note"])
    at_length = {row["protocol"]: row for row in rows if row["length"] == length}
    for row in rows:
        if difference := results.paired(row, at_length[row["protocol"]]):
            row["stderr_vs_L"] = difference[1]
    if fixed:
        # what a predictor by counts and longest match gains from the same context, by block
        count = len(places.ends)
        more = find_places(corpus, 2 * count).ends
        lengths = [row["length"] for row in fixed]
        nats = context.known_losses(corpus, more[:count], more[count:], places.scored, lengths)
        for row in fixed:
            row["text_nats"] = nats[row["length"]]
    return rows


def answer_rows(
    tester: Tester, about: dict[str, Any], lengths: tuple[int, ...]
) -> list[dict[str, Any]]:
    """The rows of a corpus with answers: for each size, or those of `lengths` and the trained."""
    corpus = tester.corpus
    about_rows = corpus.meta["rows"]
    rows = []
    if not set(lengths) <= set(sizes(corpus)):
        print(f"note: {corpus.name} has rows of {sizes(corpus)} only; other lengths are left out")
    for size, count, width in about_rows["sizes"]:
        if lengths and size not in lengths and size > about_rows["trained"]:
            continue
        row = begin_row(tester, about, about_rows["protocol"], size) | {"windows": count}
        for name in ("trained", "chance", "majority"):
            if name in about_rows:
                row[name] = about_rows[name]
        if "counted" in about_rows:
            row["counted"] = about_rows["counted"][str(size)]
        reason = why_undefined(tester.model, width - 1)
        if reason:
            row |= {"nats": None, "reason": reason}
        else:
            row["dtype"] = tester.compute.dtype_name
            row |= answers.measure(tester.model, corpus, size, tester.compute, tester.processes)
            row["attention"] = tester.model.attention_path(width - 1, None)
        print(in_words(row, corpus))
        rows.append(row)
    return rows


def in_words(row: dict[str, Any], corpus: data.Corpus) -> str:
    """A measured row in a line."""
    text = row.get("reason") or f"{row['nats']:.4f} nats per {corpus.unit}"
    if "accuracy" in row:
        text += f", {answers.share(row):.1%} right"
    return f"{row['protocol']} at {row['length']}: {text}"


# ---- a loss to choose by


def tuning_loss(tester: Tester, length: int, windows: int) -> float:
    """Mean nats at a length on the `tuning_places`; inf if it is not finite.

    The model is in eval mode.
    """
    places = tuning_places(tester.corpus, length, windows)
    nats = float(losses_at(tester, places, length).mean())
    return nats if math.isfinite(nats) else math.inf


@torch.no_grad()
def unread_loss(tester: Tester, seed: int, first: int) -> float:
    """Mean nats of the answers in the rows of `unread`; inf if it is not finite."""
    x, y = (torch.from_numpy(part) for part in unread(tester.corpus, seed, first))
    nats = []
    with device.autocast(tester.compute):
        for inputs, targets in zip(x.split(64), y.split(64), strict=True):
            inputs = inputs.to(tester.compute.device)
            targets = targets.to(tester.compute.device)
            nats.append(tester.model.answers(inputs, targets)[0])
    mean = float(torch.cat(nats).double().mean())
    return mean if math.isfinite(mean) else math.inf


def tuning_places(corpus: data.Corpus, length: int, windows: int) -> Places:
    """Places whose targets no test has, to choose by: up to 64, UserError if they are fewer than 8.

    A test is one with so many windows, of this length. The places are the first ones after those of
    the test that share no target with it, nor with each other.
    """
    places = find_places(corpus, windows)
    nowhere = why_nowhere(corpus, places, "fixed_targets", length)
    if nowhere:
        raise UserError(nowhere)
    taken = np.zeros(places.tokens, dtype=bool)
    for tested in [*fixed_targets(places, length), *nonoverlapping(places, length)]:
        taken[tested.offsets()] = True
    ends: list[int] = []
    for end in find_places(corpus, LARGEST_REACH).ends[windows:]:
        targets = slice(end - places.scored + 1, end + 1)
        if len(ends) < WINDOWS and not taken[targets].any():
            taken[targets] = True
            ends.append(end)
    if len(ends) < 8:
        few = f"{corpus.name} has too little validation text to choose by, besides what is tested"
        raise UserError(f"{few}: use a corpus with more")
    return replace(places, ends=np.array(ends))


# ---- runs


def evaluate_run(
    run: Run,
    texts: list[str],
    settings: Any,
    processes: Processes = ALONE,
    again: bool = True,
    protocols: tuple[str, ...] = PROTOCOLS,
) -> dict[str, Any]:
    """Test a run under each extension of `texts`, "" for its own, and keep the rows in its folder.

    Unless `again`, an extension is passed over if all that is asked was measured. `settings` are
    those of evaluate.py or extend.py. Returns the last result that was measured, only its rows.
    """
    corpus = run_corpus(run, settings.dataset)
    result = about = describe_run(run)
    tester = Tester(run.model, corpus, run.compute, processes, protocols)
    lengths = settings.eval_lengths or run.settings.eval_lengths
    settings = replace(settings, eval_lengths=lengths)
    measured = []
    if processes.first:
        lock_folder(run.folder)
    if (run.folder / "extrapolation.json").exists():  # a damaged one is refused before the test
        measured = results.load_result(run.folder)["rows"]
    for text in tqdm(texts, run.folder.name, unit="extension", leave=False, disable=None):
        if text:
            run.model.extend(text)  # files as typed, not the run's own copies
        tqdm.write(f"{run.folder}: {run.model.pos.describe()}, on {run.compute.reason}")
        if not again:
            asked = ask_all(tester, about, find_places(corpus, settings.eval_windows), settings)
            if all(any(q.items() <= row.items() for row in measured) for q, _ in asked):
                continue
        result = extrapolation(tester, about, settings)
        if processes.first:
            kept = results.update_result(run.folder, result)
            plot_run(run.folder, kept)
            result = kept | {"rows": result["rows"]}
    return result


def describe_run(run: Run) -> dict[str, Any]:
    """What a result says of a run, before another extension is put on its model."""
    trained = {"step": run.step, "tokens": run.tokens, "checkpoint": run.checkpoint}
    return describe_model(run.model, run.settings, **trained)


@torch.no_grad()
def diagnose_run(run: Run, settings: EvaluateSettings) -> None:
    """Write into a run folder why the loss of its model is what it is: see runs/diagnose.py.

    Rows with answers cannot be shuffled or continued: of them only attention is measured.
    """
    model = run.model
    corpus = run_corpus(run, settings.dataset)
    length = run.settings.block_size
    about = describe_run(run) | provenance() | {"dataset": corpus.name, "tested": settings.extend}
    if settings.extend:
        model.extend(settings.extend)
    places = find_places(corpus, settings.eval_windows)
    sizes_of = {}  # the size of the rows of each width
    if "rows" in corpus.meta:
        sizes_of = {width - 1: size for size, _, width in corpus.meta["rows"]["sizes"]}
    longest = max(sizes_of, default=places.reach)
    longest = min(longest, model.limit or longest)
    asked = settings.eval_lengths or (2 * length, 4 * length, 8 * length)
    lengths = [length, *(n for n in sorted(asked) if length < n <= longest)]
    print(f"at {lengths} tokens: L and longer ones, of which scheme and corpus allow {longest}")
    if sizes_of:
        n = max(width for width in sizes_of if width <= lengths[-1])
        tokens = rows_of(corpus, sizes_of[n])[0][: diagnose.TEXTS, :n]
    elif reason := why_nowhere(corpus, places, "fixed_targets", lengths[-1]):
        raise UserError(reason)
    else:
        tokens = corpus.val[places.ends[: diagnose.TEXTS, None] + np.arange(-lengths[-1], 0)]
    texts = torch.from_numpy(tokens.astype(np.int64)).to(run.compute.device)

    def score(n: int, kept: int = 2**62) -> np.ndarray:
        """Nats at each place with all but the last `kept` tokens before a target shuffled."""
        tester = Tester(model, corpus, run.compute, kept=kept + places.scored - 1)
        return losses_at(tester, places, n)

    findings = [diagnose.attention_of(model, texts, length)]
    if not sizes_of:
        findings.append(diagnose.far_shuffled(score, lengths))
        if lengths[-1] >= length + max(length, diagnose.COPIED):
            findings.append(diagnose.continuations(model, texts, length))
    diagnose.report(findings, run.folder, about, settings.format)


def main() -> None:
    """Test runs, print their table, and draw several, or what --out names, in one figure."""
    settings, words = configure(EvaluateSettings, sys.argv[1:], __doc__)
    device.set_up_cpu()
    folders = named_folders(words, "evaluate.py")
    tested = {}
    compute = device.pick(settings.device, "float32")  # the formats are those of the runs
    advice = "lower eval_lengths, or leave the longest out"
    with device.memory_advice(advice), together("auto", compute) as processes:
        for folder in folders:
            with processes.first_before_others():
                run = open_model(folder, settings)
            if settings.diagnose:
                diagnose_run(run, settings)
                continue
            tested[str(run.folder)] = evaluate_run(
                run, [settings.extend], settings, processes, protocols=settings.protocols
            )
        if settings.diagnose or not processes.first:
            return
    rows = results.select(results.rows_of(tested), settings.dataset, extend="all")
    print(results.tables(rows, settings.format))
    if len(tested) > 1 or settings.out:
        place = os.path.commonpath([os.path.abspath(folder) for folder in tested])
        path = settings.out or f"{place}/extrapolation.png"
        if plot_rows(rows, path) and settings.format == "text":
            print(f"drawn in {path}")


if __name__ == "__main__":
    run_program(main)
