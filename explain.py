"""Explain a position expression: what it is, and what an extension does to each pair of columns.

    python explain.py 'EXPRESSION' [--name=value ...]

    python explain.py 'rope + alibi'                         a scheme, and the pairs that it turns
    python explain.py 'yarn(factor=8)' --train_length=512    what an extension does to the pairs
    python explain.py 'mine + rope' --pos_file=mine.py       with a scheme of your own
    python explain.py rope --format=csv >pairs.csv           only the table, as csv, json, md or tex

docs/schemes.md lists every scheme and every extension.

An expression is read as --extend if one of its names is no scheme, as yarn. Every other one is read
as --pos. An extension is put on --pos, by default on rope. A text is 8 L long, or --length.

A pair of columns that finishes a turn within the training length L meets every angle in training.
A slower pair meets angles that it has never seen as soon as a text is longer. The table and the
figure (--out) show where that happens, and what an extension changes about it.
"""

if __name__ == "__main__":  # --help answers before torch is imported
    from configurable import ExplainSettings, answer_help

    answer_help(ExplainSettings, __doc__)

import inspect
import math
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import posenc
from configurable import ExplainSettings, GPTConfig, configure, require, run_program
from posenc import Piece, Rotary, Shape, apply_maps, overrides, scheme_name
from positions.catalogue import find, options_of
from positions.grammar import parse
from positions.scheme import Scheme, extended_ids
from runs.examine import examine
from runs.figures import COLORS, new_figure, save_figure
from runs.formats import written
from runs.tables import Page, page

LAYERS = 4  # of the model that is looked at
TURN = 2 * math.pi
SIDE = ["wavelength", "wraps at", "met to", "seen"]


# ---- what it is


def description(piece: Piece) -> str:
    """The docstring of a piece, its options and its parameters."""
    options = ", ".join(map(str, options_of(type(piece)).values()))
    parameters = ", ".join(f"{name} {tuple(p.shape)}" for name, p in piece.named_parameters())
    text = f"\n{scheme_name(piece)}: {inspect.getdoc(type(piece))}"
    return f"{text}\noptions: {options or 'none'}\nparameters: {parameters or 'none'}"


# ---- the pairs of a rotary piece


class Pairs:
    """The F pairs of columns that the rotary piece of a layer turns, in a text of `length` tokens.

    Frequencies are in radians per token, (F,) float64, `before` and `after` the extension. Angles
    (F,) are in radians: `seen` is the farthest one of training, `raw` the farthest one of the text
    without the extension, `met` with it. `factor` multiplies cosines and sines.
    """

    @torch.no_grad()
    def __init__(self, scheme: Scheme, layer: int, length: int) -> None:
        self.scheme, self.trained, self.length = scheme, scheme.shape.length, length
        own = [scheme.pieces[key] for key in scheme.layers[layer]]
        added = scheme.extensions_of_set[scheme.set_of_layer[layer]]
        (rotary,) = rotary_pieces(scheme, layer)
        self.name = f"{scheme_name(rotary)} of base {rotary.base:g}"
        self.before = before = rotary.frequencies(length)[0]
        after, self.factor = apply_maps((before, 1.0), scheme.maps, rotary.base, length)
        text = scheme.ids(torch.arange(length), length)
        seen = query_distances(own, training_ids(scheme)).max()
        met = query_distances([*own, *added], extended_ids(added, text, length))
        self.after, self.raw = after, before * query_distances(own, text).max()
        # a key after its query: an angle below 0 is one of nearly a turn
        self.met = (after * met.max()).clamp(min=TURN * (after * met.min() < 0))
        self.seen = before * seen
        if any(overrides(piece, "draw") for piece in added):
            # one trains with such an extension, after the training without it
            self.seen = torch.maximum(before * (self.trained - 1), after * seen)

    def within(self, angles: Tensor) -> Tensor:
        """Whether training saw all of 0 ... angles (F,): a whole turn, or as far but for a token or
        2 %, because not every draw of random positions is tried.
        """
        return (self.seen >= TURN) | (angles <= self.seen + self.before.maximum(0.02 * self.seen))


def rotary_pieces(scheme: Scheme, layer: int) -> list[Rotary]:
    """The piece that turns columns in a layer, if there is one."""
    own = [scheme.pieces[key] for key in scheme.layers[layer]]
    return [piece for piece in own if isinstance(piece, Rotary)]


def training_ids(scheme: Scheme) -> Tensor:
    """The positions (L,) of a training step. Of random ones some draws are tried: the widest."""
    steps, length = range(8 if scheme.limit else 256), scheme.shape.length
    if scheme.draw(0, 0, length) is None:
        return torch.arange(length)
    return max((scheme.draw(0, step, length) for step in steps), key=lambda ids: ids[-1] - ids[0])


