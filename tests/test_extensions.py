"""Extensions of trained models: frequencies against transformers and golden numbers, distances
against the papers' formulas.

The formulas are written here in plain Python floats, by distance; the project writes them as
regions of moved positions.
"""

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
from positions import extended_frequencies, rules
from positions.catalogue import extension_names, find, scheme_names
from positions.scheme import Scheme

L, HEADS, D = 8, 2, 8
SHAPE = Shape(HEADS, D, HEADS * D, L)
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


Size = tuple[int, float, int]  # head_dim, base, training length
Table = tuple[Tensor, float]  # frequencies and the attention factor


def ours(extend: str, size: Size, length: int | None = None) -> Table:
    """The project's frequencies under an extension."""
    return extended_frequencies(extend, *size[:2], train_length=size[2], length=length)


def theirs(kind: str, size: Size, length: int | None = None, **options: object) -> Table:
    """transformers' (inv_freq float32, attention factor)."""
    functions = pytest.importorskip("transformers.modeling_rope_utils").ROPE_INIT_FUNCTIONS
    head_dim, base, train_length = size
    config = their_config(head_dim, train_length)
    config.rope_parameters = {
        "rope_type": kind,
        "rope_theta": base,
        "original_max_position_embeddings": train_length,
        **options,
    }
    return functions[kind](config, "cpu", seq_len=length)


def compare(found: Table, expected: Table) -> None:
    """Equal to float32's precision."""
    torch.testing.assert_close(found[0], expected[0].double(), rtol=1e-5, atol=0)
    assert found[1] == pytest.approx(expected[1], rel=1e-12)


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
]


def test_pi_is_the_linear_type():
    for size, factor in itertools.product(SIZES, (1.0, 2.5, 16.0)):
        compare(ours(f"pi(factor={factor})", size), theirs("linear", size, factor=factor))


def test_ntk_and_dynamic_ntk_are_the_dynamic_type():
    for size, factor in itertools.product(SIZES, (1.0, 2.0, 4.5)):
        for times in (0.5, 1, 1.01, 2, 7.3, 64):
            length = int(times * size[2])
            found = ours(f"dynamic_ntk(factor={factor})", size, length)
            compare(found, theirs("dynamic", size, length, factor=factor))
    for size, factor in itertools.product(SIZES, (2, 8)):  # at the length of its factor
        expected = theirs("dynamic", size, factor * size[2], factor=1.0)
        compare(ours(f"ntk(factor={factor})", size), expected)


def test_llama3_is_the_llama3_type():
    turns = [(1.0, 4.0), (0.5, 8.0), (2.0, 6.0)]
    for size, (low, high), factor in itertools.product(SIZES, turns, (1.0, 3.0, 32.0)):
        options = {"factor": factor, "low_freq_factor": low, "high_freq_factor": high}
        found = ours(f"llama3(factor={factor}, low={low}, high={high})", size)
        compare(found, theirs("llama3", size, **options))


def edge(turns: float, head_dim: int, base: float, train_length: int) -> float:
    """The pair, as a real number, that turns so often within the training length."""
    return head_dim * math.log(train_length / (2 * math.pi * turns)) / (2 * math.log(base))


SCALES = [
    {},
    {"mscale": 1.0, "mscale_all_dim": 0.5},
    {"mscale": 0.707, "mscale_all_dim": 0.707},
    {"mscale": 2, "mscale_all_dim": 1.5},
]


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize("alpha, beta", [(1.0, 32.0), (1.0, 8.0), (0.5, 2.25), (4.0, 100.0)])
def test_yarn_is_the_yarn_type(alpha, beta, truncate):
    """With mscale alone transformers goes by the factor only. DeepSeek's own code, which ours
    follows, divides get(mscale) by get(mscale_all_dim), where get(0) is 1. Both agree with both
    options and with neither."""
    compared, scales = 0, itertools.cycle(SCALES)
    for size, factor in zip(SIZES * 2, itertools.cycle([2.0, 40.0, 1.0, 8.5, 3.0])):
        options = {**next(scales), "factor": factor, "truncate": truncate}
        low, high = edge(beta, *size), edge(alpha, *size)
        if max(low, 0) >= min(high, size[0] - 1):
            continue  # the next test
        said = ", ".join(f"{k}={v}" for k, v in {"alpha": alpha, "beta": beta, **options}.items())
        compare(
            ours(f"yarn({said})", size),
            theirs("yarn", size, beta_fast=beta, beta_slow=alpha, **options),
        )
        compared += 1
    assert compared > 10


@pytest.mark.parametrize("train_length, kept", [(4, 0.0), (10**6, 1.0)])
def test_where_all_pairs_turn_too_rarely_or_often_enough_yarn_divides_or_keeps_them(
    train_length, kept
):
    """The edges of the band lie outside of the pairs. There the ramp of the authors' code, and of
    transformers, runs backwards."""
    head_dim, base, factor = 8, 10.0, 4.0
    assert edge(1, head_dim, base, 4) < 0 and edge(32, head_dim, base, 10**6) > head_dim
    found, _ = ours(f"yarn(factor={factor}, mscale=0)", (head_dim, base, train_length))
    ratio = found / rope_frequencies(head_dim, base)[0]
    assert ratio[1:].tolist() == pytest.approx([kept + (1 - kept) / factor] * 3)


