"""Why a loss is what it is: where a model's attention goes, and which text and turns it needs.

`python evaluate.py out/RUN --diagnose` measures it on texts of the validation split. Each number is
a mean over texts, with the standard error of that mean. A table ends with the docstring of the
function that measured it. The numbers go into the run's diagnose.json and diagnose.png, which hold
the last diagnosis only. Attention is computed, and text written, in float32.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from inspect import getdoc
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attention import BLOCK_ROWS, scores
from model import GPT, Attention
from posenc import Extension, Table, apply_maps
from positions.scheme import Plan
from runs import formats
from runs.continuation import COPIED, MEASURES, window_measures
from runs.figures import color, new_figure, save_figure
from runs.files import write_json
from runs.results import position_bins
from runs.tables import Page, page

TEXTS, SEED, NEAR = 16, 1337, 0.01  # texts of attention and generation; of draws; nats
STATISTICS = {"entropy": "nats", "distance": "tokens", "beyond L": "weight", "first 4": "weight"}
STATISTICS |= {"largest": "score"}  # and the unit of each
Score = Callable[..., np.ndarray]  # (length, kept=None): mean nats at each place, (places,)


@dataclass(frozen=True)
class Finding:
    """What was measured: a number for each line in each column.

    Columns are (layers, heads, lines, samples): the number is the mean over the samples, and over
    the heads of all layers. What is not of heads has one layer and one head.
    """

    title: str
    by: str  # what the numbers of the lines are
    lines: list[int]
    columns: dict[str, np.ndarray]
    legend: str | None


# ---- attention


def attention_of(model: GPT, texts: Tensor, train_length: int) -> Finding:
    """Attention by the position of the query, in texts of N tokens: the mean over all heads.

    keys      how many keys the last query of a line sees; the first sees more than the line above
    entropy   of the attention weights, nats; it is ln(keys) if all keys have the same weight
    distance  from the query to the keys, tokens, each key by its attention weight
    beyond L  the share of the weights on keys at least L tokens back; L is the training length
    first 4   the share of the weights on the first 4 tokens of the text
    largest   the largest score of a query, before the softmax
    Thin lines in the figure are single heads; diagnose.json has the numbers of each.
    """
    edges = position_bins(texts.shape[1])
    statistics = partial(head_statistics, far=train_length)
    found = [torch.stack(of_layers(model, text[None], statistics)) for text in texts]
    values = torch.stack(found).double().cpu().numpy()  # (B, layers, statistics, H, N)
    values = np.add.reduceat(values, edges[:-1], axis=-1) / np.diff(edges)
    values = values.transpose(2, 1, 3, 4, 0)
    columns, title = dict(zip(STATISTICS, values, strict=True)), f"attention at N = {edges[-1]}"
    return Finding(title, "keys", edges[1:], columns, getdoc(attention_of))


def of_layers(model: GPT, idx: Tensor, look: Callable[..., Tensor]) -> list[Tensor]:
    """look(attention, its input (B, T, C), its plan) of each layer, where the model reads idx."""
    found: list[Tensor] = []

    def watch(layer: Attention, given: tuple) -> None:
        found.append(look(layer, given[0], given[1].plan))

    hooks = [block.attn.register_forward_pre_hook(watch) for block in model.h]
    try:
        model(idx)
    finally:
        for hook in hooks:
            hook.remove()
    return found


@torch.no_grad()
def attention_maps(model: GPT, idx: Tensor) -> Tensor:
    """The attention weights of every layer and head for tokens idx (B, T), under the model's scheme
    and extension: (layers, B, H, T, T), float32, the rows of queries adding up to 1.

    They are those of the definition in attention.py, whichever path the model takes.
    """

    def weights(layer: Attention, x: Tensor, plan: Plan) -> Tensor:
        q, k, _, *features = layer.project(x, plan)
        return scores(q, k, plan, slice(None), *features).softmax(-1)

    return torch.stack(of_layers(model, idx, weights))


def head_statistics(layer: Attention, x: Tensor, plan: Plan, far: int) -> Tensor:
    """The STATISTICS of each head and query in a layer with the input x (1, N, C), (5, H, N)."""
    q, k, _, *features = layer.project(x, plan)
    places, blocks = torch.arange(x.shape[1], device=x.device), []
    for queries in places.split(BLOCK_ROWS):
        rows = slice(int(queries[0]), int(queries[-1]) + 1)
        found = scores(q, k, plan, rows, *features)[0]  # (H, R, N)
        weights, back = found.softmax(-1), queries[:, None] - places
        parts = [torch.special.entr(weights), weights * back, weights * (back >= far)]
        sums = [part.sum(-1) for part in (*parts, weights[..., :4])]
        blocks.append(torch.stack([*sums, found.amax(-1)]))
    return torch.cat(blocks, -1)


# ---- losses


def far_shuffled(score: Score, lengths: list[int]) -> Finding:
    """How much the loss rises if far text is shuffled, nats.

    kept  at least so many tokens before each target stay as they are; all before those are shuffled
    N     in texts of so many tokens; 0 where there is nothing to shuffle
    """
    octaves, columns = range(2 + (lengths[-1] // lengths[0]).bit_length()), {}
    lines = sorted({max(1, lengths[0] << k >> 3) for k in octaves})
    for n in lengths:
        columns[f"N = {n}"] = np.stack([score(n, kept) for kept in lines])[None, None] - score(n)
    return Finding("far text shuffled: nats more", "kept", lines, columns, getdoc(far_shuffled))


def effective_context(score: Score, lengths: list[int]) -> Finding:
    """The loss of a model that is given only a window of the text, on the same targets.

    The effective context is the shortest window whose loss is within 0.01 nats of the lowest, which
    is given with its window; surely: with two standard errors, too.
    window  at most so many tokens before each target, and at least half as many
    excess  the loss minus the lowest of all these losses, nats
    """
    lines = sorted({*lengths, *(1 << k for k in range(1, lengths[-1].bit_length()))})
    nats = np.stack([score(n) for n in lines])
    means = np.where(np.isfinite(nats).all(axis=1), nats.mean(axis=1), math.inf)
    best = int(means.argmin())
    columns = {"excess": (nats - nats[best])[None, None]}
    mean, stderr = moments(nats - nats[best])
    first, sure = (lines[int((x <= NEAR).argmax())] for x in (mean, mean + 2 * stderr))
    title = f"effective context {first}, surely {sure} (loss {means[best]:.4f} at {lines[best]})"
    if math.isinf(means[best]):
        title = "no effective context: it diverged, no window has a finite loss"
    return Finding(title, "window", lines, columns, getdoc(effective_context))


# ---- rotary bands


class Still(Extension):
    """A frequency map, after all others: pairs with a wavelength from `low` to twice that stop."""

    def __init__(self, low: int) -> None:
        super().__init__()
        self.low = low

    def map_frequencies(self, inv_freq: Tensor, base: float, total: int) -> Table:
        """The frequencies, 0 in the band."""
        return inv_freq.masked_fill(octaves_of(inv_freq) == self.low, 0.0), 1.0


def octaves_of(inv_freq: Tensor) -> Tensor:
    """The largest power of two up to each wavelength, (F,); infinity where nothing is turned."""
    return (2 * math.pi / inv_freq).log2().floor().exp2()


def without_bands(model: GPT, score: Score, lengths: list[int]) -> Finding:
    """How much the loss rises if rotary schemes do not turn some pairs of columns, nats.

    wavelength  those whose wavelength is from so many tokens to twice as many, as they are at that
                length; but the first positions, where longrope keeps those as they were, are turned
    N           in texts of so many tokens; 0 where no pair has such a wavelength at that length
    """
    pos, own, columns, found = model.pos, model.pos.maps, {}, set()
    tested = lengths[0], lengths[-1]
    for piece, n in itertools.product(pos.rotary, tested):
        inv_freq, _ = apply_maps(piece.frequencies(n), own, piece.base, n)
        found.update(octaves_of(inv_freq[inv_freq > 0]).long().tolist())
    for n in tested:
        whole, losses = score(n), []
        for low in sorted(found):
            pos.maps = (*own, Still(low))
            losses.append(score(n) - whole)
        pos.maps, columns[f"N = {n}"] = own, np.array(losses)[None, None]
    title, doc = "without a rotary band: nats more", getdoc(without_bands)
    return Finding(title, "wavelength", sorted(found), columns, doc)


# ---- long generation


def continuations(model: GPT, texts: Tensor, length: int) -> Iterator[Finding]:
    """The text after a prompt of L tokens, in windows of L: written by the model, and as it was.

    from      where a window begins, counted from the start of the prompt
    repeated  the share of its 4-grams that stood before in the text after the prompt
    copied    the share of its 8-grams that stand in the prompt
    n-grams   the share of different ones among those of the window
    """
    size, prompts, real = max(length, COPIED), texts[:, :length], texts[:, length:]
    random = torch.Generator(texts.device).manual_seed(SEED)
    written = model.generate(prompts, real.shape[1], generator=random)[:, length:]
    lines = [length + size * k for k in range(real.shape[1] // size)]
    for title, after in (("written at temperature 1", written), ("the real text", real)):
        pairs = zip(prompts.tolist(), after.tolist(), strict=True)
        samples = np.stack([window_measures(*pair, size) for pair in pairs], axis=-1)
        columns = dict(zip(MEASURES, samples[:, None, None], strict=True))
        yield Finding(title, "from", lines, columns, getdoc(continuations))


# ---- what is shown and kept


def report(found: Iterable[Finding], folder: str, about: dict[str, Any], kind: str) -> None:
    """Print each finding as it comes, and write diagnose.json and diagnose.png into a run folder.

    `about` says what was diagnosed, with its "train_length". Tables are text, or "md" or "tex".
    """
    kept = []
    for finding in found:
        print(f"\n{formats.as_printed(kind, table(finding))}")
        kept.append(finding)
    write_json(f"{folder}/diagnose.json", about | {"findings": [content(one) for one in kept]})
    draw(kept, about["train_length"], f"{folder}/diagnose.png")
    print(f"{about.get('note', '')}\ndrawn in {folder}/diagnose.png")


def moments(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard error over the last axis."""
    return samples.mean(axis=-1), samples.std(axis=-1, ddof=1) / math.sqrt(samples.shape[-1])


