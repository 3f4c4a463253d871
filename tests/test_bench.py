"""python -m tools.bench: every part has a row, a stop loses nothing, other settings are refused."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import data
from configurable import UserError
from tools import bench

SMALL = "--dataset=tiny --n_layer=1 --n_head=2 --n_embd=16 --block_size=16 --batch_size=4"
SMALL += " --eval_lengths=64 --max_new_tokens=4 --rounds=1 --compile=False --device=cpu"
SMALL += " --dtype=float32"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Call the program with more words, in a folder of its own: the rows of bench.json."""
    ids = np.tile(np.arange(97, 123), 200)
    corpora = tmp_path / "data"
    about = {"tokenizer": "bytes", "source": "the alphabet", "rule": "none"}
    data.write_corpus(corpora / "tiny", {"train": [ids], "val": [ids]}, **about)
    monkeypatch.setattr(data.load, "__defaults__", (corpora,))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "CUBE", 64)
    monkeypatch.setattr(bench, "TEST_TOKENS", 256)

    def call(*words: str) -> dict:
        monkeypatch.setattr(sys, "argv", ["bench", *SMALL.split(), *words])
        bench.main()
        return json.loads(Path("out/bench/bench.json").read_text(encoding="utf-8"))["rows"]

    return call


def test_every_part_of_every_scheme_has_a_row_and_is_measured_once(run, monkeypatch, capsys):
    rows = run("alibi", "learned")
    lengths = {"train": 16, "test": 64, "decode": 20}
    for part, length in lengths.items():
        row = rows[f"alibi, {part} at L = 16"]
        assert row["length"] == length
        assert 0 < row["low"] <= row["nope"] <= row["high"]
        assert row["tokens_per_s"] > 0 and 0 < row["use"] < 1
    assert "needs more" in rows["learned, test at L = 16"]["reason"]
    table = Path("out/bench/table.txt").read_text(encoding="utf-8")
    assert table in capsys.readouterr().out and all(name in table for name in rows)

    measured = []
    monkeypatch.setattr(bench, "compare", lambda s, *rest: measured.append(s.pos) or {"reason": ""})
    assert run("alibi", "rope", "--only=decode").keys() - rows.keys() == {"rope, decode at L = 16"}
    assert measured == ["rope"]
    with pytest.raises(UserError, match="is of other settings"):
        run("alibi", "--n_layer=2")
