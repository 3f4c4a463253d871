"""Position schemes: the pure functions against published numbers and other libraries, and the grammar that names schemes."""

import math
import os
from decimal import Decimal, getcontext
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import posenc
from configurable import UserError
from model import GPT, GPTConfig
from posenc import Shape, Text, alibi_slopes, rope_frequencies, rotate, sinusoids, t5_buckets
from positions.catalogue import ZOO, extension_names, find, scheme_names
from positions.scheme import Scheme

TEXT = Text(torch.zeros(1, 9, dtype=torch.long), 9)

SHAPE = Shape(n_head=4, head_dim=8, width=32, length=16)
FAR = 1_048_575  # the last position of a text of 2^20 tokens
PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")


def scheme(text: str, n_layer: int = 3, **options: object) -> Scheme:
    return Scheme(text, SHAPE, n_layer, **options)


def layers(text: str, n_layer: int = 4) -> list[str]:
    """The names of the pieces of each layer: "rope alibi" where two act together."""
    return [
        " ".join(posenc.scheme_name(type(built.pieces[key])) for key in keys)
        for built in [scheme(text, n_layer)]
        for keys in built.layers
    ]


def refusal(text: str, n_layer: int = 3, **options: object) -> str:
    """The sentence with which an expression is refused."""
    with pytest.raises(UserError) as caught:
        scheme(text, n_layer, **options)
    return str(caught.value)


def exact_angle(position: int, base: int, m: int, width: int) -> float:
    """position x base^(-2m/width), reduced to one turn, with 60 digits."""
    getcontext().prec = 60
    return float(position * Decimal(base) ** (Decimal(-2 * m) / width) % (2 * PI))


# ALiBi's slopes


EIGHT = [2.0**-n for n in range(1, 9)]  # the published slopes of 8 heads: 1/2 ... 1/256


@pytest.mark.parametrize(
    "n_head, slopes",
    [
        (1, [1 / 256]),
        (2, [1 / 16, 1 / 256]),
        (6, [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]),
        (8, EIGHT),
        (12, [*EIGHT, 0.70710678, 0.35355339, 0.17677670, 0.08838835]),
        (
            16,
            [
                0.70710678,
                0.5,
                0.35355339,
                0.25,
                0.17677670,
                0.125,
                0.08838835,
                0.0625,
                0.04419417,
                0.03125,
                0.02209709,
                0.015625,
                0.01104854,
                0.0078125,
                0.00552427,
                0.00390625,
            ],
        ),
    ],
)
def test_the_slopes_of_alibi_are_the_published_ones(n_head, slopes):
    assert alibi_slopes(n_head).tolist() == pytest.approx(slopes, rel=1e-6)


@pytest.mark.parametrize("n_head", [1, 2, 3, 5, 6, 7, 8, 12, 14, 20, 25, 32, 40, 71])
def test_the_slopes_of_alibi_are_those_of_bloom(n_head):
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    theirs = bloom.build_alibi_tensor(torch.ones(1, 5), n_head, torch.float32)  # (H, 1, 5): + m_h j
    torch.testing.assert_close(
        alibi_slopes(n_head)[:, None] * torch.arange(5), theirs[:, 0], rtol=1e-6, atol=0
    )


# T5's buckets


def test_the_buckets_of_t5_start_where_the_published_ones_do():
    starts = [*range(17), 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]
    buckets = t5_buckets(torch.arange(5000))
    assert buckets.dtype == torch.int64
    assert [int((buckets == b).nonzero()[0]) for b in range(32)] == starts
    assert (buckets.diff() >= 0).all() and buckets[-1] == 31


@pytest.mark.parametrize(
    "buckets, max_distance",
    [(32, 128), (32, 64), (32, 256), (16, 128), (8, 5), (32, 17), (64, 1000), (2, 9)],
)
def test_the_buckets_of_t5_are_those_of_transformers(buckets, max_distance):
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    distance = torch.arange(3 * max_distance + 10)
    theirs = t5.T5Attention._relative_position_bucket(
        -distance, bidirectional=False, num_buckets=buckets, max_distance=max_distance
    )
    assert torch.equal(t5_buckets(distance, buckets, max_distance), theirs)


@pytest.mark.slow
@pytest.mark.parametrize("max_distance", [64, 128, 256, 1024])
def test_the_compiler_moves_no_bucket_of_t5(max_distance):
    """Where a logarithm meets a whole number, another logarithm may round to the other side."""
    distance = torch.arange(5000)
    compiled = torch.compile(t5_buckets)(distance, 32, max_distance)
    assert torch.equal(compiled, t5_buckets(distance, 32, max_distance))


def test_an_entry_of_t5_that_training_cannot_reach_is_not_made_by_default():
    """max_distance is half the training length, so that distances below the training length meet every bucket."""
    built = Scheme("t5", Shape(4, 8, 32, 128), 1).pieces["0_t5"]
    assert built.max_distance == 64
    assert t5_buckets(
        torch.arange(128), built.buckets, built.max_distance
    ).unique().tolist() == list(range(32))


# Rotations


