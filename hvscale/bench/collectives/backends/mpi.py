"""MPI of any flavour: its C functions are called by address, with mpi4py's handles."""

import ctypes
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from hvscale.bench.collectives.backends import Backend, register
from hvscale.bench.collectives.elements import DTYPES, Bits, Dtype
from hvscale.bench.collectives.operations import COLLECTIVES, MpiArguments
from hvscale.bench.collectives.rank_side.buffers import Buffer, CudaBuffer
from hvscale.bench.collectives.rank_side.c_timer import CFunction, sum_address, time_calls
from hvscale.bench.collectives.rank_side.engine import Document, Engine, Operands, PreparedCall
from hvscale.bench.collectives.request import BenchRequest, Device
from hvscale.core.errors import HvscaleError, RequestError
from hvscale.launch.flavours import all_with_mpi

FROM_DEVICE, TO_DEVICE = 2, 1  # cudaMemcpyKind


class MpiError(HvscaleError):
    """An MPI call or a CUDA copy returned an error."""

    exit_status = 3


def load_mpi() -> Any:
    """mpi4py's initialized MPI module. Raises RequestError if mpi4py cannot load an MPI library."""
    try:
        import mpi4py

        # MPI takes no lock around each call, as in benchmarks written in C.
        mpi4py.rc.thread_level = "single"
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise RequestError(load_problem(error)) from error
    return MPI


def load_problem(error: ImportError | RuntimeError) -> str:
    """Why mpi4py could not be loaded and what to do, in one line."""
    text = "; ".join(str(error).splitlines())
    if isinstance(error, ModuleNotFoundError):
        return f"{text} in {sys.prefix}: run `make setup` (MPI=mpich for MPICH and compatible libraries)"
    missing = re.search(r"undefined symbol: (\w+)", text)
    if missing is None:
        return f"mpi4py cannot load an MPI library: {text}"
    library = next((file for file in loaded_files() if Path(file).name.startswith("libmpi")), "the MPI library")
    cause = " (it was built without MPI-IO)" if missing[1].startswith("MPI_File_") else ""
    return (
        f"{library} lacks {missing[1]}{cause}, so mpi4py cannot be loaded: use an MPI that has it, or --backend horovod, "
        "which does not need mpi4py"
    )


def loaded_files() -> list[str]:
    """The files mapped into this process."""
    return sorted({line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()})


