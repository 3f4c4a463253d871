"""python -m tools.peers: the same model on both sides, the numbers of a line, the whole program."""

import json
import re
import subprocess
import sys

import pytest
import torch

from common.errors import UserError
from configurable import GPTConfig
from tools import peers, side_by_side

LLAMA = "transformers==5.23.0"


@pytest.fixture
def small(monkeypatch):
    """Models that are quick, and times that are known: a peer's call takes 3, 4 and 8 times ours."""
    shape = {"n_layer": 1, "n_head": 2, "n_embd": 24, "block_size": 16}
    monkeypatch.setitem(side_by_side.SIZES, "1x24", shape)
    monkeypatch.setattr(side_by_side, "NEW", 4)
    times = iter([2.0, 6.0, 1.0, 8.0, 4.0, 16.0])

    def seconds(call, compute):
        call()
        return next(times)

    monkeypatch.setattr(side_by_side, "seconds", seconds)


@pytest.mark.parametrize("part, tokens", [("train eager", 256), ("test", 4096), ("decode", 4)])
def test_a_line_has_the_numbers_of_both_sides(small, part, tokens):
    line = side_by_side.measure(LLAMA, "rope", part, "1x24", "3", "cpu", "float32")
    assert line["parameters, ours"] == line["parameters, theirs"] > 256 * 24
    assert (line["× peer"], line["low"], line["high"]) == (4.0, 3.0, 8.0)
    assert line["tokens/s"] == tokens / 2
    assert line["MiB, ours"] >= 0 and line["MiB, theirs"] >= 0


def test_the_memory_is_what_a_call_needs(small):
    compute = side_by_side.device.CPU
    kept = torch.ones(2**24)  # 64 MiB that are held before
    assert 60 <= side_by_side.peak_of(lambda: torch.ones(2**24).sum() + kept[0], compute) <= 80


def test_all_sides_score_the_same_targets(tmp_path, monkeypatch):
    """Weights of 0 give all 256 tokens the same logit: a target costs log 256."""
    (tmp_path / "nanoGPT").mkdir()
    (tmp_path / "nanoGPT/model.py").write_text(
        "from torch import nn\n"
        "class GPT(nn.Module):\n"
        "    def __init__(self, config):\n"
        "        super().__init__()\n"
        "        self.shape = (config.vocab_size, config.n_layer, config.n_head, config.n_embd,\n"
        "            config.block_size, config.dropout, config.bias)\n"
        "    def forward(self, x, targets):\n"
        "        return None, targets\n"
    )
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path])
    config = GPTConfig(n_layer=1, n_head=2, n_embd=24, block_size=16)
    model, loss, _ = side_by_side.nanogpt(config)
    assert model.shape == (256, 1, 2, 24, 16, 0.0, False)
    x = torch.arange(16)[None]
    assert loss(x, x[:, -3:]).tolist() == [[-1] * 13 + [13, 14, 15]]
    for new_side in (side_by_side.longshot, side_by_side.llama):
        model, loss, generate = new_side(config)
        with torch.no_grad():
            for p in model.parameters():
                p.zero_()
            assert loss(x, x[:, -3:]).item() == pytest.approx(torch.tensor(256.0).log().item())
            assert generate(x).shape == (1, 16 + side_by_side.NEW)


# ---- the program


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Call the program; commands only say that they are run, and some of them fail."""

    def call(*words, fails=()):
        def pretend(*command):
            if any(word in fails for word in command):
                raise subprocess.CalledProcessError(1, command)
            if "tools.side_by_side" in command:
                return json.dumps({"tokens/s": 1234, "× peer": 1.5, "low": 1.25, "high": 2.0})
            return str(tmp_path)

        monkeypatch.setattr(peers, "call", pretend)
        monkeypatch.setattr(sys, "argv", ["x", f"--folder={tmp_path}", "--dtype=float32", *words])
        peers.main()
        return capsys.readouterr().out

    return call


def test_each_part_of_each_peer_has_a_line(run):
    text = run("--rounds=3")
    for peer, (_, schemes) in side_by_side.PEERS.items():
        for scheme in schemes:
            for size in side_by_side.SIZES:
                for part in side_by_side.PARTS:
                    line = text.partition(f"{size}, {part}, {peer}, {scheme} ")[2].split("\n")[0]
                    assert line.split() == ["1234", "1.50", "1.25", "2.00"]
    assert re.search(r"GFLOP/s of a product: bfloat16 \d+, float32 \d+\n", text)
    assert peers.COMMIT in text
    assert '"git_commit": "' in text and '"--rounds=3"' in text


def test_a_peer_that_cannot_be_had_is_left_out_and_named(run):
    text = run("4x128", fails=["git"])
    assert "nanoGPT is left out from here on: Command" in text and "6x384" not in text
    assert "4x128, train, nanoGPT" not in text and f"4x128, train, {LLAMA}" in text


def test_what_cannot_be_done_is_said(run):
    with pytest.raises(UserError, match="the sizes are 4x128 and 6x384, not .*5x100"):
        run("5x100")
    with pytest.raises(UserError, match=f"{LLAMA} is left out .* exit status"):
        run(fails=["git", "pip"])


def test_a_command_is_printed_and_gives_its_last_line(capsys):
    assert peers.call(sys.executable, "-c", "print('a'); print('b c')") == "b c"
    assert capsys.readouterr().err.endswith(" -c print('a'); print('b c')\n")
    with pytest.raises(subprocess.CalledProcessError):
        peers.call(sys.executable, "-c", "print('a'); 1 / 0")
