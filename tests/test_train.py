"""Training: the schedule, resuming to the bit, who a run is, fine-tunes, what is logged."""

import json
import math
import os
import shutil
import signal
import struct
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import REPOSITORY, SIZE, call
from torch.utils._python_dispatch import TorchDispatchMode

import data.recall.prepare as recall
import evaluate
import optimizer
import train
from common import device
from common.errors import UserError
from common.files import read_json, sha256, write_json
from configurable import GPTConfig, TrainSettings, configure, read_arguments
from data import batches
from data.corpus import load_corpus
from model import GPT
from optimizer import Muon
from run.checkpoint import checkpoint_paths
from run.folder import RunFolder, read_config
from run.load import load_run
from run.log import diverged, flops_per_token, logged
from tables.records import load_result, load_rows, select

pytestmark = pytest.mark.usefixtures("here")

VARYING = ("tokens_per_s", "memory", "mfu")
# everything that draws numbers
DRAWING = ["--pos=randomized(max=64) + rope", "--dropout=0.2", "--gradient_accumulation_steps=2"]
OWN = '''"""A scheme of one's own."""
import torch
from posenc import Piece


class Root(Piece):
    """score -= {rate} sqrt(distance)"""

    def bias(self, h, i, j):
        return -{rate} * (i - j).sqrt()
'''


def run(*words: str) -> int:
    """Train a small run in this process."""
    return call(train, *SIZE, *words)


def settings(*words: str) -> TrainSettings:
    return configure(TrainSettings, [*SIZE, *words])[0]


def opened(*words: str) -> RunFolder:
    """The run folder of these settings, as it is now."""
    typed, _ = read_arguments(TrainSettings, [*SIZE, *words])
    return RunFolder.open(train.final_settings(typed, None))


def metrics(folder: str) -> list[dict]:
    """The lines of metrics.jsonl, without what differs from machine to machine."""
    return [{k: v for k, v in line.items() if k not in VARYING} for line in logged(folder)]


def saved(folder: str) -> dict:
    """The content of the newest checkpoint."""
    return torch.load(checkpoint_paths(Path(folder))[0], weights_only=True)


def identical(a: object, b: object) -> bool:
    """Whether two checkpoints are the same to the bit, but for the number of the run."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(identical(a[k], b[k]) for k in a if k != "run_id")
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(identical, a, b))
    return a == b


def stop_at(patch: pytest.MonkeyPatch, *steps: int):
    """Let Ctrl-C come within these steps (from 0), each once."""
    left, get_lr = list(steps), optimizer.get_lr

    def interrupted(step: int, s: TrainSettings) -> float:
        if step in left:
            left.remove(step)
            os.kill(os.getpid(), signal.SIGINT)
        return get_lr(step, s)

    patch.setattr(train, "get_lr", interrupted)


# ---- the schedule and the optimizer


@pytest.mark.parametrize(
    ("words", "step", "expected"),
    [
        ([], 0, 1 / 11),
        ([], 9, 10 / 11),
        ([], 10, 1.0),
        ([], 55, 0.05 + 0.95 / 2),  # half way down
        ([], 100, 0.05),
        (["--min_lr=0"], 100, 0.0),
        (["--lr_decay_iters=50"], 80, 0.05),
        (["--decay_lr=False"], 0, 1.0),
    ],
)
def test_the_learning_rate(words: list[str], step: int, expected: float):
    s = settings("--max_iters=100", "--learning_rate=1", "--warmup_iters=10", *words)
    assert optimizer.get_lr(step, s) == pytest.approx(expected)


def test_each_parameter_is_in_one_group_and_only_matrices_are_decayed():
    model = GPT(GPTConfig(n_layer=2, n_head=2, n_embd=16, bias=True, pos="learned + t5"))
    words = ["--weight_decay=0.3", "--optimizer=adamw"]
    [adamw] = optimizer.configure_optimizers(model, settings(*words), None)
    decay, norms, scheme = adamw.param_groups
    rest = norms["params"] + scheme["params"]
    names = {id(p): name for name, p in model.named_parameters()}
    assert [group["weight_decay"] for group in adamw.param_groups] == [0.3, 0.0, 0.0]
    assert sorted(map(id, decay["params"] + rest)) == sorted(names)
    for p in decay["params"]:
        assert p.dim() == 2 and not names[id(p)].startswith("pos.")
    for p in rest:
        assert p.dim() < 2 or names[id(p)].startswith("pos.")


def test_muon_has_the_matrices_of_the_blocks_and_adamw_all_else():
    model = GPT(GPTConfig(n_layer=2, n_head=2, n_embd=16, bias=True, pos="learned + t5 + fox"))
    adamw, muon = optimizer.configure_optimizers(model, settings(), None)
    names = {id(p): name for name, p in model.named_parameters()}
    matrices = [names[id(p)] for p in muon.param_groups[0]["params"]]
    assert len(matrices) == 2 * 4 and all(name.startswith("h.") for name in matrices)
    rest = [names[id(p)] for group in adamw.param_groups for p in group["params"]]
    assert sorted(matrices + rest) == sorted(names.values())


def test_muon_takes_the_step_of_torch():
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(shape, generator=generator) for shape in [(48, 16), (16, 48)] * 2]
    ours = [torch.nn.Parameter(w.clone()) for w in weights]
    theirs = [torch.nn.Parameter(w.clone()) for w in weights]
    muon = Muon({p: (1, [len(p)]) for p in ours}, 1e-2, 0.1, torch.bfloat16)
    reference = torch.optim.Muon(theirs, 1e-2, 0.1, adjust_lr_fn="match_rms_adamw")
    for _ in range(3):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn(a.shape, generator=generator)
            b.grad = a.grad.clone()
        muon.step()
        reference.step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)
    assert muon.state_dict()["state"].keys() == reference.state_dict()["state"].keys()


@pytest.mark.parametrize(
    "options",
    [
        {"n_head": 4},
        {"n_head": 4, "n_kv_head": 2, "mlp": "swiglu"},
        {"n_head": 2, "kv_lora_rank": 8, "qk_rope_head_dim": 4},
        {"n_head": 2, "kv_lora_rank": 8, "pos": "alibi"},
    ],
)
def test_muon_treats_fused_matrices_as_the_ones_they_are(options: dict):
    """As torch's Muon does matrices of their own."""
    config = GPTConfig(**{"n_layer": 1, "n_embd": 16, "pos": "rope", "block_size": 8} | options)
    torch.manual_seed(0)
    model = GPT(config)
    _, muon = optimizer.configure_optimizers(model, settings("--optimizer=muon"), torch.bfloat16)
    attn, mlp = model.h[0].attn, model.h[0].mlp
    rows = torch.arange  # of a matrix, which belong to each of those in it
    expected = {p: [rows(len(p))] for p in muon.param_groups[0]["params"]}
    if config.mlp == "swiglu":
        expected[mlp.c_fc.weight] = rows(2 * config.mlp_width).split(config.mlp_width)
    if config.kv_lora_rank:
        widths = [config.kv_lora_rank, config.qk_rope_head_dim]
        expected[attn.c_latent.weight] = rows(sum(widths)).split(widths)
        of_heads = rows(32).view(config.n_head, 2, -1)  # keys and values in turn
        expected[attn.c_up.weight] = [of_heads[:, 0].flatten(), of_heads[:, 1].flatten()]
    else:
        width = 4 * config.kv_heads
        expected[attn.c_attn.weight] = rows(16 + 2 * width).split([16, width, width])
    pairs = []
    for p, parts in expected.items():
        pairs += [(p, part, torch.nn.Parameter(p.detach()[part])) for part in parts if len(part)]
    theirs = [parameter for _, _, parameter in pairs]
    rate, decay = muon.defaults["lr"], muon.defaults["weight_decay"]
    reference = torch.optim.Muon(theirs, rate, decay, adjust_lr_fn="match_rms_adamw")
    for _ in range(2):
        for p in expected:
            p.grad = torch.randn(p.shape)
        for p, part, parameter in pairs:
            parameter.grad = p.grad[part].clone()
        muon.step()
        reference.step()
    for p, part, parameter in pairs:
        torch.testing.assert_close(p[part], parameter, atol=1e-5, rtol=0)


