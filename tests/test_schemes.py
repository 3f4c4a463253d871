"""Every scheme that an expression can name, and pairs of them, against their oracles and against
what all schemes promise.

The tests go over `scheme_names()`: a scheme without an oracle, or without a row in EXPECTED, fails.
"""

import ast
import inspect
import itertools
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import oracles
import pytest
import torch
from oracles import ORACLES, C, D, H, L, Parts, T
from torch import Tensor

import attention
import posenc
from configurable import UserError
from model import GPT, GPTConfig
from posenc import Shape, Text, overrides
from positions.catalogue import find, scheme_names
from positions.scheme import Plan, Scheme
from runs.checkpoint import load_weights
from train import optimizer_groups

SHAPE = Shape(n_head=H, head_dim=D, width=C, length=L)
FLOAT64 = torch.empty(0, dtype=torch.float64)
VOCABULARY = 17
GAPS = [2, 2, 5, 6, 6, 13]
WORDS = [[4, 3, 15, 12, 5, 9]]  # with the digits 3 ... 12: two numbers


@dataclass(frozen=True)
class Expected:
    """What is promised of a scheme beside its formula."""

    parameters: dict[str, tuple[int, ...]] = field(default_factory=dict)  # of its piece
    shifts: bool | None = True  # logits stay if all positions shift; None: none can be given
    order: bool = True  # the last logits of one layer change where earlier tokens are reversed
    path: str = "dense"  # how eager code computes its attention
    reach: int = 1_048_576  # positions below this are exact


INPUT = Expected(shifts=False, path="fused")
ROTARY = Expected(path="fused")
RESIZED = Expected({"table": (4, C)}, shifts=None, path="fused", reach=T)
GATED = Expected({"gate.weight": (H, C), "gate.bias": (H,)}, path="fused")
MIXED = Expected({"cosines": (H, 2, 2), "sines": (H, 2, 2)}, shifts=False, path="fused")
PLACES = Expected({"table": (2, 2, C)}, shifts=None, path="fused")


def perceptron(inputs: int, hidden: int) -> dict[str, tuple[int, ...]]:
    """The parameters of a network of two layers that ends in the heads, without its last bias."""
    return {"inner.weight": (hidden, inputs), "inner.bias": (hidden,), "outer.weight": (H, hidden)}


