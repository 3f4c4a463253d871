"""The recipes of published models: what transformers' configurations and models say of each layer, and
that each trains, decodes, and means the same at any length.
"""

import importlib
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
import transformers
from torch import nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import attention
import configurable
from configurable import TrainSettings, configure
from model import GPT, Cache
from posenc import scheme_name
from scheme import extended_frequencies, parse

FOLDER = Path(configurable.__file__).resolve().parent / "config/recipes"
RECIPES = {path.stem: path for path in sorted(FOLDER.glob("*.py"))}
NAMES = (
    "cohere2_moe exaone4 flint gemma3 gemma4 gpt_oss granite_swash inkling kolibri laguna llama4 "
    "mellum2 mimo_v2_flash ministral3 mistral_large4 modded_nanogpt muse_glimmer muse_spark olmo3 "
    "qwen3_next rnope_swa smollm3 swan trinity"
)


def recipe(name, block_size=128, **sizes):
    """The model of a recipe at a small width."""
    settings, _ = configure(TrainSettings, [str(RECIPES[name]), f"--block_size={block_size}"])
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
    settings, _ = configure(TrainSettings, [str(RECIPES[name])])
    assert parse(settings.pos).text == settings.pos
    gpt = recipe(name)
    numbers = {key.partition("_")[0] for key in gpt.pos.pieces}
    assert len(numbers) == len(parse(settings.pos).mentions)
    assert gpt.pos.layers == recipe(name, 8192).pos.layers


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains_and_a_cache_changes_nothing(name):
    gpt = recipe(name, block_size=32)
    idx = torch.randint(31, (2, 48), generator=torch.Generator().manual_seed(2))
    logits, loss = gpt(idx[:, :-1], idx[:, 1:])
    loss.backward()
    assert all(p.grad.isfinite().all() for p in gpt.parameters())
    with torch.no_grad():
        cache = Cache(2, 47)
        steps = [gpt.logits(part, cache) for part in idx[:, :-1].split([40, 1, 6], 1)]
    torch.testing.assert_close(torch.cat(steps, 1), logits.detach(), rtol=1e-4, atol=1e-4)


CONFIGS = {
    "smollm3": "SmolLM3Config",
    "rnope_swa": "Cohere2Config",
    "gemma3": "Gemma3TextConfig",
    "gemma4": "Gemma4TextConfig",
    "llama4": "Llama4TextConfig",
    "gpt_oss": "GptOssConfig",
    "olmo3": "Olmo3Config",
    "qwen3_next": "Qwen3NextConfig",
}
SLIDING, FULL = "sliding_attention", "full_attention"
SAME_BASE = {kind: {"rope_type": "default", "rope_theta": 5e5} for kind in (SLIDING, FULL)}
WINDOW = 5  # tokens
TEXT = 40  # tokens
WIDTH, HEADS, COLUMNS = 32, 4, 12  # a third of 12 columns is even
SIZES = dict(
    vocab_size=31,
    hidden_size=WIDTH,
    intermediate_size=WIDTH,
    num_attention_heads=HEADS,
    num_key_value_heads=2,
    head_dim=COLUMNS,
    sliding_window=WINDOW,
    pad_token_id=0,
    moe_intermediate_size=WIDTH,
    moe_hidden_size=WIDTH,
    shared_expert_intermediate_size=WIDTH,
)
LATENTS = dict(kv_lora_rank=16, qk_rope_head_dim=8)


@dataclass(frozen=True)
class Whole:
    """A text model of transformers: its module, the start of its classes' names, the training length
    at which the recipe's windows have WINDOW tokens (or YaRN's factor is 4), and the settings that
    are not the class's defaults.
    """

    module: str
    prefix: str
    length: int
    settings: dict = field(default_factory=dict)


