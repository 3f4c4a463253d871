"""The grammar, the look-up, what goes together, and what a Scheme says of itself."""

import sys

import pytest
import torch

from attention import Options
from configurable import UserError
from posenc import Alibi, Rope, Shape, Window
from runs.checkpoint import scheme_files
from scheme import (
    Scheme,
    extension_names,
    find,
    mentions_in,
    parse,
    scheme_names,
)

SHAPE = Shape(n_head=4, turned_width=8, width=32, first_length=64)


def names_by_layer(text, n_layer=6):
    """What acts in each layer, as text."""
    expression = parse(text)
    layers = [mentions_in(expression.pattern, n) for n in range(n_layer)]
    return [" + ".join(m.name for m in mentions) for mentions in layers]


# ---- the grammar


@pytest.mark.parametrize(
    "text, layers",
    [
        ("a", "a a a a a a"),
        ("a | b", "a b a b a b"),
        ("a | b | c", "a b c a b c"),
        ("(a | b) | c", "a b c a b c"),
        ("3 * a | b", "a a a b a a"),
        ("2 * (a | b) | c", "a b a b c a"),
        ("2 * (2 * a | b)", "a a b a a b"),
        ("a | 2 * b", "a b b a b b"),
        ("1000 * a | b", "a a a a a a"),
    ],
)
def test_a_pattern_over_layers(text, layers):
    assert names_by_layer(text) == layers.split()


def test_plus_binds_tighter_than_a_pattern():
    assert names_by_layer("a + b | c", 3) == ["a + b", "c", "a + b"]
    assert names_by_layer("a + (b | c)", 3) == ["a + b", "a + c", "a + b"]
    assert names_by_layer("2 * (a + (b | c)) | d", 3) == ["a + b", "a + c", "d"]
    both = names_by_layer("(a | b) + (c | d | e)", 4)
    assert both == ["a + c", "b + d", "a + e", "b + c"]


def test_a_repeated_branch_is_one_piece_and_a_branch_written_twice_is_two():
    assert list(Scheme("2 * t5 | nope", SHAPE, 3).pieces) == ["0_t5", "1_nope"]
    assert list(Scheme("t5 | t5 | nope", SHAPE, 3).pieces) == ["0_t5", "1_t5", "2_nope"]
    keys = list(Scheme("2 * t5(per_layer=True) | nope", SHAPE, 3).pieces)
    assert keys == ["0_t5_layer0", "0_t5_layer1", "1_nope"]


@pytest.mark.parametrize(
    "text, canonical",
    [
        (" rope+alibi ", "rope + alibi"),
        ("rope(base = 1e4)|nope", "rope(base=10000.0) | nope"),
        ("a+(b|c)", "a + (b | c)"),
        ("5*(a|b)", "5 * (a | b)"),
        ("(3 * (a+b) | c)", "3 * (a + b) | c"),
        ("a(kind='log')", "a(kind='log')"),
    ],
)
def test_the_canonical_text_reads_as_itself(text, canonical):
    assert parse(text).text == canonical
    assert parse(canonical).text == canonical


def test_options_are_numbers_booleans_and_words():
    (mention,) = parse("a(x=-2, y=0.5, z=True, kind=log, per_layer=False)").mentions
    assert mention.options == {"x": -2, "y": 0.5, "z": True, "kind": "log", "per_layer": False}


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "cannot be read"),
        ("rope +", "cannot be read"),
        ("rope alibi", "quoted in a shell"),
        ("rope - alibi", "is not a position scheme: write a name"),
        ("rope * 3", "repeat a branch as in"),
        ("0 * rope", "repeat a branch as in"),
        ("True * rope", "repeat a branch as in"),
        ("-2 * rope", "repeat a branch as in"),
        ("1001 * rope", "repeat a branch as in"),
        ("501 * (rope | nope)", "repeat a branch as in"),
        ("999 * (999 * (999 * rope))", "repeat a branch as in"),
        ("rope.__class__", "is not a position scheme"),
        ("(lambda: rope)()", "is not a position scheme"),
        ("rope(2)", "with its options by name"),
        ("rope(**x)", "write each option once, as name=value"),
        ("rope(base=1, base=2)", "write each option once"),
        ("rope(base=f(1))", "a value is a number"),
        ("rope(base=10**3)", "a value is a number"),
        ("rope(base={[]: 1})", "a value is a number"),
        ("rope(layout=open('made', 'w'))", "a value is"),
        ("__import__('os').mkdir('made')", "write a name"),
        ("röpe", "at most 500 ASCII"),
        ("|".join(["rope"] * 100), "at most 500 ASCII"),  # 499 characters, canonical 697
        ("-" * 400 + "rope", "cannot be read|write a name"),
        ("(" * 300 + "a" + ")" * 150, "cannot be read"),
    ],
)
def test_a_mistake_in_an_expression_is_one_sentence_and_runs_nothing(
    text, words, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=words) as error:
        parse(text)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


