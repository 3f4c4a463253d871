"""The GPT in one file, with its key-value cache and latent attention.

All it knows of positions comes from a `Scheme` (scheme.py); attention itself is in attention.py.

    m = GPT(GPTConfig(block_size=64, vocab_size=256, n_layer=2, n_head=4, n_embd=64, pos="rope"))
    idx = torch.randint(256, (2, 65))  # tokens
    logits, loss = m(idx[:, :-1], idx[:, 1:])  # (2, 64, 256), and the mean loss in nats
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from attention import Options, attend, for_each_head, no_autocast
from common.errors import UserError
from configurable import GPTConfig
from posenc import Shape, init_std, scheme_name, upcast
from scheme import Catalogue, Scheme

LOGIT_BYTES = 64 * 2**20  # bytes of float32 logits that `GPT.losses` computes at a time

# ---- the cache


@dataclass
class Cache:
    """Keys and values of the n tokens seen so far.

    `length` is the final length of the texts, fixed up front: schemes that depend on the length use
    it from the first token on.
    """

    batch: int
    length: int
    n: int = 0
    tokens: Tensor | None = None  # (B, n)
    # for each (layer, name) a tensor (B, heads, length, D), filled up to n
    tensors: dict[tuple[int, str], Tensor] = field(default_factory=dict)
    # for each (layer, place) of `mix` the vectors of the last tokens, (B, rows - 1, W)
    recent: dict[tuple[int, str], Tensor] = field(default_factory=dict)

    def append(self, layer: int, name: str, x: Tensor) -> Tensor:
        """Append x (B, heads, t, D) of t new tokens; returns (B, heads, n + t, D) of all tokens.

        `name` is "k", "v" or "features"; packed keys and values have several parts: "k0", "k1" ...
        """
        slot = (layer, name)
        if slot not in self.tensors:
            self.tensors[slot] = x.new_empty(self.batch, x.shape[1], self.length, x.shape[3])
        stop = self.n + x.shape[2]
        self.tensors[slot][:, :, self.n : stop] = x
        return self.tensors[slot][:, :, :stop]

    def tokens_with(self, idx: Tensor) -> Tensor:
        """The tokens so far and the new ones, idx (B, T); UserError if the cache is too small."""
        if len(idx) != self.batch or self.n + idx.shape[1] > self.length:
            raise UserError(
                f"the cache is for (batch, length) = ({self.batch}, {self.length}), not "
                f"({len(idx)}, {self.n + idx.shape[1]})"
            )
        return idx if self.tokens is None else torch.cat((self.tokens, idx), 1)


def with_cached(cache, layer, name, x, pack_piece):
    """Append x (B, heads, t, D) of t new tokens to the cache, and return (B, heads, S, D) of all S
    tokens so far. If the cache is None, x is all there is.

    `pack_piece`, unless it is None, decides how the cache stores x. Without a cache, x is rounded
    as if it had been stored, and gradients pass as if it had not.
    """
    if pack_piece is None:
        return x if cache is None else cache.append(layer, name, x)
    packed = pack_piece.pack(x)
    if cache is None:  # a straight-through estimator
        return x + (pack_piece.unpack(*packed) - x).detach()
    parts = [cache.append(layer, f"{name}{n}", part) for n, part in enumerate(packed)]
    return pack_piece.unpack(*parts)


def mixed(x, place, plan, cache, layer):
    """The vectors x (B, T, W) of the new tokens at a place of a layer, mixed with those of the
    tokens just before, if a piece of the plan does that.
    """
    piece = plan.mix_pieces.get(place)
    if piece is None:
        return x
    past = piece.mixes[place] - 1  # how many tokens before
    before = x.new_zeros(len(x), past, x.shape[2])  # the start of the text
    if cache:
        before = cache.recent.get((layer, place), before)
    x = torch.cat((before, x), 1)  # (B, past + T, W)
    if cache:
        cache.recent[layer, place] = x[:, x.shape[1] - past :].clone()
    with no_autocast(x):
        rows = [upcast(x[:, past - n : x.shape[1] - n]) for n in range(past + 1)]
        if plan.starts is not None:  # rows of another document are 0, as before a text
            since = torch.arange(plan.starts.shape[1], device=x.device) - plan.starts  # (B, T)
            rows = [row * (since >= n)[..., None] for n, row in enumerate(rows)]
        y = piece.mix(rows, place)
        if not isinstance(y, Tensor) or y.shape != rows[0].shape:
            raise UserError(f"{scheme_name(piece)}: mix at {place} must give a tensor like rows[0]")
        return y.to(x.dtype)


# ---- the layers


def new_norm(config: GPTConfig, width: int) -> nn.Module:
    """The LayerNorm or RMSNorm that config asks for, over the last `width` columns."""
    if config.norm == "rmsnorm":
        return nn.RMSNorm(width, eps=config.norm_eps)
    return nn.LayerNorm(width, eps=config.norm_eps, bias=config.bias)


def apply_norm(norm, x):
    """Normalise the last columns of x; its dtype stays."""
    return norm(x.to(norm.weight.dtype)).to(x.dtype)


class Fused(nn.Linear):
    """Linear layers of these widths in one, such as queries, keys and values.

    With several `groups`, such as heads, each group of rows has so many of each layer. The
    optimizer treats them as the layers that they are.
    """

    def __init__(self, n_in: int, widths: list[int], bias: bool, groups: int = 1):
        super().__init__(n_in, groups * sum(widths), bias)
        self.parts = (groups, widths)


class Attention(nn.Module):
    """Causal self-attention. Several query heads may share one key and value head (GQA)."""

    def __init__(self, config: GPTConfig, layer: int):
        super().__init__()
        self.layer = layer
        width = config.head_width
        self.head_width = width
        self.scale = 1 / math.sqrt(width)
        kv_width = config.kv_heads * width
        self.widths = [config.n_head * width, kv_width, kv_width]
        self.c_attn = Fused(config.n_embd, self.widths, config.bias)
        self.c_proj = nn.Linear(self.widths[0], config.n_embd, bias=config.bias)
        self.qk_norm = config.qk_norm
        if config.qk_norm:
            all_heads = config.qk_norm == "all"
            self.q_norm = new_norm(config, self.widths[0] if all_heads else width)
            self.k_norm = new_norm(config, kv_width if all_heads else width)

    def norm_heads(self, norm, x):
        """Normalise queries or keys x (B, T, heads D): all heads at once, or each by itself."""
        if self.qk_norm == "all":
            return apply_norm(norm, x)
        heads = x.unflatten(-1, (-1, self.head_width))  # (B, T, heads, D)
        return apply_norm(norm, heads).flatten(-2)

    def forward(self, x, plan, cache):
        """x (B, T, C) -> (B, Q, C): the output for the plan's Q queries, the last of the T tokens.

        The plan is one that `attention.prepare` has made.
        """
        q, k, v = self.c_attn(x).split(self.widths, -1)
        q = mixed(q, "q", plan, cache, self.layer)
        k = mixed(k, "k", plan, cache, self.layer)
        v = mixed(v, "v", plan, cache, self.layer)
        q = q[:, -plan.n_queries :]  # the last layer may need the last queries alone
        if self.qk_norm:
            q = self.norm_heads(self.q_norm, q)
            k = self.norm_heads(self.k_norm, k)
        q, k, v = (t.unflatten(-1, (-1, self.head_width)).transpose(1, 2) for t in (q, k, v))
        # q (B, H, Q, D), k and v (B, heads, T, D)
        if not plan.regions:  # if there are any, attention turns q and k
            q, k = plan.turn(q, k)
        # of all S tokens, (B, heads, S, D)
        all_k = with_cached(cache, self.layer, "k", k, plan.pack_piece)
        turned_v = plan.turn_as_keys(q, v) if plan.turns_values else v
        all_v = with_cached(cache, self.layer, "v", turned_v, plan.pack_piece)
        features = all_features(x, plan, cache, self.layer)
        y = attend(q, all_k, all_v, plan, self.scale, features)  # (B, H, Q, D)
        if plan.turns_values:
            y = plan.turn_back(y)
        return project_out(self.c_proj, y, v, x, plan)


class LatentAttention(nn.Module):
    """Multi-head latent attention (DeepSeek-AI 2024, arXiv 2405.04434): keys and values of all
    heads are computed from one latent vector per token, and the cache stores only that.

    A query head has `head_width` columns that are compared with the latent, and qk_rope_head_dim
    columns that the scheme turns; all heads share the turned columns of the keys. If there are
    none, the scheme must act on scores or embeddings.
    """

    def __init__(self, config: GPTConfig, layer: int):
        super().__init__()
        self.layer = layer
        self.n_head = config.n_head
        self.head_width = config.head_width
        rank = config.kv_lora_rank
        turned_width = config.qk_rope_head_dim
        self.widths = [rank, turned_width]  # of what c_latent gives
        self.scale = 1 / math.sqrt(self.head_width + turned_width)
        all_heads = config.n_head * self.head_width
        q_width = all_heads + config.n_head * turned_width
        self.c_query = nn.Linear(config.n_embd, q_width, bias=config.bias)
        self.c_latent = Fused(config.n_embd, self.widths, config.bias)
        # DeepSeek's eps, whatever that of the other norms is
        self.kv_norm = new_norm(replace(config, norm_eps=1e-6), rank)
        # keys and values, head by head
        self.c_up = Fused(rank, 2 * [self.head_width], False, config.n_head)
        self.c_proj = nn.Linear(all_heads, config.n_embd, bias=config.bias)

    def forward(self, x, plan, cache):
        """As `Attention.forward`. With a cache, latents are not expanded into keys and values: the
        up-projections are applied to the queries and to the result instead.
        """
        # (B, H, Q, head width + turned width)
        q = self.c_query(x[:, -plan.n_queries :]).unflatten(-1, (self.n_head, -1)).transpose(1, 2)
        # the latent of each token (B, T, rank), and the columns to be turned, which all heads share
        new_latents, turned = self.c_latent(x).split(self.widths, -1)
        new_latents = apply_norm(self.kv_norm, new_latents)
        k = torch.cat((new_latents, turned), -1)[:, None]  # (B, 1, T, rank + turned width)
        if not plan.regions:
            q, k = plan.turn(q, k)
        # of all S tokens, rounded if the cache packs them
        all_k = with_cached(cache, self.layer, "k", k, plan.pack_piece)
        latents, turned = all_k.split(self.widths, -1)
        features = all_features(x, plan, cache, self.layer)
        # the up-projections from latents to keys and values, (H, head width, rank) each
        up_k, up_v = self.c_up.weight.unflatten(0, (self.n_head, -1)).split(self.head_width, 1)
        if cache is None:  # keys and values of every head, (B, H, S, .)
            k = torch.cat((latents @ up_k.mT, turned.expand(-1, self.n_head, -1, -1)), -1)
            v = latents @ up_v.mT
            y = attend(q, k, v, plan, self.scale, features)
        else:  # latents as one key and value head, (B, 1, S, .): q.(up_k l) = (q up_k).l
            q = torch.cat((q[..., : self.head_width] @ up_k, q[..., self.head_width :]), -1)
            y = attend(q, all_k, latents, plan, self.scale, features) @ up_v.mT
        new_v = new_latents[:, None] @ up_v.mT if plan.output_piece else None
        return project_out(self.c_proj, y, new_v, x, plan)


def all_features(x, plan, cache, layer):
    """Features (B, S, M) of all tokens so far, cached beside the keys; None if no piece has any.

    Those of the new tokens are computed from the layer's input x (B, T, C).
    """
    if plan.features_piece is None:
        return None
    with no_autocast(x):
        features = plan.features_piece.features(upcast(x))[:, None]  # (B, 1, T, M)
    return with_cached(cache, layer, "features", features, None)[:, 0]


def project_out(c_proj, y, v, x, plan):
    """The output (B, Q, C) of an attention layer, from the outputs y (B, H, Q, D) of its heads.

    A piece may change y first, given the values v of the T new tokens and the layer's input
    x (B, T, C). The queries are the last Q of these tokens.
    """
    if plan.output_piece:
        with no_autocast(x):
            v = upcast(for_each_head(y, v)[:, :, -plan.n_queries :])
            x = upcast(x[:, -plan.n_queries :])
            y = plan.output_piece.output(upcast(y), v, x).to(y.dtype)
    return c_proj(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Two linear layers with a GELU between them; or SwiGLU, with gates and values in the first."""

    def __init__(self, config: GPTConfig, layer: int):
        super().__init__()
        self.layer = layer
        self.kind = config.mlp
        width = config.mlp_width
        widths = [width, width] if config.mlp == "swiglu" else [width]
        self.c_fc = Fused(config.n_embd, widths, config.bias)
        self.c_proj = nn.Linear(width, config.n_embd, bias=config.bias)

    def forward(self, x, plan, cache):
        """(B, T, C) -> (B, T, C)."""
        x = mixed(self.c_fc(x), "hidden", plan, cache, self.layer)
        if self.kind == "swiglu":
            gates, values = x.chunk(2, -1)
            x = F.silu(gates) * values
        else:
            x = F.gelu(x, approximate="tanh" if self.kind == "gelu" else "none")
        return self.c_proj(x)


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)).

    With parallel_blocks both read the same x. With norm_place=after: x + norm(attention(x)), then
    x + norm(mlp(x)).
    """

    def __init__(self, config: GPTConfig, layer: int):
        super().__init__()
        self.layer = layer
        kind = LatentAttention if config.kv_lora_rank else Attention
        self.ln_1 = new_norm(config, config.n_embd)
        self.attn = kind(config, layer)
        self.ln_2 = new_norm(config, config.n_embd)
        self.mlp = MLP(config, layer)
        self.norm_place = config.norm_place
        self.parallel_blocks = config.parallel_blocks

    def forward(self, x, plan, cache):
        """x (B, T, C) -> (B, Q, C) for the plan's Q queries, the last of the T tokens."""
        norm_after = self.norm_place == "after"
        y = x if norm_after else self.ln_1(x)
        y = self.attn(mixed(y, "input", plan, cache, self.layer), plan, cache)
        if norm_after:
            y = self.ln_1(y.to(x.dtype))
        y = mixed(y, "branch", plan, cache, self.layer)
        x = x[:, -y.shape[1] :]  # y is of the queries alone
        attended = x + F.dropout(y, plan.options.dropout)  # 0 unless the model is in training
        y = x if self.parallel_blocks else attended
        if not norm_after:
            y = self.ln_2(y)
        y = self.mlp(mixed(y, "mlp", plan, cache, self.layer), plan, cache)
        if norm_after:
            y = self.ln_2(y.to(x.dtype))
        y = mixed(y, "mlp_branch", plan, cache, self.layer)
        return attended + F.dropout(y, plan.options.dropout)