def test_the_frequencies_of_rope_are_powers_of_the_base():
    inv_freq, factor = rope_frequencies(64, 10000.0)
    assert inv_freq.dtype == torch.float64 and factor == 1.0
    assert inv_freq.tolist() == pytest.approx([10000 ** (-m / 32) for m in range(32)], rel=1e-14)


@pytest.mark.parametrize("head_dim", [7, 1, 0, -2])
def test_an_odd_or_empty_dimension_is_refused(head_dim):
    with pytest.raises(UserError, match="even"):
        rope_frequencies(head_dim)


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(
        *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(len(shape))
    )


@pytest.mark.parametrize(
    "layout, pairs", [("half", [(0, 3), (1, 4), (2, 5)]), ("interleaved", [(0, 1), (2, 3), (4, 5)])]
)
def test_a_rotation_turns_each_pair_by_its_own_angle(layout, pairs):
    x = numbers(4, 8)
    expected = x.clone()  # columns 6 and 7 lie past 2F: unchanged
    for t, p in enumerate((0, 1, 5, 40)):
        for m, (a, b) in enumerate(pairs):
            angle = p * 100.0 ** (-2 * m / 6)
            expected[t, a] = x[t, a] * math.cos(angle) - x[t, b] * math.sin(angle)
            expected[t, b] = x[t, b] * math.cos(angle) + x[t, a] * math.sin(angle)
    turned = rotate(x, torch.tensor([0, 1, 5, 40]), rope_frequencies(6, 100.0)[0], layout)
    torch.testing.assert_close(turned, expected, rtol=0, atol=1e-6)  # the tables are float32
    assert torch.equal(turned[:, 6:], x[:, 6:]) and turned.dtype == torch.float64


def test_the_half_layout_is_that_of_llama():
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    config = pytest.importorskip("transformers").LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        num_hidden_layers=1,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
    )
    q, k, positions = numbers(2, 4, 9, 16).float(), numbers(4, 9, 16)[None].float(), torch.arange(9)
    cos, sin = llama.LlamaRotaryEmbedding(config)(q, positions[None])
    theirs = llama.apply_rotary_pos_emb(q, k, cos, sin)
    for x, turned in zip((q, k), theirs, strict=True):
        torch.testing.assert_close(
            rotate(x, positions, rope_frequencies(16, 5000.0)[0]), turned, rtol=0, atol=2e-6
        )


def test_the_interleaved_layout_is_that_of_gptj_with_the_tail_left_alone():
    gptj = pytest.importorskip("transformers.models.gptj.modeling_gptj")
    x, positions = numbers(2, 9, 4, 16).float(), torch.arange(9)  # theirs is (B, T, H, D)
    sin, cos = gptj.create_sinusoidal_positions(9, 8).chunk(2, -1)
    head = gptj.apply_rotary_pos_emb(x[..., :8], sin.expand(2, 9, 4), cos.expand(2, 9, 4))
    theirs = torch.cat((head, x[..., 8:]), -1).transpose(1, 2)
    ours = rotate(x.transpose(1, 2), positions, rope_frequencies(8)[0], "interleaved")
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-6)


def test_a_fraction_is_the_partial_rotation_of_gpt_neox():
    neox = pytest.importorskip("transformers.models.gpt_neox.modeling_gpt_neox")
    config = pytest.importorskip("transformers").GPTNeoXConfig(
        hidden_size=64,
        num_attention_heads=4,
        num_hidden_layers=1,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25,
        },
    )
    q, positions = numbers(2, 4, 9, 16).float(), torch.arange(9)
    cos, sin = neox.GPTNeoXRotaryEmbedding(config)(q, positions[None])
    assert cos.shape[-1] == 4
    theirs, _ = neox.apply_rotary_pos_emb(q, q, cos, sin)
    turns = (
        Scheme("rope(fraction=0.25)", Shape(4, 16, 64, 9), 1).pieces["0_rope"].turn(positions, 9)
    )
    for turn in turns:
        torch.testing.assert_close(turn(q), theirs, rtol=0, atol=2e-6)


def test_the_layouts_are_one_function_of_permuted_columns():
    x, positions, inv_freq = (
        numbers(2, 5, 10),
        torch.tensor([0, 3, 4, 90, 1000]),
        rope_frequencies(8)[0],
    )
    order = torch.tensor(
        [0, 4, 1, 5, 2, 6, 3, 7, 8, 9]
    )  # the column of the half layout that stands at each interleaved place
    half, interleaved = (
        rotate(x, positions, inv_freq, "half"),
        rotate(x[..., order], positions, inv_freq, "interleaved"),
    )
    assert torch.equal(half[..., order], interleaved)
    assert not torch.allclose(rotate(x, positions, inv_freq, "interleaved"), half)


def test_a_score_depends_on_the_distance_only():
    q, k, inv_freq = numbers(8), numbers(1, 8)[0], rope_frequencies(8)[0]
    scores = [
        rotate(q[None], torch.tensor([p + 7]), inv_freq)
        @ rotate(k[None], torch.tensor([p]), inv_freq).T
        for p in (0, 1, 1000, FAR - 7)
    ]
    assert max(scores) - min(scores) < 1e-6


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("heads", [(), (3,)], ids=["(B,T,D)", "(B,H,T,D)"])
def test_positions_may_differ_between_the_sequences_of_a_batch(layout, heads):
    x, inv_freq = numbers(2, *heads, 5, 8), rope_frequencies(8)[0]
    positions = torch.tensor([[0, 1, 2, 3, 4], [3, 7, 7, 20, 500]])
    each = torch.stack(
        [rotate(row, p, inv_freq, layout) for row, p in zip(x, positions, strict=True)]
    )
    assert torch.equal(rotate(x, positions, inv_freq, layout), each)


