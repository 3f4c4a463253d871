"""Tables and figures: the numbers in them, what is refused, and what is drawn."""

import json
import math
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

import report
from configurable import TrainSettings, UserError
from runs import figures
from runs.compare import rows_by_seed
from runs.figures import plot_extensions, plot_run, plot_runs, plot_seeds, show_runs
from runs.labels import gaps, result_labels
from runs.log import by_extension
from runs.results import (
    compare_to_train_length,
    covers,
    load_result,
    only,
    update_result,
)
from runs.tables import extensions_table, runs_table, scheme_tables, seeds_table

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
                "step": 1200,
                "checkpoint": "c" * 16,
                "windows": 4,
                "stride": None,
            }
            noise = np.array([1, -1, 1, -1]) * length / 1e5
            blocks = np.array([0.5, -0.5, 0.25, -0.25]) + mean + noise
            defined = {
                "targets": targets if protocol != "nonoverlapping" else targets + "S",
                "nats": mean,
                "stderr": 0.05,
                "stderr_vs_L": None,
                "dtype": "float32",
                "attention": "dense",
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
        "step": 1200,
        "checkpoint": "c" * 16,
        "settings": {},
        "unit": "byte",
        "seed": seed,
        "parameters": 1,
        "rows": rows,
        "per_position": [],
        "float32_check": [],
        "notes": [],
        "seconds": 1.0,
    }


def diverge(made_up, *lengths, protocols=("fixed_targets", "windowed", "nonoverlapping")):
    """The result with losses that are not finite at these lengths."""
    for row in made_up["rows"]:
        if row["length"] in lengths and row["protocol"] in protocols:
            row |= {"nats": None, "diverged": True, "reason": "diverged: 3 of 64 windows"}
            row["bits_per_byte"] = None
    return made_up


def line(text, *start):
    """The cells of the one line that starts with these words."""
    found = [
        cells for cells in map(str.split, text.splitlines()) if tuple(cells[: len(start)]) == start
    ]
    assert len(found) == 1
    return found[0][len(start) :]


def lines_of(text, label):
    """The lines of the runs table below a label."""
    lines = text.splitlines()
    below = lines[lines.index(label) + 1 :]
    end = next(k for k, one in enumerate(below) if not one.startswith("  "))
    return "\n".join(below[:end])


# ---- the table


def test_a_line_holds_the_loss_its_error_the_gain_its_paired_error_far_and_other_protocols():
    text = runs_table([result()])
    lines = lines_of(text, "alibi")
    error = np.std(np.array([1, -1, 1, -1]) * (256 - 128) / 1e5, ddof=1) / 2
    assert line(lines, "256") == [
        *("1.4900", "±", "0.0500"),
        *("+0.0100", "±", f"{error:.4f}", "+0.0040~"),
        *("1.4940", "1.5900", f"{1.59 / math.log(2):.4f}"),
    ]
    assert line(lines, "512")[3] == "-0.4000" and line(lines, "512")[6] == "-0.3500"
    # neither gain nor far at L itself
    assert line(lines, "128")[:5] == ["1.5000", "±", "0.0500", "(L)", "1.5000"]
    assert [one.split()[0] for one in lines.splitlines()] == ["64", "128", "256", "512"]
    assert "toy" in text and "L = 128" in text


def test_what_is_undefined_stands_in_the_table_with_its_reason():
    lines = lines_of(runs_table([result("learned", end=128), result()]), "learned")
    assert " ".join(line(lines, "512")) == "undefined: the table ends at 128"
    assert line(lines, "128")[0] == "1.5000"


def test_the_table_is_at_most_100_columns_wide_however_long_the_labels_are():
    long = [result("rope | " * 20 + pos, nats=(1e2, 1e1, 1e2, 1e2)) for pos in ("nope", "alibi")]
    text = runs_table(long)
    assert all(f"\n{one['pos']}\n" in text for one in long)  # and none is cut
    assert max(map(len, lines_of(text, long[0]["pos"]).splitlines())) <= 100


