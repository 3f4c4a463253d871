"""The planted faults of tests/planted.py are there, shown by plain means, and what is called honest has none of them."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from planted import HONEST, PLANTED, Honest, Planted
from torch import Tensor, nn

import attention
from model import GPT, GPTConfig
from posenc import Piece

L, TEXTS = 16, 3
SHAPE = dict(block_size=L, vocab_size=256, n_head=4, n_embd=32)
SEED = torch.Generator()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("planted")


def layers(pos: str) -> int:
    """As many layers as the pattern names, and at least two."""
    return max(2, pos.count("|") + 1)


def build(scheme: Planted | Honest, folder: Path) -> GPT:
    """A small model at test, with every parameter moved from where it starts."""
    path = folder / f"{abs(hash(scheme.name))}.py"
    if not path.exists():
        path.write_text(scheme.source, encoding="utf-8")
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)  # what is never filled is nan
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        model = GPT(GPTConfig(pos=scheme.pos, **SHAPE, n_layer=layers(scheme.pos)), path)
    finally:
        torch.use_deterministic_algorithms(False)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return model.eval()


def piece(model: GPT) -> Piece:
    """The piece that the file defines."""
    names = ("Cheat", "Mine")
    return next(p for p in model.pos.pieces.values() if type(p).__name__ in names)


def text(length: int = L, seed: int = 1) -> Tensor:
    return torch.randint(256, (TEXTS, length), generator=SEED.manual_seed(seed))


def logits(model: GPT, tokens: Tensor, drawn: bool = False) -> Tensor:
    """(B, T, V) of one pass, as in a test, or with the positions of a training step."""
    targets = tokens.roll(-1, 1)
    ids = model.draw_ids(1, 7, tokens.shape[1]) if drawn else None
    return model(tokens, targets, ids=ids)[0]


def differ(a: Tensor, b: Tensor) -> bool:
    """Whether numbers differ, by more than what the order of sums changes."""
    return not torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)


def other_future(tokens: Tensor, t: int) -> Tensor:
    """The same text up to t, then another; token t + 1 becomes 10, a line break."""
    changed = tokens.clone()
    changed[:, t + 1 :] = text(tokens.shape[1], 2)[:, t + 1 :]
    changed[:, t + 1] = torch.where(tokens[:, t + 1] == 10, 11, 10)
    return changed


# ---- one way to show each kind of fault


def leaks(model: GPT, thoroughly: bool = False) -> bool:
    """Whether what comes after t changes logits at or before t, or whether an earlier call does."""
    with torch.no_grad():
        if any(told(model.eval(), text(length), length // 2, False) for length in (L, 4 * L)):
            return True
    if told(model.train(), text(), L // 2, True):
        return True
    if not thoroughly:
        return False
    model.eval()
    if any(told(model, text(), t, False) for t in range(L - 1)):
        return True
    for _ in range(50):
        logits(model, text(4))
    return told(model, text(), L // 2, False)


def told(model: GPT, tokens: Tensor, t: int, drawn: bool) -> bool:
    """Whether logits up to t tell of tokens after it, also those of the call before."""
    if model.limit and tokens.shape[1] > model.limit:
        return False
    tokens[:, t] = 32
    calls = (tokens, other_future(tokens, t), tokens)
    before, *after = (fixed(model, x, drawn)[:, : t + 1] for x in calls)
    return any(not torch.equal(before, x) for x in after)


def fixed(model: GPT, tokens: Tensor, drawn: bool) -> Tensor:
    """Logits, with what the scheme draws by torch's own generator the same each time."""
    torch.manual_seed(3)
    return logits(model, tokens, drawn)


def mixes_texts(model: GPT) -> bool:
    """Whether the other texts of a batch change the logits of a text."""
    tokens, changed = text(), text(seed=2)
    for training in (False, True):
        alone = fixed(model.train(training), tokens, False)
        for b in (0, TEXTS - 1):
            mixed = changed.clone()
            mixed[b] = tokens[b]
            if differ(alone[b], fixed(model, mixed, False)[b]):
                return True
    return False


