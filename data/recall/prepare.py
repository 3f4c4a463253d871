"""Recall by distance: values are written under names and asked for later, in noise or in text.

    python data/recall/prepare.py                             the corpus recall, in noise
    python data/recall/prepare.py --text=books                books_recall, in the bytes of books
    python data/recall/prepare.py --text=books --longest=8192     for L = 256 instead of 128

A *write* is one token: a name and a value. A *question* is one token, a name; the next token is the
answer. Writes, questions and answers have their own tokens, so the text around them is unchanged.
There are two kinds of questions:

    content    the name is written once. Who finds the write, however far back, has the answer. A
               guess is right in 1 of 4.
    order      the name is written three times with three values, and the latest counts. Who counts
               writes without their order is right in exactly 1 of 3. The distance is that of the
               farthest write, and all three lie in the last 30 % of it: who reads so far back has
               all that is needed.

Test texts have --longest inputs, 32 L; training texts --trained, L. Distances are log-uniform, from
1 (order: 4) to the text length. A text is built on a ring, so that all positions are equivalent:
writes, questions and answers are equally frequent at each. A chunk of a text therefore has the same
densities as a longer one, 1 content question per 32 tokens and 1 order question per 64, and
training and test sequences of any length are chunks of such texts. A question is scored if all its
writes are in the chunk. Each name is asked for once per text, and its token does not reveal the
kind of question.

One model learns both text and questions, and one pass tests both. Because questions are rare in
text, a small model learns them late: only a fraction, --share, of the bytes are scored in training.
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from common.errors import UserError, run_program
from data.batches import (
    OF_BYTE,
    OF_ORDER,
    evenly,
)
from data.corpus import Corpus, load_corpus, new_folder, new_parser, write_corpus

LONGEST = 4096  # 32 L for L = 128
SHARE = 0.5  # of the bytes of a text, scored in training
VALUES = 4
WRITES = 3  # per order question
CONTENT = 32  # tokens per content question
ORDER = 64  # tokens per order question
SPREAD = 0.3  # an order question's writes lie within this fraction of its distance
ANSWER = 256  # the first token of the values; those below are bytes
NOISE = np.frombuffer(b"abcdefghijklmnop", dtype=np.uint8)
TRAIN_TOKENS = {"noise": 2**23, "text": 3 * 2**24}
TEST_TEXTS = 1024


def questions_in(length: int) -> int:
    """The number of questions, and of names, in a text of this length."""
    return length // CONTENT + length // ORDER


def place_names(generator: np.random.Generator, n_texts: int, length: int, n_names: int) -> tuple:
    """Texts with writes, questions and answers, and -1 elsewhere.

    Returns the tokens and, at answers, the distance, both (n_texts, length + 1) int32. Tokens from
    256 on: VALUES answers, then a question for each of n_names names, then VALUES writes for each.
    OF_ORDER is added to the distance of order questions.
    """
    width = length + 1
    n_content = length // CONTENT
    first_question = ANSWER + VALUES
    first_write = first_question + n_names
    # any name may get either kind of question, so its token does not reveal the kind
    names = generator.permuted(np.tile(np.arange(n_names), (n_texts, 1)), axis=1)
    tokens = np.full((n_texts, width), -1, dtype=np.int32)
    distances = np.zeros((n_texts, width), dtype=np.int32)
    for k in reversed(range(questions_in(length))):  # order questions first: they need most room
        is_order = k >= n_content
        waiting = np.arange(n_texts)  # texts that do not have this name yet
        while len(waiting):
            n = len(waiting)
            question = generator.integers(width, size=(n, 1))
            if is_order:
                farthest = log_uniform(generator, WRITES + 1, length, n)
                backs = three_writes(generator, farthest)  # (n, writes), farthest first
            else:
                backs = log_uniform(generator, 1, length, n)[:, None]
            values = generator.permuted(np.tile(np.arange(VALUES), (n, 1)), axis=1)
            values = values[:, : backs.shape[1]]
            writes = question - backs
            places = np.hstack([question, question + 1, writes]) % width
            in_order = np.sort(places, axis=1)
            fits = (in_order[:, 1:] > in_order[:, :-1]).all(axis=1)
            fits &= (tokens[waiting[:, None], places] < 0).all(axis=1)
            # the value of the latest write is the answer
            latest = values[:, -1:]
            name = names[waiting, k][:, None]
            written = first_write + VALUES * name + values
            new = np.hstack([first_question + name, ANSWER + latest, written])
            fitting = waiting[fits]
            tokens[fitting[:, None], places[fits]] = new[fits]
            # on the ring a write may come after its question, which then is not scored
            inside = (writes[:, 0] >= 0) & (question[:, 0] < length)
            scored = fits & inside
            distance = backs[scored, 0]
            if is_order:
                distance += OF_ORDER
            distances[waiting[scored], question[scored, 0] + 1] = distance
            waiting = waiting[~fits]
    return tokens, distances


def log_uniform(generator: np.random.Generator, least: int, longest: int, count: int) -> np.ndarray:
    """Log-uniform integers from `least` to `longest`, (count,)."""
    logs = generator.uniform(np.log(least), np.log(longest + 1), size=count)
    return np.exp(logs).astype(np.int64).clip(least, longest)


def three_writes(generator: np.random.Generator, farthest: np.ndarray) -> np.ndarray:
    """How far back the writes of order questions are, (n,) -> (n, 3), descending."""
    room = np.maximum((SPREAD * farthest).astype(np.int64), WRITES)
    first = generator.integers(room)
    second = generator.integers(room - 1)
    second += second >= first
    nearer = np.maximum(first, second)
    between = np.minimum(first, second)
    return np.stack([farthest, farthest - 1 - between, farthest - 1 - nearer], axis=1)


def make_texts(
    generator: np.random.Generator,
    n_texts: int,
    length: int,
    n_names: int,
    source: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Texts in noise, or in evenly spaced chunks of `source`, the bytes of a corpus.

    Returns tokens and what is scored, both (n_texts, length + 1): the distance at an answer,
    OF_BYTE at a byte of the corpus, else 0; and the offset there where each text ends, (n_texts,).
    """
    tokens, scored = place_names(generator, n_texts, length, n_names)
    is_filler = tokens < 0
    room = int(is_filler[0].sum())  # the same in all texts
    if source is None:
        ends = np.arange(n_texts)
        tokens[is_filler] = generator.choice(NOISE, size=n_texts * room)
        return tokens, scored, ends
    if len(source) < room + n_texts:
        raise UserError(
            f"{n_texts} texts with {room} bytes of a corpus each need more than the {len(source)} "
            "bytes of a split: raise --trained (fewer texts of training), lower --longest (shorter "
            "texts of the test), or take a corpus with more text"
        )
    starts = evenly(len(source) - room, n_texts)
    tokens[is_filler] = source[starts[:, None] + np.arange(room)].ravel()
    scored[is_filler] = OF_BYTE
    return tokens, scored, starts + room


