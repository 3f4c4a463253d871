"""Models of Hugging Face and ours, both ways, without `transformers`.

    python -m runs.huggingface out/RUN FOLDER        # write a run, with its tokenizer

    model = load_model("HuggingFaceTB/SmolLM-135M")  # a name, which is downloaded, or a folder
    save_model(model, "folder")                      # AutoModelForCausalLM reads it

GPT-2 is `learned`, GPT-NeoX and the Llamas are `rope`, BLOOM is `alibi`. FAMILIES says what each
calls our settings and weights; reading and writing both follow it. A setting or a weight that has
no counterpart is refused in one sentence, never left out.
"""

import math
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import data
from configurable import GPTConfig, UserError, read_json, run_program, write_json
from model import GPT
from scheme import extended_frequencies, parse

Table = dict[str, Any]  # a config.json, or a part of the tables below
ORIGINAL = "original_max_position_embeddings"
NONE = "no model of Hugging Face can be this one"
BUFFERS = re.compile(r"\.(attn|attention)\.(masked_)?bias$|rotary_emb\.inv_freq$")  # in old files
GELU = {"gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "gelu_fast": "gelu", "gelu": "gelu_exact"}

# How a family says what ours says, by model_type (SmolLM and TinyLlama are of type llama):
#   settings     our setting -> theirs, and defaults: what a config.json means that does not say it
#   weights      our module -> theirs, or several of theirs that ours stacks; N is the layer
#   prefix       of the names of weights; some files leave it out
#   rope         options of our rope -> theirs, and what it is if left out
#   ours         settings of ours that every model of the family has
#   activations  theirs -> our `mlp`
#   biases       the settings that say whether there are any; None: there are always
#   transposed   matrices are (in, out)
#   by_head      queries, keys and values of a head stand together: (heads, 3, D)
LLAMA = {
    "architecture": "LlamaForCausalLM",
    "pos": "rope",
    "prefix": "model.",
    "rope": {"base": ("rope_theta", 10000.0)},
    "ours": {"norm": "rmsnorm"},
    "activations": {"silu": "swiglu", "swish": "swiglu"},
    "biases": ["attention_bias", "mlp_bias"],
    "settings": {
        "vocab_size": "vocab_size",
        "tie_embeddings": "tie_word_embeddings",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "n_embd": "hidden_size",
        "n_inner": "intermediate_size",
        "n_kv_head": "num_key_value_heads",
        "head_dim": "head_dim",
        "block_size": "max_position_embeddings",
        "mlp": "hidden_act",
        "norm_eps": "rms_norm_eps",
    },
    "defaults": {
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "num_key_value_heads": None,
        "head_dim": None,
    },
    "weights": {
        "wte": "model.embed_tokens",
        "h.N.ln_1": "model.layers.N.input_layernorm",
        "h.N.attn.c_attn": [f"model.layers.N.self_attn.{x}_proj" for x in "qkv"],
        "h.N.attn.q_norm": "model.layers.N.self_attn.q_norm",
        "h.N.attn.k_norm": "model.layers.N.self_attn.k_norm",
        "h.N.attn.c_proj": "model.layers.N.self_attn.o_proj",
        "h.N.ln_2": "model.layers.N.post_attention_layernorm",
        "h.N.mlp.c_fc": ["model.layers.N.mlp.gate_proj", "model.layers.N.mlp.up_proj"],
        "h.N.mlp.c_proj": "model.layers.N.mlp.down_proj",
        "ln_f": "model.norm",
        "lm_head": "lm_head",
    },
}
FAMILIES = {
    "gpt2": {
        "architecture": "GPT2LMHeadModel",
        "pos": "learned",
        "prefix": "transformer.",
        "ours": {},
        "activations": GELU,
        "biases": None,
        "transposed": True,
        "settings": {
            "vocab_size": "vocab_size",
            "tie_embeddings": "tie_word_embeddings",
            "n_layer": "n_layer",
            "n_head": "n_head",
            "n_embd": "n_embd",
            "n_inner": "n_inner",
            "block_size": "n_positions",
            "mlp": "activation_function",
            "norm_eps": "layer_norm_epsilon",
        },
        "defaults": {
            "activation_function": "gelu_new",
            "layer_norm_epsilon": 1e-5,
            "tie_word_embeddings": True,
            "n_inner": None,
        },
        "weights": {
            "wte": "transformer.wte",
            "pos.pieces.0_learned": "transformer.wpe",
            "h.N.ln_1": "transformer.h.N.ln_1",
            "h.N.attn.c_attn": "transformer.h.N.attn.c_attn",
            "h.N.attn.c_proj": "transformer.h.N.attn.c_proj",
            "h.N.ln_2": "transformer.h.N.ln_2",
            "h.N.mlp.c_fc": "transformer.h.N.mlp.c_fc",
            "h.N.mlp.c_proj": "transformer.h.N.mlp.c_proj",
            "ln_f": "transformer.ln_f",
            "lm_head": "lm_head",
        },
    },
    "gpt_neox": {
        "architecture": "GPTNeoXForCausalLM",
        "pos": "rope",
        "prefix": "gpt_neox.",
        "rope": {"base": ("rotary_emb_base", 10000.0), "fraction": ("rotary_pct", 1.0)},
        "ours": {},
        "activations": GELU,
        "biases": None,
        "by_head": True,
        "settings": {
            "vocab_size": "vocab_size",
            "tie_embeddings": "tie_word_embeddings",
            "n_layer": "num_hidden_layers",
            "n_head": "num_attention_heads",
            "n_embd": "hidden_size",
            "n_inner": "intermediate_size",
            "block_size": "max_position_embeddings",
            "mlp": "hidden_act",
            "norm_eps": "layer_norm_eps",
            "parallel_blocks": "use_parallel_residual",
        },
        "defaults": {
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-5,
            "tie_word_embeddings": False,
            "use_parallel_residual": True,
            "rotary_pct": 0.25,
        },
        "weights": {
            "wte": "gpt_neox.embed_in",
            "h.N.ln_1": "gpt_neox.layers.N.input_layernorm",
            "h.N.attn.c_attn": "gpt_neox.layers.N.attention.query_key_value",
            "h.N.attn.c_proj": "gpt_neox.layers.N.attention.dense",
            "h.N.ln_2": "gpt_neox.layers.N.post_attention_layernorm",
            "h.N.mlp.c_fc": "gpt_neox.layers.N.mlp.dense_h_to_4h",
            "h.N.mlp.c_proj": "gpt_neox.layers.N.mlp.dense_4h_to_h",
            "ln_f": "gpt_neox.final_layer_norm",
            "lm_head": "embed_out",
        },
    },
    "llama": LLAMA,
    "mistral": {**LLAMA, "architecture": "MistralForCausalLM", "biases": []},
    "qwen2": {**LLAMA, "architecture": "Qwen2ForCausalLM", "biases": []},
    "qwen3": {
        **LLAMA,
        "architecture": "Qwen3ForCausalLM",
        "biases": [],
        "ours": {"norm": "rmsnorm", "qk_norm": True},
    },
    "bloom": {
        "architecture": "BloomForCausalLM",
        "pos": "alibi",
        "prefix": "transformer.",
        "ours": {"embedding_norm": True, "mlp": "gelu"},
        "biases": None,
        "by_head": True,
        "settings": {
            "vocab_size": "vocab_size",
            "tie_embeddings": "tie_word_embeddings",
            "n_layer": "n_layer",
            "n_head": "n_head",
            "n_embd": "hidden_size",
            "block_size": "seq_length",
            "norm_eps": "layer_norm_epsilon",
        },
        "defaults": {
            "layer_norm_epsilon": 1e-5,
            "tie_word_embeddings": True,
            "seq_length": 2048,
        },
        "weights": {
            "wte": "transformer.word_embeddings",
            "ln_e": "transformer.word_embeddings_layernorm",
            "h.N.ln_1": "transformer.h.N.input_layernorm",
            "h.N.attn.c_attn": "transformer.h.N.self_attention.query_key_value",
            "h.N.attn.c_proj": "transformer.h.N.self_attention.dense",
            "h.N.ln_2": "transformer.h.N.post_attention_layernorm",
            "h.N.mlp.c_fc": "transformer.h.N.mlp.dense_h_to_4h",
            "h.N.mlp.c_proj": "transformer.h.N.mlp.dense_4h_to_h",
            "ln_f": "transformer.ln_f",
            "lm_head": "lm_head",
        },
    },
}
# settings that change what is computed, and the value that ours computes
ONLY = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "apply_residual_connection_post_layernorm": False,
    "use_sliding_window": False,
    "quantization_config": None,
    "mscale_all_dim": None,
}
# their rope_type -> our extension, and its options: ours -> theirs, and what it is if left out
EXTENSIONS = {
    "linear": ("pi", {"factor": ("factor", "auto")}),
    "dynamic": ("dynamic_ntk", {"factor": ("factor", 1.0)}),
    "yarn": (
        "yarn",
        {
            "factor": ("factor", "auto"),
            "alpha": ("beta_slow", 1.0),
            "beta": ("beta_fast", 32.0),
            "truncate": ("truncate", True),
            "mscale": ("attention_factor", 1.0),  # which is 0.1 mscale ln(factor) + 1
        },
    ),
    "llama3": (
        "llama3",
        {
            "factor": ("factor", "auto"),
            "low": ("low_freq_factor", 1.0),
            "high": ("high_freq_factor", 4.0),
        },
    ),
}
LONGER = ("yarn", "llama3")  # their max_position_embeddings is the length after extending


