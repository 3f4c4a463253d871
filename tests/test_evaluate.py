"""Testing long: every protocol's numbers, worked out here from the definitions, window by window."""

import hashlib
import json
import math
import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import data
import evaluate
from configurable import PROTOCOLS, EvaluateSettings, GPTConfig, TrainSettings, UserError, require
from evaluate import Places, add_remarks
from model import GPT
from runs import compare, device, results
from runs.checkpoint import Run
from runs.figures import plot_run
from runs.results import (
    Difference,
    describe_model,
    far,
    gain,
    load_result,
    merge,
    paired,
    question,
    rows_on,
    settings_that_differ,
)
from runs.tables import runs_table

L, LENGTHS = 8, (4, 8, 16, 40)  # 16 does not divide 40
BF16 = device.Compute("cpu", torch.bfloat16, "for a test")


@pytest.fixture(autouse=True)
def corpora_without_files(monkeypatch):
    """The corpora of these tests lie in no folder."""
    monkeypatch.setattr(data.Corpus, "verify", lambda self, *splits: None)


class Known:
    """A model whose loss is a known function of the target and of how many tokens it may look at."""

    parameter_count, training, pos = 7, True, SimpleNamespace(extensions=[])
    config = SimpleNamespace(block_size=4)

    def __init__(self, limit: int | None = None, use: float = 1.0, cap: int = 10**9) -> None:
        self.limit, self.use, self.cap, self.calls = limit, use, cap, []

    def loss(self, target, visible):
        return 1.0 + target / 4 + self.use / np.minimum(visible, self.cap)

    def losses(self, idx, targets, *, window=None):
        assert not self.training and not torch.is_grad_enabled()
        self.calls.append((tuple(idx.shape), window))
        assert (idx[:, 1:] == targets[:, :-1]).all()
        visible = np.minimum(np.arange(1, idx.shape[1] + 1), window or 10**9)
        bias = 0.25 if torch.is_autocast_enabled("cpu") else 0.0
        return torch.tensor(self.loss(targets.numpy(), visible) + bias, dtype=torch.float32)

    def check_length(self, total):
        require(self.limit is None or total <= self.limit, f"the table ends at {self.limit}")

    def extension_at(self, total):
        return {"extend": None, "factor": None}

    def cache_bytes(self):
        return 6

    def attention_path(self, length, window=None):
        return f"path{length}/{window}"

    def eval(self):
        self.training = False

    def train(self, mode):
        self.training = mode


DOCUMENTS = (300, 30, 500, 200)


def corpus(documents, seed=0, name="toy", characters="aé€"):
    """A corpus in memory: `documents` are lengths, tokens random, of 1, 2 and 3 bytes."""
    val = np.random.default_rng(seed).integers(0, len(characters), sum(documents)).astype(np.uint16)
    starts = np.cumsum([0, *documents[:-1]])
    meta = {
        "tokenizer": "char",
        "unit": "char",
        "vocab_size": len(characters),
        "characters": characters,
        "splits": {"val": {"sha256": f"sha{seed}"}, "train": {"sha256": f"sha{seed}"}},
    }
    return data.Corpus(name, Path("nowhere"), meta, val, val, starts, starts)


def asked(lengths=(), windows=64, protocols=PROTOCOLS, stride=0):
    """What is asked for, as settings."""
    names = {"eval_lengths": lengths, "eval_windows": windows}
    return EvaluateSettings(protocols=protocols, stride=stride, **names)


def found_on(model, text, train_length=L, checkpoint=(0, ""), compute=device.CPU, **how):
    """What is found on a text; for `how` see `asked`."""
    about = {"train_length": train_length, "step": checkpoint[0], "checkpoint": checkpoint[1]}
    return evaluate.evaluate(evaluate.Tester(model, text, compute), about, asked(**how))


def run(model=None, documents=DOCUMENTS, lengths=LENGTHS, **how):
    return found_on(model or Known(), corpus(list(documents)), lengths=lengths, **how)


def row(result, protocol, length):
    return next(r for r in result["rows"] if (r["protocol"], r["length"]) == (protocol, length))


# ---- where


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


