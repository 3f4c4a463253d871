"""The rooms of this project: what imports what. Imports inside functions count too."""

import ast
from graphlib import TopologicalSorter

from conftest import REPOSITORY

# from the ground up: a module imports from its own floor and from lower ones
FLOORS = (
    {"common"},
    {"configurable"},
    {"posenc", "zoo"},
    {"attention"},
    {"scheme"},
    {"model"},
    {"optimizer", "data"},
    {"measure.protocols", "measure.predictor"},
    {"tables"},
    {"run"},
    {"measure"},
    {"evaluate"},
    {"train", "sample", "report", "ablate"},
    {"tools"},
)
HEIGHT = {room: n for n, rooms in enumerate(FLOORS) for room in rooms}


def height(module):
    """The floor of a module: its own, or that of its room."""
    return HEIGHT.get(module, HEIGHT.get(module.split(".")[0]))


def imports_of(path, modules):
    """The modules of this project that a file imports anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                names.add(inner if inner in modules else node.module)
    return names & modules


def test_imports_point_down_and_run_in_no_circle():
    files = {}
    for path in [*REPOSITORY.glob("*.py"), *REPOSITORY.glob("[a-z]*/*.py")]:
        parts = path.relative_to(REPOSITORY).with_suffix("").parts
        if parts[0] in HEIGHT:
            files[".".join(parts).removesuffix(".__init__")] = path
    graph = {name: imports_of(path, files.keys() - {name}) for name, path in files.items()}
    for name, imported in graph.items():
        for other in imported:
            assert height(other) <= height(name), f"{name} -> {other}"
    list(TopologicalSorter(graph).static_order())  # CycleError names a circle
    assert len(graph) > 80
