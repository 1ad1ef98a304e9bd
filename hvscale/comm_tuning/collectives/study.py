"""Measures the algorithms of collectives, job by job, in a folder that is gone on with; then decides, and writes what libraries read."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol, Self

from hvscale.bench.collectives import elements
from hvscale.bench.collectives.operations import COLLECTIVES
from hvscale.bench.collectives.rank_job import NewLines
from hvscale.bench.collectives.sizes import messages, parse_size
from hvscale.comm_tuning.collectives.decide.measurements import LIBRARY, Choice, Measurements, Place, Point
from hvscale.comm_tuning.collectives.document import Job, TuneCollectives
from hvscale.comm_tuning.collectives.launch import own_library
from hvscale.comm_tuning.collectives.measure.candidates import candidates
from hvscale.comm_tuning.collectives.measure.request import (
    DTYPE,
    Answer,
    Begun,
    Checked,
    Ended,
    Impossible,
    Line,
    Request,
    Sample,
    Trying,
    answers_path,
    request_path,
)
from hvscale.comm_tuning.collectives.tables import files
from hvscale.comm_tuning.collectives.tables.library_algorithms import spelling_of
from hvscale.comm_tuning.collectives.tables.table import Operation
from hvscale.core.errors import RankFailedError, RequestError, UntrustedError
from hvscale.core.numbers import read_whole
from hvscale.core.run_folder import DEFAULT_PLACEMENT, RunFolder, default_run_path, write_text
from hvscale.core.suggest import suggest_name
from hvscale.launch import flavours
from hvscale.launch.controller import launch
from hvscale.launch.environment import clean, named
from hvscale.launch.mpi import prefixes
from hvscale.launch.mpi.reported_library import KnownLibrary, require_asked_library
from hvscale.launch.nodes.link import bits_per_second
from hvscale.launch.options import LaunchHooks, LaunchOptions
from hvscale.profiling.analyze.bins import parse_bins
from hvscale.profiling.analyze.breakdown import read_recording, tabulate
from hvscale.studies.base import Study, Warn

COMMAND = ["python", "-m", "hvscale.comm_tuning.collectives.measure.rank"]
EAGER_LIMIT = 1 << 20
STEP = 4  # from one size to the next; near crossovers some are added
LOOK_SECONDS = 1.0  # between looks at what the ranks have written
SEARCHING = 0.8  # of --minutes; the rest is for measuring again
CONFIRMATIONS = 3  # rounds of it at most: each may bring another choice to the front
ATTEMPTS = 3  # of a job whose ranks failed in one choice: the next one leaves it out


class Shown(Protocol):
    """Who is told what goes on."""

    def job(self, job: Job, sizes: list[int]) -> None:
        """One begins."""

    def answer(self, answer: Answer) -> None:
        """What its ranks have done."""


class CollectivesStudy(Study[TuneCollectives]):
    """One study. `minutes`: for all its jobs together, None for no bound."""

    verb = "tune-collectives"
    same = ("mpi", "np", "launch")  # more of everything else may be asked for
    started = "np-*"

    def __init__(
        self, document: TuneCollectives, options: LaunchOptions, minutes: float | None, exhaustive: bool
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
        """`options`: with all ranks. Raises RequestError for what cannot be measured; starts and writes nothing."""
        np, mpi = options.np, options.mpi
        if np < 2:
            raise RequestError(f"-np {np}: a rank alone sends no messages; give -np 2 or more")
        if not flavours.get(mpi).has_mpi:
            raise RequestError(f"--mpi {mpi}: its algorithms cannot be chosen; this is for MPI's collectives")
        if minutes is not None and minutes <= 0:
            raise RequestError(f"--minutes {minutes:g}: give a number above 0")
        operations = parse_operations(ops)
        sizes = sizes_of(operations, min_bytes, max_bytes, from_run)
        for operation, of_operation in sizes.items():
            messages(
                COLLECTIVES.get(operation), elements.find_dtype(DTYPE), 2, of_operation
            )  # more than MPI counts is to be known before
        document = TuneCollectives(
            folder=str((path or default_run_path(["tune-collectives", *sizes])).absolute()),
            mpi=mpi,
            np=np,
            nps=parse_nps(nps, np),
            operations=[*sizes],
            sizes=sizes,
            eager_limits=parse_eager_limits(eager_limits, options),
            launch=options.recorded(),
            link=bits_per_second(options.placement.link) if options.placement.link is not None else None,
            measurements=Measurements(mpi=mpi),
        )
        return cls(document, options, minutes, exhaustive)

    def measure(self, shown: Shown, warn: Warn) -> None:
        """Every job that is not finished; a failure is raised after all others. Raises RequestError, RankFailedError, UntrustedError and
        RunInterruptedError; what was measured until then is kept, and decided on."""
        with self.at_work(warn):
            todo = self.todo()
            for number, job in enumerate(todo):
                if self.document.measurements.points and self.seconds_left() == 0.0:
                    self.warn(f"{len(todo) - number} of {len(todo)} jobs had no time: go on with --run {self.path}")
                    break
                self.start(job, len(todo) - number, shown, SEARCHING)
            self.measure_again(shown)
            self.check_results()
            self.write_files()

    def measure_again(self, shown: Shown) -> None:
        """What is taken must have been the best in two starts: the best of many was the luckiest, too, and starts differ."""
        for _ in range(CONFIRMATIONS):
            self.tabulate()
            jobs = self.once_measured()
            for number, (job, choices) in enumerate(jobs):
                if self.seconds_left() == 0.0:
                    self.warn(f"no time to measure again what was best, in a fresh start: go on with --run {self.path}")
                    return
                self.start(job, len(jobs) - number, shown, 1.0, choices)
            if not jobs:
                return

    def once_measured(self) -> list[tuple[Job, dict[int, list[Choice]]]]:
        """Jobs for what the table takes and only one start of ranks has measured; beside it, the library's own."""
        decision = self.document.decision
        if decision is None:
            return []
        limit = decision.table.eager_limit_bytes
        starts = {
            (point.place, point.bytes, point.choice): point.starts
            for point in self.document.measurements.points
            if point.eager_limit_bytes == limit
        }
        found: dict[Place, dict[int, list[Choice]]] = {}
        for row in decision.rows:
            place = Place(row.operation, row.np, row.ranks_per_node)
            if row.choice != LIBRARY and starts[place, row.bytes, row.choice] == 1:
                found.setdefault(place, {})[row.bytes] = [LIBRARY, row.choice]
        return [(self.job(place.np, place.operation, limit, again=True), sizes) for place, sizes in found.items()]

    def todo(self) -> list[Job]:
        """The jobs that are not finished: all ranks first, and the library's own eager limit before others."""
        document = self.document
        known = {(job.np, job.operation, job.eager_limit_bytes): job for job in document.jobs if not job.again}
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

    def job(self, np: int, operation: Operation, limit: int | None, again: bool = False) -> Job:
        name = f"np-{np}-{operation}-eager-{'own' if limit is None else limit}"
        job = Job(
            np=np,
            operation=operation,
            eager_limit_bytes=limit,
            again=again,
            run=self.free_folder(f"{name}-again" if again else name).name,
        )
        self.document.jobs.append(job)
        return job

    def seconds_left(self) -> float | None:
        if self.minutes is None:
            return None
        return max(0.0, 60 * self.minutes - (time.monotonic() - self.began))

    def start(
        self, job: Job, jobs: int, shown: Shown, share: float, only: dict[int, list[Choice]] | None = None
    ) -> None:
        """Measure it, again without a choice in which its ranks failed. `jobs` share so much of the time that is left."""
        for attempt in range(1, ATTEMPTS + 1):
            began, left = time.monotonic(), self.seconds_left()
            reader = Reader(self.document, job, shown, self.warn)
            try:
                self.launch(job, reader, None if left is None else share * left / jobs, only or {})
                job.problem = None
                return
            except RankFailedError as error:
                if reader.impossible:
                    raise RequestError(reader.impossible) from error
                job.problem = str(error)
                blamed = reader.trying
                if blamed is None or blamed == LIBRARY or attempt == ATTEMPTS:
                    what = f"np {job.np}, {job.operation}"
                    self.failure = self.failure or RankFailedError(f"{what}: {error}", error.last_lines)
                    self.warn(f"{what} failed: {error}")
                    return
                self.exclude(blamed, job, reader)
                self.warn(f"np {job.np}, {job.operation}: {blamed} failed and is left out: {error}")
            finally:
                job.seconds += time.monotonic() - began
                self.write("running")

    def exclude(self, choice: Choice, job: Job, reader: "Reader") -> None:
        """What it took at other sizes does not count either."""
        job.excluded.append(choice)
        measurements = self.document.measurements
        measurements.points = [
            point for point in measurements.points if point.choice != choice or not reader.is_of_job(point)
        ]

    def launch(self, job: Job, reader: "Reader", seconds: float | None, only: Mapping[int, list[Choice]]) -> None:
        run = RunFolder(self.free_folder(job.run))
        run.path.mkdir()
        job.run = run.path.name
        document = self.document
        request = Request(
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
            known=[point for point in document.measurements.points if reader.is_of_job(point) and not only],
            only=dict(only),
        )
        write_text(request_path(run.path), request.model_dump_json(by_alias=True))
        reader.shown.job(job, request.sizes)
        lines = AnswerLines(run.path, reader.take)
        spelling = spelling_of(document.mpi, "eager_threshold")
        limit = spelling.write(job.eager_limit_bytes) if spelling is not None and job.eager_limit_bytes else {}
        options = options_of(job, self.options, limit).replace(run=run.path)
        try:
            launch(COMMAND, options, LaunchHooks(warn=self.warn, watch=lines.watch))
        except RankFailedError:
            require_asked_library(run.read())
            raise
        finally:
            if run.run_json.exists():
                document.host = run.read().host
                if not lines.library.differs(run):
                    lines.read()
                    reader.fold()
        require_asked_library(run.read())

    def free_folder(self, name: str) -> Path:
        """One that is not there yet: what was broken off keeps its own."""
        attempt, path = 1, self.path / name
        while path.exists():
            attempt += 1
            path = self.path / f"{name}-{attempt}"
        return path

    def check_results(self) -> None:
        """Warn of each choice whose results were wrong, and fail at the end, when the table has been written without it."""
        wrong = [point for point in self.document.measurements.points if point.wrong]
        for point in wrong:
            self.warn(
                f"{point.operation} of {point.bytes} bytes on {point.np} ranks by {point.choice}: {point.wrong} wrong elements; it is never chosen"
            )
        if wrong and self.failure is None:
            self.failure = UntrustedError(
                f"{wrong[0].choice} gave wrong results in {wrong[0].operation}; the table does without it"
            )

    def write_files(self) -> None:
        """The table, and what the library reads, into the study's folder. Raises RequestError where that cannot be written."""
        self.tabulate()
        decision = self.document.decision
        if decision is None:
            return
        per_node = max((rule.ranks_per_node for rule in decision.table.rule), default=1)
        runs = [RunFolder(self.path / job.run) for job in self.document.jobs]
        library = next(run.read().library for run in runs if run.run_json.exists())
        of_job = own_library(library, environment_of(self.options))
        files.write_files(files.Job(self.path, decision.table, self.document.np, per_node, of_job))

    def tabulate(self) -> None:
        self.document.tabulate()

    def has_figures(self) -> bool:
        return self.document.decision is not None

    def html(self) -> str:
        from hvscale.comm_tuning.collectives.report.page import page

        return page(self.document)

    def resume(self, before: TuneCollectives) -> None:
        """Go on with what an earlier call has measured."""
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


