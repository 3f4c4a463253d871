r"""Sentences of five tutorials on position encodings, held against our runs and functions.

    python results/tutorials/check.py [FOLDER]        # writes ../tutorials.md and chart.png

With a FOLDER of the five texts (their file names begin with 000 to 004) every quotation is looked
up in its lines. Every sentence has a rule that gives its verdict from numbers; of a snippet, the
quoted lines themselves are run. The runs are those of ../board (books and recall, three seeds),
../extend (extensions, longer training), ../models, ../in-length and ../paper/yarn (eight seeds);
short.json is of the same eight models:

    python extend.py out/rope-books-L128-s?-n_embd=128 'yarn(factor=4)' --eval_lengths=128 \
        --dtype=bfloat16 --format=json --out=results/tutorials/short

The rest is computed here. The rules were written after those runs; those of 000:13, 001:249,
002:228 and 004:48 were rewritten after a review that knew the numbers. They follow the board's
words: a loss *holds* at N if the upper end of the 95 % interval over seeds of loss(N) - loss(L) is
at most 0.05 nats, and *breaks* if the lower end is above that.
"""

import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))
from model import GPT, GPTConfig  # noqa: E402
from posenc import alibi_slopes, rotate, sinusoids  # noqa: E402
from positions.catalogue import extended_frequencies  # noqa: E402
from runs import answers, compare  # noqa: E402
from runs.figures import COLORS, new_figure, save_figure  # noqa: E402
from runs.results import by_length, rows_on, standard_error  # noqa: E402

L, HELD = 128, 0.05  # tokens; nats
YES, NO, OPEN = "reproduced", "contradicted", "undecided"
FAILS, OTHER = "does not run", "computes something else"
Found = tuple[str, str]  # a verdict, and our number

TITLES = {
    "000": "Appendix: Advanced Positional Embeddings for Long-Context Generalization",
    "001": "Position Embeddings",
    "002": "Positional Encoding, RoPE, YaRN, and LongRoPE: A Practical Guide",
    "003": "Positional Embeddings and Context Extension",
    "004": "Day 12: Positional Encodings & Embeddings",
}


class Sentence(NamedTuple):
    """A quotation and its first line there, the rule for it, and `check`, which judges it."""

    source: str
    line: int
    said: str
    rule: str
    check: Callable[[], Found]


# ---- numbers of the runs


def content(name: str) -> Any:
    """What a JSON file under results/ holds."""
    return json.loads((HERE.parent / name).read_text(encoding="utf-8"))


def cells(kind: str) -> dict[str, list[dict]]:
    """{scheme: results by seed} of a comparison of the board."""
    found = content(f"board/{kind}/results.json")["cells"].values()
    return {results[0]["pos"]: results for results in found}


BOOKS, RECALL = cells("books"), cells("recall")
EXTENDED = content("extend/reach.json")["books"]
LONGER = content("extend/books.json")["losses"]  # {what: {seed: {length: nats}}}


def losses(pos: str, times: float = 1) -> list[float]:
    """loss(times x L) of each seed, on books."""
    rows = [by_length(rows_on(result["rows"], "books")) for result in BOOKS[pos]]
    return [of[int(times * L)]["nats"] for of in rows]


def less(first: list[float], second: list[float]) -> list[float]:
    """The differences, first minus second, of each seed."""
    return [a - b for a, b in zip(first, second, strict=True)]


def rises(pos: str, times: int) -> list[float]:
    """loss(times x L) - loss(L) of each seed, on books."""
    return less(losses(pos, times), losses(pos))


def extended(extend: str | None, times: int) -> list[float]:
    """The same for RoPE under an extension, without training."""
    found = []
    for run in EXTENDED:
        rows = {(row["extend"], row["length"]): row["nats"] for row in run["rows"]}
        if (extend, times * L) in rows:
            found.append(rows[extend, times * L] - rows[None, L])
    return found


