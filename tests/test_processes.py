"""One run in several processes, as torchrun starts them: the same numbers as in one, and nobody left waiting.

On a CPU with gloo. Every run that torchrun starts takes several seconds, so most of these tests are slow ones.
"""

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Project, Started
from test_killed import checkpoint_names, contents, lines_written, names, wait_until
from test_train import SIZE, begin, identical, metrics, run_main, trained, workplace

import ablate
import train
from configurable import UserError
from runs import device
from runs.checkpoint import load_state, save_checkpoint
from runs.processes import ALONE, Processes, together
from runs.results import load_result

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
SHARED = [
    *SIZE,
    "--pos=randomized(max=1024) + rope",
    "--dtype=float32",  # everybody's draw must be the same one, and 64
    "--eval_lengths=8,16,512",
]  # windows of 512 are tested in more than one batch
ONCE, TWICE = (
    ["--batch_size=8"],
    ["--gradient_accumulation_steps=2"],
)  # two ways to 8 sequences in a step
LONG = [*SHARED, *TWICE, "--max_iters=100000", "--eval_interval=100000", "--out_dir=run"]

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="this torch was built without torch.distributed"
)


def losses(folder: Path) -> np.ndarray:
    """What is logged of every step (steps, 3): loss, gradient's norm and validation, 0 where there was none."""
    return np.array(
        [[line["loss"], line["grad_norm"], line.get("val_loss", 0.0)] for line in metrics(folder)]
    )


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """The weights in a run folder."""
    return load_state(folder)["model"]


