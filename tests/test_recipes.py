"""The recipes of published models: what transformers' configurations say of each layer, and that each
trains, decodes, and means the same at any length.
"""

import importlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

import attention
import configurable
from configurable import TrainSettings, configure
from model import GPT
from posenc import scheme_name
from scheme import parse

FOLDER = Path(configurable.__file__).resolve().parent / "config/recipes"
RECIPES = {path.stem: path for path in sorted(FOLDER.glob("*.py"))}
NAMES = "gemma3 gemma4 gpt_oss llama4 modded_nanogpt olmo3 qwen3_next rnope_swa smollm3 swan"
LAYERS = {"gemma3": 6, "gemma4": 6}  # how many a pattern needs; else 4, the default


def recipe(name, block_size=128, **sizes):
    """The model of a recipe at a small width."""
    settings, _ = configure(TrainSettings, [str(RECIPES[name]), f"--block_size={block_size}"], "")
    torch.manual_seed(1)
    gpt = settings.gpt(vocab_size=31)
    n_layer = LAYERS.get(name, gpt.n_layer)
    return GPT(replace(gpt, n_embd=32, n_layer=n_layer, **sizes)).eval()


def pieces(gpt, layer):
    """The pieces of a layer by name."""
    in_layer = [gpt.pos.pieces[key] for key in gpt.pos.layers[layer]]
    return {scheme_name(piece): piece for piece in in_layer}


def test_all_recipes_are_there():
    assert list(RECIPES) == NAMES.split()


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_canonical_and_every_branch_has_a_layer(name):
    settings, _ = configure(TrainSettings, [str(RECIPES[name])], "")
    assert parse(settings.pos).text == settings.pos
    gpt = recipe(name)
    numbers = {key.partition("_")[0] for key in gpt.pos.pieces}
    assert len(numbers) == len(parse(settings.pos).mentions)
    # the order of files does not matter: another one may say how large the model is
    text = RECIPES[name].read_text(encoding="utf-8")
    assert "\nn_layer" not in text and ("n_layer=" in text) == (name in LAYERS)
    assert gpt.pos.layers == recipe(name, 8192).pos.layers


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains_and_a_cache_changes_nothing(name):
    gpt = recipe(name, block_size=32)
    idx = torch.randint(31, (2, 48), generator=torch.Generator().manual_seed(2))
    logits, loss = gpt(idx[:, :-1], idx[:, 1:])
    loss.backward()
    assert all(p.grad.isfinite().all() for p in gpt.parameters())
    with torch.no_grad():
        cache = gpt.new_cache(2, 47)
        steps = [gpt(part, cache=cache)[0] for part in idx[:, :-1].split([40, 1, 6], 1)]
    torch.testing.assert_close(torch.cat(steps, 1), logits.detach(), rtol=1e-4, atol=1e-4)


CONFIGS = {
    "smollm3": "SmolLM3Config",
    "rnope_swa": "Cohere2Config",
    "gemma3": "Gemma3TextConfig",
    "gemma4": "Gemma4TextConfig",
    "llama4": "Llama4TextConfig",
    "gpt_oss": "GptOssConfig",
    "olmo3": "Olmo3Config",
}
HIDING = {"sliding_attention": "window", "chunked_attention": "chunks"}


@pytest.mark.parametrize("name", CONFIGS)
def test_layers_are_those_of_transformers(name):
    theirs = getattr(transformers, CONFIGS[name])()
    rotates = getattr(theirs, "no_rope_layers", None)
    gpt = recipe(name)
    for layer in range(len(gpt.pos.layers)):
        ours = pieces(gpt, layer)
        kind = theirs.layer_types[layer]
        hiding = {name for name in ours if name in HIDING.values()}
        assert hiding == ({HIDING[kind]} if kind in HIDING else set())
        turns = rotates[layer] if rotates else kind in HIDING or name != "rnope_swa"
        assert ("rope" in ours) == bool(turns)
        parameters = theirs.rope_parameters
        parameters = parameters.get(kind, parameters) if parameters else {}
        base = parameters.get("rope_theta") or getattr(theirs, "default_theta", 10000.0)
        if turns:
            assert ours["rope"].base == base


# the length that a model was trained at, where its configuration or its file here has it
TRAINED = {"rnope_swa": 8192, "gpt_oss": 4096, "olmo3": 8192}


@pytest.mark.parametrize("name", TRAINED)
def test_windows_are_as_long_as_theirs_at_the_length_that_they_were_trained_at(name):
    gpt = recipe(name, TRAINED[name])
    windows = {p.visible for p in gpt.pos.pieces.values() if p.visible}
    assert windows == {(getattr(transformers, CONFIGS[name])().sliding_window, 0)}


@pytest.mark.parametrize("layer", [0, 5])
def test_attention_of_gemma_3_is_theirs_in_both_kinds_of_layer(layer):
    gemma = importlib.import_module("transformers.models.gemma3.modeling_gemma3")
    gpt = recipe("gemma3", block_size=64).double()
    ours = gpt.h[layer].attn
    config = transformers.Gemma3TextConfig(
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_hidden_layers=6,
        query_pre_attn_scalar=8,
        sliding_window=gpt.pos.pieces["1_window"].visible[0],
        attn_implementation="eager",
    )
    theirs = gemma.Gemma3Attention(config, layer).double().eval()
    kind = config.layer_types[layer]
    generator = torch.Generator().manual_seed(3)
    for parameter in theirs.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator).double()
    rows = (theirs.q_proj.weight, theirs.k_proj.weight, theirs.v_proj.weight)
    ours.c_attn.weight.data = torch.cat(rows).data
    ours.c_proj.weight.data = theirs.o_proj.weight.data
    ours.q_norm.weight.data = 1 + theirs.q_norm.weight.data
    ours.k_norm.weight.data = 1 + theirs.k_norm.weight.data
    count = 150  # over twice the training length
    x = torch.randn(1, count, 32, generator=generator).double()
    places = torch.arange(count)
    distance = places[:, None] - places
    seen = distance >= 0
    if kind == "sliding_attention":
        seen &= distance < config.sliding_window
    mask = torch.zeros(count, count).double().masked_fill(~seen, -torch.inf)
    positions = gemma.Gemma3RotaryEmbedding(config)(x, places[None], kind)
    with torch.no_grad():
        expected, _ = theirs(x, positions, mask[None, None])
        plan = gpt.pos.plans(places, places, count, count, torch.float64)[gpt.pos.sets[layer]]
        actual = ours(x, attention.prepare(plan, 4, torch.float64), None)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-4)  # float32 norms of theirs


def test_gpt_oss_has_sinks_and_llama_4_steps_where_theirs_have_them():
    gpt = recipe("gpt_oss")
    assert all("sink" in pieces(gpt, layer) for layer in range(4))
    theirs = transformers.Llama4TextConfig()
    steps = pieces(recipe("llama4", theirs.floor_scale), 3)["step_temperature"]
    assert (steps.scale, steps.floor) == (theirs.attn_scale, theirs.floor_scale)
    chunks = pieces(recipe("llama4", theirs.attention_chunk_size), 0)["chunks"]
    assert chunks.size == theirs.attention_chunk_size
