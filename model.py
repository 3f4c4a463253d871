"""The GPT, in one file: nanoGPT's plain pre-norm transformer, which knows of positions only what posenc tells it.

m = GPT(GPTConfig(block_size=64, vocab_size=256, n_layer=2, n_head=4, n_embd=64, pos="rope"))
logits, loss = m(idx, targets)           # (B, T, V), scalar: mean nats
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import attention
from configurable import GPTConfig, require
from posenc import Shape, Text, answers
from positions.scheme import Plan, Scheme

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel

__all__ = ["GPT", "Cache", "GPTConfig"]

LOGIT_BYTES = 64 * 2**20  # losses() forms logits in blocks of at most this


class Cache:
    """Keys and values of the tokens seen so far; `length` is the total length that will be reached, fixed up front."""

    def __init__(self, batch: int, length: int) -> None:
        self.batch, self.length, self.n = batch, length, 0
        self.ids: Tensor | None = None  # (n,) or (B, n) position ids
        self.last: Tensor | None = None  # (1,) or (B, 1), the last of the positions that were given
        self.tokens: Tensor | None = None  # (B, n)
        self.layers: dict[
            int, tuple[Tensor, ...]
        ] = {}  # layer -> k, v (B, H, length, D) and features (B, 1, length, M)

    def extend_ids(self, ids: Tensor) -> Tensor:
        """Append the ids of new tokens; return those of all tokens."""
        if self.ids is not None:
            both = max(self.ids.dim(), ids.dim())  # ids for all and ids for each may take turns
            held, ids = (t.expand(self.batch, -1) if t.dim() < both else t for t in (self.ids, ids))
            ids = torch.cat((held, ids), -1)
        self.ids = ids
        return ids

    def extend_tokens(self, idx: Tensor) -> Tensor:
        """Append new tokens (B, t); return all."""
        self.tokens = idx if self.tokens is None else torch.cat((self.tokens, idx), 1)
        return self.tokens

    def append(self, layer: int, *new: Tensor) -> tuple[Tensor, ...]:
        """Write what a layer keeps of t tokens, (B, ..., t, D) each, behind that of the n held; return that of all n + t."""
        if layer not in self.layers:
            self.layers[layer] = tuple(
                t.new_empty((*t.shape[:2], self.length, t.shape[3])) for t in new
            )
        stop = self.n + new[0].shape[2]
        for held, t in zip(self.layers[layer], new, strict=True):
            held[:, :, self.n : stop] = t
        return tuple(held[:, :, :stop] for held in self.layers[layer])


class Attention(nn.Module):
    """Multi-head causal self-attention."""

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.n_head, self.dropout = layer, config.n_head, config.dropout
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)

    def forward(self, x: Tensor, prepared: attention.Prepared, cache: Cache | None) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        q, k, v = (
            t.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for t in self.c_attn(x).chunk(3, -1)
        )  # (B, H, T, D)
        plan, features = prepared.plan, []
        if plan.turns:
            q, k = plan.turns[0](q), plan.turns[1](k)
        if plan.scorer is not None and answers(plan.scorer, "features"):
            features = [plan.scorer.features(x)[:, None]]  # (B, 1, T, M)
        if cache is not None:
            k, v, *features = cache.append(self.layer, k, v, *features)
        y = attention.attend(q, k, v, prepared, self.dropout if self.training else 0.0, *features)
        return F.dropout(self.c_proj(y.transpose(1, 2).flatten(2)), self.dropout, self.training)


class MLP(nn.Module):
    """Two layers with GPT-2's GELU (the tanh form)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        return F.dropout(
            self.c_proj(F.gelu(self.c_fc(x), approximate="tanh")), self.dropout, self.training
        )


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.attn = Attention(config, layer)
        self.ln_2 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, prepared: attention.Prepared, cache: Cache | None) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        x = x + self.attn(self.ln_1(x), prepared, cache)
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """A GPT whose positions are told by `config.pos`; `pos_file` is a Python file with schemes of the user's own."""

    def __init__(self, config: GPTConfig, pos_file: str | Path | None = None) -> None:
        super().__init__()
        require(
            config.n_embd % config.n_head == 0,
            f"n_embd = {config.n_embd} is not divisible by n_head = {config.n_head}",
        )
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.h = nn.ModuleList(Block(config, n) for n in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight
        self.apply(self._initialise)
        self.tell_positions_by(config.pos, pos_file)
        self.extend(config.extend)

    def tell_positions_by(self, pos: str, pos_file: str | Path | None = None) -> None:
        """Take another position scheme, which initialises itself; everything else stays."""
        self.config = c = replace(self.config, pos=pos, extend="")
        shape = Shape(c.n_head, c.n_embd // c.n_head, c.n_embd, c.block_size)
        self.pos = Scheme(pos, shape, c.n_layer, pos_file and Path(pos_file))

    def extend(self, text: str, folder: Path | None = None) -> None:
        """Put an `extend` expression into force, in place of any other, "" for none; `folder` has files that it may name."""
        self.pos.extend(text, folder)
        self.pos.to(self.wte.weight.device)
        self.config = replace(self.config, extend=self.pos.extended)

    def extension_at(self, total: int) -> dict[str, str | float | None]:
        """{"extend", "factor"}: the extension in force and its factor in a text of `total` tokens, None where there is none."""
        return {"extend": self.pos.extended or None, "factor": self.pos.factor(total)}

    def _initialise(self, module: nn.Module) -> None:
        """GPT-2's: normal with deviation 0.02, smaller by sqrt(2 n_layer) where a block writes to the residual stream."""
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)
        if isinstance(module, (Attention, MLP)):
            nn.init.normal_(module.c_proj.weight, std=0.02 / math.sqrt(2 * self.config.n_layer))

    @property
    def parameter_count(self) -> int:
        """The number of trained numbers, the tied embedding counted once."""
        return sum(p.numel() for p in self.parameters())

    @property
    def limit(self) -> int | None:
        """The longest total length that the position scheme defines; None: any."""
        return self.pos.limit

    def check_length(self, total: int) -> None:
        """Raise UserError where the position scheme does not define a text of `total` tokens."""
        self.pos.check_length(total)

    def draw_ids(self, seed: int, step: int, length: int) -> Tensor | None:
        """Random position ids (length,) of a training step, to be passed as `ids`; None where the scheme has none."""
        return self.pos.draw(seed, step, length)

    def attention_path(self, length: int, window: int | None = None, compiled: bool = False) -> str:
        """How attention is computed at that length on this machine, e.g. "fused"; "fused|dense" where layers differ."""
        index = torch.arange(length, device=self.wte.weight.device)
        plans = [
            _windowed(p, window) for p in self.pos.plans(index, index, index, length, self._like())
        ]
        return "|".join(
            dict.fromkeys(
                attention.choose_path(plan, self.config.n_head, compiled) for plan in plans
            )
        )

    def _like(self) -> Tensor:
        """An empty tensor with the dtype (float32 or wider) and device of everything made from positions."""
        weight = self.wte.weight
        return weight.new_empty(0, dtype=torch.promote_types(weight.dtype, torch.float32))

    def _hidden(
        self,
        idx: Tensor,
        positions: Tensor | None,
        ids: Tensor | None,
        cache: Cache | None,
        window: int | None,
    ) -> Tensor:
        """The last hidden states (B, T, C) of tokens idx (B, T)."""
        offset, total = (cache.n, cache.length) if cache else (0, idx.shape[1])
        self._check_input(idx, positions, ids, cache, window)
        index = torch.arange(offset, offset + idx.shape[1], device=idx.device)
        if ids is None:
            ids = self.pos.ids(index if positions is None else positions.long(), total)
        if (ids is not index) and not torch.compiler.is_compiling():
            self.pos.check_ids(ids)
        key_ids = cache.extend_ids(ids) if cache else ids
        ids = key_ids[..., offset:]  # with a dimension for the batch, if any call gave one
        x = self.wte(idx)
        tokens = cache.extend_tokens(idx) if cache else idx
        embedded = self.pos.embed(ids, Text(tokens, total))
        if embedded is not None:
            x = x + embedded.to(x.dtype)
        x = F.dropout(x, self.config.dropout, self.training)
        prepared = [
            attention.prepare(_windowed(plan, window), self.config.n_head, self._like())
            for plan in self.pos.plans(index, ids, key_ids, total, self._like())
        ]
        for block, which in zip(self.h, self.pos.set_of_layer, strict=True):
            x = block(x, prepared[which], cache)
        if cache:
            cache.n += idx.shape[1]
        return self.ln_f(x)

    def _check_input(
        self,
        idx: Tensor,
        positions: Tensor | None,
        ids: Tensor | None,
        cache: Cache | None,
        window: int | None,
    ) -> None:
        """Refuse lengths and positions that are not defined, before anything is computed."""
        total = cache.n + idx.shape[1] if cache else idx.shape[1]
        if cache:
            require(
                total <= cache.length, f"the cache was made for {cache.length} tokens, not {total}"
            )
            require(
                idx.shape[0] == cache.batch,
                f"the cache was made for {cache.batch} texts, not {idx.shape[0]}",
            )
        self.check_length(cache.length if cache else total)
        require(window is None or window > 0, f"a window of {window} tokens holds no key")
        for name, given in (("positions", positions), ("ids", ids)):
            real = name == "ids" and self.pos.continuous
            integers = (
                given is None
                or real
                or not (
                    given.is_floating_point() or given.is_complex() or given.dtype == torch.bool
                )
            )
            require(
                integers and (given is None or given.shape in (idx.shape, idx.shape[1:])),
                f"{name} must be integers of shape {tuple(idx.shape[1:])} or {tuple(idx.shape)}",
            )
        if idx.shape[1] and (positions is not None or (cache and cache.last is not None)):
            places = (
                torch.arange(total - idx.shape[1], total, device=idx.device)
                if positions is None
                else positions.long()
            )
            if cache and cache.n:
                last = places.new_tensor([cache.n - 1]) if cache.last is None else cache.last
                both = (cache.batch,) if max(places.dim(), last.dim()) == 2 else ()
                places = torch.cat((last.expand(*both, 1), places.expand(*both, -1)), -1)
            require(
                bool((places.diff(dim=-1) >= 0).all() and (places >= 0).all()),
                "positions must not decrease or be negative",
            )
            if cache:
                cache.last = places[..., -1:]

    def forward(
        self,
        idx: Tensor,
        targets: Tensor | None = None,
        *,
        positions: Tensor | None = None,
        ids: Tensor | None = None,
        cache: Cache | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Tokens idx (B, T) -> logits and loss.

        With targets (B, T; -1 is ignored): logits (B, T, V) and the mean loss in nats. Without: logits (B, 1, V) of the last
        position, or with a cache (B, T, V) of all given, which are appended to it. `positions` (T,) or (B, T) replace
        0 ... T - 1 before any piece that changes ids; `ids` are a training step's own draw (`draw_ids`), used as they are.
        """
        x = self._hidden(idx, positions, ids, cache, None)
        if targets is None:
            return self.lm_head(x if cache else x[:, -1:]), None
        logits = self.lm_head(x)
        loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=-1)
        return logits, loss

    def losses(
        self,
        idx: Tensor,
        targets: Tensor,
        *,
        positions: Tensor | None = None,
        window: int | None = None,
    ) -> Tensor:
        """(B, T) float32 nats for each target, 0 where it is -1; `window` limits keys to i - j < window in every layer."""
        x = self._hidden(idx, positions, None, None, window).flatten(0, 1)
        rows = max(1, LOGIT_BYTES // (4 * self.config.vocab_size))
        parts = [
            F.cross_entropy(self.lm_head(a).float(), b, ignore_index=-1, reduction="none")
            for a, b in zip(x.split(rows), targets.flatten().split(rows), strict=True)
        ]
        return torch.cat(parts).view_as(targets)

    def new_cache(self, batch: int, length: int) -> Cache:
        """A cache for `batch` texts that will reach `length` tokens in all; schemes that depend on the length use that one."""
        self.check_length(length)
        return Cache(batch, length)

    @torch.no_grad()
    def stream(
        self,
        idx: Tensor,
        max_new_tokens: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        generator: torch.Generator | None = None,
    ) -> Iterator[Tensor]:
        """Continue idx (B, T), yielding the next tokens (B, 1) one at a time; temperature 0 takes the likeliest.

        A scheme whose positions end before T + max_new_tokens goes on from its last `limit` tokens, encoded anew each time.
        """
        total = idx.shape[1] + max_new_tokens
        bounded = self.limit is not None and total > self.limit
        cache = None if bounded else self.new_cache(idx.shape[0], total)
        new = idx
        for _ in range(max_new_tokens):
            logits = self(idx[:, -self.limit :])[0] if bounded else self(new, cache=cache)[0]
            new = pick(logits[:, -1].float(), temperature, top_k, top_p, generator)
            if bounded:
                idx = torch.cat((idx, new), 1)
            yield new

    def generate(
        self,
        idx: Tensor,
        max_new_tokens: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """(B, T) -> (B, T + max_new_tokens): idx and its continuation, see `stream`."""
        return torch.cat(
            (idx, *self.stream(idx, max_new_tokens, temperature, top_k, top_p, generator)), 1
        )

    @classmethod
    def from_huggingface(cls, source: str | GPT2LMHeadModel) -> GPT:
        """A GPT-2 of `transformers` (a model, or a name or folder that it can load) as a GPT with pos="learned"."""
        if isinstance(source, str):
            from transformers import GPT2LMHeadModel

            source = GPT2LMHeadModel.from_pretrained(source)
        c = source.config
        own = (
            c.activation_function == "gelu_new"
            and c.n_inner in (None, 4 * c.n_embd)
            and c.layer_norm_epsilon == 1e-5
            and c.scale_attn_weights
            and not c.scale_attn_by_inverse_layer_idx
            and c.tie_word_embeddings
        )
        require(
            own,
            "this GPT-2 has another activation, MLP width, norm epsilon, score scale or head than GPT-2's own",
        )
        model = cls(
            GPTConfig(
                block_size=c.n_positions,
                vocab_size=c.vocab_size,
                n_layer=c.n_layer,
                n_head=c.n_head,
                n_embd=c.n_embd,
                dropout=0.0,
                bias=True,
                pos="learned",
            )
        )
        theirs = {k.removeprefix("transformer."): v for k, v in source.state_dict().items()}
        theirs["pos.pieces.0_learned.table"] = theirs.pop("wpe.weight")
        transposed = (
            "c_attn.weight",
            "c_proj.weight",
            "c_fc.weight",
        )  # their Conv1D keeps (in, out)
        with torch.no_grad():
            for name, ours in model.state_dict().items():
                ours.copy_(theirs[name].T if name.endswith(transposed) else theirs[name])
        return model


def _windowed(plan: Plan, window: int | None) -> Plan:
    """The plan with keys limited to i - j < window as well."""
    if window is None:
        return plan
    span = min(plan.span or (window, 0), (window, 0))
    return replace(plan, masks=(*plan.masks, lambda i, j: i - j < window), span=span)


def pick(
    logits: Tensor,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    generator: torch.Generator | None,
) -> Tensor:
    """Draw the next tokens (B, 1) from logits (B, V) after temperature, the top_k likeliest and the top_p nucleus."""
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    logits = (logits - logits.amax(-1, keepdim=True)) / max(
        temperature, 1e-6
    )  # the likeliest stays at 0: nothing overflows
    if top_k is not None:
        kth = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)
    probabilities = logits.softmax(-1)
    if top_p is not None:
        ordered, order = probabilities.sort(descending=True)
        beyond = ordered.cumsum(-1) - ordered >= max(
            top_p, 1e-30
        )  # the token that crosses top_p stays; in float32 1e-300 is 0
        probabilities = probabilities.masked_fill(
            torch.zeros_like(beyond).scatter(1, order, beyond), 0.0
        )
    return torch.multinomial(probabilities, 1, generator=generator)
