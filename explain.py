"""Explain a position expression: what it is, and what an extension does to each pair of columns.

    python explain.py 'EXPRESSION' [--name=value ...]

    python explain.py 'rope + alibi'                         a scheme, and the pairs that it turns
    python explain.py 'yarn(factor=8)' --train_length=512    what an extension does to the pairs
    python explain.py 'mine + rope' --pos_file=mine.py       with a scheme of your own
    python explain.py                                        this help and every scheme there is

An expression is read as --extend if it holds extensions only and one of them is no scheme, as
yarn. Every other one is read as --pos. An extension is put on --pos, by default on rope.

A pair of columns that finishes a turn within the training length L meets every angle in training.
A slower pair meets angles that it has never seen as soon as a text is longer. The table and the
figure (--out) show where that happens, and what an extension changes about it.
"""

if __name__ == "__main__":  # --help answers before torch is imported
    import sys

    from configurable import ExplainSettings, answer_help

    answer_help(ExplainSettings, sys.argv[1:], __doc__)

import inspect
import math
import sys
from pathlib import Path

import torch
from torch import Tensor

import posenc
from configurable import ExplainSettings, GPTConfig, answer_help, configure, require, run_program
from posenc import Piece, Rotary, Shape, apply_maps, overrides, scheme_name
from positions.catalogue import ALIASES, extension_names, find, options_of, read, scheme_names
from positions.scheme import Scheme, extended_ids
from runs.figures import COLORS, new_figure, save_figure

ACTS_ON = {  # by method of Piece
    "map_frequencies": "frequencies",
    "ids": "positions",
    "embed": "token embedding",
    "turn": "queries and keys",
    "regions": "distances",
    "bias": "score",
    "temperature": "temperature",
    "mask": "mask",
    "score": "whole score",
    "draw": "positions of training",
}
LAYERS = 4  # of the model that is looked at
LONGEST = 2**24  # tokens of a text that is looked at
TURN = 2 * math.pi


# ---- what there is


def catalogue() -> str:
    """Two Markdown tables, of every scheme and of every extension: options, what it acts on, and
    its verdict.
    """
    lines = ["| scheme | acts on | verdict |", "| --- | --- | --- |"]
    lines += map(catalogue_row, scheme_names())
    lines += ["", "| extension | changes | verdict |", "| --- | --- | --- |"]
    lines += map(catalogue_row, extension_names())
    lines += [f"| `{name}` | | another name of `{text}`. |" for name, text in ALIASES.items()]
    return "\n".join(lines)


def catalogue_row(name: str) -> str:
    """A row of a Markdown table."""
    cls, options = find(name), []
    for key, option in options_of(cls).items():
        required = option.default is option.empty
        options.append(key if required else f"{key}={option.default}")
    mention = f"{name}({', '.join(options)})" if options else name
    acts_on = ", ".join(place for method, place in ACTS_ON.items() if overrides(cls, method))
    verdict = " ".join(inspect.getdoc(cls).partition("Verdict: ")[2].split())
    return f"| `{mention}` | {acts_on or 'nothing'} | {verdict} |"


def description(piece: Piece) -> str:
    """The docstring of a piece, its options and its parameters."""
    options = ", ".join(map(str, options_of(type(piece)).values()))
    parameters = ", ".join(f"{name} {tuple(p.shape)}" for name, p in piece.named_parameters())
    text = f"\n{scheme_name(piece)}: {inspect.getdoc(type(piece))}"
    return f"{text}\noptions: {options or 'none'}\nparameters: {parameters or 'none'}"


# ---- the pairs of a rotary piece


