"""Explain position expressions: what they are, where they act, what they do to scores, drawn too.

    python -m tools.explain 'rope + alibi'                        a scheme
    python -m tools.explain 'yarn(factor=8)' --block_size=512     an extension, of rope or of --pos
    python -m tools.explain 'mine + rope' --pos_file=mine.py      a scheme of your own
    python -m tools.explain alibi kerple --out=compared.png       drawn: .png, .pdf or .svg
    python -m tools.explain out/RUN --out=trained.png             a run, as it is trained
    python -m tools.explain FOLDER --length=131072                a model of Hugging Face

FOLDER may also be a config.json, or a name such as HuggingFaceTB/SmolLM-135M: what transformers
5.23 makes of its positions, and which keys it does not read. If there are such, the exit status
is 1, and 2 if it cannot be read.

Scores by distance are those of a query for keys that are all alike; heads and layers that do the
same are shown once. A weight is e to its score: 0.1 more or less is hardly felt, a key at -8 is
hidden.

The table has a line for each pair of columns that a rotary scheme rotates. A pair that completes a
turn within the training length L (block_size) sees every angle in training; a slower pair reaches
unseen angles in any longer text, unless an extension slows it down. N is --length, by default 8 L,
of a model the longest that it was trained at or extended to.
"""

import inspect
import math
import sys
import tomllib
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import torch

from common.errors import UserError, run_program
from configurable import FigureFile, ModelSettings, Tokens, configure, setting
from data.download import model_folder
from measure.examine import examine
from model import GPT
from posenc import Extension, Piece, Rotary, Shape, scheme_name
from run.huggingface import is_huggingface
from run.load import load_run
from run.positions import pattern_of, read_positions
from scheme import Catalogue, Scheme, extended_ids, options_of, parse
from tools.picture import Look, draw, look_at

VERDICTS = Path(__file__).resolve().parents[1] / "results/verdicts.toml"


@dataclass(frozen=True)
class ExplainSettings(ModelSettings):
    """Explain a scheme or an extension for a model of this shape (block_size is L)."""

    pos_file: str = setting("", "your Python file of position schemes", "positions")
    length: Tokens | None = setting(
        None, "test length in tokens, else 8 L (of a model: its longest)", "test"
    )
    out: FigureFile = setting("", "picture of what it does: .png, .pdf or .svg", "output")


def verdicts(name: str) -> list[str]:
    """What is known of a scheme, in sentences; [] if nothing is."""
    sentences = []
    for verdict in tomllib.loads(VERDICTS.read_text(encoding="utf-8")).get(name, []):
        source = f" [results/{verdict['results']}]" if "results" in verdict else ""
        sentences.append(verdict["says"] + source)
    return sentences


def pair_table(scheme: Scheme, rotary: Rotary, length: int) -> pd.DataFrame:
    """A line for each of the F pairs that a rotary piece rotates; wavelengths in tokens.

    A pair has seen all angles of a text if it completes a turn within the longest training
    distance, or turns no further in the text than in training. Random positions (randomized) are
    drawn.
    """
    trained = scheme.shape.first_length
    span = trained - 1
    draws = [scheme.draw(0, step, trained) for step in range(64)]
    if draws[0] is not None:
        span = max(float(drawn[-1] - drawn[0]) for drawn in draws)
    ids = scheme.ids(torch.arange(length), length)
    ids = extended_ids(scheme.extensions.values(), ids, length)
    inv_freq, _ = rotary.frequencies(trained)
    extended, _ = rotary.frequencies(length, scheme.maps)
    frame = pd.DataFrame()
    frame["wavelength"] = (2 * math.pi / inv_freq.detach()).numpy()  # inf: it never turns
    frame["turns trained"] = span / frame["wavelength"]
    frame["wavelength at N"] = (2 * math.pi / extended.detach()).numpy()
    frame["turns at N"] = float(ids[-1] - ids[0]) / frame["wavelength at N"]
    as_far = frame["turns at N"] <= 1.02 * frame["turns trained"]
    frame["all seen"] = (frame["turns trained"] >= 1) | as_far
    return frame.rename_axis("pair")


def print_pairs(scheme: Scheme, rotary: Rotary, frame: pd.DataFrame, length: int) -> None:
    """Print the table of a rotary piece."""
    _, factor = rotary.frequencies(length, scheme.maps)
    unseen = (~frame["all seen"]).sum()
    print(f"\n{scheme_name(rotary)} of base {rotary.base:g}, N = {length}\n")
    print(frame.reset_index().to_string(index=False, float_format="%.3f"))
    print(f"\n{unseen} of {len(frame)} pairs meet angles never seen")
    print(f"cosines and sines x {factor:.4f}: products of turned columns x {factor**2:.4f}")


