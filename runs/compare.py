"""What is compared: the rows of several results, and the differences between schemes.

Results are compared only on the same targets of the same text. Within a seed two schemes are
compared window by window. Over seeds their differences are a sample for Student's t, and p-values
are corrected for how many schemes are compared. Windows and seeds are never pooled.
"""

import functools
import itertools
import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from configurable import PROTOCOLS, require
from runs import results
from runs.answers import answered, curve
from runs.labels import loss, result_labels
from runs.results import Result, Row, Rows, targets

Seeds = dict[int, dict[int, Row]]  # of one scheme: rows of one protocol by seed and length

LEVEL = 0.05  # of the tests; the intervals hold 1 - LEVEL
EPSILON = 2.0**-52  # of float64
NEAR = 0.01  # nats by which another learning rate must be better than the usual one


# ---- the rows of several results


def select_rows(tested: list[Result], dataset: str) -> tuple[str, list[Rows]]:
    """The dataset (by default the first tested) and the `rows_of` on it.

    UserError if a result has none, or if two results were measured on different targets.
    """
    dataset = dataset or next((row["dataset"] for r in tested for row in r["rows"]), "")
    selected = results.rows_of(tested, dataset)
    for result, rows in zip(tested, selected, strict=True):
        where = f"{dataset or 'any dataset'} under {result.get('extend') or 'no extension'}"
        require(rows, f"{result['pos']} was not tested on {where}: run evaluate.py on it first")
    refuse_other_targets(dataset, result_labels(tested), selected)
    return dataset, selected


def refuse_other_targets(dataset: str, labels: list[str], all_rows: list[Rows]) -> None:
    """UserError, with the labels of two results, if they have different targets."""
    first: dict[str, tuple[str, Row]] = {}  # by protocol: the first label and row
    for label, rows in zip(labels, all_rows, strict=True):
        for (protocol, _), row in rows.items():
            if protocol in PROTOCOLS and row["nats"] is not None:
                other, other_row = first.setdefault(protocol, (label, row))
                pair = f"{other} and {label} were tested on different targets of {dataset}"
                advice = "evaluate them with the same --eval_windows and the same corpus files"
                require(targets(other_row) == targets(row), f"{pair} ({protocol}): {advice}")


# ---- several seeds


def missing_results(cells: dict[str, list[Result]]) -> list[str]:
    """A sentence for each cell without a result; see `rows_by_seed`."""
    missing = [(label, r) for label, of in cells.items() for r in of if "rows" not in r]
    return [f"{label}, seed {r['seed']}: no result: {r['reason']}" for label, r in missing]


def rows_by_seed(cells: dict[str, list[Result]], dataset: str = "") -> tuple[str, dict[str, Seeds]]:
    """The dataset, and each scheme's rows of fixed_targets, of images or with answers, by seed and
    length.

    `cells` is {scheme: a result for each seed}; a missing one is {"seed": ..., "reason": ...}.
    UserError if all are missing, or if two were measured on different targets.
    """
    done = [(label, r) for label, of in cells.items() for r in of if "rows" in r]
    require(done, "; ".join(["there is no result to compare", *missing_results(cells)]))
    dataset, all_rows = select_rows([result for _, result in done], dataset)
    by_seed: dict[str, Seeds] = {label: {} for label in cells}
    for (label, result), rows in zip(done, all_rows, strict=True):
        losses = results.by_length(rows) or results.by_length(rows, "image")
        by_seed[label][result["seed"]] = answered(rows) or losses
    return dataset, by_seed


def protocol_of(by_scheme: dict[str, Seeds]) -> str:
    """The protocol of these rows: fixed_targets, image, or one with answers (`ANSWERED`)."""
    rows = [row for seeds in by_scheme.values() for of in seeds.values() for row in of.values()]
    return rows[0]["protocol"] if rows else "fixed_targets"


def losses_at(seeds: Seeds, length: int) -> dict[int, float]:
    """The nats at a length by seed, inf where it diverged, for the seeds that define it."""
    losses = {seed: loss(fixed[length]) for seed, fixed in seeds.items() if length in fixed}
    return {seed: nats for seed, nats in losses.items() if not math.isnan(nats)}


def values_by_length(seeds: Seeds, asked: bool) -> dict[int, list[float]]:
    """The nats of each seed by ascending length or, of answers (`asked`), the shares that are right
    by distance or size.
    """
    if not asked:
        lengths = sorted({n for fixed in seeds.values() for n in fixed})
        return {n: list(losses_at(seeds, n).values()) for n in lengths}
    curves = [curve(rows) for rows in seeds.values()]
    places = sorted({x for points in curves for x in points})
    return {x: [of[x][0] / of[x][1] for of in curves if x in of] for x in places}


def mean_curve(seeds: Seeds) -> dict[int, float]:
    """The mean over seeds by ascending length: inf if one diverged, nan if it is undefined."""
    losses = values_by_length(seeds, asked=False)
    return {n: float(np.mean(nats)) if nats else math.nan for n, nats in losses.items()}


