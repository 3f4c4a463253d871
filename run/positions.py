"""What positions a config.json of Hugging Face describes, read as transformers 5.23 reads it.

    Positions(config).layers     our expression and extension of each layer
    Positions(config).ignored    the keys that nothing reads

Imports (run/huggingface.py) and `python -m tools.explain PATH` share this reading. families.toml
says what each model_type takes where a config.json is silent, and which keys it reads.
"""

import difflib
import math
import re
import tomllib
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from common.errors import UserError
from common.files import read_json

TABLE = tomllib.loads(Path(__file__).with_name("families.toml").read_text(encoding="utf-8"))
FAMILIES = {kind: TABLE["default"] | family for kind, family in TABLE["families"].items()}
ROPE_TYPES = TABLE["rope_types"]
LAYER_TYPES = TABLE["layer_types"]
# what a config.json that is none of a model raises
NO_MODEL = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
ROPE_KEYS = TABLE["default"]["rope_keys"].split()
ORIGINAL = "original_max_position_embeddings"  # the length first trained at
FRACTION = "partial_rotary_factor"
NO_ATTENTION = ("linear_attention", "conv", "recurrent")


@dataclass(frozen=True)
class Layer:
    """The positions of a layer: our expressions, and how many columns of a head may turn."""

    pos: str  # "" if the layer has no attention of ours
    extend: str
    width: int
    words: str = ""  # what the expression leaves out


def pattern_of(layers: list[str]) -> str:
    """The shortest pattern of the expressions of all layers, such as `3 * (rope) | nope`."""
    period = 1
    while layers[period:] != layers[:-period]:
        period += 1
    branches = []
    for layer, run in groupby(layers[:period]):
        count = len(list(run))
        if count > 1:
            layer = f"{count} * ({layer})" if " " in layer else f"{count} * {layer}"
        branches.append(layer)
    return " | ".join(branches)


def keys_of(family):
    """The keys that a family reads at the top level of a config.json: {our name: theirs}."""
    names = {}
    for word in f"{family['rope_keys']} {family['keys']}".split():
        ours, _, theirs = word.partition(":")
        names[ours] = theirs or ours
    return names


# keys about positions, of any family
KNOWN = set()
for family in FAMILIES.values():
    KNOWN.update(keys_of(family).values())
for formula in ROPE_TYPES.values():
    KNOWN.update(formula["options"].values(), formula["also"])


def unread_keys(values, read):
    """The keys of a config.json that look as if they are about positions, and are not in `read`."""
    keys = []
    for key, value in values.items():
        if not value or key in read or key.startswith("_") or key.endswith("_config"):
            continue
        near = difflib.get_close_matches(key, KNOWN, 1, 0.9)
        if near and near[0] != key:
            keys.append(f"{key}: did you mean {near[0]}?")
        elif near or re.search("rope|rotary|alibi|yarn", key):
            keys.append(key)
    return keys


def check_numbers(values):
    """UserError if a value is a text."""
    for key, value in values.items():
        if isinstance(value, str) and key not in ("rope_type", "type", "position_embedding_type"):
            raise UserError(f"{key} = {value!r:.60} is a text: write a number without quotes")


def read_positions(path: Path) -> "Positions":
    """The positions of a config.json; UserError if it cannot be read."""
    try:
        return Positions(read_json(path), path.name)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except NO_MODEL as error:
        raise UserError(f"{path} is no config.json of a model: {error!s:.200}") from error


