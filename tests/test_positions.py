"""The grammar returns data, and every rule of the table refuses something."""

import re
from pathlib import Path

import pytest
import torch

from configurable import UserError
from posenc import Shape
from positions import extended_frequencies, rules
from positions.catalogue import find
from positions.grammar import Mention, parse
from positions.scheme import Scheme

SHAPE = Shape(n_head=4, head_dim=8, width=32, length=64)


# ---- the grammar


def test_an_expression_is_data_its_text_and_its_mentions_with_their_layers():
    found = parse("randomized( max = 64 )+(rope|t5( buckets=4 )|(nope|alibi+logn))")
    assert found.text == "randomized(max=64) + (rope | t5(buckets=4) | (nope | alibi + logn))"
    names = [mention.name for mention in found.mentions]
    assert names == ["randomized", "rope", "t5", "nope", "alibi", "logn"]
    acting = [[m.name for m in found.mentions if m.acts_in(layer)] for layer in range(5)]
    assert acting == [
        ["randomized", "rope"],
        ["randomized", "t5"],
        ["randomized", "nope"],
        ["randomized", "alibi", "logn"],
        ["randomized", "rope"],
    ]
    assert found.mentions[2] == Mention("t5", {"buckets": 4}, "t5(buckets=4)", ((1, 4),))


def test_a_pattern_inside_a_branch_goes_by_the_number_of_the_layer():
    found = parse("rope | nope + (alibi | t5)")
    acting = [[m.name for m in found.mentions if m.acts_in(layer)] for layer in range(4)]
    assert acting == [["rope"], ["nope", "t5"], ["rope"], ["nope", "t5"]]


def test_per_layer_is_an_option_of_every_mention_and_not_of_the_scheme():
    alibi, rope = parse("alibi(learned=True, per_layer=True) + rope").mentions
    assert (alibi.options, alibi.per_layer, rope.per_layer) == ({"learned": True}, True, None)
    with pytest.raises(UserError, match="per_layer is True or False"):
        parse("rope(per_layer=1)")


def test_only_the_grammar_and_the_settings_see_pythons_syntax_tree():
    root = Path(__file__).resolve().parents[1]
    core = [path for folder in ("", "positions", "runs") for path in (root / folder).glob("*.py")]
    using = [p.name for p in core if re.search(r"^import ast|^from ast", p.read_text(), re.M)]
    assert len(core) > 15 and sorted(using) == ["configurable.py", "grammar.py"]


# ---- other names of yarn


def test_frequencies_by_parts_are_those_of_yarn():
    ours = extended_frequencies("ntk_by_parts(factor=4, beta=8)", 32, train_length=128)
    yarn = extended_frequencies("yarn(factor=4, beta=8, ramp=turns)", 32, train_length=128)
    assert torch.equal(ours[0], yarn[0]) and (ours[1], yarn[1] > 1) == (1.0, True)


# ---- the rules

OWN = """
from posenc import Extension
class Jump(Extension):
    def draw(self, length, generator):
        return 2 * super().draw(length, generator)
class Halved(Extension):
    def pack(self, x):
        return (x / 2,)
    def unpack(self, x):
        return 2 * x
"""
BREAKS = [  # (pos, extend, what is said): at least one for each row of the table
    ("rope + rope", "", "rope is named twice in one layer"),
    ("shape + rfs", "", "both claim the position ids"),
    ("learned + sinusoidal", "", "both claim the token embedding"),
    ("rope + xpos", "", "both claim the rotation"),
    ("fox + cope", "", "both claim the whole score"),
    ("cope + xpos", "", "cope and xpos cannot act in one layer"),
    ("randomized(max=128) + learned", "", "gives positions up to 128, more than the 64"),
    ("randomized(max=64) + learned(resize=linear)", "", "needs the positions 0 ... N - 1"),
    ("rfs + learned", "", "vector for each whole position"),
    ("rope2d + alibi", "", "rope2d gives places in an image, and alibi reads positions along"),
    ("learned + alibi2d", "", "alibi2d gives places in an image, and learned reads positions"),
    ("rope2d + alibi2d", "", "both claim the position ids"),
    ("rope", "logn + logn", "logn is named twice: keep one"),
    ("rope", "interpolate + compress", "both change the positions"),
    ("rope", "rerope + dca", "both change the distances"),
    ("rope", "pose(target=128) + jump", "both change the positions of training"),
    ("rope", "int8 + halved", "both change the cache"),
    ("rope", "pi + yarn", "both change the frequencies"),
    ("rope", "resonance + ntk + clip", "both change the frequencies"),
    ("rope", "interpolate + yarn", "both take the text to be longer by a factor"),
    ("rope", "longrope(file='{a}') + temperature(file='{b}')", "two files of one name"),
    ("rope", "pose(target=128) + yarn", "draws positions for another length"),
    ("randomized(max=128) + rope", "yarn", "draws positions for another length"),
    ("alibi", "yarn", "there is none"),
    ("fox", "rerope", "fox makes the whole score by itself"),
    ("nope", "rerope", "no score depends on one"),
    ("nope", "interpolate(factor=2)", "nothing reads them"),
    ("learned", "interpolate(factor=2)", "learned has a vector for each whole one"),
    ("sinusoidal2d", "interpolate(factor=2)", "sinusoidal2d reads places in an image"),
    ("rope2d", "rerope", "it changes positions along a text, and rope2d reads places"),
    ("alibi2d", "pose(target=128)", "alibi2d reads places in an image"),
    ("rope2d", "yarn", "changes the frequencies of rotary pieces, and there is none"),
    ("randomized(max=128) + rope", "pose(target=128)", "both draw the positions of training"),
    ("sinusoidal", "smooth(learned=True, per_layer=True)", "cannot be per_layer here"),
    ("rope", "slopes", "it changes the slopes of alibi, and rope acts too"),
]


