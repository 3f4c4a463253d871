"""Test trained runs on texts longer than those they were trained on.

    python evaluate.py out/RUN [out/RUN ...] [--name=value ...]

    python evaluate.py out/rope-stdlib-L128-s1337 --extend='yarn(factor=8)'
    python evaluate.py out/A out/B --dataset=NAME --stride=64
    python evaluate.py out/A out/B --eval_windows=1024      # for published numbers
    python evaluate.py out/RUN --diagnose                   # what it reads: runs/diagnose.py
    python evaluate.py SmolLM-135M --dataset=mine           # a Hugging Face folder or name

The losses go into each run's extrapolation.json and extrapolation.png. A table is printed, and
several runs are drawn in one figure too.

L is the training length and N a test length. Where a text is tested depends on its validation split
alone: not on L, not on the lengths asked for. So every scheme is tested on the same targets, and
every comparison is paired, block by block. A block is a place of fixed_targets and windowed, and a
piece of the text in the other protocols.
"""

if __name__ == "__main__":  # --help answers before torch is imported
    from configurable import EvaluateSettings, answer_help

    answer_help(EvaluateSettings, __doc__)

import hashlib
import itertools
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

import attention
import data
from configurable import EvaluateSettings, UserError, configure, require, run_program
from data import context
from data.rows import rows_of, sizes, unread
from posenc import overrides, scheme_name
from positions.grammar import parse
from runs import answers, device, diagnose, formats, results
from runs.checkpoint import Run
from runs.figures import plot_run, show_runs
from runs.files import sha256
from runs.folder import lock_folder, named_folders, provenance
from runs.processes import ALONE, Processes, together
from runs.results import Result, Row, position_bins, standard_error, tested_lengths
from runs.start import open_run, pretrained_run, run_corpus
from runs.tables import tables_of

WINDOWS, PIECES = 64, 16
PIECE = 4096  # inputs of a piece
MAX_SCORED = 32  # targets at a place of fixed_targets
LARGEST_REACH = 65536  # a power of two, and as many places can be told apart
LONG_DOCUMENTS = 4096  # a smaller reach within documents is no test of long texts
BATCH_TOKENS = 16384  # inputs of one forward pass
CHECK_WINDOWS = 8  # windows that are tested in float32 too


Asked = tuple[Row, list["Windows"]]  # a row before it is measured, and what to measure


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
    stride: int = 0  # by which the windows of sliding move, in inputs


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