# ---- settings


def expression(name: str, options: Table, theirs: Table) -> str:
    """Our text of a scheme or an extension with the options that theirs has, without defaults."""
    words = []
    for option, (key, default) in options.items():
        value = theirs.get(key)
        if value is not None and value != default:
            words.append(f"{option}={value!r}")
    return f"{name}({', '.join(words)})" if words else name


def read_settings(config: Table, bias: bool) -> GPTConfig:
    """Our settings for a config.json, of weights with or without biases.

    KeyError for what it does not say, UserError for what is not computed here.
    """
    kind = config["model_type"]
    if kind not in FAMILIES:
        raise UserError(f"it is of type {kind}; known are {', '.join(FAMILIES)}")
    family = FAMILIES[kind]
    theirs = {**family["defaults"], **config}
    theirs.update(config.get("rope_scaling") or config.get("rope_parameters") or {})
    for key, value in ONLY.items():
        if theirs.get(key, value) not in (value, None):
            raise UserError(f"it has {key}={theirs[key]!r:.60}, which is not computed here")
    for new, old in (("hidden_size", "n_embed"), ("n_head", "num_attention_heads")):  # of BLOOM
        theirs.setdefault(new, theirs.get(old))
    ours = {name: theirs[key] for name, key in family["settings"].items()}
    ours.update(family["ours"], pos=family["pos"], bias=bias)
    if "activations" in family:
        ours["mlp"] = family["activations"][ours["mlp"]]

    if family["pos"] == "rope":  # transformers 5 has one name for base and fraction, 4 had more
        base = theirs.get("rope_theta", theirs.get("rotary_emb_base"))
        fraction = theirs.get("partial_rotary_factor", theirs.get("rotary_pct"))
        theirs.update(rope_theta=base, rotary_emb_base=base, rotary_pct=fraction)
        ours["pos"] = expression("rope", family["rope"], theirs)
        if kind != "gpt_neox" and fraction not in (None, 1.0):
            raise UserError(f"a {kind} that turns a part of its columns is not computed here")
    if kind == "mistral" and theirs.get("sliding_window"):
        ours["pos"] += f" + window(size={theirs['sliding_window']})"

    rope_type = theirs.get("rope_type", theirs.get("type", "default"))
    if rope_type != "default":
        extension, options = EXTENSIONS[rope_type]
        length = ours["block_size"]
        if rope_type in LONGER:
            ours["block_size"] = theirs.get(ORIGINAL, length)
        factor = theirs.get("factor") or length / ours["block_size"]
        mscale = theirs.get("attention_factor")
        if mscale is not None:
            mscale = round((mscale - 1) / (0.1 * math.log(factor)), 12)
        if mscale is not None and "mscale" not in options:
            raise UserError(f"it has an attention_factor with {rope_type}, not computed here")
        theirs.update(factor=factor, attention_factor=mscale)
        ours["extend"] = expression(extension, options, theirs)
    return GPTConfig(**ours)


