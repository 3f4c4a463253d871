"""Settings: what is read, what is refused, and that nothing in a config file is executed."""

import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import configurable
from configurable import (
    AblateSettings,
    EvaluateSettings,
    GPTConfig,
    SampleSettings,
    TrainSettings,
    UserError,
    configure,
    differences,
    setting,
    settings_table,
)

COMMANDS = (TrainSettings, EvaluateSettings, SampleSettings, AblateSettings)
ROOT = Path(configurable.__file__).parent


def train(*argv: str) -> TrainSettings:
    return configure(TrainSettings, list(argv), "usage")[0]


def refusal(*argv: str, cls: type = TrainSettings) -> str:
    """The sentence with which a command line is refused: one line, with its place or its settings in it."""
    with pytest.raises(UserError) as caught:
        configure(cls, list(argv), "usage")
    assert "\n" not in str(caught.value)
    return str(caught.value)


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
    assert train("--seed=1", "--seed", "2").seed == 2


def test_other_words_are_returned_in_their_order(config):
    settings, words = configure(
        AblateSettings, ["nope", config("n_layer = 2"), "--seeds=4", "rope + alibi"], "usage"
    )
    assert words == ["nope", "rope + alibi"] and settings.seeds == (4,) and settings.n_layer == 2


def test_debug_is_taken_anywhere():
    settings, words = configure(
        TrainSettings, ["--seed", "--debug", "7", "--debug", "word"], "usage"
    )
    assert settings.seed == 7 and words == ["word"]


def test_a_file_may_have_comments_lists_and_a_byte_order_mark(config):
    path = config(
        "\ufeff# why\n\nseed = 7  # lucky\neval_lengths = [64, 128]\npos = 'rope + alibi'\nmin_lr = None\n"
    )
    settings = train(path)
    assert (settings.seed, settings.eval_lengths, settings.pos) == (7, (64, 128), "rope + alibi")


@pytest.mark.parametrize(
    ("text", "value"),
    [
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
    ],
)
def test_arithmetic_in_a_file(config, text, value):
    max_iters = train(config(f"warmup_iters = 0\nmax_iters = {text}")).max_iters
    assert max_iters == value and type(max_iters) is int


@pytest.mark.parametrize(
    ("argv", "name", "value"),
    [
        (["--max_iters=1e4"], "max_iters", 10_000),
        (["--max_iters", "10_000"], "max_iters", 10_000),
        (["--learning_rate=1"], "learning_rate", 1.0),
        (["--learning_rate", "3e-4"], "learning_rate", 3e-4),
        (["--eval_lengths=64,128"], "eval_lengths", (64, 128)),
        (["--eval_lengths", "64"], "eval_lengths", (64,)),
        (["--eval_lengths="], "eval_lengths", ()),
        (["--compile=false"], "compile", False),
        (["--bias", "TRUE"], "bias", True),
        (["--min_lr=none"], "min_lr", None),
        (["--lr_decay_iters=None"], "lr_decay_iters", None),
        (["--lr_decay_iters=600"], "lr_decay_iters", 600),
        (["--out_dir=none"], "out_dir", "none"),
        (["--wandb_run_name=--seed=3"], "wandb_run_name", "--seed=3"),
        (["--wandb_run_name=1e4"], "wandb_run_name", "1e4"),
    ],
)
def test_values_on_the_command_line(argv, name, value):
    read = getattr(train(*argv), name)
    assert read == value and type(read) is type(value)


@pytest.mark.parametrize("argv", [["--start=a=b"], ["--start", "a=b"]])
def test_a_value_may_hold_an_equals_sign(argv):
    assert configure(SampleSettings, argv, "usage")[0].start == "a=b"


def test_a_dash_and_negative_numbers_may_be_values():
    assert configure(SampleSettings, ["--start", "-"], "usage")[0].start == "-"
    assert "learning_rate is -1, and must be float, above 0" in refusal("--learning_rate", "-1")


@pytest.mark.parametrize("word", ["c\udce9.py", "out/r\udce9"])
def test_a_word_that_is_not_utf8_is_refused(word):
    with pytest.raises(UserError, match=r"^command line: '.*\\udce9.*' is not UTF-8 text"):
        configure(TrainSettings, [word], "")


def test_lists_of_texts_are_split_at_commas():
    settings, _ = configure(EvaluateSettings, ["--protocols=windowed,fixed_targets"], "usage")
    assert settings.protocols == ("windowed", "fixed_targets")


# Names that do not exist, words that are no settings