def refusal(pos: str, extend: str, folder: Path) -> str:
    """What a scheme and its extension are refused with; the extension may name two files."""
    own = folder / "own.py"
    own.write_text(OWN)
    files = {name: folder / name / "f.json" for name in ("a", "b")}
    for path in files.values():
        path.parent.mkdir(exist_ok=True)
        path.write_text('{"long_factor": [1, 1, 1, 1], "scales": [1, 1, 1, 1]}')
    with pytest.raises(UserError) as error:
        Scheme(pos, SHAPE, 2, own).extend(extend.format(**files))
    return str(error.value)


@pytest.mark.parametrize(("pos", "extend", "said"), BREAKS)
def test_what_does_not_go_together_is_refused_with_a_sentence(pos, extend, said, tmp_path):
    sentence = refusal(pos, extend, tmp_path)
    assert said in sentence and "\n" not in sentence


def test_every_rule_is_broken_by_one_of_these_cases(tmp_path, sentences_of_the_rules):
    said = [refusal(pos, extend, tmp_path) for pos, extend, _ in BREAKS]
    assert len(sentences_of_the_rules) > 20
    for sentence in sentences_of_the_rules:
        pattern = re.sub(r"\\\{.+?\\\}", ".+", re.escape(sentence))
        assert any(re.search(pattern, one) for one in said), sentence


def test_what_a_rule_needs_is_one_piece_and_what_it_refuses_is_any():
    yarn, rope, nope = find("yarn"), *Scheme("rope | nope", SHAPE, 2).pieces.values()
    assert rules.misfit(yarn, [nope]) and not rules.misfit(yarn, [nope, rope])
    rerope, fox = find("rerope"), *Scheme("fox", SHAPE, 1).pieces.values()
    assert not rules.misfit(rerope, [nope, rope]) and rules.misfit(rerope, [rope, fox])


def test_a_frequency_map_that_goes_last_acts_last_in_any_order():
    def table(text: str) -> torch.Tensor:
        return extended_frequencies(text, 32, train_length=128, length=1024)[0]

    found = table("yarn + resonance")
    assert torch.equal(table("resonance + yarn"), found)
    waves = 2 * torch.pi / found
    assert torch.allclose(waves, waves.round())  # whole numbers of tokens
    assert parse("resonance + yarn").text == "resonance + yarn"


def test_maps_are_passed_to_a_turn_and_not_planted_on_a_piece():
    scheme = Scheme("rope", SHAPE, 2)
    rope, ids = scheme.pieces["0_rope"], torch.arange(80)
    plain, state = rope.cos_sin(ids, 80), dict(vars(rope))
    scheme.extend("pi(factor=2)")
    assert vars(rope) == state and torch.equal(rope.cos_sin(ids, 80)[0], plain[0])
    halved = rope.cos_sin(ids, 80, scheme.maps)
    assert torch.equal(halved[0][2 * torch.arange(40)], plain[0][:40])
