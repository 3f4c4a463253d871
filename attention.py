"""Causal attention by a plan of positions: a plain reference, and four paths that must equal it.

`fused`    nothing is added to the scores: PyTorch's causal kernel
`added`    a matrix is added to the scores: all layers share it if it is small, else each layer
           makes it in blocks of queries, so that memory is linear in the length (in training
           all blocks are kept for the backward pass)
`flex`     FlexAttention on a GPU: biases from a table of distances or computed in the kernel,
           masks as blocks of keys
`scored`   the reference in blocks of queries: where a piece computes the whole score or the
           weights, distances are rewritten, or a GPU must be deterministic in training

A score is q.k x scale, times the temperature, plus biases; -inf if the query may not see the key.
`added_scores` makes the biases and the -inf for every path but `flex`: see `attend_flex`.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.functional import dropout as apply_dropout
from torch.nn.functional import pad, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from common.compiler import materialize
from common.errors import UserError
from posenc import Piece, Tile, scheme_name, upcast

PRODUCT_KEYS = 512  # in compiled CPU code, two matrix products beat the kernel up to this length
# cuDNN reads float32 masks wrongly and makes NaN of very negative ones (pytorch 191612, 196678)
ADDING_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
FLEX_RELEASES = ("2.11", "2.13")  # of torch, in which flex compiles for sm_80 and sm_90
SMALL_BLOCKS = {"BLOCK_N": 64, "num_stages": 2}  # leave shared memory for the table of biases


# ---- what attention is told


@dataclass(frozen=True)
class Options:
    """How attention is computed, and all that decides which path it takes beside the plan."""

    # what a device, a test or an examination may ask for
    path: str = ""  # that of whole texts; empty: the best one
    block_queries: int = 256  # in a block: the kernel is kept busy, and causality saves half
    shared_bytes: int = 16 * 2**20  # layers share a matrix of added scores up to this size
    gpu_bytes: int = 2**28  # the same on a GPU, and the limit of the scores of a block
    compile_flex: bool = False  # whether eager code may compile flex
    softmax: Callable[[Tensor, int], Tensor] = torch.softmax  # of `scored`
    watch: Callable[..., None] | None = None  # called in each layer, as `attention_weights` is
    # what the model is and does in this forward pass: see `GPT.current_options`
    dtype: torch.dtype = torch.float32  # of scores, float32 or wider
    head_width: int = 0  # of values
    dropout: float = 0.0  # 0 unless the model is in training
    on_gpu: bool = False
    compiled: bool = False  # by torch.compile; else the code is eager
    has_gradients: bool = False
    is_deterministic: bool = False  # torch.use_deterministic_algorithms


@dataclass(frozen=True)
class Plan:
    """What attention needs to know about positions in one forward pass.

    All layers with the same pieces share a plan. The queries are the last T of the S tokens.
    Queries and new keys are turned before keys are cached.

    An extension that rewrites distances adds a plan for each `Region`, which differs in ids and
    tables. A pair of a query and a key has the score of the last one for which where(i, j) holds,
    else that of this plan; i and j are their ids in this plan. Then keys are cached unturned, and
    attention turns queries and keys for each plan.
    """

    options: Options
    query_ids: Tensor  # position ids (T,)
    key_ids: Tensor  # (S,)
    query_tables: tuple[Tensor, ...]  # what `turn_piece.tables` gives
    key_tables: tuple[Tensor, ...]  # of the new keys; if there are regions, of all keys
    # multiplies the scores, (T, 1) or (H, T, 1); after `cut` (B, 1 or H, T, 1)
    temperature: Tensor | None
    biases: list[Piece]
    masks: list[Piece]
    turn_piece: Piece | None  # turns queries and keys, and perhaps values
    n_head: int
    turned_width: int  # how many of the last columns of q and k are turned
    score_piece: Piece | None  # computes the whole score
    mix_pieces: dict[str, Piece]  # {place: the piece that mixes vectors there}
    features_piece: Piece | None  # computes features of each layer's input
    weights_piece: Piece | None  # replaces the softmax
    output_piece: Piece | None  # changes the output of the heads
    pack_piece: Piece | None  # decides how the cache stores keys and values
    plain_ids: bool  # whether the ids are the places in the text
    places: Tensor | None = None  # of the keys that are given, if not all: see `attend_scored`
    where: Callable[[Tensor, Tensor], Tensor] | None = None  # of the plan of a region
    regions: Sequence["Plan"] = ()
    # the place where the document of each token begins, (B, S); see `cut`. None: no documents
    starts: Tensor | None = None

    # from `prepare`
    path: str = ""
    # path added: the scores of all pairs, (H or 1, T, S), with documents (B, H or 1, T, S)
    added: Tensor | None = None
    # path added: those of the last query, padded with block_queries times -inf, (H or 1, S + that)
    last_added: Tensor | None = None
    table: Tensor | None = None  # path flex: biases at each distance, (H, S)
    key_blocks: BlockMask | None = None  # path flex: the blocks of keys that are not all hidden

    def turn(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Turn q (B, H, T, D) and k (B, heads, S, D); the dtypes stay."""
        if self.turn_piece is None:
            return q, k
        turned_q = self.turn_columns(q, self.turn_piece.turn, self.query_tables, False)
        return turned_q, self.turn_as_keys(q, k)

    def turn_as_keys(self, q: Tensor, x: Tensor) -> Tensor:
        """Turn keys or values x (B, heads, S, D).

        If the tables differ between heads, x can no longer be shared: it gets as many heads as q.
        """
        if any(table.dim() > 2 and table.shape[-3] > 1 for table in self.key_tables):
            x = for_each_head(q, x)
        return self.turn_columns(x, self.turn_piece.turn, self.key_tables, True)

    def turn_columns(self, x: Tensor, turn: Callable, *how: object) -> Tensor:
        """Turn the last `turned_width` columns of x (B, heads, T, D) by turn(columns, *how)."""
        rest, last = x.tensor_split([x.shape[-1] - self.turned_width], -1)
        with no_autocast(x):
            last = turn(upcast(last), *how).to(x.dtype)
        return torch.cat((rest, last), -1) if rest.shape[-1] > 0 else last

    @property
    def turns_values(self) -> bool:
        """Whether values are turned as keys, and outputs of the heads turned back."""
        return self.turn_piece is not None and self.turn_piece.turn_back is not None

    def turn_back(self, y: Tensor) -> Tensor:
        """Turn outputs y (B, H, T, D) of the heads back, where values were turned."""
        return self.turn_columns(y, self.turn_piece.turn_back, self.query_tables)

    @property
    def n_queries(self) -> int:
        """The number of queries, T."""
        return len(self.query_ids)

    @property
    def n_texts(self) -> int:
        """The number of texts that differ in what is seen: 1 without documents."""
        return 1 if self.starts is None else len(self.starts)


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


