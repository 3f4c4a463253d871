"""The files in config/: every one parses, a scheme file sets the scheme only, a size has the size that it says."""

import re
from pathlib import Path

import pytest

import configurable
from configurable import (
    AblateSettings,
    TrainSettings,
    configure,
    read_arguments,
    setting_values,
)
from model import GPT

CONFIG = Path(configurable.__file__).resolve().parent / "config"
FILES = sorted(CONFIG.rglob("*.py"))
SCHEMES = sorted(CONFIG.glob("*.py"))
SIZES = sorted((CONFIG / "size").glob("*.py"))
VOCABULARY = {"gpt2": 50257}  # of the corpus that a size is meant for, 256 where it is bytes


def read(*paths: Path, cls: type = TrainSettings) -> TrainSettings:
    """The settings that these files give, for a run that may be trained on."""
    words = [] if cls is AblateSettings else ["--init_from=out/RUN"]
    return configure(cls, [*map(str, paths), *words])[0]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(CONFIG).as_posix())
def test_every_file_is_read_and_says_why_it_is_there(path):
    cls = AblateSettings if path.is_relative_to(CONFIG / "paper") else TrainSettings
    settings = read(path, cls=cls)
    chosen = read_arguments(cls, [str(path)])[0].keys()
    assert chosen
    assert path.read_text(encoding="utf-8").startswith("# ")
    if path in SCHEMES:
        assert chosen == {"pos"}
        assert re.search(rf"\b{path.stem}\b", settings.pos)
    if path in SIZES:
        manner = setting_values(settings, "machine", "output").keys() - {"eval_interval", "compile"}
        assert not chosen & {"pos", "pos_file", "seed", "extend", *manner}


def test_a_scheme_and_a_size_go_together_in_either_order():
    for size in SIZES:
        for scheme in SCHEMES:
            assert read(scheme, size) == read(size, scheme)


@pytest.mark.parametrize("path", SIZES, ids=lambda path: path.stem)
def test_the_size_that_a_file_states_is_the_one_it_has(path):
    s, vocabulary = read(path), VOCABULARY.get(path.stem, 256)
    # four matrices, eight of the MLP and two norms a layer; one norm at the end
    n = (vocabulary + 1) * s.n_embd + s.n_layer * (12 * s.n_embd**2 + 2 * s.n_embd)
    if n < 10**6:
        assert GPT(s.gpt(vocabulary)).parameter_count == n
    text = path.read_text(encoding="utf-8")
    stated = re.search(r"([\d.]+)M\b", text)[1]
    assert round(n / 1e6, len(stated.partition(".")[2])) == float(stated)
    step = s.batch_size * s.block_size * s.gradient_accumulation_steps
    if path.stem == "gpt2":
        assert f"{step / 1e6:.2f}M tokens a step" in text
        assert f"# {step * s.max_iters / 1e9:.1f}B tokens" in text


def test_a_fine_tune_goes_by_the_length_of_its_run():
    s = read(CONFIG / "extend/tune.py")
    assert (s.block_size, s.extend) == (512, "yarn")
