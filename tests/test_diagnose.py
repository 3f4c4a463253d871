"""The diagnosis: statistics of attention by hand, planted models."""

import json
import math

import numpy as np
import pytest
import torch

from configurable import GPTConfig
from measure import diagnose
from model import GPT
from tables.records import Result

L = 16
SCHEMES = ["nope", "rope", "alibi", "t5", "nope + window(size=7, sinks=2)", "rope | nope | alibi"]
SCHEMES += ["randomized(max=64) + rope", "cope", "fox", "ssmax + rope"]
SCHEMES += ["rope + sink", "softpick", "stick_breaking"]
EXTENSIONS = ["yarn", "pi + logn", "rerope(window=8)", "self_extend(window=8, group=2)"]


def gpt(pos, extend="", n_layer=3):
    """A GPT with large random weights, so that attention is far from even."""
    torch.manual_seed(5)
    config = GPTConfig(block_size=L, vocab_size=11, n_layer=n_layer, n_head=2, n_embd=32, pos=pos)
    model = GPT(config).eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 and not name.startswith("pos."):
            torch.nn.init.normal_(parameter, std=0.4)
    model.pos.extend(extend)
    return model


def tokens(batch, length):
    return torch.randint(11, (batch, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("pos, nothing", [("alibi", 0.0), ("alibi + sink", 1.0)])
@torch.no_grad()
def test_statistics_are_those_worked_out_by_hand(pos, nothing):
    """ALiBi in one layer, every weight in plain floats; a sink weighs as much as a score of 0."""
    model = gpt(pos, n_layer=1)
    texts = tokens(2, 40)
    title, frame, note, _ = diagnose.attention_of(model, texts, L)
    assert list(frame.index) == [1, 2, 4, 8, 16, 32, 40] and "40" in title and "entropy" in note
    expected = np.zeros((2, 5, 2, 40))  # text, statistic, head, query
    for number, text in enumerate(texts):
        x = model.h[0].ln_1(model.wte(text))
        q, k, _ = (part.view(40, 2, 16).double() for part in model.h[0].attn.c_attn(x).chunk(3, -1))
        for h in range(2):
            for i in range(40):
                scores = [
                    float(q[i, h] @ k[j, h]) / 4 - (i - j) * (1 / 16, 1 / 256)[h]
                    for j in range(i + 1)
                ]
                weights = [math.exp(score) for score in scores]
                shares = [weight / sum(weights) for weight in weights]
                weights = [weight / (sum(weights) + nothing) for weight in weights]
                expected[number, :, h, i] = (
                    -sum(w * math.log(w) for w in shares if w > 0),
                    sum(w * (i - j) for j, w in enumerate(shares)),
                    sum(w for j, w in enumerate(weights) if i - j >= L),
                    sum(weights[:4]),
                    sum(weights),
                )
    start = 0
    for stop, row in frame.iterrows():
        found = expected[..., start:stop].mean(axis=(2, 3))  # (text, statistic)
        np.testing.assert_allclose(row.iloc[0::2], found.mean(axis=0), rtol=1e-4, atol=1e-6)
        stderr = found.std(axis=0, ddof=1) / math.sqrt(2)
        np.testing.assert_allclose(row.iloc[1::2], stderr, rtol=1e-3, atol=1e-6)
        start = stop


@pytest.mark.parametrize(
    "pos, extend", [(pos, "") for pos in SCHEMES] + [("rope", extend) for extend in EXTENSIONS]
)
@torch.no_grad()
def test_every_scheme_is_looked_at_and_left_as_it_was(pos, extend):
    model = gpt(pos, extend)
    texts = tokens(2, 4 * L)
    before = model(texts, texts)[0]
    _, frame, *_ = diagnose.attention_of(model, texts, L)
    assert torch.equal(model(texts, texts)[0], before)
    assert (frame["entropy"] <= np.log(frame.index) + 1e-5).all()
    assert frame["first 4"].between(0, 1 + 1e-5).all()
    assert frame["attended"].between(0, 1 + 1e-5).all()
    assert (frame["beyond L"].iloc[:4] == 0).all()  # no key is so far from the first L queries


@torch.no_grad()
def test_a_window_reads_nothing_beyond_and_nope_of_equal_keys_reads_evenly():
    model = gpt("nope + window(size=5)")
    _, frame, *_ = diagnose.attention_of(model, tokens(2, 4 * L), L)
    assert (frame["beyond L"] == 0).all() and (frame["distance"] < 5).all()
    model = gpt("nope")
    for block in model.h:
        block.attn.c_attn.weight.zero_()
    _, frame, *_ = diagnose.attention_of(model, tokens(2, 4 * L), L)
    last = frame.loc[4 * L]
    keys = np.arange(2 * L + 1, 4 * L + 1)
    assert last["entropy"] == pytest.approx(np.log(keys).mean(), rel=1e-5)
    assert last["distance"] == pytest.approx(((keys - 1) / 2).mean(), rel=1e-5)


def test_far_shuffled_is_what_the_loss_rises_by():
    def score(length, kept=math.inf):
        """A model that reads 40 tokens back, and loses 0.5 nats without the far ones."""
        lost = 0.5 if kept < min(40, length) else 0.0
        return np.array([1.0, 2.0, 3.0]) + lost

    _, frame, *_ = diagnose.far_shuffled(score, [L, 4 * L])
    assert (frame[f"N = {L}"] == np.where(frame.index < L, 0.5, 0.0)).all()
    assert (frame[f"N = {4 * L}"] == np.where(frame.index < 40, 0.5, 0.0)).all()
    assert list(frame.index) == [2, 4, 8, 16, 32]


@torch.no_grad()
def test_a_report_is_printed_kept_and_drawn(tmp_path, capsys):
    model = gpt("rope")
    texts = tokens(3, 4 * L)
    shuffled = diagnose.far_shuffled(lambda n, kept: np.ones(3), [L, 4 * L])
    findings = [diagnose.attention_of(model, texts, L), shuffled]
    about = Result("rope", 1, L, 9, {})
    diagnose.report(findings, tmp_path, about, "tiny")
    printed = capsys.readouterr().out
    assert "entropy" in printed and "kept" in printed
    content = json.loads((tmp_path / "diagnose.json").read_text(encoding="utf-8"))
    assert content["block_size"] == L and content["findings"][0]["rows"][0]["keys"] == 1
    assert (tmp_path / "diagnose.png").stat().st_size > 1000
