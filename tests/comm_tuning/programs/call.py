"""Calls hvscale's broadcast with mpi4py."""

from typing import Any

import numpy as np
from mpi4py import MPI

from hvscale.comm_tuning.collectives.broadcast import broadcast
from hvscale.core.errors import RequestError

communicator = MPI.COMM_WORLD
rank, size = communicator.rank, communicator.size


def raises(error: type[Exception], **choice: Any) -> bool:
    try:
        broadcast(np.zeros(4), **choice)
    except error:
        return True
    return False


for algorithm in ("flat", "chain", "k-nomial", "two-level", "library"):
    for root in range(size):
        numbers = np.arange(50_001, dtype=np.float32) * (rank + 1)
        broadcast(numbers, root, algorithm=algorithm, chunk=1000, depth=3, radix=3)
        assert (numbers == np.arange(50_001) * (root + 1)).all()
        column = MPI.FLOAT.Create_vector(100, 1, 3).Commit()
        table = np.full((100, 3), rank, dtype=np.float32)
        broadcast([table, 1, column], root, communicator, algorithm=algorithm, chunk=64)
        assert (table == np.array([root, rank, rank])).all()
        column.Free()
broadcast(bytearray(0))
assert raises(RequestError, algorithm="odd")
assert raises(RequestError, chunk=0)
assert raises(RequestError, chunk=-1)
assert raises(RequestError, depth=0)
assert raises(RequestError, algorithm="two-level", chunk=1 << 22)
assert raises(MPI.Exception, root=size)
print("fine")