# ---- the look-up


def test_every_name_is_found():
    assert {"alibi", "rope", "kerple", "fire"} <= set(scheme_names())
    assert {"yarn", "pi", "window", "self_extend"} <= set(extension_names())
    assert "yarn" not in scheme_names() and "alibi" not in extension_names()
    assert find("alibi") is Alibi


@pytest.mark.parametrize(
    "text, words",
    [
        ("alibbi", "did you mean alibi"),
        ("nope | nope | ropee", "did you mean rope"),
        ("qwertz", "your own needs --pos_file"),
        ("conftest", "no position scheme"),  # though it can be imported
        ("rope(bass=3)", "rope has no option bass; it has base, fraction"),
        ("rope(base=0.5)", "base: Input should be greater than 1"),
        ("rope(base=fast)", "base: Input should be a valid number"),
        ("rope(base=1e999)", "base: Input should be a finite number"),
        ("rope(base=nan)", "base"),
        ("rope(base=[1])", "base: Input should be a valid number"),
        ("rope(per_layer=2)", "per_layer: Input should be a valid boolean"),
        ("rope(layout=other)", "'half' or 'interleaved'"),
        ("rope(fraction=1.5)", "fraction"),
        ("rope(fraction=0.3)", "needs an even dimension, not 2|even"),
        ("alibi(learned=1)", "learned: Input should be a valid boolean"),
        ("window", "size: Field required"),
        ("window(size=0)", "size: .* 1 to 2"),
        ("window(size=0.0)", "over 0"),
        ("window(size=33.0)", "a share of the training length, over 0 and at most 32"),
        ("window(size=True)", "size: Input should be a valid"),
        ("rope_id(shortest=32)", "below L / 2"),
        ("learned(per_layer=True)", "per_layer"),
        ("learned(rows=1000000000000)", "rows"),
        ("kerple(kind=cubic)", "log"),
        ("window(size=1e999)", "size: Input should be a finite number"),
        ("sink(per_layer=1)", "valid boolean. Its options: per_layer"),
        ("t5(buckets=7)", "multiple of 2"),
        ("t5(max_distance=16)", "must exceed buckets / 2"),
    ],
)
def test_a_wrong_name_or_option_says_what_is_right(text, words):
    shape = (
        Shape(n_head=4, turned_width=10, width=40, first_length=64) if "fraction" in text else SHAPE
    )
    with pytest.raises(UserError, match=words):
        Scheme(text, shape, 2)


@pytest.mark.parametrize(
    "typed, sentence",
    [
        ("RoPE", "there is no position scheme RoPE: did you mean rope?"),
        ("rotary", "there is no position scheme rotary: did you mean rope?"),
        ("ALiBi + nope", "there is no position scheme ALiBi: did you mean alibi?"),
        ("YaRN(factor=4)", "YaRN extends a trained model: write it as --extend=yarn"),
        ("linear", "linear extends a trained model: write it as --extend=pi"),
    ],
)
def test_what_others_call_a_scheme_is_answered_with_its_name(typed, sentence):
    with pytest.raises(UserError) as error:
        Scheme(typed, SHAPE, 2)
    assert str(error.value) == sentence