def test_a_loss_that_diverged_is_told_in_its_line_and_in_a_sentence():
    some = diverge(result(), 256, 512, protocols=("fixed_targets", "nonoverlapping"))
    text = runs_table([diverge(some, 512), diverge(result("rope"), 256)])
    lines = lines_of(text, "alibi")
    assert line(lines, "256") == ["diverged", "1.4940", "diverged"]
    assert " ".join(line(lines, "512")) == "diverged: 3 of 64 windows"
    assert "alibi: fixed_targets, nonoverlapping diverged from N = 256 on" in text
    assert "alibi: windowed diverged from N = 512 on" in text
    assert "rope: fixed_targets, windowed, nonoverlapping diverged at N = 256\n" in text


def test_where_losses_are_missing_is_told_in_words():
    lost, nothing = math.inf, math.nan
    assert gaps({64: 1.0, 128: 2.0}) == ""
    assert gaps({64: 1.0, 512: lost, 256: lost}) == "diverged from N = 256 on"
    assert gaps({64: 1.0, 256: lost, 512: 1.0, 1024: lost}) == "diverged at N = 256, 1024"
    both = {64: 1.0, 256: lost, 512: nothing}
    assert gaps(both) == "diverged from N = 256 on, undefined from N = 512 on"


def test_rows_of_an_older_checkpoint_or_of_fewer_windows_are_not_shown():
    many = result()
    older = [row | {"step": 600, "checkpoint": "b" * 16, "nats": 9.0} for row in many["rows"]]
    fewer = [row | {"windows": 2, "nats": 9.0} for row in many["rows"][:8]]
    text = runs_table([many | {"rows": [*many["rows"], *older, *fewer]}])
    assert lines_of(text, "alibi") == lines_of(runs_table([result()]), "alibi")


def test_a_look_with_more_windows_at_some_lengths_empties_no_other_length():
    looked = result()
    fixed = [r for r in looked["rows"] if r["protocol"] == "fixed_targets" and r["length"] > 128]
    looked["rows"] += [row | {"windows": 256, "targets": "more", "nats": 9.0} for row in fixed]
    text = runs_table([looked])
    assert lines_of(text, "alibi") == lines_of(runs_table([result()]), "alibi")


def test_columns_stand_under_their_heads_and_empty_ones_are_left_out():
    text = runs_table([result("a_long_name", end=128), result("b")])
    lines = text.splitlines()
    head = next(x for x in lines if "windowed" in x)
    full = next(x for x in lines[lines.index("b") :] if " 256 " in x)
    assert head.index("windowed") + len("windowed") == full.index("1.4940") + len("1.4940")
    assert "sliding" not in head and "far" not in runs_table([result(end=128)]).splitlines()[2]


def test_the_float32_check_is_printed():
    checked = result()
    for row in checked["rows"]:
        row["dtype"] = "bfloat16"
    row = next(r for r in checked["rows"] if r["length"] == 512)
    check = row | {"windows": 8, "nats": 1.5, "nats_float32": 1.4, "difference": 0.1}
    checked["float32_check"] = [check, check | {"checkpoint": "another"}]
    sentence = "of its windows: bfloat16 less float32 is +0.10000 nats"
    assert runs_table([checked]).count(sentence) == 1  # of the checkpoint that is shown


def test_windows_that_a_text_lacks_hide_nothing_that_was_measured_and_the_reason_is_told():
    tested, reason = result(), "the 30 validation tokens of toy are too few for 1024 windows"
    before = runs_table([tested])
    fixed = [r for r in tested["rows"] if r["protocol"] in ("fixed_targets", "windowed")]
    asked = {"windows": 1024, "targets": None, "nats": None, "reason": reason}
    tested["rows"] += [row | asked for row in fixed]
    assert lines_of(runs_table([tested]), "alibi") == lines_of(before, "alibi")
    assert f"alibi: {reason}" in runs_table([only(tested, 1024, "float32")])
    with pytest.raises(UserError, match=reason):
        extensions_table([only(tested, 1024, "float32")], [])


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


def test_rows_on_other_targets_than_those_at_L_are_left_out_and_their_note_says_why():
    stale = result()
    for row in stale["rows"]:
        if row["length"] == 512:
            row |= {"other_targets": True, "note": "512 has other targets"}
    text = runs_table([stale])
    assert "alibi: 512 has other targets" in text and "1.9000" not in text
    assert " ".join(line(lines_of(text, "alibi"), "512")) == "undefined: 512 has other targets"


