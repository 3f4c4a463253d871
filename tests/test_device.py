"""Where to compute and in which format: what is chosen and said, what is refused; and, with a card, CUDA itself."""

import ctypes
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import attention
import data
import train
from attention import Prepared
from configurable import GPTConfig, TrainSettings, UserError, configure
from model import GPT
from posenc import Shape
from positions.catalogue import scheme_names
from positions.scheme import Plan, Scheme
from runs import device
from runs.checkpoint import load_run, save_checkpoint
from runs.device import Compute
from runs.processes import ALONE, together
from runs.start import start_run

NO_CARD = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA card: torch.cuda.is_available() is False"
)
CUDA = Compute("cuda", torch.bfloat16, "for a test")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretend a machine: machine(cuda=True, bf16=False)."""

    def pretend(
        cuda: bool = False, mps: bool = False, bf16: bool = False, rate: float = 200.0
    ) -> None:
        present = {"cpu", *(["cuda"] if cuda else []), *(["mps"] if mps else [])}

        def empty(*shape: int, device: str) -> None:
            if device.split(":")[0] not in present:
                raise RuntimeError("Expected one of cpu, cuda, ... device type")

        monkeypatch.setattr(torch, "empty", empty)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
        monkeypatch.setattr(torch.cuda, "set_device", lambda card: None)
        monkeypatch.setattr(
            torch.cuda,
            "is_bf16_supported",
            lambda including_emulation=True: bf16 or including_emulation,
        )
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: bf16)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
        monkeypatch.setattr(
            device, "measured_rates", lambda tokens, width: {"bfloat16": 400.0, "float32": rate}
        )

    return pretend


# ---- the choice and its reason


@pytest.mark.parametrize(
    ("here", "device_", "dtype", "chosen"),
    [
        ({}, "auto", "auto", "cpu (no GPU was found), float32 (the device has nothing faster)"),
        (
            {"bf16": True},
            "auto",
            "auto",
            "cpu (no GPU was found), bfloat16 (measured: bfloat16 400, float32 200 GFLOP/s)",
        ),
        (  # within 10 % float32 is taken
            {"bf16": True, "rate": 370.0},
            "auto",
            "auto",
            "cpu (no GPU was found), float32 (measured: bfloat16 400, float32 370 GFLOP/s)",
        ),
        ({"bf16": True}, "auto", "float32", "cpu (no GPU was found), float32 (as asked for)"),
        ({}, "cpu", "bfloat16", "cpu (as asked for), bfloat16 (as asked for)"),
        (
            {"cuda": True, "bf16": True},
            "auto",
            "auto",
            "cuda (a GPU was found), bfloat16 (the card has it)",
        ),
        (
            {"cuda": True},
            "auto",
            "auto",
            "cuda (a GPU was found), float16 (the card has no bfloat16)",
        ),
        (
            {"cuda": True, "bf16": True},
            "cuda:1",
            "float16",
            "cuda:1 (as asked for), float16 (as asked for)",
        ),
        (
            {"cuda": True},
            "cpu",
            "auto",
            "cpu (as asked for), float32 (the device has nothing faster)",
        ),
        (
            {"mps": True},
            "auto",
            "auto",
            "mps (a GPU was found), float32 (the device has nothing faster; mps is untested)",
        ),
    ],
)
def test_the_choice_is_said_with_its_reason(
    here: dict[str, bool], device_: str, dtype: str, chosen: str, machine: Callable[..., None]
) -> None:
    machine(**here)
    compute = device.pick(device_, dtype)
    assert compute.reason == chosen and "\n" not in chosen
    assert chosen.startswith(f"{compute.device} (") and f", {compute.dtype_name} (" in chosen
    assert compute.kind == compute.device.partition(":")[0]
    assert (compute.dtype is None) == (compute.dtype_name == "float32")


def test_the_rates_are_measured_once_and_a_damaged_cache_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    rates = device.measured_rates(64, 32)
    assert min(rates.values()) > 0 and device.measured_rates(64, 32) == rates
    assert device.measured_rates(64, 16) != rates
    cache = tmp_path / "longshot" / "rates.json"
    assert len(json.loads(cache.read_text())) == 2
    cache.write_text("[1,")
    assert device.measured_rates(64, 32) != rates and len(json.loads(cache.read_text())) == 1


@pytest.mark.parametrize("name", ["cuda", "cuda:1", "mps"])
def test_a_device_that_is_not_here_is_a_sentence_with_the_one_that_is(
    name: str, machine: Callable[..., None]
) -> None:
    expected = rf"^device={name} .*is not available on this machine; use --device=cpu "
    if (
        not torch.cuda.is_available() and not torch.backends.mps.is_available()
    ):  # torch itself refuses it
        with pytest.raises(UserError, match=expected):
            device.pick(name, "auto")
    machine()
    with pytest.raises(UserError, match=expected):
        device.pick(name, "auto")


@pytest.mark.parametrize("name", ["xpu", "meta", "cuda:x", "cuda:", "CUDA", "gpu", "", "cpu cpu"])
def test_what_is_no_device_is_a_sentence_with_those_there_are(name: str) -> None:
    with pytest.raises(UserError, match=rf"^device={name} is not one of auto, cpu, cuda, .*mps"):
        device.pick(name, "auto")


def test_a_second_card_that_is_not_here_is_refused_with_the_first(
    machine: Callable[..., None],
) -> None:
    machine(mps=True)
    with pytest.raises(
        UserError, match="device=cuda .*is not available on this machine; use --device=mps"
    ):
        device.pick("cuda", "auto")


@pytest.mark.parametrize(("name", "cards"), [("cuda:1", ["cuda:1"]), ("cuda", []), ("cpu", [])])
def test_the_card_that_is_asked_for_is_the_current_one(
    name: str, cards: list[str], machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else seeds, memory and streams are those of the first card."""
    chosen: list[str] = []
    machine(cuda=True)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    device.pick(name, "auto")
    assert chosen == cards


