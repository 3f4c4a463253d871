"""A run folder: its name, its config.json, its lock, and where its numbers come from."""
from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout

from configurable import TrainSettings, UserError, differences
from runs.files import read_json, sha256, write_text

HERE = Path(__file__).resolve().parents[1]

CURRENT, PREVIOUS, DIGESTS = "ckpt.pt", "ckpt-previous.pt", "checkpoints.sha256"

NAMED = (
    "pos",
    "dataset",
    "block_size",
    "seed",
)  # the result settings that the folder's name spells out

class Parts(dict[str, Any]):
    """What a file of a run folder holds; UserError for a part that it lacks."""

    def __init__(self, path: Path, parts: dict[str, Any]) -> None:
        super().__init__(parts)
        self.path = path

    def __missing__(self, name: str) -> Any:
        raise UserError(
            f"{self.path} lacks {name!r}: it is damaged; restore a good copy, or start afresh with --overwrite=True"
        )

def run_folder(settings: TrainSettings) -> Path:
    """out_dir, or by default out/<pos>-<dataset>-L<block_size>-s<seed>, and a digest of other settings that differ."""
    if settings.out_dir:
        return Path(settings.out_dir)
    safe = settings.pos.replace(" ", "").translate(str.maketrans("(),|", "___~", "'\""))
    name = f"{re.sub(r'[^A-Za-z0-9._=+~-]', '-', safe)[:60]}-{settings.dataset}-L{settings.block_size}-s{settings.seed}"
    others = {
        f.name: getattr(settings, f.name)
        for f in fields(TrainSettings)
        if f.metadata["kind"] == "result"
        and f.name not in NAMED
        and getattr(settings, f.name) != f.default
    }
    if len(safe) > 60:
        others["pos"] = settings.pos
    digest = hashlib.sha256(json.dumps(others, sort_keys=True).encode("utf-8")).hexdigest()[:6]
    return Path("out") / (f"{name}-{digest}" if others else name)

def source_digests() -> dict[str, str]:
    """SHA-256 of the files that make the numbers."""
    paths = [*HERE.glob("*.py"), *HERE.glob("zoo/*.py"), HERE / "data/__init__.py"]
    drawing = {"report.py", "ablate.py", "sample.py"}
    return {
        p.relative_to(HERE).as_posix(): sha256(p) for p in sorted(paths) if p.name not in drawing
    }

def provenance() -> dict[str, Any]:
    """Versions, machine, commit, sources and command line: what is needed to repeat a run."""
    git = (
        subprocess.run(
            ["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"],
            cwd=HERE,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        if shutil.which("git")
        else None
    )
    return {
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "git_commit": git.stdout.strip() or None if git else None,
        "sources_sha256": source_digests(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }

def lock_folder(folder: Path) -> FileLock:
    """Keep other programs from writing into a run folder, until this process ends, however it ends.

    UserError names the one that holds it. Within a process a folder may be locked again.
    """
    held, holder = FileLock(folder / ".lock", blocking=False, is_singleton=True), folder / ".holder"
    try:
        held.acquire()
    except Timeout:
        by = holder.read_text(encoding="utf-8") if holder.exists() else "another process"
        raise UserError(
            f"{folder} is in use by {by}; wait for it, stop it, or choose another --out_dir"
        ) from None
    for half_written in folder.glob(".*.new"):  # by a process that was killed
        half_written.unlink()
    write_text(
        holder,
        f"process {os.getpid()} on {platform.node()} ({' '.join([Path(sys.argv[0]).name, *sys.argv[1:]]):.200})",
    )
    return held

def take_folder(folder: Path, settings: TrainSettings) -> FileLock:
    """Take a run folder for these settings and lock it. UserError, and nothing is touched, where it holds another run."""
    path = folder / "config.json"
    if path.exists() and not settings.overwrite:
        refuse_other_run(folder, settings)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = lock_folder(folder)
    except OSError as error:
        raise UserError(
            f"out_dir {folder} cannot be used ({error.strerror}); choose another --out_dir"
        ) from error
    if settings.overwrite and (path.exists() or (folder / DIGESTS).exists()):
        for name in (
            CURRENT,
            f"{CURRENT}.new",
            PREVIOUS,
            DIGESTS,
            "metrics.jsonl",
            "extrapolation.json",
            "extrapolation.png",
            "pos_file.py",
            "config.json",
        ):
            if (
                not settings.pos_file
                or (folder / name).resolve() != Path(settings.pos_file).resolve()
            ):
                (folder / name).unlink(missing_ok=True)
    return held

def read_config(folder: Path) -> Parts:
    """config.json of a run folder, with the defaults of settings that it lacks; UserError where it holds no settings."""
    path = folder / "config.json"
    config = read_json(path)
    if not isinstance(config.get("settings"), dict):
        raise UserError(
            f"{path} holds no settings: it is damaged; restore a good copy, or start afresh with --overwrite=True"
        )
    settings = {f.name: f.default for f in fields(TrainSettings)} | config["settings"]
    return Parts(path, config | {"settings": settings})

def refuse_other_run(folder: Path, settings: TrainSettings) -> None:
    """UserError where the folder's run was made with other settings that change the result."""
    config = read_config(folder)
    differ = differences(asdict(settings), config["settings"], "result")
    if (
        not differ
        and settings.pos_file
        and sha256(Path(settings.pos_file)) != config["pos_file_sha256"]
    ):
        differ = [f"{settings.pos_file} has changed since"]
    if differ:
        raise UserError(
            f"{folder} holds another run ({'; '.join(differ)}): choose another --out_dir, or --overwrite=True"
        )

def scheme_label(settings: dict[str, Any]) -> str:
    """What tables and figures call the scheme of a run."""
    return f"{settings['pos']} (dropped)" if settings.get("drop_pos") else settings["pos"]

def started_from(settings: TrainSettings) -> str | None:
    """What the run in out_dir was begun from (its init_from), if there is a run with a checkpoint."""
    folder = Path(settings.out_dir)
    if not settings.out_dir or not (folder / CURRENT).exists():
        return None
    return read_config(folder)["settings"]["init_from"]
