"""Published findings on context extension, each judged by a rule that was written before the runs.

    python results/extend/findings.py RESULTS.json > results/extend/findings.md

`results/extend/collect.py` makes RESULTS.json from run folders. A difference is a mean over seeds,
paired by seed, with a 95 % t-interval. `reproduced`: the whole interval lies on the side that was
published. `contradicted`: the whole interval lies on the other side. `not testable at this size`:
the interval holds zero, or there are fewer than 2 seeds. A finding that asks for several
comparisons is contradicted if one of them is, and reproduced if all are.
"""

import json
import math
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from runs.compare import t_point  # noqa: E402

Losses = dict[str, dict[str, dict[str, float]]]  # {what: {seed: {length: nats}}}
L = 128
FACTORS = (2, 4, 8, 16)


def verdict(differences: list[float]) -> tuple[str, str]:
    """What one comparison shows, and its interval.

    A difference above zero agrees with what was published.
    """
    n = len(differences)
    if n < 2:
        return "not testable", "fewer than two seeds"
    mean, half = (
        np.mean(differences),
        t_point(n - 1) * np.std(differences, ddof=1) / math.sqrt(n),
    )
    word = (
        "reproduced" if mean - half > 0 else "contradicted" if mean + half < 0 else "not testable"
    )
    return word, f"{mean:+.3f} [{mean - half:+.3f}, {mean + half:+.3f}]"


def compare(losses: Losses, worse: str, better: str, factor: int) -> list[float]:
    """loss(worse) - loss(better) at `factor` x the training length, for each seed with both."""
    n = str(factor * L)
    return [
        of[n] - losses[better][seed][n]
        for seed, of in losses.get(worse, {}).items()
        if n in of and n in losses.get(better, {}).get(seed, {})
    ]


def gained(losses: Losses, method: str, factor: int) -> dict[str, float]:
    """What a short fine-tune at that factor takes off the loss of a method, by seed."""
    n, tuned = str(factor * L), losses.get(f"{method} tuned", {})
    return {seed: losses[method][seed][n] - of[n] for seed, of in tuned.items()}


Line = tuple[str, str, str, str]  # finding, comparison, verdict, interval


def judged(losses: Losses) -> list[Line]:
    """A line for every comparison."""
    found = []
    for factor in FACTORS:  # PI's Table 1 and others: raw RoPE fails past L
        for method in ("pi", "ntk", "yarn", "llama3"):
            case = "raw RoPE is worst", f"none - {method}, {factor} L"
            found.append((*case, *verdict(compare(losses, "none", method, factor))))
    for factor in (2, 4):  # bloc97 2023, YaRN's Table 1
        for method in ("ntk", "yarn"):
            case = "at small factors NTK and YaRN beat PI untrained", f"pi - {method}, {factor} L"
            found.append((*case, *verdict(compare(losses, "pi", method, factor))))
    pi = gained(losses, "pi", 4)
    for method in ("none", "ntk", "yarn"):  # PI's 1,000 steps
        other = gained(losses, method, 4)
        case = "PI gains most from a short fine-tune", f"gain of pi - gain of {method}, 4 L"
        found.append((*case, *verdict([pi[seed] - other[seed] for seed in pi if seed in other])))
    return [*found, *(free_below(losses, method) for method in ("dynamic_ntk", "dynamic_yarn"))]


def free_below(losses: Losses, method: str) -> Line:
    """Whether a method costs nothing up to L: it does if any loss differs by more than 1e-6."""
    differences = [
        abs(nats - losses["none"][seed][n])
        for seed, of in losses.get(method, {}).items()
        for n, nats in of.items()
        if int(n) <= L
    ]
    largest = max(differences, default=math.nan)
    word = "reproduced" if largest <= 1e-6 else "contradicted"
    word = "not testable" if math.isnan(largest) else word
    case = "dynamic methods cost nothing below L", f"{method} - none, N <= L"
    return *case, word, f"largest {largest:.1e}"


def main() -> None:
    """Print a table of findings, then of comparisons."""
    rows = judged(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["losses"])
    print("# Published findings on context extension\n")
    print("Rules: results/extend/findings.py. Nats, paired by seed.\n")
    print("| finding | verdict |\n| --- | --- |")
    for finding in dict.fromkeys(row[0] for row in rows):
        words = {row[2] for row in rows if row[0] == finding}
        word = (
            "contradicted"
            if "contradicted" in words
            else "reproduced"
            if words == {"reproduced"}
            else "not testable at this size"
        )
        print(f"| {finding} | {word} |")
    print("\n| finding | comparison | difference [95 % over seeds] | verdict |")
    print("| --- | --- | --- | --- |")
    for finding, comparison, word, interval in rows:
        print(f"| {finding} | {comparison} | {interval} | {word} |")


if __name__ == "__main__":
    main()
