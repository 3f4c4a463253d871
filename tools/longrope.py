"""Search the factors of LongRoPE (Ding et al. 2024, arXiv 2402.13753, section 4) for trained runs.

    python -m tools.longrope out/RUN [out/RUN ...] [--factor=4] [--rounds=40]

It writes longrope-FACTOR.json into each run's folder, for --extend="longrope(file='...')".
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from tqdm import trange

from common import device
from common.errors import UserError, run_program
from common.files import write_json
from configurable import Count, MeasureSettings, configure, setting
from measure import text
from measure.protocols import find_places
from measure.tester import Tester
from run.folder import lock_folder, named_folders, provenance
from run.load import Run, open_model, run_corpus

POPULATION = 64  # initial candidates
PARENTS = 32  # survivors of a round
CHILDREN = 16  # new candidates of each kind in a round: mutations, and mixtures of two
MUTATED = 0.3  # the share of numbers that a mutation redraws
Divisors = tuple[float, ...]  # one for each frequency, ascending


@dataclass(frozen=True)
class SearchSettings(MeasureSettings):
    """The other arguments are run folders."""

    factor: Count = setting(4, "test length, in L", "test")
    rounds: Count = setting(40, "rounds of the search", "test")

    refused = MeasureSettings.refused | {"eval_lengths": "the length is that of --factor"}


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


def search(run: Run, settings: SearchSettings) -> None:
    """Search longrope's factors for one run and write them to longrope-FACTOR.json in its folder.

    They are chosen by `tuning_loss`, on targets that no test uses, and then compared with
    pi, ntk and yarn on the targets of the test.
    """
    factor = settings.factor
    model = run.model
    scheme = model.pos
    corpus = run_corpus(run, settings.dataset)
    if not scheme.rotary:
        raise UserError(f"{run.folder}: {scheme.text} has no rotary piece to search factors for")
    path = run.folder / f"longrope-{factor}.json"
    rotary = scheme.rotary[0]
    total = factor * scheme.shape.first_length
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
    tester = Tester(model, corpus, run.compute, first_token=run.first_token)

    def loss(divisors: Divisors) -> float:
        longrope.long.copy_(torch.tensor(divisors))
        return text.tuning_loss(tester, total, settings.eval_windows)

    best, searched = evolve(list(starts.values()), loss, factor, settings.rounds)
    places = find_places(corpus, settings.eval_windows)
    unseen = {}  # losses of each on the targets of the test
    for name, divisors in {**starts, "search": best}.items():
        longrope.long.copy_(torch.tensor(divisors))
        unseen[name] = float(tester.nats_by_place(places, total).mean())
    content = provenance() | {
        "long_factor": best,
        "factor": factor,
        "train_length": scheme.shape.first_length,
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
    """Search for each run in turn."""
    settings, typed = configure(SearchSettings, sys.argv[1:], __doc__)
    device.set_up_cpu()
    with device.memory_advice("lower factor"):
        for folder in named_folders(typed):
            search(open_model(folder, settings, settings.first_token), settings)


if __name__ == "__main__":
    run_program(main)
