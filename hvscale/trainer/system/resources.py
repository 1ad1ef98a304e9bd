"""A rank's use of its host's cores."""

import os
import socket

import torch

from hvscale.core.host import available_cores, machine_identity
from hvscale.core.numbers import MOST_THREADS, read_whole
from hvscale.trainer.ranks import Ranks


def openmp_threads() -> int | None:
    """The number in OMP_NUM_THREADS, or the first of its list (one for each level of nesting)."""
    return read_whole(os.environ.get("OMP_NUM_THREADS", "").partition(",")[0], 1, MOST_THREADS)


def share_cores(ranks: Ranks, threads: int | None, pin: bool = False) -> int:
    """Set torch's number of threads and return it. Collective.

    It is `threads`, OMP_NUM_THREADS, or this rank's share of the cores. A core that k ranks of the
    machine may run on counts as 1/k, so ranks that a launcher has bound to separate cores use them
    fully; ranks in other containers of the machine count too. A cgroup's quota is divided by the
    ranks of the container. `pin` binds each rank to separate cores, if all ranks of the machine may
    run on all of them.
    """
    cores = os.sched_getaffinity(0)
    machine, host = machine_identity(), socket.gethostname()
    everyone = ranks.allgather((ranks.rank, machine, host, cores))
    on_machine = [(rank, name, other) for rank, found, name, other in everyone if found == machine]
    neighbours = [other for *_, other in on_machine]
    share = sum(1 / sum(core in other for other in neighbours) for core in cores)
    if available_cores() < len(cores):
        share = min(share, available_cores() / sum(name == host for _, name, _ in on_machine))
    # The small addition absorbs rounding errors (3 x 1/3 < 1), which would cost a thread.
    own = threads or openmp_threads() or max(1, int(share + 1e-6))
    if pin and len(cores) >= len(neighbours) > 1 and all(other == cores for other in neighbours):
        ordered = sorted(cores)
        place = [rank for rank, *_ in on_machine].index(ranks.rank)
        first, end = (number * len(ordered) // len(neighbours) for number in (place, place + 1))
        # Binds this thread and those it starts. Horovod's own thread already exists and stays free.
        os.sched_setaffinity(0, ordered[first:end])
    torch.set_num_threads(own)
    return own
