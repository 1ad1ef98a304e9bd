"""Makes mpi4py calls: in place, and on a communicator of some of the ranks."""

import numpy
from mpi4py import MPI

world = MPI.COMM_WORLD
values = numpy.ones(1024, dtype="f8")
world.Allreduce(MPI.IN_PLACE, values)
assert values[0] == world.size

pair = world.Split(world.rank < 2, world.rank)
pair.Allreduce(MPI.IN_PLACE, values[:16])
pair.Bcast(values[:4], root=0)
pair.Free()
