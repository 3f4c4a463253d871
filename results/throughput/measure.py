"""The numbers of results/speed.md: measured here, and kept in JSON files beside this one.

    git clone https://github.com/karpathy/nanoGPT
    python results/throughput/measure.py nanoGPT train    # the baby GPT, theirs twice and ours
    python results/throughput/measure.py nanoGPT decode   # 512 tokens after 512
    python results/throughput/measure.py nanoGPT job      # the main job, at an old commit and now
    python results/throughput/measure.py - memory           # a text of 65,536 bytes, every scheme
    python results/throughput/measure.py                    # writes the page again

The sides take turns. bench.py measures the schemes; its file is in bench/. job-float32.json is the
job.json of a processor without bfloat16, renamed, with ROUNDS = 1.
"""

import hashlib
import importlib.util
import json
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

import bench  # noqa: E402
import data  # noqa: E402
from model import GPT, GPTConfig  # noqa: E402
from positions.catalogue import scheme_names  # noqa: E402
from runs import device  # noqa: E402
from runs.files import write_json, write_text  # noqa: E402
from runs.folder import provenance  # noqa: E402

OLD = "868a8f2"  # the commit that `job` is compared with
FEWER = 900  # steps of the main job, of 1,200: chosen before any was measured
STEPS, ROUNDS, TOKENS = 25, 2, 16 * 256
SHAPE = {"n_layer": 6, "n_head": 6, "n_embd": 384}
SIZE = [f"--{name}={value}" for name, value in SHAPE.items()]
SIZE += ["--block_size=256", "--batch_size=16", "--dropout=0.0", f"--max_iters={STEPS}"]
SIZE += ["--log_interval=1", "--eval_iters=1", "--eval_interval=1000"]
LONG = 2**16
WITH_OPTIONS = {
    "window": "rope + window(size=128)",
    "randomized": f"rope + randomized(max={2 * LONG})",
    "block_causal": "rope + block_causal(size=128)",
}
SCHEMES = ["rope", "nope", "alibi", "t5", "kerple", "fire", "fox"]  # that are decoded with


