"""Causal attention under a position plan: the plain reference, and the fast paths that equal it.

`matmul`   two matrix products around a float32 softmax: fastest on a CPU at short lengths
`fused`    nothing is added to the scores: the library's causal kernel
`dense`    biases and masks are one matrix (H, T, S), made once for all layers that share a plan
`blocked`  the same by blocks of query rows, made in each layer: memory is linear in the length
`scored`   a piece claims the whole score, or distances are rewritten: the reference, by blocks
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import dropout as apply_dropout
from torch.nn.functional import scaled_dot_product_attention

from posenc import Tile
from positions.scheme import Plan

MATMUL_KEYS = 512  # on a CPU, compiled: above this the library's kernel is faster
DENSE_BYTES = 16 * 2**20  # a larger matrix of added scores is made in blocks
BLOCK_ROWS = 256  # rows of a block: they keep the kernel busy, and causality saves half of the work
# cuDNN reads float32 masks wrongly and makes NaN of very negative ones (pytorch 191612, 196678)
MASKED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


# ---- the reference


def added_scores(plan: Plan, n_head: int, like: Tensor, rows: slice, columns: Tensor) -> Tensor:
    """What is added to q.k / sqrt(d): (..., H or 1, R, C), -inf where a query may not see a key.

    `rows` are queries of the plan, `columns` (C,) indexes of keys. like gives dtype (float32 or
    wider) and device.
    """
    queries, keys = plan.query_ids.shape[-1], plan.key_ids.shape[-1]
    index = torch.arange(keys - queries, keys, device=like.device)[rows, None]
    seen = columns <= index
    for mask in plan.masks:
        seen = seen & mask(index, columns)
    added = torch.zeros((), dtype=like.dtype, device=like.device)
    if plan.biases:
        heads = torch.arange(n_head, device=like.device)[:, None, None]
        i, j = crossed(plan.query_ids[..., rows], plan.key_ids[..., columns])
        j = torch.minimum(i, j)  # a bias may be undefined, even NaN, for keys ahead
        for bias in plan.biases:
            added = added + bias(heads, i, j).to(like.dtype)  # real positions are wider
    return torch.where(seen, added, -torch.inf)


def crossed(query_ids: Tensor, key_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Ids of queries and of keys that broadcast: (R, 1) and (1, C), or (B, 1, R, 1) and (B, 1, 1,
    C).
    """
    i, j = query_ids[..., None], key_ids[..., None, :]
    return (i[:, None], j[:, None]) if i.dim() == 3 else (i, j)


def scores(
    q: Tensor, k: Tensor, plan: Plan, rows: slice = slice(None), features: Tensor | None = None
) -> Tensor:
    """The scores before the softmax, (B, H, R, S), -inf where unseen, in float32 or wider.

    q (B, H, T, D), of which `rows` are taken, and k (B, H, S, D) are turned; with regions they are
    not. features (B, 1, S, M) are those of all keys.
    """
    if plan.regions:
        return region_scores(region_turns(q, k, plan), plan, rows)
    dtype = torch.promote_types(q.dtype, torch.float32)
    places = torch.arange(k.shape[-2], device=q.device)
    here = places[k.shape[-2] - q.shape[-2] :][rows]
    q, k = q[..., rows, :].to(dtype), k.to(dtype)
    if plan.temperature is not None:
        q = q * plan.temperature[..., rows, :]
    found = q @ k.mT / math.sqrt(q.shape[-1])
    added = added_scores(plan, q.shape[1], q.new_empty(0), rows, places)
    if plan.scorer is None:  # a product with a key ahead may overflow
        return torch.where(added > -torch.inf, found + added, -torch.inf)
    of_keys = None if features is None else features[:, 0].to(dtype)
    of_queries = None if of_keys is None else of_keys[:, here]
    i, j = crossed(plan.query_ids[..., rows], plan.key_ids)
    tile = Tile(q, k, found, added, i, j, here[:, None], places, of_queries, of_keys)
    return plan.scorer.score(tile).masked_fill(~tile.seen, -torch.inf)


