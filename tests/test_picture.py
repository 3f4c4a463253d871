"""Pictures of schemes: the numbers drawn are those of the papers' formulas, and all can be drawn."""

import re
import sys

import numpy as np
import oracles
import pandas as pd
import PIL.Image
import pytest
import torch
from conftest import SIZE, call
from oracles import ORACLES, C, D, H
from scipy.special import softmax
from test_schemes import CATALOGUE, MENTIONS, build

import report
import train
from common.errors import UserError
from measure import diagnose
from run.load import load_run
from tables import figures as figures_of_tests
from tables.records import Result, load_rows, rename, select
from tools import docs, explain, picture

N = 9


def drawn_by_formula(text):
    """The scores and weights (H, N) of the last query by distance, from the papers' formulas."""
    scheme = build(text).pos
    parameters = next(iter(scheme.pieces.values())).named_parameters()
    parts = ORACLES[text]({name: p.detach().double().numpy() for name, p in parameters})
    ids = [parts["ids"](n, N) if "ids" in parts else n for n in range(N)]
    signs = torch.randint(2, (C,), generator=torch.Generator().manual_seed(0)).numpy() * 2.0 - 1
    x = np.tile(signs, (N, 1))
    if "embed" in parts:
        x = parts["embed"](ids, [46] + 8 * [48])
        x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    heads = x.reshape(N, D, H).transpose(2, 0, 1) / D**0.25
    scores = oracles.logits(parts, heads, heads, x, ids)[:, -1]
    by = parts.get("weights", lambda head, row: softmax(row))
    weights = np.array([by(head, row) for head, row in enumerate(scores)])
    return scores[:, ::-1], weights[:, ::-1]


# the oracles of bipe and of units in images are for another text
@pytest.mark.parametrize("text", [m for m in MENTIONS if not re.search("bipe|unit", m)])
def test_scores_and_weights_are_those_of_the_formula(text):
    look = picture.look_at(build(text).pos.float(), 0, N)
    scores, weights = drawn_by_formula(text)
    ours = look[picture.SCORE].double().numpy()
    np.testing.assert_allclose(ours, scores - scores[:, :1], atol=2e-4)
    shares = look[picture.WEIGHT].double().numpy()
    np.testing.assert_allclose(shares, weights / weights.max(1, keepdims=True), atol=2e-4)


def test_masks_and_temperatures_are_those_of_the_formula():
    look = picture.look_at(build("rope + window(size=3, sinks=1) + logn").pos, 0, 20)
    i, j = np.indices((16, 16))  # 2 L
    assert (look[picture.SEEN].numpy() == ((j <= i) & ((i - j < 3) | (j < 1)))).all()
    expected = np.log(np.arange(1, 21)) / np.log(8)
    np.testing.assert_allclose(look[picture.FACTOR].numpy(), expected[None], atol=1e-6)
    assert {picture.SEEN, picture.FACTOR}.isdisjoint(picture.look_at(build("rope").pos, 0, 20))


def test_each_scheme_has_its_panel_in_the_page_of_schemes():
    path = docs.ROOT / "docs/schemes.png"
    assert path.stat().st_size < 400_000
    names = PIL.Image.open(path).info["Title"].split()  # else: python -m tools.docs
    assert sorted(names) == CATALOGUE.schemes
    for name in names:
        lines = docs.lines_of(name)
        assert lines.min() >= 0 and abs(lines.max() - 1) < 1e-6 and len(lines) in (1, 4), name


def explained(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["explain", "--block_size=64", "--n_embd=64", *words])
    explain.main()
    return capsys.readouterr().out


@pytest.mark.parametrize("kind", ["png", "pdf", "svg"])
def test_a_picture_is_written(monkeypatch, capsys, tmp_path, kind):
    path = tmp_path / f"folder/one.{kind}"
    text = explained(monkeypatch, capsys, "alibi", "rope", "+", "logn", "yarn", f"--out={path}")
    assert f"drawn in {path}" in text and path.stat().st_size > 5000
    assert " head     1     8     64\n    1 -0.25 -2.00 -16.00\n" in text
    for title in ("alibi", "rope + logn", "rope, extended by yarn"):
        assert f"\n{title}: score by distance" in text


def test_layers_that_differ_are_drawn_apart(monkeypatch, capsys):
    text = explained(monkeypatch, capsys, "rope", "--extend=none | pi(factor=4)")
    assert text.count("score by distance") == 2
    assert "\nrope: score" in text and "\nrope, extended by pi(factor=4): score" in text
    assert explained(monkeypatch, capsys, "--pos=fox").count("score by distance") == 1  # untrained


def test_a_run_that_is_not_there_is_a_sentence(monkeypatch, capsys):
    with pytest.raises(UserError, match="out/none.config.json is missing"):
        explained(monkeypatch, capsys, "out/none")


