"""Causal attention by a plan of positions: a plain reference, and four paths that must equal it.

`fused`    nothing is added to the scores: PyTorch's causal kernel
`added`    a matrix is added to the scores: all layers share it if it is small, else each layer
           makes it in blocks of query rows, so that memory is linear in the length
`flex`     FlexAttention on a GPU: biases from a table of distances or computed in the kernel,
           masks as blocks of keys
`scored`   the reference in blocks of query rows: where a piece computes the whole score or the
           weights, or distances are rewritten

A score is q.k x scale, times the temperature, plus biases; -inf if the query may not see the key.
`added_scores` makes the biases and the -inf for every path but `flex`, which has them in `_flex`.
"""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.functional import dropout as apply_dropout
from torch.nn.functional import pad, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from configurable import UserError
from posenc import Tile, materialize, scheme_name, upcast
from scheme import Plan, for_each_head

PRODUCT_KEYS = 512  # in compiled CPU code, two matrix products beat the kernel up to this length
SHARED_BYTES = 16 * 2**20  # layers share a matrix of added scores up to this size
BLOCK_ROWS = 256  # rows of a block: they keep the kernel busy, and causality saves half of the work
GPU_BYTES = 2**28  # on a GPU, the limit of a shared matrix, and of the scores of a block
# cuDNN reads float32 masks wrongly and makes NaN of very negative ones (pytorch 191612, 196678)
ADDING_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
FLEX_RELEASES = ("2.11", "2.13")  # of torch, in which flex compiles for sm_80 and sm_90
SMALL_BLOCKS = {"BLOCK_N": 64, "num_stages": 2}  # leave shared memory for the table of biases

FORCED_PATH = ""  # tests and runs/examine.py set this to force a path for whole texts
COMPILE_FLEX = False  # whether eager code may compile flex; runs/device.py sets it


# ---- the reference


def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: Plan,
    scale: float,
    features: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """The definition of attention: q (B, H, T, D), k and v (B, H, S, D) -> (B, H, T, D).

    k and v may have fewer heads, each shared by several query heads. If the plan has regions, q and
    k are turned here; else they are turned already. features (B, S, M) belong to the keys. Computed
    in float32 or wider, but on a GPU matrix products are in the dtype of q.
    """
    weights = attention_weights(q, k, plan, scale, features)
    dtype = q.dtype if q.is_cuda else weights.dtype
    values = for_each_head(q, v).to(dtype)
    with torch.autocast(q.device.type, enabled=False):
        return (apply_dropout(weights, dropout).to(dtype) @ values).to(q.dtype)


def attention_weights(
    q: Tensor,
    k: Tensor,
    plan: Plan,
    scale: float,
    features: Tensor | None = None,
) -> Tensor:
    """The attention weights (B, H, T, S) of `reference`, in float32 or wider."""
    wide = torch.promote_types(q.dtype, torch.float32)
    narrow = q.dtype if q.is_cuda else wide  # of matrix products
    # places of the keys among the S tokens (S,), and of the queries, the last T of these (T, 1)
    columns = torch.arange(k.shape[-2], device=q.device)
    rows = columns[-q.shape[-2] :, None]
    k = for_each_head(q, k).to(wide)
    q = q.to(wide)
    scores = None
    with torch.autocast(q.device.type, enabled=False):
        for part in (plan, *plan.regions):
            turned = part.turn(q, k) if plan.regions else (q, k)
            part_q, part_k = finish_q_and_k(*turned, plan, scale, features)
            score = (part_q.to(narrow) @ part_k.to(narrow).mT).to(wide) * scale
            added = added_scores(part, wide, rows, columns)
            if plan.score_piece:
                i, j = pairs_of_ids(part, rows, columns, wide)
                tile = Tile(part_q, part_k, score, added, i, j, rows, columns, features)
                score = plan.score_piece.score(tile)
            else:
                score = score + added
            # q.k of a hidden key may overflow
            score = torch.where(added > -torch.inf, score, -torch.inf)
            if part.where is not None:  # elsewhere the earlier scores stay
                holds = part.where(plan.query_ids[:, None], plan.key_ids)
                score = torch.where(holds, score, scores)
            scores = score
        return plan.weights_piece.weights(scores) if plan.weights_piece else scores.softmax(-1)


def finish_q_and_k(q, k, plan, scale, features):
    """Multiply turned q by the temperature; a piece may add columns, made from features (B, S, M),
    to q and k.
    """
    dtype = q.dtype
    if plan.temperature is not None:
        q = (q * plan.temperature).to(dtype)
    if plan.features_piece and plan.features_piece.along:
        q, k = plan.features_piece.along(upcast(q), upcast(k), features, scale)
    return q.to(dtype), k.to(dtype)


