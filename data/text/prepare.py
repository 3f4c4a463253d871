"""A corpus of your own texts.

    python data/text/prepare.py --name=NAME PATH... [--val PATH...] --tokenizer=gpt2|bytes|char
    python data/text/prepare.py --name=NAME PATH... --tokenizer=FOLDER    # of a Hugging Face model

    python data/text/prepare.py --name=notes notes/ --tokenizer=bytes
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
import json
import lzma
import re
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO

import numpy as np
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from configurable import UserError, read_json, require, run_program, sha256  # noqa: E402
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
BATCH = 2**23  # characters that are encoded together
PIECE = 2**19  # characters that one thread encodes at a time
CUT = re.compile(r"\S(?=[ \n])")  # GPT-2's pattern never joins these, so a cut changes no token
PATTERNS = ("*.txt", "*.md")  # of the files that are read in a folder
FEW = 3  # names that are shown of many
TAIL_RULE = "the last 5 % of the tokens are validation"


# ---- reading documents


def find_files(
    paths: Iterable[str], patterns: Sequence[str] = PATTERNS
) -> tuple[list[Path], list[Path]]:
    """The files that `paths` name, once each, and the files in these folders that are not read.

    Of a folder those in and below it are read whose name, or path in it, matches a pattern.
    """
    files, others = [], []
    for path in map(Path, paths):
        if not path.is_dir():
            require(path.is_file(), f"{path} is no file or folder")
            files.append(path)
            continue
        inside = [file for file in sorted(path.rglob("*")) if file.is_file()]
        found = [file for file in inside if matches(file.relative_to(path), patterns)]
        nanogpt = not found and (path / "train.bin").is_file()
        require(not nanogpt, f"{path} holds tokens, no text: copy or link it to data/NAME instead")
        kind = f"a folder without {' or '.join(patterns)} files: choose others with --glob=PATTERN"
        require(found, f"{path} is {kind}")
        files += found
        others += inside
    once = {file.resolve(): file for file in files}
    skipped = {file.resolve(): file for file in others if file.resolve() not in once}
    return list(once.values()), list(skipped.values())


def matches(path: Path, patterns: Sequence[str]) -> bool:
    """Whether the name of a file, or its path in a folder, matches one; A and a are the same."""
    names = path.name.lower(), path.as_posix().lower()
    return any(fnmatchcase(name, pattern.lower()) for name in names for pattern in patterns)


def some(names: Sequence[str]) -> str:
    """A few of many names."""
    more = len(names) - FEW
    return ", ".join([*names[:FEW], *([f"{more:,} more"] if more > 0 else [])])


def skipped_lines(skipped: Sequence[Path]) -> list[str]:
    """What to tell of the files that were not read: how many of each ending, and a few names."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for path in skipped:
        kinds[path.suffix.lower() or "no ending"].append(path.name)
    largest = sorted(kinds.items(), key=lambda item: -len(item[1]))
    lines = [f"  {len(names):7,} of {kind}: {some(names)}" for kind, names in largest]
    heading = f"not read: {len(skipped):,} files (--glob=PATTERN chooses what is read)"
    return [heading, *lines] if lines else []