# Settings are those of the published config.json, or make the tiny model one that can be said.
WHOLE = {
    "smollm3": Whole("smollm3", "SmolLM3", 40, dict(sliding_window=None)),
    "rnope_swa": Whole("cohere2", "Cohere2", 10),
    "flint": Whole("flint", "Flint", 80),
    "kolibri": Whole("kolibri1", "Kolibri1", 80),
    "exaone4": Whole("exaone4", "Exaone4", 10, dict(rope_theta=1e6)),
    "trinity": Whole("afmoe", "Afmoe", 10),
    "muse_glimmer": Whole("muse_glimmer", "MuseGlimmerText", 20, dict(rope_theta=5e5)),
    "muse_spark": Whole("muse_spark", "MuseSparkText", 20),
    "cohere2_moe": Whole("cohere2_moe", "Cohere2Moe", 10),
    "laguna": Whole("laguna", "Laguna", 40, dict(layer_types=[FULL] + 3 * [SLIDING])),
    "mellum2": Whole(
        "mellum",
        "Mellum",
        40,
        dict(layer_types=3 * [SLIDING] + [FULL], rope_parameters=SAME_BASE),
    ),
    "mimo_v2_flash": Whole("mimo_v2_flash", "MiMoV2Flash", 320, dict(v_head_dim=COLUMNS)),
    "granite_swash": Whole(
        "granite_swa", "GraniteSWA", 320, dict(attention_multiplier=COLUMNS**-0.5)
    ),
    "ministral3": Whole("ministral3", "Ministral3", 10, dict(sliding_window=None)),
    "mistral_large4": Whole(
        "mistral_large4",
        "MistralLarge4Text",
        10,
        dict(
            **LATENTS,
            num_key_value_heads=HEADS,
            qk_nope_head_dim=COLUMNS,
            v_head_dim=COLUMNS,
            rms_norm_eps=1e-6,
        ),
    ),
}
ALL = CONFIGS | {name: f"{whole.prefix}Config" for name, whole in WHOLE.items()}
HIDING = {"sliding_attention": "window", "chunked_attention": "chunks"}


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "qwen3_next"])
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


# the length that a model was trained at, where its configuration or its file here has it; Gemma 4's
# is not confirmed, and where a file says so, its length is a choice
TRAINED = dict.fromkeys(WHOLE, 8192) | {"gpt_oss": 4096, "gemma3": 32768, "gemma4": 16384}
TRAINED |= {"olmo3": 8192, "trinity": 4096, "laguna": 4096}
del TRAINED["smollm3"], TRAINED["ministral3"], TRAINED["mistral_large4"]  # without windows
# Gemma 3: arXiv 2503.19786, the default of the class is Gemma 2's; Trinity Mini's config.json;
# elsewhere the class counts the token itself too
PUBLISHED = {"gemma3": 1024, "trinity": 2048, "flint": 512, "kolibri": 512, "mimo_v2_flash": 128}


@pytest.mark.parametrize("name", TRAINED)
def test_windows_are_as_long_as_theirs_at_the_length_that_they_were_trained_at(name):
    gpt = recipe(name, TRAINED[name])
    windows = {p.visible for p in gpt.pos.pieces.values() if p.visible}
    config = getattr(transformers, ALL[name])()
    assert windows == {(PUBLISHED.get(name, config.sliding_window), 0)}


# Qwen3-Next-80B-A3B as in github.com/THUDM/slime, scripts/models, af61a8e; gpt-oss without its
# YaRN, which has a test of its own
BASES = {"qwen3_next": 1e7, "gpt_oss": 150000.0}


@pytest.mark.parametrize("name", CONFIGS)
def test_rotations_norms_of_queries_and_gates_are_theirs(name):
    config = getattr(transformers, CONFIGS[name])(
        hidden_size=32, num_attention_heads=4, head_dim=16, global_head_dim=16
    )
    if name in BASES:
        config.rope_parameters.update(rope_type="default", rope_theta=BASES[name])
    module = importlib.import_module(type(config).__module__.replace("configuration", "modeling"))
    prefix = CONFIGS[name].removesuffix("TextConfig" if name == "gemma3" else "Config")
    rotary = getattr(module, f"{prefix}RotaryEmbedding")(config)
    gpt = recipe(name, head_dim=16)
    x = torch.randn(1, 1, 7, 16)
    places = 37 * torch.arange(7)
    for layer in range(len(gpt.pos.layers)):
        theirs = getattr(module, f"{prefix}Attention")(config, layer)
        columns = theirs.q_norm.weight.numel() if hasattr(theirs, "q_norm") else 0
        assert gpt.config.qk_norm == {0: False, 16: True, 64: "all"}[columns]
        ours = pieces(gpt, layer)
        assert ("gate" in ours) == (theirs.q_proj.out_features == 128)
        if "gate" in ours:
            assert ours["gate"].gate.out_features == 64  # one for each number of the output
        if "rope" not in ours:
            continue
        kinds = {config.layer_types[layer]} & config.rope_parameters.keys()
        turns = rotary(x, places[None], *kinds)
        if name == "gemma4":
            expected = module.apply_rotary_pos_emb(x, *turns)
        elif name == "llama4":  # it turns neighbours: the same function of permuted columns
            ours["rope"].layout = "interleaved"
            y = x.transpose(1, 2)
            expected = module.apply_rotary_emb(y, y, turns)[0].transpose(1, 2)
        else:
            expected = module.apply_rotary_pos_emb(x, x, *turns)[0]
        actual = ours["rope"].turn(x, ours["rope"].tables(places, 1000), False)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ALL)
