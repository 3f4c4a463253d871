"""Measure the code: its size, its names, its imports. The standard library is enough.

    python docs/house.py                          print the report, which is docs/house.md
    python docs/house.py --repo=DIR               of another checkout, formatted first (needs ruff)
    python docs/house.py --repo=DIR --json=FILE   write the numbers to a file too

The stops of another checkout are those in docs/house-before.json, which are of commit 868a8f2.

The counting rule
-----------------
- The **core** is every `.py` file but those in `zoo/`, `config/`, `docs/`, `results/`, `tests/`
  and in the folders of the corpora (`data/NAME/`). The files in `data/` itself belong to the core.
- A **code line** is a line of a formatted file (`ruff format`, 100 columns) that is not blank and
  holds a token that is neither a comment nor part of a docstring.
- The **length of a function** is the number of its lines from `def` to the last one, without its
  docstring and its decorators. A function inside another one is counted by itself and as part of
  the outer one.
- The **names on the reading path** are the names that the core defines (functions, methods,
  classes, plain assignments of a module, fields in the body of a class, attributes of `self`) and
  that `train.py`, `model.py` or `posenc.py` use: as a name, an attribute, a keyword or an import.
  Each name counts once. Names such as `__init__` do not count, and a `def` or `class` alone is not
  a use. Counted so, the files train.py and model.py of nanoGPT have 83 names and 6 classes.
- An **import** counts wherever it stands, in a function too. An **import circle** is a group of
  modules each of which imports, directly or through others, every other one. An **upward arrow**
  is an import of a module on a higher floor. The floors, lowest first: configurable, posenc,
  positions, attention, model, data, runs, evaluate, train, the programs. Imports of one program by
  another are counted apart; only evaluate and train may be imported.
- A **stop** is a function that one opens to follow a text on its way: it takes the text, or what
  was made of it. The way has two parts, the building of the model and the forward pass. The two
  lists of stops are written by hand in `docs/house.py`, as short as the check allows. The program
  checks that every function is there, and that every one but the first of a part is used by name
  in a stop before it.
"""

import argparse
import ast
import io
import json
import shutil
import statistics
import subprocess
import tempfile
import tokenize
from pathlib import Path

HERE = Path(__file__).resolve().parent
OUTSIDE = ("zoo", "config", "docs", "results", "tests")
PATH = ("train.py", "model.py", "posenc.py")
SIZES = (*PATH, "attention.py", "configurable.py")
PROGRAMS = ("sample", "ablate", "bench", "extend", "explain", "export", "report")
FLOORS = (
    "configurable",
    "posenc",
    "positions",
    "attention",
    "cache",
    "latent",
    "families",
    "model",
    "data",
    "runs",
    "evaluate",
)
FLOORS += ("train",)
EARLIER = {"grammar": "configurable", "scheme": "positions", "checkpoint": "runs", "device": "runs"}
AIMS = {
    "core": "4800",
    "path": "300 / 290 / 450 / 190 / 380",
    "names": "190 (16)",
    "functions": "0; 8",
    "imports": "0; 0",
    "stops": "8; 6",
    "readme": "200",
}
TITLES = {
    "core": "code lines of the core",
    "path": "code lines of train / model / posenc / attention / configurable",
    "names": "names (and classes) of the project used on the path train + model + posenc",
    "functions": "functions over 40 lines; median length",
    "imports": "import circles; upward arrows",
    "stops": "stops from the text of `pos` to the score; from `extend` to a frequency",
    "readme": "lines of README.md",
}
STOPS = {  # (file, function) in order, in two parts
    "From the text of `pos` to the score": [
        [
            ("runs/start.py", "start_run"),
            ("runs/start.py", "first_model"),
            ("model.py", "GPT.__init__"),
            ("model.py", "GPT.set_scheme"),
            ("positions/scheme.py", "Scheme.__init__"),
            ("positions/grammar.py", "parse"),
            ("positions/scheme.py", "Scheme._build_layer"),
            ("positions/catalogue.py", "build"),
        ],
        [
            ("model.py", "GPT._hidden"),
            ("positions/scheme.py", "Scheme.plans"),
            ("positions/scheme.py", "Scheme._plan"),
            ("posenc.py", "Alibi.bias"),
            ("attention.py", "prepare"),
            ("attention.py", "added_scores"),
        ],
    ],
    "From the text of `extend` to a frequency": [
        [
            ("evaluate.py", "evaluate_run"),
            ("model.py", "GPT.extend"),
            ("positions/scheme.py", "Scheme.extend"),
            ("positions/catalogue.py", "build_extensions"),
        ],
        [
            ("model.py", "GPT._hidden"),
            ("positions/scheme.py", "Scheme.plans"),
            ("positions/scheme.py", "Scheme._plan"),
            ("posenc.py", "Rope.turn"),
            ("posenc.py", "Rotary.cos_sin"),
            ("posenc.py", "apply_maps"),
            ("posenc.py", "Yarn.map_frequencies"),
        ],
    ],
}
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
SILENT = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)


