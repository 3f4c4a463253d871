"""The table of measured rows: what is kept, what is compared, its statistics, formats and figures."""

import csv
import io
import json
import lzma
import math
import re
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import evaluate
import report
from common.errors import UserError
from common.files import read_json, write_json
from configurable import RESULT, TrainSettings, setting_values
from measure import protocols
from run import load
from tables import figures, records, statistics
from tables.records import OLD_NAMES, Record, Result, load_rows, read_result, rows_of, select
from tables.tables import extension_table, run_table, tables, wide

L = 128
LENGTHS = (64, 128, 256, 512)


def flat(n):
    return 1.5 - 0.02 * math.log2(n)


def broken(n):
    return math.inf if n > 256 else 1.4


def ends_at_L(n):
    return 1.6 if n <= L else None


def breaks(n):
    return 1.4 + max(0.0, math.log2(n / L))


def result(pos, seed=1, loss=flat, **changes):
    """A made result: 64 windows whose losses have a spread of their own; loss(N) None: undefined."""
    known = {"lengths": LENGTHS, "windows": 64, "dtype": "float32", "step": 60, "dataset": "stdlib"}
    known |= {
        "extend": "",
        "protocols": ("fixed_targets", "windowed", "nonoverlapping"),
    } | changes
    text = np.random.default_rng(0).normal(0, 0.3, known["windows"])  # the same for all models
    noise, rows = np.random.default_rng([seed, len(pos)]), []
    for protocol in known["protocols"]:
        for n in known["lengths"]:
            row = {name: known[name] for name in ("dataset", "extend", "step", "windows", "dtype")}
            kind = "pieces" if protocol == "nonoverlapping" else "places"
            row |= {"protocol": protocol, "length": n, "split_sha256": "split of " + row["dataset"]}
            row |= {"targets": f"{kind} {known['windows']}", "checkpoint": f"step {known['step']}"}
            row["tokens_trained"] = 5000
            nats = loss(min(n, L) if protocol == "windowed" else n)
            if nats is None:
                row |= {"nats": None, "reason": f"{pos} ends at {L}"}
            elif math.isinf(nats):
                row |= {"nats": None, "diverged": True, "reason": "diverged: not finite"}
            else:
                blocks = nats + text + noise.normal(0, 0.02, known["windows"])
                row |= {"nats": blocks.mean(), "block_nats": blocks.tolist(), "stderr": 0.04}
                row |= {"stderr_vs_L": 0.003, "bits_per_byte": 2.0}
            rows.append(row)
    content = {
        "pos": pos,
        "extend": "",
        "seed": seed,
        "block_size": L,
        "first_length": L,
        "max_iters": 60,
        "parameters": 1000,
        "tokens_trained": 5000,
        "unit": "byte",
        "settings": setting_values(TrainSettings(**changes.get("settings", {})), *RESULT),
        "step": known["step"],
        "checkpoint": f"step {known['step']}",
        "rows": rows,
    }
    return read_result(content)


def frame(*several, **how):
    """The selected rows of results in folders out/0, out/1 ..."""
    return select(rows_of({f"out/{k}": one for k, one in enumerate(several)}), **how)


def seeds(count=3):
    """A comparison of five schemes."""
    schemes = {"alibi": flat, "rope | nope": breaks, "learned": ends_at_L, "yarn_x": broken}
    return frame(*(result(p, s, f) for p, f in schemes.items() for s in range(1, count + 1)))


# ---- what is kept


def test_an_evaluation_replaces_only_what_asked_the_same_question(tmp_path):
    first = result("rope")
    records.update_result(tmp_path, first)
    changes = ({"dtype": "bfloat16"}, {"windows": 256}, {"dataset": "books"}, {"extend": "pi"})
    for count, change in enumerate(({}, *changes, {"step": 120})):
        records.update_result(tmp_path, result("rope", **change))
        rows = records.load_result(tmp_path).records
        assert len(rows) == (count + 1) * len(first.records)
    assert [path.name for path in tmp_path.iterdir()] == ["extrapolation.json"]  # written whole


def test_every_field_is_in_the_file_in_csv_and_in_the_frame_and_comes_back_as_it_was(tmp_path):
    (tmp_path / "run").mkdir()
    one = result("rope", extend="pi")
    one.records[0] = replace(
        one.records[0],
        factor=2.0,
        files_sha256={"zoo/x.py": "1"},
        first_token=3,
        note="near",
        by_distance={"content": {"edges": [1, 4], "counts": [9], "right": [8], "chance": 0.1}},
    )
    records.update_result(tmp_path / "run", one)
    content = read_json(tmp_path / "run/extrapolation.json")
    names = {f.name for f in fields(Record)}
    assert all(names == set(row) for row in content.pop("rows"))
    assert set(content) == {f.name for f in fields(Result)} - {"records"}
    back = records.load_result(tmp_path / "run")
    assert asdict(back) == asdict(one)
    rows = load_rows(tmp_path / "run")
    assert names | set(content) - {"settings"} <= set(rows)
    records.save_rows(rows, tmp_path / "rows.csv.xz")
    read = load_rows(tmp_path / "rows.csv.xz")
    assert set(read) == set(rows)
    for name in ("nats", "block_nats", "by_distance", "note", "factor", "length", "extend"):
        assert read[name].map(str).tolist() == rows[name].map(str).tolist(), name


def test_a_setting_and_a_field_of_one_name_are_two_columns(tmp_path):
    """`documents` is a setting; the field of records that had the name is `blocks` now."""
    crossing, padded = result("rope"), result("rope", settings={"documents": "pad"})
    padded.records[0] = replace(padded.records[0], blocks=7)
    rows = rows_of({"a": crossing, "b": padded})
    records.save_rows(rows, tmp_path / "rows.csv.xz")
    for table in (rows, load_rows(tmp_path / "rows.csv.xz")):
        assert table.groupby("run").documents.first().to_list() == ["cross", "pad"]
        assert table.blocks.dropna().to_list() == [7]
    old = rows.drop(columns=["documents"]).rename(columns={"blocks": "documents"})
    records.save_rows(old, tmp_path / "old.csv.xz")
    assert load_rows(tmp_path / "old.csv.xz").blocks.dropna().to_list() == [7]


def test_files_with_the_names_of_older_versions_are_read(tmp_path):
    (tmp_path / "run").mkdir()
    one = answers_result("rope", 1, 64)
    records.update_result(tmp_path / "run", one)
    path = tmp_path / "run/extrapolation.json"
    older = {new: old for old, new in OLD_NAMES.items()}
    content = {older.get(name, name): value for name, value in read_json(path).items()}
    of_records = [
        {older.get(name, name): x for name, x in row.items()} | {"gone": 1, "extend": None}
        for row in content["rows"]
    ]
    write_json(path, content | {"rows": of_records, "gone": 1, "extend": None})
    text = path.read_text()
    assert '"train_length": 128' in text and '"trained": 128' in text
    assert asdict(records.load_result(tmp_path / "run")) == asdict(one)
    table = records.to_csv(load_rows(tmp_path / "run").drop(columns=["texts", "reason"]))
    head, lines = table.split("\n", 1)
    for old, new in OLD_NAMES.items():
        head = head.replace(new, old)
    (tmp_path / "old.csv").write_text(f"{head}\n{lines}")
    rows = load_rows(tmp_path / "old.csv")
    assert set(rows.block_size) == {L} and set(rows.trained_size) == {128}
    assert set(rows.reason) == {""} and rows.texts.isna().all()
    assert tables(select(rows)) == tables(select(load_rows(tmp_path / "run")))


