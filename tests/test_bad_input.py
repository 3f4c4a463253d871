"""What a user may do wrong in every program: one sentence, an exit code, and nothing written or lost.

Each row of the tables is a command line as it is typed. Here the programs are run to their end. A loss that is no number
is tested with the training; the values of settings and the grammar have tests of their own.
"""

import io
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

import ablate
import configurable
import data
from runs.checkpoint import checkpoint_paths, load_state
from runs.files import write_text
from runs.results import load_result

REPOSITORY = Path(configurable.__file__).resolve().parent
PROGRAMS = {
    "train": "train.py",
    "evaluate": "evaluate.py",
    "sample": "sample.py",
    "ablate": "ablate.py",
    "prepare": "data/text/prepare.py",
    "explain": "explain.py",
    "report": "report.py",
}
TEXT = "".join(f"{n} times {n % 7} is {n * (n % 7)}, as everybody knows.\n" for n in range(60))
LETTERS = "".join(sorted(set(TEXT)))
SIZE = [
    "--dataset=tiny",
    "--n_layer=1",
    "--n_head=2",
    "--n_embd=16",
    "--block_size=16",
    "--batch_size=4",
    "--max_iters=2",
    "--warmup_iters=1",
    "--eval_iters=1",
    "--eval_lengths=8,16,32",
    "--compile=False",
    "--device=cpu",
    "--dtype=float32",
]
MINE = ["texts.txt", "--name=mine", "--tokenizer=bytes"]
LOCKS = {".lock", ".holder"}  # who works in a folder; a program that is refused may leave them
Change = Callable[[], object]


class Ended(NamedTuple):
    """How a program ended."""

    code: int
    out: str
    err: str


# ---- a place to make mistakes in


def tree() -> dict[str, bytes]:
    """Every file of the working directory with its content, every folder with nothing."""
    return {
        path.as_posix(): path.read_bytes() if path.is_file() else b""
        for path in sorted(Path().rglob("*"))
        if path.name not in LOCKS and "__pycache__" not in path.parts
    }


