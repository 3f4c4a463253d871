"""Measure position schemes: the speed and the memory of training, long tests and decoding.

    python -m tools.bench [SCHEME ...] [config/FILE.py ...] [--name=value ...]

    python -m tools.bench --quick=True                              # a small model, in a minute
    python -m tools.bench rope alibi t5 --lengths=128,512           # two training lengths L
    python -m tools.bench rope config/size/gpt2.py --only=train     # 124M parameters, for a GPU
    python -m tools.bench rope --only=test --eval_lengths=65536     # a long test and its memory

The scheme, nope and a product of two matrices of 2048 x 2048 take turns, so that a machine whose
speed changes does so for all three. A long test has the longest of eval_lengths, else 16 L. JSON
and table go to out_dir, by default out/bench. The same command goes on after a stop: what
is in the JSON file is not measured again.
"""

if __name__ == "__main__":  # --help answers before torch is imported
    from configurable import BenchSettings, answer_help

    answer_help(BenchSettings, __doc__)

import gc
import itertools
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import data
from configurable import (
    BenchSettings,
    UserError,
    configure,
    read_json,
    run_program,
    typed,
    write_json,
)
from data import rows
from model import GPT
from runs import device
from runs.checkpoint import provenance, training_corpus
from runs.log import flops_per_token
from runs.results import show
from train import MeanLoss, compile_loss, configure_optimizers, to_device

QUICK = {
    "n_layer": 1,
    "n_embd": 64,
    "block_size": 64,
    "batch_size": 8,
    "rounds": 3,
    "max_new_tokens": 32,
}
FREE = ("only", "lengths", "device", "dtype", "overwrite", "out_dir")  # may differ in one file
TEST_TOKENS = 16384  # inputs of one forward pass of a test
CUBE = 2048  # rows and columns of the matrices that are multiplied
LEGEND = (
    "nope       median of the ratios to the speed of nope in each turn; low, high: all of them",
    "use        operations as train.py counts them, as a share of those of the product",
    "GFLOP/s    of the product of matrices",
    "first      seconds of the first call, which compiles what is not compiled yet",
    "GiB        of a GPU: weights, what the optimizer keeps, the most that a call takes besides",
)


# ---- what is measured


class Subject:
    """A model, and what is measured of it: `run()` takes `tokens` tokens in texts of `length`."""

    def __init__(
        self, s: BenchSettings, part: str, corpus: data.Corpus, compute: device.Compute
    ) -> None:
        torch.manual_seed(s.seed)
        self.settings = s
        self.corpus = corpus
        self.compute = compute
        self.step = 0
        self.model = GPT(s.gpt(corpus.vocab_size), s.pos_file or None).to(compute.device)
        self.model.train(part == "train")
        self.length = s.block_size
        text = torch.from_numpy(corpus.val.astype(np.int64)).to(compute.device)
        if part == "train":
            self.run = self.train
            self.tokens = s.gradient_accumulation_steps * s.batch_size * s.block_size
            self.loss_fn = MeanLoss(self.model)
            self.optimizers = configure_optimizers(self.model, s, compute.dtype)
            compile_loss(self.loss_fn, s, compute.kind)
        elif part == "test":
            self.run = self.test
            self.length = min(max(s.eval_lengths, default=16 * s.block_size), len(text) - 1)
            texts = max(1, TEST_TOKENS // self.length)
            self.text = text[: self.length + 1].expand(texts, -1)
            self.tokens = texts * self.length
        else:
            self.run = self.decode
            self.text = text[None, : s.block_size]
            self.length += s.max_new_tokens
            self.tokens = s.max_new_tokens
            if compute.kind == "cuda" and s.compile and not device.missing_compiler():
                self.model.compile()  # on a CPU that takes longer than it saves

    def train(self) -> None:
        """Take a training step."""
        s = self.settings
        self.model.draw_ids(s.seed, self.step, s.block_size)
        for micro_step in range(s.gradient_accumulation_steps):
            first = (self.step * s.gradient_accumulation_steps + micro_step) * s.batch_size
            batch = rows.batch(self.corpus, s.block_size, s.seed, first, s.batch_size)
            x, y = (to_device(array, self.compute) for array in batch)
            with device.autocast(self.compute):
                loss = self.loss_fn(x, y) / s.gradient_accumulation_steps
            loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), s.grad_clip or torch.inf)
        for optimizer in self.optimizers:
            optimizer.step()
        self.model.zero_grad(set_to_none=True)
        self.step += 1

    @torch.no_grad()
    def test(self) -> None:
        """The losses of as many long texts as evaluate.py reads at once."""
        with device.autocast(self.compute):
            self.model.losses(self.text[:, :-1], self.text[:, 1:])

    def decode(self) -> None:
        """Go on from a text of L tokens."""
        with device.autocast(self.compute):
            self.model.generate(self.text, self.settings.max_new_tokens, temperature=0)


