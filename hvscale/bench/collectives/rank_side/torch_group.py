"""A rank in a process group of torch.distributed, for every back end of PyTorch's."""

import os
from collections.abc import Callable
from typing import Any

from hvscale.bench.collectives.elements import Carried
from hvscale.bench.collectives.rank_side.engine import Document, Engine, Operands, PythonWork, Work
from hvscale.bench.collectives.request import run_of_this_rank
from hvscale.core.errors import RequestError

OUT_OF_PLACE = frozenset({"gather", "allgather", "reduce-scatter", "alltoall", "barrier"})
# PyTorch's functions for these have one tensor.
IN_PLACE = frozenset({"allreduce", "reduce", "broadcast", "allgather"})
INTERFACE = "HOROVOD_GLOO_IFACE"  # which our launch tells ranks without MPI


class TorchGroup(Engine):
    """The ranks meet through a file in the run folder. What they agree on goes over Gloo, whatever carries the messages."""

    def __init__(self, carrier: str) -> None:
        import torch

        self.torch: Any = torch
        self.dist: Any = torch.distributed
        self.rank, self.np = int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"])
        if interface := os.environ.get(INTERFACE):
            for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
                os.environ.setdefault(name, interface)
        self.on_gpu = carrier == "nccl"
        if self.on_gpu:
            if not torch.cuda.is_available():
                raise RequestError("no NVIDIA GPU here: NCCL has no other memory")
            torch.cuda.set_device(int(os.environ["HOROVOD_LOCAL_RANK"]) % torch.cuda.device_count())
        store = self.dist.FileStore(str(run_of_this_rank() / "rendezvous"), self.np)
        self.dist.init_process_group(carrier, store=store, rank=self.rank, world_size=self.np)
        self.agreeing = self.dist.new_group(backend="gloo") if self.on_gpu else self.dist.group.WORLD
        version = ".".join(map(str, self.torch.cuda.nccl.version())) if self.on_gpu else ""
        self.library = f"{carrier} {version} in PyTorch {torch.__version__}".replace("  ", " ")

    def gathered(self, document: Document) -> list[Document]:
        found: list[Any] = [None] * self.np
        self.dist.all_gather_object(found, document, group=self.agreeing)
        return found

    def decided(self, document: Document) -> Document:
        found = [document]
        self.dist.broadcast_object_list(found, 0, group=self.agreeing)
        return found[0]

    def close(self) -> None:
        # A group that somebody holds keeps its threads, which then may be caught by the interpreter's end, and abort.
        del self.agreeing
        self.dist.destroy_process_group()

    def work(self, operands: Operands) -> Work:
        def received(_: Any) -> Carried:
            return operands.receive.get(operands.dtype.carrier, *operands.received)

        finish = self.torch.cuda.synchronize if self.on_gpu else lambda: None
        return PythonWork(call_of(self.dist, operands), received, self.dist.barrier, finish)


def call_of(dist: Any, operands: Operands) -> Callable[[], Any]:
    """In the group of all that take part. Raises RequestError for what torch.distributed, which `dist` is, does not have."""
    root, dtype = operands.root, operands.dtype.name
    whole = operands.receive.tensor(dtype, 0, operands.collective.largest(operands.np) * operands.count)
    got = operands.receive.tensor(dtype, *operands.received)
    sent = operands.source.tensor(dtype, *operands.sent)
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
            raise RequestError(f"torch.distributed has no {other}")