def region_turns(q: Tensor, k: Tensor, plan: Plan) -> list[tuple[Tensor, Tensor]]:
    """q and k as each region turns them."""
    turned = []
    for part, _ in plan.regions:
        turn_queries, turn_keys = part.turns or (lambda x: x, lambda x: x)
        turned.append((turn_queries(q), turn_keys(k)))
    return turned


def region_scores(turned: list[tuple[Tensor, Tensor]], plan: Plan, rows: slice) -> Tensor:
    """The scores of `rows` where distances are rewritten: the last region that holds counts."""
    i, j = crossed(plan.query_ids[..., rows], plan.key_ids)
    like = turned[0][0]
    found = like.new_zeros((), dtype=torch.promote_types(like.dtype, torch.float32))
    for (q, k), (part, where) in zip(turned, plan.regions, strict=True):
        here = scores(q, k, replace(part, masks=plan.masks), rows)
        found = torch.where(where(i, j), here, found)
    return found


def reference(
    q: Tensor, k: Tensor, v: Tensor, plan: Plan, features: Tensor | None = None
) -> Tensor:
    """The definition, in float32 or wider: q (B, H, T, D), k and v (B, H, S, D) -> (B, H, T, D).

    q and k are turned already, but with regions they are not.
    """
    with torch.autocast(q.device.type, enabled=False):
        weights = scores(q, k, plan, features=features).softmax(-1)
        return (weights @ v.to(weights.dtype)).to(q.dtype)


# ---- the paths


@dataclass(frozen=True)
class Prepared:
    """A plan, the path chosen for it, and the matrix of added scores where that path takes one."""

    plan: Plan
    path: str
    added: Tensor | None = None


def choose_path(plan: Plan, n_head: int, compiled: bool) -> str:
    """The path of a plan in eager or compiled code: matmul, fused, dense, blocked or scored.

    On a GPU the library's kernels add gradients in any order: with deterministic algorithms none
    of them is trained with.
    """
    queries, keys = plan.query_ids.shape[-1], plan.key_ids.shape[-1]
    if plan.scorer is not None or plan.regions:
        return "scored"
    on_cpu, trained = plan.query_ids.device.type == "cpu", torch.is_grad_enabled()
    exact = trained and not on_cpu and torch.are_deterministic_algorithms_enabled()
    if exact or (on_cpu and compiled and keys <= MATMUL_KEYS):
        return "matmul"
    if not plan.biases and not plan.masks and (queries == keys or queries == 1):
        return "fused"
    return "dense" if 4 * n_head * queries * keys <= DENSE_BYTES else "blocked"


def prepare(plan: Plan, n_head: int, like: Tensor) -> Prepared:
    """Choose the path of a plan, and make once what every layer with this plan shares."""
    path = choose_path(plan, n_head, torch.compiler.is_compiling())
    if path in ("fused", "blocked", "scored"):
        return Prepared(plan, path)
    columns = torch.arange(plan.key_ids.shape[-1], device=like.device)
    return Prepared(plan, path, added_scores(plan, n_head, like, slice(None), columns))


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    prepared: Prepared,
    dropout: float = 0.0,
    features: Tensor | None = None,
) -> Tensor:
    """Attention of q (B, H, T, D) to k and v (B, H, S, D), S >= T -> (B, H, T, D).

    q and k are turned already, but with regions they are not. Equals `reference`.
    """
    plan, path = prepared.plan, prepared.path
    if path == "scored":
        return _scored(q, k, v, plan, dropout, features)
    if plan.temperature is not None:
        q = (q * plan.temperature).to(q.dtype)
    if path == "fused":
        causal = q.shape[-2] > 1
        return scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=causal)
    if path == "matmul":
        products = (q @ k.mT).to(prepared.added.dtype) * (1 / math.sqrt(q.shape[-1]))
        weights = (products + prepared.added).softmax(-1).to(v.dtype)
        return apply_dropout(weights, dropout) @ v
    if path == "dense":
        return _with_added(q, k, v, prepared.added, dropout)
    return _blocked(q, k, v, plan, dropout)


