"""Longshot and one peer do the same work in turn, in a process of its own: see tools/peers.py.

    python -m tools.side_by_side nanoGPT learned train 4x128 11 cpu float32

The last line of its output is JSON.
"""

import ctypes
import json
import sys
from pathlib import Path
from statistics import median

import torch
from torch.nn.functional import cross_entropy, pad

from common import device
from configurable import GPTConfig
from model import GPT
from tools.bench import seconds

SIZES = {
    "4x128": {"n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": 128},
    "6x384": {"n_layer": 6, "n_head": 6, "n_embd": 384, "block_size": 256},
}
PARTS = {"train": True, "train eager": True, "test": False, "decode": False}  # is it training?
NEW = 128  # tokens decoded after a text of the training length

# ---- the models: each function returns a model, its mean loss on the targets y (B, t) of the last
# t tokens of x (B, T), and the function that appends the NEW likeliest tokens to x


def longshot(config):
    """Longshot's GPT."""
    model = GPT(config)
    return (
        model,
        lambda x, y: model.losses(x, y).mean(),
        lambda x: model.generate(x, NEW, temperature=0),
    )


def nanogpt(config):
    """karpathy's nanoGPT, from the clone in the folder of the peers."""
    sys.path.append(sys.prefix)  # the clone is there
    import nanoGPT.model

    model = nanoGPT.model.GPT(config)  # longshot's settings have nanoGPT's names

    def loss(x, y):
        # -1 is no target
        return model(x, pad(y, (x.shape[1] - y.shape[1], 0), value=-1))[1]

    return model, loss, lambda x: model.generate(x, NEW, top_k=1)


def x_transformers(config):
    """A decoder of x-transformers, with the positions that config names."""
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    layers = Decoder(
        dim=config.n_embd,
        depth=config.n_layer,
        heads=config.n_head,
        attn_dim_head=config.head_width,
        attn_flash=config.pos != "t5",  # refused there
        ff_no_bias=True,
        rotary_pos_emb=config.pos == "rope",
        rotary_emb_dim=config.head_width,
        alibi_pos_bias=config.pos == "alibi",
        rel_pos_bias=config.pos == "t5",
    )
    model = TransformerWrapper(
        num_tokens=config.vocab_size,
        max_seq_len=config.block_size,
        attn_layers=layers,
        tie_embedding=True,
        use_abs_pos_emb=config.pos == "learned",
    )

    def loss(x, y):
        return cross_entropy(model(x)[:, -y.shape[1] :].mT.float(), y)

    return model, loss, lambda x: AutoregressiveWrapper(model).generate(x, NEW, temperature=0.0)


def llama(config):
    """transformers' LlamaForCausalLM."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.n_embd,
        intermediate_size=config.mlp_width,
        num_hidden_layers=config.n_layer,
        num_attention_heads=config.n_head,
        tie_word_embeddings=True,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(shape)

    def loss(x, y):
        logits = model(x, use_cache=False, logits_to_keep=y.shape[1]).logits
        return cross_entropy(logits.mT.float(), y)

    return model, loss, lambda x: model.generate(x, max_new_tokens=NEW, do_sample=False)


PEERS = {  # with the schemes that each has
    "x-transformers==2.31.10": (x_transformers, ("nope", "rope", "alibi", "t5", "learned")),
    "nanoGPT": (nanogpt, ("learned",)),
    "transformers==5.23.0": (llama, ("rope",)),
}

# ---- what is measured


def new_call(side, part, x, y, compute):
    """The call that is measured: a training step with AdamW, a test, or decoding."""
    model, loss_fn, generate = side
    is_training = PARTS[part]
    model.to(compute.device).train(is_training)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    if part == "train":
        loss_fn = torch.compile(loss_fn, dynamic=False)

    def call():
        with device.autocast(compute), torch.set_grad_enabled(is_training):
            result = generate(x) if part == "decode" else loss_fn(x, y)
        if is_training:
            result.backward()
            optimizer.step()
            optimizer.zero_grad()

    return call


def peak_of(call, compute):
    """MiB that a call needs at most beyond what is held before it: weights, and what the optimizer
    keeps. On a CPU it is what the system gives the process; Linux counts anew when it is told to.
    """
    if compute.kind == "cuda":
        torch.cuda.reset_peak_memory_stats(compute.device)
    else:
        ctypes.CDLL(None).malloc_trim(0)  # gives back what is free
        Path("/proc/self/clear_refs").write_bytes(b"5")
    before = device.peak_memory(compute)
    call()
    return round((device.peak_memory(compute) - before) / 2**20)


def measure(peer, pos, part, size, rounds, device_name, dtype):
    """The numbers of a line of the table. Longshot has the block of the peer: the same products."""
    compute = device.pick(device_name, dtype)
    new_peer, _ = PEERS[peer]
    shape = SIZES[size] | {"mlp": "gelu_exact"}
    if new_peer is llama:
        shape |= {"mlp": "swiglu", "norm": "rmsnorm"}
    length = 4096 if part == "test" else shape["block_size"]
    shape["block_size"] = length + NEW  # of a learned table: decoding needs as many
    config = GPTConfig(pos=pos, **shape)
    count = 16 if PARTS[part] else 1
    x = torch.randint(256, (count, length), device=compute.device)
    y = x[:, -32:] if part == "test" else x  # any tokens will do

    numbers = {}
    calls = []
    for name, new_side in {"ours": longshot, "theirs": new_peer}.items():
        side = new_side(config)
        call = new_call(side, part, x, y, compute)
        call()  # compiles
        numbers[f"parameters, {name}"] = sum(p.numel() for p in side[0].parameters())
        numbers[f"MiB, {name}"] = peak_of(call, compute)
        calls.append(call)
    turns = [[seconds(call, compute) for call in calls] for _ in range(int(rounds))]
    ratios = [theirs / ours for ours, theirs in turns]
    tokens = NEW if part == "decode" else x.numel()
    return numbers | {
        "tokens/s": round(tokens / median(ours for ours, _ in turns)),
        "× peer": median(ratios),
        "low": min(ratios),
        "high": max(ratios),
    }


if __name__ == "__main__":
    device.set_up_cpu()
    print(json.dumps(measure(*sys.argv[1:])))