def explicit(c: GPTConfig) -> GPTConfig:
    """The same settings with no width left to its default."""
    return replace(c, n_inner=c.mlp_width, n_kv_head=c.kv_heads, head_dim=c.head_width)


def write_settings(config: GPTConfig) -> Table:
    """The config.json of the family that our model is of; UserError says what it lacks for that."""
    scheme, *others = parse(config.pos).mentions
    if scheme.name == "learned":
        kind = "gpt2"
    elif scheme.name == "alibi":
        kind = "bloom"
    elif config.norm == "layernorm":
        kind = "gpt_neox"
    elif config.qk_norm:
        kind = "qwen3"
    else:
        kind = "llama"
    family = FAMILIES[kind]
    ours = asdict(explicit(config))
    theirs = {"model_type": kind, "architectures": [family["architecture"]]}
    theirs.update({key: ours[name] for name, key in family["settings"].items()})
    theirs.update({key: config.bias for key in family["biases"] or ()})
    for activation, mlp in family.get("activations", {}).items():
        if mlp == config.mlp:
            theirs[family["settings"]["mlp"]] = activation
            break
    options = family.get("rope", {})
    for option, (key, default) in options.items():
        theirs[key] = scheme.options.get(option, default)

    # whoever reads this must understand what was meant
    again = asdict(explicit(read_settings(theirs, config.bias)))
    ours.update(dropout=again["dropout"], extend="")
    if not others and scheme.name == family["pos"] and scheme.options.keys() <= options.keys():
        ours["pos"] = again["pos"]
    misfits = [f"{name}={x}, not {ours[name]}" for name, x in again.items() if x != ours[name]]
    if misfits:
        problem = f"{NONE}: the nearest, {kind}, has {' and '.join(misfits)}"
        raise UserError(f"{problem}; config/arch has settings that one can be")
    if not config.extend:
        return theirs

    extension, *others = parse(config.extend).mentions
    for rope_type, (name, options) in EXTENSIONS.items():
        unknown = extension.options.keys() - options.keys()
        factor = extension.options.get("factor", "auto")
        if name != extension.name or others or unknown or factor == "auto":
            continue
        rope = {key: extension.options.get(o, default) for o, (key, default) in options.items()}
        rope["rope_type"] = rope_type
        if rope_type == "yarn":
            _, rope["attention_factor"] = extended_frequencies(
                config.extend, config.head_width, train_length=config.block_size
            )
        if rope_type in LONGER:
            rope[ORIGINAL] = config.block_size
            theirs[family["settings"]["block_size"]] = round(config.block_size * factor)
        return {**theirs, "rope_scaling": rope}
    raise UserError(f"{NONE}: no rope_scaling is {config.extend}")