def furthest(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The largest difference of two weights."""
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def blocks(folder: Path) -> dict[tuple[str, int], np.ndarray]:
    """The losses of the test's blocks of windows by protocol and length."""
    return {
        (row["protocol"], row["length"]): np.array(row["block_nats"])
        for row in load_result(folder)["rows"]
    }


def workers(launcher: Started) -> dict[int, int]:
    """{rank: process} of the processes that torchrun started."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
            rank = re.search(rb"(?:^|\0)RANK=(\d+)\0", (path / "environ").read_bytes())
        except OSError:  # it has ended
            continue
        if parent == launcher.process.pid and rank:
            found[int(rank[1])] = int(path.name)
    return found


def all_gone(processes: dict[int, int]) -> bool:
    """Whether none of these processes is left."""
    return not any(Path(f"/proc/{number}").exists() for number in processes.values())


def begun(launcher: Started, folder: Path, lines: int = 3) -> dict[int, int]:
    """The workers of a run that has taken some steps."""
    wait_until(lambda: lines_written(folder) >= lines, launcher)
    found = workers(launcher)
    assert found.keys() == {0, 1}
    return found


needs_proc = pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="there is no /proc to find the processes in"
)


@pytest.fixture(scope="module")
def alone(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of one process; beside it, `whole`, a run that forms the gradient of a step in one go."""
    folder = tmp_path_factory.mktemp("alone")
    with workplace(project.folder / "data", folder):
        assert run_main(*SHARED, *TWICE, "--out_dir=run") == 0
        trained(*SHARED, *ONCE, "--out_dir=whole")
    return folder / "run"


@pytest.fixture(scope="module")
def shared(project: Project, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Started]:
    """The folder of the same run shared by two, and what was said."""
    folder = tmp_path_factory.mktemp("shared")
    return folder / "run", project.run(
        folder, *TORCHRUN, "train.py", *SHARED, *TWICE, "--out_dir=run"
    )


# ---- the same numbers


def test_two_processes_log_the_losses_and_end_with_the_weights_of_one(
    alone: Path, shared: tuple[Path, Started], record: Callable
) -> None:
    folder, started = shared
    assert started.process.returncode == 0, started.complained
    assert losses(folder).shape == (8, 3) and np.abs(losses(folder) - losses(alone)).max() < 1e-5
    difference = float(
        np.abs(losses(folder) - losses(alone.with_name("whole")))[:, 0].max()
    )  # adds up in another order
    assert difference < 1e-5
    assert np.ptp(losses(alone)[:, 0]) > 0.1  # eight different steps
    apart = max(
        furthest(weights(folder), weights(other)) for other in (alone, alone.with_name("whole"))
    )
    assert apart < 1e-4
    assert [line["tokens"] for line in metrics(folder)] == [
        line["tokens"] for line in metrics(alone)
    ]
    record("two processes against one: largest difference of a logged loss (nats)", difference)
    record("two processes against one: largest difference of a weight", apart)


def test_a_test_shared_by_two_has_the_losses_of_every_block(
    alone: Path, shared: tuple[Path, Started], project: Project, tmp_path: Path, record: Callable
) -> None:
    """The weights are those that two processes trained; here one tests them."""
    copy = shutil.copytree(shared[0], tmp_path / "copy")
    for name in ("extrapolation.json", "extrapolation.png"):
        (copy / name).unlink()
    with workplace(project.folder / "data", tmp_path):
        training = begin(*SHARED, *TWICE, "--out_dir=copy")
        assert training.step == 8
        train.test_long(training)
    one, two = blocks(copy), blocks(shared[0])
    assert one.keys() == two.keys() and len(one) == 9
    difference = max(float(np.abs(one[key] - two[key]).max()) for key in one)
    assert difference < 1e-6 and min(x.min() for x in two.values()) > 1
    (ours,), (theirs,) = (load_result(folder)["per_position"] for folder in (copy, shared[0]))
    assert (
        ours["nats"] == pytest.approx(theirs["nats"], abs=1e-6)
        and ours["counts"] == theirs["counts"]
    )
    record("a test by two processes against one: largest difference of a block (nats)", difference)


def test_only_the_first_process_writes_and_shows(shared: tuple[Path, Started], alone: Path) -> None:
    folder, started = shared
    assert [line["step"] for line in metrics(folder)] == list(range(1, 9))
    for once in (
        "7,216 parameters",
        ", 2 processes\n",
        "step 8/8: ",
        "fixed_targets at 512: ",
        "  bits/byte\n",
        "in run\n",
    ):
        assert started.said.count(once) == 1, once
    assert names(folder) == names(alone)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert (
        config["settings"]["batch_size"] == 4
        and config["settings"]["gradient_accumulation_steps"] == 2
    )


@pytest.mark.slow
def test_it_is_the_same_however_one_process_would_split_the_batch(
    alone: Path, project: Project, tmp_path: Path
) -> None:
    """Four sequences in two micro-batches cannot be seen from outside: one process in one go, two in one each."""
    started = project.run(tmp_path, *TORCHRUN, "train.py", *SHARED, *ONCE, "--out_dir=run")
    assert started.process.returncode == 0, started.complained
    assert (
        np.abs(losses(tmp_path / "run") - losses(alone))[:, :2].max() < 1e-5
    )  # its validation reads batch_size more
    assert furthest(weights(tmp_path / "run"), weights(alone)) < 1e-4


@pytest.mark.slow
def test_evaluate_started_by_torchrun_measures_what_it_measures_alone(
    alone: Path, project: Project, tmp_path: Path
) -> None:
    words = ["evaluate.py", "run", "--eval_lengths=8,24,512", "--stride=8", "--dtype=float32"]
    for name, launch in (("one", []), ("two", TORCHRUN)):
        shutil.copytree(alone, tmp_path / name / "run")
        started = project.run(tmp_path / name, *launch, *words)
        assert started.process.returncode == 0, started.complained
        assert started.said.count("  bits/byte") == 1
    one, two = (blocks(tmp_path / name / "run") for name in ("one", "two"))
    assert one.keys() == two.keys() and ("sliding", 512) in one
    assert max(float(np.abs(one[key] - two[key]).max()) for key in one) < 1e-6


def test_every_number_of_processes_trains_on_every_sequence_once() -> None:
    for sequences, batch_size in ((8, 4), (12, 4), (12, 5), (1, 1), (60, 7), (64, 64)):
        for processes in range(1, sequences + 1):
            if sequences % processes:
                with pytest.raises(
                    UserError,
                    match=rf"^{processes} processes cannot share the {sequences} sequences of a step",
                ):
                    Processes(0, processes).share(sequences, batch_size)
                continue
            share, micro = Processes(0, processes).share(sequences, batch_size)
            assert (
                share * processes == sequences and share % micro == 0 and 1 <= micro <= batch_size
            )


def test_positions_dropped_by_two_end_with_the_weights_of_one(
    project: Project, tmp_path: Path
) -> None:
    """The parameters of kerple are gone after half of the steps; a checkpoint knows of no wrapper."""
    words = [*SHARED, *TWICE, "--pos=kerple", "--drop_pos=0.5"]
    with workplace(project.folder / "data", tmp_path):
        trained(*words, "--out_dir=alone")
    started = project.run(tmp_path, *TORCHRUN, "train.py", *words, "--out_dir=run")
    assert started.process.returncode == 0, started.complained
    assert "Warning" not in started.complained
    found = weights(tmp_path / "run")
    assert furthest(found, weights(tmp_path / "alone")) < 1e-4
    assert not any("module" in name or "unused" in name for name in found)


@pytest.mark.slow
@pytest.mark.skipif(
    bool(device.missing_compiler()), reason=f"torch.compile cannot run: {device.missing_compiler()}"
)
def test_two_compiled_end_with_the_weights_of_one_that_is_not(
    alone: Path, project: Project, tmp_path: Path
) -> None:
    words = [*SHARED, *TWICE, "--compile=True", "--out_dir=run"]
    started = project.start(tmp_path, *TORCHRUN, "train.py", *words)
    assert started.end(600) == 0 and "compiling model and loss" in started.said, started.complained
    assert furthest(weights(tmp_path / "run"), weights(alone)) < 1e-4


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of this process alone."""
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


def counting(
    asked: list[int], bucket: torch.distributed.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """A hook in place of an exchange, which counts."""
    asked.append(bucket.index())
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def test_gradients_are_exchanged_once_in_a_step_and_an_unused_parameter_has_none(
    group: None,
) -> None:
    module, two, asked = torch.nn.Linear(3, 1), Processes(0, 2), []
    module.idle = torch.nn.Parameter(torch.zeros(2))
    wrapped = two.shared(module)
    wrapped.register_comm_hook(asked, counting)
    x = torch.tensor([[1.0, 2.0, 3.0]])
    for step in (1, 2):
        module.zero_grad(set_to_none=True)
        for now in (False, False, True):
            with two.exchange(wrapped, now):
                wrapped(x).sum().backward()
        assert asked == [0] * step and module.idle.grad is None
        assert module.weight.grad.tolist() == (3 * x).tolist()
    assert ALONE.shared(module) is module


def test_only_a_fault_of_the_network_says_that_another_process_ended() -> None:
    told = "another process of this run ended .*Connection closed by peer"
    with pytest.raises(UserError, match=told), ALONE.exchange():
        raise RuntimeError("[/gloo/transport/tcp/pair.cc:1] Connection closed by peer [::1]:1")
    with pytest.raises(RuntimeError, match="^shapes differ$"), ALONE.exchange():
        raise RuntimeError("shapes differ")


def test_each_process_draws_its_own_dropout() -> None:
    seeds = {
        train.mixed_seed(seed, step, rank)
        for seed in (1, 2)
        for step in range(500)
        for rank in range(4)
    }
    assert len(seeds) > 3990 and all(0 <= seed < 2**32 for seed in seeds)


def test_a_process_alone_waits_for_nobody() -> None:
    x = torch.tensor([1.5, 2.0])
    assert ALONE.sum(x) is x and x.tolist() == [1.5, 2.0] and ALONE.highest(7) == 7 and ALONE.first
    with (
        ALONE.first_before_others(),
        together("auto", device.pick("cpu", "float32")) as processes,
    ):
        assert processes is ALONE


# ---- what is refused


def test_what_torchrun_is_not_for_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("sys.argv", ["ablate.py", "nope", "rope"])
    with pytest.raises(UserError, match="start ablate.py by itself"):
        ablate.main()
    assert names(tmp_path) == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["train.py", *SHARED, "--batch_size=3", "--out_dir=run"],
            "2 processes cannot share the 3 sequences of a step",
        ),
        (["train.py", *SHARED, "--max_iter=3", "--out_dir=run"], "did you mean max_iters"),
        (["train.py", *SHARED, "--dataset=tinny", "--out_dir=run"], "tinny"),
        (
            ["train.py", *SHARED, *TWICE, "--backend=nccl", "--device=cpu", "--out_dir=run"],
            "backend=nccl",
        ),
        (["ablate.py", "nope", "rope", "--dataset=tiny"], "start ablate.py by itself"),
    ],
)
def test_a_mistake_ends_every_process_with_one_sentence_and_leaves_nothing(
    words: list[str], said: str, project: Project, tmp_path: Path
) -> None:
    began = time.monotonic()
    started = project.run(tmp_path, *TORCHRUN, *words)
    ours = [
        line
        for line in started.complained.splitlines()
        if re.match(r"(process \d+: )?error: ", line)
    ]
    assert started.process.returncode == 1 and ours and said in ours[0]
    assert "Error(" not in "".join(ours) and time.monotonic() - began < 60
    assert names(tmp_path) == set()


# ---- stopping, dying, going on


@needs_proc
def test_a_signal_to_torchrun_saves_at_one_agreed_step_and_one_process_goes_on(
    alone: Path, project: Project, tmp_path: Path
) -> None:
    words = [*SHARED, *TWICE, "--eval_interval=100000", "--out_dir=run"]
    started = project.start(tmp_path, *TORCHRUN, "train.py", *LONG)
    found = begun(started, tmp_path / "run")
    started.process.send_signal(signal.SIGINT)
    assert started.end(60) != 0 and all_gone(found)
    step = int(re.search(r"stopped at step (\d+), saved in run", started.said)[1])
    state = load_state(tmp_path / "run")
    assert state["step"] == step and lines_written(tmp_path / "run") == step
    with workplace(project.folder / "data", tmp_path):
        training = begin(*words, "--max_iters=100000")
        assert training.step == step and training.processes.size == 1
        assert np.isfinite(float(training.take_step()[0]))
        straight = begin(*words, "--max_iters=100000", "--out_dir=straight")
        while straight.step <= step:
            straight.take_step()
    assert furthest(training.state()["model"], straight.state()["model"]) < 1e-3


@needs_proc
@pytest.mark.parametrize("rank", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_process_that_is_killed_ends_the_others_within_a_minute(
    rank: int, project: Project, tmp_path: Path
) -> None:
    started = project.start(tmp_path, *TORCHRUN, "train.py", *LONG)
    found = begun(started, tmp_path / "run")
    os.kill(found[rank], signal.SIGKILL)
    began = time.monotonic()
    assert started.end(60) == 1 and time.monotonic() - began < 60 and all_gone(found)
    said = started.complained
    # among the failures: torch may end a process that is left by SIGABRT, and call that the root
    assert re.search(rf"rank +: {rank} .*\n +exitcode +: -9 ", said)
    assert (
        f"{'process 1: ' if rank == 0 else ''}error: another process of this run ended" in said
        or "SIGTERM" in said
    )


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_raises_ends_the_others_with_its_error_shown(
    rank: int, project: Project, tmp_path: Path
) -> None:
    """A fault in the third step of one of them, as a card that fails has it."""
    (tmp_path / "faulty.py").write_text(
        f"""
import os, sys
sys.path.insert(0, {str(project.folder)!r})
import configurable, posenc, train
take_step = train.Training.take_step
def faulty(self):
    if self.step == 3 and self.processes.rank == {rank}:
        raise RuntimeError("the card has caught fire")
    return take_step(self)
train.Training.take_step = faulty
configurable.run_program(train.main)
""",
        encoding="utf-8",
    )
    began = time.monotonic()
    started = project.run(tmp_path, *TORCHRUN, str(tmp_path / "faulty.py"), *LONG)
    assert started.process.returncode == 1 and time.monotonic() - began < 75
    assert "RuntimeError: the card has caught fire" in started.complained
    assert re.search(rf"rank +: {rank} ", started.complained.partition("Root Cause")[2])


@needs_proc
@pytest.mark.slow
def test_a_killed_process_is_started_again_by_torchrun_and_the_run_ends_as_if_undisturbed(
    project: Project, tmp_path: Path, record: Callable
) -> None:
    words = [
        "train.py",
        *SHARED,
        *TWICE,
        "--dropout=0.2",
        "--max_iters=100",
        "--eval_interval=5",
        "--out_dir=run",
    ]
    for name in ("straight", "killed"):
        (tmp_path / name).mkdir()
    started = project.start(tmp_path / "killed", *TORCHRUN, "--max-restarts=1", *words)
    found = begun(started, tmp_path / "killed/run", lines=12)
    os.kill(found[1], signal.SIGKILL)
    straight = project.start(tmp_path / "straight", *TORCHRUN, *words)
    assert started.end() == 0 and straight.end() == 0, started.complained
    assert 10 <= int(re.search(r"resuming at step (\d+)\n", started.said)[1]) < 100 and all_gone(
        found
    )
    one, two = (load_state(tmp_path / name / "run") for name in ("straight", "killed"))
    assert identical(one["model"], two["model"]) and identical(one["optimizer"], two["optimizer"])
    assert metrics(tmp_path / "straight/run") == metrics(tmp_path / "killed/run")
    record(
        "processes killed under torchrun --max-restarts=1, run ended with the same weights", 1, 1
    )


@pytest.mark.slow
def test_two_go_on_with_what_one_began(alone: Path, project: Project, tmp_path: Path) -> None:
    with workplace(project.folder / "data", tmp_path):
        training = begin(*SHARED, *TWICE, "--out_dir=run")
        for _ in range(4):
            training.take_step()
        save_checkpoint(training.folder, training.state())
        training.start.lock.release()
    started = project.run(tmp_path, *TORCHRUN, "train.py", *SHARED, *TWICE, "--out_dir=run")
    assert started.process.returncode == 0 and started.said.count("resuming at step 4\n") == 1, (
        started.complained
    )
    assert furthest(weights(tmp_path / "run"), weights(alone)) < 1e-4
    before = contents(tmp_path / "run")
    again = project.run(
        tmp_path, *TORCHRUN, "train.py", *SHARED, *TWICE, "--out_dir=run"
    )  # finished: its table
    assert (
        again.process.returncode == 0
        and again.said.count("  bits/byte\n") == 1
        and "step " not in again.said
    )
    assert before | {".holder": ""} == contents(tmp_path / "run") | {".holder": ""}


@pytest.mark.slow
def test_two_stopped_and_gone_on_by_two_end_the_same_to_the_bit(
    project: Project, tmp_path: Path, record: Callable
) -> None:
    words = [
        "train.py",
        *SHARED,
        *TWICE,
        "--dropout=0.2",
        "--max_iters=80",
        "--eval_interval=100",
        "--out_dir=run",
    ]
    for name in ("straight", "stopped"):
        (tmp_path / name).mkdir()
    started = project.start(tmp_path / "stopped", *TORCHRUN, *words)
    begun(started, tmp_path / "stopped/run")
    started.process.send_signal(signal.SIGTERM)
    started.end(60)
    step = load_state(tmp_path / "stopped/run")["step"]
    assert 3 <= step < 80
    for name in ("stopped", "straight"):
        ended = project.run(tmp_path / name, *TORCHRUN, *words)
        assert ended.process.returncode == 0, ended.complained
    one, two = (load_state(tmp_path / name / "run") for name in ("straight", "stopped"))
    assert identical(one["model"], two["model"]) and identical(one["optimizer"], two["optimizer"])
    assert metrics(tmp_path / "straight/run") == metrics(tmp_path / "stopped/run")
    record("resumes equal to the bit, two processes", 1, 1)


@pytest.mark.slow
def test_three_that_go_on_add_in_the_same_order_as_three_that_were_never_stopped(
    project: Project, tmp_path: Path
) -> None:
    """With three the order of a sum can be seen in its last bits."""
    three = [word.replace("=2", "=3") for word in TORCHRUN]
    words = ["train.py", *SHARED, "--batch_size=6", "--lr_schedule=constant", "--eval_interval=3"]
    for name, steps in (("straight", [6]), ("longer", [3, 6])):
        for last in steps:
            more = [f"--max_iters={last}", f"--out_dir={name}"]
            ended = project.run(tmp_path, *three, *words, *more)
            assert ended.process.returncode == 0, ended.complained
    one, two = (load_state(tmp_path / name) for name in ("straight", "longer"))
    assert one["step"] == 6 and identical(one["model"], two["model"])


@pytest.mark.slow
def test_a_folder_that_another_run_holds_is_refused_to_all_of_them(
    project: Project, tmp_path: Path
) -> None:
    with workplace(project.folder / "data", tmp_path):
        holding = trained(*SHARED, *TWICE, "--out_dir=run", "--max_iters=2")
        assert holding.start.lock.is_locked
        before = contents(tmp_path / "run")
        started = project.run(
            tmp_path, *TORCHRUN, "train.py", *SHARED, *TWICE, "--out_dir=run", "--max_iters=2"
        )
    assert started.process.returncode == 1
    assert f"error: run is in use by process {os.getpid()} " in started.complained
    assert contents(tmp_path / "run") == before and checkpoint_names(tmp_path / "run")
