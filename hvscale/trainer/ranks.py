"""The ranks of a job as one of them sees them: Horovod under a launcher, one process alone otherwise."""

import ctypes
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, TypeVar

import torch

from hvscale.core.cpu_defaults import ON_CPU
from hvscale.core.errors import HvscaleError, RankFailedError, RequestError
from hvscale.core.run_folder import Library
from hvscale.core.trial_protocol import TrialFolder
from hvscale.launch import flavours
from hvscale.trainer.system.persistent_mpi import hold_mpi

T = TypeVar("T")

# Where hvscale launch says how many ranks it started; the launchers that it calls say which one this is.
LAUNCHED_SIZE = "HVSCALE_NP"


class RanksChangedError(Exception):
    """In an elastic job: ranks have come or gone, and those that there are now go on from the last commit."""


class Ranks:
    """`hvd` is horovod.torch under a launcher and None in a process that was started alone (rank 0 of 1)."""

    on_cpu: ClassVar[dict[str, str]] = ON_CPU

    def __init__(self) -> None:
        """Raises RequestError when a launcher started this process and Horovod cannot join the others."""
        self.hvd: ModuleType | None = None
        self.rank, self.size, self.local_rank, self.local_size = 0, 1, 0, 1
        place = launched_place()
        if place is not None:
            self._join(*place)

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
            built_for = " or ".join(flavours.of_soname(loaded_mpi() or "")) or "no MPI"
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
            return without_mpi().find({})
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


def without_mpi() -> flavours.Flavour:
    """The flavour that Horovod uses where it has no MPI."""
    return next(flavour for flavour in flavours.FLAVOURS.all().values() if not flavour.has_mpi)


def launched_place() -> tuple[int, int, str] | None:
    """How many ranks the launcher of this process started, which one this is, and which launcher; None when it was started alone."""
    for one in flavours.all_rank_variables():
        if one.size in os.environ:
            return int(os.environ[one.size]), int(os.environ.get(one.rank, "0")), one.launcher
    return (int(os.environ[LAUNCHED_SIZE]), 0, "hvscale launch") if LAUNCHED_SIZE in os.environ else None


def started_as_rank_zero() -> bool:
    """Whether this process is the one to print: rank 0 according to its launcher, or alone."""
    place = launched_place()
    return place is None or place[1] == 0


def library_of(text: str) -> Library:
    """The library that MPI_Get_library_version describes in this text; "unknown" where no flavour recognizes it."""
    flavour, _ = flavours.named(text) or ("unknown", "")
    first = (text.strip().splitlines() or [""])[0]
    return Library(flavour=flavour, version=" ".join(first.partition(",")[0].split()))


def loaded_mpi() -> str | None:
    """The name of the MPI library that this process has loaded, one that a flavour knows; None without one."""
    maps = Path("/proc/self/maps").read_text()
    known = dict.fromkeys(flavour.soname for flavour in flavours.all_with_mpi() if flavour.soname)
    return next((soname for soname in known if soname in maps), None)
