"""Comparing: which cells run, what a failed or interrupted one does to the rest, and what is written at the end."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import ablate
import data
import data.recall.prepare as recall
import evaluate
import train
from configurable import PROTOCOLS, AblateSettings, TrainSettings, UserError, configure, read_json
from data import rows
from runs import device, results
from runs.checkpoint import load_run
from runs.files import sha256, write_json
from runs.folder import provenance, run_folder, trained_seconds
from runs.tables import rates_table, scheme_tables

REPOSITORY = Path(ablate.__file__).resolve().parent
SCHEMES, SEEDS = ("nope", "rope", "alibi"), (1, 2)


@pytest.fixture(autouse=True)
def corpora(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one small corpus of bytes, `tiny`; the run folders are made in the working directory."""
    text, load = (
        np.frombuffer(b"to be, or not to be: that is the question\n" * 40, dtype=np.uint8),
        data.load,
    )
    data.write_corpus(
        tmp_path / "corpora/tiny",
        {"train": [text], "val": [text]},
        tokenizer="bytes",
        source="here",
        rule="all",
    )
    monkeypatch.setattr(data, "load", lambda name: load(name, tmp_path / "corpora"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "corpora"


def run_main(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """ablate.main() on a command line, for the corpus `tiny`."""
    monkeypatch.setattr(
        sys, "argv", ["ablate.py", *words, "--dataset=tiny", "--eval_lengths=64,256"]
    )
    return ablate.main()


def cells_of(*words: str) -> list[ablate.Cell]:
    """The plan of a command line."""
    return ablate.plan(*configure(AblateSettings, ["--dataset=tiny", *words], ""))


def tokens(cell: ablate.Cell) -> int:
    """How many tokens a cell is trained on."""
    s = cell.settings
    return s.max_iters * s.batch_size * s.gradient_accumulation_steps * s.block_size


def finish(cell: ablate.Cell, **changes: object) -> None:
    """Write what train.py leaves of a finished cell, with invented losses; `changes` are of config.json."""
    s, rows = cell.settings, []
    for n in results.tested_lengths(s.block_size, s.eval_lengths):
        nats = 2 + s.seed / 100 + len(s.pos) / 10 + n / 1000
        row = {"length": n, "dataset": s.dataset, "extend": None, "factor": None, "nats": nats}
        row |= {"split_sha256": "s", "targets": "t", "block_nats": [nats - 0.1, nats + 0.1]}
        row |= {"step": s.max_iters, "checkpoint": "c", "stride": None, "windows": s.eval_windows}
        row |= {"stderr": 0.1, "stderr_vs_L": 0.01, "dtype": "x"}
        rows += [row | {"protocol": protocol} for protocol in PROTOCOLS]
    result = {"pos": s.pos, "seed": s.seed, "train_length": s.block_size, "unit": "byte"}
    result |= {"step": s.max_iters, "checkpoint": "c", "settings": results.settings_that_differ(s)}
    result |= {"tokens_trained": tokens(cell), "rows": rows, "parameters": 1}
    result |= {"notes": [], "per_position": [], "float32_check": []}
    numbers = ("vocab_size", "parameters", "original_length", "processes")
    texts = ("unit", "layers", "wandb_id", "device", "dtype", "dtype_asked")
    config = dict.fromkeys(numbers, 1) | dict.fromkeys(texts, "x") | {"attention": {}}
    config |= {"settings": vars(s.warmed_up(s.max_iters)), "extension_files_sha256": {}}
    config |= {"train_lengths": [], "read_before": {}}
    part = {"from_step": 0, "max_iters": s.max_iters, "command": [cell.name], "git_commit": "x"}
    config["history"] = [part]
    config["pos_file_sha256"] = sha256(Path(s.pos_file)) if s.pos_file else None
    config["corpus_sha256"] = {"train": "t", "val": "v"}
    cell.folder.mkdir(parents=True, exist_ok=True)
    write_json(cell.folder / "config.json", config | provenance() | changes)
    write_json(cell.folder / "extrapolation.json", result)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let a cell be finished at once instead of trained; the names of the cells that were, in order."""
    names: list[str] = []

    def train(cell: ablate.Cell, relay: ablate.Relay) -> str:
        names.append(cell.name)
        finish(cell)
        return ""

    monkeypatch.setattr(ablate, "train", train)
    return names


def standing_in(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let `code` run in the place of train.py."""
    Path("stand_in.py").write_text(code, encoding="utf-8")
    monkeypatch.setattr(ablate, "TRAIN", Path("stand_in.py").resolve())


def interrupt_when(ready: Callable[[], bool], number: int) -> None:
    """Send this process a signal, as a terminal or a scheduler would, when `ready()`; give up after a few minutes."""

    def wait() -> None:
        for _ in range(20_000):
            time.sleep(0.01)
            if ready():
                return os.kill(os.getpid(), number)

    threading.Thread(target=wait, daemon=True).start()


# ---- settings of one scheme


def test_a_scheme_may_have_settings_of_its_own(
    monkeypatch: pytest.MonkeyPatch, trained: list[str]
) -> None:
    words = ("rope", "rope  --qk_norm=True", "alibi --block_size=32 --batch_size=8")
    cells = cells_of(*words, "--seeds=1", "--eval_lengths=16,32", "--n_embd=32")
    assert [c.label for c in cells] == ["rope", "rope --qk_norm=True", words[2]]
    assert [c.settings.qk_norm for c in cells] == [False, True, False]
    assert [c.settings.block_size for c in cells] == [128, 128, 32]
    assert {c.settings.n_embd for c in cells} == {32} and len({c.folder for c in cells}) == 3
    small = ("--seeds=1,2", "--eval_lengths=16,32", "--ablate_dir=here")
    assert run_main(monkeypatch, *words, *small) == 0 and len(trained) == 6
    content = json.loads(Path("here/results.json").read_text(encoding="utf-8"))
    assert [*content["cells"]] == [c.label for c in cells]


@pytest.mark.parametrize(
    "words, problem",
    [
        (["rope --seed=3"], "has no seed of its own"),
        (["rope --dataset=books"], "has no dataset of its own"),
        (["rope --eval_windows=128"], "has no eval_windows of its own"),
        (["rope --learning_rate=1e-3", "--learning_rates=2e-3"], "has no learning_rate of its own"),
        (["rope --n_hed=2"], "unknown setting 'n_hed'; did you mean n_head?"),
        (["rope --init_from=out/x"], "has no init_from of its own"),
        (["rope", "rope --max_iters=20"], "would be trained twice, or in one folder"),
        (["rope", "rope --qk_norm=False"], "would be trained twice, or in one folder"),
        (["rope --n_head=0"], "n_head is 0, and must be"),
        (["rope --n_head=2", "rope  --n_head=2"], "would be trained twice"),
        (["rope", "--paper=nowhere.toml"], "nowhere.toml is missing or no TOML"),
    ],
)
def test_what_a_scheme_cannot_set_is_refused_before_anything_runs(
    words: list[str], problem: str
) -> None:
    with pytest.raises(UserError, match=re.escape(problem)):
        cells_of(*words)


def test_schemes_of_a_config_file_come_first_and_a_paper_stands_below(
    monkeypatch: pytest.MonkeyPatch, trained: list[str], capsys: pytest.CaptureFixture
) -> None:
    claims = '[[claims]]\nsays = "rope is best"\nleft = ["A", 1]\nright = ["B", 1]\nat_most = 0\n'
    claims += 'protocol = "windowed"\n'
    table = '[table]\ntitle = "t"\nprotocol = "windowed"\ncolumns = [{name = "512", length = 1}]\n'
    rows = 'rows = [{name = "A", scheme = "rope", trained = 1, values = ["7.5"]}, '
    rows += '{name = "B", scheme = "alibi", trained = 1, values = ["8.5"]}]\n'
    Path("toy.toml").write_text(f'title = "Toy"\n{table}{rows}{claims}', encoding="utf-8")
    Path("toy.py").write_text('schemes = ("rope",)\npaper = "toy.toml"\n', encoding="utf-8")
    words = ("toy.py", "alibi --n_head=2", "--seeds=1,2", "--ablate_dir=here")
    assert run_main(monkeypatch, *words) == 0
    text = Path("here/table.txt").read_text(encoding="utf-8")
    assert text in capsys.readouterr().out
    assert "theirs" in text and "8.5" in text and "claims of Toy" in text
    assert text.split("claims of Toy")[1].split("expected      half")[0].split()[-1] == "reproduced"


# ---- the order of work


def test_all_schemes_of_a_seed_come_before_the_next_seed(
    monkeypatch: pytest.MonkeyPatch, trained: list[str]
) -> None:
    assert run_main(monkeypatch, *SCHEMES, "--seeds=1,2") == 0
    assert trained == [f"{pos}, seed {seed}" for seed in SEEDS for pos in SCHEMES]


def test_what_is_finished_is_not_trained_again_unless_overwrite_is_typed(
    monkeypatch: pytest.MonkeyPatch, trained: list[str], capsys: pytest.CaptureFixture
) -> None:
    run_main(monkeypatch, "nope", "rope", "--seeds=1")
    run_main(monkeypatch, "nope", "rope", "--seeds=1,2")
    assert trained == ["nope, seed 1", "rope, seed 1", "nope, seed 2", "rope, seed 2"]
    assert "4 cells, 2 of them finished" in capsys.readouterr().out
    run_main(monkeypatch, "nope", "rope", "--seeds=1", "--overwrite=True")
    assert trained[4:] == ["nope, seed 1", "rope, seed 1"]


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 9])
def test_shares_partition_the_cells_and_only_the_last_one_compares(
    parts: int, monkeypatch: pytest.MonkeyPatch, trained: list[str], capsys: pytest.CaptureFixture
) -> None:
    for part in range(parts, 0, -1):
        run_main(monkeypatch, *SCHEMES, "--seeds=1,2", f"--only={part}/{parts}")
        complete = len(trained) == len(SCHEMES) * len(SEEDS)
        assert bool(list(Path("out").glob("ablate-*"))) == complete
        assert ("not compared yet" in capsys.readouterr().out) != complete
    assert sorted(trained) == sorted(f"{pos}, seed {seed}" for seed in SEEDS for pos in SCHEMES)


ARRAYS = [  # of SLURM, numbered from 0 and from 1, and of SGE
    [f"SLURM_ARRAY_TASK_{word}" for word in ("ID", "MIN", "MAX", "STEP")],
    [f"SGE_TASK_{word}" for word in ("ID", "FIRST", "LAST", "STEPSIZE")],
]


@pytest.mark.parametrize(("names", "first"), [(ARRAYS[0], 0), (ARRAYS[0], 1), (ARRAYS[1], 1)])
def test_a_job_of_an_array_takes_its_share(
    names: list[str], first: int, monkeypatch: pytest.MonkeyPatch, trained: list[str]
) -> None:
    for name in sum(ARRAYS, []):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match="SLURM_ARRAY_TASK_ID and .* are not set to numbers"):
        run_main(monkeypatch, *SCHEMES, "--only=array")
    every = [f"{pos}, seed {seed}" for seed in SEEDS for pos in SCHEMES]
    for step in (1, 3):
        for number in range(4):
            told = (first + step * number, first, first + 3 * step, step)
            for name, value in zip(names, told, strict=True):
                monkeypatch.setenv(name, str(value))
            trained.clear()
            run_main(monkeypatch, *SCHEMES, "--seeds=1,2", "--only=array", "--overwrite=True")
            assert trained == every[number::4]
    for name, value in zip(names, (first, first, first, 0), strict=True):  # one job, without a step
        monkeypatch.setenv(name, str(value))
    trained.clear()
    run_main(monkeypatch, *SCHEMES, "--seeds=1,2", "--only=array", "--overwrite=True")
    assert trained == every
    for name, value in zip(names, (first + 1, first, first + 6, 3), strict=True):
        monkeypatch.setenv(name, str(value))
    with pytest.raises(UserError, match=f"job {first + 1} is not in the array {first}-"):
        run_main(monkeypatch, *SCHEMES, "--only=array")
    monkeypatch.setenv(names[0], "undefined")
    with pytest.raises(UserError, match="are not set to numbers: start a job array"):
        run_main(monkeypatch, *SCHEMES, "--only=array")


