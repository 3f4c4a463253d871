"""Hugging Face's models and ours: equal logits both ways, the tokenizer, and what is refused."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import evaluate
import train
from common.errors import UserError
from common.files import sha256
from configurable import EvaluateSettings, GPTConfig
from data import tokenizers
from data.corpus import load_corpus, write_corpus
from measure import protocols
from model import GPT, Cache
from run import huggingface
from run.huggingface import IMPORTS, load_model, save_model
from run.load import load_run, open_model

transformers = pytest.importorskip("transformers")

L = 12
SIZES = dict(vocab_size=43, hidden_size=24, num_hidden_layers=2, num_attention_heads=4)
WIDE = dict(**SIZES, intermediate_size=37, max_position_embeddings=L, tie_word_embeddings=False)
MANY = WIDE | dict(num_hidden_layers=5, pad_token_id=0)
GPT2 = dict(vocab_size=43, n_embd=24, n_layer=2, n_head=3, n_positions=3 * L)
BLOOM = dict(hidden_size=30, n_layer=2, n_head=5, vocab_size=43, seq_length=L)
YARN = dict(rope_type="yarn", factor=4.0, rope_theta=200.0, original_max_position_embeddings=L)


def scaled(**rope):
    """A Llama of 4 L tokens that was extended from L."""
    return WIDE | dict(max_position_embeddings=4 * L, rope_parameters=YARN | rope)


THEIRS = {
    "gpt2": dict(GPT2, n_inner=50, layer_norm_epsilon=1e-3),
    "gpt2 untied": dict(GPT2, tie_word_embeddings=False, activation_function="gelu"),
    "gpt_neox": WIDE | dict(hidden_size=32, rotary_pct=0.5, rotary_emb_base=500.0),
    "gpt_neox serial": WIDE
    | dict(use_parallel_residual=False, hidden_act="gelu_new", rotary_pct=1.0),
    "llama": dict(WIDE, rope_theta=500.0, num_key_value_heads=1, head_dim=8),
    "llama biases": dict(WIDE, attention_bias=True, mlp_bias=True, rms_norm_eps=1e-3),
    "llama tied": dict(WIDE, tie_word_embeddings=True),
    "mistral": dict(WIDE, num_key_value_heads=2, sliding_window=5),
    "qwen2": dict(WIDE, num_key_value_heads=2),
    "qwen2 windows": dict(MANY, num_key_value_heads=2, use_sliding_window=True)
    | dict(sliding_window=4, max_window_layers=2),
    "qwen3": dict(WIDE, num_key_value_heads=2, head_dim=10),
    "smollm3": dict(MANY, num_key_value_heads=2, tie_word_embeddings=True),
    "smollm3 interval": dict(MANY, no_rope_layer_interval=2, attention_bias=True, mlp_bias=True),
    "smollm3 list": dict(MANY, no_rope_layers=[0, 1, 1, 0, 0], head_dim=10),
    "smollm3 yarn": MANY | dict(max_position_embeddings=4 * L, rope_parameters=YARN),
    "cohere2": dict(MANY, num_key_value_heads=2, sliding_window=4, tie_word_embeddings=True)
    | dict(logit_scale=0.25),
    "cohere2 types": dict(
        MANY,
        layer_types=["full_attention"] + ["sliding_attention"] * 4,
        sliding_window=7,
        logit_scale=0.3,
        attention_bias=True,
        rope_parameters=dict(rope_type="default", rope_theta=500.0),
    ),
    "olmo2": dict(WIDE, num_key_value_heads=2, rms_norm_eps=1e-3, attention_bias=True),
    "olmo2 yarn": scaled(),
    "olmo3": dict(MANY, num_key_value_heads=2, sliding_window=4),
    "olmo3 bases": dict(
        MANY,
        layer_types=["full_attention"] + ["sliding_attention"] * 4,
        sliding_window=7,
        rope_theta=300.0,  # of full layers alone
    ),
    "olmo3 yarn": MANY
    | dict(
        num_key_value_heads=2,
        sliding_window=4,
        max_position_embeddings=4 * L,
        rope_scaling={key: YARN[key] for key in YARN if key != "rope_theta"},
    ),
    "mistral without": dict(WIDE, num_key_value_heads=2, sliding_window=None),
    "bloom": BLOOM,
    "bloom untied": dict(BLOOM, tie_word_embeddings=False),
    "llama linear": scaled(rope_type="linear"),
    "llama dynamic": WIDE  # the length before extending is that of max_position_embeddings
    | dict(
        rope_parameters=dict(
            YARN, rope_type="dynamic", factor=2.0, original_max_position_embeddings=5
        )
    ),
    "llama yarn": scaled(),
    "llama yarn set": scaled(beta_fast=4.0, beta_slow=0.5, truncate=False),
    "llama yarn mscale": scaled(mscale=0.707),
    "llama yarn mscale_all_dim": scaled(mscale_all_dim=0.707),
    "llama yarn both": scaled(mscale=0.5, mscale_all_dim=2.0),
    "llama yarn attention": scaled(attention_factor=1.5, mscale=0.5, mscale_all_dim=2.0),
    "llama longrope": scaled(
        rope_type="longrope", short_factor=[1.0, 1.1, 1.2], long_factor=[1.5, 2.0, 4.0]
    ),
    "llama longrope attention": scaled(
        rope_type="longrope",
        short_factor=[1.0] * 3,
        long_factor=[1.5, 2.0, 4.0],
        attention_factor=1.5,
    ),
    "llama fraction": dict(WIDE, partial_rotary_factor=0.5),  # it has no effect
    "llama llama3": scaled(rope_type="llama3", low_freq_factor=0.5, high_freq_factor=2.0),
    "gpt_neox yarn": scaled(partial_rotary_factor=0.5) | dict(hidden_size=48),
}
BLOCK = dict(norm="rmsnorm", mlp="swiglu")
OLMO = BLOCK | dict(norm_place="after", qk_norm="all")
OURS = {  # family -> models of ours that are written as it
    "gpt2": [dict(pos="learned"), dict(pos="learned", bias=True, mlp="gelu_exact", n_inner=50)],
    "gpt_neox": [
        dict(pos="rope"),
        dict(pos="rope(base=500, fraction=0.5)", n_embd=32, parallel_blocks=True, bias=True),
        dict(extend="pi(factor=2.5)"),
        dict(extend="dynamic_ntk(factor=2)"),
    ],
    "llama": [
        dict(**BLOCK, n_kv_head=1, head_dim=10, tie_embeddings=False),
        dict(**BLOCK, bias=True, extend="yarn(factor=4, beta=8, alpha=0.5)"),
        dict(**BLOCK, extend="yarn(factor=4, truncate=False)", pos="rope(base=10000.0)"),
    ],
    "qwen3": [dict(**BLOCK, qk_norm=True, n_kv_head=2, extend="llama3(factor=4, low=0.5)")],
    "olmo2": [
        dict(**OLMO, n_kv_head=2, head_dim=10),
        dict(**OLMO, pos="rope(base=500)", norm_eps=1e-3, extend="yarn(factor=4)"),
    ],
    "bloom": [
        dict(pos="alibi", embedding_norm=True),
        dict(pos="alibi", embedding_norm=True, n_head=6),
    ],
}


def tokens(length):
    return torch.randint(43, (2, length), generator=torch.Generator().manual_seed(1))


def theirs_of(name, **changes):
    """A random model of transformers: no bias is 0, no norm is 1."""
    torch.manual_seed(7)
    config = transformers.AutoConfig.for_model(name.split()[0], **{**THEIRS[name], **changes})
    model = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    return model.float().eval()


def ours_of(vocab_size=43, **settings):
    """A random model of ours."""
    torch.manual_seed(3)
    extend = settings.pop("extend", "")
    sizes = dict(block_size=L, vocab_size=vocab_size, n_layer=2, n_head=4, n_embd=24, pos="rope")
    model = GPT(GPTConfig(**{**sizes, **settings}))
    model.pos.extend(extend)
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    return model.eval()


@torch.no_grad()
def assert_equal_logits(ours, theirs, lengths):
    for length in lengths:
        idx = tokens(length)
        expected = theirs(idx).logits
        assert expected.std() > 0.1
        torch.testing.assert_close(ours(idx, idx)[0], expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", THEIRS)
def test_a_model_of_transformers_has_the_same_logits_here(name, tmp_path):
    theirs = theirs_of(name)
    theirs.save_pretrained(tmp_path)
    ours = load_model(tmp_path)
    assert_equal_logits(ours, theirs, [L - 5, L, 3 * L])
    assert (ours.config.first_length == L) or name.startswith("gpt2") or "linear" in name
    assert not ours.training and huggingface.is_huggingface(str(tmp_path))


PATTERNS = {
    "smollm3": "3 * rope(base=2000000.0) | nope",
    "smollm3 interval": "rope(base=2000000.0) | nope",
    "smollm3 list": "nope | 2 * rope(base=2000000.0) | nope",
    "smollm3 yarn": "3 * rope(base=200.0) | nope",
    "cohere2": "3 * (rope(base=10000.0, layout=interleaved) + window(size=4)) | nope",
    "cohere2 types": "nope | 4 * (rope(base=500.0, layout=interleaved) + window(size=7))",
    "olmo3": "3 * (rope(base=500000.0) + window(size=4)) | rope(base=500000.0)",
    "olmo3 yarn": "3 * (rope(base=500000.0) + window(size=4)) | rope(base=500000.0)",
    "olmo3 bases": "rope(base=300.0) | 4 * (rope(base=500000.0) + window(size=7))",
}


@pytest.mark.parametrize("name", PATTERNS)
@torch.no_grad()
def test_a_pattern_over_layers_is_read_and_decodes_step_by_step(name, tmp_path):
    theirs = theirs_of(name)
    theirs.save_pretrained(tmp_path)
    ours = load_model(tmp_path)
    assert ours.config.pos == PATTERNS[name]
    idx = tokens(3 * L)
    expected = theirs(idx).logits
    cache = Cache(2, 3 * L)
    for part in (idx[:, :5], *idx[:, 5:].split(1, 1)):
        now = expected[:, cache.n : cache.n + part.shape[1]]
        torch.testing.assert_close(ours.logits(part, cache), now, rtol=0, atol=1e-5)
    with pytest.raises(UserError, match="matches this model"):
        save_model(ours, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("family, number", [(f, n) for f in OURS for n in range(len(OURS[f]))])
def test_a_model_of_ours_has_the_same_logits_there_and_comes_back(family, number, tmp_path):
    ours = ours_of(**OURS[family][number])
    assert save_model(ours, tmp_path / "new/model")["model_type"] == family
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "new/model").eval()
    lengths = [L] if family == "gpt2" else [L, 3 * L]
    assert_equal_logits(ours, theirs, lengths)
    again = load_model(tmp_path / "new/model")
    assert again.config.block_size == L
    weights = again.state_dict()
    assert all(torch.equal(x, weights[name]) for name, x in ours.state_dict().items())
    idx = tokens(2 * L if len(lengths) > 1 else L)
    torch.testing.assert_close(again(idx, idx)[0], ours(idx, idx)[0], rtol=0, atol=1e-5)


def test_every_family_is_tested():
    assert {name.split()[0] for name in THEIRS} == IMPORTS.keys()


REFUSED_HERE = [
    (dict(pos="alibi"), "bloom, has embedding_norm=True, not False"),
    (dict(pos="rope + alibi"), "not .*rope.*alibi"),
    (dict(pos="rope(layout=interleaved)"), "layout': 'half.*not .*layout': 'interleaved"),
    (dict(pos="rope(fraction=0.5)", n_embd=32, **BLOCK), "fraction': 1.0.*not .*fraction': 0.5"),
    (dict(pos="fire"), "has pos=.*rope.*not .*fire"),
    (dict(qk_norm=True), "has qk_norm=False, not True"),
    (dict(pos="learned", head_dim=10), "has head_dim=6, not 10"),
    (dict(**BLOCK, qk_norm=True, bias=True), "llama, has qk_norm=False, not True"),
    (dict(mlp="swiglu"), "gpt_neox, has mlp=gelu_exact, not swiglu"),
    (dict(**BLOCK, qk_norm="all"), "olmo2, has norm_place=after, not before"),
    (dict(**BLOCK, norm_place="after"), "llama, has norm_place=before, not after"),
    (dict(**OLMO, bias=True), "llama, has norm_place=before, .*qk_norm=False, not all"),
    (dict(**OLMO, pos="rope + window(size=4)"), "olmo2, has pos=.*not .*window"),
    (dict(**BLOCK, pos="rove"), "llama, has pos=.*rope.*, not .*rove"),
    (dict(extend="yarn"), "has extend=.*none.*, not .*yarn"),
    (dict(extend="none | pi(factor=2)"), "has extend=.*none.*, not .*none.*pi"),
    (dict(extend="pi(factor=2) | none"), "has extend=.*pi.*, not .*pi.*none"),
    (dict(extend="yarn(factor=4, mscale=0.5)"), "mscale': 1.0.*not .*mscale': 0.5"),
    (dict(extend="pi(factor=2) + logn"), "not .*pi.*logn"),
]


@pytest.mark.parametrize("settings, sentence", REFUSED_HERE)
def test_what_no_family_can_be_is_one_sentence_and_nothing_is_written(settings, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence):
        save_model(ours_of(**settings), tmp_path / "new")
    assert not list(tmp_path.iterdir())


REFUSED_THERE = [
    (dict(model_type="falcon"), "of type falcon; known are llama, mistral"),
    (dict(model_type="gpt_oss", num_local_experts=4), "of type gpt_oss; known are llama, mistral"),
    (dict(is_causal=False), "is_causal=false"),
    (dict(slow_but_exact=True, pretraining_tp=2), "llama with slow_but_exact"),
    (dict(model_type="gpt_neox", rotary_pct=0.0), "rotary_pct = 0: nothing would turn"),
    (dict(model_type="smollm3", no_rope_layers=[1]), "cannot be read here"),
    (dict(model_type="qwen3", layer_types=["sliding_attention"] * 2), "no sliding_window"),
    (dict(model_type="mistral", layer_types=["linear_attention"] * 2), "layers of linear_atten"),
    (dict(rope_scaling={"type": "yarn"}), "yarn needs factor, which is missing"),
    (dict(rope_scaling={"type": "linear"}), "linear needs factor, which is missing"),
    (dict(rope_scaling={"type": "llama3", "factor": 2.0}), "needs low_freq_factor"),
    (dict(rope_scaling={"type": "longrope", "factor": 2.0}), "needs short_factor"),
    (dict(model_type="olmo3", rope_parameters=[1]), "cannot be read here"),
    (dict(model_type="gpt2", scale_attn_weights=False), "gpt2 with scale_attn_weights=False"),
    (dict(hidden_act="gelu"), "activation gelu"),
    (dict(hidden_size=None), "n_embd"),
    (dict(quantization_config={"bits": 4}), "quantization_config"),
    (dict(rope_scaling={"type": "su"}), "rope_type su"),
    (dict(rope_scaling={"type": "linear", "factor": 0.5}), "factor"),
    (dict(num_hidden_layers=3), r"lacks the weight model.layers.2.* of shape \(24,\)"),
    (dict(num_hidden_layers=1), "has weights that a llama does not have: model.layers.1"),
    (dict(intermediate_size=36), r"lacks the weight .*gate_proj.* of shape \(36, 24\)"),
]


@pytest.mark.parametrize("changes, sentence", REFUSED_THERE)
def test_a_model_that_ours_is_not_is_refused_by_name(changes, sentence, tmp_path):
    theirs_of("llama").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(UserError, match=f"^{tmp_path}.*{sentence}"):
        load_model(tmp_path)


def test_weights_of_integers_are_refused(tmp_path):
    theirs_of("llama").save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    name = "model.layers.0.mlp.up_proj.weight"
    save_file(weights | {name: weights[name].to(torch.int8)}, path)
    with pytest.raises(UserError, match="up_proj.weight is of torch.int8: quantised"):
        load_model(tmp_path)


@pytest.mark.parametrize("name", ["llama tied", "gpt2", "qwen3"])
def test_weights_that_were_saved_without_the_head_are_read(name, tmp_path):
    theirs = theirs_of(name, tie_word_embeddings=True)
    theirs.save_pretrained(tmp_path)
    theirs.base_model.save_pretrained(tmp_path)  # its weights have no "model." before their names
    assert_equal_logits(load_model(tmp_path), theirs, [L])


def test_a_tied_head_may_be_in_the_file_by_the_name_of_its_family(tmp_path):
    theirs = theirs_of("gpt_neox", tie_word_embeddings=True)
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    wte = weights["gpt_neox.embed_in.weight"]
    save_file(weights | {"embed_out.weight": wte.clone()}, path)
    assert_equal_logits(load_model(tmp_path), theirs, [L])
    save_file(weights | {"embed_out.weight": wte + 1}, path)
    with pytest.raises(UserError, match="another embed_out.weight"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    "name, change",
    [
        ("gpt2", dict(n_embd="hidden_size", n_layer="num_hidden_layers")),
        ("gpt2", dict(n_head="num_attention_heads")),
        ("bloom", dict(n_layer="num_hidden_layers", n_head="num_attention_heads")),
    ],
)
def test_other_names_of_sizes_are_read(name, change, tmp_path):
    theirs = theirs_of(name)
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({change.get(key, key): x for key, x in config.items()}))
    assert_equal_logits(load_model(tmp_path), theirs, [L])


def test_a_model_with_another_config_is_another_model(tmp_path, monkeypatch):
    text = "".join(f"{n} abc, {n * n % 97} times\n" for n in range(400))
    write_tokenizer(tmp_path / "mine", [("a", "b"), ("b", "c")])
    corpus = corpus_of_tokenizer(tmp_path, text)
    monkeypatch.setattr(load_corpus, "__defaults__", (tmp_path,))
    monkeypatch.chdir(tmp_path)
    theirs_of("llama", vocab_size=corpus.vocab_size).save_pretrained("model")
    path = Path("model/config.json")
    config = json.loads(path.read_text())
    settings = EvaluateSettings(dataset="mine", device="cpu", dtype="float32", eval_lengths=(L,))
    found = {}
    for eps in (1e-6, 0.1):
        path.write_text(json.dumps(config | {"rms_norm_eps": eps}))
        run = open_model("model", settings)
        result = evaluate.evaluate_run(run, [""], settings, ("fixed_targets",), only_missing=True)
        found[run.folder] = result.records[-1].nats
    assert len(found) == 2 and len({*found.values()}) == 2


def test_a_longrope_model_is_tested_and_fine_tuned_with_the_factors_of_its_config(
    tmp_path, monkeypatch, capsys
):
    text = "".join(f"{n} abc, {n * n % 97} times\n" for n in range(400))
    write_tokenizer(tmp_path / "mine", [("a", "b"), ("b", "c")])
    corpus = corpus_of_tokenizer(tmp_path, text)
    monkeypatch.setattr(load_corpus, "__defaults__", (tmp_path,))
    monkeypatch.chdir(tmp_path)
    rope = dict(rope_type="longrope", factor=4.0, original_max_position_embeddings=L)
    rope |= dict(rope_theta=1e4, short_factor=[1.0, 1.5, 2.0], long_factor=[2.0, 3.0, 5.0])
    changes = dict(vocab_size=corpus.vocab_size, head_dim=6, rope_parameters=rope)
    theirs_of("llama", max_position_embeddings=4 * L, **changes).save_pretrained("model")
    settings = EvaluateSettings(dataset="mine", device="cpu", dtype="float32", eval_lengths=(L,))
    run = open_model("model", settings)
    evaluate.evaluate_run(run, ["logn", None], settings, ("fixed_targets",))
    assert run.model.pos.extend_text.startswith("longrope(file='config.json'")

    words = [
        "--init_from=model",
        "--dataset=mine",
        "--max_iters=1",
        "--device=cpu",
        "--batch_size=2",
    ]
    words += ["--compile=False", "--out_dir=tuned", "--eval_lengths=12", "--eval_windows=64"]
    for _ in range(2):  # the second time it is finished
        monkeypatch.setattr(sys, "argv", ["train.py", *words, "--dtype=float32"])
        train.main()
    copy = json.loads(Path("tuned/files/config.json").read_text())
    assert copy == json.loads(Path("model/config.json").read_text())
    tuned = load_run("tuned", "cpu")
    assert tuned.model.pos.extend_text == run.model.pos.extend_text
    assert load_run("tuned").config["settings"]["init_from"] == "model"


def test_a_mistral_with_types_of_layers_has_windows_in_those_alone(tmp_path):
    theirs_of("mistral").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    types = {"layer_types": ["full_attention", "sliding_attention"]}
    path.write_text(json.dumps(json.loads(path.read_text()) | types))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert "Ministral" in type(theirs).__name__
    assert_equal_logits(load_model(tmp_path), theirs, [30])


def test_several_files_of_old_names_are_read_and_a_damaged_one_is_refused(tmp_path):
    theirs = theirs_of("gpt2")
    theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) > 1
    for file in files:  # as the first files of gpt2: no prefix, and masks among the weights
        weights = {key.removeprefix("transformer."): x for key, x in load_file(file).items()}
        save_file(weights | {"h.0.attn.bias": torch.ones(2)}, file)
    assert_equal_logits(load_model(tmp_path), theirs, [L])
    files[0].write_bytes(files[0].read_bytes()[:-9])
    with pytest.raises(UserError, match="cannot be read here"):
        load_model(tmp_path)


TEXT = "héllo wörld\n\t ✓ 𝔘 don't  stop the hell"


@pytest.mark.parametrize("kind", ["bytes", "char", "gpt2"])
def test_the_tokenizer_goes_along_and_another_one_is_refused(kind, tmp_path, monkeypatch, toy_gpt2):
    about = {"tokenizer": kind, "source": "x", "rule": "y"}
    if kind == "char":
        about["characters"] = "".join(sorted({*TEXT}))
    ids = tokenizers.tokenizer_of(about).array(TEXT * 20)
    write_corpus(tmp_path / "mine", {"train": [ids], "val": [ids]}, **about)
    corpus = load_corpus("mine", tmp_path)
    ours = ours_of(corpus.vocab_size, pos="learned")
    save_model(ours, tmp_path / "model", corpus)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    ids = corpus.tokenizer.encode(TEXT)
    assert theirs(TEXT).input_ids == ids and theirs.decode(ids) == TEXT
    assert len(theirs) == corpus.vocab_size and theirs.eos_token_id == corpus.tokenizer.end
    huggingface.check_tokenizer(tmp_path / "model", corpus)
    other = {"tokenizer": "char", "characters": "ab", "source": "x", "rule": "y"}
    ids = np.zeros(2000, dtype=int)
    write_corpus(tmp_path / "other", {"train": [ids], "val": [ids]}, **other)
    with pytest.raises(UserError, match="other has another tokenizer than .*model: prepare its"):
        huggingface.check_tokenizer(tmp_path / "model", load_corpus("other", tmp_path))
    monkeypatch.setattr(load_corpus, "__defaults__", (tmp_path,))
    with pytest.raises(UserError, match="other has another tokenizer"):
        open_model(str(tmp_path / "model"), EvaluateSettings(dataset="other", device="cpu"))
    with pytest.raises(UserError, match="model exists: name a new folder"):
        save_model(ours, tmp_path / "model")


def write_tokenizer(folder, merges=(), normalizer=None, first=False, special="<s>"):
    """A byte-level tokenizer of 259 tokens; with `first`, <s> is put before each text."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    names = [*map(tokenizers.signs_of, tokenizers.ByteTokenizer().vocabulary), "ab", "bc"]
    made = Tokenizer(models.BPE({name: n for n, name in enumerate(names)}, list(merges)))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.add_special_tokens([special])
    if normalizer:
        made.normalizer = getattr(normalizers, normalizer)()
    if first:
        made.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 258)]
        )
    folder.mkdir(exist_ok=True)
    made.save(str(folder / "tokenizer.json"))


