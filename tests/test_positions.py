"""What positions a config.json describes, against the models of transformers themselves.

A tiny random model of each type is run once. Its own function that applies rotation is watched,
with what goes in and what comes out, and so is the mask that its attention gets: what our
expressions of each layer turn and show must be the same. The short sweep is in the suite, the long
one, over all types, is run by `make test-slow`.
"""

import functools
import json
import sys

import pytest
import torch

from common.errors import UserError
from posenc import Shape, rotate
from run.positions import FAMILIES, TABLE, Layer, Positions
from scheme import Scheme

transformers = pytest.importorskip("transformers")
from transformers import AttentionInterface, AttentionMaskInterface, AutoModel  # noqa: E402
from transformers.configuration_utils import (  # noqa: E402
    _LEGACY_LAYER_TYPE_REMAP,
    ALLOWED_ATTN_LAYER_TYPES,
)
from transformers.masking_utils import eager_mask  # noqa: E402
from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: E402

T = 40  # tokens of the text
L = 32  # max_position_embeddings
SMALL = dict(
    vocab_size=64,
    hidden_size=64,
    intermediate_size=32,
    moe_intermediate_size=16,
    num_hidden_layers=6,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    global_head_dim=32,
    num_experts=4,
    num_local_experts=4,
    n_routed_experts=4,
    num_experts_per_tok=2,
    n_group=1,
    topk_group=1,
    kv_lora_rank=16,
    q_lora_rank=16,
    qk_rope_head_dim=8,
    qk_nope_head_dim=8,
    v_head_dim=16,
    rotary_dim=8,
    sliding_window=5,
    attention_chunk_size=6,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    max_position_embeddings=L,
    vocab_size_per_layer_input=64,
    hidden_size_per_layer_input=8,
)
# what a tiny model of a type needs besides, or must not be given
CHANGES = {
    "gemma3n_text": dict(num_kv_shared_layers=0),
    "granitemoehybrid": dict(
        position_embedding_type="rope", layer_types=["mamba", "attention"] * 3
    ),
    "jetmoe": dict(head_dim=None, kv_channels=16),
    "lfm2_moe": dict(layer_types=["conv", "full_attention"] * 3),
    "mimo_v2_flash": dict(head_dim=24),
    "olmo_hybrid": dict(layer_types=["linear_attention", "full_attention"] * 3),
    "qwen2": dict(use_sliding_window=True, max_window_layers=4),
    "qwen3": dict(use_sliding_window=True, max_window_layers=2),
    "recurrent_gemma": dict(sliding_window=None, attention_window_size=5),
    "zaya": dict(num_experts_per_tok=1),
}
# types that no tiny model is watched of, with the reason
LEFT_OUT = {
    "bloom": "alibi is added inside its own attention: tests/test_huggingface.py compares logits",
    "codegen": "it has sines and cosines in a buffer of its own",
    "falcon": "its attention is not one that can be watched",
    "gpt2": "no rotation: tests/test_huggingface.py compares logits",
    "gpt_bigcode": "no rotation",
    "gpt_neox_japanese": "its attention is not one that can be watched",
    "gptj": "its attention is not one that can be watched",
    "jamba": "which of its layers attend is not read from its own keys",
    "kimi_linear": "which of its layers attend is not read from its own keys",
    "nemotron_h": "which of its layers attend is not read from its own keys",
    "mpt": "no rotation: tests/test_schemes.py compares the slopes",
    "mt5": "no rotation: tests/test_schemes.py compares the buckets",
    "opt": "no rotation",
    "t5": "no rotation: tests/test_schemes.py compares the buckets",
    "umt5": "no rotation",
}
SHORT = ["llama", "cohere2", "gemma3_text", "gemma4_text", "deepseek_v3", "gpt_oss", "llama4_text"]
WATCHED: dict = {}


def probe(module, query, key, value, attention_mask=None, scaling=None, **_):
    """Attention in plain torch, which keeps the mask and the scale of each layer."""
    group = query.shape[1] // key.shape[1]
    key = key.repeat_interleave(group, 1)
    scores = query @ key.mT * (scaling or query.shape[-1] ** -0.5)
    visible = torch.ones(T, T, dtype=torch.bool).tril()
    if attention_mask is not None:
        scores = scores + attention_mask
        visible = attention_mask[0, 0] > -1e9
    WATCHED["visible"].setdefault(WATCHED["layer"], visible)
    WATCHED["scaling"] = scaling
    y = scores.softmax(-1) @ value.repeat_interleave(group, 1)
    return y.transpose(1, 2).contiguous(), scores


