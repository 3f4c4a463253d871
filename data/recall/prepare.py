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
from configurable import UserError, run_program  # noqa: E402
from data import new_folder, new_parser  # noqa: E402
from data.rows import LEAST, Pair, write_rows  # noqa: E402

NAMES = 24
VALUES = 4
NOISE = 16  # kinds of tokens that mean nothing: 0 to 15
QUERY = NOISE  # the first token of the queries, one for each name
VALUE = NOISE + NAMES  # the first token of the values
WRITE = VALUE + VALUES  # name n and value v: WRITE + n * VALUES + v
WRITES = 0.15  # how often a token begins a write, besides the planned ones
QUERIES = 0.12  # and a query
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
        planned[write] = name + 1
        planned[query] = -name - 1
    return planned


def make_rows(generator: np.random.Generator, count: int, length: int, queries: int) -> Pair:
    """Rows with planned `queries`: tokens, and at answers the distance, (count, length + 1) each.

    The distance is that from the query back to the write, 0 where no answer stands. All rows grow
    together, a token at a time.
    """
    planned = np.stack([plan(generator, length, queries) for _ in range(count)])
    after = np.pad(planned[:, 1:], ((0, 0), (0, 1)), constant_values=1)  # no query ends a row
    tokens = generator.integers(NOISE, size=(count, length + 1))
    distances = np.zeros_like(tokens)
    value = np.zeros((count, NAMES), dtype=np.int64)  # of the latest write of each name
    time = np.zeros((count, NAMES), dtype=np.int64)  # when that was
    waiting = np.zeros((count, NAMES), dtype=bool)  # written, and not asked for yet
    reserved = np.zeros((count, NAMES), dtype=bool)  # a planned query will ask for it
    asked = np.full(count, -1)  # the name that the token before asked for, or -1
    for t in range(length + 1):
        now = planned[:, t]

        # the answers to the queries of the token before
        rows = np.flatnonzero(asked >= 0)
        names = asked[rows]
        tokens[rows, t] = VALUE + value[rows, names]
        distances[rows, t] = t - 1 - time[rows, names]

        # a random value is written under a name, as planned or by chance
        free = (asked < 0) & (now == 0)
        chance = generator.random(count)
        names = np.where(now > 0, now - 1, pick(generator, ~reserved))
        rows = np.flatnonzero((now > 0) | (free & (chance < WRITES)))
        names = names[rows]
        values = generator.integers(VALUES, size=len(rows))
        value[rows, names] = values
        time[rows, names] = t
        waiting[rows, names] = True
        tokens[rows, t] = WRITE + names * VALUES + values

        # a name is asked for, as planned or by chance: the nearer its write the likelier
        can_ask = waiting & ~reserved
        names = np.where(now < 0, -now - 1, pick(generator, can_ask / np.maximum(t - time, 1)))
        by_chance = free & (after[:, t] == 0) & (chance >= WRITES) & (chance < WRITES + QUERIES)
        rows = np.flatnonzero((now < 0) | (by_chance & can_ask.any(axis=1)))
        names = names[rows]
        asked[:] = -1
        asked[rows] = names
        waiting[rows, names] = False
        tokens[rows, t] = QUERY + names

        rows = np.flatnonzero(now)
        reserved[rows, np.abs(now[rows]) - 1] = now[rows] > 0
    return tokens, distances


def validation_rows(generator: np.random.Generator, seed: int, k: int, length: int) -> Pair:
    """At least TEST_ROWS[k] rows of length << k, and more until each bin of distances has LEAST.

    A last bin of which the rows hold less than a quarter is left as it is. The further rows have a
    generator of their own, so that nothing that is drawn later depends on them.
    """
    count = TEST_ROWS[k]
    size = length << k
    more = np.random.default_rng([seed, k])
    tokens, distances = make_rows(generator, count, size, PLANNED << k)
    edges = 2 ** np.arange(1 + (4 * size // 5).bit_length())
    while np.histogram(distances[distances > 0], edges)[0].min() < LEAST:
        others = make_rows(more, 1 + count // 8, size, PLANNED << k)
        tokens = np.concatenate([tokens, others[0]])
        distances = np.concatenate([distances, others[1]])
    return tokens, distances


def counted(tokens: np.ndarray, distances: np.ndarray) -> np.ndarray:
    """(rows, T): how likely counting gives the right answer, 0 where no answer stands.

    It gives the value that was written under the name most often, less the times it was the answer
    (no write is asked for twice), whatever the order; one of several such values is drawn.
    """
    left = np.zeros((len(tokens), NAMES, VALUES))  # writes that no question took
    right = np.zeros(tokens.shape)
    for t in range(tokens.shape[1]):
        rows = np.flatnonzero(tokens[:, t] >= WRITE)
        names, values = divmod(tokens[rows, t] - WRITE, VALUES)
        left[rows, names, values] += 1
        rows = np.flatnonzero(distances[:, t])
        names = tokens[rows, t - 1] - QUERY
        values = tokens[rows, t] - VALUE
        of_name = left[rows, names]  # (answers, VALUES)
        most = of_name == of_name.max(axis=1, keepdims=True)
        right[rows, t] = most[np.arange(len(rows)), values] / most.sum(axis=1)
        left[rows, names, values] -= 1
    return right


def pick(generator: np.random.Generator, weights: np.ndarray) -> np.ndarray:
    """A column for each row, drawn in proportion to its weights, (rows, columns) -> (rows,)."""
    sums = np.cumsum(weights, axis=1, dtype=np.float64)
    drawn = generator.random(len(weights)) * sums[:, -1]
    return (sums <= drawn[:, None]).sum(axis=1).clip(max=weights.shape[1] - 1)


def prepare(folder: Path, length: int = 128, seed: int = 0) -> dict:
    """Write the rows to `folder`, and return meta.json."""
    generator = np.random.default_rng(seed)
    validation = {}
    shares = {}  # of the answers that counting gets right, by size and least of a bin of distances
    for k in range(len(TEST_ROWS)):
        tokens, distances = validation_rows(generator, seed, k, length)
        validation[length << k] = tokens, distances
        right = counted(tokens, distances)[distances > 0]
        bins = np.frexp(distances[distances > 0])[1] - 1  # 0 for 1, 1 for 2 and 3 ...
        shares[length << k] = {
            2**b: float(right[bins == b].mean()) for b in np.unique(bins).tolist()
        }
        if k == 0:
            majority = float(right.mean())
    return write_rows(
        folder,
        train=make_rows(generator, TRAIN_ROWS, length, PLANNED),
        validation=validation,
        rows={
            "protocol": "recall",
            "kind": "recall",
            "trained": length,
            "chance": 1 / VALUES,
            "majority": majority,
            "counted": shares,
        },
        tokenizer="char",
        characters=CHARACTERS,
        source=f"generated from seed {seed}",
        rule="rows of their own",
    )


def main() -> None:
    """Make the corpus."""
    parser = new_parser(__doc__, "recall")
    parser.add_argument("--length", type=int, default=128, help="inputs of a training row")
    options = parser.parse_args()
    folder = new_folder(options.name, options.overwrite)
    if not 16 <= options.length < 2**16 >> len(TEST_ROWS) - 1:
        raise UserError(f"--length={options.length}: it must lie between 16 and 2047")
    prepare(folder, options.length, options.seed)


if __name__ == "__main__":
    run_program(main)