def seconds(run: Callable[[], object], compute: device.Compute) -> float:
    """How long a call takes, until the device has done all."""
    started = time.perf_counter()
    run()
    if compute.kind == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def memory(run: Callable[[], object], compute: device.Compute) -> int | None:
    """The most bytes that a call takes besides those in use before; None on a CPU."""
    if compute.kind != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats(compute.device)
    before = device.peak_memory(compute)
    seconds(run, compute)
    return device.peak_memory(compute) - before


def compare(s: BenchSettings, part: str, corpus: data.Corpus, compute: device.Compute) -> dict:
    """Measure a part of the scheme s.pos in turn with nope and with a product of matrices."""
    torch._dynamo.reset()  # what was compiled before, and the models of then
    gc.collect()
    subject = Subject(s, part, corpus, compute)
    nope = Subject(replace(s, pos="nope"), part, corpus, compute)
    a = torch.randn(CUBE, CUBE, device=compute.device, dtype=compute.dtype)
    count = 100 if compute.kind == "cuda" else 1  # one is too short to be timed there

    def product() -> None:
        for _ in range(count):
            a @ a

    turns = []
    for _ in range(s.rounds + 2):
        turns.append([seconds(run, compute) for run in (nope.run, subject.run, product)])
    others, own, products = np.array(turns[2:]).T  # the first turns compile and warm up
    ratios = others / own
    rates = 2 * CUBE**3 * count / products
    flops = flops_per_token(subject.model, subject.length) * subject.tokens
    kept = 4 * subject.model.parameter_count
    if part == "train":
        kept *= 3  # with AdamW's two means
    else:
        flops /= 3  # forward only
    grown = memory(subject.run, compute)
    compiled = part == "train" and s.compile
    return {
        "length": subject.length,
        "tokens_per_s": subject.tokens / np.median(own),
        "nope": np.median(ratios),
        "low": min(ratios),
        "high": max(ratios),
        "use": np.median(flops / own / rates),
        "gflops": np.median(rates) / 1e9,
        "first_s": turns[0][1],
        "gib": None if grown is None else round((kept + grown) / 2**30, 3),
        "attention": subject.model.attention_path(subject.length, compiled=compiled),
    }


def main() -> None:
    """Measure what is not measured yet; write JSON and table."""
    s, schemes = configure(BenchSettings, sys.argv[1:], __doc__)
    device.set_up_cpu()
    compute = device.pick(s.device, s.dtype, s.batch_size * s.block_size, s.n_embd)
    settings = [f"{compute.name}, {compute.dtype_name}"]
    for name in sorted(s.named.difference(FREE)):
        settings.append(f"{name}={typed(getattr(s, name))}")
    if s.quick:
        s = replace(s, **{name: x for name, x in QUICK.items() if name not in s.named})
    corpus = training_corpus(s)
    path = Path(s.out_dir or "out/bench", "bench.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    measured = {}
    if path.exists() and not s.overwrite:
        before = read_json(path)
        measured = before["rows"]
        if before["settings"] != settings:
            raise UserError(f"{path} is of other settings: set another --out_dir")

    lengths = s.lengths or [s.block_size]
    for length, pos, part in itertools.product(lengths, schemes or ["rope"], s.only):
        name = f"{pos}, {part} at L = {length}"
        if name in measured:
            continue
        print(name, flush=True)
        try:
            with device.memory_advice("lower batch_size"):
                measured[name] = compare(
                    replace(s, pos=pos, block_size=length), part, corpus, compute
                )
        except UserError as error:
            measured[name] = {"reason": str(error)}
        write_json(path, {"settings": settings, "rows": measured, **provenance()})

    frame = pd.DataFrame.from_dict(measured, orient="index").convert_dtypes()
    table = show("; ".join(settings), frame.rename_axis(" "), LEGEND, digits=3)
    path.with_name("table.txt").write_text(table, encoding="utf-8")
    print(f"\n{table}\n\nin {path.parent}")


if __name__ == "__main__":
    run_program(main)