def prepare(
    folder: Path,
    text: Corpus | None = None,
    longest: int = LONGEST,
    trained: int = 0,
    seed: int = 0,
    share: float = SHARE,
) -> dict:
    """Write the corpus to `folder` and return its meta.json.

    `text` is a corpus of bytes. Test texts have `longest` inputs, training texts `trained` (0: a
    32nd of that, at least ORDER). A fraction `share` of the text is scored in training.
    """
    trained = trained or max(ORDER, longest // 32)
    n_names = questions_in(longest)
    generator = np.random.default_rng(seed)
    source = "noise"
    train_text = None
    val_text = None
    n_train = TRAIN_TOKENS["noise"] // trained
    if text:
        if text.meta["tokenizer"] != "bytes" or not text.is_text:
            raise UserError(f"--text={text.name} is not a corpus of bytes: name one such as books")
        source = f"the text of {text.name} ({text.split_sha256('val')[:16]})"
        train_text = text.train
        val_text = text.val
        n_train = TRAIN_TOKENS["text"] // trained
    val = make_texts(generator, TEST_TEXTS, longest, n_names, val_text)
    train = make_texts(generator, n_train, trained, n_names, train_text)
    is_byte = train[1] == OF_BYTE
    train[1][is_byte & (generator.random(is_byte.shape) >= share)] = 0
    documents = np.arange(TEST_TEXTS)  # in noise, each text is its own document
    if text:
        documents = np.searchsorted(text.val_starts, val[2], side="left") - 1
    first = ANSWER + VALUES
    signs = [f"<{value}>" for value in range(VALUES)]
    signs += [f"<{name}?>" for name in range(n_names)]
    signs += [f"<{name}={value}>" for name in range(n_names) for value in range(VALUES)]
    return write_corpus(
        folder,
        {"train": train[0], "val": val[0]},
        {
            "train_answers.npy": train[1].ravel().astype(np.uint16),
            "val_answers.npy": val[1].ravel().astype(np.uint16),
            "val_documents.npy": documents,
        },
        tokenizer="bytes",
        signs=signs,
        source=f"questions in {source}, seed {seed}",
        rule="texts of their own",
        questions={
            "longest": longest,
            "trained": trained,
            # the tokens that ask, and the share that a guess, or a count of writes, gets right
            "first": first,
            "end": first + n_names,
            "content": {"chance": 1 / VALUES},
            "order": {"chance": 1 / WRITES},
        },
    )


def main() -> None:
    """Make the corpus."""
    parser = new_parser(__doc__, "recall or TEXT_recall")
    parser.add_argument("--text", default="", help="a corpus of bytes to ask inside of")
    parser.add_argument("--longest", type=int, default=LONGEST, help="inputs of the longest test")
    parser.add_argument("--trained", type=int, default=0, help="inputs in training, longest / 32")
    parser.add_argument("--share", type=float, default=SHARE, help="of the bytes are learned")
    options = parser.parse_args()
    if options.longest not in [2**k for k in range(9, 15)]:
        raise UserError(f"--longest={options.longest}: it must be a power of two, 512 to 16384")
    if options.trained % ORDER or not 0 <= options.trained <= options.longest:
        raise UserError(f"--trained={options.trained}: it must be a multiple of {ORDER}, or 0")
    name = options.name
    if name == parser.get_default("name"):
        name = f"{options.text}_recall" if options.text else "recall"
    folder = new_folder(name, options.overwrite)
    text = load_corpus(options.text) if options.text else None
    prepare(folder, text, options.longest, options.trained, options.seed, options.share)


if __name__ == "__main__":
    run_program(main)
