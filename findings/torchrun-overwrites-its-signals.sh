#!/usr/bin/env bash
# Expected: TORCHELASTIC_SIGNALS_TO_HANDLE, which torch.distributed.elastic reads, says which signals
# torchrun passes on to its workers; a scheduler's SIGUSR1 then reaches them.
# Seen: torchrun overwrites the variable by the default of --signals-to-handle. It dies of the
# signal, its workers hear nothing and go on alone. With the option they get it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile torch==2.13.0 numpy==2.4.6
cat > worker.py <<'PYTHON'
import os
import pathlib
import signal
import time


def save(number, frame):
    pathlib.Path(f"saved-{os.environ['RANK']}").touch()
    raise SystemExit


signal.signal(signal.SIGUSR1, save)
pathlib.Path(f"pid-{os.environ['RANK']}").write_text(str(os.getpid()))
time.sleep(60)
PYTHON
venv/bin/python -W ignore - <<'PYTHON'
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]


def warned(*options, **variables):
    """A launcher with two workers gets SIGUSR1: its exit code, workers that saved, those left."""
    for path in [*Path().glob("pid-*"), *Path().glob("saved-*")]:
        path.unlink()
    launcher = subprocess.Popen(
        [*LAUNCH, *options, "worker.py"], env=os.environ | variables, stderr=subprocess.DEVNULL
    )
    while sum(path.stat().st_size > 0 for path in Path().glob("pid-*")) < 2:
        time.sleep(0.1)
    launcher.send_signal(signal.SIGUSR1)
    code = launcher.wait(timeout=60)
    time.sleep(2)
    left = 0
    for path in Path().glob("pid-*"):
        try:
            os.kill(int(path.read_text()), signal.SIGKILL)
            left += 1
        except ProcessLookupError:
            pass
    return code, len([*Path().glob("saved-*")]), left


print("torch", torch.__version__)
asked = "SIGTERM,SIGUSR1"
variable = warned(TORCHELASTIC_SIGNALS_TO_HANDLE=asked)
option = warned(f"--signals-to-handle={asked}")
print("exit code of torchrun, workers that got the signal, workers left behind")
print("  by the variable:", *variable)
print("  by the option:  ", *option)
raise SystemExit((variable, option) != ((-signal.SIGUSR1, 0, 2), (1, 2, 0)))
PYTHON
