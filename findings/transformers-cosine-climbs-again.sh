#!/usr/bin/env bash
# Expected: past its last step a schedule keeps its lowest rate, as linear, polynomial and WSD do.
# Seen: the cosine ones rise again, to the full rate after as many steps as they fell; with a
# warm-up longer than the training they go from 1 to 0 and back at every step.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile torch==2.13.0 transformers==5.23.0
venv/bin/python -W ignore - <<'PYTHON'
import torch
import transformers
from transformers import optimization


def rates(schedule, steps, *arguments, **options):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = schedule(optimizer, *arguments, **options)
    values = []
    for _ in range(steps):
        values.append(round(optimizer.param_groups[0]["lr"], 3))
        optimizer.step()
        scheduler.step()
    return values


cosine = optimization.get_cosine_schedule_with_warmup
lowest = optimization.get_cosine_with_min_lr_schedule_with_warmup
linear = optimization.get_linear_schedule_with_warmup
print("transformers", transformers.__version__, "rates of 12 steps, 2 of warm-up, the last is 6:")
rows = {
    "linear": rates(linear, 12, 2, 6),
    "cosine": rates(cosine, 12, 2, 6),
    "cosine, min_lr_rate=0.1": rates(lowest, 12, 2, 6, min_lr_rate=0.1),
    "cosine, 8 of warm-up, the last is 4": rates(cosine, 12, 8, 4),
}
for name, values in rows.items():
    print(f"  {name}: {values}")
ends = [values[10] for values in rows.values()]
raise SystemExit(ends != [0.0, 1.0, 1.0, 1.0])
PYTHON
