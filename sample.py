"""Write text from a trained model, as it comes.

    python sample.py out/alibi-stdlib-L128-s1337 --start="def main(" --max_new_tokens=300
    python sample.py out/alibi-stdlib-L128-s1337 --start=FILE:prompt.txt --num_samples=3 --stop=END

The text goes to standard output, everything else to standard error.
"""

from __future__ import annotations

import codecs
import itertools
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

import data
from configurable import SampleSettings, UserError, configure, run
from runs import device
from runs.checkpoint import Run, load_run

USAGE = """python sample.py out/RUN [--start=TEXT] [--key=value ...]

Go on from a text with the model of a run folder."""
SEPARATOR = "-" * 15


# ---- the prompt


def read_prompt(start: str) -> str:
    """The text that `start` stands for: itself, a file (FILE:path) or standard input (-). UserError if it is empty."""
    if start == "-":
        text = decoded(sys.stdin.buffer.read(), "standard input")
    elif start.startswith("FILE:"):
        path = Path(start.removeprefix("FILE:"))
        try:
            text = decoded(path.read_bytes(), str(path))
        except OSError as error:
            raise UserError(
                f"{path} cannot be read ({error.strerror}); check the name in --start"
            ) from None
    else:
        text = start
    if not text:
        raise UserError(
            f"the prompt is empty (--start={start}); give at least one character, or leave --start out"
        )
    return text


def decoded(content: bytes, where: str) -> str:
    """UTF-8 bytes as text; UserError where they are not."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{where} is not UTF-8 text (byte {error.start}); save it as UTF-8"
        ) from None


def tokenizer_of(trained: Run) -> data.Tokenizer:
    """The tokenizer of the corpus that a run was trained on; UserError where that corpus is gone or another one now."""
    corpus, vocab_size = data.load(trained.settings["dataset"]), trained.model.config.vocab_size
    if corpus.vocab_size != vocab_size:
        raise UserError(
            f"{trained.folder} was trained with {vocab_size} different tokens, {corpus.name} has "
            f"{corpus.vocab_size} now; make the corpus as it was then"
        )
    return corpus.tokenizer


# ---- the text


def whole_characters(pieces: Iterable[bytes]) -> Iterator[str]:
    """The text of UTF-8 bytes that may be cut anywhere, never half a character; what is no character is U+FFFD."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for piece in pieces:
        yield decoder.decode(piece)
    yield decoder.decode(b"", final=True)


def until(stop: str, texts: Iterable[str]) -> Iterator[str]:
    """`texts` up to the first `stop`, which may be spread over several; what may be its beginning is held back."""
    held = ""
    for text in texts:
        held += text
        if stop and stop in held:
            yield held.partition(stop)[0]
            return
        keep = next(
            (k for k in range(min(len(stop) - 1, len(held)), 0, -1) if held.endswith(stop[:k])), 0
        )
        yield held[: len(held) - keep]
        held = held[len(held) - keep :]
    yield held


def remarks(trained: Run, total: int) -> Iterator[str]:
    """What must be said of a text of up to `total` tokens: past the scheme's last position, past training's length."""
    model, length = trained.model, trained.settings["block_size"]
    reach = total if model.limit is None else min(total, model.limit)
    if reach < total:
        yield (
            f"note: {model.pos.text} defines {reach} positions, and the text may have {total} tokens: "
            f"past them it goes on from the last {reach}, encoded anew"
        )
    if reach > length:
        yield f"note: {model.pos.text} was trained on {length} tokens, and may be given {reach} here"


def samples(
    trained: Run, tokenizer: data.Tokenizer, prompt: str, settings: SampleSettings
) -> Iterator[str]:
    """The pieces of everything that is printed; sample n = 0, 1, ... is drawn with seed + n."""
    s, place = settings, trained.model.wte.weight.device
    idx = torch.tensor([tokenizer.encode(prompt)], device=place)
    for note in remarks(trained, idx.shape[1] + s.max_new_tokens):
        print(note, file=sys.stderr)
    for n in range(s.num_samples):
        yield prompt if n == 0 else f"{SEPARATOR}\n{prompt}"
        generator = torch.Generator(place).manual_seed(s.seed + n)
        drawn = trained.model.stream(
            idx, s.max_new_tokens, s.temperature, s.top_k, s.top_p, generator
        )
        tokens = itertools.takewhile(
            lambda token: token != tokenizer.end, (int(token) for token in drawn)
        )
        yield from until(
            s.stop, whole_characters(tokenizer.decode_bytes([token]) for token in tokens)
        )
        yield "\n"


def main() -> int:
    """Print a prompt and what the model makes of it."""
    settings, words = configure(SampleSettings, sys.argv[1:], USAGE)
    if len(words) != 1:
        raise UserError(
            f"name one run folder, not {len(words)}, as in: python sample.py out/alibi-stdlib-L128-s1337"
        )
    prompt = read_prompt(settings.start)
    compute = device.pick(settings.device, settings.dtype)
    trained = load_run(words[0], compute.device, settings.pos_file)
    if settings.extend:
        trained.model.extend(settings.extend)
    tokenizer = tokenizer_of(trained)
    tokenizer.encode(prompt)  # refuses what the vocabulary cannot write, before anything is said
    print(f"{trained.folder}: {trained.model.pos.describe()}, on {compute.reason}", file=sys.stderr)
    try:
        with device.autocast(compute):
            for text in samples(trained, tokenizer, prompt, settings):
                print(text, end="", flush=True)
    except BrokenPipeError:  # the reader has seen enough; nothing is left to be flushed at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    run(main)
