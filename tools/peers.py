"""Longshot beside other libraries: speed and memory of training, a long test and decoding.

    python -m tools.peers > results/throughput/peers.txt
    python -m tools.peers 4x128 --rounds=1 --nanogpt=FOLDER   # a clone that is there, or a URL

The peers are x-transformers, karpathy's nanoGPT and transformers' Llama. They are installed in a
folder of their own (--folder), which sees the packages of this environment and changes none. Every
command is printed before it is run. Memory is measured on Linux or a CUDA device.
"""

import json
import site
import subprocess
import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pandas as pd

from common import device
from common.errors import UserError, run_program
from configurable import ComputeSettings, Count, configure, setting
from run.folder import ROOT, provenance
from tables.tables import show
from tools.side_by_side import PARTS, PEERS, SIZES

COMMIT = "3adf61e154c3fe3fca428ad6bc3818b27a3b8291"  # of nanoGPT
LEGEND = """\
train      a step of 16 texts of random tokens with AdamW, compiled; all else is eager
test       the loss of the last 32 of 4,096 tokens
decode     the likeliest 128 tokens after a text of the training length, by the loop and the
           cache of each library; nanoGPT has no cache
tokens/s   of longshot, with the block of the peer; × peer: how many times the peer's, the
           median over the rounds; low, high: of all rounds
MiB        the most that a call needs beyond what is held before it
"""


@dataclass(frozen=True)
class PeersSettings(ComputeSettings):
    """What is measured, and where the peers are."""

    rounds: Count = setting(11, "times that longshot and the peer take turns", "test")
    folder: str = setting("~/.cache/longshot/peers", "where the peers are installed", "machine")
    nanogpt: str = setting(
        "https://github.com/karpathy/nanoGPT", "what git clones: a URL or a folder", "machine"
    )


def call(*words):
    """Print a command and run it: the last line of its output. An error if it fails."""
    print("$", *words, file=sys.stderr)
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip().rpartition("\n")[2]


def install(peer: str, folder: Path, nanogpt: str) -> Path:
    """Install a peer in a virtual environment that sees the packages of this one: its Python."""
    python = folder / "bin/python"
    if not python.exists():
        call(sys.executable, "-m", "venv", folder)
    packages = call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    seen = [*site.getsitepackages(), site.getusersitepackages()]
    Path(packages, "seen.pth").write_text("\n".join(seen), encoding="utf-8")
    clone = folder / "nanoGPT"
    if peer == clone.name:
        if not clone.exists():
            call("git", "clone", "--quiet", nanogpt, clone)
        call("git", "-C", clone, "checkout", "--quiet", COMMIT)
    else:
        call(python, "-m", "pip", "install", "--quiet", peer)
    return python


def main() -> None:
    """Install the peers, measure, and print the table."""
    s, sizes = configure(PeersSettings, sys.argv[1:], __doc__)
    if not SIZES.keys() >= set(sizes):
        raise UserError(f"the sizes are {' and '.join(SIZES)}, not {sizes}")
    compute = device.pick(s.device, s.dtype)
    folder = Path(s.folder).expanduser()
    lines = []
    about = provenance() | {"command": ["tools.peers", *sys.argv[1:]], "nanoGPT": COMMIT}
    notes = [LEGEND, json.dumps(about)]
    for peer, (_, schemes) in PEERS.items():
        try:
            python = install(peer, folder, s.nanogpt)
            for size, part, pos in product(sizes or SIZES, PARTS, schemes):
                words = (peer, pos, part, size, str(s.rounds), compute.device, compute.dtype_name)
                numbers = json.loads(call(python, "-m", "tools.side_by_side", *words))
                lines.append({"longshot beside": f"{size}, {part}, {peer}, {pos}"} | numbers)
        except (subprocess.CalledProcessError, OSError) as error:
            notes.append(f"{peer} is left out from here on: {error}")
    if not lines:
        raise UserError(notes[-1])
    rates = device.measured_rates(2048, 128)
    rates = ", ".join(f"{dtype} {rate:.0f}" for dtype, rate in rates.items())
    title = f"{compute.name}, {compute.dtype_name}; GFLOP/s of a product: {rates}"
    print(show(title, pd.DataFrame(lines), notes, digits=2))


if __name__ == "__main__":
    run_program(main)
