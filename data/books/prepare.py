"""Public-domain books: 111 MB for training and 18 MB by 24 other authors for validation.

python data/books/prepare.py                        bytes: the corpus books
python data/books/prepare.py --tokenizer=gpt2       GPT-2's tokens: the corpus books_gpt2
python data/books/prepare.py --from=FOLDER          from a clone of the repository
python data/books/prepare.py --url=URL              from a mirror

list.json gives, for each book, its Project Gutenberg number, its file in a GitHub repository at a
fixed commit, the file's size and SHA-256, where the text without Project Gutenberg's header and
licence begins and ends, and the SHA-256 of that text. Every text is checked. Texts are kept in
data/books/texts, so an interrupted download resumes, and the second corpus needs none.
"""

import hashlib
import json
import re
import sys
import urllib.parse
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from common.errors import UserError, run_program
from data.corpus import new_parser, write_corpus
from data.download import download
from data.text.prepare import encode
from data.tokenizers import tokenizer_of

BOOKS = Path(__file__).resolve().parent
REPOSITORY = "https://github.com/rcdm-uga/Gutenberg_Text"
URL = (
    "https://raw.githubusercontent.com/rcdm-uga/Gutenberg_Text/"
    "a0b16d35a9851168ce9ac649851c17b7ab08d48e"
)
OTHERWISE = (
    "the books that came are kept: check the network and start again, name a mirror with "
    f"--url=URL, or a clone of {REPOSITORY} (400 MB) with --from=FOLDER"
)
RULE = "list.json: no author of a validation book has a book in train"


class Book(NamedTuple):
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


def normal(text: str) -> str:
    """Normalise line ends, strip trailing spaces and merge consecutive empty lines."""
    text = re.sub(r"[^\S\n]+\n", "\n", text.replace("\r\n", "\n"))
    return re.sub(r"\n{3,}", "\n\n", text)


def digest(data: bytes) -> str:
    """SHA-256, 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def get_text(book: Book, path: Path, clone: str, url: str) -> None:
    """Write the text of a book to `path`, from a clone or from `url`."""
    file = Path(clone, book.file)
    if not clone:
        file = path.with_suffix(".part")
        download(f"{url.rstrip('/')}/{urllib.parse.quote(book.file)}", file, book.sha256, OTHERWISE)
    text = normal(file.read_bytes().decode("utf-8-sig"))[book.start : book.end].encode()
    if digest(text) != book.text_sha256:
        raise UserError(f"{file} holds another text than list.json says: {OTHERWISE}")
    path.write_bytes(text)
    path.with_suffix(".part").unlink(missing_ok=True)


def prepare(folder: Path, tokenizer: str = "bytes", clone: str = "", url: str = URL) -> dict:
    """Write the corpus to `folder` and return its meta.json.

    Books are read from a clone of REPOSITORY if given, else downloaded from `url`. Texts are kept
    next to list.json. UserError if a book is missing or has changed.
    """
    encoder = tokenizer_of({"tokenizer": tokenizer})  # first: it may need a network too
    books = read_list(BOOKS / "list.json")
    every = books["train"] + books["val"]
    texts = BOOKS / "texts"
    texts.mkdir(exist_ok=True)
    for book in tqdm(every, unit="book", desc="texts in data/books/texts", disable=None):
        path = texts / f"{book.number}.txt"
        if not path.is_file() or digest(path.read_bytes()) != book.text_sha256:
            get_text(book, path, clone, url)
    splits = {}
    for split in books:  # one book at a time, to save memory
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
    add("--from", dest="clone", default="", metavar="FOLDER", help="a clone of the repository")
    add("--url", default=URL, help="download from below this address (http or https)")
    options = parser.parse_args()
    folder = BOOKS if options.tokenizer == "bytes" else BOOKS.with_name("books_gpt2")
    prepare(folder, options.tokenizer, options.clone, options.url)


if __name__ == "__main__":
    run_program(main)