def cut(plan: Plan, starts: Tensor) -> Plan:
    """The plan of a whole text, cut into documents: attention does not see across their starts, and
    positions restart there. starts (B, T) are the places where each token's document begins.

    Tables and temperature, (T, .) or (H, T, .), become (B, 1 or H, T, .).
    """
    if plan.regions:
        raise UserError(
            "where distances are rewritten, positions cannot restart: set --documents=pad"
        )
    places = torch.arange(starts.shape[1], device=starts.device) - starts  # in the document

    def restarted(table):
        table = table[..., places, :]  # (B, T, .) or (H, B, T, .)
        return table.view(-1, *table.shape[-3:]).transpose(0, 1)

    tables = tuple(map(restarted, plan.query_tables))
    temperature = plan.temperature
    if temperature is not None:
        temperature = restarted(temperature)
    return replace(
        plan, starts=starts, query_tables=tables, key_tables=tables, temperature=temperature
    )


def for_each_head(q, x):
    """Keys or values x (B, heads, S, D), repeated so that each head of q has its own (GQA)."""
    group = q.shape[1] // x.shape[1]
    return x.repeat_interleave(group, 1) if group > 1 else x


def no_autocast(x: Tensor) -> AbstractContextManager:
    """A context in which autocast, which computes in fewer bits, is off on the device of x."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


# ---- the reference


def reference(
    q: Tensor, k: Tensor, v: Tensor, plan: Plan, scale: float, features: Tensor | None = None
) -> Tensor:
    """The definition of attention: q (B, H, T, D), k and v (B, H, S, D) -> (B, H, T, D).

    k and v may have fewer heads, each shared by several query heads. If the plan has regions, q and
    k are turned here; else they are turned already. features (B, S, M) belong to the keys. Computed
    in float32 or wider, but on a GPU matrix products are in the dtype of q.
    """
    weights = attention_weights(q, k, plan, scale, features)
    dtype = q.dtype if q.is_cuda else weights.dtype
    values = for_each_head(q, v).to(dtype)
    with no_autocast(q):
        return (apply_dropout(weights, plan.options.dropout).to(dtype) @ values).to(q.dtype)


def attention_weights(
    q: Tensor, k: Tensor, plan: Plan, scale: float, features: Tensor | None = None
) -> Tensor:
    """The attention weights (B, H, T, S) of `reference`, in float32 or wider."""
    dtype = q.dtype if q.is_cuda else torch.promote_types(q.dtype, torch.float32)  # of products
    k = upcast(for_each_head(q, k))
    q = upcast(q)
    # places of the keys among the S tokens (S,), and of the queries, the last T of these (T, 1)
    keys = torch.arange(k.shape[-2], device=q.device) if plan.places is None else plan.places
    places = keys[-q.shape[-2] :, None], keys
    with no_autocast(q):
        turned = plan.turn(q, k) if plan.regions else (q, k)
        scores = all_scores(*turned, plan, *places, dtype, scale, features)
        for region in plan.regions:
            rewritten = all_scores(*region.turn(q, k), region, *places, dtype, scale, features)
            holds = region.where(plan.query_ids[:, None], plan.key_ids[keys])
            scores = torch.where(holds, rewritten, scores)
        if plan.weights_piece:
            return plan.weights_piece.weights(scores)
        return plan.options.softmax(scores, -1)


def all_scores(q, k, plan, queries, keys, dtype, scale, features):
    """The scores (B, H, T, S) of turned q and k, of which q.k is computed in `dtype`.
    queries (T, 1) and keys (S,) are places in the text.
    """
    q, k = finish_q_and_k(q, k, plan, scale, features)
    scores = None
    if not plan.score_piece or plan.score_piece.reads_scores:
        scores = ((q * scale).to(dtype) @ k.to(dtype).mT).to(q.dtype)
    if plan.score_piece:
        added = added_scores(plan, q.dtype, queries, keys)
        i, j = pairs_of_ids(plan, queries, keys, q.dtype)
        tile = Tile(q, k, scores, added, i, j, queries, keys, features)
        scores = plan.score_piece.score(tile)
    elif plan.biases:
        scores = scores + all_biases(plan, q.dtype, queries, keys)
    # not a sum or a minimum: the score of a hidden key may be inf or nan
    return torch.where(sees(plan, queries, keys), scores, -torch.inf)


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


def pairs_of_ids(plan, queries, keys, dtype):
    """Position ids i (R, 1) of queries (R, 1) and j (R, C) of keys (C,), given by their places in
    the text. With documents they restart in the query's: (B, 1, R, 1) and (B, 1, R, C).

    Keys after the query get j = i, so that i - j is never negative. If scores are float64, integer
    ids are converted too.
    """
    if plan.starts is None:
        first = len(plan.key_ids) - plan.n_queries  # the place of the first query
        i = plan.query_ids[queries - first]
    else:
        queries, keys = in_document(plan, queries, keys)
        i = plan.key_ids[queries]
    j = torch.minimum(i, plan.key_ids[keys])  # a key before the document is not seen
    if dtype == torch.float64:
        i = i.to(dtype)
        j = j.to(dtype)
    return i, j


def added_scores(plan, dtype, queries, keys):
    """What is added to q.k x scale, (H or 1, R, C): biases, or -inf where the key is hidden. With
    documents it is (B, H or 1, R, C).

    queries (R, 1) and keys (C,) are places in the text. dtype is float32 or wider.
    """
    return torch.where(
        sees(plan, queries, keys), all_biases(plan, dtype, queries, keys), -torch.inf
    )


def all_biases(plan, dtype, queries, keys):
    """The sum of the biases alone, as `added_scores` has it; 0 if there are none."""
    total = torch.zeros(1, 1, 1, dtype=dtype, device=keys.device)
    if plan.biases:
        i, j = pairs_of_ids(plan, queries, keys, dtype)
        heads = torch.arange(plan.n_head, device=keys.device)[:, None, None]
        for piece in plan.biases:
            bias = piece.bias(heads, i, j)
            if not isinstance(bias, Tensor):
                raise UserError(f"{scheme_name(piece)}: bias must return a tensor, not {bias}")
            total = total + bias.to(dtype)  # float64 ids give float64 biases
    return total


def in_document(plan, queries, keys, text=None):
    """Places of queries (R, 1) and keys (C,), counted from where the query's document begins:
    (B, 1, R, 1) and (B, 1, R, C), below 0 for keys before it. Scalars are in the row `text`.
    """
    starts = plan.starts[:, None, queries] if text is None else plan.starts[text, queries]
    return queries - starts, keys - starts


def sees(plan, queries, keys, text=None):
    """True where the queries may see the keys, both given by their places: causality and masks.

    With documents (B, 1, R, C); for `text` see `in_document`.
    """
    seen = keys <= queries
    if plan.starts is not None:
        queries, keys = in_document(plan, queries, keys, text)
        seen = seen & (keys >= 0)
    for piece in plan.masks:
        seen = seen & piece.mask(queries, keys)
    return seen


# ---- the choice of a path


def choose_path(plan: Plan) -> str:
    """Choose the path for a plan: see the top of this file."""
    options = plan.options
    n_keys = len(plan.key_ids)
    whole_text = plan.n_queries == n_keys
    if options.path and whole_text:
        return options.path
    if plan.regions or plan.weights_piece or plan.score_piece:
        return "scored"
    if options.on_gpu and options.has_gradients and options.is_deterministic:
        return "scored"  # the kernels sum gradients in no fixed order
    plain = not plan.biases and not plan.masks and plan.starts is None
    if plain and (whole_text or plan.n_queries == 1):
        if options.compiled and not options.on_gpu and n_keys <= PRODUCT_KEYS:
            return "added"  # two matrix products are faster for short texts
        return "fused"
    if whole_text and can_flex(plan):
        return "flex"
    return "added"


def can_flex(plan):
    """Whether FlexAttention can compute this plan for a whole text, and is not slower."""
    options = plan.options
    if not options.on_gpu or not (options.compiled or options.compile_flex):
        return False
    if not torch.__version__.startswith(FLEX_RELEASES):
        return False
    if not plan.plain_ids or plan.features_piece or options.head_width < 16:
        return False  # flex takes no head narrower than 16
    if not all(piece.by_distance for piece in plan.biases):
        return False
    if not options.has_gradients:
        return True
    # a learned bias is trained by another path: with t5 on an H100 (124M, L = 512), a step with
    # flex took 4.8 times as long as one of nope, with one shared matrix 1.3 times
    learned = any(p.requires_grad for piece in plan.biases for p in piece.parameters())
    return not options.dropout and not learned


def prepare(plan: Plan) -> Plan:
    """Choose the path of a plan, and compute once what all layers with this plan share."""
    options = plan.options
    plan = replace(plan, path=choose_path(plan))
    n_keys = len(plan.key_ids)
    keys = torch.arange(n_keys, device=plan.key_ids.device)  # (S,)
    queries = keys[-plan.n_queries :, None]  # (T, 1)
    if plan.path == "flex":

        def seen(b, h, i, j):
            return sees(plan, i, j, b)

        make = compiled_on_gpu(create_block_mask, options)
        blocks = make(seen, plan.n_texts, None, n_keys, n_keys, device=keys.device)
        plan = replace(plan, key_blocks=blocks)
        if all(piece.in_kernel for piece in plan.biases):
            return plan
        heads = torch.arange(plan.n_head, device=keys.device)[:, None]
        zeros = torch.zeros_like(keys)
        # the keys serve as distances: biases of queries at 0 ... S - 1 on the key at 0
        table = sum(piece.bias(heads, keys, zeros) for piece in plan.biases)
        return replace(plan, table=table.to(options.dtype))
    if plan.path != "added":
        return plan
    if can_shift(plan):
        last_added = added_scores(plan, options.dtype, queries[-1:], keys)[:, 0]
        padding = (0, options.block_queries)
        return replace(plan, last_added=pad(last_added, padding, value=-torch.inf))
    max_bytes = options.gpu_bytes if options.on_gpu else options.shared_bytes
    if 4 * plan.n_texts * plan.n_head * plan.n_queries * n_keys > max_bytes:
        return plan  # each layer will make it, block by block
    added = added_scores(plan, options.dtype, queries, keys)
    return replace(plan, added=materialize(added) if plan.biases else added)


def can_shift(plan):
    """Whether the added scores of every query are those of the last one, shifted: they depend on
    distances alone. That is used by eager code on a CPU.
    """
    by_distance = all(piece.by_distance for piece in (*plan.biases, *plan.masks))
    is_eager_on_cpu = not plan.options.on_gpu and not plan.options.compiled
    plain = plan.plain_ids and plan.starts is None
    return by_distance and plain and plan.n_queries > 1 and is_eager_on_cpu


_compiled = lru_cache(torch.compile)  # compiles each function once


def compiled_on_gpu(function, options):
    """The function, compiled if it works on a GPU and the code around it is eager."""
    to_compile = options.on_gpu and options.compile_flex and not options.compiled
    return _compiled(function) if to_compile else function


# ---- the paths


def attend(
    q: Tensor, k: Tensor, v: Tensor, plan: Plan, scale: float, features: Tensor | None = None
) -> Tensor:
    """Attention of q (B, H, T, D) to k and v (B, H, S, D), S >= T -> (B, H, T, D).

    The result must equal that of `reference`, which explains the arguments. The plan is prepared.
    """
    if plan.options.watch:
        plan.options.watch(q, k, plan, scale, features)
    if plan.path == "scored":
        return in_blocks(attend_scored, q, k, v, plan, scale, features)
    # `along`, the plain product in `attend_added`, and CUDA's kernels in float32 need a key head
    # for each query head: else only the kernel is left that holds all scores
    wide_on_gpu = plan.options.on_gpu and q.dtype == torch.float32 and plan.path == "fused"
    if features is not None or plan.path == "added" or wide_on_gpu:
        k = for_each_head(q, k)
    v = for_each_head(k, v)  # k may also have more heads because each head is turned differently
    with no_autocast(q):
        q, k = finish_q_and_k(q, k, plan, scale, features)
    if plan.path == "fused":
        return run_kernel(q, k, v, scale, plan.options.dropout)
    if plan.path == "flex":
        return attend_flex(q, k, v, plan, scale)
    return in_blocks(attend_added, q, k, v, plan, scale)


def run_kernel(q, k, v, scale, dropout, added=None):
    """PyTorch's kernel: with a matrix of added scores (H or 1, R, C), which may differ between
    texts, (B, H or 1, R, C), or else causal.

    Values narrower than keys are padded: otherwise the CPU kernel would hold all scores at once.
    """
    width = v.shape[-1]
    if width < q.shape[-1] and not q.is_cuda:
        v = pad(v, (0, q.shape[-1] - width))
    is_causal = added is None and q.shape[-2] > 1
    kernels = nullcontext()
    if added is not None:
        added = added.view(-1, *added.shape[-3:])  # (B or 1, H or 1, R, C)
        if q.is_cuda:
            added = added.to(q.dtype)  # CUDA's kernels take no wider mask
            kernels = sdpa_kernel(ADDING_KERNELS)
    with kernels:
        y = scaled_dot_product_attention(
            q, k, v, added, dropout, is_causal, scale=scale, enable_gqa=q.shape[1] > k.shape[1]
        )
    return y[..., :width]


def attend_flex(q, k, v, plan, scale):
    """FlexAttention with the plan's biases and masks."""
    biases = plan.biases
    table = plan.table

    def score_mod(score, b, h, i, j):
        j = torch.minimum(i, j)  # a bias may be undefined for keys after the query
        if table is not None:
            return score + table[h, i - j]
        for piece in biases:
            score = score + piece.bias(h, i, j).to(score.dtype)
        return score

    return compiled_on_gpu(flex_attention, plan.options)(
        q,
        k,
        v,
        score_mod=score_mod,
        block_mask=plan.key_blocks,
        scale=scale,
        enable_gqa=q.shape[1] > k.shape[1],
        kernel_options=None if table is None else SMALL_BLOCKS,
    )


