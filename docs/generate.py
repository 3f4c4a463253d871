"""Write the generated pages, schemes.md and settings.md: `python docs/generate.py`."""

import inspect
import re
import sys
from dataclasses import fields
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from configurable import (
    KINDS,
    AblateSettings,
    EvaluateSettings,
    ExtendSettings,
    ReportSettings,
    SampleSettings,
    Settings,
    TrainSettings,
    configure,
    typed,
)
from scheme import extension_names, find, options_of, scheme_names
from tools import BenchSettings, ExplainSettings

SCHEMES = """# Position schemes and context extensions

`python docs/generate.py` writes this page.
`python -m tools.explain NAME` prints all of a scheme: formula, paper, options, parameters, verdict.

The well-known schemes are in `posenc.py`, every other one has a file in `zoo/`, which is loaded
like a file of your own (`--pos_file`). `--drop_pos=0.13` trains the last 13 % of the steps without
the scheme, whichever it is (DroPE). Schemes whose names end in `2d` are for square images that are
read row by row (`--dataset=digits --block_size=144`).

The first table lists the schemes, for `--pos`, the second the extensions of a trained model, for
`--extend`. Where the default of an option is `None`, it depends on the model. In the verdicts L is
the training length. One that names `results/` was measured with this project, with L = 128; one
that names a paper quotes its authors; the others follow from the formula.
"""

RECIPES = """
## What models run

Each is a file: `python train.py config/recipes/gemma3.py --n_layer=6`. It says where its numbers
are from, what is left out, and how many layers its pattern needs if these are over 4. Branches
between bars take turns over the layers. Lengths are shares of the training length: the 0.03125 of
Gemma 3's windows is 1,024 of its 32,768 tokens.

| recipe | model | expression |
| --- | --- | --- |"""

SETTINGS = """# Settings

`python docs/generate.py` writes this page. `python PROGRAM.py --help` prints the same.
Every setting is given as `--name=value`. A config file has lines `name = value`;
values are literals. Files are read from left to right, and the command line comes last, as in
`python train.py config/size/gpt2.py config/alibi.py --seed=3`.

Settings that change the *result* make another run, with a folder of its own. Settings of the *test*
change what is measured on it. Settings of the *manner* say how and where it runs.
"""

PROGRAMS = {
    "train.py": TrainSettings,
    "ablate.py": AblateSettings,
    "evaluate.py": EvaluateSettings,
    "report.py": ReportSettings,
    "extend.py": ExtendSettings,
    "sample.py": SampleSettings,
    "tools/explain.py": ExplainSettings,
    "tools/bench.py": BenchSettings,
}

ACTS_ON = {  # by method of Piece
    "map_frequencies": "frequencies",
    "ids": "positions",
    "embed": "token embedding",
    "turn": "queries and keys",
    "regions": "distances",
    "bias": "score",
    "temperature": "temperature",
    "mask": "mask",
    "along": "queries and keys, by their text",
    "score": "whole score",
    "weights": "attention weights",
    "output": "output of the heads",
    "pack": "cache",
    "draw": "positions of training",
}


def scheme_row(name: str) -> str:
    """A row of a Markdown table of schemes: options, what it acts on, and its verdict."""
    cls, options = find(name), []
    for key, option in options_of(cls).items():
        required = option.default is option.empty
        options.append(key if required else f"{key}={option.default}")
    mention = f"{name}({', '.join(options)})" if options else name
    acts_on = [place for method, place in ACTS_ON.items() if getattr(cls, method) is not None]
    verdict = " ".join(inspect.getdoc(cls).partition("Verdict: ")[2].split())
    # the first sentence or two; `python -m tools.explain` shows all
    sentences = re.split(r"(?<=[a-z0-9)`]\.) (?=[A-Z`])", verdict)
    verdict = sentences[0]
    if len(verdict) < 90:
        verdict = " ".join(sentences[:2])
    return f"| `{mention}` | {', '.join(acts_on) or 'nothing'} | {verdict} |"


def recipe_row(path: Path) -> str:
    """A row of a Markdown table of recipes: file, the model as its comment begins with what is not
    confirmed of it, expression.
    """
    settings, _ = configure(TrainSettings, [str(path)], "")
    comment = " ".join(re.findall(r"^# (.*)", path.read_text(encoding="utf-8"), re.MULTILINE))
    model = re.match(r".*?\)", comment)[0]
    for sentence in re.findall(r"(?<=\. )[^.]* not confirmed[^.]*\.", comment):
        model = f"{model}. *{sentence}*"
    expression = settings.pos.replace("|", "\\|")
    if settings.extend:
        expression = f"{expression}`, extended by `{settings.extend}"
    return f"| [{path.stem}](../config/recipes/{path.name}) | {model} | `{expression}` |"


def schemes_page() -> str:
    """docs/schemes.md."""
    recipes = sorted((HERE.parent / "config/recipes").glob("*.py"))
    rule = "| --- | --- | --- |"
    lines = ["| scheme | acts on | verdict |", rule, *map(scheme_row, scheme_names()), ""]
    lines += ["| extension | changes | verdict |", rule, *map(scheme_row, extension_names())]
    return "\n".join([SCHEMES, *lines, RECIPES, *map(recipe_row, recipes), ""])


def setting_rows(cls: type[Settings], kind: str) -> list[str]:
    """The rows of a Markdown table of the settings of a program that are of one kind."""
    rows = []
    for f in fields(cls):
        if f.metadata["kind"] != kind or f.name in cls.refused:
            continue
        default = f"`{typed(f.default)!r}`".replace("'", "") if typed(f.default) else ""
        rows.append(f"| `{f.name}` | {default} | {f.metadata['help']} |")
    return rows


def settings_page() -> str:
    """docs/settings.md."""
    parts = [SETTINGS]
    for program, cls in PROGRAMS.items():
        parts.append(f"## {program}\n")
        of_train = issubclass(cls, TrainSettings) and cls is not TrainSettings
        if of_train:
            without = ", ".join(f"`{name}`" for name in cls.refused) or "none"
            parts.append(f"Those of train.py without {without}, and:\n")
        parts.append("| name | default | what |\n| --- | --- | --- |")
        for kind in KINDS:
            rows = setting_rows(cls, kind)
            if of_train:
                shared = setting_rows(TrainSettings, kind)
                rows = [row for row in rows if row not in shared]
            if rows:
                parts.append("\n".join([f"| *{kind}* | | |", *rows]))
        parts.append("")
    return "\n".join(parts)


def pages() -> dict[str, str]:
    """The text of each generated page, by the name of its file."""
    return {"schemes.md": schemes_page(), "settings.md": settings_page()}


def main() -> None:
    """Write them."""
    for name, text in pages().items():
        (HERE / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
