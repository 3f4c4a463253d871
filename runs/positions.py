"""What positions a config.json of Hugging Face describes, read as transformers 5.23 reads it.

    read_positions(config)    our expression and extension of each layer, and what nothing reads

Imports (runs/huggingface.py) and `python -m tools.explain PATH` share this reading. positions.toml
says what each model_type takes where a config.json is silent, and which keys it reads.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from configurable import UserError

VERSION = "transformers 5.23"
FAMILIES = tomllib.loads(Path(__file__).with_name("positions.toml").read_text(encoding="utf-8"))
# names of a model's sizes, which differ between families
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "num_key_value_heads")
WIDTH = ("hidden_size", "n_embd", "d_model", "n_embed")
LENGTH = (
    "max_position_embeddings",
    "n_positions",
    "seq_length",
    "max_seq_len",
    "n_ctx",
    "model_max_length",
)
ASSUMED_LENGTH = 2048  # where a config.json has none
ORIGINAL = "original_max_position_embeddings"  # the length first trained at
# rope_type -> our extension, the keys that it must have, and those that it may have
ROPE_TYPES = {
    "default": ("", "", ""),
    "linear": ("pi", "factor", ""),
    "dynamic": ("dynamic_ntk", "factor", ""),
    "yarn": (
        "yarn",
        "factor",
        f"beta_slow beta_fast truncate mscale mscale_all_dim attention_factor {ORIGINAL}",
    ),
    "llama3": ("llama3", "factor low_freq_factor high_freq_factor", ORIGINAL),
    "longrope": ("longrope", "short_factor long_factor", f"factor attention_factor {ORIGINAL}"),
    "proportional": ("pi", "", "factor partial_rotary_factor"),
}
FROM_FIRST_LENGTH = ("yarn", "llama3", "longrope")  # their formulas read the original length
# our options of an extension, and their keys
OPTIONS = {
    "factor": "factor",
    "alpha": "beta_slow",
    "beta": "beta_fast",
    "truncate": "truncate",
    "mscale": "mscale",
    "mscale_all_dim": "mscale_all_dim",
    "attention_factor": "attention_factor",
    "low": "low_freq_factor",
    "high": "high_freq_factor",
}
NO_ATTENTION = ("linear_attention", "conv", "mlp", "moe", "recurrent", "mamba2")
LETTERS = {
    "s": "sliding_attention",
    "f": "full_attention",
    "l": "linear_attention",
    "i": "indexed_attention",
    "h": "hybrid",
}
RENAMED = {"mamba": "linear_attention", "attention": "full_attention"}


@dataclass(frozen=True)
class Layer:
    """The positions of a layer: our expressions, and how many columns of a head may turn."""

    pos: str  # "" if the layer has no attention of ours
    extend: str
    width: int
    words: str = ""  # what our expressions cannot say


@dataclass
class Positions:
    """What a config.json says about positions. Each of `ignored` is a key that has no effect, and
    `notes` are other sentences on keys; `first_length` is the length that formulas read.
    """

    model_type: str
    n_head: int
    first_length: int
    trained_length: int
    is_latent: bool
    layers: list[Layer] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def pos(self) -> str:
        """Our `pos` for all layers."""
        return pattern_of([layer.pos or "nope" for layer in self.layers])

    @property
    def extend(self) -> str:
        """Our `extend` for all layers; "" for none."""
        text = pattern_of([layer.extend or "none" for layer in self.layers])
        return "" if text == "none" else text


def pattern_of(layers: list[str]) -> str:
    """The shortest pattern of these expressions of layers, such as `3 * rope | nope`."""
    period = 1
    while layers[period:] != layers[:-period]:
        period += 1
    branches = []
    for layer, run in groupby(layers[:period]):
        count = len(list(run))
        branches.append(f"{count} * ({layer})" if count > 1 else layer)
    return " | ".join(branches)


def expression(name: str, options: dict[str, Any]) -> str:
    """A scheme with its options, such as rope(base=500000.0)."""
    values = [f"{option}={value}" for option, value in options.items()]
    return f"{name}({', '.join(values)})" if values else name


def read_positions(config: dict) -> Positions:
    """Read a config.json. UserError for what transformers refuses, and for an unknown rope_type."""
    values = config.get("text_config") or config
    kind = values.get("model_type") or config.get("model_type") or ""
    if f"{kind}_text" in FAMILIES:  # a model of text and pictures that wrote its text at the top
        kind = f"{kind}_text"
    family = FAMILIES.get(
        kind, {"fraction": 1.0, "window": "s", "keys": "layer_types sliding_window"}
    )
    reader = Reader(values, kind, family)
    found = reader.read()
    if kind not in FAMILIES:
        found.notes.append(
            f"{kind!r:.60} is not in runs/positions.toml: read by the rules that most share"
        )
    if values is not config:
        outside = Reader(config, kind, {"keys": ""})
        found.ignored += [f"{key} beside text_config" for key in outside.unread(())]
    return found


class Reader:
    """Reads one config.json by the line of its family in positions.toml."""

    def __init__(self, values: dict, kind: str, family: dict) -> None:
        self.values = {key: value for key, value in values.items() if value is not None}
        self.kind = kind
        self.family = family
        self.ignored: list[str] = []
        self.notes: list[str] = []
        # our name of each key that the family reads -> theirs
        self.names = {}
        for word in family.get("keys", "").split():
            ours, _, theirs = word.partition(":")
            self.names[ours] = theirs or ours
        if family.get("kind", "rope") == "rope":
            self.names.setdefault("rope_parameters", "rope_parameters")
        if "rope_parameters" in self.names and not family.get("nested"):
            self.names.setdefault("rope_theta", "rope_theta")
            self.names["rope_scaling"] = "rope_scaling"

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a key, by our name for it; the default if the family does not read it."""
        return self.values.get(self.names.get(name, ""), default)

    def size(self, names: Iterable[str], default: int | None = None) -> int:
        """The value of the first of these keys that is there, or else the default; UserError."""
        for name in names:
            if name in self.values:
                return int(self.values[name])
        if default is None:
            raise UserError(f"it has none of the keys {', '.join(names)}")
        return default

    def read(self) -> Positions:
        """Read all layers."""
        kind = self.family.get("kind", "rope")
        n_layer = self.size(LAYERS)
        n_head = self.size(HEADS)
        length = self.size(LENGTH, 0)
        if not length:
            length = ASSUMED_LENGTH
            self.notes.append(f"it has no length: {length} is assumed")
        width_key = self.family.get("width", "head_dim")
        found = Positions(self.kind, n_head, length, length, width_key == "qk_rope_head_dim")
        types = self.layer_types(n_layer)
        rotates = self.rotating(types)
        originals = set()
        for number, layer_type in enumerate(types):
            width = self.values.get(width_key) or self.size(WIDTH) // n_head
            if "global_head_dim" in self.names and layer_type == "full_attention":
                width = self.get("global_head_dim", 512)
                width = self.get("per_layer_config", {}).get(str(number), {}).get("head_dim", width)
            if layer_type in NO_ATTENTION:
                layer = Layer("", "", width, f"{layer_type}, which is no attention of ours")
            elif kind != "rope":
                layer = Layer(self.other_scheme(kind), "", width)
            elif not rotates[number]:
                pos = self.with_window("nope", layer_type)
                if self.get("attn_temperature_tuning", "attn_temperature_tuning" in self.names):
                    scale = self.get("attn_scale", 0.1)
                    floor = int(self.get("floor_scale", 8192))
                    pos += f" + step_temperature(scale={scale}, floor={floor})"
                layer = Layer(pos, "", width)
            else:
                rope, base = self.rope_of(layer_type, number)
                layer, original = self.rotary_layer(rope, base, layer_type, width, length)
                originals.add(original)
            found.layers.append(layer)
        if len(originals) > 1:
            found.notes.append(
                "layers differ in the length first trained at: the shortest is taken"
            )
        found.first_length = min(originals, default=length)
        found.ignored = [
            *dict.fromkeys(self.ignored),
            *self.unread([*self.names.values(), width_key, "qk_nope_head_dim"]),
        ]
        found.notes += dict.fromkeys(self.notes)
        return found

    # ---- layers

    def layer_types(self, n_layer: int) -> list[str]:
        """The type of each layer, as in transformers' `layer_types`."""
        types = self.get("layer_types")
        pattern = self.family.get("pattern", "f")
        if types:
            if len(types) != n_layer:
                raise UserError(f"layer_types has {len(types)} types for {n_layer} layers")
            return [RENAMED.get(name, name) for name in types]
        if pattern == "max_window_layers":
            first = self.get("max_window_layers", 28)
            if not self.get("use_sliding_window"):
                first = n_layer
            return [LETTERS["s" if number >= first else "f"] for number in range(n_layer)]
        if self.get("attn_layer_indices"):
            full = self.get("attn_layer_indices")
            return [LETTERS["f" if number in full else "l"] for number in range(n_layer)]
        every = self.get("every")
        if every:  # the last of so many layers is the other one
            pattern = pattern[0] * (every - 1) + pattern[-1]
        if "layer_types" in self.names and "pattern" not in self.family:
            self.notes.append("layer_types is missing: every layer is taken for full attention")
        return [LETTERS[pattern[number % len(pattern)]] for number in range(n_layer)]

    def rotating(self, types: list[str]) -> list[bool]:
        """Whether each layer rotates queries and keys."""
        nope = self.family.get("nope", "")
        if nope == "no_rope_layers":  # misnamed: 1 means that the layer rotates
            every = self.get("no_rope_layer_interval", 4)
            default = [int((number + 1) % every != 0) for number in range(len(types))]
            rotates = self.get("no_rope_layers") or default
            if len(rotates) != len(types):
                raise UserError(
                    f"no_rope_layers has {len(rotates)} numbers for {len(types)} layers"
                )
            return list(map(bool, rotates))
        if self.get("layer_rope_theta"):  # 0 means no rotation
            return [theta != 0 for theta in self.get("layer_rope_theta")]
        if self.get("position_embedding_type", "rope") != "rope":
            return [False] * len(types)
        return [layer_type[0] not in nope for layer_type in types]

    def with_window(self, scheme: str, layer_type: str) -> str:
        """A scheme, with the window that a layer of this type has."""
        windowed = self.family.get("window", "")
        if layer_type == "chunked_attention":
            return f"{scheme} + chunks(size={self.get('attention_chunk_size', 8192)})"
        size = self.get("sliding_window")
        if self.get("local_attention"):  # ModernBERT's, of both sides
            size = self.get("local_attention") // 2
        if "use_sliding_window" in self.names and not self.get("use_sliding_window"):
            size = None
        if size and (windowed == "a" or layer_type[0] in windowed):
            return f"{scheme} + window(size={size})"
        return scheme

    def other_scheme(self, kind: str) -> str:
        """The expression of a layer that does not rotate."""
        if kind == "t5":
            options = {
                "buckets": self.values.get("relative_attention_num_buckets", 32),
                "max_distance": self.values.get("relative_attention_max_distance", 128),
            }
            return expression("t5", options)
        return "sinusoidal(scale=1.0)" if kind == "sinusoidal" else kind

    # ---- rotation

    def rope_of(self, layer_type: str, number: int) -> tuple[dict, float]:
        """The rope parameters of a layer, and its base."""
        family = self.family
        parameters = self.get("rope_parameters") or family.get("parameters") or {}
        scaling = self.get("rope_scaling") or {}
        if "scaled" in family:  # a table for each type, and rope_scaling is for some of them
            rope = dict(parameters.get(layer_type) or {})
            if layer_type[0] in family["scaled"]:
                rope |= scaling
        else:
            if scaling and parameters and scaling != parameters:
                self.ignored.append("rope_parameters (rope_scaling replaces it as a whole)")
            rope = scaling or parameters
            if family.get("nested") or layer_type in rope:  # a table for each type
                rope = rope.get(layer_type) or {}
        is_local = layer_type == "sliding_attention" and "local_base" in family
        if is_local:
            base = self.get("rope_local_base_freq") or self.get("local_rope_theta")
            base = base or family["local_base"]
        else:
            base = self.get("rope_theta") or family.get("base", 1e4)
        inside = rope.get("rope_theta")
        if inside and self.get("rope_theta") not in (None, inside) and not is_local:
            theirs = self.names["rope_theta"]
            self.ignored.append(
                f"{theirs}={self.get('rope_theta')} (the one inside wins: {inside})"
            )
        if self.get("layer_rope_theta"):
            inside = self.get("layer_rope_theta")[number]
        return rope, float(inside or base)

    def rotary_layer(
        self, rope: dict, base: float, layer_type: str, width: int, length: int
    ) -> tuple[Layer, int]:
        """The positions of a layer that rotates, and the length that its formula reads."""
        rope = {key: value for key, value in rope.items() if value is not None}
        rope_type = rope.get("rope_type") or rope.get("type") or "default"
        if self.kind.startswith("phi3") and rope_type in ("su", "yarn"):
            rope_type = "longrope"
        if rope_type not in ROPE_TYPES:
            raise UserError(f"rope_type {rope_type} is none of {', '.join(ROPE_TYPES)}")
        name, required, optional = ROPE_TYPES[rope_type]
        missing = [key for key in required.split() if key not in rope]
        if missing:
            raise UserError(
                f"rope_type {rope_type} needs {' and '.join(missing)}, which is missing: {VERSION} "
                "refuses it too"
            )
        original = length
        if rope_type in FROM_FIRST_LENGTH:
            original = rope.get(ORIGINAL, length)
            outside = self.values.get(ORIGINAL)
            self.names[ORIGINAL] = ORIGINAL
            if outside and outside != original and ORIGINAL in rope:
                self.ignored.append(
                    f"{ORIGINAL}={original} (that at the top level wins: {outside})"
                )
            original = outside or original

        # the scheme
        options = {"base": base}
        fraction = rope.get("partial_rotary_factor", self.get("partial_rotary_factor"))
        if self.get("rotary_dim"):
            fraction = fraction or self.get("rotary_dim") / width
        if rope_type == "proportional":
            options["p"] = rope.get("partial_rotary_factor", 1.0)
        elif "fraction" in self.family or self.get("rotary_dim") or rope_type != "default":
            optional += " partial_rotary_factor"
            options["fraction"] = fraction or self.family.get("fraction", 1.0)
            if options["fraction"] == 1.0:
                del options["fraction"]
        layout = self.family.get("layout", "half")
        if self.get("rope_interleave") is False:
            layout = "half"
        if layout == "interleaved":
            options["layout"] = layout
        read = ["rope_type", "type", "rope_theta", *required.split(), *optional.split()]
        unread = [key for key in rope if key not in read and key not in self.names]

        # the extension
        values = dict(rope)
        if rope_type in FROM_FIRST_LENGTH and "factor" not in rope:
            values["factor"] = length / original
        if rope_type == "yarn":
            weighed = rope.get("mscale") and rope.get("mscale_all_dim")
            if "attention_factor" in rope or not weighed:  # each is ignored without the other
                unread += [key for key in ("mscale", "mscale_all_dim") if values.pop(key, None)]
            if original != length and length / original != values["factor"]:
                self.notes.append(
                    f"factor={values['factor']} is not max_position_embeddings / {ORIGINAL} = "
                    f"{length / original:g}: the factor counts"
                )
        extend = ""
        if name and (rope_type != "proportional" or values.get("factor", 1.0) != 1.0):
            chosen = {ours: values[key] for ours, key in OPTIONS.items() if key in values}
            chosen = {ours: x for ours, x in chosen.items() if OPTIONS[ours] in read}
            if rope_type == "longrope":
                chosen = {"file": "'config.json'", **chosen}
            extend = expression(name, chosen)
        self.ignored += [
            f"{key} (of the rope parameters, with rope_type {rope_type})" for key in unread
        ]

        words = ""
        if "llama_4_scaling_beta" in rope:
            words = "queries x (1 + llama_4_scaling_beta ln(1 + floor(i / original length)))"
        if layer_type in ("indexed_attention", "hybrid", "hybrid_sliding"):
            words = f"{layer_type}: keys that an indexer or a mixer chooses are not described"
        pos = self.with_window(expression("rope", options), layer_type)
        return Layer(pos, extend, width, words), original

    # ---- what nothing reads

    def unread(self, read: Iterable[str]) -> list[str]:
        """The keys at the top level that look as if they were about positions, but are not read."""
        known = {"partial_rotary_factor", "rotary_pct", "rotary_emb_base", ORIGINAL}
        for family in FAMILIES.values():
            known.update(word.rpartition(":")[2] for word in family.get("keys", "").split())
        known |= {"rope_theta", "rope_scaling", "rope_parameters", "rope_type"}
        unread = []
        for key, value in self.values.items():
            if key in read or key[0] == "_" or value is False or isinstance(value, dict):
                continue
            near = difflib.get_close_matches(key, known, 1, 0.9)
            if near or re.search(r"rope|rotary|alibi|yarn", key):
                meant = f": did you mean {near[0]}?" if near and near[0] != key else ""
                unread.append(key + meant)
        return unread
