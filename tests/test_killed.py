"""Killed, damaged, filled up, taken twice: whatever happens to a run, nothing is lost and nothing is silently wrong.

Real programs in processes of their own, on a copy of the project; the counts are kept by `make reliability`.
"""

import contextlib
import functools
import itertools
import os
import platform
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from conftest import Project, Started
from test_train import (
    DRAWING,
    SIZE,
    begin,
    identical,
    metrics,
    run_main,
    steps,
    train_on,
    trained,
    when_taken,
    workplace,
)

import evaluate
import train
from configurable import UserError
from runs import device, figures
from runs.checkpoint import checkpoint_paths, load_state, save_checkpoint
from runs.files import sha256, write_text
from runs.folder import lock_folder
from runs.log import Log, append_metrics
from runs.results import load_result

LONG = [*SIZE, *DRAWING, "--eval_interval=1", "--out_dir=run"]  # saves after every step


def names(folder: Path) -> set[str]:
    """What is in a folder; nothing where there is none."""
    return set(os.listdir(folder)) if folder.exists() else set()


def checkpoint_names(folder: Path) -> list[str]:
    """The names of the checkpoints in a folder, without looking at the files."""
    return [name for name in names(folder) if name.startswith("ckpt-")]


def contents(folder: Path) -> dict[str, str]:
    """The digest of every file in a folder."""
    return {path.name: sha256(path) for path in folder.iterdir() if path.is_file()}


def wait_until(
    ready: Callable[[], bool], started: Started, pause: float = 0.01, seconds: float = 120
) -> None:
    """Look every `pause` seconds until `ready()`; fails if the program ends before."""
    end = time.monotonic() + seconds
    while not ready():
        time.sleep(pause)
        assert started.process.poll() is None, (
            f"it ended: {started.said[-500:]} {started.complained[-2000:]}"
        )
        assert time.monotonic() < end, "it never happened"


def lines_written(folder: Path) -> int:
    """Whole lines in metrics.jsonl."""
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def quiet(line: str) -> None:
    """Says nothing."""


# ---- killed at any moment


def beginning(folder: Path) -> Callable[[], bool]:
    """The run has taken the folder and reads or writes what is needed to go on."""
    holder = folder / ".holder"
    before = holder.stat().st_mtime_ns if holder.exists() else 0
    return lambda: holder.exists() and holder.stat().st_mtime_ns != before


def half_written(folder: Path) -> Callable[[], bool]:
    """A checkpoint is being written."""
    return lambda: any(name.startswith("..ckpt.new") for name in names(folder))


def nameless(folder: Path) -> Callable[[], bool]:
    """A checkpoint is whole and does not have its name yet."""
    return lambda: ".ckpt.new" in names(folder)


def three(folder: Path) -> Callable[[], bool]:
    """A checkpoint has its name, and the oldest is not deleted yet."""
    return lambda: len(checkpoint_names(folder)) == 3


def anywhere(folder: Path) -> Callable[[], bool]:
    """Whatever it does."""
    return lambda: True


MOMENTS = (half_written, anywhere, nameless, beginning, three)


def kill(started: Started, folder: Path, moment: Callable, chance: random.Random) -> bool:
    """Kill a run at a moment of that kind, a few steps after it began; whether files were being written just then."""
    ready = moment(folder)
    if moment is not beginning:
        taken = lines_written(folder)
        wait_until(
            lambda: folder.exists() and lines_written(folder) not in (0, taken), started
        )  # it has begun
        further = lines_written(folder) + chance.randrange(5)
        wait_until(lambda: lines_written(folder) >= further, started)
        ready = moment(folder)
    wait_until(ready, started, pause=0)
    time.sleep(
        {anywhere: chance.uniform(0, 0.05), beginning: chance.uniform(0, 0.1)}.get(moment, 0.0)
    )
    started.process.kill()
    assert started.end() == -signal.SIGKILL
    unfinished = any(name.endswith(".new") for name in names(folder))
    return unfinished or len(checkpoint_names(folder)) == 3


