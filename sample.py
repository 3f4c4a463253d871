"""Write text with a trained model.

    python sample.py out/RUN [--start=TEXT] [--name=value ...]

    python sample.py out/alibi-stdlib-L128-s1337 --start="def main(" --max_new_tokens=300
    python sample.py out/alibi-stdlib-L128-s1337 --start=FILE:prompt.txt --num_samples=3

The text goes to standard output, and everything else to standard error.
"""

import codecs
import sys
from pathlib import Path

import torch

from common import device
from common.errors import UserError, run_program
from configurable import SampleSettings, configure
from run.load import load_run

SEPARATOR = "-" * 15  # between two samples


def read_prompt(start: str) -> str:
    """The text that `start` stands for: itself, or that of the file of FILE:path.

    UserError if the text is empty or is not UTF-8.
    """
    text = start
    try:
        if start.startswith("FILE:"):
            text = Path(start.removeprefix("FILE:")).read_text(encoding="utf-8-sig")
        text.encode()  # a terminal may give other bytes
    except UnicodeError as error:
        raise UserError(f"--start={start} is not UTF-8 text: save it as UTF-8") from error
    if not text:
        raise UserError(f"the prompt is empty (--start={start}): give at least one character")
    return text


def main() -> None:
    """Print a prompt and the text that the model puts after it."""
    s, words = configure(SampleSettings, sys.argv[1:], __doc__)
    if len(words) != 1:
        raise UserError("name one run folder: python sample.py out/alibi-stdlib-L128-s1337")
    prompt = read_prompt(s.start)
    run = load_run(words[0], s.device, s.dtype, s.pos_file)
    model = run.model
    if s.extend is not None:
        model.pos.extend(s.extend)
    tokenizer = run.corpus.tokenizer
    idx = torch.tensor([tokenizer.encode(prompt)], device=run.compute.device)  # (1, T)
    print(f"{run.folder}: {model.pos.describe()}, on {run.compute.reason}", file=sys.stderr)

    for number in range(s.num_samples):
        if number > 0:
            print(SEPARATOR)
        print(prompt, end="", flush=True)
        # a token may end inside a character, which is printed once it is whole
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        generator = torch.Generator(idx.device).manual_seed(s.seed + number)
        tokens = model.stream(idx, s.max_new_tokens, s.temperature, s.top_k, generator)
        with device.autocast(run.compute):
            for token in map(int, tokens):
                if token == tokenizer.end:
                    break
                print(decoder.decode(tokenizer.decode_bytes([token])), end="", flush=True)
        print(decoder.decode(b"", final=True))


if __name__ == "__main__":
    run_program(main)
