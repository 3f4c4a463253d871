"""Corpora: how they are written, read and dealt out as training sequences.

A corpus is a folder with train.bin and val.bin (token ids, uint16 or uint32, little-endian), train_starts.npy and
val_starts.npy (where its documents start) and meta.json (how it was made). Each folder here that has a prepare.py makes
one; `data/text/prepare.py` makes one of anybody's own texts.
"""

import contextlib
import difflib
import hashlib
import importlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import tiktoken

from configurable import UserError

HERE = Path(__file__).resolve().parent
OFFLINE = ("stdlib",)  # made when first asked for: they need neither a network nor an argument
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")
VOCABULARIES = {
    "bytes": 256,
    "gpt2": 50257,
}  # how many tokens these tokenizers have; char has its characters
META_FIELDS = {
    "tokenizer": str,
    "unit": str,
    "vocab_size": int,
    "source": str,
    "rule": str,
    "splits": dict,
}
SPLIT_FIELDS = {"tokens": int, "bytes": int, "documents": int, "dtype": str, "sha256": str}


# ---- tokenizers


class Tokenizer:
    """Text to token ids and back; `pieces` are the bytes of every token, `end` the token behind a document, if any."""

    unit: str
    pieces: Sequence[bytes]
    end: int | None = None

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
        return b"".join(self.pieces[i] for i in ids)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the tokens; broken characters become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def token_bytes(self) -> np.ndarray:
        """(V,) int64: UTF-8 bytes of text that each token stands for; the end-of-text token stands for none."""
        lengths = np.array([len(piece) for piece in self.pieces], dtype=np.int64)
        if self.end is not None:
            lengths[self.end] = 0
        return lengths


class ByteTokenizer(Tokenizer):
    """Every UTF-8 byte is a token."""

    unit = "byte"
    pieces = [bytes([value]) for value in range(256)]

    def array(self, text: str) -> np.ndarray:
        """The UTF-8 bytes of `text`, (n,) uint8."""
        return np.frombuffer(text.encode("utf-8"), dtype=np.uint8)


class CharTokenizer(Tokenizer):
    """Every character of a corpus is a token, numbered in the order of `characters`."""

    unit = "char"

    def __init__(self, characters: str) -> None:
        self.pieces = [character.encode("utf-8") for character in characters]
        self.unknown = len(characters)
        self.ids = np.full(
            0x110000, self.unknown, dtype=token_dtype(self.unknown + 1)
        )  # by code point
        self.ids[[ord(character) for character in characters]] = np.arange(self.unknown)

    def array(self, text: str) -> np.ndarray:
        """One id for each character, (n,) uint16 or uint32; UserError for the first that is not in the vocabulary."""
        ids = self.ids[np.frombuffer(text.encode("utf-32-le"), dtype="<u4")]
        if (ids == self.unknown).any():
            place = int((ids == self.unknown).argmax())
            raise UserError(
                f"character {text[place]!r} at place {place} of the text is not among the {self.unknown} characters of "
                "this corpus: leave it out, or make a corpus whose text has it"
            )
        return ids


class GPT2Tokenizer(Tokenizer):
    """GPT-2's byte pair encoding, through tiktoken."""

    unit = "token"

    def __init__(self) -> None:
        self.encoding = gpt2_encoding()
        self.pieces = [
            self.encoding.decode_single_token_bytes(i) for i in range(self.encoding.n_vocab)
        ]
        self.end = self.encoding.eot_token

    def array(self, text: str) -> np.ndarray:
        """Token ids, (n,) uint32; the name of a special token in `text` is ordinary text."""
        return self.encoding.encode_to_numpy(text, disallowed_special=())


def gpt2_encoding() -> tiktoken.Encoding:
    """GPT-2's encoding; UserError where its vocabulary is neither cached nor to be had."""
    try:
        return tiktoken.get_encoding("gpt2")
    except (OSError, ValueError) as error:
        raise UserError(
            f"GPT-2's vocabulary could not be loaded ({type(error).__name__}): tiktoken downloads it once: connect to "
            "a network, or set TIKTOKEN_CACHE_DIR to a folder where tiktoken has cached it, or use the tokenizer bytes"
        ) from error


