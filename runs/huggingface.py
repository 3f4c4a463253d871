"""Models of Hugging Face and ours, both ways, without `transformers`.

    python -m runs.huggingface out/RUN FOLDER        # write a run, with its tokenizer

    model = load_model("HuggingFaceTB/SmolLM-135M")  # a name, which is downloaded, or a folder
    save_model(model, "folder")                      # AutoModelForCausalLM reads it

GPT-2 is `learned`, GPT-NeoX and the Llamas are `rope`, BLOOM is `alibi`. FAMILIES says what each
calls our settings and weights; reading and writing both follow it. SmolLM3, Cohere2 and OLMo 3,
patterns over layers, are only read. A setting or a weight that has no counterpart is refused in one
sentence, never left out.
"""

import re
import shutil
import sys
from ast import literal_eval
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

import data
from configurable import GPTConfig, UserError, read_json, run_program, write_json
from data.download import model_folder
from model import GPT
from scheme import find, options_of, parse

BUFFERS = re.compile(r"\.(attn|attention)\.(masked_)?bias$|rotary_emb\.inv_freq$")  # in old files

# The words of each family for ours, by model_type (SmolLM and TinyLlama are of type llama):
#   class        the class in transformers
#   pos          our scheme
#   options      its options that the family also has: our name -> theirs
#   ours         settings of ours that every model of the family has
#   activations  theirs -> our `mlp`; where several mean the same, the last one is written
#   bias         whether there are biases; with "some", the file of weights tells
#   transposed   matrices are (in, out)
#   by_head      the queries, keys and values of a head are stored together: (heads, 3, D)
#   settings     our name, theirs, and the value where config.json does not have it
#   defaults     such values of their settings that `settings` does not list
#   by_layer     layers may differ, or have windows: see `read_positions`
#   layers       their name for our `h`, before the number of a layer
#   weights      our module and theirs, or those of theirs that ours stacks


def table(text: str) -> dict[str, list[str]]:
    """The lines of a table by their first words."""
    lines = [line.split() for line in text.strip().splitlines()]
    return {words[0]: words[1:] for words in lines}


