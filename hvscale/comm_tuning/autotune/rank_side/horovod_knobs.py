"""Changes Horovod's fusion threshold and cycle time while it runs (libhvknobs.so)."""

import ctypes
import os
from types import ModuleType

from hvscale.core.built_library import built_library
from hvscale.core.errors import RequestError

LIBRARY = "libhvknobs.so"
THRESHOLD, CYCLE = "HOROVOD_FUSION_THRESHOLD", "HOROVOD_CYCLE_TIME"
DEFAULTS = {THRESHOLD: "134217728", CYCLE: "1"}  # of Horovod 0.28, horovod/common/operations.cc
FUNCTION = "_ZNK7horovod6common16ParameterManager"
GETTERS = {THRESHOLD: f"{FUNCTION}26TensorFusionThresholdBytesEv", CYCLE: f"{FUNCTION}11CycleTimeMsEv"}


class HorovodKnobs:
    """The two knobs of this process.

    `problem`: why they cannot change; empty if they can. `defaults`: the values of the job itself,
    empty if one is not a number.
    """

    def __init__(self, horovod: ModuleType) -> None:
        """`horovod`: the module `horovod.torch.mpi_ops`, before hvd.init()."""
        self.defaults: dict[str, str] = {}
        self.problem = ""
        try:
            self.library = ctypes.CDLL(str(built_library(LIBRARY)))
            self.library.hvknobs_set.argtypes = [ctypes.c_int64, ctypes.c_double]
            self.library.hvknobs_reads.restype = ctypes.c_uint64
            own = ctypes.CDLL(horovod.mpi_lib.__file__)
            self.getters = [ctypes.cast(getattr(own, GETTERS[name]), ctypes.c_void_p) for name in (THRESHOLD, CYCLE)]
        except (OSError, AttributeError, RequestError) as error:
            self.problem = f"this Horovod's knobs cannot change while it runs ({error})"

    def take_over(self) -> None:
        """Make Horovod read the values from here, at first those that it would have.

        Call it before hvd.init() starts Horovod's thread.
        """
        if self.problem or self.defaults:
            return
        self.defaults = {name: os.environ.get(name) or word for name, word in DEFAULTS.items()}
        try:
            self.set({})
        except ValueError:
            self.problem, self.defaults = f"{THRESHOLD} or {CYCLE} is not a number", {}
            return
        number = self.library.hvknobs_redirect(*self.getters)
        if number:
            self.problem = f"this Horovod's knobs cannot change while it runs ({os.strerror(number)})"

    def set(self, variables: dict[str, str]) -> None:
        """Set the values, if they can change; those that are missing have their defaults."""
        if self.problem:
            return
        words = {**self.defaults, **variables}
        self.library.hvknobs_set(int(words[THRESHOLD]), float(words[CYCLE]))

    @property
    def are_redirected(self) -> bool:
        """Whether Horovod reads the values from here, and not from its variables."""
        return bool(self.defaults) and not self.problem

    @property
    def are_read(self) -> bool:
        """Whether Horovod has read a value since the beginning."""
        return not self.problem and bool(self.library.hvknobs_reads())
