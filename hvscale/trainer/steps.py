"""steps.jsonl: one line a step, for whoever follows the run or reads it later."""

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
LARGEST = 1 << 63


@dataclass(frozen=True)
class Step:
    __pydantic_config__ = ConfigDict(strict=True, allow_inf_nan=False)  # of lines that are read

    step: Annotated[int, Field(ge=1, lt=LARGEST)]
    """Counted from 1."""
    steps: Annotated[int, Field(ge=1, lt=LARGEST)] | None
    """All that will be made; None until the ranks have agreed on it."""
    images: Annotated[int, Field(ge=0, lt=LARGEST)]
    """In this step, over all ranks and their batches."""
    seconds: Annotated[float, Field(gt=0)]
    """From the end of the step before to the end of this one, on rank 0."""
    loss: float | None
    """None where it is not finite. Rank 0's own: an average over ranks would add a message a step to the communication that is measured."""
    learning_rate: float
    data_wait_seconds: float
    """Spent on cutting this step's patches."""
    communication_seconds: float | None
    """Exposed communication: waited for gradients after the backward pass had ended; None for a process alone."""
    epoch_loss: float | None = None
    """At the end of an epoch: mean loss of its steps over all ranks, or of those since training went on."""
    skipped: bool = False
    """Made no difference, because the loss or the gradients were not finite on one of the ranks."""


STEP = TypeAdapter(Step)


def parse_step(line: bytes) -> Step:
    """The step of one line. Raises ValueError when the line is damaged."""
    return STEP.validate_json(line)


class StepsFile:
    """Each line is written out at once, so a run that is killed keeps its steps."""

    def __init__(self, path: Path, after: int | None = None, warn: Callable[[str], None] = lambda text: None) -> None:
        """With `after`, goes on in a file that may exist: its lines of later steps, and damaged ones, are dropped; `warn` is told of the latter.

        Otherwise raises RequestError when the file exists (the run folder has been trained in); also when it cannot be made.
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
            raise RequestError(f"{path.parent} holds a training run already: give another folder with --run") from error
        except OSError as error:
            raise cannot_write(path.parent, error) from error

    def write(self, step: Step) -> None:
        """Raises RequestError when the disk is full."""
        try:
            self.stream.write(json.dumps({"schema": STEPS_SCHEMA, **asdict(step)}) + "\n")
        except OSError as error:
            raise cannot_write(self.path.parent, error) from error

    def __enter__(self) -> "StepsFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):  # of a full disk `write` has spoken already
            self.stream.close()


def keep_steps(path: Path, last: int) -> str | None:
    """Drop the lines of steps after `last`, which are about to be made again, and damaged lines. Returns which were damaged.

    A last line that a killed process did not finish counts as damaged, unless only its end is missing.
    """

    def kept(line: bytes) -> bytes | None:
        return line.rstrip(b"\n") if parse_step(line).step <= last else None

    found = read_lines(path, kept, unfinished=True)
    write_atomically(path, lambda stream: stream.writelines(line + b"\n" for line in found.values if line is not None))
    return damaged_lines(path, found.damaged)