def write(folder: Path, train: str, val: str, tokenizer: str = "bytes") -> None:
    """A corpus of these texts."""
    kind = data.CharTokenizer(LETTERS) if tokenizer == "char" else data.ByteTokenizer()
    data.write_corpus(
        folder,
        {split: [np.array(kind.encode(text))] for split, text in (("train", train), ("val", val))},
        tokenizer=tokenizer,
        source="here",
        rule="all",
        characters=LETTERS,
    )


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Corpora, texts, and trained runs: `run` (rope), `wide` and `alibi` (as many parameters as `run`), `char`."""
    root = tmp_path_factory.mktemp("template")
    write(root / "corpora/tiny", TEXT, TEXT)
    write(root / "corpora/char", TEXT, TEXT, "char")
    write(root / "corpora/short", TEXT[:300], TEXT[:300])  # 300 tokens
    write(root / "corpora/shorter", TEXT[:300], TEXT[:30])  # no length has 64 windows in 30 tokens
    write(root / "corpora/shortest", TEXT[:12], TEXT[:12])
    (root / "texts.txt").write_text(TEXT, encoding="utf-8")
    (root / "latin.txt").write_bytes("ein schöner Text".encode("latin-1"))
    (root / "latin.py").write_bytes("pos = 'größer'\n".encode("latin-1"))
    (root / "empty.txt").write_bytes(b"")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        for folder, words in (
            ("run", []),
            ("wide", ["--n_embd=32"]),
            ("alibi", ["--pos=alibi"]),
            ("char", ["--dataset=char"]),
        ):
            assert program(patch, "train", *SIZE, *words, f"--out_dir={folder}") == 0
    return root


@pytest.fixture(autouse=True)
def here(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test in a copy of that folder; signals are left as they were."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    shutil.copytree(template, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(
        ablate, "train", lambda cell, relay: pytest.fail(f"{cell.name} must not be trained")
    )
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def program(patch: pytest.MonkeyPatch, name: str, *words: str) -> int | str | None:
    """Run a program of this project in this process, with the corpora of the working directory; what it exits with."""
    corpora = Path("corpora").resolve()
    patch.setattr(sys, "argv", [PROGRAMS[name], *words])
    patch.setattr(data.load, "__defaults__", (corpora,))
    patch.setattr(data, "HERE", corpora)
    patch.setattr(
        "runs.figures.plot_runs", lambda results, path, dataset="": write_text(path, "drawn")
    )
    with pytest.raises(SystemExit) as ended:
        if name == "ablate":  # whose training the fixture `here` forbids
            configurable.run_program(ablate.main)
        else:
            runpy.run_path(str(REPOSITORY / PROGRAMS[name]), run_name="__main__")
    return ended.value.code


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Callable[..., Ended]:
    """call("train", "--seed=1"): how it ended. Whatever else than an exit a program ends with, fails the test."""

    def of(name: str, *words: str) -> Ended:
        capsys.readouterr()
        code = program(monkeypatch, name, *words)
        out, err = capsys.readouterr()
        if isinstance(code, str):  # as Python does
            return Ended(1, out, f"{err}{code}\n")
        return Ended(code or 0, out, err)

    return of


@pytest.fixture
def refused(call: Callable[..., Ended]) -> Callable[..., str]:
    """Run a program that must refuse its input; the sentence, once all is checked that every refusal has in common."""

    def of(name: str, *words: str) -> str:
        before = tree()
        ended = call(name, *words)
        assert ended.code not in (0, None), ended.out
        lines = [
            line for line in ended.err.splitlines() if not re.match(r"usage: | {4}", line)
        ]  # argparse's reminder
        assert len(lines) == 1, ended.err
        assert re.match(r"(prepare\.py: )?error: |failed: ", lines[0]) and 20 < len(lines[0]) < 600
        assert "Traceback" not in ended.out + ended.err
        assert tree() == before
        return lines[0]

    return of


def row(name: str, *words: str, said: str, before: Change | None = None) -> object:
    """A line of a table: the program, what is typed, what the sentence must name, and what was done to the files before."""
    return pytest.param(
        name,
        words,
        said,
        before,
        id=" ".join([name, *words, *([before.args[0] if before else ""])])[:80],
    )


def table(*rows: object) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("name", "words", "said", "before"), rows)


def judge(
    refused: Callable[..., str], name: str, words: tuple[str, ...], said: str, before: Change | None
) -> None:
    """One row: the sentence names the offending thing."""
    if before:
        before()
    if name == "train":
        words = (*SIZE, *words)
    sentence = refused(name, *words)
    assert re.search(said, sentence), sentence


# ---- changes to files; their first argument is what they are called in the table


def rewrite(_: str, pattern: str, content: bytes | Callable[[bytes], bytes]) -> None:
    """Give the files of that name another content; make one if there is none."""
    for path in sorted(Path().glob(pattern)) or [Path(pattern)]:
        path.write_bytes(content(path.read_bytes()) if callable(content) else content)


def remove(_: str, pattern: str) -> None:
    for path in Path().glob(pattern):
        path.unlink()


def swap(_: str, folder: str, other: str) -> None:
    """Put the checkpoints of another run, in whose names their digests are, into a run folder."""
    remove("", f"{folder}/ckpt-*.pt")
    for path in checkpoint_paths(Path(other)):
        shutil.copy(path, folder)


def in_meta(_: str, split: str, **values: object) -> None:
    """Change what meta.json says of a split of the corpus `tiny`."""
    path = Path("corpora/tiny/meta.json")
    meta = json.loads(path.read_text(encoding="utf-8"))
    meta["splits"][split] |= values
    path.write_text(json.dumps(meta), encoding="utf-8")


# ---- unknown and misspelt settings


@table(
    row("train", "--n_emdb=64", said="'n_emdb'; did you mean n_embd"),
    row("train", "--zzz=1", said="'zzz'; --help"),
    row(
        "train",
        "wrong.py",
        said=r"wrong\.py:2: unknown setting 'n_layers'; did you mean n_layer\?",
        before=partial(rewrite, "a file", "wrong.py", b"seed = 1\nn_layers = 2\n"),
    ),
    row("train", "absent.py", said=r"absent\.py: cannot be read"),
    row("train", "alibi", said="'alibi'.* is neither a config file"),
    row("train", "--pos=rpoe", said="no position scheme rpoe; did you mean rope"),
    row("train", "--pos=rope(bas=1)", said="rope has no option bas"),
    row("train", "--dataset=tinny", said="no corpus 'tinny', but .* tiny[,;]"),
    row("train", "--init_from=absent", said=r"absent/config\.json is missing"),
    row("train", "--pos_file=absent.py", said=r"absent\.py"),
    row("train", "--device=gpu", said="device=gpu is not one of"),
    row("evaluate", "run", "--protocol=windowed", said="'protocol'; did you mean protocols"),
    row("evaluate", "run", "--n_embd=64", said="unknown setting 'n_embd'"),
    row("train", "--seeds=1,2", said="unknown setting 'seeds'; it is one of ablate.py"),
    row("evaluate", "absent", said=r"absent/config\.json is missing"),
    row("report", "absent", said=r"absent has no extrapolation\.json"),
    row("report", "run", "--datset=tiny", said="'datset'; did you mean dataset"),
    row("report", "run", "--dataset=tinny", said="tinny"),
    row("report", said="no run folder is named"),
    row("evaluate", "run", "--dataset=tinny", said="no corpus 'tinny'"),
    row("evaluate", said="no run folder is named"),
    row("sample", "run", "--temprature=1", said="'temprature'; did you mean temperature"),
    row("sample", "absent", said=r"absent/config\.json is missing"),
    row("sample", said="one run folder, not 0"),
    row("ablate", "nope", "--sedes=1", said="'sedes'; did you mean seeds"),
    row("ablate", "nope", "rpoe", said="no position scheme rpoe"),
    row("ablate", "nope", "--dataset=tinny", said="no corpus 'tinny'"),
    row("ablate", "--dataset=tiny", said="name the position schemes"),
    row("prepare", *MINE, "--tokeniser=bytes", said="unrecognized arguments: --tokeniser=bytes"),
    row("prepare", "texts.txt", "--tokenizer=bytes", said="required: --name"),
    row("prepare", "absent.txt", *MINE[1:], said=r"absent\.txt is no file or folder"),
    row("explain", "rpoe", said="no position scheme rpoe"),
    row("explain", "rope(bas=1)", said="rope has no option bas"),
    row("explain", "rope", "--pos_file=absent.py", said=r"no file absent\.py"),
)
def test_unknown_and_misspelt_names(refused, name, words, said, before):
    judge(refused, name, words, said, before)


# ---- wrong types


@table(
    row("train", "--n_layer=two", said="n_layer is 'two', and must be int"),
    row("train", "--max_iters=1.5", said="max_iters is 1.5"),
    row("train", "--compile=yes", said="compile is 'yes', and must be bool"),
    row("train", "--dropout=1", said="dropout is 1, .*below 1"),
    row(
        "train",
        "wrong.py",
        said=r"wrong\.py:1: learning_rate is 'small', and must be float",
        before=partial(rewrite, "a text", "wrong.py", b"learning_rate = 'small'\n"),
    ),
    row("train", "--pos=window(size=1.5)", said="size=1.5 does not fit"),
    row("evaluate", "run", "--stride=far", said="stride is 'far'"),
    row("evaluate", "run", "--eval_lengths=16,x", said="eval_lengths is '16,x'"),
    row("sample", "run", "--top_k=0.5", said="top_k is 0.5"),
    row("sample", "run", "--temperature=hot", said="temperature is 'hot'"),
    row("ablate", "nope", "--seeds=1.5", said="seeds is"),
    row(
        "prepare",
        *MINE[:2],
        "--tokenizer=words",
        said="--tokenizer=words has no tokenizer.json; give bytes, char, gpt2, a folder",
    ),
    row(
        "prepare",
        "texts.txt",
        "--name=a/b",
        "--tokenizer=bytes",
        said="--name=a/b must be a folder name",
    ),
    row("explain", "window(size=1.5)", said="size=1.5 does not fit"),
)
def test_wrong_types(refused, name, words, said, before):
    judge(refused, name, words, said, before)


# ---- impossible combinations


@table(
    row("train", "--n_embd=30", "--n_head=4", said="n_embd = 30 cannot be divided by n_head = 4"),
    row("train", "--n_embd=6", said="even dimension, not 3"),
    row(
        "train",
        "--lr_decay_iters=1",
        "--warmup_iters=2",
        said="warmup_iters = 2 is above lr_decay_iters = 1; lower it",
    ),
    row("train", "--pos=rope + rope", said="rope is named twice"),
    row("train", "--pos=learned + sinusoidal", said="learned and sinusoidal both claim"),
    row(
        "train",
        "--pos=randomized(max=8) + rope",
        said=r"max must .* the training length 16 .*not 8",
    ),
    row("train", "--init_from=run", "--n_embd=32", said="n_embd=32 does not go with init_from=run"),
    row("train", "--init_from=char", said="a vocabulary of"),
    row(
        "train", "--seed=7", "--out_dir=run", said="run holds another run .seed: 7 here, 1337 there"
    ),
    row("evaluate", "run", "--protocols=", said="protocols is .., and must be non-empty list"),
    row("evaluate", "run", "--dataset=char", said="char has another tokenizer"),
    row(
        "report",
        "run",
        said=r"has no extrapolation\.json",
        before=partial(remove, "untested", "run/extrapolation.json"),
    ),
    row("sample", "run", "wide", said="one run folder, not 2"),
    row("sample", "run", "--start=", said="the prompt is empty"),
    row("ablate", "nope", "--pos=alibi", said="ablate sets pos itself"),
    row("ablate", "nope", "nope", "--dataset=tiny", said="name each scheme once"),
    row(
        "ablate",
        "rope",
        "randomized(max=8)",
        "--block_size=16",
        said=r"max must .* the training length 16 .*not 8",
    ),
    row("ablate", "nope", "--only=3/2", said="only is '3/2', and must be I/N"),
    row("prepare", *MINE, "--val", "texts.txt", said=r"texts\.txt is in PATH and --val"),
    row(
        "prepare",
        "texts.txt",
        "--name=text",
        "--tokenizer=bytes",
        said="--name=text belongs to the project",
    ),
    row("explain", "rope + rope", said="rope is named twice"),
)
def test_impossible_combinations(refused, name, words, said, before):
    judge(refused, name, words, said, before)


# ---- token files

BIN = "corpora/tiny/{}.bin"
DAMAGES = {  # what was done to the token file of a split: how, and what is said
    "missing": (lambda split: remove("", BIN.format(split)), r"{}\.bin has 0 bytes"),
    "truncated": (
        lambda split: rewrite("", BIN.format(split), lambda old: old[:101]),
        r"{}\.bin has 101 bytes: no whole tokens",
    ),
    "empty": (lambda split: rewrite("", BIN.format(split), b""), r"{}\.bin has 0 bytes"),
    "of four bytes a token": (
        lambda split: rewrite(
            "", BIN.format(split), lambda old: np.frombuffer(old, "<u2").astype("<u4").tobytes()
        ),
        r"{}\.bin has [\d,]+ tokens of uint16, not",
    ),
    "of no dtype": (
        lambda split: in_meta("", split, dtype="float32"),
        r"{}\.bin has .* not [\d,]+ tokens of float32",
    ),
    "outside the vocabulary": (
        lambda split: rewrite("", BIN.format(split), lambda old: b"\0\xff" * (len(old) // 2)),
        r"{}\.bin holds token 65280, outside its vocabulary of 256",
    ),
    "an empty corpus": (
        lambda split: (rewrite("", BIN.format(split), b""), in_meta("", split, tokens=0)),
        r"{}\.bin has 0 bytes: no whole tokens",
    ),
}
READERS = {
    "train": [*SIZE],
    "evaluate": ["run"],
    "sample": ["run"],
    "ablate": ["nope", "--dataset=tiny"],
}


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_token_file_that_is_not_as_it_was_made(refused, damage, split):
    damaged, said = DAMAGES[damage]
    damaged(split)
    for name, words in READERS.items():
        sentence = refused(name, *words)
        assert re.search(said.format(split), sentence), sentence
        assert "python data/text/prepare.py --name=tiny" in sentence


@table(
    row("prepare", "empty.txt", *MINE[1:], said=r"empty\.txt: no text in it"),
    row(
        "prepare", "corpora", *MINE[1:], said=r"corpora is a folder without \*\.txt or \*\.md files"
    ),
    row("prepare", *MINE, "--val", "empty.txt", said=r"empty\.txt: no text in it"),
    row("train", "--dataset=shortest", said="training split has 12 tokens, fewer than the 17"),
    row(
        "train",
        "--dataset=shorter",
        "--block_size=30",
        said="validation split of shorter has only 30 tokens; lower block_size = 30",
    ),
    row("train", "--block_size=100000", said="add text, or lower block_size"),
)
def test_an_empty_corpus_and_one_shorter_than_a_sequence(refused, name, words, said, before):
    judge(refused, name, words, said, before)


def test_a_corpus_shorter_than_the_longest_test_is_tested_as_far_as_it_goes(call):
    words = [*SIZE, "--dataset=short", "--out_dir=new", "--eval_lengths=8,16,4096"]
    for ended in (call("train", *words), call("evaluate", "new", "--eval_lengths=16,100,8192")):
        assert ended.code == 0 and ended.err == ""
        longest = "the test of short has windows of at most 128 tokens"
        assert f"{longest}: use a corpus of longer documents" in ended.out
    rows = {r["length"]: r for r in load_result("new")["rows"] if r["protocol"] == "fixed_targets"}
    assert {n: r["nats"] is not None for n, r in rows.items()} == {
        8: True,
        16: True,
        100: True,
        4096: False,
        8192: False,
    }


def test_a_corpus_that_no_length_can_be_tested_on_still_trains_and_says_so(call):
    ended = call("train", *SIZE, "--dataset=shorter", "--out_dir=new")
    assert (
        ended.code == 0
        and ended.err == ""
        and "the 30 validation tokens of shorter are too few for 64 windows" in ended.out
    )
    assert load_state(Path("new"))["step"] == 2
    tested = [r for r in load_result("new")["rows"] if r["protocol"] != "nonoverlapping"]
    assert tested and all(r["nats"] is None and r["reason"] for r in tested)


# ---- text that is not UTF-8


@table(
    row("prepare", "latin.txt", *MINE[1:], said=r"latin\.txt is not UTF-8 at byte 7 \(0xf6\)"),
    row("prepare", *MINE, "--val", "latin.txt", said=r"latin\.txt is not UTF-8"),
    row("sample", "run", "--start=FILE:latin.txt", said=r"latin\.txt: not UTF-8 text .byte 7"),
    row("sample", "run", "--start=FILE:absent.txt", said=r"absent\.txt: cannot be read"),
    row("train", "latin.py", said=r"latin\.py: not UTF-8 text"),
    row("train", "--pos_file=latin.py", said=r"latin\.py cannot be run"),
    row("evaluate", "run", "latin.py", said=r"latin\.py: not UTF-8 text"),
    row("ablate", "nope", "latin.py", said=r"latin\.py: not UTF-8 text"),
    row("explain", "rope", "--pos_file=latin.py", said=r"latin\.py cannot be run"),
)
def test_text_that_is_not_utf8(refused, name, words, said, before):
    judge(refused, name, words, said, before)


def test_standard_input_that_is_not_utf8(refused, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9"), encoding="utf-8"))
    assert "standard input: not UTF-8 text (byte 3)" in refused("sample", "run", "--start=-")


# ---- folders that cannot be written


@table(
    row("train", "--out_dir=texts.txt", said=r"texts\.txt cannot"),
    row(
        "train",
        "--out_dir=texts.txt/run",
        said=r"texts\.txt/run cannot .*\(Not a directory\)",
    ),
    row("train", "--out_dir=" + "x" * 300, said="x{300}.*File name too long"),
    row(
        "prepare",
        *MINE,
        said="mine cannot be written",
        before=partial(rewrite, "a file in the way", "corpora/mine", b""),
    ),
)
def test_a_folder_that_cannot_be_written(refused, name, words, said, before):
    judge(refused, name, words, said, before)


def test_a_figure_that_cannot_be_written_costs_no_measurement(call):
    remove("untested", "run/extrapolation.json")
    ended = call("evaluate", "run", "--out=absent/figure.png", "--eval_lengths=16")
    assert ended.code == 1 and re.fullmatch(
        r"error: absent/figure\.png cannot be written \(No such file or directory\).*\n", ended.err
    )
    assert all(r["nats"] for r in load_result("run")["rows"]) and not Path("absent").exists()


def test_a_comparison_that_cannot_be_written_loses_no_cell(refused, monkeypatch):
    result = load_result("run") | {"run": dict.fromkeys(ablate.PROVENANCE)}
    monkeypatch.setattr(ablate.Cell, "result", lambda cell: result)  # all are trained and tested
    assert "texts.txt/x: Not a directory" in refused(
        "ablate", "rope", "--dataset=tiny", "--ablate_dir=texts.txt/x"
    )


def read_only(folder: str) -> None:
    for path in (Path(folder), *Path(folder).iterdir()):
        path.chmod(path.stat().st_mode & ~0o222)


# root writes anywhere, unless this right is taken away
UNPRIVILEGED = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--"]
MAY_NOT_WRITE = [
    ["train.py", *SIZE, "--out_dir=locked/new"],
    ["train.py", *SIZE, "--out_dir=locked"],
    ["evaluate.py", "locked", "--eval_lengths=8"],
]


@pytest.mark.skipif(
    not os.geteuid() and not shutil.which("setpriv"),
    reason="root may write anywhere, and there is no setpriv",
)
def test_a_folder_without_the_right_to_write():
    """Train anew in it, train on, and evaluate: three programs in one process, which imports torch once."""
    shutil.copytree("run", "locked")
    read_only("locked")
    before = tree()
    code = f"""
