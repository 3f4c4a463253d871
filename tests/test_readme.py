"""The README keeps its promises: its scheme runs, its files and links are there, its settings and messages are the program's."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import checkpoint
import numpy as np
import pytest
import report
import torch
from scheme import Scheme

import configurable
import data
import evaluate
import explain
import posenc
import sample
import train
from configurable import (
    AblateSettings,
    EvaluateSettings,
    ExtendSettings,
    SampleSettings,
    TrainSettings,
)

REPOSITORY = Path(configurable.__file__).resolve().parent
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)  # (language, text)
COMMANDS = [
    line.partition("  #")[0].strip()
    for language, text in BLOCKS
    if language == "sh"
    for line in text.splitlines()
]


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


def section(title: str) -> str:
    """The text under a heading."""
    return re.search(
        rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", README, re.MULTILINE | re.DOTALL
    )[1]


# ---- the scheme of your own


@pytest.fixture
def scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The README's scheme in my_scheme.py, and the words that train it on a small corpus."""
    text, load = (
        np.frombuffer(b"to be, or not to be: that is the question\n" * 40, dtype=np.uint8),
        data.load,
    )
    data.write_corpus(
        tmp_path / "corpora/tiny",
        {"train": [text], "val": [text]},
        tokenizer="bytes",
        vocab_size=256,
        unit="byte",
        source="here",
        rule="all",
    )
    monkeypatch.setattr(data, "load", lambda name: load(name, tmp_path / "corpora"))
    monkeypatch.setattr(report, "figure", lambda results, path, dataset="": None)
    monkeypatch.chdir(tmp_path)
    (code,) = (text for language, text in BLOCKS if language == "python")
    Path("my_scheme.py").write_text(code, encoding="utf-8")
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield [
        "--pos_file=my_scheme.py",
        "--dataset=tiny",
        "--n_layer=2",
        "--n_head=2",
        "--n_embd=16",
        "--block_size=16",
        "--batch_size=4",
        "--max_iters=6",
        "--warmup_iters=2",
        "--eval_interval=3",
        "--eval_iters=1",
        "--log_interval=1",
        "--eval_lengths=16,64",
        "--compile=False",
        "--device=cpu",
        "--dtype=float32",
        "--out_dir=mine",
    ]
    for number, handler in before.items():
        signal.signal(number, handler)


def expression() -> str:
    """How the README's command mentions the scheme of one's own."""
    (command,) = (line for line in COMMANDS if "--pos_file=my_scheme.py" in line)
    return re.search(r"'([^']+)'", command)[1]


def test_the_scheme_of_ten_lines_is_trained_tested_long_and_sampled(
    scheme: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", f"--pos={expression()}", *scheme])
    assert train.main() == 0
    monkeypatch.setattr(
        sys, "argv", ["evaluate.py", "mine", "--pos_file=mine/pos_file.py", "--eval_lengths=16,128"]
    )
    evaluate.main()
    rows = report.load("mine")["rows"]
    assert {row["length"] for row in rows} == {16, 64, 128} and all(
        row["nats"] is not None for row in rows
    )
    capsys.readouterr()
    monkeypatch.setattr(
        sys,
        "argv",
        [
            "sample.py",
            "mine",
            "--pos_file=mine/pos_file.py",
            "--max_new_tokens=40",
            "--start=to be",
        ],
    )
    sample.main()
    assert capsys.readouterr().out


def test_the_scheme_of_ten_lines_is_its_formula_and_decodes_with_a_cache(scheme: list[str]) -> None:
    piece = posenc.find("root", Path("my_scheme.py"))(posenc.Shape(4, 8, 32, 16), scale=2.0)
    bias = piece.bias(torch.empty(0, dtype=torch.float64))
    h, i, j = torch.tensor([[[1]]]), torch.tensor([[9], [4]]), torch.tensor([[0, 4]])
    slope = 2 * posenc.alibi_slopes(4)[1].item()
    assert torch.allclose(
        bias(h, i, torch.minimum(i, j))[0],
        torch.tensor([[-3.0, -(5**0.5)], [-2.0, 0.0]]).double() * slope,
    )
    settings = configurable.configure(TrainSettings, [f"--pos={expression()}", *scheme], "")[0]
    model = train.begin(settings).model.eval()
    idx, cache = torch.arange(40)[None], model.new_cache(1, 40)
    with torch.no_grad():
        parts = [model(part, cache=cache)[0] for part in idx.split([7, 1, 30, 2], dim=1)]
        whole = model(idx, targets=idx)[0]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-5)


def test_the_scheme_is_ten_lines() -> None:
    (code,) = (text for language, text in BLOCKS if language == "python")
    lines = [
        line
        for line in code.splitlines()
        if line.strip() and not line.lstrip().startswith(('"""', "#"))
    ]
    assert len(lines) <= 10


# ---- commands and settings


def test_every_script_and_config_file_in_a_command_is_there() -> None:
    named = {
        word
        for command in [*COMMANDS, *re.findall(r"`(python [^`]*)`", README)]
        for word in re.findall(r"[\w/.-]+\.py\b", command)
    }
    assert len(named) >= 6
    assert (
        sorted(name for name in named - {"my_scheme.py"} if not (REPOSITORY / name).is_file()) == []
    )


