"""What torch.compile must be told, and what it may not look into."""

import numpy as np
import torch
from torch import Tensor


@torch.library.custom_op("longshot::materialize", mutates_args=())
def _materialize(x: Tensor) -> Tensor:
    return x.clone()


_materialize.register_fake(torch.empty_like)
_materialize.register_autograd(lambda ctx, gradient: gradient)


def materialize(x: Tensor) -> Tensor:
    """Return x unchanged, but make compiled code store it in memory.

    Otherwise the compiler recomputes tables and biases in every layer that reads them, and on a CPU
    it leaves the end of a fused `arange` unwritten (torch 2.13).
    """
    return _materialize(x) if torch.compiler.is_compiling() else x


def has_numbers(x: Tensor) -> bool:
    """Whether Python code may look at the numbers in x: not while it is compiled, nor on the device
    meta, which has none.
    """
    return not torch.compiler.is_compiling() and not x.is_meta


# here and not in the zoo, since the name is global: a user's copy of the file would replace it
@torch.library.custom_op("longshot::largest", mutates_args=())
def largest(x: Tensor, count: int) -> Tensor:
    """True where the `count` largest of each row of x (..., C) are; of equal ones, the first. In a
    row with nan all are False.

    As an operator it may look at the numbers in compiled code too.
    """
    on_cpu = x.device.type == "cpu"
    # numpy takes a third of the time of topk on a processor with AVX2, but has one thread
    if on_cpu and torch.get_num_threads() <= 2:
        top = torch.from_numpy(np.partition(x.numpy(), -count, -1)[..., -count:])
    else:
        top = x.topk(count, -1, sorted=False).values
    least = top.amin(-1, keepdim=True)
    kept = x >= least
    if on_cpu and kept.sum() == least.numel() * count:  # none are equal
        return kept
    above = x > least
    room = count - above.sum(-1, keepdim=True, dtype=torch.int32)  # for the equal ones
    return above | (kept & ((kept & ~above).cumsum(-1, dtype=torch.int32) <= room))


largest.register_fake(lambda x, count: torch.empty_like(x, dtype=torch.bool))