# ---- weights


def their_weights(family: Table, c: GPTConfig, name: str, x: Tensor) -> Iterator:
    """(their name, view of x) for each of their weights in our parameter `name`.

    A view is written or read in place. Where it has more dimensions than x, theirs joins the first.
    """
    module, _, kind = name.rpartition(".")
    layer, place = re.fullmatch(r"(?:h\.(\d+))?(.*)", module).groups()
    theirs = family["weights"][f"h.N{place}" if layer else place]
    parts = [x]
    if isinstance(theirs, str):
        theirs = [theirs]
    elif len(theirs) == 2:
        parts = x.chunk(2)
    else:  # queries, keys and values
        parts = x.split([n * c.head_width for n in (c.n_head, c.kv_heads, c.kv_heads)])
    for their, part in zip(theirs, parts, strict=True):
        if "transposed" in family and ".c_" in name and x.dim() == 2:
            part = part.T
        if "by_head" in family and ".c_attn" in name:
            part = part.unflatten(0, (3, c.n_head, -1)).transpose(0, 1)  # (heads, 3, D, ...)
        their = their.replace(".N.", f".{layer}.")
        yield f"{their}.bias" if kind == "bias" else f"{their}.weight", part


def model_folder(name: str | Path) -> Path:
    """The folder of a model: itself, or where a downloaded one is kept; UserError for none."""
    if Path(name).is_dir():
        return Path(name)
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(str(name), allow_patterns=["*.json", "model*.safetensors"]))
    except (ImportError, OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        need = "a name needs a network and huggingface_hub (pip)"
        raise UserError(f"{name} is neither a folder nor a model ({reason}); {need}") from error


def is_huggingface(name: str) -> bool:
    """Whether it names a folder of a Hugging Face model, or perhaps one to download."""
    config = Path(name, "config.json")
    if Path(name).exists():
        return config.is_file() and b'"model_type"' in config.read_bytes()
    owner = re.fullmatch(r"gpt2[a-z-]*|([\w.-]+)/[\w.-]+", name)
    return owner is not None and owner[1] != "out" and not Path(owner[1] or name).exists()


@torch.no_grad()
def load_model(name: str | Path) -> GPT:
    """The model of a folder or a name, ready to be tested: float32, on the CPU.

    UserError names a setting that is not computed here, and a weight that is missing, of another
    shape or left over.
    """
    folder = model_folder(name)
    config = read_json(folder / "config.json")
    files = [*folder.glob("model*.safetensors")] or [*folder.glob("pytorch_model*.bin")]
    weights = {}
    try:
        for file in files:
            if file.suffix == ".bin":
                weights.update(torch.load(file, map_location="cpu", weights_only=True))
            else:
                from safetensors.torch import load_file

                weights.update(load_file(file))
    except Exception as error:  # a damaged file may raise anything
        problem = f"the weights of {name} cannot be read ({error!s:.160})"
        raise UserError(f"{problem}; this needs safetensors (pip) and whole files") from error
    weights = {key: x for key, x in weights.items() if not BUFFERS.search(key)}
    try:
        settings = read_settings(config, any(key.endswith(".bias") for key in weights))
        model = GPT(settings).eval()
    except KeyError as error:
        raise UserError(f"{name}: its config.json lacks or has an unknown {error}") from error
    except (TypeError, ValueError, ArithmeticError) as error:
        raise UserError(f"{name} cannot be read here: {error}") from error

    family = FAMILIES[config["model_type"]]
    outside = (family["prefix"], "lm_head", "embed_out")
    weights = {k if k.startswith(outside) else family["prefix"] + k: x for k, x in weights.items()}
    for our_name, x in model.named_parameters():
        for their_name, view in their_weights(family, settings, our_name, x):
            theirs = weights.pop(their_name, None)
            shape = view.flatten(0, view.dim() - x.dim()).shape
            if theirs is None and our_name.endswith(".bias"):
                view.zero_()
            elif theirs is None or theirs.shape != shape:
                raise UserError(f"{name} lacks the weight {their_name} of shape {tuple(shape)}")
            else:
                view.copy_(theirs.reshape(view.shape))
    if settings.tie_embeddings:
        output = weights.pop("lm_head.weight", model.wte.weight)
        if not torch.equal(output.to(model.wte.weight), model.wte.weight):
            raise UserError(f"{name} has an output layer of its own, but says tie_word_embeddings")
    if weights:
        raise UserError(
            f"{name} has weights of no {config['model_type']}: {sorted(weights)!s:.200}"
        )
    return model


@torch.no_grad()
def save_model(model: GPT, folder: str | Path, corpus: data.Corpus | None = None) -> Table:
    """Write a folder that transformers loads, complete or not at all; its config.

    With a corpus, its tokenizer goes along. UserError, in one sentence, for a model that no family
    can be, and for a folder that holds something.
    """
    from safetensors.torch import save_file

    folder = Path(folder)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError(f"{folder} is not empty: name a new folder")
    config = write_settings(model.config)
    family = FAMILIES[config["model_type"]]
    if model.config.bias and family["biases"] == []:
        raise UserError(f"{NONE}: a {config['model_type']} has no biases: train with --bias=False")
    weights = {}
    complete = model
    if family["biases"] is None:  # biases that ours lacks are 0
        complete = GPT(replace(model.config, bias=True, extend=""))
        complete.load_state_dict(model.state_dict(), strict=False)
    for name, x in complete.named_parameters():
        for their_name, view in their_weights(family, model.config, name, x):
            weights[their_name] = view.flatten(0, view.dim() - x.dim()).clone().contiguous()
    config.update(dtype="float32", bos_token_id=None, pad_token_id=None, eos_token_id=None)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=folder.parent) as temporary:
        new = Path(temporary, "model")
        new.mkdir()
        save_file(weights, new / "model.safetensors", {"format": "pt"})
        if corpus is not None:
            config["eos_token_id"] = corpus.tokenizer.end
            save_tokenizer(corpus, new)
        write_json(new / "config.json", config)
        os.replace(new, folder)
    return config


