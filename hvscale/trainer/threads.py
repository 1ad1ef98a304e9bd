"""How many threads a rank computes with, so that the ranks of a host do not fight for its cores."""

import os
import socket

import torch

from hvscale.host import available_cores
from hvscale.trainer.ranks import Ranks


def share_cores(ranks: Ranks, threads: int | None) -> int:
    """Set torch's threads to `threads`, or OMP_NUM_THREADS, or else this rank's share of the cores; returns the number.

    A core that k ranks of the host may run on counts 1/k, so ranks that a launcher has bound to cores of their own keep
    them whole. A cgroup's quota is divided by the ranks of the host.
    """
    cores = os.sched_getaffinity(0)
    host = socket.gethostname()
    neighbours = [other for name, other in ranks.gather((host, cores)) if name == host]
    share = sum(1 / sum(core in other for other in neighbours) for core in cores)
    if available_cores() < len(cores):
        share = min(share, available_cores() / len(neighbours))
    # The small addition keeps 3 x 1/3 from counting as less than one.
    own = threads or int(os.environ.get("OMP_NUM_THREADS", 0)) or max(1, int(share + 1e-6))
    torch.set_num_threads(own)
    return own
