"""hvscale's sums of 16-bit floats, compared with NumPy's and PyTorch's: every bit pattern, with
every instruction set of this machine.
"""

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hvscale.bench.collectives.rank_side import c_timer
from tests.native import BENCH_TIMER, FLAGS, SHARED_LIBRARY

Bits = NDArray[np.uint16]
INSTRUCTIONS = [b"avx512fp16", b"avx512", b"avx2", b"plain"]
ALL: Bits = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
# Zeros, subnormals, the smallest and largest normal numbers, ones, halves of units in the last
# place, infinities, quiet and signalling NaN.
SPECIAL = (
    *(0x0000, 0x0001, 0x0002, 0x03FF, 0x0400, 0x0401, 0x007F, 0x0080, 0x1000, 0x1001, 0x3C00, 0x3C01, 0x3F80, 0x3F81),
    *(0x4B80, 0x5BFF, 0x7800, 0x7BFF, 0x7C00, 0x7C01, 0x7E00, 0x7F7F, 0x7F80, 0x7F81, 0x7FC0, 0x7FFF),
)
OTHERS = [*SPECIAL, *(bits | 0x8000 for bits in SPECIAL), *np.random.default_rng(1).integers(0, 1 << 16, 40).tolist()]


@pytest.fixture
def library(request: pytest.FixtureRequest) -> ctypes.CDLL:
    loaded = c_timer.library()
    if loaded.hvbench_choose_sums(request.param) != 0:
        pytest.skip(f"this processor or compiler has no {request.param.decode()}")
    return loaded


def hvscale_sum(library: ctypes.CDLL, name: str, own: Bits, other: Bits) -> Bits:
    result = other.copy()
    length = ctypes.c_int(len(own))
    addresses = (ctypes.c_void_p(array.ctypes.data) for array in (own, result))
    library[f"hvbench_sum_{name}"](*addresses, ctypes.byref(length), None)
    return result


def numpy_float16(own: Bits, other: Bits) -> Bits:
    with np.errstate(all="ignore"):
        return (own.view(np.float16) + other.view(np.float16)).view(np.uint16)


def torch_bfloat16(own: Bits, other: Bits) -> Bits:
    a, b = (torch.from_numpy(array.view(np.int16)).view(torch.bfloat16) for array in (own, other))
    result: Bits = (a + b).view(torch.int16).numpy().view(np.uint16)
    return result


def numpy_bfloat16(own: Bits, other: Bits) -> Bits:
    """NumPy's float32 sum, rounded to nearest even with integer arithmetic."""
    with np.errstate(all="ignore"):
        a, b = ((array.astype(np.uint32) << 16).view(np.float32) for array in (own, other))
        bits = (a + b).view(np.uint32).astype(np.uint64)
    half, odd = np.uint64(0x7FFF), bits >> np.uint64(16) & np.uint64(1)
    return ((bits + half + odd) >> np.uint64(16)).astype(np.uint16)


def is_nan(name: str, bits: Bits) -> NDArray[np.bool_]:
    return (bits & 0x7FFF) > (0x7C00 if name == "float16" else 0x7F80)


@pytest.mark.parametrize("library", INSTRUCTIONS, indirect=True, ids=lambda name: name.decode())
@pytest.mark.parametrize(
    ("name", "reference"),
    [("float16", numpy_float16), ("bfloat16", torch_bfloat16), ("bfloat16", numpy_bfloat16)],
)
def test_every_bit_pattern_is_summed_with_correct_rounding(
    library: ctypes.CDLL, name: str, reference: Callable[[Bits, Bits], Bits]
) -> None:
    for other in OTHERS:
        second = np.full_like(ALL, other)
        for own, added in ((ALL, second), (second, ALL)):
            got, wanted = hvscale_sum(library, name, own, added), reference(own, added)
            nan = is_nan(name, own) | is_nan(name, added) | is_nan(name, wanted)
            assert np.array_equal(is_nan(name, got), nan), hex(other)
            wrong = np.flatnonzero(~nan & (got != wanted))
            assert not wrong.size, (
                f"{own[wrong[0]]:#06x} + {added[wrong[0]]:#06x}: {got[wrong[0]]:#06x}, not {wanted[wrong[0]]:#06x}"
            )


@pytest.mark.parametrize("library", INSTRUCTIONS, indirect=True, ids=lambda name: name.decode())
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_sums_of_any_length_and_alignment(library: ctypes.CDLL, name: str) -> None:
    reference = numpy_float16 if name == "float16" else torch_bfloat16
    numbers = ALL[0x3000:0x3100]
    for offset in range(3):
        for length in range(70):
            own, other = numbers[offset : offset + length], numbers[100 + offset : 100 + offset + length]
            around = np.full(length + 2, 0xABCD, np.uint16)
            around[1:-1] = other
            count = ctypes.c_int(length)
            inside = around[1:-1]
            library[f"hvbench_sum_{name}"](
                ctypes.c_void_p(own.ctypes.data), ctypes.c_void_p(inside.ctypes.data), ctypes.byref(count), None
            )
            assert np.array_equal(inside, reference(own.copy(), other.copy()))
            assert around[0] == around[-1] == 0xABCD


