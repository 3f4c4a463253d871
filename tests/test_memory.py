"""Memory stays linear in the length: the tiny model reads 16,384 tokens, whose scores alone would take 4 GB in each layer."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LENGTH, LIMIT = (
    16384,
    2 * 2**30,
)  # bytes; one dense matrix of added scores takes 4 GiB, a block of it and its making under 1
PROGRAM = """
import resource, sys, torch
from configurable import TrainSettings, configure
from model import GPT
settings, _ = configure(TrainSettings, ["config/size/tiny.py", "--pos=" + sys.argv[1]], "")
torch.set_num_threads(1)
model, idx = GPT(settings.gpt(256)).eval(), torch.randint(256, (1, int(sys.argv[2])))
with torch.no_grad():
    assert model.losses(idx, idx, window=int(sys.argv[3]) or None).isfinite().all()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024))
"""
SLOW = [
    "nope",
    "sinusoidal",
    "kerple",
    "kerple(kind=power)",
    "rope + logn",
    "rope + window(size=64, sinks=4)",
    "t5 + rope",
    "randomized(max=16384) + alibi",
    "rope | alibi",
]
CASES = [
    ("rope", 0),
    ("alibi", 0),
    ("t5", 0),
    ("rope", 64),
    *(pytest.param(pos, 0, marks=pytest.mark.slow) for pos in SLOW),
]


@pytest.mark.parametrize(("pos", "window"), CASES)
def test_16384_tokens_need_no_memory_that_grows_with_their_square(pos, window):
    pytest.importorskip("resource")
    command = [sys.executable, "-c", PROGRAM, pos, str(LENGTH), str(window)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) < LIMIT
