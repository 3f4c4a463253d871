#!/usr/bin/env bash
# Expected: a transposed array is saved as it is, or refused as PyTorch's is. Seen:
# safetensors.numpy.save_file writes the memory in its old order under the new shape, and what is
# loaded is another matrix.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile safetensors==0.8.0 numpy==2.4.6
venv/bin/python -W ignore - <<'PYTHON'
import importlib.metadata

import numpy as np
from safetensors.numpy import load_file, save_file

x = np.arange(6.0, dtype=np.float32).reshape(2, 3)
save_file({"weight": x.T}, "a.safetensors")
loaded = load_file("a.safetensors")["weight"]
save_file({"weight": np.ascontiguousarray(x.T)}, "b.safetensors")
copied = load_file("b.safetensors")["weight"]
print("safetensors", importlib.metadata.version("safetensors"))
print("saved:          ", x.T.tolist())
print("loaded:         ", loaded.tolist())
print("saved as a copy:", copied.tolist())
wrong = loaded.shape == x.T.shape and not np.array_equal(loaded, x.T)
raise SystemExit(not (wrong and np.array_equal(copied, x.T)))
PYTHON
