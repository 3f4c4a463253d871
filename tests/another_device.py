"""Models on a device that is not the CPU: torch's "meta", whose tensors refuse those of the CPU."""

import torch

from configurable import GPTConfig
from model import GPT


def passes(pos, extend="", pos_file=None):
    """Loss and losses of a model that was moved to another device."""
    config = GPTConfig(block_size=16, vocab_size=32, n_layer=2, n_head=4, n_embd=64, pos=pos)
    model = GPT(config, pos_file)
    model.pos.extend(extend)
    model.to("meta")
    idx = torch.zeros((2, 16), dtype=torch.long, device="meta")
    model.pos.draw(1, 0, 16)
    loss = model(idx, idx)[1]
    with torch.no_grad():
        return loss, model.losses(idx, idx)
