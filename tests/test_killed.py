"""A run that is killed at a chosen moment goes on as if nobody had touched it."""

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import workplace
from test_train import identical, metrics, opened, run, saved

import optimizer
import train
from common import device
from common.errors import UserError
from measure import extrapolation as tests
from run import log
from run.checkpoint import checkpoint_paths
from tables.records import load_result

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


def dying(function: Callable, time: int, matching: str = "", after: bool = False) -> Callable:
    """The function, which ends the process at its n-th call with such an argument, or just after."""
    calls = []

    def dies(*args: object, **kwargs: object) -> object:
        if matching in str(args):
            calls.append(args)
        last = matching in str(args) and len(calls) == time
        if last and not after:
            os._exit(9)
        result = function(*args, **kwargs)
        if last:
            os._exit(9)
        return result

    return dies


def half_saved(state: object, file: object) -> None:
    """A checkpoint of which only a part is written when the process dies."""
    file.write(b"half of a checkpoint")
    file.flush()
    os._exit(9)


MOMENTS = {
    "before the first step": [(train, "get_lr", dying(optimizer.get_lr, 1))],
    "in a step": [(train, "get_lr", dying(optimizer.get_lr, 6))],
    "in the middle of a checkpoint": [(torch, "save", half_saved)],
    "before a checkpoint has its name": [(os, "replace", dying(os.replace, 1, "ckpt-8"))],
    "after it has its name": [(os, "replace", dying(os.replace, 1, "ckpt-8", after=True))],
    "before an old one is deleted": [(Path, "unlink", dying(Path.unlink, 1, "ckpt-4"))],
    "while config.json is written": [(os, "replace", dying(os.replace, 1, "config.json"))],
    "after a line of the log": [(log.Log, "write", dying(log.Log.write, 3, after=True))],
    "in the test": [(tests, "extrapolation", dying(tests.extrapolation, 1))],
    "in the test of the second protocol": [(tests, "extrapolation", dying(tests.extrapolation, 2))],
    "before the result is there": [(os, "replace", dying(os.replace, 1, "extrapolation.json"))],
}
WORDS = ["--pos=randomized(max=64) + rope", "--dropout=0.2", "--eval_interval=2"]


@pytest.fixture(scope="module")
def straight(corpora: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of the run that nobody touched."""
    folder = tmp_path_factory.mktemp("straight")
    with workplace(corpora, folder):
        assert run(*WORDS, "--out_dir=run") == 0
    return str(folder / "run")


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_run_that_was_killed_ends_like_one_that_nobody_touched(
    moment: str, straight: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        for owner, name, fatal in MOMENTS[moment]:
            patch.setattr(owner, name, fatal)
        child = child_of(*WORDS, "--out_dir=run")
    assert exit_code(child) == 9
    assert run(*WORDS, "--out_dir=run") == 0
    assert identical(saved("run"), saved(straight))
    assert metrics("run") == metrics(straight)
    assert not [path for path in Path("run").iterdir() if path.name.endswith(".new")]


def child_of(*words: str) -> int:
    """Start a training in a copy of this process; its number."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = run(*words)
        finally:
            os._exit(code)
    return child


def exit_code(child: int, seconds: float = 60) -> int:
    """Wait for the end of a child; one that takes longer is killed, and has -9."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def wait_for_lines(folder: Path, count: int, seconds: float = 60) -> None:
    """Wait until metrics.jsonl has so many lines."""
    end = time.monotonic() + seconds
    path = folder / "metrics.jsonl"
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert time.monotonic() < end, f"{path} has fewer than {count} lines"
        time.sleep(0.02)


def signalled_in_a_step(patch: pytest.MonkeyPatch, number: int, pause: float) -> int:
    """The exit code of a run that gets a signal twice in its seventh step, `pause` seconds apart."""

    def get_lr(step: int, s: object) -> float:
        if step == 6:
            os.kill(os.getpid(), number)
            time.sleep(pause)
            os.kill(os.getpid(), number)
        return optimizer.get_lr(step, s)

    patch.setattr(train, "get_lr", get_lr)
    return exit_code(child_of("--eval_interval=4", "--out_dir=run"))


def last_saved() -> int:
    """The step of the newest checkpoint."""
    return max(int(path.name.split("-")[1]) for path in checkpoint_paths(Path("run")))


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("number", "pause", "step"),
    [
        (signal.SIGTERM, 0, 7),
        (signal.SIGTERM, 0.001, 7),  # Slurm's two
        (signal.SIGTERM, 0.5, 7),
        (signal.SIGUSR1, 0.5, 7),
        (signal.SIGUSR2, 0, 7),  # submitit's
        (signal.SIGINT, 0.001, 7),  # a terminal's, and the same one passed on by torchrun
        (signal.SIGINT, train.CTRL_C_REPEATS_S + 0.1, 4),  # Ctrl-C, pressed again
    ],
)
def test_a_signal_saves_and_only_a_second_ctrl_c_does_not_wait(
    number: int, pause: float, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert signalled_in_a_step(monkeypatch, number, pause) == 128 + number
    assert last_saved() == step


@pytest.mark.usefixtures("here")
def test_another_signal_seconds_later_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "REPEATS_S", 0.1)
    assert signalled_in_a_step(monkeypatch, signal.SIGTERM, 0.2) == 128 + signal.SIGTERM
    assert last_saved() == 4


@pytest.mark.usefixtures("here")
def test_a_run_waits_for_a_program_that_is_still_saving_it(
    straight: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save = torch.save

    def save_slowly(*args: object) -> None:
        Path("saving").touch()
        time.sleep(2)
        save(*args)

    def get_lr(step: int, s: object) -> float:
        if step == 6:
            monkeypatch.setattr(torch, "save", save_slowly)
            os.kill(os.getpid(), signal.SIGTERM)
        return optimizer.get_lr(step, s)

    with monkeypatch.context() as patch:
        patch.setattr(train, "get_lr", get_lr)
        child = child_of(*WORDS, "--out_dir=run")
    end = time.monotonic() + 60
    while not Path("saving").exists():
        assert time.monotonic() < end, "the other program does not save"
        time.sleep(0.01)
    assert run(*WORDS, "--out_dir=run") == 0
    assert exit_code(child) == 128 + signal.SIGTERM
    assert "resuming at step 7" in capsys.readouterr().out
    assert identical(saved("run"), saved(straight)) and metrics("run") == metrics(straight)


@pytest.mark.usefixtures("here")
def test_a_run_that_appears_while_waiting_keeps_its_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(*WORDS, "--out_dir=other", "--dtype=bfloat16") == 0
    Path("other/extrapolation.json").unlink()  # its test is still to be made
    Path("run").mkdir()

    def lock(path: Path, wait: int) -> bool:
        shutil.copytree("other", path, dirs_exist_ok=True)
        return True

    monkeypatch.setattr(train, "lock_folder", lock)
    monkeypatch.setattr(device, "cpu_has_bfloat16", lambda: False)  # auto is float32
    assert run(*WORDS, "--out_dir=run", "--dtype=auto") == 0
    assert {record.dtype for record in load_result("run").records} == {"bfloat16"}


@pytest.mark.usefixtures("here")
def test_a_run_that_another_program_began_meanwhile_is_not_emptied(straight: str) -> None:
    folder = opened("--out_dir=run")
    assert folder.is_new
    shutil.copytree(straight, "run")
    files = {*Path("run").iterdir()} - {Path("run/.lock")}
    with pytest.raises(UserError, match="begun a run in run meanwhile: the same command resumes"):
        folder.write(None)
    assert files == {*Path("run").iterdir()} - {Path("run/.lock")}