def test_mscale_alone_is_deepseeks():
    for mscale, factor in itertools.product((0.0, 0.5, 0.707, 2.0), (1.0, 4.0, 40.0)):
        _, found = ours(f"yarn(factor={factor}, mscale={mscale})", (64, 1e4, 512))
        assert found == pytest.approx(1 + 0.1 * mscale * math.log(factor), rel=1e-12)


def test_longrope_is_the_longrope_type(tmp_path):
    for size in SIZES:
        head_dim, _, train_length = size
        draw = random.Random(head_dim * train_length)
        lists = {
            name: [draw.uniform(low, high) for _ in range(head_dim // 2)]
            for name, low, high in (("short_factor", 0.9, 1.5), ("long_factor", 1.0, 40.0))
        }
        file = written(tmp_path, lists)
        lengths = (1, train_length, train_length + 1, 9 * train_length)
        for factor, length in itertools.product((1.0, 4.0, 32.0), lengths):
            found = ours(f"longrope(file='{file}', factor={factor})", size, length)
            compare(found, theirs("longrope", size, length, factor=factor, **lists))


# Golden numbers: head_dim 64, base 1e4, the ratios of pairs 0, 4, 8, 12, 16, 20, 24 and 31

PAIRS = [0, 4, 8, 12, 16, 20, 24, 31]
NTK = [1, 0.836209, 0.699245, 0.584715, 0.488944, 0.408860, 0.341892, 0.25]
YARN = [1, 1, 0.826923, 0.596154, 0.365385, 0.25, 0.25, 0.25]
TURNS = [1, 1, 1, 1, 0.407437, 0.25, 0.25, 0.25]
GOLDEN = [
    ("pi(factor=4)", 512, 2048, 1.0, [0.25] * 8),
    ("dynamic_ntk", 512, 2048, 1.0, NTK),
    ("ntk", 512, 2048, 1.0, NTK),
    ("yarn(factor=4)", 512, 1, 1.138629, [1, 0.942308, 0.711538, 0.480769, 0.25, 0.25, 0.25, 0.25]),
    ("yarn(factor=4)", 1024, 1, 1.138629, YARN),
    (
        "yarn(factor=4, truncate=False)",
        1024,
        1,
        1.138629,
        [1, 1, 0.853986, 0.604842, 0.355697, 0.25, 0.25, 0.25],
    ),
    ("dynamic_yarn", 1024, 4096, 1.138629, YARN),
    ("dynamic_yarn(mscale=0)", 1024, 4096, 1.0, YARN),
    ("dynamic_yarn", 1024, 1000, 1.0, [1.0] * 8),
    ("llama3(factor=4)", 1024, 1, 1.0, TURNS),
    ("ntk_by_parts(factor=4, beta=4)", 1024, 1, 1.0, TURNS),
    ("ntk_by_parts(beta=4)", 1024, 4096, 1.0, TURNS),
    ("yarn(factor=4, beta=4, ramp=turns)", 1024, 1, 1.138629, TURNS),
    ("p_rope", 512, 1, 1.0, [1, 1, 1, 1, 0, 0, 0, 0]),
]


def ratios(extend: str, train_length: int, length: int | None = None) -> tuple[Tensor, float]:
    """The frequencies of 32 pairs relative to RoPE's, and the attention factor."""
    inv_freq, factor = ours(extend, (64, 1e4, train_length), length)
    return inv_freq / rope_frequencies(64)[0], factor


@pytest.mark.parametrize("extend, train_length, length, factor, expected", GOLDEN)
def test_frequencies_are_the_golden_ones(extend, train_length, length, factor, expected):
    found, attention_factor = ratios(extend, train_length, length)
    assert found[PAIRS].tolist() == pytest.approx(expected, abs=6e-7)
    assert attention_factor == pytest.approx(factor, abs=6e-7)


def test_longrope_is_the_golden_one(tmp_path):
    file = written(tmp_path, {"long_factor": [1 + 3 * m / 31 for m in range(32)]})
    found, factor = ratios(f"longrope(file='{file}', factor=4)", 1024, 4096)
    expected = [1, 0.720930, 0.563636, 0.462687, 0.392405, 0.340659, 0.300971, 0.25]
    assert found[PAIRS].tolist() == pytest.approx(expected, abs=6e-7)
    assert factor == pytest.approx(1.095445, abs=6e-7)


def test_ntk_by_parts_is_the_published_formula():
    """theta (kept + (1 - kept) / s), with other options as those of yarn."""
    with pytest.raises(UserError, match="ntk_by_parts has no option window.*alpha"):
        tiny(extend="ntk_by_parts(window=3)")
    assert ratios("ntk_by_parts(mscale=1, factor=8)", 1024)[1] == ratios("yarn(factor=8)", 1024)[1]
    theta = rope_frequencies(64)[0].tolist()
    kept = [min(1.0, max(0.0, (1024 * f / (2 * math.pi) - 1) / (32 - 1))) for f in theta]
    found, factor = ratios("ntk_by_parts(factor=8)", 1024)
    assert found.tolist() == pytest.approx([k + (1 - k) / 8 for k in kept], rel=1e-12)
    assert factor == 1


@pytest.mark.parametrize(
    "factor, base", [(2, 20452.23), (4, 41829.37), (8, 85550.38), (16, 174969.59)]
)
def test_ntk_is_a_larger_base(factor, base):
    """And so is abf, whose base is the one it is given."""
    expected = rope_frequencies(64, base)[0]
    for extend in (f"ntk(factor={factor})", f"abf(base={base})"):
        found, _ = ours(extend, (64, 1e4, 512))
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "head_dim, edges",
    [
        (64, {256: (0, 13), 512: (3, 16), 1024: (5, 18), 2048: (8, 21), 4096: (10, 23)}),
        (128, {256: (1, 26), 512: (6, 31), 1024: (11, 36), 2048: (16, 41), 4096: (20, 46)}),
    ],
)
def test_the_band_of_yarn_has_the_golden_edges(head_dim, edges):
    for train_length, (low, high) in edges.items():
        found, _ = ours("yarn(factor=4)", (head_dim, 1e4, train_length))
        ramp = [min(1.0, max(0.0, (m - low) / (high - low))) for m in range(head_dim // 2)]
        ratio = (found / rope_frequencies(head_dim)[0]).tolist()
        assert ratio == pytest.approx([0.25 + 0.75 * (1 - r) for r in ramp], rel=1e-12)


@pytest.mark.parametrize("pairs", [None, 0, 1, 5, 32, 99])
def test_clip_tapers_the_pairs_that_do_not_finish_a_turn(pairs):
    ratio, _ = ratios("clip" if pairs is None else f"clip(pairs={pairs})", 512, 4096)
    n = 16 if pairs is None else min(pairs, 32)  # at 512 pairs 16 ... 31 have longer waves
    tapered = [0.0] if n == 1 else [(1 + math.cos(math.pi * t / (n - 1))) / 2 for t in range(n)]
    assert ratio.tolist() == pytest.approx([1.0] * (32 - n) + tapered, abs=1e-12)


def test_frequency_maps_act_in_the_order_in_which_they_are_written():
    size = (64, 1e4, 512)
    yarn, factor = ours("yarn(factor=4)", size)
    plain = rope_frequencies(64)[0]

    def rounded(inv_freq: Tensor) -> list[float]:
        return [2 * math.pi / round(2 * math.pi / f) for f in inv_freq.tolist()]

    for extend, expected in [
        ("resonance", rounded(plain)),
        ("yarn(factor=4) + resonance", rounded(yarn)),
        ("resonance + pi(factor=4)", rounded(plain / 4)),  # it acts last in any order
        ("pi(factor=4) + resonance", rounded(plain / 4)),
    ]:
        found, found_factor = ours(extend, size)
        assert found.tolist() == pytest.approx(expected, rel=1e-12)
        assert found_factor == (factor if "yarn" in extend else 1)


def scheme_of(pos: str, extend: str = "", layers: int = 1) -> Scheme:
    """A scheme for models of L tokens, with an extension in force."""
    scheme = Scheme(pos, SHAPE, layers)
    scheme.extend(extend)
    return scheme


def test_longrope_leaves_the_first_positions_as_they_were(tmp_path):
    file = written(tmp_path, {"long_factor": [2, 3, 4, 5], "first": 3})
    scheme = scheme_of("rope", f"longrope(file='{file}', factor=1)")
    cos, sin = scheme.pieces["0_rope"].cos_sin(torch.arange(20), 20, scheme.maps)
    for p, m in itertools.product(range(20), range(4)):
        angle = p * 10000 ** (-m / 4) / (1 if p < 3 else [2, 3, 4, 5][m])
        assert (cos[p, m], sin[p, m]) == pytest.approx((math.cos(angle), math.sin(angle)), abs=1e-7)


def test_every_rotary_piece_of_a_pattern_is_extended():
    q, ids = normal(1, 1, 20, D, seed=1), torch.arange(20)
    plain = scheme_of("rope | rope(base=500)", layers=2)
    halved = scheme_of("rope | rope(base=500)", "pi(factor=2)", layers=2)
    for ours, expected in zip(
        halved.plans(ids, 2 * ids, 2 * ids, 40, FLOAT64),
        plain.plans(ids, ids, ids, 40, FLOAT64),
        strict=True,
    ):
        torch.testing.assert_close(ours.turns[0](q), expected.turns[0](q), rtol=0, atol=1e-6)


# Scores of extended schemes


def scores(pos: str, extend: str, q: Tensor, k: Tensor) -> Tensor:
    """(H, T, T) of q and k (H, T, D), not turned."""
    index = torch.arange(q.shape[1])
    (plan,) = scheme_of(pos, extend).plans(index, index, index, len(index), FLOAT64)
    q, k = q[None], k[None]
    if plan.turns:
        q, k = plan.turns[0](q), plan.turns[1](k)
    return attention.scores(q, k, plan)[0]


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
    frequencies = ours(extend, (D, 1e4, L), 40)[0].tolist()
    for h, i, j in [(0, 0, 0), (1, 39, 39), (0, 39, 0), (1, 17, 5), (0, 30, 29)]:
        plain = rope_score(q[h, i].tolist(), k[h, j].tolist(), i - j, frequencies)
        assert float(found[h, i, j]) == pytest.approx(attention_factor**2 * plain, abs=2e-6)


def test_the_attention_of_a_model_under_yarn_is_the_formula(monkeypatch):
    seen, attend = [], attention.attend

    def spy(q: Tensor, k: Tensor, v: Tensor, prepared: attention.Prepared, *rest: object) -> Tensor:
        seen.append((q[0].tolist(), k[0].tolist()))
        return attend(q, k, v, prepared, *rest)

    gpt, idx = trained("rope"), tokens(1, 32)
    monkeypatch.setattr("attention.attend", spy)
    for extend in ("", "yarn(factor=4)"):
        gpt.extend(extend)
        gpt(idx)
    frequencies, factor = ours("yarn(factor=4)", (D, 1e4, L))
    assert factor == 0.1 * math.log(4) + 1
    plain, long = seen[0], seen[3]  # of the first of three layers, turned: (H, T, D)
    for h, i, j in [(0, 0, 0), (1, 31, 0), (0, 31, 30), (1, 17, 5)]:
        q, k = turned_back(plain[0][h][i], i), turned_back(plain[1][h][j], j)
        found = sum(a * b for a, b in zip(long[0][h][i], long[1][h][j], strict=True)) / math.sqrt(D)
        expected = factor**2 * rope_score(q, k, i - j, frequencies.tolist())
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-5)


def turned_back(x: list[float], position: int) -> list[float]:
    """What rope turned at a position, as it was before."""
    pairs = [
        complex(a, b) * cmath.exp(-1j * position * 10000 ** (-m / 4))
        for m, (a, b) in enumerate(zip(x[:4], x[4:], strict=True))
    ]
    return [z.real for z in pairs] + [z.imag for z in pairs]


# Distances: what each paper says the distance of query i and key j is in a text of n tokens, and
# which keys are seen

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
def test_distances_are_those_of_the_paper(extend, distance):
    for count in (L, 41):
        check_distances(extend, distance, count)


def check_distances(extend: str, distance: Distance, count: int) -> None:
    """In a text of `count` tokens, for a rotation and for a bias."""
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
    frequencies = ours("yarn(factor=2)", (D, 1e4, L))[0].tolist()
    for h, i, j in [(0, 29, 0), (1, 29, 28), (0, 13, 6), (1, 7, 5), (1, 20, 20)]:
        delta = distance(i, j, 30)
        heat = (0.1 * math.log(2) + 1) ** 2
        turned = rope_score(q[h, i].tolist(), k[h, j].tolist(), delta, frequencies)
        expected = heat * turned - [1 / 16, 1 / 256][h] * delta
        assert float(found[h, i, j]) == pytest.approx(expected, abs=5e-6)


# Maps of positions, temperatures


def mapped(extend: str, index: Tensor) -> Tensor:
    """The position ids of ALiBi under an extension, at these places of a text that ends there."""
    plan = scheme_of("alibi", extend).plans(index, index, index, int(index[-1]) + 1, FLOAT64)[0]
    return plan.query_ids.double()


def curve(kind: str, knee: float) -> Callable[[int], float]:
    return {
        "log": lambda p: knee * math.log(1 + p / knee),
        "sqrt": lambda p: 2 * knee * (math.sqrt(1 + p / knee) - 1),
        "arctan": lambda p: knee * math.atan(p / knee),
    }[kind]


MAPS = {
    "interpolate": lambda p: p / 5,
    "interpolate(factor=3)": lambda p: p / 3,
    "slopes": lambda p: p / 2,
    "slopes(scale=3)": lambda p: 3 * p,
    "compress": lambda p: p if p <= 8 else 8 + 0.25 * (p - 8),
    "compress(alpha=0)": lambda p: min(p, 8),
    "compress(alpha=1.5)": lambda p: p if p <= 8 else 8 + 1.5 * (p - 8),
    "two_scale": lambda p: p if p < 8 else 1.5 * p,
    "two_scale(alpha=0.5, beta=0.1)": lambda p: 0.5 * p if p < 8 else 0.1 * p,
    "smooth": curve("log", 8),
    "smooth(knee=3)": curve("log", 3),
    "smooth(kind=sqrt)": curve("sqrt", 8),
    "smooth(kind=arctan, knee=20.5)": curve("arctan", 20.5),
}
STEPS = {
    "interpolate(factor=3)": 1 / 3,
    "compress(alpha=0.3)": 0.3,
    "slopes(scale=0.3)": 0.3,
    "two_scale(beta=0.3)": 0.3,
    "smooth": 8 / 3_000_008,
}


@pytest.mark.parametrize("extend", MAPS)
def test_positions_are_mapped_by_the_formula(extend):
    expected = [MAPS[extend](p) for p in range(40)]
    assert mapped(extend, torch.arange(40)).tolist() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("extend", STEPS)
def test_mapped_positions_are_told_apart_far_out(extend):
    """Neighbours stay at the map's own distance from each other, past a million, where float32 has
    sixteenths."""
    ids = mapped(extend, torch.arange(3_000_000, 3_000_010))
    assert ids.diff().tolist() == pytest.approx([STEPS[extend]] * 9, rel=1e-3)


@pytest.mark.parametrize("factor", ["auto", 2, 3.7])
def test_interpolate_is_pi_of_rope_and_slopes_of_alibi(factor):
    q, k = normal(HEADS, 40, D, seed=1), normal(HEADS, 40, D, seed=2)
    moved, divided = (
        scores("rope", f"{name}(factor={factor})", q, k) for name in ("interpolate", "pi")
    )
    torch.testing.assert_close(moved, divided, rtol=0, atol=3e-6)
    scale = 8 / 40 if factor == "auto" else 1 / factor
    moved = scores("alibi", f"interpolate(factor={factor})", q, k)
    scaled, plain = (scores("alibi", text, q, k) for text in (f"slopes(scale={scale})", ""))
    torch.testing.assert_close(moved, scaled, rtol=0, atol=1e-6)
    bias = (q @ k.mT / math.sqrt(D) - plain).tril()  # m (i - j)
    torch.testing.assert_close(moved.tril(), (plain + (1 - scale) * bias).tril(), rtol=0, atol=1e-6)


def test_each_head_has_its_own_temperature(tmp_path):
    q, k = normal(HEADS, 20, D, seed=1), normal(HEADS, 20, D, seed=2)
    plain, file = scores("rope", "", q, k), written(tmp_path, {"scales": [1.5, 0.25]})
    heated = scores("rope", f"temperature(file='{file}')", q, k)
    torch.testing.assert_close(heated, plain * torch.tensor([1.5, 0.25]).double()[:, None, None])
    torch.testing.assert_close(scores("rope", "temperature(scale=1.2)", q, k), plain * 1.2)


def test_logn_is_at_least_one_only_on_a_trained_model():
    q, k = normal(HEADS, 40, D, seed=1), normal(HEADS, 40, D, seed=2)
    pairs = (("rope", ""), ("rope + logn", ""), ("rope", "logn"))
    plain, built_in, extended = (scores(pos, extend, q, k) for pos, extend in pairs)
    assert (extended[:, :L] == plain[:, :L]).all()
    for i in range(40):
        heat = math.log(i + 1) / math.log(L)
        for found, factor in ((built_in, heat), (extended, max(1.0, heat))):
            expected = factor * plain[:, i, : i + 1]
            torch.testing.assert_close(found[:, i, : i + 1], expected, rtol=0, atol=1e-9)


# Every extension of every kind of model

OPTIONS = {
    "window": "window(size=5, sinks=2)",
    "temperature": "temperature(scale=1.5)",
    "pose": "pose(target=64)",
    "string": "string(shift=4, local=2)",
    "lm_infinite": "lm_infinite(sinks=3)",
    "clip": "clip(pairs=4)",
}
NOTHING_WITHIN = set(  # with the factors of the text itself
    "pi ntk dynamic_ntk yarn llama3 longrope interpolate self_extend leaky_rerope logn streaming "
    "lm_infinite pose block_causal".split()
)
USUAL = ["rope", "alibi", "xpos", "pope", "sinusoidal", "learned(rows=64)", "fox", "rope | nope"]
RARE = [  # for the slow run
    "t5(buckets=8, max_distance=16)",
    "kerple",
    "fope(base=2)",
    "resonance",
    "learned_rope",
    "nope",
    "rope + alibi",
    "randomized(max=128) + rope",
]


def tokens(*shape: int, seed: int = 1) -> Tensor:
    return torch.randint(17, shape, generator=torch.Generator().manual_seed(seed))


def tiny(pos: str = "rope", layers: int = 2, extend: str = "") -> GPT:
    """A new model of L tokens, with an extension in force."""
    gpt = GPT(
        GPTConfig(
            block_size=L, vocab_size=32, n_layer=layers, n_head=HEADS, n_embd=HEADS * D, pos=pos
        )
    )
    gpt.extend(extend)
    return gpt


@cache
def trained(pos: str) -> GPT:
    """A model in float64 whose weights are large enough for every part of it to be felt."""
    torch.manual_seed(3)
    gpt = tiny(pos, 3).double().eval()
    for name, parameter in gpt.named_parameters():
        if "ln_" not in name:
            shift = 0.5 if name.startswith("pos.") else 0.0
            parameter.data = 0.3 * torch.randn_like(parameter) + shift
    return gpt


def model(pos: str, extend: str = "") -> GPT:
    """One model for all extensions: each replaces the one before."""
    gpt = trained(pos)
    gpt.extend(extend)
    return gpt


def mention(name: str, pos: str, folder: Path) -> str:
    """With options where it needs some; where positions are drawn, with a factor of its own."""
    given = []
    if "randomized" in pos and issubclass(find(name), posenc.Scaled):
        given.append("factor=2")
    if name == "longrope":
        rotary = trained(pos).pos.rotary
        pairs = len(rotary[0].frequencies(L)[0]) if rotary else 0
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
    "pos", [*USUAL, *(pytest.param(pos, marks=pytest.mark.slow) for pos in RARE)]
)
@pytest.mark.parametrize("name", extension_names())
def test_an_extension_fits_and_works_or_is_refused_with_what_fits(name, pos, tmp_path, monkeypatch):
    monkeypatch.setattr(attention, "BLOCK_ROWS", 24)
    (plain, short), gpt, idx = plain_logits(pos), model(pos), tokens(2, 8 * L)
    state, drawn = set(gpt.state_dict()), "randomized" in pos
    try:
        gpt.extend(mention(name, pos, tmp_path))
    except UserError as refusal:
        unsure = drawn and name in ("pose", "dynamic_ntk", "leaky_rerope", "self_extend")
        assert name in str(refusal)
        assert unsure or ("What fits: " in str(refusal) and "temperature" in str(refusal)), refusal
        assert gpt.pos.extension == "" and len(gpt.pos.extensions) == 0
        return
    found, here = one_pass(gpt, idx), torch.arange(8 * L)
    assert found.isfinite().all()
    assert set(gpt.state_dict()) == state and not list(gpt.buffers())
    close(in_chunks(gpt, idx, [5, 1, 58]), found)
    close(one_pass(gpt, idx[1:], positions=here), found[1:])
    if name in NOTHING_WITHIN and not drawn:
        close(one_pass(gpt, idx[:, :L]), short)
    with monkeypatch.context() as patch:
        patch.setattr("attention.attend", by_reference)
        close(one_pass(gpt, idx, positions=here.expand(2, -1)), found)
    assert bool((found - plain).abs().max() < 1e-6) == changes_nothing(name, pos)


def by_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    prepared: attention.Prepared,
    dropout: float = 0.0,
    features: Tensor | None = None,
) -> Tensor:
    """Attention as it is defined."""
    return attention.reference(q, k, v, prepared.plan, features)


