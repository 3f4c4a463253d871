"""Test trained models under extensions of their context, without training them.

    python extend.py out/RUN [out/RUN ...] ['EXTENSION' ...] [--name=value ...]

    python extend.py out/rope-stdlib-L128-s1                     every extension that fits
    python extend.py out/rope-*-s? 'yarn(beta=8)' 'ntk + logn'   these, mean and spread over seeds
    python extend.py out/rope-stdlib-L128-s1 --search=8          longrope's factors for 8 L

Several runs must be seeds of one model. The losses are those of fixed_targets. They are kept in
each run's extrapolation.json, and the same command measures only what is missing.
"""

if __name__ == "__main__":  # --help answers before torch is imported
    import sys

    from configurable import ExtendSettings, answer_help

    answer_help(ExtendSettings, sys.argv[1:], __doc__)

import math
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm, trange

import data
import evaluate
from configurable import ExtendSettings, UserError, configure, differences, require, run_program
from model import GPT
from posenc import Shape, apply_maps
from positions.catalogue import ALIASES, build_extensions, extension_names, read
from positions.scheme import Scheme
from runs import device, results
from runs.checkpoint import Run
from runs.figures import plot_extensions, plot_run
from runs.files import write_json, write_text
from runs.folder import lock_folder, provenance, read_config
from runs.results import Result, Row, standard_error, tested_lengths
from runs.start import open_run, run_corpus
from runs.tables import extensions_table

NONE = "none"  # the text that stands for no extension
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
    window, fitting = f"window(size={scheme.shape.length})", [NONE]
    for text in [window, *extension_names(scheme.pos_file), *ALIASES, *COMBINED]:
        if text == "temperature":  # one of 1 does nothing
            continue
        try:
            scheme.extend(text)
            fitting.append(scheme.extension)
        except UserError:
            continue  # it does not fit, or needs an option
    scheme.extend(NONE)
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


def is_tested(rows: list[Row], trained: Run, corpus: data.Corpus, how: dict) -> bool:
    """Whether rows hold the answers to all questions under the active extension; for `how` see
    `test_run`.
    """
    places = evaluate.find_places(corpus, how["windows"])
    tester = evaluate.Tester(trained.model, corpus, trained.compute)
    now = trained.state["step"], trained.digest[:16]
    asked = [evaluate.ask(tester, places, "fixed_targets", n, now)[0] for n in how["lengths"]]
    return results.covers(rows, asked)


def losses_in_words(rows: list[Row]) -> str:
    """The losses by length, and where it diverged; why there is none, if there is none."""
    losses = {r["length"]: r["nats"] for r in rows if r["nats"] is not None or r.get("diverged")}
    texts = [f"{n}: {'diverged' if x is None else f'{x:.4f}'}" for n, x in losses.items()]
    return ", ".join(texts) or rows[0]["reason"]


def test_run(folder: str, texts: list[str], settings: ExtendSettings) -> Result:
    """Test a run under each extension that is not tested yet; its result at these lengths.

    Without texts it is tested as it was trained.
    """
    trained = open_run(folder, settings)
    corpus, model = run_corpus(trained, settings.dataset), trained.model
    about = evaluate.describe_run(trained)
    lengths = tuple(tested_lengths(trained.settings.block_size, settings.eval_lengths))
    how = {"lengths": lengths, "protocols": ("fixed_targets",), "windows": settings.eval_windows}
    result = results.load_result(folder) if (trained.folder / "extrapolation.json").exists() else {}
    lock = lock_folder(trained.folder)
    own = model.pos.extension or NONE
    for text in tqdm(texts or [own], trained.folder.name, unit="extension", disable=None):
        model.extend(text, trained.folder if text == own else None)  # typed files as typed
        if is_tested(result.get("rows", []), trained, corpus, how):
            continue
        where = {"compute": trained.compute, "progress": False}
        measured = evaluate.extrapolation(model, corpus, about, **how, **where)
        result = results.update_result(folder, measured)
        plot_run(folder, result)
        tqdm.write(f"{folder}: {text}: {losses_in_words(measured['rows'])}")
    lock.release()
    shown = results.only(result, settings.eval_windows, trained.compute.dtype_name)
    rows = [row for row in shown["rows"] if row["protocol"] == "fixed_targets"]
    return shown | {"rows": [row for row in rows if row["length"] in lengths]}


