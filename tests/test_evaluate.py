"""Testing long: every protocol's numbers, worked out here from the definitions, window by window."""

import hashlib
import json
import math
import re
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

import data.recall.prepare as recall
import data.tasks.prepare as tasks
import evaluate
from common import device
from common.errors import UserError
from configurable import GPTConfig
from data import batches, tokenizers
from data.corpus import Corpus, load_corpus
from measure import protocols, questions
from measure.extrapolation import extrapolation, run_tests
from measure.protocols import of_text
from measure.tester import new_record
from measure.text import tuning_loss, tuning_places
from model import GPT
from tables import tables
from tables.reach import accuracies, answered, bin_table, lower_bound, reaches, table, verdict
from tables.records import Result, load_result

L, LENGTHS = 8, (4, 8, 16, 40)  # 16 does not divide 40
DOCUMENTS = (300, 30, 500, 200)
BF16 = device.Compute("cpu", torch.bfloat16, "for a test")


@pytest.fixture(autouse=True)
def known_targets(monkeypatch, no_predictor):
    """Key targets that no predictor chooses."""
    monkeypatch.setattr("measure.predictor.are_key", lambda near, far: key_by_hand(*near.shape))


def key_by_hand(places, scored):
    """Every place has other key targets, and another number of them."""
    return np.add.outer(np.arange(places), np.arange(scored) ** 2) % 7 == 0


class Known:
    """A model whose loss is a known function of the target and of how many tokens it may look at."""

    parameter_count, training = 7, True

    def __init__(self, limit=10**9, odd_beyond=10**9):
        self.limit, self.odd_beyond, self.calls = limit, odd_beyond, []
        self.pos = SimpleNamespace(extensions={}, extend_text="", factor=lambda n: None)
        self.pos.check_length = self.check_length

    def loss(self, target, visible):
        return 1.0 + target / 4 + 1.0 / visible + np.where(visible > self.odd_beyond, math.nan, 0)

    def losses(self, idx, targets, window=None):
        assert not self.training and not torch.is_grad_enabled()
        scored = targets >= 0
        last = targets.shape[1]  # targets of the last tokens
        assert (idx[:, idx.shape[1] - last + 1 :] == targets[:, :-1])[scored[:, :-1]].all()
        self.calls.append((tuple(idx.shape), window))
        visible = np.minimum(np.arange(1, idx.shape[1] + 1), window or 10**9)
        nats = self.loss(targets.numpy(), visible[-last:])
        if torch.is_autocast_enabled("cpu"):
            nats = nats + 0.25
        return torch.tensor(nats, dtype=torch.float32).where(scored, 0)

    def path_of(self, length, window=None):
        return f"path{length}/{window}"

    def check_length(self, total):
        if total > self.limit:
            raise UserError(f"the table ends at {self.limit}")

    def eval(self):
        self.training = False


AT_STEP_9 = {"step": 9, "tokens_trained": 99, "checkpoint": "cafe"}


def run_at(length):
    """What is said of a run of nine steps."""
    settings = {"pos": "rope", "extend": "", "seed": 1, "dataset": "toy"}
    return Result("rope", 1, length, 9, settings, **AT_STEP_9)


def corpus(documents, seed=0, name="toy", characters="aé€"):
    """A corpus in memory: `documents` are lengths, tokens random, of 1, 2 and 3 bytes."""
    val = np.random.default_rng(seed).integers(0, len(characters), sum(documents)).astype(np.uint16)
    starts = np.cumsum([0, *documents[:-1]])
    splits = {split: {"sha256": f"sha{seed}"} for split in ("train", "val")}
    meta = {"tokenizer": "char", "unit": "char", "vocab_size": len(characters), "splits": splits}
    meta["characters"] = characters
    return Corpus(name, Path("nowhere"), meta, val, val, starts, starts)


def measured(model=None, documents=DOCUMENTS, lengths=LENGTHS, compute=device.CPU, windows=64):
    """What extrapolation gives for a model on a corpus of such documents: {(protocol, N): row}."""
    tester = evaluate.Tester(model or Known(), corpus(documents), compute)
    result = extrapolation(tester, run_at(L), lengths, windows)
    json.dumps(asdict(result), allow_nan=False)  # can be written
    return {(record.protocol, record.length): record for record in result.records}


