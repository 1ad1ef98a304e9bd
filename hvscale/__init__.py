"""hvscale: makes data-parallel training over Horovod scale."""

from importlib.metadata import version

__version__ = version("hvscale")