MAPPING = set("abf clip dynamic_ntk dynamic_yarn llama3 longrope ntk ntk_by_parts".split())
MAPPING |= {"p_rope", "pi", "resonance", "yarn"}
REWRITING = set("dca leaky_rerope lm_infinite rerope self_extend streaming string".split())
MOVING = set("compress interpolate pose slopes smooth two_scale".split())
MISFITS = {
    "rope": {"slopes"},
    "alibi": MAPPING,
    "nope": MAPPING | REWRITING | MOVING,
    "learned(rows=64)": MAPPING | REWRITING | MOVING,
    "sinusoidal": MAPPING | REWRITING | {"slopes"},
    "rope + alibi": {"slopes"},
    "rope | nope": {"slopes"},
    "randomized(max=128) + rope": {"pose", "slopes"},
}


@pytest.mark.parametrize("pos", MISFITS)
def test_what_does_not_fit_a_model_is_what_can_do_nothing_to_it(pos):
    scheme = scheme_of(pos, layers=3)
    assert {
        name for name in extension_names() if rules.misfit(find(name), scheme.pieces.values())
    } == MISFITS[pos]


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
        ("yarn + yarn(factor=2)", "yarn is named twice"),
        ("yarn + pi", "yarn and pi both change the frequencies"),
        ("resonance + ntk + clip", "ntk and clip both change the frequencies"),
        ("abf + yarn", "abf and yarn both change the frequencies"),
        ("yarn(factor=4) + interpolate(factor=2)", "both take the text to be longer"),
        ("interpolate + ntk + logn", "both take the text to be longer"),
        ("yarn + dynamic_yarn", "yarn and dynamic_yarn both change the frequencies"),
        ("interpolate + compress", "both change the positions"),
        ("rerope + dca", "both change the distances"),
        ("rope", "no extension of a trained model"),
        ("alibi + logn", "no extension of a trained model"),
        ("ssmax", "no extension of a trained model"),
        ("yarm", r"no extension yarm; did you mean yarn\? Known: abf, .*, window, yarn$"),
        ("yarn(4)", "options have names"),
        ("yarn()", r"write yarn or yarn\(option=value\)"),
        ("yarn(factr=4)", "has no option"),
        ("window", "needs size"),
        ("pose", "needs target"),
        ("longrope", "needs file"),
        ("slopes", "does not extend"),
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
    with pytest.raises(UserError, match=sentence):
        gpt.extend(extend)
    assert gpt.pos.extension == gpt.config.extend == "logn"  # the one in force stays