# ---- where a text is tested


def good_ends(documents, reach):
    """Every offset whose `reach` inputs before it are in its own document, found by looking."""
    owner = np.repeat(np.arange(len(documents)), documents)
    return [e for e in range(reach, len(owner)) if owner[e - reach] == owner[e]]


def reach_by_hand(documents):
    """The largest power of two, at most 65,536, that half of the tokens have before them."""
    powers = [r for r in (2**k for k in range(17)) if r < max(documents)]
    return max(r for r in powers if 2 * len(good_ends(documents, r)) >= sum(documents))


def ends_by_hand(documents, windows=64):
    """The places of a split: the number of a place, written in bits and read from behind, is how
    far it stands among the good ones.
    """
    good = good_ends(documents, reach_by_hand(documents))
    return [good[int(format(n, "016b")[::-1], 2) * len(good) // 65536] for n in range(windows)]


@pytest.mark.parametrize("documents", [DOCUMENTS, (141, 400), (3000, 10), (42,) * 70, (5000, 9000)])
@pytest.mark.parametrize("long", [1, 4096])
def test_places_are_targets_with_the_reach_before_them(documents, long, monkeypatch):
    monkeypatch.setattr(protocols, "LONG_DOCUMENTS", long)
    places = protocols.find_places(corpus(documents))
    across = reach_by_hand(documents) < long
    assert places.across_documents == across
    taken = [sum(documents)] if across else documents  # short documents are taken as one
    assert places.max_length == reach_by_hand(taken)
    assert places.ends.tolist() == ends_by_hand(taken)
    assert places.candidates == len(good_ends(taken, places.max_length))
    assert places.n_scored == min(32, places.max_length // 4)


def test_places_depend_on_the_split_alone_and_the_first_64_of_256_are_the_64():
    text = corpus([70000])
    few, many = protocols.find_places(text), protocols.find_places(text, 256)
    assert many.ends[:64].tolist() == few.ends.tolist()
    for count in (64, 128, 256):
        gaps = np.diff(np.sort(many.ends[:count]))
        assert gaps.max() - gaps.min() <= 1
    for n, size in ((65537, 4096), (65536, 2048)):  # inputs of a chunk
        assert len(protocols.nonoverlapping(protocols.find_places(corpus([n])), 1)) == size


# ---- the protocols, by hand


def check_by_hand(row, model, scored):
    """A row has the mean loss and the digest of the targets [(offset, visible tokens)]."""
    val = corpus(DOCUMENTS).val
    nats = [model.loss(float(val[target]), visible) for target, visible in scored]
    assert row.nats == pytest.approx(np.mean(nats), abs=1e-6)
    raw = b"".join(target.to_bytes(8, "little") for target in sorted(t for t, _ in scored))
    assert row.targets == hashlib.sha256(raw).hexdigest()
    assert row.tokens == len(scored)


@pytest.mark.parametrize("length", [2, 3, 8, 16, 20, 40, 63, 64, 65, 300])
def test_the_protocols_are_what_their_definitions_say(length):
    model = Known()
    rows = measured(model, lengths=(length,))
    for protocol, limit in (("fixed_targets", 10**9), ("windowed", L if length > L else 10**9)):
        each = max(1, length // 2)  # targets that the last window scores, and the one before ...
        scored = [
            (end - back, min(length - back % each, limit))
            for end in ends_by_hand([sum(DOCUMENTS)])
            for back in range(32)
        ]
        check_by_hand(rows[protocol, length], model, scored)
        assert rows[protocol, length].targets == rows["fixed_targets", L].targets
    starts = batches.evenly(sum(DOCUMENTS) - max(64, length), 16)  # of the 16 chunks of 64 tokens
    scored = [(p + t + 1, t % length + 1) for p in starts for t in range(max(64, length))]
    check_by_hand(rows["nonoverlapping", length], model, [(int(t), v) for t, v in scored])
    assert {shape[1] for shape, window in model.calls if window} <= {n for n in (length,) if n > L}


def test_a_real_model_gives_the_mean_cross_entropy_of_its_own_logits():
    torch.manual_seed(0)
    shape = {"block_size": L, "vocab_size": 3, "n_layer": 2, "n_head": 2, "n_embd": 16}
    model, nats = GPT(GPTConfig(pos="alibi", **shape)), []
    rows, val = measured(model, documents=(900,)), corpus((900,)).val
    for end in ends_by_hand([900]):
        for back in (24, 16, 8, 0):  # four windows of 16 inputs score the last 8 each
            x = torch.from_numpy(val[end - back - 16 : end - back + 1].astype(np.int64))[None]
            logits = model.eval()(x[:, :-1], x[:, 1:])[0][0, 8:].log_softmax(-1)
            nats += (-logits.gather(1, x[0, 9:, None])).squeeze(1).tolist()
    assert rows["fixed_targets", 16].nats == pytest.approx(np.mean(nats), abs=1e-5)
    fixed, windowed = (rows[name, 40].block_nats for name in ("fixed_targets", "windowed"))
    assert fixed != windowed
    assert rows["windowed", 8].block_nats == rows["fixed_targets", 8].block_nats
    learned = measured(GPT(GPTConfig(pos="learned", **shape)), documents=(900,))
    assert learned["fixed_targets", 8].nats and "learned" in learned["windowed", 16].reason


def test_no_number_depends_on_other_lengths_the_batch_or_more_windows(monkeypatch):
    few = measured(documents=(70000,), lengths=(16, 300))
    many = measured(documents=(70000,), lengths=(24, 300), windows=256)
    blocks = [rows["fixed_targets", 300].block_nats for rows in (few, many)]
    assert blocks[1][:64] == blocks[0] and len(blocks[1]) == 256
    monkeypatch.setattr("measure.tester.BATCH_TOKENS", 1)
    one = measured(documents=(70000,), lengths=(300,))
    assert one["nonoverlapping", 300].block_nats == few["nonoverlapping", 300].block_nats


def test_a_text_of_any_length_is_read_in_its_order():
    text, model, read = corpus([67000]), Known(), []
    length = 65600  # beyond the largest reach of fixed_targets

    def losses(idx, targets, window=None):
        read.append(idx)
        return torch.zeros(targets.shape)

    model.losses = losses
    windows = protocols.nonoverlapping(protocols.find_places(text), length)
    evaluate.Tester(model, text).nats(windows)
    first = windows[0].ends[0] - length
    assert read[0][0].tolist() == text.val[first : first + length].tolist()


# ---- key targets


@pytest.mark.parametrize("length", [3, 16, 20, 40, 65])
def test_the_loss_of_key_targets_is_that_of_the_model_on_them_from_one_pass(length):
    model = Known()
    with_keys = measured(model, lengths=(length,))
    calls, row = len(model.calls), with_keys["key_targets", length]
    is_key = key_by_hand(64, 32)
    each = max(1, length // 2)
    scored, place = [], []
    for k, end in enumerate(ends_by_hand([sum(DOCUMENTS)])):
        for back in range(32):
            if is_key[k, 31 - back]:
                scored.append((end - back, length - back % each))
                place.append(k)
    check_by_hand(row, model, scored)
    assert row.targets == with_keys["key_targets", L].targets
    assert row.targets != with_keys["fixed_targets", length].targets
    # the standard error of a ratio of sums: Cochran 1977, 6.13, in float64
    val = corpus(DOCUMENTS).val
    left = np.zeros(64)
    for k, (target, visible) in zip(place, scored, strict=True):
        left[k] += model.loss(float(val[target]), visible) - row.nats
    by_hand = math.sqrt(64 / 63 * (left**2).sum()) / len(scored)
    assert row.stderr == pytest.approx(by_hand, rel=1e-4)
    assert np.mean(row.block_nats) == pytest.approx(row.nats, abs=1e-6)
    # every other number is the same, and the model is asked no more, where no target is key
    model = Known()
    with pytest.MonkeyPatch.context() as patch:
        none = np.zeros((64, 32), dtype=bool)
        patch.setattr("measure.predictor.are_key", lambda *args: none)
        without = measured(model, lengths=(length,))
    assert len(model.calls) == calls
    assert ("key_targets", length) not in without
    fixed = [rows["fixed_targets", length].block_nats for rows in (without, with_keys)]
    assert fixed[0] == fixed[1]


def test_key_targets_do_not_depend_on_other_lengths_and_share_the_reason_of_fixed_targets():
    few, many = measured(lengths=(40,)), measured(Known(odd_beyond=50), lengths=(4, 40, 60))
    for n in (L, 40):
        for field in ("targets", "block_nats", "stderr_vs_L"):
            ours, theirs = few["key_targets", n], many["key_targets", n]
            assert getattr(ours, field) == getattr(theirs, field)
    assert many["key_targets", 60].diverged and many["key_targets", 60].nats is None
    ended = measured(Known(limit=16))
    assert ended["key_targets", 40].reason == "the table ends at 16"
    assert ("key_targets", L) not in {key for key in measured(Known(limit=1))}


# ---- a row


class Ended(tokenizers.Tokenizer):
    """Tokens of 1, 2 and 3 bytes after which documents end with a fourth, and a space before all."""

    unit = "char"
    vocabulary, prefix, end = [b" ", b" b", "€".encode(), b"<|end|>"], b" ", 3


@pytest.mark.parametrize("end", [3, None])
def test_bits_per_byte_leave_out_targets_without_text_from_nats_and_bytes(monkeypatch, end):
    monkeypatch.setattr("data.corpus.tokenizer_of", lambda meta, folder: Ended())
    monkeypatch.setattr(Ended, "end", end)
    text, model = corpus(DOCUMENTS, characters="abcd"), Known()
    tester = evaluate.Tester(model, text)
    rows = extrapolation(tester, run_at(L), (40,), 64).records
    starts = text.val_starts.tolist()
    fixed = [
        (target - back, 40 - back % 20)  # two windows
        for target in ends_by_hand([sum(DOCUMENTS)])
        for back in reversed(range(32))
    ]
    keys = [pair for pair, key in zip(fixed, key_by_hand(64, 32).ravel(), strict=True) if key]
    pieces = batches.evenly(sum(DOCUMENTS) - 64, 16).tolist()
    chunks = [(p + t + 1, t % 40 + 1) for p in pieces for t in range(64)]
    limited = [(target, min(visible, L)) for target, visible in fixed]
    by_hand = dict(fixed_targets=fixed, windowed=limited, key_targets=keys, nonoverlapping=chunks)
    seen = set()
    for row in rows:
        if row.length != 40:
            continue
        seen.add(row.protocol)
        every, nats, n_bytes, left_out = [], 0.0, 0, 0
        for target, visible in by_hand[row.protocol]:
            token = int(text.val[target])
            every.append(float(model.loss(token, visible)))
            size = [1, 2, 3, 0 if end else 7][token]
            if target in starts and size:
                size -= 1  # the space is none of the text's
            nats += every[-1] * (size > 0)
            n_bytes += size
            left_out += size == 0
        assert row.nats == pytest.approx(np.mean(every), abs=1e-6)  # of all targets
        assert row.bits_per_byte == pytest.approx(nats / math.log(2) / n_bytes, abs=1e-6)
        assert row.without_bytes == left_out and (left_out > 30 or not end)
    assert seen == set(by_hand)


def test_the_first_token_takes_the_place_of_the_first_input_of_every_window():
    text, model, read = corpus(DOCUMENTS), Known(), []
    plain = model.losses

    def losses(idx, targets, window=None):
        read.append((idx, targets))
        return plain(idx, targets, window)

    model.losses = losses
    model.eval()
    windows = protocols.nonoverlapping(protocols.find_places(text), 16)
    of_text = evaluate.Tester(model, text).nats(windows)
    without = read.copy()
    read.clear()
    tester = evaluate.Tester(model, text, first_token=2)
    assert (tester.nats(windows) == of_text).all()  # of the same targets, all of them
    for (idx, targets), (other, same) in zip(read, without, strict=True):
        assert (idx[:, 0] == 2).all() and (other[:, 0] != 2).any()
        assert (idx[:, 1:] == other[:, 1:]).all() and (targets == same).all()
    row = new_record(tester, run_at(L), "fixed_targets", 16, 64)
    assert row.first_token == 2


def test_a_row_holds_what_the_format_says():
    rows = measured(compute=BF16)
    row, base = rows["windowed", 16], rows["windowed", L]
    blocks, at_l = np.array(row.block_nats), np.array(base.block_nats)
    assert row.stderr == pytest.approx(blocks.std(ddof=1) / 8)  # 64 windows
    assert row.stderr_vs_L == pytest.approx((blocks - at_l).std(ddof=1) / 8)
    assert row.perplexity == pytest.approx(math.exp(row.nats))
    ends, val = ends_by_hand([sum(DOCUMENTS)]), corpus(DOCUMENTS).val
    text = "".join("aé€"[val[end - back]] for end in ends for back in range(32))
    bits = row.nats * 2048 / math.log(2)
    assert row.bits_per_byte == pytest.approx(bits / len(text.encode()))  # of the scored targets
    expected = {"extend": "", "dataset": "toy", "split_sha256": "sha0", "windows": 64}
    expected |= {"dtype": "bfloat16", "attention": "path16/8"} | AT_STEP_9
    assert expected.items() <= asdict(row).items()
    assert "across documents" in row.note
    # eight windows of the longest are tested in float32 too: Known adds 0.25 in bfloat16
    assert "bfloat16 minus float32 is +0.25000 nats" in rows["fixed_targets", 40].note


def test_what_cannot_be_measured_is_a_row_with_its_reason():
    rows = measured(Known(limit=16))
    assert {rows[protocol.name, 40].reason for protocol in of_text()} == {"the table ends at 16"}
    assert rows["fixed_targets", 40].targets == rows["fixed_targets", 16].targets
    rows = measured(documents=(900,), lengths=(256, 257))
    assert rows["fixed_targets", 256].nats and rows["nonoverlapping", 257].nats
    assert rows["windowed", 257].reason.startswith(
        "the validation text of toy allows tests of at most 256 tokens, not 257"
    )
    rows = measured(documents=(15,))
    assert rows["nonoverlapping", 8].reason.endswith("too few for 16 chunks of 8")
    rows = measured(documents=(900,), windows=1024)
    assert rows["windowed", 8].reason.startswith(
        "the validation text of toy has only 644 places for 1024 windows"
    )


def test_a_loss_that_is_not_finite_is_a_finding():
    rows = measured(Known(odd_beyond=30), compute=BF16)
    assert rows["fixed_targets", 40].diverged and rows["fixed_targets", 40].nats is None
    assert rows["nonoverlapping", 40].reason.endswith("not finite in 16 of 16 blocks")
    assert rows["windowed", 40].nats is not None
    assert "float32" in rows["fixed_targets", 16].note  # the longest that has a loss


def test_a_note_warns_of_shared_targets():
    crowded = measured(documents=(97,), lengths=(4,))
    assert "share targets" in crowded["fixed_targets", 4].note


# ---- a loss to choose by


def test_a_tuning_loss_is_of_places_that_share_no_target_with_a_test():
    text, model = corpus([40000]), Known()
    model.eval()
    places, ends = protocols.find_places(text), tuning_places(text, 40, 64).ends
    own = [t for end in ends for t in range(end - 31, end + 1)]
    plans = [protocol.windows(places, n) for protocol in of_text() for n in (5, 64, 500)]
    used = {t for plan in plans for t in protocols.targets_in(plan).ravel()}
    assert len(ends) == 64 and len(set(own)) == 2048 and not used & set(own)
    tester = evaluate.Tester(model, text)
    seen = [40 - back % 20 for back in range(31, -1, -1)] * 64
    by_hand = [model.loss(float(text.val[t]), v) for t, v in zip(own, seen, strict=True)]
    with torch.no_grad():
        assert tuning_loss(tester, 40, 64) == pytest.approx(np.mean(by_hand), abs=1e-6)
        model.odd_beyond = 30
        assert not math.isfinite(tuning_loss(tester, 40, 64))
    with pytest.raises(UserError, match="too little validation text to choose by"):
        tuning_places(corpus([900]), 40, 64)


# ---- rows with answers


class Planted:
    """A reader of rows with questions that knows what it does: one of the kinds below."""

    def __init__(self, corpus, window=10**9, ordered=10**9):
        self.kinds, self.window, self.ordered = corpus.meta["questions"], window, ordered
        self.pos = Known().pos
        self.eval = lambda: self
        self.path_of = lambda length: "none"

    def value(self, name_writes, t):
        """The value of its answer to a question at t, of (place, value) of the name's writes."""
        seen = [(place, value) for place, value in name_writes if t - place <= self.window]
        if not seen:
            return t % 4  # a guess
        if t - seen[0][0] <= self.ordered:
            return seen[-1][1]
        return seen[t % len(seen)][1]  # a count: all are as frequent

    def losses_and_hits(self, idx, targets):
        first, end = self.kinds["first"], self.kinds["end"]
        hits = []
        for row, wanted in zip(idx.tolist(), targets.tolist(), strict=True):
            writes = {}
            for t, token in enumerate(row):
                if token >= end:
                    writes.setdefault((token - end) // 4, []).append((t, (token - end) % 4))
                if wanted[t] >= 0:
                    name_writes = writes.get(token - first, [])
                    hits.append(token >= first and wanted[t] == 256 + self.value(name_writes, t))
        return torch.full([len(hits)], 0.5), torch.tensor(hits)


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """Rows with questions of 1,024 inputs in noise: 32 L for L = 32."""
    folder = tmp_path_factory.mktemp("corpora")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recall, "TRAIN_TOKENS", {"noise": 4096})
        recall.prepare(folder / "recall", longest=1024, trained=128)
    return load_corpus("recall", folder)


def answers_of_reader(corpus, **how):
    """The rows of a planted reader at L and 32 L, and what they say of it."""
    tester = evaluate.Tester(Planted(corpus, **how), corpus)
    rows = extrapolation(tester, run_at(32), (1024,), 512).records
    return answered(pd.DataFrame(rows))


READERS = [
    ({"window": 64}, "finds names and knows their order up to (64|91) back, as a window of"),
    ({"ordered": 0}, "finds names up to 1024 back, and does not know their order"),
    ({"ordered": 64}, "finds names up to 1024 back, knows order up to 64"),
    ({"window": 3}, "has not learned to find a name"),
    ({}, "finds names and knows their order up to 1024 back"),
]


@pytest.mark.parametrize("how, sentence", READERS)
def test_planted_readers_are_told_by_name(asked, how, sentence):
    tested = answers_of_reader(asked, **how)
    assert [*tested.index] == [32, 1024] and tested.trained_size[1024] == 32
    assert re.match(sentence, verdict(tested))
    lines = bin_table(tested)
    assert lines["count"].min() >= 400 and set(lines.kind) == {"content", "order"}
    table = accuracies(tested)
    longest = lines[(lines.N == 1024) & (lines.kind == "content")]
    assert longest["first"].iloc[0] == 1 and longest.end.iloc[-1] >= 1024
    octaves = table.octaves.content
    assert octaves == pytest.approx(6, abs=0.51)  # from 16 to 1,024
    if not how:
        assert (table.inside == 1).all() and np.allclose(table.area, table.octaves)
        assert (table.gaps == 0).all()
    if how == {"ordered": 0}:  # counting is right in 1 of 3 exactly
        order = lines[lines.kind == "order"]
        z = order.above * (1 - 1 / 3) / np.sqrt(2 / 9 / order["count"])
        assert np.abs(z).max() < 4 and abs(z.mean()) < 4 / np.sqrt(len(z))
        assert table.area.content == pytest.approx(octaves) and abs(table.area.order) < 0.3
    if how == {"window": 64}:
        assert table.area.content == pytest.approx(2, abs=0.3)  # from 16 to 64
        far = longest[longest["first"] >= 64]
        guess = far.above * 0.75 / np.sqrt(3 / 16 / far["count"])
        assert np.abs(guess).max() < 4
        # 1.6 from 16 to 64, and 0.2 more where the latest write is nearer than the farthest
        assert table.area.order == pytest.approx(1.8, abs=0.2)


def test_the_lower_bound_is_wilsons():
    low = lower_bound(365, 400)  # by hand
    z, p = 1.959964, 365 / 400
    half = z * math.sqrt(p * (1 - p) / 400 + z * z / (4 * 400**2))
    assert low == pytest.approx((p + z * z / 800 - half) / (1 + z * z / 400), abs=1e-6)


def made_bins(above, inside=1.0, chance=0.25):
    """Rows of content at L = 64 and 2,048 with this accuracy above chance in bins of octaves."""

    def row(n, shares):
        right = [round(4000 * (chance + (1 - chance) * share)) for share in shares]
        binned = {"edges": [2**k for k in range(len(right) + 1)], "counts": [4000] * len(right)}
        by_distance = {"content": binned | {"right": right, "chance": chance}}
        return {"protocol": "recall", "nats": 0.1, "length": n, "trained_size": 64} | {
            "by_distance": by_distance
        }

    return answered(pd.DataFrame([row(64, [inside] * 6), row(2048, above)]))


def test_area_and_reach_are_those_of_the_definition():
    above = [1, 1, 1, 1, 0.9, 0.6, 0.4, 0.55, 0.1, 0, 0]
    line = accuracies(made_bins(above)).loc["content"]
    assert line.area == pytest.approx(sum(above[4:]), abs=1e-3)  # bins from 16 on, an octave each
    assert line.octaves == 7 and line.inside == 1 and line.reach == 256 and line.gaps == 1
    # half of what it has inside L is enough
    assert accuracies(made_bins(above, inside=0.7)).reach.content == 256
    assert accuracies(made_bins(above, inside=0.05)).reach.content == 0  # of a guess
    assert accuracies(made_bins([0.5] * 11)).reach.content == 0  # not surely above half
    assert accuracies(made_bins([0.0] * 11, inside=-0.2)).reach.content == 0
    assert reaches(made_bins(above)) == {"reach": 256}


def test_bins_of_distances_have_400_answers_and_are_half_octaves():
    asked = np.repeat(np.arange(1, 200), 400)
    assert questions.distance_bins(asked) == [
        1,
        2,
        3,
        4,
        6,
        8,
        12,
        16,
        23,
        32,
        46,
        64,
        91,
        128,
        182,
        256,
    ]
    few = np.concatenate([np.repeat([1, 2, 3], [399, 1, 400]), [100] * 399])
    assert questions.distance_bins(few) == [1, 3, 128]  # what is left joins the last
    assert questions.distance_bins(np.array([5, 9])) == [1, 12]


def test_exact_match_solves_sizes_up_to_the_first_that_fails():
    rows = answered(
        pd.DataFrame(
            {"length": [4, 8, 16, 32, 64], "exact": [100, 97, 92, 40, 95], "texts": 100}
            | {"protocol": "exact_match", "trained_size": 8, "nats": 0.1}
        )
    )
    assert reaches(rows) == {"reach": 16}
    assert verdict(rows) == "solves sizes up to 16"
    assert table(rows)["right"].tolist() == [1.0, 0.97, 0.92, 0.4, 0.95]


def test_rows_with_answers_are_rows_of_a_result(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tasks, "TRAIN_TEXTS", 40)
    monkeypatch.setattr(tasks, "TEST_TEXTS", 5)
    tasks.prepare(tmp_path / "copy")
    model = Known(limit=100)
    model.losses_and_hits = lambda idx, targets: torch.ones(2, int((targets >= 0).sum()))
    model.pos.factor = lambda total: total / 64
    tester = evaluate.Tester(model, load_corpus("copy", tmp_path))
    found = extrapolation(tester, run_at(64), (), 64).records
    assert [row.length for row in found] == [*range(5, 61, 5)]
    capsys.readouterr()
    asked = extrapolation(tester, run_at(64), (25, 27), 64).records
    assert [row.length for row in asked] == [5, 10, 15, 20, 25]
    assert "note: copy has no texts of [27]; its sizes are [5, 10, " in capsys.readouterr().out
    # of the text, padded to the width of its group; its last token is not read
    widths = [width for _, _, width in tester.corpus.meta["rows"]["sizes"]]
    assert [64 * row.factor for row in found] == [width - 1 for width in widths]
    assert found[0].accuracy == 1.0 and found[0].targets and found[0].trained_size == 20
    assert found[-1].nats is None and found[-1].reason == "the table ends at 100"


def test_an_answer_with_one_wrong_token_is_wrong(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "TRAIN_TEXTS", 40)
    monkeypatch.setattr(tasks, "TEST_TEXTS", 5)
    tasks.prepare(tmp_path / "copy")
    model = Known()

    def losses_and_hits(idx, targets):
        right = torch.ones(int((targets >= 0).sum()))
        right[1] = 0  # the second token of the first answer
        return torch.stack([torch.zeros_like(right), right])

    model.losses_and_hits = losses_and_hits
    tester = evaluate.Tester(model, load_corpus("copy", tmp_path))
    for row in extrapolation(tester, run_at(64), (), 64).records:
        assert (row.exact, row.texts, row.accuracy) == (4, 5, 0.8)


def test_the_table_of_a_run_has_the_loss_of_key_targets_and_their_number():
    tester = evaluate.Tester(Known(), corpus(DOCUMENTS))
    result = extrapolation(tester, run_at(L), LENGTHS, 64)
    table = tables.run_table(result)
    key = {row.length: row for row in result.records if row.protocol == "key_targets"}
    assert f"the {key[L].tokens} of fixed_targets that" in table
    assert all(f"{key[n].nats:.4f}" in table for n in LENGTHS)
    for row in key.values():  # as where the model diverges
        row.nats, row.reason = None, "few"
    assert "key_targets" not in tables.run_table(result)


def test_a_test_that_is_stopped_keeps_what_it_finished_and_goes_on_from_there(tmp_path, capsys):
    def records(result):  # without what differs from one test to the next
        found = [replace(record, tokens_per_s=None) for record in result.records]
        return sorted(map(asdict, found), key=str)

    tester = evaluate.Tester(Known(), corpus(DOCUMENTS))
    (tmp_path / "whole").mkdir()
    whole = run_tests(tester, run_at(L), tmp_path / "whole", LENGTHS, 64)
    lines = capsys.readouterr().out.splitlines()
    finished = [line for line in lines if line.startswith(("fixed_targets", "key_targets"))]

    assert records(whole) == records(extrapolation(tester, run_at(L), LENGTHS, 64))
    capsys.readouterr()

    class Stopped(Known):
        def losses(self, idx, targets, window=None):
            if "windowed" in capsys.readouterr().out:  # the second protocol has begun
                raise KeyboardInterrupt
            return super().losses(idx, targets, window=window)

    stopped = evaluate.Tester(Stopped(), corpus(DOCUMENTS))
    with pytest.raises(KeyboardInterrupt):
        run_tests(stopped, run_at(L), tmp_path, LENGTHS, 64, only_missing=True)
    kept = load_result(tmp_path)
    assert {record.protocol for record in kept.records} == {"fixed_targets", "key_targets"}
    capsys.readouterr()
    run_tests(tester, run_at(L), tmp_path, LENGTHS, 64, only_missing=True)
    after = capsys.readouterr().out.splitlines()
    assert sorted([*finished, *after]) == sorted(lines)  # nothing is measured twice
    assert records(load_result(tmp_path)) == records(whole)
    # other windows are another question, except to what is tested on the whole text
    again = run_tests(tester, run_at(L), tmp_path, LENGTHS, 128, only_missing=True)
    assert "nonoverlapping" not in {record.protocol for record in again.records}
    assert not run_tests(tester, run_at(L), tmp_path, LENGTHS, 128, only_missing=True).records
    # the newest test counts, which tables show
    after = run_tests(tester, run_at(L), tmp_path, LENGTHS, 64, only_missing=True)
    assert {record.protocol for record in after.records} >= {"fixed_targets", "windowed"}
