"""The log of a training: metrics.jsonl, lines on the screen, Weights & Biases."""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from configurable import LogSettings, UserError, explain_errors
from model import GPT
from posenc import scheme_name
from runs import compare, formats
from runs.answers import answered, curve, reach
from runs.device import peak_flops, peak_memory
from runs.files import write_text
from runs.folder import last_logged_step, logged, read_config
from runs.results import Result, Row, Rows, gain, load_result, rows_on
from runs.start import Start

COLUMNS = ("run", "pos", "seed", "extend", "protocol", "length", "nats", "stderr_vs_L")
COLUMNS += ("bits_per_byte", "accuracy", "reason")


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
            self.wandb_run = open_training(start)

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

    def add_test(self, result: Result) -> None:
        """Log a result in wandb, and close it: its rows, its figure, curves against the test length
        or the distance, and what they come to.
        """
        if not self.wandb_run:
            return
        run, settings = self.wandb_run, self.start.settings
        rows = rows_on(result["rows"], settings.dataset, result.get("extend"))
        run.define_metric("extrapolation/*", step_metric="extrapolation/N")
        run.define_metric("answers/*", step_metric="answers/distance")
        for point in points(rows):
            run.log(point)
        run.summary.update(summary(rows, settings.block_size))
        log_table(run, "extrapolation", result["rows"], self.start.folder / "extrapolation.png")
        run.finish()


def points(rows: Rows) -> Iterator[dict[str, float]]:
    """What is a curve in wandb: losses by test length N, and shares of right answers by distance or
    size.
    """
    for n in sorted({n for _, n in rows}):
        here = {name: row["nats"] for (name, k), row in rows.items() if k == n}
        losses = {f"extrapolation/{name}": x for name, x in here.items() if x is not None}
        yield losses | {"extrapolation/N": n}
    for distance, (right, count) in curve(answered(rows)).items():
        yield {"answers/right": right / count, "answers/distance": distance}


def summary(rows: Rows, length: int) -> dict[str, float]:
    """What a test comes to: the loss at L, the gain at 4 L and 32 L, or the reach."""
    tested = answered(rows)
    if tested:
        return {"reach": reach(tested)}
    found = {f"gain_{k}L": gain(rows, length, k * length) for k in (4, 32)}
    at_length = rows.get(("fixed_targets", length), {}).get("nats")
    kept = {name: difference.nats for name, difference in found.items() if difference}
    return kept | ({} if at_length is None else {"loss_L": at_length})


def log_table(run: Any, name: str, rows: list[Row], figure: Path) -> None:
    """Log rows of results, those of COLUMNS that one of them has, and a figure, if it was drawn."""
    import wandb

    columns = [column for column in COLUMNS if any(column in row for row in rows)]
    data = [[row.get(column) for column in columns] for row in rows]
    run.log({name: wandb.Table(columns=columns, data=data)})
    if figure.exists():  # not drawn if nothing could be measured
        run.log({f"{name}_figure": wandb.Image(str(figure))})


def log_comparison(settings: LogSettings, folders: list[Path], figure: Path, kind: str) -> None:
    """A wandb run of its own for a comparison or a table of extensions, if wandb_log is set: every
    measured row of these run folders, the mean losses and gains of each scheme, and the figure.
    """
    if not settings.wandb_log:
        return
    place, cells = figure.parent, compare.schemes_of([load_result(at) for at in folders])
    dataset, schemes = compare.rows_by_seed(by_extension(cells))
    length = next(iter(cells.values()))[0]["train_length"]
    tags = [*{result["pos"][:64]: None for of in cells.values() for result in of}, dataset]
    settings = replace(settings, wandb_tags=(*tags, *settings.wandb_tags))
    about = {"name": f"{kind} {place.name}", "group": place.name, "job_type": kind}
    own = {"schemes": [*schemes], "seeds": sorted(set().union(*schemes.values()))}
    shared = {k: v for k, v in asdict(settings).items() if k not in ("pos", "seed", "extend")}
    run = open_wandb(place, settings, config=shared | own, **about)
    run.define_metric("extrapolation/*", step_metric="extrapolation/N")
    for label, seeds in schemes.items():
        curve = compare.mean_curve(seeds)
        for n, nats in curve.items():
            run.log({f"extrapolation/{label}": nats, "extrapolation/N": n})
            run.summary[f"{label} at {n}"] = nats
            if n in (4 * length, 32 * length) and length in curve:
                run.summary[f"{label} gain_{n // length}L"] = curve[length] - nats
    log_table(run, kind, formats.rows(folders), figure)
    run.finish()


