"""Every path equals the reference, in output and gradient, for every scheme by the list of names."""

from dataclasses import asdict, replace

import pytest
import torch
from test_device import CARD

import attention
from attention import Options, choose_path
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
    "topk": "rope + topk(keys=3)",
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


@pytest.mark.parametrize("pos, extend", CASES)
def test_every_path_equals_the_reference(pos, extend, monkeypatch):
    gpt = model(pos, extend)
    idx = text(gpt)
    index = torch.arange(idx.shape[1])
    plans = gpt.pos.plans(index, index, len(index), len(index), gpt.current_options())
    paths = {choose_path(plan) for plan in plans.values()}
    with monkeypatch.context() as patch:
        patch.setattr("model.attend", attention.reference)
        expected = output_and_gradients(gpt, idx)
    assert all(x.isfinite().all() for x in expected)
    small = dict(block_queries=4, shared_bytes=0)  # blocks of four; nothing is shared by layers
    ways = [Options(), Options("scored"), Options("scored", **small)]
    if "scored" not in paths:
        ways += [Options("added"), Options("added", **small)]
    for options in ways:
        gpt.options = options
        results = output_and_gradients(gpt, idx)
        for x, y in zip(results, expected, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-7, atol=1e-9, msg=str(options))


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
    for pos, path in chosen.items():
        assert model(pos).path_of(N) == path, pos
    assert model("rope").path_of(N, window=4) == "added"
    assert model("rope", "rerope").path_of(N) == "scored"
    assert model("rope", "yarn").path_of(N) == "fused"
    for length, path in ((N, "added"), (4096, "fused")):
        assert model("rope").path_of(length, compiled=True) == path


@pytest.mark.parametrize("pos", ["rope | alibi", "rope + window(size=4)", "cope", "kerple"])
@pytest.mark.parametrize("window", [None, 6])
def test_the_path_that_is_told_is_the_one_that_is_taken(pos, window):
    gpt = model(pos)
    taken = []
    gpt.options = Options(watch=lambda q, k, plan, *_: taken.append(plan.path))
    idx = torch.zeros(1, N, dtype=torch.long)
    gpt.losses(idx, idx, window=window)
    assert len(taken) == 2 and "|".join(dict.fromkeys(taken)) == gpt.path_of(N, window)


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

    def path(**how):
        card = dict(head_width=head_dim, on_gpu=True, compile_flex=True)
        plans = gpt.pos.plans(ids, positions, 8, 8, Options(**card | how))
        return choose_path(plans[gpt.pos.plan_keys[0]])

    assert (path() == "flex") == tested
    assert (path(compile_flex=False, compiled=True) == "flex") == tested
    assert "flex" not in (path(compile_flex=False), path(on_gpu=False))
    assert (path(has_gradients=True) == "flex") == trained
    assert path(has_gradients=True, dropout=0.5) != "flex"
    assert path(has_gradients=True, is_deterministic=True) == "scored"


