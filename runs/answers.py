"""Tests on rows with answers: how far a model reads, and exact match.

In a row (see data/recall, data/needles and data/tasks) some tokens are scored. Those next to each
other are one answer. It is right if each of them is the one that the model finds likeliest: then,
and only then, would the model write the whole answer if it wrote it token by token, each time the
likeliest, because up to the first wrong one it reads the same text. All rows of one size are read
in one pass. For exact match every answer of a row must be right.
"""

import hashlib
import itertools
import math
import time
from typing import Any

import numpy as np
import torch

from data import Corpus
from data.rows import LEAST, rows_of
from runs.device import Compute, autocast
from runs.processes import Processes
from runs.results import ANSWERED, Row, Rows, by_length, standard_error

BATCH_TOKENS = 16384  # inputs of one forward pass
Tested = dict[int, Row]  # rows with answers by length or size, ascending

GROUPS = 64  # of rows, for the standard error of the loss
DEPTHS = 8  # bins of the distance in parts of the length
LEARNED = 0.95  # accuracy on rows as long as those of training, below which nothing is claimed
HELD = 0.9  # of that accuracy, which every bin up to the reach holds
Z = 1.959964  # of a 95 % interval


def interval(right: int, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share, of `count` answers of which `right` are right.

    It takes the answers of one row for independent. A bootstrap over rows gave intervals 0.89 to
    1.10 times as wide (median 1.00), in 125 bins of alibi, rope and t5 on recall, L = 128, in texts
    of 128 to 2,048 tokens.
    """
    share, z2 = right / count, Z * Z / count
    middle = (share + z2 / 2) / (1 + z2)
    half = Z * math.sqrt(share * (1 - share) / count + z2 / (4 * count)) / (1 + z2)
    return middle - half, middle + half


@torch.no_grad()
def measure(model: Any, corpus: Corpus, size: int, compute: Compute, processes: Processes) -> Row:
    """The measured fields of a row of results: the validation rows of one size, answered.

    Of several processes each takes every n-th batch, and each has all the sums.
    """
    tokens, distances = rows_of(corpus, size)  # (R, T + 1) each
    scored = distances[:, 1:] > 0
    right, nats = np.zeros(scored.shape), np.zeros(scored.shape)
    at_once, started = max(1, BATCH_TOKENS // scored.shape[1]), time.perf_counter()
    with autocast(compute):
        for first in range(at_once * processes.rank, len(tokens), at_once * processes.size):
            part = slice(first, first + at_once)
            idx = torch.from_numpy(tokens[part].astype(np.int64)).to(compute.device)
            wanted = torch.from_numpy(scored[part]).to(compute.device)
            losses, hits = model.answers(idx[:, :-1], idx[:, 1:].where(wanted, -1))
            nats[part][scored[part]] = losses.cpu().double().numpy()
            right[part][scored[part]] = hits.cpu().double().numpy()
    for array in (nats, right):  # zero where another process has measured
        processes.sum(torch.from_numpy(array))
    seconds = time.perf_counter() - started
    digest = hashlib.sha256(np.ascontiguousarray(distances, dtype="<i8").tobytes()).hexdigest()
    fields = {"targets": digest, "tokens_per_s": round(scored.size / seconds, 1)}
    if corpus.meta["rows"]["protocol"] == "image":  # which has no answers
        return fields | loss_fields(nats, scored)
    return fields | summary(right, nats, distances[:, 1:])


def loss_fields(nats: np.ndarray, scored: np.ndarray) -> dict[str, Any]:
    """What is kept of the losses of the scored tokens, (rows, T) both."""
    if not np.isfinite(nats).all():
        reason = f"diverged: {int((~np.isfinite(nats)).sum())} losses are not finite"
        return {"nats": None, "diverged": True, "reason": reason}
    groups = np.array_split(np.arange(len(nats)), min(GROUPS, len(nats)))
    blocks = [float(f"{nats[group].sum() / scored[group].sum():.7g}") for group in groups]
    found = {"tokens": int(scored.sum()), "nats": float(nats.sum() / scored.sum())}
    found |= {"stderr": standard_error(blocks) if len(blocks) > 1 else math.inf}
    return found | {"stderr_vs_L": None, "block_nats": blocks}


def summary(right: np.ndarray, nats: np.ndarray, distances: np.ndarray) -> dict[str, Any]:
    """What is kept of answers: all (rows, T), where a token with the distance 0 is not scored."""
    scored = distances > 0
    found = loss_fields(nats, scored)
    if found["nats"] is None:
        return found
    first = scored & ~np.pad(scored, ((0, 0), (1, 0)))[:, :-1]  # tokens of answers
    asked = distances[first]
    correct = np.minimum.reduceat(right[scored], np.flatnonzero(first[scored])) > 0
    whole = int((right == scored).all(axis=1).sum())
    found |= {"accuracy": float(correct.mean()), "texts": len(right), "exact": whole}
    depths = binned(np.arange(DEPTHS + 1) / DEPTHS, asked / scored.shape[1], correct)
    return found | {"by_distance": binned(doubling(asked), asked, correct), "by_depth": depths}


def doubling(distances: np.ndarray) -> np.ndarray:
    """The edges 1, 2, 4 ... of bins of these distances; near bins are joined until LEAST are in."""
    low, high = (int(n).bit_length() for n in (distances.min(), distances.max()))
    edges = 2 ** np.arange(low - 1, high + 1)
    joined = np.cumsum(np.histogram(distances, edges)[0][:-1]) < LEAST
    return np.delete(edges, 1 + np.flatnonzero(joined))


def binned(edges: np.ndarray, distances: np.ndarray, correct: np.ndarray) -> dict[str, list]:
    """How many answers are in each bin of distances or depths, and how many of them are right."""
    counts, right = (np.histogram(x, edges)[0] for x in (distances, distances[correct]))
    return {"edges": edges.tolist(), "counts": counts.tolist(), "right": right.tolist()}


# ---- what rows show


def answered(rows: Rows) -> Tested:
    """The rows with answers among these, by ascending length or size."""
    return {n: row for protocol in ANSWERED for n, row in by_length(rows, protocol).items()}


def is_recall(tested: Tested) -> bool:
    """Whether these are rows of recall or with needles, and not of exact match."""
    return any(row["protocol"] != "exact_match" for row in tested.values())


def has_depths(tested: Tested) -> bool:
    """Whether a map of depths can be drawn: these are rows with needles, and some are measured."""
    return any(row["protocol"] == "needles" and row["nats"] is not None for row in tested.values())


def share(row: Row) -> float:
    """The share of right answers or, for exact match, of texts without a mistake; or nan."""
    if row["nats"] is None:
        return math.nan
    return row["exact"] / row["texts"] if row["protocol"] == "exact_match" else row["accuracy"]


def inside(tested: Tested) -> float:
    """The mean share over the sizes that were trained; 0 if none was tested."""
    shares = [share(row) for n, row in tested.items() if n <= row["trained"]]
    return float(np.mean(shares)) if shares else 0.0


def learned(tested: Tested) -> float:
    """The share over the sizes that were trained; 0 if it is below LEARNED, or not above what
    counting without order answers.
    """
    fair = all(beats_counting(row) for n, row in tested.items() if n <= row["trained"])
    return inside(tested) if fair and inside(tested) >= LEARNED else 0.0


def beats_counting(row: Row) -> bool:
    """Whether the lower end of the interval of all answers of a row is above counting's share."""
    if not row.get("counted"):
        return True
    bins = row["by_distance"]
    counts, edges = bins["counts"], itertools.pairwise(bins["edges"])
    cheap = np.average([by_counting(row, *ends) for ends in edges], weights=counts)
    return interval(sum(bins["right"]), sum(counts))[0] > cheap


def reach_in(row: Row, accuracy: float) -> int:
    """The largest distance, in texts of one length, up to which every bin holds.

    A bin holds if it has LEAST answers and the lower end of its interval is at least HELD of
    `accuracy`, that inside the training length; in longer texts it is also above what counting
    without order answers.
    """
    bins, reach = row["by_distance"], 0
    edges = itertools.pairwise(bins["edges"])
    for (first, end), right, count in zip(edges, bins["right"], bins["counts"], strict=True):
        cheap = 0.0 if row["length"] <= row["trained"] else by_counting(row, first, end)
        least = max(HELD * accuracy, cheap)
        if count < LEAST or interval(right, count)[0] < least:
            break
        reach = end
    return reach


def by_counting(row: Row, first: int, end: int) -> float:
    """The share of answers from `first` to `end` that counting gives right; 0: not known."""
    known = row.get("counted") or {}  # of recall; older results have none
    return max((share for d, share in known.items() if first <= int(d) < end), default=0.0)


def tested_to(row: Row) -> int:
    """The end of the last bin of distances up to which each has LEAST answers."""
    bins = row["by_distance"]
    enough = itertools.takewhile(lambda c: c >= LEAST, bins["counts"])
    return bins["edges"][sum(1 for _ in enough)]


def reach(tested: Tested) -> int:
    """How far it goes: for recall, how many tokens back a model reads in texts of the length at
    which it reads farthest; for exact match, the largest size up to which HELD are without mistake.

    0 if it was not learned.
    """
    accuracy = learned(tested)
    if not accuracy:
        return 0
    if is_recall(tested):
        return max(reach_in(row, accuracy) for row in tested.values() if row["nats"] is not None)
    held = itertools.takewhile(lambda n: share(tested[n]) >= HELD, tested)
    return max(held, default=0)


def curve(tested: Tested) -> dict[int, tuple[int, int]]:
    """How many answers are right, and how many there are: by distance in the longest texts that
    have an answer, the least of each bin; for exact match by size.
    """
    rows = [row for row in tested.values() if row["nats"] is not None]
    if not is_recall(tested):
        return {row["length"]: (row["exact"], row["texts"]) for row in rows}
    bins = rows[-1]["by_distance"] if rows else {"edges": [], "right": [], "counts": []}
    found = zip(bins["edges"], bins["right"], bins["counts"], strict=False)
    return {first: (right, count) for first, right, count in found if count}


def verdict(tested: Tested) -> str:
    """What rows with answers show, in a sentence."""
    found = reach(tested)
    if not found:
        counts = inside(tested) >= LEARNED
        why = "no better than counting without order" if counts else f"below {LEARNED:.0%}"
        return f"not learned: {why} at the trained size"
    if not is_recall(tested):
        return f"solves sizes up to {found}"
    far = {n: reach_in(row, learned(tested)) for n, row in tested.items() if "by_distance" in row}
    old = any(tested[n]["protocol"] == "recall" and "counted" not in tested[n] for n in far)
    compared = ", not compared with counting: evaluate it again" * old
    best, longest = max(n for n in far if far[n] == found), max(far)
    less = f", and {far[longest]} in texts of {longest}" if best < longest else ""
    if found == max(tested_to(tested[n]) for n in far):
        least = f"reads at least {found} tokens back, the longest tested"
        return f"{least}, in texts of {best}{less}{compared}"
    window = f": as far as a model that sees at most its last {found} tokens"
    return f"reads {found} tokens back in texts of {best}{less or window}{compared}"


# ---- tables: the cells of one result, below a line with their heads, for `tables.aligned`


def size_lines(tested: Tested) -> list[list[str]]:
    """The cells of rows of exact match: one line.

    The share of texts answered without a mistake, by size.
    reach  the largest size up to which at least 90 % are, and 95 % at trained sizes
    """
    shares = [f"{share(row):.3f}" for row in tested.values()]
    return [["", *map(str, tested), "reach"], ["", *shares, str(reach(tested) or "not learned")]]


def distance_lines(tested: Tested) -> list[list[str]]:
    """The cells of rows of recall or with needles: a line for each length.

    The share of right answers by distance. The head is the shortest of a bin, N the length of a
    text. A value is right if all its letters are.
    reach  the end of the last bin up to which every bin holds: it has 400 answers, and the lower
           end of its 95 % interval is at least 90 % of the accuracy at L, itself at least 95 %. In
           recall it is above what counting without order answers, too, beyond L and of all at L. A
           model that reads up to 9 % less far can have the same reach
    """
    accuracy, found = learned(tested), {n: curve({n: row}) for n, row in tested.items()}
    cells = {n: {x: f"{a / b:.2f}" for x, (a, b) in points.items()} for n, points in found.items()}
    heads = sorted(set().union(*cells.values()))
    lines = [["", "N", *map(str, heads), "reach"]]
    for n, row in tested.items():
        far = str(reach_in(row, accuracy)) if accuracy and row["nats"] is not None else ""
        shown = [cells[n].get(head, "") for head in heads]
        lines.append(["", str(n), *shown, row.get("reason") or far or "not learned"])
    return lines
