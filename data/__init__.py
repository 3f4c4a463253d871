"""Corpora: how they are made, stored, read and cut into training sequences.

To train on your own texts, write no code: `python data/text/prepare.py --name=NAME PATH...`.
To add a corpus to the project, write data/NAME/prepare.py: a program with a function
`prepare(folder)` that passes the documents to `write_corpus` (see data/stdlib/prepare.py).
Nothing else has to be changed: after `python data/NAME/prepare.py`, train with --dataset=NAME.

A corpus is a folder with these files: train.bin and val.bin (token ids, uint16 or uint32,
little-endian), train_starts.npy and val_starts.npy (the first token of each document), meta.json
(the tokenizer, the source, the counts and the SHA-256 of the token files). A folder that nanoGPT
made (train.bin, val.bin and perhaps meta.pkl) is read as it is from data/NAME: a meta.json is put
beside its files when it is first used.
"""

import contextlib
import difflib
import hashlib
import importlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import tiktoken

from configurable import UserError, check_shape, require
from data.nanogpt import read_characters

HERE = Path(__file__).resolve().parent
OFFLINE = ("stdlib",)  # made when they are first used: they need no network and no arguments
VARIANTS = {"books_gpt2": "python data/books/prepare.py --tokenizer=gpt2"}  # no folder of their own
NANOGPT = "as nanoGPT split it"  # the rule in meta.json of a folder that nanoGPT made
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")  # of a corpus
VOCABULARIES = {"bytes": 256, "gpt2": 50257}  # tokens of each tokenizer; char: its characters
SPLIT = {"tokens": int, "bytes": int, "documents": int, "dtype": str, "sha256": str}
META = {  # what meta.json must hold
    "tokenizer": str,
    "unit": str,
    "vocab_size": int,
    "source": str,
    "rule": str,
    "splits": {"train": SPLIT, "val": SPLIT},
}


# ---- tokenizers


class Tokenizer:
    """Turns text into token ids and back."""

    unit: str  # what a token is: "byte", "char" or "token"
    vocabulary: Sequence[bytes]  # the bytes of each token
    end: int | None = None  # the token after a document, if there is one

    def array(self, text: str) -> np.ndarray:
        """Token ids of `text`, (n,) unsigned; UserError for what the vocabulary cannot write."""
        raise NotImplementedError

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; UserError names a character that the vocabulary does not have."""
        try:
            return self.array(text).tolist()
        except UnicodeEncodeError as error:
            odd = f"U+{ord(text[error.start]):04X} at character {error.start}"
            raise UserError(f"the text holds {odd}, half of a character: is it UTF-8?") from None

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
        self.unknown = len(characters)
        self.ids = np.full(0x110000, self.unknown, token_dtype(self.unknown + 1))  # by code point
        self.ids[[ord(character) for character in characters]] = np.arange(self.unknown)

    def array(self, text: str) -> np.ndarray:
        """One id per character, (n,); UserError for the first that is not in the vocabulary."""
        ids = self.ids[np.frombuffer(text.encode("utf-32-le"), dtype="<u4")]
        unknown = np.flatnonzero(ids == self.unknown)
        if unknown.size:
            odd = f"character {text[unknown[0]]!r} at place {unknown[0]} of the text"
            known = f"the {self.unknown} characters of this corpus"
            raise UserError(f"{odd} is not among {known}: leave it out, or make another corpus")
        return ids


class GPT2Tokenizer(Tokenizer):
    """GPT-2's byte pair encoding, through tiktoken."""

    unit = "token"

    def __init__(self) -> None:
        self.encoding = gpt2_encoding()
        ids = range(self.encoding.n_vocab)
        self.vocabulary = [self.encoding.decode_single_token_bytes(i) for i in ids]
        self.end = self.encoding.eot_token

    def array(self, text: str) -> np.ndarray:
        """Token ids, (n,) uint32; the name of a special token in `text` is ordinary text."""
        return self.encoding.encode_to_numpy(text, disallowed_special=())


