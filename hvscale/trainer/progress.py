"""Progress of a training run on stderr: a bar on a terminal, otherwise a line every few seconds."""

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from rich.progress import MofNCompleteColumn, TimeRemainingColumn

from hvscale.core.plain_rich import PlainColumn
from hvscale.report.progress import ProgressBar
from hvscale.trainer.steps_file import StepRecord, parse_step_record

PLAIN_LINE_EVERY_SECONDS = 5.0
LONGEST_TWO_LINES = 2048  # bytes of steps.jsonl; a line has about 250


class TrainingBar(ProgressBar):
    """Steps done, images/s, loss and time left; can also follow a run of another process."""

    def __init__(self, decimals: int = 2) -> None:
        """`decimals`: decimal places of the loss."""
        figures, left = PlainColumn("{task.fields[figures]}"), TimeRemainingColumn()
        super().__init__(None, MofNCompleteColumn(), figures, time=left, figures="")
        self.decimals = decimals

    def show(self, step: StepRecord) -> None:
        figures = f"{step.images / step.seconds:6.1f} images/s  loss {loss_text(step, self.decimals):>6}  left"
        self.update(description="training", total=step.steps, completed=step.step, figures=figures)

    def follow(self, steps_file: Path) -> None:
        """Show the last complete line, if any, of a steps.jsonl that another process writes."""
        try:
            with steps_file.open("rb") as stream:
                stream.seek(max(0, steps_file.stat().st_size - LONGEST_TWO_LINES))
                last = stream.read().rpartition(b"\n")[0].rpartition(b"\n")[2]
        except FileNotFoundError:
            return
        if last:
            with suppress(ValueError):  # skips a damaged line
                self.show(parse_step_record(last))


class PlainProgress:
    """Prints a line every few seconds and one for the last step."""

    def __init__(self, decimals: int = 2) -> None:
        self.decimals = decimals
        self.last_line_at = time.monotonic()

    def show(self, step: StepRecord) -> None:
        now = time.monotonic()
        if step.step == step.steps or now - self.last_line_at >= PLAIN_LINE_EVERY_SECONDS:
            self.last_line_at = now
            speed = step.images / step.seconds
            log_line(
                f"step {step.step}/{step.steps or '?'}  loss {loss_text(step, self.decimals)}  {speed:.1f} images/s"
            )

    def __enter__(self) -> "PlainProgress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


def loss_text(step: StepRecord, decimals: int) -> str:
    return "not finite" if step.loss is None else f"{step.loss:.{decimals}f}"


def progress_display(decimals: int) -> TrainingBar | PlainProgress:
    """The display for this stderr. `decimals`: decimal places of the loss.

    Under `hvscale launch` stderr looks like a terminal but is a log file.
    """
    is_terminal = sys.stderr.isatty() and "HVSCALE_RUN" not in os.environ
    return TrainingBar(decimals) if is_terminal else PlainProgress(decimals)


def log_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def warn(text: str) -> None:
    log_line(f"hvscale: warning: {text}")