def documents(
    files: Sequence[Path], doing: str, left_out: dict[str, None] | None = None
) -> Iterator[str]:
    """The text of every document in `files` that is not empty, with progress in bytes of files.

    The sentence of each document that is no UTF-8 text is put into `left_out`; without it, such a
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


def texts(path: Path, packed: BinaryIO, left_out: dict[str, None] | None) -> Iterator[str]:
    """The documents of one open file, unpacked if its name ends so; "" for what is left out."""
    stream, name = packed, path
    if path.suffix in UNPACK:
        stream, name = UNPACK[path.suffix](packed), path.with_suffix("")
    lines = name.suffix == ".jsonl"
    offset = 0
    for number, raw in enumerate(stream if lines else [stream.read()], 1):
        try:
            text = decode(raw, path, offset)
        except UserError as error:
            if left_out is None:
                raise
            left_out[str(error)] = None
            text = ""
        if lines:
            text = text_field(text, f"{path}, line {number},") if text.strip() else ""
        yield text
        offset += len(raw)


def decode(raw: bytes, path: Path, offset: int) -> str:
    """The text of UTF-8 bytes, which are at `offset` in `path`; UserError names a bad byte."""
    zero = raw.find(b"\0")
    advice = "it is no text; if it is an archive, unpack it first"
    require(zero < 0, f"{path} holds a NUL at byte {offset + zero:,}: {advice}")
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


def make_tokenizer(
    kind: str, files: Sequence[Path], left_out: dict[str, None] | None
) -> tuple[Tokenizer, dict]:
    """The tokenizer of this kind, folder or name, and what `write_corpus` must know of it."""
    if kind not in TOKENIZERS:
        folder = tokenizer_folder(kind)
        extra = {"tokenizer": "file", "tokenizer_sha256": sha256(folder / "tokenizer.json")}
        if (folder / "config.json").is_file():
            ends = read_json(folder / "config.json").get("eos_token_id")
            extra["end_token"] = ends[0] if isinstance(ends, list) else ends
        return tokenizer_of(extra, folder), extra | {"tokenizer_from": folder}
    extra = {"tokenizer": kind}
    if kind == "char":
        found: set[str] = set()
        for text in documents(files, "characters", left_out):
            found.update(text)
        extra["characters"] = "".join(sorted(found))
    return tokenizer_of(extra), extra


def tokenizer_folder(source: str) -> Path:
    """The folder with the tokenizer.json of a model: `source`, or where a download of it is kept.

    UserError if there is none.
    """
    if (Path(source) / "tokenizer.json").is_file():
        return Path(source)
    kinds = f"{', '.join(sorted(TOKENIZERS))}, a folder with tokenizer.json, or a model's ORG/NAME"
    name = "/" in source and not Path(source).exists()
    require(name, f"--tokenizer={source} has no tokenizer.json; give {kinds}")
    try:
        from transformers.utils import cached_file

        cached_file(source, "config.json")
        return Path(cached_file(source, "tokenizer.json")).parent
    except (ImportError, OSError) as error:
        problem = f"--tokenizer={source} cannot be had ({str(error).splitlines()[0]})"
        needs = "a name needs transformers (pip) and a network"
        raise UserError(f"{problem}: give {kinds}; {needs}") from error


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
    end = [] if tokenizer.end is None else [np.array([tokenizer.end])]
    with ThreadPoolExecutor() as pool:
        for batch in batches(texts):
            cuts = [[text] if not tokenizer.can_cut else cut_text(text) for text in batch]
            jobs = [[pool.submit(tokenizer.array, part) for part in parts] for parts in cuts]
            for text, job in zip(batch, jobs, strict=True):
                parts = [part.result() for part in job] + end
                ids = np.concatenate(parts, dtype=np.uint32, casting="unsafe")
                yield is_validation(text.encode("utf-8")), ids


# ---- splitting


def is_validation(key: bytes) -> bool:
    """Whether the document with this `key` is held out for validation: 5 % are, always the same."""
    return int(hashlib.sha256(key).hexdigest(), 16) % 20 == 0


def validation_rule(document: str, key: str) -> str:
    """`is_validation` in words, for meta.json."""
    number = f"the SHA-256 of {key}, read as one hexadecimal number"
    return f"a {document} is validation if {number}, is a multiple of 20"


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
    check_name(name, root, overwrite)
    train_files, val_files = choose_files(paths, val_paths, patterns)
    left_out: dict[str, None] | None = None if strict else {}
    encoder, extra = make_tokenizer(tokenizer, train_files + val_files, left_out)
    encoded = list(encode(documents(train_files, "encoding", left_out), encoder))
    held_out = list(encode(documents(val_files, "encoding --val", left_out), encoder))
    reasons = some(list(left_out or {}))
    for named, found in ((paths, encoded), (val_paths, held_out)):
        require(found or not named, f"{' '.join(named)}: no text in it{reasons and '; '}{reasons}")
    if left_out:
        print(f"left out, as no UTF-8 text: {len(left_out):,} documents ({reasons})")
    if val_paths:
        splits = {"train": [ids for _, ids in encoded], "val": [ids for _, ids in held_out]}
        source, rule = " ".join([*paths, "--val", *val_paths]), "validation is what --val named"
    else:
        splits, rule = split_documents(encoded)
        source = " ".join(paths)
    return write_corpus(root / name, splits, source=source, rule=rule, **extra)


def choose_files(
    paths: Sequence[str], val_paths: Sequence[str], patterns: Sequence[str]
) -> tuple[list[Path], list[Path]]:
    """The files to train on and to validate on; it prints what else is in the folders.

    UserError for a file in both.
    """
    train_files, skipped = find_files(paths, patterns)
    val_files, others = find_files(val_paths, patterns)
    both = {file.resolve() for file in train_files} & {file.resolve() for file in val_files}
    if both:
        raise UserError(f"{min(both)} is in PATH and --val: what a model has read cannot test it")
    read = {*train_files, *val_files}
    for line in skipped_lines(
        [file for file in dict.fromkeys(skipped + others) if file not in read]
    ):
        print(line)
    return train_files, val_files


def check_name(name: str, root: Path, overwrite: bool) -> None:
    """UserError unless `name` is a plain folder name that is free, or may be overwritten."""
    form = "a folder name of letters, digits, '_', '-' and '.', such as my_text"
    require(NAME.fullmatch(name), f"--name={name} must be {form}")
    taken = name in {*COMMANDS, "text"}
    require(not taken, f"--name={name} belongs to the project: choose another name")
    made = any((root / name / file).exists() for file in ("meta.json", "train.bin"))
    advice = "choose another name, or replace it with --overwrite"
    require(overwrite or not made, f"--name={name} is taken: {root / name} is a corpus; {advice}")


def main() -> None:
    """Make the corpus in data/NAME and print what it holds."""
    parser = new_parser(__doc__)
    add, many = parser.add_argument, {"nargs": "+", "metavar": "PATH"}
    add("paths", **many, help="a text file, a folder or a .jsonl file")
    add("--name", required=True, help="the corpus is written to data/NAME")
    add("--val", **many, default=[], help="validate on these, not on 5 %% of PATH")
    add("--glob", action="append", metavar="PATTERN", help="of folders, read such files instead")
    add("--strict", action="store_true", help="end with an error at what is not UTF-8")
    add("--overwrite", action="store_true", help="replace a corpus of this name")
    add("--tokenizer", required=True, help=f"{', '.join(sorted(TOKENIZERS))}, a folder or a name")
    given = parser.parse_intermixed_args()
    prepare(
        given.name,
        given.paths,
        given.val,
        given.tokenizer,
        patterns=given.glob or PATTERNS,
        strict=given.strict,
        overwrite=given.overwrite,
    )


if __name__ == "__main__":
    run_program(main)
