"""A corpus of your own texts.

    python data/text/prepare.py --name=NAME PATH... [--val PATH...] [--tokenizer=bytes|gpt2|char]
    python data/text/prepare.py --name=NAME PATH... --tokenizer=FOLDER    # of a Hugging Face model

    python data/text/prepare.py --name=notes notes/
    python data/text/prepare.py --name=code src/ --glob='*.py' --tokenizer=gpt2
    python data/text/prepare.py --name=web train.jsonl --val val.jsonl --tokenizer=gpt2

PATH is a text file (one document), a folder (every .txt and .md file in it and below it, or what
--glob=PATTERN matches; the others are counted) or a .jsonl file (one document per line, in the
field "text"). Files may be packed (.xz, .gz). A document that is not UTF-8 is named and left out;
with --strict it is an error. Without --val, 5 % of the documents are held out for validation, by
the SHA-256 of their text; if that leaves nothing, the last 5 % of the tokens. Then train with
--dataset=NAME. A folder that nanoGPT made needs no preparing: copy or link it to data/NAME. FOLDER
may be a name, as HuggingFaceTB/SmolLM-135M; its tokenizer.json is copied to data/NAME.
"""

import gzip
import hashlib
import itertools
import json
import lzma
import re
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO

import numpy as np
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from configurable import UserError, read_json, run_program, sha256  # noqa: E402
from data import (  # noqa: E402
    COMMANDS,
    HERE,
    NAME,
    TOKENIZERS,
    Tokenizer,
    new_parser,
    tokenizer_of,
    write_corpus,
)

UNPACK = {".xz": lzma.open, ".gz": gzip.open}
BATCH = 256  # documents that are encoded together
PATTERNS = ("*.txt", "*.md")  # of the files that are read in a folder


# ---- reading documents


def find_files(paths: Iterable[str], patterns: Sequence[str] = PATTERNS) -> list[Path]:
    """The files that `paths` name, once each; it prints which kinds of files are not read.

    Of a folder those in and below it are read whose name, or path in it, matches a pattern; A and a
    are the same.
    """
    files: dict[Path, Path] = {}  # by where they really are
    others: dict[str, int] = {}  # how many are not read, by ending
    for path in map(Path, paths):
        if path.is_file():
            files[path.resolve()] = path
            continue
        if not path.is_dir():
            raise UserError(f"{path} is no file or folder")
        before = len(files)
        for file in sorted(path.rglob("*")):
            names = file.name.lower(), file.relative_to(path).as_posix().lower()
            if not file.is_file():
                continue
            if any(fnmatchcase(name, p.lower()) for name in names for p in patterns):
                files[file.resolve()] = file
            else:
                ending = file.suffix.lower() or "no ending"
                others[ending] = others.get(ending, 0) + 1
        if len(files) == before:
            kinds = " or ".join(patterns)
            raise UserError(f"{path} has no {kinds} files: choose others with --glob=PATTERN")
    if others:
        counts = ", ".join(f"{count:,} of {ending}" for ending, count in sorted(others.items()))
        print(f"not read: {counts} (--glob=PATTERN chooses what is read)")
    return list(files.values())


def documents(
    files: Sequence[Path], doing: str, left_out: list[str] | None = None
) -> Iterator[str]:
    """The text of every document in `files` that is not empty, with progress in bytes of files.

    The sentence of each document that is no UTF-8 text is added to `left_out`; without it, such a
    document is a UserError.
    """
    total = sum(file.stat().st_size for file in files)
    with tqdm(total=total, unit="B", unit_scale=True, desc=doing, disable=None) as bar:
        for path in files:
            before = bar.n
            try:
                with path.open("rb") as packed:
                    for text in texts(path, packed, left_out):
                        if text:
                            yield text
                        bar.update(before + packed.tell() - bar.n)
            except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
                raise UserError(f"{path} cannot be read: {error}") from error


def texts(path: Path, packed: BinaryIO, left_out: list[str] | None) -> Iterator[str]:
    """The documents of one open file, unpacked if its name ends so; what is left out is "".

    Lines of a .jsonl file are documents, other files are one.
    """
    stream = packed
    name = path
    if path.suffix in UNPACK:
        stream = UNPACK[path.suffix](packed)
        name = path.with_suffix("")
    is_lines = name.suffix == ".jsonl"
    offset = 0
    for number, raw in enumerate(stream if is_lines else [stream.read()], 1):
        try:
            text = decode(raw, path, offset)
        except UserError as error:
            if left_out is None:
                raise
            left_out.append(str(error))
            text = ""
        if is_lines:
            text = text_field(text, f"{path}, line {number},") if text.strip() else ""
        yield text
        offset += len(raw)


