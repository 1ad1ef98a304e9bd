"""Shows where communication time goes: recording of each collective, readers of the profiles, and
the breakdown by message size.
"""

from hvscale.profiling.analyze.breakdown import Breakdown, RankRow, Row, breakdown, tabulate
from hvscale.profiling.read.events import Events, Recording
from hvscale.profiling.record import library_path, preload_environment, step, timeline_environment, trim_profiles

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
