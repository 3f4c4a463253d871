#!/usr/bin/env bash
# Expected: position_ids change angles. Seen: without a mask and with use_cache=False, as in
# training, every step of position_ids that is not + 1 starts a new text: tokens after it see none
# before it. With the cache on, the same call is one text.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile torch==2.13.0 transformers==5.23.0
venv/bin/python -W ignore - <<'PYTHON'
import torch
import transformers
from transformers import LlamaConfig, LlamaModel

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4
)
model = LlamaModel(config).eval()
tokens = torch.arange(12)[None]
other = tokens.clone()
other[0, 0] = 49  # only the first token differs


def readers_of_first_token(positions, **options):
    with torch.no_grad():
        a = model(tokens, position_ids=positions[None], **options).last_hidden_state
        b = model(other, position_ids=positions[None], **options).last_hidden_state
    return int(((a - b).abs().amax(-1) > 1e-6).sum())


places = torch.arange(12)
print("transformers", transformers.__version__)
print("how many of 12 tokens depend on the first one:")
ids = {
    "0, 1, 2, ...": places,
    "0, 2, 4, ... (stretched)": 2 * places,
    "0 ... 5, 56 ... 61 (a gap, as PoSE trains)": places + 50 * (places > 5),
}
seen = []
for name, positions in ids.items():
    row = [
        readers_of_first_token(positions),
        readers_of_first_token(positions, use_cache=False),
        readers_of_first_token(
            positions, use_cache=False, attention_mask=torch.ones_like(tokens)
        ),
    ]
    print(f"  {name}: cache {row[0]}, no cache {row[1]}, no cache and a mask of ones {row[2]}")
    seen.append(row)
raise SystemExit(seen != [[12, 12, 12], [12, 1, 12], [12, 6, 12]])
PYTHON
