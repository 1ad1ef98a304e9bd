"""MPI itself, of any flavour: its C functions called by address, with the handles that mpi4py knows."""

import ctypes
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from hvscale.bench.collectives.backends import Backend, register
from hvscale.bench.collectives.elements import DTYPES, Carried, Dtype
from hvscale.bench.collectives.operations import COLLECTIVES, MpiArguments
from hvscale.bench.collectives.rank_side.buffers import Buffer, CudaBuffer
from hvscale.bench.collectives.rank_side.engine import Document, Engine, Operands, Work
from hvscale.bench.collectives.rank_side.timed_library import CFunction, sum_address, time_calls
from hvscale.bench.collectives.request import Device, Request
from hvscale.core.errors import HvscaleError, RequestError
from hvscale.launch.flavours import all_with_mpi

FROM_DEVICE, TO_DEVICE = 2, 1  # cudaMemcpyKind


class MpiError(HvscaleError):
    """MPI has refused a call, or CUDA a copy."""

    exit_status = 3


def load_mpi() -> Any:
    """mpi4py's MPI, initialized. Raises RequestError where the MPI library lacks something that mpi4py needs, or there is none."""
    try:
        import mpi4py

        # Without locks around each call, as benchmarks in C start it.
        mpi4py.rc.thread_level = "single"
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise RequestError(why_not_loaded(error)) from error
    return MPI


def why_not_loaded(error: ImportError | RuntimeError) -> str:
    """What mpi4py said when it could not be loaded, in one line, with what to do."""
    said = "; ".join(str(error).splitlines())
    if isinstance(error, ModuleNotFoundError):
        return f"{said} in {sys.prefix}: run `make setup` (MPI=mpich for MPICH and its kin)"
    missing = re.search(r"undefined symbol: (\w+)", said)
    if missing is None:
        return f"mpi4py cannot load an MPI library: {said}"
    library = next((file for file in loaded_files() if Path(file).name.startswith("libmpi")), "the MPI library")
    built = ", as one built without MPI-IO (ROMIO) does" if missing[1].startswith("MPI_File_") else ""
    return (
        f"{library} lacks {missing[1]}{built}, so mpi4py cannot be loaded: use an MPI that has it, or measure through Horovod "
        "(--backend horovod), which does not need it"
    )


def loaded_files() -> list[str]:
    """The files that are mapped into this process."""
    return sorted({line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()})


class MpiEngine(Engine):
    """In a communicator of its own. Buffers on a GPU are handed to MPI as they are, or copied over the node's memory.

    A parameter server has none on a GPU.
    """

    def __init__(self, request: Request) -> None:
        self.mpi = mpi = load_mpi()
        self.communicator = mpi.COMM_WORLD.Dup()
        self.rank, self.np = self.communicator.rank, self.communicator.size
        self.library = " ".join(mpi.Get_library_version().splitlines()[0].partition(",")[0].split())
        self.staged = request.path == "staged"
        self.is_server = request.has_server and self.rank == 0
        # What is preloaded goes first, as for any program; else what mpi4py itself is linked to.
        self.objects = [ctypes.CDLL(None), ctypes.CDLL(mpi.__file__)]
        self.sums: dict[str, int] = {}
        if request.device == "cuda":
            self._use_gpu(request)
            self._check_path(request, DTYPES[request.dtype])

    def buffer(self, device: Device, size: int) -> Buffer:
        return super().buffer("cpu" if self.is_server else device, size)

    def work(self, operands: Operands) -> Work:
        return MpiWork(self, operands)

    def gathered(self, document: Document) -> list[Document]:
        found: list[Document] = self.communicator.allgather(document)
        return found

    def decided(self, document: Document) -> Document:
        found: Document = self.communicator.bcast(document)
        return found

    def close(self) -> None:
        self.communicator.Free()

    def function(self, name: str) -> int:
        """Its address. Raises RequestError where the library has none."""
        for found in self.objects:
            if hasattr(found, name):
                return int(ctypes.cast(getattr(found, name), ctypes.c_void_p).value or 0)
        raise RequestError(f"{self.library} has no {name}")

    def handle(self, mpi_object: Any) -> int:
        return int(self.mpi._handleof(mpi_object))

    def sum_of(self, dtype: Dtype) -> int:
        """The handle of MPI_SUM, or for a type that MPI cannot add up, of our own operation."""
        if dtype.sum is None:
            return self.handle(self.mpi.SUM)
        if dtype.sum not in self.sums:
            handle = ctypes.c_size_t(0)  # an int in MPICH's ABI: on a little-endian machine the lower half
            create = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(
                self.function("MPI_Op_create")
            )
            self.succeed(create(sum_address(dtype.sum), True, ctypes.addressof(handle)))
            self.sums[dtype.sum] = handle.value
        return self.sums[dtype.sum]

    def succeed(self, status: int) -> None:
        """Raises MpiError, in the library's words, for another status than 0."""
        if status != 0:
            raise MpiError(f"{self.library} refuses: {self.mpi.Get_error_string(status)}")

    def _use_gpu(self, request: Request) -> None:
        """Workers are counted over all nodes, because a container for each rank sees all GPUs of its node and no other rank."""
        import torch

        if self.is_server:
            return
        if not torch.cuda.is_available():
            raise RequestError("no NVIDIA GPU here: --device cpu")
        local = self.communicator.Split_type(self.mpi.COMM_TYPE_SHARED) if request.first_worker is None else None
        number = local.rank if local is not None else self.rank - (request.first_worker or 0)
        torch.cuda.set_device(number % torch.cuda.device_count())
        if local is not None:
            local.Free()

    def _check_path(self, request: Request, dtype: Dtype) -> None:
        """Raises RequestError for a way that this MPI does not have."""
        if request.path == "nccl" or (self.staged and self.is_server):
            return
        if self.staged:
            self.objects.append(ctypes.CDLL(next(path for path in loaded_files() if "libcudart" in path)))
            return
        try:
            aware = bool(ctypes.CFUNCTYPE(ctypes.c_int)(self.function("MPIX_Query_cuda_support"))())
        except RequestError:  # MVAPICH2-GDR does not say
            return
        if not aware:
            raise RequestError(f"{self.library} takes no GPU memory: --path staged")
        if dtype.sum is not None and COLLECTIVES.all()[request.collective].reduces:
            raise RequestError(f"our sum of {dtype.name} works in the node's memory: --path staged")


