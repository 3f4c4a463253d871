#!/usr/bin/env bash
# Expected: the first layers of a model are of the same kinds (windows with rotations, or all keys
# without positions) whatever num_hidden_layers is, so that a copy with fewer layers, or weights cut
# off after some layers, still fit. Seen: Muse counts from the last layer, so that with 7 layers
# three of the first 7 are others than with 8; in Flint the last layer sees all keys, whichever it
# is; in five models only the end is cut off.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile transformers==5.23.0
venv/bin/python -W ignore - <<'PYTHON'
import importlib

import transformers

MODELS = {
    "muse_spark": "MuseSparkTextConfig",
    "muse_glimmer": "MuseGlimmerTextConfig",
    "flint": "FlintConfig",
    "kolibri1": "Kolibri1Config",
    "mimo_v2_flash": "MiMoV2FlashConfig",
    "afmoe": "AfmoeConfig",
    "exaone4": "Exaone4Config",
    "cohere2_moe": "Cohere2MoeConfig",
}


def kinds(name, layers):
    module = importlib.import_module(f"transformers.models.{name}.configuration_{name}")
    config = getattr(module, MODELS[name])(num_hidden_layers=layers)
    return "".join(kind[0] for kind in config.layer_types)


print("transformers", transformers.__version__, "layers (s: sliding, f: full) of 8, and of 7")
moved = {}
for name in MODELS:
    eight, seven = kinds(name, 8), kinds(name, 7)
    moved[name] = sum(a != b for a, b in zip(eight, seven))
    print(f"  {name}: {eight}, {seven}: {moved[name]} of the first 7 change")
expected = dict.fromkeys(MODELS, 0) | {"muse_spark": 3, "muse_glimmer": 3, "flint": 1}
raise SystemExit(moved != expected)
PYTHON