def test_several_cells_train_at_once_each_with_its_share_of_the_processors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    standing_in(  # each waits until all three are running
        monkeypatch,
        """
import os, pathlib, sys, time
print("threads", os.environ["OMP_NUM_THREADS"], flush=True)
pathlib.Path(f"here{os.getpid()}").touch()
for _ in range(1000):
    time.sleep(0.05)
    if len(list(pathlib.Path().glob("here*"))) == 3:
        sys.exit("error: all are here")
""",
    )
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert run_main(monkeypatch, *SCHEMES, "--seeds=1", "--jobs=3") == 1
    said = capsys.readouterr()
    for pos in SCHEMES:
        assert f"[{pos}, seed 1] threads 2" in said.out
        assert f"failed: {pos}, seed 1: error: all are here" in said.err


def test_a_line_says_how_much_is_left(
    monkeypatch: pytest.MonkeyPatch, trained: list[str], capsys: pytest.CaptureFixture
) -> None:
    good = ablate.train
    monkeypatch.setattr(ablate, "train", lambda cell, relay: time.sleep(0.3) or good(cell, relay))
    run_main(monkeypatch, *SCHEMES, "--seeds=1")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("cell ")]
    assert lines[0] == "cell 1/3: nope, seed 1 (3 to do)"
    assert lines[2] == "cell 3/3: alibi, seed 1 (1 to do, about 0 min left)"