GELU = {"gelu_fast": "gelu", "gelu_pytorch_tanh": "gelu", "gelu_new": "gelu", "gelu": "gelu_exact"}
LLAMA = {
    "class": "LlamaForCausalLM",
    "pos": "rope",
    "options": {"base": "rope_theta"},
    "ours": {"norm": "rmsnorm"},
    "activations": {"swish": "swiglu", "silu": "swiglu"},
    "bias": "some",
    "layers": "model.layers",
    "settings": table("""
        vocab_size      vocab_size
        n_layer         num_hidden_layers
        n_head          num_attention_heads
        n_embd          hidden_size
        n_inner         intermediate_size
        n_kv_head       num_key_value_heads
        head_dim        head_dim
        block_size      max_position_embeddings
        mlp             hidden_act              "silu"
        norm_eps        rms_norm_eps            1e-6
        tie_embeddings  tie_word_embeddings     False
    """),
    "weights": table("""
        wte         model.embed_tokens
        ln_1        input_layernorm
        attn.c_attn self_attn.q_proj self_attn.k_proj self_attn.v_proj
        attn.q_norm self_attn.q_norm
        attn.k_norm self_attn.k_norm
        attn.c_proj self_attn.o_proj
        ln_2        post_attention_layernorm
        mlp.c_fc    mlp.gate_proj mlp.up_proj
        mlp.c_proj  mlp.down_proj
        ln_f        model.norm
        lm_head     lm_head
    """),
}
OLMO2 = {
    **LLAMA,
    "class": "Olmo2ForCausalLM",
    "ours": {"norm": "rmsnorm", "norm_place": "after", "qk_norm": "all"},
    "bias": "never",
    "settings": {**LLAMA["settings"], "norm_eps": ["rms_norm_eps", "1e-5"]},
    "weights": {
        **LLAMA["weights"],
        "ln_1": ["post_attention_layernorm"],
        "ln_2": ["post_feedforward_layernorm"],
    },
}
FAMILIES = {
    "gpt2": {
        "class": "GPT2LMHeadModel",
        "pos": "learned",
        "options": {},
        "ours": {},
        "activations": GELU,
        "bias": "always",
        "layers": "transformer.h",
        "transposed": True,
        "settings": table("""
            vocab_size      vocab_size
            n_layer         n_layer
            n_head          n_head
            n_embd          n_embd
            n_inner         n_inner
            block_size      n_positions
            mlp             activation_function "gelu_new"
            norm_eps        layer_norm_epsilon  1e-5
            tie_embeddings  tie_word_embeddings True
        """),
        "weights": table("""
            wte                  transformer.wte
            pos.pieces.0_learned transformer.wpe
            ln_1                 ln_1
            attn.c_attn          attn.c_attn
            attn.c_proj          attn.c_proj
            ln_2                 ln_2
            mlp.c_fc             mlp.c_fc
            mlp.c_proj           mlp.c_proj
            ln_f                 transformer.ln_f
            lm_head              lm_head
        """),
    },
    "gpt_neox": {
        "class": "GPTNeoXForCausalLM",
        "pos": "rope",
        "options": {"base": "rotary_emb_base", "fraction": "rotary_pct"},
        "defaults": {"rotary_pct": 0.25},
        "ours": {},
        "activations": GELU,
        "bias": "always",
        "layers": "gpt_neox.layers",
        "by_head": True,
        "settings": table("""
            vocab_size      vocab_size
            n_layer         num_hidden_layers
            n_head          num_attention_heads
            n_embd          hidden_size
            n_inner         intermediate_size
            block_size      max_position_embeddings
            mlp             hidden_act              "gelu"
            norm_eps        layer_norm_eps          1e-5
            tie_embeddings  tie_word_embeddings     False
            parallel_blocks use_parallel_residual   True
        """),
        "weights": table("""
            wte         gpt_neox.embed_in
            ln_1        input_layernorm
            attn.c_attn attention.query_key_value
            attn.c_proj attention.dense
            ln_2        post_attention_layernorm
            mlp.c_fc    mlp.dense_h_to_4h
            mlp.c_proj  mlp.dense_4h_to_h
            ln_f        gpt_neox.final_layer_norm
            lm_head     embed_out
        """),
    },
    "llama": LLAMA,
    "mistral": {**LLAMA, "by_layer": True},
    "qwen2": LLAMA,
    "qwen3": {
        **LLAMA,
        "class": "Qwen3ForCausalLM",
        "ours": {"norm": "rmsnorm", "qk_norm": True},
        "bias": "never",
    },
    "smollm3": {
        **LLAMA,
        "settings": {**LLAMA["settings"], "tie_embeddings": ["tie_word_embeddings", "True"]},
        "defaults": {"rope_theta": 2000000.0, "no_rope_layer_interval": 4},
        "by_layer": True,
    },
    "cohere2": {
        **LLAMA,
        "options": {"base": "rope_theta", "layout": "layout"},
        "ours": {"norm": "layernorm", "parallel_blocks": True},
        "defaults": {
            "rope_theta": 10000.0,
            "layout": "interleaved",
        },
        "by_layer": True,
        "logit_scale": 0.0625,  # ours is part of the last norm
        "settings": {
            **LLAMA["settings"],
            "norm_eps": ["layer_norm_eps", "1e-5"],
            "tie_embeddings": ["tie_word_embeddings", "True"],
        },
        "weights": {**LLAMA["weights"], "ln_2": ["input_layernorm"]},  # one norm for both
    },
    "olmo2": OLMO2,
    "olmo3": {
        **OLMO2,
        "defaults": {"rope_theta": 500000.0},
        "by_layer": True,
    },
    "bloom": {
        "class": "BloomForCausalLM",
        "pos": "alibi",
        "options": {},
        "ours": {"embedding_norm": True},
        "activations": {"gelu": "gelu"},
        "bias": "always",
        "layers": "transformer.h",
        "by_head": True,
        "settings": table("""
            vocab_size      vocab_size
            n_layer         n_layer
            n_head          n_head
            n_embd          hidden_size
            block_size      seq_length          2048
            mlp             activation          "gelu"
            norm_eps        layer_norm_epsilon  1e-5
            tie_embeddings  tie_word_embeddings True
        """),
        "weights": table("""
            wte         transformer.word_embeddings
            ln_e        transformer.word_embeddings_layernorm
            ln_1        input_layernorm
            attn.c_attn self_attention.query_key_value
            attn.c_proj self_attention.dense
            ln_2        post_attention_layernorm
            mlp.c_fc    mlp.dense_h_to_4h
            mlp.c_proj  mlp.dense_4h_to_h
            ln_f        transformer.ln_f
            lm_head     lm_head
        """),
    },
}
# their rope_type -> our extension, and its options: ours -> theirs
EXTENSIONS = {
    "linear": ("pi", {"factor": "factor"}),
    "dynamic": ("dynamic_ntk", {"factor": "factor"}),
    "yarn": (
        "yarn",
        {"factor": "factor", "alpha": "beta_slow", "beta": "beta_fast", "truncate": "truncate"},
    ),
    "llama3": (
        "llama3",
        {"factor": "factor", "low": "low_freq_factor", "high": "high_freq_factor"},
    ),
}
ORIGINAL = "original_max_position_embeddings"
# names that a config.json may use for one of the above: BLOOM's first models, transformers 5
SYNONYMS = {
    "n_embed": "hidden_size",
    "num_attention_heads": "n_head",
    "rope_theta": "rotary_emb_base",
    "partial_rotary_factor": "rotary_pct",
}
# settings that change what is computed here, unless they are absent or off
REFUSED = (
    "scale_attn_by_inverse_layer_idx",
    "apply_residual_connection_post_layernorm",
    "quantization_config",
    "attention_factor",
    "mscale",
    "mscale_all_dim",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "query_pre_attn_scalar",
)


