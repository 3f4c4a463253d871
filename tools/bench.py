"""Benchmark position schemes: speed and memory of training, long tests and decoding.

    python -m tools.bench [SCHEME ...] [config/FILE.py ...] [--name=value ...]

    python -m tools.bench rope alibi t5 --block_size=512            # another training length L
    python -m tools.bench rope config/size/gpt2.py --only=train     # 124M parameters, for a GPU
    python -m tools.bench rope --only=test --eval_lengths=65536     # a long test and its memory

    python -m tools.bench path wall --only=test --eval_lengths=2048 --beside=alibi

The scheme, another one (--beside) and a 2048 x 2048 matrix product are timed in turn, so that
changes in the machine's speed affect all three. A long test uses the longest of eval_lengths, by
default 16 L. The texts are random tokens, of the vocabulary of --dataset.
"""

import gc
import itertools
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import pandas as pd
import torch

from common import device
from common.errors import UserError, run_program
from configurable import Count, TrainSettings, configure, setting
from data import corpus
from measure.tester import BATCH_TOKENS
from model import GPT
from optimizer import configure_optimizers
from run.log import flops_per_token
from tables.tables import show
from train import SummedLoss, compile_loss

CUBE = 2048  # rows and columns of the multiplied matrices
LEGEND = (
    "ratio      median of the ratios to the speed of --beside in each turn; low, high: all of them",
    "use        operations as train.py counts them, as a share of those of the product",
    "GFLOP/s    of the product of matrices",
    "first      seconds of the first call, which compiles what is not compiled yet",
    "GiB        of a GPU, the most during a call, with weights and what the optimizer keeps",
)


@dataclass(frozen=True)
class BenchSettings(TrainSettings):
    """Speed and memory of position schemes, given as the other command-line arguments.

    The model is the one that train.py would build with these settings.
    """

    only: tuple[Literal["train", "test", "decode"], ...] = setting(
        ("train", "test", "decode"), "what is measured", "test"
    )
    max_new_tokens: Count = setting(128, "tokens decoded after a text of L", "test")
    beside: str = setting("nope", "the scheme that the others are compared with", "test")
    rounds: Count = setting(5, "times that the two and the product take turns", "test")

    refused = TrainSettings.refused | {
        "out_dir": "the table is printed: bench.py ... > FILE keeps it"
    }


# ---- what is measured


def prepare(
    s: BenchSettings, part: str, vocab_size: int, compute: device.Compute
) -> tuple[GPT, Callable[[], None], int, int, str]:
    """A model, the function to time, the length of its texts, the tokens per call, and the path of
    attention.
    """
    torch.manual_seed(s.seed)
    model = compute.place(GPT(s.gpt(vocab_size), s.pos_file or None))
    model.train(part == "train")
    length = s.block_size
    batch_size = s.batch_size
    if part == "test":  # as many long texts as evaluate.py reads at once
        length = max(s.eval_lengths, default=16 * s.block_size)
        batch_size = max(1, BATCH_TOKENS // length)
    texts = torch.randint(vocab_size, (batch_size, length + 1), device=compute.device)
    x = texts[:, :-1]
    y = texts[:, 1:]

    if part == "train":
        loss_fn = SummedLoss(model)
        optimizers = configure_optimizers(model, s, compute.dtype)
        compiled = compile_loss(loss_fn, s, compute.kind)

        def step() -> None:
            model.pos.draw(s.seed, 0, length)
            for _ in range(s.gradient_accumulation_steps):
                with device.autocast(compute):
                    loss = loss_fn(x, y)
                (loss / s.tokens_per_step).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), s.grad_clip or torch.inf)
            for optimizer in optimizers:
                optimizer.step()
            model.zero_grad(set_to_none=True)

        path = model.path_of(length, has_gradients=True, compiled=compiled)
        return model, step, length, s.tokens_per_step, path

    if part == "test":

        @torch.no_grad()
        def test() -> None:
            with device.autocast(compute):
                model.losses(x, y)

        return model, test, length, x.numel(), model.path_of(length)

    def decode() -> None:
        with device.autocast(compute):
            model.generate(x[:1], s.max_new_tokens, temperature=0)

    length += s.max_new_tokens
    path = model.path_of(min(length, model.pos.limit or length), new=1)
    return model, decode, length, s.max_new_tokens, path


def seconds(run: Callable[[], object], compute: device.Compute) -> float:
    """Seconds that a call takes, until the device has finished."""
    started = time.perf_counter()
    run()
    if compute.kind == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def compare(s: BenchSettings, part: str, vocab_size: int, compute: device.Compute) -> dict:
    """Time one part of the scheme s.pos in turn with s.beside and a matrix product."""
    torch._dynamo.reset()  # drop earlier compiled code and the models it holds
    gc.collect()
    model, run, length, tokens, path = prepare(s, part, vocab_size, compute)
    first_s = seconds(run, compute)
    gib = None
    if compute.kind == "cuda":
        torch.cuda.reset_peak_memory_stats(compute.device)
        run()
        gib = device.peak_memory(compute) / 2**30

    _, run_other, *_ = prepare(replace(s, pos=s.beside, extend=""), part, vocab_size, compute)
    a = torch.randn(CUBE, CUBE, device=compute.device, dtype=compute.dtype)
    count = 100 if compute.kind == "cuda" else 1  # a single one is too short to time

    def product() -> None:
        for _ in range(count):
            a @ a

    calls = {"other": run_other, "scheme": run, "product": product}
    turns = []
    for _ in range(s.rounds + 2):
        turns.append({name: seconds(call, compute) for name, call in calls.items()})
    turns = pd.DataFrame(turns[2:])  # the first turns compile and warm up
    ratio = turns.other / turns.scheme
    rate = 2 * CUBE**3 * count / turns["product"]  # FLOP/s
    flops = flops_per_token(model, length) * tokens
    if part != "train":
        flops /= 3  # forward only
    return {
        "length": length,
        "tokens_per_s": tokens / turns.scheme.median(),
        "ratio": ratio.median(),
        "low": ratio.min(),
        "high": ratio.max(),
        "use": (flops / turns.scheme / rate).median(),
        "gflops": rate.median() / 1e9,
        "first_s": first_s,
        "gib": gib,
        "attention": path,
    }


def main() -> int:
    """Measure each part of each scheme and print a table; returns 1 if none could be measured."""
    s, schemes = configure(BenchSettings, sys.argv[1:], __doc__)
    device.set_up_cpu()
    compute = device.pick(s.device, s.dtype, s.batch_size * s.block_size, s.n_embd)
    vocab_size = corpus.load_corpus(s.dataset).vocab_size
    lines = []
    for pos, part in itertools.product(schemes or ["rope"], s.only):
        line = {" ": f"{pos}, {part}"}
        print(line[" "], "...", file=sys.stderr)
        try:
            with device.memory_advice("lower batch_size"):
                line |= compare(replace(s, pos=pos), part, vocab_size, compute)
        except UserError as error:
            line["reason"] = str(error)
        lines.append(line)
    table = pd.DataFrame(lines).convert_dtypes()
    title = (
        f"{compute.name}, {compute.dtype_name}, trained at L = {s.block_size}; beside {s.beside}"
    )
    print(show(title, table, LEGEND, digits=3))
    return int(all("reason" in line for line in lines))


if __name__ == "__main__":
    run_program(main)
