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
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

import posenc
from configurable import (
    ExplainSettings,
    GPTConfig,
    answer_help,
    configure,
    require,
    run_program,
)
from posenc import Piece, Rotary, Shape, apply_maps, overrides, scheme_name
from positions.catalogue import ALIASES, extension_names, find, options_of, read, scheme_names
from positions.scheme import Scheme, extended_ids
from runs.figures import new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.figure import SubFigure

SCHEME_ACTS_ON = {  # by method of Piece
    "ids": "position ids",
    "embed": "token embedding",
    "turn": "queries and keys",
    "bias": "score",
    "temperature": "temperature",
    "mask": "mask",
    "score": "whole score",
}
EXTENSION_CHANGES = {
    "map_frequencies": "frequencies",
    "ids": "positions",
    "regions": "distances",
    "temperature": "temperature",
    "mask": "mask",
    "draw": "positions of training",
}
LAYERS = 4  # of the model that is looked at
LONGEST = 2**24  # tokens of a text that is looked at
TURN = 2 * math.pi
COLORS = ("#0072B2", "#D55E00", "#009E73")  # of what is seen, met, and met with the extension


# ---- what there is


def catalogue() -> str:
    """Two Markdown tables, of every scheme and of every extension: options, what it acts on, and
    its verdict.
    """
    lines = ["| scheme | acts on | verdict |", "| --- | --- | --- |"]
    lines += [catalogue_row(name, SCHEME_ACTS_ON) for name in scheme_names()]
    lines += ["", "| extension | changes | verdict |", "| --- | --- | --- |"]
    lines += [catalogue_row(name, EXTENSION_CHANGES) for name in extension_names()]
    lines += [f"| `{name}` | | another name of `{text}`. |" for name, text in ALIASES.items()]
    return "\n".join(lines)


def catalogue_row(name: str, places: dict[str, str]) -> str:
    """A row of a Markdown table; `places` says in words what each method of Piece acts on."""
    cls, options = find(name), []
    for key, option in options_of(cls).items():
        required = option.default is option.empty
        options.append(key if required else f"{key}={option.default}")
    mention = f"{name}({', '.join(options)})" if options else name
    acts_on = ", ".join(place for method, place in places.items() if overrides(cls, method))
    verdict = " ".join(inspect.getdoc(cls).partition("Verdict: ")[2].split())
    return f"| `{mention}` | {acts_on or 'nothing'} | {verdict} |"


def description(piece: Piece) -> str:
    """The docstring of a piece, its options and its parameters."""
    options = ", ".join(map(str, options_of(type(piece)).values()))
    parameters = ", ".join(f"{name} {tuple(p.shape)}" for name, p in piece.named_parameters())
    text = f"\n{scheme_name(piece)}: {inspect.getdoc(type(piece))}"
    return f"{text}\noptions: {options or 'none'}\nparameters: {parameters or 'none'}"


# ---- the pairs of a rotary piece


@dataclass(frozen=True)
class Pairs:
    """The F pairs of columns that one rotary piece turns, in a text of `length` tokens.

    Tensors are float64 (F,). Frequencies are in radians per token, `before` and `after` the
    extension. Angles are in radians: `seen` is the farthest one of training, `raw` the farthest one
    of the text without the extension, `met` with it. An angle up to `slack` beyond `seen` counts as
    seen. With the extension, `distances` are those of the last query from the keys that it sees,
    the nearest key last, and `factor` multiplies cosines and sines.
    """

    name: str
    train_length: int
    length: int
    extension: str
    before: Tensor
    after: Tensor
    seen: Tensor
    raw: Tensor
    met: Tensor
    slack: Tensor
    distances: Tensor
    factor: float

    def within(self, angles: Tensor) -> Tensor:
        """Whether training saw all of 0 ... angles (F,): a whole turn, or at least as far."""
        seen = self.seen + self.slack
        return (seen >= TURN) | (angles <= seen * (1 + 1e-6))  # positions may be float32


def pairs_of(scheme: Scheme, layer: int, length: int) -> Pairs | None:
    """The pairs that a layer turns in a text of `length` tokens; None if it turns none."""
    pieces = [scheme.pieces[key] for key in scheme.layers[layer]]
    rotary = next((piece for piece in pieces if isinstance(piece, Rotary)), None)
    if rotary is None:
        return None
    before = rotary.frequencies(length)[0].detach()
    after, factor = apply_maps((before, 1.0), scheme.maps, rotary.base, length)
    seen, slack = seen_in_training(scheme, layer, before, after)
    text = scheme.ids(torch.arange(length), length)
    raw, met = (query_distances(scheme, layer, text, extended) for extended in (False, True))
    # a key after its query: an angle below 0 is one of nearly a turn
    least = TURN * (after * met.min() < 0)
    return Pairs(
        name=f"{scheme_name(rotary)} of base {rotary.base:g}",
        train_length=scheme.shape.length,
        length=length,
        extension=scheme.extension,
        before=before,
        after=after,
        seen=seen,
        raw=before * raw.max(),
        met=(after * met.max()).clamp(min=least),
        slack=slack,
        distances=met,
        factor=factor,
    )


