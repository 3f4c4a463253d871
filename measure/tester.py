"""The tester: the nats of a model on the validation split of a corpus, by all processes."""

import hashlib
import math
from dataclasses import dataclass

import numpy as np
import torch

from common import device
from common.processes import ALONE, Processes
from data.corpus import Corpus
from measure.protocols import (
    Places,
    Window,
    fixed_targets,
    floor_power_of_two,
)
from model import GPT
from scheme import scheme_digests
from tables.records import Record, Result
from tables.statistics import standard_error

BATCH_TOKENS = 16384  # inputs of one forward pass, at most
MAX_BATCH = 64  # windows of one forward pass, at most
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
            nats = np.zeros((len(window.ends), window.n_scored))
            size = min(MAX_BATCH, floor_power_of_two(max(1, BATCH_TOKENS // window.length)))
            for first in range(size * processes.rank, len(nats), size * processes.size):
                batch = slice(first, first + size)  # of B blocks; offsets (B, length + 1)
                offsets = window.ends[batch, None] + np.arange(-window.length, 1)
                if in_place is not None:
                    far = offsets[:, : max(0, window.length + 1 - window.n_scored - in_place)]
                    np.random.default_rng(SEED).permuted(far, axis=1, out=far)
                tokens = self.tokens_at(offsets)
                targets = tokens[:, -window.n_scored :]
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
    def losses_and_hits(
        self, tokens: np.ndarray, targets: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
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
                losses, hits = self.model.losses_and_hits(idx, asked)
            # a target is the token after its input
            nats[batch, 1:][is_scored[batch]] = losses.cpu().double().numpy()
            right[batch, 1:][is_scored[batch]] = hits.cpu().double().numpy()
        for array in (nats, right):  # zero where another process has measured
            processes.sum(torch.from_numpy(array))
        return nats, right


def fill_loss(record: Record, sums: np.ndarray, counts: np.ndarray) -> None:
    """Fill in the mean loss and its standard error, from the summed nats and the number of targets
    of each block, both (blocks,); or the reason why there is none.

    `block_nats` are the means of the blocks if all have the same number of targets. Else they are
    the linearised ratio estimator (delta method): their mean is the mean over targets, and their
    standard error that of a ratio. As they are linear in nats, differences can be paired.
    """
    lost = np.sum(~np.isfinite(sums))
    if lost:  # what the test found, and no error
        record.diverged = True
        record.reason = f"diverged: the loss is not finite in {lost} of {len(sums)} blocks"
        return
    record.tokens = int(counts.sum())
    record.nats = float(sums.sum() / record.tokens)
    share = counts * len(sums) / record.tokens  # of all targets; 1 on average
    means = sums * len(sums) / record.tokens + record.nats * (1 - share)
    record.block_nats = [float(f"{x:.7g}") for x in means]  # 7 digits, so that files stay small
    record.stderr = standard_error(record.block_nats)


def digest(targets: np.ndarray) -> str:
    """The SHA-256 of whole numbers that identify targets: offsets, distances or tokens."""
    return hashlib.sha256(targets.astype("<i8").tobytes()).hexdigest()


def new_record(tester: Tester, about: Result, protocol: str, length: int, windows: int) -> Record:
    """A record that says what is asked; `about` is from `describe_run`."""
    scheme = tester.model.pos
    return Record(
        protocol,
        length,
        dataset=tester.corpus.name,
        split_sha256=tester.corpus.split_sha256("val"),
        extend=scheme.extend_text,
        # a changed extension is another question
        files_sha256=scheme_digests(scheme) if scheme.extend_text else None,
        step=about.step,
        checkpoint=about.checkpoint,
        dtype=tester.compute.dtype_name,
        factor=scheme.factor(length),
        tokens_trained=about.tokens_trained,
        windows=windows,
        first_token=tester.first_token,
    )


def fill_bytes(record: Record, text_nats: float, n_bytes: int) -> None:
    """Fill in the perplexity, and the bits per byte of the targets that stand for text: `text_nats`
    in `n_bytes`. End tokens are left out of both. Nothing, if there is no loss.
    """
    if record.nats is None:
        return
    record.perplexity = math.exp(record.nats) if record.nats < 700 else None
    record.bits_per_byte = float(text_nats / math.log(2) / n_bytes) if n_bytes else None
