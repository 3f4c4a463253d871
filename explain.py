"""What a position expression is, and what an extension does to each frequency pair; `python posenc.py EXPRESSION` runs it.

A pair of columns that has finished a turn within the training length L met every angle; one that has not meets angles that
it never saw as soon as a text is longer. Tables and figure show where that happens, and what an extension changes about it.
matplotlib is imported only to draw.
"""

import ast
import inspect
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

import posenc
from configurable import Settings, UserError, configure, run, setting
from posenc import Extension, Piece, Rotary, Shape, answers
from positions.catalogue import extension_names, find, names, options_of
from positions.scheme import Scheme

if TYPE_CHECKING:
    from matplotlib.figure import SubFigure

USAGE = """python posenc.py 'EXPRESSION' [FILE.py with schemes of your own] [--name=value ...]

    python posenc.py 'rope + alibi'                          what a scheme is, and the pairs of columns that it turns
    python posenc.py 'yarn(factor=8)' --train_length=512     what an extension does to them (to those of --pos, else of rope)

An expression of extensions only, one of which is no scheme too (as yarn), is read as --extend, any other one as --pos."""
PLACES = {
    "ids": "position ids",
    "embed": "token embedding",
    "turn": "queries and keys",
    "bias": "score",
    "temperature": "temperature",
    "mask": "mask",
    "score": "whole score",
}
CHANGES = {
    "stretch": "frequencies",
    "ids": "positions",
    "regions": "distances",
    "temperature": "temperature",
    "mask": "mask",
    "draw": "positions of training",
}
LAYERS, LONGEST, TURN = 4, 2**24, 2 * math.pi


@dataclass
class ExplainSettings:
    """What is explained, and for which model; nothing is computed on a device."""

    pos: str = setting("", "position scheme, rope where an extension is explained")
    extend: str = setting("", "context extension of it")
    pos_file: str = setting("", "a Python file of your own with more position schemes")
    train_length: int = setting(128, "training length L", unit="tokens", low=2, high=2**20)
    length: int | None = setting(
        None,
        "test length N, none for L x factor where one is given, else 8 L",
        unit="tokens",
        low=2,
        high=LONGEST,
    )
    n_head: int = setting(4, "attention heads per layer", low=1, high=1024)
    head_dim: int = setting(64, "width of a head", unit="columns", low=1, high=4096)
    out: str = setting("", "where a figure of the pairs goes, .png, .pdf or .svg", kind="manner")
    check = Settings.check


# ---- what there is


def catalogue() -> str:
    """Two Markdown tables, of every scheme and of every extension: options with defaults, where it acts, verdict."""
    return (
        listed(names(), PLACES, ("scheme", "acts on"))
        + "\n\n"
        + listed(extension_names(), CHANGES, ("extension", "changes"))
    )


def listed(known: list[str], questions: dict[str, str], heads: tuple[str, str]) -> str:
    """A Markdown table of pieces, with the places that those of `questions` which they answer stand for."""
    lines = [f"| {heads[0]} | {heads[1]} | verdict |", "| --- | --- | --- |"]
    for name in known:
        cls = find(name)
        options = ", ".join(
            k if p.default is p.empty else f"{k}={p.default}" for k, p in options_of(cls).items()
        )
        places = ", ".join(place for question, place in questions.items() if answers(cls, question))
        verdict = " ".join(inspect.getdoc(cls).partition("Verdict: ")[2].split())
        lines.append(
            f"| `{name}{f'({options})' if options else ''}` | {places or 'nothing'} | {verdict} |"
        )
    return "\n".join(lines)


def described(name: str, piece: Piece) -> str:
    """What a piece says of itself, its options and its parameters."""
    options = ", ".join(str(p) for p in options_of(type(piece)).values())
    parameters = ", ".join(f"{n} {tuple(p.shape)}" for n, p in piece.named_parameters())
    return f"\n{name}: {inspect.getdoc(type(piece))}\noptions: {options or 'none'}\nparameters: {parameters or 'none'}"


# ---- the pairs of a rotary piece


