"""explain.py: its frequency pairs, compared with formulas in Python floats; its warnings, figure and refusals."""

import csv
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.figure import Figure

import configurable
import explain
from docs.catalogue import catalogue
from posenc import Shape
from positions.catalogue import extension_names, scheme_names
from positions.scheme import Scheme

REPOSITORY = Path(explain.__file__).resolve().parent
TURN = 2 * math.pi
Said = Callable[..., tuple[int, str]]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Said:
    """said("rope", "--length=64"): the exit code of the command and all that it printed."""

    def of(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["explain.py", *words])
        with pytest.raises(SystemExit) as ended:
            configurable.run_program(explain.main)
        return ended.value.code or 0, "".join(capsys.readouterr())

    return of


def pairs(
    pos: str,
    extend: str = "",
    train_length: int = 512,
    length: int | None = None,
    head_dim: int = 64,
) -> explain.Pairs:
    """The pairs of the first layer."""
    scheme = Scheme(pos, Shape(4, head_dim, 4 * head_dim, train_length), 4)
    scheme.extend(extend)
    return explain.Pairs(scheme, 0, length or 8 * train_length)


def rows(text: str) -> list[list[str]]:
    """The lines of the first table, by cells."""
    return [
        line.replace(",", "").split()
        for line in text.split("\n\nrope of base")[1].splitlines()
        if re.match(r" *\d+ +\d+\.", line)
    ]


def warned(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("warning: ")]


# ---- numbers


def test_the_table_of_rope_is_its_formula_and_says_what_stays_unfinished(said: Said) -> None:
    text = said("rope", "--train_length=512", "--length=2048")[1]
    # 512 = 2 pi 10000^(m / 32) at m = 15.3
    assert "16 of 32 pairs (16 ... 31) finish no turn within L = 512; 16 of 32 pairs" in text
    assert "(16 ... 31) meet angles at N = 2048 that training never saw" in text
    found = rows(text)
    assert len(found) == 32
    for m, (number, turns, seen, wave, wraps, met, within) in enumerate(found):
        theta = 10000 ** (-m / 32)
        assert int(number) == m and int(wraps) == math.ceil(TURN / theta)
        assert float(wave) == pytest.approx(TURN / theta, abs=0.051)
        assert [float(turns), float(seen), float(met)] == pytest.approx(
            [512 * theta / TURN, 511 * theta / TURN, 2047 * theta / TURN], abs=6e-4
        )
        assert within == ("yes" if 512 * theta >= TURN else "no")
        assert theta * (int(wraps) - 1) < TURN <= theta * int(wraps)


def test_the_table_of_an_extension_has_both(said: Said) -> None:
    for m, row in enumerate(rows(said("ntk(factor=4)", "--train_length=64", "--length=256")[1])):
        theta = 10000 ** (-m / 32) * 4 ** (-m / 31)
        *_, bar, wave, wraps, met, within = row
        assert (
            bar == "|"
            and int(wraps) == math.ceil(TURN / theta)
            and float(wave) == pytest.approx(TURN / theta, abs=0.051)
        )
        assert float(met) == pytest.approx(255 * theta / TURN, abs=6e-4)
        assert within == (
            "yes" if m <= 8 or m == 31 else "no"
        )  # 64 / 2 pi = 10.19 turns of pair 0: one turn up to m = 8.06


@pytest.mark.parametrize(
    ("extend", "ratio"),
    [
        ("pi(factor=8)", lambda m: 1 / 8),
        ("ntk(factor=8)", lambda m: 8 ** (-m / 31)),
        (
            "yarn(factor=8, ramp=turns, beta=8)",
            lambda m: 1 / 8 + 7 / 8 * min(1, max(0, (512 / TURN * 10000 ** (-m / 32) - 1) / 7)),
        ),
        (
            "llama3(factor=8)",
            lambda m: 1 / 8 + 7 / 8 * min(1, max(0, (512 / TURN * 10000 ** (-m / 32) - 1) / 3)),
        ),
    ],
)
def test_what_an_extension_does_is_its_formula(extend: str, ratio: Callable[[int], float]) -> None:
    found = pairs("rope", extend)
    expected = [10000 ** (-m / 32) * ratio(m) for m in range(32)]
    assert found.after.tolist() == pytest.approx(expected, rel=1e-12)
    assert found.met.tolist() == pytest.approx([4095 * theta for theta in expected], rel=1e-12)
    assert found.raw.tolist() == pytest.approx(
        [4095 * 10000 ** (-m / 32) for m in range(32)], rel=1e-12
    )