def attend_added(q, k, v, plan, scale, _, start, stop):
    """A block of R queries, the last of C keys, with a matrix of added scores (H or 1, R, C).
    Features are columns of q and k by now.
    """
    options = plan.options
    if plan.last_added is not None:
        return attend_shifted(q, k, v, plan, scale)
    if plan.added is None:
        return attend_unshared(q, k, v, plan, scale)
    added = plan.added[..., start:stop, : k.shape[-2]]
    if options.on_gpu or not options.compiled or k.shape[-2] > PRODUCT_KEYS:
        return run_kernel(q, k, v, scale, options.dropout, added)
    weights = ((q @ k.mT).to(added.dtype) * scale + added).softmax(-1).to(v.dtype)
    return apply_dropout(weights, options.dropout) @ v


def attend_shifted(q, k, v, plan, scale):
    """The added scores are those of the last query of the text, shifted."""
    options = plan.options
    first, _ = seen_keys(plan, q, k)  # a mask with sinks is not by distance alone
    added = shifted(plan.last_added, q.shape[-2], k.shape[-2], options.block_queries)[..., first:]
    k = kept(k, first)
    v = kept(v, first)
    return run_kernel(q.flip(-2), k, v, scale, options.dropout, added).flip(-2)


def shifted(last, n_queries, n_keys, padding):
    """The added scores (H, R, C) of R queries, the last of them first, from those of a query that
    sees at least C keys: `last` (H, . + padding), which ends with `padding` times -inf.

    If they depend on distances alone, those of a query are those of the next one, shifted left by
    one key. So they are views of `last`, which take no memory:

    last  4 3 2 1 0 -inf -inf -inf     by distance, padding = 3
            2 1 0                      of query 2, which sees keys 0, 1 and 2: n_keys = 3
              1 0 -inf                 of query 1
                0 -inf -inf            of query 0: n_queries = 3
    """
    return last[:, -n_keys - padding :].unfold(-1, n_keys, 1)[:, :n_queries]