class AnswerLines:
    """Looks now and then at what rank 0 has written."""

    def __init__(self, run: Path, take: Callable[[Answer], None]) -> None:
        self.lines, self.take, self.next = NewLines(answers_path(run)), take, 0.0
        self.library = KnownLibrary()

    def watch(self, run: RunFolder) -> bool:
        """True where the ranks run on another library than the one asked for."""
        if time.monotonic() < self.next:
            return False
        self.next = time.monotonic() + LOOK_SECONDS
        if self.library.differs(run):
            return True
        if self.library.confirmed:
            self.read()
        return False

    def read(self) -> None:
        for text in self.lines.take():
            self.take(Line.model_validate_json(b'{"line":' + text + b"}").line)


class Reader:
    """Makes points of a job's answers. `trying`: the choice whose first call is not known to have ended."""

    def __init__(self, document: TuneCollectives, job: Job, shown: Shown, warn: Warn) -> None:
        self.document, self.job, self.shown, self.warn = document, job, shown, warn
        self.begun: Begun | None = None
        self.trying: Choice | None = None
        self.impossible = ""
        self.seconds: dict[tuple[int, Choice], list[float]] = {}
        self.wrong: dict[tuple[int, Choice], int] = {}

    def is_of_job(self, point: Point) -> bool:
        job = self.job
        return (point.np, point.operation, point.eager_limit_bytes) == (job.np, job.operation, job.eager_limit_bytes)

    def take(self, answer: Answer) -> None:
        match answer:
            case Begun():
                self.begun, self.document.library = answer, answer.library
                if names := dict.fromkeys(choice.library_algorithm or choice.algorithm for choice in answer.refused):
                    self.warn(
                        f"{self.job.operation}: {answer.library} does not know {', '.join(names)}, or cannot be told: not measured"
                    )
            case Trying():
                self.trying = answer.choice
            case Sample():
                self.trying = None
                for choice in answer.choices:
                    self.seconds.setdefault((answer.bytes, choice), []).append(answer.seconds)
            case Checked():
                for choice in answer.choices:
                    self.wrong[answer.bytes, choice] = answer.wrong
            case Impossible():
                self.impossible = answer.why
            case Ended():
                self.job.finished = answer.finished
        self.shown.answer(answer)

    def fold(self) -> None:
        """Put the samples into the document, with those of earlier jobs."""
        measurements, job = self.document.measurements, self.job
        measurements.library = self.document.library
        points = {(point.bytes, point.choice): point for point in measurements.points if self.is_of_job(point)}
        for (size, choice), seconds in self.seconds.items():
            point = points.get((size, choice))
            if point is None:
                assert self.begun is not None  # noqa: S101 - it is the first line
                point = Point(
                    operation=job.operation,
                    np=job.np,
                    ranks_per_node=self.begun.ranks_per_node,
                    bytes=size,
                    eager_limit_bytes=job.eager_limit_bytes,
                    choice=choice,
                    seconds=seconds,
                )
                measurements.points.append(point)
            else:
                point.seconds += seconds
                point.starts += 1
            point.wrong = max(point.wrong, self.wrong.get((size, choice), 0))
        self.seconds, self.wrong = {}, {}