AttentionInterface.register("probe", probe)
AttentionMaskInterface.register("probe", eager_mask)


def watched(function):
    """The function, which also keeps its first tensor before and after."""

    @functools.wraps(function)
    def watching(*args, **kwargs):
        result = function(*args, **kwargs)
        before = args[0] if args else next(iter(kwargs.values()))
        after = result[0] if isinstance(result, tuple) else result
        if before.dim() == 4 and before.shape == after.shape:
            before, after = before.detach().clone(), after.detach().clone()
            if before.shape[2] != T:  # (B, T, H, D)
                before, after = before.transpose(1, 2), after.transpose(1, 2)
            WATCHED["turned"].setdefault(WATCHED["layer"], (before, after))
        return result

    return watching


def settings_of(kind, **changes):
    """The settings of a tiny model, as one might write them into a config.json."""
    cls = CONFIG_MAPPING[kind]
    names = {*cls.attribute_map, *dir(cls), *getattr(cls, "__dataclass_fields__", {})}
    settings = {name: value for name, value in SMALL.items() if name in names}
    if "qk_rope_head_dim" in settings:
        settings.pop("head_dim", None)
    settings |= CHANGES.get(kind, {}) | changes
    return {name: value for name, value in settings.items() if value is not None}


@torch.no_grad()
def run_watched(config, monkeypatch):
    """What the model of a config turned and saw: {layer: (before, after)}, {layer: (T, T) bool}."""
    torch.manual_seed(0)
    model = AutoModel.from_config(config, attn_implementation="probe").eval()
    modules = {sys.modules[type(module).__module__] for module in model.modules()}
    for module in modules:
        if module.__name__.startswith("transformers.models"):
            for name, function in list(vars(module).items()):
                if name.startswith("apply_rot") and callable(function):
                    monkeypatch.setattr(module, name, watched(function))
    n_layer = config.num_hidden_layers
    lists = [x for x in model.modules() if isinstance(x, torch.nn.ModuleList) and len(x) == n_layer]
    for number, layer in enumerate(lists[0]):
        layer.register_forward_pre_hook(lambda *_, number=number: WATCHED.update(layer=number))
    WATCHED.clear()
    WATCHED.update(layer=None, turned={}, visible={}, scaling=None)
    generator = torch.Generator().manual_seed(0)
    model(torch.randint(3, 60, (1, T), generator=generator), use_cache=False)
    return WATCHED["turned"], WATCHED["visible"]


def assert_same(found, turned, visible, folder=None):
    """Check each layer of what was read against what the model did."""
    assert len(found.layers) >= 4
    for number, layer in enumerate(found.layers):
        if not layer.pos:
            assert number not in visible, (number, layer)
            continue
        shape = Shape(
            found.n_head, layer.width, 64, found.first_length, folder=folder, latent=found.is_latent
        )
        scheme = Scheme(layer.pos, shape, 1)
        scheme.extend(layer.extend, folder)
        assert bool(scheme.rotary) == (number in turned), (number, layer)
        if scheme.rotary:
            before, after = turned[number]
            inv_freq, factor = scheme.rotary[0].frequencies(T, scheme.maps)
            ours = factor * rotate(before, torch.arange(T), inv_freq, scheme.rotary[0].layout)
            if (ours - after).abs().max() > 1e-4:  # nanochat turns the other way: equal scores
                back = factor * rotate(before, -torch.arange(T), inv_freq)
                ours = back if torch.allclose(back, after, atol=1e-5) else ours
            if (ours - after).abs().max() > 1e-4:  # DeepSeek also sorts the columns
                n = 2 * len(inv_freq)
                ours = torch.cat((ours[..., 0:n:2], ours[..., 1:n:2], ours[..., n:]), -1)
            torch.testing.assert_close(ours, after, rtol=0, atol=1e-5)
        index = torch.arange(T)
        shown = (index[:, None] >= index).clone()
        for piece in scheme.pieces.values():
            if piece.mask:
                shown &= piece.mask(index[:, None], index[None])
        assert torch.equal(shown, visible[number]), (number, layer)


