"""Explain a position expression: what it is, which layers it acts in, how far each pair turns.

    python -m tools.explain 'rope + alibi'                        a scheme
    python -m tools.explain 'yarn(factor=8)' --block_size=512     an extension, of rope or of --pos
    python -m tools.explain 'mine + rope' --pos_file=mine.py      a scheme of your own

The table has a line for each pair of columns that a rotary scheme turns. A pair that finishes a
turn within the training length L (block_size) meets every angle in training; a slower one meets
angles that it has never seen as soon as a text is longer, unless an extension slows it down. N is
--length, by default 8 L.
"""

if __name__ == "__main__":  # --help answers before torch is imported
    from configurable import ExplainSettings, answer_help

    answer_help(ExplainSettings, __doc__)

import inspect
import math
import sys
from pathlib import Path

import pandas as pd
import torch

import posenc
from configurable import ExplainSettings, GPTConfig, UserError, configure, run_program, values
from posenc import Piece, Shape, scheme_name
from runs.examine import examine
from runs.results import show
from scheme import Scheme, find, options_of, parse


def description(piece: Piece) -> str:
    """The docstring of a piece, its options and its parameters."""
    lines = ["", f"{scheme_name(piece)}: {inspect.getdoc(type(piece))}"]
    for option in options_of(type(piece)).values():
        lines.append(f"option {option}")
    for name, parameter in piece.named_parameters():
        lines.append(f"parameter {name} {tuple(parameter.shape)}")
    return "\n".join(lines)


def pair_table(scheme: Scheme, rotary: posenc.Rotary, length: int) -> pd.DataFrame:
    """A line for each of the F pairs that a rotary piece turns, wavelengths in tokens.

    A pair has seen all angles of a text if it finishes a turn within the training length, or turns
    no further in the text than in training. Random positions of training (randomized) count.
    """
    trained = scheme.shape.length
    drawn = [scheme.draw(0, step, trained) for step in range(64)]
    spans = [trained - 1] + [float(ids[-1] - ids[0]) for ids in drawn if ids is not None]
    ids = scheme.ids(torch.arange(length), length)
    last = torch.tensor([length - 1])
    plain, _ = rotary.frequencies(length)
    seen = plain * max(spans) / (2 * math.pi)  # turns
    columns = {
        "wavelength": 2 * math.pi / plain,
        "turns in L": seen,
        "turns in N": plain * float(ids[-1] - ids[0]) / (2 * math.pi),
    }
    if scheme.extension:
        inv_freq, _ = rotary.frequencies(length, scheme.maps, last)
        moved = scheme.extended_ids(scheme.extensions, ids, length)
        columns["extended wavelength"] = 2 * math.pi / inv_freq.flatten()
        span = float(moved[-1] - moved[0])
        columns["extended turns in N"] = inv_freq.flatten() * span / (2 * math.pi)
    frame = pd.DataFrame({name: column.tolist() for name, column in columns.items()})
    frame.index.name = "pair"
    furthest = frame.iloc[:, -1]
    frame["all seen"] = (frame["turns in L"] >= 1) | (furthest <= 1.02 * frame["turns in L"])
    return frame


def main() -> None:
    """Say what an expression is, and show the pairs of columns that it turns."""
    settings, words = configure(ExplainSettings, sys.argv[1:], __doc__)
    pos_file = Path(settings.pos_file) if settings.pos_file else None
    pos, extend = settings.pos, settings.extend
    if len(words) > 1:
        raise UserError(f"{' '.join(words)!r:.60} is more than one word: quote the expression")
    if words:
        mentions = parse(words[0]).mentions
        kinds = [find(mention.name, pos_file) for mention in mentions]
        if any(issubclass(kind, posenc.Extension) for kind in kinds):
            extend = words[0]
        else:
            pos = words[0]
    config = GPTConfig(**{**values(settings, "result"), "pos": pos, "extend": extend})
    if pos_file:
        for warning in examine(config, pos_file):
            print(f"warning: {warning}", file=sys.stderr)
        print("examined: causal, its own text, finite, trained, the same by every way of computing")

    shape = Shape(config.n_head, config.scheme_width, config.n_embd, config.block_size)
    scheme = Scheme(pos, shape, config.n_layer, pos_file)
    scheme.extend(extend)
    length = settings.length or min(8 * config.block_size, scheme.limit or 2**24)
    scheme.check_length(length)
    print(f"{scheme.text}, trained at L = {config.block_size}\n{scheme.describe()}")
    for piece in scheme.extensions or scheme.pieces.values():
        print(description(piece))
    if not scheme.rotary:
        print(f"\n{scheme.text} turns no pairs of columns along a text")
    for rotary in scheme.rotary:
        frame = pair_table(scheme, rotary, length)
        notes = [f"{(~frame['all seen']).sum()} of {len(frame)} pairs meet angles never seen"]
        if scheme.extension:
            _, factor = rotary.frequencies(length, scheme.maps)
            notes.append(f"cosines and sines x {factor:.4f}, scores x {factor**2:.4f}")
        title = (
            f"{scheme_name(rotary)} of base {rotary.base:g}, N = {length}, wavelengths in tokens"
        )
        print(f"\n{show(title, frame, notes, digits=3)}")


if __name__ == "__main__":
    run_program(main)
