"""Corpora of rows: texts that stand for themselves, in which some tokens are scored.

data/recall, data/tasks, data/needles and data/digits make them. Beside the files of any corpus
there are train_answers.npy and val_answers.npy: for each token how far back its answer stands (1 in
images), 0 if it is not scored. meta.json has an entry `rows`. Training rows all have one width;
validation rows have one for each size.
"""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np

from configurable import require
from data import Corpus, check, drawn_starts, evenly, sequences, write_corpus

LEAST = 400  # answers that a bin of distances needs
UNREAD = 512  # training rows to choose a learning rate by
Pair = tuple[np.ndarray, np.ndarray]  # tokens (rows, width) and how far back their answers stand


def write_rows(
    folder: Path, train: Pair, validation: Mapping[int, Pair], rows: dict, **about: str
) -> dict:
    """Write a corpus of rows to `folder`, and return what is in its meta.json.

    `validation` has the rows of each size. `rows` has "protocol" ("recall", "needles",
    "exact_match" or "image"), "kind" (what is to be learned), "trained" (the largest size in
    training), "chance" (the share of right answers of a guess) and "majority" (that of who says
    what was written most often, whatever the order; None where it is no cheap way). Of images the
    loss counts, and not an answer: they have neither, but "width", the side in training. For
    `about` see `write_corpus`. Validation rows of a trained size are filled up to the training
    width.
    """
    width, trained = train[0].shape[1], rows["trained"]
    tested = {n: filled(pair, width if n <= trained else 0) for n, pair in validation.items()}
    sizes = [[n, *tokens.shape] for n, (tokens, _) in tested.items()]
    splits = {"train": train[0], "val": [row for tokens, _ in tested.values() for row in tokens]}
    marks = [answers.ravel() for _, answers in tested.values()]
    kept = {"train": train[1], "val": np.concatenate(marks)}
    rows = rows | {"inputs": width - 1, "sizes": sizes}
    return write_corpus(folder, splits, answers=kept, rows=rows, **about)


def filled(pair: Pair, width: int) -> Pair:
    """Rows with tokens 0, which are not scored, behind them, up to a width."""
    more = [(0, 0), (0, max(0, width - pair[0].shape[1]))]
    return np.pad(pair[0], more), np.pad(pair[1], more)


@lru_cache(maxsize=4)
def answers_of(corpus: Corpus, split: str) -> np.ndarray:
    """How far back the answer of each token of a split stands, (n,); UserError if it is damaged."""
    path, tokens = corpus.folder / f"{split}_answers.npy", getattr(corpus, split)
    check(path.is_file(), path, "is missing")
    answers = np.load(path, mmap_mode="r", allow_pickle=False)
    check(answers.shape == tokens.shape, path, "does not have a number for each token")
    return answers


def check_length(corpus: Corpus, block_size: int) -> None:
    """UserError unless a run with this block_size can be trained on the corpus."""
    inputs = corpus.meta["rows"]["inputs"] if "rows" in corpus.meta else block_size
    advice = f"say --block_size={inputs}, or make other rows"
    require(inputs == block_size, f"the rows of {corpus.name} have {inputs} inputs: {advice}")


def check_asked(trained: Corpus, asked: Corpus) -> None:
    """UserError if a model is to give answers of a kind that it was not trained to give.

    Rows that were made before kinds were recorded are a kind of their own.
    """
    own, kind = (c.meta.get("rows", {}).get("kind", c.name) for c in (trained, asked))
    never = f"a model trained on {trained.name} has not learned to answer {kind}, and is not asked"
    require("rows" not in asked.meta or own == kind, f"{never}: train with --dataset={asked.name}")


def sizes(corpus: Corpus) -> list[int]:
    """The sizes of the validation rows, ascending."""
    return [size for size, _, _ in corpus.meta["rows"]["sizes"]]


def rows_of(corpus: Corpus, size: int) -> Pair:
    """The validation rows of one size: tokens and how far back answers stand, (rows, width)."""
    first = 0
    for known, count, width in corpus.meta["rows"]["sizes"]:
        if known == size:
            part = slice(first, first + count * width)
            pair = corpus.val[part], answers_of(corpus, "val")[part]
            return pair[0].reshape(count, width), pair[1].reshape(count, width)
        first += count * width
    raise KeyError(f"{corpus.name} has no rows of size {size}")


def batch(corpus: Corpus, length: int, seed: int, first: int, count: int) -> Pair:
    """Training sequences from number `first` on: inputs and targets, (count, length) int64 each.

    The target of an input that is not followed by a scored token is -1. For text see `sequences`.
    An epoch reads each row once in random order. What a number stands for follows from the seed.
    """
    if "rows" not in corpus.meta:
        tokens = sequences(corpus.train, length, seed, first, count)
        return tokens[:, :-1], tokens[:, 1:]
    width = corpus.meta["rows"]["inputs"] + 1
    n_rows = len(corpus.train) // width
    starts = drawn_starts(n_rows, width, 1, seed, range(first, first + count))
    places = starts[:, None] + np.arange(width)
    return with_targets(corpus.train[places], answers_of(corpus, "train")[places])


def unread(corpus: Corpus, seed: int, first: int) -> Pair:
    """The UNREAD training rows that come after the `first` ones of the first epoch, as `batch`.

    A training that has read `first` rows knows none of them. UserError if too few are left.
    """
    width = corpus.meta["rows"]["inputs"] + 1
    n_rows = len(corpus.train) // width
    few = f"of the {n_rows} training rows of {corpus.name} {first} are read by then"
    require(first + UNREAD <= n_rows, f"{few}, and {UNREAD} others are needed: take fewer steps")
    return batch(corpus, width - 1, seed, first, UNREAD)


def validation(corpus: Corpus, length: int, count: int) -> Pair:
    """At most `count` validation sequences, evenly spaced: inputs and targets, (count, length)."""
    if "rows" not in corpus.meta:
        starts = evenly(len(corpus.val) - length, count)
        tokens = corpus.val[starts[:, None] + np.arange(length + 1)].astype(np.int64)
        return tokens[:, :-1], tokens[:, 1:]
    trained = [rows_of(corpus, n) for n in sizes(corpus) if n <= corpus.meta["rows"]["trained"]]
    tokens, answers = (np.concatenate(part) for part in zip(*trained, strict=True))
    chosen = evenly(len(tokens), count)
    return with_targets(tokens[chosen], answers[chosen])


def with_targets(tokens: np.ndarray, answers: np.ndarray) -> Pair:
    """Inputs and targets of rows, (rows, width) -> int64 (rows, width - 1): -1 where unscored."""
    tokens = tokens.astype(np.int64)
    return tokens[:, :-1], np.where(answers[:, 1:] > 0, tokens[:, 1:], -1)