def find_places(corpus: data.Corpus, windows: int = WINDOWS, stride: int = 0) -> Places:
    """The first `windows` places of a corpus, in van der Corput's order.

    They depend on its validation split alone. They are picked from the targets that have `reach`
    inputs before them: the first 2, 4, 8 ... are spread evenly.
    """
    n_tokens, starts = len(corpus.val), corpus.val_starts
    reach = longest_reach(np.diff(starts, append=n_tokens))
    across = reach < LONG_DOCUMENTS and len(starts) > 1
    if across:
        starts, reach = np.array([0]), longest_reach(np.array([n_tokens]))
    counts = np.maximum(np.append(starts[1:], n_tokens) - starts - reach, 0)  # of each document
    last, bits = np.cumsum(counts), LARGEST_REACH.bit_length() - 1
    numbers = np.arange(windows)
    mirrored = sum((numbers >> k & 1) << bits - 1 - k for k in range(bits))
    chosen = mirrored * last[-1] >> bits
    document = np.searchsorted(last, chosen, side="right").clip(max=len(starts) - 1)
    ends = (starts + reach + counts - last)[document] + chosen
    scored = max(1, min(MAX_SCORED, reach // 4))  # so that a shorter test looks no further back
    piece = min(PIECE, power_of_two((n_tokens - 1) // PIECES))
    return Places(reach, int(last[-1]), ends, scored, n_tokens, piece, across, stride)


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
    whole = cut_pieces(places, size, length, list(range(length, size + 1, length)))
    rest = [cut_pieces(places, size, size % length, [size])] if size % length else []
    return [whole, *rest]


def sliding(places: Places, length: int) -> list[Windows]:
    """Windows moved by `stride`, at most `length`, through the pieces; each target scored once."""
    size = max(places.piece, length)
    stops = range(length, size, min(places.stride, length))
    return [cut_pieces(places, size, length, [*stops, size])]


def cut_pieces(places: Places, size: int, length: int, stops: list[int]) -> Windows:
    """In each piece of `size` inputs, windows of `length` inputs that end at `stops`.

    Each scores the targets that the one before it has left.
    """
    starts = piece_starts(places, size)[:, None] + stops - length
    return Windows(length, starts, np.minimum(np.diff(stops, prepend=0), length))


def piece_starts(places: Places, size: int) -> np.ndarray:
    """The offset of the first input of each piece of `size` inputs, (16,)."""
    return data.evenly(places.tokens - size, PIECES)


# Each protocol and its windows. To add one, write it here and into configurable.PROTOCOLS.
PLANS = {"fixed_targets": fixed_targets, "windowed": fixed_targets}  # which limits its keys too
PLANS |= {"nonoverlapping": nonoverlapping, "sliding": sliding}
PIECED = (nonoverlapping, sliding)


def targets_digest(plan: list[Windows]) -> str:
    """SHA-256 of the offsets of all scored targets, ascending, as little-endian int64."""
    offsets = np.sort(np.hstack([windows.offsets() for windows in plan]), axis=None)
    return hashlib.sha256(offsets.astype("<i8").tobytes()).hexdigest()


def add_note(row: Row, text: str) -> None:
    """Add a text to the note of a row."""
    row["note"] = f"{row['note']}; {text}" if "note" in row else f"{row['protocol']}: {text}"


def add_remarks(row: Row, places: Places, model: Any) -> None:
    """Add to a row what warns of its places: a `note`, and fields that say what it is about."""
    spacing, extent = np.sort(places.ends), places.scored
    if PLANS[row["protocol"]] in PIECED:
        extent = max(places.piece, row["length"])
        spacing = piece_starts(places, extent)
        if extent > places.piece:
            row["other_targets"] = True
            usual = f"other targets than those of its {PIECES} pieces of {places.piece}"
            add_note(row, f"{extent} has {usual}, so it is compared with nothing")
    elif places.across_documents:
        row["across_documents"] = True
        add_note(row, "windows run across documents, too few of which are long")
    if np.diff(spacing).min() < extent:
        add_note(row, "neighbouring blocks share targets, so standard errors are too small")
    if any(piece.found_on == row["split_sha256"] for piece in model.pos.extensions):
        add_note(row, f"{row['extend']}: its file was found on this text")


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
    kept: float = math.inf  # all inputs but so many last ones are shuffled

    def losses(self, windows: Windows, limit: int | None) -> Iterator[tuple[np.ndarray, ...]]:
        """Yield (numbers of windows, their losses (B, length) in nats), at most 16k inputs at once.

        The losses are float64. Of n processes each takes every n-th batch. The batches of the first
        64 windows are the same, however many follow.
        """
        size = min(WINDOWS, power_of_two(max(1, BATCH_TOKENS // windows.length)))
        numbers, processes = np.arange(windows.starts.size), self.processes
        for batch in np.split(numbers, numbers[size::size])[processes.rank :: processes.size]:
            offsets = windows.starts.ravel()[batch, None] + np.arange(windows.length + 1)
            far = offsets[:, : max(0, windows.length - self.kept)]
            far[:] = np.random.default_rng(diagnose.SEED).permuted(far, axis=1)
            tokens = torch.from_numpy(self.corpus.val[offsets].astype(np.int64))
            tokens = tokens.to(self.compute.device)
            nats = self.model.losses(tokens[:, :-1], tokens[:, 1:], window=limit)
            yield batch, nats.cpu().double().numpy()

    def score(self, plan: list[Windows], limit: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The scored nats summed in each block, (blocks,), and in the windows by position.

        That is the mean loss in each of the `position_bins` of each window of the first Windows,
        (W, bins). All are float64. A `limit` limits the keys to i - j < limit.
        """
        edges = position_bins(plan[0].length)
        binned = np.zeros((plan[0].starts.size, len(edges) - 1))
        sums = np.zeros(len(plan[0].starts))
        with device.autocast(self.compute):
            for windows in plan:
                each = len(windows.scored)  # windows in a block
                for batch, nats in self.losses(windows, limit):
                    first = windows.length - windows.scored[batch % each, None]
                    counted = np.where(np.arange(windows.length) >= first, nats, 0.0)
                    np.add.at(sums, batch // each, counted.sum(axis=1))
                    if windows is plan[0]:
                        binned[batch] = np.add.reduceat(nats, edges[:-1], axis=1) / np.diff(edges)
        for array in (sums, binned):  # zero where another process has measured
            self.processes.sum(torch.from_numpy(array))
        return sums, binned


def per_position(binned: np.ndarray, length: int) -> dict[str, Any]:
    """Mean nats, standard error over windows, and counts, in the bins of positions of a length.

    `binned` are the mean losses in each bin of each window, (windows, bins). The position of a loss
    is the number of inputs before the last one that was read. Bin k has the positions from edges[k]
    up to, but without, edges[k + 1]. It has no mean if a loss in it is not finite.
    """
    edges = position_bins(length)
    bins = [column if np.isfinite(column).all() else None for column in binned.T]
    counts = [len(binned) * (b - a) for a, b in itertools.pairwise(edges)]
    means = [None if column is None else float(column.mean()) for column in bins]
    errors = [None if column is None else standard_error(column) for column in bins]
    return {"edges": edges, "nats": means, "stderr": errors, "counts": counts}


@torch.no_grad()
def losses_at(tester: Tester, places: Places, length: int) -> np.ndarray:
    """Mean nats of fixed_targets at each place, (places,). The model is in eval mode."""
    return tester.score(fixed_targets(places, length))[0] / places.scored


def float32_check(tester: Tester, places: Places, row: Row) -> dict[str, Any]:
    """The first windows of a row of fixed_targets in float32 too: both means and their difference.

    {} if everything was tested in float32, or if a loss is not finite. If it is not only in
    float32, the row has diverged too: its number came from a format that cuts large numbers off.
    """
    if tester.compute.dtype is None or row["nats"] is None:
        return {}
    few = replace(places, ends=places.ends[:CHECK_WINDOWS])
    exact = replace(tester, compute=replace(tester.compute, dtype=None))
    nats_float32 = float(losses_at(exact, few, row["length"]).mean())
    nats = float(np.mean(row["block_nats"][:CHECK_WINDOWS]))
    if not math.isfinite(nats_float32):
        reason = f"diverged: not finite in float32, {nats:.4f} in {row['dtype']}"
        row |= {"nats": None, "diverged": True, "reason": reason}
        return {}
    found = {"windows": CHECK_WINDOWS, "nats": nats, "nats_float32": nats_float32}
    return found | {"difference": nats - nats_float32}


# ---- rows


def measured_fields(corpus: data.Corpus, plan: list[Windows], sums: np.ndarray) -> dict[str, Any]:
    """The measured fields of a row, from the nats summed in each block.

    A loss that is not finite is a finding, and gives a reason instead.
    """
    wrong = int((~np.isfinite(sums)).sum())
    if wrong:
        reason = f"diverged: the loss is not finite in {wrong} of {len(sums)} windows"
        return {"nats": None, "diverged": True, "reason": reason}
    offsets = np.hstack([windows.offsets() for windows in plan])
    nats = float(sums.sum() / offsets.size)
    means = sums * len(sums) / offsets.size  # every block has as many targets
    blocks = [float(f"{mean:.7g}") for mean in means]
    n_bytes = corpus.tokenizer.token_bytes()[corpus.val[offsets]].sum()
    bits_per_byte = float(sums.sum() / math.log(2) / n_bytes) if n_bytes else None
    fields = {"tokens": offsets.size, "nats": nats, "stderr": standard_error(blocks)}
    fields |= {"stderr_vs_L": None, "block_nats": blocks}
    fields |= {"perplexity": math.exp(nats) if nats < 700 else None}
    return fields | {"bits_per_byte": bits_per_byte}


def begin_row(tester: Tester, about: Result, protocol: str, length: int) -> Row:
    """What a row says of its question, besides its windows; for `about` see `describe_run`."""
    model, corpus = tester.model, tester.corpus
    row = {"protocol": protocol, "stride": None, "length": length} | model.extension_at(length)
    row |= {"dataset": corpus.name, "split_sha256": corpus.split_sha256("val")}
    row |= {"step": about["step"], "checkpoint": about["checkpoint"]}
    files = {piece.file.name: sha256(piece.file) for piece in model.pos.extensions if piece.file}
    return row | ({"files_sha256": files} if files else {})


def ask(tester: Tester, about: Result, places: Places, protocol: str, length: int) -> Asked:
    """A row before it is measured, and the windows to measure: none, and a reason in the row, if
    that cannot be done.
    """
    reason = why_nowhere(tester.corpus, places, protocol, length)
    plan = [] if reason else PLANS[protocol](places, length)
    row = begin_row(tester, about, protocol, length)
    row |= {"stride": places.stride if protocol == "sliding" else None}
    row |= {"windows": len(plan[0].starts) if plan else len(places.ends)}
    row |= {"targets": targets_digest(plan) if plan else None}
    row |= to_measure(tester, length, reason)
    return row, plan if "dtype" in row else []


def to_measure(tester: Tester, inputs: int, reason: str = "") -> Row:
    """The number format of a row that can be measured; or no number, and the reason for that."""
    try:
        tester.model.check_length(inputs)
    except UserError as error:
        reason = reason or str(error)
    return {"nats": None, "reason": reason} if reason else {"dtype": tester.compute.dtype_name}


def why_nowhere(corpus: data.Corpus, places: Places, protocol: str, length: int) -> str:
    """Why a corpus has no place for a test; empty if it has."""
    few = f"the {places.tokens} validation tokens of {corpus.name} are too few for"
    if PLANS[protocol] in PIECED:
        room = places.tokens - max(places.piece, length)
        return f"{few} {PIECES} pieces of {length}" if room < PIECES else ""
    if places.candidates < len(places.ends):
        return f"{few} {len(places.ends)} windows"
    if length <= places.reach:
        return ""
    longest = f"the test of {corpus.name} has windows of at most {places.reach} tokens"
    return f"{longest}: use a corpus of longer documents or of more text, up to {LARGEST_REACH}"


# ---- a test


@torch.no_grad()
def evaluate(tester: Tester, about: Result, settings: Any) -> dict[str, Any]:
    """Test a model by every protocol at every length of the settings; a stride adds `sliding`.

    Returns {"rows", "per_position", "float32_check", "notes"}, the tested part of
    extrapolation.json. What cannot be measured is a row with nats None and a reason. Of `settings`
    protocols, stride, eval_lengths and eval_windows are read; of `about`, see `describe_run`, the
    training length, the step and the checkpoint. The model is put into eval mode and back.
    """
    model, corpus, length = tester.model, tester.corpus, about["train_length"]
    was_training = model.training
    model.eval()
    if "rows" in corpus.meta:
        rows, extra = answer_rows(tester, about, settings.eval_lengths), {}
    else:
        places = find_places(corpus, settings.eval_windows, settings.stride)
        asked = ask_all(tester, about, places, settings)
        extra = measure_rows(tester, places, asked, length)
        rows = [row for row, _ in asked]
        results.compare_to_train_length(rows, length)
    model.train(was_training)
    found = {"rows": rows, "per_position": [], "float32_check": []} | extra
    return found | {"notes": results.row_notes(rows, length)}


def ask_all(tester: Tester, about: Result, places: Places, settings: Any) -> list[Asked]:
    """All that these settings ask for, see `ask`."""
    protocols = [*settings.protocols, *(["sliding"] if settings.stride else [])]
    lengths = tested_lengths(about["train_length"], settings.eval_lengths)
    return [ask(tester, about, places, name, n) for name in protocols for n in lengths]


def answer_rows(tester: Tester, about: Result, lengths: tuple[int, ...]) -> list[Row]:
    """The rows of a corpus with answers: for each size, or those of `lengths` and the trained."""
    corpus, known, found = tester.corpus, tester.corpus.meta["rows"], []
    if not set(lengths) <= set(sizes(corpus)):
        print(f"note: {corpus.name} has rows of {sizes(corpus)} only; other lengths are left out")
    if known["trained"] != about["train_length"] and known["kind"] == "recall":
        own = f"{corpus.name} is made for {known['trained']}, the model is trained at"
        print(f"note: {own} {about['train_length']}: what is inside counts by the corpus")
    for size, count, width in known["sizes"]:
        if lengths and size not in lengths and size > known["trained"]:
            continue
        row = begin_row(tester, about, known["protocol"], size) | {"windows": count}
        row |= {name: known[name] for name in ("trained", "chance", "majority") if name in known}
        row |= to_measure(tester, width - 1)
        if "dtype" in row:
            row |= answers.measure(tester.model, corpus, size, tester.compute, tester.processes)
            row["attention"] = tester.model.attention_path(width - 1, None)
        if "counted" in known:
            row["counted"] = known["counted"][str(size)]
        told = row.get("reason") or f"{row['nats']:.4f} nats per {tester.corpus.unit}"
        told += f", {answers.share(row):.1%} right" if "accuracy" in row else ""
        print(f"{row['protocol']} at {size}: {told}")
        found.append(row)
    return found


def measure_rows(tester: Tester, places: Places, asked: list[Asked], train_length: int) -> Result:
    """Fill what is planned into the rows; returns {"per_position", "float32_check"}.

    A line is printed for each row. On a terminal there is a bar, too.
    """
    extra: dict[str, list[Row]] = {"per_position": [], "float32_check": []}
    fixed = [row for row, plan in asked if plan and row["protocol"] == "fixed_targets"]
    hidden = None if tester.processes.first else True
    for row, plan in tqdm(asked, "testing long", unit="row", leave=False, disable=hidden):
        n = row["length"]
        if plan:
            limit = train_length if row["protocol"] == "windowed" and n > train_length else None
            started = time.perf_counter()
            sums, binned = tester.score(plan, limit)
            seconds = time.perf_counter() - started
            inputs = sum(windows.length * windows.starts.size for windows in plan)
            row |= measured_fields(tester.corpus, plan, sums)
            row["tokens_per_s"] = round(inputs / seconds, 1)
            row["attention"] = tester.model.attention_path(n, limit)
            add_remarks(row, places, tester.model)
        if fixed and row is fixed[-1]:
            key = {name: row.get(name) for name in ("dataset", "windows", *results.KEY)}
            extra["per_position"] = [key | per_position(binned, n)]
        told = row.get("reason") or f"{row['nats']:.4f} nats per {tester.corpus.unit}"
        tqdm.write(f"{row['protocol']} at {n}: {told}")
    for row in reversed(fixed):  # from the longest on, as long as the loss is not finite there
        check = float32_check(tester, places, row)
        if check:
            key = {name: row.get(name) for name in ("dataset", "windows", *results.KEY)}
            extra["float32_check"] = [key | check]
        if not row.get("diverged"):
            break
    return extra


def extrapolation(tester: Tester, about: Result, settings: Any) -> Result:
    """All of extrapolation.json: what is known about the model, and what `evaluate` finds."""
    started = time.perf_counter()
    tested = evaluate(tester, about, settings)
    seconds = round(time.perf_counter() - started, 1)
    add_text_losses(tester.corpus, tested["rows"])
    with device.autocast(tester.compute):
        cached = {"cache_bytes": tester.model.cache_bytes()}  # of each token
    tested["rows"] = [row | cached for row in tested["rows"]]
    return about | {"unit": tester.corpus.unit} | tested | {"seconds": seconds}


def add_text_losses(corpus: data.Corpus, rows: list[Row]) -> None:
    """Add to each row of fixed_targets the loss of a predictor by counts and matches in each block,
    "text_nats".

    It reads the same context and says what far context is worth there: see data/context.py.
    """
    fixed = [row for row in rows if row["protocol"] == "fixed_targets" and row["targets"]]
    if fixed:
        windows = fixed[0]["windows"]
        places, lengths = find_places(corpus, 2 * windows), [row["length"] for row in fixed]
        ends, others = places.ends[:windows], places.ends[windows:]
        found = context.known_losses(corpus, ends, others, places.scored, lengths)
        for row in fixed:
            row["text_nats"] = found[row["length"]]


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
    place = tester.compute.device
    inputs, targets = (torch.from_numpy(x).to(place) for x in unread(tester.corpus, seed, first))
    parts = zip(inputs.split(64), targets.split(64), strict=True)
    with device.autocast(tester.compute):
        nats = [tester.model.answers(*part)[0] for part in parts]
    mean = float(torch.cat(nats).double().mean())
    return mean if math.isfinite(mean) else math.inf


def tuning_places(corpus: data.Corpus, length: int, windows: int) -> Places:
    """Places whose targets no test has, to choose by: up to 64, UserError if they are fewer than 8.

    A test is one with so many windows, of this length. The places are the first ones after those of
    the test that share no target with it, nor with each other.
    """
    places = find_places(corpus, windows)
    nowhere = why_nowhere(corpus, places, "fixed_targets", length)
    require(not nowhere, nowhere)
    taken = np.zeros(places.tokens, dtype=bool)
    for tested in [*fixed_targets(places, length), *nonoverlapping(places, length)]:
        taken[tested.offsets()] = True
    ends: list[int] = []
    for end in find_places(corpus, LARGEST_REACH).ends[windows:]:
        targets = slice(end - places.scored + 1, end + 1)
        if len(ends) < WINDOWS and not taken[targets].any():
            taken[targets] = True
            ends.append(end)
    few = f"{corpus.name} has too little validation text to choose by, besides what is tested"
    require(len(ends) >= CHECK_WINDOWS, f"{few}: use a corpus with more")
    return replace(places, ends=np.array(ends))


# ---- runs


def describe_run(run: Run) -> Result:
    """What a result says of the model of a run folder, before another extension is put on it."""
    trained = {name: run.state[name] for name in ("step", "tokens")}
    digest = run.state["sha256"]
    return results.describe_model(run.model, run.settings, checkpoint=digest, **trained)


def evaluate_run(
    folder: str, texts: list[str], settings: Any, processes: Processes = ALONE, again: bool = True
) -> tuple[Result, str | None]:
    """Test, or diagnose, the model of a run folder under extensions, "" for its own.

    Unless `again`, an extension is passed over if all that is asked was measured. `settings` are
    those of evaluate.py or extend.py. Returns the result, with the windows and the number format
    that are asked for, and the last extension.
    """
    run = open_run(folder, settings)
    model, about, corpus = run.model, describe_run(run), run_corpus(run, settings.dataset)
    exact = [exact_cache(text, model) for text in texts if again and not settings.diagnose]
    texts = [*filter(None, exact), *texts]
    tester = Tester(model, corpus, run.compute, processes)
    asked = replace(settings, eval_lengths=settings.eval_lengths or run.settings.eval_lengths)
    lock = lock_folder(run.folder) if processes.first else None  # until the end of this function
    # a damaged result is refused before hours of testing
    known = (run.folder / "extrapolation.json").exists()
    result = results.load_result(folder) if known else {"rows": []}
    for text in tqdm(texts, run.folder.name, unit="extension", leave=False, disable=None):
        if text:
            model.extend(text)  # files as typed, not the run's own copies
        extended = f", extended by {model.pos.extension}" if model.pos.extension else ""
        with device.autocast(run.compute):
            cache = f"a cache of {model.cache_bytes():,} bytes a token"
        tqdm.write(f"{folder}: {model.pos.text}{extended}, on {run.compute.reason}; {cache}")
        if settings.diagnose:
            diagnose_run(tester, folder, about, settings)
        elif again or not measured_already(tester, about, asked, result["rows"]):
            result = extrapolation(tester, about, asked)
            result = results.update_result(folder, result) if lock else result
    for text in filter(None, exact):
        tqdm.write("\n".join(cache_costs(result["rows"], text, model.pos.extension, corpus)))
    if lock and result["rows"]:
        plot_run(folder, result)
    shown = results.only(result, settings.eval_windows, run.compute.dtype_name)
    return shown, model.pos.extension or None


def exact_cache(text: str, model: Any) -> str:
    """The extension `text` without what packs the cache, or none; empty if nothing in it does."""
    if text:
        model.extend(text)
    packing = {scheme_name(p) for p in model.pos.extensions if overrides(p, "pack")}
    rest = [m.text for m in parse(text or "none").mentions if m.name not in packing]
    return " + ".join(rest) or "none" if text and packing else ""


def cache_costs(rows: list[Row], exact: str, packed: str, corpus: data.Corpus) -> Iterator[str]:
    """What an extension that packs the cache adds to the loss of fixed_targets, or of a corpus's
    own rows, at each length, with the paired standard error, and what it saves.
    """
    name = corpus.meta.get("rows", {"protocol": "fixed_targets"})["protocol"]
    kept = results.rows_on(rows, corpus.name, None if exact == "none" else exact)
    for n, row in results.by_length(results.rows_on(rows, corpus.name, packed), name).items():
        if cost := results.paired(row, kept.get((name, n))):
            sizes = f"{kept[name, n]['cache_bytes']:,} -> {row['cache_bytes']:,}"
            added = f"{cost.nats:+.5f} ± {cost.stderr:.5f} nats"
            yield f"{packed} at {n}: {added} against {exact}, {sizes} bytes a token in the cache"


def measured_already(tester: Tester, about: Result, settings: Any, rows: list[Row]) -> bool:
    """Whether all that these settings ask for is among these rows."""
    places = find_places(tester.corpus, settings.eval_windows, settings.stride)
    asked = [row for row, _ in ask_all(tester, about, places, settings)]
    return results.covers(rows, asked)


@torch.no_grad()
def diagnose_run(tester: Tester, folder: str, about: Result, settings: EvaluateSettings) -> None:
    """Write into a run folder why the loss of its model is what it is: see runs/diagnose.py."""
    length, corpus, model = about["train_length"], tester.corpus, tester.model
    places = find_places(corpus, settings.eval_windows)
    asked = sorted(settings.eval_lengths or [2 * length, 4 * length, 8 * length])
    rows = corpus.meta.get("rows", {"sizes": []})["sizes"]
    reach = max((width - 1 for _, _, width in rows), default=places.reach)
    most = min(reach, model.limit or reach)
    lengths = [length, *(n for n in asked if length < n <= most)]
    print(f"at {lengths} tokens: L and longer ones, of which scheme and corpus allow {most}")
    row, plan = ask(tester, about, places, "fixed_targets", lengths[-1])
    if "rows" not in corpus.meta:
        require(plan, row.get("reason"))
        add_remarks(row, places, model)
    found, about = findings(tester, places, lengths), about | row | provenance()
    diagnose.report(found, folder, about, settings.format)


def findings(tester: Tester, places: Places, lengths: list[int]) -> Iterator[diagnose.Finding]:
    """All findings on texts that end at the places of a test; L is the first of the lengths.

    Rows with answers cannot be cut, shuffled or continued: of them, those on attention only.
    """
    model, corpus, length, longest = tester.model, tester.corpus, lengths[0], lengths[-1]
    if "rows" in corpus.meta:
        print(f"note: {corpus.name} has rows with answers, so only attention is measured")
        size = max(n for n, _, width in corpus.meta["rows"]["sizes"] if width <= longest + 1)
        texts = torch.from_numpy(rows_of(corpus, size)[0][: diagnose.TEXTS, :-1].astype(int))
        yield diagnose.attention_of(model, texts.to(tester.compute.device), length)
        return

    def score(length: int, kept: float = math.inf) -> np.ndarray:
        nats = losses_at(replace(tester, kept=kept + places.scored - 1), places, length)
        return np.where(np.isfinite(nats), nats, math.nan)

    offsets = places.ends[: diagnose.TEXTS, None] + np.arange(-longest, 0)
    texts = torch.from_numpy(corpus.val[offsets].astype(int)).to(tester.compute.device)
    for n in dict.fromkeys((length, longest)):
        yield diagnose.attention_of(model, texts[:, -n:], length)
    yield diagnose.far_shuffled(score, lengths)
    yield diagnose.effective_context(score, lengths)
    if model.pos.rotary:
        yield diagnose.without_bands(model, score, lengths)
    if longest >= length + max(length, diagnose.COPIED):
        yield from diagnose.continuations(model, texts, length)


def main() -> None:
    """Test runs, print their table, and draw several, or another corpus, in a figure."""
    settings, words = configure(EvaluateSettings, sys.argv[1:], __doc__)
    device.set_up_cpu()
    compute = device.pick(settings.device, settings.dtype)
    advice = "lower eval_lengths, or leave the longest out"
    with device.memory_advice(advice), together("auto", compute) as processes:
        with processes.first_before_others():
            named = named_folders(words, "evaluate.py")
            folders = [pretrained_run(word, settings) for word in named]
        attention.use(path=settings.attention)
        pairs = [evaluate_run(folder, [settings.extend], settings, processes) for folder in folders]
        if settings.diagnose or not processes.first:
            return
    tested = [result | {"extend": extension} for result, extension in pairs]
    if settings.format == "text":
        return show_runs(folders, tested, settings.dataset, settings.out)
    pages = tables_of(tested, settings.dataset)
    print(formats.written(settings.format, pages, formats.rows(folders, settings.dataset)))


if __name__ == "__main__":
    run_program(main)
