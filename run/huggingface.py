"""Models of Hugging Face and ours, both ways, without `transformers`.

    python -m tools.export out/RUN FOLDER        # write a run, with its tokenizer

    model = load_model("HuggingFaceTB/SmolLM-135M")  # a name, which is downloaded, or a folder
    save_model(model, "folder")                      # AutoModelForCausalLM reads it

GPT-2 is `learned`, GPT-NeoX and the Llamas are `rope`, BLOOM is `alibi`. families.toml says what
each calls our settings and weights; reading and writing both follow it. Positions are read by
run/positions.py, as transformers reads them. SmolLM3, Mistral, Cohere2 and OLMo 3, patterns over
layers, are only read. A setting or a weight that has no counterpart is refused in one sentence,
never left out.
"""

import json
import re
import sys
from dataclasses import asdict, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from common.errors import UserError
from common.files import read_json, write_json
from configurable import GPTConfig
from data import tokenizers
from data.corpus import Corpus
from data.download import model_folder
from model import GPT
from posenc import Piece, methods_of
from run.positions import NO_MODEL, ORIGINAL, ROPE_TYPES, TABLE, Positions, pattern_of
from scheme import Catalogue, options_of, parse

# The families whose weights can be imported: see families.toml
IMPORTS = {}
for kind, lines in TABLE["imports"].items():
    IMPORTS[kind] = family = dict(IMPORTS.get(lines.get("like"), {}))
    for key, value in lines.items():
        family[key] = family.get(key, {}) | value if isinstance(value, dict) else value
IMPORTED_LAYERS = ("full_attention", "sliding_attention")


# ---- settings


def in_full(config):
    """The settings of a model, with no width and no option of a scheme left to its default."""
    settings = asdict(config) | dict(
        n_inner=config.mlp_width,
        n_kv_head=config.kv_heads,
        head_dim=config.head_width,
        dropout=0.0,  # none after the training
    )
    pieces = Catalogue().pieces
    for name in ("pos", "extend"):  # as [(scheme, its options), ...]
        schemes = []
        for mention in parse(settings[name] or "none").mentions:
            cls = pieces.get(mention.name, Piece)  # a user's own is in no family anyway
            if [method.name for method in methods_of(cls)] == ["draw"]:
                continue  # acts in training alone
            options = {key: default for key, (_, default) in options_of(cls).items()}
            schemes.append((mention.name, options | mention.options))
        settings[name] = schemes
    return settings


def read_settings(config, bias):
    """Our settings for a config.json, of weights with or without biases.

    UserError for what is not computed here.
    """
    kind = config.get("model_type")
    if kind not in IMPORTS:
        raise UserError(f"it is of type {kind}; known are {', '.join(IMPORTS)}")
    family = IMPORTS[kind]
    found = Positions(config)
    for key in found.ignored:
        print(f"note: nothing reads {key} in config.json", file=sys.stderr)
    if config.get("auto_map"):
        sentence = f"note: its own code (auto_map) is not run: it is read as any {kind}"
        print(sentence, file=sys.stderr)
    fixed = TABLE["fixed"]
    theirs = fixed | family["defaults"]
    theirs |= {key: value for key, value in config.items() if value is not None}
    refused = [f"{key}={theirs[key]}" for key in fixed if theirs[key] != fixed[key]]
    if config.get("slow_but_exact") and config.get("pretraining_tp", 1) > 1:
        refused.append("slow_but_exact")  # leaves out biases, in bloom
    refused += {f"layers of {name}" for name in found.types if name not in IMPORTED_LAYERS}

    ours = dict(family["ours"])
    for name, keys in family["settings"].items():
        ours[name] = next((theirs[key] for key in keys.split() if key in theirs), None)
    if ours["mlp"] not in family["activations"]:
        refused.append(f"activation {ours['mlp']}")
    if refused:
        raise UserError(
            f"it is of type {kind} with {', '.join(refused):.200}, which is not supported"
        )
    ours["bias"] = bias
    ours["mlp"] = family["activations"][ours["mlp"]]
    ours["block_size"] = found.length
    ours["first_length"] = found.first_length
    ours["pos"] = pattern_of([layer.pos for layer in found.layers])
    extensions = [layer.extend for layer in found.layers if "rope" in layer.pos]
    if len(set(extensions)) > 1:  # only some of the layers that rotate are extended
        ours["extend"] = pattern_of([layer.extend or "none" for layer in found.layers])
    elif extensions:
        ours["extend"] = extensions[0]
    return GPTConfig(**ours)


