"""The files in config/: every one parses, a scheme file sets the scheme only, a size file has the size that it says."""

import re
from dataclasses import asdict, fields
from pathlib import Path

import pytest
import torch

import configurable
from configurable import AblateSettings, TrainSettings, configure
from model import GPT
from posenc import Shape
from positions.scheme import Scheme

CONFIG = Path(configurable.__file__).resolve().parent / "config"
FILES = sorted(CONFIG.rglob("*.py"))
SCHEMES = sorted(CONFIG.glob("*.py"))
SIZES = sorted((CONFIG / "size").glob("*.py"))
VOCABULARY = {"gpt2": 50257}  # of the corpus that a size is meant for, 256 where it is bytes
DEFAULTS = TrainSettings()


def name_of(path: Path) -> str:
    return path.relative_to(CONFIG).as_posix()


def read(*paths: Path) -> TrainSettings:
    """The settings that these files give."""
    return configure(TrainSettings, [str(path) for path in paths], "")[0]


def set_by(path: Path) -> set[str]:
    """The settings that a file sets."""
    return set(re.findall(r"^(\w+) *=", path.read_text(encoding="utf-8"), re.MULTILINE))


def size(name: str) -> Path:
    return CONFIG / "size" / f"{name}.py"


def parameters(settings: TrainSettings, vocabulary: int) -> int:
    """The number of parameters of the model, which is not really made."""
    with torch.device("meta"):
        return GPT(settings.gpt(vocabulary)).parameter_count


def test_every_file_parses_and_says_why_it_is_there() -> None:
    assert len(FILES) > 30
    for path in FILES:
        cls = AblateSettings if path.is_relative_to(CONFIG / "paper") else TrainSettings
        configure(cls, [str(path)], "")
        known = {f.name for f in fields(cls)}
        assert known >= set_by(path) != set(), path
        assert path.read_text(encoding="utf-8").startswith("# "), path


def test_a_scheme_file_sets_pos_and_nothing_else() -> None:
    for path in SCHEMES:
        assert set_by(path) == {"pos"}, path
        assert asdict(read(path)) == asdict(DEFAULTS) | {"pos": read(path).pos}, path
        assert re.search(rf"\b{path.stem}\b", read(path).pos), path


def test_there_is_a_file_for_every_scheme_and_every_size() -> None:
    schemes = "nope learned sinusoidal rope alibi t5 window randomized logn kerple".split()
    assert {path.stem for path in SCHEMES} >= {*schemes}
    assert {path.stem for path in SIZES} >= {"tiny", "small", "gpt2"}


@pytest.mark.parametrize("path", SIZES, ids=name_of)
def test_a_size_file_leaves_the_scheme_the_seed_and_the_execution_alone(path: Path) -> None:
    execution = {f.name for f in fields(TrainSettings) if f.metadata["kind"] == "execution"}
    assert execution
    alone = {"pos", "pos_file", "seed", "init_from", *execution} - {"eval_interval"}
    assert not set_by(path) & alone


@pytest.mark.parametrize("scheme", SCHEMES, ids=name_of)
def test_every_scheme_goes_with_every_size_in_either_order(scheme: Path) -> None:
    for sizes in ([], *([size] for size in SIZES)):
        settings = read(scheme, *sizes)
        assert settings == read(*sizes, scheme)
        width, length = settings.n_embd, settings.block_size
        shape = Shape(settings.n_head, width // settings.n_head, width, length)
        built = Scheme(settings.pos, shape, settings.n_layer)
        assert built.text == settings.pos  # a config file spells the canonical text
        built.check_length(length)


@pytest.mark.parametrize(
    ("name", "length", "low", "high"),
    [
        ("tiny", 64, 0, 300_000),
        ("small", 128, 750_000, 850_000),
        ("gpt2", 512, 123_500_000, 124_500_000),
    ],
)
def test_a_size_has_the_parameters_that_it_is_known_for(
    name: str, length: int, low: int, high: int
) -> None:
    settings, vocabulary = read(size(name)), VOCABULARY.get(name, 256)
    assert settings.block_size == length
    assert low <= parameters(settings, vocabulary) <= high
    layer = (
        12 * settings.n_embd**2 + 2 * settings.n_embd
    )  # four matrices, eight of the MLP, two norms
    assert (
        parameters(settings, vocabulary)
        == (vocabulary + 1) * settings.n_embd + settings.n_layer * layer
    )


@pytest.mark.parametrize("path", SIZES, ids=name_of)
def test_the_size_that_a_file_states_is_the_one_it_has(path: Path) -> None:
    stated = re.search(r"([\d.]+)M\b", path.read_text(encoding="utf-8"))[1]
    n = parameters(read(path), VOCABULARY.get(path.stem, 256)) / 1e6
    assert round(n, len(stated.partition(".")[2])) == float(stated)


def test_the_tokens_that_the_recipe_of_gpt2_states_are_its_own() -> None:
    text, s = size("gpt2").read_text(encoding="utf-8"), read(size("gpt2"))
    step = s.batch_size * s.block_size * s.gradient_accumulation_steps
    assert (
        f"{s.batch_size} x {s.block_size} x {s.gradient_accumulation_steps} = {step / 1e6:.2f}M tokens"
        in text
    )
    assert f"# {step * s.max_iters / 1e9:.1f}B tokens" in text


def test_what_a_scheme_file_says_of_the_default_length_is_true() -> None:
    assert "max=4096" in read(CONFIG / "randomized.py").pos and 4096 == 32 * DEFAULTS.block_size
    assert "size=64" in read(CONFIG / "window.py").pos and 64 == DEFAULTS.block_size // 2