def test_normuon_is_the_algorithm_of_the_paper():
    """That of Li et al. 2025, a matrix at a time."""
    torch.manual_seed(0)
    shapes = {(24, 16): [24], (16, 24): [16], (48, 16): [16, 16, 16]}
    ours = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    normuon = Muon(
        {p: (1, widths) for p, widths in zip(ours, shapes.values(), strict=True)},
        lr=1e-2,
        weight_decay=0.1,
        dtype=torch.float32,
        momentum=0.9,
        beta2=0.95,
    )
    theirs = [part.detach().clone() for p in ours for part in p.split(normuon.matrices[p][1])]
    momenta = [torch.zeros_like(w) for w in theirs]
    squares = [torch.zeros(len(w)) for w in theirs]
    for _ in range(5):
        gradients = [torch.randn_like(p) for p in ours]
        for p, gradient in zip(ours, gradients, strict=True):
            p.grad = gradient.clone()
        normuon.step()
        parts = [
            part
            for p, gradient in zip(ours, gradients, strict=True)
            for part in gradient.split(normuon.matrices[p][1])
        ]
        for n, gradient in enumerate(parts):
            momenta[n] = 0.9 * momenta[n] + 0.1 * gradient
            nesterov = 0.9 * momenta[n] + 0.1 * gradient
            direction = optimizer.orthogonalise(nesterov[None], 5)[0]
            squares[n] = 0.95 * squares[n] + 0.05 * (direction**2).mean(1)
            direction = direction / (squares[n].sqrt()[:, None] + 1e-12)
            rate = 0.2 * 1e-2 * math.sqrt(direction.numel()) / direction.norm()
            theirs[n] = theirs[n] - 1e-2 * 0.1 * theirs[n] - rate * direction
    actual = torch.cat([p.detach().flatten() for p in ours])
    expected = torch.cat([w.flatten() for w in theirs])
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)


# ---- going on