@pytest.mark.parametrize("base", [10000, 500000])
def test_angles_are_exact_a_million_tokens_away(base):
    cos, sin = posenc.cos_sin(torch.tensor([FAR - 1, FAR]), rope_frequencies(64, float(base))[0])
    assert cos.dtype == sin.dtype == torch.float32
    for row, position in enumerate((FAR - 1, FAR)):
        angles = [exact_angle(position, base, m, 64) for m in range(32)]
        assert cos[row].tolist() == pytest.approx([math.cos(a) for a in angles], abs=1e-6)
        assert sin[row].tolist() == pytest.approx([math.sin(a) for a in angles], abs=1e-6)


@pytest.mark.parametrize("text", ["rope", "rope(layout=interleaved)", "rope(fraction=0.5)"])
def test_rotations_survive_a_cast_of_the_module_to_bfloat16(text):
    x, far = torch.eye(8, dtype=torch.float64), torch.full((8,), FAR)
    exact = [turn(x) for turn in scheme(text).pieces["0_rope"].turn(far, FAR + 1)]
    cast = [turn(x) for turn in scheme(text).to(torch.bfloat16).pieces["0_rope"].turn(far, FAR + 1)]
    assert all(torch.equal(a, b) for a, b in zip(exact, cast, strict=True))
    assert float(exact[0][0, 0]) == pytest.approx(math.cos(FAR), abs=1e-6)


def test_slopes_and_sinusoids_survive_a_cast_of_the_module_to_bfloat16():
    like, h = torch.empty(0), torch.arange(4)
    bias = scheme("alibi").to(torch.bfloat16).pieces["0_alibi"].bias(like)
    assert bias(h, torch.tensor(FAR), torch.tensor(0)).tolist() == [
        -FAR / 4,
        -FAR / 16,
        -FAR / 64,
        -FAR / 256,
    ]
    embedded = scheme("sinusoidal(scale=1)").to(torch.bfloat16).embed(torch.tensor([FAR]), TEXT)
    assert embedded.dtype == torch.float32
    assert float(embedded[0, 0]) == pytest.approx(
        math.sin(exact_angle(FAR, 10000, 0, 32)), abs=1e-6
    )


def test_sinusoids_are_all_sines_then_all_cosines():
    table = sinusoids(torch.tensor([0, 1, 7, FAR]), 6, 100.0)
    assert table.shape == (4, 6) and table.dtype == torch.float32
    for row, p in zip(table.tolist(), (0, 1, 7, FAR), strict=True):
        angles = [exact_angle(p, 100, m, 6) for m in range(3)]
        assert row == pytest.approx(
            [math.sin(a) for a in angles] + [math.cos(a) for a in angles], abs=1e-6
        )


def test_sinusoids_of_an_odd_width_are_refused():
    with pytest.raises(UserError, match="even"):
        sinusoids(torch.arange(3), 7)
    with pytest.raises(UserError, match="n_embd"):
        Scheme("sinusoidal", Shape(1, 7, 7, 16), 1)


def test_the_default_scale_of_sinusoidal_is_a_tenth():
    assert torch.equal(
        scheme("sinusoidal").embed(torch.arange(9), TEXT), 0.1 * sinusoids(torch.arange(9), 32)
    )


# The grammar: which piece acts where


@pytest.mark.parametrize(
    "text, expected",
    [
        ("alibi", ["alibi"] * 4),
        ("rope + alibi", ["rope alibi"] * 4),
        ("rope | alibi", ["rope", "alibi", "rope", "alibi"]),
        ("rope | alibi | nope", ["rope", "alibi", "nope", "rope"]),
        ("rope | rope | rope | nope", ["rope", "rope", "rope", "nope"]),
        ("rope + alibi | nope", ["rope alibi", "nope", "rope alibi", "nope"]),
        ("nope | rope + alibi", ["nope", "rope alibi", "nope", "rope alibi"]),
        ("(rope | nope) + alibi", ["rope alibi", "nope alibi", "rope alibi", "nope alibi"]),
        ("alibi + (rope | nope | logn)", ["alibi rope", "alibi nope", "alibi logn", "alibi rope"]),
        (
            "(rope | nope) + (alibi | t5 | logn)",
            ["rope alibi", "nope t5", "rope logn", "nope alibi"],
        ),
        ("((rope))", ["rope"] * 4),
        ("randomized(max=4096) + (rope | nope)", ["randomized rope", "randomized nope"] * 2),
        ("window(size=2) + logn + t5 + rope", ["window logn t5 rope"] * 4),
    ],
)
def test_plus_joins_and_bar_takes_turns(text, expected):
    assert layers(text) == expected


