"""What a text holds beyond L: the predictor against a slow one, and texts made to repeat themselves."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import data
from data import context
from runs import tables


def make(folder: Path, train: bytes, val: bytes) -> data.Corpus:
    """A corpus of bytes with one document in each split."""
    splits = {
        name: [np.frombuffer(text, np.uint8)] for name, text in (("train", train), ("val", val))
    }
    data.write_corpus(folder, splits, tokenizer="bytes", source="a test", rule="as given")
    return data.load(folder.name, folder.parent)


def slow_probability(text: bytes, before: bytes, target: int, order: int) -> float:
    """Moffat's mixture by counting with slices."""
    found = 1 / 256
    for k in range(order + 1):
        ending = before[len(before) - k :]
        after = Counter(text[i + k] for i in range(len(text) - k) if text[i : i + k] == ending)
        if after:
            total, kinds = sum(after.values()), len(after)
            found = (after[target] + kinds * found) / (total + kinds)
    return found


def slow_match(text: bytes, n: int) -> tuple[int, int]:
    """The longest match of the end of the last n bytes, by trying all."""
    text = text[max(0, len(text) - n) :]
    best, following = 0, 0
    for end in range(len(text) - 1):
        size = 0
        while size <= end and size < context.MATCHED and text[end - size] == text[-1 - size]:
            size += 1
        if size and size >= best:
            best, following = size, text[end + 1]
    return best, following


def test_counts_equal_those_made_with_slices(tmp_path: Path) -> None:
    text = b"the cat sat on the mat and the hat sat on the cat again " * 3
    corpus = make(tmp_path / "small", text, b"the dog sat on the hat, the cat ran." * 2)
    val = corpus.val.astype(np.uint8).tobytes()
    places = np.arange(5, len(val))
    contexts = np.stack([corpus.val[t - 5 : t] for t in places]).astype(np.int64)
    found = context.count_probabilities(corpus, contexts, corpus.val[places].astype(np.int64))
    wanted = [slow_probability(text, val[t - 5 : t], val[t], 5) for t in places]
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_probabilities_of_all_tokens_add_up_to_one(tmp_path: Path) -> None:
    corpus = make(tmp_path / "small", b"abracadabra " * 9, b"abracadabra")
    contexts = np.tile(np.frombuffer(b"cadab", np.uint8).astype(np.int64), (256, 1))
    found = context.count_probabilities(corpus, contexts, np.arange(256))
    assert found.sum() == pytest.approx(1, abs=1e-12)


def test_longest_match_equals_one_found_by_trying() -> None:
    generator = np.random.default_rng(0)
    for _ in range(60):
        text = generator.integers(3, size=int(generator.integers(2, 90)))
        lengths = (1, 2, 5, 17, 64)
        sizes, following = context.longest_matches(text, lengths)
        wanted = [slow_match(bytes(text.tolist()), n) for n in lengths]
        assert list(zip(sizes.tolist(), following.tolist(), strict=True)) == wanted


