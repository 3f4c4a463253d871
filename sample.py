"""Write text with a trained model.

    python sample.py out/RUN [--start=TEXT] [--name=value ...]

    python sample.py out/alibi-stdlib-L128-s1337 --start="def main(" --max_new_tokens=300
    python sample.py out/alibi-stdlib-L128-s1337 --start=FILE:prompt.txt --num_samples=3 --stop=END
    python sample.py out/alibi-stdlib-L128-s1337 --json          # with the log-probabilities

The text goes to standard output, and everything else to standard error. The log-probabilities are
those of the model itself: before penalty, temperature, and what top_k, top_p and min_p leave out.
"""

if __name__ == "__main__":  # --help answers before torch is imported
    from configurable import SampleSettings, answer_help

    answer_help(SampleSettings, __doc__)

import codecs
import json
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from pathlib import Path

import torch

import data
from configurable import SampleSettings, at_place, configure, explain_errors, require, run_program
from posenc import Grid
from runs import device
from runs.checkpoint import Run
from runs.start import open_run, own_corpus, pretrained_run

SEPARATOR = "-" * 15  # between two samples


# ---- the prompt


def read_prompt(start: str) -> str:
    """The text that `start` stands for: itself, the file of FILE:path, or standard input for "-".

    UserError if the text is empty, is not UTF-8 or cannot be read.
    """
    text = start
    source = "standard input" if start == "-" else start.removeprefix("FILE:")
    with at_place(source), explain_errors("cannot be read", "check the name in --start"):
        if start == "-":
            text = sys.stdin.buffer.read().decode("utf-8-sig")
        elif start.startswith("FILE:"):
            text = Path(source).read_bytes().decode("utf-8-sig")
    advice = "give at least one character, or leave --start out"
    require(text, f"the prompt is empty (--start={start}); {advice}")
    return text


# ---- the text


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


def remarks(trained: Run, total: int) -> Iterator[str]:
    """Notes on a text of up to `total` tokens: past the scheme's last position, past training."""
    scheme, length, limit = trained.model.pos.text, trained.settings.block_size, trained.model.limit
    reach = total if limit is None else min(total, limit)
    if reach < total:
        limits = f"{scheme} defines {reach} positions, and the text may have {total} tokens"
        yield f"note: {limits}: past them it goes on from the last {reach}, encoded again"
    if reach > length:
        yield f"note: {scheme} was trained on {length} tokens, and may be given {reach} here"
    grid = trained.model.pos.ids_piece
    if isinstance(grid, Grid) and total != 1 + grid.side(total) ** 2:
        taken = f"{scheme} takes a text of {total} tokens for rows of {grid.side(total)} patches"
        yield f"note: {taken}; an image of n x n patches has n x n + 1 tokens"


class Drawn:
    """The tokens that are drawn after a prompt, one by one, and what is known of them."""

    def __init__(self, run: Run, tokenizer: data.Tokenizer, prompt: str, s: SampleSettings) -> None:
        self.place = run.model.wte.weight.device
        self.idx = torch.tensor([tokenizer.encode(prompt)], device=self.place)
        self.run, self.tokenizer, self.settings = run, tokenizer, s
        self.count, self.seconds = 0, 0.0

    def sample(self, number: int) -> Iterator[tuple[int, float]]:
        """The tokens of a sample, whose seed is `seed` + number, and their log-probabilities."""
        names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
        how = {name: getattr(self.settings, name) for name in names}
        how["generator"] = torch.Generator(self.place).manual_seed(self.settings.seed + number)
        logs, started = [], time.perf_counter()
        tokens = self.run.model.stream(self.idx, self.settings.max_new_tokens, logs, **how)
        for token in map(int, tokens):
            if token == self.tokenizer.end:
                return
            self.count, self.seconds = self.count + 1, self.seconds + time.perf_counter() - started
            yield token, float(logs[-1])
            started = time.perf_counter()


def samples(drawn: Drawn, prompt: str, s: SampleSettings) -> Iterator[str]:
    """The pieces of everything that is printed."""
    for n in range(s.num_samples):
        yield prompt if n == 0 else f"{SEPARATOR}\n{prompt}"
        contents = (drawn.tokenizer.decode_bytes([token]) for token, _ in drawn.sample(n))
        yield from until(s.stop, contents)
        yield "\n"


def json_lines(drawn: Drawn, prompt: str, s: SampleSettings) -> Iterator[str]:
    """A line of JSON for each sample. A token that ends inside a character is a text with U+FFFD.

    The text of the sample ends before `stop`; the tokens go on to the one that completes it.
    """
    for n in range(s.num_samples):
        tokens, logs, text = [], [], ""
        for token, log in drawn.sample(n):
            tokens, logs = [*tokens, token], [*logs, log]
            text = drawn.tokenizer.decode(tokens)
            if s.stop and s.stop in text:
                text = text.partition(s.stop)[0]
                break
        known = {"prompt": prompt, "text": text, "tokens": tokens, "log_probabilities": logs}
        yield json.dumps(known | {"texts": [drawn.tokenizer.decode([token]) for token in tokens]})
        yield "\n"


def main() -> None:
    """Print a prompt and the text that the model puts after it."""
    settings, words = configure(SampleSettings, sys.argv[1:], __doc__)
    example = "python sample.py out/alibi-stdlib-L128-s1337"
    require(len(words) == 1, f"name one run folder, not {len(words)}, as in: {example}")
    prompt = read_prompt(settings.start)
    with redirect_stdout(sys.stderr):
        folder = pretrained_run(words[0], settings)
    trained = open_run(folder, settings)
    if settings.extend:
        trained.model.extend(settings.extend)
    tokenizer = own_corpus(trained).tokenizer
    tokenizer.encode(prompt)  # refuses characters that the vocabulary lacks, before any output
    scheme, reason = trained.model.pos.describe(), trained.compute.reason
    print(f"{trained.folder}: {scheme}, on {reason}", file=sys.stderr)
    if settings.compile:
        missing = device.missing_compiler()
        print(f"not compiled: {missing}" if missing else "compiling a step", file=sys.stderr)
        trained.model.compile(disable=bool(missing))
    drawn = Drawn(trained, tokenizer, prompt, settings)
    for note in remarks(trained, drawn.idx.shape[1] + settings.max_new_tokens):
        print(note, file=sys.stderr)
    with device.autocast(trained.compute):
        for text in (json_lines if settings.json else samples)(drawn, prompt, settings):
            print(text, end="", flush=True)
    print(f"{drawn.count / max(drawn.seconds, 1e-9):,.0f} tokens/s", file=sys.stderr)


if __name__ == "__main__":
    run_program(main)
