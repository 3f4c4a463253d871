"""Tables as LaTeX, Markdown, CSV and JSON."""

import csv
import io
import json
import re
from pathlib import Path

import pytest
from test_report import command, result  # noqa: F401  (a fixture)

from configurable import UserError
from runs import formats
from runs.results import update_result
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
    text = formats.written("csv", [], [tmp_path])
    read = list(csv.DictReader(io.StringIO(text)))
    assert [r["nats"] for r in read] == [str(r["nats"] or "") for r in found]
    assert "the table ends at 128" in text and json.loads(formats.numbers("json", [tmp_path]))


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
    count = sum(len(r["rows"]) for of in cells.values() for r in of if "rows" in r)
    assert len(read) == len(formats.rows("both")) == count and {r["run"] for r in read} == {"both"}
    assert {(r["pos"], r["seed"]) for r in read} == {(p, s) for p in cells for s in "12"}
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
    with pytest.raises(UserError, match="nothing was measured on nowhere"):
        command("one", "--format=csv", "--dataset=nowhere")
    for place in ("--out=figure.png", "--html=page.html"):  # neither is left out in silence
        with pytest.raises(UserError, match="--format prints tables only"):
            command("one", "two", "--format=tex", place)
    with pytest.raises(UserError, match="format is 'pdf'"):
        command("one", "--format=pdf")
