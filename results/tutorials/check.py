r"""Sentences of five tutorials on position encodings, held against our runs and functions.

    python results/tutorials/check.py        # writes tutorials.md and chart.png

Every sentence has a rule that gives its verdict from numbers. The runs are those of ../board (books
and recall, three seeds), of ../extend/reach.json (extensions of RoPE) and ../models/caches.json;
short.json is of the eight models of ../paper/yarn:

    python extend.py out/rope-books-L128-s?-n_embd=128 'yarn(factor=4)' --eval_lengths=128 \
        --dtype=bfloat16 --format=json --out=results/tutorials/short

The rest is computed here. The rules were written after those runs, and follow the board's words:
a loss *holds* at N if the upper end of the 95 % interval over seeds of loss(N) - loss(L) is at most
0.05 nats, and *breaks* if the lower end is above that.
"""

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))
from model import GPT, GPTConfig  # noqa: E402
from posenc import alibi_slopes, rotate  # noqa: E402
from positions.catalogue import extended_frequencies  # noqa: E402
from runs import answers, compare  # noqa: E402
from runs.figures import COLORS, new_figure, save_figure  # noqa: E402
from runs.results import by_length, rows_on, standard_error  # noqa: E402

L, HELD = 128, 0.05  # tokens; nats
YES, NO, OPEN = "reproduced", "contradicted", "undecided"


class Sentence(NamedTuple):
    """A quotation, the rule for it, and `check`, which gives the verdict and our number."""

    source: str
    said: str
    rule: str
    check: Callable[[], tuple[str, str]]


# ---- numbers of the runs


def cells(kind: str) -> dict[str, list[dict]]:
    """{scheme: results by seed} of a comparison of the board."""
    path = HERE.parent / "board" / kind / "results.json"
    found = json.loads(path.read_text(encoding="utf-8"))["cells"].values()
    return {results[0]["pos"]: results for results in found}


BOOKS, RECALL = cells("books"), cells("recall")
EXTENDED = json.loads((HERE.parent / "extend/reach.json").read_text(encoding="utf-8"))["books"]


def rises(pos: str, times: int) -> list[float]:
    """loss(times x L) - loss(L) of each seed, on books."""
    found = [by_length(rows_on(result["rows"], "books")) for result in BOOKS[pos]]
    return [rows[times * L]["nats"] - rows[L]["nats"] for rows in found]


def extended(extend: str | None, times: int) -> list[float]:
    """The same for RoPE under an extension."""
    found = []
    for run in EXTENDED:
        rows = {(row["extend"], row["length"]): row["nats"] for row in run["rows"]}
        if (extend, times * L) in rows:
            found.append(rows[extend, times * L] - rows[None, L])
    return found


def at_length(pos: str) -> list[float]:
    """loss(L) of each seed."""
    return [by_length(rows_on(r["rows"], "books"))[L]["nats"] for r in BOOKS[pos]]


