"""Corpora: how they are made, stored, read and cut into training sequences.

To train on your own texts, write no code: `python data/text/prepare.py --name=NAME PATH...`.
To add a corpus to the project, write data/NAME/prepare.py: a program with a function
`prepare(folder)` that passes the documents to `write_corpus` (see data/stdlib/prepare.py).
Nothing else has to be changed: after `python data/NAME/prepare.py`, train with --dataset=NAME.

A corpus is a folder with these files: train.bin and val.bin (token ids, uint16 or uint32,
little-endian), train_starts.npy and val_starts.npy (the first token of each document), meta.json
(the tokenizer, the source, the counts and the SHA-256 of the token files). A folder that nanoGPT
made (train.bin, val.bin and perhaps meta.pkl) is read as it is from data/NAME: a meta.json is put
beside its files when it is first used. In it a split may be in shards: train_000.bin, train_001.bin
and so on, numbered from any number, are read as one file, from the disk, so that they may be larger
than the memory.
"""

import argparse
import hashlib
import importlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import tiktoken

from configurable import UserError, read_json, require, sha256
from data.nanogpt import read_characters

HERE = Path(__file__).resolve().parent
SPLITS = ("train", "val")
TASKS = ("addition", "addition_hints", "addition_reversed", "copy", "flipflop", "induction")
TASKS += ("parity", "reverse", "sort")  # data/tasks makes them
WIKIPEDIA = ("enwik8", "text8", "wikitext103")  # data/wikipedia makes them
# made when they are first used: they need no network and no arguments
OFFLINE = {name: name for name in ("stdlib", "recall", "digits")} | dict.fromkeys(TASKS, "tasks")
NANOGPT = "as nanoGPT split it"  # the rule in meta.json of a folder that nanoGPT made
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")  # of a corpus
VOCABULARIES = {"bytes": 256, "gpt2": 50257}  # tokens of each tokenizer; char: its characters
SPLIT = {"tokens": int, "bytes": int, "documents": int, "dtype": str, "sha256": str}
META = {"tokenizer": str, "unit": str, "vocab_size": int, "source": str, "rule": str}
META |= {"characters": (str, type(None)), "splits": dict.fromkeys(SPLITS, SPLIT)}
META |= {"tokenizer_sha256": (str, type(None)), "end_token": (int, type(None))}
OF_TOKENS = ("tokenizer", "characters", "tokenizer_sha256", "end_token")  # what tokens mean
# how byte-level tokenizers write each byte: as itself, if it can be seen, or by a sign from 256 on
SEEN = [*range(33, 127), *range(161, 173), *range(174, 256)]
HIDDEN = [value for value in range(256) if value not in SEEN]
BYTE_SIGNS = "".join(chr(n if n in SEEN else 256 + HIDDEN.index(n)) for n in range(256))
Splits = Mapping[str, Iterable[np.ndarray]]  # the documents of "train" and "val", each (n,) tokens


# ---- tokenizers


class Tokenizer:
    """Turns text into token ids and back."""

    unit: str  # what a token is: "byte", "char" or "token"
    vocabulary: Sequence[bytes]  # the bytes of each token
    end: int | None = None  # the token after a document, if there is one
    whole: bool = False  # whether a cut of a text changes tokens anywhere

    def array(self, text: str) -> np.ndarray:
        """Token ids of `text`, (n,) unsigned; UserError for what the vocabulary cannot write."""

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; UserError names a character that the vocabulary does not have."""
        return self.array(text).tolist()

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of the tokens, which may end inside a character."""
        return b"".join(self.vocabulary[i] for i in ids)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the tokens. Broken characters become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def token_bytes(self) -> np.ndarray:
        """(V,) int64: the UTF-8 bytes of text that each token stands for; the end token: 0."""
        lengths = np.array([len(token) for token in self.vocabulary], dtype=np.int64)
        if self.end is not None:
            lengths[self.end] = 0
        return lengths


