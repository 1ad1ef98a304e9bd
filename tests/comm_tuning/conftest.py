"""Shares the MPI installations of the profiler's tests."""

from tests.profiling.conftest import any_mpi, make_run, mpi_abi, mpich, open_mpi

__all__ = ["any_mpi", "make_run", "mpi_abi", "mpich", "open_mpi"]
