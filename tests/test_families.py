"""Models of transformers and ours: equal logits both ways, refusals, tokenizers, and programs on a folder."""

import builtins
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiktoken
import torch
from conftest import TEXT
from safetensors.torch import load_file, save_file
from tiktoken_ext.openai_public import r50k_pat_str
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor

transformers = pytest.importorskip("transformers")

import data  # noqa: E402
import evaluate  # noqa: E402
import export  # noqa: E402
import extend  # noqa: E402
import families  # noqa: E402
import sample  # noqa: E402
import train  # noqa: E402
from configurable import TrainSettings, UserError  # noqa: E402
from data.text.prepare import prepare  # noqa: E402
from model import GPT, GPTConfig  # noqa: E402
from runs import start  # noqa: E402
from runs.checkpoint import Run, load_run  # noqa: E402

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
    "gpt_neox": WIDE | dict(rotary_pct=0.5, rotary_emb_base=500.0),
    "gpt_neox serial": WIDE
    | dict(use_parallel_residual=False, hidden_act="gelu_new", rotary_pct=1.0),
    "gpt_neox no bias": WIDE | dict(attention_bias=False, tie_word_embeddings=True),
    "stablelm": WIDE
    | dict(num_attention_heads=4, num_key_value_heads=2, hidden_size=32, use_qkv_bias=True),
    "bloom": dict(hidden_size=30, n_layer=2, n_head=5, vocab_size=43, seq_length=L),
    "bloom untied": dict(
        hidden_size=24, n_layer=1, n_head=3, vocab_size=43, tie_word_embeddings=False
    ),
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


def assert_same(
    ours: GPT, theirs: torch.nn.Module, lengths: tuple[int, ...], atol: float = 5e-5
) -> None:
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
    assert_same(ours, theirs, (L - 5, L, 3 * L))


# rope_scaling

LONG = [1.0, 1.5, 2.0, 4.0]
OLD = {"original_max_position_embeddings": L}
SCALED = {
    "linear": dict(factor=3.0),
    "dynamic": dict(factor=2.0),
    "yarn": dict(factor=4.0, **OLD),
    "yarn set": dict(
        factor=2.5, beta_fast=4.0, beta_slow=0.5, truncate=False, attention_factor=1.3, **OLD
    ),
    "yarn deepseek": dict(factor=4.0, mscale=0.7, mscale_all_dim=0.5, **OLD),
    "yarn mscale alone": dict(factor=4.0, mscale=0.7, **OLD),
    "yarn without factor": dict(factor=None, **OLD),
    "llama3": dict(factor=4.0, low_freq_factor=0.5, high_freq_factor=2.0, **OLD),
    "longrope": dict(factor=4.0, long_factor=LONG, short_factor=[1.0, 1.1, 1.2, 1.3], **OLD),
    "longrope without factor": dict(long_factor=LONG, short_factor=[1.0] * 4, **OLD),
    "proportional": dict(partial_rotary_factor=0.5, factor=2.0),
    "default": {},
}


def scaled_config(kind: str, family: str = "llama", spelling: str = "new") -> dict:
    """The config of a model with four pairs of turned columns, half of the columns in GPT-NeoX."""
    options = SCALED[kind] | dict(rope_type=kind.split()[0])
    config = WIDE | dict(max_position_embeddings=4 * L if OLD.items() <= options.items() else L)
    base, part = ("rotary_emb_base", "rotary_pct") if family == "gpt_neox" else ("rope_theta", "")
    named = {base: 200.0, part: 0.5} if part else {base: 200.0}
    if part:
        config["hidden_size"] = 48
    if spelling == "old":  # of transformers 4, which is read by 5 too
        return config | named | dict(rope_scaling=options)
    said = dict(rope_theta=200.0) | (dict(partial_rotary_factor=0.5) if part else {})
    return config | dict(rope_parameters=said | options)


def test_every_type_of_scaling_is_tested():
    known = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS
    assert {kind.split()[0] for kind in SCALED} >= {*known} - {"default"}


NEW = int(transformers.__version__.split(".")[0]) >= 5


@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
@pytest.mark.parametrize("kind", SCALED)
def test_logits_under_each_scaling_are_those_of_transformers(kind, family, tmp_path):
    """In the spelling of transformers 5, and in that of 4 as a folder of today has it."""
    for spelling in ("old", "new")[: 1 + NEW]:
        if not NEW and kind == "proportional":
            continue
        config = scaled_config(kind, family, spelling)
        theirs = theirs_of(family, **config)
        ours = GPT.from_huggingface(theirs)
        assert ours.config.block_size == L and bool(ours.config.extend) == (kind != "default")
        for length in (L - 5, L, 2 * L, 5 * L):
            assert_same(ours, theirs, (length,))
        saved = saved_as(theirs, tmp_path / spelling, config if spelling == "old" else {})
        again = GPT.from_huggingface(saved).double().eval()
        torch.testing.assert_close(one_pass(again, tokens(1, 30)), one_pass(ours, tokens(1, 30)))


