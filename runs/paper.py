"""Published numbers beside our own, and what our seeds say of each claim.

A .toml file (config/paper/) has the paper's table and its claims. A claim is a difference of two
losses and a limit, written before the runs: `left` minus `right`, each a name in the table and a
length, is `at_most` or `at_least` so many nats, or shares of texts without a mistake for tasks
(`exact_match`). A claim with a `reason` is not testable here. All lengths are multiples of the
training length L of the comparison, or of the largest size of a task that was trained. A row of the
table may name an extension, `extend`: of a model that was trained with it, or without any.
"""

import math
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

from configurable import UserError, check_shape, require
from runs import compare, formats
from runs.results import Result, rows_of, standard_error
from runs.tables import Page, legend, page, rates_table, scheme_tables, spread

Paper = dict[str, Any]  # the content of a file
Losses = dict[tuple[str, int], dict[int, float]]  # nats by name and N / L, then by seed

COLUMN = {"name": str, "length": float}  # of the table: N as the paper has it, and N / L
ROW = {"name": str, "scheme": str, "trained": int, "values": [str]}  # trained at that many L
ROW |= {"extend": (str, type(None))}
TABLE = {"title": str, "protocol": str, "columns": [COLUMN], "rows": [ROW]}
SHAPE = {"title": str, "table": TABLE, "claims": [{"says": str}]}
ADVICE = "see runs/paper.py and config/paper/alibi/claims.toml"


def read_paper(path: str) -> Paper:
    """What a file says of a paper; UserError if it cannot be read or does not fit together."""
    try:
        paper = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"paper={path} is missing or no TOML ({error}): {ADVICE}") from None
    check_shape(paper, SHAPE, path, ADVICE)
    rows, width = paper["table"]["rows"], len(paper["table"]["columns"])
    for row in rows:
        few = f"{path}: {row['name']} has {len(row['values'])} values for {width} columns"
        require(len(row["values"]) == width, few)
    names = {row["name"] for row in rows}
    for claim in paper["claims"]:
        what = "left and right (a name of the table and a length), and at_most or at_least"
        good = "reason" in claim or has_rule(claim, names)
        require(good, f"{path}: {claim['says']!r:.60} needs {what}")
    return paper


def has_rule(claim: dict[str, Any], names: set[str]) -> bool:
    """Whether a claim has two sides, of schemes with these names, and one limit."""
    limits = [claim[name] for name in ("at_most", "at_least") if name in claim]
    for side in (claim.get("left"), claim.get("right")):
        match side:
            case [str(name), int() | float()] if name in names:
                continue
        return False
    return len(limits) == 1 and isinstance(limits[0], int | float)


def comparison_tables(content: dict[str, Any], dataset: str = "") -> list[Page]:
    """All tables of a comparison, of the content of its results.json: the rates that were tried,
    the schemes and, if a paper stands beside them, its table and claims.
    """
    cells, rates, path = content["cells"], content.get("rates"), content.get("paper")
    pages = [rates_table(rates)] if rates else []
    pages += scheme_tables(cells, dataset)
    return [*pages, *(tables_of(path, cells) if path else [])]


def comparison_numbers(content: dict[str, Any], dataset: str = "") -> list[dict[str, Any]]:
    """What `comparison_tables` show, as numbers; "table" says in which one."""
    cells, path, lines = content["cells"], content.get("paper"), []
    for label, scheme in (content.get("rates") or {}).items():
        for one in scheme["tried"]:
            picked = one["learning_rate"] == scheme["picked"]
            about = {"table": "rates", "scheme": label, "picked": picked}
            lines.append(about | {name: one[name] for name in one if name not in ("run", "folder")})
    lines += [{"table": "schemes"} | line for line in formats.over_seeds(cells, dataset)]
    return [*lines, *(judged(path, cells) if path else [])]


def tables_of(path: str, cells: dict[str, list[Result]]) -> list[Page]:
    """The paper's table beside ours, and its claims. For `cells` see `compare.rows_by_seed`."""
    paper = read_paper(path)
    return [side_by_side(paper, *results_of(cells)), claims_table(paper, judged(path, cells))]


def results_of(cells: dict[str, list[Result]]) -> tuple[list[Result], int]:
    """The results that are there, and L, the shortest length that one was trained at."""
    found = [result for of in cells.values() for result in of if "rows" in result]
    return found, min((result["train_length"] for result in found), default=1)


