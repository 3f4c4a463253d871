"""Measure the code: its size in syntax nodes, its style, its names, its imports.

    python docs/house.py                     print the report, which is docs/house.md
    python docs/house.py /other/checkout     the same of another checkout

The counting rule
-----------------
- **Core**: every `.py` file outside `zoo/`, `config/`, `docs/`, `results/`, `tests/` and the
  folders of the corpora (`data/NAME/`).
- **Nodes**: `sum(1 for _ in ast.walk(tree))` of each file. **Code lines** hold more than a comment
  or a docstring.
- **Reading path**: train, model, attention, posenc, scheme and configurable.
- **Dense lines**: text or lists multiplied by a condition, tuples assigned to tuples (except
  swaps), and tuples or dicts called about, how or own that are unpacked into a call.
- **Names on the path**: those that the core defines and train.py, model.py or posenc.py use, each
  counted once, without `__init__` and its like.
- **Stops**: the functions that one opens to follow a text on its way, listed by hand in STOPS. The
  program checks that each exists and is used by name in an earlier one.
- **Import circles**: modules that import each other. **Upward imports**: those from a higher floor
  of FLOORS. Imports inside a `main` do not count.
"""

import ast
import io
import subprocess
import sys
import tokenize
from pathlib import Path

READING = (
    "train.py",
    "model.py",
    "attention.py",
    "posenc.py",
    "scheme.py",
    "configurable.py",
)
FLOORS = (
    "common",
    "configurable",
    "posenc",
    "attention",
    "scheme",
    "model",
    "data",
    "runs",
    "evaluate",
)
FLOORS += ("train",)
STOPS = {  # in parts: the building of the model, and the forward pass
    "from the text of `pos` to the score": [
        [
            "train.py start_run",
            "model.py GPT.__init__",
            "scheme.py Scheme.__init__",
            "scheme.py build",
        ],
        [
            "model.py GPT.hidden",
            "scheme.py Scheme.read",
            "scheme.py Scheme.plans",
            "attention.py prepare",
            "attention.py added_scores",
            "posenc.py Alibi.bias",
        ],
    ],
    "from the text of `extend` to a frequency": [
        [
            "evaluate.py evaluate_run",
            "scheme.py Scheme.extend",
            "scheme.py build",
        ],
        [
            "model.py GPT.hidden",
            "scheme.py Scheme.read",
            "scheme.py Scheme.plans",
            "posenc.py Rotary.tables",
            "posenc.py Rotary.frequencies",
            "posenc.py Yarn.map_frequencies",
        ],
    ],
}
# what is counted, at commit c1e0305 by this program where it can, and the aim
TABLE = {
    "nodes of the core": (
        "110,204",
        "68,500: 62,000, and for recipes 2,000, the board 2,500, papers 2,000",
    ),
    "nodes a line of the core": ("14.5", "12.5"),
    "code lines of the core": ("7,603", ""),
    "nodes of the reading path (then with cache, latent, positions, runs/start)": (
        "36,960",
        "24,000",
    ),
    "nodes of the zoo": ("11,911", "10,500 for the pieces of then"),
    "nodes of the tests, without tests/planted.py": ("226,856", "90,000"),
    "dense lines of the core": ("331", "40"),
    "names on the path train + model + posenc": ("365", "220"),
    "stops from the text of `pos` to the score": ("14", "7"),
    "stops from the text of `extend` to a frequency": ("11", "6"),
    "import circles; upward imports": ("0; 0", "0; 0"),
    "results/: MB; files": ("19.8; 199", "5; 90"),
    "README.md: lines; characters of the longest": ("200; 189", "130; 100"),
}
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def python_files(repo: Path) -> dict[str, str]:
    """The text of every Python file that git knows, by its path."""
    command = ["git", "-C", str(repo), "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run([*command, "*.py"], check=True, capture_output=True, text=True).stdout
    texts = {}
    for name in sorted(set(names.splitlines())):
        if (repo / name).exists():
            texts[name] = (repo / name).read_text(encoding="utf-8")
    return texts


def part_of(name: str) -> str:
    """The part of the project that a file belongs to: core, zoo, tests, corpora ..."""
    top, *inner = name.split("/")
    if top in ("zoo", "config", "docs", "results", "tests"):
        return top
    if top == "data" and len(inner) > 1:
        return "corpora"
    return "core"


def nodes(text: str) -> int:
    """The number of syntax nodes of a file."""
    return sum(1 for _ in ast.walk(ast.parse(text)))


def code_lines(text: str) -> int:
    """The number of lines of a file that hold code."""
    numbers = set()
    blank = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in (*blank, tokenize.ENDMARKER):
            numbers.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, *DEFINITIONS)) and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            numbers -= set(range(docstring.lineno, docstring.end_lineno + 1))
    return len(numbers)


