"""bench.py: what it measures and how it counts, what it goes on with, and what it refuses."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import REPOSITORY, Project
from test_train import workplace

import bench
from configurable import BenchSettings, UserError, configure
from runs import device
from runs.device import CPU
from runs.log import flops_per_token

SMALL = [
    "--dataset=tiny",
    "--n_layer=1",
    "--n_head=2",
    "--n_embd=16",
    "--block_size=16",
    "--batch_size=4",
    "--eval_lengths=64",
    "--max_new_tokens=4",
    "--rounds=1",
    "--compile=False",
    "--device=cpu",
    "--dtype=float32",
]


@pytest.fixture(autouse=True)
def here(project: Project, tmp_path: Path) -> Iterator[None]:
    """Each test in a folder of its own, with the corpus `tiny`."""
    with workplace(project.folder / "data", tmp_path):
        yield


def run(*words: str) -> dict:
    """The rows of bench.json after the program was called with these words."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["bench.py", *SMALL, *words])
        bench.main()
    return json.loads(Path("out/bench/bench.json").read_text(encoding="utf-8"))["rows"]


def settings_of(*words: str) -> BenchSettings:
    s = configure(BenchSettings, [*SMALL, *words], "")[0]
    return s.warmed_up(s.max_iters)


# ---- the whole program


def test_every_part_of_every_scheme_has_a_row_and_stands_in_table_and_figure(
    capsys: pytest.CaptureFixture,
) -> None:
    rows = run("alibi", "learned", "--lengths=16,32")
    names = [
        f"{pos}, {part} at L = {length}"
        for length in (16, 32)
        for pos in ("alibi", "learned")
        for part in ("train", "test", "decode")
    ]
    assert list(rows) == names
    for name, row in rows.items():
        if name.startswith("learned, test"):
            assert set(row) == {"reason"} and "a text of 64 tokens needs more" in row["reason"]
            continue
        middle, low, high = row["ratio"]
        assert 0 < low <= middle <= high and row["tokens_per_s"] > 0 and 0 < row["use"] < 1
        assert row["kernels"] == [] and row["first_s"] > 0 and row["gflops"] > 0.1
        assert row["gib"] is None or 0 <= row["gib"] < 1
    assert rows["alibi, train at L = 16"]["attention"] == "dense"
    lengths = [rows[f"alibi, {part} at L = 32"]["length"] for part in ("train", "test", "decode")]
    assert lengths == [32, 64, 36]
    said, table = capsys.readouterr().out, Path("out/bench/table.txt").read_text(encoding="utf-8")
    assert table.strip() in said and all(f"\n{name} " in table for name in names)
    assert "learned defines 16 positions, a text of 64 tokens needs more" in table
    assert Path("out/bench/figure.png").stat().st_size > 1000


def test_what_is_measured_is_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []
    compare = bench.compare
    monkeypatch.setattr(
        bench, "compare", lambda s, part, *more: asked.append((s.pos, part)) or {"reason": "none"}
    )
    run("rope", "--only=train")
    monkeypatch.setattr(
        bench,
        "compare",
        lambda s, part, *more: asked.append((s.pos, part)) or compare(s, part, *more),
    )
    rows = run("rope", "alibi", "--only=train,decode")
    assert asked == [("rope", p) for p in ("train", "decode")] + [
        ("alibi", p) for p in ("train", "decode")
    ]
    assert rows["rope, train at L = 16"] == {"reason": "none"} and len(rows) == 4
    run("rope", "--only=train", "--overwrite=True")
    assert asked[4:] == [("rope", "train")]


def test_a_file_of_other_settings_is_refused_and_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench, "compare", lambda *_: {"reason": "none"})
    rows = run("rope", "--only=train")
    for other in ("--n_layer=2", "--eval_lengths=32", "--dtype=bfloat16", "--quick"):
        with pytest.raises(UserError, match="bench.json is of other settings: choose another"):
            run("rope", other)
    assert run("rope", "--only=train", "--lengths=16", "--format=md") == rows
    assert Path("out/bench/table.md").read_text(encoding="utf-8").count("| --- |") > 0


def test_running_out_of_memory_is_a_row_and_the_next_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def compare(s: BenchSettings, *_: object) -> dict:
        if s.pos == "rope":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return {"reason": "none"}

    monkeypatch.setattr(bench, "compare", compare)
    rows = run("rope", "alibi", "--only=train")
    said = "out of memory (2.00 GiB were asked for): lower batch_size"
    assert [row["reason"] for row in rows.values()] == [said, "none"]