def test_a_pattern_is_cut_at_the_number_of_layers():
    assert layers("rope | alibi | nope", n_layer=2) == ["rope", "alibi"]
    assert (
        "nope" in scheme("rope | alibi | nope", 2).describe()
    )  # what is named and not used is said
    assert [*dict(scheme("rope | alibi | t5", 2).named_parameters())] == []


@pytest.mark.parametrize(
    "text, canonical",
    [
        ("  rope", "rope"),
        ("rope+alibi", "rope + alibi"),
        ("rope|rope|nope", "rope | rope | nope"),
        ("(rope+alibi)|nope", "rope + alibi | nope"),
        ("alibi+(rope|nope)", "alibi + (rope | nope)"),
        ("rope( base = 5e5,fraction=.25 )", "rope(base=500000.0, fraction=0.25)"),
        ("window(sinks=1,size=4)", "window(sinks=1, size=4)"),
    ],  # `rope()` is refused: it would be a second spelling
)
def test_the_canonical_text_is_one_spelling_and_stays_as_it_is(text, canonical):
    assert scheme(text).text == canonical
    assert scheme(canonical).text == canonical
    assert scheme(canonical).layers == scheme(text).layers


def test_the_layers_of_a_mention_share_its_parameters():
    assert [name for name, _ in scheme("t5").named_parameters()] == ["pieces.0_t5.table"]
    shared = scheme("t5 | rope", 4)
    assert shared.layers[0] == shared.layers[2] and len(list(shared.parameters())) == 1


def test_per_layer_gives_each_layer_parameters_of_its_own():
    tables = list(scheme("t5(per_layer=True, buckets=4)", 3).parameters())
    assert [tuple(t.shape) for t in tables] == [(4, 4)] * 3 and len(
        {t.data_ptr() for t in tables}
    ) == 3
    assert len(list(scheme("t5(per_layer=True) | nope", 4).parameters())) == 2
    assert len(list(scheme("t5(per_layer=False)", 3).parameters())) == 1


def test_two_mentions_of_one_name_are_two_pieces():
    assert len(list(scheme("t5 | t5", 4).parameters())) == 2
    bases = [
        scheme("rope(base=10) | rope(base=20)", 2).pieces[key].base for key in ("0_rope", "1_rope")
    ]
    assert bases == [10, 20]


def test_per_layer_is_an_option_of_every_piece_that_acts_in_layers():
    early = {
        name
        for name in scheme_names()
        if any(posenc.overrides(find(name), q) for q in ("ids", "embed"))
    }
    assert (
        {"learned", "sinusoidal", "randomized"} <= early < set(scheme_names())
    )  # these act once, before the first layer
    needed = {"window": "size=2, "}
    for name in set(scheme_names()) - early:
        assert len(scheme(f"{name}({needed.get(name, '')}per_layer=True)", 3).pieces) == 3


@pytest.mark.parametrize(
    "text",
    [
        "learned(per_layer=True)",
        "sinusoidal(per_layer=True)",
        "randomized(max=64, per_layer=True) + rope",
    ],
)
def test_what_acts_before_the_first_layer_cannot_be_per_layer(text):
    """A table per layer of which only the first is used would be dead parameters."""
    assert "per_layer" in refusal(text)


@pytest.mark.parametrize(
    "text",
    [
        "randomized(max=4096) + rope | nope",
        "rope | randomized(max=4096)",
        "learned | rope",
        "rope | sinusoidal",
        "(learned | sinusoidal) + rope",
        "rope + (nope | randomized(max=64))",
    ],
)
def test_a_piece_that_acts_before_the_first_layer_stands_in_no_pattern(text):
    assert "before the first layer" in refusal(text)


@pytest.mark.parametrize(
    "text, words",
    [
        ("rope + rope", "rope"),
        ("rope + alibi + rope(base=2)", "rope"),
        ("t5 + t5(buckets=4)", "t5"),
        ("alibi + (rope | alibi)", "alibi"),
        ("window(size=4) + window(size=8)", "window"),
        ("randomized(max=64) + randomized(max=64)", "randomized"),
        ("learned + sinusoidal", "learned and sinusoidal"),
        ("sinusoidal + rope + learned", "sinusoidal and learned"),
    ],
)
def test_a_double_or_a_clash_is_refused(text, words):
    assert words in refusal(text)


def test_a_clash_past_the_last_layer_is_no_clash_here():
    assert layers("rope | alibi + rope", 1) == ["rope"]
    assert "rope" in refusal("rope | alibi + rope + rope", 2)


def test_more_positions_than_a_table_has_are_refused():
    for text in (
        "randomized(max=64) + learned",
        "learned + randomized(max=64)",
        "randomized(max=64) + learned(rows=63)",
    ):
        assert "64" in refusal(text)
    assert scheme("randomized(max=64) + learned(rows=64)").limit == 64


def test_the_limit_is_the_longest_total_length_defined():
    assert scheme("learned").limit == 16 and scheme("learned(rows=40) + rope").limit == 40
    assert scheme("randomized(max=64) + rope").limit == 64
    assert all(
        scheme(text).limit is None
        for text in ("nope", "rope", "alibi + t5", "sinusoidal", "logn", "window(size=2)")
    )
    with pytest.raises(UserError, match="17 tokens"):
        scheme("learned").check_length(17)
    scheme("learned").check_length(16)


# The grammar: what is refused