def by_extension(cells: dict[str, list[Result]]) -> dict[str, list[Result]]:
    """The results of each scheme under each extension that was tested on the first corpus."""
    found, dataset = {}, next(iter(cells.values()))[0]["rows"][0]["dataset"]
    for label, seeds in cells.items():
        rows = [row for result in seeds for row in result["rows"] if row["dataset"] == dataset]
        for extend in dict.fromkeys(row["extend"] for row in rows):
            own = extend == seeds[0].get("extend")
            name = label if own else f"{label}, {extend or 'none'}"
            found[name] = [result | {"extend": extend} for result in seeds]
    return found


def flops_per_token(model: GPT, length: int) -> int:
    """Floating-point operations for one training token of a sequence, forward and backward.

    Counted as nanoGPT does, after PaLM's appendix B (Chowdhery et al. 2022).
    """
    scheme = sum(p.numel() for name, p in model.named_parameters() if name.startswith("pos."))
    c = model.config
    looked_up = 0 if c.tie_embeddings else model.wte.weight.numel()
    multiplied = model.parameter_count - scheme - looked_up
    return 6 * multiplied + 12 * c.n_layer * c.n_head * c.head_width * length


def open_wandb(folder: Path, settings: LogSettings, **about: Any) -> Any:
    """A wandb run in a folder, named as `about` says if the settings do not; UserError if wandb
    refuses.
    """
    import wandb

    names = {"project": settings.wandb_project, "dir": folder, "tags": settings.wandb_tags}
    own = {"name": settings.wandb_run_name, "group": settings.wandb_group}
    names |= about | {name: text for name, text in own.items() if text}
    try:
        return wandb.init(**names)
    except (wandb.Error, ValueError) as error:
        refused = f"Weights & Biases refused ({str(error).splitlines()[0]:.200})"
        raise UserError(f"wandb_log=True, but {refused}: `wandb login`, or leave it out") from error


def open_training(start: Start) -> Any:
    """The wandb run of a training, which goes on where an earlier one stopped."""
    folder, settings, config = start.folder, start.settings, read_config(start.folder)
    known = {name: config[name] for name in ("parameters", "git_commit")}
    known |= {"computed_on": config["device"]}
    pieces = map(scheme_name, start.model.pos.pieces.values())
    tags = tuple(dict.fromkeys([*pieces, settings.dataset, *settings.wandb_tags]))
    about = {"name": folder.name, "job_type": "train", "config": config["settings"] | known}
    about |= {"id": config["wandb_id"], "resume": "allow"}
    return open_wandb(folder, replace(settings, wandb_tags=tags), **about)


def in_words(line: dict[str, Any], steps: int) -> str:
    """A line of metrics.jsonl in words, for a training of so many steps."""
    left = (steps - line["step"]) * line["tokens"] / line["step"] / line["tokens_per_s"]
    known = f", {left:.0f} s left" if line["step"] > 1 else ""  # the first compiles
    val = f", val {line['val_loss']:.4f}" if "val_loss" in line else ""
    mfu = "n/a" if line["mfu"] is None else f"{line['mfu']:.1%}"
    loss = f"step {line['step']}/{steps}: loss {line['loss']:.4f}{val}"
    speed = f"{line['tokens_per_s']:,.0f} tokens/s, MFU {mfu}{known}"
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