def check_type(kind, monkeypatch, tmp_path, **changes):
    """Check a tiny model of a type, read from what was typed and from what transformers saves."""
    settings = settings_of(kind, **changes)
    config = CONFIG_MAPPING[kind](**json.loads(json.dumps(settings)))
    turned, visible = run_watched(config, monkeypatch)
    (tmp_path / "config.json").write_text(json.dumps(settings))
    typed = settings | {"model_type": kind}
    knows_types = "?" not in FAMILIES[kind]["pattern"] or "layer_types" in settings
    if knows_types or "use_sliding_window" in FAMILIES[kind]["keys"]:
        found = Positions(typed)
        assert_same(found, turned, visible, tmp_path)
    else:
        with pytest.raises(UserError, match="layer_types is missing, and the rule that a"):
            Positions(typed)
        found = None
    config.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    again = Positions(saved)
    assert_same(again, turned, visible, tmp_path)
    return found, again


@pytest.mark.parametrize("kind", SHORT)
def test_layers_turn_and_show_what_is_read(kind, monkeypatch, tmp_path):
    found, again = check_type(kind, monkeypatch, tmp_path)
    assert not found.ignored and not again.ignored


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(FAMILIES.keys() - LEFT_OUT.keys() - set(SHORT)))
def test_every_type_turns_and_shows_what_is_read(kind, monkeypatch, tmp_path):
    found, again = check_type(kind, monkeypatch, tmp_path)
    # the class has the key, and turns whole heads whatever it says
    ignored = ["rotary_dim"] if kind == "minimax_m3_vl_text" else []
    assert again.ignored == ignored
    assert found is None or found.ignored == ignored


SCALED = {
    "linear": dict(rope_type="linear", factor=4.0),
    "dynamic": dict(rope_type="dynamic", factor=2.0),
    "yarn": dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16),
    "yarn set": dict(rope_type="yarn", factor=4.0, beta_fast=4.0, truncate=False),
    "yarn mscale": dict(rope_type="yarn", factor=40.0, mscale=0.707),
    "yarn both": dict(rope_type="yarn", factor=40.0, mscale=0.707, mscale_all_dim=1.0),
    "yarn attention": dict(rope_type="yarn", factor=4.0, attention_factor=1.25),
    "yarn null": dict(rope_type="yarn", factor=4.0, beta_fast=None),
    "llama3": dict(
        rope_type="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=24,
    ),
}
FACTORS = dict(short_factor=[1.0] * 8, long_factor=[1.5 + m for m in range(8)])
SCALED["longrope"] = dict(rope_type="longrope", original_max_position_embeddings=16, **FACTORS)
SCALED["longrope factor"] = SCALED["longrope"] | dict(factor=3.0)
SCALED["longrope attention"] = SCALED["longrope"] | dict(attention_factor=1.5)


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("name", SCALED)
def test_scaling_is_read_as_by_transformers(name, key, monkeypatch, tmp_path):
    scaling = SCALED[name] | ({"rope_theta": 500.0} if key == "rope_parameters" else {})
    check_type("llama", monkeypatch, tmp_path, **{key: scaling})


def test_empty_rope_parameters_are_the_plain_rotation(monkeypatch, tmp_path):
    found, _ = check_type("gpt_oss", monkeypatch, tmp_path, rope_parameters={})
    assert found.layers[1] == Layer("rope(base=150000.0)", "", 16)