C_FUNCTIONS = """
#include <stdint.h>
#include <string.h>
static uintptr_t seen[8];
static int calls, meetings, fail_at;
int meet(uintptr_t a) { seen[0] = a; meetings++; return 0; }
#define RECORD(...) do { uintptr_t all[] = {__VA_ARGS__}; memcpy(seen, all, sizeof all); return ++calls == fail_at ? 17 : 0; } while (0)
int four(uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d) { RECORD(a, b, c, d); }
int five(uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e) { RECORD(a, b, c, d, e); }
int six(uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e, uintptr_t f) { RECORD(a, b, c, d, e, f); }
int seven(uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e, uintptr_t f, uintptr_t g) { RECORD(a, b, c, d, e, f, g); }
int eight(uintptr_t a, uintptr_t b, int c, uintptr_t d, uintptr_t e, int f, int g, uintptr_t h)
{
    RECORD(a, b, (uintptr_t)(intptr_t)c, d, e, (uintptr_t)(intptr_t)f, (uintptr_t)(intptr_t)g, h);
}
uintptr_t seen_at(int i) { return seen[i]; }
int calls_made(void) { return calls; }
int meetings_made(void) { return meetings; }
void start_again(int fail) { calls = meetings = 0; fail_at = fail; }
"""


@pytest.fixture(scope="module")
def c_functions(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("c_functions")
    (folder / "c_functions.c").write_text(C_FUNCTIONS)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", "c_functions.so", "c_functions.c"], cwd=folder, check=True)
    loaded = ctypes.CDLL(str(folder / "c_functions.so"))
    loaded.seen_at.restype = ctypes.c_size_t
    return loaded


def address(library: ctypes.CDLL, name: str) -> int:
    return int(ctypes.cast(library[name], ctypes.c_void_p).value or 0)


@pytest.mark.parametrize(("name", "arity"), [("four", 4), ("five", 5), ("six", 6), ("seven", 7), ("eight", 8)])
def test_timed_calls_get_their_arguments(c_functions: ctypes.CDLL, name: str, arity: int) -> None:
    # -1 is MPICH's MPI_IN_PLACE. With eight arguments the third, sixth and seventh are ints, like
    # the counts and the root of a gather.
    words = [-1, 1 << 47, 3, 0x44000000, 5, 1500, 7, 0x84000002][:arity]
    call = c_timer.CFunction(address(c_functions, name), tuple(words))
    meet = c_timer.CFunction(address(c_functions, "meet"), (9,))
    for sync_each_call, meetings in ((False, 3), (True, 12)):
        c_functions.start_again(0)
        status, seconds = c_timer.time_calls([call, call], meet, 3, 4, sync_each_call)
        assert (status, len(seconds), min(seconds) > 0) == (0, 3, True)
        assert (c_functions.calls_made(), c_functions.meetings_made()) == (2 * 3 * 4, meetings)
        assert [c_functions.seen_at(place) for place in range(arity)] == [word & c_timer.WORD_MASK for word in words]
    c_functions.start_again(5)
    assert c_timer.time_calls([call], meet, 3, 4, False)[0] == 17
    assert c_functions.calls_made() == 5


SUMS_PROGRAM = """
import ctypes, sys
library, libc = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
for instructions in (b"avx512fp16", b"avx512", b"avx2", b"plain"):
    if library.hvbench_choose_sums(instructions) == 0:
        for length in range(1, 200):
            own, other = (libc.malloc(ctypes.c_size_t(2 * length)) for _ in range(2))
            for address in (own, other):
                ctypes.memmove(address, bytes(range(256)) * 2, 2 * length)
            for name in ("float16", "bfloat16"):
                library["hvbench_sum_" + name](ctypes.c_void_p(own), ctypes.c_void_p(other), ctypes.byref(ctypes.c_int(length)), None)
            for address in (own, other):
                libc.free(ctypes.c_void_p(address))
"""


def test_sanitizers_find_nothing(tmp_path: Path) -> None:
    """Sums of buffers without spare memory behind them."""
    located = subprocess.run(["cc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=False)
    runtime = Path(located.stdout.strip())
    if not runtime.is_absolute():
        pytest.skip("the C compiler has no libasan.so")
    library = tmp_path / "libhvbench.so"
    subprocess.run(
        ["cc", *FLAGS, *SHARED_LIBRARY, "-fsanitize=address,undefined", "-o", str(library), *BENCH_TIMER], check=True
    )
    options = {"LD_PRELOAD": str(runtime.resolve()), "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"}
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", SUMS_PROGRAM, str(library)],
        env={**os.environ, **options},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "Sanitizer" not in done.stderr
    assert "runtime error" not in done.stderr
