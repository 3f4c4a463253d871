"""Models of Hugging Face and ours, both ways, without `transformers`.

    python -m runs.huggingface out/RUN FOLDER        # write a run, with its tokenizer

    model = load_model("HuggingFaceTB/SmolLM-135M")  # a name, which is downloaded, or a folder
    save_model(model, "folder")                      # AutoModelForCausalLM reads it

GPT-2 is `learned`, GPT-NeoX and the Llamas are `rope`, BLOOM is `alibi`. FAMILIES says what each
calls our settings and weights; reading and writing both follow it. A setting or a weight that has
no counterpart is refused in one sentence, never left out.
"""

import re
import shutil
import sys
from ast import literal_eval
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

import data
from configurable import GPTConfig, UserError, read_json, run_program, write_json
from model import GPT
from scheme import Mention, find, options_of, parse

BUFFERS = re.compile(r"\.(attn|attention)\.(masked_)?bias$|rotary_emb\.inv_freq$")  # in old files

# How a family says what ours says, by model_type (SmolLM and TinyLlama are of type llama):
#   pos          our scheme; options: those of it that theirs has, ours -> theirs
#   ours         settings of ours that every model of the family has
#   activations  theirs -> our `mlp`
#   bias         whether there are biases; where they may be, the file of weights says it
#   transposed   matrices are (in, out)
#   by_head      queries, keys and values of a head stand together: (heads, 3, D)
#   settings     ours, theirs, and what a config.json means that does not say it
#   layers       theirs for our `h`, before the number of a layer
#   weights      our module, theirs or several of theirs that ours stacks


def table(text: str) -> dict[str, list[str]]:
    """The lines of a table by their first words."""
    lines = [line.split() for line in text.strip().splitlines()]
    return {words[0]: words[1:] for words in lines}