def test_a_cell_is_finished_only_with_these_settings_tokens_and_lengths(tmp_path: Path) -> None:
    (cell,) = cells_of("rope", "--seeds=1")
    assert cell.result() is None
    finish(cell)
    assert cell.result()["seed"] == 1
    (longer,) = cells_of("rope", "--seeds=1", "--eval_lengths=64,8192")
    assert longer.folder == cell.folder and longer.result() is None
    finish(cell, settings=vars(cell.settings) | {"n_embd": 128})
    assert cell.result() is None
    path = cell.folder / "extrapolation.json"
    finish(cell)
    write_json(path, read_json(path) | {"extend": "yarn"})
    assert cell.result() is None
    finish(cell)
    early = [row | {"step": cell.settings.max_iters - 1} for row in read_json(path)["rows"]]
    write_json(path, read_json(path) | {"rows": early})
    assert cell.result() is None
    finish(cell)
    result = read_json(path)
    windowed = [row for row in result["rows"] if row["protocol"] == "windowed"]
    windowed[0]["dataset"] = "other"  # one length of one protocol is missing
    write_json(path, result)
    assert cell.result() is None


def test_a_cell_has_canonical_texts_as_train_py_has() -> None:
    (cell,) = cells_of("rope(base=500000)", "--seeds=1", "--extend=yarn( factor = 4 )")
    (plain,) = cells_of("rope( base = 5e5 )", "--seeds=1", "--extend=none")
    assert (cell.settings.pos, cell.settings.extend) == ("rope(base=500000)", "yarn(factor=4)")
    assert plain.settings.extend == ""


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", "{}"),
        ("config.json", '{"settings": 5}'),
        ("config.json", None),
        ("extrapolation.json", '{"rows": 5}'),
        ("extrapolation.json", "{"),
    ],
)
def test_a_cell_whose_files_are_damaged_is_not_finished(
    name: str, content: str | None, tmp_path: Path
) -> None:
    (cell,) = cells_of("rope", "--seeds=1")
    finish(cell)
    known = read_json(cell.folder / "config.json")
    del known["threads"]
    (cell.folder / name).write_text(content or json.dumps(known), encoding="utf-8")
    assert cell.result() is None


