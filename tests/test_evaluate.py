"""Testing long: every protocol's numbers, worked out here from the definitions, window by window."""

import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import data
import evaluate
from configurable import EvaluateSettings, GPTConfig, TrainSettings, UserError, require
from evaluate import Places, remarks
from model import GPT
from runs import device, results
from runs.checkpoint import Run
from runs.results import (
    Difference,
    describe_model,
    far,
    gain,
    load_result,
    merge,
    paired,
    rows_on,
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

    def attention_path(self, length, window=None):
        return f"path{length}/{window}"

    def eval(self):
        self.training = False

    def train(self, mode):
        self.training = mode


def corpus(documents, seed=0, name="toy", characters="aé€"):
    """A corpus in memory: `documents` are lengths, tokens random, of 1, 2 and 3 bytes."""
    val = np.random.default_rng(seed).integers(0, len(characters), sum(documents)).astype(np.uint16)
    starts = np.cumsum([0, *documents[:-1]])
    meta = {
        "tokenizer": "char",
        "unit": "char",
        "vocab_size": len(characters),
        "characters": characters,
        "splits": {"val": {"sha256": f"sha{seed}"}},
    }
    return data.Corpus(name, Path("nowhere"), meta, val, val, starts, starts)


def run(model=None, documents=(300, 30, 500, 200), lengths=LENGTHS, **how):
    model = model or Known()
    return evaluate.evaluate(
        model, corpus(list(documents)), train_length=L, lengths=lengths, progress=False, **how
    )


def row(result, protocol, length):
    return next(r for r in result["rows"] if (r["protocol"], r["length"]) == (protocol, length))


# ---- where


def good_ends(documents, longest):
    """Every offset whose `longest` inputs before it are in its own document, found by looking."""
    owner = np.repeat(np.arange(len(documents)), documents)
    return [e for e in range(longest, len(owner)) if owner[e - longest] == owner[e]]


@pytest.mark.parametrize(
    "documents", [(300, 30, 500, 200), (41, 400), (104,), (400, 41, 40, 39), (41,) * 64, (42,) * 70]
)
def test_windows_end_evenly_among_the_places_with_the_longest_context_in_their_document(documents):
    places = good_ends(documents, 40)
    ends, across = evaluate.window_ends(sum(documents), np.cumsum([0, *documents[:-1]]), 40)
    assert not across and ends.tolist() == [places[k] for k in data.evenly(len(places), 64)]


def test_windows_run_across_documents_only_where_there_are_not_64_places():
    assert not evaluate.window_ends(104, np.array([0]), 40)[1]  # 64 places
    ends, across = evaluate.window_ends(103 + 30, np.array([0, 103]), 40)  # 63
    assert across and ends.tolist() == (40 + data.evenly(133 - 40, 64)).tolist()


def test_a_row_says_that_its_windows_run_across_documents():
    result = run(documents=[30] * 40)
    assert row(result, "fixed_targets", 16)["across_documents"] is True
    assert "across documents" in row(result, "windowed", 4)["note"]
    assert "across_documents" not in row(result, "nonoverlapping", 16)
    assert any("across documents" in note for note in result["notes"])
    assert "across_documents" not in row(run(), "fixed_targets", 16)


def test_blocks_that_share_targets_are_noted():
    spread = Places(40, 4, np.arange(64) * 4 + 40, np.arange(16) * 40, False)
    assert remarks("fixed_targets", spread) == {} and remarks("nonoverlapping", spread) == {}
    dense = Places(40, 4, np.arange(64) * 3 + 40, np.arange(16) * 39, False)
    for protocol in ("windowed", "sliding"):
        assert "share targets" in remarks(protocol, dense)["note"]


def test_the_default_lengths_go_from_half_to_32_times_the_training_length():
    assert results.tested_lengths(128) == [64, 128, 256, 512, 1024, 2048, 4096]
    assert results.tested_lengths(128, (100, 300)) == [100, 128, 300]
    assert results.tested_lengths(1)[0] == 1


# ---- the protocols, by hand


def by_hand(documents, score):
    """(mean nats, scored offsets) of score(tokens, longest) -> [(target offset, visible tokens)]."""
    text = corpus(list(documents))
    scored = score(text.val, max(LENGTHS))
    return np.mean([Known().loss(float(text.val[t]), v) for t, v in scored]), [t for t, _ in scored]


def pieces(tokens, longest):
    return data.evenly(len(tokens) - longest, 16)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("protocol", ["fixed_targets", "windowed"])
def test_fixed_targets_scores_the_last_targets_of_the_window_that_ends_at_each_place(
    protocol, length
):
    documents = (300, 30, 500, 200)
    limit = L if protocol == "windowed" else 10**9

    def score(tokens, longest):
        places = good_ends(documents, longest)
        ends = [places[k] for k in data.evenly(len(places), 64)]
        return [
            (e - back, min(length - back, limit)) for e in ends for back in (1, 0)
        ]  # m = 4 // 2

    nats, _ = by_hand(documents, score)
    found = row(run(), protocol, length)
    assert found["nats"] == pytest.approx(nats, abs=1e-6)
    assert found["tokens"] == 128 and len(found["block_nats"]) == 64


def test_fixed_targets_has_the_same_targets_at_every_length_and_at_most_32_of_each_window():
    result = run(documents=(3000,), lengths=(8, 128, 256))
    assert len({r["targets"] for r in result["rows"] if r["protocol"] != "nonoverlapping"}) == 1
    assert row(result, "fixed_targets", 8)["tokens"] == 64 * 4
    assert (
        row(run(documents=(9000,), lengths=(128, 256)), "fixed_targets", 8)["tokens"] == 64 * 4
    )  # L counts too


def test_the_digest_is_that_of_the_sorted_offsets_as_little_endian_int64():
    ends = [
        good_ends((300, 30, 500, 200), 40)[k]
        for k in data.evenly(len(good_ends((300, 30, 500, 200), 40)), 64)
    ]
    offsets = sorted(e - back for e in ends for back in (0, 1))
    raw = b"".join(t.to_bytes(8, "little") for t in offsets)
    assert row(run(), "fixed_targets", 16)["targets"] == hashlib.sha256(raw).hexdigest()


@pytest.mark.parametrize("length", LENGTHS)
def test_nonoverlapping_scores_every_target_of_the_pieces_with_what_its_own_cut_holds(length):
    def score(tokens, longest):
        return [
            (p + t + 1, t % length + 1) for p in pieces(tokens, longest) for t in range(longest)
        ]

    nats, offsets = by_hand((300, 30, 500, 200), score)
    found = row(run(), "nonoverlapping", length)
    assert found["nats"] == pytest.approx(nats, abs=1e-6)
    assert found["tokens"] == len(offsets) == 16 * 40 and len(found["block_nats"]) == 16
    assert found["targets"] == row(run(), "nonoverlapping", L)["targets"]


@pytest.mark.parametrize("stride", [1, 3, 8, 100])
@pytest.mark.parametrize("length", LENGTHS)
def test_sliding_scores_every_target_once_with_context_up_to_the_length(length, stride):
    step = min(stride, length)

    def visible(t, longest):
        """How much the first window that holds input t sees."""
        stops = [*range(length, longest, step), longest]
        stop = next(s for s in stops if s > t)
        return t - (stop - length) + 1

    def score(tokens, longest):
        return [
            (p + t + 1, visible(t, longest))
            for p in pieces(tokens, longest)
            for t in range(longest)
        ]

    nats, _ = by_hand((300, 30, 500, 200), score)
    found = row(run(protocols=(), stride=stride), "sliding", length)
    assert found["nats"] == pytest.approx(nats, abs=1e-6)
    assert found["targets"] == row(run(), "nonoverlapping", L)["targets"]


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


def test_a_forward_holds_about_16k_tokens_and_the_batch_size_does_not_change_a_number(monkeypatch):
    model = Known()
    result = evaluate.evaluate(
        model, corpus([40000]), train_length=1024, lengths=(1024, 20000), progress=False
    )
    assert {shape for shape, _ in model.calls} >= {(16, 1024), (1, 20000)}
    assert max(b * t for (b, t), _ in model.calls) <= 20000
    monkeypatch.setattr(evaluate, "BATCH_TOKENS", 1)
    again = evaluate.evaluate(
        Known(), corpus([40000]), train_length=1024, lengths=(1024, 20000), progress=False
    )
    assert [r["block_nats"] for r in again["rows"]] == [r["block_nats"] for r in result["rows"]]


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
    found = row(run(compute=BF16), "windowed", 16)
    assert list(found) == [
        "protocol",
        "length",
        "extend",
        "factor",
        "dataset",
        "split_sha256",
        "targets",
        "tokens",
        "nats",
        "stderr",
        "stderr_vs_L",
        "block_nats",
        "perplexity",
        "bits_per_byte",
        "tokens_per_s",
        "dtype",
        "attention",
    ]
    assert (found["extend"], found["factor"], found["dataset"], found["split_sha256"]) == (
        None,
        None,
        "toy",
        "sha0",
    )
    assert found["perplexity"] == pytest.approx(math.exp(found["nats"]))
    assert (found["dtype"], found["attention"]) == ("bfloat16", "path16/8")
    assert found["tokens_per_s"] > 0


def test_bits_per_byte_counts_the_bytes_of_the_scored_targets_only():
    places = good_ends((300, 30, 500, 200), 40)
    ends = [places[k] for k in data.evenly(len(places), 64)]
    val = corpus([300, 30, 500, 200]).val
    text = "".join("aé€"[val[e - back]] for e in ends for back in (0, 1))
    found = row(run(), "fixed_targets", 40)
    assert found["bits_per_byte"] == pytest.approx(
        found["nats"] * 128 / math.log(2) / len(text.encode("utf-8"))
    )


def test_what_a_scheme_cannot_do_is_a_row_with_its_reason():
    result = run(Known(limit=16))
    for protocol in ("fixed_targets", "windowed", "nonoverlapping"):
        assert row(result, protocol, 40)["nats"] is None
        assert row(result, protocol, 40)["reason"] == "the table ends at 16"
    # the others are tested where every scheme is, and the curve is that of the longest length that is defined
    assert row(result, "fixed_targets", 16)["targets"] == row(run(), "fixed_targets", 16)["targets"]
    assert result["per_position"]["length"] == 16


def test_a_split_too_short_for_a_length_leaves_the_shorter_ones():
    result = run(documents=(90,))
    assert row(result, "fixed_targets", 40)["reason"].startswith(
        "the 90 validation tokens of toy are too few"
    )
    assert row(result, "fixed_targets", 16)["tokens"] == 128
    assert (
        row(run(documents=(104,)), "fixed_targets", 40)["nats"]
        and not row(run(documents=(103,)), "fixed_targets", 40)["nats"]
    )
    nothing = run(documents=(50,))
    assert (
        all(r["nats"] is None and r["reason"] for r in nothing["rows"])
        and nothing["per_position"] == {}
    )
    assert "toy" in runs_table(
        [nothing | {"pos": "x", "train_length": L, "seed": 1, "unit": "char"}]
    )


def test_a_loss_that_is_not_a_number_is_a_row_with_a_reason():
    class Broken(Known):
        def loss(self, target, visible):
            return super().loss(target, visible) + np.where(visible > 30, np.nan, 0)

    result = run(Broken())
    assert (
        row(result, "fixed_targets", 40)["nats"] is None
        and "finite" in row(result, "nonoverlapping", 40)["reason"]
    )
    assert row(result, "windowed", 40)["nats"] is not None
    json.dumps(result, allow_nan=False)


def test_per_position_means_the_same_pass_by_position_in_doubling_bins():
    curve = run()["per_position"]
    assert (curve["dataset"], curve["length"]) == ("toy", 40)
    assert curve["edges"] == [0, 1, 2, 4, 8, 16, 32, 40]
    assert curve["counts"] == [64 * n for n in (1, 1, 2, 4, 8, 16, 8)]
    flat = evaluate.per_position(np.arange(64)[:, None] + np.arange(8.0)[None])
    assert flat["edges"] == [0, 1, 2, 4, 8]
    assert flat["nats"] == pytest.approx(
        [31.5, 32.5, 34.0, 37.0]
    )  # the mean window is 31.5, positions 0, 1, 2-3, 4-7
    assert flat["stderr"] == pytest.approx([np.arange(64).std(ddof=1) / 8] * 4)


def test_the_longest_length_is_run_in_float32_too_on_eight_windows():
    model = Known()
    check = run(model, compute=BF16)["float32_check"]
    assert check["difference"] == pytest.approx(0.25, abs=1e-6)  # what the fake adds under autocast
    assert (check["length"], check["windows"], check["dtype"]) == (40, 8, "bfloat16")
    assert check["nats"] - check["nats_float32"] == check["difference"]
    assert ((8, 40), None) in model.calls
    assert run()["float32_check"] == {}


def test_the_model_is_put_back_into_the_mode_it_was_in():
    for mode in (True, False):
        model = Known()
        model.training = mode
        run(model)
        assert model.training is mode


def test_a_log_gets_a_plain_line_for_each_row(capsys):
    result = evaluate.evaluate(Known(limit=16), corpus([900]), train_length=L, lengths=LENGTHS)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == sum(r["nats"] is not None for r in result["rows"]) and "\r" not in "".join(
        lines
    )


def test_a_tokenizer_that_cannot_be_loaded_costs_only_bits_per_byte(monkeypatch, capsys):
    def absent(self):
        raise UserError("no vocabulary here")

    monkeypatch.setattr(data.Corpus, "token_bytes", absent)
    assert row(run(), "fixed_targets", 16)["bits_per_byte"] is None
    assert "no vocabulary here" in capsys.readouterr().out


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


def test_a_model_that_reads_far_raises_no_doubt_and_a_window_does():
    assert run(Known(use=4.0))["notes"] == []
    short = run(Known(use=4.0, cap=L))["notes"]  # looks at L tokens, never further
    assert (
        len(short) == 1
        and f"beyond {L}" in short[0]
        and "far is nowhere" in short[0]
        and "loss(4)" not in short[0]
    )
    blind = run(Known(use=0.0))["notes"][0]
    assert "loss(4) - loss(8) is only +0.0000" in blind
    assert (
        "far is nowhere" in run(Known(use=0.04))["notes"][0]
    )  # far(40) = 0.04 / 8 - 0.04 / 40: positive, but near zero


def test_a_scheme_that_ends_at_L_and_a_test_without_windowed_say_that_far_was_not_measured():
    assert "far was not measured" in run(Known(use=4.0, limit=L))["notes"][0]
    assert "far was not measured" in run(Known(use=4.0), protocols=("fixed_targets",))["notes"][0]
    assert run(protocols=("nonoverlapping",))["notes"] == []


# ---- runs


def result_of(tokens=1000, **how):
    settings, text = (
        TrainSettings(pos="known", block_size=L, seed=3),
        how.pop("text", corpus([900])),
    )
    about = describe_model(Known(use=4.0), settings, tokens)
    lengths = how.pop("lengths", LENGTHS)
    return evaluate.extrapolation(
        Known(use=4.0), text, about, lengths=lengths, progress=False, **how
    )


def test_extrapolation_says_what_was_trained():
    result = result_of()
    about = {"pos": "known", "train_length": 8, "original_length": 4, "tokens_trained": 1000}
    about |= {"unit": "char", "seed": 3, "parameters": 7, "extend": None}
    assert result.items() >= about.items() and result["seconds"] >= 0
    json.dumps(result, allow_nan=False)


def test_merging_replaces_what_was_measured_again_and_keeps_the_rest():
    old, new = result_of(), result_of(lengths=(16,), protocols=("fixed_targets",))
    merged = merge(old, new)
    assert [(r["protocol"], r["length"]) for r in merged["rows"]] == [
        (r["protocol"], r["length"]) for r in old["rows"]
    ]
    for r in merged["rows"]:
        again = r["protocol"] == "fixed_targets" and r["length"] in (8, 16)
        assert r == (
            row(new, r["protocol"], r["length"]) if again else row(old, r["protocol"], r["length"])
        )
    assert merged["per_position"] == new["per_position"]


def test_merging_another_corpus_adds_its_rows_and_keeps_the_curve_of_the_first():
    old, new = result_of(), result_of(text=corpus([700], seed=1, name="other"))
    merged = merge(old, new)
    assert (
        len(merged["rows"]) == 2 * len(old["rows"])
        and merged["per_position"] == old["per_position"]
    )
    assert rows_on(merged["rows"], "other") == rows_on(new["rows"], "other")


def test_what_another_model_left_is_not_merged():
    new = result_of(lengths=(16,))
    assert merge(result_of(tokens=999), new) == new


def test_merging_judges_anew_what_the_rows_can_show():
    without, far = result_of(protocols=("fixed_targets",)), result_of(protocols=("windowed",))
    assert "far was not measured" in without["notes"][0]
    assert merge(without, far)["notes"] == []


# ---- a real model, and the command


def tiny(pos):
    torch.manual_seed(0)
    return GPT(GPTConfig(block_size=L, vocab_size=3, n_layer=2, n_head=2, n_embd=16, pos=pos))


def test_a_real_model_gives_the_mean_cross_entropy_of_its_own_logits():
    model, text = tiny("alibi"), corpus([900])
    result = evaluate.evaluate(model, text, train_length=L, lengths=LENGTHS, progress=False)
    places = good_ends([900], 40)
    nats = []
    for e in (places[k] for k in data.evenly(len(places), 64)):
        window = torch.from_numpy(text.val[e - 16 : e + 1].astype(np.int64))[None]
        logits = model.eval()(window[:, :-1], window[:, 1:])[0]
        nats += [-logits[0, t].log_softmax(-1)[window[0, t + 1]].item() for t in (14, 15)]
    assert row(result, "fixed_targets", 16)["nats"] == pytest.approx(np.mean(nats), abs=1e-5)
    assert row(result, "windowed", 8)["block_nats"] == row(result, "fixed_targets", 8)["block_nats"]
    assert (
        row(result, "windowed", 40)["block_nats"] != row(result, "fixed_targets", 40)["block_nats"]
    )


def test_a_learned_table_past_its_end_is_a_row_with_a_reason():
    result = evaluate.evaluate(
        tiny("learned"), corpus([900]), train_length=L, lengths=LENGTHS, progress=False
    )
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
        pos, state = Path(folder).name, {"tokens": 5}
        own = TrainSettings(pos=pos, dataset="toy", block_size=L, seed=1, eval_lengths=LENGTHS)
        compute = device.pick("cpu", settings.dtype)
        config = {"corpus_sha256": {"val": "sha0"}}
        return Run(Path(folder), config, own, state, "sha", tiny(pos), compute)

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
    assert EvaluateSettings().protocols == evaluate.PROTOCOLS
    assert list(evaluate.PLANS) == [*evaluate.PROTOCOLS, "sliding"]


def test_a_protocol_that_is_added_is_measured_and_gets_a_column_of_its_own(monkeypatch):
    def first_half(places, length):
        windows = evaluate.fixed_targets(places, length)[0]
        half = {"starts": windows.starts[:32], "scored": windows.scored[:32]}
        return [replace(windows, **half, block=windows.block[:32])]

    with pytest.raises(UserError, match="no protocol first_half, only fixed_targets, windowed, "):
        run(protocols=("first_half",))
    monkeypatch.setitem(evaluate.PLANS, "first_half", first_half)
    found = result_of(protocols=(*evaluate.PROTOCOLS, "first_half"), stride=4)
    own, fixed = row(found, "first_half", 16), row(found, "fixed_targets", 16)
    assert own["block_nats"] == fixed["block_nats"][:32] and own["tokens"] == fixed["tokens"] / 2
    with_it = runs_table([found]).splitlines()
    heads, line = with_it[2].split(), next(text.split() for text in with_it if " 16 " in text)
    assert heads[-2:] == ["sliding", "first_half"] and line[-1] == f"{own['nats']:.4f}"
    without = [r for r in found["rows"] if r["protocol"] != "first_half"]
    old_lines = runs_table([found | {"rows": without}]).splitlines()
    assert all(new.startswith(old) for old, new in zip(old_lines, with_it, strict=True))