def _with_added(q: Tensor, k: Tensor, v: Tensor, added: Tensor, dropout: float) -> Tensor:
    """The library's kernel with a matrix of added scores, (R, C), (H, R, C) or (B, H, R, C)."""
    while added.dim() < 4:
        added = added[None]
    if not q.is_cuda:
        return scaled_dot_product_attention(q, k, v, attn_mask=added, dropout_p=dropout)
    added = added.to(q.dtype)  # CUDA's kernels take no wider mask
    with sdpa_kernel(MASKED):
        return scaled_dot_product_attention(q, k, v, attn_mask=added, dropout_p=dropout)


def _blocked(q: Tensor, k: Tensor, v: Tensor, plan: Plan, dropout: float) -> Tensor:
    """Attention by blocks of query rows, each with the keys that it can see."""
    like = q.new_empty(0, dtype=torch.promote_types(q.dtype, torch.float32))
    queries, offset, blocks = q.shape[-2], k.shape[-2] - q.shape[-2], []
    for start in range(0, queries, BLOCK_ROWS):
        rows = slice(start, min(start + BLOCK_ROWS, queries))
        spans = _seen(plan, offset + rows.start, offset + rows.stop)
        columns = torch.cat([torch.arange(s.start, s.stop, device=q.device) for s in spans])
        added = added_scores(plan, q.shape[1], like, rows, columns)
        k_seen, v_seen = (_columns(t, spans) for t in (k, v))
        blocks.append(_with_added(q[..., rows, :], k_seen, v_seen, added, dropout))
    return torch.cat(blocks, -2)


def _columns(x: Tensor, spans: list[slice]) -> Tensor:
    """The keys of x (B, H, S, D) in these spans, without a copy where there is one span."""
    parts = [x[..., span, :] for span in spans]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -2)


def _seen(plan: Plan, first: int, stop: int) -> list[slice]:
    """The keys that queries first ... stop - 1 can see: one slice, or two with sinks and a gap."""
    if plan.span is None:
        return [slice(0, stop)]
    size, sinks = plan.span
    near = max(0, first - size + 1)
    if near <= sinks:
        return [slice(0, stop)]
    if sinks == 0:
        return [slice(near, stop)]
    return [slice(0, sinks), slice(near, stop)]


def _scored(
    q: Tensor, k: Tensor, v: Tensor, plan: Plan, dropout: float, features: Tensor | None
) -> Tensor:
    """The reference by blocks of query rows."""
    blocks, offset = [], k.shape[-2] - q.shape[-2]
    with torch.autocast(q.device.type, enabled=False):
        turned = region_turns(q, k, plan)
        for start in range(0, q.shape[-2], BLOCK_ROWS):
            rows = slice(start, min(start + BLOCK_ROWS, q.shape[-2]))
            stop = offset + rows.stop  # no query of the block sees a key past this
            part = _part(plan, rows, stop)
            if plan.regions:
                parts = [(x[..., rows, :], y[..., :stop, :]) for x, y in turned]
                found = region_scores(parts, part, slice(None))
            else:
                known = None if features is None else features[..., :stop, :]
                found = scores(q[..., rows, :], k[..., :stop, :], part, features=known)
            weights = apply_dropout(found.softmax(-1), dropout)
            blocks.append(weights @ v[..., :stop, :].to(weights.dtype))
    return torch.cat(blocks, -2).to(q.dtype)


def _part(plan: Plan, rows: slice, stop: int) -> Plan:
    """The plan of a block of queries and of the keys before `stop`, where the last query stands."""
    temperature = None if plan.temperature is None else plan.temperature[..., rows, :]
    return replace(
        plan,
        query_ids=plan.query_ids[..., rows],
        key_ids=plan.key_ids[..., :stop],
        temperature=temperature,
        regions=tuple((_part(part, rows, stop), where) for part, where in plan.regions),
    )
