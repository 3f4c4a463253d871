"""One run in several processes, as torchrun starts them: the same numbers as in one."""

import os
import signal
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SIZE, TEXT, Project, workplace, write_bytes
from test_documents import DOCUMENTS
from test_killed import child_of, exit_code, wait_for_lines
from test_train import identical, logged, metrics, run, saved

import data.recall.prepare as recall
import train
from common import processes
from common.device import CPU
from common.errors import UserError
from common.files import read_json
from common.processes import ALONE, init_processes

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
SHARED = ["--pos=randomized(max=1024) + rope", "--gradient_accumulation_steps=2"]

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="this torch was built without torch.distributed"
)


def test_two_processes_have_the_losses_weights_and_results_of_one(
    project: Project, tmp_path: Path
) -> None:
    started = project.run(tmp_path, *TORCHRUN, "train.py", *SIZE, *SHARED, "--out_dir=two")
    assert started.process.returncode == 0, started.complained
    assert started.said.count("fixed_targets at 16") == 1  # only the first process speaks
    with workplace(project.folder / "data", tmp_path):
        assert run(*SHARED, "--out_dir=one") == 0
        one = saved("one")["model"]
        two = saved("two")["model"]
        for name, weight in one.items():
            assert torch.allclose(two[name], weight, atol=2e-5), name
        for name in ("loss", "val_loss", "grad_norm"):
            pairs = [[line.get(name, 0.0) for line in logged(f)] for f in ("one", "two")]
            assert np.allclose(*pairs, atol=1e-4)
        rows = [read_json(Path(f, "extrapolation.json"))["rows"] for f in ("one", "two")]
        assert np.allclose(*([row["nats"] for row in of] for of in rows), atol=1e-4)
        assert read_json(Path("two/config.json"))["processes"] == 2
        # one process goes on with what two began
        assert run(*SHARED, "--max_iters=9", "--out_dir=two") == 0


@pytest.mark.parametrize("dataset", ["asked", "paged --documents=pad", "paged --documents=mask"])
def test_two_processes_share_rows_whose_numbers_of_targets_differ(
    dataset: str, project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recall, "TRAIN_TOKENS", {"noise": 2**14})
    recall.prepare(project.folder / "data/asked", longest=512, trained=128)
    write_bytes(project.folder / "data/paged", DOCUMENTS, [*DOCUMENTS, TEXT])
    words = f"--dataset={dataset} --block_size=32 --eval_lengths=32 --max_iters=3".split()
    with workplace(project.folder / "data", tmp_path):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]  # a free one
        told = {"WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        for name, value in told.items():
            monkeypatch.setenv(name, str(value))
        children = []
        for rank in ("0", "1"):
            monkeypatch.setenv("RANK", rank)
            children.append(child_of(*words, "--out_dir=two"))
        assert [exit_code(child) for child in children] == [0, 0]
        for name in ("RANK", *told):
            monkeypatch.delenv(name)
        assert read_json(Path("two/config.json"))["processes"] == 2
        assert run(*words, "--out_dir=one") == 0
        one, two = logged("one"), logged("two")
        for name in ("loss", "grad_norm"):
            assert two[0][name] == pytest.approx(one[0][name], rel=1e-6), name
            assert two[2][name] == pytest.approx(one[2][name], rel=1e-4), name


@pytest.mark.slow
def test_two_that_are_stopped_and_go_on_end_the_same_to_the_bit(
    project: Project, tmp_path: Path
) -> None:
    words = [*TORCHRUN, "train.py", *SIZE, *SHARED, "--max_iters=400", "--eval_interval=100"]
    assert project.run(tmp_path, *words, "--out_dir=straight").process.returncode == 0
    started = project.start(tmp_path, *words, "--out_dir=stopped")
    wait_for_lines(tmp_path / "stopped", 5)
    started.process.send_signal(signal.SIGTERM)
    assert started.end() != 0 and "the same command resumes" in started.said
    assert project.run(tmp_path, *words, "--out_dir=stopped").process.returncode == 0
    straight = str(tmp_path / "straight")
    stopped = str(tmp_path / "stopped")
    assert identical(saved(straight), saved(stopped)) and metrics(straight) == metrics(stopped)


@pytest.mark.slow
def test_a_mistake_ends_every_process_with_one_sentence(project: Project, tmp_path: Path) -> None:
    started = project.run(tmp_path, *TORCHRUN, "train.py", *SIZE, "--batch_size=3", "--out_dir=run")
    assert started.process.returncode != 0 and not (tmp_path / "run").exists()
    assert "cannot share the 3 sequences of a step evenly" in started.complained


def test_signals_are_handled_until_a_stopped_program_has_left():
    before = signal.getsignal(signal.SIGTERM)

    def handler(number, frame):
        pass

    with processes.signals_to(handler):
        assert signal.getsignal(signal.SIGTERM) is handler
    assert signal.getsignal(signal.SIGTERM) is before
    handlers = {number: signal.getsignal(number) for number in processes.SIGNALS}
    with pytest.raises(SystemExit), processes.signals_to(handler):
        raise SystemExit  # what repeats the signal must not end the saving
    assert signal.getsignal(signal.SIGTERM) is handler
    for number, own in handlers.items():
        signal.signal(number, own)


def test_a_process_alone_waits_for_nobody(monkeypatch):
    module = torch.nn.Linear(2, 2)
    assert ALONE.is_master and ALONE.highest(3) == 3 and ALONE.wrap_ddp(module) is module
    assert ALONE.sum(torch.ones(2)).tolist() == [1, 1]
    with init_processes("auto", CPU) as alone:
        assert alone == ALONE
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(UserError, match="WORLD_SIZE='two' is not a number"):
        processes.world_size()


def test_only_a_fault_of_the_network_says_that_another_process_ended():
    with (
        pytest.raises(UserError, match="another process of this run ended"),
        processes.errors_of_others(),
    ):
        raise RuntimeError("[gloo/transport/tcp/pair.cc] Connection closed by peer")
    with pytest.raises(RuntimeError, match="shapes"), processes.errors_of_others():
        raise RuntimeError("shapes do not match")


def test_several_processes_of_a_cpu_measure_nothing(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(train.device, "cpu_has_bfloat16", lambda: True)
    assert train.device.pick("cpu", "auto").dtype is None
    assert os.environ["WORLD_SIZE"] == "2"