def query_distances(pieces: list[Piece], ids: Tensor) -> Tensor:
    """The distances of the last query from the keys that it may see, float64.

    `ids` (N,) are the positions of the text, `pieces` those of a layer.
    """
    index = torch.arange(len(ids))
    apart, visible = ids[-1] - ids, index >= 0
    for piece in pieces:
        for region in piece.regions(len(ids)) if overrides(piece, "regions") else []:
            rewritten = region.query(ids[-1]) - region.key(ids)
            apart = torch.where(region.where(ids[-1], ids), rewritten, apart)
        if overrides(piece, "mask"):
            visible &= piece.mask()(index[-1], index)
    return apart[visible].double()


# ---- the table


def table(pairs: Pairs) -> Page:
    """A line for each pair, angles in turns; below, a summary, and a warning of what is probably a
    mistake.
    """
    lines = [["pair", "turns in L", "seen to", *SIDE]]
    lines[0] += ["|", *SIDE] if pairs.scheme.extension else []
    for one in numbers(pairs):
        lines.append([str(one["pair"]), f"{one['turns_in_L']:,.3f}", f"{one['seen_to']:,.3f}"])
        lines[-1] += side_cells(one)
        lines[-1] += ["|", *side_cells(one, "extended_")] if pairs.scheme.extension else []
    title = f"{pairs.name}, L = {pairs.trained}, N = {pairs.length}; angles in turns"
    return page(title, lines, summary(pairs), *few_turns(pairs))


def side_cells(one: dict[str, Any], side: str = "") -> list[str]:
    """The cells under SIDE of a pair: without the extension, or with it (`extended_`)."""
    names = ("wavelength", "wraps_at", "met_to", "seen")
    wave, wraps, met, seen = (one[f"{side}{name}"] for name in names)
    first = f"{wraps:,.0f}" if wraps < math.inf else "never"  # whole number of tokens in a turn
    return [f"{wave:,.1f}", first, f"{met:,.3f}", "yes" if seen else "no"]


def numbers(pairs: Pairs) -> list[dict[str, Any]]:
    """The table as numbers: a dict for each pair. The wavelength may be infinite."""
    fields = {"turns_in_L": pairs.before * pairs.trained / TURN, "seen_to": pairs.seen / TURN}
    sides = {"": (pairs.before, pairs.raw)}
    sides |= {"extended_": (pairs.after, pairs.met)} if pairs.scheme.extension else {}
    for side, (frequencies, angles) in sides.items():
        waves = TURN / frequencies
        fields |= {f"{side}wavelength": waves, f"{side}wraps_at": (waves - 1e-9).ceil()}
        fields |= {f"{side}met_to": angles / TURN}
        fields |= {f"{side}seen": pairs.within(angles)}
    about = {"rotary": pairs.name, "L": pairs.trained, "N": pairs.length}
    lines = enumerate(zip(*(values.tolist() for values in fields.values()), strict=True))
    return [about | {"pair": k} | dict(zip(fields, line, strict=True)) for k, line in lines]


def count(chosen: Tensor) -> str:
    """How many pairs are chosen (F,) bool, the first and the last: "16 of 32 pairs (16 ... 31)"."""
    numbers = chosen.nonzero().flatten().tolist()
    which = f" ({numbers[0]} ... {numbers[-1]})" if numbers else ""
    return f"{len(numbers) or 'none'} of {len(chosen)} pairs{which}"


def summary(pairs: Pairs) -> str:
    """The table in a sentence or two."""
    slow, unseen = pairs.before * pairs.trained < TURN, ~pairs.within(pairs.raw)
    text = f"{count(slow)} finish no turn within L = {pairs.trained}; {count(unseen)} meet angles "
    text += f"at N = {pairs.length} that training never saw"
    if pairs.scheme.extension:
        text += f"\nextended by {pairs.scheme.extension}: {count(~pairs.within(pairs.met))} do; "
        text += f"cosines and sines x {pairs.factor:.4f}, logits x {pairs.factor**2:.4f}"
    return text


