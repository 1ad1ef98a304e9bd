"""One command under several launch options, such as settings or placements: interleaved, profiled,
resumable.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal, TypeVar

from pydantic import BaseModel

from hvscale.core.errors import RequestError, UntrustedError
from hvscale.core.run_folder import RunFolder, default_run_path
from hvscale.launch.options import NO_HOOKS, LaunchHooks, LaunchOptions
from hvscale.profiling.analyze.grouping import parse_bins
from hvscale.profiling.compare import Comparison, compare
from hvscale.studies.document import InterleavedDocument
from hvscale.studies.interleaved import InterleavedStudy, ProgressReporter
from hvscale.studies.profiled_launch import profiled_launch
from hvscale.studies.throughput import Metric, Source, find_throughput, rank_seconds, read_throughput


class RepeatedRun(BaseModel):
    """One start of the command. `throughput`: of all ranks together, None where nothing tells it;
    `seconds`: as `rank_seconds`.

    Both are None where it failed, and `problem` says why.
    """

    name: str
    repeat: int
    folder: str
    throughput: float | None = None
    source: Source | None = None
    seconds: float | None = None
    problem: str | None = None


class ComparisonDocument(InterleavedDocument):
    """A comparison in turns. `launch`: what was asked of it under each name, the first of which is
    the base.

    `unit` is that of the throughputs, where it is known; `profiles`: the base's last run beside
    each of the others', by message size.
    """

    command: list[str]
    np: int
    launch: dict[str, LaunchOptions]
    metric: str | None
    measured_by: Literal["throughput", "seconds"] | None = None
    unit: str | None = None
    runs: list[RepeatedRun] = []
    profiles: list[Comparison] = []

    def measured(self, name: str, by: Literal["throughput", "seconds"]) -> dict[int, float]:
        """What the starts under this name have given, by repeat."""
        found = {run.repeat: getattr(run, by) for run in self.runs if run.name == name}
        return {repeat: value for repeat, value in found.items() if value is not None}

    @abstractmethod
    def tabulate(self) -> None:
        """Make the rows, over the runs so far."""


Document = TypeVar("Document", bound=ComparisonDocument)


class ComparisonStudy(InterleavedStudy[Document, str, RepeatedRun]):
    """One comparison."""

    starts: Mapping[str, LaunchOptions]
    same = ("command", "np", "launch")  # more repeats may be asked for, and another metric
    failing = "{what}, repeat {repeat} failed"

    def __init__(
        self,
        verb: str,
        make: Callable[..., Document],
        jobs: Mapping[str, LaunchOptions],
        command: list[str],
        *,
        repeats: int,
        metric: str | None,
        bins: str,
        label: Callable[[str], str],
        hooks: LaunchHooks = NO_HOOKS,
    ) -> None:
        """`jobs`: the options of each start, by name; `hooks`: for all of them; `label`: of a name,
        for its runs' folders; `make`: the document's class.

        Raises RequestError for what cannot be measured; writes nothing.
        """
        if repeats < 1:
            raise RequestError(f"--repeat {repeats}: at least one start of each is needed")
        parse_bins(bins)
        self.metric = Metric.parse(metric) if metric is not None else None
        self.verb, self.bins, self.label_of, self.hooks = verb, bins, label, hooks
        asked = next(iter(jobs.values()))
        document = make(
            folder=str((asked.run or default_run_path([verb, *command])).absolute()),
            command=command,
            np=asked.np,
            launch={name: job.recorded() for name, job in jobs.items()},
            metric=metric,
            repeats=repeats,
        )
        super().__init__(document, jobs)

    def run_rounds(self, progress: ProgressReporter) -> None:
        super().run_rounds(progress)
        self.compare_profiles()

    def label(self, name: str) -> str:
        return self.label_of(name)

    def record(self, name: str, repeat: int, folder: str) -> RepeatedRun:
        return RepeatedRun(name=name, repeat=repeat, folder=folder)

    def launch(self, name: str, run: RunFolder) -> None:
        options = self.starts[name].replace(run=run.path)
        profiled_launch(self.document.command, options, replace(self.hooks, warn=self.warn))

    def read(self, name: str, run: RunFolder, done: RepeatedRun) -> None:
        """The first run decides whether throughput or, where nothing tells it, seconds are
        compared.
        """
        document = self.document
        look = read_throughput if document.measured_by == "throughput" else find_throughput
        found = look(run, document.np, self.metric, self.warn)
        if document.measured_by is None:
            document.measured_by = "seconds" if found is None else "throughput"
        if document.measured_by == "seconds":
            document.unit = "s"
        elif found is not None:
            done.throughput, done.source, document.unit = found.value, found.source, found.unit
        done.seconds = rank_seconds(run)

    def figure(self, done: RepeatedRun) -> tuple[float | None, str | None]:
        return done.throughput if self.document.measured_by == "throughput" else done.seconds, self.document.unit

    def has_figures(self) -> bool:
        return any(run.problem is None for run in self.document.runs)

    def compare_profiles(self) -> None:
        last = {run.name: run.folder for run in self.document.runs if run.problem is None}
        first, *others = self.starts
        for name in others:
            if first in last and name in last:
                before, after = RunFolder(self.path / last[first]), RunFolder(self.path / last[name])
                try:
                    self.document.profiles.append(compare(before, after, self.bins))
                except (RequestError, UntrustedError) as error:
                    self.warn(f"the profiles of {first} and {name} cannot be compared: {error}")