class ByteTokenizer(Tokenizer):
    """Every UTF-8 byte is a token."""

    unit = "byte"
    vocabulary = [bytes([value]) for value in range(256)]

    def array(self, text: str) -> np.ndarray:
        """The UTF-8 bytes of `text`, (n,) uint8."""
        return np.frombuffer(text.encode("utf-8"), dtype=np.uint8)


class CharTokenizer(Tokenizer):
    """Every character of a corpus is a token, numbered in the order of `characters`."""

    unit = "char"

    def __init__(self, characters: str) -> None:
        self.vocabulary = [character.encode("utf-8") for character in characters]
        count = len(characters)
        self.ids = np.full(0x110000, count, token_dtype(count + 1))  # by code point
        self.ids[[ord(character) for character in characters]] = np.arange(count)

    def array(self, text: str) -> np.ndarray:
        """One id per character, (n,); UserError for the first that is not in the vocabulary."""
        ids = self.ids[np.frombuffer(text.encode("utf-32-le"), dtype="<u4")]
        unknown = np.flatnonzero(ids == len(self.vocabulary))
        if unknown.size:
            odd = f"character {text[unknown[0]]!r} at place {unknown[0]} of the text"
            raise UserError(f"{odd} is not among the characters of this corpus: leave it out")
        return ids


class GPT2Tokenizer(Tokenizer):
    """GPT-2's byte pair encoding, through tiktoken."""

    unit = "token"

    def __init__(self) -> None:
        """UserError if the vocabulary is neither here nor can be downloaded."""
        try:
            self.encoding = tiktoken.get_encoding("gpt2")
        except (OSError, ValueError) as error:
            problem = f"GPT-2's vocabulary cannot be loaded ({type(error).__name__})"
            raise UserError(f"{problem}; use a network, or set TIKTOKEN_CACHE_DIR") from error
        ids = range(self.encoding.n_vocab)
        self.vocabulary = [self.encoding.decode_single_token_bytes(i) for i in ids]
        self.end = self.encoding.eot_token

    def array(self, text: str) -> np.ndarray:
        """Token ids, (n,) uint32; the name of a special token in `text` is ordinary text."""
        return self.encoding.encode_to_numpy(text, disallowed_special=())


