"""Comparing: which cells are trained, what a failed or interrupted one does to the rest, what is written."""

import itertools
import math
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from conftest import copy_as_seed, corpus_of_programs, written

import ablate
from common.errors import UserError
from common.files import read_json, write_json
from configurable import AblateSettings, TrainSettings, configure, read_arguments, to_argv
from run.log import log_comparison
from tables import records
from train import final_settings

NAME = f"test_ablate_{os.getpid()}"  # of a small corpus of bytes in data/
TINY = [f"--dataset={NAME}", "--n_layer=1", "--n_head=2", "--n_embd=16", "--block_size=32"]
TINY += ["--batch_size=2", "--max_iters=2", "--eval_lengths=32,64", "--compile=False"]
TINY += ["--device=cpu", "--dtype=float32"]


@pytest.fixture(scope="module", autouse=True)
def corpus():
    """The corpus, for as long as these tests run."""
    with corpus_of_programs(NAME):
        yield


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The run folders are made in a folder of the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


@pytest.fixture(scope="module")
def finished(corpus, tmp_path_factory):
    """The folder of a run of nope, seed 1, which tests copy: training takes longest."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("OMP_NUM_THREADS", "1")
        assert compare(patch, "nope", "--seeds=1") == 0
    [run] = folder.glob("out/nope-*")
    return run


def copy_run(finished: Path, seed: int = 1) -> None:
    """Copy the run of `finished` into the folder of the test, as that of another seed."""
    [cell] = plan("nope", f"--seeds={seed}")
    copy_as_seed(finished, cell.folder, seed)


def plan(*words: str) -> list[ablate.Cell]:
    typed, schemes = read_arguments(AblateSettings, [*TINY, *words])
    return ablate.make_cells(schemes, typed)


def compare(monkeypatch, *words: str) -> int:
    """ablate.py on a command line."""
    monkeypatch.setattr(sys, "argv", ["ablate.py", *TINY, *words])
    return ablate.main()


# ---- the plan


def test_the_cells_are_schemes_by_seeds_those_of_the_first_seed_first():
    cells = plan("rope", "alibi", "rope --qk_norm=True", "--seeds=5,6")
    labels = ["rope", "alibi", "rope --qk_norm=True"]
    assert [cell.name for cell in cells] == [f"{x}, seed {s}" for s in (5, 6) for x in labels]
    assert [cell.settings.qk_norm for cell in cells] == [False, False, True] * 2
    assert len({cell.folder for cell in cells}) == 6
    (cell,) = plan("rope", "--seeds=5", "--extend=pi(factor = 2)")
    trained = final_settings(read_arguments(TrainSettings, to_argv(cell.settings))[0], None)
    assert Path(trained.out_dir) == cell.folder  # where train.py puts it


def test_two_numbers_of_steps_have_folders_of_their_own():
    schemes = ["rope", "rope --max_iters=4", "rope --max_iters=8 --bias=True"]
    cells = plan(*schemes, "--seeds=1,2")
    assert len({cell.folder for cell in cells}) == 6
    assert [cell.settings.max_iters for cell in cells] == [2, 4, 8] * 2
    settings, _ = configure(AblateSettings, [*TINY, "--seeds=1,2", "--learning_rates=0.5,1"])
    trials = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ablate, "train_cells", lambda cells, jobs, dtype: trials.extend(cells))
        patch.setattr(ablate, "trial_loss", lambda trial: 1.0)
        ablate.pick_rates(cells, settings, "float32")
    assert len({trial.folder for trial in trials}) == 3 * 2  # schemes, rates
    Path("four.py").write_text('pos = "rope"\nmax_iters = 4\n')
    typed, _ = read_arguments(AblateSettings, [*TINY, "--seeds=1"])
    assert len({cell.folder for cell in ablate.make_cells(["rope", "four.py"], typed)}) == 2
    Path("alibi.py").write_text('pos = "rope"\nmax_iters = 4\n')  # the name of another scheme
    [cell] = ablate.make_cells(["alibi.py"], typed)
    assert cell.label == "alibi.py: rope"
    Path("b").mkdir()
    Path("b/four.py").write_text('pos = "rope"\nmax_iters = 5\n')
    with pytest.raises(UserError, match="two different ones are called four: rename a file"):
        ablate.make_cells(["four.py", "b/four.py"], typed)
    with pytest.raises(UserError, match="trained twice"):
        plan("rope", "rope --max_iters=2")
    assert not {trial.folder for trial in trials} & {cell.folder for cell in cells}


def test_a_file_that_sets_pos_is_a_scheme_with_settings_of_its_own(monkeypatch, capsys):
    config = Path(ablate.__file__).with_name("config")
    schemes = [str(config / name) for name in ("recipes/gemma3.py", "alibi.py")]
    planned = []
    make_cells = ablate.make_cells
    monkeypatch.setattr(ablate, "make_cells", lambda *given: planned.append(given) or sys.exit())
    with pytest.raises(SystemExit):
        compare(
            monkeypatch,
            "nope",
            *schemes,
            str(config / "size/tiny.py"),
            "--seeds=1",
            "--max_iters=40",
        )
    names, typed = planned[0]
    assert names == ["nope", *schemes]
    nope, gemma, alibi = make_cells(names, typed)
    assert [cell.label for cell in (nope, gemma, alibi)] == ["nope", "gemma3", "alibi"]
    # its own settings are above the shared ones, and no other scheme has them
    assert (gemma.settings.n_layer, gemma.settings.norm, gemma.settings.qk_norm) == (
        6,
        "rmsnorm",
        True,
    )
    assert gemma.settings.pos.startswith("5 * (rope + window(")
    assert (alibi.settings.n_layer, alibi.settings.norm) == (1, "layernorm")
    assert gemma.settings.warmup_iters == alibi.settings.warmup_iters == 20
    assert "gemma3.py keeps its own n_layer=6" in capsys.readouterr().out
    with pytest.raises(UserError, match="twice"):
        make_cells(["alibi", schemes[1]], typed)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "name the position schemes"),
        (["rope", "alib"], "alibi"),
        (["rope", "rope --n_head=2"], "twice"),
        (["rope", "rope --seed=3"], "no seed of its own"),
        (["rope", "nope --pos=alibi"], "name that scheme instead of --pos"),
        (
            ["rope", "--extend=pi(factor=2)", "nope --drop_pos=0.5"],
            "drop_pos removes the positions",
        ),
        (["rope", "rope --qknorm=True"], "qk_norm"),
        (["rope", "--block_size=30000"], "training split"),
        (["rope", "--eval_lengths=32,60000"], "60000"),
        (
            ["rope", "--learning_rates=1e-3", "rope --learning_rate=1"],
            "no learning_rate of its own",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused_before_the_first_cell(words, reason, folder):
    with pytest.raises(UserError, match=reason):
        cells = plan(*words)
        ablate.examine_cells(cells)
    assert not any(folder.iterdir())


def test_a_branch_in_no_layer_is_a_line_of_its_own_before_the_first_cell(capsys):
    ablate.examine_cells(plan("rope", "2 * rope | alibi"))
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("warning: 2 * rope | alibi: alibi is in no layer")


def test_a_leak_in_the_second_scheme_is_found_before_the_first_cell(folder, monkeypatch):
    leak = "class Leak(Piece):\n    def output(self, y, v, x):\n        return y + v.flip(2)\n"
    Path("mine.py").write_text(f"from posenc import Piece\n\n\n{leak}")
    with pytest.raises(UserError, match="mine.py|leak"):
        compare(monkeypatch, "rope", "leak", "--pos_file=mine.py")
    assert not Path("out").exists()


# ---- training, with a stand-in for train.py

STAND_IN = """
import pathlib, signal, sys, time
about = dict(word[2:].split("=", 1) for word in sys.argv[1:])
folder = pathlib.Path(about["out_dir"])
def stop(number, frame):
    (folder / "stopped").write_text(str(number))
    sys.exit(130)
