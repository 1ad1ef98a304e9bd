"""The study of `hvscale tune-collectives`: measures collectives, decides, and writes the table."""

import time
from collections import Counter
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
from hvscale.comm_tuning.collectives.options import (
    check_knobs,
    parse_eager_limits,
    parse_nps,
    parse_operations,
    sizes_of,
)
from hvscale.comm_tuning.collectives.tables import files
from hvscale.comm_tuning.collectives.tables.table import Operation
from hvscale.core.errors import RankFailedError, RequestError, UntrustedError
from hvscale.core.run_folder import RunFolder, default_run_path
from hvscale.launch import flavours
from hvscale.launch.environment import job_environment
from hvscale.launch.options import LaunchOptions
from hvscale.launch.placements._link_shaping import bits_per_second
from hvscale.studies.base import Study, Warn

SEARCH_SHARE = 0.8  # of --minutes; the rest is for confirming the best choices
MAX_CONFIRMATION_ROUNDS = 3  # after each round, another choice may be the best
MAX_ATTEMPTS = 3  # of one job; each retry excludes the choice in which a rank failed


class CollectivesStudy(Study[TuneCollectivesDocument]):
    """One study of collectives. `minutes`: time limit for all jobs together, None for no limit."""

    verb = "tune-collectives"
    must_match = ("mpi", "np", "launch")  # a later call may add to everything else
    run_folders = "np-*"

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
        """Check the options and make a new study; this starts and writes nothing.

        `options`: of the job with all ranks. Raises RequestError for invalid options.
        """
        np, mpi = options.np, options.mpi
        if np < 2:
            raise RequestError(f"-np {np}: a collective needs at least two ranks: use -np 2 or more")
        if not flavours.get(mpi).has_mpi:
            raise RequestError(f"--mpi {mpi}: its algorithms cannot be chosen; choose an MPI with --mpi")
        if minutes is not None and minutes <= 0:
            raise RequestError(f"--minutes {minutes:g}: must be above 0")
        operations = parse_operations(ops)
        check_knobs(options, operations)
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

        The error of a failed job is raised after all other jobs. The study keeps the measurements
        made so far and decides on them. Raises RequestError, RankFailedError, UntrustedError and
        RunInterruptedError.
        """
        with self.opened(warn):
            todo, started = self.todo(), 0
            for job in todo:
                if self.document.measurements.points and self.seconds_left() == 0.0:
                    break
                self.start(job, len(todo) - started, reporter, SEARCH_SHARE)
                started += 1
            self.confirm(reporter)
            stopped = [job for job in todo[:started] if not job.finished and job.problem is None] + todo[started:]
            if stopped:
                self.warn(
                    f"the time limit was reached before {len(stopped)} of {len(todo)} jobs were finished: resume with --run {self.path}"
                )
            self.check_results()
            self.write_files()

    def confirm(self, reporter: TuningReporter) -> None:
        """Measure the table's choices again in a fresh start.

        The best of many choices is partly luck, and starts differ from each other.
        """
        for _ in range(MAX_CONFIRMATION_ROUNDS):
            self.tabulate()
            cases = self.unconfirmed()
            for number, (case, choices) in enumerate(cases):
                if self.seconds_left() == 0.0:
                    self.warn(
                        f"the time limit was reached before the best choices were confirmed in a fresh start: resume with --run {self.path}"
                    )
                    return
                self.start(self.confirmation_job(case), len(cases) - number, reporter, 1.0, choices)
            if not cases:
                return

    def unconfirmed(self) -> list[tuple[CollectiveCase, dict[int, list[AlgorithmChoice]]]]:
        """The cases whose choices in the table only one start has measured, with these by size.

        Each size also gets the library's own choice. A case that has had all its rounds, here or in
        an earlier call, is left out.
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
        rounds = Counter(
            (job.np, job.operation)
            for job in self.document.jobs
            if job.confirmation and job.finished and job.eager_limit_bytes == limit
        )
        found: dict[CollectiveCase, dict[int, list[AlgorithmChoice]]] = {}
        for row in decision.rows:
            case = CollectiveCase(row.operation, row.np, row.ranks_per_node)
            if rounds[row.np, row.operation] >= MAX_CONFIRMATION_ROUNDS:
                continue
            if row.choice != LIBRARY and starts[case, row.bytes, row.choice] == 1:
                found.setdefault(case, {})[row.bytes] = [LIBRARY, row.choice]
        return list(found.items())

    def confirmation_job(self, case: CollectiveCase) -> TuningJob:
        """The unfinished job that confirms a case's choices, or a new one."""
        limit = self.document.decision.table.eager_limit_bytes if self.document.decision is not None else None
        key = case.np, case.operation, limit
        for job in self.document.jobs:
            if job.confirmation and not job.finished and (job.np, job.operation, job.eager_limit_bytes) == key:
                return job
        return self.job(*key, confirmation=True)

    def todo(self) -> list[TuningJob]:
        """The unfinished jobs: the largest np first, then the library's own eager limit first."""
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
        """Run a job; if a rank fails, retry without the choice that was running.

        The job gets an equal part of the remaining time: `share` of it, divided by `jobs`.
        """
        for attempt in range(1, MAX_ATTEMPTS + 1):
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
                culprit = results.trying
                if culprit is None or culprit == LIBRARY or attempt == MAX_ATTEMPTS:
                    what = f"np {job.np}, {job.operation}"
                    self.failure = self.failure or RankFailedError(f"{what}: {error}", error.last_lines)
                    self.warn(f"{what} failed: {error}")
                    return
                self.exclude(culprit, job, results)
                self.warn(f"np {job.np}, {job.operation}: {culprit} failed and is left out: {error}")
            finally:
                job.seconds += time.monotonic() - began
                self.write("running")

    def exclude(self, choice: AlgorithmChoice, job: TuningJob, results: JobResults) -> None:
        """Exclude a choice from the job, and delete its times at all sizes."""
        job.excluded.append(choice)
        measurements = self.document.measurements
        measurements.points = [
            point for point in measurements.points if point.choice != choice or not results.is_of_job(point)
        ]

    def launch(
        self, job: TuningJob, results: JobResults, seconds: float | None, only: Mapping[int, list[AlgorithmChoice]]
    ) -> None:
        """Run the job in a new folder. `only`: the choices to measure, by size; empty for all."""
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
        """A folder that does not exist yet; interrupted jobs keep their folders."""
        attempt, path = 1, self.path / name
        while path.exists():
            attempt += 1
            path = self.path / f"{name}-{attempt}"
        return path

    def check_results(self) -> None:
        """Warn about each choice with wrong results, and let the study fail at its end.

        The table is still written, without these choices.
        """
        wrong = [point for point in self.document.measurements.points if point.wrong]
        for point in wrong:
            self.warn(
                f"{point.operation} of {point.bytes} bytes on {point.np} ranks by {point.choice}: {point.wrong} wrong elements; not used"
            )
        if wrong and self.failure is None:
            self.failure = UntrustedError(
                f"{wrong[0].choice} gave wrong results in {wrong[0].operation}; the table does not use it"
            )

    def write_files(self) -> None:
        """Write the table and the library's files into the study folder.

        Raises RequestError if they cannot be written.
        """
        self.tabulate()
        decision = self.document.decision
        if decision is None:
            return
        per_node = max((rule.ranks_per_node for rule in decision.table.rule), default=1)
        runs = [RunFolder(self.path / job.run) for job in self.document.jobs]
        library = next((run.read().library for run in runs if run.run_json.exists()), None)
        if library is None:
            raise RequestError(
                f"{self.path}: the run folders of its jobs are gone, so the library that they used is unknown: measure in a "
                "new folder"
            )
        libmpi = find_libmpi(library, environment_of(self.options))
        files.write_files(files.TableTarget(self.path, decision.table, self.document.np, per_node, libmpi))

    def tabulate(self) -> None:
        self.document.tabulate()

    def has_figures(self) -> bool:
        return self.document.decision is not None

    def html(self) -> str:
        from hvscale.comm_tuning.collectives.report.page import page

        return page(self.document)

    def resume(self, before: TuneCollectivesDocument) -> None:
        """Continue with the document of an earlier call."""
        new = self.document
        self.document = before.model_copy(
            update={
                "folder": new.folder,
                "operations": list(dict.fromkeys([*before.operations, *new.operations])),
                "nps": sorted({*before.nps, *new.nps}),
                "eager_limits": list(dict.fromkeys([*before.eager_limits, *new.eager_limits])),
                "sizes": {**before.sizes, **new.sizes},
            }
        )
        for job in self.document.jobs:
            job.finished = job.finished and before.sizes.get(job.operation) == self.document.sizes.get(job.operation)


def environment_of(options: LaunchOptions) -> dict[str, str]:
    """The environment in which the launcher runs."""
    return job_environment(flavours.get(options.mpi), options.env)
