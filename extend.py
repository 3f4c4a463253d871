"""Test context extensions on trained models, without training.

    python extend.py out/RUN [out/RUN ...] ['EXTENSION' ...] [--name=value ...]

    python extend.py out/rope-stdlib-L128-s1                     every extension that fits
    python extend.py out/rope-*-s? 'yarn(beta=8)' 'ntk + logn'   these, mean and spread over seeds
    python extend.py out/rope-stdlib-L128-s1 --search=8          longrope's factors for 8 L
    python extend.py SmolLM-135M yarn --dataset=mine             a Hugging Face folder or name

Several runs must differ only in their seeds. The losses are those of fixed_targets. They are kept
in each run's extrapolation.json, so that the same command measures only what is missing.
"""

if __name__ == "__main__":  # --help answers before torch is imported
    from configurable import ExtendSettings, answer_help

    answer_help(ExtendSettings, __doc__)

import copy
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from tqdm import trange

import evaluate
from configurable import ExtendSettings, UserError, configure, run_program, values, write_json
from runs import device, results
from runs.checkpoint import (
    Run,
    lock_folder,
    named_folders,
    open_model,
    provenance,
    run_corpus,
)
from runs.figures import plot_extensions
from runs.huggingface import is_huggingface
from runs.log import log_comparison
from scheme import Scheme, extension_names

# combinations, tested after the single extensions
COMBINED = ["yarn(beta=4)", "yarn(beta=8)", "ntk + logn", "yarn(beta=8) + logn"]
COMBINED += ["yarn + resonance", "rerope + logn", "self_extend + logn"]


def fitting_extensions(scheme: Scheme) -> list[str]:
    """All extensions that fit a scheme: single ones with their defaults, then COMBINED."""
    names = [f"window(size={scheme.shape.length})", *extension_names(scheme.pos_file)]
    fitting = []
    for text in [*names, *COMBINED]:
        if text in ("temperature", "dynamic_yarn"):  # the first is 1 by default, the second is yarn
            continue
        with suppress(UserError):  # it does not fit, or needs an option
            scheme.extend(text)
            fitting.append(scheme.extend_text)
    return fitting


def check_seeds(runs: list[Run]) -> None:
    """Raise UserError unless the runs differ in their seeds and in nothing else."""
    first = values(runs[0].settings, "result")
    for run in runs:
        for name, value in values(run.settings, "result").items():
            if name not in ("seed", "init_from") and value != first[name]:
                raise UserError(
                    f"{run.folder} is not a seed of {runs[0].folder}: its {name} is {value!r}"
                )
    if len({run.settings.seed for run in runs}) < len(runs):
        raise UserError("two of the runs have the same seed: leave one out")


def test_extensions(runs: list[Run], texts: list[str], settings: ExtendSettings) -> None:
    """Test what is missing; print the table, and write it and its figure."""
    first = runs[0]
    check_seeds(runs)
    corpus = run_corpus(first, settings.dataset)
    if "rows" in corpus.meta:
        raise UserError(
            f"{corpus.name} has other targets at each length: "
            f"python evaluate.py {first.folder} --extend=NAME tests one extension"
        )

    figure = Path(settings.out or first.folder / "extend").with_suffix(".png")
    lengths = settings.eval_lengths or first.settings.eval_lengths
    lengths = results.tested_lengths(first.model.config.block_size, lengths)
    settings = replace(settings, dataset=corpus.name, eval_lengths=tuple(lengths))
    texts = texts or fitting_extensions(copy.deepcopy(first.model.pos))
    wanted = ["", "none", *texts]  # "" is the model as it was trained
    for run in runs:
        # a gain compares the same targets
        evaluate.evaluate_run(run, wanted, settings, ("fixed_targets",), again=False)

    frame = results.load_rows([run.folder for run in runs])
    frame = frame[(frame.protocol == "fixed_targets") & frame.length.isin(lengths)]
    frame = results.select(frame, corpus.name, extend="all")
    table = results.extension_table(frame)
    figure.parent.mkdir(parents=True, exist_ok=True)
    table_file = figure.with_suffix(".txt")
    table_file.write_text(f"{table}\n", encoding="utf-8")
    plot_extensions(frame, figure)
    print(f"{table}\nin {table_file} and {figure}")
    log_comparison(settings, frame, figure)


# ---- LongRoPE's search (Ding et al. 2024, section 4)

POPULATION = 64  # initial candidates
PARENTS = 32  # survivors of a round
CHILDREN = 16  # new candidates of each kind in a round: mutations, and mixtures of two
MUTATED = 0.3  # the share of numbers that a mutation redraws
Divisors = tuple[float, ...]  # one for each frequency, ascending


