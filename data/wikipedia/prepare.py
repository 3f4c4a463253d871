"""Wikipedia corpora with published results: enwik8, text8 and WikiText-103.

python data/wikipedia/prepare.py enwik8                      bytes
python data/wikipedia/prepare.py text8                       27 characters
python data/wikipedia/prepare.py wikitext103                 articles as bytes
python data/wikipedia/prepare.py wikitext103 --tokenizer=gpt2    the corpus wikitext103_gpt2
python data/wikipedia/prepare.py NAME --test                 the corpus NAME_test, see below
python data/wikipedia/prepare.py NAME --url=URL              from a mirror

The archive is kept as data/wikipedia/NAME.zip and checked by its SHA-256; a copy may be put there.
The splits are the usual ones. For enwik8 and text8, the first 90 million characters are for
training, the next 5 million for validation. Papers report on the test split: with --test it
replaces the validation split. Choose on NAME, then report `evaluate.py out/RUN
--dataset=NAME_test`.
"""

import io
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from common.errors import UserError, run_program
from data.corpus import new_parser, write_corpus
from data.download import download
from data.text.prepare import encode
from data.tokenizers import HERE, tokenizer_of

LETTERS = " abcdefghijklmnopqrstuvwxyz"  # of text8
TITLE = re.compile(r" = (?!=).*[^=] = \n")  # an article's title line in WikiText


ARCHIVES = {  # URL and SHA-256
    "enwik8": (
        "https://mattmahoney.net/dc/enwik8.zip",
        "547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
    ),
    "text8": (
        "https://mattmahoney.net/dc/text8.zip",
        "a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
    ),
    "wikitext103": (
        "https://wikitext.smerity.com/wikitext-103-raw-v1.zip",
        "91c00ae287f0d699e18605c84afc9e45c192bc6b7797ff8837e5474655a33794",
    ),
}


def articles(archive: zipfile.ZipFile, member: str) -> Iterator[str]:
    """The articles of a WikiText split, one at a time; each begins with its title."""
    lines: list[str] = []
    with archive.open(member) as file:
        for line in io.TextIOWrapper(file, encoding="utf-8", newline="\n"):
            if TITLE.fullmatch(line) and "".join(lines).strip():
                yield "".join(lines)
                lines = []
            lines.append(line)
    yield "".join(lines)


def prepare(folder: Path, tokenizer: str = "bytes", test: bool = False, mirror: str = "") -> dict:
    """Write the corpus whose name `folder` starts with, and return its meta.json.

    UserError if the archive has changed.
    """
    name = folder.name.split("_")[0]
    about = {"tokenizer": tokenizer}
    if name == "text8":
        about = {"tokenizer": "char", "characters": LETTERS}
    encoder = tokenizer_of(about)  # first: it may need a network too
    path = Path(__file__).with_name(f"{name}.zip")
    url, sha256 = ARCHIVES[name]
    download(mirror or url, path, sha256)
    archive = zipfile.ZipFile(path)
    splits = {}
    if name == "wikitext103":
        for split, part in (("train", "train"), ("val", "test" if test else "valid")):
            texts = articles(archive, f"wikitext-103-raw/wiki.{part}.raw")
            splits[split] = (ids for _, ids in encode(texts, encoder))
    else:
        raw = archive.read(name)
        tokens = np.frombuffer(raw, np.uint8)
        if name == "text8":
            tokens = encoder.array(raw.decode("ascii"))
        million = len(raw) // 100  # characters, one byte each
        start = 95 * million if test else 90 * million
        val = tokens[start : start + 5 * million]
        splits = {"train": [tokens[: 90 * million]], "val": [val]}
    rule = f"the usual parts; val is the {'test' if test else 'validation'} part"
    return write_corpus(folder, splits, source=f"{name}, {url}", rule=rule, **about)


def main() -> None:
    """Make a corpus in data/."""
    parser = new_parser(__doc__)
    add = parser.add_argument
    add("name", choices=[*ARCHIVES], help="which corpus")
    add("--tokenizer", default="bytes", choices=("bytes", "gpt2"), help="of wikitext103")
    add("--test", action="store_true", help="the test part in place of the validation part")
    add("--url", default="", help="where to download the archive from (http or https)")
    options = parser.parse_args()
    name = options.name
    if options.tokenizer == "gpt2" and name != "wikitext103":
        raise UserError(f"{name} has bytes or characters only: leave --tokenizer out")
    if options.tokenizer == "gpt2":
        name += "_gpt2"
    if options.test:
        name += "_test"
    prepare(HERE / name, options.tokenizer, options.test, options.url)


if __name__ == "__main__":
    run_program(main)