def test_blocks_are_theirs_but_for_what_is_left_out(name):
    theirs = getattr(transformers, ALL[name])().to_dict()
    ours = recipe(name).config
    released = {"olmo3": 1e-6}  # where the class has another default
    eps = theirs.get("layer_norm_eps", theirs.get("rms_norm_eps"))
    assert ours.norm_eps == released.get(name, eps)
    assert ours.bias == theirs.get("attention_bias", False)
    activation = theirs.get("hidden_act", theirs.get("hidden_activation"))
    assert ours.mlp == {"silu": "swiglu", "gelu_pytorch_tanh": "gelu"}[activation]
    assert ours.norm_place == ("after" if name in ("olmo3", "exaone4") else "before")
    is_cohere = name in ("rnope_swa", "cohere2_moe")
    assert ours.parallel_blocks == is_cohere
    assert ours.norm == ("layernorm" if is_cohere else "rmsnorm")


def test_yarn_of_gpt_oss_is_theirs_at_their_longest_text():
    config = transformers.GptOssConfig()
    expected, theirs = ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")
    extend = recipe("gpt_oss").config.extend
    sizes = dict(train_length=4096, length=config.max_position_embeddings)
    actual, factor = extended_frequencies(extend, config.head_dim, 150000.0, **sizes)
    torch.testing.assert_close(actual.float(), expected, rtol=1e-5, atol=0)
    assert factor == pytest.approx(theirs)


def test_modded_nanogpt_is_as_its_train_gpt_says_at_the_end_of_its_training():
    gpt = recipe("modded_nanogpt", 2048)  # github.com/KellerJordan/modded-nanogpt, 0016a3c
    windows = [pieces(gpt, layer)["window"].visible[0] for layer in range(4)]
    assert windows == [768, 768, 768, 1664]
    rope = pieces(gpt, 0)["rope"]
    assert (rope.base, len(rope.inv_freq)) == (1024, 2)  # pairs in half of 8 columns


def test_swan_has_the_layers_of_its_paper():  # sections 2 and 3, and table 6
    gpt = recipe("swan", 8192)
    assert [sorted(pieces(gpt, layer)) for layer in range(4)] == [["nope"]] + 3 * [
        ["rope", "window"]
    ]
    windowed = pieces(gpt, 1)
    assert (windowed["rope"].base, windowed["window"].visible) == (1e6, (512, 0))


def test_scores_of_swan_grow_with_the_logarithm_of_the_length_beyond_that_of_training():
    scheme = recipe("swan", block_size=16).pos
    (logn,) = scheme.extensions.values()
    assert [bool(extensions) for _, extensions in scheme.plan_keys] == [True, False, False, False]
    assert logn.temperature(torch.tensor([3, 15, 255])).tolist() == pytest.approx([1, 1, 2])


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
        options = gpt.current_options()
        plan = gpt.pos.plans(places, places, count, count, options)[gpt.pos.plan_keys[layer]]
        actual = ours(x, attention.prepare(plan), None)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-4)  # float32 norms of theirs


