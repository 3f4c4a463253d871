"""Settings: what is read, what is refused, and that nothing in a config file is executed."""

import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import load_docs

import configurable
from configurable import (
    AblateSettings,
    EvaluateSettings,
    ExplainSettings,
    ExtendSettings,
    GPTConfig,
    ReportSettings,
    SampleSettings,
    TrainSettings,
    UserError,
    answer_help,
    check_shape,
    configure,
    differences,
    require,
    setting,
)

COMMANDS = (
    TrainSettings,
    SampleSettings,
    EvaluateSettings,
    AblateSettings,
    ExtendSettings,
    ExplainSettings,
    ReportSettings,
)
ROOT = Path(configurable.__file__).parent


def train(*argv: str) -> TrainSettings:
    return configure(TrainSettings, list(argv), "usage")[0]


def refusal(*argv: str, cls: type = TrainSettings) -> str:
    """The sentence with which a command line is refused: one line, with its place or its settings in it."""
    try:
        configure(cls, list(argv), "usage")
    except UserError as error:
        assert "\n" not in str(error)
        return str(error)
    pytest.fail(f"{argv} was accepted")


@pytest.fixture
def config(tmp_path: Path):
    """A function that writes a config file and returns its path."""

    def write(text: str | bytes, name: str = "some.py") -> str:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
        return str(path)

    return write


# Defaults, files and the command line


@pytest.mark.parametrize("cls", COMMANDS)
def test_the_defaults_are_good_settings(cls):
    settings, words = configure(cls, [], "usage")
    assert settings == cls() and words == []


def test_the_command_line_wins_over_files_and_later_files_over_earlier_ones(config):
    first, second = (
        config("seed = 1\nn_layer = 2\nn_head = 2\n", "a.py"),
        config("seed = 2\nn_layer = 3\n", "b.py"),
    )
    settings = train("--seed=3", first, second)
    assert (settings.seed, settings.n_layer, settings.n_head, settings.n_embd) == (3, 3, 2, 256)
    assert train(second, first).n_layer == 2


def test_the_last_of_two_values_on_the_command_line_wins():
    assert train("--seed=1", "--seed=2").seed == 2


def test_other_words_are_returned_in_their_order(config):
    settings, words = configure(
        AblateSettings, ["nope", config("n_layer = 2"), "--seeds=4", "rope + alibi"], "usage"
    )
    assert words == ["nope", "rope + alibi"] and settings.seeds == (4,) and settings.n_layer == 2


def test_debug_is_taken_anywhere():
    settings, words = configure(TrainSettings, ["--debug", "--seed=7", "--debug", "word"], "usage")
    assert settings.seed == 7 and words == ["word"]


def test_a_file_may_have_comments_lists_and_a_byte_order_mark(config):
    path = config(
        "\ufeff# why\n\nseed = 7  # lucky\neval_lengths = [64, 128]\npos = 'rope + alibi'\nmin_lr = None\n"
    )
    settings = train(path)
    assert (settings.seed, settings.eval_lengths, settings.pos) == (7, (64, 128), "rope + alibi")


def test_arithmetic_in_a_file(config):
    for text, value in (
        ("2 * 3 + 1", 7),
        ("2**10", 1024),
        ("600 / 8", 75),
        ("7 // 2", 3),
        ("7 % 4", 3),
        ("-(1 - 5)", 4),
        ("1e4", 10_000),
        ("10_000", 10_000),
        ("0x10", 16),
        ("1**10**15", 1),
        ("10 - -1", 11),
    ):
        max_iters = train(config(f"warmup_iters = 0\nmax_iters = {text}")).max_iters
        assert max_iters == value and type(max_iters) is int, text