def test_a_text_that_repeats_itself_far_back_is_worth_that_far_context(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    noise = bytes(generator.integers(97, 123, size=9000).tolist())
    pieces = [noise[k : k + 300] * 2 for k in range(0, 9000, 300)]  # each comes again 300 later
    corpus = make(tmp_path / "small", noise[:2000], b"".join(pieces))
    ends = np.arange(560, 17000, 600)  # in the second half of a piece
    losses = np.mean(context.context_losses(corpus, ends[::2], ends[1::2], 8, (64, 256, 512)), 1)
    assert losses[0] == pytest.approx(losses[1], abs=0.3)
    assert losses[2] < 0.05 < 3 < losses[0]


def test_a_text_of_noise_gains_nothing_from_far_context(tmp_path: Path) -> None:
    noise = np.random.default_rng(2).integers(97, 123, size=40000)
    corpus = make(tmp_path / "small", bytes(noise[:8000].tolist()), bytes(noise[8000:].tolist()))
    ends = np.arange(5000, 32000, 300)
    near, far = np.mean(context.context_losses(corpus, ends[::2], ends[1::2], 16, (64, 4096)), 1)
    assert near > np.log(26)
    assert far == pytest.approx(near, abs=0.05)


def test_shares_are_fitted_on_other_places_alone(tmp_path: Path) -> None:
    noise = bytes(np.random.default_rng(3).integers(97, 123, size=12000).tolist())
    corpus = make(tmp_path / "small", noise[:2000], noise[2000:] + noise[-1000:])
    ends, others = np.arange(10300, 10900, 60), np.arange(2000, 9000, 500)  # a copy, and noise
    unknown = np.mean(context.context_losses(corpus, ends, others, 8, (2048,)))
    known = np.mean(context.context_losses(corpus, ends, ends + 30, 8, (2048,)))
    assert known < 0.05 < 3 < unknown


def test_losses_are_kept_beside_the_corpus_and_computed_again_for_other_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = make(tmp_path / "small", b"abcab" * 400, b"abacab" * 800)
    ends, others = np.arange(600, 4000, 200), np.arange(700, 4000, 200)
    first = context.known_losses(corpus, ends, others, 4, (64, 256))
    computed = []
    losses = context.context_losses
    monkeypatch.setattr(
        context, "context_losses", lambda *args: computed.append(args[-1]) or losses(*args)
    )
    assert context.known_losses(corpus, ends, others, 4, (64, 256)) == first and not computed
    more = context.known_losses(corpus, ends, others, 4, (64, 256, 512))
    assert computed == [[512]] and more[64] == first[64]
    context.known_losses(corpus, ends + 1, others, 4, (64,))
    assert computed == [[512], [64]]


@pytest.mark.parametrize(
    "damaged", ["", "[]", "{}", '{"asked": 1, "nats": 2}', "[3.5]", "null", '["a"]', '{"64": "x"}']
)
def test_losses_in_a_damaged_file_are_computed_again(tmp_path: Path, damaged: str) -> None:
    corpus = make(tmp_path / "small", b"abcab" * 400, b"abacab" * 800)
    ends, others = np.arange(600, 4000, 200), np.arange(700, 4000, 200)
    right = context.known_losses(corpus, ends, others, 4, (64,))
    assert np.shape(right[64]) == (len(ends),)
    path = corpus.folder / "context.json"
    good = path.read_text(encoding="utf-8")
    inside = good.split('"nats"')[0] + f'"nats": {damaged}}}'
    older = good.replace(str(right[64]), "2.5")  # the mean alone
    for text in (damaged, inside, good.replace(str(right[64]), "null"), older):
        assert text != good
        path.write_text(text, encoding="utf-8")
        assert context.known_losses(corpus, ends, others, 4, (64,)) == right
        assert json.loads(path.read_text(encoding="utf-8"))["nats"]["64"] == right[64]


def test_a_corpus_whose_folder_cannot_be_written_is_computed_each_time(tmp_path: Path) -> None:
    corpus = make(tmp_path / "small", b"abcab" * 400, b"abacab" * 800)
    lost = replace(corpus, folder=tmp_path / "absent")
    ends, others = np.arange(600, 4000, 200), np.arange(700, 4000, 200)
    kept = context.known_losses(corpus, ends, others, 4, (64,))
    assert context.known_losses(lost, ends, others, 4, (64,)) == kept


def test_the_losses_of_a_place_are_those_of_that_place_alone(tmp_path: Path) -> None:
    generator = np.random.default_rng(4)
    noise = bytes(generator.integers(97, 123, size=9000).tolist())
    pieces = [noise[k : k + 300] * 2 for k in range(0, 9000, 300)]  # each comes again 300 later
    corpus = make(tmp_path / "small", noise[:2000], b"".join(pieces))
    first, again = np.arange(5060, 15000, 600), np.arange(5360, 15000, 600)
    ends = np.sort([*first[:16], *again[:16]])
    (losses,) = context.context_losses(corpus, ends, ends + 31, 8, (512,))
    assert len(losses) == 32 and max(losses[1::2]) < 1 < 2.5 < min(losses[::2])


def test_what_the_text_offers_has_the_error_of_paired_places_and_a_mark() -> None:
    near, noise = np.linspace(2, 4, 64), np.tile([1.0, -1.0], 32)
    nats = {128: near, 256: near - 0.5 + 0.1 * noise, 512: near - 0.02 + 0.1 * noise}
    rows = {("fixed_targets", n): {"text_nats": each.tolist()} for n, each in nats.items()}
    stderr = 0.1 * np.sqrt(64 / 63) / 8
    assert tables.offered(rows, 128, 256) == f"+0.5000 ± {stderr:.4f} "
    assert tables.offered(rows, 128, 512) == f"+0.0200 ± {stderr:.4f}~"
    rows["fixed_targets", 128]["text_nats"] = 3.0  # of an older result
    assert tables.offered(rows, 128, 256) == "+0.5000 "
    rows["fixed_targets", 256]["text_nats"] = 2.5
    assert tables.offered(rows, 128, 256) == "+0.5000 "


def test_a_table_says_beside_the_gain_what_the_text_offers(tmp_path: Path) -> None:
    rows = {
        ("fixed_targets", n): {"text_nats": nats} for n, nats in ((64, 3.0), (128, 2.0), (256, 1.5))
    }
    assert [tables.offered(rows, 128, n).strip() for n in (64, 128, 256)] == ["", "", "+0.5000"]
    assert tables.offered({("fixed_targets", 128): {}, ("fixed_targets", 256): {}}, 128, 256) == ""
