"""MPI programs for comparing containers with bare metal. Each is a Python file in programs/, which
registers itself, and C sources.

They follow the description in a study of Docker for MPI applications: master and workers, domain
decomposition, and divide and conquer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from hvscale.bench.applications import programs
from hvscale.core.errors import RequestError
from hvscale.core.numbers import MOST_BYTES, read_whole
from hvscale.core.registry import Registry

PROGRAMS = Path(programs.__file__).parent
Sizes = Mapping[str, int]


@dataclass(frozen=True)
class ApplicationParameter:
    """A numeric parameter of a program.

    `small`: the default, for a machine with few cores; `full`: the size of the published study.
    """

    description: str
    small: int
    full: int
    minimum: int = 1


class ProgramResult(BaseModel):
    """The line that rank 0 prints. `seconds`: of the slowest rank, from a barrier on."""

    model_config = ConfigDict(extra="forbid")

    seconds: float


class Application:
    """A program.

    `base_np`: the np that speed-ups refer to. `is_timed`: whether the seconds are the measurement,
    and not the other output. `needs_serial_run`: whether results are checked against a run of the
    same build on one rank.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    sources: ClassVar[tuple[str, ...]]
    parameters: ClassVar[dict[str, ApplicationParameter]]
    result: ClassVar[type[ProgramResult]]
    base_np: ClassVar[int] = 1
    default_np: ClassVar[tuple[int, ...]] = (1, 2)
    is_timed: ClassVar[bool] = True
    needs_serial_run: ClassVar[bool] = False

    def unsupported_reason(self, np: int, sizes: Sizes) -> str | None:
        """Why it does not run on `np` ranks, and which numbers are supported; None if it runs."""

    def memory(self, np: int, sizes: Sizes) -> tuple[int, str]:
        """The bytes that all ranks together allocate, and the arithmetic in words."""
        return 0, ""

    def check_result(self, result: Any, sizes: Sizes, serial: Any) -> str | None:
        """What is wrong with a result of type `self.result`, or None.

        `serial`: the result on one rank, if `needs_serial_run`.
        """


APPLICATIONS: Registry[Application] = Registry("application", programs.__name__)


def register(application: Application) -> Application:
    return APPLICATIONS.register(application.name, application)


def parse_sizes(application: Application, requests: list[str]) -> dict[str, int]:
    """The value of each parameter, from `--size full` and `--size NAME=NUMBER`. Raises RequestError
    for an unknown parameter or an invalid value.
    """
    is_full = "full" in requests
    sizes = {name: one.full if is_full else one.small for name, one in application.parameters.items()}
    for request in requests:
        name, equals, text = request.partition("=")
        if request == "full":
            continue
        if not equals or name not in sizes:
            known = ", ".join(f"{name} ({one.description})" for name, one in application.parameters.items())
            raise RequestError(f"--size {request}: give full, or NAME=NUMBER; {application.name} has {known}")
        minimum = application.parameters[name].minimum
        number = read_whole(text, minimum, MOST_BYTES)
        if number is None:
            raise RequestError(f"--size {request}: give a whole number from {minimum} to {MOST_BYTES}")
        sizes[name] = number
    return sizes
