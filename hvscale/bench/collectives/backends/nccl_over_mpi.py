"""NCCL between ranks started by MPI. Coordination and a parameter server's messages use MPI."""

from collections.abc import Callable
from typing import Any

from hvscale.bench.collectives.backends import Backend, register
from hvscale.bench.collectives.backends.mpi import MpiEngine
from hvscale.bench.collectives.backends.torch_distributed import IN_PLACE, OUT_OF_PLACE, call_of, nccl_problem
from hvscale.bench.collectives.elements import DTYPES, Bits
from hvscale.bench.collectives.memory import CHIEF, SERVER
from hvscale.bench.collectives.rank_side.engine import Operands, PreparedCall, PythonCall
from hvscale.bench.collectives.request import BenchRequest, own_run_folder
from hvscale.core.errors import RequestError
from hvscale.launch.flavours import all_with_mpi


class NcclOverMpi(MpiEngine):
    """A rank that uses NCCL, or a parameter server without a GPU.

    The server exchanges messages with the first worker, the chief, over MPI. The chief exchanges
    them with the other workers over NCCL.
    """

    def __init__(self, request: BenchRequest) -> None:
        super().__init__(request)
        import torch

        self.torch: Any = torch
        self.dist: Any = torch.distributed
        first = request.first_worker or 0
        self.has_server, self.workers = request.has_server, self.np - first
        if not self.is_server:
            store = self.dist.FileStore(str(own_run_folder() / "rendezvous"), self.workers)
            self.dist.init_process_group("nccl", store=store, rank=self.rank - first, world_size=self.workers)
        version = ".".join(map(str, self.torch.cuda.nccl.version()))
        self.library = f"NCCL {version} in PyTorch {torch.__version__}, {self.library}"

    def prepare_call(self, operands: Operands) -> PreparedCall:
        def result(_: Any) -> Bits:
            return operands.receive.get(operands.dtype.bits_type, *operands.received_range)

        synchronize = self.torch.cuda.synchronize if not self.is_server else lambda: None
        return PythonCall(self._call(operands), result, self.communicator.Barrier, synchronize)

    def close(self) -> None:
        if not self.is_server:
            self.dist.destroy_process_group()
        super().close()

    def _call(self, operands: Operands) -> Callable[[], Any]:
        if not self.has_server:
            return call_of(self.dist, operands)
        match operands.collective.name:
            case "broadcast":
                return self._server_broadcast(operands) if self.is_server else self._worker_broadcast(operands)
            case "gather":
                return self._server_gather(operands) if self.is_server else self._worker_gather(operands)
            case other:
                raise RequestError(f"a parameter server does not support {other}")

    def _server_broadcast(self, operands: Operands) -> Callable[[], Any]:
        parameters = operands.receive.elements(operands.dtype.bits_type, 0, operands.count)
        return lambda: self.communicator.Send(parameters, dest=CHIEF)

    def _worker_broadcast(self, operands: Operands) -> Callable[[], Any]:
        bits_type, count = operands.dtype.bits_type, operands.count
        parameters = operands.receive.tensor(operands.dtype.name, 0, count)
        staging = operands.receive.elements(bits_type, 0, count)

        def receive() -> None:
            if self.rank == CHIEF:
                self.communicator.Recv(staging, source=SERVER)
                operands.receive.put(bits_type, 0, count)
            self.dist.broadcast(parameters, 0)

        return receive

    def _server_gather(self, operands: Operands) -> Callable[[], Any]:
        count = operands.count
        gradients = operands.receive.elements(operands.dtype.bits_type, CHIEF * count, operands.np * count)

        def gather() -> None:
            # One message per worker, because MPI's counts are ints.
            for worker in range(self.workers):
                self.communicator.Recv(gradients[worker * count :][:count], source=CHIEF)

        return gather

    def _worker_gather(self, operands: Operands) -> Callable[[], Any]:
        bits_type, dtype, count = operands.dtype.bits_type, operands.dtype.name, operands.count
        own, whole = operands.send.tensor(dtype, 0, count), self.workers * count
        is_chief = self.rank == CHIEF
        # ncclAllGather sends everything to every worker, so each needs a buffer for all.
        gathered = operands.receive.tensor(dtype, 0, whole) if is_chief else own.new_empty(whole)

        def gather() -> None:
            self.dist.all_gather_into_tensor(gathered, own)
            if is_chief:
                gradients = operands.receive.get(bits_type, 0, whole)
                for worker in range(self.workers):
                    self.communicator.Send(gradients[worker * count :][:count], dest=SERVER)

        return gather


for flavour in all_with_mpi():
    register(
        Backend(
            name=f"nccl-{flavour.name}",
            flavour=flavour.name,
            out_of_place=OUT_OF_PLACE,
            in_place=IN_PLACE,
            dtypes=tuple(DTYPES),
            paths={"cuda": ("nccl",)},
            open=NcclOverMpi,
            problem=nccl_problem,
            supports_param_server=True,
        )
    )