signal.signal(signal.SIGINT, stop)
signal.signal(signal.SIGTERM, stop)
print("training", about["pos"], flush=True)
(folder / "begun").touch()
if about["pos"] == "broken":
    sys.exit("it is broken")
for _ in range(int(about.get("max_iters", 1))):
    time.sleep(0.05)
(folder / "done").touch()
"""


@pytest.fixture
def stand_in(folder, monkeypatch):
    """Cells that a quick program trains: a function of schemes and settings that makes them."""
    (folder / "stand_in.py").write_text(STAND_IN)
    monkeypatch.setattr(ablate, "TRAIN", folder / "stand_in.py")
    monkeypatch.setattr(ablate.Cell, "is_finished", lambda cell: (cell.folder / "done").exists())
    monkeypatch.setattr(ablate, "records", SimpleNamespace(load_rows=str, select=str))
    told = SimpleNamespace(summary=lambda rows: {"loss_L": 1.5})
    monkeypatch.setattr(ablate, "statistics", told)

    def cells(*schemes: str, **settings: object) -> list[ablate.Cell]:
        return [
            ablate.Cell(pos, TrainSettings(pos=pos, out_dir=f"c/{k}", **settings))
            for k, pos in enumerate(schemes)
        ]

    return cells


def test_each_cell_prints_one_line_and_a_failed_one_does_not_stop_the_rest(stand_in, capsys):
    cells = stand_in("nope", "broken", "alibi", max_iters=1)
    failures = ablate.train_cells(cells, 1)
    assert (
        list(failures) == ["broken, seed 1337"] and "it is broken" in failures["broken, seed 1337"]
    )
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert len(lines) == 3
    assert "[1/3] nope, seed 1337: loss_L 1.5" in lines[0] and "failed" in lines[1]
    assert Path("c/0/train.log").read_text() == "training nope\n"
    # once more: only the one that failed
    Path("c/0/begun").unlink()
    ablate.train_cells(cells, 1)
    assert not Path("c/0/begun").exists()


def test_jobs_run_at_once(stand_in):
    cells = stand_in(*"abcd", max_iters=20)
    started = time.monotonic()
    assert ablate.train_cells(cells, 4) == {}
    assert time.monotonic() - started < 3  # one after the other: 4 s


def test_two_that_start_at_once_divide_the_cells(stand_in, capsys):
    """Each in a process of its own; none fails, and no cell is trained twice."""
    cells = stand_in("a", "broken", *"cdef", max_iters=10)
    cells[0].settings = replace(cells[0].settings, max_iters=40)
    child = os.fork()
    if not child:
        os._exit(len(ablate.train_cells(cells, 1)))
    failures = ablate.train_cells(cells, 1)
    # both name the one that failed, whoever tried it
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert list(failures) == ["broken, seed 1337"]
    out = capsys.readouterr().out
    assert "left to the program that trains it" in out or "finished by another" in out
    logs = [Path(f"c/{k}/train.log").read_text() for k in range(6)]
    assert [log.count("training") for log in logs] == [1] * 6


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_goes_to_the_running_cells_and_no_other_is_begun(stand_in, number):
    def interrupt():
        while not (Path("c/0/begun").exists() and Path("c/1/begun").exists()):
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(SystemExit) as end:
        ablate.train_cells(stand_in(*"abc", max_iters=2000), 2)
    thread.join()
    assert end.value.code == 128 + number
    assert [Path(f"c/{k}/stopped").exists() for k in range(3)] == [True, True, False]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_shares_are_disjoint_and_complete():
    assert [ablate.share_of(list("abcdefgh"), f"{k}/3") for k in (1, 2, 3)] == [
        ["a", "d", "g"],
        ["b", "e", "h"],
        ["c", "f"],
    ]
    with pytest.raises(UserError, match="only 3 shares"):
        ablate.share_of([], "4/3")


# ---- learning rates


def test_the_rate_of_the_lowest_loss_is_picked_for_each_scheme(monkeypatch, capsys):
    trained = []
    monkeypatch.setattr(ablate, "train_cells", lambda cells, jobs, dtype: trained.extend(cells))
    losses = {"rope": {0.5: 2.0, 1.0: math.inf}, "alibi": {0.5: 2.0, 1.0: 1.0}}
    monkeypatch.setattr(
        ablate, "trial_loss", lambda x: losses[x.settings.pos][x.settings.learning_rate]
    )
    words = ["--seeds=0,4", "--learning_rates=0.5,1", "--max_iters=600"]
    settings, _ = configure(AblateSettings, [*TINY, *words, "--only=2/2"])
    longer = ablate.make_trials(plan("rope", *words, "--warmup_iters=50"), settings)
    assert {trial.settings.warmup_iters for trial in longer.values()} == {25}
    none = ablate.make_trials(plan("rope", *words, "--warmup_iters=0"), settings)
    assert {trial.settings.warmup_iters for trial in none.values()} == {0}
    longer = ablate.make_trials(plan("rope", *words, "--lr_decay_iters=400"), settings)
    for trial in longer.values():
        assert (trial.settings.lr_decay_iters, trial.settings.warmup_iters) == (200, 50)
    tight = ["--warmup_iters=2", "--lr_decay_iters=3"]
    (trial, _) = ablate.make_trials(plan("rope", *words, *tight), settings).values()
    assert (trial.settings.lr_decay_iters, trial.settings.warmup_iters) == (2, 1)
    plan("rope", *words, "--learning_rate=0.25")
    assert capsys.readouterr().out == "note: learning_rates are tried, not learning_rate=0.25\n"
    cells = plan("rope", "alibi", *words)
    assert not capsys.readouterr().out
    assert ablate.pick_rates(cells, settings, "float32") == {"rope": 0.5, "alibi": 1.0}
    assert [trial.label for trial in trained] == ["trial of rope lr=1.0", "trial of alibi lr=1.0"]
    assert {(x.settings.seed, x.settings.max_iters) for x in trained} == {(5, 300)}
    cell = replace(trained[0].settings, out_dir="")  # another run, though its settings are equal
    assert trained[0].folder != ablate.Cell("rope", cell).folder
    losses["alibi"] = {0.5: math.inf, 1.0: math.inf}
    with pytest.raises(UserError, match="alibi diverged with every rate: add a lower one"):
        ablate.pick_rates(cells, settings, "float32")
    losses["rope"][1.0] = math.nan  # not tried yet
    with pytest.raises(UserError, match="a rate was not tried"):
        ablate.pick_rates(cells, settings, "float32")


# ---- the comparison as a whole


DIP = """from posenc import Piece


