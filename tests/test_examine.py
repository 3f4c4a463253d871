"""The examination of schemes: every planted mistake is told in a sentence that names file, class and method; honest schemes pass."""

import itertools
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from planted import HONEST as HONEST_ONES
from planted import PLANTED, Honest, Planted
from test_schemes import SCHEMES, first_of_each_name

from configurable import GPTConfig, UserError
from model import GPT
from positions.catalogue import load_file
from runs.examine import examine, told

SHAPE = GPTConfig(block_size=32, vocab_size=64, n_layer=3, n_head=2, n_embd=16)
HEAD = """
import math
import torch
from torch import nn
from posenc import Alibi, Extension, Nope, Piece, Rope, Shape, rope_frequencies


class Mine(Piece):
"""
OPTIONS = "def __init__(self, shape: Shape) -> None:\n    super().__init__()\n    "
PARAMETER = OPTIONS + "self.a = nn.Parameter(torch.ones(()))\n"
CUMULATE = "def score(self, tile):\n    c = tile.features_k.mT.cumsum(-1)\n    return tile.scores + tile.added + c[..., tile.rows[:, 0], None] - c[..., None, :]\n"


@dataclass(frozen=True)
class Cheat:
    """The body of a class Mine, and words of the sentence that must come."""

    body: str
    says: tuple[str, ...]
    pos: str = "mine"
    shape: dict[str, int] = field(default_factory=dict)
    warns: bool = False


