"""Which orders of two schemes hold from a small board to a larger one, from rows alone.

    python -m tools.orders SMALL.csv.xz LARGE.csv.xz
    python -m tools.orders ROWS.csv.xz          the differences of each pair on one board
    python -m tools.orders ROWS.csv.xz --step=600       the same after 600 steps (test_at)

Each pair of schemes is compared in four numbers: the loss of the text at L and at 32 L, the areas
of content and order (tools/board.py). A pair is decided where the 95 % interval of its difference
excludes zero, or where one scheme has learned a kind in every seed and the other in none.
A larger board of one seed has no spread over seeds: that of the same pair on the small one is
taken. The order of a pair then

    holds    is decided on both, with the same sign
    turns    is decided on both, with opposite signs
    opens    is decided on the larger board alone
    closes   is decided on the smaller one alone

A rank is trusted if no order turns, and two thirds of those decided on the small board hold.
"""

import argparse
from itertools import combinations, product

import numpy as np
import pandas as pd
from scipy import stats

from common.errors import UserError, run_program
from tables import reach, tables
from tables.records import load_rows
from tools import board

TEXTS = ("L", "32 L")
NUMBERS = (*TEXTS, *reach.LEARNED)
HOLD = 2 / 3  # of the orders decided on the small board, for a rank that is trusted


def measure(rows: pd.DataFrame, step: int | None = None) -> pd.DataFrame:
    """`board.measure` of the runs after `step` steps, or at the end. UserError if there is none."""
    steps = sorted(rows.step.unique())
    rows = rows[rows.step == (step or rows.max_iters)]
    if step and rows.empty:
        raise UserError(f"no row is of step {step}: there are {', '.join(map(str, steps))}")
    return board.measure(rows)


def has_learned(runs: pd.DataFrame, name: str) -> pd.Series:
    """Whether each run has learned a kind of question; text is always learned."""
    if name in TEXTS:
        return pd.Series(True, index=runs.index)
    return runs[f"inside_{name}"] >= reach.LEARNED[name]


def compare(
    numbers: pd.DataFrame, a: str, b: str, name: str, of_one_seed: pd.Series | None = None
) -> tuple[int, str, pd.Series]:
    """Of two schemes: 1 if a is better, -1 if b is, 0 if that is not decided; the difference a - b
    in words; and its values over the seeds of both, none if one has not learned the kind.

    `of_one_seed` are values to take the spread over seeds from, if they share one seed alone.
    """
    of_a = numbers[numbers.label == a]
    of_b = numbers[numbers.label == b]
    of_a = of_a[of_a.seed.isin(of_b.seed)]
    of_b = of_b[of_b.seed.isin(of_a.seed)]
    a_learned = has_learned(of_a, name)
    b_learned = has_learned(of_b, name)
    none = pd.Series(dtype=float)
    if of_a.empty:
        return 0, "no seed in common", none
    if not (a_learned.any() or b_learned.any()):
        return 0, "neither learned", none
    if a_learned.all() and not b_learned.any():
        return 1, "first learned", none
    if b_learned.all() and not a_learned.any():
        return -1, "second learned", none
    if not (a_learned.all() and b_learned.all()):
        return 0, "in some seeds", none
    values, of_test, df = board.differences(of_a, of_b, name)
    if values.empty:
        return 0, "cannot read it", values
    spread = values
    if len(values) == 1:
        spread = none if of_one_seed is None else of_one_seed
    if len(spread) < 2:
        return 0, f"{values.mean():z.3f}, spread unknown", values
    half, _ = board.interval(values, of_test, df, spread)
    better = np.sign(values.mean()) * (-1 if name in TEXTS else 1)
    decided = abs(values.mean()) > half
    return int(better * decided), f"{values.mean():z.3f} ± {half:.3f}", values


def pairs_of(numbers: pd.DataFrame) -> list[tuple[str, str, str]]:
    """Each number with each pair of schemes."""
    pairs = list(combinations(numbers.label.unique(), 2))
    return [(name, a, b) for name, (a, b) in product(NUMBERS, pairs)]


