"""The controller of one job: starts its ranks and turns their reports into measurements."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from hvscale.bench.collectives.rank_job import FileTail
from hvscale.bench.collectives.request import Refused
from hvscale.comm_tuning.collectives.decide.measurements import AlgorithmChoice, Point
from hvscale.comm_tuning.collectives.document import TuneCollectivesDocument, TuningJob
from hvscale.comm_tuning.collectives.measure.request import (
    Checked,
    CollectivesRequest,
    RankReport,
    RankReportLine,
    Sample,
    Trying,
    TuningEnded,
    TuningStarted,
    reports_path,
    request_path,
)
from hvscale.comm_tuning.knobs.library import spelling_of
from hvscale.core.errors import RankFailedError
from hvscale.core.run_folder import RunFolder, write_text
from hvscale.launch import placements
from hvscale.launch.controller import launch
from hvscale.launch.mpi.reported_library import LibraryCheck, require_requested_library
from hvscale.launch.options import LaunchHooks, LaunchOptions
from hvscale.studies.base import Warn

COMMAND = ["python", "-P", "-m", "hvscale.comm_tuning.collectives.measure.rank"]
READ_INTERVAL_SECONDS = 1.0  # between reads of the ranks' reports


class TuningReporter(Protocol):
    """Shows the progress of a study."""

    def job(self, document: TuneCollectivesDocument, job: TuningJob, sizes: list[int]) -> None:
        """A job starts."""

    def report(self, report: RankReport) -> None:
        """The job's ranks have reported."""


class RankReports:
    """Reads rank 0's reports about once a second."""

    def __init__(self, run: Path, on_report: Callable[[RankReport], None]) -> None:
        self.file, self.on_report, self.next_read = FileTail(reports_path(run)), on_report, 0.0
        self.library = LibraryCheck()

    def watch(self, run: RunFolder) -> bool:
        """Whether the ranks run on another library than requested; then the launch stops."""
        if time.monotonic() < self.next_read:
            return False
        self.next_read = time.monotonic() + READ_INTERVAL_SECONDS
        if self.library.is_mismatch(run):
            return True
        if self.library.confirmed:
            self.read()
        return False

    def read(self) -> None:
        for text in self.file.new_lines():
            self.on_report(RankReportLine.model_validate_json(b'{"line":' + text + b"}").line)


class JobResults:
    """Collects a job's reports and adds them to the measurements.

    `trying`: the choice whose first call is running. `refused`: why the ranks refused to measure.
    """

    def __init__(self, document: TuneCollectivesDocument, job: TuningJob, reporter: TuningReporter, warn: Warn) -> None:
        self.document, self.job, self.reporter, self.warn = document, job, reporter, warn
        self.started: TuningStarted | None = None
        self.trying: AlgorithmChoice | None = None
        self.refused = ""
        self.seconds: dict[tuple[int, AlgorithmChoice], list[float]] = {}
        self.wrong: dict[tuple[int, AlgorithmChoice], int] = {}

    def is_of_job(self, point: Point) -> bool:
        job = self.job
        return (point.np, point.operation, point.eager_limit_bytes) == (job.np, job.operation, job.eager_limit_bytes)

    def add(self, report: RankReport) -> None:
        match report:
            case TuningStarted():
                self.started, self.document.library = report, report.library
                if names := dict.fromkeys(choice.library_algorithm or choice.algorithm for choice in report.rejected):
                    self.warn(
                        f"{self.job.operation}: {report.library} does not accept {', '.join(names)}: not measured"
                    )
            case Trying():
                self.trying = report.choice
            case Sample():
                self.trying = None
                for choice in report.choices:
                    self.seconds.setdefault((report.bytes, choice), []).append(report.seconds)
            case Checked():
                for choice in report.choices:
                    self.wrong[report.bytes, choice] = report.wrong
            case Refused():
                self.refused = report.reason
            case TuningEnded():
                self.job.finished = report.finished
        self.reporter.report(report)

    def merge(self) -> None:
        """Add the samples to the document's measurements."""
        measurements, job = self.document.measurements, self.job
        measurements.library = self.document.library
        points = {(point.bytes, point.choice): point for point in measurements.points if self.is_of_job(point)}
        for (size, choice), seconds in self.seconds.items():
            point = points.get((size, choice))
            if point is None:
                assert self.started is not None  # noqa: S101 - the first report
                point = Point(
                    operation=job.operation,
                    np=job.np,
                    ranks_per_node=self.started.ranks_per_node,
                    bytes=size,
                    eager_limit_bytes=job.eager_limit_bytes,
                    choice=choice,
                    seconds=seconds,
                )
                measurements.points.append(point)
                points[size, choice] = point
            else:
                point.seconds += seconds
                point.starts += 1
        # A start may check choices that only earlier starts have measured.
        for key, wrong in self.wrong.items():
            if key in points:
                points[key].wrong = max(points[key].wrong, wrong)
        self.seconds, self.wrong = {}, {}


def run_job(
    job: TuningJob, request: CollectivesRequest, run: RunFolder, options: LaunchOptions, results: JobResults
) -> None:
    """Start the ranks of a job in a new run folder and collect their reports.

    `options`: of the study, with all ranks. Raises UntrustedError if the ranks run on another
    library than requested, and the errors of `launch`.
    """
    run.path.mkdir()
    write_text(request_path(run.path), request.model_dump_json(by_alias=True))
    results.reporter.job(results.document, job, request.sizes)
    reports = RankReports(run.path, results.add)
    spelling = spelling_of(request.mpi, "eager_threshold")
    limit = spelling.write(job.eager_limit_bytes) if spelling is not None and job.eager_limit_bytes else {}
    try:
        job_launch = job_options(job, options, limit).replace(run=run.path)
        launch(COMMAND, job_launch, LaunchHooks(warn=results.warn, watch=reports.watch))
    except RankFailedError:
        require_requested_library(run.read())
        raise
    finally:
        if run.run_json.exists():
            results.document.host = run.read().host
            if not reports.library.is_mismatch(run):
                reports.read()
                results.merge()
    require_requested_library(run.read())


def job_options(job: TuningJob, options: LaunchOptions, limit: Mapping[str, str]) -> LaunchOptions:
    """The launch options of a job.

    A job on fewer ranks has as many on each node, and the job's eager limit overrides the user's.
    """
    placement = options.placement
    nodes = placement.nodes or placements.find(placement.name).default_nodes
    if nodes is not None and job.np != options.np:
        per_node = -(-options.np // nodes)
        placement = placement.model_copy(update={"nodes": -(-job.np // per_node)})
    env = (*options.env, *(f"{name}={word}" for name, word in limit.items()))
    return options.replace(np=job.np, placement=placement, env=env)
