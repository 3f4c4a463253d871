"""Models of transformers and ours: equal logits both ways, refusals, tokenizers, and programs on a folder."""

import itertools
import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

transformers = pytest.importorskip("transformers")

from configurable import UserError  # noqa: E402
from model import GPT, GPTConfig  # noqa: E402

L = 12
SMALL = dict(vocab_size=43, hidden_size=24, num_hidden_layers=2, num_attention_heads=3)
WIDE = SMALL | dict(intermediate_size=37, max_position_embeddings=L, tie_word_embeddings=False)
ROPE = dict(rope_theta=500.0)
CASES = {
    "gpt2": dict(n_positions=3 * L, n_inner=50, layer_norm_epsilon=1e-3),
    "gpt2 untied": dict(n_positions=3 * L, tie_word_embeddings=False, activation_function="gelu"),
    "llama": WIDE | ROPE,
    "llama groups": WIDE | dict(num_key_value_heads=1, tie_word_embeddings=True, head_dim=6),
    "llama biases": WIDE | dict(attention_bias=True, mlp_bias=True, rms_norm_eps=1e-3),
    "llama bias": WIDE | dict(attention_bias=True),
    "qwen2": WIDE | dict(num_attention_heads=4, num_key_value_heads=2) | ROPE,
    "qwen3": WIDE | dict(num_attention_heads=6, num_key_value_heads=2, head_dim=10),
    "qwen3 tied": WIDE | dict(num_key_value_heads=3, head_dim=8, tie_word_embeddings=True),
    "gpt_neox": WIDE | dict(rotary_pct=0.5, rotary_emb_base=500),
    "gpt_neox serial": WIDE | dict(use_parallel_residual=False, hidden_act="gelu_new", rotary_pct=1.0),
    "gpt_neox no bias": WIDE | dict(attention_bias=False, tie_word_embeddings=True),
    "stablelm": WIDE | dict(num_attention_heads=4, num_key_value_heads=2, hidden_size=32, use_qkv_bias=True),
    "bloom": dict(hidden_size=30, n_layer=2, n_head=5, vocab_size=43, seq_length=L),
    "bloom untied": dict(hidden_size=24, n_layer=1, n_head=3, vocab_size=43, tie_word_embeddings=False),
    "mpt": dict(d_model=30, n_heads=5, n_layers=2, vocab_size=43, max_seq_len=3 * L),
}


def theirs_of(kind: str, **options: object) -> transformers.PreTrainedModel:
    """A random model of a family in float64, no bias at 0 and no norm at 1."""
    kind = kind.split()[0]
    if kind == "gpt2":
        options = dict(vocab_size=43, n_embd=24, n_layer=2, n_head=3) | options
    torch.manual_seed(7)
    config = transformers.AutoConfig.for_model(kind, **options)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    return model.double().eval()


def tokens(*shape: int) -> Tensor:
    return torch.randint(43, shape, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def one_pass(ours: GPT, idx: Tensor) -> Tensor:
    return ours(idx, idx)[0]


@torch.no_grad()
def token_by_token(ours: GPT, idx: Tensor) -> Tensor:
    cache = ours.new_cache(*idx.shape)
    parts = [idx[:, :3], *idx[:, 3:].split(1, 1)]
    return torch.cat([ours(part, cache=cache)[0] for part in parts], 1)


@torch.no_grad()
def their_logits(theirs: torch.nn.Module, idx: Tensor) -> Tensor:
    return theirs(idx).logits


def assert_same(ours: GPT, theirs: torch.nn.Module, lengths: tuple[int, ...], atol: float = 1e-4) -> None:
    """Equal logits in one pass and token by token; the longest text comes last, theirs remembers it."""
    ours = ours.double().eval()
    for length in lengths:
        idx = tokens(2, length)
        expected = their_logits(theirs, idx)
        assert expected.std() > 0.1
        for way in (one_pass, token_by_token):
            torch.testing.assert_close(way(ours, idx), expected, rtol=0, atol=atol)


@pytest.mark.parametrize("kind", CASES)
def test_logits_are_those_of_transformers(kind):
    theirs = theirs_of(kind, **CASES[kind])
    ours = GPT.from_huggingface(theirs)
    assert_same(ours, theirs, (L - 5, L, 3 * L), 1e-5)


# rope_scaling

LONG = [1.0, 1.5, 2.0, 4.0]
OLD = {"original_max_position_embeddings": L}
SCALED = {
    "linear": dict(factor=3.0),
    "dynamic": dict(factor=2.0),
    "yarn": dict(factor=4.0, **OLD),
    "yarn set": dict(factor=2.5, beta_fast=4.0, beta_slow=0.5, truncate=False, attention_factor=1.3, **OLD),
    "yarn deepseek": dict(factor=4.0, mscale=0.7, mscale_all_dim=0.5, **OLD),
    "yarn mscale alone": dict(factor=4.0, mscale=0.7, **OLD),
    "yarn without factor": dict(factor=None, **OLD),
    "llama3": dict(factor=4.0, low_freq_factor=0.5, high_freq_factor=2.0, **OLD),
    "longrope": dict(factor=4.0, long_factor=LONG, short_factor=[1.0, 1.1, 1.2, 1.3], **OLD),
    "longrope without factor": dict(long_factor=LONG, short_factor=[1.0] * 4, **OLD),
    "proportional": dict(partial_rotary_factor=0.5, factor=2.0),
    "default": {},
}


def scaled_config(kind: str, family: str = "llama") -> dict:
    """The config of a model with four pairs of turned columns, half of the columns in GPT-NeoX."""
    options = SCALED[kind]
    longest = 4 * L if OLD.items() <= options.items() else L
    said = dict(rope_type=kind.split()[0], rope_theta=200.0)
    width = 24
    if family == "gpt_neox":
        width, said = 48, said | dict(partial_rotary_factor=0.5)
    return WIDE | dict(hidden_size=width, max_position_embeddings=longest, rope_parameters=said | options)


def test_every_type_of_scaling_is_tested():
    known = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS
    assert {kind.split()[0] for kind in SCALED} == {*known, "default"}


@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
@pytest.mark.parametrize("kind", SCALED)
def test_logits_under_each_scaling_are_those_of_transformers(kind, family):
    theirs = theirs_of(family, **scaled_config(kind, family))
    ours = GPT.from_huggingface(theirs)
    assert ours.config.block_size == L and bool(ours.config.extend) == (kind != "default")
    for length in (L - 5, L, 2 * L, 5 * L):
        assert_same(ours, theirs, (length,), 1e-5)
