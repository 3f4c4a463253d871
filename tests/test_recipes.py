"""The recipes of published models: what transformers' configurations say of each layer, and that each
trains, decodes, and means the same at any length.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

import configurable
from configurable import TrainSettings, configure
from model import GPT
from posenc import scheme_name
from scheme import parse

FOLDER = Path(configurable.__file__).resolve().parent / "config/recipes"
RECIPES = {path.stem: path for path in sorted(FOLDER.glob("*.py"))}
NAMES = "gemma3 gemma4 gpt_oss llama4 modded_nanogpt olmo3 qwen3_next rnope_swa smollm3 swan"


def recipe(name, block_size=128, **sizes):
    """The model of a recipe at a small width."""
    settings, _ = configure(TrainSettings, [str(RECIPES[name]), f"--block_size={block_size}"], "")
    torch.manual_seed(1)
    gpt = settings.gpt(vocab_size=31)
    return GPT(replace(gpt, n_embd=32, **sizes)).eval()


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
    assert "warning" not in gpt.pos.describe()
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


def test_gpt_oss_has_sinks_and_llama_4_steps_where_theirs_have_them():
    gpt = recipe("gpt_oss")
    assert all("sink" in pieces(gpt, layer) for layer in range(4))
    theirs = transformers.Llama4TextConfig()
    steps = pieces(recipe("llama4", theirs.floor_scale), 3)["step_temperature"]
    assert (steps.scale, steps.floor) == (theirs.attn_scale, theirs.floor_scale)
    chunks = pieces(recipe("llama4", theirs.attention_chunk_size), 0)["chunks"]
    assert chunks.size == theirs.attention_chunk_size
