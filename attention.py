"""Causal attention under a plan of positions: the reference, and four paths that equal it.

`fused`    nothing is added to the scores: the library's causal kernel
`masked`   added scores are a matrix: one that all layers share where it is small, else made by
           blocks of query rows in each layer, so that memory is linear in the length
`flex`     FlexAttention on a GPU: biases from a table of distances or in the kernel, masks as
           blocks of keys
`scored`   the reference by blocks: a piece makes the whole score or the weights, or distances are
           rewritten

A score is q.k x scale, times the temperature, plus biases; -inf where a key is not seen.
"""

from dataclasses import dataclass
from functools import lru_cache, partial

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.functional import dropout as apply_dropout
from torch.nn.functional import pad, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from posenc import Tile, stored
from scheme import Plan

PRODUCT_KEYS = 512  # on a CPU, compiled: up to here two products are faster than the kernel
SHARED_BYTES = 16 * 2**20  # a larger matrix of added scores is made in blocks, in each layer anew
BLOCK_ROWS = 256  # rows of a block: they keep the kernel busy, and causality saves half of the work
CARD_BYTES = 2**28  # on a GPU this holds for the matrix, and for the rows of a block
# cuDNN reads float32 masks wrongly and makes NaN of very negative ones (pytorch 191612, 196678)
MASKED_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
FLEX_RELEASES = ("2.11", "2.13")  # in which what it is asked here compiles for sm_80 and sm_90
SMALL_BLOCKS = {"BLOCK_N": 64, "num_stages": 2}  # a table that the kernel reads takes shared memory

FORCED_PATH = ""  # a test sets the path of whole texts here
COMPILE_FLEX = False  # whether flex may compile itself for eager code; runs/device.py sets it


# ---- the reference


