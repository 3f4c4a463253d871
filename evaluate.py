"""Testing long: how a model does on texts longer than it was trained on, and what the numbers can show.

L is the training length, N a tested one. Every scheme is tested on the same targets, and every comparison is paired,
block by block: a block is a window of `fixed_targets` and `windowed`, a piece of the other protocols.
"""

import hashlib
import itertools
import math
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

import data
from configurable import PROTOCOLS, EvaluateSettings, UserError, configure, run
from runs import device
from runs.results import Row, Rows, compare_to_train_length, row_notes, standard_error
from runs.checkpoint import Run, load_run
from runs.figures import plot_run, plot_runs
from runs.files import sha256
from runs.folder import lock_folder, scheme_label
from runs.processes import ALONE, Processes, together
from runs.results import load_result, update_result
from runs.tables import runs_table

USAGE = """python evaluate.py out/RUN [out/RUN ...] [--key=value ...]

Test trained runs on texts longer than they were trained on, into each run's extrapolation.json and .png, and print a table;
several runs are drawn in one figure too."""
WINDOWS, PIECES = 64, 16
MAX_SCORED = 32  # targets that a window of fixed_targets scores
BATCH_TOKENS = 16384  # inputs of one forward
CHECK_WINDOWS = 8  # windows that are run in float32 too
CPU = device.Compute("cpu", None, "by default")


# ---- where


@dataclass(frozen=True)
class Places:
    """Where one validation split is tested; the same for every scheme and every length of one evaluation."""

    longest: int  # inputs
    scored: int  # targets scored at the end of a window of fixed_targets
    ends: np.ndarray  # (64,) offset of each window's last target
    pieces: np.ndarray  # (16,) offset of each piece's first input
    across_documents: bool  # the windows reach over document starts

    def remarks(self, protocol: str) -> dict[str, Any]:
        """What a row of this protocol must say about its places."""
        to_the_end = protocol in ("fixed_targets", "windowed")
        spacing, extent = (self.ends, self.scored) if to_the_end else (self.pieces, self.longest)
        across = {"across_documents": True} if to_the_end and self.across_documents else {}
        texts = (
            [f"windows run across documents, too few are longer than {self.longest} tokens"]
            if across
            else []
        )
        if np.diff(spacing).min() < extent:
            texts.append("neighbouring blocks share targets, so standard errors are too small")
        return across | ({"note": f"{protocol}: {'; '.join(texts)}"} if texts else {})


@dataclass(frozen=True)
class Windows:
    """Windows of equal length: inputs tokens[start : start + length], each scored on its last `scored` targets."""

    length: int
    starts: np.ndarray  # (W,)
    scored: np.ndarray  # (W,)
    block: np.ndarray  # (W,) the block that each window's scored losses belong to

    def offsets(self) -> np.ndarray:
        """The offsets of all scored targets in the split, window after window."""
        last = self.starts + self.length
        return np.concatenate(
            [np.arange(end - k + 1, end + 1) for end, k in zip(last, self.scored, strict=True)]
        )


