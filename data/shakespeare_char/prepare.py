"""Tiny Shakespeare by characters, split as in nanoGPT: the first 90 % train, the rest validate.

python data/shakespeare_char/prepare.py                    download it (1.1 MB)
python data/shakespeare_char/prepare.py --url=URL          from a mirror
python data/shakespeare_char/prepare.py --file=input.txt   from a copy
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from configurable import run_program  # noqa: E402
from data import CharTokenizer, new_parser, write_corpus  # noqa: E402
from data.download import download, verify  # noqa: E402

URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


def prepare(folder: Path, url: str = URL, file: str = "") -> dict:
    """Write the corpus to `folder` and return its meta.json.

    The text is that of `file` if it is given, else from `url`; UserError if it is another text.
    """
    with TemporaryDirectory() as temporary:
        path = Path(file or Path(temporary, "input.txt"))
        if file:
            verify(path, SHA256, file)
        else:
            download(url, path, SHA256)
        text = path.read_bytes().decode("utf-8")
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
    parser.add_argument("--file", default="", help="a copy on this machine, instead of downloading")
    given = parser.parse_args()
    prepare(Path(__file__).resolve().parent, given.url, given.file)


if __name__ == "__main__":
    run_program(main)
