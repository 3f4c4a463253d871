#!/usr/bin/env bash
# Expected: with a cache the logits are those of one pass. Seen: with attention_logit_softcapping,
# which Gemma 2 has, the Boolean mask of the cache is added to the scores as 0 and 1: nothing is
# hidden, and a token attends to the places of the cache that are still empty.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile torch==2.13.0 litgpt==0.5.13
venv/bin/python -W ignore - <<'PYTHON'
import importlib.metadata

import torch
from litgpt import Config
from litgpt.model import GPT

tokens = torch.arange(24)[None]


def difference(cache_length, **options):
    torch.manual_seed(0)
    model = GPT(Config(
        n_layer=4, n_embd=32, n_head=4, padded_vocab_size=50, block_size=256,
        rotary_percentage=1.0, **options,
    )).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    with torch.no_grad():
        whole = model(tokens)[:, 10:]
        model.max_seq_length = cache_length
        model.set_kv_cache(1)
        model(tokens[:, :10], torch.arange(10))
        steps = [model(tokens[:, n : n + 1], torch.tensor([n])) for n in range(10, 24)]
    return (torch.cat(steps, 1) - whole).abs().max().item(), whole.abs().mean().item()


print("litgpt", importlib.metadata.version("litgpt"), "logits of tokens 10 to 23, with a cache "
      "less in one pass")
most = []
for length, options in ((64, {}), (64, {"attention_logit_softcapping": 50.0}),
                        (256, {"attention_logit_softcapping": 50.0})):
    error, scale = difference(length, **options)
    most.append(error)
    print(f"  cache for {length} tokens, {options}: {error:.5f} (logits of about {scale:.1f})")
raise SystemExit(not (most[0] < 1e-3 and min(most[1:]) > 0.1))
PYTHON