@pytest.mark.parametrize(
    "damage",
    [
        {"records": 5},
        {"pos": None},
        {"records": [{"protocol": "windowed"}]},
        {"settings": "none"},
        {"records": [asdict(result("rope").records[0]) | {"nats": "x"}]},
    ],
)
def test_a_damaged_result_is_named_with_the_command_that_makes_it_anew(damage, tmp_path):
    with pytest.raises(UserError, match=f"{tmp_path} has no extrapolation.json"):
        records.load_result(tmp_path)
    write_json(tmp_path / "extrapolation.json", asdict(result("rope")) | damage)
    with pytest.raises(UserError, match="is damaged .*: delete it, python evaluate.py"):
        records.load_result(tmp_path)
    (tmp_path / "extrapolation.json").write_text("{")
    with pytest.raises(UserError, match="extrapolation.json"):
        records.load_result(tmp_path)


def test_a_result_has_the_settings_that_change_it():
    config = SimpleNamespace(first_length=32, pos="nope")
    model = SimpleNamespace(pos=SimpleNamespace(extend_text=""), config=config, parameter_count=7)
    settings = TrainSettings(pos="alibi", n_layer=2, drop_pos=0.5, max_iters=9, block_size=64)
    run = SimpleNamespace(model=model, settings=settings, step=5, tokens=10, digest="c" * 64)
    run.config = {"files_sha256": {"zoo/x.py": "1" * 64}}
    found = load.describe_run(run)
    assert found.scheme_files == "zoo/x.py:111111"
    assert found.pos == "alibi (dropped)" and found.settings["n_layer"] == 2
    assert (found.block_size, found.first_length, found.max_iters) == (64, 32, 9)
    config.pos = "alibi"  # a test before the step that drops it
    assert load.describe_run(run).pos == "alibi"
    assert protocols.tested_lengths(128) == [64, 128, 256, 512, 1024, 2048, 4096]
    assert protocols.tested_lengths(128, (300, 100)) == [100, 128, 300]


# ---- what is compared with what


def test_labels_say_what_differs_among_the_runs_and_nothing_else():
    slow = {"settings": {"learning_rate": 0.001, "n_layer": 2}}
    fast = {"settings": {"learning_rate": 0.003, "n_layer": 2}}
    rows = frame(result("rope", **fast), result("rope", **slow))
    assert list(rows.label.unique()) == ["rope learning_rate=0.003", "rope learning_rate=0.001"]
    assert set(rows.learning_rate) == {0.001, 0.003}  # a column for each setting that differs
    rows = frame(result("rope"), result("rope"), result("rope", 2))
    # equal in all, and another seed
    assert list(rows.label.unique()) == ["rope", "rope (out/1)"]
    rows = rows_of({"out/0": result("rope", extend="pi"), "out/1": result("rope")})
    assert list(rows.label.unique()) == ["rope, pi", "rope"]
    rows = frame(result("rope"), result("rope", settings={"dataset": "books"}))
    assert list(rows.label.unique()) == ["rope dataset=stdlib", "rope dataset=books"]
    rows = frame(result("rope"), result("mine", settings={"pos_file": "mine.py"}))
    assert list(rows.label.unique()) == ["rope", "mine"]


def test_fine_tunes_of_seeds_are_seeds_of_one_model_whatever_its_folders_are_called():
    def tuned(seed, source, model):
        one = result("rope", seed, settings={"init_from": source})
        return replace(one, source_model=model)

    assert set(frame(tuned(1, "a", "0a"), tuned(2, "b", "0a")).label) == {"rope"}
    two = frame(tuned(1, "a-s1", "0a"), tuned(2, "a-s2", "0b"))
    assert list(two.label.unique()) == ["rope init_from=a-s1", "rope init_from=a-s2"]
    # a folder that was trained on in between
    again = frame(tuned(1, "a", "0a"), tuned(2, "a", "0b"))
    assert list(again.label.unique()) == ["rope init_from=a", "rope init_from=a (out/1)"]


def test_a_long_list_of_settings_gives_way_to_a_folder():
    changes = {"optimizer": "adamw", "learning_rate": 5e-4, "init_from": "out/first", "beta2": 0.9}
    tuned = [
        replace(result("rope", s, settings=changes | {"block_size": 512}), block_size=512)
        for s in (1, 2, 3)
    ]
    rows = frame(result("rope"), *tuned)
    first, second = rows.label.unique()
    assert (
        first == "rope (out/0)"
        and second == "rope (out/1)"
        and rows.label.value_counts()[second] == 36
    )
    text = tables(rows)
    assert "stdlib, trained at L = 128 and 512;" in text
    assert max(map(len, text.split("\n\n")[1].splitlines())) < 60
    assert "tuned" in set(records.rename(rows, "rope (out/1)=tuned").label)


def test_an_unfinished_run_says_so_wherever_it_stands():
    rows = frame(result("rope", step=2), result("rope", 2), result("rope", 3))
    assert "rope (unfinished: step 2 of 60)" in tables(rows)
    assert "unfinished" in tables(rows, "csv")
    assert statistics.over_seeds(rows).seeds.tolist() == [1] * 4 + [2] * 4  # and is in no mean
    assert "unfinished: step 2 of 60" in run_table(result("rope", step=2))


def test_the_newest_rows_of_one_corpus_and_one_extension_are_shown():
    one = result("rope")
    for change in ({"step": 30}, {"dataset": "books"}, {"extend": "pi"}):
        one.records = result("rope", **change).records + one.records
    again = result("rope", loss=breaks, lengths=(512, 64)).records
    one.records += again
    rows = frame(one)
    assert list(wide(statistics.over_seeds(rows), "mean")) == list(LENGTHS)  # ascending
    assert len(rows) == 12 and set(rows.step) == {60} and set(rows.dataset) == {"stdlib"}
    newest = rows[(rows.protocol == "fixed_targets") & (rows.length == 512)]
    assert newest.nats.item() == again[0].nats
    assert set(frame(one, dataset="books").dataset) == {"books"}
    assert set(frame(one, extend="all").label) == {"rope", "rope, pi"}
    with pytest.raises(UserError, match="alibi was not tested on books: run evaluate.py on it"):
        frame(one, result("alibi"), dataset="books")


def test_rows_of_an_earlier_checkpoint_do_not_replace_those_of_the_last_step():
    one = result("rope")
    change = {"step": 40, "checkpoint": "step 40", "nats": 9.0}
    earlier = [replace(record, **change) for record in one.records]
    rows = frame(replace(one, records=one.records + earlier))  # as after a checkpoint was damaged
    assert set(rows.step) == {60} and len(rows) == len(one.records)


def test_a_second_test_on_other_windows_leaves_no_seed_out():
    """Two seeds on 64 windows; one also on 128, and with an extension on 64 again."""
    fixed = {"protocols": ("fixed_targets",)}
    first = result("rope", **fixed)
    for change in ({"windows": 128}, {"extend": "pi"}):
        first.records += result("rope", **fixed, **change).records
    second = result("rope", 2, **fixed)
    second.records += result("rope", 2, extend="pi", **fixed).records
    shown = frame(first, second, extend="all")
    assert set(shown.windows) == {64}
    assert (statistics.over_seeds(shown).seeds == 2).all()


def test_models_of_two_sizes_are_not_seeds_of_one():
    with pytest.raises(UserError, match="rope names models that differ in size"):
        frame(result("rope"), replace(result("rope", 2), parameters=2000))


def test_a_seed_that_diverged_leaves_no_interval_and_no_difference():
    runs = [result("alibi", seed, broken if seed == 2 else flat) for seed in range(4)]
    runs += [result("rope", seed, breaks) for seed in range(4)]
    table = statistics.over_seeds(frame(*runs)).set_index(["label", "length"])
    found = table.loc["rope", 4 * L]  # alibi is the first
    assert math.isnan(found.difference) and math.isnan(found.error)
    found = table.loc["alibi", 4 * L]
    assert found["mean"] == math.inf and math.isnan(found.half)


