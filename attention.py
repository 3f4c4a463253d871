"""Causal attention under a position plan: the plain reference, and the fast paths that equal it.

`matmul`   two matrix products around a float32 softmax: fastest on a CPU at short lengths
`fused`    nothing is added to the scores: the library's causal kernel
`dense`    biases and masks are one matrix (H, T, S), made once for all layers that share a plan
`blocked`  the same by blocks of query rows, made in each layer: memory is linear in the length
`flex`     FlexAttention on a GPU: biases, masks and some scores in one kernel, see FLEX
`scored`   a piece claims the whole score, or distances are rewritten: the reference, by blocks
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.functional import dropout as apply_dropout
from torch.nn.functional import pad, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from configurable import require
from posenc import Piece, Tile, overrides, scheme_name
from positions.scheme import Plan

MATMUL_KEYS = 512  # on a CPU, compiled: above this the library's kernel is faster
DENSE_BYTES = 16 * 2**20  # a larger matrix of added scores is made in blocks, in each layer anew
BLOCK_ROWS = 256  # rows of a block: they keep the kernel busy, and causality saves half of the work
CARD_BYTES = 2**28  # on a GPU this holds for the matrix, and for the rows of a block
# cuDNN reads float32 masks wrongly and makes NaN of very negative ones (pytorch 191612, 196678)
MASKED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
# How FlexAttention takes what a piece does to scores, where that equals the reference and compiles
# for sm_80 and sm_90, forward and backward, in the releases of torch named last
FLEX = {
    "pair": ("alibi",),  # the bias is computed for each pair
    "distance": ("t5", "relative", "kerple", "cpb", "sandwich", "multiscale"),  # for each distance
    "mask": ("window", "block_causal"),
    "score": ("scale_invariant",),
}
OF_DISTANCE = {*FLEX["pair"], *FLEX["distance"], "window"}  # what is added follows from it alone
# Pieces with parameters train by another path: on an H100 flex took 4.8 times nope's step for t5
# (124M, L = 512), the dense path 1.3 times. The others were not timed.
FLEX_RELEASES = ("2.11", "2.13")
SMALL_BLOCKS = {"BLOCK_N": 64, "num_stages": 2}  # what is read for each pair takes shared memory


# ---- the reference


def added_scores(plan: Plan, n_head: int, like: Tensor, rows: slice, columns: Tensor) -> Tensor:
    """What is added to q.k / sqrt(d): (..., H or 1, R, C), -inf where a query may not see a key.

    `rows` are queries of the plan, `columns` (C,) indexes of keys. like gives dtype (float32 or
    wider) and device.
    """
    queries, keys = plan.query_ids.shape[-1], plan.key_ids.shape[-1]
    index = torch.arange(keys - queries, keys, device=like.device)[rows, None]
    added = torch.zeros((), dtype=like.dtype, device=like.device)
    if plan.biases:
        heads = torch.arange(n_head, device=like.device)[:, None, None]
        i, j = crossed(plan.query_ids[..., rows], plan.key_ids[..., columns])
        j = torch.minimum(i, j)  # a bias may be undefined, even NaN, for keys ahead
        for bias in plan.biases:
            added = added + bias(heads, i, j).to(like.dtype)  # real positions are wider
    return torch.where(sees(plan, index, columns), added, -torch.inf)


def sees(plan: Plan, index: Tensor, columns: Tensor) -> Tensor:
    """Whether queries at these indexes may see the keys at others."""
    seen = columns <= index
    for mask in plan.masks:
        seen = seen & mask(index, columns)
    return seen


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
    q, k, features, plan = along(q, for_each_head(q, k), plan, features)
    wide = torch.promote_types(q.dtype, torch.float32)
    turned = [(x.to(wide), y.to(wide)) for x, y in region_turns(q, k, plan)]
    return region_scores(turned, plan, rows, features)


def for_each_head(q: Tensor, x: Tensor) -> Tensor:
    """Keys or values x (B, heads, S, D), with copies where several heads of q share one of x."""
    group = q.shape[1] // x.shape[1]
    return x.repeat_interleave(group, 1) if group > 1 else x


def along(
    q: Tensor, k: Tensor, plan: Plan, features: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None, Plan]:
    """What the scorer does once with q, k and features (B, 1, S, M), which become (B, S, M).

    q is multiplied by the temperature first; the plan that comes back has none.
    """
    if features is None:
        return q, k, None, plan
    with torch.autocast(q.device.type, enabled=False):
        if plan.temperature is not None:
            q, plan = (q * plan.temperature).to(q.dtype), replace(plan, temperature=None)
        wide = torch.promote_types(features.dtype, torch.float32)
        return *plan.scorer.along(q, k, features[:, 0].to(wide)), plan


def tile_scores(q: Tensor, k: Tensor, plan: Plan, rows: slice, features: Tensor | None) -> Tensor:
    """`scores` after `along`. q.k is formed in the dtype of k, the rest in float32 or wider."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    places = torch.arange(k.shape[-2], device=q.device)
    here = places[k.shape[-2] - q.shape[-2] :][rows]
    keys, q, k = k, q[..., rows, :].to(dtype), k.to(dtype)
    if plan.temperature is not None:
        q = q * plan.temperature[..., rows, :]
    found = (q.to(keys.dtype) @ keys.mT).to(dtype) / math.sqrt(q.shape[-1])
    added = added_scores(plan, q.shape[1], q.new_empty(0), rows, places)
    if not makes_score(plan):  # a product with a key ahead may overflow
        return torch.where(added > -torch.inf, found + added, -torch.inf)
    i, j = crossed(plan.query_ids[..., rows], plan.key_ids)
    tile = Tile(q, k, found, added, i, j, here[:, None], places, features)
    return plan.scorer.score(tile).masked_fill(~tile.seen, -torch.inf)