def write_settings(config):
    """The config.json of the family that our model is of; UserError says what it lacks for that."""
    ours = in_full(config)
    scheme, options = ours["pos"][0]
    if scheme == "learned":  # its table keeps the length first trained at
        config = replace(config, block_size=config.first_length)
        ours = in_full(config)
    kind = {False: "llama", True: "qwen3", "all": "olmo2"}[config.qk_norm]
    if config.bias:
        kind = "llama"  # the only one of the three with biases in each layer
    if config.norm == "layernorm":
        kind = {"learned": "gpt2", "alibi": "bloom"}.get(scheme, "gpt_neox")
    family = IMPORTS[kind]
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
    # where several names mean the same, the last one; an unknown one is refused below
    activations = {mlp: name for name, mlp in family["activations"].items()}
    words = ours | options
    words["mlp"] = activations.get(config.mlp, list(activations.values())[-1])
    for name, keys in (family["settings"] | family["options"]).items():
        theirs[keys.split()[0]] = words.get(name)
    extension, values = ours["extend"][0]
    keeps_length = extension == "dynamic_ntk"  # its formula reads the length that is written
    for rope_type in ("linear", "dynamic", "yarn", "llama3"):
        formula = ROPE_TYPES[rope_type]
        if formula["extension"] == extension and values["factor"] != "auto":
            rope = {key: values[name] for name, key in formula["options"].items()}
            if rope.get("mscale_all_dim") == 0.0:  # then theirs has no mscale either
                del rope["mscale"], rope["mscale_all_dim"]
            if ORIGINAL in formula["also"]:
                rope[ORIGINAL] = config.first_length
                keeps_length = True
            theirs["rope_scaling"] = {"rope_type": rope_type} | {
                key: value for key, value in rope.items() if value is not None
            }

    # reading it back must give the same settings
    if not keeps_length:
        ours["first_length"] = config.block_size
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
    family = IMPORTS[kind]
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
    return re.fullmatch(r"(?:distil)?gpt2[a-z-]*|(?!out/)[\w.-]+/[\w.-]+", name) is not None


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
                if key in weights:
                    raise UserError(f"{key} is in two files: keep one")
                if re.search(r"\.(attn|attention)\.(masked_)?bias$|rotary_emb\.inv_freq$", key):
                    continue  # buffers, of old files
                if not x.is_floating_point() or x.element_size() == 1:
                    raise UserError(f"{key} is of {x.dtype}: quantised weights are not read")
                weights[key] = x
        has_bias = any(key.endswith(".bias") for key in weights)
        model = GPT(read_settings(config, has_bias), folder=folder).eval()
        kind = config["model_type"]
        scale = float(config.get("logit_scale", 0.0625)) if kind == "cohere2" else 1.0
    except (SafetensorError, *NO_MODEL) as error:
        raise UserError(f"{name} cannot be read here: {error!s:.300}") from error

    family = IMPORTS[kind]
    head_name = f"{family['weights']['lm_head']}.weight"
    prefix = family["layers"].partition(".")[0] + "."
    if not any(key.startswith(prefix) for key in weights):  # saved without the head's class
        weights = {key if key == head_name else prefix + key: x for key, x in weights.items()}
    left_over = set(weights)
    for their_name, view, shape in their_weights(model, kind):
        theirs = weights.get(their_name)
        left_over.discard(their_name)
        if theirs is None and their_name.endswith(".bias"):
            continue  # new biases are 0
        if theirs is None or theirs.shape != shape:
            raise UserError(f"{name} lacks the weight {their_name} of shape {tuple(shape)}")
        view.copy_(theirs.reshape(view.shape))
    head = weights.get(head_name)
    if model.config.tie_embeddings and head is not None:
        left_over.discard(head_name)
        if not torch.equal(head.float(), model.wte.weight):
            raise UserError(
                f"{name} has tie_word_embeddings=true and another {head_name}: set it to false"
            )
    if left_over:
        raise UserError(
            f"{name} has weights that a {kind} does not have: {', '.join(sorted(left_over)):.200}"
        )
    model.ln_f.weight *= scale
    return model


@torch.no_grad()
def save_model(
    model: GPT,
    folder: str | Path,
    corpus: Corpus | None = None,
) -> dict:
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
    names = corpus.meta.get("characters") or map(tokenizers.signs_of, corpus.tokenizer.vocabulary)
    return {name: n for n, name in enumerate(names)}


def save_tokenizer(corpus, folder):
    """tokenizer.json and tokenizer_config.json, which give the tokens of a corpus."""
    kind = corpus.meta["tokenizer"]
    end = None
    if kind == "gpt2":
        end = "<|endoftext|>"
    elif kind == "file" and corpus.tokenizer.end is not None:
        end = corpus.tokenizer.inner.id_to_token(corpus.tokenizer.end)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    write_json(folder / "tokenizer_config.json", settings | {"eos_token": end})
    if kind == "file":
        content = read_json(corpus.folder / "tokenizer.json")
        content["post_processor"] = None  # it adds tokens that our model has not seen
        write_json(folder / "tokenizer.json", content)
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


def check_tokenizer(name: str | Path, corpus: Corpus) -> int | None:
    """The token that a model's tokenizer puts before a text, as Llama's <s>; None without one.

    UserError if a model has a tokenizer.json that gives other tokens than a corpus has.
    """
    path = model_folder(name) / "tokenizer.json"
    if not path.exists():
        print(
            f"note: {name} has no tokenizer.json to compare with the tokens of {corpus.name}, or "
            "to say which token begins a text",
            file=sys.stderr,
        )
        return None
    tokenizer = tokenizers.read_tokenizer(path)
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
    if first != plain:
        return first
    settings = path.with_name("tokenizer_config.json")
    if settings.exists() and read_json(settings).get("add_bos_token"):
        print(
            f"note: {settings} has add_bos_token, which tokenizer.json does not do: texts are "
            "measured without a first token",
            file=sys.stderr,
        )
    return None


def cuts(tokenizer):
    """What decides how a tokenizers.Tokenizer cuts a text into tokens."""
    content = json.loads(tokenizer.to_str())
    return [content[key] for key in ("model", "normalizer", "pre_tokenizer", "added_tokens")]
