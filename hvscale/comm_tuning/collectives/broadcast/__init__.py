"""Our own broadcast: chunks of one message under way at once, from rank to rank, as a call and in
place of MPI_Bcast.
"""

from hvscale.comm_tuning.collectives.broadcast.call import broadcast

__all__ = ["broadcast"]
