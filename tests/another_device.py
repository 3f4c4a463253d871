"""Every scheme on a device that this machine lacks: fake tensors, without a card and without a compiler.

What a scheme makes on the CPU by mistake meets a tensor of the other device, and torch refuses it, forward and
backward. What a GPU would have to be waited for (.item(), int(), bool()) has no value here and is refused too.
"""

import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import attention
import posenc
from model import GPT, GPTConfig
from positions.catalogue import extension_names, scheme_names
from positions.grammar import parse

CARD, L = "card:0", 16


class Card(backend_registration._DummyBackendModule):
    """What torch asks of a device."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """All that a GPU has."""
        return [torch.bfloat16, torch.float16]


@pytest.fixture(scope="module", autouse=True)
def card() -> Iterator[None]:
    """A device without memory or kernels. Texts of 2 L are dense there, longer ones go by blocks."""
    if torch._C._get_privateuse1_backend_name() != "card":
        backend_registration._setup_privateuseone_for_python_backend("card", backend_module=Card())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeTensorMode, "avoid_device_init", property(lambda mode: True))
        patch.setattr(attention, "DENSE_BYTES", 4 * 4 * (2 * L) ** 2)
        patch.setattr(attention, "BLOCK_ROWS", 2 * L)
        patch.setattr(posenc, "_kept", made_anew)
        patch.setattr(posenc, "cos_sin", seen_inside(posenc.cos_sin))
        yield


class Watch(TorchDispatchMode):
    """Refuses what a GPU is waited for: a CPU tensor among those of the card, and copies from device to device."""

    paused = False

    def __init__(self, copies: bool) -> None:
        super().__init__()
        self.copies = copies  # whether copies are refused

    def __torch_dispatch__(
        self, func: Callable, types: object, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        leaves = tree_leaves((args, kwargs))
        devices = {t.device.type for t in leaves if isinstance(t, Tensor) and t.dim()}
        if self.copies and "_to_copy" in func.__name__:
            devices |= {d.type for d in leaves if isinstance(d, torch.device)}
        assert len(devices) < 2 or Watch.paused, f"{func} is on more than one device"
        return func(*args, **kwargs or {})


KEPT = posenc._kept.__wrapped__


def made_anew(*about: object) -> object:
    """What is kept on the device, so that no fake tensor stays. It may be copied: it is made once."""
    Watch.paused = True
    try:
        return KEPT(*about)
    finally:
        Watch.paused = False


def seen_inside(operator: torch.library.CustomOpDef) -> Callable[[Tensor, Tensor], object]:
    """The operator, after what it does inside: of itself torch asks only for shapes."""

    def run(positions: Tensor, inv_freq: Tensor) -> object:
        assert positions.device == inv_freq.device, f"frequencies are on {inv_freq.device}"
        assert operator._init_fn(positions.detach(), inv_freq)[0].device == positions.device
        return operator(positions, inv_freq)

    return run


def on_card(model: GPT) -> GPT:
    """The model with fake parameters of the card; a tied one stays tied."""
    moved: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, p in module._parameters.items():
            if p is not None:
                empty = torch.empty(p.shape, dtype=p.dtype, device=CARD)
                moved.setdefault(p, nn.Parameter(empty, p.requires_grad))
                module._parameters[name] = moved[p]
    return model


@contextmanager
def compiled() -> Iterator[None]:
    """What is done while code is compiled: checks that look at values are left out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.compiler, "is_compiling", lambda: True)
        yield


def works(pos: str, extend: str = "", pos_file: Path | None = None) -> None:
    """A training step, tests by the dense path and by windowed blocks, and decoding with a cache."""
    layers = 1 + pos.count("|")
    config = GPTConfig(block_size=L, vocab_size=60, n_layer=layers, n_head=4, n_embd=32, pos=pos)
    model = GPT(config, pos_file)
    model.extend(extend)
    drawn = model.draw_ids(0, 0, L)
    # not compiled, a model looks whether drawn positions are in its table
    looks = drawn is not None and model.pos.id_limit
    with FakeTensorMode() as mode:
        on_card(model).train()
        text = torch.zeros(1, 4 * L, dtype=torch.int64, device=CARD)
        ids = None if drawn is None else mode.from_tensor(drawn).to(CARD)
        with compiled() if looks else nullcontext(), Watch(copies=True):
            model(text[:, :L], text[:, :L], ids=ids)[1].backward()
        for name, p in model.named_parameters():
            assert p.grad is None or p.grad.device == p.device, name
        model.eval()
        with compiled(), torch.no_grad(), Watch(copies=False):
            for length, window in ((2 * L, None), (4 * L, L)):
                if model.limit is None or length <= model.limit:
                    longer = text[:, :length]
                    assert model.losses(longer, longer, window=window).device == text.device
            logs, how = [], dict(temperature=0.8, top_k=5, top_p=0.9, min_p=0.1)
            for token in model.stream(text[:, :5], 2, logs, repetition_penalty=1.2, **how):
                assert token.device == logs[-1].device == text.device


