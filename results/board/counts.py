"""What counts and the longest match give on the text of books_recall: alibi and rope have to be
below, by the board's rules.

    python results/board/counts.py [--windows=256]

The predictor (data/context.py) reads the bytes of books without questions. A model with N inputs
has 0.83 N of them, so much is given to the predictor. The targets are the last 26 bytes of each
row, as many as there are on average among the last 32 tokens.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from data import context, evenly, load  # noqa: E402
from data.recall.prepare import TEST_ROWS  # noqa: E402

SCORED = 26


def main() -> None:
    """Print the nats at each length, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--windows", type=int, default=256, help="rows, as many more fit the shares"
    )
    options = parser.parse_args()
    books = load("books")
    asked = load("books_recall")
    longest = asked.meta["questions"]["longest"]
    room = int((asked.val[: longest + 1] < 256).sum())  # bytes of text in a row
    starts = evenly(len(books.val) - room, TEST_ROWS)
    ends = starts + room - 1
    measured = evenly(TEST_ROWS, options.windows)
    fitted = (measured + 1) % TEST_ROWS
    ends = np.concatenate([ends[measured], ends[fitted]])
    lengths = [longest >> k for k in range(6, -1, -1)]
    given = [n * room // longest for n in lengths]
    nats = context.target_losses(books, ends, SCORED, given)
    means = {n: round(float(np.mean(blocks)), 4) for n, blocks in zip(lengths, nats, strict=True)}
    print(json.dumps({"windows": options.windows, "nats": means}))


if __name__ == "__main__":
    main()