# ---- the model


class GPT(nn.Module):
    """A GPT whose position encoding is the scheme `config.pos`.

    `pos_file` is a Python file that defines schemes of the user's own. `folder` is looked in first
    for the files that options of `config.extend` name.
    """

    def __init__(
        self, config: GPTConfig, pos_file: str | Path | None = None, folder: Path | None = None
    ):
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.h = nn.ModuleList(Block(config, n) for n in range(config.n_layer))
        self.ln_e = new_norm(config, config.n_embd) if config.embedding_norm else nn.Identity()
        self.ln_f = new_norm(config, config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        if config.tie_embeddings:
            self.lm_head.weight = self.wte.weight
        self.apply(self._init_weights)
        # of the vectors that a piece may mix
        widths = dict.fromkeys(("embedding", "input", "branch", "mlp", "mlp_branch"), config.n_embd)
        widths["hidden"] = self.h[0].mlp.c_fc.out_features
        if not config.kv_lora_rank:
            widths |= zip("qkv", self.h[0].attn.widths, strict=True)
        shape = Shape(
            n_head=config.n_head,
            turned_width=config.turned_width,
            width=config.n_embd,
            first_length=config.first_length,
            latent=config.kv_lora_rank is not None,
            widths=widths,
        )
        self.pos = Scheme(config.pos, shape, config.n_layer, Catalogue(pos_file))
        self.pos.extend(config.extend, folder)
        self.config = replace(config, pos=self.pos.text, extend=self.pos.extend_text)
        self.options = Options()  # of attention; `Compute.place` sets those of a device

    def _init_weights(self, module):
        """GPT-2's initialisation, scaled to the width of the model (`init_std`).

        Projections into the residual stream get 1 / sqrt(2 n_layer) of that.
        """
        std = init_std(self.config.n_embd)
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=std)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
        # apply() visits children first: this replaces what c_proj got above
        if isinstance(module, Attention | LatentAttention | MLP):
            nn.init.normal_(module.c_proj.weight, std=std / math.sqrt(2 * self.config.n_layer))

    @property
    def parameter_count(self) -> int:
        """The number of parameters; a tied embedding is counted once."""
        return sum(p.numel() for p in self.parameters())

    # ---- positions

    def drop_positions(self) -> None:
        """Replace the scheme by nope. Only the weights of the old scheme are dropped."""
        self.pos = Scheme("nope", self.pos.shape, self.config.n_layer).to(self.wte.weight.device)
        self.config = replace(self.config, pos="nope", extend="")

    # ---- forward

    def current_options(self) -> Options:
        """The options of attention, with what the model is and does now."""
        return replace(
            self.options,
            dtype=torch.promote_types(self.wte.weight.dtype, torch.float32),
            head_width=self.config.head_width,
            dropout=self.config.dropout if self.training else 0.0,
            on_gpu=self.wte.weight.is_cuda,
            compiled=torch.compiler.is_compiling(),
            has_gradients=torch.is_grad_enabled(),
            is_deterministic=torch.are_deterministic_algorithms_enabled(),
        )

    def hidden(self, idx, cache=None, window=None, n_queries=None, starts=None):
        """The final hidden states (B, T, C) of tokens idx (B, T), or only those of the last
        `n_queries`. `window` limits keys to i - j < window, `starts` (B, T) cut texts into
        documents.
        """
        options = self.current_options()
        tokens = cache.tokens_with(idx) if cache else idx  # all so far, (B, S)
        total = cache.length if cache else idx.shape[1]  # of the whole text
        pass_ = self.pos.plan_pass(tokens, idx.shape[1], total, options, window, n_queries, starts)
        x = self.ln_e(self.wte(idx[:, pass_.skip :]))
        if pass_.embedded is not None:
            x = x + pass_.embedded.to(x.dtype)
        x = mixed(x, "embedding", pass_.plans[0], cache, 0)
        x = F.dropout(x, options.dropout)
        for block, plan in zip(self.h, pass_.plans, strict=True):
            x = block(x, plan, cache)
        if cache:
            cache.tokens = tokens
            cache.n += idx.shape[1]
        return self.ln_f(x[:, -(n_queries or x.shape[1]) :])

    def logits(self, idx: Tensor, cache: Cache | None = None) -> Tensor:
        """The logits (B, T, V) of tokens idx (B, T). With a cache, idx are the next tokens after
        those in it, and are added to it.
        """
        return self.lm_head(self.hidden(idx, cache))

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Tokens idx (B, T) -> (logits, loss).

        With targets (B, T), of which -1 is ignored: logits (B, T, V) and the mean loss in nats.
        Without targets the loss is None, and logits (B, 1, V) are those of the last position.
        """
        if targets is None:
            return self.lm_head(self.hidden(idx)[:, -1:]), None
        logits = self.logits(idx)
        flat = logits.float().flatten(0, 1)
        return logits, F.cross_entropy(flat, targets.flatten(), ignore_index=-1)

    def losses(
        self,
        idx: Tensor,
        targets: Tensor,
        *,
        window: int | None = None,
        documents: bool = False,
    ) -> Tensor:
        """The loss in nats of each target, (B, t) in float32, and 0 where the target is -1.

        targets (B, t) are those of the last t of the tokens idx (B, T). `window` limits keys to
        i - j < window in every layer. What no target depends on is not computed: earlier queries
        of the last layer, and tokens that windows hide from all targets.

        With `documents`, t = T, and a target of -1 ends a document: attention does not see across
        it, and positions restart after it.
        """
        n_queries = targets.shape[1]
        starts = None
        if documents:
            after = torch.arange(1, n_queries, device=idx.device)
            starts = F.pad(after * (targets[:, :-1] < 0), (1, 0)).cummax(1).values
        x = self.hidden(idx, window=window, n_queries=n_queries, starts=starts)
        x = x.flatten(0, 1)  # (B t, C)
        wanted = targets.flatten()

        def losses_of(x, wanted):
            logits = self.lm_head(x).float()
            return F.cross_entropy(logits, wanted, ignore_index=-1, reduction="none")

        max_bytes = 8 * LOGIT_BYTES if x.is_cuda else LOGIT_BYTES
        size = max(1, max_bytes // (4 * self.config.vocab_size))  # targets of a block
        most = 8 * size if torch.is_grad_enabled() else size
        if len(x) <= most:
            return losses_of(x, wanted).view_as(targets)
        # to save memory, logits are computed a block at a time, and again in the backward pass
        losses = []
        for block in zip(x.split(size), wanted.split(size), strict=True):
            losses.append(checkpoint(losses_of, *block, use_reentrant=False))
        return torch.cat(losses).view_as(targets)

    def losses_and_hits(self, idx: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """For each target that is not -1: its loss in nats, and whether it is the likeliest token.

        idx and targets are (B, T). Returns (K,) and (K,) for the K such targets, row by row.
        """
        is_scored = targets >= 0
        logits = self.lm_head(self.hidden(idx)[is_scored]).float()
        wanted = targets[is_scored]
        return F.cross_entropy(logits, wanted, reduction="none"), logits.argmax(-1) == wanted

    @torch.no_grad()
    def path_of(
        self, length: int, window: int | None = None, new: int | None = None, **options: bool
    ) -> str:
        """The path that attention takes in a test of `length` tokens: "fused", or "fused|added" if
        layers differ.

        In decoding, the `new` last of them are computed. In a compiled training step, `options` are
        compiled=True, has_gradients=True.
        """
        tokens = torch.zeros(1, length, dtype=torch.long, device=self.wte.weight.device)
        options = replace(self.current_options(), **options)
        plans = self.pos.plan_pass(tokens, new or length, length, options, window).plans
        return "|".join(dict.fromkeys(plan.path for plan in plans))

    # ---- generation

    @torch.no_grad()
    def stream(
        self,
        idx: Tensor,
        max_new_tokens: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Iterator[Tensor]:
        """Continue idx (B, T): yield the next tokens (B, 1) one at a time.

        Logits are divided by the temperature; with 0 the likeliest token is taken. Only the top_k
        likeliest tokens are kept. If the scheme has fewer than T + max_new_tokens positions, each
        step re-encodes the last `pos.limit` tokens.
        """
        total = idx.shape[1] + max_new_tokens
        limit = self.pos.limit
        must_crop = limit is not None and total > limit
        cache = None if must_crop else Cache(idx.shape[0], total)
        new = idx
        for _ in range(max_new_tokens):
            if must_crop:
                new = idx[:, -limit:]
            logits = self.lm_head(self.hidden(new, cache)[:, -1]).float()  # (B, V)
            if temperature < 1e-30:  # float32 cannot divide by so little
                new = logits.argmax(-1, keepdim=True)
            else:
                logits = logits / temperature
                if top_k is not None:
                    kth = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
                    logits = logits.masked_fill(logits < kth, -torch.inf)
                new = torch.multinomial(logits.softmax(-1), 1, generator=generator)
            idx = torch.cat((idx, new), 1)
            yield new

    def generate(self, idx: Tensor, max_new_tokens: int, *args: object, **kwargs: object) -> Tensor:
        """idx (B, T) -> (B, T + max_new_tokens): idx with its continuation by `stream`."""
        return torch.cat((idx, *self.stream(idx, max_new_tokens, *args, **kwargs)), 1)