def test_values_on_the_command_line():
    for argv, name, value in (
        (["--max_iters=1e4"], "max_iters", 10_000),
        (["--max_iters= 10_000"], "max_iters", 10_000),
        (["--learning_rate=1"], "learning_rate", 1.0),
        (["--learning_rate=3E-4"], "learning_rate", 3e-4),
        (["--eval_lengths=64,128"], "eval_lengths", (64, 128)),
        (["--eval_lengths=64"], "eval_lengths", (64,)),
        (["--eval_lengths="], "eval_lengths", ()),
        (["--compile=false"], "compile", False),
        (["--bias=TRUE"], "bias", True),
        (["--min_lr=none"], "min_lr", None),
        (["--lr_decay_iters=None"], "lr_decay_iters", None),
        (["--lr_decay_iters=600"], "lr_decay_iters", 600),
        (["--out_dir=none"], "out_dir", "none"),
        (["--wandb_run_name=--seed=3"], "wandb_run_name", "--seed=3"),
        (["--wandb_run_name=1e4"], "wandb_run_name", "1e4"),
    ):
        read = getattr(train(*argv), name)
        assert read == value and type(read) is type(value), argv


def test_a_value_may_hold_an_equals_sign():
    assert configure(SampleSettings, ["--start=a=b"], "usage")[0].start == "a=b"


def test_a_dash_and_negative_numbers_may_be_values():
    assert configure(SampleSettings, ["--start=-"], "usage")[0].start == "-"
    assert "learning_rate is -1, and must be float, above 0" in refusal("--learning_rate=-1")


@pytest.mark.parametrize("word", ["c\udce9.py", "out/r\udce9", "a\0.py"])
def test_a_word_that_is_no_text_is_refused(word):
    with pytest.raises(UserError, match=r"^command line: '.*\\(udce9|x00).*' is not UTF-8 text"):
        configure(TrainSettings, [word], "")


def test_lists_of_texts_are_split_at_commas():
    settings, _ = configure(EvaluateSettings, ["--protocols=windowed,fixed_targets"], "usage")
    assert settings.protocols == ("windowed", "fixed_targets")


# Names that do not exist, words that are no settings


def test_an_unknown_name_in_a_file_is_refused_with_file_line_and_nearest_name(config):
    path = config("seed = 1\n\nn_emdb = 64\n")
    assert refusal(path) == f"{path}:3: unknown setting 'n_emdb'; did you mean n_embd?"


def test_an_unknown_name_on_the_command_line_is_refused_with_the_nearest_name():
    for argv in (["--learning-rate=1"], ["--learningrate=1"], ["--lerning_rate=2"]):
        sentence = refusal(*argv)
        assert sentence.startswith("command line: unknown setting")
        assert sentence.endswith("did you mean learning_rate?")


def test_a_name_like_no_other_is_refused_with_a_pointer_to_help():
    for word in ("--qqqq=1", "--=1", "--"):
        assert refusal(word).endswith("--help lists all settings")


def test_methods_are_not_settings(config):
    for name in ("check", "gpt", "__class__", "__init__"):
        assert "unknown setting" in refusal(f"--{name}=1")
        assert "unknown setting" in refusal(config(f"{name} = 1"))


def test_single_dashes_are_refused_with_a_sentence():
    for word in ("-x", "-seed=3", "-", "-1"):
        assert refusal(word) == f"command line: {word!r} is no setting; type --name=value or --help"


def test_a_setting_without_a_value_is_refused_with_an_example():
    for argv in (["--compile"], ["--compile", "--seed=1"]):
        assert refusal(*argv) == "command line: --compile needs a value, as in --compile=True"
    for argv in (["--seed"], ["--seed", "3"], ["--seed", "--bias=True"]):
        assert refusal(*argv) == "command line: --seed needs a value, as in --seed=1337"
    assert refusal("--out_dir", "out/x").endswith("--out_dir=VALUE")


# Values of the wrong type or out of range


def test_a_wrong_value_on_the_command_line_is_refused_by_name():
    for argument in (
        "--max_iters=1.5",
        "--max_iters=True",
        "--max_iters=",
        "--max_iters=abc",
        "--max_iters=none",
        "--max_iters=1e30",
        "--max_iters=1,2",
        "--max_iters='3'",
        "--max_iters=9**9**9",
        "--max_iters=__import__('os')",
        "--max_iters=-1",
        "--learning_rate=nan",
        "--learning_rate=inf",
        "--learning_rate=-inf",
        "--learning_rate=1e999",
        "--learning_rate=0",
        "--learning_rate=true",
        "--learning_rate=1/0",
        "--compile=1",
        "--compile=yes",
        "--compile=none",
        "--dropout=1",
        "--dropout=-0.1",
        "--beta1=1",
        "--beta2=1.0",
        "--block_size=1",
        "--batch_size=-3",
        "--n_layer=0",
        "--seed=-1",
        "--seed=4294967296",
        "--dtype=bf16",
        "--eval_lengths=64,abc",
        "--eval_lengths=0,64",
        "--eval_lengths=64,1.5",
        "--eval_lengths=64,,128",
        "--eval_lengths=64,64",
        "--min_lr=-1",
        "--out_dir=a\0b",
        "--out_dir=\udcff",
    ):
        name = argument[2:].partition("=")[0]
        assert refusal(argument).startswith(f"command line: {name} is ")