TOKENIZERS = {"bytes": ByteTokenizer, "char": CharTokenizer, "gpt2": GPT2Tokenizer}


def tokenizer_of(meta: Mapping) -> Tokenizer:
    """The tokenizer that a meta.json describes."""
    arguments = (meta["characters"],) if meta["tokenizer"] == "char" else ()
    return TOKENIZERS[meta["tokenizer"]](*arguments)


# ---- reading


@dataclass(frozen=True, eq=False)
class Corpus:
    """A corpus on disk: `train` and `val` are read-only memory maps, (n,); `*_starts` where their documents start."""

    name: str
    folder: Path
    meta: dict
    train: np.memmap
    val: np.memmap
    train_starts: np.ndarray
    val_starts: np.ndarray

    @property
    def vocab_size(self) -> int:
        """How many different tokens there can be."""
        return self.meta["vocab_size"]

    @property
    def unit(self) -> str:
        """What a token is: "byte", "char" or "token"."""
        return self.meta["unit"]

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer this corpus was made with; UserError where GPT-2's vocabulary cannot be loaded."""
        return tokenizer_of(self.meta)

    def token_bytes(self) -> np.ndarray:
        """(V,) int64: UTF-8 bytes of text that each token stands for."""
        return self.tokenizer.token_bytes()

    def split_sha256(self, split: str) -> str:
        """SHA-256 of the token file of `split` ("train" or "val"), as it was made."""
        return self.meta["splits"][split]["sha256"]

    def verify(self, *splits: str) -> None:
        """Read the token files of these splits (by default both) and hold them against their SHA-256; UserError if damaged."""
        for split in splits or ("train", "val"):
            path = self.folder / f"{split}.bin"
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != self.split_sha256(split):
                    raise damaged(path, "does not have the SHA-256 that meta.json gives")


def load(name: str, root: Path = HERE) -> Corpus:
    """The corpus `root/name`, checked; one of OFFLINE is made first. UserError with the command that would make it."""
    folder = Path(root) / name
    if not NAME.fullmatch(name) or not (folder / "meta.json").is_file():
        if name not in OFFLINE:
            raise UserError(absence(name, Path(root)))
        importlib.import_module(f"data.{name}.prepare").prepare(folder)
    meta = read_meta(folder / "meta.json")
    train, val = (read_tokens(folder / f"{split}.bin", meta) for split in ("train", "val"))
    train_starts, val_starts = (
        read_starts(folder / f"{split}_starts.npy", meta) for split in ("train", "val")
    )
    return Corpus(name, folder, meta, train, val, train_starts, val_starts)


def built_in() -> list[str]:
    """Names of the corpora that come with a prepare.py of their own."""
    return sorted(
        path.parent.name for path in HERE.glob("*/prepare.py") if path.parent.name != "text"
    )


def command(name: str) -> str:
    """What a user types to make the corpus `name`."""
    if name in built_in():
        return f"python data/{name}/prepare.py"
    return f"python data/text/prepare.py --name={name} PATH... --tokenizer=gpt2 (or bytes, or char)"


def absence(name: str, root: Path) -> str:
    """The sentence for a corpus that is not there."""
    if name in built_in():
        return f"the corpus {name} has not been made yet: {command(name)}"
    known = sorted({*built_in(), *(path.parent.name for path in root.glob("*/meta.json"))})
    near = difflib.get_close_matches(name, known, 1)
    others = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)};"
    return (
        f"there is no corpus {name!r}: {others} one of your own texts is made by {command('NAME')}"
    )


def damaged(path: Path, what: str) -> UserError:
    """The error for a file of a corpus that is not as it was made."""
    return UserError(f"{path} {what}; make the corpus anew: {command(path.parent.name)}")


def read_meta(path: Path) -> dict:
    """meta.json with everything in it that reading relies on."""
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        raise damaged(path, "is not readable JSON") from None
    check_fields(path, meta, META_FIELDS)
    if meta["tokenizer"] not in TOKENIZERS:
        raise damaged(
            path, f"names the tokenizer {meta['tokenizer']!r}, not one of {', '.join(TOKENIZERS)}"
        )
    if meta["tokenizer"] == "char":
        check_fields(path, meta, {"characters": str})
    size = VOCABULARIES.get(meta["tokenizer"]) or len(meta["characters"])
    if meta["vocab_size"] != size:
        raise damaged(
            path,
            f"has a vocab_size of {meta['vocab_size']!r:.30}, not the {size:,} tokens of {meta['tokenizer']}",
        )
    for split in ("train", "val"):
        check_fields(path, meta["splits"].get(split), SPLIT_FIELDS)
    return meta


