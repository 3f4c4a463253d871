"""docs/libraries.md against numbers of the real libraries (tests/libraries.json), and every
expression that it prints against ours.
"""

import json
import re

import pytest
import torch
from conftest import REPOSITORY

from attention import Options
from posenc import Shape, t5_buckets
from scheme import Scheme

VECTORS = json.loads((REPOSITORY / "tests" / "libraries.json").read_text(encoding="utf-8"))
PAGE = (REPOSITORY / "docs" / "libraries.md").read_text(encoding="utf-8")
POSITIONS = torch.tensor([1, 30])  # of the vectors of kinds "turn" and "embed"
PAIRS = [[5, 5], [30, 29], [30, 20], [30, 0]]  # query, key: of kind "scores"
DISTANCES = torch.tensor([0, 7, 15, 16, 17, 19, 20, 30, 50, 90, 112, 113, 127, 128, 500])


def rows_of_page():
    """{what shows the row: [library, what it does, expression]} of the table of the page."""
    rows = {}
    for line in PAGE.splitlines():
        if line.startswith("| ") and "shown by" not in line and "---" not in line:
            *cells, shown_by = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            assert shown_by not in rows, shown_by
            rows[shown_by] = cells
    return rows


def scheme_of(name, folder):
    """The scheme of a vector's expression, such as `rope`, extended by `pi(factor=4.0)`."""
    vector = VECTORS[name]
    pos, _, extend = vector["longshot"].partition(", extended by ")
    factors = folder / "factors.json"
    if "factors" in vector:
        factors.write_text(json.dumps(vector["factors"]), encoding="utf-8")
    shape = Shape(
        n_head=vector.get("heads", 1),
        turned_width=vector.get("width", 64),
        width=vector.get("width", 64),
        first_length=vector.get("train_length", 1024),
    )
    scheme = Scheme(pos, shape, 1)
    scheme.extend(extend, folder)
    return scheme


def plan_of(scheme, total):
    """The plan of the only layer, for a text of `total` tokens."""
    index = torch.arange(total)
    [plan] = scheme.plans(index, index, total, total, Options()).values()
    return plan


def example(width):
    """The vector that the commands turn."""
    return torch.tensor([(7 * c % 13 - 6) / 4 for c in range(width)])


def turned(scheme, width):
    plan = plan_of(scheme, 31)
    q, _ = plan.turn(example(width).expand(1, 1, 31, width), torch.zeros(1, 1, 31, width))
    return q[0, 0, POSITIONS]


def scores(scheme, width):
    q = example(width).expand(1, 1, 31, width)
    q, k = plan_of(scheme, 31).turn(q, q.flip(-1))
    i, j = torch.tensor(PAIRS).T
    return (q @ k.mT)[0, 0, i, j]


def differences(scheme, width):
    """Scores of query 30 with keys 0, 10, 20 and 29, less the last of them."""
    q = example(width).expand(1, 1, 31, width)
    q, k = plan_of(scheme, 31).turn(q, q.flip(-1))
    values = (q @ k.mT)[0, 0, 30, [0, 10, 20, 29]]
    return values - values[-1]


def bias(scheme, width):
    """Biases (heads, 4) of the distances 0 to 3, less that of distance 0."""
    heads = torch.arange(scheme.shape.n_head)[:, None]
    plan = plan_of(scheme, 4)
    [piece] = plan.biases
    values = piece.bias(heads, plan.query_ids[-1:], plan.key_ids.flip(0)).float()
    return values - values[:, :1]


def embedded(scheme, width):
    return scheme.embed(POSITIONS, torch.zeros(1, 31), 31)


def visible(scheme, width):
    """How many keys each of 12 queries sees."""
    i, j = torch.arange(12)[:, None], torch.arange(12)
    seen = i >= j
    for piece in plan_of(scheme, 12).masks:
        seen = seen & piece.mask(i, j)
    return seen.sum(-1)


def buckets(scheme, width):
    [piece] = plan_of(scheme, 4).biases
    return t5_buckets(DISTANCES, piece.buckets, piece.max_distance)


KINDS = {
    "turn": turned,
    "scores": scores,
    "differences": differences,
    "bias": bias,
    "embed": embedded,
    "visible": visible,
    "buckets": buckets,
}


@pytest.mark.parametrize("name", [name for name in VECTORS if VECTORS[name]["longshot"] != "none"])
def test_the_expression_gives_the_numbers_of_the_library(name, tmp_path):
    vector = VECTORS[name]
    scheme = scheme_of(name, tmp_path)
    values = vector["values"]
    if vector["kind"] == "frequencies":
        theirs, their_factor = values
        ours, factor = scheme.rotary[0].frequencies(vector["length"], scheme.maps)
        assert factor == pytest.approx(their_factor, rel=2e-6)
        # float32 in theirs; an angle near pi has no more digits than that
        torch.testing.assert_close(ours, torch.tensor(theirs).double(), rtol=3e-6, atol=1e-9)
        return
    ours = KINDS[vector["kind"]](scheme, vector.get("width", 16))
    theirs = torch.tensor(values)
    if vector.get("order") == "interleaved":  # ours: all sines, then all cosines
        theirs = torch.cat((theirs[:, 0::2], theirs[:, 1::2]), -1)
    if not theirs.is_floating_point():
        assert ours.tolist() == theirs.tolist()
    else:  # float32 angles up to 30; differences are logarithms of logits
        atol = 2e-4 if vector["kind"] == "differences" else 1e-5
        torch.testing.assert_close(ours, theirs, rtol=5e-6, atol=atol)


def test_the_page_prints_what_is_tested():
    rows = rows_of_page()
    scripts = {path.name for path in (REPOSITORY / "findings").glob("*.sh")}
    for shown_by, (library, _, printed) in rows.items():
        if shown_by in scripts:  # it runs the library, without longshot: nothing to compare
            assert printed == "-", shown_by
        else:
            vector = VECTORS[shown_by]  # KeyError: the row is shown by nothing
            assert library == vector["library"], shown_by
            assert printed.replace("`", "") == vector["longshot"], shown_by
    assert VECTORS.keys() <= rows.keys()


def test_each_finding_has_a_line_and_cleans_up():
    listed = (REPOSITORY / "findings" / "README.md").read_text(encoding="utf-8")
    scripts = list((REPOSITORY / "findings").glob("*.sh"))
    assert len(scripts) >= 10
    for script in scripts:
        text = script.read_text(encoding="utf-8")
        assert f"[{script.stem}]({script.name})" in listed, script.name
        assert script.stat().st_mode & 0o100, f"{script.name} is not executable"
        assert "set -euo pipefail" in text and "trap 'rm -rf" in text, script.name
        [install] = re.findall(r"pip install --quiet (.*)", text)
        packages = [word for word in install.split() if not word.startswith("-")]
        assert all("==" in package for package in packages), f"{script.name}: {install}"
        assert "longshot" not in text and "://" not in text, script.name