# ---- LongRoPE's search


@dataclass(frozen=True)
class Trial:
    """A candidate: the divisor of each frequency, and how many first positions are not divided."""

    factors: tuple[float, ...]
    first: int = 0


def starting_trials(inv_freq: Tensor, base: float, factor: int, length: int) -> dict[str, Trial]:
    """The first candidates by name: what pi, ntk and yarn divide each frequency by."""
    shape = Shape(1, 2 * len(inv_freq), 2 * len(inv_freq), length)
    trials = {}
    for name in ("pi", "ntk", "yarn"):
        maps = build_extensions(read(f"{name}(factor={factor})"), shape)
        mapped, _ = apply_maps((inv_freq, 1.0), maps, base, factor * length)
        divisors = (inv_freq / mapped).nan_to_num(1.0)  # 0 / 0: a pair that does not turn
        trials[name] = Trial(tuple(divisors.tolist()))
    return trials


def mutated(parent: Trial, factor: int, random: np.random.Generator) -> Trial:
    """The parent with some numbers drawn again, from 1 to 1.25 x `factor`; its factors ascend."""
    pairs = len(parent.factors)
    drawn = random.uniform(1, 1.25 * factor, pairs).round(2)
    factors = np.where(random.random(pairs) < MUTATED, drawn, parent.factors)
    redraw = random.random() < MUTATED
    first = int(random.choice(FIRST)) if redraw else parent.first
    return Trial(tuple(np.sort(factors).tolist()), first)


def crossed(a: Trial, b: Trial, random: np.random.Generator) -> Trial:
    """A child that has each number from one of two parents; factors ascend."""
    from_a = random.random(len(a.factors)) < 0.5
    factors = np.where(from_a, a.factors, b.factors)
    first = a.first if random.random() < 0.5 else b.first
    return Trial(tuple(np.sort(factors).tolist()), first)


def children(parents: list[Trial], factor: int, random: np.random.Generator) -> list[Trial]:
    """PER_ROUND mutations of parents, and as many crossings of two of them."""
    pairs = [random.choice(len(parents), 2, replace=False) for _ in range(PER_ROUND)]
    crossings = [crossed(parents[a], parents[b], random) for a, b in pairs]
    chosen = random.integers(len(parents), size=PER_ROUND)
    return [*(mutated(parents[k], factor, random) for k in chosen), *crossings]


def evolve(
    start: list[Trial], loss: Callable[[Trial], float], settings: ExtendSettings
) -> dict[Trial, float]:
    """The best PARENTS trials after the last round and their losses, the best first."""
    random, known = np.random.default_rng(settings.seed), {}
    parents = [start[k % len(start)] for k in range(POPULATION - len(start))]
    new = start + [mutated(parent, settings.search, random) for parent in parents]
    with trange(settings.rounds + 1, unit="round", disable=None) as bar:
        for _ in bar:
            known |= {trial: loss(trial) for trial in new if trial not in known}
            known = dict(sorted(known.items(), key=lambda item: item[1])[:PARENTS])
            bar.set_postfix(loss=f"{min(known.values()):.4f}")
            new = children(list(known), settings.search, random)
    return known


def put_on_longrope(model: GPT, trial: Trial, factor: int) -> None:
    """Extend a model by longrope with the numbers of a trial."""
    with tempfile.TemporaryDirectory() as folder:
        numbers = {"long_factor": trial.factors, "first": trial.first}
        write_json(Path(folder) / "trial.json", numbers)
        model.extend(f"longrope(file='trial.json', factor={factor})", Path(folder))