RECIPES = {  # what users add to the config.json of a folder that transformers has saved
    "type": dict(rope_scaling=dict(type="yarn", factor=4.0, **OLD)),
    "theta of its own": dict(rope_scaling=dict(rope_type="yarn", factor=4.0, rope_theta=50.0)),
    "no theta": dict(rope_scaling=dict(rope_type="linear", factor=2.0)),
    "length outside": dict(rope_scaling=dict(rope_type="yarn", factor=4.0, **OLD))
    | {"original_max_position_embeddings": 64 * L},
}


@pytest.mark.skipif(not NEW, reason="transformers 4 reads rope_parameters in no file")
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_rope_scaling_added_to_a_saved_folder_is_read_as_transformers_reads_it(recipe, tmp_path):
    saved = saved_as(theirs_of("qwen2", **CASES["qwen2"]), tmp_path, {})
    path = tmp_path / "config.json"
    said = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(said | RECIPES[recipe]), encoding="utf-8")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(saved).double().eval()
    ours = GPT.from_huggingface(saved).double().eval()
    assert ours.config.extend
    assert_same(ours, theirs, (L - 5, 3 * L))


def saved_as(theirs: transformers.PreTrainedModel, folder: Path, config: dict) -> Path:
    """The model as a folder, whose config.json has these words in the place of those about rope."""
    theirs.save_pretrained(folder)
    path = folder / "config.json"
    said = json.loads(path.read_text(encoding="utf-8"))
    if config:
        said = {key: value for key, value in said.items() if not key.startswith("ro")} | config
    path.write_text(json.dumps(said), encoding="utf-8")
    return folder


# What is refused


@pytest.mark.parametrize(
    "kind, changes, said",
    [
        ("gpt2", dict(activation_function="relu"), "the activation relu; known are gelu_new"),
        ("gpt2", dict(activation_function="silu"), "the activation silu"),
        ("gpt2", dict(scale_attn_weights=False), "scale_attn_weights=False, which is not computed"),
        (
            "gpt2",
            dict(scale_attn_by_inverse_layer_idx=True),
            "scale_attn_by_inverse_layer_idx=True",
        ),
        ("gpt2", dict(n_layer=None), "does not say n_layer"),
        ("llama", dict(hidden_act="gelu"), "the activation gelu; known are silu"),
        ("llama", dict(quantization_config={"bits": 4}), "quantization_config="),
        (
            "llama",
            dict(rope_scaling={"type": "su"}),
            "the rope_type 'su'; known are linear, dynamic",
        ),
        ("llama", dict(partial_rotary_factor=0.5), "partial_rotary_factor=0.5"),
        ("qwen3", dict(use_sliding_window=True, sliding_window=4), "use_sliding_window=True"),
        ("bloom", dict(apply_residual_connection_post_layernorm=True), "apply_residual_connection"),
        ("mpt", dict(attn_config={"clip_qkv": 6.0}), "clip_qkv=6.0"),
        ("stablelm", dict(use_parallel_residual=True), "use_parallel_residual=True"),
        ("stablelm", dict(qk_layernorm=True), "qk_layernorm=True"),
        (
            "falcon",
            {},
            "here is a Hugging Face model of type falcon; known are gpt2, gpt_neox, llama",
        ),
        (None, {}, "here is a Hugging Face model of type None"),
        ("bloom", dict(slow_but_exact=True), "slow_but_exact=True"),
        ("gpt_neox", dict(head_dim=8), "head_dim=8"),
        ("qwen3", dict(layer_types=["full_attention", "sliding_attention"]), "sliding_attention"),
        ("llama", dict(rope_scaling="linear"), "rope_scaling='linear', which is no table"),
        ("llama", dict(rope_scaling=dict(type="linear", factor="2")), "the factor '2', not at"),
        ("llama", dict(rope_scaling=dict(type="linear", factor=0.5)), "the factor 0.5, not at"),
        ("llama", dict(hidden_size=[24]), "no model can have"),
        ("llama", dict(rms_norm_eps="x"), "no model can have: norm_eps is 'x'"),
        ("llama", dict(num_key_value_heads=0), "no model can have"),
        ("llama", dict(head_dim=-4), "no model can have: head_dim is -4"),
        ("llama", dict(tie_word_embeddings="no"), "no model can have: tie_embeddings is 'no'"),
        ("llama", dict(layer_types=1), "here has a config.json that no model can have: TypeError"),
        ("llama", dict(hidden_act=None), "here has a config.json that no model can have: KeyError"),
        ("llama", dict(model_type=["llama"]), "no model can have: TypeError"),
        (
            "llama",
            dict(rope_scaling=dict(type="longrope", factor=4.0, long_factor=[1.0])),
            "here has the rope_type longrope without long_factor and short_factor",
        ),
        (
            "llama",
            dict(rope_scaling=dict(type="yarn", factor=4.0, attention_factor="x")),
            "no model can have: TypeError",
        ),
        (
            "llama",
            dict(rope_scaling=dict(type="linear", factor=10**400)),
            "no model can have: OverflowError",
        ),
    ],
)
def test_what_is_not_computed_here_is_refused_by_name(kind, changes, said):
    """Weights copied into a model that does not compute what theirs does would be silently wrong."""
    shape = CASES.get(kind, WIDE) | dict(vocab_size=43, n_embd=24, n_layer=2, n_head=3)
    good = dict(model_type=kind, **shape)
    if kind in CASES:
        families.settings_of(good, "here")
    with pytest.raises(UserError, match=said):
        families.settings_of(good | changes, "here")


