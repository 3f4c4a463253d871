"""Extensions of trained models: which are tested, what the table says, and LongRoPE's search."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import call, copy_as_seed, corpus_of_programs, workplace

import evaluate
import train
from common.errors import UserError
from common.files import read_json
from configurable import TrainSettings
from data import tokenizers
from posenc import Shape
from scheme import Scheme
from tables import records
from tools import longrope

TINY = ["--n_layer=1", "--n_head=2", "--n_embd=16", "--block_size=32"]
TINY += ["--batch_size=2", "--max_iters=2", "--eval_lengths=32,64", "--compile=False"]
TINY += ["--device=cpu", "--dtype=float32", "--examine=False"]


def scheme(text: str) -> Scheme:
    return Scheme(text, Shape(n_head=2, turned_width=8, width=16, first_length=32), 1)


# ---- which extensions


def test_what_fits_a_scheme_is_found():
    rope, alibi = (evaluate.fitting_extensions(scheme(text)) for text in ("rope", "alibi"))
    assert {"pi", "ntk", "yarn", "window(size=32)"} <= {*rope}
    assert "yarn" not in alibi and {"window(size=32)", "logn"} <= {*alibi}
    assert "temperature" not in rope and len(set(rope)) == len(rope)


def test_runs_must_be_seeds_of_one_model():
    def run(**settings):
        settings = TrainSettings(**settings)
        return SimpleNamespace(folder=Path("out/x"), settings=settings, config={})

    evaluate.check_seeds([run(seed=1), run(seed=2, out_dir="y")])
    with pytest.raises(UserError, match="n_embd"):
        evaluate.check_seeds([run(seed=1), run(seed=2, n_embd=64)])


# ---- the search


def test_the_search_comes_near_the_best_divisors():
    best = np.array([1.0, 1.5, 2.0, 4.0, 6.0, 8.0])

    def loss(divisors):
        assert list(divisors) == sorted(divisors)
        return float(np.square(np.log(divisors / best)).sum())

    starts = [(1.0,) * 6, (8.0,) * 6]
    divisors, found = longrope.evolve(starts, loss, factor=8, rounds=40)
    assert found < 0.2 * min(map(loss, starts))
    assert longrope.evolve(starts, loss, factor=8, rounds=40) == (divisors, found)
    assert longrope.evolve(starts, loss, factor=8, rounds=0)[1] >= found


# ---- as a whole

pytestmark = pytest.mark.usefixtures("no_predictor")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two seeds of a tiny model, trained on a small corpus of bytes."""
    folder = tmp_path_factory.mktemp("runs")
    name = f"test_extend_{folder.parent.name}"
    words = [*TINY, f"--dataset={name}", "--seed=1", f"--out_dir={folder}/s1"]
    with corpus_of_programs(name):
        with workplace(tokenizers.HERE, folder):
            assert call(train, *words) == 0
        copy_as_seed(folder / "s1", folder / "s2", 2)
        (folder / "s2/extrapolation.json").unlink()
        yield [folder / "s1", folder / "s2"]


def run_extend(monkeypatch, *words) -> None:
    """evaluate.py on a command line, without the figures of the runs themselves."""
    monkeypatch.setattr(evaluate, "plot_run", lambda folder, result: None)
    monkeypatch.setattr(sys, "argv", ["evaluate.py", *map(str, words), "--device=cpu"])
    evaluate.main()


def test_a_table_of_seeds_by_extensions(runs, monkeypatch, capsys):
    run_extend(monkeypatch, *runs, "yarn", "ntk + logn", f"--out={runs[0].parent}/table.png")
    said = capsys.readouterr().out
    assert (runs[0].parent / "table.txt").read_text().strip() in said
    assert (runs[0].parent / "table.png").exists()
    assert said.count(f"{runs[1]}: ") == 3  # a line for each test, of the model as it is one
    frame = records.load_rows(runs)
    tested = frame[frame.protocol == "fixed_targets"].groupby(["run", "extend"]).length.apply(set)
    assert len(tested) == 6 and all(lengths == {32, 64} for lengths in tested)
    assert set(frame[frame.extend == "yarn"].protocol) == {"fixed_targets"}
    capsys.readouterr()
    for format, beginning in (("md", "rope on"), ("tex", "% rope on"), ("csv", "run,")):
        run_extend(monkeypatch, *runs, "yarn", f"--format={format}")
        said = capsys.readouterr().out
        assert said.startswith(beginning) and ("gain over cropping" in said) == (format != "csv")
        if format == "tex":
            outside = re.sub(r"(?s)\\begin\{tabular\}.*?\\end\{tabular\}", "", said).split("\n")
            assert all(line.startswith(("%", "\\")) for line in outside if line.strip())
    # what was measured is not measured again
    before = [(run / "extrapolation.json").read_bytes() for run in runs]
    run_extend(monkeypatch, *runs, "yarn")
    assert [(run / "extrapolation.json").read_bytes() for run in runs] == before
    with pytest.raises(UserError):
        run_extend(monkeypatch, *runs, "yarn(factor=0.5)")


def test_an_edited_extension_is_measured_again_and_shown_on_the_windows_asked_for(
    runs, tmp_path, monkeypatch
):
    file = tmp_path / "mine.py"
    tables = []
    for divisor, windows in ((2, 64), (50, 64), (50, 128), (50, 64), (2, 64)):
        file.write_text(
            "from posenc import Extension\n\nclass Slow(Extension):\n"
            "    def map_frequencies(self, inv_freq, base, total, ids):\n"
            f"        return inv_freq / {divisor}, 1.0\n"
        )
        tested = runs[:1] if windows == 128 else runs  # the other seed has 64 alone
        words = [
            "slow",
            f"--pos_file={file}",
            f"--eval_windows={windows}",
            f"--out={tmp_path}/t.png",
        ]
        run_extend(monkeypatch, *tested, *words)
        tables.append((tmp_path / "t.txt").read_text())
    assert tables[1] == tables[3] and tables[0] == tables[4] != tables[1]
    for run in runs:
        rows = records.load_result(run).records
        digests = {str(row.files_sha256) for row in rows if row.extend == "slow"}
        assert len(digests) == 2


def test_longrope_is_searched_and_used(runs, monkeypatch, capsys):
    monkeypatch.setattr(longrope, "POPULATION", 4)
    monkeypatch.setattr(longrope, "CHILDREN", 1)
    words = ["longrope", str(runs[0]), "--factor=2", "--rounds=1", "--device=cpu"]
    monkeypatch.setattr(sys, "argv", words)
    longrope.main()
    path = runs[0] / "longrope-2.json"
    found = read_json(path)
    assert len(found["long_factor"]) == 4 and found["train_length"] == 32
    assert set(found["loss_unseen"]) == {"pi", "ntk", "yarn", "search"}
    assert not list(runs[0].glob(".*.new"))
    assert str(path) in capsys.readouterr().out
    model = scheme("rope")
    model.extend(f"longrope(file='{path}', factor=2)")
    own = model.rotary[0].inv_freq
    mapped, _ = model.rotary[0].frequencies(64, model.maps)
    assert torch.allclose(own / mapped, torch.tensor(found["long_factor"], dtype=own.dtype))
