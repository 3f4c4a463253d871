"""Checkpoints: saved, verified, loaded."""
from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from configurable import GPTConfig, UserError, differences
from model import GPT
from runs.files import replace_file, sha256, write_text
from runs.folder import CURRENT, DIGESTS, PREVIOUS, Parts, read_config


def save_checkpoint(folder: Path, state: dict[str, Any]) -> None:
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
                state = read_checkpoint(files[newest], newest) if newest else None
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

def read_checkpoint(file: BinaryIO, path: Path) -> dict[str, Any]:
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
