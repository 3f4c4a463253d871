"""Attention under every scheme: the reference against loops over the formulas, and the fast paths against the reference."""

import dataclasses
import math
import re
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention

import attention
from configurable import UserError
from posenc import Shape, Text
from positions.scheme import Plan, Scheme

H, D, T, L = 4, 8, 6, 8  # heads, columns of a head, tokens, training length
SHAPE = Shape(n_head=H, head_dim=D, width=H * D, length=L)
FLOAT64 = torch.empty(0, dtype=torch.float64)


# The schemes, each written down a second time, in plain Python floats


@dataclasses.dataclass(frozen=True)
class ByHand:
    """What a scheme does, by its formula; the defaults are nope's. `ids` are the positions of six tokens."""

    turn: Callable[[Sequence[float], int], Sequence[float]] = lambda x, p: x
    temperature: Callable[[int], float] = lambda index: 1.0
    bias: Callable[[int, int, int], float] = lambda h, i, j: 0.0
    sees: Callable[[int, int], bool] = lambda i, j: True
    embed: Callable[[int], Sequence[float]] = lambda p: [0.0] * (H * D)
    ids: tuple[int, ...] | None = None
    tolerance: float = 1e-12  # rotations and sinusoids are float32 tables: 1e-6


def number(name: str, place: int) -> float:
    """The value that the tests give to entry `place` of the parameter of that name, between 0.1 and 0.9."""
    return 0.5 + 0.4 * math.sin(1.7 * place + len(name) + ord(name[-1]))


def rotation(
    layout: str = "half", base: float = 10000.0, columns: int = D
) -> Callable[[Sequence[float], int], Sequence[float]]:
    """x -> x with its pairs of columns turned."""

    def turn(x: Sequence[float], p: int) -> Sequence[float]:
        y, n = list(x), columns // 2
        for m in range(n):
            a, b = (m, m + n) if layout == "half" else (2 * m, 2 * m + 1)
            angle = p / base ** (2 * m / columns)
            y[a] = x[a] * math.cos(angle) - x[b] * math.sin(angle)
            y[b] = x[b] * math.cos(angle) + x[a] * math.sin(angle)
        return y

    return turn


