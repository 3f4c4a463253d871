#!/usr/bin/env bash
# Expected: define_metric('loss', summary='min') skips a NaN, or is not the minimum from there on.
# Seen: one NaN makes the minimum NaN for good, and likewise the maximum and the mean, however
# good the later steps are.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile wandb==0.31.0
venv/bin/python -W ignore - <<'PYTHON'
import os

os.environ["WANDB_MODE"] = "offline"
os.environ["WANDB_SILENT"] = "true"
import wandb


def summary(values):
    run = wandb.init(project="p", dir=".")
    run.define_metric("loss", summary="min,max,mean")
    for value in values:
        run.log({"loss": value})
    result = dict(run.summary["loss"])
    run.finish()
    return result


print("wandb", wandb.__version__)
rows = [summary([3.0, 1.0, 2.0]), summary([3.0, float("nan"), 1.0, 2.0]),
        summary([float("nan"), 3.0, 1.0, 2.0])]
for row in rows:
    print(" ", row)
is_nan = [row["min"] != row["min"] for row in rows]
raise SystemExit(is_nan[:2] != [False, True])
PYTHON