def dense_lines(text: str) -> list[int]:
    """The numbers of the lines with one of the patterns that the counting rule names."""
    lines = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            for left, right in ((node.left, node.right), (node.right, node.left)):
                is_text = isinstance(left, ast.Constant) and isinstance(left.value, str)
                is_list = isinstance(left, (ast.List, ast.Tuple, ast.JoinedStr, ast.ListComp))
                is_not = isinstance(right, ast.UnaryOp) and isinstance(right.op, ast.Not)
                is_condition = is_not or isinstance(right, (ast.Compare, ast.BoolOp))
                if (is_text or is_list) and is_condition:
                    lines.append(node.lineno)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            target = node.targets[0]
            if isinstance(target, ast.Tuple):
                left = sorted(ast.unparse(element) for element in target.elts)
                right = sorted(ast.unparse(element) for element in node.value.elts)
                if left != right:  # a swap is plain
                    lines.append(node.lineno)
        elif isinstance(node, ast.Call):
            unpacked = [value.value for value in node.args if isinstance(value, ast.Starred)]
            unpacked += [keyword.value for keyword in node.keywords if keyword.arg is None]
            for value in unpacked:
                if isinstance(value, ast.Name) and value.id in ("about", "how", "own"):
                    lines.append(node.lineno)
    return lines


# ---- names


def defined_names(tree: ast.Module) -> set[str]:
    """All names that a file defines: functions, classes, fields, attributes of self."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, DEFINITIONS):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if ast.unparse(node.value) == "self":
                names.add(node.attr)
        if isinstance(node, (ast.Module, ast.ClassDef)):
            for statement in node.body:
                if isinstance(statement, ast.Assign):
                    names.update(t.id for t in statement.targets if isinstance(t, ast.Name))
                elif isinstance(statement, ast.AnnAssign):
                    names.add(ast.unparse(statement.target))
    return {name for name in names if not name.startswith("__")}


def used_names(tree: ast.AST) -> set[str]:
    """The names that a piece of code uses; a `def` or `class` alone is not a use."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.keyword) and node.arg:
            names.add(node.arg)
        elif isinstance(node, ast.alias):
            names.update(node.name.split("."))
    return names


def function_named(tree: ast.AST, name: str) -> ast.AST | None:
    """The function or method of a file with a name such as `Class.method`."""
    for part in name.split("."):
        inside = [n for n in ast.walk(tree) if isinstance(n, DEFINITIONS) and n.name == part]
        if not inside:
            return None
        tree = inside[0]
    return tree


def missing_stops(trees: dict[str, ast.Module], parts: list[list[str]]) -> list[str]:
    """Sentences on the stops that the code does not have."""
    mistakes = []
    used = set()
    for part in parts:
        for number, stop in enumerate(part):
            file, name = stop.split()
            node = function_named(trees[file], name) if file in trees else None
            if node is None:
                mistakes.append(f"{file} has no {name}")
                continue
            called = name.removesuffix(".__init__").split(".")[-1]
            if number > 0 and called not in used:
                mistakes.append(f"{file} {name} is not used in a stop before it")
            used |= used_names(node)
    return mistakes


# ---- imports


