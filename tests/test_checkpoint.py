"""Run folders and checkpoints: names, damage, full disks, locks, and no code in a file is run."""

import json
import os
import pickle
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import REPOSITORY, call, workplace
from test_train import identical, metrics, run, saved, stop_at

import optimizer
import sample
from common.errors import UserError
from common.files import read_json, sha256
from configurable import TrainSettings
from run import folder as run_folder_module
from run import load
from run.checkpoint import checkpoint_paths
from run.folder import lock_folder, named_folders, read_config, run_folder
from run.load import load_run
from run.log import logged
from tables.records import load_rows

pytestmark = pytest.mark.usefixtures("here")


# ---- names


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({}, "rope-stdlib-L128-s1337"),
        ({"pos": "alibi", "dataset": "books", "block_size": 64, "seed": 2}, "alibi-books-L64-s2"),
        ({"pos": "rope + logn"}, "rope+logn-stdlib-L128-s1337"),
        (
            {"max_iters": 7, "wandb_log": True, "eval_lengths": (64,), "dtype": "float32"},
            "rope-stdlib-L128-s1337",
        ),
        ({"pos_file": "mine.py"}, "rope-stdlib-L128-s1337"),
        ({"out_dir": "here/run"}, "run"),
    ],
)
def test_the_folder_is_named_after_scheme_corpus_length_and_seed(changed: dict, name: str):
    assert run_folder(replace(TrainSettings(), **changed)).name == name


def test_different_runs_have_different_safe_and_short_names():
    schemes = ["rope(base=500000)", "rope(base=50000.0)", "rope | nope", "rope | nope | nope"]
    schemes += [
        "a + (b | c)",
        "a + b | c",
        "n * (rope + window)",
        "rope_nope",
        " + ".join("abcdefg" * 9),
    ]
    names = [run_folder(TrainSettings(pos=pos)).name for pos in schemes]
    for changed in ({"learning_rate": 0.01}, {"n_layer": 8}, {"drop_pos": 0.5}):
        names.append(run_folder(replace(TrainSettings(), **changed)).name)
    assert len(set(names)) == len(names)
    assert all(len(name) <= 100 and not set(name) & set(" |*/()<>:\\?'\"") for name in names)


def test_words_that_are_files_or_name_a_folder_twice_are_left_out():
    Path("a").mkdir()
    Path("notes.txt").touch()
    assert named_folders(["a", "./a", "a/", "notes.txt"]) == ["a"]
    with pytest.raises(UserError, match="no run folder"):
        named_folders(["notes.txt"])


# ---- damage