@pytest.mark.parametrize("mscale_all_dim, root", [(1.0, 1.3688879), (0.707, 1.2608038)])
def test_latent_attention_has_deepseeks_factor_of_all_scores(
    mscale_all_dim, root, monkeypatch, tmp_path
):
    scaling = dict(rope_type="yarn", factor=40.0, mscale=1.0, mscale_all_dim=mscale_all_dim)
    found, _ = check_type("deepseek_v3", monkeypatch, tmp_path, rope_scaling=scaling)
    theirs = WATCHED["scaling"] * (SMALL["qk_nope_head_dim"] + SMALL["qk_rope_head_dim"]) ** 0.5
    layer = found.layers[0]
    assert found.is_latent and layer.width == 8
    scheme = Scheme(layer.pos, Shape(4, 8, 64, found.first_length, latent=True), 1)
    scheme.extend(layer.extend)
    (yarn,) = scheme.extensions.values()
    ours = yarn.temperature(torch.arange(T).double())
    torch.testing.assert_close(ours, torch.full((T,), theirs, dtype=torch.float64))
    assert theirs == pytest.approx(root**2, rel=1e-6)  # 1.8739, 1.5896
    whole_heads = Scheme(layer.pos, Shape(4, 8, 64, found.first_length), 1)
    whole_heads.extend(layer.extend)
    (yarn,) = whole_heads.extensions.values()
    assert yarn.temperature is None
    with pytest.raises(UserError, match="needs a fixed factor"):
        scheme.extend("yarn(mscale_all_dim=1.0)")


LLAMA = dict(
    model_type="llama",
    num_hidden_layers=4,
    num_attention_heads=4,
    hidden_size=64,
    max_position_embeddings=L,
)
ROPE = dict(rope_type="default", rope_theta=500.0)
YARN = dict(rope_type="yarn", factor=4.0)
IGNORED = [
    (dict(rope_thetha=500.0), ["rope_thetha: did you mean rope_theta?"]),
    (dict(partial_rotary_factor=0.5), ["partial_rotary_factor"]),
    (dict(rotary_pct=0.5), ["rotary_pct"]),
    (dict(sliding_window=4, max_window_layers=2), ["sliding_window", "max_window_layers"]),
    (dict(sliding_window=None, use_sliding_window=False), []),
    (dict(rope_theta=1e6, rope_parameters=ROPE), ["rope_theta=1000000.0 at the top level: that"]),
    (dict(rope_theta=500.0, rope_parameters=ROPE), []),
    (dict(rope_scaling=YARN, rope_parameters=ROPE), ["rope_parameters: rope_scaling replaces it"]),
    (dict(rope_scaling=YARN | dict(mscale=0.7)), ["mscale of the rope parameters"]),
    (dict(rope_scaling=YARN | dict(bata_fast=8)), ["bata_fast of the rope parameters"]),
    (dict(rope_scaling=dict(type="linear", factor=2.0)), []),
    (
        dict(rope_scaling=dict(type="dynamic", factor=2.0, original_max_position_embeddings=8)),
        ["original_max_position_embeddings of the rope parameters, with rope_type dynamic"],
    ),
    (
        dict(
            original_max_position_embeddings=16,
            rope_scaling=YARN | dict(original_max_position_embeddings=8),
        ),
        ["original_max_position_embeddings of the rope parameters: the top level's counts"],
    ),
    (dict(model_type="gpt_neox", rope_theta=5e4), ["rope_theta"]),
    (
        dict(model_type="gemma3_text", rope_parameters=dict(rope_type="linear", factor=8.0)),
        ["rope_type of rope_parameters, which is by", "factor of rope_parameters"],
    ),
    (dict(model_type="gpt_neox", rotary_emb_base=5e4, rotary_pct=0.5), []),
    (
        dict(
            model_type="gemma3", rope_theta=1e6, text_config=LLAMA | dict(model_type="gemma3_text")
        ),
        ["rope_theta beside text_config"],
    ),
]


@pytest.mark.parametrize("changes, ignored", IGNORED)
def test_keys_without_effect_are_named(changes, ignored):
    found = Positions(LLAMA | changes)
    assert len(found.ignored) == len(ignored), found.ignored
    for key, start in zip(found.ignored, ignored, strict=True):
        assert key.startswith(start)


@pytest.mark.parametrize(
    "changes, ignored", [case for case in IGNORED if "text_config" not in case[0]]
)
def test_what_is_called_ignored_has_no_effect_there(changes, ignored, monkeypatch, tmp_path):
    """The model of transformers is the same without it; where another value wins, with that."""
    settings = {**settings_of(changes.get("model_type", "llama")), **changes}
    kind = settings.pop("model_type", "llama")
    config = CONFIG_MAPPING[kind](**json.loads(json.dumps(settings)))
    turned, visible = run_watched(config, monkeypatch)
    assert_same(Positions(settings | {"model_type": kind}), turned, visible)


