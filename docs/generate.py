"""Write the generated pages, docs/schemes.md and docs/settings.md: `python docs/generate.py`."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import explain
from configurable import (
    AblateSettings,
    EvaluateSettings,
    ExplainSettings,
    ExtendSettings,
    ReportSettings,
    SampleSettings,
    TrainSettings,
    settings_table,
)

COMMANDS = {
    "train.py": TrainSettings,
    "ablate.py": AblateSettings,
    "evaluate.py": EvaluateSettings,
    "report.py": ReportSettings,
    "extend.py": ExtendSettings,
    "sample.py": SampleSettings,
    "explain.py": ExplainSettings,
}

SCHEMES = """# Position schemes and context extensions

`python docs/generate.py` writes this page, and `python explain.py` prints its tables.
`python explain.py NAME` prints all of one scheme: formula, paper, options and parameters.

The schemes of the textbooks are in `posenc.py`. Each other one has a file of its own in `zoo/`,
which is loaded as a file of yours (`--pos_file`) is. A scheme of yours that proves useful moves to
`zoo/` as it is. Where no term will do, `score` computes the whole score of a block of queries and
keys, with numbers that `features` makes of each token (see `zoo/fox.py`). `--drop_pos=0.13` trains
the last 13 % of the steps without the scheme (DroPE), whichever it is.

The first table lists the schemes, for `--pos`; the second one the extensions of a trained model,
for `--extend`. If an option is `None`, it is a fraction of the training length. Extensions that
change frequencies act on rotary schemes; [extend.md](extend.md) has more about all of them.
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
    return f"{SCHEMES}\n{explain.catalogue()}\n"


def settings_page() -> str:
    """docs/settings.md."""
    shared = settings_table(TrainSettings).splitlines()
    parts = [SETTINGS]
    for program, settings in COMMANDS.items():
        rows = settings_table(settings).splitlines()
        parts.append(f"## {program}\n")
        if program == "ablate.py":
            parts.append("Those of train.py but `pos`, `seed` and `out_dir`, and:\n")
            rows = rows[:2] + [row for row in rows if row not in shared]
        parts.append("\n".join(rows) + "\n")
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
