"""Images at one, two and four times the side of training. The rule stands in README.md.

python results/models/images.py > results/models/images.md     # after the commands of README.md
"""

import itertools
import json
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent / "board")]
import board  # noqa: E402

from runs import compare  # noqa: E402
from runs.results import standard_error  # noqa: E402

Losses = dict[str, dict[int, float]]  # nats per patch by scheme and seed


def lower(losses: Losses) -> dict[str, list[str]]:
    """{scheme: those whose loss is higher}, by a paired t-test over seeds, corrected by Holm."""
    tests, sure = {}, {pos: [] for pos in losses}
    for a, b in itertools.permutations(losses, 2):
        less = np.array([losses[b][seed] - losses[a][seed] for seed in losses[a]])
        if len(less) > 1 and less.mean() > 0:
            tests[a, b] = compare.p_value(less.mean() / standard_error(less), len(less) - 1)
    for (a, b), p in compare.holm(tests).items():
        sure[a] += [b] if p < compare.LEVEL else []
    return sure


def main() -> None:
    """Print one table, and for each side what is surely lower than what."""
    content = json.loads((HERE / "digits/results.json").read_text(encoding="utf-8"))
    _, seeds = compare.rows_by_seed(content["cells"])
    lengths = sorted({n for of in seeds.values() for rows in of.values() for n in rows})
    sides = {round(n**0.5): n for n in lengths}
    print("# Images: nats per patch, mean and Student's 95 % interval over seeds\n")
    print("| scheme |", *(f" {side} x {side} |" for side in sides), sep="")
    print("|---|", *("---|" for _ in sides), sep="")
    found = {n: {pos: compare.losses_at(of, n) for pos, of in seeds.items()} for n in lengths}
    for pos in seeds:
        cells = [board.interval(list(found[n][pos].values())) for n in lengths]
        print(f"| `{pos}` |", *(f" {mean:.3f} ± {half:.3f} |" for mean, half in cells), sep="")
    for side, n in sides.items():
        print(f"\nAt {side} x {side} the loss is surely lower than that of\n")
        print(*board.listed(lower(found[n])), sep="\n")


if __name__ == "__main__":
    main()
