#!/usr/bin/env bash
# Expected: is_causal=True is a hint about attn_mask, and the mask's numbers are added. Seen:
# MultiheadAttention puts a plain causal mask in place of the one given, so that an ALiBi bias in
# it is gone, unless the weights are asked for: then it counts.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile torch==2.13.0 numpy==2.4.6
venv/bin/python -W ignore - <<'PYTHON'
import torch

torch.manual_seed(0)
attention = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
x = torch.randn(1, 8, 16)
i, j = torch.arange(8)[:, None], torch.arange(8)
causal = torch.zeros(8, 8).masked_fill(j > i, float("-inf"))
alibi = causal - 0.5 * (i - j)


def run(mask, **options):
    with torch.no_grad():
        return attention(x, x, x, attn_mask=mask, **options)[0]


right = run(alibi, need_weights=False)
plain = run(causal, need_weights=False)
print("torch", torch.__version__, "outputs with an ALiBi bias in attn_mask:")
rows = {}
for weights in (False, True):
    y = run(alibi, is_causal=True, need_weights=weights)
    rows[weights] = ((y - right).abs().max().item(), (y - plain).abs().max().item())
    print(f"  is_causal=True, need_weights={weights}: {rows[weights][0]:.6f} from the one with "
          f"bias, {rows[weights][1]:.6f} from the one without")
raise SystemExit(not (rows[False][1] < 1e-5 < 0.01 < rows[False][0] and rows[True][0] < 1e-5))
PYTHON