def makes_score(plan: Plan) -> bool:
    """Whether a piece makes the whole score, and not only adds to it."""
    return plan.scorer is not None and overrides(plan.scorer, "score")


def region_turns(q: Tensor, k: Tensor, plan: Plan) -> list[tuple[Tensor, Tensor]]:
    """q and k as each region turns them; without regions as they are."""
    turns = [part.turns for part, _ in plan.regions] or [None]
    return [(turn[0](q), turn[1](k)) if turn else (q, k) for turn in turns]


def region_scores(
    turned: list[tuple[Tensor, Tensor]], plan: Plan, rows: slice, features: Tensor | None = None
) -> Tensor:
    """The scores of `rows`. Where distances are rewritten, the last region that holds counts."""
    if not plan.regions:
        return tile_scores(*turned[0], plan, rows, features)
    i, j = crossed(plan.query_ids[..., rows], plan.key_ids)
    found = 0.0
    for (q, k), (part, where) in zip(turned, plan.regions, strict=True):
        here = tile_scores(q, k, replace(part, masks=plan.masks), rows, None)
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
        return (weights @ for_each_head(q, v).to(weights.dtype)).to(q.dtype)


# ---- the paths


@dataclass(frozen=True)
class Prepared:
    """A plan, the path chosen for it, and what all layers with this plan share.

    `added` are scores: the whole matrix for dense and matmul, by distance (H, S) for flex, those
    of the last block for blocked, see `last_block`; `blocks` are the blocks of keys that flex
    reads.
    """

    plan: Plan
    path: str
    added: Tensor | None = None
    blocks: BlockMask | None = None


ASKED = {"path": "auto", "compiler": False}  # see `use`


def use(**asked: str | bool) -> None:
    """Set `path`, the path of whole texts, auto for the best that fits a plan; or `compiler`,
    whether flex may compile itself for code that is not compiled.
    """
    ASKED.update(asked)


