"""Test trained models under extensions of their context, without training them.

    python extend.py out/RUN [out/RUN ...] ['EXTENSION' ...] [--name=value ...]

    python extend.py out/rope-stdlib-L128-s1                     every extension that fits
    python extend.py out/rope-*-s? 'yarn(beta=8)' 'ntk + logn'   these, mean and spread over seeds
    python extend.py out/rope-stdlib-L128-s1 --search=8          longrope's factors for 8 L
    python extend.py out/rope-stdlib-L128-s1 --fit=rerope        a temperature for each head

Several runs must be seeds of one model. The losses are those of fixed_targets. They are kept in
each run's extrapolation.json, and the same command measures only what is missing.
"""

if __name__ == "__main__":  # --help answers before torch is imported
    import sys

    from configurable import ExtendSettings, answer_help

    answer_help(ExtendSettings, sys.argv[1:], __doc__)

import hashlib
import math
import os
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

import data
import evaluate
from configurable import (
    ExtendSettings,
    UserError,
    check_shape,
    configure,
    differences,
    require,
    run_program,
)
from model import GPT
from posenc import Longrope, Shape, apply_maps, scheme_name
from positions.catalogue import ALIASES, build_extensions, extension_names, find, options_of, read
from positions.scheme import Scheme
from runs import device, results
from runs.checkpoint import Run
from runs.figures import plot_extensions, plot_run
from runs.files import read_json, write_json, write_text
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
SEARCH_WINDOWS, FIT_WINDOWS = 32, 8  # in one evaluation; a fit has fewer numbers to find
# a round of a search, as it is kept in a file
TRIAL = {"factors": [float], "first": int, "nats": float}
ROUND = {"about": dict, "round": int, "trials": [TRIAL]}


# ---- the table


def fitting_extensions(scheme: Scheme) -> list[str]:
    """Every extension that fits a scheme: none, each by itself with its defaults, then COMBINED."""
    texts = [f"window(size={scheme.shape.length})"]
    for name in extension_names(scheme.pos_file):
        options = options_of(find(name, scheme.pos_file)).values()
        complete = all(option.default is not option.empty for option in options)
        if complete and name != "temperature":  # a temperature of 1 does nothing
            texts.append(name)
    fitting = [NONE]
    for text in [*texts, *ALIASES, *COMBINED]:
        try:
            scheme.extend(text)
            fitting.append(scheme.extension)
        except UserError:
            continue
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
    """The losses by length, and where it diverged."""
    losses = {r["length"]: r["nats"] for r in rows if r["nats"] is not None or r.get("diverged")}
    return ", ".join(f"{n}: {'diverged' if x is None else f'{x:.4f}'}" for n, x in losses.items())


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
    own, hidden = model.pos.extension or NONE, not sys.stderr.isatty()
    for text in tqdm(texts or [own], trained.folder.name, unit="extension", disable=hidden):
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


# ---- what a search and a fit share


def halves(corpus: data.Corpus) -> tuple[data.Corpus, data.Corpus]:
    """The corpus with the first and with the second half of its validation split: one to search
    on, and one to test on what was found.
    """
    middle = len(corpus.val) // 2
    parts = []
    for begin, end in ((0, middle), (middle, len(corpus.val))):
        starts = corpus.val_starts - begin
        inside = starts[(starts >= 0) & (starts < middle)]
        starts = np.unique(np.append(0, inside))
        parts.append(replace(corpus, val=corpus.val[begin:end], val_starts=starts))
    return parts[0], parts[1]