def test_what_is_to_repeat_on_a_gpu_leaves_no_choice_of_kernels_by_speed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[bool] = []
    for name in ("TORCHINDUCTOR_DETERMINISTIC", "CUBLAS_WORKSPACE_CONFIG"):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    monkeypatch.setattr(
        torch, "use_deterministic_algorithms", lambda mode, warn_only: asked.append(warn_only)
    )
    before = torch.get_deterministic_debug_mode()
    device.repeat_to_the_bit(Compute("cpu", None, ""))
    assert torch.get_deterministic_debug_mode() == 2  # an error
    torch.set_deterministic_debug_mode(before)
    assert "TORCHINDUCTOR_DETERMINISTIC" not in os.environ and asked == []
    device.repeat_to_the_bit(CUDA)
    assert os.environ["TORCHINDUCTOR_DETERMINISTIC"] == "1" and asked == [True]


def test_each_process_of_torchrun_has_the_card_of_its_number(
    machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(cuda=True, bf16=True)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert [device.pick(name, "auto").device for name in ("auto", "cuda", "cuda:1", "cpu")] == [
        "cuda:3",
        "cuda:3",
        "cuda:1",
        "cpu",
    ]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ..."),
            "out of memory (2.00 GiB were asked for): do less",
        ),
        (
            RuntimeError(
                "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8192 bytes."
            ),
            "out of memory (8192 bytes were asked for): do less",
        ),
        (MemoryError(), "out of memory: do less"),
    ],
)
def test_running_out_of_memory_is_a_sentence_with_advice(error: Exception, said: str) -> None:
    with pytest.raises(UserError) as ended, device.memory_advice("do less"):
        raise error
    assert str(ended.value) == said


def test_a_fault_that_is_not_about_memory_stays_itself() -> None:
    with pytest.raises(RuntimeError, match="^shapes differ$"), device.memory_advice("do less"):
        raise RuntimeError("shapes differ")


def test_only_matrix_products_are_in_the_chosen_format() -> None:
    x = torch.ones(4, 4)
    with device.autocast(Compute("cpu", torch.bfloat16, "")):
        assert (x @ x).dtype == torch.bfloat16 and x.exp().dtype == torch.float32
    with device.autocast(Compute("cpu", None, "")):
        assert (x @ x).dtype == torch.float32
    assert (x @ x).dtype == torch.float32


