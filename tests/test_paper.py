"""Published numbers beside ours: the verdicts follow from the rules, and a bad file is refused."""

import math
import re
import statistics
import tomllib
from pathlib import Path

import pytest
from test_report import diverge, result

import ablate
from configurable import AblateSettings, UserError, configure
from runs import paper
from runs.folder import scheme_label

PAPERS = Path(paper.__file__).parents[1] / "config/paper"
TEXT = """
title = "Toy"
[table]
title = "a table"
protocol = "windowed"
columns = [{ name = "512", length = 1 }, { name = "1024", length = 2 }]
rows = [
    { name = "Ours", scheme = "alibi", trained = 1, values = ["1.0", ""] },
    { name = "Other", scheme = "rope", trained = 1, values = ["2.0", "OOM"] },
]
"""
LIMITS = {  # of alibi's change from 128 to 256, whose mean is 0.02 and whose interval is ± 0.0248
    "at_most = 0.05": "reproduced",
    "at_most = 0.04": "undecided",
    "at_most = 0.0": "undecided",
    "at_most = -0.01": "contradicted",
    "at_least = -0.01": "reproduced",
    "at_least = 0.04": "undecided",
    "at_least = 0.05": "contradicted",
}


def claim(limit: str, **more: str) -> str:
    """The text of a claim of alibi's change."""
    lines = {"says": '"it holds"', "left": '["Ours", 2]', "right": '["Ours", 1]'} | more
    return "\n".join(["[[claims]]", *(f"{k} = {v}" for k, v in lines.items()), limit, ""])


def cells(changes=(0.01, 0.02, 0.03)):
    """Seeds of alibi whose loss changes so much from 128 to 256, and one of another."""
    curves = [(1.6, 1.5, 1.5 + change, 1.9) for change in changes]
    ours = [result(seed=seed, nats=curve) for seed, curve in enumerate(curves, 1)]
    return {"alibi": ours, "rope --n_head=2": [result("rope", 1)]}


