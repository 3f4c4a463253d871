"""What counts and the longest match give on the text of books_recall: alibi and rope have to be
below, by the board's rules. With --readers: what readers that look at no meaning have on its rows.

    python results/board/counts.py [--windows=256] [--readers]

The predictor (data/context.py) reads the bytes of books without questions. A model with N inputs
has 0.83 N of them, so much is given to the predictor. The targets are the last 26 bytes of each
row, as many as there are on average among the last 32 tokens.

The readers: `window` answers with the latest write of the name in the last L tokens; `commonest`
with the commonest value of all writes so far, whatever their names; `last` with the last one.
Those who know nothing guess.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from data import context, evenly, load  # noqa: E402
from data.recall.prepare import TEST_ROWS, VALUES  # noqa: E402
from data.rows import tested_chunks  # noqa: E402
from runs import answers  # noqa: E402
from runs.records import Record  # noqa: E402

SCORED = 26


def answers_of(tokens: np.ndarray, first: int, end: int, window: int, guess: np.random.Generator):
    """What the three readers answer after each question of a row: {reader: {index: value}}."""
    given = {"window": {}, "commonest": {}, "last": {}}
    written = []  # (index, name, value) of each write so far
    for index, token in enumerate(tokens):
        if token >= end:
            written.append((index, *divmod(token - end, VALUES)))
        elif token >= first:
            values = [value for _, _, value in written]
            counts = np.bincount(values, minlength=VALUES)
            near = [v for i, name, v in written if name == token - first and index - i <= window]
            commonest = np.flatnonzero(counts == counts.max())
            given["window"][index + 1] = near[-1] if near else guess.integers(VALUES)
            given["commonest"][index + 1] = guess.choice(commonest)
            given["last"][index + 1] = values[-1] if values else guess.integers(VALUES)
    return given


def print_readers(corpus, n_rows: int) -> None:
    """Print what each reader has above chance in texts of L, and its areas at 32 L."""
    questions = corpus.meta["questions"]
    trained = questions["trained"]
    guess = np.random.default_rng(0)
    measured = {}
    for length in (trained, questions["longest"]):
        tokens, scored, _ = tested_chunks(corpus, length, n_rows)
        right = {}
        for row, of_row in enumerate(tokens):
            given = answers_of(of_row, questions["first"], questions["end"], trained, guess)
            for reader, values in given.items():
                right.setdefault(reader, np.zeros(tokens.shape))
                for place, value in values.items():
                    if place < tokens.shape[1]:
                        right[reader][row, place] = (
                            of_row[place] == questions["first"] - VALUES + value
                        )
        for reader, hits in right.items():
            record = Record("recall", length, trained_size=trained)
            answers.measure_questions(record, corpus, scored, np.zeros(tokens.shape), hits)
            measured.setdefault(reader, []).append(record)
    for reader, records in measured.items():
        table = answers.accuracies(answers.answered(pd.DataFrame(records)))
        print(reader, table[["inside", "area", "reach"]].round(2), sep="\n")


def main() -> None:
    """Print the nats at each length, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--windows", type=int, default=256, help="rows, as many more fit the shares"
    )
    parser.add_argument("--readers", action="store_true", help="readers of the questions instead")
    options = parser.parse_args()
    if options.readers:
        print_readers(load("books_recall"), options.windows)
        return
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