@pytest.mark.parametrize("size", ["2", "abc"])
def test_processes_of_torchrun_are_refused(size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", size)
    with pytest.raises(UserError, match="torchrun"):
        run_main(monkeypatch, "nope")


def test_a_scheme_file_that_has_changed_since_is_not_what_was_measured(tmp_path: Path) -> None:
    code = "from posenc import Piece\n\n\nclass Mine(Piece):\n    pass\n"
    Path("mine.txt").write_text(code, encoding="utf-8")
    Path("mine.txt").rename("my_scheme.py")
    (cell,) = cells_of("mine", "--seeds=1", "--pos_file=my_scheme.py")
    finish(cell)
    assert cell.result()
    Path("my_scheme.py").write_text(code + "\n# another\n", encoding="utf-8")
    assert cell.result() is None


def test_train_py_is_told_every_setting_that_is_not_the_default() -> None:
    (cell,) = cells_of(
        "rope(base=500000) | nope",
        "--seeds=7",
        "--eval_lengths=64,128",
        "--min_lr=1e-5",
        "--bias=True",
        "--learning_rate=3e-4",
        "--lr_decay_iters=1e4",
        "--wandb_run_name=a b",
        "--compile=False",
    )
    settings, words = configure(TrainSettings, ablate.words_for_train(cell.settings), "")
    assert (settings, words) == (cell.settings, [])
    assert cell.folder == run_folder(settings)


# ---- mistakes


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rope", "rpoe"], "did you mean rope"),
        (["rope", "t5(bucket=4)"], "t5 has no option bucket"),
        (["rope", "randomized(max=8)"], "the training length 128"),
        (["rope", "+", "alibi"], "quoted in a shell"),
        (["rope", "t5(buckets=8)", "t5( buckets = 8 )"], "name each scheme once"),
        ([], "name the position schemes"),
        (["rope", "--pos=alibi"], "name the schemes"),
        (["rope", "--init_from=gpt2"], "every cell that model's scheme"),
        (["rope", "--dataset=tinny"], "no corpus .tinny., but .*tiny"),
        (["rope", "--only=3/2"], "I/N"),
    ],
)
def test_a_mistake_is_refused_before_anything_runs(
    words: list[str], said: str, trained: list[str]
) -> None:
    with pytest.raises(UserError, match=said):
        cells_of(*words)
    assert not trained and not Path("out").exists()


# ---- failures


def test_a_failed_cell_is_reported_and_does_not_stop_the_rest(
    monkeypatch: pytest.MonkeyPatch, trained: list[str], capsys: pytest.CaptureFixture
) -> None:
    good = ablate.train
    monkeypatch.setattr(
        ablate,
        "train",
        lambda cell, relay: (
            "error: step 3: loss nan" if cell.name == "rope, seed 1" else good(cell, relay)
        ),
    )
    assert run_main(monkeypatch, *SCHEMES, "--seeds=1,2") == 1
    said = capsys.readouterr()
    assert len(trained) == 5
    assert said.err.splitlines()[-1] == "failed: rope, seed 1: error: step 3: loss nan"
    assert "rope, seed 1: no result: error: step 3: loss nan" in said.out  # the table says it too


def test_nothing_is_drawn_where_every_cell_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ablate, "train", lambda cell, relay: "error: out of memory")
    assert run_main(monkeypatch, "nope", "rope") == 1
    assert not Path("out").exists()


def test_a_cells_output_is_passed_on_and_its_last_error_line_is_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    standing_in(
        monkeypatch,
        "import sys; print('step 1'); print('hm', file=sys.stderr); sys.exit('error: bad\\n')",
    )
    (cell,) = cells_of("rope", "--seeds=1")
    assert ablate.train(cell, ablate.Relay()) == "error: bad"
    assert capsys.readouterr().out == "step 1\nhm\nerror: bad\n\n"


def test_a_cell_that_dies_or_leaves_no_result_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    (cell,) = cells_of("rope", "--seeds=1")
    for code, reason in (
        ("import os; print('step 1'); os.kill(os.getpid(), 9)", "signal 9"),
        ("import sys; sys.exit(3)", "exit code 3"),
        ("", "does not hold the result"),
    ):
        standing_in(monkeypatch, code)
        assert reason in ablate.train(cell, ablate.Relay())


