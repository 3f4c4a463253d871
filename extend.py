"""One trained model x every context extension that fits x every length; LongRoPE's search; temperatures fitted to heads.

    python extend.py out/rope-stdlib-L128-s1                          # every extension that fits, with its defaults
    python extend.py out/rope-*-s? 'yarn(beta=8)' 'ntk + logn'        # these, mean and spread over seeds
    python extend.py out/rope-stdlib-L128-s1 --search=8               # factors for 8 times the length, by evolution
    python extend.py out/rope-stdlib-L128-s1 --fit=rerope             # a temperature for each head, under rerope

Losses are those of fixed_targets, kept in each run's extrapolation.json: the same command measures only what is missing.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

import data
import evaluate
import posenc
from configurable import ExtendSettings, UserError, configure, differences, run
from positions.catalogue import extension_names, extensions, find, options_of
from positions.scheme import Scheme
from runs import device
from runs.checkpoint import Run, digests, load_run
from runs.figures import plot_extensions
from runs.figures import plot_run
from runs.files import write_json, write_text
from runs.folder import lock_folder, provenance, read_config, scheme_label
from runs.processes import ALONE
from runs.results import MODEL, load_result, rows_on, standard_error, update_result
from runs.tables import extensions_table

USAGE = """python extend.py out/RUN [out/RUN ...] ['EXTENSION' ...] [--key=value ...]

Test a trained model under context extensions, without training it. Start with: python extend.py out/RUN"""
RAW = "none"
COMBINED = (
    "yarn(beta=4)",
    "yarn(beta=8)",
    "ntk + logn",
    "yarn(beta=8) + logn",
    "yarn + resonance",
    "rerope + logn",
    "self_extend + logn",
)  # shown beside each extension by itself
POPULATION, PARENTS, PER_ROUND, CHANGED = (
    64,
    32,
    16,
    0.3,
)  # of LongRoPE's search: Ding et al. 2024, section 4
FIRST = (
    0,
    1,
    2,
    4,
    8,
    12,
    16,
    20,
    24,
    28,
    32,
    64,
    128,
    256,
)  # its choices of untouched first tokens
SEARCHED, FITTED = 32, 8  # windows of one evaluation of a search, and of a fit of a few numbers


# ---- the table


def fitting(scheme: Scheme, length: int) -> list[str]:
    """Every extension that fits a scheme, by itself with its defaults, then COMBINED; none first. `length` is L."""

    def complete(name: str) -> bool:
        return not any(
            p.default is p.empty
            for p in options_of(find(name, scheme.pos_file)).values()
        )

    texts = [
        name
        for name in extension_names(scheme.pos_file)
        if complete(name) and name != "temperature"
    ]  # of 1
    found = [RAW]
    for text in [f"window(size={length})", *texts, *COMBINED]:
        try:
            scheme.extend(text)
            found.append(text)
        except UserError:
            continue
    scheme.extend(RAW)
    return found


def wanted(folder: str, texts: list[str], settings: ExtendSettings) -> list[str]:
    """The extensions to measure for a run: as it was trained, none, and those that were typed, or all that fit.

    UserError where a typed one does not fit: before anything is measured.
    """
    scheme = load_run(folder, pos_file=settings.pos_file).model.pos
    own, length = scheme.extended or RAW, scheme.shape.length
    for text in texts:
        scheme.extend(text, Path(folder) if text == own else None)
    return list(dict.fromkeys([own, RAW, *(texts or fitting(scheme, length))]))


def measured(result: dict[str, Any], model: Any, lengths: list[int], corpus: data.Corpus) -> bool:
    """Whether a result has rows of the extension in force at all lengths, with the targets, files and factors of now."""
    rows = rows_on(result.get("rows", []), corpus.name, model.pos.extended or None)
    places = evaluate.place(len(corpus.val), corpus.val_starts, lengths)
    targets = places and evaluate.targets_of(evaluate.fixed_targets(places, lengths[0]))
    asked, files = corpus.split_sha256("val"), evaluate.files_of(model)
    return all(
        (row := rows.get(("fixed_targets", n)))
        and (
            row["split_sha256"],
            row.get("targets", targets),
            row.get("files_sha256", {}),
            row.get("factor"),
        )
        == (asked, targets, files, model.pos.factor(n))
        for n in lengths
    )


def measure(folder: str, texts: list[str], settings: ExtendSettings) -> dict[str, Any]:
    """Test the model of a run folder under each extension that is not measured yet; the run's result with all of them.

    Without texts: as it was trained.
    """
    compute = device.pick(settings.device, settings.dtype)
    trained = load_run(folder, compute.device, settings.pos_file)
    corpus, model, s = (
        evaluate.corpus_of(trained, settings.dataset),
        trained.model,
        trained.settings,
    )
    own, length, path = (
        model.pos.extended or RAW,
        s["block_size"],
        trained.folder / "extrapolation.json",
    )
    lengths = evaluate.tested_lengths(length, settings.eval_lengths or tuple(s["eval_lengths"]))
    parameters = model.parameter_count  # an extension may bring some of its own
    result = load_result(folder) if path.exists() else {}
    now = {
        "pos": scheme_label(s),
        "train_length": length,
        "tokens_trained": trained.state["tokens"],
        "seed": s["seed"],
        "parameters": parameters,
    }
    if any(result.get(key) != now[key] for key in MODEL):
        result = {}  # of an earlier checkpoint
    held = lock_folder(trained.folder)
    for text in tqdm(
        texts or [own], desc=Path(folder).name, unit="extension", disable=not sys.stderr.isatty()
    ):
        model.extend(text, trained.folder if text == own else None)  # typed files are used as typed
        if measured(result, model, lengths, corpus):
            continue
        found = evaluate.extrapolation(
            model,
            corpus,
            pos=now["pos"],
            train_length=length,
            original_length=trained.state["original_length"],
            tokens_trained=now["tokens_trained"],
            seed=now["seed"],
            lengths=tuple(lengths),
            protocols=("fixed_targets",),
            compute=compute,
            progress=False,
        )
        as_trained = {"extend": None if own == RAW else own, "parameters": parameters}
        result = update_result(folder, found | as_trained)
        plot_run(folder, result)
        losses = (
            f"{row['length']}: {row['nats']:.4f}"
            for row in found["rows"]
            if row["nats"] is not None
        )
        tqdm.write(f"{folder}: {text}: {', '.join(losses)}")
    held.release()
    return result


# ---- LongRoPE's search


@dataclass(frozen=True)
class Trial:
    """A candidate: what each pair's frequency is divided by, and how many first positions keep their own."""

    factors: tuple[float, ...]
    first: int = 0

    def put(self, piece: posenc.Longrope) -> None:
        """Let a longrope piece use it."""
        piece.long, piece.first = list(self.factors), self.first


