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


def main() -> None:
    """Print a table for each block, what is sure in it, and what differs between them."""
    print("# Schemes in the blocks of other models")
    steadier, farther = {}, {}
    for block, folder in BLOCKS.items():
        found = board.both(folder and f"../models/{folder}")
        schemes = [row for row in found if row[0] in SCHEMES]
        if not schemes:
            print(f"\n## {block}: not run yet")
            continue
        steadier[block], farther[block] = board.steadier(schemes), board.farther(schemes)
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


if __name__ == "__main__":
    main()
