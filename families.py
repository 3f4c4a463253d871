"""Models of Hugging Face's `transformers` and ours: their settings and weights, both ways.

families.toml has a table for each family. `read` gives the config and the weights of a folder, a
name or a model; `settings_of` makes our GPTConfig of a config, `fill` copies weights into a model.
The way back is in export.py. All of it is exact: what cannot be said is refused.
"""

import json
import math
import re
import tempfile
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from configurable import GPTConfig, UserError, explain_errors, read_json, require

Table = dict[str, Any]  # of families.toml, or the content of a config.json
NEEDED = {"n_layer", "n_head", "n_embd", "vocab_size", "block_size"}
ORIGINAL = "original_max_position_embeddings"
BUFFER = re.compile(r"\.(attn|attention)\.(masked_)?bias$|rotary_emb\.inv_freq$")  # of older files


@cache
def tables() -> dict[str, Table]:
    """The tables of families.toml, each with what it shares with the one that it is like."""
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    found: dict[str, Table] = {}
    for name, own in tomllib.loads(text).items():
        like = found.get(own.get("like", "every"), {})
        joined = {key: like.get(key, {}) | own.get(key, {}) for key in ("settings", "fixed")}
        found[name] = like | own | joined
    return found


def families() -> dict[str, Table]:
    """The table of each family by its model_type."""
    return {name: table for name, table in tables().items() if name not in ("every", "scaling")}


# ---- from theirs to ours


def read(source: Any) -> tuple[Table, dict[str, Tensor]]:
    """The config and the weights of a model of transformers, of a folder or of a name.

    UserError for a folder without weights; ImportError or OSError if something is missing.
    """
    if not isinstance(source, str | Path):
        return source.config.to_dict(), source.state_dict()
    if not Path(source).is_dir():
        from transformers import AutoModelForCausalLM

        model, found = AutoModelForCausalLM.from_pretrained(source, output_loading_info=True)
        lacks = ", ".join(sorted(found["missing_keys"]))
        require(not lacks, f"{source} lacks the weights {lacks:.200}: they would be random")
        return read(model)
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    files, weights = sorted(Path(source).glob("model*.safetensors")), {}
    require(files, f"{source} has no model.safetensors: save it with save_pretrained")
    for file in files:
        try:
            weights |= load_file(file)
        except SafetensorError as error:
            raise UserError(f"{file} cannot be read ({error}): copy it again") from error
    return read_config(source), weights


def read_config(source: str | Path) -> Table:
    """config.json of a folder, or of a name that is downloaded."""
    if Path(source).is_dir():
        return read_json(Path(source, "config.json"))
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(source).to_dict()


def settings_of(config: Table, source: Any) -> GPTConfig:
    """Our settings for a config; UserError for what is not computed here.

    longrope's factors are written to longrope.json in the folder `source`, or in a temporary one.
    """
    kind, known = config.get("model_type"), families()
    problem = f"{source} is a Hugging Face model of type {kind}"
    require(kind in known, f"{problem}; known are {', '.join(known)}")
    family = known[kind]
    config = family["usual"] | config | (config.get("attn_config") or {})
    layers = {*(config.get("layer_types") or []), "full_attention"}
    require(len(layers) == 1, f"{problem} with {sorted(layers)}: only full_attention is known here")
    for key, value in family["fixed"].items():
        said = config.get(key) or False
        require(said == value, f"{problem} with {key}={said!r:.60}, which is not computed here")
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
        ours |= positions_of(config, family, problem, source)
    return GPTConfig(bias=any(config.get(key, True) for key in family["biases"].values()), **ours)


def positions_of(config: Table, family: Table, problem: str, source: Any) -> Table:
    """pos, extend and block_size of a rotary model, in any spelling of transformers 4 and 5."""
    (base, part), length = family["rope"], config[family["settings"]["block_size"][0]]
    rope = {"rope_theta": config.get(base), "partial_rotary_factor": config.get(part)}
    rope |= config.get("rope_scaling") or config.get("rope_parameters") or {}
    rope = {key: value for key, value in rope.items() if value is not None}
    kind, known = rope.get("rope_type", rope.get("type", "default")), tables()["scaling"]
    able = kind in known or kind == "default"
    require(able, f"{problem} with the rope_type {kind!r:.60}; known are {', '.join(known)}")
    share, partial = rope.get("partial_rotary_factor", 1), kind == "proportional"
    able = share == 1 or partial or part in family["usual"]
    require(able, f"{problem} with {part}={share}, which is not computed here")
    options = {"base": rope.get("rope_theta", 10000), "p" if partial else "fraction": share}
    ours = {"pos": call("rope", options), "block_size": length}
    if kind == "default" or (partial and rope.get("factor", 1) == 1):
        return ours
    if kind in ("yarn", "llama3", "longrope"):
        ours["block_size"] = config.get(ORIGINAL) or rope.get(ORIGINAL) or length
        rope.setdefault("factor", length / ours["block_size"])
    if kind == "yarn":
        rope |= temperature_of(rope, problem)
    if kind == "longrope":
        rope["file"] = write_factors(rope, ours["block_size"], problem, source)
    said = {name: rope.get(theirs) for name, theirs in known[kind].items() if name != "extension"}
    return ours | {"extend": call(known[kind]["extension"], said)}