def interval(values: list[float]) -> tuple[float, float, str]:
    """Mean, half of the 95 % interval over seeds (nan of one seed), and both in words."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, math.nan, f"{mean:+.3f} nats (one seed)"
    half = compare.t_point(len(values) - 1) * standard_error(values)
    return mean, half, f"{mean:+.3f} ± {half:.3f} nats"


def holds(values: list[float], claim: bool) -> tuple[str, str]:
    """The verdict on the claim that a loss holds (or, if `claim` is False, that it breaks)."""
    return judged(*interval(values), claim)


def judged(mean: float, half: float, words: str, claim: bool) -> tuple[str, str]:
    """The same from a mean and half of its interval."""
    if math.isnan(half):
        return OPEN, words
    found = True if mean + half <= HELD else False if mean - half > HELD else None
    return (OPEN if found is None else YES if found == claim else NO), words


def reach(pos: str) -> list[int]:
    """The reach of each seed on recall."""
    return [answers.reach(answers.answered(rows_on(r["rows"], "recall"))) for r in RECALL[pos]]


# ---- single checks


def best_of_all() -> tuple[str, str]:
    """Whether every other scheme's loss rises more than ALiBi's at 32 L."""
    own = np.mean(rises("alibi", 32))
    means = {pos: np.mean(rises(pos, 32)) for pos in BOOKS if pos not in ("alibi", "learned")}
    flat = [f"{pos} {mean:+.3f}" for pos, mean in means.items() if mean <= own + 0.005]
    return (NO if flat else YES), f"alibi {own:+.3f}; no more: {', '.join(flat) or 'none'}"


def reads_far() -> tuple[str, str]:
    """Whether ALiBi reads at least 2 L back, as schemes that are used on longer texts must."""
    own = reach("alibi")
    others = {pos: reach(pos) for pos in RECALL}
    far = [pos for pos, of in others.items() if min(of) >= 2 * L]
    words = f"reach of alibi {own}; in all seeds at least {2 * L}: {', '.join(far)}"
    return (YES if np.median(own) >= 2 * L else NO), words


def order_without_positions() -> tuple[str, str]:
    """How much the last logits change if two earlier tokens swap places, by layers."""
    found = []
    for layers in (1, 2):
        torch.manual_seed(0)
        shape = {"block_size": 16, "vocab_size": 50, "n_layer": layers, "n_head": 4, "n_embd": 64}
        model, idx = GPT(GPTConfig(pos="nope", **shape)).double().eval(), torch.arange(12)[None]
        with torch.no_grad():
            for weights in model.parameters():
                weights.mul_(4)
            swapped = idx.clone()
            swapped[0, [2, 5]] = idx[0, [5, 2]]
            found.append(float((model(idx)[0] - model(swapped)[0]).abs().max()))
    changed = found[0] < 1e-9 < found[1]
    words = f"logits change by {found[0]:.0e} with one causal layer, by {found[1]:.2f} with two"
    return (NO if changed else YES), words


def no_parameters() -> tuple[str, str]:
    """Whether RoPE and ALiBi have as many parameters as no scheme."""
    counts = {pos: BOOKS[pos][0]["parameters"] for pos in ("nope", "rope", "alibi", "learned")}
    return (YES if len({counts[p] for p in ("nope", "rope", "alibi")}) == 1 else NO), str(counts)


def slopes_of_twelve() -> tuple[str, str]:
    """ALiBi's slopes for 12 heads against the formula 2^(-8i/n)."""
    ours = alibi_slopes(12).tolist()
    formula = [2 ** (-8 * i / 12) for i in range(1, 13)]
    words = f"heads 1 and 2: {formula[0]:.3f}, {formula[1]:.3f}; published: {ours[0]}, {ours[1]}"
    return (YES if np.allclose(ours, formula) else NO), f"{words} (tests/test_posenc.py)"


def first_head() -> tuple[str, str]:
    """Which head has the weak penalty."""
    slopes = alibi_slopes(8).tolist()
    weak = slopes[0] < slopes[-1]
    return (YES if weak else NO), f"slope of head 1: {slopes[0]}, of head 8: {slopes[-1]}"


def relative_scores() -> tuple[str, str]:
    """How much the score of two places 7 apart changes when both move by 1,000."""
    torch.manual_seed(0)
    q, k = torch.randn(2, 64, dtype=torch.float64)
    inv_freq = 10000.0 ** (-torch.arange(0, 64, 2).double() / 64)

    def score(i: int, j: int) -> float:
        turned = [rotate(x[None], torch.tensor([n]), inv_freq)[0] for x, n in ((q, i), (k, j))]
        return float(turned[0] @ turned[1])

    change = abs(score(1010, 1003) - score(10, 3))
    return (YES if change < 1e-4 else NO), f"the score changes by {change:.0e}"


def piecewise_positions() -> tuple[str, str]:
    """The same for positions that are compressed behind L: do they stay relative?"""
    place = {p: p if p <= L else L + 0.25 * (p - L) for p in (100, 132, 300, 332)}
    near, far = place[132] - place[100], place[332] - place[300]
    words = f"two tokens 32 apart meet at distance {near:g} around L, and at {far:g} behind it"
    return (YES if near == far else NO), words