def corpus_of_tokenizer(root, text):
    """A corpus of a text in the tokens of the tokenizer.json in `root`/mine."""
    about = {"tokenizer": "file", "tokenizer_sha256": sha256(root / "mine/tokenizer.json")}
    ids = tokenizers.tokenizer_of(about, root / "mine").array(text)
    splits = {"train": [ids], "val": [ids]}
    write_corpus(root / "mine", splits, source="x", rule="y", **about)
    return load_corpus("mine", root)


OTHER_CUTS = [
    dict(merges=[("b", "c"), ("a", "b")]),
    dict(normalizer="NFKC"),
    dict(special="<t>"),
    dict(),
]


def test_an_exported_tokenizer_adds_no_token_that_the_model_has_not_seen(tmp_path):
    write_tokenizer(tmp_path / "mine", [("a", "b")], first=True)
    corpus = corpus_of_tokenizer(tmp_path, "abc " * 600)
    corpus.tokenizer.end = 258
    save_model(ours_of(corpus.vocab_size), tmp_path / "model", corpus)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    assert theirs("abc").input_ids == corpus.tokenizer.encode("abc")
    assert theirs.eos_token_id == 258
    assert huggingface.check_tokenizer(tmp_path / "model", corpus) is None


def test_a_tokenizer_of_the_same_vocabulary_that_cuts_otherwise_is_refused(tmp_path, capsys):
    same = dict(merges=[("a", "b"), ("b", "c")])
    write_tokenizer(tmp_path / "mine", **same)
    corpus = corpus_of_tokenizer(tmp_path, "abc " * 600)
    write_tokenizer(tmp_path / "model", **same, first=True)  # what is added is not how it cuts
    assert huggingface.check_tokenizer(tmp_path / "model", corpus) == 258
    write_tokenizer(tmp_path / "model", **same)
    assert huggingface.check_tokenizer(tmp_path / "model", corpus) is None
    settings = tmp_path / "model/tokenizer_config.json"
    settings.write_text('{"add_bos_token": true}')
    huggingface.check_tokenizer(tmp_path / "model", corpus)
    assert "has add_bos_token, which tokenizer.json does not do" in capsys.readouterr().err
    (tmp_path / "none").mkdir()
    assert huggingface.check_tokenizer(tmp_path / "none", corpus) is None
    assert "none has no tokenizer.json to compare with the tokens" in capsys.readouterr().err
    for other in OTHER_CUTS:
        write_tokenizer(tmp_path / "model", **{**same, **other} if other else {})
        with pytest.raises(UserError, match="mine has another tokenizer than .*model"):
            huggingface.check_tokenizer(tmp_path / "model", corpus)


