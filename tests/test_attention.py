"""Every path equals the reference, in output and gradient, for every scheme by the list of names."""

import pytest
import torch
from test_device import CARD

import attention
from model import GPT, GPTConfig
from scheme import Catalogue

# names that need an option or a partner to do something
WRITTEN = {
    "abacus": "abacus + rope",
    "block_causal": "rope + block_causal(size=3)",
    "cape": "cape + alibi",
    "chunks": "rope + chunks(size=3)",
    "dape": "alibi + dape",
    "learned": "learned(rows=128)",
    "logn": "rope + logn",
    "multiscale": "rope + multiscale(smallest=2, largest=7)",
    "randomized": "randomized(max=128) + fire",
    "relative": "relative(max_distance=40)",
    "rfs": "rfs + rope",
    "scale_invariant": "alibi + scale_invariant",
    "shape": "shape(test_shift=3) + sinusoidal",
    "ssmax": "rope + ssmax",
    "window": "alibi + window(size=5, sinks=2)",
}
SCHEMES = [WRITTEN.get(name, name) for name in Catalogue().schemes]
SCHEMES += ["rope | alibi | nope", "rope + window(size=6)", "alibi + window(size=6)"]
EXTENDED = {
    "block_causal": ("rope", "block_causal(size=3)"),
    "chunks": ("rope", "chunks(size=3)"),
    "longrope": None,  # these two read a file: tests/test_extensions.py
    "temperature": ("rope", "temperature(scale=1.3)"),
    "pose": ("rope", "pose(target=64)"),
    "slopes": ("alibi", "slopes"),
    "smooth": ("rope", "smooth(learned=True, per_layer=True)"),
    "window": ("rope", "window(size=5, sinks=2)"),
    "streaming": ("alibi", "streaming(size=5, sinks=2)"),
    "lm_infinite": ("alibi", "lm_infinite(size=5, sinks=2)"),
}
EXTENSIONS = [EXTENDED.get(name, ("rope", name)) for name in Catalogue().extensions]
EXTENSIONS = [case for case in EXTENSIONS if case] + [("t5 + rope", "rerope"), ("fox", "logn")]
CASES = [(pos, "") for pos in SCHEMES] + EXTENSIONS
N = 21


def model(pos, extend="", dtype=torch.float64, **changes):
    """A small model that reads 21 tokens, all weights away from where they start."""
    torch.manual_seed(5)
    shape = dict(block_size=8, vocab_size=17, n_layer=2, n_head=2, n_embd=16) | changes
    gpt = GPT(GPTConfig(pos=pos, **shape))
    gpt.pos.extend(extend)
    for parameter in gpt.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return gpt.to(dtype).eval()


def text(gpt, batch=2):
    torch.manual_seed(1)
    return torch.randint(17, (batch, min(N, gpt.pos.limit or N)))


def output_and_gradients(gpt, idx):
    """Logits, and the gradient of each parameter that has one."""
    gpt.zero_grad()
    logits, loss = gpt(idx, idx)
    loss.backward()
    return [logits, *(p.grad for p in gpt.parameters() if p.grad is not None)]


def through_the_reference(q, k, v, prepared, scale, features=None):
    return attention.reference(q, k, v, prepared.plan, scale, features)


@pytest.mark.parametrize("pos, extend", CASES)
def test_every_path_equals_the_reference(pos, extend, monkeypatch):
    gpt = model(pos, extend)
    idx = text(gpt)
    index = torch.arange(idx.shape[1])
    plans = gpt.pos.plans(index, index, len(index), len(index), torch.float64)
    paths = {attention.choose_path(plan, False, gpt.config.head_width) for plan in plans.values()}
    with monkeypatch.context() as patch:
        patch.setattr(attention, "attend", through_the_reference)
        expected = output_and_gradients(gpt, idx)
    assert all(x.isfinite().all() for x in expected)
    ways = {("", False), ("scored", False), ("scored", True)}
    if "scored" not in paths:
        ways |= {("added", False), ("added", True)}
    for path, in_blocks in sorted(ways):
        with monkeypatch.context() as patch:
            patch.setattr(attention, "FORCED_PATH", path)
            if in_blocks:  # of four rows; nothing is shared by layers
                patch.setattr(attention, "BLOCK_ROWS", 4)
                patch.setattr(attention, "SHARED_BYTES", 0)
            results = output_and_gradients(gpt, idx)
        for x, y in zip(results, expected, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-7, atol=1e-9, msg=f"{path}, {in_blocks}")


@torch.no_grad()
@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("pos, extend", CASES)
def test_what_no_target_depends_on_may_be_left_out(pos, extend, window):
    gpt = model(pos, extend)
    idx = text(gpt)
    expected = gpt.losses(idx, idx, window=window)[:, -3:]
    few = gpt.losses(idx, idx[:, -3:], window=window)
    torch.testing.assert_close(few, expected, rtol=1e-5, atol=1e-6)