def test_the_attention_factor_enters_logits_squared(said: Said) -> None:
    factor = 0.1 * math.log(8) + 1
    assert (
        f"cosines and sines x {factor:.4f}, logits x {factor**2:.4f}" in said("yarn(factor=8)")[1]
    )
    assert "cosines and sines x 1.0000, logits x 1.0000" in said("yarn(factor=8, mscale=0)")[1]


def test_what_an_extension_leaves_unseen_is_counted(said: Said) -> None:
    assert "extended by pi(factor=8): none of 32 pairs do" in said("pi(factor=8)")[1]
    assert (
        "extended by pi(factor=2): 16 of 32 pairs (16 ... 31) do"
        in said("pi(factor=2)", "--train_length=512", "--length=2048")[1]
    )
    far = ("--train_length=512", "--length=4096")
    for factor, left in ((8, "15 of 32 pairs (16 ... 30)"), (57, "none of 32 pairs")):
        assert (
            f"extended by ntk(factor={factor}): {left} do" in said(f"ntk(factor={factor})", *far)[1]
        )


@pytest.mark.parametrize(
    ("pos", "extend", "farthest"),
    [
        ("rope", "rerope(window=40)", 40),
        ("rope", "window(size=50)", 49),
        ("rope", "interpolate(factor=4)", 255.75),
        ("rope", "compress(alpha=0.25)", 127 + 0.25 * 896),
        ("rope", "lm_infinite(size=100, sinks=1)", 100),
        ("rope", "logn", 1023),
        ("rope + window(size=32)", "", 31),
    ],
)
def test_distances_that_are_mapped_rewritten_or_masked_are_those_that_are_met(
    pos: str, extend: str, farthest: float
) -> None:
    found = pairs(pos, extend, 128, 1024)
    assert (found.met / found.after).tolist() == pytest.approx(
        [farthest] * 32, abs=1.01 if "compress" in extend else 1e-4
    )


def test_what_a_window_hid_in_training_was_not_seen() -> None:
    found = pairs("rope + window(size=32)", "", 128, 1024)
    assert found.seen.tolist() == pytest.approx([31 * 10000 ** (-m / 32) for m in range(32)])
    assert found.within(found.met).all()


@pytest.mark.parametrize(
    ("pos", "extend"),
    [
        ("randomized(max=1024) + rope", ""),
        ("rope", "pose(target=1024)"),
        ("rope", "pose(target=1024) + yarn(factor=8)"),
    ],
)
def test_positions_that_are_drawn_in_training_are_seen(pos: str, extend: str) -> None:
    found = pairs(pos, extend, 128, 1024)
    reach = (found.seen / (found.after if extend else found.before))[-1].item()
    assert 0.97 * 1024 < reach < 1024 and found.within(found.met).all()


def test_a_tenth_beyond_the_positions_that_were_drawn_is_not_seen() -> None:
    found = pairs("rope", "pose(target=1024)", 128, 1126)
    assert found.within(found.met).tolist() == (found.seen >= TURN).tolist()


def test_partial_rotary_still_pairs_and_pope_have_their_own_pairs(said: Said) -> None:
    assert pairs("rope(fraction=0.5)").before.tolist() == pytest.approx(
        [10000 ** (-m / 16) for m in range(16)]
    )
    assert pairs("pope").before.tolist() == pytest.approx([10000 ** (-m / 64) for m in range(64)])
    still = pairs("rope(p=0.25)", "pi(factor=2)", 128)
    assert (still.after[8:] == 0).all() and still.within(still.raw)[8:].all()
    code, text = said("rope(p=0.25)")
    assert code == 0 and rows(text)[8][3:5] == ["inf", "never"]
    for pos, count in (("pope", 64), ("rope(fraction=0.5)", 16)):
        assert f"of {count} pairs" in said(pos, "--extend=yarn")[1]