import pathlib, runpy, sys
sys.path.insert(0, {str(REPOSITORY)!r})
import data
data.load.__defaults__ = (pathlib.Path('corpora'),)
for program, *words in {MAY_NOT_WRITE!r}:
    sys.argv = [program, *words]
    try:
        runpy.run_path({str(REPOSITORY)!r} + '/' + program, run_name='__main__')
    except SystemExit as end:
        print('exit', end.code)
"""
    environment = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    ended = subprocess.run(
        [*([] if os.geteuid() else UNPRIVILEGED), sys.executable, "-c", code],
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=120,
        env=os.environ | environment | {"MPLCONFIGDIR": str(Path("..").resolve())},
    )
    assert ended.returncode == 0 and tree() == before, ended.stderr
    assert ended.stdout.splitlines().count("exit 1") == 3
    said = ended.stderr.splitlines()
    assert len(said) == 3, said
    for sentence, place in zip(said, ("locked/new", "locked", "locked"), strict=True):
        assert re.match(f"error: .*{place}.*Permission denied", sentence), sentence


# ---- checkpoints of another architecture or scheme


@table(
    row(
        "train",
        "--n_embd=32",
        "--out_dir=run",
        said="run holds another run .n_embd: 32 here, 16 there",
    ),
    row(
        "train",
        "--pos=nope",
        "--out_dir=run",
        said="run holds another run .pos: 'nope' here, 'rope' there",
    ),
    *[
        row(
            name,
            *words,
            said=r"\brun\b",
            before=partial(swap, f"with {other}'s checkpoint", "run", other),
        )
        for other in ("wide", "alibi")
        for name, words in (
            ("train", ["--out_dir=run"]),
            ("train", ["--init_from=run"]),
            ("evaluate", ["run"]),
            ("sample", ["run"]),
        )
    ],
    *[
        row(
            name,
            "run",
            said="run holds no checkpoint yet",
            before=partial(remove, "no checkpoint", "run/ckpt-*.pt"),
        )
        for name in ("evaluate", "sample")
    ],
    *[
        row(
            name,
            "run",
            said=r"run/ckpt-2-.* damaged",
            before=partial(rewrite, "truncated", "run/ckpt-*.pt", lambda old: old[:-100]),
        )
        for name in ("evaluate", "sample")
    ],
    *[
        row(
            name,
            *words,
            said=r"run/config\.json",
            before=partial(rewrite, "truncated config", "run/config.json", lambda old: old[:-100]),
        )
        for name, words in (
            ("train", ["--out_dir=run"]),
            ("train", ["--init_from=run"]),
            ("evaluate", ["run"]),
            ("sample", ["run"]),
        )
    ],
    *[
        row(
            name,
            *words,
            said=r"run/config\.json",
            before=partial(rewrite, f"{kind} config", "run/config.json", content),
        )
        for kind, content in (
            ("empty", b"{}"),
            ("odd", b'{"settings": 5}'),
            ("deep", b"[" * 100_000),
        )
        for name, words in (
            ("train", ["--out_dir=run"]),
            ("train", ["--init_from=run"]),
            ("evaluate", ["run"]),
            ("sample", ["run"]),
        )
    ],
    *[
        row(
            name,
            *words,
            said=r"run/extrapolation\.json",
            before=partial(
                rewrite, "truncated result", "run/extrapolation.json", lambda old: old[:-100]
            ),
        )
        for name, words in (
            ("train", ["--out_dir=run"]),
            ("evaluate", ["run"]),
            ("report", ["run"]),
        )
    ],
)
def test_a_checkpoint_of_another_model_and_a_damaged_run_folder(refused, name, words, said, before):
    judge(refused, name, words, said, before)


# ---- a device that is not here


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is here")
@table(
    row(
        "train",
        "--device=cuda",
        said="device=cuda.* is not available on this machine; use --device=cpu",
    ),
    row("train", "--device=cuda:1", said="device=cuda:1.* is not available"),
    row("evaluate", "run", "--device=cuda", said="device=cuda.* is not available"),
    row("sample", "run", "--device=cuda", said="device=cuda.* is not available"),
)
def test_cuda_asked_for_and_absent(refused, name, words, said, before):
    judge(refused, name, words, said, before)


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is here")
def test_cuda_asked_for_and_absent_in_a_comparison(refused):
    """Said once, before the first of the cells."""
    assert "device=cuda" in refused("ablate", "nope", "rope", "--dataset=tiny", "--device=cuda")


# ---- prompts


@table(
    row(
        "sample",
        "char",
        "--start=7 é",
        said="character 'é' at place 2 of the text is not among the",
    ),
    row(
        "sample",
        "char",
        "--start=FILE:texts.txt",
        said="character '#' at place 5 of the text",
        before=partial(rewrite, "with #", "texts.txt", b"0 is # 1"),
    ),
    row("sample", "char", "--start=a\tb", said=r"character '\\t' at place 1"),
)
def test_a_prompt_of_unknown_characters(refused, name, words, said, before):
    judge(refused, name, words, said, before)


def test_a_prompt_of_half_characters(refused):
    """What Python makes of an argument that is no text in the terminal's encoding."""
    assert refused("sample", "run", "--start=\udce9").startswith("error: command line: start is ")


