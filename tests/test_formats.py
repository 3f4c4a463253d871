"""Tables as LaTeX, Markdown, CSV and JSON."""

import csv
import io
import json
import math
import re
from pathlib import Path

import pytest
from test_report import command, result  # noqa: F401  (a fixture)

from configurable import UserError
from runs import compare, formats
from runs.results import load_comparison, update_result
from runs.tables import page, scheme_tables, tables_of


def cells_of(row):
    """How many columns a row of a tabular fills."""
    wide = sum(int(n) - 1 for n in re.findall(r"\\multicolumn\{(\d+)\}", row))
    return len(re.split(r"(?<!\\)&", row)) + wide


@pytest.mark.parametrize("several", [False, True])
def test_every_row_in_latex_fills_the_columns_of_the_head(several):
    results = [result("rope", end=128), result("rope", seed=2), result("alibi", seed=1)]
    for table in tables_of(results if several else results[:1]):
        text = formats.latex(table)
        columns = len(re.search(r"tabular\}\{(l r*)\}".replace(" ", ""), text)[1])
        body = [line for line in text.splitlines() if line.endswith(" \\\\")]
        assert columns == len(table.lines[0]) and len(body) == len(table.lines)
        assert {cells_of(line) for line in body} == {columns}
        for line in text.splitlines():  # title and notes are comments; ± is a sign of LaTeX
            assert line.startswith("%") or "±" not in line
        assert text.index("\\toprule") < text.index("\\midrule") < text.index("\\bottomrule")
        assert table.title in text and table.below[-1].splitlines()[-1] in text


def test_a_setting_of_a_scheme_is_no_dash_in_latex():
    assert formats.in_tex("rope --qk_norm=True -0.5") == r"rope -{}-qk\_norm=True $-$0.5"


def test_signs_that_latex_reads_otherwise_are_escaped():
    hard = "rope_x & 50% of #1 {a} $b ~ \\ ^ | <0.1 -0.5 a-5"
    assert formats.in_tex(hard) == (
        r"rope\_x \& 50\% of \#1 \{a\} \$b $^\sim$ \textbackslash{} \^{} $|$ $<$0.1 $-$0.5 a-5"
    )


def test_every_row_in_markdown_has_the_columns_of_the_head():
    table = page("toy", [["", "N", "a|b"], ["rope | nope"], ["", "64", "1.5"], ["", "undefined"]])
    lines = formats.markdown(table).splitlines()
    assert lines[0] == "toy" and "a\\|b" in lines[2] and "rope \\| nope" in lines[4]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines[2:]} == {4}
    noted = formats.markdown(page("toy", [["", "N"]], "", "a note"))
    assert noted.endswith("```text\na note\n```")


def test_rows_have_the_numbers_of_the_result_and_tell_its_run(tmp_path):
    made = result("rope", seed=3, end=128) | {"settings": {"dataset": "toy", "n_embd": 128}}
    update_result(tmp_path, made)
    found = formats.rows([tmp_path])
    assert len(found) == len(made["rows"])
    for row, own in zip(found, made["rows"], strict=True):
        assert row["nats"] == own["nats"] and row["length"] == own["length"]
        assert row["run"] == str(tmp_path) and row["seed"] == 3 and row["n_embd"] == 128
        assert row["trained_on"] == "toy" and "block_nats" not in row
    text = formats.written("csv", [], found)
    read = list(csv.DictReader(io.StringIO(text)))
    assert [r["nats"] for r in read] == [str(r["nats"] or "") for r in found]
    assert "the table ends at 128" in text and json.loads(formats.written("json", [], found))


