"""README and docs keep their promises: the scheme of ten lines runs, commands, files, links and messages exist."""

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import load_docs

import attention
import configurable
import data
import evaluate
import posenc
import sample
import train
from configurable import GPTConfig, TrainSettings
from model import GPT
from positions.catalogue import extension_names, find, scheme_names
from positions.scheme import Scheme
from runs.checkpoint import load_run
from runs.folder import run_folder
from runs.results import load_result

REPOSITORY = Path(configurable.__file__).resolve().parent
PAGES = {path.name: path.read_text(encoding="utf-8") for path in REPOSITORY.glob("docs/*.md")}
README = PAGES["README.md"] = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def blocks(*languages: str) -> list[str]:
    """The code blocks in README and docs of these languages."""
    found = [re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S) for text in PAGES.values()]
    return [text for page in found for language, text in page if language in languages]


COMMANDS = [
    re.split(r"\s+#\s", line)[0].strip() for text in blocks("sh") for line in text.splitlines()
]
COMMANDS += [
    c for text in PAGES.values() for c in re.findall(r"`((?:python|torchrun) [^`]*)`", text)
]
SCHEME, LOADING, PADDED = sorted(
    blocks("python"), key=lambda text: ("class" not in text, "padding" in text)
)


def files() -> list[Path]:
    """Every file that is, or would be, in the repository."""
    git = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    if git.returncode:
        pytest.skip("not a git repository")
    return [
        path for name in git.stdout.split("\0") if name and (path := REPOSITORY / name).is_file()
    ]


# ---- the scheme of your own


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The README's scheme in my_scheme.py, and a run trained with it as the README mentions it."""
    text = np.frombuffer(b"to be, or not to be: that is the question\n" * 40, dtype=np.uint8)
    splits = {"train": [text], "val": [text]}
    about = {"tokenizer": "bytes", "vocab_size": 256, "unit": "byte", "source": "here"}
    data.write_corpus(tmp_path / "corpora/tiny", splits, **about, rule="all")
    load = data.load
    monkeypatch.setattr(data, "load", lambda name: load(name, tmp_path / "corpora"))
    monkeypatch.chdir(tmp_path)
    Path("my_scheme.py").write_text(SCHEME, encoding="utf-8")
    (command,) = (line for line in COMMANDS if "--pos_file=my_scheme.py" in line)
    words = f"""--pos={re.search(r"'([^']+)'", command)[1]} --pos_file=my_scheme.py --dataset=tiny
        --n_layer=2 --n_head=2 --n_embd=16 --block_size=16 --batch_size=4 --max_iters=6
        --warmup_iters=2 --eval_interval=3 --eval_iters=1 --log_interval=1 --eval_lengths=16,64
        --compile=False --device=cpu --dtype=float32 --out_dir=mine"""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    before = {number: signal.getsignal(number) for number in numbers}
    monkeypatch.setattr(sys, "argv", ["train.py", *words.split()])
    assert train.main() == 0
    yield Path("mine")
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_scheme_of_ten_lines_is_trained_tested_long_sampled_and_loaded(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    own = "--pos_file=mine/pos_file.py"
    monkeypatch.setattr(sys, "argv", ["evaluate.py", "mine", own, "--eval_lengths=16,128"])
    evaluate.main()
    rows = load_result("mine")["rows"]
    assert {row["length"] for row in rows} == {16, 64, 128}
    assert all(row["nats"] is not None for row in rows)
    capsys.readouterr()
    words = ["sample.py", "mine", own, "--max_new_tokens=40", "--start=to be"]
    monkeypatch.setattr(sys, "argv", words)
    sample.main()
    assert capsys.readouterr().out.startswith("to be")
    model = load_run("mine", pos_file="my_scheme.py").model
    idx, cache = torch.arange(40)[None], model.new_cache(1, 40)
    with torch.no_grad():
        parts = [model(part, cache=cache)[0] for part in idx.split([7, 1, 30, 2], dim=1)]
        whole = model(idx, targets=idx)[0]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-5)
    loading = re.sub(r'load_run\("[^"]*"', 'load_run("mine", pos_file="my_scheme.py"', LOADING)
    names: dict[str, object] = {}
    exec(compile(loading, "README.md", "exec"), names)
    assert names["logits"].shape == (1, 3, 256) and names["loss"].item() > 0
    assert capsys.readouterr().out.startswith("def ")