def save_tokenizer(corpus: data.Corpus, folder: Path) -> None:
    """tokenizer.json and tokenizer_config.json, which give the tokens of a corpus."""
    kind = corpus.meta["tokenizer"]
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    if kind == "gpt2":
        about["eos_token"] = "<|endoftext|>"
    write_json(folder / "tokenizer_config.json", about)
    if kind == "file":
        shutil.copy(corpus.folder / "tokenizer.json", folder)
        return

    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    tokens = corpus.tokenizer.vocabulary
    if kind == "char":
        vocab = {token.decode("utf-8"): n for n, token in enumerate(tokens)}
        tokenizer = Tokenizer(models.WordLevel(vocab))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        tokenizer.decoder = decoders.Fuse()
    else:
        # bytes, or GPT-2's tokens: every way to cut a token into two tokens is a merge
        vocab = {data.signs_of(token): n for n, token in enumerate(tokens)}
        merges = []
        for token in tokens[: corpus.tokenizer.end]:
            for cut in range(1, len(token)):
                left = data.signs_of(token[:cut])
                right = data.signs_of(token[cut:])
                if left in vocab and right in vocab:
                    merges.append((left, right))
        words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind == "gpt2")
        tokenizer = Tokenizer(models.BPE(vocab, merges))
        tokenizer.pre_tokenizer = words
        tokenizer.decoder = decoders.ByteLevel()
    if "eos_token" in about:
        tokenizer.add_special_tokens([about["eos_token"]])
    tokenizer.save(str(folder / "tokenizer.json"))


