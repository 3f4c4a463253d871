"""Records of corpora with answers: of texts of each size, and of questions by their distance."""

import time
from collections.abc import Iterator, Sequence

import numpy as np

from common.errors import UserError
from data.batches import (
    BYTE,
    CONTENT,
    LEAST_ANSWERS,
    ORDER,
    targets_of,
    tested_chunks,
    tested_sizes,
    texts_of,
    unread_texts,
)
from data.corpus import Corpus
from measure.protocols import find_protocol, tested_lengths
from measure.tester import Tester, digest, fill_bytes, fill_loss, new_record
from tables.records import Record, Result

GROUPS = 64  # of texts, for the standard error of the loss


# ---- measuring


def fill_size(tester: Tester, record: Record) -> None:
    """Fill in the record of a size: the validation texts of this size, answered."""
    corpus = tester.corpus
    tokens, distances = texts_of(corpus, record.length)  # (texts, T + 1) each
    targets = targets_of(tokens, distances)  # (texts, T)
    started = time.perf_counter()
    nats, right = tester.losses_and_hits(tokens, targets)
    record.tokens_per_s = round(targets.size / (time.perf_counter() - started), 1)
    fill_answers(record, nats, distances)
    if record.nats is None or not find_protocol(record.protocol).counted_by:
        return
    meta = corpus.meta["rows"]
    counted = count_answers(right, distances, meta["chance"])
    record.texts = len(right)
    record.exact = int((right == (distances > 0)).all(axis=1).sum())
    record.accuracy = sum(counted["right"]) / sum(counted["counts"])
    record.by_distance = {meta["kind"]: counted}


def fill_recall(
    record: Record,
    corpus: Corpus,
    kind: np.ndarray,
    distance: np.ndarray,
    nats: np.ndarray,
    right: np.ndarray,
) -> None:
    """Fill in a record of recall, from chunks of texts with questions that were read.

    All arrays are (chunks, N + 1); kind and distance are those of `data.batches.tested_chunks`.
    """
    fill_answers(record, nats, distance)
    if record.nats is None:
        return
    record.texts = len(kind)
    record.by_distance = {}
    for name, number in (("content", CONTENT), ("order", ORDER)):
        asked = np.where(kind == number, distance, 0)
        if asked.any():
            chance = corpus.meta["questions"][name]["chance"]
            record.by_distance[name] = count_answers(right, asked, chance)


def fill_answers(record: Record, nats: np.ndarray, distances: np.ndarray) -> None:
    """Fill in the loss of answers, of groups of texts; both arrays are (texts, T + 1)."""
    scored = distances > 0
    record.targets = digest(distances)
    sums = []
    counts = []
    for part in np.array_split(np.arange(len(nats)), min(GROUPS, len(nats))):
        sums.append(nats[part][scored[part]].sum())
        counts.append(scored[part].sum())
    fill_loss(record, np.array(sums), np.array(counts))


def count_answers(right: np.ndarray, distances: np.ndarray, chance: float) -> dict:
    """How many answers are asked for and how many are right, in bins of their distance.

    Both arrays are (texts, T + 1); a token with the distance 0 is not scored.
    """
    scored = distances > 0
    first = scored.copy()  # the first token of each answer
    first[:, 1:] &= ~scored[:, :-1]
    asked = distances[first]  # (answers,)
    # right if each of its tokens is
    correct = np.minimum.reduceat(right[scored], np.flatnonzero(first[scored])) > 0
    edges = distance_bins(asked)
    return {
        "edges": edges,
        "counts": np.histogram(asked, edges)[0].tolist(),
        "right": np.histogram(asked[correct], edges)[0].tolist(),
        "chance": chance,
    }