def test_the_scheme_of_ten_lines_is_its_formula(tmp_path: Path) -> None:
    file = tmp_path / "my_scheme.py"
    file.write_text(SCHEME, encoding="utf-8")
    piece = find("root", file)(posenc.Shape(4, 8, 32, 16), scale=2.0)
    bias = piece.bias(torch.empty(0, dtype=torch.float64))
    h, i, j = torch.tensor([[[1]]]), torch.tensor([[9], [4]]), torch.tensor([[0, 4]])
    slope = 2 * posenc.alibi_slopes(4)[1].item()
    expected = torch.tensor([[-3.0, -(5**0.5)], [-2.0, 0.0]]).double() * slope
    assert torch.allclose(bias(h, i, torch.minimum(i, j))[0], expected)


def test_the_scheme_is_ten_lines() -> None:
    lines = [line.strip() for line in SCHEME.splitlines()]
    assert sum(bool(line) and not line.startswith(('"""', "#")) for line in lines) <= 10


# ---- commands and settings


def test_every_script_and_config_file_in_a_command_is_there() -> None:
    named = {word for command in COMMANDS for word in re.findall(r"[\w/.-]+\.py\b", command)}
    examples = {"my_scheme.py", "PROGRAM.py"}
    missing = [name for name in named - examples if not (REPOSITORY / name).is_file()]
    assert len(named) >= 10 and sorted(missing) == []


def test_every_setting_that_is_named_exists() -> None:
    commands = load_docs("generate").COMMANDS
    known = {f.name for cls in commands.values() for f in fields(cls)}
    for script in ("data/text/prepare.py", "docs/house.py"):
        code = (REPOSITORY / script).read_text(encoding="utf-8")
        known |= set(re.findall(r"[\"']--(\w+)[\"']", code))
    known |= {"help", "debug", "name", "key"}  # --name=value stands for all
    known |= set("standalone nproc_per_node max nnodes node_rank master_addr master_port".split())
    known |= set("rdzv_backend rdzv_endpoint array gres cpus time requeue signal open".split())
    known |= {"nodes", "ntasks"}  # of torchrun and SLURM
    named = {name for text in PAGES.values() for name in re.findall(r"--([a-z]\w*)", text)}
    assert len(named) >= 10 and sorted(named - known - {"line"}) == []  # ruff's --line-length


def test_the_commands_are_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    for word in ("ID", "MIN", "MAX", "STEP"):
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{word}", "1")  # of --only=array
    kinds = load_docs("generate").COMMANDS
    checked = set()
    for command in COMMANDS:
        found = re.findall(r"'([^']*)'|((?:[^\s\"']|\"[^\"]*\")+)", command)
        words = [quoted or bare.replace('"', "") for quoted, bare in found]
        if words[:2] == ["make", "train"] and len(words) > 2:
            arguments = re.search(r'ARGS="([^"]*)"', command)[1].split()
            words = ["python", "train.py", re.search(r"CONFIG=(\S+)", command)[1], *arguments]
        program = next((word for word in words if word in kinds), "")
        if program and "--help" not in words:
            argv = words[words.index(program) + 1 :]
            places = [str(REPOSITORY / w) if w.startswith("config/") else w for w in argv]
            configurable.configure(kinds[program], places, "")
            checked.add(program)
    assert checked == set(kinds)


def test_the_corpus_of_contributing_is_made_and_read(tmp_path: Path) -> None:
    text = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    names = {"__name__": "prepare", "__file__": str(REPOSITORY / "data/proverbs/prepare.py")}
    exec(code, names)
    names["prepare"](tmp_path / "proverbs")
    corpus = data.load("proverbs", tmp_path)
    assert len(corpus.val) > 1000 and corpus.tokenizer.decode(corpus.val[:8]) == "A stitch"
    files = re.findall(r"`((?:\w+/)+\w+\.\w+)`|`(\w+\.(?:py|toml))`", text)
    named = {name for pair in files for name in pair if name and "NAME" not in name}
    assert len(named) > 10 and [n for n in named if not (REPOSITORY / n).exists()] == []


def test_the_scripts_are_bash() -> None:
    scripts = [text for text in blocks("sh") if text.startswith("#!/bin/bash")]
    assert len(scripts) >= 2
    for text in scripts:
        subprocess.run(["bash", "-n"], input=text, encoding="utf-8", check=True)


def test_every_make_target_that_is_named_exists() -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+):", makefile, re.M))
    named = {n for text in PAGES.values() for n in re.findall(r"(?:^|`)make ([\w-]+)", text, re.M)}
    assert {"train", "test"} <= named <= targets