def test_a_corpus_that_was_not_tested_is_refused_and_the_first_is_the_default():
    both = result()
    both["rows"] += result(dataset="other", nats=(2.6, 2.5, 2.4, 2.3))["rows"]
    assert line(runs_table([both]), "64")[0] == "1.6000"
    assert line(runs_table([both], "other"), "64")[0] == "2.6000"
    with pytest.raises(UserError, match="was not tested on third"):
        runs_table([both], "third")


def test_labels_tell_what_differs_among_the_results_and_nothing_else():
    assert result_labels([result(), result("rope")]) == ["alibi", "rope"]
    assert result_labels([result(), result(seed=2)]) == ["alibi s=1", "alibi s=2"]
    slow = result("rope") | {"settings": {"learning_rate": 0.001, "n_embd": 64}}
    wide = result("rope") | {"settings": {"n_embd": 64, "mixed_lengths": [64, 128]}}
    assert result_labels([slow, wide, wide | {"train_length": 64}]) == [
        "rope L=128 mixed_lengths=none lr=0.001",
        "rope L=128 mixed_lengths=64,128 lr=0.003",
        "rope L=64 mixed_lengths=64,128 lr=0.003",
    ]
    half = result() | {"step": 600}
    assert result_labels([result(), half]) == ["alibi steps=1200", "alibi steps=600/1200"]
    assert result_labels([result() | {"extend": "ntk(factor=4)"}]) == ["alibi, ntk(factor=4)"]


def test_labels_are_never_cut_so_that_they_are_equal():
    names = ["rope | " * 20 + pos for pos in ("nope", "alibi")]
    assert result_labels([result(name) for name in names]) == names


def test_if_more_than_three_settings_differ_the_defaults_are_left_out():
    odd = {"learning_rate": 0.1, "dropout": 0.1, "n_embd": 64, "n_layer": 2}
    runs = [result("rope"), result("rope", seed=2) | {"settings": odd}]
    plain, other = result_labels(runs)
    assert plain == "rope s=1"
    assert set(other.split()) == {"rope", "lr=0.1", "dropout=0.1", "n_embd=64", "n_layer=2", "s=2"}


def test_a_file_of_schemes_is_told_only_where_there_are_several():
    mine = [result("mine") | {"settings": {"pos_file": f"{name}.py"}} for name in "ab"]
    assert result_labels([mine[0], result()]) == ["mine", "alibi"]
    assert result_labels(mine) == ["mine pos_file=a.py", "mine pos_file=b.py"]
    assert result_labels([*mine, result()])[2] == "alibi"


def test_results_that_are_equal_in_all_settings_are_told_by_their_folders():
    twins = [result() | {"folder": "out/a"}, result() | {"folder": "out/b"}]
    other = result("rope") | {"folder": "out/c"}
    assert result_labels([*twins, other]) == ["alibi (out/a)", "alibi (out/b)", "rope"]


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


def test_means_stand_in_a_line_for_each_scheme():
    lost = [
        diverge(result("rope", seed), 512) if seed == 2 else result("rope", seed) for seed in (1, 2)
    ]
    learned = [result("learned", seed, end=128) for seed in (1, 2, 3)]
    never = [{"seed": seed, "reason": "it broke"} for seed in (1, 2, 3)]
    wide, narrow = scheme_tables(cells(rope=lost, learned=learned, t5=never))
    assert "nats per byte" in wide.title
    assert wide.lines[0] == ["scheme", "64", "128", "256", "512"]
    known = {line[0]: line[1:] for line in wide.lines[1:]}
    assert known["alibi"] == ["1.620 ± 0.020", *["1.520 ± 0.020"] * 3]
    assert known["learned"][2:] == ["undefined", "undefined"]
    assert known["rope"][3] == "diverged (1 of 2)" and "±" in known["rope"][1]
    assert known["rope"][0].endswith("(n = 2)") and known["t5"] == ["no result"] * 4
    assert narrow == seeds_table(cells(rope=lost, learned=learned, t5=never))


