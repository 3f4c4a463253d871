"""A corpus of your own texts.

    python data/text/prepare.py --name=NAME PATH... [--val PATH...] [--tokenizer=bytes|gpt2|char]
    python data/text/prepare.py --name=NAME PATH... --tokenizer=FOLDER    # of a Hugging Face model

    python data/text/prepare.py --name=notes notes/
    python data/text/prepare.py --name=code src/ --glob='*.py' --tokenizer=gpt2
    python data/text/prepare.py --name=web train.jsonl --val val.jsonl --tokenizer=gpt2

PATH is a text file (one document), a folder (every .txt and .md file in it and below it, or what
--glob=PATTERN matches; the others are counted) or a .jsonl file (one document per line, in the
field "text"). Texts in quotes (.json, .csv, .tsv) are read as they are, and only where a --glob
asks for it. Files may be packed (.xz, .gz). A document that is not UTF-8 is reported and skipped,
and so is one that the tokenizer does not give back byte for byte (of a tokenizer that makes letters
small, say): bits per byte would be those of another text.

Without --val, 5 % of the documents, chosen by the SHA-256 of their text, are held out for
validation, without the largest where they have more than a fifth of all tokens; if that leaves
none, the last 5 % of the tokens. Copies, also those that differ in white space alone, stay
together. A document of --val that is in PATH too is refused, unless --allow_copies is given. Then
train with --dataset=NAME. A folder of nanoGPT or llm.c can be used directly: copy or link it to
data/NAME. FOLDER may be a name such as HuggingFaceTB/SmolLM-135M, or its tokenizer.json, which is
copied to data/NAME; the token after a document is eos_token_id of config.json beside it, or
eos_token of tokenizer_config.json.
"""

import gzip
import hashlib
import itertools
import json
import lzma
import os
import shutil
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from common.errors import UserError, run_program
from common.files import read_json, sha256
from data.corpus import COMMANDS, new_folder, new_parser, write_corpus
from data.download import model_folder
from data.tokenizers import HERE, TOKENIZERS, FileTokenizer, Tokenizer, read_tokenizer, tokenizer_of

UNPACK = {"xz": lzma.open, "gz": gzip.open}
PACKED = ("zst", "bz2", "zip", "parquet")  # not read
QUOTED = {".json", ".csv", ".tsv"}  # texts in quotes, which are read only where --glob asks for it
BATCH = 256  # documents encoded together
PATTERNS = ("*.txt", "*.md")  # of the files read in a folder


# ---- reading documents


def find_files(paths: Iterable[str], patterns: Sequence[str] = PATTERNS) -> list[Path]:
    """The files in `paths`, without duplicates; prints how many are not read.

    Folders are searched recursively for files whose name, or end of path, matches a pattern,
    ignoring case.
    """
    files: dict[Path, Path] = {}  # by resolved path
    others = 0
    for path in map(Path, paths):
        if path.is_file():
            asked = any(path.match(pattern) for pattern in patterns)
            if {*map(str.lower, path.suffixes)} & QUOTED and not asked:
                raise UserError(
                    f"{path} would be read as one text, with its quotes: write each text as a line "
                    'of a .jsonl file, {"text": ...}, or, if that is meant, name it .txt'
                )
            files[path.resolve()] = path
        elif not path.is_dir():
            raise UserError(f"there is no file or folder {path}")
        for file in sorted(files_below(path)):
            lower = Path(str(file).lower())
            if file.is_file() and any(lower.match(pattern.lower()) for pattern in patterns):
                files[file.resolve()] = file
            elif file.is_file():
                others += 1
    if others:
        print(f"not read: {others:,} other files (--glob=PATTERN chooses what is read)")
    return list(files.values())


def files_below(folder: Path) -> Iterator[Path]:
    """All files below a folder, also in folders that are links, each of which is entered once."""
    entered = set()
    for at, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(at)
        if real in entered:
            folders.clear()
            continue
        entered.add(real)
        yield from (Path(at, name) for name in names)


