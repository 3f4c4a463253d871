"""python -m tools.bench: every part has a line."""

import re
import sys

import pytest

from tools import bench

SMALL = "--dataset=tiny --n_layer=1 --n_head=2 --n_embd=16 --block_size=16 --batch_size=4"
SMALL += " --eval_lengths=64 --max_new_tokens=4 --rounds=1 --compile=False --device=cpu"
SMALL += " --dtype=float32"


@pytest.fixture
def run(here, monkeypatch, capsys):
    """Call the program with more words, in a folder of its own: what it prints."""
    monkeypatch.setattr(bench, "CUBE", 64)
    monkeypatch.setattr(bench, "BATCH_TOKENS", 256)

    def call(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["bench", *SMALL.split(), *words])
        bench.main()
        return capsys.readouterr().out

    return call


def test_every_part_of_every_scheme_has_a_line(run):
    text = run("alibi", "learned", "--beside=rope")
    assert "trained at L = 16; beside rope\n" in text
    lengths = {"train": 16, "test": 64, "decode": 20}
    for part, length in lengths.items():
        (line,) = re.findall(rf"^ *alibi, {part} +(.*)", text, re.M)
        n, tokens_per_s, ratio, low, high, use = map(float, line.split()[:6])
        assert n == length and 0 < low <= ratio <= high
        assert tokens_per_s > 0 and 0 <= use < 1  # 0.0 is printed on a busy machine
    assert "too few" in re.search("^ *learned, test .*", text, re.M)[0]
    assert "decode" not in run("alibi", "--only=train")