# ---- settings


def schemes_in(text: str) -> list[tuple[str, dict]]:
    """The schemes or extensions of an expression, each with the values of all its options."""
    schemes = []
    for mention in parse(text).mentions if text else ():
        options = {name: option.default for name, option in options_of(find(mention.name)).items()}
        schemes.append((mention.name, options | mention.options))
    return schemes


def in_full(config: GPTConfig) -> dict:
    """The settings of a model with no width and no option of a scheme left to its default."""
    return asdict(config) | dict(
        n_inner=config.mlp_width,
        n_kv_head=config.kv_heads,
        head_dim=config.head_width,
        dropout=0.0,  # none after the training
        pos=schemes_in(config.pos),
        extend=schemes_in(config.extend),
    )


def expression(name: str, options: dict, theirs: dict) -> str:
    """Our text of a scheme or an extension, with the options that their settings have."""
    values = [f"{ours}={theirs[key]}" for ours, key in options.items() if key in theirs]
    return f"{name}({', '.join(values)})" if values else name


def read_positions(kind: str, theirs: dict, n_layer: int) -> str:
    """Our `pos` for a model of a family: the shortest pattern of rotations and windows by layer.

    UserError for a kind of layer that is not computed here.
    """
    family = FAMILIES[kind]
    types = ["full_attention" for _ in range(n_layer)]
    turning = [True for _ in range(n_layer)]
    if "by_layer" in family and "layer_types" in theirs:
        types = theirs["layer_types"]
    elif theirs.get("use_sliding_window"):
        raise UserError(f"it is of type {kind} with use_sliding_window, which is not supported")
    elif kind == "mistral" and "sliding_window" in theirs:
        types = ["sliding_attention" for _ in range(n_layer)]
    if kind == "smollm3":
        every = theirs["no_rope_layer_interval"]
        turning = theirs.get("no_rope_layers", [(n + 1) % every for n in range(n_layer)])
    if kind in ("cohere2", "olmo3") and "layer_types" not in theirs:
        every = 4  # an olmo3 has no other
        if kind == "cohere2":
            every = theirs.get("sliding_window_pattern", 4)
        for n in range(n_layer):
            if (n + 1) % every:
                types[n] = "sliding_attention"
    if kind == "cohere2":
        turning = [layer_type == "sliding_attention" for layer_type in types]
    if "sliding_attention" in types and "sliding_window" not in theirs:
        raise UserError(f"it is of type {kind}, with windows in layer_types but no sliding_window")
    if len(types) < n_layer or len(turning) < n_layer:
        raise UserError(f"it is of type {kind}, with layer_types or no_rope_layers of fewer layers")

    layers = []
    for layer_type, turns in zip(types[:n_layer], turning[:n_layer], strict=True):
        layer = "nope"
        if turns:
            rope = theirs.get("rope_parameters", {}).get(layer_type, {})  # olmo3 has one of each
            layer = expression(family["pos"], family["options"], theirs | rope)
        if layer_type == "sliding_attention":
            layer += f" + window(size={theirs['sliding_window']})"
        elif layer_type != "full_attention":
            raise UserError(f"it is of type {kind}, with {layer_type} in layer_types")
        layers.append(layer)
    return pattern(layers)


