"""Tiny Shakespeare by characters, split as in nanoGPT: the first 90 % train, the rest validate.

python data/shakespeare_char/prepare.py                    download it (1.1 MB)
python data/shakespeare_char/prepare.py --url=URL          from a mirror

The text is kept as data/shakespeare_char/input.txt; a copy may be put there.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from common.errors import run_program
from data.corpus import new_parser, write_corpus
from data.download import download
from data.tokenizers import CharTokenizer

URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


def prepare(folder: Path, url: str = URL) -> dict:
    """Write the corpus to `folder` and return its meta.json; UserError if the text differs."""
    download(url, folder / "input.txt", SHA256)
    text = (folder / "input.txt").read_bytes().decode("utf-8")
    characters = "".join(sorted(set(text)))
    ids = CharTokenizer(characters).array(text)
    cut = int(len(text) * 0.9)
    return write_corpus(
        folder,
        {"train": [ids[:cut]], "val": [ids[cut:]]},
        tokenizer="char",
        source=f"Tiny Shakespeare, {URL}",
        rule="the first 90 % of the characters are train, the rest validation",
        characters=characters,
    )


def main() -> None:
    """Make the corpus in the folder of this file and print what it holds."""
    parser = new_parser(__doc__)
    parser.add_argument("--url", default=URL, help="where to download it from (http or https)")
    prepare(Path(__file__).resolve().parent, parser.parse_args().url)


if __name__ == "__main__":
    run_program(main)