class Pairs:
    """The F pairs of columns that a rotary piece turns in a layer, in a text of `length` tokens.

    `own` are the pieces of the layer. Frequencies are in radians per token, (F,) float64, `before`
    and `after` the extension. Angles (F,) are in radians: `seen` is the farthest one of training,
    `raw` the farthest one of the text without the extension, `met` with it. With the extension,
    `distances` are those of the last query from the keys that it sees, the nearest key last, and
    `factor` multiplies cosines and sines.
    """

    def __init__(self, scheme: Scheme, own: list[Piece], rotary: Rotary, length: int) -> None:
        self.scheme, self.trained, self.length = scheme, scheme.shape.length, length
        self.name = f"{scheme_name(rotary)} of base {rotary.base:g}"
        before = rotary.frequencies(length)[0]
        after, self.factor = apply_maps((before, 1.0), scheme.maps, rotary.base, length)
        self.before, self.after = before, after
        self.seen = self.seen_in_training(own)
        text = scheme.ids(torch.arange(length), length)
        self.raw = before * query_distances(own, [], text).max()
        self.distances = query_distances(own, extension_pieces(scheme), text)
        # a key after its query: an angle below 0 is one of nearly a turn
        least = TURN * (after * self.distances.min() < 0)
        self.met = (after * self.distances.max()).clamp(min=least)

    def seen_in_training(self, own: list[Piece]) -> Tensor:
        """The farthest angles of training (F,). Of random positions some draws are tried."""
        scheme, length = self.scheme, self.trained
        draws = [scheme.draw(0, step, length) for step in range(8 if scheme.limit else 256)]
        if draws[0] is None:
            return self.before * query_distances(own, [], torch.arange(length)).max()
        widest = max(draws, key=lambda ids: ids[-1] - ids[0])
        seen = query_distances(own, [], widest).max()
        if any(overrides(piece, "draw") for piece in scheme.extensions):
            # one trains with such an extension, after the training without it
            return torch.maximum(self.before * (length - 1), self.after * seen)
        return self.before * seen

    def within(self, angles: Tensor) -> Tensor:
        """Whether training saw all of 0 ... angles (F,): a whole turn, or as far but for a token or
        2 %, because not every draw of random positions is tried.
        """
        return (self.seen >= TURN) | (angles <= self.seen + self.before.maximum(0.02 * self.seen))


def pairs_of(scheme: Scheme, layer: int, length: int) -> Pairs | None:
    """The pairs that a layer turns in a text of `length` tokens; None if it turns none."""
    own = [scheme.pieces[key] for key in scheme.layers[layer]]
    rotary = [piece for piece in own if isinstance(piece, Rotary)]
    with torch.no_grad():
        return Pairs(scheme, own, rotary[0], length) if rotary else None


def query_distances(own: list[Piece], added: list[Piece], ids: Tensor) -> Tensor:
    """The distances of the last query from the keys that it may see, float64, the nearest last.

    `ids` (N,) are the positions of the text, `own` are the pieces of a layer, `added` extensions.
    """
    index, ids = torch.arange(len(ids)), extended_ids(added, ids, len(ids))
    apart, visible = ids[-1] - ids, index >= 0
    for piece in [*own, *added]:
        for region in piece.regions(len(ids)) if overrides(piece, "regions") else []:
            rewritten = region.query(ids[-1]) - region.key(ids)
            apart = torch.where(region.where(ids[-1], ids), rewritten, apart)
        if overrides(piece, "mask"):
            visible &= piece.mask()(index[-1], index)
    return apart[visible].double()


def extension_pieces(scheme: Scheme) -> list[Piece]:
    """The active extensions, each once, even if every layer has its own copy."""
    return list({type(piece): piece for piece in scheme.extensions}.values())


def scaling_factor(scheme: Scheme, length: int) -> float:
    """The factor of the active extension at that length; 1 if it has none."""
    scaled = [piece for piece in scheme.extensions if isinstance(piece, posenc.Scaled)]
    return scaled[0].factor(length) if scaled else 1.0


def default_length(scheme: Scheme) -> int:
    """The test length: L x factor if the extension was given a factor, else 8 L.

    It is never more than the scheme defines. UserError if it is too long to look at.
    """
    trained = scheme.shape.length
    given, far = (scaling_factor(scheme, n) for n in (trained, 8 * trained))
    length = int(trained * given) if given == far > 1 else 8 * trained
    advice = "is too long to look at: --length=N names a shorter one"
    require(length <= LONGEST, f"a text of L x factor = {length:,} tokens {advice}")
    return min(length, scheme.limit or length)


# ---- the table


