"""A corpus of your own texts.

    python data/text/prepare.py --name=NAME PATH... [--val PATH...] --tokenizer=gpt2|bytes|char

PATH is a text file (one document), a folder (every .txt file in it and below it) or a .jsonl file
(one document per line, in the field "text"). Files may be packed (.xz, .gz). The text is UTF-8.
Without --val, 5 % of the documents are held out for validation, by the SHA-256 of their text; if
that leaves nothing, the last 5 % of the tokens. Then train with --dataset=NAME.
"""

import argparse
import gzip
import json
import lzma
import re
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import numpy as np
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from configurable import UserError, require, run_program  # noqa: E402
from data import (  # noqa: E402
    HERE,
    NAME,
    TOKENIZERS,
    Tokenizer,
    built_in,
    is_validation,
    summary,
    token_dtype,
    tokenizer_of,
    validation_rule,
    write_corpus,
)

UNPACK = {".xz": lzma.open, ".gz": gzip.open}
BATCH = 2**23  # characters that are encoded together
PIECE = 2**19  # characters that one thread encodes at a time
CUT = re.compile(r"\S(?=[ \n])")  # GPT-2's pattern never joins these, so a cut changes no token
TAIL_RULE = "the last 5 % of the tokens are validation"


# ---- reading documents


def find_files(paths: Iterable[str]) -> list[Path]:
    """The files that `paths` name, once each; of a folder all .txt files in and below it."""
    files: list[Path] = []
    for path in map(Path, paths):
        found = [file for file in sorted([path, *path.rglob("*.txt")]) if file.is_file()]
        kind = "a folder without .txt files" if path.is_dir() else "no file or folder"
        require(found, f"{path} is {kind}")
        files += found
    return list({file.resolve(): file for file in files}.values())


def documents(files: Sequence[Path], doing: str) -> Iterator[str]:
    """The text of every document in `files` that is not empty, with progress in bytes of files."""
    total = sum(file.stat().st_size for file in files)
    with tqdm(total=total, unit="B", unit_scale=True, desc=doing, disable=None) as bar:
        for path in files:
            before = bar.n
            try:
                with path.open("rb") as packed:
                    for text in texts(path, packed):
                        if text:
                            yield text
                        bar.update(before + packed.tell() - bar.n)
            except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
                raise UserError(f"{path} cannot be read: {error}") from error


def texts(path: Path, packed: BinaryIO) -> Iterator[str]:
    """The documents of one open file, unpacked if its name ends so."""
    stream, name = packed, path
    if path.suffix in UNPACK:
        stream, name = UNPACK[path.suffix](packed), path.with_suffix("")
    if name.suffix != ".jsonl":
        yield decode(stream.read(), path, 0)
        return
    offset = 0
    for number, line in enumerate(stream, 1):
        if line.strip():
            yield text_field(decode(line, path, offset), f"{path}, line {number},")
        offset += len(line)


def decode(raw: bytes, path: Path, offset: int) -> str:
    """The text of UTF-8 bytes, which are at `offset` in `path`; UserError names a bad byte."""
    advice = "it is no text; if it is an archive, unpack it first"
    require(b"\0" not in raw, f"{path} holds NUL bytes: {advice}")
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
    text = row.get("text") if isinstance(row, dict) else None
    require(isinstance(text, str), f'{where} has no field "text" that holds a string')
    half = re.search("[\ud800-\udfff]", text)
    require(not half, f'{where} holds half of a surrogate pair in "text", which is no character')
    return text


# ---- encoding


def make_tokenizer(kind: str, files: Sequence[Path]) -> tuple[Tokenizer, dict]:
    """The tokenizer of this kind, and for "char" what meta.json must hold: all characters."""
    extra = {}
    if kind == "char":
        found: set[str] = set()
        for text in documents(files, "characters"):
            found.update(text)
        extra = {"characters": "".join(sorted(found))}
    return tokenizer_of({"tokenizer": kind, **extra}), extra


def batches(texts: Iterable[str], size: int = BATCH) -> Iterator[list[str]]:
    """The texts in groups of about `size` characters, so that many short ones share the threads."""
    batch, held = [], 0
    for text in texts:
        batch.append(text)
        held += len(text)
        if held >= size:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch


