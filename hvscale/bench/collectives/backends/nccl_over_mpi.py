"""NCCL between ranks started by MPI. MPI carries coordination, and the messages of a parameter
server.
"""

from collections.abc import Callable
from typing import Any

from hvscale.bench.collectives.backends import Backend, register
from hvscale.bench.collectives.backends.mpi import MpiEngine
from hvscale.bench.collectives.backends.torch_distributed import IN_PLACE, OUT_OF_PLACE, call_of, nccl_problem
from hvscale.bench.collectives.elements import DTYPES, Carried
from hvscale.bench.collectives.memory import CHIEF, SERVER
from hvscale.bench.collectives.rank_side.engine import Operands, PreparedCall, PythonCall
from hvscale.bench.collectives.request import BenchRequest, run_of_this_rank
from hvscale.core.errors import RequestError
from hvscale.launch.flavours import all_with_mpi


class NcclOverMpi(MpiEngine):
    """A server has no GPU: its messages go over MPI to the first worker, the chief, and from there
    over NCCL, and back the same way.
    """

    def __init__(self, request: BenchRequest) -> None:
        super().__init__(request)
        import torch

        self.torch: Any = torch
        self.dist: Any = torch.distributed
        first = request.first_worker or 0
        self.has_server, self.workers = request.has_server, self.np - first
        if not self.is_server:
            store = self.dist.FileStore(str(run_of_this_rank() / "rendezvous"), self.workers)
            self.dist.init_process_group("nccl", store=store, rank=self.rank - first, world_size=self.workers)
        version = ".".join(map(str, self.torch.cuda.nccl.version()))
        self.library = f"NCCL {version} in PyTorch {torch.__version__}, {self.library}"

    def prepare_call(self, operands: Operands) -> PreparedCall:
        def received(_: Any) -> Carried:
            return operands.receive.get(operands.dtype.carrier, *operands.received)

        finish = self.torch.cuda.synchronize if not self.is_server else lambda: None
        return PythonCall(self._call(operands), received, self.communicator.Barrier, finish)

    def close(self) -> None:
        if not self.is_server:
            self.dist.destroy_process_group()
        super().close()

    def _call(self, operands: Operands) -> Callable[[], Any]:
        if not self.has_server:
            return call_of(self.dist, operands)
        match operands.collective.name:
            case "broadcast":
                return self._serve(operands) if self.is_server else self._take(operands)
            case "gather":
                return self._collect(operands) if self.is_server else self._hand_in(operands)
            case other:
                raise RequestError(f"a parameter server does not support {other}")

    def _serve(self, operands: Operands) -> Callable[[], Any]:
        parameters = operands.receive.elements(operands.dtype.carrier, 0, operands.count)
        return lambda: self.communicator.Send(parameters, dest=CHIEF)

    def _take(self, operands: Operands) -> Callable[[], Any]:
        carrier, count = operands.dtype.carrier, operands.count
        parameters = operands.receive.tensor(operands.dtype.name, 0, count)
        came = operands.receive.elements(carrier, 0, count)

        def take() -> None:
            if self.rank == CHIEF:
                self.communicator.Recv(came, source=SERVER)
                operands.receive.put(carrier, 0, count)
            self.dist.broadcast(parameters, 0)

        return take

    def _collect(self, operands: Operands) -> Callable[[], Any]:
        count = operands.count
        gradients = operands.receive.elements(operands.dtype.carrier, CHIEF * count, operands.np * count)

        def collect() -> None:
            # One worker at a time, because MPI's counts are ints.
            for worker in range(self.workers):
                self.communicator.Recv(gradients[worker * count :][:count], source=CHIEF)

        return collect

    def _hand_in(self, operands: Operands) -> Callable[[], Any]:
        carrier, dtype, count = operands.dtype.carrier, operands.dtype.name, operands.count
        own, whole = operands.send.tensor(dtype, 0, count), self.workers * count
        is_chief = self.rank == CHIEF
        # ncclAllGather delivers everything to every worker, so each needs the room.
        gathered = operands.receive.tensor(dtype, 0, whole) if is_chief else own.new_empty(whole)

        def hand_in() -> None:
            self.dist.all_gather_into_tensor(gathered, own)
            if is_chief:
                gradients = operands.receive.get(carrier, 0, whole)
                for worker in range(self.workers):
                    self.communicator.Send(gradients[worker * count :][:count], dest=SERVER)

        return hand_in


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
            serves=True,
        )
    )