def in_words(pairs: Pairs) -> str:
    """A title, the table, its summary, and warnings of what is probably a mistake."""
    title = f"\n{pairs.name}, L = {pairs.trained}, N = {pairs.length}; angles in turns"
    mistakes = filter(None, [few_turns(pairs), blurs_neighbours(pairs)])
    warnings = [f"warning: {sentence}" for sentence in mistakes]
    return "\n".join([title, table(pairs), summary(pairs), *warnings])


def table(pairs: Pairs) -> str:
    """A line for each pair. Angles are in turns."""
    heads = ["wavelength", "wraps at", "met to", "seen"]
    lines = [["pair", "turns in L", "seen to", *heads]]
    extended = bool(pairs.scheme.extension)
    lines[0] += ["|", *heads] * extended
    for m, (frequency, seen) in enumerate(zip(pairs.before, pairs.seen, strict=True)):
        turns = frequency * pairs.trained / TURN
        line = [str(m), f"{turns:,.3f}", f"{seen / TURN:,.3f}"]
        line += cells(pairs, m, pairs.before, pairs.raw)
        line += ["|", *cells(pairs, m, pairs.after, pairs.met)] * extended
        lines.append(line)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.rjust, line, widths)) for line in lines)


def cells(pairs: Pairs, m: int, frequencies: Tensor, angles: Tensor) -> list[str]:
    """Wavelength, first whole number of tokens that is a turn, farthest angle, whether seen."""
    wave = TURN / frequencies[m].item() if frequencies[m] > 0 else math.inf
    wraps = f"{math.ceil(wave - 1e-9):,}" if wave < math.inf else "never"
    seen = "yes" if pairs.within(angles)[m] else "no"
    return [f"{wave:,.1f}", wraps, f"{angles[m] / TURN:,.3f}", seen]


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