def schemes_of(tested: list[Result]) -> dict[str, list[Result]]:
    """The results by their label without the seed; runs that are equal in all have their own."""
    alike = [{**result, "seed": 0, "folder": ""} for result in tested]
    runs = [(label, r["seed"]) for label, r in zip(result_labels(alike), tested, strict=True)]
    schemes: dict[str, list[Result]] = {}
    for run, label, result in zip(runs, result_labels(tested), tested, strict=True):
        schemes.setdefault(label if runs.count(run) > 1 else run[0], []).append(result)
    return schemes


# ---- Student's t


def p_value(t: float, degrees: int) -> float:
    """The probability that |T| is above |t|, for Student's T with whole degrees of freedom.

    It is never below EPSILON, up to which it is rounded.
    """
    angle, odd = math.atan2(abs(t), math.sqrt(degrees)), degrees % 2
    term, total = (math.cos(angle) if odd else 1.0), 0.0
    for k in range(2 + odd, degrees + 1, 2):
        total += term
        term *= (k - 1) / k * math.cos(angle) ** 2
    below = math.sin(angle) * total
    return max(EPSILON, 1 - (2 / math.pi * (angle + below) if odd else below))


@functools.cache
def t_point(degrees: int) -> float:
    """The t that |T| exceeds with probability LEVEL."""
    low, high = 0.0, 16.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if p_value(middle, degrees) > LEVEL else (low, middle)
    return high


def holm(values: dict[str, float]) -> dict[str, float]:
    """The p-values of a family after Holm's step-down correction, each at most 1."""
    names = sorted(values, key=values.__getitem__)
    steps = [min(1.0, (len(names) - k) * values[name]) for k, name in enumerate(names)]
    return dict(zip(names, itertools.accumulate(steps, max), strict=True))


# ---- schemes against the first


class Contrast(NamedTuple):
    """The paired difference of a scheme to the first at one length.

    The standard error is over seeds or, of one seed, over windows. `p` is corrected by Holm.
    """

    nats: float
    stderr: float
    seeds: int
    half: float  # of the width of the 95 % t-interval, which is not corrected
    p: float

    @property
    def distinguishable(self) -> bool:
        """Whether Holm's correction rejects, at 5 %, that there is no difference."""
        return self.p <= LEVEL


def contrast(seeds: Seeds, first: Seeds, length: int) -> Contrast | None:
    """The difference of a scheme to the first at a length, its p not corrected.

    None if no seed has both on the same targets, or if one diverged there.
    """
    both = sorted(seeds.keys() & first.keys())
    pairs = [results.paired(seeds[s].get(length), first[s].get(length)) for s in both]
    found = [pair for pair in pairs if pair]
    if not found or any(math.inf in losses_at(of, length).values() for of in (seeds, first)):
        return None
    mean, stderr, blocks = found[0]
    if len(found) > 1:
        nats = [pair.nats for pair in found]
        mean, stderr, blocks = float(np.mean(nats)), results.standard_error(nats), len(nats)
    t = mean / stderr if stderr else math.copysign(math.inf, mean) if mean else 0.0
    half = t_point(blocks - 1) * stderr
    return Contrast(mean, stderr, len(found), half, p_value(t, blocks - 1))


def contrasts(by_scheme: dict[str, Seeds]) -> dict[str, dict[int, Contrast]]:
    """The differences of each scheme to the first, by length; the first has none.

    The schemes at one length are the family of Holm's correction.
    """
    base, *others = by_scheme
    found: dict[str, dict[int, Contrast]] = {label: {} for label in by_scheme}
    for n in sorted({n for seeds in by_scheme.values() for rows in seeds.values() for n in rows}):
        here = {label: contrast(by_scheme[label], by_scheme[base], n) for label in others}
        here = {label: one for label, one in here.items() if one}
        for label, p in holm({label: one.p for label, one in here.items()}).items():
            found[label][n] = here[label]._replace(p=p)
    return found


# ---- learning rates


def pick_rate(losses: dict[float, float], usual: float) -> float:
    """The rate with the lowest loss; the usual one if it is within NEAR of that.

    `losses` is {rate: nats}, inf for one that diverged. If all did, the lowest rate.
    """
    best = min(losses, key=lambda rate: (losses[rate], rate))
    return usual if losses[usual] - losses[best] <= NEAR else best


def rates_beyond(tried: Iterable[float], picked: float, lowest: float) -> list[float]:
    """If the rate picked is at an edge of those tried, the next one, as far off as its neighbour.

    Its distance is a ratio. Empty if the rate is between others, or the next one is below `lowest`
    or, rounded to three digits, one of them.
    """
    rates = sorted(tried)
    neighbours = {rates[0]: rates[1], rates[-1]: rates[-2]} if len(rates) > 1 else {}
    following = float(f"{picked**2 / neighbours.get(picked, picked):.3g}")
    good = following not in rates and following >= lowest and following > 0
    return [following] if picked in neighbours and good else []