def test_each_path_is_chosen_where_it_fits():
    chosen = {
        "nope": "fused",
        "rope": "fused",
        "fox": "fused",
        "rope + ssmax": "fused",
        "alibi": "added",
        "t5 + rope": "added",
        "rope + window(size=4)": "added",
        "cope": "scored",
        "scale_invariant": "scored",
        "rope | alibi": "fused|added",
    }
    idx = torch.zeros(1, N, dtype=torch.long)

    def taken(gpt, window=None):
        gpt.losses(idx, idx, window=window)
        return gpt.attention_path

    for pos, path in chosen.items():
        assert taken(model(pos)) == path, pos
    assert taken(model("rope"), window=4) == "added"
    assert taken(model("rope", "rerope")) == "scored"
    assert taken(model("rope", "yarn")) == "fused"
    for length, path in ((N, "added"), (4096, "fused")):
        index = torch.arange(length)
        plans = model("rope").pos.plans(index, index, length, length, torch.float32).values()
        assert [attention.choose_path(plan, True, 32) for plan in plans] == [path]


@pytest.mark.parametrize(
    "pos, head_dim, tested, trained",
    [
        ("alibi", 16, True, True),
        ("alibi", 8, False, False),  # too narrow for its kernel
        ("t5", 16, True, False),  # a learned bias trains by another path
        ("rope + window(size=3)", 16, True, True),
        ("fire", 16, False, False),  # not by distance alone
        ("fox", 16, False, False),  # features
        ("randomized(max=64) + alibi", 16, False, False),  # ids are not places
    ],
)
def test_flex_is_chosen_where_it_fits_a_whole_text_on_a_card(pos, head_dim, tested, trained):
    gpt = model(pos, head_dim=head_dim)
    ids = torch.arange(8)
    drawn = gpt.pos.draw(0, 0, 8)
    positions = ids if drawn is None else drawn
    plan = gpt.pos.plans(ids, positions, 8, 8, torch.float32)[gpt.pos.plan_keys[0]]
    assert attention.can_flex(plan, head_dim, False, 0.5) == tested
    assert attention.can_flex(plan, head_dim, True, 0.0) == trained
    assert not attention.can_flex(plan, head_dim, True, 0.5)


@torch.no_grad()
@pytest.mark.parametrize(
    "pos",
    ["alibi", "t5 + rope", "sandwich", "alibi + window(size=5, sinks=2)", "rope + window(size=6)"],
)
def test_flex_equals_the_reference(pos, monkeypatch):
    gpt = model(pos, dtype=torch.float32, n_embd=32)
    idx = text(gpt)
    expected = gpt(idx, idx)[0]
    monkeypatch.setattr(attention, "FORCED_PATH", "flex")
    monkeypatch.setattr(attention, "compiled_on_gpu", lambda function, like: function)
    torch.testing.assert_close(gpt(idx, idx)[0], expected, rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("size, sinks", [(3, 0), (3, 2), (30, 0), (1, 0), (2, 30)])
def test_a_block_reads_only_keys_that_it_can_see(size, sinks, monkeypatch):
    gpt = model(f"window(size={size}, sinks={sinks})")
    idx = torch.randint(17, (1, 40))
    expected = gpt(idx, idx)[0]
    numbers = []
    kernel = attention._kernel

    def counted(q, k, *others):
        numbers.append(k.shape[-2])
        return kernel(q, k, *others)

    monkeypatch.setattr(attention, "_kernel", counted)
    monkeypatch.setattr(attention, "BLOCK_ROWS", 4)
    monkeypatch.setattr(attention, "SHARED_BYTES", 0)
    torch.testing.assert_close(gpt(idx, idx)[0], expected)
    assert len(numbers) == 10 * len(gpt.h)
    assert max(numbers) <= size + 3 + sinks


def assert_near(results, expected, share):
    """Each result differs by less than this share of the norm of what is expected."""
    for x, y in zip(results, expected, strict=True):
        assert (x.double().cpu() - y).norm() <= share * y.norm() + 1e-6


@CARD
@pytest.mark.gpu
@pytest.mark.parametrize("pos, extend", CASES)
def test_a_card_computes_what_the_reference_does_in_float64(pos, extend, monkeypatch):
    gpt = model(pos, extend, n_embd=32)  # heads of 16: flex takes none narrower
    idx = text(gpt)
    with monkeypatch.context() as patch:
        patch.setattr(attention, "attend", through_the_reference)
        expected = output_and_gradients(gpt, idx)
    gpt = model(pos, extend, torch.float32, n_embd=32).cuda()
    assert_near(output_and_gradients(gpt, idx.cuda()), expected, 1e-4)


@CARD
@pytest.mark.gpu
@pytest.mark.parametrize("pos", ["rope", "alibi", "t5", "rope + window(size=64)", "kerple", "fox"])
def test_compiled_training_in_bfloat16_on_a_card_is_near_the_reference(pos, monkeypatch):
    gpt = model(pos, n_embd=64, block_size=300)
    idx = torch.randint(17, (4, 300))
    with monkeypatch.context() as patch:
        patch.setattr(attention, "attend", through_the_reference)
        expected = output_and_gradients(gpt, idx)
    gpt = model(pos, dtype=torch.float32, n_embd=64, block_size=300).cuda().train()
    compiled = torch.compile(gpt)
    with torch.autocast("cuda", torch.bfloat16):
        logits, loss = compiled(idx.cuda(), idx.cuda())
    loss.backward()
    gradients = [p.grad for p in gpt.parameters() if p.grad is not None]
    assert_near([logits, *gradients], expected, 0.05)
    torch._dynamo.reset()
