"""The README's first command: a small EDSR on two ranks, its gain over bicubic, and where its
communication time went.
"""

from pathlib import Path

from pydantic import BaseModel

from hvscale.launch.options import LaunchHooks, LaunchOptions
from hvscale.profiling.analyze.explanation import ExplainedBreakdown, explained_breakdown
from hvscale.studies.profiled_launch import profiled_launch
from hvscale.trainer import TrainResult, demo_config

RANKS = 2


class Demo(BaseModel):
    training: TrainResult
    communication: ExplainedBreakdown


def demo(seconds: float, run: Path | None, hooks: LaunchHooks) -> Demo:
    """Train under the profiler and tabulate. Raises what `profiled_launch` and
    `explained_breakdown` raise.
    """
    command = ["hvscale", "train", *demo_config(seconds=seconds).arguments()]
    done = profiled_launch(command, LaunchOptions(np=RANKS, run=run), hooks)
    return Demo(training=TrainResult.read(done.path), communication=explained_breakdown(done))