class FileTokenizer(Tokenizer):
    """The tokenizer of a tokenizer.json, as Hugging Face's models have, through `tokenizers`.

    No special token is added, and the names of special tokens are ordinary text. A SentencePiece
    tokenizer puts a space before a text, which is counted as one of its bytes.
    """

    unit = "token"
    whole = True

    def __init__(self, path: Path, end: int | None = None) -> None:
        """UserError if the bytes of its tokens cannot be told."""
        try:
            from tokenizers import Tokenizer as Library

            self.library = Library.from_file(str(path))
        except Exception as error:  # the library has no class of its own for it
            problem = f"{path} cannot be read as a tokenizer ({error!s:.160})"
            raise UserError(f"{problem}; this needs tokenizers (pip) and a whole file") from error
        self.library.encode_special_tokens, self.end = True, end
        about, added = json.loads(self.library.to_str()), self.library.get_added_tokens_decoder()
        steps = json.dumps([about["pre_tokenizer"], about["decoder"]])
        kind, byte_level = about["model"]["type"], "ByteLevel" in steps
        known = kind == "BPE" and (byte_level or about["model"]["byte_fallback"])
        inexact = "whose tokens are no exact text: take the corpus that its model was trained on"
        require(known, f"{path} is a {kind} without bytes, {inexact}")
        spell = spelled if byte_level else pieced
        found = {n: pieced(token.content) for n, token in added.items()}
        names = self.library.get_vocab().items()
        found |= {n: spell(token) for token, n in names if n not in found}
        self.vocabulary = [found.get(n, b"") for n in range(max(found) + 1)]

    def array(self, text: str) -> np.ndarray:
        """Token ids, (n,) uint32."""
        text.encode("utf-8")  # refuses what is no Unicode
        ids = self.library.encode(text, add_special_tokens=False).ids
        return np.array(ids, dtype=np.uint32)

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of the tokens; one that a model has beyond the vocabulary has none."""
        return super().decode_bytes(i for i in ids if i < len(self.vocabulary))


def spelled(token: str) -> bytes:
    """The bytes of a token of a byte-level tokenizer."""
    return bytes(map(BYTE_SIGNS.index, token))


def signs_of(token: bytes) -> str:
    """The name of a token in a byte-level tokenizer: a sign for each byte."""
    return "".join(BYTE_SIGNS[value] for value in token)


def pieced(token: str) -> bytes:
    """The bytes of a SentencePiece token: U+2581 is a space, <0x0A> is a byte."""
    value = re.fullmatch("<0x([0-9A-F]{2})>", token)
    return bytes.fromhex(value[1]) if value else token.replace("\u2581", " ").encode("utf-8")


TOKENIZERS = {"bytes": ByteTokenizer, "char": CharTokenizer, "gpt2": GPT2Tokenizer}


def tokenizer_of(meta: Mapping, folder: Path = HERE) -> Tokenizer:
    """The tokenizer that a meta.json in `folder` describes; UserError if its file is another."""
    kind = meta["tokenizer"]
    if kind == "file":
        path = folder / "tokenizer.json"
        same = path.is_file() and sha256(path) == meta.get("tokenizer_sha256")
        require(same, f"{path} is missing or not the file that this corpus was made with")
        return FileTokenizer(path, meta.get("end_token"))
    return CharTokenizer(meta["characters"]) if kind == "char" else TOKENIZERS[kind]()


# ---- reading


@dataclass(frozen=True, eq=False)
class Corpus:
    """A corpus on disk: its tokens, memory maps (n,), and the starts of its documents, (m,).

    A split in shards is a `Shards`.
    """

    name: str
    folder: Path
    meta: dict
    train: "np.ndarray | Shards"
    val: "np.ndarray | Shards"
    train_starts: np.ndarray
    val_starts: np.ndarray

    @property
    def vocab_size(self) -> int:
        """The number of different tokens."""
        return self.meta["vocab_size"]

    def fits(self, size: int) -> bool:
        """Whether a model of `size` tokens reads it; tokenizer files may have fewer than it has."""
        padded = self.meta["tokenizer"] == "file" and self.vocab_size < size
        return padded or self.vocab_size == size

    @property
    def unit(self) -> str:
        """What a token is: "byte", "char" or "token"."""
        return self.meta["unit"]

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of this corpus; UserError if GPT-2's vocabulary cannot be loaded."""
        return tokenizer_of(self.meta, self.folder)

    def split_sha256(self, split: str) -> str:
        """SHA-256 of the token file of `split` ("train" or "val"), as it was made."""
        return self.meta["splits"][split]["sha256"]

    def verify(self, *splits: str) -> None:
        """UserError unless the token files of these splits, by default both, have their SHA-256."""
        for split in splits or SPLITS:
            same = sha256(*token_files(self.folder, split)) == self.split_sha256(split)
            problem = "does not have the SHA-256 that meta.json gives"
            check(same, named_split(self.folder, split), problem)


def load(name: str, root: Path = HERE) -> Corpus:
    """The corpus `root/name`, checked; UserError says how to make it. Those in OFFLINE are made.

    A folder that nanoGPT made gets its meta.json.
    """
    folder = Path(root) / name
    require(NAME.fullmatch(name), absence(name, Path(root)))
    names = {path.name for path in folder.glob("*")}
    if "meta.json" not in names:
        lost = [s for s in SPLITS for path in token_files(folder, s) if not path.is_file()]
        known = name in OFFLINE or "train_starts.npy" in names
        one = f"{folder} has no {''.join(lost)}.bin, nor {''.join(lost)}_000.bin: copy it there too"
        require(known or len(lost) != 1, one)
        if not lost and "train_starts.npy" not in names:
            adopt(folder)  # nanoGPT made it; a prepare.py of ours that was cut off leaves starts
        else:
            require(name in OFFLINE, absence(name, Path(root)))
            importlib.import_module(f"data.{OFFLINE[name]}.prepare").prepare(folder)
    meta = read_meta(folder / "meta.json")
    train, train_starts = read_split(folder, "train", meta)
    val, val_starts = read_split(folder, "val", meta)
    return Corpus(name, folder, meta, train, val, train_starts, val_starts)