def sinusoid(p: int, scale: float = 0.1) -> list[float]:
    angles = [p / 10000 ** (2 * m / (H * D)) for m in range(H * D // 2)]
    return [scale * math.sin(a) for a in angles] + [scale * math.cos(a) for a in angles]


SLOPES = [1 / 4, 1 / 16, 1 / 64, 1 / 256]  # ALiBi's of four heads
BUCKETS = [0, 1, 2, 2, 3, 3]  # T5's of distances 0 ... 5, 4 buckets, max_distance 5
SPREAD = (0, 10, 21, 32, 42, 53)  # floor(k 64 / 6)


def alibi(h: int, i: int, j: int) -> float:
    return -SLOPES[h] * (i - j)


def softplus_alibi(h: int, i: int, j: int) -> float:
    return -math.log(1 + math.exp(number("raw", h))) * (i - j)


def t5(h: int, i: int, j: int) -> float:
    return number("table", (i - j) * H + h)  # 32 buckets: one for each distance below 16


def t5_small(h: int, i: int, j: int) -> float:
    return number("table", BUCKETS[min(i - j, 5)] * H + h)


def kerple_log(h: int, i: int, j: int) -> float:
    return -number("r1", h) * math.log(1 + number("r2", h) * (i - j))


def kerple_power(h: int, i: int, j: int) -> float:
    return -number("r1", h) * (i - j) ** number("r2", h)


def log_n(index: int) -> float:
    return math.log(index + 1) / math.log(L)


TABLE = re.compile(r"learned(2d)?\.table")  # of vectors for the embedding
GRID = (0, 1, 4096, 4097, 8192, 8193)  # row x 4096 + column of six patches, two in a row


def place(p: int) -> tuple[int, int]:
    """The row and the column of an id."""
    return p // 4096, p % 4096


def at_place(p: int) -> list[float]:
    """The vector of a table of 2 x 2 places; below it, that of the last row."""
    row, column = place(p)
    return [number("table", (min(row, 1) * 2 + column) * H * D + c) for c in range(H * D)]


def sinusoid_2d(p: int) -> list[float]:
    frequencies = [10000 ** (-4 * m / (H * D)) for m in range(H * D // 4)]
    waves = [f(n * w) for n in place(p) for f in (math.sin, math.cos) for w in frequencies]
    return [0.1 * wave for wave in waves]


def rotation_2d(x: Sequence[float], p: int) -> list[float]:
    """The first two pairs of columns turned by the row, the others by the column."""
    y, angles = list(x), [n * 100 ** (-4 * m / D) for n in place(p) for m in (0, 1)]
    for m, angle in enumerate(angles):
        a, b = m, m + D // 2
        y[a] = x[a] * math.cos(angle) - x[b] * math.sin(angle)
        y[b] = x[b] * math.cos(angle) + x[a] * math.sin(angle)
    return y


def alibi_2d(h: int, i: int, j: int) -> float:
    return -SLOPES[h] * math.dist(place(i), place(j))


BY_HAND = {
    "nope": ByHand(),
    "learned2d": ByHand(embed=at_place, ids=GRID),
    "sinusoidal2d": ByHand(embed=sinusoid_2d, ids=GRID, tolerance=1e-6),
    "rope2d": ByHand(turn=rotation_2d, ids=GRID, tolerance=1e-6),
    "alibi2d": ByHand(bias=alibi_2d, ids=GRID),
    "alibi2d + logn": ByHand(bias=alibi_2d, temperature=log_n, ids=GRID),
    "learned(rows=64)": ByHand(
        embed=lambda p: [number("table", p * H * D + c) for c in range(H * D)]
    ),
    "sinusoidal": ByHand(embed=sinusoid, tolerance=1e-6),
    "sinusoidal(scale=1)": ByHand(embed=lambda p: sinusoid(p, 1.0), tolerance=1e-5),
    "rope": ByHand(turn=rotation(), tolerance=1e-6),
    "rope(base=50)": ByHand(turn=rotation(base=50), tolerance=1e-6),
    "rope(layout=interleaved)": ByHand(turn=rotation("interleaved"), tolerance=1e-6),
    "rope(fraction=0.5)": ByHand(turn=rotation(columns=4), tolerance=1e-6),
    "rope(fraction=0.75, layout=interleaved, base=20)": ByHand(
        turn=rotation("interleaved", 20, 6), tolerance=1e-6
    ),
    "alibi": ByHand(bias=alibi),
    "alibi(learned=True)": ByHand(bias=softplus_alibi),
    "t5": ByHand(bias=lambda h, i, j: t5(h, min(i, j + 15), j)),
    "t5(buckets=4, max_distance=5)": ByHand(bias=t5_small),
    "window(size=2)": ByHand(sees=lambda i, j: i - j < 2),
    "window(size=2, sinks=1)": ByHand(sees=lambda i, j: i - j < 2 or j < 1),
    "window(size=1, sinks=2)": ByHand(sees=lambda i, j: i == j or j < 2),
    "randomized(max=64)": ByHand(ids=SPREAD),
    "logn": ByHand(temperature=log_n),
    "kerple": ByHand(bias=kerple_log),
    "kerple(kind=power)": ByHand(bias=kerple_power),
    "rope + alibi": ByHand(turn=rotation(), bias=alibi, tolerance=1e-6),
    "alibi + kerple": ByHand(bias=lambda h, i, j: alibi(h, i, j) + kerple_log(h, i, j)),
    "alibi + logn": ByHand(
        bias=alibi, temperature=log_n
    ),  # the temperature does not multiply the bias
    "rope + logn + window(size=3, sinks=1)": ByHand(
        turn=rotation(), temperature=log_n, sees=lambda i, j: i - j < 3 or j < 1, tolerance=1e-6
    ),
    "randomized(max=64) + rope": ByHand(turn=rotation(), ids=SPREAD, tolerance=1e-5),
    "randomized(max=64) + alibi + logn + window(size=3)": ByHand(  # biases go by position, temperatures and masks by index
        bias=alibi, temperature=log_n, sees=lambda i, j: i - j < 3, ids=SPREAD
    ),
    "randomized(max=64) + kerple": ByHand(bias=kerple_log, ids=SPREAD),
    "learned(rows=64) + randomized(max=64)": ByHand(
        embed=lambda p: [number("table", p * H * D + c) for c in range(H * D)], ids=SPREAD
    ),
    "learned(rows=64) + t5(buckets=4, max_distance=5) + rope(layout=interleaved)": ByHand(
        embed=lambda p: [number("table", p * H * D + c) for c in range(H * D)],
        turn=rotation("interleaved"),
        tolerance=1e-6,
        bias=t5_small,
    ),
}
SCHEMES = list(BY_HAND)


def attention_by_hand(q: Tensor, k: Tensor, v: Tensor, hand: ByHand, ids: Sequence[int]) -> Tensor:
    """softmax(q.k / sqrt(d) x temperature + bias) v of (H, T, D), one number at a time."""
    q, k, v = q.tolist(), k.tolist(), v.tolist()
    out = torch.zeros(len(q), len(q[0]), len(v[0][0]), dtype=torch.float64)
    for h in range(len(q)):
        for i in range(len(q[0])):
            seen = [j for j in range(i + 1) if hand.sees(i, j)]
            query, weights = hand.turn(q[h][i], ids[i]), []
            for j in seen:
                dot = sum(a * b for a, b in zip(query, hand.turn(k[h][j], ids[j]), strict=True))
                weights.append(
                    math.exp(
                        dot / math.sqrt(len(query)) * hand.temperature(i)
                        + hand.bias(h, ids[i], ids[j])
                    )
                )
            for c in range(len(v[0][0])):
                out[h, i, c] = sum(
                    w * v[h][j][c] for w, j in zip(weights, seen, strict=True)
                ) / sum(weights)
    return out


# Our side of it


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(
        *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    ).to(dtype)


def built(text: str, n_layer: int = 1) -> Scheme:
    """A scheme in float64 whose parameters are `number`s."""
    scheme = Scheme(text, SHAPE, n_layer).double()
    for name, parameter in scheme.named_parameters():
        flat = [number(name.split(".")[-1], place) for place in range(parameter.numel())]
        parameter.data = torch.tensor(flat, dtype=torch.float64).view_as(parameter)
    return scheme


def plan_of(
    scheme: Scheme, tokens: int, positions: Tensor | None = None, queries: int | None = None
) -> Plan:
    """The plan of the last `queries` of `tokens` tokens."""
    index = torch.arange(tokens)
    ids = scheme.ids(index if positions is None else positions, tokens)
    last = slice(tokens - (queries or tokens), None)
    query = index[last] if queries else index
    return scheme.plans(query, ids[..., last], ids, tokens, FLOAT64)[0]


def turned(q: Tensor, k: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
    """As the model does, for a plan of all tokens."""
    return (plan.turns[0](q), plan.turns[1](k)) if plan.turns else (q, k)


def heads_of(scheme: Scheme, ids: Tensor) -> list[Tensor]:
    """Three streams of token embeddings, with what the scheme adds to them, as q, k and v (1, H, T, D)."""
    added = scheme.embed(ids, Text(torch.zeros(1, ids.shape[-1], dtype=torch.long), ids.shape[-1]))
    x = [normal(len(ids), H * D, seed=s) + (0 if added is None else added) for s in (1, 2, 3)]
    return [t.view(1, len(ids), H, D).transpose(1, 2) for t in x]


@pytest.mark.parametrize("text", SCHEMES)
def test_the_reference_is_the_formula(text):
    scheme, hand = built(text), BY_HAND[text]
    plan = plan_of(scheme, T)
    ids = list(hand.ids or range(T))
    assert plan.query_ids.tolist() == plan.key_ids.tolist() == ids
    x = [
        normal(T, H * D, seed=s) + torch.tensor([hand.embed(p) for p in ids], dtype=torch.float64)
        for s in (1, 2, 3)
    ]
    expected = attention_by_hand(*(t.view(T, H, D).transpose(0, 1) for t in x), hand, ids)
    q, k, v = heads_of(scheme, plan.key_ids)
    out = attention.reference(*turned(q, k, plan), v, plan)
    torch.testing.assert_close(out[0], expected, rtol=0, atol=hand.tolerance)


@pytest.mark.parametrize("text", SCHEMES)
def test_attention_is_the_formula(text):
    """What the model calls, with the path that is chosen here."""
    scheme, hand = built(text), BY_HAND[text]
    plan, ids = plan_of(scheme, T), list(hand.ids or range(T))
    x = [
        normal(T, H * D, seed=s) + torch.tensor([hand.embed(p) for p in ids], dtype=torch.float64)
        for s in (1, 2, 3)
    ]
    expected = attention_by_hand(*(t.view(T, H, D).transpose(0, 1) for t in x), hand, ids)
    q, k, v = heads_of(scheme, plan.key_ids)
    out = attention.attend(*turned(q, k, plan), v, attention.prepare(plan, H, FLOAT64))
    torch.testing.assert_close(out[0], expected, rtol=0, atol=hand.tolerance)


@pytest.mark.parametrize("text", [text for text in SCHEMES if BY_HAND[text].ids is None])
def test_positions_with_gaps_and_repeats_are_the_formula_too(text):
    """Causality, windows and temperatures go by index; rotations, biases and embeddings by position."""
    scheme, hand, ids = built(text), BY_HAND[text], [2, 2, 5, 6, 6, 13]
    plan = plan_of(scheme, T, torch.tensor(ids))
    x = [
        normal(T, H * D, seed=s) + torch.tensor([hand.embed(p) for p in ids], dtype=torch.float64)
        for s in (1, 2, 3)
    ]
    expected = attention_by_hand(*(t.view(T, H, D).transpose(0, 1) for t in x), hand, ids)
    q, k, v = heads_of(scheme, plan.key_ids)
    out = attention.attend(*turned(q, k, plan), v, attention.prepare(plan, H, FLOAT64))
    torch.testing.assert_close(out[0], expected, rtol=0, atol=max(hand.tolerance, 1e-12))


# The added scores, entry by entry


def added(text: str, tokens: int = T) -> Tensor:
    plan = plan_of(built(text), tokens)
    return attention.added_scores(plan, H, FLOAT64, slice(None), torch.arange(tokens))


def test_alibi_is_a_published_matrix():
    minus = -torch.inf
    expected = [
        [0, minus, minus, minus],
        [-1, 0, minus, minus],
        [-2, -1, 0, minus],
        [-3, -2, -1, 0],
    ]
    for h, slope in enumerate(SLOPES):
        assert added("alibi", 4)[h].tolist() == [[slope * x for x in row] for row in expected]


@pytest.mark.parametrize("text", ["alibi", "alibi(learned=True)", "kerple", "kerple(kind=power)"])
def test_a_larger_distance_lowers_the_score(text):
    row = added(text, 20)[:, -1]  # from the farthest key to the nearest
    assert (row.diff() > 0).all() and (row[:, -1] == 0).all()


def test_kerple_flattens_with_distance_where_alibi_does_not():
    assert (added("kerple", 20)[:, -1].diff().diff() > 0).all()
    torch.testing.assert_close(
        added("alibi", 20)[:, -1].diff().diff(), torch.zeros(H, 18, dtype=torch.float64)
    )


def test_a_window_sees_its_last_keys_and_the_sinks_and_nothing_else():
    seen = (added("window(size=2, sinks=1)", 5) == 0).int().tolist()
    assert seen == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 0, 1, 1, 0],
        [1, 0, 0, 1, 1],
    ]


@pytest.mark.parametrize("text", SCHEMES)
def test_no_query_sees_a_key_ahead(text):
    hidden = added(text)[..., :, :].expand(1, 1, T, T) if added(text).dim() == 2 else added(text)
    ahead = torch.ones(T, T, dtype=torch.bool).triu(1)
    assert (hidden[..., ahead] == -torch.inf).all() and (
        hidden.diagonal(dim1=-2, dim2=-1) > -torch.inf
    ).all()


# Every path is the reference, forward and backward


N = 11  # not a multiple of the block's rows
PLAIN = [
    text
    for text in SCHEMES
    if not any(word in text for word in ("alibi", "t5", "kerple", "window"))
]
CASES = [(text, path) for text in SCHEMES for path in ("matmul", "dense", "blocked")] + [
    (text, "fused") for text in PLAIN
]


@pytest.fixture
def through(monkeypatch):
    """A function that sends all attention through one path."""

    def through(path: str) -> None:
        monkeypatch.setattr(attention, "choose_path", lambda *arguments: path)
        monkeypatch.setattr(attention, "BLOCK_ROWS", 3)

    return through


def qkv(batch: int, queries: int, keys: int) -> list[Tensor]:
    shapes = ((batch, H, queries, D), (batch, H, keys, D), (batch, H, keys, D))
    return [normal(*shape, seed=s).requires_grad_() for s, shape in enumerate(shapes)]


def output_and_gradients(
    attend: Callable[..., Tensor], scheme: Scheme, plan_arguments: dict[str, object]
) -> list[Tensor]:
    """The output, and the gradients of q, k, v and those parameters of the scheme that act in attention."""
    plan = plan_of(scheme, N, **plan_arguments)
    q, k, v = qkv(2, plan.query_ids.shape[-1], N)
    out = attend(q, k, v, plan)
    inputs = [q, k, v, *scheme.parameters()]
    gradients = torch.autograd.grad(
        (out * normal(*out.shape, seed=9)).sum(), inputs, allow_unused=True
    )
    return [out.detach(), *(g for g in gradients if g is not None)]


def assert_equals_reference(text: str, **plan_arguments: object) -> None:
    scheme = built(text)
    theirs = output_and_gradients(attention.reference, scheme, plan_arguments)
    ours = output_and_gradients(
        lambda q, k, v, plan: attention.attend(q, k, v, attention.prepare(plan, H, FLOAT64)),
        scheme,
        plan_arguments,
    )
    acting = sum(
        p.numel() > 0 for name, p in scheme.named_parameters() if not TABLE.search(name)
    )  # not the embedding's table
    assert len(ours) == len(theirs) == 4 + acting
    for a, b in zip(ours, theirs, strict=True):
        assert not b.isnan().any()
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("text, path", CASES)
def test_a_path_equals_the_reference_in_output_and_gradients(text, path, through):
    through(path)
    assert_equals_reference(text)


@pytest.mark.parametrize("text, path", CASES)
def test_a_path_equals_the_reference_where_positions_differ_between_sequences(text, path, through):
    through(path)
    rows = [
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
        [1, 1, 4, 5, 9, 9, 10, 10, 10, 10, 10],
    ]  # all below the total length
    assert_equals_reference(text, positions=torch.tensor(rows))


@pytest.mark.parametrize("text, path", [case for case in CASES if case[1] != "fused"])
@pytest.mark.parametrize("queries", [1, 4])
def test_a_path_equals_the_reference_where_keys_are_cached(text, path, queries, through):
    """The queries are the last of the keys: what decoding and prefilling in chunks ask for."""
    through(path)
    assert_equals_reference(text, queries=queries)


@pytest.mark.parametrize("text", PLAIN)
def test_the_fused_path_of_one_query_sees_every_key(text, through):
    through("fused")
    assert_equals_reference(text, queries=1)


@pytest.mark.parametrize("text", SCHEMES)
def test_the_last_queries_alone_get_what_they_get_among_all(text):
    """The reference of a few queries is a part of the reference of all of them."""
    scheme = built(text)
    whole, part = plan_of(scheme, N), plan_of(scheme, N, queries=4)
    q, k, v = qkv(2, N, N)
    torch.testing.assert_close(
        attention.reference(q[:, :, -4:], k, v, part),
        attention.reference(q, k, v, whole)[:, :, -4:],
        rtol=0,
        atol=1e-12,
    )


@pytest.mark.parametrize("rows", [1, 2, 5, 11, 100])
@pytest.mark.parametrize(
    "text",
    [
        "alibi",
        "rope + window(size=3)",
        "window(size=3, sinks=2) + t5",
        "window(size=20)",
        "window(size=1, sinks=9)",
    ],
)
def test_blocks_of_any_height_give_the_same(text, rows, through, monkeypatch):
    through("blocked")
    monkeypatch.setattr(attention, "BLOCK_ROWS", rows)
    assert_equals_reference(text)
    assert_equals_reference(text, queries=7)


@pytest.mark.parametrize("path", ["fused", "blocked", "dense"])
def test_the_kernel_of_a_cpu_gets_values_as_wide_as_keys(path, through, monkeypatch):
    """Else it forms all scores at once: 28 times as slow at 4,096 tokens."""
    through(path)
    widths, kernel = set(), attention.scaled_dot_product_attention

    def watched(q, k, v, **how):
        widths.add((q.shape[-1], k.shape[-1], v.shape[-1]))
        return kernel(q, k, v, **how)

    monkeypatch.setattr(attention, "scaled_dot_product_attention", watched)
    plan = plan_of(built("nope" if path == "fused" else "alibi"), N)
    q, k, v = qkv(2, N, N)
    q, k = torch.cat((q, q), -1), torch.cat((k, k), -1)
    found = attention.attend(q, k, v, attention.prepare(plan, H, FLOAT64))
    torch.testing.assert_close(found, attention.reference(q, k, v, plan), rtol=0, atol=1e-12)
    assert found.shape == v.shape and widths == {(2 * D, 2 * D, 2 * D)}


@pytest.mark.parametrize("rows", [3, 4, 11])
def test_scores_of_the_distance_alone_are_made_once_for_all_blocks(rows, through, monkeypatch):
    through("blocked")
    monkeypatch.setattr(attention, "BLOCK_ROWS", rows)
    made, make = [], attention.added_scores
    monkeypatch.setattr(attention, "added_scores", lambda *a: made.append(a[3]) or make(*a))
    for text in ("alibi + window(size=4)", "t5", "kerple + rope", "relative + learned"):
        made.clear()
        assert_equals_reference(text)
        assert len(made) == 2, text  # the reference's, and the last block
    for text in ("fire", "rope + block_causal", "alibi + window(size=2, sinks=1)"):
        made.clear()
        assert_equals_reference(text)
        assert len(made) > 2 or rows == 11, text  # not a function of the distance
    made.clear()
    assert_equals_reference("alibi", positions=torch.arange(N) * 3 // 2)  # with gaps
    assert len(made) > 2 or rows == 11


def test_blocks_of_a_window_read_only_the_keys_they_can_see(through, monkeypatch):
    """Memory and time of a window are linear in the length."""
    through("blocked")
    asked, make = [], attention.added_scores
    monkeypatch.setattr(
        attention, "added_scores", lambda *a: asked.append(a[4].tolist()) or make(*a)
    )
    assert_equals_reference("window(size=2, sinks=1)")
    blocks = asked[:0:-1]  # the first is the reference's, and then the last block comes first
    assert [blocks[n] for n in (0, 1, 2)] == [[0, 1], [0, 1, 2, 3, 4], [0, 4, 5, 6, 7]]
    assert max(map(len, blocks)) <= 3 + 1 + 1


def test_the_largest_block_is_made_first_so_that_its_memory_serves_the_others(through, monkeypatch):
    """In the other order the allocator kept 13 GiB of alibi2d at 65,536 tokens, and now 1."""
    through("blocked")
    sizes, make = [], attention.added_scores
    monkeypatch.setattr(attention, "added_scores", lambda *a: sizes.append(len(a[4])) or make(*a))
    assert_equals_reference("fire")
    assert len(sizes) > 3 and sizes[1:] == sorted(sizes[1:], reverse=True)
    through("scored")
    stops, part = [], attention._part
    monkeypatch.setattr(attention, "_part", lambda *a: stops.append(a[2]) or part(*a))
    assert_equals_reference("rope + scale_invariant")
    assert len(stops) > 2 and stops == sorted(stops, reverse=True)


@pytest.mark.parametrize("path", ["matmul", "dense", "blocked", "fused"])
@pytest.mark.parametrize("text", ["nope", "alibi + logn", "kerple + rope"])
def test_in_bfloat16_a_path_is_as_near_to_the_reference_as_its_type_allows(text, path, through):
    if path == "fused" and text != "nope":
        return
    through(path)
    scheme = Scheme(text, SHAPE, 1)
    index = torch.arange(64)
    plan = scheme.plans(index, index, index, 64, torch.empty(0))[0]
    q, k, v = (normal(2, H, 64, D, seed=s, dtype=torch.bfloat16) for s in (1, 2, 3))
    out = attention.attend(q, k, v, attention.prepare(plan, H, torch.empty(0)))
    assert out.dtype == torch.bfloat16
    exact = attention.reference(q.double(), k.double(), v.double(), plan)
    assert attention.reference(q, k, v, plan).dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), exact, rtol=0, atol=0.03)


@pytest.mark.parametrize("path", ["matmul", "dense", "blocked", "fused"])
def test_dropout_drops_weights_and_keeps_their_mean(path, through):
    through(path)
    plan = plan_of(built("nope"), 40)
    prepared, (q, k, v) = attention.prepare(plan, H, FLOAT64), qkv(2, 40, 40)
    torch.manual_seed(0)
    out = attention.attend(q, k, torch.ones_like(v), prepared, dropout=0.5)
    assert (
        float(out.detach().mean()) == pytest.approx(1, abs=0.1) and float(out.detach().std()) > 0.1
    )
    whole = attention.attend(q, k, torch.ones_like(v), prepared)
    torch.testing.assert_close(whole, torch.ones_like(whole), rtol=0, atol=1e-12)


# FlexAttention, here without a compiler, and what a GPU does with blocks


class OnCard(torch.Tensor):
    """A tensor of the CPU that takes itself for one of a GPU."""

    is_cuda = property(lambda tensor: True)


class OnGPU(OnCard):
    """The same, of ids: it says so by its device too."""

    device = property(lambda tensor: torch.device("cuda"))


FLEXIBLE = [
    "alibi + window(size=4, sinks=1)",
    "alibi(learned=True) + t5 + logn",
    "t5(buckets=4, max_distance=5) + relative(max_distance=6) + cpb(hidden=3)",
    "kerple + sandwich + multiscale + block_causal(size=3)",
    "kerple(kind=power) + logn",
    "rope(p=0.5) + scale_invariant + t5",
]
WIDE = dataclasses.replace(SHAPE, head_dim=16, width=H * 16)


def flexible_plan(text: str, kind: type[Tensor] = torch.Tensor) -> tuple[Scheme, Plan]:
    """A scheme of heads that FlexAttention takes, and its plan of N tokens at their places."""
    torch.manual_seed(0)
    scheme, index = Scheme(text, WIDE, 1).double(), torch.arange(N)
    with torch.no_grad():
        for number, p in enumerate(scheme.parameters()):
            p.add_(0.3 * normal(p.numel(), seed=number).abs().view_as(p))
    ids = scheme.ids(index, N)
    plan = scheme.plans(index, ids, ids, N, FLOAT64)[0]
    turned = {name: getattr(plan, name).as_subclass(kind) for name in ("query_ids", "key_ids")}
    return scheme, dataclasses.replace(plan, **turned)


def test_every_piece_of_the_table_is_in_a_case():
    names = {name for text in FLEXIBLE for name in attention.acting(flexible_plan(text)[1])}
    assert names == {name for kind in attention.FLEX.values() for name in kind}


def gradients_through(path: str, text: str) -> list[Tensor]:
    """Output and gradients by a path, or by the reference, of seeded q, k and v."""
    scheme, plan = flexible_plan(text)
    q, k, v = (normal(2, H, N, 16, seed=s).requires_grad_() for s in range(3))
    if path == "reference":
        out = attention.reference(q, k, v, plan)
    else:
        out = attention.attend(q, k, v, attention.prepare(plan, H, FLOAT64))
    weighed = (out * normal(*out.shape, seed=9)).sum()
    return [out.detach(), *torch.autograd.grad(weighed, [q, k, v, *scheme.parameters()])]


@pytest.mark.parametrize("text", FLEXIBLE)
def test_flex_equals_the_reference_in_output_and_gradients(text, through, monkeypatch):
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *tensors: None)  # eager: any
    expected = gradients_through("reference", text)
    through("flex")
    for ours, theirs in zip(gradients_through("flex", text), expected, strict=True):
        assert not theirs.isnan().any() and theirs.abs().max() > 0
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


@pytest.fixture
def asked(monkeypatch):
    """Sets what the settings ask of attention, and puts it back."""
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: False)
    before = dict(attention.ASKED)
    yield attention.use
    attention.use(**before)