# ---- out of memory

FULL = {
    "torch": lambda: torch.empty(2**60),
    "numpy": lambda: np.empty(2**58),
    "a GPU": lambda: gpu_is_full(),
}


def gpu_is_full() -> None:
    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 16.00 GiB."
    )


@pytest.mark.parametrize("what", FULL)
def test_training_that_does_not_fit_into_memory_says_what_to_lower(call, monkeypatch, what):
    monkeypatch.setattr("model.GPT.forward", lambda *_, **__: FULL[what]())
    before = tree()
    ended = call("train", *SIZE, "--out_dir=new")
    assert ended.code == 1 and ended.err.count("\n") == 1 and "Traceback" not in ended.out
    assert re.fullmatch(
        r"error: out of memory \([\d.,]+ ?\w+ were asked for\): lower batch_size .*n_embd\n",
        ended.err,
    )
    others = {name: content for name, content in tree().items() if not name.startswith("new")}
    assert others == before and not checkpoint_paths(Path("new"))


def test_a_model_that_does_not_fit_into_memory_is_refused_before_anything_is_written(call, refused):
    """Matrices of 2**45 numbers: more than a process can address. The vocabulary has two letters, to be quick."""
    Path("ab.txt").write_text("ab" * 500, encoding="utf-8")
    assert call("prepare", "ab.txt", "--name=ab", "--tokenizer=char").code == 0
    sentence = refused("train", *SIZE, "--dataset=ab", f"--n_embd={2**22}")
    assert sentence.startswith("error: out of memory") and "n_embd" in sentence


