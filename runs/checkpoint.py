"""Checkpoints: saved, verified, loaded; and the trained model of a run folder.

A checkpoint is named `ckpt-STEP-DIGEST.pt`, with the first 16 digits of the SHA-256 of its content.
It is good if the content still has that digest. A run folder keeps the two newest good ones. The
one before wsd's decay is kept besides, as `stable-STEP-DIGEST.pt`: a longer run starts there.
"""

import hashlib
import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from configurable import GPTConfig, TrainSettings, UserError, check_shape, differences, require
from model import GPT
from runs.device import CPU, Compute
from runs.files import replace_file, sha256
from runs.folder import DAMAGED, RESTORE, checkpoint_paths, read_config

# what every checkpoint has
STATE = dict.fromkeys(("model", "optimizer", "scaler", "gpt"), dict)
STATE |= dict.fromkeys(("step", "tokens", "original_length"), int)
STATE |= {"settings": {"max_iters": int}, "train_lengths": [int]}


# ---- files


def save_checkpoint(folder: Path, state: dict[str, Any], kind: str = "ckpt") -> str:
    """Write a checkpoint; the SHA-256 of its file.

    All others of its kind ("ckpt" or "stable") are deleted, but the newest good "ckpt" before it.
    It gets its name when it is whole, and only then another one is deleted: at any moment there is
    a good one. UserError if the disk is full; what was there before stays.
    """
    unnamed = folder / ".ckpt.new"
    try:
        digest = replace_file(unnamed, lambda file: torch.save(state, file))
        path = folder / f"{kind}-{state['step']}-{digest[:16]}.pt"
        older = [p for p in checkpoint_paths(folder) if p != path and p.name.startswith(kind)]
        os.replace(unnamed, path)
        good = (other for other in older if other.stem.endswith(sha256(other)[:16]))
        kept = next(good, None) if kind == "ckpt" else None
        for other in older:
            if other != kept:
                other.unlink()
    except (UserError, RuntimeError, OSError) as error:
        # torch.save hides a full disk behind "unexpected pos"
        reason = error.__context__ if isinstance(error.__context__, OSError) else error
        sentence = f"a checkpoint in {folder} cannot be written ({reason})"
        raise UserError(f"{sentence}; the one before it is untouched") from error
    return digest


def load_state(folder: Path, say: Callable = print, last: int | None = None) -> dict | None:
    """The content of the newest good checkpoint, and its "sha256"; None if there is no checkpoint.

    Those of steps after `last` are passed over. `say` gets a sentence that names the newer ones,
    which are damaged. UserError if all are.
    """
    state, damaged, paths = None, [], checkpoint_paths(folder, last)
    try:
        for path in paths:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                if path.stem.endswith(digest[:16]):
                    state = read_checkpoint(file, path) | {"sha256": digest}
                    break
            damaged.append(f"{path} is damaged or renamed")
    except FileNotFoundError:
        if checkpoint_paths(folder, last) == paths:  # a link to nowhere
            raise
        return load_state(folder, say, last)  # a training saved at the same time
    problem = f"{' and '.join(damaged)}: its SHA-256 is not the one in its name"
    require(state or not damaged, f"{problem}; {RESTORE}")
    if damaged:
        say(f"{problem}; going on from {path.name}")
    return state


def read_checkpoint(file: BinaryIO, path: Path) -> dict[str, Any]:
    """The content of a checkpoint. No code in it is run.

    UserError if it holds more than numbers, texts and tensors, or lacks something.
    """
    file.seek(0)
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        problem = f"{path} is no checkpoint of this program: do not trust it"
        raise UserError(f"{problem}, or train with --overwrite=True") from error
    check_shape(state, STATE, str(path), DAMAGED)
    return state


# ---- runs


@dataclass(frozen=True)
class Run:
    """A trained model and where it came from.

    `config` is the content of config.json, `settings` its settings, `state` the checkpoint, with
    the "sha256" of its file. `compute` is the device and the number format.
    """

    folder: Path
    config: dict[str, Any]
    settings: TrainSettings
    state: dict[str, Any]
    model: GPT
    compute: Compute = CPU


def load_run(folder: str | Path, compute: Compute = CPU, pos_file: str = "") -> Run:
    """The trained model of a run folder, in eval mode.

    UserError if it is missing, damaged, or of another scheme. `pos_file` must be given for a run
    with schemes of its own: its copy in the folder is run.
    """
    folder = Path(folder)
    config = read_config(folder)
    state = load_state(folder, say=lambda text: print(text, file=sys.stderr))
    require(state, f"{folder} holds no checkpoint yet: train it first")
    refuse_other_files(folder, config, state)
    model = GPT(GPTConfig(**state["gpt"] | {"extend": ""}), scheme_file(folder, config, pos_file))
    model.extend(state["gpt"]["extend"], folder)
    load_weights(model, state["model"], folder)
    model, settings = model.to(compute.device).eval(), TrainSettings(**config["settings"])
    return Run(folder, config, settings, state, model, compute)


def scheme_file(folder: Path, config: dict[str, Any], typed: str) -> Path | None:
    """The Python file of position schemes that a run needs.

    A run with schemes of its own has a copy of their file. It is run only if --pos_file was typed
    again. For other runs it is the typed file, which may hold extensions.
    """
    own, copy = config["settings"]["pos_file"], folder / "pos_file.py"
    if not own:
        return Path(typed).resolve() if typed else None
    problem = f"{folder} was trained with schemes of its own ({own}); loading them runs that code"
    require(typed, f"{problem}: type --pos_file={copy} if you trust it")
    for path in (copy, Path(typed)):
        same = path.is_file() and sha256(path) == config["pos_file_sha256"]
        require(same, f"{path} is missing or not the file that {folder} was trained with")
    print(f"running the position schemes of {copy}", file=sys.stderr)
    return copy


def refuse_other_files(folder: Path, config: dict[str, Any], state: dict[str, Any]) -> None:
    """UserError if the checkpoint, or a file of the extension, is not that of the folder's run."""
    length = {"max_iters": state["settings"]["max_iters"]}  # a run may be made longer
    differ = differences(state["settings"], config["settings"] | length)
    other = "; ".join(differ)
    require(not differ, f"the checkpoint in {folder} is of another run ({other}): {RESTORE}")
    for name, digest in config["extension_files_sha256"].items():
        path = folder / name
        same = path.is_file() and sha256(path) == digest
        require(same, f"{path} is missing or not the file of this run: {RESTORE}")


def load_weights(model: GPT, weights: dict[str, torch.Tensor], where: Path) -> None:
    """Copy weights into a model. UserError names the parameters that are not the same."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        problem = f"the checkpoint in {where} is of another model or scheme than {model.pos.text}"
        raise UserError(f"{problem} ({reason:.300})") from error