def test_seeds_are_averaged_and_their_differences_paired():
    found = line(seeds_table(cells()), "alibi", "256")
    assert found[:3] == ["3", "1.5200", "0.0200"]
    # by seed: -0.5, -0.48, -0.49, so sd 0.01, and t(2) = 4.303
    half = 4.303 * 0.01 / math.sqrt(3)
    assert found[3:] == [
        "-0.4900",
        f"[{-0.49 - half:+.4f},",
        f"{-0.49 + half:+.4f}]",
        *("n", "=", "3"),
        "0.0001",
    ]
    assert line(seeds_table(cells()), "nope", "256") == ["3", "2.0100", "0.0100"]


def test_a_length_at_which_a_scheme_was_not_tested_is_not_undefined():
    short = result("rope") | {"rows": [r for r in result("rope")["rows"] if r["length"] < 512]}
    cells = {"alibi": [result()], "rope": [short], "learned": [result("learned", end=128)]}
    wide, _ = scheme_tables(cells)
    known = {cells[0]: cells[1:] for cells in wide.lines}
    assert known["rope"][3] == "not tested" and known["learned"][3] == "undefined"
    assert known["alibi"][3] == "1.900"


def test_a_cell_that_failed_and_a_length_that_is_undefined_are_shown_with_their_reason():
    more = cells(learned=[result("learned", s, end=128) for s in (1, 2, 3)])
    more["alibi"][1] = {"seed": 2, "reason": "the loss is NaN at step 7"}
    text = seeds_table(more)
    assert " ".join(line(text, "learned", "512")) == "undefined: the table ends at 128"
    assert "alibi, seed 2: no result: the loss is NaN at step 7" in text
    assert line(text, "alibi", "256")[0] == "2" and "n = 2" in text


def test_a_length_that_only_some_seeds_define_is_named():
    some = cells()
    some["alibi"][0] = result("alibi", 1, end=256)
    text = seeds_table(some)
    assert (
        line(text, "alibi", "512")[0] == "2"
        and "undefined at N = 512: the table ends at 256 (alibi, seed 1)" in text
    )


def test_the_notes_of_rows_are_told_once_with_the_cells_that_have_them():
    some = cells()
    for made in (some["alibi"][0], some["nope"][2]):
        made["rows"][3]["note"] = "fixed_targets: at 512 it is not finite in float32: distrust it"
    note = "at 512 it is not finite in float32: distrust it (nope, seed 3; alibi, seed 1)"
    assert note in seeds_table(some) and "float32" not in seeds_table(cells())


def test_one_seed_has_no_interval_and_no_seed_is_refused():
    one = {pos: results[:1] for pos, results in cells().items()}
    assert line(seeds_table(one), "alibi", "256")[:3] == ["1", "1.5000", "-0.5000"]
    assert "(one seed)" in seeds_table(one) and "[+" not in seeds_table(one)
    with pytest.raises(UserError, match="no result to compare; nope, seed 1: no result: it broke"):
        seeds_table({"nope": [{"seed": 1, "reason": "it broke"}]})


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


def test_a_curve_ends_at_the_last_defined_length_and_the_legend_says_so(drawn):
    axes, _ = drawn(plot_runs, [result(), result("learned", end=128)])
    assert axes.containers[1].lines[0].get_xydata().tolist() == [[64.0, 1.6], [128.0, 1.5]]
    assert legend(axes)[1] == "learned: undefined from N = 256 on"


def test_a_hole_in_a_curve_is_not_called_its_end(drawn):
    hole = result()
    for row in hole["rows"]:
        if row["length"] == 256:
            row.update(nats=None, reason="not a number")
    assert legend(drawn(plot_runs, [hole])[0])[0] == "alibi: undefined at N = 256"


def test_a_curve_is_broken_where_it_diverged_and_crosses_at_the_upper_edge_mark_the_place(drawn):
    axes, _ = drawn(plot_runs, [diverge(result(), 256, 512), diverge(result("rope"), 256)])
    assert legend(axes)[:2] == ["alibi: diverged from N = 256 on", "rope: diverged at N = 256"]
    marks = [x.get_xydata().tolist() for x in axes.lines if x.get_marker() == "X"]
    assert [[n for n, _ in of] for of in marks] == [[256, 512], [256]]
    heights = [height for of in marks for _, height in of]
    assert all(0.9 < height < 1 for height in heights)
    assert np.isnan(axes.containers[1].lines[0].get_ydata(orig=False)).tolist() == [0, 0, 1, 0]
    assert [t.get_text() for t in axes.get_xticklabels()] == ["64", "128", "256", "512"]


