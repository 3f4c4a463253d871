"""Differences between schemes: their p-values, Holm's correction, what is paired with what, and the rate that is picked."""

import math
from pathlib import Path

import numpy as np
import pytest

from configurable import UserError
from runs import figures
from runs.compare import (
    contrasts,
    holm,
    p_value,
    pick_rate,
    rates_beyond,
    rows_by_seed,
    schemes_of,
    t_point,
)
from runs.results import standard_error
from runs.tables import seeds_table

# two-sided 5 %, 1 % and 0.1 % points of Student's t, as tables print them
PUBLISHED = {
    1: (12.706, 63.657, 636.62),
    2: (4.303, 9.925, 31.599),
    3: (3.182, 5.841, 12.924),
    4: (2.776, 4.604, 8.610),
    5: (2.571, 4.032, 6.869),
    10: (2.228, 3.169, 4.587),
    20: (2.086, 2.845, 3.850),
    30: (2.042, 2.750, 3.646),
    60: (2.000, 2.660, 3.460),
    120: (1.980, 2.617, 3.373),
}


def result(
    blocks: list[float] | np.ndarray,
    pos: str = "rope",
    seed: int = 1,
    more: dict[int, list[float] | None] | None = None,
    **fields: object,
) -> dict:
    """A made-up result: losses of blocks at L = 128, and at other lengths (None: not finite)."""
    rows = []
    for n, losses in {128: blocks, **(more or {})}.items():
        row = {"protocol": "fixed_targets", "length": n, "dataset": "toy", "extend": None}
        row |= {"split_sha256": "s", "step": 9, "checkpoint": "c", "stride": None, "windows": 64}
        if losses is None:
            row |= {"nats": None, "diverged": True, "reason": "diverged: 3 windows", "targets": "t"}
        else:
            row |= {"nats": float(np.mean(losses)), "block_nats": list(losses), "targets": "t"}
        rows.append(row)
    about = {"pos": pos, "seed": seed, "train_length": 128, "unit": "byte", "step": 9}
    return about | {"settings": {}, "rows": rows} | fields


def seeds_of(pos: str, means: list[float], more: dict | None = None) -> list[dict]:
    """A result of four blocks around each mean, one for each seed from 1 on."""
    noise = np.array([0.5, -0.5, 0.25, -0.25])
    return [result(noise + mean, pos, seed, more) for seed, mean in enumerate(means, start=1)]


def differences_table(results: list[dict]) -> str:
    """The table of seeds, as show_runs prints it."""
    return seeds_table(schemes_of(results))


def found(*results: dict) -> dict:
    """The contrasts of the results, by label and length."""
    return contrasts(rows_by_seed(schemes_of(list(results)))[1])


# ---- Student's t and Holm


def test_p_values_are_those_of_published_tables() -> None:
    for degrees, points in PUBLISHED.items():
        for t, p in zip(points, (0.05, 0.01, 0.001), strict=True):
            assert p_value(t, degrees) == pytest.approx(p, rel=2e-3)
            assert p_value(-t, degrees) == p_value(t, degrees)
        assert t_point(degrees) == pytest.approx(points[0], abs=5e-4)


@pytest.mark.parametrize("degrees", [1, 2, 3, 7, 8, 63, 255])
def test_p_values_are_the_area_under_the_density(degrees: int) -> None:
    x = np.linspace(0, 12, 200_001)
    scale = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)
    density = math.exp(scale) / math.sqrt(degrees * math.pi)
    density = density * (1 + x**2 / degrees) ** (-(degrees + 1) / 2)
    area = np.cumsum((density[1:] + density[:-1]) / 2) * (x[1] - x[0])
    for t in (0.1, 1.0, 2.5, 9.0):
        inside = 2 * area[np.searchsorted(x, t) - 1]
        assert p_value(t, degrees) == pytest.approx(1 - inside, abs=1e-4)
    assert p_value(0, degrees) == 1 and p_value(math.inf, degrees) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("values", "corrected"),
    [
        ((0.01, 0.04, 0.03, 0.005), (0.03, 0.06, 0.06, 0.02)),
        ((0.01, 0.02, 0.03, 0.04, 0.05), (0.05, 0.08, 0.09, 0.09, 0.09)),  # R's p.adjust
        ((0.7, 0.6), (1.0, 1.0)),
        ((0.03,), (0.03,)),
        ((), ()),
    ],
)
def test_holm_steps_down(values: tuple, corrected: tuple) -> None:
    family = {str(k): p for k, p in enumerate(values)}
    assert list(holm(family)) == sorted(family, key=family.get)
    assert [holm(family)[name] for name in family] == pytest.approx(corrected)