def interval(values: list[float]) -> tuple[float, float, str]:
    """Mean, half of the 95 % interval over seeds (nan of one seed), and both in words."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, math.nan, f"{mean:+.3f} nats (one seed)"
    half = compare.t_point(len(values) - 1) * standard_error(values)
    return mean, half, f"{mean:+.3f} ± {half:.3f} nats (n = {len(values)})"


def of_eight(file: str, extension: str, times: int) -> tuple[float, float, str]:
    """The same for what `extend.py --format=json` wrote of eight models: loss(N) - loss(L)."""
    (line,) = (
        x for x in content(file) if (x.get("extension"), x.get("N")) == (extension, times * L)
    )
    mean, n = -line["mean"], line["seeds"]
    half = compare.t_point(n - 1) * line["sd"] / math.sqrt(n)
    return mean, half, f"{mean:+.3f} ± {half:.3f} nats (n = {n})"


def judged(mean: float, half: float, words: str, claim: bool = True, limit: float = HELD) -> Found:
    """Whether a mean is surely at most `limit`, which is claimed (or, if not `claim`, denied)."""
    if math.isnan(half):
        return OPEN, words
    found = True if mean + half <= limit else False if mean - half > limit else None
    return (OPEN if found is None else YES if found == claim else NO), words


# ---- checks that several sentences share


def stays(pos: str, times: int, claim: bool = True) -> Callable[[], Found]:
    """The claim that a scheme's loss holds; or, if not `claim`, that it breaks."""
    return lambda: judged(*interval(rises(pos, times)), claim)


def scaled(extend: str, times: int) -> Callable[[], Found]:
    """The claim that RoPE's loss holds under an extension without training."""
    return lambda: judged(*interval(extended(extend, times)))


def lower(first: str, second: str) -> Callable[[], Found]:
    """The claim that one scheme's loss at L is below another's."""
    return lambda: judged(*interval(less(losses(first), losses(second))), True, 0)


def eight(extension: str, times: int, file: str = "paper/yarn/extend.json") -> Callable[[], Found]:
    """The claim that the loss of eight models holds under an extension, or after tuning."""
    return lambda: judged(*of_eight(file, extension, times))


def not_tested(reason: str) -> Callable[[], Found]:
    """What no run here can show."""
    return lambda: ("not tested here", reason)


def fails(code: str, **given: Any) -> Callable[[], Found]:
    """Whether quoted lines fail with these names."""

    def check() -> Found:
        try:
            exec(code, {"torch": torch, **given})
        except Exception as error:
            return FAILS, f"{type(error).__name__}: {str(error).splitlines()[0]:.100}"
        return YES, "it runs"

    return check


def reach(pos: str) -> list[int]:
    """The reach of each seed on recall."""
    return [answers.reach(answers.answered(rows_on(r["rows"], "recall"))) for r in RECALL[pos]]


# ---- single checks


def tables_end() -> Found:
    """A learned table has no loss past its end."""
    row = by_length(rows_on(BOOKS["learned"][0]["rows"], "books"))[2 * L]
    return (YES if row["nats"] is None else NO), str(row.get("reason", row["nats"]))


def against_a_table() -> Found:
    """RoPE against a learned table beyond L."""
    verdict, words = tables_end()
    return verdict, f"rope {interval(rises('rope', 2))[2]}; {words}"


def best_of_all() -> Found:
    """Whether every other scheme's loss surely rises more than ALiBi's at 32 L."""
    others = [pos for pos in BOOKS if pos not in ("alibi", "learned")]
    found = {pos: interval(less(rises(pos, 32), rises("alibi", 32))) for pos in others}
    level = [pos for pos, (mean, half, _) in found.items() if mean + half <= 0.005]
    unsure = [
        pos for pos, (mean, half, _) in found.items() if mean - half <= 0 and pos not in level
    ]
    words = f"surely no more than 0.005 above: {', '.join(level) or 'none'}"
    return (NO if level else OPEN if unsure else YES), f"{words}; not told: {', '.join(unsure)}"


def reads_far() -> Found:
    """Whether ALiBi reads at least 2 L back, as schemes that are used on longer texts must."""
    own, others = reach("alibi"), {pos: reach(pos) for pos in RECALL}
    far = [pos for pos, of in others.items() if min(of) >= 2 * L]
    words = f"reach of alibi {own}; in all seeds at least {2 * L}: {', '.join(far)}"
    return (YES if np.median(own) >= 2 * L else NO), words


def order_without_positions() -> Found:
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


def no_parameters() -> Found:
    """Whether RoPE and ALiBi have as many parameters as no scheme."""
    counts = {pos: BOOKS[pos][0]["parameters"] for pos in ("nope", "rope", "alibi", "learned")}
    words = ", ".join(f"{pos} {count:,}" for pos, count in counts.items())
    return (YES if len({counts[p] for p in ("nope", "rope", "alibi")}) == 1 else NO), words


