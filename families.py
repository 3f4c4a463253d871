"""Models of Hugging Face's `transformers` and ours: their settings and weights, both ways.

families.toml has a table for each family. `read_config` and `read_weights` read a folder, a name
or a model, `settings_of` makes our GPTConfig of a config, and `fill` copies weights into our model.
The way back is in export.py. All of it is exact: what cannot be said is refused.
"""

import atexit
import json
import math
import re
import shutil
import tempfile
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from configurable import GPTConfig, UserError, read_json, require
from positions.catalogue import find, options_of

Table = dict[str, Any]  # of families.toml, or the content of a config.json
LONGER = ("yarn", "llama3", "longrope")  # types of rope_scaling that name the length at first
NEEDED = {"n_layer", "n_head", "n_embd", "vocab_size", "block_size"}
ORIGINAL = "original_max_position_embeddings"
BUFFER = re.compile(r"\.(attn|attention)\.(masked_)?bias$|rotary_emb\.inv_freq$")  # of older files


@cache
def tables() -> tuple[dict[str, Table], dict[str, Table]]:
    """The families by model_type and the types of rope_scaling, from families.toml."""
    read = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    scaling, found = read.pop("scaling"), {}
    for name, own in read.items():
        like = found.get(own.get("like", "every"), {})
        joined = {key: like.get(key, {}) | own.get(key, {}) for key in ("settings", "fixed")}
        found[name] = like | own | joined
    del found["every"]
    return found, scaling


# ---- from theirs to ours


def folder_of(source: str | Path, *files: str) -> Path:
    """The folder of a model: itself, or where these files of a name are kept after a download.

    UserError if they cannot be had.
    """
    if Path(source).is_dir():
        return Path(source)
    try:
        from transformers.utils import cached_file

        return [Path(cached_file(source, file)).parent for file in files][-1]
    except (ImportError, OSError) as error:
        problem = f"{source} is no folder, and no model by that name ({str(error).splitlines()[0]})"
        raise UserError(f"{problem}; a name needs transformers (pip) and a network") from error


def label_of(source: Any) -> str:
    """What sentences call a folder, a name or a model."""
    return str(source) if isinstance(source, str | Path) else type(source).__name__


def read_config(source: Any) -> Table:
    """The config of a folder, of a name that is downloaded, or of a model."""
    if isinstance(source, str | Path):
        return read_json(folder_of(source, "config.json") / "config.json")
    problem = f"{label_of(source)} is no folder, no name and no model of transformers"
    require(hasattr(source, "config") and hasattr(source, "state_dict"), problem)
    return source.config.to_dict()


def read_weights(source: Any) -> dict[str, Tensor]:
    """The weights of a folder, of a name that is downloaded, or of a model."""
    if not isinstance(source, str | Path):
        return source.state_dict()
    files = sorted(weight_folder(source).glob("model*.safetensors"))
    require(files, f"{source} has no model.safetensors: save it with save_pretrained")
    try:
        from safetensors.torch import load_file

        return {name: x for file in files for name, x in load_file(file).items()}
    except Exception as error:  # the library has no class for all that may be wrong
        problem = f"the weights of {source} cannot be read ({error!s:.160})"
        raise UserError(f"{problem}; this needs safetensors (pip) and a whole file") from error


def weight_folder(source: str | Path) -> Path:
    """The folder of the weights; those of a large model are in several files with an index."""
    try:
        return folder_of(source, "model.safetensors")
    except UserError:
        index = "model.safetensors.index.json"
        content = read_json(folder_of(source, index) / index, {"weight_map": dict})
        return folder_of(source, *set(content["weight_map"].values()))


def settings_of(config: Table, source: Any) -> GPTConfig:
    """Our settings for a config; UserError for what is not computed here.

    The factors of longrope are written to a file in a temporary folder.
    """
    odd = f"{source} has a config.json that no model can have"
    try:
        ours = spelled_here(config, source)
    except UserError:
        raise
    except (TypeError, KeyError, ValueError, ArithmeticError) as error:
        raise UserError(f"{odd}: {type(error).__name__}, {error}") from error
    try:
        return GPTConfig(**ours).checked()
    except (UserError, TypeError) as error:
        raise UserError(f"{odd}: {error}") from None


