"""The device and the number format to compute with, and a sentence that gives the reason."""

import contextlib
import ctypes
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

import attention
from configurable import UserError, write_json

# cards, and their dense bf16 (or fp16) peaks in TFLOP/s, from the vendors' data sheets
PEAKS = {"H100 PCIe": 756, "H100|H200": 989, "A100": 312, "L40S": 362, "L4": 121, "A10|V100": 125}
PEAKS |= {"RTX 4090": 165, "RTX 3090": 71, "T4": 65}
# A product of matrices of a model's own shape decides between bfloat16 and float32 on a CPU.
TRIALS = 5  # products in each format, in turn
TRIAL_FLOPS = 2**30  # of one product: with all trials under 0.3 s on two cores
LEAD = 1.1  # bfloat16 must be faster by this, else float32, which rounds less, is taken


@dataclass(frozen=True)
class Compute:
    """A device, a number format and the reason for both. `dtype` None means float32 throughout."""

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

    @property
    def name(self) -> str:
        """The device with the name of its card or processor."""
        if self.kind == "cuda":
            return f"{self.device} {torch.cuda.get_device_name(self.device)}"
        return f"{self.device} {processor_name()}"


CPU = Compute("cpu", None, "cpu, float32")  # for a caller that picks nothing


def pick(device: str, dtype: str, tokens: int = 2048, width: int = 256) -> Compute:
    """The device and the number format for the settings of these names.

    With dtype=auto a CPU that has bfloat16 multiplies in both formats first, at the shape of the
    MLP of a model of that width with so many tokens in a batch. UserError if this machine does not
    have the device.
    """
    # the device
    usual = "cpu"
    if torch.cuda.is_available():
        usual = "cuda"
    elif torch.backends.mps.is_available():
        usual = "mps"
    chosen = device
    why = "as asked for"
    if device == "auto":
        chosen = usual
        why = "no GPU was found" if usual == "cpu" else "a GPU was found"
    if chosen == "cuda" and "LOCAL_RANK" in os.environ:
        chosen = f"cuda:{os.environ['LOCAL_RANK']}"  # torchrun gives each process a card of its own
    if not re.fullmatch(r"cpu|mps|cuda(:\d+)?", chosen):
        raise UserError(f"device={device} is not one of auto, cpu, cuda, cuda:1 ..., mps")
    try:
        torch.empty(1, device=chosen)
    except (RuntimeError, AssertionError, NotImplementedError):
        cards = ""
        if usual == "cuda" and chosen != "cuda":
            cards = f"; cards here: {torch.cuda.device_count()}, so lower --nproc_per_node"
        raise UserError(
            f"device={device} ({chosen}) is not available on this machine; "
            f"use --device={usual} or leave it at auto{cards}"
        ) from None
    if chosen.startswith("cuda:"):
        torch.cuda.set_device(chosen)  # seeds and memory are counted on the current card
    attention.COMPILE_FLEX = chosen.startswith("cuda") and not missing_compiler()

    # the number format
    best = torch.float32
    if dtype != "auto":
        best = getattr(torch, dtype)
        reason = "as asked for"
    elif chosen.startswith("cuda"):
        best = torch.float16
        reason = "the card has no bfloat16"
        if torch.cuda.is_bf16_supported(including_emulation=False):
            best = torch.bfloat16
            reason = "the card has it"
    elif chosen == "mps":
        reason = "mps is untested"
    elif not cpu_has_bfloat16():
        reason = "the processor has nothing faster"
    elif os.environ.get("WORLD_SIZE", "1") != "1":
        reason = "not measured: several processes must take the same"
    else:
        rates = measured_rates(tokens, width)
        if rates["bfloat16"] > LEAD * rates["float32"]:
            best = torch.bfloat16
        reason = "measured: bfloat16 {bfloat16:.0f}, float32 {float32:.0f} GFLOP/s".format(**rates)
    name = str(best).removeprefix("torch.")
    return Compute(
        chosen, None if best == torch.float32 else best, f"{chosen} ({why}), {name} ({reason})"
    )