def test_a_system_without_glibc_keeps_its_own_manner_with_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", absent)
    assert device.set_up_cpu() is False
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())  # musl knows no mallopt
    assert device.set_up_cpu() is False


def test_numbers_too_small_for_float32_are_taken_for_0() -> None:
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot do it")
    torch.set_flush_denormal(False)
    small = torch.full((64,), 1e-30)
    assert float((small * 1e-10).max()) > 0
    device.set_up_cpu()
    assert float((small * 1e-10).max()) == 0


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_glibc_takes_the_thresholds() -> None:
    assert device.set_up_cpu() is True


# ---- compilers


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Pretend which programs are found, and whether Python's headers are."""

    def pretend(*programs: str, headers: bool = True) -> None:
        monkeypatch.delenv("CXX", raising=False)
        monkeypatch.setattr(
            shutil, "which", lambda name: f"/bin/{name}" if name in programs else None
        )
        monkeypatch.setattr(subprocess, "run", lambda *_, **how: None)  # which works
        monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
        (tmp_path / "Python.h").touch()
        if not headers:
            (tmp_path / "Python.h").unlink()

    return pretend


def test_a_compiler_with_headers_is_enough(found: Callable[..., None]) -> None:
    found("g++" if sys.platform == "linux" else "clang++" if sys.platform == "darwin" else "cl")
    assert device.missing_compiler() == ""


def test_what_is_missing_for_compiling_is_named(found: Callable[..., None]) -> None:
    found()
    assert device.missing_compiler() == "no C++ compiler was found"
    found("g++", "clang++", "cl", headers=False)
    assert "Python.h" in device.missing_compiler()


