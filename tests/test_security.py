"""Security: files, expressions, checkpoints and downloads of others run nothing; secrets stay out of files."""

import ast
import builtins
import functools
import io
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import configurable
import data
import data.wikipedia.prepare as wikipedia
import evaluate
import report
import sample
import train
from configurable import TrainSettings, UserError, configure
from data.nanogpt import Plain
from posenc import Shape
from positions.catalogue import load_file
from positions.scheme import Scheme
from runs.checkpoint import checkpoint_paths
from runs.files import sha256, write_text

REPOSITORY = Path(configurable.__file__).resolve().parent
FOLDERS = ("*.py", "positions/*.py", "runs/*.py", "data/**/*.py", "zoo/*.py", "config/**/*.py")
SOURCES = sorted(path for pattern in FOLDERS for path in REPOSITORY.glob(pattern))
TEXT = b"The quick brown fox jumps over the lazy dog. " * 20
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


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one small corpus of bytes, `tiny`."""
    root = tmp_path_factory.mktemp("corpora")
    ids = np.frombuffer(TEXT, dtype=np.uint8)
    data.write_corpus(
        root / "tiny",
        {"train": [ids], "val": [ids]},
        tokenizer="bytes",
        source="here",
        rule="all",
    )
    return root


@pytest.fixture
def here(corpora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of its own with that corpus; signals are left as they were."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(data.load, "__defaults__", (corpora,))
    monkeypatch.setattr(
        "runs.figures.plot_runs", lambda results, path, dataset="": write_text(path, "drawn")
    )
    load_file.cache_clear()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> Callable[..., tuple[int, str]]:
    """call(train, "--seed=1"): the exit code of a program and all that it said."""

    def of(module: object, *words: str) -> tuple[int, str]:
        capsys.readouterr()
        load_file.cache_clear()  # as in a process of its own
        monkeypatch.setattr(sys, "argv", [f"{module.__name__}.py", *words])
        with pytest.raises(SystemExit) as ended:
            configurable.run_program(module.main)
        return ended.value.code or 0, "".join(capsys.readouterr())

    return of


# ---- what the sources may not do


@functools.cache
def nodes() -> list[tuple[Path, ast.AST]]:
    """Every node of every source, with its file."""
    return [
        (path, node)
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    ]


def calls(name: str) -> list[str]:
    """Where the sources call what they know by this dotted name: "file:line: the call"."""
    return [
        f"{path.relative_to(REPOSITORY).as_posix()}:{node.lineno}: {ast.unparse(node)}"
        for path, node in nodes()
        if isinstance(node, ast.Call) and ast.unparse(node.func) == name
    ]


def imported() -> dict[str, set[str]]:
    """Every module that the sources import, and every name that they import from one ("shutil.copyfile"), and the files that do."""
    found: dict[str, set[str]] = {}
    for path, node in nodes():
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += (
            [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
            if isinstance(node, ast.ImportFrom)
            else []
        )
        for name in names:
            found.setdefault(name, set()).add(path.relative_to(REPOSITORY).as_posix())
    return found


def test_torch_load_stands_once_in_the_sources_and_reads_weights_only() -> None:
    assert len(SOURCES) > 20  # they were found
    (only,) = calls("torch.load")
    assert only.startswith("runs/checkpoint.py:") and "weights_only=True" in only
    assert "torch.load" not in imported() and not [
        name
        for name in imported()
        if name.startswith(("torch.serialization", "torch.jit", "torch.hub"))
    ]


def test_no_module_that_runs_what_it_reads_is_imported() -> None:
    runs_it = "marshal shelve dill joblib cloudpickle yaml xml code pdb pty".split()
    assert not {name for name in imported() if name.split(".")[0] in runs_it}


def test_of_pickle_only_a_reader_that_finds_no_code_is_used() -> None:
    used = {
        (path.name, ast.unparse(node))
        for path, node in nodes()
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "pickle"
    }
    assert used - {("checkpoint.py", "pickle.UnpicklingError")} == {
        ("nanogpt.py", "pickle.Unpickler")
    }
    assert not [name for name in imported() if name.startswith(("pickle.", "_pickle"))]
    assert calls("pickle.Unpickler") == []  # it is only the base of Plain
    for code in (os.system, print, dict, Path(), {1, 2}.__class__, object(), 1 + 2j, range(3)):
        with pytest.raises(UserError, match="it names"):
            Plain(io.BytesIO(pickle.dumps({"itos": code}))).load()


def test_nothing_that_runs_a_text_is_called() -> None:
    for name in (
        "eval",
        "exec",
        "compile",
        "__import__",
        "os.system",
        "os.popen",
        "subprocess.getoutput",
        "pickle.load",
        "pickle.loads",
        "runpy.run_path",
        "torch.hub.load",
        "torch.jit.load",
    ):
        assert calls(name) == [], name


def test_arrays_are_read_without_pickles_and_programs_started_without_a_shell() -> None:
    assert calls("np.load") and all("allow_pickle=False" in call for call in calls("np.load"))
    started = [
        call
        for name in ("run", "Popen", "call", "check_call", "check_output")
        for call in calls(f"subprocess.{name}")
    ]
    assert started and not [call for call in started if "shell" in call]


def test_code_is_loaded_from_files_in_one_place_only() -> None:
    """catalogue.load_file, for zoo/ and --pos_file; data.load makes a corpus with a module of a fixed list."""
    loaded = [
        call
        for name in ("spec.loader.exec_module", "importlib.import_module")
        for call in calls(name)
    ]
    files = [re.split(r":\d+: ", call)[0] for call in loaded]
    assert files == ["positions/catalogue.py", "data/__init__.py"]
    for name in ("../evil", "evil", "os", "stdlib.prepare", "stdlib/../../evil"):
        with pytest.raises(UserError, match="no corpus"):
            data.load(name, Path("absent"))


def test_of_archives_only_known_members_are_read_and_nothing_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gzip and lzma are streams of one file: they name no path. zip files do, and are read by the name of a member."""
    known = imported()
    unknown = {"tarfile", "zipimport", "py7zr", "rarfile", "patoolib", "shutil.unpack_archive"}
    assert not known.keys() & unknown and "lzma" in known  # `imported` finds what is there
    assert known["zipfile"] == {"data/wikipedia/prepare.py"}
    source = (REPOSITORY / "data/wikipedia/prepare.py").read_text(encoding="utf-8")
    assert "extract" not in source and source.count("zipfile.ZipFile(") == 1
    climbing, raw = tmp_path / "climbing.zip", b"words " * 400
    with zipfile.ZipFile(climbing, "w") as archive:
        for name in ("enwik8", "../evil", str(tmp_path / "evil"), "a/../../evil"):
            archive.writestr(name, raw)
    digest, size = sha256(climbing), climbing.stat().st_size
    other = wikipedia.ARCHIVES["enwik8"]._replace(sha256=digest, size=size)
    monkeypatch.setitem(wikipedia.ARCHIVES, "enwik8", other)
    (tmp_path / "data").mkdir()
    wikipedia.prepare(tmp_path / "data/enwik8", file=str(climbing))
    made = {path.name for path in tmp_path.rglob("*")}
    assert "train.bin" in made and not [name for name in made if "evil" in name]