@torch.no_grad()
@pytest.mark.parametrize(
    "pos",
    [
        "alibi",
        "nape + rope",
        "t5 + rope",
        "sandwich",
        "alibi + window(size=5, sinks=2)",
        "rope + window(size=6)",
    ],
)
def test_flex_equals_the_reference(pos):
    gpt = model(pos, dtype=torch.float32, n_embd=32)
    idx = text(gpt)
    expected = gpt(idx, idx)[0]
    gpt.options = Options("flex")
    torch.testing.assert_close(gpt(idx, idx)[0], expected, rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("size, sinks", [(3, 0), (3, 2), (30, 0), (1, 0), (2, 30)])
def test_a_block_reads_only_keys_that_it_can_see(size, sinks, monkeypatch):
    gpt = model(f"window(size={size}, sinks={sinks})")
    idx = torch.randint(17, (1, 40))
    expected = gpt(idx, idx)[0]
    numbers = []
    kernel = attention.run_kernel

    def counted(q, k, *others):
        numbers.append(k.shape[-2])
        return kernel(q, k, *others)

    monkeypatch.setattr(attention, "run_kernel", counted)
    gpt.options = Options(block_queries=4, shared_bytes=0)
    torch.testing.assert_close(gpt(idx, idx)[0], expected)
    assert len(numbers) == 10 * len(gpt.h)
    assert max(numbers) <= size + 3 + sinks


@torch.no_grad()
@pytest.mark.parametrize(
    "pos, extend, reads",
    [
        ("sink + window(size=3)", "", 6),
        ("alibi + softpick + window(size=3, sinks=2)", "", 8),
        ("rope", "streaming(size=3, sinks=2)", 8),
        ("rope + window(size=3)", "rerope", 6),
        ("cope + window(size=3)", "", N),  # its positions come from hidden keys too
        ("fox + sink + window(size=3)", "", N),  # so do these sums along the text
    ],
)
def test_a_scored_block_reads_only_keys_that_it_can_see(pos, extend, reads, monkeypatch):
    gpt = model(pos, extend)
    idx = text(gpt)
    numbers = []
    reference = attention.reference

    def counted(q, k, *others):
        numbers.append(k.shape[-2])
        return reference(q, k, *others)

    monkeypatch.setattr("model.attend", reference)
    expected = gpt(idx, idx)[0]
    monkeypatch.setattr("model.attend", attention.attend)
    monkeypatch.setattr(attention, "reference", counted)
    gpt.options = Options(block_queries=4)
    torch.testing.assert_close(gpt(idx, idx)[0], expected, rtol=1e-7, atol=1e-9)
    assert max(numbers) == reads


@torch.no_grad()
@pytest.mark.parametrize("dtype, heads", [(torch.float32, 4), (torch.bfloat16, 2)])
def test_a_card_gets_a_key_head_for_each_query_head_in_float32(dtype, heads, monkeypatch):
    """With fewer, only that of its kernels takes float32 which holds all scores."""
    index = torch.arange(N)
    gpt = model("nope", n_head=4)
    [plan] = gpt.pos.plans(index, index, N, N, Options(on_gpu=True)).values()
    taken = []
    kernel = attention.run_kernel

    def watched(q, k, v, *others):
        taken.append((k.shape[1], v.shape[1]))
        return kernel(q, k, v, *others)

    monkeypatch.setattr(attention, "run_kernel", watched)
    q, k, v = (torch.randn(2, heads, N, 4, dtype=dtype) for heads in (4, 2, 2))
    y = attention.attend(q, k, v, attention.prepare(plan), 0.5)
    torch.testing.assert_close(y, attention.reference(q, k, v, plan, 0.5), rtol=0.02, atol=0.02)
    assert taken == [(heads, heads)]


def test_scores_by_distance_are_those_of_the_last_query_shifted():
    last = torch.tensor([[4, 3, 2, 1, 0, -1, -1, -1]])  # by distance; -1: hidden
    views = attention.shifted(last, n_queries=3, n_keys=3, padding=3)
    assert views.tolist() == [[[2, 1, 0], [1, 0, -1], [0, -1, -1]]]
    assert views.data_ptr() == last[:, 2:].data_ptr()
    assert attention.shifted(last, 1, 5, 3).tolist() == [[[4, 3, 2, 1, 0]]]


def assert_near(results, expected, share):
    """Each result differs by less than this share of the norm of what is expected."""
    for x, y in zip(results, expected, strict=True):
        assert (x.double().cpu() - y).norm() <= share * y.norm() + 1e-6


@pytest.mark.parametrize(
    "pos", [*SCHEMES, "rfs(test=draw) + rope", "randomized(max=64, test=draw)"]
)
@torch.no_grad()
def test_a_test_leaves_buffers_of_the_same_shape(pos):
    """DDP copies buffers between processes, which may have tested other lengths."""
    gpt = model(pos)
    before = {name: buffer.shape for name, buffer in gpt.named_buffers()}
    gpt(text(gpt)[:, :6])
    assert {name: buffer.shape for name, buffer in gpt.named_buffers()} == before


@pytest.mark.parametrize("pos", ["fire", "cpb", "kerple", "t5"])
@torch.no_grad()
def test_autocast_rounds_no_bias_that_a_layer_makes_for_itself(pos, monkeypatch):
    gpt = model(pos, dtype=torch.float32)
    gpt.options = Options("added", block_queries=7, shared_bytes=0)
    # eager code on a CPU would shift one row of what depends on distances alone
    monkeypatch.setattr(attention, "can_shift", lambda plan: False)
    made = []
    added_scores = attention.added_scores

    def recorded(*args):
        made.append(added_scores(*args))
        return made[-1]

    monkeypatch.setattr(attention, "added_scores", recorded)
    gpt(text(gpt))
    with torch.autocast("cpu", torch.bfloat16):
        gpt(text(gpt))
    half = len(made) // 2
    assert half >= 6
    for exact, cast in zip(made[:half], made[half:], strict=True):
        assert torch.equal(exact, cast)


@CARD
@pytest.mark.gpu
@pytest.mark.parametrize("pos, extend", CASES)
def test_a_card_computes_what_the_reference_does_in_float64(pos, extend, monkeypatch):
    gpt = model(pos, extend, n_embd=32)  # heads of 16: flex takes none narrower
    idx = text(gpt)
    with monkeypatch.context() as patch:
        patch.setattr("model.attend", attention.reference)
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
        patch.setattr("model.attend", attention.reference)
        expected = output_and_gradients(gpt, idx)
    gpt = model(pos, dtype=torch.float32, n_embd=64, block_size=300).cuda().train()
    compiled = torch.compile(gpt)
    with torch.autocast("cuda", torch.bfloat16):
        logits, loss = compiled(idx.cuda(), idx.cuda())
    loss.backward()
    gradients = [p.grad for p in gpt.parameters() if p.grad is not None]
    assert_near([logits, *gradients], expected, 0.05)
    torch._dynamo.reset()


@pytest.mark.parametrize("documents", [False, True])
def test_what_is_added_to_a_block_fits_into_the_memory_of_a_gpu(documents):
    """With documents it has a batch, without them it has none."""
    starts = torch.zeros(8, 64, dtype=torch.long) if documents else None
    options = Options(path="added", block_queries=4, gpu_bytes=2**14, on_gpu=True)
    tokens = torch.zeros(8, 64, dtype=torch.long)
    gpt = model("kerple")
    options = replace(gpt.current_options(), **asdict(options))
    plan = gpt.pos.plan_pass(tokens, 64, 64, options, starts=starts).plans[0]
    sizes = []

    def attend_block(q, *_):
        sizes.append(q.shape[-2])
        return q

    q = torch.zeros(8, 2, 64, 8)
    attention.in_blocks(attend_block, q, q, q, plan, 1.0)
    n_texts = 8 if documents else 1
    assert sum(sizes) == 64
    assert max(sizes) == max(4, 2**14 // (4 * n_texts * 2 * 64))
