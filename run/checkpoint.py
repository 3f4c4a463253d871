"""Checkpoints: saved and loaded, whole or not at all.

A checkpoint is `ckpt-STEP-DIGEST.pt`. DIGEST is the first 16 digits of the SHA-256 of its content,
so damage is noticed. The two newest are kept. A file gets its name only once it is complete, so a
run may be killed at any moment.
"""

import os
import pickle
import sys
from pathlib import Path

import torch

from common.errors import UserError
from common.files import replace_file, sha256

RESTORE = "restore a good copy, or start again with --overwrite=True"


# ---- checkpoints: one that appears has its whole content


def checkpoint_paths(folder: Path) -> list[Path]:
    """The paths of the checkpoints in a run folder, the newest first; their content is not read."""
    return sorted(folder.glob("ckpt-[0-9]*-????????????????.pt"), key=step_of, reverse=True)


def step_of(path: Path) -> int:
    """The number of steps after which a checkpoint was saved."""
    return int(path.name.split("-")[1])


def save_checkpoint(folder: Path, state: dict) -> str:
    """Write a checkpoint, and only then delete old ones; returns the digest in its name.

    UserError if the disk is full; the checkpoints before it are then kept.
    """
    unnamed = folder / ".ckpt.new"
    digest = replace_file(unnamed, lambda file: torch.save(state, file))[:16]
    os.replace(unnamed, folder / f"ckpt-{state['step']}-{digest}.pt")
    for path in checkpoint_paths(folder)[2:]:
        path.unlink()
    return digest


def load_checkpoint(folder: Path) -> dict | None:
    """Load the newest undamaged checkpoint of a run, with its "digest"; None if there is none.

    Damaged ones are named on standard error and skipped. UserError if all are damaged, or if one
    holds more than numbers, strings and tensors: code in it is never run.
    """
    for path in checkpoint_paths(folder):
        digest = path.stem[-16:]
        try:
            if sha256(path)[:16] != digest:
                print(f"{path} is damaged: trying the one before it", file=sys.stderr)
                continue
            state = torch.load(path, map_location="cpu", weights_only=True)
        except FileNotFoundError:  # training has meanwhile saved another and deleted this one
            return load_checkpoint(folder)
        except pickle.UnpicklingError as error:
            raise UserError(
                f"{path} is not a checkpoint of this program: do not trust it"
            ) from error
        return state | {"digest": digest}
    if checkpoint_paths(folder):
        raise UserError(f"all checkpoints in {folder} are damaged: {RESTORE}")
    return None
