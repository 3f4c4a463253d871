"""Needles in a corpus: lines of a key and a value, hidden in its text and asked for later.

    python data/needles/prepare.py --corpus=books --kind=single
    python data/needles/prepare.py --corpus=stdlib --kind=multi_key --length=256
    python data/needles/prepare.py --corpus=books --kind=passkey --needle_fraction=0.5
    python train.py config/size/small.py --dataset=needles_single_books --learning_rate=1e-3

A needle is a line of random letters such as "qx:BMFK.", and the question is the same line again:
the answer after "qx:" is correct if all letters of the value are. A text is a window of the corpus
in which needles and, after them, questions replace the original tokens.

    passkey      one needle in filler text: "The grass is green. The sky is blue ..."
    single       one needle in the corpus' own text
    multi_key    four needles, one of which is asked for
    multi_query  four needles, all asked for, in any order
    multi_value  three needles with one key, asked for three times, in the order of the text

Training texts have --length inputs and come from the training split. A fraction, --needle_fraction,
has needles; the others are text only. A random number of questions is placed anywhere after the
needles: lines fill up to half of a text, because one question per text is too little to learn from.
Every token is trained on, as with text.

Validation texts come from the validation split and have 1 to 32 times that length. The questions
are at the end. Only the values are scored, by depth: how far back the needle begins, as a fraction
of the length. Each eighth of the depths has 400 values; if lines take up much of a short text, the
smallest and largest depths are missing. The longest test, 3,200 texts, takes half an hour on one
core (0.8M parameters): --eval_lengths=128,256,1024 skips it. extrapolation.json also has accuracy
by depth.

Keys and values are drawn per text, so nothing can be memorised, and no key with its colon occurs in
the text by chance. Each letter is a single token in every tokenizer. A random guess is right for 1
in 456,976 values. Answering with the value of a random needle is right for 1 in 4 with four
needles. A model that was not trained on the same kind of texts may not understand the questions.
One that was can also be tested on plain text (evaluate.py out/RUN --dataset=books).

--needle_fraction is at least 0.05. Of the 32,000 texts in 1,000 steps of 32 texts, that is 1,600
with needles. With far fewer, a wrong answer would reflect too little training rather than distance.
"""

import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from common.errors import UserError, run_program
from data.batches import LEAST_ANSWERS
from data.corpus import OF_TOKENS, Corpus, Pair, load_corpus, new_folder, new_parser, write_texts

LETTERS = "abcdefghijklmnopqrstuvwxyz"  # of keys; values have capitals, which are rare in text
KEY, VALUE = 2, 4  # letters
LINE = KEY + VALUE + 3  # tokens of a needle or question: "\nqx:BMFK."
BACK = LINE - 3  # from a question's first token to the one before the value's last letter
# of the passkey test in PI (Chen et al. 2023) and landmark attention (Mohtashami and Jaggi 2023)
FILLER = (
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
)
TRAIN_TEXTS = 65536
DEPTHS = 8  # bins of the length
VALUES = LEAST_ANSWERS  # validation answers at each depth
LEAST_FRACTION = 0.05  # of the training texts have needles
TIMES = 6  # validation texts have 1, 2, 4 ... 32 times the training length
TRIES = 3000  # to hit a depth that may be out of reach


class Kind(NamedTuple):
    """The number of needles in a text, how many are asked for, and whether they share a key."""

    needles: int
    asked: int
    one_key: bool = False
    filler: bool = False


KINDS = {
    "passkey": Kind(1, 1, filler=True),
    "single": Kind(1, 1),
    "multi_key": Kind(4, 1),
    "multi_query": Kind(4, 4),
    "multi_value": Kind(3, 3, one_key=True),
}


