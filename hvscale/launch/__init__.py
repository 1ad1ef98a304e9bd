"""Starts N ranks of any command, and ends them: plain arguments and environment variables, no knowledge of what they do."""

from hvscale.launch.controller import RunInterruptedError, launch
from hvscale.launch.host import available_cores, describe_host

__all__ = ["RunInterruptedError", "available_cores", "describe_host", "launch"]