def parse_operations(text: str) -> list[Operation]:
    """Raises RequestError, naming those that there are."""
    words = [word.strip() for word in text.split(",")]
    found = [operation for operation in files.OPERATIONS if operation in words]
    if unknown := [word for word in words if word not in files.OPERATIONS]:
        raise RequestError(f"--ops {unknown[0]}: {suggest_name('collective', unknown[0], files.OPERATIONS)}")
    return found


def parse_nps(text: str | None, np: int) -> list[int]:
    """Numbers of ranks; by default the powers of two up to `np`, and `np`. Raises RequestError."""
    if text is None:
        return sorted({*(1 << power for power in range(1, np.bit_length()) if 1 << power <= np), np})
    found = {read_whole(word, 2, np) for word in text.split(",")}
    if None in found:
        raise RequestError(f"--nps {text}: numbers from 2 to -np {np}, with commas between them")
    return sorted(number for number in found if number is not None)


def parse_eager_limits(text: str | None, options: LaunchOptions) -> list[int | None]:
    """The library's own, and those asked for; by default one where messages go over a network that has one. Raises RequestError."""
    spelling = spelling_of(options.mpi, "eager_threshold")
    carried = spelling is not None and options.transport in (None, spelling.transport)
    if text is None:
        return [None, EAGER_LIMIT] if carried and options.placement.name != DEFAULT_PLACEMENT else [None]
    if text == "own":
        return [None]
    if not carried:
        raise RequestError(f"--eager-limits {text}: {options.mpi} has none that can be set here; leave it out")
    return [None, *sorted({parse_size("--eager-limits", word) for word in text.split(",")})]


