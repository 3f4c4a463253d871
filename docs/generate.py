"""Write the generated pages, schemes.md, settings.md and python.md: `python docs/generate.py`."""

import ast
import importlib
import inspect
import sys
import textwrap
from dataclasses import fields
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import configurable
from configurable import (
    KINDS,
    AblateSettings,
    BenchSettings,
    EvaluateSettings,
    ExplainSettings,
    ExportSettings,
    ExtendSettings,
    ReportSettings,
    SampleSettings,
    Settings,
    TrainSettings,
)
from docs.catalogue import catalogue

COMMANDS = {
    "train.py": TrainSettings,
    "ablate.py": AblateSettings,
    "evaluate.py": EvaluateSettings,
    "report.py": ReportSettings,
    "extend.py": ExtendSettings,
    "sample.py": SampleSettings,
    "explain.py": ExplainSettings,
    "bench.py": BenchSettings,
    "export.py": ExportSettings,
}

# the calls that docs/python.md documents, by module
CALLS = {
    "runs.checkpoint": ("load_run",),
    "runs.start": ("run_corpus",),
    "model": ("GPT.forward", "GPT.losses", "GPT.answers", "GPT.generate", "GPT.extend"),
    "runs.diagnose": ("attention_maps",),
    "report": ("rows",),
    "runs.results": ("load_result",),
    "runs.compare": ("schemes_of", "rows_by_seed", "contrasts"),
    "runs.figures": ("draw_seeds", "plot_runs"),
    "runs.tables": ("runs_table", "seeds_table"),
    "runs.formats": ("written",),
    "attention": ("reference", "added_scores"),
    "positions.catalogue": ("extended_frequencies", "scheme_names", "extension_names"),
    "posenc": ("rope_frequencies", "rotate", "sinusoids", "alibi_slopes", "t5_buckets", "constant"),
}
CALLS["model"] += ("GPT.from_huggingface", "without_padding")

PYTHON = """# Calls from Python

`python docs/generate.py` writes this page from the docstrings. [tour.ipynb](tour.ipynb) uses most
of these calls. Start Python in the project's folder, or put that folder on the path
(`sys.path.insert(0, FOLDER)`, or `PYTHONPATH=FOLDER`).

B is a number of texts, T of tokens, V the size of the vocabulary, C the width of the model, H a
number of heads. What the project checks raises `configurable.UserError`, whose text is a sentence.
"""

SCHEMES = """# Position schemes and context extensions

`python docs/generate.py` writes this page.
`python explain.py NAME` prints all of one scheme: formula, paper, options and parameters.

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
[extend.md](extend.md) has more about all extensions.

In the verdicts L is the training length. A verdict that names `results/` was measured with this
project: in `results/extend`, "a trained rope" is a RoPE model with L = 128 that was not trained
again, and what it lost is its loss at that length less its loss at L without an extension. Verdicts
that name a paper quote its authors. The other statements follow from the formula.
"""

SETTINGS = """# Settings

`python docs/generate.py` writes this page. `python PROGRAM.py --help` prints the same. Every
setting is given as `--name=value`. A config file has lines `name = value` in Python's syntax:
values are literals and arithmetic on them, and nothing in the file is executed. Files are read from
left to right, and the command line comes last, as in
`python train.py config/size/gpt2.py config/alibi.py --seed=3`. An unknown name, anywhere, is an
error that names the file, the line and the nearest right name.

Settings that change the *result* make another run, with a folder of its own. Settings of the *test*
change what is measured on it. Settings of the *execution* say how and where it runs.
"""


def schemes_page() -> str:
    """docs/schemes.md."""
    return f"{SCHEMES}\n{catalogue()}\n"


def settings_table(cls: type[Settings]) -> str:
    """A Markdown table of all settings of a command."""
    lines = ["| name | default | unit | what | kind |", "| --- | --- | --- | --- | --- |"]
    for f in sorted(fields(cls), key=lambda f: [*KINDS].index(f.metadata["kind"])):
        typed = configurable.typed(f.default)
        default = f"`{typed}`" if typed else ""
        what = f"{f.metadata['help']} ({configurable._expected(f)})".replace("|", "\\|")
        row = (f"`{f.name}`", default, f.metadata["unit"], what, f.metadata["kind"])
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def settings_page() -> str:
    """docs/settings.md."""
    shared = settings_table(TrainSettings).splitlines()
    parts = [SETTINGS]
    for program, settings in COMMANDS.items():
        rows = settings_table(settings).splitlines()
        parts.append(f"## {program}\n")
        if issubclass(settings, TrainSettings) and settings is not TrainSettings:
            without = " without `pos`, `seed`, `out_dir`, `init_from`" * (program == "ablate.py")
            parts.append(f"Those of train.py{without}, and:\n")
            rows = rows[:2] + [row for row in rows if row not in shared]
        parts.append("\n".join(rows) + "\n")
    return "\n".join(parts)


def python_page() -> str:
    """docs/python.md."""
    parts = [PYTHON]
    for module, names in CALLS.items():
        parts.append(f"## {module}\n")
        for name in names:
            found = importlib.import_module(module)
            for word in name.split("."):
                found = getattr(found, word)
            node = ast.parse(textwrap.dedent(inspect.getsource(found))).body[0]
            call = f"{name}({ast.unparse(node.args)}) -> {ast.unparse(node.returns)}"
            parts.append(f"```\n{call}\n\n{inspect.getdoc(found)}\n```\n")
    return "\n".join(parts)


def pages() -> dict[str, str]:
    """The text of each generated page, by the name of its file."""
    made = {"schemes.md": schemes_page(), "settings.md": settings_page()}
    return made | {"python.md": python_page()}


def main() -> None:
    """Write them."""
    for name, text in pages().items():
        (HERE / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
