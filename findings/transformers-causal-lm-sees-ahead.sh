#!/usr/bin/env bash
# Expected: the class LlamaForCausalLM is causal, whatever else its config.json says; only models
# that embed texts, which have a class of their own, see both sides. Seen: with "is_causal": false,
# which embedding models of type qwen2 were published with, every token sees the later ones in a
# full pass (a feature, by the documentation), so that a loss measured so is of tokens that were
# read. With its cache the same model, fed a token at a time, gives other logits. No warning.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile torch==2.13.0 transformers==5.23.0
venv/bin/python -W ignore - <<'PYTHON'
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

SIZES = dict(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=4, intermediate_size=64, max_position_embeddings=64,
             initializer_range=0.4, pad_token_id=0, bos_token_id=1, eos_token_id=2)
tokens = torch.arange(3, 15)[None]
other = tokens.clone()
other[0, -1] = 40  # only the last token differs


@torch.no_grad()
def measured(kind, **settings):
    """How much the first token's logits change with the last token, and how much the last logits
    differ with a cache from those of one pass."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES, **settings)).eval()
    full = model(tokens).logits[0]
    ahead = (full - model(other).logits[0])[0].abs().max().item()
    cache = None
    for token in tokens.split(1, 1):
        step = model(token, past_key_values=cache, use_cache=True)
        cache = step.past_key_values
    return ahead, (full[-1] - step.logits[0, -1]).abs().max().item()


print("transformers", transformers.__version__)
found = {}
for kind in ("llama", "qwen2", "mistral"):
    for settings in ({}, {"is_causal": False}):
        ahead, cached = measured(kind, **settings)
        found[kind, len(settings)] = (ahead > 1e-3, cached > 1e-3)
        print(f"  {kind} {settings or 'as it is'}: the first logits change by {ahead:.4f} with the "
              f"last token, the last ones by {cached:.4f} with a cache")
expected = {(kind, n): (bool(n), bool(n)) for kind in ("llama", "qwen2", "mistral") for n in (0, 1)}
raise SystemExit(found != expected)
PYTHON