# ---- what is paired


def test_over_seeds_the_differences_of_each_seed_are_the_sample() -> None:
    rope, nope = seeds_of("rope", [1.5, 1.7, 1.6]), seeds_of("nope", [1.6, 1.85, 1.65])
    one = found(*rope, *nope)["nope"][128]
    differences = [0.1, 0.15, 0.05]
    assert one.nats == pytest.approx(0.1) and one.seeds == 3
    assert one.stderr == pytest.approx(np.std(differences, ddof=1) / math.sqrt(3))
    assert one.half == pytest.approx(4.3027 * one.stderr, rel=1e-4)
    assert one.p == pytest.approx(p_value(0.1 / one.stderr, 2))
    assert found(*rope, *nope)["rope"] == {}


def test_of_one_seed_the_windows_are_the_sample_and_the_table_says_what_that_shows() -> None:
    a, b = np.array([1.0, 2.0, 3.0, 1.0]), np.array([1.1, 2.3, 3.1, 1.1])
    one = found(result(a), result(b, "nope"))["nope"][128]
    assert one.nats == pytest.approx(0.15) and one.seeds == 1
    assert one.stderr == pytest.approx(standard_error(b - a))
    assert one.half == pytest.approx(t_point(3) * one.stderr)
    table = differences_table([result(a), result(b, "nope")])
    assert f"+0.1500 ± {one.stderr:.4f} (one seed)" in table
    assert "one seed, which shows nothing about other seeds" in table


def test_only_seeds_that_both_have_are_paired() -> None:
    rope, nope = seeds_of("rope", [1.5, 1.7, 1.6]), seeds_of("nope", [1.6, 9.0, 1.65])
    one = found(rope[0], rope[2], *nope)["nope"][128]
    assert one.seeds == 2 and one.nats == pytest.approx(0.075)
    apart = differences_table([rope[0], nope[1]])
    assert "no seed in common with rope: train both with the same seed" in apart


def test_a_length_at_which_a_seed_diverged_has_no_mean_and_no_difference() -> None:
    fine, broken = {256: [1.0, 1.0, 1.0, 1.0]}, {256: None}
    rope = seeds_of("rope", [1.5, 1.7, 1.6], fine)
    nope = [*seeds_of("nope", [1.6, 1.7], fine), seeds_of("nope", [0, 0, 1.9], broken)[2]]
    assert found(*rope, *nope)["nope"].keys() == {128}
    table = seeds_table({"rope": rope, "nope": nope})
    assert "nope 256 diverged: 1 of 3 seeds (3)".split() in [x.split() for x in table.splitlines()]


def test_results_that_differ_only_in_their_seed_are_one_scheme() -> None:
    slow = [r | {"settings": {"learning_rate": 0.001}} for r in seeds_of("rope", [1.5, 1.7])]
    fast = seeds_of("rope", [1.4, 1.6])
    schemes = schemes_of([*slow, *fast])
    assert list(schemes) == ["rope lr=0.001", "rope lr=0.003"]
    assert [[r["seed"] for r in of] for of in schemes.values()] == [[1, 2], [1, 2]]
    copies = [fast[0] | {"folder": name} for name in ("out/a", "out/b")]
    assert len(schemes_of(copies)) == 2  # the same run twice: each by itself
    assert list(schemes_of(fast)) == ["rope"] == list(schemes_of(fast[:1]))


def test_equal_models_are_not_distinguishable_and_a_difference_without_spread_is() -> None:
    rope, nope = seeds_of("rope", [1.5, 1.7]), seeds_of("nope", [1.5, 1.7])
    same = found(*rope, *nope)["nope"][128]
    assert same.p == 1 and not same.distinguishable
    assert "not distinguishable" in differences_table([*rope, *nope])
    more = found(result([1.0, 2.0]), result([1.5, 2.5], "nope"))["nope"][128]
    assert more.distinguishable
    assert "not distinguishable\n" not in differences_table(
        [result([1.0, 2.0]), result([1.5, 2.5], "nope")]
    )


# ---- the family


