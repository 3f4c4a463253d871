"""Records of a corpus of text: every protocol at every length."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from common.errors import UserError
from data.corpus import Corpus
from measure import protocols
from measure.protocols import (
    Places,
    Protocol,
    find_places,
    fixed_targets,
    of_text,
    targets_in,
    tested_lengths,
)
from measure.tester import Tester, digest, fill_bytes, fill_loss, new_record
from tables.records import Record, Result

MAX_PLACES = 65536  # from which those for tuning are taken
MIN_CHOSEN = 100  # fewer chosen targets than this are not measured
TUNING_WINDOWS = 64  # at most, of a tuning loss
CHECK_WINDOWS = 8  # windows that are also tested in float32


def text_records(
    tester: Tester, about: Result, lengths: Sequence[int], windows: int, asked: list[Protocol]
) -> Iterator[Record]:
    """The records of a corpus of text: of each protocol at each length, then those of protocols
    that choose among the targets of fixed_targets.
    """
    places = find_places(tester.corpus, windows)
    measured = {}  # by each protocol: its records, each with the nats of its targets, or None
    for protocol in asked:
        of_protocol = measured[protocol.name] = []
        for length in tested_lengths(about.block_size, lengths):
            record, nats = text_record(tester, about, places, protocol, length)
            of_protocol.append((record, nats))
            yield record
    fixed = measured.get("fixed_targets", [])
    finite = [record for record, _ in fixed if record.nats is not None]
    if not finite:
        return
    if tester.compute.dtype is not None:
        # the first windows of the longest test again, in float32
        record = finite[-1]
        few = replace(places, ends=places.ends[:CHECK_WINDOWS])
        in_float32 = replace(tester, compute=replace(tester.compute, dtype=None))
        nats = in_float32.nats_by_place(few, record.length).mean()
        difference = np.mean(record.block_nats[:CHECK_WINDOWS]) - nats
        check = (
            f"fixed_targets at {record.length}, {CHECK_WINDOWS} windows: {record.dtype} minus "
            f"float32 is {difference:+.5f} nats"
        )
        record.note = "; ".join(filter(None, [record.note, check]))
    for protocol in protocols.PROTOCOLS:
        if protocol.chosen:
            yield from chosen_records(tester.corpus, places, protocol, fixed)


def text_record(
    tester: Tester, about: Result, places: Places, protocol: Protocol, length: int
) -> tuple[Record, np.ndarray | None]:
    """A record of a corpus of text, and the nats of its targets, (blocks, targets).

    If it cannot be measured, the nats are None and the record has a reason.
    """
    scheme = tester.model.pos
    record = new_record(tester, about, protocol.name, length, len(places.ends))
    try:
        windows = protocol.windows(places, length)
        offsets = targets_in(windows)
        record.windows = len(offsets)
        record.targets = digest(np.sort(offsets, axis=None))
        scheme.check_length(length)
    except UserError as error:
        record.reason = str(error)
        return record, None

    window_size = None
    if protocol.limits_keys and length > about.block_size:
        window_size = about.block_size
    started = time.perf_counter()
    nats = tester.nats(windows, window_size)
    inputs = len(nats) * sum(window.length for window in windows)
    record.tokens_per_s = round(inputs / (time.perf_counter() - started), 1)
    record.attention = tester.model.path_of(length, window_size)

    notes = []
    if places.across_documents and protocol.in_places:
        notes.append("windows run across documents, too few of which are long")
    if len(np.unique(offsets)) < offsets.size:
        notes.append("neighbouring blocks share targets, so standard errors are too small")
    if any(piece.found_on == record.split_sha256 for piece in scheme.extensions.values()):
        notes.append(f"the file of {scheme.extend_text} was found on this text")
    if tester.first_token is not None:
        notes.append(f"every window begins with the tokenizer's first token, {tester.first_token}")
    record.note = "; ".join(notes)

    fill_targets(record, tester.corpus, offsets, nats, np.ones(nats.shape, dtype=bool))
    return record, nats


def chosen_records(
    corpus: Corpus, places: Places, protocol: Protocol, fixed: list[tuple]
) -> Iterator[Record]:
    """Records of the targets that a protocol chooses, one for each record of `fixed`, unless they
    are too few. `fixed` has the records of fixed_targets, each with the nats of its targets,
    (places, scored), or None.
    """
    counted = protocol.chosen(corpus, places)  # (places, scored)
    n = counted.sum()
    if n < MIN_CHOSEN:
        print(f"{protocol.name}: not measured, {n} qualify, {MIN_CHOSEN} are needed")
        return
    offsets = targets_in(fixed_targets(places, places.max_length))  # the same at every length
    chosen_digest = digest(np.sort(offsets[counted]))
    for record, nats in fixed:
        chosen = replace(record, protocol=protocol.name, targets=chosen_digest)
        if record.nats is not None:
            fill_targets(chosen, corpus, offsets, nats, counted)
        yield chosen


def fill_targets(
    record: Record, corpus: Corpus, offsets: np.ndarray, nats: np.ndarray, counted: np.ndarray
) -> None:
    """Fill in the loss of the targets where `counted` is True; arrays are (blocks, targets)."""
    sizes = corpus.text_bytes(offsets)
    in_text = counted & (sizes > 0)
    record.without_bytes = int(np.sum(counted & (sizes == 0)))
    fill_loss(record, nats.sum(axis=1, where=counted), counted.sum(axis=1))
    fill_bytes(record, nats.sum(where=in_text), sizes.sum(where=in_text))


# ---- a loss for tuning


def tuning_loss(tester: Tester, length: int, windows: int) -> float:
    """Mean nats at a length on the `tuning_places`; the model is in eval mode."""
    places = tuning_places(tester.corpus, length, windows)
    return float(tester.nats_by_place(places, length).mean())


def tuning_places(corpus: Corpus, length: int, windows: int) -> Places:
    """Up to 64 places for tuning; UserError if there are fewer than 8.

    They are the first places after those of a test, with `windows` windows of this length, that
    share no target with it, nor with nonoverlapping at up to 4,096.
    """
    places = find_places(corpus, windows)
    is_tested = np.zeros(places.tokens, dtype=bool)
    for protocol in of_text():
        is_tested[targets_in(protocol.windows(places, length))] = True
    ends = find_places(corpus, MAX_PLACES).ends[windows:]
    targets = ends[:, None] + np.arange(1 - places.n_scored, 1)  # (places, scored)
    ends = ends[~is_tested[targets].any(axis=1)][:TUNING_WINDOWS]
    if len(np.unique(ends)) < 8:
        raise UserError(f"{corpus.name} has too little validation text to choose by: add text")
    return replace(places, ends=ends)
