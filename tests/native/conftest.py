"""Shares the fixtures of the profiler's tests."""

from tests.profiling.conftest import make_run, open_mpi

__all__ = ["make_run", "open_mpi"]