def explain_model(name: str, settings: ExplainSettings, looks: list[Look]) -> int:
    """Explain the positions of a config.json, or of the model of a folder or name, by default for
    texts as long as it was trained at.

    Adds what is drawn to `looks`. Returns the exit status: 1 if keys have no effect, 2 if it cannot
    be read.
    """
    try:
        path = Path(name)
        if not path.is_file():
            path = model_folder(name, ["config.json"]) / "config.json"
        found = read_positions(path)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    first = found.first_length
    print(f"{path}: of type {found.kind}, read as transformers 5.23 reads it")
    print(f"pos     {pattern_of([x.pos or '(no attention)' for x in found.layers])}")
    print(f"extend  {pattern_of([x.extend or 'none' for x in found.layers])}")
    print(f"first trained at L = {first}, at most at {max(first, found.length)}")
    for key in found.ignored:
        print(f"NOTHING READS {key}")
    for note in found.notes:
        print(f"note: {note}")
    for layer, count in Counter(found.layers).items():
        print(f"\nlayer {found.layers.index(layer)}, one of {count} alike:")
        print(f"{layer.pos or '(no attention)'}, extended by {layer.extend or 'none'}")
        if layer.words:
            print(layer.words)
        if not layer.pos:
            continue
        shape = Shape(found.n_head, layer.width, layer.width, first, latent=found.is_latent)
        scheme = Scheme(layer.pos, shape, 1)
        scheme.extend(layer.extend, path.parent)
        for rotary in scheme.rotary:
            inv_freq, _ = rotary.frequencies(first, scheme.maps)
            farther, _ = rotary.frequencies(2 * first, scheme.maps)
            print(f"{2 * inv_freq.count_nonzero()} of {layer.width} columns turn")
            if not inv_freq.equal(farther):
                print(f"the frequencies change past {first} tokens")
        extended = round(first * (scheme.factor(found.length) or 1))
        length = settings.length or max(found.length, extended)
        looks += print_layers(scheme, length, layer.pos)
    return 1 if found.ignored else 0


def print_layers(scheme: Scheme, length: int, title: str) -> list[Look]:
    """Print pairs and scores by distance of layers, once of those that do the same; returns what
    is drawn. Scores are of texts as long as 256 MiB of keys allow.
    """
    shape = scheme.shape
    size = min(length, 2**26 // (shape.n_head * max(1, shape.turned_width)))
    looks = []
    for layer in range(len(scheme.layers)):
        plan, scores = look_at(scheme, layer, size)
        if any(scores.equal(look.scores) for look in looks):
            continue
        table = pd.DataFrame()
        if isinstance(plan.turn_piece, Rotary):
            table = pair_table(scheme, plan.turn_piece, length)
            print_pairs(scheme, plan.turn_piece, table, length)
        frame = pd.DataFrame(scores).round(2).drop_duplicates()
        frame = frame.filter([1, 8, 64, 512, 4096, 32768])
        print(f"\nscore by distance in layer {layer}, less the highest\n")
        print(frame.rename_axis("head").to_string(float_format="%.2f"))
        looks.append(Look(f"{title}, layer {layer}", shape.first_length, plan, scores, table))
    return looks


def options_text(cls: type[Piece]) -> str:
    """The options of a piece with their defaults; "" if it has none."""
    options = []
    for name, (_, default) in options_of(cls).items():
        options.append(name if default is ... else f"{name}={default}")
    return ", ".join(options)


def print_pieces(scheme: Scheme) -> None:
    """Print what each piece is, with its verdicts, options and parameters."""
    pieces = [*scheme.extensions.values(), *scheme.pieces.values()]
    for cls, piece in {type(piece): piece for piece in pieces}.items():
        parameters = [f"{name} {tuple(x.shape)}" for name, x in piece.named_parameters()]
        # not getdoc, which gives the contract where a class has no docstring
        print(f"\n{scheme_name(piece)}: {inspect.cleandoc(cls.__doc__ or 'no docstring')}")
        for sentence in verdicts(scheme_name(piece)):
            print(f"verdict: {sentence}")
        print(f"options: {options_text(cls) or 'none'}")
        print(f"parameters: {', '.join(parameters) or 'none'}")


def scheme_of(text: str, settings: ExplainSettings) -> Scheme:
    """The scheme of a run as trained, or of an expression, which is checked."""
    if text.startswith("out/") or Path(text).exists():
        run = load_run(text, "cpu", "float32", settings.pos_file)
        print(run)
        return run.model.pos
    names = [mention.name for mention in parse(text).mentions if mention.name != "none"]
    kind = Catalogue(settings.pos_file).find(names[0] if names else "nope")
    name = "extend" if issubclass(kind, Extension) else "pos"
    config = replace(settings, **{name: text}).gpt(vocab_size=256)
    for warning in examine(config, settings.pos_file):
        print(f"warning: {warning}", file=sys.stderr)
    print(
        "checked: causal, independent of other texts in the batch, finite, every parameter trained"
    )
    torch.manual_seed(0)
    return GPT(config, settings.pos_file).eval().pos


def main() -> int:
    """Describe expressions, runs or a model, and print and draw what they do to scores."""
    settings, words = configure(ExplainSettings, sys.argv[1:], __doc__)
    looks = []
    status = 0
    for text in words or [settings.pos]:
        if Path(text).is_file() or is_huggingface(text):
            status = max(status, explain_model(text, settings, looks))
            continue
        scheme = scheme_of(text, settings)
        trained = scheme.shape.first_length
        length = settings.length or min(8 * trained, scheme.limit or 2**24)
        print(f"{scheme.text}, trained at L = {trained}\n{scheme.describe()}")
        print_pieces(scheme)
        looks += print_layers(scheme, length, text)
    if settings.out and looks:
        draw(looks, settings.out)
        print(f"drawn in {settings.out}")
    return status


if __name__ == "__main__":
    run_program(main)
