"""Shows where communication time goes: recording of each collective, readers of the profiles, and
the breakdown by message size.

A rank that only marks its steps loads nothing else: other names are imported at their first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hvscale.profiling.step_mark import step

if TYPE_CHECKING:
    from hvscale.profiling.analyze.breakdown import Breakdown, RankRow, Row, breakdown, tabulate
    from hvscale.profiling.read.events import Events, Recording
    from hvscale.profiling.record import library_path, preload_environment, timeline_environment, trim_profiles

__all__ = [
    "Breakdown",
    "Events",
    "RankRow",
    "Recording",
    "Row",
    "breakdown",
    "library_path",
    "preload_environment",
    "step",
    "tabulate",
    "timeline_environment",
    "trim_profiles",
]

_MODULES = {
    "analyze.breakdown": ("Breakdown", "RankRow", "Row", "breakdown", "tabulate"),
    "read.events": ("Events", "Recording"),
    "record": ("library_path", "preload_environment", "timeline_environment", "trim_profiles"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
