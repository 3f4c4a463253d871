"""Extensions of trained models: frequencies against transformers and golden numbers, distances and
positions against the papers' formulas, and what all extensions promise.
"""

import cmath
import itertools
import json
import math
from collections.abc import Callable

import numpy as np
import oracles
import pytest
import torch
from oracles import SLOPES, C, D, H, L
from test_schemes import (
    CATALOGUE,
    SHAPE,
    VOCABULARY,
    assert_close,
    build,
    compiled_equals_eager,
    logits,
    model,
    observe,
    tokens,
)

from attention import Options
from common.errors import UserError
from model import Cache
from posenc import Scaled, rope_frequencies
from scheme import Scheme, extended_frequencies


def written(folder, content):
    """A JSON file; a string is written as it is."""
    file = folder / "factors.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return file


def extended(pos, extend, n_layer=1):
    """The shared model of a scheme under an extension, which replaces the one before."""
    gpt = model(pos, n_layer)
    gpt.pos.extend(extend)
    return gpt


# ---- frequencies


def theirs(kind, head_dim, base, train_length, **options):
    """transformers' (inv_freq float32, attention factor)."""
    functions = pytest.importorskip("transformers.modeling_rope_utils").ROPE_INIT_FUNCTIONS
    llama = pytest.importorskip("transformers.models.llama.configuration_llama")
    length = options.pop("length", None)
    config = llama.LlamaConfig(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        head_dim=head_dim,
        max_position_embeddings=train_length,
    )
    config.rope_parameters = {
        "rope_type": kind,
        "rope_theta": base,
        "original_max_position_embeddings": train_length,
        **options,
    }
    return functions[kind](config, "cpu", seq_len=length)


# an extension, and the type and options of transformers
TYPES = [
    ("pi(factor=2.5)", "linear", {"factor": 2.5}),
    ("dynamic_ntk", "dynamic", {"factor": 1.0}),
    ("dynamic_ntk(factor=4.5)", "dynamic", {"factor": 4.5}),
    ("llama3(factor=3)", "llama3", {"factor": 3.0, "low_freq_factor": 1, "high_freq_factor": 4}),
    (
        "llama3(factor=32, low=0.5, high=8)",
        "llama3",
        {"factor": 32.0, "low_freq_factor": 0.5, "high_freq_factor": 8},
    ),
    ("yarn(factor=8.5)", "yarn", {"factor": 8.5}),
    ("yarn(factor=8.5, truncate=False)", "yarn", {"factor": 8.5, "truncate": False}),
    (
        "yarn(factor=3, alpha=0.5, beta=8, mscale=2, mscale_all_dim=1.5)",
        "yarn",
        {"factor": 3.0, "beta_slow": 0.5, "beta_fast": 8, "mscale": 2, "mscale_all_dim": 1.5},
    ),
]