def sizes_of(
    operations: list[Operation], min_bytes: str, max_bytes: str, from_run: Path | None
) -> dict[Operation, list[int]]:
    """Each four times the one before and the largest, or with a run the powers of two next to what it has sent. Raises RequestError."""
    first, last = parse_size("--min-bytes", min_bytes), parse_size("--max-bytes", max_bytes)
    if last < first:
        raise RequestError(f"--min-bytes {min_bytes} is more than --max-bytes {max_bytes}: exchange them")
    if from_run is None:
        every = [*range_by(first, last), last]
        return {operation: sorted(set(every)) for operation in operations}
    found = sent_by(RunFolder.open(from_run))
    sizes = {
        operation: sorted({size for size in found.get(operation, ()) if first <= size <= last})
        for operation in operations
    }
    kept = {operation: of_operation for operation, of_operation in sizes.items() if of_operation}
    if not kept:
        raise RequestError(
            f"--from {from_run}: it has sent no {' or '.join(operations)} of {min_bytes} to {max_bytes}: name others with --ops, or leave out --from"
        )
    return kept


def range_by(first: int, last: int) -> Iterator[int]:
    size = first
    while size <= last:
        yield size
        size *= STEP


def sent_by(run: RunFolder) -> dict[str, set[int]]:
    """The powers of two nearest to the bytes of its messages, by collective. Raises RequestError for a run that cannot be read."""
    found: dict[str, set[int]] = {}
    for row in tabulate(read_recording(run), parse_bins("pow2"), run.path.name).rows:
        if row.bytes:
            found.setdefault(row.operation, set()).add(1 << round(math.log2(row.bytes / row.calls)))
    return found


def options_of(job: Job, options: LaunchOptions, limit: Mapping[str, str]) -> LaunchOptions:
    """The options for a job: as many ranks on a node as with all ranks, and the eager limit, whatever the user has set for it."""
    placement = options.placement
    if placement.nodes is not None:
        per_node = -(-options.np // placement.nodes)
        placement = placement.model_copy(update={"nodes": -(-job.np // per_node)})
    env = (*options.env, *(f"{name}={word}" for name, word in limit.items()))
    return options.replace(np=job.np, placement=placement, env=env)


def environment_of(options: LaunchOptions) -> dict[str, str]:
    """Of the launch, as the launcher finds its programs in."""
    return {**prefixes.programs_first(clean(), flavours.get(options.mpi)), **named(options.env)}