@pytest.mark.parametrize("name", [name for name in extension_names() if name not in scheme_names()])
def test_a_position_scheme_may_not_name_an_extension(name):
    advice = f"{name} extends a model that is trained already: write it as --extend={name}"
    with pytest.raises(UserError, match=advice):
        Scheme(f"rope + {OPTIONS.get(name, name)}", SHAPE, 1)


def test_another_extension_replaces_the_first_and_none_restores_the_model():
    gpt, idx = model("rope + alibi"), tokens(2, 40)
    plain = one_pass(gpt, idx)
    gpt.extend("yarn(factor=4) + rerope + logn")
    gpt.extend("self_extend")
    assert (gpt.pos.extension, gpt.config.extend) == ("self_extend", "self_extend")
    found = one_pass(gpt, idx)
    for none in ("", "none"):
        gpt.extend("yarn(factor=4) + streaming")
        gpt.extend(none)
        assert (gpt.pos.extension, gpt.config.extend) == ("", "")
        assert torch.equal(one_pass(gpt, idx), plain)
    gpt.extend("self_extend")
    assert torch.equal(one_pass(gpt, idx), found)


def test_the_order_of_an_expression_changes_nothing():
    idx = tokens(1, 40)
    for parts in (
        ["self_extend", "logn", "pi(factor=2)"],
        ["streaming", "interpolate"],
        ["yarn(factor=4)", "resonance"],
    ):
        orders = [" + ".join(order) for order in itertools.permutations(parts)]
        found = [one_pass(model("rope", text), idx) for text in orders]
        assert all(torch.equal(found[0], other) for other in found)


