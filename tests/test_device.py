"""Where to compute and in which format: what is chosen and said, what is refused; with a card, CUDA."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from test_train import run, stop_at

from common import device
from common.device import Compute
from common.errors import UserError
from run.load import load_run

CARD = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA card")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretend a machine: machine("cuda", bf16=False)."""

    def pretend(*gpus: str, bf16: bool = False, rate: float = 200.0) -> None:
        def empty(*shape: int, device: str) -> None:
            if device.split(":")[0] not in ("cpu", *gpus):
                raise RuntimeError("Expected one of cpu, cuda, ... device type")

        monkeypatch.setattr(torch, "empty", empty)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: "cuda" in gpus)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "set_device", lambda card: None)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bf16)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: "mps" in gpus)
        monkeypatch.setattr(device, "cpu_has_bfloat16", lambda: bf16)
        rates = {"bfloat16": 400.0, "float32": rate}
        monkeypatch.setattr(device, "measured_rates", lambda tokens, width: rates)

    return pretend


@pytest.mark.parametrize(
    ("gpus", "about", "name", "dtype", "chosen"),
    [
        ([], {}, "auto", "auto", "cpu, float32 (it has nothing faster)"),
        ([], {"bf16": True}, "auto", "auto", "bfloat16 (measured: bfloat16 400, float32 200 GFLOP/s)"),
        ([], {"bf16": True, "rate": 370.0}, "auto", "auto", "float32 (measured: bfloat16 400, float32 370"),
        ([], {"bf16": True}, "auto", "float32", "cpu, float32 (as set or trained)"),
        ([], {}, "cpu", "bfloat16", "cpu, bfloat16 (as set or trained)"),
        (["cuda"], {"bf16": True}, "auto", "auto", "cuda, bfloat16 (the GPU has it)"),
        (["cuda"], {}, "auto", "auto", "cuda, float16 (the GPU has no bfloat16)"),
        (["cuda"], {"bf16": True}, "cuda:1", "float16", "cuda:1, float16 (as set or trained)"),
        (["cuda"], {}, "cpu", "auto", "cpu, float32"),
        (["mps"], {}, "auto", "auto", "cpu, float32"),
        (["mps"], {}, "mps", "auto", "mps, float32"),
    ],
)  # fmt: skip
def test_the_choice_is_said_with_its_reason(
    gpus: list[str], about: dict, name: str, dtype: str, chosen: str, machine: Callable[..., None]
) -> None:
    machine(*gpus, **about)
    compute = device.pick(name, dtype)
    assert chosen in compute.reason
    assert (compute.dtype is None) == (compute.dtype_name == "float32")


@pytest.mark.parametrize("name", ["cuda", "cuda:1", "mps", "tpu", "cuda:x", ""])
def test_what_is_no_device_here_is_a_sentence(name: str, machine: Callable[..., None]) -> None:
    machine()
    with pytest.raises(
        UserError, match=f"device={name} is not available on this machine: leave it at auto"
    ):
        device.pick(name, "auto")


def test_each_process_of_torchrun_has_the_card_of_its_number(
    machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine("cuda", bf16=True)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert device.pick("auto", "auto").device == "cuda:1"


def test_both_formats_are_measured():
    rates = device.measured_rates(64, 32)
    assert rates.keys() == {"bfloat16", "float32"} and min(rates.values()) > 0


def test_running_out_of_memory_is_a_sentence_and_other_faults_stay_themselves() -> None:
    full = RuntimeError(
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."
    )
    for error in (full, torch.OutOfMemoryError("Tried to allocate 2.00 GiB")):
        with pytest.raises(UserError, match="^out of memory.*: lower batch_size"):
            with device.memory_advice("lower batch_size"):
                raise error
    with pytest.raises(RuntimeError, match="shapes"), device.memory_advice("lower batch_size"):
        raise RuntimeError("shapes")


def test_only_matrix_products_are_in_the_chosen_format() -> None:
    a = torch.randn(4, 4)
    with device.autocast(Compute("cpu", torch.bfloat16, "")):
        assert (a @ a).dtype == torch.bfloat16 and a.sum().dtype == torch.float32
    with device.autocast(device.CPU):
        assert (a @ a).dtype == torch.float32


def test_what_compiling_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert device.missing_compiler() == "no C++ compiler was found"
    monkeypatch.setenv("CXX", sys.executable)
    assert device.missing_compiler() in ("", "Python's headers (Python.h) were not found")


@pytest.mark.parametrize(
    ("name", "peak"),
    [("NVIDIA H100 80GB HBM3", 989), ("NVIDIA H100 PCIe", 756), ("NVIDIA A100-SXM4-40GB", 312),
     ("NVIDIA GeForce RTX 4090", 165), ("NVIDIA GeForce GTX 1080", None)],
)  # fmt: skip
def test_a_card_has_the_peak_of_its_data_sheet(
    name: str, peak: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: name)
    found = device.peak_flops(Compute("cuda", torch.bfloat16, ""))
    assert found == (peak and peak * 1e12)
    assert (
        device.peak_flops(Compute("cuda", None, "")) is None
        and device.peak_flops(device.CPU) is None
    )


@CARD
@pytest.mark.gpu
@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_compiled_run_on_cuda_resumes_and_loads_on_a_processor(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--device=cuda", f"--dtype={dtype}", "--pos=alibi + t5"]
    words.append(f"--compile={not device.missing_compiler()}")
    stop_at(monkeypatch, 4)
    assert [run(*words, "--out_dir=run") for _ in range(2)] == [130, 0]
    assert load_run("run", "cpu").compute.dtype_name == dtype


def test_a_busy_cpu_is_noted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(device.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    cuda = Compute("cuda", None, "a card")
    for load, compute, is_noted in ((2.5, device.CPU, 0), (8, cuda, 0), (8, device.CPU, 1)):
        monkeypatch.setattr(device.os, "getloadavg", lambda load=load: (load, 0, 0))
        device.warn_if_busy(compute)
        assert ("8 programs share the 2 cores" in capsys.readouterr().out) == is_noted
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    device.warn_if_busy(device.CPU)
    assert not capsys.readouterr().out