def test_every_layer_of_inkling_is_theirs_and_so_is_the_whole_model():
    inkling = importlib.import_module("transformers.models.inkling.modeling_inkling")
    gpt = recipe("inkling", block_size=20).double()
    heads = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=8)
    config = inkling.InklingTextConfig(
        vocab_size=31,
        hidden_size=32,
        num_hidden_layers=6,
        **heads,
        **{f"swa_{name}": number for name, number in heads.items()},
        sliding_window_size=5,
        rel_extent=10,
        log_scaling_n_floor=20,
        mlp_layer_types=6 * ["dense"],
        intermediate_size=gpt.config.mlp_width,
        attn_implementation="eager",
    )
    theirs = inkling.InklingTextModel(config).double().eval()
    generator = torch.Generator().manual_seed(3)
    for p in theirs.parameters():
        random = torch.randn(p.shape, generator=generator).double()
        p.data = 1 + 0.3 * random if p.dim() == 1 else 0.5 * random
    gpt.wte.weight.data = theirs.embed_tokens.weight.data
    gpt.ln_e.weight.data = theirs.embed_tokens.embed_norm.weight.data
    gpt.ln_f.weight.data = theirs.norm.weight.data
    passed = []
    for number, layer in enumerate(theirs.layers):
        copy_inkling(layer, gpt.h[number], pieces(gpt, number))
        layer.register_forward_hook(lambda _, args, output: passed.append((args[0], output)))
    idx = torch.randint(31, (2, 40), generator=generator)  # up to twice the training length
    places = torch.arange(40)
    with torch.no_grad():
        last = theirs(idx).last_hidden_state
        plans = gpt.pos.plans(places, places, 40, 40, gpt.current_options())
        pairs = [(gpt.hidden(idx), last)]
        for number, (x, expected) in enumerate(passed):
            plan = attention.prepare(plans[gpt.pos.plan_keys[number]])
            pairs.append((gpt.h[number](x, plan, None), expected))
    assert len(pairs) == 7
    for number, (actual, expected) in enumerate(pairs):
        assert (actual - expected).abs().max() < 1e-5 * expected.abs().max(), number


def copy_inkling(theirs, ours, mine):
    """The weights of their decoder layer into our block, and into its pieces by name, `mine`."""
    attn, mlp = theirs.self_attn, theirs.mlp
    rows = (attn.q_proj.weight, attn.k_proj.weight, attn.v_proj.weight)
    ours.attn.c_attn.weight.data = torch.cat(rows).data
    ours.attn.c_proj.weight.data = attn.o_proj.weight.data
    ours.attn.q_norm.weight.data = attn.q_norm.weight.data / 8**0.5  # they divide q.k by d
    ours.attn.k_norm.weight.data = attn.k_norm.weight.data
    ours.ln_1.weight.data = theirs.input_layernorm.weight.data
    ours.ln_2.weight.data = theirs.post_attention_layernorm.weight.data
    ours.mlp.c_fc.weight.data = torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight)).data
    ours.mlp.c_proj.weight.data = (mlp.down_proj.weight * mlp.global_scale).data
    assert mine["rel_proj"].table.shape == attn.rel_logits_proj.proj.shape
    mine["rel_proj"].query.weight.data = attn.r_proj.weight.data
    mine["rel_proj"].table.data = attn.rel_logits_proj.proj.data
    convolutions = dict(k=attn.k_sconv, v=attn.v_sconv)
    convolutions |= dict(branch=theirs.attn_sconv, mlp_branch=theirs.mlp_sconv)
    for place, convolution in convolutions.items():
        taps = convolution.conv1d.weight[:, 0].flip(1).T  # the token's own first
        mine["short_conv"].w[place].data = taps.data.contiguous()


def test_gpt_oss_has_sinks_and_llama_4_steps_where_theirs_have_them():
    gpt = recipe("gpt_oss")
    assert all("sink" in pieces(gpt, layer) for layer in range(4))
    theirs = transformers.Llama4TextConfig()
    steps = pieces(recipe("llama4", theirs.floor_scale), 3)["step_temperature"]
    assert (steps.scale, steps.floor) == (theirs.attn_scale, theirs.floor_scale)
    chunks = pieces(recipe("llama4", theirs.attention_chunk_size), 0)["chunks"]
    assert chunks.size == theirs.attention_chunk_size


# ---- the attention of whole models, layer by layer


def whole_model(name, n_layer):
    """Their text model with random weights; its MLPs, of which nothing is compared, do nothing."""
    whole = WHOLE[name]
    module = importlib.import_module(f"transformers.models.{whole.module}.modeling_{whole.module}")
    config_class = getattr(module, f"{whole.prefix}Config")
    config = config_class(**SIZES | whole.settings, num_hidden_layers=n_layer)
    config._attn_implementation = config._experts_implementation = "eager"
    if config.rope_parameters.get("rope_type") == "yarn":
        factor = TEXT / whole.length
        config.rope_parameters.update(factor=factor, original_max_position_embeddings=whole.length)
    model = getattr(module, f"{whole.prefix}Model")(config).double().eval()
    generator = torch.Generator().manual_seed(3)
    for p in model.parameters():
        random = torch.randn(p.shape, generator=generator).double()
        p.data = 1 + 0.3 * random if p.dim() == 1 else 0.25 * random
    for layer in model.layers:
        layer.mlp = nn.Identity()
    return model