def slice_queries(plan: Plan, start: int, stop: int) -> Plan:
    """The plan for queries start ... stop - 1 alone, and the keys up to the last of them."""
    end = len(plan.key_ids) - plan.n_queries + stop  # the keys are those before this
    temperature = plan.temperature
    if temperature is not None:
        temperature = temperature[..., start:stop, :]
    return replace(
        plan,
        query_ids=plan.query_ids[start:stop],
        key_ids=plan.key_ids[:end],
        query_tables=tuple(table[..., start:stop, :] for table in plan.query_tables),
        key_tables=tuple(table[..., :end, :] for table in plan.key_tables),
        temperature=temperature,
        regions=[slice_queries(region, start, stop) for region in plan.regions],
    )


def pairs_of_ids(plan, rows, columns, dtype):
    """Position ids i (R, 1) of the queries at rows (R, 1), j (R, C) of the keys at columns (C,).

    Rows and columns are places in the text. Keys after the query get j = i, so that i - j is never
    negative. If scores are float64, integer ids are converted too.
    """
    offset = len(plan.key_ids) - plan.n_queries  # the place of the first query
    i = plan.query_ids[rows - offset]
    j = torch.minimum(i, plan.key_ids[columns])
    if dtype == torch.float64:
        i = i.to(dtype)
        j = j.to(dtype)
    return i, j


def added_scores(plan, dtype, rows, columns):
    """What is added to q.k x scale, (H or 1, R, C): biases, or -inf where the key is hidden.

    rows (R, 1) and columns (C,) are the places of queries and keys in the text. dtype is float32
    or wider.
    """
    added = torch.zeros(1, 1, 1, dtype=dtype, device=rows.device)
    if plan.biases:
        i, j = pairs_of_ids(plan, rows, columns, dtype)
        heads = torch.arange(plan.n_head, device=rows.device)[:, None, None]
        for piece in plan.biases:
            bias = piece.bias(heads, i, j)
            if not isinstance(bias, Tensor):
                raise UserError(f"{scheme_name(piece)}: bias must return a tensor, not {bias}")
            added = added + bias.to(dtype)  # float64 ids give float64 biases
    return torch.where(sees(plan, rows, columns), added, -torch.inf)


def sees(plan, rows, columns):
    """True where the queries at `rows` may see the keys at `columns`: causality and masks."""
    seen = columns <= rows
    for piece in plan.masks:
        seen = seen & piece.mask(rows, columns)
    return seen


# ---- the choice of a path


@dataclass(frozen=True)
class Prepared:
    """A plan, the path chosen for it, and what is computed once for all layers with this plan."""

    plan: Plan
    path: str
    dropout: float
    added: Tensor | None = None  # added: scores of all pairs, (H or 1, T, S)
    # added: scores of the last query, padded with BLOCK_ROWS times -inf, (H or 1, S + that)
    last_row: Tensor | None = None
    table: Tensor | None = None  # flex: biases at each distance, (H, S)
    key_blocks: BlockMask | None = None  # flex: the blocks of keys that are not all hidden


def choose_path(plan: Plan, compiled: bool, head_width: int, dropout: float = 0.0) -> str:
    """Choose the path for a plan, in eager or compiled code: see the top of this file."""
    n_keys = len(plan.key_ids)
    on_gpu = plan.key_ids.is_cuda
    whole_text = plan.n_queries == n_keys
    if FORCED_PATH and whole_text:
        return FORCED_PATH
    if plan.regions or plan.weights_piece or plan.score_piece:
        return "scored"
    training = torch.is_grad_enabled()
    if on_gpu and training and torch.are_deterministic_algorithms_enabled():
        return "scored"  # the kernels sum gradients in no fixed order
    if not plan.biases and not plan.masks and (whole_text or plan.n_queries == 1):
        if compiled and not on_gpu and n_keys <= PRODUCT_KEYS:
            return "added"  # two matrix products are faster for short texts
        return "fused"
    may_flex = on_gpu and whole_text and (compiled or COMPILE_FLEX)
    if may_flex and can_flex(plan, head_width, training, dropout):
        return "flex"
    return "added"


def can_flex(plan, head_width, training, dropout):
    """Whether FlexAttention can compute this plan for a whole text, and is not slower."""
    if not torch.__version__.startswith(FLEX_RELEASES):
        return False
    if not plan.plain_ids or plan.features_piece or head_width < 16:
        return False  # flex takes no head narrower than 16
    if not all(piece.by_distance for piece in plan.biases):
        return False
    if not training:
        return True
    # a learned bias is trained by another path: with t5 on an H100 (124M, L = 512), a step with
    # flex took 4.8 times as long as one of nope, with one shared matrix 1.3 times
    learned = any(p.requires_grad for piece in plan.biases for p in piece.parameters())
    return not dropout and not learned


