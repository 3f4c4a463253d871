"""The default corpus: the source of this Python's own standard library, as bytes. Needs no network.

python data/stdlib/prepare.py
"""

import argparse
import os
import platform
import sys
import sysconfig
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from configurable import UserError, run  # noqa: E402
from data import is_validation, summary, validation_rule, write_corpus  # noqa: E402

# Tests, what others installed, and two packages of tables and texts that are near-copies of themselves.
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


def sources(library: Path) -> list[str]:
    """Paths of the .py files below `library`, relative, with forward slashes, sorted."""
    found = []
    for folder, folders, files in os.walk(library):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        found += [
            Path(folder, name).relative_to(library).as_posix()
            for name in files
            if name.endswith(".py")
        ]
    return sorted(found)


def read(path: Path) -> bytes:
    """The bytes of a regular file; none for what cannot be read."""
    try:
        return path.read_bytes() if path.is_file() else b""
    except OSError:
        return b""


def prepare(folder: Path, library: Path | None = None) -> dict:
    """Write the corpus to `folder` and return its meta.json; `library` replaces the running Python's own."""
    library = library or Path(sysconfig.get_path("stdlib"))
    splits: dict[str, list[np.ndarray]] = {"train": [], "val": []}
    for name in sources(library):
        split = "val" if is_validation(os.fsencode(name)) else "train"
        splits[split].append(np.frombuffer(read(library / name), dtype=np.uint8))
    if not any(len(document) for document in splits["train"]):
        raise UserError(
            f"{library} has no .py files, so there is no stdlib corpus here: choose another dataset"
        )
    return write_corpus(
        folder,
        splits,
        tokenizer="bytes",
        vocab_size=256,
        unit="byte",
        source=f"standard library of Python {platform.python_version()}",
        rule=validation_rule("file", "its path in the library"),
    )


def main() -> None:
    """Make the corpus beside this file and say what it holds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--debug", action="store_true", help="show where an error was raised")
    parser.parse_args()
    print(summary(prepare(Path(__file__).resolve().parent)))


if __name__ == "__main__":
    run(main)
