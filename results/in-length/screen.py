"""Why are sinusoidal and nope behind at the training length itself? Many short runs of one model.

    python results/in-length/screen.py screen        each cell below, once
    python results/in-length/screen.py wide          scales of sinusoids at twice the width
    python results/in-length/screen.py long          the chosen ones with ten times the steps

Results go to screen.json, wide.json or long.json beside this file, a line as soon as a cell is
done. The same command goes on where it stopped. Each cell is train.py itself; `init` changes how
the matrices start, and is "gpt2" (deviation 0.02), "fan_in" (1 / sqrt(inputs) for all but the
embedding), "attention" (that for queries, keys and values only) or "embedding" (1 / sqrt(n_embd)
for that only).
"""

import json
import math
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BASE = ["config/size/small.py", "--eval_iters=64", "--eval_interval=300", "--eval_lengths=64,128"]
SCHEMES = ("alibi", "rope", "nope", "sinusoidal(scale=0.02)")  # 0.02 was the default
RATES = (1e-3, 3e-3, 6e-3, 1.2e-2)
SCALES = (0.05, 0.1, 0.2, 0.5, 1.0)


def screen_cells() -> list[dict]:
    """All cells of the screening: scheme, learning rate, start of the matrices, seed, steps."""
    cells = [{"pos": pos, "rate": rate} for rate in (3e-3, 1e-3, 6e-3, 1.2e-2) for pos in SCHEMES]
    cells += [{"pos": f"sinusoidal(scale={scale})"} for scale in SCALES]
    cells += [{"pos": pos, "init": init} for init in ("fan_in", "attention") for pos in SCHEMES]
    cells += [{"pos": f"learned_scale(scale={scale})"} for scale in (0.02, 0.2)]
    cells += [{"pos": pos, "init": "embedding"} for pos in SCHEMES]
    cells += [{"pos": "sinusoidal(scale=0.09)", "init": "embedding"}]
    cells += [{"pos": f"sinusoidal(scale={s})", "init": "fan_in"} for s in (0.1, 0.5)]
    cells += [{"pos": f"sinusoidal(scale={s})", "rate": 1e-3} for s in (0.1, 0.5)]
    return [{"rate": 3e-3, "init": "gpt2", "seed": 1, "steps": 1200} | cell for cell in cells]


def wide_cells() -> list[dict]:
    """Sinusoids at width 256, train.py's default."""
    cells = [{"pos": f"sinusoidal(scale={scale})"} for scale in (0.1, 0.05, 0.2, 0.02)]
    cells += [{"pos": "sinusoidal(scale=0.1)", "init": "fan_in"}, {"pos": "rope"}]
    cells += [{"pos": "rope", "init": "fan_in"}]
    usual = {"rate": 3e-3, "init": "gpt2", "seed": 1, "steps": 1200, "width": 256}
    return [usual | cell for cell in cells]


def long_cells() -> list[dict]:
    """The cells of long-cells.json, chosen after the screening: ten times as long."""
    return json.loads((HERE / "long-cells.json").read_text(encoding="utf-8"))


def words(cell: dict, folder: str) -> list[str]:
    """The command line of train.py for a cell."""
    given = [f"--pos={cell['pos']}", f"--learning_rate={cell['rate']}", f"--seed={cell['seed']}"]
    own = [f"--pos_file={HERE / 'schemes.py'}"] if "learned_scale" in cell["pos"] else []
    size = [f"--max_iters={cell['steps']}", f"--n_embd={cell.get('width', 128)}"]
    return [*BASE, *given, *own, *size, f"--out_dir={folder}"]


def change_start(init: str) -> None:
    """Let GPT start its matrices as `init` says."""
    sys.path.insert(0, str(ROOT))
    from torch import nn

    from model import GPT

    usual = GPT._initialise

    def initialise(self: GPT, module: nn.Module) -> None:
        usual(self, module)
        name = type(module).__name__
        own = 1 / math.sqrt(self.config.n_embd)
        if init in ("fan_in", "attention") and name == "Attention":
            nn.init.normal_(module.c_attn.weight, std=own)
        if init == "fan_in" and name in ("Attention", "MLP"):
            wide = module.c_proj.weight.shape[1] ** -0.5 / math.sqrt(2 * self.config.n_layer)
            nn.init.normal_(module.c_proj.weight, std=wide)
        if init == "fan_in" and name == "MLP":
            nn.init.normal_(module.c_fc.weight, std=own)
        if init == "embedding" and name == "Embedding":
            nn.init.normal_(module.weight, std=own)

    GPT._initialise = initialise


def train_here(init: str, argv: list[str]) -> int:
    """Train in this process with another start of the matrices."""
    change_start(init)
    sys.argv = ["train.py", *argv]
    import train

    return train.main()


def measure(cell: dict, number: int, kind: str) -> dict:
    """Train a cell; its validation losses by step, and its rows of fixed_targets."""
    folder = f"out/in-length/{kind}-{number}"
    command = [sys.executable, __file__, "cell", cell["init"], *words(cell, folder)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=sys.stderr)
    lines = (ROOT / folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    logged = [json.loads(line) for line in lines]
    validated = {line["step"]: round(line["val_loss"], 5) for line in logged if "val_loss" in line}
    result = json.loads((ROOT / folder / "extrapolation.json").read_text(encoding="utf-8"))
    rows = [row for row in result["rows"] if row["protocol"] == "fixed_targets"]
    fixed = {row["length"]: round(row["nats"], 5) for row in rows}
    return cell | {"val_loss": validated, "fixed_targets": fixed, "folder": folder}


def main() -> int:
    """Measure what is not yet measured."""
    if sys.argv[1] == "cell":
        return train_here(sys.argv[2], sys.argv[3:])
    kind = sys.argv[1]
    path = HERE / f"{kind}.json"
    done = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    cells = {"screen": screen_cells, "wide": wide_cells, "long": long_cells}[kind]()
    for number, cell in enumerate(cells):
        if not any(all(old.get(key) == cell[key] for key in cell) for old in done):
            done.append(measure(cell, number, kind))
            lines = ",\n".join(json.dumps(result) for result in done)
            path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
