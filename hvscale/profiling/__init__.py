"""Where communication time goes: records of each collective, their readers, and the breakdown by
message size.
"""

from hvscale.profiling.analyze.breakdown import Breakdown, RankRow, Row, breakdown, tabulate
from hvscale.profiling.read.events import Events, Recording
from hvscale.profiling.record.hvprof import library_path, preload_environment, timeline_environment, trim
from hvscale.profiling.record.marks import step

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
    "trim",
]