def killed_again_and_again(project: Project, folder: Path, kills: int) -> tuple[int, int]:
    """A run killed so many times and resumed each time equals one that nobody touched: kills survived, those in a write."""
    words, chance = ["train.py", *LONG, f"--max_iters={8 * kills}"], random.Random(kills)
    (folder / "straight").mkdir()
    straight = project.start(folder / "straight", *words)
    survived, writing = 0, 0
    for moment in itertools.islice(itertools.cycle(MOMENTS), kills):
        writing += kill(project.start(folder, *words), folder / "run", moment, chance)
        state = load_state(folder / "run", quiet)
        assert lines_written(folder / "run") - 1 <= (state["step"] if state else 0), (
            "a step that was saved is lost"
        )
        survived += 1
    last = project.run(folder, *words)
    assert last.process.returncode == 0 and straight.end() == 0, last.complained
    assert f"resuming at step {state['step']}\n" in last.said
    same_end(folder / "straight/run", folder / "run")
    assert not [name for name in names(folder / "run") if name.endswith(".new")]
    return survived, writing


def same_end(one: Path, other: Path) -> None:
    """The same weights, optimizer, steps and metrics, to the bit, and the same test."""
    states = [load_state(folder, quiet) for folder in (one, other)]
    for name in ("model", "optimizer", "scaler", "step", "tokens"):
        assert identical(states[0][name], states[1][name]), name
    assert metrics(one) == metrics(other)
    assert [row["nats"] for row in load_result(one)["rows"]] == [
        row["nats"] for row in load_result(other)["rows"]
    ]


def test_a_run_killed_five_times_ends_like_one_that_nobody_touched(
    project: Project, tmp_path: Path
) -> None:
    survived, _ = killed_again_and_again(project, tmp_path, 5)
    assert survived == 5


@pytest.mark.slow
def test_a_run_killed_25_times_ends_like_one_that_nobody_touched(
    project: Project, tmp_path: Path, record: Callable
) -> None:
    survived, writing = killed_again_and_again(project, tmp_path, 25)
    assert survived == 25 and writing >= 10
    record("kills (SIGKILL) survived", survived, 25)
    record("of these, while a file was being written", writing, 25)


# ---- damage


def cut(where: float | int) -> Callable[[Path], None]:
    """Leave so many bytes (counted from the end where negative), or that share of them."""

    def damage(path: Path) -> None:
        content = path.read_bytes()
        path.write_bytes(
            content[: int(where * len(content)) if isinstance(where, float) else where]
        )

    return damage


def flip(where: float | int, bit: int = 0) -> Callable[[Path], None]:
    """Turn one bit of the byte there."""

    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[int(where * len(content)) if isinstance(where, float) else where] ^= 1 << bit
        path.write_bytes(content)

    return damage


def overwrite(content: bytes, where: float) -> Callable[[Path], None]:
    """Put other bytes at that share of the file."""

    def damage(path: Path) -> None:
        old = path.read_bytes()
        place = int(where * len(old))
        path.write_bytes(old[:place] + content + old[place + len(content) :])
        assert path.read_bytes() != old

    return damage


def add(content: bytes) -> Callable[[Path], None]:
    """Put bytes behind its end."""
    return lambda path: path.write_bytes(path.read_bytes() + content)


def swap_names(folder: Path) -> None:
    """Each checkpoint under the name of the other."""
    newest, previous = checkpoint_paths(folder)
    newest.rename(folder / "kept")
    previous.rename(newest)
    (folder / "kept").rename(previous)


def of_another_run(*which: int, renamed: bool = True) -> Callable[[Path], None]:
    """Checkpoints of a run with another seed in the place of these, under the names of these or their own."""

    def damage(folder: Path) -> None:
        paths, others = checkpoint_paths(folder), checkpoint_paths(folder.parent / "other")
        for k in which:
            paths[k].unlink()
            shutil.copy(others[k], paths[k] if renamed else folder / others[k].name)

    return damage


def rename(old: str, new: str) -> Callable[[Path], None]:
    """Another name for a file."""
    return lambda path: path.rename(path.with_name(re.sub(old, new, path.name)))