@pytest.fixture(scope="module")
def trained(corpora: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run, `straight`, and one that was stopped, `run`."""
    folder = tmp_path_factory.mktemp("trained")
    with workplace(corpora, folder), pytest.MonkeyPatch.context() as patch:
        assert run("--out_dir=straight") == 0
        stop_at(patch, 5)
        assert run("--out_dir=run") == 130
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    """A copy of the stopped run with two checkpoints, of steps 4 and 6."""
    shutil.copytree(trained / "run", tmp_path / "run")
    assert [p.name.split("-")[1] for p in checkpoint_paths(tmp_path / "run")] == ["6", "4"]
    return Path("run")


def cut(path: Path):
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def empty(path: Path):
    path.write_bytes(b"")


def rename(path: Path):
    path.rename(path.with_name("ckpt-7-0123456789abcdef.pt"))


def text(path: Path):
    path.write_text("a page of another site", encoding="utf-8")


@pytest.mark.parametrize("damage", [cut, flip, empty, rename, text])
def test_a_damaged_checkpoint_is_named_and_costs_only_the_steps_since_the_one_before(
    damage: object, trained: Path, folder: Path, capsys: pytest.CaptureFixture
):
    straight = str(trained / "straight")
    damage(checkpoint_paths(folder)[0])
    assert load_run(folder).step == 4
    lines = repr(load_run(folder)).splitlines()
    assert lines[0] == f"Run {folder}, step 4 of 8" and len(lines) == 3
    assert "is damaged: trying the one before it" in capsys.readouterr().err
    assert run("--out_dir=run") == 0
    assert identical(saved("run"), saved(straight))
    assert metrics("run") == metrics(straight)
    assert len(checkpoint_paths(folder)) == 2 and load_run(folder).step == 8


def test_where_all_checkpoints_are_damaged_nothing_is_trained_over_them(folder: Path):
    for path in checkpoint_paths(folder):
        flip(path)
    before = {path: path.read_bytes() for path in checkpoint_paths(folder)}
    for attempt in (lambda: load_run(folder), lambda: run("--out_dir=run")):
        with pytest.raises(UserError, match="damaged: restore a good copy, or .* --overwrite=True"):
            attempt()
    assert {path: path.read_bytes() for path in checkpoint_paths(folder)} == before
    assert run("--out_dir=run", "--overwrite=True") == 0


def test_a_checkpoint_of_another_run_is_refused(trained: Path, folder: Path):
    for path in checkpoint_paths(folder):
        path.unlink()
    assert run("--out_dir=other", "--seed=2") == 0
    shutil.copy(checkpoint_paths(Path("other"))[0], folder)
    for attempt in (lambda: load_run(folder), lambda: run("--out_dir=run")):
        with pytest.raises(UserError, match=r"is of another run than config.json \(seed: 2, not"):
            attempt()


def test_a_scheme_whose_helper_has_changed_is_refused_and_its_copy_is_good():
    """The code that a scheme computes with need not stand in the file of its class."""
    mine = "from helping import rate\nfrom posenc import Piece\n\n\nclass Dip(Piece):\n"
    Path("mine.py").write_text(
        mine + "    def bias(self, h, i, j):\n        return rate * (j - i)\n"
    )
    Path("helping.py").write_text("rate = 0.5\n")
    words = ["--out_dir=run", "--pos=dip", "--pos_file=mine.py"]
    assert run(*words) == 0
    assert {"posenc.py", "pos_file.py", "helping.py"} == set(read_config("run")["files_sha256"])
    Path("helping.py").write_text("rate = 0.25\n")
    with pytest.raises(UserError, match="helping.py, which defines its scheme, has changed"):
        load_run("run", pos_file="mine.py")
    with pytest.raises(UserError, match="helping.py, which defines its scheme, has changed"):
        run(*words)
    assert load_run("run", pos_file="run/pos_file.py").step == 8
    Path("run/helping.py").unlink()
    with pytest.raises(UserError, match="run/helping.py, which defines its scheme, has changed"):
        load_run("run", pos_file="run/pos_file.py")


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"settings": {"n_layer": "x"}}'])
def test_a_config_that_is_damaged_is_a_sentence(content: str, folder: Path):
    (folder / "config.json").write_text(content, encoding="utf-8")
    for attempt in (
        lambda: read_config(folder),
        lambda: load_run(folder),
        lambda: run("--out_dir=run"),
    ):
        with pytest.raises(UserError, match="config.json is damaged.*--overwrite=True"):
            attempt()
    (folder / "config.json").unlink()
    with pytest.raises(UserError, match="missing"):
        run("--out_dir=run")


@pytest.mark.parametrize("gone", ["version", "a setting"])
def test_a_run_of_an_earlier_version_is_refused_by_its_name_and_its_rows_stay_readable(
    gone: str, trained: Path, tmp_path: Path
):
    """Those before 0.3.0 name no version, and may have settings that no longer exist."""
    shutil.copytree(trained / "straight", tmp_path / "run")
    path = tmp_path / "run/config.json"
    config = read_json(path)
    with open(REPOSITORY / "pyproject.toml", "rb") as file:
        assert config["version"] == tomllib.load(file)["project"]["version"]
    config["git_commit"] = "0a668b9-dirty"
    made_by = "0.2.0 or earlier"
    if gone == "version":
        del config["version"]
    else:
        made_by = config["version"] = "0.4.1"
        config["settings"]["n_moons"] = 2
    path.write_text(json.dumps(config), encoding="utf-8")
    add = "git worktree add ../longshot-0a668b9 0a668b9"
    refused = f"run was made by version {made_by} .* --overwrite=True, or use it there: {add}"
    files = {path: path.read_bytes() for path in Path("run").iterdir()}
    for attempt in (
        lambda: load_run("run"),
        lambda: run("--out_dir=run"),
        lambda: run("--out_dir=run", "--dtype=auto", "--max_iters=9"),
        lambda: run("--out_dir=tuned", "--init_from=run"),
        lambda: call(sample, "run", "--device=cpu"),
    ):
        with pytest.raises(UserError, match=refused):
            attempt()
    assert {path: path.read_bytes() for path in Path("run").iterdir()} == files
    assert set(load_rows("run").nats.dropna()) == set(load_rows(trained / "straight").nats.dropna())
    assert run("--out_dir=run", "--overwrite=True") == 0 and load_run("run").step == 8


def test_a_folder_is_read_once_and_a_model_to_start_from_is_loaded_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    opened = []
    for name in ("read_config", "load_checkpoint", "load_result"):

        def counted(path: Path, name: str = name, read: object = getattr(run_folder_module, name)):
            opened.append((name, str(path)))
            return read(path)

        monkeypatch.setattr(run_folder_module, name, counted)
        if hasattr(load, name):
            monkeypatch.setattr(load, name, counted)
    assert run("--out_dir=run") == 0
    assert opened == [("read_config", "run"), ("load_checkpoint", "run")]
    opened.clear()
    assert run("--out_dir=run") == 0  # prints its table
    assert opened == [("read_config", "run"), ("load_result", "run")]
    opened.clear()
    assert run("--init_from=run", "--out_dir=tuned") == 0
    assert opened == [("read_config", "run"), ("load_checkpoint", "run")]


def test_a_folder_that_is_no_run_is_a_sentence(tmp_path: Path, monkeypatch):
    with pytest.raises(UserError, match="name a run folder"):
        load_run(tmp_path)
    monkeypatch.chdir(tmp_path)
    Path("out/alibi-mine").mkdir(parents=True)
    Path("out/alibi-mine/config.json").write_text("{}")
    with pytest.raises(UserError, match="did you mean out/alibi-mine"):
        load_run("out/alib-mine")


def test_what_a_killed_run_left_half_written_in_its_metrics_is_dropped(folder: Path):
    lines = logged(folder)
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 9')
    assert logged(folder) == lines
    assert run("--out_dir=run") == 0
    assert [x["step"] for x in logged(folder)] == list(range(1, 9))


def test_a_full_disk_is_a_sentence_and_what_was_there_stays(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    before = {path: path.read_bytes() for path in checkpoint_paths(folder)}

    def full(state: object, file: object):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(UserError, match="No space left"):
        patch.setattr(torch, "save", full)
        run("--out_dir=run")
    assert {path: path.read_bytes() for path in checkpoint_paths(folder)} == before
    assert not [path for path in folder.iterdir() if path.name.endswith(".new")]
    assert run("--out_dir=run") == 0


def test_a_run_is_read_while_its_training_saves(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """A checkpoint that was listed may be gone when it is opened."""
    trained = load_run(folder)
    optimizers = optimizer.configure_optimizers(trained.model, trained.settings, None)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    digest, times = sha256, []

    def delayed(path: Path) -> str:
        if not times:
            times.append(1)
            for step in (7, 8):  # both that were listed are deleted
                trained.step = step
                trained.save(optimizers, scaler)
        return digest(path)

    monkeypatch.setattr("run.checkpoint.sha256", delayed)
    assert load_run(folder).step == 8


# ---- safety


class Evil:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> tuple:
        return os.mkdir, ("evil",)


def test_a_checkpoint_with_code_in_it_is_refused_by_every_program_and_runs_nothing(
    folder: Path,
):
    for path in checkpoint_paths(folder):
        path.unlink()
    aside = Path("aside.pt")
    torch.save({"model": Evil(), "step": 9}, aside, pickle_module=pickle)
    aside.rename(folder / f"ckpt-9-{sha256(aside)[:16]}.pt")
    for attempt in (
        lambda: load_run(folder),
        lambda: run("--out_dir=run"),
        lambda: call(sample, str(folder), "--device=cpu"),
    ):
        with pytest.raises(UserError, match="do not trust it"):
            attempt()
    assert not Path("evil").exists()


def test_a_folder_in_use_is_refused_and_is_free_when_its_program_has_ended(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    program = "import filelock, sys, time\n"
    program += "lock = filelock.FileLock(sys.argv[1]); lock.acquire(); print('locked', flush=True); time.sleep(60)"
    command = [sys.executable, "-c", program, str(folder / ".lock")]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert holder.stdout.readline()
    with pytest.raises(UserError, match="in use by another program"):
        lock_folder(folder, wait=1)
    assert "in use by another program: waiting for its end, at most 1 s" in capsys.readouterr().out
    holder.kill()
    holder.wait()
    lock_folder(folder)