@dataclass(frozen=True)
class Pairs:
    """The F pairs of one rotary piece, in float64: frequencies (F,) in radians per token before and after the extension,
    the farthest angles (F,) in radians that training saw, that a test meets without it, and with it.

    `near` is how far apart the last two tokens lie with it, `ahead` how far past the last query a key may, and `factor` what it
    multiplies cosines and sines by; `slack` (F,) is what is taken for seen besides: one token, or 2 % where positions are drawn
    and not all draws were looked at.
    """

    name: str
    before: Tensor
    after: Tensor
    seen: Tensor
    raw: Tensor
    met: Tensor
    slack: Tensor
    near: float
    ahead: float
    factor: float

    def within(self, angles: Tensor) -> Tensor:
        """Where 0 ... angles (F,) is what training saw: all of a circle, or as much of it."""
        seen = self.seen + self.slack
        return (seen >= TURN) | (
            angles <= seen * (1 + 1e-6)
        )  # positions that are mapped may be float32


def distances(scheme: Scheme, layer: int, ids: Tensor, extended: bool) -> Tensor:
    """The distances at which the last query of a text meets the keys that it may see, the nearest ones last; `ids` (N,)."""
    own = [scheme.pieces[key] for key in scheme.layers[layer]]
    added = scheme.extensions_of_set[scheme.set_of_layer[layer]] if extended else []
    index = torch.arange(len(ids))
    for piece in (p for p in added if answers(p, "ids")):
        ids = piece.ids(ids, len(ids))
    found, seen = ids[-1] - ids, torch.ones(len(ids), dtype=torch.bool)
    for region in (r for p in added if answers(p, "regions") for r in p.regions(len(ids))):
        found = torch.where(
            region.where(ids[-1], ids), region.query(ids[-1]) - region.key(ids), found
        )
    for piece in (p for p in [*own, *added] if answers(p, "mask")):
        seen &= piece.mask()(index[-1], index)
    return found[seen].double()


def pairs_of(scheme: Scheme, layer: int, length: int) -> Pairs | None:
    """The pairs that a layer turns in a text of `length` tokens; None where it turns none."""
    key = next(
        (key for key in scheme.layers[layer] if isinstance(scheme.pieces[key], Rotary)), None
    )
    if key is None:
        return None
    piece, trained = scheme.pieces[key], scheme.shape.length
    before = piece.frequencies(length)[0].detach()
    after, factor = posenc.stretched((before, 1.0), piece.stretches, piece.base, length)
    draws = (scheme.draw(0, step, trained) for step in range(8 if scheme.limit else 256))
    widest = max(
        (ids for ids in draws if ids is not None), key=lambda ids: ids[-1] - ids[0], default=None
    )
    seen = (
        before
        * distances(scheme, layer, torch.arange(trained) if widest is None else widest, False).max()
    )
    if any(
        answers(p, "draw") for p in scheme.extensions
    ):  # it is trained with, at its own frequencies
        seen = torch.maximum(before * (trained - 1), after / before.clamp(min=1e-300) * seen)
    text = scheme.ids(torch.arange(length), length)
    raw, met = (distances(scheme, layer, text, extended) for extended in (False, True))
    name, ahead = (
        f"{posenc.scheme_name(type(piece))} of base {piece.base:g}",
        max(0.0, -met.min().item()),
    )
    farthest = (after * met.max()).clamp(
        min=TURN * (after * ahead > 0)
    )  # an angle below 0 is one of nearly a turn
    return Pairs(
        name,
        before,
        after,
        seen,
        before * raw.max(),
        farthest,
        before if widest is None else 0.02 * seen,
        met[-2].item() if len(met) > 1 else 1.0,
        ahead,
        factor,
    )


def scaled_by(scheme: Scheme, length: int) -> float | None:
    """The factor by which a text is taken to be longer; None where no extension in force is built on one."""
    return next(
        (piece.factor(length) for piece in scheme.extensions if isinstance(piece, posenc.Scaled)),
        None,
    )


def default_length(scheme: Scheme) -> int:
    """L x factor where the extension was given a factor, else 8 L, or as many tokens as the scheme defines."""
    short = scheme.shape.length
    given, other = (scaled_by(scheme, n) for n in (short, 8 * short))
    length = int(short * given) if given == other and given is not None and given > 1 else 8 * short
    if length > LONGEST:
        raise UserError(
            f"a text of L x factor = {length:,} tokens is too long to look at: --length=N names a shorter one"
        )
    return min(length, scheme.limit or length)


