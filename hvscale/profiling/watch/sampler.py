"""Takes samples of a run: what the ranks did since the last one."""

import time
from contextlib import suppress
from datetime import UTC, datetime

from hvscale.core.run_folder import ABANDONED, OPEN_STATES, RunFolder, RunRecord
from hvscale.profiling.analyze.grouping import parse_bins
from hvscale.profiling.watch.document import ExposedNow, LateNow, StepsNow, Watch
from hvscale.profiling.watch.job_counters import Counted, JobCounters
from hvscale.profiling.watch.log_tail import LogTail
from hvscale.profiling.watch.newest_calls import UnavailableError, exposed_now, late_now
from hvscale.profiling.watch.rows import rows_of
from hvscale.profiling.watch.step_tail import read_newest_steps

PROBLEMS_NAMED = 3  # of possibly hundreds of files


class WatchSampler:
    """Samples of one run."""

    def __init__(self, run: RunFolder, bins: str = "study", steps_seconds: float = 2.0) -> None:
        """`bins`: as in `parse_bins`. `steps_seconds`: of the newest steps that count together.

        Raises RequestError if `bins` is invalid.
        """
        self.run = run
        self.bins = parse_bins(bins)
        self.steps_seconds = steps_seconds
        self.counters = JobCounters(run)
        self.logs = LogTail(run)
        self.is_first = True
        self.changed_at = time.monotonic()

    def sample(self) -> Watch:
        """Look at the run. Raises RequestError if run.json cannot be read."""
        record = self.run.read()
        counted, problems = self.counters.look()
        with suppress(OSError):
            self.logs.poll()
        taken_at = datetime.now(UTC)
        is_open = record.state in OPEN_STATES
        ended_at = taken_at if is_open else record.ended_at or self._last_write(taken_at)
        elapsed = max((ended_at - record.started_at).total_seconds(), 0.0)
        is_whole = self.is_first or not is_open
        if self.is_first or counted.new["calls"].any():
            self.changed_at = time.monotonic()
        self.is_first = False
        seconds = elapsed if is_whole else counted.seconds
        unavailable: dict[str, str] = {}
        if not counted.ranks:
            unavailable["rows"] = self._why_no_rows(record)
        rank_seconds = seconds * (len(counted.ranks) if is_whole else counted.ranks_read)
        rows, sends = (
            rows_of(counted, self.bins, point_to_point=sends, whole_run=is_whole, rank_seconds=rank_seconds)
            for sends in (False, True)
        )
        share = sum(row.share_of_time for row in rows) if counted.ranks else None
        steps, exposed = self._steps(counted, is_whole, seconds, share, unavailable)
        return Watch(
            run=str(self.run.path),
            state=record.state,
            command=record.command,
            np=record.np,
            library=record.measured_library.name,
            started_at=record.started_at,
            taken_at=taken_at,
            elapsed_seconds=elapsed,
            period="run" if is_whole else "interval",
            period_seconds=seconds,
            ranks_recorded=len(counted.ranks),
            ranks_missing=sorted(set(range(record.np)) - set(counted.ranks)),
            seconds_without_calls=time.monotonic() - self.changed_at if is_open and counted.ranks else None,
            rows=rows,
            point_to_point=sends,
            share_of_time=share,
            steps=steps,
            exposed_communication=exposed,
            late_ranks=self._late(record, unavailable),
            unavailable=unavailable,
            log_warnings=list(self.logs.warnings),
            log_lines=list(self.logs.lines),
            warnings=[*record.warnings, *([ABANDONED] if record.was_abandoned else []), *_shortened(problems)],
        )

    def _why_no_rows(self, record: RunRecord) -> str:
        if not record.library.has_mpi:
            return f"the messages of {record.library.flavour} can be read when the job has ended: `hvscale breakdown`"
        if any(self.run.hvprof.glob("nccl-*.hvn")):
            return "NCCL's messages can be read when the job has ended: `hvscale breakdown`"
        if record.launch.get("record_dir"):
            return "the profiles are on the nodes' own disks (--record-dir) until the job has ended"
        yet = " yet" if record.state in OPEN_STATES else ""
        return f"no rank has a profile{yet}: messages are recorded under `hvscale profile`, from MPI_Init on"

    def _steps(
        self, counted: Counted, is_whole: bool, seconds: float, share: float | None, unavailable: dict[str, str]
    ) -> tuple[StepsNow | None, ExposedNow | None]:
        """The steps and their exposed communication, from the best source."""
        try:
            steps, exposed = read_newest_steps(self.run, self.steps_seconds)
        except OSError as error:
            unavailable["steps"] = unavailable["exposed_communication"] = (
                f"steps.jsonl cannot be read: {error.strerror}"
            )
            return None, None
        if steps is None and counted.step_marks > 1:
            steps = _marked_steps(counted, is_whole, seconds)
        if steps is None:
            unavailable["steps"] = "neither steps.jsonl nor a profile has any"
        if exposed is None:
            try:
                exposed = exposed_now(list(self.counters.readable()))
            except UnavailableError as error:
                if share is None:
                    unavailable["exposed_communication"] = str(error)
                else:
                    exposed = ExposedNow(basis="time", steps=0, share_at_least=0.0, share_at_most=min(share, 1.0))
        return steps, exposed

    def _late(self, record: RunRecord, unavailable: dict[str, str]) -> LateNow | None:
        try:
            return late_now(list(self.counters.readable()), range(record.np))
        except UnavailableError as error:
            unavailable["late_ranks"] = str(error)
            return None

    def _last_write(self, now: datetime) -> datetime:
        """When a run was killed that could not record its end: the last change of its files."""
        changes = [0.0]
        for folder in (self.run.path, self.run.logs, self.run.hvprof):
            with suppress(OSError):
                changes += [path.stat().st_mtime for path in folder.iterdir()]
        return min(datetime.fromtimestamp(max(changes), UTC), now)


def _marked_steps(counted: Counted, is_whole: bool, seconds: float) -> StepsNow:
    """The steps that ended in the period, each from one step mark to the next.

    In the whole run they begin with the first mark, without the program's start-up.
    """
    ended = counted.step_marks - 1
    number = min(counted.new_step_marks, ended)
    if is_whole:
        sums = counted.step_sums
        number, seconds = (sums.steps, sums.duration_ns / 1e9) if sums is not None else (0, 0.0)
    return StepsNow(step=ended, counted=number, seconds=seconds, step_seconds=seconds / number if number else None)


def _shortened(problems: list[str]) -> list[str]:
    more = len(problems) - PROBLEMS_NAMED
    return [*problems[:PROBLEMS_NAMED], *([f"{more} more profiles cannot be read"] if more > 0 else [])]
