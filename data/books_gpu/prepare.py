"""The first books of books_gpt2, up to 20 million tokens: 45 MB to copy to a GPU machine.

    python data/books/prepare.py --tokenizer=gpt2
    python data/books_gpu/prepare.py

GPT-2's vocabulary is stored with the corpus, in the folder tiktoken: a machine without a network
finds it if TIKTOKEN_CACHE_DIR is set to that folder (`make gpu` does this).
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from common.errors import run_program
from data.corpus import load_corpus, new_parser, write_corpus

TOKENS = 20_000_000  # of training text, at most


def prepare(folder: Path) -> dict:
    """Write the corpus and the vocabulary to `folder` and return its meta.json."""
    books = load_corpus("books_gpt2")
    ends = np.append(books.train_starts[1:], len(books.train))
    count = int(np.searchsorted(ends, TOKENS, side="right"))
    train = np.split(books.train[: ends[count - 1]], books.train_starts[1:count])
    splits = {"train": train, "val": np.split(books.val, books.val_starts[1:])}
    rule = f"{books.meta['rule']}; of train the first {count} of {len(ends)}"
    meta = write_corpus(folder, splits, tokenizer="gpt2", source=books.meta["source"], rule=rule)
    usual = Path(tempfile.gettempdir(), "data-gym-cache")  # tiktoken's
    vocabulary = Path(os.environ.get("TIKTOKEN_CACHE_DIR", usual))
    (folder / "tiktoken").mkdir(exist_ok=True)
    for path in vocabulary.iterdir():
        shutil.copyfile(path, folder / "tiktoken" / path.name)
    return meta


def main() -> None:
    """Make the corpus and print a summary."""
    new_parser(__doc__).parse_args()
    prepare(Path(__file__).resolve().parent)


if __name__ == "__main__":
    run_program(main)