def test_whatever_is_downloaded_is_verified() -> None:
    """One place opens addresses, and it is only reached through `download`, which moves nothing into place before `verify`."""
    opened = calls("urllib.request.urlopen")
    assert len(opened) == 1 and opened[0].startswith("data/download.py:")
    users = {
        file
        for name, files in imported().items()
        for file in files
        if name != "urllib.parse"  # it opens nothing
        and name.split(".")[0]
        in ("urllib", "http", "requests", "httpx", "aiohttp", "ftplib", "socket", "huggingface_hub")
    }
    assert users == {"data/download.py"}
    tree = ast.parse((REPOSITORY / "data/download.py").read_text(encoding="utf-8"))
    functions = {
        node.name: [ast.unparse(n.func) for n in ast.walk(node) if isinstance(n, ast.Call)]
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    }
    assert [name for name, called in functions.items() if "urllib.request.urlopen" in called] == [
        "receive"
    ]
    assert [name for name, called in functions.items() if "receive" in called] == ["download"]
    order = [name for name in functions["download"] if name in ("receive", "verify", "os.replace")]
    assert sorted(order) == ["os.replace", "receive", "verify"]
    # pinned in a source, in list.json, and in a table of a source
    known = ("SHA256, SIZE", "book.sha256, book.size", "known.sha256, known.size")
    assert all(any(words in call for words in known) for call in calls("download"))
    assert len(calls("download")) == 3 and calls("receive")