def test_only_rows_on_the_same_targets_are_compared():
    with pytest.raises(UserError, match="alibi: different targets of stdlib"):
        frame(result("rope"), result("alibi", windows=256))
    one = result("rope")
    one.records[3].targets = "other places"  # fixed_targets at the longest N
    rows = frame(one, result("alibi"))
    assert len(rows) == 2 * len(one.records) - 1
    one.records[-1].targets = "longer pieces"  # nonoverlapping at the longest N
    assert len(frame(one)) == len(one.records) - 1
    mixed = frame(result("rope"), result("alibi", dtype="bfloat16"))
    assert "different number formats are compared" in tables(mixed)
    assert "number formats" not in tables(frame(result("rope"), result("alibi")))
    a, b = one.records[0], one.records[-1]
    assert statistics.paired(a, b) is None


# ---- numbers


def test_the_table_of_a_run_by_hand():
    one = result("rope", loss=breaks)
    found = statistics.length_table(frame(one))
    place = {(record.protocol, record.length): record for record in one.records}
    for n in LENGTHS:
        fixed, base = place["fixed_targets", n], place["fixed_targets", L]
        assert found.fixed_targets[n] == fixed.nats
        if n == L:
            assert math.isnan(found.gain[n])
            continue
        gains = np.subtract(base.block_nats, fixed.block_nats)
        assert found.gain[n] == pytest.approx(gains.mean())
        assert found.gain_stderr[n] == pytest.approx(stats.sem(gains))
        far = np.subtract(place["windowed", n].block_nats, fixed.block_nats)
        if n > L:
            assert found.far[n] == pytest.approx(far.mean())
            assert found.far_stderr[n] == pytest.approx(stats.sem(far))
    summary = statistics.summary(frame(one))
    assert summary == {"loss_L": found.fixed_targets[L], "gain_4L": found.gain[4 * L]}


def test_bits_per_byte_stand_only_beside_the_protocol_that_they_belong_to():
    assert "nonoverlapping  bits/byte\n" in tables(frame(result("rope")))
    fixed = tables(frame(result("rope", protocols=("fixed_targets", "windowed"))))
    assert "bits/byte" not in fixed and "nonoverlapping" not in fixed and "windowed:" in fixed
    some = result("rope")
    some.records = [r for r in some.records if r.protocol != "nonoverlapping" or r.length < L]
    table = statistics.length_table(frame(some))
    assert (table["bits/byte"].isna() == table.nonoverlapping.isna()).all()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"loss": lambda n: 2 - 0.1 * math.log2(n)}, None),
        ({"loss": lambda n: 2 - 0.1 * math.log2(min(n, L))}, "nowhere clearly below windowed"),
        ({"loss": lambda n: 1.5}, "is not clearly below"),
        ({"lengths": (128, 256)}, ": L/2 was not tested"),
        ({"lengths": (64, 128)}, ": no N > L was tested"),
        ({"protocols": ("fixed_targets",)}, ": no N > L was tested"),
        ({"protocols": ("nonoverlapping",)}, None),
    ],
)
def test_a_run_is_doubted_only_for_what_it_was_asked(how, words):
    found = statistics.doubts(frame(result("rope", **how)))
    assert re.search(words, found) if words else not found


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_over_seeds_a_difference_has_the_error_of_the_seeds_and_of_the_text(count):
    table = statistics.over_seeds(seeds(count)).set_index(["label", "length"])
    first, second = (
        [result(p, s, f) for s in range(1, count + 1)]
        for p, f in (("alibi", flat), ("rope | nope", breaks))
    )
    for k, n in enumerate(LENGTHS):  # fixed_targets are the first rows
        a, b = (np.array([one.records[k].nats for one in side]) for side in (first, second))
        row = table.loc["rope | nope", n]
        assert row.seeds == count and row["mean"] == pytest.approx(b.mean())
        assert row.difference == pytest.approx((b - a).mean())
        assert row.shared == count
        of_text = np.mean(
            [
                np.subtract(y.records[k].block_nats, x.records[k].block_nats)
                for x, y in zip(first, second, strict=True)
            ],
            axis=0,
        )
        over_text = stats.ttest_1samp(of_text, of_text.mean() - 1).confidence_interval(0.95)
        over_text = (over_text.high - over_text.low) / 2
        if count < 3:  # two seeds show nothing about others
            assert row.error == pytest.approx(over_text) and math.isnan(row.half)
            continue
        interval = stats.ttest_rel(b, a).confidence_interval(0.95)
        both = math.hypot((interval.high - interval.low) / 2, over_text)
        assert row.error == pytest.approx(both)
        own = stats.ttest_1samp(b, 0).confidence_interval(0.95)
        assert row.half == pytest.approx((own.high - own.low) / 2)
    assert table.loc["yarn_x", 512]["mean"] == math.inf and ("learned", 256) not in table.index
    assert math.isnan(table.loc["yarn_x", 512].difference)
    assert [name for name in table if name.startswith("p")] == ["protocol"]  # no p of two seeds


def test_only_seeds_that_both_have_are_paired():
    rows = frame(*(result("alibi", s) for s in (1, 2, 3, 4)), *(result("rope", s) for s in (2, 9)))
    row = statistics.over_seeds(rows).set_index(["label", "length"]).loc["rope", L]
    a, b = result("alibi", 2).records[1], result("rope", 2).records[1]
    assert row.seeds == 2 and row.difference == pytest.approx(statistics.paired(b, a)[0])


def test_a_length_that_not_all_seeds_have_is_in_no_mean_and_no_line(tmp_path, monkeypatch):
    longer = [result("alibi", 1)] + [result("alibi", s, lengths=LENGTHS[:3]) for s in (2, 3)]
    rows = frame(*longer, *(result("rope", s, breaks) for s in (1, 2, 3)))
    table = statistics.over_seeds(rows).set_index(["label", "length"])
    assert ("alibi", 512) not in table.index and (table.seeds == 3).all()
    row = table.loc["rope", 512]  # nothing to compare it with
    assert math.isfinite(row["mean"]) and math.isnan(row.difference) and math.isnan(row.error)
    assert table.loc["rope", 256].shared == 3
    curve = drawn(rows, tmp_path / "seeds.png", monkeypatch).containers[0]
    assert list(curve.lines[0].get_xdata()) == [64, 128, 256]
    assert "where all were tested" in tables(rows)
    assert "\nat N = 256 rope is higher than alibi by " in tables(rows)


def spread(pos, levels):
    """A result for each of these levels, a seed each."""
    return [result(pos, s, lambda n, x=x: x) for s, x in enumerate(levels, 1)]


def test_the_verdict_says_what_is_decided_and_what_is_not():
    first = spread("alibi", (1.50, 1.51, 1.52))
    others = {
        "better": (1.40, 1.41, 1.42),
        "worse": (1.60, 1.61, 1.62),
        "unclear": (1.40, 1.51, 1.64),
        "alibi2": (1.50, 1.51, 1.52),  # other noise
    }
    runs = [one for pos, levels in others.items() for one in spread(pos, levels)]
    equal = [replace(one, pos="equal") for one in first]
    lost = [result("learned", s, ends_at_L) for s in (1, 2, 3)]
    rows = frame(*first, *runs, *equal, *lost)
    schemes = statistics.over_seeds(rows)
    lines = statistics.verdict(schemes)
    assert len(lines) == len(others) + 2  # and not a line for each pair
    assert "\n".join(lines) in tables(rows)
    assert lines.pop(4) == "at N = 512 equal has the loss of alibi"
    for line, label in zip(lines, [*others, "learned"], strict=True):
        n = L if label == "learned" else 512  # where it ends
        row = schemes[(schemes.label == label) & (schemes.length == n)].iloc[0]
        side = "lower" if row.difference < 0 else "higher"
        by = f"{abs(row.difference):.4f} ± {row.error:.4f}"
        assert line.startswith(f"at N = {n} {label} is {side} than alibi by {by}")
        assert ("not decided" in line) == (label in ("unclear", "alibi2"))
    assert "lower" in lines[0] and "higher" in lines[1]
    assert all(f"\n% {line}\n" in tables(rows, "tex") for line in lines)
    assert statistics.verdict(statistics.over_seeds(frame(*first))) == []
    # where the first ends, they are compared there
    lines = statistics.verdict(statistics.over_seeds(frame(*lost, *first)))
    assert lines[0].startswith("at N = 128 alibi is lower than learned by ")