def attend_unshared(q, k, v, plan, scale):
    """The added scores are made for this block alone: all of them would be too large to share."""
    first, sinks = seen_keys(plan, q, k)
    places = torch.arange(k.shape[-2], device=q.device)
    queries = places[-q.shape[-2] :, None]
    keys = torch.cat((places[:sinks], places[first:]))
    dtype = torch.promote_types(q.dtype, torch.float32)
    with no_autocast(q):
        added = compiled_on_gpu(added_scores, plan.options)(plan, dtype, queries, keys)
    k = kept(k, first, sinks)
    v = kept(v, first, sinks)
    return run_kernel(q, k, v, scale, plan.options.dropout, added)


def seen_keys(plan, q, k):
    """Which of C keys (B, H, C, D) a block may see that has the last R queries (B, H, R, D): those
    from `first` on, and before them the first `sinks`. Returns (first, sinks).

    They are those of the narrowest window. Other masks may hide some of them too, with -inf.
    """
    n_keys = k.shape[-2]
    visible = [piece.visible for piece in plan.masks if piece.visible]
    size, sinks = min(visible, default=(n_keys, 0))
    if plan.starts is not None and sinks > 0:  # each document has its own
        return 0, 0
    # the window of the first query reaches back the furthest; no key is taken twice
    first = max(min(sinks, n_keys), n_keys - q.shape[-2] - size + 1)
    return first, sinks


