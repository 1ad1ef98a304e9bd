"""Measures one command under several launch options: interleaved, profiled, resumable."""

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
from hvscale.studies.throughput import Metric, ThroughputSource, find_throughput, rank_seconds, read_throughput

MeasuredBy = Literal["throughput", "seconds"]


class RepeatedRun(BaseModel):
    """One run of the command.

    `throughput`: of all ranks together, None if the run does not report it. `seconds`: as
    `rank_seconds`. Both are None for a failed run, and `problem` says why.
    """

    name: str
    repeat: int
    folder: str
    throughput: float | None = None
    source: ThroughputSource | None = None
    seconds: float | None = None
    problem: str | None = None


class ComparisonDocument(InterleavedDocument):
    """The document of a comparison.

    `launch`: the launch options of each variant by name; the first one is the baseline. `unit`: of
    the throughputs, None if unknown. `profiles`: the last run of the baseline against that of each
    other variant, by message size.
    """

    command: list[str]
    np: int
    launch: dict[str, LaunchOptions]
    metric: str | None
    measured_by: MeasuredBy | None = None
    unit: str | None = None
    runs: list[RepeatedRun] = []
    profiles: list[Comparison] = []

    @property
    def baseline(self) -> str:
        return next(iter(self.launch))

    def measured(self, name: str, by: MeasuredBy) -> dict[int, float]:
        """The results of the variant `name`, by repeat, of runs that count."""
        found = {run.repeat: getattr(run, by) for run in self.runs if run.name == name and run.problem is None}
        return {repeat: value for repeat, value in found.items() if value is not None}

    def read_profile(self, run: RunFolder) -> None:
        """Keep the figures that the document needs from the profile of a finished run.

        Raises RequestError or UntrustedError if the profile is damaged or incomplete.
        """

    @abstractmethod
    def tabulate(self) -> None:
        """Compute the rows from the runs so far."""


Document = TypeVar("Document", bound=ComparisonDocument)


class ComparisonStudy(InterleavedStudy[Document, str, RepeatedRun]):
    """One comparison."""

    variants: Mapping[str, LaunchOptions]
    must_match: tuple[str, ...] = ("command", "np", "launch")  # a resuming call may change the repeats and the metric
    failure_text = "{what}, repeat {repeat} failed"

    def __init__(
        self,
        verb: str,
        make_document: Callable[..., Document],
        jobs: Mapping[str, LaunchOptions],
        command: list[str],
        *,
        repeats: int,
        metric: str | None,
        bins: str,
        folder_name: Callable[[str], str],
        hooks: LaunchHooks = NO_HOOKS,
    ) -> None:
        """Check the request; write nothing.

        `jobs`: the launch options of each variant by name, the baseline first. `folder_name` turns
        such a name into that of its run folders. `hooks`: of every launch. Raises RequestError for
        an invalid request.
        """
        if repeats < 1:
            raise RequestError(f"--repeat {repeats}: must be at least 1")
        parse_bins(bins)
        self.metric = Metric.parse(metric) if metric is not None else None
        self.verb, self.bins, self.make_folder_name, self.hooks = verb, bins, folder_name, hooks
        baseline = next(iter(jobs.values()))
        document = make_document(
            folder=str((baseline.run or default_run_path([verb, *command])).absolute()),
            command=command,
            np=baseline.np,
            launch={name: job.recorded() for name, job in jobs.items()},
            metric=metric,
            repeats=repeats,
        )
        super().__init__(document, jobs)

    def resume(self, previous: Document) -> None:
        super().resume(previous)
        self.document.profiles = previous.profiles  # until the last runs are compared again

    def run_rounds(self, progress: ProgressReporter) -> None:
        super().run_rounds(progress)
        self.compare_profiles()

    def folder_name(self, variant: str) -> str:
        return self.make_folder_name(variant)

    def new_record(self, variant: str, repeat: int, folder: str) -> RepeatedRun:
        return RepeatedRun(name=variant, repeat=repeat, folder=folder)

    def launch(self, variant: str, run: RunFolder) -> None:
        options = self.variants[variant].replace(run=run.path)
        profiled_launch(self.document.command, options, replace(self.hooks, warn=self.warn))

    def read(self, variant: str, run: RunFolder, record: RepeatedRun) -> None:
        """Read the throughput, the seconds and the profile of a run.

        The first run decides which of the first two is compared: seconds if it reports no
        throughput. A profile that cannot be trusted is left out with a warning.
        """
        document = self.document
        read = read_throughput if document.measured_by == "throughput" else find_throughput
        found = read(run, self.variants[variant].np, self.metric, self.warn)
        if document.measured_by is None:
            document.measured_by = "seconds" if found is None else "throughput"
        if document.measured_by == "seconds":
            document.unit = "s"
        elif found is not None:
            record.throughput, record.source, document.unit = found.value, found.source, found.unit
        record.seconds = rank_seconds(run)
        try:
            document.read_profile(run)
        except (RequestError, UntrustedError) as error:
            self.warn(f"{variant}, repeat {record.repeat}: the times of its messages are left out: {error}")

    def result(self, record: RepeatedRun) -> tuple[float | None, str | None]:
        is_throughput = self.document.measured_by == "throughput"
        return record.throughput if is_throughput else record.seconds, self.document.unit

    def has_figures(self) -> bool:
        return any(run.problem is None for run in self.document.runs)

    def compared(self) -> list[tuple[str, str]]:
        """The pairs of variants, baseline first, whose profiles are compared."""
        baseline, *others = self.variants
        return [(baseline, name) for name in others]

    def compare_profiles(self) -> None:
        """Compare the last runs of each pair."""
        last = {run.name: run.folder for run in self.document.runs if run.problem is None}
        self.document.profiles = []
        for baseline, name in self.compared():
            if baseline in last and name in last:
                before, after = RunFolder(self.path / last[baseline]), RunFolder(self.path / last[name])
                try:
                    self.document.profiles.append(compare(before, after, self.bins))
                except (RequestError, UntrustedError) as error:
                    self.warn(f"the profiles of {baseline} and {name} cannot be compared: {error}")
