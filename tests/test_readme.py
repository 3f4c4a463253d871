"""README and docs keep their promises: the scheme of ten lines runs, commands, links and numbers are right."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pandas as pd
import pytest
import torch

import configurable
import evaluate
import posenc
import sample
import train
from common.errors import UserError
from data.corpus import load_corpus
from run.load import load_run
from scheme import Catalogue, Scheme
from tables.records import load_rows
from tools import board, compare, docs
from tools.explain import ExplainSettings

ROOT = Path(configurable.__file__).resolve().parent
PAGES = {path.name: path.read_text(encoding="utf-8") for path in ROOT.glob("docs/*.md")}
PAGES["gpu"] = (ROOT / "results/gpu/README.md").read_text(encoding="utf-8")
README = PAGES["README.md"] = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = PAGES["CONTRIBUTING.md"] = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PROGRAMS = {
    "train.py": configurable.TrainSettings,
    "evaluate.py": configurable.EvaluateSettings,
    "ablate.py": configurable.AblateSettings,
    "report.py": configurable.ReportSettings,
    "sample.py": configurable.SampleSettings,
    "tools.explain": ExplainSettings,
}


def code(page: str, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.M | re.S)


def commands() -> list[str]:
    """Every line of a shell block, without comments, and every `python ...` in a sentence."""
    found = []
    for page in PAGES.values():
        for block in code(page, "sh"):
            lines = block.replace("\\\n", " ").splitlines()
            found += [re.split(r"\s+#\s", line)[0].strip() for line in lines]
        found += re.findall(r"`((?:python|torchrun) [^`]*)`", page)
    return found


SCHEME = code(README, "python")[0]
LOADING = code(PAGES["python.md"], "python")[0]


# ---- the scheme of one's own


def test_the_scheme_of_ten_lines_is_its_formula(tmp_path):
    file = tmp_path / "my_scheme.py"
    file.write_text(SCHEME, encoding="utf-8")
    catalogue = Catalogue(file)
    assert issubclass(catalogue.find("root"), posenc.Piece)
    (piece,) = Scheme("root", posenc.Shape(4, 8, 32, 16), 2, catalogue).pieces.values()
    h, i, j = torch.tensor([[[1]]]), torch.tensor([[9], [4]]), torch.tensor([[0, 4]])
    slope = posenc.alibi_slopes(4)[1]
    expected = -slope * torch.tensor([[3.0, 5**0.5], [2.0, 0.0]])
    torch.testing.assert_close(piece.bias(h, i, torch.minimum(i, j))[0], expected)


def test_the_scheme_of_ten_lines_is_trained_tested_sampled_and_loaded(here, monkeypatch, capsys):
    Path("my_scheme.py").write_text(SCHEME, encoding="utf-8")

    def run(program, words):
        monkeypatch.setattr(sys, "argv", [program.__name__ + ".py", *words.split()])
        program.main()
        return capsys.readouterr().out

    words = """--pos=root --pos_file=my_scheme.py --dataset=tiny --out_dir=mine --compile=False
        --n_layer=2 --n_head=2 --n_embd=16 --block_size=16 --batch_size=4 --max_iters=6
        --warmup_iters=2 --eval_interval=3 --eval_iters=1 --log_interval=1 --eval_lengths=16,64
        --device=cpu --dtype=float32"""
    run(train, words)
    run(evaluate, "mine --pos_file=my_scheme.py --eval_lengths=16,128")
    rows = load_rows(["mine"])
    assert set(rows.length) == {16, 64, 128} and rows.nats.notna().all()
    said = run(sample, "mine --pos_file=my_scheme.py --max_new_tokens=40 --start=to")
    assert said.startswith("to")
    assert load_run("mine", pos_file="my_scheme.py").step == 6
    names = {}
    exec(re.sub(r'load_run\("[^"]*"', 'load_run("mine", pos_file="my_scheme.py"', LOADING), names)
    assert names["logits"].shape == (1, 3, 256) and names["loss"].item() > 0


# ---- commands, settings, files


def test_the_commands_are_understood(monkeypatch):
    monkeypatch.chdir(ROOT)
    checked = set()
    for command in commands():
        words = shlex.split(command.replace("$SLURM_ARRAY_TASK_ID", "1"))
        program = next((word for word in words if word in PROGRAMS), None)
        if program:
            words = words[words.index(program) + 1 :]
            if "||" in words:
                words = words[: words.index("||")]
            configurable.configure(PROGRAMS[program], words)
            checked.add(program)
    assert checked == set(PROGRAMS)


def test_every_script_in_a_command_is_there():
    named = {word for command in commands() for word in re.findall(r"[\w/.-]+\.py\b", command)}
    examples = {"my_scheme.py", "mine.py", "PROGRAM.py"}
    missing = [name for name in named - examples if "$" not in name and not (ROOT / name).is_file()]
    assert len(named) >= 10 and missing == []


def test_every_make_target_that_is_named_exists():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    pages = "\n".join(PAGES.values())
    named = set(re.findall(r"(?:^|`)make ([a-z][\w-]+)", pages, re.M))
    assert {"test"} <= named <= targets and "train" in targets


def test_every_local_link_and_picture_is_there():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("results/**/*.md")]
    for path in pages:
        for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
            if not re.match(r"[a-z]+:|#", target):
                assert (path.parent / target.partition("#")[0]).exists(), f"{path}: {target}"


def test_the_scripts_are_bash():
    scripts = [text for text in code(PAGES["cluster.md"], "sh") if text.startswith("#!/bin/bash")]
    assert len(scripts) >= 2
    for text in scripts:
        subprocess.run(["bash", "-n"], input=text, encoding="utf-8", check=True)


def test_the_script_for_submitit_starts_every_share_once(monkeypatch):
    (text,) = code(PAGES["cluster.md"], "python")
    shares = []

    class Popen:
        def __init__(self, command):
            assert Path(command[1]) == Path("ablate.py")
            settings, _ = configurable.configure(configurable.AblateSettings, command[2:])
            shares.append(settings.only)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def wait(self):
            return 0

    submitit = MagicMock()
    submitit.helpers.Checkpointable = object
    submitit.AutoExecutor().map_array = lambda share, numbers: [share(n) for n in numbers]
    monkeypatch.setitem(sys.modules, "submitit", submitit)
    monkeypatch.setattr(subprocess, "Popen", Popen)
    exec(text, {"__name__": "share"})
    assert shares == [f"{number}/6" for number in range(1, 7)]


def test_the_corpus_of_contributing_is_made_and_read(tmp_path):
    (text,) = code(CONTRIBUTING, "python")
    names = {"__name__": "prepare", "__file__": str(ROOT / "data/proverbs/prepare.py")}
    exec(text, names)
    names["prepare"](tmp_path / "proverbs")
    corpus = load_corpus("proverbs", tmp_path)
    assert len(corpus.val) > 1000 and corpus.tokenizer.decode(corpus.val[:8]) == "A stitch"


@pytest.mark.parametrize("name", ["schemes.md", "settings.md"])
def test_a_generated_page_is_up_to_date(name):
    """`make docs` writes it again."""
    assert PAGES[name] == docs.pages()[ROOT / "docs" / name]


# ---- numbers


def test_the_readme_is_short():
    lines = README.splitlines()
    assert len(lines) <= 130 and max(map(len, lines)) <= 100


def test_every_quoted_result_stands_in_its_file():
    """A block behind <!-- from: FILE --> holds lines of that file, unchanged."""
    pages = [*PAGES.values(), (ROOT / "results/speed.md").read_text(encoding="utf-8")]
    quoted = re.findall(r"<!-- from: (\S+) -->\n+```\w*\n(.*?)```", "\n".join(pages), re.S)
    assert {name for name, _ in quoted} >= {"results/main-job/output.txt", "results/gpu/table.txt"}
    for name, text in quoted:
        lines = {line.strip() for line in (ROOT / name).read_text(encoding="utf-8").splitlines()}
        assert {line.strip() for line in text.splitlines()} <= lines | {""}, name


def test_published_rows_are_read_in_one_line():
    files = [*ROOT.glob("results/**/rows.csv.xz")]
    assert len(files) >= 6
    for path in files:
        rows = pd.read_csv(path)
        assert {"pos", "seed", "protocol", "length", "nats", "block_nats"} <= set(rows), path
        row = rows[rows.block_nats.notna() & (rows.protocol == "fixed_targets")].head(1)
        for nats, blocks in zip(row.nats, row.block_nats, strict=True):
            assert np.mean([float(x) for x in blocks.split()]) == pytest.approx(nats, abs=1e-5)


# ---- nothing of the machine it was made on

MACHINE = re.compile(r"(?<![\w.])/(?:work|root|home|Users|workspace|mnt)/\w|[A-Z]:\\Users")


def test_no_file_names_a_path_of_one_machine():
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if files.returncode:
        pytest.skip("not a git repository")
    found = []
    for name in files.stdout.split("\0"):
        path = ROOT / name
        if path.is_file() and path != Path(__file__).resolve():
            found += MACHINE.findall(path.read_bytes().decode("utf-8", errors="replace"))
    assert found == []


@pytest.mark.slow
def test_the_notebook_runs_from_its_first_cell_to_its_last(tmp_path, monkeypatch):
    """In a folder of links to the project, so that nothing is written there; few steps."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    book = nbformat.read(ROOT / "docs/tour.ipynb", as_version=4)
    trains = next(cell for cell in book.cells if "train.py" in cell.source)
    trains.source = trains.source.replace("=False", '=False", "--max_iters=20')
    (tmp_path / "docs").mkdir()
    for path in ROOT.iterdir():
        if path.name not in ("docs", "out"):
            (tmp_path / path.name).symlink_to(path)
    where = {"metadata": {"path": str(tmp_path / "docs")}}
    nbclient.NotebookClient(book, timeout=300, resources=where).execute()  # raises what a cell does
    outputs = [out for cell in book.cells for out in cell.get("outputs", [])]
    assert sum("image/png" in out.get("data", {}) for out in outputs) >= 4


