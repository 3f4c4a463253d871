"""Models of Hugging Face and ours, both ways, without `transformers`.

    python -m runs.huggingface out/RUN FOLDER        # write a run, with its tokenizer

    model = load_model("HuggingFaceTB/SmolLM-135M")  # a name, which is downloaded, or a folder
    save_model(model, "folder")                      # AutoModelForCausalLM reads it

GPT-2 is `learned`, GPT-NeoX and the Llamas are `rope`, BLOOM is `alibi`. FAMILIES says what each
calls our settings and weights; reading and writing both follow it. SmolLM3, Cohere2 and OLMo 3,
patterns over layers, are only read. A setting or a weight that has no counterpart is refused in one
sentence, never left out.
"""

import json
import re
import shutil
import sys
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

import data
from configurable import GPTConfig, UserError, read_json, run_program, write_json
from data.download import model_folder
from model import GPT
from posenc import Piece
from scheme import all_pieces, options_of, parse

# The words of each family for ours, by model_type (SmolLM and TinyLlama are of type llama):
#   class        the class in transformers
#   pos          our scheme
#   options      its options that the family also has: our name -> theirs
#   ours         settings of ours that every model of the family has
#   activations  theirs -> our `mlp`; where several mean the same, the last one is written
#   transposed   matrices are (in, out)
#   by_head      the queries, keys and values of a head are stored together: (heads, 3, D)
#   settings     our names and theirs
#   defaults     the values of theirs that config.json may leave out
#   layers       their name for our `h`, before the number of a layer
#   weights      our module and theirs, or those of theirs that ours stacks


def table(text):
    """The lines of a table: the first word, and the words after it."""
    return dict(line.split(maxsplit=1) for line in text.strip().splitlines())