def slopes_of_twelve() -> Found:
    """ALiBi's slopes for 12 heads against the formula 2^(-8i/n)."""
    ours = alibi_slopes(12).tolist()
    formula = [2 ** (-8 * i / 12) for i in range(1, 13)]
    words = f"heads 1 and 2: {formula[0]:.3f}, {formula[1]:.3f}; published: {ours[0]}, {ours[1]}"
    return (YES if np.allclose(ours, formula) else NO), f"{words} (tests/test_posenc.py)"


def first_head() -> Found:
    """Which head has the weak penalty."""
    slopes = alibi_slopes(8).tolist()
    weak = slopes[0] < slopes[-1]
    return (YES if weak else NO), f"slope of head 1: {slopes[0]}, of head 8: {slopes[-1]}"


def turned(x: torch.Tensor, place: int) -> torch.Tensor:
    """Vectors (n, 64) as RoPE turns them at a place."""
    inv_freq = 10000.0 ** (-torch.arange(0, 64, 2).double() / 64)
    return rotate(x[:, None], torch.tensor([place]), inv_freq)[:, 0]


def relative_scores() -> Found:
    """How much the score of two places 7 apart changes when both move by 1,000."""
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 64, dtype=torch.float64)
    scores = [float((turned(q, i) * turned(k, i - 7)).sum()) for i in (10, 1010)]
    change = abs(scores[0] - scores[1])
    return (YES if change < 1e-4 else NO), f"the score changes by {change:.0e}"


def decay() -> Found:
    """The mean score of random keys with themselves, near and far apart, and with other queries."""
    torch.manual_seed(0)
    q, k = torch.randn(2, 20_000, 64, dtype=torch.float64)
    scores = {d: (turned(k, d) * turned(k, 0)).sum(1).mean().item() for d in (1, 30, 1000)}
    others = {d: (turned(q, d) * turned(k, 0)).sum(1).abs().mean().item() for d in scores}
    own, other = (", ".join(f"{x:.1f}" for x in of.values()) for of in (scores, others))
    falls = scores[1] > scores[30] > scores[1000]
    words = f"mean score {own}; with another random query the mean size is {other}"
    return (YES if falls else NO), words


def no_bias() -> Found:
    """Whether NoPE has parameters for a bias."""
    counts = {pos: BOOKS[pos][0]["parameters"] for pos in ("nope", "rope")}
    words = f"nope {counts['nope']:,}, rope {counts['rope']:,}"
    return (YES if counts["nope"] > counts["rope"] else NO), words


def short_yarn() -> Found:
    """The loss at L under YaRN with a factor of 4, and with one that grows with the text."""
    fixed = of_eight("tutorials/short.json", "yarn(factor=4)", 1)
    grows = of_eight("paper/yarn/extend.json", "yarn", 1)
    verdict, words = judged(*fixed)
    return verdict, f"{words}; with a factor that grows with the text {grows[2]}"


def unseen_waves() -> Found:
    """How far sinusoids of places beyond L are from the nearest of the trained places, by pair."""
    pairs = torch.stack(sinusoids(torch.arange(32 * L), 128).double().chunk(2, -1), -1)
    seen, new = pairs[:L].transpose(0, 1), pairs[L:].transpose(0, 1)  # (pair, place, 2)
    far = torch.cdist(new, seen).amin(-1).amax(-1)
    words = f"fastest pair: at most {far[0]:.3f} from a trained value; pair {int(far.argmax()) + 1}"
    return (YES if far[0] > 0.1 else NO), f"{words} of {len(far)}, a slow one: {far.max():.2f}"


def piecewise_positions() -> Found:
    """Positions that are compressed behind L: do they stay relative?"""
    place = {p: p if p <= L else L + 0.25 * (p - L) for p in (100, 132, 300, 332)}
    near, far = place[132] - place[100], place[332] - place[300]
    words = f"two tokens 32 apart meet at distance {near:g} around L, and at {far:g} behind it"
    return (YES if near == far else NO), words


