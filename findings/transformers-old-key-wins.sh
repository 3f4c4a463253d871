#!/usr/bin/env bash
# Expected: rope_parameters, the new key, wins over rope_scaling, or the two are merged, or
# refused. Seen: the old key replaces the new one as a whole, so that the base in it is lost and
# falls back to 10000. Without the old key, a base inside wins over one at the top.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile transformers==5.23.0
venv/bin/python -W ignore - <<'PYTHON'
import json
from pathlib import Path

import transformers
from transformers import AutoConfig

transformers.logging.set_verbosity_error()
Path("model").mkdir()


def read(**keys):
    Path("model/config.json").write_text(json.dumps({"model_type": "llama", **keys}))
    return AutoConfig.from_pretrained("model").rope_parameters


new = {"rope_type": "default", "rope_theta": 500000.0}
linear = {"rope_type": "linear", "factor": 4.0}
rows = {
    "rope_parameters": read(rope_parameters=new),
    "rope_parameters, and rope_scaling added": read(rope_parameters=new, rope_scaling=linear),
    "rope_parameters, and rope_theta = 1000000 at the top": read(
        rope_parameters=new, rope_theta=1e6
    ),
    "rope_parameters without a base, rope_theta at the top": read(
        rope_parameters=linear, rope_theta=1e6
    ),
}
print("transformers", transformers.__version__, "what a config.json gives:")
for name, value in rows.items():
    print(f"  {name}: {value}")
bases = [value["rope_theta"] for value in rows.values()]
raise SystemExit(bases != [500000.0, 10000.0, 500000.0, 1000000.0])
PYTHON