def test_what_rises_from_L_is_said_with_the_interval_of_its_seeds_and_windows():
    """alibi falls, rope rises, flat does neither; learned is not tested beyond L."""
    falls = [result("alibi", s, lambda n: 2.0 - 1e-3 * n) for s in (1, 2, 3)]
    rises = [result("rope", s, breaks) for s in (1, 2, 3)]
    level = [result("flat", s, lambda n: 1.5) for s in (1, 2, 3)]
    ends = [result("learned", s, ends_at_L) for s in (1, 2, 3)]
    rows = frame(*falls, *rises, *level, *ends)
    lines = statistics.rises(rows, "fixed_targets")
    fixed = rows[rows.protocol == "fixed_targets"].set_index(["label", "length", "seed"])
    for line, label in zip(lines, ["alibi", "rope", "flat"], strict=True):
        blocks = fixed.block_nats[label]
        changes = np.array([np.subtract(blocks[512, s], blocks[L, s]) for s in (1, 2, 3)])
        parts = [
            stats.t.ppf(0.975, len(means) - 1) * stats.sem(means)
            for means in (changes.mean(axis=1), changes.mean(axis=0))
        ]
        by = f"{abs(changes.mean()):.4f} ± {np.hypot(*parts):.4f}"
        verb = "rises" if changes.mean() > 0 else "falls"
        assert line.startswith(f"{label} {verb} from L to 512 by {by}")
        assert ("not decided" in line) == (label == "flat")
    assert "falls" in lines[0] and "rises" in lines[1]
    assert "\n".join(lines) in tables(rows) and "% rope rises from L to 512" in tables(rows, "tex")
    assert statistics.rises(rows, "nonoverlapping") == []  # other targets at other lengths
    one = statistics.rises(frame(rises[0]), "fixed_targets")
    assert one[0].endswith(" (of these runs; seeds: 1)")
    assert statistics.rises(rows[rows.length != L], "fixed_targets") == []
    lost = rows.assign(nats=rows.nats.mask((rows.label == "rope") & (rows.length == 512)))
    lost["diverged"] |= lost.nats.isna()
    assert statistics.rises(lost, "fixed_targets")[1] == "rope diverges in a test of 512"
    # a length that only some seeds have is none of the comparison
    uneven = frame(*falls)
    uneven = uneven[(uneven.length < 512) | (uneven.seed == 1)]
    assert statistics.rises(uneven, "fixed_targets")[0].startswith("alibi falls from L to 256 by")


@pytest.mark.parametrize("protocol", ["fixed_targets", "nonoverlapping"])
def test_as_many_seeds_or_windows_as_it_says_halve_the_larger_part(protocol):
    generator = np.random.default_rng(0)

    def width(count):
        """Of Student's 95 % interval, for the same standard deviation."""
        return stats.t.ppf(0.975, count - 1) / math.sqrt(count)

    for n_seeds in (3, 4, 5, 8, 10, 20):
        of_seeds = generator.normal(0, 0.1, (n_seeds, 1))
        of_text = generator.normal(0, 0.01, (1, 64))
        pair = statistics.paired_interval(pd.DataFrame(of_seeds + of_text))
        line = pd.Series({**pair, "protocol": protocol, "windows": 64.0})
        said = re.fullmatch(r"seeds; (\d+) would halve that part", statistics.halving(line))
        more = int(said[1])
        assert width(more) <= width(n_seeds) / 2 < width(more - 1)
    for n_seeds in (1, 2, 3):
        of_seeds = generator.normal(0, 1e-4, (n_seeds, 1))
        pair = statistics.paired_interval(pd.DataFrame(of_seeds + of_text))
        line = pd.Series({**pair, "protocol": protocol, "windows": 64.0})
        said = {
            "fixed_targets": "the text; 256 windows would halve that part",
            "nonoverlapping": "the text",  # its windows are always the same
        }
        assert statistics.halving(line) == said[protocol]
    assert width(256) == pytest.approx(width(64) / 2, rel=0.03)


def test_runs_without_a_common_seed_are_said_to_have_no_difference():
    rows = frame(result("alibi", 1), result("rope", 2), result("nope", 1))
    lines = statistics.verdict(statistics.over_seeds(rows))
    assert lines[0] == "rope: no loss to compare with alibi, of the same seed and length"
    assert lines[1].startswith("at N = 512 nope is ") and lines[0] in tables(rows)
    # the first is that of the protocol
    some = rows[(rows.label != "alibi") | (rows.protocol == "fixed_targets")]
    windowed = statistics.over_seeds(some.assign(seed=1), ["fixed_targets", "windowed"])
    lines = statistics.verdict(windowed[windowed.protocol == "windowed"])
    assert len(lines) == 1 and " nope is " in lines[0] and " than rope by " in lines[0]


def test_an_extension_gains_over_the_cropped_model_of_the_same_seed():
    several = []
    for seed in (1, 2):
        one = result("rope", seed, breaks)
        one.records += result("rope", seed, flat, extend="pi").records
        one.records += result("rope", seed, broken, extend="ntk").records
        several.append(one)
    rows = frame(*several, extend="all")
    gains = statistics.extension_gains(rows).set_index(["label", "length"])
    by_hand = [one.records[1].nats - one.records[12 + 3].nats for one in several]
    assert gains.loc["rope, pi", 512]["mean"] == pytest.approx(np.mean(by_hand))
    blocks = [
        np.subtract(one.records[1].block_nats, one.records[12 + 3].block_nats) for one in several
    ]
    half = stats.t.ppf(0.975, 63) * stats.sem(np.mean(blocks, axis=0))  # of two seeds
    assert gains.loc["rope, pi", 512].error == pytest.approx(half)
    assert gains.loc["rope, ntk", 512]["mean"] == -math.inf
    text = extension_table(rows)
    assert "gain over cropping" in text and f"{np.mean(by_hand):.4f}" in text
    assert "with fewer than three seeds" in text and f"{half:.4f}" in text
    assert "more than ±: rope, pi at 256, rope, pi at 512\n" in text
    text = extension_table(rows[rows.extend != "pi"])
    assert "better than cutting the text to L, by more than ±: nothing\n" in text
    text = extension_table(rows[rows.seed == 1])
    assert text.count("±: half") == 1 and "seeds " not in text.splitlines()[2]


# ---- formats and files


def test_text_has_a_line_for_each_length_and_names_what_is_missing():
    rows = frame(result("alibi"), result("learned", loss=ends_at_L), result("yarn_x", loss=broken))
    text = tables(rows)
    assert "learned ends at 128" in text and "diverged: not finite" in text
    numbers = statistics.length_table(rows[rows.label == "alibi"])
    alone = tables(rows[rows.label == "alibi"])
    assert alone.startswith("alibi on stdlib")
    means = " ".join(f"{numbers.fixed_targets[n]:.4f}" for n in LENGTHS)
    assert f"alibi {means}\n" in text
    assert [line for line in f"{text}\n{alone}".splitlines() if len(line) > 100] == []
    notes = run_table(result("rope", loss=lambda n: 1.5)).split("\n\n")[2]
    assert len(notes.splitlines()) == 5