def core(repo: Path) -> dict[str, str]:
    """The text of every file of the core, by its path in the repository."""
    texts = {}
    for path in sorted(repo.rglob("*.py")):
        place = path.relative_to(repo)
        hidden = any(part.startswith((".", "__pycache__")) for part in place.parts)
        corpus = place.parts[0] == "data" and len(place.parts) > 2
        if not hidden and not corpus and place.parts[0] not in (*OUTSIDE, "out", "wandb"):
            texts[place.as_posix()] = path.read_text(encoding="utf-8")
    return texts


# ---- lines


def docstring(node: ast.AST) -> ast.stmt | None:
    """The statement that is the docstring of a module, a class or a function."""
    if isinstance(node, (ast.Module, *DEFINITIONS)) and node.body:
        first = node.body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            return first if isinstance(first.value.value, str) else None
    return None


def code_lines(text: str) -> int:
    """The number of lines of a file that hold code."""
    numbers: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SILENT:
            numbers.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        statement = docstring(node)
        if statement:
            numbers -= set(range(statement.lineno, statement.end_lineno + 1))
    lines = text.splitlines()
    return sum(bool(lines[number - 1].strip()) for number in numbers)


def function_lengths(text: str) -> list[tuple[int, str]]:
    """(lines, name) of each function of a file."""
    lengths = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = node.end_lineno - node.lineno + 1
            statement = docstring(node)
            if statement:
                lines -= statement.end_lineno - statement.lineno + 1
            lengths.append((lines, node.name))
    return lengths


# ---- names


def plain_targets(statement: ast.AST) -> list[ast.expr]:
    """What an assignment assigns to."""
    if isinstance(statement, ast.Assign):
        return statement.targets
    return [statement.target] if isinstance(statement, ast.AnnAssign) else []


def defined(text: str) -> tuple[set[str], set[str]]:
    """(all names, names of classes) that a file defines."""
    tree = ast.parse(text)
    names, classes = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, DEFINITIONS):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            classes.add(node.name)
        if isinstance(node, (ast.Module, ast.ClassDef)):
            for statement in node.body:
                names.update(t.id for t in plain_targets(statement) if isinstance(t, ast.Name))
        for target in plain_targets(node):
            for part in ast.walk(target):
                if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
                    names.update([part.attr] if part.value.id == "self" else [])
    return names, classes


def used(tree: ast.AST) -> set[str]:
    """The names that a piece of code uses; a `def` or `class` alone is not a use."""
    names: set[str] = set()
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


def names_on_path(texts: dict[str, str]) -> tuple[list[str], list[str]]:
    """The project's (names, classes) that the files of PATH use."""
    names, classes = set(), set()
    for text in texts.values():
        more_names, more_classes = defined(text)
        names |= more_names
        classes |= more_classes
    uses = set().union(*(used(ast.parse(texts[name])) for name in PATH))
    return sorted(n for n in names & uses if not n.startswith("__")), sorted(classes & uses)


# ---- imports


