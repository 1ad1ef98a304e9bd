"""The ranks of a job: Horovod under a launcher, otherwise a single process."""

import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, TypeVar

import torch

from hvscale.core.errors import HvscaleError, RankFailedError, RequestError
from hvscale.core.run_folder import Library
from hvscale.core.trainer_defaults import CPU_ENVIRONMENT
from hvscale.core.trial_protocol import TrialFolder
from hvscale.launch import flavours
from hvscale.launch.mpi.build_record import check_torch
from hvscale.launch.mpi.horovod_build import library_in
from hvscale.launch.rank_side.persistent_mpi import init_mpi

T = TypeVar("T")


class RanksChangedError(Exception):
    """In an elastic job, ranks were lost or added. Training continues from the last commit."""


class Ranks:
    """The ranks of a job, as seen by this one.

    `hvd` is horovod.torch under a launcher and None for a single process (rank 0 of 1).
    """

    cpu_environment: ClassVar[dict[str, str]] = CPU_ENVIRONMENT

    def __init__(self) -> None:
        """Raises RequestError if Horovod cannot connect this process to its launcher's others."""
        self.hvd: ModuleType | None = None
        self.rank, self.size, self.local_rank, self.local_size = 0, 1, 0, 1
        place = flavours.launched_place()
        if place is not None:
            self._join(*place)

    def _join(self, size: int, rank: int, launcher: str) -> None:
        self.rank, self.size = rank, size
        if not torch.cuda.is_available():
            for name, value in self.cpu_environment.items():
                os.environ.setdefault(name, value)
        try:
            built = library_in(Path(sys.prefix))
            if built is not None:
                check_torch(built)
        except RequestError as error:
            self.fail(error)
        try:
            import horovod.torch as hvd

            if TrialFolder.of_this_rank() is not None and (library := loaded_mpi()) is not None:
                init_mpi(library)
            hvd.init()
        except (ImportError, OSError, ValueError) as error:
            self.fail(RequestError(f"{launcher} started {size} ranks, but Horovod does not work: {error}"))
        if hvd.size() != size:
            built_for = " or ".join(flavours.of_soname(loaded_mpi() or "")) or "no MPI"
            self.fail(
                RequestError(
                    f"{launcher} started {size} ranks, but Horovod sees {hvd.size()}: it is built for {built_for}. "
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
            return flavour_without_mpi().find({})
        soname = loaded_mpi()
        if soname is None:
            return Library(flavour="unknown", version="unknown")
        text = ctypes.create_string_buffer(8192)  # longer than any library's MPI_MAX_LIBRARY_VERSION_STRING
        ctypes.CDLL(soname).MPI_Get_library_version(text, ctypes.byref(ctypes.c_int()))
        return parse_library(text.value.decode(errors="replace"))

    def device(self) -> torch.device:
        """A GPU of the host, assigned round-robin to its ranks; the CPU if there is no GPU."""
        if not torch.cuda.is_available():
            return torch.device("cpu")
        return torch.device("cuda", self.local_rank % torch.cuda.device_count())

    def allgather(self, value: T) -> list[T]:
        """Every rank's value, in rank order. Collective."""
        if self.hvd is None:
            return [value]
        # Horovod's default name contains the value's type: ranks with different types would hang.
        values: list[T] = self.hvd.allgather_object(value, name="hvscale.gather")
        return values

    def broadcast(self, value: T, root: int = 0) -> T:
        """The value of rank `root`. Collective."""
        if self.hvd is None:
            return value
        sent: T = self.hvd.broadcast_object(value, root_rank=root, name="hvscale.broadcast")
        return sent

    def all_or_fail(self, work: Callable[[], T]) -> T:
        """Run `work` on every rank; if one raises RequestError, all end with it. Collective."""
        done: Any = None
        error: RequestError | None = None
        try:
            done = work()
        except RequestError as failed:
            error = failed
        errors = self.allgather(error)
        if any(errors):
            self.handle_errors(errors)
        result: T = done
        return result

    def handle_errors(self, errors: list[RequestError | None]) -> None:
        """End all ranks with the first error. `errors` has one entry for each rank."""
        self.fail(next(error for error in errors if error is not None))

    @contextmanager
    def end_if_a_rank_is_lost(self) -> Iterator[None]:
        """Context: this rank ends too if another rank is lost during a collective."""
        try:
            yield
        except RuntimeError as error:  # base class of HorovodInternalError
            if self.hvd is None or "Horovod has been shut down" not in str(error):
                raise
            # Horovod ends in all ranks at once, and launchers end all ranks when one exits. Let
            # that be the one that failed.
            self.hvd.shutdown()
            time.sleep(3)
            self.fail(RankFailedError("another rank ended during training: see its output", []))

    def fail(self, error: HvscaleError) -> None:
        """Raise `error` on rank 0, which prints it; other ranks exit silently with its status."""
        if self.rank == 0:
            raise error
        time.sleep(1)  # launchers end all ranks when the first one exits: let rank 0 print its line
        raise SystemExit(error.exit_status)


def flavour_without_mpi() -> flavours.Flavour:
    """The flavour that Horovod uses when it runs without MPI."""
    return next(flavour for flavour in flavours.FLAVOURS.all().values() if not flavour.has_mpi)


def started_as_rank_zero() -> bool:
    """Whether this process is rank 0 of its launcher, or a single process."""
    place = flavours.launched_place()
    return place is None or place[1] == 0


def parse_library(text: str) -> Library:
    """The library whose MPI_Get_library_version returns `text`; its flavour may be "unknown"."""
    flavour, _ = flavours.recognize(text) or ("unknown", "")
    first = (text.strip().splitlines() or [""])[0]
    return Library(flavour=flavour, version=" ".join(first.partition(",")[0].split()))


def loaded_mpi() -> str | None:
    """File name of the MPI library that this process has loaded, if it is one of our flavours'."""
    maps = Path("/proc/self/maps").read_text()
    known = dict.fromkeys(flavour.soname for flavour in flavours.all_with_mpi() if flavour.soname)
    return next((soname for soname in known if soname in maps), None)