def spelled_here(config: Table, source: Any) -> Table:
    """The names and values of our settings for a config."""
    kind, known = config.get("model_type"), tables()[0]
    problem = f"{source} is a Hugging Face model of type {kind}"
    require(kind in known, f"{problem}; known are {', '.join(known)}")
    family, inner = known[kind], ("attn_config", "rope_parameters", "rope_scaling")
    config = family["usual"] | config
    if config.get("rope_scaling"):  # as in transformers, it stands in the place of the other
        config |= {"rope_parameters": None}
    outer = {ORIGINAL: config[ORIGINAL]} if config.get(ORIGINAL) else {}  # which wins there, too
    for key in inner:  # one flat table of all that is said
        part = config.get(key) or {}
        require(isinstance(part, dict), f"{source} has {key}={part!r:.60}, which is no table")
        config |= {name: value for name, value in part.items() if value is not None}
    config |= outer
    for key, value in family["fixed"].items():
        said = config.get(key) or False
        require(said == value, f"{problem} with {key}={said!r:.60}, which is not computed here")
    sliding = "sliding_attention" in (config.get("layer_types") or ())
    require(not sliding, f"{problem} with sliding_attention, which is not computed here")
    ours = family["ours"] | {"pos": family["pos"]}
    for name, theirs in family["settings"].items():
        said = [config[key] for key in theirs if config.get(key) is not None]
        ours |= {name: said[0]} if said else {}
    lacks = ", ".join(sorted(NEEDED - ours.keys()))
    require(not lacks, f"{problem}, whose config.json does not say {lacks}")
    if "mlp" in family["settings"]:
        said, able = ours["mlp"], family["activations"]
        require(said in able, f"{problem} with the activation {said}; known are {', '.join(able)}")
        ours["mlp"] = able[said]
    if family["pos"] == "rope":
        ours |= rotary_of(config, family, ours["block_size"], source)
    return ours | {"bias": any(config.get(key, True) for key in family["biases"].values())}


def rotary_of(config: Table, family: Table, length: int, source: Any) -> Table:
    """pos, extend and block_size of a rotary model, in any spelling of transformers 4 and 5."""
    kind, known = config.get("rope_type", config.get("type", "default")), tables()[1]
    able = kind in {"default", *known}
    require(able, f"{source} has the rope_type {kind!r:.60}; known are {', '.join(known)}")
    share = config.get("partial_rotary_factor", config.get("rotary_pct", 1))
    able = share == 1 or kind == "proportional" or family["rope"][1] in family["usual"]
    require(able, f"{source} has partial_rotary_factor={share}, which is not computed here")
    base = config.get("rope_theta", config.get("rotary_emb_base", 10000))
    part = "p" if kind == "proportional" else "fraction"
    pos = call("rope", {"base": base, part: share})
    if kind == "default":
        return {"pos": pos}
    first = config.get(ORIGINAL, length) if kind in LONGER else length
    config.setdefault("factor", length / first)
    factor = config["factor"]
    good = isinstance(factor, int | float) and math.isfinite(factor) and factor >= 1
    require(good, f"{source} has a rope_scaling with the factor {factor!r:.60}, not at least 1")
    config |= completed(config, kind, first, source)
    names = dict(known[kind])
    extension = names.pop("extension")
    said = call(extension, {name: config.get(theirs) for name, theirs in names.items()})
    return {"pos": pos, "block_size": first, "extend": said}


def call(name: str, options: Table) -> str:
    """The expression of a scheme or an extension; None and defaults are left out."""
    usual = {key: option.default for key, option in options_of(find(name)).items()}
    said = {key: v for key, v in options.items() if v is not None and usual.get(key) != v}
    return f"{name}({', '.join(f'{key}={v!r}' for key, v in said.items())})" if said else name


