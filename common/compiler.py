"""What torch.compile must be told."""

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