REFUSED = [
    (dict(rope_scaling=dict(rope_type="yarn")), "needs factor, which is missing"),
    (dict(rope_scaling=dict(rope_type="llama3", factor=2.0)), "needs low_freq_factor"),
    (dict(rope_scaling=dict(rope_type="su")), "rope_type su is none of default, linear"),
    (dict(model_type="moshi"), "a moshi cannot be read here: its window acts with a cache alone"),
    (dict(model_type="new"), "type new is unknown, without any of rope_parameters"),
    (dict(model_type="new", rope_theta=1e4, hidden_size=None), "none of the keys hidden_size"),
    (dict(model_type="qwen3", layer_types=["full_attention"]), "1 types for 4 layers"),
    (
        dict(model_type="qwen3", layer_types=["far_attention"] * 4),
        "'far_attention', which transformers",
    ),
    (dict(model_type="smollm3", no_rope_layers=[1, 0]), "no_rope_layers has 2 entries for 4"),
]


@pytest.mark.parametrize("changes, sentence", REFUSED)
def test_what_is_refused(changes, sentence):
    with pytest.raises(UserError, match=sentence):
        Positions(LLAMA | changes)


def test_every_type_of_layer_that_transformers_knows_is_known():
    qwen3 = LLAMA | dict(model_type="qwen3", use_sliding_window=True, sliding_window=4)
    for name in (*ALLOWED_ATTN_LAYER_TYPES, *_LEGACY_LAYER_TYPE_REMAP):
        found = Positions(qwen3 | dict(layer_types=[name] * 4))
        assert found.types == [_LEGACY_LAYER_TYPE_REMAP.get(name, name)] * 4


def test_an_unknown_type_is_read_by_the_common_rules_and_says_so():
    found = Positions(LLAMA | dict(model_type="new", rope_theta=500.0))
    assert found.layers[0].pos == "rope(base=500.0)"
    assert "type new is unknown" in found.notes[0]


def test_sizes_that_are_left_out_are_those_of_the_class():
    sparse = dict(model_type="gemma3_text", num_hidden_layers=6, hidden_size=2560)
    found = Positions(dict(model_type="gemma3", text_config=sparse))
    config = CONFIG_MAPPING["gemma3_text"](**sparse)
    assert (found.n_head, found.length) == (8, 131072)
    assert found.n_head == config.num_attention_heads and found.layers[0].width == config.head_dim
    assert found.length == config.max_position_embeddings and "is missing" in found.notes[0]
    # as in models of text and pictures, whose heads are those of the class
    few = dict(model_type="llama", num_key_value_heads=8)
    found = Positions(dict(model_type="llava", text_config=few))
    config = CONFIG_MAPPING["llava"](text_config=few).text_config
    assert found.n_head == config.num_attention_heads and found.layers[0].width == config.head_dim


def test_hunyuans_dynamic_has_a_fixed_factor(monkeypatch, tmp_path):
    scaling = dict(rope_type="dynamic", factor=1.0, alpha=50.0)
    found, _ = check_type("hunyuan_v1_dense", monkeypatch, tmp_path, rope_scaling=scaling)
    assert found.layers[0].extend == "ntk(factor=50.0)"


BROKEN = [  # what was ignored there without a word, or read otherwise, when this was tried by others
    (dict(rope_scaling_=dict(rope_type="yarn", factor=4.0)), ["rope_scaling_: did you mean"]),
    (dict(rope_params=dict(rope_type="yarn", factor=4.0)), ["rope_params"]),
    (dict(beta_fast=8, rope_scaling=YARN), ["beta_fast"]),
    (
        dict(rope_scaling=dict(type="linear", factor=2.0, sliding_window=7)),
        ["sliding_window of the"],
    ),
    (dict(model_max_length=131072), ["model_max_length=131072: the length is 32"]),
    (
        dict(model_type="llava", rope_scaling=YARN, text_config=LLAMA),
        ["rope_scaling beside text_config"],
    ),
    (
        dict(model_type="olmo3", rope_parameters=dict(full=YARN)),
        ["full of rope_parameters, which is by type"],
    ),
    (dict(rope_parameters=dict(full_attention=YARN)), ["full_attention of the rope parameters"]),
    (dict(model_type="apertus", rope_theta=500.0), ["rope_theta=500.0 at the top level: that"]),
    (dict(model_type="gpt_neox", rope_theta=500.0, rotary_emb_base=500.0), []),
    (dict(model_type="phi3", rope_scaling=dict(type="su", **FACTORS)), []),
    (dict(model_type="t5", relative_attention_num_buckets=16), []),
    (dict(relative_attention_num_buckets=16), ["relative_attention_num_buckets"]),
]


