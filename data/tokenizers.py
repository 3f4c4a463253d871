"""Tokenizers: bytes, characters, GPT-2's, and those of tokenizer.json."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tiktoken

from common.errors import UserError
from common.files import sha256

HERE = Path(__file__).resolve().parent


# ---- tokenizers


class Tokenizer:
    """Turns text into token ids and back.

    Each subclass has a method `array` that returns the ids of a text, (n,) unsigned; UserError for
    text that the vocabulary cannot encode.
    """

    unit: str  # what a token is: "byte", "char" or "token"
    vocabulary: Sequence[bytes]  # the bytes of each token
    end: int | None = None  # the token after a document, if there is one
    prefix = b""  # what it puts before each text

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; UserError for a character that is not in the vocabulary."""
        return self.array(text).tolist()

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of the tokens, which may end in the middle of a character.

        Model tokens beyond the vocabulary have no bytes.
        """
        return b"".join(self.vocabulary[i] for i in ids if i < len(self.vocabulary))

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the tokens. Broken characters become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    @cached_property
    def sizes(self) -> np.ndarray:
        """How many bytes of text each token stands for, (vocabulary,): 0 for the end token."""
        return np.array([0 if n == self.end else len(x) for n, x in enumerate(self.vocabulary)])


class ByteTokenizer(Tokenizer):
    """Every UTF-8 byte is a token; after them come `signs`, which no text encodes to."""

    unit = "byte"

    def __init__(self, signs: Iterable[str] = ()) -> None:
        self.vocabulary = [bytes([value]) for value in range(256)]
        self.vocabulary += [sign.encode() for sign in signs]

    def array(self, text: str) -> np.ndarray:
        """The UTF-8 bytes of `text`, (n,) uint8."""
        return np.frombuffer(text.encode("utf-8"), dtype=np.uint8)


class CharTokenizer(Tokenizer):
    """Every character of a corpus is a token, numbered in the order of `characters`."""

    unit = "char"

    def __init__(self, characters: str) -> None:
        self.vocabulary = [character.encode("utf-8") for character in characters]
        self.ids = {character: n for n, character in enumerate(characters)}

    def array(self, text: str) -> np.ndarray:
        """One id per character, (n,) uint32; UserError for one outside the vocabulary."""
        try:
            return np.array([self.ids[character] for character in text], dtype=np.uint32)
        except KeyError as error:
            raise UserError(
                f"the character {error} is not among those of this corpus: take another text "
                "(sample.py: --start=TEXT)"
            ) from None


class GPT2Tokenizer(Tokenizer):
    """GPT-2's byte pair encoding, through tiktoken."""

    unit = "token"

    def __init__(self) -> None:
        """UserError if the vocabulary is neither here nor can be downloaded."""
        try:
            self.encoding = tiktoken.get_encoding("gpt2")
        except (OSError, ValueError) as error:
            raise UserError(
                f"GPT-2's vocabulary cannot be loaded ({type(error).__name__}): use a network, or "
                "set TIKTOKEN_CACHE_DIR to a folder that has it"
            ) from error
        self.vocabulary = self.encoding.decode_tokens_bytes(range(self.encoding.n_vocab))
        self.end = self.encoding.eot_token

    def array(self, text: str) -> np.ndarray:
        """Token ids, (n,) uint32; names of special tokens in `text` are ordinary text.

        UserError for a million spaces in a row.
        """
        try:
            return self.encoding.encode_to_numpy(text, disallowed_special=())
        except ValueError as error:
            raise UserError(f"tiktoken cannot read the text ({error!s:.160})") from None


