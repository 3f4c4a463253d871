"""Public-domain books: 142 MB to train on and 8 MB by two other authors to validate on.

python data/books/prepare.py                        bytes: the corpus books
python data/books/prepare.py --tokenizer=gpt2       GPT-2's tokens: the corpus books_gpt2
python data/books/prepare.py --from=PATH            from files at hand; see below
python data/books/prepare.py --url=URL              from a mirror

list.json names each book: its number at Project Gutenberg, its file in a GitHub repository at a
fixed commit, the size and SHA-256 of the file, where the text without Project Gutenberg's header
and licence begins and ends in it, and the SHA-256 of that text. Every text is checked. The texts
are kept in data/books/texts, so a download that stopped goes on, and the second corpus needs none.

PATH is a file or folder, such as a clone of that repository: .txt files are known by their SHA-256
whatever their names, and the rows of .jsonl files (also .xz, .gz) by that of the field "text".
--from may be given several times.
"""

import hashlib
import json
import re
import sys
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from configurable import UserError, run_program  # noqa: E402
from data import new_parser, tokenizer_of, write_corpus  # noqa: E402
from data.download import download  # noqa: E402
from data.text.prepare import documents, encode  # noqa: E402

BOOKS = Path(__file__).resolve().parent
REPOSITORY = "https://github.com/rcdm-uga/Gutenberg_Text"
URL = (
    "https://raw.githubusercontent.com/rcdm-uga/Gutenberg_Text/"
    "a0b16d35a9851168ce9ac649851c17b7ab08d48e"
)
OTHERWISE = (
    "the books that came are kept: check the network and start again, name a mirror with "
    f"--url=URL, or a copy with --from=PATH, such as a clone of {REPOSITORY} (400 MB)"
)
RULE = "the books by Edith Wharton and Jack London are validation, those by others are train"


@dataclass(frozen=True)
class Book:
    """A row of list.json. `start` and `end` count characters of the normalised file."""

    number: int  # at Project Gutenberg
    file: str  # its path in the repository: author/title.txt
    size: int  # bytes of the file
    sha256: str  # of the file
    start: int
    end: int
    text_sha256: str  # of the UTF-8 bytes of the text


def read_list(path: Path) -> dict[str, list[Book]]:
    """The books of "train" and of "val", in the order of the corpus."""
    rows = json.loads(path.read_text(encoding="utf-8"))
    return {split: [Book(*row) for row in rows[split]] for split in ("train", "val")}


# ---- texts


def normal(text: str) -> str:
    """`text` with plain line ends, no spaces before them, and no two empty lines in a row."""
    text = re.sub(r"[^\S\n]+\n", "\n", text.replace("\r\n", "\n"))
    return re.sub(r"\n{3,}", "\n\n", text)


def cut(raw: bytes, book: Book) -> str:
    """The text of `book` in its file as the repository has it."""
    return normal(raw.decode("utf-8-sig"))[book.start : book.end]


def digest(data: bytes) -> str:
    """SHA-256, 64 digits."""
    return hashlib.sha256(data).hexdigest()


def keep(text: str, book: Book, texts: Path) -> None:
    """Write the text of `book` into the folder `texts`; UserError if it is another one."""
    data = text.encode("utf-8")
    if digest(data) != book.text_sha256:
        raise UserError(f"{book.file} holds another text than list.json says: {OTHERWISE}")
    (texts / f"{book.number}.txt").write_bytes(data)


def missing(books: Sequence[Book], texts: Path) -> list[Book]:
    """The books whose text is not in the folder `texts`, or is another one there."""
    left = []
    for book in books:
        path = texts / f"{book.number}.txt"
        if not path.is_file() or digest(path.read_bytes()) != book.text_sha256:
            left.append(book)
    return left


def take(sources: Sequence[str], books: Sequence[Book], texts: Path) -> None:
    """Keep the texts of those of `books` that the files and folders in `sources` hold."""
    files = []
    for source in map(Path, sources):
        if not source.exists():
            raise UserError(f"--from={source} is no file or folder")
        files += [file for file in sorted([source, *source.rglob("*")]) if file.is_file()]
    by_text = {book.text_sha256: book for book in books}
    by_file = {book.sha256: book for book in books}
    for row in documents([file for file in files if ".jsonl" in file.suffixes], "archives"):
        book = by_text.get(digest(normal(row).encode("utf-8")))
        if book:
            keep(normal(row), book, texts)
    for file in tqdm(files, unit="file", desc="files", disable=None):
        if file.suffix == ".txt":
            raw = file.read_bytes()
            sha256 = digest(raw)
            if sha256 in by_file:
                keep(cut(raw, by_file[sha256]), by_file[sha256], texts)
            elif sha256 in by_text:
                keep(raw.decode("utf-8"), by_text[sha256], texts)


# ---- the corpus


def prepare(
    folder: Path, tokenizer: str = "bytes", sources: Sequence[str] = (), url: str = URL
) -> dict:
    """Write the corpus to `folder` and return its meta.json.

    The books are read from `sources` if there are any, else downloaded from below `url`. The texts
    are kept beside list.json. UserError if a book is missing or another one.
    """
    encoder = tokenizer_of({"tokenizer": tokenizer})  # first: it may need a network too
    books = read_list(BOOKS / "list.json")
    every = books["train"] + books["val"]
    texts = BOOKS / "texts"
    texts.mkdir(exist_ok=True)
    left = missing(every, texts)
    if sources:
        take(sources, left, texts)
        left = missing(left, texts)
        if left:
            raise UserError(
                f"{' '.join(sources)} lacks {len(left)} of the {len(every)} books, such as "
                f"{left[0].file}: name more with --from=PATH, or leave it out to download them"
            )
    for book in tqdm(left, unit="book", desc="downloading to data/books/texts", disable=None):
        path = texts / f"{book.number}.part"
        address = f"{url.rstrip('/')}/{urllib.parse.quote(book.file)}"
        download(address, path, book.sha256, OTHERWISE)
        keep(cut(path.read_bytes(), book), book, texts)
        path.unlink()
    splits = {}
    for split in books:  # one book after the other, so that few are in memory
        paths = [texts / f"{book.number}.txt" for book in books[split]]
        read = (path.read_bytes().decode("utf-8") for path in paths)
        splits[split] = (ids for _, ids in encode(read, encoder))
    listed = digest((BOOKS / "list.json").read_bytes())
    source = f"{len(every)} books of Project Gutenberg, list.json {listed[:16]}"
    return write_corpus(folder, splits, tokenizer=tokenizer, source=source, rule=RULE)


def main() -> None:
    """Make data/books or data/books_gpt2 and print what it holds."""
    parser = new_parser(__doc__)
    add = parser.add_argument
    add("--tokenizer", default="bytes", choices=("bytes", "gpt2"), help="what a token is")
    add("--from", dest="sources", action="append", metavar="PATH", help="files at hand")
    add("--url", default=URL, help="download from below this address (http or https)")
    given = parser.parse_args()
    folder = BOOKS if given.tokenizer == "bytes" else BOOKS.with_name("books_gpt2")
    prepare(folder, given.tokenizer, given.sources or (), given.url)


if __name__ == "__main__":
    run_program(main)