@pytest.mark.parametrize("extend, kind, options", TYPES)
def test_frequencies_are_those_of_transformers(extend, kind, options):
    for size in [(64, 10000.0, 1000), (128, 500.0, 4096), (24, 5e5, 8192)]:
        for length in (size[2] // 2, size[2], 7 * size[2] + 3):
            head_dim, base, train_length = size
            found, factor = extended_frequencies(
                extend, head_dim, base, train_length=train_length, length=length
            )
            expected, their_factor = theirs(kind, *size, length=length, **options)
            torch.testing.assert_close(found, expected.double(), rtol=1e-5, atol=0)
            assert factor == pytest.approx(their_factor, rel=1e-12)


def test_longrope_is_the_longrope_type_but_for_the_first_positions(tmp_path):
    lists = {"short_factor": [1 + 0.1 * m for m in range(32)]}
    lists["long_factor"] = [1.5 + m for m in range(32)]
    extend = f"longrope(file='{written(tmp_path, lists)}', factor=4)"
    for length in (1, 1000, 1001, 9000):
        found, factor = extended_frequencies(extend, 64, train_length=1000, length=length)
        expected, their_factor = theirs(
            "longrope", 64, 1e4, 1000, length=length, factor=4.0, **lists
        )
        torch.testing.assert_close(found, expected.double(), rtol=1e-5, atol=0)
        assert factor == pytest.approx(their_factor, rel=1e-12)
    file = written(tmp_path, {"long_factor": [2, 3, 4, 5], "first": 3})
    scheme = extended("rope", f"longrope(file='{file}', factor=1)").pos
    cos, _ = scheme.pieces["0_rope"].tables(torch.arange(20), 20, scheme.maps)
    for p, m in itertools.product(range(20), range(4)):
        angle = p * 10000 ** (-m / 4) / (1 if p < 3 else [2, 3, 4, 5][m])
        assert float(cos[p, m]) == pytest.approx(math.cos(angle), abs=1e-7)


# head_dim 64, base 1e4: ratios to RoPE of pairs 0, 4, 8, 12, 16, 20, 24 and 31, training length,
# length, attention factor
PAIRS = [0, 4, 8, 12, 16, 20, 24, 31]
NTK = [1, 0.836209, 0.699245, 0.584715, 0.488944, 0.408860, 0.341892, 0.25]
YARN = [1, 1, 0.826923, 0.596154, 0.365385, 0.25, 0.25, 0.25]
TURNS = [1, 1, 1, 1, 0.407437, 0.25, 0.25, 0.25]
GOLDEN = [
    ("pi", 512, 2048, 1.0, [0.25] * 8),  # with the factor of the text
    ("dynamic_ntk", 512, 2048, 1.0, NTK),
    ("ntk", 512, 2048, 1.0, NTK),
    ("abf(base=41829.37)", 512, 1, 1.0, NTK),
    ("yarn(factor=4)", 1024, 1, 1.138629, YARN),
    ("dynamic_yarn", 1024, 4096, 1.138629, YARN),
    ("dynamic_yarn", 1024, 1000, 1.0, [1.0] * 8),
    ("llama3(factor=4)", 1024, 1, 1.0, TURNS),
    ("ntk_by_parts(factor=4, beta=4)", 1024, 1, 1.0, TURNS),
    ("yarn(factor=4, beta=4, ramp=turns)", 1024, 1, 1.138629, TURNS),
    ("p_rope", 512, 1, 1.0, [1, 1, 1, 1, 0, 0, 0, 0]),
    ("clip(pairs=1)", 512, 1, 1.0, [1, 1, 1, 1, 1, 1, 1, 0]),
    # pairs 16 ... 31 have waves longer than 512
    ("clip", 512, 1, 1.0, [1] * 5 + [(1 + math.cos(math.pi * n / 15)) / 2 for n in (4, 8, 15)]),
]


@pytest.mark.parametrize("extend, train_length, length, factor, expected", GOLDEN)
def test_frequencies_are_the_golden_ones(extend, train_length, length, factor, expected):
    found, attention_factor = extended_frequencies(
        extend, 64, train_length=train_length, length=length
    )
    ratios = (found / rope_frequencies(64)[0])[PAIRS]
    assert ratios.tolist() == pytest.approx(expected, abs=6e-7)
    assert attention_factor == pytest.approx(factor, abs=6e-7)


def test_wavelengths_are_rounded_after_any_other_map():
    for extend, first in {
        "resonance": "pi(factor=1)",
        "resonance + pi(factor=4)": "pi(factor=4)",
    }.items():
        found, _ = extended_frequencies(extend, 64, train_length=512)
        plain, _ = extended_frequencies(first, 64, train_length=512)
        rounded = [2 * math.pi / round(2 * math.pi / f) for f in plain.tolist()]
        assert found.tolist() == pytest.approx(rounded, rel=1e-12)


# ---- scores: what each paper says the distance of query i and key j is in a text of n tokens


Distance = Callable[[int, int, int], float | None]  # (i, j, n), None where the key is not seen


def rerope(w):
    return lambda i, j, n: min(i - j, w)


def leaky(w, k=None):
    def distance(i, j, n):
        slowing = max(1, (n - w) / (L - w)) if k is None else k
        return i - j if i - j < w else w + (i - j - w) / slowing

    return distance


def grouped(w, g=None):
    """Jin et al.'s rule for G: a text of n tokens needs W + (n - W) / G <= 2 L / 3."""

    def distance(i, j, n):
        group = g or next(g for g in itertools.count(1) if n <= L or w + (n - w) / g <= 2 * L / 3)
        return i - j if i - j < w else i // group - j // group + w - w // group

    return distance


def dual_chunks(size, local):
    def distance(i, j, n):
        c = size - local
        if i // c == j // c:
            return i % c - j % c
        return (min(i % c + c, size) if i // c - j // c == 1 else size) - j % c

    return distance


def shifted(s, w):
    return lambda i, j, n: i - j if i - j < s else i - j - s + w


def lambda_shaped(size, sinks):
    return lambda i, j, n: None if i - j >= size and j >= sinks else min(i - j, size)


def rolling(size, sinks):
    """By the places in a cache that holds the first tokens and the last ones."""

    def distance(i, j, n):
        held = [t for t in range(i + 1) if t < sinks or i - t < size]
        return held.index(i) - held.index(j) if j in held else None

    return distance


DISTANCES = {
    "rerope": rerope(4),
    "rerope(window=7)": rerope(7),
    "leaky_rerope": leaky(2),
    "leaky_rerope(window=3, slowing=2.5)": leaky(3, 2.5),
    "self_extend": grouped(2),
    "self_extend(window=5, group=3)": grouped(5, 3),
    "dca": dual_chunks(6, 1),
    "dca(size=9, local=4)": dual_chunks(9, 4),
    "string": shifted(2, 2),
    "string(shift=5, local=2)": shifted(5, 2),
    "lm_infinite": lambda_shaped(8, 10),
    "lm_infinite(size=5, sinks=2)": lambda_shaped(5, 2),
    "streaming": rolling(4, 4),
    "streaming(size=6, sinks=1)": rolling(6, 1),
    "streaming(size=2, sinks=7)": rolling(2, 7),
}


def heads(gpt, count, score):
    """What the heads of a layer give for `count` tokens, (T, C), and what they give if score(h, i,
    j, q, k) are the scores of the keys up to the query; None: not seen.
    """
    idx = tokens(1, count)
    seen = observe(gpt, idx)
    attn = gpt.h[0].attn
    x = seen[gpt.h[0].ln_1][1]
    found = seen[attn.c_proj][0]
    qkv = attn.c_attn(x).detach().view(count, 3, H, D).permute(1, 2, 0, 3).numpy()
    scores = np.full((H, count, count), -math.inf)
    for h, i in itertools.product(range(H), range(count)):
        for j in range(i + 1):
            number = score(h, i, j, qkv[0][h, i], qkv[1][h, j])
            scores[h, i, j] = -math.inf if number is None else number
    expected = oracles.attention({}, scores, qkv[2], x).swapaxes(0, 1).reshape(count, C)
    return found, torch.tensor(expected)


def turned(q, k, distance, frequencies):
    """q R(-distance) k / sqrt(d) by complex numbers."""
    n = len(frequencies)
    pairs = (
        complex(q[m], q[m + n]) * complex(k[m], -k[m + n]) * cmath.exp(1j * distance * f)
        for m, f in enumerate(frequencies)
    )
    return sum(pairs).real / math.sqrt(2 * n)


@pytest.mark.parametrize("count", [L, 37])
@pytest.mark.parametrize("extend", DISTANCES)
def test_distances_are_those_of_the_paper_for_rotations_and_biases(extend, count):
    distance, frequencies = DISTANCES[extend], rope_frequencies(D)[0].tolist()

    def score(h, i, j, q, k):
        apart = distance(i, j, count)
        if apart is None:
            return None
        return turned(q, k, apart, frequencies) - SLOPES[h] * apart

    assert_close(*heads(extended("rope + alibi", extend), count, score), 1e-5)


@pytest.mark.parametrize("extend", ["yarn(factor=4)", "yarn", "yarn(factor=16, mscale=2)", "pi"])
def test_the_frequencies_and_the_temperature_enter_the_scores(extend):
    frequencies, factor = extended_frequencies(extend, D, train_length=L, length=40)

    def score(h, i, j, q, k):
        return factor**2 * turned(q, k, i - j, frequencies.tolist())

    assert_close(*heads(extended("rope", extend), 40, score), 1e-5)


MAPS = {
    "interpolate": lambda p: p / 5,
    "interpolate(factor=3)": lambda p: p / 3,
    "slopes(scale=3)": lambda p: 3 * p,
    "compress": lambda p: p if p <= 8 else 8 + 0.25 * (p - 8),
    "two_scale": lambda p: p if p < 8 else 1.5 * p,
    "two_scale(alpha=0.5, beta=0.1)": lambda p: 0.5 * p if p < 8 else 0.1 * p,
    "smooth(knee=3)": lambda p: 3 * math.log(1 + p / 3),
    "smooth(kind=sqrt)": lambda p: 16 * (math.sqrt(1 + p / 8) - 1),
    "smooth(kind=arctan, knee=20.5)": lambda p: 20.5 * math.atan(p / 20.5),
}


@pytest.mark.parametrize("extend", MAPS)
def test_positions_are_mapped_by_the_formula(extend):
    def score(h, i, j, q, k):
        return q @ k / math.sqrt(D) - SLOPES[h] * max(0, MAPS[extend](i) - MAPS[extend](j))

    assert_close(*heads(extended("alibi", extend), 40, score), 1e-6)


def test_temperatures_are_those_of_the_formula(tmp_path):
    file = written(tmp_path, {"scales": [1.5, 0.25]})
    heats = {
        f"temperature(file='{file}')": lambda h, i: [1.5, 0.25][h],
        "temperature(scale=1.2)": lambda h, i: 1.2,
        "logn": lambda h, i: max(1.0, math.log(i + 1) / math.log(L)),
        "logn(power=0.5)": lambda h, i: max(1.0, math.sqrt(math.log(i + 1) / math.log(L))),
    }
    for extend, heat in heats.items():

        def score(h, i, j, q, k, heat=heat):
            return heat(h, i) * (q @ k) / math.sqrt(D)

        assert_close(*heads(extended("nope", extend), 20, score), 1e-6)


# ---- what all extensions promise

OPTIONS = {
    "chunks": "chunks(size=5)",
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
POSITIONS = [
    "rope",
    "alibi",
    "xpos",
    "pope",
    "sinusoidal",
    "learned(rows=64)",
    "fox",
    "t5 + rope",
    "rove",
    "rope | nope",
]
RARE = ["kerple", "fope(base=2)", "resonance", "learned_rope", "nope", "randomized(max=128) + rope"]


def mention(name, pos, folder):
    """With options where it needs some; where positions are drawn, with a factor of its own."""
    if name == "longrope":
        rotary = model(pos, 2).pos.rotary
        pairs = len(rotary[0].inv_freq) if rotary else 0
        file = written(folder, {"long_factor": [1 + m for m in range(pairs)] or [1]})
        return f"longrope(file='{file}', factor={8 if 'randomized' in pos else 'auto'})"
    if "randomized" in pos and issubclass(CATALOGUE.pieces[name], Scaled):
        return f"{name}(factor=2)"
    return OPTIONS.get(name, name)


@pytest.mark.parametrize(
    "pos", [*POSITIONS, *(pytest.param(pos, marks=pytest.mark.slow) for pos in RARE)]
)
def test_an_extension_works_in_every_way_of_computing_or_is_refused(pos, tmp_path, monkeypatch):
    idx = tokens(2, 6 * L)
    changed = idx.clone()
    changed[:, 13:] = (changed[:, 13:] + 1) % VOCABULARY
    plain = logits(extended(pos, "", 2), idx).detach()
    for name in CATALOGUE.extensions:
        gpt = model(pos, 2)
        try:
            gpt.pos.extend(mention(name, pos, tmp_path))
        except UserError as refusal:
            assert name in str(refusal)
            continue
        with torch.no_grad():
            found = logits(gpt, idx)
            cache = Cache(2, 6 * L)
            chunks = [5, 1, 6 * L - 16] + [1] * 10
            parts = [gpt.logits(part, cache) for part in idx.split(chunks, 1)]
            assert_close(torch.cat(parts, 1), found)
            assert torch.equal(logits(gpt, changed)[:, :13], found[:, :13])
            gpt.options = Options("scored", block_queries=7)
            if name != "int8":
                assert_close(logits(gpt, idx), found)
            gpt.options = Options()
            if name in NOTHING_WITHIN and "randomized" not in pos:
                short = logits(gpt, idx[:, :L])
                gpt.pos.extend("")
                assert_close(logits(gpt, idx[:, :L]), short)
        same = {("pose", pos), ("resonance", "resonance"), ("p_rope", "fope(base=2)")}
        assert ((found - plain).abs().max() < 1e-6) == ((name, pos) in same), name


def test_a_map_of_frequencies_by_layer_is_the_model_that_has_them_so():
    idx = tokens(2, 6 * L)
    gpt = model("rope", 4)
    plain = logits(gpt, idx).detach()
    every = logits(extended("rope", "abf(base=5e5)", 4), idx)
    # a model whose second and fourth layer have another base
    by_hand = model("rope | rope(base=500000)", 4)
    by_hand.load_state_dict(gpt.state_dict(), strict=False)
    gpt.pos.extend("none | abf(base=5e5)")
    mixed = logits(gpt, idx)
    assert_close(mixed, logits(by_hand, idx))
    assert (mixed - plain).abs().max() > 1e-3 and (mixed - every).abs().max() > 1e-3
    cache = Cache(2, 6 * L)
    parts = [gpt.logits(part, cache) for part in idx.split([5, 1, 6 * L - 6], 1)]
    assert_close(torch.cat(parts, 1), mixed)

    # two maps, each in layers of its own: the tables of a layer are those of its map alone
    def tables(extend):
        gpt.pos.extend(extend)
        index = torch.arange(6 * L)
        plans = gpt.pos.plans(index, index, 6 * L, 6 * L, Options())
        return [plans[layer].query_tables for layer in gpt.pos.plan_keys]

    both = tables("yarn(factor=4) | pi(factor=2)")
    for layer, text in ((1, "pi(factor=2)"), (2, "yarn(factor=4)")):
        assert all(torch.equal(a, b) for a, b in zip(both[layer], tables(text)[layer], strict=True))
    gpt.pos.extend("")


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in CATALOGUE.extensions if n != "slopes"])
def test_compiled_training_under_an_extension_is_eager_training(name, tmp_path):
    compiled_equals_eager(extended("rope", mention(name, "rope", tmp_path)))


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
    "rove": REWRITING | {"slopes"},
    "rope | nope": {"slopes"},
    # the factor of the last three follows the length
    "randomized(max=128) + rope": {"pose", "slopes", "dynamic_ntk", "leaky_rerope", "self_extend"},
}


