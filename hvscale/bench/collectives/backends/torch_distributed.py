"""Gloo and NCCL through torch.distributed."""

import os
from collections.abc import Callable
from typing import Any

from hvscale.bench.collectives.backends import HOST, Backend, register
from hvscale.bench.collectives.elements import DTYPES, Bits
from hvscale.bench.collectives.rank_side.engine import Document, Engine, Operands, PreparedCall, PythonCall
from hvscale.bench.collectives.request import own_run_folder
from hvscale.core.errors import RequestError
from hvscale.core.host import gpus
from hvscale.launch.flavours import FLAVOURS

OUT_OF_PLACE = frozenset({"gather", "allgather", "reduce-scatter", "alltoall", "barrier"})
# PyTorch's functions for these take one tensor.
IN_PLACE = frozenset({"allreduce", "reduce", "broadcast", "allgather"})
# PyTorch's ranks need no MPI.
FLAVOUR = next(name for name, flavour in FLAVOURS.all().items() if not flavour.has_mpi)
INTERFACE_VARIABLE = "HOROVOD_GLOO_IFACE"  # set by the launcher for ranks without MPI


class TorchGroup(Engine):
    """A rank in a process group. Ranks find each other through a file in the run folder.

    `backend`: gloo or nccl, for the measured messages. Coordination always uses Gloo.
    """

    def __init__(self, backend: str) -> None:
        import torch

        self.torch: Any = torch
        self.dist: Any = torch.distributed
        self.rank, self.np = int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"])
        if interface := os.environ.get(INTERFACE_VARIABLE):
            for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
                os.environ.setdefault(name, interface)
        self.on_gpu = backend == "nccl"
        if self.on_gpu:
            if not torch.cuda.is_available():
                raise RequestError("no NVIDIA GPU here: NCCL works on GPU memory only")
            torch.cuda.set_device(int(os.environ["HOROVOD_LOCAL_RANK"]) % torch.cuda.device_count())
        store = self.dist.FileStore(str(own_run_folder() / "rendezvous"), self.np)
        self.dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.np)
        self.coordination_group = self.dist.new_group(backend="gloo") if self.on_gpu else self.dist.group.WORLD
        version = ".".join(map(str, self.torch.cuda.nccl.version())) if self.on_gpu else ""
        self.library = f"{backend} {version} in PyTorch {torch.__version__}".replace("  ", " ")

    def allgather(self, document: Document) -> list[Document]:
        found: list[Any] = [None] * self.np
        self.dist.all_gather_object(found, document, group=self.coordination_group)
        return found

    def broadcast_from_root(self, document: Document) -> Document:
        found = [document]
        self.dist.broadcast_object_list(found, 0, group=self.coordination_group)
        return found[0]

    def close(self) -> None:
        # A group that is still referenced keeps its threads, which may abort when Python exits.
        del self.coordination_group
        self.dist.destroy_process_group()

    def prepare_call(self, operands: Operands) -> PreparedCall:
        def result(_: Any) -> Bits:
            return operands.receive.get(operands.dtype.bits_type, *operands.received_range)

        synchronize = self.torch.cuda.synchronize if self.on_gpu else lambda: None
        return PythonCall(call_of(self.dist, operands), result, self.dist.barrier, synchronize)


def call_of(dist: Any, operands: Operands) -> Callable[[], Any]:
    """The call in the default group of torch.distributed (`dist`).

    Raises RequestError for a collective that torch.distributed does not support.
    """
    root, dtype = operands.root, operands.dtype.name
    whole = operands.receive.tensor(dtype, 0, operands.collective.blocks_in_buffer(operands.np) * operands.count)
    got = operands.receive.tensor(dtype, *operands.received_range)
    sent = operands.source.tensor(dtype, *operands.sent_range)
    match operands.collective.name:
        case "allreduce":
            return lambda: dist.all_reduce(whole)
        case "reduce":
            return lambda: dist.reduce(whole, root)
        case "broadcast":
            return lambda: dist.broadcast(whole, root)
        case "gather":
            blocks = list(whole.chunk(operands.np)) if operands.rank == root else None
            return lambda: dist.gather(sent, blocks, root)
        case "allgather":
            return lambda: dist.all_gather_into_tensor(whole, sent)
        case "reduce-scatter":
            return lambda: dist.reduce_scatter_tensor(got, sent)
        case "alltoall":
            return lambda: dist.all_to_all_single(whole, sent)
        case "barrier":
            return lambda: dist.barrier()
        case other:
            raise RequestError(f"torch.distributed does not support {other}")


def nccl_problem(command: list[str], environment: dict[str, str]) -> str:
    return "" if gpus() else "NCCL needs NVIDIA GPUs, and nvidia-smi lists none here: run it on nodes with GPUs"


register(
    Backend(
        name="gloo",
        flavour=FLAVOUR,
        out_of_place=OUT_OF_PLACE,
        in_place=IN_PLACE,
        dtypes=tuple(DTYPES),
        paths=HOST,
        open=lambda request: TorchGroup("gloo"),
        supports_param_server=True,
        gather_copies_twice=True,  # PyTorch gathers into one tensor, then copies the blocks out of it
    )
)
register(
    Backend(
        name="nccl",
        flavour=FLAVOUR,
        out_of_place=OUT_OF_PLACE,
        in_place=IN_PLACE,
        dtypes=tuple(DTYPES),
        paths={"cuda": ("nccl",)},
        open=lambda request: TorchGroup("nccl"),
        problem=nccl_problem,
    )
)