class MpiWork(Work):
    """One MPI call of each root, with a copy before and behind it where memory of a GPU is staged."""

    def __init__(self, engine: MpiEngine, operands: Operands) -> None:
        self.engine, self.operands = engine, operands
        self.meet = CFunction(engine.function("MPI_Barrier"), (engine.handle(engine.communicator),))
        self.calls = [call for root in operands.roots for call in self._calls(replace(operands, root=root))]

    def once(self) -> Carried:
        self.time(1, 1, False)
        return self.operands.receive.get(self.operands.dtype.carrier, *self.operands.received)

    def time(self, samples: int, calls: int, apart: bool) -> list[float]:
        status, seconds = time_calls(self.calls, self.meet, samples, calls, apart)
        self.engine.succeed(status)
        return [one / len(self.operands.roots) for one in seconds]

    def _calls(self, operands: Operands) -> list[CFunction]:
        engine = self.engine
        call = self._mpi_call(operands)
        if not engine.staged or engine.is_server:
            return [call]
        copy = engine.function("cudaMemcpy")
        size = operands.dtype.bytes
        (first, last), (start, stop) = operands.sent, operands.received
        source, target = operands.source, operands.receive
        assert isinstance(source, CudaBuffer) and isinstance(target, CudaBuffer)  # noqa: S101, PT018
        to_host = (source.host_address + first * size, source.address + first * size, (last - first) * size)
        to_device = (target.address + start * size, target.host_address + start * size, (stop - start) * size)
        return [CFunction(copy, (*to_host, FROM_DEVICE)), call, CFunction(copy, (*to_device, TO_DEVICE))]

    def _mpi_call(self, operands: Operands) -> CFunction:
        engine = self.engine
        mpi, dtype = engine.mpi, operands.dtype
        send, receive = (self._address(buffer) for buffer in (operands.send, operands.receive))
        name, arguments = operands.collective.mpi(
            MpiArguments(
                send=int(mpi.IN_PLACE) if operands.in_place else send,
                receive=receive,
                count=operands.count,
                datatype=engine.handle(getattr(mpi, dtype.mpi)),
                communicator=engine.handle(engine.communicator),
                sum=lambda: engine.sum_of(dtype),
                rank=operands.rank,
                root=operands.root,
                block_bytes=operands.count * dtype.bytes,
                in_place=operands.in_place,
            )
        )
        return CFunction(engine.function(name), arguments)

    def _address(self, buffer: Any) -> int:
        return int(buffer.host_address if isinstance(buffer, CudaBuffer) and self.engine.staged else buffer.address)


for flavour in all_with_mpi():
    register(
        Backend(
            name=flavour.name,
            flavour=flavour.name,
            out_of_place=frozenset(name for name, collective in COLLECTIVES.all().items() if collective.out_of_place),
            in_place=frozenset(name for name, collective in COLLECTIVES.all().items() if collective.in_place),
            dtypes=tuple(DTYPES),
            paths={"cpu": ("host",), "cuda": ("staged", "aware")},
            open=MpiEngine,
            turns_roots=True,
            serves=True,
        )
    )
