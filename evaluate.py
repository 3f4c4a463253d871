"""Test trained runs on texts longer than those they were trained on.

    python evaluate.py out/RUN [out/RUN ...] [--name=value ...]

    python evaluate.py out/rope-stdlib-L128-s1337 --extend='yarn(factor=8)'
    python evaluate.py out/A out/B --dataset=NAME --out=compared.pdf
    python evaluate.py out/A out/B --eval_windows=1024      # for published numbers
    python evaluate.py out/RUN --diagnose                   # what it reads: measure/diagnose.py
    python evaluate.py out/rope-*-s? 'yarn(beta=8)' ntk     # extensions: their gains over seeds
    python evaluate.py out/RUN --extend=all                 # every extension that fits
    python evaluate.py HuggingFaceTB/SmolLM-135M --dataset=mine   # a Hugging Face folder or name

The losses are written to each run's extrapolation.json and extrapolation.png (those of a Hugging
Face model to out/tests/), and a table is printed. Several runs are also drawn in one figure, --out
or out/extrapolation.png. Extensions are compared on fixed_targets alone, and only what is missing
is measured; the runs must be seeds of one model, and table and figure are written to extend.txt and
extend.png in the first, or to --out.

L is the training length and N a test length. The protocols, with what is scored by each, are those
of measure/protocols.py.

Nats per token are the mean over all scored targets. Bits per byte are the loss, in bits, of those
that stand for text over the UTF-8 bytes of that text. End tokens and others without text are left
out of both: a record says how many, `without_bytes`. A space that a tokenizer puts before a
document is no byte.
"""

import copy
import difflib
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from common import device
from common.errors import UserError, run_program
from configurable import RESULT, EvaluateSettings, MeasureSettings, configure, setting_values
from measure import diagnose
from measure.extrapolation import is_measured, newest, records_in, run_tests
from measure.protocols import (
    find_places,
    fixed_targets,
    of_text,
    tested_lengths,
)
from measure.tester import Tester
from run.folder import lock_folder, named_folders
from run.huggingface import is_huggingface
from run.load import Run, describe_run, open_model, run_corpus
from run.log import log_comparison
from scheme import Catalogue, Scheme
from tables import tables
from tables.figures import plot_rows, plot_run
from tables.records import Result, load_result, load_rows, rows_of, select

# ---- runs


def evaluate_run(
    run: Run,
    extensions: list[str | None],
    settings: MeasureSettings,
    names: Sequence[str] = (),
    only_missing: bool = False,
) -> Result:
    """Test a run under each of the extensions, None for its own, and keep the records.

    With `only_missing`, an extension is skipped if everything asked for is already measured.
    `names` are those of protocols of text, by default all. Returns the last result, with its new
    records only.
    """
    corpus = run_corpus(run, settings.dataset)
    if names and not corpus.is_text:
        raise UserError(f"{corpus.name} has answers: --protocols are those of text, leave it out")
    about = describe_run(run)
    tester = Tester(run.model, corpus, run.compute, first_token=run.first_token)
    lengths = settings.eval_lengths or run.settings.eval_lengths
    lock_folder(run.folder)
    result = about
    for extension in extensions:
        if extension is None:
            run.model.pos.extend(run.model.config.extend, run.files)
        else:
            run.model.pos.extend(extension)  # with files as typed
        windows = settings.eval_windows
        if only_missing:
            [protocol] = of_text(names)
            # as `evaluate_extensions` shows: the newest of this number of windows
            known = newest([x for x in records_in(run.folder) if x.windows == windows])
            if is_measured(tester, about, known, protocol, lengths, windows):
                continue
        print(f"{run.folder}: {run.model.pos.describe()}, on {run.compute.reason}")
        result = run_tests(tester, about, run.folder, lengths, windows, names)
        plot_run(run.folder, load_result(run.folder))
    return result


@torch.no_grad()
def diagnose_run(run: Run, settings: EvaluateSettings) -> None:
    """Write a diagnosis of a run's loss into its folder: see measure/diagnose.py."""
    model = run.model
    corpus = run_corpus(run, settings.dataset)
    if not corpus.is_text:
        raise UserError(f"{corpus.name} has answers, and only text can be diagnosed")
    lock_folder(run.folder)
    length = run.settings.block_size
    if settings.extend is not None:
        model.pos.extend(settings.extend)
    places = find_places(corpus, settings.eval_windows)
    fixed_targets(places, length)  # UserError if the text is too short
    # the longest that corpus and scheme allow
    longest = min(places.max_length, model.pos.limit or places.max_length)
    asked = settings.eval_lengths or (2 * length, 4 * length, 8 * length)
    lengths = [n for n in tested_lengths(length, asked) if length <= n <= longest]
    offsets = places.ends[: diagnose.TEXTS, None] + np.arange(-lengths[-1], 0)
    tester = Tester(model, corpus, run.compute, first_token=run.first_token)
    texts = tester.tokens_at(offsets)

    findings = [
        diagnose.attention_of(model, texts, length),
        diagnose.far_shuffled(partial(tester.nats_by_place, places), lengths),
    ]
    diagnose.report(findings, run.folder, describe_run(run), corpus.name)


# ---- extensions


def fitting_extensions(scheme: Scheme) -> list[str]:
    """All extensions that fit a scheme, with their defaults."""
    fitting = []
    for text in [f"window(size={scheme.shape.first_length})", *scheme.catalogue.extensions]:
        if text in ("temperature", "dynamic_yarn"):  # the first is 1 by default, the second is yarn
            continue
        with suppress(UserError):  # it does not fit, or needs an option
            scheme.extend(text)
            fitting.append(scheme.extend_text)
    return fitting


