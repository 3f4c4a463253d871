"""Test trained models under extensions of their context, without training them.

    python extend.py out/RUN [out/RUN ...] ['EXTENSION' ...] [--name=value ...]

    python extend.py out/rope-stdlib-L128-s1                     every extension that fits
    python extend.py out/rope-*-s? 'yarn(beta=8)' 'ntk + logn'   these, mean and spread over seeds
    python extend.py out/rope-stdlib-L128-s1 --search=8          longrope's factors for 8 L
    python extend.py SmolLM-135M yarn --dataset=mine             a Hugging Face folder or name

Several runs must be seeds of one model. The losses are those of fixed_targets. They are kept in
each run's extrapolation.json, and the same command measures only what is missing.
"""

if __name__ == "__main__":  # --help answers before torch is imported
    from configurable import ExtendSettings, answer_help

    answer_help(ExtendSettings, __doc__)

import math
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import trange

import data
import evaluate
from configurable import ExtendSettings, UserError, configure, differences, require, run_program
from posenc import apply_maps
from positions.catalogue import extension_names
from positions.scheme import Scheme
from runs import device, formats, paper, results
from runs.checkpoint import Run
from runs.figures import plot_extensions
from runs.files import write_json, write_text
from runs.folder import lock_folder, named_folders, provenance, read_config
from runs.log import log_comparison
from runs.results import Result, tested_lengths
from runs.start import is_huggingface, open_run, pretrained_run, run_corpus
from runs.tables import extensions_table

# tested after each extension by itself
COMBINED = ["yarn(beta=4)", "yarn(beta=8)", "ntk + logn", "yarn(beta=8) + logn"]
COMBINED += ["yarn + resonance", "rerope + logn", "self_extend + logn"]
# LongRoPE's search (Ding et al. 2024, section 4): the size of the first population, how many of it
# survive, the children of each kind in a round, and the share of numbers that a mutation redraws
POPULATION, PARENTS, PER_ROUND, MUTATED = 64, 32, 16, 0.3
# its choices for the number of first positions that keep their frequencies
FIRST = (0, 1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 64, 128, 256)


# ---- the table


def fitting_extensions(scheme: Scheme) -> list[str]:
    """Every extension that fits a scheme: none, each by itself with its defaults, then COMBINED."""
    known = [f"window(size={scheme.shape.length})", *extension_names(scheme.pos_file)]
    for name in ("temperature", "dynamic_yarn"):  # one of 1 does nothing; yarn's other name
        known.remove(name)
    fitting = ["none"]
    for text in [*known, *COMBINED]:
        with suppress(UserError):  # it does not fit, or needs an option
            scheme.extend(text)
            fitting.append(scheme.extension)
    return fitting


def wanted_extensions(folder: str, texts: list[str], settings: ExtendSettings) -> list[str]:
    """What to test a run and its other seeds under: as they were trained ("", the first), none, and
    `texts`, or else all that fit. UserError if one of `texts` does not fit.
    """
    scheme = open_run(folder, settings).model.pos
    own = scheme.extension or "none"
    others = [text for text in texts if text != own]
    for text in others:
        scheme.extend(text)
    wanted = dict.fromkeys(["", "none", *(others if texts else fitting_extensions(scheme))])
    return [text for text in wanted if text != own]


def test_run(folder: str, texts: list[str], settings: ExtendSettings) -> Result:
    """Test a run under each extension that is not tested yet; its result at these lengths."""
    result, _ = evaluate.evaluate_run(folder, texts, settings, again=False)
    lengths = tested_lengths(result["train_length"], settings.eval_lengths)
    fixed = [row for row in result["rows"] if row["protocol"] == "fixed_targets"]
    return result | {"rows": [row for row in fixed if row["length"] in lengths]}


# ---- LongRoPE's search


class Trial(NamedTuple):
    """A candidate: the divisor of each frequency, and how many first positions are not divided."""

    factors: tuple[float, ...]
    first: int = 0


Loss = Callable[[Trial], float]  # nats


def starting_trials(scheme: Scheme, factor: int) -> dict[str, Trial]:
    """The first candidates by name: what pi, ntk and yarn divide each frequency by."""
    rotary, length, trials = scheme.rotary[0], scheme.shape.length, {}
    own = rotary.frequencies(length)
    for name in ("pi", "ntk", "yarn"):
        scheme.extend(f"{name}(factor={factor})")
        mapped, _ = apply_maps(own, scheme.maps, rotary.base, factor * length)
        divisors = (own[0] / mapped).nan_to_num(1.0)  # 0 / 0: a pair that does not turn
        trials[name] = Trial(tuple(divisors.tolist()))
    return trials


