"""Several processes that train one run, as started by torchrun or srun (docs/cluster.md)."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel as DDP

from common.device import Compute
from common.errors import UserError


@dataclass(frozen=True)
class Processes:
    """The processes that work on one run: the rank of this one, and how many there are."""

    rank: int = 0
    size: int = 1

    @property
    def is_master(self) -> bool:
        """Whether this is the process that writes files and prints."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of the tensors of all processes, in place, with the same bits in each of them."""
        return self._reduce(tensor, distributed.ReduceOp.SUM)

    def highest(self, number: int) -> int:
        """The highest of the numbers of all processes."""
        return int(self._reduce(torch.tensor(number), distributed.ReduceOp.MAX))

    @contextlib.contextmanager
    def master_first(self) -> Iterator[None]:
        """A block that the first process leaves before the others enter it."""
        if not self.is_master:
            self.highest(0)
        yield
        if self.is_master:
            self.highest(0)

    def wrap_ddp(self, module: nn.Module) -> nn.Module:
        """The module, wrapped by DDP so that its gradients are averaged over all processes.

        Parameters may lack a gradient. One that never gets a gradient is added: then DDP keeps the
        order of its sums, and a resumed run repeats to the bit.
        """
        if self.size == 1:
            return module
        module.register_parameter("unused", nn.Parameter(next(module.parameters()).new_zeros(())))
        return DDP(module, find_unused_parameters=True, gradient_as_bucket_view=True)

    def _reduce(self, tensor: Tensor, operation: distributed.ReduceOp) -> Tensor:
        if self.size > 1:
            distributed.all_reduce(tensor, operation)
        return tensor


ALONE = Processes()

# schedulers send SIGUSR1 or SIGUSR2 as a warning
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


@contextlib.contextmanager
def signals_to(handler: Callable[[int, object], None]) -> Iterator[None]:
    """A block in which SIGNALS, such as that of Ctrl-C, go to this handler; also after it, where an
    exception ends it, and with it the program.
    """
    before = {number: signal.signal(number, handler) for number in SIGNALS}
    yield
    for number, handler_before in before.items():
        signal.signal(number, handler_before)


def world_size() -> int:
    """The number of processes of torchrun, 1 without it. UserError if WORLD_SIZE is not one."""
    text = os.environ.get("WORLD_SIZE", "1")
    if not text.isdecimal():
        raise UserError(
            f"WORLD_SIZE={text!r:.60} is not a number: unset it, or start with torchrun"
        )
    return int(text)


@contextlib.contextmanager
def errors_of_others() -> Iterator[None]:
    """A block in which processes communicate: UserError if another one has ended."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, distributed.DistError) and "gloo/" not in str(error):
            raise
        raise UserError(
            f"another process of this run ended ({error!s:.120}); its own output says why"
        ) from error


@contextlib.contextmanager
def init_processes(backend: str, compute: Compute) -> Iterator[Processes]:
    """Join the other processes, of which the environment tells as torchrun sets it; ALONE if not.

    Only the first process prints to standard output. UserError if another one ends early.
    """
    size = world_size()
    if size == 1 or "RANK" not in os.environ:
        yield ALONE
        return
    if backend == "auto":
        backend = "nccl" if compute.kind == "cuda" else "gloo"
    if compute.kind != "cpu":  # gloo for numbers on the CPU, such as signals
        backend = f"cpu:gloo,{compute.kind}:{backend}"
    try:
        store, rank, _ = next(distributed.rendezvous("env://"))
        if os.environ.get("GROUP_WORLD_SIZE") == "1":
            # restarted by torchrun, the processes would find the addresses of those that ended
            restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            store = distributed.PrefixStore(restarts, store)
        distributed.init_process_group(backend, store=store, rank=rank, world_size=size)
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"backend={backend} could not bring {size} processes together ({error!s:.200}): "
            "check MASTER_ADDR and MASTER_PORT, or the addresses that torchrun was given"
        ) from error
    try:
        with errors_of_others(), contextlib.ExitStack() as stack:
            if rank > 0:
                nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
                stack.enter_context(contextlib.redirect_stdout(nowhere))
            yield Processes(rank, size)
    finally:
        distributed.destroy_process_group()
