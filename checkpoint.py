"""A run folder: what it is called, what is written into it, and how nothing in it is lost, half written or believed unseen."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from filelock import FileLock, Timeout

from configurable import GPTConfig, TrainSettings, UserError, differences
from model import GPT

HERE = Path(__file__).resolve().parent
CURRENT, PREVIOUS, DIGESTS = "ckpt.pt", "ckpt-previous.pt", "checkpoints.sha256"
NAMED = (
    "pos",
    "dataset",
    "block_size",
    "seed",
)  # the result settings that the folder's name spells out


# ---- files


def replace_file(path: Path, write: Callable[[BinaryIO], None]) -> str:
    """Write a file aside, flush it to the disk, give it its name; return its SHA-256. UserError where that fails."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with aside.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        digest = sha256(aside)
        os.replace(aside, path)
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror}); what was there before is untouched"
        ) from error
    finally:
        aside.unlink(missing_ok=True)
    return digest


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_text(path: str | Path, text: str) -> None:
    """Replace a text file at once; what a command line has that is no UTF-8 is escaped."""
    replace_file(
        Path(path), lambda file: file.write(text.encode("utf-8", errors="backslashreplace"))
    )


def write_json(path: str | Path, content: Any) -> None:
    """Replace a JSON file at once; a list of numbers stands in one line."""
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    write_text(
        path,
        re.sub(r"\[\n[-+.,\deE\s]*\]", lambda found: re.sub(r"\s+", " ", found[0]), text) + "\n",
    )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; UserError where it is not one."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        raise UserError(
            f"{path} is missing or not readable JSON; name a run folder, e.g. out/alibi-stdlib-L128-s1337"
        ) from None
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a JSON object")
    return content


class Parts(dict[str, Any]):
    """What a file of a run folder holds; UserError for a part that it lacks."""

    def __init__(self, path: Path, parts: dict[str, Any]) -> None:
        super().__init__(parts)
        self.path = path

    def __missing__(self, name: str) -> Any:
        raise UserError(
            f"{self.path} lacks {name!r}: it is damaged; restore a good copy, or start afresh with --overwrite=True"
        )


# ---- checkpoints


def save(folder: Path, state: dict[str, Any]) -> None:
    """Write ckpt.pt, keeping the one before as ckpt-previous.pt.

    The digests of the new file and of the good ones at hand are written before any name changes: whenever the process dies,
    a whole file is there under one of the names, and its digest stands in checkpoints.sha256. A damaged file is not kept.
    """
    aside, current, previous = folder / f"{CURRENT}.new", folder / CURRENT, folder / PREVIOUS
    try:
        good = {
            path: digest
            for path in (current, previous)
            if path.exists() and (digest := sha256(path)) in digests(folder)
        }
        new = replace_file(aside, lambda file: torch.save(state, file))
        lines = [f"{new}  {CURRENT}\n", *(f"{digest}  {PREVIOUS}\n" for digest in good.values())]
        write_text(folder / DIGESTS, "".join(lines))
        if current in good:
            os.replace(current, previous)
        os.replace(aside, current)
    except (RuntimeError, OSError) as error:
        reason = (
            error.__context__ if isinstance(error.__context__, OSError) else error
        )  # torch.save says "unexpected pos"
        raise UserError(
            f"{current} cannot be written ({reason}); the checkpoint before it is untouched"
        ) from error


def digests(folder: Path) -> dict[str, str]:
    """{digest: name} from checkpoints.sha256, newest first; empty where there is none."""
    path = folder / DIGESTS
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n") if path.is_file() else []
    return dict(line.split("  ", 1) for line in lines if "  " in line)


def load_state(folder: Path, say: Callable[[str], None] = print) -> dict[str, Any] | None:
    """The newest checkpoint whose SHA-256 is as it was written, None if there is no file; what is damaged is named.

    A file is known by its digest and not by its name: two that were swapped are told apart.
    """
    while True:
        known = digests(folder)
        with (
            contextlib.ExitStack() as stack,
            contextlib.suppress(FileNotFoundError),
        ):  # renamed meanwhile: look again
            files = {
                path: stack.enter_context(path.open("rb"))
                for name in (f"{CURRENT}.new", CURRENT, PREVIOUS)
                if (path := folder / name).exists()
            }
            found = {
                path: hashlib.file_digest(file, "sha256").hexdigest()
                for path, file in files.items()
            }
            newest = next((path for good in known for path in found if found[path] == good), None)
            if known == digests(folder):  # otherwise a training saved meanwhile: look again
                state = loaded(files[newest], newest) if newest else None
                break
    bad = [
        f"{path} is damaged (its SHA-256 is not in {DIGESTS})"
        for path, digest in found.items()
        if digest not in known and path.name != f"{CURRENT}.new"
    ]
    if known and next(iter(known)) not in found.values() and folder / CURRENT not in found:
        bad.append(f"{folder / CURRENT} is gone")
    if bad and not newest:
        raise UserError(
            f"{' and '.join(bad)}; restore a good copy, or start afresh with --overwrite=True"
        )
    if bad:
        say(f"{' and '.join(bad)}: going on from {newest.name}")
    return state


