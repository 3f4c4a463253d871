"""Recall by distance: rows of noise in which values are written under names and asked for later.

    python data/recall/prepare.py                                    the corpus recall, for L = 128
    python data/recall/prepare.py --length=256 --name=recall_256     for L = 256
    python data/recall/prepare.py --seed=1 --name=recall_1           with other rows

Among noise stand *writes* (one token: a name and a value) and *queries* (one token: a name). The
token after a query is the value of that name's latest write, and it alone is scored. To answer, one
attention head has to find the latest write of the name, however far back it stands: so accuracy by
distance tells how far a model reads.

The training rows have --length inputs. The validation split has rows of 1 to 32 times that length,
as many as give 400 answers in each bin of distances (1, 2 to 3, 4 to 7 ...).
Each write is asked for at most once. While the answer to a planned query waits, its name is neither
written nor asked for by others. Longer rows have more answers per token, because a row begins with
nothing to ask for: with --length=128 about 12.4 per 128 tokens in rows of 128 and 13.8 in rows of
1,024 and more. Noise and writes per token differ by less than 5 % between the lengths.

In rows of 128 who counts writes, without their order, is right in 95.5 % (see `counted`): so high
an accuracy shows little there, and a model counts as having learned only above that. meta.json has
the share for each length and distance. Beyond L it shows that far content is read, not its order.
"""

import math
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from configurable import UserError, read_json, require, run_program  # noqa: E402
from data import HERE, NAME, new_parser  # noqa: E402
from data.rows import LEAST, Pair, write_rows  # noqa: E402

NAMES, VALUES, NOISE = 24, 4, 16
QUERY, VALUE = NOISE, NOISE + NAMES  # the first token of each kind; noise begins at 0
WRITE = VALUE + VALUES  # name n and value v: WRITE + n * VALUES + v
WRITES, QUERIES = 0.15, 0.12  # how often a token begins one, besides the planned ones
PLANNED = 2  # planned queries in a training row; a text twice as long has twice as many
TRAIN_ROWS = 40960
# validation rows of 1, 2, 4 ... 32 times the training length; more if a bin has too few answers
TEST_ROWS = (1280, 880, 560, 360, 200, 120)
# a character for each token: noise, the names asked for, values, and a Braille pattern per write
CHARACTERS = ".,:;!-_+*/|^~#@%" + "ABCDEFGHIJKLMNOPQRSTUVWX" + "0123"
CHARACTERS += "".join(chr(0x2800 + k) for k in range(NAMES * VALUES))


def plan(generator: np.random.Generator, length: int, count: int) -> np.ndarray:
    """At most `count` planned writes (name + 1) and queries (-name - 1), (length + 1,); else 0.

    Their distances are log-uniform between 1 and `length`. The intervals of one name are disjoint,
    and at least half of the names are free at any time.
    """
    planned = np.zeros(length + 1, dtype=np.int64)
    taken = np.zeros((NAMES, length + 1), dtype=bool)
    distances = np.exp(generator.uniform(0, math.log(length), size=count))
    for distance in -np.sort(-distances.astype(np.int64)):  # the long ones need most room
        query = int(generator.integers(distance, length))
        write = query - distance
        before = planned[[max(write - 1, 0), query - 1]].min() < 0  # a query's answer stands there
        free = np.flatnonzero(~taken[:, write : query + 2].any(axis=1))
        if before or planned[[write, query, query + 1]].any() or len(free) <= NAMES // 2:
            continue
        name = generator.choice(free)
        taken[name, write : query + 2] = True
        planned[write], planned[query] = name + 1, -name - 1
    return planned