def to(which: int, damage: Callable[[Path], None]) -> Callable[[Path], None]:
    """A damage to one checkpoint of a folder: 0 is the newest."""
    return lambda folder: damage(checkpoint_paths(folder)[which])


def to_both(
    first: Callable[[Path], None], second: Callable[[Path], None]
) -> Callable[[Path], None]:
    """Damage to both checkpoints."""

    def damage(folder: Path) -> None:
        newest, previous = checkpoint_paths(folder)
        first(newest)
        second(previous)

    return damage


def corruptions() -> list[tuple[Callable[[Path], None], int | None]]:
    """Fifty ways to harm a run folder, and the step (6 newest, 4 previous, None: a sentence) that must be gone on from."""
    chance = random.Random(0)
    newest = [
        *(cut(n) for n in (0, 1, 4, 64, -1, -22, -23, 0.5, chance.random(), chance.random())),
        *(flip(n, chance.randrange(8)) for n in (0, 2, 5, 30, -1, -2, -10, -20, -30, -60, -100)),
        *(flip(chance.random(), chance.randrange(8)) for _ in range(9)),
        overwrite(bytes(4096), 0.1),
        overwrite(b"\xff" * 512, 0.7),
        add(b"\0"),
        add(b"PK\5\6" + bytes(18)),
        Path.unlink,
        rename("ckpt", "old"),
    ]
    previous = [cut(0.3), flip(0.6), cut(0)]
    return [
        *((to(0, damage), 4) for damage in newest),
        *((to(1, damage), 6) for damage in previous),
        (to_both(flip(0.5), flip(0.5)), None),
        (to_both(cut(100), Path.unlink), None),
        (to_both(Path.unlink, flip(-1)), None),
        (swap_names, None),
        (of_another_run(0), 4),
        (of_another_run(1), 6),
        (of_another_run(0, 1), None),
        (of_another_run(0, renamed=False), None),
        (of_another_run(0, 1, renamed=False), None),
        (to(0, rename("-6-", "-7-")), 6),
        (to(0, rename("-6-....", "-6-0000")), 4),
    ]


