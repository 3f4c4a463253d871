"""A run folder: its name, its lock, its config.json, and refusing the folder of another run."""

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout

from configurable import TrainSettings, UserError, differences, explain_errors, read_json, require
from runs.files import sha256, write_text

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = "name a run folder, e.g. out/alibi-stdlib-L128-s1337"
RESTORE = "restore a good copy, or start again with --overwrite=True"
DAMAGED = f"it is damaged; {RESTORE}"
FRESH = ("auto", "scratch")  # values of init_from for a model without trained weights
NAMED = ("pos", "dataset", "block_size", "seed")  # settings that begin the folder's name
MAKE_NO_NUMBERS = "ablate explain export report sample figures tables labels compare".split()
MAKE_NO_NUMBERS += ["log", "examine", "formats", "webpage"]
# what every config.json has
CONFIG = dict.fromkeys(("original_length", "threads", "processes"), int)
CONFIG |= dict.fromkeys(("wandb_id", "device", "dtype"), str)
CONFIG |= dict.fromkeys(("settings", "versions", "sources_sha256", "read_before"), dict)
CONFIG |= {"extension_files_sha256": dict, "pos_file_sha256": (str, type(None))}
CONFIG |= {"corpus_sha256": {"train": str, "val": str}, "train_lengths": [int]}
CONFIG |= {"history": [{"from_step": int, "max_iters": int}]}


# ---- names


def run_folder(settings: TrainSettings) -> Path:
    """The folder of a run: out_dir, else out/<pos>-<dataset>-L<block_size>-s<seed>-<others>.

    The others are the result settings that differ from the defaults, as in learning_rate=0.001, but
    not max_iters, which may be raised. If the name would have over 100 characters, or some
    value cannot be told from its part of the name, a digest of all of them stands there instead.
    """
    if settings.out_dir:
        return Path(settings.out_dir)
    changed = [name for name in TrainSettings.defaults() if not settings.has_default(name)]
    values = {name: getattr(settings, name) for name in (*NAMED, *changed) if name != "max_iters"}
    if settings.init_from not in FRESH:  # whose scheme is not known yet
        values["pos"] = Path(settings.init_from).name
    texts = {name: in_a_name(name, value) for name, value in values.items()}
    pos, dataset, *numbers = (texts.pop(name) for name in NAMED)
    place = "-L{}-s{}".format(*numbers)
    name = "-".join([f"{pos}-{dataset}{place}", *(f"{name}={texts[name]}" for name in texts)])
    if "@" in name or len(name) > 100:
        digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode("utf-8")).hexdigest()
        name = f"{pos[:50]}-{dataset[:20]}{place}-{digest[:10]}".replace("@", "-")
    return Path("out", name)


def in_a_name(name: str, value: Any) -> str:
    """The value of a setting as part of a folder's name; "@" stands for what cannot be in one."""
    text = "_".join(map(str, value)) if isinstance(value, tuple) else str(value)
    if name in ("pos", "extend"):  # the grammar gives the signs back
        text = re.sub(" ?([,+|]) ", r"\1", text).translate(str.maketrans("(),|", "___~"))
    else:
        text = text.replace("=", "@")  # a file's name may look like another setting
    return re.sub(r"[^A-Za-z0-9._=+~-]", "@", text)


def checkpoint_paths(folder: Path, last: int | None = None) -> list[Path]:
    """The checkpoints in a run folder, the newest first, without those of steps after `last`.

    Their content is not looked at.
    """
    steps = {}
    for path in folder.glob("*.pt"):
        named = re.fullmatch(r"(ckpt|stable)-(\d+)-[0-9a-f]{16}", path.stem)
        if named and not path.is_dir() and (last is None or int(named[2]) <= last):
            steps[path] = (int(named[2]), path.name)
    return sorted(steps, key=steps.__getitem__, reverse=True)


def scheme_label(settings: TrainSettings) -> str:
    """What tables and figures call the scheme of a run."""
    return f"{settings.pos} (dropped)" if settings.drop_pos else settings.pos


def named_folders(words: list[str], program: str) -> list[str]:
    """The run folders among the words of a command line, each once; UserError if there are none.

    Files are left out, because a shell's out/* names them too.
    """
    named = {os.path.realpath(word): word for word in words if not Path(word).is_file()}
    folders = [*named.values()]
    require(folders, f"no run folder is named: python {program} out/RUN")
    return folders


# ---- provenance


def source_digests() -> dict[str, str]:
    """SHA-256 of the project's files that make the numbers, by their path."""
    folders = ("*.py", "families.toml", "zoo/*.py", "positions/*.py", "runs/*.py", "data/__*.py")
    paths = sorted(path for pattern in folders for path in ROOT.glob(pattern))
    made = (path for path in paths if path.stem not in MAKE_NO_NUMBERS)
    return {path.relative_to(ROOT).as_posix(): sha256(path) for path in made}


def provenance() -> dict[str, Any]:
    """What is needed to repeat a run: versions, machine, commit, sources and command line."""
    command = "git describe --always --abbrev=40 --dirty --exclude=*".split()
    how = {"cwd": ROOT, "capture_output": True, "encoding": "utf-8", "check": False}
    commit = subprocess.run(command, **how).stdout.strip() if shutil.which("git") else ""
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    about = {"versions": versions | {"numpy": np.__version__}, "platform": platform.platform()}
    about |= {"threads": torch.get_num_threads(), "git_commit": commit or None}
    return about | {"sources_sha256": source_digests(), "command": command_line()}