def losses_of(paper: Paper, results: list[Result], train_length: int, protocol: str) -> Losses:
    """What one protocol measured; what is missing or undefined has none."""
    found: Losses = {}
    for line in paper["table"]["rows"]:
        extend, model = line.get("extend"), (line["scheme"], line["trained"] * train_length)
        fit = [r for r in results if (r["pos"], r["train_length"]) == model]
        done = [r | {"extend": extend} for r in fit if r.get("extend") in (None, extend)]
        dataset = done[0]["rows"][0]["dataset"] if done else ""
        for result, rows in zip(done, rows_of(done, dataset), strict=True):
            for (name, length), row in rows.items():
                if name == protocol and row["nats"] is not None:
                    place = line["name"], length / row.get("trained", train_length)
                    share = row["exact"] / row["texts"] if name == "exact_match" else row["nats"]
                    found.setdefault(place, {})[result["seed"]] = share
    return found


def side_by_side(paper: Paper, results: list[Result], train_length: int) -> Page:
    """The paper's table, and below each of its lines ours: mean ± standard deviation over seeds."""
    table = paper["table"]
    losses = losses_of(paper, results, train_length, table["protocol"])
    lines = [["", "", *(f"{c['name']} | {c['length']:g} L" for c in table["columns"])]]
    for row in table["rows"]:
        lines.append([row["name"], "theirs", *row["values"]])
        ours = [[*losses.get((row["name"], c["length"]), {}).values()] for c in table["columns"]]
        lines.append(["", "ours", *(spread(nats, len(nats), ".3f") for nats in ours)])
    unit = "share of texts without a mistake" if table["protocol"] == "exact_match" else "nats"
    return page(f"{paper['title']}: {table['title']} | ours: {table['protocol']}, {unit}", lines)


def judged(path: str, cells: dict[str, list[Result]]) -> list[dict[str, str]]:
    """Every claim with its rule, the interval expected, our number and the verdict, in words."""
    paper, (results, train_length) = read_paper(path), results_of(cells)
    seeds, lines = len({result["seed"] for of in cells.values() for result in of}), []
    for number, claim in enumerate(paper["claims"], 1):
        protocol = claim.get("protocol", "fixed_targets")
        found, verdict = judge(claim, losses_of(paper, results, train_length, protocol))
        about = {"table": "claims", "claim": f"{number}. {claim['says']}", "rule": rule(claim)}
        about |= {"expected": expected(claim, seeds), "left - right": found, "verdict": verdict}
        lines.append(about)
    return lines


def claims_table(paper: Paper, claims: list[dict[str, str]]) -> Page:
    """Every claim, and below it the rest of what `judged` says."""
    names = ["expected", "left - right", "verdict"]
    lines = [["", *names, ""]]
    for claim in claims:
        rest = [claim[name] for name in names]
        lines += [[claim["claim"]], [f"   {claim['rule']}", *rest]]
    return page(f"claims of {paper['title']}", lines, "", legend(judge))


def rule(claim: dict[str, Any]) -> str:
    """The rule of a claim in words; empty if there is none."""
    if "reason" in claim:
        return ""
    (left, n), (right, m) = claim["left"], claim["right"]
    least = "at_least" in claim
    limit = f"at least {claim['at_least']:g}" if least else f"at most {claim['at_most']:g}"
    where = f", {claim['protocol']}" if "protocol" in claim else ""
    return f"{left} at {n} L - {right} at {m} L: {limit}{where}"


def expected(claim: dict[str, Any], seeds: int) -> str:
    """Half of the interval that a spread measured before, `sd`, lets expect of so many seeds."""
    if "sd" not in claim or seeds < 2:
        return ""
    return f"± {compare.t_point(seeds - 1) * claim['sd'] / math.sqrt(seeds):.3f}"


def judge(claim: dict[str, Any], losses: Losses) -> tuple[str, str]:
    """Our number with its interval, and the verdict.

    expected      half of the interval that a spread measured before the runs lets expect
    left - right  paired by seed: mean and half of Student's 95 % interval over seeds
    reproduced or contradicted: the whole interval is on one side of the limit; else undecided
    """
    if "reason" in claim:
        return "", f"not testable at this size: {claim['reason']}"
    left, right = (losses.get((name, n), {}) for name, n in (claim["left"], claim["right"]))
    if not (left and right):
        return "", "not tested here"
    values = [left[seed] - right[seed] for seed in sorted(left.keys() & right.keys())]
    if len(values) < 2:
        return "", f"undecided: {len(values)} seeds have both losses"
    mean, half = float(np.mean(values)), compare.t_point(len(values) - 1) * standard_error(values)
    sign, limit = (1, claim["at_most"]) if "at_most" in claim else (-1, -claim["at_least"])
    beyond = sign * mean - limit
    verdict = "undecided" if abs(beyond) <= half else "contradicted" if beyond > 0 else "reproduced"
    return f"{mean:+.3f} ± {half:.3f} (n = {len(values)})", verdict
