"""Tasks with one right answer: train on short instances, test on longer ones.

    python data/tasks/prepare.py                      all tasks
    python data/tasks/prepare.py copy reverse         two of them
    python data/tasks/prepare.py parity --seed=1      with other texts

Each task becomes a corpus of its own name. A text is a question, its answer and a full stop, e.g.
`abc>cba.`, in bytes; answer and full stop are scored. Training texts have sizes 1 to 20 and are
padded with newlines; validation texts have sizes up to 60, those of variable_tracking and
frequent_words up to 480. To add a task, write a function of a generator and a size that returns
question and answer, and add it to TASKS here and in data/corpus.py.

The chance in meta.json is the accuracy of a guess at size 20, the largest trained on. For
induction, guessing one of the symbols that follow another is right 1 / size of the time: 5 % at
size 20 and 1.7 % at 60. Guessing a bit is right for half of the texts at every size. Guessing a
whole word or number of size 20 is almost never right: its chance is given as 0, as it is for five
variables (1 in 7.9 million) and three letters in order (1 in 15,600). But following a random chain
of variable_tracking is right for half of the texts. Answering flipflop with the bit written most
often is right far more often than a guess; meta.json has that number too.
"""

import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from common.errors import UserError, run_program
from data.corpus import new_parser, write_texts
from data.tokenizers import HERE

TRAINED = 20  # the largest size in training
SIZES = range(5, 61, 5)  # of validation
TRAIN_TEXTS = 100_000
TEST_TEXTS = 500  # of each size
LETTERS = "abcdefghijklmnopqrstuvwxyz"
CHAINS = 2  # of variables
HOPS = 4  # from the first to the last variable of a chain
ALPHA = 2  # of Zipf's law: how fast words become rare
ZETA = math.pi**2 / 6  # the sum of rank ** -ALPHA over all ranks
HINTS = [*LETTERS, *LETTERS.upper(), *"!#$%&*@^~?/|"]  # names of digit places

Generator = np.random.Generator
Make = Callable[[Generator, int], tuple[str, str]]  # (generator, size) -> question and answer


def letters(generator: Generator, size: int) -> str:
    """A random word."""
    return "".join(generator.choice([*LETTERS[:8]], size))


def number(generator: Generator, size: int) -> int:
    """A random number with `size` digits, the first of which is not 0."""
    digits = generator.integers(10, size=size)
    digits[0] = generator.integers(1, 10)
    return int("".join(map(str, digits)))


def copy(generator: Generator, size: int) -> tuple[str, str]:
    """The same word again."""
    word = letters(generator, size)
    return f"{word}>", word


def reverse(generator: Generator, size: int) -> tuple[str, str]:
    """The word reversed."""
    word = letters(generator, size)
    return f"{word}>", word[::-1]


def sort(generator: Generator, size: int) -> tuple[str, str]:
    """The letters of the word in alphabetical order."""
    word = letters(generator, size)
    return f"{word}>", "".join(sorted(word))


def addition(generator: Generator, size: int) -> tuple[str, str]:
    """Two numbers of `size` digits, `12+34=46`."""
    a = number(generator, size)
    b = number(generator, size)
    return f"{a}+{b}=", str(a + b)


def addition_reversed(generator: Generator, size: int) -> tuple[str, str]:
    """The same with the digits of all numbers reversed, as abacus needs: `21+43=64`."""
    question, answer = addition(generator, size)
    a, b = question[:-1].split("+")
    return f"{a[::-1]}+{b[::-1]}=", answer[::-1]


def addition_hints(generator: Generator, size: int) -> tuple[str, str]:
    """The same with the name of its place before each digit, `a2b1+a4b3=a6b4` (Zhou et al. 2024).

    The names are consecutive on a ring, from a random start.
    """
    question, answer = addition_reversed(generator, size)
    first = int(generator.integers(len(HINTS)))
    ring = HINTS[first:] + HINTS[:first]
    place = 0
    hinted = ""
    for sign in question + answer:
        if sign.isdigit():
            hinted += ring[place]
        place = place + 1 if sign.isdigit() else 0
        hinted += sign
    question, _, answer = hinted.partition("=")
    return f"{question}=", answer


def parity(generator: Generator, size: int) -> tuple[str, str]:
    """Whether the number of ones is odd (1) or even (0)."""
    bits = generator.integers(2, size=size)
    return "".join(map(str, bits)) + ">", str(bits.sum() % 2)


def flipflop(generator: Generator, size: int) -> tuple[str, str]:
    """`size` instructions with a bit: w writes it, i is ignored; r reads the last bit written.

    The last write is at a random place, so that it is farther back at larger sizes.
    """
    kinds = generator.choice([*"wiiii"], size)
    bits = generator.integers(2, size=size)
    last = int(generator.integers(size))
    kinds[0] = kinds[last] = "w"
    kinds[last + 1 :] = "i"
    text = "".join(f"{kind}{bit}" for kind, bit in zip(kinds, bits, strict=True))
    return f"{text}r", str(bits[last])


def induction(generator: Generator, size: int) -> tuple[str, str]:
    """What followed the symbol given at the end, in a word of distinct symbols."""
    symbols = generator.permutation([*LETTERS, *LETTERS.upper(), *"0123456789"])[: size + 1]
    place = int(generator.integers(size))
    return "".join(symbols) + f">{symbols[place]}", str(symbols[place + 1])