def test_quick_is_small_where_nothing_else_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[BenchSettings] = []
    monkeypatch.setattr(bench, "compare", lambda s, *_: seen.append(s) or {"reason": "none"})
    monkeypatch.setattr(sys, "argv", ["bench.py", "--quick", "--dataset=tiny", "--n_embd=32"])
    bench.main()
    assert {(s.pos, s.n_embd, s.n_layer, s.block_size) for s in seen} == {("rope", 32, 1, 64)}


def test_help_names_the_settings_of_a_training_too() -> None:
    words = [sys.executable, REPOSITORY / "bench.py", "--help"]
    said = subprocess.run(words, capture_output=True, encoding="utf-8", check=True).stdout
    assert "--rounds=5" in said and "--only=train,test,decode" in said and "--n_layer=4" in said


# ---- how it counts


def test_ratios_rates_and_shares_follow_from_the_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """nope takes 2 s, the scheme 4 and then 8 s, the product 1 s; the first two turns do not count."""
    s, taken = settings_of("--pos=rope", "--rounds=2"), {"rope": 0, "nope": 0}

    def seconds(call: Callable, compute: device.Compute) -> float:
        call()
        if not hasattr(call, "__self__"):
            return 1.0
        pos = call.__self__.model.pos.text
        taken[pos] += 1
        return {"nope": 2.0, "rope": [100.0, 100.0, 4.0, 8.0, 8.0][taken["rope"] - 1]}[pos]

    monkeypatch.setattr(bench, "seconds", seconds)
    corpus = bench.training_corpus(s)
    row = bench.compare(s, "train", corpus, CPU)
    assert row["ratio"] == [0.375, 0.25, 0.5] and row["first_s"] == 100.0
    assert row["tokens_per_s"] == pytest.approx(4 * 16 / 6)
    assert row["gflops"] == pytest.approx(2 * 2048**3 / 1e9)
    model = bench.Subject(s, corpus, CPU).model
    rates = [flops_per_token(model, 16) * 4 * 16 / t / (2 * 2048**3) for t in (4, 8)]
    assert row["use"] == pytest.approx(np.median(rates))
    taken["rope"] = 0
    test = bench.compare(s, "test", corpus, CPU)
    tokens = 64 * (bench.BATCH_TOKENS // 64)
    assert test["tokens_per_s"] == pytest.approx(tokens / 6) and test["length"] == 64
    rates = [flops_per_token(model, 64) / 3 * tokens / t / (2 * 2048**3) for t in (4, 8)]
    assert test["use"] == pytest.approx(np.median(rates))


def test_the_parts_do_what_they_say() -> None:
    s = settings_of("--pos=rope")
    subject = bench.Subject(s, bench.training_corpus(s), CPU)
    before = {name: p.clone() for name, p in subject.model.named_parameters()}
    assert subject.train() == 64 == subject.train() and subject.training.step == 2
    assert any((p != before[name]).any() for name, p in subject.model.named_parameters())
    lengths: list[int] = []
    losses = subject.model.losses
    subject.model.losses = lambda idx, *more, **how: (
        lengths.append(idx.shape[1]) or losses(idx, *more, **how)
    )
    assert subject.test() == 64 * len(lengths) * (bench.BATCH_TOKENS // 64 // len(lengths))
    assert set(lengths) == {64} and subject.decode() == 4


def test_the_clock_sees_what_a_call_takes() -> None:
    assert 0.05 <= bench.seconds(lambda: time.sleep(0.05), CPU) < 5


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forgets a process's peak")
def test_memory_is_what_one_call_takes_and_not_what_was_there() -> None:
    held, size = torch.ones(2**23), 2**24  # 32 MiB are held, 64 MiB taken
    grown = bench.memory(lambda: torch.ones(size), CPU)
    again = bench.memory(lambda: torch.ones(2**10), CPU)
    assert held.sum() == 2**23 and 2**26 * 0.9 < grown < 2**26 * 1.5 and again < 2**25


def test_the_busiest_operation_is_named_first() -> None:
    a = torch.randn(300, 300)
    first, *others = bench.busiest(lambda: [a @ a for _ in range(20)], "cpu")
    assert "aten::mm" in first and first.split()[0].endswith("%") and len(others) <= 4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA card")
def test_a_card_is_measured_and_its_kernels_are_named() -> None:
    rows = run("rope", "--device=cuda", "--dtype=auto")
    for row in rows.values():
        assert row["kernels"] and row["gib"] > 0 and row["gflops"] > 100