def reference(
    q: Tensor, k: Tensor, v: Tensor, plan: Plan, scale: float, features: Tensor | None = None
) -> Tensor:
    """The definition, in float32 or wider: q (B, H, T, D), k and v (B, H, S, D) -> (B, H, T, D).

    With one part of the plan q and k are turned already, with several they are not. features (B, 1,
    S, M) are those of all keys. k and v may have fewer heads, each for a group of q's.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    k = for_each_head(q, k).to(wide)
    v = for_each_head(q, v).to(wide)
    features = None if features is None else features[:, 0].to(wide)
    with torch.autocast(q.device.type, enabled=False):
        pairs = prepare_pairs(q.to(wide), k, plan, scale, features)
        scores = scores_of_rows(pairs, plan, scale, features, slice(0, q.shape[-2]))
        return (weights_of(scores, plan) @ v).to(q.dtype)


def weights_of(scores, plan):
    """Attention weights: the softmax, or what a piece has in its place."""
    return plan.weighting.weights(scores) if plan.weighting else scores.softmax(-1)


def prepare_pairs(q, k, plan, scale, features):
    """(q, k) as each part of the plan turns them, q times the temperature.

    They gain what a piece sums along the text of features (B, S, M).
    """
    pairs = [(q, k)]
    if len(plan.parts) > 1:
        pairs = [plan.turn_both(q, k, part) for part in plan.parts]
    if plan.temperature is not None:
        pairs = [((q * plan.temperature).to(q.dtype), k) for q, k in pairs]
    if plan.scorer and plan.scorer.along is not None:
        [(q, k)] = pairs
        dtype = q.dtype
        wide = torch.promote_types(dtype, torch.float32)
        q, k = plan.scorer.along(q.to(wide), k.to(wide), features, scale)
        pairs = [(q.to(dtype), k.to(dtype))]
    return pairs


def scores_of_rows(pairs, plan, scale, features, rows):
    """The scores (B, H, R, C) of some queries, against the C keys up to the last of these.

    Products are formed in the dtype of k, the rest in float32 or wider.
    """
    offset = pairs[0][1].shape[-2] - pairs[0][0].shape[-2]
    stop = offset + rows.stop
    places = torch.arange(stop, device=pairs[0][0].device)
    index = places[offset + rows.start :, None]  # (R, 1)
    base = plan.parts[0]
    chosen = None
    for (q, k), part in zip(pairs, plan.parts, strict=True):
        q = q[..., rows, :]
        k = k[..., :stop, :]
        wide = torch.promote_types(q.dtype, torch.float32)
        score = (q.to(k.dtype) @ k.mT).to(wide) * scale
        added = added_scores(plan, part, q.shape[1], wide, index, places)
        if plan.scorer and plan.scorer.score is not None:
            i, j = pairs_of_ids(part, index, places, wide, offset)
            features_k = None if features is None else features[:, :stop]
            tile = Tile(q.to(wide), k.to(wide), score, added, i, j, index, places, features_k)
            score = plan.scorer.score(tile)
        else:
            score = score + added
        score = torch.where(added > -torch.inf, score, -torch.inf)  # q.k ahead may overflow
        if part.where is not None:
            i = base.query_ids[index - offset]
            score = torch.where(part.where(i, base.key_ids[places]), score, chosen)
        chosen = score
    return chosen


def pairs_of_ids(part, index, columns, dtype, offset):
    """Position ids (R, 1) and (1, C) of queries at index (R, 1) and keys at columns (C,).

    For keys ahead j = i: i - j is never negative. Where scores are float64, so are whole ids.
    """
    i = part.query_ids[index - offset]
    j = part.key_ids[columns][None]
    if dtype == torch.float64:
        i = i.to(dtype)
        j = j.to(dtype)
    return i, torch.minimum(i, j)


def added_scores(plan, part, n_head, dtype, index, columns):
    """What is added to q.k x scale: (H or 1, R, C), -inf where a query may not see a key.

    index (R, 1) and columns (C,) are places of queries and keys, dtype is float32 or wider.
    """
    added = torch.zeros((), dtype=dtype, device=index.device)
    if plan.biases:
        offset = len(part.key_ids) - len(part.query_ids)
        i, j = pairs_of_ids(part, index, columns, dtype, offset)
        heads = torch.arange(n_head, device=index.device)[:, None, None]
        for piece in plan.biases:
            added = added + piece.bias(heads, i, j).to(dtype)  # real positions are wider
    return torch.where(sees(plan, index, columns), added, -torch.inf)


def sees(plan, index, columns):
    """Whether queries at these indexes may see keys at others, by causality and masks."""
    seen = columns <= index
    for mask in plan.masks:
        seen = seen & mask(index, columns)
    return seen


def for_each_head(q, x):
    """Keys or values x (B, heads, S, D), with copies where several heads of q share one of x."""
    group = q.shape[1] // x.shape[1]
    return x.repeat_interleave(group, 1) if group > 1 else x


# ---- the choice of a path


@dataclass(frozen=True)
class Prepared:
    """A plan, the path chosen for it, the dropout, and what all layers with this plan share.

    `added` are scores. Of masked: the whole matrix (H or 1, T, S), or with `is_last` the rows of
    the last block. Of flex: biases by distance (H, S). `blocks` are the blocks of keys flex reads.
    """

    plan: Plan
    path: str
    dropout: float = 0.0
    added: Tensor | None = None
    is_last: bool = False
    blocks: BlockMask | None = None


def choose_path(plan: Plan, n_head: int, compiled: bool, dropout: float = 0.0) -> str:
    """The path of a plan in eager or compiled code: see above."""
    queries = len(plan.parts[0].query_ids)
    keys = len(plan.parts[0].key_ids)
    on_gpu = plan.parts[0].query_ids.is_cuda
    trained = torch.is_grad_enabled()
    whole_text = queries == keys
    if FORCED_PATH and whole_text:
        return FORCED_PATH
    makes_score = plan.scorer is not None and plan.scorer.score is not None
    if len(plan.parts) > 1 or plan.weighting or makes_score:
        return "scored"
    if on_gpu and trained and torch.are_deterministic_algorithms_enabled():
        return "scored"  # the library's kernels add gradients in any order
    if not plan.biases and not plan.masks and (whole_text or queries == 1):
        # compiled for a CPU, two products are faster in short texts
        return "masked" if compiled and not on_gpu and keys <= PRODUCT_KEYS else "fused"
    can_flex = whole_text and on_gpu and plan.plain_ids and not plan.scorer and plan.width >= 16
    can_flex = can_flex and all(piece.by_distance for piece in plan.biases)
    can_flex = can_flex and (compiled or COMPILE_FLEX) and not (dropout and trained)
    # a learned bias trains by another path: on an H100 flex took 4.8 times nope's step for t5
    # (124M, L = 512), one shared matrix 1.3 times
    learned = any(p.requires_grad for piece in plan.biases for p in piece.parameters())
    if can_flex and not (trained and learned) and torch.__version__.startswith(FLEX_RELEASES):
        return "flex"
    return "masked"


def prepare(plan: Plan, n_head: int, dtype: torch.dtype, dropout: float = 0.0) -> Prepared:
    """Choose the path of a plan, and make once what every layer with this plan shares.

    dtype is that of scores, float32 or wider.
    """
    compiling = torch.compiler.is_compiling()
    path = choose_path(plan, n_head, compiling, dropout)
    part = plan.parts[0]
    queries = len(part.query_ids)
    keys = len(part.key_ids)
    columns = torch.arange(keys, device=part.key_ids.device)
    index = columns[keys - queries :, None]
    if path == "flex":

        def seen(b, h, i, j):
            return sees(plan, i, j)

        make = on_card(create_block_mask, columns)
        blocks = make(seen, None, None, keys, keys, device=columns.device)
        table = None
        if not all(piece.in_kernel for piece in plan.biases):  # biases at each distance, (H, S)
            heads = torch.arange(n_head, device=columns.device)[:, None]
            zeros = torch.zeros_like(columns)
            table = sum(piece.bias(heads, columns, zeros) for piece in plan.biases).to(dtype)
        return Prepared(plan, path, dropout, table, blocks=blocks)
    if path != "masked":
        return Prepared(plan, path, dropout)
    most = CARD_BYTES if columns.is_cuda else SHARED_BYTES
    if 4 * n_head * queries * keys <= most:
        added = added_scores(plan, part, n_head, dtype, index, columns)
        return Prepared(plan, path, dropout, stored(added) if plan.biases else added)
    # in eager code on a CPU: all blocks are parts of the last one where distance alone counts
    alike = plan.by_distance and not columns.is_cuda and not compiling
    if alike and 4 * n_head * BLOCK_ROWS * keys <= CARD_BYTES:
        last = added_scores(plan, part, n_head, dtype, index[-BLOCK_ROWS:], columns)
        return Prepared(plan, path, dropout, last, is_last=True)
    return Prepared(plan, path, dropout)


_compiled = lru_cache(torch.compile)


def on_card(function, like):
    """The function; on a GPU compiled, if that is possible and the code around it is not."""
    alone = like.is_cuda and COMPILE_FLEX and not torch.compiler.is_compiling()
    return _compiled(function) if alone else function


# ---- the paths


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    prepared: Prepared,
    scale: float,
    features: Tensor | None = None,
) -> Tensor:
    """Attention of q (B, H, T, D) to k and v (B, H, S, D), S >= T -> (B, H, T, D).

    Equals `reference`, whose arguments it takes.
    """
    plan = prepared.plan
    path = prepared.path
    if features is not None:
        features = features[:, 0].to(torch.promote_types(features.dtype, torch.float32))
    if features is not None or path in ("masked", "scored"):
        k = for_each_head(q, k)
        v = for_each_head(q, v)
    if path == "scored":
        return _scored(q, k, v, prepared, scale, features)
    with torch.autocast(q.device.type, enabled=False):
        [(q, k)] = prepare_pairs(q, k, plan, scale, features)
    if path == "fused":
        is_causal = q.shape[-2] > 1
        return _kernel(q, k, v, scale, dropout_p=prepared.dropout, is_causal=is_causal)
    if path == "flex":
        return _flex(q, k, v, prepared, scale)
    return _masked(q, k, v, prepared, scale)


def _kernel(q, k, v, scale, **options):
    """The library's kernel. On a CPU it forms all scores at once where values are narrower than
    keys, so they are filled up.
    """
    width = v.shape[-1]
    if width < q.shape[-1] and not q.is_cuda:
        v = pad(v, (0, q.shape[-1] - width))
    options["enable_gqa"] = q.shape[1] > k.shape[1]
    return scaled_dot_product_attention(q, k, v, scale=scale, **options)[..., :width]


def _flex(q, k, v, prepared, scale):
    """FlexAttention with biases and masks of the plan."""
    biases = prepared.plan.biases
    table = prepared.added

    def score_mod(score, b, h, i, j):
        j = torch.minimum(i, j)  # a bias may be undefined for keys ahead, which are not seen
        if table is not None:
            return score + table[h, i - j]
        for piece in biases:
            score = score + piece.bias(h, i, j)
        return score

    return on_card(flex_attention, q)(
        q,
        k,
        v,
        score_mod=score_mod,
        block_mask=prepared.blocks,
        scale=scale,
        enable_gqa=q.shape[1] > k.shape[1],
        kernel_options=None if table is None else SMALL_BLOCKS,
    )


def _masked(q, k, v, prepared, scale):
    """Attention with a matrix of added scores: at once, or by blocks of query rows."""
    plan = prepared.plan
    added = prepared.added
    dropout = prepared.dropout
    queries = q.shape[-2]
    keys = k.shape[-2]
    if added is not None and not prepared.is_last:
        if not q.is_cuda and torch.compiler.is_compiling() and keys <= PRODUCT_KEYS:
            weights = ((q @ k.mT).to(added.dtype) * scale + added).softmax(-1).to(v.dtype)
            return apply_dropout(weights, dropout) @ v
        return _with_added(q, k, v, added, scale, dropout)
    dtype = torch.promote_types(q.dtype, torch.float32)
    offset = keys - queries
    size = block_rows(q[:1], k)
    blocks = []
    for stop in range(queries, 0, -size):  # the largest first, whose memory serves all others
        start = max(0, stop - size)
        spans = visible_keys(plan, offset + start, offset + stop)
        if prepared.is_last:  # its rows, moved to the left: there the distances are the same
            moved = queries - stop
            columns = slice(moved + spans[0].start, moved + spans[0].stop)
            block = added[..., added.shape[-2] - (stop - start) :, columns]
        else:
            places = [torch.arange(s.start, s.stop, device=q.device) for s in spans]
            index = torch.arange(offset + start, offset + stop, device=q.device)[:, None]
            make = on_card(added_scores, q)
            block = make(plan, plan.parts[0], q.shape[1], dtype, index, torch.cat(places))
        seen_k = k[..., spans[0], :]
        seen_v = v[..., spans[0], :]
        if len(spans) > 1:  # sinks, and a gap before the window
            seen_k = torch.cat((seen_k, k[..., spans[1], :]), -2)
            seen_v = torch.cat((seen_v, v[..., spans[1], :]), -2)
        blocks.append(_with_added(q[..., start:stop, :], seen_k, seen_v, block, scale, dropout))
    return torch.cat(blocks[::-1], -2)


def _with_added(q, k, v, added, scale, dropout):
    """The library's kernel with a matrix of added scores, (R, C) or (H, R, C)."""
    added = added[(None,) * (4 - added.dim())]
    if not q.is_cuda:
        return _kernel(q, k, v, scale, attn_mask=added, dropout_p=dropout)
    with sdpa_kernel(MASKED_KERNELS):  # CUDA's kernels take no wider mask
        return _kernel(q, k, v, scale, attn_mask=added.to(q.dtype), dropout_p=dropout)