def window_losses(trained: Run, corpus: data.Corpus, length: int, windows: int) -> np.ndarray:
    """Mean nats in each of `windows` windows of `length` inputs, (windows,).

    The windows end at the first places of fixed_targets, but a quarter of their targets is scored:
    what was found on few targets does worse on others. UserError if a loss is not finite.
    """
    places = evaluate.find_places(corpus)
    nowhere = evaluate.why_nowhere(corpus, places, "fixed_targets", length)
    require(not nowhere, nowhere)
    starts, scored = places.ends[:windows] - length, max(1, length // 4)
    plan = evaluate.Windows(length, starts, np.full(windows, scored), np.arange(windows))
    tester = evaluate.Tester(trained.model, corpus, trained.compute)
    with torch.no_grad():
        nats = tester.score([plan])[0] / scored
    extension = trained.model.pos.extension
    infinite = f"the loss of {extension} at {length} tokens is not finite: nothing can be found"
    require(np.isfinite(nats).all(), infinite)
    return nats


def refuse_own_file(trained: Run, path: Path) -> None:
    """UserError if a run was trained with the file of that name: a new one would change it."""
    if path.name in trained.config["extension_files_sha256"]:
        own = f"{trained.folder} was trained with its own {path.name}, which this would replace"
        raise UserError(f"{own}: search or fit the run that it began from")


def origin() -> dict[str, Any]:
    """Versions, commit and command of this process."""
    known = provenance()
    return {key: known[key] for key in ("versions", "git_commit", "command")}


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


def children(parents: list[Trial], factor: int, number: int, seed: int) -> list[Trial]:
    """The candidates of round `number`: in round 0 the parents and mutations of them up to
    POPULATION, then PER_ROUND mutations and as many crossings.
    """
    random = np.random.default_rng([seed, number])
    new = list(parents) if number == 0 else []
    for k in range(len(new), POPULATION if number == 0 else 2 * PER_ROUND):
        a, b = (parents[random.integers(len(parents))] for _ in range(2))
        crossing = number > 0 and k >= PER_ROUND and a is not b
        new.append(crossed(a, b, random) if crossing else mutated(a, factor, random))
    return new


def read_round(path: Path, about: dict[str, Any]) -> tuple[int, dict[Trial, float]]:
    """The number and the trials of the last round in a file; -1 and none if it has no round of a
    search that is this one.
    """
    if not path.exists():
        return -1, {}
    try:
        kept = read_json(path)
        check_shape(kept, ROUND, str(path), "")
        if kept["about"] != about:
            return -1, {}
        trials = {Trial(tuple(t["factors"]), t["first"]): t["nats"] for t in kept["trials"]}
        numbers = [x for trial, nats in trials.items() for x in (*trial.factors, nats)]
        lengths = {len(trial.factors) for trial in trials}
        sound = lengths == {about["pairs"]} and all(map(math.isfinite, numbers))
        require(sound, "no round of trials")
    except UserError:
        print(f"{path} cannot be read: the search begins again")
        return -1, {}
    return kept["round"], trials


def evolve(
    start: dict[str, Trial],
    loss: Callable[[Trial], float],
    settings: ExtendSettings,
    path: Path,
    about: dict[str, Any],
) -> dict[Trial, float]:
    """The best PARENTS trials after the last round and their losses, the best first.

    `path` keeps every round, so that a search that was stopped goes on. What it holds is not used
    if it is of another seed, factor, start or subject (`about`), or of a later round.
    """
    factor, rounds, seed = settings.search, settings.rounds, settings.seed
    factors = {name: list(trial.factors) for name, trial in start.items()}
    pairs = len(factors["pi"])
    about = {"seed": seed, "factor": factor, "start": factors, "pairs": pairs, **about}
    done, known = read_round(path, about)
    if done > rounds:
        done, known = -1, {}
    steps, hidden = range(done + 1, rounds + 1), not sys.stderr.isatty()
    bar = tqdm(steps, initial=done + 1, total=rounds + 1, unit="round", disable=hidden)
    for number in bar:
        new = children(list(known) or list(start.values()), factor, number, seed)
        known |= {trial: loss(trial) for trial in dict.fromkeys(new) if trial not in known}
        known = dict(sorted(known.items(), key=lambda item: item[1])[:PARENTS])
        bar.set_postfix(loss=f"{min(known.values()):.4f}")
        trials = [{"factors": t.factors, "first": t.first, "nats": x} for t, x in known.items()]
        write_json(path, {"about": about, "round": number, "trials": trials})
    return known


def put_on_longrope(model: GPT, factors: tuple[float, ...], factor: int) -> Longrope:
    """Extend a model by longrope with these factors; returns the piece."""
    with tempfile.TemporaryDirectory() as folder:
        write_json(Path(folder) / "start.json", {"long_factor": factors})
        model.extend(f"longrope(file='start.json', factor={factor})", Path(folder))
    return model.pos.extensions[0]


def search(folder: str, settings: ExtendSettings) -> str:
    """Search longrope's factors for one run and write them to longrope-FACTOR.json in its folder.

    Returns the text of a report.
    """
    trained = open_run(folder, settings)
    corpus, model, factor = run_corpus(trained, settings.dataset), trained.model, settings.search
    nothing = f"{folder}: {model.pos.text} has no rotary piece whose frequencies could be searched"
    require(model.pos.rotary, nothing)
    path = trained.folder / f"longrope-{factor}.json"
    refuse_own_file(trained, path)
    rotary, length = model.pos.rotary[0], trained.state["original_length"]
    start = starting_trials(rotary.frequencies(length)[0], rotary.base, factor, length)
    lock = lock_folder(trained.folder)
    piece = put_on_longrope(model, start["pi"].factors, factor)
    searched, unseen = halves(corpus)

    def losses(trial: Trial, half: data.Corpus, windows: int) -> np.ndarray:
        piece.long, piece.first = list(trial.factors), trial.first
        return window_losses(trained, half, factor * length, windows)

    def loss(trial: Trial) -> float:
        return float(losses(trial, searched, SEARCH_WINDOWS).mean())

    about = {"windows": SEARCH_WINDOWS, "split_sha256": corpus.split_sha256("val")}
    about |= {"checkpoint_sha256": trained.digest}
    trials = evolve(start, loss, settings, trained.folder / f"search-{factor}.json", about)
    best = next(iter(trials))
    compared = {**start, "search": best}
    nats = {name: losses(trial, unseen, evaluate.WINDOWS) for name, trial in compared.items()}
    content = {"long_factor": best.factors, "first": best.first, "factor": factor}
    content |= {"train_length": length, "split_sha256": about["split_sha256"]}
    content |= {"rounds": settings.rounds, "seed": settings.seed, "loss_searched": trials[best]}
    content |= gain_of_search(nats)
    write_json(path, content | origin())
    lock.release()
    return search_report(f"{folder}, {factor * length} tokens", content, path)


def gain_of_search(nats: dict[str, np.ndarray]) -> dict[str, Any]:
    """Mean losses, and how much better `search` is than the best of what it started from.

    `nats` are the losses (windows,) by name on text that was not searched on.
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
    how = "nats on text that was not searched on, with longrope's attention factor"
    lines = [f"{title}: {how}"]
    lines += [f"  {name:8} {loss:.4f}" for name, loss in content["loss_unseen"].items()]
    lines += [f"  gain over {gain['over']}: {number}"]
    return "\n".join([*lines, f"{path}: use it as --extend=\"longrope(file='{path}')\""])


# ---- temperatures fitted to heads


def climb(loss: Callable[[list[float]], float], number: int) -> list[float]:
    """`number` scales of low loss. From 1 on, the best change of one scale is made again and again;
    the step shrinks when no change helps.
    """
    scales, step = [1.0] * number, 1.4
    best = loss(scales)
    with tqdm(desc="fit", unit="sweep", disable=not sys.stderr.isatty()) as bar:
        while step > 1.03:
            tried = []
            for head in range(number):
                for factor in (step, 1 / step):
                    tried.append([*scales[:head], scales[head] * factor, *scales[head + 1 :]])
            losses = [loss(candidate) for candidate in tried]
            if min(losses) < best:
                best, scales = min(losses), tried[int(np.argmin(losses))]
            else:
                step = math.sqrt(step)
            bar.update()
            bar.set_postfix(loss=f"{best:.4f}")
    return scales


def fit(folder: str, settings: ExtendSettings) -> str:
    """Fit a temperature for each head on half of the validation text; write them to
    temperature-EXTENSION.json in the run folder. Returns the text of a report.
    """
    trained = open_run(folder, settings)
    corpus, model = run_corpus(trained, settings.dataset), trained.model
    fitted = "" if settings.fit == NONE else settings.fit
    path = trained.folder / f"temperature-{file_name(settings.fit)}.json"
    total = max(settings.eval_lengths, default=4 * trained.settings.block_size)
    refuse_own_file(trained, path)
    lock = lock_folder(trained.folder)
    before_it = f"{fitted} + " if fitted else ""
    files = trained.folder if fitted == model.pos.extension else None
    model.extend(f"{before_it}temperature(scale=1)", files)
    piece = next(p for p in model.pos.extensions if scheme_name(p) == "temperature")
    searched, unseen = halves(corpus)

    def loss(scales: list[float], half: data.Corpus, windows: int) -> float:
        piece.scales = scales
        return float(window_losses(trained, half, total, windows).mean())

    without = loss([1.0] * model.config.n_head, unseen, evaluate.WINDOWS)
    scales = climb(lambda tried: loss(tried, searched, FIT_WINDOWS), model.config.n_head)
    with_them = loss(scales, unseen, evaluate.WINDOWS)
    content = {"scales": scales, "extend": settings.fit, "length": total}
    content |= {"split_sha256": corpus.split_sha256("val")}
    content |= {"loss_unseen": {"without": without, "fitted": with_them}}
    write_json(path, content | origin())
    lock.release()
    listed = ", ".join(f"{scale:.2f}" for scale in scales)
    verdict = "use it as" if with_them < without else "no better, but it can be used as"
    comparison = f"nats on text that was not fitted to: {without:.4f} without, {with_them:.4f} with"
    use = f"{path}: {verdict} --extend=\"{before_it}temperature(file='{path}')\""
    return f"{folder}, {total} tokens: scales {listed}; {comparison}\n{use}"


def file_name(text: str) -> str:
    """A file name for an extension. A long one is cut, and digits of its digest are put behind."""
    name = re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")
    if len(name) > 60:
        name = f"{name[:60]}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
    return name


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
    """Test the runs under the extensions, or search, or fit."""
    settings, words = configure(ExtendSettings, sys.argv[1:], __doc__)
    folders, texts = folders_and_extensions(words)
    device.keep_freed_memory()
    with device.memory_advice("lower eval_lengths, or leave the longest out"):
        for folder in folders:
            if settings.search:
                print(search(folder, settings))
            if settings.fit:
                print(fit(folder, settings))
        if not (settings.search or settings.fit):
            test_all(folders, texts, settings)


if __name__ == "__main__":
    run_program(main)
