#!/usr/bin/env bash
# Expected: sliding_window_pattern=2 means every second layer, in all models with such layers, or
# an error. Seen: three read it, four keep the number and their own pattern; and Gemma 3 ignores
# it when a saved config.json is loaded.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile transformers==5.23.0
venv/bin/python -W ignore - <<'PYTHON'
import transformers
from transformers import (
    AfmoeConfig, AutoConfig, Cohere2Config, Exaone4Config, Gemma3TextConfig, Gemma4TextConfig,
    GptOssConfig, Olmo3Config,
)

transformers.logging.set_verbosity_error()


def pattern(config):
    return "".join(layer[0] for layer in config.layer_types)


print("transformers", transformers.__version__, "layers (s: sliding, f: full)")
reads = {}
for made in (Gemma3TextConfig, Cohere2Config, Exaone4Config, Gemma4TextConfig, Olmo3Config,
             AfmoeConfig):
    default = pattern(made(num_hidden_layers=8))
    asked = pattern(made(num_hidden_layers=8, sliding_window_pattern=2))
    reads[made.__name__] = asked == "sfsfsfsf"
    print(f"  {made.__name__}: {default}, with sliding_window_pattern=2 {asked}")
four = pattern(GptOssConfig(num_hidden_layers=8, sliding_window_pattern=4))
print(f"  GptOssConfig: with sliding_window_pattern=4 {four}")
Gemma3TextConfig(num_hidden_layers=8).save_pretrained("model")
loaded = AutoConfig.from_pretrained("model", sliding_window_pattern=2)
print(f"  Gemma 3, from_pretrained(..., sliding_window_pattern=2): {pattern(loaded)}")
expected = list(reads.values()) == [True, True, True, False, False, False]
raise SystemExit(not (expected and four == "sfsfsfsf" and pattern(loaded) == "sssssfss"))
PYTHON