def mixed(a: Trial, b: Trial, share: float, random: np.random.Generator) -> Trial:
    """A child that has each number from b with a probability of `share`, or from a; they ascend."""
    factors = np.where(random.random(len(a.factors)) < share, b.factors, a.factors)
    first = b.first if random.random() < share else a.first
    return Trial(tuple(np.sort(factors).tolist()), first)


def mutated(parent: Trial, factor: int, random: np.random.Generator) -> Trial:
    """The parent with some numbers drawn again, from 1 to 1.25 x `factor`."""
    drawn = random.uniform(1, 1.25 * factor, len(parent.factors)).round(2)
    return mixed(parent, Trial(tuple(drawn), int(random.choice(FIRST))), MUTATED, random)


def children(parents: list[Trial], factor: int, random: np.random.Generator) -> list[Trial]:
    """PER_ROUND mutations of parents, and as many crossings of two of them."""
    pairs = [random.choice(len(parents), 2, replace=False) for _ in range(PER_ROUND)]
    crossings = [mixed(parents[a], parents[b], 0.5, random) for a, b in pairs]
    chosen = random.integers(len(parents), size=PER_ROUND)
    return [*(mutated(parents[k], factor, random) for k in chosen), *crossings]


def evolve(start: list[Trial], loss: Loss, settings: ExtendSettings) -> dict[Trial, float]:
    """The best PARENTS trials after the last round and their losses, the best first."""
    random, known = np.random.default_rng(settings.seed), {}
    parents = [start[k % len(start)] for k in range(POPULATION - len(start))]
    new = start + [mutated(parent, settings.search, random) for parent in parents]
    bar = trange(settings.rounds + 1, unit="round", disable=None)
    for _ in bar:
        known |= {trial: loss(trial) for trial in new if trial not in known}
        known = dict(sorted(known.items(), key=lambda item: item[1])[:PARENTS])
        bar.set_postfix(loss=f"{min(known.values()):.4f}")
        new = children(list(known), settings.search, random)
    return known


def put_on_longrope(run: Run, trial: Trial, factor: int) -> None:
    """Extend the model of a run by longrope with the numbers of a trial, which are in a file of the
    run folder until `lock_folder` cleans it up.
    """
    numbers = {"long_factor": trial.factors, "first": trial.first}
    write_json(run.folder / ".trial.new", numbers)
    run.model.extend(f"longrope(file='.trial.new', factor={factor})", run.folder)


def search(folder: str, settings: ExtendSettings) -> str:
    """Search longrope's factors for one run and write them to longrope-FACTOR.json in its folder.

    They are chosen by `evaluate.tuning_loss`, on targets that the test does not have. Returns the
    text of a report.
    """
    run, factor, windows = open_run(folder, settings), settings.search, settings.eval_windows
    corpus, scheme = run_corpus(run, settings.dataset), run.model.pos
    nothing = f"{folder}: {scheme.text} has no rotary piece whose frequencies could be searched"
    require(scheme.rotary, nothing)
    path = run.folder / f"longrope-{factor}.json"
    own = f"{folder} was trained with its own {path.name}: search the run that it began from"
    require(path.name not in run.config["extension_files_sha256"], own)
    start, total = starting_trials(scheme, factor), factor * scheme.shape.length
    tester, lock = evaluate.Tester(run.model, corpus, run.compute), lock_folder(run.folder)

    def loss(trial: Trial) -> float:
        put_on_longrope(run, trial, factor)
        nats = evaluate.tuning_loss(tester, total, windows)
        require(math.isfinite(nats), f"{folder}: a loss at {total} tokens is not finite")
        return nats

    best, found = next(iter(evolve([*start.values()], loss, settings).items()))
    places, unseen = evaluate.find_places(corpus, windows), {}
    for name, trial in {**start, "search": best}.items():
        put_on_longrope(run, trial, factor)
        unseen[name] = evaluate.losses_at(tester, places, total)
    content = provenance() | {"long_factor": best.factors, "first": best.first, "factor": factor}
    content |= {"train_length": scheme.shape.length, "split_sha256": corpus.split_sha256("val")}
    content |= {"rounds": settings.rounds, "seed": settings.seed, "loss_searched": found}
    content |= gain_of_search(unseen)
    write_json(path, content)
    (run.folder / ".trial.new").unlink()
    lock.release()
    return f"{folder}, {total} tokens: {search_report(content, path)}"


def gain_of_search(losses: dict[str, np.ndarray]) -> dict[str, Any]:
    """The means of these losses by place, and how much that of `search` is below the best other."""
    means = {name: float(nats.mean()) for name, nats in losses.items()}
    rival = min(means.keys() - {"search"}, key=means.get)
    gained = losses[rival] - losses["search"]
    gain = {"over": rival, "nats": float(gained.mean()), "stderr": results.standard_error(gained)}
    return {"loss_unseen": means, "gain_unseen": gain | {"blocks": len(gained)}}


