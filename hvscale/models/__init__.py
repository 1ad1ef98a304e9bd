"""The models, by name, and what each costs. Knows nothing of Horovod."""

from hvscale.models.checkpoint import load, load_state, read_state
from hvscale.models.cost import Cost, cost
from hvscale.models.preset import Task
from hvscale.models.registry import build, find, names

__all__ = ["Cost", "Task", "build", "cost", "find", "load", "load_state", "names", "read_state"]
