"""Multi-query associative recall as in zoology: many keys are queried after all key-value pairs.

    python data/tasks/prepare.py mqar_64 mqar    then train with
    --dataset=mqar_64 --block_size=64 or --dataset=mqar --block_size=256

A text is `k1 v1 k2 v2 ...` followed by fillers, in which each key occurs once more. There the
target is the key's value. It is not the next token, which is a filler: the model sees no earlier
answer, neither the correct one nor its own. Of 8,192 tokens, the first half except 0 are keys and
the second half values; keys and values are distinct within a text. Gaps, in steps of two tokens
from the end of the pairs, are drawn without replacement with probability proportional to gap **
(POWER - 1), for the first key first.

The numbers are those of zoology's configurations, commit d88d6f5, in two sets:

    mqar_64 mqar_128 mqar_256 mqar_512    figure 2 of "Zoology" (Arora et al. 2023, arXiv
        2312.04927): 4, 8, 16, 64 pairs in so many inputs, 100,000 texts and 3,000 of the test;
        fillers are 0. The last is no longer in the configuration; commit 66f4918 has it. Here the
        test also has the texts of the longer corpora.
    mqar    figure 2 of "Based" (arXiv 2402.18668): one model trained on TRAIN and tested on TEST;
        fillers are random tokens of the whole vocabulary.

Accuracy is the fraction of answers where the value is the most likely of all tokens, as in zoology;
N is the number of pairs. Guessing among the values in the text is right 1 / pairs of the time:
meta.json has that chance for the largest number of pairs in training. Guessing among all values is
right 1 time in 4,096.

Differences: the texts are drawn by the same rule, but are not identical. For `mqar`, each zoology
batch has texts of one length and number of pairs, in sequence; here they are mixed and padded to
256, and all answers in a batch have equal weight, so that texts with 64 pairs make up 46 % of the
loss. Model and training are up to the user: zoology's attention in figure 2 has two layers, one
head, no MLP, learned positions (in Based a convolution and none), dropout of 0.1, up to 64 epochs
(32) with the best of four learning rates, and stops above 99 %.
"""

from pathlib import Path

import numpy as np

from data.batches import Pair, write_texts

VOCABULARY = 8192  # 0 is neither key nor value, keys begin at 1
VALUE = VOCABULARY // 2  # the first value
POWER = 0.01  # of the gaps; 1 is uniform
# pairs, inputs and texts of `mqar`
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
# pairs and inputs of those with one kind of texts, and how many they train on and are tested by
ALONE = ((4, 64), (8, 128), (16, 256), (64, 512))
TRAIN_TEXTS = 100_000
TEST_TEXTS = 3000
CORPORA = ("mqar", *(f"mqar_{inputs}" for _, inputs in ALONE))
CHARACTERS = "".join(chr(0x4E00 + token) for token in range(VOCABULARY))


def gap_chances(pairs: int, inputs: int) -> np.ndarray:
    """Probability of each gap, from 1, for the first key, (gaps,): a normalised power of it."""
    gaps = np.arange(1, (inputs - 2 * pairs) // 2 + 1)
    weights = gaps ** (POWER - 1)
    return weights / weights.sum()


def make_texts(
    generator: np.random.Generator, pairs: int, inputs: int, count: int, fillers: int = VOCABULARY
) -> Pair:
    """Texts with `pairs` pairs, (count, inputs + 1): tokens and, after each query, how far back the
    value is, else 0. Fillers are drawn from `fillers` tokens; the last token is one.
    """
    tokens = generator.integers(fillers, size=(count, inputs + 1))
    distances = np.zeros_like(tokens)
    chances = gap_chances(pairs, inputs)
    written = 2 * np.arange(pairs) + 1  # positions of the values
    for number in range(count):
        keys = generator.choice(np.arange(1, VALUE), pairs, replace=False)
        values = generator.choice(np.arange(VALUE, VOCABULARY), pairs, replace=False)
        gaps = generator.choice(len(chances), pairs, replace=False, p=chances)
        queries = 2 * pairs + 2 * gaps
        tokens[number, written - 1] = keys
        tokens[number, written] = values
        tokens[number, queries] = keys
        distances[number, queries + 1] = queries - written
    return tokens, distances


def prepare(folder: Path, seed: int = 0) -> dict:
    """Write the texts of the corpus named like `folder` and return its meta.json."""
    train = TRAIN
    test = TEST
    fillers = VOCABULARY
    if folder.name != "mqar":
        longer = ALONE[CORPORA.index(folder.name) - 1 :]
        train = [(*longer[0], TRAIN_TEXTS)]
        test = [(*kind, TEST_TEXTS) for kind in longer]
        fillers = 1  # the token 0 alone
    generator = np.random.default_rng(seed)
    width = 1 + max(inputs for _, inputs, _ in train)
    all_tokens = []
    all_distances = []
    for pairs, inputs, count in train:  # padded with 0
        tokens, distances = make_texts(generator, pairs, inputs, count, fillers)
        missing = [(0, 0), (0, width - inputs - 1)]
        all_tokens.append(np.pad(tokens, missing).astype(np.uint16))
        all_distances.append(np.pad(distances, missing).astype(np.uint16))
    trained = max(pairs for pairs, _, _ in train)
    return write_texts(
        folder,
        train=(np.concatenate(all_tokens), np.concatenate(all_distances)),
        validation={kind[0]: make_texts(generator, *kind, fillers) for kind in test},
        rows={
            "protocol": "recall",
            "kind": "mqar",
            "trained": trained,
            "chance": 1 / trained,
            "copied": True,
        },
        tokenizer="char",
        characters=CHARACTERS,
        source=f"multi-query associative recall generated from seed {seed}",
        rule="texts of their own",
    )
