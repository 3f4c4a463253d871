"""The grammar, the look-up, what goes together, and what a Scheme says of itself."""

import ast
import copy
import importlib
import inspect
import re
import sys
from pathlib import Path

import pytest
import torch

import posenc
from attention import Options
from common.errors import UserError
from measure.examine import check_names
from posenc import METHODS, Alibi, Method, Piece, Rope, Shape, Window, methods_of
from scheme import ZOO, Catalogue, Scheme, mentions_in, parse, scheme_files

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


def test_mentions_are_told_apart_by_their_numbers():
    expression = parse("rope | rope + 2 * (rope | nope)")
    assert [mention.number for mention in expression.mentions] == [0, 1, 2, 3]
    assert len(set(expression.mentions)) == 4
    assert copy.deepcopy(expression) == parse(expression.text) == expression  # by value
    assert [m.number for m in mentions_in(expression.pattern, 3)] == [1, 3]


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
    catalogue = Catalogue()
    assert {"alibi", "rope", "kerple", "fire"} <= set(catalogue.schemes)
    assert {"yarn", "pi", "window", "self_extend"} <= set(catalogue.extensions)
    assert "yarn" not in catalogue.schemes and "alibi" not in catalogue.extensions
    assert catalogue.find("alibi") is Alibi


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
    assert Scheme("ro_pe", SHAPE, 2, Catalogue(path)).rotary


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


def own(tmp_path, source):
    """The catalogue with a user's file."""
    path = tmp_path / "mine.py"
    path.write_text(f"from posenc import *\n{source}", encoding="utf-8")
    return Catalogue(path)


def test_an_option_may_have_any_name_and_a_default_is_checked_as_what_is_typed(tmp_path):
    catalogue = own(
        tmp_path,
        "class Mine(Piece):\n"
        "    def __init__(self, shape, *, keys: int = 4, size: Length = 0.5, _x: Length = None,\n"
        "                 model_config=1, copy: Layout = 'half'):\n"
        "        super().__init__()\n"
        "        self.given = keys, size, _x, model_config, copy\n"
        "class Wrong(Piece):\n"
        "    def __init__(self, shape, *, size: Length = 33.0):\n"
        "        super().__init__()\n",
    )

    def given(text):
        return Scheme(text, SHAPE, 1, catalogue).pieces["0_mine"].given

    assert given("mine") == (4, 32, None, 1, "half")
    text = "mine(keys=5, size=0.25, _x=2.0, model_config=[2], copy=interleaved)"
    assert given(text) == (5, 16, 128, [2], "interleaved")
    with pytest.raises(
        UserError, match="mine: keys: .*valid integer; copy: Input should be 'half'"
    ):
        given("mine(keys=a, copy=b)")
    with pytest.raises(UserError, match="wrong: size: .* at most 32"):
        Scheme("wrong", SHAPE, 1, catalogue)


def test_files_are_those_of_its_own_pieces():
    assert set(scheme_files(Scheme("alibi", SHAPE, 2))) == {"posenc.py"}
    assert set(scheme_files(Scheme("kerple", SHAPE, 2))) == {"zoo/kerple.py", "posenc.py"}
    grid = Shape(n_head=4, turned_width=8, width=32, first_length=64)
    names = {"zoo/rope2d.py", "zoo/_grid.py", "posenc.py"}
    assert set(scheme_files(Scheme("rope2d", grid, 2))) == names
    for name in ("fox", "bipe"):
        names = {f"zoo/{name}.py", "zoo/_decay.py", "posenc.py"}
        assert set(scheme_files(Scheme(name, grid, 2))) == names


@pytest.mark.parametrize("path", sorted(ZOO.glob("[a-z]*.py")), ids=lambda path: path.stem)
def test_a_file_of_the_zoo_is_one_module_and_takes_no_more_than_base_classes_from_others(path):
    """A base class is found from the scheme's class, so that its file is one of the scheme's."""
    cls = Catalogue().find(path.stem)
    assert cls is getattr(importlib.import_module(f"zoo.{path.stem}"), cls.__name__)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            assert not any(alias.name.startswith("zoo") for alias in node.names)
        if isinstance(node, ast.ImportFrom) and (node.level or node.module.startswith("zoo")):
            for alias in node.names:
                base = getattr(importlib.import_module(node.module), alias.name)
                assert issubclass(cls, base)


def write_helped(folder: Path, rate: float) -> Path:
    """A user's file with modules beside it, one of which has the `rate`."""
    (folder / "parts").mkdir(parents=True)
    (folder / "site-packages").mkdir()
    sources = {
        "mine.py": "import torch\nfrom helper_a import rate\nfrom posenc import Piece\n"
        "from zoo.kerple import Kerple\n\n\nclass Dip(Piece):\n"
        "    def bias(self, h, i, j):\n        return rate * (j - i)\n\n\n"
        "class Other(Kerple):\n    pass\n",
        "helper_a.py": "import sys\n"
        "sys.path.append(__file__.replace('helper_a.py', 'site-packages'))\n"
        "import installed_package\nsys.path.pop()\nfrom parts.helper_b import rate\n",
        "parts/helper_b.py": "from .helper_c import rate\n",
        "parts/helper_c.py": f"rate = {rate}\n",
        "unused.py": "unused = 1\n",
        "site-packages/installed_package.py": "",
    }
    for name, source in sources.items():
        (folder / name).write_text(source)
    return folder / "mine.py"