def test_an_unknown_name_in_a_file_is_refused_with_file_line_and_nearest_name(config):
    path = config("seed = 1\n\nn_emdb = 64\n")
    assert refusal(path) == f"{path}:3: unknown setting 'n_emdb'; did you mean n_embd?"


@pytest.mark.parametrize(
    "argv", [["--learning-rate=1"], ["--learningrate", "1"], ["--lerning_rate=2"]]
)
def test_an_unknown_name_on_the_command_line_is_refused_with_the_nearest_name(argv):
    sentence = refusal(*argv)
    assert sentence.startswith("command line: unknown setting") and sentence.endswith(
        "did you mean learning_rate?"
    )


@pytest.mark.parametrize("word", ["--qqqq=1", "--=1", "--"])
def test_a_name_like_no_other_is_refused_with_a_pointer_to_help(word):
    assert refusal(word).endswith("--help lists all settings")


@pytest.mark.parametrize("name", ["check", "gpt", "__class__", "__init__"])
def test_methods_are_not_settings(config, name):
    assert "unknown setting" in refusal(f"--{name}=1") and "unknown setting" in refusal(
        config(f"{name} = 1")
    )


@pytest.mark.parametrize("word", ["-x", "-seed=3", "-", "-1"])
def test_single_dashes_are_refused_with_a_sentence(word):
    assert refusal(word).startswith(f"command line: {word!r} is no setting; type --name=value")


@pytest.mark.parametrize(
    "argv", [["--compile"], ["--compile", "--seed=1"], ["--compile", "config/alibi.py"]]
)
def test_a_switch_without_a_value_is_refused_with_a_hint(argv):
    assert refusal(*argv) == "command line: --compile needs a value, as in --compile=True"


@pytest.mark.parametrize("argv", [["--seed"], ["--seed", "--bias=True"]])
def test_a_setting_without_a_value_is_refused(argv):
    assert refusal(*argv) == "command line: --seed needs a value, as in --seed=VALUE"


# Values of the wrong type or out of range


@pytest.mark.parametrize(
    "argument",
    [
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
        "--max_iters=0",
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
    ],
)
def test_a_wrong_value_on_the_command_line_is_refused_by_name(argument):
    name = argument[2:].partition("=")[0]
    assert refusal(argument).startswith(f"command line: {name} is ")


@pytest.mark.parametrize(
    "line",
    [
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
    ],
)
def test_a_wrong_value_in_a_file_is_refused_by_file_line_and_name(config, line):
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


@pytest.mark.parametrize(
    "line",
    [
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
    ],
)
def test_numbers_out_of_bounds_are_refused_and_huge_powers_not_computed(config, line):
    path, start = config(f"\nlearning_rate = {line}"), time.monotonic()
    assert refusal(path).startswith(f"{path}:2: ")
    assert time.monotonic() - start < 5


@pytest.mark.parametrize(
    "line",
    [
        "-'a'",
        "'a' * 3",
        "'a' + 'b'",
        "True + 1",
        "-None",
        "(1, 2) * 2",
        "[1] + [2]",
        "((-8) ** 0.5) // 2",
        "'%s' % 3",
    ],
)
def test_arithmetic_is_for_numbers_only(config, line):
    path = config(f"seed = {line}")
    assert refusal(path) == f"{path}:1: arithmetic is for real numbers only"


# Nothing in a file is executed


