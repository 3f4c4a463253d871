"""What positions a config.json of Hugging Face describes, read as transformers 5.23 reads it.

    Positions(config).layers     our expression and extension of each layer
    Positions(config).ignored    the keys that nothing reads

Imports (runs/huggingface.py) and `python -m tools.explain PATH` share this reading. families.toml
says what each model_type takes where a config.json is silent, and which keys it reads.
"""

import difflib
import math
import re
import tomllib
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from configurable import UserError, read_json

TABLE = tomllib.loads(Path(__file__).with_name("families.toml").read_text(encoding="utf-8"))
FAMILIES = TABLE["families"]
ROPE_TYPES = TABLE["rope_types"]
ORIGINAL = "original_max_position_embeddings"  # the length first trained at
ROPE_KEYS = ("rope_parameters", "rope_scaling", "rope_theta")
NO_ATTENTION = ("linear_attention", "conv", "recurrent")
SIZES = ("n_layer", "n_head", "n_embd", "length", "width")
ASSUMED_LENGTH = 2048  # where a config.json has none


@dataclass(frozen=True)
class Layer:
    """The positions of a layer: our expressions, and how many columns of a head may turn."""

    pos: str  # "" if the layer has no attention of ours
    extend: str
    width: int
    words: str = ""  # what our expressions cannot say


def pattern_of(layers: list[str]) -> str:
    """The shortest pattern of the expressions of all layers, such as `3 * (rope) | nope`."""
    period = 1
    while layers[period:] != layers[:-period]:
        period += 1
    branches = []
    for layer, run in groupby(layers[:period]):
        count = len(list(run))
        if count > 1 and " " in layer:
            layer = f"({layer})"
        branches.append(f"{count} * {layer}" if count > 1 else layer)
    return " | ".join(branches)


def unread(values, read):
    """The keys of a config.json that look as if they are about positions, and are not in `read`."""
    known = {"partial_rotary_factor", "rotary_pct", "rotary_emb_base", *ROPE_KEYS}
    for family in FAMILIES.values():
        known.update(word.rpartition(":")[2] for word in family.get("keys", "").split())
    for row in ROPE_TYPES.values():
        known.update(row["reads"])
    keys = []
    for key, value in values.items():
        if key in read or key.startswith("_") or key.endswith("_config") or not value:
            continue
        near = difflib.get_close_matches(key, known, 1, 0.9)
        if near and near[0] != key:
            keys.append(f"{key}: did you mean {near[0]}?")
        elif near or re.search("rope|rotary|alibi|yarn", key):
            keys.append(key)
    return keys


def read_positions(path: Path) -> "Positions":
    """The positions of a config.json; UserError if it cannot be read."""
    try:
        return Positions(read_json(path))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(f"{path} is no config.json of a model: {error!s:.200}") from error


