"""The model: bfloat16, compiling, latents, the cache equals one pass, generation.

That architectures are their formulas is held by the models of test_huggingface.
"""

import math

import pytest
import torch
from test_attention import SCHEMES, N, model, text
from torch.nn import functional as F

import attention
from common.errors import UserError
from model import GPT, Cache, GPTConfig
from train import SummedLoss

ARCHITECTURES = {
    "gqa": dict(n_kv_head=1),
    "mla": dict(kv_lora_rank=6, qk_rope_head_dim=4),
    "llama": dict(norm="rmsnorm", mlp="swiglu", qk_norm=True, n_kv_head=1, tie_embeddings=False),
    "neox": dict(parallel_blocks=True, bias=True, embedding_norm=True, mlp="gelu_exact"),
    "olmo": dict(norm="rmsnorm", norm_place="after", qk_norm="all", n_kv_head=1, mlp="swiglu"),
    "after": dict(norm_place="after", parallel_blocks=True, bias=True, qk_norm=True),
    "mla after": dict(norm_place="after", kv_lora_rank=6, qk_rope_head_dim=4),
}


def in_parts(gpt, idx, sizes):
    """Logits of all tokens, read through a cache in parts of these sizes."""
    cache = Cache(*idx.shape)
    return torch.cat([gpt.logits(part, cache) for part in idx.split(sizes, 1)], 1)


# ---- properties of every scheme


@torch.no_grad()
@pytest.mark.parametrize("pos", SCHEMES)
def test_bfloat16_rounds_no_number_of_a_piece(pos):
    gpt = model(pos).float()
    before = {name: x.clone() for name, x in gpt.pos.named_parameters()}
    before |= {name: x.clone() for name, x in gpt.pos.named_buffers()}
    gpt.bfloat16()
    after = dict(gpt.pos.named_parameters()) | dict(gpt.pos.named_buffers())
    parameters = {name for name, _ in gpt.named_parameters()}
    assert set(gpt.state_dict()) == parameters | {"lm_head.weight"}  # constants are not saved
    assert before.keys() == after.keys()
    for name, x in before.items():
        assert torch.equal(x, after[name]) and x.dtype == after[name].dtype, name
    idx = text(gpt)
    assert gpt(idx, idx)[0].dtype == torch.bfloat16 and gpt(idx, idx)[0].isfinite().all()
    assert gpt.wte.weight.dtype == torch.bfloat16


def test_a_compiled_step_equals_an_eager_one():
    pos = "randomized(max=64) + t5 + rope"
    gpt = model(pos, n_layer=1, **ARCHITECTURES["olmo"]).float().train()
    idx = text(gpt)
    losses = []
    for step in (gpt, torch.compile(gpt, fullgraph=True)):
        gpt.zero_grad()
        gpt.pos.draw(1, 2, N)
        loss = step(idx, idx)[1]
        loss.backward()
        losses += [loss, gpt.wte.weight.grad.clone()]
    torch.testing.assert_close(losses[2:], losses[:2], rtol=1e-5, atol=1e-6)


# ---- architectures


@torch.no_grad()
@pytest.mark.parametrize("pos", ["rope", "alibi", "fox"])
def test_latent_attention_equals_attention_with_the_keys_and_values_it_stands_for(pos, monkeypatch):
    gpt = model(pos, **ARCHITECTURES["mla"])
    layer = gpt.h[0].attn
    x = torch.randn(1, N, 16, dtype=torch.float64)
    latent, shared = layer.c_latent(x)[0].split([6, 4], -1)
    latent = F.layer_norm(latent, (6,), layer.kv_norm.weight, layer.kv_norm.bias, 1e-6)
    up = layer.c_up(latent).view(N, 2, 2, 8)  # (S, H, key or value, width)
    queries = layer.c_query(x)[0].view(N, 2, 12)
    expected = torch.zeros(N, 2, 8, dtype=torch.float64)
    index = torch.arange(N)
    plan = next(iter(gpt.pos.plans(index, index, N, N, gpt.current_options()).values()))
    attend = attention.attend
    heads = []

    def watched(q, k, v, *others):
        heads.extend([q, k, v])
        return attend(q, k, v, *others)

    monkeypatch.setattr("model.attend", watched)
    y = layer(x, attention.prepare(plan), None)
    q, k, v = heads
    if pos == "alibi":
        torch.testing.assert_close(q[0], queries.transpose(0, 1), rtol=0, atol=1e-12)
        keys = torch.cat((up[:, :, 0], shared[:, None].expand(-1, 2, -1)), -1)
        torch.testing.assert_close(k[0], keys.transpose(0, 1), rtol=0, atol=1e-12)
        for h, slope in enumerate((1 / 16, 1 / 256)):
            scores = queries[:, h] @ keys[:, h].T / 12**0.5 - slope * (index[:, None] - index)
            scores = scores.masked_fill(index > index[:, None], -math.inf)
            expected[:, h] = scores.softmax(-1) @ up[:, h, 1]
        torch.testing.assert_close(y[0], layer.c_proj(expected.flatten(1)), rtol=0, atol=1e-10)
    torch.testing.assert_close(v[0], up[:, :, 1].transpose(0, 1), rtol=0, atol=1e-12)
    torch.testing.assert_close(q[..., :8], queries[..., :8].transpose(0, 1)[None], rtol=0, atol=0)


