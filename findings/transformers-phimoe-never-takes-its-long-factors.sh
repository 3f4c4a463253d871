#!/usr/bin/env bash
# Expected: with longrope, Phi-3.5-MoE divides frequencies by long_factor in texts past the original
# length, as Phi-3 does.
# Seen: its rotary layer asks for the frequencies without a length, so they are always those of
# short_factor; only the factor of cosines and sines changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile torch==2.13.0 transformers==5.23.0
venv/bin/python -W ignore - <<'PYTHON'
import sys

import torch
import transformers
from transformers import Phi3Config, PhimoeConfig
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding
from transformers.models.phimoe.modeling_phimoe import PhimoeRotaryEmbedding

print("transformers", transformers.__version__)
factors = dict(short_factor=[1.0] * 8, long_factor=[4.0] * 8)
sizes = dict(hidden_size=64, num_attention_heads=4, max_position_embeddings=64, pad_token_id=0)
sizes |= dict(vocab_size=32, original_max_position_embeddings=16)
phimoe = dict(rope_type="longrope", short_mscale=1.0, long_mscale=1.0, **factors)
phi3 = dict(rope_type="longrope", attention_factor=1.0, **factors)
layers = {
    "phi3": Phi3RotaryEmbedding(Phi3Config(**sizes, rope_scaling=phi3)),
    "phimoe": PhimoeRotaryEmbedding(PhimoeConfig(**sizes, rope_scaling=phimoe)),
}
angles = {}
for name, layer in layers.items():
    cos, sin = layer(torch.zeros(1), torch.arange(64)[None])  # a text of 64 tokens, past 16
    angles[name] = float(torch.atan2(sin[0, 1, 0], cos[0, 1, 0]))
    print(f"{name}: the fastest pair turns by {angles[name]:.4f} a token (1 / 4 with long_factor)")
same = abs(angles["phi3"] - 0.25) < 1e-6 and abs(angles["phimoe"] - 1.0) < 1e-6
sys.exit(0 if same else "the behaviour has changed")
PYTHON