def test_layers_that_are_alike_are_shown_once(said: Said) -> None:
    assert (
        said("rope | nope")[1].count("turns in L")
        == said("learned_rope")[1].count("turns in L")
        == 1
    )
    assert said("rope | rope(base=500000)")[1].count("turns in L") == 2


def test_a_text_is_8_l_long_unless_a_length_is_named(said: Said) -> None:
    assert "N = 1024;" in said("yarn(factor=4)", "--train_length=128")[1]
    assert "N = 512;" in said("yarn(factor=4)", "--train_length=128", "--length=512")[1]


def test_a_scheme_that_ends_is_shown_to_its_end(said: Said) -> None:
    assert "N = 300;" in said("randomized(max=300) + rope")[1]
    code, text = said("randomized(max=300) + rope", "--length=301")
    assert code == 1 and "defines 300 positions" in text


def test_keys_that_come_to_lie_after_their_query_are_angles_that_training_never_saw(
    said: Said,
) -> None:
    code, text = said(
        "two_scale(alpha=1, beta=0.5)", "--train_length=128", "--length=200", "--head_dim=8"
    )
    # the last query is at 128 + 71 / 2 - 64, keys are at up to 127
    assert (
        code == 0 and re.search(r"\n0 .* yes\n", text) and re.search(r"\n3 .* 1\.000 +no\n", text)
    )


def test_a_layers_own_extension_is_explained_once(said: Said) -> None:
    shared, own = (
        said(f"smooth(learned=True{more})", "--train_length=64", "--head_dim=8")[1]
        for more in ("", ", per_layer=True")
    )
    assert rows(own) == rows(shared) and own.count("curve") == shared.count("curve")


# ---- warnings


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("yarn(factor=8)", "--train_length=256"),
            "with L = 256 and head dimension 64 only 1 of 32 pairs can complete 32 turns, so beta = 32 slows nearly all: try beta=4",
        ),
        (("yarn(factor=8)", "--train_length=128"), "only 0 of 32 pairs can complete 32 turns"),
        (
            ("ntk_by_parts(factor=8)", "--train_length=256"),
            "only 1 of 32 pairs can complete 32 turns",
        ),
        (
            ("llama3(factor=8)", "--train_length=32"),
            "with L = 32 and head dimension 64 only 1 of 32 pairs can complete 4 turns, so high = 4 slows nearly all: try high=2",
        ),
        (("yarn(factor=8)", "--train_length=8"), "try ntk, L is too short"),
    ],
)
def test_a_default_that_makes_no_sense_is_warned_of(
    said: Said, words: tuple[str, ...], sentence: str
) -> None:
    code, text = said(*words)
    (line,) = warned(text)
    assert code == 0 and sentence in line


@pytest.mark.parametrize(
    "words",
    [
        ("yarn(factor=8)", "--train_length=512"),
        ("yarn(factor=8)", "--train_length=4096"),
        ("yarn(factor=1)", "--length=128"),
        ("yarn(factor=8, beta=17)", "--train_length=256"),
        ("yarn(factor=8, beta=4)", "--train_length=256"),
        ("llama3(factor=8)",),
        ("pi(factor=4)",),
        ("ntk(factor=8)", "--train_length=512"),
        ("rerope",),
        ("self_extend",),
        ("dca",),
        ("rope", "--extend=window(size=64)"),
        ("rope",),
        ("slopes", "--pos=alibi"),
        ("pose(target=1024)", "--length=1024"),
        ("p_rope(p=0.25)",),
    ],
)
def test_what_makes_sense_is_not_warned_of(said: Said, words: tuple[str, ...]) -> None:
    code, text = said(*words)
    assert code == 0 and warned(text) == []


# ---- the figure


