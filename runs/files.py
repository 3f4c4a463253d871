"""Files that are written whole or not at all."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from configurable import explain_errors, sha256


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


def write_text(path: str | Path, text: str) -> None:
    """Replace a text file at once. What cannot be written in UTF-8 is escaped."""
    content = text.encode("utf-8", errors="backslashreplace")
    replace_file(Path(path), lambda file: file.write(content))


def write_json(path: str | Path, content: Any) -> None:
    """Replace a JSON file at once. A list of numbers is one line."""
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    text = re.sub(r"\[\n[-+.,\deE\s]*\]", lambda match: re.sub(r"\s+", " ", match[0]), text)
    write_text(path, text + "\n")