def test_a_doubt_is_of_all_that_was_tested_whatever_is_shown():
    for loss, is_doubted in ((flat, False), (breaks, True)):
        rows = frame(result("rope", loss=loss))
        whole, part = (
            re.findall("does not show.*", tables(rows, names=x)) for x in ([], ["fixed_targets"])
        )
        assert whole == part and bool(whole) == is_doubted
    undefined = frame(result("rope", loss=lambda n: None if n == L else 1.4))
    assert "there is no loss at L, or none at L/2" in tables(undefined)
    assert "L/2 was not tested" in tables(rows[rows.length != L // 2])


def test_markdown_and_latex_are_whole_tables():
    rows = seeds()
    for line in tables(rows, "md").splitlines():
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) in (6, 7)  # label, lengths, seeds
    tex = tables(rows, "tex")
    columns = re.search(r"tabular\}\{[@{}]*([lr]+)", tex)[1]
    lines = [line for line in tex.splitlines() if " & " in line]
    assert len(lines) > 4 and tex.count("rule") == 3 and tex.count("tabular") == 2
    for line in lines:
        assert line.endswith("\\\\") and line.count(" & ") + 1 == len(columns)
        assert not re.search(r"(?<!\\)[_%#]|(?<!\$)-\d", line)  # escaped; a minus is one
        assert line.count("$") % 2 == 0 and "rope | nope" not in line


def test_a_table_in_latex_gives_paired_differences_to_the_first_scheme():
    rows = seeds()
    tex = tables(rows, "tex", (512, 128))
    nats = rows[(rows.protocol == "fixed_targets") & (rows.length == 512)].set_index("seed")
    of = {label: of_label.nats for label, of_label in nats.groupby("label")}
    difference = (of["rope | nope"] - of["alibi"]).mean()
    assert f"% at N = 512 rope | nope is higher than alibi by {difference:.4f} ±" in tex


def test_notes_name_their_runs_and_checks_in_float32_stand_below_a_run_alone():
    rows = seeds()
    first = rows.run == rows.run.iloc[0]
    check = "fixed_targets at 512, 8 windows: bfloat16 minus float32 is +0.00010 nats"
    noted = rows.assign(note=np.where(first, f"near; {check}", ""))
    assert "alibi: near" in tables(noted) and "minus float32" not in tables(noted)
    assert "near" in tables(noted[first]) and "minus float32" in tables(noted[first])


def test_a_table_in_latex_has_means_and_intervals():
    rows = seeds()
    tex = tables(rows, "tex", (512, 128))
    assert re.search("scheme & 128 & 512 ", tex)
    lines = {line.split(" & ")[0]: line for line in tex.splitlines() if " & " in line}
    names = {"alibi": "alibi", "rope | nope": "rope $|$ nope", "yarn_x": "yarn\\_x"}
    for label, name in names.items():
        expected = [name]
        for n in (128, 512):
            place = (rows.label == label) & (rows.length == n) & (rows.protocol == "fixed_targets")
            nats = rows.nats[place]
            if nats.isna().any():
                expected.append("diverged")
                continue
            half = stats.ttest_1samp(nats, 0).confidence_interval(0.95).high - nats.mean()
            mean = f"{nats.mean():.3f}"
            expected.append(rf"{mean} $\pm$ {half:.3f}")
        assert lines[name] == " & ".join(expected) + " \\\\"
    assert lines["learned"].endswith("&  \\\\") and "t-interval over seeds" in tex
    ours = records.rename(rows, "alibi=ALiBi <ours>")
    assert "ALiBi <ours> & " in tables(ours, "tex", (512, 128))
    assert "\\pm" not in tables(seeds(2), "tex").split("tabular")[1]  # of two seeds
    with pytest.raises(UserError, match="only .64, 128, 256, 512. were tested"):
        tables(rows, "text", (300,))


def test_labels_of_the_users_own(tmp_path):
    rows = seeds()
    pairs = {"alibi": "ALiBi", "rope | nope": "R(a, b)"}
    (tmp_path / "names").write_text("".join(f"{label}={name}\n" for label, name in pairs.items()))
    text = ";".join(f"{label}={name}" for label, name in pairs.items())
    for labels in (text, str(tmp_path / "names")):
        named = records.rename(rows, labels)
        assert list(named.label.unique()) == ["ALiBi", "R(a, b)", "learned", "yarn_x"]
        assert all("rope | nope" not in tables(named, format) for format in ("text", "tex"))
    assert records.rename(rows, "").equals(rows)
    comma = rows.assign(label="rope, yarn(factor=2)")
    assert set(records.rename(comma, "rope, yarn(factor=2)=YaRN, s = 2").label) == {"YaRN, s = 2"}
    for labels, words in {
        "fox=Fox": "'fox=Fox' renames no label: ",
        "alibi=learned": "same name",
    }.items():
        with pytest.raises(UserError, match=re.escape(words)):
            records.rename(rows, labels)


def test_a_label_in_markdown_is_as_it_was_typed():
    rows = frame(result("rope"), result("alibi"))
    label = 'rope, longrope(file="x.json")'
    rows["label"] = rows.label.replace("rope", label)
    assert f"| {label} |" in tables(rows, "md")


def test_csv_is_the_measured_rows():
    rows = seeds()
    read = pd.read_csv(io.StringIO(tables(rows, "csv")))
    assert list(read.label) == list(rows.label)
    assert list(read.nats) == pytest.approx(list(rows.nats), abs=1e-12, nan_ok=True)
    numbers = [float(x) for x in read.block_nats[0].split()]
    assert numbers == pytest.approx(rows.block_nats[0])


def test_rows_that_are_saved_are_read_as_they_were(tmp_path):
    rows = rows_of({f"out/{s}": result("rope", s, broken) for s in (1, 2, 3)})
    records.save_rows(rows, tmp_path / "rows.csv.xz")
    plain = tmp_path / "plain.csv"
    plain.write_bytes(lzma.decompress((tmp_path / "rows.csv.xz").read_bytes()))
    for place in (tmp_path, tmp_path / "rows.csv.xz", plain):
        back = select(load_rows([place]))
        pd.testing.assert_frame_equal(
            statistics.over_seeds(back), statistics.over_seeds(select(rows))
        )
        assert tables(back) == tables(select(rows))
    (tmp_path / "rows.csv.xz").write_text("[")
    with pytest.raises(UserError, match="rows.csv.xz is damaged"):
        load_rows([tmp_path])


# ---- figures


def drawn(rows, path, monkeypatch, size=None):
    """The axes that plot_rows draws."""
    kept, save = [], figures.save_figure
    monkeypatch.setattr(
        figures, "save_figure", lambda figure, at: kept.append(figure) or save(figure, at)
    )
    assert figures.plot_rows(rows, path, size) and path.exists()
    return kept[0].axes[0]


@pytest.mark.parametrize("kind", ["png", "pdf", "svg"])
def test_a_figure_has_each_mean_its_interval_and_its_name(kind, tmp_path, monkeypatch):
    rows = seeds()
    axes = drawn(rows, tmp_path / f"figure.{kind}", monkeypatch)
    table = statistics.over_seeds(rows)
    for curve in axes.containers:
        line, _, (bars,) = curve.lines
        own = table[table.label == line.get_label()]
        means = own["mean"].replace(math.inf, math.nan).dropna()
        heights = np.asarray(line.get_ydata(), dtype=float)
        assert heights[np.isfinite(heights)] == pytest.approx(means.to_numpy())
        (x, low), (_, high) = bars.get_segments()[0]
        half = own.set_index("length").half[x]
        assert (high - low) / 2 == pytest.approx(half)
    names = {text.get_text() for text in axes.texts}
    assert names == {"L = 128", "alibi", "rope | nope", "learned", "yarn_x"}
    if kind == "pdf":
        content = (tmp_path / "figure.pdf").read_bytes()
        assert b"/Type3" not in content
        assert b"/TrueType" in content or b"/CIDFontType2" in content


def test_one_seed_has_the_paired_error_as_its_bar(tmp_path, monkeypatch):
    mixed = frame(result("rope"))
    mixed.loc[mixed.length == 4 * L, "stderr_vs_L"] = 0.1
    axes = drawn(mixed[::-1], tmp_path / "mixed.png", monkeypatch)  # the longest test came first
    (curve,) = axes.containers
    for (x, low), (_, high) in curve.lines[2][0].get_segments():
        assert (high - low) / 2 == pytest.approx(0.1 if x == 4 * L else 0.003)
    assert "one seed: standard error" in axes.get_xlabel()
    axes = drawn(seeds(), tmp_path / "three.png", monkeypatch)
    assert "bars: 95 % interval" in axes.get_xlabel() and "cut to L" in axes.get_xlabel()


def test_a_figure_for_a_column_fits_it(tmp_path, monkeypatch):
    rows = seeds()
    for name in ("yarn_x", "a scheme that has quite a long name"):
        named = records.rename(rows, f"yarn_x={name}")
        axes = drawn(named, tmp_path / "column.pdf", monkeypatch, (3.25, 2.2))
        figure = axes.figure
        assert tuple(figure.get_size_inches()) == (3.25, 2.2)
        assert not axes.get_title() and axes.get_xlabel() == "test length, bytes"
        figure.draw_without_rendering()
        low, high = axes.get_xlim()
        ticks = [x for x in axes.get_xticklabels() if low <= x.get_position()[0] <= high]
        texts = [axes.xaxis.label, axes.yaxis.label, *axes.texts, *ticks]
        written = [text.get_text() for text in axes.texts]
        for legend in figure.legends:
            written += [text.get_text() for text in legend.get_texts()]
            texts.append(legend)
        assert set(named.label) <= set(written) and bool(figure.legends) == (name != "yarn_x")
        for text in texts:
            box = text.get_window_extent()
            assert box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1
        assert axes.get_window_extent().height > 0.3 * figure.bbox.height


def test_nothing_to_draw_draws_nothing(tmp_path):
    lost = frame(result("rope", loss=lambda n: None))
    assert not figures.plot_rows(lost, tmp_path / "none.png") and not list(tmp_path.iterdir())
    figures.plot_run(tmp_path, result("rope", loss=lambda n: math.inf))
    assert not list(tmp_path.iterdir())
    figures.plot_run(tmp_path, result("rope", protocols=("nonoverlapping",)))
    assert len(list(tmp_path.iterdir())) == 1  # the only protocol is drawn


def answers_result(pos, seed, far):
    """A made result on rows with answers: right up to the distance `far`, else a third."""
    edges = [1, 4, 16, 64, 256]
    one = result(pos, seed, protocols=())
    for n in (128, 256):
        right = [1000 if edge <= far else 333 for edge in edges[1:]]
        bins = {"k": {"edges": edges, "counts": [1000] * 4, "right": right, "chance": 0.1}}
        row = {"protocol": "recall", "length": n, "extend": "", "dataset": "recall", "step": 60}
        row |= {"split_sha256": "s", "targets": f"t{n}", "checkpoint": "step 60", "nats": 0.1}
        row |= {"trained_size": 128, "accuracy": sum(right) / 4000, "by_distance": bins}
        one.records.append(Record(**row, block_nats=[0.1], dtype="float32"))
    one.settings["dataset"] = "recall"
    return one


def test_rows_with_answers_are_tabled_and_drawn_by_distance(tmp_path, monkeypatch):
    rows = frame(
        *(answers_result(p, s, far) for p, far in (("alibi", 64), ("rope", 256)) for s in (1, 2))
    )
    text = tables(rows)
    assert re.search(r"rope s=1 +k +128 +1.00 +1.00 +1.00 +1.00\n", text)
    assert "rope s=2: finds names up to 256 back" in text
    assert "alibi s=1: has not learned to find a name" in text
    assert statistics.summary(rows[(rows.label == "rope") & (rows.seed == 1)]) == {"reach": 256}
    axes = drawn(rows, tmp_path / "recall.png", monkeypatch)
    curves = [line for line in axes.lines if line.get_label() in ("alibi", "rope")]
    above = (0.333 - 0.1) / 0.9
    drawn_shares = [list(line.get_ydata()) for line in curves]
    assert np.allclose(drawn_shares, [[1, 1, 1, above]] * 2 + [[1, 1, 1, 1]] * 2)
    assert tables(rows, "tex").count("tabular") == 2
    assert "accuracy above chance" in axes.get_ylabel() and "order" in axes.get_xlabel()


def test_every_published_comparison_is_still_read_and_tabled():
    for folder in ("seven", "stdlib-six", "models", "length", "gpu"):
        rows = select(load_rows(Path(__file__).parents[1] / "results" / folder), extend="all")
        assert rows.label.iloc[0] in tables(rows)


# ---- the programs

CONFIG = {"dtype": "float32", "train_lengths": [L], "files_sha256": {}, "corpus_sha256": {}}


@pytest.fixture
def out(tmp_path, monkeypatch):
    """Three run folders in out/, one of them unfinished, and a command: its output."""
    monkeypatch.chdir(tmp_path)
    for name, one in {
        "a": result("alibi"),
        "b": result("rope"),
        "c": result("rope", 2, step=2),
    }.items():
        (tmp_path / "out" / name).mkdir(parents=True)
        s = TrainSettings(pos=one.pos, seed=one.seed, max_iters=60)
        write_json(tmp_path / f"out/{name}/config.json", CONFIG | {"settings": asdict(s)})
        records.update_result(f"out/{name}", one)
        line = json.dumps({"step": one.step, "loss": 2.0})
        (tmp_path / "out" / name / "metrics.jsonl").write_text(f"{line}\n")
    return tmp_path


def run_report(capsys, monkeypatch, *words):
    monkeypatch.setattr("sys.argv", ["report.py", *words])
    report.main()
    captured = capsys.readouterr()
    return captured.out + captured.err


def test_report_prints_draws_and_lists(out, capsys, monkeypatch):
    text = run_report(capsys, monkeypatch, "out/a", "out/b", "--out=both.pdf")
    assert "drawn in both.pdf" in text and (out / "both.pdf").exists()
    assert text.startswith(tables(select(load_rows(["out/a", "out/b"]))))
    assert "\\begin{tabular}" in run_report(capsys, monkeypatch, "out/a", "--format=tex")
    listed = run_report(capsys, monkeypatch)
    loss = result("alibi").records[1].nats
    assert "runs: 3" in listed and f"{loss:.4f}" in listed and listed.count("2/60") == 1
    rows = list(csv.DictReader(io.StringIO(run_report(capsys, monkeypatch, "out", "--format=csv"))))
    assert len(rows) == 36 and any("unfinished" in row["label"] for row in rows)
    (out / "out" / "d").mkdir()
    (out / "out" / "d" / "config.json").write_text("{")
    assert "d/config.json" in run_report(capsys, monkeypatch, "out")  # named, and no end
    assert "step 2 of 60" in run_report(capsys, monkeypatch, "out/c")
    with pytest.raises(UserError, match="no run in empty"):
        (out / "empty").mkdir()
        run_report(capsys, monkeypatch, "empty")


def test_report_shows_the_protocol_asked_for(out, capsys, monkeypatch):
    words = ["out/a", "out/b", "--protocols=nonoverlapping", "--out=papers.svg"]
    text = run_report(capsys, monkeypatch, *words)
    assert "; nonoverlapping by test length N" in text and "fixed_targets" not in text
    means = [f"{one.records[-1].nats:.4f}" for one in (result("alibi"), result("rope"))]
    assert all(mean in text for mean in means)
    assert "nonoverlapping, nats per byte" in (out / "papers.svg").read_text()
    with pytest.raises(UserError, match="protocols: only fixed_targets, windowed, nonoverl.* were"):
        run_report(capsys, monkeypatch, "out/a", "--protocols=recall")


def test_rows_are_loaded_once_from_whatever_names_them(out):
    rows = load_rows(["out/a", "out/b"])
    assert load_rows("out/a").equals(rows[rows.run == "out/a"].reset_index(drop=True))
    assert len(load_rows(["out"])) == 36 and load_rows("out").run.nunique() == 3
    (out / "both").mkdir()
    records.save_rows(rows.assign(label=rows.label + "!"), out / "both/rows.csv.xz")
    for folders in (["both", "out/a"], ["out/a", "both", "both"], ["both", "out/b", "out/b"]):
        assert list(load_rows(folders).label.unique()) == ["alibi!", "rope!"]
        assert len(load_rows(folders)) == len(rows)
    joined = load_rows(["both", "out/c/"])
    assert list(joined.label.unique()) == ["alibi!", "rope!", "rope! (unfinished: step 2 of 60)"]
    (out / "out/ablate").mkdir()
    with pytest.raises(UserError, match="an unfinished comparison resumes with its ablate.py"):
        load_rows(["out/a", "out/ablate"])


def test_a_run_beside_a_comparison_of_its_model_is_one_of_its_seeds(out):
    """Whatever else is shown, whose other size would give all runs a longer label."""
    records.save_rows(load_rows(["out/a", "out/b"]), "both.csv.xz")
    larger = replace(result("kerple", 1), parameters=9000)
    larger = replace(larger, settings=larger.settings | {"n_embd": 256})
    for name, one in {"third": result("rope", 3), "larger": larger}.items():
        Path("out", name).mkdir()
        records.update_result(f"out/{name}", one)
    rows = select(load_rows(["both.csv.xz", "out/third", "out/larger"]))
    assert set(rows[rows.label == "rope"].seed) == {1, 3}
    assert list(rows.label.unique()) == ["alibi", "rope", "kerple n_embd=256"]
    said = "parameters differ: from 1,000 (alibi) to 9,000 (kerple n_embd=256)"
    assert said in tables(rows) and said not in tables(rows[rows.label != "kerple n_embd=256"])


def test_labels_of_a_table_are_those_of_finished_runs_as_they_were_trained(out):
    continued = replace(result("rope", 4), planned_before=20)
    extended = replace(result("rope", 5, extend="pi(factor=4.0)"), extend="pi(factor=4.0)")
    for name, one in {"continued": continued, "extended": extended}.items():
        Path("out", name).mkdir()
        records.update_result(f"out/{name}", one)
    rows = load_rows(["out/continued", "out/extended"])
    assert set(rows.label) == {"rope (planned for 20 steps)", "rope, pi(factor=4.0)"}
    rows["label"] = rows.label.replace("rope, pi(factor=4.0)", "rope --extend=pi(factor=4)")
    records.save_rows(rows, "rows.csv.xz")
    for name, one in {"plain": result("rope", 6), "third": replace(extended, seed=7)}.items():
        Path("out", name).mkdir()
        records.update_result(f"out/{name}", one)
    records.update_result("out/third", replace(extended, seed=7, records=result("rope").records))
    labels = load_rows(["rows.csv.xz", "out/plain", "out/third"]).groupby("run").label.agg(set)
    assert labels["out/plain"] == {"rope"}
    assert labels["out/third"] == {"rope --extend=pi(factor=4)", "rope, none"}


def test_a_test_of_one_protocol_on_more_windows_leaves_the_others(tmp_path):
    records.update_result(tmp_path, result("rope"))
    records.update_result(tmp_path, result("rope", windows=128, protocols=("windowed",)))
    rows = select(load_rows(tmp_path))
    windows = rows.groupby("protocol").windows.agg(set)
    assert windows.to_dict() == {"fixed_targets": {64}, "nonoverlapping": {64}, "windowed": {128}}
    assert statistics.length_table(rows).far.isna().all()  # of two texts there is no difference


def test_an_extension_of_edited_files_is_not_that_of_the_training(tmp_path):
    own = {"posenc.py": "0" * 64, "files/f.json": "1" * 64}
    scheme_files = "files/f.json:111111 posenc.py:000000"
    for digests, loss in ((own, flat), (own | {"files/f.json": "2" * 64}, breaks)):
        one = result("rope", extend="longrope(file='f.json')", loss=loss)
        one = replace(one, extend="longrope(file='f.json')", scheme_files=scheme_files)
        one.records[:] = [replace(record, files_sha256=digests) for record in one.records]
        records.update_result(tmp_path, one)
    rows = load_rows(tmp_path)
    trained = select(rows)
    assert trained.nats.max() < 1.5 and trained.label.nunique() == 1
    both = select(rows, extend="all")
    assert both.label.nunique() == 2 and "of other files" in both.label.iloc[-1]


def test_a_label_of_two_comparisons_is_told_apart_and_its_seeds_stay_together(
    out, capsys, monkeypatch
):
    rows = load_rows("out/b")
    records.save_rows(rows, "a.csv.xz")
    records.save_rows(pd.concat([rows.assign(run="c"), rows.assign(run="d", seed=7)]), "b.csv.xz")
    assert list(load_rows(["a.csv.xz", "b.csv.xz"]).label.unique()) == ["rope", "rope (b.csv.xz)"]
    records.save_rows(rows.assign(run="e", dataset="mine"), "c.csv.xz")
    with pytest.raises(UserError, match="c.csv.xz was not tested on stdlib"):
        run_report(capsys, monkeypatch, "a.csv.xz", "c.csv.xz")


def test_losses_against_training_tokens_are_means_over_seeds(out, capsys, monkeypatch):
    for name, nats in {"a": (3.0, 2.0), "b": (5.0, 4.0), "c": (7.0, 1.0)}.items():
        lines = [{"step": k, "tokens": 10 * k, "loss": x} for k, x in enumerate(nats, 1)]
        lines[1]["val_loss"] = nats[1] + 0.5
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (out / "out" / name / "metrics.jsonl").write_text(text)
    records.update_result("out/c", result("rope", 2))
    saved = []
    monkeypatch.setattr(figures, "save_figure", lambda figure, path: saved.append(figure))
    words = ["out/a", "out/b", "out/c", "--labels=rope=RoPE", "--show=training", "--out=t.pdf"]
    text = " ".join(run_report(capsys, monkeypatch, *words).split())
    assert "RoPE 20 2.5000 3.0000" in text and "alibi 20 2.0000 2.5" in text
    pale, val = [line for line in saved[0].axes[0].lines if line.get_color() == figures.COLORS[1]]
    assert list(pale.get_ydata()) == [6.0, 2.5] and list(val.get_ydata()) == [3.0]
    with (out / "out/c/metrics.jsonl").open("a") as log:  # a step that the other seed lacks
        log.write(json.dumps({"step": 3, "tokens": 30, "loss": 0.5, "val_loss": 1.0}) + "\n")
    assert run_report(capsys, monkeypatch, *words).count("RoPE") == 1
    records.save_rows(load_rows(["out/a", "out/b"]), "rows.csv.xz")
    assert "alibi" in run_report(capsys, monkeypatch, "rows.csv.xz", "--show=training")
    for size in ("3.25", "0x2", "3x1000"):
        with pytest.raises(UserError, match=f"size = '{size}'.*each 1 to 99 inches, as 3.25x2.2"):
            run_report(capsys, monkeypatch, "rows.csv.xz", f"--size={size}")
    (out / "out/b/metrics.jsonl").unlink()
    with pytest.raises(UserError, match="out/b/metrics.jsonl is missing"):
        run_report(capsys, monkeypatch, "rows.csv.xz", "--show=training")
    (out / "out/b").rename(out / "out/elsewhere")
    with pytest.raises(UserError, match="no run folder out/b: --show=settings needs run folders"):
        run_report(capsys, monkeypatch, "rows.csv.xz", "--show=settings")


def test_the_settings_of_runs_as_they_were_used(out, capsys, monkeypatch):
    changes = {"a": {"pos": "alibi", "optimizer": "adamw"}, "b": {"seed": 1}, "c": {"seed": 2}}
    for name, change in changes.items():
        config = CONFIG | {"settings": asdict(TrainSettings(max_iters=60, **change))}
        write_json(out / f"out/{name}/config.json", config)
    records.update_result("out/c", result("rope", 2))
    text = run_report(capsys, monkeypatch, "out/a", "out/b", "out/c", "--show=settings")
    words = [line.split() for line in text.splitlines()]
    lines = {line[0]: line[1:] for line in words if line}
    assert lines["setting"] == ["alibi", "rope"] and lines["n_layer"] == ["4"]  # as in the first
    assert lines["learning_rate"] == ["0.003", "0.01"]
    assert lines["optimizer"] == ["adamw", "normuon"]
    assert lines["warmup_iters"] == ["15"] and lines["parameters"] == ["1,000"]
    assert lines["tokens"] == ["trained", "5,000"]
    assert lines["min_lr"] == ["0.00015", "0.0005"] and lines["lr_decay_iters"] == ["60"]
    tex = run_report(capsys, monkeypatch, "out/a", "out/b", "--show=settings", "--format=tex")
    assert tex.count("tabular") == 2 and "n\\_layer & 4 &  \\\\" in tex
    # a constant rate has no end of its decay
    constant = asdict(TrainSettings(max_iters=0, decay_lr=False))
    write_json(out / "out/b/config.json", CONFIG | {"settings": constant})
    assert "lr_decay_iters" not in run_report(capsys, monkeypatch, "out/b", "--show=settings")
    (out / "out/b/config.json").unlink()
    with pytest.raises(UserError, match="out/b/config.json is missing"):
        run_report(capsys, monkeypatch, "out/a", "out/b", "--show=settings")


def test_report_lists_what_is_no_tested_run_and_says_what_it_cannot_draw(out, capsys, monkeypatch):
    (out / "out/a/config.json").rename(out / "config.json")  # as of a Hugging Face model
    (out / "out/b/extrapolation.json").unlink()  # the test was cut off
    line = json.dumps({"step": 60, "diverged": "loss nan"})
    (out / "out/c/metrics.jsonl").write_text(f"{line}\n")
    lines = run_report(capsys, monkeypatch).splitlines()
    for folder, step in {"a": "alibi +at 60", "b": "60/60  ", "c": "60/60 diverged"}.items():
        assert [bool(re.search(step, x)) for x in lines if x.endswith(f"out/{folder}")] == [True]
    wrong = {
        "nosuch": "no run in nosuch",
        "out/b": "are for tested runs",
        "out": "are for tested runs",
    }
    for name, words in wrong.items():
        with pytest.raises(UserError, match=words):
            run_report(capsys, monkeypatch, name, "--out=f.pdf")
    (out / "out/a/extrapolation.json").unlink()
    with pytest.raises(UserError, match="out/b has no extrapolation.json"):
        run_report(capsys, monkeypatch, "out/b", "--format=csv")
    with pytest.raises(UserError, match="there is no table or run folder gone.csv.xz"):
        load_rows("gone.csv.xz")
    records.save_rows(load_rows("out/c").iloc[:0], "empty.csv.xz")
    with pytest.raises(UserError, match="empty.csv.xz has no rows"):
        load_rows("empty.csv.xz")


def test_comparisons_of_other_settings_or_texts_are_not_pooled(out):
    """Whatever their seeds; in a table of one comparison no column shows a setting of all."""
    rows = load_rows("out/b").assign(train_sha256="a text")
    changes = {"settings_sha256": "other settings", "train_sha256": "another text"}
    for column, value in changes.items():
        same = rows.assign(run="c", seed=8)
        other = rows.assign(run="d", seed=9, **{column: value})
        for name, table in {"a": rows, "b": same, "c": other}.items():
            records.save_rows(table, f"{name}.csv.xz")
        frame = load_rows([f"{name}.csv.xz" for name in "abc"])
        assert list(frame.label.unique()) == ["rope", "rope (c.csv.xz)"]
        assert set(frame[frame.label == "rope"].seed) == {1, 8}
    low = replace(result("rope", 9), settings=result("rope", 9).settings | {"learning_rate": 1e-4})
    Path("out/low").mkdir()
    records.update_result("out/low", low)
    records.save_rows(load_rows("out/low").assign(run="e"), "low.csv.xz")
    assert load_rows(["a.csv.xz", "low.csv.xz"]).label.nunique() == 2
    continued = replace(result("rope", 2), planned_before=20)
    Path("out/continued").mkdir()
    records.update_result("out/continued", continued)
    labels = load_rows(["out/b", "out/continued"]).label.unique()
    assert list(labels) == ["rope", "rope (planned for 20 steps)"]


def test_runs_of_two_formulas_are_told_apart(out):
    for seed, name in {1: "b", 2: "c"}.items():
        (out / f"out/{name}/extrapolation.json").unlink()  # as a new run in a folder does
        files = f"zoo/x.py:{seed}11111"
        records.update_result(f"out/{name}", replace(result("rope", seed), scheme_files=files))
    rows = select(load_rows(["out/a", "out/b", "out/c"]))
    assert list(rows.label.unique()) == ["alibi", "rope", "rope (zoo/x.py:211111)"]
    assert statistics.over_seeds(rows).seeds.max() == 1  # they are in no mean


def test_evaluate_keeps_prints_and_draws_what_it_measured(out, capsys, monkeypatch):
    def measure(tester, about, lengths, windows, names):
        return replace(result(about.pos, about.seed, flat, lengths=lengths), seconds=1.0)

    def open_model(name, settings, first_token=True):
        s = TrainSettings(pos={"out/a": "alibi"}.get(name, "rope"), seed=1)
        model = SimpleNamespace(extend=None)
        compute = SimpleNamespace(reason="cpu")
        model.pos = SimpleNamespace(describe=lambda: s.pos, extend_text="")
        model.pos.extend = lambda text, folder: None
        model.config, model.parameter_count = SimpleNamespace(first_length=L, extend=""), 1000
        named = {
            "folder": out / name,
            "files": out,
            "settings": s,
            "model": model,
            "compute": compute,
        }
        named["config"] = {}
        return SimpleNamespace(**named, step=60, tokens=5000, digest="step 60", first_token=None)

    corpus = SimpleNamespace(is_text=False, unit="byte", name="recall")
    monkeypatch.setattr("measure.extrapolation.extrapolation", measure)
    monkeypatch.setattr(evaluate, "open_model", open_model)
    monkeypatch.setattr(evaluate, "run_corpus", lambda run, dataset: corpus)
    words = ["out/a", "out/b", "--eval_lengths=128,1024", "--dtype=float32", "--out=both.svg"]
    monkeypatch.setattr("sys.argv", ["evaluate.py", *words])
    evaluate.main()
    text = capsys.readouterr().out
    assert "drawn in both.svg" in text and (out / "both.svg").exists()
    to_wandb = []
    monkeypatch.setattr(evaluate, "log_comparison", lambda s, *what: to_wandb.append((s, *what)))
    monkeypatch.setattr("sys.argv", ["evaluate.py", *words[:-1], "--wandb_log=True"])
    evaluate.main()
    [(settings, rows, folder)] = to_wandb
    assert settings.wandb_log and set(rows.pos) == {"alibi", "rope"} and folder == out / "out/a"
    assert "drawn in out/extrapolation.png" in capsys.readouterr().out
    assert (out / "out/extrapolation.png").exists()
    assert re.search(r" 128 +1024\n", text)  # only what was asked
    assert len(records.load_result("out/a").records) == 12 + 3  # N = 1024 was added
    assert (out / "out/a/extrapolation.png").exists()
    monkeypatch.setattr("sys.argv", ["evaluate.py", "out/a", "--protocols=windowed"])
    with pytest.raises(UserError, match="recall has answers: --protocols are those of text"):
        evaluate.main()