def test_a_model_whose_tokenizer_adds_a_first_token_is_measured_with_it(tmp_path, monkeypatch):
    text = "".join(f"{n} abc, {n * n % 97} times\n" for n in range(400))
    write_tokenizer(tmp_path / "mine", [("a", "b"), ("b", "c")], first=True)
    corpus = corpus_of_tokenizer(tmp_path, text)
    folder = tmp_path / "model"
    torch.manual_seed(0)
    sizes = WIDE | dict(vocab_size=corpus.vocab_size, initializer_range=0.5)
    config = transformers.LlamaConfig(**sizes)
    theirs = transformers.LlamaForCausalLM(config).eval()
    theirs.save_pretrained(folder)
    write_tokenizer(folder, [("a", "b"), ("b", "c")], first=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    first, *rest = tokenizer("abc").input_ids
    assert first == 258 and rest == corpus.tokenizer.encode("abc")

    monkeypatch.setattr(load_corpus, "__defaults__", (tmp_path,))
    monkeypatch.chdir(tmp_path)
    settings = EvaluateSettings(dataset="mine", device="cpu", dtype="float32", eval_lengths=(L,))
    nats = {}
    for asked in (True, False):
        run = open_model(str(folder), settings, first_token=asked)
        assert run.first_token == (first if asked else None)
        result = evaluate.evaluate_run(run, [""], settings, ("fixed_targets",))
        row = result.records[0]
        assert row.first_token == run.first_token
        assert ("begins with the tokenizer's first token, 258" in row.note) == asked
        nats[asked] = row.nats, run.digest, run.folder
        losses = []
        for window in protocols.fixed_targets(protocols.find_places(corpus), L):
            for end in window.ends:
                x = torch.tensor(corpus.val[end - L : end + 1].astype(int))
                idx = torch.cat([torch.tensor([first]), x[1:-1]]) if asked else x[:-1]
                with torch.no_grad():
                    logits = theirs(idx[None]).logits[0, -window.n_scored :].log_softmax(-1)
                losses += (-logits.gather(1, x[-window.n_scored :, None])).ravel().tolist()
        assert row.nats == pytest.approx(np.mean(losses), abs=1e-4)
    assert len({*nats.values()}) == 2 and nats[True][1:] != nats[False][1:]


def test_weights_are_those_that_the_index_names_or_the_one_file(tmp_path):
    theirs = theirs_of("llama")
    theirs.save_pretrained(tmp_path / "one")
    theirs.save_pretrained(tmp_path / "many", max_shard_size="20KB")
    for folder in ("one", "many"):  # left from another model, and by another program
        weights = load_file(tmp_path / "one/model.safetensors")
        other = {key: x + 1 for key, x in weights.items()}
        for name in ("model-00009-of-00009", "consolidated", "zz"):
            save_file(other, tmp_path / folder / f"{name}.safetensors")
        assert_equal_logits(load_model(tmp_path / folder), theirs, [L])
    index = tmp_path / "many/model.safetensors.index.json"
    (tmp_path / "one" / index.name).write_bytes(index.read_bytes())
    with pytest.raises(UserError, match="has both model.safetensors and model.safetensors.index"):
        load_model(tmp_path / "one")
    (tmp_path / "one" / index.name).unlink()
    (tmp_path / "one/model.safetensors").unlink()
    with pytest.raises(UserError, match="has no model.safetensors, which holds its weights"):
        load_model(tmp_path / "one")
    next((tmp_path / "many").glob("model-00002*")).unlink()
    with pytest.raises(UserError, match="has no model-00002"):
        load_model(tmp_path / "many")


def test_a_name_is_downloaded(monkeypatch, tmp_path):
    theirs = theirs_of("qwen3")
    theirs.save_pretrained(tmp_path)
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **how: str(tmp_path))
    assert huggingface.is_huggingface("some/model") and not huggingface.is_huggingface("out/model")
    assert_equal_logits(load_model("some/model"), theirs, [L])

    def unreachable(name, **how):
        raise OSError("We couldn't connect\nto anything")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    with pytest.raises(UserError, match="some/model is neither a folder nor a model .We couldn't"):
        load_model("some/model")