def decode(raw: bytes, path: Path, offset: int) -> str:
    """The text of UTF-8 bytes, which are at `offset` in `path`; UserError names a bad byte."""
    zero = raw.find(b"\0")
    if zero >= 0:
        raise UserError(
            f"{path} holds a NUL at byte {offset + zero:,}: it is no text; if it is an archive, "
            "unpack it first"
        )
    try:
        return raw.decode("utf-8-sig" if offset == 0 else "utf-8")
    except UnicodeDecodeError as error:
        place = f"byte {offset + error.start:,} (0x{raw[error.start]:02x})"
        raise UserError(f"{path} is not UTF-8 at {place}: convert it first") from None


def text_field(line: str, where: str) -> str:
    """The field "text" of a line of JSON; UserError says `where` it is missing or not text."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not JSON that can be read: {error}") from None
    if not isinstance(row, dict) or not isinstance(row.get("text"), str):
        raise UserError(f'{where} has no field "text" that holds a string')
    if re.search("[\ud800-\udfff]", row["text"]):
        raise UserError(f'{where} holds half of a surrogate pair in "text", which is no character')
    return row["text"]


# ---- encoding


def make_tokenizer(
    kind: str, files: Sequence[Path], left_out: list[str] | None
) -> tuple[Tokenizer, dict]:
    """The tokenizer of this kind, folder or name, and what `write_corpus` must know of it."""
    if kind not in TOKENIZERS:
        folder = tokenizer_folder(kind)
        about = {"tokenizer": "file", "tokenizer_sha256": sha256(folder / "tokenizer.json")}
        if (folder / "config.json").is_file():
            end = read_json(folder / "config.json").get("eos_token_id")
            about["end_token"] = end[0] if isinstance(end, list) else end
        return tokenizer_of(about, folder), {**about, "tokenizer_from": folder}
    about = {"tokenizer": kind}
    if kind == "char":
        characters: set[str] = set()
        for text in documents(files, "characters", left_out):
            characters.update(text)
        about["characters"] = "".join(sorted(characters))
    return tokenizer_of(about), about


def tokenizer_folder(source: str) -> Path:
    """The folder with the tokenizer.json of a model: `source`, or where a download of it is kept.

    UserError if there is none.
    """
    if (Path(source) / "tokenizer.json").is_file():
        return Path(source)
    kinds = f"{', '.join(TOKENIZERS)}, a folder with tokenizer.json, or a model's ORG/NAME"
    if "/" not in source or Path(source).exists():
        raise UserError(f"--tokenizer={source} has no tokenizer.json; give {kinds}")
    try:
        from transformers.utils import cached_file

        cached_file(source, "config.json")
        return Path(cached_file(source, "tokenizer.json")).parent
    except (ImportError, OSError) as error:
        raise UserError(
            f"--tokenizer={source} cannot be had ({str(error).splitlines()[0]}): give {kinds}; "
            "a name needs transformers (pip) and a network"
        ) from error


def encode(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[tuple[bool, np.ndarray]]:
    """For each text: is it held out by its SHA-256, and its tokens, (n,), with an end."""

    def encode_one(text: str) -> tuple[bool, np.ndarray]:
        ids = tokenizer.array(text)
        if tokenizer.end is not None:
            ids = np.append(ids, ids.dtype.type(tokenizer.end))
        return is_validation(text.encode("utf-8")), ids

    texts = iter(texts)
    with ThreadPoolExecutor() as pool:  # tokenizers let other threads run
        while batch := list(itertools.islice(texts, BATCH)):
            yield from pool.map(encode_one, batch)


# ---- splitting


def is_validation(key: bytes) -> bool:
    """Whether the document with this `key` is held out for validation: 5 % are, always the same."""
    return int(hashlib.sha256(key).hexdigest(), 16) % 20 == 0


def validation_rule(document: str, key: str) -> str:
    """`is_validation` in words, for meta.json."""
    number = f"the SHA-256 of {key}, read as one hexadecimal number"
    return f"a {document} is validation if {number}, is a multiple of 20"


def split_tail(documents: Sequence[np.ndarray]) -> dict[str, list[np.ndarray]]:
    """The last 5 % of the tokens as "val", the others as "train"; a document may be cut in two."""
    ends = np.cumsum([len(document) for document in documents])
    cut = ends[-1] - max(1, ends[-1] // 20)
    pieces = [
        np.split(x, [max(0, cut - end + len(x))]) for x, end in zip(documents, ends, strict=True)
    ]
    return {"train": [left for left, _ in pieces], "val": [right for _, right in pieces]}


def prepare(
    name: str,
    paths: Sequence[str],
    val_paths: Sequence[str],
    tokenizer: str,
    root: Path = HERE,
    *,
    patterns: Sequence[str] = PATTERNS,
    strict: bool = False,
    overwrite: bool = False,
) -> dict:
    """Write the corpus `root/name` of the texts in `paths` and return its meta.json.

    `val_paths`, if there are any, are the validation split. It prints which files were not read
    and which documents were left out because they are no UTF-8 text; if `strict`, these are a
    UserError, as are a name that is taken, unless `overwrite`, and paths without any text.
    """
    if not NAME.fullmatch(name):
        raise UserError(f"--name={name} must be letters, digits, '_', '-' and '.', as in my_text")
    if name in (*COMMANDS, "text") or ((root / name / "train.bin").exists() and not overwrite):
        raise UserError(
            f"--name={name} is taken: choose another name, or replace your own with --overwrite"
        )
    files = find_files(paths, patterns)
    val_files = find_files(val_paths, patterns)
    for file in {file.resolve() for file in files} & {file.resolve() for file in val_files}:
        raise UserError(f"{file} is in PATH and --val: what a model has read cannot test it")
    left_out: list[str] | None = None if strict else []
    encoder, about = make_tokenizer(tokenizer, files + val_files, left_out)
    encoded = list(encode(documents(files, "encoding", left_out), encoder))
    val = [ids for _, ids in encode(documents(val_files, "encoding --val", left_out), encoder)]
    left_out = list(dict.fromkeys(left_out or []))  # char reads all twice
    if left_out:
        print(f"left out, as no UTF-8 text: {len(left_out):,} documents ({left_out[0]} ...)")
    if not encoded:
        raise UserError(f"{' '.join(paths)}: no text in it; {' '.join(left_out[:1])}")
    source = " ".join(paths)
    every = [ids for _, ids in encoded]
    held_out = [ids for is_held_out, ids in encoded if is_held_out]
    if val_paths:
        splits = {"train": every, "val": val}
        source = " ".join([*paths, "--val", *val_paths])
        rule = "validation is what --val named"
    elif 0 < len(held_out) < len(encoded):
        train = [ids for is_held_out, ids in encoded if not is_held_out]
        splits = {"train": train, "val": held_out}
        rule = validation_rule("document", "its text")
    else:
        splits = split_tail(every)
        rule = "the last 5 % of the tokens are validation"
    return write_corpus(root / name, splits, source=source, rule=rule, **about)


def main() -> None:
    """Make the corpus in data/NAME and print what it holds."""
    parser = new_parser(__doc__)
    add = parser.add_argument
    many = {"nargs": "+", "metavar": "PATH"}
    add("paths", **many, help="a text file, a folder or a .jsonl file")
    add("--name", required=True, help="the corpus is written to data/NAME")
    add("--val", **many, default=[], help="validate on these, not on 5 %% of PATH")
    add("--glob", action="append", metavar="PATTERN", help="of folders, read such files instead")
    add("--strict", action="store_true", help="end with an error at what is not UTF-8")
    add("--overwrite", action="store_true", help="replace a corpus of this name")
    kinds = ", ".join(TOKENIZERS)
    add("--tokenizer", default="bytes", help=f"{kinds}, a folder or a name (default: bytes)")
    options = parser.parse_intermixed_args()
    prepare(
        options.name,
        options.paths,
        options.val,
        options.tokenizer,
        patterns=options.glob or PATTERNS,
        strict=options.strict,
        overwrite=options.overwrite,
    )


if __name__ == "__main__":
    run_program(main)
