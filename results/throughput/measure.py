"""Training speed of the baby GPT, compared with nanoGPT's own model and loop on one machine.

    git clone https://github.com/karpathy/nanoGPT
    python results/throughput/measure.py nanoGPT

They take turns. Both train 6 layers, 6 heads, 384 wide, T = 256, batch 16, vocabulary 256, learned
positions, on the same bytes, compiled. Each reads its speed after step 10 from its own log. The
numbers are written to results/throughput/baby-gpt.json.
"""

import json
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

import data  # noqa: E402
from runs.files import write_json  # noqa: E402
from runs.folder import provenance  # noqa: E402

STEPS, ROUNDS, TOKENS = 25, 2, 16 * 256
SIZE = [
    "--n_layer=6",
    "--n_head=6",
    "--n_embd=384",
    "--block_size=256",
    "--batch_size=16",
    "--dropout=0.0",
    f"--max_iters={STEPS}",
    "--log_interval=1",
    "--eval_iters=1",
    "--eval_interval=1000",
]


def give_corpus(nanogpt: Path) -> None:
    """Put the stdlib corpus where nanoGPT looks for one."""
    corpus, folder = data.load("stdlib"), nanogpt / "data" / "stdlib_bytes"
    folder.mkdir(exist_ok=True)
    for split in ("train", "val"):
        shutil.copyfile(corpus.folder / f"{split}.bin", folder / f"{split}.bin")
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 256, "stoi": {}, "itos": {}}))


def theirs(nanogpt: Path) -> float:
    """nanoGPT's tokens/s, from the milliseconds it prints for each step."""
    with tempfile.TemporaryDirectory() as out:
        command = [
            sys.executable,
            "train.py",
            "config/train_shakespeare_char.py",
            "--device=cpu",
            "--dataset=stdlib_bytes",
            f"--out_dir={out}",
            f"--lr_decay_iters={STEPS}",
            *SIZE,
        ]
        text = subprocess.run(
            command, cwd=nanogpt, capture_output=True, text=True, check=True
        ).stdout
    times = [float(ms) for ms in re.findall(r"^iter \d+: .* time ([\d.]+)ms", text, re.MULTILINE)]
    return TOKENS / (median(times[10:]) / 1000)


def ours() -> float:
    """Our tokens/s, from metrics.jsonl."""
    with tempfile.TemporaryDirectory() as out:
        command = [
            sys.executable,
            "train.py",
            "--pos=learned",
            f"--out_dir={out}/run",
            "--warmup_iters=10",
            "--eval_lengths=256",
            *SIZE,
        ]
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        lines = [
            json.loads(line)
            for line in (Path(out) / "run/metrics.jsonl").read_text(encoding="utf-8").splitlines()
        ]
    return median(line["tokens_per_s"] for line in lines[10:])


def main() -> None:
    """Measure in turn, print and write the figures."""
    nanogpt = Path(sys.argv[1]).resolve()
    give_corpus(nanogpt)
    rounds = []
    for _ in range(ROUNDS):
        rounds.append({"nanogpt": theirs(nanogpt), "longshot": ours()})
        rounds[-1]["ratio"] = rounds[-1]["longshot"] / rounds[-1]["nanogpt"]
        print({name: round(value, 2) for name, value in rounds[-1].items()}, flush=True)
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=nanogpt, capture_output=True, text=True, check=False
    ).stdout.strip()
    result = {
        "unit": "tokens/s",
        "rounds": rounds,
        "median_ratio": median(r["ratio"] for r in rounds),
        "nanogpt_commit": commit,
        **provenance(),
        "command": "python results/throughput/measure.py nanoGPT",
    }
    write_json(HERE / "baby-gpt.json", result)
    print(f"median ratio {result['median_ratio']:.2f}")


if __name__ == "__main__":
    main()
