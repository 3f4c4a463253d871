"""Extensions of trained models: frequencies against transformers and golden numbers, distances against the papers' formulas.

The formulas are written here in plain Python floats, by distance; the project writes them as regions of moved positions.
"""

from __future__ import annotations

import cmath
import itertools
import json
import math
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

import attention
import posenc
from configurable import UserError
from model import GPT, GPTConfig
from posenc import Shape, rope_frequencies
from positions.catalogue import extension_names, extensions, find, names
from positions.scheme import Scheme

L, HEADS, D = 8, 2, 8
FLOAT64 = torch.empty(0, dtype=torch.float64)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def written(folder: Path, content: object) -> Path:
    """A JSON file; a string is written as it is."""
    file = folder / "factors.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return file


# Frequencies against transformers


@cache
def their_config(head_dim: int, train_length: int) -> object:
    llama = pytest.importorskip("transformers.models.llama.configuration_llama")
    return llama.LlamaConfig(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        head_dim=head_dim,
        max_position_embeddings=train_length,
    )


def theirs(
    kind: str,
    head_dim: int,
    base: float,
    train_length: int,
    length: int | None = None,
    **options: object,
) -> tuple[Tensor, float]:
    """transformers' (inv_freq float32, attention factor)."""
    functions, config = (
        pytest.importorskip("transformers.modeling_rope_utils").ROPE_INIT_FUNCTIONS,
        their_config(head_dim, train_length),
    )
    config.rope_parameters = {
        "rope_type": kind,
        "rope_theta": base,
        "original_max_position_embeddings": train_length,
        **options,
    }
    return functions[kind](config, "cpu", seq_len=length)


def compare(ours: tuple[Tensor, float], expected: tuple[Tensor, float]) -> float:
    """The largest relative difference of the frequencies, after asserting that it is float32's."""
    torch.testing.assert_close(ours[0], expected[0].double(), rtol=1e-5, atol=0)
    assert ours[1] == pytest.approx(expected[1], rel=1e-12)
    return float((ours[0] / expected[0].double() - 1).abs().max())


SIZES = [
    (8, 500.0, 128),
    (8, 10000.0, 4096),
    (24, 5e5, 1000),
    (64, 100.0, 128),
    (64, 10000.0, 1000),
    (64, 5e5, 8192),
    (128, 10000.0, 4096),
    (128, 500.0, 512),
    (256, 1e6, 77),
]  # head_dim, base, training length


@pytest.mark.parametrize("head_dim, base, train_length", SIZES)
def test_pi_is_the_linear_type(head_dim, base, train_length):
    for factor in (1.0, 2.5, 16.0):
        compare(
            rope_frequencies(
                head_dim, base, extend=f"pi(factor={factor})", train_length=train_length
            ),
            theirs("linear", head_dim, base, train_length, factor=factor),
        )


@pytest.mark.parametrize("head_dim, base, train_length", SIZES)
def test_dynamic_ntk_is_the_dynamic_type(head_dim, base, train_length):
    for factor, length in itertools.product((1.0, 2.0, 4.5), (0.5, 1, 1.01, 2, 7.3, 64)):
        length = int(length * train_length)
        compare(
            rope_frequencies(
                head_dim,
                base,
                extend=f"dynamic_ntk(factor={factor})",
                train_length=train_length,
                length=length,
            ),
            theirs("dynamic", head_dim, base, train_length, length, factor=factor),
        )


@pytest.mark.parametrize("head_dim, base, train_length", SIZES)
def test_ntk_is_the_dynamic_type_at_the_length_of_its_factor(head_dim, base, train_length):
    for factor in (2, 8):
        compare(
            rope_frequencies(
                head_dim, base, extend=f"ntk(factor={factor})", train_length=train_length
            ),
            theirs("dynamic", head_dim, base, train_length, factor * train_length, factor=1.0),
        )


@pytest.mark.parametrize("head_dim, base, train_length", SIZES)
@pytest.mark.parametrize("low, high", [(1.0, 4.0), (0.5, 8.0), (2.0, 6.0)])
def test_llama3_is_the_llama3_type(head_dim, base, train_length, low, high):
    for factor in (1.0, 3.0, 32.0):
        compare(
            rope_frequencies(
                head_dim,
                base,
                extend=f"llama3(factor={factor}, low={low}, high={high})",
                train_length=train_length,
            ),
            theirs(
                "llama3",
                head_dim,
                base,
                train_length,
                factor=factor,
                low_freq_factor=low,
                high_freq_factor=high,
            ),
        )


def edge(turns: float, head_dim: int, base: float, train_length: int) -> float:
    """The pair, as a real number, that turns so often within the training length."""
    return head_dim * math.log(train_length / (2 * math.pi * turns)) / (2 * math.log(base))


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize("alpha, beta", [(1.0, 32.0), (1.0, 8.0), (0.5, 2.25), (4.0, 100.0)])
def test_yarn_is_the_yarn_type(alpha, beta, truncate):
    """With mscale alone transformers goes by the factor only; DeepSeek's own code, which ours follows, divides
    get(mscale) by get(mscale_all_dim), where get(0) is 1: both agree with both, and with neither."""
    compared, pairs = (
        0,
        itertools.cycle(
            [
                {},
                {"mscale": 1.0, "mscale_all_dim": 0.5},
                {"mscale": 0.707, "mscale_all_dim": 0.707},
                {"mscale": 2, "mscale_all_dim": 1.5},
            ]
        ),
    )
    for (head_dim, base, train_length), factor, scales in zip(
        SIZES * 2, itertools.cycle([2.0, 40.0, 1.0, 8.5, 3.0]), pairs
    ):
        if max(edge(beta, head_dim, base, train_length), 0) >= min(
            edge(alpha, head_dim, base, train_length), head_dim - 1
        ):
            continue  # the next test
        said = "".join(f", {key}={value}" for key, value in scales.items())
        ours = rope_frequencies(
            head_dim,
            base,
            train_length=train_length,
            extend=(
                f"yarn(factor={factor}, alpha={alpha}, beta={beta}, truncate={truncate}{said})"
            ),
        )
        compare(
            ours,
            theirs(
                "yarn",
                head_dim,
                base,
                train_length,
                factor=factor,
                beta_fast=beta,
                beta_slow=alpha,
                truncate=truncate,
                **scales,
            ),
        )
        compared += 1
    assert compared > 10


@pytest.mark.parametrize("train_length, kept", [(4, 0.0), (10**6, 1.0)])
def test_where_all_pairs_turn_too_rarely_or_often_enough_yarn_divides_or_keeps_them(
    train_length, kept
):
    """The edges of the band lie outside of the pairs; there the ramp of the authors' code, and of transformers, runs backwards."""
    head_dim, base, factor = 8, 10.0, 4.0
    assert edge(1, head_dim, base, 4) < 0 and edge(32, head_dim, base, 10**6) > head_dim
    ratio = (
        rope_frequencies(
            head_dim, base, extend=f"yarn(factor={factor}, mscale=0)", train_length=train_length
        )[0]
        / rope_frequencies(head_dim, base)[0]
    )
    assert ratio[1:].tolist() == pytest.approx([kept + (1 - kept) / factor] * 3)


def test_mscale_alone_is_deepseeks():
    for mscale, factor in itertools.product((0.0, 0.5, 0.707, 2.0), (1.0, 4.0, 40.0)):
        _, ours = rope_frequencies(
            64, extend=f"yarn(factor={factor}, mscale={mscale})", train_length=512
        )
        assert ours == pytest.approx(1 + 0.1 * mscale * math.log(factor), rel=1e-12)


