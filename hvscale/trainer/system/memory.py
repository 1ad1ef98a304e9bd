"""Memory that a step has freed is kept for the next one, which needs as much again."""

import ctypes

# malloc.h of glibc
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST = 2**31 - 1
# Larger blocks come fresh from the kernel each time, which clears them page by page; by itself glibc goes up to 32 MiB.
LARGEST_FROM_HEAP = 1 << 30


def keep_freed_memory() -> bool:
    """Have glibc's malloc keep what is freed, of this process and on the CPU; False where there is another C library.

    On CPUs this makes a training step of EDSR-baseline 1.03 (fp32) to 1.11 times (bf16) as fast, see benchmarks/RESULTS.md.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST_FROM_HEAP)) and bool(mallopt(M_TRIM_THRESHOLD, LARGEST))
