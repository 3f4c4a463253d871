"""Auxiliary programs, each `python -m tools.NAME`.

    bench      speed and memory of schemes
    explain    what an expression or a model's config.json means
    docs       writes docs/schemes.md and docs/settings.md
    board      tables and figure of the board, from rows
    counts     the board's predictor and readers without a model
    compare    claims of papers, judged by rows
    longrope   searches LongRoPE's factors for a trained run

Settings of the first two are here, without importing torch, so that --help is fast.
"""

from dataclasses import dataclass
from typing import Literal

from configurable import Count, ModelSettings, Tokens, TrainSettings, setting


@dataclass(frozen=True)
class BenchSettings(TrainSettings):
    """Speed and memory of position schemes, given as the other command-line arguments.

    The model is the one that train.py would build with these settings.
    """

    only: tuple[Literal["train", "test", "decode"], ...] = setting(
        ("train", "test", "decode"), "what is measured", "test"
    )
    max_new_tokens: Count = setting(128, "tokens decoded after a text of L", "test")
    rounds: Count = setting(5, "times that scheme, nope and product take turns", "test")

    refused = {"out_dir": "the table is printed: bench.py ... > FILE keeps it"}


@dataclass(frozen=True)
class ExplainSettings(ModelSettings):
    """Explain a scheme or an extension for a model of this shape (block_size is L)."""

    pos_file: str = setting("", "your Python file of position schemes")
    length: Tokens | None = setting(
        None, "test length in tokens, else 8 L (of a model: its longest)"
    )
