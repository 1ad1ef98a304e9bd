"""Where communication time goes: records of each collective, their readers, and the breakdown by message size."""

from hvscale.profiling.breakdown import Breakdown, RankRow, Row, breakdown, tabulate
from hvscale.profiling.events import Events, Recording
from hvscale.profiling.marks import step
from hvscale.profiling.output import point_to_point_table, table, write_csv
from hvscale.profiling.recording import library_path, preload_environment, timeline_environment, trim

__all__ = [
    "Breakdown",
    "Events",
    "RankRow",
    "Recording",
    "Row",
    "breakdown",
    "library_path",
    "point_to_point_table",
    "preload_environment",
    "step",
    "table",
    "tabulate",
    "timeline_environment",
    "trim",
    "write_csv",
]