def completed(config: Table, kind: str, length: int, source: Any) -> Table:
    """Options of yarn, whose two weights of the temperature are read only together, and longrope's
    file. UserError for an attention_factor that they cannot have.
    """
    given, log = config.get("attention_factor"), math.log(max(1, config["factor"]))
    if kind == "yarn" and given is None:
        both = config.get("mscale") and config.get("mscale_all_dim")
        return {} if both else {"mscale": None, "mscale_all_dim": None}
    if kind == "yarn" and log and given >= 1:
        return {"mscale": round((given - 1) / (0.1 * log), 12), "mscale_all_dim": None}
    if kind == "yarn" and log and given > 0:
        return {"mscale": 0.0, "mscale_all_dim": round((1 / given - 1) / (0.1 * log), 12)}
    usual = math.sqrt(1 + log / math.log(max(2, length))) if kind == "longrope" else 1.0
    same = given is None or math.isclose(given, usual, rel_tol=1e-6)
    require(same, f"{source} has attention_factor={given}, and {kind} has {usual:.6g} here")
    if kind != "longrope":
        return {}
    both = {"long_factor", "short_factor"} <= config.keys()
    require(both, f"{source} has the rope_type longrope without long_factor and short_factor")
    folder = tempfile.mkdtemp(prefix="longshot-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file = Path(folder, "longrope.json")  # run folders copy it
    numbers = {key: config[key] for key in ("long_factor", "short_factor")}
    file.write_text(json.dumps(numbers), encoding="utf-8")
    return {"file": str(file)}


# ---- weights


def has_bias(family: Table, config: Table, name: str) -> bool:
    """Whether our parameter `name` is of a module that has a bias in theirs."""
    said = family["usual"] | config
    return any(part in name and said.get(key, True) for part, key in family["biases"].items())


def views(family: Table, ours: GPTConfig, name: str, x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Their weights that our parameter x is made of: the names, and views of x in their order.

    A view whose first columns are joined to have as many as x is the weight.
    """
    module, _, kind = name.rpartition(".")
    number, inner = re.fullmatch(r"(?:h\.(\d+)\.)?(.*)", module).groups()
    place = "" if inner == "lm_head" else family["base"]
    place += f"{family['blocks']}.{number}." if number else ""
    names = family["names"].get(inner, [inner])
    parts = x.chunk(len(names))
    if len(names) == 3:  # queries, keys and values
        parts = x.split([n * ours.head_width for n in (ours.n_head, *[ours.kv_heads] * 2)])
    for theirs, part in zip(names, parts, strict=True):
        if family["transposed"] and ".c_" in inner and x.dim() == 2:
            part = part.T
        if family["by_head"] and inner == "attn.c_attn":  # ours are (3, heads, D)
            part = part.unflatten(0, (3, ours.n_head, -1)).transpose(0, 1)
        yield f"{place}{theirs}.{'bias' if kind == 'bias' else 'weight'}", part


@torch.no_grad()
def fill(model: nn.Module, config: Table, theirs: dict[str, Tensor], source: Any) -> None:
    """Copy weights into our model; UserError names one that is missing, misshaped or left over."""
    family, ours = tables()[0][config["model_type"]], model.config

    def short(name: str) -> str:  # some files leave the base out
        return name.removeprefix(family["base"]).replace("embed_out", "lm_head")

    theirs = {short(name): x for name, x in theirs.items() if not BUFFER.search(name)}
    tied = theirs.pop("lm_head.weight", None) if ours.tie_embeddings else None
    for name, x in model.named_parameters():
        if name.endswith(".bias") and not has_bias(family, config, name):
            x.zero_()
            continue
        for their, view in views(family, ours, name, x):
            given, joined = theirs.pop(short(their), None), view.flatten(0, view.dim() - x.dim())
            require(given is not None, f"{source} lacks the weight {their}")
            shapes = f"{tuple(given.shape)}, not {tuple(joined.shape)}"
            require(given.shape == joined.shape, f"{source} has a {their} of shape {shapes}")
            view.copy_(given.reshape(view.shape))
    same = tied is None or torch.equal(tied.to(model.wte.weight), model.wte.weight)
    require(same, f"{source} has an output layer of its own, and says tie_word_embeddings")
    odd = ", ".join(sorted(theirs))
    require(not odd, f"{source} has weights that no {config['model_type']} has: {odd:.200}")