def half_of(corpus: data.Corpus, second: bool) -> data.Corpus:
    """The corpus with one half of its validation split: one to search on, the other to see what was found."""
    middle = len(corpus.val) // 2
    part = slice(middle, None) if second else slice(0, middle)
    starts = corpus.val_starts - (middle if second else 0)
    starts = np.unique(np.append(0, starts[(starts >= 0) & (starts < middle)]))
    return replace(corpus, val=corpus.val[part], val_starts=starts)


def losses_of(
    model: Any, corpus: data.Corpus, compute: device.Compute, length: int, windows: int
) -> np.ndarray:
    """Mean nats on the last quarter of the targets of each of `windows` evenly spaced windows of `length` inputs, (windows,).

    As fixed_targets, with more targets in a window: a candidate fitted to few does worse on others. UserError if not finite.
    """
    places = evaluate.place(len(corpus.val), corpus.val_starts, [length])
    if places is None:
        raise UserError(
            f"{corpus.name} has too little validation text for windows of {length} tokens"
        )
    starts, scored = (
        evaluate.fixed_targets(places, length)[0].starts[:: evaluate.WINDOWS // windows],
        max(1, length // 4),
    )
    plan = evaluate.Windows(length, starts, np.full(windows, scored), np.arange(windows))
    bench = evaluate.Bench(
        model, corpus, None, compute, ALONE, tqdm(disable=True), lines=False
    )
    with torch.no_grad():
        found = evaluate.score(bench, [plan])[0] / scored
    if not np.isfinite(found).all():
        raise UserError(
            f"the loss of {model.pos.extended} at {length} tokens is not finite: nothing can be found by it"
        )
    return found


def seeds_of(inv_freq: torch.Tensor, base: float, factor: int, length: int) -> dict[str, Trial]:
    """The candidates that a search starts from: pi, ntk and yarn at that factor, as factors of each pair."""
    shape = posenc.Shape(1, 2 * len(inv_freq), 2 * len(inv_freq), length)
    maps = {
        text: extensions(f"{text}(factor={factor})", shape)[0]
        for text in ("pi", "ntk", "yarn")
    }
    divided = {
        text: inv_freq / piece.stretch(inv_freq, base, factor * length)[0]
        for text, piece in maps.items()
    }
    return {
        text: Trial(tuple(factors.nan_to_num(1.0).tolist())) for text, factors in divided.items()
    }  # 0 / 0: a stilled pair


def changed(a: Trial, b: Trial, factor: int, random: np.random.Generator) -> Trial:
    """A child: of each pair's factors a's or b's, or, where b is a, some drawn anew from 1 ... 1.25 `factor`; ascending."""
    if a is b:
        drawn = random.uniform(1, 1.25 * factor, len(a.factors)).round(2)
        factors = np.where(random.random(len(a.factors)) < CHANGED, drawn, a.factors)
        first = int(random.choice(FIRST)) if random.random() < CHANGED else a.first
    else:
        factors = np.where(random.random(len(a.factors)) < 0.5, a.factors, b.factors)
        first = (a if random.random() < 0.5 else b).first
    return Trial(tuple(np.sort(factors).tolist()), first)


def children(parents: list[Trial], factor: int, number: int, seed: int) -> list[Trial]:
    """The candidates of a round: in round 0 the parents, filled up with mutations; else mutations and crossovers."""
    random = np.random.default_rng([seed, number])
    new = list(parents) if number == 0 else []
    for k in range(len(new), POPULATION if number == 0 else 2 * PER_ROUND):
        a, b = (parents[random.integers(len(parents))] for _ in range(2))
        new.append(changed(a, a if number == 0 or k < PER_ROUND else b, factor, random))
    return new


def kept_rounds(path: Path, about: dict[str, Any]) -> tuple[int, dict[Trial, float]]:
    """The number of the last round in a file of `evolve`, and its trials; -1 and none where it is another's or damaged."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["about"] != about:
            return -1, {}
        trials = {
            Trial(tuple(posenc.positive(factors)), first): nats
            for factors, first, nats in kept["trials"]
        }
        pairs, done = len(about["start"][0][0]), kept["round"]
        sound = trials and all(
            len(t.factors) == pairs and type(t.first) is int and math.isfinite(n)
            for t, n in trials.items()
        )
        if not (sound and type(done) is int):
            raise ValueError("no round of trials")
        return done, trials
    except FileNotFoundError:
        return -1, {}
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        print(f"{path} cannot be read ({type(error).__name__}: {error}): the search begins afresh")
        return -1, {}


def evolve(
    start: list[Trial],
    loss: Callable[[Trial], float],
    factor: int,
    rounds: int,
    seed: int,
    path: Path,
    of: dict[str, Any],
) -> dict[Trial, float]:
    """The best PARENTS after `rounds` and their losses, best first; `path` keeps each round, so that a search goes on.

    What was kept of another seed, factor, start or subject (`of`) is not gone on with, nor what has gone past `rounds`.
    """
    about = {
        "seed": seed,
        "factor": factor,
        "start": [[list(t.factors), t.first] for t in start],
        **of,
    }
    done, known = kept_rounds(path, about)
    if done > rounds:
        done, known = -1, {}
    bar = tqdm(
        range(done + 1, rounds + 1),
        initial=done + 1,
        total=rounds + 1,
        unit="round",
        disable=not sys.stderr.isatty(),
    )
    for number in bar:
        new = children(list(known) or start, factor, number, seed)
        known |= {trial: loss(trial) for trial in dict.fromkeys(new) if trial not in known}
        known = dict(sorted(known.items(), key=lambda item: item[1])[:PARENTS])
        bar.set_postfix(loss=f"{min(known.values()):.4f}")
        trials = [[list(t.factors), t.first, nats] for t, nats in known.items()]
        write_json(path, {"about": about, "round": number, "trials": trials})
    return known


def refuse_trained_with(trained: Run, path: Path) -> None:
    """UserError where a run was trained with the file of that name in its folder: to write it would change the model."""
    if path.name in trained.config.get("extension_files_sha256", {}):
        raise UserError(
            f"{trained.folder} was trained with its own {path.name}, which this would replace: search or fit "
            "the run that it began from"
        )


def made_with() -> dict[str, Any]:
    """Versions, commit and command of this process."""
    known = provenance()
    return {key: known[key] for key in ("versions", "git_commit", "command")}


def search(folder: str, settings: ExtendSettings) -> str:
    """Search longrope factors for one run; writes longrope-FACTOR.json into its folder, and returns the text of a report."""
    compute, factor = device.pick(settings.device, settings.dtype), settings.search
    trained = load_run(folder, compute.device, settings.pos_file)
    corpus, model, length = (
        evaluate.corpus_of(trained, settings.dataset),
        trained.model,
        trained.state["original_length"],
    )
    rotary = next((p for p in model.pos.pieces.values() if isinstance(p, posenc.Rotary)), None)
    if rotary is None:
        raise UserError(
            f"{folder}: {model.pos.text} has no rotary piece whose frequencies could be searched"
        )
    inv_freq, total, path = (
        rotary.frequencies(length)[0],
        factor * length,
        trained.folder / f"longrope-{factor}.json",
    )
    refuse_trained_with(trained, path)
    start, aside = (
        seeds_of(inv_freq, rotary.base, factor, length),
        trained.folder / f".longrope-{factor}.new",
    )
    held = lock_folder(trained.folder)
    write_json(
        aside, {"long_factor": start["pi"].factors}
    )  # for the piece to begin with
    model.extend(f"longrope(file='{aside.name}', factor={factor})", trained.folder)
    aside.unlink()
    piece = model.pos.extensions[0]
    of = {
        "windows": SEARCHED,
        "split_sha256": corpus.split_sha256("val"),
        "checkpoint_sha256": next(iter(digests(trained.folder))),
    }

    halves = half_of(corpus, False), half_of(corpus, True)

    def losses(trial: Trial, half: int = 0, windows: int = SEARCHED) -> np.ndarray:
        trial.put(piece)
        return losses_of(model, halves[half], compute, total, windows)

    found = evolve(
        list(start.values()),
        lambda trial: float(losses(trial).mean()),
        factor,
        settings.rounds,
        settings.seed,
        trained.folder / f"search-{factor}.json",
        of,
    )
    best = next(iter(found))
    unseen = compared(
        {
            name: losses(trial, 1, evaluate.WINDOWS)
            for name, trial in {**start, "search": best}.items()
        }
    )
    write_json(
        path,
        {
            "long_factor": best.factors,
            "first": best.first,
            "factor": factor,
            "train_length": length,
            "split_sha256": of["split_sha256"],
            "rounds": settings.rounds,
            "seed": settings.seed,
            "loss_searched": found[best],
            **unseen,
            **made_with(),
        },
    )
    held.release()
    gain = unseen["gain_unseen"]
    return "\n".join(
        [
            f"{folder}, {total} tokens: nats on the half of the validation text that was not searched on, all with "
            "longrope's attention factor",
            *(f"  {name:8} {loss:.4f}" for name, loss in unseen["loss_unseen"].items()),
            f"  gain over {gain['over']}: {gain['nats']:+.4f} ± {gain['standard_error']:.4f} (standard error over "
            f"windows)\n{path}: use it as --extend=\"longrope(file='{path}')\"",
        ]
    )


def compared(nats: dict[str, np.ndarray]) -> dict[str, Any]:
    """Of the losses (windows,) of `search` and of what it started from: their means, and its gain over the best of those."""
    unseen = {name: float(of_windows.mean()) for name, of_windows in nats.items()}
    rival = min((name for name in unseen if name != "search"), key=unseen.__getitem__)
    gained = nats[rival] - nats["search"]
    return {
        "loss_unseen": unseen,
        "gain_unseen": {
            "over": rival,
            "nats": float(gained.mean()),
            "standard_error": standard_error(gained),
        },
    }


def climb(loss: Callable[[list[float]], float], number: int) -> list[float]:
    """So many scales, from 1 on: the best change of a single one at a time, by steps that shrink where none is better."""
    scales, step = [1.0] * number, 1.4
    best = loss(scales)
    with tqdm(desc="fit", unit="sweep", disable=not sys.stderr.isatty()) as bar:
        while step > 1.03:
            tried = [
                [x * by if h == n else x for h, x in enumerate(scales)]
                for n in range(number)
                for by in (step, 1 / step)
            ]
            losses = [loss(t) for t in tried]
            if min(losses) < best:
                best, scales = min(losses), tried[int(np.argmin(losses))]
            else:
                step = math.sqrt(step)
            bar.update()
            bar.set_postfix(loss=f"{best:.4f}")
    return scales


def called(text: str) -> str:
    """A name for files made under an extension; a long one is cut, and told apart by digits of its digest."""
    name = re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")
    return (
        name if len(name) <= 60 else f"{name[:60]}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
    )


def fit(folder: str, settings: ExtendSettings) -> str:
    """Climb to a temperature for each head on half of the validation text; writes temperature-EXTENSION.json.

    Returns the text of a report.
    """
    compute = device.pick(settings.device, settings.dtype)
    trained = load_run(folder, compute.device, settings.pos_file)
    corpus, model = evaluate.corpus_of(trained, settings.dataset), trained.model
    fitted = "" if settings.fit == RAW else settings.fit
    path = trained.folder / f"temperature-{called(settings.fit)}.json"
    total = max(settings.eval_lengths, default=4 * trained.settings["block_size"])
    refuse_trained_with(trained, path)
    held, under = lock_folder(trained.folder), f"{fitted} + " * bool(fitted)
    model.extend(
        f"{under}temperature(scale=1)", trained.folder if fitted == model.pos.extended else None
    )
    piece = next(p for p in model.pos.extensions if posenc.scheme_name(type(p)) == "temperature")

    halves = half_of(corpus, False), half_of(corpus, True)

    def loss(scales: list[float], half: int = 0, windows: int = FITTED) -> float:
        piece.scales = scales
        return float(losses_of(model, halves[half], compute, total, windows).mean())

    before = loss([1.0] * model.config.n_head, 1, evaluate.WINDOWS)
    scales = climb(loss, model.config.n_head)
    after = loss(scales, 1, evaluate.WINDOWS)
    write_json(
        path,
        {
            "scales": scales,
            "extend": settings.fit,
            "length": total,
            "split_sha256": corpus.split_sha256("val"),
            "loss_unseen": {"without": before, "fitted": after},
            **made_with(),
        },
    )
    held.release()
    verdict = "use it as" if after < before else "no better, but it can be used as"
    return (
        f"{folder}, {total} tokens: scales {', '.join(f'{x:.2f}' for x in scales)}; nats on text that was not fitted to: "
        f"{before:.4f} without, {after:.4f} with\n{path}: {verdict} --extend=\"{under}temperature(file='{path}')\""
    )


# ---- the command


def same_model(folders: list[str]) -> dict[str, Any]:
    """The settings of the first run; UserError where the others are more than other seeds of it."""
    runs = [read_config(Path(folder))["settings"] for folder in folders]
    for folder, s in zip(folders[1:], runs[1:], strict=True):
        differ = [
            text for text in differences(s, runs[0]) if not text.startswith(("seed:", "init_from:"))
        ]
        if differ or s["seed"] in [other["seed"] for other in runs[: folders.index(folder)]]:
            raise UserError(
                f"{folder} is no other seed of {folders[0]} ({'; '.join(differ) or 'the same seed is named twice'}): "
                "show it beside, --compare=FOLDER"
            )
    return runs[0]


def is_run(word: str) -> bool:
    """Whether a word is a folder, and no extension of that name."""
    return os.path.isdir(word) and (
        os.path.isfile(f"{word}/config.json") or word not in extension_names()
    )


def is_file(word: str) -> bool:
    """Whether a word is one of the files that a shell's out/* names beside folders, and no extension of that name."""
    return os.path.isfile(word) and (os.sep in word or bool(Path(word).suffix))


def main() -> None:
    """Measure what is missing; print, write and draw the table; or search; or fit."""
    settings, words = configure(ExtendSettings, sys.argv[1:], USAGE)
    folders = [word for word in words if is_run(word)]
    texts = [word for word in words if word not in folders and not is_file(word)]
    folders = list({os.path.realpath(folder): folder for folder in reversed(folders)}.values())[
        ::-1
    ]  # each once
    if not folders:
        raise UserError("no run folder is named: python extend.py out/RUN")
    if any(os.sep in text for text in texts if "(" not in text):
        raise UserError(f"{next(t for t in texts if os.sep in t)} is no folder, and no extension")
    device.keep_freed_memory()
    with device.memory_advice("lower eval_lengths, or leave the longest out"):
        for work in [search] * bool(settings.search) + [fit] * bool(settings.fit):
            for folder in folders:
                print(work(folder, settings))
        if settings.search or settings.fit:
            return
        first = same_model(folders)
        settings.dataset = (
            settings.dataset or first["dataset"]
        )  # of all, beside too: on the same targets
        settings.eval_lengths = tuple(
            evaluate.tested_lengths(
                first["block_size"], settings.eval_lengths or tuple(first["eval_lengths"])
            )
        )
        for folder in settings.compare:  # so that a wrong name is refused before hours of testing
            read_config(Path(folder))
        asked = {folder: wanted(folder, texts, settings) for folder in folders}
        results = [measure(folder, asked[folder], settings) for folder in folders]
        others = [measure(folder, [], settings) for folder in settings.compare]
    table, figure = (
        f"{(settings.out or str(Path(folders[0]) / 'extend')).removesuffix('.txt').removesuffix('.png')}.{kind}"
        for kind in ("txt", "png")
    )
    text = extensions_table(results, others, settings.dataset)
    write_text(table, text + "\n")
    plot_extensions(results, others, figure, settings.dataset)
    print(f"{text}\nin {table} and {figure}")


if __name__ == "__main__":
    run(main)
