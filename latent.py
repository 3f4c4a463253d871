"""Latent attention (DeepSeek-AI 2024, arXiv 2405.04434): keys and values of all heads are made of
one latent for each token, and the cache keeps only that.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import attention
from cache import Cache, keep
from configurable import GPTConfig, require
from posenc import Turn, scheme_name
from positions.scheme import Plan, Scheme


class LatentAttention(nn.Module):
    """Queries have `head_width` columns that meet the latent, and qk_rope_head_dim that positions
    turn: these columns of the keys are one for all heads. Without such columns the scheme must act
    on scores or embeddings.
    """

    def __init__(self, config: GPTConfig, layer: int, norm: nn.Module) -> None:
        super().__init__()
        self.layer, self.dropout, self.n_head = layer, config.dropout, config.n_head
        self.width, self.rank = config.head_width, config.kv_lora_rank
        self.turned, all_heads = config.qk_rope_head_dim, config.n_head * config.head_width
        queries = all_heads + config.n_head * self.turned
        self.c_query = nn.Linear(config.n_embd, queries, bias=config.bias)
        self.c_latent = nn.Linear(config.n_embd, self.rank + self.turned, bias=config.bias)
        self.kv_norm = norm
        self.c_up = nn.Linear(self.rank, 2 * all_heads, bias=False)  # keys and values, head by head
        self.c_proj = nn.Linear(all_heads, config.n_embd, bias=config.bias)

    def queries_and_latents(self, x: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        """Queries (B, H, T, width + turned), and what is kept, (B, 1, T, rank + turned), of x (B,
        T, C). The last columns of both are turned.
        """
        q = self.c_query(x).unflatten(-1, (self.n_head, -1)).transpose(1, 2)
        latent, shared = self.c_latent(x).split([self.rank, self.turned], -1)
        k = torch.cat((self.kv_norm(latent.to(x.dtype)).to(shared.dtype), shared), -1)[:, None]
        if plan.by_head:
            k = k.expand(-1, self.n_head, -1, -1)
        if plan.turns is not None:
            turn_queries, turn_keys = map(self.of_last, plan.turns)
            q, k = turn_queries(q), turn_keys(k)
        return q, k

    def of_last(self, turn: Turn) -> Turn:
        """The same turn, of the last columns only."""
        return lambda x: torch.cat((x[..., : -self.turned], turn(x[..., -self.turned :])), -1)

    def ups(self) -> tuple[Tensor, Tensor]:
        """What makes keys and values of latents, (H, width, rank) each."""
        return self.c_up.weight.unflatten(0, (self.n_head, -1)).split(self.width, 1)

    def whole(self, k: Tensor) -> tuple[Tensor, Tensor]:
        """Keys (B, H, T, width + turned) and values (B, H, T, width) of what is kept."""
        latent, shared = k.split([self.rank, self.turned], -1)
        up_k, up_v = self.ups()
        shared = shared.expand(-1, self.n_head, -1, -1)
        return torch.cat((latent @ up_k.mT, shared), -1), latent @ up_v.mT

    def project(self, x: Tensor, plan: Plan) -> tuple[Tensor, ...]:
        """As `Attention.project`, with all heads."""
        q, k = self.queries_and_latents(x, plan)
        return q, *self.whole(k), *plan.features(x)

    def forward(self, x: Tensor, prepared: attention.Prepared, cache: Cache | None) -> Tensor:
        """(B, T, C) -> (B, T, C). With a cache, the products with `ups` are formed on the side of
        the queries and of the result: keys and values stay latents.
        """
        plan, dropout = prepared.plan, self.dropout if self.training else 0.0
        q, k = self.queries_and_latents(x, plan)
        k = keep(cache, (self.layer, "k"), k, plan.keeper)
        features = [keep(cache, (self.layer, "features"), t) for t in plan.features(x)]
        regions = [(self._part(part), where) for part, where in plan.regions]
        prepared = replace(prepared, plan=replace(plan, regions=tuple(regions)))
        if cache is None:
            y = attention.attend(q, *self.whole(k), prepared, dropout, *features)
        else:
            up_k, up_v = self.ups()
            scale = math.sqrt(k.shape[-1] / q.shape[-1])  # attend divides by the root of the width
            q = torch.cat((q[..., : self.width] @ up_k, q[..., self.width :]), -1) * scale
            v = k[..., : self.rank]
            y = attention.attend(q, k, v, prepared, dropout, *features) @ up_v.mT
        return F.dropout(self.c_proj(y.transpose(1, 2).flatten(2)), self.dropout, self.training)

    def _part(self, part: Plan) -> Plan:
        """The plan of a region, whose turns act on the last columns."""
        return replace(part, turns=part.turns and tuple(map(self.of_last, part.turns)))


def refuse_own_columns(scheme: Scheme) -> None:
    """UserError for pieces that need all columns of a head, as those do that name pope or xpos."""
    for piece in scheme.pieces.values():
        name = scheme_name(piece)
        whole = name == "pope" or "pope" in piece.conflicts
        advice = "leave kv_lora_rank out, or choose another scheme"
        require(not whole, f"{name} needs whole heads, and latent attention has parts: {advice}")