def few_turns(pairs: Pairs) -> str:
    """Whether fewer than an eighth of the pairs make the turns within L that the extension asks of
    a fast pair. In YaRN's own setting a third of them do.
    """
    bounds = {posenc.Yarn: "beta", posenc.Llama3: "high"}
    asking = [piece for piece in pairs.scheme.extensions if type(piece) in bounds]
    turns, total = pairs.before * pairs.trained / TURN, len(pairs.before)
    if not asking or torch.equal(pairs.before, pairs.after):
        return ""
    name = bounds[type(asking[0])]
    bound, wanted = getattr(asking[0], name), max(1, total // 8)
    complete = int((turns >= bound).sum())
    if complete >= wanted:
        return ""
    better = min(4, math.floor(turns[wanted - 1]))  # 4: results/extend/beta.md
    advice = f"{name}={better}" if better > 1 else "ntk, L is too short for this one"
    model = f"with L = {pairs.trained} and head dimension {pairs.scheme.shape.head_dim}"
    few = f"{f'only {complete}' if complete else 'none'} of {total} pairs can complete"
    return f"{model} {few} {bound:g} turns, so {name} = {bound:g} slows nearly all: try {advice}"


def blurs_neighbours(pairs: Pairs) -> str:
    """Whether neighbours come over 4 times closer, too close for a model that is not fine-tuned.

    The perplexity of LLaMA-7B is 16 with pi at 4 and 112 with pi at 8 (Chen et al. 2023).
    """
    near = pairs.distances[-2] if len(pairs.distances) > 1 else 1.0
    before, after = math.degrees(pairs.before[0]), math.degrees(pairs.after[0] * near)
    if after >= before / 4.0001:
        return ""
    what = f"{after:.2g} instead of {before:.2g} degrees from one token to the next"
    advice = "which blurs neighbours: fine-tune with it, or try ntk or yarn, which keep it"
    return f"{pairs.scheme.extension} turns the fastest pair by {what}, {advice}"


# ---- the figure


def plot_pairs(tables: list[Pairs], path: Path) -> None:
    """Draw the farthest angle of every pair of each rotary piece, in turns, without those at 0.

    UserError if the file cannot be written.
    """
    figure = new_figure((11, 3.6 * len(tables)), dpi=120)
    parts = figure.subplots(len(tables), squeeze=False)[:, 0]
    for axes, pairs in zip(parts, tables, strict=True):
        extension = pairs.scheme.extension
        labels = [f"seen in training, L = {pairs.trained}", f"met at N = {pairs.length}"]
        labels += [f"met with {extension:.60}"] if extension else []
        for k, label in enumerate(labels):
            turns = (pairs.seen, pairs.raw, pairs.met)[k] / TURN
            style = {"label": label, "color": COLORS[k], "linewidth": 5 - 1.6 * k, "alpha": 0.8}
            axes.plot(turns.where(turns > 0, math.nan), marker="o", markersize=3.5, **style)
        axes.axhline(1, color="0.35", linestyle="--", linewidth=1, label="one turn")
        axes.set_title(f"{pairs.name}: how far each pair of columns turns")
        axes.set(yscale="log", xlabel="pair", ylabel="turns up to the farthest token")
        axes.grid(color="0.92", linewidth=0.7)
        axes.legend(loc="lower left", framealpha=1, edgecolor="white", fontsize=9)
    save_figure(figure, path)


# ---- the command


def expressions(s: ExplainSettings, words: list[str], pos_file: Path | None) -> tuple[str, str]:
    """The scheme and the extension: --pos, --extend, and the expression on the command line."""
    several = f"{' '.join(words)!r:.60} is more than one word"
    require(len(words) < 2, f"{several}: quote an expression, as in 'rope + alibi'")
    given = {"pos": s.pos, "extend": s.extend}
    for word in words:
        kinds = [find(mention.name, pos_file) for mention in read(word).mentions]
        only_extension = any(issubclass(kind, posenc.Extension) for kind in kinds)
        name = "extend" if only_extension and all(kind.can_extend for kind in kinds) else "pos"
        twice = f"{word!r:.60} stands for --{name}, and there is --{name}={given[name]:.60} too"
        require(not given[name], f"{twice}: leave one out")
        given[name] = word
    return given["pos"] or "rope", given["extend"]


def show_pairs(scheme: Scheme, settings: ExplainSettings) -> None:
    """Print and draw the pairs of each layer; layers that are alike are shown once."""
    length = default_length(scheme) if settings.length is None else settings.length
    scheme.check_length(length)
    layers = [pairs_of(scheme, layer, length) for layer in range(LAYERS)]
    shown = {in_words(pairs): pairs for pairs in layers if pairs}
    nothing = f"{scheme.text} turns no pairs of columns"
    print(*shown or [f"\n{nothing}"], sep="\n")
    if settings.out:
        require(shown, f"{nothing}: there are no pairs to plot in {settings.out}")
        plot_pairs(list(shown.values()), Path(settings.out))
        print(f"drawn in {settings.out}")


def main() -> None:
    """Say what an expression is, and show the pairs of columns that it turns."""
    argv = sys.argv[1:]
    if not argv:
        answer_help(ExplainSettings, ["--help"], f"{__doc__}\n{catalogue()}")
    settings, words = configure(ExplainSettings, argv, __doc__)
    pos_file = Path(settings.pos_file) if settings.pos_file else None
    pos, extend = expressions(settings, words, pos_file)
    heads, head_dim, trained = settings.n_head, settings.head_dim, settings.train_length
    shape = Shape(heads, head_dim, heads * head_dim, trained)
    config = GPTConfig(trained, 256, LAYERS, heads, shape.width, pos=pos, extend=extend)
    examined = examination(config, pos_file) if pos_file else []
    scheme = Scheme(pos, shape, LAYERS, pos_file)
    scheme.extend(extend)
    model = f"in {LAYERS} layers of {heads} heads of {head_dim}, trained at {trained}"
    print(f"{scheme.text}  ({model})\n{scheme.describe()}")
    pieces = extension_pieces(scheme) or scheme.pieces.values()
    print(*dict.fromkeys(map(description, pieces)), sep="\n")
    show_pairs(scheme, settings)
    print(*examined, sep="\n", end="\n" if examined else "")


def examination(config: GPTConfig, pos_file: Path) -> list[str]:
    """What is said of a scheme of the user's own; UserError for what is wrong with it."""
    from runs.examine import examine  # which needs a model

    warnings = [f"warning: {sentence}" for sentence in examine(config, pos_file)]
    passed = "causal, its own, finite, trained, the same in one pass, by blocks and token by token"
    return [*warnings, f"examined: {passed}"]


if __name__ == "__main__":
    run_program(main)