# ---- every scheme, and pairs of them


SCHEMES = [  # a pattern puts one branch into each layer
    "alibi | alibi(learned=True) | kerple | kerple(kind=power) | relative | sandwich | t5 + multiscale",
    "fire(hidden=2) | cpb(hidden=2) | nope | rope + window(size=8, sinks=2) | xpos + block_causal",
    "rope | rope(layout=interleaved, fraction=0.5) | rope(clip=3) | pope(start=uniform) + alibi",
    "fope(learned=True, rest=0) | learned_rope + logn | resonance | pope + ssmax",
    "cope | fox | selective_rope | rope(p=0.5) + scale_invariant",
    "rope + cope(gate=raw) | xpos + fox(kind=cable) | kerple + dape | path",
    "abacus + rope",
    "cape + t5",
    "learned",
    "learned(rows=8, resize=bicubic) + alibi",
    "sinusoidal",
    "randomized(max=64) + learned(rows=64)",
    "randomized(max=1024, test=draw) + rope",
    "rfs + (rope | alibi | fire(hidden=2))",
    "rfs(test=draw) + alibi",
    "shape + learned(rows=64)",
    "learned2d + logn",
    "sinusoidal2d + ssmax",
    "rope2d(coordinates=unit) + window(size=8)",
    "rope2d + abacus",
    "alibi2d + fox",
]
EXTENDED = [  # a scheme, and extensions that act on it together
    ("rope + alibi", "abf + compress + logn"),
    (
        "xpos | learned_rope | fope",
        "longrope(file='{long}') + resonance + temperature(file='{scales}')",
    ),
    ("pope | t5", "yarn + window(size=8)"),
    ("rope", "clip + smooth + block_causal"),
    ("rope | alibi", "llama3 + two_scale + self_extend"),
    ("rope | t5", "ntk + rerope"),
    ("rope", "pi + streaming"),
    ("alibi", "interpolate + string"),
    ("rope", "interpolate(factor=2) + p_rope + lm_infinite"),
    ("rope", "dynamic_ntk + leaky_rerope"),
    ("rope | alibi", "smooth(learned=True, per_layer=True) + dca"),
    ("sinusoidal", "smooth(learned=True)"),
    ("rope", "pose(target=64) + yarn(factor=4) + logn"),
    ("randomized(max=64) + rope", "yarn(factor=4)"),
    ("alibi + window(size=8)", "slopes"),
    ("nope | rope", "yarn"),
    ("rope", "ntk_by_parts + logn"),
    ("rope", "dynamic_yarn"),
    ("nope | t5", "interpolate"),
    ("rope | fox", "yarn + int8"),
    ("rope2d", "logn + window(size=8)"),
]


@pytest.mark.parametrize("pos", SCHEMES)
def test_a_scheme_stays_on_its_device(pos: str) -> None:
    works(pos)


@pytest.mark.parametrize(("pos", "extend"), EXTENDED)
def test_an_extension_stays_on_its_device(pos: str, extend: str, tmp_path: Path) -> None:
    contents = {"long": {"long_factor": [2.0] * 4, "first": 3}, "scales": {"scales": [2.0] * 4}}
    for name, content in contents.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    works(pos, extend.format(**{name: tmp_path / f"{name}.json" for name in contents}))


def names(text: str) -> set[str]:
    """The names in an expression."""
    return {mention.name for mention in parse(text).mentions}


def test_every_scheme_and_every_extension_is_among_these_cases() -> None:
    assert set.union(*map(names, SCHEMES)) == set(scheme_names())
    assert set.union(*(names(extend) for _, extend in EXTENDED)) == set(extension_names())


