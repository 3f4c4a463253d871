#!/usr/bin/env bash
# Expected: a compiled function gives the numbers of the eager one. Seen, on a CPU:
# torch.arange(n) // d, compiled, leaves the last numbers as the memory was for some n and d.
# Positions of blocks and buckets are made like this. Nor is an arange needed: where a text is filled
# up with zeros and summed by blocks, the gradient of the sums is such memory. (Needs a C++ compiler.)
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile torch==2.13.0 numpy==2.4.6 setuptools==80.9.0
venv/bin/python -W ignore - <<'PYTHON'
import torch

print("torch", torch.__version__)
wrong = {}
for n, d in ((24, 20), (40, 33), (128, 100), (24, 7), (100, 3)):
    torch._dynamo.reset()
    compiled = torch.compile(lambda: torch.arange(n) // d)()
    different = (compiled != torch.arange(n) // d).nonzero().flatten().tolist()
    wrong[n, d] = len(different)
    places = f"places {different[0]} to {different[-1]}" if different else "none"
    print(f"  arange({n}) // {d}: {len(different)} wrong, {places}")
torch._dynamo.reset()
x = torch.randn(64, 33, requires_grad=True)
weights = torch.randn(64, 2)


def by_blocks(x):
    blocks = torch.nn.functional.pad(x, (0, 31)).unflatten(-1, (2, 32))
    return (blocks.sum(-1) * weights).sum()


expected = torch.autograd.grad(by_blocks(x), x)[0]
found = torch.autograd.grad(torch.compile(by_blocks)(x), x)[0]
n_wrong = int((found != expected).sum())
print(f"  the gradient of sums over blocks of 32 of 64 rows of 33 numbers: {n_wrong} of {x.numel()} wrong")
print("what stands there is whatever the memory held: it can be right by chance")
exact = wrong[24, 7] + wrong[100, 3] == 0
raise SystemExit(not exact or wrong[24, 20] == wrong[128, 100] == 0 or n_wrong == 0)
PYTHON