# the mentions that the tests build: of a name that needs options, with them; and further options
EXPECTED: dict[str, Expected] = {
    "nope": Expected(order=False, path="fused"),
    "learned(rows=64)": Expected({"table": (64, C)}, shifts=False, path="fused", reach=64),
    "learned(rows=4, resize=linear)": RESIZED,
    "learned(rows=4, resize=bicubic)": RESIZED,
    "sinusoidal": INPUT,
    "sinusoidal(scale=1, base=100)": INPUT,
    "rope": ROTARY,
    "rope(base=500)": ROTARY,
    "rope(layout=interleaved)": ROTARY,
    "rope(fraction=0.5)": ROTARY,
    "rope(p=0.5)": ROTARY,
    "rope(clip=3)": ROTARY,
    "alibi": Expected(),
    "alibi(learned=True)": Expected({"raw": (H,)}),
    "t5": Expected({"table": (32, H)}),
    "t5(buckets=4, max_distance=6)": Expected({"table": (4, H)}),
    "window(size=3, sinks=1)": Expected(),
    "window(size=2)": Expected(),
    "randomized(max=64)": Expected(order=False, path="fused"),
    "logn": Expected(order=False, path="fused"),
    "kerple": Expected({"r1": (H,), "r2": (H,)}),
    "kerple(kind=power)": Expected({"r1": (H,), "r2": (H,)}),
    "block_causal": Expected(),
    "block_causal(size=2)": Expected(),
    "relative": Expected({"table": (5, H)}),
    "relative(max_distance=2)": Expected({"table": (3, H)}),
    "fire(threshold=4, hidden=5)": Expected(
        {"c": (), "a": (), **perceptron(1, 5), "outer.bias": (H,)}, shifts=False
    ),
    "fire": Expected({"c": (), "a": (), **perceptron(1, 32), "outer.bias": (H,)}, shifts=False),
    "sandwich": Expected(),
    "sandwich(dimension=12)": Expected(),
    "cpb(input=linear, hidden=5)": Expected(perceptron(1, 5)),
    "cpb": Expected(perceptron(1, 32)),
    "multiscale": Expected(),
    "multiscale(smallest=2, largest=5)": Expected(),
    "cope": Expected({"table": (4, D)}, path="scored"),
    "cope(max=2, gate=raw)": Expected({"table": (2, D)}, path="scored"),
    "fox": GATED,
    "fox(kind=cable)": GATED,
    # there is no bias to refine
    "dape": Expected({**perceptron(2 * H, 32), "outer.bias": (H,)}, order=False, path="scored"),
    "dape(hidden=3)": Expected(
        {**perceptron(2 * H, 3), "outer.bias": (H,)}, order=False, path="scored"
    ),
    "path(rank=3)": Expected(
        {
            "down.weight": (3, C),
            "up.weight": (C, 3),
            "conv.weight": (C, 1, 3),
            "beta.weight": (H, C),
            "beta.bias": (H,),
        },
        path="scored",
    ),
    "ssmax": Expected({"s": (H,)}, order=False, path="fused"),
    "scale_invariant": Expected(path="scored"),
    "scale_invariant(tau=2)": Expected(path="scored"),
    "abacus(zero=3, max_shift=4, rows=64)": Expected({"table": (64, C)}, path="fused"),
    "cape": INPUT,
    "fope(base=2)": MIXED,
    "fope(base=2, rest=0, learned=True)": MIXED,
    "learned_rope": Expected({"shift": (H, D // 2)}, path="fused"),
    "pope": Expected({"delta": (H, D)}, path="fused"),
    "resonance": ROTARY,
    "rfs": Expected(order=False, path="fused"),
    "rfs(max=3)": Expected(order=False, path="fused"),
    "selective_rope(base=100, rank=3, taps=3)": Expected(
        {"down": (3, C), "up": (H * D // 2, 3), "taps": (H * D // 2, 1, 3)}, path="fused"
    ),
    "shape": Expected(order=False, path="fused"),
    "shape(test_shift=3)": Expected(order=False, path="fused"),
    # its factors grow with the distance from the middle of the text
    "xpos": Expected(path="fused", reach=64),
    "xpos(gamma=1, scale_base=32)": Expected(path="fused", reach=64),
    "learned2d": PLACES,
    "learned2d(resize=bilinear)": PLACES,
    "sinusoidal2d": INPUT,
    "sinusoidal2d(scale=1, base=100)": INPUT,
    "rope2d": ROTARY,
    "rope2d(base=500, coordinates=unit)": ROTARY,
    "alibi2d": Expected(),
}
COMPOSITES: dict[str, Expected] = {
    "rope + alibi": Expected(),
    "rope(p=0.5) + logn": ROTARY,
    "alibi + logn": Expected(),
    "alibi + kerple": Expected(),
    "randomized(max=64) + rope": ROTARY,
    "randomized(max=64) + alibi": Expected(),
    "randomized(max=64) + learned(rows=64)": INPUT,
    "learned(rows=64) + t5(buckets=4, max_distance=6) + rope(layout=interleaved)": Expected(
        shifts=False
    ),
    "rope | rope | rope | nope": ROTARY,
    "rope + block_causal(size=2)": Expected(),
    "rope + multiscale(smallest=2, largest=5) + logn": Expected(),
    "randomized(max=64) + fire": Expected(shifts=False),
    "nope + ssmax": Expected(order=False, path="fused"),
    "rope + logn + ssmax": ROTARY,
    "alibi + dape": Expected(path="scored"),
    "multiscale(smallest=2, largest=5) + kerple + dape(hidden=3)": Expected(path="scored"),
    "rope + fox": ROTARY,
    "alibi + logn + fox": Expected(),
    # the table meets turned queries
    "rope + cope + window(size=3, sinks=1)": Expected(shifts=False, path="scored"),
    "alibi + path(rank=3)": Expected(path="scored"),
    "rope(p=0.5) + kerple + scale_invariant": Expected(path="scored"),
    "rfs + rope": ROTARY,
    "rfs(max=3) + alibi": Expected(),
    "rfs + fire": Expected(shifts=False),
    "shape(test_shift=3) + sinusoidal": INPUT,
    "xpos + block_causal(size=2)": Expected(),
    "pope + alibi + logn": Expected(),
    "abacus(zero=3, max_shift=4, rows=64) + rope": ROTARY,
    "fope(base=2) + kerple": Expected(shifts=False),
    "rope2d + logn + window(size=3, sinks=1)": Expected(),
    "alibi2d + fox": Expected(),
    "fox | rope + sandwich | nope + ssmax": Expected(path="fused|dense"),
    "rope + window(size=3, sinks=1) | nope": Expected(path="dense|fused"),
    "randomized(max=64) + (rope | t5(buckets=4, max_distance=6) + window(size=2))": Expected(
        path="fused|dense"
    ),
}
MOVERS = ("randomized", "rfs", "shape")  # these say which positions there are
MENTIONS, ALL = list(EXPECTED), {**EXPECTED, **COMPOSITES}
SCHEMES = list(ALL)


def name_of(mention: str) -> str:
    """rope(p=0.5) -> rope."""
    return mention.split("(")[0]


def first_of_each_name() -> list[str]:
    """One mention of each name."""
    return list({name_of(m): m for m in reversed(MENTIONS)}.values())


def branches_of(text: str) -> list[list[str]]:
    """The mentions that act in each layer of `a + (b | c)`, until the pattern starts again.

    The project's own reading is not asked.
    """

    def split(node: ast.expr, operator: type) -> list[ast.expr]:
        joined = isinstance(node, ast.BinOp) and isinstance(node.op, operator)
        return split(node.left, operator) + split(node.right, operator) if joined else [node]

    def mentions(node: ast.expr, layer: int) -> list[str]:
        found = []
        for term in split(node, ast.Add):
            branches = split(term, ast.BitOr)
            branch = branches[layer % len(branches)]
            found += mentions(branch, layer) if len(branches) > 1 else [ast.unparse(term)]
        return found

    return [mentions(ast.parse(text, mode="eval").body, n) for n in range(text.count("|") + 1)]


# Ours and theirs


def value(name: str, place: int) -> float:
    """Entry `place` of a parameter, no two alike: from 0.1 to 0.9, in networks of both signs."""
    wave = float(np.sin(1.7 * place + len(name) + ord(name[-1])))
    if name in ("weight", "bias", "down", "up", "taps", "delta", "shift"):
        return 0.8 * wave
    return 0.5 + 0.4 * wave


def fill(module: torch.nn.Module) -> None:
    """Give every parameter its `value`s."""
    for name, parameter in module.named_parameters():
        flat = [value(name.split(".")[-1], place) for place in range(parameter.numel())]
        parameter.data = torch.tensor(flat, dtype=parameter.dtype).view_as(parameter)


def built(text: str, n_layer: int = 1) -> Scheme:
    """A scheme in float64, its parameters filled, in evaluation mode."""
    scheme = Scheme(text, SHAPE, n_layer).double().eval()
    fill(scheme)
    return scheme


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def tokens(*shape: int, seed: int = 1) -> Tensor:
    return torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


Q, K, X = normal(H, T, D, seed=1), normal(H, T, D, seed=2), normal(T, C, seed=3)


def scores_of(scheme: Scheme, which: int, ids: Tensor, q: Tensor, k: Tensor, x: Tensor) -> Tensor:
    """The scores (H, T, T) of one kind of layer for q and k (H, T, D), not yet turned, and a
    layer's input x (T, C)."""
    index = torch.arange(len(ids))
    plan = scheme.plans(index, ids, ids, len(ids), FLOAT64)[which]
    q, k = q[None], k[None]
    q, k = (plan.turns[0](q), plan.turns[1](k)) if plan.turns else (q, k)
    return attention.scores(q, k, plan, features=features_of(plan, x[None]))[0]


def features_of(plan: Plan, x: Tensor) -> Tensor | None:
    """(B, 1, T, M) as the model gives them to attention."""
    has = plan.scorer is not None and overrides(plan.scorer, "features")
    return plan.scorer.features(x)[:, None] if has else None


def parts_of(scheme: Scheme, layer: int, branch: list[str]) -> Parts:
    """The oracle of a layer's pieces, with the values of their parameters."""
    pieces = [scheme.pieces[key] for key in scheme.layers[layer]]
    found = []
    for mention, piece in zip(branch, pieces, strict=True):
        weights = {name: p.detach().double().numpy() for name, p in piece.named_parameters()}
        found.append(ORACLES[mention].make(weights))
    return oracles.combined(found)


def difference(text: str, ids: Tensor | None = None, scheme: Scheme | None = None) -> float:
    """The largest difference between a scheme and its oracle: of the scores in each layer, and of
    the vectors added."""
    branches, worst, idx = branches_of(text), [], torch.tensor(WORDS)
    scheme = scheme or built(text, len(branches))
    here = scheme.ids(torch.arange(T), T) if ids is None else ids
    for layer, branch in enumerate(branches):
        parts = parts_of(scheme, layer, branch)
        given = [parts.ids(n, T) for n in range(T)] if parts.ids and ids is None else here.tolist()
        assert here.tolist() == pytest.approx(given, abs=1e-12)
        ours = scores_of(scheme, scheme.set_of_layer[layer], here, Q, K, X).detach().numpy()
        theirs = oracles.logits(parts, Q.numpy(), K.numpy(), X.numpy(), given)
        unseen = np.isneginf(theirs)
        assert (np.isneginf(ours) == unseen).all(), f"{text} hides other keys than its oracle"
        worst.append(np.abs(np.where(unseen, 0, ours) - np.where(unseen, 0, theirs)).max())
        added = scheme.embed(here, Text(idx, T))
        assert (added is None) == (parts.embed is None)
        if added is not None:
            vectors = np.broadcast_to(added.detach().double().numpy(), (1, T, C))[0]
            worst.append(np.abs(vectors - parts.embed(given, idx[0].tolist())).max())
    return float(max(worst))


def test_every_scheme_has_an_oracle_and_a_row_of_what_is_promised():
    """Nothing that an expression can name is silently absent from these tests."""
    assert sorted({name_of(mention) for mention in MENTIONS}) == scheme_names()
    assert sorted(ORACLES) == sorted(MENTIONS)
    assert {m for text in COMPOSITES for m in mentions_of(text)} <= set(MENTIONS)


def mentions_of(text: str) -> list[str]:
    """All mentions in an expression."""
    return [mention for branch in branches_of(text) for mention in branch]


def tolerance(text: str) -> float:
    """The largest that the oracles of an expression allow."""
    return max(ORACLES[mention].tolerance for mention in mentions_of(text))


def takes_any_positions(text: str) -> bool:
    """Whether no piece of it says which positions there are."""
    moved = any(name_of(mention) in MOVERS for mention in mentions_of(text))
    return ALL[text].shifts is not None and not moved


def largest_difference(text: str) -> float:
    """At plain positions and, where the scheme takes any, at positions with gaps and repeats."""
    found = difference(text)
    if takes_any_positions(text):
        found = max(found, difference(text, torch.tensor(GAPS)))
    return found


@pytest.mark.parametrize("text", SCHEMES)
def test_the_scores_are_those_of_the_paper_also_where_positions_have_gaps_and_repeats(text, record):
    """Biases, rotations and embeddings go by position; causality, masks, temperatures by index."""
    found = largest_difference(text)
    record(f"largest difference from the oracle of {text}", found)
    assert found < tolerance(text)


# What a scheme is made of


def parameters_of(text: str) -> dict[str, tuple[int, ...]]:
    """Of its only piece in a model of one layer."""
    (piece,) = Scheme(text, SHAPE, 1).pieces.values()
    return {name: tuple(p.shape) for name, p in piece.named_parameters()}


@pytest.mark.parametrize("text", MENTIONS)
def test_a_scheme_has_exactly_its_parameters_not_decayed_and_no_buffer(text):
    assert parameters_of(text) == EXPECTED[text].parameters
    assert list(Scheme(text, SHAPE, 2).buffers()) == []
    gpt = model(text)
    groups = optimizer_groups(gpt, 0.1)
    held = {id(p) for group in groups for p in group["params"]}
    decayed = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    assert decayed and not any(id(p) in decayed for p in gpt.pos.parameters())
    assert held == {id(p) for p in gpt.parameters()}


@pytest.mark.parametrize("text", [text for text in MENTIONS if EXPECTED[text].parameters])
def test_the_weights_of_another_scheme_are_refused_with_a_sentence(text):
    ours, other = model(text), model("nope")
    for taking, given in ((other, ours), (ours, other)):
        with pytest.raises(UserError, match="another model or scheme"):
            load_weights(taking, given.state_dict(), Path("run"))


@pytest.mark.parametrize("text", first_of_each_name())
def test_layers_share_a_piece_unless_it_is_per_layer(text):
    cls = find(name_of(text))
    assert len(Scheme(text, SHAPE, 3).pieces) == (3 if cls.per_layer else 1)
    if not overrides(cls, "ids") and not overrides(cls, "embed"):
        for own in (True, False):
            asked = with_option(text, f"per_layer={own}")
            assert len(Scheme(asked, SHAPE, 3).pieces) == (3 if own else 1)


def with_option(mention: str, option: str) -> str:
    """The mention with one more option."""
    return f"{mention[:-1]}, {option})" if "(" in mention else f"{mention}({option})"


@pytest.mark.parametrize("text", SCHEMES)
def test_the_canonical_text_is_a_fixed_point(text):
    once = Scheme(text, SHAPE, 3)
    twice = Scheme(once.text, SHAPE, 3)
    assert twice.text == once.text and twice.layers == once.layers
    assert [str(p) for p in twice.pieces.values()] == [str(p) for p in once.pieces.values()]


def lines_of_scheme(mention: str) -> int:
    """Of the class of a mention."""
    return oracles.lines_of_code(inspect.getsource(find(name_of(mention))))


@pytest.mark.parametrize("name", scheme_names())
def test_a_scheme_is_a_small_class_that_says_its_formula_its_paper_and_when_to_use_it(name):
    said = inspect.getdoc(find(name))
    assert lines_of_scheme(name) < 40  # as formatted at 100 columns
    assert re.search(r"\b(19|20)\d\d\b", said) and "Verdict: " in said
    assert re.search(r"[=+^/<(-] ?\w|\bx\b", said.split("Verdict")[0]), "no formula"
    assert said.split("Verdict: ")[1].strip().endswith(".")


# The model


def settings(text: str, n_layer: int = 1, **given: bool) -> GPTConfig:
    """Of a small model."""
    return GPTConfig(
        block_size=L, vocab_size=VOCABULARY, n_layer=n_layer, n_head=H, n_embd=C, pos=text, **given
    )


@cache
def model(text: str, n_layer: int = 1) -> GPT:
    """A GPT in float64 whose weights are large enough for every part of it to be felt.

    It is shared: do not change it.
    """
    torch.manual_seed(3)
    gpt = GPT(settings(text, n_layer, bias=True)).double().eval()
    for name, parameter in gpt.named_parameters():
        if not name.startswith("pos."):
            is_norm = "ln_" in name and name.endswith("weight")
            parameter.data = is_norm + 0.3 * torch.randn_like(parameter)
    fill(gpt.pos)
    return gpt


def layers_for(text: str, least: int) -> int:
    """Enough layers for every branch of a pattern."""
    return max(least, len(branches_of(text)))


def all_logits(gpt: GPT, idx: Tensor, **arguments: object) -> Tensor:
    """(B, T, V) of one forward."""
    return gpt(idx, torch.zeros_like(idx), **arguments)[0]


def assert_close(ours: Tensor, theirs: Tensor, atol: float = 1e-10) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)


def by_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    prepared: attention.Prepared,
    dropout: float = 0.0,
    features: Tensor | None = None,
) -> Tensor:
    """Attention as it is defined."""
    return attention.reference(q, k, v, prepared.plan, features)


def output_and_gradients(gpt: GPT, idx: Tensor) -> list[Tensor]:
    """Logits, and the gradient of a sum of them for every parameter that is trained."""
    out, trained = all_logits(gpt, idx), [p for p in gpt.parameters() if p.requires_grad]
    return [out.detach(), *torch.autograd.grad((out * normal(*out.shape, seed=9)).sum(), trained)]


def paths_of(gpt: GPT) -> list[str]:
    """The attention paths that can carry every layer of a model."""
    index = torch.arange(L)
    plans = gpt.pos.plans(index, index, index, L, FLOAT64)
    if any(map(attention.makes_score, plans)):
        return ["scored"]
    added = any(plan.biases or plan.masks for plan in plans)
    return ["matmul", "dense", "blocked"] if added else ["matmul", "dense", "blocked", "fused"]


@pytest.mark.parametrize("text", SCHEMES)
def test_every_path_of_attention_equals_the_reference_in_output_and_gradients(text, monkeypatch):
    gpt, idx = model(text, layers_for(text, 1)), tokens(2, 11)
    with monkeypatch.context() as patch:
        patch.setattr("attention.attend", by_reference)
        expected = output_and_gradients(gpt, idx)
    assert all(g.isfinite().all() for g in expected)
    if text in MENTIONS:  # of several pieces one may leave nothing to another
        assert all(g.abs().max() > 0 for g in expected[1:])
    assert gpt.attention_path(11) == ALL[text].path
    monkeypatch.setattr(attention, "BLOCK_ROWS", 3)
    for path in paths_of(gpt):

        def choose(plan: Plan, *rest: object, path: str = path) -> str:
            return "scored" if attention.makes_score(plan) else path

        monkeypatch.setattr(attention, "choose_path", choose)
        for ours, theirs in zip(output_and_gradients(gpt, idx), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_each_layer_of_a_pattern_has_the_pieces_of_its_own_branch(monkeypatch):
    met = []

    def attend(q: Tensor, k: Tensor, v: Tensor, prepared: attention.Prepared, *_: object) -> Tensor:
        met.append(prepared.plan)
        return v

    monkeypatch.setattr("attention.attend", attend)
    all_logits(model("fox | rope + sandwich | nope + ssmax", 4), tokens(1, 5))
    assert [plan.scorer is not None for plan in met] == [True, False, False, True]
    assert [len(plan.biases) for plan in met] == [0, 1, 0, 0]
    assert [plan.turns is not None for plan in met] == [False, True, False, False]
    assert [plan.temperature is not None for plan in met] == [False, False, True, False]


@pytest.mark.parametrize("text", SCHEMES)
def test_prefilling_and_decoding_in_chunks_past_the_training_length_is_one_forward(text):
    gpt, idx = model(text, layers_for(text, 3)), tokens(2, 13)
    for chunks in ([1, 2, 10], [5] + [1] * 8):
        cache = gpt.new_cache(2, 13)
        with torch.no_grad():
            parts = [gpt(part, cache=cache)[0] for part in idx.split(chunks, 1)]
            assert_close(torch.cat(parts, 1), all_logits(gpt, idx))


@pytest.mark.parametrize("text", SCHEMES)
def test_sampling_with_a_cache_is_sampling_without(text):
    gpt, idx, total = model(text, layers_for(text, 3)), tokens(1, 6, seed=4), 11
    written = gpt.generate(idx, total - 6, temperature=0)
    with torch.no_grad():
        for n in range(6, total):  # everything anew, in a text of `total` tokens
            logits = gpt(written[:, :n], cache=gpt.new_cache(1, total))[0][:, -1]
            assert logits.argmax(-1).item() == written[0, n]


@pytest.mark.parametrize("text", SCHEMES)
def test_the_order_of_earlier_tokens_is_felt_where_it_can_be(text):
    gpt = model(text)
    idx = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(2))[None, :9]
    turned = torch.cat((idx[:, :-1].flip(1), idx[:, -1:]), 1)
    with torch.no_grad():
        change = float((gpt(idx)[0] - gpt(turned)[0]).abs().max())
    assert change > 1e-4 if ALL[text].order else change < 1e-12


@pytest.mark.parametrize("text", SCHEMES)
def test_a_token_changes_nothing_before_it_and_nothing_in_other_rows_of_a_batch(text):
    """And logits stay finite at eight times the training length."""
    gpt, idx = model(text, layers_for(text, 2)), tokens(3, 10)
    changed = idx.clone()
    changed[0, 6] = (idx[0, 6] + 1) % VOCABULARY
    with torch.no_grad():
        before, after, alone = (all_logits(gpt, t) for t in (idx, changed, changed[:1]))
        long = all_logits(gpt, tokens(1, 8 * L))
    assert_close(before[:, :6], after[:, :6])
    assert_close(before[1:], after[1:])
    assert_close(after[:1], alone)
    assert float((before - after)[0, 6:].abs().max()) > 1e-4
    assert long.isfinite().all() and float(long.std()) > 0.01


@pytest.mark.parametrize("text", [text for text in SCHEMES if ALL[text].shifts is not None])
def test_a_shift_of_all_positions_is_felt_exactly_where_it_is_said(text):
    gpt, idx = model(text, layers_for(text, 1)), tokens(1, 9)
    with torch.no_grad():
        here, there = (all_logits(gpt, idx, ids=torch.arange(9) + shift) for shift in (0, 37))
    change = float((here - there).abs().max())
    assert change < 1e-5 if ALL[text].shifts else change > 1e-4  # rotations are float32 tables


@pytest.mark.parametrize("text", ["xpos", "xpos + block_causal", "xpos + alibi"])
def test_xpos_is_a_number_up_to_32_training_lengths_and_refused_where_its_factors_overflow(text):
    gpt = GPT(settings(text)).eval()
    with torch.no_grad():
        assert all_logits(gpt, tokens(1, 32 * L)).isfinite().all()
        with pytest.raises(UserError, match="xpos"):
            all_logits(gpt, tokens(1, 33 * L))


@pytest.mark.parametrize("text", MENTIONS)
def test_the_gradients_of_the_scores_are_right(text):
    """By finite differences, for queries, keys, the layer's input and every parameter."""
    scheme, ids = built(text), torch.arange(T)
    idx, parameters = torch.tensor(WORDS), [p for p in scheme.parameters() if p.requires_grad]

    def outcome(*inputs: Tensor) -> Tensor:
        q, k, x = inputs[:3]
        found = scores_of(scheme, 0, ids, q, k, x)
        added = scheme.embed(ids, Text(idx, T))
        vectors = [] if added is None else [added.double().flatten()]
        return torch.cat([found[found > -torch.inf], *vectors])

    inputs = [t.clone().requires_grad_() for t in (Q, K, X)] + parameters
    assert torch.autograd.gradcheck(outcome, inputs, fast_mode=True, atol=1e-6, eps=1e-6)


@pytest.mark.parametrize("text", filter(takes_any_positions, MENTIONS))
def test_positions_are_exact_a_million_tokens_away_after_a_cast_to_bfloat16(text):
    """The formula at positions that bfloat16 cannot hold, with parameters that the cast rounded."""
    cast, double, reach = built(text).to(torch.bfloat16), built(text), EXPECTED[text].reach
    double.load_state_dict(cast.state_dict())
    ids = torch.arange(reach - T, reach)
    exact = scores_of(double, 0, ids, Q, K, X).detach().nan_to_num(neginf=0)
    near = 1e-6 * max(1.0, float(exact.abs().max()))
    assert difference(text, ids, double) <= near
    # features are made in the type of their weights
    if not any(overrides(p, "features") for p in cast.pieces.values()):
        assert_close(scores_of(cast, 0, ids, Q, K, X).detach().nan_to_num(neginf=0), exact, near)
        assert exact.isfinite().all()


# Training's own positions


def draws(text: str, count: int = 200) -> Tensor:
    """(count, L): the position ids of as many training steps."""
    scheme = Scheme(text, SHAPE, 1)
    assert torch.equal(scheme.draw(5, 7, L), scheme.draw(5, 7, L))
    return torch.stack([scheme.draw(1, step, L) for step in range(count)]).double()


@pytest.mark.parametrize(
    "text, low, high",
    [
        ("randomized(max=64)", 0, 63),
        ("rfs", 0, 8),
        ("rfs(max=3)", 0, 3),
        ("shape", 0, 15),
        ("shape(max_shift=3, test_shift=3)", 0, 10),
    ],
)
def test_positions_of_training_ascend_within_their_range_and_fill_it(text, low, high):
    found = draws(text)
    assert (found.diff() > 0).all() and found.min() >= low and found.max() <= high
    assert found.min() < low + 0.05 * (high - low) and found.max() > high - 0.05 * (high - low)
    assert len(found.unique(dim=0)) > (3 if "shape" in text else 190)


def test_shape_moves_all_positions_of_a_step_by_one_number():
    moved = draws("shape(max_shift=3)") - torch.arange(L)
    assert (moved.diff() == 0).all() and moved.unique().tolist() == [0, 1, 2, 3]


def test_cape_shifts_scales_and_jitters_each_in_its_own_range():
    place = torch.arange(L)
    shift = draws("cape(local_shift=0, global_scale=1)") - place
    assert (shift.diff() < 1e-5).all() and -5 <= shift.min() < -4.5 and 4.5 < shift.max() <= 5
    jitter = draws("cape(global_shift=0, global_scale=1)") - place
    assert -0.5 <= jitter.min() < -0.49 and 0.49 < jitter.max() <= 0.5
    assert float(jitter.std(1).min()) > 0.1
    scale = (draws("cape(global_shift=0, local_shift=0, global_scale=2)") / place)[:, 1:]
    assert float(scale.std(1).max()) < 1e-6
    assert 0.5 <= scale.min() < 0.52 and 1.95 < scale.max() <= 2
    assert float(scale[:, 0].log().mean().abs()) < 0.1  # as often smaller as larger
    both = draws("cape(local_shift=0, global_scale=2)")
    step = both[:, 1] - both[:, 0]
    both_drawn = torch.stack((step.log(), both[:, 0] / step))
    assert float(torch.corrcoef(both_drawn)[0, 1].abs()) < 0.3  # drawn independently


def test_abacus_moves_all_digits_of_a_step_by_one_number():
    scheme = built("abacus(zero=3, max_shift=4, rows=64)").train()
    table, seen = scheme.pieces["0_abacus"].table, set()
    for seed in range(40):
        torch.manual_seed(seed)
        added = scheme.embed(torch.arange(T), Text(torch.tensor(WORDS), T))[0]
        rows = [int((table == row).all(-1).nonzero()) if row.any() else None for row in added]
        k = rows[0]
        assert rows == [k, k + 1, None, k, k + 1, k + 2]
        seen.add(k)
    assert seen == {0, 1, 2, 3, 4}


def test_path_is_the_same_by_chunks_of_keys_of_any_size(monkeypatch):
    scheme = built("path(rank=3)")
    module = sys.modules[type(next(iter(scheme.pieces.values()))).__module__]
    for size in (1, 2, 4, 5):
        monkeypatch.setattr(module, "CHUNK", size)
        assert difference("path(rank=3)", scheme=scheme) < 1e-10


# Schemes together

EARLY = ("positions", "input", "grid")  # what acts once, before the first layer
EXCLUSIVE = (*EARLY, "rotation", "score")  # places that one scheme may claim
# what may stand beside places in an image, because it reads no positions along a text
BESIDE_A_GRID = {*"nope logn ssmax window block_causal abacus".split()}
BESIDE_A_GRID |= {*"cope fox dape path selective_rope".split()}
APART = {
    frozenset(pair)
    for pair in [
        ("cape", "randomized"),
        ("cape", "rfs"),
        ("cape", "shape"),
        ("rfs", "learned"),
        ("learned2d", "abacus"),
        ("sinusoidal2d", "abacus"),
        *itertools.product(("pope", "xpos"), ("cope", "path", "selective_rope")),
    ]
}


def clash(mentions: tuple[str, ...]) -> bool:
    """Whether two of the schemes claim one place, or cannot stand beside each other.

    The project's own rules are not asked.
    """
    grid = any(ORACLES[mention].place == "grid" for mention in mentions)
    others = {name_of(mention) for mention in mentions if ORACLES[mention].place != "grid"}
    return (grid and not others <= BESIDE_A_GRID) or any(
        (ORACLES[a].place == ORACLES[b].place and ORACLES[a].place in EXCLUSIVE)
        or frozenset((name_of(a), name_of(b))) in APART
        for a, b in itertools.combinations(mentions, 2)
    )


def assert_one_text_in_three_ways(text: str) -> None:
    """One forward, by chunks with a cache, and by the reference."""
    gpt, idx = model(text), tokens(2, 9)
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        cache, whole = gpt.new_cache(2, 9), all_logits(gpt, idx)
        assert whole.isfinite().all()
        assert_close(
            torch.cat([gpt(part, cache=cache)[0] for part in idx.split([5, 1, 3], 1)], 1), whole
        )
        patch.setattr("attention.attend", by_reference)
        assert_close(all_logits(gpt, idx), whole)


@pytest.mark.parametrize("first", first_of_each_name())
def test_any_two_schemes_act_together_as_their_papers_say_or_are_refused(first):
    """Neither is absent, doubled or changed by the other.

    The oracles, put together, know nothing of the project's own rules.
    """
    names = first_of_each_name()
    for second in names[names.index(first) + 1 :]:
        for text in (f"{first} + {second}", f"{second} + {first}"):
            if clash((first, second)):
                with pytest.raises(UserError) as refusal:
                    Scheme(text, SHAPE, 1)
                assert {name_of(first), name_of(second)} <= set(
                    re.findall(r"\w+", str(refusal.value).split("': ")[1])
                )
            else:
                assert difference(text) < tolerance(text), text
        if not clash((first, second)):
            assert_one_text_in_three_ways(text)


@pytest.mark.slow
@pytest.mark.parametrize("first", first_of_each_name())
def test_any_three_schemes_act_together_as_their_papers_say_or_are_refused(first):
    names = first_of_each_name()
    for trio in itertools.combinations(names[names.index(first) :], 3):
        if trio[0] != first:
            break
        text = " + ".join(trio)
        if clash(trio):
            with pytest.raises(UserError):
                Scheme(text, SHAPE, 1)
        else:
            assert difference(text) < tolerance(text), text


@pytest.mark.slow
@pytest.mark.parametrize(
    "first",
    [text for text in first_of_each_name() if ORACLES[text].place not in EARLY],
)
def test_any_two_schemes_take_turns_over_layers_and_any_may_be_per_layer(first):
    Scheme(f"{with_option(first, 'per_layer=True')} | nope", SHAPE, 2)
    for second in first_of_each_name():
        text = f"{first} | {second}"
        if ORACLES[second].place in EARLY:
            with pytest.raises(UserError, match="before the first layer"):
                Scheme(text, SHAPE, 2)
        else:
            assert difference(text) < tolerance(text), text
            assert_one_text_in_three_ways(text)


@pytest.mark.parametrize("mover", ["randomized(max=64)", "rfs", "shape"])
def test_positions_that_nothing_reads_are_named(mover):
    """Such a scheme would be silently absent."""
    beside = [text for text in first_of_each_name() if not clash((mover, text))]
    said = f"nothing here reads positions, so {name_of(mover)} changes nothing"
    assert said in Scheme(f"{mover} + nope", SHAPE, 2).describe()
    places, idx = torch.tensor([0, 1, 3, 5, 5, 9, 20, 31, 60]), tokens(1, 9)
    for text in beside:
        gpt = model(f"{mover} + {text}")
        with torch.no_grad():
            near, far = (all_logits(gpt, idx, ids=ids) for ids in (torch.arange(9), places))
        unread = float((near - far).abs().max()) < 1e-9
        assert unread == (said in gpt.pos.describe()), text


# Attention layers of transformers


def theirs(name: str) -> ModuleType:
    """A model's module; the test is skipped where transformers is not installed."""
    return pytest.importorskip(f"transformers.models.{name}.modeling_{name}")


def attend(text: str, n_head: int, q: Tensor, k: Tensor, v: Tensor, ids: Tensor) -> Tensor:
    """(B, T, C) of q, k and v (B, T, C) at given positions, under a scheme."""
    q, k, v = (t.unflatten(-1, (n_head, -1)).transpose(1, 2) for t in (q, k, v))
    scheme = Scheme(text, Shape(n_head, q.shape[-1], n_head * q.shape[-1], 64), 1)
    plan = scheme.plans(torch.arange(len(ids)), ids, ids, len(ids), FLOAT64)[0]
    q, k = (plan.turns[0](q), plan.turns[1](k)) if plan.turns else (q, k)
    found = attention.attend(q, k, v, attention.prepare(plan, n_head, FLOAT64))
    return found.transpose(1, 2).flatten(2)


def hidden(width: int, count: int = 12) -> tuple[Tensor, Tensor, Tensor]:
    """A layer's input (1, T, C), positions (T,) with gaps, and a causal mask to be added."""
    ids = torch.arange(count) * 3 + 5
    mask = torch.full((count, count), -torch.inf, dtype=torch.float64).triu(1)[None, None]
    return normal(1, count, width, seed=width), ids, mask


@pytest.mark.parametrize("base, head_dim", [(10000.0, 8), (500000.0, 16), (100.0, 4)])
def test_rope_is_the_attention_of_llama(base, head_dim):
    llama, width = theirs("llama"), 3 * head_dim
    config = llama.LlamaConfig(
        hidden_size=width,
        num_attention_heads=3,
        num_hidden_layers=1,
        attn_implementation="eager",
        rope_parameters={"rope_type": "default", "rope_theta": base},
    )
    layer, (x, ids, mask) = llama.LlamaAttention(config, 0).double().eval(), hidden(width)
    expected = layer(x, llama.LlamaRotaryEmbedding(config)(x, ids[None]), mask)[0]
    ours = attend(f"rope(base={base})", 3, layer.q_proj(x), layer.k_proj(x), layer.v_proj(x), ids)
    assert_close(layer.o_proj(ours), expected, 1e-5)


@pytest.mark.parametrize("rotary_dim, head_dim", [(8, 8), (4, 16), (12, 16)])
def test_interleaved_rope_is_the_attention_of_gptj(rotary_dim, head_dim):
    gptj, width = theirs("gptj"), 2 * head_dim
    config = gptj.GPTJConfig(
        n_embd=width, n_head=2, n_layer=1, rotary_dim=rotary_dim, attn_pdrop=0, resid_pdrop=0
    )
    layer, (x, ids, mask) = gptj.GPTJAttention(config, 0).double().eval(), hidden(width)
    expected = layer(x, attention_mask=mask, position_ids=ids[None])[0]
    text = f"rope(layout=interleaved, fraction={rotary_dim / head_dim})"
    ours = attend(text, 2, layer.q_proj(x), layer.k_proj(x), layer.v_proj(x), ids)
    assert_close(layer.out_proj(ours), expected, 1e-5)


@pytest.mark.parametrize("fraction", [0.25, 0.5, 1.0])
def test_partial_rope_is_the_attention_of_gpt_neox(fraction):
    neox = theirs("gpt_neox")
    config = neox.GPTNeoXConfig(
        hidden_size=48,
        num_attention_heads=3,
        num_hidden_layers=1,
        attn_implementation="eager",
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": fraction,
        },
    )
    layer, (x, ids, mask) = neox.GPTNeoXAttention(config, 0).double().eval(), hidden(48)
    expected = layer(
        x, mask, position_embeddings=neox.GPTNeoXRotaryEmbedding(config)(x, ids[None])
    )[0]
    qkv = layer.query_key_value(x).unflatten(-1, (3, 3, 16))  # head, then q, k and v
    ours = attend(
        f"rope(fraction={fraction})", 3, *(qkv[..., n, :].flatten(2) for n in range(3)), ids
    )
    assert_close(layer.dense(ours), expected, 1e-5)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.3, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("head_dim, base", [(8, 10000.0), (24, 1e6)])
def test_the_frequencies_kept_by_p_are_those_of_the_proportional_type(share, head_dim, base):
    functions = pytest.importorskip("transformers.modeling_rope_utils").ROPE_INIT_FUNCTIONS
    config = theirs("llama").LlamaConfig(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        head_dim=head_dim,
        rope_parameters={
            "rope_type": "proportional",
            "rope_theta": base,
            "partial_rotary_factor": share,
        },
    )
    expected, factor = functions["proportional"](config, "cpu")
    ours, our_factor = (
        Scheme(f"rope(p={share}, base={base})", Shape(2, head_dim, 2 * head_dim, L), 1)
        .pieces["0_rope"]
        .frequencies(L)
    )
    torch.testing.assert_close(ours, expected.double(), rtol=1e-6, atol=0)
    assert our_factor == factor == 1


@pytest.mark.parametrize("n_head", [1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 14, 16, 25])
def test_alibi_is_the_bias_of_mpt_and_of_bloom(n_head):
    """Theirs grow with the key's place, from 0 at the last or at the first key; ours falls with the
    distance."""
    mpt = theirs("mpt").build_mpt_alibi_tensor(n_head, 9).double()  # (H, 1, 9)
    bloom = theirs("bloom").build_alibi_tensor(torch.ones(1, 9), n_head, torch.float64)  # (H, 1, 9)
    like, i, j = FLOAT64, torch.arange(9)[:, None], torch.arange(9)
    ours = (
        Scheme("alibi", Shape(n_head, 4, 4 * n_head, L), 1)
        .pieces["0_alibi"]
        .bias(like)(torch.arange(n_head)[:, None, None], i, j)
    )
    torch.testing.assert_close(ours[:, -1:], mpt, rtol=1e-6, atol=0)
    torch.testing.assert_close(ours - ours[..., :1], bloom.expand_as(ours), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("buckets, far", [(32, 128), (16, 40), (6, 100), (64, 33)])
def test_t5_is_the_bias_of_t5(buckets, far):
    t5 = theirs("t5")
    config = t5.T5Config(
        d_model=24,
        d_kv=8,
        num_heads=3,
        is_decoder=True,
        relative_attention_num_buckets=buckets,
        relative_attention_max_distance=far,
    )
    layer = t5.T5Attention(config, has_relative_attention_bias=True, layer_idx=0).double()
    piece = (
        Scheme(f"t5(buckets={buckets}, max_distance={far})", Shape(3, 8, 24, L), 1)
        .double()
        .pieces["0_t5"]
    )
    piece.table.data = layer.relative_attention_bias.weight.data
    i, j = torch.arange(150)[:, None], torch.arange(150)
    ours = piece.bias(FLOAT64)(torch.arange(3)[:, None, None], i, j.minimum(i))
    seen = j <= i
    assert torch.equal(ours[:, seen], layer.compute_bias(150, 150)[0][:, seen])


@pytest.mark.parametrize("width", [6, 34])
def test_sinusoids_are_those_of_ctrl(width):
    found = theirs("ctrl").positional_encoding(300, width, torch.float32)
    assert_close(
        posenc.sinusoids(torch.arange(300), width), found, 5e-5
    )  # theirs have float32 angles


@pytest.mark.parametrize("size", [1, 3, 7])
def test_a_window_is_that_of_transformers(size):
    masks = pytest.importorskip("transformers.masking_utils")
    i, j = torch.arange(9)[:, None], torch.arange(9)
    seen = built(f"window(size={size})").pieces["0_window"].mask()(i, j)
    assert torch.equal(seen & (j <= i), masks.sliding_window_overlay(size)(0, 0, i, j) & (j <= i))


# Compiled


class Graphs:
    """A backend that counts what it is asked to compile."""

    def __init__(self, backend: str) -> None:
        self.count, self.compile = 0, torch._dynamo.lookup_backend(backend)

    def __call__(
        self, graph: torch.fx.GraphModule, example_inputs: list[Tensor], **options: object
    ) -> Callable:
        self.count += 1
        return self.compile(graph, example_inputs, **options)


def loss_of(gpt: GPT, idx: Tensor, ids: Tensor | None) -> Tensor:
    return gpt(idx, idx, ids=ids)[1]


def loss_and_gradients(loss: Callable, gpt: GPT, idx: Tensor, ids: Tensor | None) -> list[Tensor]:
    """Of a training step, for every parameter that is trained."""
    out = loss(gpt, idx, ids)
    trained = [p for p in gpt.parameters() if p.requires_grad]
    return [out.detach(), *torch.autograd.grad(out, trained)]


def compiled_graphs(
    text: str, backend: str, tolerance: float, dtype: torch.dtype = torch.float64
) -> int:
    """Train and evaluate a compiled model with new data and positions; how many graphs it took."""
    torch.manual_seed(0)
    gpt = GPT(settings(text, layers_for(text, 1))).to(dtype)
    torch._dynamo.reset()
    graphs = Graphs(backend)
    compiled = torch.compile(loss_of, fullgraph=True, backend=graphs)
    for step in range(3):
        idx, ids = tokens(2, L, seed=step), gpt.train().draw_ids(1, step, L)
        with torch._dynamo.config.patch(error_on_recompile=step > 0):
            pairs = []
            for loss in (compiled, loss_of):
                torch.manual_seed(step)  # for what is drawn inside of a forward
                pairs.append(loss_and_gradients(loss, gpt, idx, ids))
            for ours, theirs in zip(*pairs, strict=True):
                assert_close(ours, theirs, tolerance)
    gpt.eval()
    for step in range(2):
        with torch._dynamo.config.patch(error_on_recompile=step > 0), torch.no_grad():
            idx = tokens(2, L, seed=70 + step)
            assert_close(compiled(gpt, idx, None), loss_of(gpt, idx, None), tolerance)
    torch._dynamo.reset()
    return graphs.count


def together() -> list[str]:
    """Expressions that name every scheme once, in as few models as their rules allow.

    Those that claim the whole score stand apart, so that biases meet the other paths of attention.
    """
    groups: list[list[str]] = []
    scored = [text for text in first_of_each_name() if ORACLES[text].place == "score"]
    for text in [text for text in first_of_each_name() if text not in scored]:
        room = [group for group in groups if not any(clash((text, other)) for other in group)]
        if room:
            min(room, key=len).append(text)
        else:
            groups.append([text])
    return [*(" + ".join(group) for group in groups), " | ".join(scored)]


@pytest.mark.parametrize("text", together())
def test_compiling_breaks_no_graph_and_a_step_compiles_nothing_anew(text):
    assert compiled_graphs(text, "aot_eager", 1e-6) == 2  # one to train, one to evaluate


@pytest.mark.slow
@pytest.mark.parametrize("text", [text for text in SCHEMES if text not in first_of_each_name()])
def test_compiling_breaks_no_graph_with_any_options(text):
    assert compiled_graphs(text, "aot_eager", 1e-6) == 2


@pytest.mark.slow
@pytest.mark.parametrize("text", first_of_each_name())
def test_the_default_compiler_changes_no_number(text):
    import torch._inductor.config

    with torch._inductor.config.patch(
        fallback_random=True
    ):  # what is drawn inside a forward is what eager code draws
        assert compiled_graphs(text, "inductor", 2e-4, torch.float32) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "path, text",
    [
        ("matmul", "rope + alibi"),
        ("fused", "rope(p=0.5) + logn"),
        ("dense", "rope + alibi"),
        ("blocked", "alibi + kerple"),
        ("scored", "alibi + dape"),
    ],
)
def test_the_default_compiler_changes_no_number_on_any_path_of_attention(path, text, monkeypatch):
    monkeypatch.setattr(attention, "MATMUL_KEYS", 512 if path == "matmul" else 0)
    monkeypatch.setattr(attention, "DENSE_BYTES", 0 if path == "blocked" else 2**24)
    monkeypatch.setattr(attention, "BLOCK_ROWS", 3)
    assert model(text).attention_path(L, compiled=True) == path
    assert compiled_graphs(text, "inductor", 2e-4, torch.float32) == 2