@pytest.mark.parametrize(
    "words",
    [
        ("rope | rope(base=500000)", "--extend=pi"),
        ("rope(p=0)",),
        ("rope", "--head_dim=2"),
        ("smooth(learned=True)",),
    ],
)
def test_a_figure_is_written(said: Said, tmp_path: Path, words: tuple[str, ...]) -> None:
    code, text = said(*words, f"--out={tmp_path / 'pairs.png'}")
    assert (
        code == 0
        and text.endswith("pairs.png\n")
        and (tmp_path / "pairs.png").read_bytes().startswith(b"\x89PNG")
    )
    assert [path.name for path in tmp_path.iterdir()] == ["pairs.png"]


def test_the_figure_draws_the_turns_of_all_pairs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    found = [pairs("rope", "pi(factor=2)", 64, 96), pairs("rope(base=500)", "", 64)]
    explain.plot_pairs(found, tmp_path / "x.png")
    first, second = drawn[0].axes
    arcs = [angles.tolist() for angles in (found[0].seen, found[0].raw, found[0].met)]
    assert [line.get_label().split()[0] for line in first.lines] == ["seen", "met", "met", "one"]
    for line, angles in zip(first.lines, arcs, strict=False):
        assert line.get_ydata() == pytest.approx([angle / TURN for angle in angles])
    assert first.get_title().startswith("rope of base 10000") and len(second.lines) == 3


# ---- the command