def imports(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    """For each module of the core, the modules of the core that it imports, in functions too."""
    modules = {}
    for name, tree in trees.items():
        modules[name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")] = tree
    arrows = {}
    for module, tree in modules.items():
        names = []
        mains = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "main"]
        of_main = {node for main in mains for node in ast.walk(main)}
        for node in ast.walk(tree):
            if node in of_main:
                continue
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    names.append(inner if inner in modules else node.module)
        arrows[module] = {name for name in names if name in modules and name != module}
    return arrows


def circles(arrows: dict[str, set[str]]) -> list[str]:
    """The modules that import themselves through others."""
    reached = {module: set(imported) for module, imported in arrows.items()}
    for middle in arrows:  # Warshall's closure
        for imported in reached.values():
            if middle in imported:
                imported |= reached[middle]
    return sorted(module for module, imported in reached.items() if module in imported)


def upward(arrows: dict[str, set[str]]) -> list[str]:
    """The imports that point to a higher floor, as "a -> b"; programs stand on the highest."""
    floors = {}
    for module in arrows:
        top = module.partition(".")[0]
        floors[module] = FLOORS.index(top) if top in FLOORS else len(FLOORS)
    pairs = [(module, other) for module, imported in arrows.items() for other in imported]
    return sorted(f"{a} -> {b}" for a, b in pairs if floors[a] < floors[b])


# ---- the report


def measure(repo: Path) -> tuple[dict[str, str], list[str]]:
    """The numbers of TABLE by their titles, and the lines of the report that explain them."""
    texts = python_files(repo)
    sizes = {name: nodes(text) for name, text in texts.items()}
    core = {name: text for name, text in texts.items() if part_of(name) == "core"}
    trees = {name: ast.parse(text) for name, text in core.items()}
    core_nodes = sum(sizes[name] for name in core)
    lines = sum(code_lines(text) for text in core.values())
    dense = {name: dense_lines(text) for name, text in core.items()}
    tests = [name for name in texts if part_of(name) == "tests" and name != "tests/planted.py"]
    zoo = [name for name in texts if part_of(name) == "zoo"]
    names = set().union(*(defined_names(tree) for tree in trees.values()))
    used = set()
    for name in ("train.py", "model.py", "posenc.py"):
        if name in trees:
            used |= used_names(trees[name])
    on_path = sorted(names & used)
    arrows = imports(trees)
    results = [path for path in repo.glob("results/**/*") if path.is_file()]
    readme = (repo / "README.md").read_text(encoding="utf-8").splitlines()
    values = [
        f"{core_nodes:,}",
        f"{core_nodes / lines:.1f}",
        f"{lines:,}",
        f"{sum(sizes.get(name, 0) for name in READING):,}",
        f"{sum(sizes[name] for name in zoo):,}",
        f"{sum(sizes[name] for name in tests):,}",
        str(sum(map(len, dense.values()))),
        str(len(on_path)),
    ]
    explained = ["## The stops", ""]
    for title, parts in STOPS.items():
        mistakes = missing_stops(trees, parts)
        stops = [stop for part in parts for stop in part]
        values.append("; ".join(mistakes) if mistakes else str(len(stops)))
        explained.append(f"- {title}: {', '.join(f'`{stop}`' for stop in stops)}")
    values += [
        f"{len(circles(arrows))}; {len(upward(arrows))}",
        f"{sum(path.stat().st_size for path in results) / 1e6:.1f}; {len(results)}",
        f"{len(readme)}; {max(map(len, readme))}",
    ]
    explained += ["", "## The files of the core: nodes, dense lines", ""]
    for name in sorted(core, key=sizes.get, reverse=True):
        places = ", ".join(map(str, dense[name]))
        explained.append(f"- `{name}` {sizes[name]:,}{places and f', lines {places}'}")
    explained += ["", f"In a circle: {', '.join(circles(arrows)) or 'none'}."]
    explained += [f"Upward: {', '.join(upward(arrows)) or 'none'}."]
    return dict(zip(TABLE, values, strict=True)), explained


def main() -> None:
    """Print docs/house.md."""
    repo = Path(sys.argv[1] if sys.argv[1:] else __file__).resolve()
    numbers, explained = measure(repo if sys.argv[1:] else repo.parents[1])
    rule = __doc__.partition("-----------------\n")[2].strip()
    print("# The code in numbers\n\n`make house` writes this page.")
    print(f"\n## The counting rule\n\n{rule}\n\n## The numbers\n")
    print("| | at c1e0305 | now | aim: at most |\n| --- | ---: | ---: | ---: |")
    for title, (before, aim) in TABLE.items():
        print(f"| {title} | {before} | {numbers[title]} | {aim} |")
    print("", *explained, sep="\n")


if __name__ == "__main__":
    main()
