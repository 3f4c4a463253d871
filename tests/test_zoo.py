"""Schemes in files: the zoo's, and a user's own, which are loaded alike."""

import math
import re
from pathlib import Path

import pytest
import torch

import attention
from configurable import UserError
from model import GPT, GPTConfig
from posenc import Shape, Text
from positions import catalogue
from positions.catalogue import ZOO, find, load_file, scheme_names
from positions.scheme import Plan, Scheme

SHAPE = Shape(n_head=2, head_dim=4, width=8, length=8)
FLOAT64 = torch.empty(0, dtype=torch.float64)
OWN = '''
import torch
from torch import nn
from posenc import Piece, Shape

class RootDistance(Piece):
    """score += -w_h sqrt(i - j), w learned for each head."""
    def __init__(self, shape: Shape, *, start: float = 0.5):
        super().__init__()
        self.w = nn.Parameter(torch.full((shape.n_head,), start))
    def bias(self, like):
        w = self.w.to(like.dtype)
        return lambda h, i, j: -w[h] * torch.sqrt((i - j).to(w.dtype))
'''


@pytest.fixture
def own(tmp_path: Path):
    """A function that writes a file of schemes and returns its path."""

    def write(text: str, name: str = "mine.py") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def model(pos: str, pos_file: Path | None = None, **settings: object) -> GPT:
    torch.manual_seed(0)
    shape = dict(block_size=8, vocab_size=11, n_layer=2, n_head=2, n_embd=8) | settings
    return GPT(GPTConfig(pos=pos, **shape), pos_file)


def added(scheme: Scheme, tokens: int) -> torch.Tensor:
    """What a scheme adds to the scores of its first layer."""
    index = torch.arange(tokens)
    ids = scheme.ids(index, tokens)
    plan = scheme.plans(index, ids, ids, tokens, FLOAT64)[0]
    return attention.added_scores(plan, SHAPE.n_head, FLOAT64, slice(None), index)


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(11, shape, generator=torch.Generator().manual_seed(1))


# The zoo


FILES = sorted(ZOO.glob("[a-z]*.py"))


def test_a_file_of_the_zoo_holds_one_scheme_of_its_own_name_and_names_its_paper():
    """A scheme imports posenc and configurable, and nothing that stands above them."""
    for path in FILES:
        text, said = path.read_text(encoding="utf-8"), find(path.stem).__doc__
        assert list(load_file(path)) == [path.stem]
        assert "Verdict: " in said and re.search(r"arXiv \d{4}\.\d{5}|kexue|Not from a paper", text)
        project = {"attention", "model", "positions", "runs", "train", "data", "evaluate"}
        assert not project & set(re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE))


@pytest.mark.parametrize("name", [path.stem for path in FILES if path.stem in scheme_names()])
def test_a_file_of_the_zoo_could_be_a_users_own(name, tmp_path):
    """Under another name, since its own is taken."""
    text = (ZOO / f"{name}.py").read_text(encoding="utf-8")
    own = "".join(word.capitalize() for word in name.split("_"))
    text = text.replace(f"class {own}(", "class Renamed(")
    (tmp_path / "renamed.py").write_text(text, encoding="utf-8")
    theirs, ours = Scheme(name, SHAPE, 1), Scheme("renamed", SHAPE, 1, tmp_path / "renamed.py")
    state = {key.replace(name, "renamed"): value for key, value in theirs.state_dict().items()}
    ours.load_state_dict(state)
    assert torch.equal(added(theirs, 7), added(ours, 7))


def kerple(kind: str, r1: list[float], r2: list[float]) -> torch.Tensor:
    """The bias (H, 6) of the last query: at distances 5, 4, 3, 2, 1, 0."""
    scheme = Scheme(f"kerple(kind={kind})", SHAPE, 1).double()
    piece = scheme.pieces["0_kerple"]
    piece.r1.data = torch.tensor(r1, dtype=torch.float64)
    piece.r2.data = torch.tensor(r2, dtype=torch.float64)
    return added(scheme, 6)[:, -1]


def test_kerple_is_its_kernel():
    log, power = (kerple(kind, [0.5, 1.75], [0.25, 0.9]).tolist() for kind in ("log", "power"))
    for h, (r1, r2) in enumerate([(0.5, 0.25), (1.75, 0.9)]):
        assert log[h] == pytest.approx([-r1 * math.log(1 + r2 * d) for d in (5, 4, 3, 2, 1, 0)])
        assert power[h] == pytest.approx([-r1 * d**r2 for d in (5, 4, 3, 2, 1, 0)])


