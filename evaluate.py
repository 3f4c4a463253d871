"""Test trained runs on texts longer than those they were trained on.

    python evaluate.py out/RUN [out/RUN ...] [--name=value ...]

    python evaluate.py out/rope-stdlib-L128-s1337 --extend='yarn(factor=8)'
    python evaluate.py out/A out/B --dataset=NAME --stride=64

The losses go into each run's extrapolation.json and extrapolation.png. A table is printed, and
several runs are drawn in one figure too.

L is the training length and N a test length. Every scheme is tested on the same targets, and every
comparison is paired, block by block. A block is a window of fixed_targets and windowed, and a piece
of the text in the other protocols.
"""

if __name__ == "__main__":  # --help answers before torch is imported
    import sys

    from configurable import EvaluateSettings, answer_help

    answer_help(EvaluateSettings, sys.argv[1:], __doc__)

import hashlib
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

import data
from configurable import PROTOCOLS, EvaluateSettings, UserError, configure, require, run_program
from runs import device, results
from runs.figures import plot_run, show_runs
from runs.files import sha256
from runs.folder import lock_folder, named_folders
from runs.processes import ALONE, Processes, together
from runs.results import Result, Row, Rows, load_result, standard_error, tested_lengths
from runs.start import open_run, run_corpus

WINDOWS, PIECES = 64, 16
MAX_SCORED = 32  # targets that a window of fixed_targets scores
BATCH_TOKENS = 16384  # inputs of one forward pass
CHECK_WINDOWS = 8  # windows that are tested in float32 too


# ---- where a text is tested


@dataclass(frozen=True)
class Places:
    """Where a validation split is tested: the same for every scheme and every length."""

    longest: int  # the longest test length, in inputs
    scored: int  # targets that are scored at the end of a window of fixed_targets
    ends: np.ndarray  # (64,) offset of each window's last target
    pieces: np.ndarray  # (16,) offset of each piece's first input; a piece has `longest` inputs
    across_documents: bool  # whether the windows run across the starts of documents
    stride: int = 0  # by which the windows of sliding move, in inputs


@dataclass(frozen=True)
class Windows:
    """Windows of one length: inputs tokens[start : start + length], of which the last are scored.

    Each is scored on its last `scored` targets, and their losses belong to block number `block`.
    """

    length: int
    starts: np.ndarray  # (W,)
    scored: np.ndarray  # (W,)
    block: np.ndarray  # (W,)

    def offsets(self) -> np.ndarray:
        """The offsets of all scored targets in the split, window after window."""
        ends = zip(self.starts + self.length, self.scored, strict=True)
        return np.concatenate([np.arange(end - k + 1, end + 1) for end, k in ends])


