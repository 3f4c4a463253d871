"""Which beta suits YaRN, by base and training length: is it a constant number of turns within L?

    python results/extend/beta.py train books        # trains 24 small models and tests them; resumable
    python results/extend/beta.py table > results/extend/beta.md

beta is the number of turns within L over which a pair is left alone. Models: config/size/tiny.py with 2 heads of 32, 800 steps of
2,048 tokens, rope with each base at each L, seeds 1 to 3. Loss: fixed_targets at 2 L and 4 L, factor=auto, alpha=1.

Rule, fixed before the runs: in a cell (base, L, factor) the best beta is the one of lowest mean loss; another one is as good
where the 95 % t-interval of its difference, paired by seed, holds zero. A constant number of turns is *consistent* with these
models if some beta is best or as good in every cell, and *contradicted* otherwise.
"""
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
import report  # noqa: E402

BASES, LENGTHS, SEEDS, FACTORS = (100, 500, 10000, 500000), (128, 512), (1, 2, 3), (2, 4)
BETAS = (2, 4, 8, 16, 32, 64)


def folder(base: int, length: int, seed: int) -> str:
    """The run folder of one model."""
    return f"out/beta-base{base}-L{length}-s{seed}"


def train(dataset: str) -> None:
    """Train and test every model that is not there yet."""
    for seed in SEEDS:
        for base in BASES:
            for length in LENGTHS:
                tested = ",".join(str(length * k // 2) for k in (1, 2, 4, 8))
                place = folder(base, length, seed)
                run("train.py", "config/size/tiny.py", f"--pos=rope(base={base})", "--n_head=2", f"--block_size={length}",
                    f"--batch_size={2048 // length}", "--max_iters=800", "--warmup_iters=80", "--learning_rate=3e-3",
                    f"--seed={seed}", f"--dataset={dataset}", f"--eval_lengths={tested}", f"--out_dir={place}")
                run("extend.py", place, *(f"yarn(beta={beta})" for beta in BETAS))


def run(*words: str) -> None:
    """A program of the project, to its end."""
    subprocess.run([sys.executable, *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def losses() -> dict[tuple[int, int, int], dict[int, list[float]]]:
    """{(base, L, factor): {beta: nats of each seed}}, of the models that are there."""
    found: dict = {}
    for base in BASES:
        for length in LENGTHS:
            for seed in SEEDS:
                path = ROOT / folder(base, length, seed) / "extrapolation.json"
                rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
                known = {(row["extend"], row["length"]): row["nats"] for row in rows if row["protocol"] == "fixed_targets"}
                for factor in FACTORS:
                    for beta in BETAS:
                        nats = known.get((f"yarn(beta={beta})", factor * length))
                        if nats is not None:
                            found.setdefault((base, length, factor), {}).setdefault(beta, []).append(nats)
    return found


def main() -> None:
    """Train, or print the table."""
    if sys.argv[1] == "train":
        train(sys.argv[2])
        return
    common = set(BETAS)
    print("# YaRN's beta by base and training length\n\n" + __doc__.split("\n\n", 2)[2].strip() + "\n\n"
          f"| base | L | N | seeds | {' | '.join(f'beta={b}' for b in BETAS)} | best | as good |\n"
          f"| --- | --- | --- | --- | {' | '.join(['---'] * len(BETAS))} | --- | --- |")
    for (base, length, factor), cell in losses().items():
        means = {beta: float(np.mean(values)) for beta, values in cell.items()}
        best = min(means, key=means.get)
        paired = {beta: np.subtract(values, cell[best]).tolist() for beta, values in cell.items() if beta != best}
        good = sorted(beta for beta, differences in paired.items() if holds_zero(differences))
        common &= {best, *good}
        shown = " | ".join(f"{means[b]:.4f} {report.interval(paired[b]) if b in paired else ''}".strip() for b in BETAS)
        print(f"| {base} | {length} | {factor} L | {len(cell[best])} | {shown} | {best} | {', '.join(map(str, good))} |")
    print(f"\nbeta that is best or as good in every cell: {', '.join(map(str, sorted(common))) or 'none'}: a constant number of "
          f"turns is {'consistent with' if common else 'contradicted by'} these models.")


def holds_zero(differences: list[float]) -> bool:
    """Whether the 95 % t-interval of paired differences holds zero."""
    n = len(differences)
    half = report.T95[n - 2] * np.std(differences, ddof=1) / n ** 0.5 if n > 1 else np.inf
    return bool(abs(np.mean(differences)) <= half)


if __name__ == "__main__":
    main()
