"""Tests on rows with answers: how far a model reads, and exact match.

In a row (see data/rows.py) some targets are scored. Those next to each other are one answer. It is
right if each of them is the one that the model finds likeliest: then, and only then, would the
model write the whole answer if it wrote it token by token, each time the likeliest. All rows of one
size are read in one pass. For exact match every answer of a row must be right.
"""

import hashlib
import itertools
import math
import time
from typing import Any

import numpy as np
import pandas as pd
import torch

from data import Corpus
from data.rows import LEAST, rows_of, targets_of
from runs.device import Compute, autocast
from runs.processes import Processes

ANSWERED = ("recall", "needles", "exact_match")  # protocols with answers
BATCH_TOKENS = 16384  # inputs of one forward pass
GROUPS = 64  # of rows, for the standard error of the loss
DEPTHS = 8  # bins of the distance in parts of the length
LEARNED = 0.95  # accuracy on rows as long as those of training, below which nothing is claimed
HELD = 0.9  # of that accuracy, which every bin up to the reach holds
LEGEND = """The share of right answers by distance (the least of a bin) in texts of N tokens; of
exact match: of texts without a mistake. reach (the definition before the board's second edition):
up to there each bin has 400 answers, and surely (95 %) 90 % of the accuracy at trained lengths and
more than counting without order; for exact match, the largest size with 90 % right."""
Tested = dict[int, dict]  # rows with answers by length or size, ascending


# ---- measuring


