"""The blocks of config/arch: every scheme works in each, and grouped keys equal copied ones.

Equality with the models that these blocks are named after is shown in test_families.py.
"""

from pathlib import Path

import pytest
import torch
from torch import Tensor

import attention
from configurable import TrainSettings, UserError, configure
from model import GPT, GPTConfig
from positions.catalogue import scheme_names

NEEDED = {
    "window": "window(size=3, sinks=1)",
    "randomized": "randomized(max=64)",
    "learned": "learned(rows=64)",
}
SCHEMES = [NEEDED.get(name, name) for name in scheme_names()]
FILES = sorted(Path("config/arch").glob("*.py"))
BLOCKS = [path.stem for path in FILES if path.stem != "deepseek"]  # see below for its attention
SMALL = dict(block_size=8, n_layer=2, n_head=4, n_embd=32)
N = 11


def settings_of(path: Path) -> TrainSettings:
    settings, _ = configure(TrainSettings, [str(path)], "")
    return settings


def arch(name: str, pos: str, **changes: object) -> GPT:
    """A small model in float64 with the blocks of a file, all weights away from where they start."""
    named = settings_of(Path("config/arch", f"{name}.py"))
    values = {key: getattr(named, key) for key in named.named} | SMALL | changes
    torch.manual_seed(5)
    gpt = GPT(GPTConfig(vocab_size=17, **values | {"pos": pos})).double().eval()
    for parameter in gpt.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return gpt


def text(gpt: GPT, batch: int = 2) -> Tensor:
    torch.manual_seed(1)
    return torch.randint(17, (batch, N if gpt.limit is None else min(N, gpt.limit)))


def one_pass(gpt: GPT, idx: Tensor) -> Tensor:
    return gpt(idx, idx)[0]


def token_by_token(gpt: GPT, idx: Tensor, first: int = 4) -> Tensor:
    cache = gpt.new_cache(*idx.shape)
    parts = [idx[:, :first], *idx[:, first:].split(1, 1)]
    return torch.cat([gpt(part, cache=cache)[0] for part in parts], 1)


def test_every_architecture_is_settings_and_nothing_else():
    assert [path.stem for path in FILES] == sorted(
        ["gpt2", "llama", "neox", "bloom", "mpt", "stablelm", "qwen", "deepseek"]
    )
    shape = {f for f in GPTConfig.__dataclass_fields__}
    for path in FILES:
        assert settings_of(path).named <= shape, path


@torch.no_grad()
@pytest.mark.parametrize("pos", SCHEMES)
@pytest.mark.parametrize("name", BLOCKS)
def test_every_scheme_in_every_block_gives_the_same_token_by_token_and_by_the_plain_path(name, pos):
    gpt = arch(name, pos)
    idx = text(gpt)
    expected = one_pass(gpt, idx)
    assert expected.isfinite().all()
    torch.testing.assert_close(token_by_token(gpt, idx), expected, rtol=0, atol=1e-9)
    attention.use(path="scored")
    try:
        torch.testing.assert_close(one_pass(gpt, idx), expected, rtol=0, atol=1e-9)
    finally:
        attention.use(path="auto")


@pytest.mark.parametrize("pos", [*SCHEMES, "rope + alibi", "rope | nope"])
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_grouped_keys_and_values_equal_copied_ones(pos, kv_heads):
    grouped, whole = (arch("qwen", pos, n_kv_head=n) for n in (kv_heads, 4))
    state, heads = grouped.state_dict(), 8  # columns of a head
    for name, theirs in whole.state_dict().items():
        if name.endswith("c_attn.weight"):
            q, k, v = state[name].split([32, 8 * kv_heads, 8 * kv_heads])
            k, v = (t.unflatten(0, (-1, heads)).repeat_interleave(4 // kv_heads, 0) for t in (k, v))
            theirs.copy_(torch.cat((q, k.flatten(0, 1), v.flatten(0, 1))))
        else:
            theirs.copy_(state[name])
    idx = text(grouped)
    ours, theirs = one_pass(grouped, idx), one_pass(whole, idx)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)
    ours.square().sum().backward()
    theirs.square().sum().backward()
    a, b = grouped.wte.weight.grad, whole.wte.weight.grad
    torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8 * float(b.abs().max()))


@torch.no_grad()
def test_the_cache_of_grouped_keys_has_as_many_heads_as_there_are_keys():
    for pos, heads in {"rope": 2, "alibi": 2, "nope": 2, "learned_rope": 4}.items():
        gpt = arch("llama", pos)
        cache = gpt.new_cache(1, 5)
        gpt(text(gpt, 1)[:, :5], cache=cache)
        shapes = [t.shape[1] for (_, name), (t,) in cache.kept.items() if name in "kv"]
        assert shapes == [heads] * 4, pos