def call(name: str, options: Table) -> str:
    """The expression of a scheme with options; None and those of a plain rope are left out."""
    usual = {"base": 10000, "fraction": 1, "p": 1}
    said = {key: v for key, v in options.items() if v is not None and usual.get(key) != v}
    return f"{name}({', '.join(f'{key}={v!r}' for key, v in said.items())})" if said else name


def temperature_of(rope: Table, problem: str) -> Table:
    """yarn's two weights of its temperature, which transformers reads only together."""
    given, scale = rope.get("attention_factor"), 0.1 * math.log(rope["factor"])
    if given is None:
        both = rope.get("mscale") and rope.get("mscale_all_dim")
        return {} if both else {"mscale": None, "mscale_all_dim": None}
    able = given == 1 or (given > 1 and scale > 0)
    require(able, f"{problem} with attention_factor={given}, which yarn cannot have here")
    return {"mscale": (given - 1) / (scale or 1), "mscale_all_dim": None}


def write_factors(rope: Table, length: int, problem: str, source: Any) -> str:
    """Write the file with longrope's factors; its path."""
    usual = math.sqrt(1 + math.log(max(1, rope["factor"])) / math.log(length))
    same = math.isclose(rope.get("attention_factor", usual), usual, rel_tol=1e-6)
    require(same, f"{problem} with an attention_factor that is not longrope's, {usual:.6f}")
    folder = Path(source if isinstance(source, str | Path) else "")
    folder = folder if folder.name and folder.is_dir() else Path(tempfile.mkdtemp())
    file = folder.resolve() / "longrope.json"
    numbers = {key: rope[key] for key in ("long_factor", "short_factor")}
    with explain_errors(f"{file} cannot be written", "copy the model to a folder of yours"):
        file.write_text(json.dumps(numbers), encoding="utf-8")
    return str(file)


# ---- weights


def has_bias(config: Table, name: str) -> bool:
    """Whether our parameter `name` is of a module that has a bias in theirs."""
    family = families()[config["model_type"]]
    said = family["usual"] | config
    return any(part in name and said.get(key, True) for part, key in family["biases"].items())


def views(config: Table, ours: GPTConfig, name: str, x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Their weights that our parameter x is made of: the names, and views of x in their order.

    A view that is reshaped is one of theirs.
    """
    family = families()[config["model_type"]]
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
def fill(model: nn.Module, config: Table, theirs: dict[str, Tensor], source: Any = "this") -> None:
    """Copy weights into our model; UserError names one that is missing, misshaped or left over."""
    base = families()[config["model_type"]]["base"]

    def short(name: str) -> str:  # some files leave the base out
        return name.removeprefix(base).replace("embed_out", "lm_head")

    theirs = {short(name): x for name, x in theirs.items() if not BUFFER.search(name)}
    tied = theirs.pop("lm_head.weight", None) if model.config.tie_embeddings else None
    for name, x in model.named_parameters():
        if name.endswith(".bias") and not has_bias(config, name):
            x.zero_()
            continue
        for their, view in views(config, model.config, name, x):
            given = theirs.pop(short(their), None)
            require(given is not None, f"{source} lacks the weight {their}")
            shape, columns = tuple(given.shape), view.shape[-1] if x.dim() == 2 else given.numel()
            same = given.numel() == view.numel() and shape[-1] == columns
            require(
                same, f"{source} has a {their} of shape {shape}, not for {view.numel()} numbers"
            )
            view.copy_(given.view(view.shape))
    same = tied is None or torch.equal(tied.to(model.wte.weight), model.wte.weight)
    require(same, f"{source} has an output layer of its own, and says tie_word_embeddings")
    odd = ", ".join(sorted(theirs))
    require(not odd, f"{source} has weights that no {config['model_type']} has: {odd:.200}")