def content(finding: Finding) -> dict[str, Any]:
    """A finding as it stands in diagnose.json: means and standard errors, those of heads too."""
    found: dict[str, Any] = {"title": finding.title, finding.by: finding.lines}
    for name, column in finding.columns.items():
        numbers = (*moments(column.mean(axis=(0, 1))), *moments(column))
        known = [np.where(np.isfinite(x), x, None).tolist() for x in numbers]
        found[name] = dict(zip(("mean", "stderr", "heads", "heads_stderr"), known, strict=True))
    return found


def table(finding: Finding) -> Page:
    """A text table of a finding, with what its columns mean."""
    lines = [[finding.by, *map(str, finding.lines)]]
    for name, column in finding.columns.items():
        pairs = zip(*moments(column.mean(axis=(0, 1))), strict=True)
        lines.append([name, *(cell(*pair) for pair in pairs)])
    shown = [list(line) for line in zip(*lines, strict=True)]
    return page(finding.title, shown, "", finding.legend or "")


def cell(mean: float, stderr: float) -> str:
    """A number with two digits of its standard error, six behind the point at most, or why none."""
    if not math.isfinite(mean):
        return "diverged"
    digits = min(6, max(0, 1 - math.floor(math.log10(stderr)))) if stderr > 0 else 6
    return f"{mean:.{digits}f} ± {stderr:.{digits}f}"


