"""Memory stays linear in the length: one layer reads 8,192 tokens, whose scores alone would take 1 GiB."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LENGTH = 8192
LIMIT = 1280 * 2**20  # bytes; the dense path takes 2.8 GiB for t5, the blocks of it 0.7
PROGRAM = """
import json, sys, torch
from common import device
from configurable import GPTConfig
from model import GPT
torch.set_num_threads(1)
compute, peaks = device.pick("cpu", "float32"), {}
for pos, window in json.loads(sys.argv[1]):
    n_layer = 1 + pos.count("|")
    model = GPT(GPTConfig(block_size=64, n_layer=n_layer, n_head=4, n_embd=64, pos=pos)).eval()
    idx = torch.randint(256, (1, int(sys.argv[2])))
    with torch.no_grad():
        assert model.losses(idx, idx, window=window).isfinite().all()
    peaks[f"{pos}, window {window}"] = device.peak_memory(compute)
print(json.dumps(peaks))
"""
FEW = [("rope", None), ("t5", None)]
MANY = [
    "nope",
    "alibi",
    "sinusoidal",
    "kerple",
    "kerple(kind=power)",
    "rope + logn",
    "rope + window(size=64, sinks=4)",
    "t5 + rope",
    "randomized(max=16384) + alibi",
    "rope | alibi",
]


@pytest.mark.parametrize(
    "cases", [FEW, pytest.param([(pos, None) for pos in MANY], marks=pytest.mark.slow)]
)
def test_8192_tokens_need_no_memory_that_grows_with_their_square(cases):
    command = [sys.executable, "-c", PROGRAM, json.dumps(cases), str(LENGTH)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    peaks = json.loads(ended.stdout)  # each is that of all schemes so far
    assert len(peaks) == len(cases) and max(peaks.values()) < LIMIT, peaks


def test_the_memory_of_a_process_is_not_that_of_the_process_that_started_it():
    held = b"." * 2**30  # in the memory of this process, not only promised to it
    program = "from common import device; print(device.peak_memory(device.pick('cpu', 'float32')))"
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert 2**26 < int(ended.stdout) < len(held)
