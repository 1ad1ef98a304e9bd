"""Starts N ranks of any command, and ends them: plain arguments and environment variables, no knowledge of what they do."""

from hvscale.launch.controller import RunInterruptedError, launch
from hvscale.launch.mpi.large_counts import has_large_counts

__all__ = ["RunInterruptedError", "has_large_counts", "launch"]
