"""What is read in training and in tests: sequences of a text, and texts with answers.

In a text with answers only some tokens are scored, and it has nothing to do with the one before.

data/recall, data/tasks, data/needles and data/digits make them. Besides the usual files there are
train_answers.npy and val_answers.npy: for each token, how far back its answer is, or 0 if it is not
scored. Training texts all have the same width; validation texts have one width per size.

A target is the token after its input, and is itself the next input. The entry "rows" of meta.json
has

    protocol   "needles", "exact_match" or "image": how the corpus is tested
    kind       what is to be learned
    trained    the largest size in training
    inputs     inputs of a training text
    sizes      size, number and width of the validation texts, in the order of the split
    chance     the share that a guess gets right (not of images)

data/recall makes another kind of texts, in which there may be bytes of a corpus between questions.
A training or test sequence of any length is a chunk of a text. In the two files OF_ORDER is added
to the distance of order questions, and OF_BYTE stands at a byte of the corpus. There is one more
file, val_documents.npy: the source document of each validation text. The entry "questions" of
meta.json has

    longest          inputs of a validation text, and of the longest test
    trained          inputs of a training text
    first, end       of the tokens that ask
    content, order   the two kinds: "chance" is the share that a guess, or a count, gets right
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np

from common.errors import UserError
from data.corpus import SPLITS, Corpus, Pair

# ---- training sequences


def sequence_starts(
    n_tokens: int, block_size: int, seed: int, first: int, count: int
) -> np.ndarray:
    """The first tokens of training sequences `first` to `first + count - 1`: (count,) int64.

    A sequence has block_size + 1 tokens. It depends only on the seed and its number. Each epoch
    cuts the tokens into windows from a random offset and reads each window once, in random order.
    At most one window that would fit is left out. Windows may cross documents. Every epoch has a
    new offset and order. UserError if not even one window fits.
    """
    if n_tokens <= block_size:
        raise UserError(
            f"the training split has {n_tokens:,} tokens, fewer than the {block_size + 1:,} of "
            "one sequence: add text, or lower block_size"
        )
    n_windows = max(1, n_tokens // block_size - 1)
    room = min(block_size, n_tokens - n_windows * block_size)  # less if only one window fits
    return window_starts(n_windows, block_size, room, seed, first, count)


def window_starts(
    n_windows: int, size: int, room: int, seed: int, first: int, count: int
) -> np.ndarray:
    """(count,) int64: the first token of the windows from number `first` on.

    An epoch has `n_windows` windows, `size` tokens apart, from an offset below `room`.
    """
    starts = []
    for number in range(first, first + count):
        order = epoch_starts(n_windows, size, room, seed, number // n_windows)
        starts.append(order[number % n_windows])
    return np.array(starts)


@lru_cache(maxsize=4)
def epoch_starts(n_windows: int, size: int, room: int, seed: int, epoch: int) -> np.ndarray:
    """(n_windows,) int64: the first token of each window of an epoch, in reading order."""
    generator = np.random.default_rng((seed, epoch))
    return generator.integers(room) + size * generator.permutation(n_windows)


def evenly(n_places: int, count: int) -> np.ndarray:
    """`count` evenly spaced integers from 0 to n_places - 1, ascending, (count,) int64, or all."""
    count = min(n_places, count)
    return (2 * np.arange(count) + 1) * n_places // (2 * count)


LEAST_ANSWERS = 400  # answers needed in a bin of distances
OF_ORDER = 2**15  # in the files: added to the distance of order questions
OF_BYTE = 2**16 - 1  # in the files: in place of a distance at a byte of a corpus
# kinds of scored tokens: answers to the two kinds of questions, and bytes of a corpus
CONTENT = 1
ORDER = 2
BYTE = 3
SCORED = 32  # bytes of a corpus scored in a test, the last ones of each text
UNREAD = 512  # training texts to choose a learning rate by


def inputs_of(corpus: Corpus, split: str) -> int:
    """How many inputs a text of this split has; where validation texts differ in size, a training
    text.
    """
    if corpus.has_sizes:
        return corpus.meta["rows"]["inputs"]
    return corpus.meta["questions"]["trained" if split == "train" else "longest"]


def check_rows(corpus: Corpus, block_size: int, documents: str) -> None:
    """UserError if a run with these settings cannot be trained on the corpus."""
    if documents != "cross":
        rows = [chunk_starts(corpus, split, block_size).size for split in SPLITS]
        if not corpus.is_text or len(corpus.train_starts) == 1 or 0 in rows:
            raise UserError(
                f"{corpus.name} has no documents to keep apart (it is one text, has texts with "
                f"answers, or single tokens): set --documents=cross, or make a corpus "
                "with a file, or a line of .jsonl, for each document"
            )
    if corpus.is_text:
        return
    inputs = inputs_of(corpus, "train")
    if corpus.has_sizes and block_size != inputs:
        raise UserError(
            f"the texts of {corpus.name} have {inputs} inputs: set --block_size={inputs}"
        )
    if block_size > inputs:
        raise UserError(
            f"the training texts of {corpus.name} have {inputs} inputs: lower --block_size, or "
            "make them again with a greater --trained"
        )


def texts_of(corpus: Corpus, size: int) -> Pair:
    """The validation texts of one size: tokens and how far back answers are, (texts, width)."""
    first = 0
    for text_size, count, width in corpus.meta["rows"]["sizes"]:
        if text_size == size:
            break
        first += count * width
    part = slice(first, first + count * width)
    tokens = corpus.val[part].reshape(count, width)
    return tokens, corpus.val_answers[part].reshape(count, width)


def targets_of(tokens: np.ndarray, scored: np.ndarray) -> np.ndarray:
    """The target of each input, -1 where the next token is not scored (0 in `scored`): both are
    (n, T + 1) -> int64 (n, T).
    """
    return np.where(scored[:, 1:] > 0, tokens[:, 1:].astype(np.int64), -1)


def tested_sizes(corpus: Corpus, eval_lengths: Sequence[int]) -> list[tuple[int, int, int]]:
    """The sizes of texts that a test reads, with their number and the tokens of one: all, or, if
    eval_lengths are given, those up to the trained one and those given.
    """
    meta = corpus.meta["rows"]
    return [
        (size, count, width)
        for size, count, width in meta["sizes"]
        if not eval_lengths or size <= meta["trained"] or size in eval_lengths
    ]


def batch(
    corpus: Corpus, length: int, seed: int, first: int, count: int, documents: str = "cross"
) -> Pair:
    """Training sequences from number `first` on: inputs and targets, (count, length) int64 each.

    Targets are as in `targets_of`; where rows cross documents see `sequence_starts`. An epoch reads
    each chunk of `chunk_starts` once, in random order. A sequence depends only on the seed and its
    number.
    """
    if corpus.is_text and documents != "pad":
        starts = sequence_starts(len(corpus.train), length, seed, first, count)
    else:
        starts = chunk_starts(corpus, "train", length).ravel()
        starts = starts[window_starts(len(starts), 1, 1, seed, first, count)]
    return inputs_and_targets(corpus, "train", starts, length, documents)


@lru_cache(maxsize=4)
def document_edges(corpus: Corpus, split: str) -> np.ndarray:
    """The starts of the documents of a split, and its own end: (documents + 1,)."""
    return np.append(getattr(corpus, f"{split}_starts"), len(getattr(corpus, split)))


@lru_cache(maxsize=4)
def chunk_starts(corpus: Corpus, split: str, length: int) -> np.ndarray:
    """The starts of the chunks of `length` inputs that texts are cut into: (texts, chunks), from
    the end of each text to its beginning.

    Of a corpus without answers, documents are cut from their beginning, (chunks, 1); the last chunk
    of each may be shorter, and every token but a document's first is the target of one input.
    """
    if corpus.is_text:
        cut = [np.arange(a, b - 1, length) for a, b in pairwise(document_edges(corpus, split))]
        return np.concatenate(cut)[:, None]
    inputs = inputs_of(corpus, split)
    first = np.arange(0, corpus.meta["splits"][split]["tokens"], inputs + 1)
    return first[:, None] + np.arange(inputs - length, -1, -length)


def padding(corpus: Corpus, length: int) -> float:
    """The share of the inputs of all training chunks of documents that are padding."""
    n_inputs = len(corpus.train) - len(corpus.train_starts)  # a document's last token is none
    return 1 - n_inputs / (length * chunk_starts(corpus, "train", length).size)


def unread_texts(corpus: Corpus, seed: int, first: int, inputs: int) -> Pair:
    """The UNREAD training texts after the first `first` of the first epoch, as in `batch`.

    A run with `inputs` inputs that has read `first` texts has seen none of them. UserError if too
    few are left.
    """
    n_texts = chunk_starts(corpus, "train", inputs).size
    if first + UNREAD > n_texts:
        raise UserError(
            f"{first} of the {n_texts} training texts of {corpus.name} are read by then, and "
            f"{UNREAD} unread ones are needed to choose by: lower max_iters"
        )
    return batch(corpus, inputs, seed, first, UNREAD)


def validation(corpus: Corpus, length: int, count: int, documents: str = "cross") -> Pair:
    """At most `count` validation sequences, evenly spaced: inputs and targets, (count, length).

    In a corpus of texts with answers they have trained sizes, which come first in the split.
    """
    if corpus.is_text and documents != "pad":
        starts = evenly(len(corpus.val) - length, count)
    else:
        starts = chunk_starts(corpus, "val", length)[:, 0]
        if corpus.has_sizes:
            meta = corpus.meta["rows"]
            n_texts = sum(n for size, n, _ in meta["sizes"] if size <= meta["trained"])
            starts = starts[:n_texts]
        starts = starts[evenly(len(starts), count)]
    return inputs_and_targets(corpus, "val", starts, length, documents)


def inputs_and_targets(
    corpus: Corpus, split: str, starts: np.ndarray, length: int, documents: str = "cross"
) -> Pair:
    """Inputs and targets of the sequences that start at these tokens, (n,) -> (n, length) each.

    The targets are as in `targets_of`.
    """
    tokens, scored = chunks(corpus, split, starts, length, documents)
    return tokens[:, :-1], targets_of(tokens, scored)


def chunks(
    corpus: Corpus, split: str, starts: np.ndarray, length: int, documents: str = "cross"
) -> Pair:
    """Chunks of a split, and what the files say of each token: (n, length + 1) int64 each.

    Without answers it is 1, with two exceptions: with `documents` "mask" it is 0 at the first token
    of a document; with "pad" it is 0 after the end of the chunk's first document, where the tokens
    are 0 too. At an answer it is 0 if one of its writes is not in the chunk.
    """
    places = starts[:, None] + np.arange(length + 1)
    tokens = getattr(corpus, split).take(places, mode="clip").astype(np.int64)
    if documents != "cross":
        document = np.searchsorted(document_edges(corpus, split), places, side="right")
        if documents == "mask":
            return tokens, document == np.roll(document, 1, axis=1)  # of column 0 nothing is asked
        is_inside = document == document[:, :1]
        return tokens * is_inside, is_inside
    if corpus.is_text:
        return tokens, np.ones_like(tokens)
    scored = getattr(corpus, f"{split}_answers")[places].astype(np.int64)
    if corpus.has_questions:
        question = np.arange(-1, length)  # the index of the question, at its answer
        scored[(scored % OF_ORDER > question) & (scored < OF_BYTE)] = 0
    return tokens, scored


def tested_chunks(corpus: Corpus, length: int, n_texts: int) -> tuple[np.ndarray, ...]:
    """The test sequences of `length` inputs: evenly spaced validation texts, cut from their ends.

    Returns tokens, kind and distance, (n, length + 1) each, and the document of each chunk, (n,).
    The kind is CONTENT or ORDER at an answer, BYTE at a byte of a corpus, and 0 where nothing is
    scored; the distance is that of an answer, else 0. Only the last SCORED inputs of a text are
    scored as bytes, so that every length has the same targets. UserError if the texts are shorter
    than `length`.
    """
    longest = inputs_of(corpus, "val")
    if length > longest:
        raise UserError(f"the test texts of {corpus.name} have only {longest} inputs, not {length}")
    starts = chunk_starts(corpus, "val", length)
    read = evenly(len(starts), n_texts)
    documents = np.load(corpus.folder / "val_documents.npy", allow_pickle=False)[read]
    documents = np.repeat(documents, starts.shape[1])
    tokens, scored = chunks(corpus, "val", starts[read].ravel(), length)
    is_byte = scored == OF_BYTE
    distance = np.where(is_byte, 0, scored % OF_ORDER)
    kind = np.select([is_byte, scored > OF_ORDER, scored > 0], [BYTE, ORDER, CONTENT])
    is_byte[:: starts.shape[1], -SCORED:] = False  # in the last chunk of each text
    kind[is_byte] = 0
    kind[:, 0] = 0  # the first token has no loss
    return tokens, kind, distance, documents
