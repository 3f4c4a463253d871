"""What `runs.device.set_up_cpu` is worth: the speed of training and of long tests.

    python results/throughput/allocator.py

Processes with it and without it take turns. The model is the default one with ALiBi. The numbers
are written to results/throughput/allocator.json.
"""

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

import torch  # noqa: E402

from model import GPT, GPTConfig  # noqa: E402
from runs import device  # noqa: E402
from runs.files import write_json  # noqa: E402
from runs.folder import provenance  # noqa: E402

STEPS, ROUNDS = 20, 1


def measure(kept: bool) -> dict[str, float]:
    """Tokens/s and page faults of training (16 x 128) and of a test at 4096, in this process."""
    if kept:
        device.set_up_cpu()
    compute, model = device.pick("cpu", "auto"), GPT(GPTConfig(pos="alibi"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def loss_of(tokens: torch.Tensor) -> torch.Tensor:
        with device.autocast(compute):
            return model(tokens, tokens)[1]

    compiled, tokens, long = (
        torch.compile(loss_of, fullgraph=True),
        torch.randint(256, (16, 128)),
        torch.randint(256, (4, 4096)),
    )

    def train(steps: int) -> None:
        for _ in range(steps):
            compiled(tokens).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def test() -> None:
        with device.autocast(compute):
            model.losses(long, long)

    train(5)
    faults, began = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.perf_counter()
    train(STEPS)
    trained, faults = (
        time.perf_counter(),
        resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults,
    )
    test()
    return {
        "train_tokens_per_s": STEPS * tokens.numel() / (trained - began),
        "test_tokens_per_s": long.numel() / (time.perf_counter() - trained),
        "page_faults_per_step": faults / STEPS,
    }


def main() -> None:
    """Run the two in turn, each in a process of its own; print and write the figures."""
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1] == "kept")))
        return
    rounds = []
    for _ in range(ROUNDS):
        texts = {
            how: subprocess.run(
                [sys.executable, __file__, how], capture_output=True, text=True, check=True
            ).stdout
            for how in ("returned", "kept")
        }
        rounds.append({how: json.loads(text.splitlines()[-1]) for how, text in texts.items()})
        print(rounds[-1], flush=True)
    ratios = {
        f"{name}_ratio": median(r["kept"][name] / r["returned"][name] for r in rounds)
        for name in ("train_tokens_per_s", "test_tokens_per_s")
    }
    print(ratios)
    write_json(
        HERE / "allocator.json",
        {
            "rounds": rounds,
            **ratios,
            **provenance(),
            "command": "python results/throughput/allocator.py",
        },
    )


if __name__ == "__main__":
    main()
