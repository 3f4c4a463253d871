"""Tests on texts with answers: how far a model reads, and exact match.

In such a text (data/batches.py) some targets are scored. Those next to each other are one answer.
It is right if each of them is the one that the model finds likeliest: then, and only then, would
the model write the whole answer if it wrote it token by token, each time the likeliest. All texts
of one size are read in one pass. For exact match every answer of a text must be right.

Answers are counted by kind of question and by distance. Accuracy *above chance* is (accuracy - c) /
(1 - c), c the share that a guess or a count gets right. Two numbers tell how far a model reads in
the longest texts that were tested, N = 32 L by default:

    area     of the accuracy above chance over log2 of the distance, from 16 to N: in octaves
    reach    the largest distance whose bin is surely (95 %) above half of what the same model has
             in texts of its training length L; 0 if that is below 0.1
"""

from collections.abc import Container
from functools import cache

import numpy as np
import pandas as pd

from measure import protocols

NEAREST = 16  # tokens back, from where on the area counts
# accuracy above chance in texts of L, below which a kind is not learned, and nothing is claimed
LEARNED = {"content": 0.9, "order": 0.5}
SOLVED = 0.9  # share of texts without a mistake up to the largest size that is solved
LEGEND = """Accuracy above chance (1 is perfect) by distance, in texts of N tokens; the name of a
column is the shortest distance of its octave. Exact match: share of texts without a mistake. reach:
the largest distance with accuracy surely (95 %) above half of that at L. area: under accuracy over
log2 distance."""


# ---- what records show


@cache  # scipy's search is slow, and numbers recur
def lower_bound(right: int, count: int) -> float:
    """The lower end of Wilson's 95 % interval of a share: `right` of `count` answers are right.

    It takes the answers of one text for independent. A bootstrap over texts gave intervals 0.89 to
    1.10 times as wide (median 1.00), in 125 bins of alibi, rope and t5 on recall in noise, L = 128.
    """
    from scipy.stats import binomtest

    return binomtest(right, count).proportion_ci(method="wilson").low


def has_answers(rows: pd.DataFrame, counted: Container[str] = ("distance", "text")) -> pd.Series:
    """Which records are of protocols whose answers are counted so: see `Protocol.counted_by`."""
    return rows.protocol.isin([p.name for p in protocols.PROTOCOLS if p.counted_by in counted])


def answered(rows: pd.DataFrame) -> pd.DataFrame:
    """The records with answers among those of one run, by ascending length or size."""
    return rows[has_answers(rows)].set_index("length").sort_index()


def is_exact_match(tested: pd.DataFrame) -> bool:
    """Whether the answers of these records are counted by text, and not by distance."""
    return has_answers(tested, ["text"]).any()


def shares_right(tested: pd.DataFrame) -> pd.Series:
    """The share of texts without a mistake by size; nan where there is no loss."""
    return (tested.exact / tested.texts).where(tested.nats.notna())


def bin_table(tested: pd.DataFrame) -> pd.DataFrame:
    """The bins of distances of all records that have a loss; `tested` are as in `answered`.

    A line for each kind of question, text length N and bin, the distances from `first` up to `end`,
    with the `count` of answers, those that are `right`, the accuracy `above` chance, its lower 95 %
    bound `low` and its `variance`.
    """
    lines = []
    for n, by_distance in tested.by_distance[tested.nats.notna()].items():
        for kind, binned in by_distance.items():
            chance = binned["chance"]
            edges = binned["edges"]
            bins = zip(edges[:-1], edges[1:], binned["counts"], binned["right"], strict=True)
            for first, end, count, right in bins:
                above = (right / count - chance) / (1 - chance)
                low = (lower_bound(right, count) - chance) / (1 - chance)
                share = right / count
                variance = share * (1 - share) / count / (1 - chance) ** 2
                lines.append([kind, n, first, end, count, right, above, low, variance])
    return pd.DataFrame(lines, columns="kind N first end count right above low variance".split())


