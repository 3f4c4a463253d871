"""Multi-query associative recall: many keys are asked for after all their values were given.

    python data/tasks/prepare.py mqar        then train with --dataset=mqar --block_size=256

A row is `k1 v1 k2 v2 ...` and then random tokens, among which each key stands once more and is
followed by its value, which alone is scored. Vocabulary, numbers of pairs, lengths and numbers of
rows are those that zoology publishes (Arora et al. 2023, arXiv 2312.04927, as in figure 2 of
"Based", arXiv 2402.18668): of 8,192 tokens the first half are keys and the second half values. A
gap, in steps of two tokens from the end of the pairs, is drawn without replacement with a
probability in proportion to gap ** (POWER - 1), for the first key first.

What differs: zoology scores the query's own place and has a random token behind it, where here
stands the value, since a row is read as text. No key is asked for twice, so that no value that was
read helps with another. Its batches have rows of one length, here all are filled up to 256.

Accuracy is the share of right values, as zoology reports it; N is the number of pairs. Who says any
of the values of its row is right for 1 / pairs: meta.json has the chance at 64, the most in
training. A guess among all values is right for 1 in 4,096.
"""

from pathlib import Path

import numpy as np

from data.rows import Pair, write_rows

VOCABULARY = 8192  # 0 is neither key nor value, keys begin at 1
VALUE = VOCABULARY // 2  # the first value
POWER = 0.01  # of the gaps; 1 makes all as likely
# pairs, inputs and rows; TRAIN and TEST are published so
TRAIN = (
    (4, 64, 100_000),
    (8, 128, 20_000),
    (16, 256, 20_000),
    (32, 256, 20_000),
    (64, 256, 20_000),
)
TEST = (
    (4, 64, 1000),
    (8, 64, 1000),
    (16, 64, 1000),
    (32, 128, 1000),
    (64, 256, 1000),
    (128, 512, 1000),
    (256, 1024, 1000),
)
TRAINED = 64  # the most pairs in training
CHARACTERS = "".join(chr(0x4E00 + token) for token in range(VOCABULARY))


def gap_chances(pairs: int, inputs: int) -> np.ndarray:
    """How likely each gap is to be drawn first, (gaps,): a power of it, its first being 1."""
    gaps = np.arange(1, (inputs - 2 * pairs) // 2 + 1)
    weights = gaps ** (POWER - 1)
    return weights / weights.sum()


def make_rows(generator: np.random.Generator, pairs: int, inputs: int, count: int) -> Pair:
    """Rows with so many pairs: tokens, and at values that are asked for how far back they stand
    from the query, else 0, (count, inputs + 1) each.
    """
    tokens = generator.integers(VOCABULARY, size=(count, inputs + 1))
    distances = np.zeros_like(tokens)
    chances = gap_chances(pairs, inputs)
    written = 2 * np.arange(pairs) + 1  # where the values stand
    for row in range(count):
        keys = generator.choice(np.arange(1, VALUE), pairs, replace=False)
        values = generator.choice(np.arange(VALUE, VOCABULARY), pairs, replace=False)
        gaps = generator.choice(len(chances), pairs, replace=False, p=chances)
        queries = 2 * pairs + 2 * gaps
        tokens[row, written - 1] = keys
        tokens[row, written] = values
        tokens[row, queries] = keys
        tokens[row, queries + 1] = values
        distances[row, queries + 1] = queries - written
    return tokens, distances


def training_rows(generator: np.random.Generator) -> Pair:
    """The rows of TRAIN, filled up with 0 to one width."""
    width = max(inputs for _, inputs, _ in TRAIN) + 1
    all_tokens = []
    all_distances = []
    for pairs, inputs, count in TRAIN:
        tokens, distances = make_rows(generator, pairs, inputs, count)
        missing = [(0, 0), (0, width - inputs - 1)]
        all_tokens.append(np.pad(tokens, missing).astype(np.uint16))
        all_distances.append(np.pad(distances, missing).astype(np.uint16))
    return np.concatenate(all_tokens), np.concatenate(all_distances)


def prepare(folder: Path, seed: int = 0) -> dict:
    """Write the rows to `folder`, and return meta.json."""
    generator = np.random.default_rng(seed)
    return write_rows(
        folder,
        train=training_rows(generator),
        validation={test[0]: make_rows(generator, *test) for test in TEST},
        rows={
            "protocol": "recall",
            "kind": "mqar",
            "trained": TRAINED,
            "chance": 1 / TRAINED,
            "majority": None,
        },
        tokenizer="char",
        characters=CHARACTERS,
        source=f"multi-query associative recall generated from seed {seed}",
        rule="rows of their own",
    )