def on_gpu(text: str, compiled: bool = True, dropout: float = 0.0) -> str:
    return attention.choose_path(flexible_plan(text, OnGPU)[1], H, compiled, dropout)


@pytest.mark.parametrize("text", [*FLEXIBLE, "sandwich + block_causal(size=3)"])
def test_on_a_gpu_flex_is_taken_where_it_was_verified(text, asked, monkeypatch):
    usual = "scored" if "scale_invariant" in text else "dense"
    fixed = text in (FLEXIBLE[0], "sandwich + block_causal(size=3)")
    trained = "flex" if fixed else usual  # it is slow where scores have parameters
    assert on_gpu(text) == trained and on_gpu(text, compiled=False) == usual
    asked(compiler=True)
    assert on_gpu(text, compiled=False) == trained
    assert on_gpu(text, dropout=0.1) == usual
    with torch.no_grad():
        assert on_gpu(text, dropout=0.1) == "flex"
    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(torch, "__version__", "2.99.0")
        assert on_gpu(text) == usual
    asked(path="flex")
    assert on_gpu(text) == "flex"
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    with pytest.raises(UserError, match="attention=flex does not fit here: use one of"):
        on_gpu(text)


@pytest.mark.parametrize(
    "text",
    [
        "rope",
        "fire",
        "cope",
        "dape + alibi",
        "randomized(max=64) + alibi",
        "path(rank=3)",
        "fox + t5",
    ],
)
def test_on_a_gpu_flex_is_not_taken_elsewhere(text, asked):
    assert on_gpu(text) in ("fused", "dense", "scored")
    asked(path="flex")
    if text == "rope":
        assert on_gpu(text) == "flex"  # its blocks of keys are causal
    else:
        with pytest.raises(UserError, match="attention=flex does not fit here"):
            on_gpu(text)


