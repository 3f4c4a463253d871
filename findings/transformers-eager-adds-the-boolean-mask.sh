#!/usr/bin/env bash
# Expected: a Boolean 4-D attention_mask hides the same keys in eager and in sdpa. Seen: eager
# adds it to the scores as 0 and 1, so that nothing is hidden, not even the future; sdpa obeys it.
# A mask of 0 and -inf works in both.
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

tokens = torch.arange(12)[None]
other = tokens.clone()
other[0, 11] = 40  # only the last token differs
i, j = torch.arange(12)[:, None], torch.arange(12)
seen = ((j <= i) & (i - j < 4))[None, None]  # a causal window of 4
added = torch.zeros(1, 1, 12, 12).masked_fill(~seen, float("-inf"))


def change_of_first_token(kernel, mask):
    torch.manual_seed(0)
    model = LlamaModel(LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, attn_implementation=kernel,
    )).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.4)
    with torch.no_grad():
        a, b = (model(x, attention_mask=mask).last_hidden_state for x in (tokens, other))
    return (a - b)[0, 0].abs().max().item()


print("transformers", transformers.__version__, "how much token 0 changes with token 11:")
ahead = []
for kernel in ("sdpa", "eager"):
    for name, mask in (("Boolean", seen), ("0 and -inf", added)):
        change = change_of_first_token(kernel, mask)
        ahead.append(change > 1e-4)
        print(f"  {kernel}, {name} mask: {change:.4f}")
raise SystemExit(ahead != [False, False, True, False])
PYTHON