# ---- checkpoints


class Evil:
    """What a pickle may hold: a call that happens when it is loaded."""

    def __reduce__(self) -> tuple:
        return os.mkdir, ("ran",)


FOREIGN = {
    "a list": [1],
    "nothing": {},
    "a tensor": torch.zeros(3),
    "weights alone": {"weight": torch.zeros(3)},
}  # saved by other programs


def plant(folder: Path, kind: str) -> None:
    """Put a checkpoint with code in it into a run folder, with its right digest: as one who shares the folder could."""
    (path,) = checkpoint_paths(folder)
    if kind == "a pickle":
        path.write_bytes(pickle.dumps(Evil()))
    elif kind in FOREIGN:
        torch.save(FOREIGN[kind], path)
    elif kind == "a pickle in a zip":  # torch's own container, the pickle replaced
        with zipfile.ZipFile(path) as old:
            files = {name: old.read(name) for name in old.namelist()}
        with zipfile.ZipFile(path, "w") as new:
            for name, content in files.items():
                new.writestr(name, pickle.dumps(Evil()) if name.endswith("data.pkl") else content)
    else:
        state = torch.load(path, weights_only=True)
        torch.save(
            state | {"settings": Evil()} if kind == "a setting" else state | {"random": Evil()},
            path,
        )
    step = path.name.split("-")[1]
    path.rename(path.with_name(f"ckpt-{step}-{sha256(path)[:16]}.pt"))


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize(
    "kind", ["a pickle", "a pickle in a zip", "a setting", "the random state", *FOREIGN]
)
def test_a_checkpoint_with_code_in_it_is_refused_by_every_program_and_runs_nothing(
    kind: str, here: None, call: Callable
) -> None:
    assert call(train, *SIZE, "--out_dir=run")[0] == 0
    plant(Path("run"), kind)
    for module, words in (
        (train, [*SIZE, "--out_dir=run"]),
        (train, [*SIZE, "--init_from=run", "--out_dir=next"]),
        (evaluate, ["run"]),
        (sample, ["run"]),
    ):
        code, said = call(module, *words)
        assert code == 1 and "ckpt-2-" in said and "Traceback" not in said
        assert not Path("ran").exists() and not Path("next").exists()


# ---- config files and expressions