@pytest.mark.parametrize(
    "words",
    [
        DRAWING,
        [*DRAWING, "--dtype=bfloat16"],
        [*DRAWING, "--dtype=float16"],  # with a scaler
        ["--pos=rope | nope", "--n_layer=2"],
        ["--pos=t5", "--drop_pos=0.5"],
        ["--pos=shape", "--beta2=0.9"],
        pytest.param(["--compile=True", *DRAWING], marks=pytest.mark.slow),
    ],
)
def test_a_run_stopped_twice_ends_like_one_that_was_not(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    assert run(*words, "--out_dir=straight") == 0
    stop_at(monkeypatch, 2, 4)
    codes = [run(*words, "--out_dir=stopped") for _ in range(3)]
    assert codes == [130, 130, 0]
    assert capsys.readouterr().out.count("the same command resumes") == 2
    assert identical(saved("stopped"), saved("straight"))
    # a stop validates, and writes no line of its own
    assert metrics("stopped") == metrics("straight")
    a, b = (read_json(Path(name, "extrapolation.json"))["rows"] for name in ("stopped", "straight"))
    assert [row["nats"] for row in a] == [row["nats"] for row in b]


def test_a_run_that_is_tested_on_its_way_ends_like_one_that_is_not(
    capsys: pytest.CaptureFixture,
):
    run(*DRAWING, "--out_dir=straight")
    capsys.readouterr()
    run(*DRAWING, "--out_dir=tested", "--test_at=2,4")
    assert identical(saved("tested"), saved("straight"))
    assert "unfinished" not in capsys.readouterr().out.rsplit("fixed_targets at", 1)[1]
    rows = load_rows("tested")
    last = rows.step.max()
    assert sorted(set(rows.step)) == [2, 4, last]
    at_L = rows[(rows.protocol == "fixed_targets") & (rows.length == rows.block_size)]
    assert at_L.nats.nunique() == 3 and at_L.checkpoint.nunique() == 3
    assert select(rows).step.unique() == last


def test_after_ctrl_c_tables_say_that_the_run_is_not_finished(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    stop_at(monkeypatch, 1)
    assert run("--out_dir=run") == 130
    assert load_run("run").step < load_run("run").settings.max_iters
    capsys.readouterr()
    assert call(evaluate, "run", "--eval_lengths=8,16", "--device=cpu") == 0
    assert "unfinished" in capsys.readouterr().out
    assert opened("--out_dir=run").finished_result() is None


def test_ctrl_c_in_the_test_keeps_the_model_and_the_same_command_only_tests(
    monkeypatch: pytest.MonkeyPatch,
):
    def interrupted(*_: object) -> dict:
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("not reached")

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("measure.extrapolation.extrapolation", interrupted)
        run("--out_dir=run")
    assert not Path("run/extrapolation.json").exists()
    before = checkpoint_paths(Path("run"))
    assert run("--out_dir=run") == 0 and checkpoint_paths(Path("run")) == before
    assert Path("run/extrapolation.json").exists()


def test_ctrl_c_that_ends_the_reader_of_the_output_too_still_saves(
    monkeypatch: pytest.MonkeyPatch,
):
    def closed(*_: object):
        raise BrokenPipeError

    stop_at(monkeypatch, 0)
    monkeypatch.setattr(train.tqdm, "write", closed)
    with pytest.raises(BrokenPipeError):
        run("--out_dir=run")
    assert load_run("run").step == 1


def test_a_finished_run_prints_its_table_and_other_lengths_are_tested_without_training(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    assert run("--out_dir=run") == 0
    table = capsys.readouterr().out.split("nats per byte")[-1]
    stamp = {path: path.stat().st_mtime_ns for path in Path("run").iterdir()}
    monkeypatch.setattr(train, "start_run", None)
    assert run("--out_dir=run") == 0
    assert capsys.readouterr().out.split("nats per byte")[-1] == table
    assert {path: path.stat().st_mtime_ns for path in Path("run").iterdir()} == stamp
    monkeypatch.undo()
    assert call(evaluate, "run", "--diagnose=True", "--device=cpu") == 0
    assert "entropy" in capsys.readouterr().out
    for asked in ("--eval_lengths=8,16,64", "--eval_windows=128"):
        assert run("--out_dir=run", asked) == 0
        out = capsys.readouterr().out
        assert f"fixed_targets at {16 if '128' in asked else 64}" in out and "step 1/8" not in out


def test_a_run_of_a_constant_rate_that_is_made_longer_equals_one_planned_so():
    words = ["--decay_lr=False", *DRAWING]
    run(*words, "--max_iters=8", "--out_dir=planned")
    run(*words, "--max_iters=4", "--out_dir=longer")
    assert run(*words, "--max_iters=8", "--out_dir=longer") == 0
    assert identical(saved("planned"), saved("longer"))
    with pytest.raises(UserError, match="8 steps"):
        run(*words, "--max_iters=4", "--out_dir=longer")


def test_a_test_before_positions_are_dropped_is_one_with_positions():
    run("--max_iters=8", "--pos=rope", "--drop_pos=0.5", "--test_at=2,4,6", "--out_dir=run")
    rows = load_rows("run")
    found = rows.groupby("step").pos.agg(set).to_dict()
    assert found == {2: {"rope"}, 4: {"rope"}, 6: {"rope (dropped)"}, 8: {"rope (dropped)"}}
    assert set(rows.label[rows.step < 6].str.contains("dropped")) == {False}


def test_another_schedule_says_so_and_one_that_follows_from_the_length_is_refused(
    capsys: pytest.CaptureFixture,
):
    run("--max_iters=4", "--out_dir=run")
    assert run("--max_iters=8", "--out_dir=run") == 0
    assert "planned for 4 steps, from here on with the schedule of 8" in capsys.readouterr().out
    assert load_result("run").planned_before == 4
    run("--max_iters=4", "--decay_lr=False", "--out_dir=constant")
    run("--max_iters=8", "--decay_lr=False", "--out_dir=constant")
    assert load_result("constant").planned_before is None  # as if it had been planned
    run("--max_iters=4", "--drop_pos=0.5", "--out_dir=dropped")
    with pytest.raises(UserError, match="max_iters: 4 in the folder, 8 asked for"):
        run("--max_iters=8", "--drop_pos=0.5", "--out_dir=dropped")


# ---- who a run is


def test_a_folder_of_another_run_is_refused_with_the_differences_and_overwrite_starts_anew() -> (
    None
):
    run("--out_dir=run")
    content = Path("run/config.json").read_text()
    with pytest.raises(UserError, match="seed: 1337 in the folder, 2 asked for.*--overwrite"):
        run("--out_dir=run", "--seed=2")
    with pytest.raises(
        UserError, match="dtype: 'float32' in the folder, 'bfloat16' asked for.*--overwrite"
    ):
        run("--out_dir=run", "--dtype=bfloat16")
    assert Path("run/config.json").read_text() == content
    assert run("--out_dir=run", "--seed=2", "--overwrite=True", "--max_iters=4") == 0
    assert read_config("run")["settings"]["seed"] == 2
    assert [p.name.split("-")[1] for p in checkpoint_paths(Path("run"))] == ["4"]


def test_a_file_of_extend_is_read_where_it_was_named_and_copied_into_the_run():
    """An overwritten run reads the file anew; a fine-tune has that of the run it starts from."""
    extend = "--extend=longrope(file='mine/f.json')"
    Path("mine").mkdir()
    for first in (1.5, 2.5):
        factors = json.dumps({"long_factor": [first, 2, 3, 4]})
        Path("mine/f.json").write_text(factors, encoding="utf-8")
        Path("f.json").write_text("of something else", encoding="utf-8")
        run("--pos=rope", extend, "--out_dir=run", "--overwrite=True")
        assert Path("run/files/f.json").read_text(encoding="utf-8") == factors
    shutil.rmtree("mine")
    run("--init_from=run", extend, "--out_dir=tuned")
    assert Path("tuned/files/f.json").read_text(encoding="utf-8") == factors


def test_a_fine_tune_knows_the_weights_that_it_started_from():
    for seed in (1, 2):
        run(f"--seed={seed}", f"--out_dir=base{seed}")
        run(f"--seed={seed}", f"--init_from=base{seed}", f"--out_dir=tuned{seed}")
        run(f"--seed={seed}", f"--init_from=tuned{seed}", f"--out_dir=again{seed}")
    for name in ("tuned", "again"):
        assert load_rows([f"{name}1", f"{name}2"]).label.nunique() == 1
    assert load_rows(["tuned1", "again2"]).label.nunique() == 2
    run("--seed=2", "--max_iters=10", "--out_dir=base2")  # the base is trained on
    with pytest.raises(UserError, match="the weights of base2 have changed since"):
        run("--seed=2", "--init_from=base2", "--out_dir=tuned2")
    assert run("--seed=2", "--init_from=base2", "--out_dir=tuned2", "--overwrite=True") == 0
    assert load_rows(["tuned1", "tuned2"]).label.nunique() == 2
    words = ["tuned1", "tuned2", "--extend=all", "--device=cpu"]
    with pytest.raises(UserError, match="tuned1, tuned2 started from different models"):
        call(evaluate, *words)


def test_bases_of_other_schedules_are_other_models():
    """Eight steps planned, or four that went on to eight."""
    run("--seed=1", "--max_iters=4", "--out_dir=base1")
    run("--seed=1", "--max_iters=8", "--out_dir=base1")
    run("--seed=2", "--max_iters=8", "--out_dir=base2")
    run("--seed=3", "--max_iters=8", "--out_dir=base3")
    for seed in (1, 2, 3):
        run(f"--seed={seed}", f"--init_from=base{seed}", f"--out_dir=tuned{seed}")
    labels = load_rows([f"tuned{seed}" for seed in (1, 2, 3)]).groupby("run").label.first()
    assert labels["tuned2"] == labels["tuned3"] != labels["tuned1"]


def test_a_fine_tune_with_an_inherited_file_goes_on_when_that_is_edited():
    """It has that of the run it starts from; file names may have spaces and colons."""
    name = "my: f.json"
    for first in (1.5, 2.5):
        Path(name).write_text(json.dumps({"long_factor": [first, 2, 3, 4]}))
        if first == 1.5:
            run("--pos=rope", f"--extend=longrope(file='{name}')", "--out_dir=run")
        for _ in range(2):  # the second prints the table
            assert run("--init_from=run", "--out_dir=tuned") == 0
    assert read_json(Path("tuned/files", name))["long_factor"][0] == 1.5
    assert load_rows(["run", "tuned"]).run.nunique() == 2


def test_an_edited_file_of_an_option_is_another_run():
    def write(first):
        Path("f.json").write_text(json.dumps({"long_factor": [first, 2, 3, 4]}))

    words = ["--pos=rope", "--extend=longrope(file='f.json')", "--out_dir=run"]
    write(1.5)
    assert run(*words) == 0
    write(2.5)
    with pytest.raises(UserError, match="holds another run .f.json, which defines its scheme, has"):
        run(*words)
    write(1.5)
    assert run(*words) == 0  # prints its table
    Path("f.json").unlink()  # the run has a copy
    assert run(*words) == 0


def test_two_files_of_one_name_are_refused():
    """Their copies in the run's folder would be one."""
    for folder, first in (("a", 1.5), ("b", 2.5)):
        Path(folder).mkdir()
        content = json.dumps({"long_factor": [first, 2, 3, 4]})
        Path(folder, "f.json").write_text(content)
    extend = "--extend=longrope(file='a/f.json') | longrope(file='b/f.json')"
    with pytest.raises(UserError, match="two files are called f.json: rename one of them"):
        run("--pos=rope", extend, "--n_layer=2", "--out_dir=run")
    assert not Path("run").exists()


def test_a_fine_tune_on_other_tokens_is_refused_before_a_folder_is_made():
    run("--out_dir=run")
    with pytest.raises(UserError, match="char has another tokenizer than tiny, which run was"):
        run("--init_from=run", "--dataset=char", "--out_dir=tuned")
    assert not Path("tuned").exists()


def test_a_fine_tune_needs_the_corpus_of_its_run_no_longer(corpora):
    shutil.copytree(corpora / "tiny", corpora / "gone")
    meta = corpora / "gone/meta.json"
    meta.write_text(meta.read_text().replace('"tiny"', '"gone"'))
    run("--out_dir=run", "--dataset=gone")
    shutil.rmtree(corpora / "gone")
    assert run("--init_from=run", "--dataset=other", "--out_dir=tuned") == 0


def test_a_file_that_is_typed_is_read_not_that_of_the_run_it_starts_from():
    for name, first in (("one", 1.5), ("two", 2.5)):
        Path(name).mkdir()
        factors = json.dumps({"long_factor": [first, 2, 3, 4]})
        Path(f"{name}/f.json").write_text(factors, encoding="utf-8")
    run("--pos=rope", "--extend=longrope(file='one/f.json')", "--out_dir=run")
    run("--init_from=run", "--extend=longrope(file='two/f.json')", "--out_dir=tuned")
    assert read_json(Path("tuned/files/f.json"))["long_factor"][0] == 2.5


def test_code_that_changed_since_a_run_began_is_named(capsys: pytest.CaptureFixture):
    run("--out_dir=run")
    capsys.readouterr()
    run("--out_dir=run")
    assert "changed" not in capsys.readouterr().out
    config = read_json(Path("run/config.json"))
    config["code_sha256"] |= {"model.py": "0", "train.py": "0"}
    write_json(Path("run/config.json"), config)
    run("--out_dir=run")
    assert "note: model.py, train.py changed since this run began" in capsys.readouterr().out
    config["code_sha256"] = {"gone.py": "0"}  # of a version that had such a file
    write_json(Path("run/config.json"), config)
    load_run("run")
    assert "note: gone.py has changed since run was trained" in capsys.readouterr().err


def test_a_run_on_a_task_is_finished_when_all_its_sizes_are_tested(
    monkeypatch: pytest.MonkeyPatch,
):
    run("--out_dir=run")
    asked = opened("--out_dir=run").settings
    path = Path("run/extrapolation.json")
    result = read_json(path)
    rows = [row for row in result["rows"] if row["protocol"] == "fixed_targets"]
    result["rows"] = [row | {"protocol": "exact_match", "windows": 3000} for row in rows]
    path.write_text(json.dumps(result), encoding="utf-8")
    sizes = [(row["length"], 3000, 9) for row in rows]
    corpus = load_corpus("tiny")
    corpus.meta["rows"] = {"trained": 16, "sizes": sizes}
    every = replace(asked, eval_lengths=())
    with monkeypatch.context() as patch:
        patch.setattr("run.folder.load_corpus", lambda _: corpus)
        assert RunFolder.open(every).finished_result()
        sizes.append((1000, 3000, 9))
        assert RunFolder.open(every).finished_result() is None
        assert RunFolder.open(asked).finished_result()  # with --eval_lengths, without 1000


def test_a_scheme_that_was_edited_is_another_run_and_a_baseline_does_not_mind():
    Path("mine.py").write_text(OWN.format(rate=1))
    for pos in ("root", "alibi"):
        assert run(f"--pos={pos}", "--pos_file=mine.py") == 0
    names = ["root-tiny-L16-s1337", "alibi-tiny-L16-s1337"]
    root, alibi = sorted(Path("out").iterdir(), key=lambda path: "alibi" in path.name)
    assert [path.name.rpartition("-")[0] for path in (root, alibi)] == names
    own = ["--pos=root", "--pos_file=./mine.py"]  # the same file
    baseline = ["--pos=alibi", "--pos_file=./mine.py"]
    assert opened(*own).path == root and opened(*own).finished_result()
    with pytest.raises(
        UserError, match="pos_file: 'mine.py' in the folder, '' asked"
    ):  # by which formula?
        run("--pos=root")
    with pytest.raises(UserError, match="--pos_file=.*pos_file.py if you trust it"):
        load_run(root)
    assert load_run(root, pos_file="mine.py").settings.pos == "root"
    Path("mine.py").write_text(OWN.format(rate=2))
    assert opened(*own).finished_result() is None
    assert opened(*baseline).finished_result() and load_run(alibi).settings.pos == "alibi"
    for attempt in (
        lambda: run("--pos=root", "--pos_file=mine.py"),
        lambda: load_run(root, pos_file="mine.py"),
        lambda: call(evaluate, str(root), "--pos_file=mine.py"),
    ):
        with pytest.raises(UserError, match="mine.py.*changed.*--overwrite=True"):
            attempt()
    assert load_run(root, pos_file=f"{root}/pos_file.py")  # the copy
    assert run("--pos=root", "--pos_file=mine.py", "--overwrite=True") == 0
    assert load_run(root, pos_file="mine.py")


def test_a_scheme_of_ones_own_is_examined_and_its_later_errors_are_one_sentence():
    Path("mine.py").write_text(OWN.format(rate=1), encoding="utf-8")
    assert run("--pos=root", "--pos_file=mine.py", "--examine=True", "--out_dir=run") == 0
    late = OWN.format(rate=1).replace("return", "[][0]\n        return")
    Path("late.py").write_text(late, encoding="utf-8")
    with pytest.raises(UserError, match="late.py.*bias in line.*IndexError"):
        run("--pos=root", "--pos_file=late.py", "--out_dir=late")


def test_a_zoo_file_that_was_edited_refuses_the_runs_that_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run("--pos=kerple", "--out_dir=kerple")
    run("--pos=rope", "--out_dir=rope")
    shutil.copytree(REPOSITORY / "zoo", tmp_path / "zoo")
    shutil.copy(REPOSITORY / "posenc.py", tmp_path)
    with (tmp_path / "zoo/kerple.py").open("a") as file:
        file.write("# another formula\n")
    monkeypatch.setattr("run.folder.ROOT", tmp_path)
    assert load_run("rope")
    with pytest.raises(UserError, match="kerple.py.*has changed.*--overwrite=True"):
        load_run("kerple")
    assert opened("--pos=kerple", "--out_dir=kerple").finished_result() is None


def test_a_run_does_not_go_on_with_a_corpus_that_has_changed(
    monkeypatch: pytest.MonkeyPatch,
):
    stop_at(monkeypatch, 2)
    run("--out_dir=run")
    monkeypatch.setattr("run.folder.corpus_digests", lambda corpus: {"train": "x", "val": "y"})
    with pytest.raises(UserError, match="tiny has changed"):
        run("--out_dir=run")


# ---- the number format


def test_a_run_keeps_the_number_format_that_was_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    words = [word for word in SIZE if "dtype" not in word]
    monkeypatch.setattr(device, "cpu_has_bfloat16", lambda: True)

    def rates(bfloat16: float):
        measured = {"bfloat16": bfloat16, "float32": 100.0}
        monkeypatch.setattr(device, "measured_rates", lambda *_: measured)

    rates(105.0)  # within 10 % float32 is taken
    stop_at(monkeypatch, 3)
    assert call(train, *words, "--out_dir=run") == 130
    assert "measured: bfloat16 105, float32 100 GFLOP/s" in capsys.readouterr().out
    config = read_config("run")
    assert config["dtype"] == "float32"
    rates(200.0)  # another machine
    assert call(train, *words, "--out_dir=run") == 0
    assert {row["dtype"] for row in read_json(Path("run/extrapolation.json"))["rows"]} == {
        "float32"
    }
    assert load_run("run").compute.dtype_name == "float32"
    assert load_run("run", dtype="bfloat16").compute.dtype_name == "bfloat16"
    assert call(train, *words, "--out_dir=other") == 0
    assert read_config("other")["dtype"] == "bfloat16"


# ---- fine-tuning


def test_a_fine_tune_has_the_size_corpus_and_length_of_its_run_and_an_order_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
):
    run("--dataset=other", "--pos=alibi", "--out_dir=base")
    few = "--max_iters=4 --batch_size=2 --compile=False --device=cpu --eval_lengths=8,16".split()
    few += ["--examine=False", "--init_from=base", "--eval_iters=1"]
    orders = []
    batch = batches.batch
    monkeypatch.setattr(batches, "batch", lambda *args: orders.append(args[2]) or batch(*args))
    assert call(train, *few, "--out_dir=tuned") == 0
    tuned = load_run("tuned")
    s = tuned.settings
    assert (s.dataset, s.block_size, s.n_embd, s.pos) == ("other", 16, 16, "alibi")
    assert tuned.config["train_lengths"] == [16, 16]
    assert set(orders) != {1337} and len(set(orders)) == 1
    # a fine-tune of a fine-tune, four times as long
    again = ["--init_from=tuned", "--block_size=64", "--extend=slopes", "--out_dir=again"]
    assert call(train, *few, *again) == 0
    longer = load_run("again")
    assert (longer.settings.block_size, longer.model.config.first_length) == (64, 16)
    assert longer.config["train_lengths"] == [16, 16, 64] and len(set(orders)) == 2
    assert longer.model.pos.extend_text.startswith("slopes")
    # another corpus where it is typed; a size of its own is refused
    assert call(train, *few, "--dataset=tiny", "--out_dir=third") == 0
    assert load_run("third").settings.dataset == "tiny"
    for words, sentence in (
        (["--n_embd=32"], "n_embd=16: leave it out"),
        (["--dataset=char"], "another tokenizer"),
    ):
        with pytest.raises(UserError, match=sentence):
            call(train, *few, *words, "--out_dir=fourth")


def test_a_fine_tune_starts_with_the_weights_of_its_run_and_resumes_to_the_bit(
    monkeypatch: pytest.MonkeyPatch,
):
    run("--out_dir=base", "--max_iters=4")
    words = ["--init_from=./base/", "--extend=pi", "--block_size=32", "--learning_rate=0.1"]
    words = [*(word for word in SIZE if not word.startswith("--block_size")), *words]
    assert call(train, *words, "--max_iters=0", "--out_dir=zero") == 0
    assert identical(saved("zero")["model"], saved("base")["model"])
    assert call(train, *words, "--out_dir=straight") == 0
    stop_at(monkeypatch, 2)
    assert [call(train, *words, "--out_dir=stopped") for _ in range(2)] == [130, 0]
    assert identical(saved("straight"), saved("stopped"))


# ---- what is written


def test_a_run_folder_has_what_repeats_the_run(monkeypatch: pytest.MonkeyPatch):
    run("--out_dir=run", "--pos=fire")
    config = read_config("run")
    for name in ("command", "versions", "device", "dtype", "code_sha256", "corpus_sha256"):
        assert config[name]
    assert config["files_sha256"]["zoo/fire.py"] == sha256(REPOSITORY / "zoo/fire.py")
    assert config["parameters"] == load_run("run").model.parameter_count
    lines = logged("run")
    assert [line["step"] for line in lines] == list(range(1, 9))
    named = {"step", "tokens", "loss", "lr", "grad_norm", "tokens_per_s", "mfu", "memory"}
    assert all(named <= line.keys() for line in lines)
    assert [line["step"] for line in lines if "val_loss" in line] == [4, 8]
    assert lines[-1]["tokens"] == 8 * 4 * 16
    assert saved("run")["step"] == 8 and saved("run")["gpt"]["block_size"] == 16


def test_the_loss_falls_and_validation_reads_the_same_text_every_time():
    run(
        "--out_dir=run", "--max_iters=60", "--learning_rate=0.02", "--pos=alibi", "--warmup_iters=5"
    )
    losses = [line["loss"] for line in logged("run")]
    assert losses[0] == pytest.approx(math.log(256), abs=0.1) and losses[-1] < losses[0] - 2
    trained = load_run("run", "cpu")
    assert train.estimate_loss(trained) == train.estimate_loss(trained)
    assert train.estimate_loss(trained) == pytest.approx(logged("run")[-1]["val_loss"], abs=1e-5)


class Reads(TorchDispatchMode):
    """Counts how often a number is read from a tensor: a GPU finishes its work before each."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


def test_a_validation_reads_one_number_however_many_batches_it_has():
    run("--out_dir=run", "--max_iters=2", "--warmup_iters=1", "--eval_iters=5")
    trained = load_run("run", "cpu")
    with Reads() as reads:
        loss = train.estimate_loss(trained)
    assert reads.count == 1 and 5 < loss < 6


def test_a_loss_that_is_no_number_stops_and_the_last_good_checkpoint_stays():
    with pytest.raises(UserError, match="loss (nan|inf)"):
        run("--out_dir=run", "--learning_rate=1e30", "--grad_clip=0", "--decay_lr=False")
    assert diverged("run") and not checkpoint_paths(Path("run"))
    assert not diverged("nothing")


def test_accumulated_micro_batches_are_one_batch():
    run("--out_dir=one", "--batch_size=8")
    run("--out_dir=two", "--batch_size=4", "--gradient_accumulation_steps=2")
    one, two = (
        torch.cat([w.flatten() for w in saved(f)["model"].values()]) for f in ("one", "two")
    )
    assert torch.allclose(one, two, atol=1e-5)


ASKED = "--dataset=asked --block_size=32 --eval_lengths=32 --eval_windows=64".split()


@pytest.fixture
def asked(corpora: Path, monkeypatch: pytest.MonkeyPatch):
    """A corpus of rows with questions: of those of 32 tokens, half have no target, others 1 to 3."""
    monkeypatch.setattr(recall, "TRAIN_TOKENS", {"noise": 2**14})
    recall.prepare(corpora / "asked", longest=512, trained=128)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_loss_of_a_step_is_the_mean_over_all_its_targets(dtype: str, asked: None):
    words = [*ASKED, f"--dtype={dtype}", "--max_iters=3"]
    run(*words, "--batch_size=8", "--out_dir=one")
    run(*words, "--batch_size=2", "--gradient_accumulation_steps=4", "--out_dir=four")
    one, four = (metrics(folder) for folder in ("one", "four"))
    _, targets = batches.batch(load_corpus("asked"), 32, 1337, 0, 8)
    counts = [int((part >= 0).sum()) for part in torch.tensor(targets).split(2)]
    assert 0 in counts and len(set(counts)) > 2
    tolerance = 1e-6 if dtype == "float32" else 1e-3
    for name in ("loss", "grad_norm"):
        assert four[0][name] == pytest.approx(one[0][name], rel=tolerance), name
        assert four[2][name] == pytest.approx(one[2][name], rel=100 * tolerance), name


def test_the_loss_of_the_first_step_is_that_of_the_model(asked: None):
    run(*ASKED, "--batch_size=8", "--out_dir=none", "--max_iters=0", "--grad_clip=0")
    model = load_run("none", "cpu").model
    x, y = (torch.from_numpy(z) for z in batches.batch(load_corpus("asked"), 32, 1337, 0, 8))
    loss = model(x, y)[1]
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), math.inf)
    run(*ASKED, "--batch_size=2", "--gradient_accumulation_steps=4", "--grad_clip=0")
    (folder,) = Path("out").iterdir()
    first = logged(folder)[0]
    assert first["loss"] == pytest.approx(float(loss.detach()), rel=1e-6)
    assert first["grad_norm"] == pytest.approx(float(norm), rel=1e-6)


def test_a_step_without_any_target_has_no_loss_and_harms_nothing(asked: None):
    assert run(*ASKED, "--batch_size=1", "--eval_iters=9", "--out_dir=run") == 0
    empty = [line for line in logged("run") if line["loss"] is None]
    assert empty and all(line["reason"] == "no targets in the step" for line in empty)
    assert all(w.isfinite().all() for w in saved("run")["model"].values())
    all_strict("run")
    with pytest.raises(UserError, match="no validation sequence has a target: raise block_size"):
        run(*ASKED, "--batch_size=1", "--block_size=2", "--eval_lengths=2", "--out_dir=two")
    assert not Path("two").exists()


def not_strict(name: str):
    raise AssertionError(f"{name} is not JSON")


def all_strict(folder: str):
    """Read every line of every file of JSON in a folder as strict JSON."""
    for path in Path(folder).rglob("*.json*"):
        text = path.read_text(encoding="utf-8")
        for part in text.splitlines() if path.suffix == ".jsonl" else [text]:
            json.loads(part, parse_constant=not_strict)


@pytest.mark.parametrize("name", ["wte.weight", "h.0.attn.c_attn.weight"])
def test_where_float16_overflows_no_optimizer_steps(name: str, monkeypatch: pytest.MonkeyPatch):
    """The gradient of one parameter, of AdamW or of Muon, overflows in the second step."""
    configure_optimizers = optimizer.configure_optimizers
    calls = []

    def overflows(gradient: torch.Tensor) -> torch.Tensor:
        calls.append(gradient)
        return gradient * math.inf if len(calls) == 2 else gradient

    def hooked(model: GPT, *others: object) -> list:
        model.get_parameter(name).register_hook(overflows)
        return configure_optimizers(model, *others)

    monkeypatch.setattr(train, "configure_optimizers", hooked)
    words = ["--dtype=float16", "--optimizer=muon", "--grad_clip=0", "--decay_lr=False"]
    run(*words, "--max_iters=1", "--out_dir=run")
    before = saved("run")
    run(*words, "--max_iters=2", "--out_dir=run")
    after = saved("run")
    assert identical(before["model"], after["model"])
    assert identical(before["optimizers"], after["optimizers"])
    assert after["scaler"]["scale"] == before["scaler"]["scale"] / 2
    line = logged("run")[1]
    assert line["grad_norm"] is None and line["reason"].endswith("float16 skips the step")
    assert math.isfinite(line["loss"]) and not diverged("run")
    all_strict("run")
    run(*words, "--max_iters=3", "--out_dir=run")
    assert not identical(after["model"], saved("run")["model"])


def test_lines_of_older_runs_become_strict_when_they_go_on():
    run("--max_iters=2", "--decay_lr=False", "--out_dir=run")
    path = Path("run/metrics.jsonl")
    lines = path.read_text(encoding="utf-8").replace('"mfu": null', '"mfu": NaN')
    path.write_text(lines, encoding="utf-8")
    run("--max_iters=3", "--decay_lr=False", "--out_dir=run")
    all_strict("run")
    assert [line["step"] for line in logged("run")] == [1, 2, 3]


def test_a_step_reads_its_own_sequences_and_each_once(monkeypatch: pytest.MonkeyPatch):
    numbers = []
    batch = batches.batch

    def recorded(corpus: object, length: int, seed: int, first: int, count: int, *more) -> tuple:
        numbers.extend(range(first, first + count))
        return batch(corpus, length, seed, first, count, *more)

    monkeypatch.setattr(batches, "batch", recorded)
    run("--out_dir=run", "--gradient_accumulation_steps=2")
    assert numbers == list(range(8 * 2 * 4))


# ---- operations


def operations(pos: str, length: int, **options: object) -> int:
    return flops_per_token(GPT(GPTConfig(pos=pos, block_size=length, **options)), length)


def test_operations_are_those_of_nanogpt_and_of_the_keys_that_masks_show():
    model = GPT(GPTConfig(pos="rope", block_size=1024))
    dense = 6 * (model.parameter_count - sum(p.numel() for p in model.ln_f.parameters()))
    attention = 12 * 4 * 128 * 1024  # 4 layers of 128, as nanoGPT counts, without causality
    assert operations("rope", 1024) == dense + attention
    causal = 1024 * 1025 / 2
    shown = causal - (1024 - 128) * (1024 - 128 + 1) / 2  # of a window of 128
    for pos, layers in (("window(size=128) + rope", 4), ("window(size=128) + rope | rope", 2)):
        expected = dense + attention * (1 - layers / 4 * (1 - shown / causal))
        assert operations(pos, 1024) == pytest.approx(expected, abs=1)
    assert operations("window(size=128) + rope | rope", 1024, n_layer=1) < operations("rope", 1024)
    # of a longer text, some of the queries
    shown = 128 * (8192 - 128) + 128 * 129 / 2
    expected = dense + 8 * attention * shown / (8192 * 8193 / 2)
    assert operations("window(size=128) + rope", 8192) == pytest.approx(expected, rel=1e-3)
    latent = dict(kv_lora_rank=32, qk_rope_head_dim=16)  # compared, and not in the values
    turned = operations("rope", 256, **latent) - operations("rope", 128, **latent)
    assert turned == 6 * 4 * 4 * (32 + 16 + 32) * 128
    model.pos.extend("window(size=128)")
    assert flops_per_token(model, 1024) == operations("window(size=128) + rope", 1024)
    model.drop_positions()
    assert flops_per_token(model, 1024) == operations("rope", 1024)


# ---- Weights & Biases


class FakeRun:
    """A wandb run that keeps what is logged."""

    def __init__(self, **about: object):
        self.about, self.lines, self.summary, self.ended = about, [], {}, False

    def log(self, line: dict, step: int | None = None):
        self.lines.append(line)

    id = "none"

    def define_metric(self, *_: object, **__: object):
        pass

    def log_artifact(self, artifact: object):
        pass

    def finish(self):
        self.ended = True


def test_wandb_gets_the_steps_and_the_curve_of_a_run(monkeypatch: pytest.MonkeyPatch):
    wandb = pytest.importorskip("wandb")
    made = []
    monkeypatch.setattr(wandb, "init", lambda **about: made.append(FakeRun(**about)) or made[-1])
    run("--out_dir=run", "--wandb_log=True", "--pos=rope")
    (log,) = made
    assert (
        log.ended and log.about["name"] == "run" and log.about["id"] == read_config("run")["run_id"]
    )
    assert log.about["config"]["n_embd"] == 16
    assert [line["loss"] for line in log.lines if "loss" in line] == [
        x["loss"] for x in logged("run")
    ]
    curve = {x["extrapolation/N"] for x in log.lines if "extrapolation/fixed_targets" in x}
    assert curve == {8, 16, 32}
    assert log.summary


def records(content: bytes):
    """The records of a .wandb file: a log in LevelDB's format, of blocks of 32 KiB."""
    from wandb.proto.wandb_internal_pb2 import Record

    place, parts = 7, b""  # after wandb's header
    while place + 7 <= len(content):
        left = 32768 - place % 32768
        if left < 7:  # the rest of a block
            place += left
            continue
        size, kind = struct.unpack_from("<HB", content, place + 4)  # after the checksum
        parts += content[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or its last part
            yield Record.FromString(parts)
            parts = b""


def test_wandb_loses_no_row_whatever_comes_first(monkeypatch: pytest.MonkeyPatch):
    """Training, a test on the way, the test, and all again with more steps, as wandb's server sees
    it: one run that goes on.
    """
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    words = ["--out_dir=run", "--wandb_log=True", "--decay_lr=False"]
    one_run = wandb.init(dir=Path.cwd())
    finish = one_run.finish
    with monkeypatch.context() as patch:
        patch.setattr(wandb, "init", lambda **about: one_run)
        patch.setattr(one_run, "finish", lambda: None)
        assert run(*words, "--max_iters=4", "--test_at=2") == 0
        assert run(*words, "--max_iters=8", "--test_at=6") == 0
    finish()
    (path,) = Path("wandb").glob("offline-run-*/*.wandb")
    rows_seen, axes = [], {}
    for record in records(path.read_bytes()):
        if record.HasField("history"):
            items = record.history.item
            rows_seen.append({(i.key or i.nested_key[0]): json.loads(i.value_json) for i in items})
        if record.HasField("metric"):
            axes[record.metric.name or record.metric.glob_name] = record.metric.step_metric
    steps = [row for row in rows_seen if "loss" in row]
    assert [row["step"] for row in steps] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [row["loss"] for row in steps] == [line["loss"] for line in logged("run")]
    tests = [key for row in rows_seen for key in row if key.startswith("extrapolation/fixed_")]
    name = "extrapolation/fixed_targets"
    assert tests == 3 * [f"{name} at step 2"] + 3 * [name] + 3 * [f"{name} at step 6"] + 3 * [name]
    assert axes["*"] == "step" and axes[name] == "extrapolation/N"
