"""The processes that work on one run."""
from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, distributed

from configurable import UserError
from runs.device import Compute


@dataclass(frozen=True)
class Processes:
    """The processes that work on one run: the number of this one and how many there are. Alone, it waits for nobody."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the one that writes files and lines."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of everybody's tensor, in place and the same to the bit for all."""
        self._meet(tensor, distributed.ReduceOp.SUM)
        return tensor

    def highest(self, number: int) -> int:
        """The highest of everybody's number."""
        tensor = torch.tensor(number)
        self._meet(tensor, distributed.ReduceOp.MAX)
        return int(tensor)

    @contextlib.contextmanager
    def first_before_others(self) -> Iterator[None]:
        """A block that the first process goes through before the others enter it."""
        if not self.first:
            self.highest(0)
        yield
        if self.first:
            self.highest(0)

    def _meet(self, tensor: Tensor, operation: distributed.ReduceOp) -> None:
        if self.size == 1:
            return
        try:
            distributed.all_reduce(tensor, operation)
        except RuntimeError as error:
            raise UserError(
                f"lost touch with another process of this run: what ended it is said where it ended "
                f"({str(error).splitlines()[0]:.120})"
            ) from error

ALONE = Processes()

def world_size() -> int:
    """How many processes torchrun started, 1 without it; UserError where its WORLD_SIZE is no number."""
    text = os.environ.get("WORLD_SIZE", "1")
    if not text.isdecimal():
        raise UserError(
            f"the environment has WORLD_SIZE={text!r:.60}, which is no number: unset it, or start with torchrun"
        )
    return int(text)

@contextlib.contextmanager
def together(backend: str, compute: Compute) -> Iterator[Processes]:
    """Join the other processes that torchrun started, if it did; only the first one's standard output is shown."""
    size = world_size()
    if size == 1 or "RANK" not in os.environ:
        yield ALONE
        return
    if compute.kind == "cuda":
        torch.cuda.set_device(compute.device)
    best = "nccl" if compute.kind == "cuda" else "gloo"
    backends = {
        "cpu": "gloo",
        compute.kind: best if backend == "auto" else backend,
    }  # counts and signals go by the CPU
    try:
        store, rank, _ = next(distributed.rendezvous("env://"))
        if (
            os.environ.get("GROUP_WORLD_SIZE") == "1"
        ):  # started again by torchrun, they would find the addresses of the dead
            store = distributed.PrefixStore(
                os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store
            )
        distributed.init_process_group(
            ",".join(f"{kind}:{name}" for kind, name in backends.items()),
            store=store,
            rank=rank,
            world_size=size,
        )
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"backend={backend} could not bring {size} processes together ({reason:.200})"
        ) from error
    processes = Processes(int(os.environ["RANK"]), size)
    with contextlib.ExitStack() as stack:
        stack.callback(distributed.destroy_process_group)
        if not processes.first:
            silent = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
            stack.enter_context(contextlib.redirect_stdout(silent))
        yield processes