class Positions:
    """The positions of a config.json, read by the line of its model_type in families.toml.

    `layers` has a `Layer` for each, `types` their types in transformers. Formulas read
    `first_length`, the length first trained at; `length` is the longest. Each of `ignored` is a key
    without effect, `notes` are other sentences. UserError for what transformers refuses, and for a
    rope_type or a type of model that is not known.
    """

    def __init__(self, config: dict) -> None:
        values = config.get("text_config") or config
        kind = str(values.get("model_type") or config.get("model_type"))
        if f"{kind}_text" in FAMILIES:  # a model of text and pictures that has its text at the top
            kind = f"{kind}_text"
        if kind in TABLE["refused"]:
            raise UserError(f"a {kind} cannot be read here: {TABLE['refused'][kind]}")
        self.kind = kind
        self.values = values
        self.ignored = []
        self.notes = []
        self.family = TABLE["default"] | FAMILIES.get(kind, TABLE["unknown"])
        if kind not in FAMILIES:
            self.notes.append(
                f"type {kind:.60} is unknown: read by the rules that most types share"
            )
            if not any(values.get(key) for key in ROPE_KEYS):
                raise UserError(
                    f"type {kind:.60} is unknown, without any of {', '.join(ROPE_KEYS)}"
                )
        # rope_parameters has a table for each type of layer
        self.by_type = self.family["nested"] or "scaled" in self.family
        # our name of each key that the family reads -> theirs
        self.names = {}
        if self.family["kind"] == "rope":
            keys = ROPE_KEYS[:1] if self.family["nested"] else ROPE_KEYS
            self.names = {key: key for key in keys}
        for word in self.family["keys"].split():
            ours, _, theirs = word.partition(":")
            self.names[ours] = theirs or ours
        sizes = TABLE["class_sizes"].get(kind, [])
        self.class_sizes = dict(zip(SIZES, sizes, strict=False))
        self.n_layer = self.size("n_layer")
        self.n_head = self.size("n_head")
        self.length = self.size("length")
        self.first_length = self.length
        self.reads_original = False  # at the top level
        # the size of windows: null means none, and so does a flag
        self.window = values.get(
            self.names.get("sliding_window"), self.family.get("sliding_window")
        )
        if "use_sliding_window" in self.names and not self.get("use_sliding_window"):
            self.window = None
        self.width_key = self.family["width"]
        self.is_latent = self.width_key == "qk_rope_head_dim"
        self.types = self.layer_types()
        self.layers = [self.layer(number) for number in range(self.n_layer)]
        for key, sentence in TABLE["changed"].items():
            if values.get(key) is not None:
                self.notes.append(f"{key}: {sentence}")
        lengths = TABLE["sizes"]["length"]
        for key in lengths:
            if values.get(key) not in (None, self.length):
                self.ignored.append(f"{key}={values[key]}: the length is {self.length}")
        read = [*self.names.values(), *lengths, self.width_key, "qk_nope_head_dim"]
        # a key of another family that says the same
        read += [ours for ours in self.names if values.get(ours) == self.get(ours)]
        if self.reads_original:
            read.append(ORIGINAL)
        self.ignored += unread(values, read)
        if values is not config:
            self.ignored += [f"{key} beside text_config" for key in unread(config, lengths)]
        # a key counts once, in however many layers it was met
        self.ignored = list(dict.fromkeys(self.ignored))
        self.notes = list(dict.fromkeys(self.notes))
        if kind not in FAMILIES:  # who knows what it reads
            self.notes += [f"perhaps nothing reads {key}" for key in self.ignored]
            self.ignored = []

    def get(self, name, default=None):
        """The value of a key, by our name for it; the default if it is null, absent or not read."""
        value = self.values.get(self.names.get(name))
        if isinstance(value, str) and name != "position_embedding_type":
            raise UserError(f"{name} = {value!r:.60} is a text: write a number without quotes")
        return default if value is None else value

    def size(self, name):
        """A size of the model: of config.json, or of the class; UserError if there is neither."""
        for key in TABLE["sizes"][name]:
            if self.values.get(key) is not None:
                size = self.values[key]
                if not isinstance(size, int) or size < 1:
                    raise UserError(f"{key} = {size!r:.60} is no whole number above 0")
                return size
        default = self.class_sizes.get(name)
        if name == "length" and not default:
            default = ASSUMED_LENGTH
        if not default:
            raise UserError(f"it has none of the keys {', '.join(TABLE['sizes'][name])}")
        self.notes.append(f"{TABLE['sizes'][name][0]} is missing: taken for {default}")
        return default

    def layer(self, number):
        """The positions of a layer."""
        kind = self.family["kind"]
        layer_type = self.types[number]
        width = self.values.get(self.width_key) or self.class_sizes.get("width")
        width = width or self.size("n_embd") // self.n_head
        if "global_head_dim" in self.names and layer_type == "full_attention":  # Gemma 4
            width = self.get("global_head_dim", 512)
            width = self.get("per_layer_config", {}).get(str(number), {}).get("head_dim", width)
        if layer_type in NO_ATTENTION:
            return Layer("", "", width, f"{layer_type} is no attention of ours")
        if kind == "t5":
            buckets = self.values.get("relative_attention_num_buckets", 32)
            farthest = self.values.get("relative_attention_max_distance", 128)
            per_layer = ", per_layer=True" if self.kind == "umt5" else ""
            text = f"t5(buckets={buckets}, max_distance={farthest}{per_layer})"
            return Layer(text, "", width, self.family["words"])
        if self.get("alibi"):  # Falcon divides scores and ALiBi by sqrt(d)
            return Layer("alibi", f"slopes(scale={width**-0.5})", width)
        if kind != "rope":
            return Layer(kind, "", width)
        if self.rotates(number, layer_type):
            pos, extend = self.rotation(number, width)
        else:
            pos = "nope"
            extend = ""
            if self.get("attn_temperature_tuning", "attn_temperature_tuning" in self.names):
                scale = self.get("attn_scale", 0.1)  # Llama 4
                floor = int(self.get("floor_scale", 8192))
                pos += f" + step_temperature(scale={scale}, floor={floor})"
        windowed = self.family["window"]
        if layer_type == "chunked_attention":
            pos += f" + chunks(size={self.get('attention_chunk_size', 8192)})"
        elif self.window and (windowed == "a" or layer_type[0] in windowed):
            pos += f" + window(size={self.window})"
        elif layer_type == "sliding_attention" and "s" in windowed:
            raise UserError("layer_types has sliding_attention, but there is no sliding_window")
        return Layer(pos, extend, width, self.family["words"])

    def layer_types(self):
        """The type of each layer, as in transformers' `layer_types`."""
        types = self.get("layer_types")
        pattern = self.family["pattern"]
        if "use_sliding_window" in self.names and not self.window:
            pattern = pattern or "f"
        if types and len(types) != self.n_layer:
            raise UserError(f"layer_types has {len(types)} types for {self.n_layer} layers")
        if types:
            return [TABLE["layer_types"].get(name, name) for name in types]
        if not pattern:
            raise UserError(
                f"layer_types is missing, and the rule that a {self.kind} has instead is not known "
                "here: save the config.json anew with transformers 5"
            )
        every = self.get("every")
        if pattern == "max_window_layers":  # the first layer with a window
            first = self.get("max_window_layers", 28)
            pattern = "f" * first + "s" * self.n_layer
        elif every:  # the last of so many layers is the other one
            pattern = pattern[0] * (every - 1) + pattern[-1]
        elif self.family["nope"] == "no_rope_layers":
            rotating, other = pattern
            pattern = [
                rotating if self.rotates(number, "") else other for number in range(self.n_layer)
            ]
        if "s" in pattern and not self.window:
            pattern = "f"
        return [TABLE["layer_types"][pattern[n % len(pattern)]] for n in range(self.n_layer)]

    def rotates(self, number, layer_type):
        """Whether a layer rotates queries and keys."""
        nope = self.family["nope"]
        if nope == "no_rope_layers":  # misnamed: 1 means that the layer rotates
            every = self.get("no_rope_layer_interval", 4)
            rotates = self.get("no_rope_layers")
            return bool(rotates[number]) if rotates else (number + 1) % every != 0
        if self.get("layer_rope_theta"):  # Granite: a base for each layer, 0 for none
            return self.get("layer_rope_theta")[number] != 0
        if self.family.get("nope_needs_window") and not self.window:
            nope = ""
        is_rope = self.get("position_embedding_type", "rope") == "rope"
        return is_rope and layer_type[0] not in nope

    def rope_of(self, number):
        """The rope parameters of a layer, with its base as rope_theta."""
        family = self.family
        layer_type = self.types[number]
        parameters = self.get("rope_parameters") or family.get("parameters") or {}
        scaling = self.get("rope_scaling") or {}
        if self.by_type:
            types = TABLE["layer_types"].values()
            self.ignored += [
                f"{key} of rope_parameters, which is by type of layer"
                for key in parameters
                if key not in types and key != "hybrid_sliding"
            ]
        elif scaling and self.get("rope_parameters", scaling) != scaling:
            self.ignored.append("rope_parameters: rope_scaling replaces it as a whole")
        is_new = self.kind not in FAMILIES and layer_type in parameters
        if "scaled" in family:  # rope_scaling is for some types
            rope = parameters.get(layer_type) or {}
            if layer_type[0] in family["scaled"]:
                rope = rope | scaling
        elif family["nested"] or is_new:
            rope = parameters.get(layer_type) or {}
        else:
            rope = scaling or parameters
        base = self.get("rope_theta")
        default = family["base"]
        if layer_type == "sliding_attention" and "local_base" in family:
            base = self.get("rope_local_base_freq")
            default = family["local_base"]
        inside = rope.get("rope_theta")
        if base and inside and inside != base:
            self.ignored.append(f"rope_theta={base} at the top level: that inside is {inside}")
        base = inside or base or default
        if self.get("layer_rope_theta"):
            base = self.get("layer_rope_theta")[number]
        return rope | {"rope_theta": float(base)}

    def rotation(self, number, width):
        """The scheme and the extension of a layer that rotates."""
        family = self.family
        rope = self.rope_of(number)
        rope_type = rope.get("rope_type") or rope.get("type") or "default"
        if self.kind.startswith("phi3") and rope_type in ("su", "yarn"):
            rope_type = "longrope"
        inside = self.family["inside"].split()
        if rope_type == "mrope" and "mrope_section" in inside:  # plain rotation, of a text
            rope_type = "default"
        row = ROPE_TYPES.get(rope_type)
        if rope_type == "dynamic" and "alpha" in inside and rope.get("alpha"):
            row = TABLE["ntk_alpha"]
            rope = rope | {"factor": rope["alpha"]}
        if row is None:
            raise UserError(f"rope_type {rope_type} is none of {', '.join(ROPE_TYPES)}")
        for key in row["required"]:
            is_ratio = rope_type == "yarn" and key in rope  # null: that of the lengths
            if rope.get(key) is None and not is_ratio:
                raise UserError(
                    f"rope_type {rope_type} needs {key}, which is missing: transformers refuses it"
                )
        rope = {key: value for key, value in rope.items() if value is not None}
        for key, value in rope.items():
            if isinstance(value, str) and key not in ("rope_type", "type"):
                raise UserError(f"{key} = {value!r:.60} is a text: write a number without quotes")
        if self.is_latent and rope.get("mscale_all_dim") and rope_type not in ("default", "yarn"):
            raise UserError(f"rope_type {rope_type} with mscale_all_dim is not computed here")
        read = {"rope_type", "type", "rope_theta", *row["reads"]}
        if rope.get("type", rope_type) not in (rope_type, rope.get("rope_type", rope_type)):
            self.ignored.append(f"type={rope['type']}: rope_type is {rope_type}")

        # the scheme
        text = f"rope(base={rope['rope_theta']}"
        fraction = rope.get("partial_rotary_factor", self.get("partial_rotary_factor"))
        if self.get("rotary_dim"):
            fraction = fraction or self.get("rotary_dim") / width
        if family["fraction"] or rope_type != "default" or self.get("rotary_dim"):
            read.add("partial_rotary_factor")
            fraction = fraction or family["fraction"] or 1.0
            name = "p" if rope_type == "proportional" else "fraction"
            text += f", {name}={fraction}" if fraction != 1.0 else ""
        if family["layout"] != "half" and self.get("rope_interleave", True):
            text += f", layout={family['layout']}"

        # the extension
        options = {}
        for ours, theirs in TABLE["options"].items():
            if theirs in rope and theirs in read:
                options[ours] = rope[theirs]
        if ORIGINAL in read:
            self.reads_original = not self.by_type
            outside = self.values.get(ORIGINAL) if self.reads_original else None
            if not outside and ORIGINAL not in rope:
                self.notes.append(f"{ORIGINAL} is missing: taken for {self.length}")
            first = outside or rope.get(ORIGINAL) or self.length
            if self.first_length not in (first, self.length):
                raise UserError(f"layers differ in {ORIGINAL}, which is not computed here")
            self.first_length = first
            if rope.get(ORIGINAL, self.first_length) != self.first_length:
                self.ignored.append(f"{ORIGINAL} of the rope parameters: the top level's counts")
            ratio = self.length / self.first_length
            options.setdefault("factor", ratio)
            if rope_type == "yarn" and ratio not in (1.0, options["factor"]):
                self.notes.append(
                    f"factor is {options['factor']}, max_position_embeddings / {ORIGINAL} is "
                    f"{ratio:g}: the factor counts"
                )
        is_weighed = rope.get("mscale") and rope.get("mscale_all_dim")
        if "attention_factor" in rope or not is_weighed:  # each is ignored without the other
            for name in ("mscale", "mscale_all_dim"):
                if options.pop(name, None):
                    read.discard(name)
            if self.is_latent and rope.get("mscale_all_dim"):  # but not in DeepSeek's other factor
                options["mscale_all_dim"] = rope["mscale_all_dim"]
                options.setdefault("attention_factor", 1 + 0.1 * math.log(options["factor"]))
                read.add("mscale_all_dim")
        if rope_type == "longrope":
            options = {"file": "'config.json'", **options}
        extend = row["extension"]
        if options:
            extend += f"({', '.join(f'{name}={value}' for name, value in options.items())})"
        elif rope_type == "proportional":
            extend = ""
        for key in sorted(rope.keys() - read - {*inside}):
            self.ignored.append(f"{key} of the rope parameters, with rope_type {rope_type}")
        return f"{text})", extend