@pytest.mark.parametrize(
    "wrong, right",
    [
        ("alib", "alibi"),
        ("ropee", "rope"),
        ("sinusodal", "sinusoidal"),
        ("kerpl", "kerple"),
        ("t_5", "t5"),
        ("Rope", "rope"),
        ("learnt", "learned"),
        ("randomised(max=64)", "randomized"),
        ("rope + alibbi", "alibi"),
    ],
)
def test_a_wrong_name_is_answered_with_the_nearest_right_one(wrong, right):
    assert f"did you mean {right}?" in refusal(wrong)


def test_a_name_that_is_near_to_none_is_answered_with_the_way_to_add_it():
    sentence = refusal("qqqqqqqq")
    assert "did you mean" not in sentence and "pos_file" in sentence and "alibi" in sentence


@pytest.mark.parametrize(
    "text", ["nope | rope | ropee", "nope | rope | window", "nope | rope | rope(bse=1)"]
)
def test_a_mistake_in_a_branch_that_no_layer_takes_is_refused_all_the_same(text):
    refusal(text, n_layer=2)


@pytest.mark.parametrize(
    "text, words",
    [
        ("rope(bse=1)", ["rope", "bse", "base: float", "fraction: float", "layout: str"]),
        ("alibi(slopes=1)", ["slopes", "learned: bool"]),
        ("nope(x=1)", ["nope", "x", "none"]),
        ("logn(base=2)", ["logn", "base", "none"]),
        ("kerple(form=log)", ["form", "kind: str"]),
        ("window", ["needs size", "size: int", "sinks: int"]),
        ("window(sinks=2)", ["size: int"]),
        ("randomized + rope", ["max: int"]),
        ("rope(base=big)", ["base=big", "base: float"]),
        ("rope(base=True)", ["base"]),
        ("rope(layout=3)", ["layout=3", "layout: str"]),
        ("window(size=2.5)", ["size=2.5", "size: int"]),
        ("window(size=True)", ["size=True"]),
        ("alibi(learned=yes)", ["learned=yes", "learned: bool"]),
        ("alibi(learned=1)", ["learned=1"]),
        ("rope(per_layer=1)", ["per_layer"]),
        ("rope(layout=sideways)", ["half", "interleaved", "sideways"]),
        ("kerple(kind=cubic)", ["log", "power", "cubic"]),
        ("randomized(max=64, test=maybe)", ["spread", "draw", "maybe"]),
    ],
)
def test_a_wrong_or_missing_option_lists_the_options(text, words):
    assert all(word in refusal(text) for word in words)


def test_a_whole_number_for_a_real_option_arrives_as_a_real_number():
    """A scheme that makes a tensor of its option gets a tensor that can be trained."""
    base = scheme("rope(base=500000)").pieces["0_rope"].base
    assert base == 500000 and type(base) is float
    assert type(scheme("window(size=3)").pieces["0_window"].span[0]) is int


@pytest.mark.parametrize(
    "text",
    [
        "rope(fraction=0)",
        "rope(fraction=1.5)",
        "rope(fraction=-0.5)",
        "rope(base=0)",
        "rope(base=-10000)",
        "rope(base=-0.0)",
        "sinusoidal(base=0)",
        "window(size=0)",
        "window(size=-1)",
        "window(size=2, sinks=-1)",
        "learned(rows=0)",
        "learned(rows=-3)",
        "t5(buckets=1)",
        "t5(buckets=7)",
        "t5(buckets=0)",
        "t5(buckets=-2)",
        "t5(max_distance=16)",
        "t5(max_distance=-1)",
        "randomized(max=15)",
        "rope(fraction=0.01)",
        "rope(fraction=0.4)",
    ],
)
def test_an_option_out_of_its_range_is_refused(text):
    refusal(text)


def test_a_fraction_that_leaves_an_odd_number_of_columns_is_refused():
    assert "even" in refusal("rope(fraction=0.4)")  # 3 of the 8 columns
    assert "even" in refusal("rope(fraction=0.125)")


@pytest.mark.parametrize(
    "value",
    [
        "nan",
        "inf",
        "1e309",
        "-1e309",
        "1e400",
        "9" * 400,
        "-" + "9" * 400,
        "1j",
        "None",
        "...",
        "b'half'",
        "f'half'",
        "10**3",
        "1 + 1",
        "[1]",
        "(1, 2)",
        "{}",
        "x.y",
        "x[0]",
        "f(1)",
        "lambda: 1",
        "(x := 1)",
        "-half",
        "not True",
        "~1",
        "+1",
        "--1",
        "1 if 2 else 3",
    ],
)
def test_a_value_that_is_no_finite_literal_or_word_is_refused(value):
    refusal(f"rope(base={value})")


@pytest.mark.parametrize(
    "text",
    [
        "rope(base=1, base=2)",
        "rope(per_layer=True, per_layer=False)",
        "window(size=2, sinks=1, size=4)",
    ],
)
def test_an_option_given_twice_is_refused(text):
    refusal(text)


@pytest.mark.parametrize(
    "text",
    [
        "learned(rows=1000000000000000)",
        "learned(rows=9223372036854775808)",
        "t5(buckets=1000000000000000000)",
        "learned(rows=1" + "0" * 300 + ")",
    ],
)
def test_a_table_that_no_memory_holds_is_refused(text):
    refusal(text)