def evolve(
    starts: list[Divisors], loss: Callable, factor: int, rounds: int
) -> tuple[Divisors, float]:
    """The best divisors of an evolutionary search by loss(divisors), and their loss."""
    random = np.random.default_rng(1337)

    def mix(a: Divisors, b: Divisors, share: float) -> Divisors:
        """Take each number from b with probability `share`, else from a."""
        return tuple(np.sort(np.where(random.random(len(a)) < share, b, a)).tolist())

    def mutate(parent: Divisors) -> Divisors:
        drawn = random.uniform(1, 1.25 * factor, len(parent)).round(2)
        return mix(parent, drawn, MUTATED)

    losses = {}
    new = list(starts)
    for k in range(POPULATION - len(starts)):
        new.append(mutate(starts[k % len(starts)]))
    bar = trange(rounds + 1, unit="round", disable=None)
    for _ in bar:
        for divisors in new:
            if divisors not in losses:
                losses[divisors] = loss(divisors)
        best = sorted(losses, key=losses.get)[:PARENTS]
        losses = {divisors: losses[divisors] for divisors in best}
        bar.set_postfix(loss=f"{losses[best[0]]:.4f}")
        new = []
        for _ in range(CHILDREN):
            a, b = random.choice(len(best), 2, replace=False)
            new.append(mutate(best[a]))
            new.append(mix(best[a], best[b], 0.5))
    return best[0], losses[best[0]]


def search(run: Run, settings: ExtendSettings) -> None:
    """Search longrope's factors for one run and write them to longrope-FACTOR.json in its folder.

    They are chosen by `evaluate.tuning_loss`, on targets that no test uses, and then compared with
    pi, ntk and yarn on the targets of the test.
    """
    factor = settings.search
    model = run.model
    scheme = model.pos
    corpus = run_corpus(run, settings.dataset)
    if not scheme.rotary:
        raise UserError(f"{run.folder}: {scheme.text} has no rotary piece to search factors for")
    path = run.folder / f"longrope-{factor}.json"
    rotary = scheme.rotary[0]
    total = factor * scheme.shape.length
    own, _ = rotary.frequencies(total)
    starts = {}
    for name in ("pi", "ntk", "yarn"):
        model.pos.extend(f"{name}(factor={factor})")
        mapped, _ = rotary.frequencies(total, scheme.maps)
        divisors = (own / mapped).nan_to_num(1.0)  # 0 / 0: a pair that does not turn
        starts[name] = tuple(divisors.tolist())

    # activate longrope once; then only its numbers change
    lock_folder(run.folder)
    trial = run.folder / ".trial.new"
    write_json(trial, {"long_factor": starts["pi"]})
    model.pos.extend(f"longrope(file='{trial.name}', factor={factor})", run.folder)
    trial.unlink()
    (longrope,) = scheme.extensions.values()
    tester = evaluate.Tester(model, corpus, run.compute)

    def loss(divisors: Divisors) -> float:
        longrope.long.copy_(torch.tensor(divisors))
        return evaluate.tuning_loss(tester, total, settings.eval_windows)

    best, searched = evolve(list(starts.values()), loss, factor, settings.rounds)
    places = evaluate.find_places(corpus, settings.eval_windows)
    unseen = {}  # losses of each on the targets of the test
    for name, divisors in {**starts, "search": best}.items():
        longrope.long.copy_(torch.tensor(divisors))
        unseen[name] = float(evaluate.losses_at(tester, places, total).mean())
    content = provenance() | {
        "long_factor": best,
        "factor": factor,
        "train_length": scheme.shape.length,
        "split_sha256": corpus.split_sha256("val"),
        "rounds": settings.rounds,
        "loss_searched": searched,
        "loss_unseen": unseen,
    }
    write_json(path, content)
    print(f"{run.folder}, {total} tokens: nats on targets that were not searched on")
    for name, nats in unseen.items():
        print(f"  {name:8} {nats:.4f}")
    print(f"{path}: use it as --extend=\"longrope(file='{path}')\"")


def main() -> None:
    """Test the runs under the extensions, or search."""
    settings, typed = configure(ExtendSettings, sys.argv[1:], __doc__)
    names = extension_names()
    models = []
    texts = []
    for word in typed:
        is_path = os.path.exists(word) or (os.sep in word and "(" not in word)
        if word not in names and (is_path or is_huggingface(word)):
            models.append(word)
        else:
            texts.append(word)
    if settings.search and texts:
        raise UserError(f"--search tests no extension: leave {' '.join(texts)!r:.60} out")
    device.set_up_cpu()
    with device.memory_advice("lower eval_lengths, or leave the longest out"):
        runs = [open_model(name, settings) for name in named_folders(models)]
        if settings.search:
            for run in runs:
                search(run, settings)
        else:
            test_extensions(runs, texts, settings)


if __name__ == "__main__":
    run_program(main)
