"""The GPT in one file: a plain pre-norm transformer that knows of positions only what a Scheme
tells it.

m = GPT(GPTConfig(block_size=64, vocab_size=256, n_layer=2, n_head=4, n_embd=64, pos="rope"))
logits, loss = m(idx, targets)           # (B, T, V), scalar: mean nats
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import attention
import families
from cache import Cache, keep
from configurable import GPTConfig, UserError, require
from latent import LatentAttention, refuse_own_columns
from posenc import Shape, Text, start_deviation
from positions.scheme import Plan, Scheme

__all__ = ["GPT", "Cache", "GPTConfig", "without_padding"]

LOGIT_BYTES = 64 * 2**20  # losses() forms logits in blocks of at most this
LOSS_BYTES = 512 * 2**20  # and training, where each block is formed again in the backward pass
CARD_SHARE = 8  # on a GPU training forms all at once, if they take at most an eighth of its memory


def new_norm(config: GPTConfig, width: int) -> nn.Module:
    """A norm of the kind that is set, over the last `width` columns."""
    if config.norm == "rmsnorm":
        return nn.RMSNorm(width, eps=config.norm_eps)
    return nn.LayerNorm(width, eps=config.norm_eps, bias=config.bias)


class Attention(nn.Module):
    """Causal self-attention. Several heads of queries may share one of keys and values."""

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.dropout, width = layer, config.dropout, config.head_width
        self.widths = [n * width for n in (config.n_head, config.kv_heads, config.kv_heads)]
        self.head_width, self.group = width, config.n_head // config.kv_heads
        self.c_attn = nn.Linear(config.n_embd, sum(self.widths), bias=config.bias)
        self.c_proj = nn.Linear(self.widths[0], config.n_embd, bias=config.bias)
        if config.qk_norm:
            self.q_norm, self.k_norm = (new_norm(config, width) for _ in "qk")
        self.qk_norm = config.qk_norm

    def project(self, x: Tensor, plan: Plan) -> tuple[Tensor, ...]:
        """Queries, keys and values (B, heads, T, D) of x (B, T, C), turned, and what a scorer
        keeps: features (B, 1, T, M), the fourth of them if there are any.
        """
        parts = self.c_attn(x).split(self.widths, -1)
        q, k, v = (t.unflatten(-1, (-1, self.head_width)).transpose(1, 2) for t in parts)
        if self.qk_norm:
            wide = self.q_norm.weight.dtype
            q, k = self.q_norm(q.to(wide)).to(v.dtype), self.k_norm(k.to(wide)).to(v.dtype)
        if plan.by_head:  # the keys of a group are no longer alike when they are turned
            k, v = (t.repeat_interleave(self.group, 1) for t in (k, v))
        if plan.turns:
            turn_queries, turn_keys = plan.turns
            q, k = turn_queries(q), turn_keys(k)
        return q, k, v, *plan.features(x)

    def forward(self, x: Tensor, prepared: attention.Prepared, cache: Cache | None) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        q, k, v, *features = self.project(x, prepared.plan)
        keeper = prepared.plan.keeper
        k, v = (keep(cache, (self.layer, name), t, keeper) for name, t in (("k", k), ("v", v)))
        features = [keep(cache, (self.layer, "features"), t) for t in features]
        y = attention.attend(q, k, v, prepared, self.dropout if self.training else 0.0, *features)
        return F.dropout(self.c_proj(y.transpose(1, 2).flatten(2)), self.dropout, self.training)


def new_attention(config: GPTConfig, layer: int) -> nn.Module:
    """Attention with keys and values of its own, or made of a latent."""
    if config.kv_lora_rank is None:
        return Attention(config, layer)
    exact = replace(config, norm_eps=1e-6)  # of DeepSeek's latent, whatever that of the others is
    return LatentAttention(config, layer, new_norm(exact, config.kv_lora_rank))


class MLP(nn.Module):
    """Two layers with a GELU between them, or SwiGLU: the first layer has gates and values."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.dropout, self.kind, width = config.dropout, config.mlp, config.mlp_width
        first = 2 * width if config.mlp == "swiglu" else width
        self.c_fc = nn.Linear(config.n_embd, first, bias=config.bias)
        self.c_proj = nn.Linear(width, config.n_embd, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        x = self.c_fc(x)
        if self.kind == "swiglu":
            gates, values = x.chunk(2, -1)
            x = F.silu(gates) * values
        else:
            x = F.gelu(x, approximate="tanh" if self.kind == "gelu" else "none")
        return F.dropout(self.c_proj(x), self.dropout, self.training)


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); or both of the same x, side by side."""

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        self.ln_1 = new_norm(config, config.n_embd)
        self.attn = new_attention(config, layer)
        self.ln_2 = new_norm(config, config.n_embd)
        self.mlp = MLP(config)
        self.parallel = config.parallel_blocks

    def forward(self, x: Tensor, prepared: attention.Prepared, cache: Cache | None) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        attended = x + self.attn(self.ln_1(x), prepared, cache)
        return attended + self.mlp(self.ln_2(x if self.parallel else attended))


class GPT(nn.Module):
    """A GPT whose positions are those of the scheme `config.pos`.

    `pos_file` is a Python file with schemes of the user's own.
    """

    def __init__(self, config: GPTConfig, pos_file: str | Path | None = None) -> None:
        super().__init__()
        self.config = config = config.checked()  # one made in Python may hold anything
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.h = nn.ModuleList(Block(config, n) for n in range(config.n_layer))
        self.ln_e = new_norm(config, config.n_embd) if config.embedding_norm else nn.Identity()
        self.ln_f = new_norm(config, config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        if config.tie_embeddings:
            self.lm_head.weight = self.wte.weight
        self.apply(self._initialise)
        self.set_scheme(config.pos, pos_file)
        self.extend(config.extend)

    def _initialise(self, module: nn.Module) -> None:
        """GPT-2's at its width; over sqrt(2 n_layer) where a block writes to the residual."""
        deviation = start_deviation(self.config.n_embd)
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=deviation)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)
        if hasattr(module, "c_proj"):
            deviation = deviation / math.sqrt(2 * self.config.n_layer)
            nn.init.normal_(module.c_proj.weight, std=deviation)

    # ---- positions

    def set_scheme(self, pos: str, pos_file: str | Path | None = None) -> None:
        """Take another position scheme, which initialises itself; everything else stays."""
        c = self.config
        shape = Shape(c.n_head, c.scheme_width, c.n_embd, c.block_size)
        self.pos = Scheme(pos, shape, c.n_layer, Path(pos_file) if pos_file else None)
        if c.kv_lora_rank is not None:
            refuse_own_columns(self.pos)
        self.config = replace(c, pos=self.pos.text, extend="")

    def extend(self, text: str, folder: Path | None = None) -> None:
        """Activate an `extend` expression, in place of any other; "" for none.

        Files that it names are looked for in `folder` first.
        """
        self.pos.extend(text, folder)
        self.pos.to(self.wte.weight.device)
        self.config = replace(self.config, extend=self.pos.extension)

    def extension_at(self, total: int) -> dict[str, str | float | None]:
        """{"extend", "factor"}: the active extension, and its factor in a text of `total`."""
        return {"extend": self.pos.extension or None, "factor": self.pos.factor(total)}

    @property
    def limit(self) -> int | None:
        """The longest total length that the position scheme defines; None: any."""
        return self.pos.limit

    def check_length(self, total: int) -> None:
        """Raise UserError where the position scheme does not define a text of `total` tokens."""
        self.pos.check_length(total)

    def draw_ids(self, seed: int, step: int, length: int) -> Tensor | None:
        """Random position ids (length,) of a training step, for `ids`; None where it has none."""
        return self.pos.draw(seed, step, length)

    def attention_path(self, length: int, window: int | None = None, compiled: bool = False) -> str:
        """How attention is computed at that length, e.g. "fused"; "fused|dense" where layers
        differ.
        """
        index = torch.arange(length, device=self.wte.weight.device)
        plans = self.pos.plans(index, index, index, length, self._like())
        about = self.config.n_head, compiled, self.config.dropout
        paths = [attention.choose_path(limited(plan, window), *about) for plan in plans]
        return "|".join(dict.fromkeys(paths))

    def _like(self) -> Tensor:
        """An empty tensor with the device and dtype (float32 or wider) of what positions make."""
        weight = self.wte.weight
        return weight.new_empty(0, dtype=torch.promote_types(weight.dtype, torch.float32))

    # ---- forward

    @property
    def parameter_count(self) -> int:
        """The number of trained numbers, a tied embedding counted once."""
        return sum(p.numel() for p in self.parameters())

    def _hidden(
        self,
        idx: Tensor,
        positions: Tensor | None = None,
        ids: Tensor | None = None,
        cache: Cache | None = None,
        window: int | None = None,
    ) -> Tensor:
        """The last hidden states (B, T, C) of tokens idx (B, T)."""
        self._check_lengths(idx, cache, window)
        offset, total = (cache.n, cache.length) if cache else (0, idx.shape[1])
        index = places = torch.arange(offset, offset + idx.shape[1], device=idx.device)
        if positions is not None:
            places = checked("positions", positions, idx).long()
        tokens, chosen = idx, positions is not None
        if cache:
            tokens, places = cache.joined(idx, places)
            chosen = chosen or cache.chosen
        if chosen:
            ascending = (places.diff(dim=-1) >= 0).all() and (places >= 0).all()
            require(bool(ascending), "positions must not decrease or be negative")
        key_ids = self.pos.ids(places, total) if ids is None else checked("ids", ids, idx)
        drawn = ids is not None and ids.device.type != "cpu"  # checked before it came there
        if (chosen or key_ids is not places) and not drawn and not torch.compiler.is_compiling():
            self.pos.check_ids(key_ids)
        query_ids = key_ids[..., -idx.shape[1] :]
        x = self.ln_e(self.wte(idx))
        embedded = self.pos.embed(query_ids, Text(tokens, total))
        if embedded is not None:
            x = x + embedded.to(x.dtype)
        x = F.dropout(x, self.config.dropout, self.training)
        like, n_head = self._like(), self.config.n_head
        plans = self.pos.plans(index, query_ids, key_ids, total, like)
        about = n_head, like, self.config.dropout * self.training
        prepared = [attention.prepare(limited(plan, window), *about) for plan in plans]
        for block, number in zip(self.h, self.pos.set_of_layer, strict=True):
            x = block(x, prepared[number], cache)
        if cache:
            cache.tokens, cache.positions, cache.chosen = tokens, places, chosen
            cache.n += idx.shape[1]
        return self.ln_f(x)

    def _check_lengths(self, idx: Tensor, cache: Cache | None, window: int | None) -> None:
        """Raise UserError for lengths that are not defined, before anything is computed."""
        require(idx.dim() == 2, f"tokens must have the shape (B, T), not {tuple(idx.shape)}")
        texts, new = idx.shape
        if cache:
            made, total = "the cache was made for", cache.n + new
            if total > cache.length:  # with `require` code would be compiled for each total
                raise UserError(f"{made} {cache.length} tokens, not {total}")
            require(texts == cache.batch, f"{made} {cache.batch} texts, not {texts}")
        self.check_length(cache.length if cache else new)
        require(window is None or window > 0, f"a window of {window} tokens holds no key")

    def forward(
        self,
        idx: Tensor,
        targets: Tensor | None = None,
        *,
        positions: Tensor | None = None,
        ids: Tensor | None = None,
        cache: Cache | None = None,
        loss_only: bool = False,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Tokens idx (B, T) -> logits and loss.

        With targets (B, T), where -1 is ignored: logits (B, T, V) and the mean loss in nats.
        `loss_only` leaves out logits that take much memory: None.
        Without them: logits (B, 1, V) of the last position, or with a cache (B, T, V) of all tokens
        given, which are appended to it. `positions` (T,) or (B, T) replace 0 ... T - 1 before any
        piece that changes ids. `ids` are a training step's own draw (`draw_ids`), used as they are.
        """
        x = self._hidden(idx, positions, ids, cache)
        if targets is None:
            return self.lm_head(x if cache else x[:, -1:]), None
        most = LOSS_BYTES
        if x.is_cuda:
            most = torch.cuda.get_device_properties(x.device).total_memory // CARD_SHARE
        if loss_only and 4 * targets.numel() * self.config.vocab_size > most:
            return None, self._nats(x, targets, LOSS_BYTES).sum() / (targets >= 0).sum()
        logits = self.lm_head(x)
        flat = logits.float().flatten(0, 1)
        return logits, F.cross_entropy(flat, targets.flatten(), ignore_index=-1)

    def _nats(self, x: Tensor, targets: Tensor, at_once: int) -> Tensor:
        """(B T,) float32 nats of targets (B, T) by hidden states x (B, T, C).

        Logits are formed in blocks of so many bytes, and again in the backward pass.
        """

        def nats(hidden: Tensor, wanted: Tensor) -> Tensor:
            logits = self.lm_head(hidden).float()
            return F.cross_entropy(logits, wanted, ignore_index=-1, reduction="none")

        rows = max(1, at_once // (4 * self.config.vocab_size))
        rows -= rows % 256 if rows > 256 else 0  # a GPU forms products in pieces of such sizes
        again = partial(checkpoint, nats, use_reentrant=False) if torch.is_grad_enabled() else nats
        blocks = zip(x.flatten(0, 1).split(rows), targets.flatten().split(rows), strict=True)
        return torch.cat([again(*block) for block in blocks])

    def losses(
        self,
        idx: Tensor,
        targets: Tensor,
        *,
        positions: Tensor | None = None,
        window: int | None = None,
    ) -> Tensor:
        """(B, T) float32 nats of each target, 0 where it is -1.

        `window` limits keys to i - j < window in every layer.
        """
        x = self._hidden(idx, positions, window=window)
        at_once = LOSS_BYTES if x.is_cuda else LOGIT_BYTES
        return self._nats(x, targets, at_once).view_as(targets)

    def answers(self, idx: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Of each target that is not -1: its loss in nats, and whether it is the likeliest token.

        idx and targets are (B, T); the K targets stand in the order of their texts: (K,), (K,).
        """
        scored = targets >= 0
        logits = self.lm_head(self._hidden(idx)[scored]).float()
        wanted = targets[scored]
        return F.cross_entropy(logits, wanted, reduction="none"), logits.argmax(-1) == wanted

    # ---- generation

    def new_cache(self, batch: int, length: int) -> Cache:
        """A cache for `batch` texts that will reach `length` tokens in all."""
        self.check_length(length)
        return Cache(batch, length)

    @torch.no_grad()
    def cache_bytes(self) -> int:
        """Bytes that a cache keeps of each token, in the number format of the code around it."""
        cache, token = self.new_cache(1, 1), torch.zeros(1, 1, dtype=torch.long)
        self(token.to(self.wte.weight.device), cache=cache)
        return cache.bytes_per_token

    @torch.no_grad()
    def stream(
        self, idx: Tensor, max_new_tokens: int, logs: list[Tensor] | None = None, **how: Any
    ) -> Iterator[Tensor]:
        """Continue idx (B, T): yield the next tokens (B, 1) one at a time; for `how` see `pick`.

        The logarithms of the model's probabilities of them, (B, 1), are put into `logs`. A scheme
        whose positions end before T + max_new_tokens goes on from its last `limit` tokens, encoded
        again each time. After `compile()` all steps but the first, which reads idx, are compiled.
        """
        total = idx.shape[1] + max_new_tokens
        bounded = self.limit is not None and total > self.limit
        cache = None if bounded else self.new_cache(idx.shape[0], total)
        new, step = idx, self.forward
        for _ in range(max_new_tokens):
            logits, _ = step(idx[:, -self.limit :]) if bounded else step(new, cache=cache)
            step = self
            logits = logits[:, -1].float()
            new = pick(logits, idx, **how)
            idx = torch.cat((idx, new), 1)
            if logs is not None:
                logs.append(logits.log_softmax(-1).gather(1, new))
            yield new

    def generate(self, idx: Tensor, max_new_tokens: int, **how: Any) -> Tensor:
        """(B, T) -> (B, T + max_new_tokens): idx and its continuation; for `how` see `pick`.

        For texts of several lengths see `without_padding`.
        """
        return torch.cat((idx, *self.stream(idx, max_new_tokens, **how)), 1)

    @classmethod
    def from_huggingface(cls, source: Any) -> "GPT":
        """A model of `transformers`, given as itself, a folder or a name: see families.toml."""
        config, label = families.read_config(source), families.label_of(source)
        model = cls(families.settings_of(config, label))
        families.fill(model, config, families.read_weights(source), label)
        return model


def checked(name: str, given: Tensor, idx: Tensor) -> Tensor:
    """Positions or ids for tokens idx (B, T): (T,) or (B, T), real numbers; UserError otherwise."""
    whole = not (given.is_floating_point() or given.is_complex() or given.dtype == torch.bool)
    real = name == "ids" and given.is_floating_point()  # the scheme says whether it takes these
    shapes = (tuple(idx.shape[1:]), tuple(idx.shape))
    good = (whole or real) and tuple(given.shape) in shapes
    require(good, f"{name} must be integers of shape {shapes[0]} or {shapes[1]}")
    return given


def without_padding(run: Callable[[Tensor], Tensor], idx: Tensor, padding: Tensor) -> Tensor:
    """run(texts (b, t)) -> (b, n, ...) for texts idx (B, T), the first padding (B,) tokens of which
    are no text: texts of one length at once and without them, so that no position moves.

    Results end at the same place, with zeros before the shorter ones: (B, N, ...).
    """
    whole = not padding.is_floating_point() and padding.dtype != torch.bool
    one = "padding must be one integer for each text: how many tokens on its left are none"
    require(whole and padding.shape == idx.shape[:1], one)
    kept = idx.shape[1] - padding
    require(bool((kept > 0).all() and (padding >= 0).all()), "padding leaves nothing of a text")
    whole = None
    for length in kept.unique().flip(0).tolist():  # the longest first
        rows = (kept == length).nonzero()[:, 0]
        found = run(idx[rows, -length:])
        whole = found.new_zeros(len(idx), *found.shape[1:]) if whole is None else whole
        whole[rows, -found.shape[1] :] = found
    return whole


def limited(plan: Plan, window: int | None) -> Plan:
    """The plan with keys limited to i - j < window as well."""
    if window is None:
        return plan
    span = min(plan.span or (window, 0), (window, 0))
    return replace(plan, masks=(*plan.masks, lambda i, j: i - j < window), span=span)


def pick(
    logits: Tensor,
    seen: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw the next tokens (B, 1) from logits (B, V) that stand after the tokens `seen` (B, T).

    Positive logits of tokens seen are divided by the penalty, others multiplied (Keskar et al.
    2019). All are divided by the temperature; 0 takes the likeliest. Then only the top_k likeliest
    stay, of these the likeliest whose probabilities reach top_p, and of these the tokens that are
    at least min_p times as likely as the likeliest. UserError where nothing would stay.
    """
    good = (top_k is None or top_k > 0) and (min_p is None or min_p <= 1) and repetition_penalty > 0
    require(good, "top_k and repetition_penalty must be above 0, and min_p at most 1")
    if repetition_penalty != 1.0:
        known = logits.gather(1, seen)
        less = torch.where(known > 0, known / repetition_penalty, known * repetition_penalty)
        logits = logits.scatter(1, seen, less)
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    logits = logits - logits.amax(-1, keepdim=True)  # the likeliest is 0: nothing overflows
    logits = logits / max(temperature, 1e-6)
    if top_k is not None:
        kth = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)
    probabilities = logits.softmax(-1)
    if top_p is not None:
        ordered, order = probabilities.sort(descending=True)
        before = ordered.cumsum(-1) - ordered
        beyond = before >= max(top_p, 1e-30)  # the token that crosses top_p stays
        unlikely = torch.zeros_like(beyond).scatter(1, order, beyond)
        probabilities = probabilities.masked_fill(unlikely, 0.0)
    if min_p is not None:
        least = min_p * probabilities.amax(-1, keepdim=True)
        probabilities = probabilities.masked_fill(probabilities < least, 0.0)
    return torch.multinomial(probabilities, 1, generator=generator)