def test_runs_that_diverged_everywhere_are_drawn_alone_too(drawn):
    lost = diverge(result("rope"), *LENGTHS)
    axes, _ = drawn(plot_runs, [result(), lost])
    assert legend(axes)[1] == "rope: diverged from N = 64 on"
    for plot, shown in ((plot_runs, [lost]), (plot_seeds, {"rope": [lost]})):
        axes, path = drawn(plot, shown)
        assert path.exists() and "diverged from N = 64 on" in legend(axes)[0]


def test_the_figure_of_extensions_names_what_diverged(drawn):
    made = result(pos="rope", nats=(1.6, 1.5, 1.4, 1.3))
    yarn = diverge(result(pos="rope"), 512)["rows"]
    made["rows"] += [row | {"extend": "yarn"} for row in yarn]
    axes, _ = drawn(lambda r, path: plot_extensions(r, [], path, ""), [made])
    assert [text.get_text() for text in axes.texts].count("diverged") == 1
    assert line(extensions_table([made], []), "yarn")[-1] == "diverged"


def test_a_long_legend_leaves_the_curves_their_room(drawn):
    many = [result(f"{'a long name ' * 4}{k}") for k in range(12)]
    axes, _ = drawn(plot_runs, many)
    assert axes.get_position().height * axes.figure.get_figheight() > 3.5


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
        "learned (3 seeds): undefined from N = 256 on",
    ]


def test_a_figure_with_nothing_in_it_is_not_drawn_and_an_unknown_kind_is_refused(tmp_path, capsys):
    nothing = result(end=0)
    assert not plot_runs([nothing], tmp_path / "x.png")
    show_runs([str(tmp_path)], [nothing], "toy", "")  # a test of other protocols has its table
    assert capsys.readouterr().out.endswith("no loss of fixed_targets to draw\n")
    for kind in ("xyz", "jpg"):
        with pytest.raises(UserError, match=f"no {kind} figures; name it .png, .pdf or .svg"):
            plot_runs([result()], tmp_path / f"x.{kind}")
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


def test_rows_without_an_error_do_no_harm_and_those_of_other_blocks_are_refused(tmp_path):
    damaged = result()
    damaged["rows"][0]["stderr_vs_L"] = None
    (tmp_path / "extrapolation.json").write_text(json.dumps(damaged), encoding="utf-8")
    loaded = load_result(tmp_path)
    assert "windowed" in runs_table([loaded])
    plot_run(tmp_path, loaded)
    assert (tmp_path / "extrapolation.png").stat().st_size > 1000
    loaded["rows"][0]["block_nats"] = []
    with pytest.raises(UserError, match="different targets of toy"):
        runs_table([loaded])


def test_a_result_with_nothing_to_draw_is_kept_without_a_figure(tmp_path):
    plot_run(tmp_path, update_result(tmp_path, result(end=0)))
    assert [p.name for p in tmp_path.iterdir()] == ["extrapolation.json"]


@pytest.mark.parametrize(
    ("asked", "covered"),
    [
        ([{"length": 64}, {"length": 512}], True),
        ([{"length": 64}, {"length": 1024}], False),
        ([{"length": 64, "targets": "t", "split_sha256": "s"}], True),
        ([{"length": 64, "targets": "other"}], False),
        ([{"length": 512, "split_sha256": "other"}], False),
        ([{"length": 64, "step": 600}], False),
        ([{"length": 64, "files_sha256": {"a.json": "5"}}], False),
    ],
)
def test_rows_cover_what_is_asked_of_them(asked, covered):
    asked = [{"protocol": "fixed_targets", "dataset": "toy"} | fields for fields in asked]
    assert covers(result(end=256)["rows"], asked) is covered
    assert not covers([], asked)


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
    assert line(lines_of(capsys.readouterr().out, "alibi"), "256")[0] == "1.4900"
    assert [p.name for p in Path().glob("**/*.png")] == ["extrapolation.png"]
    command("one", "two", "one/extrapolation.png")  # as a shell's * gives it
    said = capsys.readouterr().out
    assert line(lines_of(said, "rope"), "256")[0] == "1.4900" and "drawn in" in said
    for path in ("one/extrapolation.png", "two/extrapolation.png", "extrapolation.png"):
        assert Path(path).read_bytes().startswith(b"\x89PNG")
    command("one", "two", "--out=both.svg")
    assert "<svg" in Path("both.svg").read_text(encoding="utf-8")


