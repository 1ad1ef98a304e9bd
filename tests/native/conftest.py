"""The MPI installation and the runs that tests of the profiler use serve here, too."""

from tests.profiling.conftest import make_run, open_mpi

__all__ = ["make_run", "open_mpi"]