def choose_path(plan: Plan, n_head: int, compiled: bool, dropout: float = 0.0) -> str:
    """The path of a plan in eager or compiled code: see above. UserError where the settings ask for
    one that cannot take it.

    On a GPU the library's kernels add gradients in any order: with deterministic algorithms none
    of them is trained with.
    """
    queries, keys = plan.query_ids.shape[-1], plan.key_ids.shape[-1]
    on_cpu, trained = plan.query_ids.device.type == "cpu", torch.is_grad_enabled()
    exact = trained and not on_cpu and torch.are_deterministic_algorithms_enabled()
    paths = ["scored"]  # that can take it, the best first
    if not plan.regions and not makes_score(plan):
        first = ["matmul"] * (exact or (on_cpu and compiled and keys <= MATMUL_KEYS))
        first += ["fused"] * (len(plan.biases + plan.masks) == 0 and queries in (1, keys))
        most = CARD_BYTES if plan.query_ids.is_cuda else DENSE_BYTES
        first += ["dense"] * (4 * n_head * plan.query_ids.numel() * keys <= most)
        paths = list(dict.fromkeys([*first, "blocked", "dense", "matmul", "scored"]))
    if flex_takes(plan, dropout * trained) and not exact and (compiled or ASKED["compiler"]):
        best = torch.__version__.startswith(FLEX_RELEASES) and paths[0] != "fused"
        best = best and not (trained and learns_scores(plan))
        paths = ["flex", *paths] if best else [*paths, "flex"]
    asked = ASKED["path"] if queries == keys else "auto"
    require(asked in ("auto", *paths), f"attention={asked} does not fit here: use one of {paths}")
    return paths[0] if asked == "auto" else asked


def prepare(plan: Plan, n_head: int, like: Tensor, dropout: float = 0.0) -> Prepared:
    """Choose the path of a plan, and make once what every layer with this plan shares."""
    path = choose_path(plan, n_head, torch.compiler.is_compiling(), dropout)
    if path == "flex":
        return Prepared(plan, path, by_distance(plan, n_head, like), seen_blocks(plan, like))
    if path == "blocked":
        return Prepared(plan, path, last_block(plan, n_head, like))
    if path in ("fused", "scored"):
        return Prepared(plan, path)
    columns = torch.arange(plan.key_ids.shape[-1], device=like.device)
    added = added_scores(plan, n_head, like, slice(None), columns)
    return Prepared(plan, path, made_once(added) if plan.biases else added)


@torch.library.custom_op("longshot::made_once", mutates_args=())
def made_once(x: Tensor) -> Tensor:
    """x as it is. Without this, compiled code computes a bias again for each text and layer that
    reads it (results/speed.md, t5 at L = 512).
    """
    return x.clone()


made_once.register_fake(torch.empty_like)
made_once.register_autograd(lambda ctx, gradient: gradient)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    prepared: Prepared,
    dropout: float = 0.0,
    features: Tensor | None = None,
) -> Tensor:
    """Attention of q (B, H, T, D) to k and v (B, H, S, D), S >= T -> (B, H, T, D).

    q and k are turned already, but with regions they are not. Equals `reference`. k and v may have
    fewer heads, each for a group of q's; only some kernels read them without a copy for each.
    """
    plan, path = prepared.plan, prepared.path
    if features is not None or path not in ("fused", "flex"):
        k, v = for_each_head(q, k), for_each_head(q, v)
    q, k, features, plan = along(q, k, plan, features)
    if path == "scored":
        return _scored(q, k, v, plan, dropout, features)
    if plan.temperature is not None:
        q = (q * plan.temperature).to(q.dtype)
    if path == "flex":
        return _flex(q, k, v, prepared)
    if path == "fused":
        how = {"is_causal": q.shape[-2] > 1, "enable_gqa": q.shape[1] > k.shape[1]}
        return _kernel(q, k, v, dropout_p=dropout, **how)
    if path == "matmul":
        products = (q @ k.mT).to(prepared.added.dtype) * (1 / math.sqrt(q.shape[-1]))
        weights = (products + prepared.added).softmax(-1).to(v.dtype)
        return apply_dropout(weights, dropout) @ v
    if path == "dense":
        return _with_added(q, k, v, prepared.added, dropout)
    return _blocked(q, k, v, prepared, dropout)


# ---- FlexAttention


def acting(plan: Plan) -> set[str]:
    """The names of the pieces that do something to scores."""
    return {scheme_name(piece) for piece in scoring(plan)}


def scoring(plan: Plan) -> list[Piece]:
    """The pieces that do something to scores."""
    methods = ("bias", "mask", "score", "regions")
    return [p for p in plan.pieces if any(overrides(p, m) for m in methods)]


def learns_scores(plan: Plan) -> bool:
    """Whether such a piece has parameters that are trained."""
    return any(p.requires_grad for piece in scoring(plan) for p in piece.parameters())