def continuous() -> Found:
    """The angle of the fastest pair at the last trained place and at the next one."""
    angles = 0.8 * 2048, 1.2 * 2049  # with their alpha and beta; a step is about 1
    words = f"the fastest angle goes from {angles[0]:.1f} at 2,048 to {angles[1]:.1f} at 2,049"
    return (YES if angles[1] - angles[0] < 2 else NO), words


def ratios(extend: str) -> torch.Tensor:
    """By what an extension divides each frequency of 64 columns, the fastest first."""
    own = extended_frequencies("ntk(factor=1)", 64, train_length=L)[0]
    return own / extended_frequencies(extend, 64, train_length=L)[0]


def ntk_frequencies() -> Found:
    """By what NTK divides the fastest and the slowest pair for 4 L, and PI."""
    found = {
        n: [round(float(ratios(f"{n}(factor=4)")[k]), 3) for k in (0, -1)] for n in ("ntk", "pi")
    }
    words = f"fastest and slowest pair are divided by {found['ntk']} (ntk), {found['pi']} (pi)"
    return (NO if found["ntk"][0] == 1 else YES), words


def ntk_base() -> Found:
    """The formula for NTK's base against ours."""
    base, d = 10000.0 * 4 ** (64 / 62), 64
    theirs = base ** (-torch.arange(0, d, 2).double() / d)
    ours = extended_frequencies("ntk(factor=4)", d, train_length=L)[0].double()
    off = float((theirs / ours - 1).abs().max())
    return (YES if off < 1e-6 else NO), f"frequencies differ by {off:.0e} at most"


def yarn_speeds() -> Found:
    """Whether YaRN turns any pair faster than RoPE does."""
    least = float(ratios("yarn(factor=4)").min())
    return (NO if least >= 1 - 1e-6 else YES), f"it divides each frequency by at least {least:.3f}"


def partial_rope() -> Found:
    """Which columns the quoted line changes if the input has a batch."""
    x, rope_dims = torch.zeros(2, 16, 64), 16
    given = {"x": x, "rope_dims": rope_dims, "position": None, "apply_rope": lambda y, _: y + 1}
    exec("x[:rope_dims] = apply_rope(x[:rope_dims], position)", given)
    columns = int((x != 0).any(0).any(0).sum())
    words = f"of (2, 16, 64), {columns} of 64 columns are turned, not {rope_dims}: it slices rows"
    return (OTHER if columns != rope_dims else YES), words


def both_far() -> Found:
    """NTK and YaRN at 32 L."""
    found = [judged(*interval(extended(name, 32))) for name in ("ntk", "yarn")]
    verdicts, words = {verdict for verdict, _ in found}, ", ".join(words for _, words in found)
    return (verdicts.pop() if len(verdicts) == 1 else OPEN), f"ntk, yarn: {words}"


def tuning_is_best() -> Found:
    """At 2 L: after tuning with YaRN, and YaRN without."""
    tuned = of_eight("paper/yarn/extend.json", TUNED, 2)
    untuned = of_eight("paper/yarn/extend.json", "yarn", 2)
    good, bad = judged(*tuned)[0] == YES, judged(*untuned)[0] == NO
    return (YES if good and bad else OPEN), f"tuned {tuned[2]}, untuned {untuned[2]}"


def against_long_training() -> Found:
    """RoPE under YaRN at 4 L, less RoPE that was trained there (3.2M parameters)."""
    yarn, trained = LONGER["yarn"], LONGER[f"rope trained at {4 * L}"]
    far = [yarn[seed][str(4 * L)] - trained[seed][str(4 * L)] for seed in sorted(trained)]
    verdict, words = judged(*interval(far), False, 0)
    return verdict, f"{words}, models of 3.2M parameters"


def slow_without_positions() -> Found:
    """The steps until nope has the validation loss that rope has after 1,200 steps."""
    runs = {r["pos"]: r["val_loss"] for r in content("in-length/long.json") if r["init"] == "gpt2"}
    goal = runs["rope"]["1200"]
    needed = next((int(step) for step, loss in runs["nope"].items() if loss <= goal), None)
    return OPEN, f"nope needs {needed:,} steps for what rope has after 1,200 (one seed)"


def resized_table() -> Found:
    """The loss of the resized table at twice the side, less that of nope."""
    cells, losses = content("models/digits/results.json")["cells"].values(), {}
    for result in (result for results in cells for result in results):
        losses[result["pos"], result["seed"]] = result["rows"][1]["nats"]
    seeds = sorted(seed for pos, seed in losses if pos == "nope")
    above = [losses["learned2d", seed] - losses["nope", seed] for seed in seeds]
    verdict, words = judged(*interval(above), True, 0)
    return verdict, f"{words}, images of 12 x 12 patches"