# ---- the board


@pytest.mark.parametrize(
    "page, table, base",
    [
        ("board/README.md", "rows.csv.xz", "rope"),
        ("board/gpu.md", "gpu.csv.xz", "rope 10.7M"),
        ("extend/README.md", "reach.csv.xz", "none"),
    ],
)
def test_a_page_of_the_board_has_the_numbers_of_its_rows(page, table, base):
    """The numbers were first computed by a program that used none of the project's statistics."""
    page = ROOT / "results" / page
    rows = load_rows(page.parent / table)
    numbers = board.measure(rows[rows.step == rows.max_iters])
    text = page.read_text(encoding="utf-8")
    for line in board.show(numbers, base).splitlines():
        assert line in text
    if page.name == "README.md" and page.parent.name == "board":
        assert f"{board.first_five(numbers)}\n" in text
        place = [text.index(f"\n| {label} | ") for label in ("kerple", "alibi", "t5", "rope")]
        assert place == sorted(place)  # by their rise
    assert board.compare(numbers[numbers.seed == 3], base).empty  # no p of one shared seed


# ---- papers


def compared(monkeypatch, capsys, *words: str) -> str:
    monkeypatch.setattr(sys, "argv", ["compare", *words])
    compare.main()
    return capsys.readouterr().out


def test_the_page_of_papers_has_the_differences_and_verdicts_of_its_rows(monkeypatch, capsys):
    text = compared(monkeypatch, capsys)
    page = (ROOT / "results/paper/README.md").read_text(encoding="utf-8")
    assert "reproduced    +1.577 ± 0.1018  Sinusoidal" in text and "+1.577 ± 0.102 nats" in page
    assert "contradicted  +0.042 ± 0.0159  as rotary" in text and "0.042 ± 0.016 nats" in page
    assert "undecided     +0.116 ± 0.1309  and farther" in text and "0.116 ± 0.131" in page
    assert "not tested    +0.914" in text