FOUR = [1, 1, 1, 1]
BAD_NUMBERS = [  # where a list of four numbers is needed
    3,
    None,
    "1234",
    "ab",
    {"a": 1},
    {"1": 2, "2": 3},
    [1, 1, 1, -1],
    [1, 1, 1, 0],
    [1, 2, 3, 1e-320],
    [1, 2, 3, 1e300],
    [1, 1, 1, float("nan")],
    [float("nan"), 1, 1, 1],
    [1, 1, 1, float("inf")],
    [1, 1, 1, 10**400],
    [1, 1, 1, None],
    [[1], 1, 1, 1],
    ["a", 1, 1, 1],
    ["1", 2, 3, 4],
    [True, 2, 3, 4],
    [1, 1, 1],
    [1, 1, 1, 1, 1],
    [],
]
BAD_FILES = [None, "", "{", "[]", "[1, 2]", "7", "null", '"x"', {}, "[" * 100_000]
BAD_LONGROPE = [
    *({"long_factor": numbers} for numbers in BAD_NUMBERS),
    '{"long_factor": [1, 1, 1, 1e999]}',
    {"long_factor": FOUR, "short_factor": [1, 1]},
    {"long_factor": FOUR, "short_factor": "abc"},
    *({"long_factor": FOUR, "first": first} for first in (-1, "x", 2.9, True, 10**30)),
    '{"long_factor": [1, 1, 1, 1], "first": 1e999}',
    {"long_factor": FOUR, "train_length": 7},
]