def few_turns(pairs: Pairs) -> list[str]:
    """A warning if fewer than an eighth of the pairs make the turns within L that the extension
    asks of a fast pair. In YaRN's own setting a third of them do.
    """
    turns, warnings = pairs.before * pairs.trained / TURN, []
    most = math.floor(turns[max(1, len(turns) // 8) - 1])  # that so many pairs complete
    for piece in () if torch.equal(pairs.before, pairs.after) else pairs.scheme.extensions:
        name = "high" if isinstance(piece, posenc.Llama3) else "beta"
        bound = getattr(piece, name) if isinstance(piece, posenc.Yarn | posenc.Llama3) else 0
        if most < bound:
            model = f"with L = {pairs.trained} and head dimension {pairs.scheme.shape.head_dim}"
            few = f"only {int((turns >= bound).sum())} of {len(turns)} pairs can complete"
            # 4: results/extend/beta.md
            advice = f"{name}={min(4, most)}" if most > 1 else "ntk, L is too short for this one"
            slow = f"{bound:g} turns, so {name} = {bound:g} slows nearly all: try {advice}"
            warnings.append(f"warning: {model} {few} {slow}")
    return warnings


# ---- the figure


def plot_pairs(tables: list[Pairs], path: Path) -> None:
    """Draw the farthest angle of every pair of each rotary piece, in turns, without those at 0.

    UserError if the file cannot be written.
    """
    figure = new_figure((11, 3.6 * len(tables)), dpi=120)
    parts = figure.subplots(len(tables), squeeze=False)[:, 0]
    for axes, pairs in zip(parts, tables, strict=True):
        curves = [(f"seen in training, L = {pairs.trained}", pairs.seen)]
        curves += [(f"met at N = {pairs.length}", pairs.raw)]
        if pairs.scheme.extension:
            curves += [(f"met with {pairs.scheme.extension:.60}", pairs.met)]
        for k, (label, angles) in enumerate(curves):
            style = {"label": label, "color": COLORS[k], "linewidth": 5 - 1.6 * k, "alpha": 0.8}
            turns = (angles / TURN).where(angles > 0, math.nan)
            axes.plot(turns, marker="o", markersize=3.5, **style)
        axes.axhline(1, color="0.35", linestyle="--", linewidth=1, label="one turn")
        axes.set_title(f"{pairs.name}: how far each pair of columns turns")
        axes.set(yscale="log", xlabel="pair", ylabel="turns up to the farthest token")
        axes.grid(color="0.92", linewidth=0.7)
        axes.legend(loc="lower left", framealpha=1, edgecolor="white", fontsize=9)
    save_figure(figure, path)


# ---- the command


def expressions(s: ExplainSettings, words: list[str], pos_file: Path | None) -> tuple[str, str]:
    """The scheme and the extension: --pos, --extend, and the expression on the command line."""
    require(len(words) < 2, f"{' '.join(words)!r:.60} is more than one word: quote the expression")
    given = {"pos": s.pos, "extend": s.extend}
    for word in words:
        kinds = [find(mention.name, pos_file) for mention in parse(word).mentions]
        name = "extend" if any(issubclass(kind, posenc.Extension) for kind in kinds) else "pos"
        twice = f"{word!r:.60} stands for --{name}, and there is --{name}={given[name]:.60} too"
        require(not given[name], f"{twice}: leave one out")
        given[name] = word
    return given["pos"] or "rope", given["extend"]


def show_pairs(scheme: Scheme, settings: ExplainSettings) -> None:
    """Print and draw the pairs of each layer; layers that are alike are shown once."""
    length = settings.length or min(8 * settings.train_length, scheme.limit or 2**24)
    scheme.check_length(length)
    tables = [Pairs(scheme, n, length) for n in range(LAYERS) if rotary_pieces(scheme, n)]
    shown = {table(pairs): pairs for pairs in tables}
    nothing = f"{scheme.text} turns no pairs of columns along a text"
    if settings.format != "text":
        require(shown, f"{nothing}: there is no table of them")
        every = [line for pairs in shown.values() for line in numbers(pairs)]
        print(written(settings.format, list(shown), every))
        for pairs in shown.values() if settings.format in ("csv", "json") else ():
            print("".join(f"{few}\n" for few in few_turns(pairs)), end="", file=sys.stderr)
        return
    print("", *shown or [nothing], sep="\n")
    if settings.out:
        require(shown, f"{nothing}: there are no pairs to plot in {settings.out}")
        plot_pairs(list(shown.values()), Path(settings.out))
        print(f"drawn in {settings.out}")


def main() -> None:
    """Say what an expression is, and show the pairs of columns that it turns."""
    settings, words = configure(ExplainSettings, sys.argv[1:], __doc__)
    pos_file = Path(settings.pos_file) if settings.pos_file else None
    pos, extend = expressions(settings, words, pos_file)
    heads, head_dim, trained = settings.n_head, settings.head_dim, settings.train_length
    shape = Shape(heads, head_dim, heads * head_dim, trained)
    if pos_file:
        sizes = {"block_size": trained, "n_layer": LAYERS, "n_head": heads, "n_embd": shape.width}
        config = GPTConfig(pos=pos, extend=extend, **sizes)
        for sentence in examine(config, pos_file):
            print(f"warning: {sentence}", file=sys.stderr)
    scheme = Scheme(pos, shape, LAYERS, pos_file)
    scheme.extend(extend)
    if settings.format == "text":
        if pos_file:
            print("examined: causal, its own, finite, trained, the same by every way of computing")
        model = f"in {LAYERS} layers of {heads} heads of {head_dim}, trained at {trained}"
        print(f"{scheme.text}  ({model})\n{scheme.describe()}")
        pieces = scheme.extensions or scheme.pieces.values()
        print(*dict.fromkeys(map(description, pieces)), sep="\n")
    show_pairs(scheme, settings)


if __name__ == "__main__":
    run_program(main)
