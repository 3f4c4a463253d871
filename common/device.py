"""The device and the dtype to compute with, and a sentence that gives the reason."""

import contextlib
import ctypes
import os
import platform
import re
import resource
import shutil
import sys
import sysconfig
import timeit
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import linear

from common.errors import UserError

# GPUs, and their dense bf16 peaks in TFLOP/s, from the vendor's data sheets
PEAKS = {"H100 PCIe": 756, "H100": 989, "H200": 989, "A100": 312, "RTX 4090": 165}
LEAD = 1.1  # bfloat16 is chosen only if it is this much faster, since float32 rounds less


@dataclass(frozen=True)
class Compute:
    """A device, a dtype and the reason for the choice. `dtype` None means float32 throughout."""

    device: str
    dtype: torch.dtype | None
    reason: str
    compile_flex: bool = False  # whether eager code may compile FlexAttention

    def place(self, model: nn.Module) -> nn.Module:
        """Move a GPT to the device, with the options of attention that hold there."""
        model.options = replace(model.options, compile_flex=self.compile_flex)
        return model.to(self.device)

    @property
    def kind(self) -> str:
        """The device without its number: "cpu", "cuda" or "mps"."""
        return self.device.split(":")[0]

    @property
    def dtype_name(self) -> str:
        """The dtype as the settings spell it."""
        return str(self.dtype or torch.float32).removeprefix("torch.")

    @property
    def name(self) -> str:
        """The device with the name of the GPU or processor."""
        model = torch.cuda.get_device_name() if self.kind == "cuda" else processor_name()
        return f"{self.device} {model}"


CPU = Compute("cpu", None, "cpu, float32")  # the default of functions that take a Compute


def pick(device: str, dtype: str, tokens: int = 2048, width: int = 128) -> Compute:
    """Choose the device and the dtype for the settings of these names.

    With dtype=auto on a CPU that has bfloat16, both formats are timed first, on a matrix product
    like those in the MLP of a model of this width, with this many tokens in a batch. UserError if
    this machine does not have the device.
    """
    # the device
    if device == "auto":  # mps is untested: only if asked for
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and "LOCAL_RANK" in os.environ:
        device = f"cuda:{os.environ['LOCAL_RANK']}"  # torchrun gives each process its own GPU
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError):
        raise UserError(
            f"device={device} is not available on this machine: leave it at auto"
        ) from None
    if device.startswith("cuda:"):
        torch.cuda.set_device(device)  # for seeds and memory statistics
    torch.backends.cudnn.allow_tf32 = False  # float32 convolutions are as exact as products
    compile_flex = device.startswith("cuda") and not missing_compiler()
    # flex is compiled anew for each length, window and kind of layer; past this limit (8 by
    # default) it would run eager, with only a warning
    if compile_flex:
        torch._dynamo.config.recompile_limit = 64

    # the dtype
    best = torch.float32
    if dtype != "auto":
        best = getattr(torch, dtype)
        reason = "as set or trained"
    elif device.startswith("cuda"):
        best = torch.float16
        reason = "the GPU has no bfloat16"
        if torch.cuda.is_bf16_supported(including_emulation=False):
            best = torch.bfloat16
            reason = "the GPU has it"
    elif not cpu_has_bfloat16():
        reason = "it has nothing faster"
    elif os.environ.get("WORLD_SIZE", "1") != "1":
        reason = "not measured: several processes must take the same"
    else:
        rates = measured_rates(min(tokens, 4096), width)
        if rates["bfloat16"] > LEAD * rates["float32"]:
            best = torch.bfloat16
        reason = "measured: bfloat16 {bfloat16:.0f}, float32 {float32:.0f} GFLOP/s".format(**rates)
    name = str(best).removeprefix("torch.")
    reason = f"{device}, {name} ({reason})"
    return Compute(device, None if best == torch.float32 else best, reason, compile_flex)


def cpu_has_bfloat16() -> bool:
    """Whether the processor has instructions for matrix products in bfloat16."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def measured_rates(tokens: int, width: int) -> dict[str, float]:
    """GFLOP/s of (tokens, width) x (width, 4 width) on this CPU, {dtype: rate}.

    The two formats are timed in turn, ten times, because other programs may slow one of them; twice
    if the choice is clear.
    """
    rates = {"bfloat16": 0.0, "float32": 0.0}
    for turn in range(10):
        for name in rates:
            x = torch.ones(tokens, width, dtype=getattr(torch, name))
            weight = torch.ones(4 * width, width, dtype=x.dtype)
            seconds = min(timeit.repeat(partial(linear, x, weight), number=1, repeat=3))
            rates[name] = max(rates[name], 2 * x.numel() * len(weight) / seconds / 1e9)
        lead = rates["bfloat16"] / rates["float32"] / LEAD
        if turn > 0 and not 0.5 < lead < 2:
            break
    return rates


def processor_name() -> str:
    """The processor's model, as reported by the system."""
    with contextlib.suppress(OSError):  # not on Linux
        model = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
        if model:
            return model[1]
    return platform.processor() or platform.machine()


def autocast(compute: Compute) -> contextlib.AbstractContextManager:
    """A context in which matrix products are in the chosen dtype and the rest is in float32."""
    return torch.autocast(compute.kind, compute.dtype, enabled=compute.dtype is not None)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory is full; on a CPU torch raises a plain RuntimeError."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


@contextlib.contextmanager
def memory_advice(advice: str) -> Iterator[None]:
    """Turn running out of memory into a UserError that gives this advice."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(f"out of memory: {advice}") from error


def set_up_cpu() -> None:
    """Make glibc keep freed memory, rather than ask the system for it again in every step, and
    flush float32 numbers below 1e-38 to 0, because a CPU computes with them slowly.

    The first saves a fifth of a training step (results/throughput/allocator.json), the second a
    third of one with fox, whose far weights are that small.
    """
    torch.set_flush_denormal(True)
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        libc = ctypes.CDLL("libc.so.6")
        # M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of glibc's malloc.h
        libc.mallopt(-3, 2**30)
        libc.mallopt(-1, 2**31 - 1)


def warn_if_busy(compute: Compute) -> None:
    """Print a note if other programs keep the CPU busy."""
    # running programs, mean of the last minute; all threads wait for one that is interrupted
    load = os.getloadavg()[0]
    cores = os.cpu_count()
    if compute.kind == "cpu" and torch.get_num_threads() > 1 and load > 1.5 * cores:
        print(
            f"note: {load:.0f} programs share the {cores} cores; threads that wait for each other "
            "can be far slower than one alone: set OMP_NUM_THREADS=1 (or OMP_WAIT_POLICY=passive)"
        )


def missing_compiler() -> str:
    """What torch.compile lacks on this machine; empty if it lacks nothing."""
    if not shutil.which(os.environ.get("CXX", "g++")):
        return "no C++ compiler was found"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "Python's headers (Python.h) were not found"
    return ""


def peak_flops(compute: Compute) -> float | None:
    """The GPU's peak in FLOP/s; None if it is not known."""
    if compute.kind == "cuda" and compute.dtype is not None:
        for gpu, peak in PEAKS.items():
            if gpu in compute.name:
                return 1e12 * peak
    return None


def peak_memory(compute: Compute) -> int:
    """The most memory used so far, in bytes: on the GPU, or else by this process."""
    if compute.kind == "cuda":
        return torch.cuda.max_memory_allocated(compute.device)
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux's ru_maxrss is no less than that of the process which started this one
    peak = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))
    if peak:
        return 1024 * int(peak[1])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # as in gVisor