def test_a_file_of_numbers_that_cannot_be_used_is_a_sentence_that_names_it(tmp_path):
    for content in [*BAD_FILES, *BAD_LONGROPE]:
        file = tmp_path / "none.json" if content is None else written(tmp_path, content)
        with pytest.raises(UserError, match=f"longrope.*{file.name}|{file.name}.*longrope"):
            one_pass(model("rope", f"longrope(file='{file}')"), tokens(1, 2 * L))
    for content in [*BAD_FILES, *({"scales": numbers} for numbers in [*BAD_NUMBERS, [1]])]:
        file = tmp_path / "none.json" if content is None else written(tmp_path, content)
        with pytest.raises(UserError, match=f"temperature.*{file.name}|{file.name}.*temperature"):
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
def test_what_a_map_cannot_do_is_a_sentence_when_it_is_put_into_force(pos, extend):
    with pytest.raises(UserError):
        tiny(pos, extend=extend)


# PoSE


@pytest.mark.parametrize("length, target", [(L, 64), (L, 9), (L, L), (1, 20), (5, 64)])
def test_pose_draws_two_chunks_of_ascending_positions(length, target):
    scheme, gaps, cuts = scheme_of("rope", f"pose(target={target})"), set(), set()
    for step in range(300):
        ids = scheme.draw(7, step, length).tolist()
        jumps = [n for n in range(1, length) if ids[n] != ids[n - 1] + 1]
        assert len(ids) == length and ids[0] == 0 and ids == sorted(set(ids))
        assert ids[-1] < target and len(jumps) <= 1
        gaps.add(ids[-1] - length + 1)
        cuts |= set(jumps)
        assert ids == scheme.draw(7, step, length).tolist()
    if length > 1:
        assert min(gaps) == 0 and max(gaps) >= 0.9 * (target - length)
        assert target == length or cuts == set(range(1, length))


