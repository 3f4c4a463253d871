#!/usr/bin/env bash
# Expected: pattern=[512, 512, 512, -1] is the window of layers 0, 1, 2, 3, and so on. Seen: the
# first and the last layer get full attention by default, and the pattern begins after the first:
# layer 1 has its first window, layer 4 its -1.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile torch==2.13.0 ai2-olmo-core==3.0.0
venv/bin/python -W ignore - <<'PYTHON'
import importlib.metadata

from olmo_core.nn.attention import SlidingWindowAttentionConfig


def windows(config, layers):
    return [
        config.get_window_size(n, layers) if config.should_use_swa(n, layers) else -1
        for n in range(layers)
    ]


default = windows(SlidingWindowAttentionConfig(pattern=[512, 512, 512, -1]), 8)
plain = windows(SlidingWindowAttentionConfig(
    pattern=[512, 512, 512, -1],
    force_full_attention_on_first_layer=False,
    force_full_attention_on_last_layer=False,
), 8)
print("ai2-olmo-core", importlib.metadata.version("ai2-olmo-core"))
print("  by default: ", default)
print("  not forced: ", plain)
expected = [-1, 512, 512, 512, -1, 512, 512, -1]
raise SystemExit(default != expected or plain != 2 * [512, 512, 512, -1])
PYTHON