def test_a_wrong_value_in_a_file_is_refused_by_file_line_and_name(config):
    for line in (
        "learning_rate = '1e-3'",
        "learning_rate = True",
        "learning_rate = None",
        "n_layer = True",
        "n_layer = 1.5",
        "n_layer = '4'",
        "compile = 1",
        "compile = 'True'",
        "compile = None",
        "pos = 3",
        "pos = None",
        "pos = ('a', 'b')",
        "eval_lengths = 64",
        "eval_lengths = (64, True)",
        "eval_lengths = ((64,), 128)",
        "eval_lengths = '64'",
        "dropout = 1.0",
        "dtype = 'float64'",
        "out_dir = 'a\\0'",
        "learning_rate = (-8) ** 0.5",
        "out_dir = '\\ud800'",
    ):
        path = config(f"seed = 1\n{line}\n")
        assert refusal(path).startswith(f"{path}:2: {line.partition(' ')[0]} is ")


def test_a_refusal_says_what_would_be_good():
    assert (
        refusal("--dropout=1.5")
        == "command line: dropout is 1.5, and must be float, at least 0, below 1"
    )
    assert refusal("--lr_decay_iters=x").endswith(
        "lr_decay_iters is 'x', and must be int or none, at least 1"
    )
    assert refusal("--dtype=bf16").endswith("and must be str, one of auto,bfloat16,float16,float32")


def test_a_long_value_is_cut_in_the_sentence():
    assert len(refusal("--dtype=" + "x" * 10_000)) < 200


def test_numbers_out_of_bounds_are_refused_and_huge_powers_not_computed(config):
    for line in (
        "1e999",
        "-1e999",
        "1e308 * 10",
        "2**53 + 1",
        "10**10**10",
        "9**9**9**9",
        "2**-2000",
        "0.001**-300",
        "1 / 0",
        "1.0 // 0",
        "1 % 0",
        "0 ** -1",
        "0xffffffffffffffffffff",
    ):
        path, start = config(f"\nlearning_rate = {line}"), time.monotonic()
        assert refusal(path).startswith(f"{path}:2: ")
        assert time.monotonic() - start < 5, line


def test_arithmetic_is_for_numbers_only(config):
    for line in (
        "-'a'",
        "'a' * 3",
        "'a' + 'b'",
        "True + 1",
        "-None",
        "(1, 2) * 2",
        "[1] + [2]",
        "((-8) ** 0.5) // 2",
        "'%s' % 3",
    ):
        path = config(f"seed = {line}")
        assert refusal(path) == f"{path}:1: arithmetic is for real numbers only"


# Nothing in a file is executed