def test_a_comparison_is_reported_again_from_its_folder(command, capsys, tmp_path):  # noqa: F811
    cells = {pos: [result(pos, seed) for seed in (1, 2)] for pos in ("alibi", "rope")}
    cells["rope"].append({"seed": 3, "reason": "not trained"})
    Path("both").mkdir()
    path = Path("both/results.json")
    path.write_text(json.dumps({"command": [], "rates": {}, "cells": cells}), encoding="utf-8")
    command("both", "--out=figure.svg")
    said = capsys.readouterr().out
    assert said.startswith("\n\n".join(scheme_tables(cells))) and Path("figure.svg").exists()
    assert "rope, seed 3: no result: not trained" in said
    command("both", "--format=tex")
    assert capsys.readouterr().out.count("\\begin{tabular}") == 2
    command("both", "--format=csv")
    read = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {line["table"] for line in read} == {"schemes"}
    for line in read:  # every number of the table, with all its digits
        losses = [
            row["nats"]
            for r in cells[line["scheme"]]
            for row in r.get("rows", [])
            if (row["protocol"], row["length"]) == ("fixed_targets", int(line["N"]))
        ]
        assert line["protocol"] == "fixed_targets" and int(line["seeds"]) == len(losses) == 2
        assert float(line["mean"]) == pytest.approx(sum(losses) / 2, rel=1e-12)
        assert float(line["sd"]) == pytest.approx(abs(losses[0] - losses[1]) / 2**0.5, abs=1e-12)
    shown = [tuple(line[:2]) for line in scheme_tables(cells)[1].lines[1:]]
    assert [(line["scheme"], line["N"]) for line in read] == shown
    count = sum(len(r["rows"]) for of in cells.values() for r in of if "rows" in r)
    measured = formats.rows("both")
    assert len(measured) == count and {row["run"] for row in measured} == {"both"}
    assert {(r["pos"], r["seed"]) for r in measured} == {(p, s) for p in cells for s in (1, 2)}
    path.write_text(json.dumps({"cells": {"alibi": [{"seed": 1}]}}), encoding="utf-8")
    with pytest.raises(UserError, match=r"results.json lacks a proper alibi\[0\].pos: the command"):
        command("both")


def test_report_prints_only_the_table_and_draws_nothing(command, capsys, tmp_path):  # noqa: F811
    command("one", "two", "--format=tex")
    said = capsys.readouterr().out
    assert said.startswith("% toy") and said.count("\\begin{tabular}") == 3
    assert not list(tmp_path.glob("**/*.png"))
    command("one", "two", "--format=md")
    assert capsys.readouterr().out.count("| --- |") >= 2
    command("one", "--format=json")
    assert {row["run"] for row in json.loads(capsys.readouterr().out)} == {"one"}
    command(".", "--format=csv")  # all the runs in a folder
    read = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["run"] for row in read} == {"one", "two"}
    command("one", "two", "--format=csv", "--dataset=other")
    read = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["dataset"] for row in read} == {"other"} and {r["run"] for r in read} == {"one"}
    with pytest.raises(UserError, match="nothing was measured there"):
        command("one", "--format=csv", "--dataset=nowhere")
    for place in ("--out=figure.png", "--html=page.html"):  # neither is left out in silence
        with pytest.raises(UserError, match="--format prints tables only"):
            command("one", "two", "--format=tex", place)
    with pytest.raises(UserError, match="format is 'pdf'"):
        command("one", "--format=pdf")


def committed(folder):
    """The cells of a comparison in results/."""
    return load_comparison(Path(formats.__file__).parent.parent / "results" / folder)["cells"]


def test_the_numbers_of_a_comparison_are_those_that_its_table_prints():
    cells = committed("stdlib-six")
    printed = {tuple(line[:2]): line[2:] for line in scheme_tables(cells)[1].lines[1:]}
    numbers = formats.over_seeds(cells)
    assert len(numbers) == len(printed) > 30
    for line in numbers:
        cell = printed[line["scheme"], str(line["N"])]
        if line["mean"] is None:
            assert cell[0] == f"undefined: {line['reason']}" and line["seeds"] == 0
            continue
        assert cell[:3] == [str(line["seeds"]), f"{line['mean']:.4f}", f"{line['sd']:.4f}"]
        if line["difference"] is not None:
            ends = f"[{line['difference_low']:+.4f}, {line['difference_high']:+.4f}]"
            assert cell[3] == f"{line['difference']:+.4f} {ends} n = {line['paired_seeds']}"
            assert cell[4] in (f"{line['p']:.4f}", "<0.0001")


