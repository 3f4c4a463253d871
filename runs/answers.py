"""Tests on rows with answers: how far a model reads, and exact match.

In a row (see data/rows.py) some targets are scored. Those next to each other are one answer. It is
right if each of them is the one that the model finds likeliest: then, and only then, would the
model write the whole answer if it wrote it token by token, each time the likeliest. All rows of one
size are read in one pass. For exact match every answer of a row must be right.

Answers are counted by kind of question and by distance. Accuracy *above chance* is (accuracy - c) /
(1 - c), c the share that a guess or a count gets right. Two numbers tell how far a model reads in
the longest texts that were tested, N = 32 L by default:

    area     of the accuracy above chance over log2 of the distance, from 16 to N: in octaves
    reach    the largest distance whose bin is surely (95 %) above half of what the same model has
             in texts of its training length L
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
from data.rows import LEAST, OF_ORDER, TEXT, Pair, rows_of, targets_of
from runs.device import Compute, autocast
from runs.processes import Processes

ANSWERED = ("recall", "needles", "exact_match")  # protocols with answers
BATCH_TOKENS = 16384  # inputs of one forward pass
GROUPS = 64  # of rows, for the standard error of the loss
NEAREST = 16  # tokens back, from where on the area counts
LEARNED = 0.9  # accuracy above chance in texts of L, below which nothing is claimed
SOLVED = 0.9  # share of texts without a mistake up to the largest size that is solved
LEGEND = """The accuracy above chance, 1 at best, by distance (the least of each octave), in texts
of N tokens; of exact match the share of texts without a mistake. reach: the largest distance where
it is surely (95 %) above half of that in texts of L. area: over log2 of the distance, from 16."""
Tested = dict[int, dict]  # rows with answers by length or size, ascending


# ---- measuring


@torch.no_grad()
def read(
    model: Any, tokens: np.ndarray, targets: np.ndarray, compute: Compute, processes: Processes
) -> Pair:
    """Nats of the targets that are not -1, and whether each is the likeliest token; 0 elsewhere.

    `tokens` and what is returned are (rows, T + 1), `targets` those of the inputs, (rows, T). Of
    several processes each takes every n-th batch, and each has all the sums.
    """
    nats = np.zeros(tokens.shape)
    right = np.zeros(tokens.shape)
    wanted = targets >= 0
    at_once = max(1, BATCH_TOKENS // wanted.shape[1])
    for first in range(at_once * processes.rank, len(tokens), at_once * processes.size):
        part = slice(first, first + at_once)
        idx = torch.from_numpy(tokens[part, :-1].astype(np.int64)).to(compute.device)
        with autocast(compute):
            losses, hits = model.answers(idx, torch.from_numpy(targets[part]).to(compute.device))
        nats[part, 1:][wanted[part]] = losses.cpu().double().numpy()
        right[part, 1:][wanted[part]] = hits.cpu().double().numpy()
    for array in (nats, right):  # zero where another process has measured
        processes.sum(torch.from_numpy(array))
    return nats, right


def measure(model: Any, corpus: Corpus, size: int, compute: Compute, processes: Processes) -> dict:
    """The measured fields of a row of results: the validation rows of one size, answered."""
    tokens, distances = rows_of(corpus, size)  # (R, T + 1) each
    targets = targets_of(corpus, tokens, distances)
    started = time.perf_counter()
    nats, right = read(model, tokens, targets, compute, processes)
    seconds = time.perf_counter() - started
    row = loss_fields(nats, distances, seconds)
    about = corpus.meta["rows"]
    if row["nats"] is None or about["protocol"] == "image":
        return row
    row["texts"] = len(right)
    row["exact"] = int((right == (distances > 0)).all(axis=1).sum())
    row["accuracy"], row["by_distance"] = answer_fields(right, distances, about)
    return row


def measure_questions(
    corpus: Corpus, scored: np.ndarray, nats: np.ndarray, right: np.ndarray
) -> dict:
    """The measured fields of a row of recall, of pieces of rows with questions that were read.

    All arrays are (pieces, N + 1); of a row of text only the answers count here.
    """
    scored = np.where(scored < TEXT, scored, 0)
    row = loss_fields(nats, scored % OF_ORDER)
    if row["nats"] is None:
        return row
    row |= {"texts": len(scored), "by_distance": {}}
    asked_of = {
        "content": np.where(scored < OF_ORDER, scored, 0),
        "order": np.where(scored > OF_ORDER, scored - OF_ORDER, 0),
    }
    for kind, distances in asked_of.items():
        about = corpus.meta["questions"][kind] | {"kind": kind}
        if distances.any():
            row["by_distance"] |= answer_fields(right, distances, about)[1]
    return row


def loss_fields(nats: np.ndarray, distances: np.ndarray, seconds: float = math.nan) -> dict:
    """What a row says of the loss of answers; both arrays are (rows, T + 1).

    Where it is not finite, nats are None and there is a reason.
    """
    scored = distances > 0
    row = {"targets": hashlib.sha256(distances.astype("<i8").tobytes()).hexdigest()}
    if seconds > 0:
        row["tokens_per_s"] = round((scored.size - len(scored)) / seconds, 1)
    lost = np.sum(~np.isfinite(nats[scored]))
    if lost:
        reason = f"diverged: {lost} losses are not finite"
        return row | {"nats": None, "diverged": True, "reason": reason}
    means = []  # of groups of rows
    n_groups = min(GROUPS, len(nats))
    for part in np.array_split(np.arange(len(nats)), n_groups):
        means.append(nats[part][scored[part]].sum() / max(1, scored[part].sum()))
    return row | {
        "tokens": int(scored.sum()),
        "nats": float(nats[scored].sum() / scored.sum()),
        "stderr": float(np.std(means, ddof=1) / math.sqrt(n_groups)),
        "block_nats": [float(f"{mean:.7g}") for mean in means],
    }


def answer_fields(right: np.ndarray, distances: np.ndarray, about: dict) -> tuple[float, dict]:
    """The share of right answers, and how many are asked and right by kind and distance.

    Both arrays are (rows, T + 1); a token with the distance 0 is not scored. `about` has the kind
    and the chance.
    """
    scored = distances > 0
    first = scored.copy()  # the first token of each answer
    first[:, 1:] &= ~scored[:, :-1]
    asked = distances[first]
    correct = np.minimum.reduceat(right[scored], np.flatnonzero(first[scored])) > 0
    edges = distance_bins(asked)
    bins = {
        "edges": edges.tolist(),
        "counts": np.histogram(asked, edges)[0].tolist(),
        "right": np.histogram(asked[correct], edges)[0].tolist(),
        "chance": about["chance"],
    }
    return float(correct.mean()), {about["kind"]: bins}


def distance_bins(asked: np.ndarray) -> np.ndarray:
    """The edges of bins of half an octave, 1, 2, 3, 4, 6, 8, 12, 16, 23 ... of these distances.

    Neighbours are joined, from near to far, until each bin has LEAST of them.
    """
    halves = np.arange(2 * (int(asked.max()).bit_length() + 1))
    edges = np.unique(np.ceil(2 ** (halves / 2) - 1e-9).astype(np.int64))
    edges = edges[: np.searchsorted(edges, asked.max(), side="right") + 1]
    counts = np.histogram(asked, edges)[0]
    joined = [1]
    count = 0
    for edge, more in zip(edges[1:], counts, strict=True):
        count += more
        if count >= LEAST:
            joined.append(int(edge))
            count = 0
    if len(joined) == 1:
        joined.append(0)
    joined[-1] = int(edges[-1])  # the last bin has the rest too
    return np.array(joined)


# ---- what rows show


def lower_bound(right: int, count: int) -> float:
    """The lower end of Wilson's 95 % interval of a share: `right` of `count` answers are right.

    It takes the answers of one row for independent. A bootstrap over rows gave intervals 0.89 to
    1.10 times as wide (median 1.00), in 125 bins of alibi, rope and t5 on recall in noise, L = 128.
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
    """The share of texts without a mistake; nan where there is no loss."""
    return math.nan if math.isnan(row["nats"]) else row["exact"] / row["texts"]