@pytest.mark.parametrize(
    "typed, sentence",
    [
        ("YaRN(factor=4)", "there is no position scheme YaRN: did you mean yarn?"),
        ("PI", "there is no position scheme PI: did you mean pi?"),
        ("dynamic", "there is no position scheme dynamic: did you mean dynamic_ntk?"),
        ("ntk_aware", "there is no position scheme ntk_aware: did you mean ntk?"),
        ("ALiBi", "ALiBi does not extend a trained model: train with --pos=alibi"),
    ],
)
def test_what_others_call_an_extension_is_answered_with_its_name(typed, sentence):
    with pytest.raises(UserError) as error:
        Scheme("rope", SHAPE, 2).extend(typed)
    assert str(error.value) == sentence


def test_a_name_of_ones_own_is_not_taken_for_that_of_a_known_scheme(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("from posenc import Rope\nclass RoPE(Rope):\n    pass", encoding="utf-8")
    assert Scheme("ro_pe", SHAPE, 2, path).rotary


def test_only_what_may_stand_there_is_listed():
    with pytest.raises(UserError, match="There are: .*, alibi, .*rope, ") as error:
        Scheme("relu", SHAPE, 2)
    assert ", yarn" not in str(error.value)
    with pytest.raises(UserError, match="There are: .*, yarn") as error:
        Scheme("rope", SHAPE, 2).extend("relu")
    assert ", alibi" not in str(error.value)
    with pytest.raises(UserError, match="is not a position scheme"):
        Scheme("rope", SHAPE, 2).extend("ntk-aware(factor=4)")


@pytest.mark.parametrize("size, tokens", [("16", 16), ("0.25", 16), ("32.0", 2048), ("0.001", 1)])
def test_a_length_is_in_tokens_or_a_share_of_the_training_length(size, tokens):
    piece = Scheme(f"window(size={size})", SHAPE, 1).pieces["0_window"]
    assert isinstance(piece, Window) and piece.visible == (tokens, 0)


def test_files_are_those_of_its_own_pieces():
    assert set(scheme_files(Scheme("alibi", SHAPE, 2))) == {"posenc.py"}
    assert set(scheme_files(Scheme("kerple", SHAPE, 2))) == {"zoo/kerple.py", "posenc.py"}
    grid = Shape(n_head=4, turned_width=8, width=32, first_length=64)
    names = {"zoo/rope2d.py", "zoo/_grid.py", "posenc.py"}
    assert set(scheme_files(Scheme("rope2d", grid, 2))) == names


def test_modules_that_a_users_file_imports_are_files_of_its_scheme(tmp_path):
    (tmp_path / "parts").mkdir()
    sources = {
        "mine.py": "from helper_a import rate\nfrom posenc import Piece\nimport torch\n"
        "class Dip(Piece):\n    def bias(self, h, i, j):\n        return rate * (j - i)\n",
        "helper_a.py": "from parts.helper_b import rate\nfrom zoo.kerple import Kerple\n",
        "parts/helper_b.py": "from .helper_c import rate\n",
        "parts/helper_c.py": "rate = 0.5\n",
        "other.py": "unused = 1\n",
    }
    for name, source in sources.items():
        (tmp_path / name).write_text(source)
    files = scheme_files(Scheme("dip", SHAPE, 2, tmp_path / "mine.py"))
    names = {"helper_a.py", "parts/helper_b.py", "parts/helper_c.py", "zoo/kerple.py"}
    assert set(files) == {"posenc.py", "pos_file.py", *names}
    assert all(path.is_file() for path in files.values())
    assert str(tmp_path) not in sys.path


# ---- what goes together


@pytest.mark.parametrize(
    "text, words",
    [
        ("rope + pope", "both claim the rotation"),
        ("learned + sinusoidal", "both claim the token embedding"),
        ("randomized(max=512) + rfs", "both claim the position ids"),
        ("cope + dape", "both claim the whole score"),
        ("fox + path", "both claim the whole score"),
        ("xpos + cope", "cannot be used in the same layer"),
        ("learned | rope", "before the first layer"),
        ("rfs + learned", "cannot be used in the same layer"),
        ("rope2d + alibi", "can read the positions it sets"),
        ("rope | t5(buckets=7)", "multiple of 2"),
    ],
)
def test_pieces_that_do_not_go_together_are_refused(text, words):
    with pytest.raises(UserError, match=words):
        Scheme(text, SHAPE, 3)


@pytest.mark.parametrize(
    "pos, extend, words",
    [
        ("rope", "none | window(size=4)", "extends all layers"),
        ("nope", "rerope", "no piece reads what rerope"),
        ("cope", "rerope", "both claim the whole score"),
        ("learned", "interpolate", "learned has vectors for whole positions"),
        ("t5", "slopes", "alibi only"),
    ],
)
def test_an_extension_that_does_not_fit_is_refused(pos, extend, words):
    scheme = Scheme(pos, SHAPE, 2)
    with pytest.raises(UserError, match=words):
        scheme.extend(extend)


def test_an_extension_replaces_the_one_before_and_keeps_what_it_learned():
    scheme = Scheme("rope", SHAPE, 2)
    scheme.extend("smooth(learned=True, per_layer=True)")
    assert len(scheme.extensions) == 2
    scheme.extensions["0_smooth_layer1"].log_factor.data.fill_(3.0)
    scheme.extend("smooth( learned=True, per_layer=True)")
    assert scheme.extensions["0_smooth_layer1"].log_factor.item() == 3.0
    scheme.extend("yarn(factor=4) + logn")
    assert scheme.factor(10) == 4.0 and scheme.extend_text == "yarn(factor=4) + logn"
    scheme.extend("")
    assert scheme.factor(10) is None and len(scheme.extensions) == 0


# ---- what it says of itself


def test_the_map_of_layers_has_the_options():
    assert Scheme("rope", SHAPE, 4).describe() == "all 4 layers: rope"
    text = Scheme("rope | rope(base=1000000)", SHAPE, 4).describe()
    assert text == "layers 0, 2: rope; 1, 3: rope(base=1000000)"
    scheme = Scheme("rope", SHAPE, 2)
    scheme.extend("pi(factor=2)")
    assert scheme.describe().endswith("extended by pi(factor=2)")


def test_draws_follow_from_seed_and_step_and_are_checked():
    scheme = Scheme("randomized(max=512) + rope", SHAPE, 2)
    ids = scheme.draw(1, 2, 64)
    assert torch.equal(ids, scheme.draw(1, 2, 64)) and not torch.equal(ids, scheme.draw(1, 3, 64))
    with pytest.raises(UserError, match="fewer than 64 positions"):
        Scheme("randomized(max=32) + rope", SHAPE, 2).draw(1, 2, 64)
    with pytest.raises(UserError, match="fewer than 513 positions"):
        scheme.draw(1, 2, 513)
    with pytest.raises(UserError, match="defines positions 0 to 63, not"):
        Scheme("randomized(max=512) + learned", SHAPE, 2).draw(1, 2, 64)
    with pytest.raises(UserError, match="defines positions 0 to 64, not"):
        Scheme("shape(max_shift=200) + learned(rows=65)", SHAPE, 2).draw(1, 2, 64)
    assert Scheme("rope", SHAPE, 2).draw(1, 2, 64) is None


def test_a_text_longer_than_the_scheme_is_refused():
    scheme = Scheme("learned", SHAPE, 2)
    scheme.check_length(64)
    with pytest.raises(UserError, match="learned has only 64 positions, too few for a text of 65"):
        scheme.check_length(65)
    assert Scheme("alibi", SHAPE, 2).limit is None


def test_layers_with_the_same_pieces_share_one_plan():
    scheme = Scheme("rope | nope", SHAPE, 5)
    index = torch.arange(7)
    plans = scheme.plans(index, index, 3, 7, Options(), window=2)
    assert list(plans) == scheme.plan_keys[:2] and scheme.plan_keys[2:4] == scheme.plan_keys[:2]
    plans = list(plans.values())
    assert len(plans) == 2 and isinstance(plans[0].turn_piece, Rope)
    assert plans[0].query_ids.tolist() == [4, 5, 6]
    assert plans[1].masks[0].visible == (2, 0) and plans[1].turn_piece is None
