"""Files that are written whole or not at all; digests, and seeds made of numbers."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.errors import UserError


def mixed_seed(*numbers: int) -> int:
    """A 32-bit seed derived from these numbers; on a CPU torch uses no more bits."""
    digest = hashlib.sha256(" ".join(map(str, numbers)).encode()).digest()
    return int.from_bytes(digest[:4], "little")


def sha256(path: Path) -> str:
    """The SHA-256 of a file, 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: Path) -> dict:
    """Read a JSON object from a file; UserError if there is none."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        raise UserError(f"{path} is missing or holds no JSON object") from None


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file atomically; see `replace_file`."""
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    replace_file(path, lambda file: file.write(text.encode()))


def replace_file(path: Path, write: Callable) -> str:
    """Replace a file atomically: write a temporary one, flush it to the disk, then rename it.

    `write` gets the open binary file. Returns the SHA-256 of the content. UserError if writing
    fails; the old file is then untouched.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with aside.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        digest = sha256(aside)
        os.replace(aside, path)
    except (OSError, RuntimeError) as error:  # a full disk; torch.save hides it in the second
        reason = error
        if not isinstance(error, OSError):
            reason = error.__context__ or error
        raise UserError(
            f"{path} cannot be written ({reason}): what was there before is unchanged"
        ) from error
    finally:
        aside.unlink(missing_ok=True)
    return digest
