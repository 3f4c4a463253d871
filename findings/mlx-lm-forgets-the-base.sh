#!/usr/bin/env bash
# Expected: mlx-lm reads the base that transformers wrote. Seen: transformers 5 writes rope_theta
# inside rope_parameters, mlx-lm's Llama reads it at the top only, and computes with base 10000
# without a word.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile 'mlx[cpu]==0.32.4' transformers==5.23.0 mlx-lm==0.32.2
venv/bin/python -W ignore - <<'PYTHON'
import importlib.metadata
import json
from pathlib import Path

from transformers import LlamaConfig

config = LlamaConfig(
    vocab_size=50, hidden_size=64, intermediate_size=64, num_hidden_layers=1,
    num_attention_heads=4, rope_theta=500000.0, architectures=["LlamaForCausalLM"]
)
config.save_pretrained("model")
from mlx_lm.models import llama
from mlx_lm.utils import load_config, load_model

written = json.loads(Path("model/config.json").read_text())
arguments = llama.ModelArgs.from_dict(load_config(Path("model")))
llama.Model(arguments).save_weights("model/model.safetensors")
model, _ = load_model(Path("model"))
base = model.layers[0].self_attn.rope.base
for name in ("transformers", "mlx-lm"):
    print(name, importlib.metadata.version(name))
print("written:", written["rope_parameters"], "at the top:", written.get("rope_theta"))
print("base in mlx-lm's model:", base)
raise SystemExit(base != 10000)
PYTHON
