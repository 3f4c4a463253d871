"""What tables and figures call results, by what differs among those shown, and a curve's gaps."""

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from configurable import TrainSettings

SHORT = {"learning_rate": "lr"}  # what labels shorten, besides L, s and steps of `traits`
TOLD = ("pos", "extend", "block_size", "max_iters", "seed")  # settings that labels tell otherwise
DEFAULTS = {
    f.name: f.default
    for f in fields(TrainSettings)
    if f.metadata["kind"] == "result" and f.name not in TOLD
}


def scheme_name(result: dict[str, Any]) -> str:
    """The scheme of a result, with its extension."""
    return f"{result['pos']}, {result['extend']}" if result.get("extend") else result["pos"]


def run_name(result: dict[str, Any]) -> str:
    """The name of a run that is compared: scheme, extension, first and last training length."""
    extend = f" + {result['extend']}" if result.get("extend") else ""
    last = result["train_length"]
    first = result.get("original_length", last)
    lengths = f"{first}, then {last}" if first != last else f"{last}"
    return f"{result['pos']}{extend} trained at {lengths}"


def traits(result: dict[str, Any]) -> dict[str, str]:
    """All that a label may say besides the scheme: L, the settings, steps, s."""
    settings, steps = result.get("settings", {}), result.get("step", 0)
    planned = settings.get("max_iters", TrainSettings.max_iters)
    others = {name: settings.get(name, default) for name, default in DEFAULTS.items()}
    return {
        "L": str(result["train_length"]),
        **{SHORT.get(name, name): in_words(value) for name, value in others.items()},
        "steps": str(steps) if steps == planned else f"{steps}/{planned}",
        "s": str(result["seed"]),
    }


def in_words(value: Any) -> str:
    """The value of a setting as one types it."""
    if isinstance(value, list | tuple):
        value = ",".join(map(str, value))
    return "none" if value in (None, "") else str(value)


def result_labels(results: list[dict[str, Any]]) -> list[str]:
    """A different name for each result: its scheme, and the settings that differ among the results.

    Such as "rope lr=0.001". Results that are equal in all are told by their "folder", if known.
    """
    told = [traits(result) for result in results]
    values = {name: {own[name] for own in told} for name in told[0]}
    values["pos_file"] -= {"none"}  # a scheme tells by itself whether it is of a file
    differ = [name for name in values if len(values[name]) > 1]
    labels = [
        " ".join([scheme_name(result), *(f"{name}={own[name]}" for name in differ)])
        for result, own in zip(results, told, strict=True)
    ]
    return [
        f"{label} ({result['folder']})" if labels.count(label) > 1 and "folder" in result else label
        for label, result in zip(labels, results, strict=True)
    ]


# ---- where a curve has no loss


def missing_lengths(fixed: dict[int, dict[str, Any]]) -> dict[str, set[int]]:
    """The lengths at which rows by length have no loss: {"diverged": ..., "undefined": ...}."""
    missing = {"diverged": set(), "undefined": set()}
    for n, row in fixed.items():
        if row["nats"] is None:
            missing["diverged" if row.get("diverged") else "undefined"].add(n)
    return missing


def gaps(defined: Iterable[int], missing: dict[str, set[int]]) -> str:
    """ "diverged from N = 512 on" if no longer length is defined, else "diverged at N = 512, 1024".

    For `missing` see `missing_lengths`; empty if nothing is missing.
    """
    last, words = max(defined, default=0), []
    for kind, lengths in missing.items():
        if lengths and min(lengths) > last:
            words.append(f"{kind} from N = {min(lengths)} on")
        elif lengths:
            words.append(f"{kind} at N = {', '.join(map(str, sorted(lengths)))}")
    return ", ".join(words)