@pytest.mark.parametrize("documents", [DOCUMENTS, (141, 400), (3000, 10), (41,) * 64, (42,) * 70])
def test_places_are_picked_among_the_targets_with_the_reach_before_them_in_their_document(
    documents, monkeypatch
):
    monkeypatch.setattr(evaluate, "LONG_DOCUMENTS", 1)
    places = evaluate.find_places(corpus(documents))
    assert places.reach == reach_by_hand(documents) and not places.across_documents
    assert places.candidates == len(good_ends(documents, places.reach))
    assert places.ends.tolist() == ends_by_hand(documents)
    assert places.scored == min(32, places.reach // 4)


@pytest.mark.parametrize("documents", [DOCUMENTS, (4095,) * 9, (5000, 9000)])
def test_a_split_of_short_documents_is_taken_as_one(documents):
    places, one = evaluate.find_places(corpus(documents)), (sum(documents),)
    assert places.reach == reach_by_hand(one) and places.across_documents
    assert places.ends.tolist() == ends_by_hand(one)
    assert not evaluate.find_places(corpus(one)).across_documents  # nothing to cross


@pytest.mark.parametrize(
    ("documents", "reach"),
    [
        ([16384], 8192),
        ([16383], 4096),
        ([16384, 5461], 8192),  # 8192 x 2 is more than half of 16384 + 5461, so no
        ([10**6], 65536),
        ([1], 1),
    ],
)
def test_the_reach_is_a_power_of_two_that_half_of_the_tokens_have_before_them(documents, reach):
    whole = sum(documents)
    found = evaluate.longest_reach(np.array(documents))
    if len(documents) > 1:
        reach = reach_by_hand(documents)
        assert 2 * len(good_ends(documents, 2 * reach)) < whole
    assert found == reach


def test_the_first_64_places_of_256_are_the_64_and_each_power_of_two_is_spread_evenly():
    text = corpus([20000])
    few, many = evaluate.find_places(text), evaluate.find_places(text, 256)
    assert many.ends[:64].tolist() == few.ends.tolist()
    for count in (64, 128, 256):
        gaps = np.diff(np.sort(many.ends[:count]))
        assert gaps.max() - gaps.min() <= 1 and len(set(many.ends[:count])) == count


def test_places_depend_on_the_split_alone_and_pieces_are_of_4096_tokens_where_16_fit():
    assert evaluate.find_places(corpus([70000])).piece == 4096
    assert evaluate.find_places(corpus([65537])).piece == 4096
    assert evaluate.find_places(corpus([65536])).piece == 2048
    assert evaluate.find_places(corpus([900])).piece == 32


def test_a_row_says_that_its_windows_run_across_documents():
    result = run(documents=[30] * 40)
    assert row(result, "fixed_targets", 16)["across_documents"] is True
    assert "across documents" in row(result, "windowed", 4)["note"]
    assert "across_documents" not in row(result, "nonoverlapping", 16)
    assert any("across documents" in note for note in result["notes"])
    assert "across_documents" not in row(run(documents=[900]), "fixed_targets", 16)


def test_blocks_that_share_targets_are_noted():
    def note(protocol, spacing, tokens):
        ends = np.arange(64)[::-1] * spacing + 40
        row = {"protocol": protocol, "length": 8, "split_sha256": "s"}
        add_remarks(row, Places(40, 9999, ends, 4, tokens, 32, False), Known())
        return row.get("note", "")

    for protocol in evaluate.PLANS:
        assert "share targets" not in note(protocol, 4, 34 * 16)
        assert "share targets" in note(protocol, 3, 31 * 16)


def test_pieces_of_a_longer_test_are_other_targets_and_say_so():
    result = run(documents=[9000], lengths=(8, 512, 1024), stride=8)
    usual = row(result, "nonoverlapping", 8)
    for protocol in ("nonoverlapping", "sliding"):
        assert row(result, protocol, 512)["targets"] == usual["targets"]
        longer = row(result, protocol, 1024)
        assert longer["other_targets"] and longer["targets"] != usual["targets"]
        assert longer["tokens"] == 16 * 1024 and longer["stderr_vs_L"] is None
        assert f"{protocol}: 1024 has other targets than those of its 16 pieces" in longer["note"]
    shown = rows_on(result["rows"], "toy")
    assert shown["nonoverlapping", 512]["nats"] and shown["nonoverlapping", 1024]["nats"] is None
    assert "other targets" in shown["nonoverlapping", 1024]["reason"]
    assert shown["fixed_targets", 1024]["nats"] is not None


def test_the_default_lengths_go_from_half_to_32_times_the_training_length():
    assert results.tested_lengths(128) == [64, 128, 256, 512, 1024, 2048, 4096]
    assert results.tested_lengths(128, (100, 300)) == [100, 128, 300]
    assert results.tested_lengths(1)[0] == 1


# ---- the protocols, by hand


def by_hand(documents, score):
    """(mean nats, scored offsets) of score(tokens, piece) -> [(target offset, visible tokens)]."""
    text = corpus(list(documents))
    scored = score(text.val, 64)
    return np.mean([Known().loss(float(text.val[t]), v) for t, v in scored]), [t for t, _ in scored]


def pieces(tokens, piece):
    return data.evenly(len(tokens) - piece, 16)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 8, 16, 20, 40, 63, 64, 65, 300])
