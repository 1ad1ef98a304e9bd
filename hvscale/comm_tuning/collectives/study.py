"""The study of `hvscale tune-collectives`: measures collectives job by job in a resumable folder,
decides, and writes the table.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from hvscale.bench.collectives import elements
from hvscale.bench.collectives.operations import COLLECTIVES
from hvscale.bench.collectives.sizes import messages
from hvscale.comm_tuning.collectives.decide.measurements import (
    LIBRARY,
    AlgorithmChoice,
    CollectiveCase,
    Measurements,
)
from hvscale.comm_tuning.collectives.document import TuneCollectivesDocument, TuningJob
from hvscale.comm_tuning.collectives.instrument import find_libmpi
from hvscale.comm_tuning.collectives.measure.candidates import candidates
from hvscale.comm_tuning.collectives.measure.job import JobResults, TuningReporter, run_job
from hvscale.comm_tuning.collectives.measure.request import DTYPE, CollectivesRequest
from hvscale.comm_tuning.collectives.options import parse_eager_limits, parse_nps, parse_operations, sizes_of
from hvscale.comm_tuning.collectives.tables import files
from hvscale.comm_tuning.collectives.tables.table import Operation
from hvscale.core.errors import RankFailedError, RequestError, UntrustedError
from hvscale.core.run_folder import RunFolder, default_run_path
from hvscale.launch import flavours
from hvscale.launch.environment import job_environment
from hvscale.launch.options import LaunchOptions
from hvscale.launch.placements._link_shaping import bits_per_second
from hvscale.studies.base import Study, Warn

SEARCHING = 0.8  # share of --minutes for the search; the rest is for confirming the best choices
CONFIRMATIONS = 3  # at most so many rounds, because each may bring another choice to the front
ATTEMPTS = 3  # of a job whose ranks failed in a choice, which the next attempt leaves out


class CollectivesStudy(Study[TuneCollectivesDocument]):
    """One study of collectives. `minutes`: time limit for all its jobs together, None for no
    limit.
    """

    verb = "tune-collectives"
    same = ("mpi", "np", "launch")  # a later call may add to everything else
    started = "np-*"

    def __init__(
        self, document: TuneCollectivesDocument, options: LaunchOptions, minutes: float | None, exhaustive: bool
    ) -> None:
        super().__init__(document)
        self.options, self.minutes, self.exhaustive = options, minutes, exhaustive
        self.began = time.monotonic()

    @classmethod
    def of(
        cls,
        *,
        ops: str,
        nps: str | None,
        min_bytes: str,
        max_bytes: str,
        eager_limits: str | None,
        from_run: Path | None,
        minutes: float | None,
        exhaustive: bool,
        path: Path | None,
        options: LaunchOptions,
    ) -> Self:
        """`options`: with all ranks. Raises RequestError for what cannot be measured; starts and
        writes nothing.
        """
        np, mpi = options.np, options.mpi
        if np < 2:
            raise RequestError(f"-np {np}: a collective needs at least two ranks: use -np 2 or more")
        if not flavours.get(mpi).has_mpi:
            raise RequestError(f"--mpi {mpi}: its algorithms cannot be chosen; choose an MPI with --mpi")
        if minutes is not None and minutes <= 0:
            raise RequestError(f"--minutes {minutes:g}: must be above 0")
        operations = parse_operations(ops)
        sizes = sizes_of(operations, min_bytes, max_bytes, from_run)
        for operation, of_operation in sizes.items():
            # Raises for sizes beyond what MPI can count, before anything is started.
            messages(COLLECTIVES.get(operation), elements.find_dtype(DTYPE), 2, of_operation)
        document = TuneCollectivesDocument(
            folder=str((path or default_run_path(["tune-collectives", *sizes])).absolute()),
            mpi=mpi,
            np=np,
            nps=parse_nps(nps, np),
            operations=[*sizes],
            sizes=sizes,
            eager_limits=parse_eager_limits(eager_limits, options),
            launch=options.recorded(),
            link_bits_per_second=bits_per_second(options.placement.link)
            if options.placement.link is not None
            else None,
            measurements=Measurements(mpi=mpi),
        )
        return cls(document, options, minutes, exhaustive)

    def measure(self, reporter: TuningReporter, warn: Warn) -> None:
        """Run every unfinished job, confirm the best choices, and write the table.

        A failure is raised after all other jobs. Raises RequestError, RankFailedError,
        UntrustedError and RunInterruptedError. Measurements made so far are kept and decided on.
        """
        with self.at_work(warn):
            todo = self.todo()
            for number, job in enumerate(todo):
                if self.document.measurements.points and self.seconds_left() == 0.0:
                    self.warn(
                        f"{len(todo) - number} of {len(todo)} jobs were not started, the time is up: resume with --run {self.path}"
                    )
                    break
                self.start(job, len(todo) - number, reporter, SEARCHING)
            self.confirm(reporter)
            self.check_results()
            self.write_files()

    def confirm(self, reporter: TuningReporter) -> None:
        """Measure chosen choices in a second start: the best of many is partly luck, and starts
        differ.
        """
        for _ in range(CONFIRMATIONS):
            self.tabulate()
            jobs = self.unconfirmed()
            for number, (job, choices) in enumerate(jobs):
                if self.seconds_left() == 0.0:
                    self.warn(
                        f"the best choices were not confirmed in a fresh start, the time is up: resume with --run {self.path}"
                    )
                    return
                self.start(job, len(jobs) - number, reporter, 1.0, choices)
            if not jobs:
                return

    def unconfirmed(self) -> list[tuple[TuningJob, dict[int, list[AlgorithmChoice]]]]:
        """Jobs for the choices of the table that only one start has measured, each beside the
        library's own choice.
        """
        decision = self.document.decision
        if decision is None:
            return []
        limit = decision.table.eager_limit_bytes
        starts = {
            (point.case, point.bytes, point.choice): point.starts
            for point in self.document.measurements.points
            if point.eager_limit_bytes == limit
        }
        found: dict[CollectiveCase, dict[int, list[AlgorithmChoice]]] = {}
        for row in decision.rows:
            case = CollectiveCase(row.operation, row.np, row.ranks_per_node)
            if row.choice != LIBRARY and starts[case, row.bytes, row.choice] == 1:
                found.setdefault(case, {})[row.bytes] = [LIBRARY, row.choice]
        return [(self.job(case.np, case.operation, limit, confirmation=True), sizes) for case, sizes in found.items()]

    def todo(self) -> list[TuningJob]:
        """The unfinished jobs: the largest np first, and the library's own eager limit before
        others.
        """
        document = self.document
        known = {(job.np, job.operation, job.eager_limit_bytes): job for job in document.jobs if not job.confirmation}
        wanted = [
            (np, operation, limit)
            for np in sorted(document.nps, reverse=True)
            for limit in document.eager_limits
            for operation in document.operations
        ]
        for np, operation, limit in wanted:
            if (np, operation, limit) not in known:
                known[np, operation, limit] = self.job(np, operation, limit)
        return [known[key] for key in wanted if not known[key].finished]

    def job(self, np: int, operation: Operation, limit: int | None, confirmation: bool = False) -> TuningJob:
        name = f"np-{np}-{operation}-eager-{'own' if limit is None else limit}"
        job = TuningJob(
            np=np,
            operation=operation,
            eager_limit_bytes=limit,
            confirmation=confirmation,
            run=self.free_folder(f"{name}-confirmation" if confirmation else name).name,
        )
        self.document.jobs.append(job)
        return job

    def seconds_left(self) -> float | None:
        if self.minutes is None:
            return None
        return max(0.0, 60 * self.minutes - (time.monotonic() - self.began))

    def start(
        self,
        job: TuningJob,
        jobs: int,
        reporter: TuningReporter,
        share: float,
        only: dict[int, list[AlgorithmChoice]] | None = None,
    ) -> None:
        """Run a job, retrying without a choice whose ranks failed. `jobs` jobs get the `share` of
        the time that is left.
        """
        for attempt in range(1, ATTEMPTS + 1):
            began, left = time.monotonic(), self.seconds_left()
            results = JobResults(self.document, job, reporter, self.warn)
            try:
                self.launch(job, results, None if left is None else share * left / jobs, only or {})
                job.problem = None
                return
            except RankFailedError as error:
                if results.refused:
                    raise RequestError(results.refused) from error
                job.problem = str(error)
                blamed = results.trying
                if blamed is None or blamed == LIBRARY or attempt == ATTEMPTS:
                    what = f"np {job.np}, {job.operation}"
                    self.failure = self.failure or RankFailedError(f"{what}: {error}", error.last_lines)
                    self.warn(f"{what} failed: {error}")
                    return
                self.exclude(blamed, job, results)
                self.warn(f"np {job.np}, {job.operation}: {blamed} failed and is left out: {error}")
            finally:
                job.seconds += time.monotonic() - began
                self.write("running")

    def exclude(self, choice: AlgorithmChoice, job: TuningJob, results: JobResults) -> None:
        """Leave out a choice, with its times at other sizes."""
        job.excluded.append(choice)
        measurements = self.document.measurements
        measurements.points = [
            point for point in measurements.points if point.choice != choice or not results.is_of_job(point)
        ]

    def launch(
        self, job: TuningJob, results: JobResults, seconds: float | None, only: Mapping[int, list[AlgorithmChoice]]
    ) -> None:
        """Run the job in a new folder. `only`: the choices to measure by size; empty for all."""
        run = RunFolder(self.free_folder(job.run))
        job.run = run.path.name
        document = self.document
        request = CollectivesRequest(
            operation=job.operation,
            mpi=document.mpi,
            sizes=sorted(only) or document.sizes[job.operation],
            candidates=[
                one for one in candidates(document.mpi, job.operation, job.np) if one.choice not in job.excluded
            ],
            eager_limit_bytes=job.eager_limit_bytes,
            refine=not (self.exhaustive or only),
            exhaustive=self.exhaustive or bool(only),
            seconds=seconds,
            known=[point for point in document.measurements.points if results.is_of_job(point) and not only],
            only=dict(only),
        )
        run_job(job, request, run, self.options, results)

    def free_folder(self, name: str) -> Path:
        """A folder that does not exist yet; interrupted jobs keep theirs."""
        attempt, path = 1, self.path / name
        while path.exists():
            attempt += 1
            path = self.path / f"{name}-{attempt}"
        return path

    def check_results(self) -> None:
        """Warn about each choice with wrong results; the study fails at the end, after the table
        was written without it.
        """
        wrong = [point for point in self.document.measurements.points if point.wrong]
        for point in wrong:
            self.warn(
                f"{point.operation} of {point.bytes} bytes on {point.np} ranks by {point.choice}: {point.wrong} wrong elements; it is never chosen"
            )
        if wrong and self.failure is None:
            self.failure = UntrustedError(
                f"{wrong[0].choice} gave wrong results in {wrong[0].operation}; the table does not use it"
            )

    def write_files(self) -> None:
        """Write the table and the library's files into the study's folder. Raises RequestError
        where they cannot be written.
        """
        self.tabulate()
        decision = self.document.decision
        if decision is None:
            return
        per_node = max((rule.ranks_per_node for rule in decision.table.rule), default=1)
        runs = [RunFolder(self.path / job.run) for job in self.document.jobs]
        library = next(run.read().library for run in runs if run.run_json.exists())
        of_job = find_libmpi(library, environment_of(self.options))
        files.write_files(files.TableTarget(self.path, decision.table, self.document.np, per_node, of_job))

    def tabulate(self) -> None:
        self.document.tabulate()

    def has_figures(self) -> bool:
        return self.document.decision is not None

    def html(self) -> str:
        from hvscale.comm_tuning.collectives.report.page import page

        return page(self.document)

    def resume(self, before: TuneCollectivesDocument) -> None:
        """Continue with the document of an earlier call."""
        kept = self.document
        self.document = before.model_copy(
            update={
                "folder": kept.folder,
                "operations": list(dict.fromkeys([*before.operations, *kept.operations])),
                "nps": sorted({*before.nps, *kept.nps}),
                "eager_limits": list(dict.fromkeys([*before.eager_limits, *kept.eager_limits])),
                "sizes": {**before.sizes, **kept.sizes},
            }
        )
        for job in self.document.jobs:
            job.finished = job.finished and before.sizes.get(job.operation) == self.document.sizes.get(job.operation)


def environment_of(options: LaunchOptions) -> dict[str, str]:
    """The environment in which the launcher finds its programs."""
    return job_environment(flavours.get(options.mpi), options.env)