def test_the_parameters_of_kerple_are_bounded():
    """From below at 0.01, so that a step of the optimizer cannot turn the sign; the exponent from
    above at 2."""
    for kind in ("log", "power"):
        low = kerple(kind, [-3.0, 0.0], [-1.0, 0.002])
        assert torch.equal(low, kerple(kind, [0.01, 0.01], [0.01, 0.01]))
        high, bound = kerple(kind, [1.0, 1.0], [2.5, 9.0]), kerple(kind, [1.0, 1.0], [2.0, 2.0])
        assert torch.equal(high, bound) == (kind == "power")


@pytest.mark.parametrize(
    "kind, r1, r2", [("log", -1.0, -1.0), ("power", -1.0, -1.0), ("power", 1.0, 3.0)]
)
def test_a_parameter_of_kerple_that_has_left_its_bounds_can_come_back(kind, r1, r2):
    scheme = Scheme(f"kerple(kind={kind})", SHAPE, 1).double()
    piece = scheme.pieces["0_kerple"]
    piece.r1.data, piece.r2.data = (torch.full((2,), r, dtype=torch.float64) for r in (r1, r2))
    added(scheme, 6)[:, -1].sum().backward()
    for gradient in (piece.r1.grad, piece.r2.grad):
        assert (gradient < 0).all()  # less of either would be a larger score


def test_kerple_starts_where_its_authors_start():
    torch.manual_seed(0)
    piece = find("kerple")(Shape(n_head=1000, head_dim=4, width=4000, length=8))
    for r, top in ((piece.r1, 2), (piece.r2, 1)):
        assert 0 <= r.min() < 0.05 * top and 0.95 * top < r.max() <= top
        assert float(r.detach().mean()) == pytest.approx(top / 2, abs=0.06 * top)


# A user's own


def test_a_users_scheme_gives_the_matrix_worked_out_by_hand(own):
    scheme = Scheme("root_distance(start=0.25)", SHAPE, 1, own(OWN)).double()
    scheme.pieces["0_root_distance"].w.data = torch.tensor([0.25, 2.0], dtype=torch.float64)
    matrix = added(scheme, 5)
    for h, w in enumerate((0.25, 2.0)):
        for i in range(5):
            row = [-w * math.sqrt(i - j) if j <= i else -math.inf for j in range(5)]
            assert matrix[h, i].tolist() == pytest.approx(row)


def test_a_users_scheme_trains(own):
    gpt = model("root_distance", own(OWN))
    w = dict(gpt.named_parameters())["pos.pieces.0_root_distance.w"]
    assert w.tolist() == [0.5, 0.5]
    optimizer, idx = torch.optim.AdamW(gpt.parameters(), lr=0.01), tokens(4, 9)
    losses = []
    for _ in range(15):
        loss = gpt(idx[:, :-1], idx[:, 1:])[1]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.1 and w.grad.abs().min() > 0 and w.tolist() != [0.5, 0.5]


def test_a_users_scheme_decodes_composes_and_takes_turns(own):
    gpt = model("root_distance(start=2) + rope | alibi", own(OWN), n_layer=3).double().eval()
    idx = tokens(2, 13)
    whole, cache = gpt(idx, idx)[0], gpt.new_cache(2, 13)
    parts = [gpt(part, cache=cache)[0] for part in idx.split([5, 1, 7], 1)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-10)
    plain = model("rope | alibi", n_layer=3).double().eval()
    assert not torch.allclose(plain(idx, idx)[0], whole)


def test_a_users_scheme_compiles(own):
    """Its file is no module that could be imported by name."""
    gpt, idx = model("root_distance + rope", own(OWN)), tokens(2, 8)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: gpt(x, x)[1], fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(idx), gpt(idx, idx)[1])
    torch._dynamo.reset()


@pytest.mark.parametrize("extend", ["clip", "clip(pairs=1)"])
def test_compiled_training_under_clipped_frequencies_is_eager_training(extend):
    """How many pairs are slow is not read from a tensor: compiled code cannot."""
    gpt, idx = model("rope"), tokens(2, 8)
    gpt.extend(extend)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: gpt(x, x)[1], fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(idx), gpt(idx, idx)[1])
    torch._dynamo.reset()


