"""Which beta suits YaRN, by base and training length: is it a constant number of turns within L?

    python results/extend/beta.py train books        # trains 48 small models and tests them; resumable
    python results/extend/beta.py table > results/extend/beta.md

beta is the number of turns within L over which a pair is left alone. Models: config/size/tiny.py with 2 heads of 32, 800 steps of
2,048 tokens, rope with each base at each L, seeds 1 to 6. Loss: fixed_targets at 2 L and 4 L, factor=auto, alpha=1.

First rule, fixed before the runs of seeds 1 to 3: in a cell (base, L, factor) the best beta is the one of lowest mean loss;
another one is as good where the 95 % t-interval of its difference, paired by seed, holds zero. A constant number of turns is
*consistent* with these models if some beta is best or as good in every cell, and *contradicted* otherwise. Three seeds said
contradicted: 4 was as good in 15 cells of 16, no beta in all. But of 16 such intervals one leaves out zero by chance more often
than not. So the second rule, fixed before seeds 4 to 6 were run: the same with six seeds and intervals at 1 - 0.05 / 16. The last
row, of the mean over all cells, has 95 % intervals.
"""
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]

BASES, LENGTHS, SEEDS, FACTORS = (100, 500, 10000, 500000), (128, 512), (1, 2, 3, 4, 5, 6), (2, 4)
BETAS = (2, 4, 8, 16, 32, 64)
T_FIRST, T_SECOND, T_MEAN = 4.303, 5.326, 2.571   # Student's t: 95 %, 2 degrees of freedom; 1 - 0.05 / 16, 5; 95 %, 5


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


def half_width(differences: np.ndarray, t: float) -> float:
    """Half of the t-interval of paired differences."""
    return t * float(np.std(differences, ddof=1)) / len(differences) ** 0.5


def judged(cell: dict[int, list[float]], seeds: int, t: float) -> tuple[int, dict[int, tuple[float, float]]]:
    """Of the first `seeds` seeds of a cell: the best beta, and {beta: (its mean difference to that, half of its interval)}."""
    nats = {beta: np.array(values[:seeds]) for beta, values in cell.items()}
    best = min(nats, key=lambda beta: nats[beta].mean())
    paired = {beta: values - nats[best] for beta, values in nats.items() if beta != best}
    return best, {beta: (float(of.mean()), half_width(of, t)) for beta, of in paired.items()}


def good(best: int, others: dict[int, tuple[float, float]]) -> list[int]:
    """The best beta and those whose interval holds zero."""
    return sorted([best, *(beta for beta, (mean, half) in others.items() if abs(mean) <= half)])


def main() -> None:
    """Train, or print the table."""
    if sys.argv[1] == "train":
        train(sys.argv[2])
        return
    cells = losses()
    print("# YaRN's beta by base and training length\n\n" + __doc__.split("\n\n", 2)[2].strip() + "\n\n"
          "Mean loss of the best beta; for the others its difference to that, with half of the interval of the second rule.\n\n"
          f"| base | L | N / L | {' | '.join(f'beta={b}' for b in BETAS)} | as good |\n{'| --- ' * (len(BETAS) + 4)}|")
    mean = {beta: np.mean([cell[beta] for cell in cells.values()], axis=0).tolist() for beta in BETAS}
    for place, cell in (cells | {("all", "all", "mean"): mean}).items():
        best, others = judged(cell, 6, T_MEAN if cell is mean else T_SECOND)
        shown = (f"{others[b][0]:+.4f} ± {others[b][1]:.4f}" if b in others else f"**{np.mean(cell[b]):.4f}**" for b in BETAS)
        print(f"| {' | '.join(map(str, place))} | {' | '.join(shown)} | {', '.join(map(str, good(best, others)))} |")
    for name, seeds, t in (("First", 3, T_FIRST), ("Second", 6, T_SECOND)):
        sets = [good(*judged(cell, seeds, t)) for cell in cells.values()]
        times = ", ".join(f"{beta} in {sum(beta in found for found in sets)}" for beta in BETAS)
        common = [beta for beta in BETAS if all(beta in found for found in sets)]
        print(f"\n{name} rule, {seeds} seeds: best or as good, of {len(cells)} cells: {times}. In all: "
              f"{', '.join(map(str, common)) or 'none'}: a constant number of turns is "
              f"{'consistent with' if common else 'contradicted by'} these models.")


if __name__ == "__main__":
    main()