@pytest.mark.parametrize(
    "said",
    [
        dict(rope_type="yarn", factor=1.0, attention_factor=1.5),
        dict(
            rope_type="longrope",
            factor=4.0,
            attention_factor=1.5,
            long_factor=LONG,
            short_factor=LONG,
        ),
    ],
)
def test_an_attention_factor_that_an_extension_cannot_have_is_refused(said):
    with pytest.raises(UserError, match="here has attention_factor=1.5, and .* has 1"):
        families.settings_of(WIDE | dict(model_type="llama", rope_scaling=said | OLD), "here")


def test_a_model_that_is_none_and_one_of_an_unknown_family_are_named_in_a_line():
    falcon = transformers.FalconConfig(
        vocab_size=43, hidden_size=24, num_hidden_layers=1, num_attention_heads=3
    )
    unknown = transformers.FalconForCausalLM(falcon)
    with pytest.raises(UserError, match="^FalconForCausalLM is a Hugging Face model of type falco"):
        GPT.from_huggingface(unknown)
    with pytest.raises(UserError, match="^int is no folder, no name and no model"):
        GPT.from_huggingface(5)


@pytest.mark.parametrize("kind", ["llama", "bloom", "gpt2"])
def test_a_weight_that_is_missing_left_over_or_misshaped_is_named(kind, tmp_path):
    theirs_of(kind, **CASES[kind]).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    name = sorted(
        name for name in weights if name.endswith("norm.weight") or "ln_1.weight" in name
    )[0]
    short = name.split(".", 1)[1]

    def refused(changed: dict[str, Tensor], said: str) -> None:
        save_file(changed, file)
        with pytest.raises(UserError, match=f"{tmp_path} {said}"):
            GPT.from_huggingface(tmp_path)

    refused({n: x for n, x in weights.items() if n != name}, f"lacks the weight .*{short}")
    refused(
        weights | {"more.weight": torch.ones(2)}, f"has weights that no {kind} has: more.weight"
    )
    refused(weights | {name: torch.ones(2)}, rf"has a .*{short} of shape \(2,\), not \(")
    save_file(weights, file)
    GPT.from_huggingface(tmp_path)
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(UserError, match="the weights of .* cannot be read"):
        GPT.from_huggingface(tmp_path)
    file.unlink()
    with pytest.raises(UserError, match="has no model.safetensors"):
        GPT.from_huggingface(tmp_path)


def test_an_output_layer_of_its_own_is_not_dropped_silently(tmp_path):
    theirs_of("llama", **CASES["llama"]).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    said = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(said | dict(tie_word_embeddings=True)), encoding="utf-8")
    with pytest.raises(UserError, match="has an output layer of its own, and says tie_word_embed"):
        GPT.from_huggingface(tmp_path)


def test_older_files_with_buffers_and_without_a_base_are_read(tmp_path):
    """The files of gpt2 and bloom-560m leave `transformer.` out, and have masks among the weights."""
    theirs = theirs_of("gpt2", **CASES["gpt2"])
    theirs.save_pretrained(tmp_path)
    weights = {
        k.removeprefix("transformer."): x
        for k, x in load_file(tmp_path / "model.safetensors").items()
    }
    masks = {
        f"h.{n}.attn.{name}": torch.ones(2) for n in range(2) for name in ("bias", "masked_bias")
    }
    names = sorted(weights)
    (tmp_path / "model.safetensors").unlink()
    parts = [{k: weights[k] for k in names[:9]}, {k: weights[k] for k in names[9:]} | masks]
    for number, part in enumerate(parts):  # and in two files
        save_file(part, tmp_path / f"model-0000{number}-of-00002.safetensors")
    assert_same(GPT.from_huggingface(str(tmp_path)), theirs, (L,))


def test_weights_in_several_files_are_read_from_a_folder_and_by_name(monkeypatch, tmp_path):
    theirs = theirs_of("llama", **CASES["llama"])
    theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert_same(GPT.from_huggingface(tmp_path), theirs, (L,))

    def kept(source: str, file: str) -> str:
        if not (tmp_path / file).is_file():
            raise OSError(f"{source} does not have {file}")
        return str(tmp_path / file)

    monkeypatch.setattr(transformers.utils, "cached_file", kept)
    assert_same(GPT.from_huggingface("some/model"), theirs, (L,))