def test_the_numbers_of_answers_are_shares_by_distance_and_the_reach_of_each_seed():
    cells = committed("board/recall")
    (table,) = scheme_tables(cells)
    heads, *printed = table.lines
    numbers = formats.over_seeds(cells)
    for line in numbers:
        (cell,) = (cells for cells in printed if cells[0] == line["scheme"])
        assert cell[heads.index(str(line["distance"]))] == f"{line['mean']:.2f}"
        reach = [line[f"reach_seed_{seed}"] for seed in (1, 2, 3)]
        assert cell[-1] == ", ".join(map(str, reach)) and "difference" not in line
    assert len(numbers) == sum(cell != "" for cells in printed for cell in cells[1:-1])


def test_a_mean_is_left_out_where_a_seed_diverged():
    assert formats.summary([1.0, -math.inf, 2.0]) == {
        "seeds": 3,
        "diverged": 1,
        "mean": None,
        "sd": None,
    }
    assert formats.summary([1.5]) == {"seeds": 1, "diverged": 0, "mean": 1.5, "sd": None}


def test_numbers_over_seeds_say_what_is_missing_and_on_how_many_seeds_a_difference_stands():
    def missing(seed):
        return {"seed": seed, "reason": "not trained"}

    cells = {
        "alibi": [result("alibi", 1), missing(2)],
        "rope": [result("rope", 1), result("rope", 2)],
        "t5": [missing(1), missing(2)],
    }
    lines = formats.over_seeds(cells)
    (t5,) = (line for line in lines if line["scheme"] == "t5")
    assert t5["seeds"] == 0 and t5["mean"] is None and t5["N"] is None
    assert t5["reason"] == "t5, seed 1: no result: not trained; t5, seed 2: no result: not trained"
    for line in lines:
        assert line.keys() == lines[0].keys()  # the same columns for all
        if line["scheme"] == "rope" and line["difference"] is not None:
            assert line["seeds"] == 2 and line["paired_seeds"] == 1
            assert line["difference_low"] is None and line["difference_stderr"] is not None
    assert all("seed 2" in line["reason"] for line in lines if line["scheme"] == "alibi")
    json.loads(
        formats.written("json", [], [*lines, {"nats": math.inf}]), parse_constant=pytest.fail
    )


def test_no_p_value_is_negative_however_small():
    values = [compare.p_value(t, n) for t in (5.0, 20.0, 1e3, 1e9, math.inf) for n in (1, 2, 63)]
    assert min(values) > 0
    for line in formats.over_seeds(committed("board/screening/books")):
        assert line["p"] is None or 0 < line["p"] <= 1


def test_a_comparison_is_printed_with_its_rates_and_its_paper(command, capsys):  # noqa: F811
    root = Path(formats.__file__).parent.parent
    for folder in ("board/books", "paper/alibi"):
        content = load_comparison(root / "results" / folder)
        if content.get("paper"):
            content["paper"] = str(root / content["paper"])
        Path("here").mkdir(exist_ok=True)
        Path("here/results.json").write_text(json.dumps(content), encoding="utf-8")
        command("here")
        kept = (root / "results" / folder / "table.txt").read_text(encoding="utf-8")
        said = capsys.readouterr().out.rstrip()
        assert kept.startswith(said) and len(said) > 0.9 * len(kept)
        command("here", "--format=json")
        numbers = json.loads(capsys.readouterr().out)
        kinds = {line["table"] for line in numbers}
        assert kinds == {"schemes", "claims" if content.get("paper") else "rates"}
        for line in (line for line in numbers if line["table"] == "claims"):
            assert line["claim"] in kept and line["verdict"] in kept and line["rule"] in kept
        rates = [line for line in numbers if line["table"] == "rates"]
        assert sum(line["picked"] for line in rates) == len(content["rates"])
    Path("there").mkdir()
    for words in (["here", "there"], ["here", "--html=page.html"]):
        with pytest.raises(UserError, match="here is a comparison: name it alone, without --html"):
            command(*words)