def rope_by_type(config: dict) -> dict[str, dict]:
    """The rotary settings of an olmo3 for each type of layer. As in transformers, those that stand
    outside of rope_parameters are of full layers alone.

    UserError where more than the base differs.
    """
    base = FAMILIES["olmo3"]["defaults"]["rope_theta"]
    sliding = {"rope_type": "default", "rope_theta": base}
    full = sliding | {"rope_theta": config.get("rope_theta") or base}
    types = {"full_attention": full, "sliding_attention": sliding}
    for name, rope in (config.get("rope_parameters") or {}).items():
        if name not in types:
            raise UserError(f"it is of type olmo3 with {name}={rope} for no type of layer")
        types[name].update(rope)
    full.update(config.get("rope_scaling") or {})
    for name in full | sliding:
        if name != "rope_theta" and full.get(name) != sliding.get(name):
            raise UserError(
                f"it is of type olmo3 with {name}={full.get(name)} in full_attention and "
                f"{sliding.get(name)} in sliding_attention, which is not supported"
            )
    return types


def pattern(layers: list[str]) -> str:
    """The shortest expression whose branches, in turn, give these schemes of layers."""
    period = 1
    while any(layer != layers[n % period] for n, layer in enumerate(layers)):
        period += 1
    branches = []
    for layer, run in groupby(layers[:period]):
        count = len(list(run))
        repeated = f"({layer})" if "+" in layer else layer
        branches.append(f"{count} * {repeated}" if count > 1 else layer)
    return " | ".join(branches)


def refused_in(theirs: dict) -> list[str]:
    """What of REFUSED is on in these settings of theirs, as name=value."""
    return [f"{key}={theirs[key]}" for key in REFUSED if theirs.get(key)]


def read_settings(config: dict, bias: bool) -> GPTConfig:
    """Our settings for a config.json, of weights with or without biases.

    UserError for what is not computed here.
    """
    kind = config.get("model_type")
    refused = refused_in(config)
    if kind not in FAMILIES:
        raise UserError(f"it is of type {kind}; known are {', '.join(FAMILIES)}")
    family = FAMILIES[kind]
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if kind == "olmo3":
        config = {**config, "rope_parameters": rope_by_type(config)}
        rope = config["rope_parameters"]["full_attention"]
    theirs = dict(family.get("defaults", {}))
    for name, value in {**config, **rope}.items():
        if value is not None:
            theirs[name] = value
            theirs[SYNONYMS.get(name, name)] = value

    ours = {"bias": bias, **family["ours"]}
    for name, (key, *default) in family["settings"].items():
        ours[name] = theirs.get(key)
        if default and key not in theirs:
            ours[name] = literal_eval(default[0])
    rope_type = theirs.get("rope_type", theirs.get("type", "default"))
    refused += refused_in(rope)
    if theirs.get("scale_attn_weights") is False:
        refused.append("scale_attn_weights=False")
    if ours["mlp"] not in family["activations"] or rope_type not in ("default", *EXTENSIONS):
        refused.append(f"activation {ours['mlp']} with rope_type {rope_type}")
    if refused:
        raise UserError(
            f"it is of type {kind} with {', '.join(refused):.200}, which is not supported"
        )

    ours["mlp"] = family["activations"][ours["mlp"]]
    ours["pos"] = read_positions(kind, theirs, ours["n_layer"])
    if rope_type in EXTENSIONS:
        extension, options = EXTENSIONS[rope_type]
        if rope_type != "dynamic":  # for it, block_size is the length before extending
            ours["block_size"] = theirs.get(ORIGINAL, ours["block_size"])
        ours["extend"] = expression(extension, options, theirs)
    return GPTConfig(**ours)