def bins(tested: Tested) -> pd.DataFrame:
    """The bins of distances of all rows that have a loss.

    A line for each kind of question, text length N and bin, the distances from `first` up to `end`,
    with the `count` of answers, those that are `right`, the accuracy `above` chance and its lower
    95 % bound `low`.
    """
    lines = []
    for n, row in tested.items():
        if math.isnan(row["nats"]):
            continue
        for kind, binned in row["by_distance"].items():
            edges = binned["edges"]
            chance = binned["chance"]
            for k, count in enumerate(binned["counts"]):
                right = binned["right"][k]
                above = (right / count - chance) / (1 - chance)
                low = (lower_bound(right, count) - chance) / (1 - chance)
                lines.append([kind, n, edges[k], edges[k + 1], count, right, above, low])
    names = ["kind", "N", "first", "end", "count", "right", "above", "low"]
    return pd.DataFrame(lines, columns=names)


def accuracies(tested: Tested) -> pd.DataFrame:
    """How far a model reads, a line for each kind of question.

    `inside` is the accuracy above chance in texts of the training length; `area`, `octaves` (the
    most that the area can be) and `reach` are those of the longest texts; `gaps` is the number of
    bins nearer than the reach that do not hold.
    """
    table = bins(tested)
    trained = min((row["trained"] for row in tested.values()), default=0)
    lines = {}
    for kind, lines_of_kind in table.groupby("kind", sort=False):
        at_L = lines_of_kind[lines_of_kind.N == trained]
        longest = lines_of_kind[lines_of_kind.N == lines_of_kind.N.max()]
        inside = (at_L.above * at_L["count"]).sum() / max(1, at_L["count"].sum())
        span = np.log2(longest.end.clip(NEAREST)) - np.log2(longest["first"].clip(NEAREST))
        holds = longest.low > inside / 2
        if inside <= 0:
            holds &= False
        reach = longest.end.where(holds, 0).max()
        lines[kind] = {
            "inside": inside,
            "area": (longest.above * span).sum(),
            "octaves": span.sum(),
            "reach": reach,
            "gaps": int((~holds & (longest.end < reach)).sum()),
        }
    return pd.DataFrame.from_dict(lines, orient="index")