def test_a_missing_library_or_network_is_a_sentence(monkeypatch, tmp_path):
    def unreachable(*names: str) -> None:
        raise OSError("We couldn't connect\nto anything")

    monkeypatch.setattr(transformers.utils, "cached_file", unreachable)
    said = r"^org/name is no folder, and no model by that name \(We couldn't connect\); a name needs transformers"
    with pytest.raises(UserError, match=said):
        GPT.from_huggingface("org/name")
    theirs_of("llama", **CASES["llama"]).save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").touch()
    monkeypatch.setattr(builtins, "__import__", without("safetensors", "tokenizers"))
    with pytest.raises(UserError, match=r"this needs safetensors \(pip\)"):
        GPT.from_huggingface(tmp_path)
    with pytest.raises(UserError, match=r"this needs tokenizers \(pip\)"):
        data.FileTokenizer(tmp_path / "tokenizer.json")


def without(*missing: str) -> object:
    """An import that does not find these libraries."""
    find = builtins.__import__

    def found(name: str, *rest: object) -> object:
        if name.split(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return find(name, *rest)

    return found


# Export

EXPORTS = {
    "gpt2": [
        dict(pos="learned", bias=True),
        dict(pos="learned", mlp="gelu_exact", n_inner=50, norm_eps=1e-3),
    ],
    "gpt_neox": [
        dict(pos="rope"),
        dict(
            n_embd=32,
            pos="rope(base=500, fraction=0.5)",
            parallel_blocks=True,
            tie_embeddings=False,
            bias=True,
        ),
        dict(extend="pi(factor=2.5)"),
        dict(extend="dynamic_ntk(factor=2)"),
    ],
    "llama": [
        dict(norm="rmsnorm", mlp="swiglu", n_kv_head=1, head_dim=10),
        dict(
            norm="rmsnorm",
            mlp="swiglu",
            bias=True,
            extend="yarn(factor=4, mscale=0.5, beta=8, alpha=0.5)",
        ),
        dict(
            norm="rmsnorm",
            mlp="swiglu",
            extend="yarn(factor=4, mscale=0.7, mscale_all_dim=0.4, truncate=False)",
        ),
        dict(norm="rmsnorm", mlp="swiglu", extend="yarn(factor=4, mscale=0)"),
        dict(norm="rmsnorm", mlp="swiglu", extend="yarn(factor=4, mscale=0, mscale_all_dim=1)"),
        dict(norm="rmsnorm", mlp="swiglu", extend="yarn(factor=4)"),
        dict(norm="rmsnorm", mlp="swiglu", extend="longrope(file='{factors}', factor=4)"),
    ],
    "qwen3": [
        dict(norm="rmsnorm", mlp="swiglu", qk_norm=True, n_kv_head=2, tie_embeddings=False),
        dict(norm="rmsnorm", mlp="swiglu", qk_norm=True, extend="llama3(factor=4, low=0.5)"),
        dict(norm="rmsnorm", mlp="swiglu", qk_norm=True, n_embd=25, n_head=3, head_dim=8),
    ],
    "qwen2": [dict(norm="rmsnorm", mlp="swiglu", n_embd=25, n_head=3, head_dim=8)],
    "stablelm": [dict(pos="rope(fraction=0.5)", mlp="swiglu", n_kv_head=2, n_embd=32)],
    "bloom": [
        dict(pos="alibi", embedding_norm=True, bias=True),
        dict(pos="alibi", embedding_norm=True, n_head=6),
    ],
    "mpt": [dict(pos="alibi", mlp="gelu_exact")],
}
WORDS = "héllo wörld\n\t ✓ 𝔘 <|endoftext|> don't  stop"


@pytest.fixture
def corpora(tmp_path, monkeypatch) -> Path:
    """An empty place for corpora and runs, which is the folder that programs work in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(data, "HERE", tmp_path / "data")
    monkeypatch.setattr(data.load, "__defaults__", (tmp_path / "data",))
    return tmp_path / "data"


def corpus(folder: Path, kind: str = "bytes", **about: object) -> data.Corpus:
    ids = data.tokenizer_of({"tokenizer": kind, **about}).array(
        WORDS * 20 + TEXT.decode() * (kind == "bytes")
    )
    data.write_corpus(
        folder / kind, {"train": [ids], "val": [ids]}, tokenizer=kind, source="x", rule="y", **about
    )
    return data.load(kind, folder)


def a_run(model: GPT, dataset: str) -> Run:
    settings = TrainSettings(dataset=dataset)
    return Run(Path("run"), {"corpus_sha256": {"val": ""}}, settings, {}, model)


def our_model(size: int = 256, **settings: object) -> GPT:
    extension = settings.pop("extend", "")
    shape = dict(block_size=L, vocab_size=size, n_layer=2, n_head=4, n_embd=24) | settings
    torch.manual_seed(3)
    model = GPT(GPTConfig(**shape))
    model.extend(extension)
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    return model.eval()


@pytest.mark.parametrize(
    "kind, number", [(k, n) for k, cases in EXPORTS.items() for n in range(len(cases))]
)
def test_an_export_has_our_logits_and_comes_back_as_it_was(kind, number, corpora, tmp_path):
    corpus(corpora)
    settings = dict(EXPORTS[kind][number])
    if "longrope" in settings.get("extend", ""):
        factors = tmp_path / "factors.json"
        factors.write_text(
            json.dumps({"long_factor": LONG[:3], "short_factor": [1, 1.1, 1.2]}), encoding="utf-8"
        )
        settings["extend"] = settings["extend"].format(factors=factors)
    ours = our_model(**settings)
    config = export.export(a_run(ours, "bytes"), tmp_path / "new/folder")
    assert config["model_type"] == kind
    theirs = (
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "new/folder").float().eval()
    )
    for length in (L - 3, L, *([] if kind in ("gpt2", "mpt") else [3 * L])):
        idx = tokens(2, length)
        torch.testing.assert_close(
            one_pass(ours, idx), their_logits(theirs, idx), rtol=0, atol=1e-4
        )
    again = GPT.from_huggingface(tmp_path / "new/folder").eval()
    kept = again.state_dict()
    assert all(torch.equal(x, kept.pop(name)) for name, x in ours.state_dict().items())
    assert not any(x.any() for x in kept.values())  # biases that ours lack
    torch.testing.assert_close(one_pass(again, idx), one_pass(ours, idx), rtol=0, atol=1e-5)
    assert again.config.block_size == L


@pytest.mark.parametrize(
    "settings, said",
    [
        (
            dict(pos="alibi"),
            "the nearest, bloom, has embedding_norm=True, not False; config/arch has",
        ),
        (
            dict(pos="alibi", mlp="gelu_exact", bias=True),
            "mpt has no h.0.ln_1.bias, which is not 0 here",
        ),
        (dict(pos="fire", block_size=L), "has pos=.*, not fire"),
        (dict(pos="rope + alibi"), r"has pos=rope, not rope \+ alibi"),
        (dict(pos="rope | nope"), "has pos=rope, not rope"),
        (dict(pos="rope(layout=interleaved)"), "not rope\\(layout='interleaved'\\)"),
        (dict(pos="learned(rows=64, resize=linear)"), "has pos=learned, not learned"),
        (dict(norm="rmsnorm"), "has norm=layernorm, not rmsnorm"),
        (dict(qk_norm=True), "has qk_norm=False, not True"),
        (dict(norm="rmsnorm", mlp="swiglu", parallel_blocks=True), "has parallel_blocks=False"),
        (dict(norm="rmsnorm", mlp="swiglu", pos="rope(fraction=0.5)", n_embd=32), "fraction=0.5"),
        (dict(pos="learned", head_dim=10), "the nearest, gpt2, has head_dim=6, not 10"),
        (dict(extend="yarn"), "no rope_scaling is yarn"),
        (dict(extend="yarn(factor=4, ramp=turns)"), "no rope_scaling is yarn"),
        (dict(extend="pi(factor=2) + logn"), "no rope_scaling is pi"),
        (dict(extend="self_extend"), "no rope_scaling is self_extend"),
        (dict(extend="llama3(factor=4, low=0)"), "no rope_scaling is llama3"),
    ],
)
def test_what_no_family_can_say_is_one_sentence(settings, said, corpora, tmp_path):
    corpus(corpora)
    with pytest.raises(UserError, match=said):
        export.export(a_run(our_model(**settings), "bytes"), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_folder_that_holds_something_is_left_alone_and_nothing_half_written_stays(
    corpora, tmp_path, monkeypatch
):
    corpus(corpora)
    run = a_run(our_model(pos="learned"), "bytes")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine").write_text("kept", encoding="utf-8")
    for name in ("full", "full/mine"):
        with pytest.raises(UserError, match="is not empty: name a new folder"):
            export.export(run, tmp_path / name)
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine"]
    before = sorted(tmp_path.iterdir())

    def fail(*about: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "write_tokenizer", fail)
    with pytest.raises(UserError, match="cannot be written .No space left"):
        export.export(run, tmp_path / "new")
    assert sorted(tmp_path.iterdir()) == before
    monkeypatch.undo()
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr(data, "HERE", corpora)
    monkeypatch.setattr(data.load, "__defaults__", (corpora,))
    assert export.export(run, tmp_path / "empty")["model_type"] == "gpt2"


# Tokenizers


def toy_gpt2() -> tiktoken.Encoding:
    """GPT-2's pattern and a handful of merges: needs no file."""
    merged = [b" t", b"he", b"  ", b"ll", b"\n\t", b" the", b"hell", b"hello", b" w", b"\xc3\xa9"]
    ranks = {piece: n for n, piece in enumerate([bytes([i]) for i in range(256)] + merged)}
    special = {"<|endoftext|>": len(ranks)}
    return tiktoken.Encoding(
        "toy", pat_str=r50k_pat_str, mergeable_ranks=ranks, special_tokens=special
    )


@pytest.mark.parametrize("kind", ["bytes", "char", "gpt2"])
def test_an_exported_tokenizer_has_our_ids(kind, corpora, tmp_path, monkeypatch):
    toy = toy_gpt2()
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: toy)
    monkeypatch.setitem(data.VOCABULARIES, "gpt2", toy.n_vocab)
    about = {"characters": "".join(sorted({*WORDS}))} if kind == "char" else {}
    made = corpus(corpora, kind, **about)
    export.export(a_run(our_model(made.vocab_size, pos="learned"), kind), tmp_path / "new")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "new")
    text = WORDS if kind == "bytes" else WORDS.replace("<|endoftext|>", "")
    assert theirs(text).input_ids == made.tokenizer.encode(text)
    assert theirs.decode(made.tokenizer.encode(text)) == text
    assert len(theirs) == made.vocab_size and theirs.eos_token_id == made.tokenizer.end
    again = transformers.AutoConfig.from_pretrained(tmp_path / "new")
    assert again.eos_token_id == made.tokenizer.end and again.bos_token_id is None


