"""The MPI installations that hvprof is tried under serve the broadcast, too."""

from tests.profiling.conftest import any_mpi, make_run, mpi_abi, mpich, open_mpi

__all__ = ["any_mpi", "make_run", "mpi_abi", "mpich", "open_mpi"]
