"""Tables and figures: the numbers in them, what is refused, and what is drawn."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import report
from configurable import UserError
from runs import figures
from runs.figures import plot_run, plot_runs, plot_seeds
from runs.results import (
    compare_to_train_length,
    covers,
    load_result,
    result_labels,
    rows_on,
    update_result,
)
from runs.tables import T95, runs_table, seeds_table

LENGTHS = (64, 128, 256, 512)


def result(
    pos="alibi",
    seed=1,
    nats=(1.6, 1.5, 1.49, 1.9),
    windowed=(1.6, 1.5, 1.494, 1.55),
    end=10**9,
    train_length=128,
    split="s",
    targets="t",
    dataset="toy",
):
    """A made-up extrapolation.json: four blocks around each mean, undefined beyond `end`."""
    rows = []
    curves = {
        "fixed_targets": nats,
        "windowed": windowed,
        "nonoverlapping": [x + 0.1 for x in nats],
    }
    for protocol, curve in curves.items():
        for length, mean in zip(LENGTHS, curve, strict=True):
            row = {
                "protocol": protocol,
                "length": length,
                "extend": None,
                "factor": None,
                "dataset": dataset,
                "split_sha256": split,
            }
            noise = np.array([1, -1, 1, -1]) * length / 1e5
            blocks = np.array([0.5, -0.5, 0.25, -0.25]) + mean + noise
            defined = {
                "targets": targets if protocol != "nonoverlapping" else targets + "S",
                "nats": mean,
                "stderr_vs_L": None,
                "block_nats": list(blocks),
                "bits_per_byte": mean / math.log(2),
            }
            rows.append(
                row
                | (
                    defined
                    if length <= end
                    else {"nats": None, "reason": f"the table ends at {end}"}
                )
            )
    compare_to_train_length(rows, train_length)
    return {
        "pos": pos,
        "train_length": train_length,
        "original_length": train_length,
        "tokens_trained": 9,
        "unit": "byte",
        "seed": seed,
        "parameters": 1,
        "rows": rows,
        "per_position": {},
        "float32_check": {},
        "notes": [],
        "seconds": 1.0,
    }


def line(text, *start):
    """The cells of the one line that starts with these words."""
    found = [
        cells for cells in map(str.split, text.splitlines()) if tuple(cells[: len(start)]) == start
    ]
    assert len(found) == 1
    return found[0][len(start) :]


# ---- the table


def test_a_line_holds_loss_paired_error_gain_far_and_the_other_protocols():
    text = runs_table([result()])
    error = np.std(np.array([1, -1, 1, -1]) * (256 - 128) / 1e5, ddof=1) / 2
    assert line(text, "alibi", "256") == [
        "1.4900",
        "±",
        f"{error:.4f}",
        "+0.0100",
        "+0.0040~",
        "1.4940",
        "1.5900",
        f"{1.59 / math.log(2):.4f}",
    ]
    assert line(text, "alibi", "512")[3:5] == ["-0.4000", "-0.3500"]
    assert line(text, "alibi", "128")[:3] == [
        "1.5000",
        "(L)",
        "1.5000",
    ]  # neither gain nor far at L itself
    assert [x.split()[1] for x in text.splitlines() if x.startswith("alibi ")] == [
        "64",
        "128",
        "256",
        "512",
    ]
    assert "toy" in text and "L = 128" in text


def test_what_is_undefined_stands_in_the_table_with_its_reason():
    text = runs_table([result("learned", end=128), result()])
    assert " ".join(line(text, "learned", "512")) == "undefined: the table ends at 128"
    assert line(text, "learned", "128")[0] == "1.5000"


def test_columns_stand_under_their_heads_and_empty_ones_are_left_out():
    text = runs_table([result("a_long_name", end=128), result("b")])
    lines = text.splitlines()
    head = next(x for x in lines if x.startswith("scheme"))
    full = next(x for x in lines if x.startswith("b") and " 256 " in x)
    assert head.index("windowed") + len("windowed") == full.index("1.4940") + len("1.4940")
    assert (
        "sliding" not in head
        and "far" not in runs_table([result(end=128)]).split("±")[0].split("gain")[1]
    )


def test_the_float32_check_is_printed():
    checked = result() | {
        "float32_check": {
            "dtype": "bfloat16",
            "length": 512,
            "windows": 8,
            "nats": 1.5,
            "nats_float32": 1.4,
            "difference": 0.1,
        }
    }
    assert "1.5000 in bfloat16, 1.4000 in float32, difference +0.10000" in runs_table([checked])


@pytest.mark.parametrize("other", [{"split": "other"}, {"targets": "other"}])
def test_results_on_other_targets_are_refused(other, tmp_path):
    pair = [result(), result("rope", **other)]
    for compare in (
        runs_table,
        lambda r: plot_runs(r, tmp_path / "x.png"),
        lambda r: seeds_table({"alibi": r[:1], "rope": r[1:]}),
    ):
        with pytest.raises(UserError, match="alibi and rope were tested on different targets"):
            compare(pair)


def test_rows_that_do_not_compare_with_L_are_left_out_and_named():
    stale = result()
    for row in stale["rows"]:
        if row["length"] == 512:
            row["targets"] += "old"
    text = runs_table([stale])
    assert "rows at 512 are left out" in text and not any(
        x.startswith("alibi   512") for x in text.splitlines()
    )


def test_a_corpus_that_was_not_tested_is_refused_and_the_first_is_the_default():
    both = result()
    both["rows"] += result(dataset="other", nats=(2.6, 2.5, 2.4, 2.3))["rows"]
    assert line(runs_table([both]), "alibi", "64")[0] == "1.6000"
    assert line(runs_table([both], "other"), "alibi", "64")[0] == "2.6000"
    with pytest.raises(UserError, match="was not tested on third"):
        runs_table([both], "third")


def test_results_of_one_scheme_are_told_apart():
    assert result_labels([result(), result("rope")]) == ["alibi", "rope"]
    assert result_labels([result(), result(seed=2)]) == ["alibi L=128 s=1", "alibi L=128 s=2"]
    assert result_labels([result(), result()]) == ["alibi L=128 s=1 #1", "alibi L=128 s=1 #2"]
    assert len(result_labels([result("rope | " * 20 + "nope")])[0]) == 32


# ---- seeds


def cells(**more):
    up = {1: 0.0, 2: 0.02, 3: 0.01}
    return {
        "nope": [
            result("nope", s, nats=[x + d for x in (1.7, 1.6, 2.0, 2.5)]) for s, d in up.items()
        ],
        "alibi": [
            result("alibi", s, nats=[x + 2 * d for x in (1.6, 1.5, 1.5, 1.5)])
            for s, d in up.items()
        ],
        **more,
    }


def test_seeds_are_averaged_and_their_differences_paired():
    found = line(seeds_table(cells()), "alibi", "256")
    assert found[:3] == ["3", "1.5200", "0.0200"]
    # by seed: -0.5, -0.48, -0.49, so sd 0.01, and t(2) = 4.303
    half = 4.303 * 0.01 / math.sqrt(3)
    assert found[3:] == [
        "-0.4900",
        f"[{-0.49 - half:+.4f},",
        f"{-0.49 + half:+.4f}]",
        "n",
        "=",
        "3",
    ]
    assert line(seeds_table(cells()), "nope", "256") == ["3", "2.0100", "0.0100"]


def test_a_cell_that_failed_and_a_length_that_is_undefined_are_shown_with_their_reason():
    more = cells(learned=[result("learned", s, end=128) for s in (1, 2, 3)])
    more["alibi"][1] = {"seed": 2, "reason": "the loss is NaN at step 7"}
    text = seeds_table(more)
    assert " ".join(line(text, "learned", "512")) == "undefined: the table ends at 128"
    assert "alibi, seed 2: no result: the loss is NaN at step 7" in text
    assert line(text, "alibi", "256")[0] == "2" and line(text, "alibi", "256")[-1] == "2"


def test_a_length_that_only_some_seeds_define_is_named():
    some = cells()
    some["alibi"][0] = result("alibi", 1, end=256)
    text = seeds_table(some)
    assert (
        line(text, "alibi", "512")[0] == "2"
        and "alibi, seed 1, N = 512: undefined: the table ends at 256" in text
    )


def test_one_seed_has_no_interval_and_no_seed_is_refused():
    one = {pos: results[:1] for pos, results in cells().items()}
    assert line(seeds_table(one), "alibi", "256")[:3] == ["1", "1.5000", "-0.5000"]
    assert "one seed: no interval" in seeds_table(one)
    with pytest.raises(UserError, match="no result to compare; nope, seed 1: no result: it broke"):
        seeds_table({"nope": [{"seed": 1, "reason": "it broke"}]})


def test_the_t_table_is_right():
    x = np.linspace(0, 15, 200001)
    for degrees, point in enumerate(T95, start=1):
        scale = (
            math.gamma((degrees + 1) / 2) / math.gamma(degrees / 2) / math.sqrt(degrees * math.pi)
        )
        density = scale * (1 + x**2 / degrees) ** (-(degrees + 1) / 2)
        steps = (density[1:] + density[:-1]) / 2 * np.diff(x)
        assert 0.5 + steps[x[1:] <= point].sum() == pytest.approx(0.975, abs=2e-4)
    assert len(T95) == 30


# ---- figures


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """Calls a drawing function and returns its finished axes and the file."""
    kept, save = [], figures.save_figure

    def keep(figure, path):
        kept.append(figure.axes[0])
        save(figure, path)

    def draw(function, what, name="x.png"):
        monkeypatch.setattr(figures, "save_figure", keep)
        function(what, tmp_path / name)
        return kept[-1], tmp_path / name

    return draw


def legend(axes):
    return [text.get_text() for text in axes.figure.legends[0].get_texts()]


def test_the_figure_draws_each_loss_its_paired_bars_L_and_the_cropped_lines(drawn):
    axes, path = drawn(plot_runs, [result(), result("rope")])
    assert path.read_bytes().startswith(b"\x89PNG") and [p.name for p in path.parent.iterdir()] == [
        "x.png"
    ]
    curve = axes.containers[0]
    assert list(curve.lines[0].get_xdata()) == list(LENGTHS) and list(
        curve.lines[0].get_ydata()
    ) == [1.6, 1.5, 1.49, 1.9]
    low, high = curve.lines[2][0].get_segments()[3][:, 1]
    errors = {
        r["length"]: r["stderr_vs_L"] for r in result()["rows"] if r["protocol"] == "fixed_targets"
    }
    assert (high - low) / 2 == pytest.approx(errors[512]) and errors[512] > 0
    flat = [x.get_ydata()[0] for x in axes.lines if x.get_linestyle() == ":" and len(x.get_xdata())]
    assert flat == [1.5, 1.5]
    upright = [x.get_xdata()[0] for x in axes.lines if x.get_linestyle() == "--"]
    assert upright == [128]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert [t.get_text() for t in axes.get_xticklabels()] == ["64", "128", "256", "512"]
    assert (
        "toy" in axes.get_title()
        and "L = 128" in axes.get_title()
        and "fixed_targets" in axes.get_title()
    )
    assert legend(axes)[:2] == ["alibi", "rope"]
    assert curve.lines[0].get_color() != axes.containers[1].lines[0].get_color()


def test_an_undefined_length_is_a_cross_at_the_last_defined_one_and_a_word_in_the_legend(drawn):
    axes, _ = drawn(plot_runs, [result(), result("learned", end=128)])
    crosses = [x.get_xydata().tolist() for x in axes.lines if x.get_marker() == "x"]
    assert crosses == [[[128.0, 1.5]]] and legend(axes)[1] == "learned: undefined past 128"


def test_a_hole_in_a_curve_is_not_called_its_end(drawn):
    hole = result()
    for row in hole["rows"]:
        if row["length"] == 256:
            row.update(nats=None, reason="not a number")
    assert legend(drawn(plot_runs, [hole])[0])[0] == "alibi: undefined at 256"


def test_a_flat_curve_looks_flat(drawn):
    axes, _ = drawn(plot_runs, [result(nats=(1.501, 1.5, 1.5, 1.502))])
    low, high = axes.get_ylim()
    assert high / low == pytest.approx(1.25)


def test_the_seeds_figure_draws_the_mean_over_thin_lines_of_each_seed(drawn):
    axes, path = drawn(
        plot_seeds, cells(learned=[result("learned", s, end=128) for s in (1, 2, 3)])
    )
    assert path.exists()
    assert axes.containers[0].lines[0].get_ydata() == pytest.approx([1.71, 1.61, 2.01, 2.51])
    thin = [x for x in axes.lines if x.get_linewidth() < 1 and len(x.get_xdata()) > 1]
    assert len(thin) == 9
    assert legend(axes)[:3] == [
        "nope (3 seeds)",
        "alibi (3 seeds)",
        "learned (3 seeds): undefined past 128",
    ]


def test_a_figure_with_nothing_in_it_and_a_kind_that_does_not_exist_are_refused(tmp_path):
    with pytest.raises(UserError, match="no loss of fixed_targets"):
        plot_runs([result(end=0)], tmp_path / "x.png")
    with pytest.raises(UserError, match="no xyz figures"):
        plot_runs([result()], tmp_path / "x.xyz")
    assert list(tmp_path.iterdir()) == []


# ---- run folders


def test_a_run_folder_keeps_the_merged_result_and_its_figure(tmp_path):
    first = update_result(tmp_path, result())
    assert load_result(tmp_path) == first
    again = result(nats=(1.0, 1.1, 1.2, 1.3))
    again["rows"] = [r for r in again["rows"] if r["protocol"] == "fixed_targets"]
    merged = update_result(tmp_path, again)
    plot_run(tmp_path, merged)
    assert len(merged["rows"]) == 12 and load_result(tmp_path) == merged
    assert sorted(p.name for p in tmp_path.iterdir()) == ["extrapolation.json", "extrapolation.png"]


def changed(row, **fields):
    """A made-up result as JSON whose first row is `row`, with the fields changed."""
    return json.dumps(result() | {"rows": [row | fields]})


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "{}",
        '{"rows": 5}',
        json.dumps(result() | {"rows": []}),
        json.dumps(result() | {"rows": [{}]}),
        json.dumps(result() | {"rows": 5}),
        json.dumps(result() | {"seed": "1"}),
        json.dumps({k: v for k, v in result().items() if k != "pos"}),
        changed(result()["rows"][0], nats=None),  # and no reason
        changed(result()["rows"][0], block_nats=[1.0, "2"]),
        changed(result()["rows"][0], extend=5),
        changed(result(end=0)["rows"][0], reason=None),
        changed(result()["rows"][0], stderr_vs_L="x"),
        json.dumps(result() | {"float32_check": -1}),
        json.dumps(result() | {"float32_check": {"length": 8}}),
    ],
)
def test_a_damaged_result_is_named_with_the_command_that_makes_it_anew(content, tmp_path):
    (tmp_path / "extrapolation.json").write_text(content, encoding="utf-8")
    said = r"extrapolation.json .*: delete it, and python evaluate.py .* makes it again"
    with pytest.raises(UserError, match=said):
        load_result(tmp_path)
    (tmp_path / "extrapolation.json").write_text(json.dumps(result()), encoding="utf-8")
    assert load_result(tmp_path) == result()


def test_rows_of_another_number_of_blocks_or_without_an_error_do_no_harm(tmp_path):
    damaged = result()
    damaged["rows"][0]["block_nats"] = []
    damaged["rows"][1]["stderr_vs_L"] = None
    (tmp_path / "extrapolation.json").write_text(json.dumps(damaged), encoding="utf-8")
    loaded = load_result(tmp_path)
    assert "scheme" in runs_table([loaded])
    plot_run(tmp_path, loaded)
    assert (tmp_path / "extrapolation.png").stat().st_size > 1000


def test_a_result_with_nothing_to_draw_is_kept_without_a_figure(tmp_path):
    plot_run(tmp_path, update_result(tmp_path, result(end=0)))
    assert [p.name for p in tmp_path.iterdir()] == ["extrapolation.json"]


@pytest.mark.parametrize(
    ("expected", "covered"),
    [
        ({64: {}, 512: {}}, True),
        ({64: {}, 1024: {}}, False),
        ({64: {"targets": "t", "split_sha256": "s", "files_sha256": None}}, True),
        ({64: {"targets": "other"}}, False),
        ({512: {"targets": "other"}}, True),  # undefined, so on no targets at all
        ({512: {"split_sha256": "other"}}, False),
        ({64: {"factor": 2.0}}, False),
        ({64: {"files_sha256": {"a.json": "5"}}}, False),
    ],
)
def test_rows_cover_what_is_expected_of_them(expected, covered):
    rows = rows_on(result(end=256)["rows"], "toy")
    assert covers(rows, "fixed_targets", expected) is covered
    assert not covers({}, "fixed_targets", expected)


# ---- the program


@pytest.fixture
def command(tmp_path, monkeypatch):
    """report.py on a command line; there are two run folders, `one` and `two`."""
    monkeypatch.chdir(tmp_path)
    both = result()["rows"] + result(dataset="other", nats=(2.6, 2.5, 2.4, 2.3))["rows"]
    for name, content in (("one", result() | {"rows": both}), ("two", result("rope"))):
        Path(name).mkdir()
        update_result(name, content)

    def call(*words):
        monkeypatch.setattr("sys.argv", ["report.py", *words])
        report.main()

    return call


def test_the_program_draws_each_run_and_all_of_them_and_prints_their_table(command, capsys):
    command("one")
    assert line(capsys.readouterr().out, "alibi", "256")[0] == "1.4900"
    assert [p.name for p in Path().glob("**/*.png")] == ["extrapolation.png"]
    command("one", "two", "one/extrapolation.png")  # as a shell's * gives it
    said = capsys.readouterr().out
    assert line(said, "rope", "256")[0] == "1.4900" and "drawn in" in said
    for path in ("one/extrapolation.png", "two/extrapolation.png", "extrapolation.png"):
        assert Path(path).read_bytes().startswith(b"\x89PNG")
    command("one", "two", "--out=both.svg")
    assert "<svg" in Path("both.svg").read_text(encoding="utf-8")


def test_the_program_shows_another_corpus_in_a_figure_of_its_own(command, capsys):
    command("one", "--dataset=other")
    assert line(capsys.readouterr().out, "alibi", "64")[0] == "2.6000"
    assert Path("one/extrapolation-other.png").exists()


def test_the_program_says_what_to_type(command):
    with pytest.raises(UserError, match="python report.py out/RUN"):
        command()
    Path("untested").mkdir()
    with pytest.raises(UserError, match="untested has no extrapolation.json: python evaluate.py"):
        command("untested")


def test_matplotlib_is_imported_only_to_draw():
    code = "import sys, report, evaluate; sys.exit('matplotlib' in sys.modules)"
    root = Path(report.__file__).parent
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