def loaded(file: BinaryIO, path: Path) -> dict[str, Any]:
    """The content of a checkpoint; nothing in it is run. UserError where it holds more than numbers, texts and tensors."""
    file.seek(0)
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
        if not isinstance(state, dict) or not state:
            raise ValueError("not a dictionary")
        return Parts(path, state)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise UserError(
            f"{path} is no checkpoint of this program, though its SHA-256 is in {DIGESTS}: do not trust that folder, "
            "or train it anew with --overwrite=True"
        ) from error


# ---- metrics


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


# ---- run folders


def folder_of(settings: TrainSettings) -> Path:
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


def sources() -> dict[str, str]:
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
        "sources_sha256": sources(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


def lock(folder: Path) -> FileLock:
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


def claim(folder: Path, settings: TrainSettings) -> FileLock:
    """Take a run folder for these settings and lock it. UserError, and nothing is touched, where it holds another run."""
    path = folder / "config.json"
    if path.exists() and not settings.overwrite:
        refuse_other_run(folder, settings)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = lock(folder)
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


def label(settings: dict[str, Any]) -> str:
    """What tables and figures call the scheme of a run."""
    return f"{settings['pos']} (dropped)" if settings.get("drop_pos") else settings["pos"]


def started_from(settings: TrainSettings) -> str | None:
    """What the run in out_dir was begun from (its init_from), if there is a run with a checkpoint."""
    folder = Path(settings.out_dir)
    if not settings.out_dir or not (folder / CURRENT).exists():
        return None
    return read_config(folder)["settings"]["init_from"]


@dataclass
class Run:
    """A trained model and where it came from; `config` is config.json, `settings` its settings, `state` the checkpoint."""

    folder: Path
    config: dict[str, Any]
    state: dict[str, Any]
    model: GPT

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting of the run, as used."""
        return self.config["settings"]


def scheme_file(folder: Path, config: dict[str, Any], typed: str) -> Path | None:
    """The run's own copy of the user's position schemes, whose code runs only if --pos_file was typed again; of a run without
    any the typed file, which may hold extensions."""
    if not config["settings"]["pos_file"]:
        return Path(typed).resolve() if typed else None
    if not typed:
        raise UserError(
            f"{folder} was trained with schemes of its own ({config['settings']['pos_file']}); loading them runs "
            f"that code: type --pos_file={folder / 'pos_file.py'} if you trust it"
        )
    for path in (folder / "pos_file.py", Path(typed)):
        if not path.is_file() or sha256(path) != config["pos_file_sha256"]:
            raise UserError(f"{path} is missing or not the file that {folder} was trained with")
    print(f"running the position schemes of {folder / 'pos_file.py'}", file=sys.stderr)
    return folder / "pos_file.py"


def load_run(folder: str | Path, device: str = "cpu", pos_file: str = "") -> Run:
    """The trained model of a run folder, in eval mode; UserError where it is missing, damaged or of another scheme."""
    folder = Path(folder)
    config = read_config(folder)
    state = load_state(folder, say=lambda text: print(text, file=sys.stderr))
    if state is None:
        raise UserError(f"{folder} holds no checkpoint yet: train it first")
    refuse_other_checkpoint(folder, state, config["settings"])
    refuse_other_files(folder, config)
    model = GPT(GPTConfig(**state["gpt"] | {"extend": ""}), scheme_file(folder, config, pos_file))
    model.extend(state["gpt"].get("extend", ""), folder)
    load_weights(model, state["model"], folder)
    return Run(folder, config, state, model.to(device).eval())


def refuse_other_files(folder: Path, config: dict[str, Any]) -> None:
    """UserError where the folder's copy of a file that its extension names is not what the run was trained with."""
    for name, digest in config.get("extension_files_sha256", {}).items():
        if not (folder / name).is_file() or sha256(folder / name) != digest:
            raise UserError(
                f"{folder / name} is missing or not the file that {folder} was trained with: restore a good copy"
            )


def refuse_other_checkpoint(folder: Path, state: dict[str, Any], settings: dict[str, Any]) -> None:
    """UserError where a checkpoint was made with other settings than its folder's run."""
    if differ := differences(state["settings"], settings, "result"):
        raise UserError(
            f"the checkpoint in {folder} is of another run than that folder's ({'; '.join(differ)}): "
            "restore the right one, or start afresh with --overwrite=True"
        )


def load_weights(model: GPT, weights: dict[str, torch.Tensor], where: Path) -> None:
    """Copy weights into a model of exactly the same parameters; UserError names what differs."""
    own = {name: tuple(p.shape) for name, p in model.state_dict().items()}
    given = {name: tuple(p.shape) for name, p in weights.items()}
    if own != given:
        differ = sorted(n for n in {*own, *given} if own.get(n) != given.get(n))[:4]
        listed = "; ".join(
            f"{n}: {given.get(n, 'absent')} there, {own.get(n, 'absent')} here" for n in differ
        )
        raise UserError(
            f"the checkpoint in {where} is of another model or scheme than {model.pos.text} ({listed})"
        )
    model.load_state_dict(weights)