def check_fields(path: Path, fields: object, kinds: Mapping[str, type]) -> None:
    """UserError unless `fields` is a dict with a value of the right type for each of `kinds`."""
    for key, kind in kinds.items():
        if not isinstance(fields, dict) or not isinstance(fields.get(key), kind):
            raise damaged(path, f"lacks a proper {key!r}")


def read_tokens(path: Path, meta: Mapping) -> np.memmap:
    """The token file, (n,), if its size and its largest token are what meta.json says."""
    split, vocab_size = meta["splits"][path.stem], meta["vocab_size"]
    if split["dtype"] not in ("uint16", "uint32"):
        raise damaged(
            path, f"has the dtype {split['dtype']!r} in meta.json, neither uint16 nor uint32"
        )
    dtype = np.dtype(split["dtype"]).newbyteorder("<")
    size = path.stat().st_size if path.is_file() else 0
    if size == 0 or size != split["tokens"] * dtype.itemsize:
        raise damaged(
            path,
            f"has {size:,} bytes, not {split['tokens']:,} tokens of {dtype.itemsize} as meta.json says",
        )
    tokens = np.memmap(path, dtype=dtype, mode="r")
    if int(tokens.max()) >= vocab_size:
        raise damaged(path, f"holds token {tokens.max()}, outside its vocabulary of {vocab_size:,}")
    return tokens


def read_starts(path: Path, meta: Mapping) -> np.ndarray:
    """(documents,) int64: the first token of each document, ascending from 0."""
    split = meta["splits"][path.stem.removesuffix("_starts")]
    try:
        starts = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        raise damaged(path, "is missing or not a NumPy array") from None
    if (
        not isinstance(starts, np.ndarray)
        or starts.shape != (split["documents"],)
        or starts.dtype != np.int64
    ):
        raise damaged(path, f"is not a list of {split['documents']:,} document starts")
    if (
        not starts.size
        or starts[0] != 0
        or starts[-1] >= split["tokens"]
        or (np.diff(starts) <= 0).any()
    ):
        raise damaged(path, "does not ascend from 0 within its token file")
    return starts


# ---- writing


def write_corpus(
    folder: Path,
    splits: Mapping[str, Iterable[np.ndarray]],
    *,
    tokenizer: str,
    vocab_size: int,
    unit: str,
    source: str,
    rule: str,
    **extra: object,
) -> dict:
    """Write a corpus and return its meta.json; `splits` gives the documents of "train" and "val", each (n,) integers.

    Empty documents are left out; an empty split is a UserError. `rule` says how the splits were drawn, `extra` goes
    into meta.json. The files are made aside and moved into `folder`, so that none is ever half written.
    """
    folder = Path(folder)
    about = dict(tokenizer=tokenizer, unit=unit, vocab_size=vocab_size, source=source, rule=rule)
    meta = {"name": folder.name, **about, **extra}
    lengths = tokenizer_of(meta).token_bytes()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".new-", dir=folder) as new:
            meta["splits"] = {
                split: write_split(Path(new) / f"{split}.bin", documents, vocab_size, lengths)
                for split, documents in splits.items()
            }
            text = json.dumps(meta, indent=1, ensure_ascii=False)
            (Path(new) / "meta.json").write_text(text + "\n", encoding="utf-8")
            publish(Path(new), folder)
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error}") from error
    finally:
        with contextlib.suppress(OSError):  # refused while anything is in it
            folder.rmdir()
    return meta


def token_dtype(vocab_size: int) -> np.dtype:
    """The smaller of uint16 and uint32 that holds every token, little-endian."""
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


