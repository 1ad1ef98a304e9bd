"""Horovod's collectives over each library. As for a gradient, Horovod coordinates the ranks before
each call.
"""

import os
from collections.abc import Callable
from typing import Any

from hvscale.bench.collectives.backends import HOST, Backend, register
from hvscale.bench.collectives.elements import Bits
from hvscale.bench.collectives.rank_side.engine import Document, Engine, Operands, PreparedCall, PythonCall
from hvscale.bench.collectives.request import BenchRequest
from hvscale.core.errors import RequestError
from hvscale.launch.flavours import DEFAULT, FLAVOURS

# Horovod accepts bfloat16 but cannot sum it.
DTYPES = ("float32", "float64", "float16")
OUT_OF_PLACE = frozenset({"allreduce", "broadcast", "allgather", "reduce-scatter", "alltoall", "barrier"})
IN_PLACE = frozenset({"allreduce", "broadcast"})


class HorovodEngine(Engine):
    def __init__(self, request: BenchRequest) -> None:
        import horovod
        import horovod.torch as hvd
        import torch

        hvd.init()
        self.torch, self.hvd = torch, hvd
        self.rank, self.np = hvd.rank(), hvd.size()
        self.on_gpu = request.device == "cuda"
        if self.on_gpu:
            if not torch.cuda.is_available():
                raise RequestError("no NVIDIA GPU here: use --device cpu")
            torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
        self.library = f"Horovod {horovod.__version__} over {'NCCL' if request.path == 'nccl' else cpu_library()}"

    def allgather(self, document: Document) -> list[Document]:
        found: list[Document] = self.hvd.allgather_object(document, name="hvscale.allgather")
        return found

    def broadcast_from_root(self, document: Document) -> Document:
        found: Document = self.hvd.broadcast_object(document, 0, name="hvscale.broadcast_from_root")
        return found

    def close(self) -> None:
        self.hvd.shutdown()

    def prepare_call(self, operands: Operands) -> PreparedCall:
        dtype = operands.dtype

        def result(tensor: Any) -> Bits:
            """This rank's result: out of place, Horovod returns a new tensor."""
            if tensor is None:
                return operands.receive.get(dtype.bits_type, *operands.received_range)
            found: Bits = tensor.cpu().view(self.torch.uint8).numpy().view(dtype.bits_type)
            return found

        synchronize = self.torch.cuda.synchronize if self.on_gpu else lambda: None
        return PythonCall(self._call(operands), result, self.hvd.barrier, synchronize)

    def _call(self, operands: Operands) -> Callable[[], Any]:
        hvd, root, dtype, name = self.hvd, operands.root, operands.dtype.name, "hvscale.bench"
        # In a broadcast, a rank that sends nothing still passes a tensor of the message's size.
        start, stop = operands.sent_range
        sent = operands.source.tensor(dtype, start, max(stop, start + operands.count))
        match operands.collective.name:
            case "allreduce" if operands.in_place:
                return lambda: hvd.allreduce_(sent, op=hvd.Sum, name=name)
            case "allreduce":
                return lambda: hvd.allreduce(sent, op=hvd.Sum, name=name)
            case "broadcast" if operands.in_place:
                return lambda: hvd.broadcast_(sent, root, name=name)
            case "broadcast":
                return lambda: hvd.broadcast(sent, root, name=name)
            case "allgather":
                return lambda: hvd.allgather(sent, name=name)
            case "reduce-scatter":
                return lambda: hvd.reducescatter(sent, op=hvd.Sum, name=name)
            case "alltoall":
                return lambda: hvd.alltoall(sent, name=name)
            case "barrier":
                return lambda: hvd.barrier()
            case other:
                raise RequestError(f"Horovod does not support {other}")


def cpu_library() -> str:
    return "Gloo" if os.environ.get("HOROVOD_CPU_OPERATIONS") == "gloo" else "MPI"


def not_installed(command: list[str], environment: dict[str, str]) -> str:
    # Imported here because a rank loads this file and must not load the launcher.
    from hvscale.launch.mpi.horovod_build import horovod_library

    found = horovod_library(command, environment)
    return (
        ""
        if found is not None
        else "Horovod is not installed: run `make setup` (MPI=mpich for MPICH and compatible libraries)"
    )


def nccl_missing(command: list[str], environment: dict[str, str]) -> str:
    from hvscale.launch.mpi.horovod_build import horovod_library

    found = horovod_library(command, environment)
    if found is None:
        return not_installed(command, environment)
    if b"ncclAllReduce" in found.read_bytes():
        return ""
    return "this Horovod was built without NCCL: run `make setup` on a machine with CUDA"


for flavour in FLAVOURS.all().values():
    register(
        Backend(
            name=f"horovod-{flavour.name}",
            flavour=flavour.name,
            out_of_place=OUT_OF_PLACE - (set() if flavour.reduce_scatter_in_horovod else {"reduce-scatter"}),
            in_place=IN_PLACE,
            dtypes=DTYPES,
            paths={**HOST, "cuda": ("staged",)},
            open=HorovodEngine,
            buffers=3,  # one more for the result
            problem=not_installed,
        )
    )
register(
    Backend(
        name="horovod-nccl",
        flavour=DEFAULT,
        out_of_place=OUT_OF_PLACE,
        in_place=IN_PLACE,
        dtypes=DTYPES,
        paths={"cuda": ("nccl",)},
        open=HorovodEngine,
        buffers=3,
        problem=nccl_missing,
    )
)
