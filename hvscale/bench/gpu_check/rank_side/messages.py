"""One rank: a known number of collectives of known sizes, or many small ones, timed.

On GPUs they are NCCL's calls, made through torch.distributed; on CPUs they are MPI's, made through
mpi4py, so that the same reader and the same arithmetic are tried without a GPU.

Usage: python -m ...rank_side.messages cuda|cpu all|CALLS. `all` makes the calls of MESSAGES; CALLS
times that many all-reduces of 8 bytes.
"""

import sys
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvscale.bench.collectives.request import own_run_folder
from hvscale.bench.gpu_check.rank_side.results import own_device, place, write_result

SMALL_BYTES = 8
WARM_UP_CALLS = 5


@dataclass(frozen=True)
class PlannedCalls:
    """`calls` calls of a collective of `bytes` bytes of fp32, counted as in nccl-tests."""

    operation: str
    bytes: int
    calls: int


MESSAGES = (
    PlannedCalls("allreduce", 8, 20),
    PlannedCalls("allreduce", 64 << 10, 20),
    PlannedCalls("allreduce", 4 << 20, 4),
    PlannedCalls("broadcast", 1 << 20, 6),
    PlannedCalls("allgather", 1 << 20, 5),
    PlannedCalls("reduce-scatter", 1 << 20, 3),
)


class Caller(ABC):
    """Makes the calls of one rank. `size`: the number of ranks."""

    @abstractmethod
    def call(self, operation: str, bytes_: int) -> None:
        """Start one call; on a GPU, the kernel may run later."""

    @abstractmethod
    def wait(self) -> None:
        """Wait for all calls."""

    @abstractmethod
    def close(self) -> None: ...


class NcclCaller(Caller):
    """NCCL through torch.distributed. It makes no other call: NCCL's barrier is an all-reduce."""

    def __init__(self, size: int, rank: int) -> None:
        import torch

        dist: Any = torch.distributed
        self.torch, self.dist, self.size = torch, dist, size
        self.device = own_device("cuda", rank)
        store = dist.FileStore(str(Path(own_run_folder()) / "rendezvous"), size)
        dist.init_process_group("nccl", store=store, rank=rank, world_size=size)

    def call(self, operation: str, bytes_: int) -> None:
        whole = self.torch.ones(bytes_ // 4, device=self.device)
        part = whole[: len(whole) // self.size].clone()
        match operation:
            case "allreduce":
                self.dist.all_reduce(whole)
            case "broadcast":
                self.dist.broadcast(whole, 0)
            case "allgather":
                self.dist.all_gather_into_tensor(whole, part)
            case "reduce-scatter":
                self.dist.reduce_scatter_tensor(part, whole)

    def wait(self) -> None:
        self.torch.cuda.synchronize()

    def close(self) -> None:
        self.dist.destroy_process_group()


class MpiCaller(Caller):
    """MPI through mpi4py, in host memory."""

    def __init__(self) -> None:
        import numpy as np
        from mpi4py import MPI

        self.mpi, self.numpy = MPI, np
        self.communicator = MPI.COMM_WORLD

    def call(self, operation: str, bytes_: int) -> None:
        whole: Any = self.numpy.ones(bytes_ // 4, self.numpy.float32)
        part = whole[: len(whole) // self.communicator.size].copy()
        match operation:
            case "allreduce":
                self.communicator.Allreduce(self.mpi.IN_PLACE, whole)
            case "broadcast":
                self.communicator.Bcast(whole, 0)
            case "allgather":
                self.communicator.Allgather(part, whole)
            case "reduce-scatter":
                # Without the counts, mpi4py would ask all ranks for them by an all-gather.
                self.communicator.Reduce_scatter(whole, part, [len(part)] * self.communicator.size)

    def wait(self) -> None:
        pass

    def close(self) -> None:
        pass


def make_calls(caller: Caller) -> dict[str, Any]:
    for message in MESSAGES:
        for _ in range(message.calls):
            caller.call(message.operation, message.bytes)
    caller.wait()
    return {}


def time_calls(caller: Caller, calls: int) -> dict[str, Any]:
    """The mean seconds that the host takes to start a call, and that a call takes to its end."""
    for _ in range(WARM_UP_CALLS):
        caller.call("allreduce", SMALL_BYTES)
    caller.wait()
    start = time.perf_counter()
    for _ in range(calls):
        caller.call("allreduce", SMALL_BYTES)
    started = time.perf_counter()
    caller.wait()
    ended = time.perf_counter()
    return {"host_seconds": (started - start) / calls, "seconds": (ended - start) / calls}


def main() -> None:
    kind, calls = sys.argv[1], sys.argv[2]
    size, rank = place()
    caller: Caller = NcclCaller(size, rank) if kind == "cuda" else MpiCaller()
    result = make_calls(caller) if calls == "all" else time_calls(caller, int(calls))
    caller.close()
    write_result(rank, result)


if __name__ == "__main__":
    main()
