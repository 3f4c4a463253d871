"""Protocols: the ways to test a model, and where on a text.

L is the training length and N a test length. Which targets are scored depends only on the
validation split, not on L or on the lengths asked for. So every scheme is tested on the same
targets, and every comparison is paired, block by block. A block is a place of fixed_targets or
windowed, or a chunk of the text in nonoverlapping.

To add a protocol, write a function that gives its windows, and an entry of PROTOCOLS.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from common.errors import UserError
from data.batches import evenly
from data.corpus import Corpus
from measure import predictor

DEFAULT_WINDOWS = 64  # places of fixed_targets by default
NUM_CHUNKS = 16  # of the text in nonoverlapping
CHUNK_SIZE = 4096  # inputs of a chunk, at most
MAX_SCORED = 32  # targets at a place of fixed_targets
MAX_LENGTH = 65536  # inputs, a power of two
LONG_DOCUMENTS = 4096  # inputs; if documents allow only shorter windows, these run across documents


# ---- where a text is tested


@dataclass(frozen=True)
class Places:
    """Where a validation split is tested: the same for every scheme and every length.

    `candidates` are the targets that have `max_length` inputs before them in their document, or in
    the whole split if the places are `across_documents`.
    """

    corpus: str  # its name
    max_length: int  # the longest test length of fixed_targets, in inputs
    candidates: int
    ends: np.ndarray  # (windows,) offset of each place's last target, in van der Corput's order
    n_scored: int  # targets at a place
    tokens: int  # in the split
    across_documents: bool  # whether the windows run across the starts of documents


def find_places(corpus: Corpus, windows: int = DEFAULT_WINDOWS) -> Places:
    """The first `windows` places of a corpus, in van der Corput's order.

    They depend on its validation split alone. They are chosen among the targets that have
    `max_length` inputs before them, so that the first 2, 4, 8 ... are spread evenly.
    """
    n_tokens = len(corpus.val)
    starts = corpus.val_starts
    inputs = np.arange(n_tokens)  # how many stand before each token, (n_tokens,)
    in_document = inputs - np.repeat(starts, np.diff(starts, append=n_tokens))
    across = longest_length(in_document) < LONG_DOCUMENTS and len(starts) > 1
    if not across:
        inputs = in_document
    max_length = longest_length(inputs)
    candidates = np.flatnonzero(inputs >= max_length)  # offsets
    # van der Corput: 0, 1/2, 1/4, 3/4, 1/8 ... of all candidates
    shares = np.zeros(1)
    while len(shares) < windows:
        shares = np.append(shares, shares + 0.5 / len(shares))
    ends = candidates[(shares * len(candidates)).astype(np.int64)]
    # so few that the first of several short windows has its inputs, too
    scored = max(1, min(MAX_SCORED, max_length // 4))
    return Places(corpus.name, max_length, len(candidates), ends, scored, n_tokens, across)


def floor_power_of_two(number: int) -> int:
    """The largest power of two that is not above a number, 0 for 0."""
    return (1 << number.bit_length()) >> 1


def longest_length(inputs: np.ndarray) -> int:
    """The largest power of two such that at least half of the tokens have that many inputs before
    them; `inputs` says how many each token has.
    """
    median = np.quantile(inputs, 0.5, method="higher")  # at least half have as many
    return floor_power_of_two(min(MAX_LENGTH, int(median)))


# ---- what is read there


@dataclass(frozen=True)
class Window:
    """What a test reads in each of its blocks: `length` inputs, the last `scored` targets scored.

    A block may have several windows, whose scored targets follow one another.
    """

    ends: np.ndarray  # (blocks,) offset of the last target in each block
    length: int
    n_scored: int


def fixed_targets(places: Places, length: int) -> list[Window]:
    """The windows of `length` inputs that score the targets of the places, one block for each.

    A place has several windows if they are short: each scores its last length / 2 targets.
    UserError if the text is too short. (In a corpus with questions, they are the text around them.)
    """
    if length > places.max_length:
        raise UserError(
            f"the validation text of {places.corpus} allows tests of at most {places.max_length} "
            f"tokens, not {length}: lower that length (of eval_lengths, or block_size, which is "
            "always tested), or add longer documents"
        )
    if places.candidates < len(places.ends):
        raise UserError(
            f"the validation text of {places.corpus} has only {places.candidates} places for "
            f"{len(places.ends)} windows: lower eval_windows ({DEFAULT_WINDOWS} at least), or add "
            "text"
        )
    per_window = min(places.n_scored, max(1, length // 2))  # targets of a window
    windows = []
    # `after` targets of the place come after this window; the first window may score fewer
    for after in reversed(range(0, places.n_scored, per_window)):
        scored = min(per_window, places.n_scored - after)
        windows.append(Window(places.ends - after, length, scored))
    return windows


def nonoverlapping(places: Places, length: int) -> list[Window]:
    """The chunks, cut every `length` inputs; the last window may be shorter. All are scored.

    A chunk is longer than CHUNK_SIZE if `length` is. UserError if the text is too short.
    """
    size = min(CHUNK_SIZE, floor_power_of_two((places.tokens - 1) // NUM_CHUNKS))
    size = max(size, length)
    starts = evenly(places.tokens - size, NUM_CHUNKS)  # of the chunks
    if len(starts) < NUM_CHUNKS:
        raise UserError(
            f"the {places.tokens} validation tokens of {places.corpus} are too few for "
            f"{NUM_CHUNKS} chunks of {length}"
        )
    windows = []
    for first in range(0, size, length):
        end = min(first + length, size)
        windows.append(Window(starts + end, end - first, end - first))
    return windows


def targets_in(windows: list[Window]) -> np.ndarray:
    """The offsets of all scored targets in the split, (blocks, targets)."""
    parts = [window.ends[:, None] + np.arange(1 - window.n_scored, 1) for window in windows]
    return np.concatenate(parts, axis=1)


def key_targets(corpus: Corpus, places: Places) -> np.ndarray:
    """Which targets of the places far context makes predictable: those that a predictor by counts
    and longest match finds with a long context but not with a short one, (places, scored).
    """
    # the predictor's weights are fitted on as many other places
    others = find_places(corpus, 2 * len(places.ends)).ends[len(places.ends) :]
    lengths = [predictor.NEAR, places.max_length]
    near, far = predictor.known_losses(corpus, places.ends, others, places.n_scored, lengths)
    return predictor.are_key(near, far)


# ---- protocols


@dataclass(frozen=True)
class Protocol:
    """A way to test: whoever wants to know something about one reads it here.

    On a text, `windows` of the places and a length are what is read. A protocol with `chosen` needs
    no pass of its own: it is the mean over some targets of fixed_targets. One with neither belongs
    to corpora that are no plain text.
    """

    name: str
    windows: Callable[[Places, int], list[Window]] | None = None
    chosen: Callable[[Corpus, Places], np.ndarray] | None = None  # a bool for each target
    limits_keys: bool = False  # to i - j < L, from a query at i
    in_places: bool = True  # its blocks are the places; else their number is always the same
    same_targets: bool = False  # at every length
    counted_by: Literal["", "distance", "text"] = ""  # of answers: their distance, or whole texts
    over_seeds: bool = False  # its loss is compared over seeds, and drawn
    # of the table of a run: its columns, each with a line that explains it, or ""; {n} is the
    # number of targets
    columns: Mapping[str, str] = field(default_factory=dict)


PROTOCOLS = (
    Protocol(
        "fixed_targets",
        fixed_targets,
        same_targets=True,
        over_seeds=True,
        columns={
            "fixed_targets": "",
            "stderr": "",
            "gain": "gain: loss(L) - loss(N), below zero where longer texts do harm; "
            "±: standard errors",
            "gain_stderr": "",
        },
    ),
    Protocol(
        "key_targets",
        chosen=key_targets,
        same_targets=True,
        columns={
            "key_targets": "key_targets: the {n:.0f} of fixed_targets that far context makes "
            "predictable"
        },
    ),
    Protocol(
        "windowed",
        fixed_targets,
        limits_keys=True,
        same_targets=True,
        columns={
            "windowed": "windowed: fixed_targets where a layer sees the last L keys, and what is "
            "mixed into them, as by canon"
        },
    ),
    Protocol(
        "nonoverlapping",
        nonoverlapping,
        in_places=False,
        columns={
            "nonoverlapping": "nonoverlapping, bits/byte: what papers print; no evidence of "
            "extrapolation",
            "bits/byte": "bits/byte: of its text alone; end tokens count in neither nats nor bytes",
        },
    ),
    Protocol("image", in_places=False, over_seeds=True, columns={"image": ""}),
    Protocol("recall", counted_by="distance"),
    Protocol("needles", counted_by="distance"),
    Protocol("exact_match", counted_by="text"),
)


def find_protocol(name: str) -> Protocol:
    """The protocol of this name; UserError if there is none."""
    for protocol in PROTOCOLS:
        if protocol.name == name:
            return protocol
    raise UserError(f"there is no protocol {name!r:.60}")


def of_text(names: Sequence[str] = ()) -> list[Protocol]:
    """The protocols of text of these names, by default all; UserError for another name."""
    known = {protocol.name: protocol for protocol in PROTOCOLS if protocol.windows}
    for name in names:
        if name not in known:
            raise UserError(
                f"protocols: {name!r:.60} is none of {', '.join(known)} (key_targets come with "
                "fixed_targets)"
            )
    return [known[name] for name in names or known]


def tested_lengths(block_size: int, lengths: Iterable[int] = ()) -> list[int]:
    """The lengths to test, in ascending order: L, and those given, else L/2, 2L, 4L ... 32L."""
    lengths = lengths or [block_size * 2**k // 2 for k in range(7)]
    return sorted({block_size, *lengths})


# ---- a test


def check_lengths(corpus: Corpus, windows: int, lengths: Sequence[int]) -> None:
    """Raise UserError, before training, if a text is too short for a test at these lengths."""
    if corpus.is_text:
        places = find_places(corpus, windows)
        for length in lengths:
            fixed_targets(places, length)
