"""A rank's use of its host: computing threads, cores and memory."""

import ctypes
import os
import socket

import torch

from hvscale.core.host import available_cores
from hvscale.trainer.ranks import Ranks

# malloc.h of glibc
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
MAX_TRIM_THRESHOLD = 2**31 - 1
# Larger blocks come from the kernel each time, which clears them page by page. glibc's default
# limit is 32 MiB.
MAX_HEAP_BLOCK = 1 << 30


def share_cores(ranks: Ranks, threads: int | None, pin: bool = False) -> int:
    """Set torch's number of threads and return it. Collective.

    It is `threads`, OMP_NUM_THREADS, or this rank's share of the cores. A core that k ranks of the
    host may run on counts as 1/k, so ranks that a launcher has bound to separate cores use them
    fully. A cgroup's quota is divided by the ranks of the host. `pin` binds each rank to separate
    cores, if all ranks of the host may run on all of them.
    """
    cores = os.sched_getaffinity(0)
    host = socket.gethostname()
    neighbours = [other for name, other in ranks.allgather((host, cores)) if name == host]
    share = sum(1 / sum(core in other for other in neighbours) for core in cores)
    if available_cores() < len(cores):
        share = min(share, available_cores() / len(neighbours))
    # The small addition absorbs rounding errors (3 x 1/3 < 1), which would cost a thread.
    own = threads or int(os.environ.get("OMP_NUM_THREADS", 0)) or max(1, int(share + 1e-6))
    if pin and len(cores) >= len(neighbours) > 1 and all(other == cores for other in neighbours):
        ordered = sorted(cores)
        place = ranks.local_rank
        first, end = (number * len(ordered) // len(neighbours) for number in (place, place + 1))
        # Binds this thread and those it starts. Horovod's own thread already exists and stays free.
        os.sched_setaffinity(0, ordered[first:end])
    torch.set_num_threads(own)
    return own


def keep_freed_memory() -> bool:
    """Make glibc's malloc keep memory that a step has freed; False with another C library.

    On CPUs this makes a training step of EDSR-baseline 1.03 (fp32) to 1.11 times (bf16) as fast:
    see benchmarks/RESULTS.md.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, MAX_HEAP_BLOCK)) and bool(mallopt(M_TRIM_THRESHOLD, MAX_TRIM_THRESHOLD))
