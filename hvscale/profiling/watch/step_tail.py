"""The newest steps of steps.jsonl, read from its end."""

import os
from functools import partial
from itertools import islice
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from hvscale.core.files import open_regular
from hvscale.core.numbers import StepImages, StepSeconds
from hvscale.core.run_folder import RunFolder
from hvscale.profiling.watch.document import ExposedNow, StepsNow

TAIL_BYTES = 1 << 18  # about a thousand steps


class _Line(BaseModel):
    """The fields that are read from one line, which any program may have written."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    seconds: StepSeconds
    step: Annotated[int, Field(ge=1)] | None = None
    steps: Annotated[int, Field(ge=1)] | None = None
    images: StepImages | None = None
    communication_seconds: float | None = None
    loss: float | None = None


def read_newest_steps(run: RunFolder, at_least_seconds: float) -> tuple[StepsNow | None, ExposedNow | None]:
    """The newest steps that together took `at_least_seconds`, and their exposed communication.

    (None, None) without steps; the second is None if the program did not measure it. Damaged lines
    are skipped. Raises OSError if the file cannot be read.
    """
    lines: list[_Line] = []
    seconds = 0.0
    for line in _newest_lines(run):
        lines.append(line)
        seconds += line.seconds
        if seconds >= at_least_seconds:
            break
    if not lines:
        return None, None
    newest = lines[0]
    images = [line.images for line in lines if line.images is not None]
    steps = StepsNow(
        step=newest.step or _count_lines(run),
        steps=newest.steps,
        counted=len(lines),
        seconds=seconds,
        step_seconds=seconds / len(lines),
        images_per_second=sum(images) / seconds if len(images) == len(lines) else None,
        loss=newest.loss,
    )
    measured = [(line.seconds, line.communication_seconds) for line in lines if line.communication_seconds is not None]
    if not measured:
        return steps, None
    of_steps = sum(length for length, _ in measured)
    share = sum(min(max(exposed, 0), length) for length, exposed in measured) / of_steps
    return steps, ExposedNow(
        basis="measured",
        steps=len(measured),
        step_seconds=of_steps / len(measured),
        share_at_least=share,
        share_at_most=share,
    )


def _count_lines(run: RunFolder) -> int:
    """The number of whole lines: that of the newest step, if the program writes no numbers."""
    with open_regular(run.steps) as stream:
        return sum(piece.count(b"\n") for piece in iter(partial(stream.read, TAIL_BYTES), b""))


def _newest_lines(run: RunFolder) -> list[_Line]:
    """The valid lines at the end of the file, the newest first."""
    try:
        with open_regular(run.steps) as stream:
            start = max(0, os.fstat(stream.fileno()).st_size - TAIL_BYTES)
            text = os.pread(stream.fileno(), TAIL_BYTES, start)
    except FileNotFoundError:
        return []
    # The first line may lack its beginning, and the last one, which is being written, its end.
    *whole, _ = text.split(b"\n")
    found = []
    for line in islice(reversed(whole), len(whole) - (start > 0)):
        try:
            found.append(_Line.model_validate_json(line))
        except ValueError:
            continue
    return found