def commands() -> dict[str, str]:
    """What a user types to make each corpus that a prepare.py of the project makes, by its name."""
    others = ("text", "tasks", "needles", "wikipedia")  # these take arguments
    names = {path.parent.name for path in HERE.glob("*/prepare.py")}.difference(others)
    simple = {name: f"python data/{name}/prepare.py" for name in names}
    simple |= {name: f"python data/tasks/prepare.py {name}" for name in TASKS}
    for name in WIKIPEDIA:
        simple[name] = f"python data/wikipedia/prepare.py {name}"
        simple[f"{name}_test"] = f"{simple[name]} --test"
    simple["wikitext103_gpt2"] = "python data/wikipedia/prepare.py wikitext103 --tokenizer=gpt2"
    return simple | {"books_gpt2": "python data/books/prepare.py --tokenizer=gpt2"}


def command(name: str) -> str:
    """What a user types to make the corpus `name`."""
    own = f"python data/text/prepare.py --name={name} PATH... --tokenizer=gpt2 (or bytes, or char)"
    needles = f"python data/needles/prepare.py --corpus=CORPUS --kind=KIND --name={name}"
    return commands().get(name, needles if name.startswith("needles_") else own)


def absence(name: str, root: Path) -> str:
    """The sentence for a corpus that is not there."""
    if name in commands() or name.startswith("needles_"):
        return f"the corpus {name} has not been made yet: {command(name)}"
    known = sorted({*commands(), *(path.parent.name for path in root.glob("*/meta.json"))})
    return f"there is no corpus {name!r}, but {', '.join(known)}; make your own: {command('NAME')}"


def remedy(path: Path) -> str:
    """What to do about a damaged file of a corpus."""
    if "*" in path.name:
        return "copy all its shards again, and delete meta.json"
    anew = f"make the corpus again: {command(path.parent.name)}"
    return f"{anew}; or, if nanoGPT made it, copy its meta.pkl too and delete meta.json"


def check(good: object, path: Path, problem: str) -> None:
    """UserError that names a file of a corpus, its problem and what to do, unless it is good."""
    require(good, f"{path} {problem}; {remedy(path)}")


def read_meta(path: Path) -> dict:
    """meta.json; UserError if it lacks something that reading needs."""
    meta = read_json(path, META, remedy(path))
    kind, size = meta["tokenizer"], meta["vocab_size"]
    if kind == "file":
        return meta
    check(kind in TOKENIZERS, path, f"names the tokenizer {kind!r}, which is unknown")
    right = VOCABULARIES.get(kind, len(meta.get("characters") or ""))
    check(size == right, path, f"has a vocab_size of {size!r:.30}, not the {right:,} of {kind}")
    return meta


def token_files(folder: Path, split: str) -> list[Path]:
    """SPLIT.bin, or the shards of a split, SPLIT_000.bin and so on, in the order of their numbers.

    UserError if a number is missing or there twice, or if SPLIT.bin is there too.
    """
    numbers = {p: p.stem[len(split) + 1 :] for p in folder.glob(f"{split}_*.bin")}
    shards = sorted((p for p in numbers if numbers[p].isdecimal()), key=lambda p: int(numbers[p]))
    whole, found = folder / f"{split}.bin", [int(numbers[path]) for path in shards]
    if not shards:
        return [whole]
    both = f"{folder} has {whole.name} and {shards[0].name}: which of them is the {split} split?"
    require(not whole.exists(), f"{both} Move the others to another folder")
    steady = found == [*range(found[0], found[0] + len(found))]
    named = f"{shards[0].name} to {shards[-1].name}"
    require(steady, f"of the shards {named} in {folder} one is missing, or its number twice there")
    return shards


def named_split(folder: Path, split: str) -> Path:
    """What messages call the token files of a split."""
    files = token_files(folder, split)
    return files[0] if len(files) == 1 else folder / f"{split}_*.bin"


