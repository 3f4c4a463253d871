"""Corpora: making, storing and reading them.

To train on your own texts, no code is needed: `python data/text/prepare.py --name=NAME PATH...`. To
add a corpus to the project, write data/NAME/prepare.py with a function `prepare(folder)` that
passes the documents to `write_corpus` (see data/stdlib/prepare.py), and add it to COMMANDS below.
After `python data/NAME/prepare.py`, train with --dataset=NAME.

A corpus is a folder with these files: train.bin and val.bin (token ids, uint16 or uint32),
train_starts.npy and val_starts.npy (the first token of each document) and meta.json:

    name, vocab_size
    tokenizer   "bytes", "char", "gpt2" or "file"
    unit        what a token is: "byte", "char" or "token"
    source      where the texts come from
    rule        how they were split
    splits      of train and val each: tokens, documents, dtype, sha256, and where tokens begin in
                the file (offset)
    characters  of "char", in the order of their tokens
    signs       texts of the tokens of "bytes" from 256 on
    tokenizer_sha256, end_token      of "file"; the token after a document, or null
    rows, questions                  of texts with answers, see data/batches.py

A folder with only train.bin and val.bin is read as nanoGPT's or llm.c's, in GPT-2's tokens (see
data/nanogpt); the other files are added on first use.
"""

import argparse
import difflib
import importlib
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from common.errors import UserError
from common.files import read_json, sha256, write_json
from data.tokenizers import HERE, Tokenizer, tokenizer_of

Pair = tuple[np.ndarray, np.ndarray]  # tokens (texts, width) and how far back their answers are
SPLITS = ("train", "val")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")  # of a corpus
TASKS = (
    "addition addition_hints addition_reversed copy flipflop frequent_words induction parity "
    "reverse sort variable_tracking"
).split()
COMMANDS = {  # the program that makes each of the project's corpora
    "stdlib": "data/stdlib/prepare.py",
    "recall": "data/recall/prepare.py",
    "books_recall": "data/recall/prepare.py --text=books",
    "digits": "data/digits/prepare.py",
    **{name: f"data/tasks/prepare.py {name}" for name in TASKS},
    "shakespeare_char": "data/shakespeare_char/prepare.py",
    "books": "data/books/prepare.py",
    "books_gpt2": "data/books/prepare.py --tokenizer=gpt2",
    "books_gpu": "data/books_gpu/prepare.py",
    "fineweb": "data/fineweb/prepare.py --from=FOLDER",
    "enwik8": "data/wikipedia/prepare.py enwik8",
    "enwik8_test": "data/wikipedia/prepare.py enwik8 --test",
    "text8": "data/wikipedia/prepare.py text8",
    "text8_test": "data/wikipedia/prepare.py text8 --test",
    "wikitext103": "data/wikipedia/prepare.py wikitext103",
    "wikitext103_test": "data/wikipedia/prepare.py wikitext103 --test",
    "wikitext103_gpt2": "data/wikipedia/prepare.py wikitext103 --tokenizer=gpt2",
}
OFFLINE = ("stdlib", "recall", "digits", *TASKS)  # made on first use, without a network
# what tokens mean
OF_TOKENS = ("tokenizer", "characters", "signs", "tokenizer_sha256", "end_token")


# ---- reading


@dataclass(frozen=True, eq=False)
class Corpus:
    """A corpus on disk: its tokens, memory-mapped (n,), and the starts of its documents, (m,).

    A corpus of texts with answers has how far back that of each token is, too, (n,).
    """

    name: str
    folder: Path
    meta: dict
    train: np.ndarray
    val: np.ndarray
    train_starts: np.ndarray
    val_starts: np.ndarray
    train_answers: np.ndarray | None = None
    val_answers: np.ndarray | None = None

    def __repr__(self) -> str:
        return f"Corpus {self.name}, {len(self.train):,} {self.unit}s to train on"

    @property
    def vocab_size(self) -> int:
        """The number of different tokens."""
        return self.meta["vocab_size"]

    @property
    def unit(self) -> str:
        """What a token is: "byte", "char" or "token"."""
        return self.meta["unit"]

    @property
    def is_text(self) -> bool:
        """Whether every token is scored: no texts with answers, no questions."""
        return self.train_answers is None

    @property
    def has_sizes(self) -> bool:
        """Whether it is of texts with answers, tested by their size: meta["rows"] has them."""
        return "rows" in self.meta

    @property
    def has_questions(self) -> bool:
        """Whether there are questions in its text: meta["questions"] has their kinds."""
        return "questions" in self.meta

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of this corpus; UserError if GPT-2's vocabulary cannot be loaded."""
        return tokenizer_of(self.meta, self.folder)

    def text_bytes(self, offsets: np.ndarray) -> np.ndarray:
        """How many bytes of text the validation tokens at these offsets stand for, same shape.

        A tokenizer's prefix is no text, and neither is an end token.
        """
        sizes = self.tokenizer.sizes[self.val[offsets]]
        in_text = sizes - len(self.tokenizer.prefix) * np.isin(offsets, self.val_starts)
        return np.maximum(in_text, 0)

    def fits(self, size: int) -> bool:
        """Whether a model with `size` tokens can read this corpus: it may have more than gpt2's or
        a file's, because models pad their vocabulary.
        """
        if self.meta["tokenizer"] in ("file", "gpt2"):
            return self.vocab_size <= size
        return self.vocab_size == size

    def split_sha256(self, split: str) -> str:
        """SHA-256 of the token file of `split` ("train" or "val"), as it was made."""
        return self.meta["splits"][split]["sha256"]

    def verify(self, *splits: str) -> None:
        """UserError unless the token files of these splits (default: both) match their SHA-256."""
        for split in splits or SPLITS:
            path = self.folder / f"{split}.bin"
            if sha256(path) != self.split_sha256(split):
                raise UserError(
                    f"{path} does not match the SHA-256 in meta.json: make the corpus again"
                )