def documents(files: Sequence[Path], doing: str, left_out: list[str]) -> Iterator[str]:
    """The text of every non-blank document in `files`, with a progress bar in bytes.

    Each line of a .jsonl or .ndjson file is a document; any other file is one document. For each
    document that is not UTF-8, a message is added to `left_out`.
    """
    total = sum(file.stat().st_size for file in files)
    with tqdm(total=total, unit="B", unit_scale=True, desc=doing, disable=None) as bar:
        for path in files:
            before = bar.n
            suffixes = path.name.lower().split(".")[1:]
            is_lines = "jsonl" in suffixes or "ndjson" in suffixes
            unpack = UNPACK.get(suffixes[-1] if suffixes else "")
            if suffixes and suffixes[-1] in PACKED:
                raise UserError(f"{path} is packed in a way that is not read: unpack it, or use gz")
            try:
                with path.open("rb") as packed:
                    stream = unpack(packed) if unpack else packed
                    for number, raw in enumerate(stream if is_lines else [stream.read()], 1):
                        bar.update(before + packed.tell() - bar.n)
                        where = f"{path}, line {number}," if is_lines else str(path)
                        text = read_text(raw, where, is_lines, left_out) if raw.strip() else ""
                        if text and not text.isspace():
                            yield text
            except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
                raise UserError(f"{path} cannot be read: {error}") from error


