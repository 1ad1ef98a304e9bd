"""The MPI programs that containers are measured against bare metal with. Each is a file in programs/ that registers itself, and its C sources.

They are written from the description in a study of Docker for MPI applications: master and slaves, a domain cut into cuboids, divide and conquer.
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
class Parameter:
    """A number that a program is given. `here`: for a machine of few cores; `study`: at the study's own size."""

    meaning: str
    here: int
    study: int
    least: int = 1


class Result(BaseModel):
    """The line that rank 0 prints. `seconds`: between two barriers, of the rank that needed most."""

    model_config = ConfigDict(extra="forbid")

    seconds: float


class Application:
    """One program. `base_np`: what speed-ups are over; `is_timed`: what counts is its seconds, not what else it says.

    `needs_serial_run`: its result is checked against that of the same build on one rank.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    sources: ClassVar[tuple[str, ...]]
    parameters: ClassVar[dict[str, Parameter]]
    result: ClassVar[type[Result]]
    base_np: ClassVar[int] = 1
    default_np: ClassVar[tuple[int, ...]] = (1, 2)
    is_timed: ClassVar[bool] = True
    needs_serial_run: ClassVar[bool] = False

    def why_not(self, np: int, sizes: Sizes) -> str | None:
        """Why it does not run on `np` ranks, and on which it does."""

    def memory(self, np: int, sizes: Sizes) -> tuple[int, str]:
        """The bytes that all ranks together allocate, and how they come about."""
        return 0, ""

    def problem(self, result: Any, sizes: Sizes, serial: Any) -> str | None:
        """What is wrong with a result of type `self.result`; `serial`: the one to be checked against, where there is one."""


APPLICATIONS: Registry[Application] = Registry("application", programs.__name__)


def register(application: Application) -> Application:
    return APPLICATIONS.register(application.name, application)


def parse_sizes(application: Application, requests: list[str]) -> dict[str, int]:
    """A number for each parameter, from `--size study` and `--size NAME=NUMBER`. Raises RequestError for what the program does not have."""
    of_study = "study" in requests
    sizes = {name: one.study if of_study else one.here for name, one in application.parameters.items()}
    for request in requests:
        name, equals, text = request.partition("=")
        if request == "study":
            continue
        if not equals or name not in sizes:
            known = ", ".join(f"{name} ({one.meaning})" for name, one in application.parameters.items())
            raise RequestError(f"--size {request}: write study, or NAME=NUMBER; {application.name} has {known}")
        least = application.parameters[name].least
        number = read_whole(text, least, MOST_BYTES)
        if number is None:
            raise RequestError(f"--size {request}: {name} is a whole number from {least} to {MOST_BYTES}")
        sizes[name] = number
    return sizes