def test_pose_is_for_training_only_and_not_beside_another_draw():
    gpt, idx = model("rope"), tokens(1, L)
    plain = one_pass(gpt, idx)
    gpt.extend("pose(target=64)")
    assert torch.equal(one_pass(gpt, idx), plain)
    drawn = gpt.draw_ids(1, 2, L)
    assert not torch.equal(drawn, torch.arange(L))
    assert not torch.allclose(one_pass(gpt, idx, ids=drawn), plain)
    drawing = model("randomized(max=128) + rope")
    with pytest.raises(UserError, match="pose and randomized both draw the positions"):
        drawing.extend("pose(target=64)")
    for extend in ("yarn", "dynamic_ntk(factor=2)", "self_extend", "leaky_rerope"):
        with pytest.raises(UserError, match="randomized.*give a fixed factor"):
            drawing.extend(extend)
    for extend in ("yarn(factor=2)", "self_extend(group=2)", "leaky_rerope(slowing=2)"):
        drawing.extend(extend)


# Compiled code


@pytest.mark.parametrize("extend", ["self_extend", "pose(target=32) + yarn(factor=4)"])
def test_compiled_training_under_an_extension_is_eager_training(extend):
    torch._dynamo.reset()
    torch.manual_seed(1)
    gpt, idx = tiny(layers=1, extend=extend).double(), tokens(2, 3 * L)
    for parameter in gpt.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    compiled = torch.compile(gpt, fullgraph=True, backend="aot_eager", dynamic=False)
    for step in range(2):
        ids = gpt.draw_ids(1, step, 3 * L)
        pairs = []
        for run in (compiled, gpt):
            logits, loss = run(idx, idx.roll(-1, 1), ids=ids)
            gradients = torch.autograd.grad(loss, list(gpt.parameters()))
            pairs.append([logits.detach(), loss.detach(), *gradients])
        for ours, expected in zip(*pairs, strict=True):
            close(ours, expected)


# Learned positions


def test_the_gradients_of_cosines_and_sines_are_those_of_autograd():
    places = torch.tensor([[0.3, 1.7, 5.0], [0.0, 40.5, 1000.25]], dtype=torch.float64)
    inv_freq = torch.tensor([1.0, 0.1, 0.003], dtype=torch.float64)
    inputs = (places.requires_grad_(), inv_freq.requires_grad_())
    weights = [torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(k)) for k in range(2)]

    def gradients(cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad((cos * weights[0] + sin * weights[1]).sum(), inputs)

    angles = places[..., None] * inv_freq
    found, expected = gradients(*posenc.cos_sin(*inputs)), gradients(angles.cos(), angles.sin())
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)  # the tables are float32


@pytest.mark.parametrize("pos", ["rope", "alibi", "sinusoidal"])
def test_a_learned_curve_of_positions_starts_as_the_fixed_one_and_has_its_gradient(pos):
    torch.manual_seed(0)
    gpt, idx, targets = tiny(pos).double(), tokens(2, 5 * L, seed=0), tokens(2, 5 * L, seed=1)
    with torch.no_grad():
        for p in gpt.parameters():
            p.mul_(4 if p.dim() > 1 else 1)  # so that positions count

    def loss() -> Tensor:  # the model's own is float32
        return torch.nn.functional.cross_entropy(gpt(idx, targets)[0].mT, targets)

    gpt.extend("smooth(kind=sqrt)")
    fixed = loss()
    gpt.extend("smooth(kind=sqrt, learned=True)")
    raw = gpt.pos.extensions[0].double().log_factor
    assert loss().item() == pytest.approx(fixed.item(), rel=1e-6)
    (found,) = torch.autograd.grad(loss(), [raw])
    step, losses = 1e-2, []
    with torch.no_grad():
        for sign in (1, -1):
            raw.fill_(sign * step)
            losses.append(loss().item())
    slope = (losses[0] - losses[1]) / (2 * step)
    assert abs(found.item()) > 1e-6 and found.item() == pytest.approx(slope, rel=0.02)