@pytest.mark.parametrize("pos", ["rope_pp", "rope_pp(queries=own)", "rope + gate", "grape", "rove"])
def test_a_piece_that_needs_whole_heads_is_refused_beside_latents(pos):
    with pytest.raises(UserError, match="needs whole heads: leave kv_lora_rank out"):
        model(pos, **ARCHITECTURES["mla"])


def test_latents_without_columns_that_turn_name_the_setting():
    with pytest.raises(UserError, match="with kv_lora_rank: qk_rope_head_dim"):
        model("rope", kv_lora_rank=8)


@torch.no_grad()
@pytest.mark.parametrize("name", list(ARCHITECTURES))
@pytest.mark.parametrize(
    "pos, extend",
    [
        ("rope", ""),
        ("alibi", ""),
        ("fox", ""),
        ("pope", ""),
        ("cope", ""),
        ("rove", ""),
        ("rope", "rerope"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_the_cache_equals_one_pass_in_every_architecture(name, pos, extend, packed):
    if name.startswith("mla") and pos in ("pope", "cope", "rove"):
        with pytest.raises(UserError, match="needs whole heads"):
            model(pos, **ARCHITECTURES[name])
        return
    extend = " + ".join(filter(None, [extend, "int8" if packed else ""]))
    gpt = model(pos, extend, **ARCHITECTURES[name])
    idx = text(gpt)
    expected = gpt(idx, idx)[0]
    torch.testing.assert_close(in_parts(gpt, idx, [5, 1, 1, N - 7]), expected, rtol=0, atol=1e-9)


@torch.no_grad()
@pytest.mark.parametrize("sizes", [dict(n_kv_head=2), dict(kv_lora_rank=6, qk_rope_head_dim=4)])
def test_xsa_leaves_nothing_of_a_token_that_sees_itself_alone(sizes):
    gpt = model("rope + xsa", n_head=4, **sizes)
    heads = []
    gpt.h[0].attn.c_proj.register_forward_pre_hook(lambda _, x: heads.append(x[0]))
    gpt(text(gpt), text(gpt))
    assert heads[0][:, 0].abs().max() < 1e-9 < heads[0][:, 1].abs().max()


def cache_bytes(gpt):
    """The size of a cache in bytes per token."""
    cache = Cache(1, 1)
    gpt.logits(torch.zeros(1, 1, dtype=torch.long), cache)
    return sum(x.nbytes for x in cache.tensors.values())


@torch.no_grad()
def test_the_cache_is_no_larger_than_its_numbers():
    assert cache_bytes(model("rope")) == 2 * 2 * 16 * 8  # layers, k and v, columns, float64
    assert cache_bytes(model("rope", n_kv_head=1)) == 2 * 2 * 8 * 8
    assert cache_bytes(model("rope", **ARCHITECTURES["mla"])) == 2 * (6 + 4) * 8
    assert cache_bytes(model("rope", "int8").bfloat16()) == 2 * 2 * 2 * (8 + 2)


# ---- training, losses, answers


def test_drawn_ids_are_those_of_training_only():
    gpt = model("randomized(max=512) + rope")
    idx = text(gpt)
    tested = gpt(idx, idx)[1]
    gpt.pos.draw(1, 5, N)
    assert gpt(idx, idx)[1] == tested
    gpt.train()
    trained = gpt(idx, idx)[1]
    assert trained != tested
    gpt.pos.draw(1, 6, N)
    assert gpt(idx, idx)[1] != trained
    gpt.pos.draw(1, 5, N)
    assert gpt(idx, idx)[1] == trained
    gpt.pos.draw(1, 5, 2 * N)  # for more tokens than follow: these have the first
    changed = idx.clone()
    changed[:, -1] ^= 1
    same = gpt(idx, idx)[0][:, :-1] == gpt(changed, idx)[0][:, :-1]
    assert same.all()  # no token sees the last one


@torch.no_grad()
def test_losses_and_answers_are_those_of_the_logits():
    gpt = model("rope").float()
    idx = text(gpt)
    targets = idx.roll(-1, 1)
    targets[0, :4] = -1
    logits, loss = gpt(idx, targets)
    losses = gpt.losses(idx, targets)
    assert (losses[0, :4] == 0).all()
    torch.testing.assert_close(losses.sum() / (targets >= 0).sum(), loss)
    nats, correct = gpt.losses_and_hits(idx, targets)
    torch.testing.assert_close(nats, losses[targets >= 0])
    assert torch.equal(correct, (logits.argmax(-1) == targets)[targets >= 0])
    windowed = gpt.losses(idx, targets, window=4)
    torch.testing.assert_close(windowed[:, :4], losses[:, :4])
    assert not torch.equal(windowed, losses)
    masked = model("rope + window(size=4)").float()
    masked.load_state_dict(gpt.state_dict())
    torch.testing.assert_close(windowed, masked.losses(idx, targets))


def test_losses_in_blocks_have_the_gradients_of_the_mean(monkeypatch):
    gpt = model("rope").float()
    idx = text(gpt)
    gpt(idx, idx)[1].backward()
    expected = gpt.wte.weight.grad.clone()
    gpt.zero_grad()
    monkeypatch.setattr("model.LOGIT_BYTES", 5 * 4 * gpt.config.vocab_size)
    (SummedLoss(gpt)(idx, idx) / idx.numel()).backward()
    torch.testing.assert_close(gpt.wte.weight.grad, expected)


# ---- generation


@torch.no_grad()
@pytest.mark.parametrize("pos", ["rope", "learned(rows=12)", "randomized(max=64) + alibi"])
def test_the_likeliest_continuation_is_that_of_whole_texts(pos):
    gpt = model(pos)
    idx = text(gpt)[:, :5]
    out = gpt.generate(idx, 10, temperature=0)
    assert out.shape == (2, 15) and torch.equal(out[:, :5], idx)
    if "randomized" not in pos:  # its positions depend on the length
        for n in range(5, 15):
            logits, _ = gpt(out[:, max(0, n - (gpt.pos.limit or n)) : n])
            assert torch.equal(logits[:, -1].argmax(-1), out[:, n])
    assert torch.equal(out[:, 5:], torch.cat(list(gpt.stream(idx, 10, temperature=0)), 1))


def test_only_the_likeliest_tokens_are_drawn(monkeypatch):
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().expand(2000, 1, 4)
    monkeypatch.setattr(GPT, "hidden", lambda self, idx, cache: logits)
    gpt = model("nope")
    gpt.lm_head = torch.nn.Identity()
    generator = torch.Generator().manual_seed(0)

    def shares(**how):
        tokens = torch.cat(list(gpt.stream(logits[..., 0], 1, generator=generator, **how)))
        return tokens.flatten().bincount(minlength=4) / 2000

    assert (shares() - torch.tensor([0.5, 0.3, 0.15, 0.05])).abs().max() < 0.04
    assert (shares(top_k=2) > 0).tolist() == [True, True, False, False]
    assert (shares(temperature=1e-9) > 0).tolist() == [True, False, False, False]
    assert shares(temperature=0)[0] == 1


@torch.no_grad()
def test_what_a_model_cannot_read_is_refused():
    gpt = model("learned(rows=12)")
    with pytest.raises(UserError, match="12 positions"):
        gpt(torch.zeros(1, 13, dtype=torch.long))
    with pytest.raises(UserError, match="12 positions"):
        gpt.logits(torch.zeros(1, 3, dtype=torch.long), Cache(1, 13))
    cache = Cache(1, 4)
    gpt.logits(torch.zeros(1, 3, dtype=torch.long), cache)
    with pytest.raises(UserError, match=r"= \(1, 4\), not \(1, 5\)"):
        gpt.logits(torch.zeros(1, 2, dtype=torch.long), cache)


def test_dropped_positions_leave_the_weights_alone():
    gpt = model("rope + t5").float()
    weights = {k: v.clone() for k, v in gpt.state_dict().items()}
    gpt.pos.extend("yarn(factor=2)")
    assert gpt.pos.extend_text == "yarn(factor=2)"
    gpt.drop_positions()
    assert gpt.config.pos == "nope" and gpt.config.extend == ""
    state = gpt.state_dict()
    assert set(weights) - set(state) == {"pos.pieces.1_t5.table"}
    assert all(torch.equal(weights[k], v) for k, v in state.items())
    assert gpt.parameter_count == GPT(GPTConfig(**vars(gpt.config))).parameter_count