def imports(texts: dict[str, str]) -> dict[str, set[str]]:
    """For each module of the core, the modules of the core that it imports."""
    modules = {
        name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): text
        for name, text in texts.items()
    }
    found: dict[str, set[str]] = {module: set() for module in modules}
    for module, text in modules.items():
        for node in ast.walk(ast.parse(text)):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                inner = [f"{node.module}.{alias.name}" for alias in node.names]
                names = [name if name in modules else node.module for name in inner]
            found[module].update(name for name in names if name in modules and name != module)
    return found


def reached(arrows: dict[str, set[str]], start: str) -> set[str]:
    """The modules that one imports, directly or through others."""
    seen: set[str] = set()
    waiting = set(arrows[start])
    while waiting:
        module = waiting.pop()
        seen.add(module)
        waiting |= arrows[module] - seen
    return seen


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """The groups of modules that import each other."""
    after = {module: reached(arrows, module) for module in arrows}
    groups = {
        tuple(
            sorted(other for other in arrows if other in after[module] and module in after[other])
        )
        for module in arrows
    }
    return sorted(list(group) for group in groups if group)


def floor(module: str) -> int:
    """The number of a module's floor, 0 for the lowest."""
    top = module.partition(".")[0]
    top = EARLIER.get(top, top)  # where modules of earlier commits stand
    if top in PROGRAMS:
        return len(FLOORS)
    if top not in FLOORS:
        raise SystemExit(f"{module} stands on no floor; add it to FLOORS or PROGRAMS in {__file__}")
    return FLOORS.index(top)


def upward(arrows: dict[str, set[str]]) -> list[str]:
    """The imports that point to a higher floor, as "a -> b"."""
    return sorted(f"{a} -> {b}" for a in arrows for b in arrows[a] if floor(a) < floor(b))


def between_programs(arrows: dict[str, set[str]]) -> list[str]:
    """The imports of one program by another, as "a -> b"."""
    return sorted(f"{a} -> {b}" for a in PROGRAMS for b in arrows.get(a, ()) if b in PROGRAMS)


# ---- stops


def function_named(tree: ast.Module, name: str) -> ast.AST | None:
    """The function or method of a file with a name such as `Class.method`."""
    node: ast.AST | None = tree
    for part in name.split("."):
        children = [n for n in ast.walk(node) if isinstance(n, DEFINITIONS) and n.name == part]
        node = next((n for n in children if n is not node), None)
        if node is None:
            return None
    return node


def check_stops(texts: dict[str, str], parts: list) -> list[str]:
    """Sentences on the stops that the code does not have."""
    mistakes, before = [], set()
    for part in parts:
        for number, (file, name) in enumerate(part):
            node = function_named(ast.parse(texts[file]), name) if file in texts else None
            if node is None:
                mistakes.append(f"{file} has no {name}")
                continue
            *outer, last = name.split(".")
            called = outer[-1] if last == "__init__" else last
            if number and called not in before:
                mistakes.append(f"{file} {name} is not used in a stop before it")
            before |= used(node)
    return mistakes


# ---- the report


def count_stops(texts: dict[str, str], ways: dict[str, list]) -> str:
    """The numbers of stops, "not found" for a way that the code does not have."""
    counts = []
    for parts in ways.values():
        good = parts and not check_stops(texts, parts)
        counts.append(str(sum(map(len, parts))) if good else "not found")
    return "; ".join(counts)


def measure(texts: dict[str, str], readme: str, ways: dict[str, list]) -> dict[str, str]:
    """The numbers of the table, as text, by the keys of TITLES."""
    lengths = [lines for text in texts.values() for lines, _ in function_lengths(text)]
    long = sum(lines > 40 for lines in lengths)
    names, classes = names_on_path(texts)
    arrows = imports(texts)
    return {
        "core": str(sum(map(code_lines, texts.values()))),
        "path": " / ".join(str(code_lines(texts[name])) for name in SIZES),
        "names": f"{len(names)} ({len(classes)})",
        "functions": f"{long}; {statistics.median(lengths):g}",
        "imports": f"{len(circles(arrows))}; {len(upward(arrows))}",
        "stops": count_stops(texts, ways),
        "readme": str(len(readme.splitlines())),
    }