@pytest.mark.parametrize("protocol", ["fixed_targets", "windowed"])
def test_fixed_targets_scores_the_last_32_targets_of_each_place_in_windows_of_the_length(
    protocol, length
):
    limit = L if protocol == "windowed" and length > L else 10**9

    def score(tokens, piece):
        each = max(1, length // 2)  # that the last window scores, and the one before it ...
        return [
            (e - back, min(length - back % each, limit))
            for e in ends_by_hand([sum(DOCUMENTS)])
            for back in range(32)
        ]

    nats, offsets = by_hand(DOCUMENTS, score)
    result = run(lengths=(length,))
    found = row(result, protocol, length)
    assert found["nats"] == pytest.approx(nats, abs=1e-6)
    assert found["tokens"] == 2048 and found["windows"] == len(found["block_nats"]) == 64
    raw = b"".join(t.to_bytes(8, "little") for t in sorted(offsets))
    assert found["targets"] == hashlib.sha256(raw).hexdigest()
    assert found["targets"] == row(result, "fixed_targets", L)["targets"]


@given(n_tokens=st.integers(2, 400), fraction=st.floats(0.001, 1), windows=st.sampled_from([1, 64]))
def test_every_window_of_every_protocol_lies_in_the_split_and_scores_each_target_once(
    n_tokens, fraction, windows
):
    text = corpus([n_tokens])
    places = evaluate.find_places(text, windows, stride=3)
    length = math.ceil(fraction * places.reach)
    for protocol, plan in evaluate.PLANS.items():
        if evaluate.why_nowhere(text, places, protocol, length):
            continue
        scored: dict[int, list[int]] = {}
        for window in plan(places, length):
            assert window.starts.min() >= 0 and (window.starts + window.length).max() < n_tokens
            assert (1 <= window.scored).all() and (window.scored <= window.length).all()
            for block, offsets in enumerate(window.offsets()):
                scored.setdefault(block, []).extend(offsets)
        sizes = {len(offsets) for offsets in scored.values()}
        assert len(sizes) == 1 and all(len(set(o)) == len(o) for o in scored.values())


@lru_cache
def rows_at(*lengths):
    """The rows of a real model by protocol and length, without their speed."""
    rows = without_time(found_on(tiny("alibi"), corpus(DOCUMENTS), lengths=lengths))
    return {(r["protocol"], r["length"]): r for r in rows}


@settings(max_examples=10, deadline=None)
@given(lengths=st.lists(st.sampled_from([2, 3, 5, 16, 33, 64, 100, 256]), unique=True, max_size=4))
def test_a_row_is_the_same_to_the_bit_whatever_other_lengths_are_asked_for(lengths):
    together = rows_at(*lengths)
    for length in lengths:
        assert rows_at(length).items() <= together.items()


def test_the_first_64_blocks_of_256_windows_are_those_of_64_to_the_bit():
    text, model = corpus([70000]), tiny("rope")
    for length in (4, 24, 64, 300):
        few, many = (
            found_on(model, text, lengths=(length,), windows=windows, protocols=("fixed_targets",))
            for windows in (64, 256)
        )
        blocks = [row(found, "fixed_targets", length)["block_nats"] for found in (few, many)]
        assert blocks[1][:64] == blocks[0] and len(blocks[1]) == 256


@pytest.mark.parametrize("length", LENGTHS)
def test_nonoverlapping_scores_every_target_of_the_pieces_with_what_its_own_cut_holds(length):
    def score(tokens, piece):
        return [(p + t + 1, t % length + 1) for p in pieces(tokens, piece) for t in range(piece)]

    nats, offsets = by_hand(DOCUMENTS, score)
    found = row(run(), "nonoverlapping", length)
    assert found["nats"] == pytest.approx(nats, abs=1e-6)
    assert found["tokens"] == len(offsets) == 16 * 64 and len(found["block_nats"]) == 16
    assert found["targets"] == row(run(), "nonoverlapping", L)["targets"]


@pytest.mark.parametrize("stride", [1, 3, 8, 100])
@pytest.mark.parametrize("length", LENGTHS)
def test_sliding_scores_every_target_once_with_context_up_to_the_length(length, stride):
    step = min(stride, length)

    def visible(t, piece):
        """How much the first window that holds input t sees."""
        stops = [*range(length, piece, step), piece]
        stop = next(s for s in stops if s > t)
        return t - (stop - length) + 1

    def score(tokens, piece):
        return [(p + t + 1, visible(t, piece)) for p in pieces(tokens, piece) for t in range(piece)]

    nats, _ = by_hand(DOCUMENTS, score)
    found = row(run(protocols=(), stride=stride), "sliding", length)
    assert found["nats"] == pytest.approx(nats, abs=1e-6)
    assert found["targets"] == row(run(), "nonoverlapping", L)["targets"]
    assert found["stride"] == stride


def test_sliding_is_measured_only_when_asked():
    assert {r["protocol"] for r in run()["rows"]} == {"fixed_targets", "windowed", "nonoverlapping"}
    assert {r["protocol"] for r in run(protocols=("fixed_targets",), stride=2)["rows"]} == {
        "fixed_targets",
        "sliding",
    }


def test_keys_are_limited_only_by_windowed_and_only_beyond_the_training_length():
    model = Known()
    run(model)
    assert {(shape[1], window) for shape, window in model.calls if window} == {(16, L), (40, L)}


def test_a_forward_holds_at_most_16k_tokens_and_the_batch_size_does_not_change_a_number(
    monkeypatch,
):
    def test(model):
        return found_on(model, corpus([70000]), train_length=1024, lengths=(1024, 20000))

    model = Known()
    result = test(model)
    assert {shape for shape, _ in model.calls} >= {(16, 1024), (1, 20000)}
    assert max(b * t for (b, t), _ in model.calls) <= 20000
    monkeypatch.setattr(evaluate, "BATCH_TOKENS", 1)
    assert [r["block_nats"] for r in test(Known())["rows"]] == [
        r["block_nats"] for r in result["rows"]
    ]


# ---- a row


def test_errors_come_from_blocks_and_the_one_to_L_is_paired():
    result = run()
    for r in result["rows"]:
        blocks, at_l = (
            np.array(r["block_nats"]),
            np.array(row(result, r["protocol"], L)["block_nats"]),
        )
        assert r["stderr"] == pytest.approx(blocks.std(ddof=1) / math.sqrt(len(blocks)))
        assert r["stderr_vs_L"] == pytest.approx(
            (blocks - at_l).std(ddof=1) / math.sqrt(len(blocks))
        )
        assert r["nats"] == pytest.approx(blocks.mean(), abs=1e-6)
    assert row(result, "fixed_targets", L)["stderr_vs_L"] == 0.0


def test_a_row_holds_what_the_format_says():
    found = row(run(compute=BF16, checkpoint=(9, "cafe")), "windowed", 16)
    assert list(found) == [
        "protocol",
        "stride",
        "length",
        "extend",
        "factor",
        "dataset",
        "split_sha256",
        "step",
        "checkpoint",
        "windows",
        "targets",
        "dtype",
        "tokens",
        "nats",
        "stderr",
        "stderr_vs_L",
        "block_nats",
        "perplexity",
        "bits_per_byte",
        "tokens_per_s",
        "attention",
        "across_documents",
        "note",
    ]
    assert [found[name] for name in ("stride", "extend", "factor")] == [None] * 3
    assert (found["dataset"], found["split_sha256"]) == ("toy", "sha0")
    assert (found["step"], found["checkpoint"], found["windows"]) == (9, "cafe", 64)
    assert found["perplexity"] == pytest.approx(math.exp(found["nats"]))
    assert (found["dtype"], found["attention"]) == ("bfloat16", "path16/8")
    assert found["tokens_per_s"] > 0


def test_bits_per_byte_counts_the_bytes_of_the_scored_targets_only():
    val = corpus(DOCUMENTS).val
    ends = ends_by_hand([sum(DOCUMENTS)])
    text = "".join("aé€"[val[e - back]] for e in ends for back in range(32))
    found = row(run(), "fixed_targets", 40)
    assert found["bits_per_byte"] == pytest.approx(
        found["nats"] * 2048 / math.log(2) / len(text.encode("utf-8"))
    )


def test_what_a_scheme_cannot_do_is_a_row_with_its_reason():
    result = run(Known(limit=16))
    for protocol in ("fixed_targets", "windowed", "nonoverlapping"):
        assert row(result, protocol, 40)["nats"] is None
        assert row(result, protocol, 40)["reason"] == "the table ends at 16"
    # the others are tested where every scheme is, and the curve is that of the longest length that is defined
    assert row(result, "fixed_targets", 16)["targets"] == row(run(), "fixed_targets", 16)["targets"]
    assert row(result, "fixed_targets", 40)["targets"] == row(run(), "fixed_targets", 40)["targets"]
    assert [curve["length"] for curve in result["per_position"]] == [16]


def test_a_length_beyond_the_reach_of_the_split_has_a_reason_and_the_pieces_have_numbers():
    result = run(documents=(900,), lengths=(256, 257))
    assert row(result, "fixed_targets", 256)["nats"] is not None
    for protocol in ("fixed_targets", "windowed"):
        beyond = row(result, protocol, 257)
        assert beyond["nats"] is None and beyond["targets"] is None
        assert beyond["reason"] == (
            "the test of toy has windows of at most 256 tokens: "
            "use a corpus of longer documents or of more text, up to 65536"
        )
    assert row(result, "nonoverlapping", 257)["nats"] is not None
    assert [curve["length"] for curve in result["per_position"]] == [256]
    huge = run(documents=(200_000,), lengths=(65537,), protocols=("fixed_targets",))
    assert row(huge, "fixed_targets", 65537)["reason"].endswith(", up to 65536")


def test_a_split_too_short_for_the_windows_says_so():
    few = "validation tokens of toy are too few"
    short = row(run(documents=(95,)), "fixed_targets", 8)
    assert short["reason"] == f"the 95 {few} for 64 windows"
    assert row(run(documents=(96,)), "fixed_targets", 8)["tokens"] == 64 * 8
    asked = run(documents=(900,), windows=1024)
    assert row(asked, "windowed", 8)["reason"] == f"the 900 {few} for 1024 windows"
    assert row(asked, "nonoverlapping", 8)["nats"] is not None
    nothing = run(documents=(15,))
    assert row(nothing, "nonoverlapping", 8)["reason"] == f"the 15 {few} for 16 pieces of 8"
    assert all(r["nats"] is None and r["reason"] for r in nothing["rows"])
    assert nothing["per_position"] == nothing["float32_check"] == []
    known = {"pos": "x", "train_length": L, "seed": 1, "unit": "char"}
    assert "toy" in runs_table([nothing | known])


class Broken(Known):
    """Its loss is infinite or not a number where it sees more than 30 tokens."""

    def __init__(self, odd=math.nan, target=None):
        super().__init__()
        self.odd, self.target = odd, target

    def loss(self, target, visible):
        wrong = (visible > 30) & (self.target is None or target == self.target)
        return super().loss(target, visible) + np.where(wrong, self.odd, 0)


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_a_finding(odd):
    result = run(Broken(odd), compute=BF16)
    for protocol, blocks in (("fixed_targets", 64), ("nonoverlapping", 16)):
        found = row(result, protocol, 40)
        assert found["nats"] is None and found["diverged"] is True
        said = f"diverged: the loss is not finite in {blocks} of {blocks} windows"
        assert found["reason"] == said
        assert found["targets"] and found["dtype"] == "bfloat16" and found["windows"] == blocks
    assert row(result, "windowed", 40)["nats"] is not None
    (curve,) = result["per_position"]
    assert curve["nats"][:-2].count(None) == 0 and curve["nats"][-1] is None  # 31 sees 32
    assert [check["length"] for check in result["float32_check"]] == [16]  # the longest that is
    json.dumps(result, allow_nan=False)


def test_a_loss_that_is_not_finite_in_float32_alone_has_diverged_too():
    class Hidden(Known):
        def losses(self, idx, *args, **how):
            nats = super().losses(idx, *args, **how)
            hidden = idx.shape[1] < 16 or torch.is_autocast_enabled("cpu")
            return nats if hidden else nats * math.inf

    result = run(Hidden(), compute=BF16)
    assert [check["length"] for check in result["float32_check"]] == [8]
    rows = [row(result, "fixed_targets", n) for n in LENGTHS]
    assert [bool(r.get("diverged")) for r in rows] == [False, False, True, True]
    assert re.fullmatch(
        r"diverged: not finite in float32, \d\.\d{4} in bfloat16", rows[-1]["reason"]
    )
    json.dumps(result, allow_nan=False)


def test_a_loss_that_is_not_finite_in_some_windows_says_in_how_many():
    text = corpus(DOCUMENTS)
    scored = [text.val[e - 31 : e + 1] for e in ends_by_hand([sum(DOCUMENTS)])]
    seen = [[min(40, 40 - back % 20) for back in range(31, -1, -1)]] * 64
    wrong = sum(
        any(t == 2 and v > 30 for t, v in zip(*block, strict=True))
        for block in zip(scored, seen, strict=True)
    )
    found = row(run(Broken(target=2)), "fixed_targets", 40)
    assert f"in {wrong} of 64 windows" in found["reason"] and 0 < wrong


def test_what_diverges_at_L_already_ends_with_a_table_and_without_a_figure(tmp_path):
    result = result_of(model=Broken(), lengths=(8, 40), train_length=40)
    text = runs_table([result])
    assert "diverged" in text and "loss(20) - loss(40) has no number" in text
    plot_run(tmp_path, result)
    assert load_result_of(tmp_path, result)["rows"] == result["rows"]


def load_result_of(folder, result):
    """A result after it was written and read."""
    results.update_result(folder, result)
    return load_result(folder)


def test_per_position_means_the_same_pass_by_position_in_doubling_bins():
    (curve,) = run(lengths=(8, 64))["per_position"]
    assert (curve["dataset"], curve["length"], curve["protocol"]) == ("toy", 64, "fixed_targets")
    assert curve["edges"] == [0, 1, 2, 4, 8, 16, 32, 64]
    assert curve["counts"] == [64 * n for n in (1, 1, 2, 4, 8, 16, 32)]
    text = corpus(DOCUMENTS)
    losses = np.array(
        [
            Known().loss(text.val[e - 63 : e + 1].astype(float), np.arange(1, 65))
            for e in ends_by_hand([sum(DOCUMENTS)])
        ]
    )
    assert curve["nats"][5] == pytest.approx(losses[:, 16:32].mean(), abs=1e-6)
    error = losses[:, 16:32].mean(axis=1).std(ddof=1) / 8
    assert curve["stderr"][5] == pytest.approx(error, abs=1e-6)


def test_the_curve_of_another_length_is_added():
    both = merge(result_of(lengths=(16,)), result_of(lengths=(40,)))
    assert [curve["length"] for curve in both["per_position"]] == [16, 40]


def test_the_longest_length_is_run_in_float32_too_on_eight_windows():
    model = Known()
    (check,) = run(model, compute=BF16)["float32_check"]
    assert check["difference"] == pytest.approx(0.25, abs=1e-6)  # what the fake adds under autocast
    assert (check["length"], check["windows"], check["dtype"]) == (40, 8, "bfloat16")
    assert check["nats"] - check["nats_float32"] == check["difference"]
    assert ((16, 40), None) in model.calls  # two windows at each of 8 places
    assert run()["float32_check"] == []


def test_the_model_is_put_back_into_the_mode_it_was_in():
    for mode in (True, False):
        model = Known()
        model.training = mode
        run(model)
        assert model.training is mode


def test_a_log_gets_a_plain_line_for_each_row(capsys):
    result = found_on(Known(limit=16), corpus([900]), lengths=LENGTHS)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(result["rows"]) and "\r" not in "".join(lines)
    reasons = [r["reason"] for r in result["rows"] if r["nats"] is None]
    assert reasons and all(any(reason in line for line in lines) for reason in reasons)


# ---- what it shows


def made(protocol, length, blocks, targets="t", split="s", dataset="toy"):
    return {
        "protocol": protocol,
        "length": length,
        "extend": None,
        "factor": None,
        "dataset": dataset,
        "split_sha256": split,
        "targets": targets,
        "nats": float(np.mean(blocks)),
        "block_nats": list(blocks),
        "stderr_vs_L": None,
        "stride": None,
        "step": 1,
        "checkpoint": "c",
        "windows": len(blocks),
        "dtype": "float32",
    }


def test_gain_and_far_are_paired_by_block():
    rows = rows_on(
        [
            made("fixed_targets", 8, [1.0, 2.0, 3.0]),
            made("fixed_targets", 16, [0.5, 1.7, 2.5]),
            made("windowed", 16, [0.6, 1.8, 2.6]),
        ],
        "toy",
    )
    gained, used = gain(rows, 8, 16), far(rows, 16)
    assert gained.nats == pytest.approx((0.5 + 0.3 + 0.5) / 3)
    assert gained.stderr == pytest.approx(np.std([0.5, 0.3, 0.5], ddof=1) / math.sqrt(3))
    assert used.nats == pytest.approx(0.1) and not used.near_zero
    assert used.stderr == pytest.approx(0.0, abs=1e-12)
    assert gain(rows, 8, 32) is None and far(rows, 8) is None


@pytest.mark.parametrize(
    "change", [{"targets": "other"}, {"split_sha256": "other"}, {"nats": None}]
)
def test_rows_on_other_targets_or_undefined_ones_are_never_compared(change):
    a = made("fixed_targets", 8, [1.0, 2.0])
    assert paired(a, a) is not None
    assert paired(a, a | change) is None and paired(a | change, a) is None


@pytest.mark.parametrize(
    "nats, stderr, near",
    [
        (0.005, 0.0, True),
        (-0.005, 0.0, True),
        (0.0051, 0.0, False),
        (0.2, 0.1, True),
        (-0.21, 0.1, False),
    ],
)
def test_near_zero_is_within_two_errors_or_five_thousandths(nats, stderr, near):
    assert Difference(nats, stderr).near_zero is near


def verdicts(model, **how):
    """What a test says of what it can show, in a split of one document."""
    return run(model, documents=(4000,), **how)["notes"]


def test_a_model_that_reads_far_raises_no_doubt_and_a_window_does():
    assert verdicts(Known(use=9.0)) == []
    (short,) = verdicts(Known(use=9.0, cap=L))  # looks at L tokens, never further
    assert f"beyond {L}" in short and "far is nowhere" in short and "loss(4)" not in short
    blind = verdicts(Known(use=0.0))[0]
    assert "loss(4) - loss(8) is only +0.0000" in blind
    assert "far is nowhere" in verdicts(Known(use=0.04))[0]  # positive, but near zero


def test_a_scheme_that_ends_at_L_and_a_test_without_windowed_say_that_far_has_no_number():
    assert "far has no number" in verdicts(Known(use=9.0, limit=L))[0]
    assert "far has no number" in verdicts(Known(use=9.0), protocols=("fixed_targets",))[0]
    assert verdicts(Known(), protocols=("nonoverlapping",)) == []


# ---- runs


def result_of(step=50, train_length=L, pos="known", **how):
    settings = TrainSettings(pos=pos, block_size=train_length, seed=3)
    model, text = how.pop("model", Known(use=9.0)), how.pop("text", corpus([4000]))
    trained = {"step": step, "tokens": 20 * step, "checkpoint": f"{step:04x}" * 16}
    about = describe_model(model, settings, **trained)
    tester = evaluate.Tester(model, text, how.pop("compute", device.CPU))
    return evaluate.extrapolation(tester, about, asked(**{"lengths": LENGTHS} | how))


def test_extrapolation_says_what_was_trained():
    result = result_of()
    about = {"pos": "known", "train_length": 8, "original_length": 4, "tokens_trained": 1000}
    about |= {"unit": "char", "seed": 3, "parameters": 7, "extend": None, "step": 50}
    about |= {"checkpoint": "0032" * 4, "settings": {}}
    assert result.items() >= about.items() and result["seconds"] >= 0
    for r in [*result["rows"], *result["per_position"]]:
        assert (r["step"], r["checkpoint"]) == (50, "0032" * 4)
    json.dumps(result, allow_nan=False)


def test_a_result_names_the_settings_that_differ_from_the_defaults():
    changed = TrainSettings(learning_rate=0.1, mixed_lengths=(64, 128), seed=2, max_iters=100)
    assert settings_that_differ(changed.warmed_up(100)) == {
        "mixed_lengths": (64, 128),
        "learning_rate": 0.1,
        "max_iters": 100,
    }
    assert settings_that_differ(changed.warmed_up(80))["warmup_iters"] == 20


def without_time(result):
    """The rows without what differs from test to test."""
    return [{k: v for k, v in r.items() if k != "tokens_per_s"} for r in result["rows"]]


def test_merging_replaces_what_was_asked_again_and_keeps_the_rest():
    old, new = result_of(), result_of(lengths=(16, 64), protocols=("fixed_targets",))
    merged, again = merge(old, new), {("fixed_targets", 8), ("fixed_targets", 16)}
    kept = [r for r in old["rows"] if (r["protocol"], r["length"]) not in again]
    assert merged["rows"] == [*kept, *new["rows"]]
    assert [c["length"] for c in merged["per_position"]] == [40, 64]
    twice = merge(merged, new)
    assert twice["rows"] == merged["rows"] and len(twice["per_position"]) == 2


@pytest.mark.parametrize(
    ("other", "both"),
    [
        ({"stride": 4}, 6),
        ({"windows": 128}, 4),
        ({"step": 60}, 0),
        ({"compute": BF16}, 0),
        ({"text": corpus([4000], seed=1)}, 0),
        ({"lengths": (9,)}, 4),
    ],
)
def test_what_was_asked_otherwise_is_added_and_nothing_is_lost(other, both):
    old = result_of(lengths=(8, 40), stride=2)
    new = result_of(**{"lengths": (8, 40), "stride": 2} | other)
    merged = merge(old, new)
    again = {question(r) for r in old["rows"]} & {question(r) for r in new["rows"]}
    assert len(again) == both and len(merged["rows"]) == 8 + len(new["rows"]) - both
    kept = [r for r in old["rows"] if question(r) not in again]
    assert all(r in merged["rows"] for r in [*kept, *new["rows"]])
    back = merge(merged, old)
    assert {question(r) for r in back["rows"]} == {question(r) for r in merged["rows"]}


def test_tables_take_the_newest_checkpoint_the_newest_split_and_the_windows_of_most_lengths():
    early, late = result_of(windows=128), result_of(step=60)
    for order in ((early, late), (late, early)):
        assert set(steps(merge(*order))) == {60}
    many = merge(result_of(windows=128, lengths=(16,)), result_of())
    shown = rows_on(many["rows"], "toy")
    assert {n for p, n in shown} == {*LENGTHS}  # two lengths have 128 windows, four have 64
    assert {r["windows"] for (p, _), r in shown.items() if p in results.FIXED} == {64}
    both = merge(result_of(windows=128), result_of())["rows"]
    assert {r["windows"] for (p, _), r in rows_on(both, "toy").items() if p in results.FIXED} == {
        128
    }
    assert (
        rows_on(many["rows"], "toy", windows=64).keys()
        == rows_on(result_of()["rows"], "toy").keys()
    )
    changed = merge(result_of(text=corpus([4000], 1)), result_of(lengths=(16,)))
    assert {r["split_sha256"] for r in rows_on(changed["rows"], "toy").values()} == {"sha0"}
    back = merge(changed, result_of(text=corpus([4000], 1), lengths=(40,)))
    assert {r["split_sha256"] for r in rows_on(back["rows"], "toy").values()} == {"sha1"}


def steps(result):
    """The steps of the rows that a table shows."""
    return [r["step"] for r in rows_on(result["rows"], "toy").values()]


def test_sliding_by_two_strides_is_two_rows_and_two_columns():
    both = merge(result_of(stride=2), result_of(stride=4))
    assert {("sliding/2", 40), ("sliding/4", 40)} <= rows_on(both["rows"], "toy").keys()
    heads = next(line for line in runs_table([both]).splitlines() if "fixed_targets" in line)
    assert heads.split()[-2:] == ["sliding/2", "sliding/4"]


def test_a_side_look_in_another_number_format_changes_no_table():
    usual = result_of()
    for lengths in ((16,), LENGTHS):
        both = merge(usual, result_of(compute=BF16, lengths=lengths))
        assert rows_on(both["rows"], "toy") == rows_on(usual["rows"], "toy")
    asked = rows_on(results.only(both, 64, "bfloat16")["rows"], "toy")
    assert {r["dtype"] for r in asked.values()} == {"bfloat16"}


def test_results_of_different_windows_are_compared_on_those_that_both_have():
    many, few = merge(result_of(windows=128), result_of()), result_of(pos="other")
    _, selected = compare.select_rows([many, few], "")
    for rows in selected:
        assert {r["windows"] for (p, _), r in rows.items() if p in results.FIXED} == {64}
    with pytest.raises(UserError, match="different targets of toy .*same --eval_windows"):
        compare.select_rows([result_of(windows=128), few], "")


def test_runs_of_any_length_and_any_lengths_of_test_are_compared():
    short, long = result_of(lengths=(5, 40)), result_of(train_length=300, lengths=(64, 600))
    assert "600" in runs_table([short, long])
    rows = [rows_on(r["rows"], "toy") for r in (short, long)]
    assert rows[0]["fixed_targets", 5]["targets"] == rows[1]["fixed_targets", 600]["targets"]


def test_merging_another_corpus_adds_its_rows_and_the_first_stays_the_first():
    old, new = result_of(), result_of(text=corpus([700], seed=1, name="other"))
    merged = merge(old, new)
    assert len(merged["rows"]) == 2 * len(old["rows"])
    assert rows_on(merged["rows"], "other") == rows_on(new["rows"], "other")
    assert merge(merged, old)["rows"][0]["dataset"] == "toy"
    assert [c["dataset"] for c in merged["per_position"]] == ["toy", "other"]


def test_what_another_model_left_is_not_merged():
    new = result_of(lengths=(16,))
    assert merge(result_of(pos="another"), new) == new


def test_merging_judges_anew_what_the_rows_can_show():
    without, far = result_of(protocols=("fixed_targets",)), result_of(protocols=("windowed",))
    assert "far has no number" in without["notes"][0]
    assert merge(without, far)["notes"] == []


# ---- a loss to choose by


@pytest.mark.parametrize(("tokens", "windows"), [(40000, 64), (120000, 256)])
def test_a_tuning_loss_is_of_64_places_that_share_no_target_with_a_test(tokens, windows):
    text = corpus([tokens])
    places = evaluate.find_places(text, windows)
    ends = evaluate.tuning_places(text, 40, windows).ends
    own = [t for end in ends for t in range(end - 31, end + 1)]
    tested = np.concatenate(
        [
            w.offsets().ravel()
            for plan in evaluate.PLANS.values()
            for n in (5, 64, 500)
            for w in plan(replace(places, stride=4), n)
        ]
    )
    assert len(ends) == 64 and len(set(own)) == 2048 and not set(own) & set(tested)
    assert ends.min() >= places.reach and ends.max() < tokens
    model = Known()
    model.eval()
    found = evaluate.tuning_loss(evaluate.Tester(model, text), 40, windows)
    seen = [40 - back % 20 for back in range(31, -1, -1)] * 64
    by_hand = [Known().loss(float(text.val[t]), v) for t, v in zip(own, seen, strict=True)]
    assert found == pytest.approx(np.mean(by_hand), abs=1e-6)


def test_a_tuning_loss_that_is_not_finite_is_infinite_and_too_little_text_is_refused():
    broken = Broken()
    broken.eval()
    tester = evaluate.Tester(broken, corpus([20000]))
    assert evaluate.tuning_loss(tester, 40, 64) == math.inf
    with pytest.raises(UserError, match="too little validation text to choose by"):
        evaluate.tuning_loss(evaluate.Tester(broken, corpus([900])), 40, 64)
    with pytest.raises(UserError, match="windows of at most 8192 tokens"):
        evaluate.tuning_loss(tester, 10000, 64)


# ---- a real model, and the command


def tiny(pos):
    torch.manual_seed(0)
    return GPT(GPTConfig(block_size=L, vocab_size=3, n_layer=2, n_head=2, n_embd=16, pos=pos))


def test_a_real_model_gives_the_mean_cross_entropy_of_its_own_logits():
    model, text = tiny("alibi"), corpus([900])
    result = found_on(model, text, lengths=LENGTHS)
    nats = []
    for e in ends_by_hand([900]):
        for back in (24, 16, 8, 0):  # four windows of 16 inputs score the last 8 each
            window = torch.from_numpy(text.val[e - back - 16 : e - back + 1].astype(np.int64))[None]
            logits = model.eval()(window[:, :-1], window[:, 1:])[0][0, 8:].log_softmax(-1)
            nats += (-logits.gather(1, window[0, 9:, None])).squeeze(1).tolist()
    assert row(result, "fixed_targets", 16)["nats"] == pytest.approx(np.mean(nats), abs=1e-5)
    assert row(result, "windowed", 8)["block_nats"] == row(result, "fixed_targets", 8)["block_nats"]
    assert (
        row(result, "windowed", 40)["block_nats"] != row(result, "fixed_targets", 40)["block_nats"]
    )


def test_a_learned_table_past_its_end_is_a_row_with_a_reason():
    result = found_on(tiny("learned"), corpus([900]), lengths=LENGTHS)
    assert (
        row(result, "fixed_targets", 8)["nats"] and row(result, "fixed_targets", 16)["nats"] is None
    )
    assert "learned" in row(result, "nonoverlapping", 40)["reason"]


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """Two run folders whose models and corpora are made up: calling it runs the command."""
    corpora = {
        "toy": corpus([900]),
        "other": corpus([900], 1, "other"),
        "foreign": corpus([900], 2, "foreign", "xyz"),
    }

    def open_run(folder, settings):
        pos, state = Path(folder).name, {"tokens": 5, "step": 2, "sha256": "sha"}
        own = TrainSettings(pos=pos, dataset="toy", block_size=L, seed=1, eval_lengths=LENGTHS)
        compute = device.pick("cpu", settings.dtype)
        config = {"corpus_sha256": {"val": "sha0"}}
        return Run(Path(folder), config, own, state, tiny(pos), compute)

    def command(*words):
        monkeypatch.setattr("sys.argv", ["evaluate.py", *words])
        evaluate.main()

    for name in ("alibi", "learned"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(evaluate, "open_run", open_run)
    monkeypatch.setattr(data, "load", corpora.__getitem__)
    monkeypatch.chdir(tmp_path)
    return command


def test_the_command_tests_runs_and_draws_each_and_all(trained, capsys):
    trained("alibi", "learned", "--dtype=float32")
    for path in ("alibi/extrapolation.png", "learned/extrapolation.png", "extrapolation.png"):
        assert Path(path).read_bytes().startswith(b"\x89PNG")
    result = load_result("learned")
    assert [result[k] for k in ("pos", "tokens_trained", "train_length")] == ["learned", 5, L]
    out = capsys.readouterr().out
    assert "undefined: learned" in out and "drawn in" in out
    trained("alibi", "learned", "--dtype=float32", "--format=tex")
    out = capsys.readouterr().out
    assert out.count("\\begin{tabular}") == 3 and "drawn in" not in out
    with pytest.raises(UserError, match="--format prints tables only"):
        trained("alibi", "--format=tex", "--out=figure.pdf")
    with pytest.raises(UserError, match="writes its numbers to diagnose.json"):
        trained("alibi", "--diagnose", "--format=csv")


def test_a_damaged_result_is_refused_before_anything_is_measured(trained, monkeypatch):
    Path("alibi/extrapolation.json").write_text('{"rows": 5}', encoding="utf-8")
    monkeypatch.setattr(evaluate, "evaluate", lambda *_, **how: pytest.fail("measured in vain"))
    with pytest.raises(
        UserError,
        match="lacks a proper pos: delete it, and python evaluate.py alibi makes it again",
    ):
        trained("alibi", "--dtype=float32")


def test_another_corpus_of_the_same_tokenizer_gets_rows_and_a_figure_of_its_own(trained, capsys):
    trained("alibi", "--dtype=float32")
    trained("alibi", "--dataset=other", "--dtype=float32")
    assert {r["dataset"] for r in load_result("alibi")["rows"]} == {"toy", "other"}
    assert (
        Path("alibi/extrapolation-other.png").exists()
        and "other, trained at" in capsys.readouterr().out
    )
    with pytest.raises(UserError, match="another tokenizer or vocabulary"):
        trained("alibi", "--dataset=foreign")


def test_a_command_without_a_run_says_what_to_type(trained):
    with pytest.raises(UserError, match="python evaluate.py out/RUN"):
        trained()


def test_the_settings_offer_every_protocol_that_is_measured():
    assert EvaluateSettings().protocols == PROTOCOLS
    assert list(evaluate.PLANS) == [*PROTOCOLS, "sliding"]


def test_a_protocol_that_is_added_is_measured_and_gets_a_column_of_its_own(monkeypatch):
    def first_half(places, length):
        return evaluate.fixed_targets(replace(places, ends=places.ends[:32]), length)

    with pytest.raises(UserError, match="one of fixed_targets,windowed,nonoverlapping"):
        asked(protocols=("first_half",)).checked()
    monkeypatch.setitem(evaluate.PLANS, "first_half", first_half)
    found = result_of(protocols=(*PROTOCOLS, "first_half"))
    own, fixed = row(found, "first_half", 16), row(found, "fixed_targets", 16)
    assert own["block_nats"] == fixed["block_nats"][:32] and own["tokens"] == fixed["tokens"] / 2
    with_it = runs_table([found]).splitlines()
    heads, line = with_it[2].split(), next(text.split() for text in with_it if " 16 " in text)
    assert heads[-1] == "first_half" and line[-1] == f"{own['nats']:.4f}"
    without = [r for r in found["rows"] if r["protocol"] != "first_half"]
    old_lines = runs_table([found | {"rows": without}]).splitlines()
    assert all(new.startswith(old) for old, new in zip(old_lines, with_it, strict=True))


def test_a_length_that_has_no_place_keeps_its_reason_whatever_the_windows():
    shared = {"dataset": "toy", "extend": None, "stride": None, "step": 1, "checkpoint": "c"}
    shared |= {"split_sha256": "s", "protocol": "fixed_targets"}
    measured = shared | {"length": 8, "windows": 128, "targets": "t", "nats": 2.0, "dtype": "x"}
    nowhere = shared | {"length": 99, "windows": 64, "targets": None, "nats": None}
    nowhere |= {"reason": "too long"}
    shown = rows_on([measured, nowhere], "toy")
    assert shown["fixed_targets", 99]["reason"] == "too long"
    assert shown["fixed_targets", 8]["nats"] == 2.0