TRICKS = [
    "__import__('os').mkdir('ran')",
    "().__class__.__base__.__subclasses__()",
    "''.__class__.__mro__[1]",
    "(lambda: canary())()",
    "[canary() for _ in (1,)]",
    "{canary() for _ in (1,)}",
    "{1: canary()}",
    "(canary() for _ in (1,))",
    "f'{canary()}'",
    "f'{canary()!r:{canary()}}'",
    "(x := canary())",
    "canary()",
    "canary",
    "canary.__call__()",
    "getattr(canary, '__call__')()",
    "canary() or 1",
    "1 if canary() else 2",
    "not canary()",
    "-canary()",
    "[*canary()]",
    "(yield canary())",
    "(await canary())",
    "[1][canary()]",
    "1 < canary()",
    "open('ran', 'w')",
    "eval('canary()')",
    "exec('canary()')",
    "compile('canary()', '', 'exec')",
    "globals()['canary']()",
    "__builtins__.canary()",
    "print(canary())",
    "breakpoint()",
    "exit()",
    "help()",
    "input()",
    "@canary",
    "`canary()`",
    "$(touch ran)",
    "%(canary)s",
    "{canary}",
    "!!python/object/apply:os.mkdir ['ran']",
    "\\N{DIGIT ONE}",
    "c\u0430nary()",
    "ｃａｎａｒｙ()",
    "\u202e)(yranac",
    "canary\u200b()",
    "canary()\0",
    "\0canary()",
    "1\x0ccanary()",
    "1;canary()",
    "1\ncanary()",
    "1\rcanary()",
    "'a' 'b'.join(canary())",
    "*canary()",
    "**canary()",
]
BOMBS = [
    "9**9**9**9",
    "10**10**10",
    "1 << 10**10",
    "'a' * 10**12",
    "[0] * 10**12",
    "(" * 5000 + "1" + ")" * 5000,
    "-" * 5000 + "1",
    "[" * 5000,
    "9" * 5000,
    "1" + "+1" * 20_000,
    "a" + ".a" * 20_000,
    "f" + "()" * 5000,
    "lambda:" * 5000 + "1",
    "'%1000000000d' % 1",
]


@pytest.fixture
def canary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """`canary` is a name everywhere; it was never called, and nothing was made in the working directory."""
    sung: list[object] = []
    monkeypatch.setattr(builtins, "canary", lambda *x: sung.append(x), raising=False)
    monkeypatch.chdir(tmp_path)
    yield
    assert not sung and not Path("ran").exists()


@pytest.mark.parametrize("trick", [*TRICKS, *BOMBS], ids=lambda trick: ascii(trick)[:20])
def test_a_trick_in_a_setting_is_refused_in_a_file_and_is_but_a_text_on_the_command_line(
    trick: str, canary: None
) -> None:
    for line in (f"seed = {trick}", f"pos = {trick}", f"eval_lengths = [{trick}]", trick):
        Path("some.py").write_bytes(line.encode("utf-8"))
        with pytest.raises(UserError) as refused:
            configure(TrainSettings, ["some.py"], "")
        assert str(refused.value).startswith("some.py:") and len(str(refused.value)) < 300
    with pytest.raises(UserError):
        configure(TrainSettings, [f"--seed={trick}"], "")
    if "\0" not in trick:
        assert configure(TrainSettings, [f"--wandb_project={trick}"], "")[0].wandb_project == trick


@pytest.mark.parametrize("trick", [*TRICKS, *BOMBS], ids=lambda trick: ascii(trick)[:20])
def test_a_trick_in_an_expression_is_refused(trick: str, canary: None) -> None:
    for text in (
        trick,
        f"rope + {trick}",
        f"{trick} | rope",
        f"rope(base={trick})",
        f"rope({trick})",
        f"kerple(kind={trick})",
        f"rope(**{trick})",
    ):
        with pytest.raises(UserError):
            Scheme(text, Shape(2, 4, 8, 8), 2)


def test_what_only_looks_like_a_trick_is_read_as_python_reads_it(canary: None) -> None:
    """U+2028 ends no line, so this is a comment; and the power is nought, found without being formed."""
    Path("some.py").write_bytes("seed = 1  #\u2028canary()\nwarmup_iters = 2**-10**10\n".encode())
    settings, _ = configure(TrainSettings, ["some.py"], "")
    assert (settings.seed, settings.warmup_iters) == (1, 0)