def ntk_frequencies() -> tuple[str, str]:
    """By what NTK divides the fastest and the slowest pair for 4 L, and PI."""
    own = extended_frequencies("ntk(factor=1)", 64, train_length=L)[0]
    found = {}
    for name in ("ntk", "pi"):
        ratio = own / extended_frequencies(f"{name}(factor=4)", 64, train_length=L)[0]
        found[name] = [round(float(ratio[k]), 3) for k in (0, -1)]
    words = f"fastest and slowest pair are divided by {found['ntk']} (ntk), {found['pi']} (pi)"
    return (NO if found["ntk"][0] == 1 else YES), words


def nope_at_length() -> tuple[str, str]:
    """Whether the loss of nope at L is above that of rope, and its rise above 0.05."""
    behind = [a - b for a, b in zip(at_length("nope"), at_length("rope"), strict=True)]
    mean, half, words = interval(behind)
    return (YES if mean - half > 0 else OPEN), f"at L {words} above rope"


def cache_sizes() -> tuple[str, str]:
    """Bytes of the cache for a token: heads, groups, latents, 8 bits."""
    table = json.loads((HERE.parent / "models/caches.json").read_text(encoding="utf-8"))["bytes"]
    sizes = {kind: of["rope"]["none"] for kind, of in table.items()}
    first = next(iter(table.values()))["rope"]
    words = ", ".join(f"{kind} {n:,}" for kind, n in sizes.items())
    return YES, f"bytes for a token: {words}; with int8 {first['int8']:,} of {first['none']:,}"


def shapes(first: tuple[int, ...], second: tuple[int, ...]) -> Callable[[], tuple[str, str]]:
    """Whether a snippet's product of two tensors of these shapes can be formed."""

    def check() -> tuple[str, str]:
        try:
            torch.ones(first) * torch.ones(second)
        except RuntimeError:
            return "does not run", f"{first} x {second} cannot be multiplied"
        return YES, f"{first} x {second}"

    return check


def beyond_the_table() -> tuple[str, str]:
    """A table of 2 max + 1 distances, asked for a farther one."""
    try:
        torch.nn.Embedding(2 * 8 + 1, 4)(torch.tensor([20]) + 8)
    except IndexError:
        return "does not run", "IndexError from distance max + 1 on: the distance must be clamped"
    return YES, "runs"


def no_length() -> tuple[str, str]:
    """`seq_len > cached` with the default of the snippet, None."""
    try:
        _ = None > 2048
    except TypeError:
        return "does not run", "TypeError with its own default, seq_len=None"
    return YES, "runs"


def breaks(pos: str, times: int) -> Callable[[], tuple[str, str]]:
    """The claim that a scheme's loss rises beyond L."""
    return lambda: holds(rises(pos, times), False)


def stays(pos: str, times: int) -> Callable[[], tuple[str, str]]:
    """The claim that a scheme's loss holds."""
    return lambda: holds(rises(pos, times), True)


def scaled(extend: str, times: int, claim: bool = True) -> Callable[[], tuple[str, str]]:
    """The claim that RoPE's loss holds under an extension without training."""
    return lambda: holds(extended(extend, times), claim)


def kept_short() -> tuple[str, str]:
    """What yarn(factor=4) costs in texts of L. (With factor=auto it changes nothing there.)"""
    lines = json.loads((HERE / "short.json").read_text(encoding="utf-8"))
    (line,) = (x for x in lines if (x["extension"], x["N"]) == ("yarn(factor=4)", L))
    half = compare.t_point(line["seeds"] - 1) * line["sd"] / math.sqrt(line["seeds"])
    return judged(-line["mean"], half, f"{-line['mean']:+.3f} ± {half:.3f} nats", True)