@torch.no_grad()
def measure(model: Any, corpus: Corpus, size: int, compute: Compute, processes: Processes) -> dict:
    """The measured fields of a row of results: the validation rows of one size, answered.

    Of several processes each takes every n-th batch, and each has all the sums.
    """
    tokens, all_distances = rows_of(corpus, size)  # (R, T + 1) each
    distances = all_distances[:, 1:]  # of the targets; 0: not scored
    scored = distances > 0
    nats = np.zeros(scored.shape)
    right = np.zeros(scored.shape)
    at_once = max(1, BATCH_TOKENS // scored.shape[1])
    started = time.perf_counter()
    for first in range(at_once * processes.rank, len(tokens), at_once * processes.size):
        part = slice(first, first + at_once)
        idx = torch.from_numpy(tokens[part, :-1].astype(np.int64)).to(compute.device)
        targets = torch.from_numpy(targets_of(corpus, tokens[part], all_distances[part]))
        with autocast(compute):
            losses, hits = model.answers(idx, targets.to(compute.device))
        nats[part][scored[part]] = losses.cpu().double().numpy()
        right[part][scored[part]] = hits.cpu().double().numpy()
    for array in (nats, right):  # zero where another process has measured
        processes.sum(torch.from_numpy(array))
    row = {
        "targets": hashlib.sha256(all_distances.astype("<i8").tobytes()).hexdigest(),
        "tokens_per_s": round(scored.size / (time.perf_counter() - started), 1),
    }
    lost = np.sum(~np.isfinite(nats))
    if lost:
        reason = f"diverged: {lost} losses are not finite"
        return row | {"nats": None, "diverged": True, "reason": reason}
    means = []  # of groups of rows
    n_groups = min(GROUPS, len(nats))
    for part in np.array_split(np.arange(len(nats)), n_groups):
        means.append(nats[part].sum() / scored[part].sum())
    row |= {
        "tokens": int(scored.sum()),
        "nats": float(nats.sum() / scored.sum()),
        "stderr": float(np.std(means, ddof=1) / math.sqrt(n_groups)),
        "block_nats": [float(f"{mean:.7g}") for mean in means],
    }
    if corpus.meta["rows"]["protocol"] != "image":
        row |= answer_fields(right, distances)
    return row


def answer_fields(right: np.ndarray, distances: np.ndarray) -> dict:
    """What is kept of answers: both (rows, T), where a token with the distance 0 is not scored."""
    scored = distances > 0
    first = scored.copy()  # the first token of each answer
    first[:, 1:] &= ~scored[:, :-1]
    asked = distances[first]
    correct = np.minimum.reduceat(right[scored], np.flatnonzero(first[scored])) > 0
    # the bins 1, 2, 4 ... of distances; near ones are joined until LEAST answers are in
    low = int(asked.min()).bit_length()
    high = int(asked.max()).bit_length()
    edges = 2 ** np.arange(low - 1, high + 1)
    joined = np.cumsum(np.histogram(asked, edges)[0][:-1]) < LEAST
    edges = np.delete(edges, 1 + np.flatnonzero(joined))
    depth_edges = np.arange(DEPTHS + 1) / DEPTHS
    depths = asked / scored.shape[1]
    return {
        "accuracy": float(correct.mean()),
        "texts": len(right),
        "exact": int((right == scored).all(axis=1).sum()),
        "by_distance": binned(edges, asked, correct),
        "by_depth": binned(depth_edges, depths, correct),
    }


def binned(edges: np.ndarray, distances: np.ndarray, correct: np.ndarray) -> dict:
    """How many answers are in each bin of distances or depths, and how many of them are right."""
    counts = np.histogram(distances, edges)[0]
    right = np.histogram(distances[correct], edges)[0]
    return {"edges": edges.tolist(), "counts": counts.tolist(), "right": right.tolist()}


# ---- what rows show


def lower_bound(right: int, count: int) -> float:
    """The lower end of Wilson's 95 % interval of a share: `right` of `count` answers are right.

    It takes the answers of one row for independent. A bootstrap over rows gave intervals 0.89 to
    1.10 times as wide (median 1.00), in 125 bins of alibi, rope and t5 on recall, L = 128.
    """
    from scipy.stats import binomtest

    return binomtest(right, count).proportion_ci(method="wilson").low


def answered(rows: pd.DataFrame) -> Tested:
    """The rows with answers among those of one run, by ascending length or size."""
    of_answers = rows[rows.protocol.isin(ANSWERED)].sort_values("length")
    return {row["length"]: row for row in of_answers.to_dict("records")}


def is_exact_match(tested: Tested) -> bool:
    """Whether these are rows of exact match, and not of recall or with needles."""
    return any(row["protocol"] == "exact_match" for row in tested.values())


def share(row: dict) -> float:
    """The share of right answers or, for exact match, of texts without a mistake; or nan."""
    if math.isnan(row["nats"]):
        return math.nan
    return row["exact"] / row["texts"] if row["protocol"] == "exact_match" else row["accuracy"]


def bins(tested: Tested) -> pd.DataFrame:
    """The bins of distances of all rows that have a loss: a line for the distances from `first` up
    to `end` in texts of `N` tokens, with how many answers they have (`count`) and how many of them
    are `right`, the lower end `low` of the interval of that share, and the share that counting
    without order gives right (`counted`, 0 where that is not known).
    """
    lines = []
    for n, row in tested.items():
        if math.isnan(row["nats"]):
            continue
        counted = row.get("counted")
        if not isinstance(counted, dict):
            counted = {}
        edges = row["by_distance"]["edges"]
        for k, count in enumerate(row["by_distance"]["counts"]):
            cheap = [x for back, x in counted.items() if edges[k] <= int(back) < edges[k + 1]]
            most = max(cheap, default=0.0)
            right = row["by_distance"]["right"][k]
            low = lower_bound(right, count) if count else 0.0
            is_trained = n <= row["trained"]
            lines.append([n, edges[k], edges[k + 1], count, right, low, most, is_trained])
    names = ["N", "first", "end", "count", "right", "low", "counted", "is_trained"]
    return pd.DataFrame(lines, columns=names)


def learned(tested: Tested) -> float:
    """The mean share over the sizes that were trained; 0 if it is below LEARNED, or not above what
    counting without order answers.
    """
    trained = bins(tested).query("is_trained")
    answers = trained["count"].sum()
    cheap = (trained.counted * trained["count"]).sum()
    if cheap and lower_bound(trained.right.sum(), answers) <= cheap / answers:
        return 0.0
    shares = [share(row) for n, row in tested.items() if n <= row["trained"]]
    accuracy = float(np.mean(shares)) if shares else 0.0
    return accuracy if accuracy >= LEARNED else 0.0


def reaches(tested: Tested, accuracy: float) -> pd.Series:
    """The largest distance, in texts of each length, up to which every bin holds.

    A bin holds if it has LEAST answers and the lower end of its interval is at least HELD of
    `accuracy`, that inside the training length; in longer texts it is also above what counting
    without order answers.
    """
    table = bins(tested)
    holds = (table["count"] >= LEAST) & (table.low >= HELD * accuracy)
    holds &= table.is_trained | (table.low >= table.counted)
    held = table.end.where(holds.groupby(table.N).cummin(), 0)
    return held.groupby(table.N).max().reindex(list(tested), fill_value=0)


def reach(tested: Tested) -> int:
    """How far it goes: for recall, how many tokens back a model reads in texts of the length at
    which it reads farthest; for exact match, the largest size up to which HELD are without mistake.

    0 if it was not learned.
    """
    accuracy = learned(tested)
    if not accuracy:
        return 0
    if is_exact_match(tested):
        return max(itertools.takewhile(lambda n: share(tested[n]) >= HELD, tested), default=0)
    return int(reaches(tested, accuracy).max())


def verdict(tested: Tested) -> str:
    """What rows with answers show, in a sentence."""
    distance = reach(tested)
    if not distance:
        return f"not learned: below {LEARNED:.0%} at the trained size, or no better than counting"
    if is_exact_match(tested):
        return f"solves sizes up to {distance}"
    if distance == bins(tested).query(f"count >= {LEAST}").end.max():
        return f"reads at least {distance} tokens back, the longest tested"
    return f"reads {distance} tokens back, as far as a model that sees its last {distance} tokens"


def table(tested: Tested) -> pd.DataFrame:
    """The share of right answers by distance, a line for each length N, and the reach in it; for
    exact match the share of texts without a mistake by size.
    """
    if is_exact_match(tested):
        shares = {n: share(row) for n, row in tested.items()}
        return pd.DataFrame({"right": shares}).rename_axis("N")
    asked = bins(tested).query("count > 0").eval("share = right / count")
    shares = asked.pivot(index="N", columns="first", values="share").reindex(list(tested))
    accuracy = learned(tested)
    shares["reach"] = reaches(tested, accuracy) if accuracy else 0
    return shares.rename_axis(columns=None)