def write_settings(config: GPTConfig) -> dict:
    """The config.json of the family that our model is of; UserError says what it lacks for that."""
    ours = in_full(config)
    scheme, values = ours["pos"][0]
    kind = {False: "llama", True: "qwen3", "all": "olmo2"}[config.qk_norm]
    if config.norm == "layernorm":
        kind = {"learned": "gpt2", "alibi": "bloom"}.get(scheme, "gpt_neox")
    family = FAMILIES[kind]
    if config.mlp not in family["activations"].values():
        raise UserError(
            f"a model with norm={config.norm} and mlp={config.mlp} cannot be written for Hugging "
            "Face; the settings in config/arch can"
        )
    theirs = {"model_type": kind, "architectures": [family["class"]], "dtype": "float32"}
    theirs.update(bos_token_id=None, pad_token_id=None, eos_token_id=None)  # not GPT-2's
    for name, (key, *_) in family["settings"].items():
        theirs[key] = ours[name]
    for activation, mlp in family["activations"].items():
        if mlp == config.mlp:
            theirs[family["settings"]["mlp"][0]] = activation
    if kind == "llama":
        theirs.update(attention_bias=config.bias, mlp_bias=config.bias)
    theirs.update({key: values.get(option) for option, key in family["options"].items()})
    for extension, values in ours["extend"]:
        for rope_type, (name, options) in EXTENSIONS.items():
            if name == extension and values["factor"] != "auto":
                rope = {key: values[option] for option, key in options.items()}
                if rope_type != "dynamic":  # the others state the lengths before and after
                    rope[ORIGINAL] = config.block_size
                    theirs["max_position_embeddings"] = round(config.block_size * values["factor"])
                theirs["rope_scaling"] = {"rope_type": rope_type, **rope}

    # reading it back must give the same settings
    nearest = in_full(read_settings(theirs, config.bias and family["bias"] != "never"))
    unlike = [f"{name}={x}, not {ours[name]}" for name, x in nearest.items() if x != ours[name]]
    if unlike:
        raise UserError(
            f"no Hugging Face architecture matches this model: the nearest, {kind}, has "
            f"{' and '.join(unlike)}; the settings in config/arch can be exported"
        )
    return theirs


# ---- weights


def their_weights(model: GPT, kind: str) -> Iterator[tuple[str, Tensor, torch.Size]]:
    """The name of each weight of theirs, a view of it in our parameters, and its shape.

    What is written into a view is written into our model. Where heads are apart in theirs, the view
    has more dimensions than their shape.
    """
    family = FAMILIES[kind]
    c = model.config
    for name, x in model.named_parameters():
        layer, module, suffix = re.fullmatch(r"(?:h\.(\d+)\.)?(.+)\.(\w+)", name).groups()
        suffix = suffix.replace("table", "weight")  # of learned positions
        prefix = f"{family['layers']}.{layer}." if layer else ""
        names = family["weights"][module]
        parts = x.chunk(len(names))
        if len(names) == 3:  # queries, keys and values
            parts = x.split([n * c.head_width for n in (c.n_head, c.kv_heads, c.kv_heads)])
        for their_name, part in zip(names, parts, strict=True):
            if "transposed" in family and ".c_" in name and x.dim() == 2:
                part = part.T
            shape = part.shape
            if "by_head" in family and ".c_attn" in name:
                part = part.unflatten(0, (3, c.n_head, -1)).transpose(0, 1)  # (heads, 3, D, ...)
            yield f"{prefix}{their_name}.{suffix}", part, shape


def is_huggingface(name: str) -> bool:
    """Whether it names a folder of a Hugging Face model, or perhaps one to download."""
    config = Path(name, "config.json")
    if config.is_file():
        return b'"model_type"' in config.read_bytes()
    is_name = re.fullmatch(r"gpt2[a-z-]*|(?!out/)[\w.-]+/[\w.-]+", name) is not None
    return is_name and not Path(name.partition("/")[0]).exists()


@torch.no_grad()
def load_model(name: str | Path) -> GPT:
    """The model of a folder or a name, ready to be tested: float32, on the CPU.

    UserError names a setting that is not computed here, and a weight that is missing, of another
    shape or left over.
    """
    folder = model_folder(name)
    config = read_json(folder / "config.json")
    weights = {}
    try:
        for file in folder.glob("*.safetensors"):
            for key, x in load_file(file).items():
                if key.startswith(("h.", "ln_f.", "wte.", "wpe.", "word_embeddings")):
                    key = f"transformer.{key}"  # old files of gpt2 and bloom have no prefix
                if not BUFFERS.search(key):
                    weights[key] = x
        settings = read_settings(config, any(key.endswith(".bias") for key in weights))
        model = GPT(settings).eval()
        kind = config["model_type"]
        logit_scale = 1.0
        if "logit_scale" in FAMILIES[kind]:
            logit_scale = float(config.get("logit_scale", FAMILIES[kind]["logit_scale"]))
    except (SafetensorError, ArithmeticError, AttributeError, TypeError, ValueError) as error:
        raise UserError(f"{name} cannot be read here: {error!s:.300}") from error

    used = set()
    for their_name, view, shape in their_weights(model, kind):
        theirs = weights.get(their_name)
        used.add(their_name)
        if theirs is None and their_name.endswith(".bias"):
            view.zero_()
        elif theirs is None or theirs.shape != shape:
            raise UserError(f"{name} lacks the weight {their_name} of shape {tuple(shape)}")
        else:
            view.copy_(theirs.reshape(view.shape))
    if settings.tie_embeddings:
        used.add("lm_head.weight")
    left_over = sorted(weights.keys() - used)
    if left_over:
        raise UserError(
            f"{name} has weights that a {kind} does not have: {', '.join(left_over):.200}"
        )
    model.ln_f.weight *= logit_scale
    return model