LEARNED_FREQUENCIES = """
import torch
from posenc import Rope

class Fitted(Rope):
    def __init__(self, shape):
        super().__init__(shape)
        self.pace = torch.nn.Parameter(torch.zeros(()))

    def frequencies(self, total):
        inv_freq, factor = super().frequencies(total)
        if not hasattr(self, "pace"):
            return inv_freq, factor
        return inv_freq * self.pace.double().exp(), factor
"""


@pytest.mark.parametrize("extend", ["", "clip", "yarn(factor=2)"])
def test_frequencies_may_be_learned_and_are_then_made_in_every_forward(extend, own):
    gpt, idx = model("fitted", own(LEARNED_FREQUENCIES)), tokens(2, 8)
    gpt.extend(extend)
    pace = gpt.pos.rotary[0].pace
    logits, loss = gpt(idx, idx)
    (first,) = torch.autograd.grad(loss, [pace])
    (again,) = torch.autograd.grad(gpt(idx, idx)[1], [pace])
    assert first.abs() > 0 and torch.equal(first, again)
    with torch.no_grad():
        pace.fill_(0.5)
        assert not torch.equal(gpt(idx, idx)[0], logits)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: gpt(x, x)[1], fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(
        torch.autograd.grad(compiled(idx), [pace]), torch.autograd.grad(gpt(idx, idx)[1], [pace])
    )
    torch._dynamo.reset()


def test_a_users_scheme_may_be_a_built_in_one_with_another_answer(own):
    """A subclass that overrides one question keeps the options of its parent."""
    path = own('''
from posenc import Rope

class SlowRope(Rope):
    """RoPE at half the speed."""
    def frequencies(self, total):
        inv_freq, factor = super().frequencies(total)
        return inv_freq / 2, factor
''')
    slow, plain = model("slow_rope(base=100)", path).eval(), model("rope(base=100)").eval()
    idx = tokens(2, 8)
    torch.testing.assert_close(slow(idx, positions=2 * torch.arange(8))[0], plain(idx)[0])
    with pytest.raises(UserError, match="base: float"):
        model("slow_rope(bse=1)", path)


ANSWERS = """
import torch
from posenc import Piece

class Shift(Piece):
    def ids(self, index, total):
        return index + 3

class Sharper(Piece):
    def temperature(self, index, like):
        return like.new_tensor([[2.0], [3.0]]).expand(2, index.shape[-1])

class EvenKeys(Piece):
    def mask(self):
        return lambda i, j: (j % 2 == 0) | (i == j)

class Flipped(Piece):
    def turn(self, ids, total, maps=()):
        return lambda q: q.flip(-1), lambda k: 2 * k

class Place(Piece):
    def embed(self, ids, text):
        return ids[..., None].expand(*ids.shape, 8) / 10
"""


def plan(text: str, path: Path, count: int = 5) -> Plan:
    scheme, index = Scheme(text, SHAPE, 1, path), torch.arange(count)
    ids = scheme.ids(index, count)
    return scheme.plans(index, ids, ids, count, FLOAT64)[0]


def test_a_users_piece_may_answer_any_question(own):
    path = own(ANSWERS)
    assert plan("shift", path).key_ids.tolist() == [3, 4, 5, 6, 7]
    assert plan("sharper + logn", path).temperature.shape == (2, 5, 1)
    assert plan("flipped", path).turns[1](torch.ones(1)).item() == 2
    (vector,) = Scheme("place", SHAPE, 1, path).embed(torch.tensor([5]), Text(tokens(1, 1), 1))
    assert torch.equal(vector, torch.full((8,), 0.5))
    seen = added(Scheme("even_keys", SHAPE, 1, path), 4) == 0
    assert seen.int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]]


def test_temperatures_multiply_biases_add_and_masks_intersect(own):
    path, like = own(ANSWERS), torch.zeros(1, 2, 5, 4, dtype=torch.float64)
    logn = [math.log(i + 1) / math.log(8) for i in range(5)]
    both = plan("sharper + logn", path).temperature[..., 0].tolist()
    assert both == [pytest.approx([f * x for x in logn]) for f in (2, 3)]
    for text in ("even_keys + window(size=3, sinks=1)", "window(size=3, sinks=1) + even_keys"):
        seen = added(Scheme(text, SHAPE, 1, path), 6) == 0
        assert seen[5].int().tolist() == [1, 0, 0, 0, 1, 1]  # of 0, 2, 4, 5 and of 0, 3, 4, 5
    two = own("from posenc import Alibi\n\nclass AlibiTwice(Alibi):\n    pass\n", "two.py")
    biases = added(Scheme("alibi + alibi_twice", SHAPE, 1, two), 5)
    assert torch.equal(biases, 2 * added(Scheme("alibi", SHAPE, 1), 5))
    prepared = attention.prepare(plan("sharper + even_keys", path), 2, FLOAT64)
    assert torch.equal(attention.attend(like, like, like + 1, prepared), like + 1)


