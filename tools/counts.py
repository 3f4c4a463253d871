"""What counts and the longest match give on the text of books_recall: alibi and rope have to be
below, by the board's rules. With --readers: what readers that look at no meaning have on its texts.

    python -m tools.counts [--windows=256] [--readers]

The predictor (measure/predictor.py) reads the bytes of books without questions. A model with N
inputs has 0.83 N of them, so much is given to the predictor. The targets are the last 26 bytes of
each text, as many as there are on average among the last 32 tokens.

The readers: `window` answers with the latest write of the name in the last L tokens; `commonest`
with the commonest value of all writes so far, whatever their names; `last` with the last one.
Those who know nothing guess.
"""

import argparse
import json

import numpy as np
import pandas as pd

from common.errors import run_program
from data.batches import evenly, tested_chunks
from data.corpus import Corpus, load_corpus
from data.recall.prepare import TEST_TEXTS, VALUES
from measure import predictor
from measure.questions import measure_questions
from tables import reach
from tables.records import Record

SCORED = 26


def read(tokens: np.ndarray, questions: dict, random: np.random.Generator) -> dict:
    """What each reader says after each token of a text: {reader: values (T,)}."""
    given = {}
    for name in ("window", "commonest", "last"):
        given[name] = random.integers(VALUES, size=len(tokens))  # a guess, where nothing is known
    writes = []  # index, name and value of each so far
    for index, token in enumerate(tokens[:-1]):
        if token >= questions["end"]:
            writes.append((index, *divmod(token - questions["end"], VALUES)))
        elif token >= questions["first"] and writes:
            values = [value for _, _, value in writes]
            counts = np.bincount(values)
            given["last"][index + 1] = values[-1]
            given["commonest"][index + 1] = random.choice(np.flatnonzero(counts == counts.max()))
            for written, name, value in writes:
                if name == token - questions["first"] and index - written <= questions["trained"]:
                    given["window"][index + 1] = value  # the latest stays
    return given


def print_readers(corpus: Corpus, n_texts: int) -> None:
    """Print what each reader has above chance in texts of L, and its areas at 32 L."""
    questions = corpus.meta["questions"]
    random = np.random.default_rng(0)
    measured = {}
    for length in (questions["trained"], questions["longest"]):
        tokens, kind, distance, _ = tested_chunks(corpus, length, n_texts)
        values = pd.DataFrame([read(text, questions, random) for text in tokens])
        for reader in values:
            right = tokens == questions["first"] - VALUES + np.stack(values[reader])
            record = Record("recall", length, trained_size=questions["trained"])
            nothing = np.zeros(tokens.shape)
            measure_questions(record, corpus, kind, distance, nothing, right)
            measured.setdefault(reader, []).append(record)
    for reader, records in measured.items():
        table = reach.accuracies(reach.answered(pd.DataFrame(records)))
        print(reader, table[["inside", "area", "reach"]].round(2), sep="\n")


def print_predictor(books: Corpus, asked: Corpus, n_texts: int) -> None:
    """Print the predictor's nats at each length, as JSON."""
    longest = asked.meta["questions"]["longest"]
    room = int((asked.val[: longest + 1] < 256).sum())  # bytes of the corpus in a text
    ends = evenly(len(books.val) - room, TEST_TEXTS) + room - 1
    measured = evenly(TEST_TEXTS, n_texts)
    fitted = (measured + 1) % TEST_TEXTS  # the shares of the predictor are fitted on others
    lengths = [longest >> k for k in range(6, -1, -1)]
    given = [n * room // longest for n in lengths]
    nats = predictor.predictor_losses(books, ends[measured], ends[fitted], SCORED, given)
    means = [round(float(np.mean(blocks)), 4) for blocks in nats]
    print(json.dumps({"windows": n_texts, "nats": dict(zip(lengths, means, strict=True))}))


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=int, default=256, help="texts that are measured")
    parser.add_argument("--readers", action="store_true", help="readers of the questions instead")
    options = parser.parse_args()
    asked = load_corpus("books_recall")
    if options.readers:
        print_readers(asked, options.windows)
    else:
        print_predictor(load_corpus("books"), asked, options.windows)


if __name__ == "__main__":
    run_program(main)
