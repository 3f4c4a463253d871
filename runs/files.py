"""Files that are written whole or not at all, JSON, and SHA-256."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from configurable import UserError, explain_errors, require

EXAMPLE = "name a run folder, e.g. out/alibi-stdlib-L128-s1337"


def replace_file(path: Path, write: Callable[[BinaryIO], None]) -> str:
    """Write a file aside, flush it to the disk, and only then give it its name.

    `write` gets the open file. Returns the SHA-256 of the content. UserError if writing fails.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with explain_errors(f"{path} cannot be written", "what was there before is untouched"):
            with aside.open("wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            digest = sha256(aside)
            os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    return digest


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def copy_file(source: Path, target: Path) -> None:
    """Copy a file, unless it is the target already."""
    if source.resolve() != target.resolve():
        shutil.copyfile(source, target)


def write_text(path: str | Path, text: str) -> None:
    """Replace a text file at once. What cannot be written in UTF-8 is escaped."""
    content = text.encode("utf-8", errors="backslashreplace")
    replace_file(Path(path), lambda file: file.write(content))


def write_json(path: str | Path, content: Any) -> None:
    """Replace a JSON file at once. A list of numbers is one line."""
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    numbers = r"\[\n[-+.,\deE\s]*\]"
    text = re.sub(numbers, lambda match: re.sub(r"\s+", " ", match[0]), text)
    write_text(path, text + "\n")


def read_json(path: Path, advice: str = EXAMPLE) -> dict[str, Any]:
    """A JSON object from a file; UserError, with advice, if the file does not hold one."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        raise UserError(f"{path} is missing or not readable JSON: {advice}") from None
    require(isinstance(content, dict), f"{path} is not a JSON object: {advice}")
    return content