def solved(tested: Tested) -> int:
    """Of exact match: the largest size up to which SOLVED of the texts are without a mistake."""
    return max(itertools.takewhile(lambda n: share(tested[n]) >= SOLVED, tested), default=0)


def reaches(tested: Tested) -> dict[str, int]:
    """How far it goes, by name: the size that is solved, or the reach of each kind of question."""
    if is_exact_match(tested):
        return {"reach": solved(tested)}
    reach = accuracies(tested).reach
    if len(reach) == 1:
        return {"reach": int(reach.iloc[0])}
    return {f"reach_{kind}": int(distance) for kind, distance in reach.items()}


def verdict(tested: Tested) -> str:
    """What rows with answers show, in a sentence."""
    if is_exact_match(tested):
        return f"solves sizes up to {solved(tested)}"
    table = accuracies(tested)
    if table.empty:
        return "has no answers"
    parts = []
    for kind, line in table.iterrows():
        part = f"{kind} {line.inside:.2f} in texts of L, area {line.area:.1f} of {line.octaves:.1f}"
        part += f" octaves, reach {line.reach:.0f}"
        if line.gaps:
            part += f" ({line.gaps:.0f} nearer bins do not hold)"
        parts.append(part)
    return f"{reader(table)}: {'; '.join(parts)}"


def reader(table: pd.DataFrame) -> str:
    """What kind of a reader has these `accuracies`, in a few words."""
    first = table.iloc[0]
    if first.inside < LEARNED:
        return "has not learned to find a name"
    if "order" not in table.index:
        return f"finds a name up to {first.reach:.0f} tokens back"
    content = table.loc["content"]
    order = table.loc["order"]
    if order.inside < 0.5:
        return f"finds names up to {content.reach:.0f} back, and does not know their order"
    if order.reach * 2 < content.reach:
        return f"finds names up to {content.reach:.0f} back, knows order up to {order.reach:.0f}"
    reach = f"{content.reach:.0f}"
    return f"finds names and knows their order up to {reach} back, as a window of {reach} would"


def table(tested: Tested) -> pd.DataFrame:
    """The accuracy above chance by octave of the distance, a line for each kind and length N; for
    exact match the share of texts without a mistake by size.
    """
    if is_exact_match(tested):
        shares = {n: share(row) for n, row in tested.items()}
        return pd.DataFrame({"right": shares}).rename_axis("N")
    lines = bins(tested)
    lines["octave"] = 2 ** np.floor(np.log2(lines["first"])).astype(int)
    lines["weighted"] = lines.above * lines["count"]
    sums = lines.groupby(["kind", "N", "octave"])[["weighted", "count"]].sum()
    shares = (sums.weighted / sums["count"]).unstack().sort_index(axis=1)
    return shares.rename_axis(columns=None)
