"""Runs in a rank: makes every call, blocking and non-blocking, that hvprof records or counts and
mpi4py can make. Checks some results.
"""

import sys
from typing import Any

import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
rank, size = world.rank, world.size
ring = world.Create_cart([size], periods=[True])
before, after = (rank - 1) % size, (rank + 1) % size
line = world.Create_dist_graph_adjacent([before], [after])
SUM, BOR = MPI.SUM, MPI.BOR
ascending = [sender + 1 for sender in range(size)]
starts = [sum(ascending[:sender]) for sender in range(size)]
own = [rank + 1] * size
own_starts = [sender * (rank + 1) for sender in range(size)]


def ints(count: int, value: int = 1) -> Any:
    return np.full(count, value, np.int32)


def in_bytes(elements: list[int]) -> list[int]:
    return [4 * element for element in elements]


def collectives() -> list[tuple[str, MPI.Comm, tuple[Any, ...]]]:
    of_ring = [4, 4], [0, 4]
    sums = ints(sum(ascending)), ints(sum(ascending))
    types = [MPI.INT] * size
    return [
        ("barrier", world, ()),
        ("bcast", world, (ints(10), size - 1)),
        ("gather", world, (ints(3), ints(3 * size), 1)),
        ("gather", world, (MPI.IN_PLACE if rank == 1 else ints(3), ints(3 * size), 1)),
        ("gatherv", world, (ints(rank + 1), [sums[0], ascending, starts, MPI.INT] if rank == 0 else None, 0)),
        ("scatter", world, (ints(5 * size), ints(5), 0)),
        ("scatterv", world, ([sums[0], ascending, starts, MPI.INT] if rank == 0 else None, ints(rank + 1), 0)),
        ("allgather", world, (ints(7), ints(7 * size))),
        ("allgather", world, (MPI.IN_PLACE, ints(7 * size))),
        ("allgatherv", world, (ints(rank + 1), [sums[0], ascending, starts, MPI.INT])),
        ("alltoall", world, (ints(2 * size), ints(2 * size))),
        ("alltoallv", world, ([sums[0], ascending, starts, MPI.INT], [ints(sum(own)), own, own_starts, MPI.INT])),
        ("alltoallv", world, (MPI.IN_PLACE, [ints(2 * size), [2] * size, range(0, 2 * size, 2), MPI.INT])),
        (
            "alltoallw",
            world,
            (
                [sums[0], (ascending, in_bytes(starts)), types],
                [ints(sum(own)), (own, in_bytes(own_starts)), types],
            ),
        ),
        ("reduce", world, (ints(11), ints(11), SUM, 1)),
        ("allreduce", world, (ints(1000), ints(1000), SUM)),
        ("allreduce", world, (MPI.IN_PLACE, ints(13), BOR)),
        ("reduce_scatter", world, (sums[0], ints(rank + 1), ascending, SUM)),
        ("reduce_scatter", world, (MPI.IN_PLACE, sums[1], ascending, SUM)),
        ("reduce_scatter_block", world, (ints(6 * size), ints(6), SUM)),
        ("scan", world, (ints(9), ints(9), SUM)),
        ("exscan", world, (ints(8), ints(8), SUM)),
        ("neighbor_allgather", ring, (ints(3), ints(6))),
        ("neighbor_allgatherv", ring, (ints(4), [ints(8), *of_ring, MPI.INT])),
        ("neighbor_alltoall", ring, (ints(4), ints(4))),
        ("neighbor_alltoallv", ring, ([ints(8), *of_ring, MPI.INT], [ints(8), *of_ring, MPI.INT])),
        ("neighbor_alltoallw", ring, ([ints(8), ([4, 4], [0, 16]), [MPI.INT] * 2],) * 2),
        ("neighbor_alltoallv", line, ([ints(6), [6], [0], MPI.INT], [ints(6), [6], [0], MPI.INT])),
    ]


def between_two_groups() -> list[tuple[str, MPI.Comm, tuple[Any, ...]]]:
    """An intercommunicator: all ranks but the last in one group, the last in the other."""
    last = rank == size - 1
    group: Any = world.Split(last, rank)
    both = group.Create_intercomm(0, world, 0 if last else size - 1)
    here, there = group.size, size - group.size
    blocks = [ints(2 * there), [2] * there, range(0, 2 * there, 2), MPI.INT]
    root = 0 if last else MPI.ROOT if rank == 0 else MPI.PROC_NULL
    return [
        ("alltoallv", both, (blocks, blocks)),
        ("reduce_scatter", both, (ints(6 * 2), ints(12 // here), [12 // here] * here, SUM)),
        # Last, because an MPI may not number non-blocking calls on a rank with MPI_PROC_NULL.
        ("bcast", both, (ints(50), root)),
        ("scatterv", both, (blocks if root == MPI.ROOT else None, ints(2), root)),
    ]


def point_to_point() -> None:
    out, into = ints(4000), ints(4000)
    MPI.Attach_buffer(np.empty(1 << 16, np.uint8))
    for count, send in enumerate((world.Send, world.Ssend, world.Bsend, world.Rsend), 1):
        request = world.Irecv([into, 100 * count, MPI.INT], before)
        world.Barrier()
        send([out, count, MPI.INT], after)
        request.Wait()
    for count, start in enumerate((world.Isend, world.Issend, world.Ibsend, world.Irsend), 10):
        request = world.Irecv([into, count, MPI.INT], before)
        world.Barrier()
        MPI.Request.Waitall([request, start([out, count, MPI.INT], after)])
    started = world.Isend([out, 20, MPI.INT], after)
    world.Mprobe(before).Recv(into)
    started.Wait()
    started = world.Isend([out, 20, MPI.INT], after)
    world.Mprobe(before).Irecv(into).Wait()
    started.Wait()
    started = world.Isend(out, after)
    world.Recv(into, before)
    started.Wait()
    world.Sendrecv([out, 30, MPI.INT], after, 0, [into, 40, MPI.INT], before)
    world.Sendrecv_replace([out, 50, MPI.INT], after, 0, before)
    world.Send([out, 99, MPI.INT], MPI.PROC_NULL)
    MPI.Detach_buffer()


for calls in (collectives, between_two_groups):
    for name, communicator, arguments in calls():
        getattr(communicator, name.capitalize())(*arguments)
    for name, communicator, arguments in calls():
        getattr(communicator, "I" + name)(*arguments).Wait()
total, gathered, swapped = ints(1), ints(sum(ascending)), ints(size)
world.Allreduce(ints(1, rank), total)
world.Iallgatherv(ints(rank + 1, rank), [gathered, ascending, starts, MPI.INT]).Wait()
world.Alltoallv(
    [np.arange(size, dtype=np.int32), [1] * size, range(size), MPI.INT], [swapped, [1] * size, range(size), MPI.INT]
)
right = [sender for sender in range(size) for _ in range(sender + 1)]
if total[0] != size * (size - 1) // 2 or gathered.tolist() != right or swapped.tolist() != [rank] * size:
    sys.exit("wrong sums")
point_to_point()
