"""Where to compute and in which number format: one choice, said in one line with its reason; and in how many processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from configurable import UserError

# dense bf16 (or fp16) peak of one card in FLOP/s, from the vendors' data sheets; a card that is not here has MFU "n/a"
PEAK_FLOPS = {
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10": 125e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
    "V100": 125e12,
    "T4": 65e12,
}


@dataclass(frozen=True)
class Compute:
    """A device, a number format and why; `dtype` None means float32 throughout."""

    device: str
    dtype: torch.dtype | None
    reason: str

    @property
    def kind(self) -> str:
        """The device without its number: "cpu", "cuda" or "mps"."""
        return self.device.split(":")[0]

    @property
    def dtype_name(self) -> str:
        """The number format as the settings spell it."""
        return str(self.dtype or torch.float32).removeprefix("torch.")


def pick(device: str, dtype: str) -> Compute:
    """The device and format for the settings of those names; UserError for a device that is not here."""
    found = (
        "cuda"
        if torch.cuda.is_available()
        else "mps"
        if torch.backends.mps.is_available()
        else "cpu"
    )
    chosen = found if device == "auto" else device
    if chosen == "cuda":  # torchrun tells each process which card of its machine is its own
        chosen = f"cuda:{os.environ['LOCAL_RANK']}" if "LOCAL_RANK" in os.environ else chosen
    if not re.fullmatch(r"cpu|mps|cuda(:\d+)?", chosen):
        raise UserError(f"device={device} is not one of auto, cpu, cuda, cuda:1 ..., mps")
    try:
        torch.empty(1, device=chosen)
    except (RuntimeError, AssertionError, NotImplementedError):
        few = (
            f"; cards here: {torch.cuda.device_count()}, so lower --nproc_per_node"
            if found == "cuda" != chosen
            else ""
        )
        raise UserError(
            f"device={device}{f' ({chosen})' if chosen != device else ''} is not available on this machine; "
            f"use --device={found} or leave it at auto{few}"
        ) from None
    kind = chosen.split(":")[0]
    best, why = _best_dtype(kind)
    chosen_dtype, why = (best, why) if dtype == "auto" else (getattr(torch, dtype), "as asked for")
    whose = (
        "as asked for"
        if device != "auto"
        else "a GPU was found"
        if found != "cpu"
        else "no GPU was found"
    )
    if kind == "mps":
        why += "; mps is untested"
    return Compute(
        chosen,
        None if chosen_dtype == torch.float32 else chosen_dtype,
        f"{chosen} ({whose}), {str(chosen_dtype).removeprefix('torch.')} ({why})",
    )


def _best_dtype(kind: str) -> tuple[torch.dtype, str]:
    if kind == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.bfloat16, "the card has it"
    if kind == "cuda":
        return torch.float16, "the card has no bfloat16"
    if kind == "cpu" and any(
        getattr(torch.cpu, f"_is_{name}_supported", bool)() for name in ("avx512_bf16", "amx_tile")
    ):
        return torch.bfloat16, "the processor multiplies in it"
    return torch.float32, "the device has nothing faster"


def autocast(compute: Compute) -> contextlib.AbstractContextManager:
    """Matrix products in the chosen format, the rest in float32."""
    return (
        torch.autocast(compute.kind, compute.dtype) if compute.dtype else contextlib.nullcontext()
    )


def repeat_to_the_bit(compute: Compute) -> None:
    """Let the same command give the same numbers: always on a CPU; on a GPU torch warns where it has no way of doing so."""
    if compute.kind == "cuda":
        os.environ.setdefault(
            "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
        )  # read when the first product is formed
    torch.use_deterministic_algorithms(True, warn_only=compute.kind != "cpu")
    torch.utils.deterministic.fill_uninitialized_memory = False


@contextlib.contextmanager
def memory_advice(advice: str) -> Iterator[None]:
    """Running out of memory becomes a UserError that gives this advice."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        known = isinstance(
            error, (MemoryError, torch.OutOfMemoryError)
        ) or "can't allocate memory" in str(error)
        if not known:
            raise
        amount = re.search(r"\d[\d.,]* ?(?:bytes|[KMGTPE]iB)", str(error))
        raise UserError(
            f"out of memory{f' ({amount[0]} were asked for)' if amount else ''}: {advice}"
        ) from error


def keep_freed_memory() -> bool:
    """Have glibc keep what is freed instead of giving it back to the system, to be asked for and cleared again in every step.

    On a CPU that takes a fifth of a training step (results/throughput/allocator.json). False where the C library is another one.
    """
    mmap_threshold, trim_threshold = -3, -1  # glibc's malloc.h
    try:
        libc = ctypes.CDLL("libc.so.6")
        return bool(libc.mallopt(mmap_threshold, 2**30) and libc.mallopt(trim_threshold, 2**31 - 1))
    except (OSError, AttributeError):
        return False


def missing_compiler() -> str:
    """What torch.compile lacks on this machine, empty where it lacks nothing."""
    usual = {"darwin": "clang++", "win32": "cl"}.get(
        sys.platform, "g++"
    )  # the one that torch.compile calls
    compiler = shutil.which(os.environ.get("CXX", usual))
    if not compiler:
        return "no C++ compiler was found"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "Python's headers (Python.h) were not found"
    if sys.platform != "win32":  # cl has other switches
        try:
            subprocess.run(
                [compiler, "-x", "c++", "-fsyntax-only", os.devnull],
                capture_output=True,
                check=True,
            )
        except (OSError, subprocess.CalledProcessError):
            return f"{compiler} cannot compile an empty file"
    return ""


def peak_flops(compute: Compute) -> float | None:
    """The card's peak in FLOP/s, None where it is not known."""
    if compute.kind != "cuda" or compute.dtype is None:
        return None
    name = torch.cuda.get_device_name(compute.device)
    return next(
        (flops for card, flops in PEAK_FLOPS.items() if re.search(rf"\b{card}\b", name)), None
    )