def search_report(content: dict[str, Any], path: Path) -> str:
    """What a search found, in a few lines, and how to use its file."""
    gain = content["gain_unseen"]
    lines = ["nats on targets that were not searched on, with longrope's attention factor"]
    lines += [f"  {name:8} {nats:.4f}" for name, nats in content["loss_unseen"].items()]
    lines += ["  gain over {over}: {nats:+.4f} ± {stderr:.4f} (standard error)".format(**gain)]
    return "\n".join([*lines, f"{path}: use it as --extend=\"longrope(file='{path}')\""])


# ---- the command


def folders_and_extensions(words: list[str]) -> tuple[list[str], list[str]]:
    """The run folders, each once, and the extensions among the words of the command line.

    UserError for a folder that does not exist, or if there is none.
    """
    names = extension_names()
    models = [word for word in words if os.path.exists(word) or is_huggingface(word)]
    texts = [word for word in words if word in names or word not in models]
    for word in texts:
        require("(" in word or os.sep not in word, f"{word} is no folder, and no extension")
    return named_folders([word for word in words if word not in texts], "extend.py"), texts


def check_seeds(folders: list[str]) -> dict[str, Any]:
    """The settings of the first run; UserError unless the others are the same but for the seed."""
    runs = {folder: read_config(Path(folder))["settings"] for folder in folders}
    first, seeds = runs[folders[0]], {settings["seed"] for settings in runs.values()}
    own = {name: first[name] for name in ("seed", "init_from")}
    for folder, settings in runs.items():
        reason = "; ".join(differences(settings | own, first))
        advice = f"show it too with --compare={folder}"
        require(not reason, f"{folder} is no other seed of {folders[0]} ({reason}): {advice}")
    require(len(seeds) == len(runs), "the same seed is named twice: leave one of its runs out")
    return first


def test_all(folders: list[str], texts: list[str], settings: ExtendSettings) -> None:
    """Test what is missing; print the table, and write it and its figure."""
    first = check_seeds(folders)
    if settings.paper:
        paper.read_paper(settings.paper)
    for folder in settings.compare:
        read_config(Path(folder))  # a wrong name is refused before hours of testing
    lengths = tested_lengths(first["block_size"], settings.eval_lengths or first["eval_lengths"])
    # all runs, those to compare too, are tested on the same targets
    dataset = settings.dataset or first["dataset"]
    settings = replace(settings, dataset=dataset, eval_lengths=tuple(lengths))
    other = f"{dataset} has other targets at each length, and a gain compares the same ones"
    advice = f"python evaluate.py {folders[0]} --extend=NAME tests one extension"
    require("rows" not in data.load(dataset).meta, f"{other}: {advice}")
    wanted = wanted_extensions(folders[0], texts, settings)
    tested = [test_run(folder, wanted, settings) for folder in folders]
    others = [test_run(folder, [""], settings) for folder in settings.compare]
    path = settings.out or str(Path(folders[0]) / "extend")
    path = path.removesuffix(".txt").removesuffix(".png")
    pages, numbers = [extensions_table(tested, others, dataset)], []
    if settings.paper:
        cells = {"": tested, "compared": others}
        pages += paper.tables_of(settings.paper, cells)
        numbers = paper.judged(settings.paper, cells)
    text, done = "\n\n".join(pages), list(map(Path, [*folders, *settings.compare]))
    write_text(f"{path}.txt", text + "\n")
    kind, files = settings.format, [f"{path}.txt", f"{path}.png"]
    if kind != "text":
        files.append(f"{path}.{kind}")
        lines = [*formats.over_models(tested, others, dataset), *numbers]
        write_text(files[-1], formats.written(kind, pages, lines) + "\n")
    plot_extensions(tested, others, f"{path}.png", dataset)
    print(f"{text}\nin {' and '.join(files)}")
    log_comparison(settings, done, Path(f"{path}.png"), "extensions")


def main() -> None:
    """Test the runs under the extensions, or search."""
    settings, words = configure(ExtendSettings, sys.argv[1:], __doc__)
    named, texts = folders_and_extensions(words)
    device.set_up_cpu()
    with device.memory_advice("lower eval_lengths, or leave the longest out"):
        folders = [pretrained_run(word, settings) for word in named]
        if not settings.search:
            return test_all(folders, texts, settings)
        require(not texts, f"--search tests no extension: leave {' '.join(texts)!r:.60} out")
        for folder in folders:
            print(search(folder, settings))


if __name__ == "__main__":
    run_program(main)
