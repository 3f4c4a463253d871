"""What schemes do to scores, drawn."""

from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from attention import Options, Plan, attention_weights, sees, slice_queries
from scheme import Scheme
from tables.figures import new_figure, save_figure


class Look(NamedTuple):
    """What is drawn of a layer."""

    title: str
    trained: int  # the training length
    plan: Plan
    scores: Tensor  # by distance, (H, N)
    pairs: pd.DataFrame  # those that turn


@torch.no_grad()
def look_at(scheme: Scheme, layer: int, length: int) -> tuple[Plan, Tensor]:
    """The plan of a layer, and the scores (H, N) of the last query in a text of N = `length` tokens
    by the distance of the key, less the highest; -inf where it sees no key.

    A score is the logarithm of a weight. All tokens are alike: queries and keys are one vector, of
    equal numbers, which scores about 1 with itself. Where positions are embedded, each is the
    vector of its position alone, of which heads have every n-th column.
    """
    shape = scheme.shape
    # in bytes a full stop before every 31 zeros, for what counts digits or sentences
    tokens = torch.where(torch.arange(length) % 32 == 0, 46, 48)[None]
    options = Options(softmax=torch.log_softmax, path="scored")
    pass_ = scheme.plan_pass(tokens, length, length, options)
    x = torch.ones(1, length, shape.width)
    if pass_.embedded is not None:
        x = torch.nn.functional.layer_norm(pass_.embedded.reshape_as(x), x.shape[-1:])
    plan = pass_.plans[layer]
    last = slice_queries(plan, length - 1, length)
    width = max(1, shape.turned_width)
    columns = torch.arange(width) * shape.width // width
    # of few digits: equal scores are equal to the last bit, in whatever order they are summed
    factor = torch.tensor(width**-0.25).bfloat16().float()
    k = factor * x[:, None, :, columns].expand(-1, shape.n_head, -1, -1)  # (1, H, N, D)
    q = k[:, :, -1:]
    if not plan.regions:
        q, k = last.turn(q, k)
    features = plan.features_piece.features(x) if plan.features_piece else None
    scores = attention_weights(q, k, last, width**-0.5, features)[0, :, 0].flip(-1)
    if plan.weights_piece:
        scores = scores.log()
    return plan, scores - scores.amax(-1, keepdim=True)


def draw_lines(axes: Any, lines: Tensor, trained: int) -> None:
    """Draw a line for each head, (H, N), on a logarithmic axis."""
    pd.DataFrame(lines.T).plot(ax=axes, colormap="winter", legend=False)
    axes.set_xscale("log", base=2)
    axes.set_xlim(1, lines.shape[1])
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.axvline(trained, color="0.35", linestyle="--")


def draw(looks: list[Look], path: str) -> None:
    """Draw a row for each look: scores and, where any scheme has them, what the first 2 L queries
    see, the temperature, and pairs: those above the dashed line do not finish a turn within L.
    """
    panels = ["scores"]
    if any(look.plan.masks for look in looks):
        panels.append("keys")
    if any(look.plan.temperature is not None for look in looks):
        panels.append("temperature")
    if any(len(look.pairs) for look in looks):
        panels.append("pairs")
    figure = new_figure((4.5 * len(panels), 3 * len(looks) + 0.4))
    grid = figure.subplots(len(looks), len(panels), squeeze=False)
    for (title, trained, plan, scores, pairs), row in zip(looks, grid, strict=True):
        axes = dict(zip(panels, row, strict=True))
        axes["scores"].set_title(title, loc="left")
        draw_lines(axes["scores"], scores, trained)
        axes["scores"].set(xlabel="distance, tokens", ylabel="score, less the highest")
        axes["scores"].set_ylim(-8, 0.2)
        if "keys" in panels:
            size = 2 * trained
            places = torch.linspace(0, size - 1, 256).long()
            seen = sees(plan, places[:, None], places)
            axes["keys"].imshow(seen, cmap="Greys", vmax=2, extent=(0, size, size, 0))
            axes["keys"].set(xlabel="key, dark if seen", ylabel="query")
        if plan.temperature is not None:
            lines = plan.temperature.reshape(-1, scores.shape[1])
            draw_lines(axes["temperature"], lines, trained)
            axes["temperature"].set(xlabel="position of the query", ylabel="factor of its scores")
        if len(pairs):
            wavelengths = pairs.filter(like="wavelength")
            wavelengths.plot(ax=axes["pairs"], style=["o", "."], logy=True)
            axes["pairs"].axhline(trained, color="0.35", linestyle="--")
            axes["pairs"].set_ylabel("tokens")
            axes["pairs"].xaxis.get_major_locator().set_params(integer=True)
            axes["pairs"].yaxis.set_major_formatter("{x:.0f}")
        for panel in row:
            if not panel.has_data():
                panel.set_axis_off()
    figure.supxlabel("a line for each head, the first blue; dashed: L", fontsize="small")
    save_figure(figure, path)