def test_on_a_gpu_all_layers_share_a_matrix_of_scores_of_256_mib_and_no_larger_one(asked):
    plan = flexible_plan("t5", OnGPU)[1]
    most = 2**28 // (4 * N * N)
    paths = [attention.choose_path(plan, heads, compiled=True) for heads in (most, most + 1)]
    assert paths == ["dense", "blocked"]


def test_frozen_pieces_train_through_flex(asked):
    scheme, plan = flexible_plan("t5", OnGPU)
    scheme.requires_grad_(False)
    assert attention.choose_path(plan, H, compiled=True) == "flex"


def test_a_head_that_flex_cannot_take_goes_another_way():
    index = torch.arange(N).as_subclass(OnCard)
    plan = Scheme("alibi", SHAPE, 1).plans(*[index] * 3, N, FLOAT64)[0]
    assert SHAPE.head_dim < 16 and not plan.pieces and flexible_plan("alibi")[1].pieces


@pytest.mark.parametrize("path", ["matmul", "dense", "blocked", "scored", "fused"])
@pytest.mark.parametrize("text", ["rope", "alibi", "fox"])
def test_a_path_that_is_asked_for_is_taken_or_refused(text, path, asked):
    asked(path=path)
    fits = path != "fused" or text != "alibi"
    if fits:
        assert chosen(text, 16) == path
        if text != "fox":
            assert_equals_reference(text)
    else:
        with pytest.raises(UserError, match=f"attention={path} does not fit here: use one of"):
            chosen(text, 16)
    assert chosen(text, 64, queries=1) == ("dense" if text == "alibi" else "fused")