def check_tokenizer(name: str | Path, corpus: data.Corpus) -> None:
    """UserError if a model has a tokenizer.json that gives other tokens than a corpus has."""
    path = model_folder(name) / "tokenizer.json"
    if not path.exists():
        return
    with tempfile.TemporaryDirectory() as folder:
        save_tokenizer(corpus, Path(folder))
        ours = read_json(Path(folder, "tokenizer.json"))
    if read_json(path)["model"]["vocab"] != ours["model"]["vocab"]:
        advice = f"prepare its text with --tokenizer={name}"
        raise UserError(f"{corpus.name} has another tokenizer than {name}: {advice}")


def main() -> None:
    """Write a run as a Hugging Face model."""
    from runs.checkpoint import load_run  # which itself reads pretrained models by this module

    if "--help" in sys.argv:
        print(__doc__)
        return
    if len(sys.argv) != 3:
        raise UserError("name a run and a new folder: python -m runs.huggingface out/RUN FOLDER")
    run = load_run(sys.argv[1], device="cpu")
    try:
        config = save_model(run.model, sys.argv[2], run.corpus)
    except ImportError as error:
        raise UserError(f"{error.name} is missing: pip install safetensors tokenizers") from error
    print(f"{sys.argv[2]}: a {config['model_type']} of {run.model.parameter_count:,} parameters")


if __name__ == "__main__":
    run_program(main)