class FileTokenizer(Tokenizer):
    """A Hugging Face tokenizer.json, through `tokenizers`.

    No special token is added, and the names of special tokens are ordinary text. A SentencePiece
    tokenizer puts a space before each text, its `prefix`.
    """

    unit = "token"

    def __init__(self, path: Path, end: int | None = None) -> None:
        """UserError if the file cannot be read, or does not define the bytes of its tokens."""
        self.inner = read_tokenizer(path)
        self.inner.encode_special_tokens = True
        self.end = end
        content = self.inner.to_str()
        byte_level = '"type":"ByteLevel"' in content
        if not byte_level and '"byte_fallback":true' not in content:
            raise UserError(
                f"{path} has no token for each byte: take another model's tokenizer, or train one "
                "with ByteLevel and its alphabet"
            )
        added = self.inner.get_added_tokens_decoder()
        self.vocabulary = []
        for n in range(max(self.inner.get_vocab().values()) + 1):
            name = self.inner.id_to_token(n) or ""  # an unused id has no bytes
            if byte_level and n not in added and set(name) <= {*BYTE_SIGNS}:
                self.vocabulary.append(bytes(BYTE_SIGNS.index(sign) for sign in name))
            elif re.fullmatch("<0x[0-9A-F]{2}>", name):
                self.vocabulary.append(bytes.fromhex(name[3:5]))
            else:  # SentencePiece writes a space as U+2581
                self.vocabulary.append(name.replace("\u2581", " ").encode("utf-8"))
        ids = self.inner.encode("x", add_special_tokens=False).ids
        self.prefix = self.decode_bytes(ids).removesuffix(b"x")

    def array(self, text: str) -> np.ndarray:
        """Token ids, (n,) uint32; UserError if one ends a document, or if their bytes are not those
        of the text.
        """
        ids = self.inner.encode(text, add_special_tokens=False).ids
        if self.end in ids:
            name = self.inner.id_to_token(self.end)
            raise UserError(f"{name!r} is in the text, but ends a document: split the text there")
        raw = text.encode("utf-8")
        given = self.decode_bytes(ids)
        # some take a text's own space at its start for the prefix
        if given not in (raw, self.prefix + raw):
            n = len(os.path.commonprefix([given.removeprefix(self.prefix), raw]))
            part = raw[max(0, n - 10) : n + 10].decode("utf-8", errors="replace")
            raise UserError(f"the tokenizer does not give {part!r} back")
        return np.array(ids, dtype=np.uint32)


def read_tokenizer(path: Path) -> Any:
    """The tokenizers.Tokenizer of a tokenizer.json, without a greatest length; UserError if it
    cannot be read.
    """
    try:
        from tokenizers import Tokenizer

        inner = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers has no exception class for it
        raise UserError(
            f"{path} cannot be read as a tokenizer ({error!s:.160}): "
            "install tokenizers with pip, or restore the file"
        ) from error
    inner.no_truncation()
    inner.no_padding()
    return inner


# byte-level tokenizers write printable bytes as themselves, others as characters from 256 on
BYTE_SIGNS = [chr(byte) for byte in range(256)]
for number, hidden in enumerate([*range(33), *range(127, 161), 173]):
    BYTE_SIGNS[hidden] = chr(256 + number)


def signs_of(token: bytes) -> str:
    """The name of a token in a byte-level tokenizer: a sign for each byte."""
    return "".join(BYTE_SIGNS[byte] for byte in token)


TOKENIZERS = ("bytes", "char", "gpt2")  # of a corpus, besides a tokenizer.json


def tokenizer_of(meta: Mapping, folder: Path = HERE) -> Tokenizer:
    """The tokenizer described by a meta.json in `folder`; UserError if its file has changed."""
    kind = meta["tokenizer"]
    if kind == "bytes":
        return ByteTokenizer(meta.get("signs", ()))
    if kind == "char":
        return CharTokenizer(meta["characters"])
    if kind == "gpt2":
        return GPT2Tokenizer()
    path = folder / "tokenizer.json"
    if not path.is_file() or sha256(path) != meta["tokenizer_sha256"]:
        raise UserError(f"{path} is not the file that this corpus was made with: restore it")
    return FileTokenizer(path, meta.get("end_token"))
