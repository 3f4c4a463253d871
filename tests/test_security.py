"""Files that a user gets from others run no code, and code of his own runs only where he names it."""

import ast
from pathlib import Path

import pytest
from conftest import REPOSITORY, call
from test_train import OWN, run

import evaluate
import sample
from configurable import UserError

SOURCES = [
    path
    for pattern in ("*.py", "runs/*.py", "data/**/*.py", "tools/*.py", "zoo/*.py")
    for path in REPOSITORY.glob(pattern)
]


def calls(tree: ast.AST) -> list[tuple[str, ast.Call]]:
    """The calls in a file, with what is called."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [(ast.unparse(node.func), node) for node in found]


def test_nothing_that_runs_a_text_or_a_pickle_is_called() -> None:
    loads = []
    for path in SOURCES:
        for name, node in calls(ast.parse(path.read_text(encoding="utf-8"))):
            keywords = {k.arg: ast.unparse(k.value) for k in node.keywords}
            assert name not in ("eval", "exec", "compile", "os.system"), path
            assert name.split(".")[0] not in ("pickle", "marshal", "shelve"), path
            assert keywords.get("shell") != "True", path
            if name in ("np.load", "numpy.load"):
                assert keywords.get("allow_pickle") == "False", path
            if name == "torch.load":
                loads.append((path.name, keywords.get("weights_only")))
            if name in ("extractall", "shutil.unpack_archive"):
                raise AssertionError(path)
    assert loads and all(weights_only == "True" for _, weights_only in loads)


def test_every_file_is_read_and_written_in_a_named_encoding() -> None:
    for path in SOURCES:
        for name, node in calls(ast.parse(path.read_text(encoding="utf-8"))):
            keywords = {k.arg for k in node.keywords}
            if name.endswith((".read_text", ".write_text")):
                assert "encoding" in keywords, f"{path}:{node.lineno}"


@pytest.mark.usefixtures("here")
def test_a_file_of_schemes_runs_only_where_it_is_typed() -> None:
    marked = OWN.format(rate=1) + "\nopen('ran', 'a', encoding='utf-8').close()\n"
    Path("mine.py").write_text(marked, encoding="utf-8")
    Path("config.py").write_text("pos = 'root'\npos_file = 'mine.py'\n", encoding="utf-8")
    with pytest.raises(UserError, match="type it, as --pos_file"):
        run("config.py", "--out_dir=run")
    assert not Path("ran").exists()
    assert run("--pos=root", "--pos_file=mine.py", "--out_dir=run") == 0
    Path("ran").unlink()
    for program in (evaluate, sample):
        with pytest.raises(UserError, match="if you trust it"):
            call(program, "run", "--device=cpu")
    assert not Path("ran").exists()
