"""What schemes do, drawn: scores and weights by distance, keys seen, wavelengths, temperature."""

import textwrap
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attention import Options, attention_weights, sees, slice_queries
from scheme import Scheme
from tables.figures import new_figure, save_figure

# the panels of a picture, by their y labels
SCORE = "score, less that of\nthe query's own token"
WEIGHT = "attention weight, as a\nshare of the largest"
SEEN = "query"
PAIRS = "wavelength, tokens"
FACTOR = "factor of all scores"
X_LABELS = {SEEN: "key, dark if seen", PAIRS: "pair of columns", FACTOR: "position of the query"}
CAPTION = """All tokens are alike, and score 1 before positions act; turning takes a share of any
score. Lines are heads, the first dark; without a run, as they begin. Dashed: the training length.
Red: pairs that meet unseen angles; rings: in longer texts. Vectors and outputs are not drawn."""

Look = dict[str, Any]  # numbers by panel
Looks = dict[str, tuple[int, Look]]  # by title: L, the length first trained at, and the numbers


@torch.no_grad()
def look_at(scheme: Scheme, layer: int, length: int) -> Look:
    """What positions do in a layer, in a text of N = `length` tokens that are all alike.

    SCORE and WEIGHT (H, N) are the last query's, by the distance of the key; scores are -inf where
    it is not seen. If there are any, SEEN is the mask of up to 2 L tokens, of which 256 to 511 are
    shown, and FACTOR (H or 1, N) the temperature. Queries and keys are one vector, which scores 1
    with itself. Where positions are embedded, each is the vector of its position alone.
    """
    shape = scheme.shape
    width = max(1, shape.turned_width)
    index = torch.arange(length)
    ids = scheme.ids(index, length)
    plan = scheme.plans(index, ids, length, length, Options())[scheme.plan_keys[layer]]
    # 1 or -1 in each column: all pairs of columns are equally long
    x = torch.randint(2, (shape.width,), generator=torch.Generator().manual_seed(0)) * 2.0 - 1
    x = x.expand(1, length, -1)  # (1, N, C)
    # in bytes a full stop before every 31 zeros, for what counts digits or sentences
    tokens = torch.where(index % 32 == 0, 46, 48)[None]
    embedded = scheme.embed(ids, tokens, length)
    if embedded is not None:
        x = torch.nn.functional.layer_norm(embedded.expand_as(x), x.shape[-1:])
    # (1, H, N, D): a head has every H-th column, of fast and of slow sinusoids
    columns = torch.arange(shape.n_head * width) % shape.width
    k = x[..., columns].unflatten(-1, (width, -1)).movedim(-1, 1) / width**0.25
    q = k[:, :, -1:]
    features = plan.features_piece.features(x) if plan.features_piece else None
    last = slice_queries(plan, length - 1, length)
    if not plan.regions:
        q, k = last.turn(q, k)
    as_scores = Options(softmax=lambda scores, _: scores)
    scores, weights = (
        attention_weights(q, k, p, width**-0.5, features)[0, :, 0].flip(-1)
        for p in (replace(last, weights_piece=None, options=as_scores), last)
    )
    look = {SCORE: scores - scores[:, :1], WEIGHT: weights / weights.amax(-1, keepdim=True)}
    if plan.masks:
        size = min(2 * shape.first_length, length)
        places = index[: size : max(1, size // 256)]
        look[SEEN] = sees(plan, places[:, None], places)
    if plan.temperature is not None:
        look[FACTOR] = plan.temperature.reshape(-1, length)
    return look


def draw_lines(axes: Any, lines: Tensor, first: int, trained: int) -> None:
    """Draw a line for each head, (H, N), at `first`, `first` + 1 ... on a logarithmic axis."""
    from matplotlib import colormaps  # slow

    colors = colormaps["viridis"]
    for head, line in enumerate(lines):
        axes.plot(range(first, first + len(line)), line, color=colors(head / len(lines)))
    axes.set_xscale("log", base=2)
    axes.set_xlim(1, lines.shape[1])
    axes.minorticks_off()
    axes.axvline(trained, color="0.35", linestyle="--")


def draw(looks: Looks, path: str) -> None:
    """Draw a row of panels for each title."""
    most = max(len(look) for _, look in looks.values())
    figure = new_figure((3.4 * most, 2.4 * len(looks) + 0.6))
    grid = figure.subplots(len(looks), most, squeeze=False)
    for (title, (trained, look)), row in zip(looks.items(), grid, strict=True):
        row[0].set_title(textwrap.shorten(title, 45 * most), loc="left")
        for axes in row[len(look) :]:
            axes.set_axis_off()
        for panel, axes in zip(look, row, strict=False):
            axes.set(xlabel=X_LABELS.get(panel, "distance, tokens"), ylabel=panel)
            if panel == SEEN:
                size = min(2 * trained, look[WEIGHT].shape[1])
                axes.imshow(look[SEEN], cmap="Greys", vmax=1.3, extent=(0, size, size, 0))
                axes.axhline(trained, color="0.35", linestyle="--")
            elif panel == PAIRS:
                pairs = look[PAIRS]
                colors = pairs["all seen"].map({True: "C0", False: "C3"})
                axes.scatter(pairs.index, pairs["wavelength"], 9, colors)
                axes.scatter(pairs.index, pairs["wavelength at N"], 30, "none", edgecolors=colors)
                axes.set_yscale("log", base=2)
                axes.axhline(trained, color="0.35", linestyle="--")
                axes.yaxis.set_major_formatter("{x:,.0f}")
            else:
                draw_lines(axes, look[panel], panel == FACTOR, trained)
                axes.xaxis.set_major_formatter("{x:,.0f}")
                axes.set_ylim(0)
            if panel == SCORE:  # e^-8 is no weight; a bias that is almost nothing should look so
                finite = look[SCORE][look[SCORE].isfinite()]
                axes.set_ylim(max(-8, min(-2, finite.min())), max(0.2, finite.max()))
    figure.supxlabel(CAPTION, fontsize="small")
    save_figure(figure, path)
