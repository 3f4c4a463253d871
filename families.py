"""Models of Hugging Face's `transformers` and ours: their settings and weights, both ways.

Each family is one table. `read` gives what a folder, a name or a model holds, `settings_of` the
GPTConfig, `fill` copies the weights. `describe` and `weights_of` are the way back, for export.py.
"""

import math
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from configurable import GPTConfig, UserError, read_json, require
from positions.grammar import parse

Config = dict[str, Any]  # the content of a config.json


def table(text: str) -> dict[str, str]:
    """{"a": "b", "c": "d"} of "a=b c=d"."""
    return dict(pair.split("=") for pair in text.split())


@dataclass(frozen=True)
class Family:
    """How a family says the settings and the weights of a GPT, by our names.

    `settings`: their names for ours; of several the first is written, and all are read. `usual`:
    what a config means that leaves something out. `fixed`: other settings, with the only value that
    this project computes. `ours`: what all models of the family have. `biases`: parts of our names
    that have biases, and the setting that says so, or "". `names`: their modules; several are one
    of ours, stacked. `by_head`: queries, keys and values are interleaved by head. `transposed`:
    matrices are (in, out).
    """

    pos: str
    base: str
    settings: dict[str, str]
    names: dict[str, str]
    usual: Config = field(default_factory=dict)
    fixed: Config = field(default_factory=dict)
    ours: Config = field(default_factory=dict)
    biases: dict[str, str] = field(default_factory=dict)
    rope: tuple[str, str] = ("rope_theta", "partial_rotary_factor")
    by_head: bool = False
    transposed: bool = False

    @property
    def activations(self) -> dict[str, str]:
        """Our `mlp` for the names of activations that it may have."""
        gated = "," in self.names["mlp.c_fc"]
        gelu = {"gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "gelu": "gelu_exact"}
        return {"silu": "swiglu", "swish": "swiglu"} if gated else gelu

    def has_bias(self, name: str, config: Config) -> bool:
        """Whether the module of our parameter `name` has a bias in theirs."""
        said = self.usual | config
        return any(part in name and said.get(key, True) for part, key in self.biases.items())

    def their_names(self, name: str) -> list[str]:
        """The names of their weights, without the base, that our parameter `name` is made of."""
        module, _, kind = name.rpartition(".")
        _, number, inner = (re.fullmatch(r"(h\.(\d+)\.)?(.*)", module)).groups()
        block = "" if number is None else self.names["h"] + f".{number}."
        kind = "bias" if kind == "bias" else "weight"
        return [f"{block}{theirs}.{kind}" for theirs in self.names[inner].split(",")]


SHAPE = "vocab_size=vocab_size tie_embeddings=tie_word_embeddings "
WIDE = "n_layer=num_hidden_layers n_head=num_attention_heads n_embd=hidden_size mlp=hidden_act "
WIDE = SHAPE + WIDE + "n_inner=intermediate_size block_size=max_position_embeddings "
GROUPED = WIDE + "n_kv_head=num_key_value_heads "
SMALL = "n_layer=n_layer,num_hidden_layers n_head=n_head,num_attention_heads "
SMALL = SHAPE + SMALL + "norm_eps=layer_norm_epsilon "
LLAMA = Family(
    pos="rope",
    base="model.",
    settings=table(GROUPED + "head_dim=head_dim norm_eps=rms_norm_eps"),
    names=table(
        "h=layers wte=embed_tokens ln_1=input_layernorm ln_2=post_attention_layernorm ln_f=norm "
        "attn.c_attn=self_attn.q_proj,self_attn.k_proj,self_attn.v_proj "
        "attn.q_norm=self_attn.q_norm attn.k_norm=self_attn.k_norm attn.c_proj=self_attn.o_proj "
        "mlp.c_fc=mlp.gate_proj,mlp.up_proj mlp.c_proj=mlp.down_proj lm_head=lm_head"
    ),
    usual=dict(hidden_act="silu", rms_norm_eps=1e-6, tie_word_embeddings=False, mlp_bias=False)
    | dict(attention_bias=False),
    fixed=dict(partial_rotary_factor=1.0),
    ours=dict(norm="rmsnorm"),
    biases={"attn.c_": "attention_bias", "mlp.c_": "mlp_bias"},
)
BLOOM = Family(
    pos="alibi",
    base="transformer.",
    settings=table(SMALL + "n_embd=hidden_size,n_embed block_size=seq_length"),
    names=table(
        "h=h wte=word_embeddings ln_e=word_embeddings_layernorm ln_1=input_layernorm ln_f=ln_f "
        "attn.c_attn=self_attention.query_key_value attn.c_proj=self_attention.dense "
        "ln_2=post_attention_layernorm mlp.c_fc=mlp.dense_h_to_4h mlp.c_proj=mlp.dense_4h_to_h "
        "lm_head=lm_head"
    ),
    usual=dict(layer_norm_epsilon=1e-5, tie_word_embeddings=True, seq_length=2048),
    fixed=dict(apply_residual_connection_post_layernorm=False, n_inner=None),
    ours=dict(embedding_norm=True, mlp="gelu"),
    biases={"ln_": "", "attn.c_": "", "mlp.c_": ""},
    by_head=True,
)
FAMILIES = {
    "gpt2": Family(
        pos="learned",
        base="transformer.",
        settings=table(SMALL + "n_embd=n_embd block_size=n_positions n_inner=n_inner")
        | dict(mlp="activation_function"),
        names={name: name for name in ("h", "wte", "ln_1", "attn.c_attn", "attn.c_proj", "ln_2")}
        | {name: name for name in ("mlp.c_fc", "mlp.c_proj", "ln_f", "lm_head")}
        | {"pos.pieces.0_learned": "wpe"},
        usual=dict(layer_norm_epsilon=1e-5, tie_word_embeddings=True)
        | dict(activation_function="gelu_new", attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0),
        fixed=dict(scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False)
        | dict(add_cross_attention=False),
        biases=BLOOM.biases,
        transposed=True,
    ),
    "gpt_neox": Family(
        pos="rope",
        base="gpt_neox.",
        settings=table(WIDE + "parallel_blocks=use_parallel_residual norm_eps=layer_norm_eps"),
        names=BLOOM.names
        | table("h=layers wte=embed_in ln_f=final_layer_norm lm_head=embed_out,")
        | {"attn.c_attn": "attention.query_key_value", "attn.c_proj": "attention.dense"},
        usual=dict(hidden_act="gelu", layer_norm_eps=1e-5, tie_word_embeddings=False)
        | dict(use_parallel_residual=True, attention_bias=True, rotary_pct=0.25),
        biases={"ln_": "", "attn.c_": "attention_bias", "mlp.c_": ""},
        rope=("rotary_emb_base", "rotary_pct"),
        by_head=True,
    ),
    "llama": LLAMA,
    "qwen2": replace(LLAMA, biases={"attn.c_attn": ""}),
    "qwen3": replace(LLAMA, ours=LLAMA.ours | dict(qk_norm=True)),
    "bloom": BLOOM,
}
