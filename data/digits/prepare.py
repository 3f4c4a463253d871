"""Images of digits as sequences of patches, for positions in two dimensions.

    python data/digits/prepare.py                                trained with 12 x 12 patches
    python data/digits/prepare.py --side=24 --name=digits24      trained with 24 x 24
    python data/digits/prepare.py --seed=1 --name=digits_1       with other drawings

A digit is a line through points (STROKES) with random variation from the seed: it is rotated,
stretched and shifted as a whole, its points are jittered, and the pen is thin or thick. The same
drawing can be rendered at any number of patches per side, because the pen and its soft edge are
measured relative to the image side. A patch is the grey value at its centre, one of eight
characters from blank to dark. A text is a newline, which starts the image, followed by the patches,
row by row. `fold -w 12` shows it.

The training texts have --side x --side patches. The validation split has other drawings, each at
three sizes: --side patches per side, twice and four times as many. Every patch is scored. Patches
of larger images are easier to predict, because their neighbours are closer.
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from common.errors import UserError, run_program
from data.corpus import Pair, new_folder, new_parser, write_texts

GREYS = " .:-=+*#"  # from blank to dark: tokens 0, 1 ...
START = len(GREYS)  # the token before the first patch
TRAIN_IMAGES, TEST_IMAGES = 24_000, 256
TIMES = (1, 2, 4)  # validation sides, as multiples of the training side
EDGE = 0.08  # width of a stroke's soft edge, relative to the image side
BATCH = 256  # images rendered at once
STROKES = (  # of 0, 1 ... 9: points xy from 0 to 8, x to the right and y down
    "40 21 13 15 27 48 67 75 73 61 40",
    "22 40 48",
    "12 20 40 61 63 45 18 78",
    "11 30 50 62 53 34 53 75 66 48 28 17",
    "40 15 75, 53 58",
    "70 20 14 43 63 75 67 48 17",
    "60 31 14 16 38 58 76 65 44 15",
    "10 70 48 38",
    "44 22 20 40 60 62 44 16 27 48 67 66 44",
    "63 44 23 11 30 60 72 65 48",
)


def outline(digit: int) -> tuple[np.ndarray, np.ndarray]:
    """The points of a digit, (P, 2) from -0.5 to 0.5, and the two ends of its segments, (S, 2).

    P and S are the maximum over digits; shorter ones repeat their last point or segment.
    """
    most = max(len(strokes.split()) for strokes in STROKES)
    strokes = [stroke.split() for stroke in STROKES[digit].split(",")]
    points = [[int(number) / 8 - 0.5 for number in point] for point in sum(strokes, [])]
    ends = np.cumsum([len(stroke) for stroke in strokes])
    segments = [(n - 1, n) for n in range(1, len(points)) if n not in ends]
    points += points[-1:] * (most - len(points))
    return np.array(points), np.array(segments + segments[-1:] * (most - len(segments)))


def draw(generator: np.random.Generator, digits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Draw these digits (N,): segments (N, S, 2, 2) and half the pen width (N,).

    Lengths are relative to the image side, from 0 to 1, and rounded, so that the result is
    bit-identical on every machine.
    """
    points = np.stack([outline(digit)[0] for digit in range(10)])[digits]
    segments = np.stack([outline(digit)[1] for digit in range(10)])[digits]
    count = (len(digits), 1)
    x, y = np.moveaxis(points + generator.uniform(-0.04, 0.04, points.shape), -1, 0)
    angle, slant = generator.uniform(-0.2, 0.2, (2, *count))
    x = generator.uniform(0.6, 0.9, count) * (x + slant * y)
    y = generator.uniform(0.65, 0.9, count) * y
    moved = 0.5 + generator.uniform(-0.06, 0.06, (2, *count))
    x, y = x * np.cos(angle) - y * np.sin(angle), x * np.sin(angle) + y * np.cos(angle)
    placed = (np.stack([x, y]) + moved).transpose(1, 2, 0).round(4)
    pen = generator.uniform(0.03, 0.07, len(digits)).round(4)
    return placed[np.arange(len(digits))[:, None, None], segments], pen


def render(segments: np.ndarray, pen: np.ndarray, side: int) -> np.ndarray:
    """The grey values of drawings at the centres of their patches, (N, side^2) from 0 to 1."""
    centres = (np.arange(side) + 0.5) / side
    x = np.tile(centres, side)
    y = np.repeat(centres, side)
    nearest = np.full((len(pen), side * side), np.inf)  # squared distance
    for (x0, y0), (x1, y1) in segments.transpose(1, 2, 3, 0)[..., None]:
        wide = x1 - x0
        high = y1 - y0
        along = ((x - x0) * wide + (y - y0) * high) / np.maximum(wide**2 + high**2, 1e-9)
        along = along.clip(0, 1)
        square = (x0 + along * wide - x) ** 2 + (y0 + along * high - y) ** 2
        nearest = np.minimum(nearest, square)
    return ((pen[:, None] - np.sqrt(nearest)) / EDGE + 0.5).clip(0, 1)


def make_texts(segments: np.ndarray, pen: np.ndarray, side: int) -> Pair:
    """Drawings as texts: tokens, and 1 where a token is scored, (N, 1 + side^2) each."""
    tokens = np.full((len(pen), 1 + side * side), START)
    for first in range(0, len(pen), BATCH):
        part = slice(first, first + BATCH)
        tokens[part, 1:] = np.rint((START - 1) * render(segments[part], pen[part], side))
    return tokens, (tokens < START).astype(np.int64)


def prepare(folder: Path, side: int = 12, seed: int = 0) -> dict:
    """Write the images to `folder`, and return what is in meta.json."""
    generator = np.random.default_rng(seed)
    tested = draw(generator, np.arange(TEST_IMAGES) % 10)
    trained = draw(generator, np.arange(TRAIN_IMAGES) % 10)
    return write_texts(
        folder,
        train=make_texts(*trained, side),
        validation={(n * side) ** 2: make_texts(*tested, n * side) for n in TIMES},
        rows={"protocol": "image", "kind": "digits", "trained": side * side, "width": side},
        tokenizer="char",
        characters=GREYS + "\n",
        unit="token",
        source=f"drawn from seed {seed}",
        rule="drawings of their own",
    )


def main() -> None:
    """Make the corpus."""
    parser = new_parser(__doc__, "digits")
    parser.add_argument("--side", type=int, default=12, help="of training images, in patches")
    options = parser.parse_args()
    folder = new_folder(options.name, options.overwrite)
    if not 4 <= options.side <= 32:
        raise UserError(f"--side={options.side}: it must lie between 4 and 32")
    prepare(folder, options.side, options.seed)


if __name__ == "__main__":
    run_program(main)
