"""Causal attention under a position Plan: the plain reference that defines what is right, and the paths that equal it.

`matmul`   two matrix products around a float32 softmax, fused by the compiler: the fastest on a CPU at short lengths
`fused`    nothing is added to the scores: the library's causal kernel
`dense`    biases and masks are added as one matrix (H, T, S), made once per forward for all layers that share a plan
`blocked`  the same by blocks of query rows, made per layer: memory linear in the length, keys out of a window skipped
`scored`   a piece claims the whole score, or an extension rewrites distances: the reference, by blocks of query rows
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import dropout as dropout_
from torch.nn.functional import scaled_dot_product_attention

from posenc import Block
from positions.scheme import Plan

MATMUL_KEYS = 512  # on a CPU, compiled: above this the library's kernel wins
DENSE_BYTES = 16 * 2**20  # a larger matrix of added scores is made in blocks
BLOCK_ROWS = 256  # rows of a block: enough to keep the kernel busy, few enough that causality saves half the work


def added_scores(plan: Plan, n_head: int, like: Tensor, rows: slice, columns: Tensor) -> Tensor:
    """What is added to q.k / sqrt(d): (..., H or 1, R, C), -inf where the query may not see the key.

    `rows` are queries of the plan, `columns` (C,) indexes of keys; like gives dtype (float32 or wider) and device.
    """
    queries, keys = plan.query_ids.shape[-1], plan.key_ids.shape[-1]
    index = torch.arange(keys - queries, keys, device=like.device)[rows, None]
    seen = columns <= index
    for mask in plan.masks:
        seen = seen & mask(index, columns)
    added = torch.zeros((), dtype=like.dtype, device=like.device)
    if plan.biases:
        heads = torch.arange(n_head, device=like.device)[:, None, None]
        i, j = plan.query_ids[..., rows][..., None], plan.key_ids[..., columns][..., None, :]
        if i.dim() == 3:  # ids per sequence: (B, 1, R, 1) and (B, 1, 1, C)
            i, j = i[:, None], j[:, None]
        j = torch.minimum(
            i, j
        )  # a bias need not be defined for keys ahead; a NaN there would spoil gradients
        for bias in plan.biases:
            added = added + bias(heads, i, j).to(
                like.dtype
            )  # of real-numbered positions it is wider
    return torch.where(seen, added, -torch.inf)


def scores(
    q: Tensor, k: Tensor, plan: Plan, rows: slice = slice(None), features: Tensor | None = None
) -> Tensor:
    """The scores before the softmax (B, H, R, S) of q (B, H, T, D)'s `rows` and k (B, H, S, D), already turned, -inf where
    unseen; `features` (B, 1, S, M) are those of all keys. float32 or wider throughout. With regions q and k are unturned."""
    if plan.regions:
        return _by_regions(_turned(q, k, plan), plan, rows)
    dtype = torch.promote_types(q.dtype, torch.float32)
    places = torch.arange(k.shape[-2], device=q.device)
    here = places[k.shape[-2] - q.shape[-2] :][rows]
    q, k = q[..., rows, :].to(dtype), k.to(dtype)
    if plan.temperature is not None:
        q = q * plan.temperature[..., rows, :]
    found, added = (
        q @ k.mT / math.sqrt(q.shape[-1]),
        added_scores(plan, q.shape[1], q.new_empty(0), rows, places),
    )
    if plan.scorer is None:
        return torch.where(
            added > -torch.inf, found + added, -torch.inf
        )  # a product with a key ahead may overflow
    of_keys = None if features is None else features[:, 0].to(dtype)
    ids = (plan.query_ids[..., rows][..., None], plan.key_ids[..., None, :])
    i, j = (t[:, None] if t.dim() == 3 else t for t in ids)
    block = Block(
        q,
        k,
        found,
        added,
        i,
        j,
        here[:, None],
        places,
        None if of_keys is None else of_keys[:, here],
        of_keys,
    )
    return plan.scorer.score(block).masked_fill(~block.seen, -torch.inf)


def _turned(q: Tensor, k: Tensor, plan: Plan) -> list[tuple[Tensor, Tensor]]:
    """q and k as each region turns them."""
    return [
        (part.turns[0](q), part.turns[1](k)) if part.turns else (q, k) for part, _ in plan.regions
    ]


def _by_regions(turned: list[tuple[Tensor, Tensor]], plan: Plan, rows: slice) -> Tensor:
    i, j = plan.query_ids[..., rows][..., None], plan.key_ids[..., None, :]
    i, j = (t[:, None] if t.dim() == 3 else t for t in (i, j))
    found = turned[0][0].new_zeros((), dtype=torch.promote_types(turned[0][0].dtype, torch.float32))
    for (q, k), (part, where) in zip(turned, plan.regions, strict=True):
        found = torch.where(where(i, j), scores(q, k, replace(part, masks=plan.masks), rows), found)
    return found


def reference(
    q: Tensor, k: Tensor, v: Tensor, plan: Plan, features: Tensor | None = None
) -> Tensor:
    """The definition: q (B, H, T, D), k and v (B, H, S, D), already turned -> (B, H, T, D); float32 or wider throughout."""
    with torch.autocast(q.device.type, enabled=False):
        weights = scores(q, k, plan, features=features).softmax(-1)
        return (weights @ v.to(weights.dtype)).to(q.dtype)


@dataclass(frozen=True)
class Prepared:
    """A plan, the path chosen for it, and the matrix of added scores where that path takes one."""

    plan: Plan
    path: str
    added: Tensor | None = None


def choose_path(plan: Plan, n_head: int, compiled: bool) -> str:
    """The attention path of a plan in eager or compiled code: matmul, fused, dense, blocked or scored."""
    queries, keys = plan.query_ids.shape[-1], plan.key_ids.shape[-1]
    if plan.scorer is not None or plan.regions:
        return "scored"
    if compiled and plan.query_ids.device.type == "cpu" and keys <= MATMUL_KEYS:
        return "matmul"
    if not plan.biases and not plan.masks and (queries == keys or queries == 1):
        return "fused"
    return "dense" if 4 * n_head * queries * keys <= DENSE_BYTES else "blocked"


def prepare(plan: Plan, n_head: int, like: Tensor) -> Prepared:
    """Choose the path and make once what every layer with this plan shares."""
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
    """Attention of q (B, H, T, D) to k and v (B, H, S, D), S >= T, already turned -> (B, H, T, D). Equals `reference`."""
    plan = prepared.plan
    if prepared.path == "scored":
        return _scored(q, k, v, plan, dropout, features)
    if plan.temperature is not None:
        q = (q * plan.temperature).to(q.dtype)
    if prepared.path == "fused":
        return scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=q.shape[-2] > 1)
    if prepared.path == "matmul":
        weights = (
            ((q @ k.mT).to(prepared.added.dtype) / math.sqrt(q.shape[-1]) + prepared.added)
            .softmax(-1)
            .to(v.dtype)
        )
        return dropout_(weights, dropout) @ v
    if prepared.path == "dense":
        return _with_added(q, k, v, prepared.added, dropout)
    return _blocked(q, k, v, plan, dropout)


def _with_added(q: Tensor, k: Tensor, v: Tensor, added: Tensor, dropout: float) -> Tensor:
    added = added.to(q.dtype) if q.is_cuda else added  # CUDA's kernels take no wider mask
    added = (
        added
        if added.dim() == 4
        else added.expand(1, *added.shape[-3:])
        if added.dim() == 3
        else added[None, None]
    )
    return scaled_dot_product_attention(q, k, v, attn_mask=added, dropout_p=dropout)


def _blocked(q: Tensor, k: Tensor, v: Tensor, plan: Plan, dropout: float) -> Tensor:
    like = q.new_empty(0, dtype=torch.promote_types(q.dtype, torch.float32))
    queries, offset, blocks = q.shape[-2], k.shape[-2] - q.shape[-2], []
    for a in range(0, queries, BLOCK_ROWS):
        rows = slice(a, min(a + BLOCK_ROWS, queries))
        spans = _seen(plan, offset + rows.start, offset + rows.stop)
        columns = torch.cat([torch.arange(s.start, s.stop, device=q.device) for s in spans])
        added = added_scores(plan, q.shape[1], like, rows, columns)
        k_seen, v_seen = (
            torch.cat([t[..., s, :] for s in spans], -2) if len(spans) > 1 else t[..., spans[0], :]
            for t in (k, v)
        )
        blocks.append(_with_added(q[..., rows, :], k_seen, v_seen, added, dropout))
    return torch.cat(blocks, -2)


def _scored(
    q: Tensor, k: Tensor, v: Tensor, plan: Plan, dropout: float, features: Tensor | None
) -> Tensor:
    blocks, offset = [], k.shape[-2] - q.shape[-2]
    with torch.autocast(q.device.type, enabled=False):
        turned = _turned(q, k, plan)
        for a in range(0, q.shape[-2], BLOCK_ROWS):
            rows = slice(a, min(a + BLOCK_ROWS, q.shape[-2]))
            stop = offset + rows.stop  # no query of the block sees a key past this
            part = _part(plan, rows, stop)
            if plan.regions:
                found = _by_regions(
                    [(x[..., rows, :], y[..., :stop, :]) for x, y in turned], part, slice(None)
                )
            else:
                known = features if features is None else features[..., :stop, :]
                found = scores(q[..., rows, :], k[..., :stop, :], part, features=known)
            weights = dropout_(found.softmax(-1), dropout)
            blocks.append(weights @ v[..., :stop, :].to(weights.dtype))
    return torch.cat(blocks, -2).to(q.dtype)


def _part(plan: Plan, rows: slice, stop: int) -> Plan:
    """The plan of a block of queries and the keys before `stop`, the last of which is the last query's own."""
    return replace(
        plan,
        query_ids=plan.query_ids[..., rows],
        key_ids=plan.key_ids[..., :stop],
        temperature=None if plan.temperature is None else plan.temperature[..., rows, :],
        regions=tuple((_part(part, rows, stop), where) for part, where in plan.regions),
    )


def _seen(plan: Plan, first: int, stop: int) -> list[slice]:
    """The key indexes that queries first ... stop - 1 can see, as one slice, or two where a window leaves sinks behind."""
    if plan.span is None:
        return [slice(0, stop)]
    size, sinks = plan.span
    near = max(0, first - size + 1)
    return [slice(0, stop)] if near <= sinks else [slice(0, sinks), slice(near, stop)][sinks == 0 :]