@pytest.mark.parametrize("pos", MISFITS)
def test_what_does_not_fit_a_model_is_what_can_do_nothing_to_it(pos, tmp_path):
    scheme = Scheme(pos, SHAPE, 3)
    refused = set()
    for name in CATALOGUE.extensions:
        try:
            scheme.extend(mention(name, pos, tmp_path))
        except UserError:
            refused.add(name)
    assert refused == MISFITS[pos]


def test_the_factor_of_the_active_extension():
    for extend, short, long in [
        ("yarn(factor=4)", 4, 4),
        ("yarn", 1, 8),
        ("dynamic_ntk(factor=2)", 1, 15),
        ("interpolate + logn", 1, 8),
        ("self_extend(group=3) + yarn(factor=4)", 3, 3),
        ("leaky_rerope(slowing=2.5)", 2.5, 2.5),
        ("logn", None, None),
        ("", None, None),
    ]:
        scheme = extended("rope", extend).pos
        assert (scheme.factor(L), scheme.factor(8 * L)) == (short, long)


@pytest.mark.parametrize(
    "extend, sentence",
    [
        ("yarn | pi", "pi is in none of the 1 layers"),
        ("yarn + yarn(factor=2)", "yarn and yarn both"),
        ("yarn + pi", "yarn and pi both claim the frequencies"),
        ("interpolate + compress", "interpolate and compress both"),
        ("rerope + dca", "rerope and dca both"),
        ("ssmax", "does not extend a trained model"),
        ("yarm", "did you mean yarn"),
        ("yarn(factr=4)", "yarn has no option factr"),
        ("window", "size: Field required"),
        ("longrope", "file: Field required"),
        ("slopes", "does not extend"),
        ("yarn(factor=0.5)", "factor: Input should be greater than or equal to 1"),
        ("yarn(factor=nan)", "factor"),
        ("dynamic_ntk(factor=auto)", "factor"),
        ("yarn(alpha=4, beta=2)", "must not exceed"),
        ("llama3(low=5, high=4)", "must not exceed"),
        ("clip(pairs=-1)", "pairs"),
        ("smooth(kind=tanh)", "arctan"),
        ("streaming(sinks=8)", "sinks"),
        ("leaky_rerope(window=8)", "window"),
        ("self_extend(window=6)", "2/3"),
        ("self_extend(group=2.5)", "group"),
        ("dca(local=6)", "local"),
        ("string(local=9)", "local"),
        ("pose(target=4)", "target"),
        ("pose(target=64) + yarn", "give a fixed factor to yarn"),
        ("temperature(file='none.json')", "none.json"),
    ],
)
def test_a_wrong_extension_is_refused_with_a_sentence(extend, sentence):
    gpt = extended("rope", "logn")
    with pytest.raises(UserError, match=sentence):
        gpt.pos.extend(extend)
    assert gpt.pos.extend_text == "logn"  # the one before stays