def test_what_is_no_literal_is_refused_with_its_line_and_not_executed(
    config, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    modules = set(sys.modules)
    for line in (
        "seed = __import__('os').system('touch WITNESS')",
        "pos = exec(\"open('WITNESS', 'w')\")",
        "pos = open('WITNESS', 'w').write('x')",
        "eval_lengths = [open('WITNESS', 'w') for _ in (1,)]",
        "eval_lengths = (*[open('WITNESS', 'w')],)",
        "pos = (lambda: open('WITNESS', 'w'))()",
        "pos = f\"{open('WITNESS', 'w')}\"",
        "pos = (x := open('WITNESS', 'w'))",
        "pos = 'a' if open('WITNESS', 'w') else 'b'",
        "pos = open('WITNESS', 'w') or 'a'",
        "seed: open('WITNESS', 'w') = 3",
        "open('WITNESS', 'w')",
        "import this",
        "from os import path",
        "if open('WITNESS', 'w'):\n    seed = 1",
        "def seed(x=open('WITNESS', 'w')): pass",
        "class seed(object): open('WITNESS', 'w')",
        "with open('WITNESS', 'w') as seed: pass",
        "while True: pass",
        "assert open('WITNESS', 'w')",
        "del seed",
        "seed += 1",
        "seed = n_layer = 3",
        "seed, n_layer = 3, 4",
        "seed[open('WITNESS', 'w')] = 3",
        "seed.real = 3",
        "pos = [].__class__",
        "pos = [].__class__.__base__.__subclasses__()",
        "pos = (1).__class__",
        "pos = {'a': open('WITNESS', 'w')}",
        "pos = {1, 2}",
        "pos = 'abc'[0]",
        "pos = b'abc'",
        "pos = ...",
        "seed = 3j",
        "seed = not 1",
        "seed = ~1",
        "seed = 1 << 60",
        "seed = 1 | 2",
        "seed = 1 < 2",
        "seed = [1] @ [2]",
        "'a docstring'",
        "3",
    ):
        path = config(f"max_iters = 100\n{line}\n")
        assert refusal(path).startswith(f"{path}:2: "), line
        assert [file.name for file in tmp_path.iterdir()] == ["some.py"], line
    assert "this" not in set(sys.modules) - modules
    assert capfd.readouterr() == ("", "")


def test_a_text_without_quotes_is_refused_with_advice(config):
    path = config("pos = rope\n")
    assert refusal(path) == f"{path}:1: 'rope' is a name, not a value; put a text in quotes"


def test_a_name_set_twice_in_one_file_is_refused(config):
    path = config("seed = 1\nn_layer = 2\nseed = 2\n")
    assert refusal(path) == f"{path}:3: seed is set twice; delete one of the two"


# Files that cannot be read


def test_missing_files_folders_and_impossible_names_are_refused(tmp_path):
    folder = tmp_path / "folder.py"
    folder.mkdir()
    assert refusal(str(folder)).startswith(f"{folder}: cannot be read (Is a directory)")
    assert (
        refusal("no/such.py")
        == "no/such.py: cannot be read (No such file or directory); check the name"
    )
    assert "cannot be read (File name too long)" in refusal("x" * 5000 + ".py")


def test_a_file_that_is_not_utf8_is_refused(config):
    path = config(b"seed = 1\npos = '\xff'\n")
    assert refusal(path) == f"{path}: not UTF-8 text (byte 16); save it as UTF-8"


def test_a_file_with_bad_syntax_is_refused_with_its_line(config):
    for line in ("seed = ", "seed = (1", "seed 3", "  seed = 3", "seed = 007", "seed = '3"):
        path = config(f"max_iters = 100\n{line}\n")
        sentence = refusal(path)
        assert sentence.startswith(f"{path}:2: ")
        assert sentence.endswith("a config file is `name = value` lines")


def test_a_file_with_a_nul_is_refused(config):
    path = config("seed = 1\0\n")
    assert refusal(path).startswith(path)


def test_a_monstrous_expression_is_refused(config):
    for text in ("-" * 5000 + "1", "(" * 5000 + "1" + ")" * 5000, "1" + "+1" * 20_000, "1" * 5000):
        path = config(f"max_iters = {text}")
        assert refusal(path).startswith(path)
        assert refusal(f"--max_iters={text}").startswith("command line: max_iters is ")


# Combinations


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        (["--n_embd=30"], ("n_embd = 30", "n_head = 4")),
        (["--lr_decay_iters=99"], ("warmup_iters = 100 is above", "lr_decay_iters = 99")),
        (["--lr_schedule=wsd", "--lr_decay_iters=900"], ("lr_decay_iters", "lr_schedule=cosine")),
        (["--lr_schedule=constant", "--decay_lr=False"], ("decay_lr", "lr_schedule=cosine")),
        (["--decay_lr=False", "--lr_decay_iters=900"], ("lr_decay_iters", "lr_schedule=cosine")),
        (["--decay_share=0.5"], ("decay_share", "lr_schedule=wsd")),
        (["--decay_share=0.5", "--lr_schedule=constant"], ("decay_share", "lr_schedule=wsd")),
        (["--read_again=True"], ("read_again", "init_from=RUN")),
        (["--read_again=True", "--init_from=scratch"], ("read_again", "init_from=RUN")),
        (["--min_lr=0.01"], ("min_lr = 0.01", "learning_rate = 0.003")),
        (["--mixed_lengths=16,24"], ("mixed_lengths", "24", "2048")),
        (["--staged=True"], ("staged", "mixed_lengths")),
    ],
)
def test_settings_that_do_not_go_together_are_refused(argv, names):
    sentence = refusal(*argv)
    assert all(name in sentence for name in names)


