"""Training: the schedule, what is decayed, resuming to the bit after every interruption, and what is refused or logged."""

import functools
import itertools
import json
import math
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import configurable
import data
import evaluate
import train
from configurable import LogSettings, TrainSettings, UserError, configure, read_json
from model import GPT, GPTConfig
from positions.catalogue import load_file
from runs import device, figures, folder, log
from runs.checkpoint import checkpoint_paths, load_run, load_state
from runs.files import sha256, write_json
from runs.folder import read_config, run_folder, source_digests
from runs.log import Log
from runs.processes import ALONE
from runs.results import gain, load_result, rows_on, update_result
from runs.start import start_run
from runs.tables import runs_table

REPOSITORY = Path(train.__file__).resolve().parent
TEXT = "".join(
    f"{n} times {n % 7} is {n * (n % 7)}, as everybody knows.\n" for n in range(120)
).encode()
SIZE = [
    "--dataset=tiny",
    "--n_layer=1",
    "--n_head=2",
    "--n_embd=16",
    "--block_size=16",
    "--batch_size=4",
    "--max_iters=8",
    "--warmup_iters=2",
    "--eval_interval=4",
    "--log_interval=1",
    "--eval_iters=1",
    "--eval_lengths=8,16,32",
    "--compile=False",
    "--device=cpu",
    "--examine=False",
]
DRAWING = [
    "--pos=randomized(max=64) + rope",
    "--dropout=0.2",
    "--gradient_accumulation_steps=2",
]  # all that draws numbers
VARYING = {"tokens_per_s", "memory", "mfu"}
FIGURE, LOAD = figures.plot_runs, data.load


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with small corpora of bytes, `tiny` and `other`, and one of characters, `char`."""
    root = tmp_path_factory.mktemp("corpora")
    ids = np.frombuffer(TEXT, dtype=np.uint8)
    about = {"tokenizer": "bytes", "source": "here", "rule": "all"}
    data.write_corpus(root / "tiny", {"train": [ids], "val": [ids]}, **about)
    data.write_corpus(root / "other", {"train": [ids[1:]], "val": [ids]}, **about)
    letters = "".join(sorted(set(TEXT.decode())))
    data.write_corpus(
        root / "char",
        {"train": [ids % len(letters)], "val": [ids % len(letters)]},
        tokenizer="char",
        source="here",
        rule="all",
        characters=letters,
    )
    return root


@contextmanager
def workplace(corpora: Path, folder: Path) -> Iterator[None]:
    """Work in `folder`, with these corpora, without drawing, and leave signals as they were."""
    load, before = (
        data.load,
        {
            number: signal.getsignal(number)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
        },
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "load", lambda name: load(name, corpora))
        patch.setattr(
            figures, "plot_runs", lambda results, path, dataset="": Path(path).write_bytes(b"drawn")
        )
        patch.chdir(folder)
        yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def here(corpora: Path, tmp_path: Path) -> Iterator[None]:
    """Each test in a folder of its own."""
    with workplace(corpora, tmp_path):
        yield


def settings_of(*words: str) -> TrainSettings:
    return configure(TrainSettings, [*SIZE, *words], "")[0]


def begin(*words: str) -> train.Training:
    """A run that has been begun, or is gone on with."""
    settings = settings_of(*words)
    return train.Training(start_run(settings, device.pick(settings.device, settings.dtype), ALONE))


def train_on(training: train.Training) -> train.Training:
    """The same training after its last step, logged."""
    train.train(training, Log(training.start), train.Stop())
    return training


def trained(*words: str) -> train.Training:
    """A training run to its last step, not tested."""
    return train_on(begin(*words))


def run_main(*words: str) -> int:
    """train.main() on a command line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["train.py", *SIZE, *words])
        return train.main()


