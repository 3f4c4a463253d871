"""What the tests share: one thread, small corpora, a copy of the project to start programs in."""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tiktoken
import torch
from tiktoken_ext.openai_public import r50k_pat_str

import data.corpus
from common.processes import SIGNALS
from data import tokenizers
from data.corpus import write_corpus
from run.checkpoint import checkpoint_paths, load_checkpoint, save_checkpoint

# the tensors of the tests are small: waiting for a second thread takes longer than computing
torch.set_num_threads(1)
# a shell without job control starts what ends with & so that Ctrl-C is ignored, also by children
signal.signal(signal.SIGINT, signal.default_int_handler)

REPOSITORY = Path(__file__).resolve().parents[1]
TEXT = "".join(
    f"{n} times {n % 7} is {n * (n % 7)}, as everybody knows.\n" for n in range(120)
).encode()
SOURCES = (
    "*.py",
    "pyproject.toml",
    "common/*.py",
    "run/*.py",
    "run/*.toml",
    "measure/*.py",
    "tables/*.py",
    "tools/*.py",
    "zoo/*.py",
    "data/*.py",
)


# ---- programs in processes of their own


@dataclass
class Started:
    """A program at work; what it says goes into files, so that it never waits for a reader."""

    process: subprocess.Popen
    out: Path
    err: Path

    @property
    def said(self):
        """Its standard output so far."""
        return self.out.read_text(encoding="utf-8", errors="replace")

    @property
    def complained(self):
        """Its standard error so far."""
        return self.err.read_text(encoding="utf-8", errors="replace")

    def end(self, seconds=120):
        """Wait for its end: the exit code; one that takes longer is killed and fails the test."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            pytest.fail(f"no end after {seconds} s: {self.said[-500:]} {self.complained[-2000:]}")


class Project:
    """A copy of the sources in which `data/tiny` is a small corpus of bytes."""

    def __init__(self, folder):
        self.folder = folder
        self.started: list[Started] = []

    def start(self, folder, *words):
        """`python PROGRAM --key=value ...` in a folder, as a user starts it, on one thread."""
        env = {k: v for k, v in os.environ.items() if not k.startswith(("WANDB", "PYTEST", "COV"))}
        env |= {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        out, err = (self.folder / f"{len(self.started)}.{name}" for name in ("out", "err"))
        with out.open("wb") as said, err.open("wb") as complained:
            process = subprocess.Popen(
                [sys.executable, *self.placed(words)],
                cwd=folder,
                stdout=said,
                stderr=complained,
                env=env,
            )
        self.started.append(Started(process, out, err))
        return self.started[-1]

    def placed(self, words):
        """The words with the project's programs found where they are."""
        return [
            str(self.folder / word) if (self.folder / word).is_file() else word for word in words
        ]

    def run(self, folder, *words):
        """The same, to its end."""
        started = self.start(folder, *words)
        started.end()
        return started


# ---- programs in this process

SIZE = (
    "--dataset=tiny --n_layer=1 --n_head=2 --n_embd=16 --block_size=16 --batch_size=4 "
    "--max_iters=8 --warmup_iters=2 --eval_interval=4 --log_interval=1 --eval_iters=1 "
    "--eval_lengths=8,16,32 --compile=False --device=cpu --dtype=float32 --examine=False"
).split()


def write_bytes(folder, train, val):
    """A corpus of bytes with these documents; what its meta.json holds."""
    splits = {
        "train": [np.frombuffer(document, np.uint8) for document in train],
        "val": [np.frombuffer(document, np.uint8) for document in val],
    }
    return write_corpus(folder, splits, tokenizer="bytes", source="a test", rule="as given")


@contextmanager
def corpus_of_programs(name):
    """A small corpus of bytes in data/, where programs in processes of their own find it."""
    text = b"to be, or not to be: that is the question\n" * 400
    write_bytes(tokenizers.HERE / name, [text], [text])
    yield
    shutil.rmtree(tokenizers.HERE / name)