def read_text(raw: bytes, where: str, is_json: bool, left_out: list[str]) -> str:
    """The text of UTF-8 bytes, or of their JSON field "text"; "" if it is skipped."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        left_out.append(f"{where} is not UTF-8 at byte {error.start} (0x{raw[error.start]:02x})")
        return ""
    if "\0" in text:
        left_out.append(f"{where} holds a NUL: it is no text")
        return ""
    if not is_json:
        return text
    try:
        text = json.loads(text)["text"]
        if text is None:
            return ""
        text.encode("utf-8")
    except UnicodeEncodeError:
        left_out.append(f"{where} holds half of a surrogate pair")
        return ""
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise UserError(
            f'{where} is not JSON with text in the field "text" ({error!r:.99})'
        ) from None
    return text


# ---- encoding


def check_end(end, tokens, config):
    """The first of the eos_token_id of a config.json that the tokenizer has as an added token; None
    if it has none: the number may be left from the model that this one was made of.
    """
    ends = end if isinstance(end, list) else [end]
    if not ends or not all(type(n) is int and n >= 0 for n in ends):
        raise UserError(f"{config}: eos_token_id = {end!r:.60} is no token")
    added = tokens.get_added_tokens_decoder()
    return next((n for n in ends if n in added), None)


def make_tokenizer(
    kind: str, corpus: Path, files: Sequence[Path], left_out: list[str]
) -> tuple[Tokenizer, dict]:
    """The tokenizer of this kind, folder or name, and its entries for `write_corpus`.

    A tokenizer.json is copied to the folder of the corpus.
    """
    about = {"tokenizer": kind}
    if kind == "char":
        characters: set[str] = set()
        for text in documents(files, "characters", left_out):
            characters.update(text)
        about["characters"] = "".join(sorted(characters))
    if kind in TOKENIZERS:
        return tokenizer_of(about), about

    path = Path(kind)
    if "/" in kind and not path.exists() and path.suffix != ".json":
        path = model_folder(kind, ["*.json"])
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise UserError(
            f"--tokenizer={kind} has no tokenizer.json; give {', '.join(TOKENIZERS)}, a folder "
            "with tokenizer.json, that file, or a model's ORG/NAME"
        )
    about = {"tokenizer": "file", "tokenizer_sha256": sha256(file)}
    tokens = read_tokenizer(file)  # before the corpus is touched
    names = file.with_name("tokenizer_config.json")
    config = file.with_name("config.json")
    if config.is_file():
        end = read_json(config).get("eos_token_id")
        if end is not None:
            about["end_token"] = check_end(end, tokens, config)
    if about.get("end_token") is None and names.is_file():
        end = read_json(names).get("eos_token")
        end = end.get("content") if isinstance(end, dict) else end
        if end:
            if isinstance(end, str):
                about["end_token"] = tokens.token_to_id(end)
            if about.get("end_token") is None:
                raise UserError(f"{names}: eos_token = {end!r:.60} is no token of {file}")
    end = about.get("end_token")
    advice = " (none: name one as eos_token in a tokenizer_config.json beside the file)"
    FileTokenizer(file, end)  # UserError for one that cannot be used, before it is copied
    name = advice if end is None else f", {tokens.id_to_token(end)!r}"
    print(f"token after a document: {end}{name}")
    corpus.mkdir(parents=True, exist_ok=True)
    shutil.copy(file, corpus / "tokenizer.json")
    return tokenizer_of(about, corpus), about


def encode(
    texts: Iterable[str], tokenizer: Tokenizer, left_out: list[str] | None = None
) -> Iterator[tuple[str, np.ndarray]]:
    """Each text and its tokens, (n,), with the end token.

    For each text that the tokenizer cannot encode, a message is added to `left_out`, if given.
    """

    def encode_one(text: str) -> tuple[str, np.ndarray | UserError]:
        try:
            ids = tokenizer.array(text)
        except UserError as error:
            return text, error
        if tokenizer.end is not None:
            ids = np.append(ids, ids.dtype.type(tokenizer.end))
        return text, ids

    texts = iter(texts)
    with ThreadPoolExecutor() as pool:  # tokenizers release the GIL
        while batch := list(itertools.islice(texts, BATCH)):
            for text, ids in pool.map(encode_one, batch):
                if not isinstance(ids, UserError):
                    yield text, ids
                elif left_out is None:
                    raise ids
                else:
                    left_out.append(f"{ids}, in {text[:60]!r}")


# ---- splitting


def is_validation(key: bytes) -> bool:
    """Whether the document with this `key` is held out for validation: a fixed 5 % are."""
    return int(hashlib.sha256(key).hexdigest(), 16) % 20 == 0


def letters_of(text: str) -> bytes:
    """A digest of a text that is the same for copies that differ in white space alone."""
    return hashlib.sha256("".join(text.split()).encode("utf-8")).digest()


def validation_rule(document: str, key: str) -> str:
    """`is_validation` in words, for meta.json."""
    number = f"the SHA-256 of {key}, read as one hexadecimal number"
    return f"a {document} is validation if {number}, is a multiple of 20"


def prepare(
    name: str,
    paths: Sequence[str],
    val_paths: Sequence[str],
    tokenizer: str,
    root: Path = HERE,
    *,
    patterns: Sequence[str] = PATTERNS,
    overwrite: bool = False,
    allow_copies: bool = False,
) -> dict:
    """Write the corpus `root/name` of the texts in `paths` and return its meta.json.

    `val_paths`, if given, are the validation split. Prints the files that were not read and the
    documents that were skipped. UserError if the name is taken, unless `overwrite`, if the paths
    have no text, or if a validation document is a training document too, unless `allow_copies`.
    """
    folder = new_folder(name, overwrite, root)
    if name in (*COMMANDS, "text"):
        raise UserError(f"--name={name} is taken by a corpus of the project: choose another name")
    files = find_files(paths, patterns)
    val_files = find_files(val_paths, patterns)
    for file in {file.resolve() for file in files} & {file.resolve() for file in val_files}:
        raise UserError(f"{file} is in PATH and --val: what a model has read cannot test it")
    left_out: list[str] = []
    encoder, about = make_tokenizer(tokenizer, folder, files + val_files, left_out)
    encoded = []  # for each document, its letters and its tokens
    sides = {}  # whether a text is held out, by its letters: its copies go with the first
    copies = []
    for text, ids in encode(documents(files, "encoding", left_out), encoder, left_out):
        letters = letters_of(text)
        if letters in sides:
            copies.append(text[:60])
        sides.setdefault(letters, is_validation(text.encode("utf-8")))
        encoded.append((letters, ids))
    val = []
    known = []  # what a model has read cannot test it
    for text, ids in encode(documents(val_files, "encoding --val", left_out), encoder, left_out):
        val.append(ids)
        if letters_of(text) in sides:
            known.append(text[:60])
    if left_out:
        count = len({*left_out})  # char reads all twice
        print(f"left out: {count:,} documents ({left_out[0]} ...)")
    if not encoded:
        raise UserError("; ".join([f"{' '.join(paths)}: no text in it", *left_out[:1]]))
    if copies:
        print(f"{len(copies):,} documents are copies of others in PATH ({copies[0]!r} ...)")
    allow = "what a model has read cannot test it: take them out, or type --allow_copies"
    source = " ".join(paths)
    train = [ids for _, ids in encoded]
    n_tokens = sum(map(len, train))
    held_out = Counter()  # the tokens of the texts that are held out, with their copies
    for letters, ids in encoded:
        if sides[letters]:
            held_out[letters] += len(ids)
    while held_out.total() > n_tokens / 5:
        [(largest, _)] = held_out.most_common(1)
        del held_out[largest]
    if val_paths:
        if known and not allow_copies:
            raise UserError(
                f"{len(known):,} of the {len(val):,} documents of --val are in PATH too, except "
                f"perhaps for white space ({known[0]!r} ...); {allow}"
            )
        source = " ".join([*paths, "--val", *val_paths])
        rule = f"validation is what --val named; {len(known)} of its documents are in train too"
    elif held_out:
        train = [ids for letters, ids in encoded if letters not in held_out]
        val = [ids for letters, ids in encoded if letters in held_out]
        rule = validation_rule("document", "its text") + "; its copies go with the first"
        if len(held_out) < sum(sides.values()):
            rule += "; the largest of these are training, or validation would be over a fifth"
    else:
        if copies and not allow_copies:
            raise UserError(f"the last 5 % of the tokens may be of such copies; {allow}")
        cut = max(1, n_tokens // 20)  # tokens of validation that are still to come
        val = []
        for n in reversed(range(len(train))):
            place = max(0, len(train[n]) - cut)
            val.insert(0, train[n][place:])
            cut -= len(val[0])
            train[n] = train[n][:place]
        rule = "the last 5 % of the tokens are validation"
    return write_corpus(folder, {"train": train, "val": val}, source=source, rule=rule, **about)


def main() -> None:
    """Make the corpus in data/NAME and print what it holds."""
    parser = new_parser(__doc__)
    add = parser.add_argument
    many = {"nargs": "+", "metavar": "PATH"}
    add("paths", **many, help="a text file, a folder or a .jsonl file")
    add("--name", required=True, help="the corpus is written to data/NAME")
    add("--val", **many, default=[], help="validate on these, not on 5 %% of PATH")
    add("--glob", action="append", metavar="PATTERN", help="of folders, read such files instead")
    add("--overwrite", action="store_true", help="replace a corpus of this name")
    add("--allow_copies", action="store_true", help="of documents of PATH, in --val")
    kinds = ", ".join(TOKENIZERS)
    add("--tokenizer", default="bytes", help=f"{kinds}, a folder or a name (default: bytes)")
    s = parser.parse_intermixed_args()
    patterns = s.glob or PATTERNS
    prepare(
        s.name,
        s.paths,
        s.val,
        s.tokenizer,
        patterns=patterns,
        overwrite=s.overwrite,
        allow_copies=s.allow_copies,
    )


if __name__ == "__main__":
    run_program(main)
