"""How this process's malloc treats freed memory, and Python the objects of imported modules."""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

# malloc.h of glibc
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
MAX_TRIM_THRESHOLD = 2**31 - 1
# Larger blocks come from the kernel each time, which clears them page by page. glibc's default
# limit is 32 MiB.
MAX_HEAP_BLOCK = 1 << 30


def keep_freed_memory() -> bool:
    """Make glibc's malloc keep freed memory; False with another C library.

    Call it before other threads start: each would get a heap of its own, limited to 64 MiB, and
    MPI takes the buffer of a larger all-reduce from the heap of Horovod's thread. On CPUs a
    training step of EDSR-baseline becomes 1.03 (fp32) to 1.11 times (bf16) as fast, one of VGG-16
    on two ranks 1.05 to 1.23 times: see benchmarks/RESULTS.md.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    options = {M_MMAP_THRESHOLD: MAX_HEAP_BLOCK, M_TRIM_THRESHOLD: MAX_TRIM_THRESHOLD, M_ARENA_MAX: 1}
    done = [mallopt(option, value) for option, value in options.items()]
    return all(done)


@contextmanager
def without_collections() -> Iterator[None]:
    """Context: no garbage is collected, and later collections leave out the objects made here.

    For imports: PyTorch and Horovod take an eighth less CPU time to load.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