def distance_bins(asked: np.ndarray) -> list[int]:
    """The edges of bins of half an octave, 1, 2, 3, 4, 6, 8, 12, 16, 23 ... of these distances.

    Neighbours are joined, from near to far, until each bin has LEAST_ANSWERS of them.
    """
    octaves = np.arange(0, int(asked.max()).bit_length() + 1, 0.5)
    # less a little, because a power of two may come out a little too large
    edges = np.unique(np.ceil(2**octaves - 1e-9).astype(np.int64))
    joined = [1]
    for edge in edges[1:].tolist():
        if np.sum((asked >= joined[-1]) & (asked < edge)) >= LEAST_ANSWERS:
            joined.append(edge)
    if len(joined) > 1:
        joined.pop()
    joined.append(int(edges[edges > asked.max()][0]))  # the last bin has the rest too
    return joined


BYTES = 256  # in a corpus with questions, tokens below this are text


def question_records(
    tester: Tester, about: Result, lengths: Sequence[int], windows: int
) -> Iterator[Record]:
    """The records of a corpus with questions: recall, and fixed_targets of the text around them.

    One pass at each length measures both. A block of the text is a document.
    """
    corpus = tester.corpus
    for length in tested_lengths(about.block_size, lengths):
        record = new_record(tester, about, "recall", length, windows)
        record.trained_size = about.block_size
        try:
            tester.model.pos.check_length(length)
            # (chunks, length + 1) each, and (chunks,)
            tokens, kind, distance, documents = tested_chunks(corpus, length, windows)
        except UserError as error:
            record.reason = str(error)
            yield record
            continue
        started = time.perf_counter()
        nats, right = tester.losses_and_hits(tokens, targets_of(tokens, kind))
        speed = round(kind[:, 1:].size / (time.perf_counter() - started), 1)
        record.tokens_per_s = speed
        record.attention = tester.model.path_of(length)
        fill_recall(record, corpus, kind, distance, nats, right)
        yield record
        is_text = kind == BYTE
        if is_text.any():
            text_record = new_record(tester, about, "fixed_targets", length, windows)
            text_record.attention = record.attention
            text_record.tokens_per_s = speed
            text_record.targets = digest(tokens[is_text])  # equal at every length
            text_nats = nats[is_text]
            text_documents = np.repeat(documents, is_text.sum(axis=1))  # of each target
            _, blocks = np.unique(text_documents, return_inverse=True)
            counts = np.bincount(blocks)
            text_record.blocks = len(counts)
            fill_loss(text_record, np.bincount(blocks, text_nats), counts)
            # a target of this text is a byte
            fill_bytes(text_record, text_nats.sum(), len(text_nats))
            yield text_record


def answer_records(tester: Tester, about: Result, lengths: Sequence[int]) -> Iterator[Record]:
    """The records of a corpus with answers: of every size, or of the trained and the asked ones."""
    meta = tester.corpus.meta["rows"]
    sizes = [size for size, _, _ in meta["sizes"]]
    missing = sorted({*lengths} - {*sizes})
    if missing:
        print(f"note: {tester.corpus.name} has no texts of {missing}; its sizes are {sizes}")
    for size, count, width in tested_sizes(tester.corpus, lengths):
        record = new_record(tester, about, meta["protocol"], size, count)
        record.trained_size = meta["trained"]
        record.factor = tester.model.pos.factor(width - 1)  # of the text, not of its size
        try:
            tester.model.pos.check_length(width - 1)
            fill_size(tester, record)
            record.attention = tester.model.path_of(width - 1)
        except UserError as error:
            record.reason = str(error)
        yield record


def unread_loss(tester: Tester, length: int, seed: int, rows_read: int) -> float:
    """The mean loss of the answers in training texts that a run has not read, plus that of the text
    around them, if there is any. For the texts see `data.batches.unread_texts`.
    """
    inputs, targets = unread_texts(tester.corpus, seed, rows_read, length)  # (texts, T) each
    tokens = np.pad(inputs, ((0, 0), (0, 1)))  # the last one is not read
    nats, _ = tester.losses_and_hits(tokens, targets)
    nats = nats[:, 1:]
    if not tester.corpus.has_questions:
        return float(nats[targets >= 0].mean())
    text = nats[(targets >= 0) & (targets < BYTES)]  # there is none around questions in noise
    return float(text.sum() / max(1, text.size) + nats[targets >= BYTES].mean())