def differences_of(numbers: pd.DataFrame) -> pd.DataFrame:
    """A line for each number and pair of schemes of one board, with its difference."""
    lines = []
    for name, a, b in pairs_of(numbers):
        better, text, _ = compare(numbers, a, b, name)
        who = {1: a, -1: b, 0: "not decided"}[better]
        lines.append([name, f"{a}, {b}", text, who])
    return pd.DataFrame(lines, columns=["number", "first - second", "difference", "better"])


def outcome(small: int, large: int) -> str:
    """What becomes of an order, given which scheme is better on both boards."""
    if small == large:
        return "holds" if small else ""
    if not small:
        return "opens"
    return "turns" if large else "closes"


def orders(small: pd.DataFrame, large: pd.DataFrame) -> pd.DataFrame:
    """A line for each number and pair of schemes on both boards."""
    lines = []
    for name, a, b in pairs_of(small[small.label.isin(large.label)]):
        before, text_before, values = compare(small, a, b, name)
        after, text_after, _ = compare(large, a, b, name, values)
        lines.append([name, f"{a}, {b}", text_before, text_after, outcome(before, after)])
    return pd.DataFrame(lines, columns=["number", "first - second", "small", "large", "order"])


def ranks(numbers: pd.DataFrame, name: str) -> pd.Series:
    """The rank of each scheme, 1 for the best mean over seeds; what has not learned is last."""
    means = numbers.groupby("label", sort=False)[name].mean()
    for label, runs in numbers.groupby("label"):
        if not has_learned(runs, name).all():
            means[label] = -np.inf
    return means.rank(ascending=name in TEXTS)


def verdicts(found: pd.DataFrame, small: pd.DataFrame, large: pd.DataFrame) -> pd.DataFrame:
    """A line for each number: how many orders hold and turn, Kendall's tau of the ranks, and
    whether the rank of the small board is trusted.
    """
    lines = []
    for name, pairs in found.groupby("number", sort=False):
        counts = pairs.order.value_counts().reindex(
            ["holds", "turns", "opens", "closes"], fill_value=0
        )
        decided = counts.holds + counts.turns + counts.closes
        verdict = "undecided"
        if counts.turns:
            verdict = "not trusted"
        elif decided and counts.holds >= HOLD * decided:
            verdict = "trusted"
        both = pd.concat([ranks(small, name), ranks(large, name)], axis=1).dropna()
        tau = stats.kendalltau(both.iloc[:, 0], both.iloc[:, 1]).statistic
        lines.append(
            {"number": name, "pairs": len(pairs), **counts, "tau": f"{tau:.2f}", "rank": verdict}
        )
    return pd.DataFrame(lines)


def main() -> None:
    """Print what becomes of each order, and how far each rank is trusted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("small", help="rows of the small board, with three seeds or more")
    parser.add_argument("large", nargs="?", help="rows of the larger board")
    parser.add_argument("--step", type=int, help="of a test on the way, by default the last")
    options = parser.parse_args()
    small_rows = load_rows(options.small)
    small = measure(small_rows, options.step)
    trained = board.trained_length(small_rows)
    longest = small_rows.length.max()

    def show(table: pd.DataFrame) -> str:
        """In Markdown, with the longest length as it is."""
        named = table.replace({"number": {"32 L": f"{longest / trained:g} L"}})
        return tables.show("", named, format="md")

    if not options.large:
        print(show(differences_of(small)).strip())
        return
    large_rows = load_rows(options.large)
    if (trained, longest) != (board.trained_length(large_rows), large_rows.length.max()):
        raise UserError("the boards must have the same training and longest test length")
    large = measure(large_rows, options.step)
    found = orders(small, large)
    if found.empty:
        raise UserError("these boards share no two schemes with the same labels")
    print(show(verdicts(found, small, large)).strip())
    print(show(found))


if __name__ == "__main__":
    run_program(main)
