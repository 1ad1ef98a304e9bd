"""Starts ranks with a request and reads their results."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hvscale.bench.collectives.backends import Backend
from hvscale.bench.collectives.request import (
    BenchRequest,
    BenchStarted,
    Measured,
    Refused,
    ResultLine,
    request_path,
    results_path,
)
from hvscale.core.errors import RankFailedError, RequestError
from hvscale.core.run_folder import RunFolder, write_text
from hvscale.launch import flavours
from hvscale.launch.controller import launch
from hvscale.launch.environment import job_environment
from hvscale.launch.mpi.reported_library import LibraryCheck, require_asked_library
from hvscale.launch.options import LaunchHooks, LaunchOptions
from hvscale.launch.placements import PLACEMENTS

COMMAND = ["python", "-m", "hvscale.bench.collectives.rank_side.rank"]
# Placements whose ranks use this machine's memory.
ON_THIS_MACHINE = tuple(name for name, placement in PLACEMENTS.all().items() if placement.on_this_machine)


class NewLines:
    """The new lines of a file that another process writes. An incomplete line is left for the next
    read.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.read = path, 0

    def take(self) -> list[bytes]:
        if not self.path.exists():
            return []
        with self.path.open("rb") as stream:
            stream.seek(self.read)
            whole = stream.read().rpartition(b"\n")[0]
        self.read += len(whole) + bool(whole)
        return [line for line in whole.splitlines() if line]


class ResultLines:
    """The new results of rank 0. `refused`: why the ranks could not measure."""

    def __init__(self, run: Path) -> None:
        self.lines, self.refused = NewLines(results_path(run)), ""

    def new(self) -> list[BenchStarted | Refused | Measured]:
        found = [ResultLine.model_validate_json(b'{"line":' + text + b"}").line for text in self.lines.take()]
        self.refused = next((line.reason for line in found if isinstance(line, Refused)), self.refused)
        return found


def measure_on_ranks(
    run: RunFolder,
    request: BenchRequest,
    options: LaunchOptions,
    hooks: LaunchHooks,
    take: Callable[[BenchStarted | Refused | Measured], None],
) -> None:
    """Start ranks that do what is asked; `take` gets each line of rank 0's as it comes. Raises
    RequestError for what the ranks refuse, UntrustedError where they run on another MPI than the
    one asked for, and as `launch`.
    """
    run.path.mkdir(exist_ok=True)
    asked = request.model_dump_json(by_alias=True)
    write_text(request_path(run.path), asked)
    lines, library = ResultLines(run.path), LibraryCheck()

    def read_on() -> None:
        for line in lines.new():
            if isinstance(line, BenchStarted):
                line.library = library.label(line.library)
            take(line)

    def watch(_: RunFolder) -> bool:
        if library.is_mismatch(run):
            return True
        if library.confirmed:
            read_on()
        return False

    try:
        launch(COMMAND, options.replace(run=run.path), replace(hooks, watch=watch))
    except RankFailedError as error:
        require_asked_library(run.read())
        read_on()
        if lines.refused:
            raise RequestError(lines.refused) from error
        raise
    finally:
        if run.run_json.exists() and not library.is_mismatch(run):
            read_on()
    require_asked_library(run.read())


def check_installed(backend: Backend, options: LaunchOptions) -> None:
    """Raises RequestError, saying how to install it, when the back end or its launcher is not
    installed.
    """
    flavour = flavours.get(backend.flavour)
    passed = job_environment(flavour, options.env)
    try:
        flavour.find(passed)
    except RequestError as error:
        raise RequestError(f"{backend.name}: {error}") from error
    if problem := backend.problem(COMMAND, passed):
        raise RequestError(f"{backend.name}: {problem}")