def test_the_program_shows_another_corpus_in_a_figure_of_its_own(command, capsys):
    command("one", "--dataset=other")
    assert line(lines_of(capsys.readouterr().out, "alibi"), "64")[0] == "2.6000"
    assert Path("one/extrapolation-other.png").exists()


def test_the_program_says_what_to_type(command):
    with pytest.raises(UserError, match="python report.py out/RUN"):
        command()
    Path("untested").mkdir()
    with pytest.raises(UserError, match="untested: no run in it; name a run folder"):
        command("untested")
    Path("untested/metrics.jsonl").touch()
    with pytest.raises(UserError, match="untested has no extrapolation.json: python evaluate.py"):
        command("untested")
    Path("two/extrapolation.json").rename("two/elsewhere")
    with pytest.raises(UserError, match="a list of runs has no figure"):
        command(".", "--out=figure.png")


def test_two_runs_that_are_equal_in_all_settings_are_told_by_their_folders(command, capsys):
    Path("three").mkdir()
    update_result("three", result("rope"))
    command("two", "three")
    said = capsys.readouterr().out
    assert "\nrope (two)\n" in said and "\nrope (three)\n" in said


# ---- the list of runs


def make_run(folder, steps=1200, tested=True, lines=(), **settings):
    """A made-up run folder of alibi, trained for so many steps."""
    values = {"pos": "alibi", "seed": 1, "dataset": "toy"} | settings
    values = TrainSettings(**values).warmed_up(values.get("max_iters", 1200))
    config = dict.fromkeys(("vocab_size", "parameters", "original_length", "threads"), 1)
    config |= dict.fromkeys(("unit", "layers", "wandb_id", "platform", "device", "dtype"), "")
    config |= dict.fromkeys(("attention", "versions", "sources_sha256"), {})
    config |= {"settings": asdict(values), "corpus_sha256": {"train": "", "val": ""}}
    config |= {"processes": 1, "train_lengths": [128], "read_before": {}, "command": []}
    config |= {"extension_files_sha256": {}, "history": [{"from_step": 0, "max_iters": 1200}]}
    folder.mkdir(parents=True)
    logged = [{"step": 20, "loss": 2.0}, {"step": steps, "loss": 1.5}, *lines]
    metrics = "".join(f"{json.dumps(one)}\n" for one in logged)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "metrics.jsonl").write_text(metrics, encoding="utf-8")
    if tested:
        update_result(folder, result(values.pos, values.seed) | {"pos": values.pos})


@pytest.fixture
def listed(tmp_path, monkeypatch, capsys):
    """What report.py prints with these words; the folder out/ is empty."""
    monkeypatch.chdir(tmp_path)
    Path("out").mkdir()

    def call(*words):
        monkeypatch.setattr("sys.argv", ["report.py", *words])
        report.main()
        return capsys.readouterr().out

    return call


def test_a_run_named_twice_is_one_and_numbers_in_names_are_in_order(listed):
    for seed in (10, 9):
        make_run(Path(f"out/alibi-s{seed}"), seed=seed)
    assert [path.name for path in report.find_runs(Path("out"))] == ["alibi-s9", "alibi-s10"]
    assert listed("out/alibi-s9", "out/alibi-s9/") == listed("out/alibi-s9")


def test_runs_are_listed_by_what_differs_with_their_steps_losses_gains_and_states(listed):
    make_run(Path("out/one"))
    make_run(Path("out/deep/er/two"), learning_rate=0.001)
    make_run(Path("out/half"), steps=600, tested=False, seed=2)
    make_run(Path("out/short"), steps=300, max_iters=300, pos="nope")
    text = listed()
    own = " ".join(line(text, "alibi", "lr=0.003", "s=1"))
    assert own == "1200/1200 2.46M 1.5000 -0.4000 finished out/one"
    assert line(text, "alibi", "lr=0.001", "s=1")[-2:] == ["finished", "out/deep/er/two"]
    half = line(text, "alibi", "lr=0.003", "s=2")
    assert " ".join(half) == "600/1200 1.23M unfinished out/half"
    # its rows are of another step than its last one
    assert " ".join(line(text, "nope", "lr=0.003", "s=1")).endswith("tested at 1200 out/short")
    assert "toy, trained at L = 128" in text and "#" not in text
    assert listed("out", "out/one") != listed("out/one") and listed("out") == text