def test_the_compiler_that_cxx_names_is_the_one_looked_for(
    found: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    found("my-g++")
    assert device.missing_compiler()
    monkeypatch.setenv("CXX", "my-g++")
    assert device.missing_compiler() == ""


@pytest.mark.skipif(
    sys.platform != "linux", reason="what torch.compile calls by default differs between systems"
)
@pytest.mark.parametrize("other", ["clang++", "cl"])
def test_a_compiler_that_torch_compile_does_not_call_is_none(
    other: str, found: Callable[..., None]
) -> None:
    """torch's inductor calls $CXX, or g++ on Linux, and fails in the first step where that is not there."""
    found(other)
    assert device.missing_compiler() == "no C++ compiler was found"


@pytest.mark.skipif(sys.platform == "win32", reason="only what is called like g++ is tried out")
@pytest.mark.parametrize("content", ["#!/bin/sh\nexit 1\n", "no program"])
def test_a_compiler_that_does_not_work_is_named(
    content: str, found: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, started = tmp_path / "my-g++", subprocess.run
    broken.write_text(content, encoding="utf-8")
    broken.chmod(0o755)
    found("my-g++")
    monkeypatch.setenv("CXX", "my-g++")
    monkeypatch.setattr(shutil, "which", lambda name: str(broken))
    monkeypatch.setattr(subprocess, "run", started)
    assert device.missing_compiler() == f"{broken} cannot compile an empty file"


# ---- several processes


@pytest.mark.parametrize("size", ["abc", "", "1.5", "-2"])
def test_a_world_size_that_is_no_number_is_a_sentence(
    size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", size)
    with (
        pytest.raises(UserError, match=f"WORLD_SIZE='{size}'"),
        together("auto", Compute("cpu", None, "")),
    ):
        pytest.fail("nobody can be joined")


# ---- drawn positions


def test_positions_that_a_step_draws_are_not_read_back_from_a_device() -> None:
    """Meta tensors have no values to read; on a processor a caller's own ids are looked at."""
    pos = "randomized(max=64) + learned(rows=64)"
    shape = {"n_layer": 1, "n_head": 2, "n_embd": 16, "vocab_size": 60}
    model = GPT(GPTConfig(block_size=16, pos=pos, **shape))
    drawn, text = model.draw_ids(0, 0, 16), torch.zeros(1, 16, dtype=torch.int64)
    with pytest.raises(UserError, match="defines 64 positions, not one at 64"):
        model(text, text, ids=torch.arange(49, 65))
    model, text = model.to("meta"), text.to("meta")
    assert model(text, text, ids=drawn.to("meta"))[1].device.type == "meta"


# ---- peak rates


@pytest.mark.parametrize(
    ("card", "peak"),
    [
        ("NVIDIA H200", 989e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA A10", 125e12),
        ("NVIDIA GeForce RTX 4090", 165e12),
        ("Tesla T4", 65e12),
        ("Tesla V100-SXM2-16GB", 125e12),
    ],
)
def test_a_known_card_has_the_peak_of_its_data_sheet(
    card: str, peak: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda which: card)
    assert device.peak_flops(CUDA) == pytest.approx(peak, rel=0.01)


@pytest.mark.parametrize(
    "card",
    [
        "NVIDIA B200",
        "NVIDIA GeForce GTX 1080",
        "NVIDIA L40",
        "NVIDIA A10G",
        "NVIDIA T400 4GB",
        "NVIDIA RTX A1000 Laptop GPU",
    ],
)
def test_an_unknown_card_has_no_peak_rather_than_that_of_another(
    card: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda which: card)
    assert device.peak_flops(CUDA) is None


def test_processors_and_float32_have_no_peak() -> None:
    assert device.peak_flops(Compute("cpu", torch.bfloat16, "")) is None
    assert device.peak_flops(replace(CUDA, dtype=None)) is None


# ---- CUDA itself

H, D, N = 4, 16, 80  # heads, columns of a head, tokens
SCHEMES = [
    "nope",
    "rope",
    "rope(layout=interleaved, fraction=0.5)",
    "alibi",
    "alibi(learned=True)",
    "t5",
    "kerple",
    "rope + logn",
    "rope + window(size=9, sinks=2)",
    "alibi + kerple + window(size=30)",
    "randomized(max=256) + t5",
]


def on(where: str, text: str) -> Scheme:
    """A scheme on a device, its parameters off their start."""
    torch.manual_seed(3)
    scheme = Scheme(text, Shape(H, D, H * D, N // 2), 1).to(where)
    with torch.no_grad():
        for parameter in scheme.parameters():
            parameter += 0.3 * torch.rand(
                parameter.shape, generator=torch.Generator().manual_seed(5)
            ).to(where)
    return scheme


def plan_of(where: str, scheme: Scheme) -> Plan:
    """The scheme's plan of N tokens."""
    index = torch.arange(N, device=where)
    ids = scheme.ids(index, N)
    return scheme.plans(index, ids, ids, N, torch.empty(0, device=where))[0]


def output_and_gradients(
    attend: Callable[..., Tensor], where: str, scheme: Scheme, dtype: torch.dtype
) -> list[Tensor]:
    """The output and the gradients of q, k, v and the scheme's parameters, for fixed q, k, v of that dtype."""
    random, plan = torch.Generator().manual_seed(7), plan_of(where, scheme)
    q, k, v, weight = (
        torch.randn(2, H, N, D, generator=random).to(where, dtype).requires_grad_()
        for _ in range(4)
    )
    turned = (plan.turns[0](q), plan.turns[1](k)) if plan.turns else (q, k)
    out = attend(*turned, v, plan)
    gradients = torch.autograd.grad(
        (out.float() * weight.detach().float()).sum(), [q, k, v, *scheme.parameters()]
    )
    return [out.detach().float(), *(g.float() for g in gradients)]


def through(path: str) -> Callable[..., Tensor]:
    """Attention by one path."""

    def attend(q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> Tensor:
        like, columns = torch.empty(0, device=q.device), torch.arange(N, device=q.device)
        added = (
            attention.added_scores(plan, H, like, slice(None), columns)
            if path in ("dense", "matmul")
            else None
        )
        return attention.attend(q, k, v, Prepared(plan, path, added))

    return attend


@pytest.mark.gpu
@NO_CARD
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 2e-3), (torch.bfloat16, 4e-2)],
    ids=["float32", "bfloat16"],
)
@pytest.mark.parametrize("text", SCHEMES)
def test_every_path_equals_the_reference_on_cuda(
    text: str, dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "BLOCK_ROWS", 32)
    scheme = on("cuda", text)
    expected = output_and_gradients(attention.reference, "cuda", scheme, dtype)
    plan = plan_of("cuda", scheme)
    free = not plan.biases and not plan.masks
    for path in ("dense", "blocked", *(["fused"] if free else [])):
        found = output_and_gradients(through(path), "cuda", scheme, dtype)
        for ours, theirs in zip(found, expected, strict=True):
            assert (ours - theirs).abs().max() <= tolerance * max(1.0, theirs.abs().max().item()), (
                path
            )


@pytest.mark.gpu
@NO_CARD
@pytest.mark.parametrize("text", SCHEMES)
def test_the_reference_on_cuda_is_that_on_a_processor(text: str) -> None:
    here = output_and_gradients(attention.reference, "cpu", on("cpu", text), torch.float32)
    there = output_and_gradients(attention.reference, "cuda", on("cuda", text), torch.float32)
    for a, b in zip(here, there, strict=True):
        torch.testing.assert_close(b.cpu(), a, rtol=1e-3, atol=1e-3)


# what FlexAttention takes, as several pieces together, besides each scheme alone
TOGETHER = [
    "alibi + window(size=20, sinks=1)",
    "alibi(learned=True) + t5 + logn",
    "kerple(kind=power) + fox",
    "rope(p=0.5) + scale_invariant + t5",
    "kerple + sandwich + multiscale + block_causal(size=32)",
    "rope | nope",
    "randomized(max=700) + rope",
    "abacus(max_shift=0) + rope",
]
EACH = {*scheme_names()} - {"window", "randomized", "abacus"}  # these three are above


def loss_and_gradients(
    model: GPT, run: Callable[..., tuple], text: Tensor, ids: Tensor | None
) -> list[Tensor]:
    """The mean loss of a text and the gradients of all parameters, on a processor."""
    loss = run(text[:, :-1], text[:, 1:], ids=ids, loss_only=True)[1]
    used = [p for p in model.parameters() if p.requires_grad]
    found = torch.autograd.grad(loss, used, allow_unused=True)
    return [loss.detach().cpu(), *(g.cpu() for g in found if g is not None)]


@pytest.mark.gpu
@NO_CARD
@pytest.mark.parametrize("pos", [*sorted(EACH), *TOGETHER])
def test_a_compiled_step_a_long_test_and_decoding_on_cuda_are_those_on_a_processor(
    pos: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "ASKED", {"path": "auto", "compiler": False})
    for name in ("DENSE_BYTES", "CARD_BYTES"):  # the long test goes by blocks
        monkeypatch.setattr(attention, name, 4 * 4 * 256**2)
    torch._dynamo.reset()
    torch.manual_seed(11)
    config = GPTConfig(
        block_size=160, vocab_size=60, n_layer=1 + pos.count("|"), n_head=4, n_embd=64, pos=pos
    )
    model = GPT(config)
    with torch.no_grad():
        for p in model.parameters():  # off their start, where some gradients are zero
            p += 0.02 * torch.randn(p.shape)
    text = torch.randint(60, (2, 641))
    ids = model.draw_ids(0, 0, 160)
    longest = 641 if model.limit is None else min(641, model.limit + 1)

    def long_test(where: str) -> Tensor:
        with torch.no_grad():
            return model.losses(
                text[:, : longest - 1].to(where), text[:, 1:longest].to(where)
            ).cpu()

    def decoded(where: str) -> Tensor:
        return model.generate(text[:, :32].to(where), 16, temperature=0).cpu()

    expected = loss_and_gradients(model, model, text[:, :161], ids)
    model.eval()
    expected += [long_test("cpu"), decoded("cpu")]
    model.to("cuda").train()
    moved = text[:, :161].to("cuda"), None if ids is None else ids.to("cuda")
    found = loss_and_gradients(model, torch.compile(model, fullgraph=True), *moved)
    model.eval()
    monkeypatch.setattr(attention, "ASKED", {"path": "auto", "compiler": True})
    found += [long_test("cuda"), decoded("cuda")]
    assert torch.equal(found.pop(), expected.pop())
    for ours, theirs in zip(found, expected, strict=True):
        assert theirs.isfinite().all()
        assert (ours - theirs).norm() <= 2e-3 * theirs.norm() + 1e-6


@pytest.fixture
def on_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., train.Training]:
    """A tiny training on the card, on a small corpus."""
    text, load = (
        np.frombuffer(b"to be, or not to be: that is the question\n" * 200, dtype=np.uint8),
        data.load,
    )
    data.write_corpus(
        tmp_path / "corpora/tiny",
        {"train": [text], "val": [text]},
        tokenizer="bytes",
        source="here",
        rule="all",
    )
    monkeypatch.setattr(data, "load", lambda name: load(name, tmp_path / "corpora"))
    words = [
        "--dataset=tiny",
        "--n_layer=2",
        "--n_head=2",
        "--n_embd=64",
        "--block_size=64",
        "--batch_size=8",
        "--max_iters=40",
        "--warmup_iters=5",
        "--learning_rate=3e-3",
        "--eval_interval=20",
        "--eval_iters=2",
        "--log_interval=10",
        "--eval_lengths=32,128",
        "--device=cuda",
        f"--out_dir={tmp_path / 'run'}",
    ]

    def begin(*more: str) -> train.Training:
        settings = configure(TrainSettings, [*words, *more], "")[0]
        return train.Training(start_run(settings, device.pick("cuda", settings.dtype), ALONE))

    return begin


@pytest.mark.gpu
@NO_CARD
@pytest.mark.skipif(
    bool(device.missing_compiler()), reason=f"torch.compile cannot run: {device.missing_compiler()}"
)
@pytest.mark.parametrize("pos", ["rope", "alibi", "t5"])
def test_a_tiny_model_learns_on_cuda_compiled_in_bfloat16(
    pos: str, on_card: Callable[..., train.Training]
) -> None:
    training = on_card(f"--pos={pos}", "--dtype=bfloat16")
    assert "the card has it" in training.compute.reason or "as asked for" in training.compute.reason
    training.compile()
    assert training.mean_loss._compiled_call_impl is not None
    losses = [float(training.take_step()[0]) for _ in range(40)]
    assert all(map(math.isfinite, losses)) and sum(losses[-5:]) / 5 < losses[0] - 1
    assert all(p.is_cuda and p.dtype == torch.float32 for p in training.model.parameters())
    assert losses[0] == pytest.approx(math.log(256), abs=0.2)


@pytest.mark.gpu
@NO_CARD
@pytest.mark.skipif(
    bool(device.missing_compiler()), reason=f"torch.compile cannot run: {device.missing_compiler()}"
)
@pytest.mark.parametrize("pos", ["rope", "alibi", "fire"])
def test_cuda_graphs_train_like_the_launches_that_they_replace(
    pos: str, on_card: Callable[..., train.Training]
) -> None:
    found = []
    for graphs in (False, True):
        words = ("--dtype=float32", "--gradient_accumulation_steps=3", f"--out_dir=graphs-{graphs}")
        training = on_card(f"--pos={pos}", *words, f"--cuda_graphs={graphs}")
        training.compile()
        found.append([[float(x) for x in training.take_step()] for _ in range(12)])
    assert np.allclose(*found, rtol=2e-3, atol=1e-4)


@pytest.mark.gpu
@NO_CARD
def test_a_run_on_cuda_resumes_is_tested_long_and_its_checkpoint_loads_on_a_processor(
    on_card: Callable[..., train.Training], monkeypatch: pytest.MonkeyPatch
) -> None:
    training = on_card("--compile=False", "--dropout=0.1")
    for _ in range(20):
        training.take_step()
    save_checkpoint(training.folder, training.state())
    onwards = [float(training.take_step()[0]) for _ in range(5)]
    again = on_card("--compile=False", "--dropout=0.1")
    assert again.step == 20
    assert [float(again.take_step()[0]) for _ in range(5)] == pytest.approx(onwards, abs=1e-3)
    rows = train.test_long(again)["rows"]
    assert {row["length"] for row in rows} == {32, 64, 128} and all(
        row["nats"] is not None for row in rows
    )
    loaded = load_run(again.folder).model
    assert next(loaded.parameters()).device.type == "cpu"


@pytest.mark.gpu
@NO_CARD
def test_the_card_is_chosen_by_itself() -> None:
    compute = device.pick("auto", "auto")
    assert compute.kind == "cuda" and compute.dtype in (torch.bfloat16, torch.float16)
    with pytest.raises(UserError, match="use --device=cuda"):
        device.pick(f"cuda:{torch.cuda.device_count()}", "auto")