@pytest.mark.parametrize(
    "line",
    [
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
    ],
)
def test_what_is_no_literal_is_refused_with_its_line_and_not_executed(
    config, line, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    path = config(f"max_iters = 100\n{line}\n")
    before, modules = sorted(tmp_path.iterdir()), set(sys.modules)
    assert refusal(path).startswith(f"{path}:2: ")
    assert sorted(tmp_path.iterdir()) == before
    assert "this" not in set(sys.modules) - modules
    assert capfd.readouterr() == ("", "")


def test_a_text_without_quotes_is_refused_with_advice(config):
    path = config("pos = rope\n")
    assert refusal(path) == f"{path}:1: 'rope' is a name, not a value; put a text in quotes"


def test_a_name_set_twice_in_one_file_is_refused(config):
    path = config("seed = 1\nn_layer = 2\nseed = 2\n")
    assert refusal(path) == f"{path}:3: seed is already set in line 1; delete one of the two"


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
    assert refusal("a\0.py").startswith("a\0.py: ")


def test_a_file_that_is_not_utf8_is_refused(config):
    path = config(b"seed = 1\npos = '\xff'\n")
    assert refusal(path) == f"{path}: not UTF-8 text; save it as UTF-8"


@pytest.mark.parametrize(
    "line", ["seed = ", "seed = (1", "seed 3", "  seed = 3", "seed = 007", "seed = '3"]
)
def test_a_file_with_bad_syntax_is_refused_with_its_line(config, line):
    path = config(f"max_iters = 100\n{line}\n")
    sentence = refusal(path)
    assert sentence.startswith(f"{path}:2: ") and sentence.endswith(
        "a config file is `name = value` lines"
    )


def test_a_file_with_a_nul_is_refused(config):
    path = config("seed = 1\0\n")
    assert refusal(path).startswith(path)


@pytest.mark.parametrize(
    "text", ["-" * 5000 + "1", "(" * 5000 + "1" + ")" * 5000, "1" + "+1" * 20_000, "1" * 5000]
)
def test_a_monstrous_expression_is_refused(config, text):
    path = config(f"max_iters = {text}")
    assert refusal(path).startswith(path)
    assert refusal(f"--max_iters={text}").startswith("command line: max_iters is ")


# Combinations


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        (["--n_embd=30"], ("n_embd = 30", "n_head = 4")),
        (["--init_from="], ("init_from",)),
        (["--warmup_iters=1201"], ("warmup_iters = 1201", "max_iters = 1200")),
        (["--lr_decay_iters=99"], ("warmup_iters = 100", "lr_decay_iters = 99")),
        (["--min_lr=0.01"], ("min_lr = 0.01", "learning_rate = 0.003")),
        (["--eval_lengths=128,64"], ("eval_lengths", "(128, 64)", "ascend")),
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


@pytest.mark.parametrize(
    "argument",
    [
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
    ],
)
def test_ablate_refuses_what_makes_no_comparison(argument):
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


@pytest.mark.parametrize(
    "argument",
    [
        "--protocols=sliding",
        "--protocols=",
        "--protocols=windowed,windowed",
        "--stride=-1",
        "--eval_lengths=8,4",
    ],
)
def test_evaluate_refuses(argument):
    assert argument[2:].partition("=")[0] in refusal(argument, cls=EvaluateSettings)


@pytest.mark.parametrize(
    "argument",
    [
        "--top_k=0",
        "--top_p=0",
        "--top_p=1.1",
        "--temperature=-1",
        "--num_samples=0",
        "--max_new_tokens=0",
    ],
)
def test_sample_refuses(argument):
    assert argument[2:].partition("=")[0] in refusal(argument, cls=SampleSettings)


def test_settings_made_in_python_are_checked_and_brought_into_form():
    settings = TrainSettings(learning_rate=1, eval_lengths=[64, 128], max_iters=1e4)
    settings.check()
    assert (settings.eval_lengths, settings.max_iters, type(settings.learning_rate)) == (
        (64, 128),
        10_000,
        float,
    )
    with pytest.raises(UserError, match="n_layer is 0, and must be int, at least 1"):
        TrainSettings(n_layer=0).check()


@pytest.mark.parametrize("name", ["learning_rate", "max_iters"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300])
def test_numbers_that_are_not_finite_are_refused_in_python_too(name, value):
    with pytest.raises(UserError, match=f"{name} is "):
        TrainSettings(**{name: value}).check()


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
    assert differences(a, b, "manner") == ["out_dir: 'x' here, 'y' there"]


def test_lists_from_json_and_settings_that_are_absent_do_not_differ():
    assert differences({"eval_lengths": [64, 128]}, {"eval_lengths": (64, 128)}, "test") == []
    assert differences({"seed": 1337}, {}) == [] and differences({}, {"seed": 1}) == [
        "seed: 1337 here, 1 there"
    ]


# Help, table, run


@pytest.mark.parametrize(
    "argv", [["--help"], ["--nonsense", "--help"], ["-h"], ["no_such.py", "--help"]]
)
def test_help_groups_all_settings_by_kind_and_exits_0(argv, capsys):
    with pytest.raises(SystemExit) as caught:
        configure(AblateSettings, argv, "python ablate.py SCHEME ...")
    out = capsys.readouterr().out
    assert caught.value.code == 0 and out.startswith("usage: python ablate.py SCHEME ...\n")
    titles = [out.index(f"{title}:\n") for title in configurable.KINDS.values()]
    assert titles == sorted(titles)
    for field in dataclasses.fields(AblateSettings):
        kinds = list(configurable.KINDS)
        place = out.index(f"\n  --{field.name}=")
        assert sum(place > title for title in titles) == 1 + kinds.index(field.metadata["kind"])


def test_help_shows_default_unit_type_range_and_help(capsys):
    with pytest.raises(SystemExit):
        train("--help")
    out = capsys.readouterr().out.splitlines()
    assert (
        "  --block_size=128                  training length (tokens, int, at least 2, at most 16777216)"
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
    lines = settings_table(TrainSettings).splitlines()
    assert (
        lines[0] == "| name | default | unit | what | kind |"
        and lines[1] == "| --- | --- | --- | --- | --- |"
    )
    assert len(lines) == 2 + len(dataclasses.fields(TrainSettings))
    assert (
        "| `block_size` | `128` | tokens | training length (int, at least 2, at most 16777216) | result |"
        in lines
    )
    assert (
        "| `out_dir` |  |  | run folder, by default named after the settings (str) | manner |"
        in lines
    )


def test_the_table_escapes_what_markdown_would_split():
    @dataclasses.dataclass
    class Piped(configurable.Settings):
        pos: str = setting("", "rope | nope")

    assert "rope \\| nope" in settings_table(Piped)


class Odd(Exception):
    """An error of another module."""


@pytest.mark.parametrize("error", [UserError, Odd])
def test_run_prints_a_sentence_and_exits_1(error, capsys):
    def main() -> None:
        raise error("what was wrong")

    with pytest.raises(SystemExit) as caught:
        configurable.run(main, Odd)
    assert caught.value.code == 1 and capsys.readouterr() == ("", "error: what was wrong\n")


def test_run_shows_the_traceback_with_debug(capsys, monkeypatch):
    def main() -> None:
        raise UserError("what was wrong")

    monkeypatch.setattr(sys, "argv", ["train.py", "--debug"])
    with pytest.raises(SystemExit):
        configurable.run(main)
    assert "Traceback" in (err := capsys.readouterr().err) and err.endswith(
        "\nerror: what was wrong\n"
    )


def test_ctrl_c_exits_130_without_a_word(capsys):
    def main() -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as caught:
        configurable.run(main)
    assert caught.value.code == 130 and capsys.readouterr() == ("", "")


def test_a_terminal_that_lacks_a_character_shows_a_question_mark():
    code = "import configurable; configurable.run(lambda: print('1.5 \xb1 0.1 \u4f60'))"
    env = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, timeout=60
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, b"1.5 ? 0.1 ?", b"")


@pytest.mark.parametrize("error", [ZeroDivisionError, Odd])
def test_run_leaves_other_errors_alone(error):
    def main() -> None:
        raise error

    with pytest.raises(error):
        configurable.run(main)


@pytest.mark.parametrize(("returned", "code"), [(None, None), (0, 0), (130, 130)])
def test_run_exits_with_what_main_returns(returned, code):
    with pytest.raises(SystemExit) as caught:
        configurable.run(lambda: returned)
    assert caught.value.code == code


def test_importing_configurable_imports_no_torch_and_is_quick():
    code = "import sys, configurable; sys.exit(bool({'torch', 'numpy', 'wandb', 'matplotlib'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60).returncode == 0


# Whatever is typed


names = st.sampled_from([field.name for field in dataclasses.fields(AblateSettings)])
tricky = st.sampled_from(
    ["True", "none", "1,2", "'a'", "2**9**9**9", "1/0", "()", "-", "1e4", "0x", "a.b()"]
)
values = st.one_of(st.text(max_size=12), st.integers().map(str), st.floats().map(str), tricky)
words = st.one_of(
    st.text(max_size=12),
    names.map("--{}".format),
    values,
    st.builds("--{}={}".format, names, values),
    st.sampled_from(["--", "-", "--help", "x.py"]),
)
lines = st.one_of(st.text(max_size=20), st.builds("{} = {}".format, names, values))


@hypothesis_settings(max_examples=400, deadline=None, derandomize=True, database=None)
@example(cls=TrainSettings, text="seed = 3", argv=["--help"])
@given(
    cls=st.sampled_from(COMMANDS),
    text=st.lists(lines, max_size=4).map("\n".join),
    argv=st.lists(words, max_size=5),
)
def test_whatever_is_typed_is_read_or_refused(tmp_path_factory, cls, text, argv):
    path = tmp_path_factory.getbasetemp() / "whatever.py"
    path.write_bytes(text.encode("utf-8", errors="surrogatepass"))
    try:
        settings, _ = configure(cls, [*argv, str(path)], "usage")
    except UserError as error:
        assert str(error)
    except SystemExit as stop:
        assert stop.code == 0 and {"--help", "-h"} & set(argv)
    else:
        again = dataclasses.replace(settings)
        again.check()
        assert again == settings