def cache_sizes() -> Found:
    """Bytes of the cache for a token: heads, groups, latents, 8 bits."""
    table = content("models/caches.json")["bytes"]
    sizes = {kind: of["rope"]["none"] for kind, of in table.items()}
    first, int8 = next(iter(sizes.values())), next(iter(table.values()))["rope"]["int8"]
    words = ", ".join(f"{kind} {n:,}" for kind, n in sizes.items())
    smaller = all(n < first for n in [*sizes.values()][1:]) and int8 < first
    return (YES if smaller else NO), f"bytes for a token: {words}; with int8 {int8:,} of {first:,}"


TUNED = f"rope + yarn(factor=2) trained at {L}, then {2 * L}"

# ---- the sentences

SENTENCES = [
    Sentence(
        "000",
        13,
        "relies purely on learned attention biases",
        "nope has parameters for a bias, so more than rope",
        no_bias,
    ),
    Sentence(
        "000",
        24,
        "enabling extrapolation to longer contexts",
        "the loss of nope holds at 4 L",
        stays("nope", 4),
    ),
    Sentence(
        "000",
        29,
        "Enables models to generalize beyond training lengths because the learned bias function",
        "the loss of kerple, whose learned bias is a function of distance, holds at 4 L",
        stays("kerple", 4),
    ),
    Sentence(
        "000",
        27,
        "Works best when paired with monotonic attention biases such as ALiBi",
        "the loss of alibi at L is below that of nope",
        lower("alibi", "nope"),
    ),
    Sentence(
        "000",
        45,
        "Because the attention depends on $n-m$",
        "a score changes by less than 1e-4 when both places move by 1,000",
        relative_scores,
    ),
    Sentence(
        "000",
        45,
        "extending to longer contexts only requires evaluating the rotation for larger $n$",
        "the loss of rope holds at 2 L",
        stays("rope", 2),
    ),
    Sentence("000", 141, "Smooth extrapolation", "the loss of rope holds at 4 L", stays("rope", 4)),
    Sentence(
        "000",
        68,
        "using interpolation weights, ensuring continuity at",
        "by their formula the fastest angle grows by less than 2 from place to place",
        continuous,
    ),
    Sentence(
        "000",
        71,
        "> 1$ for long contexts",
        "yarn(factor=4) makes a frequency larger, as their beta > 1 does",
        yarn_speeds,
    ),
    Sentence(
        "000",
        105,
        "freqs = torch.einsum('n,d->nd', positions.float(), theta)\n"
        "cos = torch.cos(freqs).unsqueeze(-1)",
        "x1 * cos can be formed for their own example, q of (1, 4, 64)",
        fails(
            "freqs = torch.einsum('n,d->nd', positions.float(), theta)\n"
            "cos = torch.cos(freqs).unsqueeze(-1)\nx1 * cos",
            positions=torch.arange(1),
            theta=torch.ones(64),
            x1=torch.ones(1, 4, 32),
        ),
    ),
    Sentence(
        "000",
        123,
        "freqs = torch.einsum('n,d->nd', positions.float(), theta) * scale\n"
        "cos = torch.cos(freqs).unsqueeze(-1)",
        "x1 * cos can be formed for their own example, x of (4096, 64)",
        fails(
            "freqs = torch.einsum('n,d->nd', positions.float(), theta) * scale\n"
            "cos = torch.cos(freqs).unsqueeze(-1)\nx1 * cos",
            positions=torch.arange(4096),
            theta=torch.ones(64),
            scale=torch.ones(4096, 1),
            x1=torch.ones(4096, 32),
        ),
    ),
    Sentence(
        "001",
        9,
        '"The cat sat" = "sat cat The" without position encoding',
        "the last logits of a causal nope model do not change when two earlier tokens swap places",
        order_without_positions,
    ),
    Sentence(
        "001",
        22,
        "x = token_embeddings + pos_embeddings[positions]",
        "the line runs",
        fails(
            "x = token_embeddings + pos_embeddings[positions]",
            token_embeddings=torch.ones(3, 4),
            pos_embeddings=torch.nn.Embedding(8, 4),
            positions=torch.arange(3),
        ),
    ),
    Sentence(
        "001",
        36,
        "Can't extrapolate beyond training length",
        "learned has no loss at 2 L",
        tables_end,
    ),
    Sentence(
        "001",
        76,
        "Performance degrades beyond training length",
        "the loss of sinusoidal breaks at 2 L",
        stays("sinusoidal", 2, False),
    ),
    Sentence(
        "001",
        100,
        "x_complex = x[::2] + 1j * x[1::2]",
        "x_complex * rotation can be formed for Q of (16, 64), as the call needs",
        fails(
            "x_complex = x[::2] + 1j * x[1::2]\n"
            "freqs = 1.0 / (theta ** (torch.arange(0, d, 2) / d))\n"
            "x_rotated = x_complex * torch.exp(1j * (position * freqs))",
            x=torch.ones(16, 64),
            theta=10000,
            d=64,
            position=3,
        ),
    ),
    Sentence(
        "001",
        131,
        "**No extra parameters**: Applied as rotation",
        "rope has as many as nope, and so has alibi (001:219)",
        no_parameters,
    ),
    Sentence(
        "001",
        150,
        "theta_scaled = theta * (target_length / training_length) ** (d / (d-2))",
        "all frequencies are those of ntk(factor=4), to 1e-6",
        ntk_base,
    ),
    Sentence(
        "001",
        202,
        "m = 2^(-8/n * i) for head i",
        "the published slopes of 12 heads",
        slopes_of_twelve,
    ),
    Sentence(
        "001",
        213,
        "Minimal performance degradation",
        "the loss of alibi holds at 8 L (there 6 L)",
        stays("alibi", 8),
    ),
    Sentence(
        "001",
        214,
        "Better than any other position encoding",
        "at 32 L the loss of every other scheme surely rises more; contradicted if one surely "
        "rises by at most 0.005 nats more",
        best_of_all,
    ),
    Sentence(
        "001",
        249,
        "RoPE with scaling also works well",
        "the loss of rope under yarn holds at 4 L",
        eight("yarn", 4),
    ),
    Sentence(
        "001",
        297,
        "x[:rope_dims] = apply_rope(x[:rope_dims], position)",
        "the line turns a quarter of the columns, of two texts",
        partial_rope,
    ),
    Sentence(
        "001",
        305,
        "Potentially better generalization",
        "",
        not_tested("no model with partial RoPE was trained without another change"),
    ),
    Sentence(
        "001",
        317,
        "bias = bias_table[relative_pos + max_distance]",
        "the line runs",
        fails(
            "bias = bias_table[relative_pos + max_distance]",
            bias_table=torch.nn.Embedding(17, 4),
            relative_pos=torch.arange(3),
            max_distance=8,
        ),
    ),
    Sentence(
        "001",
        373,
        "Linear interpolation for moderate extension (2-4x)",
        "the loss of rope under pi holds at 4 L, untrained",
        scaled("pi", 4),
    ),
    Sentence(
        "001",
        374,
        "NTK-aware or YaRN for larger extension",
        "the loss of rope under each of the two holds at 32 L, untrained",
        both_far,
    ),
    Sentence(
        "001",
        378,
        "Natural long context support",
        "alibi reads at least 2 L back (recall)",
        reads_far,
    ),
    Sentence(
        "001",
        421,
        "cos = torch.cos(position * freqs)",
        "the line runs for 16 positions",
        fails("cos = torch.cos(position * freqs)", position=torch.arange(16), freqs=torch.ones(32)),
    ),
    Sentence(
        "001",
        429,
        "q_embed = q * cos + rotate_half(q) * sin",
        "the line runs with a cosine for each of the 32 frequencies",
        fails(
            "q_embed = q * cos + rotate_half(q) * sin",
            q=torch.ones(16, 64),
            cos=torch.ones(16, 32),
            sin=torch.ones(16, 32),
            rotate_half=lambda x: x,
        ),
    ),
    Sentence(
        "002",
        9,
        "if you shuffle the tokens, the attention mechanism has no built-in notion of order",
        "as 001:9",
        order_without_positions,
    ),
    Sentence(
        "002",
        46,
        "Generalization to much longer sequences than seen in training is limited",
        "the loss of sinusoidal breaks at 4 L",
        stays("sinusoidal", 4, False),
    ),
    Sentence(
        "002",
        103,
        "It depends on **relative position** $(q - p)$ directly",
        "as 000:45",
        relative_scores,
    ),
    Sentence(
        "002",
        172,
        "Positional encodings remain well-behaved for up to about **8K-16K** tokens",
        "the loss of rope holds at 2 L (there 2 to 4 L)",
        stays("rope", 2),
    ),
    Sentence(
        "002",
        173,
        "aliasing (wrap-around effects) start to noticeably degrade attention",
        "",
        not_tested(
            "it would take a model whose pairs are changed one at a time (evaluate.py --diagnose)"
        ),
    ),
    Sentence(
        "002",
        199,
        "delaying wrap-around and enabling longer context",
        "the loss of rope under ntk holds at 4 L, untrained",
        scaled("ntk", 4),
    ),
    Sentence(
        "002",
        208,
        "YaRN defines a compressed position",
        "with their formula two tokens 32 apart have one distance everywhere",
        piecewise_positions,
    ),
    Sentence(
        "002",
        228,
        "RoPE behaves exactly as in training",
        "the loss of rope under the published yarn(factor=4) holds at L (by the formula of the "
        "tutorial, which is not YaRN's, nothing changes there)",
        short_yarn,
    ),
    Sentence(
        "002",
        280,
        "on long sequences can further adapt the model to the new positional geometry",
        "after 100 steps at 2 L with yarn(factor=2) the loss there holds",
        eight(TUNED, 2),
    ),
    Sentence(
        "003",
        7,
        "generalizes better to longer contexts",
        "rope has a loss at 2 L, and a learned table none",
        against_a_table,
    ),
    Sentence(
        "003",
        14,
        "vanilla attention would produce the same result",
        "as 001:9",
        order_without_positions,
    ),
    Sentence(
        "003",
        208,
        "When you push beyond the training range, performance can degrade",
        "the loss of rope breaks at 4 L",
        stays("rope", 4, False),
    ),
    Sentence(
        "003",
        273,
        "Short-context behavior stays close to original",
        "the loss of rope under yarn(factor=4) holds at L",
        short_yarn,
    ),
    Sentence(
        "003",
        303,
        "may not match a true long-context-trained model",
        "at 4 L rope under yarn has a higher loss than rope trained at 4 L",
        against_long_training,
    ),
    Sentence(
        "003",
        305,
        "**Long-context fine-tuning**: best quality",
        "at 2 L the loss holds after 100 steps with yarn(factor=2), and breaks under yarn without",
        tuning_is_best,
    ),
    Sentence(
        "003",
        321,
        "Context extension often pairs well with",
        "groups of heads, latents and 8 bits take fewer bytes for a token",
        cache_sizes,
    ),
    Sentence(
        "004",
        48,
        "The dot product naturally decays as relative distance increases (for high frequency "
        "components)",
        "the mean score of a random key with itself falls from 1 to 30 to 1,000 places apart",
        decay,
    ),
    Sentence(
        "004",
        50,
        "it handles unseen positions better than learned embeddings",
        "as 003:7",
        against_a_table,
    ),
    Sentence(
        "004",
        65,
        "Head 1 has weak penalty (long range), Head 8 has strong penalty",
        "the slope of head 1 is the smaller",
        first_head,
    ),
    Sentence(
        "004",
        71,
        'the "wiggles" of high frequencies become unpredictable at unseen positions',
        "the fastest sine and cosine beyond L are more than 0.1 away from every value within L",
        unseen_waves,
    ),
    Sentence(
        "004",
        72,
        'Extrapolates well, but can suffer from "out of distribution" rotation angles '
        "without scaling",
        "the loss of rope, without scaling, holds at 4 L (the sentence's end doubts it)",
        stays("rope", 4),
    ),
    Sentence(
        "004",
        73,
        'Extrapolates "out of the box" to 2x-4x training length',
        "the loss of alibi holds at 4 L",
        stays("alibi", 4),
    ),
    Sentence(
        "004",
        85,
        "High-frequency components are interpolated",
        "ntk(factor=4) divides the fastest pair",
        ntk_frequencies,
    ),
    Sentence(
        "004",
        99,
        "the pre-trained positional embeddings to the new size",
        "at twice the side the resized table has a lower loss than nope (images)",
        resized_table,
    ),
    Sentence(
        "004",
        103,
        "convergence is much slower",
        "nope needs twice the steps for what rope has after 1,200",
        slow_without_positions,
    ),
    Sentence(
        "004",
        103,
        "performance usually degrades",
        "the loss of rope at L is below that of nope",
        lower("rope", "nope"),
    ),
    Sentence(
        "004",
        132,
        "if seq_len > self.max_seq_len_cached:",
        "the line runs with its default, seq_len=None",
        fails(
            "if seq_len > self.max_seq_len_cached: pass",
            seq_len=None,
            self=type("Rotary", (), {"max_seq_len_cached": 2048}),
        ),
    ),
    Sentence(
        "004",
        133,
        "self._update_cos_sin_tables(seq_len, device=x.device)",
        "the class has the method that it calls",
        fails(
            "self._update_cos_sin_tables(seq_len, device=x.device)",
            self=torch.nn.Module(),
            seq_len=4096,
            x=torch.ones(1),
        ),
    ),
]