def test_a_map_that_the_frequencies_do_not_allow_is_refused_before_the_first_step(tmp_path):
    file = written(tmp_path, {"long_factor": [1.0, 2.0]})
    with pytest.raises(UserError, match="has factors for 2 pairs, not 4"):
        build("rope").pos.extend(f"longrope(file='{file}')")


@pytest.mark.parametrize("name", [n for n in CATALOGUE.extensions if n not in CATALOGUE.schemes])
def test_a_position_scheme_may_not_name_an_extension(name):
    with pytest.raises(UserError, match=f"--extend={name}"):
        Scheme(f"rope + {OPTIONS.get(name, name)}", SHAPE, 1)


BAD_FILES = ["", "{", "[1, 2]", {}, {"scales": 3}, {"scales": [1, -1]}, {"scales": ["1", 2]}]
BAD_FILES += [{"scales": [1, 2, 3]}, {"scales": [True, 1]}, '{"scales": [1, 1e999]}']


@pytest.mark.parametrize("content", BAD_FILES)
def test_a_file_of_numbers_that_cannot_be_used_is_a_sentence_that_names_it(content, tmp_path):
    file = written(tmp_path, content)
    with pytest.raises(UserError, match="factors.json"):
        extended("rope", f"temperature(file='{file}')")
    with pytest.raises(UserError, match="factors.json"):
        extended("rope", f"longrope(file='{file}')")


