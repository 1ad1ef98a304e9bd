"""The C library: calls by address timed without Python in between, and the sums that MPI lacks."""

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hvscale.core.built_library import built_library

LIBRARY = "libhvbench.so"
MAX_ARGUMENTS = 9
WORD_MASK = 2**64 - 1


class Call(ctypes.Structure):
    """`struct call` of native/bench_timer/time_calls.h."""

    _fields_ = [
        ("function", ctypes.c_size_t),
        ("arity", ctypes.c_size_t),
        ("arguments", ctypes.c_size_t * MAX_ARGUMENTS),
    ]


@dataclass(frozen=True)
class CFunction:
    """A C function by its address, with arguments that each fit a register: addresses, handles,
    ints.
    """

    address: int
    arguments: tuple[int, ...]

    def as_call(self) -> Call:
        words = (ctypes.c_size_t * MAX_ARGUMENTS)(*(argument & WORD_MASK for argument in self.arguments))
        return Call(self.address, len(self.arguments), words)


@cache
def library() -> ctypes.CDLL:
    """The loaded library. Raises RequestError when it was not built."""
    return load(built_library(LIBRARY))


def load(path: Path) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(path))
    calls = ctypes.POINTER(Call)
    loaded.hvbench_time.argtypes = [calls, ctypes.c_int, calls, *[ctypes.c_int] * 3, ctypes.POINTER(ctypes.c_double)]
    loaded.hvbench_choose_sums.argtypes = [ctypes.c_char_p]
    return loaded


def time_calls(
    calls: list[CFunction], barrier: CFunction, samples: int, repeats: int, sync_each_call: bool
) -> tuple[int, list[float]]:
    """The status of the first call that failed (0: none), and the seconds that all `calls` took
    once, for each sample.

    `sync_each_call`: a barrier before each call, instead of before each sample.
    """
    seconds = (ctypes.c_double * samples)()
    array = (Call * len(calls))(*(call.as_call() for call in calls))
    status = library().hvbench_time(
        array, len(calls), ctypes.byref(barrier.as_call()), samples, repeats, sync_each_call, seconds
    )
    return status, list(seconds)


def sum_address(name: str) -> int:
    """The address of one of native/bench_timer/sums.h's sums, by the best instructions of this
    processor.
    """
    library().hvbench_choose_sums(b"best")
    return int(ctypes.cast(library()[name], ctypes.c_void_p).value or 0)
