"""The log of a training: metrics.jsonl, lines on the screen, Weights & Biases."""

import json
import os
from pathlib import Path
from typing import Any

from tqdm import tqdm

from configurable import TrainSettings, UserError, explain_errors
from model import GPT
from runs.answers import answered, reach
from runs.device import peak_flops, peak_memory
from runs.files import write_text
from runs.folder import last_logged_step, logged, read_config
from runs.results import cell
from runs.start import Start

COLUMNS = "protocol length nats stderr_vs_L bits_per_byte accuracy reason".split()


class Log:
    """The log of a training: metrics.jsonl, the screen and, if asked for, wandb.

    Only the first of several processes may write to it.
    """

    def __init__(self, start: Start) -> None:
        self.start, self.wandb_run = start, None
        last = trim_metrics(start.folder, start.step) if start.processes.first else 0
        if last:
            steps = f"steps {start.step + 1} to {last} were logged, and are taken again"
            print(f"note: {steps}: no checkpoint of them is left")
        if start.settings.wandb_log and start.processes.first:
            self.wandb_run = open_wandb(start.folder, start.settings)

    def add_step(self, line: dict[str, Any], speed: float) -> None:
        """Log a step, made at a speed of so many steps per second: a line of metrics.jsonl."""
        start, compute = self.start, self.start.compute
        rate, peak = speed * line["tokens"] / line["step"], peak_flops(compute)
        flops = rate * flops_per_token(start.model, start.settings.block_size)
        mfu = round(flops / (peak * start.processes.size), 4) if peak else None
        line |= {"tokens_per_s": round(rate, 1), "memory": peak_memory(compute), "mfu": mfu}
        append_metrics(start.folder, line)
        if self.wandb_run:
            self.wandb_run.log(line, step=line["step"])
        tqdm.write(in_words(line, start.settings.max_iters))

    def add_test(self, result: dict[str, Any]) -> None:
        """Log the rows of a result and its figure in wandb, and close it."""
        if not self.wandb_run:
            return
        import wandb

        rows = [[row.get(column) for column in COLUMNS] for row in result["rows"]]
        self.wandb_run.log({"extrapolation": wandb.Table(columns=COLUMNS, data=rows)})
        tested = answered({cell(row): row for row in result["rows"]})
        if tested:
            self.wandb_run.summary["reach"] = reach(tested)
        figure = self.start.folder / "extrapolation.png"
        if figure.exists():  # not drawn if nothing could be measured
            self.wandb_run.log({"extrapolation_figure": wandb.Image(str(figure))})
        self.wandb_run.finish()


def flops_per_token(model: GPT, length: int) -> int:
    """Floating-point operations for one training token of a sequence, forward and backward.

    Counted as nanoGPT does, after PaLM's appendix B (Chowdhery et al. 2022).
    """
    scheme = sum(p.numel() for name, p in model.named_parameters() if name.startswith("pos."))
    c = model.config
    looked_up = 0 if c.tie_embeddings else model.wte.weight.numel()
    multiplied = model.parameter_count - scheme - looked_up
    return 6 * multiplied + 12 * c.n_layer * c.n_head * c.head_width * length


def open_wandb(folder: Path, settings: TrainSettings) -> Any:
    """A wandb run, which goes on where an earlier one stopped; UserError if wandb refuses."""
    import wandb

    config, name = read_config(folder), settings.wandb_run_name or folder.name
    names = {"project": settings.wandb_project, "name": name, "dir": folder}
    try:
        return wandb.init(**names, config=config, id=config["wandb_id"], resume="allow")
    except wandb.Error as error:
        refused = f"Weights & Biases refused ({str(error).splitlines()[0]:.200})"
        raise UserError(f"wandb_log=True, but {refused}: `wandb login`, or leave it out") from error


def in_words(line: dict[str, Any], steps: int) -> str:
    """A line of metrics.jsonl in words, for a training of so many steps."""
    left = (steps - line["step"]) * line["tokens"] / line["step"] / line["tokens_per_s"]
    val = f", val {line['val_loss']:.4f}" if "val_loss" in line else ""
    mfu = "n/a" if line["mfu"] is None else f"{line['mfu']:.1%}"
    loss = f"step {line['step']}/{steps}: loss {line['loss']:.4f}{val}"
    speed = f"{line['tokens_per_s']:,.0f} tokens/s, MFU {mfu}, {left:.0f} s left"
    return f"{loss}, lr {line['lr']:.2e}, norm {line['grad_norm']:.2f}, {speed}"


def append_metrics(folder: Path, line: dict[str, Any]) -> None:
    """Add one line to metrics.jsonl; UserError if the disk is full."""
    path = folder / "metrics.jsonl"
    with explain_errors(f"{path} cannot be written", "no checkpoint is touched"):
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())


def trim_metrics(folder: Path, step: int) -> int:
    """Drop the lines of metrics.jsonl after `step`, and what a killed run left half written.

    A resumed run takes those steps again. Returns the last step that was dropped, 0 if none was.
    """
    last, lines = last_logged_step(folder), logged(folder)
    kept = [json.dumps(line) + "\n" for line in lines if line["step"] <= step]
    write_text(folder / "metrics.jsonl", "".join(kept))
    return last if last > step else 0