def test_on_a_gpu_scored_blocks_are_made_again_backward_and_equal_the_reference(monkeypatch):
    made, make = [], attention.tile_scores
    monkeypatch.setattr(attention, "tile_scores", lambda *a: made.append(1) or make(*a))
    monkeypatch.setattr(attention, "block_rows", lambda q, k: 4)
    scheme, plan = flexible_plan("cope + alibi")
    q, k, v = (normal(2, H, N, 16, seed=s).requires_grad_() for s in range(3))
    inputs = [q, k, v, *scheme.parameters()]
    expected = attention.reference(q, k, v, plan)
    theirs = torch.autograd.grad(expected.square().sum(), inputs)
    made.clear()
    prepared = attention.Prepared(plan, "scored")
    out = attention.attend(*(t.as_subclass(OnCard) for t in (q, k, v)), prepared)
    assert len(made) == 3
    ours = torch.autograd.grad(out.square().sum(), inputs)
    assert len(made) == 6
    for a, b in zip([out, *ours], [expected, *theirs], strict=True):
        torch.testing.assert_close(a.as_subclass(torch.Tensor), b, rtol=1e-10, atol=1e-12)


def test_on_a_gpu_blocks_are_higher_but_no_larger_than_a_limit():
    few, many = (torch.empty(1, 4, n, 1) for n in (64, 2**14))
    assert attention.block_rows(many, many) == 256  # a CPU
    assert attention.block_rows(many.as_subclass(OnCard), many) == attention.CARD_BYTES // 2**18
    assert attention.block_rows(few.as_subclass(OnCard), few) > 64
    far = torch.empty(1, 1, 1, 1).expand(1, 4, 2**20, 1).as_subclass(OnCard)
    assert attention.block_rows(far, far) == 256