@pytest.mark.parametrize(
    "settings, first",
    [
        (dict(**BLOCK), 4 * L),  # rope has no place for the first length
        (dict(**BLOCK, extend="yarn(factor=4)"), L),
        (dict(**BLOCK, extend="yarn(factor=4, attention_factor=1.25)"), L),
        (dict(**BLOCK, extend="llama3(factor=4)"), L),
        (dict(**BLOCK, extend="yarn(factor=4) + pose(target=4.0)"), L),  # drawn in training alone
        (dict(**BLOCK, extend="pi(factor=4)"), 4 * L),
        (dict(pos="alibi", embedding_norm=True), 4 * L),
    ],
)
def test_a_fine_tuned_model_takes_along_how_long_it_was_trained(settings, first, tmp_path):
    ours = ours_of(**settings)
    ours.config = replace(ours.config, block_size=4 * L)
    config = save_model(ours, tmp_path / "model")
    length = config.get("max_position_embeddings") or config["seq_length"]
    again = load_model(tmp_path / "model")
    assert again.config.block_size == length == 4 * L
    assert again.config.first_length == first
    idx = tokens(4 * L)
    torch.testing.assert_close(again(idx, idx)[0], ours(idx, idx)[0], rtol=0, atol=1e-5)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    assert_equal_logits(ours, theirs, [L, 4 * L])