def test_each_setting_of_a_block_changes_what_it_says():
    def parameters(**changes: object) -> dict[str, tuple]:
        gpt = GPT(GPTConfig(vocab_size=17, **SMALL | changes))
        return {name: tuple(p.shape) for name, p in gpt.named_parameters()}

    usual = parameters()
    assert parameters(tie_embeddings=False).keys() - usual.keys() == {"lm_head.weight"}
    assert parameters(embedding_norm=True).keys() - usual.keys() == {"ln_e.weight"}
    extra = parameters(qk_norm=True).keys() - usual.keys()
    assert extra == {f"h.{n}.attn.{part}_norm.weight" for n in (0, 1) for part in "qk"}
    assert parameters(mlp="swiglu")["h.0.mlp.c_fc.weight"] == (2 * 96, 32)  # 2/3 of 128, by 32
    assert parameters(n_inner=20)["h.0.mlp.c_fc.weight"] == (20, 32)
    assert parameters(head_dim=6)["h.0.attn.c_attn.weight"] == (3 * 24, 32)
    assert parameters(n_kv_head=1)["h.0.attn.c_attn.weight"] == (32 + 16, 32)
    assert "h.0.ln_1.bias" not in parameters(norm="rmsnorm", bias=True)


def test_blocks_side_by_side_read_the_same():
    torch.manual_seed(0)
    gpt = GPT(GPTConfig(vocab_size=17, parallel_blocks=True, **SMALL)).double().eval()
    seen = {}
    for name in ("ln_1", "ln_2"):
        norm = getattr(gpt.h[0], name)
        norm.register_forward_pre_hook(lambda _, x, name=name: seen.update({name: x[0]}))
    gpt(torch.arange(8)[None])
    assert torch.equal(seen["ln_1"], seen["ln_2"])


@pytest.mark.parametrize(
    "changes, words",
    [
        (dict(n_kv_head=3), "n_head = 4 cannot be divided by n_kv_head = 3"),
        (dict(n_embd=30), "n_embd = 30 cannot be divided by n_head = 4"),
    ],
)
def test_a_shape_that_no_model_has_is_refused(changes, words):
    with pytest.raises(UserError, match=words):
        GPTConfig(**SMALL | changes)


# A cache of 8-bit integers


@torch.no_grad()
@pytest.mark.parametrize("pos", [*SCHEMES, "rope | alibi"])
def test_a_cache_of_8_bits_equals_the_test_of_whole_texts(pos):
    gpt = arch("llama", pos)
    idx = text(gpt)
    exact = one_pass(gpt, idx)
    gpt.extend("int8")
    rounded = one_pass(gpt, idx)
    torch.testing.assert_close(token_by_token(gpt, idx), rounded, rtol=0, atol=1e-9)
    changed = (rounded - exact).abs().max()
    assert 1e-5 < changed < 0.05 * exact.std()


@torch.no_grad()
def test_numbers_of_8_bits_are_within_half_a_step_of_what_they_stand_for():
    from zoo.int8 import Int8

    keeper, x = Int8(), torch.randn(2, 3, 5, 16, dtype=torch.float64) * 10.0 ** torch.arange(-7, 9)
    numbers, scale = keeper.pack(x)
    assert numbers.dtype == torch.int8 and numbers.shape == x.shape and scale.shape == (2, 3, 5, 1)
    steps = x.abs().amax(-1, keepdim=True) / 127
    assert ((keeper.unpack(numbers, scale) - x).abs() <= 0.5001 * steps).all()
    assert (keeper.unpack(*keeper.pack(torch.zeros(1, 1, 1, 4))) == 0).all()
    assert numbers.abs().amax(-1).eq(127).all()


@torch.no_grad()
def test_the_cache_is_as_large_as_it_says():
    gpt = arch("llama", "rope").bfloat16()  # 2 layers, 2 heads of keys, 8 columns
    assert gpt.cache_bytes() == 2 * 2 * 2 * 8 * 2
    gpt.extend("int8")
    assert gpt.cache_bytes() == 2 * 2 * 2 * (8 + 2)
    mha = arch("llama", "alibi", n_kv_head=4).bfloat16()
    assert mha.cache_bytes() == 2 * 2 * 4 * 8 * 2
    fox = arch("llama", "fox", n_kv_head=1)
    assert fox.cache_bytes() == 2 * 2 * 8 * 8 + 2 * 4 * 8  # its gates, one for each head


def test_a_model_trains_with_a_cache_of_8_bits():
    gpt = arch("qwen", "rope")
    gpt.extend("int8")
    idx = text(gpt)
    gpt(idx, idx)[1].backward()
    grads = [block.attn.c_attn.weight.grad for block in gpt.h]
    assert all(part.abs().sum() > 0 for grad in grads for part in grad.split([32, 16, 16]))


# Latent attention