class Rows:
    """Rows that grow together, a token at a time. All arrays are (rows,) or (rows, names)."""

    def __init__(self, generator: np.random.Generator, count: int, length: int) -> None:
        self.generator = generator
        self.tokens = generator.integers(NOISE, size=(count, length + 1))
        self.distances = np.zeros_like(self.tokens)  # from a query to its write, at its answer
        self.values, self.times = np.zeros((2, count, NAMES), dtype=np.int64)
        self.waiting = np.zeros((count, NAMES), dtype=bool)  # written, and not asked for yet
        self.planned = np.zeros((count, NAMES), dtype=bool)  # a planned query will ask for it
        self.asked = np.full(count, -1)  # the name that the token before asked for, or -1

    def answer(self, t: int) -> None:
        """Write the answers to the queries of the token before."""
        rows = np.flatnonzero(self.asked >= 0)
        names = self.asked[rows]
        self.tokens[rows, t] = VALUE + self.values[rows, names]
        self.distances[rows, t] = t - 1 - self.times[rows, names]

    def write(self, t: int, begin: np.ndarray, names: np.ndarray) -> None:
        """Write a random value under a name where one is to `begin`."""
        rows = np.flatnonzero(begin)
        names, values = names[rows], self.generator.integers(VALUES, size=len(rows))
        self.values[rows, names], self.times[rows, names] = values, t
        self.waiting[rows, names] = True
        self.tokens[rows, t] = WRITE + names * VALUES + values

    def ask(self, t: int, begin: np.ndarray, names: np.ndarray) -> None:
        """Ask for a name where one is to `begin`."""
        rows = np.flatnonzero(begin)
        self.asked[:] = -1
        self.asked[rows] = names[rows]
        self.waiting[rows, names[rows]] = False
        self.tokens[rows, t] = QUERY + names[rows]

    def grow(self, t: int, now: np.ndarray, then: np.ndarray) -> None:
        """Add token t, where `now` is planned; `then` is what is planned for the next token."""
        self.answer(t)
        free, chance = (self.asked < 0) & (now == 0), self.generator.random(len(now))
        names = np.where(now > 0, now - 1, pick(self.generator, ~self.planned))
        self.write(t, (now > 0) | (free & (chance < WRITES)), names)
        open_to_all = self.waiting & ~self.planned  # the nearer the likelier
        near = open_to_all / np.maximum(t - self.times, 1)
        names = np.where(now < 0, -now - 1, pick(self.generator, near))
        asks = free & (then == 0) & (chance >= WRITES) & (chance < WRITES + QUERIES)
        self.ask(t, (now < 0) | (asks & open_to_all.any(axis=1)), names)
        rows = np.flatnonzero(now)
        self.planned[rows, np.abs(now[rows]) - 1] = now[rows] > 0


def make_rows(generator: np.random.Generator, count: int, length: int, queries: int) -> Pair:
    """Rows with planned `queries`: tokens, and at answers the distance, (count, length + 1) each.

    The distance is that from the query back to the write, 0 where no answer stands.
    """
    planned = np.stack([plan(generator, length, queries) for _ in range(count)])
    after = np.pad(planned[:, 1:], ((0, 0), (0, 1)), constant_values=1)  # no query ends a row
    rows = Rows(generator, count, length)
    for t in range(length + 1):
        rows.grow(t, planned[:, t], after[:, t])
    return rows.tokens, rows.distances