def is_finite(model: GPT, length: int) -> bool:
    """Whether loss, logits and gradients are finite, by the chosen path and by the definition."""
    model.zero_grad()
    found, loss = model(text(length), text(length, 2))
    loss.backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return all(
        bool(x.isfinite().all()) for x in (found, loss, *grads, by_definition(model, length))
    )


def by_definition(model: GPT, length: int) -> Tensor:
    """Logits where every path of attention is replaced by the reference."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "attend", reference)
        return logits(model, text(length))


def reference(
    q: Tensor, k: Tensor, v: Tensor, prepared: attention.Prepared, *rest: object
) -> Tensor:
    return attention.reference(q, k, v, prepared.plan, *rest[1:])


def breaks_numbers(model: GPT, warns: bool) -> bool:
    """Whether numbers are not finite: at L, or with `warns` at 4 L and not at L."""
    return is_finite(model, L) and not is_finite(model, 4 * L) if warns else not is_finite(model, L)


def untrained(model: GPT) -> bool:
    """Whether a parameter has no gradient, or no optimizer would be given it."""
    model.zero_grad()
    model(text(), text(seed=2))[1].backward()
    listed = [p for p in model.parameters() if p.requires_grad]
    if any(p.grad is None or not p.grad.any() for p in listed):
        return True
    inside = [v for value in vars(piece(model)).values() for v in leaves(value)]
    return any(v.requires_grad and all(v is not p for p in listed) for v in inside)


def leaves(value: object) -> list[Tensor]:
    """The tensors in an attribute, in lists and dicts of Python as well."""
    if isinstance(value, nn.Module):
        return list(value.parameters())
    if isinstance(value, (list, tuple)):
        return [v for item in value for v in leaves(item)]
    if isinstance(value, dict):
        return leaves(list(value.values()))
    return [value] if isinstance(value, Tensor) else []


def cached(model: GPT, tokens: Tensor, at_once: int = 1) -> Tensor:
    """Logits token by token."""
    cache = model.new_cache(*tokens.shape)
    return torch.cat([model(part, cache=cache)[0] for part in tokens.split(at_once, 1)], 1)


def blocked(model: GPT, tokens: Tensor) -> Tensor:
    """Logits where attention is made by blocks of four queries."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "DENSE_BYTES", 0)
        patch.setattr(attention, "BLOCK_ROWS", 4)
        return logits(model, tokens)


def parts_ways(model: GPT) -> bool:
    """Whether one pass, blocks, chunks and single tokens differ."""
    tokens = text()
    with torch.no_grad():
        found = logits(model, tokens)
        ways = (blocked(model, tokens), cached(model, tokens), cached(model, tokens, 5))
        return any(differ(found, other) for other in ways)


def everything(model: GPT) -> None:
    """What training, testing and sampling ask of a model, one after the other."""
    ids = model.draw_ids(1, 7, L)
    if ids is not None:
        model.pos.check_ids(ids)
    model.train()(text(), text(), ids=ids)[1].backward()
    with torch.no_grad():
        for length in (L, 4 * L):
            if model.limit is None or model.limit == 4 * L or length == L:
                logits(model.eval(), text(length))
                blocked(model, text(length))
        cached(model, text(), 5)
    on_no_device(model)