def table(pairs: Pairs, trained: int, length: int, extended: str) -> str:
    """A line for each pair; angles are in turns from 0."""

    def cells(theta: float, angle: float, fits: bool) -> list[str]:
        wave = TURN / theta if theta > 0 else math.inf
        wraps = f"{math.ceil(wave - 1e-9):,}" if theta > 0 else "never"
        return [f"{wave:,.1f}", wraps, f"{angle / TURN:,.3f}", "yes" if fits else "no"]

    heads = ["wavelength", "wraps at", "met to", "seen"]
    lines = [
        [
            "pair",
            "turns in L",
            "seen to",
            *heads,
            *([f"| {heads[0]}", *heads[1:]] if extended else []),
        ]
    ]
    raw, met = pairs.within(pairs.raw), pairs.within(pairs.met)
    for m, theta in enumerate(pairs.before.tolist()):
        line = [
            str(m),
            f"{theta * trained / TURN:,.3f}",
            f"{pairs.seen[m] / TURN:,.3f}",
            *cells(theta, pairs.raw[m], raw[m]),
        ]
        wave, *rest = cells(pairs.after[m], pairs.met[m], met[m])
        lines.append([*line, *([f"| {wave:>10}", *rest] if extended else [])])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.rjust, line, widths)) for line in lines)


def span(which: Tensor) -> str:
    """How many pairs these are, and which: "16 of 32 pairs (16 ... 31)"."""
    found = which.nonzero().flatten().tolist()
    dots = "..." if found and found[-1] - found[0] < len(found) else "and others to"
    return f"{len(found) or 'none'} of {len(which)} pairs" + (
        f" ({found[0]} {dots} {found[-1]})" if found else ""
    )


def summary(pairs: Pairs, trained: int, length: int, extended: str) -> str:
    """What the table comes to, in a sentence or two."""
    lines = [
        f"{span(pairs.before * trained < TURN)} finish no turn within L = {trained}; {span(~pairs.within(pairs.raw))} meet "
        f"angles at N = {length} that training never saw"
    ]
    if extended:
        lines.append(
            f"extended by {extended}: {span(~pairs.within(pairs.met))} do; cosines and sines x {pairs.factor:.4f}, "
            f"logits x {pairs.factor**2:.4f}"
        )
    return "\n".join(lines)


# ---- what makes no sense


def warnings(scheme: Scheme, pairs: Pairs, length: int) -> list[str]:
    """A sentence for each thing about the extension that cannot be meant."""
    found = (
        [few_turns(scheme, piece, pairs) for piece in scheme.extensions]
        if (pairs.after != pairs.before).any()
        else []
    )
    return [
        f"warning: {line}"
        for line in [*found, blurred(scheme, pairs), beyond(scheme, pairs, length)]
        if line
    ]