def write_split(
    path: Path, documents: Iterable[np.ndarray], vocab_size: int, lengths: np.ndarray
) -> dict:
    """Write SPLIT.bin and SPLIT_starts.npy; return the split's entry in meta.json."""
    dtype, digest, starts, size, n_bytes = token_dtype(vocab_size), hashlib.sha256(), [], 0, 0
    with path.open("wb") as file:
        for document in documents:
            if len(document) == 0:
                continue
            starts.append(size)
            size += len(document)
            for part in np.array_split(
                document, len(document) // 2**20 + 1
            ):  # so that a long one needs little memory
                if part.min() < 0 or part.max() >= vocab_size:
                    raise ValueError(
                        f"document {len(starts)} has a token outside the vocabulary of {vocab_size}"
                    )
                tokens = part.astype(dtype).tobytes()
                file.write(tokens)
                digest.update(tokens)
                n_bytes += int(lengths[part].sum())
    if not starts:
        raise UserError(f"the {path.stem} split would be empty: the corpus needs more text")
    np.save(path.with_name(f"{path.stem}_starts.npy"), np.array(starts, dtype=np.int64))
    return dict(
        tokens=size,
        bytes=n_bytes,
        documents=len(starts),
        dtype=dtype.name,
        sha256=digest.hexdigest(),
    )


def publish(new: Path, folder: Path) -> None:
    """Move a corpus from `new` to `folder`, meta.json last; that of another corpus goes first, so the two never mix."""
    meta = folder / "meta.json"
    if meta.is_file() and meta.read_bytes() != (new / "meta.json").read_bytes():
        meta.unlink(missing_ok=True)
    for path in sorted(new.iterdir(), key=lambda path: path.name == "meta.json"):
        os.replace(path, folder / path.name)


def summary(meta: Mapping) -> str:
    """What a prepare script prints of the corpus it made."""
    lines = [
        f"{meta['name']}: {meta['source']}; tokenizer {meta['tokenizer']}, vocabulary {meta['vocab_size']:,}"
    ]
    for split, of in meta["splits"].items():
        lines.append(
            f"  {split:5} {of['tokens']:13,} tokens {of['bytes']:13,} bytes {of['documents']:7,} documents"
        )
    return "\n".join(lines)


def is_validation(key: bytes) -> bool:
    """Whether a document known by `key` is among the 5 % held out: the same answer on every machine."""
    return int(hashlib.sha256(key).hexdigest(), 16) % 20 == 0


def validation_rule(document: str, key: str) -> str:
    """`is_validation` in words, for meta.json."""
    return f"a {document} is validation if the SHA-256 of {key}, read as one hexadecimal number, is a multiple of 20"


# ---- dealing out


def sequences(tokens: np.ndarray, block_size: int, seed: int, first: int, count: int) -> np.ndarray:
    """Sequences number `first` to `first + count - 1` of the endless training stream: (count, block_size + 1) int64.

    Inputs are `[:, :-1]`, targets `[:, 1:]`. A sequence is a pure function of (seed, its number), whatever slices the
    stream is read in. Each epoch reads every window of a grid once, in an order and from an offset of its own; at most
    one window that would fit is left out. Windows may cross documents. UserError if not even one window fits.
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
    """Windows of `block_size` inputs and one more target that fit from any offset below `block_size`; at least one."""
    if n_tokens < block_size + 1:
        raise UserError(
            f"the training split has {n_tokens:,} tokens, fewer than the {block_size + 1:,} of one sequence: "
            "take more text or a smaller block_size"
        )
    return max(1, n_tokens // block_size - 1)


@lru_cache(maxsize=4)
def epoch_starts(n_tokens: int, block_size: int, seed: int, epoch: int) -> np.ndarray:
    """(windows,) int64: the first token of each window of an epoch, in the order they are read."""
    n_windows = windows_per_epoch(n_tokens, block_size)
    generator = np.random.default_rng((seed, epoch))
    offset = generator.integers(
        min(block_size, n_tokens - n_windows * block_size)
    )  # less where only one window fits
    starts = offset + block_size * generator.permutation(n_windows)
    starts.setflags(write=False)
    return starts


def evenly(n_places: int, count: int) -> np.ndarray:
    """`count` evenly spaced integers of [0, n_places), ascending, (count,) int64; all of them if there are fewer."""
    count = min(n_places, count)
    return (2 * np.arange(count, dtype=np.int64) + 1) * n_places // (2 * max(count, 1))