def visible_keys(plan, first, stop):
    """The keys that queries first ... stop - 1 can see: one slice, or two with sinks and a gap."""
    size, sinks = plan.visible or (stop, 0)
    near = max(0, first - size + 1)
    if 0 < sinks < near:
        return [slice(0, sinks), slice(near, stop)]
    return [slice(near if sinks == 0 else 0, stop)]


def block_rows(q, k):
    """How many queries of q (B, H, T, D) a block has."""
    if not q.is_cuda:
        return BLOCK_ROWS
    most = CARD_BYTES // (4 * q.shape[0] * q.shape[1] * k.shape[2])
    return max(1, most // BLOCK_ROWS) * BLOCK_ROWS


def _scored(q, k, v, prepared, scale, features):
    """The reference by blocks of query rows. On a GPU products are formed in the dtype of v, and
    each block is computed again in the backward pass.
    """
    plan = prepared.plan
    offset = k.shape[-2] - q.shape[-2]
    size = block_rows(q, k)
    wide = torch.promote_types(q.dtype, torch.float32)
    narrow = v.dtype if v.is_cuda else wide
    with torch.autocast(q.device.type, enabled=False):
        pairs = prepare_pairs(q.to(wide), k.to(wide), plan, scale, features)
        pairs = [(q, k.to(narrow)) for q, k in pairs]
        values = v.to(narrow)

        def block(start):
            rows = slice(start, min(start + size, q.shape[-2]))
            weights = weights_of(scores_of_rows(pairs, plan, scale, features, rows), plan)
            weights = apply_dropout(weights, prepared.dropout).to(narrow)
            return weights @ values[..., : offset + rows.stop, :]

        again = partial(checkpoint, block, use_reentrant=False)
        run = again if q.is_cuda and torch.is_grad_enabled() else block
        blocks = [run(start) for start in reversed(range(0, q.shape[-2], size))]
    return torch.cat(blocks[::-1], -2).to(q.dtype)