GELU = {"gelu_fast": "gelu", "gelu_pytorch_tanh": "gelu", "gelu_new": "gelu", "gelu": "gelu_exact"}
LLAMA = {
    "class": "LlamaForCausalLM",
    "pos": "rope",
    "options": {"base": "rope_theta"},
    "ours": {"norm": "rmsnorm"},
    "activations": {"swish": "swiglu", "silu": "swiglu"},
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
        mlp             hidden_act
        norm_eps        rms_norm_eps
        tie_embeddings  tie_word_embeddings
    """),
    "defaults": {"hidden_act": "silu", "rms_norm_eps": 1e-6},
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
    "defaults": {"hidden_act": "silu", "rms_norm_eps": 1e-5},
    "weights": {
        **LLAMA["weights"],
        "ln_1": "post_attention_layernorm",
        "ln_2": "post_feedforward_layernorm",
    },
}
FAMILIES = {
    "gpt2": {
        "class": "GPT2LMHeadModel",
        "pos": "learned",
        "options": {},
        "ours": {},
        "activations": GELU,
        "layers": "transformer.h",
        "transposed": True,
        "settings": table("""
            vocab_size      vocab_size
            n_layer         n_layer
            n_head          n_head
            n_embd          n_embd
            n_inner         n_inner
            block_size      n_positions
            mlp             activation_function
            norm_eps        layer_norm_epsilon
            tie_embeddings  tie_word_embeddings
        """),
        "defaults": {
            "activation_function": "gelu_new",
            "layer_norm_epsilon": 1e-5,
            "tie_word_embeddings": True,
        },
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
        "ours": {},
        "activations": GELU,
        "layers": "gpt_neox.layers",
        "by_head": True,
        "settings": table("""
            vocab_size      vocab_size
            n_layer         num_hidden_layers
            n_head          num_attention_heads
            n_embd          hidden_size
            n_inner         intermediate_size
            block_size      max_position_embeddings
            mlp             hidden_act
            norm_eps        layer_norm_eps
            tie_embeddings  tie_word_embeddings
            parallel_blocks use_parallel_residual
        """),
        "defaults": {
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-5,
            "rotary_pct": 0.25,
            "use_parallel_residual": True,
        },
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
    "mistral": LLAMA,
    "qwen2": LLAMA,
    "qwen3": {
        **LLAMA,
        "class": "Qwen3ForCausalLM",
        "ours": {"norm": "rmsnorm", "qk_norm": True},
    },
    "smollm3": {
        **LLAMA,
        "defaults": {
            **LLAMA["defaults"],
            "rope_theta": 2000000.0,
            "tie_word_embeddings": True,
        },
    },
    "cohere2": {
        **LLAMA,
        "options": {"base": "rope_theta", "layout": "layout"},
        "ours": {"parallel_blocks": True},
        "settings": {**LLAMA["settings"], "norm_eps": "layer_norm_eps"},
        "defaults": {
            "hidden_act": "silu",
            "layer_norm_eps": 1e-5,
            "layout": "interleaved",
            "sliding_window_pattern": 4,
            "tie_word_embeddings": True,
        },
        "weights": {**LLAMA["weights"], "ln_2": "input_layernorm"},  # one norm for both
    },
    "olmo2": OLMO2,
    "olmo3": {
        **OLMO2,
        "defaults": {
            **OLMO2["defaults"],
            "rope_theta": 500000.0,
            "sliding_attention": {"rope_type": "default", "rope_theta": 500000.0},
            "sliding_window_pattern": 4,
        },
    },
    "bloom": {
        "class": "BloomForCausalLM",
        "pos": "alibi",
        "options": {},
        "ours": {"embedding_norm": True},
        "activations": {"gelu": "gelu"},
        "layers": "transformer.h",
        "by_head": True,
        "settings": table("""
            vocab_size      vocab_size
            n_layer         n_layer
            n_head          n_head
            n_embd          hidden_size
            block_size      seq_length
            mlp             activation
            norm_eps        layer_norm_epsilon
            tie_embeddings  tie_word_embeddings
        """),
        "defaults": {
            "activation": "gelu",
            "layer_norm_epsilon": 1e-5,
            "seq_length": 2048,
            "tie_word_embeddings": True,
        },
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
    "default": ("", {}),
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
# names that a config.json may use for one of the above: BLOOM's first models, transformers 5
SYNONYMS = {
    "n_embed": "hidden_size",
    "num_attention_heads": "n_head",
    "rope_theta": "rotary_emb_base",
    "partial_rotary_factor": "rotary_pct",
    "type": "rope_type",
}
ORIGINAL = "original_max_position_embeddings"  # the length first trained at, but not of `dynamic`
LAYERED = ("mistral", "smollm3", "cohere2", "olmo3")  # families whose layers may differ
# settings that are supported at one value only, which a config.json may leave out
FIXED = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "apply_residual_connection_post_layernorm": False,
    "use_sliding_window": False,
    "quantization_config": None,
    "attention_factor": None,
    "mscale": None,
    "mscale_all_dim": None,
}


# ---- settings


def in_full(config):
    """The settings of a model, with no width and no option of a scheme left to its default."""
    settings = asdict(config) | dict(
        n_inner=config.mlp_width,
        n_kv_head=config.kv_heads,
        head_dim=config.head_width,
        dropout=0.0,  # none after the training
    )
    for name in ("pos", "extend"):  # as [(scheme, its options), ...]
        schemes = []
        for mention in parse(settings[name] or "none").mentions:
            cls = all_pieces().get(mention.name, Piece)  # a user's own is in no family anyway
            options = {key: default for key, (_, default) in options_of(cls).items()}
            schemes.append((mention.name, options | mention.options))
        settings[name] = schemes
    return settings


def expression(name, options, theirs):
    """Our text of a scheme or an extension, with the options that their settings have."""
    values = [f"{ours}={theirs[key]}" for ours, key in options.items() if key in theirs]
    return f"{name}({', '.join(values)})" if values else name


def read_positions(kind, theirs, n_layer):
    """Our `pos` for a model of a family: the shortest pattern of rotations and windows by layer.

    UserError for a kind of layer that is not computed here.
    """
    family = FAMILIES[kind]
    layers = []
    for n in range(n_layer):
        layer_type = "full_attention"
        if "layer_types" in theirs:
            layer_type = theirs["layer_types"][n]
        elif kind == "mistral" and "sliding_window" in theirs:
            layer_type = "sliding_attention"
        elif kind in ("cohere2", "olmo3") and (n + 1) % theirs["sliding_window_pattern"] != 0:
            layer_type = "sliding_attention"
        words = theirs | theirs.get(layer_type, {})  # olmo3 has rotary settings for each type
        for rope_type in (theirs["rope_type"], words["rope_type"]):
            if kind == "olmo3" and rope_type != "default":
                raise UserError(f"it is of type olmo3 with rope_type {rope_type}")
        layer = expression(family["pos"], family["options"], words)
        if kind == "cohere2" and layer_type == "full_attention":
            layer = "nope"
        if kind == "smollm3":
            # misnamed: 1 means that the layer rotates
            layer = layer if theirs["no_rope_layers"][n] else "nope"
        if layer_type == "sliding_attention" and kind in LAYERED:
            layer += f" + window(size={theirs['sliding_window']})"
        elif layer_type != "full_attention":
            raise UserError(f"it is of type {kind}, with {layer_type} in layer_types")
        layers.append(layer)

    period = 1
    while layers[period:] != layers[:-period]:
        period += 1
    branches = []
    for layer, run in groupby(layers[:period]):
        count = len(list(run))
        branches.append(f"{count} * ({layer})" if count > 1 else layer)
    return " | ".join(branches)


def read_settings(config, bias):
    """Our settings for a config.json, of weights with or without biases.

    UserError for what is not computed here.
    """
    kind = config.get("model_type")
    if kind not in FAMILIES:
        raise UserError(f"it is of type {kind}; known are {', '.join(FAMILIES)}")
    family = FAMILIES[kind]
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    theirs = {"rope_type": "default", "tie_word_embeddings": False, **FIXED, **family["defaults"]}
    for name, value in {**config, **rope}.items():
        if value is not None:
            theirs[name] = theirs[SYNONYMS.get(name, name)] = value
    if theirs["rope_type"] not in ("default", "dynamic") and ORIGINAL in theirs:
        theirs["max_position_embeddings"] = theirs[ORIGINAL]

    ours = {"bias": bias, **family["ours"]}
    for name, key in family["settings"].items():
        ours[name] = theirs.get(key)
    rope_type = theirs["rope_type"]
    refused = [f"{key}={theirs[key]}" for key in FIXED if theirs[key] != FIXED[key]]
    if ours["mlp"] not in family["activations"]:
        refused.append(f"activation {ours['mlp']}")
    if rope_type not in EXTENSIONS:
        refused.append(f"rope_type {rope_type}")
    if refused:
        raise UserError(
            f"it is of type {kind} with {', '.join(refused):.200}, which is not supported"
        )

    ours["mlp"] = family["activations"][ours["mlp"]]
    ours["pos"] = read_positions(kind, theirs, ours["n_layer"])
    extension, options = EXTENSIONS[rope_type]
    ours["extend"] = expression(extension, options, theirs)
    return GPTConfig(**ours)


def write_settings(config):
    """The config.json of the family that our model is of; UserError says what it lacks for that."""
    ours = in_full(config)
    scheme, options = ours["pos"][0]
    kind = {False: "llama", True: "qwen3", "all": "olmo2"}[config.qk_norm]
    if config.bias:
        kind = "llama"  # the only one of the three with biases in each layer
    if config.norm == "layernorm":
        kind = {"learned": "gpt2", "alibi": "bloom"}.get(scheme, "gpt_neox")
    family = FAMILIES[kind]
    theirs = {
        "model_type": kind,
        "architectures": [family["class"]],
        "dtype": "float32",
        "attention_bias": config.bias,
        "mlp_bias": config.bias,
        "bos_token_id": None,  # not GPT-2's
        "pad_token_id": None,
        "eos_token_id": None,
    }
    words = ours | options
    # where several names mean the same, the last one; an unknown one is refused below
    words["mlp"] = list(family["activations"])[-1]
    for activation, mlp in family["activations"].items():
        if mlp == config.mlp:
            words["mlp"] = activation
    for name, key in (family["settings"] | family["options"]).items():
        theirs[key] = words.get(name)
    extension, values = ours["extend"][0]
    for rope_type, (name, options) in EXTENSIONS.items():
        if name == extension and values["factor"] != "auto":
            rope = {key: values[option] for option, key in options.items()}
            theirs["rope_scaling"] = {"rope_type": rope_type, **rope}
            if rope_type != "dynamic":
                theirs["rope_scaling"][ORIGINAL] = config.block_size
                theirs["max_position_embeddings"] = round(config.block_size * values["factor"])

    # reading it back must give the same settings
    nearest = in_full(read_settings(theirs, config.bias))
    unlike = [f"{name}={x}, not {ours[name]}" for name, x in nearest.items() if x != ours[name]]
    if unlike:
        raise UserError(
            f"no Hugging Face architecture matches this model: the nearest, {kind}, has "
            f"{' and '.join(unlike)}; the settings in config/arch can be exported"
        )
    return theirs


# ---- weights


def their_weights(model, kind):
    """The name of each weight of theirs, a view of it in our parameters, and its shape.

    What is written into a view is written into our model. Where heads are apart in theirs, the view
    has more dimensions than their shape.
    """
    family = FAMILIES[kind]
    for name, x in model.named_parameters():
        layer, module, suffix = re.fullmatch(r"(?:h\.(\d+)\.)?(.+)\.(\w+)", name).groups()
        suffix = suffix.replace("table", "weight")  # of learned positions
        prefix = f"{family['layers']}.{layer}." if layer else ""
        names = family["weights"][module].split()
        parts = x.chunk(len(names))
        if len(names) == 3:  # queries, keys and values
            parts = x.split(model.h[0].attn.widths)
        for their_name, part in zip(names, parts, strict=True):
            if "transposed" in family and ".c_" in name and x.dim() == 2:
                part = part.T
            shape = part.shape
            if "by_head" in family and ".c_attn" in name:  # (heads, 3, D, ...)
                part = part.unflatten(0, (3, model.config.n_head, -1)).transpose(0, 1)
            yield f"{prefix}{their_name}.{suffix}", part, shape


def is_huggingface(name: str) -> bool:
    """Whether it names a folder of a Hugging Face model, or perhaps one to download."""
    config = Path(name, "config.json")
    if config.is_file():
        return b'"model_type"' in config.read_bytes()
    if Path(name.partition("/")[0]).exists():
        return False
    return re.fullmatch(r"gpt2[a-z-]*|(?!out/)[\w.-]+/[\w.-]+", name) is not None


def weight_files(folder: Path) -> list[Path]:
    """The files of a model's weights: model.safetensors, or those that its index names.

    UserError if there are none, or both.
    """
    index = folder / "model.safetensors.index.json"
    files = [folder / "model.safetensors"]
    if index.is_file():
        if files[0].is_file():
            raise UserError(
                f"{folder} has both {files[0].name} and {index.name}, perhaps of different "
                "weights: delete one"
            )
        files = [folder / name for name in sorted({*read_json(index)["weight_map"].values()})]
    for file in files:
        if not file.is_file():
            raise UserError(f"{folder} has no {file.name}, which holds its weights")
    return files


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
        for file in weight_files(folder):
            for key, x in load_file(file).items():
                # old files of gpt2 and bloom have no prefix, and there are buffers in them
                key = re.sub(r"^(h|ln_f|wte|wpe|word_embeddings\w*)\.", r"transformer.\1.", key)
                if not re.search(r"\.(attn|attention)\.(masked_)?bias$|rotary_emb\.inv_freq$", key):
                    weights[key] = x
        has_bias = any(key.endswith(".bias") for key in weights)
        model = GPT(read_settings(config, has_bias)).eval()
        scale = float(config.get("logit_scale", 0.0625))
    except (
        SafetensorError,
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ) as error:
        raise UserError(f"{name} cannot be read here: {error!s:.300}") from error

    kind = config["model_type"]
    left_over = set(weights)
    for their_name, view, shape in their_weights(model, kind):
        theirs = weights.get(their_name)
        left_over.discard(their_name)
        if theirs is None and their_name.endswith(".bias"):
            continue  # new biases are 0
        if theirs is None or theirs.shape != shape:
            raise UserError(f"{name} lacks the weight {their_name} of shape {tuple(shape)}")
        view.copy_(theirs.reshape(view.shape))
    if model.config.tie_embeddings:
        left_over.discard("lm_head.weight")
    if left_over:
        raise UserError(
            f"{name} has weights that a {kind} does not have: {', '.join(sorted(left_over)):.200}"
        )
    if kind == "cohere2":
        model.ln_f.weight *= scale
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
    # families with LayerNorm have biases: those that ours lacks are 0
    bias = model.config.bias or model.config.norm == "layernorm"
    settings = replace(model.config, extend=model.pos.extend_text, bias=bias)
    config = write_settings(settings)
    complete = GPT(settings)
    complete.load_state_dict(model.state_dict(), strict=False)
    weights = {
        name: view.reshape(shape).clone().contiguous()
        for name, view, shape in their_weights(complete, config["model_type"])
    }
    folder.mkdir(parents=True)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    if corpus is not None:
        config["eos_token_id"] = corpus.tokenizer.end
        save_tokenizer(corpus, folder)
    write_json(folder / "config.json", config)  # last: without it this is no model
    return config


# ---- tokenizers


def token_names(corpus):
    """The vocabulary of a corpus as a tokenizer.json has it: the number of each token."""
    names = corpus.meta.get("characters") or map(data.signs_of, corpus.tokenizer.vocabulary)
    return {name: n for n, name in enumerate(names)}


def save_tokenizer(corpus, folder):
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


def check_tokenizer(name: str | Path, corpus: data.Corpus) -> int | None:
    """The token that a model's tokenizer puts before a text, as Llama's <s>; None without one.

    UserError if a model has a tokenizer.json that gives other tokens than a corpus has.
    """
    path = model_folder(name) / "tokenizer.json"
    if not path.exists():
        return None
    tokenizer = data.read_tokenizer(path)
    if corpus.meta["tokenizer"] == "file":
        is_same = cuts(tokenizer) == cuts(corpus.tokenizer.inner)
    else:
        is_same = tokenizer.get_vocab() == token_names(corpus)
    if not is_same:
        raise UserError(
            f"{corpus.name} has another tokenizer than {name}: prepare its text with "
            f"--tokenizer={name}"
        )
    text = corpus.tokenizer.decode(corpus.val[:9])
    first = tokenizer.encode(text).ids[0]
    plain = tokenizer.encode(text, add_special_tokens=False).ids[0]
    return None if first == plain else first


def cuts(tokenizer):
    """What decides how a tokenizers.Tokenizer cuts a text into tokens."""
    content = json.loads(tokenizer.to_str())
    return [content[key] for key in ("model", "normalizer", "pre_tokenizer", "added_tokens")]


def main() -> None:
    """Write a run as a Hugging Face model."""
    from runs.checkpoint import load_run  # which itself reads pretrained models by this module

    if len(sys.argv) != 3:
        raise UserError("name a run and a new folder: python -m runs.huggingface out/RUN FOLDER")
    run = load_run(sys.argv[1], device="cpu")
    config = save_model(run.model, sys.argv[2], run.corpus)
    print(f"{sys.argv[2]}: of type {config['model_type']}")


if __name__ == "__main__":
    run_program(main)
