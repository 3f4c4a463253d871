#!/usr/bin/env bash
# Expected: layer_types of full_attention only takes the windows away. Seen: in Cohere 2, Exaone 4
# and AfMoE it takes RoPE away with them, and the model knows no positions; in Olmo 3 and Gemma 3
# RoPE stays. An ablation of windows is one of positions.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile torch==2.13.0 transformers==5.23.0
venv/bin/python -W ignore - <<'PYTHON'
import torch
import transformers
from transformers import (
    AfmoeConfig, AfmoeModel, Cohere2Config, Cohere2Model, Exaone4Config, Exaone4Model,
    Gemma3TextConfig, Gemma3TextModel, Olmo3Config, Olmo3Model,
)

tokens = torch.arange(3, 27)[None]
mask = torch.ones_like(tokens)


def change(config, model, layers):
    """How much the last state changes if all distances are trebled."""
    torch.manual_seed(0)
    made = model(config(
        vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=4, head_dim=8, pad_token_id=0,
        sliding_window=64, layer_types=[layers] * 4,
    )).eval()
    for parameter in made.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.4)
    with torch.no_grad():
        states = [
            made(tokens, position_ids=factor * torch.arange(24)[None], attention_mask=mask)[0]
            for factor in (1, 3)
        ]
    return (states[0] - states[1])[0, -1].abs().max().item()


print("transformers", transformers.__version__)
without = []
for config, model in ((Cohere2Config, Cohere2Model), (Exaone4Config, Exaone4Model),
                      (AfmoeConfig, AfmoeModel), (Olmo3Config, Olmo3Model),
                      (Gemma3TextConfig, Gemma3TextModel)):
    sliding = change(config, model, "sliding_attention")
    full = change(config, model, "full_attention")
    print(f"{model.__name__}: positions x 3 change the output by {sliding:.2f} with windows of "
          f"64, by {full:.2f} with full attention (24 tokens)")
    without.append(sliding > 0.1 and full < 1e-4)
raise SystemExit(without != [True, True, True, False, False])
PYTHON
