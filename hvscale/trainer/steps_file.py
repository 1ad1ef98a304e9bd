"""Reads and writes steps.jsonl of a run folder: one line of JSON for each step."""

import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from io import TextIOWrapper
from pathlib import Path
from types import TracebackType
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter

from hvscale.core.errors import RequestError
from hvscale.core.line_files import damaged_lines, read_lines
from hvscale.core.run_folder import cannot_write, write_atomically

STEPS_SCHEMA = "hvscale/steps/1"
MAX_INTEGER = 1 << 63


@dataclass(frozen=True)
class StepRecord:
    """One line of steps.jsonl."""

    __pydantic_config__ = ConfigDict(strict=True, allow_inf_nan=False)  # for reading

    step: Annotated[int, Field(ge=1, lt=MAX_INTEGER)]
    """Counted from 1."""
    steps: Annotated[int, Field(ge=1, lt=MAX_INTEGER)] | None
    """Total number of steps; None until the ranks have agreed on it."""
    images: Annotated[int, Field(ge=0, lt=MAX_INTEGER)]
    """Images in this step, over all ranks and their batches."""
    seconds: Annotated[float, Field(gt=0)]
    """From the end of the previous step to the end of this one, on rank 0."""
    loss: float | None
    """Rank 0's loss; None if not finite.

    An average over ranks would add a message to the measured communication.
    """
    learning_rate: float
    data_wait_seconds: float
    """Time the step waited for its batches."""
    communication_seconds: float | None
    """Exposed communication: time spent waiting for gradients after the backward pass.

    None for a single process.
    """
    epoch_loss: float | None = None
    """At the end of an epoch: its mean loss over all ranks, since training started or resumed."""
    skipped: bool = False
    """The model was not updated, because the loss or a gradient was not finite on some rank."""


STEP_RECORD = TypeAdapter(StepRecord)


def parse_step_record(line: bytes) -> StepRecord:
    """Parse one line. Raises ValueError if it is damaged."""
    return STEP_RECORD.validate_json(line)


class StepsFile:
    """Writes steps.jsonl line by line, so that a killed run keeps its steps."""

    def __init__(self, path: Path, after: int | None = None, warn: Callable[[str], None] = lambda text: None) -> None:
        """With `after`, the file may exist; lines of later steps and damaged lines are dropped.

        `warn` receives a message about the damaged lines. Raises RequestError if the file cannot be
        created, or if it exists and `after` is None: the folder then holds another training run.
        """
        self.path = path
        try:
            if after is not None and path.exists():
                damaged = keep_steps(path, after)
                if damaged is not None:
                    warn(damaged)
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | (os.O_EXCL if after is None else os.O_APPEND)
            self.stream: TextIOWrapper = os.fdopen(os.open(path, flags, 0o666), "a", buffering=1)
        except FileExistsError as error:
            raise RequestError(
                f"{path.parent} already holds a training run: choose another folder with --run"
            ) from error
        except OSError as error:
            raise cannot_write(path.parent, error) from error

    def write(self, record: StepRecord) -> None:
        """Raises RequestError if the disk is full."""
        try:
            self.stream.write(json.dumps({"schema": STEPS_SCHEMA, **asdict(record)}) + "\n")
        except OSError as error:
            raise cannot_write(self.path.parent, error) from error

    def __enter__(self) -> "StepsFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # `write` already reported a full disk
            self.stream.close()


def keep_steps(path: Path, last: int) -> str | None:
    """Drop lines of steps after `last`, which training will repeat, and damaged lines.

    Returns a message that names the damaged lines, or None. An incomplete last line counts as
    damaged, unless only its newline is missing.
    """

    def kept(line: bytes) -> bytes | None:
        return line.rstrip(b"\n") if parse_step_record(line).step <= last else None

    found = read_lines(path, kept, unfinished=True)
    write_atomically(path, lambda stream: stream.writelines(line + b"\n" for line in found.values if line is not None))
    return damaged_lines(path, found.damaged)