def load_corpus(name: str, root: Path = HERE) -> Corpus:
    """The corpus `root/name`; UserError if it is damaged or missing, with how to make it.

    Missing corpora in OFFLINE are made. A nanoGPT folder gets its meta.json.
    """
    folder = root / name
    if (folder / "meta.json").is_file():
        pass  # it was made before
    elif name in OFFLINE:
        maker = "tasks" if name in TASKS else name
        importlib.import_module(f"data.{maker}.prepare").prepare(folder)
    elif (folder / "train.bin").is_file() and not (folder / "train_starts.npy").exists():
        importlib.import_module("data.nanogpt.prepare").prepare(folder)
    else:
        names = [*COMMANDS, *(meta.parent.name for meta in root.glob("*/meta.json"))]
        near = difflib.get_close_matches(name, names, 1)
        if name in COMMANDS:
            advice = f"make it with python {COMMANDS[name]}"
        elif name.startswith("needles_"):
            advice = "make it with python data/needles/prepare.py --corpus=CORPUS --kind=KIND"
        elif [*folder.glob("*.bin")]:
            advice = "name one of its files train.bin and one val.bin"
        elif near:
            advice = f"did you mean {near[0]}?"
        else:
            advice = f"make it with python data/text/prepare.py --name={name} PATH...; "
            advice += f"the project's are {', '.join(COMMANDS)}"
        raise UserError(f"there is no corpus {name!r}: {advice}")
    arrays = {}
    meta = {}
    try:
        meta = read_json(folder / "meta.json")
        for split in SPLITS:
            stated = meta["splits"][split]
            offset = stated.get("offset", 0)  # in bytes
            tokens = np.memmap(folder / f"{split}.bin", stated["dtype"], "r", offset)
            arrays[split] = np.asarray(tokens)  # still on the disk
            lengths = {f"{split}_starts": stated["documents"]}
            if "rows" in meta or "questions" in meta:
                lengths[f"{split}_answers"] = len(tokens)
            for part, length in lengths.items():
                arrays[part] = np.load(folder / f"{part}.npy", mmap_mode="r", allow_pickle=False)
                if len(tokens) != stated["tokens"] or len(arrays[part]) != length:
                    raise ValueError(f"{split}.bin or {part}.npy is not as it was made")
    except (OSError, ValueError, TypeError, EOFError, LookupError) as error:
        advice = "make the corpus again"
        if meta.get("source") == "nanoGPT's files":
            advice = "delete its meta.json and *_starts.npy, which are made anew"
        raise UserError(f"{folder} is damaged ({error!s:.200}): {advice}") from None
    if meta.get("rows", {}).get("copied"):
        raise UserError(f"{folder} is of mqar, which this version no longer reads: delete it")
    return Corpus(name, folder, meta, **arrays)


def crossing(edges: np.ndarray, length: int) -> float:
    """The share of rows that run across documents where a split is cut every `length` tokens.

    `edges` (documents + 1,) are the starts of its documents, and its own end.
    """
    rows = (edges[1:-1] - 1) // length  # in which the first token of a document is a target
    return len(np.unique(rows)) / math.ceil(edges[-1] / length)


# ---- writing