def test_a_learned_curve_may_be_each_layers_own():
    torch.manual_seed(0)
    gpt, idx = tiny("rope | alibi", 3), tokens(2, 5 * L)

    def nats(extend: str = "") -> Tensor:
        """Under that extension, or under the one in force."""
        if extend:
            gpt.extend(extend)
        with torch.no_grad():
            return gpt.losses(idx[:, :-1], idx[:, 1:])

    def knees() -> list[Tensor]:
        return [p for name, p in gpt.named_parameters() if name.endswith("log_factor")]

    shared = nats("smooth(learned=True)")
    assert len(gpt.pos.extensions) == 1 and len(gpt.pos.sets) == 2
    assert torch.equal(nats("smooth(learned=True, per_layer=True)"), shared)
    assert len(knees()) == len(gpt.pos.sets) == 3
    beside = nats("smooth(learned=True, per_layer=True) + logn")  # which all layers share
    assert torch.equal(nats("smooth(learned=True) + logn"), beside)
    assert not torch.equal(beside, shared)
    gpt.extend("smooth(learned=True, per_layer=True)")
    with torch.no_grad():
        knees()[1].fill_(1.0)  # of the layer with alibi
    assert (nats() - shared).abs().max() > 1e-4
    index = torch.arange(4 * L)
    first, second, third = gpt.pos.plans(index, index, index, 4 * L, torch.zeros(()))
    assert not torch.equal(first.key_ids, second.key_ids)
    assert torch.equal(first.key_ids, third.key_ids)
    chunks, whole = in_chunks(gpt, idx, [1] * (3 * L) + [2 * L]), one_pass(gpt, idx)
    torch.testing.assert_close(chunks, whole, atol=1e-5, rtol=1e-4)
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
    gpt = tiny(pos)
    with pytest.raises(UserError, match=said):
        gpt.extend(text)
    assert gpt.pos.extension == ""


def test_two_files_of_one_name_cannot_be_kept_in_one_folder(tmp_path, monkeypatch):
    gpt, content = tiny(), {"long_factor": [2.0] * (D // 2), "scales": [1.5] * HEADS}
    monkeypatch.chdir(tmp_path)
    for place in ("a", "b"):
        Path(place).mkdir()
        written(Path(place), content)
    with pytest.raises(UserError, match="two files of one name"):
        gpt.extend("longrope(file='a/factors.json') + temperature(file='b/factors.json')")
    gpt.extend("longrope(file='a/factors.json') + temperature(file='a/factors.json')")
    assert gpt.pos.extensions[1].scales == [1.5] * HEADS


def test_an_extension_that_is_in_force_keeps_what_it_learned_and_another_begins_anew():
    gpt = tiny()
    gpt.extend("smooth(learned=True)")
    with torch.no_grad():
        gpt.pos.extensions[0].log_factor.fill_(0.5)
    gpt.extend("smooth( learned=True )")
    assert gpt.pos.extensions[0].log_factor.item() == 0.5
    gpt.extend("smooth(kind=sqrt, learned=True)")
    assert gpt.pos.extensions[0].log_factor.item() == 0


def test_another_file_of_the_same_name_is_another_extension(tmp_path):
    gpt = tiny()
    for scale, place in ((1.5, tmp_path / "a"), (2.5, tmp_path / "b")):
        place.mkdir()
        written(place, {"scales": [scale] * HEADS})
        gpt.extend("temperature(file='factors.json')", place)
        assert gpt.pos.extensions[0].scales == [scale] * HEADS


@pytest.mark.parametrize("first", [0, 5])
def test_learned_frequencies_are_extended_as_ropes_are(first, tmp_path):
    written(tmp_path, {"long_factor": [1.0 + m for m in range(D // 2)], "first": first})
    ours, theirs, idx = tiny("learned_rope"), tiny("rope"), tokens(2, 3 * L)
    theirs.load_state_dict(ours.state_dict(), strict=False)
    for gpt in (ours, theirs):
        gpt.extend("longrope(file='factors.json')", tmp_path)
    found, chunks = one_pass(ours, idx), in_chunks(ours, idx, [3, L, 2 * L - 3])
    for expected in (one_pass(theirs, idx), chunks):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_a_file_that_changed_is_read_again(tmp_path):
    gpt = tiny()
    for scale in (1.5, 2.5):
        file = written(tmp_path, {"scales": [scale] * HEADS})
        gpt.extend(f"temperature(file='{file}')")
        assert gpt.pos.extensions[0].scales == [scale] * HEADS


def test_a_single_pair_that_is_clipped_is_stilled():
    extended, _ = ours("clip(pairs=1)", (D, 1e4, L))
    for found in (extended, posenc.Rope(Shape(1, D, D, L), clip=1).frequencies(L)[0]):
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
    (piece,) = scheme_of("rope", "leaky_rerope(slowing=3)").extensions
    (region,) = piece.regions(4 * L)
    assert region.query(torch.arange(9)).dtype == region.key(torch.arange(9)).dtype == torch.float64