CHEATS = {
    # later tokens
    "features of the next token": Cheat(
        "per_layer = True\n"
        "def features(self, x):\n    return torch.cat((x[:, 1:], x[:, -1:]), 1)[..., :2]\n"
        + CUMULATE.replace("tile.features_k", "tile.features_k[..., :2]"),
        ("Mine.features", "later tokens"),
    ),
    "features with the mean of the text": Cheat(
        "def features(self, x):\n    return (x - x.mean(1, keepdim=True))[..., :2]\n" + CUMULATE,
        ("Mine.features", "later tokens"),
    ),
    "features that look ahead in a test only": Cheat(
        "def features(self, x):\n"
        "    return x[..., :2] if self.training else x.flip(1).cumsum(1).flip(1)[..., :2]\n"
        + CUMULATE,
        ("Mine.features", "later tokens"),
    ),
    "features that look ahead in training only": Cheat(
        "def features(self, x):\n"
        "    return x.flip(1).cumsum(1).flip(1)[..., :2] if self.training else x[..., :2]\n"
        + CUMULATE,
        ("Mine.features", "later tokens"),
    ),
    "embed of the last token": Cheat(
        "def embed(self, ids, text):\n    return (text.tokens[:, -1:, None] * torch.linspace(0, 0.1, 16)).expand(-1, len(ids), 16)\n",
        ("Mine.embed", "later tokens"),
    ),
    "embed that looks ahead beyond the training length only": Cheat(
        OPTIONS + "self.length = shape.length\n"
        "def embed(self, ids, text):\n"
        "    ahead = text.tokens.roll(-1, 1)[:, -len(ids):, None] * torch.linspace(0, 0.1, 16)\n"
        "    return ahead * (text.total > self.length)\n",
        ("Mine.embed", "later tokens"),
    ),
    "ids from tokens that embed keeps": Cheat(
        "def embed(self, ids, text):\n    Mine.seen = text.tokens[0]\n    return torch.zeros(16)\n"
        "def ids(self, index, total):\n"
        "    seen = getattr(Mine, 'seen', index)\n    return index + int(seen.sum())\n",
        ("Mine.ids",),
        "mine + fire",
    ),
    "draw from tokens that features keep": Cheat(
        "shift = 0\n"
        "def features(self, x):\n    Mine.shift = int(x[0, -1, 0] * 100) % 7\n    return x[..., :1]\n"
        "def draw(self, length, generator):\n"
        "    Mine.shift += 1\n    return torch.arange(length) + Mine.shift\n"
        "def score(self, tile):\n    return tile.scores + tile.added + tile.j * 0.01\n",
        ("Mine.draw", "generator"),
    ),
    "a mask of what later keys hold": Cheat(
        "def embed(self, ids, text):\n    self.tokens = text.tokens\n    return torch.zeros(16)\n"
        "def mask(self):\n"
        "    last = self.tokens[0, -1] % 2\n    return lambda i, j: (i == j) | ((j % 2) == last)\n",
        ("Mine.mask",),
    ),
    "a softmax over keys that are not seen": Cheat(
        "def score(self, tile):\n    return tile.scores.log_softmax(-1) * 2 - tile.scores.amax(-1, keepdim=True) * tile.scores + tile.added\n",
        ("Mine.score", "later tokens"),
    ),
    "targets from the frame of the caller": Cheat(
        "def embed(self, ids, text):\n"
        "    import sys\n    frame = sys._getframe()\n"
        "    while frame and frame.f_locals.get('targets') is None:\n        frame = frame.f_back\n"
        "    if frame is None:\n        return torch.zeros(16)\n"
        "    return frame.f_locals['targets'][..., None] * torch.linspace(0, 0.1, 16)\n",
        ("Mine.embed", "later tokens"),
    ),
    "features that look ahead in compiled code only": Cheat(
        "def features(self, x):\n"
        "    ahead = torch.compiler.is_compiling()\n"
        "    return (x.roll(-1, 1) if ahead else x)[..., :2]\n" + CUMULATE,
        ("Mine.features", "later tokens"),
    ),
    "features that look ahead under autocast only": Cheat(
        "def features(self, x):\n"
        "    ahead = torch.is_autocast_enabled('cpu')\n"
        "    return (x.roll(-1, 1) if ahead else x)[..., :2]\n" + CUMULATE,
        ("Mine.features", "later tokens"),
    ),
    "features that look ahead in a text of the training length only": Cheat(
        OPTIONS + "self.length = shape.length\n"
        "def features(self, x):\n"
        "    ahead = x.shape[1] == self.length\n"
        "    return (x.roll(-1, 1) if ahead else x)[..., :2]\n" + CUMULATE,
        ("Mine.features", "later tokens"),
        "mine",
        {"block_size": 1024, "n_embd": 512},
    ),
    "features that look ahead in a test of the training length only": Cheat(
        OPTIONS + "self.length = shape.length\n"
        "def features(self, x):\n"
        "    ahead = x.shape[1] == self.length and not self.training\n"
        "    return (x.roll(-1, 1) if ahead else x)[..., :2]\n" + CUMULATE,
        ("Mine.features", "later tokens"),
        "mine",
        {"block_size": 128},
    ),
    "embed of what follows a token that no byte is": Cheat(
        "def embed(self, ids, text):\n"
        "    new = text.tokens[:, -len(ids):]\n"
        "    ahead = new.roll(-1, 1) * (new > 255)\n"
        "    return ahead[..., None] * torch.linspace(0, 0.01, 16, device=ids.device)\n",
        ("Mine.embed", "later tokens"),
        "mine",
        {"vocab_size": 50257},
    ),
    "embed that looks ahead in long texts of training only": Cheat(
        "def embed(self, ids, text):\n"
        "    ahead = text.tokens.roll(-1, 1)[:, -len(ids):, None] * torch.linspace(0, 0.1, 256)\n"
        "    return ahead * (self.training and text.total > 1024)\n",
        ("Mine.embed", "later tokens"),
        "mine",
        {"block_size": 4096, "n_embd": 256},
    ),
    # other texts
    "features of the first text of the batch": Cheat(
        "def features(self, x):\n    return (x + x[:1])[..., :2]\n" + CUMULATE,
        ("Mine.features", "other texts"),
    ),
    "scores normalised over the batch": Cheat(
        "def score(self, tile):\n    return tile.scores - tile.scores.mean(0) + tile.added\n",
        ("Mine.score", "other texts"),
    ),
    "features of other texts in training only": Cheat(
        "def features(self, x):\n    return (x + self.training * x.mean(0))[..., :2]\n" + CUMULATE,
        ("Mine.features", "other texts"),
    ),
    # not finite
    "a logarithm at distance 0": Cheat(
        "def bias(self, like):\n    return lambda h, i, j: torch.log((i - j).to(like.dtype)) + 0 * h\n",
        ("Mine.bias", "finite", "inf"),
    ),
    "a power that overflows": Cheat(
        "def bias(self, like):\n    return lambda h, i, j: torch.exp(8.0 * (i - j).to(like.dtype)) + 0 * h\n",
        ("Mine.bias", "finite", "inf"),
    ),
    "a root whose gradient is infinite at distance 0": Cheat(
        PARAMETER
        + "def bias(self, like):\n    return lambda h, i, j: -(self.a * (i - j)).sqrt() + 0 * h\n",
        ("Mine.bias", "gradient"),
    ),
    "a mask that hides all": Cheat(
        "def mask(self):\n    return lambda i, j: j > 3\n",
        ("Mine.mask", "finite"),
    ),
    "a temperature of 0 / 0": Cheat(
        "def temperature(self, index, like):\n    return index.to(like.dtype) / index\n",
        ("Mine.temperature", "finite", "nan"),
    ),
    "numbers that overflow at L only": Cheat(
        "def bias(self, like):\n    return lambda h, i, j: torch.where(i - j > 900, math.inf, 0.0) + 0 * h\n",
        ("Mine.bias", "1024"),
        "mine",
        {"block_size": 1024},
    ),
    "a matrix that ends at L": Cheat(
        OPTIONS + "self.register_buffer('table', torch.randn(shape.length, shape.length))\n"
        "def bias(self, like):\n    return lambda h, i, j: self.table[i, j] + 0 * h\n",
        ("Mine.bias", "IndexError", "`limit`"),
    ),
    "numbers that overflow beyond L": Cheat(
        "def bias(self, like):\n    return lambda h, i, j: torch.where(i - j > 50, math.nan, 0.0) + 0 * h\n",
        ("Mine.bias", "nan", "beyond"),
        warns=True,
    ),
    # parameters
    "a parameter that nothing reads": Cheat(
        PARAMETER + "def bias(self, like):\n    return lambda h, i, j: 0.1 * (j - i) + 0 * h\n",
        ("Mine.a", "gradient"),
    ),
    "a parameter that is detached": Cheat(
        PARAMETER
        + "def bias(self, like):\n    return lambda h, i, j: self.a.item() * (j - i) + 0 * h\n",
        ("Mine.a", "gradient"),
    ),
    "a tensor that is kept beside the parameters": Cheat(
        OPTIONS + "self._a = {'slopes': [torch.zeros(2, requires_grad=True)]}\n"
        "def bias(self, like):\n    return lambda h, i, j: self._a['slopes'][0][h] * (j - i)\n",
        ("Mine.bias", "never trains"),
    ),
    "a tensor of the class": Cheat(
        "a = torch.zeros(2, requires_grad=True)\n"
        "def bias(self, like):\n    return lambda h, i, j: self.a[h] * (j - i)\n",
        ("Mine.bias", "never trains"),
    ),
    "a parameter that each call makes anew": Cheat(
        PARAMETER + "def bias(self, like):\n"
        "    self.a = nn.Parameter(self.a.detach() + 0)\n"
        "    return lambda h, i, j: self.a * (j - i) + 0 * h\n",
        ("Mine.bias", "never trains"),
    ),
    "a parameter that the first call makes": Cheat(
        OPTIONS + "self.a = None\n"
        "def bias(self, like):\n"
        "    self.a = nn.Parameter(torch.zeros(2)) if self.a is None else self.a\n"
        "    return lambda h, i, j: self.a[h] * (j - i)\n",
        ("Mine.bias", "never trains"),
    ),
    # shapes and types
    "a bias of a matrix whatever is asked": Cheat(
        OPTIONS + "self.table = nn.Parameter(torch.zeros(32, 32))\n"
        "def bias(self, like):\n    return lambda h, i, j: self.table\n",
        ("Mine.bias", "size of tensor a (3) must match the size of tensor b (32)"),
    ),
    "a bias that is a number": Cheat(
        "def bias(self, like):\n    return lambda h, i, j: 0.5\n", ("Mine.bias", "float")
    ),
    "a bias that is no function": Cheat(
        "def bias(self, like):\n    return like.new_zeros(2, 32, 32)\n", ("Mine.bias", "callable")
    ),
    "a bias in half precision": Cheat(
        "def bias(self, like):\n    return lambda h, i, j: (j - i).half() + 0 * h\n",
        ("Mine.bias", "float32"),
    ),
    "ids that are real numbers": Cheat(
        "def ids(self, index, total):\n    return index / 2\n",
        ("Mine.ids", "int64"),
        "mine + alibi",
    ),
    "ids of eight bits": Cheat(
        "continuous = True\ndef ids(self, index, total):\n    return index.to(torch.bfloat16)\n",
        ("Mine.ids", "float32"),
        "mine + rope",
    ),
    "ids that fall": Cheat(
        "def ids(self, index, total):\n    return total - 1 - index\n",
        ("Mine.ids", "decrease"),
        "mine + alibi",
    ),
    "a mask of numbers": Cheat(
        "def mask(self):\n    return lambda i, j: (i - j < 4).float()\n", ("Mine.mask", "bool")
    ),
    "a turn in another type": Cheat(
        "def turn(self, ids, total, maps=()):\n    return (lambda q: q.double()), (lambda k: k.double())\n",
        ("Mine.turn", "float32"),
    ),
    "a turn that widens bfloat16": Cheat(
        "def turn(self, ids, total, maps=()):\n"
        "    c = ids[:, None].float().cos()\n    return (lambda q: q * c), (lambda k: k * c)\n",
        ("Mine.turn", "bfloat16"),
    ),
    "features of some tokens": Cheat(
        "def features(self, x):\n    return x[:, ::2, :2]\n" + CUMULATE, ("Mine.features", "shape")
    ),
    "changed queries": Cheat(
        "def turn(self, ids, total, maps=()):\n    return (lambda q: q.mul_(2)), (lambda k: k)\n",
        ("Mine.turn", "changes a tensor"),
    ),
    # one pass, blocks, a cache
    "a turn by the place in the part": Cheat(
        "def turn(self, ids, total, maps=()):\n"
        "    def f(x):\n        return x * torch.arange(x.shape[-2])[:, None].cos().to(x.dtype)\n"
        "    return f, f\n",
        ("Mine.turn", "cache"),
    ),
    "a temperature by the number of queries": Cheat(
        "def temperature(self, index, like):\n    return 1 + torch.arange(len(index)).to(like.dtype)\n",
        ("Mine.temperature", "cache"),
    ),
    "a bias by the size of the tile": Cheat(
        "def bias(self, like):\n    return lambda h, i, j: (j - i) / j.shape[-1] + 0 * h\n",
        ("Mine.bias", "tile"),
    ),
    "features of the part before": Cheat(
        "def features(self, x):\n    return torch.cat((0 * x[:, :1], x[:, :-1]), 1)[..., :2]\n"
        + CUMULATE,
        ("Mine.features", "cache"),
    ),
    "a span that is too short": Cheat(
        "span = (4, 0)\ndef mask(self):\n    return lambda i, j: i - j < 12\n",
        ("Mine.mask", "tile"),
    ),
    # calls that differ
    "random numbers": Cheat(
        "def bias(self, like):\n    return lambda h, i, j: torch.rand(j.shape) + 0 * h * i\n",
        ("Mine.bias", "random"),
    ),
    "a seed that __init__ sets": Cheat(
        OPTIONS + "torch.manual_seed(0)\n"
        "def bias(self, like):\n    return lambda h, i, j: j - i + 0 * h\n",
        ("__init__", "seed"),
    ),
    "a seed that is set in training": Cheat(
        "def bias(self, like):\n"
        "    self.training and torch.manual_seed(0)\n"
        "    return lambda h, i, j: j - i + 0 * h\n",
        ("Mine.bias", "seed"),
    ),
    "a count of calls": Cheat(
        "n = 0\n"
        "def bias(self, like):\n    self.n += 1\n    return lambda h, i, j: 0.01 * self.n * (j - i) + 0 * h\n",
        ("Mine.bias", "earlier call"),
    ),
    "tokens remembered from training": Cheat(
        "seen = None\n"
        "def embed(self, ids, text):\n"
        "    if self.training:\n        self.seen = text.tokens[0, 0]\n"
        "    return torch.zeros(16) if self.seen is None else self.seen * torch.linspace(0, 0.1, 16)\n",
        ("Mine.embed", "other texts"),
    ),
    "a count that training leaves behind": Cheat(
        "n = 0\n"
        "def bias(self, like):\n    self.n += self.training\n"
        "    n = 0 if self.training else self.n\n    return lambda h, i, j: 0.01 * n * (j - i) + 0 * h\n",
        ("Mine.bias", "earlier call"),
    ),
    # names
    "biass": Cheat(
        "def biass(self, like):\n    return lambda h, i, j: j - i\n",
        ("Mine.biass", "did you mean bias"),
    ),
    "a wrong name beside a right one": Cheat(
        "def bias(self, like):\n    return lambda h, i, j: j - i + 0 * h\n"
        "def temprature(self, index, like):\n    return index\n",
        ("Mine.temprature", "did you mean temperature"),
    ),
    "limits": Cheat(
        "limits = 64\ndef bias(self, like):\n    return lambda h, i, j: j - i + 0 * h\n",
        ("Mine.limits", "did you mean limit"),
    ),
    "limt": Cheat(
        OPTIONS + "self.limt = shape.length\n"
        "def bias(self, like):\n    return lambda h, i, j: j - i + 0 * h\n",
        ("Mine.limt", "did you mean limit"),
    ),
    "nothing": Cheat(
        "def forward(self, x):\n    return x\n", ("Mine.forward", "not what Piece has")
    ),
    "another signature": Cheat(
        "def bias(self):\n    return lambda h, i, j: j - i\n",
        ("Mine.bias", "TypeError", "positional"),
    ),
    "another function": Cheat(
        "def bias(self, like):\n    return lambda i, j: j - i\n", ("Mine.bias", "TypeError")
    ),
    # errors
    "a key that is missing": Cheat(
        "def bias(self, like):\n    return {}['slope']\n", ("Mine.bias", "line 10", "KeyError")
    ),
    "an error at the start": Cheat(
        OPTIONS + "self.bias = nn.Parameter(torch.ones(2))\n"
        "def bias(self, like):\n    return lambda h, i, j: j - i\n",
        ("line 11", "__init__", "KeyError"),
    ),
}
HONEST = {
    "a bias of whole numbers": (
        "def bias(self, like):\n    return lambda h, i, j: j - i + 0 * h\n",
        "mine",
    ),
    "a parameter that starts at 0": (
        OPTIONS + "self.a = nn.Parameter(torch.zeros(shape.n_head))\n"
        "def bias(self, like):\n    return lambda h, i, j: self.a[h] * torch.log1p((i - j).to(like.dtype))\n",
        "mine + rope",
    ),
    "features that the score sums up": (
        "per_layer = True\n" + OPTIONS + "self.gate = nn.Linear(shape.width, 2)\n"
        "def features(self, x):\n    return nn.functional.logsigmoid(self.gate(x))\n" + CUMULATE,
        "mine",
    ),
    "a table that ends at L": (
        OPTIONS
        + "self.limit = shape.length\n    self.table = nn.Parameter(torch.zeros(shape.length))\n"
        "def bias(self, like):\n    return lambda h, i, j: self.table[i - j] + 0 * h\n",
        "mine",
    ),
    "ids that follow the total": (
        "def ids(self, index, total):\n    return index * 4096 // total\n",
        "mine + rope",
    ),
    "documents kept apart": (
        "def embed(self, ids, text):\n    self.tokens = text.tokens\n    return torch.zeros(16, device=ids.device)\n"
        "def mask(self):\n"
        "    number = (self.tokens == 7).cumsum(1)\n"
        "    return lambda i, j: (number[:, i[:, 0]][..., None] == number[:, None, j.flatten()])[:, None]\n",
        "mine + rope",
    ),
    "a random draw": (
        "def draw(self, length, generator):\n"
        "    return torch.randint(3, (length,), generator=generator).cumsum(0)\n",
        "mine + alibi",
    ),
    "a vector for a token that no byte is": (
        "reads_ids = False\n" + OPTIONS + "self.a = nn.Parameter(torch.zeros(shape.width))\n"
        "def embed(self, ids, text):\n"
        "    return (text.tokens[:, -ids.shape[-1]:] == 50256)[..., None] * self.a\n",
        "mine + rope",
    ),
    "the mean of earlier tokens": (
        OPTIONS + "self.e = nn.Embedding(50257, shape.width)\n"
        "def embed(self, ids, text):\n"
        "    e = self.e(text.tokens)\n    n = torch.arange(1, e.shape[1] + 1, device=e.device)[:, None]\n"
        "    return (e.cumsum(1) / n)[:, -ids.shape[-1]:]\n",
        "mine + rope",
    ),
}