def flex_takes(plan: Plan, dropout: float) -> bool:
    """Whether FlexAttention can compute a plan: whole texts on a GPU, by pieces that it serves."""
    whole = plan.query_ids.shape == plan.key_ids.shape and plan.query_ids.is_cuda
    whole = whole and plan.pieces and not any(overrides(p, "features") for p in plan.pieces)
    return bool(whole and not dropout) and acting(plan) <= {*sum(FLEX.values(), ())}


_compiled = lru_cache(torch.compile)


def on_card(function: Callable, like: Tensor) -> Callable:
    """The function; on a GPU compiled, if that is possible and the code around it is not."""
    alone = like.is_cuda and ASKED["compiler"] and not torch.compiler.is_compiling()
    return _compiled(function) if alone else function


def seen_blocks(plan: Plan, like: Tensor) -> BlockMask:
    """The blocks of keys that the queries of a plan see, and a mask for those seen in part."""
    size, make = plan.key_ids.shape[-1], on_card(create_block_mask, like)
    return make(lambda b, h, i, j: sees(plan, i, j), None, None, size, size, device=like.device)


def by_distance(plan: Plan, n_head: int, like: Tensor) -> Tensor | None:
    """The sum of all biases at each distance, (H, S); None where one must be computed by pairs."""
    if len(plan.biases) == 0 or acting(plan) & {*FLEX["pair"]}:
        return None
    distance = torch.arange(plan.key_ids.shape[-1], device=like.device)
    heads, zero = torch.arange(n_head, device=like.device)[:, None], torch.zeros_like(distance)
    return sum(bias(heads, distance, zero) for bias in plan.biases).to(like.dtype)


