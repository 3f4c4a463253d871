"""The GPT: equal to GPT-2, to a forward pass written by hand, to itself step by step, and compiled without a break."""

import math
from collections.abc import Iterator

import pytest
import torch
from test_attention import BY_HAND, H, attention_by_hand, number
from torch import Tensor
from torch._dynamo.testing import CompileCounter
from torch.nn import functional as F

import attention
import model as model_module
from configurable import UserError
from model import GPT, GPTConfig, without_padding
from posenc import Shape
from positions.catalogue import find, scheme_names
from positions.scheme import Scheme

L = 8  # the training length
NEEDED = {
    "window": "window(size=3, sinks=1)",
    "randomized": "randomized(max=64)",
    "learned": "learned(rows=64)",
}
ALONE = [
    NEEDED.get(name, name) for name in scheme_names() if find(name).__module__ == "posenc"
]  # test_schemes.py has all
SCHEMES = [
    *ALONE,
    "sinusoidal(scale=1)",
    "rope(layout=interleaved)",
    "rope(fraction=0.5)",
    "alibi(learned=True)",
    "t5(buckets=4, max_distance=6)",
    "kerple(kind=power)",
    "window(size=2)",
    "rope + alibi",
    "rope + logn + window(size=3)",
    "t5(buckets=4, per_layer=True)",
    "randomized(max=64) + rope",
    "randomized(max=64, test=draw) + alibi",
    "randomized(max=64) + learned(rows=64)",
    "rope | nope | alibi + logn",
    "randomized(max=64) + (rope | t5 + window(size=4))",
]


def tiny(pos: str, n_layer: int = 3, **settings: object) -> GPT:
    """A GPT in float64 whose weights are large enough for every part of it to be felt, in evaluation mode."""
    shape = dict(block_size=L, vocab_size=17, n_head=H, n_embd=32, bias=True) | settings
    torch.manual_seed(3)
    gpt = GPT(GPTConfig(n_layer=n_layer, pos=pos, **shape)).double().eval()
    for name, parameter in gpt.named_parameters():
        if name.startswith("pos."):
            flat = [number(name.split(".")[-1], place) for place in range(parameter.numel())]
            parameter.data = torch.tensor(flat, dtype=torch.float64).view_as(parameter)
        else:
            is_norm = name.startswith("ln_f.weight") or name.endswith(
                ("ln_1.weight", "ln_2.weight")
            )
            parameter.data = is_norm + 0.25 * torch.randn_like(parameter)
    return gpt


def tokens(*shape: int, seed: int = 1) -> Tensor:
    return torch.randint(17, shape, generator=torch.Generator().manual_seed(seed))


def every_logit(gpt: GPT, idx: Tensor, **arguments: object) -> Tensor:
    """(B, T, V) of one full forward."""
    return gpt(idx, torch.zeros_like(idx), **arguments)[0].detach()


def assert_close(ours: Tensor, theirs: Tensor, atol: float = 1e-10) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)


# Equal to others


@pytest.mark.parametrize(
    "shape",
    [
        dict(vocab_size=97, n_positions=24, n_embd=48, n_layer=3, n_head=4),
        dict(vocab_size=101, n_positions=9, n_embd=35, n_layer=1, n_head=5),
        dict(vocab_size=7, n_positions=16, n_embd=13, n_layer=2, n_head=1),
    ],
    ids=["plain", "odd", "one head"],
)
def test_the_model_equals_gpt2(shape):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    theirs = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**shape, initializer_range=0.3)
    ).eval()
    for parameter in theirs.parameters():  # no bias or norm at its initial 0 or 1
        parameter.data += 0.1 * torch.randn_like(parameter)
    ours = GPT.from_huggingface(theirs).eval()
    idx = torch.randint(shape["vocab_size"], (2, shape["n_positions"]))
    with torch.no_grad():
        expected = theirs(idx).logits
        assert expected.std() > 0.5
        assert_close(every_logit(ours, idx), expected, 1e-4)
        assert_close(ours(idx[:, :5])[0], theirs(idx[:, :5]).logits[:, -1:], 1e-4)
        assert_close(
            ours(idx, idx)[1], F.cross_entropy(expected.flatten(0, 1), idx.flatten()), 1e-4
        )
    assert ours.parameter_count == theirs.num_parameters()
    assert ours.config.pos == "learned" and ours.limit == shape["n_positions"]


def test_a_gpt2_is_loaded_from_a_folder(tmp_path):
    transformers = pytest.importorskip("transformers")
    shape = dict(vocab_size=11, n_positions=8, n_embd=12, n_layer=1, n_head=2)
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape)).eval()
    theirs.save_pretrained(tmp_path)
    idx = tokens(1, 8) % 11
    assert_close(
        every_logit(GPT.from_huggingface(str(tmp_path)).eval(), idx),
        theirs(idx).logits.detach(),
        1e-4,
    )


def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight + bias