def cut_text(text: str, size: int = PIECE) -> Iterator[str]:
    """`text` in parts of `size` characters or a little more, cut where no token can cross."""
    start = 0
    while start < len(text):
        cut = CUT.search(text, start + size - 1)
        end = cut.end() if cut else len(text)
        yield text[start:end]
        start = end


def encode(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[tuple[bool, np.ndarray]]:
    """For each text: is it held out by its SHA-256, and its tokens, (n,), with an end."""
    dtype = token_dtype(len(tokenizer.vocabulary))
    end = [] if tokenizer.end is None else [np.array([tokenizer.end])]
    with ThreadPoolExecutor() as pool:
        for batch in batches(texts):
            jobs = [[pool.submit(tokenizer.array, p) for p in cut_text(text)] for text in batch]
            for text, job in zip(batch, jobs, strict=True):
                parts = [part.result() for part in job] + end
                ids = np.concatenate(parts, dtype=dtype, casting="unsafe")
                yield is_validation(text.encode("utf-8")), ids


# ---- splitting


def split_documents(encoded: Sequence[tuple[bool, np.ndarray]]) -> tuple[dict, str]:
    """The documents of "train" and "val", and the rule: the tail is "val" if no document is."""
    train = [ids for held_out, ids in encoded if not held_out]
    val = [ids for held_out, ids in encoded if held_out]
    if train and val:
        return {"train": train, "val": val}, validation_rule("document", "its text")
    return split_tail([ids for _, ids in encoded]), TAIL_RULE


def split_tail(documents: Sequence[np.ndarray]) -> dict[str, list[np.ndarray]]:
    """The last 5 % of the tokens as "val", the others as "train"; a document may be cut in two."""
    total = sum(map(len, documents))
    left = total - max(1, total // 20)
    splits: dict[str, list[np.ndarray]] = {"train": [], "val": []}
    for document in documents:
        splits["train"].append(document[:left])
        splits["val"].append(document[left:])
        left = max(0, left - len(document))
    return splits


def prepare(
    name: str, paths: Sequence[str], val_paths: Sequence[str], tokenizer: str, root: Path = HERE
) -> dict:
    """Write the corpus `root/name` of the texts in `paths` and return its meta.json.

    `val_paths`, if there are any, are the validation split. UserError for what is no text.
    """
    check_name(name)
    train_files, val_files = find_files(paths), find_files(val_paths)
    both = {file.resolve() for file in train_files} & {file.resolve() for file in val_files}
    if both:
        raise UserError(f"{min(both)} is in PATH and --val: what a model has read cannot test it")
    encoder, extra = make_tokenizer(tokenizer, train_files + val_files)
    encoded = list(encode(documents(train_files, "encoding"), encoder))
    require(encoded, f"{' '.join(paths)}: no text in it")
    if val_paths:
        held_out = [ids for _, ids in encode(documents(val_files, "encoding --val"), encoder)]
        splits = {"train": [ids for _, ids in encoded], "val": held_out}
        source, rule = " ".join([*paths, "--val", *val_paths]), "validation is what --val named"
    else:
        splits, rule = split_documents(encoded)
        source = " ".join(paths)
    about = dict(tokenizer=tokenizer, source=source, rule=rule, **extra)
    return write_corpus(root / name, splits, **about)


def check_name(name: str) -> None:
    """UserError unless `name` is a plain folder name that no corpus of this project has."""
    form = "a folder name of letters, digits, '_', '-' and '.', such as my_text"
    require(NAME.fullmatch(name), f"--name={name} must be {form}")
    taken = name in {*built_in(), "text"}
    require(not taken, f"--name={name} belongs to the project: choose another name")


def main() -> None:
    """Make the corpus in data/NAME and print what it holds."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    add, many = parser.add_argument, {"nargs": "+", "metavar": "PATH"}
    add("paths", **many, help="a text file, a folder or a .jsonl file")
    add("--name", required=True, help="the corpus is written to data/NAME")
    add("--val", **many, default=[], help="validate on these, not on 5 %% of PATH")
    add("--tokenizer", required=True, choices=sorted(TOKENIZERS), help="what a token is")
    add("--debug", action="store_true", help="show where an error was raised")
    given = parser.parse_intermixed_args()
    print(summary(prepare(given.name, given.paths, given.val, given.tokenizer)))


if __name__ == "__main__":
    run_program(main)