def gpt2_encoding() -> tiktoken.Encoding:
    """GPT-2's encoding; UserError if its vocabulary is neither here nor can be downloaded."""
    try:
        return tiktoken.get_encoding("gpt2")
    except (OSError, ValueError) as error:
        raise UserError(
            f"GPT-2's vocabulary could not be loaded ({type(error).__name__}); connect to a "
            "network (tiktoken downloads it once), set TIKTOKEN_CACHE_DIR to a folder where "
            "tiktoken has cached it, or use the tokenizer bytes"
        ) from error


TOKENIZERS = {"bytes": ByteTokenizer, "char": CharTokenizer, "gpt2": GPT2Tokenizer}


def tokenizer_of(meta: Mapping) -> Tokenizer:
    """The tokenizer that a meta.json describes."""
    if meta["tokenizer"] == "char":
        return CharTokenizer(meta["characters"])
    return TOKENIZERS[meta["tokenizer"]]()


# ---- reading


@dataclass(frozen=True, eq=False)
class Corpus:
    """A corpus on disk: its tokens, memory maps (n,), and the starts of its documents, (m,)."""

    name: str
    folder: Path
    meta: dict
    train: np.memmap
    val: np.memmap
    train_starts: np.ndarray
    val_starts: np.ndarray

    @property
    def vocab_size(self) -> int:
        """The number of different tokens."""
        return self.meta["vocab_size"]

    @property
    def unit(self) -> str:
        """What a token is: "byte", "char" or "token"."""
        return self.meta["unit"]

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of this corpus; UserError if GPT-2's vocabulary cannot be loaded."""
        return tokenizer_of(self.meta)

    def token_bytes(self) -> np.ndarray:
        """(V,) int64: the UTF-8 bytes of text that each token stands for."""
        return self.tokenizer.token_bytes()

    def split_sha256(self, split: str) -> str:
        """SHA-256 of the token file of `split` ("train" or "val"), as it was made."""
        return self.meta["splits"][split]["sha256"]

    def verify(self, *splits: str) -> None:
        """UserError unless the token files of these splits, by default both, have their SHA-256."""
        for split in splits or ("train", "val"):
            path = self.folder / f"{split}.bin"
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != self.split_sha256(split):
                raise damaged(path, "does not have the SHA-256 that meta.json gives")


def load(name: str, root: Path = HERE) -> Corpus:
    """The corpus `root/name`, checked; UserError says how to make it. Those in OFFLINE are made.

    A folder that nanoGPT made gets its meta.json.
    """
    folder = Path(root) / name
    if not NAME.fullmatch(name) or not (folder / "meta.json").is_file():
        if NAME.fullmatch(name) and is_nanogpt(folder):
            adopt(folder)
        else:
            require(name in OFFLINE, absence(name, Path(root)))
            importlib.import_module(f"data.{name}.prepare").prepare(folder)
    meta = read_meta(folder / "meta.json")
    tokens = [read_tokens(folder / f"{split}.bin", meta) for split in ("train", "val")]
    if meta["rule"] == NANOGPT:
        starts = [find_starts(split, meta) for split in tokens]
    else:
        starts = [read_starts(folder / f"{split}_starts.npy", meta) for split in ("train", "val")]
    return Corpus(name, folder, meta, *tokens, *starts)


def built_in() -> list[str]:
    """The names of the corpora that a prepare.py of the project makes."""
    names = {path.parent.name for path in HERE.glob("*/prepare.py")}
    return sorted(names - {"text"} | set(VARIANTS))


def command(name: str) -> str:
    """What a user types to make the corpus `name`."""
    if name in built_in():
        return VARIANTS.get(name, f"python data/{name}/prepare.py")
    return f"python data/text/prepare.py --name={name} PATH... --tokenizer=gpt2 (or bytes, or char)"