GELU = {"gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "gelu_fast": "gelu", "gelu": "gelu_exact"}
LLAMA = {
    "class": "LlamaForCausalLM",
    "pos": "rope",
    "options": {"base": "rope_theta"},
    "ours": {"norm": "rmsnorm"},
    "activations": {"silu": "swiglu", "swish": "swiglu"},
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
    "mistral": LLAMA,
    "qwen2": LLAMA,
    "qwen3": {
        **LLAMA,
        "class": "Qwen3ForCausalLM",
        "ours": {"norm": "rmsnorm", "qk_norm": True},
        "bias": "never",
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
LONGER = ("yarn", "llama3")  # their max_position_embeddings is the length after extending
# settings that change what is computed here, unless they are absent or off
REFUSED = (
    "scale_attn_by_inverse_layer_idx",
    "apply_residual_connection_post_layernorm",
    "use_sliding_window",
    "quantization_config",
    "attention_factor",
    "mscale",
    "mscale_all_dim",
)


# ---- settings


def expression(name: str, options: dict, theirs: dict) -> str:
    """Our text of a scheme or an extension with the options that theirs has."""
    values = []
    for option, key in options.items():
        if theirs.get(key) is not None:
            values.append(f"{option}={theirs[key]!r}")
    return f"{name}({', '.join(values)})" if values else name


def read_settings(config: dict, bias: bool) -> GPTConfig:
    """Our settings for a config.json, of weights with or without biases.

    UserError for what is not computed here.
    """
    kind = config.get("model_type")
    if kind not in FAMILIES:
        raise UserError(f"it is of type {kind}; known are {', '.join(FAMILIES)}")
    family = FAMILIES[kind]
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    theirs = {**config, **rope}
    if kind == "bloom":  # it has two names for each
        theirs.setdefault("hidden_size", theirs.get("n_embed"))
        theirs.setdefault("n_head", theirs.get("num_attention_heads"))
    if kind == "gpt_neox":  # the names since transformers 5
        theirs.setdefault("rotary_emb_base", theirs.get("rope_theta"))
        theirs.setdefault("rotary_pct", theirs.get("partial_rotary_factor", 0.25))

    ours = {"bias": bias, **family["ours"]}
    for name, (key, *default) in family["settings"].items():
        ours[name] = theirs.get(key, literal_eval(default[0]) if default else None)
    rope_type = theirs.get("rope_type", theirs.get("type", "default"))
    refused = [f"{key}={theirs[key]}" for key in REFUSED if theirs.get(key)]
    if ours["mlp"] not in family["activations"] or rope_type not in ("default", *EXTENSIONS):
        refused.append(f"activation {ours['mlp']} with rope_type {rope_type}")
    if refused:
        raise UserError(f"it has {', '.join(refused):.200}, which is not computed here")

    ours["mlp"] = family["activations"][ours["mlp"]]
    ours["pos"] = expression(family["pos"], family["options"], theirs)
    if kind == "mistral" and theirs.get("sliding_window"):
        ours["pos"] += f" + window(size={theirs['sliding_window']})"
    if rope_type in EXTENSIONS:
        extension, options = EXTENSIONS[rope_type]
        if rope_type in LONGER:
            original = theirs.get(ORIGINAL, ours["block_size"])
            theirs.setdefault("factor", ours["block_size"] / original)
            ours["block_size"] = original
        ours["extend"] = expression(extension, options, theirs)
    return GPTConfig(**ours)


def options_with_defaults(mention: Mention) -> dict:
    """The value of every option of a scheme that an expression mentions."""
    defaults = {name: option.default for name, option in options_of(find(mention.name)).items()}
    return defaults | mention.options


def settings_in_full(config: GPTConfig) -> dict:
    """The settings of a model with no width and no option of a scheme left to its default."""
    full = asdict(config)
    full.update(n_inner=config.mlp_width, n_kv_head=config.kv_heads, head_dim=config.head_width)
    for key in ("pos", "extend"):
        for mention in parse(full[key]).mentions if full[key] else ():
            values = [f"{option}={x}" for option, x in options_with_defaults(mention).items()]
            text = f"{mention.name}({', '.join(values)})"
            full[key] = full[key].replace(mention.text, text)
    return full


def write_settings(config: GPTConfig) -> dict:
    """The config.json of the family that our model is of; UserError says what it lacks for that."""
    scheme = parse(config.pos).mentions[0]
    kind = "qwen3" if config.qk_norm else "llama"
    if config.norm == "layernorm":
        kind = {"learned": "gpt2", "alibi": "bloom"}.get(scheme.name, "gpt_neox")
    family = FAMILIES[kind]
    ours = settings_in_full(config)
    theirs = {"model_type": kind, "architectures": [family["class"]]}
    for name, (key, *_) in family["settings"].items():
        theirs[key] = ours[name]
    for activation, mlp in family["activations"].items():
        if mlp == config.mlp:
            theirs[family["settings"]["mlp"][0]] = activation
    if kind == "llama":
        theirs.update(attention_bias=config.bias, mlp_bias=config.bias)
    if scheme.name == family["pos"]:
        values = options_with_defaults(scheme)
        theirs.update({key: values[option] for option, key in family["options"].items()})
    for rope_type, (name, options) in EXTENSIONS.items():
        extension = parse(config.extend or "none").mentions[0]
        if name == extension.name and extension.options.get("factor", "auto") != "auto":
            values = options_with_defaults(extension)
            rope = {key: values[option] for option, key in options.items()}
            if rope_type in LONGER:
                rope[ORIGINAL] = config.block_size
                theirs["max_position_embeddings"] = round(config.block_size * values["factor"])
            theirs["rope_scaling"] = {"rope_type": rope_type, **rope}

    # whoever reads this must understand what was meant
    again = settings_in_full(read_settings(theirs, config.bias))
    ours["dropout"] = again["dropout"]
    unlike = [f"{name}={x}, not {ours[name]}" for name, x in again.items() if x != ours[name]]
    if config.bias and kind == "qwen3":
        unlike.append("bias=False, not True")
    if unlike:
        raise UserError(
            f"no model of Hugging Face can be this one: the nearest, {kind}, has "
            f"{' and '.join(unlike)}; config/arch has settings that one can be"
        )
    return theirs


# ---- weights


def their_weights(family: dict, c: GPTConfig, name: str, x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """(their name, view of x) for each of their weights in our parameter `name`.

    A view is written or read in place. Where it has more dimensions than x, theirs joins the first.
    """
    layer, module, kind = re.fullmatch(r"(?:h\.(\d+)\.)?(.+)\.(\w+)", name).groups()
    prefix = f"{family['layers']}.{layer}." if layer else ""
    theirs = family["weights"][module]
    parts = x.chunk(len(theirs))
    if len(theirs) == 3:  # queries, keys and values
        parts = x.split([n * c.head_width for n in (c.n_head, c.kv_heads, c.kv_heads)])
    for their, part in zip(theirs, parts, strict=True):
        if "transposed" in family and ".c_" in name and x.dim() == 2:
            part = part.T
        if "by_head" in family and ".c_attn" in name:
            part = part.unflatten(0, (3, c.n_head, -1)).transpose(0, 1)  # (heads, 3, D, ...)
        yield f"{prefix}{their}.bias" if kind == "bias" else f"{prefix}{their}.weight", part


def model_folder(name: str | Path) -> Path:
    """The folder of a model: itself, or where a downloaded one is kept; UserError for none."""
    if Path(name).is_dir():
        return Path(name)
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(str(name), allow_patterns=["*.json", "model*.safetensors"]))
    except (ImportError, OSError, ValueError) as error:
        raise UserError(
            f"{name} is neither a folder nor a model ({str(error).splitlines()[0]}); a name needs "
            "a network and huggingface_hub (pip)"
        ) from error


def is_huggingface(name: str) -> bool:
    """Whether it names a folder of a Hugging Face model, or perhaps one to download."""
    path = Path(name)
    if path.exists():
        config = path / "config.json"
        return config.is_file() and b'"model_type"' in config.read_bytes()
    owner = name.partition("/")[0]
    is_name = re.fullmatch(r"gpt2[a-z-]*|[\w.-]+/[\w.-]+", name) is not None
    return is_name and owner != "out" and not Path(owner).exists()


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
            weights.update(load_file(file))
        weights = {key: x for key, x in weights.items() if not BUFFERS.search(key)}
        settings = read_settings(config, any(key.endswith(".bias") for key in weights))
        model = GPT(settings).eval()
    except (SafetensorError, ArithmeticError, TypeError, ValueError) as error:
        raise UserError(f"{name} cannot be read here: {error!s:.300}") from error

    family = FAMILIES[config["model_type"]]
    if "wte.weight" in weights or "word_embeddings.weight" in weights:  # no prefix in old files
        weights = {f"transformer.{key}": x for key, x in weights.items()}
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
        weights.pop("lm_head.weight", None)
    if weights:
        left = ", ".join(sorted(weights))
        raise UserError(f"{name} has weights of no {config['model_type']}: {left:.200}")
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
    config = write_settings(model.config)
    family = FAMILIES[config["model_type"]]
    complete = model
    if family["bias"] == "always":  # biases that ours lacks are 0
        complete = GPT(replace(model.config, bias=True, extend=""))
        complete.load_state_dict(model.state_dict(), strict=False)
    weights = {}
    for name, x in complete.named_parameters():
        for their_name, view in their_weights(family, model.config, name, x):
            weights[their_name] = view.flatten(0, view.dim() - x.dim()).clone().contiguous()
    config.update(dtype="float32", bos_token_id=None, pad_token_id=None, eos_token_id=None)
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
    if corpus.meta["tokenizer"] == "char":
        return {character: n for n, character in enumerate(corpus.meta["characters"])}
    return {data.signs_of(token): n for n, token in enumerate(corpus.tokenizer.vocabulary)}


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
        for name in list(names)[: corpus.tokenizer.end]:
            pairs = [(name[:cut], name[cut:]) for cut in range(1, len(name))]
            merges += [(left, right) for left, right in pairs if left in names and right in names]
        tokenizer = Tokenizer(models.BPE(names, merges))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
            add_prefix_space=False, use_regex=kind == "gpt2"
        )
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

    if "--help" in sys.argv:
        print(__doc__)
        return
    if len(sys.argv) != 3:
        raise UserError("name a run and a new folder: python -m runs.huggingface out/RUN FOLDER")
    run = load_run(sys.argv[1], device="cpu")
    config = save_model(run.model, sys.argv[2], run.corpus)
    print(f"{sys.argv[2]}: a {config['model_type']} of {run.model.parameter_count:,} parameters")


if __name__ == "__main__":
    run_program(main)