def validation_rows(generator: np.random.Generator, seed: int, k: int, length: int) -> Pair:
    """At least TEST_ROWS[k] rows of length << k, and more until each bin of distances has LEAST.

    A last bin of which the rows hold less than a quarter is left as it is. The further rows have a
    generator of their own, so that nothing that is drawn later depends on them.
    """
    count, size, more = TEST_ROWS[k], length << k, np.random.default_rng([seed, k])
    tokens, distances = make_rows(generator, count, size, PLANNED << k)
    edges = 2 ** np.arange(1 + (4 * size // 5).bit_length())
    while np.histogram(distances[distances > 0], edges)[0].min() < LEAST:
        others = make_rows(more, 1 + count // 8, size, PLANNED << k)
        tokens = np.concatenate([tokens, others[0]])
        distances = np.concatenate([distances, others[1]])
    return tokens, distances


def counted(tokens: np.ndarray, distances: np.ndarray, within: int = 0) -> np.ndarray:
    """(rows, T): how likely counting gives the right answer, 0 where no answer stands.

    It gives the value that was written under the name most often, less the times it was the answer
    (no write is asked for twice), whatever the order; one of several such values is drawn. A rule
    that knows the order of what stands less than `within` tokens apart does not count a write that
    is replaced so soon, and answers what is asked so soon.
    """
    left, right = np.zeros((len(tokens), NAMES, VALUES)), np.zeros(tokens.shape)
    last, since = np.zeros((2, len(tokens), NAMES), dtype=np.int64)  # what no question took yet
    since -= tokens.shape[1]
    for t in range(tokens.shape[1]):
        rows = np.flatnonzero(tokens[:, t] >= WRITE)
        names, values = divmod(tokens[rows, t] - WRITE, VALUES)
        soon = t - since[rows, names] < within
        left[rows[soon], names[soon], last[rows, names][soon]] -= 1
        left[rows, names, values] += 1
        last[rows, names], since[rows, names] = values, t
        rows = np.flatnonzero(distances[:, t])
        names, values = tokens[rows, t - 1] - QUERY, tokens[rows, t] - VALUE
        of_name = left[rows, names]  # (answers, VALUES)
        most = of_name == of_name.max(axis=1, keepdims=True)
        share = most[np.arange(len(rows)), values] / most.sum(axis=1)
        right[rows, t] = np.where(distances[rows, t] < within, 1.0, share)
        left[rows, names, values] -= 1
        since[rows, names] = -tokens.shape[1]
    return right


def counted_by_distance(
    tokens: np.ndarray, distances: np.ndarray, within: int = 0
) -> dict[int, float]:
    """The share of answers that counting gives right, by the least of each bin of distances."""
    right = counted(tokens, distances, within)
    bins = np.frexp(distances)[1]  # 1 for 1, 2 for 2 and 3 ...
    known = np.unique(bins[distances > 0]).tolist()
    return {2 ** (k - 1): float(right[(bins == k) & (distances > 0)].mean()) for k in known}


def pick(generator: np.random.Generator, weights: np.ndarray) -> np.ndarray:
    """A column for each row, drawn in proportion to its weights, (rows, columns) -> (rows,)."""
    sums = np.cumsum(weights, axis=1, dtype=np.float64)
    drawn = generator.random(len(weights)) * sums[:, -1]
    return (sums <= drawn[:, None]).sum(axis=1).clip(max=weights.shape[1] - 1)


def prepare(folder: Path, length: int = 128, seed: int = 0) -> dict:
    """Write the rows to `folder`, and return meta.json."""
    generator = np.random.default_rng(seed)
    validation = {
        length << k: validation_rows(generator, seed, k, length) for k in range(len(TEST_ROWS))
    }
    rows = {"protocol": "recall", "kind": "recall", "trained": length, "chance": 1 / VALUES}
    tokens, distances = validation[length]
    rows["majority"] = float(counted(tokens, distances)[distances > 0].mean())
    rows["counted"] = {size: counted_by_distance(*pair) for size, pair in validation.items()}
    return write_rows(
        folder,
        train=make_rows(generator, TRAIN_ROWS, length, PLANNED),
        validation=validation,
        rows=rows,
        tokenizer="char",
        characters=CHARACTERS,
        source=f"generated from seed {seed}",
        rule="rows of their own",
    )


def check_free(folder: Path, overwrite: bool) -> None:
    """UserError if `folder` holds a corpus without rows, or any corpus and not `overwrite`."""
    if not any((folder / file).exists() for file in ("meta.json", "train.bin")):
        return
    try:
        rows = "rows" in read_json(folder / "meta.json")
    except UserError:  # missing or damaged; nanoGPT writes no starts
        rows = (folder / "train_starts.npy").exists()
    taken = f"--name={folder.name} is taken: {folder} is a corpus"
    require(rows, f"{taken} of another kind; choose another name")
    require(overwrite, f"{taken}; choose another name, or replace it with --overwrite")


def main() -> int:
    """Make the corpus."""
    parser = new_parser(__doc__)
    parser.add_argument("--length", type=int, default=128, help="inputs of a training row")
    parser.add_argument(
        "--name", default="recall", help="of the corpus, recall... (default: recall)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--overwrite", action="store_true", help="replace a corpus of this name")
    options = parser.parse_args()
    good = NAME.fullmatch(options.name) and options.name.startswith("recall")
    require(good, f"--name={options.name} must begin with 'recall', as in recall_256")
    check_free(HERE / options.name, options.overwrite)
    require(options.seed >= 0, f"--seed={options.seed} must be at least 0")
    require(options.length >= 16, f"--length={options.length}: at least 16 inputs are needed")
    longest = options.length << len(TEST_ROWS) - 1
    require(longest < 2**16, f"--length={options.length}: tests of {longest} inputs are too long")
    prepare(HERE / options.name, options.length, options.seed)
    return 0


if __name__ == "__main__":
    run_program(main)