def test_the_schemes_at_one_length_are_the_family() -> None:
    nats = {"a": [1.0, 1.1, 1.0], "b": [1.1, 1.19, 1.1], "c": [1.3, 1.5, 1.1], "d": [1.0, 1.2, 1.0]}
    rows = [r for pos, means in nats.items() for r in seeds_of(pos, means)]
    alone = {
        pos: found(*rows[:3], *rows[3 * k : 3 * k + 3])[pos][128].p
        for k, pos in enumerate("abcd")
        if k
    }
    family = {pos: by_length[128].p for pos, by_length in found(*rows).items() if by_length}
    assert family == holm(alone) and family["b"] == pytest.approx(3 * alone["b"])
    longer = [r for r in seeds_of("b", nats["b"], {256: [1, 1.2, 1, 1]})]
    first = seeds_of("a", nats["a"], {256: [1, 1, 1, 1]})
    both = found(*first, *longer, *rows[6:])
    assert both["b"][128].p == family["b"] and both.keys() == family.keys() | {"a"}
    assert set(both["b"]) == {128, 256} and set(both["c"]) == {128}


def test_schemes_that_are_equal_are_told_apart_in_a_twentieth_of_comparisons() -> None:
    random = np.random.default_rng(7)
    wrong = uncorrected = 0
    for _ in range(600):
        by_scheme = {}
        for label in "abcdef":
            rows = [result(random.normal(2, 0.01) + np.zeros(2), label, s) for s in (1, 2, 3)]
            by_scheme[label] = {r["seed"]: {128: r["rows"][0]} for r in rows}
        ones = [by_length[128] for by_length in contrasts(by_scheme).values() if by_length]
        wrong += any(one.distinguishable for one in ones)
        uncorrected += any(abs(one.nats) > one.half for one in ones)
    assert wrong / 600 < 0.07 < 0.15 < uncorrected / 600  # 0.05 within two standard errors


def test_the_bars_of_the_figure_are_the_intervals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    axes = []
    monkeypatch.setattr(figures, "save_losses", lambda axis, path: axes.append(axis))
    rope, nope = seeds_of("rope", [1.5, 1.7, 1.6]), seeds_of("nope", [1.6, 1.85, 1.65])
    figures.plot_seeds({"rope": rope, "nope": nope}, tmp_path / "x.png")
    bars = [bar.get_segments()[0][:, 1] for curve in axes[0].containers for bar in curve.lines[2]]
    for bar, nats in zip(bars, ([1.5, 1.7, 1.6], [1.6, 1.85, 1.65]), strict=True):
        half = 4.302653 * np.std(nats, ddof=1) / math.sqrt(3)  # a table of Student's t
        assert bar == pytest.approx([np.mean(nats) - half, np.mean(nats) + half], rel=1e-5)
    assert "95 % interval of the mean over seeds" in axes[0].get_xlabel()


# ---- the rate that is picked


@pytest.mark.parametrize(
    ("losses", "picked"),
    [
        ({1e-3: 1.5, 3e-3: 1.6, 6e-3: 1.7}, 1e-3),
        ({1e-3: 1.5, 3e-3: 1.5099, 6e-3: 1.7}, 3e-3),  # within 0.01 nats the usual one stays
        ({1e-3: 1.5, 3e-3: 1.5101, 6e-3: 1.7}, 1e-3),
        ({1e-3: 1.5, 3e-3: math.inf, 6e-3: math.inf}, 1e-3),
        ({1e-3: math.inf, 3e-3: math.inf, 6e-3: math.inf}, 1e-3),  # all diverged: the lowest
    ],
)
def test_the_best_rate_is_picked_unless_the_usual_one_is_as_good(
    losses: dict[float, float], picked: float
) -> None:
    assert pick_rate(losses, 3e-3) == picked


def test_beyond_an_edge_the_next_rate_is_as_far_as_its_neighbour() -> None:
    tried = (1e-3, 6e-3, 3e-3)
    assert rates_beyond(tried, 6e-3, 0) == [0.012]
    assert rates_beyond(tried, 1e-3, 0) == [0.000333]
    assert rates_beyond(tried, 3e-3, 0) == []
    assert rates_beyond(tried, 1e-3, 5e-4) == []  # below min_lr
    assert rates_beyond((1e-3, 2e-3), 2e-3, 0) == [0.004]
    assert rates_beyond((3e-3, 3.001e-3), 3.001e-3, 0) == []  # 3 digits: it would be 3e-3 again
    assert rates_beyond((1e-200, 1e-3), 1e-200, 0) == []


def test_results_on_other_targets_are_not_compared() -> None:
    other = result([1.0, 2.0], "nope")
    other["rows"][0]["targets"] = "u"
    with pytest.raises(UserError, match="different targets"):
        differences_table([result([1.0, 2.0]), other])