class Positions:
    """The positions of a config.json, read by the line of its model_type in families.toml.

    `layers` has a `Layer` for each, `types` their types in transformers. Formulas read
    `first_length`, the length first trained at; `length` is the longest. Each of `ignored` is a key
    without effect, `notes` are other sentences. `name` is that of the file. UserError for what
    transformers refuses, and for a rope_type or a type of model that is not known.
    """

    def __init__(self, config: dict, name: str = "config.json") -> None:
        self.file_name = name
        values = config.get("text_config") or config
        kind = str(values.get("model_type") or config.get("model_type"))
        if f"{kind}_text" in FAMILIES:  # a model of text and pictures that has its text at the top
            kind = f"{kind}_text"
        if kind in TABLE["refused"]:
            raise UserError(f"a {kind} cannot be read here: {TABLE['refused'][kind]}")
        if values.get("is_causal") is False:
            raise UserError("is_causal=false: its attention sees both sides")
        self.kind = kind
        self.values = values
        self.ignored = []
        self.notes = []
        family = FAMILIES.get(kind, TABLE["default"] | TABLE["unknown"])
        self.names = keys_of(family)
        self.read = {}  # what config.json says, by our names; null means that a window is off
        for ours, theirs in self.names.items():
            value = values.get(theirs)
            if value is not None or (ours == "sliding_window" and theirs in values):
                self.read[ours] = value
        check_numbers(self.read)
        self.rules = rules = family | self.read
        if kind not in FAMILIES:
            unknown = f"type {kind:.60} is unknown"
            if not any(values.get(key) for key in ROPE_KEYS):
                raise UserError(f"{unknown}, without any of {', '.join(ROPE_KEYS)}")
            self.notes.append(f"{unknown}: read by the rules that most types share")
            rules["by_type"] = "full_attention" in rules["rope_parameters"]
        self.n_layer = self.size("n_layer")
        self.n_head = self.size("n_head")
        self.length = self.size("length")
        self.first_length = self.length
        self.is_latent = rules["width_key"] == "qk_rope_head_dim"
        self.window = rules["use_sliding_window"] and rules["sliding_window"]
        self.types = self.layer_types()
        nope = rules["nope"]
        if rules["nope_needs_window"] and not self.window:
            nope = ""
        # whether each layer rotates; of layer_rope_theta, Granite's bases, 0 means that it does not
        self.rotates = rules["no_rope_layers"] or rules["layer_rope_theta"]
        self.rotates = self.rotates or [name[0] not in nope for name in self.types]
        if len(self.rotates) < self.n_layer:
            key = "no_rope_layers" if rules["no_rope_layers"] else "layer_rope_theta"
            raise UserError(f"{key} has {len(self.rotates)} entries for {self.n_layer} layers")
        self.layers = [self.layer(number, name) for number, name in enumerate(self.types)]

        for key, sentence in TABLE["changed"].items():
            if values.get(key) is not None:
                self.notes.append(f"{key}: {sentence}")
        lengths = TABLE["sizes"]["length"]
        for key in lengths:
            if values.get(key) not in (None, self.length):
                self.ignored.append(f"{key}={values[key]}: the length is {self.length}")
        read = {*self.names.values(), *lengths, rules["width_key"], "qk_nope_head_dim"}
        # a key of another family that says the same
        read.update(ours for ours, value in self.read.items() if values.get(ours) == value)
        self.ignored += unread_keys(values, read)
        if values is not config:
            self.ignored += [f"{key} beside text_config" for key in unread_keys(config, lengths)]
        # a key counts once, in however many layers it was met
        self.ignored = list(dict.fromkeys(self.ignored))
        self.notes = list(dict.fromkeys(self.notes))
        if kind not in FAMILIES:  # who knows what it reads
            self.notes += [f"perhaps nothing reads {key}" for key in self.ignored]
            self.ignored = []

    def size(self, name):
        """A size of the model: of config.json, or of the class; UserError if there is neither."""
        keys = TABLE["sizes"][name]
        for key in keys:
            size = self.values.get(key)
            if size is not None:
                if not isinstance(size, int) or size < 1:
                    raise UserError(f"{key} = {size!r:.60} is no whole number above 0")
                return size
        if name not in self.rules:
            raise UserError(f"it has none of the keys {', '.join(keys)}")
        self.notes.append(f"{keys[0]} is missing: taken for {self.rules[name]}")
        return self.rules[name]

    def layer_types(self):
        """The type of each layer, as in transformers' `layer_types`."""
        rules = self.rules
        every = rules["no_rope_layer_interval"]
        if every and not rules["no_rope_layers"]:  # misnamed: 1 means that the layer rotates
            rules["no_rope_layers"] = [(number + 1) % every for number in range(self.n_layer)]
        types = rules["layer_types"]
        if not types:
            pattern = rules["pattern"]
            if pattern == "max_window_layers":  # the first layer with a window
                pattern = "f" * rules["max_window_layers"] + "s" * self.n_layer
            elif every:
                pattern = [pattern[0] if turns else pattern[1] for turns in rules["no_rope_layers"]]
            elif rules["every"]:  # the last of so many layers is the other one
                pattern = pattern[0] * (rules["every"] - 1) + pattern[-1]
            if "s" in pattern and not self.window:
                pattern = "f"
            if "?" in pattern:
                raise UserError(
                    f"layer_types is missing, and the rule that a {self.kind} has instead is not "
                    "known here: save the config.json anew with transformers 5"
                )
            types = [pattern[number % len(pattern)] for number in range(self.n_layer)]
        if len(types) != self.n_layer:
            raise UserError(f"layer_types has {len(types)} types for {self.n_layer} layers")
        types = [LAYER_TYPES.get(name, name) for name in types]
        for name in types:
            if name not in (*LAYER_TYPES.values(), *TABLE["other_layers"]["names"]):
                raise UserError(f"layer_types has {name!r:.60}, which transformers refuses")
        return types

    def layer(self, number, layer_type):
        """The positions of a layer."""
        rules = self.rules
        width = self.values.get(rules["width_key"]) or rules.get("width")
        width = width or self.size("n_embd") // self.n_head
        if rules["global_head_dim"] and layer_type == "full_attention":  # Gemma 4
            layer = rules["per_layer_config"].get(str(number), {})
            width = layer.get("head_dim", rules["global_head_dim"])
        if layer_type in NO_ATTENTION:
            return Layer("", "", width, f"{layer_type} is no attention of ours")
        if rules["alibi"]:  # Falcon divides scores and ALiBi by sqrt(d)
            return Layer("alibi", f"slopes(scale={width**-0.5})", width)
        pos = rules["pos"].format_map(rules)
        extend = ""
        if pos == "rope" and self.rotates[number]:
            pos, extend = self.rotation(number, layer_type, width)
        elif pos == "rope":
            pos = "nope"
            if rules["attn_temperature_tuning"]:
                pos += rules["temperature"].format_map(rules)
        if layer_type == "chunked_attention":
            pos += f" + chunks(size={rules['attention_chunk_size']})"
        elif self.window and layer_type[0] in rules["window"]:
            pos += f" + window(size={self.window})"
        elif layer_type == "sliding_attention" and "s" in rules["window"]:
            raise UserError("layer_types has sliding_attention, but there is no sliding_window")
        return Layer(pos, extend, width, rules["words"])

    def rope_of(self, number, layer_type):
        """The rope parameters of a layer, with its base as rope_theta."""
        rules = self.rules
        parameters = rules["rope_parameters"]
        scaling = rules["rope_scaling"]
        base_key = "rope_theta"
        rope = scaling or parameters
        if rules["by_type"]:  # a table for each type of layer
            for key in parameters:
                if key not in LAYER_TYPES.values():
                    self.ignored.append(f"{key} of rope_parameters, which is by type of layer")
            rope = parameters.get(layer_type) or {}
            if layer_type == "full_attention":
                rope = rope | scaling
            elif layer_type == "sliding_attention" and rules["rope_local_base_freq"]:
                base_key = "rope_local_base_freq"
        elif scaling and self.read.get("rope_parameters", scaling) != scaling:
            self.ignored.append("rope_parameters: rope_scaling replaces it as a whole")
        outside = self.read.get(base_key)
        inside = rope.get("rope_theta")
        if outside and inside and outside != inside:
            self.ignored.append(f"rope_theta={outside} at the top level: that inside is {inside}")
        base = inside or rules[base_key]
        if rules["layer_rope_theta"]:
            base = rules["layer_rope_theta"][number]
        return rope | {"rope_theta": float(base)}

    def set_first_length(self, rope):
        """Take the length first trained at from config.json, or from the rope parameters."""
        first = rope.get(ORIGINAL)
        if not self.rules["by_type"]:
            self.names[ORIGINAL] = ORIGINAL
            first = self.values.get(ORIGINAL) or first
        if not first:
            self.notes.append(f"{ORIGINAL} is missing: taken for {self.length}")
            first = self.length
        if self.first_length not in (first, self.length):
            raise UserError(f"layers differ in {ORIGINAL}, which is not computed here")
        self.first_length = first
        if rope.get(ORIGINAL, first) != first:
            self.ignored.append(f"{ORIGINAL} of the rope parameters: the top level's counts")

    def rotation(self, number, layer_type, width):
        """The scheme and the extension of a layer that rotates."""
        rules = self.rules
        rope = self.rope_of(number, layer_type)
        rope_type = rope.get("rope_type") or rope.get("type") or "default"
        if rope.get("type", rope_type) != rope_type:
            self.ignored.append(f"type={rope['type']}: rope_type is {rope_type}")
        rope_type = rules["rename"].get(rope_type, rope_type)
        formula = ROPE_TYPES.get(rope_type)
        if formula is None:
            raise UserError(f"rope_type {rope_type} is none of {', '.join(ROPE_TYPES)}")
        inside = rules["inside"].split()
        if rope_type == "dynamic" and "alpha" in inside and rope.get("alpha"):
            formula = TABLE["dynamic_alpha"]
        for key in formula["required"]:
            # the factor of yarn may be null: that of the lengths
            if key not in rope or (rope[key] is None and rope_type != "yarn"):
                raise UserError(
                    f"rope_type {rope_type} needs {key}, which is missing: transformers refuses it"
                )
        rope = {key: value for key, value in rope.items() if value is not None}
        check_numbers(rope)
        read = {
            "rope_type",
            "type",
            "rope_theta",
            *inside,
            *formula["options"].values(),
            *formula["also"],
        }

        # the scheme
        pos = f"rope(base={rope['rope_theta']}"
        fraction = rules["rotary_dim"] / width or rules["fraction"]
        if fraction or rope_type != "default":
            read.add(FRACTION)
            if 0 in (rope.get(FRACTION), self.read.get(FRACTION)):
                raise UserError(f"{self.names.get(FRACTION, FRACTION)} = 0: nothing would turn")
            fraction = rope.get(FRACTION) or self.read.get(FRACTION) or fraction or 1.0
            if fraction != 1.0:
                pos += f", {'p' if rope_type == 'proportional' else 'fraction'}={fraction}"
        if rules["layout"] != "half" and rules["rope_interleave"]:
            pos += f", layout={rules['layout']}"

        # the extension
        options = {
            ours: rope[theirs] for ours, theirs in formula["options"].items() if theirs in rope
        }
        if ORIGINAL in formula["also"]:
            self.set_first_length(rope)
            options.setdefault("factor", self.length / self.first_length)
        all_dim = rope.get("mscale_all_dim")
        # DeepSeek's factor of all scores reads mscale_all_dim alone
        is_tempered = all_dim and self.is_latent and rope_type != "default"
        if is_tempered and rope_type != "yarn":
            raise UserError(f"rope_type {rope_type} with mscale_all_dim is not computed here")
        # that of cosines and sines ignores each without the other
        if "attention_factor" in rope or not (all_dim and rope.get("mscale")):
            read -= {name for name in ("mscale", "mscale_all_dim") if options.pop(name, None)}
            if is_tempered:
                read.add("mscale_all_dim")
                options["mscale_all_dim"] = all_dim
                options.setdefault("attention_factor", 1 + 0.1 * math.log(options["factor"]))
        for key in sorted(rope.keys() - read):
            self.ignored.append(f"{key} of the rope parameters, with rope_type {rope_type}")
        if rope_type == "longrope":
            options = {"file": repr(self.file_name), **options}
        extend = ", ".join(f"{name}={value}" for name, value in options.items())
        return f"{pos})", extend and f"{formula['extension']}({extend})"