def test_modules_that_a_users_file_imports_are_files_of_its_scheme(tmp_path):
    path = write_helped(tmp_path, 0.5)
    files = scheme_files(Scheme("dip", SHAPE, 2, Catalogue(path)))
    names = {"posenc.py", "pos_file.py", "helper_a.py", "parts/helper_b.py", "parts/helper_c.py"}
    assert set(files) == names
    assert all(path.is_file() for path in files.values())
    assert str(tmp_path) not in sys.path
    assert set(scheme_files(Scheme("other", SHAPE, 2, Catalogue(path)))) == {
        *names,
        "zoo/kerple.py",
    }


def test_helpers_of_two_files_may_have_the_same_names(tmp_path):
    """As in the folders of two runs, before and after a helper was edited."""
    for name, rate in (("first", 0.5), ("second", 0.25)):
        scheme = Scheme("dip", SHAPE, 2, Catalogue(write_helped(tmp_path / name, rate)))
        assert scheme.pieces["0_dip"].bias(0, torch.tensor(3.0), torch.tensor(1.0)) == -2 * rate
        files = scheme_files(scheme)
        assert files["parts/helper_c.py"] == tmp_path / name / "parts/helper_c.py"


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
        ("rove", "rerope", "rove turns values, whose distances rerope does not rewrite"),
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


# ---- the methods of the contract


def test_the_table_of_methods_is_what_the_contract_says_and_what_all_pieces_have():
    described = re.findall(
        r"(\w+)\(([^()]*)\)(?=,? )", Piece.__doc__.partition("The class name")[0]
    )
    written = {(method.name, method.arguments) for method in METHODS}
    assert written <= set(described) and len(written) == len(METHODS)
    extending = Piece.__doc__.partition("Extensions of a trained model")[2]
    for method in METHODS:
        assert (f"{method.name}({method.arguments})" in extending) == (method.of == "extensions")
        assert getattr(Piece, method.name) is None
        for cls in Catalogue().pieces.values():
            if getattr(cls, method.name):
                found = ", ".join(map(str, inspect.signature(getattr(cls, method.name)).parameters))
                wanted = method.arguments.replace("*parts", "numbers, scale")  # of int8
                assert found == f"self, {wanted}", cls


def test_a_method_of_the_contract_is_one_entry(tmp_path, monkeypatch):
    stir = Method("stir", "rows, place", "neighbours", claims="vectors of neighbours")
    monkeypatch.setattr(posenc, "METHODS", (*METHODS, stir))
    monkeypatch.setattr(Piece, "stir", None, raising=False)
    catalogue = own(
        tmp_path,
        "".join(
            f"class {name}({base}):\n    def stir(self, rows, place):\n        return rows[0]\n"
            for name, base in (("Whisk", "Piece"), ("Spoon", "Piece"), ("Late", "Extension"))
        ),
    )
    whisk = catalogue.find("whisk")
    assert methods_of(whisk) == [stir] and methods_of(Alibi)[0].name == "bias"
    check_names(whisk(SHAPE))  # it does something
    Scheme("whisk | spoon", SHAPE, 2, catalogue)
    with pytest.raises(UserError, match="whisk and spoon both claim the vectors of neighbours"):
        Scheme("whisk + spoon", SHAPE, 2, catalogue)
    with pytest.raises(UserError, match="late has stir, which does nothing in an extension"):
        Scheme("rope", SHAPE, 2, catalogue).extend("late")


def test_a_scheme_that_draws_positions_acts_once(tmp_path):
    source = "class Late(Piece):\n    def draw(self, length, generator):\n        return 0\n"
    with pytest.raises(UserError, match="late acts once, before the first layer"):
        Scheme("late | rope", SHAPE, 2, own(tmp_path, source))


@pytest.mark.parametrize("fixed", [False, True])
def test_a_factor_that_grows_with_the_text_says_so(fixed):
    options = {"self_extend": "group=3", "leaky_rerope": "slowing=3"} if fixed else {}
    scheme = Scheme("rope | alibi", SHAPE, 2)
    growing = set()
    for name in Catalogue().extensions:
        for text in (f"{name}({options.get(name, 'factor=2' if fixed else '')})", name):
            try:
                scheme.extend(text)
                break
            except UserError:
                continue
        for piece in scheme.extensions.values():
            grows = piece.factor is not None and piece.factor(2**30) != piece.factor(2**31)
            assert piece.factor_grows == grows, name
            growing |= {name} if grows else set()
    assert growing == {"dynamic_ntk"} if fixed else {"yarn", "self_extend"} < growing


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