def command_line() -> list[str]:
    """The words that this program was started with, its own name first."""
    return [Path(sys.argv[0]).name, *sys.argv[1:]]


def note_changes(was: dict[str, Any], now: dict[str, Any]) -> None:
    """Print a line for each thing that is not as when the run began, and may change its numbers."""
    for name in ("sources_sha256", "threads", "versions", "device", "dtype", "processes"):
        old, new = was[name], now[name]
        if isinstance(new, dict):
            changed = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
        else:
            old, new = (str(value).partition(" ")[0] for value in (old, new))  # without the reason
            changed = [f"{old} then, {new} now"] if old != new else []
        if changed:
            change = f"{name} changed since this run began ({', '.join(changed)})"
            print(f"note: {change}: it may not end as it would have")


def logged(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, which all tell their step, without those that are damaged."""
    path, lines = folder / "metrics.jsonl", []
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    for line in text.splitlines():
        with suppress(ValueError, RecursionError):
            lines.append(json.loads(line))
    return [line for line in lines if isinstance(line, dict) and isinstance(line.get("step"), int)]


def last_logged_step(folder: Path) -> int:
    """The last step in metrics.jsonl; 0 if there is none."""
    return max((line["step"] for line in logged(folder)), default=0)


def trained_seconds(folder: Path) -> float:
    """How long the steps in metrics.jsonl took, with compiling; an interrupted part counts once."""
    seconds, tokens = 0.0, 0
    for line in logged(folder):
        if line.get("tokens_per_s"):
            seconds += (line["tokens"] - tokens) / line["tokens_per_s"]
            tokens = line["tokens"]
    return round(seconds, 1)


def diverged(folder: Path) -> str:
    """What was not finite when the training in a run folder ended; empty if all was."""
    lines = logged(folder)
    return lines[-1].get("diverged", "") if lines else ""


# ---- whose folder it is


def lock_folder(folder: Path) -> FileLock:
    """Keep other programs from writing into a run folder until this process ends, however it ends.

    Within a process a folder may be locked again. UserError names the program that holds it.
    """
    lock = FileLock(folder / ".lock", timeout=1, is_singleton=True)
    holder = folder / ".holder"
    try:
        lock.acquire()
    except Timeout:
        by = holder.read_text(encoding="utf-8") if holder.exists() else "another process"
        raise UserError(f"{folder} is in use by {by}; wait, or choose another --out_dir") from None
    for path in folder.glob(".*.new"):  # half written by a process that was killed
        path.unlink()
    by = f"process {os.getpid()} on {platform.node()} ({' '.join(command_line()):.200})"
    write_text(holder, by)
    return lock


def take_folder(folder: Path, settings: TrainSettings) -> FileLock:
    """Make a run folder for these settings, or take one that holds this run, and lock it.

    UserError, and nothing is changed, if it holds another run. With overwrite=True the other run is
    deleted.
    """
    used = (folder / "config.json").exists() or checkpoint_paths(folder)
    if (folder / "config.json").exists() and not settings.overwrite:
        differ = "; ".join(differ_from(settings, read_config(folder)))
        advice = "choose another --out_dir, or --overwrite=True"
        require(not differ, f"{folder} holds another run ({differ}): {advice}")
    with explain_errors(f"{folder} cannot be used", "choose another --out_dir"):
        folder.mkdir(parents=True, exist_ok=True)
        lock = lock_folder(folder)
    if settings.overwrite and used:  # a copy of pos_file may be the one to use again
        names = ("metrics.jsonl", "extrapolation.json", "extrapolation.png", "config.json")
        names += ("diagnose.json", "diagnose.png")
        for path in (*checkpoint_paths(folder), *map(folder.joinpath, names)):
            path.unlink(missing_ok=True)
    return lock


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a run folder. UserError if it is missing or damaged.

    Its "settings" are a dict of all settings; one that is not in the file has its default.
    """
    path = folder / "config.json"
    require(path.exists(), f"{path} is missing: {EXAMPLE}")
    config = read_json(path, CONFIG, DAMAGED)
    require(config["history"], f"{path} has an empty history: {DAMAGED}")
    try:
        settings = TrainSettings(**config["settings"]).checked()
    except (TypeError, UserError) as error:
        raise UserError(f"{path} has settings that cannot be ({error}): {DAMAGED}") from error
    return config | {"settings": asdict(settings)}


def differ_from(settings: TrainSettings, config: dict[str, Any]) -> list[str]:
    """How the run of a config.json has another result than these settings.

    max_iters may differ, because a run can go on. A warm-up that is not set is the run's own.
    """
    here = asdict(settings.warmed_up(config["history"][0]["max_iters"]))
    length = {"max_iters": config["settings"]["max_iters"]}
    differ = differences(here | length, config["settings"])
    if settings.pos_file and not differ:
        if sha256(Path(settings.pos_file)) != config["pos_file_sha256"]:
            differ = [f"{settings.pos_file} has changed since"]
    return differ