def seen_in_training(
    scheme: Scheme, layer: int, before: Tensor, after: Tensor
) -> tuple[Tensor, Tensor]:
    """The farthest angles of training (F,), and how much farther an angle still counts as seen.

    That is one token more, or 2 % where positions are random, because only some draws are tried.
    """
    length = scheme.shape.length
    steps = range(8 if scheme.limit else 256)
    draws = [scheme.draw(0, step, length) for step in steps]
    if draws[0] is None:
        return before * query_distances(scheme, layer, torch.arange(length), False).max(), before
    widest = max(draws, key=lambda ids: ids[-1] - ids[0])
    seen = before * query_distances(scheme, layer, widest, False).max()
    if any(overrides(piece, "draw") for piece in scheme.extensions):
        with_it = after / before.clamp(min=1e-300) * seen  # one trains with such an extension
        seen = torch.maximum(before * (length - 1), with_it)
    return seen, 0.02 * seen


def query_distances(scheme: Scheme, layer: int, ids: Tensor, extended: bool) -> Tensor:
    """The distances of the last query from the keys that it may see, the nearest ones last.

    `ids` (N,) are the positions of the text, `extended` says whether the extension is in force.
    """
    added = extension_pieces(scheme) if extended else []
    index = torch.arange(len(ids))
    ids = extended_ids(added, ids, len(ids))
    apart, query = ids[-1] - ids, ids[-1]
    visible = torch.ones(len(ids), dtype=torch.bool)
    for piece in added:
        for region in piece.regions(len(ids)) if overrides(piece, "regions") else []:
            rewritten = region.query(query) - region.key(ids)
            apart = torch.where(region.where(query, ids), rewritten, apart)
    for piece in [*(scheme.pieces[key] for key in scheme.layers[layer]), *added]:
        if overrides(piece, "mask"):
            visible &= piece.mask()(index[-1], index)
    return apart[visible].detach().double()


def extension_pieces(scheme: Scheme) -> list[Piece]:
    """The active extensions, each once, even if every layer has its own copy."""
    return list({type(piece): piece for piece in scheme.extensions}.values())


def scaling_factor(scheme: Scheme, length: int) -> float | None:
    """The factor of the extension at that length; None if no active extension has one."""
    scaled = [piece for piece in scheme.extensions if isinstance(piece, posenc.Scaled)]
    return scaled[0].factor(length) if scaled else None


def default_length(scheme: Scheme) -> int:
    """The test length: L x factor if the extension was given a factor, else 8 L.

    It is never more than the scheme defines. UserError if it is too long to look at.
    """
    trained = scheme.shape.length
    given, far = (scaling_factor(scheme, n) for n in (trained, 8 * trained))
    fixed = given is not None and given == far and given > 1
    length = int(trained * given) if fixed else 8 * trained
    advice = "is too long to look at: --length=N names a shorter one"
    require(length <= LONGEST, f"a text of L x factor = {length:,} tokens {advice}")
    return min(length, scheme.limit or length)


# ---- the table


def table(pairs: Pairs) -> str:
    """A line for each pair. Angles are in turns."""
    heads = ["wavelength", "wraps at", "met to", "seen"]
    lines = [["pair", "turns in L", "seen to", *heads]]
    if pairs.extension:
        lines[0] += [f"| {heads[0]}", *heads[1:]]
    raw, met = pairs.within(pairs.raw), pairs.within(pairs.met)
    for m, frequency in enumerate(pairs.before.tolist()):
        turns, seen = frequency * pairs.train_length / TURN, pairs.seen[m] / TURN
        line = [str(m), f"{turns:,.3f}", f"{seen:,.3f}"]
        line += cells(frequency, pairs.raw[m], raw[m])
        if pairs.extension:
            wave, *others = cells(pairs.after[m], pairs.met[m], met[m])
            line += [f"| {wave:>10}", *others]
        lines.append(line)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.rjust, line, widths)) for line in lines)


def cells(frequency: float, angle: float, seen: bool) -> list[str]:
    """Wavelength, first whole number of tokens that is a turn, farthest angle, whether seen."""
    wave = TURN / frequency if frequency > 0 else math.inf
    wraps = f"{math.ceil(wave - 1e-9):,}" if frequency > 0 else "never"
    return [f"{wave:,.1f}", wraps, f"{angle / TURN:,.3f}", "yes" if seen else "no"]