def find_places(corpus: data.Corpus, lengths: list[int], stride: int = 0) -> Places | None:
    """The places for the lengths that leave 64 different window ends; None if no length does."""
    n_tokens = len(corpus.val)
    fitting = [n for n in lengths if n_tokens - n >= WINDOWS]
    if not fitting:
        return None
    longest = max(fitting)
    ends, across = window_ends(n_tokens, corpus.val_starts, longest)
    scored = min(MAX_SCORED, max(1, min(fitting) // 2))
    pieces = data.evenly(n_tokens - longest, PIECES)
    return Places(longest, scored, ends, pieces, across, stride)


def window_ends(n_tokens: int, starts: np.ndarray, longest: int) -> tuple[np.ndarray, bool]:
    """The offsets (64,) of the windows' last targets, and whether the windows cross documents.

    They are spread evenly over the targets that have `longest` inputs before them in their own
    document. If there are fewer than 64 of them, the split is taken as one document. The documents
    begin at `starts`.
    """
    stops = np.append(starts[1:], n_tokens)
    first = starts + longest
    counts = np.maximum(stops - first, 0)  # such targets in each document
    across = bool(counts.sum() < WINDOWS)
    if across:
        first, counts = np.array([longest]), np.array([n_tokens - longest])
    chosen = data.evenly(int(counts.sum()), WINDOWS)
    last = np.cumsum(counts)
    document = np.searchsorted(last, chosen, side="right")
    return first[document] + chosen - (last - counts)[document], across


# ---- protocols: the windows of each


def fixed_targets(places: Places, length: int) -> list[Windows]:
    """The 64 windows of exactly `length` inputs that end at the places; the last targets count."""
    scored = np.full(WINDOWS, places.scored)
    return [Windows(length, places.ends - length, scored, np.arange(WINDOWS))]


def nonoverlapping(places: Places, length: int) -> list[Windows]:
    """The pieces cut every `length` inputs, the rest shorter; every target is scored."""
    rest = places.longest % length
    plan = [cut_pieces(places, length, list(range(length, places.longest + 1, length)))]
    if rest:
        plan.append(cut_pieces(places, rest, [places.longest]))
    return plan


def sliding(places: Places, length: int) -> list[Windows]:
    """Windows moved by `stride`, at most `length`, through the pieces; each target scored once."""
    stops = range(length, places.longest, min(places.stride, length))
    return [cut_pieces(places, length, [*stops, places.longest])]


def cut_pieces(places: Places, length: int, stops: list[int]) -> Windows:
    """In each piece, windows of `length` inputs that end at `stops`.

    Each scores the targets that the one before it has left.
    """
    starts = (places.pieces[:, None] + stops - length).ravel()
    scored = np.minimum(np.diff(stops, prepend=0), length)
    block = np.repeat(np.arange(PIECES), len(stops))
    return Windows(length, starts, np.tile(scored, PIECES), block)


# Each protocol and its windows. To add one, write it here and into configurable.PROTOCOLS.
PLANS: dict[str, Callable[[Places, int], list[Windows]]] = {
    "fixed_targets": fixed_targets,
    "windowed": fixed_targets,  # the same windows; measure_rows limits their keys
    "nonoverlapping": nonoverlapping,
    "sliding": sliding,
}


def count_inputs(plan: list[Windows]) -> int:
    """The number of inputs in all windows."""
    return sum(windows.length * len(windows.starts) for windows in plan)


def targets_digest(plan: list[Windows]) -> str:
    """SHA-256 of the offsets of all scored targets, ascending, as little-endian int64."""
    offsets = np.sort(np.concatenate([windows.offsets() for windows in plan]))
    return hashlib.sha256(offsets.astype("<i8").tobytes()).hexdigest()


def remarks(protocol: str, places: Places) -> dict[str, Any]:
    """The fields of a row that warn of its places: `across_documents` and `note`, if needed."""
    fields, notes = {}, []
    spacing, extent = places.pieces, places.longest
    if PLANS[protocol] is fixed_targets:
        spacing, extent = places.ends, places.scored
        if places.across_documents:
            fields["across_documents"] = True
            few = f"too few are longer than {places.longest} tokens"
            notes.append(f"windows run across documents, {few}")
    if np.diff(spacing).min() < extent:
        notes.append("neighbouring blocks share targets, so standard errors are too small")
    if notes:
        fields["note"] = f"{protocol}: {'; '.join(notes)}"
    return fields


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

    def losses(self, windows: Windows, limit: int | None) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield (which windows, their losses (B, length) in nats), about 16k inputs at a time.

        The losses are float64. Of n processes each takes every n-th batch.
        """
        size = max(1, BATCH_TOKENS // windows.length)
        rank, processes = self.processes.rank, self.processes.size
        for first in range(size * rank, len(windows.starts), size * processes):
            part = slice(first, first + size)
            offsets = windows.starts[part, None] + np.arange(windows.length + 1)
            tokens = torch.from_numpy(self.corpus.val[offsets].astype(np.int64))
            tokens = tokens.to(self.compute.device)
            nats = self.model.losses(tokens[:, :-1], tokens[:, 1:], window=limit)
            yield part, nats.cpu().double().numpy()

    def score(
        self,
        plan: list[Windows],
        limit: int | None = None,
        whole: bool = False,
        bar: tqdm | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The scored nats summed in each block, (blocks,), float64.

        If `whole`, also every loss of the first windows, (windows, length); else (0,). A `limit`
        limits the keys to i - j < limit. `bar` shows the progress in inputs.
        """
        sums = np.zeros(1 + max(int(windows.block.max()) for windows in plan))
        kept = np.zeros((len(plan[0].starts), plan[0].length) if whole else 0)
        with device.autocast(self.compute):
            for windows in plan:
                for part, nats in self.losses(windows, limit):
                    first = windows.length - windows.scored[part, None]
                    counted = np.where(np.arange(windows.length) >= first, nats, 0.0)
                    np.add.at(sums, windows.block[part], counted.sum(axis=1))
                    if whole:
                        kept[part] = nats
                    if bar is not None:
                        bar.update(nats.size * self.processes.size)
        for array in (sums, kept):  # zero where another process has measured
            self.processes.sum(torch.from_numpy(array))
        return sums, kept


def per_position(losses: np.ndarray) -> dict[str, Any]:
    """Mean nats, standard error over windows, and counts, in bins of positions.

    losses: (windows, length). The position of a loss is the number of inputs before the last one
    that was read. Bin k has the positions from edges[k] up to, but without, edges[k + 1].
    """
    n_windows, length = losses.shape
    edges = [0, *(1 << k for k in range((length - 1).bit_length())), length]
    bins = list(itertools.pairwise(edges))
    means = [losses[:, a:b].mean(axis=1) for a, b in bins]
    return {
        "length": length,
        "edges": edges,
        "nats": [float(mean.mean()) for mean in means],
        "stderr": [standard_error(mean) for mean in means],
        "counts": [n_windows * (b - a) for a, b in bins],
    }


def float32_check(tester: Tester, places: Places, length: int, block_nats: list[float]) -> dict:
    """The first windows of fixed_targets tested in float32 too: both means and their difference.

    {} if everything was tested in float32.
    """
    if tester.compute.dtype is None:
        return {}
    plan = fixed_targets(places, length)[0]
    arrays = (plan.starts, plan.scored, plan.block)
    windows = Windows(length, *(array[:CHECK_WINDOWS] for array in arrays))
    exact = replace(tester, compute=replace(tester.compute, dtype=None))
    nats_float32 = float(exact.score([windows])[0].mean() / places.scored)
    nats = float(np.mean(block_nats[:CHECK_WINDOWS]))
    check = {"dtype": tester.compute.dtype_name, "length": length, "windows": CHECK_WINDOWS}
    return check | {"nats": nats, "nats_float32": nats_float32, "difference": nats - nats_float32}


# ---- rows


def measured_fields(
    corpus: data.Corpus, plan: list[Windows], sums: np.ndarray, token_bytes: np.ndarray | None
) -> dict[str, Any]:
    """The measured fields of a row, from the nats summed in each block.

    A loss that is not finite gives a reason instead. `token_bytes` (V,) are the UTF-8 bytes of each
    token, None if they are not known.
    """
    if not np.isfinite(sums).all():
        return {"nats": None, "reason": "the loss is not a finite number"}
    offsets = np.concatenate([windows.offsets() for windows in plan])
    nats = float(sums.sum() / len(offsets))
    means = sums * len(sums) / len(offsets)  # every block has as many targets
    blocks = [float(f"{mean:.7g}") for mean in means]
    n_bytes = 0 if token_bytes is None else token_bytes[corpus.val[offsets]].sum()
    return {
        "targets": targets_digest(plan),
        "tokens": len(offsets),
        "nats": nats,
        "stderr": standard_error(blocks),
        "stderr_vs_L": None,
        "block_nats": blocks,
        "perplexity": math.exp(nats) if nats < 700 else None,
        "bits_per_byte": float(sums.sum() / math.log(2) / n_bytes) if n_bytes else None,
    }


def bytes_of_tokens(corpus: data.Corpus) -> np.ndarray | None:
    """(V,) UTF-8 bytes of each token; None, and a note, if the tokenizer cannot be loaded."""
    try:
        return corpus.token_bytes()
    except UserError as error:
        print(f"note: bits_per_byte is left out: {error}")
        return None


def why_undefined(model: Any, corpus: data.Corpus, places: Places | None, length: int) -> str:
    """Why a length cannot be tested; empty if it can."""
    if places is None or length > places.longest:
        few = f"the {len(corpus.val)} validation tokens of {corpus.name} are too few"
        return f"{few} for {WINDOWS} windows of {length}"
    try:
        model.check_length(length)
    except UserError as error:
        return str(error)
    return ""


def extension_files(model: Any) -> dict[str, str]:
    """The names of the files that the active extension reads, and their SHA-256."""
    files = [piece.file for piece in model.pos.extensions]
    return {file.name: sha256(file) for file in files if file}


def name_files(rows: list[Row], model: Any, split_sha256: str) -> None:
    """Add to the rows the files of the extension, and a note if one was found on this very text."""
    files = extension_files(model)
    pieces = model.pos.extensions
    seen = any(piece.found_on == split_sha256 for piece in pieces)
    for row in rows:
        if files:
            row["files_sha256"] = files
        if seen:
            note = f"{row['extend']}: its file was found on half of this text"
            row["note"] = f"{row['note']}; {note}" if "note" in row else note


# ---- a test


@torch.no_grad()
def evaluate(
    model: Any,
    corpus: data.Corpus,
    *,
    train_length: int,
    lengths: tuple[int, ...] = (),
    protocols: tuple[str, ...] = PROTOCOLS,
    stride: int = 0,
    compute: device.Compute = device.CPU,
    processes: Processes = ALONE,
    progress: bool = True,
) -> dict[str, Any]:
    """Test a model by every protocol at every length; a stride above 0 adds `sliding`.

    Returns {"rows", "per_position", "float32_check", "notes"}, the tested part of
    extrapolation.json. What cannot be measured is a row with nats None and a reason. The model, on
    the device of `compute`, is put into eval mode and back.
    """
    tested = tested_lengths(train_length, lengths)
    protocols = (*protocols, "sliding") if stride else protocols
    for protocol in protocols:
        require(protocol in PLANS, f"there is no protocol {protocol}, only {', '.join(PLANS)}")
    places = find_places(corpus, tested, stride)
    reasons = {n: why_undefined(model, corpus, places, n) for n in tested}
    split = {"dataset": corpus.name, "split_sha256": corpus.split_sha256("val")}
    rows, plans = {}, {}
    for protocol, n in itertools.product(protocols, tested):
        rows[protocol, n] = {"protocol": protocol, "length": n} | model.extension_at(n) | split
        if reasons[n]:
            rows[protocol, n] |= {"nats": None, "reason": reasons[n]}
        else:
            plans[protocol, n] = PLANS[protocol](places, n)
    was_training = model.training
    model.eval()
    try:
        tester = Tester(model, corpus, compute, processes)
        extra = measure_rows(tester, places, plans, rows, train_length, progress)
    finally:
        model.train(was_training)
    measured = list(rows.values())
    name_files(measured, model, split["split_sha256"])
    results.compare_to_train_length(measured, train_length)
    return {"rows": measured, **extra, "notes": results.row_notes(measured, train_length)}


def measure_rows(
    tester: Tester,
    places: Places | None,
    plans: dict[tuple[str, int], list[Windows]],
    rows: Rows,
    train_length: int,
    progress: bool,
) -> dict[str, Any]:
    """Fill what is planned into the rows; returns {"per_position", "float32_check"}.

    Progress is a bar on a terminal, and a line for each row in a log.
    """
    extra = {"per_position": {}, "float32_check": {}}
    model, corpus = tester.model, tester.corpus
    token_bytes = bytes_of_tokens(corpus)
    progress = progress and tester.processes.first
    hidden = not (progress and sys.stderr.isatty())
    total = sum(map(count_inputs, plans.values()))
    style = {"unit": " tokens", "unit_scale": True, "leave": False}
    with tqdm(total=total, desc="testing long", disable=hidden, **style) as bar:
        for (protocol, n), plan in plans.items():
            row = rows[protocol, n]
            limit = train_length if protocol == "windowed" and n > train_length else None
            last = (protocol, n) == ("fixed_targets", max(length for _, length in plans))
            started = time.perf_counter()
            sums, kept = tester.score(plan, limit, last, bar)
            seconds = time.perf_counter() - started
            row |= measured_fields(corpus, plan, sums, token_bytes)
            if row["nats"] is not None:
                row["tokens_per_s"] = round(count_inputs(plan) / seconds, 1)
                row["dtype"] = tester.compute.dtype_name
            row |= {"attention": model.attention_path(n, limit)} | remarks(protocol, places)
            if progress and hidden:
                nats = f"{row['nats']:.4f} nats per token" if "dtype" in row else row["reason"]
                print(f"{protocol} at {n}: {nats}")
            if last and np.isfinite(kept).all():
                where = {"dataset": corpus.name, "extend": row["extend"]}
                extra["per_position"] = where | per_position(kept)
                extra["float32_check"] = float32_check(tester, places, n, row["block_nats"])
    return extra


def extrapolation(model: Any, corpus: data.Corpus, about: Result, **how: Any) -> Result:
    """All of extrapolation.json: what is known about the model, and what `evaluate` finds.

    For `about` see `describe_model`; `how` goes to `evaluate`.
    """
    started = time.perf_counter()
    tested = evaluate(model, corpus, train_length=about["train_length"], **how)
    seconds = round(time.perf_counter() - started, 1)
    return about | {"unit": corpus.unit} | tested | {"seconds": seconds}


# ---- runs


def evaluate_run(folder: str, settings: EvaluateSettings, processes: Processes) -> Result:
    """Test the model of a run folder; its result, to be shown under the extension of this test."""
    tested = open_run(folder, settings)
    model, own = tested.model, tested.settings
    about = results.describe_model(model, own, tested.state["tokens"])
    if settings.extend:
        model.extend(settings.extend)  # files as typed, not the run's own copies
    lock = lock_folder(tested.folder) if processes.first else None
    if (tested.folder / "extrapolation.json").exists():
        load_result(tested.folder)  # a damaged one is refused before hours of testing
    extension = model.extension_at(own.block_size)["extend"]
    extended = f", extended by {extension}" if extension else ""
    print(f"{folder}: {model.pos.text}{extended}, on {tested.compute.reason}")
    how = {"protocols": settings.protocols, "stride": settings.stride, "compute": tested.compute}
    how |= {"lengths": settings.eval_lengths or own.eval_lengths, "processes": processes}
    result = extrapolation(model, run_corpus(tested, settings.dataset), about, **how)
    if lock:
        result = results.update_result(folder, result)
        plot_run(folder, result)
        lock.release()
    return result | {"extend": extension}


def main() -> None:
    """Test runs, print their table, and draw several, or another corpus, in a figure."""
    settings, words = configure(EvaluateSettings, sys.argv[1:], __doc__)
    folders = named_folders(words, "evaluate.py")
    device.keep_freed_memory()
    compute = device.pick(settings.device, settings.dtype)
    advice = "lower eval_lengths, or leave the longest out"
    with device.memory_advice(advice), together("auto", compute) as processes:
        tested = [evaluate_run(folder, settings, processes) for folder in folders]
        if not processes.first:
            return
    show_runs(folders, tested, settings.dataset, settings.out)


if __name__ == "__main__":
    run_program(main)