def test_settings_at_the_edge_of_going_together_are_good():
    settings = train(
        "--warmup_iters=1200",
        "--lr_decay_iters=1200",
        "--min_lr=0.003",
        "--n_embd=4",
        "--eval_lengths=2,3",
    )
    assert settings.min_lr == settings.learning_rate


def test_a_warm_up_that_is_not_set_is_a_quarter_of_the_steps_and_at_most_100():
    lengths = {1200: 100, 400: 100, 399: 99, 10: 2, 3: 0, 1: 0}
    for steps, warmup in lengths.items():
        settings = train(f"--max_iters={steps}")
        assert settings.warmup_iters is None and settings.warmed_up(steps).warmup_iters == warmup
    assert train("--max_iters=10", "--warmup_iters=40").warmed_up(10).warmup_iters == 40
    assert train("--max_iters=800").warmed_up(8).warmup_iters == 2  # kept when the run is extended


def test_the_decay_of_wsd_begins_before_its_share_of_the_steps():
    assert train("--lr_schedule=wsd").decay_begin == 960
    assert train("--lr_schedule=wsd", "--max_iters=7", "--decay_share=0.5").decay_begin == 3


def test_what_the_user_has_set_is_known_even_if_it_is_the_default(config):
    settings = train(config("n_layer = 4"), "--pos=rope")
    assert settings.named == {"n_layer", "pos"} and settings.pos == TrainSettings.pos
    assert TrainSettings(pos="alibi").named == frozenset()


@pytest.mark.parametrize(
    ("typed", "ours"),
    [("lr", "learning_rate"), ("steps", "max_iters"), ("context_length", "block_size")]
    + [("d_model", "n_embd"), ("learning_rat", "learning_rate")],
)
def test_the_names_of_other_programs_are_known(typed, ours):
    assert refusal(f"--{typed}=1").endswith(f"unknown setting '{typed}'; did you mean {ours}?")


def test_ablate_refuses_what_makes_no_comparison():
    for argument in (
        "--seeds=1,2,1",
        "--seeds=",
        "--seeds=-1",
        "--seeds=a",
        "--only=0/3",
        "--only=4/3",
        "--only=1",
        "--only=1/",
        "--only=-1/3",
        "--only=1/0",
        "--only=a/b",
        "--only=1/2/3",
        "--pos=alibi",
        "--seed=3",
        "--out_dir=x",
        "--n_embd=30",
    ):
        assert argument[2:].partition("=")[0] in refusal(argument, cls=AblateSettings)


@pytest.mark.parametrize(
    ("argument", "name", "value"),
    [
        ("--only=1/1", "only", "1/1"),
        ("--only=3/3", "only", "3/3"),
        ("--seeds=3,1", "seeds", (3, 1)),
    ],
)
def test_ablate_takes_shares_and_seeds(argument, name, value):
    assert getattr(configure(AblateSettings, [argument], "usage")[0], name) == value


def test_evaluate_refuses():
    for argument in (
        "--protocols=sliding",
        "--protocols=",
        "--protocols=windowed,windowed",
        "--stride=-1",
        "--eval_windows=96",
    ):
        assert argument[2:].partition("=")[0] in refusal(argument, cls=EvaluateSettings)


def test_sample_refuses():
    for argument in (
        "--top_k=0",
        "--top_p=0",
        "--top_p=1.1",
        "--temperature=-1",
        "--num_samples=0",
        "--max_new_tokens=0",
    ):
        assert argument[2:].partition("=")[0] in refusal(argument, cls=SampleSettings)