def test_every_setting_that_is_named_exists() -> None:
    known = {
        f.name
        for cls in (
            TrainSettings,
            EvaluateSettings,
            SampleSettings,
            AblateSettings,
            ExtendSettings,
            explain.ExplainSettings,
        )
        for f in fields(cls)
    }
    prepare = (REPOSITORY / "data/text/prepare.py").read_text(encoding="utf-8")
    known |= {name for name in re.findall(r"[\"']--(\w+)[\"']", prepare)} | {
        "help",
        "debug",
        "key",
    }  # --key=value stands for all
    known |= {
        "standalone",
        "nproc_per_node",
        "max",
        "nnodes",
        "node_rank",
        "master_addr",
        "master_port",
    }  # torchrun's
    named = set(re.findall(r"--([a-z]\w*)", README))
    assert len(named) >= 10 and sorted(named - known) == []


def test_the_commands_are_understood() -> None:
    kinds = {
        "train.py": TrainSettings,
        "evaluate.py": EvaluateSettings,
        "sample.py": SampleSettings,
        "ablate.py": AblateSettings,
        "posenc.py": explain.ExplainSettings,
    }
    checked = 0
    for command in COMMANDS:
        words = [
            quoted or bare
            for quoted, bare in re.findall(r"'([^']*)'|((?:[^\s\"']|\"[^\"]*\")+)", command)
        ]
        if words[:1] == ["python"] and words[1] in kinds:
            argv = [
                str(REPOSITORY / word) if word.startswith("config/") else word.replace('"', "")
                for word in words[2:]
            ]
            configurable.configure(kinds[words[1]], argv, "")
            checked += 1
        elif words[:2] == ["make", "train"] and len(words) > 2:
            arguments = re.search(r'ARGS="([^"]*)"', command)[1].split()
            config = re.search(r"CONFIG=(\S+)", command)[1]
            configurable.configure(TrainSettings, [str(REPOSITORY / config), *arguments], "")
            checked += 1
    assert checked >= 5


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(
        re.findall(
            r"^([\w-]+):", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
        )
    )
    named = set(re.findall(r"(?:^|`)make ([\w-]+)", README, re.MULTILINE))
    assert {"train", "test"} <= named <= targets


def test_the_settings_table_is_the_generated_one() -> None:
    """python -c 'from configurable import *; print(settings_table(TrainSettings))' prints it."""
    assert configurable.settings_table(TrainSettings) in section("Settings")


def test_the_catalogue_is_what_the_program_prints() -> None:
    assert all(table in section("The schemes") for table in explain.catalogue().split("\n\n"))
    assert (
        re.findall(r"^\| `(\w+)", section("The schemes"), re.MULTILINE)
        == posenc.names() + posenc.extension_names()
    )


def test_the_expressions_in_the_table_of_schemes_can_be_built() -> None:
    mentioned = re.findall(r"^\| `'?(.*?)'?` \|", section("Compare two schemes"), re.MULTILINE)
    shape = posenc.Shape(4, 64, 256, 128)
    assert len(mentioned) >= 5
    for text in mentioned:
        Scheme(text.replace("\\|", "|"), shape, 4)


def test_the_methods_of_a_piece_that_are_named_exist() -> None:
    named = re.findall(r"\(`(\w+)`\)", section("Your own scheme in ten lines"))
    assert len(named) >= 6 and all(name in vars(posenc.Piece) for name in named)


@pytest.mark.parametrize(
    "message", re.findall(r"^- \*\*(?:`|\")(.*?)(?:`|\")\*\*", section("Trouble"), re.MULTILINE)
)
def test_a_message_that_trouble_explains_is_one_that_the_program_says(message: str) -> None:
    code = " ".join(path.read_text(encoding="utf-8") for path in REPOSITORY.glob("*.py"))
    assert all(part in code for part in message.split(": "))


def test_trouble_quotes_messages() -> None:
    assert len(re.findall(r"^- \*\*(?:`|\")", section("Trouble"), re.MULTILINE)) >= 3


# ---- files and links


def tree() -> dict[str, str]:
    """The README's file tree: {name: what is said of it}."""
    (block,) = (text for language, text in BLOCKS if text in section("The files"))
    return dict(
        re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in block.splitlines() if line.strip()
    )


def test_the_file_tree_names_files_that_are_there_with_a_line_each() -> None:
    assert sorted(name for name in tree() if not (REPOSITORY / name).exists()) == []
    assert all(len(text) > 5 for text in tree().values())


def test_every_script_and_folder_is_in_the_file_tree() -> None:
    names = {
        path.relative_to(REPOSITORY).parts[0] + "/" * (path.parent != REPOSITORY)
        for path in files()
    }
    expected = {name for name in names if name.endswith((".py", "/")) and not name.startswith(".")}
    assert sorted(expected - tree().keys()) == []


def test_every_local_link_and_picture_is_there() -> None:
    for path in (path for path in files() if path.suffix == ".md"):
        for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
            if not re.match(r"[a-z]+:|#", target):
                assert (path.parent / target.partition("#")[0]).exists(), f"{path.name}: {target}"


def test_the_files_of_a_run_folder_are_those_that_are_written() -> None:
    code = "".join(
        (REPOSITORY / name).read_text(encoding="utf-8")
        for name in ("checkpoint.py", "train.py", "report.py")
    )
    for name in ("config.json", "metrics.jsonl", "extrapolation.json", "extrapolation.png"):
        assert f"`{name}`" in README and name in code
    assert f"out/alibi-stdlib-L{TrainSettings().block_size}-s{TrainSettings().seed}" in README
    assert checkpoint.folder_of(TrainSettings(pos="alibi")).as_posix() in README


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
    blocks = re.findall(r"<!-- from: (\S+) -->\n+```\w*\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 2
    for name, text in blocks:
        known = {
            line.strip() for line in (REPOSITORY / name).read_text(encoding="utf-8").splitlines()
        }
        assert [
            line for line in text.splitlines() if line.strip() and line.strip() not in known
        ] == [], name
