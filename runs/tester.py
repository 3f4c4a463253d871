"""The tester: the nats of a model on the validation split of a corpus, by all processes."""

from dataclasses import dataclass

import numpy as np
import torch

from data import Corpus
from model import GPT
from runs import device
from runs.processes import ALONE, Processes
from runs.protocols import (
    MAX_WINDOWS,
    Places,
    Window,
    fixed_targets,
    floor_power_of_two,
)

BATCH_TOKENS = 16384  # inputs of one forward pass
SEED = 1337  # of the order of inputs that are shuffled


@dataclass(frozen=True)
class Tester:
    """A model, on the device of `compute`, and the corpus on whose validation split it is tested.

    Several processes share the work, and each gets the whole result.
    """

    model: GPT
    corpus: Corpus
    compute: device.Compute = device.CPU
    processes: Processes = ALONE
    first_token: int | None = None  # in the place of the first input of every window: BOS

    def tokens_at(self, offsets: np.ndarray) -> torch.Tensor:
        """The tokens of windows at these offsets, (windows, T), on the model's device."""
        return self.begin(self.corpus.val[offsets])

    def begin(self, tokens: np.ndarray) -> torch.Tensor:
        """Windows of tokens, (windows, T), as the model reads them, int64 on its device."""
        tokens = tokens.astype(np.int64)
        if self.first_token is not None:
            tokens[:, 0] = self.first_token
        return torch.from_numpy(tokens).to(self.compute.device)

    @torch.no_grad()
    def nats(
        self, windows: list[Window], window_size: int | None = None, in_place: int | None = None
    ) -> np.ndarray:
        """The nats of all scored targets, (blocks, targets), float64. The model is in eval mode.

        With a `window_size`, a query sees only keys with i - j < window_size. With `in_place`, at
        least that many tokens before each target stay in place, and earlier inputs are shuffled. A
        batch has at most 16k inputs, and each of n processes takes every n-th batch. The first 64
        blocks are batched the same way however many follow.
        """
        processes = self.processes
        parts = []  # the nats of each window, (blocks, scored)
        for window in windows:
            nats = np.zeros((len(window.ends), window.scored))
            size = min(MAX_WINDOWS, floor_power_of_two(max(1, BATCH_TOKENS // window.length)))
            for first in range(size * processes.rank, len(nats), size * processes.size):
                batch = slice(first, first + size)  # of B blocks; offsets (B, length + 1)
                offsets = window.ends[batch, None] + np.arange(-window.length, 1)
                if in_place is not None:
                    far = offsets[:, : max(0, window.length + 1 - window.scored - in_place)]
                    np.random.default_rng(SEED).permuted(far, axis=1, out=far)
                tokens = self.tokens_at(offsets)
                targets = tokens[:, -window.scored :]
                with device.autocast(self.compute):
                    losses = self.model.losses(tokens[:, :-1], targets, window=window_size)
                nats[batch] = losses.cpu().double().numpy()
            parts.append(nats)
        nats = np.concatenate(parts, axis=1)
        processes.sum(torch.from_numpy(nats))  # zero where another process has measured
        return nats

    def nats_by_place(self, places: Places, length: int, in_place: int | None = None) -> np.ndarray:
        """The mean nats of fixed_targets at each place, (places,); for `in_place` see `nats`."""
        return self.nats(fixed_targets(places, length), in_place=in_place).mean(axis=1)

    @torch.no_grad()
    def answers(self, tokens: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Nats of the targets that are not -1, and 1 where one is the likeliest token; 0 elsewhere.

        `tokens` and what is returned are (texts, T + 1), `targets` those of the inputs, (texts, T).
        """
        processes = self.processes
        nats = np.zeros(tokens.shape)
        right = np.zeros(tokens.shape)
        is_scored = targets >= 0
        size = max(1, BATCH_TOKENS // targets.shape[1])  # texts of a batch
        for first in range(size * processes.rank, len(tokens), size * processes.size):
            batch = slice(first, first + size)
            idx = self.begin(tokens[batch, :-1])
            asked = torch.from_numpy(targets[batch]).to(self.compute.device)
            with device.autocast(self.compute):
                losses, hits = self.model.answers(idx, asked)
            # a target is the token after its input
            nats[batch, 1:][is_scored[batch]] = losses.cpu().double().numpy()
            right[batch, 1:][is_scored[batch]] = hits.cpu().double().numpy()
        for array in (nats, right):  # zero where another process has measured
            processes.sum(torch.from_numpy(array))
        return nats, right
