"""The default corpus: the source of this Python's standard library, as bytes. Needs no network.

python data/stdlib/prepare.py
"""

import os
import platform
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from common.errors import UserError, run_program
from data.corpus import new_parser, write_corpus
from data.text.prepare import is_validation, validation_rule

# Tests, installed packages, and two packages of highly repetitive tables and texts.
LEFT_OUT = {
    "test",
    "tests",
    "idle_test",
    "site-packages",
    "dist-packages",
    "encodings",
    "pydoc_data",
    "__pycache__",
}


def prepare(folder: Path, library: Path | None = None) -> dict:
    """Write the corpus of `library` (default: this Python's) to `folder`; return its meta.json."""
    library = library or Path(sysconfig.get_path("stdlib"))
    splits: dict[str, list[np.ndarray]] = {"train": [], "val": []}
    # sorted paths relative to the library, with forward slashes: the same everywhere
    paths = [path.relative_to(library) for path in library.rglob("*.py")]
    names = [path.as_posix() for path in paths if LEFT_OUT.isdisjoint(path.parts)]
    for name in sorted(names):
        with suppress(OSError):  # a folder with that name, or an unreadable file
            document = np.fromfile(library / name, dtype=np.uint8)
            splits["val" if is_validation(os.fsencode(name)) else "train"].append(document)
    if not any(len(document) for document in splits["train"]):
        raise UserError(
            f"{library} has no .py files, so there is no stdlib corpus here: choose another dataset"
        )
    return write_corpus(
        folder,
        splits,
        tokenizer="bytes",
        source=f"standard library of Python {platform.python_version()}",
        rule=validation_rule("file", "its path in the library"),
    )


def main() -> None:
    """Make the corpus in the folder of this file and print what it holds."""
    new_parser(__doc__).parse_args()
    prepare(Path(__file__).resolve().parent)


if __name__ == "__main__":
    run_program(main)