def tested_lengths(train_length: int, lengths: tuple[int, ...] = ()) -> list[int]:
    """The ascending lengths to test: those given, else L/2, L, 2L ... 32L; L is always among them."""
    return sorted(
        {*(lengths or (train_length // 2, *(train_length << k for k in range(6)))), train_length}
        - {0}
    )


def window_ends(
    n_tokens: int, document_starts: np.ndarray, longest: int
) -> tuple[np.ndarray, bool]:
    """The offsets (64,) of the windows' last targets, and whether the windows run across documents."""
    stops = np.append(document_starts[1:], n_tokens)
    first = document_starts + longest
    places = np.maximum(
        stops - first, 0
    )  # targets of each document with the longest window before them
    across = bool(places.sum() < WINDOWS)
    if across:
        first, places = np.array([longest]), np.array([n_tokens - longest])
    picked = data.evenly(int(places.sum()), WINDOWS)
    document = np.searchsorted(np.cumsum(places), picked, side="right")
    return first[document] + picked - (np.cumsum(places) - places)[document], across


def place(n_tokens: int, document_starts: np.ndarray, lengths: list[int]) -> Places | None:
    """The places for the lengths that fit the split with 64 different ends; None where no length does."""
    fitting = [n for n in lengths if n_tokens - n >= WINDOWS]
    if not fitting:
        return None
    ends, across = window_ends(n_tokens, document_starts, max(fitting))
    scored = min(MAX_SCORED, max(1, min(fitting) // 2))
    return Places(max(fitting), scored, ends, data.evenly(n_tokens - max(fitting), PIECES), across)


def fixed_targets(places: Places, length: int) -> list[Windows]:
    """The 64 windows of exactly `length` inputs that end at the places; the last targets are scored."""
    return [
        Windows(length, places.ends - length, np.full(WINDOWS, places.scored), np.arange(WINDOWS))
    ]


def cut(places: Places, length: int, stops: list[int]) -> Windows:
    """In each piece, windows of `length` inputs that end at `stops`; each scores what the one before it left."""
    starts = (places.pieces[:, None] + stops - length).ravel()
    scored = np.minimum(np.diff(stops, prepend=0), length)
    return Windows(
        length, starts, np.tile(scored, PIECES), np.repeat(np.arange(PIECES), len(stops))
    )


def nonoverlapping(places: Places, length: int) -> list[Windows]:
    """The pieces cut every `length` inputs, the rest shorter; every target is scored."""
    rest = places.longest % length
    return [
        cut(places, length, list(range(length, places.longest + 1, length))),
        *([cut(places, rest, [places.longest])] if rest else []),
    ]


def sliding(places: Places, length: int, stride: int) -> list[Windows]:
    """Windows of `length` inputs moved by `stride` (at most `length`) through the pieces; each target scored once."""
    stops = range(length, places.longest, min(stride, length))
    return [cut(places, length, [*stops, places.longest])]


def planned(protocol: str, places: Places, length: int, stride: int) -> list[Windows]:
    """The windows of one protocol at one length."""
    if protocol == "sliding":
        return sliding(places, length, stride)
    return (
        nonoverlapping(places, length)
        if protocol == "nonoverlapping"
        else fixed_targets(places, length)
    )


# ---- how much


@dataclass(frozen=True)
class Bench:
    """A model on a device with a text to test it on."""

    model: Any
    corpus: data.Corpus
    token_bytes: np.ndarray | None  # (V,) UTF-8 bytes of each token, None where they cannot be told
    compute: device.Compute
    processes: Processes
    bar: tqdm
    lines: bool  # plain lines, where progress is wanted and no terminal shows the bar


def losses(bench: Bench, windows: Windows, limit: int | None) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield (which windows, their losses (B, length) in nats, float64), about 16k inputs at a time.

    Of several processes each takes every n-th of these batches.
    """
    size = max(1, BATCH_TOKENS // windows.length)
    for first in range(
        size * bench.processes.rank, len(windows.starts), size * bench.processes.size
    ):
        part = slice(first, first + size)
        places = windows.starts[part, None] + np.arange(windows.length + 1)
        batch = torch.from_numpy(bench.corpus.val[places].astype(np.int64)).to(bench.compute.device)
        nats = bench.model.losses(batch[:, :-1], batch[:, 1:], window=limit)
        yield part, nats.cpu().double().numpy()
        bench.bar.update(len(places) * windows.length * bench.processes.size)


def score(
    bench: Bench, plan: list[Windows], limit: int | None = None, whole: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """The scored nats summed per block, (blocks,), and, if `whole`, every loss of each window, (windows, length).

    A `limit` limits the keys to i - j < limit.
    """
    sums = np.zeros(1 + max(int(windows.block.max()) for windows in plan))
    kept = np.zeros((len(plan[0].starts), plan[0].length) if whole else 0)
    with device.autocast(bench.compute):
        for windows in plan:
            for part, nats in losses(bench, windows, limit):
                counted = np.arange(windows.length) >= windows.length - windows.scored[part, None]
                np.add.at(sums, windows.block[part], np.where(counted, nats, 0.0).sum(axis=1))
                if whole:
                    kept[part] = nats
    for array in (sums, kept):  # what others measured is zero here
        bench.processes.sum(torch.from_numpy(array))
    return sums, kept


def targets_of(plan: list[Windows]) -> str:
    """SHA-256 of the offsets of all scored targets, ascending, as little-endian int64: what was asked."""
    offsets = np.sort(np.concatenate([windows.offsets() for windows in plan]))
    return hashlib.sha256(offsets.astype("<i8").tobytes()).hexdigest()


def measured(bench: Bench, plan: list[Windows], sums: np.ndarray, seconds: float) -> dict[str, Any]:
    """The measured fields of a row, from nats summed per block; a loss that is not finite gives a reason instead."""
    if not np.isfinite(sums).all():
        return {"nats": None, "reason": "the loss is not a finite number"}
    offsets = np.sort(np.concatenate([windows.offsets() for windows in plan]))
    nats = float(sums.sum() / len(offsets))
    blocks = [
        float(f"{x:.7g}") for x in sums * len(sums) / len(offsets)
    ]  # every block has as many targets
    text_bytes = (
        0 if bench.token_bytes is None else bench.token_bytes[bench.corpus.val[offsets]].sum()
    )
    return {
        "targets": targets_of(plan),
        "tokens": len(offsets),
        "nats": nats,
        "stderr": standard_error(blocks),
        "stderr_vs_L": None,
        "block_nats": blocks,
        "perplexity": math.exp(nats) if nats < 700 else None,
        "bits_per_byte": float(sums.sum() / math.log(2) / text_bytes) if text_bytes else None,
        "tokens_per_s": round(sum(w.length * len(w.starts) for w in plan) / seconds, 1),
        "dtype": bench.compute.dtype_name,
    }


def bytes_of_tokens(corpus: data.Corpus) -> np.ndarray | None:
    """(V,) UTF-8 bytes of each token; None, with a line, where the tokenizer cannot be had: a test is worth more."""
    try:
        return corpus.token_bytes()
    except UserError as error:
        print(f"note: bits_per_byte is left out: {error}")
        return None


def undefined(model: Any, corpus: data.Corpus, places: Places | None, length: int) -> str:
    """Why a length cannot be tested; empty where it can."""
    if places is None or length > places.longest:
        return f"the {len(corpus.val)} validation tokens of {corpus.name} are too few for {WINDOWS} windows of {length}"
    try:
        model.check_length(length)
    except UserError as error:
        return str(error)
    return ""


def per_position(curve: np.ndarray) -> dict[str, Any]:
    """Mean nats, standard error over windows and counts by position: how many inputs stand before the last one read.

    curve: (windows, length). Bin k holds the positions from edges[k] up to, not including, edges[k + 1].
    """
    n_windows, length = curve.shape
    edges = [0, *(1 << k for k in range((length - 1).bit_length())), length]
    bins = list(itertools.pairwise(edges))
    means = [curve[:, a:b].mean(axis=1) for a, b in bins]
    return {
        "length": length,
        "edges": edges,
        "nats": [float(x.mean()) for x in means],
        "stderr": [standard_error(x) for x in means],
        "counts": [n_windows * (b - a) for a, b in bins],
    }


def float32_check(
    bench: Bench, places: Places, length: int, block_nats: list[float]
) -> dict[str, Any]:
    """The first windows of fixed_targets run in float32 too: both means and their difference; {} where all were."""
    if bench.compute.dtype is None:
        return {}
    windows = fixed_targets(places, length)[0]
    first = Windows(
        length, *(x[:CHECK_WINDOWS] for x in (windows.starts, windows.scored, windows.block))
    )
    exactly = replace(bench, compute=replace(bench.compute, dtype=None), bar=tqdm(disable=True))
    exact = float(score(exactly, [first])[0].mean() / places.scored)
    nats = float(np.mean(block_nats[:CHECK_WINDOWS]))
    return {
        "dtype": bench.compute.dtype_name,
        "length": length,
        "windows": CHECK_WINDOWS,
        "nats": nats,
        "nats_float32": exact,
        "difference": nats - exact,
    }


def measure(
    bench: Bench,
    places: Places | None,
    plans: dict[tuple[str, int], list[Windows]],
    train_length: int,
) -> tuple[Rows, dict[str, Any]]:
    """Run every plan: the measured fields of its row, by (protocol, length), then per_position and float32_check."""
    rows, extra = {}, {"per_position": {}, "float32_check": {}}
    for (protocol, length), plan in plans.items():
        limit = train_length if protocol == "windowed" and length > train_length else None
        last = (protocol, length) == ("fixed_targets", max(n for _, n in plans))
        started = time.perf_counter()
        sums, kept = score(bench, plan, limit, whole=last)
        row = measured(bench, plan, sums, time.perf_counter() - started)
        row |= {"attention": bench.model.attention_path(length, limit)} | places.remarks(protocol)
        rows[protocol, length] = row
        if bench.lines:
            print(
                f"{protocol} at {length}: {row.get('reason') or format(row['nats'], '.4f') + ' nats per token'}"
            )
        if last and np.isfinite(kept).all():
            about = {
                "dataset": bench.corpus.name,
                "extend": bench.model.extension_at(length)["extend"],
            }
            extra["per_position"] = about | per_position(kept)
            extra["float32_check"] = float32_check(bench, places, length, row["block_nats"])
    return rows, extra


@torch.no_grad()
def evaluate(
    model: Any,
    corpus: data.Corpus,
    *,
    train_length: int,
    lengths: tuple[int, ...] = (),
    protocols: tuple[str, ...] = PROTOCOLS,
    stride: int = 0,
    compute: device.Compute = CPU,
    processes: Processes = ALONE,
    progress: bool = True,
) -> dict[str, Any]:
    """Test a model by every protocol at every length; a stride above 0 adds `sliding`.

    Returns {"rows", "per_position", "float32_check", "notes"}, the tested part of extrapolation.json. What cannot be
    measured is a row with nats None and a reason. The model, on `compute`'s device, is put into eval mode and back.
    """
    tested, was_training = tested_lengths(train_length, lengths), model.training
    todo = list(itertools.product((*protocols, *(["sliding"] if stride else [])), tested))
    places = place(len(corpus.val), corpus.val_starts, tested)
    reasons = {n: undefined(model, corpus, places, n) for n in tested}
    plans = {(p, n): planned(p, places, n, stride) for p, n in todo if not reasons[n]}
    progress = progress and processes.first
    bar = tqdm(
        total=sum(w.length * len(w.starts) for plan in plans.values() for w in plan),
        desc="testing long",
        unit=" tokens",
        unit_scale=True,
        leave=False,
        disable=not (progress and sys.stderr.isatty()),
    )
    bench = Bench(
        model,
        corpus,
        bytes_of_tokens(corpus),
        compute,
        processes,
        bar,
        lines=progress and bar.disable,
    )
    model.eval()
    try:
        found, extra = measure(bench, places, plans, train_length)
    finally:
        bar.close()
        model.train(was_training)
    split = {"dataset": corpus.name, "split_sha256": corpus.split_sha256("val")}
    rows = [
        from_files(
            model,
            corpus,
            {"protocol": p, "length": n}
            | model.extension_at(n)
            | split
            | found.get((p, n), {"nats": None, "reason": reasons[n]}),
        )
        for p, n in todo
    ]
    compare_to_train_length(rows, train_length)
    return {"rows": rows, **extra, "notes": row_notes(rows, train_length)}


def files_of(model: Any) -> dict[str, str]:
    """The names of the files that the extension in force reads, and their SHA-256."""
    return {
        piece.file.name: sha256(piece.file)
        for piece in model.pos.extensions
        if getattr(piece, "file", None)
    }


def from_files(model: Any, corpus: data.Corpus, row: Row) -> Row:
    """A row with the digests of such files, and a note where one was found by a search or fit on this very text."""
    known = any(
        getattr(piece, "found_on", "") == corpus.split_sha256("val")
        for piece in model.pos.extensions
    )
    notes = [
        *filter(None, [row.get("note")]),
        *[f"{row['extend']}: its file was found on half of this text"] * known,
    ]
    files = files_of(model)
    return (
        row
        | ({"files_sha256": files} if files else {})
        | ({"note": "; ".join(notes)} if notes else {})
    )


# ---- runs


def extrapolation(
    model: Any,
    corpus: data.Corpus,
    *,
    pos: str,
    train_length: int,
    original_length: int,
    tokens_trained: int,
    seed: int,
    **how: Any,
) -> dict[str, Any]:
    """All of extrapolation.json for a model and what it was trained on; `how` goes to `evaluate`.

    `extend` is the extension that tables and figures show: the one in force.
    """
    started = time.perf_counter()
    about = {
        "pos": pos,
        "extend": model.extension_at(train_length)["extend"],
        "train_length": train_length,
        "original_length": original_length,
        "seed": seed,
        "tokens_trained": tokens_trained,
        "unit": corpus.unit,
        "parameters": model.parameter_count,
    }
    found = evaluate(model, corpus, train_length=train_length, **how)
    return about | found | {"seconds": round(time.perf_counter() - started, 1)}


def corpus_of(run: Run, dataset: str) -> data.Corpus:
    """The corpus of that name (empty: the run's own); UserError unless it has the run's tokenizer."""
    own = data.load(run.settings["dataset"])
    corpus = own if dataset in ("", own.name) else data.load(dataset)
    corpus.verify("val")
    kinds = [
        tuple(c.meta.get(key) for key in ("tokenizer", "vocab_size", "characters"))
        for c in (own, corpus)
    ]
    if kinds[0] != kinds[1] or corpus.vocab_size != run.model.config.vocab_size:
        raise UserError(
            f"{corpus.name} has another tokenizer or vocabulary than {own.name}, which {run.folder} was trained "
            "on: prepare its text with the same --tokenizer"
        )
    if corpus is own and own.split_sha256("val") != run.config["corpus_sha256"]["val"]:
        print(
            f"note: {own.name} is not the text that {run.folder} was trained with; its validation split has changed"
        )
    return corpus


def extended(model: Any) -> str:
    """The extension in force, for a line that names a scheme."""
    return f", extended by {model.pos.extended}" if model.pos.extended else ""


def tested_folder(
    folder: str, settings: EvaluateSettings, processes: Processes
) -> dict[str, Any]:
    """Test the model of a run folder as the settings say, and return all that has been measured of it."""

    compute = device.pick(settings.device, settings.dtype)
    trained = load_run(folder, compute.device, settings.pos_file)
    as_trained = {
        "extend": trained.model.pos.extended or None,
        "parameters": trained.model.parameter_count,
    }
    if settings.extend:
        trained.model.extend(settings.extend)  # files as typed, not the run's own copies
    held = lock_folder(trained.folder) if processes.first else None
    if (trained.folder / "extrapolation.json").exists():
        load_result(trained.folder)  # a damaged one is refused before hours of testing
    print(f"{folder}: {trained.model.pos.text}{extended(trained.model)}, on {compute.reason}")
    found = extrapolation(
        trained.model,
        corpus_of(trained, settings.dataset),
        pos=scheme_label(trained.settings),
        train_length=trained.settings["block_size"],
        original_length=trained.state["original_length"],
        tokens_trained=trained.state["tokens"],
        seed=trained.settings["seed"],
        compute=compute,
        lengths=settings.eval_lengths or tuple(trained.settings["eval_lengths"]),
        protocols=settings.protocols,
        stride=settings.stride,
        processes=processes,
    )
    if held is None:
        return found
    result = update_result(folder, found | as_trained)
    plot_run(folder, result)
    held.release()
    return result | {"extend": found["extend"]}


def main() -> None:
    """Test runs, or only draw them, print their table, and draw several, or another corpus, in a figure of their own."""

    settings, words = configure(EvaluateSettings, sys.argv[1:], USAGE)
    folders = [
        word for word in words if not Path(word).is_file()
    ]  # a shell's out/* brings figures along
    if not folders:
        raise UserError("no run folder is named: python evaluate.py out/RUN")
    device.keep_freed_memory()
    if settings.draw_only:
        results = [load_result(folder) for folder in folders]
        for folder, result in zip(folders, results, strict=True):
            plot_run(folder, result)
    else:
        with (
            device.memory_advice("lower eval_lengths, or leave the longest out"),
            together("auto", device.pick(settings.device, settings.dtype)) as processes,
        ):
            results = [tested_folder(folder, settings, processes) for folder in folders]
            if not processes.first:
                return
    print(runs_table(results, settings.dataset))
    if len(folders) > 1 or settings.dataset or settings.out:
        path = (
            settings.out
            or beside(folders) / f"extrapolation{settings.dataset and '-' + settings.dataset}.png"
        )
        plot_runs(results, path, settings.dataset)
        print(f"drawn in {path}")


def beside(folders: list[str]) -> Path:
    """Where a figure of several runs goes: the folder that holds them all; that of one run goes into its folder."""
    if len(folders) == 1:
        return Path(folders[0])
    return Path(os.path.commonpath([Path(folder).resolve().parent for folder in folders]))


if __name__ == "__main__":
    run(main)