@pytest.mark.parametrize(
    "text",
    ["randomized(max=4611686018427387904) + rope", "randomized(max=1" + "0" * 30 + ") + rope"],
)
def test_positions_that_no_integer_holds_are_refused(text):
    """Where they are accepted, index x max must not overflow: ids stay below max and ascend."""
    try:
        ids = scheme(text).ids(torch.arange(16), 16)
    except UserError:
        return
    assert (ids.diff() > 0).all() and ids[0] == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "+",
        "rope +",
        "| rope",
        "rope alibi",
        "rope,",
        "rope, alibi",
        "[rope]",
        "{rope}",
        "rope * 2",
        "2 * rope",
        "rope - alibi",
        "rope & alibi",
        "rope ^ alibi",
        "rope or alibi",
        "not rope",
        "-rope",
        "~rope",
        "rope == alibi",
        "rope < alibi",
        "rope if 1 else alibi",
        "lambda: rope",
        "rope.alibi",
        "rope[0]",
        "rope(1)",
        "rope(10000.0, 1.0)",
        "rope(*a)",
        "rope(**a)",
        "rope()()",
        "rope(base=1)(base=2)",
        "(rope + alibi)(base=1)",
        "1",
        "'rope'",
        "True",
        "None",
        "rope = alibi",
        "rope; alibi",
        "import os",
        "rope\n+alibi",
        "ro pe",
        "rope(",
        "rope)",
        "rope(base=)",
        "rope(=1)",
        "rope(base 1)",
        "x := rope",
        "yield rope",
        "await rope",
        "f'{rope}'",
        "rope\0",
        "\\",
        "$(rope)",
        "`rope`",
        "rope @ alibi",
        "rope // alibi",
        "rope << alibi",
    ],
)
def test_what_is_no_expression_is_refused_with_a_sentence(text):
    assert refusal(text)


def test_a_parse_error_reminds_of_quoting():
    assert "quoted" in refusal("rope +") and "'--pos=" in refusal("rope +")


def test_length_and_alphabet_are_bounded():
    longest = "rope" + " + rope" * 70  # 494 characters
    assert "twice" in refusal(longest) and "500" in refusal(longest + " + rope")
    for text in ("röpe", "rope\u200b", "ｒｏｐｅ", "rope + alibi\u00a0"):
        assert "ASCII" in refusal(text)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 249 + "rope" + ")" * 247,
        "-" * 496 + "rope",
        "~" * 496 + "rope",
        "not " * 120 + "rope",
        "rope" + ".a" * 240,
        "rope" + "()" * 240,
        "rope" + "[0]" * 160,
        "rope(base=" + "-" * 480 + "1)",
        "rope(base=" + "(" * 200 + "1" + ")" * 200 + ")",
        "|".join("a" * 250),
        "+".join("a" * 250),
        "t5+" * 165 + "t5",
        "a(x=" * 95 + "1" + ")" * 95,
        "a|(" * 120 + "a" + ")" * 120,
        "a+(" * 120 + "a" + ")" * 120,
        "lambda:" * 70 + "1",
        "[" * 200 + "]" * 200,
        "a if a else " * 40 + "a",
        "f(" * 160 + ")" * 160,
        "a**" * 160 + "a",
    ],
    ids=lambda text: text[:14],
)
def test_deep_nesting_is_refused_with_a_sentence(text):
    assert len(text) <= 500
    refusal(text)


def test_a_long_pattern_is_built():
    assert layers("|".join(["t5", "nope"] * 60), 3) == ["t5", "nope", "t5"]


@pytest.mark.parametrize(
    "attack",
    [
        "__import__('os').mkdir('{0}')",
        "rope(base=__import__('os').mkdir('{0}'))",
        "rope(base=(lambda: open('{0}', 'w'))())",
        "f\"{{open('{0}', 'w')}}\"",
        "rope(layout=f\"{{open('{0}', 'w')}}\")",
        "open('{0}', 'w')",
        "open(file='{0}', mode='w')",
        "exec(source=\"open('{0}', 'w')\")",
        "rope(base=[open('{0}', 'w') for x in (1,)])",
        "rope if open('{0}', 'w') else rope",
        "(rope := open('{0}', 'w'))",
        "rope + open('{0}', 'w')",
        "rope | open(file='{0}', mode='w')",
        "__builtins__",
        "sys.exit()",
        "exit()",
        "rope.__init__.__globals__",
        "rope(layout=__file__)",
        "Piece",
        "piece",
        "_Piece",
        "load_file(path='{0}')",
        "Scheme(text='rope')",
    ],
)
def test_nothing_in_an_expression_is_executed(attack, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refusal(attack.format("made"))
    assert os.listdir(tmp_path) == []


def test_a_name_reaches_no_file_outside_the_zoo(tmp_path, monkeypatch):
    """Names are looked up among the zoo's own files, never imported as modules."""
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'made')!r}, 'w')", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    for text in ("evil", "conftest", "torch", "antigravity", "configurable"):
        assert "no position scheme" in refusal(text)
    assert not (tmp_path / "made").exists()


