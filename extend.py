"""Test context extensions on trained models, without training.

    python extend.py out/RUN [out/RUN ...] ['EXTENSION' ...] [--name=value ...]

    python extend.py out/rope-stdlib-L128-s1                     every extension that fits
    python extend.py out/rope-*-s? 'yarn(beta=8)' 'ntk + logn'   these, mean and spread over seeds
    python extend.py HuggingFaceTB/SmolLM-135M yarn --dataset=mine   a Hugging Face folder or name

Several runs must differ only in their seeds. The losses are those of fixed_targets. They are kept
in each run's extrapolation.json, so that the same command measures only what is missing.
"""

if __name__ == "__main__":  # --help answers before torch is imported
    from configurable import ExtendSettings, answer_help

    answer_help(ExtendSettings, __doc__)

import copy
import os
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import evaluate
from configurable import ExtendSettings, UserError, configure, run_program, setting_values
from runs import device, results
from runs.checkpoint import (
    Run,
    named_folders,
    open_model,
    run_corpus,
)
from runs.figures import plot_rows
from runs.huggingface import is_huggingface
from runs.log import log_comparison
from scheme import Catalogue, Scheme


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
    first = setting_values(runs[0].settings, "result")
    for run in runs:
        for name, value in setting_values(run.settings, "result").items():
            if name not in ("seed", "init_from") and value != first[name]:
                raise UserError(
                    f"{run.folder} is not a seed of {runs[0].folder}: its {name} is {value!r}"
                )


def main() -> None:
    """Test what is missing; print the table, and write it and its figure."""
    settings, typed = configure(ExtendSettings, sys.argv[1:])
    names = Catalogue().extensions
    models = []
    texts = []
    for word in typed:
        is_path = os.path.exists(word) or (os.sep in word and "(" not in word)
        if word not in names and (is_path or is_huggingface(word)):
            models.append(word)
        else:
            texts.append(word)
    device.set_up_cpu()
    with device.memory_advice("lower eval_lengths, or leave the longest out"):
        runs = [open_model(name, settings, settings.first_token) for name in named_folders(models)]
        first = runs[0]
        check_seeds(runs)
        corpus = run_corpus(first, settings.dataset)
        if not corpus.is_text:
            raise UserError(
                f"{corpus.name} has answers, and only text is tested here: "
                f"python evaluate.py {first.folder} --extend=NAME tests one extension"
            )
        lengths = settings.eval_lengths or first.settings.eval_lengths
        lengths = results.tested_lengths(first.settings.block_size, lengths)
        settings = replace(settings, dataset=corpus.name, eval_lengths=tuple(lengths))
        scheme = copy.deepcopy(first.model.pos)
        for text in texts:  # refused before the first test
            scheme.extend(text)
        # first as it was trained, then without; a gain compares the same targets
        extensions = [None, "", *(texts or fitting_extensions(scheme))]
        for run in runs:
            evaluate.evaluate_run(run, extensions, settings, ("fixed_targets",), only_missing=True)

    frame = results.load_rows([run.folder for run in runs])
    # of this test alone: there may be others on more windows
    asked = "protocol == 'fixed_targets' and windows == @settings.eval_windows"
    frame = frame.query(f"{asked} and length in @lengths")
    frame = results.select(frame, corpus.name, extend="all")
    table = results.extension_table(frame)
    # draw the model as it is, and the seven with the lowest loss at the longest N
    best = frame[frame.length == max(lengths)].groupby("label").nats.mean().nsmallest(7)
    drawn = frame.label.isin(best.index) | (frame.extend == frame.trained_extend)
    figure = Path(settings.out or first.folder / "extend").with_suffix(".png")
    plot_rows(frame[drawn], figure)
    table_file = figure.with_suffix(".txt")
    table_file.write_text(f"{table}\n", encoding="utf-8")
    print(f"{table}\nin {table_file} and {figure}")
    log_comparison(settings, frame, figure.parent)


if __name__ == "__main__":
    run_program(main)