def prepare(plan: Plan, dtype: torch.dtype, head_width: int, dropout: float = 0.0) -> Prepared:
    """Choose the path for a plan, and compute once what all layers with this plan share.

    dtype is that of scores, float32 or wider; `head_width` that of values.
    """
    compiling = torch.compiler.is_compiling()
    path = choose_path(plan, compiling, head_width, dropout)
    prepared = Prepared(plan, path, dropout)
    n_keys = len(plan.key_ids)
    columns = torch.arange(n_keys, device=plan.key_ids.device)  # (S,)
    rows = columns[-plan.n_queries :, None]  # (T, 1)
    if path == "flex":

        def seen(b, h, i, j):
            return sees(plan, i, j)

        make = compiled_on_gpu(create_block_mask, columns)
        key_blocks = make(seen, None, None, n_keys, n_keys, device=columns.device)
        if all(piece.in_kernel for piece in plan.biases):
            return replace(prepared, key_blocks=key_blocks)
        heads = torch.arange(plan.n_head, device=columns.device)[:, None]
        zeros = torch.zeros_like(columns)
        # columns serve as distances: biases of queries at 0 ... S - 1 on the key at 0
        table = sum(piece.bias(heads, columns, zeros) for piece in plan.biases).to(dtype)
        return replace(prepared, key_blocks=key_blocks, table=table)
    if path != "added":
        return prepared
    # eager CPU code, scores by distance alone: each row is the last one, shifted
    by_distance = all(piece.by_distance for piece in (*plan.biases, *plan.masks))
    if (
        by_distance
        and plan.plain_ids
        and plan.n_queries > 1
        and not columns.is_cuda
        and not compiling
    ):
        row = added_scores(plan, dtype, rows[-1:], columns)[:, 0]
        return replace(prepared, last_row=pad(row, (0, BLOCK_ROWS), value=-torch.inf))
    max_bytes = GPU_BYTES if columns.is_cuda else SHARED_BYTES
    if 4 * plan.n_head * plan.n_queries * n_keys > max_bytes:
        return prepared  # each layer will make it, block by block
    added = added_scores(plan, dtype, rows, columns)
    return replace(prepared, added=materialize(added) if plan.biases else added)


_compiled = lru_cache(torch.compile)  # compiles each function once


def compiled_on_gpu(function, like):
    """The function, compiled if the tensor `like` is on a GPU and the code around it is eager."""
    to_compile = like.is_cuda and COMPILE_FLEX and not torch.compiler.is_compiling()
    return _compiled(function) if to_compile else function


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

    The result must equal that of `reference`, which explains the arguments.
    """
    plan = prepared.plan
    if prepared.path == "scored":
        return _scored(q, k, v, prepared, scale, features)
    # `along` and the plain product in `_added` need a key head for each query head
    if features is not None or prepared.path == "added":
        k = for_each_head(q, k)
    v = for_each_head(k, v)  # k may also have more heads because each head is turned differently
    with torch.autocast(q.device.type, enabled=False):
        q, k = finish_q_and_k(q, k, plan, scale, features)
    if prepared.path == "fused":
        return _kernel(q, k, v, scale, prepared.dropout)
    if prepared.path == "flex":
        return _flex(q, k, v, prepared, scale)
    return _added(q, k, v, prepared, scale)


def _kernel(q, k, v, scale, dropout, added=None):
    """PyTorch's kernel: with a matrix of added scores (H or 1, R, C), or else causal.

    Values narrower than keys are padded: otherwise the CPU kernel would hold all scores at once.
    """
    width = v.shape[-1]
    if width < q.shape[-1] and not q.is_cuda:
        v = pad(v, (0, q.shape[-1] - width))
    is_causal = added is None and q.shape[-2] > 1
    kernels = nullcontext()
    if added is not None:
        added = added[None]  # (1, H or 1, R, C)
        if q.is_cuda:
            added = added.to(q.dtype)  # CUDA's kernels take no wider mask
            kernels = sdpa_kernel(ADDING_KERNELS)
    with kernels:
        y = scaled_dot_product_attention(
            q, k, v, added, dropout, is_causal, scale=scale, enable_gqa=q.shape[1] > k.shape[1]
        )
    return y[..., :width]


def _flex(q, k, v, prepared, scale):
    """FlexAttention with the plan's biases and masks."""
    biases = prepared.plan.biases
    table = prepared.table

    def score_mod(score, b, h, i, j):
        j = torch.minimum(i, j)  # a bias may be undefined for keys after the query
        if table is not None:
            return score + table[h, i - j]
        for piece in biases:
            score = score + piece.bias(h, i, j).to(score.dtype)
        return score

    return compiled_on_gpu(flex_attention, q)(
        q,
        k,
        v,
        score_mod=score_mod,
        block_mask=prepared.key_blocks,
        scale=scale,
        enable_gqa=q.shape[1] > k.shape[1],
        kernel_options=None if table is None else SMALL_BLOCKS,
    )