def table(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """The lines of the table: before, now, aim."""
    lines = ["| | before | now | aim: at most |", "| --- | ---: | ---: | ---: |"]
    for key, title in TITLES.items():
        lines.append(f"| {title} | {before[key]} | {now[key]} | {AIMS[key]} |")
    return lines


def describe_stops(texts: dict[str, str], ways: dict[str, list]) -> list[str]:
    """The ways with their stops, and what is wrong about them."""
    lines = []
    for title, parts in ways.items():
        lines += ["", f"### {title}", ""]
        stops = [stop for part in parts for stop in part]
        lines += [f"{n}. `{file}`: `{name}`" for n, (file, name) in enumerate(stops, 1)]
        lines += [f"- not found: {mistake}" for mistake in check_stops(texts, parts)]
    return lines


def describe_files(texts: dict[str, str]) -> list[str]:
    """A table of the files: lines, longest function, imports."""
    arrows = imports(texts)
    lines = ["| file | code lines | longest function | imports |", "| --- | ---: | ---: | --- |"]
    for (name, text), found in zip(texts.items(), arrows.values(), strict=True):
        longest = max((length for length, _ in function_lengths(text)), default=0)
        lines.append(f"| `{name}` | {code_lines(text)} | {longest} | {' '.join(sorted(found))} |")
    return lines


def report(
    texts: dict[str, str], readme: str, ways: dict[str, list], before: dict[str, str]
) -> str:
    """docs/house.md."""
    rule = __doc__.partition("-----------------\n")[2].strip()
    arrows = imports(texts)
    long = [
        f"`{file}`: `{name}`, {lines}"
        for file, text in texts.items()
        for lines, name in function_lengths(text)
        if lines > 40
    ]
    names, classes = names_on_path(texts)
    floors = " → ".join((*FLOORS, "programs"))
    parts = [
        "# The code in numbers",
        "`python docs/house.py` prints this page, and `make house` writes it. The numbers before "
        "are those of commit 868a8f2: [house-before.json](house-before.json) has them, and the "
        "command that measured them.",
        f"## The counting rule\n\n{rule}",
        "\n".join(["## The numbers", "", *table(before, measure(texts, readme, ways))]),
        "\n".join(["## The stops", *describe_stops(texts, ways)]),
        "\n".join(["## The files", "", *describe_files(texts)]),
        f"Floors: {floors}. Arrows: {sum(map(len, arrows.values()))}. "
        f"Circles: {circles(arrows) or 'none'}. Upward: {upward(arrows) or 'none'}. "
        f"Between programs: {between_programs(arrows) or 'none'}.",
        "Functions over 40 lines: " + ("; ".join(long) or "none") + ".",
        f"Names on the reading path: {', '.join(names)}.",
        f"Classes among them: {', '.join(classes)}.",
    ]
    return "\n\n".join(parts)


def formatted_copy(repo: Path, folder: Path) -> None:
    """Copy README.md and the core of a checkout, and format them at 100 columns."""
    for name in (*core(repo), "README.md", "pyproject.toml"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(repo / name, folder / name)
    subprocess.run(["ruff", "format", "--quiet", "--line-length=100", folder], check=True)


def main() -> None:
    """Print the report; with --json, write the numbers too."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repo", type=Path, help="another checkout, by default this one")
    parser.add_argument("--json", type=Path, help="a file for the numbers and the stops")
    options = parser.parse_args()
    kept = json.loads((HERE / "house-before.json").read_text(encoding="utf-8"))
    ways = kept["stops"] if options.repo else STOPS
    with tempfile.TemporaryDirectory() as folder:
        repo = HERE.parent
        if options.repo:
            formatted_copy(options.repo, repo := Path(folder))
        texts, readme = core(repo), (repo / "README.md").read_text(encoding="utf-8")
    if options.json:
        content = {"numbers": measure(texts, readme, ways), "stops": ways}
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(report(texts, readme, ways, kept["numbers"]))


if __name__ == "__main__":
    main()