def said_by(*words: str, cwd: Path = ROOT) -> str:
    """What a Python program prints."""
    run = subprocess.run([sys.executable, *words], cwd=cwd, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
    return run.stdout


def in_turn(sides: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    """What each side measures, ROUNDS times, one after the other."""
    found = {name: [] for name in sides}
    for _ in range(ROUNDS):
        for name, side in sides.items():
            found[name].append(side())
            print(f"{name}: {found[name][-1]:.2f}", flush=True)
    return found


# ---- the baby GPT


def theirs(nanogpt: Path) -> float:
    """nanoGPT's tokens/s after step 10, from the milliseconds it prints for each step."""
    with tempfile.TemporaryDirectory() as out:
        words = ["--device=cpu", "--dataset=stdlib_bytes", f"--lr_decay_iters={STEPS}", *SIZE]
        program = ["train.py", "config/train_shakespeare_char.py", f"--out_dir={out}", *words]
        text = said_by(*program, cwd=nanogpt)
    times = [float(ms) for ms in re.findall(r"^iter \d+: .* time ([\d.]+)ms", text, re.MULTILINE)]
    return TOKENS / (median(times[10:]) / 1000)


def ours() -> float:
    """Our tokens/s after step 10, from metrics.jsonl."""
    with tempfile.TemporaryDirectory() as out:
        words = ["--pos=learned", "--warmup_iters=10", "--eval_lengths=256", *SIZE]
        said_by("train.py", f"--out_dir={out}/run", *words)
        lines = Path(out, "run/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return median(json.loads(line)["tokens_per_s"] for line in lines[10:])


def train(nanogpt: Path) -> dict:
    """Train nanoGPT as it is, nanoGPT in bfloat16 (it has that on GPUs only), and ours."""
    corpus, here = data.load("stdlib"), Path(tempfile.mkdtemp())
    plain, half = here / "plain", here / "half"
    for folder in (plain, half):
        shutil.copytree(nanogpt, folder, ignore=shutil.ignore_patterns(".git"))
        given = folder / "data/stdlib_bytes"
        given.mkdir()
        for split in ("train", "val"):
            shutil.copyfile(corpus.folder / f"{split}.bin", given / f"{split}.bin")
        meta = {"vocab_size": 256, "stoi": {}, "itos": {}}
        (given / "meta.pkl").write_bytes(pickle.dumps(meta))
    program, ctx = half / "train.py", "ctx = nullcontext() if device_type == 'cpu' else "
    text = program.read_text(encoding="utf-8")
    assert ctx in text
    cast = "ctx = torch.amp.autocast('cpu', torch.bfloat16) if device_type == 'cpu' else "
    program.write_text(text.replace(ctx, cast), encoding="utf-8")
    sides = {"nanoGPT": lambda: theirs(plain), "nanoGPT in bf16": lambda: theirs(half)}
    found = in_turn(sides | {"longshot": ours})
    shutil.rmtree(here)
    return {"unit": "tokens/s", "found": found}


# ---- decoding


def decode(nanogpt: Path) -> dict:
    """Seconds for 512 tokens after 512, models of one shape with block_size 1,024, not compiled."""
    spec = importlib.util.spec_from_file_location("nanogpt", nanogpt / "model.py")
    sys.modules["nanogpt"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    shape = {**SHAPE, "block_size": 1024, "vocab_size": 256}
    models = {"nanoGPT": module.GPT(module.GPTConfig(**shape, dropout=0.0, bias=False))}
    models |= {pos: GPT(GPTConfig(**shape, pos=pos)) for pos in SCHEMES}
    text = torch.randint(256, (1, 512), generator=torch.Generator().manual_seed(1))
    device.set_up_cpu()
    for model in models.values():
        model.eval().generate(text, 2)  # what is done once is not timed

    def timed(model: torch.nn.Module, dtype: str) -> Callable[[], float]:
        def seconds() -> float:
            started = time.perf_counter()
            with torch.no_grad(), device.autocast(device.pick("cpu", dtype)):
                model.generate(text, 512)
            return time.perf_counter() - started

        return seconds

    kinds = ("float32", "bfloat16")  # nanoGPT's on a CPU is float32
    sides = {f"{n}, {d}": timed(model, d) for d in kinds for n, model in models.items()}
    return {"unit": "s", "found": in_turn(sides)}


# ---- make train


def job(folder: Path, *words: str) -> tuple[float, dict]:
    """Seconds of `train.py config/alibi.py` in a folder, and its losses by test length."""
    with tempfile.TemporaryDirectory() as out:
        started = time.perf_counter()
        said_by("train.py", "config/alibi.py", f"--out_dir={out}/run", *words, cwd=folder)
        seconds = time.perf_counter() - started
        found = json.loads(Path(out, "run/extrapolation.json").read_text(encoding="utf-8"))
    return seconds, {
        row["length"]: row["nats"] for row in found["rows"] if row["protocol"] == "fixed_targets"
    }


def jobs(nanogpt: Path) -> dict:
    """The main job at the commit OLD, today, and today with FEWER steps, to the loss of OLD."""
    here, losses = Path(tempfile.mkdtemp()) / "old", {}
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--detach", str(here), OLD], check=True, capture_output=True)
    (here / "data/stdlib").mkdir(exist_ok=True)
    for path in data.load("stdlib").folder.iterdir():
        if path.name != "prepare.py":
            shutil.copyfile(path, here / "data/stdlib" / path.name)

    def side(name: str, folder: Path, *words: str) -> Callable[[], float]:
        def seconds() -> float:
            taken, losses[name] = job(folder, *words)
            return taken

        return seconds

    sides = {OLD: side(OLD, here), "today": side("today", ROOT)}
    sides[f"today, {FEWER} steps"] = side(f"today, {FEWER} steps", ROOT, f"--max_iters={FEWER}")
    try:
        found = in_turn(sides)
    finally:
        subprocess.run([*git, "remove", "--force", str(here)], check=True)
    return {"unit": "s", "found": found, "losses": losses}


# ---- the memory of a long test


def memory(nanogpt: Path) -> dict:
    """GiB that a test of 65,536 bytes takes besides the weights: one layer of config/size/small.py.

    A layer gives back what it took before the next one begins.
    """
    device.set_up_cpu()
    shape = {"n_layer": 1, "n_head": 4, "n_embd": 128, "block_size": LONG, "vocab_size": 256}
    text = torch.randint(256, (1, LONG + 1), generator=torch.Generator().manual_seed(1))
    found, compute = {}, device.pick("cpu", "auto")
    sources = hashlib.sha256(str(provenance()["sources_sha256"]).encode()).hexdigest()
    kept = Path(tempfile.gettempdir(), f"longshot-memory-{sources[:16]}.json")
    if kept.exists():  # of a measurement of this code that was interrupted
        found = json.loads(kept.read_text(encoding="utf-8"))
    for pos in [WITH_OPTIONS.get(name, name) for name in scheme_names()]:
        if pos in found:
            continue
        model = GPT(GPTConfig(**shape, pos=pos)).eval()

        def test(model: GPT = model) -> None:
            with torch.no_grad(), device.autocast(compute):
                model.losses(text[:, :-1], text[:, 1:])

        started = time.perf_counter()
        found[pos] = [bench.memory(test, compute) / 2**30]
        took = time.perf_counter() - started
        print(f"{pos}: {found[pos][0]:.2f} GiB, {took:.0f} s", flush=True)
        write_json(kept, found)
    return {"unit": "GiB", "found": found}


# ---- the page

PARTS = {"train": train, "decode": decode, "job": jobs, "memory": memory}
TITLES = {
    "train": "Training the baby GPT (6 layers, 384 wide, T = 256, batch 16), tokens/s, in turn",
    "decode": "512 tokens after 512, the same shape, seconds, in turn (nanoGPT keeps no keys)",
    "job": "`train.py config/alibi.py`, training and long tests, seconds, in turn",
    "memory": "A test of 65,536 bytes, one layer of config/size/small.py, GiB besides the weights",
}


RATIOS = {"train": "times as fast", "decode": "times as fast", "job": "of its time"}


def section(part: str, path: Path) -> str:
    """A table of the means of a part, and the ratios to nanoGPT or to the old commit."""
    kept = json.loads(path.read_text(encoding="utf-8"))
    rows = [f"## {TITLES[part]}: `{path.name}`", "", f"| | mean | {RATIOS.get(part, '')} | all |"]
    rows += ["|---|---|---|---|"]
    first = next(iter(kept["found"]))
    for name, values in kept["found"].items():
        first = name if name.startswith("nanoGPT, ") else first
        ratio = mean(values) / mean(kept["found"][first])
        ratio = 1 / ratio if part == "decode" else ratio  # of seconds, to a speed
        middle, *each = (f"{v:,.0f}" if v >= 100 else f"{v:.2f}" for v in (mean(values), *values))
        shown = f"{ratio:.2f}" if part in RATIOS else ""
        rows.append(f"| {name} | {middle} | {shown} | {', '.join(each)} |")
    for name, losses in kept.get("losses", {}).items():
        rows += ["", f"Nats of {name}: " + ", ".join(f"{n}: {v:.4f}" for n, v in losses.items())]
    return "\n".join([*rows, "", measured_with(kept)])


def measured_with(kept: dict) -> str:
    """What a file says of the machine."""
    place = kept.get("processor", "the same machine")  # bench.py does not keep it
    about = f"torch {kept['versions']['torch']}, {kept['threads']} threads, {place}"
    return f"{about}, commit {kept['git_commit']}"


def write_page() -> None:
    """Write results/speed.md from the files that are there."""
    parts = ["# Speed on a CPU", "Made by results/throughput/measure.py."]
    for part in PARTS:
        parts += [section(part, path) for path in sorted(HERE.glob(f"{part}*.json"), reverse=True)]
    for schemes in sorted(HERE.glob("bench*/table.txt")):  # those of other processors apart
        parts += [f"## Schemes, in turn with nope (`bench.py`): `{schemes.parent.name}/`"]
        parts += [f"```\n{schemes.read_text(encoding='utf-8')}```"]
        parts += [measured_with(json.loads(schemes.with_name("bench.json").read_text("utf-8")))]
    write_text(ROOT / "results/speed.md", "\n\n".join(parts) + "\n")


def processor() -> str:
    """The name of the processor, as Linux tells it."""
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    return found[1] if found else "unknown processor"


def commit_of(folder: str) -> str:
    """The commit of a checkout; empty for what is none."""
    git = ["git", "-C", folder, "rev-parse", "HEAD"]
    return subprocess.run(git, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    for name in sys.argv[2:]:
        measured = PARTS[name](Path(sys.argv[1]).resolve())
        about = {**provenance(), "processor": processor(), "nanogpt": commit_of(sys.argv[1])}
        write_json(HERE / f"{name}.json", measured | about)
    write_page()
