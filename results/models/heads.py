"""Loss, reach and bytes of the cache with fewer heads of keys, or a latent. README.md has the runs.

python results/models/heads.py > results/models/heads.md
"""

import sys
from math import isnan
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "board")]
import board  # noqa: E402
import caches  # noqa: E402

from runs import answers  # noqa: E402

LENGTHS = (board.L, 8 * board.L, board.FAR)
FOLDERS = dict(
    zip(
        caches.KINDS,
        ("", "../models/heads2-", "../models/heads1-", "../models/latent-"),
        strict=True,
    )
)
HEADS = ["keys", "scheme", "parameters", "loss at L", "8 L", "32 L", "reach of each seed", "bytes"]


def line(kind: str, pos: str, books: list[dict], recall: list[dict]) -> list[str]:
    """The cells of one scheme: losses with Student's interval over seeds, if there are some."""
    losses = [board.interval(found) for n in LENGTHS if (found := board.at_length(books, n))]
    reaches = [answers.reach(board.tested(result)) for result in recall]
    return [
        kind,
        f"`{pos}`",
        f"{(books or recall)[0]['parameters']:,}",
        *(f"{mean:.3f}" + ("" if isnan(half) else f" ± {half:.3f}") for mean, half in losses),
        *[""] * (len(LENGTHS) - len(losses)),
        ", ".join(str(reach or "not learned") for reach in reaches),
        f"{caches.bytes_of(pos, kind, ''):,}",
    ]


def main() -> None:
    """Print one table: each kind of keys under each scheme."""
    lines = [HEADS, ["---"] * len(HEADS)]
    for kind, folder in FOLDERS.items():
        found = {pos: (books, recall) for pos, books, recall in board.both(folder)}
        lines += [line(kind, pos, *found[pos]) for pos in ("rope", "alibi", "nope") if pos in found]
    print("# Fewer heads of keys and values, at `config/size/small.py`\n")
    print("Nats per byte of books, mean and Student's 95 % interval over seeds; bytes are of the")
    print("cache for each token, bfloat16. The first three rows are the board's; those without an")
    print("interval have one seed.\n")
    print("\n".join(f"| {' | '.join(cells)} |" for cells in lines))


if __name__ == "__main__":
    main()
