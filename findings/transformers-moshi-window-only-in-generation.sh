#!/usr/bin/env bash
# Expected: a window hides the same keys in one pass and in generation. Seen: Moshi's full pass
# sees every key, its cache keeps the last sliding_window: past it, perplexity and generation are
# of two models. Mistral agrees with itself.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile torch==2.13.0 transformers==5.23.0
venv/bin/python -W ignore - <<'PYTHON'
import torch
import transformers
from transformers import MistralConfig, MistralForCausalLM, MoshiConfig, MoshiForCausalLM

tokens = torch.arange(3, 27)[None]


def difference(config, model, window, **sizes):
    """The largest difference of the logits, token by token and in one pass."""
    torch.manual_seed(0)
    made = model(config(
        vocab_size=50, hidden_size=32, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=4, head_dim=8, pad_token_id=0, sliding_window=window, **sizes,
    )).eval()
    for parameter in made.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.4)
    cache, steps = None, []
    with torch.no_grad():
        whole = made(tokens).logits
        for n in range(24):
            step = made(tokens[:, n : n + 1], past_key_values=cache, use_cache=True)
            cache = step.past_key_values
            steps.append(step.logits)
    return (torch.cat(steps, 1) - whole).abs().max().item(), whole.abs().mean().item()


print("transformers", transformers.__version__, "logits of 24 tokens, step by step less one pass")
agree = []
for window in (8, 100):
    for config, model, sizes in (
        (MoshiConfig, MoshiForCausalLM, {"ffn_dim": 32}),
        (MistralConfig, MistralForCausalLM, {"intermediate_size": 32}),
    ):
        most, scale = difference(config, model, window, **sizes)
        print(f"  {model.__name__}, window {window}: {most:.5f} (logits of about {scale:.1f})")
        agree.append(most < 1e-3)
raise SystemExit(agree != [False, True, True, True])
PYTHON