def few_turns(scheme: Scheme, piece: Piece, pairs: Pairs) -> str:
    """A number of turns that hardly any pair completes within L (fewer than one in eight; a third in YaRN's own setting)."""
    if not isinstance(piece, posenc.Yarn | posenc.Llama3):
        return ""
    name, least = ("beta", "alpha") if isinstance(piece, posenc.Yarn) else ("high", "low")
    turns, bound, pair = (
        pairs.before * scheme.shape.length / TURN,
        getattr(piece, name),
        max(1, len(pairs.before) // 8),
    )
    complete, better = (
        int((turns >= bound).sum()),
        min(4, math.floor(turns[pair - 1])),
    )  # 4: results/extend/beta.md
    if complete >= pair:
        return ""
    few = f"{f'only {complete}' if complete else 'none'} of {len(turns)} pairs complete{'s' * (complete < 2)}"
    advice = (
        f"{name}={better}" if better > getattr(piece, least) else "ntk, L is too short for this one"
    )
    return (
        f"with L = {scheme.shape.length} and head dimension {scheme.shape.head_dim} {few} {bound:g} turns, "
        f"so {name} = {bound:g} slows nearly all: try {advice}"
    )


def blurred(scheme: Scheme, pairs: Pairs) -> str:
    """Neighbours so close that a model cannot tell them apart untrained: over 4 times closer, where LLaMA-7B's perplexity
    goes from 16 (pi at 4) to 112 (pi at 8; Chen et al. 2023)."""
    was, now = (math.degrees(theta) for theta in (pairs.before[0], pairs.after[0] * pairs.near))
    if now >= was / 4.0001:
        return ""
    return (
        f"{scheme.extended} turns the fastest pair by {now:.2g} instead of {was:.2g} degrees from one token to the next, "
        "which blurs neighbours: fine-tune with it, or try ntk or yarn, which keep it"
    )


def beyond(scheme: Scheme, pairs: Pairs, length: int) -> str:
    """Pairs that meet angles which training never saw, in spite of the extension."""
    outside, factor, needed = (
        ~pairs.within(pairs.met),
        scaled_by(scheme, length),
        length / scheme.shape.length,
    )
    if not outside.any():
        return ""
    advice = ""
    if pairs.ahead:
        advice = f": it puts keys up to {pairs.ahead:g} positions after their query"
    elif factor is not None and factor < needed:
        advice = f": its factor there is {factor:g}, and N / L = {needed:g}"
    elif any(
        type(piece) is posenc.Ntk for piece in scheme.extensions
    ):  # pair m is divided by s^(m / (F - 1))
        most = math.log(needed) * (len(outside) - 1) / max(1, outside.nonzero()[0].item())
        advice = ": ntk divides only the last pair by its whole factor" + (
            f"; from factor={math.ceil(math.exp(most))} on all would stay within"
            if most < math.log(1e4)
            else ""
        )
    return f"{span(outside)} meet angles at N = {length} that training never saw{advice}"


# ---- the figure


def draw(tables: list[Pairs], trained: int, length: int, extended: str, path: Path) -> None:
    """Draw each rotary piece: the farthest angle of every pair in turns, and clocks of some; UserError where that fails."""
    from checkpoint import replace_file
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(11, 6.2 * len(tables)), dpi=120, layout="constrained")
    kind = path.suffix.removeprefix(".") or "png"
    if kind not in FigureCanvasAgg(drawing).get_supported_filetypes():
        raise UserError(f"{path}: there are no {kind} figures; name it .png, .pdf or .svg")
    for part, pairs in zip(
        drawing.subfigures(len(tables), squeeze=False)[:, 0], tables, strict=True
    ):
        arcs = [
            (f"seen in training, L = {trained}", pairs.seen, "#0072B2"),
            (f"met at N = {length}", pairs.raw, "#D55E00"),
            (f"met with {extended:.60}", pairs.met, "#009E73"),
        ][: 3 if extended else 2]
        part.suptitle(f"{pairs.name}: how far each pair of columns turns")
        curves(part, arcs)
        clocks(part, arcs, chosen(pairs))
    replace_file(path, lambda file: drawing.savefig(file, format=kind))