def absence(name: str, root: Path) -> str:
    """The sentence for a corpus that is not there."""
    if name in built_in():
        return f"the corpus {name} has not been made yet: {command(name)}"
    known = sorted({*built_in(), *(path.parent.name for path in root.glob("*/meta.json"))})
    near = difflib.get_close_matches(name, known, 1)
    others = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)};"
    own = f"one of your own texts is made by {command('NAME')}"
    return f"there is no corpus {name!r}: {others} {own}"


def remedy(path: Path) -> str:
    """What to do about a damaged file of a corpus."""
    meta = path.with_name("meta.json")
    if meta.is_file() and NANOGPT in meta.read_text(encoding="utf-8", errors="replace"):
        return f"if the files are as you want them, delete {meta}, and they are read anew"
    return f"make the corpus again: {command(path.parent.name)}"


def damaged(path: Path, what: str) -> UserError:
    """The error for a file of a corpus that is not as it was made."""
    return UserError(f"{path} {what}; {remedy(path)}")


def read_meta(path: Path) -> dict:
    """meta.json; UserError if it lacks something that reading needs."""
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        raise damaged(path, "is not readable JSON") from None
    check_shape(meta, META, str(path), remedy(path))
    kind, size = meta["tokenizer"], meta["vocab_size"]
    if kind not in TOKENIZERS:
        raise damaged(path, f"names the tokenizer {kind!r}, not one of {', '.join(TOKENIZERS)}")
    if kind == "char":
        check_shape(meta, {"characters": str}, str(path), remedy(path))
    right = VOCABULARIES.get(kind) or len(meta["characters"])
    if size != right:
        raise damaged(path, f"has a vocab_size of {size!r:.30}, not the {right:,} tokens of {kind}")
    return meta


def read_tokens(path: Path, meta: Mapping) -> np.memmap:
    """A token file, (n,); UserError unless its size and its largest token fit meta.json."""
    split, vocab_size = meta["splits"][path.stem], meta["vocab_size"]
    if split["dtype"] not in ("uint16", "uint32"):
        kind = f"the dtype {split['dtype']!r} in meta.json"
        raise damaged(path, f"has {kind}, neither uint16 nor uint32")
    dtype = np.dtype(split["dtype"]).newbyteorder("<")
    size = path.stat().st_size if path.is_file() else 0
    if size == 0 or size != split["tokens"] * dtype.itemsize:
        stated = f"{split['tokens']:,} tokens of {dtype.itemsize} as meta.json says"
        raise damaged(path, f"has {size:,} bytes, not {stated}")
    tokens = np.memmap(path, dtype=dtype, mode="r")
    if int(tokens.max()) >= vocab_size:
        raise damaged(path, f"holds token {tokens.max()}, outside its vocabulary of {vocab_size:,}")
    return tokens


def read_starts(path: Path, meta: Mapping) -> np.ndarray:
    """(documents,) int64: the first token of each document, ascending from 0."""
    split = meta["splits"][path.stem.removesuffix("_starts")]
    count = split["documents"]
    try:
        starts = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        raise damaged(path, "is missing or not a NumPy array") from None
    shape = getattr(starts, "shape", None), getattr(starts, "dtype", None)
    if shape != ((count,), np.int64):
        raise damaged(path, f"is not a list of {count:,} document starts")
    ends = np.append(starts, split["tokens"])  # so that the last start is checked too
    if ends[0] != 0 or (np.diff(ends) <= 0).any():
        raise damaged(path, "does not ascend from 0 within its token file")
    return starts


# ---- folders that nanoGPT made


def is_nanogpt(folder: Path) -> bool:
    """Whether nanoGPT made `folder`, and not a prepare.py of ours that was cut off."""
    names = {path.name for path in folder.glob("*")}
    return names >= {"train.bin", "val.bin"} and not names & {"meta.json", "train_starts.npy"}


