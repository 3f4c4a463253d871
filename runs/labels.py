"""What tables and figures call results, by what differs among those shown, and a curve's gaps."""

import math
from typing import Any

from configurable import TrainSettings, typed

SHORT = {"learning_rate": "lr"}  # what labels shorten, besides L, s and steps of `traits`
TOLD = ("pos", "extend", "block_size", "max_iters", "seed")  # settings that labels tell otherwise
DEFAULTS = {name: of for name, of in TrainSettings.defaults().items() if name not in TOLD}


def run_name(result: dict[str, Any]) -> str:
    """The name of a run that is compared: scheme, extension, first and last training length."""
    extend = f" + {result['extend']}" if result.get("extend") else ""
    last = result["train_length"]
    lengths = dict.fromkeys((result.get("original_length", last), last))
    return f"{result['pos']}{extend} trained at {', then '.join(map(str, lengths))}"


def settings_that_differ(settings: TrainSettings) -> dict[str, Any]:
    """The settings that change the result, if they are not the defaults.

    Those that a result names by itself are left out: pos, extend, block_size and seed.
    """
    own, usual = (vars(s.warmed_up(settings.max_iters)) for s in (settings, TrainSettings()))
    names = [name for name in own if name in DEFAULTS or name == "max_iters"]
    return {name: own[name] for name in names if own[name] != usual[name]}


def traits(result: dict[str, Any]) -> dict[str, str]:
    """All that a label may say besides the scheme: L, the settings, steps, s."""
    settings, steps = result.get("settings", {}), result.get("step", 0)
    planned = settings.get("max_iters", TrainSettings.max_iters)
    told = {"L": str(result["train_length"]), **in_words(DEFAULTS | settings)}
    told["steps"] = str(steps) if steps == planned else f"{steps}/{planned}"
    return told | {"s": str(result["seed"])}


def in_words(settings: dict[str, Any]) -> dict[str, str]:
    """The values that labels tell, by what labels call the settings, as one types them."""
    return {SHORT.get(name, name): typed(settings[name]) or "none" for name in DEFAULTS}


def result_labels(results: list[dict[str, Any]]) -> list[str]:
    """A different name for each result: its scheme, and the settings that differ among the results.

    Such as "rope lr=0.001". If more than three settings differ, those that are the default are left
    out. Results that are equal in all are told by their "folder", if known.
    """
    told = [traits(result) for result in results]
    values = {name: {own[name] for own in told} for name in told[0]}
    values["pos_file"] -= {"none"}  # a scheme tells by itself whether it is of a file
    varying = [name for name, found in values.items() if len(found) > 1]
    usual = in_words(DEFAULTS) if len(varying) > 3 else {}
    labels = []
    for result, own in zip(results, told, strict=True):
        differ = [n for n in varying if own[n] in values[n] and own[n] != usual.get(n)]
        scheme = f"{result['pos']}, {result['extend']}" if result.get("extend") else result["pos"]
        labels.append(" ".join([scheme, *(f"{name}={own[name]}" for name in differ)]))
    folders = [f" ({result['folder']})" if result.get("folder") else "" for result in results]
    pairs = zip(labels, folders, strict=True)
    return [label + folder if labels.count(label) > 1 else label for label, folder in pairs]


# ---- where a curve has no loss


def loss(row: dict[str, Any]) -> float:
    """The nats of a row: inf where it diverged, nan where it is undefined."""
    missing = math.inf if row.get("diverged") else math.nan
    return missing if row["nats"] is None else row["nats"]


def gaps(curve: dict[int, float]) -> str:
    """Where a curve of `loss` by length has no number; empty if it has all.

    "diverged from N = 512 on" if no longer length is defined, else "diverged at N = 512, 1024".
    """
    last = max((n for n, nats in curve.items() if math.isfinite(nats)), default=0)
    words = []
    for kind, is_missing in (("diverged", math.isinf), ("undefined", math.isnan)):
        lengths = sorted(n for n, nats in curve.items() if is_missing(nats))
        if lengths:
            at = f"at N = {', '.join(map(str, lengths))}"
            at = f"from N = {lengths[0]} on" if lengths[0] > last else at
            words.append(f"{kind} {at}")
    return ", ".join(words)
