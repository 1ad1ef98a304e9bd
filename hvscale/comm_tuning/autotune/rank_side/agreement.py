"""Agrees on the outcome of a change between all ranks while Horovod is shut down."""

import ctypes
from typing import Any

MPICH_COMM_WORLD, MPICH_BYTE = ctypes.c_int(0x44000000), ctypes.c_int(0x4C00010D)  # MPICH's ABI


def all_ranks_agree(mpi: ctypes.CDLL, agrees: bool, ranks: int) -> bool:
    """Whether every rank of MPI_COMM_WORLD passes `agrees`. Collective.

    An all-gather on a communicator that already exists: no live knob changes it, so that ranks with
    different settings can still talk. Raises OSError if MPI fails.
    """
    world, byte = _handles(mpi)
    mine, all_of_them = ctypes.create_string_buffer(bytes([agrees]), 1), ctypes.create_string_buffer(ranks)
    if mpi.MPI_Allgather(mine, 1, byte, all_of_them, 1, byte, world) != 0:
        raise OSError("MPI_Allgather failed")
    return all(all_of_them.raw)


def _handles(mpi: ctypes.CDLL) -> tuple[Any, Any]:
    """MPI_COMM_WORLD and MPI_BYTE; Open MPI's are addresses of its objects."""
    try:
        objects = [ctypes.c_char.in_dll(mpi, name) for name in ("ompi_mpi_comm_world", "ompi_mpi_byte")]
    except ValueError:
        return MPICH_COMM_WORLD, MPICH_BYTE
    world, byte = (ctypes.c_void_p(ctypes.addressof(one)) for one in objects)
    return world, byte