def written(folder: Path, *claims: str) -> str:
    """A file of a paper with these claims."""
    path = folder / "toy.toml"
    path.write_text(TEXT + "\n".join(claims), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("limit", LIMITS)
def test_a_verdict_is_the_side_of_the_limit_on_which_the_whole_interval_lies(tmp_path, limit):
    _, table = paper.tables_of(written(tmp_path, claim(limit)), cells())
    half = 4.30265 * statistics.stdev((0.01, 0.02, 0.03)) / math.sqrt(3)  # Student's t for 2
    assert table.lines[1] == ["1. it holds"]
    rule, expected, number, verdict = table.lines[2]
    assert rule.split() == [*"Ours at 2 L - Ours at 1 L:".split(), *limit_words(limit)]
    assert (expected, number) == ("", f"+0.020 ± {half:.3f} (n = 3)") and verdict == LIMITS[limit]


def limit_words(limit: str) -> list[str]:
    """A limit as the table says it."""
    name, value = limit.split(" = ")
    return [*name.split("_"), f"{float(value):g}"]


def test_a_row_may_be_of_an_extension_of_a_model_trained_with_it_or_without_any(tmp_path):
    of_rows = {"pi": 1, "yarn": 1, "pi(factor=2)": 2, "none": 2}
    rows = [
        f'{{ name = "{name}", scheme = "rope", trained = {n}, extend = "{name}", values = ["", ""] }},'
        for name, n in of_rows.items()
    ]
    path = tmp_path / "toy.toml"
    text = TEXT.replace("rows = [", "rows = [" + "".join(rows)).replace(
        '"windowed"', '"fixed_targets"'
    )
    path.write_text(text + claim("at_most = 0.0"), encoding="utf-8")
    model, tuned = result("rope"), result("rope", train_length=256, nats=(1.1, 1.2, 1.3, 1.4))
    other = result("rope", train_length=256)  # tuned without an extension
    model["rows"] += [row | {"extend": "pi", "nats": row["nats"] + 1} for row in model["rows"]]
    tuned["rows"] = [row | {"extend": "pi(factor=2)"} for row in tuned["rows"]]
    tuned["extend"] = "pi(factor=2)"
    wide, _ = paper.tables_of(str(path), {"": [model], "compared": [other, tuned]})
    ours = {
        line[0]: below[2:] for line, below in zip(wide.lines[1::2], wide.lines[2::2], strict=True)
    }
    assert ours["pi"] == ["2.500", "2.490"] and ours["Other"] == ["1.500", "1.490"]
    assert ours["pi(factor=2)"] == ["1.200", "1.300"] and ours["yarn"] == ours["none"] == ["", ""]


def test_seeds_are_paired_and_a_missing_or_undefined_loss_is_left_out(tmp_path):
    path = written(tmp_path, claim("at_most = 0.0", right='["Other", 1]'), claim("at_most = 0.0"))
    _, table = paper.tables_of(path, cells())
    assert table.lines[2][-1] == "undecided: 1 seeds have both losses"
    some = cells()
    assert paper.tables_of(path, {"alibi": some["alibi"]})[1].lines[2][-1] == "not tested here"
    some["alibi"] = [*some["alibi"][:2], diverge(some["alibi"][2], 256), {"seed": 4, "reason": "x"}]
    _, table = paper.tables_of(path, some)
    assert "(n = 2)" in table.lines[4][2]


def test_the_expected_interval_is_that_of_the_spread_known_before(tmp_path):
    _, table = paper.tables_of(written(tmp_path, claim("at_most = 0.0\nsd = 0.1")), cells())
    assert table.lines[2][1] == f"± {4.30265 * 0.1 / math.sqrt(3):.3f}"


def test_their_table_stands_above_ours_in_their_protocol(tmp_path):
    wide, _ = paper.tables_of(written(tmp_path, claim("at_most = 0.0")), cells())
    assert wide.lines[0][2:] == ["512 | 1 L", "1024 | 2 L"]
    assert wide.lines[1] == ["Ours", "theirs", "1.0", ""]
    assert wide.lines[2] == ["", "ours", "1.500 ± 0.000", "1.494 ± 0.000"]  # windowed
    assert wide.lines[3][2:] == ["2.0", "OOM"] and wide.lines[4][2:] == ["1.500", "1.494"]


@pytest.mark.parametrize(
    "old, new, problem",
    [
        ('"1.0", ""', '"1.0"', "Ours has 1 values for 2 columns"),
        ('["Ours", 2]', '["Nobody", 2]', "needs left and right"),
        ("at_most = 0.0", "", "needs left and right"),
        ("at_most = 0.0", "at_most = 0.0\nat_least = 0.0", "needs left and right"),
        ('title = "Toy"', "title = 3", "lacks a proper title"),
        ("[[claims]]", "[[claims", "is missing or no TOML"),
        ('left = ["Ours", 2]', 'left = ["Ours"]', "needs left and right"),
        ('left = ["Ours", 2]', 'left = ["Ours", "2"]', "needs left and right"),
        ("at_most = 0.0", 'at_most = "0"', "needs left and right"),
    ],
)
def test_a_file_that_does_not_fit_together_is_refused_with_what_is_wrong(
    tmp_path, old, new, problem
):
    path = Path(written(tmp_path, claim("at_most = 0.0")))
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(UserError, match=re.escape(problem)):
        paper.read_paper(str(path))


CONFIGS = sorted(PAPERS.glob("*/*.py"))
CLAIMS = sorted(PAPERS.glob("*/claims.toml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_paper_of_the_project_is_of_the_schemes_and_lengths_that_its_config_has(
    path, monkeypatch
):
    monkeypatch.chdir(PAPERS.parents[1])
    monkeypatch.setattr(ablate, "training_corpus", lambda settings: None)
    settings, words = configure(AblateSettings, [str(path)], "")
    cells = ablate.plan(settings, [*settings.schemes, *words])
    length = settings.block_size
    models = {(scheme_label(c.settings), c.settings.block_size // length) for c in cells}
    content = paper.read_paper(settings.paper)
    rows = {(row["scheme"], row["trained"]) for row in content["table"]["rows"]}
    assert models <= rows and (models == rows or path.stem == "scaled")
    asked = {column["length"] for column in content["table"]["columns"]}
    for claim in content["claims"]:
        asked |= {claim[side][1] for side in ("left", "right") if side in claim}
    if settings.eval_lengths:  # a task has its own
        assert {n * length for n in asked} <= set(settings.eval_lengths)


@pytest.mark.parametrize("path", CLAIMS, ids=lambda path: path.parent.name)
def test_the_differences_that_claims_quote_are_those_of_the_papers_numbers(path):
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    columns = [column["length"] for column in content["table"]["columns"]]
    rows = content["table"]["rows"]
    ppl = {row["name"]: dict(zip(columns, row["values"], strict=True)) for row in rows}
    for one in content["claims"]:
        quoted = re.search(r"\((?:theirs: )?([+-]\d\.\d+)", one["says"])
        if quoted:
            (a, n), (b, m) = one["left"], one["right"]
            theirs = math.log(float(ppl[a][n]) / float(ppl[b][m]))
            assert f"{theirs:+.3f}" == quoted[1], one["says"]
