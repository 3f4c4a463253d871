#!/usr/bin/env bash
# Expected: an option of a causal Decoder keeps it causal. Seen: with
# attn_orthog_projected_values=True the logits of early tokens depend on later ones, so that a
# training loss is too good and generation cannot repeat it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile torch==2.13.0 x-transformers==2.31.10
venv/bin/python -W ignore - <<'PYTHON'
import importlib.metadata

import torch
from x_transformers import Decoder, TransformerWrapper

tokens = torch.arange(40)[None]
other = tokens.clone()
other[0, 30] = 45
print("x-transformers", importlib.metadata.version("x-transformers"))
changed = []
for options in ({}, {"attn_gate_values": True}, {"attn_orthog_projected_values": True}):
    torch.manual_seed(0)
    layers = Decoder(
        dim=32, depth=2, heads=4, attn_dim_head=32, rotary_pos_emb=True, **options
    )
    model = TransformerWrapper(num_tokens=50, max_seq_len=64, attn_layers=layers).eval()
    with torch.no_grad():
        difference = (model(tokens) - model(other)).abs().amax(-1)[0]
    count = int((difference[:30] > 1e-5).sum())
    changed.append(count)
    print(f"  {options}: token 30 changed, and with it the logits of {count} tokens before it")
raise SystemExit(not (changed[:2] == [0, 0] and changed[2] > 0))
PYTHON