@pytest.fixture(scope="module")
def harmed(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `whole`, a run with checkpoints of steps 4 and 6, and `other`, the same with another seed."""
    folder = tmp_path_factory.mktemp("harmed")
    with workplace(project.folder / "data", folder):
        for name, seed in (("whole", 1337), ("other", 5)):
            training = begin(*DRAWING, "--out_dir=run", f"--seed={seed}")
            for step in range(1, 7):
                training.take_step()
                append_metrics(training.folder, {"step": step})
                if step in (4, 6):
                    save_checkpoint(training.folder, training.state())
            training.start.lock.release()
            Path("run").rename(name)
    return folder


def test_each_of_fifty_corruptions_is_recognised_and_never_trained_on(
    harmed: Path, project: Project, record: Callable, capsys: pytest.CaptureFixture
) -> None:
    good = {
        step: torch.load(path, weights_only=True)
        for step, path in zip((6, 4), checkpoint_paths(harmed / "whole"), strict=True)
    }
    cases, missed = corruptions(), []
    with workplace(project.folder / "data", harmed):
        for number, (damage, expected) in enumerate(cases):
            shutil.rmtree("run", ignore_errors=True)
            shutil.copytree("whole", "run")
            damage(Path("run"))
            if fault := misbehaved(good, expected, capsys):
                missed.append(f"{number}: {fault}")
    assert not missed
    assert len(cases) == 50
    record("corruptions of a run folder recognised", len(cases) - len(missed), len(cases))


def misbehaved(good: dict[int, dict], expected: int | None, capsys: pytest.CaptureFixture) -> str:
    """What is wrong with how `run` is gone on from: with wrong weights, from the wrong step, or without a word."""
    before, training = contents(Path("run")), None
    capsys.readouterr()
    try:
        training = begin(*DRAWING, "--out_dir=run")
        Log(training.start)
    except UserError as error:
        after = {
            name: digest for name, digest in contents(Path("run")).items() if name != ".holder"
        }
        unchanged = after == {name: digest for name, digest in before.items() if name != ".holder"}
        ok = expected is None and unchanged and "run" in str(error) and "\n" not in str(error)
        return "" if ok else f"{error}{'' if unchanged else ' (and it changed files)'}"
    finally:
        lock_folder(Path("run")).release(force=True)
    said = capsys.readouterr().out
    if expected is None or training.step != expected:
        return f"goes on from step {training.step}"
    if not identical(
        {name: training.state()[name] for name in ("model", "optimizer")},
        {name: good[expected][name] for name in ("model", "optimizer")},
    ):
        return "other weights"
    damaged = rf"run/ckpt-{4 if expected == 6 else 6}-\w+\.pt is damaged"
    gone = "steps 5 to 6 were logged, and are taken again: no checkpoint of them is left"
    whole = len(checkpoint_paths(Path("run"))) == 2 and expected == 6
    return "" if re.search(damaged, said) or gone in said or whole else f"not named: {said}"


def test_told_to_start_afresh_a_run_does_so_though_its_config_is_lost(
    harmed: Path, project: Project
) -> None:
    with workplace(project.folder / "data", harmed):
        shutil.rmtree("run", ignore_errors=True)
        shutil.copytree("whole", "run")
        Path("run/config.json").unlink()
        training = begin(*DRAWING, "--out_dir=run", "--overwrite=True")
        training.start.lock.release()
        assert training.step == 0 and not checkpoint_names(Path("run"))


def test_what_a_killed_program_left_half_written_is_swept_by_whoever_locks_the_folder_next(
    tmp_path: Path,
) -> None:
    (tmp_path / ".extrapolation.png.123.new").write_bytes(b"half")
    lock_folder(tmp_path).release()
    assert names(tmp_path) == {".lock", ".holder"}


# ---- signals


def test_a_second_signal_does_not_wait_for_the_end_of_a_long_step(
    project: Project, tmp_path: Path
) -> None:
    started = project.start(
        tmp_path, "train.py", *SIZE, "--out_dir=run", "--gradient_accumulation_steps=100000"
    )
    wait_until(lambda: "not compiled" in started.said, started)
    time.sleep(0.3)
    started.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert started.process.poll() is None  # the step goes on
    started.process.send_signal(signal.SIGINT)
    began = time.monotonic()
    assert started.end() == 130 and time.monotonic() - began < 5  # the step takes minutes
    assert started.complained == "" and not checkpoint_names(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.skipif(
    bool(device.missing_compiler()), reason=f"torch.compile cannot run: {device.missing_compiler()}"
)
def test_a_second_signal_does_not_wait_for_the_compiler(project: Project, tmp_path: Path) -> None:
    started = project.start(
        tmp_path, "train.py", *SIZE, "--out_dir=run", "--compile=True", "--n_embd=48"
    )
    wait_until(lambda: "compiling" in started.said, started)
    time.sleep(1.5)
    for _ in range(2):
        started.process.send_signal(signal.SIGINT)
        time.sleep(0.5)
    began = time.monotonic()
    assert started.end() == 130 and time.monotonic() - began < 5
    assert "Traceback" not in started.complained and not checkpoint_names(tmp_path / "run")


# ---- a full disk

PAGE = 4096


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    """A disk of so many bytes; the test is skipped where none may be mounted."""
    folder.mkdir()
    try:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)],
            check=True,
            capture_output=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no tmpfs can be mounted here: {error}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def room(folder: Path, size: int) -> None:
    """Give a small disk another size."""
    subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)


def pages_used(folder: Path) -> int:
    """Pages of a small disk that hold something."""
    found = os.statvfs(folder)
    return found.f_blocks - found.f_bfree


@pytest.mark.slow  # the next one meets every place, in this process
def test_a_disk_that_is_full_at_a_later_save_leaves_the_old_checkpoint_and_a_sentence(
    project: Project, tmp_path: Path
) -> None:
    words = [
        "train.py",
        *SIZE,
        *DRAWING,
        "--n_embd=64",
        "--eval_interval=1",
        f"--out_dir={tmp_path / 'disk/run'}",
    ]
    straight = project.start(tmp_path, *words[:-1], "--out_dir=straight")
    with small_disk(tmp_path / "disk", 2**21) as disk:
        full = project.run(tmp_path, *words)
        assert full.process.returncode == 1
        assert full.complained.startswith("error: ") and full.complained.count("\n") == 1
        assert str(disk / "run") in full.complained and "No space left on device" in full.complained
        said: list[str] = []
        kept = load_state(disk / "run", said.append)
        assert (
            kept["step"] >= 1
            and not said
            and not [name for name in names(disk / "run") if name.endswith(".new")]
        )
        room(disk, 2**23)
        assert straight.end() == 0
        again = project.run(tmp_path, *words)
        assert again.process.returncode == 0 and f"resuming at step {kept['step']}\n" in again.said
        same_end(tmp_path / "straight", disk / "run")


def test_wherever_the_disk_fills_up_it_is_one_sentence_and_the_run_goes_on_once_there_is_room(
    project: Project, tmp_path: Path, record: Callable
) -> None:
    """From a disk without one free page to one where all fits: folder, config.json, metrics.jsonl, checkpoints, test."""
    words, refused = (*DRAWING, "--max_iters=4", "--eval_interval=2"), []
    drawn = functools.partial(write_text, text="drawn")
    with (
        workplace(project.folder / "data", tmp_path),
        small_disk(tmp_path / "disk", 2**22) as disk,
        pytest.MonkeyPatch.context() as patch,
    ):  # undone before the workplace's own
        patch.setattr(figures, "plot_runs", lambda results, path, dataset="": drawn(Path(path)))
        assert run_main(*words, "--out_dir=straight") == 0
        empty = pages_used(disk)
        assert run_main(*words, f"--out_dir={disk / 'all'}") == 0
        needed = pages_used(disk) - empty
        shutil.rmtree(disk / "all")
        (disk / "filler").write_bytes(bytes(PAGE))  # a size of 0 would mean any size
        for free in [*range(6), *range(6, needed, max(1, needed // 20))]:
            room(disk, (pages_used(disk) + free) * PAGE)
            with pytest.raises(UserError) as full:
                run_main(*words, f"--out_dir={disk / 'run'}")
            assert "No space left" in str(full.value) and str(disk / "run") in str(full.value), (
                free,
                full.value,
            )
            refused.append(free)
            room(disk, 2**22)
            assert run_main(*words, f"--out_dir={disk / 'run'}") == 0
            same_end(Path("straight"), disk / "run")
            shutil.rmtree(disk / "run")
    assert len(refused) > 15
    record("disks that filled up, at another place each, survived", len(refused), len(refused))


# ---- two programs that want one folder


def test_who_holds_a_folder_is_told_and_nothing_is_changed(
    project: Project, tmp_path: Path
) -> None:
    words = ["train.py", *LONG, "--max_iters=100000"]
    holder, folder = project.start(tmp_path, *words), tmp_path / "run"
    wait_until(lambda: len(checkpoint_names(folder)) == 2, holder)
    holder.process.send_signal(signal.SIGSTOP)  # so that what changes is not its work
    before = contents(folder)
    others = [
        project.start(tmp_path, *words, "--overwrite=True"),
        project.start(tmp_path, "evaluate.py", "run", "--eval_lengths=8"),
    ]
    sampled = project.start(tmp_path, "sample.py", "run", "--max_new_tokens=5", "--device=cpu")
    for other in others:
        assert other.end() == 1
        assert (
            other.complained.startswith("error: run is in use by ")
            and other.complained.count("\n") == 1
        )
        for part in (f"process {holder.process.pid} ", platform.node(), "train.py --dataset=tiny"):
            assert part in other.complained
    assert sampled.end() == 0, sampled.complained
    assert contents(folder) == before
    holder.process.kill()
    holder.end()
    lock_folder(folder).release()  # it is free again


# ---- exact resume

MATRIX = {  # kinds of run, each with several settings that could be in the way of each other
    "accumulation": ["--gradient_accumulation_steps=3", "--grad_clip=0", "--weight_decay=0.5"],
    "accumulation and dropout": ["--gradient_accumulation_steps=2", "--dropout=0.2", "--seed=2"],
    "randomized rope": ["--pos=randomized(max=64) + rope", "--grad_clip=0.01"],
    "randomized t5, dropout": ["--pos=randomized(max=64) + t5", "--dropout=0.1"],
    "learned": ["--pos=learned", "--decay_lr=False", "--weight_decay=0"],
    "alibi": ["--pos=alibi(learned=True)", "--beta1=0.5", "--beta2=0.5"],
    "kerple": ["--pos=kerple", "--beta1=0", "--min_lr=0"],
    "nope": ["--pos=nope", "--warmup_iters=0", "--bias=True"],
    "windows": ["--pos=rope + window(size=5) | nope", "--n_layer=2", "--warmup_iters=8"],
    "decay ends early": ["--lr_decay_iters=5", "--warmup_iters=1"],
    "wsd": ["--lr_schedule=wsd", "--decay_share=0.5", "--warmup_iters=1"],
    "constant": ["--lr_schedule=constant", "--warmup_iters=8"],
    "float32": ["--dtype=float32"],
    "bfloat16": ["--dtype=bfloat16", "--dropout=0.1"],
    "float16": ["--dtype=float16"],
    "rare log": ["--log_interval=5", "--eval_interval=100"],
}


def resumed_like_straight(*words: str) -> str:
    """What differs between 8 steps and 4 steps, a stop and 4 steps; empty where nothing does."""
    straight, stopped = Path("straight"), Path("stopped")
    for folder in (straight, stopped):
        shutil.rmtree(folder, ignore_errors=True)
    trained(*words, f"--out_dir={straight}")
    training, stop = begin(*words, f"--out_dir={stopped}"), train.Stop()
    with when_taken(4, lambda: stop.take(signal.SIGTERM, None)), pytest.raises(SystemExit):
        train.train(training, Log(training.start), stop)
    torch.manual_seed(99)  # nothing of it may live on in this process
    resumed = begin(*words, f"--out_dir={stopped}")
    if (resumed.step, steps(stopped)[-1:]) not in ((4, [4]), (4, [1])):
        return f"stopped at {resumed.step}, logged {steps(stopped)}"
    train_on(resumed)
    states = [load_state(folder) for folder in (straight, stopped)]
    differ = [
        name
        for name in ("model", "optimizer", "scaler", "step", "tokens")
        if not identical(states[0][name], states[1][name])
    ]
    return ", ".join(differ + (["metrics"] if metrics(straight) != metrics(stopped) else []))


def test_stopped_half_way_every_kind_of_run_ends_the_same_to_the_bit(
    project: Project, tmp_path: Path, record: Callable
) -> None:
    with workplace(project.folder / "data", tmp_path):
        differ = {
            name: found
            for name, words in MATRIX.items()
            if (found := resumed_like_straight(*words))
        }
    assert not differ
    record("resumes equal to the bit, kinds of run", len(MATRIX), len(MATRIX))


@pytest.mark.slow
@pytest.mark.skipif(
    bool(device.missing_compiler()), reason=f"torch.compile cannot run: {device.missing_compiler()}"
)
def test_compiled_runs_end_the_same_to_the_bit(
    project: Project, tmp_path: Path, record: Callable
) -> None:
    kinds = ("accumulation and dropout", "randomized t5, dropout", "bfloat16")
    with workplace(project.folder / "data", tmp_path):
        differ = {
            name: found
            for name in kinds
            if (found := resumed_like_straight(*MATRIX[name], "--compile=True"))
        }
    assert not differ
    record("resumes equal to the bit, compiled", len(kinds), len(kinds))


# ---- the same command


@pytest.mark.slow
def test_two_runs_of_one_command_give_the_same_weights(
    project: Project, tmp_path: Path, record: Callable
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        assert project.run(tmp_path / name, "train.py", *LONG).process.returncode == 0
    same_end(tmp_path / "one/run", tmp_path / "two/run")
    protocols = [load_result(tmp_path / name / "run")["rows"] for name in ("one", "two")]
    assert len(protocols[0]) == len(protocols[1]) == len(evaluate.PROTOCOLS) * 3
    record("runs of one command with the same weights", 2, 2)