@torch.no_grad()
def test_losses(trained: Run, corpus: data.Corpus, length: int, windows: int) -> np.ndarray:
    """Mean nats at each place of fixed_targets, (windows,), under the active extension."""
    places = evaluate.find_places(corpus, windows)
    tester = evaluate.Tester(trained.model, corpus, trained.compute)
    return tester.score(evaluate.fixed_targets(places, length))[0] / places.scored


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
    own = f"{folder} was trained with its own {path.name}, which this would replace"
    advice = "search the run that it began from"
    require(path.name not in trained.config["extension_files_sha256"], f"{own}: {advice}")
    rotary, length = model.pos.rotary[0], trained.state["original_length"]
    start = starting_trials(rotary.frequencies(length)[0], rotary.base, factor, length)
    lock = lock_folder(trained.folder)
    total = factor * length

    def loss(trial: Trial) -> float:
        put_on_longrope(model, trial, factor)
        nats = evaluate.tuning_loss(model, corpus, total, settings.eval_windows, trained.compute)
        require(math.isfinite(nats), f"{folder}: a loss at {total} tokens is not finite")
        return nats

    best, found = next(iter(evolve(list(start.values()), loss, settings).items()))
    nats = {}
    for name, trial in {**start, "search": best}.items():
        put_on_longrope(model, trial, factor)
        nats[name] = test_losses(trained, corpus, total, settings.eval_windows)
    content = {"long_factor": best.factors, "first": best.first, "factor": factor}
    content |= {"train_length": length, "split_sha256": corpus.split_sha256("val")}
    content |= {"rounds": settings.rounds, "seed": settings.seed, "loss_searched": found}
    known = provenance()
    origin = {name: known[name] for name in ("versions", "git_commit", "command")}
    content |= gain_of_search(nats) | origin
    write_json(path, content)
    lock.release()
    return search_report(f"{folder}, {total} tokens", content, path)


def gain_of_search(nats: dict[str, np.ndarray]) -> dict[str, Any]:
    """Mean losses, and how much better `search` is than the best of what it started from.

    `nats` are the losses (windows,) by name at the places of the test.
    """
    means = {name: float(losses.mean()) for name, losses in nats.items()}
    rival = min((name for name in means if name != "search"), key=means.get)
    gained = nats[rival] - nats["search"]
    error = standard_error(gained)
    gain = {"over": rival, "nats": float(gained.mean()), "standard_error": error}
    return {"loss_unseen": means, "gain_unseen": gain}


def search_report(title: str, content: dict[str, Any], path: Path) -> str:
    """What a search found, in a few lines; `content` is that of the file at `path`."""
    gain = content["gain_unseen"]
    number = f"{gain['nats']:+.4f} ± {gain['standard_error']:.4f} (standard error over windows)"
    how = "nats on targets that were not searched on, with longrope's attention factor"
    lines = [f"{title}: {how}"]
    lines += [f"  {name:8} {loss:.4f}" for name, loss in content["loss_unseen"].items()]
    lines += [f"  gain over {gain['over']}: {number}"]
    return "\n".join([*lines, f"{path}: use it as --extend=\"longrope(file='{path}')\""])


# ---- the command


def folders_and_extensions(words: list[str]) -> tuple[list[str], list[str]]:
    """The run folders, each once, and the extensions among the words of the command line.

    Other files are left out, because a shell's out/* names them too. UserError for a folder that
    does not exist, or if there is none.
    """
    folders: dict[str, str] = {}
    texts = []
    for word in words:
        config = os.path.isfile(f"{word}/config.json")
        if os.path.isdir(word) and (config or word not in extension_names()):
            folders.setdefault(os.path.realpath(word), word)
        elif not (os.path.isfile(word) and (os.sep in word or Path(word).suffix)):
            no_path = "(" in word or os.sep not in word
            require(no_path, f"{word} is no folder, and no extension")
            texts.append(word)
    require(folders, "no run folder is named: python extend.py out/RUN")
    return list(folders.values()), texts


def check_seeds(folders: list[str]) -> dict[str, Any]:
    """The settings of the first run; UserError unless the others are the same but for the seed."""
    first = read_config(Path(folders[0]))["settings"]
    seeds = {first["seed"]}
    for folder in folders[1:]:
        settings = read_config(Path(folder))["settings"]
        different = differences(settings, first)
        differ = [text for text in different if not text.startswith(("seed:", "init_from:"))]
        reason = "; ".join(differ) or "the same seed is named twice"
        advice = f"show it too with --compare={folder}"
        sentence = f"{folder} is no other seed of {folders[0]} ({reason}): {advice}"
        require(not differ and settings["seed"] not in seeds, sentence)
        seeds.add(settings["seed"])
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
