"""Starts the ranks of a benchmark and reads their results."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from hvscale.bench.collectives.backends import Backend
from hvscale.bench.collectives.request import (
    BenchRequest,
    BenchStarted,
    MeasuredSize,
    Refused,
    ResultLine,
    request_path,
    results_path,
)
from hvscale.core.errors import RankFailedError, RequestError, UntrustedError
from hvscale.core.run_folder import RunFolder, write_text
from hvscale.launch import flavours
from hvscale.launch.controller import launch
from hvscale.launch.environment import job_environment
from hvscale.launch.mpi.reported_library import LibraryCheck, require_requested_library
from hvscale.launch.options import LaunchHooks, LaunchOptions
from hvscale.launch.placements import PLACEMENTS

# -P: a file such as numbers.py in the working folder must not replace a module.
COMMAND = ["python", "-P", "-m", "hvscale.bench.collectives.rank_side.rank"]
# Placements whose ranks use this machine's memory.
ON_THIS_MACHINE = tuple(name for name, placement in PLACEMENTS.all().items() if placement.on_this_machine)


class FileTail:
    """Reads the new lines of a file that another process writes. An incomplete last line waits for
    the next read.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.position = path, 0

    def new_lines(self) -> list[bytes]:
        if not self.path.exists():
            return []
        with self.path.open("rb") as stream:
            stream.seek(self.position)
            complete = stream.read().rpartition(b"\n")[0]
        self.position += len(complete) + bool(complete)
        return [line for line in complete.splitlines() if line]


class ResultReader:
    """Reads the new results of rank 0. `refused`: why the ranks could not measure, or ""."""

    def __init__(self, run: Path) -> None:
        self.file, self.refused = FileTail(results_path(run)), ""

    def new_results(self) -> list[BenchStarted | Refused | MeasuredSize]:
        """Raises UntrustedError for a damaged line."""
        try:
            found = [ResultLine.model_validate_json(b'{"line":' + text + b"}").line for text in self.file.new_lines()]
        except ValidationError as error:
            raise UntrustedError(f"{self.file.path} is damaged: measure again in a new --run folder") from error
        self.refused = next((line.reason for line in found if isinstance(line, Refused)), self.refused)
        return found


def measure_on_ranks(
    run: RunFolder,
    request: BenchRequest,
    options: LaunchOptions,
    hooks: LaunchHooks,
    handle: Callable[[BenchStarted | Refused | MeasuredSize], None],
) -> None:
    """Start ranks that measure the request, and pass each line of rank 0 to `handle`.

    Raises RequestError if the ranks refuse the request, UntrustedError if they run on another MPI
    than the requested one, and the errors of `launch`.
    """
    run.path.mkdir(exist_ok=True)
    write_text(request_path(run.path), request.model_dump_json(by_alias=True))
    results, library = ResultReader(run.path), LibraryCheck()

    def read_results() -> None:
        for line in results.new_results():
            if isinstance(line, BenchStarted):
                line.library = library.label(line.library)
            handle(line)

    def watch(_: RunFolder) -> bool:
        if library.is_mismatch(run):
            return True
        if library.confirmed:
            read_results()
        return False

    try:
        launch(COMMAND, options.replace(run=run.path), replace(hooks, watch=watch))
    except RankFailedError as error:
        require_requested_library(run.read())
        read_results()
        if results.refused:
            raise RequestError(results.refused) from error
        raise
    finally:
        if run.run_json.exists() and not library.is_mismatch(run):
            read_results()
    require_requested_library(run.read())


def check_installed(backend: Backend, options: LaunchOptions) -> None:
    """Raises RequestError, with how to install it, if the back end or its launcher is not
    installed.
    """
    flavour = flavours.get(backend.flavour)
    environment = job_environment(flavour, options.env)
    try:
        flavour.find(environment)
    except RequestError as error:
        raise RequestError(f"{backend.name}: {error}") from error
    if problem := backend.problem(COMMAND, environment):
        raise RequestError(f"{backend.name}: {problem}")