BESIDE = {  # what a row of the rules refuses, and the case above with a pair beside it, which it lets through
    "twice in one layer": SCHEMES[2],  # rope | rope
    "claim the position ids": SCHEMES[13],  # rfs + rope
    "claim the token embedding": SCHEMES[7],  # cape + t5
    "claim the rotation": SCHEMES[3],  # fope | learned_rope
    "claim the whole score": SCHEMES[4],  # cope | fox
    "cannot act in one layer": SCHEMES[5],  # rope + cope | xpos
    "gives positions up to": SCHEMES[11],  # randomized + learned
    "needs the positions 0": SCHEMES[9],  # learned + alibi
    "in between": SCHEMES[15],  # shape + learned
    "gives places in an image": SCHEMES[20],  # alibi2d + fox
    "is named twice: keep one": EXTENDED[0],
    "change the positions: keep one": EXTENDED[3],  # clip + smooth
    "change the cache": EXTENDED[17],  # yarn + int8
    "change the distances": EXTENDED[4],  # two_scale + self_extend
    "change the frequencies": EXTENDED[1],  # longrope + resonance
    "change the positions of training": EXTENDED[12],  # pose + yarn
    "longer by a factor": EXTENDED[8],  # interpolate + p_rope
    "two files of one name": EXTENDED[1],  # longrope + temperature
    "draws positions for another": EXTENDED[13],  # randomized under yarn(factor=4)
    "and there is none": EXTENDED[15],  # nope | rope under yarn
    "makes the whole score by itself": EXTENDED[10],  # rope | alibi under dca
    "no score depends on one": EXTENDED[7],  # alibi under string
    "nothing reads them": EXTENDED[16],  # nope | t5 under interpolate
    "vector for each whole one": EXTENDED[11],  # sinusoidal under smooth
    "reads places in an image": EXTENDED[20],  # rope2d under logn + window
    "both draw the positions": EXTENDED[12],  # rope under pose
    "cannot be per_layer here": EXTENDED[11],  # sinusoidal under smooth
    "changes the slopes of alibi": EXTENDED[14],  # alibi + window under slopes
}


def test_beside_every_rule_stands_one_of_these_cases(sentences_of_the_rules: list[str]) -> None:
    for sentence in sentences_of_the_rules:
        assert any(words in sentence for words in BESIDE), sentence
    for words in BESIDE:
        assert any(words in sentence for sentence in sentences_of_the_rules), words


# ---- mistakes that are planted on purpose


MISTAKES = {
    "a tensor without its device": """
    def bias(self, like):
        slopes = torch.tensor([1.0, 0.5, 0.2, 0.1])
        return lambda h, i, j: slopes[h] * (j - i)
""",
    "a value that is read": """
    def temperature(self, index, like):
        return (index + 1).to(like.dtype) / index.max().item()
""",
    "a value that is read in compiled code": """
    def temperature(self, index, like):
        last = int(index.max()) if torch.compiler.is_compiling() else len(index)
        return (index + 1).to(like.dtype) / last
""",
    "a condition on values": """
    def bias(self, like):
        return lambda h, i, j: (j - i).to(like.dtype) if (i > 3).any() else i * 0.0
""",
    "queries that meet another device": """
    def features(self, x):
        return x

    def along(self, q, k, features):
        return q * torch.ones(q.shape[-1]), k, features
""",
    "a gradient without its device": """
    def bias(self, like):
        return lambda h, i, j: Forgetful.apply(self.slope) * (j - i)
""",
}
OWN = """
import torch
from posenc import Piece

class Forgetful(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1.0

    @staticmethod
    def backward(ctx, gradient):
        return gradient * torch.ones(1)

class Planted(Piece):
    def __init__(self, shape):
        super().__init__()
        self.slope = torch.nn.Parameter(torch.ones(1))
"""
REFUSED = "device|data.dependent|_local_scalar_dense"


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_scheme_is_found(mistake: str, tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(OWN + MISTAKES[mistake], encoding="utf-8")
    with pytest.raises(Exception, match=f"(?i){REFUSED}"):
        works("planted", pos_file=path)


@pytest.mark.parametrize(
    ("function", "right", "wrong"),
    [
        ("added_scores", "torch.arange(n_head, device=like.device)", "torch.arange(n_head)"),
        (
            "added_scores",
            "index = torch.arange(keys - queries, keys, device=like.device)[rows, None]",
            "index = torch.arange(keys - queries, keys)[rows, None]",
        ),
        (
            "_blocked",
            "torch.arange(s.start, s.stop, device=q.device)",
            "torch.arange(s.start, s.stop)",
        ),
        ("_blocked", "spans = _seen(", "q[0, 0, 0, 0].item(); spans = _seen("),
        ("tile_scores", "torch.arange(k.shape[-2], device=q.device)", "torch.arange(k.shape[-2])"),
    ],
)
def test_a_mistake_in_attention_is_found(
    function: str, right: str, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, scope = inspect.getsource(getattr(attention, function)), dict(vars(attention))
    assert source.count(right) == 1
    exec(source.replace(right, wrong), scope)
    monkeypatch.setattr(attention, function, scope[function])
    with pytest.raises(Exception, match=f"(?i){REFUSED}"):
        works("alibi | alibi + cope")


def test_frequencies_that_stay_on_the_cpu_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posenc, "once", lambda make, device, *about: make(*about))
    with pytest.raises(AssertionError, match="frequencies are on cpu"):
        works("rope")
