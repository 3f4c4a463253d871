"""Papers' numbers beside ours, and a verdict on each claim, from rows.csv.xz and published.toml.

    python -m tools.compare [alibi nope randomized drope]

A difference is taken within each seed. Its interval is Student's at 95 % over seeds, joined (root
of the sum of squares) with that over the blocks of the test text, which all seeds share. A claim is
reproduced or contradicted if the whole interval lies on one side of its limit, else undecided.
"""

import sys
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

FOLDER = Path(__file__).resolve().parents[1] / "results/paper"
TRAINED = {"fixed_targets": 128, "nonoverlapping": 128, "exact_match": 20}  # what "1 L" is


def half_interval(values: np.ndarray) -> float:
    """Half of Student's 95 % interval of the mean of values (n,)."""
    return stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))


def select(rows: pd.DataFrame, scheme: str, length: float, protocol: str) -> pd.DataFrame:
    """The rows of one scheme at one multiple of the trained length, a line for each seed."""
    tokens = round(length * TRAINED[protocol])
    wanted = (rows.pos == scheme) & (rows.length == tokens) & (rows.protocol == protocol)
    return rows[wanted].set_index("seed").sort_index()


def difference(left: pd.DataFrame, right: pd.DataFrame, protocol: str) -> tuple[float, float]:
    """Mean of left - right over seeds, and half of its interval."""
    if protocol == "exact_match":  # shares of words; their error over words is in the seeds' spread
        by_seed = left.accuracy - right.accuracy
        return by_seed.mean(), half_interval(by_seed.to_numpy())
    blocks = np.array(  # (seeds, blocks)
        [
            np.array(left.block_nats[seed].split(), float)
            - np.array(right.block_nats[seed].split(), float)
            for seed in left.index
        ]
    )
    over_seeds, over_text = half_interval(blocks.mean(axis=1)), half_interval(blocks.mean(axis=0))
    return blocks.mean(), np.hypot(over_seeds, over_text)


def verdict(claim: dict, mean: float, half: float) -> str:
    """Whether mean ± half lies on the claim's side of its limit, on the other, or on both."""
    if "not_tested" in claim:
        return "not tested"
    if "at_most" in claim:
        distance = claim["at_most"] - mean
    else:
        distance = mean - claim["at_least"]
    if abs(distance) < half:
        return "undecided"
    return "reproduced" if distance > 0 else "contradicted"


def main() -> None:
    """Print the papers that the command line names, by default all."""
    rows = pd.read_csv(FOLDER / "rows.csv.xz")
    papers = tomllib.loads((FOLDER / "published.toml").read_text(encoding="utf-8"))
    for name in sys.argv[1:] or papers:
        paper = papers[name]
        ours = rows[rows.part == name]
        print(f"\n{paper['title']}; ours: {paper['protocol']}")
        value = "accuracy" if paper["protocol"] == "exact_match" else "nats"
        for scheme, length, theirs in paper["table"]:
            found = select(ours, scheme, length, paper["protocol"])[value]
            measured = f"{found.mean():.3f}" if len(found) else "not measured"
            print(f"  {scheme} at {length} L: theirs {theirs}, ours {measured}")
        for claim in paper["claims"]:
            protocol = claim.get("protocol", paper["protocol"])
            left, right = (select(ours, *claim[side], protocol) for side in ("left", "right"))
            mean, half = difference(left, right, protocol)
            print(f"{verdict(claim, mean, half):13} {mean:+.3f} ± {half:.4f}  {claim['says']}")


if __name__ == "__main__":
    main()
