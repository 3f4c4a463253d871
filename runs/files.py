"""Files that are written whole or not at all, JSON, and SHA-256."""
from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from configurable import UserError


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
