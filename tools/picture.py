"""What schemes do, drawn: scores by distance, keys seen, wavelengths, temperature."""

from typing import Any

import pandas as pd
import torch
from torch import Tensor

from attention import Options, Plan, attention_weights, sees, slice_queries
from scheme import Scheme
from tables.figures import new_figure, save_figure

# titles of panels
SCORE = "score by distance"
SEEN = "keys (across) that queries see"
PAIRS = "wavelength of each pair"
FACTOR = "factor of scores by position"
CAPTION = "lines: heads; dashed: the training length, in which pairs above it do not finish a turn"

Panels = dict[str, Any]  # the numbers of a panel by its title


@torch.no_grad()
def look_at(scheme: Scheme, layer: int, length: int) -> tuple[Plan, Tensor]:
    """The plan of a layer, and the scores (H, N) of the last query in a text of N = `length` tokens
    by the distance of the key, less that of its own token; -inf where it sees no key.

    A score is the logarithm of a weight. All tokens are alike: queries and keys are one vector, of
    equal numbers, which scores 1 with itself. Where positions are embedded, each is the vector of
    its position alone, of which a head has every n-th column.
    """
    shape = scheme.shape
    width = max(1, shape.turned_width)
    index = torch.arange(length)
    ids = scheme.ids(index, length)
    options = Options(softmax=torch.log_softmax)
    plan = scheme.plans(index, ids, length, length, options)[scheme.plan_keys[layer]]
    x = torch.ones(1, length, shape.width)
    # in bytes a full stop before every 31 zeros, for what counts digits or sentences
    tokens = torch.where(index % 32 == 0, 46, 48)[None]
    embedded = scheme.embed(ids, tokens, length)
    if embedded is not None:
        x = torch.nn.functional.layer_norm(embedded.expand_as(x), x.shape[-1:])
    columns = torch.arange(width) * shape.width // width
    k = x[:, None, :, columns].expand(-1, shape.n_head, -1, -1) / width**0.25  # (1, H, N, D)
    q = k[:, :, -1:]
    features = plan.features_piece.features(x) if plan.features_piece else None
    last = slice_queries(plan, length - 1, length)
    if not plan.regions:
        q, k = last.turn(q, k)
    scores = attention_weights(q, k, last, width**-0.5, features)[0, :, 0].flip(-1)
    if plan.weights_piece:
        scores = scores.log()
    return plan, scores - scores[:, :1]


def panels_of(plan: Plan, scores: Tensor, trained: int) -> Panels:
    """What is drawn of a layer first trained at `trained` tokens; of its mask some 256 places."""
    panels = {SCORE: scores}
    if plan.masks:
        places = torch.linspace(0, min(2 * trained, scores.shape[1]) - 1, 257).long()
        panels[SEEN] = sees(plan, places[:, None], places)
    if plan.temperature is not None:
        panels[FACTOR] = plan.temperature.reshape(-1, scores.shape[1])
    return panels


def draw_lines(axes: Any, lines: Tensor, trained: int) -> None:
    """Draw a line for each head, (H, N), on a logarithmic axis."""
    frame = pd.DataFrame(lines.T)
    frame.plot(ax=axes, colormap="viridis", legend=False)
    axes.set_xscale("log", base=2)
    axes.set_xlim(1, len(frame))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.axvline(trained, color="0.35", linestyle="--")


def draw_panel(axes: Any, title: str, numbers: Any, trained: int) -> None:
    """Draw one panel."""
    axes.set_title(title)
    if title == SEEN:
        axes.imshow(numbers, cmap="Greys", vmax=1.3, extent=(0, 2 * trained, 2 * trained, 0))
    elif title == PAIRS:
        frame = numbers[["wavelength", "wavelength at N"]]
        frame.plot(ax=axes, style=["o", "."], logy=True)
        axes.axhline(trained, color="0.35", linestyle="--")
    else:
        draw_lines(axes, numbers, trained)
    if title == SCORE:  # e^-8 is no weight; a bias that is almost nothing should look so
        finite = numbers[numbers.isfinite()]
        axes.set_ylim(max(-8, min(-2, finite.min())), max(0.2, finite.max()))


def draw(pictures: list[tuple[str, int, Panels]], path: str) -> None:
    """Draw a row of panels for each title and training length."""
    figure = new_figure((12, 3 * len(pictures)))
    figure.supxlabel(CAPTION)
    rows = figure.subfigures(len(pictures), squeeze=False)[:, 0]
    for (title, trained, panels), row in zip(pictures, rows, strict=True):
        row.suptitle(title, weight="bold", wrap=True)
        grid = row.subplots(1, len(panels), squeeze=False)[0]
        for (name, numbers), axes in zip(panels.items(), grid, strict=True):
            draw_panel(axes, name, numbers, trained)
    save_figure(figure, path)
