"""Tests on rows with answers: how far a model reads, and exact match.

In a row (see data/recall and data/tasks) some tokens are scored. Such a token is right if it is the
one that the model finds likeliest. All rows of one size are read in one pass. For exact match every
scored token of a row must be right: then, and only then, would the model write the whole answer if
it wrote it token by token, each time the likeliest, because up to the first wrong one it reads the
same text.
"""

import hashlib
import itertools
import math
import time
from typing import Any

import numpy as np
import torch

from data import Corpus
from data.rows import rows_of
from runs import device
from runs.processes import ALONE, Processes
from runs.results import ANSWERED, Row, Rows, by_length, standard_error

BATCH_TOKENS = 16384  # inputs of one forward pass
Tested = dict[int, Row]  # rows with answers by length or size, ascending

GROUPS = 64  # of rows, for the standard error of the loss
LEAST = 400  # scored tokens that a bin of distances needs
DEPTHS = 8  # bins of the distance in parts of the length
LEARNED = 0.95  # accuracy on rows as long as those of training, below which nothing is claimed
HELD = 0.9  # of that accuracy, which every bin up to the reach holds
Z = 1.959964  # of a 95 % interval


def interval(right: int, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share, of `count` answers of which `right` are right."""
    share, z2 = right / count, Z * Z / count
    middle = (share + z2 / 2) / (1 + z2)
    half = Z * math.sqrt(share * (1 - share) / count + z2 / (4 * count)) / (1 + z2)
    return middle - half, middle + half


@torch.no_grad()
def measure(
    model: Any,
    corpus: Corpus,
    size: int,
    compute: device.Compute = device.CPU,
    processes: Processes = ALONE,
) -> dict[str, Any]:
    """The measured fields of a row of results: the validation rows of one size, answered.

    Of several processes each takes every n-th batch, and each has all the sums.
    """
    tokens, distances = rows_of(corpus, size)  # (R, T + 1) each
    scored = distances[:, 1:] > 0
    right, nats = np.zeros(scored.shape), np.zeros(scored.shape)
    at_once, started = max(1, BATCH_TOKENS // scored.shape[1]), time.perf_counter()
    with device.autocast(compute):
        for first in range(at_once * processes.rank, len(tokens), at_once * processes.size):
            part = slice(first, first + at_once)
            idx = torch.from_numpy(tokens[part].astype(np.int64)).to(compute.device)
            wanted = torch.from_numpy(scored[part]).to(compute.device)
            targets = idx[:, 1:].where(wanted, -1)
            losses, hits = model.answers(idx[:, :-1], targets)
            nats[part][scored[part]] = losses.cpu().double().numpy()
            right[part][scored[part]] = hits.cpu().double().numpy()
    for array in (nats, right):  # zero where another process has measured
        processes.sum(torch.from_numpy(array))
    seconds = time.perf_counter() - started
    digest = hashlib.sha256(np.ascontiguousarray(distances, dtype="<i8").tobytes()).hexdigest()
    fields = {"targets": digest, "tokens_per_s": round(scored.size / seconds, 1)}
    return fields | summary(right, nats, distances[:, 1:])


def summary(right: np.ndarray, nats: np.ndarray, distances: np.ndarray) -> dict[str, Any]:
    """What is kept of answers: all (rows, T), where a token with the distance 0 is not scored."""
    scored = distances > 0
    if not np.isfinite(nats).all():
        reason = f"diverged: {int((~np.isfinite(nats)).sum())} losses are not finite"
        return {"nats": None, "diverged": True, "reason": reason}
    groups = np.array_split(np.arange(len(right)), min(GROUPS, len(right)))
    blocks = [float(f"{nats[group].sum() / scored[group].sum():.7g}") for group in groups]
    whole = int((right == scored).all(axis=1).sum())
    return {
        "tokens": int(scored.sum()),
        "nats": float(nats.sum() / scored.sum()),
        "stderr": standard_error(blocks) if len(blocks) > 1 else math.inf,
        "stderr_vs_L": None,
        "block_nats": blocks,
        "accuracy": float(right.sum() / scored.sum()),
        "texts": len(right),
        "exact": whole,
        "by_distance": binned(doubling(distances[scored]), distances, right),
        "by_depth": binned(np.arange(DEPTHS + 1) / DEPTHS, distances / scored.shape[1], right),
    }


def doubling(distances: np.ndarray) -> np.ndarray:
    """The edges 1, 2, 4 ... of bins of these distances; near bins are joined until LEAST are in."""
    low, high = (int(n).bit_length() for n in (distances.min(), distances.max()))
    edges = 2 ** np.arange(low - 1, high + 1)
    joined = np.cumsum(np.histogram(distances, edges)[0][:-1]) < LEAST
    return np.delete(edges, 1 + np.flatnonzero(joined))


def binned(edges: np.ndarray, distances: np.ndarray, right: np.ndarray) -> dict[str, list]:
    """The scored tokens in each bin of distances or depths, how many of them are right, and of how
    many answers they are; both arrays are (rows, T). Tokens next to each other are of one answer.
    """
    scored = distances > 0
    first = scored & ~np.pad(scored, ((0, 0), (1, 0)))[:, :-1]
    found = {"edges": edges.tolist()}
    for name, counted in {"counts": scored, "right": right, "answers": first}.items():
        numbers = np.histogram(distances[scored], edges, weights=counted[scored] * 1.0)[0]
        found[name] = numbers.astype(int).tolist()
    return found


# ---- what rows show


def answered(rows: Rows) -> Tested:
    """The rows with answers among these, by ascending length or size."""
    return {n: row for protocol in ANSWERED for n, row in by_length(rows, protocol).items()}


def is_recall(tested: Tested) -> bool:
    """Whether these are rows of recall, and not of exact match."""
    return any(row["protocol"] == "recall" for row in tested.values())


def has_depths(tested: Tested) -> bool:
    """Whether every depth that is tested at all has LEAST scored tokens, as those of needles."""
    rows = [row for row in tested.values() if row["nats"] is not None and is_recall(tested)]
    counts = [n for row in rows for n in row.get("by_depth", {"counts": [1]})["counts"] if n]
    return min(counts, default=0) >= LEAST


def share(row: Row) -> float:
    """The share of right answers or, for exact match, of texts without a mistake; or nan."""
    if row["nats"] is None:
        return math.nan
    return row["accuracy"] if row["protocol"] == "recall" else row["exact"] / row["texts"]


def learned(tested: Tested) -> float:
    """The mean share over the sizes that were trained; 0 if it is below LEARNED."""
    shares = [share(row) for n, row in tested.items() if n <= row["trained"]]
    mean = float(np.mean(shares)) if shares else 0.0
    return mean if mean >= LEARNED else 0.0


def reach_in(row: Row, accuracy: float) -> int:
    """The largest distance, in texts of one length, up to which every bin holds.

    A bin holds if LEAST tokens are scored in it and the lower end of its interval is at least HELD
    of `accuracy`, that inside the training length.
    """
    bins, reach = row["by_distance"], 0
    for end, count, found in zip(bins["edges"][1:], bins["counts"], observed(bins), strict=True):
        if count < LEAST or interval(*found)[0] < HELD * accuracy:
            break
        reach = end
    return reach


def observed(bins: dict[str, list]) -> list[tuple[float, int]]:
    """How many answers are right, and how many there are, in each bin: an answer of several tokens
    is right in part. So intervals take its tokens for one observation.
    """
    answers = bins.get("answers", bins["counts"])  # older results have answers of one token
    cells = zip(bins["right"], bins["counts"], answers, strict=True)
    return [(right * n / max(count, 1), n) for right, count, n in cells]


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


def curve(tested: Tested) -> dict[int, tuple[float, int]]:
    """How many answers are right, and how many there are: by distance in the longest texts that
    have an answer, the least of each bin; for exact match by size.
    """
    rows = [row for row in tested.values() if row["nats"] is not None]
    if not is_recall(tested):
        return {row["length"]: (row["exact"], row["texts"]) for row in rows}
    bins = rows[-1]["by_distance"] if rows else {"edges": [], "right": [], "counts": []}
    found = dict(zip(bins["edges"], observed(bins), strict=False))
    return {first: share for first, share in found.items() if share[1]}


def verdict(tested: Tested) -> str:
    """What rows with answers show, in a sentence."""
    found = reach(tested)
    if not found:
        return f"not learned: below {LEARNED:.0%} at the trained size"
    if not is_recall(tested):
        return f"solves sizes up to {found}"
    far = {n: reach_in(row, learned(tested)) for n, row in tested.items() if "by_distance" in row}
    best, longest = max(n for n in far if far[n] == found), max(far)
    less = f", and {far[longest]} in texts of {longest}" if best < longest else ""
    if found == max(reach_in(tested[n], -math.inf) for n in far):  # where any accuracy holds
        return f"reads at least {found} tokens back, the longest tested, in texts of {best}{less}"
    window = f": as far as a model that sees only its last {found} tokens"
    return f"reads {found} tokens back in texts of {best}{less or window}"


# ---- a table

LEGENDS = {
    "recall": f"""\
The share of right answers by distance. The head is the shortest of a bin, N the length of a text.
reach  the distance up to which every bin holds: it has {LEAST} answers, and the lower end of its
       95 % interval is at least {HELD:.0%} of the accuracy at L, itself at least {LEARNED:.0%}""",
    "exact_match": f"""\
The share of texts answered without a mistake, by size.
reach  the largest size up to which at least {HELD:.0%} are; at the trained sizes at least
       {LEARNED:.0%} must be""",
}


def answers_lines(tested: Tested) -> list[list[str]]:
    """The cells of one result, below a line with their heads, for `tables.aligned`."""
    if not is_recall(tested):
        shares = [f"{share(row):.3f}" for row in tested.values()]
        heads = ["", *map(str, tested), "reach"]
        return [heads, ["", *shares, str(reach(tested) or "not learned")]]
    accuracy, found = learned(tested), {n: curve({n: row}) for n, row in tested.items()}
    cells = {n: {x: f"{a / b:.2f}" for x, (a, b) in points.items()} for n, points in found.items()}
    heads = sorted(set().union(*cells.values()))
    lines = [["", "N", *map(str, heads), "reach"]]
    for n, row in tested.items():
        far = str(reach_in(row, accuracy)) if accuracy and row["nats"] is not None else ""
        shown = [cells[n].get(head, "") for head in heads]
        lines.append(["", str(n), *shown, row.get("reason") or far or "not learned"])
    return lines