def test_the_script_explains_own_schemes_and_the_zoo_and_imports_matplotlib_only_to_draw(
    tmp_path: Path,
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from posenc import Rope\n\n\nclass Mine(Rope):\n    '''Mine.'''\n", encoding="utf-8"
    )
    code = (
        "import atexit, runpy, sys; names = {'matplotlib', 'train'}; "
        "atexit.register(lambda: print('imported:', names & {*sys.modules})); "
        "runpy.run_path('explain.py', run_name='__main__')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, "mine + kerple", f"--pos_file={path}"],
        cwd=REPOSITORY,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert ended.returncode == 0 and ended.stderr == ""
    assert "all 4 layers: mine + kerple" in ended.stdout and "mine: Mine." in ended.stdout
    assert "mine of base 10000" in ended.stdout and "imported: set()" in ended.stdout


def test_explaining_an_expression_says_what_it_is(said: Said) -> None:
    code, text = said("t5 + rope(base=500000)")
    assert (
        code == 0
        and "t5 + rope(base=500000)" in text
        and "base: float" in text
        and "table (32, 4)" in text
    )


def test_an_extension_is_told_from_a_scheme(said: Said) -> None:
    assert (
        "all 4 layers: rope, extended by logn + yarn(factor=2)" in said("logn + yarn(factor=2)")[1]
    )
    text = said("yarn", "--pos=rope(base=500)")[1]
    assert (
        text.startswith("rope(base=500)  (in 4")
        and "extended by yarn" in text
        and "\nrope of base 500, L" in text
    )
    assert "all 4 layers: logn\n" in said("logn")[1]
    assert (
        said("rope", "--extend=pi(factor=2)")[1].splitlines()[1:]
        == said("pi(factor=2)")[1].splitlines()[1:]
    )


def test_explaining_nothing_explains_rope(said: Said) -> None:
    assert said() == said("rope") and said()[0] == 0


def test_the_catalogue_lists_what_there_is() -> None:
    known = [*scheme_names(), *extension_names()]
    assert all(f"| `{name}" in catalogue() for name in known)


def test_the_catalogue_says_where_each_acts() -> None:
    schemes, extensions = catalogue().split("\n\n")
    assert (
        "| `rope(base=10000.0, fraction=1.0, p=1.0, clip=0, layout=half)` | queries and keys | "
        in schemes
    )
    for name, changes in {
        "pi(factor=auto)": "frequencies",
        "interpolate(factor=auto)": "positions",
        "rerope(window=None)": "distances",
        "logn": "temperature",
        "window(size, sinks=0)": "mask",
        "pose(target)": "positions of training",
    }.items():
        assert f"| `{name}` | {changes} |" in extensions


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("ropee",), "no position scheme ropee; did you mean rope"),
        (("rope +",), "cannot be read"),
        (("window",), "window needs size"),
        (("rope + yarn",), "rope is no extension of a trained model"),
        (("rope", "pope"), "'rope pope' is more than one word"),
        (("pope", "--pos=rope"), "'pope' stands for --pos, and there is --pos=rope too"),
        (("yarn", "--extend=pi"), "'yarn' stands for --extend, and there is --extend=pi too"),
        (("pi + yarn",), "pi and yarn both "),
        (("yarn", "--pos=alibi"), "yarn does not extend alibi"),
        (("rope", "--head_dim=7"), "an even dimension, not 7"),
        (("rope", "--train_length=1"), "train_length is 1"),
        (("rope", "--lenght=1"), "did you mean length"),
        (("rope", "--out=x.what"), "no what figures"),
        (
            ("alibi", "--out=x.png"),
            "alibi turns no pairs of columns along a text: there are no pairs to plot in x.png",
        ),
    ],
)
def test_bad_input_is_a_sentence(
    said: Said,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, text = said(*words)
    assert (
        code == 1
        and sentence in text.splitlines()[-1]
        and text.splitlines()[-1].startswith("error: ")
    )
    assert list(tmp_path.iterdir()) == []


def test_a_scheme_that_turns_nothing_is_explained_without_a_table(said: Said) -> None:
    code, text = said("alibi")
    assert code == 0 and "alibi: score += -m_h (i - j)" in text and "turns in L" not in text
    code, text = said("slopes", "--pos=alibi")
    assert code == 0 and "slopes: " in text
    assert text.splitlines()[-1] == "alibi turns no pairs of columns along a text"


# ---- the examination


@pytest.mark.parametrize(
    ("body", "code", "sentence"),
    [
        ("return lambda h, i, j: (j - i) * (h + 1)", 0, "examined: causal"),
        (
            "return lambda h, i, j: (i - j).log() * (h + 1)",
            1,
            "error: mine.py: Mine.bias must give",
        ),
        ("return {}['slope']", 1, "mine.py: Mine.bias failed in line 4"),
    ],
)
def test_a_scheme_of_ones_own_is_examined(
    tmp_path: Path, said: Said, body: str, code: int, sentence: str
) -> None:
    source = f"from posenc import Piece\nclass Mine(Piece):\n  def bias(self, like):\n    {body}\n"
    (tmp_path / "mine.py").write_text(source, encoding="utf-8")
    ended, text = said("mine + rope", f"--pos_file={tmp_path / 'mine.py'}", "--train_length=32")
    assert ended == code and sentence in text and "Traceback" not in text


def test_what_the_project_has_is_not_examined_again(said: Said) -> None:
    assert "examined" not in said("rope")[1]


# ---- other formats


def test_the_table_alone_is_written_in_other_formats(said: Said) -> None:
    words = ["yarn(factor=8)", "--train_length=512"]
    read = list(csv.DictReader(said(*words, "--format=csv")[1].splitlines()))
    assert json.loads(said(*words, "--format=json")[1])[5]["wavelength"] == pytest.approx(
        TURN * 10000 ** (5 / 32), rel=1e-12
    )
    of = pairs("rope", "yarn(factor=8)")
    assert [float(line["wavelength"]) for line in read] == (TURN / of.before).tolist()
    assert [float(line["extended_met_to"]) for line in read] == (of.met / TURN).tolist()
    assert [line["seen"] for line in read] == [str(x) for x in of.within(of.raw).tolist()]
    text = said(*words, "--format=tex")[1]
    assert text.startswith("% rope of base 10000, L = 512") and text.count("\\\\") == 33
    assert said(*words, "--format=md")[1].count("\n| ") == 34


def test_a_table_in_another_format_is_refused_with_a_figure_or_without_pairs(said: Said) -> None:
    assert "--format prints tables only" in said("rope", "--format=tex", "--out=pairs.pdf")[1]
    for kind in ("csv", "md"):  # on stderr, or below the table
        assert said("yarn", "--train_length=128", f"--format={kind}")[1].count("warning: ") == 1
    code, text = said("alibi", "--format=csv")
    assert code == 1 and "alibi turns no pairs of columns along a text: there is no table" in text
    still = json.loads(said("rope(p=0.5)", "--format=json")[1])[-1]
    assert still["wavelength"] is None and still["met_to"] == 0  # it never turns
