"""Papers' numbers beside ours, and a verdict on each claim of results/paper/published.toml.

    python -m tools.compare [alibi nope randomized drope]
    python -m tools.compare alibi --rows=out/ablate-.../rows.csv.xz      your own runs

A difference is taken within each seed, with the interval of tables.statistics.paired_interval. A
claim is reproduced or contradicted if the whole interval lies on one side of its limit, else
undecided, as with fewer than three seeds.
"""

import argparse
import tomllib
from pathlib import Path

import pandas as pd

from common.errors import UserError, run_program
from tables.records import load_rows
from tables.statistics import paired_interval

FOLDER = Path(__file__).resolve().parents[1] / "results/paper"
LETTERS = 20  # of the words trained on, which "1 L" is in exact_match


def select(rows: pd.DataFrame, scheme: str, length: float, protocol: str) -> pd.DataFrame:
    """By seed, what one scheme has at one multiple of the training length: the nats in each block
    of the test text, (seeds, blocks), or the share of words without a mistake, (seeds, 1).
    """
    trained = LETTERS if protocol == "exact_match" else rows.block_size
    wanted = (rows.pos == scheme) & (rows.protocol == protocol) & rows.nats.notna()
    found = rows[wanted & (rows.length == round(length * trained))].set_index("seed")
    if not found.index.is_unique:
        raise UserError(f"several runs of {scheme} have the same seed: leave one of them in --rows")
    if protocol == "exact_match":
        return (found.exact / found.texts).to_frame()
    return pd.DataFrame(found.block_nats.tolist(), found.index)


def verdict(claim: dict, pair: pd.Series) -> str:
    """Whether a `paired_interval` is on the claim's side of its limit, on the other, or on both."""
    if "not_tested" in claim:
        return "not tested"
    if "at_most" in claim:
        distance = claim["at_most"] - pair.difference
    else:
        distance = pair.difference - claim["at_least"]
    if pair.shared < 3 or abs(distance) < pair.error:
        return "undecided"
    return "reproduced" if distance > 0 else "contradicted"


def print_paper(paper: dict, rows: pd.DataFrame) -> None:
    """Print a paper's numbers beside ours, and a line for each claim."""
    protocol = paper["protocol"]
    unit = "share right" if protocol == "exact_match" else "nats"
    print(f"\n{paper['title']}; ours: {protocol}")
    for scheme, length, theirs in paper["table"]:
        found = select(rows, scheme, length, protocol)
        ours = "not measured"
        if len(found):
            ours = f"{found.to_numpy().mean():.3f} {unit} (seeds: {len(found)})"
        print(f"  {scheme} at {length} L: theirs {theirs} {paper['unit']}, ours {ours}")
    for claim in paper["claims"]:
        of_claim = claim.get("protocol", protocol)
        left = select(rows, *claim["left"], of_claim)
        right = select(rows, *claim["right"], of_claim)
        pair = paired_interval(left - right)
        if not pair.shared:
            print(f"not measured  {claim['says']}")
            continue
        measured = f"{pair.difference:+.3f} ± {pair.error:.4f}"
        print(f"{verdict(claim, pair):13} {measured}  {claim['says']}")


def main() -> None:
    """Print the papers that the command line names, by default all."""
    papers = tomllib.loads((FOLDER / "published.toml").read_text(encoding="utf-8"))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("papers", nargs="*", default=list(papers), help=", ".join(papers))
    parser.add_argument("--rows", help="a table of your own runs, by default results/paper's")
    options = parser.parse_args()
    rows = load_rows(options.rows or FOLDER / "rows.csv.xz")
    for name in options.papers:
        if name not in papers:
            raise UserError(f"there is no paper {name}; there are {', '.join(papers)}")
        print_paper(papers[name], rows if options.rows else rows[rows.part == name])


if __name__ == "__main__":
    run_program(main)