def count(chosen: Tensor) -> str:
    """How many pairs are chosen (F,) bool, and which: "16 of 32 pairs (16 ... 31)"."""
    numbers = chosen.nonzero().flatten().tolist()
    if not numbers:
        return f"none of {len(chosen)} pairs"
    gapless = numbers[-1] - numbers[0] < len(numbers)
    which = f"{numbers[0]} {'...' if gapless else 'and others to'} {numbers[-1]}"
    return f"{len(numbers)} of {len(chosen)} pairs ({which})"


def summary(pairs: Pairs) -> str:
    """The table in a sentence or two."""
    slow = count(pairs.before * pairs.train_length < TURN)
    unseen = count(~pairs.within(pairs.raw))
    text = f"{slow} finish no turn within L = {pairs.train_length}; {unseen} meet angles at "
    text += f"N = {pairs.length} that training never saw"
    if pairs.extension:
        text += f"\nextended by {pairs.extension}: {count(~pairs.within(pairs.met))} do; "
        text += f"cosines and sines x {pairs.factor:.4f}, logits x {pairs.factor**2:.4f}"
    return text


# ---- warnings


def warnings(scheme: Scheme, pairs: Pairs) -> list[str]:
    """A sentence for everything about the active extension that is probably a mistake."""
    sentences = [blurs_neighbours(pairs), leaves_unseen(scheme, pairs)]
    if (pairs.after != pairs.before).any():
        sentences = [few_turns(scheme, piece, pairs) for piece in scheme.extensions] + sentences
    return [f"warning: {sentence}" for sentence in sentences if sentence]


