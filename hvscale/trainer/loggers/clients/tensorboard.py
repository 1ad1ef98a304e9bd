"""Logs to TensorBoard event files in the run folder.

Uses TensorBoard's own writer, because PyTorch's would load torch (half a gigabyte).
"""

import time
from collections.abc import Callable
from typing import Any

from PIL import Image

from hvscale.core.units import human_bytes, human_range, human_seconds, human_share
from hvscale.trainer.config import TrainConfig
from hvscale.trainer.loggers.logger import LOGGERS, FinalResult, LoggedRun, Metrics

FOLDER = "tensorboard"  # in the run folder
FLUSH_SECONDS = 5
COLUMNS = ("operation", "size", "calls", "bytes", "total", "%")


@LOGGERS.registering("tensorboard")
class TensorBoard:
    name = package = "tensorboard"

    @staticmethod
    def requested(config: TrainConfig) -> bool:
        return config.tensorboard

    def __init__(self, logged: LoggedRun, warn: Callable[[str], None]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.writer = EventFileWriter(str(logged.path / FOLDER), flush_secs=FLUSH_SECONDS)
        # A resumed run is written again from its first step. This event makes readers drop the old
        # events.
        self.writer.add_event(Event(step=1, wall_time=time.time(), session_log=SessionLog(status=SessionLog.START)))

    def step(self, number: int, metrics: Metrics) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in metrics.items()]
        self._add(number, Summary(value=values))

    def end(self, result: FinalResult) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.text.summary_v2 import text_pb

        if result.metrics:
            self.step(result.step, result.metrics)
        if result.picture is not None:
            with Image.open(result.picture) as picture:
                width, height = picture.size
            image = Summary.Image(
                width=width, height=height, colorspace=3, encoded_image_string=result.picture.read_bytes()
            )
            self._add(result.step, Summary(value=[Summary.Value(tag="picture", image=image)]))
        if result.breakdown is not None:
            rows = [
                (
                    row.operation,
                    human_range(row.bytes_min, row.bytes_max),
                    str(row.calls),
                    human_bytes(row.bytes),
                    human_seconds(row.seconds),
                    human_share(row.share),
                )
                for row in result.breakdown.rows
            ]
            lines = [" | ".join(cells) for cells in (COLUMNS, ["---"] * len(COLUMNS), *rows)]
            self._add(result.step, text_pb("message_sizes", "\n".join(lines)))
        self.writer.flush()  # raises if a write failed; close() does not
        self.writer.close()

    def _add(self, step: int, summary: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self.writer.add_event(Event(step=step, wall_time=time.time(), summary=summary))
