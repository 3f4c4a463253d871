"""The characters of a corpus that nanoGPT made, from its meta.pkl. Nothing in the file is run."""

import io
import pickle
import pickletools
from pathlib import Path
from typing import NoReturn

from configurable import UserError, require

LARGEST = 2**24  # bytes; a meta.pkl of all of Unicode's characters has a fifth of it
KNOWN = "only nanoGPT's characters can be read (itos, a dict from each number to its character)"


class Plain(pickle.Unpickler):
    """Reads numbers, strings, lists and dicts, and refuses whatever names a class or a function."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """UserError: to load what is named here could run any code."""
        raise UserError(f"it names {module}.{name}, and a vocabulary is plain numbers and strings")


def read_characters(path: Path) -> str:
    """The characters that `path`, a meta.pkl of nanoGPT's, numbers, in order; UserError if none."""
    try:
        require(path.stat().st_size <= LARGEST, f"it has over {LARGEST:,} bytes")
        content = path.read_bytes()
        for code, place, _ in pickletools.genops(content):  # a place far off would fill the memory
            require("PUT" not in code.name or place < len(content), f"its {code.name} is {place}")
        itos = dict(Plain(io.BytesIO(content)).load()["itos"])
        characters = [itos[number] for number in range(len(itos))]
        odd = [each for each in characters if len(each.encode("utf-8").decode("utf-8")) != 1]
        require(not odd, f"its token {odd[:1]} is not one character")
        require(0 < len(set(characters)) == len(itos), "it has two tokens for one character")
    except Exception as error:  # a pickle can be broken in any way
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        problem = f"{path} is no vocabulary of characters: {kind}{str(error):.160}"
        raise UserError(f"{problem}; {KNOWN}") from None
    return "".join(characters)