def test_a_file_is_looked_for_in_the_runs_folder_first_and_read_again(tmp_path):
    (tmp_path / "run").mkdir()
    written(tmp_path, {"scales": [1, 1]})
    for scales in ([3, 2], [4, 5]):
        written(tmp_path / "run", {"scales": scales})
        gpt = model("rope")
        gpt.pos.extend(f"temperature(file='{tmp_path / 'factors.json'}')", tmp_path / "run")
        assert gpt.pos.extensions["0_temperature"].scales.tolist() == scales
    gpt.pos.extend("")  # the model is shared


def test_another_extension_replaces_the_first_and_none_restores_the_model():
    idx = tokens(2, 40)
    plain = logits(extended("rope + alibi", ""), idx)
    found = logits(extended("rope + alibi", "self_extend"), idx)
    assert not torch.equal(found, plain)
    extended("rope + alibi", "yarn(factor=4) + rerope + logn")
    assert torch.equal(logits(extended("rope + alibi", "self_extend"), idx), found)
    for none in ("none", ""):
        assert torch.equal(logits(extended("rope + alibi", none), idx), plain)
    orders = itertools.permutations(["self_extend", "logn", "resonance", "pi(factor=2)"])
    found = [logits(extended("rope + alibi", " + ".join(order)), idx) for order in orders]
    assert all(torch.equal(found[0], other) for other in found)
    extended("rope + alibi", "")


