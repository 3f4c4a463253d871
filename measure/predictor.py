"""How predictable a text is from context beyond L: an n-gram predictor's loss by context length.

A model can gain from far context only what is there. This predictor mixes n-gram counts from the
training split with the longest match in its own context, as gzip does:

    P(x) = (1 - a) P_counts(x) + a [x is what followed the longest match]

The weight `a` is fitted per match length on other positions of the same text. So the curve measures
the gain from copying from far back; it says nothing about meaning that is not repeated.
"""

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import pandas as pd

from data.corpus import Corpus

COUNTED = 2**23  # tokens of the training split that are counted
ORDERS = {"byte": 5, "char": 5, "token": 2}  # the longest context that is counted, by unit
MATCHED = 32  # the longest match length distinguished
NEAR = 128  # tokens of context from which a key target is not predictable
KEY_GAIN = 0.5  # nats that more context must gain at a key target ...
KEY_LOSS = 2.0  # ... to below this loss
SHARES = np.concatenate([[0], np.geomspace(1e-3, 0.999, 60)])  # the weights `a` that are tried


def hash_contexts(tokens: np.ndarray, order: int, vocab_size: int) -> np.ndarray:
    """A hash of every `order` consecutive tokens, (..., n) -> (..., n - order + 1) int64.

    Its digits are the tokens, in an odd base, so that it still hashes well when 64 bits overflow.
    """
    digits = (vocab_size | 1) ** np.arange(order)
    return np.lib.stride_tricks.sliding_window_view(tokens, order, axis=-1) @ digits


def count_probabilities(corpus: Corpus, contexts: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """P_counts of each target after its context, (n, order) and (n,) tokens -> (n,).

    Counts of order k are mixed with those of order k - 1 as in method C of prediction by partial
    matching (Moffat 1990): a context seen n times before t different tokens gets weight n / (n +
    t).
    """
    vocab_size = corpus.vocab_size
    text = corpus.train[:COUNTED].astype(np.int64)
    probability = np.full(len(targets), 1 / vocab_size)
    for order in range(contexts.shape[1] + 1):
        # the last `order` tokens before each target, as one number, (n,)
        asked = hash_contexts(contexts, order, vocab_size)[:, -1]
        pairs = pd.DataFrame(
            {"context": hash_contexts(text, order, vocab_size)[:-1], "token": text[order:]}
        )
        # how often each token follows each of these contexts in the text
        counts = pairs[pairs.context.isin(asked)].value_counts(sort=False)
        by_context = counts.groupby("context")
        total = by_context.sum().reindex(asked, fill_value=0).to_numpy()
        kinds = by_context.size().reindex(asked, fill_value=0).to_numpy()
        wanted = pd.MultiIndex.from_arrays([asked, targets])
        count = counts.reindex(wanted, fill_value=0).to_numpy()
        mixed = (count + kinds * probability) / np.maximum(total + kinds, 1)
        probability = np.where(total > 0, mixed, probability)
    return probability


def longest_match(text: np.ndarray) -> tuple[int, int]:
    """The longest match of the end of `text` before it: its length, at most MATCHED, and the token
    that followed it. Of equally long matches it is the latest; (0, 0) if there is none.
    """
    last = len(text) - 1
    ends = np.arange(last)  # a match of `size` tokens ends here
    size = 0
    while size < MATCHED:
        longer = ends[ends >= size]
        longer = longer[text[longer - size] == text[last - size]]
        if len(longer) == 0:
            break
        ends = longer
        size += 1
    if size == 0:
        return 0, 0
    return size, int(text[ends[-1] + 1])


def predictor_losses(
    corpus: Corpus, measured: np.ndarray, fitted: np.ndarray, scored: int, lengths: Sequence[int]
) -> np.ndarray:
    """The predictor's loss in nats at each target, for each context length in `lengths`.

    Returns (lengths, measured, scored). The targets are the last `scored` tokens of windows of the
    validation text that end at `measured`; the weights are fitted on windows that end at `fitted`.
    """
    text = corpus.val.astype(np.int64)
    ends = np.concatenate([measured, fitted])
    places = (ends[:, None] + np.arange(1 - scored, 1)).ravel()  # of all targets, (n,)
    targets = text[places]
    is_fitted = np.repeat(np.arange(len(ends)) >= len(measured), scored)
    order = min(ORDERS[corpus.unit], int(places.min()))
    contexts = text[places[:, None] + np.arange(-order, 0)]
    counted = count_probabilities(corpus, contexts, targets)[:, None]
    losses = []
    for length in lengths:
        matches = [longest_match(text[max(0, place - length) : place]) for place in places]
        size, token = np.array(matches).T  # (n,) each
        hits = (token == targets)[:, None]
        probability = counted * (1 - SHARES) + SHARES * hits  # (n, shares)
        nats = -np.log(probability)
        # a weight for matches of 1 token, of 2 to 3, 4 to 7 ...; 0 without a match
        group = np.frexp(size)[1]
        best = nats[:, 0].copy()
        for number in range(1, group.max() + 1):
            share = nats[is_fitted & (group == number)].sum(axis=0).argmin()
            best[group == number] = nats[group == number, share]
        losses.append(best[~is_fitted].reshape(-1, scored))
    return np.array(losses)


def known_losses(
    corpus: Corpus, measured: np.ndarray, fitted: np.ndarray, scored: int, lengths: Sequence[int]
) -> np.ndarray:
    """`predictor_losses` in float32, cached in the corpus folder if it is writable."""
    places = [measured.tolist(), fitted.tolist()]
    rule = [ORDERS, MATCHED, COUNTED, SHARES.tolist()]
    asked = json.dumps([corpus.meta["splits"], places, scored, list(lengths), rule])
    digest = hashlib.sha256(asked.encode()).hexdigest()
    path = corpus.folder / f"context-{digest[:16]}.npy"
    with suppress(OSError, ValueError, EOFError):  # missing or damaged: recompute
        return np.load(path, allow_pickle=False)
    nats = predictor_losses(corpus, measured, fitted, scored, lengths).astype(np.float32)
    with suppress(OSError):
        np.save(path, nats)
    return nats


def are_key(near: np.ndarray, far: np.ndarray) -> np.ndarray:
    """Which targets become predictable with far context: bool, same shape as `near` and `far`, the
    predictor's nats with NEAR tokens of context and with many.

    A target is key if far context lowers the loss on it by more than KEY_GAIN, to below KEY_LOSS.
    On stdlib these are 287 of 2,048 targets, in 52 of 64 windows. The idea is LongPPL's (Fang et
    al. 2024, arXiv 2410.23771), which uses a large model as judge and a gain of 2 nats; that would
    leave 114 targets on stdlib, as a byte has fewer nats than a token. A counting judge shares no
    weakness with any scheme, but it knows only copies.
    """
    return (near - far > KEY_GAIN) & (far < KEY_LOSS)
