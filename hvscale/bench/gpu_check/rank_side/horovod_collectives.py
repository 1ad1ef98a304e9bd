"""One rank: Horovod's collectives on tensors of the device, each checked element by element.

Usage: python -m ...rank_side.horovod_collectives cuda|cpu BYTES CALLS [--reduce-scatter]. It also
times CALLS all-reduces of BYTES bytes.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import horovod.torch as hvd
import torch
from torch import Tensor

from hvscale.bench.gpu_check.rank_side.results import own_device, synchronize, write_result

# Divisible by 1, 2 and 4 ranks. Values stay below 2048, which fp16 holds exactly.
ELEMENTS, LARGEST = 4096, 64
DTYPES = (torch.float32, torch.float64, torch.float16)


def values(rank: int, dtype: torch.dtype) -> Tensor:
    """What a rank sends, on the CPU."""
    return (torch.arange(ELEMENTS) % LARGEST + rank).to(dtype)


def expected(operation: str, dtype: torch.dtype, rank: int, size: int) -> Tensor:
    """What a rank must receive, on the CPU."""
    sent = [values(other, dtype) for other in range(size)]
    total = torch.stack(sent).double().sum(0).to(dtype)
    part = slice(rank * ELEMENTS // size, (rank + 1) * ELEMENTS // size)
    return {
        "allreduce": total,
        "broadcast": sent[-1],
        "allgather": torch.cat(sent),
        "alltoall": torch.cat([one[part] for one in sent]),
        "reduce-scatter": total[part],
    }[operation]


def operations(with_reduce_scatter: bool) -> dict[str, Callable[[Tensor], Any]]:
    """The calls, by name."""
    found: dict[str, Callable[[Tensor], Any]] = {
        "allreduce": lambda tensor: hvd.allreduce(tensor, op=hvd.Sum, name="allreduce"),
        "broadcast": lambda tensor: hvd.broadcast(tensor, hvd.size() - 1, name="broadcast"),
        "allgather": lambda tensor: hvd.allgather(tensor, name="allgather"),
        "alltoall": lambda tensor: hvd.alltoall(tensor, name="alltoall"),
    }
    if with_reduce_scatter:
        found["reduce-scatter"] = lambda tensor: hvd.reducescatter(tensor, op=hvd.Sum, name="reducescatter")
    return found


def main() -> None:
    kind, size_bytes, calls = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    hvd.init()
    device = own_device(kind, hvd.local_rank())
    wrong: list[str] = []
    checked = 0
    for name, call in operations("--reduce-scatter" in sys.argv).items():
        for dtype in DTYPES:
            received = call(values(hvd.rank(), dtype).to(device))
            checked += 1
            on_device = received.device == device
            if not on_device or not torch.equal(received.cpu(), expected(name, dtype, hvd.rank(), hvd.size())):
                wrong.append(f"{name} of {dtype}")
    message = torch.zeros(size_bytes // 4, device=device)
    hvd.allreduce_(message, op=hvd.Sum, name="timed")
    synchronize(device)
    start = time.perf_counter()
    for _ in range(calls):
        hvd.allreduce_(message, op=hvd.Sum, name="timed")
    synchronize(device)
    seconds = (time.perf_counter() - start) / calls
    write_result(
        hvd.rank(),
        {
            "size": hvd.size(),
            "device": str(device),
            "checked": checked,
            "wrong": wrong,
            "nccl_built": bool(hvd.nccl_built()),
            "allreduce_seconds": seconds,
        },
    )
    hvd.shutdown()


if __name__ == "__main__":
    main()
