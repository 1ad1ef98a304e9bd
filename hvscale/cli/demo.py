"""The README's first command: a small EDSR on two ranks, its gain over bicubic, and where its communication time went."""

from typing import Any

from pydantic import BaseModel

from hvscale.profiling.analyze.explanation import ExplainedBreakdown, explained_breakdown
from hvscale.studies.profiled_launch import profiled_launch
from hvscale.trainer import TrainResult, demo_config

RANKS = 2


class Demo(BaseModel):
    training: TrainResult
    communication: ExplainedBreakdown


def demo(seconds: float, **launch_options: Any) -> Demo:
    """Train under the profiler and tabulate. Raises what `hvscale.launch.launch` and `explained_breakdown` raise."""
    run = profiled_launch(RANKS, ["hvscale", "train", *demo_config(seconds=seconds).arguments()], **launch_options)
    return Demo(training=TrainResult.read(run.path), communication=explained_breakdown(run))
