"""Programs beside the main ones: `python -m tools.bench`, `python -m tools.explain`.

Their settings are here, without torch, so that --help is fast.
"""

from dataclasses import dataclass
from typing import Literal

from configurable import Count, Length, Lengths, ModelSettings, TrainSettings, setting


@dataclass(frozen=True)
class BenchSettings(TrainSettings):
    """Speed and memory of position schemes, which are the other words of the command line.

    The model is that of a training with these settings; out_dir has table, figure and JSON.
    """

    quick: bool = setting(False, "a small model and few turns, where nothing else is set", "test")
    only: tuple[Literal["train", "test", "decode"], ...] = setting(
        ("train", "test", "decode"), "what is measured", "test"
    )
    lengths: Lengths = setting((), "training lengths L, else block_size", "test")
    max_new_tokens: Count = setting(128, "tokens decoded after a text of L", "test")
    rounds: Count = setting(5, "times that scheme, nope and product take turns", "test")


@dataclass(frozen=True)
class ExplainSettings(ModelSettings):
    """A scheme or an extension, explained for a model of this shape (block_size is L)."""

    pos_file: str = setting("", "a Python file of your own with more position schemes")
    length: Length | None = setting(None, "test length in tokens, else 8 L")