def byte_level(texts: list[str]) -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=320, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet
        ),
    )
    made.add_tokens(["   "])
    return made


def sentencepiece(texts: list[str]) -> Tokenizer:
    """As Llama 2's: a space before the text, U+2581 for spaces, bytes for what has no token."""
    trained = Tokenizer(models.BPE())
    spaced = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    trained.normalizer = normalizers.Sequence(spaced)
    trained.train_from_iterator(
        [t.encode("ascii", "ignore").decode() for t in texts], trainers.BpeTrainer(vocab_size=90)
    )
    model = json.loads(trained.to_str())["model"]
    names = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256)), *model["vocab"]]
    vocab = {name: n for n, name in enumerate(names)}
    merges = [tuple(pair) for pair in model["merges"]]
    made = Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    made.normalizer = normalizers.Sequence(spaced)
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    return made


KINDS = {"byte-level": byte_level, "sentencepiece": sentencepiece}
LINES = [f"{n} times {n % 7} is {n * (n % 7)}, as everybody knows.\n" for n in range(120)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_tokenizer_of_a_file_gives_its_ids_and_the_bytes_of_each(kind, tmp_path):
    made = KINDS[kind](LINES)
    made.save(str(tmp_path / "tokenizer.json"))
    tokenizer = data.FileTokenizer(tmp_path / "tokenizer.json", end=0)
    space = " " if kind == "sentencepiece" else ""
    for text in (*LINES[:5], WORDS, "a    b \n\n ", "", "\u2028𝔘\x00é"):
        ids = tokenizer.encode(text)
        expected = made.encode(text.replace("<|endoftext|>", ""), add_special_tokens=False).ids
        assert "<|endoftext|>" in text or ids == expected
        assert 0 not in ids and tokenizer.decode(ids) == (space if text else "") + text
        assert tokenizer.token_bytes()[ids].sum() == len(tokenizer.decode_bytes(ids))
    assert tokenizer.token_bytes()[0] == 0 and len(tokenizer.vocabulary) == made.get_vocab_size()
    assert tokenizer.decode_bytes([999_999]) == b""
    with pytest.raises(UnicodeEncodeError):
        tokenizer.encode("ab\udcff")


def test_a_tokenizer_whose_bytes_cannot_be_told_is_refused(tmp_path):
    Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UserError, match="is a WordLevel without bytes"):
        data.FileTokenizer(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match="cannot be read as a tokenizer"):
        data.FileTokenizer(tmp_path / "tokenizer.json")