def chosen(pairs: Pairs) -> list[int]:
    """At most eight pairs from the fastest to the slowest, most of them about the first that finishes no turn in training."""
    last, edge = len(pairs.before) - 1, int((pairs.seen >= TURN).sum())
    wanted = [0, edge // 2, edge - 2, edge - 1, edge, edge + 1, (edge + last) // 2, last]
    return sorted({min(max(m, 0), last) for m in wanted})


def curves(part: "SubFigure", arcs: list[tuple[str, Tensor, str]]) -> None:
    """The upper half: turns of every pair on a logarithmic axis, those that are still left out."""
    axes = part.add_subplot(2, 1, 1)
    for k, (label, angles, color) in enumerate(arcs):
        turns = (angles / TURN).where(angles > 0, math.nan)
        axes.plot(
            turns,
            color=color,
            label=label,
            marker="o",
            markersize=3.5,
            linewidth=5 - 1.6 * k,
            alpha=0.8,
        )
    axes.axhline(1, color="0.35", linestyle="--", linewidth=1, label="one turn")
    axes.set_yscale("log")
    axes.set_xlabel("pair")
    axes.set_ylabel("turns up to the farthest token")
    axes.grid(color="0.92", linewidth=0.7)
    axes.legend(
        loc="lower left", framealpha=1, edgecolor="white", fontsize=9
    )  # the curves fall to the right


def clocks(part: "SubFigure", arcs: list[tuple[str, Tensor, str]], which: list[int]) -> None:
    """The lower half: a clock for each of these pairs, its rings the angles from 12 o'clock on, full after a turn."""
    for place, m in enumerate(which):
        axes = part.add_subplot(2, len(which), len(which) + place + 1, projection="polar")
        axes.set_theta_zero_location("N")
        axes.set_theta_direction(-1)
        for ring, (_, angles, color) in enumerate(arcs):
            reach, height = float(angles[m]), 3 - 0.8 * ring
            axes.bar(TURN / 2, 0.6, TURN, height, color="0.94")
            axes.bar(min(reach, TURN) / 2, 0.6, min(reach, TURN), height, color=color)
            axes.plot([reach % TURN] * 2, [height, height + 0.6], color="black", linewidth=1.5)
        axes.set_ylim(0, 3.7)
        axes.set_axis_off()
        axes.text(0.5, 1.04, f"pair {m}", transform=axes.transAxes, ha="center")
        for line, (_, angles, color) in enumerate(arcs):
            axes.text(
                0.5,
                -0.08 - 0.15 * line,
                f"{float(angles[m]) / TURN:.3g} turns",
                transform=axes.transAxes,
                ha="center",
                va="top",
                fontsize=9,
                color=color,
            )


# ---- the command


def main() -> None:
    """`python posenc.py 'yarn(factor=8)' --train_length=512`: say what an expression is, and show the pairs that it turns."""
    argv = [word for word in sys.argv[1:] if word != "--debug"]
    helped = not argv or {"--help", "-h"} & set(argv)
    if argv[1:] and argv[1].endswith(".py") and not argv[0].startswith("-"):
        argv[1] = f"--pos_file={argv[1]}"
    settings, words = configure(
        ExplainSettings, argv or ["--help"], f"{USAGE}\n\n{catalogue()}" if helped else USAGE
    )
    pos_file = Path(settings.pos_file) if settings.pos_file else None
    pos, extend = expressions(settings, words, pos_file)
    shape = Shape(
        settings.n_head,
        settings.head_dim,
        settings.n_head * settings.head_dim,
        settings.train_length,
    )
    scheme = Scheme(pos, shape, LAYERS, pos_file)
    scheme.extend(extend)
    print(
        f"{scheme.text}  (in {LAYERS} layers of {shape.n_head} heads of {shape.head_dim}, trained at {shape.length})\n"
        f"{scheme.describe()}"
    )
    own = [(key.split("_", 1)[1], piece) for key, piece in scheme.pieces.items()]
    for name, piece in [
        (posenc.scheme_name(type(p)), p) for p in scheme.extensions_of_set[0]
    ] or own:
        print(described(name, piece))
    show(scheme, settings)


def expressions(
    settings: ExplainSettings, words: list[str], pos_file: Path | None
) -> tuple[str, str]:
    """The scheme and its extension, of which the word on the command line is one."""

    def mentioned(node: ast.expr) -> list[str]:
        if isinstance(node, ast.BinOp):
            return mentioned(node.left) + mentioned(node.right)
        return [getattr(node, "func", node).id]

    if len(words) > 1:
        raise UserError(
            f"{words[1]!r:.60} is one word too many: quote an expression, as in 'rope + alibi'"
        )
    given = {"pos": settings.pos, "extend": settings.extend}
    for word in words:
        kinds = [find(name, pos_file) for name in mentioned(posenc.parse(word))]
        extends = all(kind.extends for kind in kinds) and any(
            issubclass(kind, Extension) for kind in kinds
        )
        name = "extend" if extends else "pos"
        if given[name]:
            raise UserError(
                f"{word!r:.60} stands for --{name}, and there is --{name}={given[name]:.60} too: leave one out"
            )
        given[name] = word
    return given["pos"] or "rope", given["extend"]


def show(scheme: Scheme, settings: ExplainSettings) -> None:
    """Print and draw the pairs of each layer, those of layers that are alike once."""
    length = default_length(scheme) if settings.length is None else settings.length
    scheme.check_length(length)
    found: dict[str, Pairs] = {}  # by what is printed
    for layer in range(LAYERS):
        if pairs := pairs_of(scheme, layer, length):
            lines = [
                f"\n{pairs.name}, L = {settings.train_length}, N = {length}; 0 to so many turns; seen: in training",
                table(pairs, settings.train_length, length, scheme.extended),
                summary(pairs, settings.train_length, length, scheme.extended),
                *(warnings(scheme, pairs, length) if scheme.extended else []),
            ]
            found.setdefault("\n".join(lines), pairs)
    print(*found, sep="\n", end="\n" if found else "")
    if not found and (settings.out or scheme.extended):
        sentence = (
            f"{scheme.text} turns no pairs of columns: there is no more to it than this explanation"
        )
        if settings.out:
            raise UserError(f"{sentence}, and nothing to draw in {settings.out}")
        print(f"\n{sentence}")
    if settings.out:
        draw(
            list(found.values()), settings.train_length, length, scheme.extended, Path(settings.out)
        )
        print(f"drawn in {settings.out}")


if __name__ == "__main__":
    run(main)