def test_a_coding_line_does_not_change_how_a_file_is_read(canary: None) -> None:
    """In UTF-7 the second line would be a call."""
    Path("some.py").write_bytes(b"# -*- coding: utf-7 -*-\nseed = 1 +AAo-canary()\n")
    with pytest.raises(UserError, match="some.py:2"):
        configure(TrainSettings, ["some.py"], "")
    Path("some.py").write_bytes("seed = 1\ncanary()\n".encode("utf-16"))
    with pytest.raises(UserError, match="some.py: not UTF-8"):
        configure(TrainSettings, ["some.py"], "")


# ---- schemes of the user's own

OWN = "from pathlib import Path\nfrom posenc import Piece\n\nwith Path('log').open('a', encoding='utf-8') as log:\n    log.write('ran ')\n\n\nclass Mine(Piece):\n    pass\n"


def runs() -> int:
    """How often the file of schemes was run since it was last asked."""
    count = Path("log").read_text(encoding="utf-8").count("ran") if Path("log").exists() else 0
    Path("log").unlink(missing_ok=True)
    return count


@pytest.fixture
def mine(here: None, call: Callable) -> tuple[str, ...]:
    """A run with a scheme of the user's own; the words that train it."""
    Path("my_scheme.py").write_text(OWN, encoding="utf-8")
    words = (*SIZE, "--pos=mine", "--pos_file=my_scheme.py", "--out_dir=run")
    code, said = call(train, *words)
    assert code == 0 and runs() and "running the position schemes of my_scheme.py" in said
    return words


def test_a_file_of_schemes_runs_only_where_it_is_typed(
    mine: tuple[str, ...], call: Callable
) -> None:
    for module, words in (
        (evaluate, ["run"]),
        (sample, ["run"]),
        (train, [*SIZE, "--init_from=run", "--out_dir=next"]),
        (train, [*SIZE, "--pos=mine", "--out_dir=next"]),
    ):
        code, said = call(module, *words)
        assert code == 1 and runs() == 0
        assert "--pos_file" in said or "no position scheme mine" in said
    assert call(report, "run")[0] == 0 and runs() == 0


def test_a_file_of_schemes_that_is_typed_runs_and_that_is_said(
    mine: tuple[str, ...], call: Callable
) -> None:
    for module in (evaluate, sample):
        code, said = call(module, "run", "--pos_file=run/pos_file.py")
        assert (
            code == 0
            and runs()
            and re.search(r"running the position schemes of .*pos_file\.py", said)
        )


def test_another_file_than_the_one_typed_is_not_run(mine: tuple[str, ...], call: Callable) -> None:
    """A folder that somebody shares holds code and the digest of it: to type a file of one's own does not trust theirs."""
    Path("trusted.py").write_text(
        "from posenc import Piece\n\n\nclass Mine(Piece):\n    pass\n", encoding="utf-8"
    )
    for module, words in (
        (evaluate, ["run"]),
        (sample, ["run"]),
        (train, [*SIZE, "--init_from=run", "--out_dir=next"]),
    ):
        code, said = call(module, *words, "--pos_file=trusted.py")
        assert code == 1 and runs() == 0 and "trusted.py" in said


def test_a_config_file_does_not_make_a_file_of_schemes_run(here: None, call: Callable) -> None:
    """Config files are passed around as text; what runs code is typed."""
    Path("my_scheme.py").write_text(OWN, encoding="utf-8")
    Path("shared.py").write_text("pos = 'mine'\npos_file = 'my_scheme.py'\n", encoding="utf-8")
    code, said = call(train, *SIZE, "shared.py")
    assert code == 1 and runs() == 0 and "shared.py:2: " in said and "--pos_file" in said


# ---- secrets, and the encoding of files

SECRETS = {
    "WANDB_API_KEY": "5ec7e7" + "0123456789abcdef" * 2 + "ab",
    "HF_TOKEN": "hf_5ec7e7ofhuggingface",
    "AWS_SECRET_ACCESS_KEY": "5ec7e7/of/a/cloud",
    "MY_PASSWORD": "5ec7e7-of-mine",
    "HTTPS_PROXY_AUTH": "user:5ec7e7@proxy",
}