def _added(q, k, v, prepared, scale):
    """Attention with added scores, in blocks of query rows, each with the keys up to its last row.

    Blocks leave out keys that a window hides from all their rows.
    """
    plan = prepared.plan
    added = prepared.added  # the whole matrix, if it was computed in advance
    n_queries = q.shape[-2]
    n_keys = k.shape[-2]
    # compiled code takes all rows at once if their added scores were computed in advance
    is_one_block = added is not None and torch.compiler.is_compiling()
    if is_one_block and not q.is_cuda and n_keys <= PRODUCT_KEYS:
        weights = ((q @ k.mT).to(added.dtype) * scale + added).softmax(-1).to(v.dtype)
        return apply_dropout(weights, prepared.dropout) @ v
    # The keys to compute with: those that the narrowest window lets a query see, its last
    # `window_size` and the first `sinks`. Other masks may hide some of them too, with -inf.
    visible = [(n_keys, 0)]
    if added is None:
        visible += [piece.visible for piece in plan.masks if piece.visible]
    window_size, sinks = min(visible)  # the narrowest
    size = n_queries if is_one_block else block_rows(q[:1], k)  # added scores have no batch
    places = torch.arange(n_keys, device=q.device)
    outputs = []
    # the largest block first: the others reuse its memory
    for start in reversed(range(0, n_queries, size)):
        stop = min(start + size, n_queries)
        # the queries of this block are at places first ... end - 1
        first = n_keys - n_queries + start
        end = n_keys - n_queries + stop
        block_q = q[..., start:stop, :]
        # the keys that they may see: first_key ... end - 1, and the sinks before those. The window
        # of the first query reaches back the furthest; a key among the sinks is not taken twice
        first_key = max(min(sinks, end), first - window_size + 1)
        seen_k = k[..., first_key:end, :]
        seen_v = v[..., first_key:end, :]
        if sinks > 0:
            seen_k = torch.cat((k[..., :sinks, :], seen_k), -2)
            seen_v = torch.cat((v[..., :sinks, :], seen_v), -2)
        if added is not None:
            block_added = added[..., start:stop, :end]
        elif prepared.last_row is not None:
            # Added scores depend on distances alone: the row of a query is that of the next query,
            # shifted left by one key. So all rows are views of the last row, which take no memory.
            # View n belongs to the n-th query from the end of the block, so the queries are
            # flipped. For example, with 3 keys, end = 3 and the last row s2 s1 s0 -inf -inf ...
            # (s by distance), query 2 has view 0: s2 s1 s0; query 1 has view 1: s1 s0 -inf;
            # query 0 has view 2: s0 -inf -inf.
            block_q = block_q.flip(-2)
            views = prepared.last_row[:, n_keys - end :].unfold(-1, end, 1)  # (H or 1, ., end)
            block_added = views[:, : stop - start, first_key:]
        else:
            rows = places[first:end, None]
            columns = torch.cat((places[:sinks], places[first_key:end]))
            dtype = torch.promote_types(q.dtype, torch.float32)
            make = compiled_on_gpu(added_scores, q)
            block_added = make(plan, dtype, rows, columns)
        y = _kernel(block_q, seen_k, seen_v, scale, prepared.dropout, block_added)
        outputs.append(y if prepared.last_row is None else y.flip(-2))
    return torch.cat(outputs[::-1], -2)


def block_rows(q, k):
    """The number of query rows in a block, for q (B, H, T, D) and k (B, H, S, D)."""
    if not q.is_cuda:
        return BLOCK_ROWS
    max_rows = GPU_BYTES // (4 * q.shape[0] * q.shape[1] * k.shape[2])
    return max(1, max_rows // BLOCK_ROWS) * BLOCK_ROWS


def _scored(q, k, v, prepared, scale, features):
    """The reference in blocks of query rows; on a GPU the backward pass recomputes each block."""
    n_queries = q.shape[-2]
    size = block_rows(q, k)

    def attend_from(start):
        stop = min(start + size, n_queries)
        end = k.shape[-2] - n_queries + stop  # the block sees the keys before this place
        return reference(
            q[..., start:stop, :],
            k[..., :end, :],
            v[..., :end, :],
            slice_queries(prepared.plan, start, stop),
            scale,
            None if features is None else features[:, :end],
            prepared.dropout,
        )

    recompute = q.is_cuda and torch.is_grad_enabled()
    outputs = []
    # the largest block first: the others reuse its memory
    for start in reversed(range(0, n_queries, size)):
        if recompute:
            outputs.append(checkpoint(attend_from, start, use_reentrant=False))
        else:
            outputs.append(attend_from(start))
    return torch.cat(outputs[::-1], -2)