def latent(pos: str, turned: int = 4, **changes: object) -> GPT:
    parts = dict(n_kv_head=None, kv_lora_rank=12, qk_rope_head_dim=turned)
    return arch("llama", pos, **parts | changes)


@pytest.mark.parametrize(
    "heads, turned, base, rank", [(4, 4, 10000.0, 10), (3, 6, 500.0, 3), (1, 2, 10000.0, 1)]
)
def test_latent_attention_equals_deepseek_v3(heads, turned, base, rank):
    """A small rank tells the eps of the latent's norm, which is not that of the other norms."""
    transformers = pytest.importorskip("transformers")
    config = transformers.DeepseekV3Config(
        vocab_size=17, hidden_size=32, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=heads, num_key_value_heads=heads, first_k_dense_replace=2,
        kv_lora_rank=rank, q_lora_rank=None, qk_rope_head_dim=turned, qk_nope_head_dim=8,
        v_head_dim=8, max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": base},
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = transformers.DeepseekV3ForCausalLM(config).eval()
    for parameter in theirs.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    pos = f"rope(base={base}, layout=interleaved)"
    shape = dict(n_head=heads, n_embd=32, head_dim=8, n_inner=24, kv_lora_rank=rank)
    ours = latent(pos, turned, **shape).float()
    weights = {
        k.replace("model.", "").replace("layers.", "h."): v for k, v in theirs.state_dict().items()
    }
    names = {
        "wte": "embed_tokens", "ln_f": "norm", "ln_1": "input_layernorm",
        "ln_2": "post_attention_layernorm", "attn.c_query": "self_attn.q_proj",
        "attn.c_latent": "self_attn.kv_a_proj_with_mqa", "attn.kv_norm": "self_attn.kv_a_layernorm",
        "attn.c_up": "self_attn.kv_b_proj", "attn.c_proj": "self_attn.o_proj",
        "mlp.c_proj": "mlp.down_proj",
    }  # fmt: skip
    for name, ours_of in ours.state_dict().items():
        if name.endswith("c_fc.weight"):
            layer = name.removesuffix("c_fc.weight")
            found = torch.cat([weights[f"{layer}{part}_proj.weight"] for part in ("gate", "up")])
        else:
            old = next((n for n in names if name.endswith(f"{n}.weight")), "lm_head")
            found = weights[name.replace(old, names.get(old, old))]
        ours_of.copy_(found)
    torch.manual_seed(1)
    idx = torch.randint(17, (2, 30))
    with torch.no_grad():
        expected = theirs(idx).logits
        assert expected.std() > 0.3
        torch.testing.assert_close(one_pass(ours, idx), expected, rtol=0, atol=2e-5)
        torch.testing.assert_close(token_by_token(ours, idx), expected, rtol=0, atol=2e-5)


@torch.no_grad()
@pytest.mark.parametrize("extend", ["", "int8", "self_extend", "logn"])
@pytest.mark.parametrize("pos", [*SCHEMES, "rope + alibi", "rope | nope"])
@pytest.mark.parametrize("turned", [0, 4])
def test_the_absorbed_products_of_latents_equal_whole_keys_and_values(pos, extend, turned):
    try:
        gpt = latent(pos, turned)
        gpt.extend(extend)
    except UserError as error:
        said = ("even", "that 4 divides", "columns of heads")
        none_to_turn = turned == 0 and any(words in str(error) for words in said)
        fits = "does not extend" in str(error) and extend in ("self_extend", "logn")
        assert "needs whole heads" in str(error) or none_to_turn or fits, error
        return
    idx = text(gpt)
    expected = one_pass(gpt, idx)
    torch.testing.assert_close(token_by_token(gpt, idx), expected, rtol=0, atol=1e-9)


@torch.no_grad()
def test_the_cache_of_latents_has_one_vector_for_each_token():
    gpt = latent("rope").bfloat16()
    assert gpt.cache_bytes() == 2 * (12 + 4) * 2  # layers x numbers x bytes
    gpt.extend("int8")
    assert gpt.cache_bytes() == 2 * (12 + 4 + 2)


@pytest.mark.parametrize(
    "pos, turned, words",
    [
        ("cope", 4, "cope needs whole heads"),
        ("pope", 4, "pope needs whole heads"),
        ("rope", 0, "it needs an even dimension, not 0"),
    ],
)
def test_a_scheme_that_latents_cannot_serve_is_refused(pos, turned, words):
    with pytest.raises(UserError, match=words):
        latent(pos, turned)


def test_latents_do_not_go_with_grouped_keys():
    for other in (dict(n_kv_head=2), dict(qk_norm=True)):
        with pytest.raises(UserError, match="goes neither with n_kv_head nor with qk_norm"):
            GPTConfig(**SMALL, kv_lora_rank=8, **other)
    settings = TrainSettings(qk_rope_head_dim=4)
    with pytest.raises(UserError, match="qk_rope_head_dim needs kv_lora_rank"):
        settings.checked()