def test_the_commands_of_the_readme_find_the_python_of_make_train() -> None:
    """`make train` ends by printing the line of the README that puts its python first in PATH."""
    line = ". .venv/bin/activate"
    assert any(command == line for command in COMMANDS)
    if not shutil.which("make"):
        pytest.skip("needs make")
    words = ["make", "--no-print-directory", "--dry-run", "--always-make", "train"]
    said = subprocess.check_output(words, cwd=REPOSITORY, encoding="utf-8").splitlines()
    assert "venv" in said[0] and "train.py config/alibi.py" in said[-3] and line in said[-1]
    if not (REPOSITORY / ".venv/bin/activate").is_file():
        pytest.skip("no .venv here")
    words = ["bash", "-c", f"{line} && command -v python"]
    found = subprocess.check_output(words, cwd=REPOSITORY, encoding="utf-8").strip()
    assert Path(found) == REPOSITORY / ".venv/bin/python"


@pytest.mark.parametrize("name", ["schemes.md", "settings.md", "python.md"])
def test_a_generated_page_is_up_to_date(name: str) -> None:
    """`make docs` writes it again."""
    assert PAGES[name] == load_docs("generate").pages()[name]


def test_the_code_for_texts_of_several_lengths_runs() -> None:
    names = {"model": GPT(GPTConfig(block_size=8, n_layer=1, n_head=2, n_embd=16, vocab_size=9))}
    names |= {"idx": torch.randint(9, (3, 6)), "padding": torch.tensor([0, 4, 2])}
    exec(PADDED, names)
    assert names["logits"].shape == (3, 6, 9) and names["written"].shape == (3, 106)


def test_the_notebook_runs_from_its_first_cell_to_its_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder like the project's own, so that nothing is written into that; its models are
    trained for 20 steps and tested at two lengths here.
    """
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # other tests run beside it
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    book = nbformat.read(REPOSITORY / "docs/tour.ipynb", as_version=4)
    kept = [len(cell.outputs) for cell in book.cells if cell.cell_type == "code"]
    assert any(kept) and (REPOSITORY / "docs/tour.ipynb").stat().st_size < 300_000
    trains = next(cell for cell in book.cells if "train.py" in cell.source)
    for long, short in [("=False", '=False", "--max_iters=20'), ("64,128,256,512", "64,256")]:
        assert long in trains.source
        trains.source = trains.source.replace(long, short)
    (tmp_path / "docs").mkdir()
    for path in REPOSITORY.iterdir():
        if path.name not in ("docs", "out"):
            (tmp_path / path.name).symlink_to(path)
    where = {"metadata": {"path": str(tmp_path / "docs")}}
    nbclient.NotebookClient(book, timeout=300, resources=where).execute()  # raises what a cell does
    outputs = [out for cell in book.cells for out in cell.get("outputs", [])]
    assert sum("image/png" in out.get("data", {}) for out in outputs) >= 4


def test_the_page_of_schemes_lists_every_scheme_and_extension() -> None:
    listed = re.findall(r"^\| `(\w+)", PAGES["schemes.md"], re.M)
    assert set(listed) == set(scheme_names() + extension_names())


def test_the_expressions_in_the_table_of_schemes_can_be_built() -> None:
    mentioned = re.findall(r"^\| `'?(.*?)'?` \|", README, re.M)
    shape = posenc.Shape(4, 64, 256, 128)
    assert len(mentioned) >= 4
    for text in mentioned:
        Scheme(text.replace("\\|", "|"), shape, 4)


def test_the_methods_of_a_piece_that_are_named_exist() -> None:
    text = README.partition("## Your own scheme")[2].partition("\n## ")[0]
    named = re.findall(r"\(`(\w+)`\)", text)
    assert len(named) >= 6 and all(name in vars(posenc.Piece) for name in named)


def test_the_places_where_one_adds_something_exist() -> None:
    assert "`data/NAME/prepare.py`" in README and (REPOSITORY / "data/text/prepare.py").is_file()
    assert "`PLANS`" in README and set(configurable.PROTOCOLS) <= set(evaluate.PLANS)
    assert "`added_scores`" in README and callable(attention.added_scores)
    methods = re.search(r"`posenc.Extension` with (.*?), in a", README, re.S)[1]
    named = re.findall(r"`(\w+)`", methods)
    assert len(named) == 5 and all(name in vars(posenc.Piece) for name in named)


MESSAGES = re.findall(r"^- \*\*\"(.*?)\"\*\*", PAGES["runs.md"], re.M)


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_that_is_explained_is_one_that_a_program_says(message: str) -> None:
    paths = [p for pattern in ("*.py", "runs/*.py", "data/*.py") for p in REPOSITORY.glob(pattern)]
    code = " ".join(path.read_text(encoding="utf-8") for path in paths)
    assert len(MESSAGES) >= 3 and all(part in code for part in message.split(": "))


# ---- files and links


def tree() -> dict[str, str]:
    """The README's list of files: {name: what is said of it}."""
    block = re.search(r"## The files\n+```\n(.*?)```", README, re.S)[1]
    lines = [re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in block.splitlines()]
    return {name: text for names, text in lines for name in names.split()}


