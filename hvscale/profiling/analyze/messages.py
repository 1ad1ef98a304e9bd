"""The schedule of a job whose gradients were not recorded, from the messages that hvprof recorded.

Horovod fuses gradients into other messages in every step. The schedule has one pattern of messages
for all steps, that of a typical step, and keeps when each step had sent as many bytes.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder, RunRecord
from hvscale.core.units import human_bytes
from hvscale.profiling.analyze.breakdown import read_recording
from hvscale.profiling.analyze.bytes_per_step import INFERRED, known_or_inferred_edges
from hvscale.profiling.analyze.gradients import JobGradients, RankSteps, read_job_gradients
from hvscale.profiling.analyze.steps import edges_by_rank, read_step_log
from hvscale.profiling.read.events import Events, Recording
from hvscale.profiling.read.gradients_file import GradientsHeader, GradientStep, GradientTensor, RankGradients
from hvscale.profiling.read.passes import in_order, pieces
from hvscale.profiling.read.ring_file import INT64_MAX
from hvscale.profiling.record.rank_side.gradient_recorder import SETTINGS, VERSION

Nanoseconds = NDArray[np.int64]
MESSAGES_ONLY = "fused messages only, fixed pattern"
FUSION_OFF = {"HOROVOD_FUSION_THRESHOLD": "0"}
# Horovod's ranks agree by all-reduces, gathers and broadcasts; these carry a program's data.
OTHER_DATA = ("allgather", "allgatherv", "alltoall", "alltoallv", "reduce-scatter", "reduce-scatter-block")
SENDS = ("send", "isend", "send-receive")


def read_job_schedule(run: RunFolder, ranks: Collection[int] | None = None) -> JobGradients:
    """Read a job's recorded gradients or, without any, its schedule from hvprof's messages.

    `ranks`: those to hold besides the lowest one; None: all.

    The steps of a run without step marks or steps.jsonl are inferred from its messages.

    Raises RequestError when the run has neither.
    """
    if any(run.hvprof.glob("gradients-*.hvg")) or not any(run.hvprof.glob("rank-*.hvp")):
        return read_job_gradients(run, ranks)
    recording = read_recording(run)
    edges, inferred = known_or_inferred_edges(recording, read_step_log(run))
    if inferred:
        recording = replace(recording, warnings=[f"{run.path}: {INFERRED}", *recording.warnings])
    return message_schedule(str(run.path), run.read(), recording, edges, ranks)


def other_data_warnings(run: RunFolder, gradients: JobGradients) -> list[str]:
    """A line if each step also sends data by other collectives, which a schedule leaves out.

    The calls are those of the lowest rank between the first step and the last, or in the whole run
    if its steps are unknown. Empty where its messages are unknown.
    """
    try:
        recording = read_recording(run, ranks=[])
    except RequestError:
        return []
    if not recording.ranks:
        return []
    steps = 1 + len(gradients.numbers) + gradients.left_out  # with the first one
    events = recording.events.of_rank(recording.ranks[0])
    edges, _ = known_or_inferred_edges(recording, read_step_log(run))
    first, last = (0, INT64_MAX) if edges is None else (int(edges[0]), int(edges[-1]))
    in_steps = (events.start_ns >= first) & (events.start_ns <= last)
    counted = []  # operation, calls, bytes
    for number, operation in enumerate(events.operations):
        if operation in OTHER_DATA:
            sizes = events.bytes[in_steps & (events.operation == number)]
            counted.append((operation, len(sizes), int(sizes.sum())))
    if recording.point_to_point is not None:  # only counted, over the whole run
        sent = recording.point_to_point.of_ranks(recording.ranks[:1])
        for number, operation in enumerate(sent.operations):
            rows = sent.operation == number
            if operation in SENDS:
                counted.append((operation, int(sent.calls[rows].sum()), int(sent.bytes[rows].sum())))
    found = [
        f"{operation} {calls / steps:.1f} times ({human_bytes(int(total / steps))})"
        for operation, calls, total in counted
        if calls >= steps
    ]
    if not found:
        return []
    return [
        f"{run.path}: in each step, a rank also calls {' and '.join(found)}, for example for sparse gradients or Adasum: only "
        "all-reduces are replayed, predicted and exported, so steps usually come out too short"
    ]


def message_schedule(
    run: str,
    record: RunRecord,
    recording: Recording,
    edges: Nanoseconds | None,
    ranks: Collection[int] | None = None,
) -> JobGradients:
    """Return a schedule in which each all-reduce between all ranks is one tensor.

    `run`: its name in errors. `edges`: of the lowest rank's steps. `ranks`: as in
    `read_job_schedule`. Raises RequestError without known steps, or without a step that has the
    usual bytes on all ranks.
    """
    refused = f"{run} holds no gradients, and its messages cannot replace them: {{}}. Use `hvscale profile --gradients`"
    if recording.source != "hvprof":
        raise RequestError(refused.format(f"{recording.source} recorded them, not hvprof"))
    if not recording.has_calls:
        raise RequestError(refused.format("calls were only counted (--record counters)"))
    if edges is None:
        raise RequestError(refused.format("their steps are unknown"))
    edges_of = edges_by_rank(recording, edges)
    totals = {}
    for rank, total in in_order(lambda one: _step_totals(recording, record.np, one, edges_of[one]), recording.ranks):
        if isinstance(total, RequestError):
            raise total
        totals[rank] = total
    distinct = Counter(total for of_rank in totals.values() for total in of_rank.tolist() if total)
    if not distinct:
        raise RequestError(refused.format("the steps after the first one contain no all-reduce"))
    usual = distinct.most_common(1)[0][0]
    candidates = range(1, len(edges) - 1)
    numbers = [number for number in candidates if all(of_rank[number - 1] == usual for of_rank in totals.values())]
    if not numbers:
        raise RequestError(refused.format("no step has the same bytes on all ranks"))
    kept = [rank for rank in recording.ranks if ranks is None or rank in ranks or rank == recording.ranks[0]]
    sizes: Nanoseconds | None = None
    made = []
    for rank in kept:
        steps = _steps_of_rank(recording, record.np, rank, edges_of[rank])
        if sizes is None:
            sizes = _typical_sizes([steps[number] for number in numbers])
            tensors = [_tensor(number, size) for number, size in enumerate(sizes.tolist())]
        found = [steps[number].in_pattern(sizes) for number in numbers]
        of_rank = RankGradients(_header(record, rank), tensors, found, None)
        made.append(RankSteps(of_rank, dict(zip(numbers, found, strict=True))))
    warning = (
        f"{MESSAGES_ONLY}: {run} holds no gradients, so the messages of a typical step are used, and Horovod's fusion "
        "is off"
    )
    warnings = [warning, *recording.warnings]
    unread = tuple(sorted(set(recording.ranks) - set(kept)))
    return JobGradients(made, numbers, len(candidates) - len(numbers), warnings, MESSAGES_ONLY, unread)


@dataclass(frozen=True)
class _Step:
    """One step of one rank: its all-reduces, in order. Times are nanoseconds after its start."""

    number: int
    duration_ns: int
    bytes: Nanoseconds
    ready_ns: Nanoseconds
    """When the rank had the data, at the latest."""
    end_ns: Nanoseconds
    overlaps: bool
    """The program computes while messages are on their way, and waits once, at the end."""

    def in_pattern(self, sizes: Nanoseconds) -> GradientStep:
        """Divide the bytes of this step into messages of `sizes`, of the same total.

        A message is ready, and ends, when the recorded message with its last byte does.
        """
        carrier = np.searchsorted(np.cumsum(self.bytes), np.cumsum(sizes))
        enqueued, end = self.ready_ns[carrier] / 1e9, self.end_ns[carrier] / 1e9
        count = len(sizes)
        if self.overlaps:
            positions = handles = np.array([count])
            begins, ends = enqueued[-1:], np.maximum(end.max(keepdims=True), enqueued[-1:])
        else:
            positions, handles = np.arange(1, count + 1), np.ones(count, np.int64)
            last_of_carrier = np.append(np.diff(carrier) > 0, True)
            begins, ends = enqueued, np.where(last_of_carrier, end, enqueued)
        return GradientStep(
            self.number,
            self.duration_ns / 1e9,
            np.arange(count),
            enqueued,
            positions,
            handles,
            begins,
            ends,
            ends - begins,
        )


def _step_totals(recording: Recording, np_of_job: int, rank: int, edges: Nanoseconds) -> Nanoseconds:
    """The bytes that a rank all-reduced in each step but the first one, (steps - 1,)."""
    totals = np.zeros(len(edges) - 1, np.int64)
    for part in recording.events.parts:
        for events in pieces(part, detail=False) if part.rank == rank else ():
            chosen = events.take(_carries_gradients(events, np_of_job))
            step = np.searchsorted(edges, chosen.start_ns, side="right") - 1
            inside = (step >= 0) & (step < len(totals))
            np.add.at(totals, step[inside], chosen.bytes[inside])
    return totals[1:]


def _carries_gradients(events: Events, np_of_job: int) -> NDArray[np.bool_]:
    """Which messages are all-reduces of data between all ranks."""
    carries = _is_allreduce(events) & ~events.bitwise & (events.bytes > 0) & (events.communicator_size == np_of_job)
    return np.asarray(carries, np.bool_)


def _is_allreduce(events: Events) -> NDArray[np.bool_]:
    names = events.operations
    return np.equal(events.operation, names.index("allreduce") if "allreduce" in names else len(names))


def _steps_of_rank(recording: Recording, np_of_job: int, rank: int, edges: Nanoseconds) -> dict[int, _Step]:
    """The steps of a rank but the first one, in which Horovod sets itself up, by number."""
    events = recording.events.of_rank(rank)
    agreements = np.sort(events.start_ns[_is_allreduce(events) & events.bitwise])
    chosen = np.flatnonzero(_carries_gradients(events, np_of_job))
    chosen = chosen[np.argsort(events.start_ns[chosen], kind="stable")]
    ready = _ready(events, chosen, agreements)
    first = np.searchsorted(events.start_ns[chosen], edges)
    made = {}
    for number in range(1, len(edges) - 1):
        inside = slice(first[number], first[number + 1])
        made[number] = _Step(
            number=number,
            duration_ns=int(edges[number + 1] - edges[number]),
            bytes=events.bytes[chosen[inside]],
            ready_ns=np.maximum(ready[inside] - edges[number], 0),
            end_ns=(events.start_ns + events.duration_ns)[chosen[inside]] - edges[number],
            overlaps=len(agreements) > 0,
        )
    return made


def _ready(events: Events, chosen: Nanoseconds, agreements: Nanoseconds) -> Nanoseconds:
    """When the rank had the data of each message, in nanoseconds since 1970.

    Horovod sends what all ranks had ready when they last agreed. The rank did not have all of it
    at the agreement before, so the middle between the two is taken. Without agreements, which
    another program than Horovod does not make: when it calls the all-reduce.
    """
    start = events.start_ns[chosen]
    last = np.searchsorted(agreements, start, side="right") - 1
    if not len(agreements):
        return start
    middle = (agreements[np.maximum(last, 1) - 1] + agreements[np.maximum(last, 0)]) // 2
    return np.where(last > 0, middle, start)


def _typical_sizes(steps: list[_Step]) -> Nanoseconds:
    """The sizes of the messages of a step that has the median number of them."""
    counts = [len(step.bytes) for step in steps]
    median = sorted(counts)[(len(counts) - 1) // 2]
    patterns = Counter(tuple(step.bytes.tolist()) for step in steps if len(step.bytes) == median)
    return np.array(patterns.most_common(1)[0][0], np.int64)


def _tensor(number: int, size: int) -> GradientTensor:
    dtype = "float32" if size % 4 == 0 else "uint8"
    return GradientTensor(name=f"message.{number}", dtype=dtype, bytes=size, group=None, process_set=0, device="cpu")


def _header(record: RunRecord, rank: int) -> GradientsHeader:
    environment = {**record.env_asked, **record.rank_environment}
    settings = {name: environment[name] for name in SETTINGS if name in environment}
    return GradientsHeader(
        version=VERSION,
        rank=rank,
        size=record.np,
        local_size=1,
        horovod=None,
        torch=None,
        settings={**settings, **FUSION_OFF},
    )
