"""Write text with a trained model.

    python sample.py out/RUN [--start=TEXT] [--name=value ...]

    python sample.py out/alibi-stdlib-L128-s1337 --start="def main(" --max_new_tokens=300
    python sample.py out/alibi-stdlib-L128-s1337 --start=FILE:prompt.txt --num_samples=3 --stop=END

The text goes to standard output, and everything else to standard error.
"""

if __name__ == "__main__":  # --help answers before torch is imported
    from configurable import SampleSettings, answer_help

    answer_help(SampleSettings, __doc__)

import codecs
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from configurable import SampleSettings, UserError, configure, run_program
from data import Tokenizer
from runs import device
from runs.checkpoint import load_run

SEPARATOR = "-" * 15  # between two samples


def read_prompt(start: str) -> str:
    """The text that `start` stands for: itself, the file of FILE:path, or standard input for "-".

    UserError if the text is empty, is not UTF-8 or cannot be read.
    """
    try:
        if start == "-":
            text = sys.stdin.buffer.read().decode("utf-8-sig")
        elif start.startswith("FILE:"):
            text = Path(start.removeprefix("FILE:")).read_text(encoding="utf-8-sig")
        else:
            text = start
    except OSError as error:
        raise UserError(f"--start={start}: {error.strerror}; check the name") from error
    except UnicodeDecodeError as error:
        raise UserError(f"--start={start} is no text in UTF-8: save it as that") from error
    if not text:
        raise UserError(f"the prompt is empty (--start={start}): give at least one character")
    return text


def until(stop: str, contents: Iterable[bytes]) -> Iterator[str]:
    """The text of UTF-8 bytes, which may be cut anywhere, up to the first `stop`.

    No half character is given out: bytes that are no text become U+FFFD. An end that may be the
    beginning of `stop` is held back until more is known.
    """
    held = ""
    for text in codecs.iterdecode(contents, "utf-8", "replace"):
        held += text
        if stop and stop in held:
            yield held.partition(stop)[0]
            return
        begun = [k for k in range(1, len(stop)) if held.endswith(stop[:k])]
        safe = len(held) - max(begun, default=0)
        yield held[:safe]
        held = held[safe:]
    yield held


def token_bytes(
    tokens: Iterable[torch.Tensor], tokenizer: Tokenizer, drawn: list[int]
) -> Iterator[bytes]:
    """The bytes of each token (1, 1), up to the end of the text; its number is added to `drawn`."""
    for token in map(int, tokens):
        if token == tokenizer.end:
            return
        drawn.append(token)
        yield tokenizer.decode_bytes([token])


def main() -> None:
    """Print a prompt and the text that the model puts after it."""
    s, words = configure(SampleSettings, sys.argv[1:], __doc__)
    if len(words) != 1:
        raise UserError("name one run folder: python sample.py out/alibi-stdlib-L128-s1337")
    prompt = read_prompt(s.start)
    run = load_run(words[0], s.device, s.dtype, s.pos_file)
    model = run.model
    if s.extend:
        model.pos.extend(s.extend)
    tokenizer = run.corpus.tokenizer
    idx = torch.tensor([tokenizer.encode(prompt)], device=run.compute.device)  # (1, T)
    print(f"{run.folder}: {model.pos.describe()}, on {run.compute.reason}", file=sys.stderr)
    total = idx.shape[1] + s.max_new_tokens
    if total > run.settings.block_size:
        length = run.settings.block_size
        print(f"note: trained on {length} tokens; this text may have {total}", file=sys.stderr)
    if model.pos.limit is not None and total > model.pos.limit:
        print(
            f"note: {run.settings.pos} defines {model.pos.limit} positions: "
            f"a longer text goes on from its last {model.pos.limit} tokens, encoded again",
            file=sys.stderr,
        )
    if s.compile:
        missing = device.missing_compiler()
        if missing:
            print(f"not compiled: {missing}", file=sys.stderr)
        else:
            model.compile()

    drawn = []  # all tokens that are drawn
    started = time.perf_counter()
    for number in range(s.num_samples):
        if number > 0:
            print(SEPARATOR)
        print(prompt, end="", flush=True)
        generator = torch.Generator(idx.device).manual_seed(s.seed + number)
        tokens = model.stream(idx, s.max_new_tokens, s.temperature, s.top_k, s.top_p, generator)
        with device.autocast(run.compute):
            for text in until(s.stop, token_bytes(tokens, tokenizer, drawn)):
                print(text, end="", flush=True)
        print()
    speed = len(drawn) / (time.perf_counter() - started)
    print(f"{speed:,.0f} tokens/s", file=sys.stderr)


if __name__ == "__main__":
    run_program(main)
