"""The training log: metrics.jsonl, lines on the screen, Weights & Biases."""

import json
import math
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
import torch

import attention
from common.device import peak_flops, peak_memory
from common.errors import UserError
from common.files import replace_file
from common.processes import Processes
from configurable import LogSettings
from model import GPT
from run.load import Run
from tables.records import load_rows, select, to_csv
from tables.statistics import summary

# ---- metrics.jsonl


def logged(folder: str | Path) -> list:
    """The lines of metrics.jsonl, without those that are no step: a killed run may leave one
    half-written.
    """
    path = Path(folder, "metrics.jsonl")
    lines = []
    if path.exists():
        for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError):
                line = json.loads(text, parse_constant=lambda name: None)  # NaN, of older logs
                if isinstance(line, dict) and "step" in line:
                    lines.append(line)
    return lines


def diverged(folder: str | Path) -> bool:
    """Whether the training in a run folder ended because its loss was not finite."""
    return any("diverged" in line for line in logged(folder))


def flops_per_token(model: GPT, length: int) -> int:
    """Floating-point operations per training token, forward and backward.

    Counted as nanoGPT does, after PaLM's appendix B (Chowdhery et al. 2022): a query is compared
    with all `length` keys, although causality hides half of them. A layer whose masks show a
    quarter of the keys that causality shows counts a quarter. If length is 2,048 or more, about
    1,024 queries are counted.
    """
    c = model.config
    multiplied = sum(p.numel() for p in model.h.parameters())
    multiplied += model.wte.weight.numel()  # the output layer is as large
    keys = torch.arange(length, device=model.wte.weight.device)
    queries = keys[:: max(1, length // 1024), None]
    plans = model.pos.plans(keys, keys, length, length, model.current_options())
    seen = sum(attention.sees(plans[names], queries, keys).sum() for names in model.pos.plan_keys)
    layers = float(seen / (keys <= queries).sum())  # without masks, all of them
    columns = c.head_width + c.qk_rope_head_dim / 2  # of latent attention, only q.k has the latter
    return round(6 * multiplied + 12 * layers * c.n_head * columns * length)


class Log:
    """The training log: metrics.jsonl, the screen and, if asked for, wandb.

    Only the first of several processes writes to it.
    """

    def __init__(self, run: Run, processes: Processes) -> None:
        self.run = run
        self.size = processes.size
        self.path = run.folder / "metrics.jsonl"
        self.wandb_run = None
        if not processes.is_master:
            return
        # a resumed run repeats the steps after its checkpoint
        before = [json.dumps(x) + "\n" for x in logged(run.folder) if x["step"] <= run.step]
        replace_file(self.path, lambda file: file.write("".join(before).encode()))
        s = run.settings
        if s.wandb_log:
            config = asdict(s) | run.config
            self.wandb_run = open_wandb(run.folder, s, config, run.config["run_id"])
            # log() is given no step: wandb drops what comes with a lower one than a test before it
            self.wandb_run.define_metric("*", step_metric="step")

    def add_step(self, line: dict, speed: float) -> str:
        """Log a step, given the speed in steps per second; returns a line for the screen."""
        s = self.run.settings
        compute = self.run.compute
        step = line["step"]
        tokens_per_s = speed * s.tokens_per_step
        mfu = None
        text = f"step {step}/{s.max_iters}: loss {line['loss']:.4f}"
        if "val_loss" in line:
            text += f", val {line['val_loss']:.4f}"
        text += f", lr {line['lr']:.2e}, norm {line['grad_norm']:.2f}, {tokens_per_s:,.0f} tokens/s"
        peak = peak_flops(compute)
        if peak:
            flops = tokens_per_s * flops_per_token(self.run.model, s.block_size)
            mfu = flops / (peak * self.size)
            text += f", MFU {mfu:.1%}"
        if step > 1:  # the first step includes compiling
            text += f", {(s.max_iters - step) / speed:.0f} s left"
        if "reason" in line:
            text += f"; {line['reason']}"
        memory = peak_memory(compute)
        self.write(line | {"tokens_per_s": tokens_per_s, "memory": memory, "mfu": mfu})
        return text

    def write(self, line: dict) -> None:
        """Add one line to metrics.jsonl, and to wandb; null for NaN and Infinity."""
        strict = {
            name: None if isinstance(x, float) and not math.isfinite(x) else x
            for name, x in line.items()
        }
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(strict) + "\n")
        if self.wandb_run:
            self.wandb_run.log(strict)

    def add_test(self) -> None:
        """Log a test to wandb (curves against N, summary); after the last one, finish its run."""
        if not self.wandb_run:
            return
        rows = select(load_rows([self.run.folder]))
        is_last = self.run.step == self.run.settings.max_iters
        when = "" if is_last else f" at step {self.run.step}"
        for row in rows.dropna(subset="nats").itertuples():
            curve = f"extrapolation/{row.protocol}{when}"
            self.wandb_run.define_metric(curve, step_metric="extrapolation/N")
            self.wandb_run.log({curve: row.nats, "extrapolation/N": row.length})
        self.wandb_run.summary.update(summary(rows))
        if is_last:
            self.wandb_run.finish()


# ---- Weights & Biases


def open_wandb(folder: Path, s: LogSettings, config: dict, run_id: str | None = None) -> Any:
    """Open a wandb run, or resume the one with this run_id. UserError if wandb refuses."""
    import wandb

    try:
        return wandb.init(
            project=s.wandb_project,
            name=s.wandb_run_name or folder.name,
            dir=folder.resolve(),  # wandb's process may have another working directory
            config=config,
            id=run_id,
            resume="allow",
        )
    except (wandb.Error, ValueError) as error:
        raise UserError(
            f"wandb refused ({error}): `wandb login`, or leave --wandb_log out"
        ) from None


def log_comparison(settings: LogSettings, rows: pd.DataFrame, folder: Path) -> None:
    """Log a comparison as a wandb run of its own, if wandb_log is set: for each protocol a chart of
    the mean of each label against N, and the selected rows as rows.csv in an artifact.
    """
    if not settings.wandb_log:
        return
    import wandb

    wandb_run = open_wandb(folder, settings, asdict(settings))
    for protocol, measured in rows.dropna(subset="nats").groupby("protocol"):
        means = measured.groupby(["label", "length"], as_index=False)["nats"].mean()
        chart = wandb.plot.line(
            wandb.Table(dataframe=means),
            "length",
            "nats",
            stroke="label",
            title=f"{protocol}: nats per token against N",
        )
        wandb_run.log({f"loss_against_N/{protocol}": chart})
    artifact = wandb.Artifact(f"rows-{wandb_run.id}", type="rows")
    with artifact.new_file("rows.csv", encoding="utf-8") as file:
        file.write(to_csv(rows))
    wandb_run.log_artifact(artifact)
    wandb_run.finish()