def written(tmp_path: Path, body: str) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(HEAD + textwrap.indent(body, "    "), encoding="utf-8")
    return path


def config(pos: str, **changes: int) -> GPTConfig:
    return GPTConfig(**{**vars(SHAPE), "pos": pos, **changes})


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_is_told(tmp_path: Path, name: str) -> None:
    cheat = CHEATS[name]
    shape = config(cheat.pos, **cheat.shape)
    path = written(tmp_path, cheat.body)
    if cheat.warns:
        (sentence,) = examine(shape, path)
    else:
        with pytest.raises(UserError) as raised:
            examine(shape, path)
        sentence = str(raised.value)
    assert sentence.startswith("mine.py: ") and "\n" not in sentence
    assert [word for word in cheat.says if word not in sentence] == [], sentence


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_scheme_passes(tmp_path: Path, name: str) -> None:
    body, pos = HONEST[name]
    assert examine(config(pos, vocab_size=50257), written(tmp_path, body)) == []


def test_a_subclass_may_have_what_its_parent_has(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"  # the parent's `raw` is near to `draw`, and is not the user's
    source = HEAD.replace("Mine(Piece)", "Mine(Alibi)") + "    pass\n"
    path.write_text(source, encoding="utf-8")
    assert examine(config("mine"), path) == []


def test_what_a_table_beyond_the_training_length_lacks_is_no_fault() -> None:
    assert examine(config("shape + learned(rows=64)")) == []


def test_digits_may_be_any_tokens() -> None:
    assert examine(config("abacus(zero=784) + rope", vocab_size=50257)) == []


def test_a_long_text_needs_little_memory() -> None:
    began = time.process_time()
    assert examine(config("alibi", block_size=2**17, n_head=8, n_embd=512)) == []
    assert time.process_time() - began < 6  # the room of a whole cache: a minute, and 4 GB


# ---- what was written by someone who had not seen the examination


ESCAPES = {
    # it adds one number to all scores of a query, which softmax takes out again, but for rounding
    "score counts gates of keys ahead",
    # what is examined is shorter
    "features leak from the fiftieth call on",
    # which does nothing, and harms nothing
    "frequencies of a piece that turns nothing",
}


def at_32(pos: str) -> GPTConfig:
    return GPTConfig(block_size=32, vocab_size=256, n_layer=4, n_head=2, n_embd=32, pos=pos)


def sentences(case: Planted | Honest, tmp_path: Path) -> tuple[str, bool]:
    """What is said of a scheme, and whether it is refused."""
    path = tmp_path / "theirs.py"
    path.write_text(case.source, encoding="utf-8")
    load_file.cache_clear()
    try:
        return "; ".join(examine(at_32(case.pos), path)), False
    except UserError as error:
        return str(error), True


def test_every_planted_scheme_is_told(tmp_path: Path, record: Callable[..., None]) -> None:
    escaped, warned = [], 0
    for case in PLANTED:
        if case.name in ESCAPES:
            continue
        said, refused = sentences(case, tmp_path)
        warned += not refused
        if not said or "\n" in said or (case.warns and refused):
            escaped.append((case.name, said))
    assert escaped == []
    tried = len(PLANTED)
    record("planted by others: refused with a sentence", tried - warned - len(ESCAPES), tried=tried)
    record("planted by others: warned of (beyond L, or on a GPU)", warned, tried=tried)
    first = "at first sight (noted when the first version ran, not measured by this command)"
    record(f"planted by others: refused {first}", 185, tried=218)
    record(f"planted by others: warned of {first}", 10, tried=218)
    record("planted by the author of the examination: told", len(CHEATS), tried=len(CHEATS))


def test_no_honest_scheme_is_refused(tmp_path: Path, record: Callable[..., None]) -> None:
    said = {case.name: sentences(case, tmp_path) for case in HONEST_ONES}
    assert [(name, *s) for name, s in said.items() if s != ("", False)] == []
    record("false alarms over honest schemes of a user's own", 0, tried=len(said))


def test_a_scheme_of_the_catalogue_passes(record: Callable[..., None]) -> None:
    for pos in SCHEMES:
        assert examine(config(pos)) == [], pos
    record("false alarms over the catalogue", 0, tried=len(SCHEMES))


def pairs_of_schemes() -> list[str]:
    """Two schemes together, where they can act together."""
    found = []
    for two in itertools.combinations(first_of_each_name(), 2):
        try:
            GPT(config(" + ".join(two)))
        except UserError:
            continue
        found.append(" + ".join(two))
    return found


def test_some_pairs_pass() -> None:
    for pos in pairs_of_schemes()[::50]:
        assert examine(config(pos)) == [], pos


@pytest.mark.slow
def test_all_pairs_pass(record: Callable[..., None]) -> None:
    pairs = pairs_of_schemes()
    for pos in pairs:
        assert examine(config(pos)) == [], pos
    record("false alarms over pairs of the catalogue", 0, tried=len(pairs))


@pytest.mark.slow
@pytest.mark.parametrize(("length", "heads", "width"), [(128, 4, 256), (512, 12, 768)])
def test_it_takes_seconds(length: int, heads: int, width: int, record: Callable[..., None]) -> None:
    seconds = []
    for name in first_of_each_name():
        shape = config(name, block_size=length, n_head=heads, n_embd=width, vocab_size=256)
        if "rows" not in name and "max" not in name:
            examine(shape)
            began = time.process_time()
            examine(shape)
            seconds.append(time.process_time() - began)
    record(
        f"seconds of an examination, L = {length}, width {width}, mean", sum(seconds) / len(seconds)
    )
    record(f"seconds of an examination, L = {length}, width {width}, longest", max(seconds))


# ---- around it


def test_the_random_numbers_stay_as_they_were() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    examine(config("alibi"))
    assert torch.equal(torch.rand(2), expected)


def test_a_compiled_failure_is_one_sentence(tmp_path: Path) -> None:
    body = (
        "def bias(self, like):\n    return lambda h, i, j: (j - i) * h if i.max() > 3 else j - i\n"
    )
    path = written(tmp_path, body)
    model = GPT(config("mine"), path)
    tokens = torch.zeros(1, 8, dtype=torch.long)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with (
        pytest.raises(UserError, match=r"^mine.py: .* line 10 .*--compile=False") as raised,
        told(path),
    ):
        compiled(tokens, tokens)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 500


def test_an_error_that_python_turns_into_another_is_one_sentence(tmp_path: Path) -> None:
    path = written(tmp_path, "def bias(self, like):\n    raise StopIteration\n")
    with pytest.raises(
        UserError, match=r"^mine.py: bias failed in line 10 with RuntimeError: .*Stop"
    ):
        examine(config("mine"), path)


def test_an_error_of_the_project_is_not_laid_on_a_scheme(tmp_path: Path) -> None:
    with pytest.raises(KeyError), told(written(tmp_path, "pass\n")):
        raise KeyError("ours")