WATCHING = ("-X", "warn_default_encoding", "-W", "always::EncodingWarning")


@pytest.fixture(scope="module")
def finished(
    corpora: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, subprocess.CompletedProcess]:
    """A folder in which a process with these secrets trained, tested and sampled; and what it said.

    Python warns there of every file that is opened without naming its encoding.
    """
    folder = tmp_path_factory.mktemp("finished")
    code = f"""
import pathlib, sys
sys.path.insert(0, {str(REPOSITORY)!r})
import configurable, data, train, evaluate, sample, ablate, report, explain, extend
from data import download
data.load.__defaults__ = (pathlib.Path({str(corpora)!r}),)
def run(module, *words):
    sys.argv = [module.__name__ + '.py', *words]
    try:
        configurable.run_program(module.main)
    except SystemExit as end:
        assert not end.code, end.code
run(train, *{[*SIZE, "--pos=kerple", "--out_dir=run", "--wandb_log=True"]!r})
run(evaluate, 'run', '--eval_lengths=16')
run(report, 'run')
run(sample, 'run', '--max_new_tokens=5', '--device=cpu')
run(explain, 'kerple')
"""
    homes = ("HOME", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR", "MPLCONFIGDIR")
    settings = {
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "WANDB_MODE": "offline",
        **{name: str(folder / "home") for name in homes},
    }
    ended = subprocess.run(
        [sys.executable, *WATCHING, "-c", code],
        cwd=folder,
        capture_output=True,
        timeout=180,
        check=False,
        encoding="utf-8",
        errors="replace",
        env=os.environ | settings | SECRETS,
    )
    assert ended.returncode == 0, ended.stderr
    return folder, ended


def test_no_secret_of_the_environment_is_written_or_said(finished: tuple) -> None:
    """Not in config.json, metrics.jsonl and checkpoints, nor in what Weights & Biases keeps with them."""
    folder, ended = finished
    files = [path for path in (folder / "run").rglob("*") if path.is_file()]
    names = {path.name for path in files}
    assert names >= {"config.json", "metrics.jsonl", "extrapolation.json", "debug.log"}
    assert checkpoint_paths(folder / "run") and any(path.suffix == ".wandb" for path in files)
    contents = {path.as_posix(): path.read_bytes() for path in files}
    contents["standard output"] = ended.stdout.encode("utf-8")
    contents["standard error"] = ended.stderr.encode("utf-8")
    for where, content in contents.items():
        assert b"5ec7e7" not in content, where
        listed = [n for n in SECRETS.keys() - {"WANDB_API_KEY"} if n.encode() in content]
        assert not listed, where  # nor a list of the environment


def test_every_file_is_read_and_written_in_a_named_encoding(finished: tuple) -> None:
    """Other projects' files do not count, nor those of an environment that lies in .venv."""
    warned = [line for line in finished[1].stderr.splitlines() if ": EncodingWarning: " in line]
    found = [Path(line.partition(":")[0]) for line in warned]
    within = [path.relative_to(REPOSITORY) for path in found if path.is_relative_to(REPOSITORY)]
    assert [path for path in within if not path.parts[0].startswith(".")] == []


def test_the_check_of_encodings_sees_one_that_is_not_named(tmp_path: Path) -> None:
    shutil.copyfile(REPOSITORY / "configurable.py", tmp_path / "ours.py")
    with (tmp_path / "ours.py").open("a", encoding="utf-8") as file:
        file.write("\nopen(__file__).close()\n")
    ended = subprocess.run(
        [sys.executable, *WATCHING, "-c", "import ours"],
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        check=True,
        timeout=60,
    )
    assert re.search(r"ours\.py:\d+: EncodingWarning", ended.stderr)
