"""What a text offers: the predictor against a slow one, and texts made to repeat themselves."""

from collections import Counter

import numpy as np
import pytest
from conftest import write_bytes

from data.corpus import load_corpus
from measure import predictor


def make(folder, train, val):
    """A corpus of bytes with one document in each split."""
    write_bytes(folder, [train], [val])
    return load_corpus(folder.name, folder.parent)


def slow_probability(text, before, target, order):
    """Moffat's mixture by counting with slices."""
    probability = 1 / 256
    for k in range(order + 1):
        ending = before[len(before) - k :]
        after = Counter(text[i + k] for i in range(len(text) - k) if text[i : i + k] == ending)
        if after:
            total = sum(after.values())
            probability = (after[target] + len(after) * probability) / (total + len(after))
    return probability


def slow_match(text, n):
    """The longest match of the end of the last n bytes, by trying all."""
    text = text[max(0, len(text) - n) :]
    best = [0, 0]
    for end in range(len(text) - 1):
        size = 0
        while size <= end and size < predictor.MATCHED and text[end - size] == text[-1 - size]:
            size += 1
        if size and size >= best[0]:
            best = [size, text[end + 1]]
    return best


def test_counts_equal_those_made_with_slices(tmp_path):
    text = b"the cat sat on the mat and the hat sat on the cat again " * 3
    corpus = make(tmp_path / "small", text, b"the dog sat on the hat, the cat ran." * 2)
    val = corpus.val.astype(np.uint8).tobytes()
    places = np.arange(5, len(val))
    contexts = np.stack([corpus.val[t - 5 : t] for t in places]).astype(np.int64)
    found = predictor.count_probabilities(corpus, contexts, corpus.val[places].astype(np.int64))
    wanted = [slow_probability(text, val[t - 5 : t], val[t], 5) for t in places]
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    all_tokens = predictor.count_probabilities(
        corpus, np.tile(contexts[:1], (256, 1)), np.arange(256)
    )
    assert all_tokens.sum() == pytest.approx(1, abs=1e-12)


def test_the_longest_match_equals_one_found_by_trying():
    generator = np.random.default_rng(0)
    lengths = (1, 2, 5, 17, 64)
    for _ in range(60):
        text = generator.integers(3, size=int(generator.integers(2, 90)))
        for n in lengths:
            found = predictor.longest_match(text[-n:])
            assert list(found) == slow_match(bytes(text.tolist()), n)


def test_far_context_is_worth_what_the_text_repeats_and_nothing_in_noise(tmp_path):
    generator = np.random.default_rng(1)
    noise = bytes(generator.integers(97, 123, size=9000).tolist())
    repeated = noise[:400] * 20
    ends = np.arange(2000, 7500, 260), np.arange(2130, 7630, 260)
    gains = {}
    for name, val in (("repeated", repeated), ("noise", noise)):
        corpus = make(tmp_path / name, noise[::-1], val)
        near, far = predictor.predictor_losses(corpus, *ends, 32, [128, 1024])
        gains[name] = near.mean() - far.mean()
    assert gains["repeated"] > 2 and abs(gains["noise"]) < 0.1


def test_key_targets_are_those_that_a_far_passage_repeats(tmp_path):
    """Noise with a passage that stood 600 tokens before: only its repetition is predictable."""
    generator = np.random.default_rng(3)
    val = generator.integers(0, 256, size=40000)
    ends = np.arange(2000, 38000, 500)
    repeated = set()
    for k, end in enumerate(ends):
        if k % 3:  # from `first` on, the last tokens of the window
            first = int(generator.integers(1, 24))
            val[end - 31 + first : end + 1] = val[end - 631 + first : end - 599]
            repeated |= set(range(end - 31 + first, end + 1))
    # every predicted token has followed its match before: the first one of a passage follows none
    noise = bytes(generator.integers(0, 256, size=9000).tolist())
    corpus = make(tmp_path / "passages", noise, bytes(val.tolist()))
    measured, fitted = np.split(ends, 2)
    lengths = [predictor.NEAR, 512, 1024]
    near, middle, far = predictor.predictor_losses(corpus, measured, fitted, 32, lengths)
    is_key = predictor.are_key(near, far)
    assert is_key.shape == (len(measured), 32)
    text, wanted = bytes(val.tolist()), []
    for place in (measured[:, None] + np.arange(-31, 1)).ravel():
        sizes = {}
        for n in (predictor.NEAR, 1024):
            size, token = slow_match(text[:place], n)
            sizes[n] = size if token == val[place] else 0
        # matches of one token are chance in noise
        wanted.append(int(place) in repeated and sizes[1024] >= 2 and sizes[predictor.NEAR] < 2)
    found = is_key.ravel()
    assert found.tolist() == wanted and 300 < found.sum() < found.size
    # where the passage is nearer than NEAR, or out of the room, there is none
    assert not predictor.are_key(near, middle).any()


def test_losses_are_kept_and_computed_again_for_other_places_or_if_damaged(tmp_path):
    noise = bytes(np.random.default_rng(0).integers(97, 101, size=3600).tolist())
    corpus = make(tmp_path / "small", noise, noise[::-1])
    measured, fitted = np.arange(600, 1400, 90), np.arange(607, 1407, 90)
    ends = {"measured": measured, "fitted": fitted}
    first = predictor.known_losses(corpus, **ends, scored=8, lengths=[32, 64])
    assert first.shape == (2, len(measured), 8)
    (path,) = corpus.folder.glob("context-*.npy")
    np.save(path, first + 1)  # so that it shows what is read
    assert (predictor.known_losses(corpus, **ends, scored=8, lengths=[32, 64]) == first + 1).all()
    assert (
        predictor.known_losses(corpus, **ends, scored=8, lengths=[32, 256])[0] == first[0]
    ).all()
    assert (predictor.known_losses(corpus, measured + 1, fitted, 8, [32, 64]) != first).any()
    assert (predictor.known_losses(corpus, measured, fitted[:3], 8, [32, 64]) != first).any()
    for damage in (b"", b"{", path.read_bytes()[:200]):
        path.write_bytes(damage)
        assert (predictor.known_losses(corpus, **ends, scored=8, lengths=[32, 64]) == first).all()
    path.unlink()
    path.mkdir()  # a place that cannot be written
    assert (predictor.known_losses(corpus, **ends, scored=8, lengths=[32, 64]) == first).all()