# Which path is taken


def chosen(text: str, tokens: int, compiled: bool = False, queries: int | None = None) -> str:
    return attention.choose_path(plan_of(built(text), tokens, queries=queries), H, compiled)


@pytest.mark.parametrize("text", PLAIN)
def test_where_nothing_is_added_to_the_scores_the_kernel_of_the_library_serves(text):
    assert chosen(text, 16) == "fused" and chosen(text, 64, queries=1) == "fused"
    assert chosen(text, 16, queries=5) == "dense"  # its causality would be that of the first keys


@pytest.mark.parametrize("text", [text for text in SCHEMES if text not in PLAIN])
def test_a_bias_or_a_mask_is_dense_where_it_is_small_and_blocked_where_it_is_not(text, monkeypatch):
    assert chosen(text, 16) == "dense"
    monkeypatch.setattr(attention, "DENSE_BYTES", 4 * H * 16 * 16)
    assert (
        chosen(text, 16) == "dense"
        and chosen(text, 17) == "blocked"
        and chosen(text, 64, queries=1) == "dense"
    )


def test_compiled_short_attention_on_a_cpu_is_two_matrix_products():
    assert chosen("alibi", attention.MATMUL_KEYS, compiled=True) == "matmul"
    assert chosen("rope", attention.MATMUL_KEYS + 1, compiled=True) == "fused"