def test_a_test_that_does_not_fit_into_memory_says_what_to_lower(refused, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise RuntimeError(
            "[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9000 bytes."
        )

    monkeypatch.setattr("model.GPT.losses", full)
    assert re.search("error: out of memory .*lower eval_lengths", refused("evaluate", "run"))


# ---- traceback on demand, and as a user runs it

WRONG = {
    "train": ["--n_emdb=1"],
    "evaluate": ["absent"],
    "sample": ["absent"],
    "ablate": ["rpoe"],
    "prepare": ["absent.txt", *MINE[1:]],
    "explain": ["rpoe"],
    "report": ["absent"],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_traceback_is_shown_with_debug_only(call, name):
    plain, debug = call(name, *WRONG[name]), call(name, *WRONG[name], "--debug")
    assert plain.code == debug.code == 1
    assert (
        "Traceback" not in plain.err
        and debug.err.startswith("Traceback")
        and debug.err.endswith(plain.err)
    )


@pytest.mark.parametrize("name", ["train", "prepare"])
def test_a_process_ends_with_one_sentence_and_code_1(name):
    before = tree()
    ended = subprocess.run(
        [sys.executable, str(REPOSITORY / PROGRAMS[name]), *WRONG[name]],
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=120,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert ended.returncode == 1 and ended.stdout == "" and tree() == before
    assert re.fullmatch(r"error: [^\n]{20,600}\n", ended.stderr)