def put(parameter, values):
    """Set a parameter; both have the same shape."""
    assert parameter.shape == values.shape
    parameter.data = values.double()


def copy_attention(theirs, ours, mine):
    """The weights of their attention layer into ours, and into its pieces by name, `mine`.

    Our key and value heads are as many as the query heads: theirs are repeated.
    """

    def heads(weight):
        each = weight.view(-1, COLUMNS, WIDTH)
        return each.repeat_interleave(HEADS // len(each), 0).flatten(0, 1)

    values = getattr(theirs, "v_scale", 1) * theirs.v_proj.weight
    rows = [heads(weight) for weight in (theirs.q_proj.weight, theirs.k_proj.weight, values)]
    put(ours.c_attn.weight, torch.cat(rows))
    if hasattr(theirs, "q_norm"):
        put(ours.q_norm.weight, theirs.q_norm.weight)
        put(ours.k_norm.weight, theirs.k_norm.weight)
    elif ours.qk_norm:
        ours.q_norm.weight.data.fill_(theirs.qk_scale_factor)  # their norm has no weights
    if "gate" in mine:
        gate = theirs.g_proj if hasattr(theirs, "g_proj") else theirs.gate_proj
        put(mine["gate"].gate.weight, gate.weight)
    if "sink" in mine:
        put(mine["sink"].s, theirs.sinks)
    put(ours.c_proj.weight, theirs.o_proj.weight)


def copy_latent_attention(theirs, ours, mine):
    """The same for latent attention, with its learned temperature."""
    assert set(mine) == {"learned_rope" if theirs.use_rope else "nope", "ssmax"}
    put(ours.c_query.weight, theirs.q_proj.weight)
    rows = theirs.kv_a_proj_with_mqa.weight
    ours.c_latent.weight.data.zero_()[: len(rows)] = rows
    put(ours.kv_norm.weight, theirs.kv_a_layernorm.weight)
    up = theirs.kv_b_proj.weight.unflatten(0, (HEADS, -1))
    put(ours.c_up.weight, torch.cat((up[:, :COLUMNS], up[:, -COLUMNS:]), 1).flatten(0, 1))
    put(ours.c_proj.weight, theirs.o_proj.weight)
    put(mine["ssmax"].s, theirs.softmax_scaling.scale)
    put(mine["ssmax"].b, theirs.softmax_scaling.bias)


@pytest.mark.parametrize("name", WHOLE)
def test_attention_of_every_layer_is_that_of_the_whole_model(name):
    latent = name == "mistral_large4"
    sizes = LATENTS if latent else dict(n_kv_head=HEADS)
    gpt = recipe(name, WHOLE[name].length, head_dim=COLUMNS, **sizes).double()
    model = whole_model(name, len(gpt.h))
    if latent:
        shift = model.rotary_emb.alpha
        shift.copy_(torch.linspace(-0.5, 0.5, len(shift)))
        put(pieces(gpt, 0)["learned_rope"].shift, shift)
    passed = []
    for layer in model.layers:
        if latent:  # without positions their keys have columns that ours share: these are 0 in both
            up = layer.self_attn.kv_b_proj.weight.data.unflatten(0, (HEADS, -1))
            up[:, COLUMNS:-COLUMNS] = 0
        if name == "muse_spark":
            layer.self_attn.o_norm = nn.Identity()  # left out
        layer.self_attn.register_forward_hook(
            lambda _, args, given, output: passed.append((given["hidden_states"], output[0])),
            with_kwargs=True,
        )
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        model(torch.randint(1, 31, (2, TEXT), generator=generator), use_cache=False)
        for number, layer in enumerate(model.layers):
            copy = copy_latent_attention if latent else copy_attention
            copy(layer.self_attn, gpt.h[number].attn, pieces(gpt, number))
        places = torch.arange(TEXT)
        plans = gpt.pos.plans(places, places, TEXT, TEXT, gpt.current_options())
        for number, (x, expected) in enumerate(passed):
            plan = attention.prepare(plans[gpt.pos.plan_keys[number]])
            actual = gpt.h[number].attn(x, plan, None)
            assert (actual - expected).abs().max() < 1e-5 * expected.abs().max(), number