class Shards:
    """Token files, one after the other, read as one array (n,): by a slice or by places."""

    def __init__(self, parts: Sequence[np.ndarray]) -> None:
        self.parts, self.dtype = parts, parts[0].dtype
        self.starts = np.cumsum([0, *map(len, parts)])
        self.shape = (int(self.starts[-1]),)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, places: slice | int | np.ndarray) -> np.ndarray:
        of_slice = isinstance(places, slice)
        places = np.arange(*places.indices(len(self))) if of_slice else np.asarray(places)
        places = np.where(places < 0, places + len(self), places)
        owners = np.searchsorted(self.starts, places, side="right") - 1
        found = np.empty(places.shape, self.dtype)
        for owner in np.unique(owners):
            here = owners == owner
            found[here] = self.parts[owner][places[here] - self.starts[owner]]
        return found


def read_split(folder: Path, split: str, meta: Mapping) -> tuple[np.ndarray, np.ndarray]:
    """The tokens of a split, (n,), and the starts of its documents, (m,).

    UserError unless they are as many as meta.json says.
    """
    path = named_split(folder, split)
    tokens, stated = map_split(folder, split, meta["vocab_size"]), meta["splits"][split]
    found = f"{len(tokens):,} tokens of {tokens.dtype.name}"
    given = f"{stated['tokens']:,} tokens of {stated['dtype']}"
    check(found == given, path, f"has {found}, not {given} as meta.json says")
    starts, count = read_starts(path, meta, tokens), stated["documents"]
    check(len(starts) == count, path, f"has {len(starts):,} documents, not {count:,}")
    return tokens, starts


def map_split(folder: Path, split: str, vocab_size: int) -> np.ndarray | Shards:
    """The tokens of a split, (n,), from one file or from shards; for errors see `map_tokens`."""
    parts = [map_tokens(path, vocab_size) for path in token_files(folder, split)]
    return parts[0] if len(parts) == 1 else Shards(parts)


def map_tokens(path: Path, vocab_size: int) -> np.ndarray:
    """The tokens of a file, (n,), which stay on the disk until they are read.

    UserError if it has none, or one outside the vocabulary.
    """
    size, dtype = path.stat().st_size if path.is_file() else 0, token_dtype(vocab_size)
    check(size > 0 and size % dtype.itemsize == 0, path, f"has {size:,} bytes: no whole tokens")
    tokens = np.asarray(np.memmap(path, dtype=dtype, mode="r"))
    top = tokens.max()
    check(top < vocab_size, path, f"holds token {top}, outside its vocabulary of {vocab_size:,}")
    return tokens


def read_starts(path: Path, meta: Mapping, tokens: np.ndarray) -> np.ndarray:
    """(documents,) int64: the first token of each document of a token file, ascending from 0."""
    if meta["rule"] == NANOGPT:
        return find_starts(tokens, meta)
    path = path.with_name(f"{path.stem}_starts.npy")
    try:
        starts = np.load(path, allow_pickle=False)[:].astype(np.int64)
    except (OSError, ValueError, EOFError, TypeError, LookupError):
        raise UserError(f"{path} is missing or not a NumPy array; {remedy(path)}") from None
    ends = np.append(starts, len(tokens))  # so that the last start is checked too
    ascends = ends[0] == 0 and (np.diff(ends) > 0).all()
    check(ascends, path, "does not ascend from 0 within its token file")
    return starts


# ---- folders that nanoGPT made


def adopt(folder: Path) -> None:
    """Write meta.json for a folder that nanoGPT made. Its own files stay as they are.

    The tokens are characters if there is a meta.pkl, else GPT-2's. UserError if they are others.
    """
    pickled = folder / "meta.pkl"
    extra = {"characters": read_characters(pickled)} if pickled.is_file() else {}
    about = dict(tokenizer="char" if extra else "gpt2", source="files of nanoGPT's", rule=NANOGPT)
    write_corpus(folder, {}, **about, **extra)