class Writer:
    """Writes needles and questions of a kind into windows of the text of a corpus."""

    def __init__(self, kind: Kind, corpus: Corpus, generator: np.random.Generator) -> None:
        """UserError if the tokenizer cannot write a needle."""
        self.kind = kind
        self.tokenizer = corpus.tokenizer
        self.generator = generator
        letters = f"\n:.{LETTERS}{LETTERS.upper()}"
        try:
            self.ids = {letter: self.tokenizer.encode(letter)[-1] for letter in letters}
            for letter, n in self.ids.items():
                if self.tokenizer.decode_bytes([n]) != letter.encode():
                    raise UserError(f"its tokenizer has no token for {letter!r} alone")
            self.filler = self.tokenizer.array(FILLER) if kind.filler else None
        except UserError as error:
            raise UserError(f"{corpus.name} cannot hold needles: {error}") from error

    def needles(self, tokens: np.ndarray) -> list[list[int]]:
        """The tokens of the needles for a text, which is overwritten with filler if the kind uses
        it.

        Their keys differ unless they share one; none occurs in the text with a colon.
        """
        if self.filler is not None:
            turn = self.generator.integers(len(self.filler))
            tokens[:] = np.resize(np.roll(self.filler, turn), len(tokens))
        text = self.tokenizer.decode_bytes(tokens)
        keys: list[str] = []
        while len(keys) < self.kind.needles:
            key = "".join(self.generator.choice([*LETTERS], KEY))
            if key not in keys and f"{key}:".encode() not in text:
                keys.append(key)
        lines = []
        for key in keys:
            if self.kind.one_key:
                key = keys[0]
            value = "".join(self.generator.choice([*LETTERS], VALUE)).upper()
            lines.append([self.ids[letter] for letter in f"\n{key}:{value}."])
        return lines

    def starts(self, room: int, count: int) -> np.ndarray:
        """Random starts of lines in `room` tokens, ascending, without overlap, (count,)."""
        free = self.generator.integers(room - LINE * count + 1, size=count)
        return np.sort(free) + LINE * np.arange(count)

    def questions(self, count: int) -> np.ndarray:
        """Which needles are asked for, (count,): in the order of the text if they share a key."""
        needles = self.kind.needles
        if self.kind.one_key:
            return np.arange(count) % needles
        return self.generator.permutation(np.arange(max(count, needles)) % needles)[:count]

    def teach(self, tokens: np.ndarray) -> None:
        """Write needles over the tokens of a training text, (width,), followed by questions."""
        lines = self.needles(tokens)
        needles = self.kind.needles
        most = max(self.kind.asked, len(tokens) // 2 // LINE - needles)
        which = self.questions(int(self.generator.integers(1, most + 1)))
        starts = self.starts(len(tokens), needles + len(which))
        for start, number in zip(starts, [*range(needles), *which], strict=True):
            tokens[start : start + LINE] = lines[number]

    def test(self, tokens: np.ndarray, depth: int) -> np.ndarray:
        """Write needles over the tokens of a text, (width,), and questions at its end; one has its
        needle at `depth` if possible. Returns the distance at each letter of a value, else 0.
        """
        lines = self.needles(tokens)
        width = len(tokens)
        places = width - LINE * np.arange(self.kind.asked, 0, -1)
        for _ in range(TRIES):
            starts = self.starts(places[0], len(lines))
            which = self.questions(len(places))
            distances = places + BACK - starts[which]
            if depth in depths_of(distances, width):
                break
        for start, number in zip([*starts, *places], [*range(len(lines)), *which], strict=True):
            tokens[start : start + LINE] = lines[number]
        scored = np.zeros((len(which), LINE), dtype=np.int64)
        scored[:, -1 - VALUE : -1] = distances[:, None]
        return np.pad(scored.ravel(), (width - scored.size, 0))


def depths_of(distances: np.ndarray, width: int) -> np.ndarray:
    """The eighth of the length that each distance falls in, in texts of `width` tokens."""
    return DEPTHS * distances // (width - 1)


def windows(
    generator: np.random.Generator, source: np.ndarray, count: int, width: int
) -> np.ndarray:
    """Random windows of a split, (count, width) int64."""
    starts = generator.integers(len(source) - width + 1, size=count)
    return source[starts[:, None] + np.arange(width)].astype(np.int64)


def validation_texts(writer: Writer, source: np.ndarray, width: int) -> Pair:
    """Texts with at least VALUES answers at each reachable depth, filling the rarest first."""
    counts = np.zeros(DEPTHS)
    texts = []
    answers = []
    while counts.min() < VALUES:
        rarest = counts.argmin()
        tokens = windows(writer.generator, source, 1, width)[0]
        distances = writer.test(tokens, rarest)
        texts.append(tokens)
        answers.append(distances)
        depths = depths_of(distances[distances > 0][::VALUE], width)  # one of each value
        if rarest not in depths:
            counts[rarest] = np.inf  # out of reach
        np.add.at(counts, depths, 1)
    return np.stack(texts), np.stack(answers)


def prepare(
    folder: Path, corpus: Corpus, kind: str, length: int, fraction: float = 1.0, seed: int = 0
) -> dict:
    """Write texts made from a corpus to `folder` and return its meta.json.

    UserError if the corpus already has answers, too little text, or no letters for needles.
    """
    needles = KINDS[kind]
    longest = length << TIMES - 1
    least = LINE * (needles.needles + needles.asked) * 3 // 2
    if not corpus.is_text:
        raise UserError(f"{corpus.name} has answers of its own: name a corpus without")
    if length < least:
        raise UserError(f"--length={length}: these needles need at least {least} tokens")
    if longest >= 2**16 or longest >= len(corpus.val):
        raise UserError(
            f"--length={length}: the longest test has {longest} tokens, and must have less than "
            f"65536 and than the validation split of {corpus.name}, which has {len(corpus.val)}"
        )
    if not LEAST_FRACTION <= fraction <= 1:
        raise UserError(f"--needle_fraction={fraction} is not at least {LEAST_FRACTION}, at most 1")
    generator = np.random.default_rng(seed)
    writer = Writer(needles, corpus, generator)
    sizes = [length << k for k in range(TIMES)]
    validation = {size: validation_texts(writer, corpus.val, size + 1) for size in sizes}
    train = windows(generator, corpus.train, TRAIN_TEXTS, length + 1)
    for tokens in train[: round(fraction * TRAIN_TEXTS)]:
        writer.teach(tokens)
    if corpus.meta["tokenizer"] == "file":
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(corpus.folder / "tokenizer.json", folder)
    return write_texts(
        folder,
        train=(train, np.ones_like(train)),  # every token is trained on
        validation=validation,
        rows={
            "protocol": "needles",
            "kind": f"{kind} needles",
            "trained": length,
            "chance": len(LETTERS) ** -VALUE,
        },
        source=f"{kind} needles in {fraction:.0%} of texts of {corpus.name}, seed {seed}",
        rule=corpus.meta["rule"],
        **{key: corpus.meta[key] for key in OF_TOKENS if key in corpus.meta},
    )


def main() -> None:
    """Make the corpus."""
    parser = new_parser(__doc__, "needles_KIND_CORPUS")
    add = parser.add_argument
    add("--corpus", required=True, help="whose text and tokenizer it has")
    add("--kind", required=True, choices=KINDS)
    add("--length", type=int, default=128, help="inputs of a training text")
    add("--needle_fraction", type=float, default=1.0, help="of the training texts have needles")
    s = parser.parse_args()
    name = s.name.replace("KIND", s.kind).replace("CORPUS", s.corpus)
    folder = new_folder(name, s.overwrite)
    prepare(folder, load_corpus(s.corpus), s.kind, s.length, s.needle_fraction, s.seed)


if __name__ == "__main__":
    run_program(main)