def test_a_block_of_scores_is_small_at_any_length():
    assert 4 * 12 * attention.BLOCK_ROWS * 2**16 < 2**30  # 12 heads, 65,536 keys


# What only a GPU does, told without one


def test_on_a_gpu_cudnn_never_meets_a_mask(monkeypatch):
    """It reads float32 masks wrongly, and makes NaN of very negative ones (pytorch 191612, 196678)."""
    allowed, masks, kernel = [], [], attention.scaled_dot_product_attention

    def watched(q, k, v, attn_mask=None, **how):
        allowed.append(torch.backends.cuda.cudnn_sdp_enabled())
        masks.append(attn_mask)
        return kernel(q, k, v, attn_mask=attn_mask, **how)

    monkeypatch.setattr(attention, "scaled_dot_product_attention", watched)
    q, k, v = (t.detach().float() for t in qkv(2, N, N))
    plan = plan_of(built("alibi"), N)
    added = attention.added_scores(plan, H, q.new_empty(0), slice(None), torch.arange(N))
    here = torch.backends.cuda.cudnn_sdp_enabled()
    for path in ("dense", "blocked"):
        prepared = attention.Prepared(plan, path, added)
        expected = attention.attend(q, k, v, prepared)
        found = attention.attend(q.as_subclass(OnCard), k, v, prepared)
        torch.testing.assert_close(found.as_subclass(torch.Tensor), expected)
    assert allowed == [here, False, here, False] and all(m is not None for m in masks)
    assert torch.backends.cuda.cudnn_sdp_enabled() == here