def few_turns(scheme: Scheme, piece: Piece, pairs: Pairs) -> str:
    """Whether fewer than an eighth of the pairs make the turns within L that the extension asks of
    a fast pair. In YaRN's own setting a third of them do.
    """
    if not isinstance(piece, posenc.Yarn | posenc.Llama3):
        return ""
    name, other = ("beta", "alpha") if isinstance(piece, posenc.Yarn) else ("high", "low")
    bound, total = getattr(piece, name), len(pairs.before)
    turns, wanted = pairs.before * pairs.train_length / TURN, max(1, total // 8)
    complete = int((turns >= bound).sum())
    if complete >= wanted:
        return ""
    better = min(4, math.floor(turns[wanted - 1]))  # 4: results/extend/beta.md
    possible = better > getattr(piece, other)
    advice = f"{name}={better}" if possible else "ntk, L is too short for this one"
    few = f"only {complete}" if complete else "none"
    model = f"with L = {pairs.train_length} and head dimension {scheme.shape.head_dim}"
    too_few = f"{few} of {total} pairs can complete {bound:g} turns"
    return f"{model} {too_few}, so {name} = {bound:g} slows nearly all: try {advice}"


def blurs_neighbours(pairs: Pairs) -> str:
    """Whether neighbours come over 4 times closer, too close for a model that is not fine-tuned.

    The perplexity of LLaMA-7B is 16 with pi at 4 and 112 with pi at 8 (Chen et al. 2023).
    """
    near = pairs.distances[-2] if len(pairs.distances) > 1 else 1.0
    before, after = math.degrees(pairs.before[0]), math.degrees(pairs.after[0] * near)
    if after >= before / 4.0001:
        return ""
    what = f"{after:.2g} instead of {before:.2g} degrees from one token to the next"
    advice = "fine-tune with it, or try ntk or yarn, which keep it"
    return f"{pairs.extension} turns the fastest pair by {what}, which blurs neighbours: {advice}"


def leaves_unseen(scheme: Scheme, pairs: Pairs) -> str:
    """Whether pairs meet angles that training never saw, in spite of the extension."""
    unseen = ~pairs.within(pairs.met)
    factor, needed = scaling_factor(scheme, pairs.length), pairs.length / pairs.train_length
    if not unseen.any():
        return ""
    advice, nearest = "", pairs.distances.min().item()
    if nearest < 0:
        advice = f": it puts keys up to {-nearest:g} positions after their query"
    elif factor is not None and factor < needed:
        advice = f": its factor there is {factor:g}, and N / L = {needed:g}"
    elif any(type(piece) is posenc.Ntk for piece in scheme.extensions):
        advice = ": ntk divides only the last pair by its whole factor"
        # ntk divides pair m by s^(m / (F - 1))
        power = math.log(needed) * (len(unseen) - 1) / max(1, unseen.nonzero()[0].item())
        if power < math.log(1e4):
            advice += f"; from factor={math.ceil(math.exp(power))} on all would stay within"
    return f"{count(unseen)} meet angles at N = {pairs.length} that training never saw{advice}"


# ---- the figure


Arc = tuple[str, Tensor, str]  # label, angles (F,), color


def plot_pairs(tables: list[Pairs], path: Path) -> None:
    """Draw each rotary piece: the farthest angle of every pair, and clocks of some pairs.

    UserError if the file cannot be written.
    """
    figure = new_figure((11, 6.2 * len(tables)), dpi=120)
    parts = figure.subfigures(len(tables), squeeze=False)[:, 0]
    for part, pairs in zip(parts, tables, strict=True):
        labels = [f"seen in training, L = {pairs.train_length}", f"met at N = {pairs.length}"]
        labels += [f"met with {pairs.extension:.60}"] if pairs.extension else []
        arcs = list(zip(labels, (pairs.seen, pairs.raw, pairs.met), COLORS, strict=False))
        part.suptitle(f"{pairs.name}: how far each pair of columns turns")
        plot_turns(part, arcs)
        plot_clocks(part, arcs, clock_pairs(pairs))
    save_figure(figure, path)


def plot_turns(part: "SubFigure", arcs: list[Arc]) -> None:
    """The upper half: the turns of every pair, on a logarithmic axis without those at 0."""
    axes = part.add_subplot(2, 1, 1)
    style = {"marker": "o", "markersize": 3.5, "alpha": 0.8}
    for k, (label, angles, color) in enumerate(arcs):
        turns = (angles / TURN).where(angles > 0, math.nan)
        axes.plot(turns, color=color, label=label, linewidth=5 - 1.6 * k, **style)
    axes.axhline(1, color="0.35", linestyle="--", linewidth=1, label="one turn")
    axes.set_yscale("log")
    axes.set_xlabel("pair")
    axes.set_ylabel("turns up to the farthest token")
    axes.grid(color="0.92", linewidth=0.7)
    axes.legend(loc="lower left", framealpha=1, edgecolor="white", fontsize=9)


def plot_clocks(part: "SubFigure", arcs: list[Arc], chosen: list[int]) -> None:
    """The lower half: a clock for each chosen pair. Its rings are the angles from 12 o'clock on; a
    ring is full after a turn.
    """
    text_style = {"ha": "center", "va": "top", "fontsize": 9}
    for place, m in enumerate(chosen):
        number = len(chosen) + place + 1
        axes = part.add_subplot(2, len(chosen), number, projection="polar")
        axes.set_theta_zero_location("N")
        axes.set_theta_direction(-1)
        axes.set_ylim(0, 3.7)
        axes.set_axis_off()
        axes.text(0.5, 1.04, f"pair {m}", transform=axes.transAxes, ha="center")
        for ring, (_, angles, color) in enumerate(arcs):
            angle, height = float(angles[m]), 3 - 0.8 * ring
            axes.bar(TURN / 2, 0.6, TURN, height, color="0.94")
            axes.bar(min(angle, TURN) / 2, 0.6, min(angle, TURN), height, color=color)
            axes.plot([angle % TURN] * 2, [height, height + 0.6], color="black", linewidth=1.5)
            text, low = f"{angle / TURN:.3g} turns", -0.08 - 0.15 * ring
            axes.text(0.5, low, text, transform=axes.transAxes, color=color, **text_style)


def clock_pairs(pairs: Pairs) -> list[int]:
    """At most eight pairs, most of them near the first that finishes no turn in training."""
    last, edge = len(pairs.before) - 1, int((pairs.seen >= TURN).sum())
    wanted = [0, edge // 2, edge - 2, edge - 1, edge, edge + 1, (edge + last) // 2, last]
    return sorted({min(max(m, 0), last) for m in wanted})


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
    shown: dict[str, Pairs] = {}  # by the text that is printed
    for layer in range(LAYERS):
        pairs = pairs_of(scheme, layer, length)
        if pairs:
            title = f"\n{pairs.name}, L = {pairs.train_length}, N = {length}; angles in turns"
            lines = [title, table(pairs), summary(pairs)]
            lines += warnings(scheme, pairs) if scheme.extension else []
            shown.setdefault("\n".join(lines), pairs)
    for text in shown:
        print(text)
    nothing = f"{scheme.text} turns no pairs of columns"
    require(shown or not settings.out, f"{nothing}: there are no pairs to plot in {settings.out}")
    if not shown and scheme.extension:
        print(f"\n{nothing}")
    if settings.out:
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

    began = time.perf_counter()
    warnings = [f"warning: {sentence}" for sentence in examine(config, pos_file)]
    passed = "causal, its own, finite, trained, the same in one pass, by blocks and token by token"
    return [*warnings, f"examined: {passed}, in {time.perf_counter() - began:.1f} s"]


if __name__ == "__main__":
    run_program(main)
