"""Measure position schemes: the speed and the memory of training, long tests and decoding.

    python bench.py [SCHEME ...] [config/FILE.py ...] [--name=value ...]

    python bench.py --quick                                     # a small model, within a minute
    python bench.py rope alibi t5 --lengths=128,512             # two training lengths L
    python bench.py rope config/size/gpt2.py --only=train       # 124M parameters, for a GPU
    python bench.py rope --only=test --eval_lengths=65536       # a long test and its memory

The scheme, nope and a product of two matrices of 2048 x 2048 take turns, so that a machine whose
speed changes does so for all three. A long test has the longest of eval_lengths, else 16 L. JSON,
table and figure go to out_dir, by default out/bench. The same command goes on after a stop: what
is in the JSON file is not measured again.
"""

if __name__ == "__main__":  # --help answers before torch is imported
    from configurable import BenchSettings, answer_help

    answer_help(BenchSettings, __doc__)

import ctypes
import gc
import itertools
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

import attention
import data
from configurable import BenchSettings, UserError, configure, read_json, require, run_program, typed
from evaluate import BATCH_TOKENS, Tester, Windows
from model import GPT
from runs import device, figures, tables
from runs.files import write_json, write_text
from runs.folder import provenance
from runs.formats import as_printed
from runs.log import flops_per_token
from runs.processes import ALONE
from runs.start import Start, corpus_digests, training_corpus
from train import Training

QUICK = dict(n_layer=1, n_embd=64, block_size=64, batch_size=8, rounds=3, max_new_tokens=32)
FREE = "only lengths device dtype overwrite out_dir format".split()  # may change in one file
CUBE = 2048  # rows and columns of the matrices that are multiplied
# what of a row stands in the table
CELLS = "{length} {tokens_per_s:,.0f} {ratio[0]:.2f} {ratio[1]:.2f} {ratio[2]:.2f} {use:.1%} "
CELLS += "{gflops:,.0f} {first_s:.1f} {gib} {attention}"


# ---- what is measured