def _flex(q: Tensor, k: Tensor, v: Tensor, prepared: Prepared) -> Tensor:
    """FlexAttention with the plan's own biases, masks and score."""
    plan, added = prepared.plan, prepared.added

    def modified(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        j = torch.minimum(i, j)  # a bias may be undefined for keys ahead, which are not seen
        bias = sum(f(h, i, j) for f in plan.biases) if added is None else added[h, i - j]
        if not makes_score(plan):
            return score + bias
        return plan.scorer.score(Tile(q, k, score, bias, i, j, i, j))

    small = None if added is None else SMALL_BLOCKS
    how = {"kernel_options": small, "enable_gqa": q.shape[1] > k.shape[1]}
    return on_card(flex_attention, q)(q, k, v, modified, prepared.blocks, **how)


# ---- the other paths


def _kernel(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
    """The library's kernel. On a CPU it forms all scores at once where values are narrower than
    keys, so they are filled up.
    """
    width, missing = v.shape[-1], q.shape[-1] - v.shape[-1]
    if missing > 0 and not q.is_cuda:
        v = pad(v, (0, missing))
    return scaled_dot_product_attention(q, k, v, **how)[..., :width]


def _with_added(q: Tensor, k: Tensor, v: Tensor, added: Tensor, dropout: float) -> Tensor:
    """The library's kernel with a matrix of added scores, (R, C), (H, R, C) or (B, H, R, C)."""
    added = added[(None,) * (4 - added.dim())]
    if not q.is_cuda:
        return _kernel(q, k, v, attn_mask=added, dropout_p=dropout)
    added = added.to(q.dtype)  # CUDA's kernels take no wider mask
    with sdpa_kernel(MASKED):
        return scaled_dot_product_attention(q, k, v, attn_mask=added, dropout_p=dropout)


def last_block(plan: Plan, n_head: int, like: Tensor) -> Tensor | None:
    """The added scores of the last block of queries, (H or 1, R, S), on a CPU in eager code.

    Those of every other block are parts of it where they follow from the distance alone; else None.
    """
    ids, (_, sinks) = plan.key_ids, plan.span or (0, 0)
    steady = bool(plan.pieces) and acting(plan) <= OF_DISTANCE and not sinks
    small = 4 * n_head * BLOCK_ROWS * ids.shape[-1] <= CARD_BYTES
    if ids.is_cuda or torch.compiler.is_compiling() or not (steady and small):
        return None
    columns = torch.arange(ids.shape[-1], device=ids.device)
    last = slice(max(0, plan.query_ids.shape[-1] - BLOCK_ROWS), None)
    return added_scores(plan, n_head, like, last, columns)


def _blocked(q: Tensor, k: Tensor, v: Tensor, prepared: Prepared, dropout: float) -> Tensor:
    """Attention by blocks of query rows, each with the keys that it can see."""
    plan, last = prepared.plan, prepared.added
    like = q.new_empty(0, dtype=torch.promote_types(q.dtype, torch.float32))
    queries, offset = q.shape[-2], k.shape[-2] - q.shape[-2]
    size, blocks = block_rows(q[:1], k), []
    for stop in range(queries, 0, -size):  # the largest first, whose memory serves all others
        rows = slice(max(0, stop - size), stop)
        spans = _seen(plan, offset + rows.start, offset + rows.stop)
        if last is None:
            columns = torch.cat([torch.arange(s.start, s.stop, device=q.device) for s in spans])
            added = on_card(added_scores, q)(plan, q.shape[1], like, rows, columns)
        else:
            shift, (seen,) = queries - last.shape[-2] - rows.start, spans
            added = last[..., : stop - rows.start, shift + seen.start : shift + seen.stop]
        k_seen, v_seen = (_columns(t, spans) for t in (k, v))
        blocks.append(_with_added(q[..., rows, :], k_seen, v_seen, added, dropout))
    return torch.cat(blocks[::-1], -2)


def _columns(x: Tensor, spans: list[slice]) -> Tensor:
    """The keys of x (B, H, S, D) in these spans, without a copy where there is one span."""
    parts = [x[..., span, :] for span in spans]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -2)


def _seen(plan: Plan, first: int, stop: int) -> list[slice]:
    """The keys that queries first ... stop - 1 can see: one slice, or two with sinks and a gap."""
    size, sinks = plan.span or (stop, 0)
    near = max(0, first - size + 1)
    spans = [slice(0, sinks), slice(near, stop)] if sinks < near else [slice(0, stop)]
    return [span for span in spans if span.stop > 0]


def block_rows(q: Tensor, k: Tensor) -> int:
    """How many queries of q (B, H, T, D) a block has."""
    most = CARD_BYTES // (4 * q.shape[0] * q.shape[1] * k.shape[2]) if q.is_cuda else 0
    return max(1, most // BLOCK_ROWS) * BLOCK_ROWS


def _scored(
    q: Tensor, k: Tensor, v: Tensor, plan: Plan, dropout: float, features: Tensor | None
) -> Tensor:
    """The reference by blocks of query rows. On a GPU products are formed in the dtype of v, and
    each block is computed again in the backward pass.
    """
    offset, size = k.shape[-2] - q.shape[-2], block_rows(q, k)
    wide = v.dtype if v.is_cuda else torch.promote_types(v.dtype, torch.float32)

    def block(start: int) -> Tensor:
        rows = slice(start, min(start + size, q.shape[-2]))
        stop = offset + rows.stop  # no query of the block sees a key past this
        parts = [(x[..., rows, :].to(wide), y[..., :stop, :].to(wide)) for x, y in turned]
        known = None if features is None else features[:, :stop]
        found = region_scores(parts, _part(plan, rows, stop), slice(None), known)
        weights = apply_dropout(found.softmax(-1), dropout)
        return weights.to(wide) @ v[..., :stop, :].to(wide)

    with torch.autocast(q.device.type, enabled=False):
        turned = region_turns(q, k, plan)
        again = partial(checkpoint, block, use_reentrant=False)
        run = again if q.is_cuda and torch.is_grad_enabled() else block
        blocks = [run(start) for start in reversed(range(0, q.shape[-2], size))]
    return torch.cat(blocks[::-1], -2).to(q.dtype)


def _part(plan: Plan, rows: slice, stop: int) -> Plan:
    """The plan of a block of queries and of the keys before `stop`, where the last query stands."""
    temperature = None if plan.temperature is None else plan.temperature[..., rows, :]
    ids = {"query_ids": plan.query_ids[..., rows], "key_ids": plan.key_ids[..., :stop]}
    regions = tuple((_part(part, rows, stop), where) for part, where in plan.regions)
    return replace(plan, **ids, temperature=temperature, regions=regions)