def test_papers_are_compared_with_rows_of_ones_own(monkeypatch, capsys, tmp_path):
    rows = pd.read_csv(ROOT / "results/seven/rows.csv.xz")
    path = tmp_path / "rows.csv.xz"
    rows[rows.pos.isin(["alibi", "rope", "sinusoidal"])].to_csv(path, index=False)
    text = compared(monkeypatch, capsys, "alibi", f"--rows={path}")
    assert "rope at 2 L: theirs 21.37 perplexity, ours" in text and "nats (seeds: 3)" in text
    assert "t5 at 1 L: theirs 19.65 perplexity, ours not measured\n" in text
    assert "reproduced    -1.137 ± 0.1820  Rotary models extrapolate better" in text
    assert "not measured  The T5 bias improves" in text
    text = compared(monkeypatch, capsys, f"--rows={path}")  # all papers
    assert "not measured  NoPE goes beyond" in text
    monkeypatch.setattr(sys, "argv", ["board", f"--rows={path}"])
    with pytest.raises(UserError, match="rows of finished runs on books_recall"):
        board.main()
    fixed = rows[rows.protocol == "fixed_targets"].set_index(["pos", "seed", "length"]).nats
    assert (fixed["rope"] - fixed["sinusoidal"]).unstack()[256].mean() == pytest.approx(
        -1.137, abs=6e-4
    )
    rows[rows.seed < 3].to_csv(path, index=False)
    assert "reproduced" not in compared(monkeypatch, capsys, "alibi", f"--rows={path}")  # two seeds
    pd.concat([rows, rows]).to_csv(path, index=False)
    for words in (["alibi", f"--rows={path}"], ["alibii"]):
        with pytest.raises(UserError, match="have the same seed|there are alibi, nope, randomized"):
            compared(monkeypatch, capsys, *words)