@pytest.fixture
def toy_gpt2(monkeypatch):
    """GPT-2's pattern with a handful of merges in the place of GPT-2's vocabulary: needs no file."""
    merged = [b" t", b"he", b"  ", b"\n\n", b" \n", b"\n ", b" the", b"\n\n\n"]
    ranks = {piece: rank for rank, piece in enumerate([bytes([i]) for i in range(256)] + merged)}
    toy = tiktoken.Encoding(
        "toy", pat_str=r50k_pat_str, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 264}
    )
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: toy)
    return toy


@pytest.fixture(scope="session")
def corpora(tmp_path_factory):
    """A folder with small corpora of bytes, `tiny` and `other`, and one of characters, `char`."""
    root = tmp_path_factory.mktemp("corpora")
    make_corpora(root)
    return root


def make_corpora(root):
    """Write the small corpora into a folder."""
    write_bytes(root / "tiny", [TEXT], [TEXT])
    write_bytes(root / "other", [TEXT[1:]], [TEXT])
    letters = "".join(sorted(set(TEXT.decode())))
    ids = [np.frombuffer(TEXT, dtype=np.uint8) % len(letters)]
    about = {"tokenizer": "char", "characters": letters, "source": "a test", "rule": "as given"}
    write_corpus(root / "char", {"train": ids, "val": ids}, **about)


@contextmanager
def workplace(corpora, folder):
    """Work in `folder` with these corpora, without figures; leave the process as it was."""
    import train

    before = {number: signal.getsignal(number) for number in SIGNALS}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data.corpus.load_corpus, "__defaults__", (corpora,))
        patch.setattr(train, "plot_run", lambda folder, result: None)
        patch.setattr("run.folder.LOCKS", [])
        patch.chdir(folder)
        yield
    for number, handler in before.items():
        signal.signal(number, handler)
    torch.set_flush_denormal(False)
    torch.set_deterministic_debug_mode("default")


@pytest.fixture
def no_predictor(monkeypatch):
    """The predictor by counts, which tests/test_context.py is about, takes seconds."""

    def known_losses(corpus, measured, fitted, scored, lengths):
        return np.ones((len(lengths), len(measured), scored))

    monkeypatch.setattr("measure.predictor.known_losses", known_losses)


@pytest.fixture
def here(corpora, tmp_path, no_predictor):
    """A test in a folder of its own, with the small corpora."""
    with workplace(corpora, tmp_path):
        yield


def call(program, *words):
    """Run a program's main() in this process; its exit code. UserError goes through."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [f"{program.__name__}.py", *words])
        try:
            return program.main() or 0
        except SystemExit as end:
            return end.code


def written(folder, pattern):
    """The content of a file of wandb, whose process writes it some time after its run has ended."""
    for _ in range(200):
        files = list(folder.glob(pattern))
        if files and files[0].stat().st_size > 1000:
            break
        time.sleep(0.1)
    (file,) = files
    return file.read_bytes()


@pytest.fixture(scope="session")
def project(tmp_path_factory):
    """A Project; what was started in it and still runs at the end is killed."""
    folder = tmp_path_factory.mktemp("project")
    for path in [path for pattern in SOURCES for path in REPOSITORY.glob(pattern)]:
        copy = folder / path.relative_to(REPOSITORY)
        copy.parent.mkdir(exist_ok=True)
        shutil.copy(path, copy)
    make_corpora(folder / "data")
    project = Project(folder)
    yield project
    for started in project.started:
        if started.process.poll() is None:
            started.process.kill()


def copy_as_seed(run: Path, copy: Path, seed: int) -> None:
    """Copy a run of seed 1, which then says everywhere that it is of another seed."""
    shutil.copytree(run, copy)
    for name in ("config.json", "extrapolation.json"):
        path = copy / name
        path.write_text(path.read_text().replace('"seed": 1,', f'"seed": {seed},'))
    state = load_checkpoint(copy)
    state["settings"]["seed"] = seed
    for path in checkpoint_paths(copy):
        path.unlink()
    save_checkpoint(copy, state)
