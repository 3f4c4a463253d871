"""Write the generated pages, schemes.md and settings.md: `python docs/generate.py`."""

import inspect
import sys
from dataclasses import fields
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from configurable import (
    KINDS,
    AblateSettings,
    BenchSettings,
    EvaluateSettings,
    ExplainSettings,
    ExtendSettings,
    ReportSettings,
    SampleSettings,
    Settings,
    TrainSettings,
    typed,
)
from scheme import extension_names, find, options_of, scheme_names

SCHEMES = """# Position schemes and context extensions

`python docs/generate.py` writes this page.
`python -m tools.explain NAME` prints all of one scheme: formula, paper, options and parameters.

The well-known schemes are in `posenc.py`. Every other scheme has a file of its own in `zoo/`. These
files are loaded like a file of your own (`--pos_file`), so a scheme of yours can be moved to `zoo/`
without a change. Most schemes add a bias to the score or turn queries and keys. Where that is not
enough, the method `score` computes the whole score, and the method `features` gives numbers for
each token, which `along` makes queries and keys of (see `zoo/fox.py`). `--drop_pos=0.13` trains the
last 13 % of the steps without the scheme, whichever it is (DroPE).

Schemes whose names end in `2d` are for images that are read row by row, as those of data/digits
(`--dataset=digits --block_size=144`). They take a text of N tokens for a square image, and do not
go together with schemes that read positions along a text.

The first table lists the schemes, for `--pos`. The second table lists the extensions of a trained
model, for `--extend`. Where the default of an option is `None`, it depends on the model, mostly on
its training length. Extensions that change frequencies act on rotary schemes.

In the verdicts L is the training length. A verdict that names `results/` was measured with this
project: in `results/extend`, "a trained rope" is a RoPE model with L = 128 that was not trained
again, and what it lost is its loss at that length less its loss at L without an extension. Verdicts
that name a paper quote its authors. The other statements follow from the formula.
"""

SETTINGS = """# Settings

`python docs/generate.py` writes this page. `python PROGRAM.py --help` prints the same. Every
setting is given as `--name=value`. A config file has lines `name = value` in Python's syntax:
values are literals, and nothing in the file is executed. Files are read from left to right, and the
command line comes last, as in `python train.py config/size/gpt2.py config/alibi.py --seed=3`. An
unknown name, anywhere, is an error that names the file, the line and the nearest right name.

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
    return f"| `{mention}` | {', '.join(acts_on) or 'nothing'} | {verdict} |"


def schemes_page() -> str:
    """docs/schemes.md."""
    rule = "| --- | --- | --- |"
    lines = ["| scheme | acts on | verdict |", rule, *map(scheme_row, scheme_names()), ""]
    lines += ["| extension | changes | verdict |", rule, *map(scheme_row, extension_names())]
    return "\n".join([SCHEMES, *lines, ""])


def setting_rows(cls: type[Settings]) -> list[str]:
    """The rows of a Markdown table of all settings of a program."""
    rows = []
    for f in sorted(fields(cls), key=lambda f: [*KINDS].index(f.metadata["kind"])):
        if f.name not in cls.refused:
            default = f"`{typed(f.default)!r}`".replace("'", "") if typed(f.default) else ""
            cells = (f"`{f.name}`", default, f.metadata["help"], f.metadata["kind"])
            rows.append(f"| {' | '.join(cells)} |")
    return rows


def settings_page() -> str:
    """docs/settings.md."""
    shared = setting_rows(TrainSettings)
    parts = [SETTINGS]
    for program, cls in PROGRAMS.items():
        rows = setting_rows(cls)
        parts.append(f"## {program}\n")
        if issubclass(cls, TrainSettings) and cls is not TrainSettings:
            names = ", ".join(f"`{name}`" for name in cls.refused)
            without = f" without {names}" if names else ""
            parts.append(f"Those of train.py{without}, and:\n")
            rows = [row for row in rows if row not in shared]
        head = ["| name | default | what | kind |", "| --- | --- | --- | --- |"]
        parts.append("\n".join([*head, *rows, ""]))
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