def check_seeds(runs: list[Run]) -> None:
    """Raise UserError unless the runs differ in their seeds and in nothing else."""
    first = setting_values(runs[0].settings, *RESULT)
    sources = {run.config.get("source_model") for run in runs} - {None}  # older runs do not say
    if len(sources) > 1:
        folders = ", ".join(str(run.folder) for run in runs)
        raise UserError(f"{folders} started from different models, not from seeds of one")
    for run in runs:
        for name, value in setting_values(run.settings, *RESULT).items():
            if name not in ("seed", "init_from") and value != first[name]:
                raise UserError(
                    f"{run.folder} is not a seed of {runs[0].folder}: its {name} is {value!r}; "
                    "extensions are compared on the seeds of one model"
                )


def evaluate_extensions(runs: list[Run], texts: list[str], settings: EvaluateSettings) -> str:
    """Test the runs, seeds of one model, with each extension; write table and figure. Returns the
    table in the format asked for.

    Without any texts, the extensions are all that fit.
    """
    first = runs[0]
    check_seeds(runs)
    corpus = run_corpus(first, settings.dataset)
    if not corpus.is_text:
        raise UserError(
            f"{corpus.name} has answers, and only text is tested here: "
            f"python evaluate.py {first.folder} --extend=NAME tests one extension"
        )
    lengths = settings.eval_lengths or first.settings.eval_lengths
    lengths = tested_lengths(first.settings.block_size, lengths)
    settings = replace(settings, dataset=corpus.name, eval_lengths=tuple(lengths))
    scheme = copy.deepcopy(first.model.pos)
    for text in texts:  # refused before the first test
        scheme.extend(text)
    # first as it was trained, then without; a gain compares the same targets
    extensions = [None, "", *(texts or fitting_extensions(scheme))]
    for run in runs:
        evaluate_run(run, extensions, settings, ("fixed_targets",), only_missing=True)

    frame = load_rows([run.folder for run in runs])
    # of this test alone: there may be others on more windows
    asked = "protocol == 'fixed_targets' and windows == @settings.eval_windows"
    frame = frame.query(f"{asked} and length in @lengths")
    frame = select(frame, corpus.name, extend="all")
    # draw the model as it is, and the seven with the lowest loss at the longest N
    best = frame[frame.length == max(lengths)].groupby("label").nats.mean().nsmallest(7)
    drawn = frame.label.isin(best.index) | (frame.extend == frame.trained_extend)
    figure = Path(settings.out or first.folder / "extend.png")
    plot_rows(frame[drawn], figure)
    table_file = figure.with_suffix(".txt")
    table_file.write_text(f"{tables.extension_table(frame)}\n", encoding="utf-8")
    print(f"in {table_file} and {figure}")
    log_comparison(settings, frame, figure.parent)
    return tables.extension_table(frame, settings.format)


# ---- the program


def is_extension(word: str, names: list[str]) -> bool:
    """Whether an argument is an extension, of these names, rather than a run folder or a Hugging
    Face model; a word that is none of them is a folder, unless it resembles a name.
    """
    if word in names:
        return True
    if os.path.exists(word) or is_huggingface(word):
        return False
    if word.isidentifier():
        return bool(difflib.get_close_matches(word, names, 1, 0.75))
    if "/" in word and "(" not in word:  # out/rope+alibi-... is a folder that is not there
        return False
    return bool(set("(+| ") & set(word))


def main() -> None:
    """Test runs and print their table; draw a figure of several, or if --out names one, and log
    them to wandb if --wandb_log says so.
    """
    settings, words = configure(EvaluateSettings, sys.argv[1:], __doc__)
    of_text(settings.protocols)  # UserError for a name that is none
    device.set_up_cpu()
    tested = {}
    known = ["none", *Catalogue(settings.pos_file).extensions]
    extensions = [word for word in words if is_extension(word, known)]
    models = [word for word in words if word not in extensions]
    if extensions and not models:
        raise UserError(f"{extensions[0]} is an extension: name a run before it, such as out/RUN")
    names = named_folders(models)
    compares = bool(extensions) or settings.extend == "all"
    if compares and (settings.diagnose or set(settings.protocols) - {"fixed_targets"}):
        raise UserError("extensions are tested on fixed_targets: leave out diagnose and protocols")
    if extensions and settings.extend is not None:
        raise UserError(f"name extensions as arguments or by --extend, not both: {extensions[0]}")
    # lines on the progress go elsewhere where the table is to be read by a program
    progress = sys.stdout if settings.format == "text" else sys.stderr
    advice = "lower eval_lengths, or leave the longest out"
    with redirect_stdout(progress), device.memory_advice(advice):
        if compares:
            runs = [open_model(name, settings, settings.first_token) for name in names]
            table = evaluate_extensions(runs, extensions, settings)
            names = []
        for folder in names:
            run = open_model(folder, settings, settings.first_token)
            if settings.diagnose:
                diagnose_run(run, settings)
            else:
                tested[str(run.folder)] = evaluate_run(
                    run, [settings.extend], settings, settings.protocols
                )
    if compares:
        print(table)
    if compares or settings.diagnose:
        return
    rows = rows_of(tested)
    if rows.dataset.nunique() > 1:
        raise UserError(
            "the runs were tested on different corpora; the results are saved. To compare them, "
            "test all on one: --dataset=NAME"
        )
    rows = select(rows, rows.dataset.iloc[0], extend="all")
    print(tables.tables(rows, settings.format))
    if len(tested) > 1 or settings.out:
        path = Path(settings.out or "out/extrapolation.png")
        if plot_rows(rows, path) and settings.format == "text":
            print(f"drawn in {path}")
    log_comparison(settings, rows, Path(rows.run.iloc[0]))


if __name__ == "__main__":
    run_program(main)
