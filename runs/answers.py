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
LEAST = 400  # answers that a bin of distances needs
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
    edges = 2 ** np.arange(int(distances.max()).bit_length() + 1)  # 1, 2, 4 ...
    counts = np.histogram(distances[scored], edges)[0]
    hits = np.histogram(distances[scored], edges, weights=right[scored])[0]
    bins = {"edges": edges.tolist(), "counts": counts.tolist(), "right": hits.astype(int).tolist()}
    return {
        "tokens": int(scored.sum()),
        "nats": float(nats.sum() / scored.sum()),
        "stderr": standard_error(blocks) if len(blocks) > 1 else math.inf,
        "stderr_vs_L": None,
        "block_nats": blocks,
        "accuracy": float(right.sum() / scored.sum()),
        "texts": len(right),
        "exact": whole,
        "by_distance": bins,
    }


# ---- what rows show


def answered(rows: Rows) -> Tested:
    """The rows with answers among these, by ascending length or size."""
    return {n: row for protocol in ANSWERED for n, row in by_length(rows, protocol).items()}


def is_recall(tested: Tested) -> bool:
    """Whether these are rows of recall, and not of exact match."""
    return any(row["protocol"] == "recall" for row in tested.values())


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

    A bin holds if it has LEAST answers and the lower end of its interval is at least HELD of
    `accuracy`, that inside the training length.
    """
    bins, reach = row["by_distance"], 0
    for end, count, right in zip(bins["edges"][1:], bins["counts"], bins["right"], strict=True):
        if count < LEAST or interval(right, count)[0] < HELD * accuracy:
            break
        reach = end
    return reach


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
    cells = zip(bins["edges"], bins["right"], bins["counts"], strict=False)
    return {first: (right, count) for first, right, count in cells if count}


def verdict(tested: Tested) -> str:
    """What rows with answers show, in a sentence."""
    found = reach(tested)
    if not found:
        return f"not learned: below {LEARNED:.0%} at the trained size"
    if is_recall(tested):
        window = f"as far as a model that sees only its last {found} tokens"
        return f"reads {found} tokens back: {window}"
    return f"solves sizes up to {found}"


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
        return [
            ["", *map(str, tested), "reach"],
            ["", *shares, str(reach(tested) or "not learned")],
        ]
    accuracy, bins = learned(tested), max(len(cells_of(row)) for row in tested.values())
    lines = [["", "N", *(str(2**k) for k in range(bins)), "reach"]]
    for n, row in tested.items():
        cells = [*cells_of(row), *[""] * (bins - len(cells_of(row)))]
        far = str(reach_in(row, accuracy)) if accuracy and row["nats"] is not None else ""
        lines.append(["", str(n), *cells, row.get("reason") or far or "not learned"])
    return lines


def cells_of(row: Row) -> list[str]:
    """The share of right answers in each bin of distances."""
    bins = row.get("by_distance", {"right": [], "counts": []})
    pairs = zip(bins["right"], bins["counts"], strict=True)
    return [f"{right / count:.2f}" if count else "" for right, count in pairs]
