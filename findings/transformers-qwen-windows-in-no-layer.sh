#!/usr/bin/env bash
# Expected: use_sliding_window=True gives windows. Seen: max_window_layers, 28 by default, counts
# the layers WITHOUT a window: a model of 24 layers has none, and keeps saying sliding_window=128.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile transformers==5.23.0
venv/bin/python -W ignore - <<'PYTHON'
import transformers
from transformers import Qwen2Config, Qwen3Config

print("transformers", transformers.__version__)
counts = []
for config in (Qwen2Config, Qwen3Config):
    for layers, options in ((24, {}), (36, {}), (24, {"max_window_layers": 4})):
        made = config(
            num_hidden_layers=layers, use_sliding_window=True, sliding_window=128, **options
        )
        count = made.layer_types.count("sliding_attention")
        counts.append(count)
        print(f"{config.__name__}, {layers} layers, window {made.sliding_window}, {options}:",
              f"{count} layers have it, the first is {made.layer_types[0]}")
raise SystemExit(counts != [0, 8, 20, 0, 8, 20])
PYTHON