def find_starts(tokens: np.ndarray, meta: Mapping) -> np.ndarray:
    """(documents,) int64: token 0, and each that follows an end token of GPT-2's."""
    starts = [np.zeros(1, dtype=np.int64)]
    if meta["tokenizer"] == "gpt2":
        end = meta["vocab_size"] - 1
        starts += [first + 1 + np.flatnonzero(part == end) for first, part in parts_of(tokens)]
    found = np.concatenate(starts)
    return found[found < len(tokens)]


def parts_of(tokens: np.ndarray | Shards) -> Iterator[tuple[int, np.ndarray]]:
    """Pieces of tokens and the place of their first, so that a large file needs little memory."""
    for first in range(0, len(tokens), 2**24):
        yield first, tokens[first : first + 2**24]


# ---- writing


def write_corpus(folder: Path, splits: Splits, answers: Splits | None = None, **about: Any) -> dict:
    """Write a corpus to `folder` and return what is in its meta.json.

    Empty documents are left out. Without any split, the token files are those in `folder`.
    `about` is written to meta.json: `tokenizer` is one of TOKENIZERS (for "char" with
    `characters`), or "file": tokenizer.json of the folder `tokenizer_from`, with tokenizer_sha256.
    `source` and `rule` say where the texts come from and how they were split. For `answers`, one
    number per token of a split, see data/rows.py. The files are made in a folder of their own and
    then moved, so that none is ever half written. UserError for an empty split, for a token outside
    the vocabulary and for a folder that cannot be written.
    """
    tokenizer_from = about.pop("tokenizer_from", folder)
    encoder = tokenizer_of(about, tokenizer_from)
    lengths = encoder.token_bytes()
    meta = {"name": folder.name, "unit": encoder.unit, "vocab_size": len(lengths), **about}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".new-", dir=folder) as new:
            for split, documents in splits.items():
                write_split(Path(new, f"{split}.bin"), documents, token_dtype(len(lengths)))
            for split, numbers in (answers or {}).items():
                np.save(Path(new, f"{split}_answers.npy"), numbers.ravel().astype(np.uint16))
            if about["tokenizer"] == "file":
                shutil.copy(tokenizer_from / "tokenizer.json", new)
            made = Path(new) if splits else folder
            meta["splits"] = {name: describe_split(made, name, meta, lengths) for name in SPLITS}
            text = json.dumps(meta, indent=1, ensure_ascii=False)
            Path(new, "meta.json").write_text(text + "\n", encoding="utf-8")
            publish(Path(new), folder)
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error}") from error
    finally:
        with suppress(OSError):  # refused while anything is in it
            folder.rmdir()
    return meta


def token_dtype(vocab_size: int) -> np.dtype:
    """The smaller of uint16 and uint32 that holds every token, little-endian."""
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


def write_split(path: Path, documents: Iterable[np.ndarray], dtype: np.dtype) -> None:
    """Write SPLIT.bin and SPLIT_starts.npy."""
    starts, size = [], 0
    with path.open("wb") as file:
        for document in documents:
            if len(document):
                starts.append(size)
                size += len(document)
                file.write(document.astype(dtype))
    require(starts, f"the {path.stem} split would be empty: the corpus needs more text")
    np.save(path.with_name(f"{path.stem}_starts.npy"), np.array(starts, dtype=np.int64))


def describe_split(folder: Path, split: str, meta: Mapping, lengths: np.ndarray) -> dict:
    """The entry in meta.json of a split, whose tokens stand for `lengths` bytes, (V,)."""
    tokens = map_split(folder, split, len(lengths))
    starts = read_starts(folder / f"{split}.bin", meta, tokens)
    n_bytes = sum(int(lengths[part].sum()) for _, part in parts_of(tokens))
    entry = {"tokens": len(tokens), "bytes": n_bytes, "documents": len(starts)}
    return entry | {"dtype": tokens.dtype.name, "sha256": sha256(*token_files(folder, split))}


