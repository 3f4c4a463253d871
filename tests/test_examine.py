"""The examination of schemes: a few faults of each kind, all of the catalogue, and its manners."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from planted import HONEST, PLANTED
from test_planted import SIZES, sentence_about
from test_schemes import COMPOSITES, MENTIONS

from common.errors import UserError
from configurable import GPTConfig
from measure.examine import errors_named, examine
from model import GPT

# a fault, and words of the sentence that it must lead to
FAULTS = {
    "features read the next token": "later tokens",
    "features leak beyond the training length alone": "later tokens",
    "embed reads the targets of the caller": "later tokens",
    "features subtract the mean of the batch": "other texts",
    "the logarithm of distance 0": "finite",
    "the gradient of a root at distance 0": "finite gradient",
    "a root that is undefined beyond 2 L": "finite",
    "a parameter that nothing reads": "offset",
    "a parameter read as .data": "slopes",
    "turn counts from the first token of the call": "cache",
    "score numbers its rows from 0": "blocks|cache",
    "a mask that sees farther than its span": "blocks",
    "get_bias is no method of a scheme: bias": "bias",
    "a matrix [L, L] that 4 L cannot index": "bias in line",
    "a bias with noise at every call": "same logits each time",
    "a slope that is read as a number of Python": "item",
    "a bias that wants the length": "must have bias(self, h, i, j)",
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_one_sentence_that_names_the_file_and_the_scheme(name, tmp_path):
    (case,) = [case for case in PLANTED if case.name == name]
    sentence = sentence_about(case.source, case.pos, tmp_path)
    assert sentence.startswith(f"theirs.py: {case.pos} ") and "\n" not in sentence
    assert any(word in sentence for word in FAULTS[name].split("|")), sentence


def test_a_piece_that_acts_in_a_late_layer_alone_is_examined(tmp_path):
    (case,) = [case for case in PLANTED if case.name == "features read the next token"]
    sentence = sentence_about(case.source, f"3 * rope | nope + {case.pos}", tmp_path)
    assert "must not read later tokens" in sentence
    sizes = {**SIZES, "n_layer": 24}
    assert examine(GPTConfig(pos="20 * rope | nope | 3 * alibi", **sizes)) == []


def test_a_single_token_that_is_treated_differently_is_found(tmp_path):
    source = (
        "from posenc import Rope\n\nclass Lazy(Rope):\n    def turn(self, x, tables, is_key):\n"
    )
    source += "        return x if x.shape[2] == 1 else super().turn(x, tables, is_key)\n"
    assert "must give the same logits with a cache" in sentence_about(source, "lazy", tmp_path)


def test_a_table_of_distances_that_training_does_not_reach_is_warned_of():
    config = GPTConfig(pos="t5(max_distance=512)", **SIZES)
    [warning] = examine(config)
    assert re.match("[0-9]+ numbers of t5 are read in texts of 4 L, but never trained", warning)
    assert examine(replace(config, pos="t5(max_distance=1.0)")) == []


def test_a_table_that_ends_is_a_warning_and_no_traceback(tmp_path):
    source = (
        "import torch\nfrom posenc import Piece\n\nclass Short(Piece):\n    by_distance = True\n"
    )
    source += "    def __init__(self, shape):\n        super().__init__()\n"
    source += "        self.table = torch.nn.Parameter(torch.randn(2 * shape.first_length))\n\n"
    source += "    def bias(self, h, i, j):\n        return self.table[i - j] + 0 * h\n"
    (tmp_path / "mine.py").write_text(source)
    [warning] = examine(GPTConfig(pos="short", **SIZES), tmp_path / "mine.py")
    assert warning.startswith("mine.py: short (longer, or on a GPU) fails: ")


def test_a_branch_in_no_layer_is_warned_of():
    warnings = examine(GPTConfig(pos="4 * rope | nope + alibi", **SIZES))
    assert warnings[0] == "nope is in no layer: n_layer=4 is too small for the pattern"
    assert [text.split()[0] for text in warnings] == ["nope", "alibi"]
    assert examine(GPTConfig(pos="3 * rope | nope + alibi", **SIZES)) == []
    assert examine(GPTConfig(pos="learned", **(SIZES | {"block_size": 8}))) == []


@pytest.mark.parametrize("bias, words", [("self.b[h]", ""), ("0 * self.b[h]", "pieces.0_mine.b")])
def test_what_softmax_cancels_is_no_fault_and_what_is_dead_is_one(bias, words, tmp_path):
    head = "import torch\nfrom torch import nn\nfrom posenc import Piece\n\n\nclass Mine(Piece):\n"
    start = "    def __init__(self, shape):\n        super().__init__()\n"
    start += "        self.b = nn.Parameter(torch.ones(shape.n_head))\n"
    method = f"\n    def bias(self, h, i, j):\n        return {bias} - i + j\n"
    sentence = sentence_about(head + start + method, "mine", tmp_path)
    assert sentence.endswith(words) and bool(sentence) == bool(words)


@pytest.mark.parametrize("case", HONEST[::4], ids=lambda case: case.name)
def test_an_honest_scheme_passes(case, tmp_path):
    assert sentence_about(case.source, case.pos, tmp_path) == ""


@pytest.mark.parametrize("part", range(4))
def test_a_scheme_of_the_catalogue_passes(part):
    for pos in (*MENTIONS, *COMPOSITES)[part::4]:
        assert examine(GPTConfig(pos=pos, **{**SIZES, "n_embd": 16})) == [], pos


def test_digits_may_be_any_tokens_and_an_extension_is_examined_with_its_file(tmp_path):
    sizes = {**SIZES, "vocab_size": 50257}
    assert examine(GPTConfig(pos="abacus(zero=784) + rope", **sizes)) == []
    assert examine(GPTConfig(pos="rope", extend="yarn + smooth(learned=True)", **SIZES)) == []


@pytest.mark.parametrize("n_embd", [32, 768])  # of the second, 682 tokens are read at once
def test_a_table_of_L_x_L_is_refused_unless_it_says_so(n_embd, tmp_path):
    source = (
        "import torch\nfrom torch import nn\nfrom posenc import Piece\n\n\nclass Mine(Piece):\n"
    )
    source += "    def __init__(self, shape):\n        super().__init__()\n        length = shape.first_length\n"
    source += "        self.m = nn.Parameter(torch.zeros(shape.n_head, length, length))\n"
    method = "\n    def bias(self, h, i, j):\n        return self.m[h, i, j]\n"
    path = tmp_path / "mine.py"
    sizes = {"n_layer": 1, "n_embd": n_embd, "block_size": 512}
    config = GPTConfig(pos="mine", **{**SIZES, **sizes})
    path.write_text(source + method)
    with pytest.raises(UserError, match="L positions only, set self.limit = .*bias in line 13"):
        examine(config, path)
    path.write_text(source + "        self.limit = length\n" + method)
    assert examine(config, path) == []


MISTAKES = {
    "    def __init__(self, shape):\n        self.slope = nn.Parameter(torch.ones(1))\n": (
        "mine.py: Dip.__init__ raises AttributeError: cannot assign parameters before"
    ),
    "    def __init__(self, shape):\n        self.rate = 1.0\n": "begins with super().__init__()",
    "    def __init__(self):\n        super().__init__()\n": "takes (self, shape, *, option=default)",
    "    def bias(self, i, j):\n        return i - j\n": "dip must have bias(self, h, i, j)",
    "    def mask(self, h, i, j):\n        return i - j < 9\n": "dip must have mask(self, i, j)",
    "    def embed(self, ids, tokens, total):\n        return torch.zeros(len(ids), 7)\n": (
        "mine.py: dip fails: RuntimeError: The size of tensor a (32) must match"
    ),
    "    def bias(self, h, i, j):\n        i - j\n": "dip: bias must return a tensor, not None",
    "    def forward(self, h, i, j):\n        return i - j\n": "dip has forward, but none of the methods",
    "    def turn(self, x, tables, is_key):\n        return x\n": "dip must have both tables and turn",
    "    def turn_back(self, y, tables):\n        return y\n": "dip must have both tables and turn, or neither",
    "    def bias(self, h, i, j):\n        return self.a * (j - i)\n"
    "    def __init__(self, shape):\n        super().__init__()\n"
    "        self.register_buffer('a', torch.rand(1), persistent=False)\n": "dip must make the same constants",
    "    def draw(self, length, generator):\n        return torch.arange(length).flip(0)\n": (
        "dip: draw must give ids in ascending order"
    ),
    "    def mask(self, i, j):\n        return i > j\n": "dip must give finite numbers, and a key to every",
}


@pytest.mark.parametrize("body", MISTAKES)
def test_a_typical_mistake_is_a_sentence_with_what_to_do(body, tmp_path):
    head = "import torch\nfrom posenc import Piece\nfrom torch import nn\nclass Dip(Piece):\n"
    path = tmp_path / "mine.py"
    path.write_text(head + body)
    with pytest.raises(UserError) as error:
        examine(GPTConfig(pos="dip", **SIZES), path)
    assert MISTAKES[body] in str(error.value) and "\n" not in str(error.value)
    if "Dip.__init__" in str(error.value):  # the model is built before it is examined
        with pytest.raises(UserError, match="^mine.py: Dip.__init__ "):
            GPT(GPTConfig(pos="dip", **SIZES), path)


def test_the_random_numbers_stay_as_they_were():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    examine(GPTConfig(pos="alibi", **SIZES))
    assert torch.equal(torch.rand(2), expected)


def test_an_error_in_training_is_named_only_if_it_is_out_of_the_users_file(tmp_path):
    path: Path = tmp_path / "mine.py"
    head = "from posenc import Piece\n\nclass Mine(Piece):\n    def bias(self, h, i, j):\n"
    path.write_text(head + "        return (j - i) / self.nothing\n")
    idx = torch.zeros(1, 8, dtype=torch.long)
    with pytest.raises(UserError, match="^mine.py.*bias in line 5 raises AttributeError"):
        with errors_named(path):
            GPT(GPTConfig(pos="mine", **SIZES), path)(idx, idx)
    with pytest.raises(KeyError), errors_named(path):
        raise KeyError("ours")