def test_pose_draws_two_chunks_of_ascending_positions():
    scheme, gaps, cuts = Scheme("rope", SHAPE, 1), set(), set()
    scheme.extend("pose(target=64)")
    for step in range(300):
        ids = scheme.draw(7, step, L).tolist()
        jumps = [n for n in range(1, L) if ids[n] != ids[n - 1] + 1]
        assert ids[0] == 0 and ids == sorted(set(ids)) and ids[-1] < 64 and len(jumps) <= 1
        gaps.add(ids[-1] - L + 1)
        cuts.update(jumps)
    assert min(gaps) == 0 and max(gaps) > 50 and cuts == set(range(1, L))


@pytest.mark.parametrize("pos", ["rope", "alibi", "sinusoidal"])
def test_a_learned_curve_of_positions_has_its_gradient_and_each_layer_may_have_its_own(pos):
    gpt, idx = build(pos, 2), tokens(2, 5 * L)
    weights = torch.randn(17, dtype=torch.float64)
    gpt.pos.extend("smooth(kind=sqrt)")
    fixed = logits(gpt, idx)
    gpt.pos.extend("smooth(kind=sqrt, learned=True)")
    raw = gpt.pos.extensions["0_smooth"].double().log_factor
    assert_close(logits(gpt, idx), fixed)
    (gradient,) = torch.autograd.grad((logits(gpt, idx) @ weights).sum(), [raw])
    ends = []
    for number in (1e-3, -1e-3):
        raw.data.fill_(number)
        ends.append(float((logits(gpt, idx) @ weights).sum()))
    assert float(gradient) == pytest.approx((ends[0] - ends[1]) / 2e-3, rel=0.02)
    text = "smooth(kind=sqrt, learned=True, per_layer=True)"
    if pos == "sinusoidal":
        with pytest.raises(UserError, match="vectors for whole positions only"):
            gpt.pos.extend(text)
        return
    gpt.pos.extend(text)
    assert len([name for name, _ in gpt.named_parameters() if "log_factor" in name]) == 2
    assert_close(logits(gpt, idx), fixed)


def test_integers_of_eight_bits_are_within_half_a_step():
    piece = CATALOGUE.find("int8")()
    x = torch.randn(2, 3, 5, 8)
    numbers, scale = piece.pack(x)
    assert numbers.dtype == torch.int8
    step = x.abs().amax(-1, keepdim=True) / 127  # of each head and token
    assert ((piece.unpack(numbers, scale) - x).abs() <= 0.5001 * step).all()
    assert torch.equal(piece.unpack(*piece.pack(0 * x)), 0 * x)


@pytest.mark.parametrize("extend", ["yarn(alpha=2, beta=2, ramp=turns)", "llama3(low=2, high=2)"])
def test_a_ramp_without_width_is_a_step(extend):
    scheme = extended("rope", extend).pos
    piece = next(iter(scheme.extensions.values()))
    turns = torch.tensor([1.0, 2.0, 3.0], dtype=torch.double)  # within L; 2 is on the edge
    inv_freq = 2 * math.pi * turns / L
    mapped, _ = piece.map_frequencies(inv_freq, 1e4, 4 * L, None)
    assert (mapped / inv_freq).tolist() == pytest.approx([0.25, 0.25, 1])