def kept(x, first, sinks=0):
    """Of keys or values x (B, H, C, D) those from `first` on, and before them the first `sinks`."""
    rest = x[..., first:, :]
    return torch.cat((x[..., :sinks, :], rest), -2) if sinks > 0 else rest


def attend_scored(q, k, v, plan, scale, features, start, stop):
    """A block by the reference; what a piece computes from keys may depend on hidden ones too."""
    part = slice_queries(plan, start, stop)
    if features is not None:
        features = features[:, : k.shape[-2]]
    elif not plan.score_piece:
        first, sinks = seen_keys(plan, q, k)
        part = keep_keys(part, first, sinks)
        k = kept(k, first, sinks)
        v = kept(v, first, sinks)
    return reference(q, k, v, part, scale, features)


def keep_keys(plan, first, sinks):
    """The plan for the keys from `first` on, and before them the first `sinks`."""
    places = torch.arange(len(plan.key_ids), device=plan.key_ids.device)
    return replace(
        plan,
        places=torch.cat((places[:sinks], places[first:])),
        key_tables=tuple(kept(table, first, sinks) for table in plan.key_tables),
        regions=[keep_keys(region, first, sinks) for region in plan.regions],
    )


def in_blocks(attend_block, q, k, v, plan, scale, features=None):
    """The outputs of all queries (B, H, T, D), a block at a time: attend_block gets the queries
    start ... stop - 1, and the keys up to the last of them.
    """
    n_queries = q.shape[-2]
    n_keys = k.shape[-2]
    options = plan.options
    size = options.block_queries
    if plan.added is not None and options.compiled:
        size = n_queries
    elif options.on_gpu:
        batch = len(q) if plan.path == "scored" else plan.n_texts  # what is added is shared
        most = options.gpu_bytes // (4 * batch * q.shape[1] * n_keys)
        size *= max(1, most // size)
    # the scores are too large to be kept for the backward pass
    recompute = plan.path == "scored" and options.on_gpu and options.has_gradients
    outputs = []
    # the largest block first: the others reuse its memory
    for start in reversed(range(0, n_queries, size)):
        stop = min(start + size, n_queries)
        end = n_keys - n_queries + stop
        block = (q[..., start:stop, :], k[..., :end, :], v[..., :end, :])
        block += (plan, scale, features, start, stop)
        if recompute:
            outputs.append(checkpoint(attend_block, *block, use_reentrant=False))
        else:
            outputs.append(attend_block(*block))
    return torch.cat(outputs[::-1], -2)
