"""The board in results/board: what its program makes of results, and that board.md is its output."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
BOARD = ROOT / "results" / "board"


@pytest.fixture
def board(tmp_path: Path) -> ModuleType:
    """The program as a module that reads and writes in tmp_path."""
    spec = importlib.util.spec_from_file_location("board", BOARD / "board.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.HERE = tmp_path
    counted = {"128": {"1": 0.9}, "4096": {"128": 0.4, "2048": 0.6}}
    counted |= {module.ORDERED: {"4096": {"128": 0.8}}}
    (tmp_path / "counted.json").write_text(json.dumps(counted), encoding="utf-8")
    return module


def cell(dataset: str, seed: int, rows: list[dict], **more: Any) -> dict:
    """The result of a run on one corpus."""
    about = {"dataset": dataset, "extend": None, "windows": 4, "split_sha256": "s", "factor": None}
    about |= {"step": 9, "checkpoint": "c", "stride": None, "dtype": "bfloat16"}
    settings = {"learning_rate": 0.002}
    result = {"seed": seed, "parameters": 800_000, "settings": settings}
    return result | {"rows": [about | row for row in rows]} | more


def on_books(seed: int, at_l: float, far: float | None) -> dict:
    """Losses at L and at 32 L; None: it diverged."""
    noise = [0.01 * seed, -0.01 * seed, 0.02, -0.02]
    row = {"protocol": "fixed_targets", "targets": "t", "stderr": 0.01}
    rows = [row | {"length": 128, "nats": at_l, "block_nats": [at_l] * 4}]
    end = {"nats": None, "diverged": True, "reason": "diverged"}
    if far is not None:
        end = {"nats": far, "block_nats": [far + x for x in noise]}
    return cell("books", seed, [*rows, row | {"length": 4096} | end])


def on_recall(seed: int, right: list[int], inside: float = 0.99) -> dict:
    """Answers in texts of L and of 32 L: 1,000 in each bin of distances, from 1, 2, 4 ... on."""
    row = {"protocol": "recall", "targets": None, "nats": 0.1, "trained": 128, "chance": 0.25}
    edges = [2**k for k in range(len(right) + 1)]
    bins = {"edges": edges, "counts": [1000] * len(right), "right": right}
    near = {"edges": edges[:8], "counts": [1000] * 7, "right": right[:7]}
    rows = [row | {"length": 128, "accuracy": inside, "by_distance": near}]
    return cell(
        "recall", seed, [*rows, row | {"length": 4096, "accuracy": 0.7, "by_distance": bins}]
    )


def write(folder: Path, name: str, cells: dict[str, list[dict]]) -> None:
    """A results.json as ablate.py writes it."""
    (folder / name).mkdir(parents=True)
    named = {pos: [{**result, "pos": pos} for result in of] for pos, of in cells.items()}
    (folder / name / "results.json").write_text(json.dumps({"cells": named}))


WINDOW = [990] * 7 + [250] * 5  # reads 128 tokens back, and guesses beyond
FAR = [990] * 10 + [500] * 2  # reads 1,024


def test_a_window_and_a_far_reader_differ_on_the_second_axis_alone(board, tmp_path, capsys):
    seeds = (1, 2, 3)
    stable = {pos: [on_books(s, 1.5, 1.49 + s / 1000) for s in seeds] for pos in ("alibi", "fox")}
    breaks = {"rope": [on_books(s, 1.45, 4.0 + s / 100) for s in seeds]}
    write(tmp_path, "books", stable | breaks)
    recall = {"alibi": [on_recall(s, WINDOW) for s in seeds]}
    recall |= {"fox": [on_recall(s, FAR) for s in seeds]}
    recall |= {"rope": [on_recall(1, WINDOW), *(on_recall(s, WINDOW, 0.9) for s in (2, 3))]}
    write(tmp_path, "recall", recall)
    board.main()
    text = (tmp_path / "board.md").read_text()
    assert capsys.readouterr().out == text
    lines = {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `")}
    assert [*lines] == ["fox", "alibi", "rope"]  # farthest first
    assert "1024, 1024, 1024" in lines["fox"] and "stable; reads beyond L" in lines["fox"]
    assert "128, 128, 128" in lines["alibi"] and "stable; reads at most L" in lines["alibi"]
    assert "128, not learned, not learned" in lines["rope"]
    assert "breaks; recall not learned" in lines["rope"] and "+2.570" in lines["rope"]
    ahead = text[text.index("Reads farther") :]
    assert "- `fox`: `alibi`, `rope`" in ahead and "- `alibi`: `rope`" in ahead
    assert ahead.count("- `rope`") == 0  # one seed of three as good as alibi is not ahead of it
    assert (tmp_path / "board.png").stat().st_size > 10_000


def test_a_scheme_that_diverged_is_not_called_stable(board, tmp_path):
    write(tmp_path, "books", {"nope": [on_books(s, 2.0, None if s == 2 else 2.0) for s in (1, 2)]})
    write(tmp_path, "recall", {"nope": [on_recall(s, WINDOW, 0.25) for s in (1, 2)]})
    board.main()
    text = (tmp_path / "board.md").read_text()
    assert "+inf" in text and "breaks; recall not learned" in text


def test_a_scheme_with_one_seed_has_no_rank(board, tmp_path):
    write(tmp_path, "books", {"nope": [on_books(s, 2.0, 2.0) for s in (1, 2)]})
    write(tmp_path, "recall", {"nope": [on_recall(s, WINDOW) for s in (1, 2)]})
    write(tmp_path, "screening/books", {"cope": [on_books(1, 1.5, 1.5)]})
    write(tmp_path, "screening/recall", {"cope": [on_recall(1, FAR)]})
    board.main()
    line = next(t for t in (tmp_path / "board.md").read_text().splitlines() if "`cope`" in t)
    assert line.rstrip("| ").endswith("screening") and "1024" in line


@pytest.mark.skipif(not (BOARD / "board.md").exists(), reason="the board has no results yet")
def test_the_board_is_what_its_program_makes_of_the_results_beside_it(board, monkeypatch, tmp_path):
    for path in [*BOARD.rglob("results.json"), BOARD / "speed/bench.json"]:
        copy = tmp_path / path.relative_to(BOARD)
        copy.parent.mkdir(parents=True)
        copy.write_bytes(path.read_bytes())
    (tmp_path / "counted.json").write_bytes((BOARD / "counted.json").read_bytes())
    board.main()
    assert (tmp_path / "board.md").read_text() == (BOARD / "board.md").read_text()


def test_the_pages_of_contested_claims_are_what_their_program_writes(tmp_path):
    folder = ROOT / "results/contested"
    run = [sys.executable, str(folder / "contested.py"), str(tmp_path)]
    subprocess.run(run, check=True)
    made = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    assert len(made) == 5
    for name, text in made.items():
        assert text == (folder / name).read_text(encoding="utf-8")


def test_the_page_of_tutorials_has_the_verdicts_that_its_program_finds():
    path = ROOT / "results/tutorials/check.py"
    spec = importlib.util.spec_from_file_location("check", path)
    check = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(check)
    rising = check.judged(0.06, 0.005, "", True), check.judged(0.06, 0.02, "", True)
    assert [verdict for verdict, _ in rising] == ["contradicted", "undecided"]
    assert check.fails("1 / 0")() == ("does not run", "ZeroDivisionError: division by zero")
    shown = (ROOT / "results/tutorials.md").read_text(encoding="utf-8").splitlines()
    found = check.page().splitlines()
    verdicts = [[line.split(" | ")[:4] for line in lines] for lines in (shown, found)]
    assert verdicts[0] == verdicts[1] and shown[-1] == found[-1]