def test_the_list_of_files_names_files_that_are_there_with_a_line_each() -> None:
    assert sorted(name for name in tree() if not (REPOSITORY / name).exists()) == []
    assert all(len(text) > 5 for text in tree().values())


def test_every_script_and_folder_is_in_the_list_of_files() -> None:
    places = [path.relative_to(REPOSITORY) for path in files()]
    names = {place.parts[0] + ("/" if len(place.parts) > 1 else "") for place in places}
    expected = {name for name in names if name.endswith((".py", "/")) and not name.startswith(".")}
    assert sorted(expected - tree().keys()) == []


def test_every_local_link_and_picture_is_there() -> None:
    for path in (path for path in files() if path.suffix == ".md"):
        for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
            if not re.match(r"[a-z]+:|#", target):
                assert (path.parent / target.partition("#")[0]).exists(), f"{path.name}: {target}"


def test_the_files_of_a_run_folder_are_those_that_are_written() -> None:
    paths = [REPOSITORY / "train.py", *REPOSITORY.glob("runs/*.py")]
    code = "".join(path.read_text(encoding="utf-8") for path in paths)
    for name in ("config.json", "metrics.jsonl", "extrapolation.json", "extrapolation.png"):
        assert f"`{name}`" in PAGES["runs.md"] and name in code
    assert f"`{run_folder(TrainSettings(pos='alibi')).as_posix()}`" in README


# ---- nothing of the machine it was made on

MACHINE = re.compile(
    r"(?<![\w.])/(?:work|root|home|Users|workspace|mnt)/\w|/tmp/\w+/(?:bin|lib)\b|[A-Z]:\\Users"
)
REGISTRY = re.compile(
    r"index-url|trusted-host|find-links|https?://[\w.:@-]*(?:py"
    r"pi|devpi|artifactory|nexus|anaconda|registry)",
    re.IGNORECASE,
)


@pytest.mark.parametrize(
    "pattern", [MACHINE, REGISTRY], ids=["a path of one machine", "a package registry"]
)
def test_no_file_names(pattern: re.Pattern) -> None:
    found = []
    for path in files():
        if path != Path(__file__).resolve():
            text = path.read_bytes().decode("utf-8", errors="replace")
            found += [
                f"{path.relative_to(REPOSITORY)}: {match[0]}" for match in pattern.finditer(text)
            ]
    assert found == []


def test_what_may_not_be_named_would_be_found() -> None:
    for text in ("see /work/main/x", "/home/me/run", "/tmp/env/bin/python"):
        assert MACHINE.search(text)
    for text in ("--extra-index-url=x", "https://pypi.example.org/simple"):
        assert REGISTRY.search(text)
    assert not MACHINE.search("--out_dir=/tmp/run, and/or a/work/b") and not REGISTRY.search(
        "https://arxiv.org/abs/1"
    )


def test_what_a_run_leaves_is_not_tracked() -> None:
    names = [path.relative_to(REPOSITORY).as_posix() for path in files()]
    assert [
        name
        for name in names
        if name.endswith((".bin", ".pt", ".npy")) or name.startswith(("out/", "wandb/", ".venv/"))
    ] == []


# ---- numbers


def test_every_quoted_result_stands_in_its_file() -> None:
    """A block behind <!-- from: FILE --> holds lines of that file, unchanged."""
    pattern = r"<!-- from: (\S+) -->\n+```\w*\n(.*?)```"
    quoted = [found for text in PAGES.values() for found in re.findall(pattern, text, re.S)]
    assert len(quoted) >= 4
    for name, text in quoted:
        known = {x.strip() for x in (REPOSITORY / name).read_text(encoding="utf-8").splitlines()}
        assert [x for x in text.splitlines() if x.strip() not in known | {""}] == [], name