@torch.no_grad()
def save_model(model: GPT, folder: str | Path, corpus: data.Corpus | None = None) -> dict:
    """Write a new folder that transformers loads; the content of its config.json.

    With a corpus, its tokenizer goes along. UserError, in one sentence, for a model that no family
    can be, and for a folder that exists.
    """
    folder = Path(folder)
    if folder.exists():
        raise UserError(f"{folder} exists: name a new folder")
    if "|" in model.pos.extend_text:
        raise UserError(
            f"extend={model.pos.extend_text} cannot be exported: no family extends only some layers"
        )
    config = write_settings(replace(model.config, extend=model.pos.extend_text))
    kind = config["model_type"]
    if FAMILIES[kind]["bias"] == "always":  # biases that ours lacks are 0
        complete = GPT(replace(model.config, bias=True, extend=""))
        complete.load_state_dict(model.state_dict(), strict=False)
        model = complete
    weights = {}
    for name, view, shape in their_weights(model, kind):
        weights[name] = view.reshape(shape).clone().contiguous()
    folder.mkdir(parents=True)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    if corpus is not None:
        config["eos_token_id"] = corpus.tokenizer.end
        save_tokenizer(corpus, folder)
    write_json(folder / "config.json", config)  # last: without it this is no model
    return config


# ---- tokenizers


def token_names(corpus: data.Corpus) -> dict[str, int]:
    """The vocabulary of a corpus as its tokenizer.json has it: the number of each token."""
    if corpus.meta["tokenizer"] == "file":
        return read_json(corpus.folder / "tokenizer.json")["model"]["vocab"]
    names = corpus.meta.get("characters") or map(data.signs_of, corpus.tokenizer.vocabulary)
    return {name: n for n, name in enumerate(names)}


def save_tokenizer(corpus: data.Corpus, folder: Path) -> None:
    """tokenizer.json and tokenizer_config.json, which give the tokens of a corpus."""
    kind = corpus.meta["tokenizer"]
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    if kind == "gpt2":
        settings["eos_token"] = "<|endoftext|>"
    write_json(folder / "tokenizer_config.json", settings)
    if kind == "file":
        shutil.copy(corpus.folder / "tokenizer.json", folder)
        return

    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    names = token_names(corpus)
    if kind == "char":
        tokenizer = Tokenizer(models.WordLevel(names))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        tokenizer.decoder = decoders.Fuse()
    else:
        # bytes, or GPT-2's tokens: every way to cut a token into two tokens is a merge
        merges = []
        for name in names:
            for cut in range(1, len(name)):
                if name[:cut] in names and name[cut:] in names:
                    merges.append((name[:cut], name[cut:]))
        tokenizer = Tokenizer(models.BPE(names, merges))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    if kind == "gpt2":
        tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(folder / "tokenizer.json"))


def check_tokenizer(name: str | Path, corpus: data.Corpus) -> None:
    """UserError if a model has a tokenizer.json that gives other tokens than a corpus has."""
    path = model_folder(name) / "tokenizer.json"
    if path.exists() and read_json(path)["model"]["vocab"] != token_names(corpus):
        raise UserError(
            f"{corpus.name} has another tokenizer than {name}: prepare its text with "
            f"--tokenizer={name}"
        )


def main() -> None:
    """Write a run as a Hugging Face model."""
    from runs.checkpoint import load_run  # which itself reads pretrained models by this module

    if len(sys.argv) != 3:
        raise UserError("name a run and a new folder: python -m runs.huggingface out/RUN FOLDER")
    run = load_run(sys.argv[1], device="cpu")
    config = save_model(run.model, sys.argv[2], run.corpus)
    print(f"{sys.argv[2]}: a {config['model_type']} of {run.model.parameter_count:,} parameters")


if __name__ == "__main__":
    run_program(main)
