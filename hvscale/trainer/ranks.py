"""The ranks of a job, as one of them sees them: Horovod under a launcher, otherwise a single
process.
"""

import ctypes
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, TypeVar

import torch

from hvscale.core.errors import HvscaleError, RankFailedError, RequestError
from hvscale.core.run_folder import Library
from hvscale.core.trainer_defaults import ON_CPU
from hvscale.core.trial_protocol import TrialFolder
from hvscale.launch import flavours
from hvscale.trainer.system.persistent_mpi import init_mpi

T = TypeVar("T")


class RanksChangedError(Exception):
    """In an elastic job: ranks were lost or added; the present ones continue from the last
    commit.
    """


class Ranks:
    """`hvd`: horovod.torch under a launcher, None for a single process (rank 0 of 1)."""

    on_cpu: ClassVar[dict[str, str]] = ON_CPU

    def __init__(self) -> None:
        """Raises RequestError if a launcher started this process and Horovod cannot connect it to
        the others.
        """
        self.hvd: ModuleType | None = None
        self.rank, self.size, self.local_rank, self.local_size = 0, 1, 0, 1
        place = flavours.launched_place()
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
                init_mpi(loaded_mpi())
            hvd.init()
        except (ImportError, OSError, ValueError) as error:
            self.fail(RequestError(f"{launcher} started {launched} ranks, but Horovod does not work: {error}"))
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
        """The library that the ranks communicate through."""
        if self.hvd is None:
            return Library(flavour="none", version="single process")
        if self.hvd.gloo_enabled():
            return without_mpi().find({})
        soname = loaded_mpi()
        if soname is None:
            return Library(flavour="unknown", version="unknown")
        text = ctypes.create_string_buffer(8192)  # longer than any library's MPI_MAX_LIBRARY_VERSION_STRING
        ctypes.CDLL(soname).MPI_Get_library_version(text, ctypes.byref(ctypes.c_int()))
        return library_of(text.value.decode(errors="replace"))

    def device(self) -> torch.device:
        """A GPU of the host, assigned to its ranks in turn; the CPU if there is no GPU."""
        if not torch.cuda.is_available():
            return torch.device("cpu")
        return torch.device("cuda", self.local_rank % torch.cuda.device_count())

    def allgather(self, value: T) -> list[T]:
        """Every rank's value, in rank order. Collective."""
        if self.hvd is None:
            return [value]
        # Horovod's default name contains the value's type: ranks with values of two types would
        # wait forever.
        values: list[T] = self.hvd.allgather_object(value, name="hvscale.gather")
        return values

    def broadcast(self, value: T, root: int = 0) -> T:
        """The value of rank `root`. Collective."""
        if self.hvd is None:
            return value
        sent: T = self.hvd.broadcast_object(value, root_rank=root, name="hvscale.broadcast")
        return sent

    def all_or_fail(self, work: Callable[[], T]) -> T:
        """Do `work` on every rank. If it raises RequestError on one rank, all ranks end with it.
        Collective.
        """
        done: Any = None
        error: RequestError | None = None
        try:
            done = work()
        except RequestError as failed:
            error = failed
        errors = self.allgather(error)
        if any(errors):
            self.end(errors)
        result: T = done
        return result

    def end(self, errors: list[RequestError | None]) -> None:
        """End all ranks with the first of their errors. `errors`: one entry for each rank."""
        self.fail(next(error for error in errors if error is not None))

    @contextmanager
    def end_if_a_rank_is_lost(self) -> Iterator[None]:
        """Context: a rank that finds another rank lost during a collective ends too."""
        try:
            yield
        except RuntimeError as error:  # what Horovod raises (HorovodInternalError) is one
            if self.hvd is None or "Horovod has been shut down" not in str(error):
                raise
            self.fail(RankFailedError("another rank ended during training: see its output", []))

    def fail(self, error: HvscaleError) -> None:
        """Raise `error` on rank 0, which prints it; the other ranks end silently with the same exit
        status.
        """
        if self.rank == 0:
            raise error
        time.sleep(1)  # a launcher ends all ranks when the first one ends; rank 0 must have printed its line by then
        raise SystemExit(error.exit_status)


def without_mpi() -> flavours.Flavour:
    """The flavour that Horovod uses without MPI."""
    return next(flavour for flavour in flavours.FLAVOURS.all().values() if not flavour.has_mpi)


def started_as_rank_zero() -> bool:
    """Whether this process prints: rank 0 of its launcher, or a single process."""
    place = flavours.launched_place()
    return place is None or place[1] == 0


def library_of(text: str) -> Library:
    """The library with this MPI_Get_library_version text; flavour "unknown" if no flavour
    matches.
    """
    flavour, _ = flavours.recognize(text) or ("unknown", "")
    first = (text.strip().splitlines() or [""])[0]
    return Library(flavour=flavour, version=" ".join(first.partition(",")[0].split()))


def loaded_mpi() -> str | None:
    """File name of the MPI library this process has loaded, if a flavour knows it."""
    maps = Path("/proc/self/maps").read_text()
    known = dict.fromkeys(flavour.soname for flavour in flavours.all_with_mpi() if flavour.soname)
    return next((soname for soname in known if soname in maps), None)
