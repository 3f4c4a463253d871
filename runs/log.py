"""What a training tells while it runs: metrics.jsonl, lines on the screen, Weights & Biases."""
from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from configurable import UserError
from runs.files import write_text


def append_metrics(folder: Path, line: dict[str, Any]) -> None:
    """Add one line to metrics.jsonl; UserError where the disk is full."""
    try:
        with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise UserError(
            f"{folder / 'metrics.jsonl'} cannot be written ({error.strerror}); no checkpoint is touched"
        ) from error

def trim_metrics(folder: Path, step: int) -> None:
    """Drop the lines after `step`, which a resumed run writes again, and what a killed one left half written."""
    path = folder / "metrics.jsonl"
    kept = []
    for line in (
        path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    ):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            kept += [line] if json.loads(line)["step"] <= step else []
    write_text(path, "".join(line + "\n" for line in kept))
