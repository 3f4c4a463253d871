#!/usr/bin/env bash
# Expected: rope_parameters as every other model takes them scale Gemma 3, in its full layers at
# least, or are refused. Seen: the flat dictionary is kept beside the nested ones, saved, and read
# by nothing. The old name, rope_scaling, works, for the full layers.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile torch==2.13.0 transformers==5.23.0
venv/bin/python -W ignore - <<'PYTHON'
import torch
import transformers
from transformers import Gemma3TextConfig
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding


def fastest(**options):
    rope = Gemma3RotaryEmbedding(Gemma3TextConfig(head_dim=64, **options))
    return [
        rope.sliding_attention_inv_freq[0].item(), rope.full_attention_inv_freq[0].item()
    ]


flat = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
seen = {
    "rope_parameters={...}": fastest(rope_parameters=dict(flat)),
    "rope_scaling={...}": fastest(rope_scaling={"rope_type": "linear", "factor": 8.0}),
    "rope_parameters={'full_attention': {...}}": fastest(
        rope_parameters={"full_attention": dict(flat)}
    ),
}
print("transformers", transformers.__version__, "fastest frequency of sliding and full layers,")
print("where a linear factor of 8 was asked for:")
for name, values in seen.items():
    print(f"  {name}: {values}")
print("the first config:", Gemma3TextConfig(rope_parameters=dict(flat)).rope_parameters)
raise SystemExit(list(seen.values()) != [[1.0, 1.0], [1.0, 0.125], [1.0, 0.125]])
PYTHON
