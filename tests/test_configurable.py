"""Settings: what is read and what is refused, and that nothing in a config file is executed."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import configurable
from common.errors import UserError, run_program
from common.files import read_json, replace_file, write_json
from configurable import (
    KINDS,
    AblateSettings,
    EvaluateSettings,
    GPTConfig,
    ReportSettings,
    SampleSettings,
    TrainSettings,
    checked,
    configure,
    read_arguments,
    setting_values,
    to_argv,
)
from tools.bench import BenchSettings
from tools.explain import ExplainSettings
from tools.peers import PeersSettings

ROOT = Path(configurable.__file__).parent
PROGRAMS = [TrainSettings, AblateSettings, EvaluateSettings, ReportSettings]
PROGRAMS += [SampleSettings, ExplainSettings, BenchSettings, PeersSettings]


def train(*argv: str) -> TrainSettings:
    return configure(TrainSettings, list(argv))[0]


def refusal(*argv: str, cls: type = TrainSettings) -> str:
    """The sentence with which a command line is refused."""
    with pytest.raises(UserError) as error:
        configure(cls, list(argv))
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture
def config(tmp_path: Path):
    """A function that writes a config file and returns its path."""

    def write(text: str | bytes, name: str = "some.py") -> str:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
        return str(path)

    return write


# ---- what is read


def test_later_files_win_over_earlier_ones_and_the_command_line_over_all(config):
    a = config("n_layer = 1\nn_head = 1\nn_embd = 8\npos = 'alibi'  # a reason\n", "a.py")
    b = config(b"\xef\xbb\xbfn_head = 2\neval_lengths = (64, 1e3)\n", "b.py")
    s, others = configure(TrainSettings, ["x", "--n_embd=4", a, "--n_embd=6", b])
    assert (s.n_layer, s.n_head, s.n_embd, s.pos, s.eval_lengths) == (1, 2, 6, "alibi", (64, 1000))
    assert others == ["x"]
    typed, others = read_arguments(TrainSettings, [a, b, "x"])
    names = ["n_layer", "n_head", "n_embd", "pos", "eval_lengths"]
    assert typed == {name: getattr(s, name) for name in names} | {"n_embd": 8} and others == ["x"]


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("--max_iters=1e4", 10000),
        ("--learning_rate=1", 1.0),
        ("--eval_lengths=64,128", (64, 128)),
        ("--eval_lengths=", ()),
        ("--warmup_iters=none", None),
        ("--bias", True),
        ("--bias=false", False),
        ("--pos=rope(base=5) | nope", "rope(base=5) | nope"),
        ("--out_dir=1", "1"),
    ],
)
def test_words_of_the_command_line(word, value):
    found = getattr(train(word), word[2:].partition("=")[0])
    assert (found, type(found)) == (value, type(value))


def test_a_text_may_hold_an_equals_sign():
    s, others = configure(SampleSettings, ["--start=a=b", "out/run"])
    assert (s.start, others) == ("a=b", ["out/run"])


@pytest.mark.parametrize("cls", PROGRAMS)
def test_the_defaults_are_good_and_typed_again_give_the_same(cls):
    assert configure(cls, []) == (cls(), [])
    for f in dataclasses.fields(cls):
        assert f.metadata["help"] and f.metadata["kind"] in configurable.KINDS


def test_settings_typed_as_words_give_themselves_again():
    s = TrainSettings(pos="rope + alibi", eval_lengths=(64, 96), min_lr=0, bias=True, out_dir="x y")
    assert train(*to_argv(s)) == s
    assert to_argv(s, "output") == ["--out_dir=x y"]
    assert setting_values(s, "test") == {"eval_lengths": (64, 96), "eval_windows": 64}


# ---- what is refused


@pytest.mark.parametrize(
    ("line", "reasons"),
    [
        ("n_layer = 0", ("n_layer", "0", "greater than or equal to 1")),
        ("n_layer = 1.5", ("n_layer", "1.5", "integer")),
        ("n_layer = 'four'", ("n_layer", "'four'", "integer")),
        ("bias = 7", ("bias", "7", "boolean")),
        ("pos = 7", ("pos", "string")),
        ("learning_rate = 1e999", ("learning_rate", "inf", "finite")),
        ("norm = 'batchnorm'", ("norm", "'layernorm' or 'rmsnorm'")),
        ("eval_lengths = (64, 1)", ("eval_lengths", "1", "greater than or equal to 2")),
        ("pos = rope", ("quotes",)),
        ("block_size = 4 * 128", ("number",)),
        ("n_layr = 3", ("n_layr", "did you mean n_layer?")),
        ("lr = 3", ("lr", "did you mean learning_rate?")),
        ("pos_file = 'x.py'", ("pos_file", "on the command line")),
        ("import os", ("name = value",)),
        ("seed = (", ("never closed",)),
    ],
)
def test_a_mistake_in_a_file_is_refused_with_file_line_and_reason(config, line, reasons):
    path = config(f"# a comment\nn_head = 2\n{line}\n")
    said = refusal(path)
    assert said.startswith(f"{path}:3: ")
    for reason in reasons:
        assert reason in said


@pytest.mark.parametrize(
    ("content", "reason"), [(b"\xff\xfe", "'utf-8' codec can't decode"), (b"a = 1\0", "null bytes")]
)
def test_what_is_no_text_of_settings_is_refused(config, content, reason):
    path = config(content)
    said = refusal(path)
    assert path in said and reason in said


@pytest.mark.parametrize(
    ("cls", "word", "advice"),
    [
        (AblateSettings, "--out=f.pdf", "did you mean out_dir"),
        (AblateSettings, "--ablate_dir=x", "it is --out_dir"),
        (TrainSettings, "--length_factor=4", "--block_size"),
        (AblateSettings, "--seed=3", "use --seeds"),
        (AblateSettings, "--only=2", "only"),
        (SampleSettings, "--prompt=hello", "did you mean start?"),
        (ReportSettings, "--format=html", "'md', 'tex'"),
        (TrainSettings, "--out=x", "did you mean out_dir?"),
        (TrainSettings, "--seq_len=64", "set --block_size"),
        (TrainSettings, "--rope_theta=5e5", r"--pos='rope(base=500000)'"),
        (TrainSettings, "--eval_only=True", "python evaluate.py out/RUN"),
        (EvaluateSettings, "--block_size=64", "--eval_lengths=256,1024"),
        (SampleSettings, "--out_dir=out/RUN", "python sample.py out/RUN"),
        (ReportSettings, "--out_dir=out/RUN", "python report.py out/A out/B"),
        (TrainSettings, "--zzzz=1", "--help lists"),
        (TrainSettings, "--named=1", "unknown setting"),
        (TrainSettings, "--n_layer", "--n_layer=VALUE"),
        (TrainSettings, "--seed=", "--seed=VALUE"),
        (TrainSettings, "--bias=", "--bias=VALUE"),
        (TrainSettings, "--max_iters=True", "max_iters cannot be True"),
        (TrainSettings, "-v", "--help lists"),
    ],
)
def test_a_mistake_on_the_command_line_gets_advice_that_is_not_refused(cls, word, advice):
    assert advice in refusal(word, cls=cls)


def test_a_config_file_that_is_not_there_gets_the_nearest_name(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert "did you mean config/alibi.py?" in refusal("config/alib.py")
    assert "did you mean config/size/tiny.py?" in refusal("config/tiny.py")


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"n_embd": 10, "n_head": 4}, "n_head"),
        ({"n_head": 4, "n_kv_head": 3}, "n_kv_head"),
        ({"kv_lora_rank": 8, "qk_norm": True}, "kv_lora_rank"),
        ({"kv_lora_rank": 8, "qk_norm": "all"}, "kv_lora_rank"),
        ({"warmup_iters": 100, "lr_decay_iters": 50}, "ends before its warm-up"),
        ({"lr_decay_iters": 50}, "ends before its warm-up"),  # the default of 100 steps
        ({"warmup_iters": 100, "lr_decay_iters": 100}, "ends before its warm-up"),
        ({"warmup_iters": 100, "max_iters": 50}, "ends before its warm-up"),
        ({"min_lr": 1e-2, "learning_rate": 1e-3}, "min_lr=.* is above learning_rate"),
        ({"min_lr": 5e-3, "optimizer": "adamw"}, "min_lr=.* is above learning_rate"),
        ({"test_at": [5, 2000]}, "test_at is after the last step"),
        ({"drop_pos": 0.1, "max_iters": 4}, "rounds to none"),
        ({"drop_pos": 0.99, "max_iters": 4}, "or to all"),
        ({"qk_rope_head_dim": 16}, "set kv_lora_rank too"),
    ],
)
def test_settings_that_do_not_go_together_are_refused_in_python_too(wrong, reason):
    with pytest.raises(UserError, match=reason):
        TrainSettings(**wrong)


@pytest.mark.parametrize(
    "together",
    [
        {"warmup_iters": 50, "max_iters": 50},
        {"warmup_iters": 100, "max_iters": 50, "decay_lr": False},
        {"warmup_iters": 100, "max_iters": 0},
        {"warmup_iters": 0, "lr_decay_iters": 1},
        {"lr_decay_iters": 3000},
        {"min_lr": 1e-2},  # constant after the warm-up
        {"test_at": [1350]},
        {"drop_pos": 0.5, "max_iters": 0},
    ],
)
def test_what_makes_sense_together_is_taken(together):
    assert TrainSettings(**together)


def test_a_setting_without_effect_is_said(capsys):
    train("--decay_lr=False", "--min_lr=1e-4", "--warmup_iters=9")
    said = capsys.readouterr().err.splitlines()
    names = ("min_lr", "warmup_iters")
    assert sorted(said) == [f"note: {name} has no effect with decay_lr=False" for name in names]
    configure(SampleSettings, ["--temperature=0", "--top_k=3"])
    assert capsys.readouterr().err == "note: top_k has no effect with temperature=0\n"
    train("--min_lr=1e-4")
    configure(SampleSettings, ["--temperature=0"])
    assert capsys.readouterr().err == ""


def test_a_setting_never_changes():
    with pytest.raises(dataclasses.FrozenInstanceError):
        GPTConfig().n_layer = 3


QUICK = settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
NUMBERS = {"n_layer": st.integers(-2, 10**9), "dropout": st.floats(allow_subnormal=False)}


@QUICK
@given(st.fixed_dictionaries({}, optional=NUMBERS | {"pos": st.text(), "bias": st.booleans()}))
def test_a_generated_file_is_read_as_python_reads_it_or_refused(tmp_path_factory, chosen):
    path = tmp_path_factory.getbasetemp() / "generated.py"
    text = "".join(f"{name} = {value!r}\n" for name, value in chosen.items())
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    try:
        s = train(str(path))
    except UserError:
        for name, value in chosen.items():
            try:
                checked(TrainSettings, name, value)
            except UserError:
                return
        raise
    for name, value in chosen.items():
        assert getattr(s, name) == value


@QUICK
@given(st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8")), max_size=4))
def test_a_generated_command_line_is_read_or_refused(argv):
    ends = ("-h", "--help", "config")
    argv = [word for word in argv if not word.endswith(".py") and word not in ends]
    try:
        train(*argv)
    except UserError as error:
        assert "\n" not in str(error)


# ---- the model that they say


def test_the_widths_of_a_model():
    assert GPTConfig(n_embd=96, n_head=4, mlp="swiglu").mlp_width == 256
    config = GPTConfig(n_embd=96, n_head=4, n_kv_head=2)
    assert (config.head_width, config.turned_width, config.kv_heads, config.mlp_width) == (
        24,
        24,
        2,
        384,
    )
    latent = GPTConfig(kv_lora_rank=8, qk_rope_head_dim=6)
    assert latent.turned_width == 6


def test_what_follows_from_the_schedule():
    s = TrainSettings(max_iters=100, learning_rate=1.0)
    assert s.warmup == 25
    assert TrainSettings(max_iters=10**4).warmup == 100
    assert TrainSettings(warmup_iters=0).warmup == 0


# ---- programs and files


@pytest.mark.parametrize("cls", PROGRAMS)
def test_help_lists_every_setting_by_kind(cls, capsys):
    with pytest.raises(SystemExit) as ended:
        configure(cls, ["rope", "--help"], "usage")
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    for f in dataclasses.fields(cls):
        assert f.metadata["kind"] in KINDS
        assert (f"--{f.name}=" in printed) == (f.name not in cls.refused)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UserError("a sentence"), 1, "error: a sentence\n"),
        (OSError(28, "No space left", "x"), 1, "error: x: No space left\n"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_a_program_ends_with_a_sentence_and_a_code(error, code, said, capsys):
    def main():
        raise error

    with pytest.raises(SystemExit) as end:
        run_program(main)
    assert end.value.code == code
    assert said in capsys.readouterr().err


def test_a_reader_that_goes_away_ends_a_program_quietly():
    code = (
        "import common.errors as e; e.run_program(lambda: [print(k) for k in range(10**5)] and 0)"
    )
    command = f"{sys.executable} -c '{code}' | head -1"
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_files_are_replaced_at_once_or_not_at_all(tmp_path):
    path = tmp_path / "some.json"
    write_json(path, {"rows": [1, 2.5], "name": "é"})
    assert read_json(path) == {"rows": [1, 2.5], "name": "é"}

    def fail(file):
        file.write(b"half")
        try:
            raise AttributeError("fileno")  # as in Pillow: the error has another as its context
        except AttributeError:
            raise OSError(28, "No space left on device")  # noqa: B904

    with pytest.raises(UserError, match="No space left"):
        replace_file(path, fail)
    assert read_json(path)["name"] == "é" and list(tmp_path.iterdir()) == [path]
    for damaged in ("", "[1]", "{"):
        path.write_text(damaged)
        with pytest.raises(UserError, match="some.json"):
            read_json(path)