def test_runs_of_another_corpus_or_length_are_listed_apart(listed):
    make_run(Path("out/a"), block_size=64, tested=False)
    make_run(Path("out/b"), dataset="books", pos="rope", tested=False)
    make_run(Path("out/c"), pos="rope", tested=False)
    heads = [one for one in listed().splitlines() if "trained at" in one]
    assert heads == [
        f"{name}, trained at L = {n}" for name, n in (("books", 128), ("toy", 64), ("toy", 128))
    ]


def test_a_run_that_diverged_and_one_that_is_not_finished_are_listed_as_such(listed):
    make_run(Path("out/broken"), 40, tested=False, lines=[{"step": 40, "diverged": "loss nan"}])
    make_run(Path("out/busy"), 40, tested=False, seed=2)
    with FileLock("out/busy/.lock"):  # a program that trains is not disturbed
        text = listed()
    assert line(text, "alibi", "s=1")[-2:] == ["diverged", "out/broken"]
    assert line(text, "alibi", "s=2")[-2:] == ["unfinished", "out/busy"]


def test_a_test_that_diverged_is_listed_as_such(listed):
    make_run(Path("out/one"), tested=False)
    update_result("out/one", diverge(result(), 512))
    assert "1.5000 diverged finished" in " ".join(listed().split())


def test_a_list_compares_runs_on_the_windows_that_all_have_and_says_which_do_not_compare(listed):
    make_run(Path("out/one"))
    make_run(Path("out/two"), seed=2)
    more = result(nats=(1.8, 1.7, 1.6, 1.5), targets="more")["rows"]
    fixed = [r | {"windows": 256} for r in more if r["protocol"] == "fixed_targets"]
    update_result("out/one", result() | {"rows": fixed})  # a side look with more windows
    assert [line(listed(), "alibi", s)[2] for s in ("s=1", "s=2")] == ["1.5000", "1.5000"]
    Path("out/two/extrapolation.json").unlink()
    assert line(listed(), "alibi", "s=1")[2] == "1.7000"
    update_result("out/two", result(seed=2, split="other"))
    assert "alibi s=1 and alibi s=2 were tested on different targets of toy" in listed()
    assert "toy, trained at L = 128, tested on books" in listed("out", "--dataset=books")


def test_damaged_and_half_made_runs_are_lines_and_comparisons_are_passed_over(listed):
    make_run(Path("out/good"))
    for name in ("one", "two", "three"):
        make_run(Path(f"out/bad/{name}"))
    Path("out/bad/one/config.json").write_text("{", encoding="utf-8")
    Path("out/bad/two/config.json").unlink()
    Path("out/bad/three/extrapolation.json").write_text("{}", encoding="utf-8")
    Path("out/ablate-toy").mkdir()
    Path("out/ablate-toy/results.json").write_text("{}", encoding="utf-8")
    text = listed("out")
    assert line(text, "alibi")[-1] == "out/good" and "ablate" not in text
    assert "\nout/bad/one/config.json is missing or not readable JSON" in text
    assert "\nout/bad/two is half made: it has no config.json" in text
    assert "\nout/bad/three/extrapolation.json lacks a proper pos" in text


def test_matplotlib_is_imported_only_to_draw():
    code = "import sys, report, evaluate; sys.exit('matplotlib' in sys.modules)"
    root = Path(report.__file__).parent
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


def test_in_wandb_each_extension_has_a_curve_of_its_own():
    one = result("rope")
    one["rows"] += [row | {"extend": "yarn", "nats": 1.0} for row in one["rows"]]
    found = by_extension({"rope": [one, result("rope", seed=2)]})
    assert [*found] == ["rope", "rope, yarn"]
    _, rows = rows_by_seed({name: of[:1] for name, of in found.items()})
    assert rows["rope"][1][256]["nats"] == 1.49 and rows["rope, yarn"][1][256]["nats"] == 1.0
