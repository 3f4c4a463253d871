"""Why a loss is what it is: where attention goes, and whether far text is read.

`python evaluate.py out/RUN --diagnose` measures it on texts of the validation split and writes
diagnose.json and diagnose.png into the run folder. Each number is a mean over texts; the column
behind it is the standard error of that mean. Attention is computed in float32.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

import attention
from common.files import write_json
from model import GPT
from tables import tables
from tables.figures import new_figure, save_figure
from tables.records import Result

TEXTS = 16  # whose attention is measured
Finding = tuple[str, pd.DataFrame, str, str]  # title, numbers by an index, notes, what is drawn


def with_errors(samples: dict[str, np.ndarray], index: pd.Index) -> pd.DataFrame:
    """A column for each of samples (lines, texts): the mean, and its standard error behind it."""
    frame = pd.DataFrame(index=index)
    for name, values in samples.items():
        frame[name] = values.mean(axis=1)
        frame[f"{name} ±"] = pd.DataFrame(values, index).sem(axis=1)
    return frame


@torch.no_grad()
def attention_of(model: GPT, texts: Tensor, train_length: int) -> Finding:
    """Where the attention of texts (B, N) goes: means over all heads, by the place of the query."""
    note = """keys      how many keys the last query of a line sees
entropy   of the attention weights over their sum, nats; ln(keys) where all keys weigh the same
distance  from the query to the keys, tokens, each key by its weight over their sum
beyond L  the weight of keys at least L tokens back, where L is the training length
first 4   the weight of the first 4 tokens of the text
attended  the sum of the weights: 1 for a softmax, less beside a sink and its like"""
    n = texts.shape[1]
    place = torch.arange(n, device=texts.device)
    ends = [*(2**k for k in range((n - 1).bit_length())), n]  # lines end at 1, 2, 4 ... n keys
    measured = []  # of each text and layer: (lines, 5)

    def look(q, k, plan, scale, features):
        """Look at the attention weights of a layer, a line at a time."""
        lines = []
        start = 0
        for stop in ends:
            part = attention.slice_queries(plan, start, stop)
            queries = q[..., start:stop, :]
            seen_features = None if features is None else features[:, :stop]
            keys = k[..., :stop, :]
            weights = attention.attention_weights(queries, keys, part, scale, seen_features)
            back = place[start:stop, None] - place[:stop]
            attended = weights.sum(-1, keepdim=True)
            shares = weights / attended.clamp(min=1e-30)  # 0 where a query attends to nothing
            far = weights * (back >= train_length)
            parts = (torch.special.entr(shares), shares * back, far, weights[..., :4], attended)
            lines.append([x.sum(-1).mean().item() for x in parts])
            start = stop
        measured.append(lines)

    options = model.options
    model.options = replace(options, watch=look)
    for text in texts:
        model(text[None])
    model.options = options
    columns = np.array(measured).reshape(len(texts), -1, len(ends), 5).mean(axis=1)
    names = ("entropy", "distance", "beyond L", "first 4", "attended")
    samples = dict(zip(names, columns.T, strict=True))  # (lines, texts) each
    frame = with_errors(samples, pd.Index(ends, name="keys"))
    return f"attention in texts of {n} tokens", frame, note, "share of the weight"


def far_shuffled(score: Callable[..., np.ndarray], lengths: list[int]) -> Finding:
    """How much the loss rises where far text is shuffled.

    score(length, kept) gives the nats at each place, (places,), with all but the last `kept` tokens
    shuffled.
    """
    note = """kept  so many tokens before each target, or more, stay in place; the rest are shuffled
N     rise of the loss, nats, in texts of N tokens; 0 where nothing is shuffled"""
    kept = [max(1, lengths[0] // 8)]  # from L / 8 on
    while 2 * kept[-1] < lengths[-1]:
        kept.append(2 * kept[-1])
    columns = {}
    for n in lengths:
        nats = score(n, n)  # nothing is shuffled
        columns[f"N = {n}"] = np.stack([score(n, tokens) - nats for tokens in kept])
    frame = with_errors(columns, pd.Index(kept, name="kept"))
    return "far text shuffled", frame, note, "rise of the loss, nats"


def report(findings: list[Finding], folder: Path, about: Result, dataset: str) -> None:
    """Print each finding, and write diagnose.json and diagnose.png into a run folder.

    `about` says what was diagnosed.
    """
    figure = new_figure((4.5 * len(findings), 4))
    content = []
    for number, (title, frame, note, label) in enumerate(findings, 1):
        print(f"\n{tables.show(title, frame, note.splitlines())}")
        rows = json.loads(frame.reset_index().to_json(orient="records"))
        content.append({"title": title, "rows": rows})
        axes = figure.add_subplot(1, len(findings), number, title=title)
        frame = frame.drop(columns=["distance", "distance ±"], errors="ignore")
        means = frame.filter(regex="[^±]$")
        errors = frame.filter(regex="±$").set_axis(means.columns, axis="columns")
        means.plot(ax=axes, yerr=errors, marker=".", secondary_y=["entropy"])
        axes.set(xlabel=f"{frame.index.name}, tokens", ylabel=label)
        if "entropy" in means:
            axes.right_ax.set_ylabel("entropy, nats")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:.0f}")
        axes.axvline(about.block_size, color="0.35", linestyle="--")
    run = {"dataset": dataset, **vars(about)}
    del run["records"]
    write_json(folder / "diagnose.json", run | {"findings": content})
    save_figure(figure, folder / "diagnose.png")
    print(f"drawn in {folder}/diagnose.png; dashed: L; bars: standard errors")