def refused() -> tuple[str, str]:
    """A learned table past its end."""
    row = by_length(rows_on(BOOKS["learned"][0]["rows"], "books"))[2 * L]
    return YES, str(row["reason"])


SENTENCES = [
    Sentence(
        "000",
        "extending to longer contexts only requires evaluating the rotation for larger n",
        "the loss of rope holds at 2 L",
        stays("rope", 2),
    ),
    Sentence(
        "000", "RoPE: smooth extrapolation", "the loss of rope holds at 4 L", stays("rope", 4)
    ),
    Sentence(
        "000",
        "NoPE enables models to generalize beyond training lengths",
        "the loss of nope holds at 4 L",
        stays("nope", 4),
    ),
    Sentence(
        "000",
        "apply_rope(x, positions)",
        "the snippet runs on its own example",
        shapes((1, 64, 1), (1, 4, 32)),
    ),
    Sentence(
        "000",
        "the attention depends on n - m",
        "a score changes by less than 1e-4 when both places move by 1,000",
        relative_scores,
    ),
    Sentence(
        "001",
        "“The cat sat” = “sat cat The” without position encoding",
        "logits of nope do not change with the order of earlier tokens",
        order_without_positions,
    ),
    Sentence(
        "001",
        "learned: can't extrapolate beyond training length",
        "a longer text has no loss",
        refused,
    ),
    Sentence(
        "001",
        "sinusoidal: performance degrades beyond training length",
        "the loss breaks at 2 L",
        breaks("sinusoidal", 2),
    ),
    Sentence("001", "RoPE, ALiBi: no extra parameters", "as many as nope", no_parameters),
    Sentence(
        "001",
        "ALiBi: train on 512, test on 3072+, minimal performance degradation",
        "the loss of alibi holds at 8 L",
        stays("alibi", 8),
    ),
    Sentence(
        "001",
        "better than any other position encoding",
        "no other scheme rises as little at 32 L, to 0.005 nats",
        best_of_all,
    ),
    Sentence(
        "001", "natural long context support", "alibi reads at least 2 L back (recall)", reads_far
    ),
    Sentence(
        "001",
        "RoPE with scaling also works well",
        "the loss of rope under yarn holds at 4 L",
        scaled("yarn", 4),
    ),
    Sentence(
        "001",
        "linear interpolation for moderate extension (2-4x)",
        "the loss of rope under pi holds at 4 L, untrained",
        scaled("pi", 4),
    ),
    Sentence(
        "001", "m = 2^(-8/n * i) for head i", "the published slopes of 12 heads", slopes_of_twelve
    ),
    Sentence(
        "001",
        "cos(position * freqs), q * cos",
        "the snippet runs for 16 positions and d = 64",
        shapes((16,), (32,)),
    ),
    Sentence(
        "001",
        "bias_table[relative_pos + max_distance]",
        "the snippet runs past max_distance",
        beyond_the_table,
    ),
    Sentence(
        "002",
        "well-behaved for up to 2 to 4 times the training context",
        "the loss of rope holds at 2 L",
        stays("rope", 2),
    ),
    Sentence(
        "002",
        "YaRN: p' = L + alpha (p - L) behind L",
        "two tokens 32 apart have one distance everywhere",
        piecewise_positions,
    ),
    Sentence(
        "002",
        "attention depends on relative position directly",
        "as above, for rope",
        relative_scores,
    ),
    Sentence(
        "003",
        "RoPE generalizes better to longer contexts",
        "the loss of rope holds at 4 L",
        stays("rope", 4),
    ),
    Sentence(
        "003",
        "when you push beyond the training range, performance can degrade",
        "the loss of rope breaks at 4 L",
        breaks("rope", 4),
    ),
    Sentence(
        "003",
        "YaRN: short-context behavior stays close to original",
        "the loss of rope under yarn(factor=4) holds at L (eight seeds)",
        kept_short,
    ),
    Sentence(
        "003",
        "YaRN: training-free, may not match a long-context-trained model",
        "the loss of rope under yarn breaks at 32 L",
        scaled("yarn", 32, False),
    ),
    Sentence(
        "003", "GQA/MQA, quantization, MLA shrink the cache", "fewer bytes for a token", cache_sizes
    ),
    Sentence(
        "004",
        "head 1 has weak penalty (long range), head 8 has strong penalty",
        "the slope of head 1 is the smaller",
        first_head,
    ),
    Sentence(
        "004",
        "ALiBi extrapolates out of the box to 2x-4x",
        "the loss of alibi holds at 4 L",
        stays("alibi", 4),
    ),
    Sentence("004", "RoPE extrapolates well", "the loss of rope holds at 4 L", stays("rope", 4)),
    Sentence(
        "004",
        "NTK-aware: high-frequency components are interpolated",
        "NTK divides the fastest pair",
        ntk_frequencies,
    ),
    Sentence(
        "004",
        "no positional encoding: convergence is much slower",
        "the loss of nope at L is above that of rope",
        nope_at_length,
    ),
    Sentence(
        "004",
        "if seq_len > self.max_seq_len_cached",
        "the snippet runs with its defaults",
        no_length,
    ),
]