def plain(text: str) -> str:
    """A text without marks of emphasis, with one kind of hyphen and single spaces."""
    with_hyphens = re.sub("[\u2010-\u2015]", "-", re.sub(r"\*\*(?! )|(?<! )\*\*", "", text))
    return " ".join(with_hyphens.split())


def look_up(folder: Path) -> None:
    """Find every quotation in its lines; AssertionError if one is not there."""
    for one in SENTENCES:
        (path,) = folder.glob(f"{one.source}*")
        text = path.read_text(encoding="utf-8")
        if "\u201a\u00c4" in text:  # UTF-8 that was once read as Mac Roman
            text = text.encode("mac_roman", "ignore").decode("utf-8", "ignore")
        lines = text.split("\n")
        near = plain(" ".join(lines[one.line - 1 : one.line + one.said.count("\n")]))
        assert plain(one.said) in near, (
            f"{path.name}, line {one.line}: {one.said!r} is not in {near!r}"
        )
    print(f"all {len(SENTENCES)} quotations stand where they are said to stand")


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
        label = "measured: L = 128 to 4 L, books; dots: three seeds" if place == 0 else ""
        axes.barh(place + 0.2, np.mean(shares), 0.36, color=COLORS[0], label=label)
        if pos != "learned":  # which has no loss there
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

