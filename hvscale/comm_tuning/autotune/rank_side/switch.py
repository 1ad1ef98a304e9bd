"""Changes settings of a running job, at the end of a step.

Horovod's fusion threshold and cycle time change in place. Algorithms of MPI need new communicators:
Horovod starts again inside each rank's process, after MPI's tools interface has selected them. MPI
itself stays initialised. hvscale's broadcast changes in the same moment, when no broadcast of
Horovod's thread is in flight.
"""

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType

from hvscale.comm_tuning.autotune.rank_side.agreement import all_ranks_agree
from hvscale.comm_tuning.autotune.rank_side.horovod_knobs import CYCLE, DEFAULTS, THRESHOLD, HorovodKnobs
from hvscale.comm_tuning.autotune.rank_side.request import RankRequest, Settings, Variables, split
from hvscale.comm_tuning.collectives.broadcast import preloaded_here
from hvscale.comm_tuning.collectives.measure.mpi_t import (
    ControlVariableError,
    ControlVariables,
    loaded_library,
)
from hvscale.launch.rank_side.persistent_mpi import init_mpi


class SwitchRefusedError(ValueError):
    """A rank could not make a change. All ranks raise it, and all have the defaults."""


class Switcher:
    """Switches this rank between settings. `current`: those in effect.

    `init` and `shutdown` are Horovod's own.
    """

    def __init__(
        self, horovod: ModuleType, request: RankRequest, init: Callable[[], None], shutdown: Callable[[], None]
    ) -> None:
        self.horovod, self.request, self.init, self.shutdown = horovod, request, init, shutdown
        self.knobs = HorovodKnobs(horovod)
        self.mpi: ControlVariables | None = None
        self.accepted: list[dict[str, str]] = []  # by the MPI library
        self.broadcast = ""  # the algorithm of hvscale's broadcast; "" for the job's own
        self.current: Settings = {}

    def before_init(self, may_restart: bool) -> None:
        """Prepare for changes, before the program's hvd.init().

        `may_restart`: Horovod may start again in this program.
        """
        self.knobs.take_over()
        # Horovod cannot start again if it reads both variables.
        may_restart = may_restart and (self.knobs.are_redirected or not all(name in os.environ for name in DEFAULTS))
        if may_restart and not runs_on_gloo() and keep_mpi():
            self._connect()

    def reset(self) -> None:
        """Return to the defaults, while Horovod is shut down. Raises ControlVariableError."""
        if self.mpi is not None:
            self.mpi.set({})
            self._broadcast_by("")
        if self.knobs.defaults:
            self.knobs.set({})
        self.current = {}

    def _connect(self) -> None:
        """Find the MPI library of this process, and which changes it accepts.

        Trying sets and resets its variables, which MPICH reads at each call: only before Horovod
        starts no call is affected.
        """
        numbers = {(name, word): number for name, word, number in self.request.numbers}
        try:
            self.mpi = ControlVariables(loaded_library(), numbers)
        except (ControlVariableError, OSError):
            return
        for values in self.request.moves.values():
            for variables in values.values():
                of_mpi = split(variables).mpi
                if of_mpi and self.mpi.accepts(of_mpi):
                    self.accepted.append(of_mpi)

    def accepts(self, settings: Settings) -> bool:
        """Whether the settings of one knob differ from the defaults and can be changed here."""
        variables = split(self.request.variables(settings))
        own, of_mpi = variables.horovod, variables.mpi
        if (own and not self.knobs.are_read) or (of_mpi and of_mpi not in self.accepted):
            return False
        if variables.broadcast and (self.mpi is None or preloaded_here() is None):
            return False
        return variables.reach_mpi or any(float(self.knobs.defaults[name]) != float(word) for name, word in own.items())

    def switch(self, settings: Settings) -> None:
        """Put the settings into effect. Collective; no operation of Horovod may be in flight.

        Raises SwitchRefusedError on all ranks if the MPI library of one refuses a change: then the
        defaults are in effect. Raises ControlVariableError if this rank cannot return to them, and
        what Horovod raises; it is then shut down.
        """
        variables = split(self.request.variables(settings))
        if self.mpi is not None and (variables.mpi, variables.broadcast) != (self.mpi.current, self.broadcast):
            self._restart(self.mpi, variables)
        self.knobs.set(variables.horovod)
        self.current = dict(settings)

    def _restart(self, mpi: ControlVariables, variables: Variables) -> None:
        """Start Horovod again with these variables of MPI and hvscale's broadcast, or with none.

        The ranks agree before Horovod starts: its own messages need the same algorithm everywhere.
        """
        place = self.horovod.rank(), self.horovod.size()
        self.shutdown()
        refusal = ""
        try:
            mpi.set(variables.mpi)
            self._broadcast_by(variables.broadcast)
        except ControlVariableError as error:
            refusal = str(error)
        agreed = all_ranks_agree(mpi.mpi, not refusal, place[1])
        if not agreed:
            mpi.set({})
            self._broadcast_by("")
            self.knobs.set({})
            self.current = {}
        with without_own_variables():
            self.init()
        if (self.horovod.rank(), self.horovod.size()) != place:
            raise OSError("Horovod's ranks have changed")
        if not agreed:
            raise SwitchRefusedError(refusal or "the MPI library of another rank refuses it")

    def _broadcast_by(self, algorithm: str) -> None:
        """Raises ControlVariableError if hvscale's broadcast does not take the algorithm."""
        library = preloaded_here()
        if algorithm != self.broadcast and (library is None or library.hvbcast_use(algorithm.encode()) != 0):
            raise ControlVariableError(
                f"hvscale's broadcast does not take {algorithm or 'the defaults'} in this process"
            )
        self.broadcast = algorithm


@contextmanager
def without_own_variables() -> Iterator[None]:
    """Context: Horovod does not see its two variables.

    Horovod 0.28 crashes in a second hvd.init() if it has read both. `HorovodKnobs` has the values.
    """
    saved = {name: os.environ.pop(name) for name in (THRESHOLD, CYCLE) if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(saved)


def runs_on_gloo() -> bool:
    return os.environ.get("HOROVOD_CONTROLLER", "").lower() == "gloo"


def library_name() -> str:
    """The library that Horovod communicates through, as it names itself."""
    if runs_on_gloo():
        return "gloo"
    try:
        mpi = ctypes.CDLL(loaded_library())
    except (ControlVariableError, OSError):
        return "gloo"
    text = ctypes.create_string_buffer(8192)  # longer than any library's MPI_MAX_LIBRARY_VERSION_STRING
    mpi.MPI_Get_library_version(text, ctypes.byref(ctypes.c_int()))
    first = next(iter(text.value.decode(errors="replace").splitlines()), "")
    return " ".join(first.partition(",")[0].split())


def keep_mpi() -> bool:
    """Let MPI outlive Horovod, where the job uses MPI. Call it before hvd.init().

    Returns whether it does.
    """
    try:
        init_mpi(loaded_library())
    except ControlVariableError:
        return False
    return True