OPTIONS = {
    "rope": ["base", "fraction", "layout"],
    "sinusoidal": ["base", "scale"],
    "learned": ["rows"],
    "alibi": ["learned"],
    "t5": ["buckets", "max_distance"],
    "window": ["size", "sinks"],
    "randomized": ["max", "test"],
    "kerple": ["kind"],
}
VALUES = st.sampled_from(
    [
        "0",
        "1",
        "2",
        "3",
        "-1",
        "0.5",
        "16",
        "64",
        "1e-300",
        "1e308",
        "1e400",
        "9" * 30,
        str(2**63),
        "half",
        "interleaved",
        "log",
        "power",
        "draw",
        "True",
        "False",
        "None",
        "'half'",
        "1j",
        "-half",
        "nan",
        "x.y",
        "(1)",
        "[1]",
    ]
)


@st.composite
def mention(draw) -> str:
    """A scheme, or nearly one, with some options, mostly its own."""
    name = draw(st.sampled_from([*scheme_names(), "ropee"]))
    option = st.sampled_from([*OPTIONS.get(name, []) * 3, "per_layer", "x"])
    options = draw(st.lists(st.builds("{}={}".format, option, VALUES), max_size=3))
    return f"{name}({', '.join(options)})" if options else name


MENTION = mention()
EXPRESSION = st.recursive(
    MENTION,
    lambda inner: st.one_of(
        st.builds("{} + {}".format, inner, inner),
        st.builds("{} | {}".format, inner, inner),
        st.builds("({})".format, inner),
    ),
    max_leaves=6,
)
NOISE = st.one_of(st.text(max_size=40), st.text("ropealibt5+|()=,.1e-'\" \n#:[]{}*@~", max_size=60))


@hypothesis_settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(st.one_of(EXPRESSION, EXPRESSION, NOISE), st.integers(1, 5))
@example("randomized(max=64) + (learned(rows=64) | rope)", 3)
def test_any_text_is_built_as_it_says_or_refused_with_a_sentence(text, n_layer):
    try:
        built = scheme(text, n_layer)
    except UserError as error:
        assert len(str(error)) > 10
        return
    assert len(built.layers) == n_layer and scheme(built.text, n_layer).layers == built.layers
    for keys in built.layers:  # nothing is there that is not named, and nothing twice
        kinds = [posenc.scheme_name(type(built.pieces[key])) for key in keys]
        assert all(kind in text for kind in kinds) and len(set(kinds)) == len(kinds)


# Randomized positions


@pytest.mark.parametrize("step", [0, 1, 77, 10**6])
def test_a_draw_is_sorted_and_without_repeats(step):
    ids = scheme("randomized(max=40) + rope").draw(seed=3, step=step, length=16)
    assert ids.shape == (16,) and ids.dtype == torch.int64
    assert (ids.diff() > 0).all() and ids[0] >= 0 and ids[-1] < 40


def test_a_draw_is_a_function_of_seed_and_step():
    built = scheme("randomized(max=4096) + rope")
    assert torch.equal(built.draw(3, 5, 16), scheme("randomized(max=4096) + alibi").draw(3, 5, 16))
    draws = {
        tuple(built.draw(seed, step, 16).tolist()) for seed in (0, 1, 3, 1337) for step in range(25)
    }
    assert len(draws) == 100


def test_a_draw_leaves_the_global_random_state_alone():
    before = torch.random.get_rng_state()
    scheme("randomized(max=4096)").draw(1, 2, 16)
    assert torch.equal(before, torch.random.get_rng_state())


def test_every_position_is_drawn_equally_often():
    built = scheme("randomized(max=32)")
    counts = torch.stack(
        [torch.bincount(built.draw(1, step, 16), minlength=32) for step in range(400)]
    ).sum(0)
    assert counts.min() > 150 and counts.max() < 250  # 200 expected, standard deviation 10


def test_a_draw_longer_than_the_positions_there_are_is_refused():
    assert scheme("randomized(max=16)").draw(1, 2, 16).tolist() == list(range(16))
    with pytest.raises(UserError):
        scheme("randomized(max=16)").draw(1, 2, 17)


def test_only_random_positions_are_drawn():
    assert all(scheme(text).draw(1, 2, 16) is None for text in ("rope", "learned", "alibi + logn"))


@pytest.mark.parametrize("total", [1, 3, 6, 7, 64])
def test_at_test_the_ids_are_spread_evenly(total):
    ids = scheme("randomized(max=64) + rope").ids(torch.arange(total), total)
    assert ids.tolist() == [math.floor(k * 64 / total) for k in range(total)]


