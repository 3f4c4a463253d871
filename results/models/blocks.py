"""Does the order of schemes depend on the block? The rule stands in README.md.

python results/models/blocks.py > results/models/blocks.md     # after the commands of README.md
"""

import itertools
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "board"))
import board  # noqa: E402

BLOCKS = {"gpt2, without biases (the board)": "", "llama": "llama-", "qwen": "qwen-"}
SCHEMES = ("rope", "alibi", "nope")
Sure = dict[str, dict[str, list[str]]]  # by block and scheme: those that it is surely ahead of


def flips(sure: Sure) -> list[str]:
    """Sentences for the pairs of which one is surely ahead in a block and behind in another."""
    found = []
    for here, there in itertools.combinations(sure, 2):
        for a, others in sure[here].items():
            back = [b for b in others if a in sure[there].get(b, [])]
            found += [f"- `{a}` is ahead of `{b}` in {here}, behind in {there}" for b in back]
    return found


def between(changes: dict[str, dict[str, dict[int, float]]]) -> list[str]:
    """Lines of a table: how much more the loss of a scheme rises in one block than in another."""
    more, tests = {}, {}
    for pos, (here, there) in itertools.product(SCHEMES, itertools.combinations(changes, 2)):
        old, new = changes[here][pos], changes[there][pos]
        found = [new[seed] - old[seed] for seed in new if seed in old]
        more[pos, here, there] = found
        t = board.interval(found)[0] / board.standard_error(found)
        tests[pos, here, there] = board.compare.p_value(t, len(found) - 1)
    lines = ["| scheme | from | to | rises more by | p (Holm) |", "| --- | --- | --- | --- | --- |"]
    for (pos, here, there), p in board.compare.holm(tests).items():
        mean, half = board.interval(more[pos, here, there])
        lines.append(f"| `{pos}` | {here} | {there} | {mean:+.3f} ± {half:.3f} | {p:.3f} |")
    return lines


def main() -> None:
    """Print a table for each block, what is sure in it, and what differs between them."""
    print("# Schemes in the blocks of other models")
    steadier, farther, changes = {}, {}, {}
    for block, folder in BLOCKS.items():
        found = board.both(folder and f"../models/{folder}")
        schemes = [row for row in found if row[0] in SCHEMES]
        if not schemes:
            print(f"\n## {block}: not run yet")
            continue
        steadier[block], farther[block] = board.steadier(schemes), board.farther(schemes)
        changes[block] = {pos: board.changes(books) for pos, books, _ in schemes}
        print(f"\n## {block}\n\n{board.table(schemes, screening=False)}")
        print("\nReads farther in every seed than\n", *board.listed(farther[block]), sep="\n")
        print(
            "\nIts loss surely changes less than that of\n",
            *board.listed(steadier[block]),
            sep="\n",
        )
    for name, sure in (("stability", steadier), ("reach", farther)):
        found = flips(sure)
        verb = "depends" if found else "does not surely depend"
        print(f"\n**In {name} the order {verb} on the block.**", *found, sep="\n")
    print(
        "\n## The same scheme in two blocks\n\nloss at 32 L − at L, paired by seed, Student's 95 %"
    )
    print(
        "interval; p is corrected for the nine lines, the intervals are not\n",
        *between(changes),
        sep="\n",
    )


if __name__ == "__main__":
    main()
