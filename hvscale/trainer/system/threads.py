"""How many threads a rank computes with, so that the ranks of a host do not fight for its cores."""

import os
import socket

import torch

from hvscale.core.host import available_cores
from hvscale.trainer.ranks import Ranks


def share_cores(ranks: Ranks, threads: int | None, pin: bool = False) -> int:
    """Set torch's threads to `threads`, or OMP_NUM_THREADS, or else this rank's share of the cores; returns the number.

    A core that k ranks of the host may run on counts 1/k, so ranks that a launcher has bound to cores of their own keep
    them whole. A cgroup's quota is divided by the ranks of the host.
    `pin` binds each rank to its own part of the cores, where all ranks of the host may run on all of them.
    """
    cores = os.sched_getaffinity(0)
    host = socket.gethostname()
    neighbours = [other for name, other in ranks.gather((host, cores)) if name == host]
    share = sum(1 / sum(core in other for other in neighbours) for core in cores)
    if available_cores() < len(cores):
        share = min(share, available_cores() / len(neighbours))
    # The small addition keeps 3 x 1/3 from counting as less than one.
    own = threads or int(os.environ.get("OMP_NUM_THREADS", 0)) or max(1, int(share + 1e-6))
    if pin and len(cores) >= len(neighbours) > 1 and all(other == cores for other in neighbours):
        mine = sorted(cores)
        place = ranks.local_rank
        # Of this thread, and so of those it starts; Horovod's own has been started and stays free.
        os.sched_setaffinity(0, mine[place * len(mine) // len(neighbours) : (place + 1) * len(mine) // len(neighbours)])
    torch.set_num_threads(own)
    return own