def adopt(folder: Path) -> None:
    """Write meta.json for a folder that nanoGPT made. Its own files stay as they are.

    The tokens are characters if there is a meta.pkl, else GPT-2's. UserError if they are others.
    """
    pickled = folder / "meta.pkl"
    extra = {"characters": read_characters(pickled)} if pickled.is_file() else {}
    kind = "char" if extra else "gpt2"
    meta, lengths = describe(folder, kind, "files of nanoGPT's", NANOGPT, extra)
    with writing(folder, meta):
        paths = folder / "train.bin", folder / "val.bin"
        meta["splits"] = {path.stem: describe_split(path, meta, lengths) for path in paths}


def describe_split(path: Path, meta: Mapping, lengths: np.ndarray) -> dict:
    """The entry in meta.json of a file of uint16 tokens, which stand for `lengths` bytes, (V,)."""
    size = path.stat().st_size
    require(size > 0 and size % 2 == 0, f"{path} has {size:,} bytes: no two-byte tokens")
    tokens = np.memmap(path, dtype="<u2", mode="r")
    parts = np.array_split(tokens, len(tokens) // 2**24 + 1)
    counts = sum(np.bincount(part, minlength=2**16) for part in parts)
    outside = f"{path} holds token {tokens.max()}, outside its vocabulary of {len(lengths):,}"
    advice = "its meta.pkl is missing, or it is of another corpus"
    require(not counts[len(lengths) :].any(), f"{outside}: {advice}")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    entry = {"tokens": len(tokens), "bytes": int(counts[: len(lengths)] @ lengths)}
    documents = len(find_starts(tokens, meta))
    return entry | {"documents": documents, "dtype": "uint16", "sha256": digest}


def find_starts(tokens: np.ndarray, meta: Mapping) -> np.ndarray:
    """(documents,) int64: token 0, and each that follows an end token of GPT-2's."""
    starts = [np.zeros(1, dtype=np.int64)]
    if meta["tokenizer"] == "gpt2":
        inner, end = tokens[:-1], meta["vocab_size"] - 1
        for first in range(0, len(inner), 2**24):  # so that a large file needs little memory
            starts.append(first + 1 + np.flatnonzero(inner[first : first + 2**24] == end))
    return np.concatenate(starts)


# ---- writing


def write_corpus(
    folder: Path,
    splits: Mapping[str, Iterable[np.ndarray]],
    *,
    tokenizer: str,
    source: str,
    rule: str,
    **extra: object,
) -> dict:
    """Write a corpus to `folder` and return what is in its meta.json.

    `splits` has the documents of "train" and "val", each (n,) token ids. Empty documents are left
    out. `tokenizer` is one of TOKENIZERS, `source` and `rule` say where the texts come from and how
    they were split, `extra` is written to meta.json too (for "char": `characters`). The files are
    made in a folder of their own and then moved, so that none is ever half written. UserError for
    an empty split and for a folder that cannot be written.
    """
    meta, lengths = describe(folder, tokenizer, source, rule, extra)
    with writing(folder, meta) as new:
        meta["splits"] = {
            split: write_split(new / f"{split}.bin", documents, lengths)
            for split, documents in splits.items()
        }
    return meta


def describe(
    folder: Path, tokenizer: str, source: str, rule: str, extra: Mapping
) -> tuple[dict, np.ndarray]:
    """What meta.json says of a corpus besides its splits, and the bytes of each token, (V,)."""
    encoder = tokenizer_of({"tokenizer": tokenizer, **extra})
    meta = {"name": folder.name, "tokenizer": tokenizer, "unit": encoder.unit}
    meta |= {"vocab_size": len(encoder.vocabulary), "source": source, "rule": rule, **extra}
    return meta, encoder.token_bytes()


@contextlib.contextmanager
def writing(folder: Path, meta: Mapping) -> Iterator[Path]:
    """A folder for new files. At the end they are moved to `folder`, with `meta` as meta.json."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".new-", dir=folder) as new:
            yield Path(new)
            text = json.dumps(meta, indent=1, ensure_ascii=False)
            Path(new, "meta.json").write_text(text + "\n", encoding="utf-8")
            publish(Path(new), folder)
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error}") from error
    finally:
        with contextlib.suppress(OSError):  # refused while anything is in it
            folder.rmdir()


def token_dtype(vocab_size: int) -> np.dtype:
    """The smaller of uint16 and uint32 that holds every token, little-endian."""
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


def write_split(path: Path, documents: Iterable[np.ndarray], lengths: np.ndarray) -> dict:
    """Write SPLIT.bin and SPLIT_starts.npy, and return the entry of the split in meta.json.

    `lengths` are the bytes that each token of the vocabulary stands for, (V,).
    """
    vocab_size = len(lengths)
    dtype, digest, starts, size, n_bytes = token_dtype(vocab_size), hashlib.sha256(), [], 0, 0
    with path.open("wb") as file:
        for document in documents:
            if len(document) == 0:
                continue
            starts.append(size)
            size += len(document)
            n_parts = len(document) // 2**20 + 1  # a long document needs little memory then
            for part in np.array_split(document, n_parts):
                if part.min() < 0 or part.max() >= vocab_size:
                    odd = f"document {len(starts)} has a token outside the vocabulary"
                    raise ValueError(f"{odd} of {vocab_size}")
                tokens = part.astype(dtype).tobytes()
                file.write(tokens)
                digest.update(tokens)
                n_bytes += int(lengths[part].sum())
    require(starts, f"the {path.stem} split would be empty: the corpus needs more text")
    np.save(path.with_name(f"{path.stem}_starts.npy"), np.array(starts, dtype=np.int64))
    entry = {"tokens": size, "bytes": n_bytes, "documents": len(starts)}
    return entry | {"dtype": dtype.name, "sha256": digest.hexdigest()}


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


# ---- training sequences


def sequences(tokens: np.ndarray, block_size: int, seed: int, first: int, count: int) -> np.ndarray:
    """The training sequences number `first` to `first + count - 1`: (count, block_size + 1) int64.

    Inputs are `[:, :-1]`, targets `[:, 1:]`. A sequence depends only on the seed and its number. An
    epoch cuts the tokens into windows, from a random offset, and reads each once in random order.
    At most one window that would fit is left out. Windows may cross documents. The next epoch has
    another offset and order, and the epochs never end. UserError if not even one window fits.
    """
    n_windows = windows_per_epoch(len(tokens), block_size)
    epochs, places = np.divmod(np.arange(first, first + count), n_windows)
    starts = np.empty(count, dtype=np.int64)
    for epoch in np.unique(epochs):
        now = epochs == epoch
        starts[now] = epoch_starts(len(tokens), block_size, seed, int(epoch))[places[now]]
    windows = np.lib.stride_tricks.sliding_window_view(np.asarray(tokens), block_size + 1)
    return windows[starts].astype(np.int64)


def windows_per_epoch(n_tokens: int, block_size: int) -> int:
    """How many windows an epoch reads, at least one; UserError if there are too few tokens."""
    found = f"{n_tokens:,} tokens, fewer than the {block_size + 1:,} of one sequence"
    advice = "take more text or a smaller block_size"
    require(n_tokens > block_size, f"the training split has {found}: {advice}")
    return max(1, n_tokens // block_size - 1)


@lru_cache(maxsize=4)
def epoch_starts(n_tokens: int, block_size: int, seed: int, epoch: int) -> np.ndarray:
    """(windows,) int64: the first token of each window of an epoch, in the order of reading."""
    n_windows = windows_per_epoch(n_tokens, block_size)
    generator = np.random.default_rng((seed, epoch))
    largest = min(block_size, n_tokens - n_windows * block_size)  # less if only one window fits
    offset = generator.integers(largest)
    starts = offset + block_size * generator.permutation(n_windows)
    starts.setflags(write=False)
    return starts


def evenly(n_places: int, count: int) -> np.ndarray:
    """`count` evenly spaced integers from 0 to n_places - 1, ascending, (count,) int64, or all."""
    count = min(n_places, count)
    return (2 * np.arange(count, dtype=np.int64) + 1) * n_places // (2 * max(count, 1))