def test_a_cell_does_not_outlive_a_comparison_that_was_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("steps.py").write_text(
        "import time\nwhile True:\n    print(time.sleep(0.05))\n", encoding="utf-8"
    )
    code = (
        f"import os, sys; sys.path.insert(0, {str(REPOSITORY)!r}); import ablate\n"
        "child = ablate.Relay().start([sys.executable, '-u', 'steps.py'])\n"
        "print(child.pid, child.stdout.readline(), flush=True); os.kill(os.getpid(), 9)"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=False
    ).stdout
    child = int(said.split()[0])
    with pytest.raises(ProcessLookupError):
        for _ in range(200):
            os.kill(child, 0)
            time.sleep(0.05)


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 128 + signal.SIGUSR1)],
)
def test_a_signal_is_handed_on_once_and_nothing_else_is_started(
    number: int, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    standing_in(
        monkeypatch,
        """
import signal, sys, time
def save(number, frame):
    print("saved after", number)
    global left
    left = 0.3                      # a second signal would come in this time
left = 30
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, save)
open("ready", "w").close()
while left > 0:
    time.sleep(0.05)
    left -= 0.05
sys.exit(1)
""",
    )
    before = signal.getsignal(number)
    interrupt_when(Path("ready").exists, number)
    assert run_main(monkeypatch, "nope", "rope") == code
    said = capsys.readouterr().out
    assert said.count("saved after") == 1 and said.count(f"saved after {int(number)}") == 1
    assert said.count("cell ") == 1 and "the same command goes on from there" in said
    assert signal.getsignal(number) == before


# ---- the comparison


def test_table_figure_and_results_are_written_and_hold_what_made_them(
    monkeypatch: pytest.MonkeyPatch, trained: list[str], capsys: pytest.CaptureFixture
) -> None:
    run_main(monkeypatch, *SCHEMES, "--seeds=1,2", "--ablate_dir=here/three", "--format=tex")
    assert "\\toprule" in Path("here/three/table.tex").read_text(encoding="utf-8")
    table = Path("here/three/table.txt").read_text(encoding="utf-8")
    assert table in capsys.readouterr().out and "note:" not in table
    assert Path("here/three/figure.png").read_bytes().startswith(b"\x89PNG")
    results = json.loads(Path("here/three/results.json").read_text(encoding="utf-8"))
    assert results["command"][:2] == ["ablate.py", "nope"]
    seeds = {pos: [cell["seed"] for cell in cells] for pos, cells in results["cells"].items()}
    assert seeds == dict.fromkeys(SCHEMES, [1, 2])
    run = results["cells"]["rope"][0]["run"]
    assert run.keys() == {*ablate.PROVENANCE, "train_seconds"} and run["train_seconds"] >= 0
    assert (
        "\n\n".join(scheme_tables(results["cells"])) + "\n" == table
    )  # redrawn from the file alone


def test_cells_of_other_sources_or_threads_are_noted(
    monkeypatch: pytest.MonkeyPatch, trained: list[str], capsys: pytest.CaptureFixture
) -> None:
    other = cells_of("rope", "--seeds=1", "--eval_lengths=64,256")[0]
    finish(other, threads=99, git_commit="another")
    run_main(monkeypatch, "nope", "rope", "--seeds=1")
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note:")]
    assert notes == ["note: threads is not the same in all cells: see results.json"]


def test_the_seconds_of_a_training_are_those_of_its_steps(tmp_path: Path) -> None:
    lines = [{"step": 1, "tokens": 100, "tokens_per_s": 10.0}, {"step": 2}]
    lines += [{"step": 3, "tokens": 300, "tokens_per_s": 100.0}, {"step": 4, "diverged": "loss"}]
    text = "\n".join(map(json.dumps, lines)) + '\n{"step": 5, "tok'
    (tmp_path / "metrics.jsonl").write_text(text, encoding="utf-8")
    assert trained_seconds(tmp_path) == 10 + 2
    assert trained_seconds(tmp_path / "absent") == 0


def test_each_comparison_has_a_folder_of_its_own() -> None:
    def folder(*words: str) -> Path:
        settings, schemes = configure(AblateSettings, ["--dataset=tiny", *words], "")
        return ablate.comparison_folder(settings, ablate.plan(settings, schemes))

    assert folder("nope", "--eval_lengths=9,7") == folder("nope", "--eval_lengths=7,9")
    two = (["rope", "nope"], ["nope", "rope"])
    one = (["nope"], ["nope", "--seeds=1"], ["nope", "--n_layer=2"], ["nope", "--eval_lengths=9"])
    one += (["nope", "--max_iters=9"], ["nope", "--eval_windows=128"])
    assert len({folder(*words) for words in (*two, *one)}) == 8
    for words in (*two, *one):  # what changes no result is the same comparison
        assert folder(*words) == folder(*words, "--log_interval=7")


# ---- with train.py itself

TINY = (
    "nope",
    "learned",
    "--seeds=1",
    "--n_layer=1",
    "--n_head=2",
    "--n_embd=16",
    "--block_size=16",
    "--batch_size=2",
    "--max_iters=150",
    "--warmup_iters=9",
    "--eval_interval=1000",
    "--log_interval=1",
    "--eval_iters=1",
    "--compile=False",
    "--device=cpu",
)


def test_an_interrupted_comparison_goes_on_where_it_was(
    corpora: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    standing_in(
        monkeypatch,
        f"""
import pathlib, sys
sys.path.insert(0, {str(REPOSITORY)!r})
import configurable, data, train
data.load.__defaults__ = (pathlib.Path({str(corpora)!r}),)
configurable.run_program(train.main)
""",
    )
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    interrupt_when(
        lambda: any(
            len(path.read_bytes().splitlines()) > 5 for path in Path("out").glob("*/metrics.jsonl")
        ),
        signal.SIGTERM,
    )
    assert run_main(monkeypatch, *TINY) == 143
    (nope,) = Path("out").iterdir()  # the second cell was not begun
    stopped = len((nope / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    assert stopped < 150 and not (nope / "extrapolation.json").exists()
    assert run_main(monkeypatch, *TINY) == 0
    assert f"resuming at step {stopped}\n" in capsys.readouterr().out
    steps = [
        json.loads(line)["step"]
        for line in (nope / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert steps == list(range(1, 151))
    table = next(Path("out").glob("ablate-tiny-L16-*/table.txt")).read_text(encoding="utf-8")
    assert "undefined: learned defines 16 positions" in table
    standing_in(monkeypatch, "raise SystemExit('this cell is finished')")
    assert run_main(monkeypatch, *TINY) == 0


# ---- learning rates


@pytest.fixture
def longer_text(corpora: Path) -> None:
    """Let `tiny` be long enough to pick a rate on."""
    text = np.random.default_rng(0).integers(97, 123, 30_000).astype(np.uint8)
    shutil.rmtree(corpora / "tiny")
    data.write_corpus(
        corpora / "tiny",
        {"train": [text], "val": [text]},
        tokenizer="bytes",
        source="here",
        rule="all",
    )


@pytest.fixture
def rates(longer_text: None, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[float]]:
    """The losses, by scheme, of 1e-3, 3e-3, 6e-3, then of those added."""
    losses: dict[str, list[float]] = {}

    def tuned(run: ablate.Cell) -> float | None:
        if run.result() is None:
            return None
        known = [1e-3, 3e-3, 6e-3, 0.012, 0.024, 0.048]
        return losses[run.settings.pos][known.index(run.settings.learning_rate)]

    monkeypatch.setattr(ablate, "tuned", tuned)
    return losses


RATES = ("--learning_rates=1e-3,6e-3", "--seeds=1,2")  # the usual rate, 3e-3, is tried anyway


def test_a_rate_is_tried_with_half_the_steps_a_seed_of_its_own_and_in_a_folder_that_tells_it(
    rates: dict,
) -> None:
    settings, _ = configure(AblateSettings, ["--seeds=0,1,3", "--max_iters=301"], "")
    (cell, *_) = cells_of(
        "rope", "--seeds=0,1,3", "--max_iters=301", "--warmup_iters=20", "--eval_lengths=512"
    )
    run = ablate.trial(cell, 6e-3, settings)
    s = run.settings
    assert (s.seed, s.max_iters, s.warmup_iters, s.learning_rate) == (2, 150, 10, 6e-3)
    assert s.eval_lengths == (128,) and run.name == "rope lr=0.006, seed 2"
    assert run.folder.parent == Path("out/rates")
    assert run.folder.name == "rope-tiny-L128-s2-warmup_iters=10-lr=0.006-steps=150"
    longer, _ = configure(AblateSettings, ["--seeds=0,1,3"], "")
    (other, *_) = cells_of("rope", "--seeds=0,1,3", "--max_iters=600", "--warmup_iters=20")
    assert ablate.trial(other, 6e-3, longer).folder != run.folder


def test_each_scheme_is_compared_at_the_rate_picked_for_it(
    monkeypatch: pytest.MonkeyPatch, trained: list[str], rates: dict, capsys: pytest.CaptureFixture
) -> None:
    rates |= {"nope": [2.0, 1.5, 1.495], "rope": [2.0, 1.8, 1.5, 1.9], "alibi": [1.0, 2.0, 3.0]}
    assert run_main(monkeypatch, "nope", "rope", *RATES) == 0
    assert trained[:3] == [f"nope lr={rate}, seed 0" for rate in (0.001, 0.003, 0.006)]
    assert trained[3:7] == [f"rope lr={rate}, seed 0" for rate in (0.001, 0.003, 0.006, 0.012)]
    final = [
        f"{label}, seed {seed}" for seed in (1, 2) for label in ("nope lr=0.003", "rope lr=0.006")
    ]
    assert trained[7:] == final  # nope's best is not 0.01 better than the usual rate
    said = capsys.readouterr().out  # what is left is told apart: trials, then cells
    assert "before the cells, trial 1/3: nope lr=0.001" in said and "\ncell 1/4: nope lr" in said
    (folder,) = Path("out").glob("ablate-*")
    content = read_json(folder / "results.json")
    assert content["cells"].keys() == {"nope lr=0.003", "rope lr=0.006"}
    assert {pos: tried["picked"] for pos, tried in content["rates"].items()} == {
        "nope": 0.003,
        "rope": 0.006,
    }
    tried = content["rates"]["rope"]["tried"]
    assert [one["nats"] for one in tried] == rates["rope"]
    assert all(one["run"].keys() == {*ablate.PROVENANCE, "train_seconds"} for one in tried)
    table = (folder / "table.txt").read_text(encoding="utf-8")
    pages = [rates_table(content["rates"]), *scheme_tables(content["cells"])]
    assert "\n\n".join(pages) + "\n" == table
    lines = [line.split() for line in table.splitlines()]
    assert ["rope", "0", "600", "0.006", "1.5000", "picked"] in lines
    assert table in said
    assert run_main(monkeypatch, "nope", "rope", *RATES) == 0 and len(trained) == 11


def test_cells_that_differ_in_nothing_but_scheme_and_seed_get_no_note(
    monkeypatch: pytest.MonkeyPatch, trained: list[str], capsys: pytest.CaptureFixture
) -> None:
    assert run_main(monkeypatch, "nope", "rope", "--seeds=1,2") == 0
    assert len(trained) == 4 and "note:" not in capsys.readouterr().out


def test_a_rate_at_the_edge_is_followed_by_one_more_and_marked_if_that_is_best_too(
    monkeypatch: pytest.MonkeyPatch, trained: list[str], rates: dict, capsys: pytest.CaptureFixture
) -> None:
    rates |= {"nope": [2.0, 1.9, 1.8, 1.7, 1.6]}
    run_main(monkeypatch, "nope", *RATES)
    assert [name for name in trained if name.endswith("seed 0")] == [
        f"nope lr={rate}, seed 0" for rate in (0.001, 0.003, 0.006, 0.012)
    ]
    assert trained[-1] == "nope lr=0.012, seed 2"
    assert "0.012  1.7000  picked, at the edge" in capsys.readouterr().out


def test_a_scheme_whose_rates_failed_is_named_and_the_others_are_compared(
    monkeypatch: pytest.MonkeyPatch, trained: list[str], rates: dict, capsys: pytest.CaptureFixture
) -> None:
    rates |= {"nope": [2.0, 1.5, 2.0], "rope": [2.0, 1.5, 2.0]}
    good, broken = ablate.train, "nope lr=0.003, seed 0"
    monkeypatch.setattr(
        ablate,
        "train",
        lambda cell, relay: "error: no disk" if cell.name == broken else good(cell, relay),
    )
    assert run_main(monkeypatch, "nope", "rope", *RATES) == 1
    said = capsys.readouterr()
    assert f"failed: {broken}: error: no disk" in said.err
    assert not any(name.startswith("nope, seed") for name in trained)
    assert "rope lr=0.003, seed 2" in trained
    assert "nope, seed 1: no result: its learning rate is not picked" in said.out


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_a_share_picks_the_rates_of_its_own_schemes_and_the_last_one_compares(
    parts: int,
    monkeypatch: pytest.MonkeyPatch,
    trained: list[str],
    rates: dict,
    capsys: pytest.CaptureFixture,
) -> None:
    rates |= {"nope": [2.0, 1.5, 1.8], "rope": [2.0, 1.8, 1.5, 1.9], "alibi": [2.0, 1.5, 1.8]}
    for part in range(1, parts + 1):
        before = len(trained)
        run_main(monkeypatch, *SCHEMES, *RATES, f"--only={part}/{parts}")
        assert {name.split()[0] for name in trained[before:]} == set(SCHEMES[part - 1 :: parts])
        assert bool(list(Path("out").glob("ablate-*"))) == (part == parts)
    assert len(trained) == len(set(trained)) == 10 + 6
    assert ("not compared yet" in capsys.readouterr().out) == (parts > 1)


def test_a_rate_that_diverged_is_known_and_not_tried_again(
    monkeypatch: pytest.MonkeyPatch, trained: list[str], rates: dict, capsys: pytest.CaptureFixture
) -> None:
    rates |= {"nope": [1.9, 1.5, math.inf]}
    good, stand_in = ablate.train, ablate.tuned

    def train(cell: ablate.Cell, relay: ablate.Relay) -> str:
        if cell.settings.learning_rate < 6e-3:
            return good(cell, relay)
        trained.append(cell.name)
        finish(cell, dtype=device.pick("auto", "auto").dtype_name)
        (cell.folder / "extrapolation.json").unlink()
        line = '{"step": 7, "loss": 5.0}\n{"step": 8, "diverged": "loss nan"}\n'
        (cell.folder / "metrics.jsonl").write_text(line, encoding="utf-8")
        return "error: step 8: loss nan"

    monkeypatch.setattr(ablate, "train", train)
    real = ablate.diverged
    monkeypatch.setattr(
        ablate, "tuned", lambda run: math.inf if real(run.folder) else stand_in(run)
    )
    assert run_main(monkeypatch, "nope", *RATES) == 0
    assert "diverged" in capsys.readouterr().out
    assert trained[-1] == "nope lr=0.003, seed 2" and len(trained) == 5
    assert run_main(monkeypatch, "nope", *RATES) == 0 and len(trained) == 5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--learning_rates=1e-4,3e-3", "--min_lr=1e-3"], "min_lr = 0.001 is above"),
        (["--learning_rates=0,3e-3"], "above 0"),
    ],
)
def test_rates_that_cannot_be_tried_are_refused(words: list[str], said: str, rates: dict) -> None:
    with pytest.raises(UserError, match=said):
        cells_of("rope", *words)


def test_a_corpus_with_too_little_text_to_pick_on_is_refused_before_anything_runs() -> None:
    with pytest.raises(UserError, match="too little validation text to choose by|few"):
        cells_of("rope", "--learning_rates=1e-3,3e-3")


def test_a_comparison_with_rates_has_a_folder_of_its_own(rates: dict) -> None:
    def folder(*words: str) -> Path:
        settings, schemes = configure(AblateSettings, ["--dataset=tiny", "nope", *words], "")
        return ablate.comparison_folder(settings, ablate.plan(settings, schemes))

    words = ((), ("--learning_rates=1e-3,3e-3",), ("--learning_rates=3e-3,6e-3",))
    assert len({folder(*own) for own in words}) == 3


def test_a_stop_while_rates_are_tried_starts_nothing_else(
    monkeypatch: pytest.MonkeyPatch, trained: list[str], rates: dict, capsys: pytest.CaptureFixture
) -> None:
    good = ablate.train

    def train(cell: ablate.Cell, relay: ablate.Relay) -> str:
        relay.signal = signal.SIGINT
        return good(cell, relay)

    monkeypatch.setattr(ablate, "train", train)
    rates |= {"nope": [1.9, 1.5, 1.6], "rope": [1.9, 1.5, 1.6]}
    assert run_main(monkeypatch, "nope", "rope", *RATES) == 130
    assert len(trained) == 1 and "goes on from there" in capsys.readouterr().out


def test_a_rate_is_judged_on_validation_text_that_no_test_scores(
    longer_text: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--dataset=tiny", *TINY[2:], "--max_iters=4", "--learning_rates=1e-3,3e-3"]
    settings, schemes = configure(AblateSettings, [*words, "nope"], "")
    run = ablate.trial(ablate.plan(settings, schemes)[0], 1e-3, settings)
    assert ablate.tuned(run) is None
    monkeypatch.setattr(sys, "argv", ["train.py", *ablate.words_for_train(run.settings)])
    assert train.main() == 0
    result, (model, corpus) = run.result(), (load_run(run.folder).model, data.load("tiny"))
    assert {row["length"] for row in result["rows"]} == {16} and result["step"] == 2
    nats = ablate.tuned(run)
    assert nats == evaluate.tuning_loss(
        evaluate.Tester(model, corpus, device.pick("cpu", "float32")), 16, 64
    )
    assert nats != results.rows_on(result["rows"], "tiny")["fixed_targets", 16]["nats"]
    with (run.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 2, "diverged": "loss nan"}\n')
    assert ablate.tuned(run) == math.inf


def test_a_rate_for_rows_is_judged_on_training_rows_that_its_run_has_not_read(
    corpora: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recall, "TRAIN_ROWS", 600)
    monkeypatch.setattr(recall, "TEST_ROWS", (8,))
    recall.prepare(corpora / "recall", length=16)
    words = ["--dataset=recall", *TINY[3:], "--learning_rates=1e-3,3e-3", "--dtype=float32"]
    settings, _ = configure(AblateSettings, [*words, "nope", "--max_iters=20"], "")
    run = ablate.trial(ablate.plan(settings, ["nope"])[0], 1e-3, settings)
    monkeypatch.setattr(sys, "argv", ["train.py", *ablate.words_for_train(run.settings)])
    assert train.main() == 0
    model, corpus, read = load_run(run.folder).model, data.load("recall"), ablate.sequences_of
    inputs, targets = rows.batch(corpus, 16, 0, read(run.settings), 512)
    seen, _ = rows.batch(corpus, 16, 0, 0, read(run.settings))
    both = np.concatenate([seen, inputs])
    assert len(seen) == 20 and len(np.unique(both, axis=0)) == len(np.unique(seen, axis=0)) + 512
    with torch.no_grad():
        losses = model.losses(torch.from_numpy(inputs), torch.from_numpy(targets))
    assert ablate.tuned(run) == pytest.approx(float(losses.sum() / (targets >= 0).sum()), rel=1e-5)
    longer, _ = configure(AblateSettings, [*words, "nope", "--max_iters=200"], "")
    with pytest.raises(UserError, match="of the 600 training rows of recall 200 are read by then"):
        ablate.plan(longer, ["nope"])


# ---- again, with other steps, after other tests


def test_other_steps_go_on_in_the_same_cells(
    monkeypatch: pytest.MonkeyPatch, trained: list[str], capsys: pytest.CaptureFixture
) -> None:
    run_main(monkeypatch, "nope", "rope", "--seeds=1", "--max_iters=200")
    run_main(monkeypatch, "nope", "rope", "--seeds=1", "--max_iters=400")
    assert len(trained) == 4 and len(list(Path("out").glob("ablate-*"))) == 2
    for path in Path("out").glob("*-s1"):
        (path / "metrics.jsonl").write_text('{"step": 400, "loss": 2.0}\n', encoding="utf-8")
    assert run_main(monkeypatch, "nope", "--seeds=1", "--max_iters=200", "--overwrite=True") == 0


def test_a_cell_that_was_trained_longer_in_two_parts_is_noted(
    monkeypatch: pytest.MonkeyPatch, trained: list[str], capsys: pytest.CaptureFixture
) -> None:
    other = cells_of("rope", "--seeds=1", "--eval_lengths=64,256")[0]
    parts = [{"from_step": 0, "max_iters": 600}, {"from_step": 600, "max_iters": 1200}]
    finish(other, history=parts)
    run_main(monkeypatch, "nope", "rope", "--seeds=1")
    assert "note: history is not the same in all cells" in capsys.readouterr().out


def test_a_later_look_at_other_lengths_or_texts_changes_no_table(
    monkeypatch: pytest.MonkeyPatch, trained: list[str], capsys: pytest.CaptureFixture
) -> None:
    run_main(monkeypatch, "nope", "rope", "--seeds=1")
    (folder,) = Path("out").glob("ablate-*")
    table = (folder / "table.txt").read_text(encoding="utf-8")
    path = Path("out/rope-tiny-L128-s1/extrapolation.json")
    result = read_json(path)
    looks = ({"length": 512, "nats": 9.0}, {"dataset": "other", "nats": 8.0}, {"dtype": "y"})
    more = [row | {"nats": 7.0} | look for row in result["rows"] for look in looks]
    write_json(path, result | {"rows": [*more[:-1], *result["rows"], *more]})
    run_main(monkeypatch, "nope", "rope", "--seeds=1")
    assert (folder / "table.txt").read_text(encoding="utf-8") == table and len(trained) == 2