def test_extend_refuses_a_search_at_the_training_length():
    assert "search is 1, " in refusal("--search=1", cls=ExtendSettings)


def test_settings_made_in_python_are_checked_and_brought_into_form():
    typed = TrainSettings(learning_rate=1, eval_lengths=[64, 128], max_iters=1e4)
    settings = typed.checked()
    assert (settings.eval_lengths, settings.max_iters) == ((64, 128), 10_000)
    assert (type(settings.max_iters), type(settings.learning_rate)) == (int, float)
    assert type(typed.max_iters) is float and typed.eval_lengths == [64, 128]  # as it was
    assert settings.checked() == settings
    with pytest.raises(UserError, match="n_layer is 0, and must be int, at least 1"):
        TrainSettings(n_layer=0).checked()


@pytest.mark.parametrize("cls", COMMANDS)
def test_settings_cannot_be_changed(cls):
    settings, _ = configure(cls, [], "usage")
    for field in dataclasses.fields(cls):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(settings, field.name, field.default)


@pytest.mark.parametrize("name", ["learning_rate", "max_iters"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300])
def test_numbers_that_are_not_finite_are_refused_in_python_too(name, value):
    with pytest.raises(UserError, match=f"{name} is "):
        TrainSettings(**{name: value}).checked()


def test_the_default_model_is_that_of_the_default_settings():
    assert TrainSettings().gpt(256) == GPTConfig()
    assert TrainSettings(n_embd=32, pos="nope").gpt(50257) == GPTConfig(
        n_embd=32, pos="nope", vocab_size=50257
    )


@pytest.mark.parametrize(
    "shape", [{"n_embd": 30}, {"n_layer": 0}, {"vocab_size": 0}, {"block_size": 0}, {"n_head": 0}]
)
def test_a_shape_that_no_model_can_have_is_refused(shape):
    with pytest.raises(UserError, match=next(iter(shape))):
        GPTConfig(**shape)


# Differences between runs


def test_differences_are_sentences_about_settings_of_one_kind():
    a = dataclasses.asdict(TrainSettings(n_embd=256, pos="rope", out_dir="x", eval_lengths=(64,)))
    b = dataclasses.asdict(TrainSettings(n_embd=128, pos="alibi", out_dir="y", eval_lengths=(32,)))
    assert differences(a, b) == ["pos: 'rope' here, 'alibi' there", "n_embd: 256 here, 128 there"]
    assert differences(a, b, "test") == ["eval_lengths: (64,) here, (32,) there"]
    assert differences(a, b, "execution") == ["out_dir: 'x' here, 'y' there"]


def test_a_setting_that_is_absent_has_its_default():
    assert differences({"seed": 1337}, {}) == [] and differences({}, {"seed": 1}) == [
        "seed: 1337 here, 1 there"
    ]


# Help, table, run_program


@pytest.mark.parametrize("argv", [["--help"], ["--nonsense", "--help"], ["-h"], ["no.py", "-h"]])
@pytest.mark.parametrize("how", ["asked first", "asked in words", "configured"])
def test_help_groups_all_settings_by_kind_and_exits_0(how, argv, monkeypatch, capsys):
    usage = "\nCompare schemes.\n\npython ablate.py SCHEME ...\n"
    monkeypatch.setattr(sys, "argv", ["ablate.py", *(argv if how == "asked first" else [])])
    with pytest.raises(SystemExit) as caught:
        if how == "configured":
            configure(AblateSettings, argv, usage)
        else:
            answer_help(AblateSettings, usage, argv if how == "asked in words" else None)
    out = capsys.readouterr().out
    assert caught.value.code == 0
    assert out.startswith("Compare schemes.\n\npython ablate.py SCHEME ...\n\n")
    titles = [out.index(f"{title}:\n") for title in configurable.KINDS.values()]
    assert titles == sorted(titles)
    for field in dataclasses.fields(AblateSettings):
        kinds = list(configurable.KINDS)
        place = out.index(f"\n  --{field.name}=")
        assert sum(place > title for title in titles) == 1 + kinds.index(field.metadata["kind"])


def test_without_a_question_there_is_no_help(capsys):
    answer_help(AblateSettings, "usage", ["--seeds=1", "help"])
    assert capsys.readouterr() == ("", "")


