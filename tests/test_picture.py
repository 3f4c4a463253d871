"""Pictures of schemes: the numbers drawn are those of the papers' formulas, and all can be drawn."""

import re
import sys

import numpy as np
import oracles
import pandas as pd
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
    """The weights (H, N) of the last query by distance, as shares of the largest, from the papers'
    formulas.
    """
    scheme = build(text).pos
    parameters = next(iter(scheme.pieces.values())).named_parameters()
    parts = ORACLES[text]({name: p.detach().double().numpy() for name, p in parameters})
    ids = [parts["ids"](n, N) if "ids" in parts else n for n in range(N)]
    x = np.ones((N, C))
    if "embed" in parts:
        x = parts["embed"](ids, [46] + 8 * [48])
        x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    heads = np.tile(x[:, ::H], (H, 1, 1)) * torch.tensor(D**-0.25).bfloat16().item()
    scores = oracles.logits(parts, heads, heads, x, ids)[:, -1]
    by = parts.get("weights", lambda head, row: softmax(row))
    weights = np.array([by(head, row) for head, row in enumerate(scores)])
    return weights[:, ::-1] / weights.max(1, keepdims=True)


# the oracles of bipe and of units in images are for another text
@pytest.mark.parametrize("text", [m for m in MENTIONS if not re.search("bipe|unit", m)])
def test_scores_are_those_of_the_formula(text):
    _, scores = picture.look_at(build(text).pos.float(), 0, N)
    np.testing.assert_allclose(scores.exp().double(), drawn_by_formula(text), atol=2e-4)


def test_masks_and_temperatures_are_those_of_the_formula(monkeypatch):
    figures = []
    monkeypatch.setattr(picture, "save_figure", lambda figure, path: figures.append(figure))
    plan, scores = picture.look_at(build("rope + window(size=3, sinks=1) + logn").pos, 0, 1024)
    picture.draw([picture.Look("one", 128, plan, scores, pd.DataFrame())], "x.png")
    score, seen, factor = figures[0].axes  # no pairs turn
    i, j = np.indices((256, 256))  # 2 L
    image = seen.images[0].get_array()
    assert (image == ((j <= i) & ((i - j < 3) | (j < 1)))).all()
    (line,) = factor.lines[:-1]
    np.testing.assert_allclose(line.get_ydata(), np.log(np.arange(1, 1025)) / np.log(8), atol=1e-6)
    assert [line.get_xdata()[0] for line in (score.lines[-1], factor.lines[-1])] == [128, 128]


def test_each_scheme_has_its_panel_in_the_page_of_schemes():
    path = docs.ROOT / "docs/schemes.png"
    assert path.stat().st_size < 400_000
    for name in CATALOGUE.schemes:
        lines = docs.lines_of(name)
        assert lines.min() >= 0 and abs(lines.max() - 1) < 1e-6 and len(lines) in (1, 4), name


def explained(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["explain", "--block_size=64", "--n_embd=64", *words])
    explain.main()
    return capsys.readouterr().out


@pytest.mark.parametrize("kind", ["png", "pdf", "svg"])
def test_a_picture_is_written(monkeypatch, capsys, tmp_path, kind):
    path = tmp_path / f"folder/one.{kind}"
    text = explained(monkeypatch, capsys, "alibi", "rope + logn", "yarn", f"--out={path}")
    assert f"drawn in {path}" in text and path.stat().st_size > 5000
    assert "\n0    -0.25 -2.00 -16.00\n1    -0.06 -0.50  -4.00\n" in text
    assert text.count("score by distance in layer 0") == 3


def test_layers_that_differ_are_drawn_apart(monkeypatch, capsys):
    text = explained(monkeypatch, capsys, "rope", "--extend=none | pi(factor=4)")
    assert text.count("score by distance") == 2 and text.count("rope of base") == 2
    assert "in layer 0, less" in text and "in layer 1, less" in text


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
    words = ["weak", "nope | rope", f"--pos_file={file}", "--out=x.png"]
    assert " -0.17 -0.55 -1.04\n" in explained(monkeypatch, capsys, *words)
    score, *_, pairs = figures[0].axes
    assert len(figures[0].axes) == 6 and score.get_ylim() == (-8, 0.2)
    ends = [line.get_ydata()[64] for line in score.lines[:4]]
    assert ends[0] == pytest.approx(-1.0436, abs=1e-4)
    wavelengths = 2 * np.pi * 10000 ** (np.arange(8) / 8)
    np.testing.assert_allclose(pairs.lines[0].get_ydata(), wavelengths)


def test_a_run_is_drawn_as_trained(monkeypatch, capsys, here, tmp_path):
    words = [*SIZE, "--pos=t5(buckets=4, max_distance=8) + fox", "--n_layer=2", "--out_dir=run"]
    assert call(train, *words, "--learning_rate=0.1") == 0
    capsys.readouterr()
    words = ["explain", "run", "t5(buckets=4, max_distance=8) + fox", "--out=run.svg"]
    monkeypatch.setattr(sys, "argv", words)
    assert explain.main() == 0
    text = capsys.readouterr().out
    scheme = load_run("run").model.pos
    table = scheme.pieces["0_t5"].table.detach()
    assert table.abs().max() > 0.01
    for layer in range(2):  # each has its own gates
        part = text.partition(f"score by distance in layer {layer}")[2]
        numbers = [float(x) for x in part.split("\n")[4].split()]
        gate = scheme.pieces[f"1_fox_layer{layer}"]
        decay = gate.features(torch.ones(16))[0].item()
        _, scores = picture.look_at(scheme, layer, 256)
        assert numbers[1] == pytest.approx(scores[0, 1].item(), abs=6e-3)
        rise = (table[1] - table[0])[0].item() + decay
        assert (scores[0, 1] - scores[0, 0]).item() == pytest.approx(rise, abs=1e-4)
    drawn = (tmp_path / "run.svg").read_text(encoding="utf-8")
    assert ">run, layer 1</text>" in drawn and ">t5(buckets=4, max_distance=8) + fox, l" in drawn


# ---- figures of tests


def selected(*labels):
    rows = load_rows([docs.ROOT / "results/seven"])
    return select(rows[rows.label.isin(labels)])


def test_labels_of_lengths_do_not_run_into_each_other(monkeypatch):
    rows = rename(selected("alibi", "rope"), "rope=rope(base=500000)")
    figures = []
    monkeypatch.setattr(
        figures_of_tests, "save_figure", lambda figure, path: figures.append(figure)
    )
    for size in ([], [3.25, 2.2]):
        figures_of_tests.plot_rows(rows, "x.png", size)
        figures[-1].draw_without_rendering()
        axes = figures[-1].axes[0]
        low, high = axes.get_xlim()
        labels = [x for x in axes.get_xticklabels() if low <= x.get_position()[0] <= high]
        boxes = [x.get_window_extent() for x in labels]
        assert all(a.x1 < b.x0 for a, b in zip(boxes, boxes[1:], strict=False))
        lengths = [int(x.get_text()) for x in labels]
        assert set(lengths) <= set(rows.length) and len(lengths) >= 3
    assert len(figures) == 2


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