# ---- the bar chart


CLAIMED = {"learned": 40, "sinusoidal": 50, "rope": 80, "rope, yarn": 90, "alibi": 95}


def performance(pos: str) -> list[float]:
    """Perplexity of a byte at L over that at 4 L, per cent, of each seed; 0 where undefined."""
    if pos == "learned":
        return [0.0]
    found = extended("yarn", 4) if pos == "rope, yarn" else rises(pos, 4)
    return [100 * math.exp(-rise) for rise in found]


def chart(path: Path) -> None:
    """Draw the bars of tutorial 001 beside ours."""
    axes = new_figure((8, 4)).add_subplot()
    places = np.arange(len(CLAIMED))
    axes.barh(places - 0.2, CLAIMED.values(), 0.36, color="0.75", label="tutorial 001, 2K to 8K")
    for place, pos in zip(places, CLAIMED, strict=True):
        shares = performance(pos)
        label = "measured: L = 128 to 4 L, books; dots: seeds" if place == 0 else ""
        axes.barh(place + 0.2, np.mean(shares), 0.36, color=COLORS[0], label=label)
        axes.plot(shares, [place + 0.2] * len(shares), ".", color="black")
    axes.set_yticks(places, CLAIMED)
    axes.invert_yaxis()
    axes.set_xlabel("perplexity of a byte at L / at 4 L, per cent (learned: no loss at 4 L)")
    axes.set_xlim(0, 150)  # room for the legend
    axes.set_xticks(range(0, 101, 20))
    axes.legend(loc="upper right", fontsize=9)
    axes.set_title("“Extrapolation performance”, as it is told and as it was measured", fontsize=11)
    save_figure(axes.figure, path)


HEAD = """# Sentences of five tutorials

`python results/tutorials/check.py` writes this page. What it holds the sentences against, and when
the rules were written, stands at the top of that file: models of 0.8M parameters, L = 128, so a
verdict is about this size. *Undecided*: the interval over seeds does not tell, or there is one
seed. The tutorials are quoted by their numbers.

![bars as told and as measured](chart.png)

What "performance" means in the bars of tutorial 001 is not said there. Ours are the perplexity of a
byte at L over that at 4 L. For a token of four bytes they would be the fourth power: 1 % for RoPE.
"""


def main() -> None:
    """Write tutorials.md and chart.png."""
    lines = [HEAD, "| tutorial | it says | rule | verdict | our number |", "|" + " --- |" * 5]
    counts: dict[str, int] = {}
    for one in SENTENCES:
        verdict, number = one.check()
        counts[verdict] = counts.get(verdict, 0) + 1
        cells = (one.source, f"“{one.said}”", one.rule, f"**{verdict}**", number)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    told = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    lines += ["", f"Of {len(SENTENCES)} sentences: {told}."]
    (HERE / "tutorials.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    chart(HERE / "chart.png")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