@pytest.fixture(scope="module")
def straight(corpora: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with everything that draws, which nothing interrupted."""
    folder = tmp_path_factory.mktemp("straight")
    with workplace(corpora, folder):
        assert run_main(*DRAWING, "--out_dir=run") == 0
    return folder / "run"


@pytest.fixture
def finished(straight: Path) -> Path:
    """A copy of that folder, as `run` in the working directory."""
    return shutil.copytree(straight, Path("run"))


@contextmanager
def when_taken(step: int, do: Callable[[], object]) -> Iterator[None]:
    """Let `do()` happen as soon as that step has been taken, before it is logged."""
    take_step = train.Training.take_step

    def watched(self: train.Training) -> tuple[torch.Tensor, torch.Tensor]:
        found = take_step(self)
        if self.step == step:
            do()
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train.Training, "take_step", watched)
        yield


def stop_at(step: int, number: int, *words: str) -> int:
    """Run, with a signal in the middle of a step; the exit code."""
    with (
        when_taken(step, lambda: signal.raise_signal(number)),
        pytest.raises(SystemExit) as stopped,
    ):
        run_main(*words)
    torch.manual_seed(99)  # nothing of it may live on in this process
    return stopped.value.code


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither training nor testing may happen."""

    def never(*arguments: object, **how: object) -> None:
        raise AssertionError("this run had nothing left to do")

    monkeypatch.setattr(train.Training, "take_step", never)
    monkeypatch.setattr(evaluate, "extrapolation", never)


def metrics(folder: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without what differs from run to run; every line must be good JSON."""

    def never(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [
        {k: v for k, v in json.loads(line, parse_constant=never).items() if k not in VARYING}
        for line in lines
    ]


def steps(folder: Path) -> list[int]:
    return [line["step"] for line in metrics(folder)]


def identical(a: Any, b: Any) -> bool:
    """Equal to the last bit, however it is nested."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(identical(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(identical, a, b))
    return type(a) is type(b) and a == b


def assert_same_end(one: Path, other: Path) -> None:
    """The same weights, optimizer, metrics and test, apart from tests of earlier checkpoints."""
    states = [load_state(folder) for folder in (one, other)]
    for state in states:
        state["settings"] |= {"out_dir": "", "overwrite": False}
        del state["sha256"]  # of a file that holds out_dir too
    for name in states[0]:
        assert identical(states[0][name], states[1][name]), name
    assert metrics(one) == metrics(other)
    rows = [
        [
            {k: v for k, v in row.items() if k not in ("tokens_per_s", "checkpoint")}
            for row in load_result(folder)["rows"]
            if row["step"] == load_state(folder)["step"]
        ]
        for folder in (one, other)
    ]
    assert rows[0] == rows[1]


# ---- the schedule


@st.composite
def schedules(draw: st.DrawFn) -> TrainSettings:
    """Any schedule that the settings admit."""
    steps, top = draw(st.integers(1, 2000)), draw(st.floats(1e-8, 10.0))
    decays = draw(st.booleans())
    end = draw(st.none() | st.integers(1, 3000)) if decays else None
    low = draw(st.none() | st.floats(0, 1).map(lambda share: share * top))
    return TrainSettings(
        learning_rate=top,
        max_iters=steps,
        lr_decay_iters=end,
        min_lr=low,
        decay_lr=decays,
        warmup_iters=draw(st.integers(0, min(steps, end or steps))),
    ).checked()


@given(schedules())
@hypothesis_settings(deadline=None, max_examples=60)
def test_the_rate_is_never_below_zero_or_above_the_highest_at_any_step_and_past_the_end(
    s: TrainSettings,
) -> None:
    last = max(s.max_iters, s.lr_decay_iters or 0)
    for step in {
        *range(0, 2 * last, max(1, last // 50)),
        s.warmup_iters,
        last - 1,
        last,
        last + 1,
        10 * last,
    }:
        assert 0 <= train.learning_rate(step, s) <= s.learning_rate * (1 + 1e-12)


@given(schedules())
@hypothesis_settings(deadline=None, max_examples=60)
def test_the_rate_climbs_evenly_then_falls_to_the_lowest_and_stays(s: TrainSettings) -> None:
    rates = [train.learning_rate(step, s) for step in range(s.max_iters + 2)]
    if not s.decay_lr:
        assert set(rates) == {s.learning_rate}
        return
    warm, end = s.warmup_iters, s.lr_decay_iters or s.max_iters
    assert np.allclose(np.diff([0, *rates[:warm], s.learning_rate]), s.learning_rate / (warm + 1))
    assert all(b <= a for a, b in zip(rates[warm:], rates[warm + 1 :], strict=False))
    if end > warm:
        low = s.learning_rate / 20 if s.min_lr is None else s.min_lr
        assert [train.learning_rate(end + k, s) for k in (0, 1, 10**6)] == pytest.approx([low] * 3)


def test_the_rate_is_half_way_down_half_way_through() -> None:
    s = TrainSettings(learning_rate=1.0, min_lr=0.2, warmup_iters=10, max_iters=110)
    assert [train.learning_rate(step, s) for step in (0, 9, 10, 60, 110)] == pytest.approx(
        [1 / 11, 10 / 11, 1, 0.6, 0.2]
    )
    s = TrainSettings(
        learning_rate=1.0, min_lr=0.0, warmup_iters=0, max_iters=100, lr_decay_iters=40
    )
    assert [train.learning_rate(step, s) for step in (0, 20, 40, 99)] == pytest.approx(
        [1, 0.5, 0, 0]
    )


def test_wsd_is_constant_then_falls_linearly_and_constant_does_not_fall() -> None:
    s = TrainSettings(
        learning_rate=1.0, min_lr=0.2, warmup_iters=3, max_iters=20, lr_schedule="wsd"
    )
    rates = [train.learning_rate(step, s) for step in range(21)]
    assert rates == pytest.approx([0.25, 0.5, 0.75, *[1] * 13, 1, 0.8, 0.6, 0.4, 0.2])
    s = replace(s, lr_schedule="constant")
    assert [train.learning_rate(step, s) for step in (3, 20, 99)] == [1, 1, 1]


def test_training_uses_the_rate_that_it_logs(straight: Path) -> None:
    s = settings_of(*DRAWING)
    assert [line["lr"] for line in metrics(straight)] == [
        train.learning_rate(step, s) for step in range(8)
    ]
    state = load_state(straight)["optimizer"]
    assert {group["lr"] for group in state["param_groups"]} == {train.learning_rate(7, s)}


# ---- what is decayed


@pytest.mark.parametrize(
    "pos", ["learned", "alibi(learned=True)", "t5", "kerple", "rope", "learned + t5 + kerple"]
)
@pytest.mark.parametrize("bias", [False, True])
def test_every_parameter_is_in_one_group_and_only_matrices_and_the_embedding_are_decayed(
    pos: str, bias: bool
) -> None:
    model = GPT(GPTConfig(block_size=32, n_layer=2, n_head=2, n_embd=16, pos=pos, bias=bias))
    groups = train.optimizer_groups(model, 0.3)
    placed = [id(p) for group in groups for p in group["params"]]
    assert len(placed) == len(set(placed)) and set(placed) == {id(p) for p in model.parameters()}
    decays = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    decayed = {name for name, p in model.named_parameters() if decays[id(p)] == 0.3}
    kept = {name for name, p in model.named_parameters() if decays[id(p)] == 0.0}
    matrices = [
        f"h.{n}.{m}.weight"
        for n in (0, 1)
        for m in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    ]
    assert (
        decayed == {"wte.weight", *matrices}
        and decayed | kept == dict(model.named_parameters()).keys()
    )


def test_the_optimizer_decays_as_the_settings_say() -> None:
    training = begin("--weight_decay=0.3", "--beta1=0.8", "--beta2=0.7", "--pos=t5")
    groups = training.optimizer.param_groups
    assert [group["weight_decay"] for group in groups] == [0.3, 0.0]
    assert {group["betas"] for group in groups} == {(0.8, 0.7)}


# ---- a step


def test_gradient_accumulation_trains_on_the_same_sequences() -> None:
    whole = trained("--dtype=float32", "--out_dir=whole", "--max_iters=4")
    parts = trained(
        "--dtype=float32",
        "--out_dir=parts",
        "--max_iters=4",
        "--batch_size=1",
        "--gradient_accumulation_steps=4",
    )
    for name in ("loss", "grad_norm", "tokens"):
        a, b = ([line[name] for line in metrics(run.folder)] for run in (whole, parts))
        assert a == pytest.approx(b, rel=1e-4), name


def test_a_step_reads_the_sequences_that_are_its_own(corpora: Path) -> None:
    training = begin("--gradient_accumulation_steps=3", "--seed=5")
    training.step = 7
    asked: list[tuple[int, int]] = []
    batch = training.batch
    training.batch = lambda first, count, length: (
        asked.append((first, count)),
        batch(first, count, length),
    )[1]
    training.take_step()
    assert (
        asked == [(84, 4), (88, 4), (92, 4)]
        and training.step == 8
        and training.tokens == 8 * 12 * 16
    )
    inputs, targets = batch(84, 4, 16)
    expected = data.sequences(data.load("tiny").train, 16, 5, 84, 4)
    assert (inputs.numpy() == expected[:, :-1]).all() and (targets.numpy() == expected[:, 1:]).all()


def test_all_micro_batches_of_a_step_share_the_draw_of_its_seed_and_number() -> None:
    training = begin(*DRAWING, "--seed=5")
    training.step = 7
    used: list[list[int]] = []
    compiled = training.compiled_loss
    training.compiled_loss = lambda idx, targets, ids: (
        used.append(ids.tolist()),
        compiled(idx, targets, ids),
    )[1]
    training.take_step()
    assert used == [training.model.draw_ids(5, 7, 16).tolist()] * 2


@pytest.mark.parametrize("pos", ["randomized(max=64) + rope", "fire", "learned"])
def test_with_cuda_graphs_gradients_are_added_to_memory_that_stays_and_nothing_else_changes(
    pos: str,
) -> None:
    # what a graph returns is written over by its next run: a second micro-batch
    words = (f"--pos={pos}", *DRAWING[1:], "--compile=True")  # not called: eager steps
    plain, kept = begin(*words, "--out_dir=plain"), begin(*words, "--cuda_graphs=True")
    places = [p.grad.data_ptr() for p in kept.model.parameters()]
    for _ in range(4):
        assert [x.item() for x in plain.take_step()] == [x.item() for x in kept.take_step()]
        assert [p.grad.data_ptr() for p in kept.model.parameters()] == places
        assert not any(p.grad.any() for p in kept.model.parameters())
    assert identical(plain.state()["model"], kept.state()["model"])
    assert identical(plain.state()["optimizer"], kept.state()["optimizer"])
    with pytest.raises(UserError, match=r"cuda_graphs needs compile=True"):
        begin("--cuda_graphs=True", "--compile=False", "--out_dir=eager")


def test_the_gradient_is_clipped_to_its_largest_norm_and_zero_means_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[float] = []
    clip = torch.nn.utils.clip_grad_norm_
    monkeypatch.setattr(
        torch.nn.utils, "clip_grad_norm_", lambda p, limit: (asked.append(limit), clip(p, limit))[1]
    )
    for limit in ("0.25", "0"):
        begin(f"--grad_clip={limit}", f"--out_dir={limit}").take_step()
    assert asked == [0.25, math.inf]


def test_validation_changes_nothing_and_reads_the_same_text_every_time() -> None:
    often = trained(*DRAWING, "--eval_interval=1", "--out_dir=often")
    never = trained(*DRAWING, "--eval_interval=100", "--out_dir=never")
    assert identical(often.state()["model"], never.state()["model"])
    assert (
        often.validation_loss() == often.validation_loss() == metrics(Path("often"))[-1]["val_loss"]
    )
    assert often.model.training


def test_the_loss_falls() -> None:
    losses = [
        line["loss"] for line in metrics(trained("--max_iters=40", "--learning_rate=1e-2").folder)
    ]
    assert losses[0] == pytest.approx(math.log(256), abs=0.1) and losses[-1] < losses[0] - 1


def test_float16_is_scaled_and_resumes_to_the_bit(tmp_path: Path) -> None:
    assert run_main("--dtype=float16", "--out_dir=half") == 0
    assert load_state(Path("half"))["scaler"]["scale"] > 1
    assert stop_at(5, signal.SIGTERM, "--dtype=float16", "--out_dir=stopped") == 143
    assert run_main("--dtype=float16", "--out_dir=stopped") == 0
    assert_same_end(Path("half"), Path("stopped"))


# ---- what is logged


def test_every_logged_step_has_its_numbers(straight: Path) -> None:
    lines = [
        json.loads(line)
        for line in (straight / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert [line["step"] for line in lines] == list(range(1, 9))
    assert [line["tokens"] for line in lines] == [step * 4 * 2 * 16 for step in range(1, 9)]
    assert [line["step"] for line in lines if "val_loss" in line] == [4, 8]
    for line in lines:
        assert {
            "step",
            "tokens",
            "loss",
            "lr",
            "grad_norm",
            "tokens_per_s",
            "memory",
            "mfu",
        } <= line.keys()
        assert line["mfu"] is None and line["tokens_per_s"] > 0 and line["memory"] > 2**20


def test_the_last_step_is_logged_validated_and_saved_wherever_it_falls() -> None:
    folder = trained("--max_iters=7", "--log_interval=5").folder
    assert steps(folder) == [1, 4, 5, 7] and "val_loss" in metrics(folder)[-1]
    assert load_state(folder)["step"] == 7


def test_a_line_of_the_log_has_loss_rate_and_time_left() -> None:
    line = {
        "step": 20,
        "tokens": 2000,
        "loss": 2.5,
        "lr": 1e-3,
        "grad_norm": 0.75,
        "tokens_per_s": 100.0,
        "mfu": None,
    }
    said = [log.in_words(line | more, 50) for more in ({}, {"val_loss": 2.25, "mfu": 0.412})]
    assert (
        said[0]
        == "step 20/50: loss 2.5000, lr 1.00e-03, norm 0.75, 100 tokens/s, MFU n/a, 30 s left"
    )
    assert "val 2.2500" in said[1] and "MFU 41.2%" in said[1]


def test_flops_are_counted_as_nanogpt_does() -> None:
    model = GPT(GPTConfig(block_size=64, n_layer=3, n_head=4, n_embd=32, pos="learned"))
    plain = GPT(
        GPTConfig(block_size=64, n_layer=3, n_head=4, n_embd=32, pos="nope")
    ).parameter_count
    assert log.flops_per_token(model, 100) == 6 * plain + 12 * 3 * 4 * 8 * 100


def test_config_json_has_what_is_needed_to_repeat_the_run(straight: Path) -> None:
    config, s = (
        read_json(straight / "config.json"),
        settings_of(*DRAWING, "--out_dir=run"),
    )
    assert (
        configurable.differences(read_config(straight)["settings"], asdict(s)) == []
        and config["settings"].keys() == asdict(s).keys()
    )
    assert config["parameters"] == GPT(s.gpt(256)).parameter_count
    assert config["command"] == ["train.py", *SIZE, *DRAWING, "--out_dir=run"]
    assert config["corpus_sha256"] == {
        split: data.load("tiny").split_sha256(split) for split in ("train", "val")
    }
    assert (
        config["sources_sha256"] == source_digests()
        and config["threads"] == torch.get_num_threads()
    )
    assert config["device"].startswith("cpu (as asked for)") and config["dtype"] in (
        "float32",
        "bfloat16",
    )
    assert (
        config["attention"].keys() == {"train", "test"}
        and config["versions"]["torch"] == torch.__version__
    )
    assert (config["original_length"], config["train_lengths"], config["pos_file_sha256"]) == (
        16,
        [16],
        None,
    )


def test_the_checkpoint_has_the_whole_configuration_and_loads_with_weights_only(
    straight: Path,
) -> None:
    state = torch.load(checkpoint_paths(straight)[0], weights_only=True)
    assert configurable.differences(state["settings"], read_config(straight)["settings"]) == []
    assert state["gpt"]["pos"] == "randomized(max=64) + rope" and state["gpt"]["dropout"] == 0.2
    assert (state["step"], state["tokens"], state["original_length"], state["train_lengths"]) == (
        8,
        8 * 4 * 2 * 16,
        16,
        [16],
    )
    assert not any("_orig_mod" in name for name in state["model"])


def test_a_finished_run_has_every_file_of_a_run_folder(straight: Path) -> None:
    assert {path.name for path in straight.iterdir()} == {
        "config.json",
        "metrics.jsonl",
        *(path.name for path in checkpoint_paths(straight)),
        "extrapolation.json",
        "extrapolation.png",
        ".lock",
        ".holder",
    }
    result = load_result(straight)
    assert {row["length"] for row in result["rows"]} == {8, 16, 32} and result[
        "tokens_trained"
    ] == 8 * 4 * 2 * 16


# ---- stopping and going on


def test_a_run_stopped_again_and_again_ends_like_one_that_was_not(
    straight: Path, capsys: pytest.CaptureFixture
) -> None:
    words = (*DRAWING, "--out_dir=run")
    for step, number, code in (
        (1, signal.SIGINT, 130),
        (4, signal.SIGTERM, 143),
        (7, signal.SIGUSR1, 128 + signal.SIGUSR1),
    ):
        assert stop_at(step, number, *words) == code
        assert (
            f"stopped at step {step}, saved in run; the same command goes on from there"
            in capsys.readouterr().out
        )
        assert (
            steps(Path("run")) == list(range(1, step + 1))
            and load_state(Path("run"))["step"] == step
        )
        assert not Path("run/extrapolation.json").exists()
    assert run_main(*words) == 0
    assert "resuming at step 7\n" in capsys.readouterr().out
    assert_same_end(straight, Path("run"))


@pytest.mark.parametrize(
    ("number", "code", "saved"),
    [(signal.SIGINT, 130, 6), (signal.SIGKILL, -9, 4)],
)
def test_a_process_that_a_signal_ended_goes_on_to_the_bit(
    number: int,
    code: int,
    saved: int,
    corpora: Path,
    tmp_path: Path,
    straight: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    words = (*DRAWING, "--out_dir=run")
    ended = in_a_process(corpora, tmp_path, [*SIZE, *words], step=6, number=number)
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
    folder = Path("run")
    assert load_state(folder)["step"] == saved
    if number == signal.SIGKILL:
        assert steps(folder) == [1, 2, 3, 4, 5]
        with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write('{"step": 6, "tokens": 76')
    assert run_main(*words) == 0
    assert f"resuming at step {saved}\n" in capsys.readouterr().out
    assert steps(folder) == list(range(1, 9))
    assert_same_end(straight, folder)


def in_a_process(
    corpora: Path, folder: Path, words: list[str], step: int = 0, number: int = 0
) -> subprocess.CompletedProcess:
    """train.py in a process of its own, with the corpora of these tests, that gets a signal when a step has been taken."""
    script = folder / "with_tiny.py"
    script.write_text(
        f"""
import pathlib, signal, sys, torch
torch.set_num_threads(1)
sys.path.insert(0, {str(REPOSITORY)!r})
import data
data.load.__defaults__ = (pathlib.Path({str(corpora)!r}),)
import configurable, posenc, train
take_step = train.Training.take_step
def watched(self):
    found = take_step(self)
    if self.step == {step}:
        signal.raise_signal({int(number)})
    return found
train.Training.take_step = watched
configurable.run_program(train.main)
""",
        encoding="utf-8",
    )
    return subprocess.run(
        [sys.executable, str(script), *words],
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


def test_a_second_signal_ends_at_once_and_nothing_can_catch_it() -> None:
    code = """
import os, signal, train
stop = train.Stop()
train.on_signals(stop.take)
signal.raise_signal(signal.SIGTERM)
print("first", stop.signal, flush=True)
try:
    signal.raise_signal(signal.SIGINT)
finally:
    print("cleaned up", flush=True)
"""
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (130, f"first {signal.SIGTERM}\n"), ended.stderr


def test_a_stop_between_two_lines_of_the_log_adds_none() -> None:
    words = ("--log_interval=5", "--eval_interval=100", "--out_dir=run")
    assert stop_at(3, signal.SIGTERM, *words) == 143
    assert steps(Path("run")) == [1] and load_state(Path("run"))["step"] == 3
    assert run_main(*words) == 0
    assert steps(Path("run")) == [1, 5, 8]


def test_a_signal_that_comes_while_a_step_is_logged_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    in_words = log.in_words

    def signalled(line: dict[str, Any], steps: int) -> str:
        if line["step"] == 6:  # neither validated nor saved by itself
            signal.raise_signal(signal.SIGTERM)
        return in_words(line, steps)

    monkeypatch.setattr(log, "in_words", signalled)
    with pytest.raises(SystemExit) as stopped:
        run_main("--out_dir=run")
    assert stopped.value.code == 143
    said = int(re.search(r"stopped at step (\d+), saved in run", capsys.readouterr().out)[1])
    assert load_state(Path("run"))["step"] == said


def test_a_signal_before_the_first_step_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = train.Training.compile
    monkeypatch.setattr(
        train.Training,
        "compile",
        lambda self: (compiled(self), signal.raise_signal(signal.SIGINT)),
    )
    with pytest.raises(SystemExit) as stopped:
        run_main("--out_dir=run")
    assert stopped.value.code == 130 and load_state(Path("run"))["step"] == 1


def test_a_run_stopped_in_its_test_is_only_tested_again(
    monkeypatch: pytest.MonkeyPatch, straight: Path, capsys: pytest.CaptureFixture
) -> None:
    words = (*DRAWING, "--out_dir=run")
    with monkeypatch.context() as patch:
        patch.setattr(
            evaluate,
            "extrapolation",
            lambda *arguments, **how: signal.raise_signal(signal.SIGTERM),
        )
        with pytest.raises(SystemExit) as stopped:
            run_main(*words)
    kept = "stopped in the test: the model is saved in run, and no row of this test"
    assert stopped.value.code == 143 and kept in capsys.readouterr().out
    before = [path.name for path in checkpoint_paths(Path("run"))]
    with when_taken(9, lambda: pytest.fail("a step too many")):
        assert run_main(*words) == 0
    assert [path.name for path in checkpoint_paths(Path("run"))] == before
    assert_same_end(straight, Path("run"))


def test_a_damaged_checkpoint_costs_the_steps_since_the_one_before(
    straight: Path, capsys: pytest.CaptureFixture
) -> None:
    words = (*DRAWING, "--out_dir=run")
    assert stop_at(6, signal.SIGTERM, *words) == 143
    newest = checkpoint_paths(Path("run"))[0]
    newest.write_bytes(newest.read_bytes()[: newest.stat().st_size // 2])
    assert run_main(*words) == 0
    said = capsys.readouterr().out
    assert f"{newest} is damaged" in said and "resuming at step 4\n" in said
    assert_same_end(straight, Path("run"))


def test_two_damaged_checkpoints_are_refused_and_not_trained_over(finished: Path) -> None:
    for path in checkpoint_paths(finished):
        path.write_bytes(b"damaged")
    before = (finished / "metrics.jsonl").read_bytes()
    with pytest.raises(UserError, match="damaged"):
        run_main(*DRAWING, "--out_dir=run")
    assert (finished / "metrics.jsonl").read_bytes() == before


def test_a_run_does_not_go_on_with_a_corpus_that_has_changed(
    straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (*DRAWING, "--out_dir=run")
    assert stop_at(3, signal.SIGTERM, *words) == 143
    with monkeypatch.context() as patch:
        other = np.frombuffer(TEXT.upper(), dtype=np.uint8)
        data.write_corpus(
            tmp_path / "corpora/tiny",
            {"train": [other], "val": [other]},
            tokenizer="bytes",
            source="here",
            rule="all",
        )
        patch.setattr(data, "load", functools.partial(LOAD, root=tmp_path / "corpora"))
        before = (Path("run") / "metrics.jsonl").read_bytes()
        with pytest.raises(UserError, match="corpus tiny has changed since run was begun"):
            run_main(*words)
        assert (Path("run") / "metrics.jsonl").read_bytes() == before
    assert run_main(*words) == 0
    assert_same_end(straight, Path("run"))


def test_a_trained_run_is_not_tested_on_a_text_that_has_changed(
    finished: Path, no_work: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (finished / "extrapolation.json").unlink()  # as if killed in its test
    other = np.frombuffer(TEXT.upper(), dtype=np.uint8)
    data.write_corpus(
        tmp_path / "corpora/tiny",
        {"train": [other], "val": [other]},
        tokenizer="bytes",
        source="here",
        rule="all",
    )
    monkeypatch.setattr(data, "load", functools.partial(LOAD, root=tmp_path / "corpora"))
    with pytest.raises(UserError, match="corpus tiny has changed since run was begun"):
        run_main(*DRAWING, "--out_dir=run")


@pytest.mark.parametrize("split", ["train", "val"])
def test_tokens_changed_in_place_are_not_trained_on(
    split: str, corpora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shutil.copytree(corpora / "tiny", tmp_path / "corpora/tiny") / f"{split}.bin"
    path.write_bytes(bytes(path.stat().st_size))  # all of them in the vocabulary
    monkeypatch.setattr(data, "load", functools.partial(LOAD, root=tmp_path / "corpora"))
    with pytest.raises(UserError, match=f"{split}.bin does not have the SHA-256"):
        run_main("--out_dir=run")
    assert not Path("run").exists()


def test_a_figure_that_was_not_drawn_in_the_end_is_drawn_by_the_same_command(
    finished: Path, no_work: None
) -> None:
    drawn = (finished / "extrapolation.png").read_bytes()
    (finished / "extrapolation.png").unlink()
    assert run_main(*DRAWING, "--out_dir=run") == 0
    assert (finished / "extrapolation.png").read_bytes() == drawn


def test_a_checkpoint_without_its_config_is_refused_and_given_no_other(finished: Path) -> None:
    folder = run_folder(settings_of(*DRAWING))  # found without --out_dir
    shutil.copytree(finished, folder)
    (folder / "config.json").unlink()
    with pytest.raises(UserError, match="config.json is missing"):
        run_main(*DRAWING)
    assert not (folder / "config.json").exists()


def test_a_test_of_an_earlier_checkpoint_does_not_make_a_run_finished(
    straight: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (*DRAWING, "--out_dir=run")
    assert stop_at(4, signal.SIGTERM, *words) == 143
    early = load_result(straight) | {"tokens_trained": 4 * 4 * 2 * 16, "step": 4}
    for row in early["rows"]:
        row |= {"step": 4, "checkpoint": "0" * 16}
    update_result("run", early)  # as evaluate.py leaves it meanwhile
    with monkeypatch.context() as patch:
        patch.setattr(
            evaluate,
            "extrapolation",
            lambda *arguments, **how: signal.raise_signal(signal.SIGTERM),
        )
        with pytest.raises(SystemExit):  # trained to the end, not tested
            run_main(*words)
    assert run_main(*words) == 0
    assert load_result("run")["tokens_trained"] == 8 * 4 * 2 * 16
    assert_same_end(straight, Path("run"))


@pytest.mark.parametrize("pos", ["learned", "rope + logn", "t5 | nope"])
def test_the_last_steps_go_on_without_the_scheme_where_it_is_to_be_dropped(pos: str) -> None:
    training = begin(f"--pos={pos}", "--drop_pos=0.25", "--out_dir=dropped")
    for _ in range(6):
        training.take_step()
    assert training.model.config.pos == pos
    body = training.model.h[0].mlp.c_fc.weight.clone()
    training.take_step()
    assert training.model.config.pos == "nope" and not list(training.model.pos.parameters())
    assert (
        0 < (training.model.h[0].mlp.c_fc.weight - body).abs().max() < 0.01
    )  # the rest goes on from where it was


def test_a_run_stopped_around_the_drop_ends_like_one_that_was_not() -> None:
    words = ("--pos=learned + t5", "--drop_pos=0.5", "--dropout=0.1")
    assert run_main(*words, "--out_dir=whole") == 0
    for step in (3, 4, 5):
        assert stop_at(step, signal.SIGTERM, *words, f"--out_dir=stopped{step}") == 143
        assert run_main(*words, f"--out_dir=stopped{step}") == 0
        assert_same_end(Path("whole"), Path(f"stopped{step}"))
    assert load_result("whole")["pos"] == "learned + t5 (dropped)"
    assert all(
        row["nats"] is not None for row in load_result("whole")["rows"]
    )  # the table and its end are gone


@pytest.mark.slow
def test_a_compiled_run_that_was_stopped_ends_like_one_that_was_not(
    capsys: pytest.CaptureFixture,
) -> None:
    words = (*DRAWING, "--compile=True")
    assert run_main(*words, "--out_dir=straight") == 0
    assert "not compiled" not in capsys.readouterr().out
    for step in (3, 6):
        assert stop_at(step, signal.SIGTERM, *words, "--out_dir=run") == 143
    assert run_main(*words, "--out_dir=run") == 0
    assert_same_end(Path("straight"), Path("run"))


# ---- the same command, another command


def test_a_finished_run_prints_its_table_and_does_nothing(
    finished: Path, no_work: None, capsys: pytest.CaptureFixture
) -> None:
    before = {path.name: path.read_bytes() for path in finished.iterdir()}
    assert run_main(*DRAWING, "--out_dir=run") == 0
    assert runs_table([load_result(finished)]) in capsys.readouterr().out
    assert {path.name: path.read_bytes() for path in finished.iterdir()} == before


def test_a_line_says_that_sources_or_threads_changed_since(
    finished: Path, no_work: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(
        folder,
        "source_digests",
        lambda: read_json(finished / "config.json")["sources_sha256"] | {"model.py": "another"},
    )
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    assert run_main(*DRAWING, "--out_dir=run") == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note:")]
    assert len(notes) == 2
    assert (
        "sources_sha256 changed since this run began (model.py)" in notes[0]
        and "77 now" in notes[1]
    )


def test_a_run_keeps_its_number_format(finished: Path, no_work: None) -> None:
    known = read_json(finished / "config.json")
    assert known["dtype_asked"] in ("auto", "float32")
    write_json(finished / "config.json", known | {"dtype": "bfloat16"})
    settings, _ = configure(TrainSettings, [*DRAWING, "--out_dir=run", "--dtype=auto"], "")
    assert train.dtype_of_run(settings) == "bfloat16"
    assert train.dtype_of_run(replace(settings, overwrite=True)) == ""


@pytest.mark.parametrize(
    ("name", "was", "said"),
    [
        (
            "device",
            "cuda:0 (a GPU was found), bfloat16 (the card has it)",
            "device changed since this run began (cuda:0 then, cpu now)",
        ),
        ("processes", 2, "processes changed since this run began (2 then, 1 now)"),
        ("device", "cpu (for another reason)", ""),
    ],
)
def test_a_line_says_that_the_device_or_the_number_of_processes_changed(
    name: str,
    was: str | int,
    said: str,
    finished: Path,
    no_work: None,
    capsys: pytest.CaptureFixture,
) -> None:
    known = read_json(finished / "config.json")
    assert name in known
    write_json(finished / "config.json", known | {name: was})
    assert run_main(*DRAWING, "--out_dir=run") == 0
    notes = [
        line
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("note:") and "since this run" in line
    ]
    assert len(notes) == bool(said) and all(said in note for note in notes)


def test_other_lengths_to_test_need_no_training(finished: Path) -> None:
    with when_taken(9, lambda: pytest.fail("a step too many")):
        assert run_main(*DRAWING, "--out_dir=run", "--eval_lengths=16,64") == 0
    assert {row["length"] for row in load_result(finished)["rows"]} >= {16, 64}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ("--n_embd=32", "n_embd: 32 here, 16 there"),
        ("--pos=alibi", "pos: 'alibi' here, 'randomized(max=64) + rope' there"),
        ("--seed=1", "seed: 1 here, 1337 there"),
    ],
)
def test_a_folder_of_another_run_is_refused_with_the_difference(
    changed: str, said: str, finished: Path, no_work: None
) -> None:
    before = {path.name: path.read_bytes() for path in finished.iterdir()}
    with pytest.raises(UserError) as refused:
        run_main(*DRAWING, "--out_dir=run", changed)
    assert said in str(refused.value) and "--overwrite=True" in str(refused.value)
    assert {path.name: path.read_bytes() for path in finished.iterdir()} == before


def test_overwrite_starts_afresh(
    finished: Path, straight: Path, capsys: pytest.CaptureFixture
) -> None:
    assert run_main("--out_dir=run", "--overwrite=True", "--max_iters=3", "--log_interval=10") == 0
    assert "resuming" not in capsys.readouterr().out
    assert steps(finished) == [1, 3]
    assert (
        load_state(finished)["step"] == 3
        and read_json(finished / "config.json")["settings"]["pos"] == "rope"
    )
    assert load_result(finished)["tokens_trained"] == 3 * 4 * 16
    assert run_main(*DRAWING, "--out_dir=run", "--overwrite=True") == 0
    assert_same_end(straight, finished)


def test_the_default_folder_is_named_after_the_canonical_scheme() -> None:
    folder = begin("--pos=  rope+alibi ", "--seed=3").folder
    others = "n_layer=1-n_head=2-n_embd=16-batch_size=4-warmup_iters=2"
    assert folder.as_posix() == f"out/rope+alibi-tiny-L16-s3-{others}"
    assert read_json(folder / "config.json")["settings"]["pos"] == "rope + alibi"


def test_a_word_that_is_no_setting_is_refused_with_advice_on_quoting() -> None:
    with pytest.raises(UserError, match=r"'\+ alibi' is neither a config file"):
        run_main("--pos=rope", "+", "alibi")


@pytest.mark.parametrize(
    "words",
    [
        ["--dataset=tinny"],
        ["--block_size=100000"],
        ["--pos=rpoe"],
        ["--pos=rope(base=0)"],
        ["--init_from=absent"],
        ["--pos_file=absent.py"],
        ["--device=cuda:99"],
    ],
)
def test_a_mistake_is_a_sentence_and_leaves_no_folder(words: list[str]) -> None:
    with pytest.raises((UserError, UserError)) as refused:
        run_main(*words)
    assert "\n" not in str(refused.value) and not Path("out").exists()


# ---- another max_iters

WSD = ("--lr_schedule=wsd", "--decay_share=0.5", "--out_dir=run")


@pytest.mark.parametrize(
    "words",
    [
        ("--lr_schedule=constant",),
        ("--lr_schedule=wsd", "--decay_share=0.5"),
        ("--lr_schedule=wsd", "--pos=randomized(max=64) + rope", "--mixed_lengths=8,16"),
        ("--lr_decay_iters=9",),
        ("--decay_lr=False", "--dropout=0.2"),
    ],
)
def test_a_run_that_is_extended_ends_like_one_planned_so(words: tuple[str, ...]) -> None:
    for steps_in_all in (4, 8, 12):
        trained(*words, f"--max_iters={steps_in_all}", "--out_dir=run")
    trained(*words, "--max_iters=12", "--out_dir=planned")
    extended, planned = (load_state(Path(name)) for name in ("run", "planned"))
    for name in ("model", "optimizer", "step", "tokens"):
        assert identical(extended[name], planned[name]), name
    losses = [
        {line["step"]: line["loss"] for line in metrics(Path(name))} for name in ("run", "planned")
    ]
    assert losses[0] == losses[1]
    history = read_json(Path("run/config.json"))["history"]
    assert [entry["max_iters"] for entry in history] == [4, 8, 12]
    from_decay = [0, 4, 8] if "wsd" not in words[0] else [0, *history_of_wsd(words)]
    assert [entry["from_step"] for entry in history] == from_decay
    assert all({"command", "git_commit"} < entry.keys() for entry in history)


def history_of_wsd(words: tuple[str, ...]) -> list[int]:
    """The steps before the decay of 4 and 8 steps."""
    return [settings_of(*words, f"--max_iters={n}").decay_begin for n in (4, 8)]


def test_no_sequence_is_read_twice_by_a_run_that_is_extended() -> None:
    read = reads("--out_dir=run", "--max_iters=3") + reads("--out_dir=run", "--max_iters=8")
    assert read == [(number, 16) for number in range(8 * 4)]


def test_an_extension_is_said_kept_and_tested_beside_what_was_tested_before(
    capsys: pytest.CaptureFixture,
) -> None:
    assert run_main("--out_dir=run", "--max_iters=4") == 0
    capsys.readouterr()
    assert run_main("--out_dir=run", "--max_iters=8") == 0
    said = capsys.readouterr().out
    assert "note: the cosine ended at 4 so far, and ends at 8 now" in said
    config = read_json(Path("run/config.json"))
    assert config["settings"]["max_iters"] == 8
    assert {row["step"] for row in load_result("run")["rows"]} == {4, 8}
    with pytest.raises(UserError, match="run has taken 8 steps, and max_iters = 4; raise it or"):
        run_main("--out_dir=run", "--max_iters=4")


def test_a_stopped_run_may_be_made_shorter() -> None:
    assert stop_at(3, signal.SIGTERM, "--out_dir=run") == 143
    start = begin("--out_dir=run", "--max_iters=6").start
    assert (
        start.settings.max_iters == read_json(Path("run/config.json"))["settings"]["max_iters"] == 6
    )


@pytest.mark.parametrize("words", [("--drop_pos=0.25",), ("--mixed_lengths=8,16", "--staged=True")])
def test_a_run_whose_course_follows_from_its_length_is_not_extended(words: tuple[str, ...]) -> None:
    trained(*words, "--max_iters=4", "--out_dir=run")
    before = {path.name: path.read_bytes() for path in Path("run").glob("[!.]*")}
    with pytest.raises(UserError, match=r"keeps its max_iters = 4; choose another --out_dir"):
        run_main(*words, "--max_iters=8", "--out_dir=run")
    assert {path.name: path.read_bytes() for path in Path("run").glob("[!.]*")} == before


def test_a_warm_up_that_is_not_set_is_kept_when_a_run_is_extended() -> None:
    words = [word for word in SIZE if not word.startswith(("--warmup_iters", "--max_iters"))]
    for steps_in_all in (8, 4000):
        s = configure(TrainSettings, [*words, f"--max_iters={steps_in_all}"], "")[0]
        start = start_run(s, device.pick("cpu", "float32"))
        assert start.settings.warmup_iters == 2 and "warmup" not in start.folder.name
        if steps_in_all == 8:
            train_on(train.Training(start))


def test_a_training_may_end_within_its_warm_up() -> None:
    trained("--warmup_iters=20", "--max_iters=2", "--out_dir=run")
    assert [line["lr"] for line in metrics(Path("run"))] == pytest.approx([3e-3 / 21, 6e-3 / 21])
    s = settings_of("--lr_schedule=wsd", "--warmup_iters=9", "--max_iters=10", "--min_lr=0")
    rates = [train.learning_rate(step, s) / 3e-3 for step in (7, 8, 9, 10)]
    assert rates == pytest.approx([0.8, 0.9, 1, 0])  # its decay, of two steps, has one left


def interrupted(*arguments: object) -> None:
    """What Ctrl-C does where nothing else takes the signal."""
    raise KeyboardInterrupt


def test_wsd_goes_back_to_before_its_decay_even_if_killed_meanwhile(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    trained(*WSD, "--max_iters=4")
    names = [path.stem[:-17] for path in checkpoint_paths(Path("run"))]
    assert names == ["ckpt-4", "stable-2"]
    with monkeypatch.context() as patch:
        patch.setattr("runs.start.note_changes", interrupted)
        with pytest.raises(KeyboardInterrupt):  # before config.json tells of the extension
            begin(*WSD, "--max_iters=8")
    trained(*WSD, "--max_iters=8")
    assert "note: steps 3 to 4 were logged" in capsys.readouterr().out
    trained(*WSD[:2], "--max_iters=8", "--out_dir=planned")
    for name in ("model", "optimizer"):
        states = [load_state(Path(where))[name] for where in ("run", "planned")]
        assert identical(*states)


def test_the_note_on_a_cosine_names_its_first_end_even_if_killed_meanwhile(
    capsys: pytest.CaptureFixture,
) -> None:
    trained("--out_dir=run", "--max_iters=4")
    for _ in range(2):  # the first is killed before it saves
        begin("--out_dir=run", "--max_iters=8")
        said = capsys.readouterr().out
        assert "the cosine ended at 4 so far, and ends at 8 now" in said


def test_wsd_does_not_go_on_from_within_a_decay_that_is_not_its_own() -> None:
    trained(*WSD, "--max_iters=4")
    for path in Path("run").glob("stable-*"):
        path.unlink()
    before = {path.name: path.read_bytes() for path in Path("run").glob("[!.]*")}
    with pytest.raises(UserError, match="run lacks a checkpoint from before the decay"):
        begin(*WSD, "--max_iters=8")
    assert stop_at(5, signal.SIGTERM, *WSD, "--overwrite=True", "--max_iters=12") == 143
    assert begin(*WSD, "--max_iters=8").step == 4  # where the decay of 8 steps begins
    assert before.keys() - {path.name for path in Path("run").glob("[!.]*")}


# ---- the scheme is examined


def test_a_scheme_is_examined_before_its_run_begins_and_then_no_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    seen: list[tuple] = []

    def examined(config: GPTConfig, pos_file: Path | None, **how: Any) -> list[str]:
        seen.append((config.pos, pos_file, how["length"]))
        return ["odd beyond L"]

    def wrong(*arguments: Any, **how: Any) -> list[str]:
        raise UserError("mine.py: Mine.bias reads later tokens")

    words = ("--pos=alibi", "--mixed_lengths=8,32", "--out_dir=run")
    monkeypatch.setattr("runs.start.examine", wrong)
    with pytest.raises(UserError, match=r"Mine\.bias reads later tokens"):
        begin(*words, "--examine=True")
    assert not Path("run").exists()
    begin(*words)  # SIZE has --examine=False, and config.json says so
    assert read_json(Path("run/config.json"))["settings"]["examine"] is False
    monkeypatch.setattr("runs.start.examine", examined)
    for _ in range(2):
        trained(*words, "--examine=True")
    assert seen == [("alibi", None, 32)]
    assert capsys.readouterr().out.count("warning: odd beyond L") == 1


def test_a_scheme_that_cannot_be_compiled_or_run_is_a_sentence(tmp_path: Path) -> None:
    code = "from posenc import Piece\n\n\nclass Mine(Piece):\n    name = 'mine'\n\n"
    code += "    def bias(self, *_):\n        return {}['far']\n"
    Path("mine.py").write_text(code, encoding="utf-8")
    with pytest.raises(UserError, match=r"^mine\.py: .*bias.* failed .*KeyError"):
        run_main("--pos=mine", "--pos_file=mine.py", "--out_dir=run")


# ---- losses that are no numbers


@pytest.mark.parametrize("what", ["loss", "norm"])
@pytest.mark.parametrize("interval", [1, 100])
def test_a_loss_or_gradient_that_is_no_number_stops_and_the_last_good_checkpoint_stays(
    what: str, interval: int, straight: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (*DRAWING, "--out_dir=run", f"--log_interval={interval}")
    with monkeypatch.context() as patch:
        take_step = train.Training.take_step

        def ruined(self: train.Training) -> tuple[torch.Tensor, torch.Tensor]:
            loss, norm = take_step(self)
            bad = math.nan if self.step >= 6 else 1.0
            return (loss * bad, norm) if what == "loss" else (loss, norm * bad)

        patch.setattr(train.Training, "take_step", ruined)
        with pytest.raises(UserError) as stopped:
            run_main(*words)
    text = str(stopped.value)
    assert text.startswith(f"step {6 if interval == 1 else 8}: ") and "nan" in text
    assert "last good checkpoint is in run" in text and "learning_rate" in text and "\n" not in text
    assert load_state(Path("run"))["step"] == 4
    *good, last = metrics(Path("run"))
    assert max(line["step"] for line in good) < 6 and last["step"] == (6 if interval == 1 else 8)
    assert last["diverged"] == text.partition(": ")[2].partition(";")[0]
    if interval == 1:
        assert run_main(*words) == 0  # the cause mended, it goes on from there
        assert_same_end(straight, Path("run"))


HUGE = ["--learning_rate=1e15", "--warmup_iters=0", "--dtype=float32"]


def test_a_learning_rate_that_is_far_too_large_ends_with_a_sentence() -> None:
    with pytest.raises(UserError, match=r"^step \d: loss .* in run\. Lower learning_rate"):
        run_main(*HUGE, "--out_dir=run")
    *good, last = metrics(Path("run"))
    assert all(math.isfinite(line["loss"]) for line in good) and "loss" in last["diverged"]


@pytest.mark.parametrize(
    "words", [["--eval_interval=1"], ["--max_iters=1"]], ids=["saved at once", "the last step"]
)
def test_weights_that_a_step_ruined_are_neither_saved_as_good_nor_tested(words: list[str]) -> None:
    """The loss of a step is that of the weights before it: the validation that follows is the first to see the damage."""
    with pytest.raises(UserError, match="Lower learning_rate"):
        run_main(*HUGE, *words, "--out_dir=run")
    assert not checkpoint_paths(Path("run")) and not Path("run/extrapolation.json").exists()
    assert all(math.isfinite(line.get("val_loss", 0)) for line in metrics(Path("run")))


# ---- starting from other weights


def begin_unsized(*words: str) -> train.Training:
    """A run that has been begun without a word on the size of its model."""
    s = replace(settings_of(*words), n_layer=4, n_head=4, n_embd=256)  # the defaults, not named
    return train.Training(start_run(s, device.pick(s.device, s.dtype), ALONE))


def test_a_run_begins_with_the_weights_size_and_scheme_of_another(finished: Path) -> None:
    training = begin_unsized("--init_from=run", "--out_dir=longer", "--block_size=32")
    source = load_state(finished)
    assert identical(dict(training.model.state_dict()), dict(source["model"]))
    assert training.step == 0 and training.model.training
    config = read_json(Path("longer/config.json"))
    assert [config["settings"][name] for name in ("n_embd", "n_layer", "pos")] == [
        16,
        1,
        "randomized(max=64) + rope",
    ]
    assert (config["original_length"], config["train_lengths"]) == (16, [16, 32])
    train_on(training)
    assert train.test_long(training)["original_length"] == 16
    state = load_state(Path("longer"))
    assert (state["original_length"], state["train_lengths"], state["step"]) == (16, [16, 32], 8)
    third = begin("--init_from=longer", "--out_dir=third", "--block_size=64")
    assert (third.model.config.block_size, third.start.config["train_lengths"]) == (
        16,
        [16, 32, 64],
    )


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("--n_embd=64", "n_embd=64"),
        ("--n_layer=3", "n_layer=3"),
        ("--pos=alibi", "pos=alibi"),
        ("--bias=True", "bias=True"),
        ("--n_layer=4", "n_layer=4"),  # typed is typed, though these are the defaults
        ("--pos=rope", "pos=rope"),
    ],
)
def test_a_size_or_scheme_that_the_weights_do_not_have_is_refused_and_not_dropped(
    typed: str, said: str, finished: Path
) -> None:
    with pytest.raises(UserError, match=rf"^{said} does not go with init_from=run"):
        begin("--init_from=run", "--out_dir=other", typed)
    assert not Path("other").exists()


def reads(*words: str) -> list[tuple[int, int]]:
    """The number and the length of each sequence that a training to its end reads."""
    batch, found = train.Training.batch, []

    def watched(self: train.Training, first: int, count: int, length: int) -> tuple:
        found.extend((number, length) for number in range(first, first + count))
        return batch(self, first, count, length)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train.Training, "batch", watched)
        trained(*words)
    return found


@pytest.mark.parametrize(
    "words", [(), ("--gradient_accumulation_steps=3",), ("--mixed_lengths=8,16",)]
)
def test_a_run_that_begins_from_others_reads_on_behind_them(
    words: tuple[str, ...], capsys: pytest.CaptureFixture
) -> None:
    chain = [reads("--max_iters=2", "--out_dir=a", *words)]
    chain += [reads("--max_iters=3", "--init_from=a", "--out_dir=b", *words)]
    chain += [reads("--max_iters=2", "--init_from=b", "--out_dir=c", "--batch_size=8", *words)]
    read = [sequence for one in chain for sequence in one]
    assert len(set(read)) == len(read) >= 4 * (2 + 3 + 2 * 2)
    tokens = (2 + 3) * 4 * 16 * (3 if "accumulation" in str(words) else 1)
    said = f"init_from=b: its weights, a new optimizer, its data from token {tokens} on"
    assert said in capsys.readouterr().out.splitlines()


def test_texts_are_read_again_only_if_that_is_said(capsys: pytest.CaptureFixture) -> None:
    first = reads("--out_dir=a")
    again = reads("--out_dir=b", "--init_from=a", "--read_again=True")
    said = "a new optimizer, its data from token 0 on"
    assert again == first and said in capsys.readouterr().out
    for words in (("--seed=3",), ("--block_size=32",)):  # another order
        reads("--out_dir=c", "--overwrite=True", "--init_from=a", *words)
        assert said in capsys.readouterr().out
    # the order of the first of the chain is known still
    assert min(reads("--out_dir=d", "--init_from=c"))[0] == len(first)
    begin("--out_dir=e", "--init_from=a", "--dataset=other")
    assert said in capsys.readouterr().out


def test_a_run_folder_is_one_whatever_its_name(finished: Path) -> None:
    finished.rename("gpt2_run")
    training = begin_unsized("--init_from=gpt2_run", "--out_dir=b")
    assert identical(dict(training.model.state_dict()), load_state(Path("gpt2_run"))["model"])


def test_an_extension_that_is_typed_as_empty_is_taken_off() -> None:
    trained("--out_dir=a", "--max_iters=2", "--extend=pi(factor=2)")
    kept, dropped = (begin("--init_from=a", *word).model for word in ((), ("--extend=",)))
    assert (kept.config.extend, dropped.config.extend) == ("pi(factor=2)", "")


def test_a_run_reads_on_where_it_did_though_its_source_has_gone_on() -> None:
    trained("--out_dir=a", "--lr_schedule=constant", "--max_iters=2")
    words = ("--init_from=a", "--out_dir=b")
    assert stop_at(3, signal.SIGTERM, *words) == 143
    trained("--out_dir=a", "--lr_schedule=constant", "--max_iters=6")
    assert [number for number, _ in reads(*words)] == list(range(4 * (2 + 3), 4 * (2 + 8)))


def test_a_folder_of_hugging_face_is_known_and_an_unknown_model_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    theirs = GPT(GPTConfig(block_size=32, n_layer=2, n_head=4, n_embd=8, bias=True, pos="learned"))
    with monkeypatch.context() as patched:
        patched.setattr(GPT, "from_huggingface", lambda name: {"theirs": theirs}[name])
        Path("theirs").mkdir()
        write_json(Path("theirs/config.json"), {"model_type": "gpt2"})
        assert begin_unsized("--init_from=theirs", "--out_dir=a").model is theirs
        with pytest.raises(UserError, match="n_layer=1 does not go with init_from=theirs"):
            begin("--init_from=theirs", "--out_dir=b")
    write_json(Path("theirs/config.json"), {"model_type": "falcon"})
    said = "theirs is a Hugging Face model of type falcon; known are gpt2, gpt_neox, llama"
    with pytest.raises(UserError, match=said):
        begin_unsized("--init_from=theirs", "--out_dir=b")
    assert not Path("b").exists()


def test_a_run_from_another_resumes_like_any(finished: Path) -> None:
    words = ("--init_from=run", "--block_size=32", "--eval_lengths=16,32")
    assert run_main(*words, "--out_dir=one") == 0
    assert stop_at(3, signal.SIGTERM, *words, "--out_dir=two") == 143
    assert run_main(*words, "--out_dir=two") == 0
    assert_same_end(Path("one"), Path("two"))


@pytest.mark.parametrize("where", ["--out_dir=tuned", "--out_dir="])
def test_a_run_that_began_from_another_needs_that_one_no_more(where: str, finished: Path) -> None:
    """The folder holds everything: the source may be moved or deleted."""
    words = ("--init_from=run", where)
    assert stop_at(3, signal.SIGTERM, *words) == 143
    finished.rename("elsewhere")
    assert run_main(*words) == 0
    assert run_main(*words) == 0


def test_a_run_is_not_begun_in_the_folder_of_the_one_that_it_begins_from(finished: Path) -> None:
    before = {path.name: path.read_bytes() for path in finished.iterdir()}
    for words in ((), ("--overwrite=True",)):
        with pytest.raises(UserError, match="run is the run to begin from; choose another --out"):
            begin("--init_from=run", "--out_dir=./run", *words)
    assert {path.name: path.read_bytes() for path in finished.iterdir()} == before


def test_dropout_asked_for_is_used_with_the_weights_of_another_run(finished: Path) -> None:
    assert begin("--init_from=run", "--out_dir=a", "--dropout=0.5").model.config.dropout == 0.5
    model = begin("--init_from=run", "--out_dir=b", "--dropout=0").model
    assert model.config.dropout == 0
    assert {
        m.dropout for m in model.modules() if isinstance(getattr(m, "dropout", None), float)
    } == {0.0}


def test_weights_for_another_vocabulary_are_refused(finished: Path) -> None:
    with pytest.raises(UserError, match="init_from=run has a vocabulary of 256, not char's"):
        begin("--init_from=run", "--dataset=char")


def test_weights_of_gpt2_begin_a_run_or_are_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = GPT(GPTConfig(block_size=32, n_layer=2, n_head=4, n_embd=8, bias=True, pos="learned"))
    with monkeypatch.context() as patched:
        patched.setattr(GPT, "from_huggingface", lambda name: theirs)
        patched.setattr("runs.start.refuse_other_tokenizer", lambda corpus, source: None)
        training = begin_unsized("--init_from=gpt2", "--out_dir=a")
    assert (training.model.config.block_size, training.start.config["train_lengths"]) == (
        32,
        [32, 16],
    )
    used = read_json(training.folder / "config.json")["settings"]
    assert [used[name] for name in ("n_layer", "n_head", "n_embd", "bias", "pos")] == [
        2,
        4,
        8,
        True,
        "learned",
    ]

    def fail(*names: str) -> None:
        raise OSError("We couldn't connect\nto anything")

    utils = pytest.importorskip("transformers.utils")
    monkeypatch.setattr(utils, "cached_file", fail)
    with pytest.raises(
        UserError, match=r"^gpt2-xl is no folder.*connect\); .*transformers \(pip\)"
    ):
        begin("--init_from=gpt2-xl", "--out_dir=b")


# ---- schemes of the user's own

OWN = '''from posenc import Piece, Shape


class Steep(Piece):
    """score -= strength (i - j)."""

    def __init__(self, shape: Shape, *, strength: float = 1.0) -> None:
        super().__init__()
        self.strength = strength

    def bias(self, like):
        return lambda h, i, j: -self.strength * (i - j)
'''


@pytest.fixture
def own() -> Iterator[tuple[str, ...]]:
    """The words of a run with a scheme of the user's own, in the folder `mine`."""
    load_file.cache_clear()
    Path("my_scheme.py").write_text(OWN, encoding="utf-8")
    yield ("--pos=steep(strength=0.5)", "--pos_file=my_scheme.py", "--out_dir=mine")
    load_file.cache_clear()  # it knows a file by its name


def test_a_file_of_schemes_is_named_copied_and_its_digest_kept(
    own: tuple[str, ...], capsys: pytest.CaptureFixture
) -> None:
    assert run_main(*own) == 0
    assert "running the position schemes of my_scheme.py" in capsys.readouterr().out
    assert Path("mine/pos_file.py").read_text(encoding="utf-8") == OWN
    assert read_json(Path("mine/config.json"))["pos_file_sha256"] == sha256(Path("my_scheme.py"))
    assert run_main(*own) == 0  # and is finished


def test_the_copy_runs_only_where_pos_file_is_typed_again(
    own: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    trained(*own)
    Path("my_scheme.py").unlink()
    for argv in (["mine"], ["mine", "--eval_lengths=16"]):
        monkeypatch.setattr(sys, "argv", ["evaluate.py", *argv])
        with pytest.raises(UserError, match="--pos_file=mine/pos_file.py"):
            evaluate.main()
    with pytest.raises(UserError, match="my_scheme.py"):
        load_run("mine")
    monkeypatch.setattr(
        sys, "argv", ["evaluate.py", "mine", "--eval_lengths=16,64", "--pos_file=mine/pos_file.py"]
    )
    evaluate.main()
    assert "steep(strength=0.5)" in capsys.readouterr().out
    assert all(row["nats"] is not None for row in load_result("mine")["rows"])


def test_a_copy_that_is_not_the_file_of_the_run_is_not_run(own: tuple[str, ...]) -> None:
    trained(*own)
    Path("mine/pos_file.py").write_text(
        "raise AssertionError('this must not run')", encoding="utf-8"
    )
    with pytest.raises(UserError, match="not the file that mine was trained with"):
        load_run("mine", pos_file="mine/pos_file.py")


def test_another_file_than_that_of_the_run_does_not_let_the_copy_run(own: tuple[str, ...]) -> None:
    trained(*own)
    Path("trusted.py").write_text(OWN + "# another one", encoding="utf-8")
    with pytest.raises(
        UserError, match="trusted.py is missing or not the file that mine was trained with"
    ):
        load_run("mine", pos_file="trusted.py")


def test_overwriting_a_run_does_not_delete_the_schemes_that_it_is_told_to_use(
    own: tuple[str, ...],
) -> None:
    """The copy in the folder may be the only one left; to refuse would be as good as to train."""
    trained(*own)
    Path("my_scheme.py").unlink()
    with suppress(UserError):
        trained(
            "--pos=steep(strength=0.5)",
            "--pos_file=mine/pos_file.py",
            "--out_dir=mine",
            "--overwrite=True",
        )
    assert Path("mine/pos_file.py").read_text(encoding="utf-8") == OWN


def test_a_run_does_not_go_on_unsaid_with_a_file_that_has_changed(
    own: tuple[str, ...], capsys: pytest.CaptureFixture
) -> None:
    """Half of the training with one scheme and half with another is neither."""
    assert stop_at(3, signal.SIGTERM, *own) == 143
    capsys.readouterr()
    Path("my_scheme.py").write_text(
        OWN.replace("-self.strength", "-7 * self.strength"), encoding="utf-8"
    )
    load_file.cache_clear()
    try:
        run_main(*own)
        said = capsys.readouterr().out
    except UserError as error:
        said = str(error)
    assert re.search(r"my_scheme\.py.*chang|pos_file.*chang|pos_file\w*: .* there", said)


def test_weights_of_a_run_with_its_own_schemes_begin_another(own: tuple[str, ...]) -> None:
    trained(*own)
    with pytest.raises(UserError, match="--pos_file"):
        begin("--init_from=mine", "--out_dir=next")
    training = begin("--init_from=mine", "--out_dir=next", "--pos_file=my_scheme.py")
    assert training.model.pos.text == "steep(strength=0.5)"
    assert Path("next/pos_file.py").read_text(encoding="utf-8") == OWN


# ---- Weights & Biases


@pytest.fixture
def wandb_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Set wandb's mode, with all that it keeps in the test's own folder and nothing of an account."""
    import wandb

    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    for name in ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "wandb-home"))
    (tmp_path / "wandb-home").mkdir()
    monkeypatch.setenv("WANDB_SILENT", "true")
    yield lambda mode: monkeypatch.setenv("WANDB_MODE", mode)
    wandb.teardown()


def records_of(path: Path) -> Iterator[Any]:
    """The records of a .wandb file: 7 bytes, then LevelDB's log format, chunks of crc, length and type in blocks of 32 KiB."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, place, parts = path.read_bytes(), 7, b""
    while place + 7 <= len(content):
        left = 2**15 - place % 2**15
        if left < 7:
            place += left
            continue
        length, kind = struct.unpack_from("<HB", content, place + 4)
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or the last chunk of one
            yield Record.FromString(parts)
            parts = b""


def logged(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The configuration and the history of the offline run in a run folder, once wandb has written all of it."""
    import wandb

    wandb.teardown()
    config, history = {}, []
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    for record in records_of(path):
        kind = record.WhichOneof("record_type")
        for update in (
            *(record.run.config.update if kind == "run" else ()),
            *(record.config.update if kind == "config" else ()),
        ):
            config[update.key or update.nested_key[0]] = json.loads(update.value_json)
        if kind == "history":
            history.append(
                {
                    "/".join(item.nested_key) or item.key: json.loads(item.value_json)
                    for item in record.history.item
                }
            )
    return config, history


def of_run(folder: Path) -> tuple[Any, dict[str, Any]]:
    """What an offline run says of itself, and its summary; after `logged`."""
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    kinds = {record.WhichOneof("record_type"): record for record in records_of(path)}
    updates = [
        r.summary.update for r in records_of(path) if r.WhichOneof("record_type") == "summary"
    ]
    pairs = [(u.key or u.nested_key[0], json.loads(u.value_json)) for us in updates for u in us]
    return kinds["run"].run, dict(pairs)


def test_an_offline_run_has_its_group_its_tags_and_what_the_test_comes_to(
    wandb_here: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb_here("offline")
    monkeypatch.setattr(figures, "plot_runs", FIGURE)
    words = (
        "--wandb_log=True",
        "--out_dir=run",
        "--wandb_group=ours",
        "--wandb_tags=a,b",
        "--eval_lengths=16,64",
    )
    assert run_main(*words) == 0
    logged(Path("run"))
    run, summary = of_run(Path("run"))
    assert run.run_group == "ours" and run.job_type == "train"
    settings = read_json(Path("run/config.json"))["settings"]
    assert [*run.tags] == [settings["pos"], settings["dataset"], "a", "b"]
    result = load_result("run")
    rows = rows_on(result["rows"], settings["dataset"])
    length = settings["block_size"]
    assert summary["loss_L"] == rows["fixed_targets", length]["nats"]
    known = {f"gain_{k}L": gain(rows, length, k * length) for k in (4, 32)}
    assert known["gain_4L"] is not None
    for name, difference in known.items():
        assert summary.get(name) == (difference.nats if difference else None)


def test_every_run_of_the_sweep_has_a_folder_of_its_own_and_the_number_that_it_looks_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(Path(train.__file__).parent)
    sweep = yaml.safe_load(Path("config/sweep.yaml").read_text(encoding="utf-8"))
    program, *words = sweep["command"][2:]
    assert program == "${program}" and Path(sweep["program"]).is_file()
    place, folders = words.index("${args}"), set()
    for values in itertools.product(*(of["values"] for of in sweep["parameters"].values())):
        args = [f"--{n}={v}" for n, v in zip(sweep["parameters"], values, strict=True)]
        typed = [*words[:place], *args, *words[place + 1 :]]  # what wandb's agent types
        settings, others = configure(TrainSettings, typed, "")
        assert not others and settings.wandb_log and settings.pos == values[0]
        folders.add(run_folder(settings))
    assert len(folders) == 4 * 3 * 2
    assert sweep["metric"] == {"name": "loss_L", "goal": "minimize"}  # in the summary: see above


def test_a_comparison_is_a_run_of_its_own_with_every_row(
    wandb_here: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb_here("offline")
    monkeypatch.setattr(figures, "plot_runs", FIGURE)
    assert run_main("--out_dir=run", "--max_iters=2", "--eval_lengths=16,64") == 0
    Path("both").mkdir()
    log.log_comparison(LogSettings(), [Path("run")], Path("both/figure.png"), "comparison")
    assert not list(Path("both").iterdir())  # nothing is logged unless it is asked for
    asked = LogSettings(wandb_log=True, wandb_tags=("a",))
    log.log_comparison(asked, [Path("run")], Path("both/figure.png"), "comparison")
    logged(Path("both"))
    run, summary = of_run(Path("both"))
    assert (run.run_group, run.job_type, run.display_name) == (
        "both",
        "comparison",
        "comparison both",
    )
    config = {u.key: json.loads(u.value_json) for u in run.config.update}
    (label,) = config["schemes"]
    assert len(config["seeds"]) == 1 and not {"pos", "seed"} & config.keys()
    length = load_result("run")["train_length"]
    gain = summary[f"{label} at {length}"] - summary[f"{label} at {4 * length}"]
    assert summary[f"{label} gain_4L"] == pytest.approx(gain)
    (path,) = Path("both").rglob("comparison_*.table.json")
    table = json.loads(path.read_text(encoding="utf-8"))
    place = table["columns"].index("nats")
    assert [row[place] for row in table["data"]] == [
        row["nats"] for row in load_result("run")["rows"]
    ]


def test_an_offline_run_has_the_curve_the_configuration_the_table_and_the_figure(
    wandb_here: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb_here("offline")
    monkeypatch.setattr(figures, "plot_runs", FIGURE)
    assert run_main("--wandb_log=True", "--out_dir=run", "--wandb_run_name=a name") == 0
    config, history = logged(Path("run"))
    known = read_json(Path("run/config.json"))
    assert {name: config.get(name) for name in known["settings"]} == known["settings"]
    assert config["parameters"] == known["parameters"] and "sources_sha256" not in config
    (path,) = Path("run/wandb").glob("offline-run-*")
    assert path.name.endswith(known["wandb_id"])
    curve = {line["_step"]: line for line in history if "loss" in line}
    for line in metrics(Path("run")):
        assert {name: curve[line["step"]][name] for name in line} == line
    assert len(curve) == 8
    assert {"extrapolation", "extrapolation_figure"} <= {
        name.split("/")[0] for line in history for name in line
    }
    points = {line["extrapolation/N"]: line for line in history if "extrapolation/N" in line}
    measured = [row for row in load_result("run")["rows"] if row["nats"] is not None]
    assert measured and points.keys() >= {row["length"] for row in measured}
    for row in measured:
        assert points[row["length"]][f"extrapolation/{row['protocol']}"] == row["nats"]
    kept = path / "files"
    table = json.loads(next(kept.rglob("extrapolation_*.table.json")).read_text(encoding="utf-8"))
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    expected = load_result("run")["rows"]
    assert [(row["protocol"], row["length"], row["nats"]) for row in rows] == [
        (row["protocol"], row["length"], row["nats"]) for row in expected
    ]
    assert (
        next(kept.rglob("extrapolation_figure_*.png")).read_bytes()
        == Path("run/extrapolation.png").read_bytes()
    )


def test_what_weights_and_biases_refuses_is_a_sentence(
    wandb_here: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb_here("online")
    monkeypatch.setenv("WANDB_API_KEY", "short")
    with pytest.raises(
        UserError, match=r"^wandb_log=True, but Weights & Biases refused \(.*`wandb login`"
    ):
        run_main("--wandb_log=True", "--out_dir=run")


def test_a_disabled_run_needs_nothing_and_leaves_nothing(
    wandb_here: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb_here("disabled")
    monkeypatch.setattr(figures, "plot_runs", FIGURE)
    assert run_main("--wandb_log=True", "--out_dir=run", "--max_iters=2") == 0
    assert not list(Path("run").glob("wandb/*run-*")) and steps(Path("run")) == [1, 2]


# ---- the machine


def test_without_a_compiler_a_line_says_so_and_training_is_eager(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(
        torch, "compile", lambda *arguments, **how: pytest.fail("there is no compiler")
    )
    training = trained("--compile=True", "--max_iters=2")
    said = [line for line in capsys.readouterr().out.splitlines() if "compil" in line]
    assert said == ["not compiled: no C++ compiler was found"] and training.step == 2
    config = read_json(training.folder / "config.json")
    assert config["git_commit"] is None and config["attention"]["train"] != "matmul"


def test_the_device_and_its_reason_are_said_in_one_line(capsys: pytest.CaptureFixture) -> None:
    begin("--dtype=float32")
    assert "on cpu (as asked for), float32 (as asked for)" in capsys.readouterr().out.splitlines()


def test_help_is_quick_and_comes_before_torch_is_imported() -> None:
    code = """
import runpy, sys
sys.argv = ["train.py", "--help"]
try:
    runpy.run_path("train.py", run_name="__main__")
except SystemExit as end:
    print({"torch", "numpy", "wandb", "matplotlib"} & {*sys.modules}, end.code)
"""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    said = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime  # of processor
    assert said.stdout.startswith("Train one model") and said.stdout.splitlines()[-1] == "set() 0"
    assert seconds < 1, f"--help took {seconds:.1f} s of processor time"
