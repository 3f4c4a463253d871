"""Four claims that papers contradict each other about, held against the runs of the board.

    python results/contested/contested.py [FOLDER]    # README.md, and a page for each claim

It reads results/board (three seeds of each scheme, books and recall) and results/extend/reach.json,
and notes.md: of each claim what papers say, then (after ---) the answer. The rules were written
after these runs: they say what the runs show, and are no prediction.
"""

import importlib.util
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))
from runs.compare import LEVEL, holm, p_value, t_point  # noqa: E402
from runs.paper import judge, rule  # noqa: E402
from runs.results import rows_of, standard_error  # noqa: E402

L = 128
HOLDS = {"reproduced": "yes", "contradicted": "no"}  # not all of these are claims of a paper
BELOW = "[What the columns mean](README.md)"
MODULES = {"board": "board/board.py", "reach": "extend/reach.py"}


def program(name: str) -> object:
    """Another program of results/ as a module."""
    spec = importlib.util.spec_from_file_location(name, HERE.parent / MODULES[name])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


board, reach = program("board"), program("reach")


def of_board() -> tuple[dict, dict]:
    """Losses on books by (scheme, N / L) and seed, and the share of right answers to questions
    1 L to 16 L back, in texts of 32 L, by (scheme, 32) and seed.
    """
    losses, answers = {}, {}
    for pos, results in board.read("books").items():
        for result, rows in zip(results, rows_of(results, "books"), strict=True):
            for (protocol, n), row in rows.items():
                if protocol == "fixed_targets" and row["nats"] is not None:
                    losses.setdefault((pos, n // L), {})[result["seed"]] = row["nats"]
    for pos, results in board.read("recall").items():
        answers[pos, 32] = {result["seed"]: board.beyond(result) for result in results}
    return losses, answers


def of_extensions() -> tuple[dict, dict]:
    """The same of a RoPE model under extensions of reach.json, losses by run: two have seed 3."""
    content, losses, answers = json.loads((HERE.parent / "extend/reach.json").read_text()), {}, {}
    for run in content["books"]:
        for row in run["rows"]:
            if row["nats"] is not None:
                place = (row["extend"] or "none", row["length"] // L)
                losses.setdefault(place, {})[run["run"]] = row["nats"]
    for run in content["recall"]:
        for extend in {row["extend"] for row in run["rows"]}:
            curve = reach.answers.curve(reach.tested(run, extend))
            far = [right / count for n, (right, count) in curve.items() if L <= n < 16 * L]
            answers.setdefault((extend or "none", 32), {})[run["seed"]] = float(np.mean(far))
    return losses, answers


def loss(says: str, left: list, right: list, **limit: float) -> dict:
    """A claim about losses on books."""
    return {"says": says, "left": left, "right": right, "what": "nats", **limit}


def read(says: str, left: str, right: str, **limit: float) -> dict:
    """A claim about the share of right answers beyond L."""
    return {"says": says, "left": [left, 32], "right": [right, 32], "what": "answers", **limit}


QUESTIONS = [
    (
        "kerple-and-fire.md",
        "KERPLE and FIRE against ALiBi",
        ["alibi", "kerple", "fire"],
        [
            loss("KERPLE holds (KERPLE)", ["kerple", 32], ["kerple", 1], at_most=0.05),
            loss("FIRE holds (FIRE)", ["fire", 32], ["fire", 1], at_most=0.05),
            loss("ALiBi holds (all)", ["alibi", 32], ["alibi", 1], at_most=0.05),
            loss(
                "KERPLE beats ALiBi at 32 L (KERPLE)",
                ["kerple", 32],
                ["alibi", 32],
                at_most=0,
            ),
            loss("FIRE beats ALiBi at 32 L (FIRE)", ["fire", 32], ["alibi", 32], at_most=0),
            loss("KERPLE beats ALiBi at L", ["kerple", 1], ["alibi", 1], at_most=0),
            loss("FIRE beats ALiBi at L", ["fire", 1], ["alibi", 1], at_most=0),
            read("KERPLE answers more than ALiBi", "kerple", "alibi", at_least=0),
            read("FIRE answers more than ALiBi", "fire", "alibi", at_least=0),
        ],
        of_board,
    ),
    (
        "log-n.md",
        "Log-n at short L",
        ["rope", "rope + logn"],
        [
            loss("It costs nothing at L", ["rope + logn", 1], ["rope", 1], at_most=0.01),
            loss("It helps at 2 L", ["rope + logn", 2], ["rope", 2], at_most=0),
            loss("It helps at 16 L", ["rope + logn", 16], ["rope", 16], at_most=0),
            loss(
                "It holds up to 16 L",
                ["rope + logn", 16],
                ["rope + logn", 1],
                at_most=0.12,
            ),
            read("It answers more", "rope + logn", "rope", at_least=0),
        ],
        of_board,
    ),
    (
        "extensions.md",
        "Does any extension without training keep reach?",
        ["none", "pi", "ntk", "yarn", "self_extend", "leaky_rerope", "streaming"],
        [
            *(
                read(f"{name} answers more than none", name, "none", at_least=0)
                for name in ("pi", "ntk", "yarn", "self_extend", "leaky_rerope", "streaming")
            ),
            *(
                loss(f"{name} loses at most 0.05 nats at 4 L", [name, 4], ["none", 1], at_most=0.05)
                for name in ("pi", "ntk", "yarn", "self_extend", "leaky_rerope", "streaming")
            ),
        ],
        of_extensions,
    ),
    (
        "sinusoids.md",
        "Are sinusoids really that bad in length?",
        ["sinusoidal", "learned", "rope", "alibi"],
        [
            loss("They are as good as RoPE at L", ["sinusoidal", 1], ["rope", 1], at_most=0.01),
            loss("They are as good as ALiBi at L", ["sinusoidal", 1], ["alibi", 1], at_most=0.01),
            loss(
                "as a learned table",
                ["sinusoidal", 1],
                ["learned", 1],
                at_most=0.01,
            ),
            loss(
                "They break at 2 L",
                ["sinusoidal", 2],
                ["sinusoidal", 1],
                at_least=0.5,
            ),
            loss("They are worse than RoPE at 2 L", ["sinusoidal", 2], ["rope", 2], at_least=0),
            loss("and at 32 L", ["sinusoidal", 32], ["rope", 32], at_least=0),
            read("They answer less than RoPE", "sinusoidal", "rope", at_most=0),
        ],
        of_board,
    ),
]


def cell(values: dict[int, float]) -> str:
    """Mean and half of Student's 95 % interval over seeds."""
    nats = [value for value in values.values() if not math.isnan(value)]
    if len(nats) < 2:
        return f"{nats[0]:.3f} (one seed)" if nats else ""
    return f"{np.mean(nats):.3f} ± {t_point(len(nats) - 1) * standard_error(nats):.3f}"


def table(lines: list[list[str]]) -> str:
    """A Markdown table."""
    head, *rest = lines
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rest])


def against_chance(claim: dict, of: dict) -> float | None:
    """Student's p for a mean over seeds that is the limit of a claim; None of one seed."""
    left, right = of[tuple(claim["left"])], of[tuple(claim["right"])]
    values = [left[seed] - right[seed] for seed in sorted(left.keys() & right.keys())]
    if len(values) < 2:
        return None
    beyond = float(np.mean(values)) - claim.get("at_most", claim.get("at_least"))
    return p_value(beyond / standard_error(values), len(values) - 1)


def page(names: list[str], claims: list[dict], source: Callable) -> str:
    """The numbers of one question, and what follows from each rule."""
    losses, answers = source()
    lengths = [n for n in (1, 2, 4, 16, 32) if any((name, n) in losses for name in names)]
    lines = [["", *(f"loss at {n} L" for n in lengths), "answers 1 L to 16 L back"]]
    for name in names:
        own = [cell(losses.get((name, n), {})) for n in lengths]
        lines.append([f"`{name}`", *own, cell(answers.get((name, 32), {}))])
    kinds = {"nats": losses, "answers": answers}
    chances = {c["says"]: against_chance(c, kinds[c["what"]]) for c in claims}
    together = holm({says: p for says, p in chances.items() if p is not None})
    judged = [["", "rule", "left − right", "p, Holm", "does it hold?"]]
    for claim in claims:
        what, p = claim["what"], together.get(claim["says"])
        said = rule(claim).replace(" at 32 L", "") if what == "answers" else rule(claim)
        found, verdict = judge(claim, kinds[what])
        sure = HOLDS.get(verdict, verdict) if p is not None and p <= LEVEL else "undecided"
        judged.append([claim["says"], said, found, "" if p is None else f"{p:.2g}", sure])
    return f"{table(lines)}\n\n{table(judged)}"


def reaches(names: list[str]) -> str:
    """The reach of extensions, and what the rules of ../extend call it."""
    content = json.loads((HERE.parent / "extend/reach.json").read_text())
    lines = {line["name"]: line for line in reach.table(content)}
    shown = [["", "reach of each seed", "reach in texts of 4,096", "by the rules of ../extend"]]
    for name in names:
        own = (", ".join(map(str, lines[name][key])) for key in ("reach", "far"))
        shown.append([f"`{name}`", *own, reach.kind(lines[name], lines["none"])])
    return table(shown)


def main() -> None:
    """Write the pages: the text of notes.md, with the tables of each question in it."""
    folder = Path(sys.argv[1]) if sys.argv[1:] else HERE
    opening, *notes = (HERE / "notes.md").read_text(encoding="utf-8").split("\n## ")
    first = [opening]
    for note, (file, title, names, *rest) in zip(notes, QUESTIONS, strict=True):
        head, _, text = note.partition("\n")
        if head != title:
            raise SystemExit(f"notes.md has {head!r} in the place of {title!r}")
        said, answer = text.strip().split("\n---\n")
        tables = page(names, *rest)
        if rest[1] is of_extensions:
            tables = f"{tables}\n\n{reaches(names)}"
        whole = f"# {title}\n\n{said.strip()}\n\n{tables}\n\n{answer.strip()}\n\n{BELOW}\n"
        (folder / file).write_text(whole, encoding="utf-8")
        first.append(f"## [{title}]({file})\n\n{answer.strip()}")
    (folder / "README.md").write_text("\n\n".join(first) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