def on_no_device(model: GPT) -> None:
    """One forward on tensors without numbers: what is kept elsewhere, or read, is an error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # knows no such device
        model.to("meta")(torch.empty(TEXTS, L, dtype=torch.long, device="meta"))


def fails(model: GPT) -> bool:
    """Whether anything raises an error."""
    try:
        everything(model)
    except (Exception, RecursionError):
        return True
    return False


def misshapen(model: GPT) -> bool:
    """Whether something raises, or ids fall, or a bias has half precision."""
    index = torch.arange(L)
    ids = [model.pos.ids(index, L), model.draw_ids(1, 7, L)]
    if any(x is not None and bool((x.diff() < 0).any()) for x in ids):
        return True
    like = torch.empty(0)
    biases = [f for plan in model.pos.plans(index, index, index, L, like) for f in plan.biases]
    heads = torch.arange(4)[:, None, None]
    try:
        dtypes = [f(heads, index[:, None], index).dtype for f in biases]
    except Exception:
        return True
    return torch.float16 in dtypes or fails(model)


def is_inert(model: GPT, scheme: Planted) -> bool:
    """Whether the method changes nothing: the logits are those of the scheme without it."""
    own = piece(model)
    bare = next(c for c in type(own).__mro__ if c.__module__ == "posenc").__name__.lower()
    other = scheme.pos.replace("cheat", "nope" if bare == "piece" else bare)
    torch.manual_seed(0)
    without = GPT(GPTConfig(pos=other, **SHAPE, n_layer=2)).eval()
    theirs = dict(model.named_parameters())
    with torch.no_grad():
        for name, p in without.named_parameters():
            p.copy_(theirs[name])
    return scheme.says[0] == "perlayer" or not differ(
        logits(model, text()), logits(without, text())
    )


def wavers(model: GPT) -> bool:
    """Whether equal calls give different numbers, or set torch's own generator."""
    torch.manual_seed(1)
    state = torch.get_rng_state()
    with torch.no_grad():
        tokens = text()
        first, second = logits(model, tokens), logits(model, tokens)
        draws = [model.draw_ids(1, 7, L) for _ in range(2)]
    if draws[0] is not None and not torch.equal(*draws):
        return True
    return not torch.equal(first, second) or not torch.equal(state, torch.get_rng_state())


def ends(model: GPT) -> bool:
    """Whether a length is refused by an error although the scheme does not say that it ends."""
    model.to("cpu")
    for length in (L, 2 * L, 4 * L):
        try:
            if model.limit is None or length <= max(L, model.limit):
                logits(model, text(length))
        except Exception:
            return True
    return False


SHOWN: dict[str, Callable[[GPT, Planted], bool]] = {
    "causal": lambda m, s: leaks(m, thoroughly=True),
    "batch": lambda m, s: mixes_texts(m),
    "finite": lambda m, s: breaks_numbers(m, s.warns),
    "gradient": lambda m, s: untrained(m),
    "shape": lambda m, s: misshapen(m),
    "paths": lambda m, s: parts_ways(m),
    "name": is_inert,
    "length": lambda m, s: ends(m),
    "random": lambda m, s: wavers(m),
    "compile": lambda m, s: fails(m),
    "error": lambda m, s: fails(m),
}


@pytest.mark.parametrize("scheme", PLANTED, ids=lambda scheme: scheme.name)
def test_a_planted_fault_is_there(scheme: Planted, folder: Path) -> None:
    try:
        model = build(scheme, folder)
    except (AttributeError, TypeError):  # late and ugly: a UserError would be neither
        assert scheme.kind == "error"
        return
    assert SHOWN[scheme.kind](model, scheme)


@pytest.mark.parametrize("scheme", HONEST, ids=lambda scheme: scheme.name)
def test_an_honest_scheme_has_no_fault(scheme: Honest, folder: Path) -> None:
    model = build(scheme, folder)
    assert not leaks(model.eval()) and not mixes_texts(model)
    assert is_finite(model.eval(), L) and not untrained(model)
    assert not parts_ways(model) and not wavers(model) and not ends(model)
    everything(model)


def test_each_planted_scheme_has_a_name_of_its_own_and_one_class() -> None:
    names = [scheme.name for scheme in (*PLANTED, *HONEST)]
    assert len(set(names)) == len(names)
    for scheme in (*PLANTED, *HONEST):
        assert scheme.source.count("\nclass ") == 1
