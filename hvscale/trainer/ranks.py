"""The ranks of a job as one of them sees them: Horovod under a launcher, one process alone otherwise."""

import ctypes
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, TypeVar

import torch

from hvscale.core.cpu_defaults import ON_CPU
from hvscale.core.errors import HvscaleError, RankFailedError, RequestError
from hvscale.core.run_folder import Library
from hvscale.core.trial_protocol import TrialFolder
from hvscale.trainer.system.persistent_mpi import hold_mpi

T = TypeVar("T")

# Where launchers say how many ranks they started and which this one is: size, rank, who.
LAUNCHERS = (
    ("HOROVOD_SIZE", "HOROVOD_RANK", "horovodrun"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "Open MPI's mpirun"),
    ("PMI_SIZE", "PMI_RANK", "a launcher of the MPICH family"),
    ("HVSCALE_NP", "HVSCALE_RANK", "hvscale launch"),
)
# Each family's shared library is named by its ABI; MVAPICH2 and Intel MPI have MPICH's.
MPI_FLAVOURS = {"libmpi.so.40": "openmpi", "libmpi.so.12": "mpich"}
# How those that share the ABI begin what they say of themselves.
BY_TEXT = {"MVAPICH2": "mvapich2", "Intel(R) MPI": "intelmpi", "MPICH Version": "mpich", "Open MPI": "openmpi"}


class RanksChangedError(Exception):
    """In an elastic job: ranks have come or gone, and those that there are now go on from the last commit."""


class Ranks:
    """`hvd` is horovod.torch under a launcher and None in a process that was started alone (rank 0 of 1)."""

    on_cpu: ClassVar[dict[str, str]] = ON_CPU

    def __init__(self) -> None:
        """Raises RequestError when a launcher started this process and Horovod cannot join the others."""
        self.hvd: ModuleType | None = None
        self.rank, self.size, self.local_rank, self.local_size = 0, 1, 0, 1
        for size_name, rank_name, launcher in LAUNCHERS:
            if size_name in os.environ:
                self._join(int(os.environ[size_name]), int(os.environ.get(rank_name, "0")), launcher)
                break

    def _join(self, launched: int, launched_rank: int, launcher: str) -> None:
        self.rank, self.size = launched_rank, launched
        if not torch.cuda.is_available():
            for name, value in self.on_cpu.items():
                os.environ.setdefault(name, value)
        try:
            import horovod.torch as hvd

            if TrialFolder.of_this_rank() is not None:
                hold_mpi(loaded_mpi())
            hvd.init()
        except (ImportError, OSError, ValueError) as error:
            self.fail(RequestError(f"{launcher} started {launched} ranks, but Horovod cannot be used: {error}"))
        if hvd.size() != launched:
            built_for = MPI_FLAVOURS.get(loaded_mpi() or "", "no MPI")
            self.fail(
                RequestError(
                    f"{launcher} started {launched} ranks, but Horovod sees {hvd.size()}: it is built for {built_for}. "
                    "Start it with that MPI's own mpirun, or with horovodrun --gloo, or build Horovod for this MPI"
                )
            )
        self.hvd = hvd
        self.rank, self.local_rank, self.local_size = hvd.rank(), hvd.local_rank(), hvd.local_size()

    def library(self) -> Library:
        """What the ranks communicate with."""
        if self.hvd is None:
            return Library(flavour="none", version="one process alone")
        if self.hvd.gloo_enabled():
            return Library(flavour="gloo", version=f"inside Horovod {metadata.version('horovod')}")
        soname = loaded_mpi()
        if soname is None:
            return Library(flavour="unknown", version="unknown")
        text = ctypes.create_string_buffer(8192)  # longer than any family's MPI_MAX_LIBRARY_VERSION_STRING
        ctypes.CDLL(soname).MPI_Get_library_version(text, ctypes.byref(ctypes.c_int()))
        return library_of(text.value.decode(errors="replace"))

    def device(self) -> torch.device:
        """A GPU of the host, in turn for its ranks; the CPU where there is none."""
        if not torch.cuda.is_available():
            return torch.device("cpu")
        return torch.device("cuda", self.local_rank % torch.cuda.device_count())

    def gather(self, value: T) -> list[T]:
        """Every rank's value, in the order of ranks."""
        if self.hvd is None:
            return [value]
        # Horovod's own name for it holds the value's type: ranks with values of two types would wait for ever.
        gathered: list[T] = self.hvd.allgather_object(value, name="hvscale.gather")
        return gathered

    def broadcast(self, value: T, root: int = 0) -> T:
        """The value of rank `root`, given by every rank. Collective."""
        if self.hvd is None:
            return value
        sent: T = self.hvd.broadcast_object(value, root_rank=root, name="hvscale.broadcast")
        return sent

    def together(self, work: Callable[[], T]) -> T:
        """Do `work` on every rank; when it fails on one of them, it has failed on all."""
        done: Any = None
        error: RequestError | None = None
        try:
            done = work()
        except RequestError as failed:
            error = failed
        errors = self.gather(error)
        if any(errors):
            self.end(errors)
        result: T = done
        return result

    def end(self, errors: list[RequestError | None]) -> None:
        """End all ranks with the first of their errors."""
        self.fail(next(error for error in errors if error is not None))

    @contextmanager
    def ending_together(self) -> Iterator[None]:
        """Within, a rank that finds another one gone in the middle of a collective ends too."""
        try:
            yield
        except RuntimeError as error:  # what Horovod raises (HorovodInternalError) is one
            if self.hvd is None or "Horovod has been shut down" not in str(error):
                raise
            self.fail(RankFailedError("another rank ended during training: its own output says why", []))

    def fail(self, error: HvscaleError) -> None:
        """Raise `error` on rank 0, which is to print it; the other ranks end without a word, with its exit status."""
        if self.rank == 0:
            raise error
        time.sleep(1)  # a launcher ends all ranks when the first one ends: let that be rank 0, its line written
        raise SystemExit(error.exit_status)


def started_as_rank_zero() -> bool:
    """Whether this process is the one to print: rank 0 by what its launcher says, or alone."""
    for size_name, rank_name, _ in LAUNCHERS:
        if size_name in os.environ:
            return os.environ.get(rank_name, "0") == "0"
    return True


def library_of(text: str) -> Library:
    """The library that says this of itself; "unknown" where it is none of BY_TEXT."""
    flavour = next((name for start, name in BY_TEXT.items() if text.lstrip().startswith(start)), "unknown")
    first = (text.strip().splitlines() or [""])[0]
    return Library(flavour=flavour, version=" ".join(first.partition(",")[0].split()))


def loaded_mpi() -> str | None:
    """The name of the MPI library that this process has loaded, one of MPI_FLAVOURS."""
    maps = Path("/proc/self/maps").read_text()
    return next((soname for soname in MPI_FLAVOURS if soname in maps), None)