class MpiEngine(Engine):
    """MPI with a duplicated communicator. GPU buffers are passed to MPI or staged through host
    memory.

    A parameter server has no GPU buffers.
    """

    def __init__(self, request: BenchRequest) -> None:
        self.mpi = mpi = load_mpi()
        self.communicator = mpi.COMM_WORLD.Dup()
        self.rank, self.np = self.communicator.rank, self.communicator.size
        self.library = " ".join(mpi.Get_library_version().splitlines()[0].partition(",")[0].split())
        self.staged = request.path == "staged"
        self.is_server = request.has_server and self.rank == 0
        # As in any program, preloaded libraries come before the library that mpi4py is linked to.
        self.libraries = [ctypes.CDLL(None), ctypes.CDLL(mpi.__file__)]
        self.sums: dict[str, int] = {}
        if request.device == "cuda":
            self._use_gpu(request)
            self._check_path(request, DTYPES[request.dtype])

    def buffer(self, device: Device, size: int) -> Buffer:
        return super().buffer("cpu" if self.is_server else device, size)

    def prepare_call(self, operands: Operands) -> PreparedCall:
        return MpiCall(self, operands)

    def allgather(self, document: Document) -> list[Document]:
        found: list[Document] = self.communicator.allgather(document)
        return found

    def broadcast_from_root(self, document: Document) -> Document:
        found: Document = self.communicator.bcast(document)
        return found

    def close(self) -> None:
        self.communicator.Free()

    def function_address(self, name: str) -> int:
        """The address of a C function. Raises RequestError if the library does not have it."""
        for found in self.libraries:
            if hasattr(found, name):
                return int(ctypes.cast(getattr(found, name), ctypes.c_void_p).value or 0)
        raise RequestError(f"{self.library} has no {name}")

    def handle(self, mpi_object: Any) -> int:
        return int(self.mpi._handleof(mpi_object))

    def sum_handle(self, dtype: Dtype) -> int:
        """The handle of MPI_SUM, or of our own operation for a type that MPI cannot sum."""
        if dtype.sum is None:
            return self.handle(self.mpi.SUM)
        if dtype.sum not in self.sums:
            handle = ctypes.c_size_t(0)  # in MPICH's ABI an int: the lower half on a little-endian machine
            create = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(
                self.function_address("MPI_Op_create")
            )
            self.check_status(create(sum_address(dtype.sum), True, ctypes.addressof(handle)))
            self.sums[dtype.sum] = handle.value
        return self.sums[dtype.sum]

    def check_status(self, status: int) -> None:
        """Raises MpiError with the library's text for a status other than 0."""
        if status != 0:
            raise MpiError(f"{self.library} returned an error: {self.mpi.Get_error_string(status)}")

    def _use_gpu(self, request: BenchRequest) -> None:
        """Choose this rank's GPU by its local rank.

        Workers of a parameter server are counted over all nodes instead: a rank alone in its
        container sees all GPUs of the node but no other rank.
        """
        import torch

        if self.is_server:
            return
        if not torch.cuda.is_available():
            raise RequestError("no NVIDIA GPU here: use --device cpu")
        local = self.communicator.Split_type(self.mpi.COMM_TYPE_SHARED) if request.first_worker is None else None
        number = local.rank if local is not None else self.rank - (request.first_worker or 0)
        torch.cuda.set_device(number % torch.cuda.device_count())
        if local is not None:
            local.Free()

    def _check_path(self, request: BenchRequest, dtype: Dtype) -> None:
        """Raises RequestError for a path that this MPI does not support."""
        if request.path == "nccl" or (self.staged and self.is_server):
            return
        if self.staged:
            self.libraries.append(ctypes.CDLL(next(path for path in loaded_files() if "libcudart" in path)))
            return
        try:
            aware = bool(ctypes.CFUNCTYPE(ctypes.c_int)(self.function_address("MPIX_Query_cuda_support"))())
        except RequestError:  # MVAPICH2-GDR does not have this function
            return
        if not aware:
            raise RequestError(f"{self.library} is not CUDA-aware: use --path staged")
        if dtype.sum is not None and COLLECTIVES.all()[request.collective].reduces:
            raise RequestError(f"the sum of {dtype.name} works in host memory only: use --path staged")


class MpiCall(PreparedCall):
    """One MPI call for each root, with copies before and after it if GPU memory is staged."""

    def __init__(self, engine: MpiEngine, operands: Operands) -> None:
        self.engine, self.operands = engine, operands
        self.barrier = CFunction(engine.function_address("MPI_Barrier"), (engine.handle(engine.communicator),))
        self.calls = [call for root in operands.roots for call in self._calls(replace(operands, root=root))]

    def call_once(self) -> Bits:
        self.time(1, 1, False)
        return self.operands.receive.get(self.operands.dtype.bits_type, *self.operands.received_range)

    def time(self, samples: int, calls: int, sync_each_call: bool) -> list[float]:
        status, seconds = time_calls(self.calls, self.barrier, samples, calls, sync_each_call)
        self.engine.check_status(status)
        return [sample / len(self.operands.roots) for sample in seconds]

    def _calls(self, operands: Operands) -> list[CFunction]:
        engine = self.engine
        call = self._mpi_call(operands)
        if not engine.staged or engine.is_server:
            return [call]
        copy = engine.function_address("cudaMemcpy")
        size = operands.dtype.bytes
        (first, last), (start, stop) = operands.sent_range, operands.received_range
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
                sum=lambda: engine.sum_handle(dtype),
                rank=operands.rank,
                root=operands.root,
                block_bytes=operands.count * dtype.bytes,
                in_place=operands.in_place,
            )
        )
        return CFunction(engine.function_address(name), arguments)

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
            supports_rotating_root=True,
            supports_param_server=True,
        )
    )
