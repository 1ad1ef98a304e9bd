"""Starts N ranks of any command, and ends them: plain arguments and environment variables, no knowledge of what they do."""

from hvscale.launch.controller import RunInterruptedError, launch

__all__ = ["RunInterruptedError", "launch"]