def write_corpus(
    folder: Path,
    splits: Mapping[str, Iterable[np.ndarray]],
    files: Mapping[str, np.ndarray] | None = None,
    headers: Mapping[str, bytes] | None = None,
    dtype: str = "",
    **entries: Any,
) -> dict:
    """Write a corpus to `folder`, print what it holds and return what is in its meta.json.

    `splits` has the documents of "train" and "val", (n,) tokens each; empty ones are skipped.
    `files` maps file names to other arrays. The tokens of a split are written after its header, if
    there is one, in `dtype`, by default the smallest that holds the vocabulary.

    `entries` are written to meta.json: tokenizer, source,
    rule and, if the tokenizer needs them, characters, or tokenizer_sha256 and end_token of a
    tokenizer.json in `folder`. UserError for an empty split or a token outside the vocabulary.
    """
    tokenizer = tokenizer_of(entries, folder)
    vocab_size = len(tokenizer.vocabulary)
    dtype = dtype or ("uint16" if vocab_size <= 2**16 else "uint32")
    meta = {"name": folder.name, "unit": tokenizer.unit, "vocab_size": vocab_size, **entries}
    meta["splits"] = {}
    folder.mkdir(parents=True, exist_ok=True)
    # everything is written to a temporary folder and then moved: no file is ever half written
    with TemporaryDirectory(prefix=".new-", dir=folder) as temporary:
        new = Path(temporary)
        for split, documents in splits.items():
            lengths = []
            # one document at a time: a corpus may not fit in memory
            header = (headers or {}).get(split, b"")
            with (new / f"{split}.bin").open("wb") as file:
                file.write(header)
                for document in documents:
                    if not len(document):
                        continue
                    if document.max() >= vocab_size:
                        raise UserError(
                            f"{folder} would hold token {document.max()}, outside its vocabulary "
                            f"of {vocab_size}: its text needs another tokenizer"
                        )
                    file.write(document.astype(dtype).tobytes())
                    lengths.append(len(document))
            if not lengths:
                raise UserError(f"the {split} split would be empty: the corpus needs more text")
            print(f"{folder.name}/{split}: {sum(lengths):,} tokens, {len(lengths):,} documents")
            edges = np.cumsum([0, *lengths])
            np.save(new / f"{split}_starts.npy", edges[:-1])
            if not files:  # texts with answers are never read together
                print(f"rows of 128 tokens: {crossing(edges, 128):.1%} cross documents")
            meta["splits"][split] = {
                "tokens": sum(lengths),
                "documents": len(lengths),
                "dtype": dtype,
                "sha256": sha256(new / f"{split}.bin"),
            }
            if header:
                meta["splits"][split]["offset"] = len(header)
        for name, array in (files or {}).items():
            np.save(new / name, array)
        # an old meta.json is deleted first and the new one moved last: an interruption leaves no
        # corpus, never a mixture of two
        files_made = [*new.iterdir(), new / "meta.json"]
        write_json(files_made[-1], meta)
        old = folder / "meta.json"
        if old.is_file() and old.read_bytes() != files_made[-1].read_bytes():
            old.unlink()
        for file in files_made:
            os.replace(file, folder / file.name)
    print(f"made the corpus {folder.name}: {meta['source']}")
    return meta


def write_texts(
    folder: Path, train: Pair, validation: Mapping[int, Pair], rows: dict, **entries: str
) -> dict:
    """Write a corpus of texts with answers to `folder` and return the content of its meta.json.

    `validation` has the texts of each size. Those of a trained size are padded to the training
    width with token 0, which is not scored. `rows` is the entry in meta.json, without inputs and
    sizes. For `entries` see `write_corpus`.
    """
    width = train[0].shape[1]
    rows = {**rows, "inputs": width - 1, "sizes": []}
    texts = []
    answers = []
    for size, (tokens, distances) in validation.items():
        if size <= rows["trained"]:
            missing = [(0, 0), (0, width - tokens.shape[1])]
            tokens = np.pad(tokens, missing)
            distances = np.pad(distances, missing)
        rows["sizes"].append((size, *tokens.shape))
        texts.extend(tokens)
        answers.append(distances.ravel())
    files = {
        "train_answers.npy": train[1].ravel().astype(np.uint16),
        "val_answers.npy": np.concatenate(answers).astype(np.uint16),
    }
    return write_corpus(folder, {"train": train[0], "val": texts}, files, rows=rows, **entries)


def new_folder(name: str, overwrite: bool, root: Path = HERE) -> Path:
    """The folder of a new corpus; UserError for an invalid name or one that is taken."""
    if not NAME.fullmatch(name):
        raise UserError(f"--name={name} must be letters, digits, '_', '-' and '.', as in my_text")
    if (root / name / "train.bin").exists() and not overwrite:
        raise UserError(
            f"--name={name} is taken: choose another name, or replace your own with --overwrite"
        )
    return root / name


def new_parser(doc: str, name: str = "") -> argparse.ArgumentParser:
    """The argument parser of a program that makes a corpus: --help prints its docstring verbatim.

    Given the default `name` of a generated corpus, it adds --name, --seed and --overwrite.
    """
    layout = argparse.RawTextHelpFormatter
    epilog = "--debug shows where an error was raised"
    parser = argparse.ArgumentParser(description=doc, formatter_class=layout, epilog=epilog)
    add = parser.add_argument
    if name:
        add("--name", default=name, help="of the corpus (default: %(default)s)")
        add("--seed", type=int, default=0, help="of what is drawn")
        add("--overwrite", action="store_true", help="replace a corpus of this name")
    return parser