def draw(found: list[Finding], train_length: int, path: str) -> None:
    """Draw a panel for each statistic of attention in the longest texts, and each other finding."""
    longest = [one for one in found if one.by == "keys"][-1]
    panels = [(longest, [name]) for name in longest.columns]
    panels += [(one, list(one.columns)) for one in found if one.by != "keys"]
    figure = new_figure((22, 9), dpi=100)
    figure.suptitle("dashed: L, the training length; thin lines: single heads, by layer in colour")
    for place, (finding, names) in enumerate(panels, 1):
        title, _, unit = finding.title.partition(": ")
        y = unit or "share" if names[1:] else f"{names[0]}, {STATISTICS.get(names[0], 'nats')}"
        axes = figure.add_subplot(2, 5, place, title=title, xlabel=finding.by, ylabel=y)
        axes.axvline(train_length, color="0.35", linestyle="--", linewidth=1)
        for k, name in enumerate(names):
            for layer, heads in enumerate(finding.columns[name]):
                axes.plot(finding.lines, heads.mean(axis=-1).T, color=color(layer), linewidth=0.6)
            mean, stderr = moments(finding.columns[name].mean(axis=(0, 1)))
            axes.errorbar(finding.lines, mean, stderr, color=color(k - 1), marker=".", label=name)
        axes.set_xscale("log", base=2)
        if finding.by == "from":  # what is written and what was there, on one scale
            axes.set_ylim(-0.03, 1.03)
        if names[1:]:  # below the panel, so that it covers no curve
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3, frameon=False)
    save_figure(figure, path)