def test_help_shows_default_unit_type_range_and_help(capsys):
    with pytest.raises(SystemExit):
        train("--help")
    out = capsys.readouterr().out.splitlines()
    assert (
        "  --block_size=128                  training length (tokens, int, at least 2, at most 2**24)"
        in out
    )
    assert any(
        line.startswith("  --min_lr=none ") and line.endswith("(float or none, at least 0)")
        for line in out
    )


def test_a_command_without_settings_of_a_kind_has_no_heading_for_it(capsys):
    with pytest.raises(SystemExit):
        configure(SampleSettings, ["--help"], "usage")
    out = capsys.readouterr().out
    assert configurable.KINDS["test"] not in out and "  --start='\\n' " in out


@pytest.mark.parametrize("cls", COMMANDS)
def test_every_setting_has_a_help_and_a_kind(cls):
    for field in dataclasses.fields(cls):
        assert field.metadata["help"] and field.metadata["kind"] in configurable.KINDS, field.name


def test_the_table_has_a_row_for_every_setting():
    lines = load_docs("generate").settings_table(TrainSettings).splitlines()
    assert (
        lines[0] == "| name | default | unit | what | kind |"
        and lines[1] == "| --- | --- | --- | --- | --- |"
    )
    assert len(lines) == 2 + len(dataclasses.fields(TrainSettings))
    assert (
        "| `block_size` | `128` | tokens | training length (int, at least 2, at most 2**24) | result |"
        in lines
    )
    out_dir = (
        "| `out_dir` |  |  | run folder, by default named after the settings (str) | execution |"
    )
    assert out_dir in lines


def test_the_table_escapes_what_markdown_would_split():
    @dataclasses.dataclass(frozen=True)
    class Piped(configurable.Settings):
        pos: str = setting("", "rope | nope")

    assert "rope \\| nope" in load_docs("generate").settings_table(Piped)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (UserError("what was wrong"), "what was wrong"),
        (OSError(28, "No space left on device", "out/x"), "out/x: No space left on device"),
        (OSError(28, "No space left on device"), "the system: No space left on device"),
        (OSError("odd"), "odd"),
    ],
)
def test_run_program_prints_a_sentence_and_exits_1(error, sentence, capsys, monkeypatch):
    def main() -> None:
        raise error

    for rank, before in ((None, ""), ("0", ""), ("3", "process 3: ")):
        if rank:
            monkeypatch.setenv("RANK", rank)
        with pytest.raises(SystemExit) as caught:
            configurable.run_program(main)
        assert caught.value.code == 1
        assert capsys.readouterr() == ("", f"{before}error: {sentence}\n")


def test_run_program_shows_the_traceback_with_debug(capsys, monkeypatch):
    def main() -> None:
        raise UserError("what was wrong")

    monkeypatch.setattr(sys, "argv", ["train.py", "--debug"])
    with pytest.raises(SystemExit):
        configurable.run_program(main)
    assert "Traceback" in (err := capsys.readouterr().err) and err.endswith(
        "\nerror: what was wrong\n"
    )


def test_ctrl_c_exits_130_without_a_word(capsys):
    def main() -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as caught:
        configurable.run_program(main)
    kept = "interrupted: what was written before is kept, and an unfinished test leaves no rows\n"
    assert caught.value.code == 130 and capsys.readouterr() == ("", kept)


def test_a_terminal_that_lacks_a_character_shows_a_question_mark():
    code = "import configurable; configurable.run_program(lambda: print('1.5 \xb1 0.1 \u4f60'))"
    env = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, timeout=60
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, b"1.5 ? 0.1 ?", b"")


@pytest.mark.skipif(os.name != "posix", reason="pipes")
@pytest.mark.parametrize("unbuffered", [[], ["-u"]])
@pytest.mark.parametrize("count", [1, 100_000])  # noticed at the end, and in the middle
def test_a_reader_who_has_seen_enough_ends_a_program_quietly(unbuffered, count):
    main = f"lambda: [print('a line of text') for _ in range({count})] and None"
    code = f"import sys, configurable; sys.stdin.read(); configurable.run_program({main})"
    command = [sys.executable, *unbuffered, "-c", code]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, cwd=ROOT, **pipes) as child:
        child.stdout.close()
        child.stdin.close()  # it prints only now
        assert child.stderr.read() == b"" and child.wait(timeout=60) == 141