def variable_tracking(generator: Generator, size: int) -> tuple[str, str]:
    """The variables that have a value, in the order of their chain: `A=3;....B=A;3>AB`.

    After RULER (Hsieh et al. 2024, arXiv 2404.06654): a chain is a variable with a value and HOPS
    others, each set to the one before; chains are in order, interleaved with `size` fillers and
    each other. Differences: a variable is a letter, not five in a sentence; a filler is four dots;
    and there are CHAINS chains, where RULER has 1, so that the value has to be looked up. Who
    always answers with the first chain is right in half of the texts.
    """
    length = HOPS + 1  # of a chain
    names = generator.permutation([*LETTERS.upper()])[: CHAINS * length].reshape(CHAINS, length)
    values = generator.permutation([*"0123456789"])[:CHAINS]
    lines = ["...."] * (size + CHAINS * length)
    places = generator.permutation(len(lines))[: CHAINS * length].reshape(CHAINS, length)
    for chain, value, free in zip(names, values, np.sort(places), strict=True):
        before = value
        for name, place in zip(chain, free, strict=True):
            lines[place] = f"{name}={before};"
            before = name
    asked = int(generator.integers(CHAINS))
    return "".join(lines) + f"{values[asked]}>", "".join(names[asked])


def frequent_words(generator: Generator, size: int) -> tuple[str, str]:
    """The three most frequent letters, the most frequent first, in a text of letters and dashes.

    After RULER (Hsieh et al. 2024, arXiv 2404.06654): the word of rank k occurs n k^-2 / zeta(2)
    times, truncated to an integer, in random order; rank 1 is noise, ranks 2 to 4 are the answer.
    Differences: words are letters, ranked anew in each text; noise is a dash; and the order of the
    answer counts. n is 50 + 10 size: from 53 on, ranks 2 to 5 have different counts, so there are
    no ties; from about 1,200 on theirs has more words. Counts over a fraction of the text often
    have the same order, so a reader of a short window does well.
    """
    ranks = np.arange(1, 2 + len(LETTERS))
    counts = (50 + 10 * size) / ranks**ALPHA / ZETA
    words = ["-", *generator.permutation([*LETTERS])]
    text = generator.permutation(np.repeat(words, counts.astype(int)))
    return "".join(text) + ">", "".join(words[1:4])


TASKS: dict[str, tuple[Make, float]] = {  # and chance at TRAINED
    "copy": (copy, 0),
    "reverse": (reverse, 0),
    "sort": (sort, 0),
    "addition": (addition, 0),
    "addition_reversed": (addition_reversed, 0),
    "addition_hints": (addition_hints, 0),
    "parity": (parity, 0.5),
    "flipflop": (flipflop, 0.5),
    "induction": (induction, 1 / TRAINED),
    "variable_tracking": (variable_tracking, 0),
    "frequent_words": (frequent_words, 0),
}
FURTHER = {  # sizes of validation beyond SIZES
    "variable_tracking": (120, 240, 480),
    "frequent_words": (120, 240, 480),
}


def make_texts(make: Make, generator: Generator, sizes: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """A padded text of each of these sizes: tokens, and 1 where a token is scored, else 0."""
    pairs = [make(generator, size) for size in sizes]
    longest = max(len(question + answer) for question, answer in pairs) + 1
    texts = "".join(f"{question}{answer}.".ljust(longest, "\n") for question, answer in pairs)
    tokens = np.frombuffer(texts.encode("ascii"), dtype=np.uint8).reshape(len(pairs), longest)
    starts = np.array([len(question) for question, _ in pairs])
    ends = np.array([len(question + answer) for question, answer in pairs])
    place = np.arange(longest)
    scored = (place >= starts[:, None]) & (place <= ends[:, None])
    return tokens, scored.astype(np.int64)


def prepare(folder: Path, seed: int = 0) -> dict:
    """Write the texts of the task named like `folder` and return its meta.json."""
    make, chance = TASKS[folder.name]
    generator = np.random.default_rng(seed)
    train = make_texts(make, generator, [1 + k % TRAINED for k in range(TRAIN_TEXTS)])
    sizes = [*SIZES, *FURTHER.get(folder.name, ())]
    tested = {size: make_texts(make, generator, [size] * TEST_TEXTS) for size in sizes}
    return write_texts(
        folder,
        train=train,
        validation=tested,
        rows={
            "protocol": "exact_match",
            "kind": folder.name,
            "trained": TRAINED,
            "chance": chance,
        },
        tokenizer="bytes",
        source=f"{make.__doc__.splitlines()[0]} generated from seed {seed}",
        rule="texts of their own",
    )


def main() -> None:
    """Make the corpora of the named tasks, by default all."""
    parser = new_parser(__doc__)
    tasks = ", ".join(TASKS)
    parser.add_argument("names", nargs="*", metavar="TASK", help=f"{tasks} (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_intermixed_args()
    for name in options.names or TASKS:
        if name not in TASKS:
            raise UserError(f"there is no task {name}, only {tasks}")
        prepare(HERE / name, options.seed)


if __name__ == "__main__":
    run_program(main)
