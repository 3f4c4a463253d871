"""The numbers of results/measure.md: measured here, and kept in measure.json beside this file.

    python results/measure/measure.py RUN       RUN is a run folder of config/alibi.py
    python results/measure/measure.py           writes the page again from measure.json

1. The loss at L of RUN under ten sets of test lengths, in ten orders: nothing may move.
2. Its level at L with its standard error, with 64 and with more windows.
3. A run extended 400 -> 800 -> 1,200 steps against one that was planned so, for each schedule.

What the examination of schemes catches is in results/examine.md.
"""

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

import evaluate  # noqa: E402
from configurable import ExtendSettings  # noqa: E402
from runs import device  # noqa: E402
from runs.checkpoint import load_run, load_state  # noqa: E402
from runs.start import run_corpus  # noqa: E402

SETS = (
    (128,),
    (64, 128),
    (128, 4096),
    (32, 64, 256),
    (256, 64, 32),
    (32, 64, 128, 256, 512),
    (100, 1000),
    (8192, 2, 33),
    (4096, 2048, 1024, 512, 256, 128, 64),
    (127, 129),
)
TINY = ["config/size/tiny.py", "--pos=alibi", "--eval_lengths=64", "--eval_interval=400"]
EARLIER = "7ba54ea"  # the last commit whose places followed the longest length asked for
SCHEDULES = ("constant", "wsd", "cosine")


def levels(folder: str) -> dict:
    """The loss at L under all SETS, and with more windows."""
    run = load_run(folder)
    corpus, length = run_corpus(run), run.settings.block_size

    def at_length(lengths: tuple[int, ...], windows: int) -> dict:
        asked = ExtendSettings(eval_lengths=lengths, eval_windows=windows)
        tester = evaluate.Tester(run.model, corpus, device.pick("cpu", "auto"))
        rows = evaluate.evaluate(tester, evaluate.describe_run(run), asked)["rows"]
        row = next(row for row in rows if row["length"] == length)
        return {name: row[name] for name in ("nats", "stderr", "targets", "windows")}

    found = [at_length(lengths, 64) for lengths in SETS]
    nats = [row["nats"] for row in found]
    return {
        "sets": [list(lengths) for lengths in SETS],
        "nats": nats,
        "spread": max(nats) - min(nats),
        "digests_of_targets": len({row["targets"] for row in found}),
        "by_windows": [found[0], *(at_length((length,), windows) for windows in (256, 1024))],
    }


def earlier_level() -> dict:
    """The row at L of the main job at the test places before these, from the project's history."""
    command = ["git", "show", f"{EARLIER}:results/main-job/extrapolation.json"]
    shown = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    rows = [row for row in json.loads(shown)["rows"] if row["protocol"] == "fixed_targets"]
    row = next(row for row in rows if row["length"] == 128)
    return {"commit": EARLIER, "nats": row["nats"], "stderr": row["stderr"]}


def train(folder: Path, schedule: str, steps: int) -> dict:
    """Train to so many steps in a folder; the state of its newest checkpoint."""
    words = [*TINY, f"--lr_schedule={schedule}", f"--max_iters={steps}", f"--out_dir={folder}"]
    command = [sys.executable, str(ROOT / "train.py"), *words, "--warmup_iters=100"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return load_state(folder)


def extended(schedule: str) -> dict:
    """A run to 400, 800 and 1,200 steps against one to 1,200 at once."""
    folder = ROOT / "out" / "measure"
    for steps in (400, 800, 1200):
        longer = train(folder / f"{schedule}-extended", schedule, steps)
    planned = train(folder / f"{schedule}-planned", schedule, 1200)
    pairs = [(longer["model"][name], planned["model"][name]) for name in planned["model"]]
    losses = []
    for kind in ("extended", "planned"):
        text = (folder / f"{schedule}-{kind}" / "extrapolation.json").read_text(encoding="utf-8")
        rows = [row for row in json.loads(text)["rows"] if row["step"] == 1200]
        losses.append(next(r["nats"] for r in rows if r["protocol"] == "fixed_targets"))
    return {
        "schedule": schedule,
        "equal_weights": sum(torch.equal(a, b) for a, b in pairs),
        "weights": len(pairs),
        "largest_difference": max(float((a - b).abs().max()) for a, b in pairs),
        "loss_extended": losses[0],
        "loss_planned": losses[1],
    }


# ---- the page


def page(found: dict) -> str:
    """results/measure.md."""
    level = found["levels"]
    command = "`python results/measure/measure.py RUN`"
    lines = [
        "# Numbers that cannot be fooled",
        "",
        "What the examination of schemes catches is in [examine.md](examine.md).",
        "",
        "| what | measured | command |",
        "| --- | --- | --- |",
    ]

    def add(what: str, measured: str) -> None:
        lines.append(f"| {what} | {measured} | {command} |")

    add(
        f"loss at L = 128 of one run under {len(level['nats'])} sets of test lengths",
        f"{level['nats'][0]:.6f}, spread {level['spread']:g}, "
        f"{level['digests_of_targets']} set of targets",
    )
    old = f"{found['earlier']['nats']:.4f} ± {found['earlier']['stderr']:.4f}"
    add(f"level at L at the places of {found['earlier']['commit']}, 64 windows", old)
    for row in level["by_windows"]:
        level_text = f"{row['nats']:.4f} ± {row['stderr']:.4f}"
        add(f"level at L with {row['windows']} windows, ± its standard error", level_text)
    for run in found["extended"]:
        equal = f"{run['equal_weights']} of {run['weights']} weights equal to the bit"
        losses = f"loss {run['loss_extended']:.4f}, planned {run['loss_planned']:.4f}"
        largest = f"largest difference {run['largest_difference']:.2g}"
        add(f"400 -> 800 -> 1,200 steps, {run['schedule']}", f"{equal}, {largest}; {losses}")
    machine = ", ".join(f"{name} {value}" for name, value in found["machine"].items())
    return "\n".join([*lines, "", f"Machine: {machine}.", ""])


def main() -> None:
    """Measure all, and write measure.json and the page."""
    kept = HERE / "measure.json"
    if len(sys.argv) > 1:
        found = {"levels": levels(sys.argv[1]), "extended": [extended(one) for one in SCHEDULES]}
        found["earlier"] = earlier_level()
        found["machine"] = {"torch": torch.__version__, "threads": torch.get_num_threads()}
        kept.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    text = page(json.loads(kept.read_text(encoding="utf-8")))
    (HERE.parent / "measure.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
