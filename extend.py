"""Test trained models under extensions of their context, without training them.

    python extend.py out/RUN [out/RUN ...] ['EXTENSION' ...] [--name=value ...]

    python extend.py out/rope-stdlib-L128-s1                     every extension that fits
    python extend.py out/rope-*-s? 'yarn(beta=8)' 'ntk + logn'   these, mean and spread over seeds
    python extend.py out/rope-stdlib-L128-s1 --search=8          longrope's factors for 8 L

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
from tqdm import tqdm, trange

import evaluate
from configurable import ExtendSettings, UserError, configure, differences, require, run_program
from posenc import apply_maps
from positions.catalogue import ALIASES, extension_names
from positions.scheme import Scheme
from runs import device, results
from runs.checkpoint import Run
from runs.figures import plot_extensions, plot_run
from runs.files import write_json, write_text
from runs.folder import lock_folder, provenance, read_config
from runs.results import Result, Row, tested_lengths
from runs.start import open_run, run_corpus
from runs.tables import extensions_table, number

NONE = "none"  # the text that stands for no extension
HOW = {"protocols": ("fixed_targets",), "progress": False}  # it is tested
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
    known.remove("temperature")  # one of 1 does nothing
    fitting = [NONE]
    for text in [*known, *ALIASES, *COMBINED]:
        with suppress(UserError):  # it does not fit, or needs an option
            scheme.extend(text)
            fitting.append(scheme.extension)
    return fitting


def wanted_extensions(folder: str, texts: list[str], settings: ExtendSettings) -> list[str]:
    """What to test a run under: as it was trained, none, and `texts`, or else all that fit.

    UserError if one of `texts` does not fit.
    """
    scheme = open_run(folder, settings).model.pos
    own = scheme.extension or NONE
    for text in texts:
        scheme.extend(text, Path(folder) if text == own else None)
    return list(dict.fromkeys([own, NONE, *(texts or fitting_extensions(scheme))]))


def test_run(folder: str, texts: list[str], settings: ExtendSettings) -> Result:
    """Test a run under each extension that is not tested yet; its result at these lengths.

    Without texts it is tested as it was trained.
    """
    trained = open_run(folder, settings)
    corpus, model = run_corpus(trained, settings.dataset), trained.model
    about, own = evaluate.describe_run(trained), model.pos.extension or NONE
    lengths = tuple(tested_lengths(trained.settings.block_size, settings.eval_lengths))
    how = HOW | {"lengths": lengths, "windows": settings.eval_windows, "compute": trained.compute}
    tester = evaluate.Tester(model, corpus, trained.compute)
    places = evaluate.find_places(corpus, settings.eval_windows)
    now = about["step"], about["checkpoint"]
    result = results.load_result(folder) if (trained.folder / "extrapolation.json").exists() else {}
    lock = lock_folder(trained.folder)
    for text in tqdm(texts or [own], trained.folder.name, unit="extension", disable=None):
        model.extend(text, trained.folder if text == own else None)  # typed files as typed
        asked = [evaluate.ask(tester, places, *HOW["protocols"], n, now)[0] for n in lengths]
        if not results.covers(result.get("rows", []), asked):
            measured = evaluate.extrapolation(model, corpus, about, **how)
            result = results.update_result(folder, measured)
            plot_run(folder, result)
            cells = {row["length"]: number(row, "nats") for row in measured["rows"]}
            losses = ", ".join(f"{n}: {cell}" for n, cell in cells.items() if cell)
            tqdm.write(f"{folder}: {text}: {losses or measured['rows'][0]['reason']}")
    lock.release()
    shown = results.only(result, settings.eval_windows, trained.compute.dtype_name)
    rows = [row for row in shown["rows"] if row["protocol"] == "fixed_targets"]
    return shown | {"rows": [row for row in rows if row["length"] in lengths]}


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
    trained = open_run(folder, settings)
    corpus, model, factor = run_corpus(trained, settings.dataset), trained.model, settings.search
    nothing = f"{folder}: {model.pos.text} has no rotary piece whose frequencies could be searched"
    require(model.pos.rotary, nothing)
    path = trained.folder / f"longrope-{factor}.json"
    own = f"{folder} was trained with its own {path.name}: search the run that it began from"
    require(path.name not in trained.config["extension_files_sha256"], own)
    start, length = starting_trials(model.pos, factor), model.pos.shape.length
    lock = lock_folder(trained.folder)
    total, windows, compute = factor * length, settings.eval_windows, trained.compute

    def loss(trial: Trial) -> float:
        put_on_longrope(trained, trial, factor)
        nats = evaluate.tuning_loss(model, corpus, total, windows, compute)
        require(math.isfinite(nats), f"{folder}: a loss at {total} tokens is not finite")
        return nats

    best, found = next(iter(evolve([*start.values()], loss, settings).items()))
    how = HOW | {"train_length": total, "lengths": (total,), "windows": windows, "compute": compute}
    rows = {}
    for name, trial in {**start, "search": best}.items():
        put_on_longrope(trained, trial, factor)
        rows[name] = evaluate.evaluate(model, corpus, **how)["rows"][0]
    content = {"long_factor": best.factors, "first": best.first, "factor": factor}
    content |= {"train_length": length, "split_sha256": corpus.split_sha256("val")}
    content |= {"rounds": settings.rounds, "seed": settings.seed, "loss_searched": found}
    known = provenance()
    content |= {name: known[name] for name in ("versions", "git_commit", "command")}
    write_json(path, content | gain_of_search(rows))
    (trained.folder / ".trial.new").unlink()
    lock.release()
    return f"{folder}, {total} tokens: {search_report(rows, path)}"


def gain_of_search(rows: dict[str, Row]) -> dict[str, Any]:
    """The losses in these rows, and how much lower that of `search` is than the best other one."""
    losses = {name: row["nats"] for name, row in rows.items()}
    rival = min((name for name in losses if name != "search"), key=losses.get)
    gained = results.paired(rows[rival], rows["search"])
    return {"loss_unseen": losses, "gain_unseen": {"over": rival} | gained._asdict()}


def search_report(rows: dict[str, Row], path: Path) -> str:
    """What a search found, in a few lines, and how to use its file."""
    gain = gain_of_search(rows)["gain_unseen"]
    lines = ["nats on targets that were not searched on, with longrope's attention factor"]
    lines += [f"  {name:8} {row['nats']:.4f}" for name, row in rows.items()]
    error = f"{gain['stderr']:.4f} (standard error over windows)"
    lines += [f"  gain over {gain['over']}: {gain['nats']:+.4f} ± {error}"]
    return "\n".join([*lines, f"{path}: use it as --extend=\"longrope(file='{path}')\""])


# ---- the command


def folders_and_extensions(words: list[str]) -> tuple[list[str], list[str]]:
    """The run folders, each once, and the extensions among the words of the command line.

    Other files are left out, because a shell's out/* names them too. UserError for a folder that
    does not exist, or if there is none.
    """
    folders, texts, names = {}, [], extension_names()
    for word in words:
        if os.path.isdir(word) and word not in names:
            folders.setdefault(os.path.realpath(word), word)
        elif word in names or not os.path.isfile(word):
            no_path = "(" in word or os.sep not in word
            require(no_path, f"{word} is no folder, and no extension")
            texts.append(word)
    require(folders, "no run folder is named: python extend.py out/RUN")
    return list(folders.values()), texts


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
    for folder in settings.compare:
        read_config(Path(folder))  # a wrong name is refused before hours of testing
    lengths = settings.eval_lengths or tuple(first["eval_lengths"])
    lengths = tuple(tested_lengths(first["block_size"], lengths))
    # all runs, those to compare too, are tested on the same targets
    dataset = settings.dataset or first["dataset"]
    settings = replace(settings, dataset=dataset, eval_lengths=lengths)
    wanted = [wanted_extensions(folder, texts, settings) for folder in folders]
    tested = [test_run(*pair, settings) for pair in zip(folders, wanted, strict=True)]
    others = [test_run(folder, [], settings) for folder in settings.compare]
    path = settings.out or str(Path(folders[0]) / "extend")
    path = path.removesuffix(".txt").removesuffix(".png")
    text = extensions_table(tested, others, dataset)
    write_text(f"{path}.txt", text + "\n")
    plot_extensions(tested, others, f"{path}.png", dataset)
    print(f"{text}\nin {path}.txt and {path}.png")


def main() -> None:
    """Test the runs under the extensions, or search."""
    settings, words = configure(ExtendSettings, sys.argv[1:], __doc__)
    folders, texts = folders_and_extensions(words)
    device.keep_freed_memory()
    with device.memory_advice("lower eval_lengths, or leave the longest out"):
        if not settings.search:
            return test_all(folders, texts, settings)
        require(not texts, f"--search tests no extension: leave {' '.join(texts)!r:.60} out")
        for folder in folders:
            print(search(folder, settings))


if __name__ == "__main__":
    run_program(main)
