"""The models by name, and the cost of each. Does not depend on Horovod."""

from hvscale.models.checkpoint import check_extra_state, extra_state, is_extra_state, load, load_state, read_state
from hvscale.models.cost import Cost, cost
from hvscale.models.modes import evaluation_mode
from hvscale.models.outputs import wrong_output
from hvscale.models.registry import Task, build, find, names

__all__ = [
    "Cost",
    "Task",
    "build",
    "check_extra_state",
    "cost",
    "evaluation_mode",
    "extra_state",
    "find",
    "is_extra_state",
    "load",
    "load_state",
    "names",
    "read_state",
    "wrong_output",
]
