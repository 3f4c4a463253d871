"""What a text holds beyond L: the loss of a simple predictor against the length of its context.

A model can only gain from far context what is there. This predictor counts what follows the last
few tokens in the training split, and looks for the longest match of its own context, as gzip does:

    P(x) = (1 - a) P_counts(x) + a [x is what followed the longest match]

The share `a` is fitted for each length of match on other places of the same text. So the curve
tells what copying from far back is worth; it says nothing about meaning that is not repeated.
"""

import json
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from configurable import UserError, check_shape, read_json
from data import Corpus

COUNTED = 2**23  # tokens of the training split that are counted
ORDERS = {"byte": 5, "char": 5, "token": 2}  # the longest context that is counted, by unit
MATCHED = 32  # the longest match that is told apart
SHARES = np.concatenate([[0], np.geomspace(1e-3, 0.999, 60)])


def keys(tokens: np.ndarray, order: int) -> np.ndarray:
    """A number for each `order` tokens in a row: equal texts, equal keys.

    (..., n) tokens -> (..., n - order + 1) uint64.
    """
    n = tokens.shape[-1] - order + 1
    found = np.zeros((*tokens.shape[:-1], n), dtype=np.uint64)
    for k in range(order):
        found = (found ^ tokens[..., k : k + n].astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        found ^= found >> np.uint64(29)
    return found


def count_probabilities(corpus: Corpus, contexts: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """P_counts of each target after its context, (n, order) and (n,) tokens -> (n,).

    The counts of order k are mixed with those of k - 1 as method C of prediction by partial
    matching does (Moffat 1990): a context seen n times before t different tokens has n / (n + t).
    """
    text = corpus.train[:COUNTED].astype(np.int64)
    found = np.full(len(targets), 1 / corpus.vocab_size)
    for order in range(contexts.shape[1] + 1):
        known, which = np.unique(keys(contexts, order)[:, -1], return_inverse=True)
        seen = keys(text, order)[:-1]  # what a token follows
        place = np.searchsorted(known, seen).clip(max=len(known) - 1)
        hit = np.flatnonzero(known[place] == seen)
        pairs = place[hit] * corpus.vocab_size + text[order:][hit]
        pairs, counts = np.unique(pairs, return_counts=True)
        owner = pairs // corpus.vocab_size
        total = np.bincount(owner, counts, len(known))[which]
        kinds = np.bincount(owner, minlength=len(known))[which]
        asked = which * corpus.vocab_size + targets
        first, last = (np.searchsorted(pairs, asked, side) for side in ("left", "right"))
        count = np.append(counts, 0)[np.where(last > first, first, -1)]
        found = np.where(total > 0, (count + kinds * found) / np.maximum(total + kinds, 1), found)
    return found


def longest_matches(text: np.ndarray, lengths: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """The longest match of the end of `text` within its last n tokens, for each n of `lengths`.

    Returns its length (0: none; at most MATCHED) and the token that followed it, the latest of the
    longest. Both (lengths,).
    """
    ends = np.arange(len(text) - 1)  # a match ends here, and the next token follows it
    matched, size = np.zeros(len(text) - 1, dtype=np.int64), 0
    while size < MATCHED and len(ends := ends[(ends >= size)]):
        ends = ends[text[ends - size] == text[len(text) - 1 - size]]
        size += 1
        matched[ends] = size
    best, following = np.zeros((2, len(lengths)), dtype=np.int64)
    for k, n in enumerate(lengths):
        first = max(0, len(text) - n)
        inside = np.minimum(matched[first:], np.arange(1, len(matched) - first + 1))
        best[k] = inside.max(initial=0)
        if best[k]:
            following[k] = text[first + np.flatnonzero(inside == best[k])[-1] + 1]
    return best, following


def context_losses(
    corpus: Corpus, ends: np.ndarray, others: np.ndarray, scored: int, lengths: Sequence[int]
) -> list[list[float]]:
    """Nats per token of the predictor with n tokens of context at each end, by n of `lengths`.

    The targets are the last `scored` ones of windows of the validation text that end at `ends`;
    the shares are fitted on those at `others`.
    """
    order, text = ORDERS[corpus.unit], corpus.val[:].astype(np.int64)
    places = [np.add.outer(each, np.arange(1 - scored, 1)).ravel() for each in (others, ends)]
    targets = np.concatenate(places)
    order = min(order, int(targets.min()))
    contexts = np.stack([text[t - order : t] for t in targets])
    counted = count_probabilities(corpus, contexts, text[targets])
    found = [longest_matches(text[max(0, t - max(lengths)) : t], lengths) for t in targets]
    sizes, following = (np.array(part) for part in zip(*found, strict=True))  # (targets, lengths)
    hits, every, losses = following == text[targets][:, None], np.arange(len(targets)), []
    fitted = every < len(places[0])
    for k in range(len(lengths)):
        mixed = counted[:, None] * (1 - SHARES) + SHARES * hits[:, k, None]  # (targets, shares)
        nats = -np.log(np.maximum(mixed, 1e-300))
        bins = np.ceil(np.log2(sizes[:, k] + 1)).astype(int)
        chosen = np.zeros_like(bins)  # of SHARES, by target; 0 where nothing matches
        for group in range(1, bins.max() + 1):
            own = bins == group
            chosen[own] = nats[own & fitted].sum(axis=0).argmin()
        tested = nats[every, chosen][~fitted]
        losses.append(tested.reshape(-1, scored).mean(axis=1).tolist())
    return losses


def known_losses(
    corpus: Corpus, ends: np.ndarray, others: np.ndarray, scored: int, lengths: Sequence[int]
) -> dict[int, list[float]]:
    """`context_losses` by length. They are kept in context.json beside the corpus, if it can be."""
    path = corpus.folder / "context.json"
    splits = [corpus.split_sha256(split) for split in ("train", "val")]
    asked = {"splits": splits, "ends": ends.tolist(), "others": others.tolist(), "scored": scored}
    known: dict[str, list[float]] = {}
    with suppress(UserError):  # missing or damaged: computed again
        kept = read_json(path, {"asked": dict, "nats": dict})
        check_shape(kept["nats"], dict.fromkeys(kept["nats"], [float]), "", "")
        known = kept["nats"] if kept["asked"] == asked else {}
    left = [n for n in lengths if str(n) not in known]
    if left:
        found = context_losses(corpus, ends, others, scored, left)
        known |= {str(n): nats for n, nats in zip(left, found, strict=True)}
        with suppress(OSError):  # a folder that cannot be written: computed again next time
            path.write_text(json.dumps({"asked": asked, "nats": known}), encoding="utf-8")
    return {n: known[str(n)] for n in lengths}