class Dip(Piece):
    def bias(self, h, i, j):
        return 0.5 * (j - i)
"""


def test_a_comparison_is_made_once_and_goes_on(monkeypatch, capsys, finished):
    copy_run(finished)
    Path("mine.py").write_text(DIP)
    words = ("nope", "dip", "--pos_file=mine.py", "--seeds=1", "--out_dir=both")
    assert compare(monkeypatch, *words, "--only=1/2") == 0
    assert "no table yet: 1 of 2 cells finished, 0 failed" in capsys.readouterr().out
    assert compare(monkeypatch, *words) == 0
    said = capsys.readouterr().out
    assert "cells: 2, finished: 1" in said
    assert sum("loss_L" in line for line in said.splitlines()) == 1  # one new cell
    frame = records.load_rows(["both"])
    assert set(frame.label) == {"nope", "dip"} and set(frame.dtype) == {"float32"}
    files = {path.name for path in Path("both").iterdir()}
    assert files == {"rows.csv.xz", "about.json", "table.txt", "figure.png"}
    assert len(read_json(Path("both/about.json"))["runs"]) == 2

    # a scheme that was edited: the others keep what they have
    configs = {cell.label: cell.folder / "config.json" for cell in plan(*words)}
    before = {label: path.read_bytes() for label, path in configs.items()}
    Path("mine.py").write_text(DIP.replace("0.5", "0.25"))
    offers = "trains anew: dip, seed 1; or give the new class a name of its own"
    with pytest.raises(UserError, match=f"mine.py.* has changed .*{offers}"):
        compare(monkeypatch, *words)
    assert compare(monkeypatch, *words, "--overwrite=True") == 0
    changed = [label for label, path in configs.items() if path.read_bytes() != before[label]]
    assert changed == ["dip"]
    # again: nothing is left to do
    for dtype in ("float32", "auto"):  # auto keeps those of another dtype too
        capsys.readouterr()
        assert compare(monkeypatch, *words, "--overwrite=True", f"--dtype={dtype}") == 0
        assert "cells: 2, finished: 2" in capsys.readouterr().out
    asked = "max_iters: 2 in the folder, 9 asked.*or keep both: .*, has a folder of its own"
    with pytest.raises(UserError, match=asked):  # no cell has another schedule
        compare(monkeypatch, *words, "--max_iters=9")

    # a cell that did not finish, for whatever reason, is named below the table
    with monkeypatch.context() as patch:
        unfinished = {"alibi, seed 1": "not finished"}
        patch.setattr(ablate, "train_cells", lambda cells, jobs, dtype: unfinished)
        assert compare(patch, *words, "alibi") == 1
    assert Path("both/table.txt").read_text().endswith("\nwithout alibi, seed 1: not finished\n")
    assert read_json(Path("both/about.json"))["without"] == unfinished

    # a cell whose folder holds another run is refused before anything is trained
    path = configs["nope"]
    path.write_text(path.read_text().replace('"n_embd": 16', '"n_embd": 32'))
    with pytest.raises(UserError, match="n_embd.*trains anew: nope, seed 1$"):
        compare(monkeypatch, *words)
    path.write_text(path.read_text().replace('"version": "', '"version": "1'))
    with pytest.raises(UserError, match="was made by version 10"):
        compare(monkeypatch, *words)
    path.write_text("{")  # a damaged one is replaced too
    cell = plan(*words, "--overwrite=True")[0]
    assert not cell.is_finished() and not cell.can_resume()
    path.unlink()  # its checkpoints are left
    dip = plan(*words)[1]
    assert dip.can_resume() and not cell.can_resume()
    (dip.folder / "extrapolation.json").write_text("{")
    assert not dip.can_resume()


def test_the_last_share_names_a_cell_that_failed_in_another(monkeypatch, capsys, folder, finished):
    Path("fails.py").write_text("print('error: it is broken')\nraise SystemExit(1)\n")
    words = ("nope", "rope", "--seeds=1", "--out_dir=both")
    with monkeypatch.context() as patch:
        patch.setattr(ablate, "TRAIN", folder / "fails.py")
        assert compare(patch, *words, "--only=2/2") == 1
    assert "no table yet: 0 of 2 cells finished, 1 failed" in capsys.readouterr().out
    copy_run(finished)
    assert compare(monkeypatch, *words, "--only=1/2") == 1
    assert "\nwithout rope, seed 1: error: it is broken (see out" in capsys.readouterr().out
    # it is tried again
    assert compare(monkeypatch, *words, "--only=2/2") == 0
    assert "without" not in Path("both/table.txt").read_text()
    assert read_json(Path("both/about.json"))["without"] == {}


def test_cells_of_other_code_are_named_and_overwritten_alone(monkeypatch, capsys, finished):
    copy_run(finished)
    copy_run(finished, 2)
    words = ("nope", "--seeds=1,2")
    changed, same = plan(*words)
    config = read_json(changed.folder / "config.json")
    config["code_sha256"]["model.py"] = "0"
    write_json(changed.folder / "config.json", config)
    ids = [read_json(cell.folder / "config.json")["run_id"] for cell in (changed, same)]
    capsys.readouterr()
    assert compare(monkeypatch, *words) == 0
    said = capsys.readouterr().out
    assert "note: model.py changed since 1 of 2 cells began" in said
    assert "cells: 2, finished: 2" in said
    assert compare(monkeypatch, *words, "--overwrite=True") == 0
    now = [read_json(cell.folder / "config.json")["run_id"] for cell in (changed, same)]
    assert now[0] != ids[0] and now[1] == ids[1]


def test_a_plan_names_the_state_of_each_cell_and_leaves_nothing(monkeypatch, capsys, finished):
    for seed in (1, 2, 3):
        copy_run(finished, seed)
    words = ("nope", "--seeds=1,2,3,4", "--plan=True")
    _, begun, other, _ = cells = plan(*words)
    for path in begun.folder.glob("extrapolation.*"):
        path.unlink()
    path = other.folder / "config.json"
    path.write_text(path.read_text().replace('"n_embd": 16', '"n_embd": 32'))
    before = sorted(Path("out").rglob("*"))
    capsys.readouterr()
    assert compare(monkeypatch, *words) == 0
    said = capsys.readouterr().out.splitlines()
    states = ["finished", "at step 2 of 2", "another run in its folder (n_embd", "at step 0 of 2"]
    for cell, state in zip(cells, states, strict=True):
        assert sum(line.startswith(f"{cell.name}: {state}") for line in said) == 1
    assert sorted(Path("out").rglob("*")) == before
    assert compare(monkeypatch, *words, "--learning_rates=0.5,1") == 0
    said = capsys.readouterr().out
    assert said.count("trial of ") == 2 and "trial of nope lr=0.5, seed 5: at step 0 of 1" in said
    assert sorted(Path("out").rglob("*")) == before


@pytest.mark.slow
def test_rates_are_picked_on_a_seed_that_is_not_compared(monkeypatch, capsys):
    words = ("nope", "--seeds=1", "--learning_rates=1e-3,1e-2", "--out_dir=one")
    assert compare(monkeypatch, *words) == 0
    said = capsys.readouterr().out
    assert "loss by learning rate" in said and said.count("trial of nope") == 2
    assert "lr=" in records.load_rows(["one"]).label.iloc[0]


# ---- Weights & Biases


def test_wandb_has_a_chart_of_all_schemes_and_the_rows_of_a_comparison(monkeypatch, folder):
    pytest.importorskip("wandb")
    for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(name, str(folder / "wandb"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_RUN_GROUP", "both")
    rows = pd.DataFrame(
        [
            (label, "fixed_targets", length, nats + seed, seed, [nats])
            for label, nats in (("rope", 3.0), ("alibi", 2.0))
            for length in (32, 64)
            for seed in (0, 1)
        ],
        columns=["label", "protocol", "length", "nats", "seed", "block_nats"],
    )
    rows.loc[rows.label.eq("alibi") & rows.length.eq(64), "nats"] = math.nan  # past its end
    settings, _ = configure(AblateSettings, ["--wandb_log=True"])
    log_comparison(settings, rows, folder / "both")
    # the chart: which table, which columns; and its points, the means over seeds
    log = written(folder / "both", "wandb/offline-run-*/*.wandb")
    assert b"loss_against_N/fixed_targets" in log
    (table,) = (folder / "both").rglob("loss_against_N/*.table.json")
    points = read_json(table)["data"]
    assert sorted(points) == [["alibi", 32, 2.5], ["rope", 32, 3.5], ["rope", 64, 3.5]]
    # the rows, as an artifact that waits to be sent
    waiting = [path for path in (folder / "wandb").rglob("staging/*") if path.is_file()]
    tables = [path for path in waiting if path.read_bytes().startswith(b"label,")]
    assert len(tables) == 1
    kept = rows.assign(block_nats=rows.block_nats.map(lambda nats: nats[0]))
    pd.testing.assert_frame_equal(pd.read_csv(tables[0]), kept, check_dtype=False)


def test_each_command_of_the_sweep_is_one_that_train_reads(monkeypatch):
    yaml = pytest.importorskip("yaml")
    root = Path(ablate.__file__).parent
    monkeypatch.chdir(root)
    sweep = yaml.safe_load((root / "config/sweep.yaml").read_text())
    command = sweep["command"]
    assert sweep["program"] == "train.py" and "${args}" in command
    fixed = [word for word in command[command.index("${program}") + 1 :] if word != "${args}"]
    names = list(sweep["parameters"])
    for choice in itertools.product(*(sweep["parameters"][name]["values"] for name in names)):
        args = [f"--{name}={x}" for name, x in zip(names, choice, strict=True)]  # as wandb's agent
        settings, others = configure(TrainSettings, [*fixed, *args])
        assert tuple(getattr(settings, name) for name in names) == choice
        assert settings.wandb_log and settings.max_iters == 500 and not others