`python results/tutorials/check.py` writes this page. The top of that file says which runs are used
and when each rule was written. Most models have 0.8M parameters and L = 128; the tutorials mean
thousands of tokens. So a verdict is about this size. Of a snippet the quoted lines are run.

± is half of Student's 95 % interval over seeds, n their number. It is not corrected for the number
of sentences. A loss *holds* at N if the upper end of the interval of loss(N) - loss(L) is at most
0.05 nats, and *breaks* if the lower end is above that. *Undecided*: neither, or there is one seed.

![bars as told and as measured](tutorials/chart.png)

What "performance" means in the bars of "Position Embeddings" (lines 276 to 280) is not said there.
Ours are the perplexity of a byte at L over that at 4 L. For a token of four bytes they would be the
fourth power: 1 % for RoPE.
"""


def page() -> str:
    """The page: every sentence with its verdict."""
    lines, counts, source = [HEAD], {}, ""
    for one in SENTENCES:
        if one.source != source:
            source, heads = one.source, "| line | it says | rule | verdict | our number |"
            lines += [f"\n## {source}: {TITLES[source]}\n", heads, "|" + " --- |" * 5]
        verdict, number = one.check()
        counts[verdict] = counts.get(verdict, 0) + 1
        said = " ".join(one.said.split()) if verdict in (FAILS, OTHER) else plain(one.said)
        quoted = f"`{said}`" if verdict in (FAILS, OTHER) else f"“{said}”"
        cells = (str(one.line), quoted, one.rule, f"**{verdict}**", number)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    told = ", ".join(f"{verdict} {count}" for verdict, count in sorted(counts.items()))
    lines += ["", f"{len(SENTENCES)} sentences: {told}."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write ../tutorials.md and chart.png."""
    if sys.argv[1:]:
        look_up(Path(sys.argv[1]))
    text = page()
    (HERE.parent / "tutorials.md").write_text(text, encoding="utf-8")
    chart(HERE / "chart.png")
    print(text)


if __name__ == "__main__":
    main()
