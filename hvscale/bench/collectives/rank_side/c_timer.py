"""The C library libhvbench: times calls without Python in between, and sums 16-bit types."""

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
    """The address of a C function, and arguments that each fit a register: addresses, handles,
    ints.
    """

    address: int
    arguments: tuple[int, ...]

    def as_call(self) -> Call:
        words = (ctypes.c_size_t * MAX_ARGUMENTS)(*(argument & WORD_MASK for argument in self.arguments))
        return Call(self.address, len(self.arguments), words)


@cache
def library() -> ctypes.CDLL:
    """The loaded library. Raises RequestError if it was not built."""
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
    """The status of the first failed call (0: none), and for each sample the mean seconds of making
    all `calls` once.

    `sync_each_call`: a barrier before each call instead of before each sample.
    """
    seconds = (ctypes.c_double * samples)()
    array = (Call * len(calls))(*(call.as_call() for call in calls))
    status = library().hvbench_time(
        array, len(calls), ctypes.byref(barrier.as_call()), samples, repeats, sync_each_call, seconds
    )
    return status, list(seconds)


def sum_address(name: str) -> int:
    """The address of a sum in native/bench_timer/sums.h, with the best instructions of this
    processor.
    """
    library().hvbench_choose_sums(b"best")
    return int(ctypes.cast(library()[name], ctypes.c_void_p).value or 0)