def test_another_broken_pipe_is_told(capsys):
    def main() -> None:
        raise BrokenPipeError(32, "Broken pipe")

    with pytest.raises(SystemExit) as caught:
        configurable.run_program(main)
    assert caught.value.code == 1
    assert capsys.readouterr().err == "error: the system: Broken pipe\n"


@pytest.mark.parametrize("error", [ZeroDivisionError, ValueError])
def test_run_program_leaves_other_errors_alone(error):
    def main() -> None:
        raise error

    with pytest.raises(error):
        configurable.run_program(main)


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (130, 130)])
def test_run_program_exits_with_what_main_returns(returned, code):
    with pytest.raises(SystemExit) as caught:
        configurable.run_program(lambda: returned)
    assert caught.value.code == code


def test_importing_configurable_imports_no_torch_and_is_quick():
    code = "import sys, configurable; sys.exit(bool({'torch', 'numpy', 'wandb', 'matplotlib'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60).returncode == 0


# What is required, and the shape of what is read from files


def test_require_raises_the_sentence_where_the_condition_does_not_hold():
    require([0], "never")
    for nothing in (False, None, [], 0, ""):
        with pytest.raises(UserError, match="^what is wrong$"):
            require(nothing, "what is wrong")


ROW = {"length": int, "nats": (float, type(None)), "blocks": [float], "of": {"dtype": str}}
GOOD = {"length": 8, "nats": 1.5, "blocks": [1.0, 2], "of": {"dtype": "float32", "more": 1}}


def test_what_has_the_right_shape_passes():
    for value, shape in (
        (GOOD, ROW),
        (GOOD | {"nats": None}, ROW),
        ({k: v for k, v in GOOD.items() if k != "nats"}, ROW),  # None passes: it may be absent
        ([GOOD, GOOD], [ROW]),
        ([], [ROW]),
        (1, float),
        (True, bool),
        (True, (bool, str)),
        ({}, dict),
        ({1: 2}, {}),
    ):
        check_shape(value, shape, "a.json", "delete it")


def test_what_has_another_shape_is_refused_with_its_place():
    for value, shape, path in (
        (GOOD | {"length": True}, ROW, "length"),
        (GOOD | {"length": 1.0}, ROW, "length"),
        (GOOD | {"length": None}, ROW, "length"),
        (GOOD | {"nats": "1"}, ROW, "nats"),
        (GOOD | {"nats": False}, ROW, "nats"),
        (GOOD | {"blocks": 1.0}, ROW, "blocks"),
        (GOOD | {"blocks": [1.0, None]}, ROW, "blocks[1]"),
        (GOOD | {"of": {}}, ROW, "of.dtype"),
        (GOOD | {"of": []}, ROW, "of"),
        ([GOOD, GOOD | {"of": {"dtype": 1}}], [ROW], "[1].of.dtype"),
        ({"rows": [GOOD, {}]}, {"rows": [ROW]}, "rows[1].length"),
        ([], ROW, "content"),
        (None, [ROW], "content"),
        ("text", int, "content"),
    ):
        with pytest.raises(UserError) as caught:
            check_shape(value, shape, "a.json", "delete it")
        assert str(caught.value) == f"a.json lacks a proper {path}: delete it"


def test_a_folder_of_config_files_is_listed(capsys: pytest.CaptureFixture) -> None:
    folder = str(Path(configurable.__file__).with_name("config"))
    with pytest.raises(SystemExit) as ended:
        configure(TrainSettings, [folder], "")
    lines = capsys.readouterr().out.splitlines()
    assert ended.value.code == 0 and len(lines) > 30
    (own,) = (line for line in lines if "config/alibi.py " in line)
    assert "A penalty on the score that grows linearly with distance (Press et al. 2021)." in own
    assert any("arch/llama.py" in line for line in lines)


def test_a_folder_is_listed_only_where_config_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "pos_file.py").touch()
    assert configure(ReportSettings, [str(tmp_path)], "")[1] == [str(tmp_path)]
