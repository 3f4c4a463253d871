"""docs/house.py: what it counts, held against small texts counted by hand."""

import ast
import importlib.util
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
spec = importlib.util.spec_from_file_location("house", REPOSITORY / "docs" / "house.py")
house = importlib.util.module_from_spec(spec)
spec.loader.exec_module(house)

TEXT = '''"""A docstring
of two lines."""

# a comment
class One:
    """Another."""

    field: int = 1

    def method(self):
        self.attribute = f"""text
        of two lines"""
        return other(self, key=2)
'''


def test_lines_and_nodes():
    assert house.code_lines(TEXT) == 6
    assert house.nodes("x = 1") == 5  # module, assignment, name, store, constant
    assert house.nodes('"""A docstring."""') == 3


def test_dense_lines():
    dense = ['x = ["a"] * (b > 0)', 'x = "s" * (b and c)', "x = (not b) * [1]", "a, b = 1, f(2)"]
    dense += ["f(*about)", "f(**how)"]
    plain = ["x = [0] * n", "a, b = b, a", "f(*rest)", "a, b = pair", "x = 2 * (a > b)"]
    for line in dense:
        assert house.dense_lines(line) == [1], line
    for line in plain:
        assert house.dense_lines(line) == [], line


def test_names():
    tree = ast.parse(TEXT)
    assert house.defined_names(tree) == {"One", "field", "method", "attribute"}
    assert {"attribute", "other", "key"} <= house.used_names(tree)
    assert "method" not in house.used_names(tree)


def test_imports():
    trees = {
        "model.py": ast.parse("import data\nfrom runs import log"),
        "data/__init__.py": ast.parse("def f():\n    import model"),
        "runs/log.py": ast.parse("import torch"),
    }
    arrows = house.imports(trees)
    assert arrows == {"model": {"data", "runs.log"}, "data": {"model"}, "runs.log": set()}
    assert house.circles(arrows) == ["data", "model"]
    assert house.upward(arrows) == ["model -> data", "model -> runs.log"]


def test_stops_that_the_code_does_not_have_are_named():
    trees = {"a.py": ast.parse("def f():\n    g()\n\ndef g():\n    pass\n\ndef h():\n    pass")}
    assert house.missing_stops(trees, [["a.py f", "a.py g"]]) == []
    said = house.missing_stops(trees, [["a.py f", "a.py h", "a.py none", "b.py f"]])
    assert said == [
        "a.py h is not used in a stop before it",
        "a.py has no none",
        "b.py has no f",
    ]


def test_the_code_of_this_project_keeps_its_promises():
    numbers, lines = house.measure(REPOSITORY)
    assert numbers.keys() == house.TABLE.keys()
    assert numbers["import circles; upward imports"] == "0; 0", lines
    for title in house.STOPS:
        assert numbers[f"stops {title}"].isdigit(), numbers[f"stops {title}"]