@pytest.mark.parametrize("text", ["rope", "alibi"])
def test_on_a_gpu_deterministic_training_leaves_the_librarys_kernels_out(text, monkeypatch):
    plan = plan_of(built(text), 16)
    elsewhere = dataclasses.replace(plan, query_ids=plan.query_ids.to("meta"))
    usual = attention.choose_path(plan, H, compiled=False)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: False)
    assert attention.choose_path(elsewhere, H, compiled=True) == usual
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert attention.choose_path(elsewhere, H, compiled=True) == "matmul"
    assert attention.choose_path(elsewhere, H, compiled=False) == "matmul"
    assert attention.choose_path(plan, H, compiled=False) == usual  # a CPU needs nothing else
    with torch.no_grad():  # their sums forward have one order
        assert attention.choose_path(elsewhere, H, compiled=False) == usual


# Other libraries


def test_alibi_is_the_attention_of_bloom():
    """Theirs adds + m_h j, which the softmax cannot tell from - m_h (i - j)."""
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    q, k, v = (t.detach() for t in qkv(2, N, N))
    alibi = bloom.build_alibi_tensor(torch.ones(2, N), H, torch.float64).view(2, H, 1, N)
    scores = (q @ k.mT / math.sqrt(D) + alibi).masked_fill(
        torch.ones(N, N, dtype=torch.bool).triu(1), -torch.inf
    )
    ours = attention.reference(q, k, v, plan_of(built("alibi"), N))
    torch.testing.assert_close(ours, scores.softmax(-1) @ v, rtol=0, atol=1e-6)


def test_t5_is_the_bias_of_t5():
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    config = pytest.importorskip("transformers").T5Config(
        d_model=H * D,
        d_kv=D,
        num_heads=H,
        is_decoder=True,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=20,
    )
    theirs = t5.T5Attention(config, has_relative_attention_bias=True, layer_idx=0).double()
    scheme = built("t5(buckets=8, max_distance=20)")
    theirs.relative_attention_bias.weight.data = scheme.pieces["0_t5"].table.data.clone()
    expected = theirs.compute_bias(40, 40)[0]  # (H, 40, 40)
    seen = torch.ones(40, 40, dtype=torch.bool).tril()
    plan = plan_of(scheme, 40)
    ours = attention.added_scores(plan, H, FLOAT64, slice(None), torch.arange(40))
    torch.testing.assert_close(ours[:, seen], expected[:, seen], rtol=0, atol=1e-12)
