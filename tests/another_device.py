"""Models on a device that is not the CPU: torch's "meta", whose tensors refuse those of the CPU."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from configurable import GPTConfig
from model import GPT


class Copies(TorchDispatchMode):
    """Notes every tensor of the CPU, but for single numbers, that is copied to the device."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if getattr(result, "is_meta", False):
            tensors = [x for x in tree_leaves(args) if isinstance(x, torch.Tensor)]
            self.shapes += [tuple(x.shape) for x in tensors if x.device.type == "cpu" and x.dim()]
        return result


def passes(pos, extend="", pos_file=None):
    """Loss and losses of a model that was moved to another device, and the shapes of what a second
    test of the same length copies there.
    """
    config = GPTConfig(block_size=16, vocab_size=32, n_layer=2, n_head=4, n_embd=64, pos=pos)
    model = GPT(config, pos_file)
    model.pos.extend(extend)
    model.to("meta")
    idx = torch.zeros((2, 16), dtype=torch.long, device="meta")
    model.pos.draw(1, 0, 16)
    loss = model(idx, idx)[1]
    model.eval()
    with torch.no_grad():
        losses = model.losses(idx, idx)
        with Copies() as copies:
            model.losses(idx, idx)
    return loss, losses, copies.shapes