# A model as a run


def save_llama(
    folder: Path, kind: str = "byte-level", size: int = 400, **changes: object
) -> transformers.PreTrainedModel:
    """A small Llama with a tokenizer of its own and more embeddings than tokens."""
    theirs = theirs_of("llama", **WIDE | dict(vocab_size=size, eos_token_id=0) | changes).float()
    theirs.save_pretrained(folder)
    KINDS[kind](LINES).save(str(folder / "tokenizer.json"))
    return theirs


@pytest.fixture
def llama(corpora, tmp_path) -> Iterator[Path]:
    """A folder `llama`, with the corpus `mine` of its tokens."""
    save_llama(tmp_path / "llama")
    write_texts(tmp_path / "texts")
    prepare("mine", [str(tmp_path / "texts")], [], str(tmp_path / "llama"), root=corpora)
    yield Path("llama")


def write_texts(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for n in range(30):
        (folder / f"{n}.txt").write_text("".join(LINES[n : n + 40]), encoding="utf-8")


def run_program(program: object, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr("sys.argv", [f"{program.__name__}.py", *words])
    program.main()


def test_a_corpus_keeps_the_tokenizer_of_a_model(llama, corpora, tmp_path):
    made = data.load("mine")
    assert made.meta["tokenizer"] == "file" and made.tokenizer.end == 0
    assert (corpora / "mine/tokenizer.json").read_bytes() == (
        tmp_path / "llama/tokenizer.json"
    ).read_bytes()
    first = made.train[: made.train_starts[1] - 1].tolist()
    assert made.tokenizer.decode(first) in {
        path.read_text() for path in (tmp_path / "texts").iterdir()
    }
    assert made.vocab_size == 321 and made.meta["splits"]["val"]["bytes"] > 1000
    (corpora / "mine/tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(
        UserError, match="is missing or not the file that this corpus was made with"
    ):
        _ = data.load("mine").tokenizer
    with pytest.raises(UserError, match="has no tokenizer.json; give bytes, char, gpt2, a folder"):
        prepare("other", [str(tmp_path / "texts")], [], str(tmp_path / "texts"), root=corpora)


def test_evaluate_and_extend_take_a_model_as_they_take_a_run(llama, monkeypatch, capsys):
    lengths = "--eval_lengths=6,12,64"
    run_program(evaluate, monkeypatch, "llama", "--dataset=mine", lengths, "--dtype=float32")
    said = capsys.readouterr().out
    assert "llama: its run folder is out/llama-mine" in said and "trained at L = 12" in said
    result = json.loads(Path("out/llama-mine/extrapolation.json").read_text(encoding="utf-8"))
    row = next(r for r in result["rows"] if r["protocol"] == "fixed_targets" and r["length"] == 64)
    run, made = load_run("out/llama-mine"), data.load("mine")
    assert run.model.config.vocab_size == 400 and made.vocab_size < 400 and run.state["step"] == 0
    theirs = transformers.AutoModelForCausalLM.from_pretrained("llama").eval()
    places = evaluate.find_places(made, 64)
    texts = torch.tensor([made.val[end - 64 : end + 1].tolist() for end in places.ends])
    logits = their_logits(theirs, texts[:, :-1])[:, -places.scored :]
    wanted = texts[:, 1:][:, -places.scored :]
    nats = torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())
    assert row["nats"] == pytest.approx(float(nats), abs=1e-4)
    run_program(
        extend, monkeypatch, "llama", "pi(factor=2)", "yarn(factor=2)", "--dataset=mine", lengths
    )
    said = capsys.readouterr().out
    assert "yarn(factor=2)" in said and "pi(factor=2)" in said and "none" in said
    assert Path("out/llama-mine/extend.png").exists()
    assert "bytes a token in the cache" not in said
    packed = "--extend=int8 + pi(factor=2)"
    words = ("--dataset=mine", lengths, "--dtype=float32")
    run_program(
        evaluate, monkeypatch, "llama/", packed, *words
    )  # the same folder, as shells write it
    said, cost = (
        capsys.readouterr().out,
        r"nats against pi\(factor=2\), [\d,]+ -> [\d,]+ bytes a token",
    )
    for length in (6, 12, 64):
        assert re.search(rf"int8 \+ pi\(factor=2\) at {length}: [+-]0\.\d+ ± 0\.\d+ {cost}", said)
    words = ("--start=3 times", "--max_new_tokens=3", "--temperature=0", "--dtype=float32")
    run_program(sample, monkeypatch, "llama", "--dataset=mine", *words)
    idx = torch.tensor([made.tokenizer.encode("3 times")])
    expected = theirs.generate(
        idx, max_new_tokens=3, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert capsys.readouterr().out == made.tokenizer.decode(expected[0].tolist()) + "\n"


def test_a_model_without_a_corpus_of_its_tokens_is_a_sentence(
    llama, corpora, monkeypatch, tmp_path
):
    with pytest.raises(UserError, match="name a corpus .*--dataset=NAME, .*--tokenizer=llama$"):
        run_program(evaluate, monkeypatch, "llama")
    save_llama(tmp_path / "other", "sentencepiece")
    prepare("others", [str(tmp_path / "texts")], [], str(tmp_path / "other"), root=corpora)
    with pytest.raises(
        UserError, match="others has another tokenizer than llama: prepare its text"
    ):
        run_program(evaluate, monkeypatch, "llama", "--dataset=others")
    run_program(
        evaluate,
        monkeypatch,
        "llama",
        "--dataset=mine",
        "--eval_lengths=12",
        "--protocols=fixed_targets",
    )
    with pytest.raises(UserError, match="others has another tokenizer or vocabulary than mine"):
        run_program(
            evaluate, monkeypatch, "out/llama-mine", "--dataset=others", "--eval_lengths=12"
        )
    shutil.rmtree("llama")
    save_llama(tmp_path / "llama", size=300)
    with pytest.raises(UserError, match="has a vocabulary of 300, not mine's 321"):
        run_program(train, monkeypatch, "--init_from=llama", "--dataset=mine", "--block_size=12")
    with pytest.raises(UserError, match="out/llama-mine is of llama as it was: rename it"):
        run_program(evaluate, monkeypatch, "llama", "--dataset=mine")


def test_a_model_whose_config_was_changed_since_is_not_tested_as_it_was(llama, monkeypatch):
    words = ("llama", "--dataset=mine", "--eval_lengths=12", "--protocols=fixed_targets")
    run_program(evaluate, monkeypatch, *words)
    path = Path("llama/config.json")
    path.write_text(path.read_text().replace("10000", "50"), encoding="utf-8")
    os.utime(path, (time.time() + 60, time.time() + 60))
    with pytest.raises(UserError, match="out/llama-mine is of llama as it was: rename it"):
        run_program(evaluate, monkeypatch, *words)
    shutil.rmtree("out/llama-mine")
    path.write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match="config.json is missing or not readable JSON: check the"):
        run_program(evaluate, monkeypatch, *words)


def test_a_corpus_of_other_characters_than_the_tokenizer_has_is_refused(corpora, tmp_path):
    (tmp_path / "own.txt").write_text("abcd" * 300 + "\n" * 9, encoding="utf-8")
    (tmp_path / "other.txt").write_text("efgh" * 300 + "\n" * 9, encoding="utf-8")
    for name in ("own", "other"):
        prepare(name, [str(tmp_path / f"{name}.txt")], [], "char", root=corpora)
    prepare("bytes", [str(tmp_path / "own.txt")], [], "bytes", root=corpora)
    for name in ("own", "bytes"):
        (tmp_path / name).mkdir()
        export.write_tokenizer(data.load(name), tmp_path / name)
        start.refuse_other_tokenizer(data.load(name), str(tmp_path / name))
    for corpus, name in (("other", "own"), ("bytes", "own"), ("own", "bytes")):
        with pytest.raises(UserError, match=f"{corpus} has another tokenizer than .*{name}: prep"):
            start.refuse_other_tokenizer(data.load(corpus), str(tmp_path / name))


def test_a_model_with_longrope_is_tested_and_needs_its_folder_no_more(
    corpora, monkeypatch, tmp_path, capsys
):
    scaled = scaled_config("longrope") | dict(max_position_embeddings=4 * L)
    theirs = save_llama(
        tmp_path / "llama", **{k: v for k, v in scaled.items() if k != "vocab_size"}
    )
    write_texts(tmp_path / "texts")
    prepare("mine", [str(tmp_path / "texts")], [], "llama", root=corpora)
    words = ("--dataset=mine", "--eval_lengths=12,24", "--protocols=fixed_targets")
    run_program(evaluate, monkeypatch, "llama", *words)
    shutil.move("llama", "elsewhere")
    run = load_run("out/llama-mine")
    assert run.model.config.extend.startswith("longrope(") and run.settings.block_size == L
    assert_same(run.model, theirs.double(), (L, 3 * L))


def test_a_model_is_trained_on_and_exported(llama, monkeypatch, capsys, tmp_path):
    words = ("--init_from=llama", "--dataset=mine", "--block_size=12", "--eval_lengths=6,12")
    words += ("--compile=False", "--out_dir=run", "--batch_size=4", "--eval_iters=1")
    run_program(train, monkeypatch, *words, "--max_iters=0")
    run, first = load_run("run"), GPT.from_huggingface("llama")
    assert run.state["step"] == 0 and Path("run/extrapolation.json").exists()
    assert all(
        torch.equal(x, first.state_dict()[name]) for name, x in run.model.state_dict().items()
    )
    run_program(train, monkeypatch, *words, "--max_iters=0")  # prints its table again
    run_program(train, monkeypatch, *words, "--max_iters=2")  # and goes on
    trained = load_run("run")
    assert trained.state["step"] == 2 and not torch.equal(
        trained.model.wte.weight, first.wte.weight
    )
    run_program(export, monkeypatch, "run", "theirs")
    assert "theirs: a llama of" in capsys.readouterr().out
    theirs = transformers.AutoModelForCausalLM.from_pretrained("theirs").eval()
    idx = tokens(2, 20)
    torch.testing.assert_close(
        one_pass(trained.model, idx), their_logits(theirs, idx), rtol=0, atol=1e-4
    )
    assert Path("theirs/tokenizer.json").read_bytes() == Path("llama/tokenizer.json").read_bytes()
    ids = transformers.AutoTokenizer.from_pretrained("theirs")(
        LINES[3], add_special_tokens=False
    ).input_ids
    assert ids == data.load("mine").tokenizer.encode(LINES[3])
    with pytest.raises(
        UserError, match="name a run and a new folder, not 1 words: python export.py"
    ):
        run_program(export, monkeypatch, "run")