def publish(new: Path, folder: Path) -> None:
    """Move a corpus from `new` to `folder`, meta.json last; the older meta.json is deleted first.

    Thus a move that is cut off leaves no corpus, never a mixture of two.
    """
    meta = folder / "meta.json"
    if meta.is_file() and meta.read_bytes() != (new / "meta.json").read_bytes():
        meta.unlink(missing_ok=True)
    for path in sorted(new.iterdir(), key=lambda path: path.name == "meta.json"):
        os.replace(path, folder / path.name)


def summary(meta: Mapping) -> str:
    """What a prepare script prints about the corpus that it made."""
    vocabulary = f"tokenizer {meta['tokenizer']}, vocabulary {meta['vocab_size']:,}"
    lines = [f"{meta['name']}: {meta['source']}; {vocabulary}"]
    for split, of in meta["splits"].items():
        sizes = f"{of['tokens']:13,} tokens {of['bytes']:13,} bytes {of['documents']:7,} documents"
        lines.append(f"  {split:5} {sizes}")
    return "\n".join(lines)


def is_validation(key: bytes) -> bool:
    """Whether the document with this `key` is held out for validation: 5 % are, always the same."""
    return int(hashlib.sha256(key).hexdigest(), 16) % 20 == 0


def validation_rule(document: str, key: str) -> str:
    """`is_validation` in words, for meta.json."""
    number = f"the SHA-256 of {key}, read as one hexadecimal number"
    return f"a {document} is validation if {number}, is a multiple of 20"


def new_parser(doc: str) -> argparse.ArgumentParser:
    """The parser of a program that makes a corpus: --help shows its docstring as it stands."""
    layout = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=doc, formatter_class=layout)
    parser.add_argument("--debug", action="store_true", help="show where an error was raised")
    return parser


# ---- training sequences


def sequences(tokens: np.ndarray, block_size: int, seed: int, first: int, count: int) -> np.ndarray:
    """The training sequences number `first` to `first + count - 1`: (count, block_size + 1) int64.

    Inputs are `[:, :-1]`, targets `[:, 1:]`. A sequence depends only on the seed and its number. An
    epoch cuts the tokens into windows, from a random offset, and reads each once in random order.
    At most one window that would fit is left out. Windows may cross documents. The next epoch has
    another offset and order, and the epochs never end. UserError if not even one window fits.
    """
    n_windows = windows_per_epoch(len(tokens), block_size)
    room = min(block_size, len(tokens) - n_windows * block_size)  # less if only one window fits
    starts = drawn_starts(n_windows, block_size, room, seed, range(first, first + count))
    return tokens[starts[:, None] + np.arange(block_size + 1)].astype(np.int64)


def windows_per_epoch(n_tokens: int, block_size: int) -> int:
    """How many windows an epoch reads, at least one; UserError if there are too few tokens."""
    few = f"{n_tokens:,} tokens, fewer than the {block_size + 1:,} of one sequence"
    require(n_tokens > block_size, f"the training split has {few}: add text, or lower block_size")
    return max(1, n_tokens // block_size - 1)


def drawn_starts(n_windows: int, size: int, room: int, seed: int, numbers: range) -> np.ndarray:
    """(n,) int64: the first token of the windows of these numbers, of which an epoch has n_windows.

    They follow each other, `size` tokens apart, from an offset below `room`.
    """
    epochs, places = np.divmod(numbers, n_windows)
    starts = [epoch_starts(n_windows, size, room, seed, epoch) for epoch in epochs.tolist()]
    return np.array([every[n] for every, n in zip(starts, places, strict=True)], dtype=np.int64)


@lru_cache(maxsize=4)
def epoch_starts(n_windows: int, size: int, room: int, seed: int, epoch: int) -> np.ndarray:
    """(windows,) int64: the first token of each window of an epoch, in the order of reading."""
    generator = np.random.default_rng((seed, epoch))
    return generator.integers(room) + size * generator.permutation(n_windows)


def evenly(n_places: int, count: int) -> np.ndarray:
    """`count` evenly spaced integers from 0 to n_places - 1, ascending, (count,) int64, or all."""
    count = min(n_places, count)
    return (2 * np.arange(count, dtype=np.int64) + 1) * n_places // (2 * max(count, 1))
