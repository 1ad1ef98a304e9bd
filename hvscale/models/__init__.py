"""The models by name, and the cost of each. Does not depend on Horovod."""

from hvscale.models.checkpoint import load, load_state, read_state
from hvscale.models.cost import Cost, cost
from hvscale.models.modes import evaluation_mode
from hvscale.models.outputs import wrong_output
from hvscale.models.registry import Task, build, find, names

__all__ = [
    "Cost",
    "Task",
    "build",
    "cost",
    "evaluation_mode",
    "find",
    "load",
    "load_state",
    "names",
    "read_state",
    "wrong_output",
]