def test_a_bias_that_is_almost_nothing_looks_so(monkeypatch, capsys, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from posenc import Piece, alibi_slopes\n\n\nclass Weak(Piece):\n"
        "    def __init__(self, shape):\n        super().__init__()\n"
        "        self.register_buffer('slopes', alibi_slopes(shape.n_head), persistent=False)\n\n"
        "    def bias(self, h, i, j):\n        return -self.slopes[h] * (i - j + 1).log()\n"
    )
    figures = []
    monkeypatch.setattr(picture, "save_figure", lambda figure, path: figures.append(figure))
    words = ["weak", "nope | alibi", f"--pos_file={file}", "--out=x.png"]
    assert " -0.17 -0.55 -1.04\n" in explained(monkeypatch, capsys, *words)
    scores = figures[0].axes[0]
    assert len(figures[0].axes) == 6 and scores.get_ylim() == (-2.0, 0.2)
    ends = [line.get_ydata()[64] for line in scores.lines[:4]]
    assert ends[0] == pytest.approx(-1.0436, abs=1e-4)
    assert figures[0].axes[4].get_ylim()[0] == -8  # lower ones hide a key


def test_a_run_is_drawn_as_trained(monkeypatch, capsys, here, tmp_path):
    words = [*SIZE, "--pos=t5(buckets=4, max_distance=8) + fox", "--n_layer=2", "--out_dir=run"]
    assert call(train, *words, "--learning_rate=0.1") == 0
    capsys.readouterr()
    words = ["explain", "run", "t5(buckets=4, max_distance=8) + fox", "--out=run.svg"]
    monkeypatch.setattr(sys, "argv", words)
    assert explain.main() is None
    text = capsys.readouterr().out
    scheme = load_run("run").model.pos
    table = scheme.pieces["0_t5"].table.detach()
    assert table.abs().max() > 0.01
    for layer in range(2):  # each has its own gates
        title = f"run: t5(buckets=4, max_distance=8) + fox (for one content), layer {layer}"
        part = text.partition(f"{title}: score by distance")[2]
        numbers = [float(x) for x in part.split("\n")[3].split()]
        gate = scheme.pieces[f"1_fox_layer{layer}"]
        signs = torch.randint(2, (16,), generator=torch.Generator().manual_seed(0)) * 2.0 - 1
        decay = gate.features(signs)[0].item()
        assert numbers[:2] == [1, pytest.approx((table[1] - table[0])[0].item() + decay, abs=6e-3)]
    drawn = (tmp_path / "run.svg").read_text(encoding="utf-8")
    assert "layer 1</text>" in drawn and ">t5(buckets=4, max_distance=8) + fox (for" in drawn


# ---- figures of tests


def selected(*labels):
    rows = load_rows([docs.ROOT / "results/seven"])
    return select(rows[rows.label.isin(labels)])


def test_labels_of_lengths_do_not_run_into_each_other(monkeypatch, tmp_path):
    rows = rename(selected("alibi", "rope"), "rope=rope(base=500000)")
    figures = []
    write = figures_of_tests.save_figure
    monkeypatch.setattr(
        figures_of_tests, "save_figure", lambda figure, path: figures.append(figure)
    )
    figures_of_tests.plot_rows(rows, "x.png", [3.25, 2.2])
    write(figures[0], tmp_path / "small.png")
    labels = [x for x in figures[0].axes[0].get_xticklabels() if x.get_visible()]
    assert [x.get_text() for x in labels] == ["64", "256", "1024", "4096"]
    boxes = [x.get_window_extent() for x in labels]
    assert all(a.x1 < b.x0 for a, b in zip(boxes, boxes[1:], strict=False))
    figures_of_tests.plot_rows(rows, "x.png")
    write(figures[1], tmp_path / "large.png")
    assert all(x.get_visible() for x in figures[1].axes[0].get_xticklabels())


def test_the_lengths_of_a_report_are_those_of_its_figure(monkeypatch, capsys):
    drawn = []
    monkeypatch.setattr(report, "plot_rows", lambda rows, *_: drawn.append(set(rows.length)))
    path = str(docs.ROOT / "results/seven")
    for words in ([], ["--eval_lengths=128,1024"]):
        assert call(report, path, "--out=x.png", *words) == 0
    assert drawn == [{64, 128, 256, 512, 1024, 2048, 4096}, {128, 1024}]


def test_a_diagnosis_is_drawn_with_units_and_errors(monkeypatch, tmp_path):
    figures = []
    monkeypatch.setattr(diagnose, "save_figure", lambda figure, path: figures.append(figure))
    index = pd.Index([1, 2, 4], name="keys")
    samples = {name: np.random.rand(3, 5) for name in ("entropy", "distance", "first 4")}
    frame = diagnose.with_errors(samples, index)
    finding = ("attention", frame, "", "share of the weight")
    diagnose.report([finding], tmp_path, Result("rope", 1, 2, 9, {}), "tiny")
    shares, nats = figures[0].axes
    assert (shares.get_xlabel(), shares.get_ylabel()) == ("keys, tokens", "share of the weight")
    assert nats.get_ylabel() == "entropy, nats"
    for axes, name in ((shares, "first 4"), (nats, "entropy")):
        (bars,) = axes.containers
        heights = [np.diff(bar[:, 1])[0] for bar in bars.lines[2][0].get_segments()]
        np.testing.assert_allclose(heights, 2 * frame[f"{name} ±"])