@pytest.mark.parametrize("changes, ignored", BROKEN)
def test_more_keys_without_effect_are_named(changes, ignored):
    found = Positions(LLAMA | changes)
    assert len(found.ignored) == len(ignored), found.ignored
    for key, start in zip(found.ignored, ignored, strict=True):
        assert key.startswith(start)


@pytest.mark.parametrize(
    "scaling, ratio",
    [
        (dict(mscale_all_dim=1.0), 1.0),
        (dict(mscale=0.0, mscale_all_dim=1.0), 1.0),
        (dict(mscale=1.0, mscale_all_dim=1.0, attention_factor=1.0), 1.0),
        (dict(beta_fast=1.0, beta_slow=1.0), 1.0),
        (dict(factor=None), 1.0),
    ],
)
def test_deepseeks_factor_of_all_scores_in_other_words(scaling, ratio, monkeypatch, tmp_path):
    scaling = dict(rope_type="yarn", factor=40.0, original_max_position_embeddings=8) | scaling
    found, _ = check_type("deepseek_v3", monkeypatch, tmp_path, rope_scaling=scaling)
    theirs = WATCHED["scaling"] * 4  # sqrt(16)
    scheme = Scheme(found.layers[0].pos, Shape(4, 8, 64, 8, latent=True), 1)
    scheme.extend(found.layers[0].extend)
    (yarn,) = scheme.extensions.values()
    ours = 1.0 if yarn.temperature is None else float(yarn.temperature(torch.zeros(1))[0])
    assert ours == pytest.approx(theirs, rel=1e-6)
    assert "mscale_all_dim" not in str(found.ignored)


def test_llama_4_has_chunks_where_it_rotates(monkeypatch, tmp_path):
    found, _ = check_type("llama4_text", monkeypatch, tmp_path, no_rope_layers=[1, 0, 0, 1, 1, 0])
    assert ["chunks" in layer.pos for layer in found.layers] == [
        True,
        False,
        False,
        True,
        True,
        False,
    ]


def test_layers_first_trained_at_different_lengths_are_refused():
    tables = {
        "full_attention": YARN | dict(original_max_position_embeddings=8),
        "sliding_attention": YARN | dict(original_max_position_embeddings=16),
    }
    with pytest.raises(UserError, match="layers differ in original_max"):
        Positions(LLAMA | dict(model_type="olmo3", rope_parameters=tables))


def rotary_types():
    """The types of transformers whose config has rotary settings."""
    names = []
    for name, cls in CONFIG_MAPPING.items():
        if "rope_parameters" in getattr(cls, "__dataclass_fields__", {}):
            names.append(name)
    return names


def test_every_rotary_type_is_in_the_table_or_left_out_for_a_reason():
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    left_out = {
        "parts of a model, read as that": [name for name in rotary_types() if "_text" in name],
        "no model that continues a text": [
            name for name in rotary_types() if name not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        ],
        "a rule of its own, which the table cannot say": TABLE["refused"],
    }
    named = {name for names in left_out.values() for name in names}
    assert not set(rotary_types()) - FAMILIES.keys() - named


def test_null_switches_windows_off_and_a_missing_key_takes_the_default():
    mistral = LLAMA | dict(model_type="mistral")
    assert Positions(mistral).layers[0].pos == "rope(base=10000.0) + window(size=4096)"
    assert Positions(mistral | dict(sliding_window=None)).layers[0].pos == "rope(base=10000.0)"


def test_an_exaone_without_windows_rotates_in_all_layers(monkeypatch, tmp_path):
    settings = settings_of("exaone4", layer_types=["full_attention"] * 6) | dict(
        sliding_window=None
    )
    turned, visible = run_watched(CONFIG_MAPPING["exaone4"](**settings), monkeypatch)
    assert_same(Positions(settings | {"model_type": "exaone4"}), turned, visible)
