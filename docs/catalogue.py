"""The tables of docs/schemes.md: every scheme and every extension."""

import inspect

from scheme import extension_names, find, options_of, scheme_names

ACTS_ON = {  # by method of Piece
    "map_frequencies": "frequencies",
    "ids": "positions",
    "embed": "token embedding",
    "turn": "queries and keys",
    "regions": "distances",
    "bias": "score",
    "temperature": "temperature",
    "mask": "mask",
    "along": "queries and keys, by their text",
    "score": "whole score",
    "weights": "attention weights",
    "output": "output of the heads",
    "pack": "cache",
    "draw": "positions of training",
}


def catalogue() -> str:
    """Two Markdown tables, of every scheme and of every extension: options, what it acts on, and
    its verdict.
    """
    rule = "| --- | --- | --- |"
    lines = ["| scheme | acts on | verdict |", rule, *map(catalogue_row, scheme_names()), ""]
    lines += ["| extension | changes | verdict |", rule, *map(catalogue_row, extension_names())]
    return "\n".join(lines)


def catalogue_row(name: str) -> str:
    """A row of a Markdown table."""
    cls, options = find(name), []
    for key, option in options_of(cls).items():
        required = option.default is option.empty
        options.append(key if required else f"{key}={option.default}")
    mention = f"{name}({', '.join(options)})" if options else name
    acts_on = ", ".join(place for method, place in ACTS_ON.items() if getattr(cls, method))
    verdict = " ".join(inspect.getdoc(cls).partition("Verdict: ")[2].split())
    return f"| `{mention}` | {acts_on or 'nothing'} | {verdict} |"
