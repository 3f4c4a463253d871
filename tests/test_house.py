"""The rules of the house: short functions, imports that point one way, docstrings, a short README, a quick --help."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import load_docs

house = load_docs("house")
REPOSITORY = Path(__file__).resolve().parents[1]
CORE = house.core(REPOSITORY)
PREPARED = sorted(REPOSITORY.glob("data/*/prepare.py"))
PROGRAMS = [*house.PROGRAMS, "evaluate", "train"]

EXAMPLE = '''"""Text that is
no code."""

import os  # a comment


class A:
    """No code."""

    size: int = 3

    @property
    def area(self):
        """No code."""
        # a comment
        self.kept = os.name
        return """one
two

three"""
'''


# ---- the program that counts


def test_lines_are_counted_by_the_rule() -> None:
    assert house.code_lines(EXAMPLE) == 9  # the blank line in the string is none
    assert house.function_lengths(EXAMPLE) == [(7, "area")]


def test_names_are_counted_by_the_rule() -> None:
    assert house.defined(EXAMPLE) == ({"A", "size", "area", "kept"}, {"A"})
    texts = {"train.py": "import posenc\nposenc.f(a=1).b", "model.py": "", "posenc.py": EXAMPLE}
    assert house.names_on_path(texts) == (["kept", "size"], [])
    texts["train.py"] = "from posenc import A as B\nB(size=1).area"
    assert house.names_on_path(texts) == (["A", "area", "kept", "size"], ["A"])


def test_imports_are_counted_by_the_rule() -> None:
    texts = {
        "sample.py": "import ablate\nfrom runs import log\nimport torch",
        "ablate.py": "import runs.log as log",
        "runs/__init__.py": "",
        "runs/log.py": "import configurable",
        "configurable.py": "def f():\n    from posenc import x",
        "posenc.py": "import configurable",
    }
    arrows = house.imports(texts)
    assert arrows["sample"] == {"ablate", "runs.log"} and arrows["runs.log"] == {"configurable"}
    assert house.circles(arrows) == [["configurable", "posenc"]]
    assert house.upward(arrows) == ["configurable -> posenc"]
    assert house.between_programs(arrows) == ["sample -> ablate"]


def test_a_list_of_stops_must_be_in_the_code() -> None:
    texts = {
        "a.py": "import b\ndef f(x):\n    return b.Thing(x)",
        "b.py": "class Thing:\n    def __init__(self, x):\n        g = x\n    def h(self): ...",
    }
    good = [("a.py", "f"), ("b.py", "Thing.__init__")]
    assert house.check_stops(texts, [good]) == []
    assert house.check_stops(texts, [[*good, ("b.py", "Thing.g")]]) == ["b.py has no Thing.g"]
    (mistake,) = house.check_stops(texts, [[*good, ("b.py", "Thing.h")]])
    assert "not used" in mistake
    assert house.check_stops(texts, [good, [("b.py", "Thing.h")]]) == []  # it begins a part
    ways = {"one": [good], "two": [[("c.py", "f")]], "three": []}
    assert house.count_stops(texts, ways) == "2; not found; not found"


# ---- the rules


def test_no_function_is_over_40_lines() -> None:
    lengths = [
        (n, f"{file} {name}") for file in CORE for n, name in house.function_lengths(CORE[file])
    ]
    assert [found for found in lengths if found[0] > 40] == []


def test_imports_point_one_way() -> None:
    arrows = house.imports(CORE)
    assert len(arrows) >= 20 and house.circles(arrows) == []
    assert house.upward(arrows) == [] and house.between_programs(arrows) == []


def test_the_stops_are_in_the_code() -> None:
    for parts in house.STOPS.values():
        assert parts and house.check_stops(CORE, parts) == []


def public(tree: ast.Module) -> list[ast.AST]:
    """The functions, classes and methods of a file whose names do not begin with `_`."""
    found = []
    for node in tree.body:
        if isinstance(node, house.DEFINITIONS) and not node.name.startswith("_"):
            found.append(node)
            inner = node.body if isinstance(node, ast.ClassDef) else []
            found += [m for m in inner if isinstance(m, house.DEFINITIONS) and m.name[0] != "_"]
    return found


@pytest.mark.parametrize("file", CORE)
def test_public_names_have_docstrings(file: str) -> None:
    tree = ast.parse(CORE[file])
    assert ast.get_docstring(tree)
    assert [node.name for node in public(tree) if not ast.get_docstring(node)] == []


def test_the_readme_is_short() -> None:
    assert len((REPOSITORY / "README.md").read_text(encoding="utf-8").splitlines()) <= 200


def test_the_page_has_the_rule_and_every_row() -> None:
    page = (REPOSITORY / "docs/house.md").read_text(encoding="utf-8")
    assert house.__doc__.partition("-----\n")[2].strip() in page
    assert all(f"| {title} |" in page for title in house.TITLES.values())


@pytest.mark.parametrize("path", PREPARED, ids=lambda path: path.parent.name)
def test_help_of_a_corpus_shows_how_it_is_made(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    examples = re.findall(
        r"^ *python (data/\w+/prepare.py)", ast.get_docstring(ast.parse(text)), re.M
    )
    own = [at for at in examples if at == f"data/{path.parent.name}/prepare.py"]
    alone = "parser.add_argument" not in text and "add(" not in text  # there is nothing to choose
    assert len(own) >= (1 if alone else 3) and "new_parser(__doc__)" in text


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_answers_before_torch_is_imported(program: str) -> None:
    words = [sys.executable, "-X", "importtime", REPOSITORY / f"{program}.py", "--help"]
    done = subprocess.run(words, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0 and "--" in done.stdout and program in done.stdout
    imported = re.findall(r"\| +([\w.]+)$", done.stderr, re.M)
    heavy = [name for name in imported if name in ("torch", "numpy", "matplotlib", "wandb")]
    assert "configurable" in imported and heavy == []