@pytest.mark.parametrize(
    "text", ["flipped + rope", "place + sinusoidal", "shift + randomized(max=64)", "shift + shift"]
)
def test_a_users_piece_clashes_as_any_other(text, own):
    with pytest.raises(UserError):
        Scheme(text, SHAPE, 1, own(ANSWERS))


@pytest.mark.parametrize("text", ["shift | rope", "rope + (nope | place)"])
def test_a_users_piece_that_acts_first_stands_in_no_pattern(text, own):
    with pytest.raises(UserError, match="before the first layer"):
        Scheme(text, SHAPE, 2, own(ANSWERS))


def test_a_users_ids_go_with_a_table(own):
    """A piece without a limit of its own does not say how many rows are needed: a place past the
    table is refused when it is met."""
    gpt, idx = model("shift + learned(rows=20)", own(ANSWERS)).eval(), tokens(1, 8)
    plain = model("learned(rows=20)").eval()
    assert torch.equal(gpt(idx)[0], plain(idx, positions=torch.arange(8) + 3)[0])
    with pytest.raises(UserError):
        model("shift + learned", own(ANSWERS))(idx)  # rows 3 ... 10 of a table of 8


def test_a_users_name_may_have_the_word_layer_in_it(own):
    path = own(ANSWERS.replace("class Shift(", "class PerLayerShift("))
    scheme = Scheme("per_layer_shift + rope", SHAPE, 2, path)
    assert scheme.ids(torch.arange(3), 3).tolist() == [3, 4, 5]


@pytest.mark.parametrize("name", ["alibi", "rope", "t5", "kerple", "ntk_by_parts"])
def test_a_name_that_the_project_has_is_refused(name, own):
    """Also one that is only an alias."""
    cls = name.title().replace("_", "")
    path = own(f"from posenc import Piece\n\nclass {cls}(Piece):\n    pass\n")
    with pytest.raises(UserError, match=f"{name}.*rename"):
        Scheme("nope", SHAPE, 1, path)


@pytest.mark.parametrize(
    "text", ["", "x = 1\n", "from posenc import Piece, Rope, Alibi\n", "class Mine:\n    pass\n"]
)
def test_a_file_without_pieces_is_refused(text, own):
    with pytest.raises(UserError, match="no subclass of posenc.Piece"):
        Scheme("rope", SHAPE, 1, own(text))


def test_a_file_that_is_not_there_is_refused(tmp_path):
    for path in (tmp_path / "none.py", tmp_path):
        with pytest.raises(UserError, match="no file"):
            Scheme("rope", SHAPE, 1, path)


def test_a_file_of_another_kind_is_read_or_refused(own):
    """Whatever its name ends in."""
    path = own(OWN, "mine.txt")
    try:
        assert "root_distance" in Scheme("root_distance", SHAPE, 1, path).text
    except UserError as error:
        assert "mine.txt" in str(error)


def test_a_users_name_is_offered_where_it_is_near(own):
    with pytest.raises(UserError, match="did you mean root_distance"):
        Scheme("root_distanse", SHAPE, 1, own(OWN))
    with pytest.raises(UserError, match="start: float"):
        Scheme("root_distance(begin=1)", SHAPE, 1, own(OWN))
    assert "root_distance" in scheme_names(own(OWN)) and "root_distance" not in scheme_names()


def test_without_its_file_a_users_scheme_is_unknown():
    with pytest.raises(UserError, match="there is no position scheme root_distance"):
        Scheme("root_distance", SHAPE, 1)


def test_a_file_of_the_zoo_without_its_class_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(catalogue, "ZOO", tmp_path)
    (tmp_path / "foo.py").write_text("from posenc import Piece\nclass Bar(Piece): pass\n")
    with pytest.raises(UserError, match="zoo/foo.py defines bar, but no class for foo"):
        catalogue.find("foo")
