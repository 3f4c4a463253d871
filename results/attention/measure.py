"""Which attention path is fastest on this machine: forward and backward of every path at several lengths, compiled.

    python results/attention/measure.py

4096 tokens in bfloat16, 4 heads of 64, in milliseconds (median of 9), the paths alternating; written to
results/attention/paths.json. `attention.py` takes its thresholds from here.
"""
import sys
import time
from pathlib import Path
from statistics import median

import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

import attention  # noqa: E402
import checkpoint  # noqa: E402
import posenc  # noqa: E402

SHAPE = posenc.Shape(n_head=4, head_dim=64, width=256, length=128)
TOKENS, LENGTHS, REPEATS = 4096, (128, 512), 9
PATHS = {"rope": ("matmul", "fused"), "alibi": ("matmul", "dense")}


def step_of(pos: str, path: str, length: int) -> callable:
    """A function that runs one forward and backward of attention under `pos` by `path`."""
    scheme, index, like = posenc.Scheme(pos, SHAPE, 1), torch.arange(length), torch.empty(0)
    qkv = [torch.randn(TOKENS // length, 4, length, 64, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]

    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        plan = scheme.plans(index, index, index, length, like)[0]
        added = attention.added_scores(plan, 4, like, slice(None), index) if path in ("matmul", "dense") else None
        return attention.attend(q, k, v, attention.Prepared(plan, path, added)).float().square().mean()

    compiled = torch.compile(forward, fullgraph=True, dynamic=False)
    return lambda: compiled(*qkv).backward()


def milliseconds(step: callable) -> float:
    """How long one call takes."""
    began = time.perf_counter()
    step()
    return 1000 * (time.perf_counter() - began)


def main() -> None:
    """Measure, print and write the table."""
    rows = []
    for pos, paths in PATHS.items():
        for length in LENGTHS:
            steps = {path: step_of(pos, path, length) for path in paths}
            for step in steps.values():   # compiles
                step()
            rounds = [{path: milliseconds(step) for path, step in steps.items()} for _ in range(REPEATS)]
            rows.append({"pos": pos, "length": length, "ms": {path: round(median(r[path] for r in rounds), 2) for path in paths}})
            print(rows[-1], flush=True)
    checkpoint.write_json(HERE / "paths.json", {"rows": rows, **checkpoint.provenance()})


if __name__ == "__main__":
    main()