@pytest.mark.parametrize("head_dim, base, train_length", SIZES)
def test_longrope_is_the_longrope_type(head_dim, base, train_length, tmp_path):
    draw = random.Random(head_dim * train_length)
    lists = {
        name: [draw.uniform(low, high) for _ in range(head_dim // 2)]
        for name, low, high in (("short_factor", 0.9, 1.5), ("long_factor", 1.0, 40.0))
    }
    file = written(tmp_path, lists)
    for factor, length in itertools.product(
        (1.0, 4.0, 32.0), (1, train_length, train_length + 1, 9 * train_length)
    ):
        compare(
            rope_frequencies(
                head_dim,
                base,
                extend=f"longrope(file='{file}', factor={factor})",
                train_length=train_length,
                length=length,
            ),
            theirs("longrope", head_dim, base, train_length, length, factor=factor, **lists),
        )


# Golden numbers of the issue: head_dim 64, base 1e4, the ratios of pairs 0, 4, 8, 12, 16, 20, 24 and 31

PAIRS = [0, 4, 8, 12, 16, 20, 24, 31]
GOLDEN = [
    ("pi(factor=4)", 512, 2048, 1.0, [0.25] * 8),
    (
        "dynamic_ntk",
        512,
        2048,
        1.0,
        [1, 0.836209, 0.699245, 0.584715, 0.488944, 0.408860, 0.341892, 0.25],
    ),
    ("ntk", 512, 2048, 1.0, [1, 0.836209, 0.699245, 0.584715, 0.488944, 0.408860, 0.341892, 0.25]),
    ("yarn(factor=4)", 512, 1, 1.138629, [1, 0.942308, 0.711538, 0.480769, 0.25, 0.25, 0.25, 0.25]),
    ("yarn(factor=4)", 1024, 1, 1.138629, [1, 1, 0.826923, 0.596154, 0.365385, 0.25, 0.25, 0.25]),
    (
        "yarn(factor=4, truncate=False)",
        1024,
        1,
        1.138629,
        [1, 1, 0.853986, 0.604842, 0.355697, 0.25, 0.25, 0.25],
    ),
    ("dynamic_yarn", 1024, 4096, 1.138629, [1, 1, 0.826923, 0.596154, 0.365385, 0.25, 0.25, 0.25]),
    (
        "dynamic_yarn(mscale=0)",
        1024,
        4096,
        1.0,
        [1, 1, 0.826923, 0.596154, 0.365385, 0.25, 0.25, 0.25],
    ),
    ("dynamic_yarn", 1024, 1000, 1.0, [1.0] * 8),
    ("llama3(factor=4)", 1024, 1, 1.0, [1, 1, 1, 1, 0.407437, 0.25, 0.25, 0.25]),
    ("ntk_by_parts(factor=4, beta=4)", 1024, 1, 1.0, [1, 1, 1, 1, 0.407437, 0.25, 0.25, 0.25]),
    (
        "yarn(factor=4, beta=4, ramp=turns)",
        1024,
        1,
        1.138629,
        [1, 1, 1, 1, 0.407437, 0.25, 0.25, 0.25],
    ),
    ("p_rope", 512, 1, 1.0, [1, 1, 1, 1, 0, 0, 0, 0]),
]


def ratios(extend: str, train_length: int, length: int) -> tuple[list[float], float]:
    inv_freq, factor = rope_frequencies(64, extend=extend, train_length=train_length, length=length)
    return (inv_freq / rope_frequencies(64)[0])[PAIRS].tolist(), factor


@pytest.mark.parametrize("extend, train_length, length, factor, expected", GOLDEN)
def test_frequencies_are_the_golden_ones(extend, train_length, length, factor, expected):
    found, attention_factor = ratios(extend, train_length, length)
    assert found == pytest.approx(expected, abs=6e-7)
    assert attention_factor == pytest.approx(factor, abs=6e-7)


def test_longrope_is_the_golden_one(tmp_path):
    file = written(tmp_path, {"long_factor": [1 + 3 * m / 31 for m in range(32)]})
    found, factor = ratios(f"longrope(file='{file}', factor=4)", 1024, 4096)
    assert found == pytest.approx(
        [1, 0.720930, 0.563636, 0.462687, 0.392405, 0.340659, 0.300971, 0.25], abs=6e-7
    )
    assert factor == pytest.approx(1.095445, abs=6e-7)


@pytest.mark.parametrize(
    "factor, base", [(2, 20452.23), (4, 41829.37), (8, 85550.38), (16, 174969.59)]
)
def test_ntk_is_a_larger_base(factor, base):
    """And so is abf, whose base is the one it is given."""
    expected = rope_frequencies(64, base)[0]
    for extend in (f"ntk(factor={factor})", f"abf(base={base})"):
        torch.testing.assert_close(
            rope_frequencies(64, extend=extend, train_length=512)[0], expected, rtol=1e-6, atol=0
        )


@pytest.mark.parametrize(
    "train_length, low, high",
    [(256, 0, 13), (512, 3, 16), (1024, 5, 18), (2048, 8, 21), (4096, 10, 23)],
)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_the_band_of_yarn_has_the_golden_edges(train_length, low, high, head_dim):
    low, high = (
        (low, high)
        if head_dim == 64
        else {256: (1, 26), 512: (6, 31), 1024: (11, 36), 2048: (16, 41), 4096: (20, 46)}[
            train_length
        ]
    )
    ratio = (
        rope_frequencies(head_dim, extend="yarn(factor=4)", train_length=train_length)[0]
        / rope_frequencies(head_dim)[0]
    )
    expected = [
        0.25 + 0.75 * (1 - min(1.0, max(0.0, (m - low) / (high - low))))
        for m in range(head_dim // 2)
    ]
    assert ratio.tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("pairs", [None, 0, 1, 5, 32, 99])
def test_clip_tapers_the_pairs_that_do_not_finish_a_turn(pairs):
    ratio = (
        rope_frequencies(
            64,
            extend=f"clip(pairs={pairs})" if pairs is not None else "clip",
            train_length=512,
            length=4096,
        )[0]
        / rope_frequencies(64)[0]
    ).tolist()
    n = 16 if pairs is None else min(pairs, 32)  # at 512 pairs 16 ... 31 have longer waves
    expected = [1.0] * (32 - n) + (
        [0.0] if n == 1 else [(1 + math.cos(math.pi * t / (n - 1))) / 2 for t in range(n)]
    )
    assert ratio == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    "extend", ["resonance", "yarn(factor=4) + resonance", "resonance + yarn(factor=4)"]
)
def test_resonance_rounds_wavelengths_after_another_map(extend):
    before = (
        rope_frequencies(64, extend="yarn(factor=4)", train_length=512)
        if "yarn" in extend
        else rope_frequencies(64)
    )
    inv_freq, factor = rope_frequencies(64, extend=extend, train_length=512)
    waves = [round(2 * math.pi / f) for f in before[0].tolist()]
    assert (2 * math.pi / inv_freq).tolist() == pytest.approx(waves, rel=1e-12)
    assert factor == before[1]


def test_longrope_leaves_the_first_positions_as_they_were(tmp_path):
    file = written(tmp_path, {"long_factor": [2, 3, 4, 5], "first": 3})
    scheme = Scheme("rope", Shape(HEADS, D, HEADS * D, L), 1)
    scheme.extend(f"longrope(file='{file}', factor=1)")
    cos, sin = scheme.pieces["0_rope"].cos_sin(torch.arange(20), 20)
    for p, m in itertools.product(range(20), range(4)):
        angle = p * 10000 ** (-m / 4) / (1 if p < 3 else [2, 3, 4, 5][m])
        assert (cos[p, m], sin[p, m]) == pytest.approx((math.cos(angle), math.sin(angle)), abs=1e-7)


def test_every_rotary_piece_of_a_pattern_is_stretched():
    scheme, ids = (
        Scheme("rope | rope(base=500)", Shape(HEADS, D, HEADS * D, L), 2),
        torch.arange(20),
    )
    plain = [piece.cos_sin(ids, 40)[1] for piece in scheme.pieces.values()]
    scheme.extend("pi(factor=2)")
    for piece, sines in zip(scheme.pieces.values(), plain, strict=True):
        torch.testing.assert_close(piece.cos_sin(2 * ids, 40)[1], sines)


# Scores of extended schemes


def scores(pos: str, extend: str, q: Tensor, k: Tensor, train_length: int = L) -> Tensor:
    """(H, T, T) of q and k (H, T, D), not turned."""
    scheme = Scheme(pos, Shape(q.shape[0], q.shape[-1], q.shape[0] * q.shape[-1], train_length), 1)
    scheme.extend(extend)
    index = torch.arange(q.shape[1])
    (plan,) = scheme.plans(index, index, index, len(index), FLOAT64)
    q, k = q[None], k[None]
    return attention.scores(
        *((plan.turns[0](q), plan.turns[1](k)) if plan.turns else (q, k)), plan
    )[0]


def rope_score(q: list[float], k: list[float], distance: float, frequencies: list[float]) -> float:
    """q R(-distance) k / sqrt(d) by complex numbers."""
    n = len(frequencies)
    pairs = (
        complex(q[m], q[m + n]) * complex(k[m], -k[m + n]) * cmath.exp(1j * distance * f)
        for m, f in enumerate(frequencies)
    )
    return sum(pairs).real / math.sqrt(2 * n)


@pytest.mark.parametrize(
    "extend, attention_factor",
    [
        ("yarn(factor=4)", 0.1 * math.log(4) + 1),
        ("yarn", 0.1 * math.log(5) + 1),
        ("yarn(factor=16, mscale=2)", 0.2 * math.log(16) + 1),
        ("yarn(factor=16, mscale=0)", 1.0),
    ],
)
def test_the_temperature_of_yarn_enters_the_scores_squared(extend, attention_factor):
    q, k = normal(HEADS, 40, D, seed=1), normal(HEADS, 40, D, seed=2)
    found = scores("rope", extend, q, k)
    frequencies = rope_frequencies(D, extend=extend, train_length=L, length=40)[0].tolist()
    for h, i, j in [(0, 0, 0), (1, 39, 39), (0, 39, 0), (1, 17, 5), (0, 30, 29)]:
        plain = rope_score(q[h, i].tolist(), k[h, j].tolist(), i - j, frequencies)
        assert float(found[h, i, j]) == pytest.approx(attention_factor**2 * plain, abs=2e-6)


def test_the_attention_of_a_model_under_yarn_is_the_formula(monkeypatch):
    seen, original = [], attention.attend

    def spy(q: Tensor, k: Tensor, v: Tensor, prepared: attention.Prepared, *rest: object) -> Tensor:
        seen.append((q, k))
        return original(q, k, v, prepared, *rest)

    gpt, idx = trained("rope"), tokens(1, 32)
    monkeypatch.setattr(attention, "attend", spy)
    for extend in ("", "yarn(factor=4)"):
        gpt.extend(extend)
        gpt(idx)
    frequencies, factor = rope_frequencies(D, extend="yarn(factor=4)", train_length=L)
    assert factor == 0.1 * math.log(4) + 1
    plain, long = (
        [t[0].tolist() for t in seen[n]] for n in (0, 3)
    )  # of the first layer, turned, of the same tokens: (H, T, D)
    for h, i, j in [(0, 0, 0), (1, 31, 0), (0, 31, 30), (1, 17, 5)]:
        q, k = (turned_back(side[h][at], at) for side, at in zip(plain, (i, j), strict=True))
        found = sum(a * b for a, b in zip(long[0][h][i], long[1][h][j], strict=True)) / math.sqrt(D)
        assert found == pytest.approx(
            factor**2 * rope_score(q, k, i - j, frequencies.tolist()), rel=1e-5, abs=1e-5
        )


def turned_back(x: list[float], position: int) -> list[float]:
    """What rope turned at a position, as it was before."""
    pairs = [
        complex(a, b) * cmath.exp(-1j * position * 10000 ** (-m / 4))
        for m, (a, b) in enumerate(zip(x[:4], x[4:], strict=True))
    ]
    return [z.real for z in pairs] + [z.imag for z in pairs]


# Distances: what each paper says the distance of query i and key j is in a text of n tokens, and which keys are seen

Distance = Callable[[int, int, int], float | None]  # (i, j, n), None where the key is not seen


def rerope(w: int) -> Distance:
    return lambda i, j, n: min(i - j, w)


def leaky(w: int, k: float | None = None) -> Distance:
    def distance(i: int, j: int, n: int) -> float:
        slowing = max(1, (n - w) / (L - w)) if k is None else k
        return i - j if i - j < w else w + (i - j - w) / slowing

    return distance


def grouped(w: int, g: int | None = None) -> Distance:
    """Jin et al.'s rule for G: a text of n tokens needs W + (n - W) / G <= 2 L / 3."""

    def distance(i: int, j: int, n: int) -> float:
        group = g or next(g for g in itertools.count(1) if n <= L or w + (n - w) / g <= 2 * L / 3)
        return i - j if i - j < w else i // group - j // group + w - w // group

    return distance


def dual_chunks(size: int, local: int) -> Distance:
    def distance(i: int, j: int, n: int) -> float:
        c = size - local
        apart = i // c - j // c
        return (i % c if apart == 0 else min(i % c + c, size) if apart == 1 else size) - j % c

    return distance


def shifted(s: int, w: int) -> Distance:
    return lambda i, j, n: i - j if i - j < s else i - j - s + w


def lambda_shaped(size: int, sinks: int) -> Distance:
    return lambda i, j, n: None if i - j >= size and j >= sinks else min(i - j, size)


def rolling(size: int, sinks: int) -> Distance:
    """By the places in a cache that holds the first tokens and the last ones."""

    def distance(i: int, j: int, n: int) -> float | None:
        held = [t for t in range(i + 1) if t < sinks or i - t < size]
        return held.index(i) - held.index(j) if j in held else None

    return distance


DISTANCES = [
    ("rerope", rerope(4)),
    ("rerope(window=1)", rerope(1)),
    ("rerope(window=7)", rerope(7)),
    ("rerope(window=100)", rerope(100)),
    ("leaky_rerope", leaky(2)),
    ("leaky_rerope(window=5)", leaky(5)),
    ("leaky_rerope(window=3, slowing=2.5)", leaky(3, 2.5)),
    ("self_extend", grouped(2)),
    ("self_extend(window=3)", grouped(3)),
    ("self_extend(window=5, group=3)", grouped(5, 3)),
    ("self_extend(window=4, group=1)", grouped(4, 1)),
    ("dca", dual_chunks(6, 1)),
    ("dca(size=9, local=4)", dual_chunks(9, 4)),
    ("dca(local=0)", dual_chunks(6, 0)),
    ("dca(size=7, local=6)", dual_chunks(7, 6)),
    ("string", shifted(2, 2)),
    ("string(shift=5, local=2)", shifted(5, 2)),
    ("string(shift=7, local=0)", shifted(7, 0)),
    ("lm_infinite", lambda_shaped(8, 10)),
    ("lm_infinite(size=5, sinks=2)", lambda_shaped(5, 2)),
    ("lm_infinite(sinks=0)", lambda_shaped(8, 0)),
    ("streaming", rolling(4, 4)),
    ("streaming(size=6, sinks=1)", rolling(6, 1)),
    ("streaming(size=3, sinks=0)", rolling(3, 0)),
    ("streaming(size=2, sinks=7)", rolling(2, 7)),
]


@pytest.mark.parametrize("extend, distance", DISTANCES, ids=[extend for extend, _ in DISTANCES])
@pytest.mark.parametrize("count", [L, 41])
def test_distances_are_those_of_the_paper(extend, distance, count):
    q, k = normal(HEADS, count, D, seed=1), normal(HEADS, count, D, seed=2)
    rope, alibi = (scores(pos, extend, q, k).tolist() for pos in ("rope", "alibi"))
    frequencies, slopes = [10000 ** (-m / 4) for m in range(4)], [1 / 16, 1 / 256]
    rows = q.tolist(), k.tolist()
    for h, i, j in itertools.product(range(HEADS), range(count), range(count)):
        delta = distance(i, j, count) if j <= i else None
        if delta is None:
            assert rope[h][i][j] == alibi[h][i][j] == -math.inf
            continue
        a, b = rows[0][h][i], rows[1][h][j]
        assert abs(rope[h][i][j] - rope_score(a, b, delta, frequencies)) < 5e-6
        expected = sum(x * y for x, y in zip(a, b, strict=True)) / math.sqrt(D) - slopes[h] * delta
        assert abs(alibi[h][i][j] - expected) < 1e-6


@pytest.mark.parametrize(
    "extend, distance",
    [("rerope(window=3)", rerope(3)), ("dca", dual_chunks(6, 1)), ("self_extend", grouped(2))],
)
def test_a_rotation_and_a_bias_meet_the_same_distance(extend, distance):
    q, k = normal(HEADS, 30, D, seed=3), normal(HEADS, 30, D, seed=4)
    found = scores("rope + alibi", extend + " + yarn(factor=2)", q, k)
    frequencies = rope_frequencies(D, extend="yarn(factor=2)", train_length=L)[0].tolist()
    for h, i, j in [(0, 29, 0), (1, 29, 28), (0, 13, 6), (1, 7, 5), (1, 20, 20)]:
        delta = distance(i, j, 30)
        heat = (0.1 * math.log(2) + 1) ** 2
        expected = (
            heat * rope_score(q[h, i].tolist(), k[h, j].tolist(), delta, frequencies)
            - [1 / 16, 1 / 256][h] * delta
        )
        assert float(found[h, i, j]) == pytest.approx(expected, abs=5e-6)


# Maps of positions, temperatures


def mapped(extend: str, count: int = 40, train_length: int = L) -> list[float]:
    """The positions that an extension gives to a text, read from what ALiBi's bias of head 0 makes of them."""
    scheme = Scheme("alibi", Shape(HEADS, D, HEADS * D, train_length), 1)
    scheme.extend(extend)
    index = torch.arange(count)
    return scheme.plans(index, index, index, count, FLOAT64)[0].query_ids.tolist()


def curve(kind: str, knee: float) -> Callable[[int], float]:
    return {
        "log": lambda p: knee * math.log(1 + p / knee),
        "sqrt": lambda p: 2 * knee * (math.sqrt(1 + p / knee) - 1),
        "arctan": lambda p: knee * math.atan(p / knee),
    }[kind]


@pytest.mark.parametrize(
    "extend, position",
    [
        ("interpolate", lambda p: p / 5),
        ("interpolate(factor=3)", lambda p: p / 3),
        ("slopes", lambda p: p / 2),
        ("slopes(scale=3)", lambda p: 3 * p),
        ("compress", lambda p: p if p <= 8 else 8 + 0.25 * (p - 8)),
        ("compress(alpha=0)", lambda p: min(p, 8)),
        ("compress(alpha=1.5)", lambda p: p if p <= 8 else 8 + 1.5 * (p - 8)),
        ("two_scale", lambda p: p if p < 8 else 1.5 * p),
        ("two_scale(alpha=0.5, beta=0.1)", lambda p: 0.5 * p if p < 8 else 0.1 * p),
        ("smooth", curve("log", 8)),
        ("smooth(knee=3)", curve("log", 3)),
        ("smooth(kind=sqrt)", curve("sqrt", 8)),
        ("smooth(kind=arctan, knee=20.5)", curve("arctan", 20.5)),
    ],
)
def test_positions_are_mapped_by_the_formula(extend, position):
    assert mapped(extend) == pytest.approx([position(p) for p in range(40)], rel=1e-6)


@pytest.mark.parametrize(
    "extend",
    [
        "interpolate(factor=3)",
        "compress(alpha=0.3)",
        "slopes(scale=0.3)",
        "two_scale(beta=0.3)",
        "smooth",
    ],
)
def test_mapped_positions_are_told_apart_far_out(extend):
    """Neighbours stay at the map's own distance from each other, past a million, where float32 has sixteenths."""
    scheme = Scheme("alibi", Shape(HEADS, D, HEADS * D, L), 1)
    scheme.extend(extend)
    index = torch.arange(3_000_000, 3_000_010)
    ids = scheme.plans(index, index, index, 3_000_010, FLOAT64)[0].query_ids.double()
    step = 8 / 3_000_008 if extend == "smooth" else 1 / 3 if "interpolate" in extend else 0.3
    assert ids.diff().tolist() == pytest.approx([step] * 9, rel=1e-3)


@pytest.mark.parametrize("factor", ["auto", 2, 3.7])
def test_interpolate_is_pi_of_rope_and_slopes_of_alibi(factor):
    q, k = normal(HEADS, 40, D, seed=1), normal(HEADS, 40, D, seed=2)
    ours = scores("rope", f"interpolate(factor={factor})", q, k)
    torch.testing.assert_close(
        ours, scores("rope", f"pi(factor={factor})", q, k), rtol=0, atol=3e-6
    )
    scale = 8 / 40 if factor == "auto" else 1 / factor
    ours = scores("alibi", f"interpolate(factor={factor})", q, k)
    torch.testing.assert_close(
        ours, scores("alibi", f"slopes(scale={scale})", q, k), rtol=0, atol=1e-6
    )
    plain = scores("alibi", "", q, k)
    bias = (q @ k.mT / math.sqrt(D) - plain).tril()  # m (i - j)
    torch.testing.assert_close(ours.tril(), (plain + (1 - scale) * bias).tril(), rtol=0, atol=1e-6)


def test_each_head_has_its_own_temperature(tmp_path):
    q, k = normal(HEADS, 20, D, seed=1), normal(HEADS, 20, D, seed=2)
    plain, file = scores("rope", "", q, k), written(tmp_path, {"scales": [1.5, 0.25]})
    torch.testing.assert_close(
        scores("rope", f"temperature(file='{file}')", q, k),
        plain * torch.tensor([1.5, 0.25]).double()[:, None, None],
    )
    torch.testing.assert_close(scores("rope", "temperature(scale=1.2)", q, k), plain * 1.2)


def test_logn_is_at_least_one_only_on_a_trained_model():
    q, k = normal(HEADS, 40, D, seed=1), normal(HEADS, 40, D, seed=2)
    plain, trained, extended = (
        scores(pos, extend, q, k)
        for pos, extend in (("rope", ""), ("rope + logn", ""), ("rope", "logn"))
    )
    for i in range(40):
        heat = math.log(i + 1) / math.log(L)
        seen = slice(0, i + 1)
        torch.testing.assert_close(trained[:, i, seen], heat * plain[:, i, seen], rtol=0, atol=1e-9)
        torch.testing.assert_close(
            extended[:, i, seen], max(1.0, heat) * plain[:, i, seen], rtol=0, atol=1e-9
        )
    assert (extended[:, :L] == plain[:, :L]).all()


# Every extension of every kind of model

OPTIONS = {
    "window": "window(size=5, sinks=2)",
    "temperature": "temperature(scale=1.5)",
    "pose": "pose(target=64)",
    "string": "string(shift=4, local=2)",
    "lm_infinite": "lm_infinite(sinks=3)",
    "clip": "clip(pairs=4)",
}
NOTHING_WITHIN = {
    "pi",
    "ntk",
    "dynamic_ntk",
    "yarn",
    "dynamic_yarn",
    "ntk_by_parts",
    "llama3",
    "longrope",
    "interpolate",
    "self_extend",
    "leaky_rerope",
    "logn",
    "streaming",
    "lm_infinite",
    "pose",
    "block_causal",
}  # with the factors of the text itself
MODELS = [
    "rope",
    "alibi",
    "t5(buckets=8, max_distance=16)",
    "kerple",
    "xpos",
    "pope",
    "fope(base=2)",
    "resonance",
    "learned_rope",
    "sinusoidal",
    "nope",
    "learned(rows=64)",
    "fox",
    "rope | nope",
    "rope + alibi",
    "randomized(max=128) + rope",
]
USUAL = (
    "rope",
    "alibi",
    "xpos",
    "pope",
    "sinusoidal",
    "learned(rows=64)",
    "fox",
    "rope | nope",
)  # the others are for the slow run


def tokens(*shape: int, seed: int = 1) -> Tensor:
    return torch.randint(17, shape, generator=torch.Generator().manual_seed(seed))


@cache
def trained(pos: str) -> GPT:
    """A model in float64 whose weights are large enough for every part of it to be felt."""
    torch.manual_seed(3)
    gpt = (
        GPT(
            GPTConfig(
                block_size=L,
                vocab_size=17,
                n_layer=3,
                n_head=HEADS,
                n_embd=HEADS * D,
                dropout=0.0,
                pos=pos,
            )
        )
        .double()
        .eval()
    )
    for name, parameter in gpt.named_parameters():
        if "ln_" not in name:
            parameter.data = 0.3 * torch.randn_like(parameter) + (
                0.5 if name.startswith("pos.") else 0.0
            )
    return gpt


def model(pos: str, extend: str = "") -> GPT:
    """One model for all extensions: each replaces the one before."""
    gpt = trained(pos)
    gpt.extend(extend)
    return gpt


def mention(name: str, pos: str, folder: Path) -> str:
    """With options where it needs some; where positions are drawn, with a factor of its own."""
    given = (
        ["factor=2"]
        if "randomized" in pos
        and issubclass(find(name), posenc.Scaled)
        and name != "dynamic_yarn"
        else []
    )
    if name == "longrope":
        pairs = next(
            (
                len(p.frequencies(L)[0])
                for p in trained(pos).pos.pieces.values()
                if isinstance(p, posenc.Rotary)
            ),
            0,
        )
        given.append(f"file='{written(folder, {'long_factor': [1 + m for m in range(pairs)]})}'")
    return OPTIONS.get(name, name) + (f"({', '.join(given)})" if given else "")


def one_pass(gpt: GPT, idx: Tensor, **given: Tensor) -> Tensor:
    with torch.no_grad():
        return gpt(idx, idx, **given)[0]


def in_chunks(gpt: GPT, idx: Tensor, sizes: list[int]) -> Tensor:
    found = gpt.new_cache(*idx.shape)
    with torch.no_grad():
        return torch.cat([gpt(part, cache=found)[0] for part in idx.split(sizes, 1)], 1)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


@cache
def plain_logits(pos: str) -> tuple[Tensor, Tensor]:
    """Of texts of 8 L and of L tokens, without an extension."""
    idx = tokens(2, 8 * L)
    return one_pass(model(pos), idx), one_pass(model(pos), idx[:, :L])


def changes_nothing(name: str, pos: str) -> bool:
    """At any length: nothing but training is changed, or the model is made so already."""
    return name == "pose" or (name, pos) in {("resonance", "resonance"), ("p_rope", "fope(base=2)")}


@pytest.mark.parametrize(
    "pos", [pos if pos in USUAL else pytest.param(pos, marks=pytest.mark.slow) for pos in MODELS]
)
@pytest.mark.parametrize("name", extension_names())
def test_an_extension_fits_and_works_or_is_refused_with_what_fits(name, pos, tmp_path, monkeypatch):
    monkeypatch.setattr(attention, "BLOCK_ROWS", 24)
    (plain, short), gpt, idx = plain_logits(pos), model(pos), tokens(2, 8 * L)
    state = set(gpt.state_dict())
    try:
        gpt.extend(mention(name, pos, tmp_path))
    except UserError as refusal:
        drawn = "randomized" in pos and name in (
            "pose",
            "dynamic_yarn",
            "dynamic_ntk",
            "leaky_rerope",
            "self_extend",
        )
        assert name in str(refusal) and (
            drawn or "What fits: " in str(refusal) and "temperature" in str(refusal)
        ), refusal
        assert gpt.pos.extended == "" and len(gpt.pos.extensions) == 0
        return
    found, here = one_pass(gpt, idx), torch.arange(8 * L)
    assert found.isfinite().all()
    assert set(gpt.state_dict()) == state and not list(gpt.buffers())
    close(in_chunks(gpt, idx, [5, 1, 58]), found)
    close(one_pass(gpt, idx[1:], positions=here), found[1:])
    if name in NOTHING_WITHIN and "randomized" not in pos:
        close(one_pass(gpt, idx[:, :L]), short)
    with monkeypatch.context() as patch:
        patch.setattr(
            attention,
            "attend",
            lambda q, k, v, prepared, dropout=0.0, features=None: attention.reference(
                q, k, v, prepared.plan, features
            ),
        )
        close(one_pass(gpt, idx, positions=here.expand(2, -1)), found)
    assert bool((found - plain).abs().max() < 1e-6) == changes_nothing(name, pos)


FITTING = {
    "rope": "slopes",
    "alibi": "abf clip dynamic_ntk dynamic_yarn llama3 longrope ntk ntk_by_parts p_rope pi resonance yarn",
    "nope": "abf clip compress dca dynamic_ntk dynamic_yarn interpolate leaky_rerope llama3 lm_infinite longrope ntk ntk_by_parts p_rope pi pose "
    "rerope resonance self_extend slopes smooth streaming string two_scale yarn",
    "learned(rows=64)": "abf clip compress dca dynamic_ntk dynamic_yarn interpolate leaky_rerope llama3 lm_infinite longrope ntk ntk_by_parts p_rope "
    "pi pose rerope resonance self_extend slopes smooth streaming string two_scale yarn",
    "sinusoidal": "abf clip dca dynamic_ntk dynamic_yarn leaky_rerope llama3 lm_infinite longrope ntk ntk_by_parts p_rope pi rerope resonance "
    "self_extend slopes streaming string yarn",
    "rope + alibi": "slopes",
    "rope | nope": "slopes",
    "randomized(max=128) + rope": "slopes",
}


@pytest.mark.parametrize("pos", FITTING)
def test_what_does_not_fit_a_model_is_what_can_do_nothing_to_it(pos):
    scheme = Scheme(pos, Shape(HEADS, D, HEADS * D, L), 3)
    assert [
        name for name in extension_names() if scheme.misfit(find(name))
    ] == FITTING[pos].split()


@pytest.mark.parametrize("extend", ["yarn(factor=16)", "self_extend"])
def test_a_sixteenfold_extension_decoded_token_by_token_is_one_pass(extend):
    gpt, idx = model("rope", extend), tokens(1, 16 * L)
    close(in_chunks(gpt, idx, [1] * 16 * L), one_pass(gpt, idx))


def test_the_factor_in_force_is_known():
    gpt = model("rope")
    for extend, short, long in [
        ("yarn(factor=4)", 4, 4),
        ("yarn", 1, 8),
        ("dynamic_ntk(factor=2)", 1, 15),
        ("interpolate + logn", 1, 8),
        ("logn", None, None),
        ("rerope", None, None),
        ("", None, None),
    ]:
        gpt.extend(extend)
        assert (gpt.pos.factor(L), gpt.pos.factor(8 * L)) == (short, long)


# The grammar


@pytest.mark.parametrize(
    "extend, sentence",
    [
        ("yarn | pi", "join with"),
        ("logn + (yarn | pi)", "join with"),
        ("yarn + yarn(factor=2)", "yarn stands twice"),
        ("yarn + pi", "both change the frequencies"),
        ("resonance + ntk + clip", "both change the frequencies"),
        ("yarn + dynamic_yarn", "both change the frequencies"),
        ("interpolate + compress", "both change the positions"),
        ("rerope + dca", "both change the distances"),
        ("rope", "no extension of a trained model"),
        ("alibi + logn", "no extension of a trained model"),
        ("ssmax", "no extension of a trained model"),
        ("yarm", "did you mean yarn"),
        ("yarn(4)", "options have names"),
        ("yarn(factr=4)", "has no option"),
        ("window", "needs size"),
        ("pose", "needs target"),
        ("longrope", "needs file"),
        ("slopes", "does not extend"),
        ("", ""),
        ("yarn(", "cannot be read"),
        ("yarn(factor=0.5)", "at least 1"),
        ("yarn(factor=nan)", "at least 1"),
        ("yarn(factor=-2)", "at least 1"),
        ("pi(factor=2**60)", "a value is a number"),
        ("pi(factor=1e300)", "a value is a number"),
        ("yarn(factor=True)", "does not fit"),
        ("dynamic_ntk(factor=auto)", "does not fit"),
        ("dynamic_ntk(factor=0.9)", "at least 1"),
        ("yarn(alpha=4, beta=2)", "alpha and beta"),
        ("yarn(alpha=0)", "alpha and beta"),
        ("yarn(alpha=nan)", "does not fit"),
        ("yarn(ramp=paper)", "ramp is"),
        ("ntk_by_parts(alpha=4, beta=2)", "alpha and beta"),
        ("llama3(low=4, high=4)", "low and high"),
        ("abf(base=0.5)", "at least 1"),
        ("p_rope(p=1.5)", "p must lie"),
        ("clip(pairs=-1)", "not be negative"),
        ("temperature(scale=0)", "positive"),
        ("compress(alpha=-1)", "not be negative"),
        ("two_scale(beta=-1)", "not be negative"),
        ("smooth(kind=tanh)", "kind is log, sqrt, arctan"),
        ("smooth(knee=0.5)", "knee is a number of tokens"),
        ("streaming(size=0)", "size must be positive"),
        ("streaming(sinks=-1)", "sinks not negative"),
        ("streaming(sinks=8)", "size must be positive"),
        ("lm_infinite(size=0)", "size must be positive"),
        ("rerope(window=0)", "must be positive"),
        ("leaky_rerope(window=8)", "must lie between"),
        ("leaky_rerope(slowing=0.5)", "at least 1"),
        ("leaky_rerope(slowing=often)", "at least 1"),
        ("self_extend(window=6)", "below 2/3"),
        ("self_extend(group=0)", "at least 1"),
        ("self_extend(group=2.5)", "does not fit"),
        ("dca(local=6)", "local must lie"),
        ("dca(local=-1)", "local must lie"),
        ("string(local=9)", "local must lie"),
        ("pose(target=4)", "target must lie"),
        ("pose(target=64) + yarn", "give a fixed factor"),
        ("window(size=0)", "size must be positive"),
    ],
)
def test_a_wrong_extension_is_refused_with_a_sentence(extend, sentence):
    gpt = model("rope", "logn")
    if not extend:
        return
    with pytest.raises(UserError, match=sentence):
        gpt.extend(extend)
    assert gpt.pos.extended == gpt.config.extend == "logn"  # the one in force stays


@pytest.mark.parametrize(
    "name", [name for name in extension_names() if name not in names()]
)
def test_a_position_scheme_may_not_name_an_extension(name):
    with pytest.raises(
        UserError,
        match=f"{name} extends a model that is trained already: write it as --extend={name}",
    ):
        Scheme(f"rope + {OPTIONS.get(name, name)}", Shape(HEADS, D, HEADS * D, L), 1)


def test_another_extension_replaces_the_first_and_none_restores_the_model():
    gpt, idx = model("rope + alibi"), tokens(2, 40)
    plain = one_pass(gpt, idx)
    gpt.extend("yarn(factor=4) + rerope + logn")
    gpt.extend("self_extend")
    assert (gpt.pos.extended, gpt.config.extend) == ("self_extend", "self_extend")
    found = one_pass(gpt, idx)
    for none in ("", "none"):
        gpt.extend("yarn(factor=4) + streaming")
        gpt.extend(none)
        assert (gpt.pos.extended, gpt.config.extend) == ("", "")
        assert torch.equal(one_pass(gpt, idx), plain)
    gpt.extend("self_extend")
    assert torch.equal(one_pass(gpt, idx), found)


def test_the_order_of_an_expression_changes_nothing():
    idx = tokens(1, 40)
    for parts in (
        ["yarn(factor=4)", "resonance"],
        ["self_extend", "logn", "pi(factor=2)"],
        ["streaming", "interpolate"],
    ):
        found = [
            one_pass(model("rope", " + ".join(order)), idx)
            for order in itertools.permutations(parts)
        ]
        assert all(torch.equal(found[0], other) for other in found)


@pytest.mark.parametrize(
    "content",
    [
        None,
        "",
        "{",
        "[]",
        "[1, 2]",
        "7",
        "null",
        {},
        {"long_factor": 3},
        {"long_factor": None},
        {"long_factor": []},
        {"long_factor": [1, 1, 1]},
        {"long_factor": [1, 1, 1, 1, 1]},
        {"long_factor": [1, 1, 1, -1]},
        {"long_factor": [1, 1, 1, 0]},
        {"long_factor": [1, 1, 1, float("nan")]},
        {"long_factor": [1, 1, 1, float("inf")]},
        '{"long_factor": [1, 1, 1, 1e999]}',
        {"long_factor": [1, 1, 1, 10**400]},
        {"long_factor": [[1], 1, 1, 1]},
        {"long_factor": ["a", 1, 1, 1]},
        {"long_factor": {"a": 1}},
        {"long_factor": [1, 1, 1, 1], "short_factor": [1, 1]},
        {"long_factor": [1, 1, 1, 1], "first": -1},
        {"long_factor": [1, 1, 1, 1], "first": "x"},
        '{"long_factor": [1, 1, 1, 1], "first": 1e999}',
        {"long_factor": [1, 1, 1, 1], "first": 10**30},
        {"long_factor": [1, 1, 1, 1], "short_factor": "abc"},
        "[" * 100_000,
    ],
    ids=lambda content: str(content)[:50],
)
def test_a_longrope_file_that_cannot_be_used_is_a_sentence(content, tmp_path):
    file = tmp_path / "none.json" if content is None else written(tmp_path, content)
    with pytest.raises(UserError, match="longrope"):
        one_pass(model("rope", f"longrope(file='{file}')"), tokens(1, 2 * L))


@pytest.mark.parametrize(
    "content",
    [
        None,
        "",
        "{",
        "[]",
        {},
        {"scales": 3},
        {"scales": [1]},
        {"scales": [1, -1]},
        {"scales": [1, 0]},
        {"scales": [1, float("nan")]},
        {"scales": [float("nan"), 1]},
        {"scales": [1, float("inf")]},
        {"scales": [1, 10**400]},
        {"scales": [1, None]},
        {"scales": "ab"},
        "[" * 100_000,
    ],
    ids=lambda content: str(content)[:50],
)
def test_a_file_of_temperatures_that_cannot_be_used_is_a_sentence(content, tmp_path):
    file = tmp_path / "none.json" if content is None else written(tmp_path, content)
    with pytest.raises(UserError, match="temperature"):
        model("rope", f"temperature(file='{file}')")


def test_a_file_is_looked_for_in_the_runs_folder_first(tmp_path):
    (tmp_path / "run").mkdir()
    written(tmp_path, {"scales": [1, 1]})
    written(tmp_path / "run", {"scales": [3, 2]})
    gpt = model("rope")
    gpt.extend(f"temperature(file='{tmp_path / 'factors.json'}')", tmp_path / "run")
    assert gpt.pos.extensions[0].scales == [3, 2]


@pytest.mark.parametrize(
    "pos, extend",
    [
        ("rope(base=1)", "yarn(factor=4)"),
        ("rope(fraction=0.25)", "ntk(factor=4)"),
        ("rope(fraction=0.25)", "dynamic_ntk"),
    ],
)
def test_what_a_map_cannot_stretch_is_a_sentence_when_it_is_put_into_force(pos, extend):
    with pytest.raises(UserError):
        GPT(
            GPTConfig(
                block_size=L, vocab_size=17, n_layer=1, n_head=HEADS, n_embd=HEADS * D, pos=pos
            )
        ).extend(extend)


# PoSE


@pytest.mark.parametrize("length, target", [(L, 64), (L, 9), (L, L), (1, 20), (5, 64)])
def test_pose_draws_two_chunks_of_ascending_positions(length, target):
    scheme, gaps, cuts, ends = Scheme("rope", Shape(HEADS, D, HEADS * D, L), 1), set(), set(), set()
    scheme.extend(f"pose(target={target})")
    for step in range(300):
        ids = scheme.draw(7, step, length).tolist()
        jumps = [n for n in range(1, length) if ids[n] != ids[n - 1] + 1]
        assert (
            len(ids) == length
            and ids[0] == 0
            and ids == sorted(set(ids))
            and ids[-1] < target
            and len(jumps) <= 1
        )
        gaps.add(ids[-1] - length + 1)
        cuts |= set(jumps)
        ends.add(ids[-1])
        assert ids == scheme.draw(7, step, length).tolist()
    if length > 1:
        assert (
            min(gaps) == 0
            and max(gaps) >= 0.9 * (target - length)
            and (target == length or cuts == set(range(1, length)))
        )


def test_pose_is_for_training_only_and_not_beside_another_draw():
    gpt, idx = model("rope"), tokens(1, L)
    plain = one_pass(gpt, idx)
    gpt.extend("pose(target=64)")
    assert torch.equal(one_pass(gpt, idx), plain)
    drawn = gpt.draw_ids(1, 2, L)
    assert not torch.equal(drawn, torch.arange(L)) and not torch.allclose(
        one_pass(gpt, idx, ids=drawn), plain
    )
    with pytest.raises(UserError, match="both draw the positions"):
        model("randomized(max=128) + rope", "pose(target=64)")
    with pytest.raises(UserError, match="randomized.*give a fixed factor"):
        model("randomized(max=128) + rope", "yarn")


# Compiled code


@pytest.mark.parametrize(
    "extend", ["yarn(factor=4)", "self_extend", "pose(target=32) + yarn(factor=4)"]
)
def test_compiled_training_under_an_extension_is_eager_training(extend):
    torch._dynamo.reset()
    torch.manual_seed(1)
    gpt = GPT(
        GPTConfig(
            block_size=L,
            vocab_size=17,
            n_layer=1,
            n_head=HEADS,
            n_embd=HEADS * D,
            dropout=0.0,
            pos="rope",
        )
    ).double()
    for parameter in gpt.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    gpt.extend(extend)
    idx = tokens(2, 3 * L)
    compiled = torch.compile(gpt, fullgraph=True, backend="aot_eager", dynamic=False)
    for step in range(2):
        ids = gpt.draw_ids(1, step, 3 * L)
        pairs = []
        for run in (compiled, gpt):
            logits, loss = run(idx, idx.roll(-1, 1), ids=ids)
            pairs.append(
                [logits.detach(), loss.detach(), *torch.autograd.grad(loss, list(gpt.parameters()))]
            )
        for ours, expected in zip(*pairs, strict=True):
            close(ours, expected)


# Learned positions


def test_the_gradients_of_cosines_and_sines_are_those_of_autograd():
    positions = torch.tensor(
        [[0.3, 1.7, 5.0], [0.0, 40.5, 1000.25]], dtype=torch.float64, requires_grad=True
    )
    inv_freq = torch.tensor([1.0, 0.1, 0.003], dtype=torch.float64, requires_grad=True)
    weights = [torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(k)) for k in range(2)]

    def gradients(cos, sin):
        return torch.autograd.grad(
            (cos * weights[0] + sin * weights[1]).sum(), (positions, inv_freq)
        )

    angles = positions[..., None] * inv_freq
    for ours, theirs in zip(
        gradients(*posenc.cos_sin(positions, inv_freq)),
        gradients(angles.cos(), angles.sin()),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)  # the tables are float32


@pytest.mark.parametrize("pos", ["rope", "alibi", "sinusoidal"])
def test_a_learned_curve_of_positions_starts_as_the_fixed_one_and_has_its_gradient(pos):
    torch.manual_seed(0)
    gpt = GPT(
        GPTConfig(block_size=L, vocab_size=32, n_layer=2, n_head=HEADS, n_embd=HEADS * D, pos=pos)
    ).double()
    idx, targets = (
        torch.randint(32, (2, 5 * L), generator=torch.Generator().manual_seed(k)) for k in range(2)
    )
    with torch.no_grad():
        for p in gpt.parameters():
            p.mul_(4 if p.dim() > 1 else 1)  # so that positions count

    def loss():  # the model's own is float32
        return torch.nn.functional.cross_entropy(
            gpt(idx, targets)[0].flatten(0, 1), targets.flatten()
        )

    gpt.extend("smooth(kind=sqrt)")
    fixed = loss()
    gpt.extend("smooth(kind=sqrt, learned=True)")
    raw = gpt.pos.extensions[0].double().stretch_of_knee
    assert loss().item() == pytest.approx(fixed.item(), rel=1e-6)
    (found,) = torch.autograd.grad(loss(), [raw])
    step, losses = 1e-2, []
    with torch.no_grad():
        for sign in (1, -1):
            raw.fill_(sign * step)
            losses.append(loss().item())
    assert abs(found.item()) > 1e-6 and found.item() == pytest.approx(
        (losses[0] - losses[1]) / (2 * step), rel=0.02
    )


def test_a_learned_curve_may_be_each_layers_own():
    torch.manual_seed(0)
    gpt = GPT(
        GPTConfig(
            block_size=L,
            vocab_size=32,
            n_layer=3,
            n_head=HEADS,
            n_embd=HEADS * D,
            pos="rope | alibi",
        )
    )
    idx = torch.randint(32, (2, 5 * L))

    def nats():
        with torch.no_grad():
            return gpt.losses(idx[:, :-1], idx[:, 1:])

    gpt.extend("smooth(learned=True)")
    shared = nats()
    assert len(gpt.pos.extensions) == 1 and len(gpt.pos.sets) == 2
    gpt.extend("smooth(learned=True, per_layer=True)")
    knees = [p for name, p in gpt.named_parameters() if name.endswith("stretch_of_knee")]
    assert len(knees) == len(gpt.pos.sets) == 3
    assert torch.equal(nats(), shared)
    gpt.extend("smooth(learned=True, per_layer=True) + logn")  # which all layers share
    beside = nats()
    gpt.extend("smooth(learned=True) + logn")
    assert torch.equal(nats(), beside) and not torch.equal(beside, shared)
    gpt.extend("smooth(learned=True, per_layer=True)")
    knees = [p for name, p in gpt.named_parameters() if name.endswith("stretch_of_knee")]
    with torch.no_grad():
        knees[1].fill_(1.0)  # of the layer with alibi
    found = nats()
    assert (found - shared).abs().max() > 1e-4
    moved = gpt.pos.plans(*(torch.arange(4 * L),) * 3, 4 * L, torch.zeros(()))
    assert not torch.equal(moved[0].key_ids, moved[1].key_ids) and torch.equal(
        moved[0].key_ids, moved[2].key_ids
    )
    torch.testing.assert_close(
        in_chunks(gpt, idx, [1] * (3 * L) + [2 * L]), one_pass(gpt, idx), atol=1e-5, rtol=1e-4
    )
    gpt.extend("none")
    assert len(gpt.pos.sets) == 2 and not list(gpt.pos.extensions)


@pytest.mark.parametrize(
    ("pos", "text", "said"),
    [
        ("rope", "yarn(per_layer=True)", "learns nothing"),
        ("rope", "smooth(per_layer=True)", "learns nothing"),
        ("rope", "pose(target=64, per_layer=True)", "learns nothing"),
        ("rope", "smooth(learned=True, per_layer=1)", "True or False"),
        (
            "sinusoidal + alibi",
            "smooth(learned=True, per_layer=True)",
            "sinusoidal acts once, before the first layer",
        ),
    ],
)
def test_what_a_layer_cannot_have_for_itself_is_refused(pos, text, said):
    gpt = GPT(
        GPTConfig(block_size=L, vocab_size=32, n_layer=2, n_head=HEADS, n_embd=HEADS * D, pos=pos)
    )
    with pytest.raises(UserError, match=said):
        gpt.extend(text)
    assert gpt.pos.extended == ""


def test_two_files_of_one_name_cannot_be_kept_in_one_folder(tmp_path, monkeypatch):
    gpt = GPT(
        GPTConfig(
            block_size=L, vocab_size=32, n_layer=2, n_head=HEADS, n_embd=HEADS * D, pos="rope"
        )
    )
    monkeypatch.chdir(tmp_path)
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "x.json").write_text(
            json.dumps({"long_factor": [2.0] * (D // 2), "scales": [1.5] * HEADS}), encoding="utf-8"
        )
    with pytest.raises(UserError, match="have one name"):
        gpt.extend("longrope(file='a/x.json') + temperature(file='b/x.json')")
    gpt.extend("longrope(file='a/x.json') + temperature(file='a/x.json')")
    assert gpt.pos.extensions[1].scales == [1.5] * HEADS


def tiny(pos: str = "rope", layers: int = 2) -> GPT:
    return GPT(
        GPTConfig(
            block_size=L, vocab_size=32, n_layer=layers, n_head=HEADS, n_embd=HEADS * D, pos=pos
        )
    )


def test_an_extension_that_is_in_force_keeps_what_it_learned_and_another_begins_anew():
    gpt = tiny()
    gpt.extend("smooth(learned=True)")
    with torch.no_grad():
        gpt.pos.extensions[0].stretch_of_knee.fill_(0.5)
    gpt.extend("smooth( learned=True )")
    assert gpt.pos.extensions[0].stretch_of_knee.item() == 0.5
    gpt.extend("smooth(kind=sqrt, learned=True)")
    assert gpt.pos.extensions[0].stretch_of_knee.item() == 0


def test_another_file_of_the_same_name_is_another_extension(tmp_path):
    gpt, places = tiny(), [tmp_path / "a", tmp_path / "b"]
    for k, place in enumerate(places):
        place.mkdir()
        (place / "x.json").write_text(json.dumps({"scales": [1.5 + k] * HEADS}), encoding="utf-8")
    for k, place in enumerate(places):
        gpt.extend("temperature(file='x.json')", place)
        assert gpt.pos.extensions[0].scales == [1.5 + k] * HEADS


@pytest.mark.parametrize("first", [0, 5])
def test_learned_frequencies_are_extended_as_ropes_are(first, tmp_path):
    (tmp_path / "x.json").write_text(
        json.dumps({"long_factor": [1.0 + m for m in range(D // 2)], "first": first}),
        encoding="utf-8",
    )
    ours, theirs, idx = tiny("learned_rope"), tiny("rope"), torch.randint(32, (2, 3 * L))
    theirs.load_state_dict(ours.state_dict(), strict=False)
    for gpt in (ours, theirs):
        gpt.extend("longrope(file='x.json')", tmp_path)
    torch.testing.assert_close(one_pass(ours, idx), one_pass(theirs, idx), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(
        in_chunks(ours, idx, [3, L, 2 * L - 3]), one_pass(ours, idx), atol=1e-5, rtol=1e-4
    )


def test_a_file_that_changed_is_read_again(tmp_path):
    gpt, path = tiny(), tmp_path / "x.json"
    for scale in (1.5, 2.5):
        path.write_text(json.dumps({"scales": [scale] * HEADS}), encoding="utf-8")
        gpt.extend(f"temperature(file='{path.as_posix()}')")
        assert gpt.pos.extensions[0].scales == [scale] * HEADS


def test_a_single_pair_that_is_clipped_is_stilled():
    for found in (
        rope_frequencies(8, extend="clip(pairs=1)", train_length=L)[0],
        posenc.Rope(Shape(1, 8, 8, L), clip=1).frequencies(L)[0],
    ):
        assert found.tolist() == pytest.approx([1, 0.1, 0.01, 0])
    assert posenc.taper(3).tolist() == pytest.approx([1, 0.5, 0]) and posenc.taper(0).tolist() == []


@pytest.mark.parametrize(
    ("pos", "text", "factors"),
    [
        ("rope", f"self_extend(window={L // 4})", {L: 1, 4 * L: 9}),
        ("rope", "self_extend(group=3)", {L: 3}),
        ("rope", f"leaky_rerope(window={L // 4})", {L: 1, 4 * L: 5}),
        ("rope", "leaky_rerope(slowing=2.5) + logn", {4 * L: 2.5}),
        ("alibi", "slopes(scale=0.25)", {4 * L: 4}),
        ("rope", "rerope + logn", {4 * L: None}),
        ("rope", "self_extend(group=3) + yarn(factor=4)", {8 * L: 4}),
        ("rope", "yarn(factor=4) + self_extend(group=3)", {8 * L: 4}),
    ],
)
def test_the_factor_in_force_is_what_distances_are_divided_by(pos, text, factors):
    gpt = tiny(pos)
    gpt.extend(text)
    assert {total: gpt.extension_at(total)["factor"] for total in factors} == factors


def test_leaky_distances_are_formed_in_float64():
    (region,) = tiny_piece("leaky_rerope(slowing=3)").regions(4 * L)
    assert region.query(torch.arange(9)).dtype == region.key(torch.arange(9)).dtype == torch.float64


def tiny_piece(text: str) -> posenc.Piece:
    return extensions(text, Shape(HEADS, D, HEADS * D, L))[0]


@pytest.mark.parametrize(
    "text", ["yarn(factor=4) + interpolate(factor=2)", "interpolate + ntk + logn"]
)
def test_two_factors_by_which_a_text_is_longer_are_refused(text):
    with pytest.raises(UserError, match="both take the text to be longer"):
        tiny().extend(text)


@pytest.mark.parametrize(
    "content",
    [
        '{"long_factor": "1234"}',
        '{"long_factor": {"1": 2, "2": 3}}',
        '{"long_factor": [true, 2, 3, 4]}',
        '{"long_factor": ["1", 2, 3, 4]}',
        '{"long_factor": [1, 2, 3, 1e-320]}',
        '{"long_factor": [1, 2, 3, 1e300]}',
        '{"long_factor": [1, 2, 3, NaN]}',
        '{"long_factor": [1, 2, 3, 4], "first": 2.9}',
        '{"long_factor": [1, 2, 3, 4], "first": true}',
        '{"long_factor": [1, 2, 3, 4], "first": -1}',
        '{"long_factor": [1, 2, 3, 4], "short_factor": [1, 2]}',
        '{"long_factor": [1, 2, 3, 4], "train_length": 7}',
        "[1, 2, 3, 4]",
        "3",
        '"x"',
    ],
)
def test_a_file_of_factors_that_is_not_what_it_says_is_refused(content, tmp_path):
    path = tmp_path / "x.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match="longrope: .*x.json"):
        rope_frequencies(
            8, extend=f"longrope(file='{path.as_posix()}')", train_length=L, length=2 * L
        )
    path.write_text(
        content.replace("long_factor", "scales").replace("1, 2, 3, 4", "1, true"), encoding="utf-8"
    )
    with pytest.raises(UserError, match="temperature: .*x.json"):
        tiny().extend(f"temperature(file='{path.as_posix()}')")
