"""One command in several ways, such as under settings or in placements: fresh starts in turns, profiled, in a folder that is gone on with."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from hvscale.errors import HvscaleError, RequestError
from hvscale.launch import RunInterruptedError
from hvscale.profiled_launch import profiled_launch
from hvscale.profiling.bins import parse_bins
from hvscale.profiling.compare import Comparison, compare
from hvscale.run_folder import RunFolder, cannot_write, default_run_path, write_text
from hvscale.scaling.document import State
from hvscale.scaling.estimate import CONFIDENCE, Estimate
from hvscale.scaling.study import named_failure, settings
from hvscale.scaling.throughput import Metric, Source, find_throughput, rank_seconds, read_throughput
from hvscale.study_folder import finished_or_new, study_in

# What makes two comparisons the same; more repeats may be asked for in the same folder, and another metric.
SAME = ("command", "np", "launch")


class Turn(BaseModel):
    """One start of the command. `throughput`: of all ranks together, None where nothing tells it; `seconds`: as `rank_seconds`.

    Both are None where it failed, and `problem` says why.
    """

    name: str
    repeat: int
    folder: str
    throughput: float | None = None
    source: Source | None = None
    seconds: float | None = None
    problem: str | None = None


class TurnsDocument(BaseModel):
    """A comparison in turns. `launch`: what was asked of it under each name, the first of which is the base.

    `unit` is that of the throughputs, where it is known; `profiles`: the base's last run beside each of the others', by message size.
    """

    model_config = ConfigDict(populate_by_name=True)

    schema_: Annotated[str, Field(alias="schema")]
    state: State = "running"
    folder: str
    command: list[str]
    np: int
    launch: dict[str, dict[str, Any]]
    metric: str | None
    repeats: int
    confidence: float = CONFIDENCE
    measured_by: Literal["throughput", "seconds"] | None = None
    unit: str | None = None
    runs: list[Turn] = []
    profiles: list[Comparison] = []
    warnings: list[str] = []

    def measured(self, name: str, by: Literal["throughput", "seconds"]) -> dict[int, float]:
        """What the starts under this name have given, by repeat."""
        found = {turn.repeat: getattr(turn, by) for turn in self.runs if turn.name == name}
        return {repeat: value for repeat, value in found.items() if value is not None}

    @abstractmethod
    def tabulate(self) -> None:
        """Make the rows, over the runs so far."""


Document = TypeVar("Document", bound=TurnsDocument)


class Turns(Generic[Document]):
    """One comparison: its folder, and `document`, which is in the folder after every run, as `<verb>.json`."""

    def __init__(
        self,
        verb: str,
        make: Callable[..., Document],
        jobs: Mapping[str, Mapping[str, Any]],
        command: list[str],
        *,
        repeats: int,
        metric: str | None,
        bins: str,
        label: Callable[[str], str],
    ) -> None:
        """`jobs`: by name the keywords of `hvscale.launch.launch`; `label`: of a name, for its runs' folders; `make`: the document's class.

        Raises RequestError for what cannot be measured; writes nothing.
        """
        if repeats < 1:
            raise RequestError(f"--repeat {repeats}: at least one start of each is needed")
        parse_bins(bins)
        self.verb, self.jobs, self.bins, self.label = verb, jobs, bins, label
        self.metric = Metric.parse(metric) if metric is not None else None
        asked = next(iter(jobs.values()))
        self.path = (asked["run_path"] or default_run_path([verb, *command])).absolute()
        self.file = self.path / f"{verb}.json"
        self.failure: HvscaleError | None = None
        self.document = make(
            folder=str(self.path),
            command=command,
            np=asked["np"],
            launch={name: settings(**job) for name, job in jobs.items()},
            metric=metric,
            repeats=repeats,
        )

    def measure(
        self,
        *,
        starting: Callable[[str, int], None],
        measured: Callable[[str, int, float | None, str | None], None],
        warn: Callable[[str], None],
    ) -> None:
        """Make the runs that the folder does not hold yet. `starting(name, repeat)` is told before one, `measured(name, repeat, value, unit)` after.

        What failed once is not started again. The failure is raised after all others have been measured: RankFailedError, or
        UntrustedError. Raises RequestError and RunInterruptedError at once. What was measured until then is kept in any case.
        """
        for text in self.document.warnings:
            warn(text)

        def warn_once(text: str) -> None:
            if text not in self.document.warnings:
                self.document.warnings.append(text)
                warn(text)

        with study_in(self.path, self.file, self.document, SAME, f"hvscale {self.verb}", "*-repeat-*"):
            self.write("running")
            try:
                failed: set[str] = set()
                for repeat in range(1, self.document.repeats + 1):
                    for name in self.jobs:
                        if name not in failed:
                            starting(name, repeat)
                            turn = self.take_turn(name, repeat, warn_once)
                            value = turn.throughput if self.document.measured_by == "throughput" else turn.seconds
                            measured(name, repeat, value, self.document.unit)
                            if turn.problem is not None:
                                failed.add(name)
                self.compare_profiles(warn_once)
                if self.failure is not None:
                    raise self.failure
            except BaseException as error:
                ended: State = "failed" if isinstance(error, HvscaleError) else "interrupted"
                self.write("interrupted" if isinstance(error, RunInterruptedError) else ended)
                raise
            self.write("finished")

    def take_turn(self, name: str, repeat: int, warn: Callable[[str], None]) -> Turn:
        """Start the command, unless a finished run is there, and add what came of it to the document."""
        run, is_there = finished_or_new(self.path / f"{self.label(name)}-repeat-{repeat}")
        turn = Turn(name=name, repeat=repeat, folder=run.path.name)
        try:
            if not is_there:
                options = {**self.jobs[name], "run_path": run.path}
                profiled_launch(command=self.document.command, warn=warn, **options)
            self.read(run, turn, warn)
        except RequestError:
            raise
        except RunInterruptedError:
            turn.problem = "interrupted"
            self.document.runs.append(turn)
            raise
        except HvscaleError as error:
            turn.problem = str(error)
            self.failure = self.failure or named_failure(name, error)
            warn(f"{name}, repeat {repeat} failed and is not started again: {turn.problem}")
        self.document.runs.append(turn)
        self.write("running")
        return turn

    def read(self, run: RunFolder, turn: Turn, warn: Callable[[str], None]) -> None:
        """Its figures. The first run decides whether throughput or, where nothing tells it, seconds are compared."""
        document = self.document
        look = read_throughput if document.measured_by == "throughput" else find_throughput
        found = look(run, document.np, self.metric, warn)
        if document.measured_by is None:
            document.measured_by = "seconds" if found is None else "throughput"
        if document.measured_by == "seconds":
            document.unit = "s"
        elif found is not None:
            turn.throughput, turn.source, document.unit = found.value, found.source, found.unit
        turn.seconds = rank_seconds(run)

    def compare_profiles(self, warn: Callable[[str], None]) -> None:
        last = {turn.name: turn.folder for turn in self.document.runs if turn.problem is None}
        first, *others = self.jobs
        for name in others:
            if first in last and name in last:
                before, after = RunFolder(self.path / last[first]), RunFolder(self.path / last[name])
                try:
                    self.document.profiles.append(compare(before, after, self.bins))
                except RequestError as error:
                    warn(f"the profiles of {first} and {name} cannot be compared: {error}")

    def write(self, state: State) -> None:
        """Raises RequestError when the folder cannot be written or the disk is full."""
        self.document.state = state
        self.document.tabulate()
        try:
            write_text(self.file, self.document.model_dump_json(by_alias=True, indent=2) + "\n")
        except OSError as error:
            raise cannot_write(self.path, error) from error


def verdict(ratio: Estimate, above: str, below: str) -> str:
    """What a ratio says: one of the two words, "no difference" when its interval holds 1, or "unknown" when it has none."""
    if ratio.low is None or ratio.high is None:
        return "unknown"
    return "no difference" if ratio.low <= 1 <= ratio.high else above if ratio.mean > 1 else below