class Subject:
    """A model that trains at block_size = L. Its methods return how many tokens they took."""

    def __init__(self, s: BenchSettings, corpus: data.Corpus, compute: device.Compute) -> None:
        torch.manual_seed(s.seed)
        self.model = GPT(s.gpt(corpus.vocab_size), s.pos_file or None).to(compute.device)
        config = {"corpus_sha256": corpus_digests(corpus), "read_before": {}}
        self.training = Training(Start(s, Path(), corpus, compute, ALONE, self.model, config))
        self.tester, self.new = Tester(self.model, corpus, compute), s.max_new_tokens
        longest = min(max(s.eval_lengths, default=16 * s.block_size), len(corpus.val) - 1)
        self.lengths = {"train": s.block_size, "test": longest, "decode": s.block_size + self.new}

    def train(self) -> int:
        """Take a step, compiled at the first one."""
        if not self.training.step:
            self.training.compile()
        self.training.take_step()
        return self.training.tokens // self.training.step

    @torch.no_grad()
    def test(self) -> int:
        """Test as many long texts as evaluate.py reads at once."""
        length = self.lengths["test"]
        starts = np.zeros((max(1, BATCH_TOKENS // length), 1), dtype=np.int64)
        self.tester.score([Windows(length, starts, np.ones(1, dtype=np.int64))])
        return starts.size * length

    def decode(self) -> int:
        """Go on from a text of L tokens."""
        tokens, compute = self.tester.corpus.val[None, : self.lengths["train"]], self.tester.compute
        text = torch.from_numpy(tokens.astype(np.int64)).to(compute.device)
        with device.autocast(compute):
            self.model.generate(text, self.new, temperature=0)
        return self.new


def seconds(run: Callable[[], object], compute: device.Compute) -> float:
    """How long a call takes, until the device has done all."""
    started = time.perf_counter()
    run()
    if compute.kind == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def memory(run: Callable[[], object], compute: device.Compute) -> int | None:
    """The most bytes that a call takes besides those in use before; None if nothing tells."""
    if compute.kind == "cuda":
        torch.cuda.reset_peak_memory_stats(compute.device)
    elif sys.platform == "linux":  # the process is told to forget its peak
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    else:
        return None
    before = device.peak_memory(compute)
    seconds(run, compute)
    return device.peak_memory(compute) - before


def busiest(run: Callable[[], object], kind: str = "cuda") -> list[str]:
    """The kernels, or torch's operations on a CPU, that take most of a call, with their shares."""
    with profile(activities=[getattr(ProfilerActivity, kind.upper())]) as seen:
        run()
    field = "self_cpu_time_total" if kind == "cpu" else "self_device_time_total"
    spent = {event.key: getattr(event, field) for event in seen.key_averages()}
    names = sorted(spent, key=spent.get, reverse=True)[:5]
    return [f"{spent[name] / max(1, sum(spent.values())):.0%} {name:.90}" for name in names]


def compare(s: BenchSettings, part: str, corpus: data.Corpus, compute: device.Compute) -> dict:
    """Measure a part of the scheme s.pos in turn with nope."""
    torch._dynamo.reset()  # what was compiled before, and the models of then
    gc.collect()
    ours, nope = (Subject(replace(s, pos=pos), corpus, compute) for pos in (s.pos, "nope"))
    run, theirs = getattr(ours, part), getattr(nope, part)
    training, length = part == "train", ours.lengths[part]
    for subject in (ours, nope):
        subject.model.train(training)
        able = compute.kind == "cuda" and s.compile and not device.missing_compiler()
        if part == "decode" and able:
            subject.model.compile()  # on a CPU that takes longer than it saves
    a = torch.randn(CUBE, CUBE, device=compute.device, dtype=compute.dtype)
    count = 100 if compute.kind == "cuda" else 1  # one is too short to be timed there
    calls = (theirs, run, lambda: [a @ a for _ in range(count)])
    turns = np.array([[seconds(call, compute) for call in calls] for _ in range(s.rounds + 2)])
    others, own, products = turns[2:].T  # the first turns compile and warm up
    grown, tokens = memory(run, compute), run()
    flops = flops_per_token(ours.model, length) * tokens / (1 if training else 3)
    rates, ratios = 2 * CUBE**3 * count / products, others / own
    row = {"length": length, "tokens_per_s": tokens / np.median(own), "first_s": turns[0, 1]}
    row |= {"ratio": [np.median(ratios), min(ratios), max(ratios)]}
    row |= {"use": np.median(flops / own / rates), "gflops": np.median(rates) / 1e9}
    kept = 4 * ours.model.parameter_count * (3 if training else 1)  # weights, AdamW's two means
    row |= {"gib": None if grown is None else round((kept + grown) / 2**30, 3)}
    row |= {"attention": ours.model.attention_path(length, compiled=training and s.compile)}
    return row | {"kernels": busiest(run) if compute.kind == "cuda" else []}


# ---- what is shown


def table(found: dict) -> tables.Page:
    """A text table of the rows of a file.

    nope       the median of the ratios to the speed of nope in each turn; low, high: all of them
    use        operations as train.py counts them, as a share of those of the product
    product    of matrices: GFLOP/s
    first      seconds of the first call, which compiles what is not compiled yet
    GiB        weights, what the optimizer keeps, and the most that one call takes besides
    """
    lines = [["", *"N tokens/s nope low high use product first GiB attention".split()]]
    for name, row in found["rows"].items():
        cells = [row["reason"]] if "reason" in row else CELLS.format(**row).split()
        lines.append([name, *cells])
    return tables.page("; ".join(found["settings"]), lines, tables.legend(table))


def draw(rows: dict[str, dict], path: Path) -> None:
    """A figure of the ratios to nope: medians, and bars from the lowest to the highest."""
    ratios = {name: row["ratio"] for name, row in rows.items() if "ratio" in row}
    middle, low, high = np.array([*ratios.values()]).reshape(-1, 3).T
    axes = figures.new_figure((9, 1 + 0.3 * len(ratios))).add_subplot()
    axes.errorbar(middle, [*ratios], xerr=(middle - low, high - middle), fmt="o")
    axes.set_xlabel("speed, as a multiple of that of nope")
    figures.save_figure(axes.figure, path)


def main() -> None:
    """Measure what is not measured yet; write JSON, table and figure."""
    s, schemes = configure(BenchSettings, sys.argv[1:], __doc__)
    device.set_up_cpu()
    attention.use(path=s.attention)
    compute, corpus = device.pick(s.device, s.dtype), training_corpus(s)
    where = torch.cuda.get_device_name() if compute.kind == "cuda" else compute.device
    settings = [f"{where}, {compute.dtype_name}"]
    settings += [f"{name}={typed(getattr(s, name))}" for name in sorted(s.named.difference(FREE))]
    quick = {name: value for name, value in QUICK.items() if s.quick and s.has_default(name)}
    s, path = replace(s, **quick), Path(s.out_dir or "out/bench", "bench.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    found = {"settings": settings, "rows": {}}
    if path.exists() and not s.overwrite:
        found = read_json(path, {"settings": [str], "rows": dict})
    require(found["settings"] == settings, f"{path} is of other settings: choose another --out_dir")
    rows, lengths = found["rows"], s.lengths or [s.block_size]
    for length, pos, part in itertools.product(lengths, schemes or ["rope"], s.only):
        name = f"{pos}, {part} at L = {length}"
        if name in rows:
            continue
        print(name, flush=True)
        here = replace(s, pos=pos, block_size=length).warmed_up(s.max_iters)
        try:
            with device.memory_advice("lower batch_size"):
                rows[name] = compare(here, part, corpus, compute)
        except UserError as error:
            rows[name] = {"reason": str(error)}
        write_json(path, found | provenance())
    write_text(path.with_name("table.txt"), table(found) + "\n")
    if s.format != "text":
        write_text(path.with_name(f"table.{s.format}"), as_printed(s.format, table(found)) + "\n")
    draw(rows, path.with_name("figure.png"))
    print(f"\n{table(found)}\n\nin {path.parent}")


if __name__ == "__main__":
    run_program(main)