def cpu_has_bfloat16() -> bool:
    """Whether the processor has instructions for products of bfloat16."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def measured_rates(tokens: int, width: int) -> dict[str, float]:
    """GFLOP/s of (tokens, width) x (width, 4 width) on this CPU, by number format.

    Measured once for each processor, number of threads, version of torch and shape: the result is
    kept in the user's cache folder.
    """
    tokens = max(1, min(tokens, TRIAL_FLOPS // (8 * width * width)))
    threads = torch.get_num_threads()
    key = f"{processor_name()}, {threads} threads, torch {torch.__version__}, {tokens} x {width}"
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    cache = Path(folder, "longshot", "rates.json")
    kept = read_rates(cache)
    if key in kept:
        return kept[key]
    seconds: dict[str, list[float]] = {"bfloat16": [], "float32": []}
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(tokens, width, generator=generator)
    weight = torch.randn(4 * width, width, generator=generator)
    for trial in range(TRIALS + 1):
        for name, times in seconds.items():
            a = x.to(getattr(torch, name))
            b = weight.to(getattr(torch, name))
            started = time.perf_counter()
            torch.nn.functional.linear(a, b)
            if trial > 0:  # the first product prepares the library
                times.append(time.perf_counter() - started)
    flops = 8 * tokens * width * width
    rates = {name: flops / statistics.median(times) / 1e9 for name, times in seconds.items()}
    with contextlib.suppress(OSError, UserError):  # a cache that cannot be written is done without
        cache.parent.mkdir(parents=True, exist_ok=True)
        write_json(cache, kept | {key: rates})
    return rates


def read_rates(cache: Path) -> dict[str, dict[str, float]]:
    """What the cache holds; nothing if it is absent or damaged."""
    try:
        content = json.loads(cache.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def processor_name() -> str:
    """The processor's model, as the system tells it."""
    with contextlib.suppress(OSError):
        named = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
        if named:
            return named[1]
    return platform.processor() or platform.machine()


def autocast(compute: Compute) -> contextlib.AbstractContextManager:
    """A context in which matrix products are in the chosen format and the rest is in float32."""
    return torch.autocast(compute.kind, compute.dtype, enabled=compute.dtype is not None)


def repeat_to_the_bit(compute: Compute) -> None:
    """Make the same command give the same numbers.

    On a GPU torch warns about an operation that has no such way, and compiled code may not choose
    kernels by their speed.
    """
    if compute.kind == "cuda":  # read when the first product is formed
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        os.environ.setdefault("TORCHINDUCTOR_DETERMINISTIC", "1")
    if compute.kind == "cpu":  # the function below does it too, but imports the compiler: 2 s
        torch.set_deterministic_debug_mode("error")
    else:
        torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory is full; on a CPU torch raises a RuntimeError for it."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return "can't allocate memory" in str(error)


@contextlib.contextmanager
def memory_advice(advice: str) -> Iterator[None]:
    """Turn running out of memory into a UserError that gives this advice."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        amount = re.search(r"\d[\d.,]* ?(?:bytes|[KMGTPE]iB)", str(error))
        asked = f" ({amount[0]} were asked for)" if amount else ""
        raise UserError(f"out of memory{asked}: {advice}") from error


def set_up_cpu() -> bool:
    """Let glibc keep freed memory, instead of asking the system for it again in every step, and
    take float32 numbers below 1e-38 for 0, which a CPU computes with slowly.

    The first saves a fifth of a training step (results/throughput/allocator.json), the second a
    third of fox's, whose far weights are that small. Returns whether the C library took the setting
    of memory: only glibc does.
    """
    torch.set_flush_denormal(True)
    try:
        libc = ctypes.CDLL("libc.so.6")
        # M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of glibc's malloc.h
        return bool(libc.mallopt(-3, 2**30) and libc.mallopt(-1, 2**31 - 1))
    except (OSError, AttributeError):
        return False


def missing_compiler() -> str:
    """What torch.compile lacks on this machine; empty if it lacks nothing."""
    usual = "clang++" if sys.platform == "darwin" else "g++"  # torch.compile's choice
    compiler = shutil.which(os.environ.get("CXX", usual))
    if not compiler:
        return "no C++ compiler was found"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "Python's headers (Python.h) were not found"
    command = [compiler, "-x", "c++", "-fsyntax-only", os.devnull]
    try:
        subprocess.run(command, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return f"{compiler} cannot compile an empty file"
    return ""


def peak_flops(compute: Compute) -> float | None:
    """The card's peak in FLOP/s; None if it is not known."""
    if compute.kind != "cuda" or compute.dtype is None:
        return None
    name = torch.cuda.get_device_name(compute.device)
    found = [peak for card, peak in PEAKS.items() if re.search(rf"\b({card})\b", name)]
    return 1e12 * found[0] if found else None


def peak_memory(compute: Compute) -> int | None:
    """The most memory used so far, in bytes: of the card, else of this process.

    None where it cannot be measured (Windows).
    """
    if compute.kind == "cuda":
        return torch.cuda.max_memory_allocated(compute.device)
    try:
        import resource
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024  # bytes
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