def accuracies(tested: pd.DataFrame) -> pd.DataFrame:
    """How far a model reads, a line for each kind of question.

    `inside` is the accuracy above chance in texts of the training length; `area`, `octaves` (the
    most that the area can be) and `reach` are those of the longest texts; `area_variance` is due to
    the number of answers alone; `gaps` is the number of bins nearer than the reach that do not
    hold.
    """
    trained = tested.trained_size.min()
    lines = {}
    for kind, bins in bin_table(tested).groupby("kind", sort=False):
        at_L = bins[bins.N == trained]
        longest = bins[bins.N == bins.N.max()]
        inside = (at_L.above * at_L["count"]).sum() / max(1, at_L["count"].sum())
        span = np.log2(longest.end.clip(NEAREST)) - np.log2(longest["first"].clip(NEAREST))
        # where hardly anything is found inside L, half of it is within the noise of a guess
        holds = (longest.low > inside / 2) & (inside > 0.1)
        reach = longest.end.where(holds, 0).max()
        lines[kind] = {
            "inside": inside,
            "area": (longest.above * span).sum(),
            "area_variance": (longest.variance * span**2).sum(),
            "octaves": span.sum(),
            "reach": reach,
            "gaps": int((~holds & (longest.end < reach)).sum()),
        }
    return pd.DataFrame.from_dict(lines, orient="index")


def solved(tested: pd.DataFrame) -> int:
    """Of exact match: the largest size up to which SOLVED of the texts are without a mistake."""
    is_solved = shares_right(tested) >= SOLVED
    return max(tested.index[is_solved.cumprod() == 1], default=0)


def reaches(tested: pd.DataFrame) -> dict[str, int]:
    """How far it goes, by name: the size that is solved, or the reach of each kind of question."""
    if is_exact_match(tested):
        return {"reach": solved(tested)}
    reach = accuracies(tested).get("reach", {})
    if len(reach) == 1:
        return {"reach": int(reach.iloc[0])}
    return {f"reach_{kind}": int(distance) for kind, distance in reach.items()}


def verdict(tested: pd.DataFrame) -> str:
    """What records with answers show, in a sentence."""
    if is_exact_match(tested):
        return f"solves sizes up to {solved(tested)}"
    reading = accuracies(tested)
    if reading.empty:
        return "has no answers"
    parts = []
    for kind, line in reading.iterrows():
        part = f"{kind} {line.inside:.2f} in texts of L, area {line.area:.1f} of {line.octaves:.1f}"
        part += f" octaves, reach {line.reach:.0f}"
        if line.gaps:
            part += f" (but not in {line.gaps:.0f} nearer bins)"
        parts.append(part)
    return f"{reader(reading)}: {'; '.join(parts)}"


def reader(reading: pd.DataFrame) -> str:
    """The kind of reader that has these `accuracies`, in a few words."""
    content = reading.iloc[0]
    if content.inside < LEARNED["content"]:
        return "has not learned to find a name"
    back = f"up to {content.reach:.0f} back"
    if "order" not in reading.index:
        return f"finds names {back}"
    order = reading.loc["order"]
    if order.inside < LEARNED["order"]:
        return f"finds names {back}, and does not know their order"
    if order.reach * 2 < content.reach:
        return f"finds names {back}, knows order up to {order.reach:.0f}"
    if reading.gaps.any():
        return f"finds names and knows their order {back}"
    return f"finds names and knows their order {back}, as a window of {content.reach:.0f} would"


def table(tested: pd.DataFrame) -> pd.DataFrame:
    """The accuracy above chance by octave of the distance, a line for each kind and length N; for
    exact match the share of texts without a mistake by size.
    """
    if is_exact_match(tested):
        return shares_right(tested).rename_axis("N").to_frame("right")
    bins = bin_table(tested)
    bins["octave"] = 2 ** np.floor(np.log2(bins["first"])).astype(int)
    bins["weighted"] = bins.above * bins["count"]
    sums = bins.groupby(["kind", "N", "octave"])[["weighted", "count"]].sum()
    shares = (sums.weighted / sums["count"]).unstack().sort_index(axis=1)
    return shares.rename_axis(columns=None)