def test_a_table_that_was_fine_tuned_on_shorter_texts_is_exported_whole(tmp_path):
    ours = ours_of(pos="learned")
    ours.config = replace(ours.config, block_size=L // 2)
    assert save_model(ours, tmp_path / "model")["n_positions"] == L
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    assert_equal_logits(ours, theirs, [L])


def test_dynamic_ntk_has_one_length_only(tmp_path):
    ours = ours_of(**BLOCK, extend="dynamic_ntk(factor=2)")
    ours.config = replace(ours.config, block_size=4 * L)
    with pytest.raises(UserError, match="first_length=48, not 12"):
        save_model(ours, tmp_path / "model")


def test_an_imported_model_is_tested_at_the_longest_length_it_was_trained_at(tmp_path, monkeypatch):
    about = {"tokenizer": "bytes", "source": "x", "rule": "y"}
    ids = np.arange(8000) % 43
    write_corpus(tmp_path / "mine", {"train": [ids], "val": [ids]}, **about)
    monkeypatch.setattr(load_corpus, "__defaults__", (tmp_path,))
    ours = ours_of(256, **BLOCK, extend="yarn(factor=4)")
    ours.config = replace(ours.config, block_size=4 * L)
    save_model(ours, tmp_path / "model")
    run = open_model(str(tmp_path / "model"), EvaluateSettings(dataset="mine", device="cpu"))
    assert run.settings.block_size == 4 * L and run.model.config.first_length == L
    assert run.config["train_lengths"] == [L, 4 * L]


def test_a_key_that_nothing_reads_is_said_when_a_model_is_imported(tmp_path, capsys):
    theirs = theirs_of("llama fraction")
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rope_thetha": 1e6}))
    assert_equal_logits(load_model(tmp_path), theirs, [3 * L])
    assert "nothing reads rope_thetha: did you mean rope_theta?" in capsys.readouterr().err
    path.write_text(json.dumps(json.loads(path.read_text()) | {"auto_map": {"AutoModel": "a.B"}}))
    load_model(tmp_path)
    assert "its own code (auto_map) is not run: it is read as any llama" in capsys.readouterr().err