def test_a_drawn_test_is_fixed_for_a_length_and_read_at_the_index():
    built = scheme("randomized(max=64, test=draw) + rope")
    whole = built.ids(torch.arange(20), 20)
    assert (
        (whole.diff() > 0).all()
        and whole[-1] < 64
        and whole.tolist() != [k * 64 // 20 for k in range(20)]
    )
    assert torch.equal(built.ids(torch.tensor([4, 11]), 20), whole[[4, 11]])
    assert not torch.equal(built.ids(torch.arange(19), 19), whole[:19])


@pytest.mark.parametrize(
    "text", ["randomized(max=64) + rope", "randomized(max=64, test=draw) + rope"]
)
def test_a_place_beyond_the_total_length_has_no_random_position(text):
    """floor(k M / N) with k >= N would be an id of M or more, which training never reaches and a table does not have."""
    with pytest.raises(UserError):
        scheme(text).ids(torch.tensor([0, 4]), 4)


# What a scheme says of itself


def test_the_layer_map_names_every_piece_and_its_place():
    assert scheme("rope + alibi").describe() == "all 3 layers: rope + alibi"
    text = scheme("rope | alibi", 3).describe()
    assert text.index("0: rope") < text.index("1: alibi") < text.index("2: rope")


def test_every_scheme_says_what_it_is_and_what_to_expect():
    for name in scheme_names():
        text = find(name).__doc__
        assert text and "Verdict" in text, name


def test_every_name_of_the_design_is_here():
    assert {
        "nope",
        "learned",
        "sinusoidal",
        "rope",
        "alibi",
        "t5",
        "window",
        "randomized",
        "logn",
        "kerple",
    } <= set(scheme_names())
    assert {path.stem for path in Path(ZOO).glob("*.py")} <= {
        *scheme_names(),
        *extension_names(),
    }


# Numbers that are made once


def small(pos: str, extend: str = "", n_layer: int = 2) -> GPT:
    torch.manual_seed(0)
    shape = dict(block_size=16, vocab_size=11, n_layer=n_layer, n_head=4, n_embd=32)
    gpt = GPT(GPTConfig(pos=pos, **shape))
    gpt.extend(extend)
    return gpt


def text(length: int) -> torch.Tensor:
    return torch.randint(11, (2, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("pos", ["rope", "pope", "xpos", "fope", "learned_rope", "resonance"])
def test_frequencies_are_made_once_for_a_length_and_an_extension(pos, monkeypatch):
    gpt, asked = small(pos), []
    piece = gpt.pos.rotary[0]
    make = type(piece).frequencies
    monkeypatch.setattr(
        type(piece), "frequencies", lambda p, total: (asked.append(total), make(p, total))[1]
    )
    for _ in range(3):
        gpt(text(16))
    layers = len(gpt.pos.rotary)
    assert asked == [16] * layers
    gpt(text(20))
    gpt(text(16))
    assert asked == [16] * layers + [20] * layers
    plain = gpt(text(20))[0]
    gpt.extend("yarn(factor=4)")
    asked.clear()
    assert not torch.equal(gpt(text(20))[0], plain) and 20 in asked
    gpt.extend("none")
    assert torch.equal(gpt(text(20))[0], plain)


@pytest.mark.parametrize("pos", ["sinusoidal", "alibi", "multiscale", "sandwich"])
def test_numbers_of_a_scheme_are_made_once(pos, monkeypatch):
    gpt = small(pos)
    before = gpt(text(16))[0]
    made = posenc._kept.cache_info().misses
    assert torch.equal(gpt(text(16))[0], before) and posenc._kept.cache_info().misses == made


def test_what_is_kept_is_that_of_one_piece_one_length_and_one_extension():
    models = [small("rope"), small("rope(base=50)"), small("rope", "pi(factor=2)")]
    tables = [
        [gpt.pos.rotary[0].table(torch.arange(n), n, gpt.pos.maps)[0] for n in (16, 32)]
        for gpt in (*models, small("rope", "yarn"), small("rope"))
    ]
    plain, other, slower, longer, same = tables
    assert all(torch.equal(a, b) for a, b in zip(plain, same, strict=True))
    assert not torch.equal(plain[0], other[0]) and torch.equal(slower[0], plain[0] / 2)
    assert torch.equal(longer[0], plain[0]) and not torch.equal(longer[1], plain[1])


def test_what_was_kept_under_inference_mode_can_be_trained_with():
    gpt = small("rope + alibi")
    with torch.inference_mode():
        gpt(text(13))
    gpt.extend("smooth(learned=True)")
    with torch.inference_mode():
        gpt(text(13))
    gpt(text(13), text(13))[1].backward()
    assert all(p.grad is not None for p in gpt.parameters())


def test_compiled_code_is_made_anew_for_another_extension_or_length():
    gpt = small("rope", n_layer=1)
    torch._dynamo.reset()
    compiled = torch.compile(lambda idx: gpt(idx, idx)[1], fullgraph=True, backend="aot_eager")
    cases = [("", 16), ("yarn(factor=4)", 16), ("yarn(factor=8)", 16), ("yarn", 40), ("yarn", 24)]
    for extend, length in cases:
        gpt.extend(extend)
        torch.testing.assert_close(compiled(text(length)), gpt(text(length), text(length))[1])
    torch._dynamo.reset()


def test_a_frequency_of_its_own_for_each_position_has_its_gradient():
    places, inv_freq = torch.arange(3.0, dtype=torch.float64), torch.rand(3, 2).double()
    inputs = (places.requires_grad_(), inv_freq.requires_grad_())
    found = torch.autograd.grad(sum(t.sum() for t in posenc.cos_sin(*inputs)), inputs)
    angles = places[:, None] * inv_freq
    expected = torch.autograd.grad((angles.cos() + angles.sin()).sum(), inputs)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
