"""Differences between schemes: paired, with their errors, and corrected for how many are compared.

Within a seed two schemes are compared window by window, on the same targets. Over seeds their
differences are a sample for Student's t. Windows and seeds are never pooled.
"""

import functools
import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from configurable import require
from runs.labels import result_labels
from runs.results import Result, Row, fixed_target_rows, paired, select_rows, standard_error

Seeds = dict[int, dict[int, Row]]  # of one scheme: rows of fixed_targets by seed and length

LEVEL = 0.05  # of the tests; the intervals hold 1 - LEVEL
NEAR = 0.01  # nats by which another learning rate must be better than the usual one


# ---- several seeds


def missing_results(cells: dict[str, list[Result]]) -> list[str]:
    """A sentence for each cell without a result; see `rows_by_seed`."""
    sentences = []
    for label, results in cells.items():
        missing = [r for r in results if "rows" not in r]
        sentences += [f"{label}, seed {r['seed']}: no result: {r['reason']}" for r in missing]
    return sentences


def rows_by_seed(cells: dict[str, list[Result]], dataset: str = "") -> tuple[str, dict[str, Seeds]]:
    """The dataset, and the rows of fixed_targets of each scheme by seed and length.

    `cells` is {scheme: a result for each seed}; a missing one is {"seed": ..., "reason": ...}.
    UserError if all are missing, or if two were measured on different targets.
    """
    done = [(label, r) for label, results in cells.items() for r in results if "rows" in r]
    nothing = ["there is no result to compare", *missing_results(cells)]
    require(done, "; ".join(nothing))
    dataset, all_rows = select_rows([result for _, result in done], dataset)
    by_seed: dict[str, Seeds] = {label: {} for label in cells}
    for (label, result), rows in zip(done, all_rows, strict=True):
        by_seed[label][result["seed"]] = fixed_target_rows(rows)
    return dataset, by_seed


def losses_at(seeds: Seeds, length: int) -> dict[int, float]:
    """The nats at a length by seed, for the seeds at which they are defined.

    Empty if a seed diverged there: the mean of the others would hide it.
    """
    rows = {seed: fixed[length] for seed, fixed in seeds.items() if length in fixed}
    if any(row.get("diverged") for row in rows.values()):
        return {}
    return {seed: row["nats"] for seed, row in rows.items() if row["nats"] is not None}


def schemes_of(results: list[Result]) -> dict[str, list[Result]]:
    """The results by their label without the seed; runs that are equal in all have their own."""
    alike = [{**result, "seed": 0} for result in results]
    for result in alike:
        result.pop("folder", None)
    runs = [(label, r["seed"]) for label, r in zip(result_labels(alike), results, strict=True)]
    schemes: dict[str, list[Result]] = {}
    for run, label, result in zip(runs, result_labels(results), results, strict=True):
        schemes.setdefault(label if runs.count(run) > 1 else run[0], []).append(result)
    return schemes


# ---- Student's t


def p_value(t: float, degrees: int) -> float:
    """The probability that |T| is above |t|, for Student's T with whole degrees of freedom."""
    angle, odd = math.atan2(abs(t), math.sqrt(degrees)), degrees % 2
    term, total = (math.cos(angle) if odd else 1.0), 0.0
    for k in range(2 + odd, degrees + 1, 2):
        total += term
        term *= (k - 1) / k * math.cos(angle) ** 2
    below = math.sin(angle) * total
    return 1 - (2 / math.pi * (angle + below) if odd else below)


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
    corrected, highest = {}, 0.0
    for k, name in enumerate(sorted(values, key=values.__getitem__)):
        highest = max(highest, min(1.0, (len(values) - k) * values[name]))
        corrected[name] = highest
    return corrected


# ---- schemes against the first


class Contrast(NamedTuple):
    """The paired difference of a scheme to the first at one length.

    The standard error is over seeds or, of one seed, over windows. `p` is corrected by Holm.
    """

    nats: float
    stderr: float
    seeds: int
    degrees: int  # of freedom
    p: float = math.nan

    @property
    def half(self) -> float:
        """Half the width of the 95 % t-interval, which is not corrected."""
        return t_point(self.degrees) * self.stderr

    @property
    def distinguishable(self) -> bool:
        """Whether Holm's correction rejects, at 5 %, that there is no difference."""
        return self.p <= LEVEL


def contrast(seeds: Seeds, first: Seeds, length: int) -> Contrast | None:
    """The difference of a scheme to the first at a length, its p not corrected.

    None if no seed has both on the same targets, or if one diverged there.
    """
    both = losses_at(seeds, length).keys() & losses_at(first, length).keys()
    pairs = {seed: paired(seeds[seed][length], first[seed][length]) for seed in sorted(both)}
    found = {seed: pair for seed, pair in pairs.items() if pair}
    if not found:
        return None
    nats = np.array([pair.nats for pair in found.values()])
    if len(found) == 1:
        ((seed, (mean, stderr)),) = found.items()
        degrees = len(seeds[seed][length]["block_nats"]) - 1
    else:
        mean, stderr, degrees = float(nats.mean()), standard_error(nats), len(nats) - 1
    t = mean / stderr if stderr else math.copysign(math.inf, mean) if mean else 0.0
    return Contrast(mean, stderr, len(found), degrees, p_value(t, degrees))


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
    best = min(losses.values())
    if math.isinf(best):
        return min(losses)
    return usual if losses[usual] <= best + NEAR else min(losses, key=losses.__getitem__)


def rates_beyond(tried: Iterable[float], picked: float, lowest: float) -> tuple[float, ...]:
    """If the rate picked is at an edge of those tried, the next one, as far off as its neighbour.

    Its distance is a ratio. Empty if the rate is between others, or the next one is below `lowest`
    or, rounded to three digits, one of them.
    """
    rates = sorted(tried)
    neighbours = {rates[0]: rates[1], rates[-1]: rates[-2]}
    following = float(f"{picked**2 / neighbours.get(picked, picked):.3g}")
    good = following not in rates and following >= lowest and following > 0
    return (following,) if picked in neighbours and good else ()