def logits_by_hand(gpt: GPT, idx: Tensor, schemes: list[str]) -> Tensor:
    """(T, V) of one sequence, from the weights and the schemes' formulas; `schemes` names the one of each layer."""
    w = {name: p.detach() for name, p in gpt.named_parameters()}
    ids = BY_HAND[schemes[0]].ids or tuple(range(len(idx)))
    x = w["wte.weight"][idx] + torch.tensor(
        [BY_HAND[schemes[0]].embed(p) for p in ids], dtype=torch.float64
    )
    for n, scheme in enumerate(schemes):

        def linear(x: Tensor, part: str, at: str = f"h.{n}.") -> Tensor:
            return x @ w[f"{at}{part}.weight"].T + w[f"{at}{part}.bias"]

        mixed = linear(norm(x, w[f"h.{n}.ln_1.weight"], w[f"h.{n}.ln_1.bias"]), "attn.c_attn")
        q, k, v = mixed.view(len(idx), 3, H, -1).permute(1, 2, 0, 3)
        heads = attention_by_hand(q, k, v, BY_HAND[scheme], ids)
        x = x + linear(heads.transpose(0, 1).reshape(len(idx), -1), "attn.c_proj")
        wide = linear(norm(x, w[f"h.{n}.ln_2.weight"], w[f"h.{n}.ln_2.bias"]), "mlp.c_fc")
        gelu = 0.5 * wide * (1 + torch.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
        x = x + linear(gelu, "mlp.c_proj")
    return norm(x, w["ln_f.weight"], w["ln_f.bias"]) @ w["wte.weight"].T


LAYERS = {scheme: [scheme, scheme] for scheme in BY_HAND} | {
    "rope | alibi": ["rope", "alibi", "rope"],
    "nope | rope | alibi": ["nope", "rope", "alibi"],
    "(rope | nope) + alibi": ["rope + alibi", "alibi", "rope + alibi"],
    "nope | window(size=2, sinks=1) | logn | t5": ["nope", "window(size=2, sinks=1)", "logn"],
    "randomized(max=64) + (rope | kerple)": [
        "randomized(max=64) + rope",
        "randomized(max=64) + kerple",
    ],
}


@pytest.mark.parametrize("pos", LAYERS)
def test_the_logits_are_those_worked_out_by_hand(pos):
    gpt, idx = tiny(pos, n_layer=len(LAYERS[pos])), tokens(1, 6)
    expected = logits_by_hand(gpt, idx[0], LAYERS[pos])
    assert expected.std() > 0.3
    assert_close(
        every_logit(gpt, idx)[0],
        expected,
        max(1e-10, 30 * max(BY_HAND[layer].tolerance for layer in LAYERS[pos])),
    )


# What a scheme knows of order


ORDER_BLIND = {
    "nope",
    "logn",
    "randomized(max=64)",
}  # with one layer, only the set of earlier tokens matters to these


@pytest.mark.parametrize("pos", SCHEMES)
def test_the_order_of_earlier_tokens_matters_to_all_but_nope_and_temperatures(pos):
    gpt, idx = tiny(pos, n_layer=1), torch.tensor([[3, 1, 4, 10, 5, 9, 2, 6]])
    change = (gpt(idx)[0] - gpt(idx[:, [5, 2, 4, 0, 1, 6, 3, 7]])[0]).abs().max()
    assert change < 1e-12 if pos in ORDER_BLIND else change > 1e-4


def test_two_layers_let_nope_know_the_order():
    gpt, idx = tiny("nope", n_layer=2), torch.tensor([[3, 1, 4, 10, 5, 9, 2, 6]])
    assert (gpt(idx)[0] - gpt(idx[:, [5, 2, 4, 0, 1, 6, 3, 7]])[0]).abs().max() > 1e-4


@pytest.mark.parametrize("pos", SCHEMES)
def test_a_token_changes_nothing_before_it(pos):
    gpt, idx = tiny(pos), tokens(1, 7)
    other = idx.clone()
    other[0, 4] = (idx[0, 4] + 1) % 17
    change = (every_logit(gpt, idx) - every_logit(gpt, other)).abs().amax(-1)[0]
    assert (change[:4] == 0).all() and (change[4:] > 0).any()


UNSEEN_BY_SHIFT = [
    p for p in SCHEMES if not any(word in p for word in ("learned(", "sinusoidal", "randomized"))
]


@pytest.mark.parametrize("pos", UNSEEN_BY_SHIFT)
def test_a_shift_of_all_positions_changes_nothing(pos):
    gpt, idx = tiny(pos), tokens(2, 7)
    tolerance = 1e-4 if "rope" in pos else 1e-10  # float32 tables
    for shift in (1, 9, 1000):
        assert_close(
            every_logit(gpt, idx, positions=torch.arange(7) + shift),
            every_logit(gpt, idx),
            tolerance,
        )


@pytest.mark.parametrize(
    "pos", ["learned(rows=64)", "sinusoidal", "sinusoidal(scale=1)", "learned(rows=64) + alibi"]
)
def test_a_shift_of_all_positions_is_seen_by_absolute_schemes(pos):
    gpt, idx = tiny(pos), tokens(2, 7)
    assert (
        every_logit(gpt, idx, positions=torch.arange(7) + 9) - every_logit(gpt, idx)
    ).abs().max() > 1e-3


@pytest.mark.parametrize(
    "pos", ["rope", "alibi", "t5", "kerple", "kerple(kind=power)", "rope + alibi"]
)
def test_positions_twice_as_far_apart_are_seen_by_relative_schemes(pos):
    gpt, idx = tiny(pos), tokens(2, 7)
    assert (
        every_logit(gpt, idx, positions=2 * torch.arange(7)) - every_logit(gpt, idx)
    ).abs().max() > 1e-3


@pytest.mark.parametrize("pos", SCHEMES)
def test_positions_from_0_are_the_default(pos):
    gpt, idx = tiny(pos), tokens(2, 7)
    assert torch.equal(every_logit(gpt, idx, positions=torch.arange(7)), every_logit(gpt, idx))
    assert_close(
        every_logit(gpt, idx, positions=torch.arange(7).expand(2, 7)), every_logit(gpt, idx), 1e-12
    )


@pytest.mark.parametrize("pos", SCHEMES)
def test_a_batch_is_its_sequences(pos):
    gpt, idx = tiny(pos), tokens(4, 9)
    whole = every_logit(gpt, idx)
    for row in range(4):
        assert_close(every_logit(gpt, idx[row : row + 1]), whole[row : row + 1], 1e-12)


@pytest.mark.parametrize("pos", SCHEMES)
def test_texts_padded_on_the_left_give_what_each_gives_alone(pos):
    gpt, idx, padding = tiny(pos), tokens(5, 9), torch.tensor([3, 0, 8, 3, 1])
    logits = without_padding(lambda texts: every_logit(gpt, texts), idx, padding)
    written = without_padding(lambda texts: gpt.generate(texts, 4, temperature=0), idx, padding)
    assert logits.shape[:2] == (5, 9) and written.shape == (5, 13)
    for row, many in enumerate(padding.tolist()):
        alone = idx[row : row + 1, many:]
        assert not logits[row, :many].any() and not written[row, :many].any()
        assert_close(logits[row : row + 1, many:], every_logit(gpt, alone), 1e-12)
        assert torch.equal(written[row : row + 1, many:], gpt.generate(alone, 4, temperature=0))


@pytest.mark.parametrize(
    "padding", [[0], [0, 1, 2], [[0, 1]], [[0] * 9, [1] * 9], [0.0, 1.0], [False, True]]
)
def test_padding_that_is_no_integer_for_each_text_is_refused(padding):
    with pytest.raises(UserError, match="padding must be one integer for each text"):
        without_padding(lambda texts: texts, tokens(2, 9), torch.tensor(padding))


@pytest.mark.parametrize("padding", [[9, 0], [-1, 0]])
def test_padding_that_leaves_no_text_is_refused(padding):
    with pytest.raises(UserError, match="padding leaves nothing"):
        without_padding(lambda texts: texts, tokens(2, 9), torch.tensor(padding))


@pytest.mark.parametrize("pos", [p for p in SCHEMES if "randomized" not in p])
def test_positions_that_differ_between_sequences_are_those_of_each(pos):
    gpt, idx = tiny(pos), tokens(2, 5)
    positions = torch.tensor([[0, 1, 2, 3, 4], [2, 2, 7, 8, 30]])
    each = [every_logit(gpt, idx[row : row + 1], positions=positions[row]) for row in (0, 1)]
    assert_close(every_logit(gpt, idx, positions=positions), torch.cat(each), 1e-10)


# Step by step


def decoded(gpt: GPT, idx: Tensor, pieces: list[int], positions: Tensor | None = None) -> Tensor:
    """(B, T, V) of idx given to a cache in pieces of these sizes."""
    cache, logits = gpt.new_cache(idx.shape[0], idx.shape[1]), []
    for part, at in zip(
        idx.split(pieces, 1), torch.arange(idx.shape[1]).split(pieces), strict=True
    ):
        arguments = {} if positions is None else {"positions": positions[..., at]}
        logits.append(gpt(part, cache=cache, **arguments)[0].detach())
    return torch.cat(logits, 1)


N = 13  # past the training length
PIECES = [
    [1] * N,
    [5] + [1] * (N - 5),
    [9, 1, 1, 1, 1],
    [3, 4, 1, 5],
    [N],
]  # k = 1, odd k, k past L, chunks, all at once


@pytest.mark.parametrize("pos", SCHEMES)
def test_prefilling_and_decoding_step_by_step_is_one_forward(pos):
    gpt, idx = tiny(pos), tokens(2, N)
    expected = every_logit(gpt, idx)
    for pieces in PIECES:
        assert_close(decoded(gpt, idx, pieces), expected)


@pytest.mark.parametrize("pos", [p for p in SCHEMES if "randomized" not in p])
@pytest.mark.parametrize("rows", [1, 2], ids=["(T,)", "(B,T)"])
def test_decoding_at_given_positions_is_one_forward(pos, rows):
    gpt, idx = tiny(pos), tokens(2, 6)
    positions = torch.tensor([[4, 5, 5, 9, 20, 21], [0, 3, 6, 9, 12, 33]])[
        0 if rows == 1 else slice(None)
    ]
    assert_close(
        decoded(gpt, idx, [2, 1, 3], positions), every_logit(gpt, idx, positions=positions)
    )


@pytest.mark.parametrize("pos", ["alibi", "rope + window(size=3, sinks=1)", "t5 | rope"])
def test_decoding_in_blocks_of_rows_is_one_forward(pos, monkeypatch):
    gpt, idx = tiny(pos), tokens(2, N)
    expected = every_logit(gpt, idx)
    monkeypatch.setattr(attention, "DENSE_BYTES", 0)
    monkeypatch.setattr(attention, "BLOCK_ROWS", 2)
    assert_close(decoded(gpt, idx, [6, 5, 1, 1]), expected)
    assert_close(every_logit(gpt, idx), expected)


MANY = "rope + logn | t5 | fox | rope + window(size=8, sinks=2)"


@pytest.mark.parametrize(("pos", "extend"), [(MANY, ""), ("rope", "dca")])
def test_compiled_steps_are_two_graphs_for_all_lengths(pos, extend):
    """One for the first length, one for all that follow; what they give is the eager steps'."""
    gpt, idx = tiny(pos, n_layer=pos.count("|") + 1), tokens(1, 20)
    gpt.extend(extend)
    expected, counter = gpt.generate(idx, 9, temperature=0), CompileCounter()
    torch._dynamo.reset()
    gpt.compile(backend=counter, fullgraph=True)
    found = gpt.generate(idx, 9, temperature=0)
    torch._dynamo.reset()
    assert torch.equal(found, expected) and counter.frame_count == 2


def test_a_cache_may_be_longer_than_what_is_read_of_it():
    gpt, idx = tiny("alibi"), tokens(2, 5)
    cache = gpt.new_cache(batch=2, length=40)
    assert_close(gpt(idx, cache=cache)[0].detach(), every_logit(gpt, idx))


def test_the_length_of_the_cache_is_the_total_length():
    """Spread positions depend on the length that will be reached, which is fixed up front."""
    gpt, idx = tiny("randomized(max=64) + rope"), tokens(1, 4)
    logits, _ = gpt(idx, cache=gpt.new_cache(1, 16))
    assert_close(logits.detach(), every_logit(gpt, idx, ids=torch.tensor([0, 4, 8, 12])))


@pytest.mark.parametrize("shape", [(4,), (1, 4, 1), ()])
def test_tokens_that_are_no_batch_are_refused(shape):
    with pytest.raises(UserError, match=r"tokens must have the shape \(B, T\)"):
        tiny("rope")(torch.zeros(shape, dtype=torch.long))


def test_a_cache_that_is_full_is_refused():
    gpt = tiny("rope")
    cache = gpt.new_cache(1, 6)
    gpt(tokens(1, 5), cache=cache)
    with pytest.raises(UserError, match="6 tokens"):
        gpt(tokens(1, 2), cache=cache)
    assert gpt(tokens(1, 1), cache=cache)[0].shape == (
        1,
        1,
        17,
    )  # the refusal has left it as it was


@pytest.mark.parametrize("batch", [1, 3, 4])
def test_a_batch_other_than_the_caches_is_refused(batch):
    """Broadcast over the cached keys it would give logits that belong to nobody."""
    gpt = tiny("rope")
    cache = gpt.new_cache(2, 6)
    with pytest.raises(UserError):
        gpt(tokens(batch, 2), cache=cache)
    gpt(tokens(2, 2), cache=cache)
    with pytest.raises(UserError):
        gpt(tokens(batch, 2), cache=cache)


@pytest.mark.parametrize(
    "first, then",
    [
        ([4, 5], [0, 1]),
        ([[1, 2], [4, 5]], [3, 3]),
        ([4, 5], [[6, 7], [4, 4]]),
        (None, [0, 1]),
        ([4, 5], None),
    ],
)
def test_positions_that_go_back_behind_the_caches_are_refused(first, then):
    gpt = tiny("rope")
    cache = gpt.new_cache(2, 6)
    first, then = (None if p is None else torch.tensor(p) for p in (first, then))
    gpt(tokens(2, 2), cache=cache, positions=first)
    with pytest.raises(UserError, match="decrease|one form"):
        gpt(tokens(2, 2), cache=cache, positions=then)


def test_a_cache_takes_positions_in_one_form_throughout():
    gpt, idx = tiny("alibi"), tokens(2, 6)
    for_all, for_each = torch.arange(6), torch.arange(6).expand(2, 6)
    for given in (for_all, for_each):
        cache, parts = gpt.new_cache(2, 6), zip(idx.split(3, 1), given.split(3, -1), strict=True)
        logits = [gpt(part, cache=cache, positions=p)[0].detach() for part, p in parts]
        assert_close(torch.cat(logits, 1), every_logit(gpt, idx))
    cache = gpt.new_cache(2, 6)
    gpt(idx[:, :3], cache=cache, positions=for_each[:, :3])
    for other in (for_all[3:], None):
        with pytest.raises(UserError, match="one form in every call"):
            gpt(idx[:, 3:], cache=cache, positions=other)
    gpt(idx[:, 3:], cache=cache, positions=for_each[:, 3:])  # what was refused left no trace


# What is refused


def test_a_learned_table_past_its_end_is_refused():
    gpt = tiny("learned")
    assert gpt.limit == L
    gpt.check_length(L)
    for call in (
        lambda: gpt(tokens(1, L + 1)),
        lambda: gpt.new_cache(1, L + 1),
        lambda: gpt.check_length(L + 1),
        lambda: gpt.losses(tokens(1, L + 1), tokens(1, L + 1)),
        lambda: gpt(tokens(1, 2), positions=torch.tensor([0, L])),
    ):
        with pytest.raises(UserError, match="learned"):
            call()


@pytest.mark.parametrize(
    "positions",
    [
        torch.tensor([0, 2, 1, 3]),
        torch.tensor([3, 2, 1, 0], dtype=torch.uint8),
        torch.tensor([-1, 0, 1, 2]),
        torch.tensor([0.0, 1.0, 2.0, 3.0]),
        torch.arange(3),
        torch.arange(5),
        torch.arange(4)[None],
        torch.arange(4).expand(3, 4),
        torch.arange(4).expand(1, 2, 4),
        torch.tensor(0),
        torch.tensor([[0, 1, 2, 3], [0, 1, 3, 2]]),
        torch.tensor([False, False, True, True]),
        torch.arange(4).to(torch.complex64),
    ],
    ids=[
        "decreasing",
        "decreasing uint8",
        "negative",
        "float",
        "short",
        "long",
        "(1,T)",
        "(3,T)",
        "3-d",
        "0-d",
        "one row decreasing",
        "bool",
        "complex",
    ],
)
def test_positions_that_cannot_be_are_refused(positions):
    gpt = tiny("rope")
    for call in (gpt, lambda idx, **p: gpt.losses(idx, idx, **p)):
        with pytest.raises(UserError, match="positions"):
            call(tokens(2, 4), positions=positions)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_positions_may_be_any_integers(dtype):
    gpt, idx = tiny("rope + alibi"), tokens(2, 4)
    wide = torch.tensor([0, 3, 3, 90])
    assert_close(
        every_logit(gpt, idx, positions=wide.to(dtype)), every_logit(gpt, idx, positions=wide), 0
    )


@pytest.mark.parametrize(
    "pos", ["randomized(max=64) + learned(rows=64)", "randomized(max=64, test=draw) + rope"]
)
def test_positions_beyond_the_total_length_have_no_spread_and_are_refused(pos):
    with pytest.raises(UserError):
        tiny(pos)(tokens(2, 4), positions=torch.tensor([0, 10, 20, 30]))


def test_a_text_longer_than_the_random_positions_is_refused():
    gpt = tiny("randomized(max=12) + rope")
    assert gpt.limit == 12 and every_logit(gpt, tokens(1, 12)).isfinite().all()
    with pytest.raises(UserError, match="12"):
        gpt(tokens(1, 13))


@pytest.mark.parametrize("window", [0, -1])
def test_a_window_that_holds_no_key_is_refused(window):
    with pytest.raises(UserError):
        tiny("rope").losses(tokens(1, 4), tokens(1, 4), window=window)


def test_a_training_length_of_one_token_is_refused():
    """logn would divide by ln 1."""
    with pytest.raises(UserError, match="block_size is 1, and must be int, at least 2"):
        tiny("logn", block_size=1)
    with pytest.raises(UserError, match="logn divides by ln"):
        Scheme("logn", Shape(H, 8, 32, 1), 1)


def test_a_config_made_in_python_is_checked():
    with pytest.raises(UserError, match="norm is 'batch', and must be"):
        GPT(GPTConfig(norm="batch"))


def test_a_width_that_the_heads_do_not_divide_is_refused():
    with pytest.raises(ValueError, match="n_head"):
        GPT(GPTConfig(n_embd=10, n_head=4))


# What a model is made of


def parameters_of(pos: str) -> dict[str, tuple[int, ...]]:
    return {
        name.removeprefix("pos.pieces."): tuple(p.shape)
        for name, p in tiny(pos).named_parameters()
        if name.startswith("pos.")
    }


PARAMETERS = {
    "learned": {"0_learned.table": (L, 32)},
    "learned(rows=64)": {"0_learned.table": (64, 32)},
    "alibi(learned=True)": {"0_alibi.raw": (H,)},
    "t5": {"0_t5.table": (32, H)},
    "t5(buckets=4, max_distance=6)": {"0_t5.table": (4, H)},
    "t5(buckets=4, per_layer=True)": {f"0_t5_layer{n}.table": (4, H) for n in range(3)},
    "kerple": {"0_kerple.r1": (H,), "0_kerple.r2": (H,)},
    "kerple(kind=power)": {"0_kerple.r1": (H,), "0_kerple.r2": (H,)},
    "randomized(max=64) + learned(rows=64)": {"1_learned.table": (64, 32)},
    "randomized(max=64) + (rope | t5 + window(size=4))": {"2_t5.table": (32, H)},
}


@pytest.mark.parametrize("pos", [*SCHEMES, "learned"])
def test_a_scheme_has_its_own_parameters_and_no_others(pos):
    """No table of positions under ALiBi; nothing twice; nothing that a cast could round or a checkpoint override."""
    assert parameters_of(pos) == PARAMETERS.get(pos, {})


@pytest.mark.parametrize("pos", SCHEMES)
def test_nothing_is_a_buffer_and_the_rest_is_plain(pos):
    gpt = tiny(pos)
    assert list(gpt.buffers()) == []
    rest = {name for name, _ in gpt.named_parameters() if not name.startswith("pos.")}
    parts = ["ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"]
    names = {"wte", "ln_f"} | {f"h.{n}.{part}" for n in range(3) for part in parts}
    assert rest == {f"{name}.weight" for name in names} | {
        f"{name}.bias" for name in names - {"wte"}
    }
    assert gpt.parameter_count == sum(
        p.numel() for p in {p.data_ptr(): p for p in gpt.parameters()}.values()
    )


def test_without_bias_no_layer_has_one():
    assert not [
        name for name, _ in tiny("rope", bias=False).named_parameters() if name.endswith("bias")
    ]


def test_a_model_of_124m_parameters_is_gpt2():
    with torch.device("meta"):
        gpt = GPT(
            GPTConfig(
                block_size=1024,
                vocab_size=50257,
                n_layer=12,
                n_head=12,
                n_embd=768,
                bias=True,
                pos="learned",
            )
        )
    assert gpt.parameter_count == 124_439_808


def test_the_initial_weights_are_those_of_gpt2_scaled_to_the_width():
    torch.manual_seed(0)
    gpt = GPT(
        GPTConfig(
            block_size=64, vocab_size=500, n_layer=8, n_head=4, n_embd=256, bias=True, pos="learned"
        )
    )
    deviations = {
        name: float(p.detach().std()) for name, p in gpt.named_parameters() if p.dim() == 2
    }
    for name, deviation in deviations.items():
        assert deviation == pytest.approx(
            0.02 * 3**0.5 / (4 if name.endswith("c_proj.weight") else 1), rel=0.05
        ), name
    assert all(
        float(p.detach().abs().sum()) == 0
        for name, p in gpt.named_parameters()
        if name.endswith("bias")
    )
    loss = gpt(torch.randint(500, (4, 64)), torch.randint(500, (4, 64)))[1]
    # logits have a variance of 0.02**2 x 768, and half of it comes on top of the loss of a guess
    assert loss.item() == pytest.approx(math.log(500) + 0.02**2 * 768 / 2, abs=0.1)


@pytest.mark.parametrize("pos", SCHEMES)
def test_every_parameter_has_a_gradient(pos):
    gpt, idx = tiny(pos), tokens(2, L)
    gpt(idx, idx)[1].backward()
    without = [
        name for name, p in gpt.named_parameters() if p.grad is None or not p.grad.abs().max() > 0
    ]
    assert without == []


@pytest.mark.parametrize("pos", SCHEMES)
def test_the_gradients_of_every_path_are_those_of_the_reference(pos, monkeypatch):
    """Through the whole model, tables of embeddings included."""
    gpt, idx = tiny(pos, n_layer=2), tokens(2, L)

    def gradients() -> list[Tensor]:
        return list(torch.autograd.grad(gpt(idx, idx)[1], list(gpt.parameters())))

    with monkeypatch.context() as patch:
        patch.setattr(
            attention,
            "attend",
            lambda q, k, v, prepared, dropout: attention.reference(q, k, v, prepared.plan),
        )
        expected = gradients()
    monkeypatch.setattr(attention, "BLOCK_ROWS", 3)
    for path in ("dense", "blocked", "matmul"):
        monkeypatch.setattr(attention, "choose_path", lambda *arguments, path=path: path)
        for ours, theirs in zip(gradients(), expected, strict=True):
            assert_close(ours, theirs, 1e-8)  # the loss is float32


@pytest.mark.parametrize("pos", SCHEMES)
def test_a_cast_to_bfloat16_leaves_fixed_tables_alone(pos):
    """The logits are those of the float64 model up to the type's own rounding, at positions that bfloat16 cannot hold."""
    exact = tiny(pos, n_layer=1)
    rounded = tiny(pos, n_layer=1)
    for gpt in (exact, rounded):
        gpt.to(torch.bfloat16)  # both have rounded parameters
    exact.double()
    offset = 0 if exact.limit else 1_000_001
    idx, positions = tokens(2, 7), torch.arange(7) + offset
    logits = rounded(idx, idx, positions=positions)[0]
    assert logits.dtype == torch.bfloat16
    assert_close(logits.detach().double(), every_logit(exact, idx, positions=positions), 0.25)
    assert float(
        (logits.detach().double() - every_logit(exact, idx, positions=positions)).std()
    ) < 0.03 * float(logits.detach().std())


def test_what_many_layers_share_is_made_once(monkeypatch):
    made, make = [], attention.added_scores
    monkeypatch.setattr(attention, "added_scores", lambda *a: made.append(a) or make(*a))
    for pos, times in (("alibi", 1), ("alibi | t5", 2), ("t5(per_layer=True)", 3), ("rope", 0)):
        made.clear()
        tiny(pos)(tokens(1, 5))
        assert len(made) == times


@pytest.mark.parametrize(
    "pos, paths",
    [
        ("rope", "fused"),
        ("alibi", "dense"),
        ("rope | alibi", "fused|dense"),
        ("rope + window(size=4)", "dense"),
    ],
)
def test_the_attention_path_is_said(pos, paths):
    gpt = tiny(pos)
    assert gpt.attention_path(16) == paths
    assert gpt.attention_path(4096) == paths.replace("dense", "blocked")
    assert gpt.attention_path(16, compiled=True) == "matmul"
    assert gpt.attention_path(16, window=4) == "dense"


def test_dropout_acts_in_training_only():
    gpt, idx = tiny("rope", dropout=0.5), tokens(1, 6)
    assert torch.equal(gpt(idx)[0], gpt(idx)[0])
    gpt.train()
    assert not torch.equal(gpt(idx)[0], gpt(idx)[0])


# Losses


def test_logits_without_targets_are_those_of_the_last_position():
    gpt, idx = tiny("alibi"), tokens(3, 6)
    logits, loss = gpt(idx)
    assert logits.shape == (3, 1, 17) and loss is None
    assert_close(logits.detach(), every_logit(gpt, idx)[:, -1:], 1e-12)


def test_a_loss_is_the_negative_log_probability_of_the_target():
    gpt, idx, targets = tiny("alibi"), tokens(2, 5), tokens(2, 5, seed=2)
    logits, loss = gpt(idx, targets)
    losses = gpt.losses(idx, targets)
    assert losses.shape == (2, 5) and losses.dtype == loss.dtype == torch.float32
    by_hand = [
        [
            math.log(sum(math.exp(x) for x in row)) - row[int(t)]
            for row, t in zip(rows, ts, strict=True)
        ]
        for rows, ts in zip(logits.tolist(), targets, strict=True)
    ]
    assert_close(losses, torch.tensor(by_hand), 1e-5)
    assert loss.item() == pytest.approx(sum(map(sum, by_hand)) / 10, abs=1e-5)


def test_targets_of_minus_one_are_ignored():
    gpt, idx, targets = tiny("rope"), tokens(2, 5), tokens(2, 5, seed=2)
    whole = gpt.losses(idx, targets).detach()
    targets[0, 1:4] = -1
    losses = gpt.losses(idx, targets).detach()
    assert (losses[0, 1:4] == 0).all() and torch.equal(losses[targets >= 0], whole[targets >= 0])
    assert gpt(idx, targets)[1].item() == pytest.approx(float(whole[targets >= 0].mean()), abs=1e-6)


@pytest.mark.parametrize("rows", [1, 3, 9, 10])
def test_a_loss_alone_is_the_same_without_all_logits_at_once(rows, monkeypatch):
    gpt, idx, targets = tiny("rope"), tokens(2, 5), tokens(2, 5, seed=2)
    targets[1, 2] = -1
    logits, loss = gpt(idx, targets)
    expected = torch.autograd.grad(loss, list(gpt.parameters()))
    asked = []
    gpt.lm_head.register_forward_hook(lambda module, arguments, out: asked.append(len(out)))
    monkeypatch.setattr(model_module, "LOSS_BYTES", rows * 4 * 17)
    alone, found = gpt(idx, targets, loss_only=True)
    assert (alone is None) == (rows < 10)  # a few logits may stay
    assert found.item() == pytest.approx(loss.item(), abs=1e-6)
    ours = torch.autograd.grad(found, list(gpt.parameters()))
    for a, b in zip(ours, expected, strict=True):
        assert_close(a, b, 1e-6)
    if rows < 10:  # formed twice: forward and backward
        assert max(asked) == rows and sum(asked) == 20


@pytest.mark.parametrize("rows", [1, 3, 7, 1000])
def test_losses_in_blocks_of_logits_are_the_same(rows, monkeypatch):
    gpt, idx, targets = tiny("rope"), tokens(2, 5), tokens(2, 5, seed=2)
    targets[1, 2] = -1
    expected = gpt.losses(idx, targets).detach()
    asked = []
    gpt.lm_head.register_forward_hook(lambda module, arguments, out: asked.append(out.shape[0]))
    monkeypatch.setattr(model_module, "LOGIT_BYTES", rows * 4 * 17 + 5)
    assert_close(gpt.losses(idx, targets).detach(), expected, 1e-6)
    assert max(asked) == min(rows, 10) and sum(asked) == 10
    assert gpt(idx, targets)[1].item() == pytest.approx(float(expected.sum() / 9), abs=1e-6)


def test_large_blocks_of_logits_have_whole_256s_as_a_gpu_forms_products(monkeypatch):
    gpt, idx, asked = tiny("rope", block_size=500), tokens(2, 500), []
    gpt.lm_head.register_forward_hook(lambda module, arguments, out: asked.append(out.shape[0]))
    monkeypatch.setattr(model_module, "LOGIT_BYTES", 4 * 17 * 700)
    gpt.losses(idx, idx)
    assert asked == [512, 488]


def test_a_block_of_logits_is_at_most_64_mib():
    assert model_module.LOGIT_BYTES == 64 * 2**20


def test_losses_have_gradients():
    gpt, idx = tiny("alibi"), tokens(2, 5)
    gpt.losses(idx, idx).mean().backward()
    ours = [p.grad.clone() for p in gpt.parameters()]
    gpt.zero_grad()
    gpt(idx, idx)[1].backward()
    assert all(
        torch.allclose(a, p.grad, rtol=0, atol=1e-6)
        for a, p in zip(ours, gpt.parameters(), strict=True)
    )


@pytest.mark.parametrize(
    "pos",
    [
        "nope",
        "rope",
        "alibi",
        "t5",
        "logn + rope",
        "learned(rows=64)",
        "sinusoidal",
        "kerple | nope",
        "randomized(max=64) + alibi",
    ],
)
@pytest.mark.parametrize("bytes_", [2**24, 0], ids=["dense", "blocked"])
def test_a_windowed_loss_is_that_of_the_scheme_with_a_window(pos, bytes_, monkeypatch):
    """The protocol limits keys in every layer and leaves positions alone, as `window(size)` does."""
    monkeypatch.setattr(attention, "DENSE_BYTES", bytes_)
    monkeypatch.setattr(attention, "BLOCK_ROWS", 4)
    idx, targets = tokens(2, N), tokens(2, N, seed=2)
    plain, windowed = tiny(pos), tiny(f"({pos}) + window(size=3)")
    ours = plain.losses(idx, targets, window=3).detach()
    assert_close(ours, windowed.losses(idx, targets).detach(), 1e-6)
    assert not torch.allclose(ours, plain.losses(idx, targets))
    assert_close(plain.losses(idx, targets, window=N), plain.losses(idx, targets), 1e-6)


@pytest.mark.parametrize("bytes_", [2**24, 0], ids=["dense", "blocked"])
@pytest.mark.parametrize("size, sinks, window", [(3, 2, 5), (5, 2, 3), (4, 1, 4), (2, 6, 7)])
def test_a_windowed_loss_of_a_window_sees_what_both_see(size, sinks, window, bytes_, monkeypatch):
    monkeypatch.setattr(attention, "DENSE_BYTES", bytes_)
    monkeypatch.setattr(attention, "BLOCK_ROWS", 3)
    gpt, idx = tiny(f"alibi + window(size={size}, sinks={sinks})", n_layer=1), tokens(1, N)
    losses = gpt.losses(idx, idx, window=window)[0].detach()
    for i in range(
        N
    ):  # a token may be replaced without effect on the loss of i just where i does not see it
        for j in range(i):
            other = idx.clone()
            other[0, j] = (idx[0, j] + 1) % 17
            changed = gpt.losses(other, idx, window=window)[0, i].item() != losses[i].item()
            assert changed == (i - j < window and (i - j < size or j < sinks)), (i, j)


def test_losses_at_given_positions_are_those_of_the_forward():
    gpt, idx, positions = (
        tiny("sinusoidal(scale=1) + alibi"),
        tokens(2, 6),
        torch.tensor([1, 4, 4, 8, 90, 91]),
    )
    expected = F.cross_entropy(
        every_logit(gpt, idx, positions=positions).flatten(0, 1), idx.flatten(), reduction="none"
    )
    assert_close(
        gpt.losses(idx, idx, positions=positions).flatten().detach(), expected.float(), 1e-5
    )


# Randomized positions


def test_drawn_ids_are_the_positions_of_a_plain_model():
    ids = tiny("randomized(max=64) + rope").draw_ids(seed=5, step=9, length=L)
    idx = tokens(2, L)
    for rest in ("rope", "alibi", "learned(rows=64)", "kerple + logn", "sinusoidal"):
        random, plain = tiny(f"randomized(max=64) + {rest}"), tiny(rest)
        assert torch.equal(
            every_logit(random, idx, ids=ids), every_logit(plain, idx, positions=ids)
        )
        assert not torch.allclose(every_logit(random, idx, ids=ids), every_logit(random, idx))


def test_the_test_ids_of_randomized_are_floor_of_k_max_over_n():
    idx = tokens(2, 6)
    random, plain = tiny("randomized(max=64) + rope"), tiny("rope")
    assert torch.equal(
        every_logit(random, idx),
        every_logit(plain, idx, positions=torch.tensor([0, 10, 21, 32, 42, 53])),
    )


def test_only_randomized_draws_ids():
    assert tiny("rope").draw_ids(1, 2, L) is None
    draw = tiny("randomized(max=64) + rope").draw_ids
    assert torch.equal(draw(1, 2, L), draw(1, 2, L))
    assert not torch.equal(draw(1, 2, L), draw(1, 3, L)) and not torch.equal(
        draw(1, 2, L), draw(2, 2, L)
    )


def test_ids_that_do_not_fit_are_refused():
    gpt = tiny("randomized(max=64) + learned(rows=64)")
    for ids in (torch.arange(3), torch.tensor([0, 1, 2, 64]), torch.tensor([0.0, 1.0, 2.0, 3.0])):
        with pytest.raises(UserError):
            gpt(tokens(2, 4), tokens(2, 4), ids=ids)


# Writing on


def test_generating_appends_to_what_is_given():
    gpt, idx = tiny("alibi"), tokens(2, 5)
    text = gpt.generate(idx, 6)
    assert text.shape == (2, 11) and text.dtype == torch.int64 and torch.equal(text[:, :5], idx)
    assert text.min() >= 0 and text.max() < 17
    assert torch.equal(gpt.generate(idx, 0), idx)


def test_a_stream_yields_one_token_at_a_time():
    stream = tiny("rope").stream(tokens(2, 5), 4)
    assert isinstance(stream, Iterator)
    parts = list(stream)
    assert [tuple(p.shape) for p in parts] == [(2, 1)] * 4
    assert torch.is_grad_enabled()  # also for the caller, between two tokens
    next(tiny("rope").stream(tokens(2, 5), 4))
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("pos", SCHEMES)
def test_greedy_writing_with_a_cache_is_that_without(pos):
    gpt, idx = tiny(pos), tokens(2, 4)
    if gpt.pos.ids_piece is None:
        ids = torch.arange(14)
    else:
        ids = gpt.pos.ids(torch.arange(14), 14)  # the declared total length
    text = idx
    for t in range(4, 14):
        logits = every_logit(gpt, text, ids=ids[:t])[:, -1]
        assert (logits.topk(2).values.diff().abs() > 1e-6).all()  # no tie
        text = torch.cat((text, logits.argmax(-1, keepdim=True)), 1)
    assert torch.equal(gpt.generate(idx, 10, temperature=0), text)
    assert torch.equal(gpt.generate(idx, 10, top_k=1), text)
    assert torch.equal(gpt.generate(idx, 10, top_p=1e-9), text)


def test_a_generator_repeats_a_text():
    gpt, idx = tiny("rope"), tokens(1, 4)

    def text(seed: int) -> list[int]:
        return gpt.generate(idx, 30, generator=torch.Generator().manual_seed(seed))[0].tolist()

    assert text(1) == text(1) != text(2)


def test_a_learned_table_goes_on_from_its_last_rows():
    """Past the table, the last L tokens are encoded anew at positions 0 ... L - 1."""
    gpt, idx = tiny("learned"), tokens(2, 5)
    text = idx
    for _ in range(9):
        text = torch.cat((text, every_logit(gpt, text[:, -L:])[:, -1].argmax(-1, keepdim=True)), 1)
    assert text.shape == (2, 14)
    assert torch.equal(gpt.generate(idx, 9, temperature=0), text)
    longer = tokens(1, 20)
    expected = every_logit(gpt, longer[:, -L:])[:, -1].argmax(-1, keepdim=True)
    assert torch.equal(gpt.generate(longer, 1, temperature=0)[:, -1:], expected)


def test_a_learned_table_that_is_long_enough_uses_the_cache(monkeypatch):
    gpt, asked = tiny("learned"), []
    make = gpt.new_cache
    monkeypatch.setattr(gpt, "new_cache", lambda *a: asked.append(a) or make(*a))
    gpt.generate(tokens(1, 5), 3)
    assert asked == [(1, L)]


LOGITS = torch.tensor([[0.45, 0.30, 0.15, 0.10]]).log()


def drawn(**how: object) -> dict[int, float]:
    """The frequency of each token among 2,000 draws."""
    generator, seen = torch.Generator().manual_seed(0), torch.tensor([[0, 0]]).expand(2000, 2)
    tokens = model_module.pick(LOGITS.expand(2000, 4), seen, generator=generator, **how)
    assert tokens.shape == (2000, 1)
    return {t: (tokens == t).float().mean().item() for t in tokens.unique().tolist()}


@pytest.mark.parametrize(
    "how, kept",
    [
        (dict(), {0, 1, 2, 3}),
        (dict(top_k=1), {0}),
        (dict(top_k=2), {0, 1}),
        (dict(top_k=3), {0, 1, 2}),
        (dict(top_k=4), {0, 1, 2, 3}),
        (dict(top_k=100), {0, 1, 2, 3}),
        (dict(top_p=0.3), {0}),
        (dict(top_p=0.5), {0, 1}),
        (dict(top_p=0.7), {0, 1}),
        (dict(top_p=0.8), {0, 1, 2}),
        (dict(top_p=0.95), {0, 1, 2, 3}),
        (dict(top_p=1.0), {0, 1, 2, 3}),
        (dict(temperature=0), {0}),
        (dict(top_k=3, top_p=0.6), {0, 1}),
        (dict(top_k=1, top_p=0.99), {0}),
        (dict(top_p=1e-300), {0}),  # zero in float32
        (dict(min_p=0.0), {0, 1, 2, 3}),
        (dict(min_p=0.3), {0, 1, 2}),
        (dict(min_p=0.34), {0, 1}),
        (dict(min_p=1.0), {0}),
        (dict(top_p=0.8, min_p=0.2), {0, 1, 2}),
    ],
)
def test_a_draw_keeps_the_likeliest_and_the_token_that_crosses_top_p(how, kept):
    frequencies = drawn(**how)
    assert set(frequencies) == kept
    total = sum(LOGITS.exp()[0, t].item() for t in kept)
    for t, frequency in frequencies.items():
        assert frequency == pytest.approx(LOGITS.exp()[0, t].item() / total, abs=0.04)


@pytest.mark.parametrize("how", [dict(top_k=0), dict(min_p=1.01), dict(repetition_penalty=0.0)])
def test_a_draw_that_would_leave_no_token_is_refused(how):
    with pytest.raises(UserError, match="top_k and repetition_penalty must be above 0"):
        drawn(**how)


def test_temperature_sharpens_and_flattens():
    assert drawn(temperature=0.25)[0] > 0.8 and drawn(temperature=10.0)[0] < 0.31


def test_top_p_follows_the_temperature():
    assert set(drawn(temperature=0.25, top_p=0.5)) == {0} and set(
        drawn(temperature=10.0, top_p=0.9)
    ) == {0, 1, 2, 3}


def test_top_p_goes_by_probability_and_not_by_place():
    shuffled = LOGITS[:, [2, 0, 3, 1]].expand(500, 4)
    generator, seen = torch.Generator().manual_seed(0), torch.zeros(500, 1, dtype=torch.int64)
    tokens = model_module.pick(shuffled, seen, top_p=0.7, generator=generator)
    assert set(tokens.flatten().tolist()) == {1, 3}


def test_a_repetition_penalty_lowers_the_logits_of_tokens_seen_once():
    logits = torch.tensor([[2.0, 1.5, -1.0, -1.2]])
    seen = torch.tensor([[0, 2, 0]])
    # 2 / 2 = 1 is below 1.5, and seeing token 0 twice changes nothing
    for penalty, expected in ((1.0, 0), (1.3, 0), (1.4, 1), (2.0, 1)):
        token = model_module.pick(logits, seen, temperature=0, repetition_penalty=penalty)
        assert token.item() == expected
    negative = torch.tensor([[-1.0, -1.5]])  # -1 x 2 = -2
    token = model_module.pick(negative, torch.tensor([[0]]), temperature=0, repetition_penalty=2.0)
    assert token.item() == 1


@torch.no_grad()
def test_the_log_probabilities_of_a_stream_are_those_of_the_model():
    for pos in ("alibi", "learned"):
        gpt, idx = tiny(pos), tokens(2, 3)
        how = dict(temperature=0.5, top_k=3, repetition_penalty=1.5)
        text, logs, generator = idx, [], torch.Generator().manual_seed(0)
        for new in gpt.stream(idx, 4, logs, **how, generator=generator):
            expected = every_logit(gpt, text)[:, -1].log_softmax(-1).gather(1, new)
            assert_close(logs[-1].double(), expected, 1e-5)
            text = torch.cat((text, new), 1)
        assert len(logs) == 4


# Compiled


def loss_of(gpt: GPT, idx: Tensor, targets: Tensor, ids: Tensor | None) -> Tensor:
    return gpt(idx, targets, ids=ids)[1]


def assert_compiled_equals_eager(gpt: GPT, backend: str, atol: float) -> None:
    """Loss and gradients agree; new data, and new random positions, compile nothing anew and break no graph."""
    torch._dynamo.reset()
    compiled = torch.compile(loss_of, fullgraph=True, backend=backend)
    for step in range(3):
        idx, targets, ids = (
            tokens(2, L, seed=step),
            tokens(2, L, seed=50 + step),
            gpt.draw_ids(1, step, L),
        )
        with torch._dynamo.config.patch(error_on_recompile=step > 0):
            ours = compiled(gpt, idx, targets, ids)
        theirs = loss_of(gpt, idx, targets, ids)
        parameters = list(gpt.parameters())
        assert_close(ours.detach(), theirs.detach(), atol)
        for a, b in zip(
            torch.autograd.grad(ours, parameters),
            torch.autograd.grad(theirs, parameters),
            strict=True,
        ):
            assert_close(a, b, atol)
    torch._dynamo.reset()


@pytest.mark.parametrize(  # of each scheme by itself, see test_schemes.py
    "pos", [p if "+" in p or "|" in p else pytest.param(p, marks=pytest.mark.slow) for p in SCHEMES]
)
def test_compiling_breaks_no_graph_and_changes_no_number(pos):
    assert_compiled_equals_eager(tiny(pos, n_layer=2), "aot_eager", 1e-6)


@pytest.mark.parametrize("pos", ["rope", "alibi", "rope | window(size=3)"])
def test_compiled_attention_at_lengths_past_the_matrix_products_is_the_same(pos, monkeypatch):
    """Above MATMUL_KEYS the library's kernels serve, compiled too."""
    monkeypatch.setattr(attention, "MATMUL_KEYS", 4)
    assert_compiled_equals_eager(tiny(pos, n_layer=2), "aot_eager", 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "pos",
    [
        "rope + t5",
        "randomized(max=64) + kerple",
        "sinusoidal + (rope | alibi(learned=True) + logn + window(size=3))",
    ],
)
def test_the_default_compiler_changes_no_number(pos):
    assert_compiled_equals_eager(tiny(pos, n_layer=2).float(), "inductor", 2e-4)
